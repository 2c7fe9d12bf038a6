/* tokenizer.json: against what Hugging Face's tokenizers say (goldens), against byte pair encoding
 * written down naively, and against files that are damaged or not supported. */
#include "config/jdoc.h"
#include "config/utf8.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/detok.h"
#include "server/tokenizer/hf.h"
#include "server/tokenizer/names.h"
#include "server/tokenizer/regex.h"
#include "tests/detok_all.h"
#include "tests/scratch.h"

#include <string.h>

#define CORPUS TEST_DATA_DIR "/corpus"
#define VOCAB 2000

static const char *const models[] = {"llama3",
                                     "qwen",
                                     "gpt2",
                                     "deepseek",
                                     "behaviors",
                                     "llama2",
                                     "llama2_old",
                                     "metaspace",
                                     "gemma",
                                     "split_isolated",
                                     "split_removed",
                                     "split_merged_with_previous",
                                     "split_merged_with_next",
                                     "split_contiguous"};

/* Deterministic noise. */
static uint64_t random_state = 1;

static uint32_t noise(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static enum status open_text(const char *json, size_t n, struct tokenizer **out, struct err *err)
{
    const struct tokenizer_bytes b = {.json = json, .json_n = n, .where = "here"};
    return tokenizer_open_bytes(&b, VOCAB, out, err);
}

static char *read_model(const char *name, size_t *n)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, CORPUS "/hf/%s.json", name);
    return (char *)scratch_read(path, n);
}

static struct tokenizer *open_model(const char *name)
{
    struct err err = {""};
    struct tokenizer *t = NULL;
    size_t n;
    char *json = read_model(name, &n);
    if (open_text(json, n, &t, &err) != OK)
        fail_msg("%s: %s", name, err.text);
    free(json);
    return t;
}

/* ---- goldens ---- */

static void assert_ids(const char *text, const int32_t *ids, int32_t count,
                       const struct jdoc *wanted)
{
    if ((size_t)count != jdoc_size(wanted))
        fail_msg("\"%s\": %d ids, wanted %zu", text, count, jdoc_size(wanted));
    for (int32_t i = 0; i < count; i++)
        if (ids[i] != jdoc_int(jdoc_at(wanted, (size_t)i)))
            fail_msg("\"%s\": id %d is %d, wanted %d", text, i, ids[i],
                     (int)jdoc_int(jdoc_at(wanted, (size_t)i)));
}

static void check_golden(const struct tokenizer *t, const struct jdoc *c)
{
    struct err err = {""};
    int32_t *ids = NULL, count = 0;
    const struct jdoc *in = jdoc_get(c, "text"), *decoded = jdoc_get(c, "decoded");
    const char *text = jdoc_string(in);
    const size_t n = jdoc_string_len(in);
    assert_int_equal(tokenizer_encode_named(t, text, n, true, &ids, &count, &err), OK);
    assert_ids(text, ids, count, jdoc_get(c, "named"));
    free(ids);
    enum status st = tokenizer_encode(t, text, n, false, &ids, &count, &err);
    if (jdoc_size(jdoc_get(c, "ids")) == 0) {
        assert_int_equal(st, ERR_INPUT);
        return;
    }
    assert_int_equal(st, OK);
    assert_ids(text, ids, count, jdoc_get(c, "ids"));
    assert_true((size_t)count >= tokenizer_tokens_min(t, n));
    struct buf out;
    buf_init(&out, 1 << 20);
    detok_all(t, ids, count, &out);
    assert_int_equal(out.len, jdoc_string_len(decoded));
    if (out.len > 0)
        assert_memory_equal(out.data, jdoc_string(decoded), out.len);
    buf_free(&out);
    free(ids);
}

static void test_goldens(void **state)
{
    struct err err = {""};
    struct jdoc *doc = NULL;
    size_t n;
    (void)state;
    char *json = (char *)scratch_read(CORPUS "/tokenizer/hf_golden.json", &n);
    if (jdoc_parse(json, n, &jdoc_limits_request, "goldens", &doc, &err) != OK)
        fail_msg("%s", err.text);
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct tokenizer *t = open_model(models[m]);
        const struct jdoc *cases = jdoc_get(doc, models[m]);
        assert_true(jdoc_size(cases) > 40);
        for (size_t i = 0; i < jdoc_size(cases); i++)
            check_golden(t, jdoc_at(cases, i));
        tokenizer_close(t);
    }
    jdoc_close(doc);
    free(json);
}

