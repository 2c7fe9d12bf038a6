/* adapter_config.json: what PEFT writes is taken, of every module the rank and the scale are those
 * that PEFT takes, and each key that asks for something else is refused by file and name. */
#include "config/lora_config.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

#define BASE "\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16"
#define WITH(more) "{" BASE "," more "}"
/* As PEFT 0.21 writes it. */
static const char whole[] =
    "{\n  \"alora_invocation_tokens\": null,\n  \"alpha_pattern\": {},\n"
    "  \"arrow_config\": null,\n  \"auto_mapping\": null,\n"
    "  \"base_model_name_or_path\": \"some/model\",\n  \"bias\": \"none\",\n"
    "  \"corda_config\": null,\n  \"ensure_weight_tying\": false,\n  \"eva_config\": null,\n"
    "  \"exclude_modules\": null,\n  \"fan_in_fan_out\": false,\n  \"inference_mode\": true,\n"
    "  \"init_lora_weights\": true,\n  \"kasa_config\": null,\n  \"layer_replication\": null,\n"
    "  \"layers_pattern\": null,\n  \"layers_to_transform\": null,\n  \"loftq_config\": {},\n"
    "  \"lora_alpha\": 8,\n  \"lora_bias\": false,\n  \"lora_dropout\": 0.0,\n"
    "  \"lora_ga_config\": null,\n  \"megatron_config\": null,\n"
    "  \"megatron_core\": \"megatron.core\",\n  \"modules_to_save\": null,\n"
    "  \"monteclora_config\": null,\n  \"peft_type\": \"LORA\",\n  \"peft_version\": \"0.21.2\",\n"
    "  \"qalora_group_size\": 16,\n  \"r\": 4,\n  \"rank_pattern\": {},\n  \"revision\": null,\n"
    "  \"target_modules\": [\n    \"down_proj\",\n    \"q_proj\"\n  ],\n"
    "  \"target_parameters\": null,\n  \"task_type\": \"CAUSAL_LM\",\n"
    "  \"trainable_token_indices\": null,\n  \"use_bdlora\": null,\n  \"use_dora\": false,\n"
    "  \"use_qalora\": false,\n  \"use_rslora\": false,\n  \"velora_config\": null\n}";

#define Q "model.layers.0.self_attn.q_proj"

/* NULL: there is no such file. */
static enum status load(const char *text, struct lora_config *out, struct err *err)
{
    err->text[0] = '\0';
    unlink(scratch_path(LORA_CONFIG_NAME)); /* some file systems wait when one is written over */
    if (text)
        scratch_write(scratch_path(LORA_CONFIG_NAME), text, strlen(text));
    return lora_config_load(scratch_dir, out, err);
}

static void gives(const char *text, const char *module, int32_t rank, double scale)
{
    struct lora_config c;
    struct err err;
    memset(&c, 0x5a, sizeof c);
    if (load(text, &c, &err) != OK)
        fail_msg("%s: %s", text, err.text);
    if (lora_config_rank(&c, module) != rank || lora_config_scale(&c, module) != scale)
        fail_msg("%s: %s has rank %d and scale %g, expected %d and %g", text, module,
                 lora_config_rank(&c, module), lora_config_scale(&c, module), rank, scale);
    lora_config_close(&c);
}

/* what: how the message goes on behind the file's name. */
static void refused(const char *text, const char *what)
{
    struct lora_config c;
    struct err err;
    char begin[PATH_MAX];
    memset(&c, 0x5a, sizeof c);
    if (load(text, &c, &err) != ERR_MODEL)
        fail_msg("%s: not refused", text ? text : "nothing");
    snprintf(begin, sizeof begin, "%s: %s", scratch_path(LORA_CONFIG_NAME), what);
    if (strncmp(err.text, begin, strlen(begin)) != 0)
        fail_msg("\"%s\": expected \"%s\"", err.text, begin);
    lora_config_close(&c); /* also after a failure */
}

static void test_as_written(void **state)
{
    (void)state;
    gives(whole, Q, 4, 2);
    gives("{" BASE "}", Q, 8, 2); /* the fewest keys */
    gives("{\"base_model_name_or_path\":\"x\",\"bias\":\"none\",\"fan_in_fan_out\":false,"
          "\"inference_mode\":true,\"init_lora_weights\":true,\"lora_alpha\":32,"
          "\"lora_dropout\":0.05,\"modules_to_save\":null,\"peft_type\":\"LORA\",\"r\":8,"
          "\"target_modules\":[\"q_proj\",\"v_proj\"],\"task_type\":\"CAUSAL_LM\"}",
          Q, 8, 4); /* of 2023 */
    gives(WITH("\"enable_lora\":null,\"merge_weights\":false"), Q, 8, 2);
}

