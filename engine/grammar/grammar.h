/* Grammar: which texts an answer may be, as a network of nodes over bytes: a byte of a range, a
 * choice of two ways, a call of a rule (so that values may stand in values), the end of a rule. It
 * is built from its end to its beginning: each function is given the node that follows and returns
 * the one to begin with, so that nothing has to be patched but loops and rules, which are declared
 * first and defined later.
 * A builder that has failed (no memory, more than GRAMMAR_NODES_MAX nodes) goes on harmlessly;
 * grammar_close_rules says so. One thread builds; what is built is immutable. */
#ifndef TESSERA_ENGINE_GRAMMAR_GRAMMAR_H
#define TESSERA_ENGINE_GRAMMAR_GRAMMAR_H

#include "config/base.h"
#include "config/buf.h"

enum {
    GRAMMAR_END = 0,   /* the node that ends its rule; the end of the text in the rule of all */
    GRAMMAR_NEVER = 1, /* the node from which no text leads on */
    GRAMMAR_NODES_MAX = 1 << 17, /* 2 MiB */
    GRAMMAR_DEPTH_MAX = 64,      /* rules in rules: values in values */
};

enum grammar_kind { GRAMMAR_RANGE, GRAMMAR_FORK, GRAMMAR_CALL, GRAMMAR_RETURN, GRAMMAR_NOWHERE };

struct grammar_node {
    uint8_t kind, lo, hi; /* RANGE: one byte of lo..hi */
    int16_t height;       /* rules it takes at least from here to the end of its own */
    int32_t next;         /* RANGE, CALL: what follows; FORK: one way */
    int32_t other;        /* FORK: the other way; CALL: the rule */
};

struct grammar;
/* NULL: no memory. */
struct grammar *grammar_new(void);
void grammar_free(struct grammar *g); /* NULL is fine */

int32_t grammar_range(struct grammar *g, uint8_t lo, uint8_t hi, int32_t next);
int32_t grammar_text(struct grammar *g, const char *text, size_t n, int32_t next);
/* One character of lo..hi as UTF-8, surrogates left out (Unicode 15, table 3-7). */
int32_t grammar_chars(struct grammar *g, uint32_t lo, uint32_t hi, int32_t next);
int32_t grammar_either(struct grammar *g, int32_t a, int32_t b);
/* A loop: a fork that other nodes may lead to before its ways are known. */
int32_t grammar_fork(struct grammar *g);
void grammar_fork_set(struct grammar *g, int32_t fork, int32_t a, int32_t b);

int32_t grammar_rule(struct grammar *g);
void grammar_define(struct grammar *g, int32_t rule, int32_t first); /* ends in GRAMMAR_END */
int32_t grammar_call(struct grammar *g, int32_t rule, int32_t next);
/* The rule min to max times; max < 0: any number of times. */
int32_t grammar_repeat(struct grammar *g, int32_t rule, int64_t min, int64_t max, int32_t next);
/* Has building failed? For those that would otherwise go on for long. */
bool grammar_failed(const struct grammar *g);
/* Why: ERR_INPUT, there are too many nodes; ERR_NOMEM. */
enum status grammar_check(const struct grammar *g, struct err *err) MUST_USE;
/* What the text in a buffer was for could not be built, since that has failed. */
void grammar_break(struct grammar *g, const struct buf *text);

/* The text is rule `first`; nothing is added after this. grammar_check, and ERR_INPUT: no
 * text fits, since rules need one another for ever or more than GRAMMAR_DEPTH_MAX deep. */
enum status grammar_close_rules(struct grammar *g, int32_t first, struct err *err) MUST_USE;

/* ---- what is built, for engine/grammar/guide.c ---- */
const struct grammar_node *grammar_nodes(const struct grammar *g); /* heights as they shall be */
int32_t grammar_first(const struct grammar *g, int32_t rule);      /* its first node */
int32_t grammar_start(const struct grammar *g);
/* Bytes that no node tells apart are of one class. Returns how many classes there are. */
int32_t grammar_classes(const struct grammar *g, uint8_t classes[256]);

#endif
