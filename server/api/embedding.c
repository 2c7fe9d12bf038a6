/* DESIGN: a request for vectors is a completion's that wants no token: prompts, lengths, queue and
 * priorities are the same. */
#include "server/api/embedding.h"

#include "server/api/body.h"

#include <math.h>

#define COLUMNS_MAX (1 << 17) /* of any model */

struct raw {
    struct field_string model, cache_salt, encoding_format, embed_dtype, endianness, side;
    const struct jdoc *input;
    int64_t dimensions, truncate_prompt_tokens, priority;
    bool add_special_tokens, parse_special, normalize;
};

#define AT(member) .offset = offsetof(struct raw, member)
#include "server/api/field_row.h"

static const struct field rows[] = {
    STRING(model, 0, 1024),
    {.name = "input",
     .kind = FIELD_PROMPT,
     .int_max = COMPLETION_PROMPTS_MAX,
     .required = true,
     AT(input)},
    {.name = "encoding_format",
     .kind = FIELD_CHOICE,
     .choices = "float|base64",
     AT(encoding_format)},
    {.name = "dimensions",
     .kind = FIELD_INT,
     .int_min = 1,
     .to_columns = true,
     .no_default = true,
     AT(dimensions)},
    OPTIONAL_INT(truncate_prompt_tokens, -1, INT32_MAX),
    BOOL(add_special_tokens),
    BOOL(parse_special),
    BOOL(normalize),
    {.name = "use_activation", .kind = FIELD_BOOL, AT(normalize)}, /* vLLM's newer name */
    {.name = "embed_dtype", .kind = FIELD_CHOICE, .choices = "float32", AT(embed_dtype)},
    {.name = "endianness", .kind = FIELD_CHOICE, .choices = "native|little", AT(endianness)},
    {.name = "truncation_side", .kind = FIELD_CHOICE, .choices = "right", AT(side)},
    INT(priority, INT32_MIN, INT32_MAX),
    STRING(cache_salt, 1, COMPLETION_SALT_BYTES_MAX),
    IGNORED(user),
    IGNORED(request_id),
    UNSUPPORTED(messages, FIELD_ARRAY, 0),
};

struct field_set embedding_fields(const struct completion_rules *rules)
{
    const int32_t columns = rules->columns > 0 ? rules->columns : COLUMNS_MAX; /* not served */
    return (struct field_set){.parts = {{rows, ARRAY_LEN(rows), 0}},
                              .vocab = rules->vocab,
                              .columns = columns,
                              .prompts_max = rules->choices_max};
}

static struct raw defaults_of(const struct completion_rules *rules)
{
    static const char format[] = "float";
    return (struct raw){.encoding_format = {format, sizeof format - 1},
                        .dimensions = 0,
                        .truncate_prompt_tokens = 0,
                        .add_special_tokens = true,
                        .parse_special = true,
                        .normalize = rules->normalizes};
}

void embedding_schema(const struct completion_rules *rules, struct buf *out)
{
    const struct field_set set = embedding_fields(rules);
    const struct raw raw = defaults_of(rules);
    field_schema(&set, &raw, out);
}

/* ---- the request ---- */

static enum status convert(const struct raw *raw, const struct completion_rules *rules,
                           struct completion_request *r, struct api_error *e)
{
    if (raw->truncate_prompt_tokens == 0 && jdoc_get_value(r->doc, "truncate_prompt_tokens"))
        return api_error_field(e, "truncate_prompt_tokens",
                               "truncate_prompt_tokens must be -1 or at least 1, got 0");
    r->vector =
        (struct completion_vector){.dimensions = (int32_t)raw->dimensions,
                                   .normalize = raw->normalize,
                                   .base64 = field_string_is(&raw->encoding_format, "base64")};
    r->truncate = (int32_t)raw->truncate_prompt_tokens;
    r->add_special_tokens = raw->add_special_tokens;
    r->parse_special = raw->parse_special;
    r->logprobs = r->prompt_logprobs = -1;
    r->params.pooled = true;
    r->params.max_tokens = 0;
    r->params.priority = (int32_t)raw->priority;
    r->params.cache_salt = completion_salt(rules, &raw->cache_salt);
    return OK;
}

enum status embedding_parse(const char *text, size_t n, const struct completion_rules *rules,
                            struct completion_request *out, struct api_error *e)
{
    enum status st = OK;
    const struct field_set set = embedding_fields(rules);
    struct completion_request r = {.source = "input", .n = 1, .params = request_params_default()};
    struct raw raw = defaults_of(rules);
    TRY(body_parse(text, n, &r.doc, e));
    TRY(field_apply(&set, r.doc, &raw, &r.unknown, e));
    TRY(completion_check_model(rules, &raw.model, e));
    TRY(convert(&raw, rules, &r, e));
    TRY(completion_prompt_parse(raw.input, rules, &r, e));
    TRY(completion_check_choices(&r, rules, e));
    *out = r;
    return OK;
out:
    completion_free(&r);
    if (st == ERR_NOMEM)
        api_error_no_memory(e);
    return st;
}

/* ---- the answer ---- */

int32_t embedding_finish(const struct completion_vector *wanted, float *v, int32_t n)
{
    double squares = 0, length;
    if (wanted->dimensions > 0 && wanted->dimensions < n)
        n = wanted->dimensions;
    for (int32_t i = 0; i < n; i++)
        squares += (double)v[i] * (double)v[i];
    length = sqrt(squares);
    for (int32_t i = 0; i < n && wanted->normalize && squares > 0; i++)
        v[i] = (float)((double)v[i] / length);
    return n;
}

/* As numpy.frombuffer reads it: floats of the machine, which is a little-endian one. */
static void write_base64(const unsigned char *bytes, size_t n, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    buf_puts(out, "\"");
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i < 3 ? n - i : 3;
        uint32_t word = 0;
        for (size_t k = 0; k < 3; k++)
            word = word << 8 | (k < left ? bytes[i + k] : 0u);
        char four[4];
        for (size_t k = 0; k < 4; k++)
            four[k] = k <= left ? digits[word >> (18 - 6 * k) & 63] : '=';
        buf_add(out, four, sizeof four);
    }
    buf_puts(out, "\"");
}

static void write_floats(const float *v, int32_t n, struct buf *out)
{
    buf_puts(out, "[");
    for (int32_t i = 0; i < n; i++)
        buf_printf(out, i ? ",%.9g" : "%.9g", (double)v[i]);
    buf_puts(out, "]");
}

void embedding_write(const struct completion_vector *wanted, const float *v, int32_t n,
                     struct buf *out)
{
    if (wanted->base64)
        write_base64((const unsigned char *)v, (size_t)n * sizeof *v, out);
    else
        write_floats(v, n, out);
}

static void begin(const struct completion_meta *meta, const struct completion_choice *choice,
                  struct buf *out)
{
    (void)choice;
    completion_reply_meta(meta, "list", out);
    buf_puts(out, ",\"data\":[");
}

static void write_choice(const struct completion_meta *meta, const struct completion_choice *c,
                         struct buf *out)
{
    (void)meta;
    buf_printf(out, "{\"object\":\"embedding\",\"index\":%d,\"embedding\":", c->index);
    buf_add(out, c->text, c->text_len);
    buf_puts(out, "}");
}

static void end(const struct completion_usage *usage, struct buf *out)
{
    buf_puts(out, "]");
    completion_reply_totals(usage, out);
    buf_puts(out, "}");
}

const struct reply embedding_reply = {
    .id_prefix = "embd-", .begin = begin, .choice = write_choice, .end = end};
