/* Adapters as they are opened: which list, which names and which tensors are taken, and that all
 * else is refused by file and tensor. What they add: tests/test_lora_apply.c. */
#include "tests/adapter_files.h"
#include "weights/lora.h"

#include <fcntl.h>

#define CONFIG "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4}"
#define A(module)                                                                                  \
    {                                                                                              \
        "base_model.model." module ".lora_A.weight", DTYPE_F32, 2, {2, 5}, NULL                    \
    }
#define B(module)                                                                                  \
    {                                                                                              \
        "base_model.model." module ".lora_B.weight", DTYPE_F32, 2, {3, 2}, NULL                    \
    }
#define PAIR(module) A(module), B(module)

static struct lora *must_open(const char *list)
{
    struct lora *l = NULL;
    struct err err = {{0}};
    if (lora_open(list, &l, &err) != OK)
        fail_msg("%s: %s", list, err.text);
    return l;
}

static void refused(const char *list, enum status expected, const char *words)
{
    struct lora *l = NULL;
    struct err err = {{0}};
    const enum status st = lora_open(list, &l, &err);
    if (st != expected || !strstr(err.text, words))
        fail_msg("\"%.200s\": status %d, \"%s\"; expected %d, \"%s\"", list, (int)st, err.text,
                 (int)expected, words);
    assert_null(l);
    assert_null(strchr(err.text, '\n'));
}

static const struct adapter_tensor one_pair[] = {PAIR("model.layers.0.q")};

/* The directory "name" with one pair of rank 2 and scale 2. */
static const char *put_one(const char *name)
{
    const char *dir = scratch_path(name);
    adapter_put(dir, CONFIG, one_pair, 2);
    return dir;
}

/* ---- the list ---- */

static void test_list(void **state)
{
    (void)state;
    static const struct {
        const char *suffix;
        float scale;
    } good[] = {{"", 1},        {":1", 1},        {":0.5", 0.5f},  {":-2", -2}, {":+3", 3},
                {":1e3", 1e3f}, {":1E-3", 1e-3f}, {":.25", 0.25f}, {":2.", 2},  {":0", 0},
                {":1e6", 1e6f}, {":-1e6", -1e6f}, {":1e-300", 0}};
    char list[512];
    put_one("one");
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        snprintf(list, sizeof list, "%s%s", scratch_path("one"), good[i].suffix);
        struct lora *l = must_open(list);
        assert_int_equal(lora_count(l), 1);
        assert_true(lora_at(l, 0)->scale == 2 * good[i].scale);
        assert_string_equal(lora_adapter(l, 0), scratch_path("one"));
        lora_close(l);
    }
    lora_close(NULL);
}

/* What is a directory as it stands has no scale; nor is one behind a name that does not exist. */
static void test_names_with_scales(void **state)
{
    (void)state;
    char list[512];
    put_one("v");
    put_one("v:2");
    snprintf(list, sizeof list, "%s", scratch_path("v:2"));
    struct lora *l = must_open(list);
    assert_string_equal(lora_adapter(l, 0), list);
    assert_true(lora_at(l, 0)->scale == 2);
    lora_close(l);
    snprintf(list, sizeof list, "%s", scratch_path("v:2:3"));
    l = must_open(list);
    assert_string_equal(lora_adapter(l, 0), scratch_path("v:2"));
    assert_true(lora_at(l, 0)->scale == 6);
    lora_close(l);
}

