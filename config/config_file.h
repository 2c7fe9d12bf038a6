/* The file of --config: a YAML mapping from names to plain values, read as text. The one door to
 * libyaml. */
#ifndef TESSERA_CONFIG_CONFIG_FILE_H
#define TESSERA_CONFIG_CONFIG_FILE_H

#include "config/base.h"

#define CONFIG_FILE_BYTES_MAX 65536
#define CONFIG_FILE_ENTRIES_MAX 256

struct config_entry {
    char *key, *value; /* underscores of the key are dashes */
    int32_t line;
};

struct config_file {
    int32_t count;
    struct config_entry entries[CONFIG_FILE_ENTRIES_MAX]; /* in the order of the file */
};

/* ERR_USAGE with file and line for what is not such a mapping: lists, nesting, anchors, a second
 * document, a key twice, a value left out. An empty file has no entries. */
enum status config_file_open(const char *path, struct config_file **out, struct err *err) MUST_USE;
void config_file_close(struct config_file *f); /* NULL is fine */

#endif
