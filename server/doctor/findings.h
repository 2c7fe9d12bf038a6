/* Findings of `tessera doctor`, in the order they were made. */
#ifndef TESSERA_SERVER_DOCTOR_FINDINGS_H
#define TESSERA_SERVER_DOCTOR_FINDINGS_H

#include "config/buf.h"

enum finding_level { FINDING_OK, FINDING_WARN, FINDING_FAIL };

struct finding {
    enum finding_level level;
    const char *check;                        /* static */
    const char *advice;                       /* static; NULL: nothing to do */
    char text[sizeof((struct err *)0)->text]; /* what there is */
};

#define FINDINGS_MAX 96 /* more are dropped, but counted by their level */
struct findings {
    struct finding list[FINDINGS_MAX];
    int32_t count;
    int32_t fails;
};

/* advice is left out where the level is FINDING_OK. */
void findings_add(struct findings *f, enum finding_level level, const char *check,
                  const char *advice, const char *fmt, ...) PRINTF_LIKE(5, 6);
/* A line each, and one of advice where there is some. */
void findings_text(const struct findings *f, struct buf *out);
/* {"ok": no check failed, "findings": [{"check", "level", "text", "advice"}, ...]} */
void findings_json(const struct findings *f, struct buf *out);

#endif
