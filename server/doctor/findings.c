#include "server/doctor/findings.h"

#include "config/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const levels[] = {
    [FINDING_OK] = "ok", [FINDING_WARN] = "warn", [FINDING_FAIL] = "fail"};

/* Names of files and devices may be anything: what is not UTF-8 or cannot be shown becomes '?'. */
static void make_printable(char *text)
{
    for (size_t n; *text; text += n) {
        n = utf8_char(text, strlen(text));
        if (n > 0 && (unsigned char)*text >= ' ' && *text != 0x7f)
            continue;
        *text = '?';
        n = 1;
    }
}

void findings_add(struct findings *f, enum finding_level level, const char *check,
                  const char *advice, const char *fmt, ...)
{
    f->fails += level == FINDING_FAIL;
    if (f->count == FINDINGS_MAX)
        return;
    struct finding *x = &f->list[f->count++];
    *x = (struct finding){.level = level, .check = check};
    x->advice = level == FINDING_OK ? NULL : advice;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(x->text, sizeof x->text, fmt, ap);
    va_end(ap);
    make_printable(x->text);
}

void findings_text(const struct findings *f, struct buf *out)
{
    for (int32_t i = 0; i < f->count; i++) {
        const struct finding *x = &f->list[i];
        buf_printf(out, "%-4s  %-13s  %s\n", levels[x->level], x->check, x->text);
        if (x->advice)
            buf_printf(out, "%-4s  %-13s  -> %s\n", "", "", x->advice);
    }
}

static void json_text(struct buf *out, const char *text)
{
    if (text)
        buf_json(out, text, strlen(text));
    else
        buf_puts(out, "null");
}

void findings_json(const struct findings *f, struct buf *out)
{
    buf_printf(out, "{\"ok\": %s, \"findings\": [", f->fails == 0 ? "true" : "false");
    for (int32_t i = 0; i < f->count; i++) {
        const struct finding *x = &f->list[i];
        buf_printf(out, "%s\n  {\"check\": ", i > 0 ? "," : "");
        json_text(out, x->check);
        buf_puts(out, ", \"level\": ");
        json_text(out, levels[x->level]);
        buf_puts(out, ", \"text\": ");
        json_text(out, x->text);
        buf_puts(out, ", \"advice\": ");
        json_text(out, x->advice);
        buf_puts(out, "}");
    }
    buf_puts(out, "\n]}\n");
}
