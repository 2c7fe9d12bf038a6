/* The whole model in integers, in every layout: weights are -1, 0 and 1, and where a transformer is
 * not exact (norms, rotation, softmax, SiLU) the ranks run integer functions instead, so that every
 * sum is a whole number below 2^24 and no order of additions rounds. The logits of every rank must
 * then equal plain int64 loops, with no tolerance: a wrong block, a swapped group, a double count
 * or a sum left out cannot hide. q, k and v have biases. Nothing divides: 6 heads, 3 KV heads, MLP
 * 97, vocabulary 131. */
#include "tests/cluster.h"
#include "tests/scratch.h"

enum { H = 26, LAYERS = 2, HEADS = 6, KV = 3, DH = 4, F = 97, V = 131 };
enum { SLOTS = 2, POSITIONS = 8, RANKS = 16, QKV = (HEADS + 2 * KV) * DH };
enum { EXACT = 1 << 24 };

/* ---- weights ---- */

enum tensor {
    EMBED,
    HEAD,
    NORM,
    IN_NORM,
    MLP_NORM,
    Q,
    K,
    VALUE,
    O,
    GATE,
    UP,
    DOWN,
    Q_BIAS,
    K_BIAS,
    VALUE_BIAS,
    TENSORS
};
static const struct {
    const char *name;
    int rows, cols; /* rows 0: a vector */
} tensors[TENSORS] = {
    [EMBED] = {"model.embed_tokens", V, H},
    [HEAD] = {"lm_head", V, H},
    [NORM] = {"model.norm", 0, H},
    [IN_NORM] = {"input_layernorm", 0, H},
    [MLP_NORM] = {"post_attention_layernorm", 0, H},
    [Q] = {"self_attn.q_proj", HEADS *DH, H},
    [K] = {"self_attn.k_proj", KV *DH, H},
    [VALUE] = {"self_attn.v_proj", KV *DH, H},
    [O] = {"self_attn.o_proj", H, HEADS *DH},
    [GATE] = {"mlp.gate_proj", F, H},
    [UP] = {"mlp.up_proj", F, H},
    [DOWN] = {"mlp.down_proj", H, F},
    [Q_BIAS] = {"self_attn.q_proj", 0, HEADS *DH},
    [K_BIAS] = {"self_attn.k_proj", 0, KV *DH},
    [VALUE_BIAS] = {"self_attn.v_proj", 0, KV *DH},
};

/* -1, 0 or 1; of a norm 1 or 2. */
static int weight(enum tensor t, int layer, int row, int col)
{
    uint32_t x = (uint32_t)t * 0x9e3779b1u + (uint32_t)layer * 0x7feb352du +
                 (uint32_t)row * 0x85ebca6bu + (uint32_t)col * 0xc2b2ae35u;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    x ^= x >> 15;
    const bool norm = tensors[t].rows == 0 && t < Q_BIAS;
    return norm ? 1 + (int)(x & 1) : (int)(x % 3) - 1;
}

static void write_tensor(FILE *header, FILE *data, enum tensor t, int layer)
{
    const int rows = tensors[t].rows > 0 ? tensors[t].rows : 1, cols = tensors[t].cols;
    const long begin = ftell(data);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            fwrite(&(float){(float)weight(t, layer, r, c)}, sizeof(float), 1, data);
    fprintf(header, "%s\"", begin > 0 ? "," : "");
    if (t >= IN_NORM)
        fprintf(header, "model.layers.%d.", layer);
    fprintf(header, "%s.%s\":{\"dtype\":\"F32\",\"shape\":[", tensors[t].name,
            t < Q_BIAS ? "weight" : "bias");
    if (tensors[t].rows > 0)
        fprintf(header, "%d,", rows);
    fprintf(header, "%d],\"data_offsets\":[%ld,%ld]}", cols, begin, ftell(data));
}

