/* Plans: the built-in one binds every parameter, a broken one says what is wrong with it. Layouts:
 * what the ranks hold tiles the model exactly, and their K leaves fold as one rank's do. */
#include "engine/footprint.h"
#include "engine/model/layout.h"
#include "engine/parallel/plan.h"
#include "tests/scratch.h"

#include <string.h>

static const struct model_config odd = {.model_type = "llama",
                                        .hidden = 30,
                                        .layers = 2,
                                        .heads = 6,
                                        .kv_heads = 3,
                                        .head_dim = 10,
                                        .mlp = 37,
                                        .vocab = 101,
                                        .max_position = 64,
                                        .norm_eps = 1e-5f,
                                        .residual_scale = 1,
                                        .dtype = DTYPE_F32,
                                        .bos = -1};

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not say \"%s\"", text, part);
}

static struct plan *builtin(int32_t ranks)
{
    struct plan *p;
    struct err err;
    if (plan_load("1d", NULL, NULL, ranks, &p, &err) != OK)
        fail_msg("%s", err.text);
    return p;
}

static struct flow *typed_flow(const struct model_config *m, const char *mode, int32_t ranks,
                               enum dtype dtype)
{
    struct flow *f = NULL;
    struct plan *p = NULL;
    struct err err;
    if (plan_load(mode, NULL, NULL, ranks, &p, &err) != OK ||
        layout_flow(m, p, dtype, backend_find("ref"), &f, &err) != OK)
        fail_msg("%s at %d ranks: %s", mode, ranks, err.text);
    plan_close(p);
    return f;
}

static struct flow *flow_of(const struct model_config *m, const char *mode, int32_t ranks)
{
    return typed_flow(m, mode, ranks, DTYPE_F32);
}

static struct layout *lay_out(const struct model_config *m, const struct flow *f, int32_t rank)
{
    struct layout *l = NULL;
    struct err err;
    if (layout_open(m, f, rank, &l, &err) != OK)
        fail_msg("%s", err.text);
    return l;
}

/* ---- the built-in plan ---- */

static void test_builtin_binds_all(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct {
            enum style style;
            enum unit unit;
        } wanted;
    } params[] = {
        {"model.embed_tokens", {STYLE_VOCAB, UNIT_COLUMN}},
        {"model.layers.0.input_layernorm", {STYLE_NORM, UNIT_COLUMN}},
        {"model.layers.0.self_attn.qkv_proj", {STYLE_COLWISE, UNIT_KV_GROUP}},
        {"model.layers.0.self_attn.o_proj", {STYLE_ROWWISE, UNIT_HEAD}},
        {"model.layers.0.post_attention_layernorm", {STYLE_NORM, UNIT_COLUMN}},
        {"model.layers.0.mlp.gate_up_proj", {STYLE_COLWISE, UNIT_COLUMN}},
        {"model.layers.0.mlp.down_proj", {STYLE_ROWWISE, UNIT_COLUMN}},
        {"model.layers.1023.self_attn.o_proj", {STYLE_ROWWISE, UNIT_HEAD}},
        {"model.norm", {STYLE_NORM, UNIT_COLUMN}},
        {"lm_head", {STYLE_VOCAB, UNIT_COLUMN}},
    };
    const char *names[ARRAY_LEN(params)];
    struct plan_choice choices[ARRAY_LEN(params)];
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(params); i++)
        names[i] = params[i].name;
    struct plan *p = builtin(5), *q = builtin(5), *other = builtin(6);
    assert_int_equal(plan_ranks(p), 5);
    assert_true(plan_hash(p) == plan_hash(q));
    assert_true(plan_hash(p) != plan_hash(other));
    for (int32_t head = 0; head < 2; head++) { /* the last name is absent when tied */
        int32_t count = (int32_t)ARRAY_LEN(params) - 1 + head;
        assert_int_equal(plan_bind(p, names, count, choices, &err), OK);
        for (int32_t i = 0; i < count; i++) {
            assert_int_equal(choices[i].style, params[i].wanted.style);
            assert_int_equal(choices[i].unit, params[i].wanted.unit);
        }
    }
    plan_close(p);
    plan_close(q);
    plan_close(other);
    plan_close(NULL);
    assert_int_equal(plan_load("4d", NULL, NULL, 4, &p, &err), ERR_USAGE);
    assert_contains(err.text, "--parallel-mode 4d: expected 1d");
}

