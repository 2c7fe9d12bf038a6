/* Tokenizers of GGUF files: what is written for small ones (tests/make_gguf_tokenizers.py) makes of
 * texts what Hugging Face's tokenizers and SentencePiece do; and one that is wrong in one place
 * after the other. */
#include "config/jdoc.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/scratch.h"
#include "weights/gguf/gguf_pre.h"
#include "weights/gguf/gguf_tokenizer.h"

#include <string.h>

#define CORPUS TEST_DATA_DIR "/corpus/gguf_tokenizers"
#define PIECES TEST_DATA_DIR "/corpus/tokenizer"
#define VOCAB 2000

/* ---- writing ---- */

static char written[PATH_MAX]; /* where the last one is */

static void write_good(const struct gguf *g)
{
    static int count;
    struct outdir d;
    struct err err = {""};
    snprintf(written, sizeof written, "%s/%d", scratch_dir, count++);
    enum status st = outdir_open(written, &d, &err);
    if (st == OK) {
        st = gguf_tokenizer_write(g, &d, &err);
        outdir_close(&d, true);
    }
    if (st != OK)
        fail_msg("%s", err.text);
}

static void convert(const char *name)
{
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct err err = {""};
    snprintf(path, sizeof path, CORPUS "/%s.gguf", name);
    if (gguf_open(path, &g, &err) != OK)
        fail_msg("%s", err.text);
    write_good(g);
    gguf_close(g);
}

static char *read_written(const char *name)
{
    char path[PATH_MAX];
    size_t n = 0;
    snprintf(path, sizeof path, "%.4000s/%s", written, name);
    return (char *)scratch_read(path, &n);
}

static void assert_written(const char *name, const char *wanted)
{
    char *text = read_written(name);
    assert_string_equal(text, wanted);
    free(text);
}

static struct tokenizer *open_written(void)
{
    struct tokenizer *t = NULL;
    struct err err = {""};
    if (tokenizer_open(written, VOCAB, &t, &err) != OK)
        fail_msg("%s", err.text);
    assert_non_null(t);
    return t;
}

/* ---- goldens ---- */

static struct jdoc *read_json(const char *path)
{
    size_t n = 0;
    struct jdoc *doc = NULL;
    struct err err = {""};
    char *json = (char *)scratch_read(path, &n);
    if (jdoc_parse(json, n, &jdoc_limits_request, path, &doc, &err) != OK)
        fail_msg("%s", err.text);
    free(json);
    return doc;
}

static void assert_ids(const char *name, const char *text, const int32_t *ids, int32_t count,
                       const struct jdoc *wanted)
{
    bool same = (size_t)count == jdoc_size(wanted);
    for (int32_t i = 0; i < count && same; i++)
        same = ids[i] == jdoc_int(jdoc_at(wanted, (size_t)i));
    if (!same)
        fail_msg("%s: \"%s\": other ids, %d of them", name, text, count);
}

static void check_golden(const char *name, const struct tokenizer *t, const struct jdoc *c)
{
    struct err err = {""};
    int32_t *ids = NULL, count = 0;
    const struct jdoc *in = jdoc_get(c, "text");
    const struct jdoc *turns = jdoc_get(c, "turns"); /* where what marks them is a control token */
    const struct jdoc *wanted = turns ? turns : jdoc_get(c, "ids");
    const char *text = jdoc_string(in);
    const size_t n = jdoc_string_len(in);
    if (jdoc_get(c, "named")) {
        assert_int_equal(tokenizer_encode_named(t, text, n, true, &ids, &count, &err), OK);
        assert_ids(name, text, ids, count, jdoc_get(c, "named"));
        free(ids);
    }
    const enum status st = tokenizer_encode(t, text, n, false, &ids, &count, &err);
    if (st != (jdoc_size(wanted) > 0 ? OK : ERR_INPUT))
        fail_msg("%s: \"%s\": %d, %s", name, text, (int)st, err.text);
    if (st != OK)
        return;
    assert_ids(name, text, ids, count, wanted);
    free(ids);
}

