/* What a model's directory says of vectors: the files of sentence-transformers as they are
 * published, in both of their forms, and every word in them that is not followed is refused by file
 * and key. */
#include "config/pooling.h"
#include "tests/scratch.h"

#include <string.h>

#define TYPE(name) "\"type\":\"sentence_transformers.models." name "\""
#define TRANSFORMER "{\"idx\":0,\"name\":\"0\",\"path\":\"\"," TYPE("Transformer") "}"
#define POOLING "{\"idx\":1,\"name\":\"1\",\"path\":\"1_Pooling\"," TYPE("Pooling") "}"
#define NORMALIZE "{\"idx\":2,\"name\":\"2\",\"path\":\"2_Normalize\"," TYPE("Normalize") "}"
#define USUAL "[" TRANSFORMER "," POOLING "," NORMALIZE "]"
/* As the files of Qwen3-Embedding have it. */
#define LAST_TOKEN                                                                                 \
    "{\"word_embedding_dimension\":1024,\"pooling_mode_cls_token\":false,"                         \
    "\"pooling_mode_mean_tokens\":false,\"pooling_mode_max_tokens\":false,"                        \
    "\"pooling_mode_mean_sqrt_len_tokens\":false,\"pooling_mode_weightedmean_tokens\":false,"      \
    "\"pooling_mode_lasttoken\":true,\"include_prompt\":true}"

static void put(const char *name, const char *text)
{
    if (text)
        scratch_write(scratch_path(name), text, strlen(text));
    else
        unlink(scratch_path(name));
}

/* A directory with these files; NULL: without. */
static enum status load(const char *modules, const char *pooling, struct pooling *out,
                        struct err *err)
{
    mkdir(scratch_path("m"), 0777);
    mkdir(scratch_path("m/1_Pooling"), 0777);
    put("m/" POOLING_MODULES, modules);
    put("m/" POOLING_CONFIG, pooling);
    err->text[0] = '\0';
    return pooling_load(scratch_path("m"), out, err);
}

static void accepted(const char *modules, const char *pooling, bool normalize)
{
    struct pooling p;
    struct err err;
    memset(&p, 0x5a, sizeof p);
    if (load(modules, pooling, &p, &err) != OK)
        fail_msg("%s: %s", modules, err.text);
    assert_true(p.found);
    assert_int_equal(p.normalize, normalize);
}

/* file: in the directory; what: the rest of the message must have it. */
static void refused(const char *modules, const char *pooling, const char *file, const char *what)
{
    struct pooling p;
    struct err err;
    char begin[PATH_MAX];
    if (load(modules, pooling, &p, &err) != ERR_MODEL)
        fail_msg("%s with %s: not refused", modules, pooling ? pooling : "nothing");
    snprintf(begin, sizeof begin, "%s/%s", scratch_path("m"), file);
    if (strncmp(err.text, begin, strlen(begin)) != 0 || !strstr(err.text, what))
        fail_msg("\"%s\": expected \"%s: %s\"", err.text, begin, what);
}

/* So many modules. */
static const char *norms(size_t count)
{
    static const char one[] = "," NORMALIZE;
    static char text[20 * sizeof one];
    size_t at = 0;
    for (size_t i = 0; i < count; i++, at += sizeof one - 1)
        memcpy(text + at, one, sizeof one - 1);
    text[0] = '[';
    memcpy(text + at, "]", 2);
    return text;
}

static void test_nothing_said(void **state)
{
    (void)state;
    struct pooling p;
    struct err err;
    memset(&p, 0x5a, sizeof p);
    assert_int_equal(load(NULL, NULL, &p, &err), OK);
    assert_false(p.found);
    assert_true(p.normalize);
    assert_int_equal(load(NULL, "{}", &p, &err), OK); /* nothing names that folder */
    assert_false(p.found);
}

