/* Checkpoint directories: every form reads the same, links and names stay inside, plans are checked
 * against what is there, and the sharded form goes around without a byte changing. */
#include "tests/scratch.h"
#include "tests/toy_plan.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/shard.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#define CORPUS TEST_DATA_DIR "/corpus/safetensors/checkpoints"

static struct checkpoint *must_open(const char *dir)
{
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    if (checkpoint_open(dir, &c, &err) != OK)
        fail_msg("%s", err.text);
    return c;
}

/* ---- the corpus: the same five tensors in four forms ---- */

static const struct checkpoint_tensor corpus_tensors[] = {
    {"head.weight", DTYPE_BF16, 2, 37, 12, NULL, NULL, NULL},
    {"model.layers.0.down.weight", DTYPE_F16, 2, 12, 29, NULL, NULL, NULL},
    {"model.layers.0.norm.weight", DTYPE_BF16, 1, 1, 12, NULL, NULL, NULL},
    {"model.layers.0.up.weight", DTYPE_F32, 2, 29, 12, NULL, NULL, NULL},
    {"model.layers.0.rotary.inv_freq", DTYPE_I64, 1, 1, 3, NULL, NULL, NULL}};

static double element(const void *data, enum dtype t, size_t i)
{
    return t == DTYPE_I64 ? (double)((const int64_t *)data)[i] : (double)dtype_load(data, t, i);
}

/* Reads a rectangle of corpus tensor k and compares every element with make_corpus.py's formula. */
static void check_rectangle(const struct checkpoint *c, int k, struct span rows, struct span cols,
                            int32_t prefer)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, corpus_tensors[k].name);
    struct err err = {{0}};
    int64_t n = span_len(rows) * span_len(cols), i = 0;
    unsigned char *dst = malloc((size_t)n * dtype_size(t->dtype) + 16);
    assert_non_null(dst);
    memset(dst + (size_t)n * dtype_size(t->dtype), 0xcc, 16);
    if (checkpoint_read(c, t, rows, cols, prefer, dst, &err) != OK)
        fail_msg("%s", err.text);
    for (int64_t row = rows.begin; row < rows.end; row++) {
        for (int64_t col = cols.begin; col < cols.end; col++)
            assert_int_equal((int64_t)element(dst, t->dtype, (size_t)i++),
                             (131 * k + row * t->cols + col) % 251);
    }
    for (int x = 0; x < 16; x++)
        assert_int_equal(dst[(size_t)n * dtype_size(t->dtype) + (size_t)x], 0xcc);
    free(dst);
}

static void check_reads(const struct checkpoint *c, int k)
{
    const struct checkpoint_tensor *t = &corpus_tensors[k];
    for (int32_t prefer = 0; prefer < 3; prefer++) {
        check_rectangle(c, k, (struct span){0, t->rows}, (struct span){0, t->cols}, prefer);
        for (int32_t parts = 2; parts <= 5; parts++) {
            for (int32_t i = 0; i < parts * parts; i++)
                check_rectangle(c, k, placement_block(t->rows, parts, i / parts),
                                placement_block(t->cols, parts, i % parts), prefer);
        }
    }
}

static void test_forms(void **state)
{
    static const char *const forms[] = {"plain", "index", "sharded", "sharded_overlap"};
    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
        char dir[PATH_MAX];
        snprintf(dir, sizeof dir, CORPUS "/%s", forms[f]);
        struct checkpoint *c = must_open(dir);
        assert_int_equal(checkpoint_count(c), ARRAY_LEN(corpus_tensors));
        assert_int_equal(checkpoint_ranks(c), f < 2 ? 0 : 2);
        assert_int_equal(checkpoint_bytes(c),
                         2 * 37 * 12 + 2 * 12 * 29 + 2 * 12 + 4 * 29 * 12 + 24);
        for (int k = 0; k < (int)ARRAY_LEN(corpus_tensors); k++) {
            const struct checkpoint_tensor *want = &corpus_tensors[k];
            const struct checkpoint_tensor *t = checkpoint_find(c, want->name);
            assert_non_null(t);
            assert_int_equal(t->dtype, want->dtype);
            assert_int_equal(t->ndim, want->ndim);
            assert_int_equal(t->rows, want->rows);
            assert_int_equal(t->cols, want->cols);
            check_reads(c, k);
            if (k > 0)
                assert_true(strcmp(checkpoint_at(c, k - 1)->name, checkpoint_at(c, k)->name) < 0);
        }
        assert_null(checkpoint_find(c, "head.weigh"));
        assert_string_equal(checkpoint_nearest(c, "haed.weight"), "head.weight");
        checkpoint_close(c);
    }
    checkpoint_close(NULL);
}

