/* Each allocation fails in turn under everything that reads bytes from outside: files at the start,
 * requests while serving. No crash, nothing lost, one clear line. */
#include "config/config_file.h"
#include "config/jdoc.h"
#include "config/model_config.h"
#include "config/options.h"
#include "config/pooling.h"
#include "engine/parallel/plan.h"
#include "server/api/chat.h"
#include "server/api/messages.h"
#include "server/api/messages_reply.h"
#include "server/api/responses.h"
#include "server/api/responses_reply.h"
#include "server/api/completion.h"
#include "server/api/embedding.h"
#include "server/api/tokenize.h"
#include "server/bench/batch_line.h"
#include "server/grammar/structure.h"
#include "server/guides.h"
#include "server/keys.h"
#include "server/tokenizer/spm_file.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/tokenizer_config.h"
#include "tests/adapter_files.h"
#include "tests/nomem.h"
#include "tests/scratch.h"
#include "weights/checkpoint.h"
#include "weights/gguf/gguf_tokenizer.h"
#include "weights/safetensors.h"

#define DEMO TESSERA_SOURCE_DIR "/deploy/demo/model"
#define CORPUS TEST_DATA_DIR "/corpus/"

/* ---- config ---- */

static enum status read_config_file(const void *path, struct err *err)
{
    struct config_file *f = NULL;
    enum status st = config_file_open(path, &f, err);
    CHECK(st != OK || f->count > 3);
    config_file_close(f);
    return st;
}

static enum status read_options(const void *path, struct err *err)
{
    char *argv[] = {(char[]){"serve"}, (char[]){"--config"}, (char *)(uintptr_t)path, NULL};
    struct options o;
    bool help;
    enum status st = options_parse(3, argv, &o, &help, err);
    CHECK(st != OK || strcmp(o.served_model_name, "NAME") == 0);
    options_close(&o);
    return st;
}

static enum status read_model_config(const void *dir, struct err *err)
{
    struct model_config m;
    struct generation_defaults defaults;
    enum status st = model_config_load(dir, &m, &defaults, err);
    CHECK(st != OK || m.layers > 0);
    return st;
}

static enum status read_json(const void *text, struct err *err)
{
    struct jdoc *doc = NULL;
    enum status st = jdoc_parse(text, strlen(text), &jdoc_limits_file, "text", &doc, err);
    CHECK(st != OK || jdoc_size(doc) == 4);
    jdoc_close(doc);
    return st;
}

static enum status read_plan(const void *mesh, struct err *err)
{
    struct plan *p = NULL;
    enum status st = plan_load("2d", mesh, NULL, 4, &p, err);
    CHECK(st != OK || plan_ranks(p) == 4);
    if (st == OK)
        st = plan_set_prefill_rows(p, 9, err);
    CHECK(st != OK || plan_prefill_rows(p) == 9);
    plan_close(p);
    return st;
}

static enum status read_pooling(const void *dir, struct err *err)
{
    struct pooling p;
    enum status st = pooling_load(dir, &p, err);
    CHECK(st != OK || (p.found && p.normalize));
    return st;
}

static void test_pooling(void **state)
{
    (void)state;
    static const char modules[] = "[{\"type\": \"m.Pooling\", \"path\": \"1_Pooling\"}, "
                                  "{\"type\": \"m.Normalize\"}]",
                      pooling[] = "{\"pooling_mode_lasttoken\": true}";
    assert_int_equal(mkdir(scratch_path("1_Pooling"), 0777), 0);
    scratch_write(scratch_path(POOLING_MODULES), modules, sizeof modules - 1);
    scratch_write(scratch_path(POOLING_CONFIG), pooling, sizeof pooling - 1);
    nomem_sweep("pooling", read_pooling, scratch_dir);
}

