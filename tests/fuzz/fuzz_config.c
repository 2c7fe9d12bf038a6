/* Arbitrary bytes as a model's config.json. Built with -fsanitize=fuzzer it is a fuzzer; without,
 * it replays every file of the folders on its command line. What was accepted must lie within what
 * the rest of the program sizes its memory by. */
#include "config/model_config.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool in(int32_t v, int32_t min, int32_t max)
{
    return v >= min && v <= max;
}

static void check_promises(const struct model_config *m)
{
    CHECK(strcmp(m->model_type, "llama") == 0);
    CHECK(in(m->hidden, 1, 1 << 17) && in(m->layers, 1, 1024) && in(m->mlp, 1, 1 << 20));
    CHECK(in(m->heads, 1, 4096) && in(m->kv_heads, 1, m->heads) && m->heads % m->kv_heads == 0);
    CHECK(in(m->head_dim, 2, 512) && m->head_dim % 2 == 0);
    CHECK(in(m->vocab, 1, 1 << 20) && in(m->max_position, 1, 1 << 24));
    CHECK(m->norm_eps >= 0 && m->norm_eps <= 1);
    CHECK(dtype_is_compute(m->dtype));
    CHECK(isfinite(m->rope.theta) && m->rope.theta >= 1);
    if (m->rope.kind == ROPE_LLAMA3)
        CHECK(m->rope.factor >= 1 && m->rope.original_max_position >= 1 &&
              m->rope.high_freq_factor > m->rope.low_freq_factor && m->rope.low_freq_factor > 0);
    CHECK(in(m->bos, -1, m->vocab - 1) && in(m->eos_count, 0, MODEL_EOS_MAX));
    for (int32_t i = 0; i < m->eos_count; i++)
        CHECK(in(m->eos[i], 0, m->vocab - 1));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config m, again;
    struct err err = {{0}};
    enum status st = model_config_parse((const char *)data, size, "input", &m, &err);
    if (st != OK) {
        CHECK(st == ERR_MODEL);
        CHECK(strncmp(err.text, "input: ", 7) == 0);
        return 0;
    }
    check_promises(&m);
    CHECK(model_config_parse((const char *)data, size, "input", &again, &err) == OK);
    CHECK(m.hash == again.hash);
    return 0;
}

#ifdef TESSERA_FUZZ_REPLAY
int main(int argc, char **argv)
{
    long replayed = 0;
    for (int a = 1; a < argc; a++) {
        DIR *dir = opendir(argv[a]);
        for (struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
            char path[PATH_MAX];
            struct stat sb;
            snprintf(path, sizeof path, "%s/%s", argv[a], d->d_name);
            FILE *f = stat(path, &sb) == 0 && S_ISREG(sb.st_mode) ? fopen(path, "rb") : NULL;
            uint8_t *bytes = f ? malloc((size_t)sb.st_size + 1) : NULL;
            if (bytes) {
                size_t n = fread(bytes, 1, (size_t)sb.st_size, f);
                LLVMFuzzerTestOneInput(bytes, n);
                replayed++;
            }
            free(bytes);
            if (f)
                fclose(f);
        }
        if (dir)
            closedir(dir);
    }
    printf("%ld inputs replayed\n", replayed);
    return replayed > 0 ? 0 : 1;
}
#endif