static void copy_file(const char *from, const char *to, bool flip_last)
{
    size_t n;
    unsigned char *bytes = scratch_read(from, &n);
    bytes[n - 1] ^= flip_last;
    scratch_write(to, bytes, n);
    free(bytes);
}

static uint64_t stamp_of(const char *name)
{
    struct checkpoint *c = must_open(scratch_path(name));
    const uint64_t stamp = checkpoint_stamp(c);
    checkpoint_close(c);
    return stamp;
}

/* Files that were written again have another stamp. */
static void test_stamp(void **state)
{
    (void)state;
    const struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1, .tv_nsec = 7}};
    struct timespec again[2] = {later[0], later[1]};
    mkdir(scratch_path("stamped"), 0755);
    copy_file(CORPUS "/plain/model.safetensors", scratch_path("stamped/model.safetensors"), false);
    assert_int_equal(utimensat(AT_FDCWD, scratch_path("stamped/model.safetensors"), later, 0), 0);
    const uint64_t first = stamp_of("stamped");
    assert_true(stamp_of("stamped") == first);
    again[1].tv_nsec++;
    assert_int_equal(utimensat(AT_FDCWD, scratch_path("stamped/model.safetensors"), again, 0), 0);
    assert_true(stamp_of("stamped") != first);
    assert_int_equal(utimensat(AT_FDCWD, scratch_path("stamped/model.safetensors"), later, 0), 0);
    assert_true(stamp_of("stamped") == first);
}

/* Of two copies a rank reads its own: here rank 1's copy of the norm ends in another byte. */
static void test_prefers_own_copy(void **state)
{
    static const char *const names[] = {"shards.json", "model-rank-00000-part-00000.safetensors",
                                        "model-rank-00001-part-00000.safetensors"};
    const struct span all = {0, 12}, row = {0, 1};
    uint16_t own[3][12];
    struct err err = {{0}};
    (void)state;
    assert_int_equal(mkdir(scratch_path("copies"), 0777), 0);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char from[PATH_MAX], to[PATH_MAX];
        snprintf(from, sizeof from, CORPUS "/sharded/%s", names[i]);
        snprintf(to, sizeof to, "%s/copies/%s", scratch_dir, names[i]);
        copy_file(from, to, i == 2);
    }
    struct checkpoint *c = must_open(scratch_path("copies"));
    const struct checkpoint_tensor *t = checkpoint_find(c, "model.layers.0.norm.weight");
    for (int32_t rank = 0; rank < 3; rank++)
        assert_int_equal(checkpoint_read(c, t, row, all, rank, own[rank], &err), OK);
    assert_memory_equal(own[0], own[2], sizeof own[0]); /* no rank of that number: the first copy */
    assert_memory_equal(own[0], own[1], sizeof own[0] - 2);
    assert_int_equal(own[0][11] ^ own[1][11], 0x100);
    checkpoint_close(c);
}