/* ---- streams ---- */

static void assert_new_text(const struct buf *out, size_t before)
{
    if (out->len > before)
        assert_true(utf8_is_valid(out->data + before, out->len - before));
}

/* Any ids: whatever comes out is whole characters, and where the bytes are text, it is they. */
static void check_stream(const struct tokenizer *t)
{
    struct detok d;
    struct buf out, bytes;
    buf_init(&out, 1 << 16);
    buf_init(&bytes, 1 << 16);
    detok_init(&d, t, NULL, 0);
    for (int32_t i = 0, count = 1 + (int32_t)noise(20); i < count; i++) {
        int32_t id = (int32_t)noise((uint32_t)tokenizer_count(t));
        const struct token_view v = tokenizer_view(t, id);
        const size_t before = out.len;
        detok_push(&d, id, &out);
        assert_new_text(&out, before);
        if (v.kind != TOKEN_HIDDEN)
            buf_add(&bytes, v.text, (size_t)v.len);
    }
    const size_t before = out.len;
    detok_finish(&d, &out);
    assert_new_text(&out, before);
    if (bytes.len > 0 && utf8_is_valid(bytes.data, bytes.len)) {
        assert_int_equal(out.len, bytes.len);
        assert_memory_equal(out.data, bytes.data, bytes.len);
    }
    buf_free(&out);
    buf_free(&bytes);
}

static void test_streams(void **state)
{
    (void)state;
    struct tokenizer *t = open_model("llama3");
    for (int i = 0; i < 20000; i++)
        check_stream(t);
    tokenizer_close(t);
}

/* A control token between the halves of a character does not break it, unless it is shown. */
static void test_hidden_inside(void **state)
{
    struct err err = {""};
    struct tokenizer *t = open_model("deepseek");
    int32_t *ids = NULL, count = 0, *control = NULL, control_count = 0;
    (void)state;
    assert_int_equal(tokenizer_encode(t, "\xf0\x9f\xa6\x8a", 4, false, &ids, &count, &err), OK);
    assert_true(count > 1);
    assert_int_equal(tokenizer_encode_named(t, "", 0, true, &control, &control_count, &err), OK);
    assert_int_equal(control_count, 1);
    for (int shown = 0; shown < 2; shown++) {
        struct detok d;
        struct buf out;
        buf_init(&out, 1000);
        detok_init(&d, t, NULL, 0);
        d.show_hidden = shown;
        detok_push(&d, ids[0], &out);
        detok_push(&d, control[0], &out);
        for (int32_t i = 1; i < count; i++)
            detok_push(&d, ids[i], &out);
        detok_finish(&d, &out);
        assert_int_equal(strcmp(out.data, "\xf0\x9f\xa6\x8a") == 0, !shown);
        assert_int_equal(strncmp(out.data, "\xef\xbf\xbd<", 4) == 0, shown);
        buf_free(&out);
    }
    free(ids);
    free(control);
    tokenizer_close(t);
}

/* ---- byte pairs, naively ---- */

#define LETTERS 4
#define JOINS 40

struct naive {
    int32_t left[JOINS], right[JOINS], joined[JOINS];
    char text[LETTERS + JOINS][64];
    int32_t pieces, joins;
};

