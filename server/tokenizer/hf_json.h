/* Typed reading of a tokenizer.json; every refusal names the file and the place in it. */
#ifndef TESSERA_SERVER_TOKENIZER_HF_JSON_H
#define TESSERA_SERVER_TOKENIZER_HF_JSON_H

#include "config/jdoc.h"

struct hf_json {
    const char *where; /* the file */
    struct err *err;
};

/* "pre_tokenizer.pretokenizers[1]" */
struct hf_json_place {
    char text[120];
};
struct hf_json_place hf_json_place(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* ERR_MODEL: "FILE: PLACE: ..." */
enum status hf_json_bad(const struct hf_json *j, const char *place, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
enum status hf_json_unsupported(const struct hf_json *j, const char *place, const char *what);

/* What is there must have the type. */
enum status hf_json_check(const struct hf_json *j, const struct jdoc *v, const char *place,
                          enum jdoc_type type) MUST_USE;
/* A member of an object; absent or null: *out stays what it is. */
enum status hf_json_optional(const struct hf_json *j, const struct jdoc *object, const char *place,
                             const char *key, enum jdoc_type type,
                             const struct jdoc **out) MUST_USE;
/* The same, but it must be there. */
enum status hf_json_member(const struct hf_json *j, const struct jdoc *object, const char *place,
                           const char *key, enum jdoc_type type, const struct jdoc **out) MUST_USE;
enum status hf_json_bool(const struct hf_json *j, const struct jdoc *object, const char *place,
                         const char *key, bool *out) MUST_USE;
enum status hf_json_string(const struct hf_json *j, const struct jdoc *object, const char *place,
                           const char *key, const char **out) MUST_USE;

#endif
