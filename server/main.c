/* tessera: one binary, one command each for serving, planning and preparing models. */
#include "config/log.h"
#include "engine/rank.h"
#include "server/commands.h"
#include "server/hub_cache.h"
#include "weights/lora.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void usage(FILE *out)
{
    fputs("usage: tessera COMMAND [options]\n\n"
          "  serve MODEL                  serve a model directory over HTTP\n"
          "  complete URL|MODEL \"PROMPT\"  one completion, printed as it comes\n"
          "  chat URL|MODEL               a conversation in the terminal\n"
          "  batch URL|MODEL -i F -o F    answer a file of requests\n"
          "  bench URL|MODEL              measure a server under load\n"
          "  doctor [MODEL]               what this machine can do, what is wrong with it, and\n"
          "                               whether MODEL fits\n"
          "  health [URL]                 ask a server whether it is ready\n"
          "  plan MODEL                   what each rank would hold and send, from headers alone\n"
          "  inspect MODEL                list tensors and the slice of each rank\n"
          "  shard MODEL                  write a checkpoint cut for N ranks\n"
          "  convert FILE.gguf            write llama.cpp's file as a model directory\n"
          "  synth                        write a random checkpoint of a given shape\n"
          "  version                      print version and CPU kernels\n\n"
          "MODEL is a directory as Hugging Face publishes it, or ORG/NAME of one in its cache on\n"
          "this machine; URL is http://HOST:PORT, or HOST:PORT.\n"
          "tessera COMMAND --help lists the options of a command.\n",
          out);
}

static enum status run(const struct options *o, struct err *err)
{
    switch (o->command) {
    case COMMAND_SERVE:
        return commands_serve(o, err);
    case COMMAND_PLAN:
        return commands_plan(o, err);
    case COMMAND_INSPECT:
        return commands_inspect(o, err);
    case COMMAND_SHARD:
        return commands_shard(o, err);
    case COMMAND_CONVERT:
        return commands_convert(o, err);
    case COMMAND_SYNTH:
        return commands_synth(o, err);
    case COMMAND_HEALTH:
        return commands_health(o, err);
    case COMMAND_COMPLETE:
        return commands_complete(o, err);
    case COMMAND_CHAT:
        return commands_chat(o, err);
    case COMMAND_BENCH:
        return commands_bench(o, err);
    case COMMAND_BATCH:
        return commands_batch(o, err);
    case COMMAND_DOCTOR:
        return commands_doctor(o, err);
    case COMMAND_RANK:
        break;
    }
    return base_fail(err, ERR_INTERNAL, "no such command");
}

static enum status unknown_command(const char *word, struct err *err)
{
    const char *near = options_nearest_command(word);
    if (near)
        return base_fail(err, ERR_USAGE, "unknown command \"%.40s\"; did you mean %s?", word, near);
    return base_fail(err, ERR_USAGE, "unknown command \"%.40s\" (tessera help lists all)", word);
}

/* The first file that is opened takes the number of a closed standard stream, and then the log's
 * lines: nothing must be there instead. What is written to a closed stdout is lost, so it fails. */
static void open_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

/* A result that was not written whole is no success. */
static enum status finish_output(struct err *err)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return base_fail_errno(err, ERR_OUTPUT, "stdout");
    return OK;
}

/* A model that is no directory may be the name of one in Hugging Face's cache. */
static void find_model(struct options *o)
{
    static char path[4096];
    struct stat sb;
    if (!o->model || stat(o->model, &sb) == 0 || !hub_cache_find(o->model, path, sizeof path))
        return;
    base_log(LOG_INFO, "%s is %s", o->model, path);
    o->model = path;
}

/* The same of each in the list of --lora. */
static void find_adapters(struct options *o)
{
    static char list[2 * LORA_LIST_MAX]; /* one that is longer is refused by lora_open */
    size_t used = 0;
    for (const char *c = o->lora, *end; c && used < sizeof list; c = *end ? end + 1 : NULL) {
        char item[LORA_LIST_MAX + 1], path[4096];
        struct stat sb;
        end = c + strcspn(c, ",");
        snprintf(item, sizeof item, "%.*s", (int)(end - c), c);
        (void)lora_cut_scale(item);
        const size_t n = strlen(item); /* the scale is behind it */
        const bool found = stat(item, &sb) != 0 && hub_cache_find(item, path, sizeof path);
        if (found)
            base_log(LOG_INFO, "%s is %s", item, path);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s%.*s",
                                 c > o->lora ? "," : "", found ? path : item,
                                 n < (size_t)(end - c) ? (int)((size_t)(end - c) - n) : 0, c + n);
    }
    o->lora = o->lora ? list : NULL;
}

static void find_directories(struct options *o)
{
    find_model(o);
    find_adapters(o);
}

/* After a text that needs no run: the exit code. */
static int finish_text(void)
{
    struct err err = {""};
    enum status st = finish_output(&err);
    if (st != OK)
        log_failure(err.text);
    return base_exit_code(st);
}

int main(int argc, char **argv)
{
    struct options o;
    struct err err = {""};
    bool help = false;
    open_standard_streams();
    /* A file that may not grow is an error with a line, as a full disk is. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2 || strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0) {
        usage(argc < 2 ? stderr : stdout);
        return argc < 2 ? 2 : finish_text();
    }
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        printf("tessera %s (%s)\n", TESSERA_VERSION, backend_cpu_variant());
        return finish_text();
    }
    enum status st = options_parse(argc - 1, argv + 1, &o, &help, &err);
    if (st == ERR_USAGE && !o.command)
        st = unknown_command(argv[1], &err);
    if (st == OK && help) {
        options_help(o.command);
        return finish_text();
    }
    if (o.command & (COMMAND_SERVE | COMMAND_RANK | COMMAND_HEALTH | COMMAND_BENCH))
        signal(SIGPIPE, SIG_IGN); /* the others end, as filters do, when their reader has left */
    log_setup(o.log_format, o.log_level);
    if (st == OK && o.command == COMMAND_RANK)
        return rank_main(&o);
    if (st == OK && o.command != COMMAND_HEALTH) /* which is run every few seconds */
        options_warn_environment(o.command);
    if (st == OK)
        options_warn_file(&o);
    if (st == OK)
        find_directories(&o);
    if (st == OK) {
        struct err output;
        st = run(&o, &err);
        if (finish_output(&output) != OK && st != ERR_OUTPUT) {
            st = ERR_OUTPUT; /* whatever else went wrong, who reads the result has not got it */
            err = output;
        }
    }
    options_close(&o);
    if (st != OK && st != ERR_CANCELLED)
        log_failure(err.text);
    if ((o.command & (COMMAND_HEALTH | COMMAND_DOCTOR)) != 0 && st != OK && st != ERR_USAGE)
        return 1; /* what container engines and scripts expect */
    return base_exit_code(st);
}
