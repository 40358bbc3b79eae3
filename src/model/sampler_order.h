/* sampler_order.h - the samplers of a choice and their order, by llama.cpp's names.
 *
 * Invariant of an order: each sampler occurs at most once; penalties come first, then DRY, because
 * Quire changes logits before libllama's chain sees them. A sampler that is left out is off.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_SAMPLER_ORDER_H
#define QUIRE_MODEL_SAMPLER_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

/* In llama.cpp's default order. */
typedef enum quire_sampler_kind {
    QUIRE_SAMPLER_PENALTIES,
    QUIRE_SAMPLER_DRY,
    QUIRE_SAMPLER_TOP_N_SIGMA,
    QUIRE_SAMPLER_TOP_K,
    QUIRE_SAMPLER_TYPICAL_P,
    QUIRE_SAMPLER_TOP_P,
    QUIRE_SAMPLER_MIN_P,
    QUIRE_SAMPLER_XTC,
    QUIRE_SAMPLER_TEMPERATURE
} quire_sampler_kind;

#define QUIRE_SAMPLER_KINDS 9u

typedef struct quire_sampler_order {
    uint8_t n;
    uint8_t kinds[QUIRE_SAMPLER_KINDS]; /* quire_sampler_kind */
} quire_sampler_order;

/* All of them. */
#define QUIRE_SAMPLER_ORDER_INIT                                                                   \
    {                                                                                              \
        .n = QUIRE_SAMPLER_KINDS, .kinds = { 0, 1, 2, 3, 4, 5, 6, 7, 8 }                           \
    }

bool quire_sampler_order_has(const quire_sampler_order *order, quire_sampler_kind kind);
const char *quire_sampler_kind_name(quire_sampler_kind kind);

/* Append a sampler by name: llama.cpp's names and other spellings ("top_k", "top-k", "topk",
 * "nucleus"), in any case. "adaptive_p" adds nothing: it chooses as without it as long as
 * adaptive_target is off. Errors: QUIRE_INVAL (an unknown name, one twice, an order that breaks the
 * invariant); the message names the sampler. */
int quire_sampler_order_add(quire_sampler_order *order, const char *name, size_t n,
                            quire_error *err);
/* Whole orders: names with ';' between, and llama.cpp's letters ("edskypmxt"). Errors: as above. */
int quire_sampler_order_names(quire_sampler_order *out, const char *text, quire_error *err);
int quire_sampler_order_letters(quire_sampler_order *out, const char *text, quire_error *err);

#endif /* QUIRE_MODEL_SAMPLER_ORDER_H */
