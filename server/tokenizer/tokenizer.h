/* Text to token ids and back. Immutable once open: any thread may use it. */
#ifndef TESSERA_SERVER_TOKENIZER_TOKENIZER_H
#define TESSERA_SERVER_TOKENIZER_TOKENIZER_H

#include "config/base.h"

struct tokenizer;

/* What a token contributes to a text. */
enum token_kind {
    TOKEN_TEXT,
    TOKEN_BYTE,   /* bytes that may be part of a character */
    TOKEN_HIDDEN, /* control tokens: text is their name; and ids that are no piece: no text */
};

struct token_view {
    enum token_kind kind;
    const char *text; /* spaces are spaces; valid as long as the tokenizer */
    int32_t len;
    bool starts_word; /* text begins with the space that marks a word */
};

/* Reads MODEL_DIR/tokenizer.model, or tokenizer.json where there is none, and
 * tokenizer_config.json. OK with *out = NULL when there is neither of the first two; ERR_MODEL when
 * one is damaged, is not supported or has more pieces than the model has ids. */
enum status tokenizer_open(const char *model_dir, int32_t vocab, struct tokenizer **out,
                           struct err *err) MUST_USE;

/* The same from the bytes of the files; NULL: there is no such file. One of model and json must be
 * there; `where` names it in messages. */
struct tokenizer_bytes {
    const char *model, *json, *config, *chat_template, *chat_json;
    size_t model_n, json_n, config_n, chat_json_n;
    const char *where;
};
enum status tokenizer_open_bytes(const struct tokenizer_bytes *b, int32_t vocab,
                                 struct tokenizer **out, struct err *err) MUST_USE;
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

/* Ids of a text, with the beginning-of-sequence token when `special` and the model wants one.
 * Control tokens spelt out in the text are plain text: they cannot be forged. *ids is the caller's
 * to free(). ERR_INPUT when there are no ids at all, or for a text that would take too long: over
 * 256 KiB when SentencePiece has no byte tokens, a run that is too long for the pattern of a
 * tokenizer.json. */
enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                             int32_t **ids, int32_t *count, struct err *err) MUST_USE;
/* The same, but a control token spelt out is that token; the text between two is encoded by itself.
 * For texts that a client wrote itself, marks and all. There may be no ids. */
enum status tokenizer_encode_named(const struct tokenizer *t, const char *text, size_t n,
                                   bool special, int32_t **ids, int32_t *count,
                                   struct err *err) MUST_USE;
/* A text that several have written. */
struct tokenizer_text {
    const char *bytes, *foreign; /* [n] each; foreign: not 0 for a byte that a client wrote */
    size_t n;
};
/* The same, but a control token is one only where no byte of its spelling is foreign: what a chat
 * template writes counts, what is quoted in it does not. */
enum status tokenizer_encode_marked(const struct tokenizer *t, const struct tokenizer_text *text,
                                    bool special, int32_t **ids, int32_t *count,
                                    struct err *err) MUST_USE;
/* How many tokens `special` adds behind a text. */
int32_t tokenizer_added_behind(const struct tokenizer *t);
/* No text of n bytes has fewer tokens than this. */
size_t tokenizer_tokens_min(const struct tokenizer *t, size_t n);

/* Any id, also one that is no piece. */
struct token_view tokenizer_view(const struct tokenizer *t, int32_t id);
int32_t tokenizer_count(const struct tokenizer *t);
/* tokenizer_config.json as clients want it: special tokens are plain strings, and those that only
 * another file names are there too. A JSON object. */
const char *tokenizer_info(const struct tokenizer *t);
/* The file that it came from. */
const char *tokenizer_kind(const struct tokenizer *t);
/* Does encoding put a space before a text, which decoding drops again? */
bool tokenizer_drops_first_space(const struct tokenizer *t);
/* Does decoding drop all spaces at the start of a text? */
bool tokenizer_drops_all_first_spaces(const struct tokenizer *t);
/* May a token be any bytes, so that characters begin in one and end in another? */
bool tokenizer_is_byte_level(const struct tokenizer *t);

#endif
