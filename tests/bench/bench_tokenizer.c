/* What a tokenizer takes of one processor to open and to encode, and of memory at most.
 *
 *   bench_tokenizer MODEL_DIR TEXT_FILE [BYTES_A_REQUEST]
 *
 * The text is encoded in requests of 4096 bytes, or of the number given, cut at a line's end. */
#include "config/file.h"
#include "server/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define TEXT_BYTES_MAX ((size_t)64 << 20)
#define IDS (1 << 20) /* more than any model has */

/* Of the processor, so that others on the machine do not count. */
static double seconds_used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static enum status encode_all(const struct tokenizer *t, const char *text, size_t n, size_t request,
                              struct err *err)
{
    const double begin = seconds_used();
    int64_t tokens = 0, requests = 0;
    for (size_t at = 0; at < n; requests++) {
        size_t length = n - at < request ? n - at : request;
        const char *end =
            at + length < n ? memchr(text + at + length, '\n', n - at - length) : NULL;
        if (end)
            length = (size_t)(end - text) - at + 1;
        int32_t *ids = NULL, count = 0;
        enum status st = tokenizer_encode_named(t, text + at, length, false, &ids, &count, err);
        if (st != OK)
            return st;
        free(ids);
        tokens += count;
        at += length;
    }
    const double seconds = seconds_used() - begin;
    printf("encode: %" PRId64 " requests, %" PRId64 " tokens, %.2f MB/s\n", requests, tokens,
           (double)n / 1e6 / seconds);
    return OK;
}

static enum status bench(const char *model, const char *path, size_t request, struct err *err)
{
    struct tokenizer *t = NULL;
    struct rusage usage;
    char *text = NULL;
    size_t n = 0;
    enum status st = OK;
    const double begin = seconds_used();
    TRY(tokenizer_open(model, IDS, &t, err));
    const double seconds = seconds_used() - begin;
    getrusage(RUSAGE_SELF, &usage);
    if (!t) {
        st = base_fail(err, ERR_USAGE, "%s has no tokenizer", model);
        goto out;
    }
    printf("open: %s, %d tokens, %.2f s, at most %ld MiB held\n", tokenizer_kind(t),
           tokenizer_count(t), seconds, usage.ru_maxrss >> 10);
    const struct file_spec f = {.path = path, .bytes_max = TEXT_BYTES_MAX, .failure = ERR_USAGE};
    TRY(file_read(&f, &text, &n, err));
    st = encode_all(t, text, n, request, err);
out:
    free(text);
    tokenizer_close(t);
    return st;
}

int main(int argc, char **argv)
{
    struct err err = {""};
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: %s MODEL_DIR TEXT_FILE [BYTES_A_REQUEST]\n", argv[0]);
        return base_exit_code(ERR_USAGE);
    }
    size_t request = argc > 3 ? strtoul(argv[3], NULL, 10) : 4096;
    enum status st = bench(argv[1], argv[2], request > 0 ? request : 1, &err);
    if (st != OK)
        fprintf(stderr, "%s\n", err.text);
    return base_exit_code(st);
}
