/* The model of a step's time, and the file that its four numbers may come from. */
#include "engine/parallel/price.h"

#include "config/file.h"
#include "config/jdoc.h"

#include <stdlib.h>
#include <string.h>

double price_step(const struct price *p, const struct flow *f, enum plan_phase phase,
                  int32_t layers, int32_t rows, int32_t rank)
{
    double seconds = layers * (p->meet * flow_meetings(f, phase) +
                               p->byte * (double)flow_layer_bytes(f, phase, rows, rank)) +
                     p->meet * flow_ends_meetings(f, phase) +
                     p->byte * (double)flow_ends_bytes(f, phase, rows, 1, rank);
    const struct flow_work head = flow_work(f, phase, PLAN_HEAD, 1, rank);
    seconds += p->weight * (double)head.bytes + p->mac * (double)head.macs;
    for (size_t i = 0; i < FLOW_LINEARS; i++) {
        const struct flow_work w = flow_work(f, phase, flow_linears[i], rows, rank);
        seconds +=
            f->layers[flow_linears[i]] * (p->weight * (double)w.bytes + p->mac * (double)w.macs);
    }
    return seconds;
}

struct step_of {
    const struct price *price;
    int32_t layers;
};

static double step_cost(const struct flow *f, enum plan_phase phase, int32_t rows, int32_t rank,
                        const void *ctx)
{
    const struct step_of *s = ctx;
    return price_step(s->price, f, phase, s->layers, rows, rank);
}

int32_t price_crossover(const struct price *p, const struct flow *f, int32_t layers)
{
    const struct step_of s = {p, layers};
    return flow_crossover(f, step_cost, &s);
}

/* ---- files ---- */

static const struct {
    const char *key;
    size_t offset;
} members[] = {{"collective_s", offsetof(struct price, meet)},
               {"received_byte_s", offsetof(struct price, byte)},
               {"weight_byte_s", offsetof(struct price, weight)},
               {"multiply_add_s", offsetof(struct price, mac)}};

static enum status read_all(const struct jdoc *doc, const char *path, struct price *out,
                            struct err *err)
{
    const char *key;
    const struct jdoc *v;
    if (jdoc_type(doc) != JDOC_OBJECT || jdoc_size(doc) != ARRAY_LEN(members))
        return base_fail(err, ERR_USAGE,
                         "%s: expected an object of the %zu numbers that plan --measure --json "
                         "prints as prices",
                         path, ARRAY_LEN(members));
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        key = members[i].key;
        v = jdoc_get(doc, key);
        const bool number = v && (jdoc_type(v) == JDOC_INT || jdoc_type(v) == JDOC_REAL);
        const double seconds = number ? jdoc_number(v) : -1;
        if (!(seconds >= 0 && seconds <= 1))
            return base_fail(err, ERR_USAGE, "%s: %s must be a number of seconds from 0 to 1", path,
                             key);
        memcpy((char *)out + members[i].offset, &seconds, sizeof seconds);
    }
    return OK;
}

enum status price_load(const char *path, struct price *out, struct err *err)
{
    enum status st = OK;
    const struct file_spec f = {
        .path = path, .what = "--prices ", .bytes_max = 4096, .failure = ERR_USAGE, .pipes = true};
    char *text = NULL;
    size_t n = 0;
    struct jdoc *doc = NULL;
    TRY(file_read(&f, &text, &n, err));
    st = jdoc_parse(text, n, &jdoc_limits_config, path, &doc, err);
    if (st != OK) {
        st = st == ERR_NOMEM ? st : ERR_USAGE;
        goto out;
    }
    TRY(read_all(doc, path, out, err));
out:
    free(text);
    jdoc_close(doc);
    return st;
}

void price_write(const struct price *p, struct buf *out)
{
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        double seconds;
        memcpy(&seconds, (const char *)p + members[i].offset, sizeof seconds);
        buf_printf(out, "%s\"%s\": %.9g", i ? ", " : "{", members[i].key, seconds);
    }
    buf_puts(out, "}");
}
