/* Messages of OpenAI's harmony format (github.com/openai/harmony, docs/format.md), as gpt-oss
 * models write them, one after the other in one line. Pure.
 *
 *   <|start|>assistant<|channel|>analysis<|message|>...<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.NAME<|message|>{...}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>...<|return|>
 *
 * The recipient (to=) may also come before the channel, and what the text is, such as
 * <|constrain|>json, at the end of the header. A prompt has said the first <|start|>assistant
 * already. A mark counts only where the whole header of a message, or the end of the answer,
 * follows; else it is text like any other; and letters that spell one count only where the
 * tokenizer has no such tokens. */
#ifndef TESSERA_SERVER_ANSWER_HARMONY_H
#define TESSERA_SERVER_ANSWER_HARMONY_H

#include "server/answer/answer_form.h"
#include "server/answer/call.h"
#include "server/answer/mark.h"

#define HARMONY_START "<|start|>"
#define HARMONY_CHANNEL "<|channel|>"
#define HARMONY_CONSTRAIN "<|constrain|>"
#define HARMONY_MESSAGE "<|message|>"
#define HARMONY_END "<|end|>"
#define HARMONY_RETURN "<|return|>"
#define HARMONY_CALL "<|call|>"

#define HARMONY_HEADER_BYTES_MAX 512 /* the name of a tool, and as much around it */

enum harmony_kind {
    HARMONY_REASONING, /* the analysis channel, or to a tool that is no function */
    HARMONY_CONTENT,   /* the final one, or commentary */
    HARMONY_CUT,       /* a header that the end of the answer has cut off */
};

struct harmony_header {
    enum harmony_kind kind;             /* by its channel */
    bool final;                         /* that is the final one */
    size_t len;                         /* the message is behind so many bytes */
    char name[CALL_NAME_BYTES_MAX + 1]; /* NAME, where it is to functions.NAME; else "" */
};

/* What is known of the text of an answer, of which more may come. */
struct harmony_text {
    const char *bytes;
    size_t n;
    bool controls; /* marks are behind ANSWER_CONTROL */
    bool finished; /* no more comes */
    bool by_end;   /* another message begins behind an <|end|>, and nowhere else */
};

/* The header at the beginning of the text; PERHAPS: more has to come. first: it is the one whose
 * <|start|>assistant the prompt has said. */
enum mark_match harmony_read_header(const struct harmony_text *t, bool first,
                                    struct harmony_header *out);
/* The end of a message: what is before *end is its text; what is from *next on is no part of it.
 * NO: all of the text is. PERHAPS: from *end on it is not known. */
enum mark_match harmony_find_end(const struct harmony_text *t, size_t *end, size_t *next);

#endif
