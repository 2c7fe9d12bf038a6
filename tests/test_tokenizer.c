/* Tokenizer, detokeniser and stop strings: against what SentencePiece says (goldens made by its
 * Python package, and its own Decode), against a naive search, and against damaged files. */
#include "config/buf.h"
#include "config/jdoc.h"
#include "config/utf8.h"
#include "server/tokenizer/detok.h"
#include "server/tokenizer/spm.h"
#include "server/tokenizer/spm_file.h"
#include "server/tokenizer/stop.h"
#include "tests/detok_all.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

#define CORPUS TEST_DATA_DIR "/corpus/tokenizer"
#define VOCAB 32000

static const char *const models[] = {"bytes", "collapse", "gemma"};

/* Deterministic noise. */
static uint64_t random_state = 1;

static uint32_t noise(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static struct tokenizer *open_model(const char *name)
{
    char path[PATH_MAX];
    struct err err = {""};
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, CORPUS "/%s", name);
    if (tokenizer_open(path, VOCAB, &t, &err) != OK)
        fail_msg("%s: %s", name, err.text);
    assert_non_null(t);
    return t;
}

static unsigned char *read_model(const char *name, size_t *n)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, CORPUS "/%s/tokenizer.model", name);
    return scratch_read(path, n);
}

static enum status open_bytes(const void *model, size_t n, const char *config, int32_t vocab,
                              struct tokenizer **out, struct err *err)
{
    const struct tokenizer_bytes b = {.model = model,
                                      .model_n = n,
                                      .config = config,
                                      .config_n = config ? strlen(config) : 0,
                                      .where = "here"};
    return tokenizer_open_bytes(&b, vocab, out, err);
}

static struct spm *open_oracle(const char *name)
{
    char text[200];
    size_t n;
    struct spm *s = NULL;
    unsigned char *bytes = read_model(name, &n);
    assert_int_equal(spm_open(bytes, n, &s, text, sizeof text), 0);
    free(bytes);
    return s;
}

/* ---- goldens ---- */

static void check_golden(const struct tokenizer *t, const struct jdoc *c)
{
    struct err err = {""};
    int32_t *ids = NULL, count = 0;
    struct buf text;
    const struct jdoc *in = jdoc_get(c, "text"), *wanted = jdoc_get(c, "ids");
    enum status st =
        tokenizer_encode(t, jdoc_string(in), jdoc_string_len(in), false, &ids, &count, &err);
    if (jdoc_size(wanted) == 0) {
        assert_int_equal(st, ERR_INPUT);
        return;
    }
    assert_int_equal(st, OK);
    assert_int_equal(count, jdoc_size(wanted));
    for (int32_t i = 0; i < count; i++)
        assert_int_equal(ids[i], jdoc_int(jdoc_at(wanted, (size_t)i)));
    buf_init(&text, 1 << 20);
    detok_all(t, ids, count, &text);
    assert_string_equal(text.len ? text.data : "", jdoc_string(jdoc_get(c, "decoded")));
    buf_free(&text);
    free(ids);
}

static struct jdoc *load_goldens(const char *name)
{
    char path[PATH_MAX];
    struct err err = {""};
    struct jdoc *doc = NULL;
    snprintf(path, sizeof path, CORPUS "/%s/golden.json", name);
    assert_int_equal(jdoc_load(path, &doc, &err), OK);
    return doc;
}

static void test_goldens(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct jdoc *doc = load_goldens(models[m]);
        struct tokenizer *t = open_model(models[m]);
        assert_int_equal(tokenizer_count(t), jdoc_int(jdoc_get(doc, "pieces")));
        const struct jdoc *cases = jdoc_get(doc, "cases");
        assert_true(jdoc_size(cases) > 25);
        for (size_t i = 0; i < jdoc_size(cases); i++)
            check_golden(t, jdoc_at(cases, i));
        jdoc_close(doc);
        tokenizer_close(t);
    }
}

/* ---- detokeniser ---- */

static void assert_utf8(const char *text, size_t n)
{
    for (size_t i = 0, k; i < n; i += k) {
        k = utf8_char(text + i, n - i);
        assert_int_not_equal(k, 0);
    }
}

