/* Families whose configurations need more than test_model_config.c's tables, and which of several
 * keys counts. */
#include "tests/family_text.h"

#include <math.h>

#define MXFP4 ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}"
#define V2 ",\"num_experts_per_tok\":6"
#define GROUPS ",\"topk_method\":\"group_limited_greedy\""
#define YARN                                                                                       \
    ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"                  \
    "\"original_max_position_embeddings\":4096}"

/* What GptOssConfig holds when nothing else is given, but for what has to be said. */
static void test_gpt_oss(void **state)
{
    (void)state;
    struct model_config m;
    ok_config("{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"num_hidden_layers\":4,"
              "\"intermediate_size\":96" MXFP4 YARN "}",
              &m);
    assert_true(m.heads == 64 && m.kv_heads == 8 && m.head_dim == 64 && m.vocab == 201088);
    assert_true(m.max_position == 131072 && m.rope.kind == ROPE_YARN && m.rope.theta == 150000);
    assert_true(!m.rope.truncate && fabs(m.rope.attention_factor - 1.3465735902799727) < 1e-12);
    assert_true(m.window == 128 && m.slides[0] == 5 && m.dtype == DTYPE_BF16);
    assert_true(m.qkv_bias && m.o_bias && m.sinks && !m.tied && m.norm_eps == 1e-5f);
    assert_memory_equal(&m.mixture,
                        (&(struct mixture_config){MIXTURE_GPT_OSS, 128, 4, true, .scale = 1}),
                        sizeof m.mixture);
    assert_true(m.quant.kind == QUANT_FILE && m.quant.code == DTYPE_F4_E2M1 && m.quant.cols == 32);
    assert_string_equal(model_config_codes(&m), "mxfp4");
    struct err err;
    assert_int_equal(model_config_quantize(&m, DTYPE_F32, true, &err), OK);
    assert_null(model_config_codes(&m));
    assert_int_equal(model_config_quantize(&m, DTYPE_I4, false, &err), ERR_USAGE);
}

/* Where several keys say the same thing, the one that transformers 5.23 takes. */
static void test_precedence(void **state)
{
    (void)state;
#define LENGTH(n) "\"original_max_position_embeddings\":" #n
#define LISTS "\"short_factor\":[1,1,1,1],\"long_factor\":[2,2,2,2]"
    static const struct {
        const char *family, *more;
        enum rope_kind kind;
        int32_t original;
    } lengths[] = {
        {"phi3", ",\"rope_scaling\":{\"type\":\"longrope\"," LISTS "," LENGTH(32) "}", ROPE_LONG,
         4096},
        {"phi3", "," LENGTH(64) ",\"rope_scaling\":{\"type\":\"su\"," LISTS "," LENGTH(32) "}",
         ROPE_LONG, 64},
        {"phi3", ",\"rope_scaling\":{\"type\":\"yarn\"," LISTS "}", ROPE_LONG, 4096},
        {"llama", "," LENGTH(64) ",\"rope_scaling\":{\"type\":\"longrope\"," LISTS "}", ROPE_LONG,
         64},
        {"llama",
         "," LENGTH(64) ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2," LENGTH(32) "}",
         ROPE_YARN, 64},
        {"llama", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2," LENGTH(32) "}", ROPE_YARN,
         32},
        {"llama",
         "," LENGTH(64) ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
                        "\"high_freq_factor\":4," LENGTH(32) "}",
         ROPE_LLAMA3, 64}};
    struct model_config m;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        ok_family(lengths[i].family, lengths[i].more, &m);
        assert_int_equal(m.rope.kind, lengths[i].kind);
        assert_int_equal(m.rope.original_max_position, lengths[i].original);
    }
    /* rope_scaling over what rope_parameters says of the layers that do not slide */
    ok_family("gemma3_text",
              ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":3000},"
              "\"sliding_attention\":{\"rope_theta\":77}},"
              "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}",
              &m);
    assert_true(m.rope.theta == 3000 && m.rope.kind == ROPE_LINEAR && m.rope.factor == 8);
    assert_true(m.local_rope.theta == 77 && m.local_rope.kind == ROPE_DEFAULT);
}

/* Is the head the embedding? What stands outside a text_config decides; of Qwen2's either may. */
static void test_tied_texts(void **state)
{
    (void)state;
    static const char *const values[] = {"", "\"tie_word_embeddings\":false,",
                                         "\"tie_word_embeddings\":true,"};
    static const struct {
        const char *family;
        bool fallback, either;
    } families[] = {{"mistral3", false, false},
                    {"gemma3", true, false},
                    {"qwen3_vl", false, false},
                    {"qwen3_5", false, false},
                    {"qwen2_5_vl", false, true}};
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        for (int outer = 0; outer < 3; outer++)
            for (int inner = 0; inner < 3; inner++) {
                char text[512];
                struct model_config m;
                snprintf(text, sizeof text,
                         "{\"model_type\":\"%s\",%s\"text_config\":{%s\"hidden_size\":64,"
                         "\"num_attention_heads\":8,\"num_key_value_heads\":8,"
                         "\"num_hidden_layers\":4,\"vocab_size\":9,"
                         "\"intermediate_size\":8}}",
                         families[i].family, values[outer], values[inner]);
                ok_config(text, &m);
                const bool within = inner > 0 ? inner == 2 : families[i].fallback;
                const bool either = families[i].either && inner == 2;
                assert_int_equal(m.tied, outer > 0 ? outer == 2 || either : within);
            }
}

