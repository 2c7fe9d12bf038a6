/* Options: every kind, both ways to write a value, ranges, the environment, and messages that name
 * the option, the value and what is wanted. */
#include "config/options.h"
#include "tests/scratch.h"

#include <string.h>

extern char **environ;

enum { ARGS_MAX = 16 };

static struct options o;
static struct err err;
static bool help;

/* Parses words separated by spaces; the first is the command. */
static enum status parse(const char *line)
{
    static char words[512]; /* options borrow from it */
    char *argv[ARGS_MAX];
    int argc = 0;
    snprintf(words, sizeof words, "%s", line);
    char *save = NULL;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    err.text[0] = '\0';
    options_close(&o);
    return options_parse(argc, argv, &o, &help, &err);
}

static void good(const char *line)
{
    if (parse(line) != OK)
        fail_msg("%s: %s", line, err.text);
}

static void bad(const char *line, const char *wanted)
{
    if (parse(line) != ERR_USAGE)
        fail_msg("accepted: %s", line);
    if (!strstr(err.text, wanted))
        fail_msg("%s: \"%s\" does not say \"%s\"", line, err.text, wanted);
}

static int clear_environment(void **state)
{
    (void)state;
    for (char **e = environ; *e;) {
        char name[128];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "TESSERA_", 8) != 0 || n >= sizeof name) {
            e++;
            continue;
        }
        memcpy(name, *e, n);
        name[n] = '\0';
        unsetenv(name); /* moves the rest down */
    }
    return 0;
}

static void test_defaults(void **state)
{
    (void)state;
    good("serve m");
    assert_int_equal(o.command, COMMAND_SERVE);
    assert_string_equal(o.model, "m");
    assert_false(help);
    assert_int_equal(o.tp, 1);
    assert_string_equal(o.parallel_mode, "1d");
    assert_null(o.plan_file);
    assert_string_equal(o.device, "cpu");
    assert_string_equal(o.dtype, "auto");
    assert_string_equal(o.sampler, "gather");
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.port, 8000);
    assert_int_equal(o.max_model_len, 0);
    assert_int_equal(o.max_num_seqs, OPTIONS_SEQS_DEFAULT);
    assert_int_equal(o.max_num_batched_tokens, 512);
    assert_int_equal(o.max_num_queued_reqs, 0);
    assert_int_equal(o.max_num_queued_tokens, 1 << 20);
    assert_true(o.prefix_caching && !o.said.prefix_caching && !o.said.max_num_seqs);
    assert_int_equal(o.kv_cache_memory, 0);
    assert_true(o.drain_timeout == 30 && o.load_timeout == 300 && o.step_timeout == 30);
    assert_false(o.json);
}

static void test_ways_to_write(void **state)
{
    (void)state;
    static const char *const twos[] = {
        "plan m -tp 2",      "plan m -tp=2",  "plan m --tp=2",   "plan m --tensor-parallel-size 2",
        "plan -tp 2 m",      "plan -tp=02 m", "plan m --tp 2.0", "plan m --tensor-parallel-size=2",
        "plan m -tp 3 -tp 2"};
    for (size_t i = 0; i < ARRAY_LEN(twos); i++) {
        good(twos[i]);
        assert_int_equal(o.tp, 2);
        assert_string_equal(o.model, "m");
    }
    good("serve m --port=0");
    assert_int_equal(o.port, 0);
    good("serve --served-model-name=a=b m");
    assert_string_equal(o.served_model_name, "a=b");
    good("shard m -o out");
    assert_string_equal(o.output, "out");
    good("synth --config c -o out --seed 7");
    assert_string_equal(o.synth_config, "c");
    good("plan m --json");
    assert_true(o.json);
    good("plan m --json=0");
    assert_false(o.json);
    good("serve m --no-enable-prefix-caching");
    assert_true(!o.prefix_caching && o.said.prefix_caching);
    assert_true(o.webui);
    good("serve m --no-webui");
    assert_false(o.webui);
    good("serve m --no-enable-prefix-caching --enable-prefix-caching");
    assert_true(o.prefix_caching && o.said.prefix_caching);
    bad("serve m --no-enable-prefix-caching=1", "unknown option");
    bad("serve m --no-port", "unknown option");
    good("serve m --drain-timeout 0.25");
    assert_true(o.drain_timeout == 0.25);
}

