/* What control groups leave of the processors' time, in trees of files as the kernel has them. */
#include "engine/quota.h"
#include "tests/scratch.h"

#include <math.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_nothing_is_said),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
