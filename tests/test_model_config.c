/* A model's config.json: every number at and past its limits, both dialects, what is refused, and
 * what each family says where the file does not. */
#include "config/buf.h"
#include "config/model_config.h"
#include "tests/family_text.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

/* A valid config; a case replaces, removes (value NULL) or adds one member. */
static const char base_keys[] =
    "model_type=\"llama\"|hidden_size=64|num_hidden_layers=3|num_attention_heads=4|"
    "num_key_value_heads=1|head_dim=8|intermediate_size=176|vocab_size=259|"
    "max_position_embeddings=512|rms_norm_eps=1e-5|dtype=\"bfloat16\"|tie_word_embeddings=true|"
    "rope_theta=500000|attention_bias=false|mlp_bias=false|hidden_act=\"silu\"";
static const char rope_keys[] = "rope_type=\"llama3\"|rope_theta=500000|factor=8|low_freq_factor=1|"
                                "high_freq_factor=4|original_max_position_embeddings=64";

static void put_object(struct buf *b, const char *members, const char *key, const char *value)
{
    bool done = false;
    for (const char *at = members; *at; at += *at == '|') {
        int name = (int)strcspn(at, "="), all = (int)strcspn(at, "|");
        bool same = (int)strlen(key) == name && memcmp(key, at, (size_t)name) == 0;
        const char *comma = b->data[b->len - 1] == '{' ? "" : ",";
        done = done || same;
        if (!same)
            buf_printf(b, "%s\"%.*s\":%.*s", comma, name, at, all - name - 1, at + name + 1);
        else if (value)
            buf_printf(b, "%s\"%s\":%s", comma, key, value);
        at += all;
    }
    if (!done && value)
        buf_printf(b, ",\"%s\":%s", key, value);
    buf_puts(b, "}");
}

/* dialect: the key that holds the rope object, "" for none. */
static enum status parse_config(const char *dialect, bool inner, const char *key, const char *value,
                                struct model_config *m, struct err *err)
{
    struct buf b;
    buf_init(&b, 4096);
    if (*dialect) {
        buf_printf(&b, "{\"%s\":{", dialect);
        put_object(&b, rope_keys, inner ? key : "", inner ? value : NULL);
    } else {
        buf_puts(&b, "{");
    }
    put_object(&b, base_keys, inner ? "" : key, inner ? NULL : value);
    assert_false(b.failed);
    struct model_config before;
    memset(m, 0xab, sizeof *m);
    before = *m;
    enum status st = model_config_parse(b.data, b.len, "config.json", m, err);
    if (st != OK)
        assert_memory_equal(&before, m, sizeof before); /* untouched */
    buf_free(&b);
    return st;
}

static void refused(bool inner, const char *key, const char *value, const char *shown)
{
    struct model_config m;
    struct err err = {""};
    char wanted[128];
    if (parse_config(inner ? "rope_parameters" : "", inner, key, value, &m, &err) != ERR_MODEL)
        fail_msg("%s = %s was accepted", key, value ? value : "(missing)");
    snprintf(wanted, sizeof wanted, "config.json: %s is %s, expected ", key, shown);
    assert_contains(err.text, wanted);
}

static void accepted(bool inner, const char *key, const char *value)
{
    struct model_config m;
    struct err err = {""};
    if (parse_config(inner ? "rope_parameters" : "", inner, key, value, &m, &err) != OK)
        fail_msg("%s = %s: %s", key, value ? value : "(missing)", err.text);
}

static void test_config_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *key, *below, *min, *max, *above;
        const char *shown_below, *shown_above; /* NULL: as given */
        bool inner, required, real;
    } fields[] = {
        {"hidden_size", "0", "1", "131072", "131073", 0, 0, 0, 1, 0},
        {"num_hidden_layers", "0", "1", "1024", "1025", 0, 0, 0, 1, 0},
        {"num_attention_heads", "0", "1", "4096", "4097", 0, 0, 0, 1, 0},
        {"num_key_value_heads", "0", "1", "4", "4097", 0, 0, 0, 0, 0},
        {"head_dim", "1", "2", "512", "513", 0, 0, 0, 0, 0},
        {"intermediate_size", "0", "1", "1048576", "1048577", 0, 0, 0, 1, 0},
        {"vocab_size", "0", "1", "1048576", "1048577", 0, 0, 0, 1, 0},
        {"max_position_embeddings", "0", "1", "16777216", "16777217", 0, 0, 0, 0, 0},
        {"rms_norm_eps", "-0.5", "0", "1", "1.5", 0, 0, 0, 0, 1},
        {"rope_theta", "0.5", "1", "1e12", "1.5e12", 0, "1.5e+12", 0, 0, 1},
        {"bos_token_id", "-1", "0", "258", "259", 0, 0, 0, 0, 0},
        {"eos_token_id", "-1", "0", "258", "259", 0, 0, 0, 0, 0},
        {"factor", "0.5", "1", "1e6", "1.5e6", 0, "1.5e+06", 1, 1, 1},
        {"low_freq_factor", "1e-7", "1e-6", "3.9", "1.5e6", "1e-07", "1.5e+06", 1, 1, 1},
        {"high_freq_factor", "1e-7", "1.1", "1e6", "1.5e6", "1e-07", "1.5e+06", 1, 1, 1},
        {"original_max_position_embeddings", "0", "1", "16777216", "16777217", 0, 0, 1, 1, 0},
    };
    static const char *const wrong[][2] = {
        {"\"7\"", "\"7\""}, {"true", "true"}, {"{}", "an object"}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const char *key = fields[i].key;
        bool in = fields[i].inner;
        const char *below = fields[i].shown_below, *above = fields[i].shown_above;
        refused(in, key, fields[i].below, below ? below : fields[i].below);
        refused(in, key, fields[i].above, above ? above : fields[i].above);
        accepted(in, key, fields[i].min);
        accepted(in, key, fields[i].max);
        for (size_t j = 0; j < ARRAY_LEN(wrong); j++)
            refused(in, key, wrong[j][0], wrong[j][1]);
        if (!fields[i].real) {
            char whole[32];
            snprintf(whole, sizeof whole, "%s.0", fields[i].min);
            accepted(in, key, whole); /* as some converters write them */
            refused(in, key, "8.5", "8.5");
            refused(in, key, "4294967304", "4294967304"); /* 8 in the low 32 bits */
        }
        if (fields[i].required) {
            refused(in, key, NULL, "missing");
            refused(in, key, "null", "null");
        } else {
            accepted(in, key, NULL);
            accepted(in, key, "null");
        }
    }
}