static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {{"32k", 32 << 10}, {"32K", 32 << 10},  {"1.5G", 3ll << 29},  {"64MiB", 64 << 20},
                 {"64M", 64 << 20}, {"64MB", 64 << 20}, {"4096", 4096},       {"4096B", 4096},
                 {"0", 0},          {"1T", 1ll << 40},  {"1024T", 1ll << 50}, {"0.5KiB", 512}};
    static const char *const wrong[] = {"1025T", "-1",   "1.5",    "0.3k", "k",
                                        "64X",   "64MM", "64i",    "64iB", "1e",
                                        "nan",   "inf",  "64MiBx", "0x10", ""};
    char line[128];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(line, sizeof line, "serve m --kv-cache-memory=%s", cases[i].text);
        good(line);
        assert_int_equal(o.kv_cache_memory, cases[i].bytes);
    }
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        snprintf(line, sizeof line, "serve m --kv-cache-memory=%s", wrong[i]);
        bad(line, "--kv-cache-memory: got \"");
    }
    bad("serve m --kv-cache-memory=32q",
        "got \"32q\", expected bytes from 0 B to 1024 TiB, as 512M or 4G");
}

static void test_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        long long min, max;
    } cases[] = {{"tensor-parallel-size", 1, 64},   {"port", 0, 65535},
                 {"threads-per-rank", 0, 1024},     {"prefill-rows", 0, 1 << 20},
                 {"max-num-seqs", 1, 1024},         {"max-num-batched-tokens", 1, 16384},
                 {"max-num-queued-reqs", 1, 65536}, {"drain-timeout", 0, 3600},
                 {"load-timeout", 1, 86400},        {"step-timeout", 1, 3600}};
    char line[128], wanted[128];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (int end = 0; end < 2; end++) {
            long long v = end ? cases[i].max : cases[i].min;
            snprintf(line, sizeof line, "serve m --%s %lld", cases[i].name, v);
            good(line);
            v += end ? 1 : -1;
            snprintf(line, sizeof line, "serve m --%s %lld", cases[i].name, v);
            snprintf(wanted, sizeof wanted, "--%s: got \"%lld\", expected a", cases[i].name, v);
            bad(line, wanted);
            snprintf(wanted, sizeof wanted, "number from %lld to %lld", cases[i].min, cases[i].max);
            bad(line, wanted);
        }
    }
    bad("serve m --port 80x", "--port: got \"80x\", expected a whole number from 0 to 65535");
    bad("serve m --port 1.5", "--port: got \"1.5\"");
    bad("serve m --port 4294967296", "--port: got");
    bad("serve m --port=", "--port: got \"\"");
    bad("serve m --drain-timeout nan", "--drain-timeout: got \"nan\"");
    bad("serve m --port", "--port needs a value");
    bad("serve m --host=", "--host: got \"\", expected a value");
}

/* Every whole number in the range is kept to the last digit. */
static void test_seed(void **state)
{
    (void)state;
    good("serve m --load-format dummy --seed 9007199254740993"); /* 2^53 + 1: no double */
    assert_true(o.seed == 9007199254740993);
    good("serve m --load-format dummy --seed 4611686018427387903");
    assert_true(o.seed == 4611686018427387903);
    bad("serve m --seed 9223372036854775808", "--seed: got");
    bad("serve m --seed -1", "--seed: got \"-1\"");
    bad("serve m --seed 1.5", "--seed: got \"1.5\"");
    bad("serve m --seed 5", "--seed is for --load-format dummy");
    bad("serve m --shared-prefix-cache --no-enable-prefix-caching",
        "--shared-prefix-cache needs the prefix cache");
}

/* An option that would do nothing, or that another one takes back. */
static void test_without_effect(void **state)
{
    (void)state;
    bad("serve m --master-addr h", "--master-addr is for ranks on several machines");
    bad("serve m --master-port 7", "--master-port is for ranks on several machines");
    bad("serve m --group-secret-file f", "--group-secret-file is for ranks on several machines");
    good("serve m --comm mpi --master-addr h --master-port 7 --group-secret-file f");
    bad("serve m --plan f --parallel-mode 2d", "--parallel-mode, too");
    bad("plan m --plan f --parallel-mode 1d", "--parallel-mode, too");
    good("rank m --plan f --parallel-mode 1d");
    bad("serve m --http-max-bodies-bytes 1M", "--http-max-body-bytes 4194304");
    bad("serve m --http-max-body-bytes 5M", "4.0 MiB"); /* where the limits of its JSON end */
    good("serve m --http-max-body-bytes 4M");
    good("serve m --http-max-body-bytes 1M --http-max-bodies-bytes 1M");
}