/* Random ids, mostly bytes or mostly pieces. */
static int32_t draw_ids(const struct tokenizer *t, int32_t *ids, int32_t max)
{
    int32_t count = (int32_t)noise((uint32_t)max + 1), total = tokenizer_count(t);
    int32_t limit = noise(2) && total > 259 ? 259 : total;
    for (int32_t i = 0; i < count; i++)
        ids[i] = (int32_t)noise((uint32_t)limit);
    return count;
}

/* The stream of any ids: every piece whole characters, all of them what SentencePiece decodes. */
static void check_stream(const struct tokenizer *t, const struct spm *oracle)
{
    int32_t ids[40], count = draw_ids(t, ids, 40);
    char error[200], *wanted = NULL;
    size_t n = 0;
    struct buf all;
    struct detok d;
    buf_init(&all, 1 << 20);
    detok_init(&d, t, NULL, 0);
    for (int32_t i = 0; i <= count; i++) {
        size_t before = all.len;
        if (i < count)
            detok_push(&d, ids[i], &all);
        else
            detok_finish(&d, &all);
        if (all.len > before)
            assert_utf8(all.data + before, all.len - before);
    }
    assert_int_equal(spm_decode(oracle, ids, count, &wanted, &n, error, sizeof error), 0);
    assert_int_equal(all.len, n);
    if (n > 0)
        assert_memory_equal(all.data, wanted, n);
    free(wanted);
    buf_free(&all);
}

/* Text after a prompt is the text of both less the text of the prompt. */
static void check_continuation(const struct tokenizer *t, const struct spm *oracle)
{
    static const char *const prompts[] = {"Once upon a time", "the wind ", "\xe4\xbd\xa0", "a"};
    struct err err = {""};
    char error[200], *first = NULL, *both = NULL;
    size_t first_n = 0, both_n = 0;
    int32_t *prompt = NULL, prompt_n = 0, ids[64];
    const char *text = prompts[noise(ARRAY_LEN(prompts))];
    assert_int_equal(tokenizer_encode(t, text, strlen(text), noise(2), &prompt, &prompt_n, &err),
                     OK);
    assert_true(prompt_n < 30);
    memcpy(ids, prompt, (size_t)prompt_n * sizeof *ids);
    int32_t count = draw_ids(t, ids + prompt_n, 20);
    assert_int_equal(spm_decode(oracle, ids, prompt_n, &first, &first_n, error, sizeof error), 0);
    assert_int_equal(spm_decode(oracle, ids, prompt_n + count, &both, &both_n, error, sizeof error),
                     0);
    struct buf out;
    struct detok d;
    buf_init(&out, 1 << 20);
    detok_init(&d, t, prompt, prompt_n);
    for (int32_t i = 0; i < count; i++)
        detok_push(&d, ids[prompt_n + i], &out);
    detok_finish(&d, &out);
    assert_int_equal(first_n + out.len, both_n);
    if (out.len > 0)
        assert_memory_equal(both + first_n, out.data, out.len);
    buf_free(&out);
    free(first);
    free(both);
    free(prompt);
}

static void test_detok_random(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        struct tokenizer *t = open_model(models[m]);
        struct spm *oracle = open_oracle(models[m]);
        for (int i = 0; i < 20000; i++)
            check_stream(t, oracle);
        for (int i = 0; i < 5000; i++)
            check_continuation(t, oracle);
        spm_close(oracle);
        tokenizer_close(t);
    }
}

static int32_t find_piece(const struct tokenizer *t, const char *text)
{
    for (int32_t id = 0; id < tokenizer_count(t); id++) {
        struct token_view v = tokenizer_view(t, id);
        if (v.kind == TOKEN_TEXT && v.len == (int32_t)strlen(text) &&
            memcmp(v.text, text, strlen(text)) == 0)
            return id;
    }
    fail_msg("no piece \"%s\"", text);
    return -1;
}

static void check_text(const struct tokenizer *t, const int32_t *prompt, int32_t prompt_n,
                       const int32_t *ids, int32_t count, const char *wanted)
{
    struct detok d;
    struct buf out;
    buf_init(&out, 1 << 20);
    detok_init(&d, t, prompt, prompt_n);
    for (int32_t i = 0; i < count; i++)
        detok_push(&d, ids[i], &out);
    assert_string_equal(out.data ? out.data : "", wanted);
    buf_free(&out);
}