static void test_numbers(void **state)
{
    (void)state;
    gives("{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1e6}", Q, 1, 1e6);
    gives("{\"peft_type\":\"LORA\",\"r\":4096,\"lora_alpha\":-1}", Q, 4096, -1.0 / 4096);
    gives("{\"peft_type\":\"LORA\",\"r\":8.0,\"lora_alpha\":0.5}", Q, 8, 0.0625);
    gives("{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":0}", Q, 3, 0);
    gives(WITH("\"use_rslora\":true"), Q, 8, 16 / sqrt(8));
    gives(WITH("\"use_rslora\":null"), Q, 8, 2);
    gives(WITH("\"use_rslora\":true,\"rank_pattern\":{\"q_proj\":4}"), Q, 4, 8);
}

/* One key of a pattern that gives 2, among modules of 8; does it fit? As
 * re.match(rf"(.*\.)?({key})$", name) does. */
static void fits(const char *key, const char *module, bool expected)
{
    char text[512];
    snprintf(text, sizeof text, WITH("\"rank_pattern\":{\"%s\":2}"), key);
    gives(text, module, expected ? 2 : 8, expected ? 8 : 2);
    snprintf(text, sizeof text, WITH("\"alpha_pattern\":{\"%s\":32}"), key);
    gives(text, module, 8, expected ? 4 : 2);
}

static void test_pattern_keys(void **state)
{
    (void)state;
    static const char *const good[] = {"q_proj", "self_attn.q_proj", "0.self_attn.q_proj",
                                       "layers.0.self_attn.q_proj", Q};
    static const char *const others[] = {"proj",
                                         "_proj",
                                         "..q_proj",
                                         "q_proj.",
                                         "q_pro",
                                         "Q_proj",
                                         "attn.q_proj",
                                         "self_attn",
                                         "model",
                                         "v_proj",
                                         "1."
                                         "q_proj",
                                         "0.q_proj",
                                         "q_proj.weight",
                                         "model." Q,
                                         "base_model." Q,
                                         "odel.layers.0.self_attn.q_proj",
                                         "self_attn.",
                                         "layers.1.self_attn.q_proj"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        fits(good[i], Q, true);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        fits(others[i], Q, false);
    fits("0.self_attn.q_proj", "model.layers.10.self_attn.q_proj", false);
    fits("q.proj", Q, true); /* a dot is any character there */
    fits("self_attn.q.proj", Q, true);
    fits("self.attn..._proj", Q, false);
    fits("10.self_attn.q_proj", "model.layers.10.self_attn.q_proj", true);
    fits("q_proj", "q_proj", true);
    fits("lm_head", "lm_head", true);
    fits("layers.0.self_attn.q_proj", "layers.0.self_attn.q_proj", true); /* without a head */
}

/* The first that fits, in the file's order, of each pattern by itself. */
static void test_pattern_order(void **state)
{
    (void)state;
    gives(WITH("\"rank_pattern\":{\"q_proj\":2,\"self_attn.q_proj\":4}"), Q, 2, 8);
    gives(WITH("\"rank_pattern\":{\"self_attn.q_proj\":4,\"q_proj\":2}"), Q, 4, 4);
    gives(WITH("\"rank_pattern\":{\"proj\":1,\"v_proj\":3,\"q_proj\":2,\"" Q "\":16}"), Q, 2, 8);
    gives(WITH("\"rank_pattern\":{\"q_proj\":4},\"alpha_pattern\":{\"q_proj\":4}"), Q, 4, 1);
    gives(WITH("\"rank_pattern\":{\"q_proj\":4},\"alpha_pattern\":{\"v_proj\":4}"), Q, 4, 4);
    gives(WITH("\"rank_pattern\":{\"q_proj\":4.0},\"alpha_pattern\":{\"q_proj\":2.5}"), Q, 4,
          0.625);
    gives(WITH("\"rank_pattern\":null,\"alpha_pattern\":null"), Q, 8, 2);
    gives(WITH("\"rank_pattern\":{\"q_proj\":4096},\"alpha_pattern\":{\"q_proj\":-1e6}"), Q, 4096,
          -1e6 / 4096);
}

static void test_other_kinds(void **state)
{
    (void)state;
    static const char *const flags[] = {"use_dora", "use_qalora", "use_bdlora", "lora_bias",
                                        "fan_in_fan_out"};
    static const char *const things[][2] = {{"layer_replication", "[[0,4],[2,6]]"},
                                            {"alora_invocation_tokens", "[1,2]"},
                                            {"trainable_token_indices", "[5]"},
                                            {"trainable_token_indices", "{\"embed\":[5]}"},
                                            {"arrow_config", "{}"},
                                            {"kasa_config", "{\"beta\":0.1}"},
                                            {"monteclora_config", "{}"}};
    char text[256], what[256];
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        snprintf(text, sizeof text, WITH("\"%s\":true"), flags[i]);
        snprintf(what, sizeof what, "%s is true, expected false", flags[i]);
        refused(text, what);
        snprintf(text, sizeof text, WITH("\"%s\":{\"a\":1}"), flags[i]);
        snprintf(what, sizeof what, "%s is an object, expected true or false", flags[i]);
        refused(text, what);
        snprintf(text, sizeof text, WITH("\"%s\":null"), flags[i]);
        gives(text, Q, 8, 2);
    }
    for (size_t i = 0; i < ARRAY_LEN(things); i++) {
        snprintf(text, sizeof text, WITH("\"%s\":%s"), things[i][0], things[i][1]);
        snprintf(what, sizeof what, "%s is an %s, expected null", things[i][0],
                 things[i][1][0] == '[' ? "array" : "object");
        refused(text, what);
    }
    refused(WITH("\"bias\":\"all\""), "bias is \"all\", expected \"none\"");
    refused(WITH("\"bias\":\"lora_only\""), "bias is \"lora_only\", expected \"none\"");
    refused(WITH("\"bias\":false"), "bias is false, expected a string");
    refused(WITH("\"use_rslora\":1"), "use_rslora is 1, expected true or false");
}

