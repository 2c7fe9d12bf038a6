/* Mixtures of experts in config.json: what their numbers are called, and what is refused. */
#include "tests/family_text.h"

/* As transformers 5.23's classes have it where config.json says nothing, and what else only these
 * families have. */
static void test_names_of_mixtures(void **state)
{
    (void)state;
    struct model_config m;
    ok_family("ernie4_5_moe", "", &m);
    const struct mixture_config ernie = {
        MIXTURE_GLM, 64, 6, true, 2, 1, true, CORRECTIONS_STATICS, .dense = 1, .dense_mlp = 8};
    assert_memory_equal(&m.mixture, &ernie, sizeof ernie);
    assert_true(m.mlp == 1536 && m.kv_heads == 4 && m.interleaved && m.tied);
    assert_true(m.rope.theta == 5e5 && m.norm_eps == 1e-5f);
    ok_family("ernie4_5_moe",
              ",\"moe_num_shared_experts\":0,\"moe_layer_start_index\":2,\"moe_layer_end_index\":3,"
              "\"moe_k\":8,\"moe_norm_min\":1e-12",
              &m);
    assert_true(m.mixture.shared == 0 && m.mixture.dense == 2 && m.mixture.chosen == 8);
    ok_family("ernie4_5_moe", /* the names that others have, and what its class does not ask */
              ",\"num_experts\":32,\"num_experts_per_tok\":3,\"norm_topk_prob\":false,"
              "\"routed_scaling_factor\":2",
              &m);
    assert_true(m.mixture.experts == 32 && m.mixture.chosen == 3);
    assert_true(m.mixture.among && m.mixture.scale == 1);
    ok_family("exaone_moe", "", &m);
    const struct mixture_config exaone = {.kind = MIXTURE_GLM,
                                          .experts = 64,
                                          .chosen = 8,
                                          .among = true,
                                          .shared = 1,
                                          .scale = 2.5f,
                                          .corrections = CORRECTIONS_MLP,
                                          .dense = 1,
                                          .dense_mlp = 8};
    assert_memory_equal(&m.mixture, &exaone, sizeof exaone);
    assert_true(m.mlp == 1024 && m.kv_heads == 32 && m.post_norms == POST_NORMS_NONE);
    ok_family("exaone_moe", ",\"num_experts\":128,\"num_shared_experts\":2", &m);
    assert_true(m.mixture.experts == 128 && m.mixture.shared == 2);
    ok_family("solar_open", "", &m);
    assert_true(m.mixture.experts == 128 && m.mixture.dense == 0 && m.mixture.shared == 1);
    ok_family("solar_open", ",\"num_local_experts\":64", &m);
    assert_int_equal(m.mixture.experts, 64);
    assert_true(m.mlp == 1280 && m.head_dim == 128 && m.rope.theta == 1e6 && m.norm_eps == 1e-5f);
#define DOTS ",\"num_experts_per_tok\":6,\"n_routed_experts\":128,\"n_shared_experts\":2"
    ok_family("dots1", DOTS ",\"scoring_func\":\"noaux_tc\",\"use_sliding_window\":false", &m);
    assert_true(m.mixture.experts == 128 && m.mixture.shared == 2 && !m.mixture.among);
    assert_true(m.head_norm && m.window == 0 && m.kv_heads == 32 && m.mlp == 1408);
    ok_family("dots1", DOTS ",\"max_window_layers\":2,\"sliding_window\":9", &m);
    assert_true(m.window == 9 && m.slides[0] == 0xc);
    ok_family("dots1",
              DOTS
              ",\"max_window_layers\":2,\"sliding_window\":9,\"layer_types\":[\"full_attention\","
              "\"sliding_attention\",\"full_attention\",\"full_attention\"]",
              &m);
    assert_int_equal(m.slides[0], 0x2);
    ok_family("iquestcoder", "", &m);
    assert_true(m.head_dim == 128 && m.kv_heads == 8 && m.norm_eps == 1e-5f && !m.tied);
    ok_family("iquestcoder", ",\"use_sliding_window\":false,\"sliding_window\":4096", &m);
    assert_int_equal(m.window, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const refused[][3] = {
        {"glm4_moe", ",\"n_group\":3",
         "n_group is 3, expected a divisor of n_routed_experts, which"},
        {"glm4_moe", ",\"n_group\":128", "n_group is 128, expected at most half of n_routed"},
        {"glm4_moe", ",\"topk_group\":4", "topk_group is 4, expected at most n_group, which is 1"},
        {"glm4_moe", ",\"n_group\":32", "groups of 4 experts that have num_experts_per_tok, which"},
        {"glm4_moe", ",\"n_group\":0", "n_group is 0, expected an integer"},
        {"glm4_moe", ",\"first_k_dense_replace\":4", "expected less than num_hidden_layers"},
        {"glm4_moe_lite", ",\"mlp_layer_types\":[\"dense\"]", "a list of as many as num_hidden"},
        {"glm4_moe_lite", ",\"mlp_layer_types\":[\"dense\",\"sparse\",\"dense\",\"sparse\"]",
         "mlp_layer_types is an array, expected a list of as many as num_hidden_layers, \"dense\""},
        {"glm4_moe", ",\"n_shared_experts\":0", "n_shared_experts is 0, expected an integer"},
        {"glm4_moe", ",\"num_experts_per_tok\":60,\"n_shared_experts\":5",
         "133 experts of which a token takes 65, shared ones of one width among them"},
        {"glm4_moe", ",\"n_routed_experts\":1024", "1025 experts of which a token takes 9"},
        {"qwen2_moe", ",\"shared_expert_intermediate_size\":1409",
         "is 1409, expected a multiple of moe_intermediate_size, which is 1408"},
        {"qwen2_moe", ",\"use_sliding_window\":true", "use_sliding_window is true, expected false"},
        {"qwen2_moe", ",\"mlp_only_layers\":[0]", "layers without experts are not supported"},
        {"dots1", "", "num_experts_per_tok is missing, expected an integer"},
        {"dots1", ",\"num_experts_per_tok\":6", "n_routed_experts is missing, expected an integer"},
        {"dots1", ",\"num_experts_per_tok\":6,\"n_routed_experts\":64",
         "n_shared_experts is missing, expected an integer"},
        {"glm4_moe", ",\"scoring_func\":\"softmax\"", "is \"softmax\", expected \"sigmoid\""},
        {"exaone_moe", ",\"n_group\":3", "n_group is 3, expected a divisor of num_experts, which"},
        {"exaone_moe", ",\"num_shared_experts\":-1",
         "num_shared_experts is -1, expected an integer"},
        {"solar_open", ",\"attention_bias\":true", "attention_bias is true, expected false"},
        {"ernie4_5_moe", ",\"moe_k\":65", "moe_k is 65, expected an integer"},
        {"ernie4_5_moe", ",\"moe_num_experts\":4", "moe_k is missing, expected at most as many"},
        {"ernie4_5_moe", ",\"moe_layer_start_index\":4",
         "moe_layer_start_index is 4, expected less"},
        {"ernie4_5_moe", ",\"moe_layer_end_index\":2",
         "moe_layer_end_index is 2, expected the last"},
        {"ernie4_5_moe", ",\"moe_layer_interval\":2", "moe_layer_interval is 2, expected 1"},
        {"ernie4_5_moe", ",\"moe_norm_min\":1e-6", "moe_norm_min is 1e-06, expected 1e-12"},
        {"ernie4_5_moe", ",\"use_bias\":true", "use_bias is true, expected false"},
        {"ernie4_5_moe", ",\"moe_gate_act\":\"sigmoid\"", "is \"sigmoid\", expected \"softmax\""},
        {"exaone_moe", ",\"sliding_window_pattern\":\"LG\"",
         "pattern is \"LG\", expected an integer"},
        {"olmoe", ",\"clip_qkv\":8", "clip_qkv is 8, expected null"},
        {"olmoe", ",\"num_experts_per_tok\":65", "num_experts_per_tok is 65, expected"},
        {"minimax_m2", ",\"attn_type_list\":[1,0]", "attn_type_list is an array, expected a list"},
        {"minimax_m2", ",\"attn_type_list\":1", "attn_type_list is 1, expected a list of 1"},
        {"minimax_m2", ",\"scoring_func\":\"softmax\"", "scoring_func is \"softmax\", expected"},
        {"minimax_m2", ",\"qk_norm_type\":\"per_head\"", "qk_norm_type is \"per_head\", expected"},
        {"minimax_m2", ",\"use_qk_norm\":false", "use_qk_norm is false, expected true"},
        {"minimax_m2", ",\"use_routing_bias\":false", "use_routing_bias is false, expected true"},
        {"minimax_m2", ",\"shared_intermediate_size\":8",
         "shared_intermediate_size is 8, expected 0"},
        {"minimax_m2", ",\"rotary_dim\":7",
         "rotary_dim is 7, expected one by which an even number"},
        {"minimax_m2", ",\"rotary_dim\":130", "rotary_dim is 130, expected an integer"},
    };
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        refuses(refused[i][0], refused[i][1], refused[i][2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_mixtures),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
