/* What a request asks of sampling, checked and copied, in the form that steps carry. Pure. */
#ifndef TESSERA_ENGINE_REQUEST_H
#define TESSERA_ENGINE_REQUEST_H

#include "engine/engine.h"
#include "engine/step.h"

/* The rules and their arrays in one allocation, freed with free(). The bans are the end tokens
 * eos[eos_count], then the stop ids. ERR_INPUT names the field of p that is out of range. */
enum status request_rules(const struct request_params *p, int32_t prompt_len, const int32_t *eos,
                          int32_t eos_count, int32_t vocab, struct sample_rules **out,
                          struct err *err) MUST_USE;
/* What a token is drawn with. */
struct sample_params request_draw(const struct request_params *p);

#endif
