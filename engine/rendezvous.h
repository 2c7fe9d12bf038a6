/* Rendezvous: how ranks on other machines come to the front end. A launcher starts one process per
 * rank; the process of rank 0 becomes the front end and listens, the others connect. Both sides
 * prove that they know the group's secret before anything else is read; the secret itself is never
 * sent. What follows on the connection is neither encrypted nor signed: the network between ranks
 * must be private, as it must be for the collectives anyway. */
#ifndef TESSERA_ENGINE_RENDEZVOUS_H
#define TESSERA_ENGINE_RENDEZVOUS_H

#include "config/base.h"
#include "engine/comm/comm.h"

/* Who this process is, by what its launcher says. */
struct rendezvous_place {
    const char *launcher; /* "Open MPI", ... */
    int32_t rank, ranks;
};

/* From the environment. ERR_USAGE: no launcher, one that starts no MPI, or it started another
 * number than `ranks`. */
enum status rendezvous_place(int32_t ranks, struct rendezvous_place *out, struct err *err) MUST_USE;

/* Where rank 0 listens. */
struct rendezvous_address {
    char host[256];
    int32_t port;
    const char *said_by; /* "--master-addr", or the variable */
};
/* host NULL, port 0: not given, what the launcher's environment says; else this machine and port
 * 29500. ERR_USAGE: a name or port there that cannot be one. */
enum status rendezvous_address(const char *host, int32_t port, struct rendezvous_address *out,
                               struct err *err) MUST_USE;

/* 128 bits, as 32 hexadecimal digits in a file that only its owner may use. */
struct rendezvous_secret {
    uint64_t key[2];
};
enum status rendezvous_secret(const char *file, struct rendezvous_secret *out,
                              struct err *err) MUST_USE;

/* ---- front end ---- */

/* Listens at an address of this machine. */
enum status rendezvous_listen(const struct rendezvous_address *at, int *out,
                              struct err *err) MUST_USE;
/* Asked about ten times a second while waiting: a failure ends the wait with it. */
typedef enum status rendezvous_patience(void *ctx, struct err *err);
/* Waits up to seconds for ranks 1 .. ranks - 1; links[rank] = a connection each, links[0] is not
 * touched. Who does not know the secret, or comes twice, is turned away. Closes nothing of
 * `listener`; on failure all that had come are closed. patience may be NULL. */
enum status rendezvous_accept(int listener, const struct rendezvous_secret *secret, int32_t ranks,
                              double seconds, rendezvous_patience *patience, void *ctx, int *links,
                              struct err *err) MUST_USE;

/* ---- rank ---- */

/* Connects, for up to seconds until somebody listens. ERR_COMM: turned away, or whoever listens
 * does not know the secret. */
enum status rendezvous_join(const struct rendezvous_address *at,
                            const struct rendezvous_secret *secret, int32_t rank, int32_t ranks,
                            double seconds, int *out, struct err *err) MUST_USE;

/* ---- what the front end tells a rank then: its command line ---- */

/* A model and a plan may have long names. */
enum { RENDEZVOUS_WORDS_MAX = 48, RENDEZVOUS_TEXT_MAX = 4 * 4096 };

/* text: `bytes` of words, each with its NUL. */
enum status rendezvous_tell(int link, const char *text, size_t bytes, struct err *err) MUST_USE;
/* Fills text, and words with pointers into it and NULL; *count of them. ERR_CANCELLED: the front
 * end left before it said anything. */
enum status rendezvous_hear(int link, char text[RENDEZVOUS_TEXT_MAX],
                            char *words[RENDEZVOUS_WORDS_MAX], int *count,
                            struct err *err) MUST_USE;

#endif