static void test_config_refusals(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"model_type", "\"gptj\"", "\"gptj\""},
        {"model_type", "7", "7"},
        {"model_type", NULL, "missing"},
        {"attention_bias", "true", "true"},
        {"mlp_bias", "true", "true"},
        {"mlp_bias", "1", "1"},
        {"hidden_act", "\"gelu\"", "\"gelu\""},
        {"quantization_config", "[]", "an array"},
        {"sliding_window", "4096", "4096"},
        {"tie_word_embeddings", "\"yes\"", "\"yes\""},
        {"dtype", "\"float8_e4m3fn\"", "\"float8_e4m3fn\""},
        {"dtype", "16", "16"},
        {"num_key_value_heads", "3", "3"}, /* does not divide 4 */
        {"head_dim", "7", "7"},
        {"rope_scaling", "[]", "an array"},
        {"partial_rotary_factor", "0.5", "0.5"},
        {"eos_token_id", "[2, 259]", "an array with 259"},
        {"eos_token_id", "[2, \"a\"]", "an array with a string"},
        {"eos_token_id", "[0,1,2,3,4,5,6,7,8]", "an array"},
    };
    struct model_config m;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refused(false, cases[i][0], cases[i][1], cases[i][2]);
    refused(true, "rope_type", "\"dynamic\"", "\"dynamic\"");
    refused(true, "rope_type", "3", "3");
    refused(true, "partial_rotary_factor", "0.25", "0.25");
    accepted(true, "partial_rotary_factor", "1.0");
    refused(true, "high_freq_factor", "1", "1"); /* not above low_freq_factor */
    accepted(true, "rope_type", "null");         /* the rest then does not matter */
    accepted(false, "quantization_config", "null");
    /* what is worked out from hidden_size and heads has the same limits */
    static const char text[] =
        "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":%d,\"intermediate_size\":8,\"vocab_size\":9}";
    static const int shapes[][3] = {{1024, 2, OK},
                                    {1028, 2, ERR_MODEL},
                                    {30, 2, ERR_MODEL},
                                    {64, 3, ERR_MODEL},
                                    {4, 4, ERR_MODEL}};
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        char full[256];
        snprintf(full, sizeof full, text, shapes[i][0], shapes[i][1]);
        enum status st = model_config_parse(full, strlen(full), "config.json", &m, &err);
        assert_int_equal(st, shapes[i][2]);
        if (st != OK)
            assert_contains(err.text, "config.json: head_dim is missing, expected ");
    }
    assert_int_equal(model_config_parse("[]", 2, "f", &m, &err), ERR_MODEL);
    assert_int_equal(model_config_parse("{", 1, "f", &m, &err), ERR_MODEL);
    assert_contains(err.text, "f: line 1");
}

/* transformers' class says whether a model has a head; and attention to what follows is refused. */
static void test_class(void **state)
{
    (void)state;
    static const struct {
        const char *architectures; /* NULL: not there */
        bool headless;
    } cases[] = {
        {NULL, false},
        {"[\"LlamaForCausalLM\"]", false},
        {"[\"LlamaModel\"]", true},
        {"[\"LlamaModel\",\"LlamaForCausalLM\"]", true}, /* the first says it */
        {"[\"LlamaForCausalLM\",\"LlamaModel\"]", false},
        {"[\"LlamaModelForCausalLM\"]", false},
        {"[\"Model\"]", true},
        {"[\"odel\"]", false},
        {"[\"Supermodel\"]", false},
        {"[]", false},
        {"[7]", false},
        {"\"LlamaModel\"", false},
        {"null", false},
    };
    struct model_config m;
    struct err err = {""};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *value = cases[i].architectures;
        if (parse_config("", false, "architectures", value, &m, &err) != OK)
            fail_msg("case %zu: %s", i, err.text);
        if (m.headless != cases[i].headless || m.pooling)
            fail_msg("case %zu: headless %d, pooling %d", i, m.headless, m.pooling);
    }
    accepted(false, "is_causal", "true");
    accepted(false, "is_causal", "null");
    refused(false, "is_causal", "false", "false");
    refused(false, "is_causal", "0", "0");
}

