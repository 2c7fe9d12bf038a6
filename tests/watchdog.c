/* DESIGN: a test that fails ends its program, for what it leaves behind makes others fail, or hang;
 * and cmocka would jump from a crash to where the main thread began the test, whichever thread it
 * was. One that crashes or hangs says where, since that may happen once in a hundred runs and on
 * another machine: TEST_WATCHDOG seconds after the start, before ctest would kill the program
 * without a word, all threads print their stacks. Part of every test; nothing here allocates. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unwind.h>

#define FRAMES_MAX 40
#define ANSWER_US 200000

static atomic_int told;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char line[600];
    va_list values;
    va_start(values, format);
    const int n = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (n < 0 || write(STDERR_FILENO, line, strnlen(line, sizeof line)) < 0)
        return; /* nobody hears it */
}

/* Of a static function only the file and the offset: addr2line -fpe FILE 0xOFFSET */
static _Unwind_Reason_Code tell_frame(struct _Unwind_Context *context, void *arg)
{
    int *frames = arg;
    const uintptr_t at = (uintptr_t)_Unwind_GetIP(context);
    Dl_info where;
    if (at == 0 || ++*frames > FRAMES_MAX)
        return _URC_END_OF_STACK;
    if (dladdr((void *)at, &where))
        say("    %s 0x%jx %s\n", where.dli_fname, (uintmax_t)(at - (uintptr_t)where.dli_fbase),
            where.dli_sname ? where.dli_sname : "");
    return _URC_NO_REASON;
}

static void tell(int code)
{
    int frames = 0;
    (void)code;
    (void)_Unwind_Backtrace(tell_frame, &frames);
    atomic_fetch_add(&told, 1);
}

static void ask(long thread)
{
    const int before = atomic_load(&told);
    say("thread %ld:\n", thread);
    (void)syscall(SYS_tgkill, getpid(), thread, SIGURG);
    for (int us = 0; us < ANSWER_US && atomic_load(&told) == before; us += 1000)
        usleep(1000);
    if (atomic_load(&told) == before)
        say("    blocks signals\n");
}

/* As getdents64(2) writes them. */
struct entry {
    uint64_t inode, next;
    uint16_t bytes;
    uint8_t type;
    char name[];
};

static void bark(int code)
{
    _Alignas(struct entry) char entries[16384];
    const long self = syscall(SYS_gettid);
    const int threads = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const long n = syscall(SYS_getdents64, threads, entries, sizeof entries);
    say("process %d hangs; thread %ld:\n", getpid(), self);
    tell(code);
    for (long at = 0; at < n;) {
        const struct entry *e = (const void *)(entries + at);
        const long thread = strtol(e->name, NULL, 10);
        if (thread > 0 && thread != self)
            ask(thread);
        at += e->bytes;
    }
    (void)signal(SIGABRT, SIG_DFL);
    abort();
}

__attribute__((constructor)) static void watch(void)
{
    const char *seconds = getenv("TEST_WATCHDOG"); /* none by hand, where a debugger may wait */
    (void)setenv("CMOCKA_TEST_ABORT", "1", 0);
    (void)signal(SIGABRT, tell);
    (void)signal(SIGURG, tell);
    (void)signal(SIGALRM, bark);
    alarm(seconds ? (unsigned)strtoul(seconds, NULL, 10) : 0);
}
