#include "config/family.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define DEEPSEEK_V3                                                                                \
    .vocab = 129280, .heads = 128, .max_position = 4096, .interleaved = true,                      \
    .interleaved_key = "rope_interleave", .latent = {1536, 512, 64, 128, 128, 1e-6f},              \
    .mixture = {.kind = MIXTURE_GLM,                                                               \
                .experts = 256,                                                                    \
                .chosen = 8,                                                                       \
                .among = true,                                                                     \
                .shared = 1,                                                                       \
                .scale = 2.5f,                                                                     \
                .groups = 8,                                                                       \
                .kept = 4,                                                                         \
                .dense = 3,                                                                        \
                .dense_mlp = 18432},                                                               \
    .expert_mlp = 2048

#define GEMMA3                                                                                     \
    .vocab = 262208, .heads = 8, .max_position = 131072, .reaches = true, .kv_heads = 4,           \
    .head_dim = 256, .tied = true, .head_norm = true, .gemma = true,                               \
    .post_norms = POST_NORMS_GEMMA, .theta = 1e6, .window = 4096, .period = 6, .local_theta = 1e4, \
    .query_scalar = 256

#define GEMMA4                                                                                     \
    .vocab = 262144, .heads = 8, .reaches = true, .kv_heads = 4, .head_dim = 256, .tied = true,    \
    .head_norm = true, .gemma = true, .post_norms = POST_NORMS_GEMMA, .theta = 1e6, .period = 6,   \
    .local_theta = 1e4, .global_dim = 512

#define GLM                                                                                        \
    .vocab = 151552, .heads = 32, .max_position = 131072, .kv_heads = 2, .head_dim = 128,          \
    .norm_eps = 0.00000015625, .fused_gate_up = true, .qkv_bias = true,                            \
    .qkv_bias_key = "attention_bias", .partial = 0.5, .interleaved = true

#define OLMO                                                                                       \
    .vocab = 50304, .heads = 32, .max_position = 2048, .norm_eps = 1e-5, .head_norm = true,        \
    .joint_norm = true, .post_norms = POST_NORMS_OLMO

/* Qwen3.5's, and but for their sizes Qwen3-Next. */
#define QWEN3_HYBRID                                                                               \
    .max_position = 32768, .head_dim = 256, .head_norm = true, .norm_offset = true,                \
    .attention_gate = true, .partial = 0.25, .attends = 4

#define QWEN3_5                                                                                    \
    QWEN3_HYBRID, .vocab = 248320, .heads = 16, .kv_heads = 4, .sections = true,                   \
                  .recurrent = {16, 32, 128, 128, 4, false}

#define QWEN3_5_MOE                                                                                \
    QWEN3_HYBRID, .vocab = 248320, .heads = 16, .kv_heads = 2, .sections = true,                   \
                  .recurrent = {16, 32, 128, 128, 4, false},                                       \
                  .mixture = {.kind = MIXTURE_QWEN2, .experts = 256, .chosen = 8, .among = true},  \
                  .expert_mlp = 512, .shared_mlp = 512, .always_among = true

#define MINISTRAL3                                                                                 \
    .vocab = 131072, .heads = 32, .max_position = 262144, .reaches = true, .kv_heads = 8,          \
    .head_dim = 128, .norm_eps = 1e-5, .window = FAMILY_NO_WINDOW, .query_beta = true

#define EXAONE4                                                                                    \
    .vocab = 102400, .heads = 32, .max_position = 2048, .kv_heads = 32, .norm_eps = 1e-5,          \
    .head_norm = true, .window = 4096, .period = 4, .window_turns = true

#define MISTRAL4                                                                                   \
    .vocab = 131072, .heads = 32, .max_position = 1048576, .reaches = true, .interleaved = true,   \
    .interleaved_key = "rope_interleave", .latent = {1024, 256, 64, 64, 128, 1e-6f},               \
    .query_beta = true,                                                                            \
    .mixture = {.kind = MIXTURE_GLM,                                                               \
                .experts = 128,                                                                    \
                .chosen = 4,                                                                       \
                .among = true,                                                                     \
                .shared = 1,                                                                       \
                .scale = 1,                                                                        \
                .softmax = true,                                                                   \
                .corrections = CORRECTIONS_NONE,                                                   \
                .dense_mlp = 12288},                                                               \
    .expert_mlp = 2048