static void test_goldens(void **state)
{
    (void)state;
    struct jdoc *doc = read_json(CORPUS "/golden.json");
    const char *name;
    const struct jdoc *cases;
    int count = 0;
    for (void *i = jdoc_iter(doc, NULL, &name, &cases); i; i = jdoc_iter(doc, i, &name, &cases)) {
        convert(name);
        struct tokenizer *t = open_written();
        assert_string_equal(tokenizer_kind(t), "tokenizer.json");
        for (size_t k = 0; k < jdoc_size(cases); k++)
            check_golden(name, t, jdoc_at(cases, k));
        assert_true(jdoc_size(cases) > 50);
        tokenizer_close(t);
        count++;
    }
    assert_int_equal(count, 10);
    jdoc_close(doc);
}

/* As SentencePiece reads its own file, of which the GGUF file was made. */
static void test_pieces(void **state)
{
    (void)state;
    static const char *const names[] = {"bytes", "gemma", "prefixed"};
    for (size_t m = 0; m < ARRAY_LEN(names); m++) {
        char path[PATH_MAX], gguf_name[64];
        snprintf(path, sizeof path, PIECES "/%s/golden.json", names[m]);
        snprintf(gguf_name, sizeof gguf_name, "spm_%s", names[m]);
        struct jdoc *doc = read_json(path);
        const struct jdoc *cases = jdoc_get(doc, "cases");
        convert(gguf_name);
        struct tokenizer *t = open_written();
        assert_string_equal(tokenizer_kind(t), "tokenizer.model");
        assert_true(jdoc_size(cases) > 10);
        for (size_t i = 0; i < jdoc_size(cases); i++)
            check_golden(names[m], t, jdoc_at(cases, i));
        tokenizer_close(t);
        jdoc_close(doc);
    }
}

static void test_settings(void **state)
{
    (void)state;
    convert("llama_bpe");
    assert_written("generation_config.json", "{\"bos_token_id\":561,\n\"eos_token_id\":[562]}\n");
    assert_written("tokenizer_config.json",
                   "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\n\"add_bos_token\":true,\n"
                   "\"add_eos_token\":false,\n\"clean_up_tokenization_spaces\":false,\n"
                   "\"bos_token\":\"<|begin_of_text|>\",\n\"eos_token\":\"<|eot|>\"}\n");
    assert_written("chat_template.jinja",
                   "{% for m in messages %}<|im|>{{ m.content }}{% endfor %}");
    convert("gpt_4o"); /* <|endoftext|>, <|return|> and <|call|>, but not <|end|> */
    struct tokenizer *t = open_written();
    char *text = read_written("generation_config.json");
    static const char *const ends[] = {"<|return|>", "<|call|>", "<|endoftext|>"};
    char wanted[100];
    int n = snprintf(wanted, sizeof wanted, "{\"eos_token_id\":");
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct err err;
        int32_t *ids = NULL, count = 0;
        assert_int_equal(
            tokenizer_encode_named(t, ends[i], strlen(ends[i]), false, &ids, &count, &err), OK);
        assert_int_equal(count, 1);
        n += snprintf(wanted + n, sizeof wanted - (size_t)n, "%c%d", i ? ',' : '[', ids[0]);
        free(ids);
    }
    snprintf(wanted + n, sizeof wanted - (size_t)n, "]}\n");
    assert_string_equal(text, wanted);
    free(text);
    tokenizer_close(t);
}

/* ---- files that are wrong ---- */

/* Keys as "NAME=TYPE:VALUES"; of types s string, S strings, I integers, F numbers, i integer,
 * b boolean. Values of arrays are parted by '|'. */

static void put_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, sizeof v);
}

static void put_string(struct buf *b, const char *text, size_t n)
{
    const uint64_t length = n;
    buf_add(b, &length, sizeof length);
    buf_add(b, text, n);
}

