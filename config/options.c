/* DESIGN: an option is a row: name, alias, commands, kind, range, where it goes. getopt_long is not
 * used because `-tp` is a word with one dash, and because a row must also drive the environment
 * (options_environment.c) and the help text (options_help.c). A value that is not understood is an
 * error that names option, value and range. */
#include "config/options_rows.h"

#include "config/config_file.h"
#include "config/jdoc.h"
#include "config/log.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct options, field)
#define RUN (COMMAND_SERVE | COMMAND_PLAN | COMMAND_DOCTOR | COMMAND_RANK)
#define LAYOUT (RUN | COMMAND_INSPECT | COMMAND_SHARD)
#define ASKING (COMMAND_COMPLETE | COMMAND_CHAT)
#define WITH_URL OPTIONS_ROWS_WITH_URL
#define ALL OPTIONS_ROWS_ALL

const struct options_row options_rows[] = {
    {"model", NULL, (LAYOUT & ~COMMAND_RANK) | COMMAND_CONVERT, STRING, AT(model), 0, 0, NULL, NULL,
     "as MODEL; for the environment and --config files"},
    {"config", NULL, ALL & ~(COMMAND_SYNTH | COMMAND_RANK), STRING, AT(config), 0, 0, NULL, NULL,
     "YAML file of options, one \"name: value\" a line"},
    {"log-format", NULL, ALL, CHOICE, AT(log_format), 0, 0, "text", LOG_FORMATS,
     "json: one object a line"},
    {"log-level", NULL, ALL, CHOICE, AT(log_level), 0, 0, "info", LOG_LEVELS,
     "the least important lines shown"},
    {"tensor-parallel-size", "tp", LAYOUT, INT32, AT(tp), 1, 64, "1", NULL,
     "number of ranks that share the model"},
    {"ranks", NULL, COMMAND_PLAN, INT32, AT(tp), 1, 64, NULL, NULL, "-tp by another name"},
    {"parallel-mode", NULL, LAYOUT, CHOICE, AT(parallel_mode), 0, 0, NULL,
     "1d|1d_sp|2d|2.5d|3d|3d_gathered", "tensor-parallel layout; without it 1d"},
    {"mesh", NULL, LAYOUT, STRING, AT(mesh), 0, 0, NULL, NULL,
     "sizes of the layout's axes; for 3d w,a,b (copies of the weights, parts of outputs and of "
     "inputs), as 1,4,2"},
    {"auto", NULL, COMMAND_SERVE | COMMAND_PLAN, FLAG, AT(pick_layout), 0, 0, NULL, NULL,
     "pick layout and mesh with the least modelled time, and the rows from which its steps change "
     "form; measures this machine, or takes --prices"},
    {"prices", NULL, COMMAND_SERVE | COMMAND_PLAN, STRING, AT(prices), 0, 0, NULL, NULL,
     "file of what collectives and linears cost, instead of measuring: the member prices of plan "
     "--measure --json"},
    {"prefill-rows", NULL, RUN, INT32, AT(prefill_rows), 0, 1 << 20, "0", NULL,
     "steps of so many rows take the layout's form of many rows; 0: where bytes, or with prices "
     "modelled times, become less"},
    {"kv-placement", NULL, LAYOUT, CHOICE, AT(kv_placement), 0, 0, NULL, "heads|home",
     "heads: every rank keeps the KV cache of all sequences for its heads; home: of its share of "
     "them, for more heads (2d, 2.5d, 3d); without it as the plan says"},
    {"plan", NULL, LAYOUT, STRING, AT(plan_file), 0, 0, NULL, NULL,
     "plan file instead of the layout's built-in one"},
    {"device", NULL, RUN, CHOICE, AT(device), 0, 0, "cpu",
     "cpu|cpu-generic|cpu-avx2|cpu-avx512|cpu-vnni|cpu-bf16|cpu-neon|cpu-dotprod|cuda|ref",
     "cpu picks the best variant for this machine; cuda: one GPU per rank"},
    {"runner", NULL, LAYOUT, CHOICE, AT(runner), 0, 0, "auto", "auto|generate|pooling",
     "generate: texts; pooling: a vector of each text, for /v1/embeddings; auto: as the model was "
     "published"},
    {"ranks-per-device", NULL, RUN, INT32, AT(ranks_per_device), 1, 64, "1", NULL,
     "GPU only: ranks that share each; slow, to test several ranks on one"},
    {"enforce-eager", NULL, RUN, FLAG, AT(enforce_eager), 0, 0, NULL, NULL,
     "GPU only: no CUDA graphs, every step launches its kernels one by one"},
    {"disable-custom-all-reduce", NULL, RUN, FLAG, AT(disable_custom_all_reduce), 0, 0, NULL, NULL,
     "GPU only: every sum goes through NCCL, also where our own kernel was found to be faster"},
    {"deterministic", NULL, RUN, FLAG, AT(deterministic), 0, 0, NULL, NULL,
     "an answer depends on no other request, nor, in the layouts 1d and 1d_sp, on having 1, 2, 4 "
     "or 8 ranks; CPU ranks always keep to that, GPUs become slower by it"},
    {"dtype", NULL, RUN, CHOICE, AT(dtype), 0, 0, "auto", "auto|float32|bfloat16|float16",
     "type weights and KV cache are held in; auto: the checkpoint's"},
    {"dtype", NULL, COMMAND_CONVERT, CHOICE, AT(dtype), 0, 0, "auto",
     "auto|float32|bfloat16|float16",
     "type of what is written; auto: the file's, bfloat16 where it holds codes"},
    {"kv-cache-dtype", NULL, RUN, CHOICE, AT(kv_cache_dtype), 0, 0, "auto", "auto|fp8",
     "fp8: keys and values are stored as E4M3, so that the cache holds more; auto: as --dtype"},
    {"quantization", NULL, RUN, CHOICE, AT(quantization), 0, 0, "auto", "auto|none|fp8|int8|int4",
     "fp8: the layers' linears become E4M3 with a scale per row; int8, int4: integers with a scale "
     "per 32 columns, on the CPU times activations rounded to int8; auto: as the checkpoint has "
     "them; none: the same, but integers and MXFP4 as values of --dtype"},
    {"lora", NULL, RUN | COMMAND_SHARD, STRING, AT(lora), 0, 0, NULL, NULL,
     "LoRA adapters in PEFT's form, added to the weights as they are read: DIR or DIR:SCALE, "
     "several with commas between"},
    {"load-format", NULL, RUN, CHOICE, AT(load_format), 0, 0, "auto", "auto|dummy",
     "dummy: hashed values, no weight file is read"},
    {"seed", NULL, COMMAND_SYNTH | COMMAND_SERVE | COMMAND_RANK, INT64, AT(seed), 0, 0x1p62, "0",
     NULL, "seed of synthetic weights"},
    {"sampler", NULL, RUN, CHOICE, AT(sampler), 0, 0, "gather", "gather|distributed",
     "gather: all logits on every rank; distributed: candidates only, the same tokens"},
    {"comm", NULL, COMMAND_SERVE | COMMAND_DOCTOR | COMMAND_RANK, CHOICE, AT(comm), 0, 0, "shm",
     "shm|mpi", "mpi: ranks on several machines, as many processes as ranks started by mpirun"},
    {"master-addr", NULL, COMMAND_SERVE, STRING, AT(master_addr), 0, 0, NULL, NULL,
     "--comm mpi: where rank 0 listens for the others; default: as its launcher says, or here"},
    {"master-port", NULL, COMMAND_SERVE, INT32, AT(master_port), 0, 65535, "0", NULL,
     "--comm mpi: the port there; 0: MASTER_PORT of the environment, or 29500"},
    {"group-secret-file", NULL, COMMAND_SERVE, STRING, AT(group_secret_file), 0, 0, NULL, NULL,
     "--comm mpi: 32 hexadecimal digits, the same on every machine; mode 0600"},
    {"host", NULL, COMMAND_SERVE | COMMAND_HEALTH, STRING, AT(host), 0, 0, "127.0.0.1", NULL,
     "address to listen on"},
    {"port", NULL, COMMAND_SERVE | COMMAND_HEALTH, INT32, AT(port), 0, 65535, "8000", NULL,
     "0: any free port"},
    {"api-key-file", NULL, COMMAND_SERVE, STRING, AT(api_key_file), 0, 0, NULL, NULL,
     "keys of clients, one a line; mode 0600; read again on SIGHUP"},
    {"insecure-no-auth", NULL, COMMAND_SERVE, FLAG, AT(insecure_no_auth), 0, 0, NULL, NULL,
     "let anyone who can reach the server use it"},
    {"metrics-without-key", NULL, COMMAND_SERVE, FLAG, AT(metrics_without_key), 0, 0, NULL, NULL,
     "/metrics needs no key"},
    {"cors-origins", NULL, COMMAND_SERVE, STRING, AT(cors_origins), 0, 0, NULL, NULL,
     "origins whose pages may read answers, separated by commas; *: all"},
    {"allowed-hosts", NULL, COMMAND_SERVE, STRING, AT(allowed_hosts), 0, 0, NULL, NULL,
     "names that requests may be for, *.NAME all below one, *: any; absent, on loopback without "
     "keys local names alone, else any; addresses always"},
    {"webui", NULL, COMMAND_SERVE, FLAG, AT(webui), 0, 0, "1", NULL,
     "browsers get a chat page at /, without a key; --no-webui turns it off"},
    {"max-connections", NULL, COMMAND_SERVE | COMMAND_DOCTOR, INT32, AT(max_connections), 1,
     1000000, "16384", NULL,
     "open at once; when nine tenths are, idle and slow ones are closed ten times sooner"},
    {"http-header-timeout", NULL, COMMAND_SERVE, NUMBER, AT(http.header_timeout), 1, 3600, "10",
     NULL, "seconds from the first to the last byte of a request's head"},
    {"http-body-timeout", NULL, COMMAND_SERVE, NUMBER, AT(http.body_timeout), 1, 3600, "30", NULL,
     "seconds for a request's body"},
    {"http-send-timeout", NULL, COMMAND_SERVE, NUMBER, AT(http.send_timeout), 1, 3600, "30", NULL,
     "seconds without progress before the reader of a stream is dropped"},
    {"http-idle-timeout", NULL, COMMAND_SERVE, NUMBER, AT(http.idle_timeout), 1, 3600, "75", NULL,
     "seconds a connection may stay open without a request"},
    {"http-max-header-bytes", NULL, COMMAND_SERVE, BYTES, AT(http.header_bytes), 1024, 16384,
     "16384", NULL, "most bytes of a request's head"},
    {"http-max-headers", NULL, COMMAND_SERVE, INT32, AT(http.headers), 1, 1000, "100", NULL,
     "most header fields of a request"},
    {"http-max-target-bytes", NULL, COMMAND_SERVE, BYTES, AT(http.target_bytes), 64, 8192, "4096",
     NULL, "most bytes of a request's path and query"},
    {"http-max-body-bytes", NULL, COMMAND_SERVE, BYTES, AT(http.body_bytes), 1024,
     JDOC_REQUEST_BYTES_MAX, "4M", NULL, "most bytes of a request's body, 4M or fewer"},
    {"http-max-bodies-bytes", NULL, COMMAND_SERVE, BYTES, AT(http.bodies_bytes), 1024, 0x1p40,
     "256M", NULL, "most bytes of all bodies at once; more get 503"},
    {"http-max-unsent-bytes", NULL, COMMAND_SERVE, BYTES, AT(http.unsent_bytes), 4096, 1 << 30,
     "1M", NULL, "most bytes a stream's reader may be behind before it is dropped"},
    {"http-max-output-bytes", NULL, COMMAND_SERVE, BYTES, AT(http.output_bytes), 4096, 0x1p40, "1G",
     NULL,
     "most bytes of all waiting answers and pieces of streams larger than http-max-unsent-bytes; "
     "one always fits, others get 503 or an error event"},
    {"threads-per-rank", NULL, RUN, INT32, AT(threads_per_rank), 0, 1024, "0", NULL,
     "0: cores divided by ranks"},
    {"cpu-bind", NULL, COMMAND_SERVE | COMMAND_RANK, CHOICE, AT(cpu_bind), 0, 0, "auto",
     "auto|none", "auto: each rank keeps to its own cores when other servers leave enough"},
    {"max-model-len", NULL, RUN, INT32, AT(max_model_len), 0, 1 << 24, "0", NULL,
     "prompt and answer together; 0: what model and KV cache allow"},
    {"max-num-seqs", NULL, RUN, INT32, AT(max_num_seqs), 1, 1024, "64", NULL,
     "sequences running at once"},
    {"max-num-batched-tokens", NULL, RUN, INT32, AT(max_num_batched_tokens), 1, 16384, "512", NULL,
     "rows of one step: decodes and prompt tokens together"},
    {"speculative-config", NULL, RUN, STRING, AT(speculative_config), 0, 0, "none", NULL,
     "ngram: guess tokens from what the text has said before, and check several in one step; the "
     "same tokens, sooner; or JSON: {\"method\": \"ngram\", \"num_speculative_tokens\": 7, "
     "\"prompt_lookup_min\": 2, \"prompt_lookup_max\": 8}"},
    {"max-num-queued-reqs", NULL, COMMAND_SERVE, INT32, AT(max_num_queued_reqs), 1, 65536, NULL,
     NULL,
     "requests that wait, beside those that may run, before new ones get 429; default: 256, for "
     "vectors 4096"},
    {"max-num-queued-tokens", NULL, COMMAND_SERVE, INT64, AT(max_num_queued_tokens), 1, 0x1p40,
     "1048576", NULL, "prompt tokens waiting before new requests get 429"},
    {"enable-prefix-caching", NULL, RUN, FLAG, AT(prefix_caching), 0, 0, "1", NULL,
     "reuse the KV cache of prompts that begin alike; --no-enable-prefix-caching turns it off"},
    {"shared-prefix-cache", NULL, COMMAND_SERVE, FLAG, AT(shared_prefix_cache), 0, 0, NULL, NULL,
     "also those of other keys: who has one can find out by the time what others have asked"},
    {"kv-cache-memory", NULL, RUN, BYTES, AT(kv_cache_memory), 0, 0x1p50, "0", NULL,
     "KV cache bytes per rank (K, M, G suffixes); 0: automatic, a sixteenth of the rank's share of "
     "free memory at most; on a GPU most of what the weights leave"},
    {"state-cache-memory", NULL, RUN, BYTES, AT(state_cache_memory), 0, 0x1p50, "0", NULL,
     "of models with layers that recur: bytes per rank for states that the prefix cache keeps "
     "(K, M, G suffixes); 0: automatic, up to four of each sequence in a quarter of what weights, "
     "sequences and a given KV cache leave, without a GPU in a sixteenth of memory at most"},
    {"served-model-name", NULL, COMMAND_SERVE, STRING, AT(served_model_name), 0, 0, NULL, NULL,
     "name in the API, or several with commas between; default: the directory's"},
    {"generation-config", NULL, COMMAND_SERVE, CHOICE, AT(generation_config), 0, 0, "auto",
     "auto|none", "sampling defaults: the model's generation_config.json, or OpenAI's"},
    {"chat-template", NULL, COMMAND_SERVE, STRING, AT(chat_template), 0, 0, NULL, NULL,
     "file with the chat template, instead of the model's"},
    {"enable-auto-tool-choice", NULL, COMMAND_SERVE, FLAG, AT(auto_tool_choice), 0, 0, "1", NULL,
     "tools may be called; --no-enable-auto-tool-choice refuses them"},
    {"tool-call-parser", NULL, COMMAND_SERVE, CHOICE, AT(tool_call_parser), 0, 0, "auto",
     "auto|none|hermes|llama3_json|mistral|openai|glm45|qwen3_coder|minimax_m2|deepseek_v3|"
     "deepseek_v31|gemma4",
     "how the model writes calls of tools; auto: as its chat template shows them"},
    {"reasoning-parser", NULL, COMMAND_SERVE, CHOICE, AT(reasoning_parser), 0, 0, "auto",
     "auto|none|think|qwen3|deepseek_r1|glm45|mistral|gemma4|openai_gptoss",
     "think, or a model that does: what a chat's answer has between <think> and </think> is its "
     "reasoning; mistral: between [THINK] and [/THINK]; gemma4: between <|channel>thought and "
     "<channel|>; openai_gptoss: what it says in the analysis channel; auto: as the chat template "
     "has it"},
    {"skip-tokenizer-init", NULL, COMMAND_SERVE, FLAG, AT(skip_tokenizer_init), 0, 0, NULL, NULL,
     "read no tokenizer: prompts are token ids, and answers have no text"},
    {"drain-timeout", NULL, COMMAND_SERVE, NUMBER, AT(drain_timeout), 0, 3600, "30", NULL,
     "seconds running requests may go on after SIGTERM"},
    {"load-timeout", NULL, COMMAND_SERVE, NUMBER, AT(load_timeout), 1, 86400, "300", NULL,
     "seconds without a byte of weights before a rank that loads counts as lost"},
    {"step-timeout", NULL, COMMAND_SERVE, NUMBER, AT(step_timeout), 1, 3600, "30", NULL,
     "seconds without progress of any layer before the ranks count as hung"},
    {"max-group-restarts", NULL, COMMAND_SERVE, INT32, AT(max_group_restarts), 0,
     OPTIONS_RESTARTS_MAX, "3", NULL,
     "how often in five minutes lost ranks are started again, while requests wait"},
    {"output", "o", COMMAND_SHARD | COMMAND_SYNTH | COMMAND_CONVERT, STRING, AT(output), 0, 0, NULL,
     NULL, "directory to write; must not exist or be empty"},
    {"config", NULL, COMMAND_SYNTH, STRING, AT(synth_config), 0, 0, NULL, NULL,
     "config.json of the model to make"},
    {"max-tokens", NULL, COMMAND_COMPLETE, STRING, AT(complete.max_tokens), 0, 0, "256", NULL,
     "most tokens of the answer"},
    {"max-tokens", NULL, COMMAND_CHAT, STRING, AT(complete.max_tokens), 0, 0, NULL, NULL,
     "most tokens of an answer; default: what the context has room for"},
    {"system-prompt", NULL, COMMAND_CHAT, STRING, AT(complete.system_prompt), 0, 0, NULL, NULL,
     "what the model is told before the conversation"},
    {"temperature", NULL, ASKING, STRING, AT(complete.temperature), 0, 0, NULL, NULL,
     "0: always the likeliest token; without it and those below: the model's own"},
    {"top-p", NULL, ASKING, STRING, AT(complete.top_p), 0, 0, NULL, NULL,
     "share of the probability that is drawn from"},
    {"top-k", NULL, ASKING, STRING, AT(complete.top_k), 0, 0, NULL, NULL,
     "number of tokens that are drawn from; 0: all"},
    {"min-p", NULL, ASKING, STRING, AT(complete.min_p), 0, 0, NULL, NULL,
     "least probability, as a share of the likeliest token's"},
    {"presence-penalty", NULL, ASKING, STRING, AT(complete.presence_penalty), 0, 0, NULL, NULL,
     "taken once from the logit of each token that was produced"},
    {"frequency-penalty", NULL, ASKING, STRING, AT(complete.frequency_penalty), 0, 0, NULL, NULL,
     "... and for each time that it was"},
    {"repetition-penalty", NULL, ASKING, STRING, AT(complete.repetition_penalty), 0, 0, NULL, NULL,
     "factor for tokens of prompt and answer"},
    {"seed", NULL, ASKING, STRING, AT(complete.seed), 0, 0, NULL, NULL,
     "number that fixes what is drawn: the same answer each time"},
    {"stop", NULL, ASKING, STRING, AT(complete.stop), 0, 0, NULL, NULL,
     "text that ends the answer"},
    {"seed", NULL, COMMAND_BENCH, INT64, AT(seed), 0, 0x1p62, "0", NULL,
     "fixes prompts and arrival times"},
    {"num-prompts", NULL, COMMAND_BENCH, INT32, AT(bench.num_prompts), 1, 1 << 20, "100", NULL,
     "requests of a round"},
    {"request-rate", "rates", COMMAND_BENCH, STRING, AT(bench.request_rate), 0, 0, NULL, NULL,
     "Poisson arrivals per second, or inf; R,R,... is a round each"},
    {"max-concurrency", NULL, COMMAND_BENCH, INT32, AT(bench.max_concurrency), 1, 65536, NULL, NULL,
     "most requests at once; without a rate a closed loop"},
    {"random-input-len", NULL, COMMAND_BENCH, INT32, AT(bench.input_len), 1, 1 << 20, "128", NULL,
     "tokens of a random prompt"},
    {"random-output-len", NULL, COMMAND_BENCH, INT32, AT(bench.output_len), 1, 1 << 20, "64", NULL,
     "most tokens of an answer"},
    {"random-vocab", NULL, COMMAND_BENCH, INT32, AT(bench.vocab), 4, 0x7fffffff, "1000", NULL,
     "random token ids are below it"},
    {"ignore-eos", NULL, WITH_URL & ~COMMAND_BATCH, FLAG, AT(bench.ignore_eos), 0, 0, NULL, NULL,
     "answers go on past the end token, to their full length"},
    {"prompts", NULL, COMMAND_BENCH, STRING, AT(bench.prompts), 0, 0, NULL, NULL,
     "JSON lines {\"prompt\": text or ids, \"max_tokens\": N}"},
    {"goodput", NULL, COMMAND_BENCH, STRING, AT(bench.goodput), 0, 0, NULL, NULL,
     "most milliseconds of a good request, as ttft:500,tpot:50,e2e:10000"},
    {"input-file", "i", COMMAND_BATCH, STRING, AT(bench.input_file), 0, 0, NULL, NULL,
     "requests, a JSON object a line; -: stdin"},
    {"output-file", "o", COMMAND_BATCH, STRING, AT(bench.output_file), 0, 0, NULL, NULL,
     "answers, likewise; one that has some already is gone on with; -: stdout"},
    {"max-concurrency", NULL, COMMAND_BATCH, INT32, AT(bench.max_concurrency), 1, 1024, "64", NULL,
     "most requests at once"},
    {"model", NULL, COMMAND_BATCH, STRING, AT(bench.model), 0, 0, NULL, NULL,
     "name for bodies that have none; default: the first one the server lists"},
    {"model", NULL, WITH_URL & ~COMMAND_BATCH, STRING, AT(bench.model), 0, 0, NULL, NULL,
     "name in the requests; default: the first one the server lists"},
    {"api-key", NULL, WITH_URL, STRING, AT(bench.api_key), 0, 0, NULL, NULL,
     "bearer token; TESSERA_API_KEY keeps it off the command line"},
    {"timeout", NULL, WITH_URL, NUMBER, AT(bench.timeout), 1, 86400, "600", NULL,
     "seconds a request may take"},
    {"output-json", NULL, COMMAND_BENCH, STRING, AT(bench.output_json), 0, 0, NULL, NULL,
     "file for all figures"},
    {"plot", NULL, COMMAND_BENCH, STRING, AT(bench.plot), 0, 0, NULL, NULL,
     "SVG file of latency against load"},
    {"latency", NULL, COMMAND_BENCH, FLAG, AT(bench.latency), 0, 0, NULL, NULL,
     "without HTTP: one request alone, tokens/s of prompt and answer"},
    {"throughput", NULL, COMMAND_BENCH, FLAG, AT(bench.throughput), 0, 0, NULL, NULL,
     "without HTTP: all requests at once, tokens/s"},
    {"print-plan", NULL, COMMAND_PLAN, FLAG, AT(print_plan), 0, 0, NULL, NULL,
     "print the plan file in use, to be changed and given as --plan"},
    {"modes", NULL, COMMAND_PLAN, FLAG, AT(modes), 0, 0, NULL, NULL,
     "compare all layouts and meshes of so many ranks"},
    {"measure", NULL, COMMAND_PLAN, FLAG, AT(measure), 0, 0, NULL, NULL,
     "measure what collectives and linears cost here; with --modes also modelled times"},
    {"explain", NULL, COMMAND_PLAN, FLAG, AT(explain), 0, 0, NULL, NULL,
     "what is moved at each point, and the formulas"},
    {"json", NULL, COMMAND_PLAN | COMMAND_INSPECT | COMMAND_DOCTOR, FLAG, AT(json), 0, 0, NULL,
     NULL, "machine-readable output"},
    {"rank", NULL, COMMAND_RANK, INT32, AT(rank), 0, 63, "0", NULL, "internal"},
    {"parent-pid", NULL, COMMAND_RANK, INT32, AT(parent_pid), 0, 0x7fffffff, "0", NULL, "internal"},
    {"plan-hash", NULL, COMMAND_RANK, STRING, AT(plan_hash), 0, 0, NULL, NULL, "internal"},
    {"weights-stamp", NULL, COMMAND_RANK, STRING, AT(weights_stamp), 0, 0, NULL, NULL, "internal"},
    {"kv-blocks", NULL, COMMAND_RANK, INT32, AT(kv_blocks), 0, 0x7fffffff, "0", NULL, "internal"},
    {"kept-states", NULL, COMMAND_RANK, INT32, AT(kept_states), 0, 0x7fffffff, "0", NULL,
     "internal"},
    {"kv-layers", NULL, COMMAND_RANK, INT32, AT(kv_layers), 0, 0x7fffffff, "0", NULL, "internal"},
    {"kv-keep-layers", NULL, COMMAND_RANK, INT32, AT(kv_keep_layers), 0, 0x7fffffff, "0", NULL,
     "internal"},
    {"cpu-list", NULL, COMMAND_RANK, STRING, AT(cpu_list), 0, 0, NULL, NULL, "internal"},
    {"left-out", NULL, COMMAND_RANK, INT32, AT(left_out), 0, 0x7fffffff, "0", NULL, "internal"},
    {"remote", NULL, COMMAND_RANK, FLAG, AT(remote), 0, 0, NULL, NULL, "internal"},
    {"restarted", NULL, COMMAND_RANK, FLAG, AT(restarted), 0, 0, NULL, NULL, "internal"},
    {"weights-kept", NULL, COMMAND_RANK, FLAG, AT(weights_kept), 0, 0, NULL, NULL, "internal"},
    {"on-device", NULL, COMMAND_RANK, FLAG, AT(on_device), 0, 0, NULL, NULL, "internal"},
    {"comm-bytes", NULL, COMMAND_RANK, INT64, AT(comm_bytes), 0, 0x1p50, "0", NULL, "internal"},
};
const size_t options_rows_count = ARRAY_LEN(options_rows);