/* With vectors it is another model, of which no weight is a head. */
static void test_pooled(void **state)
{
    (void)state;
    struct model_config m, before;
    struct err err = {""};
    assert_int_equal(parse_config("", false, "tie_word_embeddings", "false", &m, &err), OK);
    assert_false(m.tied || m.pooling);
    before = m;
    model_config_pool(&m);
    assert_true(m.tied && m.pooling);
    assert_true(m.hash != before.hash);
    before.tied = before.pooling = true;
    before.hash = m.hash;
    assert_memory_equal(&m, &before, sizeof m); /* and nothing else */
}

static void test_config_dialects(void **state)
{
    (void)state;
    struct model_config a, b;
    struct err err;
    assert_int_equal(parse_config("rope_parameters", false, "", NULL, &a, &err), OK);
    assert_int_equal(parse_config("rope_scaling", false, "", NULL, &b, &err), OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.rope.kind, ROPE_LLAMA3);
    assert_true(a.rope.theta == 500000 && a.rope.factor == 8 && a.rope.high_freq_factor == 4);
    assert_int_equal(a.rope.original_max_position, 64);
    assert_int_equal(a.heads, 4);
    assert_int_equal(a.dtype, DTYPE_BF16);
    assert_true(a.tied);
    /* torch_dtype and "type" are the old names; theta stands outside the old rope object */
    static const char *const texts[] = {
        "{\"dtype\":\"float16\",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7.5}"
        ",",
        "{\"torch_dtype\":\"float16\",\"rope_theta\":7.5,\"rope_scaling\":{\"type\":\"default\"},"};
    static const char rest[] =
        "\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":4,\"intermediate_size\":8,\"vocab_size\":9}";
    struct model_config *const out[] = {&a, &b};
    for (size_t i = 0; i < 2; i++) {
        char full[512];
        int n = snprintf(full, sizeof full, "%s%s", texts[i], rest);
        assert_int_equal(model_config_parse(full, (size_t)n, "f", out[i], &err), OK);
    }
    assert_memory_equal(&a, &b, sizeof a);
    assert_int_equal(a.dtype, DTYPE_F16);
    assert_true(a.rope.theta == 7.5);
    assert_int_equal(a.kv_heads, 4); /* defaults */
    assert_int_equal(a.head_dim, 16);
    assert_int_equal(a.bos, -1);
    /* both at once, as transformers' convert_rope_params_to_dict has it */
    static const char both[] =
        "{\"rope_theta\":9,\"rope_parameters\":{\"rope_theta\":7.5},\"rope_scaling\":%s,%s";
    static const char *const scaling[] = {"{\"type\":\"default\"}", "{}", "null"};
    for (size_t i = 0; i < ARRAY_LEN(scaling); i++) {
        char full[512];
        int n = snprintf(full, sizeof full, both, scaling[i], rest);
        assert_int_equal(model_config_parse(full, (size_t)n, "f", &b, &err), OK);
        assert_true(b.rope.theta == (i == 0 ? 9 : 7.5));
    }
    uint64_t hash = a.hash;
    assert_int_equal(parse_config("rope_scaling", true, "factor", "9", &b, &err), OK);
    assert_true(b.hash != hash);
}

/* ---- families ---- */

#define MIXED(kind, experts, chosen, among)                                                        \
    {                                                                                              \
        MIXTURE_##kind, experts, chosen, among, .scale = 1                                         \
    }

/* What the configuration classes of transformers 5.23 hold for these keys when nothing else is
 * given (LlamaConfig, MistralConfig, MixtralConfig, Phi3Config, Qwen2Config, Qwen3Config,
 * Qwen3MoeConfig), and what their attention has. */