/* A checkpoint directory; returns its path. */
static const char *write_model(void)
{
    static char folder[1024];
    char path[1100], *text[2], config[600];
    size_t n[2];
    FILE *header = open_memstream(&text[0], &n[0]), *data = open_memstream(&text[1], &n[1]);
    fputs("{", header);
    for (int t = EMBED; t < IN_NORM; t++)
        write_tensor(header, data, (enum tensor)t, 0);
    for (int i = 0; i < LAYERS; i++)
        for (int t = IN_NORM; t < TENSORS; t++)
            write_tensor(header, data, (enum tensor)t, i);
    fputs("}", header);
    fclose(header);
    fclose(data);
    snprintf(folder, sizeof folder, "%s", scratch_path("exact"));
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&(uint64_t){n[0]}, 8, 1, file);
    fwrite(text[0], 1, n[0], file);
    fwrite(text[1], 1, n[1], file);
    assert_int_equal(fclose(file), 0);
    free(text[0]);
    free(text[1]);
    snprintf(config, sizeof config,
             "{\"model_type\":\"qwen2\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
             "\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":64,"
             "\"rms_norm_eps\":1e-5,\"torch_dtype\":\"float32\",\"tie_word_embeddings\":false}",
             H, LAYERS, HEADS, KV, DH, F, V);
    snprintf(path, sizeof path, "%s/config.json", folder);
    scratch_write(path, config, strlen(config));
    return folder;
}

/* ---- what the ranks run ---- */

/* In place of a norm: keeps numbers small and depends on every one of them. */
static int fold(int64_t x)
{
    return (int)(((x % 5) + 5) % 5) - 2;
}

static struct cluster *running;
/* Keys and values of each rank: [layer][slot][position][2 * local KV heads * DH]. */
static float cache[RANKS][LAYERS][SLOTS][POSITIONS][2 * KV * DH];

static void exact_rmsnorm(struct backend *b, struct view y, struct cview x, const float *gain,
                          float eps)
{
    (void)b, (void)eps;
    const float *from = x.data;
    float *to = y.data;
    for (int64_t i = 0; i < (int64_t)x.rows * x.cols; i++)
        to[i] = (float)fold((int64_t)from[i]) * gain[i % x.cols];
}

static void add(struct view x, struct cview delta)
{
    float *to = x.data;
    for (int64_t i = 0; delta.data && i < (int64_t)x.rows * x.cols; i++)
        to[i] += ((const float *)delta.data)[i];
}

static void exact_add_rmsnorm(struct backend *b, struct view y, struct view x, struct cview delta,
                              const float *gain, float eps)
{
    add(x, delta);
    exact_rmsnorm(b, y, cview_of(x), gain, eps);
}

/* Counts columns: their sum over the ranks must be the whole row. */
static void exact_square_sum(struct backend *b, float *sums, struct view x, struct cview delta,
                             struct pieces pieces)
{
    (void)b, (void)pieces;
    add(x, delta);
    for (int32_t t = 0; t < x.rows; t++)
        sums[t] = (float)x.cols;
}

static void exact_rms_scale(struct backend *b, struct view y, struct cview x, const float *sums,
                            int32_t width, const float *gain, float eps)
{
    for (int32_t t = 0; t < x.rows; t++)
        CHECK((int32_t)sums[t] == width);
    exact_rmsnorm(b, y, x, gain, eps);
}

static int32_t rank_of(const struct backend *b)
{
    int32_t r = 0;
    while (rank_backend(running->ranks[r]) != b)
        r++;
    return r;
}