static enum status bad_value(const struct options_row *r, const char *value, const char *wanted,
                             struct err *err)
{
    return base_fail(err, ERR_USAGE, "--%s: got \"%.80s\", expected %s", r->name, value, wanted);
}

/* Number with an optional K, M, G, T (powers of 1024) or B suffix for BYTES. */
static enum status parse_number(const struct options_row *r, const char *value, double *out,
                                struct err *err)
{
    char wanted[96], least[32], most[32];
    if (r->kind == BYTES)
        snprintf(wanted, sizeof wanted, "bytes from %s to %s, as 512M or 4G",
                 base_human_bytes(least, sizeof least, (uint64_t)r->min),
                 base_human_bytes(most, sizeof most, (uint64_t)r->max));
    else
        snprintf(wanted, sizeof wanted, "a%s number from %.0f to %.0f",
                 r->kind == NUMBER ? "" : " whole", r->min, r->max);
    char *end;
    errno = 0;
    double v = strtod(value, &end);
    bool decimal = end != value && strspn(value, "+-.0123456789eE") >= (size_t)(end - value);
    if (r->kind == BYTES && *end) {
        static const char suffixes[] = "KMGT";
        const char *s = strchr(suffixes, toupper((unsigned char)*end));
        if (s) {
            v *= ldexp(1, 10 * (int)(s - suffixes + 1));
            end += end[1] == 'i' ? 2 : 1;
        }
        if (*end == 'B' || *end == 'b')
            end++;
    }
    bool whole = r->kind == NUMBER || v == floor(v);
    if (!decimal || *end || errno || !whole || !(v >= r->min && v <= r->max))
        return bad_value(r, value, wanted, err);
    *out = v;
    return OK;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    if (n == 0 || strchr(value, '|'))
        return false;
    for (const char *c = choices; c; c = strchr(c, '|')) {
        if (*c == '|')
            c++;
        if (strncmp(c, value, n) == 0 && (c[n] == '|' || c[n] == '\0'))
            return true;
    }
    return false;
}