static void put_value(struct buf *b, char type, const char *text, size_t n)
{
    const float number = strtof(text, NULL);
    switch (type) {
    case 's':
    case 'S':
        put_string(b, text, n);
        break;
    case 'F':
        buf_add(b, &number, sizeof number);
        break;
    case 'b':
        buf_add(b, text[0] == '1' ? "\1" : "\0", 1);
        break;
    default:
        put_u32(b, (uint32_t)strtol(text, NULL, 10));
        break;
    }
}

static void put_key(struct buf *b, const char *spec)
{
    const char *equals = strchr(spec, '=');
    assert_non_null(equals);
    const char type = equals[1];
    const uint32_t number = type == 's' || type == 'S' ? GGUF_STRING
                            : type == 'F'              ? GGUF_F32
                            : type == 'b'              ? GGUF_BOOL
                            : type == 'I'              ? GGUF_I32
                                                       : GGUF_U32;
    char key[100];
    snprintf(key, sizeof key, "tokenizer.%.*s", (int)(equals - spec), spec);
    put_string(b, key, strlen(key));
    if (type >= 'a') {
        put_u32(b, number);
        put_value(b, type, equals + 3, strlen(equals + 3));
        return;
    }
    uint64_t count = 1;
    for (const char *c = equals; *c; c++)
        count += *c == '|';
    put_u32(b, GGUF_ARRAY);
    put_u32(b, number);
    buf_add(b, &count, sizeof count);
    for (const char *at = equals + 3;; at++) {
        const size_t n = strcspn(at, "|");
        put_value(b, type, at, n);
        at += n;
        if (!*at)
            break;
    }
}

static bool same_key(const char *a, const char *b)
{
    const size_t n = strcspn(a, "=");
    return n == strcspn(b, "=") && memcmp(a, b, n) == 0;
}

static const char *const bytes_model[] = {"ggml.model=s:gpt2",
                                          "ggml.pre=s:llama-bpe",
                                          "ggml.tokens=S:a|b|ab|<s>",
                                          "ggml.token_type=I:1|1|1|3",
                                          "ggml.merges=S:a b",
                                          "ggml.bos_token_id=i:3",
                                          NULL};
static const char *const pieces_model[] = {"ggml.model=s:llama", "ggml.tokens=S:<unk>|<s>|</s>|a",
                                           "ggml.token_type=I:2|3|3|1", "ggml.scores=F:0|0|0|-1.5",
                                           NULL};

/* A file that is in memory. */
struct made {
    struct buf bytes;
    struct gguf *g;
};

/* The model with one key of its own, or another instead, or without it ("KEY"). */
static struct made make(const char *const *model, const char *change)
{
    struct made m = {.g = NULL};
    struct buf *b = &m.bytes;
    struct err err = {""};
    uint64_t count = 0;
    buf_init(b, 1 << 20);
    const bool adds = change && strchr(change, '=');
    for (int i = 0; model[i]; i++)
        count += !change || !same_key(model[i], change);
    count += adds;
    buf_add(b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16);
    buf_add(b, &count, sizeof count);
    for (int i = 0; model[i]; i++)
        if (!change || !same_key(model[i], change))
            put_key(b, model[i]);
    if (adds)
        put_key(b, change);
    if (gguf_parse(b->data, b->len, b->len, "x.gguf", &m.g, &err) != OK)
        fail_msg("%s: %s", change, err.text);
    return m;
}

static void unmake(struct made *m)
{
    gguf_close(m->g);
    buf_free(&m->bytes);
}

