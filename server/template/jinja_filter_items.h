/* The filters that go through items. Internal to the template engine; see jinja_filter.c for their
 * names and parameters. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_FILTER_ITEMS_H
#define TESSERA_SERVER_TEMPLATE_JINJA_FILTER_ITEMS_H

#include "server/template/jinja_run.h"

function_body jinja_filter_batch, jinja_filter_dictsort, jinja_filter_first, jinja_filter_items,
    jinja_filter_join, jinja_filter_last, jinja_filter_length, jinja_filter_list, jinja_filter_map,
    jinja_filter_max, jinja_filter_min, jinja_filter_reject, jinja_filter_rejectattr,
    jinja_filter_reverse, jinja_filter_select, jinja_filter_selectattr, jinja_filter_sort,
    jinja_filter_sum, jinja_filter_unique;

#endif