static void test_choices(void **state)
{
    (void)state;
    good("serve m --dtype bfloat16 --device=ref --load-format dummy");
    assert_string_equal(o.dtype, "bfloat16");
    assert_string_equal(o.device, "ref");
    assert_int_equal(options_dtype(&o, DTYPE_F32), DTYPE_BF16);
    good("serve m --device cpu-avx2");
    assert_int_equal(options_dtype(&o, DTYPE_F16), DTYPE_F16);
    good("serve m --dtype float16");
    assert_int_equal(options_dtype(&o, DTYPE_F32), DTYPE_F16);
    good("serve m --dtype float32");
    assert_int_equal(options_dtype(&o, DTYPE_F16), DTYPE_F32);
    assert_int_equal(options_kv_dtype(&o, DTYPE_F16), DTYPE_F32);
    bad("serve m --dtype bf16", "--dtype: got \"bf16\", expected auto|float32|bfloat16|float16");
    bad("serve m --dtype floa", "--dtype: got \"floa\"");
    bad("serve m --dtype float320", "--dtype: got");
    bad("serve m --dtype auto|float32", "--dtype: got");
    bad("serve m --dtype=", "--dtype: got \"\"");
    good("serve m --kv-cache-dtype fp8");
    assert_int_equal(options_kv_dtype(&o, DTYPE_BF16), DTYPE_F8_E4M3);
    bad("serve m --kv-cache-dtype fp4", "--kv-cache-dtype: got \"fp4\", expected auto|fp8");
    assert_int_equal(options_quantization(&o), DTYPE_F32);
    good("serve m --quantization fp8");
    assert_int_equal(options_quantization(&o), DTYPE_F8_E4M3);
    good("serve m --quantization int8");
    assert_int_equal(options_quantization(&o), DTYPE_I8);
    good("serve m --quantization int4");
    assert_int_equal(options_quantization(&o), DTYPE_I4);
    assert_false(options_widen(&o));
    good("serve m --quantization none");
    assert_true(options_quantization(&o) == DTYPE_F32 && options_widen(&o));
    bad("serve m --quantization int5",
        "--quantization: got \"int5\", expected auto|none|fp8|int8|int4");
    bad("serve m --parallel-mode 4d", "expected 1d|1d_sp|2d|2.5d|3d");
    good("serve m --parallel-mode 2.5d --mesh 1,3,3");
}

static void test_unknown(void **state)
{
    (void)state;
    bad("serve m --prot 80",
        "unknown option \"--prot\"; did you mean --port? (tessera serve --help lists all)");
    bad("serve m --max-model-length=5", "did you mean --max-model-len?");
    bad("serve m --max-num-seq 5", "did you mean --max-num-seqs?");
    bad("serve m --tensor-parallel 5", "did you mean --tensor-parallel-size?");
    bad("serve m --drain", "did you mean --drain-timeout?");
    bad("plan m --mode 1", "did you mean --model or --modes?");
    bad("plan m --modess 1", "did you mean --modes?");
    bad("serve m -xp 5", "unknown option \"-xp\" (tessera serve --help lists all)");
    bad("serve m -tpp 5", "unknown option \"-tpp\" (tessera serve --help lists all)");
    bad("serve m --hast 5", "did you mean --host?");
    bad("serve m --toast 5", "unknown option \"--toast\" (tessera");
    bad("serve m --frobnicate", "unknown option \"--frobnicate\" (tessera serve --help lists all)");
    bad("serve m --rank 1", "unknown option \"--rank\"; did you mean --ranks-per-device?");
    bad("serve m --", "unknown option");
    /* of another command */
    bad("serve m -o x", "unknown option \"-o\" (tessera serve --help lists all)");
    bad("inspect m --port=1", "--port is no option of inspect, but of other commands");
    bad("serve m --json", "--json is no option of serve");
    bad("server m", "unknown command \"server\"");
    /* internal ones, which are not even suggested */
    static const char *const internal[] = {"rank",      "parent-pid", "kv-blocks",
                                           "on-device", "comm-bytes", "cpu-list"};
    for (size_t i = 0; i < ARRAY_LEN(internal); i++) {
        char line[64], suggested[64];
        snprintf(line, sizeof line, "serve m --%s 1", internal[i]);
        snprintf(suggested, sizeof suggested, "mean --%s?", internal[i]);
        bad(line, "unknown option");
        assert_null(strstr(err.text, suggested));
    }
    good("rank m --rank 3 --parent-pid 17 --kv-blocks 9 --comm-bytes 1048576");
    assert_int_equal(o.rank, 3);
    assert_int_equal(o.parent_pid, 17);
    assert_int_equal(o.kv_blocks, 9);
    assert_int_equal(o.comm_bytes, 1048576);
}

