/* The output threads: token events in, text to clients out. They decide how each choice ends. */
#ifndef TESSERA_SERVER_OUTPUT_H
#define TESSERA_SERVER_OUTPUT_H

#include "server/service.h"

struct job;
struct output;

enum status output_open(struct service *s, struct output **out, struct err *err) MUST_USE;
/* A stream whose headers are sent: where nothing goes out for a while (it waits for its first
 * token, for ranks that start again, for the end of a call) it gets a comment now and then, so that
 * nobody takes the connection for dead. Under the job's lock. */
void output_watch(struct output *o, struct job *j);
/* On the engine thread: copies the events, never waits for more than another copy. `user` of each
 * is a struct choice. */
void output_push(struct output *o, const struct token_event *events, int32_t count);
/* Works off what is queued and joins the threads; nobody pushes any more. NULL is fine. */
void output_close(struct output *o);

#endif
