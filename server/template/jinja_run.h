/* One render: what it has used up, its scopes, and the text it writes. Internal to the template
 * engine; of one thread. Every fallible function says in r->err why it fails: ERR_INPUT or
 * ERR_MODEL with the place in the template, or ERR_LIMIT, or ERR_NOMEM; after that the render is
 * over. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_RUN_H
#define TESSERA_SERVER_TEMPLATE_JINJA_RUN_H

#include "server/template/jinja.h"
#include "server/template/jinja_function.h"
#include "server/template/jinja_tree.h"

/* What a render may do is counted in bytes it walks through; a step counts as so many. */
#define RUN_STEP_BYTES 64
#define RUN_PIECE_BYTES 8 /* on top of the bytes of a piece of text */
#define RUN_STEPS_MAX 1000000
#define RUN_BYTES_MAX ((size_t)RUN_STEPS_MAX * RUN_STEP_BYTES)
#define RUN_DEPTH_MAX 400 /* nodes inside nodes, through macros too */
#define RUN_DATA_DEPTH_MAX 64
#define RUN_MEMORY_MAX (64u << 20)
#define RUN_TOO_LARGE "a number becomes too large"

struct binding {
    struct binding *next;
    struct value name, value;
};

/* The names of a loop's round, of a macro's call and so on; the outermost has no `outer`. */
struct scope {
    struct scope *outer;
    struct binding *names;
};

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined */
};

/* A loop that runs, as its body sees it. */
struct loop {
    const struct node *node;
    struct scope *scope;      /* around the loop */
    struct list *from;        /* `taken` of its items have been looked at */
    int64_t index;            /* of this round, from 0 */
    struct value before, now; /* ABSENT where there is none */
    struct value *ahead;      /* items that were taken before their round */
    size_t ahead_n;
};

enum leaving { LEAVING_NOTHING, LEAVING_ROUND, LEAVING_LOOP };

struct run {
    const struct jinja *t;
    struct arena arena;
    struct jinja_text *text; /* what is written; strings under construction stand at its end */
    struct dict vars, own;
    struct scope *scope;
    struct value piped; /* input of a block's first filter */
    enum leaving leaving;
    uint32_t at;  /* of the node that is evaluated */
    size_t bytes; /* that it has walked through, with what counts as such */
    int32_t depth;
    struct err *err;
};

/* ---- limits and failures ---- */

enum status jinja_fail(struct run *r, const char *fmt, ...) PRINTF_LIKE(2, 3); /* ERR_INPUT */
/* ERR_MODEL: of what the template does whatever the variables are, and which parsing cannot see. */
enum status jinja_lack(struct run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
enum status jinja_over(struct run *r, const char *what); /* ERR_LIMIT */
/* Counts a step and so many bytes; an item of a list counts as 8. */
enum status jinja_spend(struct run *r, size_t bytes) MUST_USE;
/* Zeroed, for as long as the render; NULL: jinja_no_room says why. */
void *jinja_take(struct run *r, size_t count, size_t size);
enum status jinja_no_room(struct run *r);
/* Makes x point to room for `count` of what it points to, or fails. Needs what TRY needs. */
#define TAKE(r, x, count)                                                                          \
    TRY(((x) = jinja_take((r), (count), sizeof *(x))) != NULL ? OK : jinja_no_room(r))

/* ---- text ---- */

/* A string is made by adding to the text, and then cutting off what was added since. */
size_t jinja_mark(const struct run *r);
enum status jinja_add(struct run *r, const char *bytes, size_t n, bool foreign) MUST_USE;
enum status jinja_puts(struct run *r, const char *text, bool foreign) MUST_USE;
enum status jinja_add_string(struct run *r, const struct value *s) MUST_USE;
enum status jinja_cut(struct run *r, size_t mark, struct value *out) MUST_USE;
bool jinja_mark_of(const struct value *s, size_t i); /* is byte i of a string foreign? */

/* ---- containers ---- */

enum status jinja_new_list(struct run *r, enum value_kind kind, size_t n,
                           struct value *out) MUST_USE;
/* Pointer into the dict, NULL: not there. Fails where a key cannot be hashed. */
enum status jinja_find(struct run *r, const struct dict *d, const struct value *key,
                       struct value **out) MUST_USE;
enum status jinja_put(struct run *r, struct dict *d, const struct value *key,
                      const struct value *value) MUST_USE;
/* What a for loop goes through: a list with `taken` at 0, or an iterator's own. */
enum status jinja_items(struct run *r, const struct value *v, struct list **out) MUST_USE;
enum status jinja_view(struct run *r, const struct value *dict, const char *name,
                       struct value *out) MUST_USE;
struct jdoc;
enum status jinja_from_json(struct run *r, const struct jdoc *v, bool foreign, int32_t depth,
                            struct value *out) MUST_USE;

/* ---- comparing: jinja_compare.c ---- */

enum status jinja_equal(struct run *r, const struct value *a, const struct value *b,
                        bool *out) MUST_USE;
/* -1, 0 or 1; fails where Python has no order. A NaN is neither: *out is 2. */
enum status jinja_order(struct run *r, const struct value *a, const struct value *b,
                        int *out) MUST_USE;
enum status jinja_contains(struct run *r, const struct value *box, const struct value *item,
                           bool *out) MUST_USE;

/* ---- printing: jinja_print.c ---- */

enum status jinja_print(struct run *r, const struct value *v) MUST_USE; /* as str() */
enum status jinja_to_string(struct run *r, const struct value *v, struct value *out) MUST_USE;
enum status jinja_float_text(struct run *r, double f, char out[32]) MUST_USE;

/* ---- evaluating ---- */

enum status jinja_eval(struct run *r, const struct node *n, struct value *out) MUST_USE;
enum status jinja_exec(struct run *r, const struct node *list) MUST_USE; /* statements */
enum status jinja_assign(struct run *r, const struct node *target, const struct value *v) MUST_USE;
enum status jinja_operate(struct run *r, enum operation op, const struct value *a,
                          const struct value *b, struct value *out) MUST_USE;
enum status jinja_item(struct run *r, const struct value *object, const struct value *index,
                       struct value *out) MUST_USE;
enum status jinja_index_slice(struct run *r, const struct value *object, const struct value part[3],
                              struct value *out) MUST_USE;
struct value jinja_undefined(const char *owner, const struct value *name);
enum status jinja_say_undefined(struct run *r, const struct value *v);
enum status jinja_bind(struct run *r, const struct value *name, const struct value *v) MUST_USE;
enum status jinja_push_scope(struct run *r, struct scope *outer) MUST_USE;

/* ---- calling ---- */

enum status jinja_call_node(struct run *r, const struct node *n, struct value *out) MUST_USE;
/* Of a filter or test: the arguments are n->b. */
enum status jinja_call_filter(struct run *r, const struct node *n, struct value *out) MUST_USE;
/* c->arg is filled from what is given. */
enum status jinja_call_function(struct run *r, const struct function *f, struct call *c,
                                struct value *out) MUST_USE;
enum status jinja_call_block(struct run *r, const struct node *n) MUST_USE;
enum status jinja_loop_attribute(struct run *r, const struct value *loop, const struct value *name,
                                 struct value *out) MUST_USE;

#endif
