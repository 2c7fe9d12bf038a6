/* What a model's answer in a chat is made of: reasoning, content, and calls of tools, taken out of
 * its text while that comes. Pure.
 *
 * What looks like a call and is none (no JSON, no name, cut off by a limit) is content, byte for
 * byte. Lines that templates put around the parts are no part of them: newlines around reasoning
 * and before calls are dropped. */
#ifndef TESSERA_SERVER_ANSWER_ANSWER_H
#define TESSERA_SERVER_ANSWER_ANSWER_H

#include "config/buf.h"

#define ANSWER_CALLS_MAX 128 /* of one answer; what comes after them is content */
#define ANSWER_MARKS_MAX 7
#define ANSWER_BEGIN_BYTES_MAX 4096 /* of answer_form_begin */
#define ANSWER_ID_BYTES 9 /* letters and digits: templates of Mistral want exactly so many */

/* How a model writes calls, by the names that vLLM gives the formats. */
enum answer_calls {
    ANSWER_CALLS_NONE,    /* not at all: everything is content */
    ANSWER_CALLS_HERMES,  /* <tool_call>{"name": ..., "arguments": ...}</tool_call>, also Qwen's */
    ANSWER_CALLS_LLAMA3,  /* the answer is {"name": ..., "parameters": ...}, or several with ; */
    ANSWER_CALLS_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": ...}] */
    ANSWER_CALLS_MISTRAL_ARGS, /* [TOOL_CALLS]name[ARGS]{...}, since 2025; either is read as both */
};

struct answer_form {
    enum answer_calls calls;
    bool reasoning;      /* what is between <think> and </think> at the beginning is reasoning */
    bool reasoning_open; /* the prompt ends with <think> */
    bool drop_reasoning; /* nobody wants it */
    bool one_call;       /* those after the first are dropped */
};

/* "none", "hermes", "llama3_json", "mistral" (both). named: false for any other name. */
const char *answer_calls_name(enum answer_calls calls);
bool answer_calls_named(const char *name, enum answer_calls *out);
/* Is there anything to take out? */
bool answer_form_parts(const struct answer_form *f);
/* What has to be seen in the text even where it is a control token; NULL after the last. */
void answer_form_marks(const struct answer_form *f, const char *marks[ANSWER_MARKS_MAX]);
/* Appends the beginning of a call, up to the arguments; name "": up to the tool's name, which else
 * is as call_is_name wants it. */
void answer_form_begin(const struct answer_form *f, const char *name, struct buf *out);
/* The words around calls where a model keeps to one spelling. */
struct answer_words {
    const char *before, *after; /* the name of the tool, */
    const char *end;            /* its arguments, */
    const char *close;          /* and the last call; "": nothing */
    bool may_stay_open;         /* the answer may also end without `close` */
    const char *again; /* between `end` and the name of another call; NULL: there is none */
};
struct answer_words answer_form_words(const struct answer_form *f);
/* By the source of a chat template: in which form it shows calls, and whether it knows <think>. */
enum answer_calls answer_calls_of_template(const char *text, size_t n);
bool answer_reasoning_of_template(const char *text, size_t n);

struct answer_call {
    char id[ANSWER_ID_BYTES + 1];
    int32_t index;                /* in the answer */
    const char *name, *arguments; /* arguments: a JSON object, as the model wrote it */
    size_t name_len, arguments_len;
};

/* One per choice; used by one thread at a time. */
struct answer;

/* key: random, of which the ids of calls are made. NULL without memory. */
struct answer *answer_open(const struct answer_form *form, uint64_t key);
void answer_close(struct answer *a); /* NULL is fine */
/* What the prompt has ended with for the answer: part of a call or nothing. Before all else. */
void answer_begin(struct answer *a, const char *text, size_t n);
/* The next text, valid UTF-8; then that there is no more. */
void answer_push(struct answer *a, const char *text, size_t n);
void answer_finish(struct answer *a);
/* Memory ran out: the parts are not whole. */
bool answer_failed(const struct answer *a);

/* The parts that have come since the last answer_clear; valid until the next push, finish or
 * clear. */
const struct buf *answer_content(const struct answer *a);
const struct buf *answer_reasoning(const struct answer *a);
int32_t answer_call_count(const struct answer *a);
struct answer_call answer_call(const struct answer *a, int32_t i);
void answer_clear(struct answer *a);

int32_t answer_calls_total(const struct answer *a); /* whatever was cleared */
bool answer_reasons(const struct answer *a);        /* what comes next is reasoning */

#endif
