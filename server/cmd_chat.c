/* tessera chat: a conversation in the terminal, with a server or with one that it starts. Answers
 * go to stdout as they come, everything else to stderr. */
#include "server/api/chat.h"
#include "server/client.h"
#include "server/commands.h"
#include "server/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct talk {
    const struct options *o;
    struct client *client;
    struct buf said;     /* messages so far, as JSON with commas between */
    struct buf members;  /* of a request */
    struct buf answered; /* the text of the last answer */
};

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- messages ---- */

static void add_message(struct buf *said, const char *role, const char *text, size_t n)
{
    buf_printf(said, "%s{\"role\": \"%s\", \"content\": ", said->len > 0 ? ", " : "", role);
    buf_json(said, text, n);
    buf_puts(said, "}");
}

static void drop_after(struct buf *said, size_t len)
{
    said->len = len;
    if (said->data)
        said->data[len] = '\0';
}

/* As it was before anybody spoke. */
static void begin(struct talk *t)
{
    const char *system = t->o->complete.system_prompt;
    buf_clear(&t->said);
    if (system)
        add_message(&t->said, "system", system, strlen(system));
}

static void make_members(struct talk *t)
{
    buf_clear(&t->members);
    buf_printf(&t->members, "\"messages\": [%s]", t->said.data);
    client_add_sampling(t->o, &t->members);
}

/* Asks for the answer to a message of the user. What had no answer has not been said. */
static enum status say(struct talk *t, const char *text, size_t n, struct err *err)
{
    enum status st = OK;
    const size_t before = t->said.len;
    if (!utf8_is_valid(text, n))
        return base_fail(err, ERR_USAGE, "the message is not UTF-8");
    buf_clear(&t->answered);
    add_message(&t->said, "user", text, n);
    make_members(t);
    if (t->said.failed || t->members.failed)
        TRY(base_fail(err, ERR_USAGE, "the conversation has more than %zu bytes", t->said.max));
    TRY(client_ask(t->client, &t->members, &interrupted, &t->answered, err));
    if (t->answered.failed)
        TRY(base_fail(err, ERR_PEER, "the answer has more than %zu bytes", t->answered.max));
    if (!interrupted || t->answered.len > 0)
        add_message(&t->said, "assistant", t->answered.data ? t->answered.data : "",
                    t->answered.len);
    else
        drop_after(&t->said, before);
out:
    if (st != OK) {
        drop_after(&t->said, before);
        t->said.failed = t->members.failed = false;
    }
    return st;
}

/* Would our own server take the options and the first message? Asked before anything is started. */
static enum status check(struct talk *t, const char *text, size_t n, struct err *err)
{
    const struct completion_rules rules = client_rules();
    const char *system = t->o->complete.system_prompt, *stop = t->o->complete.stop;
    struct chat_request r = {0};
    struct api_error e = {0};
    struct buf body;
    enum status st = OK;
    if (!utf8_is_valid(text, n) || (system && !utf8_is_valid(system, strlen(system))) ||
        (stop && !utf8_is_valid(stop, strlen(stop))))
        return base_fail(err, ERR_USAGE, "the message, --system-prompt or --stop is not UTF-8");
    buf_init(&body, t->members.max + 2);
    begin(t);
    add_message(&t->said, "user", text, n);
    make_members(t);
    buf_printf(&body, "{%s}", t->members.data);
    if (t->said.failed || t->members.failed || body.failed)
        st = base_fail(err, ERR_USAGE, "more than %zu bytes are to be said", t->said.max);
    else if (chat_parse(body.data, body.len, &rules, &r, &e) != OK)
        st = base_fail(err, ERR_USAGE, "%s", e.message);
    chat_free(&r);
    buf_free(&body);
    begin(t);
    return st;
}

/* ---- the conversation ---- */

/* The next line without its end; -1: there is none, or an interrupt came instead. */
static ssize_t read_line(char **line, size_t *cap)
{
    fputs("> ", stderr);
    ssize_t n = getline(line, cap, stdin);
    if (n > 0 && (*line)[n - 1] == '\n')
        (*line)[--n] = '\0';
    if (n < 0)
        fputc('\n', stderr);
    return n;
}

/* Lines from the terminal. An answer that fails is told, and the next line may do better. */
static enum status converse(struct talk *t, struct err *err)
{
    const struct sigaction on_interrupt = {.sa_handler = interrupt}; /* ends what it interrupts */
    enum status st = OK;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (sigaction(SIGINT, &on_interrupt, NULL) != 0)
        return base_fail_errno(err, ERR_INTERNAL, "cannot wait for interrupts");
    base_log(LOG_INFO,
             "a line is a message; /clear forgets all, /exit ends, Ctrl-C stops an answer");
    while (st != ERR_NOMEM && (n = read_line(&line, &cap)) >= 0) {
        if (strcmp(line, "/exit") == 0)
            break;
        if (strcmp(line, "/clear") == 0)
            begin(t);
        else if (n > 0)
            st = say(t, line, (size_t)n, err);
        if (st != OK && st != ERR_NOMEM) {
            fprintf(stderr, "tessera: %s\n", err->text);
            st = OK;
        }
        interrupted = 0;
    }
    free(line);
    return st;
}

enum status commands_chat(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct talk t = {.o = o};
    char *text = NULL;
    size_t n = 0;
    const bool once = o->complete.prompt || isatty(STDIN_FILENO) != 1;
    buf_init(&t.said, 8 * CLIENT_TEXT_BYTES_MAX);
    buf_init(&t.members, t.said.max + CLIENT_TEXT_BYTES_MAX);
    buf_init(&t.answered, CLIENT_TEXT_BYTES_MAX);
    TRY(client_open(o, true, &t.client, err));
    if (once)
        TRY(client_read_text(o, &text, &n, err));
    TRY(check(&t, text ? text : "", n, err));
    TRY(client_start(t.client, err));
    st = once ? say(&t, text, n, err) : converse(&t, err);
out:
    client_close(t.client);
    buf_free(&t.said);
    buf_free(&t.members);
    buf_free(&t.answered);
    free(text);
    return st;
}
