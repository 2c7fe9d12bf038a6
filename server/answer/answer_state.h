/* An answer while it is taken apart, and what its readers share. Private to server/answer: who owns
 * an answer sees answer.h.
 *
 *   answer.c           the states before, between and behind calls; opens, closes, gives parts
 *   answer_call.c      MARKED to CLOSING: a call, in any format, up to what ends it
 *   answer_message.c   HEADING to ENDING: messages of the harmony format
 *
 * A reader looks at pending from `at` on, in one state. True: it has gone on, and the next one is
 * to look, which may be itself; false: it waits for more text. */
#ifndef TESSERA_SERVER_ANSWER_ANSWER_STATE_H
#define TESSERA_SERVER_ANSWER_ANSWER_STATE_H

#include "server/answer/call_gemma.h"
#include "server/answer/call_tags.h"
#include "server/answer/harmony.h"
#include "server/answer/parts.h"

/* White space that waits for what follows it; more of it is content. */
#define ANSWER_BLANKS_MAX 256

enum answer_state {
    BEGINNING, /* nothing but white space has come */
    REASONING,
    REASONED, /* between reasoning and content */
    LEADING,  /* where the content begins */
    CONTENT,
    MARKED,  /* `at` is where a call seems to begin, `value` behind its mark */
    VALUE,   /* its object is being read */
    TAGGED,  /* or its name and arguments, from `value` on */
    LOOSE,   /* or its arguments, as Gemma writes them, from `value` on */
    CLOSING, /* behind it */
    PLAIN,   /* the rest is content */
    /* of the harmony format */
    HEADING,   /* a message begins at `at` */
    BODY,      /* its text: reasoning or content */
    ADDRESSED, /* it is to a tool: `at` is where it begins, `value` behind its header */
    ENDING,    /* the tool has its arguments */
};

struct answer {
    struct answer_form form;
    const struct answer_syntax *syntax;
    const struct answer_thought *thought;
    enum answer_state state;
    uint64_t key;
    bool finished, whole, reasoned, failed, in_list;
    bool forced;                    /* the prompt has begun a call, and nothing else may come */
    bool cut;                       /* the last call is not whole */
    bool headed;                    /* since the last clear */
    bool bare;                      /* calls have no mark */
    bool said[HARMONY_CONTENT + 1]; /* by kind: some of it has come */
    enum harmony_kind kind;         /* of the BODY: REASONING or CONTENT, */
    bool breaks;                    /* which is a new line of what was said; of thoughts, too */
    bool labelled;                  /* the line behind the mark of thoughts is done with */
    bool inside;                    /* a call has begun in a thought that has not ended */

    struct buf pending;
    size_t at; /* what is before it in pending is done with */
    size_t value;
    size_t begun; /* so much of pending the prompt has said */
    struct call_scan scan;
    struct call_tags_reader tags;
    struct call_gemma_reader gemma;
    char name[CALL_NAME_BYTES_MAX + 1]; /* "": the object has it */

    struct parts parts; /* since the last clear */
    int32_t total;      /* of calls */
};

/* ---- text (answer.c) ---- */

static inline const char *answer_text_at(const struct answer *a, size_t i)
{
    return a->pending.data + i;
}

static inline size_t answer_skip_space(const struct answer *a, size_t i)
{
    while (i < a->pending.len && call_is_space(*answer_text_at(a, i)))
        i++;
    return i;
}

/* Does the text end within the mark? Even if no more comes; within a character of it, too, in whose
 * place there is U+FFFD then. mark NULL: no. */
bool answer_may_be(const struct answer *a, size_t i, const char *mark);
/* Is the mark there? PERHAPS: more text will tell. */
enum mark_match answer_match(const struct answer *a, size_t i, const char *mark);
void answer_add_text(struct answer *a, enum answer_kind kind, const char *text, size_t n);

/* ---- calls (answer_call.c) ---- */

/* What readers end with, so all but the first say what a reader does. */
void answer_call_add(struct answer *a, const struct call *call); /* unless it is one too many */
bool answer_call_begin(struct answer *a, size_t i);              /* at its mark */
bool answer_call_begin_value(struct answer *a, size_t i);        /* at its object */
/* What seemed to be a call is content up to `end`, as far as the model wrote it; in the harmony
 * format it is a message like others, whose header is no content, of which each is a line, and goes
 * on. */
bool answer_call_give_up(struct answer *a, size_t end);
/* The answer ends within what waits. Where the prompt has begun it, the rest would be no text to
 * anybody: it is a call as far as it goes, or nothing before its name is known. named: it is, and
 * the arguments are from a->value on. */
bool answer_call_give_cut(struct answer *a, bool named);

bool answer_call_read_marked(struct answer *a);
bool answer_call_read_value(struct answer *a);
bool answer_call_read_tagged(struct answer *a);
bool answer_call_read_loose(struct answer *a);
bool answer_call_read_closing(struct answer *a);

/* ---- messages (answer_message.c) ---- */

bool answer_message_read_heading(struct answer *a);
bool answer_message_read_body(struct answer *a);
bool answer_message_read_addressed(struct answer *a);
bool answer_message_read_ending(struct answer *a);

#endif