#define QWEN2_VL                                                                                   \
    .flat = true, .max_position = 32768, .kv_heads = 8, .theta = 1e6, .norm_eps = 1e-5,            \
    .window = 4096, .window_off = true, .window_from = 80, .sections = true, .qkv_bias = true

static const struct family families[] = {
    {.model_type = "llama", .max_position = 2048},
    {.model_type = "mistral", .max_position = 131072, .kv_heads = 8, .window = 4096},
    {.model_type = "mistral3",
     .inner = "mistral",
     .max_position = 131072,
     .kv_heads = 8,
     .window = 4096},
    {.model_type = "mistral3", .inner = "ministral3", MINISTRAL3},
    {.model_type = "mistral3", .inner = "mistral4", MISTRAL4},
    {.model_type = "ministral3", MINISTRAL3},
    {.model_type = "mistral4", MISTRAL4},
    {.model_type = "mixtral",
     .max_position = 131072,
     .kv_heads = 8,
     .window = FAMILY_NO_WINDOW,
     .theta = 1e6,
     .norm_eps = 1e-5,
     .mixture = {.kind = MIXTURE_MIXTRAL, .experts = 8, .chosen = 2, .among = true}},
    {.model_type = "iquestcoder",
     .vocab = 76800,
     .heads = 40,
     .max_position = 131072,
     .kv_heads = 8,
     .head_dim = 128,
     .norm_eps = 1e-5},
    {.model_type = "smollm3",
     .max_position = 32768,
     .kv_heads = 4,
     .tied = true,
     .qkv_bias_key = "attention_bias",
     .o_bias_key = "attention_bias",
     .theta = 2e6,
     .window = FAMILY_NO_WINDOW,
     .window_off = true,
     .no_rope_interval = 4},
    {.model_type = "seed_oss",
     .max_position = 524288,
     .kv_heads = 8,
     .head_dim = 128,
     .qkv_bias = true,
     .qkv_bias_key = "attention_bias",
     .o_bias_key = "attention_out_bias"},
    {.model_type = "ernie4_5",
     .vocab = 103424,
     .heads = 16,
     .max_position = 131072,
     .kv_heads = 2,
     .head_dim = 128,
     .tied = true,
     .theta = 5e5,
     .norm_eps = 1e-5,
     .interleaved = true},
    {.model_type = "ernie4_5_moe",
     .vocab = 103424,
     .heads = 20,
     .max_position = 131072,
     .kv_heads = 4,
     .tied = true,
     .theta = 5e5,
     .norm_eps = 1e-5,
     .interleaved = true,
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = 64,
                 .chosen = 6,
                 .among = true,
                 .shared = 2,
                 .scale = 1,
                 .softmax = true,
                 .corrections = CORRECTIONS_STATICS,
                 .dense = 1,
                 .dense_mlp = 12288},
     .keys = {"moe_num_experts", "moe_k", "moe_num_shared_experts", "moe_layer_start_index"},
     .expert_mlp = 1536},
    {.model_type = "exaone4", .post_norms = POST_NORMS_OLMO, EXAONE4},
    {.model_type = "exaone_moe",
     EXAONE4,
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = 64,
                 .chosen = 8,
                 .among = true,
                 .shared = 1,
                 .scale = 2.5f,
                 .corrections = CORRECTIONS_MLP,
                 .dense = 1,
                 .dense_mlp = 16384},
     .keys = {.experts = "num_experts", .shared = "num_shared_experts"},
     .expert_mlp = 1024},
    {.model_type = "glm", GLM},
    {.model_type = "glm4", .post_norms = POST_NORMS_GLM4, GLM},
    {.model_type = "granite",
     .max_position = 2048,
     .multipliers = true,
     .qkv_bias_key = "attention_bias",
     .o_bias_key = "attention_bias"},
    {.model_type = "olmo2", OLMO},
    {.model_type = "olmo3", .theta = 5e5, .window = 4096, .period = 4, .local_plain = true, OLMO},
    {.model_type = "olmoe",
     .vocab = 50304,
     .heads = 16,
     .max_position = 4096,
     .norm_eps = 1e-5,
     .head_norm = true,
     .joint_norm = true,
     .mixture = {.kind = MIXTURE_QWEN, .experts = 64, .chosen = 8, .among = false}},
    {.model_type = "minimax_m2", /* published without a type, in bf16 */
     .dtype = DTYPE_BF16,
     .vocab = 200064,
     .heads = 48,
     .max_position = 196608,
     .kv_heads = 8,
     .head_dim = 128,
     .theta = 5e6,
     .head_norm = true,
     .joint_norm = true,
     .partial = 1,
     .rotary_key = true,
     .mixture = {.kind = MIXTURE_MINIMAX, .experts = 256, .chosen = 8, .among = true}},
    {.model_type = "phi3",
     .max_position = 4096,
     .window = FAMILY_NO_WINDOW,
     .fused_qkv = true,
     .fused_gate_up = true,
     .original = 4096,
     .partial = 1,
     .norm_eps = 1e-5},
    {.model_type = "qwen2",
     .max_position = 32768,
     .kv_heads = 32,
     .window = 4096,
     .window_off = true,
     .window_from = 28,
     .qkv_bias = true},
    {.model_type = "qwen2_vl", .inner = "qwen2_vl_text", QWEN2_VL},
    {.model_type = "qwen2_5_vl", .inner = "qwen2_5_vl_text", QWEN2_VL},
    {.model_type = "qwen3",
     .max_position = 32768,
     .kv_heads = 32,
     .head_dim = 128,
     .window = 4096,
     .window_off = true,
     .window_from = 28,
     .head_norm = true},
    {.model_type = "qwen3_vl",
     .inner = "qwen3_vl_text",
     .max_position = 128000,
     .kv_heads = 32,
     .head_dim = 128,
     .theta = 5e5,
     .sections = true,
     .head_norm = true},
    {.model_type = "qwen3_moe",
     .max_position = 32768,
     .kv_heads = 4,
     .window = 4096,
     .window_off = true,
     .head_norm = true,
     .mixture = {.kind = MIXTURE_QWEN, .experts = 128, .chosen = 8, .among = false},
     .expert_mlp = 768},
    {.model_type = "qwen2_moe",
     .max_position = 32768,
     .kv_heads = 16,
     .window = 4096,
     .window_off = true,
     .window_from = 28,
     .qkv_bias = true,
     .qkv_bias_key = "qkv_bias",
     .mixture = {.kind = MIXTURE_QWEN2, .experts = 60, .chosen = 4, .among = false},
     .expert_mlp = 1408,
     .shared_mlp = 5632},
    {.model_type = "qwen3_next",
     QWEN3_HYBRID,
     .vocab = 151936,
     .heads = 16,
     .kv_heads = 2,
     .recurrent = {16, 32, 128, 128, 4, true},
     .mixture = {.kind = MIXTURE_QWEN2, .experts = 512, .chosen = 10, .among = true},
     .expert_mlp = 512,
     .shared_mlp = 512,
     .plain_too = true},
    {.model_type = "qwen3_5_text", QWEN3_5},
    {.model_type = "qwen3_5", .inner = "qwen3_5_text", QWEN3_5},
    {.model_type = "qwen3_5_moe_text", QWEN3_5_MOE},
    {.model_type = "qwen3_5_moe", .inner = "qwen3_5_moe_text", QWEN3_5_MOE},
    {.model_type = "glm4_moe",
     .max_position = 131072,
     .kv_heads = 8,
     .qkv_bias_key = "attention_bias",
     .head_norm_key = "use_qk_norm",
     .partial = 0.5,
     .norm_eps = 1e-5,
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = 128,
                 .chosen = 8,
                 .among = true,
                 .shared = 1,
                 .scale = 1,
                 .dense = 1,
                 .dense_mlp = 10944},
     .expert_mlp = 1408},
    {.model_type = "solar_open",
     .vocab = 196608,
     .heads = 64,
     .max_position = 131072,
     .kv_heads = 8,
     .head_dim = 128,
     .theta = 1e6,
     .norm_eps = 1e-5,
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = 128,
                 .chosen = 8,
                 .among = true,
                 .shared = 1,
                 .scale = 1,
                 .dense_mlp = 1280},
     .expert_mlp = 1280},
    {.model_type = "dots1",
     .vocab = 152064,
     .heads = 32,
     .max_position = 2048,
     .kv_heads = 32,
     .window = 4096,
     .window_from = 62,
     .head_norm = true,
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = -1,
                 .chosen = -1,
                 .shared = -1,
                 .scale = 1,
                 .dense_mlp = 10944},
     .expert_mlp = 1408},
    {.model_type = "glm4_moe_lite",
     .vocab = 154880,
     .heads = 20,
     .max_position = 202752,
     .norm_eps = 1e-5,
     .interleaved = true,
     .interleaved_key = "rope_interleave",
     .latent = {768, 512, 64, 192, 256, 1e-6f},
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = 64,
                 .chosen = 4,
                 .among = true,
                 .shared = 1,
                 .scale = 1.8f,
                 .dense = 1,
                 .dense_mlp = 10240},
     .expert_mlp = 1536},
    {.model_type = "deepseek_v2",
     .vocab = 102400,
     .heads = 32,
     .max_position = 2048,
     .interleaved = true,
     .latent = {1536, 512, 64, 128, 128, 1e-6f},
     .mixture = {.kind = MIXTURE_GLM,
                 .experts = 64,
                 .chosen = -1,
                 .shared = 2,
                 .scale = 1,
                 .softmax = true,
                 .corrections = CORRECTIONS_NONE,
                 .dense_mlp = 11008},
     .expert_mlp = 1407},
    {.model_type = "deepseek_v3", DEEPSEEK_V3},
    {.model_type = "kimi_k2", DEEPSEEK_V3}, /* a name of its own, and the same class */
    {.model_type = "youtu",
     .vocab = 128256,
     .heads = 16,
     .max_position = 131072,
     .tied = true,
     .interleaved = true,
     .interleaved_key = "rope_interleave",
     .latent = {1536, 512, 64, 128, 128, 1e-6f}},
    {.model_type = "gpt_oss", /* published without a type, in bf16 */
     .dtype = DTYPE_BF16,
     .vocab = 201088,
     .heads = 64,
     .max_position = 131072,
     .reaches = true,
     .kv_heads = 8,
     .head_dim = 64,
     .qkv_bias = true,
     .o_bias = true,
     .sinks = true,
     .theta = 150000,
     .norm_eps = 1e-5,
     .window = 128,
     .period = 2,
     .mixture = {.kind = MIXTURE_GPT_OSS, .experts = 128, .chosen = 4, .among = true}},
    {.model_type = "gemma",
     .vocab = 256000,
     .max_position = 8192,
     .kv_heads = 16,
     .head_dim = 256,
     .tied = true,
     .gemma = true},
    {.model_type = "gemma2",
     .vocab = 256000,
     .max_position = 8192,
     .kv_heads = 4,
     .head_dim = 256,
     .tied = true,
     .gemma = true,
     .post_norms = POST_NORMS_GEMMA,
     .window = 4096,
     .period = 2,
     .query_scalar = 256,
     .attention_softcap = 50,
     .final_softcap = 30},
    {.model_type = "gemma3_text", GEMMA3},
    {.model_type = "gemma3", .inner = "gemma3_text", GEMMA3},
    {.model_type = "gemma4_text",
     GEMMA4,
     .max_position = 131072,
     .window = 512,
     .layer_input = 256},
    {.model_type = "gemma4",
     .inner = "gemma4_text",
     GEMMA4,
     .max_position = 131072,
     .window = 512,
     .layer_input = 256},
    {.model_type = "gemma4_unified_text", GEMMA4, .max_position = 262144, .window = 1024},
    {.model_type = "gemma4_unified",
     .inner = "gemma4_unified_text",
     GEMMA4,
     .max_position = 262144,
     .window = 1024},
};

