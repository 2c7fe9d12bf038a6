#include "weights/checkpoint_views.h"

#include <stdio.h>
#include <string.h>

#define EXPERTS ".mlp.experts."
#define GATE_UP EXPERTS "gate_up_proj"
#define DOWN EXPERTS "down_proj"
#define CONV ".conv1d.weight"

static bool is_gate_up(const struct safetensors_entry *e)
{
    return base_ends_with(e->name, GATE_UP) && e->shape[1] % 2 == 0;
}

int32_t checkpoint_views_count(const struct safetensors_entry *e)
{
    if (e->ndim != 3 || e->bytes == 0)
        return 0;
    if (base_ends_with(e->name, CONV))
        return e->shape[1] == 1;
    const int32_t each = is_gate_up(e) ? 2 : base_ends_with(e->name, DOWN) ? 1 : 0;
    return e->shape[0] <= BACKEND_EXPERTS_MAX ? each * (int32_t)e->shape[0] : 0;
}

bool checkpoint_views_get(const struct safetensors_entry *e, const char *name, int32_t index,
                          struct checkpoint_view *out)
{
    const bool pairs = is_gate_up(e);
    const int32_t parts = pairs ? 2 : 1; /* of an expert */
    if (base_ends_with(e->name, CONV)) {
        *out = (struct checkpoint_view){.ndim = 1, .shape = {1, e->shape[0] * e->shape[2]}};
        return snprintf(out->name, sizeof out->name, "%s", name) < (int)sizeof out->name;
    }
    const char *what = !pairs ? "down" : index % 2 == 0 ? "gate" : "up";
    const size_t before = strlen(name) - strlen(pairs ? GATE_UP : DOWN);
    *out = (struct checkpoint_view){
        .ndim = 2,
        .shape = {e->shape[1] / parts, e->shape[2]},
        .offset = e->bytes / (uint64_t)(e->shape[0] * parts) * (uint64_t)index,
    };
    const int n = snprintf(out->name, sizeof out->name, "%.*s" EXPERTS "%d.%s_proj.weight",
                           (int)before, name, (int)(index / parts), what);
    return n < (int)sizeof out->name;
}