static void test_config(void **state)
{
    (void)state;
    const char *example = TESSERA_SOURCE_DIR "/deploy/example.yaml";
    nomem_sweep("configuration file", read_config_file, example);
    nomem_sweep("options", read_options, example);
    nomem_sweep("model configuration", read_model_config, DEMO);
    nomem_sweep("JSON", read_json,
                "{\"a\": [1, 2.5, true, null, {\"b\": {}}], \"long name \\u00e4\": \"text\","
                " \"c\": \"\\ud83e\\udd8a\", \"d\": [[], [[]], [{}]]}");
    nomem_sweep("built-in plan", read_plan, NULL);
    nomem_sweep("built-in plan of another mesh", read_plan, "2,2");
}

/* ---- checkpoints ---- */

static enum status read_safetensors(const void *path, struct err *err)
{
    struct safetensors s;
    memset(&s, 0, sizeof s);
    enum status st = safetensors_open(path, &s, err);
    if (st == OK) {
        CHECK(s.count > 0);
        safetensors_close(&s);
    }
    return st;
}

static enum status read_checkpoint(const void *dir, struct err *err)
{
    struct checkpoint *c = NULL;
    enum status st = checkpoint_open(dir, &c, err);
    CHECK(st != OK || checkpoint_count(c) > 0);
    checkpoint_close(c);
    return st;
}

static enum status read_gguf(const void *path, struct err *err)
{
    struct gguf *g = NULL;
    enum status st = gguf_open(path, &g, err);
    CHECK(st != OK || gguf_tensor_count(g) > 0);
    gguf_close(g);
    return st;
}

static enum status write_tokenizer(const void *path, struct err *err)
{
    char out[PATH_MAX];
    struct gguf *g = NULL;
    struct outdir d;
    snprintf(out, sizeof out, "%s/tokenizer", scratch_dir);
    enum status st = gguf_open(path, &g, err);
    if (st == OK)
        st = outdir_open(out, &d, err);
    if (st == OK) {
        st = gguf_tokenizer_write(g, &d, err);
        outdir_close(&d, false);
    }
    gguf_close(g);
    return st;
}

static void test_checkpoints(void **state)
{
    (void)state;
    nomem_sweep("safetensors", read_safetensors, DEMO "/model.safetensors");
    nomem_sweep("metadata", read_safetensors, CORPUS "safetensors/ok_metadata.safetensors");
    nomem_sweep("gguf", read_gguf, CORPUS "gguf/keys.gguf");
    nomem_sweep("split gguf", read_gguf, CORPUS "gguf/split-00002-of-00003.gguf");
    nomem_sweep("tokenizer.json", write_tokenizer, CORPUS "gguf_tokenizers/gemma4.gguf");
    nomem_sweep("tokenizer.model", write_tokenizer, CORPUS "gguf_tokenizers/spm_gemma.gguf");
    nomem_sweep("one file", read_checkpoint, CORPUS "safetensors/checkpoints/plain");
    nomem_sweep("index", read_checkpoint, CORPUS "safetensors/checkpoints/index");
    nomem_sweep("sharded", read_checkpoint, CORPUS "safetensors/checkpoints/sharded");
}

/* Opened, described, and added to a rectangle of one tensor. */
static enum status add_adapters(const void *list, struct err *err)
{
    const struct span rows = {1, 3}, cols = {0, 4};
    float values[8] = {0};
    struct lora *l = NULL;
    struct buf text;
    enum status st = lora_open(list, &l, err);
    if (st != OK)
        return st;
    CHECK(lora_count(l) == 2);
    buf_init(&text, 1 << 16);
    lora_describe(l, &text);
    CHECK(text.failed || strstr(text.data, "adapter "));
    st = text.failed ? base_fail(err, ERR_NOMEM, "description: no memory") : OK;
    buf_free(&text);
    if (st == OK)
        st = lora_apply(l, "m.q.weight", DTYPE_F32, rows, cols, values, DTYPE_F32, values, err);
    CHECK(st != OK || values[7] == 6);
    lora_close(l);
    return st;
}

