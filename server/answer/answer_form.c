#include "server/answer/answer_form.h"

#include "server/answer/call_gemma.h"
#include "server/answer/call_tags.h"
#include "server/answer/harmony.h"

#include <string.h>

static const struct call_tags glm_tags = {.name = "",
                                          .name_end = "",
                                          .key = "<arg_key>",
                                          .key_end = "</arg_key>",
                                          .value = "<arg_value>",
                                          .value_end = "</arg_value>",
                                          .tokens = true};

static const struct call_tags coder_tags = {.name = "<function=",
                                            .name_end = ">",
                                            .key = "<parameter=",
                                            .key_end = ">",
                                            .value = "",
                                            .value_end = "</parameter>",
                                            .end = "</function>",
                                            .lines = true};

static const struct call_tags minimax_tags = {.name = "<invoke name=\"",
                                              .name_end = "\">",
                                              .key = "<parameter name=\"",
                                              .key_end = "\">",
                                              .value = "",
                                              .value_end = "</parameter>",
                                              .end = "</invoke>",
                                              .several = true};

/* Objects between tags. */
#define TAGGED(tag)                                                                                \
    .open = "<" tag ">", .close = "</" tag ">", .before = "<" tag ">\n{\"name\": \"",              \
    .after = "\", \"arguments\":", .end = "}", .last = "\n</" tag ">",                             \
    .again = "\n</" tag ">\n<" tag ">\n{\"name\": \"", .may_stay_open = true
#define HERMES TAGGED("tool_call")
#define MINIMAX "minimax:tool_call"

#define DEEPSEEK(what) "<\uff5c" what "\uff5c>"
#define CALLS_BEGIN DEEPSEEK("tool\u2581calls\u2581begin")
#define CALLS_END DEEPSEEK("tool\u2581calls\u2581end")
#define CALL_BEGIN DEEPSEEK("tool\u2581call\u2581begin")
#define CALL_END DEEPSEEK("tool\u2581call\u2581end")
#define CALL_SEP DEEPSEEK("tool\u2581sep")
#define FRAMES .open = CALLS_BEGIN, .close = CALLS_END, .last = CALLS_END, .may_stay_open = true

#define GEMMA_CALL "<|tool_call>"
#define GEMMA_END "<tool_call|>"

static const struct answer_frame deepseek_v3 = {.begin = CALL_BEGIN,
                                                .sep = CALL_SEP,
                                                .end = CALL_END,
                                                .name = CALL_BEGIN "function" CALL_SEP,
                                                .arguments = "\n```json\n",
                                                .fence = "```"};
static const struct answer_frame deepseek_v31 = {.begin = CALL_BEGIN,
                                                 .sep = CALL_SEP,
                                                 .end = CALL_END,
                                                 .name = CALL_BEGIN,
                                                 .arguments = CALL_SEP,
                                                 .fence = ""};

static const struct answer_syntax syntaxes[ANSWER_CALLS_COUNT] = {
    [ANSWER_CALLS_NONE] = {.name = "none"},
    [ANSWER_CALLS_HERMES] = {.name = "hermes", HERMES},
    [ANSWER_CALLS_GLM45] = {.name = "glm45", .tags = &glm_tags, HERMES},
    [ANSWER_CALLS_QWEN3_CODER] = {.name = "qwen3_coder", .tags = &coder_tags, HERMES},
    [ANSWER_CALLS_MINIMAX_M2] = {.name = "minimax_m2", .tags = &minimax_tags, TAGGED(MINIMAX)},
    [ANSWER_CALLS_DEEPSEEK_V3] = {.name = "deepseek_v3",
                                  .before = CALLS_BEGIN CALL_BEGIN "function" CALL_SEP,
                                  .after = "\n```json\n",
                                  .end = "\n```" CALL_END,
                                  .again = "\n" CALL_BEGIN "function" CALL_SEP,
                                  .frame = &deepseek_v3,
                                  FRAMES},
    [ANSWER_CALLS_DEEPSEEK_V31] = {.name = "deepseek_v31",
                                   .before = CALLS_BEGIN CALL_BEGIN,
                                   .after = CALL_SEP,
                                   .end = CALL_END,
                                   .again = CALL_BEGIN,
                                   .frame = &deepseek_v31,
                                   FRAMES},
    [ANSWER_CALLS_GEMMA4] = {.name = "gemma4",
                             .open = GEMMA_CALL,
                             .close = GEMMA_END,
                             .before = GEMMA_CALL CALL_GEMMA_BEFORE,
                             .after = "",
                             .end = "",
                             .last = GEMMA_END,
                             .again = GEMMA_END GEMMA_CALL CALL_GEMMA_BEFORE,
                             .may_stay_open = true,
                             .quote = CALL_GEMMA_QUOTE},
    [ANSWER_CALLS_LLAMA3] = {.name = "llama3_json",
                             .open = "<|python_tag|>",
                             .before = "{\"name\": \"",
                             .after = "\", \"parameters\":",
                             .end = "}",
                             .last = "",
                             .may_stay_open = true,
                             .leads = true},
    [ANSWER_CALLS_MISTRAL] = {.name = "mistral",
                              .open = "[TOOL_CALLS]",
                              .before = "[TOOL_CALLS][{\"name\": \"",
                              .after = "\", \"arguments\":",
                              .end = "}",
                              .last = "]",
                              .again = ", {\"name\": \"",
                              .varied = true},
    [ANSWER_CALLS_MISTRAL_ARGS] = {.name = "mistral",
                                   .open = "[TOOL_CALLS]",
                                   .before = "[TOOL_CALLS]",
                                   .after = ANSWER_ARGS,
                                   .end = "",
                                   .last = "",
                                   .again = "[TOOL_CALLS]",
                                   .may_stay_open = true,
                                   .varied = true},
    [ANSWER_CALLS_OPENAI] = {.name = "openai",
                             .before = HARMONY_CHANNEL "commentary to=functions.",
                             .after = " " HARMONY_CONSTRAIN "json" HARMONY_MESSAGE,
                             .or_before = " to=functions.",
                             .end = "",
                             .last = "",
                             .may_stay_open = true},
};