static void test_family_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t kv_heads, head_dim, max_position, window;
        bool qkv_bias, head_norm;
        double theta, norm_eps;
        int32_t mlp;
        struct mixture_config mixture;
    } families[] = {
        {"llama", 64, 8, 2048, 0, false, false, 1e4, 1e-6, 8, {0}},
        {"mistral", 8, 8, 131072, 4096, false, false, 1e4, 1e-6, 8, {0}},
        {"mixtral", 8, 8, 131072, 0, false, false, 1e6, 1e-5, 8, MIXED(MIXTRAL, 8, 2, true)},
        {"phi3", 64, 8, 4096, 0, false, false, 1e4, 1e-5, 8, {0}},
        {"qwen2_vl", 8, 8, 32768, 0, true, false, 1e6, 1e-5, 8, {0}},
        {"qwen2_5_vl", 8, 8, 32768, 0, true, false, 1e6, 1e-5, 8, {0}},
        {"qwen2", 32, 8, 32768, 0, true, false, 1e4, 1e-6, 8, {0}},
        {"qwen3", 32, 128, 32768, 0, false, true, 1e4, 1e-6, 8, {0}},
        {"qwen3_moe", 4, 8, 32768, 0, false, true, 1e4, 1e-6, 768, MIXED(QWEN, 128, 8, false)}};
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        struct model_config m;
        struct err err = {""};
        if (parse_family(families[i].family, "", &m, &err) != OK)
            fail_msg("%s: %s", families[i].family, err.text);
        assert_string_equal(m.model_type, families[i].family);
        assert_int_equal(m.kv_heads, families[i].kv_heads);
        assert_int_equal(m.head_dim, families[i].head_dim);
        assert_int_equal(m.max_position, families[i].max_position);
        assert_int_equal(m.window, families[i].window);
        assert_int_equal(m.qkv_bias, families[i].qkv_bias);
        assert_int_equal(m.head_norm, families[i].head_norm);
        assert_true(m.norm_eps == (float)families[i].norm_eps && !m.tied);
        assert_true(m.rope.theta == families[i].theta && m.mlp == families[i].mlp);
        assert_memory_equal(&m.mixture, &families[i].mixture, sizeof m.mixture);
        assert_int_equal(m.rope.kind, ROPE_DEFAULT);
        assert_int_equal(m.dtype, DTYPE_F32);
        /* null: no default, but one KV head for each query head */
        assert_int_equal(
            parse_family(families[i].family, ",\"num_key_value_heads\":null", &m, &err), OK);
        assert_int_equal(m.kv_heads, 64);
    }
}

/* Which layers slide, and how far they see. */
static void test_family_windows(void **state)
{
    (void)state;
#define TYPES(a, b) ",\"layer_types\":[\"" a "\",\"" a "\",\"" a "\",\"" b "\"]"
#define SLIDES ",\"use_sliding_window\":true"
    static const struct {
        const char *family, *more;
        int32_t window;
        uint32_t slides; /* of the four layers */
    } cases[] = {
        {"mistral", ",\"sliding_window\":null", 0, 0},
        {"mistral", ",\"sliding_window\":9", 9, 15},
        {"mistral", TYPES("full_attention", "full_attention"), 4096, 15}, /* it does not look */
        {"qwen2", ",\"sliding_window\":9", 0, 0},
        {"qwen2", ",\"sliding_window\":9" SLIDES, 0, 0}, /* from layer 28 on */
        {"qwen2", ",\"sliding_window\":9,\"max_window_layers\":3" SLIDES, 9, 8},
        {"qwen2", ",\"sliding_window\":9,\"max_window_layers\":1" SLIDES, 9, 14},
        {"qwen2", ",\"sliding_window\":9,\"max_window_layers\":4" SLIDES, 0, 0},
        {"qwen2", ",\"sliding_window\":null,\"max_window_layers\":0" SLIDES, 0, 0},
        {"qwen3", ",\"max_window_layers\":0" SLIDES, 4096, 15},
        {"qwen3", SLIDES TYPES("full_attention", "sliding_attention"), 4096, 8},
        {"qwen3", SLIDES TYPES("full_attention", "full_attention"), 0, 0},
        {"qwen3", TYPES("full_attention", "full_attention"), 0, 0},
        {"qwen3_moe", ",\"sliding_window\":9,\"max_window_layers\":28", 0, 0},
        {"qwen3_moe", ",\"sliding_window\":9,\"max_window_layers\":28" SLIDES, 9, 15},
        {"mixtral", ",\"sliding_window\":null", 0, 0},
        {"mixtral", ",\"sliding_window\":9", 9, 15},
        {"phi3", ",\"sliding_window\":null", 0, 0},
        {"phi3", ",\"sliding_window\":2047", 2047, 15},
        {"qwen2_5_vl", ",\"sliding_window\":9,\"max_window_layers\":2" SLIDES, 9, 12},
        {"smollm3", ",\"sliding_window\":9", 0, 0},
        {"smollm3", SLIDES, 0, 0},
        {"smollm3", ",\"sliding_window\":9" SLIDES, 9, 8}, /* those that do not turn */
        {"smollm3", ",\"sliding_window\":9,\"no_rope_layers\":[0,1,0,1]" SLIDES, 9, 5},
        {"gemma2", "", 4096, 5},
        {"gemma2", ",\"sliding_window\":9", 9, 5},
        {"gemma2", TYPES("full_attention", "sliding_attention"), 4096, 8},
        {"gemma3_text", "", 4096, 15}, /* the first full one is the sixth */
        {"gemma3_text", ",\"sliding_window_pattern\":2", 4096, 5},
        {"gemma3_text", ",\"sliding_window_pattern\":1", 0, 0},
        {"gemma3_text", TYPES("sliding_attention", "full_attention"), 4096, 7},
    };
    static const char *const refused[][3] = {
        {"qwen3", TYPES("full_attention", "linear_attention"),
         "layer_types[3] is linear_attention, expected full_attention or sliding_attention"},
        {"mistral", TYPES("chunked_attention", "full_attention"), "layer_types[0] is chunked_att"},
        {"qwen2", ",\"layer_types\":[\"full_attention\"]",
         "layer_types is an array, expected a list"},
        {"qwen2", ",\"layer_types\":7", "layer_types is 7, expected a list"},
        {"qwen2", ",\"layer_types\":[1,2,3,4]", "layer_types[0] is no string"},
        {"qwen3", TYPES("full_attention", "sliding_attention"),
         "use_sliding_window is missing, expe"},
        {"mistral", ",\"sliding_window\":0", "sliding_window is 0, expected an integer from 1"},
        {"qwen2", ",\"use_sliding_window\":1", "use_sliding_window is 1, expected true or false"},
        {"qwen2", ",\"max_window_layers\":-1", "max_window_layers is -1, expected an integer"},
    };
    struct model_config m;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (parse_family(cases[i].family, cases[i].more, &m, &err) != OK)
            fail_msg("%s%s: %s", cases[i].family, cases[i].more, err.text);
        if (m.window != cases[i].window || m.slides[0] != cases[i].slides)
            fail_msg("%s%s: window %d, layers %x", cases[i].family, cases[i].more, m.window,
                     (unsigned)m.slides[0]);
    }
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (parse_family(refused[i][0], refused[i][1], &m, &err) != ERR_MODEL)
            fail_msg("%s%s was accepted", refused[i][0], refused[i][1]);
        assert_contains(err.text, refused[i][2]);
    }
}