/* Ministral 3's rotation, alone and in the model that also sees. */
static void test_query_beta(void **state)
{
    (void)state;
    struct model_config m;
#define GROWS(more) ",\"rope_parameters\":{\"type\":\"default\",\"rope_theta\":5e5," more "}"
#define MINISTRAL GROWS("\"llama_4_scaling_beta\":0.1,\"original_max_position_embeddings\":16384")
    ok_family("ministral3", MINISTRAL, &m);
    assert_true(m.rope.query_beta == 0.1 && m.rope.original_max_position == 16384);
    assert_true(m.max_position == 262144 && m.rope.theta == 5e5 && m.norm_eps == 1e-5f);
    assert_true(m.head_dim == 128 && m.kv_heads == 8 && m.window == 0 && !m.tied);
    ok_config("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\","
              "\"hidden_size\":64,\"num_hidden_layers\":4,\"intermediate_size\":8" MINISTRAL "}}",
              &m);
    assert_true(m.rope.query_beta == 0.1 && m.vocab == 131072 && m.heads == 32);
    ok_family("mistral", MINISTRAL, &m); /* whose class does not read it */
    assert_true(m.rope.query_beta == 0);
#define OUTSIDE ",\"original_max_position_embeddings\":64"
    ok_family("ministral3", OUTSIDE MINISTRAL, &m); /* which counts for stretched rotations alone */
    assert_int_equal(m.rope.original_max_position, 16384);
    ok_family("ministral3",
              OUTSIDE ",\"rope_parameters\":{\"type\":\"yarn\",\"factor\":4,"
                      "\"original_max_position_embeddings\":16,\"llama_4_scaling_beta\":0.1}",
              &m);
    assert_true(m.rope.original_max_position == 64 && m.rope.theta == 10000);
    ok_family("ministral3",
              ",\"rope_parameters\":{\"type\":\"yarn\",\"factor\":4,\"llama_4_scaling_beta\":0.1}",
              &m);
    assert_int_equal(m.rope.original_max_position, 262144);
    ok_config("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral4\","
              "\"hidden_size\":64,\"num_hidden_layers\":4,\"intermediate_size\":8" MINISTRAL "}}",
              &m);
    assert_true(m.rope.query_beta == 0.1 && m.latent.value == 256 && m.mixture.experts == 128);
}

