/* text_out.h - from generated tokens to text that can be shown.
 *
 * Tokens are bytes, not characters, and a stop text may lie across tokens: what may still turn out
 * to be part of either is held back.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_TEXT_OUT_H
#define QUIRE_ENGINE_TEXT_OUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "model/model.h"

typedef struct quire_text_out quire_text_out;

/* stops: [n_stops] texts in UTF-8, none of them empty; copied. Errors: QUIRE_NOMEM. */
int quire_text_out_create(quire_text_out **out, const quire_model *model, const char *const *stops,
                          uint32_t n_stops, bool shows_special);
void quire_text_out_destroy(quire_text_out *out);

/* Append to shown what can be shown now that token was generated: whole UTF-8 (bytes that never
 * become UTF-8 as U+FFFD). When a stop text is complete, *stop_index is its index (the one that
 * begins first of those complete, then the longest), the text before it is shown and nothing is
 * held back any more; else -1. Errors: QUIRE_NOMEM, QUIRE_INVAL (no such token). */
int quire_text_out_feed(quire_text_out *out, int32_t token, quire_bytes *shown,
                        int32_t *stop_index);

/* The end came otherwise: append what is held back. Another text may begin then. Errors:
 * QUIRE_NOMEM. */
int quire_text_out_finish(quire_text_out *out, quire_bytes *shown);

#endif /* QUIRE_ENGINE_TEXT_OUT_H */