/* The context that a stretched rotation reaches, and YaRN's factor (0.1 ln s + 1) by its formula.
 */
static void test_stretched(void **state)
{
    (void)state;
    static const struct {
        const char *family, *rope;
        enum rope_kind kind;
        int32_t original, longest;
        double factor, attention;
    } cases[] = {
        {"llama", "\"type\":\"linear\",\"factor\":2.5", ROPE_LINEAR, 0, 5120, 2.5, 0},
        {"qwen2", "\"type\":\"yarn\",\"factor\":4", ROPE_YARN, 32768, 131072, 4, 1.1386294361},
        {"qwen3", "\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":1024",
         ROPE_YARN, 1024, 4096, 4, 1.1386294361},
        {"qwen3", "\"type\":\"yarn\",\"factor\":8,\"attention_factor\":1", ROPE_YARN, 32768, 262144,
         8, 1},
        {"qwen3", "\"type\":\"yarn\",\"factor\":1", ROPE_YARN, 32768, 32768, 1, 1},
        {"qwen3", "\"type\":\"yarn\",\"factor\":16,\"mscale\":1,\"mscale_all_dim\":0.5", ROPE_YARN,
         32768, 524288, 16, 1.2772588722 / 1.1386294361},
        {"mistral", "\"type\":\"yarn\",\"factor\":1000", ROPE_YARN, 131072, 1 << 24, 1000,
         1.6907755279},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config m;
        struct err err = {""};
        char more[256];
        snprintf(more, sizeof more, ",\"rope_scaling\":{%s}", cases[i].rope);
        if (parse_family(cases[i].family, more, &m, &err) != OK)
            fail_msg("%s: %s", cases[i].rope, err.text);
        assert_int_equal(m.rope.kind, cases[i].kind);
        assert_int_equal(m.rope.original_max_position, cases[i].original);
        assert_int_equal(m.max_position, cases[i].longest);
        assert_true(m.rope.factor == cases[i].factor);
        if (fabs(m.rope.attention_factor - cases[i].attention) > 1e-9)
            fail_msg("%s: %.12g", cases[i].rope, m.rope.attention_factor);
    }
}

static void test_nearest_family(void **state)
{
    (void)state;
    struct model_config m;
    struct err err = {""};
    assert_int_equal(parse_family("mistal", "", &m, &err), ERR_MODEL);
    assert_contains(err.text, "expected mistral (the nearest) or another of llama, ");
    assert_int_equal(parse_family("quite_another", "", &m, &err), ERR_MODEL);
    assert_contains(err.text, "expected llama, mistral, ");
}