/* EXAONE 4: with a window only layers that slide turn, whether there are some or not. */
static void test_window_turns(void **state)
{
    (void)state;
    static const char list[] = ",\"layer_types\":[\"full_attention\",\"full_attention\","
                               "\"full_attention\",\"full_attention\"]";
    char more[256];
    struct model_config m;
    ok_family("exaone4", "", &m);
    assert_true(m.window == 4096 && m.slides[0] == 0x7 && m.no_rope[0] == 0x8);
    assert_true(m.post_norms == POST_NORMS_OLMO && m.head_norm && !m.joint_norm);
    snprintf(more, sizeof more, "%s,\"sliding_window\":8,\"sliding_window_pattern\":\"LLLG\"",
             list);
    ok_family("exaone4", more, &m);
    assert_true(m.window == 0 && m.slides[0] == 0 && m.no_rope[0] == 0xf);
    snprintf(more, sizeof more, "%s,\"sliding_window\":null,\"sliding_window_pattern\":null", list);
    ok_family("exaone4", more, &m);
    assert_true(m.window == 0 && m.slides[0] == 0 && m.no_rope[0] == 0);
    ok_family("exaone4", ",\"sliding_window_pattern\":2", &m);
    assert_true(m.slides[0] == 0x5 && m.no_rope[0] == 0xa);
    ok_family("smollm3", "", &m);
    assert_int_equal(m.no_rope[0], 0x8);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const refused[][3] = {
        {"gpt_oss", "", "experts in other types are not supported"},
        {"gpt_oss", MXFP4, "rope_scaling is missing, expected an object"},
        {"gpt_oss", MXFP4 YARN ",\"swiglu_limit\":6", "swiglu_limit is 6, expected 7"},
        {"gpt_oss", MXFP4 YARN ",\"num_local_experts\":1024", "in multiples of 32"},
        {"mixtral", MXFP4, "quant_method is \"mxfp4\", expected"},
        {"smollm3", ",\"no_rope_layers\":[1,1,1]",
         "no_rope_layers is an array, expected a list of"},
        {"smollm3", ",\"no_rope_layers\":[1,1,1,2]", "expected a list of 0 (a layer without"},
        {"smollm3", ",\"no_rope_layer_interval\":0", "no_rope_layer_interval is 0, expected"},
        {"seed_oss", ",\"mlp_bias\":true", "mlp_bias is true, expected false"},
        {"ernie4_5", ",\"use_bias\":true", "use_bias is true, expected false"},
        {"ernie4_5", ",\"partial_rotary_factor\":0.5", "factor is 0.5, expected 1 (others are"},
        {"glm4", ",\"partial_rotary_factor\":2", "partial_rotary_factor is 2, expected a number"},
        {"glm", ",\"head_dim\":18", "factor is missing, expected one by which an even number"},
        {"granite", ",\"residual_multiplier\":0", "residual_multiplier is 0, expected a number"},
        {"granite", ",\"logits_scaling\":\"8\"", "logits_scaling is \"8\", expected a number"},
        {"granite", ",\"mlp_bias\":true", "mlp_bias is true, expected false"},
        {"glm4", ",\"hidden_act\":\"gelu\"", "hidden_act is \"gelu\", expected \"silu\""},
        {"exaone4", ",\"sliding_window\":null", "expected a number, since some layers slide"},
        {"exaone4", ",\"attention_bias\":true", "attention_bias is true, expected false"},
        {"ministral3", "", "rope_parameters is missing, expected an object with llama_4_scaling_b"},
        {"ministral3", GROWS("\"original_max_position_embeddings\":16"),
         "llama_4_scaling_beta is missing, expected a number"},
        {"ministral3", GROWS("\"llama_4_scaling_beta\":-0.1"),
         "llama_4_scaling_beta is -0.1, expected a number"},
        {"ministral3", GROWS("\"llama_4_scaling_beta\":0.1"),
         "original_max_position_embeddings is missing, expected an integer"},
        {"olmo2", ",\"attention_bias\":true", "expected false (biases in front of norms of q"},
        {"olmo2", ",\"sliding_window\":9", "sliding_window is 9, expected null"},
        {"olmo3", ",\"sliding_window\":null", "expected a number, since some layers slide"},
        {"olmo2", ",\"rope_parameters\":{\"full_attention\":{}}", "one rotation for all layers"},
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        refuses(refused[i][0], refused[i][1], refused[i][2]);
}

static void test_latent_refusals(void **state)
{
    (void)state;
    static const char *const refused[][3] = {
        {"deepseek_v2", "", "num_experts_per_tok is missing"},
        {"deepseek_v2", V2 ",\"norm_topk_prob\":true", "norm_topk_prob is true, expected false"},
        {"deepseek_v2", V2 ",\"scoring_func\":\"sigmoid\"", "is \"sigmoid\", expected \"softmax\""},
        {"deepseek_v2", V2 ",\"topk_method\":\"noaux_tc\"",
         "\"greedy\" or \"group_limited_greedy\""},
        {"deepseek_v2", V2 GROUPS, "n_group is missing, expected"},
        {"deepseek_v2", V2 GROUPS ",\"n_group\":8", "topk_group is missing, expected"},
        {"deepseek_v3", ",\"scoring_func\":\"softmax\"", "is \"softmax\", expected \"sigmoid\""},
        {"deepseek_v3", ",\"topk_method\":\"greedy\"", "is \"greedy\", expected \"noaux_tc\""},
        {"deepseek_v3", ",\"moe_layer_freq\":2", "moe_layer_freq is 2, expected 1"},
        {"deepseek_v3", ",\"attention_bias\":true", "expected false (biases of latents are not"},
        {"deepseek_v3", ",\"num_key_value_heads\":8", "expected num_attention_heads, which is 64"},
        {"deepseek_v3", ",\"kv_lora_rank\":24", "kv_lora_rank is 24, expected a multiple of 16"},
        {"deepseek_v3", ",\"kv_lora_rank\":528",
         "kv_lora_rank is 528, expected an integer from 16"},
        {"deepseek_v3", ",\"qk_rope_head_dim\":80",
         "kv_lora_rank is missing, expected at most 576 less qk_rope_head_dim, which is 80"},
        {"deepseek_v3", ",\"n_group\":null,\"topk_group\":2",
         "topk_group is 2, expected at most n_group"},
        {"deepseek_v3", ",\"kv_lora_rank\":0", "kv_lora_rank is 0, expected an integer from 16"},
        {"deepseek_v3", ",\"qk_rope_head_dim\":8", "qk_rope_head_dim is 8, expected an integer"},
        {"deepseek_v3", ",\"qk_nope_head_dim\":40", "is 40, expected a multiple of 16"},
        {"deepseek_v3", ",\"v_head_dim\":1024", "v_head_dim is 1024, expected an integer"},
        {"deepseek_v3", ",\"q_lora_rank\":0", "q_lora_rank is 0, expected an integer"},
        {"deepseek_v3", ",\"partial_rotary_factor\":0.5", "is 0.5, expected 1 (others are not"},
        {"deepseek_v3", ",\"sliding_window\":8", "sliding_window is 8, expected null"},
        {"mistral4", "",
         "rope_parameters is missing, expected an object with llama_4_scaling_beta"},
        {"mistral4", MINISTRAL ",\"n_group\":2", "n_group is 2, expected 1 (groups are not"},
        {"mistral4", MINISTRAL ",\"partial_rotary_factor\":0.75",
         "is 0.75, expected 1 (others are"},
        {"youtu", ",\"attention_bias\":true", "expected false (biases of latents are not"},
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        refuses(refused[i][0], refused[i][1], refused[i][2]);
}

static void test_recurrent_refusals(void **state)
{
    (void)state;
#define LINEAR "\"linear_attention\","
    static const char *const refused[][3] = {
        {"qwen3_next", ",\"linear_num_key_heads\":0",
         "linear_num_key_heads is 0, expected an integer from 1 to 1024"},
        {"qwen3_next", ",\"linear_num_key_heads\":5",
         "linear_num_value_heads is missing, expected a multiple of linear_num_key_heads, which"},
        {"qwen3_5", ",\"linear_num_value_heads\":24",
         "is 24, expected a multiple of linear_num_key"},
        {"qwen3_5", ",\"linear_num_value_heads\":2048",
         "is 2048, expected an integer from 1 to 1024"},
        {"qwen3_5", ",\"linear_key_head_dim\":40", "is 40, expected a multiple of 16"},
        {"qwen3_5", ",\"linear_key_head_dim\":8", "is 8, expected an integer from 16 to 256"},
        {"qwen3_5", ",\"linear_value_head_dim\":100", "is 100, expected a multiple of 16"},
        {"qwen3_5", ",\"linear_value_head_dim\":272", "is 272, expected an integer from 16 to 256"},
        {"qwen3_5", ",\"linear_conv_kernel_dim\":1", "is 1, expected an integer from 2 to 8"},
        {"qwen3_5", ",\"linear_conv_kernel_dim\":9", "is 9, expected an integer from 2 to 8"},
        {"qwen3_5", ",\"linear_conv_kernel_dim\":\"4\"", "is \"4\", expected an integer from 2"},
        {"qwen3_next", ",\"full_attention_interval\":0", "is 0, expected an integer from 1"},
        {"qwen3_next", ",\"full_attention_interval\":5",
         "is 5, expected at most num_hidden_layers (a model in which no layer attends"},
        {"qwen3_5", ",\"layer_types\":[" LINEAR LINEAR LINEAR "\"linear_attention\"]",
         "layer_types is an array, expected a list with full_attention"},
        {"qwen3_5", ",\"layer_types\":[\"full_attention\"]", "a list of as many as num_hidden_lay"},
        {"qwen3_5", ",\"layer_types\":[" LINEAR LINEAR LINEAR "\"sliding_attention\"]",
         "layer_types[3] is sliding_attention, expected full_attention or linear_attention"},
        {"qwen3_5", ",\"layer_types\":[" LINEAR LINEAR LINEAR "4]",
         "layer_types[3] is no string, expected full_attention or linear_attention"},
        {"qwen3_5", ",\"attention_bias\":true", "is true, expected false (biases of gates and"},
        {"qwen3_5", ",\"attn_output_gate\":false", "attn_output_gate is false, expected true"},
        {"qwen3_5", ",\"hidden_act\":\"gelu\"", "hidden_act is \"gelu\", expected \"silu\""},
        {"qwen3_5", ",\"sliding_window\":8", "sliding_window is 8, expected null"},
        {"qwen3_5", ",\"partial_rotary_factor\":0.013", "by which an even number of elements"},
        {"qwen3_5_moe", ",\"norm_topk_prob\":false", "norm_topk_prob is false, expected true"},
        {"qwen3_5_moe", ",\"num_experts\":0", "num_experts is 0, expected an integer from 1"},
        {"qwen3_5_moe", ",\"mlp_only_layers\":[1]", "layers without experts are not supported"},
        {"qwen3_next", ",\"decoder_sparse_step\":2", "decoder_sparse_step is 2, expected 1"},
        {"qwen3_next", ",\"shared_expert_intermediate_size\":700",
         "is 700, expected a multiple of moe_intermediate_size, which is 512"},
        {"qwen3_next", ",\"num_experts\":-1", "num_experts is -1, expected an integer from 0"},
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        /* the same, whether it is inside another one */
        char family[32];
        snprintf(family, sizeof family, "%s%s", refused[i][0],
                 strcmp(refused[i][0], "qwen3_next") == 0 ? "" : "_text");
        refuses(family, refused[i][1], refused[i][2]);
    }
}

/* As SmolLM3Config and SeedOssConfig of transformers 5.23 have it. */
static void test_smollm3_and_seed_oss(void **state)
{
    (void)state;
    static const struct {
        const char *family, *more;
        uint32_t no_rope; /* of the four layers */
        bool qkv_bias, o_bias;
    } cases[] = {
        {"smollm3", "", 8, false, false},
        {"smollm3", ",\"no_rope_layer_interval\":2", 10, false, false},
        {"smollm3", ",\"no_rope_layers\":[0,1,1,0,0]", 9, false, false},
        {"smollm3", ",\"attention_bias\":true", 8, true, true},
        {"seed_oss", "", 0, true, false},
        {"seed_oss", ",\"attention_bias\":false,\"attention_out_bias\":true", 0, false, true},
    };
    uint64_t hash = 0;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config m;
        ok_family(cases[i].family, cases[i].more, &m);
        assert_int_equal(m.no_rope[0], cases[i].no_rope);
        assert_true(m.qkv_bias == cases[i].qkv_bias && m.o_bias == cases[i].o_bias);
        const bool smollm3 = i < 4;
        assert_true(m.tied == smollm3 && m.rope.theta == (smollm3 ? 2e6 : 1e4));
        assert_true(m.kv_heads == (smollm3 ? 4 : 8) && m.head_dim == (smollm3 ? 8 : 128));
        assert_int_equal(m.max_position, smollm3 ? 32768 : 524288);
        assert_true(m.norm_eps == 1e-6f && m.hash != hash);
        hash = m.hash;
    }
    struct model_config m;
    ok_family("seed_oss", ",\"head_dim\":null", &m); /* not the default */
    assert_int_equal(m.head_dim, m.hidden / m.heads);
}

/* As GlmConfig, Glm4Config and Ernie4_5Config of transformers 5.23 have it. */
static void test_interleaved(void **state)
{
    (void)state;
    static const struct {
        const char *family, *more;
        int32_t head_dim, rotary_dim;
        bool qkv_bias;
    } cases[] = {
        {"glm", "", 128, 64, true},
        {"glm4", "", 128, 64, true},
        {"glm4", ",\"attention_bias\":false,\"partial_rotary_factor\":0.25", 128, 32, false},
        {"glm4", ",\"rope_parameters\":{\"partial_rotary_factor\":0.75}", 128, 96, true},
        {"glm", ",\"rope_parameters\":{\"rope_theta\":3}", 128, 64, true},
        {"glm", ",\"partial_rotary_factor\":null", 128, 128, true}, /* not the default */
        {"ernie4_5", ",\"use_bias\":false", 128, 128, false},
        {"ernie4_5", ",\"head_dim\":null,\"num_key_value_heads\":null", 8, 8, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config m;
        const bool ernie = i >= 6;
        ok_family(cases[i].family, cases[i].more, &m);
        assert_int_equal(m.head_dim, cases[i].head_dim);
        assert_int_equal(m.rotary_dim, cases[i].rotary_dim);
        assert_true(m.qkv_bias == cases[i].qkv_bias && !m.o_bias && m.interleaved);
        assert_int_equal(m.kv_heads, i == 7 ? m.heads : 2);
        assert_true(m.tied == ernie && m.fused_gate_up == !ernie && !m.fused_qkv);
        assert_true(m.norm_eps == (ernie ? 1e-5f : 1.5625e-7f) && m.max_position == 131072);
        assert_true(m.rope.theta == (ernie ? 5e5 : i == 4 ? 3 : 1e4));
        const bool glm4 = strcmp(cases[i].family, "glm4") == 0;
        assert_int_equal(m.post_norms, glm4 ? POST_NORMS_GLM4 : POST_NORMS_NONE);
        assert_true(m.final_softcap == 0 && m.embed_scale == 1 && !m.gelu && !m.norm_offset);
    }
}

/* As GraniteConfig of transformers 5.23 has it. */
static void test_granite(void **state)
{
    (void)state;
    struct model_config m;
    ok_family("granite", "", &m);
    assert_true(m.embed_scale == 1 && m.attention_scale == 1); /* and not 1 / sqrt(head_dim) */
    assert_true(m.residual_scale == 1 && m.logit_scale == 1);
    assert_true(!m.qkv_bias && !m.o_bias && !m.tied && m.kv_heads == m.heads);
    assert_true(m.max_position == 2048 && m.norm_eps == 1e-6f && m.rope.theta == 1e4);
    const uint64_t hash = m.hash;
    ok_family("granite",
              ",\"embedding_multiplier\":12,\"attention_multiplier\":0.015625,"
              "\"residual_multiplier\":0.22,\"logits_scaling\":8,\"attention_bias\":true",
              &m);
    assert_true(m.embed_scale == 12 && m.attention_scale == 0.015625f);
    assert_true(m.residual_scale == 0.22f && m.logit_scale == 0.125f);
    assert_true(m.qkv_bias && m.o_bias && m.hash != hash);
    ok_family("llama", ",\"residual_multiplier\":0.22,\"logits_scaling\":8", &m);
    assert_true(m.residual_scale == 1 && m.logit_scale == 1); /* which its class does not read */
}

/* As Glm4MoeConfig and Qwen2MoeConfig of transformers 5.23 have it. */
static void test_shared_experts(void **state)
{
    (void)state;
    struct model_config m;
    const struct mixture_config *x = &m.mixture;
    ok_family("glm4_moe", "", &m);
    assert_true(m.mlp == 1408 && x->dense_mlp == 8 && x->dense == 1 && x->shared == 1);
    assert_true(x->experts == 128 && x->chosen == 8 && x->among && x->scale == 1);
    assert_true(m.rotary_dim * 2 == m.head_dim && !m.qkv_bias && !m.head_norm && !m.tied);
    assert_true(model_config_is_dense(&m, 0) && !model_config_is_dense(&m, 1));
    ok_family("glm4_moe",
              ",\"attention_bias\":true,\"use_qk_norm\":true,\"n_shared_experts\":3,"
              "\"norm_topk_prob\":false,\"routed_scaling_factor\":2.5,\"num_experts_per_tok\":5,"
              "\"n_routed_experts\":7,\"first_k_dense_replace\":0,\"partial_rotary_factor\":1",
              &m);
    assert_true(m.qkv_bias && m.head_norm && m.rotary_dim == m.head_dim && !m.o_bias);
    assert_true(x->experts == 7 && x->chosen == 5 && x->shared == 3 && !x->among && x->dense == 0);
    assert_true(x->scale == 2.5f && mixture_experts(x) == 10 && mixture_chosen(x) == 8);
    ok_family("qwen2_moe", "", &m);
    assert_true(m.mlp == 1408 && x->experts == 60 && x->chosen == 4 && !x->among);
    assert_true(x->shared == 4 && x->scale == 1 && x->dense == 0 && m.qkv_bias && !m.o_bias);
    ok_family("qwen2_moe",
              ",\"moe_intermediate_size\":2560,\"norm_topk_prob\":true,"
              "\"shared_expert_intermediate_size\":20480,\"qkv_bias\":false",
              &m);
    assert_true(m.mlp == 2560 && x->shared == 8 && x->among && !m.qkv_bias);
}

/* As Olmo2Config, Olmo3Config, OlmoeConfig and MiniMaxM2Config of transformers 5.23 have it. */
static void test_joint_norms(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        enum post_norms post_norms;
        int32_t max_position;
        float norm_eps;
        double theta;
    } cases[] = {{"olmo2", POST_NORMS_OLMO, 2048, 1e-5f, 1e4},
                 {"olmo3", POST_NORMS_OLMO, 2048, 1e-5f, 5e5},
                 {"olmoe", POST_NORMS_NONE, 4096, 1e-5f, 1e4},
                 {"minimax_m2", POST_NORMS_NONE, 196608, 1e-6f, 5e6}};
    struct model_config m;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ok_family(cases[i].family, "", &m);
        assert_true(m.head_norm && m.joint_norm && m.post_norms == cases[i].post_norms);
        assert_true(m.max_position == cases[i].max_position && m.norm_eps == cases[i].norm_eps);
        assert_true(m.rope.theta == cases[i].theta && m.rope.kind == ROPE_DEFAULT);
        assert_true(!m.tied && !m.qkv_bias && !m.o_bias && !m.norm_offset);
        assert_int_equal(m.rotary_dim, m.head_dim);
        assert_int_equal(m.dtype, i == 3 ? DTYPE_BF16 : DTYPE_F32);
        assert_true(i == 1 ? m.window == 4096 && m.slides[0] == 7 : m.window == 0);
    }
    const struct mixture_config *x = &m.mixture;
    assert_true(m.head_dim == 128 && m.kv_heads == 8 && m.mlp == 8);
    assert_true(x->kind == MIXTURE_MINIMAX && x->experts == 256 && x->chosen == 8 && x->among);
    ok_family("minimax_m2",
              ",\"rotary_dim\":64,\"num_local_experts\":16,\"scoring_func\":\"sigmoid\","
              "\"qk_norm_type\":\"per_layer\",\"attn_type_list\":[1,1,1,1],\"head_dim\":96",
              &m);
    assert_true(m.rotary_dim == 64 && m.head_dim == 96 && x->experts == 16);
    ok_family("minimax_m2", /* as MiniMax writes it */
              ",\"quantization_config\":{\"activation_scheme\":\"dynamic\","
              "\"fmt\":\"float8_e4m3fn\",\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
              "\"modules_to_not_convert\":[\"gate\",\"e_score_correction_bias\",\"lm_head\"]}",
              &m);
    assert_true(m.quant.code == DTYPE_F8_E4M3 && m.quant.rows == 128 && m.quant.inverse);
    ok_family("minimax_m2", ",\"rotary_dim\":64,\"partial_rotary_factor\":0.25", &m);
    assert_int_equal(m.rotary_dim, 32); /* which counts where both are said */
    ok_family("olmoe", ",\"norm_topk_prob\":true,\"clip_qkv\":null", &m);
    assert_true(x->kind == MIXTURE_QWEN && x->experts == 64 && x->chosen == 8 && x->among);
    ok_family("olmoe", "", &m);
    assert_true(!x->among && m.kv_heads == m.heads);
}