/* Random merges of pieces that are there already. */
static struct bpe *make_bpe(struct naive *m)
{
    struct err err = {""};
    const struct bpe_settings s = {
        .ids = LETTERS + JOINS, .merges = JOINS, .units_are_bytes = true};
    struct bpe *b = NULL;
    *m = (struct naive){.pieces = 0};
    assert_int_equal(bpe_open(&s, &b, &err), OK);
    for (; m->pieces < LETTERS; m->pieces++) {
        m->text[m->pieces][0] = (char)('a' + m->pieces);
        assert_true(bpe_add_piece(b, m->pieces, m->text[m->pieces], 1));
    }
    while (m->pieces < LETTERS + JOINS && m->joins < JOINS) {
        int32_t l = (int32_t)noise((uint32_t)m->pieces), r = (int32_t)noise((uint32_t)m->pieces);
        char text[128];
        snprintf(text, sizeof text, "%s%s", m->text[l], m->text[r]);
        if (strlen(text) >= sizeof m->text[0])
            continue;
        int32_t id = bpe_find(b, text, strlen(text));
        if (id < 0) {
            id = m->pieces++;
            memcpy(m->text[id], text, strlen(text));
            assert_true(bpe_add_piece(b, id, text, strlen(text)));
        }
        bpe_add_merge(b, l, r, id);
        m->left[m->joins] = l;
        m->right[m->joins] = r;
        m->joined[m->joins++] = id;
    }
    return b;
}

/* The rank of a pair is that of its last mention. */
static int32_t naive_rank(const struct naive *m, int32_t left, int32_t right)
{
    int32_t rank = JOINS;
    for (int32_t i = 0; i < m->joins; i++)
        if (m->left[i] == left && m->right[i] == right)
            rank = i;
    return rank;
}

