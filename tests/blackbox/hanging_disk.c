/* Loaded before the C library: reads of rank 1 from byte $HANGS_FROM on never end, as on a file
 * server that is gone. The first of them leaves its offset in the file $HANGS_TELL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_rank_1(void)
{
    char text[8192];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    for (ssize_t i = 0; i < n; i += (ssize_t)strlen(text + i) + 1)
        if (strcmp(text + i, "--rank=1") == 0)
            return 1;
    return 0;
}

ssize_t pread64(int fd, void *dst, size_t n, off64_t offset)
{
    ssize_t (*real)(int, void *, size_t, off64_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    if (offset >= atoll(getenv("HANGS_FROM")) && is_rank_1()) {
        FILE *told = fopen(getenv("HANGS_TELL"), "wx");
        if (told) {
            fprintf(told, "%lld", (long long)offset);
            fclose(told);
        }
        for (;;)
            pause();
    }
    return real(fd, dst, n, offset);
}

ssize_t pread(int fd, void *dst, size_t n, off_t offset)
{
    return pread64(fd, dst, n, offset);
}
