/* The log: each form of a line, that nobody's text can forge one, and that a full pipe drops lines
 * instead of stopping the program. stderr is a pipe meanwhile. */
#include "config/log.h"
#include "server/remarks.h"
#include "tests/scratch.h"

#include "config/jdoc.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

static int real_stderr, ends[2];

static void capture(void)
{
    assert_int_equal(pipe(ends), 0);
    real_stderr = dup(STDERR_FILENO);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
}

/* What was written since capture(). */
static const char *release(void)
{
    static char text[1 << 17];
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n = 1; n > 0; used += (size_t)n)
        n = read(ends[0], text + used, sizeof text - 1 - used);
    text[used] = '\0';
    close(ends[0]);
    return text;
}

static void test_text(void **state)
{
    (void)state;
    log_setup("text", "info");
    capture();
    base_log(LOG_INFO, "hello %d", 7);
    base_log(LOG_DEBUG, "not shown");
    log_event(LOG_WARN, "done", (struct log_field[]){{"id", "a-1", 0}, {"tokens", NULL, 12}}, 2);
    log_failure("no\nway");
    const char *text = release();
    assert_non_null(strstr(text, " info    hello 7\n"));
    assert_null(strstr(text, "not shown"));
    assert_non_null(strstr(text, " warning done id=a-1 tokens=12\n"));
    assert_non_null(strstr(text, "\ntessera: no?way\n"));
}

/* '9' in the pattern is a digit. */
static void assert_matches(const char *text, const char *pattern)
{
    for (size_t i = 0; i == 0 || pattern[i - 1]; i++)
        if (pattern[i] == '9' ? !isdigit((unsigned char)text[i]) : text[i] != pattern[i])
            fail_msg("%s is not as %s", text, pattern);
}

/* A log that is kept says on which day, and by whose clock; a terminal needs neither. */
static void test_dates(void **state)
{
    (void)state;
    static const struct {
        const char *zone, *offset;
    } cases[] = {{"XST-8", "+08:00"}, {"XST3:30", "-03:30"}, {"UTC0", "+00:00"}};
    char pattern[128], line[256] = "";
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        setenv("TZ", cases[i].zone, 1);
        tzset();
        capture();
        log_setup("text", "info");
        base_log(LOG_INFO, "hello");
        snprintf(pattern, sizeof pattern, "9999-99-99T99:99:99.999%s info    hello\n",
                 cases[i].offset);
        assert_matches(release(), pattern);
    }
    unsetenv("TZ");
    tzset();
    const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    const int screen = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(screen >= 0);
    real_stderr = dup(STDERR_FILENO);
    dup2(screen, STDERR_FILENO);
    log_setup("text", "info");
    base_log(LOG_INFO, "hello");
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    assert_true(read(terminal, line, sizeof line - 1) > 0);
    close(screen);
    close(terminal);
    assert_matches(line, "99:99:99.999 info    hello\r\n");
}

/* jansson is the judge of what we write. */
static struct jdoc *parse_line(const char *line, size_t n)
{
    struct jdoc *doc = NULL;
    struct err err = {""};
    if (jdoc_parse(line, n, &jdoc_limits_request, "line", &doc, &err) != OK)
        fail_msg("%.*s: %s", (int)n, line, err.text);
    return doc;
}