static void test_other_types(void **state)
{
    (void)state;
    static const char *const types[] = {"ADALORA", "LOHA", "IA3", "lora", "LORA ", "XLORA", ""};
    char text[256], what[256];
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        snprintf(text, sizeof text, "{\"peft_type\":\"%s\",\"r\":8,\"lora_alpha\":16}", types[i]);
        snprintf(what, sizeof what, "peft_type is \"%s\", expected \"LORA\"", types[i]);
        refused(text, what);
    }
    refused("{\"r\":8,\"lora_alpha\":16}", "peft_type is missing, expected \"LORA\"");
    refused("{\"peft_type\":7,\"r\":8,\"lora_alpha\":16}", "peft_type is 7, expected a string");
}

static void test_starts(void **state)
{
    (void)state;
    static const char *const fine[] = {"true",         "false",   "null",
                                       "\"gaussian\"", "\"eva\"", "\"orthogonal\""};
    static const char *const others[] = {"pissa", "pissa_niter_4", "olora", "loftq",
                                         "corda", "lora_ga",       "",      "Gaussian"};
    char text[256], what[256];
    for (size_t i = 0; i < ARRAY_LEN(fine); i++) {
        snprintf(text, sizeof text, WITH("\"init_lora_weights\":%s"), fine[i]);
        gives(text, Q, 8, 2);
    }
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        snprintf(text, sizeof text, WITH("\"init_lora_weights\":\"%s\""), others[i]);
        snprintf(what, sizeof what, "init_lora_weights is \"%s\", expected true", others[i]);
        refused(text, what);
    }
    refused(WITH("\"init_lora_weights\":1"), "init_lora_weights is 1, expected true");
    refused(WITH("\"init_lora_weights\":[]"), "init_lora_weights is an array, expected true");
}

static void test_wrong_numbers(void **state)
{
    (void)state;
#define R(more) "{\"peft_type\":\"LORA\",\"lora_alpha\":16" more "}"
#define ALPHA(more) "{\"peft_type\":\"LORA\",\"r\":8" more "}"
    static const char *const cases[][2] = {
        {R(""), "r is missing, expected an integer from 1 to 4096"},
        {R(",\"r\":null"), "r is null, expected an integer"},
        {R(",\"r\":0"), "r is 0, expected an integer"},
        {R(",\"r\":-8"), "r is -8, expected an integer"},
        {R(",\"r\":4097"), "r is 4097, expected an integer"},
        {R(",\"r\":4294967304"), "r is 4294967304, expected an integer"},
        {R(",\"r\":8.5"), "r is 8.5, expected an integer"},
        {R(",\"r\":\"8\""), "r is \"8\", expected an integer"},
        {R(",\"r\":true"), "r is true, expected an integer"},
        {ALPHA(""), "lora_alpha is missing, expected a number"},
        {ALPHA(",\"lora_alpha\":null"), "lora_alpha is null, expected a number"},
        {ALPHA(",\"lora_alpha\":\"16\""), "lora_alpha is \"16\", expected a number"},
        {ALPHA(",\"lora_alpha\":\"NaN\""), "lora_alpha is \"NaN\", expected a number"},
        {ALPHA(",\"lora_alpha\":1000001"), "lora_alpha is 1000001, expected a number"},
        {ALPHA(",\"lora_alpha\":-1e300"), "lora_alpha is -1e+300, expected a number"},
        {ALPHA(",\"lora_alpha\":[16]"), "lora_alpha is an array, expected a number"},
        {ALPHA(",\"lora_alpha\":NaN"), "line 1"}, /* as Python writes it */
        {ALPHA(",\"lora_alpha\":Infinity"), "line 1"},
        {ALPHA(",\"lora_alpha\":1e999"), "line 1"},
    };
#undef R
#undef ALPHA
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(cases[i][0], cases[i][1]);
}

