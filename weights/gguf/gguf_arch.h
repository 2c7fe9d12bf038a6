/* Architectures of llama.cpp's that are families of ours, and the keys that begin with their names.
 * gguf-py/gguf/constants.py of https://github.com/ggml-org/llama.cpp has both. */
#ifndef TESSERA_WEIGHTS_GGUF_GGUF_ARCH_H
#define TESSERA_WEIGHTS_GGUF_GGUF_ARCH_H

#include "weights/gguf/gguf.h"

#define GGUF_ARCH_HYBRIDS " qwen3next qwen35 qwen35moe " /* most of whose layers recur */
#define GGUF_ARCH_DEEPSEEKS " deepseek2 deepseek_v3 "
#define GGUF_ARCH_MISTRALS " mistral3 ministral3 "
#define GGUF_ARCH_EXAONES " exaone4 exaone-moe " /* of which some layers slide, and turn */
#define GGUF_ARCH_GEMMA4 " gemma4 "
#define GGUF_ARCH_LAYERS_MAX 100000 /* far beyond what model_config takes */
#define GGUF_ARCH_PAIRS_MAX 256

struct gguf_arch {
    const char *name;       /* ours; of the file's general.architecture, unless it has a prefix */
    const char *prefix;     /* of its keys, the name of the one before it; NULL: its own name */
    const char *key;        /* with a prefix: it is this one where that key is */
    int64_t least;          /* at least this; 0: whatever is not 0 */
    const char *model_type; /* Hugging Face's */
    bool pairs;             /* the converter moved the rows of q and k */
    bool gemma;             /* activations, and what else is Gemma's */
    bool more;              /* the converter added one to the gains of norms */
    bool tiled;             /* and has value heads of layers that recur in turns (gguf_order.h) */
    const char *keys;       /* further lines of config.json */
};

/* NULL: ERR_MODEL, which names those that are known. */
const struct gguf_arch *gguf_arch_find(const struct gguf *g, struct err *err);
/* Among these names, each in blanks? */
bool gguf_arch_is(const struct gguf_arch *a, const char *names);
const char *gguf_arch_prefix(const struct gguf_arch *a);

/* The value of ARCH.key; NULL: there is none. */
const struct gguf_value *gguf_arch_get(const struct gguf *g, const struct gguf_arch *a,
                                       const char *key);
/* ERR_MODEL: the key is missing or not what is expected. */
enum status gguf_arch_wrong(const struct gguf *g, const struct gguf_arch *a, const char *key,
                            const char *what, struct err *err) MUST_USE;
/* Of keys that may be missing, where *out is as it was. ERR_MODEL: not a finite number; no integer
 * from `least` to `most`. */
enum status gguf_arch_number(const struct gguf *g, const struct gguf_arch *a, const char *key,
                             double *out, struct err *err) MUST_USE;
/* ERR_MODEL where contexts are stretched by a factor without a word of how, which llama.cpp takes
 * for linear. */
enum status gguf_arch_unstretched(const struct gguf *g, const struct gguf_arch *a,
                                  struct err *err) MUST_USE;
enum status gguf_arch_int(const struct gguf *g, const struct gguf_arch *a, const char *key,
                          int64_t least, int64_t most, int64_t *out, struct err *err) MUST_USE;
/* Layers that guess the token after next; they follow the others and are left out. */
int64_t gguf_arch_guessing(const struct gguf *g, const struct gguf_arch *a);
/* All layers, with those; 0: the file does not say. */
int64_t gguf_arch_blocks(const struct gguf *g, const struct gguf_arch *a);
/* The last layers that have the keys and values of others. */
int64_t gguf_arch_sharing(const struct gguf *g, const struct gguf_arch *a);
/* The factors of a tensor of rotations; 0: the file has none of this name, -1: of a wrong shape,
 * ERR_MODEL. */
int32_t gguf_arch_factors(const struct gguf *g, const char *name, float out[GGUF_ARCH_PAIRS_MAX],
                          struct err *err);

#endif
