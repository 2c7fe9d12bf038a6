/* Guide: a grammar as it leads a model with a certain vocabulary. For any beginning of an answer it
 * says which tokens may follow. What it finds out on the way (states, what leads from one to the
 * next, masks) it keeps, at most some 10 MiB: all requests of the same grammar share one guide.
 * References are counted by any thread; everything else is for one thread at a time: the one that
 * opens it, then the engine thread. */
#ifndef TESSERA_ENGINE_GRAMMAR_GUIDE_H
#define TESSERA_ENGINE_GRAMMAR_GUIDE_H

#include "engine/grammar/grammar.h"
#include "engine/grammar/vocabulary.h"

struct guide;

/* g is the guide's from here on, in any case; v is borrowed and must outlive it. One reference.
 * ERR_INPUT: no token can begin such a text, or it is too ambiguous. */
enum status guide_open(struct grammar *g, const struct vocabulary *v, struct guide **out,
                       struct err *err) MUST_USE;
struct guide *guide_ref(struct guide *g);
void guide_unref(struct guide *g); /* NULL is fine */
/* Has anybody a reference but the one who asks? Who gives references out may rely on a no. */
bool guide_is_shared(const struct guide *g);
int32_t guide_vocab(const struct guide *g);

/* Where an answer is in the grammar. All zero: at its beginning. It keeps what its state consists
 * of, if that is little, as it mostly is: so it is found again when the guide has forgotten it for
 * another's sake, without going through the answer once more. */
enum {
    GUIDE_SPOTS_MAX = 4,
    GUIDE_SPOT_WORDS = GRAMMAR_DEPTH_MAX + 2, /* node, depth, nodes to return to */
};
struct guide_place {
    uint64_t era; /* of what the guide remembers */
    int32_t state;
    int32_t count; /* tokens so far */
    int32_t spots; /* of the state, that are kept; 0: none */
    bool whole;    /* the text may end there */
    int32_t kept[GUIDE_SPOTS_MAX * GUIDE_SPOT_WORDS];
};

enum guide_move {
    GUIDE_OPEN,     /* more may follow */
    GUIDE_COMPLETE, /* the text is whole, and nothing can follow */
    GUIDE_LOST,     /* the tokens are no beginning of such a text, or it is too ambiguous */
};

/* Moves the place on to where all of tokens[count] are produced; those it has seen already must be
 * the same as before. */
enum guide_move guide_move(struct guide *g, struct guide_place *place, const int32_t *tokens,
                           int32_t count);
/* Which tokens may follow: bit id % 32 of word id / 32. *whole: the text may end here. The place is
 * moved as by guide_move. Valid until the next call; NULL: as GUIDE_LOST. */
const uint32_t *guide_mask(struct guide *g, struct guide_place *place, const int32_t *tokens,
                           int32_t count, bool *whole);

#endif