/* No rotation; keys and values are kept as they are with their bias. */
static void exact_rope_kv(struct backend *b, struct view qkv, const struct qkv_rules *rules,
                          struct cview table, const struct heads *h, const struct rows *rows,
                          struct kv_cache *kv, int32_t layer)
{
    (void)table, (void)kv;
    const int32_t rank = rank_of(b), width = 2 * h->kv_heads * DH;
    float *row = qkv.data;
    for (int32_t t = 0; t < qkv.rows; t++, row += qkv.cols) {
        for (int32_t i = 0; i < qkv.cols; i++)
            row[i] += rules->bias[i];
        if (rows->slot[t] >= 0)
            memcpy(cache[rank][layer][rows->slot[t]][rows->position[t]], row + h->heads * DH,
                   (size_t)width * sizeof *row);
    }
}

/* Linear attention: the sum of (q k) v over the positions up to the row's own. */
static void exact_attend(struct backend *b, struct view out, struct cview qkv,
                         const struct heads *h, const struct attention *how,
                         const struct rows *rows, const struct kv_cache *kv, int32_t layer)
{
    (void)how;
    (void)kv;
    const int32_t rank = rank_of(b);
    float *y = out.data;
    memset(y, 0, (size_t)out.rows * (size_t)out.cols * sizeof *y);
    for (int32_t t = 0; t < qkv.rows; t++) {
        for (int32_t head = 0; head < h->heads && rows->slot[t] >= 0; head++) {
            const float *q = (const float *)qkv.data + t * qkv.cols + head * DH;
            for (int32_t p = 0; p <= rows->position[t]; p++) {
                const float *at = cache[rank][layer][rows->slot[t]][p];
                const float *k = at + h->kv_of[head] * DH, *v = k + h->kv_heads * DH;
                float score = 0;
                for (int i = 0; i < DH; i++)
                    score += q[i] * k[i];
                for (int i = 0; i < DH; i++)
                    y[t * out.cols + head * DH + i] += score * v[i];
            }
        }
    }
}

static void exact_act_mul(struct backend *b, struct view y, struct cview gu, enum activation act)
{
    (void)b;
    assert_int_equal(act, ACT_SILU);
    for (int32_t t = 0; t < y.rows; t++) {
        const float *g = (const float *)gu.data + (int64_t)t * gu.cols, *u = g + y.cols;
        for (int32_t i = 0; i < y.cols; i++)
            ((float *)y.data)[t * y.cols + i] = (g[i] > 0 ? g[i] : 0) - u[i];
    }
}

static void hook(struct cluster *c)
{
    static struct backend_ops ops;
    ops = *rank_backend(c->ranks[0])->ops;
    ops.rmsnorm = exact_rmsnorm;
    ops.add_rmsnorm = exact_add_rmsnorm;
    ops.square_sum = exact_square_sum;
    ops.rms_scale = exact_rms_scale;
    ops.rope_kv = exact_rope_kv;
    ops.attend = exact_attend;
    ops.act_mul = exact_act_mul;
    for (int32_t r = 0; r < c->footprint.ranks; r++)
        rank_backend(c->ranks[r])->ops = &ops;
    running = c;
}

/* ---- the same in int64 ---- */

static int64_t kept[LAYERS][POSITIONS][QKV];

/* out[rows] = x[cols] by the tensor; no sum may leave the whole numbers of fp32. */
static void product(int64_t *out, const int64_t *x, enum tensor t, int layer)
{
    for (int r = 0; r < tensors[t].rows; r++) {
        int64_t sum = 0, size = 0;
        for (int c = 0; c < tensors[t].cols; c++) {
            const int64_t term = x[c] * weight(t, layer, r, c);
            sum += term;
            size += llabs(term);
        }
        assert_true(size < EXACT);
        out[r] = sum;
    }
}

static void biased(int64_t *out, const int64_t *x, enum tensor t, enum tensor bias, int layer)
{
    product(out, x, t, layer);
    for (int r = 0; r < tensors[t].rows; r++)
        out[r] += weight(bias, layer, 0, r);
}

static void normed(int64_t *out, const int64_t *x, enum tensor t, int layer)
{
    for (int i = 0; i < H; i++)
        out[i] = fold(x[i]) * weight(t, layer, 0, i);
}

