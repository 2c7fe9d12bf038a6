/* DESIGN: who comes from another server types its options. None is accepted in silence, since what
 * it asks for would not happen; a table says what to do instead. A guess at a slip of the keyboard
 * is made only where it is likely to be right. */
#include "config/options_rows.h"

#include <stdio.h>
#include <string.h>

#define LEAVE "leave it out: "
#define ONE_WAY "shares a model among ranks; there is no other way"
#define SAMPLING "it is a field of requests; the model's generation_config.json has the defaults"

static const struct {
    const char *names;  /* without dashes, separated by | */
    const char *option; /* ours, which the text is about; only for commands that have it */
    const char *text;   /* NULL: "it is --option here" */
} advice[] = {
    /* vLLM */
    {"api-key", "api-key-file",
     "keys come in a file, which others cannot read: give --api-key-file FILE, of mode 600"},
    {"gpu-memory-utilization|num-gpu-blocks-override|kv-cache-memory-bytes", "kv-cache-memory",
     "--kv-cache-memory says how many bytes a rank keeps for keys and values"},
    {"mamba-cache-mode|mamba-block-size|max-mamba-cache-size|mamba-full-memory-ratio|"
     "ctx-checkpoints|swa-checkpoints",
     "state-cache-memory",
     "--state-cache-memory says how many bytes a rank keeps for states of layers that recur"},
    {"enable-log-requests|disable-log-requests|disable-log-stats|disable-uvicorn-access-log|"
     "max-log-len",
     NULL, LEAVE "a request is logged in one line without its prompt"},
    {"uvicorn-log-level", "log-level", NULL},
    {"trust-remote-code", NULL, LEAVE "no code of a model is run"},
    {"enable-chunked-prefill", NULL,
     LEAVE "prompts are always cut to what --max-num-batched-tokens lets into a step"},
    {"async-scheduling", NULL, LEAVE "the next step is always prepared during the last"},
    {"block-size", NULL, LEAVE "the size of a block of the KV cache is fixed"},
    {"swap-space|cpu-offload-gb|kv-offloading-size", NULL,
     LEAVE "a sequence that has to make room is computed again"},
    {"distributed-executor-backend", NULL,
     LEAVE "ranks are processes, on several machines with --comm mpi"},
    {"scheduling-policy", NULL, LEAVE "the field priority of requests always counts"},
    {"tokenizer|tokenizer-mode|revision|tokenizer-revision|code-revision|download-dir|hf-overrides|"
     "hf-config-path|config-format|rope-scaling|rope-theta",
     NULL, LEAVE "a model is read from a local directory as it is"},
    {"hf|hf-repo|hf-file|hf-token", NULL,
     "models are not downloaded; hf download fetches one, and its name is the first word"},
    {"enable-expert-parallel|ep", NULL, LEAVE "every rank holds a part of each expert"},
    {"allowed-origins", "cors-origins", NULL},
    {"ssl-certfile|ssl-keyfile|ssl-ca-certs|ssl-cert-file|ssl-key-file", NULL,
     "TLS is for a proxy in front (deploy/README.md)"},
    {"root-path|api-prefix", NULL,
     LEAVE "a proxy that puts something before the paths takes it off again"},
    {"enable-lora|lora-modules|max-loras|max-lora-rank|lora-paths|lora-scaled", "lora",
     "--lora DIR adds an adapter to the weights as they are read; every answer is then the sum's"},
    {"pipeline-parallel-size|pp|data-parallel-size|dp", "tensor-parallel-size",
     "not supported; --tensor-parallel-size " ONE_WAY},
    {"compilation-config|cc|cuda-graph-sizes|cudagraph-capture-sizes|max-seq-len-to-capture", NULL,
     LEAVE "nothing is compiled at the start; --enforce-eager turns CUDA graphs off"},
    {"max-logprobs", NULL, LEAVE "requests may always ask for as many as the API documents"},
    {"limit-mm-per-prompt", NULL, LEAVE "only text is read"},
    {"q", "quantization", NULL},
    {"task|convert|pooler-config|override-pooler-config|embedding|embeddings|is-embedding|pooling",
     "runner", "--runner pooling makes vectors, of each text's last token"},
    /* llama-server */
    {"m", NULL, "the model's directory is the first word behind the command, without an option"},
    {"c|ctx-size", "max-model-len", NULL},
    {"ngl|n-gpu-layers|gpu-layers", "device", "--device cuda puts all layers onto GPUs"},
    {"a|alias", "served-model-name", NULL},
    {"b|batch-size|ub|ubatch-size", "max-num-batched-tokens", NULL},
    {"np|parallel", "max-num-seqs", NULL},
    {"t|threads|tb|threads-batch", "threads-per-rank", NULL},
    {"jinja", NULL, LEAVE "chat templates are always Jinja"},
    {"fa|flash-attn", NULL, LEAVE "the form of attention is chosen for the device"},
    {"mmap|mlock", NULL, LEAVE "weights are read into memory"},
    {"cb|cont-batching", NULL, LEAVE "requests are always batched as they come"},
    {"v|verbose", NULL, "--log-level debug says more"},
    {"temp|temperature|top-k|top-p|min-p|repeat-penalty|n|predict|n-predict", NULL, SAMPLING},
};