/* Mistral's templates have no blanks around thoughts. Gemma's write one that is empty in a line:
 * <|channel>thought, a newline, <channel|>. */
static const struct answer_thought thoughts[ANSWER_THOUGHTS_COUNT] = {
    [ANSWER_THOUGHTS_TAGS] = {"<think>", "</think>", "\n</think>\n\n", NULL, NULL},
    [ANSWER_THOUGHTS_MISTRAL] = {"[THINK]", "[/THINK]", "[/THINK]", NULL, NULL},
    [ANSWER_THOUGHTS_GEMMA4] = {"<|channel>", "<channel|>", "<channel|>", "thought",
                                "<|channel>thought"},
};

const char *answer_calls_name(enum answer_calls calls)
{
    return syntaxes[calls].name;
}

bool answer_calls_named(const char *name, enum answer_calls *out)
{
    for (size_t i = 0; i < ARRAY_LEN(syntaxes); i++)
        if (strcmp(name, syntaxes[i].name) == 0) {
            *out = (enum answer_calls)i;
            return true;
        }
    return false;
}

const struct answer_syntax *answer_syntax(enum answer_calls calls)
{
    return &syntaxes[calls];
}

const struct answer_thought *answer_thought(enum answer_thoughts of)
{
    return &thoughts[of];
}

bool answer_form_parts(const struct answer_form *f)
{
    return f->reasoning || f->harmony || f->calls != ANSWER_CALLS_NONE;
}