static int32_t naive_encode(const struct naive *m, const char *text, int32_t *ids)
{
    int32_t count = 0;
    for (; text[count]; count++)
        ids[count] = text[count] - 'a';
    for (;;) {
        int32_t best = JOINS, at = 0;
        for (int32_t i = 0; i + 1 < count; i++) {
            int32_t rank = naive_rank(m, ids[i], ids[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == JOINS)
            return count;
        ids[at] = m->joined[best];
        memmove(ids + at + 1, ids + at + 2, (size_t)(--count - at - 1) * sizeof *ids);
    }
}

static void test_bpe_random(void **state)
{
    struct err err = {""};
    struct bpe_work work = {0};
    struct naive m;
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct bpe *b = make_bpe(&m);
        for (int i = 0; i < 40; i++) {
            char text[200] = "";
            int32_t wanted[200];
            struct buf ids;
            for (uint32_t k = 0, n = 1 + noise(190); k < n; k++)
                text[k] = (char)('a' + noise(LETTERS));
            buf_init(&ids, 1 << 16);
            assert_int_equal(bpe_encode(b, &work, text, strlen(text), &ids, &err), OK);
            int32_t count = naive_encode(&m, text, wanted);
            assert_int_equal(ids.len, (size_t)count * sizeof *wanted);
            assert_memory_equal(ids.data, wanted, ids.len);
            buf_free(&ids);
        }
        bpe_close(b);
    }
    bpe_work_free(&work);
}

/* A hidden piece is reached neither whole nor by a merge nor as a unit. */
static void test_bpe_hidden(void **state)
{
    struct err err = {""};
    struct bpe_work work = {0};
    struct bpe *b = NULL;
    struct buf ids;
    const struct bpe_settings s = {
        .ids = 4, .merges = 1, .units_are_bytes = true, .ignore_merges = true};
    (void)state;
    assert_int_equal(bpe_open(&s, &b, &err), OK);
    assert_true(bpe_add_piece(b, 0, "a", 1) && bpe_add_piece(b, 1, "b", 1));
    assert_true(bpe_add_piece(b, 2, "ab", 2) && bpe_add_piece(b, 3, "c", 1));
    bpe_hide(b, 2);
    bpe_hide(b, 3);
    bpe_add_merge(b, 0, 1, 2);
    buf_init(&ids, 1000);
    assert_int_equal(bpe_encode(b, &work, "ab", 2, &ids, &err), OK);
    assert_int_equal(bpe_encode(b, &work, "c", 1, &ids, &err), OK);
    const int32_t wanted[] = {0, 1};
    assert_int_equal(ids.len, sizeof wanted);
    assert_memory_equal(ids.data, wanted, sizeof wanted);
    buf_free(&ids);
    bpe_work_free(&work);
    bpe_close(b);
}

/* ---- names ---- */

static enum status put_text(void *ctx, const char *text, size_t n, bool first, struct err *err)
{
    (void)err;
    buf_printf(ctx, "%s'%.*s'", first ? "^" : "", (int)n, text);
    return OK;
}

static enum status put_token(void *ctx, int32_t id, struct err *err)
{
    (void)err;
    buf_printf(ctx, "[%d]", id);
    return OK;
}

static void test_names(void **state)
{
    static const struct name list[] = {
        {"<a>", 3, 1, .control = true}, {"<a>b", 4, 2, .control = true},
        {"bc", 2, 3, .control = false}, {"bcd!", 4, 4, .control = false},
        {"b", 1, 5, .control = false},  {"_", 1, 6, .takes_before = true, .takes_after = true}};
    static const struct {
        const char *text;
        bool control;
        const char *wanted;
    } cases[] = {
        {"x<a>y", true, "^'x'[1]'y'"},
        {"x<a>y", false, "^'x<a>y'"},
        {"<a>bc", true, "[2]'c'"},
        {"<a>bc", false,
         "^'<a>bc'"}, /* found, but it stays text: nothing inside it is looked for */
        {"bcd", true, "[3]'d'"},
        {"bcd!b", true, "[4][5]"},
        {"<ab", true, "^'<a'[5]"},
        {"x \xe3\x80\x80_\t\ny_", true, "^'x'[6]'y'[6]"},
        {"_ _ ", true, "[6][6]"},
        {"", true, ""},
    };
    struct err err = {""};
    struct names *n = NULL;
    (void)state;
    assert_int_equal(names_open(list, (int32_t)ARRAY_LEN(list), &n, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf out;
        buf_init(&out, 1000);
        const struct names_sink sink = {put_text, put_token, &out};
        assert_int_equal(names_cut(n, cases[i].text, strlen(cases[i].text),
                                   (struct names_allow){.control = cases[i].control}, true, &sink,
                                   &err),
                         OK);
        assert_string_equal(out.len ? out.data : "", cases[i].wanted);
        buf_free(&out);
    }
    names_close(n);
}

/* ---- patterns ---- */

/* Time and memory of a search are bounded, whatever the pattern. */
static void test_regex_bounds(void **state)
{
    static const char *const patterns[] = {"(a+)+$", "(?:a|aa)+$", "\\s+$"};
    const size_t n = 3000000;
    char *text = malloc(n);
    struct regex_work *work = NULL;
    struct err err = {""};
    (void)state;
    assert_int_equal(regex_work_open(&work, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        struct regex *r = NULL;
        struct regex_match m;
        bool found;
        memset(text, i == 2 ? ' ' : 'a', n);
        text[n - 1] = 'b';
        assert_int_equal(regex_open(patterns[i], strlen(patterns[i]), false, "x", &r, &err), OK);
        assert_int_equal(regex_find(r, work, text, n, 0, &m, &found, &err), ERR_INPUT);
        assert_non_null(strstr(err.text, "too long"));
        regex_close(r);
    }
    struct regex *r = NULL;
    assert_int_equal(regex_open("a(", 2, false, "there", &r, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "there: pattern: end pattern with unmatched parenthesis"));
    assert_int_equal(regex_open("a(", 2, true, "there", &r, &err), OK); /* a text */
    regex_close(r);
    char groups[128] = "";
    for (int i = 0; i < 32; i++)
        memcpy(groups + 2 * i, "()", 2);
    assert_int_equal(regex_open(groups, 62, false, "x", &r, &err), OK);
    regex_close(r);
    assert_int_equal(regex_open(groups, 64, false, "x", &r, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "more than 31 groups"));
    regex_work_close(work);
    free(text);
}

/* Time is bounded here, too: marks in an order that must be turned around, as such and inside of a
 * character that is none. */
static void test_marks_bound(void **state)
{
    static const char *const marks[] = {"\xcc\x81\xcc\xa3",
                                        "\xe0\xbd\xb3"}; /* U+0301 U+0323, U+0F73 */
    struct tokenizer *t = open_model("qwen");
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        struct err err = {""};
        int32_t *ids = NULL, count = 0;
        const size_t most = 1000000, size = strlen(marks[i]);
        char *text = malloc(size * most);
        for (size_t k = 0; k < most; k++)
            memcpy(text + size * k, marks[i], size);
        assert_int_equal(tokenizer_encode(t, text, size * most, false, &ids, &count, &err),
                         ERR_INPUT);
        assert_non_null(strstr(err.text, "more than 256 combining marks on one character"));
        assert_int_equal(tokenizer_encode(t, text, size * 128, false, &ids, &count, &err), OK);
        assert_int_equal(tokenizer_encode(t, text, size * 129, false, &ids, &count, &err),
                         ERR_INPUT);
        free(ids);
        free(text);
    }
    tokenizer_close(t);
}

/* ---- files ---- */

#define VOCABULARY "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<s>\":3}"
#define MODEL "\"model\":{\"type\":\"BPE\"," VOCABULARY ",\"merges\":[\"a b\"]}"
#define DECODER "\"decoder\":{\"type\":\"Fuse\"}"
#define ADDED(rest) "{\"added_tokens\":[{" rest "}]," MODEL "," DECODER "}"
#define CUT(rest) "{\"pre_tokenizer\":" rest "," MODEL "," DECODER "}"
#define NORMAL(rest) "{\"normalizer\":" rest "," MODEL "," DECODER "}"
#define DECODE(rest) "{" MODEL ",\"decoder\":" rest "}"
#define POST(rest) "{\"post_processor\":" rest "," MODEL "," DECODER "}"
#define BPE(rest) "{\"model\":{" rest "}," DECODER "}"

static const struct refusal {
    const char *json, *message;
} refusals[] = {
    {"", "here: "},
    {"[]", "here: the tokenizer: an array, expected an object"},
    {"{" MODEL "}", "here: the tokenizer: has no decoder"},
    {"{" DECODER "}", "here: the tokenizer: has no model"},
    {BPE("\"type\":\"WordPiece\""), "here: model.type: WordPiece is not supported"},
    {BPE("\"merges\":[]"), "here: model: has no vocab"},
    {BPE(VOCABULARY), "here: model: has no merges"},
    {BPE("\"vocab\":{},\"merges\":[]"), "here: model.vocab: has no pieces"},
    {BPE("\"vocab\":{\"a\":-1},\"merges\":[]"), "\"a\" has id -1, but the model has only 2000"},
    {BPE("\"vocab\":{\"a\":2000},\"merges\":[]"), "\"a\" has id 2000"},
    {BPE("\"vocab\":{\"a\":\"x\"},\"merges\":[]"), "here: model.vocab: a string, expected an int"},
    {BPE("\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]"), "two pieces have id 1"},
    {BPE("\"vocab\":{\"a\":1,\"a\":2},\"merges\":[]"), "duplicate"},
    {BPE("\"vocab\":{\"\":1},\"merges\":[]"), "id 1 has 0 bytes"},
    {BPE(VOCABULARY ",\"merges\":[\"a c\"]"), "here: model.merges[0]: \"c\" is not in the vocab"},
    {BPE(VOCABULARY ",\"merges\":[\"b a\"]"), "here: model.merges[0]: \"ba\" is not in the vocab"},
    {BPE(VOCABULARY ",\"merges\":[\"ab\"]"), "here: model.merges[0]: expected \"left right\""},
    {BPE(VOCABULARY ",\"merges\":[\"a b c\"]"), "here: model.merges[0]: expected"},
    {BPE(VOCABULARY ",\"merges\":[[\"a\"]]"), "here: model.merges[0]: expected"},
    {BPE(VOCABULARY ",\"merges\":[[\"a\",\"\"]]"), "here: model.merges[0]: two texts"},
    {BPE(VOCABULARY ",\"merges\":[],\"dropout\":0.1"), "here: model: dropout is not supported"},
    {BPE(VOCABULARY ",\"merges\":[],\"end_of_word_suffix\":\"x\""), "end_of_word_suffix is not"},
    {BPE(VOCABULARY ",\"merges\":[],\"unk_token\":\"?\""),
     "here: model.unk_token: \"?\" is not in"},
    {BPE(VOCABULARY ",\"merges\":[],\"fuse_unk\":1"), "here: model.fuse_unk: an integer, expected"},
    {ADDED("\"id\":3"), "here: added_tokens[0]: has no content"},
    {ADDED("\"id\":1,\"content\":\"<s>\""), "added_tokens[0]: id 1 is not that of \"<s>\""},
    {ADDED("\"id\":1,\"content\":\"<x>\""), "added_tokens[0]: id 1 is not that of \"<x>\""},
    {ADDED("\"id\":2000,\"content\":\"<x>\""), "added_tokens[0]: id 2000, but the model has only"},
    {ADDED("\"id\":9,\"content\":\"\""), "here: added_tokens[0]: 0 bytes"},
    {ADDED("\"id\":9,\"content\":\"x\",\"single_word\":true"), "single_word is not supported"},
    {NORMAL("{\"type\":\"NFKC\"}"), "here: normalizer: NFKC is not supported"},
    {NORMAL("{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}"),
     "here: normalizer.normalizers[0]: Lowercase is not supported"},
    {NORMAL("{\"type\":\"Replace\",\"pattern\":{},\"content\":\"\"}"),
     "normalizer.pattern: has no"},
    {CUT("{\"type\":\"UnicodeScripts\"}"), "here: pre_tokenizer: UnicodeScripts is not supported"},
    {CUT("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"Split\","
         "\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}]}"),
     "here: pre_tokenizer.pretokenizers[1]: pattern: end pattern"},
    {CUT("{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Odd\"}"),
     "here: pre_tokenizer.behavior: Odd is not supported"},
    {CUT("{\"type\":\"ByteLevel\"}"), "ByteLevel is in the pre_tokenizer, but not in the decoder"},
    {CUT("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]"
         "}"),
     "here: pre_tokenizer.pretokenizers[1]: a step after ByteLevel is not supported"},
    {CUT("{\"type\":\"Metaspace\",\"prepend_scheme\":\"x\"}"),
     "prepend_scheme: x is not supported"},
    {DECODE("{\"type\":\"ByteLevel\"}"), "ByteLevel is not in the pre_tokenizer"},
    {DECODE("{\"type\":\"WordPiece\"}"), "here: decoder: WordPiece is not supported"},
    {DECODE(
         "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":\" \",\"start\":1,"
         "\"stop\":0}]}"),
     "here: decoder.decoders[0]: Strip is not supported"},
    {DECODE("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\","
            "\"content\":\" \",\"start\":2,\"stop\":0}]}"),
     "here: decoder.decoders[1]: stripping other than"},
    {POST("{\"type\":\"BertProcessing\"}"),
     "here: post_processor: BertProcessing is not supported"},
    {POST("{\"type\":\"TemplateProcessing\",\"single\":[]}"),
     "post_processor: 0 texts, expected one"},
    {POST("{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
          "{\"Sequence\":{}}],\"special_tokens\":{\"<s>\":{\"ids\":[2000]}}}"),
     "here: post_processor.single[0]: an id is not among the 2000"},
    {POST("{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":["
          "{\"SpecialToken\":{\"id\":\"<s>\"}}],\"special_tokens\":{}}]}"),
     "here: post_processor.processors[0].single[0]: has no <s>"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        struct tokenizer *t = NULL;
        struct err err = {""};
        const char *json = refusals[i].json;
        assert_int_equal(open_text(json, strlen(json), &t, &err), ERR_MODEL);
        assert_null(t);
        if (!strstr(err.text, refusals[i].message))
            fail_msg("%s\n  says   %s\n  wanted %s", json, err.text, refusals[i].message);
    }
}

/* Whatever a flipped bit makes of a file: it is refused with its name, or encodes. */
static void test_damage(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        size_t n;
        int32_t refused = 0;
        char *json = read_model(models[m], &n);
        for (size_t i = 0; i < n; i += 1 + noise(16)) {
            struct err err = {""};
            struct tokenizer *t = NULL;
            int32_t *ids = NULL, count = 0;
            const char old = json[i];
            json[i] = (char)(old ^ (char)(1u << noise(8)));
            enum status st = open_text(json, n, &t, &err);
            json[i] = old;
            if (st != OK)
                assert_non_null(strstr(err.text, "here"));
            else if (tokenizer_encode(t, "The water, 123 <s>", 18, true, &ids, &count, &err) == OK)
                free(ids);
            refused += st != OK;
            tokenizer_close(t);
        }
        assert_true(refused > 20);
        free(json);
    }
}

/* A control token that is also in the vocabulary is not reached by spelling it out. */
static void test_forging(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],\"model\":{"
        "\"ignore_merges\":true,\"vocab\":{\"<\":0,\"s\":1,\">\":2,\"<s>\":3,\"<s\":4},"
        "\"merges\":[\"< s\",\"<s >\"]}," DECODER "}";
    static const int32_t letters[] = {4, 2}, control[] = {3};
    struct err err = {""};
    struct tokenizer *t = NULL;
    int32_t *ids = NULL, count = 0;
    (void)state;
    assert_int_equal(open_text(json, strlen(json), &t, &err), OK);
    assert_int_equal(tokenizer_encode(t, "<s>", 3, true, &ids, &count, &err), OK);
    assert_int_equal(count, ARRAY_LEN(letters));
    assert_memory_equal(ids, letters, sizeof letters);
    free(ids);
    assert_int_equal(tokenizer_encode_named(t, "<s>", 3, true, &ids, &count, &err), OK);
    assert_int_equal(count, ARRAY_LEN(control));
    assert_memory_equal(ids, control, sizeof control);
    free(ids);
    tokenizer_close(t);
}

/* No text has fewer tokens than is promised. */
static void test_tokens_min(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct tokenizer *t = open_model(models[m]);
        for (int32_t id = 0; id < tokenizer_count(t); id++) {
            const struct token_view v = tokenizer_view(t, id);
            char text[4096];
            size_t n = 0;
            struct err err = {""};
            int32_t *ids = NULL, count = 0;
            if (v.len == 0 || !utf8_is_valid(v.text, (size_t)v.len))
                continue;
            while (n + (size_t)v.len <= sizeof text) {
                memcpy(text + n, v.text, (size_t)v.len);
                n += (size_t)v.len;
            }
            assert_int_equal(tokenizer_encode_named(t, text, n, false, &ids, &count, &err), OK);
            assert_true((size_t)count >= tokenizer_tokens_min(t, n));
            free(ids);
        }
        tokenizer_close(t);
    }
    static const char *const bounded[] = {"llama2", "gemma"};
    for (size_t i = 0; i < ARRAY_LEN(bounded); i++) {
        struct tokenizer *t = open_model(bounded[i]);
        assert_true(tokenizer_tokens_min(t, 1 << 20) > 10000);
        tokenizer_close(t);
    }
}