/* As DeepseekV2Config, DeepseekV3Config and Glm4MoeLiteConfig of transformers 5.23 have it. */
static void test_latents(void **state)
{
    (void)state;
    static const struct {
        const char *family, *more;
        struct latent_config latent;
        struct mixture_config mixture;
        int32_t mlp, max_position;
        float norm_eps;
    } cases[] = {
        {"deepseek_v2",
         V2,
         {1536, 512, 64, 128, 128, 1e-6f},
         {MIXTURE_GLM, 64, 6, false, 2, 1, true, CORRECTIONS_NONE, .dense_mlp = 8},
         1407,
         2048,
         1e-6f},
        {"deepseek_v3",
         "",
         {1536, 512, 64, 128, 128, 1e-6f},
         {MIXTURE_GLM, 256, 8, true, 1, 2.5f, .groups = 8, .kept = 4, .dense = 3, .dense_mlp = 8},
         2048,
         4096,
         1e-6f},
        {"kimi_k2",
         ",\"n_routed_experts\":384,\"n_group\":1,\"topk_group\":1,\"topk_method\":\"noaux_tc\","
         "\"first_k_dense_replace\":1,\"scoring_func\":\"sigmoid\",\"num_nextn_predict_layers\":0",
         {1536, 512, 64, 128, 128, 1e-6f},
         {MIXTURE_GLM, 384, 8, true, 1, 2.5f, .dense = 1, .dense_mlp = 8},
         2048,
         4096,
         1e-6f},
        {"mistral4",
         GROWS("\"partial_rotary_factor\":0.5,\"llama_4_scaling_beta\":0.1,"
               "\"original_max_position_embeddings\":8192"),
         {1024, 256, 64, 64, 128, 1e-6f},
         {MIXTURE_GLM, 128, 4, true, 1, 1, true, CORRECTIONS_NONE, .dense_mlp = 8},
         2048,
         1048576,
         1e-6f},
        {"youtu",
         "",
         {1536, 512, 64, 128, 128, 1e-6f},
         {MIXTURE_NONE, .scale = 0},
         8,
         131072,
         1e-6f},
        {"glm4_moe_lite",
         "",
         {768, 512, 64, 192, 256, 1e-6f},
         {MIXTURE_GLM, 64, 4, true, 1, 1.8f, .dense = 1, .dense_mlp = 8},
         1536,
         202752,
         1e-5f},
    };
    struct model_config m;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ok_family(cases[i].family, cases[i].more, &m);
        assert_memory_equal(&m.latent, &cases[i].latent, sizeof m.latent);
        assert_memory_equal(&m.mixture, &cases[i].mixture, sizeof m.mixture);
        assert_true(m.mlp == cases[i].mlp && m.max_position == cases[i].max_position);
        const struct latent_config *l = &cases[i].latent;
        assert_true(m.norm_eps == cases[i].norm_eps && m.interleaved && !m.head_norm);
        assert_true(m.tied == (strcmp(cases[i].family, "youtu") == 0));
        assert_true(m.heads == 64 && m.kv_heads == 1 && m.head_dim == l->value + 64);
        assert_true(m.rotary_dim == 64);
        assert_int_equal(model_config_query_dim(&m), l->plain + l->turns);
        assert_int_equal(model_config_value_dim(&m), l->head);
        assert_true(m.attention_scale == 1 / sqrtf((float)(l->plain + l->turns)));
    }
}

