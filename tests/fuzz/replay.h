/* What a fuzz target is without a fuzzer: a program that replays every file of the folders on its
 * command line. To be included last. */
#ifndef TESSERA_TESTS_FUZZ_REPLAY_H
#define TESSERA_TESTS_FUZZ_REPLAY_H
#ifdef TESSERA_FUZZ_REPLAY

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static bool replay(const char *path)
{
    struct stat sb;
    FILE *f = stat(path, &sb) == 0 && S_ISREG(sb.st_mode) ? fopen(path, "rb") : NULL;
    uint8_t *bytes = f ? malloc((size_t)sb.st_size + 1) : NULL;
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
            replayed += replay(path);
        }
        if (dir)
            closedir(dir);
    }
    printf("%ld inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}

#endif
#endif
