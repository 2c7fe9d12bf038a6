/* A directory that a crash or a power cut interrupts: what looks like a checkpoint is a whole one.
 * The program's calls of write, fsync and rename come here first. */
#include "tests/scratch.h"
#include "tests/toy_plan.h"
#include "weights/checkpoint.h"
#include "weights/outdir.h"
#include "weights/shard.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CORPUS TEST_DATA_DIR "/corpus/safetensors/checkpoints/plain"

/* ---- what is done to the disk ---- */

enum { EVENTS_MAX = 200, KILLED = 99 };

static struct event {
    char what; /* w: bytes, s: bytes are durable, n: name, d: a directory's names are durable */
    ino_t file, folder;
    char name[64];
} events[EVENTS_MAX];
static int event_count, die_at = -1; /* die_at: the number of the event that never happens */

static void note(char what, ino_t file, ino_t folder, const char *path)
{
    if (event_count == die_at)
        _exit(KILLED);
    assert_true(event_count < EVENTS_MAX);
    struct event *e = &events[event_count++];
    *e = (struct event){.what = what, .file = file, .folder = folder};
    const char *slash = strrchr(path, '/');
    snprintf(e->name, sizeof e->name, "%s", slash ? slash + 1 : path);
}

static struct stat stat_of(int fd)
{
    struct stat s = {0};
    assert_int_equal(fstat(fd, &s), 0);
    return s;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    const struct stat s = stat_of(fd);
    if (S_ISREG(s.st_mode))
        note('w', s.st_ino, 0, "");
    return syscall(SYS_write, fd, bytes, n);
}

int fsync(int fd)
{
    const struct stat s = stat_of(fd);
    const bool folder = S_ISDIR(s.st_mode);
    note(folder ? 'd' : 's', folder ? 0 : s.st_ino, folder ? s.st_ino : 0, "");
    return 0; /* no disk is waited for */
}

int rename(const char *from, const char *to)
{
    struct stat file = {0}, folder = {0};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s", (int)(strrchr(to, '/') - to), to);
    assert_int_equal(stat(from, &file), 0);
    assert_int_equal(stat(path, &folder), 0);
    note('n', file.st_ino, folder.st_ino, to);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* ---- the program under test: a shard of two tensors on two ranks ---- */

static enum status shard_to(const char *dir, struct err *err)
{
    enum { HEAD, UP, WEIGHTS };
    struct local_weight plan[2][WEIGHTS], *weights[] = {plan[0], plan[1]};
    const int32_t counts[] = {WEIGHTS, WEIGHTS};
    const struct span d = {0, 12};
    struct checkpoint *c = NULL;
    for (int32_t r = 0; r < 2; r++) {
        toy_begin(&plan[r][HEAD], "head", 12, DTYPE_BF16);
        toy_slice(&plan[r][HEAD], "head.weight", 37, 12, placement_block(37, 2, r), d);
        toy_begin(&plan[r][UP], "up", 12, DTYPE_BF16);
        toy_slice(&plan[r][UP], "model.layers.0.up.weight", 29, 12, placement_block(29, 2, r), d);
    }
    enum status st = checkpoint_open(CORPUS, &c, err);
    if (st == OK)
        st = shard_write(CORPUS, c, weights, counts, 2, dir, err);
    checkpoint_close(c);
    return st;
}

/* The formula of make_corpus.py for head.weight, all of it. */
static void check_whole(struct checkpoint *c)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, "head.weight");
    uint16_t values[37 * 12];
    struct err err = {""};
    assert_non_null(t);
    assert_non_null(checkpoint_find(c, "model.layers.0.up.weight"));
    assert_int_equal(
        checkpoint_read(c, t, (struct span){0, 37}, (struct span){0, 12}, -1, values, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(values); i++)
        assert_int_equal((size_t)dtype_load(values, DTYPE_BF16, i), i % 251);
}

/* ---- tests ---- */

static void test_killed_at_any_moment(void **state)
{
    (void)state;
    int unfinished = 0;
    for (int moment = 0;; moment++) {
        char name[32];
        int code = 0;
        struct checkpoint *c = NULL;
        struct err err = {""};
        snprintf(name, sizeof name, "killed-%d", moment);
        const char *dir = scratch_path(name);
        const pid_t pid = fork();
        if (pid == 0) {
            die_at = moment;
            _exit(shard_to(dir, &err) == OK ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &code, 0), pid);
        assert_true(WIFEXITED(code));
        enum status st = checkpoint_open(dir, &c, &err);
        unfinished += st != OK;
        if (st == OK)
            check_whole(c);
        checkpoint_close(c);
        if (WEXITSTATUS(code) == 0) {
            assert_int_equal(st, OK);
            break;
        }
        assert_int_equal(WEXITSTATUS(code), KILLED);
    }
    assert_true(unfinished > 10);
}

/* A name comes after the bytes of its file, and is durable before anything else is written. */
static void test_order(void **state)
{
    (void)state;
    struct err err = {""};
    const char *dir = scratch_path("ordered");
    int names = 0;
    struct stat parent, made;
    event_count = 0;
    if (shard_to(dir, &err) != OK)
        fail_msg("%s", err.text);
    assert_int_equal(stat(scratch_dir, &parent), 0);
    assert_int_equal(stat(dir, &made), 0);
    assert_int_equal(events[0].what, 'd'); /* the directory's own name */
    assert_int_equal(events[0].folder, parent.st_ino);
    for (int i = 0; i < event_count; i++) {
        const struct event *e = &events[i];
        if (e->what != 'n')
            continue;
        names++;
        assert_int_equal(events[i - 1].what, 's');
        assert_int_equal(events[i - 1].file, e->file);
        assert_int_equal(events[i + 1].what, 'd');
        assert_int_equal(events[i + 1].folder, made.st_ino);
    }
    assert_int_equal(names, 3); /* two ranks and the list, which comes last */
    assert_string_equal(events[event_count - 2].name, "shards.json");
}