void answer_form_marks(const struct answer_form *f, const char *marks[ANSWER_MARKS_MAX])
{
    static const char *const harmony[ANSWER_MARKS_MAX] = {
        HARMONY_START, HARMONY_CHANNEL, HARMONY_CONSTRAIN, HARMONY_MESSAGE,
        HARMONY_END,   HARMONY_RETURN,  HARMONY_CALL};
    const struct answer_syntax *s = &syntaxes[f->calls];
    const struct call_tags *tags = s->tags && s->tags->tokens ? s->tags : NULL;
    const char *const others[] = {s->open,
                                  s->close,
                                  tags ? tags->key : NULL,
                                  tags ? tags->key_end : NULL,
                                  tags ? tags->value : NULL,
                                  tags ? tags->value_end : NULL,
                                  s->frame ? s->frame->begin : NULL,
                                  s->frame ? s->frame->sep : NULL,
                                  s->frame ? s->frame->end : NULL,
                                  s->quote,
                                  s->varied ? ANSWER_ARGS : NULL,
                                  s->varied ? ANSWER_CALL_ID : NULL,
                                  f->reasoning ? thoughts[f->thoughts].begin : NULL,
                                  f->reasoning ? thoughts[f->thoughts].end : NULL};
    size_t n = 0;
    if (f->harmony) {
        memcpy(marks, harmony, sizeof harmony);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (others[i])
            marks[n++] = others[i];
    CHECK(n < ANSWER_MARKS_MAX);
    while (n < ANSWER_MARKS_MAX)
        marks[n++] = NULL;
}

const char *answer_form_close(const struct answer_form *f)
{
    if (f->harmony)
        return f->reasoning_open || f->content_open ? HARMONY_END HARMONY_START "assistant" : "";
    return f->reasoning_open ? thoughts[f->thoughts].close : "";
}

void answer_form_begin(const struct answer_form *f, const char *name, struct buf *out)
{
    const struct answer_syntax *s = &syntaxes[f->calls];
    buf_puts(out, s->before);
    buf_puts(out, name);
    buf_puts(out, *name ? s->after : "");
}

static bool contains(const char *text, size_t n, const char *part)
{
    return memmem(text, n, part, strlen(part)) != NULL;
}

static enum answer_calls calls_of_template(const char *text, size_t n)
{
    const bool tagged = contains(text, n, "<tool_call>");
    if (contains(text, n, MINIMAX) && contains(text, n, "<invoke name="))
        return ANSWER_CALLS_MINIMAX_M2;
    if (tagged && contains(text, n, "<arg_key>"))
        return ANSWER_CALLS_GLM45;
    if (tagged && contains(text, n, "<function=") && contains(text, n, "<parameter="))
        return ANSWER_CALLS_QWEN3_CODER;
    if (contains(text, n, GEMMA_CALL CALL_GEMMA_BEFORE))
        return ANSWER_CALLS_GEMMA4;
    if (contains(text, n, CALL_BEGIN))
        return contains(text, n, "```json") ? ANSWER_CALLS_DEEPSEEK_V3 : ANSWER_CALLS_DEEPSEEK_V31;
    if (contains(text, n, "<function=") || contains(text, n, "<arg_key>")) /* of another kind */
        return ANSWER_CALLS_NONE;
    if (tagged)
        return ANSWER_CALLS_HERMES;
    if (contains(text, n, "[TOOL_CALLS]"))
        return contains(text, n, ANSWER_ARGS) ? ANSWER_CALLS_MISTRAL_ARGS : ANSWER_CALLS_MISTRAL;
    if (contains(text, n, "{\"name\": function name, \"parameters\""))
        return ANSWER_CALLS_LLAMA3;
    return ANSWER_CALLS_NONE;
}

static struct answer_form harmony_form(void)
{
    return (struct answer_form){.calls = ANSWER_CALLS_OPENAI, .harmony = true, .reasoning = true};
}

struct answer_form answer_form_of_template(const char *text, size_t n)
{
    if (contains(text, n, HARMONY_CHANNEL) && contains(text, n, HARMONY_MESSAGE))
        return harmony_form();
    struct answer_form f = {.calls = calls_of_template(text, n)};
    /* the last one counts: neither [THINK] nor <|channel> is in a text by chance */
    for (size_t i = 0; i < ARRAY_LEN(thoughts); i++)
        if (contains(text, n, thoughts[i].begin) || contains(text, n, thoughts[i].end)) {
            f.reasoning = true;
            f.thoughts = (enum answer_thoughts)i;
        }
    return f;
}

/* Neither of the two that leave it open. */
static bool says(const char *parser)
{
    return strcmp(parser, "auto") != 0 && strcmp(parser, "none") != 0;
}

static enum answer_thoughts thoughts_named(const char *parser)
{
    if (strcmp(parser, "mistral") == 0)
        return ANSWER_THOUGHTS_MISTRAL;
    return strcmp(parser, "gemma4") == 0 ? ANSWER_THOUGHTS_GEMMA4 : ANSWER_THOUGHTS_TAGS;
}

enum status answer_form_choose(const struct answer_form *shown, const char *tools,
                               const char *reasoning, struct answer_form *out, struct err *err)
{
    const bool openai = strcmp(tools, "openai") == 0,
               gptoss = strcmp(reasoning, "openai_gptoss") == 0;
    const bool other = (says(tools) && !openai) || (says(reasoning) && !gptoss);
    struct answer_form f = *shown;
    if ((openai || gptoss) && other)
        return base_fail(err, ERR_USAGE,
                         "--tool-call-parser %s and --reasoning-parser %s do not go together: "
                         "openai goes with openai_gptoss",
                         tools, reasoning);
    if (openai || gptoss)
        f = harmony_form();
    else if (f.harmony && other)
        f = (struct answer_form){.calls = ANSWER_CALLS_NONE};
    if (strcmp(tools, "auto") != 0)
        answer_calls_named(tools, &f.calls);
    if (f.calls == ANSWER_CALLS_MISTRAL && shown->calls == ANSWER_CALLS_MISTRAL_ARGS)
        f.calls = shown->calls;
    if (strcmp(reasoning, "auto") != 0)
        f.reasoning = says(reasoning);
    if (says(reasoning))
        f.thoughts = thoughts_named(reasoning);
    *out = f;
    return OK;
}