static void test_json(void **state)
{
    (void)state;
    static const struct {
        const char *message, *read; /* NULL: the same */
    } cases[] = {
        {"plain", NULL},
        {"quote \" backslash \\ slash /", NULL},
        {"new\nline\r\t\x1b[31m\x7f", NULL},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80", NULL},
        {"\"}\n{\"level\":\"error", NULL},
        {"cut \xe2\x82", "cut \xef\xbf\xbd\xef\xbf\xbd"},
        {"overlong \xc0\xaf", "overlong \xef\xbf\xbd\xef\xbf\xbd"},
        {"surrogate \xed\xa0\x80", "surrogate \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    log_setup("json", "debug");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        capture();
        log_event(LOG_DEBUG, cases[i].message,
                  (struct log_field[]){{"id", cases[i].message, 0}, {"seconds", NULL, 0.25}}, 2);
        const char *line = release();
        size_t n = strlen(line);
        assert_ptr_equal(strchr(line, '\n'), line + n - 1);
        struct jdoc *doc = parse_line(line, n - 1);
        const char *wanted = cases[i].read ? cases[i].read : cases[i].message;
        assert_string_equal(jdoc_string(jdoc_get(doc, "message")), wanted);
        assert_string_equal(jdoc_string(jdoc_get(doc, "id")), wanted);
        assert_string_equal(jdoc_string(jdoc_get(doc, "level")), "debug");
        assert_true(jdoc_number(jdoc_get(doc, "seconds")) == 0.25);
        assert_int_equal(jdoc_string_len(jdoc_get(doc, "time")), 24);
        jdoc_close(doc);
    }
}

/* Whole numbers have no decimals, and the smallest times no exponent. */
static void test_numbers(void **state)
{
    (void)state;
    log_setup("text", "info");
    capture();
    log_event(LOG_INFO, "m",
              (struct log_field[]){{"status", NULL, 200}, {"big", NULL, 1e14}, {"s", NULL, 9.5e-5}},
              3);
    assert_non_null(strstr(release(), " status=200 big=100000000000000 s=0.000095\n"));
}

/* A line that is too long loses the end of its message, never its form. */
static void test_long(void **state)
{
    (void)state;
    char message[8192];
    static const char *const units[] = {"x", "\x01", "\"", "\xe2\x82\xac", "\xff"};
    log_setup("json", "info");
    for (size_t u = 0; u < ARRAY_LEN(units); u++) {
        size_t n = strlen(units[u]);
        for (size_t i = 0; i < sizeof message - 1; i++)
            message[i] = units[u][i % n];
        message[(sizeof message - 1) / n * n] = '\0';
        capture();
        log_event(LOG_INFO, message, NULL, 0);
        const char *line = release();
        assert_in_range(strlen(line), 4000, 4096);
        jdoc_close(parse_line(line, strlen(line) - 1));
    }
}

static void test_full_pipe(void **state)
{
    (void)state;
    log_setup("text", "info");
    const uint64_t before = log_dropped();
    capture();
    for (int i = 0; i < 5000; i++) /* more than a pipe holds, and nobody reads */
        base_log(LOG_INFO, "line %d of many that nobody reads", i);
    const char *text = release();
    uint64_t lines = 0;
    for (const char *c = text; (c = strchr(c, '\n')) != NULL; c++)
        lines++;
    assert_true(lines > 100);
    assert_int_equal(lines + log_dropped() - before, 5000);
}

static void test_journal(void **state)
{
    (void)state;
    char stream[64];
    struct stat sb;
    capture();
    assert_int_equal(fstat(STDERR_FILENO, &sb), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)sb.st_dev,
             (unsigned long long)sb.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_setup("text", "info");
    base_log(LOG_WARN, "to the journal");
    log_failure("the end");
    log_setup("json", "info");
    base_log(LOG_INFO, "to the journal");
    const char *text = release();
    assert_int_equal(strncmp(text, "<4>to the journal\n<3>the end\n<6>{\"time\":", 39), 0);
    log_setup("text", "info"); /* stderr is another file again */
    capture();
    base_log(LOG_WARN, "to a terminal");
    assert_null(strchr(release(), '<'));
    unsetenv("JOURNAL_STREAM");
}

/* A folder for each GPU, as the driver has them; what says nothing is as important. */
static void test_gpus(void **state)
{
    (void)state;
    static const struct {
        const char *device, *gpus, *said;
    } cases[] = {
        {"cpu", "", "2 NVIDIA GPUs are here: --device cuda"},
        {"cpu", "/0000:01:00.0", NULL}, /* a folder without any */
        {"cpu", "/none", NULL},
        {"cuda", "", NULL},
        {"cpu-avx2", "", NULL},
    };
    char path[PATH_MAX];
    log_setup("text", "info");
    assert_int_equal(mkdir(scratch_path("0000:01:00.0"), 0700), 0);
    assert_int_equal(mkdir(scratch_path("0000:02:00.0"), 0700), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct options o = {.device = cases[i].device};
        snprintf(path, sizeof path, "%s%s", scratch_dir, cases[i].gpus);
        capture();
        remarks_on_gpus(&o, path);
        const char *text = release();
        assert_true(cases[i].said ? strstr(text, cases[i].said) != NULL : *text == '\0');
    }
}

static void test_nodes(void **state)
{
    (void)state;
    struct cores_plan plan = {.ranks = 2, .nodes = 1, .node = {0, -1}};
    const struct options o = {.tp = 2, .comm = "shm"}, alone = {.tp = 1, .comm = "shm"};
    CPU_SET(0, &plan.rank[0]);
    CPU_SET(1, &plan.rank[0]);
    CPU_SET(3, &plan.rank[1]);
    log_setup("text", "info");
    capture();
    remarks_on_nodes(&o, &plan);
    assert_string_equal(release(), "");
    plan.nodes = 2;
    capture();
    remarks_on_nodes(&o, &plan);
    const char *text = release();
    assert_non_null(strstr(text, "info    rank 0 keeps to processors 0-1 of NUMA node 0\n"));
    assert_non_null(strstr(text, "info    rank 1 keeps to processors 3 of several NUMA nodes\n"));
    capture();
    remarks_on_nodes(&alone, &plan);
    assert_non_null(
        strstr(release(), "warning rank 1 keeps to processors 3 of several NUMA nodes: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_text),
        cmocka_unit_test(test_json),      cmocka_unit_test(test_long),
        cmocka_unit_test(test_full_pipe), cmocka_unit_test(test_journal),
        cmocka_unit_test(test_gpus),      cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_dates),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