static void test_read_outside(void **state)
{
    struct checkpoint *c = must_open(CORPUS "/plain");
    const struct checkpoint_tensor *t = checkpoint_find(c, "head.weight");
    struct err err = {{0}};
    char dst[64];
    (void)state;
    assert_int_equal(
        checkpoint_read(c, t, (struct span){36, 38}, (struct span){0, 1}, 0, dst, &err),
        ERR_INTERNAL);
    assert_int_equal(checkpoint_read(c, t, (struct span){0, 1}, (struct span){-1, 1}, 0, dst, &err),
                     ERR_INTERNAL);
    checkpoint_close(c);
}

/* ---- where files may be ---- */

static void refused(const char *dir, const char *words)
{
    struct checkpoint *c = NULL;
    struct err err = {{0}};
    assert_int_equal(checkpoint_open(dir, &c, &err), ERR_MODEL);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.text);
}

static void copy_model(const char *to)
{
    copy_file(CORPUS "/plain/model.safetensors", to, false);
}

static void make_dirs(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(mkdir(scratch_path(names[i]), 0777), 0);
}

static void test_links(void **state)
{
    static const char *const dirs[] = {"in",
                                       "i",
                                       "out",
                                       "elsewhere",
                                       "hard",
                                       "hub",
                                       "hub/models--o--n",
                                       "hub/models--o--n/blobs",
                                       "hub/models--o--n/snapshots",
                                       "hub/models--o--n/snapshots/r",
                                       "fake",
                                       "fake/blobs",
                                       "fake/snapshots",
                                       "fake/snapshots/r"};
    (void)state;
    make_dirs(dirs, ARRAY_LEN(dirs));
    copy_model(scratch_path("in/real"));
    copy_model(scratch_path("elsewhere/blob"));
    copy_model(scratch_path("in/blob"));
    copy_model(scratch_path("hub/models--o--n/blobs/sha"));
    copy_model(scratch_path("fake/blobs/sha"));
    assert_int_equal(symlink("real", scratch_path("in/model.safetensors")), 0);
    assert_int_equal(symlink("../elsewhere/blob", scratch_path("out/model.safetensors")), 0);
    assert_int_equal(
        symlink("../../blobs/sha", scratch_path("hub/models--o--n/snapshots/r/model.safetensors")),
        0);
    assert_int_equal(symlink("../../blobs/sha", scratch_path("fake/snapshots/r/model.safetensors")),
                     0);
    checkpoint_close(must_open(scratch_path("in")));
    checkpoint_close(must_open(scratch_path("hub/models--o--n/snapshots/r")));
    refused(scratch_path("out"), "outside the model directory");
    refused(scratch_path("out"), "put a hard link (ln) or a copy in its place");
    assert_int_equal(link(scratch_path("elsewhere/blob"), scratch_path("hard/model.safetensors")),
                     0);
    checkpoint_close(must_open(scratch_path("hard")));
    /* "in" begins like "i", but is not in it */
    assert_int_equal(symlink("../in/blob", scratch_path("i/model.safetensors")), 0);
    refused(scratch_path("i"), "outside the model directory");
    refused(scratch_path("fake/snapshots/r"), "outside the model directory"); /* not a cache */
    assert_int_equal(symlink("hub/models--o--n/snapshots/r", scratch_path("link")), 0);
    checkpoint_close(must_open(scratch_path("link"))); /* the directory itself is the user's word */
    assert_int_equal(unlink(scratch_path("in/real")), 0);
    refused(scratch_path("in"), "broken symbolic link");
    assert_int_equal(unlink(scratch_path("in/model.safetensors")), 0);
    assert_int_equal(mkfifo(scratch_path("in/model.safetensors"), 0600), 0);
    refused(scratch_path("in"), "not a regular file");
}

static void test_no_directory(void **state)
{
    (void)state;
    refused(scratch_path("nowhere"), "expected a model directory: No such file");
    scratch_write(scratch_path("file"), "x", 1);
    refused(scratch_path("file"), "expected a model directory, found a file");
}

/* ---- plans against checkpoints ---- */

