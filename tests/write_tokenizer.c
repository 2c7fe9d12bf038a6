/* write_tokenizer FILE.gguf DIR: the tokenizer of a GGUF file that may have no tensors, for the
 * tests that let others read what was written. */
#include "weights/gguf/gguf_tokenizer.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct gguf *g = NULL;
    struct outdir d;
    struct err err = {""};
    enum status st = OK;
    if (argc != 3) {
        fprintf(stderr, "usage: %s FILE.gguf DIR\n", argv[0]);
        return 2;
    }
    TRY(gguf_open(argv[1], &g, &err));
    TRY(outdir_open(argv[2], &d, &err));
    st = gguf_tokenizer_write(g, &d, &err);
    outdir_close(&d, st == OK);
out:
    if (st != OK)
        fprintf(stderr, "%s\n", err.text);
    gguf_close(g);
    return base_exit_code(st);
}