/* What makes latents and layers other than those of the class. */
static void test_latent_keys(void **state)
{
    (void)state;
    struct model_config m;
    ok_family("qwen3", "", &m);
    assert_true(m.latent.value == 0 && model_config_query_dim(&m) == m.head_dim);
    assert_int_equal(model_config_value_dim(&m), m.head_dim);
    ok_family("deepseek_v3", "", &m);
    uint64_t hash = m.hash;
    ok_family("deepseek_v3", /* head_dim is what transformers writes, and says nothing */
              ",\"q_lora_rank\":null,\"kv_lora_rank\":32,\"qk_rope_head_dim\":16,\"v_head_dim\":64,"
              "\"qk_nope_head_dim\":48,\"head_dim\":16,\"num_key_value_heads\":64,"
              "\"rope_interleave\":false,\"moe_layer_freq\":1,\"ep_size\":1",
              &m);
    const struct latent_config l = {0, 32, 16, 48, 64, 1e-6f};
    assert_memory_equal(&m.latent, &l, sizeof l);
    assert_true(m.head_dim == 48 && m.rotary_dim == 16 && !m.interleaved && m.hash != hash);
    assert_true(m.attention_scale == 0.125f);
    hash = m.hash;
    ok_family("deepseek_v2", V2 ",\"rope_interleave\":false", &m);
    assert_true(m.interleaved && m.mixture.groups == 0); /* whatever that key says */
    ok_family("deepseek_v2", V2 GROUPS ",\"n_group\":8,\"topk_group\":3", &m);
    assert_true(m.mixture.groups == 8 && m.mixture.kept == 3 && m.hash != hash);
    ok_family("deepseek_v2", V2 ",\"topk_method\":\"greedy\",\"n_group\":8,\"topk_group\":3", &m);
    assert_true(m.mixture.groups == 0 && m.mixture.kept == 0);
    ok_family("glm4_moe", ",\"n_group\":4,\"topk_group\":2", &m);
    assert_true(m.mixture.groups == 4 && m.mixture.kept == 2 && m.latent.value == 0);
    ok_family("glm4_moe", ",\"n_group\":4,\"topk_group\":4", &m); /* which keeps all */
    assert_true(m.mixture.groups == 0 && m.mixture.kept == 0);
    ok_family("glm4_moe_lite",
              ",\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"sparse\"],"
              "\"first_k_dense_replace\":1,\"partial_rotary_factor\":1.0",
              &m);
    assert_int_equal(m.mixture.dense, 2);
    static const char heads[] = "{\"model_type\":\"kimi_k2\",\"hidden_size\":64,"
                                "\"num_hidden_layers\":4,\"num_attention_heads\":1025}";
    struct err err;
    assert_int_equal(model_config_parse(heads, sizeof heads - 1, "config.json", &m, &err),
                     ERR_MODEL);
    assert_non_null(strstr(err.text, "num_attention_heads is 1025, expected an integer from 1 to"));
}

