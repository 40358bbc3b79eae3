/* context_overflow.h - a text that fills its context: which tokens leave.
 *
 *   begin of the text                                                          end
 *   | kept: n_keep tokens | leave            | move to lower positions         |
 *
 * The tokens that stay were computed while the others were there, and still depend on them.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CONTEXT_OVERFLOW_H
#define QUIRE_MODEL_CONTEXT_OVERFLOW_H

#include <stdbool.h>

#include "model/runtime.h"
#include "quire/error.h"

typedef enum quire_context_overflow {
    QUIRE_CONTEXT_REFUSE,  /* none: the text ends there */
    QUIRE_CONTEXT_SHIFT,   /* half of the tokens behind those that are kept; a token's K is coded
                              once more at most, since it leaves with the next half */
    QUIRE_CONTEXT_SINKS,   /* the oldest 64 tokens behind those that are kept (StreamingLLM, arXiv
                              2309.17453): positions stay those in the cache */
    QUIRE_CONTEXT_CONDENSE /* a part of the oldest tokens behind those that are kept, chosen by a
                              policy of retention for each lane (engine/context_condense.h) */
} quire_context_overflow;

/* "refuse", "shift", "sinks", "condense". Memory: static. */
const char *quire_context_overflow_name(quire_context_overflow overflow);
/* The one with that name. Returns false, and leaves *out, if there is none. */
bool quire_context_overflow_find(const char *name, quire_context_overflow *out);

/* `keep` first tokens, rounded up to whole tiles. */
uint32_t quire_context_overflow_keep(uint32_t keep);
/* How many tokens behind the first n_keep ones leave a sequence of n_held tokens: a multiple of
 * QUIRE_TILE_TOKENS. n_keep as by quire_context_overflow_keep(). Of shift and sinks. */
uint32_t quire_context_overflow_drop(quire_context_overflow overflow, uint32_t n_keep,
                                     uint32_t n_held);

/* A runtime whose contexts may fill, or the options of a runtime before its creation. Borrowed. */
typedef struct quire_context_on {
    const quire_model_desc *desc;
    const quire_runtime_opts *opts; /* without zeros, with kv_pairs */
    bool offloads;                  /* its pages may lie outside of their memory */
    const char *setting;            /* begins messages: "--context-overflow", "context_overflow:" */
} quire_context_on;

/* Whether texts of the runtime can overflow so. Errors: QUIRE_UNSUPP (offloaded pages, windows,
 * rope: quire_opts_shift_check(); sinks and condense with K in q8 and sealed formats, condense with
 * V in sealed formats), QUIRE_INVAL (the context is too short); err tells. */
int quire_context_overflow_check(const quire_context_on *on, quire_context_overflow overflow,
                                 uint32_t keep, quire_error *err);

#endif /* QUIRE_MODEL_CONTEXT_OVERFLOW_H */