static void test_detok_first_space(void **state)
{
    (void)state;
    struct tokenizer *t = open_model("bytes");
    const int32_t word = find_piece(t, " the"), bos = 1, outside = 9999;
    const int32_t after_control[] = {bos, word, word};
    check_text(t, NULL, 0, &word, 1, "the");
    check_text(t, &bos, 1, &word, 1, "the");
    check_text(t, &word, 1, &word, 1, " the");
    check_text(t, NULL, 0, after_control, 3, "the the");
    check_text(t, NULL, 0, &outside, 1, "");
    check_text(NULL, NULL, 0, &word, 1, "");
    tokenizer_close(t);
}

/* Bytes are ids 3..258 of this model. */
static void test_detok_bytes(void **state)
{
    (void)state;
    struct tokenizer *t = open_model("bytes");
    static const int32_t whole[] = {3 + 0xf0, 3 + 0x9f, 3 + 0xa6, 3 + 0x8a};
    static const int32_t overlong[] = {3 + 0xc0, 3 + 0x80};
    static const int32_t broken[] = {3 + 0xe4, 3 + 0xbd, 3 + 'A'};
    check_text(t, NULL, 0, whole, 3, "");
    check_text(t, NULL, 0, whole, 4, "\xf0\x9f\xa6\x8a");
    check_text(t, NULL, 0, overlong, 2, "\xef\xbf\xbd\xef\xbf\xbd");
    check_text(t, NULL, 0, broken, 3,
               "\xef\xbf\xbd\xef\xbf\xbd"
               "A");
    tokenizer_close(t);
}

/* ---- stop strings ---- */

#define STOPS 4

/* Where the text ends, by trying every end and every string; -1: nowhere. */
static int32_t naive_stop(const char *text, size_t n, const char *const *stops, int32_t count,
                          size_t *cut)
{
    for (size_t end = 1; end <= n; end++) {
        int32_t best = -1;
        for (int32_t i = 0; i < count; i++) {
            size_t k = strlen(stops[i]);
            if (k <= end && memcmp(text + end - k, stops[i], k) == 0 &&
                (best < 0 || k > strlen(stops[best])))
                best = i;
        }
        if (best >= 0) {
            *cut = end - strlen(stops[best]);
            return best;
        }
    }
    *cut = n;
    return -1;
}

/* Few letters, so that strings overlap themselves and each other. */
static void draw_text(char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        text[i] = (char)('a' + noise(3));
    text[n] = '\0';
}

/* No output may go beyond what can no longer be a stop string. */
static void check_stops(const struct stop_set *set, const char *const *stops, int32_t count,
                        const char *text, size_t n)
{
    size_t cut, at = 0;
    int32_t wanted = naive_stop(text, n, stops, count, &cut), found = -1;
    struct stop s;
    struct buf out;
    buf_init(&out, 1 << 16);
    stop_init(&s, set);
    while (at < n && found < 0) {
        size_t k = 1 + noise(5);
        k = k < n - at ? k : n - at;
        found = stop_push(&s, text + at, k, &out);
        at += k;
        assert_true(out.len <= cut);
    }
    if (found < 0)
        stop_finish(&s, &out);
    assert_int_equal(found, wanted);
    assert_int_equal(out.len, cut);
    if (cut > 0)
        assert_memory_equal(out.data, text, cut);
    buf_free(&out);
}

static void test_stop_random(void **state)
{
    struct err err = {""};
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char strings[STOPS][12], text[64];
        const char *stops[STOPS];
        size_t lens[STOPS];
        struct stop_set *set = NULL;
        int32_t count = (int32_t)noise(STOPS + 1);
        for (int32_t i = 0; i < count; i++) {
            lens[i] = 1 + noise(11);
            draw_text(strings[i], lens[i]);
            stops[i] = strings[i];
        }
        size_t n = noise(sizeof text);
        draw_text(text, n);
        assert_int_equal(stop_set_open(stops, lens, count, &set, &err), OK);
        check_stops(set, stops, count, text, n);
        stop_set_close(set);
    }
}