/* As Qwen3NextConfig, Qwen3_5TextConfig and Qwen3_5MoeTextConfig of transformers 5.23 have it. */
static void test_recurrent(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        bool inside; /* a text_config */
        int32_t kv_heads, vocab, mlp, by_head;
        struct mixture_config mixture;
    } cases[] = {
        {"qwen3_next", false, 2, 151936, 512, true, {MIXTURE_QWEN2, 512, 10, true, 1, .scale = 1}},
        {"qwen3_5", true, 4, 248320, 8, false, {MIXTURE_NONE, .scale = 0}},
        {"qwen3_5_text", false, 4, 248320, 8, false, {MIXTURE_NONE, .scale = 0}},
        {"qwen3_5_moe", true, 2, 248320, 512, false, {MIXTURE_QWEN2, 256, 8, true, 1, .scale = 1}},
        {"qwen3_5_moe_text",
         false,
         2,
         248320,
         512,
         false,
         {MIXTURE_QWEN2, 256, 8, true, 1, .scale = 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[512];
        struct model_config m;
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",%s\"hidden_size\":512,\"num_hidden_layers\":8,"
                 "\"intermediate_size\":8}%s",
                 cases[i].family, cases[i].inside ? "\"text_config\":{" : "",
                 cases[i].inside ? "}" : "");
        ok_config(text, &m);
        const struct recurrent_config c = {16, 32, 128, 128, 4, cases[i].by_head};
        assert_memory_equal(&m.recurrent, &c, sizeof c);
        assert_memory_equal(&m.mixture, &cases[i].mixture, sizeof m.mixture);
        assert_true(m.recurs[0] == 0x77 && m.recurs[1] == 0 && model_config_recurring(&m) == 6);
        assert_true(m.attention_gate && m.head_norm && m.norm_offset && !m.gelu && !m.tied);
        assert_true(m.heads == 16 && m.kv_heads == cases[i].kv_heads && m.head_dim == 256);
        assert_true(m.rotary_dim == 64 && m.rope.theta == 10000 && m.norm_eps == 1e-6f);
        assert_true(m.attention_scale == 0.0625f && m.embed_scale == 1 && !m.qkv_bias);
        assert_true(m.vocab == cases[i].vocab && m.mlp == cases[i].mlp && m.max_position == 32768);
    }
}

