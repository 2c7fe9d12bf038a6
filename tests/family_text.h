/* Small config.json texts of a family, for tests of what is made of them. */
#ifndef TESSERA_TESTS_FAMILY_TEXT_H
#define TESSERA_TESTS_FAMILY_TEXT_H

#include "config/model_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The least a config.json of this family can say, and more members. */
static inline enum status parse_family(const char *family, const char *more, struct model_config *m,
                                       struct err *err)
{
    char text[512];
    const int n = snprintf(text, sizeof text,
                           "{\"model_type\":\"%s\",\"hidden_size\":512,\"num_hidden_layers\":4,"
                           "\"num_attention_heads\":64,\"intermediate_size\":8,\"vocab_size\":9%s}",
                           family, more);
    assert_true(n < (int)sizeof text);
    return model_config_parse(text, (size_t)n, "config.json", m, err);
}

static inline void ok_config(const char *text, struct model_config *m)
{
    struct err err;
    if (model_config_parse(text, strlen(text), "config.json", m, &err) != OK)
        fail_msg("%s", err.text);
}

static inline void ok_family(const char *family, const char *more, struct model_config *m)
{
    struct err err;
    if (parse_family(family, more, m, &err) != OK)
        fail_msg("%s%s: %s", family, more, err.text);
}

static inline void refuses(const char *family, const char *more, const char *why)
{
    struct model_config m;
    struct err err = {""};
    assert_int_equal(parse_family(family, more, &m, &err), ERR_MODEL);
    if (!strstr(err.text, why))
        fail_msg("%s%s: %s", family, more, err.text);
}

#endif
