/* DESIGN: a form is one to six steps that any reader of a tokenizer.json knows, rather than a copy
 * of each model's file: many names stand for the same. Characters beyond ASCII are written \x{...},
 * so that no editor can put them into another normalization form. */
#include "weights/gguf/gguf_pre.h"

#include <string.h>

#define STEPS_MAX 6

/* ---- patterns ---- */

#define SHORTENED "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MARKS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define MARKS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_1 "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+"
#define CASED_2 "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*"
#define CASED CASED_1 SHORTENED "?|" CASED_2 SHORTENED "?"
#define QWEN SHORTENED "|" WORD "|\\p{N}|" MARKS "|" SPACES
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ASCII_MARK "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK_WORD ASCII_MARK "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define HAN "[\\x{4e00}-\\x{9fa5}"
#define HAN_KANA HAN "\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define HAN_HANGUL HAN "\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define NOT_BLOOM "[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

/* Letters of the Latin, Greek, Cyrillic, Armenian and Georgian scripts with an upper and a lower
 * case, as DeepSeek lists them. */
#define CASED_LETTERS                                                                              \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}"                 \
    "\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}"         \
    "\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}"                           \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}"                 \
    "\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}"          \
    "\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                  \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"         \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}"                  \
    "\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"                 \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"                 \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"         \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
#define YOUTU_MARKS                                                                                \
    "[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}"           \
    "\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+"

/* ---- forms ---- */

enum step_kind {
    STEP_END,
    STEP_SPLIT,       /* every match of the pattern is a piece */
    STEP_DIGIT,       /* every digit is a piece */
    STEP_PUNCTUATION, /* every run of it is a piece */
};

struct gguf_pre_form {
    struct {
        enum step_kind kind;
        const char *pattern;
    } steps[STEPS_MAX];
    bool gpt2; /* then as GPT-2 does */
};

static const struct gguf_pre_form gpt2 = {.gpt2 = true};
static const struct gguf_pre_form digit_gpt2 = {{{STEP_DIGIT, NULL}}, .gpt2 = true};
static const struct gguf_pre_form llama3 = {
    {{STEP_SPLIT, SHORTENED "|" WORD "|\\p{N}{1,3}|" MARKS "|" SPACES}}, false};