static void test_environment(void **state)
{
    (void)state;
    setenv("TESSERA_PORT", "81", 1);
    setenv("TESSERA_MAX_NUM_SEQS", "5", 1);
    good("serve m");
    assert_int_equal(o.port, 81);
    assert_int_equal(o.max_num_seqs, 5);
    good("serve m --port 82");
    assert_int_equal(o.port, 82);
    good("inspect m"); /* has no such options */
    setenv("TESSERA_PORT", "x", 1);
    bad("serve m", "TESSERA_PORT: --port: got \"x\"");
    bad("serve m --port 82", "TESSERA_PORT: --port: got \"x\"");
    setenv("TESSERA_PORT", "", 1);
    bad("serve m", "--port: got \"\"");
    unsetenv("TESSERA_PORT");
    good("rank m"); /* ranks are told everything */
    assert_int_equal(o.max_num_seqs, 64);
    setenv("TESSERA_RANK", "2", 1);
    setenv("TESSERA_KV_BLOCKS", "2", 1);
    good("serve m");
    assert_int_equal(o.rank, 0);
    assert_int_equal(o.kv_blocks, 0);
    setenv("TESSERA_JSON", "1", 1);
    good("plan m");
    assert_true(o.json);
    setenv("TESSERA_JSON", "false", 1);
    good("plan m");
    assert_false(o.json);
    clear_environment(NULL);
}

/* What Kubernetes says of a service "tessera" is not an option's value; what a user says is. */
static void test_service_links(void **state)
{
    (void)state;
    setenv("TESSERA_PORT", "tcp://10.0.0.1:8000", 1);
    setenv("TESSERA_MASTER_PORT", "udp://10.0.0.2:1", 1); /* of a service "tessera-master" */
    setenv("TESSERA_PORT_8000_TCP_PORT", "8000", 1);
    good("serve m");
    assert_int_equal(o.port, 8000);
    assert_int_equal(o.master_port, 0);
    setenv("TESSERA_HOST", "tcp://10.0.0.1", 1);
    good("serve m");
    assert_string_equal(o.host, "tcp://10.0.0.1"); /* refused where it is resolved */
    setenv("TESSERA_PORT", "10.0.0.1:8000", 1);
    bad("serve m", "TESSERA_PORT: --port: got \"10.0.0.1:8000\"");
    clear_environment(NULL);
}

static void test_positionals(void **state)
{
    (void)state;
    bad("serve", "serve: which model directory? (tessera serve --help)");
    bad("serve a b", "expected one model directory, got \"b\" too");
    bad("synth -o x", "--config FILE is needed");
    bad("synth --config x", "synth: -o DIR is needed");
    bad("shard m", "shard: -o DIR is needed");
}

/* What options_help prints; the caller frees. */
static char *help_text(enum command command)
{
    const char *path = scratch_path("help.txt");
    size_t n;
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0);
    assert_non_null(freopen(path, "w", stdout));
    options_help(command);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    return (char *)scratch_read(path, &n);
}