/* What vLLM calls some values, and our word for each; NULL: such files say it themselves. */
static const struct {
    const char *option, *value, *ours;
} spellings[] = {
    {"dtype", "half", "float16"},          {"dtype", "float", "float32"},
    {"kv-cache-dtype", "fp8_e4m3", "fp8"}, {"max-model-len", "auto", "0"},
    {"max-model-len", "-1", "0"},          {"quantization", "awq", NULL},
    {"quantization", "awq_marlin", NULL},  {"quantization", "gptq", NULL},
    {"quantization", "gptq_marlin", NULL}, {"quantization", "compressed-tensors", NULL},
    {"quantization", "mxfp4", NULL},
};

static enum status translate(const struct options_row *r, const char **value, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(spellings); i++) {
        if (strcmp(spellings[i].option, r->name) != 0 || strcmp(spellings[i].value, *value) != 0)
            continue;
        if (!spellings[i].ours)
            return base_fail(err, ERR_USAGE,
                             "--%s %s: leave it out: files of that kind are read as they are",
                             r->name, *value);
        *value = spellings[i].ours;
        break;
    }
    return OK;
}

static enum status set_value(const struct options_row *r, const char *value, struct options *o,
                             struct err *err)
{
    void *at = (char *)o + r->offset;
    double v = 0;
    enum status st = translate(r, &value, err);
    if (st != OK)
        return st;
    if (r->kind == FLAG) {
        bool yes = strcmp(value, "1") == 0 || strcmp(value, "true") == 0;
        if (!yes && strcmp(value, "0") != 0 && strcmp(value, "false") != 0)
            return bad_value(r, value, "true or false", err);
        *(bool *)at = yes;
        return OK;
    }
    if (r->kind == STRING || r->kind == CHOICE) {
        if (r->kind == CHOICE && !is_choice(r->choices, value))
            return bad_value(r, value, r->choices, err);
        if (!*value)
            return bad_value(r, value, "a value", err);
        *(const char **)at = value;
        return OK;
    }
    st = parse_number(r, value, &v, err);
    if (st != OK)
        return st;
    if (r->kind == INT32)
        *(int32_t *)at = (int32_t)v;
    else if (r->kind == NUMBER)
        *(double *)at = v;
    else if (r->kind == INT64 && value[strspn(value, "0123456789")] == '\0')
        *(int64_t *)at = strtoll(value, NULL, 10); /* exact beyond 2^53 */
    else
        *(int64_t *)at = (int64_t)v;
    return OK;
}