static enum status adapt_checkpoint(const void *dir, struct err *err)
{
    char list[PATH_MAX];
    float values[12];
    struct checkpoint *c = NULL;
    snprintf(list, sizeof list, "%s", (const char *)dir);
    enum status st = checkpoint_open(dir, &c, err);
    if (st == OK)
        st = checkpoint_adapt(c, list, err);
    if (st == OK)
        st = checkpoint_read(c, checkpoint_at(c, 0), (struct span){0, 3}, (struct span){0, 4}, 0,
                             values, err);
    CHECK(st != OK || (checkpoint_lora(c) && values[11] == 4));
    checkpoint_close(c);
    return st;
}

static void test_adapters(void **state)
{
    (void)state;
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const struct adapter_tensor tensors[] = {{"m.q.lora_A.weight", DTYPE_F32, 2, {2, 4}, ones},
                                             {"m.q.lora_B.weight", DTYPE_F32, 2, {3, 2}, ones},
                                             {"m.q.weight", DTYPE_F32, 2, {3, 4}, NULL}};
    char dir[PATH_MAX], list[2 * PATH_MAX + 8];
    snprintf(dir, sizeof dir, "%s", scratch_path("adapter"));
    snprintf(list, sizeof list, "%s,%s:0.5", dir, dir);
    adapter_put(dir,
                "{\"peft_type\": \"LORA\", \"r\": 9, \"lora_alpha\": 4, \"rank_pattern\": "
                "{\"m.q\": 2}}",
                tensors, 2);
    adapter_put_tensors(scratch_path("adapter/model.safetensors"), &tensors[2], 1);
    nomem_sweep("adapters", add_adapters, list);
    nomem_sweep("adapted checkpoint", adapt_checkpoint, dir); /* is both */
}

/* ---- what is asked ---- */

static struct completion_rules some_rules(void)
{
    static const char *const names[] = {"demo"};
    return (struct completion_rules){
        .model_names = names,
        .model_name_count = 1,
        .vocab = 1000,
        .max_model_len = 4096,
        .has_tokenizer = true,
        .defaults = model_config_no_defaults(),
    };
}

