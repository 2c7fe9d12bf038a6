/* Private to plan*.c: what a plan file says, read. */
#ifndef TESSERA_ENGINE_PARALLEL_PLAN_RULES_H
#define TESSERA_ENGINE_PARALLEL_PLAN_RULES_H

#include "config/jdoc.h"
#include "engine/parallel/plan.h"

enum { PLAN_RULES_MAX = 64, PLAN_PATTERN_MAX = 128 };

/* What a step of many rows does otherwise. */
enum plan_many {
    MANY_ALIKE, /* nothing */
    MANY_SUMMA, /* weights travel instead of sums */
    MANY_ROWS,  /* what lin3d scatters is cut by rows, not by columns */
};

enum plan_use { PLAN_PARAMETER, PLAN_PREPARE_IN, PLAN_PREPARE_OUT };

struct plan_rule {
    char match[PLAN_PATTERN_MAX];
    int32_t literals; /* characters that are not wildcards: the specificity */
    int32_t entry;    /* index in the file, for messages */
    enum plan_use use;
    struct plan_choice choice; /* PLAN_PARAMETER */
    struct spread from, to;    /* PLAN_PREPARE_*: of the first matrix; equal: untouched */
};

struct plan {
    char where[128], mode[16];
    char *text;
    struct mesh mesh;
    int32_t ranks, rule_count;
    uint64_t hash;
    bool strict;         /* sizes must divide */
    bool kv_replication; /* KV heads may be held by several ranks */
    bool fused_norm;     /* unscaled products, divided by the norm afterwards */
    enum plan_many many; /* the form of steps of many rows */
    bool home;           /* attention has whole sequences: plan_attention */
    int32_t prefill_rows;
    struct plan_rule rules[PLAN_RULES_MAX];
};

/* Fills *p (text, where, ranks are set) from the parsed file. */
enum status plan_file_read(const struct jdoc *doc, struct plan *p, struct err *err) MUST_USE;
/* Appends the rules of entry i of the list. */
enum status plan_entry_read(const struct jdoc *entry, size_t i, struct plan *p,
                            struct err *err) MUST_USE;

/* What is read, for messages: "FILE: plan[3] (PATTERN)". */
struct plan_at {
    const struct jdoc *entry;
    struct plan *plan;
    char where[320];
};
/* A member that is a string, else NULL. */
const char *plan_read_member(const struct jdoc *o, const char *key);
/* Index of a word among names, -1: none. */
int plan_read_index(const char *const *names, size_t count, const char *word);
/* A member that is absent or one of the words "|a|b|"; *out is `fallback` when absent. */
enum status plan_read_word(const struct plan_at *at, const struct jdoc *o, const char *key,
                           const char *allowed, const char *fallback, const char **out,
                           struct err *err) MUST_USE;
/* Every key of an object must be one of `allowed` ("|a|b|"): nothing is read past in silence. */
enum status plan_read_keys(const struct jdoc *o, const char *allowed, const char *where,
                           struct err *err) MUST_USE;
/* Component by component, so that `*` never crosses a dot. */
bool plan_matches(const char *pattern, const char *name);

#endif
