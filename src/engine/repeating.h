/* repeating.h - the rows by which a model repeats a part of its text, for scores of `reconstruct`
 * (KVzip, arXiv 2505.23416): a request to repeat it, the tokens before the part, and the part.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_REPEATING_H
#define QUIRE_ENGINE_REPEATING_H

#include "model/model.h"
#include "retain/policy.h"

#define QUIRE_REPEATING_LEAD_TOKENS 8u  /* before a part (KVzip) */
#define QUIRE_REPEATING_ASK_TOKENS  48u /* of the request, at most */

typedef struct quire_repeating {
    int32_t ask[QUIRE_REPEATING_ASK_TOKENS];
    uint32_t n_ask;
} quire_repeating;

/* Errors: those of quire_model_tokenize(). */
int quire_repeating_init(quire_repeating *out, const quire_model *model);

/* Rows for a part, at most; 0 of policies that repeat nothing. */
uint32_t quire_repeating_room(const quire_retain_spec *spec);

/* Fill rows, [quire_repeating_room()], for the text's tokens [begin, end). Returns their number. */
uint32_t quire_repeating_rows(const quire_repeating *repeating, const int32_t *text, uint32_t begin,
                              uint32_t end, int32_t *rows);

#endif /* QUIRE_ENGINE_REPEATING_H */