static void attention(int64_t *out, int layer, int position)
{
    const int64_t *mine = kept[layer][position];
    for (int i = 0; i < HEADS * DH; i++) {
        const int head = i / DH, group = head / (HEADS / KV);
        int64_t size = 0;
        out[i] = 0;
        for (int p = 0; p <= position; p++) {
            const int64_t *k = kept[layer][p] + (HEADS + group) * DH, *v = k + KV * DH;
            int64_t score = 0;
            for (int d = 0; d < DH; d++)
                score += mine[head * DH + d] * k[d];
            out[i] += score * v[i % DH];
            size += llabs(score * v[i % DH]);
        }
        assert_true(size < EXACT);
    }
}

/* The logits of one more token of a sequence. */
static void forward(int token, int position, int64_t logits[V])
{
    int64_t x[H], n[H], delta[H], attn[HEADS * DH], gate[F], up[F];
    for (int i = 0; i < H; i++)
        x[i] = weight(EMBED, 0, token, i);
    for (int layer = 0; layer < LAYERS; layer++) {
        int64_t *qkv = kept[layer][position];
        normed(n, x, IN_NORM, layer);
        biased(qkv, n, Q, Q_BIAS, layer);
        biased(qkv + HEADS * DH, n, K, K_BIAS, layer);
        biased(qkv + (HEADS + KV) * DH, n, VALUE, VALUE_BIAS, layer);
        attention(attn, layer, position);
        product(delta, attn, O, layer);
        for (int i = 0; i < H; i++)
            x[i] += delta[i];
        normed(n, x, MLP_NORM, layer);
        product(gate, n, GATE, layer);
        product(up, n, UP, layer);
        for (int i = 0; i < F; i++)
            gate[i] = (gate[i] > 0 ? gate[i] : 0) - up[i];
        product(delta, gate, DOWN, layer);
        for (int i = 0; i < H; i++)
            x[i] += delta[i];
    }
    normed(n, x, NORM, 0);
    product(logits, n, HEAD, 0);
}

/* ---- layouts ---- */

static const int32_t prompts[SLOTS][6] = {{7, 130, 0, 64, 19, 88}, {5, 99}};
static const int32_t lengths[SLOTS] = {5, 2}; /* and one more token of the first, alone */
static int64_t wanted[SLOTS][POSITIONS][V];

static void want_all(void)
{
    for (int s = 0; s < SLOTS; s++)
        for (int p = 0; p < 6 && p <= lengths[s]; p++)
            forward(prompts[s][p], p, wanted[s][p]);
}

/* The rows of the step, all of them sampled, in its order. */
static void check_step(struct cluster *c, const char *what)
{
    int32_t slot[SLOTS * POSITIONS], position[SLOTS * POSITIONS];
    const int32_t rows = c->step->rows;
    memcpy(slot, c->step->slot, (size_t)rows * sizeof *slot);
    memcpy(position, c->step->position, (size_t)rows * sizeof *position);
    cluster_step(c);
    for (int32_t rank = 0; rank < c->footprint.ranks; rank++) {
        for (int32_t i = 0; i < rows * V; i++) {
            const int64_t want = wanted[slot[i / V]][position[i / V]][i % V];
            if (((const float *)c->logits[rank].data)[i] != (float)want)
                fail_msg("%s: rank %d, row %d of %d, logit %d is %.9g, not %lld", what, rank, i / V,
                         rows, i % V, (double)((const float *)c->logits[rank].data)[i],
                         (long long)want);
        }
    }
}

/* Whose KV is where: of all sequences on every rank; or sequences at the first and the last home,
 * or both at one in the middle. All other homes are empty. */
enum placing { HEADS_OF_ALL, APART, TOGETHER };

