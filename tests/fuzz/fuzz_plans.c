/* Arbitrary bytes as a plan file, for a number of ranks that the first byte picks. What was
 * accepted must have a mesh of that size and a choice, or a refusal with words, for every name;
 * read again, it must be the same plan. */
#include "engine/parallel/plan.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void check_names(const struct plan *p)
{
    static const char *const names[] = {"", "model.embed_tokens.weight", "lm_head.weight",
                                        "model.layers.0.self_attn.q_proj.weight",
                                        "model.layers.11.mlp.down_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct plan_choice none = {.style = STYLE_REPLICATE};
        struct plan_choice choice;
        struct err err = {""};
        enum status st = plan_find(p, names[i], &none, &choice, &err);
        CHECK(st == OK || (st == ERR_USAGE && err.text[0]));
        if (st == OK)
            CHECK(plan_style_name(choice.style)[0]);
    }
}

static void read_for(const uint8_t *data, size_t size, int32_t ranks)
{
    struct plan *p = NULL, *again = NULL;
    struct err err = {""};
    enum status st = plan_open((const char *)data, size, "input", ranks, &p, &err);
    if (st != OK) {
        CHECK(st == ERR_USAGE || st == ERR_NOMEM);
        CHECK(strncmp(err.text, "input: ", 7) == 0);
        return;
    }
    CHECK(plan_ranks(p) == ranks);
    CHECK(strlen(plan_text(p)) == size);
    check_names(p);
    CHECK(plan_open(plan_text(p), size, "input", ranks, &again, &err) == OK);
    CHECK(plan_hash(p) == plan_hash(again));
    plan_close(again);
    plan_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int32_t ranks = 1; ranks <= 8; ranks *= 2)
        read_for(data, size, ranks);
    return 0;
}
