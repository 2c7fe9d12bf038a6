/* Which processors ranks keep to, on machines that are trees of files as the kernel has them. */
#include "engine/cores.h"
#include "tests/scratch.h"

#include <string.h>

/* A machine: for each processor its node and its core. */
struct tree {
    const char *name;
    int32_t cpus;
    const char *nodes, *cores; /* a letter for each processor */
};

static void put(const char *tree, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/%s", scratch_dir, tree, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fputs("\n", f);
    assert_int_equal(fclose(f), 0);
}

/* "0,2,4": the processors with this letter. */
static const char *those(const char *letters, char letter)
{
    static char text[256];
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; letters[i]; i++)
        if (letters[i] == letter)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%zu", n > 0 ? "," : "", i);
    return text;
}

static void grow(const struct tree *t)
{
    char name[128];
    for (int32_t i = 0; t->cores[0] && i < t->cpus; i++) {
        snprintf(name, sizeof name, "devices/system/cpu/cpu%d/topology/%s", (int)i,
                 i % 2 ? "thread_siblings_list" : "core_cpus_list");
        put(t->name, name, those(t->cores, t->cores[i]));
    }
    if (!t->nodes[0])
        return;
    put(t->name, "devices/system/node/online", "0-3"); /* the third has memory alone */
    for (char node = 'a'; node <= 'd'; node++) {
        snprintf(name, sizeof name, "devices/system/node/node%d/cpulist", node - 'a');
        put(t->name, name, those(t->nodes, node));
    }
}

static const struct tree trees[] = {
    {"plain", 4, "", ""},                                /* the kernel says nothing */
    {"one", 4, "aaaa", "abcd"},                          /* no second threads */
    {"smt", 8, "aaaaaaaa", "abcdabcd"},                  /* second threads behind the first */
    {"pairs", 8, "aaaaaaaa", "aabbccdd"},                /* and beside them */
    {"two", 16, "aaaabbbbaaaabbbb", "abcdefghabcdefgh"}, /* two nodes with both */
    {"turns", 8, "abababab", "abcdefgh"},                /* processors by turns */
    {"lame", 6, "aaaabb", "abcdef"},                     /* nodes of two sizes */
    {"three", 12, "aaaabbbbdddd", "abcdefghijkl"},       /* and three of them */
};

/* What ranks get: "LIST@NODE" of each. */
static const struct {
    const char *tree, *allowed;
    int32_t ranks, threads;
    const char *wanted;
} cases[] = {
    {"none", "0-3", 2, 2, "0-1@0 2-3@0"},
    {"plain", "0-3", 2, 2, "0-1@0 2-3@0"},
    {"one", "0-3", 1, 4, "0-3@0"},
    {"one", "1-3", 3, 1, "1@0 2@0 3@0"},
    {"one", "0-3", 2, 3, ""}, /* too few */
    {"one", "0-3", 64, 1, ""},
    {"smt", "0-7", 2, 2, "0-1@0 2-3@0"},
    {"smt", "0-7", 2, 4, "0-1,4-5@0 2-3,6-7@0"}, /* whole cores */
    {"smt", "4-7", 2, 2, "4-5@0 6-7@0"},         /* second threads that are the only ones */
    {"pairs", "0-7", 2, 2, "0,2@0 4,6@0"},
    {"pairs", "0-7", 4, 2, "0-1@0 2-3@0 4-5@0 6-7@0"},
    {"two", "0-15", 2, 4, "0-3@0 4-7@1"},
    {"two", "0-15", 2, 2, "0-1@0 4-5@1"}, /* memory of both */
    {"two", "0-15", 4, 2, "0-1@0 2-3@0 4-5@1 6-7@1"},
    {"two", "0-15", 3, 2, "0-1@0 2-3@0 4-5@1"},
    {"two", "0-15", 1, 8, "0-7@-1"},
    {"two", "0-15", 1, 4, "0-3@0"},
    {"two", "0-15", 2, 8, "0-3,8-11@0 4-7,12-15@1"},
    {"two", "0-15", 1, 9, "0-8@-1"}, /* no core is idle */
    {"two", "0-15", 2, 5, "0-3,8@0 4-7,12@1"},
    {"two", "0-15", 3, 3, "0-1,8@0 2-3,10@0 4-6@1"},
    {"two", "4-7,12-15", 2, 2, "4-5@1 6-7@1"},
    {"turns", "0-7", 2, 4, "0,2,4,6@0 1,3,5,7@1"},
    {"lame", "0-5", 2, 3, "0-2@0 3-5@-1"}, /* they do not fit by nodes */
    {"lame", "0-5", 2, 2, "0-1@0 4-5@1"},
    {"three", "0-11", 3, 4, "0-3@0 4-7@1 8-11@3"},
    {"three", "0-11", 6, 2, "0-1@0 2-3@0 4-5@1 6-7@1 8-9@3 10-11@3"},
    {"three", "0-11", 4, 3, "0-2@0 3-5@-1 6-8@-1 9-11@3"},
};