/* What makes them other than those of the class. */
static void test_recurrent_keys(void **state)
{
    (void)state;
    struct model_config m;
    ok_family("qwen3_next", "", &m);
    uint64_t hash = m.hash;
    ok_family("qwen3_next",
              ",\"linear_num_key_heads\":3,\"linear_num_value_heads\":9,\"linear_key_head_dim\":16,"
              "\"linear_value_head_dim\":256,\"linear_conv_kernel_dim\":2",
              &m);
    const struct recurrent_config c = {3, 9, 16, 256, 2, true};
    assert_memory_equal(&m.recurrent, &c, sizeof c);
    assert_true(m.hash != hash && m.recurs[0] == 7);
    hash = m.hash;
    ok_family("qwen3_next", ",\"full_attention_interval\":2", &m);
    assert_true(m.recurs[0] == 5 && m.hash != hash);
    /* a list counts, and where there is one nothing else */
    ok_family("qwen3_5_text",
              ",\"full_attention_interval\":2,\"layer_types\":[\"full_attention\"," LINEAR LINEAR
              "\"linear_attention\"]",
              &m);
    assert_true(m.recurs[0] == 14 && model_config_recurring(&m) == 3 && m.recurrent.keys == 16);
    ok_family("qwen3_5_text", ",\"full_attention_interval\":1", &m); /* no layer recurs */
    assert_true(m.recurs[0] == 0 && m.recurrent.keys == 0 && m.attention_gate);
    ok_family("qwen3_next", ",\"num_experts\":0,\"norm_topk_prob\":false", &m);
    assert_true(m.mixture.kind == MIXTURE_NONE && m.mlp == 8);
    ok_family("qwen3_next",
              ",\"norm_topk_prob\":false,\"num_experts\":16,\"num_experts_per_tok\":4,"
              "\"moe_intermediate_size\":24,\"shared_expert_intermediate_size\":72,"
              "\"mlp_only_layers\":[],\"decoder_sparse_step\":1,\"use_sliding_window\":false",
              &m);
    const struct mixture_config x = {MIXTURE_QWEN2, 16, 4, false, 3, .scale = 1};
    assert_memory_equal(&m.mixture, &x, sizeof x);
    /* as published: sections of a rotation, and how much of a head turns, beside its theta */
    ok_family("qwen3_5_text",
              ",\"rope_parameters\":{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],"
              "\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.5}",
              &m);
    assert_true(m.rope.theta == 1e7 && m.rotary_dim == 128 && m.rope.kind == ROPE_DEFAULT);
    ok_family("qwen3_next", ",\"rope_theta\":5000,\"partial_rotary_factor\":1.0", &m);
    assert_true(m.rope.theta == 5000 && m.rotary_dim == 256);
    ok_family("qwen3", "", &m);
    assert_true(m.recurrent.keys == 0 && model_config_recurring(&m) == 0 && !m.attention_gate);
}

