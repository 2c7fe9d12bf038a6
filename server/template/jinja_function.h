/* What a template can call: filters, tests, methods and functions, all in the same form, in tables
 * by name. Internal to the template engine. */
#ifndef TESSERA_SERVER_TEMPLATE_JINJA_FUNCTION_H
#define TESSERA_SERVER_TEMPLATE_JINJA_FUNCTION_H

#include "server/template/jinja_value.h"

#define FUNCTION_PARAMS_MAX 4

struct run;

struct call {
    struct value self;                     /* a filter's or test's input, a method's object */
    struct value arg[FUNCTION_PARAMS_MAX]; /* by the parameters' order; ABSENT if not given */
    const struct value *given;             /* all without a name, as they were written */
    size_t given_n;
    const struct pair *named; /* all with a name */
    size_t named_n;
};

typedef enum status function_body(struct run *r, const struct call *c, struct value *out);

struct function {
    const char *name;
    function_body *body; /* NULL: Python has it, this engine does not */
    int32_t needed;      /* how many of the parameters must be given */
    /* "*": anything, the body looks at `given`. "/x" can only be given by its place. */
    const char *params[FUNCTION_PARAMS_MAX];
};

/* NULL when there is none of that name. */
const struct function *jinja_filter(const char *name, size_t n);
const struct function *jinja_test(const char *name, size_t n);
const struct function *jinja_global(const char *name, size_t n);
const struct function *jinja_method(const struct value *self, const char *name, size_t n);
const struct function *jinja_function_find(const struct function *rows, size_t count,
                                           const char *name, size_t n);

#endif