enum status options_rows_set(const struct options_row *r, const char *value, struct options *o,
                             struct err *err)
{
    o->said.prefix_caching = o->said.prefix_caching || r->offset == AT(prefix_caching);
    o->said.max_num_seqs = o->said.max_num_seqs || r->offset == AT(max_num_seqs);
    return set_value(r, value, o, err);
}

/* Is it this name, whose dashes may be written as underscores? */
static bool is_name(const char *name, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (name[i] != (word[i] == '_' ? '-' : word[i]))
            return false;
    return name[n] == '\0';
}

/* "--name", "--name=value", "--no-flag", "-alias" or "-tp" (a word). Points *inline_value behind
 * '='. */
static const struct options_row *find_argument(enum command command, const char *arg,
                                               const char **inline_value)
{
    const char *word = arg + (arg[1] == '-' ? 2 : 1);
    const char *eq = strchr(word, '=');
    size_t n = eq ? (size_t)(eq - word) : strlen(word);
    *inline_value = eq ? eq + 1 : NULL;
    for (size_t i = 0; i < options_rows_count; i++) {
        const struct options_row *r = &options_rows[i];
        bool named = is_name(r->name, word, n);
        bool aliased = r->alias && is_name(r->alias, word, n);
        bool negated = r->kind == FLAG && !eq && n > 3 && strncmp(word, "no", 2) == 0 &&
                       strchr("-_", word[2]) && is_name(r->name, word + 3, n - 3);
        if (!(r->commands & (int)command) || !(named || aliased || negated))
            continue;
        if (negated)
            *inline_value = "0";
        return r;
    }
    return NULL;
}