static void test_wrong_patterns(void **state)
{
    (void)state;
    static const char *const expressions[] = {"^q_proj",
                                              "q_proj$",
                                              ".*q_proj",
                                              "layers.[01].q_proj",
                                              "q_proj|v_proj",
                                              "(q|v)_proj",
                                              "q_proj+",
                                              "q_?proj",
                                              "q_proj{1}",
                                              "a\\\\.q_proj",
                                              "model\\\\d+",
                                              "layers.*.q_proj",
                                              ")",
                                              "]",
                                              "}",
                                              ""};
    static const char *const values[][2] = {
        {"{\"q_proj\":0}", "q_proj is 0, expected an integer from 1 to 4096"},
        {"{\"q_proj\":-1}", "q_proj is -1, expected an integer"},
        {"{\"q_proj\":4097}", "q_proj is 4097, expected an integer"},
        {"{\"q_proj\":8.25}", "q_proj is 8.25, expected an integer"},
        {"{\"q_proj\":\"8\"}", "q_proj is \"8\", expected an integer"},
        {"{\"q_proj\":null}", "q_proj is null, expected an integer"},
        {"{\"v_proj\":8,\"q_proj\":[8]}", "q_proj is an array, expected an integer"},
        {"{\"q_proj\":8,\"q_proj\":9}", "line 1"},
        {"[]", "rank_pattern is an array, expected an object"},
        {"\"q_proj\"", "rank_pattern is \"q_proj\", expected an object"},
        {"8", "rank_pattern is 8, expected an object"},
    };
    char text[256];
    for (size_t i = 0; i < ARRAY_LEN(expressions); i++) {
        snprintf(text, sizeof text, WITH("\"rank_pattern\":{\"%s\":8}"), expressions[i]);
        refused(text, "rank_pattern has \"");
        snprintf(text, sizeof text, WITH("\"alpha_pattern\":{\"v\":1,\"%s\":8}"), expressions[i]);
        refused(text, "alpha_pattern has \"");
    }
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        snprintf(text, sizeof text, WITH("\"rank_pattern\":%s"), values[i][0]);
        refused(text, values[i][1]);
    }
    refused(WITH("\"alpha_pattern\":{\"q_proj\":\"8\"}"), "q_proj is \"8\", expected a number");
    refused(WITH("\"alpha_pattern\":{\"q_proj\":1e7}"), "q_proj is 1e+07, expected a number");
    refused(WITH("\"alpha_pattern\":{\"q_proj\":null}"), "q_proj is null, expected a number");
    refused(WITH("\"alpha_pattern\":[[\"q_proj\",8]]"), "alpha_pattern is an array, expected");
}

static void test_wrong_files(void **state)
{
    (void)state;
    static char path[PATH_MAX + 8];
    struct lora_config c;
    struct err err;
    refused("[]", "expected a JSON object");
    refused("\"LORA\"", "expected a JSON object");
    refused("null", "expected a JSON object");
    refused("", "line 1");
    refused("{" BASE, "line 1");
    refused("r: 8\n", "line 1");
    refused("{" BASE "}{}", "line 1");
    refused(NULL, "No such file");
    mkdir(scratch_path(LORA_CONFIG_NAME), 0777);
    assert_int_equal(lora_config_load(scratch_dir, &c, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, LORA_CONFIG_NAME));
    lora_config_close(&c);
    rmdir(scratch_path(LORA_CONFIG_NAME));
    memset(path, 'x', PATH_MAX - 8);
    assert_int_equal(lora_config_load(path, &c, &err), ERR_MODEL);
    assert_non_null(strstr(err.text, "path too long"));
    lora_config_close(&c);
    lora_config_close(&c); /* twice is fine */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_written),     cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_pattern_keys),   cmocka_unit_test(test_pattern_order),
        cmocka_unit_test(test_other_kinds),    cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_starts),         cmocka_unit_test(test_wrong_numbers),
        cmocka_unit_test(test_wrong_patterns), cmocka_unit_test(test_wrong_files),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
