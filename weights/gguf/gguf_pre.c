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
#define HAN "[\xe4\xb8\x80-\xe9\xbe\xa5" /* U+4E00 to U+9FA5 */
#define HAN_KANA HAN "\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+"
#define HAN_HANGUL HAN "\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-\xed\x9f\xbf]+"
#define NOT_BLOOM                                                                                  \
    "[^(\\s|.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+"

/* Letters of the Latin, Greek, Cyrillic, Armenian and Georgian scripts with an upper and a lower
 * case, as DeepSeek lists them. */
#define CASED_LETTERS                                                                                                                                                                        \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-"                                                 \
    "ᵷᵹ-ᶚ"                                                                                                                                                                             \
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ" \
    "Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-"                                             \
    "𐳲𑢠-𑣟𞤀-𞥃"
#define YOUTU_MARKS "[！…“”‘’—：；，、-〿︰-﹏]+"

/* ---- forms ---- */

enum step_kind {
    STEP_END,
    STEP_SPLIT,       /* every match of the pattern is a piece */
    STEP_DIGIT,       /* every digit is a piece */
    STEP_DIGITS,      /* so is every run of them */
    STEP_PUNCTUATION, /* so is every run of it */
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
    {{STEP_SPLIT, "[가-힣ㄱ-ㆎ]+|" YOUTU_MARKS "|[ㄅ-ㄯ]+|" HAN_KANA},
     {STEP_SPLIT, CASED "|\\p{N}|" MARKS_SLASH "|" SPACES}},
    false};
static const struct gguf_pre_form deepseek_llm = {{{STEP_SPLIT, "[\r\n]"},
                                                   {STEP_SPLIT, "\\s?[" CASED_LETTERS "]+"},
                                                   {STEP_SPLIT, "\\s?[!-/:-~！-／：-～‘-‟　-。]+"},
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
/* Falcon's own file cuts digits after the bytes are spelt as characters. No merge of it reaches
 * over a cut that this would make inside a character, so the order does not matter. */
static const struct gguf_pre_form falcon = {{{STEP_PUNCTUATION, NULL},
                                             {STEP_SPLIT, GPT2},
                                             {STEP_DIGITS, NULL},
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

static const struct gguf_pre known[] = {
    {"llama-bpe", &llama3, .ignore_merges = true, .adds_bos = true},
    {"llama3", &llama3, .ignore_merges = true, .adds_bos = true},
    {"llama-v3", &llama3, .ignore_merges = true, .adds_bos = true},
    {"falcon3", &llama3, .ignore_merges = true, .adds_bos = true},
    {"falcon-h1", &llama3, .ignore_merges = true, .adds_bos = true},
    {"pixtral", &llama3, .ignore_merges = true, .adds_bos = true},
    {"midm-2.0", &llama3, .ignore_merges = true, .adds_bos = true},
    {"lfm2", &llama3, .ignore_merges = true, .adds_bos = true},
    {"dbrx", &llama3},
    {"smaug-bpe", &llama3},
    {"chatglm-bpe", &llama3},
    {"glm4", &llama3, .ignore_merges = true},
    {"glm5", &llama3, .ignore_merges = true},
    {"jais-2", &jais2},
    {"minicpm5", &minicpm5, .ignore_merges = true},
    {"qwen2", &qwen2, .nfc = true},
    {"deepseek-r1-qwen", &qwen2, .nfc = true},
    {"megrez", &qwen2},
    {"kormo", &qwen2},
    {"stablelm2", &qwen2},
    {"hunyuan", &qwen2},
    {"grok-2", &qwen2},
    {"solar-open", &qwen2},
    {"qwen35", &qwen35, .nfc = true},
    {"ufakzeka", &ufakzeka},
    {"laguna", &laguna},
    {"tekken", &tekken, .ignore_merges = true, .adds_bos = true},
    {"gpt-4o", &gpt4o},
    {"llama4", &gpt4o},
    {"kanana2", &gpt4o},
    {"talkie", &gpt4o},
    {"minimax-m2", &gpt4o},
    {"tiny_aya", &tiny_aya},
    {"cohere2moe", &tiny_aya},
    {"youtu", &youtu, .ignore_merges = true},
    {"deepseek-llm", &deepseek_llm},
    {"deepseek-coder", &deepseek_coder},
    {"deepseek-v3", &deepseek_v3},
    {"hunyuan-dense", &deepseek_v3},
    {"joyai-llm", &deepseek_v3},
    {"hy_v4", &deepseek_v3},
    {"spark2_5", &spark},
    {"falcon", &falcon},
    {"starcoder", &digit_gpt2},
    {"refact", &digit_gpt2},
    {"command-r", &digit_gpt2, .nfc = true},
    {"smollm", &digit_gpt2},
    {"codeshell", &digit_gpt2},
    {"exaone", &digit_gpt2},
    {"minerva-7b", &digit_gpt2},
    {"mellum2", &digit_gpt2},
    {"gpt-2", &gpt2},
    {"phi-2", &gpt2},
    {"gigachat", &gpt2},
    {"a.x-4.0", &gpt2},
    {"mellum", &gpt2},
    {"exaone4", &gpt2},
    {"mpt", &gpt2, .nfc = true},
    {"olmo", &gpt2, .nfc = true},
    {"jais", &gpt2},
    {"trillion", &gpt2},
    {"granite-docling", &gpt2},
    {"exaone-moe", &exaone_moe},
    {"poro-chat", &bloom},
    {"bloom", &bloom},
    {"gpt3-finnish", &bloom},
    {"viking", &viking},
    {"bailingmoe", &bailing},
    {"bailingmoe2", &bailing},
    {"llada-moe", &bailing},
    {"seed-coder", &seed_coder},
};

const struct gguf_pre *gguf_pre_find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i].name) == n && memcmp(known[i].name, name, n) == 0)
            return &known[i];
    return NULL;
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
        [STEP_DIGITS] = "{\"type\":\"Digits\",\"individual_digits\":false}",
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
