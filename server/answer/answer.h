/* What a model's answer in a chat is made of: reasoning, content, and calls of tools, taken out of
 * its text while that comes. Pure.
 *
 * What looks like a call and is none (no JSON, no name, cut off by a limit) is content, byte for
 * byte, unless the prompt has begun it (answer_begin). Lines that templates put around the parts
 * are no part of them: newlines around reasoning and before calls are dropped. */
#ifndef TESSERA_SERVER_ANSWER_ANSWER_H
#define TESSERA_SERVER_ANSWER_ANSWER_H

#include "server/answer/answer_form.h"

#define ANSWER_CALLS_MAX 128 /* of one answer; what comes after them is content */
#define ANSWER_ID_BYTES 9    /* letters and digits: templates of Mistral want exactly so many */

struct answer_call {
    char id[ANSWER_ID_BYTES + 1];
    int32_t index;                /* in the answer */
    const char *name, *arguments; /* arguments: a JSON object, as the model wrote it */
    size_t name_len, arguments_len;
    bool cut; /* the answer ended before it: the arguments are the beginning of an object, or "" */
};

enum answer_kind { ANSWER_REASONING, ANSWER_CONTENT, ANSWER_CALL };

struct answer_part {
    enum answer_kind kind;
    const char *text; /* of a call NULL */
    size_t len;
    int32_t call; /* which of those that answer_call has */
};

/* One per choice; used by one thread at a time. */
struct answer;

/* key: random, of which the ids of calls are made. NULL without memory. */
struct answer *answer_open(const struct answer_form *form, uint64_t key);
void answer_close(struct answer *a); /* NULL is fine */
/* What the prompt has ended with for the answer: part of a call or nothing, without ANSWER_CONTROL.
 * Before all else. Of a call that has been begun the model may write nothing but calls, so one that
 * a limit cuts off is a call as far as it goes, once its name is whole, and else nothing; so is a
 * mark that is cut off behind a call. */
void answer_begin(struct answer *a, const char *text, size_t n);
/* The next text, valid UTF-8 but for ANSWER_CONTROL; then that there is no more. whole: the model
 * has ended it, nobody has cut it off. */
void answer_push(struct answer *a, const char *text, size_t n);
void answer_finish(struct answer *a, bool whole);
/* Memory ran out: the parts are not whole. */
bool answer_failed(const struct answer *a);

/* The parts that have come since the last answer_clear; valid until the next push, finish or
 * clear. */
const struct buf *answer_content(const struct answer *a);
const struct buf *answer_reasoning(const struct answer *a);
int32_t answer_call_count(const struct answer *a);
struct answer_call answer_call(const struct answer *a, int32_t i);
/* The same in the order in which they came, each call and each text between others by itself. */
int32_t answer_part_count(const struct answer *a);
struct answer_part answer_part(const struct answer *a, int32_t i);
void answer_clear(struct answer *a);

bool answer_headed(const struct answer *a); /* since the last clear a header has ended */
/* Whatever was cleared; 0 when the last one is cut off: the answer did not end to make calls. */
int32_t answer_calls_total(const struct answer *a);
bool answer_reasons(const struct answer *a); /* what comes next is reasoning */

#endif
