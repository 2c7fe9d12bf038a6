/* DESIGN: the only C++ of the program. Results are copied into malloc memory, so that nothing of
 * C++ crosses the border; every entry has a function-try-block, so that nothing is thrown across
 * it. */
#include "server/tokenizer/spm.h"

#include <sentencepiece_processor.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

struct spm {
    sentencepiece::SentencePieceProcessor processor;
};

static int fail(char *error, size_t cap, const char *text)
{
    std::snprintf(error, cap, "%s", text);
    return -1;
}

int spm_open(const void *bytes, size_t n, struct spm **out, char *error, size_t cap)
try {
    auto s = std::make_unique<spm>();
    const auto status = s->processor.LoadFromSerializedProto({static_cast<const char *>(bytes), n});
    if (!status.ok())
        return fail(error, cap, status.error_message());
    *out = s.release();
    return 0;
} catch (const std::exception &e) {
    return fail(error, cap, e.what());
} catch (...) {
    return fail(error, cap, "unknown exception");
}

void spm_close(struct spm *s)
{
    delete s;
}

int32_t spm_count(const struct spm *s)
{
    return s->processor.GetPieceSize();
}

int spm_encode(const struct spm *s, const char *text, size_t n, int32_t **ids, int32_t *count,
               char *error, size_t cap)
try {
    std::vector<int> found;
    const auto status = s->processor.Encode({text, n}, &found);
    if (!status.ok())
        return fail(error, cap, status.error_message());
    if (found.size() > INT32_MAX)
        return fail(error, cap, "too many tokens");
    int32_t *copy = nullptr;
    if (!found.empty()) {
        copy = static_cast<int32_t *>(std::malloc(found.size() * sizeof *copy));
        if (!copy)
            return fail(error, cap, "no memory");
        std::memcpy(copy, found.data(), found.size() * sizeof *copy);
    }
    *ids = copy;
    *count = static_cast<int32_t>(found.size());
    return 0;
} catch (const std::exception &e) {
    return fail(error, cap, e.what());
} catch (...) {
    return fail(error, cap, "unknown exception");
}

int spm_decode(const struct spm *s, const int32_t *ids, int32_t count, char **text, size_t *n,
               char *error, size_t cap)
try {
    std::string found;
    const auto status = s->processor.Decode(std::vector<int>(ids, ids + count), &found);
    if (!status.ok())
        return fail(error, cap, status.error_message());
    char *copy = static_cast<char *>(std::malloc(found.size() + 1));
    if (!copy)
        return fail(error, cap, "no memory");
    std::memcpy(copy, found.c_str(), found.size() + 1);
    *text = copy;
    *n = found.size();
    return 0;
} catch (const std::exception &e) {
    return fail(error, cap, e.what());
} catch (...) {
    return fail(error, cap, "unknown exception");
}
