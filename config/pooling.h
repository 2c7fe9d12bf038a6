/* What a model's directory says about vectors of texts, in the files of sentence-transformers:
 * modules.json lists what a text goes through, each module with a folder of its own; the pooling
 * module's config.json says which hidden states become the vector. sentence_bert_config.json says
 * how texts are read, config_sentence_transformers.json what is put in front of them.
 * (sentence_transformers/models/Pooling.py) */
#ifndef TESSERA_CONFIG_POOLING_H
#define TESSERA_CONFIG_POOLING_H

#include "config/base.h"

#define POOLING_NAME_MAX 64
/* Where all models have them. */
#define POOLING_MODULES "modules.json"
#define POOLING_FOLDER "1_Pooling"
#define POOLING_CONFIG POOLING_FOLDER "/config.json"

struct pooling {
    bool found;                    /* there is a modules.json */
    bool normalize;                /* vectors become of length 1; so, too, where nothing is said */
    char folder[POOLING_NAME_MAX]; /* the pooling module's; "": none */
    int32_t longest; /* tokens of a text that are read; 0: as many as the model allows */
    char prompt[POOLING_NAME_MAX]; /* name of the one that texts are said to begin with; "": none */
};

/* ERR_MODEL with file and key: anything but the last token's hidden state is wanted, or a module
 * behind that, or letters made small before it, which are not computed here. *out is anything
 * then. */
enum status pooling_load(const char *dir, struct pooling *out, struct err *err) MUST_USE;

#endif