static void test_family_refusals(void **state)
{
    (void)state;
    static const char *const refused[][3] = {
        {"Qwen2", "",
         "model_type is \"Qwen2\", expected qwen2 (the nearest) or another of llama, mistral, "
         "mistral3, ministral3, mistral4, mixtral, iquestcoder, smollm3, seed_oss, ernie4_5, "
         "ernie4_5_moe, exaone4, exaone_moe, glm, glm4, granite, olmo2, olmo3, olmoe, minimax_m2, "
         "phi3, qwen2, qwen2_vl, qwen2_5_vl, qwen3, qwen3_vl, qwen3_moe, qwen2_moe, qwen3_next, "
         "qwen3_5, qwen3_5_moe, glm4_moe, solar_open, dots1, glm4_moe_lite, deepseek_v2, "
         "deepseek_v3, kimi_k2, youtu, gpt_oss, gemma, gemma2, gemma3, gemma4 or gemma4_unified"},
        {"llama", ",\"partial_rotary_factor\":0.75", "partial_rotary_factor is 0.75, expected 1"},
        {"phi3", ",\"partial_rotary_factor\":1.5", "is 1.5, expected a number above 0, to 1"},
        {"phi3", ",\"partial_rotary_factor\":0", "is 0, expected a number above 0, to 1"},
        {"phi3", ",\"partial_rotary_factor\":0.9", "by which an even number of elements turns"},
        {"phi3", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1]}",
         "long_factor is missing, expected a list of 4 numbers"},
        {"phi3",
         ",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,0,1]}",
         "long_factor is an array, expected a list of 4 numbers"},
        {"phi3",
         ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1],\"long_factor\":[1,1,1]"
         "}",
         "short_factor is an array, expected a list of 4 numbers"},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"su\"}", "type is \"su\", expected default"},
        {"qwen3_moe", ",\"num_experts\":0", "num_experts is 0, expected an integer from 1"},
        {"qwen3_moe", ",\"num_experts\":4", "num_experts_per_tok is missing, expected at most as"},
        {"mixtral", ",\"num_experts_per_tok\":9", "is 9, expected at most as many as there are "},
        {"qwen3_moe", ",\"mlp_only_layers\":7", "mlp_only_layers is 7, expected an empty list"},
        {"qwen3_moe", ",\"mlp_only_layers\":[2]", "layers without experts are not supported"},
        {"qwen3_moe", ",\"decoder_sparse_step\":2", "decoder_sparse_step is 2, expected 1"},

        {"qwen3", ",\"attention_bias\":true", "attention_bias is true, expected false"},
        {"mistral", ",\"attention_bias\":true", "attention_bias is true, expected false"},
        {"qwen2", ",\"mlp_bias\":true", "mlp_bias is true, expected false"},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}",
         "type is \"dynamic\", expected default, linear, llama3, longrope or yarn"},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"yarn\"}", "factor is missing, expected a number"},
        {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}",
         "factor is 0.5, expected a number from 1"},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0.5}",
         "beta_fast is 0.5, expected at least beta_slow"},
        {"qwen2", ",\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}",
         "rope_theta is missing, expected more than 1"},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":0}",
         "truncate is 0, expected true or false"},

        {"gemma", ",\"hidden_act\":\"silu\"", "\"silu\", expected \"gelu_pytorch_tanh\""},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"mrope\"}", "type is \"mrope\", expected default"},
        {"gemma2", ",\"hidden_activation\":\"silu\"", "\"silu\", expected \"gelu_pytorch_tanh\""},
        {"gemma2", ",\"attn_logit_softcapping\":-5", "attn_logit_softcapping is -5, expected"},
        {"gemma2", ",\"query_pre_attn_scalar\":0", "query_pre_attn_scalar is 0, expected a number"},
        {"gemma3_text", ",\"attn_logit_softcapping\":50", "expected null"},
        {"gemma2", ",\"attn_logit_softcapping\":1001", "1001, expected"},
        {"qwen2", ",\"sliding_window\":null" SLIDES TYPES("full_attention", "sliding_attention"),
         "sliding_window is null, expected a number, since some layers slide"},
        {"gemma3_text", ",\"use_bidirectional_attention\":true", "is true, expected false"},
        {"gemma2", ",\"sliding_window\":null", "expected a number, since some layers slide"},
        {"gemma3_text", ",\"sliding_window_pattern\":0", "sliding_window_pattern is 0, expected"},
        {"gemma", ",\"sliding_window\":9", "sliding_window is 9, expected null"},
    };
    struct model_config m;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        if (parse_family(refused[i][0], refused[i][1], &m, &err) != ERR_MODEL)
            fail_msg("%s%s was accepted", refused[i][0], refused[i][1]);
        assert_contains(err.text, refused[i][2]);
    }
    assert_int_equal(parse_family("gptj", "", &m, &err), ERR_MODEL);
    assert_null(strstr(err.text, "nearest"));
    assert_int_equal(parse_family("qwen2", ",\"attention_bias\":false", &m, &err), OK);
    assert_true(m.qkv_bias); /* transformers' class does not ask */
}

/* What Gemma's models have beside the others; defaults as transformers' GemmaConfig, Gemma2Config
 * and Gemma3TextConfig have them. */
static void test_gemma(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int32_t kv_heads, max_position;
        enum post_norms post_norms;
        bool head_norm;
        float scale, softcap, final_softcap;
        double theta, local_theta;
    } cases[] = {
        {"gemma", 16, 8192, POST_NORMS_NONE, false, 0.0625f, 0, 0, 1e4, 1e4},
        {"gemma2", 4, 8192, POST_NORMS_GEMMA, false, 0.0625f, 50, 30, 1e4, 1e4},
        {"gemma3_text", 4, 131072, POST_NORMS_GEMMA, true, 0.0625f, 0, 0, 1e6, 1e4},
    };
    struct model_config m;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (parse_family(cases[i].family, ",\"dtype\":\"bfloat16\"", &m, &err) != OK)
            fail_msg("%s: %s", cases[i].family, err.text);
        assert_true(m.gelu && m.norm_offset && m.tied && m.head_dim == 256);
        assert_int_equal(m.kv_heads, cases[i].kv_heads);
        assert_int_equal(m.max_position, cases[i].max_position);
        assert_true(m.post_norms == cases[i].post_norms && m.head_norm == cases[i].head_norm);
        assert_true(m.attention_scale == cases[i].scale);
        assert_true(m.attention_softcap == cases[i].softcap);
        assert_true(m.final_softcap == cases[i].final_softcap);
        assert_true(m.rope.theta == cases[i].theta && m.local_rope.theta == cases[i].local_theta);
        assert_true(m.embed_scale == 22.625f); /* sqrt(512) in bf16 */
    }
    ok_family("gemma", ",\"hidden_act\":\"gelu\"", &m);
    assert_true(m.embed_scale == 22.627417f);
    ok_family("gemma2",
              ",\"query_pre_attn_scalar\":144,\"attn_logit_softcapping\":null,"
              "\"final_logit_softcapping\":12.5",
              &m);
    assert_true(m.attention_scale == (float)(1 / 12.0) && m.attention_softcap == 0);
    assert_true(m.final_softcap == 12.5f);
    ok_family("llama", "", &m);
    assert_true(m.embed_scale == 1 && !m.gelu && !m.norm_offset && !m.post_norms && !m.tied);
}