static void test_help(void **state)
{
    (void)state;
    static const char *const asks[] = {"serve --help", "serve -h", "serve m --port 1 --help",
                                       "synth --help", "serve --help --nonsense"};
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        good(asks[i]);
        assert_true(help);
    }
    assert_int_equal(o.command, COMMAND_SERVE);
    char *text = help_text(COMMAND_SERVE);
    static const char *const parts[] = {"usage: tessera serve MODEL",
                                        "--tensor-parallel-size, -tp",
                                        "[8000]",
                                        "--host",
                                        "(cpu|cpu-generic|cpu-avx2|cpu-avx512|cpu-vnni|\n",
                                        " cpu-bf16|cpu-neon|cpu-dotprod|cuda|ref)",
                                        "--max-num-queued-reqs",
                                        "TESSERA_NAME"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (!strstr(text, parts[i]))
            fail_msg("help of serve does not say %s:\n%s", parts[i], text);
    assert_null(strstr(text, "internal"));
    assert_null(strstr(text, "--rank "));
    assert_null(strstr(text, "--output"));
    free(text);
    text = help_text(COMMAND_SYNTH);
    assert_non_null(strstr(text, "--output, -o"));
    assert_null(strstr(text, "--port"));
    free(text);
}

/* Nothing wraps on a terminal of 80 columns, explanations are aligned, groups have their titles. */
static void test_help_layout(void **state)
{
    (void)state;
    char *text = help_text(COMMAND_SERVE), *next;
    const char *last = strstr(text, "\nEach option");
    assert_non_null(last);
    for (char *line = strstr(text, ":\n  --") + 2; line < last; line = next) {
        next = strchr(line, '\n') + 1;
        const int n = (int)(next - line) - 1;
        if (n > 80 || (line[0] == ' ' && (line[31] != ' ' || line[32] == ' ')))
            fail_msg("badly laid out: \"%.*s\"", n, line);
    }
    assert_non_null(
        strstr(text, "\n\nHTTP:\n  --host HOST                   address to listen on"));
    assert_non_null(strstr(text, "\n  --enable-prefix-caching "));
    assert_non_null(strstr(text, " [on]\n"));
    free(text);
    text = help_text(COMMAND_SHARD);
    assert_non_null(strstr(text, "\n\nOptions:\n  --model MODEL "));
    free(text);
}

/* Two rows of one name would mean that the second is never set. */
static void test_names_are_unique(void **state)
{
    (void)state;
    static const enum command commands[] = {COMMAND_SERVE, COMMAND_PLAN,  COMMAND_INSPECT,
                                            COMMAND_SHARD, COMMAND_SYNTH, COMMAND_BENCH,
                                            COMMAND_BATCH};
    char line[64];
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        char *text = help_text(commands[i]), *options = strstr(text, ":\n  --");
        assert_non_null(options); /* behind the examples, which have an empty line before them */
        for (char *at = options; at; at = strstr(at + 1, "\n  --")) {
            snprintf(line, sizeof line, "\n  --%.*s ", (int)strcspn(at + 5, " ,"), at + 5);
            char *again = strstr(at + 1, line);
            if (again)
                fail_msg("%s is there twice:\n%s", line, text);
        }
        free(text);
    }
}

static void test_bench(void **state)
{
    (void)state;
    good("bench http://h:1 --rates 1,2 --max-concurrency=8 --ignore-eos");
    assert_string_equal(o.model, "http://h:1");
    assert_string_equal(o.bench.request_rate, "1,2");
    assert_int_equal(o.bench.max_concurrency, 8);
    assert_true(o.bench.ignore_eos);
    assert_int_equal(o.bench.num_prompts, 100);
    assert_int_equal(o.bench.rest_count, 0);
    good("bench m --seed 5 -- -tp 2 --port 1");
    assert_int_equal(o.seed, 5);
    assert_int_equal(o.bench.rest_count, 4);
    assert_string_equal(o.bench.rest[0], "-tp");
    assert_int_equal(o.tp, 1); /* they are the server's */
    bad("serve m -- -tp 2", "unknown option");
    bad("bench m --max-concurrency 0", "--max-concurrency");
    bad("bench m --port 1", "--port is an option of the server: tessera bench MODEL -- --port");
    bad("serve m --num-prompts 1", "--num-prompts is no option of serve");
    bad("bench", "http:// URL");
}

static int close_all(void **state)
{
    options_close(&o);
    return scratch_close(state);
}

static int open_all(void **state)
{
    return clear_environment(state) == 0 ? scratch_open(state) : -1;
}

/* ---- the file of --config ---- */

static const char *file_of(const char *text)
{
    const char *path = scratch_path("options.yaml");
    scratch_write(path, text, strlen(text));
    return path;
}