static void corpus_plan(struct local_weight w[4])
{
    const struct span d = {0, 12};
    toy_begin(&w[0], "head", 12, DTYPE_BF16);
    toy_slice(&w[0], "head.weight", 37, 12, (struct span){0, 37}, d);
    toy_begin(&w[1], "down", 29, DTYPE_BF16);
    toy_slice(&w[1], "model.layers.0.down.weight", 12, 29, d, (struct span){0, 29});
    toy_begin(&w[2], "norm", 12, DTYPE_F32);
    w[2].kind = LOCAL_VECTOR;
    toy_slice(&w[2], "model.layers.0.norm.weight", 1, 12, (struct span){0, 1}, d);
    w[2].slices[0].ndim = 1;
    toy_begin(&w[3], "up", 12, DTYPE_BF16);
    toy_slice(&w[3], "model.layers.0.up.weight", 29, 12, (struct span){0, 29}, d);
}

static void check_refused(const struct checkpoint *c, const struct local_weight *w, int32_t count,
                          const char *ignore, const char *words)
{
    const char *const patterns[] = {ignore};
    struct err err = {{0}};
    assert_int_equal(checkpoint_check(c, w, count, patterns, 1, NULL, &err), ERR_MODEL);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.text);
}

static void test_check(void **state)
{
    static const char *const patterns[] = {"model.layers.*.rotary.inv_freq",
                                           "**.inv_freq",
                                           "model.layers.**",
                                           "**",
                                           "model.layers.0.rotary.inv_freq.**",
                                           "model.layers.**.rotary.*"};
    static const char *const misses[] = {"*.inv_freq",
                                         "model.layers.*",
                                         "model.layers.*.rotary",
                                         "model.layers.0",
                                         "model.layers.0.rotary.inv_freq.*",
                                         "*",
                                         "model.layers.0.rotary.inv",
                                         "**.rotary"};
    const char *const all = "**.inv_freq";
    struct checkpoint *c = must_open(CORPUS "/index");
    struct local_weight w[4];
    struct err err = {{0}};
    (void)state;
    corpus_plan(w);
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        int32_t ignored = -1;
        if (checkpoint_check(c, w, 4, &patterns[i], 1, &ignored, &err) != OK)
            fail_msg("%s: %s", patterns[i], err.text);
        assert_int_equal(ignored, 1);
    }
    for (size_t i = 0; i < ARRAY_LEN(misses); i++)
        check_refused(c, w, 4, misses[i], "layers.0.rotary.inv_freq: this model has no place");
    check_refused(c, w, 3, all, "unexpected tensor layers.0.up.weight");
    w[3].slices[0].shape[0] = 30;
    check_refused(c, w, 4, all, "up.weight: expected 2-d [30, 12], found 2-d [29, 12]");
    corpus_plan(w);
    w[2].slices[0].ndim = 2;
    check_refused(c, w, 4, all, "norm.weight: expected 2-d [1, 12], found 1-d [1, 12]");
    corpus_plan(w);
    snprintf(w[1].slices[0].tensor, PLACEMENT_NAME_MAX, "model.layers.0.dawn.weight");
    check_refused(c, w, 4, all,
                  "model.layers.0.dawn.weight is missing (nearest: layers.0.down.weight)");
    snprintf(w[2].slices[0].tensor, PLACEMENT_NAME_MAX, "model.layers.0.rotary.inv_freq");
    w[2].slices[0].shape[1] = 3;
    check_refused(c, &w[2], 1, "**", "inv_freq: expected F32, F16 or BF16, found I64");
    checkpoint_close(c);
}

