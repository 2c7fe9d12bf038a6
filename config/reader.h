/* Members of a JSON object, checked as they are read: every message has the same form, file, key,
 * value and what is wanted. null counts as absent. */
#ifndef TESSERA_CONFIG_READER_H
#define TESSERA_CONFIG_READER_H

#include "config/jdoc.h"

struct reader {
    const char *where;
    const struct jdoc *object; /* the caller may move it to a member and back */
    struct err *err;
    enum status st; /* of the first failure, ERR_MODEL; later reads report nothing */
};

void reader_fail(struct reader *r, const char *key, const char *wanted);
/* Is the key there, and says that there is none? */
bool reader_is_null(const struct reader *r, const char *key);
/* Required when fallback < 0. */
int32_t reader_int(struct reader *r, const char *key, int64_t min, int64_t max, int64_t fallback);
/* Required when fallback is NaN. */
double reader_number(struct reader *r, const char *key, double min, double max, double fallback);
bool reader_bool(struct reader *r, const char *key, bool fallback);
/* NULL when absent or not a string (which is then reported). */
const char *reader_string(struct reader *r, const char *key);
/* Moves to the member of that name, which it returns; NULL, reported, when absent or not an object.
 */
const struct jdoc *reader_enter(struct reader *r, const char *key);
/* Sets the bits of layers that are of that type, by the list layer_types of all; the others have to
 * be full_attention. */
void reader_layers(struct reader *r, const struct jdoc *types, int32_t layers, const char *type,
                   uint32_t *bits);
static inline void reader_set_layer(uint32_t *bits, int32_t layer)
{
    bits[layer / 32] |= 1u << layer % 32;
}
/* Reported unless it is that string. */
void reader_expect(struct reader *r, const char *key, const char *value);

#endif