const struct options_row *options_rows_find(enum command command, const char *name)
{
    const struct options_row *found = NULL;
    for (size_t i = 0; i < options_rows_count; i++) {
        const struct options_row *r = &options_rows[i];
        if (strcmp(r->name, name) == 0 && r->commands != COMMAND_RANK &&
            (!found || (r->commands & (int)command)))
            found = r;
    }
    return found;
}

static enum status from_arguments(int argc, char **argv, struct options *o, bool *help,
                                  struct err *err)
{
    const char *word = NULL;
    bool adapters = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = NULL;
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            *help = true;
            return OK;
        }
        if (strcmp(arg, "--") == 0 && (o->command & WITH_URL)) {
            o->bench.rest = argv + i + 1;
            o->bench.rest_count = argc - i - 1;
            break;
        }
        if (arg[0] != '-' || arg[1] == '\0') {
            if (word && (!(o->command & ASKING) || o->complete.prompt))
                return base_fail(err, ERR_USAGE, "expected one %s, got \"%.80s\" too",
                                 o->command == COMMAND_HEALTH     ? "URL"
                                 : o->command == COMMAND_COMPLETE ? "prompt"
                                 : o->command == COMMAND_CHAT     ? "message"
                                 : o->command == COMMAND_CONVERT  ? "GGUF file"
                                                                  : "model directory",
                                 arg);
            *(word ? &o->complete.prompt : &word) = arg;
            continue;
        }
        const struct options_row *r = find_argument(o->command, arg, &value);
        if (!r)
            return options_unknown_argument(o->command, arg, err);
        if (r->kind == FLAG && !value)
            value = "1";
        if (!value && i + 1 == argc)
            return base_fail(err, ERR_USAGE, "--%s needs a value", r->name);
        if (r->offset == AT(lora) && adapters) /* the last would count, as ever: not meant */
            return base_fail(err, ERR_USAGE,
                             "--lora is there twice; several adapters have commas "
                             "between");
        adapters = adapters || r->offset == AT(lora);
        enum status st = options_rows_set(r, value ? value : argv[++i], o, err);
        if (st != OK)
            return st;
    }
    if (word)
        *(o->command == COMMAND_HEALTH ? &o->url : &o->model) = word;
    return OK;
}