/* As Phi-3-mini-128k and Phi-4-mini have it: the original length beside the rotation. */
static void test_longrope(void **state)
{
    (void)state;
    static const char rope[] =
        ",\"max_position_embeddings\":131072,\"original_max_position_embeddings\":8192,"
        "\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"longrope\","
        "\"short_factor\":[1,2],\"long_factor\":[3,4.5]}";
    struct model_config m;
    ok_family("phi3", rope, &m);
    assert_true(m.rope.kind == ROPE_LONG && m.rope.original_max_position == 8192);
    assert_int_equal(m.max_position, 131072);
    assert_int_equal(m.rotary_dim, 4);
    assert_true(m.rope.short_factor[1] == 2 && m.rope.long_factor[1] == 4.5f);
    assert_true(fabs(m.rope.attention_factor - 1.1435439) < 1e-6); /* sqrt(1 + ln 16 / ln 8192) */
    ok_family("phi3",
              ",\"max_position_embeddings\":131072,\"rope_scaling\":{\"type\":\"su\","
              "\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,1],\"attention_factor\":1.5}",
              &m);
    assert_true(m.rope.original_max_position == 4096 && m.rope.attention_factor == 1.5);
    assert_true(m.rotary_dim == 8);
}

/* Two rotations, in either dialect; the length is the stretched one already. */
static void test_two_rotations(void **state)
{
    (void)state;
    static const char *const dialects[] = {
        ",\"rope_theta\":5e5,\"rope_local_base_freq\":7e3,"
        "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}",
        ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,"
        "\"rope_theta\":5e5},\"sliding_attention\":{\"rope_type\":\"default\","
        "\"rope_theta\":7e3}}"};
    struct model_config m;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(dialects); i++) {
        ok_family("gemma3_text", dialects[i], &m);
        assert_true(m.rope.kind == ROPE_LINEAR && m.rope.factor == 8 && m.rope.theta == 5e5);
        assert_true(m.local_rope.kind == ROPE_DEFAULT && m.local_rope.theta == 7e3);
        assert_int_equal(m.max_position, 131072);
    }
    assert_int_equal(parse_family("qwen3", dialects[1], &m, &err), ERR_MODEL);
    assert_contains(err.text, "rope_parameters is an object, expected one rotation for all layers");
}

/* A model of texts inside one that also sees. */
static void test_wrapped(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"torch_dtype\":\"bfloat16\","
        "\"vision_config\":{\"hidden_size\":1152},\"text_config\":{\"hidden_size\":2560,"
        "\"intermediate_size\":10240,\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,"
        "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024}}";
    struct model_config m;
    struct err err;
    ok_config(text, &m);
    assert_int_equal(m.hidden, 2560);
    assert_int_equal(m.layers, 34);
    assert_true(m.heads == 8 && m.kv_heads == 4 && m.head_dim == 256 && m.vocab == 262208);
    assert_true(m.eos_count == 2 && m.eos[1] == 106 && m.dtype == DTYPE_BF16);
    assert_true(m.window == 1024 && model_config_slides(&m, 4) && !model_config_slides(&m, 5));
    assert_true(m.embed_scale == 50.5f && m.tied);
    static const char qwen[] =
        "{\"model_type\":\"qwen3_vl\",\"tie_word_embeddings\":true,\"text_config\":{"
        "\"model_type\":\"qwen3_vl_text\",\"hidden_size\":64,\"intermediate_size\":8,"
        "\"num_attention_heads\":32,\"num_hidden_layers\":2,\"vocab_size\":99,\"rope_scaling\":{"
        "\"mrope_interleaved\":true,\"mrope_section\":[24,20,20],\"rope_type\":\"default\"}}}";
    ok_config(qwen, &m);
    assert_true(m.tied && m.head_norm && m.head_dim == 128 && m.kv_heads == 32);
    assert_true(m.max_position == 128000 && m.rope.theta == 5e5 && m.rope.kind == ROPE_DEFAULT);
    ok_family("qwen2_5_vl", ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,1]}", &m);
    assert_true(m.rope.kind == ROPE_DEFAULT && m.rope.theta == 1e6);
    static const char none[] = "{\"model_type\":\"gemma3\",\"text_config\":7}";
    assert_int_equal(model_config_parse(none, strlen(none), "config.json", &m, &err), ERR_MODEL);
    assert_contains(err.text, "text_config is 7, expected an object");
    static const char other[] =
        "{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral\"}}";
    assert_int_equal(model_config_parse(other, strlen(other), "config.json", &m, &err), ERR_MODEL);
    assert_contains(err.text, "model_type is \"ministral\", expected \"mistral\" or "
                              "\"ministral3\" or \"mistral4\"");
}

