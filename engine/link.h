/* Links: the control plane, one stream socket per rank. The front end writes without blocking and
 * polls over all of them; a rank reads blocking, so an idle server uses no CPU. EOF means death.
 * A rank sends answers and, where it shares no board with the front end, reports before them. */
#ifndef TESSERA_ENGINE_LINK_H
#define TESSERA_ENGINE_LINK_H

#include "engine/board.h"
#include "engine/step.h"

/* ---- front end: all links of a group, driven by one thread at a time ---- */
struct link_set;

/* Takes ownership of fds[0..count). ids_max: most ids an answer carries; columns: of the vectors
 * that it may carry beside them, 0: none. */
enum status link_open(const int *fds, int32_t count, int32_t ids_max, int32_t columns,
                      struct link_set **out, struct err *err) MUST_USE;
void link_close(struct link_set *l);
/* From now on reports of this rank are stored in b; of other ranks a report is malformed. */
void link_hear(struct link_set *l, int32_t rank, struct board_rank *b);

/* What one rank answered. */
struct link_answer {
    struct step_answer head;
    struct step_result result; /* valid until the next link_await */
};

/* Asked about every 50 ms while waiting: ERR_... ends the exchange with that status. */
typedef enum status link_patience(void *ctx, struct err *err);

enum { LINK_POSTS_MAX = 2 };

/* Posts `bytes` for every rank and sends what their sockets take at once; link_await sends the
 * rest. At most LINK_POSTS_MAX messages are posted and not answered, and each stays untouched until
 * it is. ERR_COMM: a link closed. */
enum status link_post(struct link_set *l, const void *message, size_t bytes,
                      struct err *err) MUST_USE;
/* Waits for one answer from each rank, to the oldest message that is posted (or to none, where a
 * rank speaks first); answers[count]. ERR_COMM: a link closed or an answer is malformed. A rank
 * that failed ends the wait with its own status and text: the others may never answer. */
enum status link_await(struct link_set *l, link_patience *patience, void *ctx,
                       struct link_answer *answers, struct err *err) MUST_USE;
/* Both (0 bytes: posts nothing). */
enum status link_exchange(struct link_set *l, const void *message, size_t bytes,
                          link_patience *patience, void *ctx, struct link_answer *answers,
                          struct err *err) MUST_USE;

/* ---- rank: blocking; ERR_CANCELLED: the front end closed the link ---- */

/* Reads one step message into buf. */
enum status link_receive(int fd, void *buf, size_t cap, size_t *n, struct err *err) MUST_USE;
/* True when link_receive would not wait: a message has begun to come, or the link has ended. */
bool link_waits(int fd);
/* Writes an answer with its result as the head counts it, or text (head.text_bytes). */
enum status link_answer(int fd, const struct step_answer *head, const struct step_result *result,
                        const char *text, struct err *err) MUST_USE;
/* Writes what b says now. more: an answer follows at once. */
enum status link_report(int fd, const struct board_rank *b, bool more, struct err *err) MUST_USE;

#endif