static void run_layout(const char *model, int32_t ranks, const char *mode, const char *mesh,
                       const char *plan, enum placing placing, const char *what)
{
    char options[3][1100];
    const char *args[] = {options[0],
                          "--threads-per-rank=1",
                          "--max-num-seqs=16",
                          placing == HEADS_OF_ALL ? "--max-num-batched-tokens=16"
                                                  : "--max-num-batched-tokens=128",
                          placing == HEADS_OF_ALL ? "--kv-placement=heads" : "--kv-placement=home",
                          "--max-model-len=16",
                          "--kv-cache-memory=1M",
                          "--device=cpu-generic",
                          options[1],
                          NULL};
    const struct sample_params greedy = {.temperature = 0, .top_p = 1};
    snprintf(options[0], sizeof options[0], plan ? "--plan=%s" : "--parallel-mode=%s",
             plan ? plan : mode);
    snprintf(options[1], sizeof options[1], "--mesh=%s", mesh ? mesh : "");
    if (!mesh)
        args[8] = NULL;
    struct cluster *c = cluster_open(model, ranks, args);
    hook(c);
    const int32_t homes = c->footprint.limits.homes;
    for (int32_t s = 0; s < SLOTS; s++) {
        c->home = placing == TOGETHER ? homes / 2 : s * (homes - 1);
        cluster_open_slot(c, s, prompts[s], lengths[s], POSITIONS, greedy);
        for (int32_t p = 0; p < lengths[s]; p++)
            cluster_row(c, s, p, prompts[s][p], true);
    }
    check_step(c, what);
    cluster_row(c, 0, lengths[0], prompts[0][lengths[0]], true);
    check_step(c, what);
    cluster_close(c);
}

/* Every `from` in a built-in plan becomes `to`. */
struct edit {
    const char *from, *to;
};
enum { EDITS = 2 };

static const char *edited(const char *mode, int32_t ranks, const char *mesh,
                          const struct edit edits[EDITS])
{
    static char text[8192];
    struct plan *p = NULL;
    struct err err;
    size_t n = 0;
    assert_int_equal(plan_load(mode, mesh, NULL, ranks, &p, &err), OK);
    for (const char *at = plan_text(p); *at;) {
        const struct edit *e = NULL;
        for (int i = 0; i < EDITS; i++)
            if (edits[i].from && strncmp(at, edits[i].from, strlen(edits[i].from)) == 0)
                e = &edits[i];
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", e ? 100 : 1, e ? e->to : at);
        assert_true(n < sizeof text);
        at += e ? strlen(e->from) : 1;
    }
    plan_close(p);
    return text;
}

/* A layout as it is built in, or edited; *done counts. */
static void check_placed(const char *model, int32_t ranks, const char *mode, const char *mesh,
                         const struct edit *edits, enum placing placing, int *done)
{
    static const char *const placings[] = {"heads", "home, apart", "home, together"};
    const char *path = NULL;
    char what[160];
    snprintf(what, sizeof what, "%s %s at %d ranks, %s, %s", mode, mesh ? mesh : "", ranks,
             edits ? edits->to : "as it is", placings[placing]);
    if (edits) {
        const char *text = edited(mode, ranks, mesh, edits);
        path = scratch_path("plan.json");
        scratch_write(path, text, strlen(text));
        mesh = NULL;
    }
    run_layout(model, ranks, mode, mesh, path, placing, what);
    ++*done;
}

static void check_layout(const char *model, int32_t ranks, const char *mode, const char *mesh,
                         const struct edit *edits, int *done)
{
    check_placed(model, ranks, mode, mesh, edits, HEADS_OF_ALL, done);
}

static const char *model_path;

static void test_1d(void **state)
{
    (void)state;
    int done = 0;
    for (int32_t ranks = 1; ranks <= RANKS; ranks++) {
        check_layout(model_path, ranks, "1d", NULL, NULL, &done);
        check_layout(model_path, ranks, "1d_sp", NULL, NULL, &done);
    }
    assert_int_equal(done, 2 * RANKS);
}