static void parse(const char *list, cpu_set_t *out)
{
    CPU_ZERO(out);
    for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
        int first = 0, last = 0;
        const int n = sscanf(at, "%d-%d", &first, &last);
        for (int i = first; i <= (n == 2 ? last : first); i++)
            CPU_SET((size_t)i, out);
    }
}

static void test_plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct cores_plan plan;
        struct buf found;
        cpu_set_t allowed;
        parse(cases[i].allowed, &allowed);
        cores_plan(scratch_path(cases[i].tree), &allowed, cases[i].ranks, cases[i].threads, &plan);
        buf_init(&found, 4096);
        for (int32_t r = 0; r < plan.ranks; r++) {
            buf_puts(&found, r > 0 ? " " : "");
            cores_list(&plan.rank[r], &found);
            buf_printf(&found, "@%d", (int)plan.node[r]);
        }
        if (strcmp(found.data ? found.data : "", cases[i].wanted) != 0)
            fail_msg("%s, %d x %d of %s: %s, not %s", cases[i].tree, (int)cases[i].ranks,
                     (int)cases[i].threads, cases[i].allowed, found.data, cases[i].wanted);
        buf_free(&found);
    }
}

/* Whatever the sizes are: each rank has its processors, and nobody else has. */
static void test_no_two(void **state)
{
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(trees); t++) {
        for (int32_t ranks = 1; ranks <= trees[t].cpus; ranks++) {
            for (int32_t threads = 1; threads * ranks <= trees[t].cpus; threads++) {
                struct cores_plan plan;
                cpu_set_t allowed, seen, both;
                CPU_ZERO(&seen);
                CPU_ZERO(&allowed);
                for (int32_t i = 0; i < trees[t].cpus; i++)
                    CPU_SET((size_t)i, &allowed);
                cores_plan(scratch_path(trees[t].name), &allowed, ranks, threads, &plan);
                assert_int_equal(plan.ranks, ranks);
                for (int32_t r = 0; r < ranks; r++) {
                    assert_int_equal(CPU_COUNT(&plan.rank[r]), threads);
                    CPU_AND(&both, &plan.rank[r], &seen);
                    assert_int_equal(CPU_COUNT(&both), 0);
                    CPU_OR(&seen, &seen, &plan.rank[r]);
                }
                CPU_AND(&both, &seen, &allowed);
                assert_true(CPU_EQUAL(&both, &seen));
            }
        }
    }
}

static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *tree, *allowed;
        int32_t cores;
    } counts[] = {{"none", "0-3", 4}, {"smt", "0-7", 4},   {"smt", "0-4", 4}, {"smt", "0,4", 1},
                  {"two", "0-15", 8}, {"pairs", "1-2", 2}, {"plain", "", 1}};
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        cpu_set_t allowed;
        parse(counts[i].allowed, &allowed);
        assert_int_equal(cores_count(scratch_path(counts[i].tree), &allowed), counts[i].cores);
    }
}