/* Is the word one of "a|b|c"? */
static bool is_among(const char *names, const char *word)
{
    const size_t n = strlen(word);
    for (const char *c = names; c; c = strchr(c, '|')) {
        c += *c == '|';
        if (n > 0 && strncmp(c, word, n) == 0 && (c[n] == '|' || c[n] == '\0'))
            return true;
    }
    return false;
}

/* What to do instead of this option into text; false: nothing is known of it. */
static bool advise(enum command command, const char *name, char *text, size_t cap)
{
    const char *plain = strncmp(name, "no-", 3) == 0 ? name + 3 : name;
    if (!(command & (COMMAND_SERVE | COMMAND_PLAN | COMMAND_DOCTOR)))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(advice); i++) {
        const char *option = advice[i].option;
        const struct options_row *r = option ? options_rows_find(command, option) : NULL;
        if (!is_among(advice[i].names, plain) || (option && !(r && r->commands & (int)command)))
            continue;
        if (advice[i].text)
            snprintf(text, cap, "%s", advice[i].text);
        else
            snprintf(text, cap, "it is --%s here", option);
        return true;
    }
    return false;
}

static size_t common_prefix(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

/* Edits from the word to the option, as far as they may be a slip; -1: it was not meant. */
static int slips(const struct options_row *r, const char *word)
{
    const size_t n = strlen(word);
    const char *const names[] = {r->name, r->alias};
    if (r->alias && strcmp(word, r->alias) == 0) /* however short: in a file, or a variable */
        return 0;
    if (n < 4)
        return -1;
    if (strncmp(r->name, word, n) == 0)
        return 1; /* a word that begins like an option is closer than its length says */
    int best = (int)n / 4 + 1;
    const int most = best - 1;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const int d = names[i] && strlen(names[i]) >= 4 ? base_edit_distance(word, names[i]) : best;
        best = d < best ? d : best;
    }
    return best <= most ? best : -1;
}

const char *options_rows_nearest(int commands, const char *word, const char **equal)
{
    const char *best = NULL;
    int distance = 0;
    size_t prefix = 0;
    *equal = NULL;
    for (size_t i = 0; i < options_rows_count; i++) {
        const struct options_row *r = &options_rows[i];
        const int d = r->commands & commands ? slips(r, word) : -1;
        const size_t n = common_prefix(word, r->name);
        if (d < 0 || (best && (d > distance || (d == distance && n < prefix))))
            continue;
        if (best && d == distance && n == prefix) {
            *equal = *equal || strcmp(r->name, best) == 0 ? *equal : r->name;
            continue;
        }
        best = r->name;
        distance = d;
        prefix = n;
        *equal = NULL;
    }
    return best;
}

