/* Links: the control plane, one stream socket per rank. The front end writes without blocking and
 * polls over all of them; a rank reads blocking, so an idle server uses no CPU. EOF means death. */
#ifndef TESSERA_ENGINE_LINK_H
#define TESSERA_ENGINE_LINK_H

#include "engine/step.h"

/* ---- front end: all links of a group, driven by one thread at a time ---- */
struct link_set;

/* Takes ownership of fds[0..count). ids_max: most ids an answer carries. */
enum status link_open(const int *fds, int32_t count, int32_t ids_max, struct link_set **out,
                      struct err *err) MUST_USE;
void link_close(struct link_set *l);

/* What one rank answered. */
struct link_answer {
    struct step_answer head;
    struct step_result result; /* valid until the next exchange */
    const char *text;          /* of a failed rank, else "" */
};

/* Asked about every 50 ms while waiting: ERR_... ends the exchange with that status. */
typedef enum status link_patience(void *ctx, struct err *err);

/* Sends `bytes` to every rank (0: sends nothing) and waits for one answer from each;
 * answers[count]. ERR_COMM: a link closed or an answer is malformed. */
enum status link_exchange(struct link_set *l, const void *message, size_t bytes,
                          link_patience *patience, void *ctx, struct link_answer *answers,
                          struct err *err) MUST_USE;

/* ---- rank: blocking ---- */

/* Reads one step message into buf. ERR_CANCELLED: the front end closed the link. */
enum status link_receive(int fd, void *buf, size_t cap, size_t *n, struct err *err) MUST_USE;
/* Writes an answer with its result as the head counts it, or text (head.text_bytes). */
enum status link_answer(int fd, const struct step_answer *head, const struct step_result *result,
                        const char *text, struct err *err) MUST_USE;

#endif