/* Two tensors that are one until the last byte changes, several reads long. */
static void test_same(void **state)
{
    (void)state;
    enum { HEADER = 211, BYTES = 700 * 1000 * 4, FILE_BYTES = 8 + HEADER + 3 * BYTES };
    static const char header[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[700,1000],\"data_offsets\":[0,2800000]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[700,1000],\"data_offsets\":[2800000,5600000]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[1000,700],\"data_offsets\":[5600000,8400000]}}";
    struct err err = {{0}};
    char *file = calloc(1, FILE_BYTES);
    assert_non_null(file);
    assert_int_equal(sizeof header - 1, HEADER);
    file[0] = (char)HEADER;
    memcpy(file + 8, header, HEADER);
    assert_int_equal(mkdir(scratch_path("same"), 0700), 0);
    for (int changed = 0; changed < 2; changed++) {
        bool same = changed;
        file[8 + HEADER + 2 * BYTES - 1] = (char)changed;
        scratch_write(scratch_path("same/model.safetensors"), file, FILE_BYTES);
        struct checkpoint *c = must_open(scratch_path("same"));
        const struct checkpoint_tensor *a = checkpoint_find(c, "a"), *b = checkpoint_find(c, "b");
        assert_int_equal(checkpoint_same(c, a, b, &same, &err), OK);
        assert_int_equal(same, !changed);
        assert_int_equal(checkpoint_same(c, a, checkpoint_find(c, "c"), &same, &err), OK);
        assert_false(same);
        checkpoint_close(c);
    }
    free(file);
}

/* ---- shard ---- */

static const struct toy model = {20, 6, 2, 4, 29, 37};

static void write_shards(const char *from, int32_t ranks, const char *to)
{
    struct local_weight plan[8][TOY_WEIGHTS], *weights[8];
    int32_t counts[8];
    struct err err = {{0}};
    struct checkpoint *c = must_open(from);
    for (int32_t r = 0; r < ranks; r++) {
        toy_plan(&model, r, ranks, DTYPE_BF16, plan[r]);
        weights[r] = plan[r];
        counts[r] = TOY_WEIGHTS;
    }
    if (shard_write(from, c, weights, counts, ranks, to, &err) != OK)
        fail_msg("%s", err.text);
    checkpoint_close(c);
}

/* Both directories hold the same names and bytes; how many files. */
static int same_dirs(const char *a, const char *b)
{
    int files = 0;
    DIR *dir = opendir(a);
    assert_non_null(dir);
    for (struct dirent *d = readdir(dir); d; d = readdir(dir)) {
        char path[2][PATH_MAX];
        size_t n[2];
        if (d->d_name[0] == '.')
            continue;
        snprintf(path[0], sizeof path[0], "%s/%s", a, d->d_name);
        snprintf(path[1], sizeof path[1], "%s/%s", b, d->d_name);
        unsigned char *x = scratch_read(path[0], &n[0]), *y = scratch_read(path[1], &n[1]);
        if (n[0] != n[1] || memcmp(x, y, n[0]) != 0)
            fail_msg("%s differs from %s", path[1], path[0]);
        free(x);
        free(y);
        files++;
    }
    closedir(dir);
    return files;
}

static void make_model(const char *dir)
{
    const struct synth_rules rules = {.seed = 7, .std = 0.02f, .embed = "embed.weight"};
    struct synth_tensor tensors[TOY_TENSORS];
    struct err err = {{0}};
    toy_tensors(&model, tensors);
    if (synth_write(dir, "{}\n", &rules, tensors, TOY_TENSORS, DTYPE_BF16, 300, 2, &err) != OK)
        fail_msg("%s", err.text);
}

/* ---- names ---- */

/* A directory with one file of these tensors, each of 3 x 5. */
static void make_named(const char *dir, const char *const *names, int32_t count)
{
    const struct synth_rules rules = {.seed = 7, .std = 0.02f, .embed = "embed_tokens.weight"};
    struct synth_tensor tensors[8];
    struct err err = {{0}};
    for (int32_t i = 0; i < count; i++)
        tensors[i] = (struct synth_tensor){names[i], 2, 3, 5};
    if (synth_write(dir, "{}\n", &rules, tensors, count, DTYPE_BF16, 37, 1, &err) != OK)
        fail_msg("%s", err.text);
}

/* Both hold what the file has under `in_file`. */
static void check_named(const struct checkpoint *c, const char *file, const char *in_file,
                        const char *name)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, name);
    struct safetensors st;
    struct err err = {{0}};
    uint16_t wanted[15], got[15];
    if (!t)
        fail_msg("%s is not found", name);
    assert_int_equal(safetensors_open(scratch_path(file), &st, &err), OK);
    const struct safetensors_entry *e = safetensors_find(&st, in_file);
    assert_non_null(e);
    assert_int_equal(safetensors_read(&st, e->offset, wanted, sizeof wanted, &err), OK);
    assert_int_equal(checkpoint_read(c, t, (struct span){0, 3}, (struct span){0, 5}, 0, got, &err),
                     OK);
    assert_memory_equal(got, wanted, sizeof got);
    safetensors_close(&st);
}

