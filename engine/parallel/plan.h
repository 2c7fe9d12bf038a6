/* Plan: which parallel style each parameter has, as data keyed by parameter-name patterns, over a
 * mesh of named axes. The built-in layouts are such files too. Pure; immutable after plan_open.
 *
 * In a pattern `*` stands for any part of one dotted component. The pattern with the most literal
 * characters wins; a tie is an error, so is a pattern that matches nothing and a parameter no
 * pattern matches (checked by plan_bind). */
#ifndef TESSERA_ENGINE_PARALLEL_PLAN_H
#define TESSERA_ENGINE_PARALLEL_PLAN_H

#include "config/base.h"

enum style {
    STYLE_COLWISE, /* output columns split; no communication */
    STYLE_ROWWISE, /* input columns split; partial outputs are all-reduced */
    STYLE_VOCAB,   /* vocabulary rows split: embedding all-reduced, head all-gathered */
    STYLE_NORM,    /* small vector, on every rank */
};

/* What a split may not cut. */
enum unit { UNIT_COLUMN, UNIT_HEAD, UNIT_KV_GROUP };

struct plan_choice {
    enum style style;
    enum unit unit;
};

struct plan;

/* text: a plan file; where names it in messages. The mesh must have `ranks` members. ERR_USAGE
 * names entry, value and what is wanted. */
enum status plan_open(const char *text, size_t n, const char *where, int32_t ranks,
                      struct plan **out, struct err *err) MUST_USE;
/* The built-in plan of a mode ("1d"), or the file when path is not NULL. */
enum status plan_load(const char *mode, const char *path, int32_t ranks, struct plan **out,
                      struct err *err) MUST_USE;
void plan_close(struct plan *p);

int32_t plan_ranks(const struct plan *p);
/* Of the text without its layout: equal plans hash equally. */
uint64_t plan_hash(const struct plan *p);
/* choices[i] for each parameter name. */
enum status plan_bind(const struct plan *p, const char *const *names, int32_t count,
                      struct plan_choice *choices, struct err *err) MUST_USE;

const char *plan_style_name(enum style s);

#endif