static enum status from_file(struct options *o, struct err *err)
{
    const char *path = o->config;
    for (int32_t i = 0; i < o->file->count; i++) {
        const struct config_entry *e = &o->file->entries[i];
        const struct options_row *r = options_rows_find(o->command, e->key);
        struct options elsewhere = {0};
        struct err why;
        if (!r)
            return options_unknown_key(o->command, path, e, err);
        if (r->offset == AT(config))
            return base_fail(err, ERR_USAGE, "%s:%d: a file cannot name another", path, e->line);
        if (options_rows_set(r, e->value, r->commands & (int)o->command ? o : &elsewhere, &why) !=
            OK)
            return base_fail(err, ERR_USAGE, "%s:%d: %.400s", path, e->line, why.text);
    }
    return OK;
}

/* Also of options that the command does not have, unless it has another one of that name. */
static enum status from_defaults(struct options *o, struct err *err)
{
    for (size_t i = 0; i < options_rows_count; i++) {
        const struct options_row *r = &options_rows[i];
        const struct options_row *own = options_rows_find(o->command, r->name);
        if (!r->fallback || (own && own != r && (own->commands & (int)o->command)))
            continue;
        enum status st = options_rows_set(r, r->fallback, o, err);
        if (st != OK)
            return st;
    }
    memset(&o->said, 0, sizeof o->said);
    return OK;
}