static void put_index(const char *path, const char *const *names, size_t count)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "{\"weight_map\":");
    for (size_t i = 0; i < count; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%c\"%s\":\"a.safetensors\"",
                      i > 0 ? ',' : '{', names[i]);
    n += snprintf(text + n, sizeof text - (size_t)n, "}}");
    scratch_write(path, text, (size_t)n);
}

/* Of a model without a head: nothing is in front of the names. What only begins or ends like them
 * keeps its own. */
static void test_names_without_model(void **state)
{
    (void)state;
    static const char *const names[] = {"embed_tokens.weight", "layers.0.mlp.up_proj.weight",
                                        "norm.weight",         "head.norm.weight",
                                        "embed_tokens.scale",  "layers_0.weight"};
    static const char *const found[] = {
        "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
        "model.norm.weight",         "head.norm.weight",
        "embed_tokens.scale",        "layers_0.weight"};
    const int32_t count = ARRAY_LEN(names);
    make_named(scratch_path("bare"), names, count);
    struct checkpoint *c = must_open(scratch_path("bare"));
    assert_int_equal(checkpoint_count(c), count);
    for (int32_t i = 0; i < count; i++)
        check_named(c, "bare/model.safetensors", names[i], found[i]);
    for (int32_t i = 0; i < 3; i++)
        assert_null(checkpoint_find(c, names[i]));
    assert_string_equal(checkpoint_nearest(c, "model.norm.wieght"), "norm.weight");
    checkpoint_close(c);
    /* with an index, which has the names of the file */
    assert_int_equal(
        rename(scratch_path("bare/model.safetensors"), scratch_path("bare/a.safetensors")), 0);
    put_index(scratch_path("bare/model.safetensors.index.json"), names, ARRAY_LEN(names));
    c = must_open(scratch_path("bare"));
    for (int32_t i = 0; i < count; i++)
        check_named(c, "bare/a.safetensors", names[i], found[i]);
    checkpoint_close(c);
    put_index(scratch_path("bare/model.safetensors.index.json"), found, ARRAY_LEN(found));
    refused(scratch_path("bare"), "tensor embed_tokens.weight is not in");
    const char *more[ARRAY_LEN(names) + 1];
    memcpy(more, names, sizeof names);
    more[ARRAY_LEN(names)] = "model.norm.weight";
    put_index(scratch_path("bare/model.safetensors.index.json"), more, ARRAY_LEN(more));
    refused(scratch_path("bare"),
            "tensor model.norm.weight: expected in a.safetensors, which lacks");
    /* both spellings */
    static const char *const twice[] = {"norm.weight", "embed_tokens.weight", "model.norm.weight"};
    make_named(scratch_path("twice"), twice, 3);
    refused(scratch_path("twice"), "duplicate tensor model.norm.weight: it is ");
    refused(scratch_path("twice"), " model.norm.weight in model.safetensors");
    refused(scratch_path("twice"), " norm.weight in model.safetensors");
}

/* ---- shard ---- */