const struct family *family_find(const char *model_type, int *distance)
{
    const struct family *found = families;
    *distance = INT_MAX;
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const int d = base_edit_distance(model_type, families[i].model_type);
        if (d < *distance) {
            *distance = d;
            found = &families[i];
        }
    }
    return found;
}

const struct family *family_inner(const struct family *f, const char *inner)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strcmp(families[i].model_type, f->model_type) == 0 &&
            strcmp(families[i].inner, inner) == 0)
            return &families[i];
    return NULL;
}

/* Is it named already, or the text's part of another one, which names it well enough? */
static bool is_named(size_t i)
{
    return base_ends_with(families[i].model_type, "_text") ||
           (i > 0 && strcmp(families[i].model_type, families[i - 1].model_type) == 0);
}

void family_names(char *to, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(families) && n < size; i++)
        if (!is_named(i))
            n += (size_t)snprintf(to + n, size - n, "%s%s",
                                  i == 0                        ? ""
                                  : i + 1 < ARRAY_LEN(families) ? ", "
                                                                : " or ",
                                  families[i].model_type);
}

void family_inner_names(const struct family *f, char *to, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(families) && n < size; i++)
        if (strcmp(families[i].model_type, f->model_type) == 0)
            n += (size_t)snprintf(to + n, size - n, "%s\"%s\"", n > 0 ? " or " : "",
                                  families[i].inner);
}