static const struct gguf_pre_form qwen2 = {{{STEP_SPLIT, QWEN}}, false};
static const struct gguf_pre_form qwen35 = {
    {{STEP_SPLIT, SHORTENED "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    false};
static const struct gguf_pre_form ufakzeka = {{{STEP_SPLIT, WORD "|\\p{N}|" MARKS "|" SPACES}},
                                              false};
static const struct gguf_pre_form laguna = {{{STEP_SPLIT, "[^\\n]+|[\\n]+"}, {STEP_SPLIT, QWEN}},
                                            false};
static const struct gguf_pre_form minicpm5 = {
    {{STEP_SPLIT, "\\p{N}{1,3}"}, {STEP_SPLIT, SHORTENED "|" WORD "|\\p{N}+|" MARKS "|" SPACES}},
    false};
static const struct gguf_pre_form jais2 = {
    {{STEP_SPLIT, SHORTENED "|" WORD "|\\p{N}{1,3}|" MARKS "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|"
                            "\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|"
                            "\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},
    false};
static const struct gguf_pre_form tekken = {
    {{STEP_SPLIT, CASED_1 "|" CASED_2 "|\\p{N}|" MARKS_SLASH "|" SPACES}}, false};
static const struct gguf_pre_form gpt4o = {
    {{STEP_SPLIT, CASED "|\\p{N}{1,3}|" MARKS_SLASH "|" SPACES}}, false};
static const struct gguf_pre_form tiny_aya = {
    {{STEP_SPLIT, "\\d{1,3}(?=(?:\\d{3})*\\b)"},
     {STEP_SPLIT, CASED "|\\p{N}{1,3}|" MARKS_SLASH "|" SPACES}},
    false};
static const struct gguf_pre_form youtu = {
    {{STEP_SPLIT,
      "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|" YOUTU_MARKS "|[\\x{3105}-\\x{312f}]+|" HAN_KANA},
     {STEP_SPLIT, CASED "|\\p{N}|" MARKS_SLASH "|" SPACES}},
    false};
static const struct gguf_pre_form deepseek_llm = {
    {{STEP_SPLIT, "[\r\n]"},
     {STEP_SPLIT, "\\s?[" CASED_LETTERS "]+"},
     {STEP_SPLIT,
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"},
     {STEP_SPLIT, "\\s+$"},
     {STEP_SPLIT, HAN_HANGUL},
     {STEP_DIGIT, NULL}},
    false};
static const struct gguf_pre_form deepseek_coder = {{{STEP_SPLIT, "[\r\n]"},
                                                     {STEP_SPLIT, "\\s?\\p{L}+"},
                                                     {STEP_SPLIT, "\\s?\\p{P}+"},
                                                     {STEP_SPLIT, HAN_HANGUL},
                                                     {STEP_DIGIT, NULL}},
                                                    false};
static const struct gguf_pre_form deepseek_v3 = {
    {{STEP_SPLIT, "\\p{N}{1,3}"},
     {STEP_SPLIT, HAN_KANA},
     {STEP_SPLIT, DEEPSEEK_WORD "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES}},
    false};
static const struct gguf_pre_form spark = {
    {{STEP_SPLIT, "\\p{N}{1,3}"},
     {STEP_SPLIT, HAN_KANA},
     {STEP_SPLIT, DEEPSEEK_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+"},
     {STEP_DIGIT, NULL}},
    false};
/* Falcon's own file cuts digits after bytes are spelt as characters, of which six count as digits,
 * so inside characters, too. No merge of it reaches over such a cut, so ASCII's digits are enough.
 */
static const struct gguf_pre_form falcon = {{{STEP_PUNCTUATION, NULL},
                                             {STEP_SPLIT, GPT2},
                                             {STEP_SPLIT, "[0-9]+"},
                                             {STEP_SPLIT, "[0-9][0-9][0-9]"}},
                                            false};
static const struct gguf_pre_form bloom = {{{STEP_SPLIT, " ?" NOT_BLOOM}}, false};
static const struct gguf_pre_form viking = {{{STEP_SPLIT, " ?" NOT_BLOOM}, {STEP_DIGIT, NULL}},
                                            false};
static const struct gguf_pre_form bailing = {
    {{STEP_SPLIT, "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}|"
                  " ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    false};
static const struct gguf_pre_form seed_coder = {
    {{STEP_SPLIT, SHORTENED "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}}, false};
static const struct gguf_pre_form exaone_moe = {
    {{STEP_SPLIT, SHORTENED "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|"
                            " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    false};

/* ---- names ---- */

#define LLAMA (GGUF_PRE_IGNORE_MERGES | GGUF_PRE_ADDS_BOS)

static const struct gguf_pre known[] = {
    {"llama-bpe", &llama3, LLAMA},
    {"llama3", &llama3, LLAMA},
    {"llama-v3", &llama3, LLAMA},
    {"falcon3", &llama3, LLAMA},
    {"falcon-h1", &llama3, LLAMA},
    {"pixtral", &llama3, LLAMA},
    {"midm-2.0", &llama3, LLAMA},
    {"lfm2", &llama3, LLAMA},
    {"dbrx", &llama3, 0},
    {"smaug-bpe", &llama3, 0},
    {"chatglm-bpe", &llama3, 0},
    {"glm4", &llama3, GGUF_PRE_IGNORE_MERGES},
    {"glm5", &llama3, GGUF_PRE_IGNORE_MERGES},
    {"jais-2", &jais2, 0},
    {"minicpm5", &minicpm5, GGUF_PRE_IGNORE_MERGES},
    {"qwen2", &qwen2, GGUF_PRE_NFC},
    {"deepseek-r1-qwen", &qwen2, GGUF_PRE_NFC},
    {"megrez", &qwen2, 0},
    {"kormo", &qwen2, 0},
    {"stablelm2", &qwen2, 0},
    {"hunyuan", &qwen2, 0},
    {"grok-2", &qwen2, 0},
    {"solar-open", &qwen2, 0},
    {"qwen35", &qwen35, GGUF_PRE_NFC},
    {"ufakzeka", &ufakzeka, 0},
    {"laguna", &laguna, 0},
    {"tekken", &tekken, LLAMA},
    {"gpt-4o", &gpt4o, 0},
    {"llama4", &gpt4o, 0},
    {"kanana2", &gpt4o, 0},
    {"talkie", &gpt4o, 0},
    {"minimax-m2", &gpt4o, 0},
    {"tiny_aya", &tiny_aya, 0},
    {"cohere2moe", &tiny_aya, 0},
    {"youtu", &youtu, GGUF_PRE_IGNORE_MERGES},
    {"deepseek-llm", &deepseek_llm, 0},
    {"deepseek-coder", &deepseek_coder, 0},
    {"deepseek-v3", &deepseek_v3, 0},
    {"hunyuan-dense", &deepseek_v3, 0},
    {"joyai-llm", &deepseek_v3, 0},
    {"hy_v4", &deepseek_v3, 0},
    {"spark2_5", &spark, 0},
    {"falcon", &falcon, 0},
    {"starcoder", &digit_gpt2, 0},
    {"refact", &digit_gpt2, 0},
    {"command-r", &digit_gpt2, GGUF_PRE_NFC},
    {"smollm", &digit_gpt2, 0},
    {"codeshell", &digit_gpt2, 0},
    {"exaone", &digit_gpt2, 0},
    {"minerva-7b", &digit_gpt2, 0},
    {"mellum2", &digit_gpt2, 0},
    {"gpt-2", &gpt2, 0},
    {"phi-2", &gpt2, 0},
    {"gigachat", &gpt2, 0},
    {"a.x-4.0", &gpt2, 0},
    {"mellum", &gpt2, 0},
    {"exaone4", &gpt2, 0},
    {"mpt", &gpt2, GGUF_PRE_NFC},
    {"olmo", &gpt2, GGUF_PRE_NFC},
    {"jais", &gpt2, 0},
    {"trillion", &gpt2, 0},
    {"granite-docling", &gpt2, 0},
    {"exaone-moe", &exaone_moe, 0},
    {"poro-chat", &bloom, 0},
    {"bloom", &bloom, 0},
    {"gpt3-finnish", &bloom, 0},
    {"viking", &viking, 0},
    {"bailingmoe", &bailing, 0},
    {"bailingmoe2", &bailing, 0},
    {"llada-moe", &bailing, 0},
    {"seed-coder", &seed_coder, 0},
};

const struct gguf_pre *gguf_pre_find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, name, n) == 0)
            return &known[i];
    return NULL;
}

const struct gguf_pre *gguf_pre_at(int32_t i)
{
    return (size_t)i < ARRAY_LEN(known) ? &known[i] : NULL;
}

const char *gguf_pre_nearest(const char *name)
{
    size_t best = 0;
    for (size_t i = 1; i < ARRAY_LEN(known); i++)
        if (base_edit_distance(name, known[i].name) < base_edit_distance(name, known[best].name))
            best = i;
    return known[best].name;
}

/* ---- JSON ---- */

static void write_step(enum step_kind kind, const char *pattern, struct buf *out)
{
    static const char *const plain[] = {
        [STEP_DIGIT] = "{\"type\":\"Digits\",\"individual_digits\":true}",
        [STEP_PUNCTUATION] = "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}",
    };
    if (kind != STEP_SPLIT) {
        buf_puts(out, plain[kind]);
        return;
    }
    buf_puts(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    buf_json(out, pattern, strlen(pattern));
    buf_puts(out, "},\"behavior\":\"Isolated\",\"invert\":false}");
}

void gguf_pre_write(const struct gguf_pre *pre, struct buf *out)
{
    const struct gguf_pre_form *f = pre->form;
    buf_puts(out, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (size_t i = 0; i < STEPS_MAX && f->steps[i].kind != STEP_END; i++) {
        write_step(f->steps[i].kind, f->steps[i].pattern, out);
        buf_puts(out, ",");
    }
    buf_printf(out,
               "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
               "\"use_regex\":%s}]}",
               f->gpt2 ? "true" : "false");
}