/* Sizes given on the command line take the place of the built-in plan's. */
static void test_mesh_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *mode, *mesh;
        int32_t ranks;
        const char *wanted; /* of the error; NULL: good */
    } cases[] = {
        {"3d", "1,4,2", 8, NULL},
        {"2d", "3,3", 9, NULL},
        {"1d", "5", 5, NULL},
        {"2.5d", "2,3,3", 18, NULL},
        {"3d", "4,2", 8, "--mesh 4,2: got 2 sizes, expected 3, as layout 3d has axes"},
        {"3d", "4,2,1,1", 8, "--mesh 4,2,1,1: got 4 sizes, expected 3, as layout 3d has axes"},
        {"3d", "4,2,x", 8, "--mesh 4,2,x: expected numbers from 1 to 64"},
        {"3d", "4,0,2", 8, "--mesh 4,0,2: expected numbers from 1 to 64"},
        {"3d", "", 8, "--mesh : expected numbers from 1 to 64"},
        {"3d", "4,2,2", 8, "E01 the mesh has 16 members, -tp says 8"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan *p = NULL;
        struct err err = {""};
        enum status st = plan_load(cases[i].mode, cases[i].mesh, NULL, cases[i].ranks, &p, &err);
        assert_int_equal(st, cases[i].wanted ? ERR_USAGE : OK);
        if (cases[i].wanted)
            assert_contains(err.text, cases[i].wanted);
        else
            assert_int_equal(plan_mesh(p)->axis[0].size, *cases[i].mesh - '0');
        plan_close(p);
    }
    struct plan *p = NULL;
    struct err err;
    assert_int_equal(plan_load("1d", "2", "plan.json", 2, &p, &err), ERR_USAGE);
    assert_contains(err.text, "--mesh and --plan");
}

/* Rows that are decided later become part of the text, and so of the hash that ranks compare. */
static void test_prefill_rows(void **state)
{
    (void)state;
    struct plan *p, *read, *other;
    struct err err;
    assert_int_equal(plan_load("2d", NULL, NULL, 4, &p, &err), OK);
    assert_int_equal(plan_load("2d", NULL, NULL, 4, &other, &err), OK);
    const uint64_t before = plan_hash(p);
    assert_int_equal(plan_prefill_rows(p), 0);
    assert_int_equal(plan_set_prefill_rows(p, 700, &err), OK);
    assert_int_equal(plan_set_prefill_rows(other, 701, &err), OK);
    assert_int_equal(plan_prefill_rows(p), 700);
    assert_true(plan_hash(p) != before && plan_hash(p) != plan_hash(other));
    assert_int_equal(plan_open(plan_text(p), strlen(plan_text(p)), "p", 4, &read, &err), OK);
    assert_int_equal(plan_prefill_rows(read), 700);
    assert_true(plan_hash(read) == plan_hash(p));
    assert_int_equal(plan_set_prefill_rows(read, 9, &err), ERR_USAGE);
    assert_contains(err.text, "p says itself from how many rows");
    plan_close(p);
    plan_close(other);
    plan_close(read);
    p = builtin(4);
    assert_int_equal(plan_set_prefill_rows(p, 9, &err), ERR_USAGE);
    assert_contains(err.text, "built-in plan 1d has one form");
    plan_close(p);
}

/* ---- broken plans ---- */

#define HEAD "{\"version\":1,\"mode\":\"1d\",\"mesh\":[{\"name\":\"tp\",\"size\":2}],"
#define RULE(match, style) "{\"match\":\"" match "\",\"style\":\"" style "\"}"

/* Bound to these two. */
static const char *const two_names[] = {"a.0.x_proj", "b"};