/* Pairs that PEFT would leave out, and says so. */
static void test_targets(void **state)
{
    (void)state;
    static const struct adapter_tensor tensors[] = {PAIR("m.q"), PAIR("m.v")};
    static const struct {
        const char *targets;
        bool good;
    } cases[] = {{"[\"q\",\"v\"]", true}, {"[\"m.q\",\"m.v\",\"o\"]", true},
                 {"\".*\"", true},        {"null", true},
                 {"[\"q\"]", false},      {"[\"q\",\".v\"]", false},
                 {"[]", false},           {"[\"q\",\"m.v.\"]", false}};
    char config[256];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(config, sizeof config,
                 "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"target_modules\":%s}",
                 cases[i].targets);
        adapter_put(scratch_path("targets"), config, tensors, ARRAY_LEN(tensors));
        if (cases[i].good)
            lora_close(must_open(scratch_path("targets")));
        else
            refused(scratch_path("targets"), ERR_MODEL,
                    "is of a module that adapter_config.json has not as a target");
    }
}

/* What looks like no number is of the path. */
static void test_colons(void **state)
{
    (void)state;
    static const char *const names[] = {"c:nan", "c:inf", "c:0x10", "c:1e", "c:",  "c:+",
                                        "c:.",   "c:-e.", "c:1:x",  "c:1 ", " c ", "c:1:2:"};
    static const char *const beyond[] = {":1e9", ":-1e9", ":1000001", ":1e999", ":-1e999"};
    char list[512], inside[512];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct lora *l = must_open(put_one(names[i]));
        assert_string_equal(lora_adapter(l, 0), scratch_path(names[i]));
        assert_true(lora_at(l, 0)->scale == 2);
        lora_close(l);
        snprintf(list, sizeof list, "%s:0.5", scratch_path(names[i])); /* and a number behind */
        l = must_open(list);
        assert_string_equal(lora_adapter(l, 0), scratch_path(names[i]));
        assert_true(lora_at(l, 0)->scale == 1);
        lora_close(l);
    }
    for (size_t i = 0; i < ARRAY_LEN(beyond); i++) {
        snprintf(list, sizeof list, "%s%s", put_one("one"), beyond[i]);
        snprintf(inside, sizeof inside, "got \"%.20s", list);
        refused(list, ERR_USAGE, inside);
        refused(list, ERR_USAGE, "expected DIR or DIR:SCALE, several with commas between");
    }
}

static void test_several(void **state)
{
    (void)state;
    char list[1024];
    const char *one = put_one("one"), *two = put_one("two");
    snprintf(list, sizeof list, "%s:0.5,%s,%s:3", one, two, one);
    struct lora *l = must_open(list);
    assert_int_equal(lora_count(l), 3);
    static const float scales[] = {1, 2, 6};
    for (int32_t i = 0; i < 3; i++) { /* of one tensor: in the list's order */
        assert_int_equal(lora_at(l, i)->adapter, i);
        assert_true(lora_at(l, i)->scale == scales[i]);
        assert_string_equal(lora_adapter(l, i), i == 1 ? two : one);
    }
    lora_close(l);
}

static void test_wrong_lists(void **state)
{
    (void)state;
    static const char *const empty[] = {"", ",", "%s,", ",%s", "%s,,%s", "%s,:2", ":1"};
    static char list[2 * LORA_LIST_MAX];
    const char *one = put_one("one");
    for (size_t i = 0; i < ARRAY_LEN(empty); i++) {
        size_t n = 0;
        for (const char *c = empty[i]; *c; c += *c == '%' ? 2 : 1)
            n += (size_t)(*c == '%' ? snprintf(list + n, sizeof list - n, "%s", one)
                                    : snprintf(list + n, sizeof list - n, "%c", *c));
        list[n] = '\0';
        refused(list, ERR_USAGE, "expected DIR or DIR:SCALE");
    }
    size_t n = 0;
    for (int i = 0; i < LORA_ADAPTERS_MAX; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i > 0 ? "," : "", one);
    struct lora *l = must_open(list);
    assert_int_equal(lora_count(l), LORA_ADAPTERS_MAX);
    lora_close(l);
    snprintf(list + n, sizeof list - n, ",%s", one);
    refused(list, ERR_USAGE, "--lora: more than 16 adapters");
    memset(list, 'x', LORA_LIST_MAX + 1);
    list[LORA_LIST_MAX + 1] = '\0';
    refused(list, ERR_USAGE, "--lora: got 4097 bytes, expected 4096 or fewer");
    list[LORA_LIST_MAX] = '\0';
    refused(list, ERR_MODEL, "no such directory");
}

