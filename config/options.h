/* Options: one table drives command line, environment, --help and "did you mean".
 * Order of precedence: command line, TESSERA_... environment, default. */
#ifndef TESSERA_CONFIG_OPTIONS_H
#define TESSERA_CONFIG_OPTIONS_H

#include "config/base.h"
#include "config/dtype.h"

enum command {
    COMMAND_SERVE = 1,
    COMMAND_PLAN = 2,
    COMMAND_INSPECT = 4,
    COMMAND_SHARD = 8,
    COMMAND_SYNTH = 16,
    COMMAND_RANK = 32, /* internal: started by serve */
};

/* Every setting, immutable after options_parse. Strings are borrowed from argv or the environment.
 */
struct options {
    enum command command;
    const char *model; /* positional: checkpoint directory */
    int32_t tp;
    int32_t ranks_per_device;
    const char *parallel_mode, *plan_file, *device;
    const char *dtype, *load_format, *sampler, *cpu_bind;
    const char *host;
    int32_t port;
    int32_t threads_per_rank; /* 0: cores / tp, at least 1 */
    int32_t max_model_len;    /* 0: what the model and the KV cache allow */
    int32_t max_num_seqs, max_num_batched_tokens, max_num_queued_reqs;
    int64_t kv_cache_memory; /* bytes per rank, 0: automatic */
    const char *served_model_name;
    double drain_timeout, step_timeout;
    const char *output, *synth_config;
    int64_t seed;
    bool json;
    /* COMMAND_RANK only */
    int32_t rank, parent_pid, kv_blocks;
    int64_t comm_bytes;
    bool on_device; /* weights, KV cache and arenas lie in device memory */
};

/* argv[0] is the command's name; out->command is set even on failure, for the message. ERR_USAGE
 * with the nearest name for an unknown option; *help is set (and the rest is not) when --help was
 * asked. */
enum status options_parse(int argc, char **argv, struct options *out, bool *help,
                          struct err *err) MUST_USE;
/* The command's help text on stdout. */
void options_help(enum command command);
/* dtype option to weight dtype: auto keeps the checkpoint's. */
enum dtype options_dtype(const struct options *o, enum dtype checkpoint);

#endif