static const struct {
    const char *text, *wanted;
} broken[] = {
    {"{", "p.json: line 1"},
    {"[]", "p.json: expected a JSON object"},
    {"{\"plan\":[]}", "p.json: version must be 1"},
    {"{\"version\":2,\"mode\":\"1d\"}", "version must be 1"},
    {"{\"version\":\"1\",\"mode\":\"1d\"}", "version must be 1"},
    {"{\"version\":1}", "mode is missing, expected "},
    {"{\"version\":1,\"mode\":\"4d\"}",
     "mode is \"4d\", expected 1d, 1d_sp, 2d, 2.5d, 3d, 3d_gathered or custom"},
    {"{\"version\":1,\"mode\":\"1d\",\"uneven\":\"padded\"}", "uneven is \"padded\", expected"},
    {"{\"version\":1,\"mode\":\"1d\"}", "mesh must be a list of 1 to 3 axes"},
    {"{\"version\":1,\"mode\":\"1d\",\"mesh\":[]}", "mesh must be a list of 1 to 3 axes"},
    {"{\"version\":1,\"mode\":\"1d\",\"mesh\":[4]}", "mesh[0]: expected a JSON object"},
    {"{\"version\":1,\"mode\":\"1d\",\"mesh\":[{\"size\":2}]}", "mesh[0]: name must be a new word"},
    {"{\"version\":1,\"mode\":\"1d\",\"mesh\":[{\"name\":\"a\",\"size\":1},{\"name\":\"a\"}]}",
     "mesh[1]: name must be a new word"},
    {"{\"version\":1,\"mode\":\"1d\",\"mesh\":[{\"name\":\"a\",\"size\":0}]}", "size must be"},
    {"{\"version\":1,\"mode\":\"1d\",\"mesh\":[{\"name\":\"a\",\"size\":\"two\"}]}",
     "E01 axis a: size \"two\" is not a number"},
    {HEAD "\"rank_order\":\"any\"}", "rank_order is \"any\", expected "},
    {HEAD "\"plan\":{}}", "plan must be a list of at most 64 entries"},
    {HEAD "\"uneven\":\"balanced\"}", "plan must be a list"},
    {HEAD "\"x\":0,\"plan\":[]}",
     "key \"x\" is not known, expected version, mode, mesh, rank_order, uneven, plan, attention, "
     "logits, phases or comm"},
    {HEAD "\"plan\":[{\"match\":\"a\",\"style\":\"norm\",\"units\":\"head\"}]}",
     "key \"units\" is not known"},
    {HEAD "\"plan\":[],\"attention\":{\"placement\":\"hut\"}}",
     "placement is \"hut\", expected heads or home"},
    {HEAD "\"plan\":[],\"attention\":{\"placement\":\"home\"},"
          "\"phases\":{\"decode\":{\"attention\":\"heads\"}}}",
     "E17 attention is home in prefill and heads in decode"},
    {HEAD "\"plan\":[],\"attention\":{\"placement\":\"heads\"},\"phases\":{\"prefill\":"
          "{\"attention\":\"home\"},\"decode\":{\"attention\":\"home\"}}}",
     "E17 attention is home, attention.placement heads"},
    {HEAD "\"plan\":[],\"logits\":{\"gather\":\"topk\"}}", "gather is \"topk\", expected full"},
    {HEAD "\"plan\":[{\"style\":\"norm\"}]}", "plan[0]: match must be a pattern"},
    {HEAD "\"plan\":[7]}", "plan[0]: expected a JSON object"},
    {HEAD "\"plan\":[" RULE("b", "diagonal") "]}",
     "plan[0] (b): style is diagonal, expected colwise"},
    {HEAD "\"plan\":[{\"match\":\"b\"}]}", "plan[0] (b): style is missing, expected colwise"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"colwise\",\"unit\":\"byte\"}]}",
     "plan[0] (b): unit is byte, expected column"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"colwise\",\"output\":\"P\"}]}",
     "plan[0] (b): output is \"P\", expected S(1) or R"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"pairwise\",\"first\":\"x\"}]}",
     "plan[0] (b): pairwise names its two linears"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"prepare_in\",\"from\":[\"R\",null],"
          "\"to\":[\"R\"]}]}",
     "from and to are lists of equal length"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"prepare_in\",\"from\":[null],\"to\":[\"R\"]}]}",
     "element 0 is null on one side only"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"prepare_in\",\"from\":[\"R\",\"R\"],"
          "\"to\":[\"R\",\"R\"]}]}",
     "element 1: the module has one matrix"},
    {HEAD "\"plan\":[{\"match\":\"b\",\"style\":\"prepare_in\",\"from\":[\"Q\"],\"to\":[\"R\"]}]}",
     "a placement is R, S(0), S(1) or P"},
    /* found when parameters are bound */
    {HEAD "\"plan\":[" RULE("b", "norm") "]}", "E04 no pattern matches parameter a.0.x_proj"},
    {HEAD "\"plan\":[" RULE("b", "norm") "," RULE("*", "norm") "]}",
     "E04 no pattern matches parameter a.0"},
    {HEAD "\"plan\":[" RULE("*.x_proj", "norm") "," RULE("b", "norm") "]}", "no pattern matches"},
    {HEAD
     "\"plan\":[" RULE("a.*.x_*", "norm") "," RULE("a.*.*_pr*", "norm") "," RULE("b", "norm") "]}",
     NULL},
    {HEAD
     "\"plan\":[" RULE("a.*.x_*", "norm") "," RULE("a.*.*_p", "norm") "," RULE("b", "norm") "]}",
     "E02 plan[1]: pattern a.*.*_p matches no parameter"},
    {HEAD "\"plan\":[" RULE("a.*.x*", "norm") "," RULE("a.*.*j", "norm") "," RULE("b", "norm") "]}",
     "E03 plan[0] (a.*.x*) and plan[1] (a.*.*j) match parameter a.0.x_proj equally well"},
    {HEAD "\"plan\":[" RULE("b", "norm") "," RULE("b", "norm") "," RULE("a.*.*", "norm") "]}",
     "match parameter b equally well"},
    {HEAD "\"plan\":[" RULE("a.*.*", "norm") "," RULE("b", "norm") "," RULE("c", "norm") "]}",
     "E02 plan[2]: pattern c matches no parameter"},
};

static void test_broken_plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
        struct plan *p = NULL;
        struct plan_choice choices[2];
        struct err err = {""};
        const char *text = broken[i].text;
        enum status st = plan_open(text, strlen(text), "p.json", 2, &p, &err);
        if (st != OK)
            assert_null(p);
        else
            st = plan_bind(p, two_names, 2, choices, &err);
        plan_close(p);
        if (st != (broken[i].wanted ? ERR_USAGE : OK))
            fail_msg("%s: status %d %s", text, st, err.text);
        if (broken[i].wanted) {
            assert_contains(err.text, broken[i].wanted);
            assert_contains(err.text, "p.json: ");
        }
    }
}