/* ---- names ---- */

static void check_name(const char *module, const char *tensor)
{
    char a[256], b[256];
    struct adapter_tensor pair[] = {A(""), B("")};
    snprintf(a, sizeof a, "%s.lora_A.weight", module);
    snprintf(b, sizeof b, "%s.lora_B.weight", module);
    pair[0].name = a;
    pair[1].name = b;
    adapter_put(scratch_path("named"), CONFIG, pair, 2);
    struct lora *l = must_open(scratch_path("named"));
    assert_int_equal(lora_count(l), 1);
    assert_string_equal(lora_at(l, 0)->tensor, tensor);
    assert_true(lora_adapts(l, tensor));
    assert_false(lora_adapts(l, "model.layers.0.q"));
    assert_false(lora_adapts(l, a));
    lora_close(l);
}

static void test_names(void **state)
{
    (void)state;
#define PEFT "base_model.model."
    static const char *const cases[][2] = {
        {PEFT "model.layers.0.q", "model.layers.0.q.weight"},
        {"model.layers.0.q", "model.layers.0.q.weight"},
        {PEFT "layers.0.q", "model.layers.0.q.weight"}, /* of a class without a head */
        {"layers.0.q", "model.layers.0.q.weight"},
        {PEFT "model.language_model.layers.0.q", "model.layers.0.q.weight"},
        {PEFT "language_model.model.layers.0.q", "model.layers.0.q.weight"},
        {PEFT "language_model.lm_head", "lm_head.weight"},
        {PEFT "lm_head", "lm_head.weight"},
        {PEFT "embed_tokens", "model.embed_tokens.weight"},
        {PEFT "q", "q.weight"},
        {"q", "q.weight"},
        {"base_model.q", "base_model.q.weight"},
    };
#undef PEFT
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        check_name(cases[i][0], cases[i][1]);
    assert_false(lora_adapts(NULL, "q.weight"));
}

/* A name fits with its ".weight" and the NUL, or it is refused. */
static void test_long_names(void **state)
{
    (void)state;
    static const size_t lengths[] = {PLACEMENT_NAME_MAX - 8, PLACEMENT_NAME_MAX - 7,
                                     PLACEMENT_NAME_MAX - 1, PLACEMENT_NAME_MAX, 5000};
    static char a[6000], b[6000], tensor[6000];
    struct adapter_tensor pair[] = {A(""), B("")};
    pair[0].name = a;
    pair[1].name = b;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        memset(tensor, 'x', lengths[i]);
        memcpy(tensor + lengths[i], ".weight", 8);
        snprintf(a, sizeof a, "base_model.model.%.*s.lora_A.weight", (int)lengths[i], tensor);
        snprintf(b, sizeof b, "base_model.model.%.*s.lora_B.weight", (int)lengths[i], tensor);
        adapter_put(scratch_path("long"), CONFIG, pair, 2);
        if (i > 0) {
            refused(scratch_path("long"), ERR_MODEL, "has a name that no tensor of a model has");
            continue;
        }
        struct lora *l = must_open(scratch_path("long"));
        assert_string_equal(lora_at(l, 0)->tensor, tensor);
        lora_close(l);
    }
}

