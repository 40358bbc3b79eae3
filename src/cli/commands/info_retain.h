/* info_retain.h - quire info --retain: KV bytes of texts that quire serve condenses.
 *
 * Of a text of N tokens each lane holds the kept ones of the last place before the text's end, in
 * whole pages, and the tokens behind that place (engine/condensing.h). Of a policy by lane the
 * pages have room for the most tiles that it can keep, and for their list, whose share of a page
 * depends on the format.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_INFO_RETAIN_H
#define QUIRE_CLI_INFO_RETAIN_H

#include "engine/condensing.h"

/* A policy for a model, whose KV may have any format. */
typedef struct quire_info_retain {
    quire_condensing policy; /* chunk 0: none */
    const quire_model_desc *desc;
    /* Of the format of quire_info_retain_of(): */
    quire_condensing_parts parts;
    quire_kv_pair *pairs;     /* [n_stored] */
    quire_attn_layer *layers; /* [n_layer] */
} quire_info_retain;

/* Read a policy. Errors: QUIRE_INVAL, QUIRE_UNSUPP (the policy, or the model), QUIRE_NOMEM. Memory:
 * quire_info_retain_fini(), on errors too. */
int quire_info_retain_read(quire_info_retain *out, const char *policy, uint32_t chunk,
                           uint32_t page_tokens, quire_error *err);
void quire_info_retain_fini(quire_info_retain *retain);

/* The policy for KV in a format, until the next call. */
quire_condensing quire_info_retain_of(quire_info_retain *retain, quire_format format);

/* Whether quire_info_retain_of() is a policy that works with its format. */
bool quire_info_retain_works(const quire_info_retain *retain, const quire_condensing *of,
                             quire_format format);

/* Tokens in pages, and those that sealed formats have in hot pages, too. */
typedef struct quire_info_retained {
    uint32_t n_tokens;
    uint32_t n_hot;
} quire_info_retained;
/* Of a text of n_tokens at its end. */
quire_info_retained quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens);

#endif /* QUIRE_CLI_INFO_RETAIN_H */