static void test_shard_round_trip(void **state)
{
    (void)state;
    make_model(scratch_path("plain"));
    write_shards(scratch_path("plain"), 2, scratch_path("two"));
    write_shards(scratch_path("two"), 3, scratch_path("three"));
    write_shards(scratch_path("three"), 2, scratch_path("two-again"));
    write_shards(scratch_path("plain"), 3, scratch_path("three-direct"));
    write_shards(scratch_path("three"), 8, scratch_path("eight")); /* ranks without heads */
    write_shards(scratch_path("eight"), 1, scratch_path("one"));
    write_shards(scratch_path("one"), 2, scratch_path("two-third"));
    /* 2 ranks, shards.json, config, generation_config, tokenizer.model, tokenizer_config */
    assert_int_equal(same_dirs(scratch_path("two"), scratch_path("two-again")), 7);
    assert_int_equal(same_dirs(scratch_path("two-again"), scratch_path("two")), 7);
    assert_int_equal(same_dirs(scratch_path("two"), scratch_path("two-third")), 7);
    assert_int_equal(same_dirs(scratch_path("three"), scratch_path("three-direct")), 8);
    struct checkpoint *c = must_open(scratch_path("eight"));
    assert_int_equal(checkpoint_ranks(c), 8);
    assert_int_equal(checkpoint_count(c), TOY_TENSORS);
    checkpoint_close(c);
}

/* What says that it gives vectors, and how, goes along. */
static void test_shard_keeps_pooling(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        {"modules.json", "[{\"type\":\"x.Pooling\",\"path\":\"7_Last\"}]"},
        {"7_Last/config.json", "{\"pooling_mode\":\"mean\"}"}, /* not served, and kept */
        {"sentence_bert_config.json", "{\"max_seq_length\":5}"},
        {"config_sentence_transformers.json", "{}"},
    };
    make_model(scratch_path("vectors"));
    assert_int_equal(mkdir(scratch_path("vectors/7_Last"), 0777), 0);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char name[64];
        snprintf(name, sizeof name, "vectors/%s", files[i][0]);
        scratch_write(scratch_path(name), files[i][1], strlen(files[i][1]));
    }
    write_shards(scratch_path("vectors"), 2, scratch_path("vectors-two"));
    write_shards(scratch_path("vectors-two"), 1, scratch_path("vectors-one"));
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char name[64];
        size_t n;
        snprintf(name, sizeof name, "vectors-one/%s", files[i][0]);
        unsigned char *bytes = scratch_read(scratch_path(name), &n);
        assert_int_equal(n, strlen(files[i][1]));
        assert_memory_equal(bytes, files[i][1], n);
        free(bytes);
    }
    assert_int_equal(access(scratch_path("two/1_Pooling"), F_OK), -1); /* nothing to keep */
}

/* The format is torch's: {tensor: {"saved_offsets": [...]}} as a string in the metadata. */
static void test_shard_metadata(void **state)
{
    struct safetensors st;
    struct err err = {{0}};
    (void)state;
    assert_int_equal(
        safetensors_open(scratch_path("two/model-rank-00001-part-00000.safetensors"), &st, &err),
        OK);
    assert_non_null(strstr(st.metadata, "\"DCP_SHARDING_INFO\":\"{\\\"embed.weight\\\":"
                                        "{\\\"saved_offsets\\\":[18,0]}"));
    assert_non_null(strstr(st.metadata, "\\\"l.norm.weight\\\":{\\\"saved_offsets\\\":[0]}"));
    assert_non_null(strstr(st.metadata, "\\\"l.down.weight\\\":{\\\"saved_offsets\\\":[0,14]}"));
    assert_int_equal(safetensors_find(&st, "l.down.weight")->shape[1], 15);
    safetensors_close(&st);
}

/* What no slice names is left out. */
static void test_shard_leaves_out(void **state)
{
    struct local_weight w[4], *weights[] = {w};
    const int32_t counts[] = {4};
    struct checkpoint *c = must_open(CORPUS "/plain");
    struct err err = {{0}};
    (void)state;
    corpus_plan(w);
    if (shard_write(CORPUS "/plain", c, weights, counts, 1, scratch_path("less"), &err) != OK)
        fail_msg("%s", err.text);
    checkpoint_close(c);
    c = must_open(scratch_path("less"));
    assert_int_equal(checkpoint_count(c), 4);
    assert_null(checkpoint_find(c, "model.layers.0.rotary.inv_freq"));
    checkpoint_close(c);
}