static void test_put_and_copy(void **state)
{
    (void)state;
    struct outdir d;
    struct err err = {""};
    const char *dir = scratch_path("members");
    assert_int_equal(outdir_open(dir, &d, &err), OK);
    assert_int_equal(outdir_put(&d, "a", "text", 4, &err), OK);
    assert_int_equal(outdir_copy(&d, "b", scratch_path("members/a"), &err), OK);
    assert_int_equal(outdir_put(&d, "no/folder", "text", 4, &err), ERR_OUTPUT);
    assert_int_equal(outdir_copy(&d, "c", scratch_path("nothing"), &err), ERR_IO);
    outdir_close(&d, true);
    static const char *const names[] = {"members/a", "members/b"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char text[8] = "";
        FILE *f = fopen(scratch_path(names[i]), "r");
        assert_non_null(f);
        assert_int_equal(fread(text, 1, sizeof text, f), 4);
        fclose(f);
        assert_string_equal(text, "text");
    }
    assert_int_equal(outdir_open(dir, &d, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "expected a new or empty directory, found "));
}

static void test_folder(void **state)
{
    (void)state;
    struct outdir d;
    struct err err = {""};
    static const bool keep[] = {true, false};
    for (size_t i = 0; i < ARRAY_LEN(keep); i++) {
        const char *dir = scratch_path(keep[i] ? "kept" : "gone");
        char inside[64], file[96];
        snprintf(inside, sizeof inside, "%s/1_x", keep[i] ? "kept" : "gone");
        assert_int_equal(outdir_open(dir, &d, &err), OK);
        assert_int_equal(outdir_put(&d, "a", "text", 4, &err), OK);
        assert_int_equal(outdir_put(&d, "1_x/b", "text", 4, &err), ERR_OUTPUT); /* none yet */
        event_count = 0;
        assert_int_equal(outdir_make_folder(&d, "1_x", &err), OK);
        assert_int_equal(event_count, 1); /* its name is durable */
        assert_int_equal(events[0].what, 'd');
        assert_int_equal(outdir_put(&d, "1_x/b", "text", 4, &err), OK);
        snprintf(file, sizeof file, "%s/b", inside);
        assert_int_equal(outdir_copy(&d, "1_x/c", scratch_path(file), &err), OK);
        assert_int_equal(access(scratch_path(file), F_OK), 0);
        snprintf(file, sizeof file, "%s/c", inside);
        size_t n;
        unsigned char *bytes = scratch_read(scratch_path(file), &n);
        assert_int_equal(n, 4);
        assert_string_equal((char *)bytes, "text");
        free(bytes);
        outdir_close(&d, keep[i]);
        assert_int_equal(access(scratch_path(file), F_OK), keep[i] ? 0 : -1);
        assert_int_equal(access(scratch_path(inside), F_OK), keep[i] ? 0 : -1);
        assert_int_equal(access(dir, F_OK), keep[i] ? 0 : -1);
    }
    /* a directory that was there stays, empty; so does one whose folder cannot be made */
    const char *dir = scratch_path("there");
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_int_equal(outdir_open(dir, &d, &err), OK);
    assert_int_equal(outdir_put(&d, "taken", "text", 4, &err), OK);
    assert_int_equal(outdir_make_folder(&d, "taken", &err), ERR_OUTPUT);
    assert_non_null(strstr(err.text, "there/taken: File exists"));
    assert_int_equal(outdir_make_folder(&d, "1_x", &err), OK);
    assert_int_equal(outdir_put(&d, "1_x/b", "text", 4, &err), OK);
    outdir_close(&d, false);
    assert_int_equal(rmdir(dir), 0);
}

/* What a signal stops takes the way of any failure. */
static void test_stop(void **state)
{
    (void)state;
    const pid_t pid = fork(); /* it is for good */
    if (pid == 0) {
        struct outdir d;
        struct err err = {""};
        bool good = outdir_open(scratch_path("stopped"), &d, &err) == OK;
        good = good && outdir_put(&d, "a", "text", 4, &err) == OK;
        outdir_stop();
        good = good && outdir_put(&d, "b", "text", 4, &err) == ERR_CANCELLED;
        good = good && outdir_put(&d, "c", "", 0, &err) == ERR_CANCELLED;
        outdir_close(&d, false);
        _exit(good ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(access(scratch_path("stopped"), F_OK), -1);
}

/* Two that begin at once: neither takes away what the other writes. */
static void test_one_at_a_time(void **state)
{
    (void)state;
    struct outdir first, second;
    struct err err;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/shared", scratch_dir);
    assert_int_equal(outdir_open(path, &first, &err), OK);
    assert_int_equal(outdir_open(path, &second, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "another program writes to it"));
    assert_int_equal(outdir_put(&first, "a", "x", 1, &err), OK);
    outdir_close(&first, true);
    assert_int_equal(outdir_open(path, &second, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "found a in it"));
    snprintf(path, sizeof path, "%s/shared/a", scratch_dir);
    assert_int_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_any_moment),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_put_and_copy),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