static const struct edit rows[EDITS] = {
    {"\"style\": \"lin3d\"", "\"style\": \"lin3d\", \"scatter\": \"rows\""},
    {"\"rows\": \"w\"", "\"rows\": [\"w\", \"a\"]"}};

/* Every (w, a, b) of up to 16 ranks: sums scattered over columns, over rows, and weights gathered.
 */
static void test_3d(void **state)
{
    (void)state;
    int done = 0, meshes = 0;
    char mesh[40];
    for (int32_t w = 1; w <= RANKS; w++) {
        for (int32_t a = 1; w * a <= RANKS; a++) {
            for (int32_t b = 1; w * a * b <= RANKS; b++) {
                snprintf(mesh, sizeof mesh, "%d,%d,%d", w, a, b);
                check_layout(model_path, w * a * b, "3d", mesh, NULL, &done);
                check_layout(model_path, w * a * b, "3d", mesh, rows, &done);
                check_layout(model_path, w * a * b, "3d_gathered", mesh, NULL, &done);
                meshes++;
            }
        }
    }
    assert_int_equal(meshes, 110); /* ordered triples of product 1 to 16 */
    assert_int_equal(done, 3 * meshes);
}

/* The same with the KV cache at home, w b homes, whatever rows of (w, a) they rest in. */
static void test_3d_at_home(void **state)
{
    (void)state;
    int done = 0, meshes = 0;
    char mesh[40];
    for (int32_t w = 1; w <= RANKS; w++) {
        for (int32_t a = 1; w * a <= RANKS; a++) {
            for (int32_t b = 1; w * a * b <= RANKS; b++) {
                const enum placing placing = (w + a + b) % 2 ? APART : TOGETHER;
                snprintf(mesh, sizeof mesh, "%d,%d,%d", w, a, b);
                check_placed(model_path, w * a * b, "3d", mesh, NULL, APART, &done);
                check_placed(model_path, w * a * b, "3d_gathered", mesh, NULL, placing, &done);
                check_placed(model_path, w * a * b, "3d", mesh, rows, placing, &done);
                meshes++;
            }
        }
    }
    assert_int_equal(meshes, 110);
    assert_int_equal(done, 3 * meshes);
}

/* Grids, in the form of few rows, of many, and changing between them. */
static void test_grids(void **state)
{
    (void)state;
    static const struct edit forms[][EDITS] = {
        {{"\"linears\": \"summa\"", "\"rows\": 1000, \"linears\": \"summa\""}},
        {{"\"linears\": \"summa\"", "\"rows\": 1, \"linears\": \"summa\""}},
        {{"\"linears\": \"summa\"", "\"rows\": 4, \"linears\": \"summa\""}}};
    static const struct {
        const char *mode;
        int32_t ranks;
    } grids[] = {{"2d", 1},   {"2d", 4},   {"2d", 9},    {"2d", 16},
                 {"2.5d", 4}, {"2.5d", 8}, {"2.5d", 12}, {"2.5d", 16}};
    int done = 0;
    for (size_t i = 0; i < ARRAY_LEN(grids); i++)
        for (size_t f = 0; f < ARRAY_LEN(forms); f++)
            for (int p = HEADS_OF_ALL; p <= TOGETHER; p++)
                check_placed(model_path, grids[i].ranks, grids[i].mode, NULL, forms[f],
                             (enum placing)p, &done);
    assert_int_equal(done, 3 * ARRAY_LEN(grids) * ARRAY_LEN(forms));
}

static int open_all(void **state)
{
    if (scratch_open(state) != 0)
        return -1;
    model_path = write_model();
    want_all();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1d),
        cmocka_unit_test(test_3d),
        cmocka_unit_test(test_3d_at_home),
        cmocka_unit_test(test_grids),
    };
    return cmocka_run_group_tests(tests, open_all, scratch_close);
}