static void test_file(void **state)
{
    (void)state;
    char line[256];
    const char *path = file_of("# a comment\n"
                               "model: /srv/m\n"
                               "tensor-parallel-size: 2\n"
                               "port: \"0\"\n"
                               "kv-cache-memory: 64M # per rank\n"
                               "drain-timeout: 1.5\n"
                               "served-model-name: 'a: b'\n"
                               "json: true\n");
    snprintf(line, sizeof line, "serve --config %s", path);
    good(line);
    assert_string_equal(o.model, "/srv/m");
    assert_int_equal(o.tp, 2);
    assert_int_equal(o.port, 0);
    assert_int_equal(o.kv_cache_memory, 64 << 20);
    assert_true(o.drain_timeout == 1.5);
    assert_string_equal(o.served_model_name, "a: b");
    assert_false(o.json); /* plan's */
    assert_int_equal(o.max_num_seqs, 64);

    snprintf(line, sizeof line, "plan --config=%s", path);
    good(line);
    assert_true(o.json);
    assert_int_equal(o.tp, 2);

    /* argument over environment over file over default */
    setenv("TESSERA_TENSOR_PARALLEL_SIZE", "3", 1);
    setenv("TESSERA_PORT", "81", 1);
    snprintf(line, sizeof line, "serve other --config %s --port 82", path);
    good(line);
    assert_string_equal(o.model, "other");
    assert_int_equal(o.tp, 3);
    assert_int_equal(o.port, 82);
    setenv("TESSERA_CONFIG", path, 1);
    good("serve");
    assert_int_equal(o.port, 81);
    assert_true(o.drain_timeout == 1.5);
    clear_environment(NULL);
}

static void test_file_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"model: m\nprot: 1\n", ":2: unknown key \"prot\"; did you mean port?"},
        {"model: m\n\nport: 70000\n", ":3: --port: got \"70000\", expected a whole number"},
        {"json: perhaps\n", ":1: --json: got \"perhaps\", expected true or false"},
        {"rank: 1\n", ":1: unknown key \"rank\""}, /* internal */
        {"config: other.yaml\n", ":1: a file cannot name another"},
        {"port: 1\nport: 2\n", ":2: port is there already, in line 1"},
        {"port:\n", ":1: port has no value"},
        {"port: ~\n", ":1: port has no value"},
        {"port: [1, 2]\n", ":1: expected one plain value"},
        {"model: m\nlimits:\n  port: 1\n", ":3: expected one plain value"},
        {"? [a]\n: b\n", ":1: expected one plain key"},
        {"host: &a x\n", ":1: expected one plain value"},
        {"host: *a\n", ":1: "},
        {"- port\n", ":1: expected lines of the form"},
        {"port\n", ":1: expected lines of the form"},
        {"port: 1\n---\nport: 2\n", ":2: one document is wanted"},
        {"port: \"1\n", ": not YAML: "},
        {"host: \"\\0\"\n", ":1: a value holds a NUL"},
    };
    char line[256];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *path = file_of(cases[i].text);
        snprintf(line, sizeof line, "serve --config %s", path);
        bad(line, cases[i].wanted);
        if (strncmp(err.text, path, strlen(path)) != 0)
            fail_msg("%s: the message does not begin with the file's name", err.text);
    }
    bad("serve m --config /nowhere.yaml", "/nowhere.yaml: No such file");
    bad("serve m --config /", "is a directory");
    char *large = calloc(1, 70000);
    memset(large, '#', 69999);
    snprintf(line, sizeof line, "serve m --config %s", file_of(large));
    free(large);
    bad(line, "69999 bytes, at most 65536 are read");
    snprintf(line, sizeof line, "serve m --config %s", file_of(""));
    good(line);
}