/* What follows the unknown word in a message: advice, or the nearest names, or nothing. */
static void hint_of(enum command command, const char *name, const char *dashes, char *hint,
                    size_t cap)
{
    char text[160];
    const char *equal;
    const char *near = options_rows_nearest((int)command, name, &equal);
    hint[0] = '\0';
    if (advise(command, name, text, sizeof text))
        snprintf(hint, cap, ": %s", text);
    else if (near && equal)
        snprintf(hint, cap, "; did you mean %s%s or %s%s?", dashes, near, dashes, equal);
    else if (near)
        snprintf(hint, cap, "; did you mean %s%s?", dashes, near);
}

enum status options_unknown_argument(enum command command, const char *arg, struct err *err)
{
    char name[64], hint[200];
    const char *word = arg + (arg[1] == '-' ? 2 : 1), *of = options_rows_command(command);
    const int n = (int)strcspn(word, "=");
    snprintf(name, sizeof name, "%.*s", n, word);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    const struct options_row *other = options_rows_find(command, name);
    hint_of(command, name, "--", hint, sizeof hint);
    if (other && (command & OPTIONS_ROWS_WITH_URL) && (other->commands & COMMAND_SERVE))
        return base_fail(err, ERR_USAGE,
                         "--%s is an option of the server: tessera %s MODEL -- --%s", name, of,
                         name);
    if (other && hint[0] == ':')
        return base_fail(err, ERR_USAGE, "--%s is no option of %s%s", name, of, hint);
    if (other)
        return base_fail(err, ERR_USAGE,
                         "--%s is no option of %s, but of other commands (tessera %s "
                         "--help lists all)",
                         name, of, of);
    return base_fail(err, ERR_USAGE, "unknown option \"%.*s\"%s (tessera %s --help lists all)",
                     n > 70 ? 72 : n + (int)(word - arg), arg, hint, of);
}

const struct options_row *options_rows_negated(int commands, const char *name, const char *value,
                                               const char **meant)
{
    const bool not_so = strcmp(value, "0") == 0 || strcmp(value, "false") == 0;
    *meant = not_so ? "true" : "false";
    for (size_t i = 0; i < options_rows_count && strncmp(name, "no-", 3) == 0; i++) {
        const struct options_row *r = &options_rows[i];
        if (r->commands & commands & ~COMMAND_RANK && r->kind == FLAG &&
            strcmp(r->name, name + 3) == 0)
            return r;
    }
    return NULL;
}

enum status options_unknown_key(enum command command, const char *path,
                                const struct config_entry *e, struct err *err)
{
    char hint[200];
    const char *meant;
    const struct options_row *r = options_rows_negated(OPTIONS_ROWS_ALL, e->key, e->value, &meant);
    if (r)
        snprintf(hint, sizeof hint, "; did you mean %s: %s?", r->name, meant);
    else
        hint_of(command, e->key, "", hint, sizeof hint);
    return base_fail(err, ERR_USAGE, "%s:%d: unknown key \"%.80s\"%s", path, e->line, e->key, hint);
}

void options_warn_file(const struct options *o)
{
    for (int32_t i = 0; o->command == COMMAND_SERVE && o->file && i < o->file->count; i++) {
        const struct config_entry *e = &o->file->entries[i];
        const struct options_row *r = options_rows_find(o->command, e->key);
        char text[160];
        if (!r || r->commands & (int)o->command)
            continue;
        const bool known = advise(o->command, e->key, text, sizeof text);
        base_log(LOG_WARN, "%s:%d: %.80s is no option of serve, but of other commands: ignored%s%s",
                 o->config, e->line, e->key, known ? "; " : "", known ? text : "");
    }
}
