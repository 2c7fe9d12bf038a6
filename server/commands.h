/* The commands of the program; each prints its result. On failure main prints the text of *err. */
#ifndef TESSERA_SERVER_COMMANDS_H
#define TESSERA_SERVER_COMMANDS_H

#include "config/options.h"

enum status commands_serve(const struct options *o, struct err *err) MUST_USE;
enum status commands_plan(const struct options *o, struct err *err) MUST_USE;
enum status commands_inspect(const struct options *o, struct err *err) MUST_USE;
enum status commands_shard(const struct options *o, struct err *err) MUST_USE;
/* A GGUF file as a model directory. */
enum status commands_convert(const struct options *o, struct err *err) MUST_USE;
/* Any failure: the server is not ready, and *err says why. */
enum status commands_health(const struct options *o, struct err *err) MUST_USE;
/* ERR_DEVICE: a check failed. */
enum status commands_doctor(const struct options *o, struct err *err) MUST_USE;
enum status commands_synth(const struct options *o, struct err *err) MUST_USE;
/* ERR_USAGE also for what the server finds wrong with the request, ERR_PEER when it fails. */
enum status commands_complete(const struct options *o, struct err *err) MUST_USE;
enum status commands_chat(const struct options *o, struct err *err) MUST_USE; /* likewise */
/* ERR_PEER also when a request has no answer. */
enum status commands_batch(const struct options *o, struct err *err) MUST_USE;
enum status commands_bench(const struct options *o, struct err *err) MUST_USE;

#endif