/* Spellings that other servers know, of names and of values. */
static void test_spellings(void **state)
{
    (void)state;
    char line[256];
    good("serve m --max_model_len 100 --no_enable_prefix_caching --max_num-seqs=3");
    assert_int_equal(o.max_model_len, 100);
    assert_false(o.prefix_caching);
    assert_int_equal(o.max_num_seqs, 3);
    bad("serve m --max_modell_len 100", "did you mean --max-model-len?");
    bad("inspect m --max_num_seqs=1", "--max-num-seqs is no option of inspect");
    snprintf(line, sizeof line, "serve m --config %s",
             file_of("max_model_len: 7\ndtype: half\nenable_prefix_caching: false\n"));
    good(line);
    assert_int_equal(o.max_model_len, 7);
    assert_string_equal(o.dtype, "float16");
    assert_false(o.prefix_caching);
    snprintf(line, sizeof line, "serve m --config %s", file_of("max_num_seqs: 7\nmax-num-seqs: 8"));
    bad(line, ":2: max-num-seqs is there already, in line 1");
    good("serve m --dtype float --kv-cache-dtype fp8_e4m3 --max-model-len auto");
    assert_string_equal(o.dtype, "float32");
    assert_string_equal(o.kv_cache_dtype, "fp8");
    assert_int_equal(o.max_model_len, 0);
    good("serve m --max-model-len 5 --max-model-len -1");
    assert_int_equal(o.max_model_len, 0);
    bad("serve m --max-model-len -2", "--max-model-len: got \"-2\", expected a whole number");
    bad("serve m --max-num-seqs auto", "--max-num-seqs: got \"auto\"");
    static const char *const packed[] = {"awq", "gptq", "compressed-tensors", "awq_marlin"};
    for (size_t i = 0; i < ARRAY_LEN(packed); i++) {
        snprintf(line, sizeof line, "serve m --quantization %s", packed[i]);
        bad(line, "leave it out: files of that kind are read as they are");
    }
}

/* Options of vLLM and llama-server are refused with what to do instead. */
static void test_advice(void **state)
{
    (void)state;
    static const struct {
        const char *words, *wanted;
    } cases[] = {
        {"--gpu-memory-utilization 0.9", "--kv-cache-memory says how many bytes a rank keeps"},
        {"--gpu_memory_utilization=0.9", "--kv-cache-memory says"},
        {"--disable-log-requests", "leave it out: a request is logged in one line"},
        {"--no-enable-log-requests", "leave it out: a request is logged in one line"},
        {"--trust-remote-code", "leave it out: no code of a model is run"},
        {"--enable-chunked-prefill", "leave it out: "},
        {"--no-enable-chunked-prefill", "leave it out: "},
        {"--tokenizer x", "a model is read from a local directory as it is"},
        {"--allowed-origins *", "it is --cors-origins here"},
        {"--ssl-certfile x", "a proxy in front"},
        {"--enable-lora", "--lora DIR"},
        {"-pp 2", "--tensor-parallel-size shares"},
        {"--data-parallel-size 2", "--tensor-parallel-size shares"},
        {"-m x", "the model's directory is the first word"},
        {"-c 4096", "it is --max-model-len here"},
        {"--ctx-size=4096", "it is --max-model-len here"},
        {"-ngl 99", "--device cuda"},
        {"-a x", "it is --served-model-name here"},
        {"-b 8", "it is --max-num-batched-tokens here"},
        {"-np 8", "it is --max-num-seqs here"},
        {"-t 8", "it is --threads-per-rank here"},
        {"-fa", "leave it out"},
        {"-v", "--log-level"},
        {"--temp 1", "a field of requests"},
        {"--temperature 1", "a field of requests"},
        {"-hf org/name", "models are not downloaded"},
        {"--api-key secret", "give --api-key-file"},
    };
    char line[128];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(line, sizeof line, "serve m %s", cases[i].words);
        bad(line, cases[i].wanted);
    }
    bad("serve m --api-key=secret", "--api-key is no option of serve: ");
    assert_null(strstr(err.text, "secret"));
    bad("serve m -c 1", "unknown option \"-c\": it is --max-model-len here (tessera serve --help");
    bad("plan m --allowed-origins x", "unknown option \"--allowed-origins\" (tessera plan");
    bad("plan m --ctx-size 5", "it is --max-model-len here");
    bad("bench m -c 5", "unknown option \"-c\" (tessera bench");
    snprintf(line, sizeof line, "serve --config %s", file_of("gpu_memory_utilization: 0.9\n"));
    bad(line, ":1: unknown key \"gpu-memory-utilization\": --kv-cache-memory says");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_ways_to_write),
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_seed),        cmocka_unit_test(test_without_effect),
        cmocka_unit_test(test_choices),     cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_environment), cmocka_unit_test(test_service_links),
        cmocka_unit_test(test_positionals), cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_layout), cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_file),        cmocka_unit_test(test_file_refused),
        cmocka_unit_test(test_bench),       cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_advice),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