/* Files that are not what they should be count as none. */
static void test_damaged(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "x", "-1", "99999999999999999999", "5-2", "0-"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct cores_plan plan;
        cpu_set_t allowed;
        parse("0-3", &allowed);
        put("bad", "devices/system/cpu/cpu0/topology/core_cpus_list", texts[i]);
        put("bad", "devices/system/node/online", texts[i]);
        put("bad", "devices/system/node/node0/cpulist", texts[i]);
        cores_plan(scratch_path("bad"), &allowed, 2, 2, &plan);
        assert_int_equal(plan.ranks, 2);
        assert_int_equal(CPU_COUNT(&plan.rank[0]) + CPU_COUNT(&plan.rank[1]), 4);
    }
}

/* What other servers leave: whole cores where there are enough. */
static void test_apart(void **state)
{
    (void)state;
    static const struct {
        const char *tree, *allowed, *taken;
        int32_t ranks, threads;
        const char *wanted; /* NULL: too few */
    } asked[] = {
        {"one", "0-3", "0", 1, 1, "1-3"},
        {"one", "0-3", "0-1", 2, 1, "2-3"},
        {"one", "0-3", "0-1", 1, 3, NULL},
        {"one", "0-1", "0-1", 1, 1, NULL},
        {"one", "2-3", "0-1", 2, 1, "2-3"},
        {"smt", "0-7", "0-1", 2, 2, "2-3,6-7"}, /* not 4 and 5, of the same cores */
        {"smt", "0-7", "0-1", 1, 6, "2-7"},     /* else too few */
        {"smt", "4-7", "0", 1, 3, "5-7"},
        {"smt", "4-7", "0", 1, 4, "4-7"},
        {"smt", "0-7", "0-1", 7, 1, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
        cpu_set_t allowed, taken, left;
        parse(asked[i].allowed, &allowed);
        parse(asked[i].taken, &taken);
        const bool enough = cores_apart(scratch_path(asked[i].tree), &allowed, &taken,
                                        asked[i].ranks, asked[i].threads, &left);
        assert_int_equal(enough, asked[i].wanted != NULL);
        if (!enough)
            continue;
        struct buf list;
        buf_init(&list, 256);
        cores_list(&left, &list);
        assert_string_equal(list.data, asked[i].wanted);
        buf_free(&list);
    }
}

/* A process: its words with bars between them. */
static void run(const char *pid, const char *words, const char *cpus)
{
    char path[PATH_MAX], text[512];
    snprintf(path, sizeof path, "%s/status", pid);
    snprintf(text, sizeof text, "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t%s\nX:\t1", cpus);
    put("proc", path, text);
    snprintf(path, sizeof path, "%s/proc/%s/cmdline", scratch_dir, pid);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (const char *c = words; *c; c++)
        fputc(*c == '|' ? '\0' : *c, f);
    assert_int_equal(fclose(f), 0);
}

static void test_taken(void **state)
{
    (void)state;
    cpu_set_t taken;
    run("10", "tessera|rank|m|--threads-per-rank=1|--rank=0|", "1");
    run("11", "tessera|rank|m|--threads-per-rank=2|", "4-5");
    run("12", "tessera|rank|m|--threads-per-rank=2|", "0-7"); /* bound to none */
    run("13", "tessera|serve|m|--threads-per-rank=2|", "6");
    run("14", "tesserae|rank|m|--threads-per-rank=1|", "6");
    run("15", "tessera|rank|m|", "6");
    run("16", "", "6"); /* a thread of the kernel */
    run("self", "tessera|rank|m|--threads-per-rank=1|", "7");
    cores_taken(scratch_path("proc"), &taken);
    struct buf list;
    buf_init(&list, 256);
    cores_list(&taken, &list);
    assert_string_equal(list.data, "1,4-5");
    buf_free(&list);
    cores_taken(scratch_path("none"), &taken);
    assert_int_equal(CPU_COUNT(&taken), 0);
}

static int setup(void **state)
{
    const int failed = scratch_open(state);
    for (size_t i = 0; !failed && i < ARRAY_LEN(trees); i++)
        grow(&trees[i]);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),  cmocka_unit_test(test_no_two),
        cmocka_unit_test(test_counts), cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_apart),  cmocka_unit_test(test_taken),
    };
    return cmocka_run_group_tests(tests, setup, scratch_close);
}
