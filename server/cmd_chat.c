/* tessera chat: a conversation in the terminal, with a server or with one that it starts. Answers
 * go to stdout as they come, everything else to stderr. */
#include "config/log.h"
#include "config/utf8.h"
#include "server/api/chat.h"
#include "server/bench/child.h"
#include "server/bench/target.h"
#include "server/chat_template.h"
#include "server/client.h"
#include "server/commands.h"

#include <ctype.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define LINE_BYTES_MAX 4095 /* a terminal cuts longer ones */

struct talk {
    const struct options *o;
    struct client *client;
    struct buf said;     /* messages so far, as JSON with commas between */
    struct buf members;  /* of a request */
    struct buf answered; /* the text of the last answer */
    int interrupts;      /* readable after Ctrl-C; 0: that ends the program */
};

/* Has there been a Ctrl-C since it was asked? */
static bool was_interrupted(const struct talk *t)
{
    struct signalfd_siginfo info;
    return t->interrupts > 0 && read(t->interrupts, &info, sizeof info) > 0;
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
    if (!t->said.failed && !t->members.failed)
        TRY(client_ask(t->client, &t->members, t->interrupts, &t->answered, err));
    const bool stopped = was_interrupted(t);
    if (stopped)
        fputc('\n', stderr); /* after the terminal's ^C */
    if (stopped && t->answered.len == 0)
        drop_after(&t->said, before);
    else
        add_message(&t->said, "assistant", t->answered.data ? t->answered.data : "",
                    t->answered.len);
    if (t->said.failed || t->members.failed || t->answered.failed)
        TRY(base_fail(err, ERR_USAGE, "the conversation has more than %zu bytes; /clear forgets it",
                      t->said.max));
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
    else
        st = chat_parse(body.data, body.len, &rules, &r, &e);
    if (st == ERR_INPUT)
        st = base_fail(err, ERR_USAGE, "%s", e.message);
    else if (st == ERR_NOMEM)
        st = base_fail(err, ERR_NOMEM, "no memory for the message");
    chat_free(&r);
    buf_free(&body);
    begin(t);
    return st;
}

/* A model that cannot chat is found before its weights are loaded. Whatever else is wrong with it,
 * or with the options behind --, the server says. */
static enum status check_template(const struct options *o, struct err *err)
{
    enum status st = OK;
    struct options serve;
    struct model_config m;
    struct generation_defaults defaults;
    struct tokenizer *t = NULL;
    struct chat_template *template = NULL;
    struct err other;
    if (target_is_url(o->model) ||
        child_options(o->model, o->bench.rest_count, o->bench.rest, &serve, &other) != OK)
        return OK;
    if (!serve.chat_template && !serve.skip_tokenizer_init &&
        model_config_load(o->model, &m, &defaults, &other) == OK &&
        tokenizer_open(o->model, m.vocab, &t, &other) == OK && t &&
        chat_template_open(t, NULL, &template, &other) == OK && chat_template_problem(template))
        st = base_fail(err, ERR_MODEL, "%.320s, as in tessera chat %.100s -- --chat-template FILE",
                       chat_template_problem(template), o->model);
    chat_template_close(template);
    tokenizer_close(t);
    options_close(&serve);
    return st;
}

/* ---- the conversation ---- */

enum typed { TYPED_LINE, TYPED_INTERRUPT, TYPED_END };

/* The next line, without its end. The terminal hands out one at a time. */
static enum status read_line(struct talk *t, char *line, size_t *n, enum typed *what,
                             struct err *err)
{
    struct pollfd in[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                          {.fd = t->interrupts, .events = POLLIN}};
    ssize_t got;
    fputs("> ", stderr);
    if (poll(in, 2, -1) < 0)
        return base_fail_errno(err, ERR_IO, "stdin");
    if (was_interrupted(t)) {
        fputc('\n', stderr);
        *what = TYPED_INTERRUPT;
        return OK;
    }
    got = read(STDIN_FILENO, line, LINE_BYTES_MAX + 1);
    if (got < 0)
        return base_fail_errno(err, ERR_IO, "stdin");
    *what = got > 0 ? TYPED_LINE : TYPED_END;
    *n = (size_t)got - (got > 0 && line[got - 1] == '\n');
    if (got == 0)
        fputc('\n', stderr);
    return OK;
}

static bool is(const char *line, size_t n, const char *word)
{
    return n == strlen(word) && memcmp(line, word, n) == 0;
}

/* A slash and letters, and nothing else. */
static bool is_command(const char *line, size_t n)
{
    size_t i = 1;
    while (i < n && isalpha((unsigned char)line[i]))
        i++;
    return n > 1 && line[0] == '/' && i == n;
}

static enum status take_line(struct talk *t, const char *line, size_t n, struct err *err)
{
    if (is(line, n, "/clear"))
        begin(t);
    else if (is_command(line, n))
        return base_fail(err, ERR_USAGE, "no such command: /clear forgets all, /exit ends");
    else if (n >= LINE_BYTES_MAX)
        return base_fail(err, ERR_USAGE,
                         "a terminal cuts lines after %d bytes: give long messages as a file on "
                         "stdin",
                         LINE_BYTES_MAX);
    else if (n > 0)
        return say(t, line, n, err);
    return OK;
}

/* Lines from the terminal. An answer that fails is told, and the next line may do better. */
static enum status converse(struct talk *t, struct err *err)
{
    enum status st = OK;
    enum typed what = TYPED_LINE, last = TYPED_LINE;
    char line[LINE_BYTES_MAX + 1];
    size_t n = 0;
    base_log(LOG_INFO,
             "a line is a message; /clear forgets all, /exit ends, Ctrl-C stops an answer");
    for (;; last = what) {
        TRY(read_line(t, line, &n, &what, err));
        if (what == TYPED_END || (what == TYPED_INTERRUPT && last == TYPED_INTERRUPT))
            break;
        if (what == TYPED_LINE && is(line, n, "/exit"))
            break;
        st = what == TYPED_LINE ? take_line(t, line, n, err) : OK;
        if (st == ERR_NOMEM)
            break;
        if (st != OK)
            log_failure(err->text);
    }
out:
    return st;
}

/* From now on Ctrl-C can be read. */
static enum status watch_interrupts(struct talk *t, struct err *err)
{
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    if (sigprocmask(SIG_BLOCK, &interrupt, NULL) != 0 ||
        (t->interrupts = signalfd(-1, &interrupt, SFD_NONBLOCK | SFD_CLOEXEC)) < 0)
        return base_fail_errno(err, ERR_INTERNAL, "cannot wait for interrupts");
    return OK;
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
    n -= n > 0 && !o->complete.prompt && text[n - 1] == '\n'; /* as of a line that is typed */
    if (once && n == 0)
        TRY(base_fail(err, ERR_USAGE, "the message is empty"));
    TRY(check(&t, text ? text : "", n, err));
    TRY(check_template(o, err));
    TRY(client_start(t.client, err));
    if (!once)
        TRY(watch_interrupts(&t, err));
    st = once ? say(&t, text, n, err) : converse(&t, err);
out:
    if (t.interrupts > 0)
        close(t.interrupts);
    client_close(t.client);
    buf_free(&t.said);
    buf_free(&t.members);
    buf_free(&t.answered);
    free(text);
    return st;
}
