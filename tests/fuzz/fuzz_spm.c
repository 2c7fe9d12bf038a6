/* Arbitrary bytes as a tokenizer.model. What was accepted must hold the promises that keep
 * SentencePiece safe: every piece lies in the file and is text, ids are in range; so SentencePiece
 * must open it too, know as many pieces, and survive a text. */
#include "config/utf8.h"
#include "server/tokenizer/spm_file.h"
#include "server/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void check_text(const uint8_t *data, size_t size, const char *text, size_t n)
{
    const uint8_t *at = (const uint8_t *)text;
    CHECK(at >= data && n <= size && at <= data + (size - n));
    for (size_t i = 0, k; i < n; i += k) {
        k = utf8_char(text + i, n - i);
        CHECK(k > 0);
    }
}

static void check_promises(const struct spm_file *file, const uint8_t *data, size_t size)
{
    int32_t unknown = 0;
    CHECK(file->count >= 1 && file->count <= SPM_FILE_PIECES_MAX);
    CHECK(file->bos >= -1 && file->bos < file->count);
    CHECK(file->eos >= -1 && file->eos < file->count);
    for (int32_t i = 0; i < file->count; i++) {
        const struct spm_piece *piece = &file->pieces[i];
        CHECK(piece->len >= 1 && piece->len <= SPM_FILE_PIECE_BYTES_MAX);
        CHECK(piece->type >= SPM_NORMAL && piece->type <= SPM_BYTE);
        CHECK(piece->type_at < size && (piece->type_at > 0 || piece->type == SPM_NORMAL));
        check_text(data, size, piece->text, (size_t)piece->len);
        unknown += piece->type == SPM_UNKNOWN;
    }
    CHECK(unknown == 1 && file->pieces[file->unk].type == SPM_UNKNOWN);
}

static void use(const uint8_t *data, size_t size, int32_t count)
{
    static const char text[] = "Once upon a time \xe4\xbd\xa0 \xf0\x9f\xa6\x8a \xef\xac\x81 ab\n";
    const struct tokenizer_bytes b = {
        .model = (const char *)data, .model_n = size, .where = "input"};
    struct tokenizer *t = NULL;
    struct err err = {""};
    int32_t *ids = NULL, n = 0;
    enum status st = tokenizer_open_bytes(&b, count, &t, &err);
    if (st != OK) { /* SentencePiece has rules beyond safety */
        CHECK(st == ERR_MODEL && strstr(err.text, "input"));
        return;
    }
    CHECK(tokenizer_count(t) == count);
    st = tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n, &err);
    CHECK(st == OK || err.text[0]);
    for (int32_t i = 0; st == OK && i < n; i++)
        CHECK(ids[i] >= 0 && ids[i] < count);
    free(ids);
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct spm_file file;
    struct err err = {""};
    enum status st = spm_file_parse(data, size, "input", &file, &err);
    if (st != OK) {
        CHECK(st == ERR_MODEL || st == ERR_NOMEM);
        CHECK(strncmp(err.text, "input: ", 7) == 0);
        return 0;
    }
    const int32_t count = file.count;
    check_promises(&file, data, size);
    spm_file_free(&file);
    use(data, size, count);
    return 0;
}