static void test_stop_longest(void **state)
{
    char longest[STOP_BYTES_MAX + 1];
    const char *strings[STOP_STRINGS_MAX];
    size_t lens[STOP_STRINGS_MAX], len;
    struct err err = {""};
    struct stop_set *set = NULL;
    struct stop s;
    struct buf out;
    (void)state;
    memset(longest, 'x', STOP_BYTES_MAX);
    longest[STOP_BYTES_MAX] = '\0';
    for (size_t i = 0; i < STOP_STRINGS_MAX; i++) {
        strings[i] = longest;
        lens[i] = STOP_BYTES_MAX;
    }
    assert_int_equal(stop_set_open(strings, lens, STOP_STRINGS_MAX, &set, &err), OK);
    assert_memory_equal(stop_set_string(set, 15, &len), longest, STOP_BYTES_MAX);
    assert_int_equal(len, STOP_BYTES_MAX);
    buf_init(&out, 1 << 16);
    stop_init(&s, set);
    assert_int_equal(stop_push(&s, longest, STOP_BYTES_MAX - 1, &out), -1);
    assert_int_equal(stop_push(&s, "y", 1, &out), -1);
    assert_int_equal(out.len, STOP_BYTES_MAX);
    assert_int_equal(stop_push(&s, longest, STOP_BYTES_MAX, &out), 0);
    assert_int_equal(out.len, STOP_BYTES_MAX);
    buf_free(&out);
    stop_set_close(set);
}

/* ---- the file ---- */

static void test_damage(void **state)
{
    (void)state;
    for (size_t m = 0; m < ARRAY_LEN(models); m++) {
        size_t n;
        int32_t refused = 0;
        unsigned char *bytes = read_model(models[m], &n);
        for (size_t i = 0; i < n; i++) {
            struct err err = {""};
            struct tokenizer *t = NULL;
            unsigned char old = bytes[i];
            bytes[i] = (unsigned char)(old ^ (1u << noise(8)));
            /* whole opening is slow under sanitizers: a sample */
            enum status st = i % 8 ? OK : open_bytes(bytes, n, NULL, VOCAB, &t, &err);
            struct spm_file file;
            if (i % 8)
                st = spm_file_parse(bytes, n, "here", &file, &err);
            if (i % 8 && st == OK)
                spm_file_free(&file);
            if (st != OK)
                assert_non_null(strstr(err.text, "here"));
            refused += st != OK;
            tokenizer_close(t);
            bytes[i] = old;
        }
        assert_true(refused > 100);
        free(bytes);
    }
}

static void test_truncation(void **state)
{
    size_t n;
    (void)state;
    unsigned char *bytes = read_model("bytes", &n);
    for (size_t k = 0; k < n; k += 3) {
        struct err err = {""};
        struct spm_file file;
        unsigned char *copy = malloc(k ? k : 1); /* so that the sanitizer sees its end */
        memcpy(copy, bytes, k);
        if (spm_file_parse(copy, k, "here", &file, &err) == OK)
            spm_file_free(&file);
        free(copy);
    }
    free(bytes);
}

static void add_field(struct buf *b, int number, int wire, const void *bytes, size_t n)
{
    char key = (char)(number << 3 | wire);
    buf_add(b, &key, 1);
    if (wire == 2) {
        assert_true(n < 16384);
        char len[2] = {(char)(0x80 | (n & 0x7f)), (char)(n >> 7)};
        buf_add(b, len, 2);
    }
    buf_add(b, bytes, n);
}

static void add_piece(struct buf *b, const char *text, size_t n, float score, int type)
{
    struct buf piece;
    char byte = (char)type;
    buf_init(&piece, 1 << 14);
    add_field(&piece, 1, 2, text, n);
    add_field(&piece, 2, 5, &score, sizeof score);
    add_field(&piece, 3, 0, &byte, 1);
    add_field(b, 1, 2, piece.data, piece.len);
    buf_free(&piece);
}

/* A normalisation map: a double array of 256 units of which all but the first two are 0, one text.
 */
static void add_map(struct buf *b, uint32_t root, uint32_t size)
{
    uint32_t map[1 + 256] = {size, root, 9};
    struct buf bytes, spec;
    buf_init(&bytes, 1 << 14);
    buf_init(&spec, 1 << 14);
    buf_add(&bytes, map, sizeof map);
    buf_add(&bytes, "x", 2);
    add_field(&spec, 2, 2, bytes.data, bytes.len);
    add_field(b, 3, 2, spec.data, spec.len);
    buf_free(&bytes);
    buf_free(&spec);
}

