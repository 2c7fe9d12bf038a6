/* Loaded before the C library: while the first byte of the file $ALLOCATIONS_FLAG is not 0, every
 * allocation is a line in the file $ALLOCATIONS_LOG: process, thread, who asked (object and
 * offset), bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t n);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static const volatile char *flag;
static const char *log_path;
static __thread int inside;

__attribute__((constructor)) static void open_flag(void)
{
    const char *path = getenv("ALLOCATIONS_FLAG");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    log_path = getenv("ALLOCATIONS_LOG");
    flag = page == MAP_FAILED ? NULL : page;
    close(fd);
}

static void note(const void *caller, size_t n)
{
    char line[600];
    Dl_info who = {0};
    if (!flag || !*flag || inside)
        return;
    const int error = errno;
    inside = 1;
    dladdr(caller, &who);
    const int length =
        snprintf(line, sizeof line, "%d %ld %s+0x%lx %zu\n", (int)getpid(), syscall(SYS_gettid),
                 who.dli_fname ? who.dli_fname : "?",
                 (unsigned long)((const char *)caller - (const char *)who.dli_fbase), n);
    const int fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (write(fd, line, (size_t)length) != length)
        abort();
    close(fd);
    inside = 0;
    errno = error;
}

void *malloc(size_t n)
{
    note(__builtin_return_address(0), n);
    return __libc_malloc(n);
}

void *calloc(size_t count, size_t n)
{
    note(__builtin_return_address(0), count * n);
    return __libc_calloc(count, n);
}

void *realloc(void *p, size_t n)
{
    note(__builtin_return_address(0), n);
    return __libc_realloc(p, n);
}

void *memalign(size_t alignment, size_t n)
{
    note(__builtin_return_address(0), n);
    return __libc_memalign(alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    note(__builtin_return_address(0), n);
    return __libc_memalign(alignment, n);
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    note(__builtin_return_address(0), n);
    *out = __libc_memalign(alignment, n);
    return *out ? 0 : ENOMEM;
}