/* The more literal characters the stronger, whatever the order. */
static void test_specificity(void **state)
{
    (void)state;
    static const char *const orders[] = {HEAD "\"plan\":[" RULE("*.*.*", "norm") "," RULE(
                                             "a.0.x_proj", "vocab") "," RULE("b", "norm") "]}",
                                         HEAD "\"plan\":[" RULE("a.0.x_proj", "vocab") "," RULE(
                                             "b", "norm") "," RULE("*.*.*", "norm") "]}"};
    for (size_t i = 0; i < ARRAY_LEN(orders); i++) {
        struct plan *p;
        struct plan_choice c[2];
        struct err err;
        assert_int_equal(plan_open(orders[i], strlen(orders[i]), "p", 2, &p, &err), OK);
        assert_int_equal(plan_bind(p, two_names, 2, c, &err), OK);
        assert_int_equal(c[0].style, STYLE_VOCAB);
        assert_int_equal(c[1].style, STYLE_NORM);
        plan_close(p);
    }
}

static void plan_text_and_mesh(void)
{
    struct plan *p = builtin(3);
    assert_int_equal(mesh_ranks(plan_mesh(p)), 3);
    assert_string_equal(plan_mode(p), "1d");
    assert_non_null(strstr(plan_text(p), "\"mode\": \"1d\""));
    plan_close(p);
}

static void test_plan_files(void **state)
{
    (void)state;
    static const char text[] = HEAD "\"plan\":[" RULE("model.*", "norm") "]}";
    struct plan *p;
    struct flow *f = NULL;
    struct err err;
    const char *path = scratch_path("plan.json");
    assert_int_equal(plan_load("1d", NULL, path, 2, &p, &err), ERR_USAGE);
    assert_contains(err.text, "plan.json: No such file");
    scratch_write(path, text, sizeof text - 1);
    assert_int_equal(plan_load("1d", NULL, path, 2, &p, &err), OK);
    assert_int_equal(layout_flow(&odd, p, DTYPE_F32, backend_find("ref"), &f, &err), ERR_USAGE);
    assert_contains(err.text, "plan.json: E04 no pattern matches parameter lm_head");
    plan_close(p);
    assert_null(f);
    plan_text_and_mesh();
}

/* ---- broken plans for whole models: tests/corpus/plans ---- */

/* All ranks, and whether they fit into this machine's memory. */
static enum status lay_out_file(const char *name, const char *model, int32_t ranks,
                                enum dtype dtype, struct err *err)
{
    enum status st = OK;
    char path[512];
    struct plan *p = NULL;
    struct flow *flow = NULL;
    struct footprint f;
    struct model_config m = odd;
    const struct options o = {.tp = ranks,
                              .threads_per_rank = 1,
                              .dtype = dtype == DTYPE_F16 ? "float16" : "float32",
                              .max_num_seqs = 1,
                              .max_num_batched_tokens = 1};
    m.tied = strcmp(model, "tied") == 0;
    if (strcmp(model, "huge") == 0) {
        m.hidden = 1 << 16;
        m.vocab = 1 << 30;
    }
    snprintf(path, sizeof path, "%s/corpus/plans/%s.json", TEST_DATA_DIR, name);
    TRY(plan_load("1d", NULL, path, ranks, &p, err));
    TRY(layout_flow(&m, p, dtype, backend_find("ref"), &flow, err));
    TRY(footprint_plan(&o, &m, flow, &f, err));
out:
    flow_close(flow);
    plan_close(p);
    return st;
}

/* Each line: file, model, ranks, dtype, what the message must say; or "ok". */
static void test_corpus(void **state)
{
    (void)state;
    size_t n;
    int seen = 0;
    char *cases = (char *)scratch_read(TEST_DATA_DIR "/corpus/plans/cases.txt", &n), *rest = cases;
    for (char *line; (line = strsep(&rest, "\n")) && *line; seen++) {
        char name[64], model[16], type[8];
        int ranks, at = 0;
        struct err err = {""};
        assert_int_equal(sscanf(line, "%63s %15s %d %7s %n", name, model, &ranks, type, &at), 4);
        const bool good = strcmp(line + at, "ok") == 0;
        const enum dtype dtype = strcmp(type, "f16") == 0 ? DTYPE_F16 : DTYPE_F32;
        const enum status st = lay_out_file(name, model, ranks, dtype, &err);
        const enum status bad = strcmp(name, "too_big") == 0 ? ERR_LIMIT : ERR_USAGE;
        if (st != (good ? OK : bad))
            fail_msg("%s: status %d: %s", name, st, err.text);
        if (!good)
            assert_contains(err.text, line + at);
        if (*name == 'E' && !strstr(err.text, (char[]){'E', name[1], name[2], '\0'}))
            fail_msg("%s: \"%s\" does not name its rule", name, err.text);
    }
    free(cases);
    assert_true(seen > 30);
}