static void test_linears(void **state)
{
    (void)state;
    /* in no order; "m.b" and "m.b_c" are neighbours that share their beginning */
    static const struct adapter_tensor tensors[] = {
        B("m.b_c"),
        PAIR("m.a"),
        {"m.b.lora_B.weight", DTYPE_F16, 2, {7, 1}, NULL},
        A("m.b_c"),
        {"m.b.lora_A.weight", DTYPE_BF16, 2, {1, 9}, NULL}};
    adapter_put(scratch_path("three"),
                "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"rank_pattern\":{\"b\":1}}",
                tensors, ARRAY_LEN(tensors));
    struct lora *l = must_open(scratch_path("three"));
    assert_int_equal(lora_count(l), 3);
    assert_string_equal(lora_at(l, 0)->tensor, "m.a.weight");
    assert_string_equal(lora_at(l, 1)->tensor, "m.b.weight");
    assert_string_equal(lora_at(l, 2)->tensor, "m.b_c.weight");
    const struct lora_part *b = lora_at(l, 1);
    assert_int_equal(b->rank, 1);
    assert_int_equal(b->rows, 7);
    assert_int_equal(b->cols, 9);
    assert_true(b->scale == 4);
    assert_string_equal(b->a->name, "m.b.lora_A.weight");
    assert_string_equal(b->b->name, "m.b.lora_B.weight");
    assert_int_equal(lora_at(l, 0)->rank, 2);
    assert_int_equal(lora_at(l, 2)->rows, 3);
    assert_true(lora_at(l, 2)->scale == 2);
    static const char *const not [] = {"m", "m.a", "m.a.weigh", "m.a.weightx", "", "m.b_.weight"};
    for (size_t i = 0; i < ARRAY_LEN(not ); i++)
        assert_false(lora_adapts(l, not [i]));
    lora_close(l);
}

/* ---- what is refused ---- */

static void refused_tensors(const struct adapter_tensor *tensors, int32_t count, const char *words)
{
    adapter_put(scratch_path("wrong"), CONFIG, tensors, count);
    refused(scratch_path("wrong"), ERR_MODEL, words);
    refused(scratch_path("wrong"), ERR_MODEL, "wrong/adapter_model.safetensors: ");
}

static void test_halves(void **state)
{
    (void)state;
    static const struct adapter_tensor only_a[] = {A("m")}, only_b[] = {B("m")};
    static const struct adapter_tensor mixed[] = {A("m.a"), B("m.b")};
    static const struct adapter_tensor behind[] = {PAIR("m.a"), A("m.b")};
    static const struct adapter_tensor before[] = {B("m.a"), PAIR("m.b")};
    static const struct adapter_tensor longer[] = {A("m.a"), B("m.ab")};
    static const struct adapter_tensor spelled[] = {
        A("m.a"), {"m.a.lora_B.weight", DTYPE_F32, 2, {3, 2}, NULL}};
    refused_tensors(only_a, 1, "tensor base_model.model.m.lora_A.weight has no other half");
    refused_tensors(only_b, 1, "tensor base_model.model.m.lora_B.weight has no other half");
    refused_tensors(mixed, 2, "tensor base_model.model.m.a.lora_A.weight has no other half");
    refused_tensors(behind, 3, "tensor base_model.model.m.b.lora_A.weight has no other half");
    refused_tensors(before, 3, "tensor base_model.model.m.a.lora_B.weight has no other half");
    refused_tensors(longer, 2, "tensor base_model.model.m.a.lora_A.weight has no other half");
    refused_tensors(spelled, 2, "tensor base_model.model.m.a.lora_A.weight has no other half");
    refused_tensors(NULL, 0, "no tensors in it");
}