static void check_bad(const char *const *model, const char *change, const char *words)
{
    struct outdir d;
    struct err err = {""};
    struct made m = make(model, change);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/bad", scratch_dir);
    assert_int_equal(outdir_open(path, &d, &err), OK);
    const enum status st = gguf_tokenizer_write(m.g, &d, &err);
    outdir_close(&d, false);
    unmake(&m);
    if (st != ERR_MODEL || strncmp(err.text, "x.gguf: ", 8) != 0 || !strstr(err.text, words))
        fail_msg("%s: expected \"%s\", found %d: %s", change, words, (int)st, err.text);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"ggml.model", "tokenizer.ggml.model: is not there"},
        {"ggml.model=i:1", "tokenizer.ggml.model: a string expected"},
        {"ggml.model=s:bert", "tokenizer.ggml.model \"bert\" is not supported"},
        {"ggml.model=s:t\x01\xff", "tokenizer.ggml.model \"t??\""},
        {"ggml.pre", "tokenizer.ggml.pre: is not there"},
        {"ggml.pre=s:qwen9", "the nearest known name is \"qwen2\""},
        {"ggml.pre=s:default", "\"default\" is not supported"},
        {"ggml.tokens", "tokens has 0 strings"},
        {"ggml.tokens=I:1|2|3|4", "tokens: an array of strings expected"},
        {"ggml.tokens=S:a|b|ab", "token_type has 4 integers, one for each of 3"},
        {"ggml.tokens=S:a|b|ab|a", "tokens[0] and [3] are the same"},
        {"ggml.tokens=S:a|b|ab|\xff", "tokens[3] is not UTF-8 text"},
        {"ggml.tokens=S:a|b|ab|", "bos_token_id is 3, which has no text"},
        {"ggml.token_type", "token_type has 0 integers"},
        {"ggml.token_type=S:1|1|1|3", "token_type: an array of integers expected"},
        {"ggml.token_type=I:1|1|7|3", "token_type[2] is 7"},
        {"ggml.token_type=I:1|1|0|3", "token_type[2] is 0"},
        {"ggml.merges", "merges: an array of strings expected"},
        {"ggml.merges=I:1", "merges: an array of strings expected"},
        {"ggml.merges=S:ab", "merges[0]: two tokens with a space"},
        {"ggml.merges=S:a b| b", "merges[1]: two tokens with a space"},
        {"ggml.merges=S:a ", "merges[0]: two tokens with a space"},
        {"ggml.merges=S:a b c", "merges[0]: two tokens with a space"},
        {"ggml.merges=S:b a", "merges[0], \"b a\": a part of it, or the whole, is no token"},
        {"ggml.merges=S:a c", "merges[0], \"a c\""},
        {"ggml.bos_token_id=i:4", "bos_token_id: an id below 4 expected"},
        {"ggml.bos_token_id=s:3", "bos_token_id: an id below 4 expected"},
        {"ggml.eos_token_id=i:-1", "eos_token_id: an id below 4 expected"},
        {"ggml.eot_token_id=i:9", "eot_token_id: an id below 4 expected"},
        {"ggml.eom_token_id=i:9", "eom_token_id: an id below 4 expected"},
        {"ggml.padding_token_id=i:9", "padding_token_id: an id below 4 expected"},
        {"ggml.unknown_token_id=i:9", "unknown_token_id: an id below 4 expected"},
        {"ggml.add_bos_token=i:1", "add_bos_token: a boolean expected"},
        {"ggml.add_eos_token=b:1", "there is no tokenizer.ggml.eos_token_id"},
        {"chat_template=i:1", "tokenizer.chat_template: a string expected"},
        {"chat_template=s:\xc3", "tokenizer.chat_template: not UTF-8 text"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        check_bad(bytes_model, bad[i][0], bad[i][1]);
}

static void test_refusals_of_pieces(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"ggml.scores", "scores has 0 numbers, one for each of 4"},
        {"ggml.scores=F:0|0|0", "scores has 3 numbers"},
        {"ggml.scores=F:0|0|0|nan", "scores[3]: a finite number expected"},
        {"ggml.scores=S:0|0|0|1", "scores[0]: a finite number expected"},
        {"ggml.token_type=I:2|3|3|6", "tokens[3] is a byte, but not of the form <0xNN>"},
        {"ggml.add_space_prefix=i:1", "add_space_prefix: a boolean expected"},
        {"ggml.remove_extra_whitespaces=i:1", "remove_extra_whitespaces: a boolean expected"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        check_bad(pieces_model, bad[i][0], bad[i][1]);
}