/* ---- layouts ---- */

static void check_span(struct span s, int64_t *at)
{
    assert_true(s.begin == *at && s.end >= s.begin);
    *at = s.end;
}

/* Query head q reads KV head q / (Hq / Hkv), whoever holds it. */
static void check_heads(const struct layout *l, const struct model_config *m)
{
    bool read[64] = {false};
    for (int64_t q = l->heads.begin; q < l->heads.end; q++) {
        int64_t kv = q / (m->heads / m->kv_heads);
        assert_true(kv >= l->kv_heads[0].begin && kv < l->kv_heads[0].end);
        assert_int_equal(l->kv_of[0][q - l->heads.begin], kv - l->kv_heads[0].begin);
        read[kv] = true;
    }
    for (int64_t kv = l->kv_heads[0].begin; kv < l->kv_heads[0].end; kv++)
        assert_true(read[kv]); /* none is held for nothing */
}

/* The bias is that of the QKV product's outputs, one by one; the norms of heads are whole. */
static void check_qkv_vectors(const struct layout *l, const struct model_config *m)
{
    static const enum role norms[] = {ROLE_Q_NORM, ROLE_K_NORM};
    const struct local_weight *qkv = &l->weights[layout_find(l, ROLE_QKV, 0)];
    const int32_t at = layout_find(l, ROLE_QKV_BIAS, 0);
    struct err err;
    assert_int_equal(at >= 0, m->qkv_bias);
    for (int32_t i = 0; at >= 0 && i < 3; i++) {
        const struct tensor_slice *rows = &qkv->slices[i], *bias = &l->weights[at].slices[i];
        const size_t stem = strlen(rows->tensor) - strlen("weight");
        assert_memory_equal(bias->tensor, rows->tensor, stem);
        assert_string_equal(bias->tensor + stem, "bias");
        assert_int_equal(bias->cols.begin, rows->rows.begin);
        assert_int_equal(bias->cols.end, rows->rows.end);
        assert_int_equal(bias->dst_row, rows->dst_row);
        assert_int_equal(bias->shape[1], rows->shape[0]);
    }
    if (at >= 0) {
        assert_int_equal(l->weights[at].spec.in, qkv->spec.out);
        assert_int_equal(placement_tiled(&l->weights[at], &err), OK);
    }
    for (size_t i = 0; i < ARRAY_LEN(norms); i++) {
        const int32_t norm = layout_find(l, norms[i], m->layers - 1);
        assert_int_equal(norm >= 0, m->head_norm);
        if (norm >= 0)
            assert_int_equal(l->weights[norm].spec.in,
                             m->head_dim * (!m->joint_norm ? 1
                                            : norms[i] == ROLE_Q_NORM
                                                ? (int32_t)span_len(l->heads)
                                                : (int32_t)span_len(l->kv_heads[0])));
    }
}

static void check_shapes(const struct layout *l, const struct model_config *m)
{
    const int32_t dh = m->head_dim, heads = (int32_t)span_len(l->heads);
    const int32_t kv = (int32_t)span_len(l->kv_heads[0]), mlp = (int32_t)span_len(l->mlp);
    const int32_t vocab = (int32_t)span_len(l->vocab);
    const struct {
        enum role role;
        int32_t layer, out, in;
    } wanted[] = {{ROLE_EMBED, -1, vocab, m->hidden},
                  {ROLE_QKV, m->layers - 1, (heads + 2 * kv) * dh, m->hidden},
                  {ROLE_O, 0, m->hidden, heads * dh},
                  {ROLE_GATE_UP, 0, 2 * mlp, m->hidden},
                  {ROLE_DOWN, m->layers - 1, m->hidden, mlp},
                  {ROLE_ATTN_NORM, 0, 1, m->hidden},
                  {ROLE_FINAL_NORM, -1, 1, m->hidden},
                  {ROLE_HEAD, -1, vocab, m->hidden}};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        int32_t at = layout_find(l, wanted[i].role, wanted[i].layer);
        assert_true(at >= 0);
        assert_int_equal(l->weights[at].spec.out, wanted[i].out);
        assert_int_equal(l->weights[at].spec.in, wanted[i].in);
    }
    assert_int_equal(layout_find(l, ROLE_O, m->layers), -1);
    check_qkv_vectors(l, m);
    assert_int_equal(layout_kv_bytes_per_token(m, l->flow, l->rank, DTYPE_BF16),
                     4 * m->layers * kv * dh);
}