static void test_other_tensors(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"m.embed.lora_embedding_A", "adapts an embedding, which is not supported"},
        {"m.embed.lora_embedding_B", "adapts an embedding, which is not supported"},
        {"m.q.lora_magnitude_vector", "is one of DoRA, which is not supported"},
        {"m.q.lora_magnitude_vector.weight", "is one of DoRA, which is not supported"},
        {"m.q.lora_B.bias", "is not the weight of a lora_A or lora_B"},
        {"m.q.lora_A.default.weight", "is not the weight of a lora_A or lora_B"},
        {".lora_A.weight", "has no other half"},
        {"m.q.lora_a.weight", "is not the weight of a lora_A or lora_B"},
        {"m.q.lora_A.weights", "is not the weight of a lora_A or lora_B"},
    };
    struct adapter_tensor tensors[] = {PAIR("m.q"), {NULL, DTYPE_F32, 2, {3, 2}, NULL}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char words[256];
        tensors[2].name = cases[i][0];
        snprintf(words, sizeof words, "tensor %s %s", cases[i][0], cases[i][1]);
        refused_tensors(tensors, 3, words);
    }
    /* nothing is left of the name */
    static const struct adapter_tensor bare[] = {PAIR("")};
    refused_tensors(bare, 2, "has a name that no tensor of a model has");
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        int32_t ndim;
        int64_t a[3], b[3];
        const char *words;
    } cases[] = {
        {2, {3, 5}, {3, 2}, "m.q: lora_A is [3, 5] and lora_B [3, 2], expected rank 2, as "},
        {2, {2, 5}, {3, 3}, "m.q: lora_A is [2, 5] and lora_B [3, 3], expected rank 2, as "},
        {2, {3, 5}, {3, 3}, "expected rank 2, as adapter_config.json says"},
        {2, {5, 2}, {2, 3}, "expected rank 2"}, /* the other way around */
        {2, {0, 5}, {3, 0}, "expected rank 2"},
        {1, {2}, {3}, "base_model.model.m.q.lora_A.weight is no matrix"},
        {3, {2, 5, 1}, {3, 2, 1}, "base_model.model.m.q.lora_A.weight is no matrix"},
        {0, {0}, {0}, "base_model.model.m.q.lora_A.weight is no matrix"},
    };
    static const enum dtype types[] = {DTYPE_I8, DTYPE_F64, DTYPE_F8_E4M3, DTYPE_U8, DTYPE_I32};
    struct adapter_tensor tensors[] = {PAIR("m.q")};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        tensors[0].ndim = tensors[1].ndim = cases[i].ndim;
        memcpy(tensors[0].shape, cases[i].a, sizeof cases[i].a);
        memcpy(tensors[1].shape, cases[i].b, sizeof cases[i].b);
        refused_tensors(tensors, 2, cases[i].words);
    }
    for (size_t i = 0; i < 2 * ARRAY_LEN(types); i++) {
        char words[128];
        struct adapter_tensor pair[] = {PAIR("m.q")};
        pair[i % 2].dtype = types[i / 2];
        snprintf(words, sizeof words, "m.q.lora_%c.weight is %s, expected F32, F16 or BF16",
                 i % 2 ? 'B' : 'A', dtype_name(types[i / 2]));
        refused_tensors(pair, 2, words);
    }
    struct adapter_tensor flat[] = {PAIR("m.q")}; /* of B alone */
    flat[1].ndim = 1;
    refused_tensors(flat, 2, "base_model.model.m.q.lora_B.weight is no matrix");
}

