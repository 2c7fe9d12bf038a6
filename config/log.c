/* DESIGN: a line is built on the stack and written with one write(2) of at most PIPE_BUF bytes, so
 * lines of different threads and processes never mix. Before that, poll says whether a pipe or
 * socket has room: a full one would block the thread that logs, which may be one that answers
 * probes. */
#include "config/log.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096 /* PIPE_BUF of Linux */

enum form { FORM_TEXT, FORM_JOURNAL, FORM_JSON, FORM_JSON_JOURNAL };

static _Atomic int current_level = LOG_INFO;
static _Atomic int current_form = FORM_TEXT;
static _Atomic bool dated; /* times of text: of what is kept, not watched */
static _Atomic uint64_t dropped;

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const int level_priorities[] = {3, 4, 6, 7}; /* syslog's */

struct line {
    size_t n;
    char at[LINE_MAX_BYTES];
};

/* Room for what closes a JSON line is always kept. */
static void put(struct line *l, const char *bytes, size_t n)
{
    if (l->n + n <= sizeof l->at - 8) {
        memcpy(l->at + l->n, bytes, n);
        l->n += n;
    }
}

/* Into that room; the last byte is for the end of the line. */
static void put_end(struct line *l, char c)
{
    if (l->n < sizeof l->at - 1)
        l->at[l->n++] = c;
}

static void put_word(struct line *l, const char *word)
{
    put(l, word, strlen(word));
}

static void put_number(struct line *l, double number)
{
    char text[32];
    const bool whole = number > -1e15 && number < 1e15 && number == (double)(int64_t)number;
    put(l, text, (size_t)snprintf(text, sizeof text, whole ? "%.0f" : "%.6f", number));
}

static void put_plain(struct line *l, const char *text)
{
    for (; *text; text++) {
        const unsigned char c = (unsigned char)text[0];
        const bool high =
            c == 0xc2 && ((unsigned char)text[1] & 0xe0) == 0x80; /* U+0080 - U+009F */
        put(l, c < ' ' || c == 0x7f || high ? "?" : text, 1);
        text += high;
    }
}

/* Bytes of the UTF-8 character at text, 0 when there is none. */
static size_t utf8_length(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t n = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    if (c[0] > 0xf4 || (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) ||
        (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f))
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

static void put_json(struct line *l, const char *text)
{
    char escaped[8];
    put(l, "\"", 1);
    while (*text && l->n < sizeof l->at - 16) {
        size_t n = utf8_length(text);
        if (n == 0)
            put_word(l, "\xef\xbf\xbd");
        else if (*text == '"' || *text == '\\')
            put(l, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\%c", *text));
        else if ((unsigned char)*text < ' ' || *text == 0x7f)
            put(l, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", *text));
        else
            put(l, text, n);
        text += n ? n : 1;
    }
    put_end(l, '"');
}

static void put_time(struct line *l, bool json)
{
    struct timespec now;
    struct tm tm;
    char text[64];
    const bool date = json || atomic_load(&dated);
    clock_gettime(CLOCK_REALTIME, &now);
    if (json)
        gmtime_r(&now.tv_sec, &tm);
    else
        localtime_r(&now.tv_sec, &tm);
    put(l, text, strftime(text, sizeof text, date ? "%Y-%m-%dT%H:%M:%S" : "%H:%M:%S", &tm));
    put(l, text, (size_t)snprintf(text, sizeof text, ".%03ld", now.tv_nsec / 1000000));
    if (json || !date)
        return;
    const long minutes = tm.tm_gmtoff / 60, size = labs(minutes);
    put(l, text,
        (size_t)snprintf(text, sizeof text, "%c%02ld:%02ld", minutes < 0 ? '-' : '+', size / 60,
                         size % 60));
}

/* The message comes last, so that it is what a line that is too long loses. */
static void build_json(struct line *l, enum log_level level, const char *message,
                       const struct log_field *fields, size_t count)
{
    put_word(l, "{\"time\":\"");
    put_time(l, true);
    put_word(l, "Z\",\"level\":\"");
    put_word(l, level_names[level]);
    put_word(l, "\",");
    for (size_t i = 0; i < count; i++) {
        put_json(l, fields[i].key);
        put_word(l, ":");
        if (fields[i].text)
            put_json(l, fields[i].text);
        else
            put_number(l, fields[i].number);
        put_word(l, ",");
    }
    put_word(l, "\"message\":");
    put_json(l, message);
    put_end(l, '}');
}

static void build_text(struct line *l, const char *message, const struct log_field *fields,
                       size_t count)
{
    put_plain(l, message);
    for (size_t i = 0; i < count; i++) {
        put_word(l, " ");
        put_word(l, fields[i].key);
        put_word(l, "=");
        if (fields[i].text)
            put_plain(l, fields[i].text);
        else
            put_number(l, fields[i].number);
    }
}

static void write_line(struct line *l)
{
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    l->at[l->n++] = '\n';
    if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT) ||
        write(STDERR_FILENO, l->at, l->n) != (ssize_t)l->n)
        atomic_fetch_add(&dropped, 1);
}

void log_event(enum log_level level, const char *message, const struct log_field *fields,
               size_t count)
{
    struct line l;
    char head[16];
    const int form = atomic_load(&current_form);
    if (!log_shows(level))
        return;
    l.n = 0;
    if (form == FORM_JOURNAL || form == FORM_JSON_JOURNAL)
        put(&l, head, (size_t)snprintf(head, sizeof head, "<%d>", level_priorities[level]));
    if (form == FORM_TEXT) {
        put_time(&l, false);
        put(&l, head, (size_t)snprintf(head, sizeof head, " %-7s ", level_names[level]));
    }
    if (form == FORM_JSON || form == FORM_JSON_JOURNAL)
        build_json(&l, level, message, fields, count);
    else
        build_text(&l, message, fields, count);
    write_line(&l);
}

void log_failure(const char *message)
{
    struct line l;
    if (atomic_load(&current_form) != FORM_TEXT) {
        log_event(LOG_ERROR, message, NULL, 0);
        return;
    }
    l.n = 0;
    put_word(&l, "tessera: ");
    put_plain(&l, message);
    write_line(&l);
}

uint64_t log_dropped(void)
{
    return atomic_load(&dropped);
}

void log_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

bool log_shows(enum log_level level)
{
    return (int)level <= atomic_load(&current_level);
}

/* $JOURNAL_STREAM is device and inode of the journal's socket: stderr, unless it was redirected. */
static bool is_journal(void)
{
    struct stat sb;
    unsigned long long device, inode;
    const char *stream = getenv("JOURNAL_STREAM");
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &sb) == 0 && sb.st_dev == device && sb.st_ino == inode;
}

void log_setup(const char *format, const char *level)
{
    const bool json = format && strcmp(format, "json") == 0;
    const int plain = json ? FORM_JSON : FORM_TEXT;
    atomic_store(&current_form, is_journal() ? plain + 1 : plain);
    atomic_store(&dated, !isatty(STDERR_FILENO));
    for (size_t i = 0; level && i < ARRAY_LEN(level_names); i++)
        if (strcmp(level, level_names[i]) == 0)
            log_level((enum log_level)i);
}
