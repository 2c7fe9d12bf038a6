/* DESIGN: its output goes to a memory file, not a pipe: nobody has to drain it while requests run,
 * and a log that nobody reads cannot block the server being measured. */
#include "server/bench/child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 128, LOG_TAIL = 64 << 10, STOP_SECONDS = 10 };

struct child {
    pid_t pid; /* 0: reaped */
    int log;
};

_Noreturn static void become_server(char **argv, int log, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    unsetenv("TESSERA_API_KEY"); /* the key that its user has for servers, which serve refuses */
    unsetenv("VLLM_API_KEY");
    if (getppid() == parent && dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0)
        execv("/proc/self/exe", argv);
    _exit(70);
}

static enum status start(struct child *c, const char *model, int argc, char **argv, struct err *err)
{
    static char program[] = "tessera", command[] = "serve", port[] = "--port=0";
    static char format[] = "--log-format=text", level[] = "--log-level=info";
    char *args[ARGS_MAX] = {program, command, (char *)(uintptr_t)model, port}; /* only read */
    const int before = 4, behind = 2;
    const int max = ARGS_MAX - before - behind - 1;
    if (argc > max)
        return base_fail(err, ERR_USAGE, "more than %d words after --", max);
    for (int i = 0; i < argc; i++)
        args[before + i] = argv[i];
    args[before + argc] = format; /* last, so they hold: wait_ready reads the log */
    args[before + argc + 1] = level;
    const pid_t self = getpid();
    c->log = memfd_create("tessera-bench-log", MFD_CLOEXEC);
    pid_t pid = c->log >= 0 ? fork() : -1;
    if (pid == 0)
        become_server(args, c->log, self);
    if (pid < 0)
        return base_fail_errno(err, ERR_NOMEM, "cannot start a server");
    c->pid = pid;
    return OK;
}

/* The end of its log as text. */
static void read_log(const struct child *c, char *text, size_t cap)
{
    off_t size = lseek(c->log, 0, SEEK_END),
          from = size > (off_t)cap - 1 ? size - (off_t)cap + 1 : 0;
    ssize_t n = pread(c->log, text, cap - 1, from);
    text[n > 0 ? n : 0] = '\0';
}

/* Its exit code says what kind of failure it was, its last line why. */
static enum status stopped_early(const char *log, int status, struct err *err)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 70;
    enum status st = code == 2   ? ERR_USAGE
                     : code == 4 ? ERR_LIMIT
                     : code == 5 ? ERR_COMM
                                 : ERR_MODEL;
    size_t n = strlen(log);
    while (n > 0 && log[n - 1] == '\n')
        n--;
    size_t begin = n;
    while (begin > 0 && log[begin - 1] != '\n')
        begin--;
    static const char name[] =
        "tessera: "; /* the line that main ends with, which begins ours, too */
    if (strncmp(log + begin, name, sizeof name - 1) == 0)
        begin += sizeof name - 1;
    return base_fail(err, st, "the server stopped: %.*s", (int)(n - begin), log + begin);
}

static enum status wait_ready(struct child *c, char *url, size_t cap, struct err *err)
{
    static const char sign[] = "ready: listening on ";
    static char log[LOG_TAIL];
    for (int status = 0;;) {
        bool gone = waitpid(c->pid, &status, WNOHANG) != 0;
        read_log(c, log, sizeof log);
        const char *at = strstr(log, sign);
        if (gone) {
            c->pid = 0;
            return stopped_early(log, status, err);
        }
        if (at && strchr(at, '\n')) {
            at += sizeof sign - 1;
            snprintf(url, cap, "%.*s", (int)strcspn(at, " \n"), at);
            return OK;
        }
        poll(NULL, 0, 20);
    }
}

enum status child_open(const char *model, int argc, char **argv, struct child **out, char *url,
                       size_t cap, struct err *err)
{
    enum status st = OK;
    struct child *c = calloc(1, sizeof *c);
    if (!c)
        return base_fail(err, ERR_NOMEM, "child");
    c->log = -1;
    TRY(start(c, model, argc, argv, err));
    TRY(wait_ready(c, url, cap, err));
    *out = c;
    c = NULL;
out:
    child_close(c);
    return st;
}

void child_close(struct child *c)
{
    if (!c)
        return;
    double end = base_now() + STOP_SECONDS;
    if (c->pid > 0)
        kill(c->pid, SIGTERM);
    while (c->pid > 0) {
        if (waitpid(c->pid, NULL, WNOHANG) != 0)
            c->pid = 0;
        else if (base_now() > end)
            kill(c->pid, SIGKILL);
        poll(NULL, 0, c->pid > 0 ? 5 : 0);
    }
    if (c->log >= 0)
        close(c->log);
    free(c);
}

/* User and system seconds of one process, from fields 14 and 15 behind the name's bracket. */
static double cpu_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 14; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return -1;
    char *end;
    double ticks = strtod(at, &end);
    return (ticks + strtod(end, NULL)) / (double)sysconf(_SC_CLK_TCK);
}

void child_cpu(const struct child *c, double *server, double *ranks)
{
    char path[64];
    int pid;
    *server = cpu_of(c->pid);
    *ranks = -1;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)c->pid, (int)c->pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    *ranks = 0;
    while (*ranks >= 0 && fscanf(f, "%d", &pid) == 1) {
        const double one = cpu_of(pid);
        *ranks = one >= 0 ? *ranks + one : -1; /* one that has just ended: nothing is known */
    }
    fclose(f);
}

enum status child_options(const char *model, int argc, char **argv, struct options *out,
                          struct err *err)
{
    static char serve[] = "serve";
    bool help = false;
    char **words = calloc((size_t)argc + 3, sizeof *words);
    if (!words)
        return base_fail(err, ERR_NOMEM, "options");
    words[0] = serve;
    words[1] = (char *)(uintptr_t)model; /* only read */
    for (int i = 0; i < argc; i++)
        words[2 + i] = argv[i];
    enum status st = options_parse(argc + 2, words, out, &help, err);
    if (st == OK && help)
        st = base_fail(err, ERR_USAGE, "--help after --: see tessera serve --help");
    if (st != OK)
        options_close(out);
    free(words);
    return st;
}