/* Tensors that are there whole, by the names that PEFT gives them. */
static void test_whole(void **state)
{
    (void)state;
    static const struct adapter_tensor tensors[] = {
        PAIR("lm_head"),
        {"base_model.model.lm_head.base_layer.weight", DTYPE_BF16, 2, {3, 5}, NULL},
        {"base_model.model.model.norm.weight", DTYPE_F32, 1, {5}, NULL},
        {"base_model.model.model.layers.0.q.base_layer.bias", DTYPE_F16, 1, {3}, NULL},
        {"base_model.model.m.base_layers.weight", DTYPE_F32, 2, {1, 1}, NULL}};
    static const char *const names[] = {"lm_head.weight", "lm_head.weight", "m.base_layers.weight",
                                        "model.layers.0.q.bias", "model.norm.weight"};
    struct buf out;
    adapter_put(scratch_path("whole"), CONFIG, tensors, ARRAY_LEN(tensors));
    struct lora *l = must_open(scratch_path("whole"));
    assert_int_equal(lora_count(l), ARRAY_LEN(names));
    for (int32_t i = 0; i < lora_count(l); i++) {
        const struct lora_part *p = lora_at(l, i);
        assert_string_equal(p->tensor, names[i]);
        assert_int_equal(p->whole != NULL, i != 1); /* in front of what is added */
        assert_int_equal(p->a != NULL, i == 1);
        assert_int_equal(p->ndim, i < 3 ? 2 : 1);
        assert_int_equal(p->rows, i < 2 ? 3 : 1);
        assert_int_equal(p->cols, i == 2 ? 1 : i == 3 ? 3 : 5);
        assert_true(lora_replaces(l, names[i]));
        assert_true(lora_adapts(l, names[i]));
    }
    assert_false(lora_replaces(l, "model.layers.0.q.weight"));
    assert_false(lora_replaces(NULL, "lm_head.weight"));
    buf_init(&out, 1 << 16);
    lora_describe(l, &out);
    assert_non_null(strstr(out.data, ": of rank 2, added to 1 tensors, in the place of 4; "));
    buf_free(&out);
    lora_close(l);
    struct lora *other = must_open(put_one("one"));
    assert_false(lora_replaces(other, "model.layers.0.q.weight"));
    lora_close(other);
}

static void test_wrong_whole(void **state)
{
    (void)state;
    static const struct adapter_tensor three[] = {{"m.conv", DTYPE_F32, 3, {2, 2, 2}, NULL}};
    static const struct adapter_tensor none[] = {{"m.scalar", DTYPE_F32, 0, {0}, NULL}};
    static const struct adapter_tensor codes[] = {{"m.q.weight", DTYPE_I8, 2, {2, 2}, NULL}};
    static const struct adapter_tensor twice[] = {
        {"m.q.weight", DTYPE_F32, 2, {2, 2}, NULL},
        {"base_model.model.m.q.base_layer.weight", DTYPE_F32, 2, {2, 2}, NULL}};
    static const struct adapter_tensor bare[] = {{"base_model.model.", DTYPE_F32, 1, {2}, NULL}};
    char list[512];
    refused_tensors(three, 1, "m.conv is no matrix or vector");
    refused_tensors(none, 1, "m.scalar is no matrix or vector");
    refused_tensors(codes, 1, "m.q.weight is I8, expected F32, F16 or BF16");
    refused_tensors(twice, 2, "is for what another one is for, too");
    refused_tensors(bare, 1, "has a name that no tensor of a model has");
    adapter_put(scratch_path("x"), CONFIG, twice, 1); /* of two adapters, too */
    adapter_put(scratch_path("y"), CONFIG, &twice[1], 1);
    snprintf(list, sizeof list, "%s,%s", scratch_path("x"), scratch_path("y"));
    refused(list, ERR_MODEL, "is for what another one is for, too");
}

/* Two spellings of one tensor; two adapters may well add to the same. */
static void test_twice(void **state)
{
    (void)state;
    static const struct adapter_tensor prefix[] = {
        PAIR("m.q"),
        {"m.q.lora_A.weight", DTYPE_F32, 2, {2, 5}, NULL},
        {"m.q.lora_B.weight", DTYPE_F32, 2, {3, 2}, NULL}};
    static const struct adapter_tensor mapped[] = {PAIR("layers.0.q"), PAIR("m.z"),
                                                   PAIR("model.layers.0.q")};
    refused_tensors(prefix, ARRAY_LEN(prefix), "is for what another one is for, too");
    refused_tensors(mapped, ARRAY_LEN(mapped), "is for what another one is for, too");
    refused_tensors(mapped, ARRAY_LEN(mapped), "layers.0.q.lora_A.weight");
}

