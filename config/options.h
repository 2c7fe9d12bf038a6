/* Options: one table drives command line, environment, configuration file, --help and "did you
 * mean". Order of precedence: command line, TESSERA_... environment, file of --config, default. */
#ifndef TESSERA_CONFIG_OPTIONS_H
#define TESSERA_CONFIG_OPTIONS_H

#include "config/base.h"
#include "config/dtype.h"
#include "config/speculation.h"

enum {
    OPTIONS_RESTARTS_MAX = 64,
    OPTIONS_SEQS_DEFAULT = 64,
    OPTIONS_QUEUED_DEFAULT = 256,
    OPTIONS_QUEUED_VECTORS = 4096 /* a request may be for half as many */
};

enum command {
    COMMAND_SERVE = 1,
    COMMAND_PLAN = 2,
    COMMAND_INSPECT = 4,
    COMMAND_SHARD = 8,
    COMMAND_SYNTH = 16,
    COMMAND_RANK = 32, /* internal: started by serve */
    COMMAND_BENCH = 64,
    COMMAND_HEALTH = 128,
    COMMAND_COMPLETE = 256,
    COMMAND_DOCTOR = 512,
    COMMAND_CHAT = 1024,
    COMMAND_CONVERT = 2048,
    COMMAND_BATCH = 4096,
};

/* Every setting, immutable after options_parse. Strings are borrowed from argv, the environment or
 * the file. */
struct options {
    enum command command;
    const char *model; /* --model, or the word without a dash: checkpoint directory; of bench,
                        * batch, complete and chat a URL too */
    const char *url;   /* COMMAND_HEALTH: the word without a dash */
    const char *config;
    const char *log_format, *log_level;
    int32_t tp;
    int32_t ranks_per_device;
    const char *runner; /* "auto", "generate", "pooling" */
    bool enforce_eager, deterministic, disable_custom_all_reduce;
    const char *parallel_mode, *mesh, *plan_file, *prices, *device;
    int32_t prefill_rows;     /* 0: where the costs of the two forms cross */
    const char *kv_placement; /* NULL: as the plan says */
    const char *dtype, *kv_cache_dtype, *quantization, *load_format, *sampler, *cpu_bind;
    const char *lora; /* NULL: no adapters (weights/lora.h) */
    const char *comm, *master_addr, *group_secret_file;
    int32_t master_port;
    const char *host;
    int32_t port;
    const char *api_key_file, *cors_origins, *allowed_hosts;
    bool insecure_no_auth, metrics_without_key, webui;
    int32_t max_connections;
    struct {
        double header_timeout, body_timeout, send_timeout, idle_timeout; /* seconds */
        int64_t header_bytes, target_bytes, body_bytes, bodies_bytes, unsent_bytes, output_bytes;
        int32_t headers;
    } http;
    int32_t threads_per_rank; /* 0: cores / tp, at least 1 */
    int32_t max_model_len;    /* 0: what the model and the KV cache allow */
    int32_t max_num_seqs, max_num_batched_tokens;
    int32_t max_num_queued_reqs; /* 0: one of the defaults above */
    const char *speculative_config;
    struct speculation speculation; /* what it says */
    int64_t max_num_queued_tokens;
    bool prefix_caching, shared_prefix_cache;
    struct {
        bool prefix_caching, max_num_seqs;
    } said;                                      /* somewhere, be it what is the default */
    int64_t kv_cache_memory, state_cache_memory; /* bytes per rank, 0: automatic */
    const char *served_model_name, *generation_config;
    const char *chat_template; /* file; NULL: the model's */
    bool auto_tool_choice;
    const char *tool_call_parser, *reasoning_parser;
    bool skip_tokenizer_init;
    double drain_timeout, load_timeout, step_timeout;
    int32_t max_group_restarts; /* in five minutes */
    const char *output, *synth_config;
    int64_t seed;
    bool json, print_plan, modes, explain, measure;
    bool pick_layout;       /* --auto */
    struct {                /* COMMAND_COMPLETE, COMMAND_CHAT; as in a request, NULL: left out */
        const char *prompt; /* the second word; NULL: stdin */
        const char *system_prompt;
        const char *max_tokens, *temperature, *top_p, *top_k, *min_p, *presence_penalty;
        const char *frequency_penalty, *repetition_penalty, *seed, *stop;
    } complete;
    struct { /* COMMAND_BENCH, and some of the two above and COMMAND_BATCH */
        int32_t num_prompts, input_len, output_len, vocab;
        int32_t max_concurrency; /* 0: no bound */
        const char *request_rate, *goodput, *prompts, *model, *api_key, *output_json, *plot;
        const char *input_file, *output_file; /* COMMAND_BATCH; "-": stdin, stdout */
        bool ignore_eos, latency, throughput;
        double timeout;
        char **rest; /* what follows --: options of the server */
        int32_t rest_count;
    } bench;
    /* COMMAND_RANK only */
    const char *plan_hash;     /* of the front end's plan, 16 hex digits */
    const char *weights_stamp; /* of the files that it opened, likewise; NULL: any will do */
    int32_t rank, parent_pid, kv_blocks, kv_layers, kv_keep_layers, kept_states;
    const char *cpu_list; /* processors that ranks may be bound to; NULL: all */
    int32_t left_out; /* of packed weights (struct quant_config), as the front end's files say */
    int64_t comm_bytes;
    bool restarted;    /* in the place of ranks that were lost */
    bool weights_kept; /* in the memory file: those of a rank that was lost */
    bool remote;       /* not started by the front end: no memory files are inherited */
    bool on_device;    /* weights, KV cache and arenas lie in device memory */

    struct config_file *file; /* owned */
};

/* argv[0] is the command's name; out->command is set even on failure, for the message. ERR_USAGE
 * with the nearest name for an unknown option or key of the file; *help is set (and the rest is
 * not) when --help was asked. A file may serve several commands: a key that only others know is
 * checked, and has no effect (options_warn_file). options_close afterwards, also on failure. */
enum status options_parse(int argc, char **argv, struct options *out, bool *help,
                          struct err *err) MUST_USE;
void options_close(struct options *o);
/* One warning for each TESSERA_... variable that is no option of any command, with the nearest
 * name, for one that Kubernetes made and that only looks like an option, and, of serve, for one
 * that only other commands have: all are ignored. For main, once. */
void options_warn_environment(enum command command);
/* The name of a command that a word is a slip of; NULL: of none. */
const char *options_nearest_command(const char *word);
/* The same for keys of serve's file that only other commands have. */
void options_warn_file(const struct options *o);
/* The command's help text on stdout. */
void options_help(enum command command);
/* Is --sampler the distributed one? */
bool options_distributed(const struct options *o);
/* What --quantization makes of linears: F8_E4M3, I8, I4, or F32: nothing. */
enum dtype options_quantization(const struct options *o);
/* --quantization none. */
bool options_widen(const struct options *o);
/* --load-format dummy */
bool options_dummy(const struct options *o);
/* Backend of kernels/backend.h that --device and --deterministic name. */
const char *options_backend(const struct options *o);
/* Is --comm mpi in force? */
bool options_mpi(const struct options *o);
/* dtype option to weight dtype: auto keeps the checkpoint's. */
enum dtype options_dtype(const struct options *o, enum dtype checkpoint);
/* The KV cache's. */
enum dtype options_kv_dtype(const struct options *o, enum dtype checkpoint);

#endif