/* Several rectangles of one tensor on one rank (a fused tensor) go to parts. */
static void test_shard_parts(void **state)
{
    struct local_weight w[TOY_WEIGHTS], *weights[] = {w};
    const int32_t counts[] = {TOY_WEIGHTS};
    struct checkpoint *c = must_open(scratch_path("plain"));
    struct err err = {{0}};
    (void)state;
    toy_plan(&model, 0, 1, DTYPE_BF16, w);
    toy_begin(&w[TOY_HEAD], "split", 20, DTYPE_BF16);
    toy_slice(&w[TOY_HEAD], "embed.weight", 37, 20, (struct span){9, 20}, (struct span){0, 20});
    toy_slice(&w[TOY_HEAD], "embed.weight", 37, 20, (struct span){3, 5}, (struct span){0, 20});
    if (shard_write(scratch_path("plain"), c, weights, counts, 1, scratch_path("parts"), &err) !=
        OK)
        fail_msg("%s", err.text);
    checkpoint_close(c);
    assert_int_equal(access(scratch_path("parts/model-rank-00000-part-00002.safetensors"), F_OK),
                     0);
    write_shards(scratch_path("parts"), 2, scratch_path("two-parts"));
    assert_int_equal(same_dirs(scratch_path("two"), scratch_path("two-parts")), 7);
}

static void test_shard_refuses(void **state)
{
    struct local_weight plan[TOY_WEIGHTS], *weights[] = {plan};
    const int32_t counts[] = {TOY_WEIGHTS};
    struct checkpoint *c = must_open(scratch_path("plain"));
    const char *model_dir = scratch_path("plain");
    struct err err = {{0}};
    (void)state;
    toy_plan(&model, 0, 1, DTYPE_BF16, plan);
    assert_int_equal(shard_write(model_dir, c, weights, counts, 1, scratch_path("two"), &err),
                     ERR_USAGE);
    assert_non_null(strstr(err.text, "expected a new or empty directory"));
    assert_int_equal(shard_write(model_dir, c, weights, counts, 1, scratch_path("a/b"), &err),
                     ERR_USAGE);
    toy_plan(&model, 0, 2, DTYPE_BF16, plan); /* half a plan */
    assert_int_equal(shard_write(model_dir, c, weights, counts, 1, scratch_path("half"), &err),
                     ERR_INTERNAL);
    assert_int_equal(access(scratch_path("half"), F_OK), -1);
    /* The source is cut while it is read: an error, and nothing is left. */
    toy_plan(&model, 0, 1, DTYPE_BF16, plan);
    assert_int_equal(truncate(scratch_path("plain/model.safetensors"), 5000), 0);
    assert_int_equal(shard_write(model_dir, c, weights, counts, 1, scratch_path("cut"), &err),
                     ERR_MODEL);
    assert_int_equal(access(scratch_path("cut"), F_OK), -1);
    assert_int_equal(mkdir(scratch_path("empty"), 0777), 0);
    assert_int_equal(shard_write(model_dir, c, weights, counts, 1, scratch_path("empty"), &err),
                     ERR_MODEL);
    assert_int_equal(rmdir(scratch_path("empty")), 0); /* left as it was: empty */
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_stamp),
        cmocka_unit_test(test_prefers_own_copy),
        cmocka_unit_test(test_read_outside),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_no_directory),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_names_without_model),
        cmocka_unit_test(test_shard_round_trip),
        cmocka_unit_test(test_shard_keeps_pooling),
        cmocka_unit_test(test_shard_metadata),
        cmocka_unit_test(test_shard_leaves_out),
        cmocka_unit_test(test_shard_parts),
        cmocka_unit_test(test_shard_refuses),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