static void test_files(void **state)
{
    (void)state;
    char list[512];
    refused("nowhere/at/all", ERR_MODEL,
            "--lora nowhere/at/all: no such directory; expected one that PEFT has saved, with "
            "adapter_config.json and adapter_model.safetensors");
    put_one("f");
    snprintf(list, sizeof list, "%s/adapter_model.safetensors", scratch_path("f"));
    refused(list, ERR_MODEL, "no such directory"); /* a file */
    snprintf(list, sizeof list, "%s,nowhere", scratch_path("f"));
    refused(list, ERR_MODEL, "--lora nowhere: no such directory"); /* the second */
    assert_int_equal(unlink(scratch_path("f/adapter_config.json")), 0);
    refused(scratch_path("f"), ERR_MODEL, "f: no adapter_config.json in it; expected a directory");
    put_one("f");
    assert_int_equal(unlink(scratch_path("f/adapter_model.safetensors")), 0);
    refused(scratch_path("f"), ERR_MODEL, "adapter_model.safetensors");
    scratch_write(scratch_path("f/adapter_model.bin"), "PK", 2);
    refused(scratch_path("f"), ERR_MODEL, "f/adapter_model.bin: pickled files are not read");
    put_one("f"); /* beside the other it does not matter */
    lora_close(must_open(scratch_path("f")));
    /* a link that leads out, to a file that would do */
    assert_int_equal(rename(scratch_path("f/adapter_model.safetensors"), scratch_path("other")), 0);
    assert_int_equal(symlink(scratch_path("other"), scratch_path("f/adapter_model.safetensors")),
                     0);
    refused(scratch_path("f"), ERR_MODEL, "outside");
}

/* Cut after every byte of the header, and one that is damaged. */
static void test_damaged(void **state)
{
    (void)state;
    size_t n;
    char path[PATH_MAX];
    put_one("d");
    snprintf(path, sizeof path, "%s", scratch_path("d/adapter_model.safetensors"));
    unsigned char *bytes = scratch_read(path, &n);
    for (size_t cut = n; cut-- > 0;) {
        assert_int_equal(truncate(path, (off_t)cut), 0);
        refused(scratch_path("d"), ERR_MODEL, "adapter_model.safetensors");
    }
    bytes[8] = '[';
    scratch_write(path, bytes, n);
    refused(scratch_path("d"), ERR_MODEL, "adapter_model.safetensors");
    free(bytes);
    adapter_put(scratch_path("d"), "{\"peft_type\":\"LORA\",\"r\":2}", one_pair, 2);
    refused(scratch_path("d"), ERR_MODEL, "d/adapter_config.json: lora_alpha is missing");
}

/* ---- what is said of them ---- */

static uint64_t stamp_of(const char *list)
{
    struct lora *l = must_open(list);
    const uint64_t stamp = lora_stamp(l, BASE_HASH_INIT);
    assert_true(lora_stamp(l, stamp) != stamp);
    lora_close(l);
    return stamp;
}

static void test_stamp(void **state)
{
    (void)state;
    char lists[8][512];
    uint64_t stamps[ARRAY_LEN(lists)];
    const char *a = put_one("sa"), *b = put_one("sb");
    adapter_put(scratch_path("sb"), "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":5}", one_pair,
                2);
    snprintf(lists[0], sizeof lists[0], "%s", a);
    snprintf(lists[1], sizeof lists[1], "%s", b);
    snprintf(lists[2], sizeof lists[2], "%s:2", a);
    snprintf(lists[3], sizeof lists[3], "%s,%s", a, b);
    snprintf(lists[4], sizeof lists[4], "%s,%s", b, a);
    snprintf(lists[5], sizeof lists[5], "%s,%s", a, a);
    snprintf(lists[6], sizeof lists[6], "%s:2,%s", a, b);
    snprintf(lists[7], sizeof lists[7], "%s,%s:2", a, b);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        stamps[i] = stamp_of(lists[i]);
        assert_true(stamps[i] == stamp_of(lists[i]));
        for (size_t k = 0; k < i; k++)
            assert_true(stamps[k] != stamps[i]);
    }
    snprintf(lists[2], sizeof lists[2], "%s:1", a); /* what is said anyway */
    assert_true(stamp_of(lists[2]) == stamps[0]);
    adapter_put(scratch_path("sa"), "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":8}", NULL, 0);
    adapter_put(scratch_path("sa"), NULL, one_pair, 2);
    assert_true(stamp_of(a) != stamps[0]); /* another scale, and written again */
    static const struct adapter_tensor more[] = {PAIR("model.layers.0.q"), PAIR("model.z")};
    const uint64_t before = stamp_of(b);
    adapter_put(scratch_path("sb"), NULL, more, 4);
    assert_true(stamp_of(b) != before);
}