static void check_layouts(const struct model_config *m, int32_t ranks)
{
    struct layout *layouts[8];
    struct local_weight *weights[8];
    int32_t counts[8];
    struct err err;
    int64_t head = 0, mlp = 0, vocab = 0;
    struct flow *flow = flow_of(m, "1d", ranks);
    for (int32_t r = 0; r < ranks; r++) {
        struct layout *l = layouts[r] = lay_out(m, flow, r);
        weights[r] = l->weights;
        counts[r] = l->count;
        const bool behind = m->post_norms != POST_NORMS_NONE && m->post_norms != POST_NORMS_OLMO;
        const int32_t each = 6 + m->qkv_bias + 2 * m->head_norm + (behind ? 2 : 0);
        assert_int_equal(l->count, 3 - m->tied + each * m->layers);
        check_span(l->heads, &head);
        check_span(l->mlp, &mlp);
        check_span(l->vocab, &vocab);
        check_heads(l, m);
        if (!m->tied)
            check_shapes(l, m);
        else
            assert_int_equal(layout_find(l, ROLE_HEAD, -1), -1);
    }
    assert_int_equal(head, m->heads);
    assert_int_equal(mlp, m->mlp);
    assert_int_equal(vocab, m->vocab);
    if (placement_prove(weights, counts, ranks, &err) != OK)
        fail_msg("%d ranks: %s", ranks, err.text);
    for (int32_t r = 0; r < ranks; r++)
        layout_close(layouts[r]);
    flow_close(flow);
}

static void test_layouts_tile(void **state)
{
    (void)state;
    static const int32_t shapes[][4] = {/* heads, kv_heads, mlp, vocab */
                                        {6, 3, 37, 101},   {1, 1, 3, 5},  {3, 1, 8, 7},
                                        {12, 4, 100, 259}, {5, 5, 97, 1}, {32, 8, 176, 1000}};
    int32_t empty = 0;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct model_config m = odd;
        m.heads = shapes[i][0];
        m.kv_heads = shapes[i][1];
        m.mlp = shapes[i][2];
        m.vocab = shapes[i][3];
        m.tied = i % 2 == 1;
        m.qkv_bias = i % 3 > 0;
        m.head_norm = i / 2 == 1;
        m.post_norms = i % 2 == 1 ? POST_NORMS_GEMMA : i == 4 ? POST_NORMS_OLMO : POST_NORMS_NONE;
        m.joint_norm = i == 2;
        for (int32_t ranks = 1; ranks <= 8; ranks++)
            check_layouts(&m, ranks);
        struct flow *f = flow_of(&m, "1d", 8);
        empty += span_len(layout_heads(&m, f, 0)) + span_len(flow_outputs(f, PLAN_EMBED, 0)) == 0;
        flow_close(f);
    }
    assert_true(empty > 0); /* the shapes above include a rank that owns nothing */
}

/* A mixture's: shared experts are parts of one tensor, and the first layers have another MLP. */
static struct model_config mixed(enum mixture_kind kind, int32_t shared, int32_t dense)
{
    struct model_config m = odd;
    m.layers = 4;
    m.mixture = (struct mixture_config){.kind = kind,
                                        .experts = 5,
                                        .chosen = 2,
                                        .among = true,
                                        .shared = shared,
                                        .scale = 1,
                                        .dense = dense,
                                        .dense_mlp = dense > 0 ? 91 : 0};
    return m;
}

static void test_shared_experts(void **state)
{
    (void)state;
    static const enum mixture_kind kinds[] = {MIXTURE_GLM, MIXTURE_GLM, MIXTURE_QWEN2};
    for (int32_t i = 0; i < 3; i++) {
        const int32_t shared = i + 1, dense = i == 2 ? 0 : 1 + 2 * i;
        const struct model_config m = mixed(kinds[i], shared, dense);
        for (int32_t ranks = 1; ranks <= 8; ranks++) {
            struct layout *layouts[8];
            struct local_weight *weights[8];
            int32_t counts[8];
            struct err err;
            struct flow *f = flow_of(&m, ranks % 2 == 0 ? "1d_sp" : "1d", ranks);
            for (int32_t r = 0; r < ranks; r++) {
                struct layout *l = layouts[r] = lay_out(&m, f, r);
                weights[r] = l->weights;
                counts[r] = l->count;
                const int32_t with = 5 + (kinds[i] == MIXTURE_GLM) + 2 * (5 + shared);
                assert_int_equal(l->count, 3 + 6 * dense + with * (4 - dense));
                const int32_t at = layout_find(l, ROLE_GATE_UP, 3);
                for (int32_t e = 0; e < 5 + shared; e++)
                    assert_true(l->roles[at + e] == ROLE_GATE_UP && l->experts[at + e] == e);
                const struct tensor_slice *s = &l->weights[at + 5 + shared - 1].slices[0];
                assert_int_equal(s->shape[0], shared * m.mlp);
                assert_int_equal(s->rows.begin, (shared - 1) * m.mlp + l->mlp.begin);
                assert_int_equal(layout_find(l, ROLE_DENSE_DOWN, 3), -1);
                assert_int_equal(layout_find(l, ROLE_DENSE_DOWN, 0) >= 0, dense > 0);
            }
            if (placement_prove(weights, counts, ranks, &err) != OK)
                fail_msg("%d ranks: %s", ranks, err.text);
            for (int32_t r = 0; r < ranks; r++)
                layout_close(layouts[r]);
            flow_close(f);
        }
    }
}

