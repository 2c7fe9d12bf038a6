/* Steps that change a text or cut it into pieces, one after the other: the normalizers and
 * pre-tokenizers of a tokenizer.json come down to these four. */
#ifndef TESSERA_SERVER_TOKENIZER_TEXTSTEP_H
#define TESSERA_SERVER_TOKENIZER_TEXTSTEP_H

#include "config/buf.h"
#include "server/tokenizer/regex.h"

#define TEXTSTEP_MAX 32
#define TEXTSTEP_CONTENT_MAX 64
#define TEXTSTEP_BYTES_MAX ((size_t)64 << 20) /* what a text may grow to */

enum textstep_kind {
    TEXTSTEP_PREPEND, /* content goes before the text */
    TEXTSTEP_REPLACE, /* content takes the place of every match */
    TEXTSTEP_NFC,     /* the same text in normalization form C */
    TEXTSTEP_SPLIT,   /* every match and what lies between matches are pieces */
};

/* When is something put before a text? */
enum textstep_prepend { PREPEND_ALWAYS, PREPEND_WHERE_ABSENT, PREPEND_FIRST_WHERE_ABSENT };

/* What becomes of a match? */
enum textstep_behavior {
    SPLIT_ISOLATED,   /* a piece of its own */
    SPLIT_REMOVED,    /* nothing */
    SPLIT_PREVIOUS,   /* the end of the piece before it */
    SPLIT_NEXT,       /* the beginning of the piece after it */
    SPLIT_CONTIGUOUS, /* one piece with the matches that follow at once */
};

struct textstep {
    enum textstep_kind kind;
    enum textstep_prepend when;
    enum textstep_behavior behavior;
    bool invert;         /* what lies between matches is the match */
    struct regex *regex; /* owned; of REPLACE and SPLIT */
    char content[TEXTSTEP_CONTENT_MAX];
    size_t content_len;
};

struct textsteps {
    struct textstep steps[TEXTSTEP_MAX];
    int32_t count;
};

void textstep_free(struct textsteps *s);

/* Memory that runs use again; one per thread and list of steps. */
struct textstep_work {
    struct regex_work *regex; /* borrowed */
    struct buf texts[TEXTSTEP_MAX];
};
void textstep_work_init(struct textstep_work *w, struct regex_work *regex);
void textstep_work_free(struct textstep_work *w);

/* A piece of text: UTF-8, valid during the call. first: it begins where the whole text does. */
typedef enum status textstep_sink(void *ctx, const char *text, size_t n, bool first,
                                  struct err *err);

/* Gives what all steps make of a text to the sink, in order; never an empty piece. ERR_INPUT when a
 * search is too long (regex.h) or marks are too many (nfc.h), ERR_NOMEM when there is no memory or
 * a text grows past TEXTSTEP_BYTES_MAX. */
enum status textstep_run(const struct textsteps *s, struct textstep_work *w, const char *text,
                         size_t n, bool first, textstep_sink *sink, void *ctx,
                         struct err *err) MUST_USE;

#endif