/* A good file of four pieces plus whatever is in *more; the message must hold words. */
static void check_file(struct buf *more, const char *words)
{
    struct err err = {""};
    struct spm_file file;
    struct buf b;
    buf_init(&b, 1 << 16);
    add_piece(&b, "<unk>", 5, 0, SPM_UNKNOWN);
    add_piece(&b, "<s>", 3, 0, SPM_CONTROL);
    add_piece(&b, "</s>", 4, 0, SPM_CONTROL);
    add_piece(&b, "a", 1, -1, SPM_NORMAL);
    buf_add(&b, more->data, more->len);
    enum status st = spm_file_parse(b.data, b.len, "here", &file, &err);
    if (!words)
        assert_int_equal(st, OK);
    else if (st != ERR_MODEL || !strstr(err.text, words))
        fail_msg("expected \"%s\", found %d: %s", words, (int)st, err.text);
    if (st == OK)
        spm_file_free(&file);
    buf_free(&b);
    buf_clear(more);
}

static void test_file_rules(void **state)
{
    struct buf b;
    char text[1025];
    (void)state;
    memset(text, 'x', sizeof text);
    buf_init(&b, 1 << 16);
    check_file(&b, NULL);
    add_piece(&b, text, 1024, 0, SPM_NORMAL);
    check_file(&b, NULL);
    add_piece(&b, text, 1025, 0, SPM_NORMAL);
    check_file(&b, "1025 bytes");
    add_piece(&b, "", 0, 0, SPM_NORMAL);
    check_file(&b, "0 bytes");
    add_piece(&b, "a", 1, 0, SPM_NORMAL);
    check_file(&b, "3 and 4 are the same");
    add_piece(&b, "b", 1, -HUGE_VALF, SPM_NORMAL);
    check_file(&b, "not finite");
    add_piece(&b, "b", 1, NAN, SPM_NORMAL);
    check_file(&b, "not finite");
    add_piece(&b, "\xff", 1, 0, SPM_NORMAL);
    check_file(&b, "UTF-8");
    add_piece(&b, "a\0b", 3, 0, SPM_NORMAL);
    check_file(&b, "UTF-8");
    add_piece(&b, "b", 1, 0, 7);
    check_file(&b, "type");
    add_piece(&b, "<0xG0>", 6, 0, SPM_BYTE);
    check_file(&b, "<0xNN>");
    add_piece(&b, "<unk2>", 6, 0, SPM_UNKNOWN);
    check_file(&b, "2 unknown pieces");
    add_field(&b, 2, 2, "\xc8\x02\x09", 3); /* bos_id 9 */
    check_file(&b, "bos 9");
    add_field(&b, 2, 2, "\xc0\x01\x01", 3);
    check_file(&b, "treat_whitespace_as_suffix");
    add_map(&b, 0, 1020);
    check_file(&b, "wrong size");
    add_map(&b, 0, 1024);
    check_file(&b, NULL);
    add_map(&b, 256u << 10, 1024); /* children beyond the array */
    check_file(&b, "points outside");
    add_map(&b, 1u << 8 | 1u << 10, 1024); /* a value, 9, beyond the texts */
    check_file(&b, "points outside");
    buf_add(&b, "\x0a\x7f", 2); /* a piece longer than the file */
    check_file(&b, "malformed");
    buf_add(&b, "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", 11);
    check_file(&b, "malformed");
    buf_free(&b);
}

/* ---- opening ---- */

static void test_open(void **state)
{
    struct err err = {""};
    struct tokenizer *t = NULL;
    size_t n;
    int32_t *ids = NULL, count = 0;
    (void)state;
    assert_int_equal(tokenizer_open(scratch_path(""), VOCAB, &t, &err), OK);
    assert_null(t);
    unsigned char *bytes = read_model("bytes", &n);
    assert_int_equal(open_bytes(bytes, n, NULL, 399, &t, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "400 pieces"));
    static const char off[] = "{\"add_bos_token\": false, \"add_eos_token\": true}";
    assert_int_equal(open_bytes(bytes, n, off, 400, &t, &err), OK);
    assert_int_equal(tokenizer_encode(t, "a", 1, true, &ids, &count, &err), OK);
    assert_int_equal(count, 2);
    assert_int_equal(ids[1], 2);
    free(ids);
    tokenizer_close(t);
    t = NULL;
    static const char bad[] = "{\"add_bos_token\": 1}";
    assert_int_equal(open_bytes(bytes, n, bad, 400, &t, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "add_bos_token"));
    assert_null(t);
    free(bytes);
}

