/* The form in which a model writes the parts of a chat's answer: reasoning, content, and calls of
 * tools. Pure. */
#ifndef TESSERA_SERVER_ANSWER_ANSWER_FORM_H
#define TESSERA_SERVER_ANSWER_ANSWER_FORM_H

#include "config/buf.h"

#define ANSWER_MARKS_MAX 12         /* with the NULL behind them */
#define ANSWER_BEGIN_BYTES_MAX 4096 /* of answer_form_begin */

/* Where marks are control tokens, each stands behind this byte, which is in no text: then letters
 * that spell one are letters. */
#define ANSWER_CONTROL '\xff'

#define ANSWER_CALL_ID "[CALL_ID]" /* between the name and the arguments of a call */
#define ANSWER_ARGS "[ARGS]"

/* How a model writes calls, by the names that vLLM gives the formats. */
enum answer_calls {
    ANSWER_CALLS_NONE,    /* not at all: everything is content */
    ANSWER_CALLS_HERMES,  /* <tool_call>{"name": ..., "arguments": ...}</tool_call>, also Qwen's */
    ANSWER_CALLS_LLAMA3,  /* the answer is {"name": ..., "parameters": ...}, or several with ; */
    ANSWER_CALLS_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": ...}] */
    ANSWER_CALLS_MISTRAL_ARGS, /* [TOOL_CALLS]name[ARGS]{...}, since 2025; either is read as both */
    ANSWER_CALLS_OPENAI,       /* a message of the harmony format to functions.name (harmony.h) */
    ANSWER_CALLS_GLM45, /* name and arguments between tags (call_tags.h); one that has to be */
    ANSWER_CALLS_QWEN3_CODER, /* is begun as Hermes has it, as which all of them are read, too, */
    ANSWER_CALLS_MINIMAX_M2,  /* within the tags of the model */
    ANSWER_CALLS_DEEPSEEK_V3, /* between marks (struct answer_frame), also of R1 */
    ANSWER_CALLS_DEEPSEEK_V31,
    ANSWER_CALLS_GEMMA4, /* nearly JSON (call_gemma.h); one that has to be is JSON */
    ANSWER_CALLS_COUNT
};

/* What is around reasoning, but in the harmony format. */
enum answer_thoughts {
    ANSWER_THOUGHTS_TAGS,    /* <think> and </think> */
    ANSWER_THOUGHTS_MISTRAL, /* [THINK] and [/THINK], of Magistral and Ministral 3 */
    ANSWER_THOUGHTS_GEMMA4,  /* <|channel>thought and <channel|>, which may come again */
    ANSWER_THOUGHTS_COUNT
};

struct answer_form {
    enum answer_calls calls; /* OPENAI: with `harmony` only, which goes with OPENAI or NONE */
    bool harmony;            /* the answer is messages of the harmony format, */
    bool controls;           /* whose marks are control tokens of the tokenizer */
    bool reasoning; /* what is between the marks of `thoughts` at the beginning is reasoning, or
                     * what the messages of the analysis channel say */
    enum answer_thoughts thoughts; /* without reasoning, too: what a prompt may have begun */
    bool reasoning_open;           /* the prompt has begun it */
    bool guided;       /* harmony: the final message is held to a form: there are no marks in it */
    bool content_open; /* harmony: the prompt has begun the final message */
    bool drop_reasoning; /* nobody wants it */
    bool one_call;       /* those after the first are dropped */
    /* Of a message that only calls tools the template takes "" as content, not null. */
    bool no_null;
    bool thought_parts;   /* it takes an assistant's thoughts as parts of content, and only so, */
    bool system_thoughts; /* and those of instructions */
    /* Calls between tags: which arguments are texts (call_types.h). Borrowed; NULL: nothing is
     * known of them. */
    const char *types;
    size_t types_len;
};

/* Calls whose names stand before their arguments, as DeepSeek-V3 and V3.1 write them (their chat
 * templates, without breaks; those after V3's "json" and before its end are "\n"):
 *
 *   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
 *   ```json
 *   ARGUMENTS
 *   ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
 *
 *   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>
 *   <｜tool▁calls▁end｜>
 */
struct answer_frame {
    const char *begin, *sep, *end; /* of each call; the marks that are in them: */
    const char *name;              /* from `begin` up to the name */
    const char *arguments;         /* from there up to the arguments */
    const char *fence;             /* before `end`, after a newline; "": nothing */
};

/* The words around reasoning. */
struct answer_thought {
    const char *begin, *end; /* its marks */
    const char *close;       /* `end` with blanks around it, where the model has not written it */
    const char *label;       /* a line behind `begin` that is no thought; NULL: there is none */
    /* Where it is not at the beginning only, and a call's mark ends it, too, how it begins within
     * content: `begin` alone is what content may speak of. NULL: at the beginning only. */
    const char *again;
};

/* The words around calls. */
struct answer_syntax {
    const char *name;
    const char *open, *close; /* close: may be missing after the last call; NULL: there is none */
    /* Where a model keeps to one spelling: around the name of a call, */
    const char *before, *after;
    const char *or_before;        /* what may be there instead of `before`; NULL: nothing */
    const char *end, *last;       /* behind its arguments and behind the last call; "": nothing, */
    const char *again;            /* and between `end` and the next name; NULL: one call only */
    bool may_stay_open;           /* the answer may also end without `last` */
    bool leads;                   /* only where the content begins; `open` may be missing */
    bool varied;                  /* objects in a list, too, or a name and its arguments */
    const struct call_tags *tags; /* or name and arguments between these; NULL: not so */
    const struct answer_frame *frame; /* `open` and `close` are around all of these; NULL: not so */
    const char
        *quote; /* or they are as call_gemma.h has them, with texts between these; NULL: no */
};

/* "none", "hermes", "llama3_json", "mistral" (both), "openai", "glm45", "qwen3_coder",
 * "minimax_m2", "deepseek_v3", "deepseek_v31", "gemma4". named: false for any other name. */
const char *answer_calls_name(enum answer_calls calls);
bool answer_calls_named(const char *name, enum answer_calls *out);
const struct answer_syntax *answer_syntax(enum answer_calls calls);
const struct answer_thought *answer_thought(enum answer_thoughts thoughts);
/* Is there anything to take out? */
bool answer_form_parts(const struct answer_form *f);
/* What has to be seen in the text even where it is a control token; NULL after the last. */
void answer_form_marks(const struct answer_form *f, const char *marks[ANSWER_MARKS_MAX]);
/* What ends the part that the prompt has begun, before another begins; "": it has begun none. */
const char *answer_form_close(const struct answer_form *f);
/* Appends the beginning of a call, up to the arguments; name "": up to the tool's name, which else
 * is as call_is_name wants it. */
void answer_form_begin(const struct answer_form *f, const char *name, struct buf *out);
/* By the source of a chat template: how it shows calls, and whether it knows reasoning, between
 * which marks. */
struct answer_form answer_form_of_template(const char *text, size_t n);
/* tools, reasoning: --tool-call-parser and --reasoning-parser; auto: as the template shows it.
 * ERR_USAGE: they do not go together. */
enum status answer_form_choose(const struct answer_form *shown, const char *tools,
                               const char *reasoning, struct answer_form *out,
                               struct err *err) MUST_USE;

#endif