static enum status check_layout(const char *name, const struct options *o, struct err *err)
{
    if (o->pick_layout && (o->parallel_mode || o->mesh || o->plan_file))
        return base_fail(err, ERR_USAGE,
                         "--auto picks the layout, and %s names one; leave out either",
                         o->parallel_mode ? "--parallel-mode"
                         : o->mesh        ? "--mesh"
                                          : "--plan");
    if (o->plan_file && o->parallel_mode && o->command != COMMAND_RANK)
        return base_fail(err, ERR_USAGE,
                         "tessera %s: --plan says what the layout is, and --parallel-mode, too; "
                         "leave out either",
                         name);
    if (o->state_cache_memory > 0 && !o->prefix_caching && o->command != COMMAND_RANK)
        return base_fail(err, ERR_USAGE,
                         "--state-cache-memory is of the prefix cache that "
                         "--no-enable-prefix-caching takes away: leave out either");
    return OK;
}

/* What would have no effect is refused: its user expects one. */
static enum status check_serve(const struct options *o, struct err *err)
{
    const char *mpi_only = o->master_addr         ? "master-addr"
                           : o->master_port != 0  ? "master-port"
                           : o->group_secret_file ? "group-secret-file"
                                                  : NULL;
    if (mpi_only && !options_mpi(o))
        return base_fail(err, ERR_USAGE,
                         "--%s is for ranks on several machines: add --comm mpi, or leave it out",
                         mpi_only);
    if (o->seed != 0 && strcmp(o->load_format, "dummy") != 0)
        return base_fail(err, ERR_USAGE,
                         "--seed is for --load-format dummy; what tokens are drawn depends on the "
                         "field seed of each request");
    if (o->http.bodies_bytes < o->http.body_bytes)
        return base_fail(err, ERR_USAGE,
                         "--http-max-bodies-bytes %lld is less than one request may have: "
                         "--http-max-body-bytes %lld",
                         (long long)o->http.bodies_bytes, (long long)o->http.body_bytes);
    if (o->shared_prefix_cache && !o->prefix_caching)
        return base_fail(err, ERR_USAGE,
                         "--shared-prefix-cache needs the prefix cache that "
                         "--no-enable-prefix-caching takes away: leave out either");
    return OK;
}