static void test_long_token(void **state)
{
    (void)state;
    char change[1200] = "ggml.tokens=S:a|b|ab|";
    const size_t n = strlen(change);
    memset(change + n, 'x', 1025);
    check_bad(bytes_model, change, "tokens[3] has 1025 bytes, at most 1024 are supported");
}

/* ---- what is put right ---- */

static void check_ids(const char *text, int32_t count, const int32_t *wanted)
{
    struct err err = {""};
    int32_t *ids = NULL, found = 0;
    struct tokenizer *t = open_written();
    assert_int_equal(tokenizer_encode_named(t, text, strlen(text), true, &ids, &found, &err), OK);
    assert_int_equal(found, count);
    assert_memory_equal(ids, wanted, (size_t)count * sizeof *ids);
    free(ids);
    tokenizer_close(t);
}

static void write_made(const char *const *model, const char *change)
{
    struct made m = make(model, change);
    write_good(m.g);
    unmake(&m);
}

static void test_put_right(void **state)
{
    (void)state;
    write_made(bytes_model, NULL);
    check_ids("ab<s>", 3, (const int32_t[]){3, 2, 3});
    write_made(bytes_model, "ggml.bos_token_id"); /* none: no text begins with one */
    check_ids("ab<s>", 2, (const int32_t[]){2, 3});
    write_made(bytes_model, "ggml.add_bos_token=b:0");
    check_ids("a", 1, (const int32_t[]){0});
    write_made(bytes_model, "ggml.tokens=S:a|b|ab|[PAD3]"); /* a control token of that name */
    check_ids("[PAD3]", 2, (const int32_t[]){3, 3});
    write_made(pieces_model, NULL);
    check_ids("</s>", 2, (const int32_t[]){1, 2});
    write_made(pieces_model, "ggml.token_type=I:3|3|3|2"); /* <unk> is 0, whatever its type */
    check_ids("</s>", 2, (const int32_t[]){1, 2});
    write_made(pieces_model, "ggml.tokens=S:<unk>|<s>|</s>|");
    check_ids("</s>", 2, (const int32_t[]){1, 2});
}

static void test_filler(void **state)
{
    (void)state;
    static const char *const model[] = {"ggml.model=s:gpt2",           "ggml.pre=s:gpt-2",
                                        "ggml.tokens=S:a|b|ab|[PAD3]", "ggml.token_type=I:1|1|1|4",
                                        "ggml.merges=S:a b",           NULL};
    write_made(model, NULL);
    char *json = read_written("tokenizer.json");
    assert_null(strstr(json, "PAD"));
    free(json);
}

/* A template for tools has no file of its own. */
static void test_two_templates(void **state)
{
    (void)state;
    static const char *const model[] = {"ggml.model=s:gpt2",
                                        "ggml.pre=s:gpt-2",
                                        "ggml.tokens=S:a|b|ab",
                                        "ggml.token_type=I:1|1|1",
                                        "ggml.merges=S:a b",
                                        "chat_template=s:one",
                                        NULL};
    write_made(model, "chat_template.tool_use=s:two");
    struct tokenizer *t = open_written();
    assert_non_null(strstr(tokenizer_info(t), "\"chat_template\":\"one\""));
    assert_non_null(strstr(tokenizer_info(t), "\"tool_use_template\":\"two\""));
    tokenizer_close(t);
}

/* Every form can be read again: its patterns, too. */
static void test_known_names(void **state)
{
    (void)state;
    int32_t count = 0;
    for (const struct gguf_pre *pre; (pre = gguf_pre_at(count)); count++) {
        char change[64];
        snprintf(change, sizeof change, "ggml.pre=s:%s", pre->name);
        write_made(bytes_model, change);
        tokenizer_close(open_written());
    }
    assert_true(count > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refusals_of_pieces),
        cmocka_unit_test(test_long_token),
        cmocka_unit_test(test_put_right),
        cmocka_unit_test(test_filler),
        cmocka_unit_test(test_two_templates),
        cmocka_unit_test(test_known_names),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