static void test_published(void **state)
{
    (void)state;
    accepted(USUAL, LAST_TOKEN, true);
    accepted("[" TRANSFORMER "," POOLING "]", LAST_TOKEN, false);
    accepted(USUAL, "{\"pooling_mode_lasttoken\":true}", true);
    /* newer ones name the way, and modules by other paths that end the same */
    accepted(USUAL, "{\"embedding_dimension\":1024,\"pooling_mode\":\"lasttoken\"}", true);
    accepted(USUAL, "{\"pooling_mode\":[\"lasttoken\"]}", true);
    accepted("[{\"type\":\"sentence_transformers.base.modules.transformer.Transformer\"},"
             "{\"path\":\"1_Pooling\",\"type\":\"x.Pooling\"},{\"type\":\"x.y.Normalize\"}]",
             LAST_TOKEN, true);
}

static void test_other_ways(void **state)
{
    (void)state;
    static const char *const others[] = {"cls_token", "mean_tokens", "max_tokens",
                                         "mean_sqrt_len_tokens", "weightedmean_tokens"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        char text[128], what[128];
        snprintf(text, sizeof text, "{\"pooling_mode_%s\":true,\"pooling_mode_lasttoken\":true}",
                 others[i]); /* both: one after the other, in their order */
        snprintf(what, sizeof what, ": pooling_mode_%s is true, expected false", others[i]);
        refused(USUAL, text, POOLING_CONFIG, what);
    }
    static const char *const cases[][2] = {
        {"{\"pooling_mode_lasttoken\":false}", ": pooling_mode_lasttoken is false, expected true"},
        {"{}", ": pooling_mode_lasttoken is missing, expected true"},
        {"{\"pooling_mode_lasttoken\":1}", ": pooling_mode_lasttoken is 1, expected true or false"},
        {"{\"pooling_mode_lasttoken\":true,\"pooling_mode_mean_tokens\":\"no\"}",
         ": pooling_mode_mean_tokens is \"no\", expected true or false"},
        {"{\"pooling_mode\":\"mean\",\"pooling_mode_lasttoken\":true}",
         ": pooling_mode is \"mean\", expected \"lasttoken\""},
        {"{\"pooling_mode\":[\"lasttoken\",\"mean\"]}",
         ": pooling_mode is an array, expected \"lasttoken\""},
        {"{\"pooling_mode\":[\"mean\"]}", ": pooling_mode is an array, expected \"lasttoken\""},
        {"{\"pooling_mode\":7}", ": pooling_mode is 7, expected \"lasttoken\""},
        {"[]", ": expected a JSON object"},
        {"{\"pooling_mode\":", ": line 1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(USUAL, cases[i][0], POOLING_CONFIG, cases[i][1]);
    refused(USUAL, NULL, POOLING_CONFIG, "No such file");
}

static void test_other_modules(void **state)
{
    (void)state;
#define WITH(module) "[" TRANSFORMER "," module "]"
    static const char counted[] = ": expected a list of 1 to 16 modules";
    static const char folder[] = ": type is \"sentence_transformers.models.Pooling\", expected ";
    static const char *const cases[][2] = {
        {"[]", counted},
        {"{}", counted},
        {"\"Transformer\"", counted},
        {"[" TRANSFORMER ",[]]", ": expected an object for each module"},
        {WITH("null"), ": expected an object for each module"},
        {"[{\"path\":\"\"}]", ": type is missing, expected "},
        {"[{\"type\":7}]", ": type is 7, expected a string"},
        {"[{\"type\":\"Transformer\"}]", ": type is \"Transformer\", expected "},
        {"[{\"path\":\"0_Transformer\"," TYPE("Transformer") "}]",
         ": type is \"sentence_transformers.models.Transformer\", expected "},
        {"[{\"path\":1," TYPE("Transformer") "}]", ": path is 1, expected a string"},
        {WITH("{\"path\":\"2_Dense\"," TYPE("Dense") "}"),
         ": type is \"sentence_transformers.models.Dense\", expected "},
        {WITH("{\"path\":\"\"," TYPE("Pooling") "}"), folder},
        {WITH("{" TYPE("Pooling") "}"), folder},
        {WITH("{\"path\":\"/etc\"," TYPE("Pooling") "}"), folder},
        {WITH("{\"path\":\"..\"," TYPE("Pooling") "}"), folder},
        {WITH("{\"path\":\"1_Pooling/../1_Pooling\"," TYPE("Pooling") "}"), folder},
        {"[" TRANSFORMER, ": line 1"},
    };
#undef WITH
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(cases[i][0], LAST_TOKEN, POOLING_MODULES, cases[i][1]);
    refused(norms(17), LAST_TOKEN, POOLING_MODULES, counted);
    refused(norms(16), LAST_TOKEN, POOLING_MODULES, ": expected a Pooling among the modules");
    refused("[" TRANSFORMER "]", LAST_TOKEN, POOLING_MODULES,
            ": expected a Pooling among the modules");
}

/* Directories whose paths leave no room for a name in them. */
static void test_long_paths(void **state)
{
    (void)state;
    static char path[PATH_MAX + 8];
    struct pooling p;
    struct err err;
    memset(path, 'x', PATH_MAX - 8);
    assert_int_equal(pooling_load(path, &p, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "path too long"));
}

/* How texts are read, and what is put in front of them. */
static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *prompts;
        int32_t longest;
        const char *prompt;
    } good[] = {
        {NULL, NULL, 0, ""},
        {"{}", "{}", 0, ""},
        {"{\"max_seq_length\":512,\"do_lower_case\":false}", NULL, 512, ""},
        {"{\"max_seq_length\":null}", "{\"default_prompt_name\":null}", 0, ""},
        {NULL, "{\"prompts\":{\"query\":\"Find: \"}}", 0, ""}, /* asked for by name */
        {NULL, "{\"prompts\":{\"query\":\"\"},\"default_prompt_name\":\"query\"}", 0, ""},
        {NULL, "{\"prompts\":{\"query\":\"Find: \"},\"default_prompt_name\":\"query\"}", 0,
         "query"},
    };
    struct pooling p;
    struct err err;
    mkdir(scratch_path("m"), 0777);
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        put("m/sentence_bert_config.json", good[i].text);
        put("m/config_sentence_transformers.json", good[i].prompts);
        accepted(USUAL, LAST_TOKEN, true);
        assert_int_equal(load(USUAL, LAST_TOKEN, &p, &err), OK);
        assert_int_equal(p.longest, good[i].longest);
        assert_string_equal(p.prompt, good[i].prompt);
        assert_string_equal(p.folder, POOLING_FOLDER);
    }
    static const char file[] = "sentence_bert_config.json";
    put("m/sentence_bert_config.json", "{\"do_lower_case\":true}");
    refused(USUAL, LAST_TOKEN, file, ": do_lower_case is true, expected false");
    put("m/sentence_bert_config.json", "{\"max_seq_length\":0}");
    refused(USUAL, LAST_TOKEN, file, ": max_seq_length is 0");
    put("m/sentence_bert_config.json", "[]");
    refused(USUAL, LAST_TOKEN, file, ": expected a JSON object");
    put("m/sentence_bert_config.json", NULL);
    put("m/config_sentence_transformers.json", "{");
    refused(USUAL, LAST_TOKEN, "config_sentence_transformers.json", ": line 1");
    put("m/config_sentence_transformers.json", NULL);
    put("m/" POOLING_MODULES, NULL); /* a link to what was not fetched is no directory without */
    assert_int_equal(symlink("nowhere", scratch_path("m/" POOLING_MODULES)), 0);
    assert_int_equal(pooling_load(scratch_path("m"), &p, &err), ERR_MODEL);
    unlink(scratch_path("m/" POOLING_MODULES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_said), cmocka_unit_test(test_published),
        cmocka_unit_test(test_other_ways),   cmocka_unit_test(test_other_modules),
        cmocka_unit_test(test_long_paths),   cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
