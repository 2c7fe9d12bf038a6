/* tessera doctor: what this machine can do, what is wrong with it, and what to do about that; with
 * a model, whether it would be served with these options. */
#include "server/commands.h"
#include "server/doctor/machine.h"
#include "server/doctor/modules.h"
#include "server/setup.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PATIENCE_S 60 /* drivers and file systems can hang */

static void too_late(int signal_number)
{
    static const char text[] = "tessera: doctor: a driver or a file does not answer\n";
    (void)signal_number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

/* As `plan`, from headers alone. */
static void check_model(const struct options *o, struct findings *f)
{
    struct setup s = {0};
    struct footprint print;
    struct err err;
    char need[32], have[32];
    enum status st = setup_open(o, &s, &err);
    if (st == OK)
        st = footprint_plan(&s.options, &s.model, s.flow, &print, &err);
    if (st == OK)
        findings_add(f, FINDING_OK, "model", NULL,
                     "fits: %d rank%s %s of %s; %d sequences, context %d", (int)print.ranks,
                     print.ranks == 1 ? " needs" : "s need",
                     base_human_bytes(need, sizeof need, print.total),
                     base_human_bytes(have, sizeof have, print.available), (int)print.limits.slots,
                     (int)print.max_model_len);
    else
        findings_add(f, FINDING_FAIL, "model", "tessera plan with the same options has the details",
                     "%s", err.text);
    setup_close(&s);
}

enum status commands_doctor(const struct options *o, struct err *err)
{
    struct findings *f = calloc(1, sizeof *f);
    struct buf text;
    if (!f)
        return base_fail(err, ERR_NOMEM, "doctor: no memory");
    (void)signal(SIGALRM, too_late);
    alarm(PATIENCE_S);
    machine_check(o, f);
    modules_check(o, f);
    if (o->model)
        check_model(o, f);
    alarm(0);
    buf_init(&text, 1 << 20);
    if (o->json)
        findings_json(f, &text);
    else
        findings_text(f, &text);
    enum status st = buf_write(&text, stdout, "stdout", err);
    buf_free(&text);
    const int32_t fails = f->fails;
    free(f);
    if (st == OK && fails > 0)
        st = base_fail(err, ERR_DEVICE, "doctor: %d check%s failed", (int)fails,
                       fails == 1 ? "" : "s");
    return st;
}