/* MiniMax's is published in fp32, whatever type the rest has. */
/* Latents: heads' matrices are parts of one tensor, keys' from the other side, and what latents are
 * made by is cut as it comes, two tensors one after the other. */
static void check_latents(const struct model_config *m, const char *mode, int32_t ranks)
{
    struct layout *layouts[8];
    struct local_weight *weights[8];
    int32_t counts[8], made = 0;
    struct err err;
    struct flow *f = flow_of(m, mode, ranks);
    const struct latent_config *c = &m->latent;
    for (int32_t r = 0; r < ranks; r++) {
        const struct layout *l = layouts[r] = lay_out(m, f, r);
        const int32_t heads = (int32_t)span_len(l->heads), last = m->layers - 1;
        weights[r] = l->weights;
        counts[r] = l->count;
        const struct local_weight *q = &l->weights[layout_find(l, ROLE_QKV, 0)];
        made += l->weights[layout_find(l, ROLE_LATENT, last)].spec.out;
        assert_int_equal(q->spec.out, heads * (c->plain + c->turns));
        assert_int_equal(q->spec.in, c->query > 0 ? c->query : m->hidden);
        assert_int_equal(l->weights[layout_find(l, ROLE_O, 0)].spec.in, heads * c->head);
        for (int32_t h = 0; h < heads; h++) {
            const struct local_weight *key = &l->weights[layout_find(l, ROLE_KEY_UP, last) + h];
            const struct local_weight *value = &l->weights[layout_find(l, ROLE_VALUE_UP, last) + h];
            assert_true(key->transposed && !value->transposed);
            assert_int_equal(key->spec.in, c->plain);
            assert_int_equal(value->spec.out, c->head);
            assert_int_equal(key->slices[0].rows.begin,
                             (l->heads.begin + h) * (c->plain + c->head));
            assert_int_equal(value->slices[0].rows.begin, key->slices[0].rows.end);
        }
        assert_int_equal(layout_find(l, ROLE_QUERY_LATENT_NORM, 0) >= 0, c->query > 0);
        assert_int_equal(layout_kv_bytes_per_token(m, f, r, DTYPE_BF16),
                         heads > 0 ? 2 * m->layers * (c->value + c->turns) : 0);
    }
    assert_int_equal(made, c->query + c->value + c->turns);
    if (placement_prove(weights, counts, ranks, &err) != OK)
        fail_msg("%s, %d ranks: %s", mode, ranks, err.text);
    for (int32_t r = 0; r < ranks; r++)
        layout_close(layouts[r]);
    flow_close(f);
}

static void test_latents(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        struct model_config m = odd;
        m.heads = i < 2 ? 5 : 12;
        m.kv_heads = 1;
        m.latent = (struct latent_config){
            .query = i % 2 ? 40 : 0, .value = 48, .turns = 16, .plain = 32, .head = 64};
        m.head_dim = m.latent.value + m.latent.turns;
        for (int32_t ranks = 1; ranks <= 8; ranks++)
            check_latents(&m, i < 2 ? "1d" : "1d_sp", ranks);
    }
}

static void test_types_of_routers(void **state)
{
    (void)state;
    static const enum mixture_kind kinds[] = {MIXTURE_MINIMAX, MIXTURE_QWEN};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const struct model_config m = mixed(kinds[i], 0, 0);
        struct flow *f = typed_flow(&m, "1d", 2, DTYPE_BF16);
        struct layout *l = lay_out(&m, f, 1);
        const struct local_weight *w = &l->weights[layout_find(l, ROLE_ROUTER, 3)];
        assert_int_equal(w->spec.dtype, i == 0 ? DTYPE_F32 : DTYPE_BF16);
        assert_int_equal(layout_find(l, ROLE_CORRECTION, 3) >= 0, i == 0);
        layout_close(l);
        flow_close(f);
    }
}

