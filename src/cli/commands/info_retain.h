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

/* The same for KV in a format that is not sealed. */
quire_condensing quire_info_retain_of(const quire_condensing *retained,
                                      const quire_model_desc *desc, quire_format format);

/* Tokens of a text of n_tokens that are held at its end. The most on the way:
 * quire_condensing_need(). */
uint32_t quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens);

#endif /* QUIRE_CLI_INFO_RETAIN_H */