/* What multiplies scores where the context is stretched, in either dialect; cosines and sines have
 * a factor of their own (yarn_apply_mscale and _compute_yarn_parameters of transformers 5.23). */
static void test_latent_scores(void **state)
{
    (void)state;
#define STRETCH                                                                                    \
    "\"factor\":40,\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1"
    static const struct {
        const char *more;
        double score, attention; /* factors */
        int32_t max_position;
    } cases[] = {
        {",\"rope_scaling\":{\"type\":\"yarn\",\"mscale\":1.0,\"mscale_all_dim\":1.0," STRETCH "}",
         1.8738542, 1, 163840},
        {",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"mscale\":0.707,"
         "\"mscale_all_dim\":0.707," STRETCH "}",
         1.5896262, 1, 163840},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"mscale\":1.0,\"mscale_all_dim\":0.5," STRETCH "}",
         1.4029075, 1.1557220, 163840},
        {",\"rope_scaling\":{\"type\":\"yarn\"," STRETCH "}", 1, 1.3688879, 163840},
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,\"mscale_all_dim\":1.0}", 1.2964770,
         0, 16384},
        {"", 1, 0, 4096},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config m;
        ok_family("deepseek_v3", cases[i].more, &m);
        assert_true(fabs(m.attention_scale * sqrt(192) / cases[i].score - 1) < 1e-6);
        assert_true(fabs(m.rope.attention_factor - cases[i].attention) < 1e-6);
        assert_int_equal(m.max_position, cases[i].max_position);
    }
    struct model_config m; /* of other attention mscale_all_dim says nothing about scores */
    ok_family("qwen3", cases[2].more, &m);
    assert_true(m.attention_scale == 1 / sqrtf(128));
}

/* Layers of OLMo 3 that slide turn by theta as it is, whatever stretches that of the others. */
static void test_plain_local_rotation(void **state)
{
    (void)state;
    static const char *const stretched[] = {
        ",\"rope_theta\":700000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,"
        "\"original_max_position_embeddings\":8192,\"attention_factor\":1.5}",
        ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":8,\"rope_theta\":700000,"
        "\"original_max_position_embeddings\":8192,\"attention_factor\":1.5}",
        ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":8,"
        "\"rope_theta\":700000,\"original_max_position_embeddings\":8192,"
        "\"attention_factor\":1.5},\"sliding_attention\":{\"rope_type\":\"default\","
        "\"rope_theta\":700000}}"};
    struct model_config m;
    for (size_t i = 0; i < ARRAY_LEN(stretched); i++) {
        ok_family("olmo3", stretched[i], &m);
        assert_true(m.rope.kind == ROPE_YARN && m.rope.theta == 7e5 && m.rope.factor == 8);
        assert_true(m.rope.attention_factor == 1.5 && m.max_position == 65536);
        assert_true(m.local_rope.kind == ROPE_DEFAULT && m.local_rope.theta == 7e5);
    }
    ok_family("olmo3", ",\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":9}}", &m);
    assert_true(m.rope.theta == 5e5 && m.local_rope.theta == 9);
    ok_family("olmo3", "", &m);
    assert_memory_equal(&m.rope, &m.local_rope, sizeof m.rope);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt_oss),
                                       cmocka_unit_test(test_precedence),
                                       cmocka_unit_test(test_smollm3_and_seed_oss),
                                       cmocka_unit_test(test_shared_experts),
                                       cmocka_unit_test(test_joint_norms),
                                       cmocka_unit_test(test_latents),
                                       cmocka_unit_test(test_latent_keys),
                                       cmocka_unit_test(test_latent_scores),
                                       cmocka_unit_test(test_recurrent),
                                       cmocka_unit_test(test_recurrent_keys),
                                       cmocka_unit_test(test_plain_local_rotation),
                                       cmocka_unit_test(test_tied_texts),
                                       cmocka_unit_test(test_query_beta),
                                       cmocka_unit_test(test_window_turns),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_latent_refusals),
                                       cmocka_unit_test(test_recurrent_refusals),
                                       cmocka_unit_test(test_interleaved),
                                       cmocka_unit_test(test_granite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