/* Everything there must be, whatever it was said by, and nothing that contradicts. */
static enum status check_complete(const char *name, struct options *o, struct err *err)
{
    enum status st = check_layout(name, o, err);
    if (st == OK && o->speculative_config)
        st = speculation_parse(o->speculative_config, &o->speculation, err);
    if (st == OK && o->command == COMMAND_SERVE)
        st = check_serve(o, err);
    if (st != OK)
        return st;
    if (!o->parallel_mode)
        o->parallel_mode = "1d";
    if (o->command == COMMAND_PLAN && o->json && (o->modes || o->explain))
        return base_fail(err, ERR_USAGE, "--modes and --explain are text; leave out --json");
    if (o->prices && o->measure)
        return base_fail(err, ERR_USAGE,
                         "--prices has what --measure would find; leave out either");
    if (((LAYOUT | WITH_URL) & ~COMMAND_DOCTOR & (int)o->command) && (!o->model || !*o->model))
        return base_fail(err, ERR_USAGE, "%s: which model directory%s? (tessera %s --help)", name,
                         (WITH_URL & (int)o->command) ? " or http:// URL" : "", name);
    if (o->command == COMMAND_CONVERT && (!o->model || !*o->model))
        return base_fail(err, ERR_USAGE, "convert: which GGUF file? (tessera convert --help)");
    if (o->command == COMMAND_SYNTH && !o->synth_config)
        return base_fail(err, ERR_USAGE, "synth: --config FILE is needed");
    if (o->command == COMMAND_BATCH && (!o->bench.input_file || !o->bench.output_file))
        return base_fail(err, ERR_USAGE, "batch: -i FILE and -o FILE are needed");
    if ((o->command & (COMMAND_SYNTH | COMMAND_SHARD | COMMAND_CONVERT)) && !o->output)
        return base_fail(err, ERR_USAGE, "%s: -o DIR is needed", name);
    return OK;
}

enum status options_parse(int argc, char **argv, struct options *out, bool *help, struct err *err)
{
    struct options o = {0};
    enum status st = OK;
    *help = false;
    o.command = options_rows_command_named(argv[0]);
    if (!o.command) {
        *out = o;
        return base_fail(err, ERR_USAGE, "unknown command \"%.80s\"", argv[0]);
    }
    TRY(from_defaults(&o, err));
    TRY(options_rows_environment(&o, err));
    TRY(from_arguments(argc, argv, &o, help, err));
    if (*help)
        goto out;
    if (o.config) { /* once more, now that the file is known, above which the others stand */
        struct options again = {.command = o.command, .config = o.config};
        TRY(config_file_open(o.config, &o.file, err));
        again.file = o.file;
        o = again;
        TRY(from_defaults(&o, err));
        TRY(from_file(&o, err));
        TRY(options_rows_environment(&o, err));
        TRY(from_arguments(argc, argv, &o, help, err));
    }
    TRY(check_complete(argv[0], &o, err));
out:
    *out = o;
    return st;
}

void options_close(struct options *o)
{
    config_file_close(o->file);
    o->file = NULL;
}

bool options_distributed(const struct options *o)
{
    return o->sampler && strcmp(o->sampler, "distributed") == 0;
}

enum dtype options_quantization(const struct options *o)
{
    const char *name = o->quantization ? o->quantization : "auto";
    return strcmp(name, "fp8") == 0    ? DTYPE_F8_E4M3
           : strcmp(name, "int8") == 0 ? DTYPE_I8
           : strcmp(name, "int4") == 0 ? DTYPE_I4
                                       : DTYPE_F32;
}

bool options_widen(const struct options *o)
{
    return o->quantization && strcmp(o->quantization, "none") == 0;
}

bool options_dummy(const struct options *o)
{
    return o->load_format && strcmp(o->load_format, "dummy") == 0;
}

const char *options_backend(const struct options *o)
{
    const char *device = o->device ? o->device : "cpu";
    return o->deterministic && strcmp(device, "cuda") == 0 ? "cuda-deterministic" : device;
}

bool options_mpi(const struct options *o)
{
    return o->comm && strcmp(o->comm, "mpi") == 0;
}

enum dtype options_dtype(const struct options *o, enum dtype checkpoint)
{
    if (strcmp(o->dtype, "float32") == 0)
        return DTYPE_F32;
    if (strcmp(o->dtype, "bfloat16") == 0)
        return DTYPE_BF16;
    if (strcmp(o->dtype, "float16") == 0)
        return DTYPE_F16;
    return checkpoint;
}

enum dtype options_kv_dtype(const struct options *o, enum dtype checkpoint)
{
    const bool fp8 = o->kv_cache_dtype && strcmp(o->kv_cache_dtype, "fp8") == 0;
    return fp8 ? DTYPE_F8_E4M3 : options_dtype(o, checkpoint);
}