/* By default a text begins with bos; control tokens in a text are letters. */
static void test_special(void **state)
{
    struct err err = {""};
    int32_t *ids = NULL, count = 0;
    (void)state;
    struct tokenizer *t = open_model("bytes");
    assert_int_equal(tokenizer_encode(t, "</s>", 4, true, &ids, &count, &err), OK);
    assert_int_equal(ids[0], 1);
    assert_true(count > 3);
    for (int32_t i = 1; i < count; i++)
        assert_int_not_equal(tokenizer_view(t, ids[i]).kind, TOKEN_HIDDEN);
    free(ids);
    assert_int_equal(tokenizer_encode(t, "", 0, true, &ids, &count, &err), OK);
    assert_int_equal(count, 1);
    free(ids);
    tokenizer_close(t);
}

/* ---- marks of turns that users have defined ---- */

/* With a tokenizer_config.json that says which of them are special. */
static struct tokenizer *open_with_config(const char *name, const struct jdoc *goldens)
{
    struct err err = {""};
    struct tokenizer *t = NULL;
    struct buf config;
    size_t n;
    unsigned char *bytes = read_model(name, &n);
    buf_init(&config, 1 << 16);
    jdoc_write(jdoc_get(goldens, "config"), &config);
    if (open_bytes(bytes, n, config.data, VOCAB, &t, &err) != OK)
        fail_msg("%s", err.text);
    buf_free(&config);
    free(bytes);
    return t;
}

/* foreign: of a client, not 0 for each of its bytes; NULL: the text is a prompt. */
static void check_ids(const struct tokenizer *t, const struct buf *text, const char *foreign,
                      const struct jdoc *wanted)
{
    const struct tokenizer_text marked = {
        .bytes = text->len ? text->data : "", .foreign = foreign, .n = text->len};
    struct err err = {""};
    int32_t *ids = NULL, count = 0;
    enum status st = foreign
                         ? tokenizer_encode_marked(t, &marked, false, &ids, &count, &err)
                         : tokenizer_encode(t, marked.bytes, marked.n, false, &ids, &count, &err);
    if (!foreign && jdoc_size(wanted) == 0) {
        assert_int_equal(st, ERR_INPUT);
        return;
    }
    assert_int_equal(st, OK);
    bool same = (size_t)count == jdoc_size(wanted);
    for (int32_t i = 0; same && i < count; i++)
        same = ids[i] == jdoc_int(jdoc_at(wanted, (size_t)i));
    if (!same)
        fail_msg("\"%s\": %d ids are not the %zu wanted", marked.bytes, count, jdoc_size(wanted));
    free(ids);
}

/* Special ones are letters in a prompt; in what a client says to a template, all of them are. Tags
 * and runs of spaces stay what they are. */
static void test_marks(void **state)
{
    (void)state;
    struct jdoc *doc = load_goldens("gemma");
    struct tokenizer *t = open_with_config("gemma", doc);
    const struct jdoc *cases = jdoc_get(doc, "cases");
    char foreign[256];
    memset(foreign, 1, sizeof foreign);
    for (size_t i = 0; i < jdoc_size(cases); i++) {
        const struct jdoc *c = jdoc_at(cases, i), *in = jdoc_get(c, "text");
        struct buf text;
        buf_init(&text, 1 << 16);
        buf_add(&text, jdoc_string(in), jdoc_string_len(in));
        assert_true(text.len < sizeof foreign);
        check_ids(t, &text, NULL, jdoc_get(c, "turns"));
        check_ids(t, &text, foreign, jdoc_get(c, "quoted"));
        buf_free(&text);
    }
    tokenizer_close(t);
    jdoc_close(doc);
}