static enum status read_completion(const void *text, struct err *err)
{
    const struct completion_rules rules = some_rules();
    struct completion_request r;
    struct api_error e = {0};
    struct buf reply;
    enum status st = completion_parse(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        CHECK(r.prompt_count > 0);
        completion_free(&r);
        return OK;
    }
    buf_init(&reply, 1 << 16);
    api_error_write(&e, &reply); /* a reply that has no memory either is marked */
    CHECK(reply.failed || strstr(reply.data, e.message));
    buf_free(&reply);
    CHECK(e.http_status == 503);
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

static enum status read_batch_request(const void *line, struct err *err)
{
    struct batch_request r;
    enum status st = batch_line_request(line, strlen(line), "m", &r, err);
    CHECK(st != OK || (r.custom_id_len == 1 && strstr(r.body.data, "\"m\"")));
    batch_line_free(&r);
    return st;
}

/* An answer that is there is never taken for a failure. */
static enum status read_batch_result(const void *line, struct err *err)
{
    char *id = NULL;
    size_t n;
    bool answered;
    if (!batch_line_result(line, strlen(line), &id, &n, &answered))
        return base_fail(err, ERR_NOMEM, "no memory");
    CHECK(answered && n == 1);
    free(id);
    return OK;
}

static enum status read_embedding(const void *text, struct err *err)
{
    struct completion_rules rules = some_rules();
    struct completion_request r;
    struct api_error e = {0};
    rules.columns = 8;
    enum status st = embedding_parse(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        CHECK(r.prompt_count == 2 && r.params.pooled);
        completion_free(&r);
    }
    CHECK(st == OK || e.http_status == 503);
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

static enum status read_chat(const void *text, struct err *err)
{
    const struct completion_rules rules = some_rules();
    struct chat_request r;
    struct api_error e = {0};
    enum status st = chat_parse(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        CHECK(jdoc_size(jdoc_get(r.conversation.vars, "messages")) == 2);
        chat_free(&r);
    }
    CHECK(st == OK || e.http_status == 503);
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

/* Thoughts as parts of content, for a template that takes them so. */
static enum status read_thoughts(const void *text, struct err *err)
{
    struct completion_rules rules = some_rules();
    struct chat_request r;
    struct api_error e = {0};
    rules.answer.thought_parts = rules.answer.system_thoughts = true;
    enum status st = chat_parse(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        const struct jdoc *messages = jdoc_get(r.conversation.vars, "messages");
        CHECK(jdoc_size(jdoc_get(jdoc_at(messages, 0), "content")) == 3);
        CHECK(jdoc_size(jdoc_get(jdoc_at(messages, 2), "content")) == 2);
        chat_free(&r);
    }
    CHECK(st == OK || e.http_status == 503);
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

static enum status read_responses(const void *text, struct err *err)
{
    const struct completion_rules rules = some_rules();
    struct chat_request r;
    struct api_error e = {0};
    enum status st = responses_parse(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        CHECK(jdoc_size(jdoc_get(r.conversation.vars, "messages")) == 4);
        CHECK(r.completion.own_tools && r.completion.repeated.len > 0);
        chat_free(&r);
    }
    CHECK(st == OK || e.http_status == 503);
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

static enum status read_messages(const void *text, struct err *err)
{
    const struct completion_rules rules = some_rules();
    struct chat_request r;
    struct api_error e = {0};
    enum status st = messages_parse(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        const struct jdoc *messages = jdoc_get(r.conversation.vars, "messages");
        CHECK(jdoc_size(messages) == 5 && r.completion.own_tools);
        CHECK(jdoc_string_len(jdoc_get(jdoc_at(messages, 1), "content")) == 3);
        CHECK(jdoc_string_len(jdoc_get(jdoc_at(messages, 2), "reasoning_content")) == 1);
        CHECK(jdoc_size(jdoc_get(jdoc_at(messages, 2), "tool_calls")) == 1);
        CHECK(jdoc_string_len(jdoc_get(jdoc_at(messages, 3), "content")) == 1);
        chat_free(&r);
    }
    CHECK(st == OK || e.http_status == 503);
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

/* Of an answer of all parts, whole or in a stream. */
struct told {
    bool streams;
};

static enum status write_messages(const void *told, struct err *err)
{
    static const char text[] = "<think>a</think>b<tool_call>{\"name\": \"f\"}</tool_call>c";
    static const struct completion_meta meta = {.id = "msg_1", .model = "m"};
    static const struct completion_usage usage = {1, 1, 1, .reasoning_tokens = 1};
    static const struct answer_form form = {.calls = ANSWER_CALLS_HERMES, .reasoning = true};
    const bool streams = ((const struct told *)told)->streams;
    struct completion_choice c = {.finish_reason = "tool_calls", .logprobs_top = -1};
    struct buf out, frames;
    buf_init(&out, 1 << 20);
    buf_init(&frames, 1 << 20);
    struct answer *answer = answer_open(&form, 0);
    c.state = messages_reply.open();
    enum status st = answer && c.state ? OK : ERR_NOMEM;
    if (st == OK && streams)
        messages_reply.start(&meta, c.state, &usage, &frames);
    for (size_t i = 0; st == OK && i < sizeof text - 1; i++) {
        answer_push(answer, text + i, 1);
        if (i + 2 == sizeof text)
            answer_finish(answer, true);
        if (answer_failed(answer)) {
            st = ERR_NOMEM;
            break;
        }
        c.answer = answer;
        c.text = answer_content(answer)->data;
        c.text_len = answer_content(answer)->len;
        c.finish_reason = i + 2 == sizeof text ? "tool_calls" : NULL;
        messages_reply.chunk(&meta, &c, false, NULL, &frames);
        answer_clear(answer);
    }
    if (st == OK && streams) {
        messages_reply.finish(&meta, &c, &usage, &frames);
        CHECK(frames.failed || strstr(frames.data, "message_stop"));
        st = frames.failed ? ERR_NOMEM : OK;
    } else if (st == OK) {
        messages_reply.begin(&meta, &c, &out);
        messages_reply.choice(&meta, &c, &out);
        messages_reply.end(&usage, &out);
        CHECK(out.failed || (strstr(out.data, "\"thinking\":\"a\"") && strstr(out.data, "toolu_") &&
                             strstr(out.data, "\"text\":\"b\"") && strstr(out.data, "\"c\"")));
        st = out.failed ? ERR_NOMEM : OK;
    }
    messages_reply.close(c.state);
    answer_close(answer);
    buf_free(&out);
    buf_free(&frames);
    return st == OK ? OK : base_fail(err, st, "reply: no memory");
}

/* A reply that is not whole is marked, wherever memory ran out. */
static enum status write_responses(const void *text, struct err *err)
{
    struct buf repeated, out;
    buf_init(&repeated, 16);
    buf_init(&out, 1 << 20);
    const struct completion_meta meta = {.id = "resp_1", .model = "m", .repeated = &repeated};
    const struct completion_usage usage = {1, 1, 1, .reasoning_tokens = -1};
    struct completion_choice c = {.logprobs_top = -1, .text = text, .text_len = strlen(text)};
    struct buf frames;
    buf_init(&frames, 1 << 20);
    c.state = responses_reply.open();
    if (!c.state)
        return base_fail(err, ERR_NOMEM, "reply: no memory");
    responses_reply.start(&meta, c.state, &usage, &frames);
    for (int i = 0; i < 4; i++) {
        c.finish_reason = i == 3 ? "stop" : NULL;
        responses_reply.chunk(&meta, &c, false, NULL, &frames);
    }
    responses_reply.begin(&meta, &c, &out);
    responses_reply.choice(&meta, &c, &out);
    responses_reply.end(&usage, &out);
    const bool whole = !out.failed && strstr(out.data, "aaaa");
    const enum status st =
        whole && !frames.failed ? OK : base_fail(err, ERR_NOMEM, "reply: no memory");
    CHECK(whole || out.failed);
    buf_free(&frames);
    buf_free(&out);
    responses_reply.close(c.state);
    return st;
}

/* A thought of one byte, and a call. */
static enum status read_answer_of(const struct answer_form *form, const char *text, struct err *err)
{
    struct answer *a = answer_open(form, 0);
    if (!a)
        return base_fail(err, ERR_NOMEM, "answer: no memory");
    answer_push(a, text, strlen(text));
    answer_finish(a, true);
    const bool failed = answer_failed(a);
    CHECK(failed || (answer_call_count(a) == 1 && answer_reasoning(a)->len == 1));
    answer_close(a);
    return failed ? base_fail(err, ERR_NOMEM, "answer: no memory") : OK;
}

static enum status read_answer(const void *text, struct err *err)
{
    const struct answer_form form = {.calls = ANSWER_CALLS_HERMES, .reasoning = true};
    return read_answer_of(&form, text, err);
}

static enum status read_gemma(const void *text, struct err *err)
{
    const struct answer_form form = {
        .calls = ANSWER_CALLS_GEMMA4, .reasoning = true, .thoughts = ANSWER_THOUGHTS_GEMMA4};
    return read_answer_of(&form, text, err);
}

static enum status read_keys(const void *path, struct err *err)
{
    struct keys *k = NULL;
    enum status st = keys_open(path, false, &k, err);
    CHECK(st != OK || keys_count(k) == 2);
    keys_close(k);
    return st;
}

static enum status read_pieces(const void *path, struct err *err)
{
    static char bytes[1 << 16];
    struct spm_file file;
    FILE *f = fopen(path, "rb");
    if (!f)
        return base_fail(err, ERR_NOMEM, "no memory to open it");
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    enum status st = spm_file_parse(bytes, n, "here", &file, err);
    if (st == OK) {
        CHECK(file.count > 3);
        spm_file_free(&file);
    }
    return st;
}

/* Without patterns, whose compiler does not survive. */
static enum status read_tokenizer_json(const void *text, struct err *err)
{
    const struct tokenizer_bytes b = {.json = text, .json_n = strlen(text), .where = "here"};
    struct tokenizer *t = NULL;
    enum status st = tokenizer_open_bytes(&b, 100, &t, err);
    CHECK(st != OK || tokenizer_count(t) == 6);
    tokenizer_close(t);
    return st;
}

static enum status encode(const void *tokenizer, struct err *err)
{
    int32_t *ids = NULL, count = 0;
    enum status st = tokenizer_encode(tokenizer, "b ab<x>", 7, true, &ids, &count, err);
    CHECK(st != OK || (count == 5 && ids[0] == 5 && ids[3] == 2));
    free(ids);
    return st;
}

static enum status encode_marked(const void *tokenizer, struct err *err)
{
    const struct tokenizer_text text = {.bytes = "b<s>b<s>", .foreign = "\0\0\0\0\0\1\0", .n = 8};
    int32_t *ids = NULL, count = 0;
    enum status st = tokenizer_encode_marked(tokenizer, &text, false, &ids, &count, err);
    CHECK(st != OK || (count > 2 && ids[1] == 5));
    free(ids);
    return st;
}

static enum status read_detokenize(const void *text, struct err *err)
{
    const struct completion_rules rules = some_rules();
    struct detokenize_request r;
    struct api_error e = {0};
    enum status st = tokenize_parse_ids(text, strlen(text), &rules, &r, &e);
    if (st == OK) {
        CHECK(r.count == 3);
        tokenize_free_ids(&r);
    }
    snprintf(err->text, sizeof err->text, "%s", e.message);
    return st;
}

/* SentencePiece itself is left out: its protobuf does not survive. */
static enum status read_tokenizer_config(const void *text, struct err *err)
{
    const struct tokenizer_config_more more = {
        .bos = "<s>", .eos = "</s>", .class = "LlamaTokenizer"};
    struct tokenizer_config c = {0};
    enum status st = tokenizer_config_parse(text, strlen(text), &more, &c, err);
    CHECK(st != OK || (c.bos.add && strstr(c.info, "<s>")));
    tokenizer_config_free(&c);
    return st;
}

#define TOKENIZER_JSON(normalizer, pre_tokenizer)                                                  \
    "{\"added_tokens\": [{\"id\": 4, \"content\": \"<x>\", \"normalized\": true},"                 \
    " {\"id\": 5, \"content\": \"<s>\", \"special\": true}],"                                      \
    " \"normalizer\": " normalizer ", \"pre_tokenizer\": " pre_tokenizer ","                       \
    " \"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"\\u2581\": 3},"                     \
    " \"merges\": [[\"a\", \"b\"]]},"                                                              \
    " \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\":"      \
    " {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}],"                                       \
    " \"special_tokens\": {\"<s>\": {\"ids\": [5]}}}, \"decoder\": {\"type\": \"Fuse\"}}"

static void test_tokenizer_json(void **state)
{
    static const char plain[] =
        TOKENIZER_JSON("{\"type\": \"Prepend\", \"prepend\": \"a\"}", "null");
    static const char cut[] = TOKENIZER_JSON(
        "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\\u2581\"}",
        "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?i:B)\"},"
        " \"behavior\": \"MergedWithPrevious\"}");
    const struct tokenizer_bytes b = {.json = cut, .json_n = strlen(cut), .where = "here"};
    struct tokenizer *t = NULL;
    struct err err = {""};
    (void)state;
    nomem_sweep("tokenizer.json", read_tokenizer_json, plain);
    assert_int_equal(tokenizer_open_bytes(&b, 100, &t, &err), OK);
    nomem_sweep("encoding", encode, t);
    nomem_sweep("encoding of several", encode_marked, t);
    tokenizer_close(t);
}

/* A request whose answer has a form, up to its guide. */
struct formed {
    struct guides *guides;
    struct jdoc *value;
    enum structure_kind kind;
};

static enum status read_structure(const void *ctx, struct err *err)
{
    const struct formed *f = ctx;
    const struct structure s = {.kind = f->kind, .value = f->value, .field = "form"};
    struct guide *guide = NULL;
    struct api_error e = {0};
    enum status st = guides_get(f->guides, &s, &guide, &e);
    if (st != OK)
        base_fail(err, st, "%s", e.message);
    guide_unref(guide);
    return st;
}

static enum status build_structure(const void *ctx, struct err *err)
{
    const struct formed *f = ctx;
    const struct structure s = {.kind = f->kind, .value = f->value, .field = "form"};
    struct grammar *g = NULL;
    enum status st = structure_build(&s, &g, err);
    grammar_free(g);
    return st;
}

static void test_structures(void **state)
{
    static const struct {
        const char *name;
        enum structure_kind kind;
        const char *json;
    } forms[] = {
        {"schema", STRUCTURE_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"pattern\": "
         "\"^[a-f]+(x|y)$\"}, \"b\": {\"enum\": [1, \"two\", [3.5], null]}, \"c\": {\"type\": "
         "\"array\", \"items\": {\"type\": \"integer\", \"minimum\": 3}}}, \"required\": [\"a\"], "
         "\"additionalProperties\": {\"type\": \"number\"}}"},
        {"schema of maps", STRUCTURE_SCHEMA,
         "{\"properties\": {\"a\": {\"propertyNames\": {\"pattern\": \"^x\"}, \"required\": "
         "[\"xy\"], \"maxProperties\": 3}, \"b\": {\"items\": {\"enum\": [1, \"two\"]}, "
         "\"uniqueItems\": true}, \"c\": {\"multipleOf\": 0.5}}, \"patternProperties\": "
         "{\"x$\": {\"type\": \"null\"}, \"y$\": {\"type\": \"null\"}}}"},
        {"regular expression", STRUCTURE_PATTERN, "\"([a-z]{2,5}|\\\\d+)[^x]*\""},
        {"choice", STRUCTURE_CHOICES, "[\"yes\", \"no\"]"},
    };
    const struct answer_form plain = {.calls = ANSWER_CALLS_NONE};
    struct tokenizer *t = NULL;
    struct err err = {""};
    (void)state;
    assert_int_equal(tokenizer_open(CORPUS "tokenizer/bytes", 400, &t, &err), OK);
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct formed f = {.kind = forms[i].kind};
        assert_int_equal(jdoc_parse(forms[i].json, strlen(forms[i].json), &jdoc_limits_request,
                                    "form", &f.value, &err),
                         OK);
        nomem_sweep(forms[i].name, build_structure, &f);
        assert_int_equal(guides_open(t, 400, &plain, &f.guides, &err), OK);
        nomem_sweep("key of a guide", read_structure, &f); /* which is made but once */
        guides_close(f.guides);
        jdoc_close(f.value);
    }
    tokenizer_close(t);
}

static void test_requests(void **state)
{
    char path[PATH_MAX];
    (void)state;
    nomem_sweep("text", read_completion,
                "{\"prompt\": [\"one\", \"two\"], \"stop\": [\"a\", \"b\"], \"n\": 2, \"user\": "
                "\"me\", \"odd\": [{\"x\": 1}]}");
    nomem_sweep("ids", read_completion,
                "{\"prompt\": [[1, 2, 3], [4, 5]], \"logit_bias\": {\"5\": 1}, \"stop_token_ids\": "
                "[7], \"logprobs\": 2}");
    nomem_sweep("texts of vectors", read_embedding,
                "{\"input\": [\"a\", \"b\"], \"user\": \"me\"}");
    nomem_sweep("ids of vectors", read_embedding, "{\"input\": [[1, 2], [3]], \"odd\": {}}");
    nomem_sweep(
        "chat", read_chat,
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"a\"}]}, {\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", "
        "\"arguments\": \"{\\\"x\\\": 1}\"}}]}], \"chat_template_kwargs\": {\"a\": [1]}}");
    nomem_sweep(
        "thoughts", read_thoughts,
        "{\"messages\": [{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"a\"}, {\"type\": \"thinking\", \"thinking\": \"b\"}, {\"type\": \"text\", \"text\": "
        "\"c\"}]}, {\"role\": \"user\", \"content\": \"d\"}, {\"role\": \"assistant\", "
        "\"content\": [{\"type\": \"thinking\", \"thinking\": [{\"type\": \"text\", \"text\": "
        "\"e\"}]}, {\"type\": \"text\", \"text\": \"f\"}]}, {\"role\": \"user\", \"content\": "
        "\"g\"}]}");
    nomem_sweep("responses", read_responses,
                "{\"instructions\": \"i\", \"input\": [{\"role\": \"user\", \"content\": "
                "[{\"type\": \"input_text\", \"text\": \"a\"}]}, {\"type\": \"reasoning\", "
                "\"content\": [{\"type\": \"reasoning_text\", \"text\": \"r\"}]}, {\"type\": "
                "\"function_call\", \"call_id\": \"c\", \"name\": \"f\", \"arguments\": \"{}\"}, "
                "{\"type\": \"function_call_output\", \"call_id\": \"c\", \"output\": \"o\"}], "
                "\"tools\": [{\"type\": \"function\", \"name\": \"f\"}], \"tool_choice\": "
                "\"none\", \"metadata\": {\"k\": \"v\"}}");
    nomem_sweep("reply of responses", write_responses, "a");
    nomem_sweep("messages", read_messages,
                "{\"max_tokens\": 9, \"system\": [{\"type\": \"text\", \"text\": \"s\"}], "
                "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
                "\"a\"}]}, {\"role\": \"user\", \"content\": \"b\"}, {\"role\": \"assistant\", "
                "\"content\": [{\"type\": \"thinking\", \"thinking\": \"r\"}, {\"type\": "
                "\"tool_use\", \"id\": \"toolu_1\", \"name\": \"f\", \"input\": {\"x\": 1}}]}, "
                "{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
                "\"tool_use_id\": \"toolu_1\", \"content\": [{\"type\": \"text\", \"text\": "
                "\"o\"}]}]}, {\"role\": \"assistant\", \"content\": \"p\"}], \"tools\": "
                "[{\"name\": \"f\", \"input_schema\": {\"type\": \"object\"}}], "
                "\"tool_choice\": {\"type\": \"none\"}, \"thinking\": {\"type\": \"enabled\"}, "
                "\"output_config\": {\"effort\": \"low\"}}");
    nomem_sweep("reply of messages", write_messages, &(struct told){false});
    nomem_sweep("stream of messages", write_messages, &(struct told){true});
    nomem_sweep(
        "answer of Gemma", read_gemma,
        "<|channel>thought\na<channel|><|tool_call>call:f{a:<|\"|>b<|\"|>,c:1}<tool_call|>");
    nomem_sweep("answer", read_answer,
                "<think>a</think>b<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}");
    nomem_sweep("request of a batch", read_batch_request,
                "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/responses\", "
                "\"body\": {\"input\": \"x\"}}");
    nomem_sweep("result of a batch", read_batch_result,
                "{\"custom_id\": \"a\", \"response\": {\"status_code\": 200}, \"error\": null}");
    nomem_sweep("detokenize", read_detokenize, "{\"tokens\": [1, 2, 3]}");
    nomem_sweep("tokenizer configuration", read_tokenizer_config,
                "{\"add_bos_token\": true, \"bos_token\": {\"content\": \"<s>\"}}");
    snprintf(path, sizeof path, "%s/keys", scratch_dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("# two\nsk-0123456789\nsk-abcdefghij\n", f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
    nomem_sweep("keys", read_keys, path);
    nomem_sweep("pieces", read_pieces, CORPUS "spm/mapped.model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),         cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_checkpoints),    cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_requests),       cmocka_unit_test(test_structures),
        cmocka_unit_test(test_tokenizer_json),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
