/* Arbitrary bytes as one of the small files that an operator or a model names; the first byte says
 * which. A refusal names the file. What was accepted must be in range. */
#include "config/jdoc.h"
#include "config/options.h"
#include "engine/parallel/price.h"
#include "engine/rendezvous.h"
#include "server/keys.h"
#include "server/tokenizer/tokenizer_config.h"
#include "tests/fuzz/fuzz.h"

#include <ctype.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check_refusal(enum status st, enum status expected, const char *name,
                          const struct err *err)
{
    CHECK(st == expected || st == ERR_NOMEM);
    CHECK(err->text[0] && strstr(err->text, name));
}

/* The first line that is not blank and no comment is a key. */
static void check_first_key(struct keys *k, const uint8_t *data, size_t size)
{
    char header[300] = "Bearer ";
    size_t n = strlen(header);
    bool comment = false;
    for (size_t i = 0; i < size && (n == strlen("Bearer ") || data[i] != '\n'); i++) {
        comment = data[i] != '\n' && (comment || (data[i] == '#' && n == strlen("Bearer ")));
        if (!comment && isgraph(data[i]) && n + 1 < sizeof header)
            header[n++] = (char)data[i];
    }
    CHECK(keys_check(k, header, NULL) != 0);
    header[n - 1] ^= 1;
    CHECK(keys_count(k) > 1 || keys_check(k, header, NULL) == 0);
}

static void read_keys(const char *path, const uint8_t *data, size_t size)
{
    struct keys *k = NULL;
    struct err err = {""};
    const enum status st = keys_open(path, false, &k, &err);
    if (st != OK) {
        check_refusal(st, ERR_USAGE, path, &err);
        return;
    }
    CHECK(keys_count(k) >= 1 && keys_count(k) <= 1024);
    check_first_key(k, data, size);
    keys_close(k);
}

static void read_secret(const char *path, const uint8_t *data, size_t size)
{
    struct rendezvous_secret s;
    struct err err = {""};
    const enum status st = rendezvous_secret(path, &s, &err);
    if (st != OK) {
        check_refusal(st, ERR_USAGE, path, &err);
        return;
    }
    CHECK(size >= 32);
    for (int i = 0; i < 32; i++) {
        const int digit = (int)(s.key[i / 16] >> (60 - 4 * (i % 16)) & 15);
        CHECK(tolower(data[i]) == "0123456789abcdef"[digit]);
    }
}

static void read_prices(const char *path)
{
    struct price p;
    struct err err = {""};
    const enum status st = price_load(path, &p, &err);
    if (st != OK) {
        check_refusal(st, ERR_USAGE, path, &err);
        return;
    }
    CHECK(p.meet >= 0 && p.meet <= 1 && p.byte >= 0 && p.byte <= 1);
    CHECK(p.weight >= 0 && p.weight <= 1 && p.mac >= 0 && p.mac <= 1);
}

static void read_options(char *path)
{
    char command[] = "serve", model[] = "MODEL", name[] = "--config";
    char *argv[] = {command, model, name, path, NULL};
    struct options o;
    struct err err = {""};
    bool help = false;
    const enum status st = options_parse(4, argv, &o, &help, &err);
    if (st != OK)
        check_refusal(st, ERR_USAGE, "", &err);
    else
        CHECK(help || (o.model && o.tp >= 0 && o.port >= 0 && o.port <= 65535));
    options_close(&o);
}

static void read_tokenizer_config(const uint8_t *data, size_t size)
{
    const struct tokenizer_config_more more = {.bos = "<s>", .class = "LlamaTokenizer"};
    struct tokenizer_config c;
    struct jdoc *info = NULL;
    struct err err = {""};
    const enum status st = tokenizer_config_parse((const char *)data, size, &more, &c, &err);
    if (st != OK) {
        check_refusal(st, ERR_MODEL, "tokenizer_config.json", &err);
        return;
    }
    CHECK(jdoc_parse(c.info, strlen(c.info), &jdoc_limits_file, "info", &info, &err) == OK);
    CHECK(jdoc_type(info) == JDOC_OBJECT && jdoc_get(info, "eos_token"));
    jdoc_close(info);
    tokenizer_config_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    if (size == 0)
        return 0;
    const int fd = memfd_create("input", MFD_CLOEXEC);
    CHECK(fd >= 0 && fchmod(fd, 0600) == 0);
    CHECK(write(fd, data + 1, size - 1) == (ssize_t)size - 1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    switch (data[0] % 5) {
    case 0:
        read_keys(path, data + 1, size - 1);
        break;
    case 1:
        read_secret(path, data + 1, size - 1);
        break;
    case 2:
        read_prices(path);
        break;
    case 3:
        read_options(path);
        break;
    default:
        read_tokenizer_config(data + 1, size - 1);
    }
    close(fd);
    return 0;
}
