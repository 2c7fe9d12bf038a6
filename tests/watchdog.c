/* DESIGN: a test that crashes or hangs says where, for that may happen once in a hundred runs and
 * on another machine. What crashes aborts and prints its stack: otherwise cmocka would jump from
 * there to where the main thread began the test, whichever thread it was. Shortly before ctest
 * would kill a program without a word all its threads print their stacks. Part of every test. */
#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES 48
#define ANSWER_US 1000000 /* a thread that has signals blocked gives none */

static atomic_int told;

/* Addresses of static functions are offsets in a file: addr2line -fpe FILE +0xOFFSET */
static void tell(int code)
{
    (void)code;
    void *at[FRAMES];
    backtrace_symbols_fd(at, backtrace(at, FRAMES), STDERR_FILENO);
    atomic_fetch_add(&told, 1);
}

static void ask(int thread)
{
    const int before = atomic_load(&told);
    dprintf(STDERR_FILENO, "thread %d:\n", thread);
    (void)syscall(SYS_tgkill, getpid(), thread, SIGURG);
    for (int us = 0; us < ANSWER_US && atomic_load(&told) == before; us += 1000)
        usleep(1000);
}

static void bark(int code)
{
    (void)code;
    const int self = (int)syscall(SYS_gettid);
    dprintf(STDERR_FILENO, "process %d hangs; thread %d:\n", getpid(), self);
    tell(0);
    (void)signal(SIGABRT, SIG_DFL);
    DIR *threads = opendir("/proc/self/task"); /* allocates: own stack first */
    for (struct dirent *e; threads && (e = readdir(threads));) {
        const int thread = (int)strtol(e->d_name, NULL, 10);
        if (thread > 0 && thread != self)
            ask(thread);
    }
    abort();
}

__attribute__((constructor)) static void watch(void)
{
    void *at[1];
    (void)backtrace(at, 1); /* loads what it needs, which a handler cannot */
    (void)setenv("CMOCKA_TEST_ABORT", "1", 0);
    (void)signal(SIGABRT, tell);
    (void)signal(SIGURG, tell);
    (void)signal(SIGALRM, bark);
    alarm(WATCHDOG_SECONDS);
}