/* What is planned for a rank without a list of its weights is what the list comes to. */
static void test_arenas(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        int32_t ranks, layers;
        bool tied;
    } cases[] = {{"1d", 8, 1, true},   {"1d_sp", 5, 3, false}, {"2d", 9, 2, true},
                 {"2.5d", 8, 4, true}, {"3d", 8, 3, false},    {"3d_gathered", 8, 5, true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model_config m = odd;
        m.tied = cases[i].tied;
        m.layers = cases[i].layers;
        m.qkv_bias = i % 2 == 0;
        m.head_norm = i >= 3;
        m.post_norms = i % 3 == 1 ? POST_NORMS_GLM4 : POST_NORMS_NONE;
        if (i < 2) /* layouts that mixtures may have */
            m.mixture = mixed(MIXTURE_GLM, 2, (int32_t)i).mixture;
        struct flow *f = flow_of(&m, cases[i].mode, cases[i].ranks);
        for (int32_t r = 0; r < cases[i].ranks; r++) {
            struct err err;
            size_t planned, end = 0;
            struct layout *l = lay_out(&m, f, r);
            for (int32_t w = 0; w < l->count; w++) {
                assert_int_equal(l->weights[w].offset, end);
                end = base_align(end + l->weights[w].bytes, 64);
            }
            assert_int_equal(layout_arena_bytes(&m, f, r, &planned, &err), OK);
            assert_int_equal(planned, end);
            assert_int_equal(planned, l->arena_bytes);
            layout_close(l);
        }
        flow_close(f);
    }
}

/* ---- leaves: a symbolic sum, so that the order of addition itself is compared ---- */

enum { TERM_MAX = 256 };

/* Folds count terms (a power of two) with strides 1, 2, 4, ...; "" stands for an empty leaf. */
static void fold(char (*terms)[TERM_MAX], int32_t count)
{
    for (int32_t stride = 1; stride < count; stride *= 2) {
        for (int32_t i = 0; i + stride < count; i += 2 * stride) {
            char sum[TERM_MAX];
            const char *a = terms[i], *b = terms[i + stride];
            int n = *a && *b ? snprintf(sum, sizeof sum, "(%s+%s)", a, b)
                             : snprintf(sum, sizeof sum, "%s%s", a, b);
            assert_true(n >= 0 && n < TERM_MAX);
            memcpy(terms[i], sum, sizeof sum);
        }
    }
}

static void add_term(char *term, int64_t begin, int64_t end)
{
    term[0] = '\0';
    if (begin < end)
        snprintf(term, TERM_MAX, "%lld-%lld", (long long)begin, (long long)end);
}

/* The whole K in 8 leaves: cuts at floor(units * l / 8) units. */
static void global_sum(char *out, int64_t units, int64_t unit_size)
{
    char terms[8][TERM_MAX];
    for (int64_t l = 0; l < 8; l++)
        add_term(terms[l], units * l / 8 * unit_size, units * (l + 1) / 8 * unit_size);
    fold(terms, 8);
    memcpy(out, terms[0], TERM_MAX);
}

static void check_leaves(const struct model_config *m, enum role role, int32_t ranks)
{
    char global[TERM_MAX], sums[8][TERM_MAX];
    int64_t unit_size = role == ROLE_O ? m->head_dim : 1;
    struct flow *f = flow_of(m, "1d", ranks);
    global_sum(global, role == ROLE_O ? m->heads : m->mlp, unit_size);
    for (int32_t r = 0; r < ranks; r++) {
        struct layout *l = lay_out(m, f, r);
        const struct weight_spec *s = &l->weights[layout_find(l, role, 0)].spec;
        int64_t begin = (role == ROLE_O ? l->heads.begin : l->mlp.begin) * unit_size;
        char terms[8][TERM_MAX];
        assert_true(s->leaves == 1 || s->leaves == 2 || s->leaves == 4 || s->leaves == 8);
        assert_true(s->leaves <= 8 / ranks); /* whole leaves only */
        assert_int_equal(s->cut[0], 0);
        assert_int_equal(s->cut[s->leaves], s->in);
        for (int32_t i = 0; i < s->leaves; i++)
            add_term(terms[i], begin + s->cut[i], begin + s->cut[i + 1]);
        fold(terms, s->leaves);
        memcpy(sums[r], terms[0], TERM_MAX);
        layout_close(l);
    }
    flow_close(f);
    fold(sums, ranks);
    if (strcmp(sums[0], global) != 0)
        fail_msg("%d ranks, role %d: %s, one rank adds %s", ranks, role, sums[0], global);
}

static void test_leaves_fold_alike(void **state)
{
    (void)state;
    static const int32_t heads[] = {1, 2, 3, 5, 6, 7, 8, 9, 12, 15, 16, 32, 33};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        struct model_config m = odd;
        m.heads = m.kv_heads = heads[i];
        m.mlp = 5 * heads[i] - 4;
        for (int32_t ranks = 1; ranks <= 8; ranks *= 2) {
            check_leaves(&m, ROLE_O, ranks);
            check_leaves(&m, ROLE_DOWN, ranks);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builtin_binds_all),
        cmocka_unit_test(test_mesh_sizes),
        cmocka_unit_test(test_prefill_rows),
        cmocka_unit_test(test_broken_plans),
        cmocka_unit_test(test_specificity),
        cmocka_unit_test(test_plan_files),
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_layouts_tile),
        cmocka_unit_test(test_shared_experts),
        cmocka_unit_test(test_latents),
        cmocka_unit_test(test_types_of_routers),
        cmocka_unit_test(test_arenas),
        cmocka_unit_test(test_leaves_fold_alike),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