static void set_time(const char *name, long ns)
{
    char path[PATH_MAX];
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1, .tv_nsec = ns}};
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", scratch_path(name));
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Path, length and time, each by itself. */
static void test_stamp_parts(void **state)
{
    (void)state;
    static const struct adapter_tensor other[] = {
        A("model.layers.0.q"),
        {"base_model.model.model.layers.0.q.lora_B.weight", DTYPE_F32, 2, {4, 2}, NULL}};
    put_one("ta");
    put_one("tb");
    set_time("ta", 7);
    set_time("tb", 7);
    const uint64_t first = stamp_of(scratch_path("ta"));
    assert_true(stamp_of(scratch_path("tb")) != first);
    set_time("ta", 8);
    assert_true(stamp_of(scratch_path("ta")) != first);
    set_time("ta", 7);
    assert_true(stamp_of(scratch_path("ta")) == first);
    adapter_put(scratch_path("ta"), NULL, other, 2);
    set_time("ta", 7);
    assert_true(stamp_of(scratch_path("ta")) != first);
}

static void test_describe(void **state)
{
    (void)state;
    static const struct adapter_tensor tensors[] = {
        PAIR("m.a"),
        {"m.b.lora_A.weight", DTYPE_F32, 2, {7, 5}, NULL},
        {"m.b.lora_B.weight", DTYPE_F32, 2, {3, 7}, NULL}};
    char list[512], size[2][32], wanted[1024];
    struct stat sb[2];
    struct buf out;
    const char *one = put_one("one"), *two = scratch_path("described");
    adapter_put(two, "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"rank_pattern\":{\"b\":7}}",
                tensors, ARRAY_LEN(tensors));
    assert_int_equal(stat(scratch_path("one/adapter_model.safetensors"), &sb[0]), 0);
    assert_int_equal(stat(scratch_path("described/adapter_model.safetensors"), &sb[1]), 0);
    for (int i = 0; i < 2; i++)
        base_human_bytes(size[i], sizeof size[i], (uint64_t)sb[i].st_size);
    snprintf(list, sizeof list, "%s,%s:0.5", one, two);
    snprintf(wanted, sizeof wanted,
             "adapter %s: of rank 2, added to 1 tensors; %s\n"
             "adapter %s: of rank 7, added to 2 tensors, times 0.5; %s\n",
             one, size[0], two, size[1]);
    struct lora *l = must_open(list);
    buf_init(&out, 1 << 16);
    lora_describe(l, &out);
    assert_false(out.failed);
    assert_string_equal(out.data, wanted);
    buf_free(&out);
    lora_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),          cmocka_unit_test(test_colons),
        cmocka_unit_test(test_several),       cmocka_unit_test(test_wrong_lists),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_linears),       cmocka_unit_test(test_halves),
        cmocka_unit_test(test_other_tensors), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_twice),         cmocka_unit_test(test_files),
        cmocka_unit_test(test_damaged),       cmocka_unit_test(test_stamp),
        cmocka_unit_test(test_stamp_parts),   cmocka_unit_test(test_describe),
        cmocka_unit_test(test_targets),       cmocka_unit_test(test_names_with_scales),
        cmocka_unit_test(test_whole),         cmocka_unit_test(test_wrong_whole),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
