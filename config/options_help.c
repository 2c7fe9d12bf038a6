/* The help texts of the commands, made from their rows. */
#include "config/options_rows.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { HELP_COLUMNS = 80, HELP_INDENT = 32 }; /* where the explanations end and begin */

static const struct {
    const char *name;
    enum command command;
    const char *usage;
} commands[] = {
    {"serve", COMMAND_SERVE,
     "tessera serve MODEL [options]\n\nServes a model directory over HTTP.\n"},
    {"plan", COMMAND_PLAN,
     "tessera plan MODEL [-tp N] [options]\n\nWhat each rank would hold and send, from headers "
     "alone.\n"},
    {"inspect", COMMAND_INSPECT,
     "tessera inspect MODEL [-tp N]\n\nLists the tensors and the slice of each rank.\n"},
    {"shard", COMMAND_SHARD,
     "tessera shard MODEL -tp N -o DIR\n\nWrites the checkpoint cut for N ranks (loads at any).\n"},
    {"convert", COMMAND_CONVERT,
     "tessera convert FILE.gguf -o DIR\n\nWrites llama.cpp's file as a directory that serve "
     "reads: values instead of codes, the\ntokenizer and the chat template. Of a model in several "
     "files name any.\n"},
    {"synth", COMMAND_SYNTH,
     "tessera synth --config FILE -o DIR [--seed N]\n\nWrites a random checkpoint of that "
     "shape.\n"},
    {"health", COMMAND_HEALTH,
     "tessera health [URL] [options]\n\nAsks a server whether it is ready: exit code 0, or 1 with "
     "the reason; 2 for a wrong URL or\noption. URL is http://HOST:PORT or HOST:PORT.\nWithout a "
     "URL: /readyz of the server that these options, the environment or the "
     "file describe.\n"},
    {"doctor", COMMAND_DOCTOR,
     "tessera doctor [MODEL] [options]\n\nWhat this machine can do and what is wrong with it, a "
     "line each: ok, warn or fail, with what to\ndo. With a model directory: would it be served "
     "with these options? Exit code 1: a check failed.\n"},
    {"complete", COMMAND_COMPLETE,
     "tessera complete URL|MODEL [\"PROMPT\"] [options] [-- options of tessera serve]\n\n"
     "Prints one completion as it comes, of a server at http://HOST:PORT or of one that it starts "
     "on a\nmodel directory and stops again. Without PROMPT: all of stdin. Text goes to stdout, "
     "the "
     "rest to\nstderr. Exit code 1: the server fails, or none answers.\n"},
    {"chat", COMMAND_CHAT,
     "tessera chat URL|MODEL [\"MESSAGE\"] [options] [-- options of tessera serve]\n\n"
     "A conversation in the terminal, with a server at http://HOST:PORT or with one that it starts "
     "on a\nmodel directory and stops again: a line is a message; /clear forgets all, /exit or "
     "Ctrl-D ends,\nCtrl-C stops an answer. With MESSAGE, or all of stdin where that is no "
     "terminal: one answer.\nAnswers go to stdout, the rest to stderr. Exit code 1: the server "
     "fails, or none answers.\n"},
    {"batch", COMMAND_BATCH,
     "tessera batch URL|MODEL -i FILE -o FILE [options] [-- options of tessera serve]\n\n"
     "Answers a file of requests as OpenAI's Batch API and `vllm run-batch` have it, with a server "
     "at\nhttp://HOST:PORT or with one that it starts on a model directory and stops again. A line "
     "of "
     "each:\n\n"
     "  {\"custom_id\": NAME, \"method\": \"POST\", \"url\": \"/v1/completions\", "
     "\"body\": {...}}\n"
     "  {\"id\": ..., \"custom_id\": NAME, \"response\": {\"status_code\": 200, \"request_id\": "
     "...,\n   \"body\": {...}}, \"error\": null}\n\n"
     "url may also be /v1/chat/completions, /v1/embeddings, /v1/responses and /v1/messages. "
     "Answers "
     "are\nwritten as they come. \"error\" has a code (invalid_request, refused, invalid_answer, "
     "no_answer,\ntimeout) and a message; what is refused has the server's answer, too. 429 and "
     "503 "
     "are tried again\nuntil the timeout. After Ctrl-C, or when some have no answer, the same "
     "command goes on: what has\nan answer stays as it is. Exit code 1: not all are answered.\n"},
    {"bench", COMMAND_BENCH,
     "tessera bench URL [options]\n"
     "       tessera bench MODEL [options] [-- options of tessera serve]\n\n"
     "Measures an OpenAI-style server at http://HOST:PORT (for chats: .../v1/chat/completions),\n"
     "or one that it starts on a model directory and stops again. A burst, unless told "
     "otherwise:\n\n"
     "  --request-rate 4               open loop: requests come at random, four per second\n"
     "  --rates 1,2,4,8 --plot x.svg   an open loop for each rate, and a picture of latency\n"
     "  --max-concurrency 16           closed loop: who is answered makes room for the next\n"
     "  --latency --throughput         a model directory without HTTP\n\n"
     "Latency counts from when a request was due, and of successful requests only: TTFT to the\n"
     "first token, E2E to the last; ITL is each gap between chunks, TPOT is (E2E - TTFT) /\n"
     "(tokens - 1). Exit code 1: requests failed, or no server answers.\n"},
    {"rank", COMMAND_RANK, "tessera rank: started by `tessera serve`\n"},
};

