/* What control groups leave of the processors' time and of memory, in trees of files as the kernel
 * has them. */
#include "engine/quota.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>

static void put(const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", scratch_dir, name);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* A tree's limits as this list of groups says them. */
static double found(const char *tree, const char *self)
{
    char groups[PATH_MAX];
    put("self", self);
    snprintf(groups, sizeof groups, "%s/%s", scratch_dir, tree);
    return quota_processors(groups, scratch_path("self"));
}

static void expect(const char *tree, const char *self, double wanted)
{
    const double got = found(tree, self);
    if (fabs(got - wanted) > 1e-12)
        fail_msg("%s: %s: expected %g processors, found %g", tree, self, wanted, got);
}

static void test_version_2(void **state)
{
    (void)state;
    put("two/cpu.max", "max 100000\n");
    put("two/pods/cpu.max", "350000 100000\n");
    put("two/pods/one/cpu.max", "max 100000\n");
    put("two/pods/two/cpu.max", "150000 100000\n");
    put("two/pods/two/in/cpu.max", "800000 200000\n");
    put("two/damaged/cpu.max", "often\n");
    put("two/negative/cpu.max", "-5 100000\n");
    put("two/zero/cpu.max", "100000 0\n");
    put("container/cpu.max", "200000 100000\n"); /* whose view begins at its own group */
    expect("two", "0::/\n", 0);
    expect("two", "0::/pods\n", 3.5);
    expect("two", "0::/pods/one\n", 3.5); /* from above */
    expect("two", "0::/pods/two\n", 1.5);
    expect("two", "0::/pods/two/in\n", 1.5);
    expect("two", "0::/pods/three/gone\n", 3.5);
    expect("two", "0::/damaged\n", 0);
    expect("two", "0::/negative\n", 0);
    expect("two", "0::/zero\n", 0);
    expect("container", "0::/\n", 2);
    expect("container", "0::/../../elsewhere\n", 2);
}

static void test_version_1(void **state)
{
    (void)state;
    put("one/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("one/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("one/cpu,cpuacct/docker/a/cpu.cfs_quota_us", "250000\n");
    put("one/cpu,cpuacct/docker/a/cpu.cfs_period_us", "100000\n");
    put("one/cpuset/docker/a/cpu.max", "100000 100000\n"); /* of another controller */
    put("inside/cpu/cpu.cfs_quota_us", "50000\n"); /* of a container, whose way is not to be seen */
    put("inside/cpu/cpu.cfs_period_us", "100000\n");
    expect("one", "4:cpuset:/docker/a\n3:cpu,cpuacct:/docker/a\n0::/\n", 2.5);
    expect("one", "3:cpu,cpuacct:/\n", 0);
    expect("one", "4:cpuset:/docker/a\n", 0);
    expect("inside", "3:cpu:/docker/0123abc\n2:cpuacct:/docker/0123abc\n", 0.5);
}

static void test_nothing_is_said(void **state)
{
    (void)state;
    expect("two", "", 0);
    expect("two", "no list\n::\n:\n", 0);
    expect("nowhere", "0::/pods\n", 0);
    assert_true(quota_processors("/nowhere", "/nowhere/either") == 0);
    assert_int_equal(quota_cores(1), 1);
    assert_true(quota_cores(64) >= 1 && quota_cores(64) <= 64);
}

static void expect_room(const char *tree, const char *self, size_t wanted)
{
    char groups[PATH_MAX];
    put("self", self);
    snprintf(groups, sizeof groups, "%s/%s", scratch_dir, tree);
    const size_t got = quota_memory(groups, scratch_path("self"));
    if (got != wanted)
        fail_msg("%s: %s: expected room for %zu bytes, found %zu", tree, self, wanted, got);
}

static void test_memory_of_version_2(void **state)
{
    (void)state;
    put("mem/memory.max", "max\n");
    put("mem/a.slice/memory.max", "8000000000\n");
    put("mem/a.slice/memory.current", "5000000000\n");
    put("mem/a.slice/b.service/memory.max",
        "4000000000\n"); /* most of it files, last used long ago */
    put("mem/a.slice/b.service/memory.current", "3900000000\n");
    put("mem/a.slice/b.service/memory.stat",
        "anon 400000000\nfile 3500000000\nactive_file 100000000\ninactive_file 3400000000\n");
    put("mem/a.slice/c.service/memory.max", "max\n");
    put("mem/a.slice/c.service/memory.current", "3900000000\n");
    put("mem/full/memory.max", "1000\n"); /* more than it may, as where the limit was lowered */
    put("mem/full/memory.current", "1500\n");
    put("mem/full/memory.stat", "inactive_file 100\n");
    put("mem/files/memory.max", "1000\n"); /* the two numbers are of different moments */
    put("mem/files/memory.current", "1000\n");
    put("mem/files/memory.stat", "inactive_file 1200\n");
    put("mem/none/memory.max", "0\n");
    put("mem/silent/memory.max", "700\n"); /* what is used is not to be read */
    put("mem/damaged/memory.max", "-3\n");
    put("inside/memory.max", "5000\n"); /* of a container, whose view begins at its own group */
    put("inside/memory.current", "2000\n");
    expect_room("mem", "0::/\n", SIZE_MAX);
    expect_room("mem", "0::/a.slice\n", 3000000000);
    expect_room("mem", "0::/a.slice/b.service\n", 3000000000); /* from above: less than 3.5e9 */
    expect_room("mem", "0::/a.slice/c.service\n", 3000000000);
    put("mem/a.slice/memory.current", "1000000000\n");
    expect_room("mem", "0::/a.slice/b.service\n", 3500000000);
    expect_room("mem", "0::/a.slice/gone\n", 7000000000);
    expect_room("mem", "0::/full\n", 0);
    expect_room("mem", "0::/files\n", 1000);
    expect_room("mem", "0::/none\n", 0);
    expect_room("mem", "0::/silent\n", 700);
    expect_room("mem", "0::/damaged\n", SIZE_MAX);
    expect_room("inside", "0::/../elsewhere\n", 3000);
}

static void test_memory_of_version_1(void **state)
{
    (void)state;
    put("mem1/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* no limit */
    put("mem1/memory/memory.usage_in_bytes", "60000\n");
    put("mem1/memory/docker/a/memory.limit_in_bytes", "50000\n");
    put("mem1/memory/docker/a/memory.usage_in_bytes", "45000\n");
    put("mem1/memory/docker/a/memory.stat",
        "inactive_file 1\nhierarchical_memory_limit 50000\ntotal_inactive_file 30000\n");
    put("mem1/cpu/docker/a/memory.max", "7\n"); /* of another controller */
    expect_room("mem1", "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n0::/\n", 35000);
    expect_room("mem1", "4:memory:/docker/0123abc\n", (size_t)9223372036854771712u - 60000);
    expect_room("mem1", "3:cpu:/docker/a\n", SIZE_MAX);
    expect_room("mem1", "", SIZE_MAX);
    assert_true(quota_memory("/nowhere", "/nowhere/either") == SIZE_MAX);
}

/* What getrlimit says afterwards; the hard limit is lowered for the rest of this program. */
static void test_files(void **state)
{
    (void)state;
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit = (struct rlimit){.rlim_cur = 30, .rlim_max = 50};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    static const struct {
        int64_t wanted, may;
        rlim_t soft;
    } steps[] = {{20, 20, 30}, {30, 30, 30}, {40, 40, 40}, {60, 50, 50}, {10, 10, 50}};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        assert_int_equal(quota_files(steps[i].wanted), steps[i].may);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_int_equal(limit.rlim_cur, steps[i].soft);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_2),           cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_nothing_is_said),     cmocka_unit_test(test_memory_of_version_2),
        cmocka_unit_test(test_memory_of_version_1), cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
