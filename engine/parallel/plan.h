/* Plan: which parallel style each parameter has, as data keyed by parameter-name patterns, over a
 * mesh of named axes. The built-in layouts are such files too. Pure; immutable after plan_open.
 *
 * In a pattern `*` stands for any part of one dotted component. The pattern with the most literal
 * characters wins; a tie is an error, so is a pattern that matches nothing and a parameter no
 * pattern matches (checked by plan_bind). Errors carry the rule's number, E01 to E23, and name the
 * file, the entry and the parameter. plan_file.c and plan_entry.c read the format, plan_check.c
 * proves that the styles of a layer fit together. */
#ifndef TESSERA_ENGINE_PARALLEL_PLAN_H
#define TESSERA_ENGINE_PARALLEL_PLAN_H

#include "config/model_config.h"
#include "engine/parallel/spread.h"

enum style {
    STYLE_COLWISE,   /* outputs split along an axis: no communication */
    STYLE_ROWWISE,   /* inputs split along an axis: partial outputs are summed */
    STYLE_VOCAB,     /* table split by vocabulary, and by hidden where axes are named */
    STYLE_NORM,      /* small vector that follows the hidden split of what it scales */
    STYLE_REPLICATE, /* whole on every rank */
    STYLE_LIN3D,     /* inputs split along one axis, outputs along another: gather, scatter */
};

/* What a split may not cut. */
enum unit { UNIT_COLUMN, UNIT_HEAD, UNIT_KV_GROUP };

/* Activations are [tokens, features]. A linear redistributes what it takes to what it uses, makes
 * its local product, and redistributes that to what it gives. An embedding only gives. */
struct plan_choice {
    enum style style;
    enum unit unit;
    bool back;            /* lin3d of direction out */
    bool gathered;        /* lin3d: ranks along axis `over` store a part of the outputs each, */
    int8_t over;          /* and gather the whole weight for every product */
    struct spread weight; /* in a product: [outputs, inputs]; a table: [vocabulary, hidden] */
    struct spread takes, uses, gives;
};

struct plan;

/* text: a plan file; where names it in messages. The mesh must have `ranks` members. ERR_USAGE
 * names entry, value and what is wanted. */
enum status plan_open(const char *text, size_t n, const char *where, int32_t ranks,
                      struct plan **out, struct err *err) MUST_USE;
/* The built-in plan of a mode ("1d"), with other sizes of its axes when mesh ("1,4,2") is not NULL;
 * or the file when path is not NULL. */
enum status plan_load(const char *mode, const char *mesh, const char *path, int32_t ranks,
                      struct plan **out, struct err *err) MUST_USE;
/* Steps of `rows` rows or more take the form for many rows; the plan's text then says so, too. To
 * be called before layouts are opened. ERR_USAGE: the plan has no such form, or its file sets the
 * number itself. */
enum status plan_set_prefill_rows(struct plan *p, int32_t rows, struct err *err) MUST_USE;
/* Where the KV cache lives, "heads" or "home"; the plan's text then says so, too. To be called
 * before layouts are opened. ERR_USAGE: the layout has no homes, or a plan file does not have the
 * words that would be replaced. */
enum status plan_set_placement(struct plan *p, const char *placement, struct err *err) MUST_USE;
void plan_close(struct plan *p);

int32_t plan_ranks(const struct plan *p);
const struct mesh *plan_mesh(const struct plan *p);
/* The text it was read from, NUL-terminated. */
const char *plan_text(const struct plan *p);
const char *plan_where(const struct plan *p);
const char *plan_mode(const struct plan *p);
/* Whether the KV cache lives at home. */
bool plan_is_home(const struct plan *p);
/* Of the text without its layout: equal plans hash equally. */
uint64_t plan_hash(const struct plan *p);
/* choices[i] for each parameter name. */
enum status plan_bind(const struct plan *p, const char *const *names, int32_t count,
                      struct plan_choice *choices, struct err *err) MUST_USE;
/* The choice of one name; `fallback` when no pattern matches it. */
enum status plan_find(const struct plan *p, const char *name, const struct plan_choice *fallback,
                      struct plan_choice *choice, struct err *err) MUST_USE;
/* What the local product of a linear is, from what it uses: split as the weight's outputs, partial
 * along the axes that split its inputs. */
struct spread plan_product(const struct plan_choice *c);
/* What a look-up in a table gives: each rank finds only the ids in its own rows of the table. */
struct spread plan_found(const struct plan_choice *c);
/* Where attention has the output of QKV. Placement heads: all rows, and the heads split by all axes
 * of what QKV gives. Placement home: the heads split as the weight's outputs; rows by the axes that
 * split them in the product and then by those along which it is partial, so that each piece of them
 * is a home, which has all rows of its sequences. */
struct spread plan_attention(const struct plan *p, const struct plan_choice *qkv);

/* A plan may have a second form of a step, for many rows. Weights stay where they are; what differs
 * is what moves. With SUMMA (moving.h) weights travel instead of partial sums, and activations lie
 * in blocks of rows and columns. Otherwise the residual stream is split by rows instead of into
 * finer columns, so that fewer ranks share the norm of a row. */
enum plan_phase { PLAN_DECODE, PLAN_PREFILL, PLAN_PHASES };
bool plan_has_prefill(const struct plan *p);
bool plan_is_summa(const struct plan *p);
/* From how many rows on a step takes that form; 0: the plan does not say. */
int32_t plan_prefill_rows(const struct plan *p);
/* The same choice in that form. */
struct plan_choice plan_many(const struct plan *p, const struct plan_choice *c);

/* The parameters of one decoder layer and around it, in the order they are met. */
enum plan_part {
    PLAN_EMBED,
    PLAN_ATTN_NORM,
    PLAN_QKV,
    PLAN_O,
    PLAN_MLP_NORM,
    PLAN_GATE_UP,
    PLAN_DOWN,
    PLAN_FINAL_NORM,
    PLAN_HEAD,
    PLAN_PARTS,
    /* Of layers that have another MLP than most, or a plain one in the place of experts or beside
     * them (model_config_has_other_mlp); they are placed as GATE_UP and DOWN are. */
    PLAN_DENSE_GATE_UP = PLAN_PARTS,
    PLAN_DENSE_DOWN,
    PLAN_LATENT, /* of models with latents, what these are made by; placed as QKV is */
    /* Beside QKV, what attention's result is multiplied with. Of layers that recur, what stands in
     * the place of QKV, what goes with it, and what stands in the place of O. */
    PLAN_ATTENTION_GATE,
    PLAN_RECURRENT,
    PLAN_RECURRENT_GATES,
    PLAN_RECURRENT_OUT,
    /* Of layers that do not slide, where their heads are others; placed as QKV and O are. */
    PLAN_GLOBAL_QKV,
    PLAN_GLOBAL_O,
    /* Of layers with the keys and values of others, of either kind, what stands in the place of
     * QKV; and in front of all layers what makes the rows that these take. Placed as QKV is. */
    PLAN_QUERY,
    PLAN_GLOBAL_QUERY,
    PLAN_LAYER_INPUTS,
    PLAN_LINEARS
};
struct plan_layer {
    const char *name[PLAN_PARTS]; /* of the parameters, for messages and prepare entries */
    struct plan_choice choice[PLAN_PARTS];
};
/* Walks a layer as the forward pass does and refuses what would be wrong: E06 to E17, E19. dtype:
 * what the weights are stored in. */
enum status plan_check(const struct plan *p, const struct model_config *m, enum dtype dtype,
                       const struct plan_layer *layer, struct err *err) MUST_USE;

const char *plan_style_name(enum style s);

#endif