/* Titles of groups of rows; each begins with this row and ends before the next. */
static const struct {
    const char *first, *title;
} groups[] = {
    {"model", "General"},
    {"tensor-parallel-size", "Ranks and layout"},
    {"device", "Device and number types"},
    {"comm", "Several machines (--comm mpi)"},
    {"host", "HTTP"},
    {"threads-per-rank", "Threads, memory and scheduling"},
    {"served-model-name", "The model as clients see it"},
    {"drain-timeout", "Stopping and losing ranks"},
    {"print-plan", "What is printed"},
};

const char *options_rows_command(enum command command)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].command == command)
            return commands[i].name;
    return NULL;
}

enum command options_rows_command_named(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return commands[i].command;
    return 0;
}

const char *options_nearest_command(const char *word)
{
    const char *best = NULL;
    int least = strlen(word) < 4 ? 0 : strlen(word) < 6 ? 1 : 2; /* more is no slip */
    for (size_t i = 0; i <= ARRAY_LEN(commands); i++) {
        const char *name = i < ARRAY_LEN(commands) ? commands[i].name : "version";
        const int d = base_edit_distance(word, name);
        if (i < ARRAY_LEN(commands) && commands[i].command == COMMAND_RANK)
            continue; /* nobody's to type */
        if (d < least || (!best && d == least)) {
            best = name;
            least = d;
        }
    }
    return best;
}

/* What the value of an option is called: FILE, N, SECONDS, or the last word of its name. */
static void value_name(const struct options_row *r, char *out, size_t cap)
{
    static const char *const files[] = {"config",  "plan",        "prices",
                                        "prompts", "output-json", "plot"};
    const char *name = strrchr(r->name, '-');
    name = r->kind == INT32 || r->kind == INT64 ? "n"
           : r->kind == NUMBER                  ? "seconds"
           : r->kind == BYTES                   ? "bytes"
           : name                               ? name + 1
                                                : r->name;
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (strcmp(r->name, files[i]) == 0)
            name = "file";
    size_t n = 0;
    for (; name[n] && n + 1 < cap; n++)
        out[n] = (char)toupper((unsigned char)name[n]);
    out[n] = '\0';
}

/* Length of the first word; of one that is longer than a line, a list of choices, as many of them
 * as a line holds. */
static int first_word(const char *text)
{
    const int whole = (int)strcspn(text, " ");
    int n = whole < HELP_COLUMNS - HELP_INDENT ? whole : HELP_COLUMNS - HELP_INDENT;
    while (n < whole && n > 1 && text[n - 1] != '|')
        n--;
    return n;
}

/* Prints the words of a text from column HELP_INDENT on; *at is the column of the cursor. */
static void print_words(const char *text, int *at)
{
    while (*text) {
        const int n = first_word(text);
        if (*at > HELP_INDENT && *at + 1 + n > HELP_COLUMNS) {
            printf("\n");
            *at = 0;
        }
        const int gap = *at < HELP_INDENT ? HELP_INDENT - *at : 1;
        printf("%*s%.*s", gap, "", n, text);
        *at += gap + n;
        text += n + (text[n] == ' ');
    }
}

static void print_row(const struct options_row *r)
{
    char value[32] = "", more[128];
    if (r->kind != FLAG)
        value_name(r, value, sizeof value);
    int at = printf("  --%s%s%s%s%s", r->name,
                    !r->alias              ? ""
                    : strlen(r->alias) > 2 ? ", --"
                                           : ", -",
                    r->alias ? r->alias : "", *value ? " " : "", value);
    print_words(r->help, &at);
    if (r->choices) {
        snprintf(more, sizeof more, "(%s)", r->choices);
        print_words(more, &at);
    }
    if (r->fallback) {
        snprintf(more, sizeof more, "[%s]", r->kind == FLAG ? "on" : r->fallback);
        print_words(more, &at);
    }
    printf("\n");
}

void options_help(enum command command)
{
    const bool grouped = command & (COMMAND_SERVE | COMMAND_PLAN | COMMAND_DOCTOR);
    const char *title = "Options";
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].command == command)
            printf("usage: %s", commands[i].usage);
    for (size_t i = 0; i < options_rows_count; i++) {
        const struct options_row *r = &options_rows[i];
        for (size_t g = 0; grouped && g < ARRAY_LEN(groups); g++)
            if (strcmp(groups[g].first, r->name) == 0)
                title = groups[g].title;
        if (!(r->commands & (int)command) || command == COMMAND_RANK)
            continue;
        if (title)
            printf("\n%s:\n", title);
        title = NULL;
        print_row(r);
    }
    printf("\nEach option can also be set as TESSERA_NAME in the environment%s.\n",
           command == COMMAND_SYNTH ? "" : ", or in the file of --config");
}
