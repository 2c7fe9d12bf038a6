#include "weights/checkpoint_views.h"

#include <stdio.h>
#include <string.h>

#define EXPERTS ".experts." /* of an MLP, or beside it */
#define GATE_UP EXPERTS "gate_up_proj"
#define DOWN EXPERTS "down_proj"
#define GATE_UP_SCALES GATE_UP "_scale_inv"
#define DOWN_SCALES DOWN "_scale_inv"
#define CONV ".conv1d.weight"

static const char scales[] = "_scale_inv";

/* Whose ups lie behind gates, or of which one scale is of both. */
static bool is_gate_up(const struct safetensors_entry *e)
{
    return base_ends_with(e->name, GATE_UP) || base_ends_with(e->name, GATE_UP_SCALES);
}

static bool is_down(const struct safetensors_entry *e)
{
    return base_ends_with(e->name, DOWN) || base_ends_with(e->name, DOWN_SCALES);
}

static bool is_scales(const struct safetensors_entry *e)
{
    return base_ends_with(e->name, scales);
}

/* Have an expert's gates and ups the same rows of it, the only one? */
static bool is_shared(const struct safetensors_entry *e)
{
    return is_scales(e) && e->shape[1] == 1;
}

int32_t checkpoint_views_count(const struct safetensors_entry *e)
{
    if (e->ndim != 3 || e->bytes == 0)
        return 0;
    if (base_ends_with(e->name, CONV))
        return e->shape[1] == 1;
    if (is_gate_up(e) && e->shape[1] % 2 != 0 && !is_shared(e))
        return 0;
    const int32_t each = is_gate_up(e) ? 2 : is_down(e) ? 1 : 0;
    return e->shape[0] <= BACKEND_EXPERTS_MAX ? each * (int32_t)e->shape[0] : 0;
}

bool checkpoint_views_get(const struct safetensors_entry *e, const char *name, int32_t index,
                          struct checkpoint_view *out)
{
    const bool pairs = is_gate_up(e);
    const int32_t of = pairs ? 2 : 1, expert = index / of; /* an expert's tensors */
    const int32_t parts = is_shared(e) ? 1 : of;           /* apart in it */
    if (base_ends_with(e->name, CONV)) {
        *out = (struct checkpoint_view){.ndim = 1, .shape = {1, e->shape[0] * e->shape[2]}};
        return snprintf(out->name, sizeof out->name, "%s", name) < (int)sizeof out->name;
    }
    const char *what = !pairs ? "down" : index % 2 == 0 ? "gate" : "up";
    const char *ending = is_scales(e) ? scales : "";
    const size_t before = strlen(name) - strlen(pairs ? GATE_UP : DOWN) - strlen(ending);
    *out = (struct checkpoint_view){
        .ndim = 2,
        .shape = {e->shape[1] / parts, e->shape[2]},
        .offset = e->bytes / (uint64_t)(e->shape[0] * parts) *
                  (uint64_t)(expert * parts + (parts > 1 ? index % of : 0)),
    };
    const int n = snprintf(out->name, sizeof out->name, "%.*s" EXPERTS "%d.%s_proj.weight%s",
                           (int)before, name, (int)expert, what, ending);
    return n < (int)sizeof out->name;
}
