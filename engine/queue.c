/* DESIGN: the lines are sorted lists through sequence.next. Clients come from a fixed array, so
 * that a new client allocates nothing, and are found by a small hash table: a client lives exactly
 * as long as its line, and without requests nothing of it is remembered. A sequence with a place of
 * its own in the ring stands there as a client that cannot be found. */
#include "engine/queue.h"

#include <stdlib.h>

struct client {
    uint64_t id;
    bool apart; /* one sequence with a place of its own: not in a bucket */
    struct sequence *line;
    struct client *next;  /* in the ring, or unused */
    struct client *chain; /* in its bucket */
};

struct queue {
    struct client *clients, *unused;
    struct client *ring, **ring_end;
    struct client **buckets; /* [mask + 1] */
    uint64_t mask;
    struct sequence *returned;
    int32_t count;
};

enum status queue_open(int32_t clients, struct queue **out, struct err *err)
{
    struct queue *q = calloc(1, sizeof *q);
    if (q) {
        while (q->mask < (uint64_t)clients)
            q->mask = 2 * q->mask + 1;
        q->clients = calloc((size_t)clients, sizeof *q->clients);
        q->buckets = calloc((size_t)q->mask + 1, sizeof(struct client *));
    }
    if (!q || !q->clients || !q->buckets) {
        queue_close(q);
        return base_fail(err, ERR_NOMEM, "queue: no memory for %d clients", clients);
    }
    for (int32_t i = 0; i < clients; i++) {
        q->clients[i].next = q->unused;
        q->unused = &q->clients[i];
    }
    q->ring_end = &q->ring;
    *out = q;
    return OK;
}

void queue_close(struct queue *q)
{
    if (!q)
        return;
    free(q->clients);
    free(q->buckets);
    free(q);
}

int32_t queue_count(const struct queue *q)
{
    return q->count;
}

/* ---- clients ---- */

static struct client **bucket_of(const struct queue *q, uint64_t id)
{
    return &q->buckets[(id * 0x9e3779b97f4a7c15ull >> 32) & q->mask];
}

static struct client *find(const struct queue *q, uint64_t id)
{
    struct client *c = *bucket_of(q, id);
    while (c && c->id != id)
        c = c->chain;
    return c;
}

static struct client *client_take(struct queue *q)
{
    struct client *c = q->unused;
    CHECK(c != NULL);
    q->unused = c->next;
    return c;
}

static void ring_add(struct queue *q, struct client *c)
{
    c->next = NULL;
    *q->ring_end = c;
    q->ring_end = &c->next;
}

/* Takes the client at *at out of the ring; *at is the one behind it then. */
static void ring_take(struct queue *q, struct client **at)
{
    struct client *c = *at;
    *at = c->next;
    if (!c->next)
        q->ring_end = at;
}

static struct client *client_new(struct queue *q, uint64_t id)
{
    struct client *c = client_take(q), **bucket = bucket_of(q, id);
    *c = (struct client){.id = id, .chain = *bucket};
    *bucket = c;
    ring_add(q, c);
    return c;
}

/* It has left the ring. */
static void client_end(struct queue *q, struct client *c)
{
    if (!c->apart) {
        struct client **from = bucket_of(q, c->id);
        while (*from != c)
            from = &(*from)->chain;
        *from = c->chain;
    }
    c->next = q->unused;
    q->unused = c;
}

/* ---- lines ---- */

static void line_add(struct queue *q, struct sequence **line, struct sequence *s)
{
    while (*line && sequence_before(*line, s))
        line = &(*line)->next;
    s->next = *line;
    *line = s;
    s->queued = true;
    q->count++;
}

static bool line_remove(struct queue *q, struct sequence **line, struct sequence *s)
{
    while (*line && *line != s)
        line = &(*line)->next;
    if (!*line)
        return false;
    *line = s->next;
    s->queued = s->returned = false;
    q->count--;
    return true;
}

void queue_push(struct queue *q, struct sequence *s)
{
    struct client *c = find(q, s->params.client);
    if (!c)
        c = client_new(q, s->params.client);
    const bool begun = c->line && c->line->admitted; /* that head stays the head */
    line_add(q, begun ? &c->line->next : &c->line, s);
}

void queue_return(struct queue *q, struct sequence *s)
{
    struct sequence **line = &q->returned;
    while (*line && (*line)->slot >= 0) /* those who have begun stay before it */
        line = &(*line)->next;
    line_add(q, line, s);
    s->returned = true;
}

void queue_remove(struct queue *q, struct sequence *s)
{
    struct client **at = &q->ring;
    if (line_remove(q, &q->returned, s))
        return;
    while (*at && !line_remove(q, &(*at)->line, s))
        at = &(*at)->next;
    struct client *c = *at;
    CHECK(c != NULL);
    if (c->line)
        return;
    ring_take(q, at);
    client_end(q, c);
}

/* ---- turns ---- */

/* Those that gave way: the first without a slot once all before it have had their turns, or have
 * none in their homes. */
static enum queue_turn turns_of_returned(struct queue *q, queue_offer *offer, void *ctx)
{
    enum queue_turn turn = QUEUE_DONE;
    bool had = true;
    for (struct sequence **at = &q->returned; *at && turn != QUEUE_STOP;) {
        struct sequence *s = *at;
        turn = had || s->slot >= 0 ? offer(ctx, s) : QUEUE_PASS;
        if (turn == QUEUE_DONE)
            (void)line_remove(q, at, s);
        else if (turn != QUEUE_TAKEN) /* else it is asked again */
            at = &s->next;
        had = had && turn != QUEUE_PASS;
    }
    return turn;
}

/* The head of the line of the client at *at gets a place of its own, before it. */
static struct client **set_apart(struct queue *q, struct client **at)
{
    struct client *c = *at, *alone = client_take(q);
    *alone = (struct client){.apart = true, .line = c->line, .next = c};
    c->line = c->line->next;
    alone->line->next = NULL;
    *at = alone;
    return &alone->next;
}

void queue_turns(struct queue *q, queue_offer *offer, void *ctx)
{
    enum queue_turn turn = turns_of_returned(q, offer, ctx);
    for (struct client **at = &q->ring; *at && turn != QUEUE_STOP;) {
        struct client *c = *at;
        struct sequence *s = c->line;
        turn = offer(ctx, s);
        if (turn == QUEUE_NEXT && s->next)
            at = set_apart(q, at);
        else if (turn == QUEUE_PASS || turn == QUEUE_NEXT)
            at = &c->next;
        if (turn != QUEUE_TAKEN && turn != QUEUE_DONE)
            continue;
        if (turn == QUEUE_DONE)
            (void)line_remove(q, &c->line, s);
        ring_take(q, at);
        if (c->line)
            ring_add(q, c);
        else
            client_end(q, c);
    }
}