/* Where a normalizer composes, a token may stand for more bytes than its own: nothing is promised.
 */
static void test_tokens_min_composed(void **state)
{
    enum { SYLLABLES = 8 };
    struct err err = {""};
    struct tokenizer *t = NULL;
    struct buf json;
    int32_t *ids = NULL, count = 0;
    char text[9 * SYLLABLES];
    (void)state;
    buf_init(&json, 1 << 16);
    buf_puts(&json, "{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"vocab\":{");
    for (int i = 0; i < 256; i++)
        buf_printf(&json, "\"<0x%02X>\":%d,", i, i);
    buf_puts(&json, "\"\\uac01\":256},\"merges\":[],\"byte_fallback\":true},\"decoder\":{"
                    "\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":"
                    "\"Fuse\"}]}}");
    if (open_text(json.data, json.len, &t, &err) != OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < SYLLABLES; i++) /* U+1100 U+1161 U+11A8 make U+AC01 */
        memcpy(text + 9 * i, "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", 9);
    assert_int_equal(tokenizer_encode(t, text, sizeof text, false, &ids, &count, &err), OK);
    assert_int_equal(count, SYLLABLES);
    assert_true(tokenizer_tokens_min(t, sizeof text) <= SYLLABLES);
    free(ids);
    buf_free(&json);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_hidden_inside),
        cmocka_unit_test(test_bpe_random),
        cmocka_unit_test(test_bpe_hidden),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_regex_bounds),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_marks_bound),
        cmocka_unit_test(test_forging),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_tokens_min),
        cmocka_unit_test(test_tokens_min_composed),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