static enum status load(const char *config, const char *generation, struct model_config *m,
                        struct generation_defaults *d, struct err *err)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,"
                     "\"num_attention_heads\":4,\"intermediate_size\":8,\"vocab_size\":99%s}",
                     config);
    scratch_write(scratch_path("config.json"), text, (size_t)n);
    remove(scratch_path("generation_config.json"));
    if (generation)
        scratch_write(scratch_path("generation_config.json"), generation, strlen(generation));
    return model_config_load(scratch_dir, m, d, err);
}

static void test_no_config(void **state)
{
    (void)state;
    struct model_config m;
    struct err err;
    remove(scratch_path("config.json"));
    assert_int_equal(model_config_load(scratch_dir, &m, NULL, &err), ERR_MODEL);
    assert_contains(err.text, "no config.json in it; expected a directory as Hugging Face");
    assert_null(strstr(err.text, "GGUF"));
    const char *gguf = scratch_path("m-Q4_K_M.GGUF");
    scratch_write(gguf, "GGUF", 4);
    assert_int_equal(model_config_load(scratch_dir, &m, NULL, &err), ERR_MODEL);
    assert_contains(err.text, "/m-Q4_K_M.GGUF -o DIR");
    assert_int_equal(model_config_load(gguf, &m, NULL, &err), ERR_MODEL);
    assert_contains(err.text, "; one is made by: tessera convert /");
    remove(gguf);
}

static void test_config_files(void **state)
{
    (void)state;
    struct model_config m;
    struct generation_defaults d;
    struct err err;
    assert_int_equal(load("", NULL, &m, &d, &err), OK);
    assert_int_equal(m.eos_count, 0);
    assert_true(isnan(d.temperature) && isnan(d.top_p) && d.top_k == -1);
    const char *both = "{\"eos_token_id\":[7,2,98],\"temperature\":0.5,\"top_p\":0.9,\"top_k\":40}";
    assert_int_equal(load(",\"eos_token_id\":[2,5]", both, &m, &d, &err), OK);
    static const int32_t eos[] = {2, 5, 7, 98};
    assert_int_equal(m.eos_count, 4);
    assert_memory_equal(m.eos, eos, sizeof eos);
    assert_true(d.temperature == 0.5f && d.top_p == 0.9f && d.top_k == 40);
    assert_int_equal(load("", "{\"do_sample\":false,\"temperature\":0.7}", &m, &d, &err), OK);
    assert_true(d.temperature == 0);
    static const char *const bad[][2] = {
        {"{\"eos_token_id\":99}", "eos_token_id is 99"},
        {"{\"temperature\":2.5}", "temperature is 2.5"},
        {"{\"top_p\":0}", "top_p is 0"},
        {"{\"top_k\":-1}", "top_k is -1"},
        {"{\"do_sample\":1}", "do_sample is 1"},
        {"[]", "expected a JSON object"},
        {"{", "generation_config.json: line 1"},
        {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", "at most 8 ids"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(load("", bad[i][0], &m, &d, &err), ERR_MODEL);
        assert_contains(err.text, "generation_config.json: ");
        assert_contains(err.text, bad[i][1]);
    }
    char *big = calloc(1, (1u << 20) + 1);
    scratch_write(scratch_path("config.json"), big, (1u << 20) + 1);
    assert_int_equal(model_config_load(scratch_dir, &m, NULL, &err), ERR_MODEL);
    assert_contains(err.text, "config.json: 1048577 bytes, at most 1048576 are read");
    free(big);
    remove(scratch_path("config.json"));
    assert_int_equal(model_config_load(scratch_dir, &m, NULL, &err), ERR_MODEL);
    assert_contains(err.text, "no config.json in it");
    assert_int_equal(model_config_load("/nowhere/at/all", &m, NULL, &err), ERR_MODEL);
    assert_contains(err.text, "/nowhere/at/all: no such model directory");
    static const char *const meant[][2] = {
        {"org/model", "if that is a name on the Hub: hf download org/model"},
        {"localhost:8000", "no such model directory (a server is http://localhost:8000)"},
        {"/dev/null", "/dev/null is not a directory; expected one with config.json"},
    };
    for (size_t i = 0; i < ARRAY_LEN(meant); i++) {
        assert_int_equal(model_config_load(meant[i][0], &m, NULL, &err), ERR_MODEL);
        assert_contains(err.text, meant[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_ranges),   cmocka_unit_test(test_config_refusals),
        cmocka_unit_test(test_class),           cmocka_unit_test(test_pooled),
        cmocka_unit_test(test_config_dialects), cmocka_unit_test(test_family_defaults),
        cmocka_unit_test(test_family_windows),  cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_two_rotations),   cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_wrapped),         cmocka_unit_test(test_stretched),
        cmocka_unit_test(test_family_refusals), cmocka_unit_test(test_nearest_family),
        cmocka_unit_test(test_config_files),    cmocka_unit_test(test_no_config),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
