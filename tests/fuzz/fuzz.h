/* What every fuzz target is: one function over bytes. Built with -fsanitize=fuzzer it is a fuzzer;
 * without, the program replays every file of the folders on its command line. Included once. */
#ifndef TESSERA_TESTS_FUZZ_FUZZ_H
#define TESSERA_TESTS_FUZZ_FUZZ_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef TESSERA_FUZZ_REPLAY
/* From memory of exactly the file's size, so that a sanitizer sees a read behind it. */
static bool fuzz_replay(const char *path)
{
    struct stat sb;
    FILE *f = stat(path, &sb) == 0 && S_ISREG(sb.st_mode) ? fopen(path, "rb") : NULL;
    uint8_t *bytes = f ? malloc(sb.st_size > 0 ? (size_t)sb.st_size : 1) : NULL;
    if (bytes)
        LLVMFuzzerTestOneInput(bytes, fread(bytes, 1, (size_t)sb.st_size, f));
    if (f)
        fclose(f);
    free(bytes);
    return bytes != NULL;
}

int main(int argc, char **argv)
{
    long replayed = 0;
    for (int a = 1; a < argc; a++) {
        DIR *dir = opendir(argv[a]);
        for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
            char path[PATH_MAX];
            snprintf(path, sizeof path, "%s/%s", argv[a], d->d_name);
            replayed += fuzz_replay(path);
        }
        if (dir)
            closedir(dir);
    }
    printf("%ld inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}
#endif

#endif
