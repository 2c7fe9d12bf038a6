/* What a message says: a text, or parts of it. Mistral's clients have thoughts among the parts, of
 * the form that mistral-common gives them (ThinkChunk). Pure. */
#ifndef TESSERA_SERVER_API_CONTENT_H
#define TESSERA_SERVER_API_CONTENT_H

#include "server/api/field.h"

/* Which thoughts a message may have. */
enum content_thoughts {
    CONTENT_THOUGHTS_NONE,
    CONTENT_THOUGHTS_LEADING, /* before all texts */
    CONTENT_THOUGHTS_ANYWHERE
};

struct content {
    struct buf text;     /* of text parts, a line each */
    struct buf thoughts; /* of thinking parts, a line each */
    /* Where thoughts may be anywhere: all of them as members of a list, as templates that know
     * thoughts take them, neighbours of a kind in one. */
    struct buf parts;
    bool says, thinks;    /* there is a text or a text part, a thinking part */
    struct buf run;       /* the last of parts, which is not there yet */
    bool runs_on_thought; /* it is a thought */
};

void content_init(struct content *c, size_t bytes_max);
void content_free(struct content *c);
/* v: a string or a list of parts. ERR_INPUT with the path of the value in *e. */
enum status content_read(const struct jdoc *v, enum content_thoughts may, struct content *c,
                         struct field_unknown *unknown, struct api_error *e) MUST_USE;
/* Nothing more follows but the mark (NULL: none), behind the last text. False: a buf has failed. */
bool content_end(struct content *c, const char *mark);

#endif
