/* info_retain.h - quire info --retain: KV bytes of texts that quire serve condenses.
 *
 * Of a text of N tokens each lane holds the kept ones of the last place before the text's end, in
 * whole pages, and the tokens behind that place (engine/condensing.h). While the text is condensed,
 * the pages before and after are both there. Of a policy by lane the pages have room for the most
 * tiles that it can keep, and for their list, whose share of a page depends on the format.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_INFO_RETAIN_H
#define QUIRE_CLI_INFO_RETAIN_H

#include "engine/condensing.h"

/* Read a policy for a model. Errors: QUIRE_INVAL, QUIRE_UNSUPP (the policy, or the model). */
int quire_info_retain_read(const char *policy, uint32_t chunk, uint32_t page_tokens,
                           const quire_model_desc *desc, quire_condensing *out, quire_error *err);

/* The same for KV in a format. parts: room, which the result borrows. */
quire_condensing quire_info_retain_of(const quire_condensing *retained,
                                      const quire_model_desc *desc, quire_format format,
                                      quire_condensing_parts *parts);

/* Whether the policy works with KV of a model in a format. */
bool quire_info_retain_works(const quire_condensing *retained, const quire_model_desc *desc,
                             quire_format format);

/* Tokens in pages, and those that sealed formats have in hot pages, too. */
typedef struct quire_info_retained {
    uint32_t n_tokens;
    uint32_t n_hot;
} quire_info_retained;
/* Of a text of n_tokens at its end. */
quire_info_retained quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens);

#endif /* QUIRE_CLI_INFO_RETAIN_H */