/* A template's words and a client's in turns. */
static void check_conversations(const struct tokenizer *t, const struct jdoc *cases)
{
    assert_true(jdoc_size(cases) > 3);
    for (size_t i = 0; i < jdoc_size(cases); i++) {
        const struct jdoc *parts = jdoc_get(jdoc_at(cases, i), "parts");
        struct buf text, foreign;
        buf_init(&text, 1 << 16);
        buf_init(&foreign, 1 << 16);
        for (size_t k = 0; k < jdoc_size(parts); k++) {
            const struct jdoc *part = jdoc_at(parts, k);
            buf_add(&text, jdoc_string(part), jdoc_string_len(part));
            for (size_t j = 0; j < jdoc_string_len(part); j++)
                buf_add(&foreign, k % 2 ? "\1" : "\0", 1);
        }
        check_ids(t, &text, foreign.data, jdoc_get(jdoc_at(cases, i), "ids"));
        buf_free(&text);
        buf_free(&foreign);
    }
}

static void test_marks_of_conversations(void **state)
{
    (void)state;
    struct jdoc *doc = load_goldens("gemma");
    struct tokenizer *t = open_with_config("gemma", doc);
    check_conversations(t, jdoc_get(doc, "conversations"));
    tokenizer_close(t);
    jdoc_close(doc);
}

/* Where every text begins with a word mark, one with marks is still one text, in prompts and in
 * conversations, but where a client has spelt out a mark. */
static void test_marks_of_prefixed(void **state)
{
    (void)state;
    struct jdoc *doc = load_goldens("prefixed");
    struct tokenizer *t = open_with_config("prefixed", doc);
    const struct jdoc *cases = jdoc_get(doc, "cases");
    assert_true(jdoc_size(cases) > 25);
    for (size_t i = 0; i < jdoc_size(cases); i++) {
        const struct jdoc *c = jdoc_at(cases, i), *in = jdoc_get(c, "text");
        struct buf text;
        buf_init(&text, 1 << 16);
        buf_add(&text, jdoc_string(in), jdoc_string_len(in));
        check_ids(t, &text, NULL, jdoc_get(c, "ids"));
        buf_free(&text);
    }
    check_conversations(t, jdoc_get(doc, "conversations"));
    tokenizer_close(t);
    jdoc_close(doc);
}

/* Special ones are no text of an answer either; others are. Ids beyond the pieces are nothing. */
static void test_marks_hidden(void **state)
{
    static const char config[] =
        "{\"added_tokens_decoder\": {\"4\": {\"special\": true}, \"5\": {\"special\": false}, "
        "\"7\": "
        "{\"special\": true}, \"9999\": {\"special\": true}, \"-1\": {\"special\": true}, \"6x\": "
        "{\"special\": true}, \"\": {\"special\": true}, \"8\": true}}";
    struct err err = {""};
    struct tokenizer *t = NULL;
    size_t n;
    (void)state;
    unsigned char *bytes = read_model("gemma", &n);
    assert_int_equal(open_bytes(bytes, n, config, VOCAB, &t, &err), OK);
    for (int32_t id = 4; id < 9; id++)
        assert_int_equal(tokenizer_view(t, id).kind,
                         id == 4 || id == 7 ? TOKEN_HIDDEN : TOKEN_TEXT);
    tokenizer_close(t);
    free(bytes);
}

/* The bound holds for any text: it is what lets a server refuse without tokenizing. */
static void test_tokens_min(void **state)
{
    struct err err = {""};
    (void)state;
    struct tokenizer *t = open_model("bytes");
    for (int i = 0; i < 2000; i++) {
        int32_t ids[64], *again = NULL, count = draw_ids(t, ids, 64), again_count = 0;
        struct buf text;
        buf_init(&text, 1 << 16);
        detok_all(t, ids, count, &text);
        if (text.len > 0) {
            assert_int_equal(
                tokenizer_encode(t, text.data, text.len, false, &again, &again_count, &err), OK);
            assert_true((size_t)again_count >= tokenizer_tokens_min(t, text.len));
            free(again);
        }
        buf_free(&text);
    }
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_detok_random),
        cmocka_unit_test(test_detok_first_space),
        cmocka_unit_test(test_detok_bytes),
        cmocka_unit_test(test_stop_random),
        cmocka_unit_test(test_stop_longest),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_file_rules),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_marks_of_conversations),
        cmocka_unit_test(test_marks_of_prefixed),
        cmocka_unit_test(test_marks_hidden),
        cmocka_unit_test(test_tokens_min),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
