/* text_out.h - turn generated tokens into showable text.
 *
 * Tokens are bytes, not characters, and a stop text may span tokens. Bytes of an incomplete
 * character or of a possible stop text are held back.
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
/* Include the text of these control tokens; that of others is included with shows_special only.
 * tokens: borrowed. */
void quire_text_out_show(quire_text_out *out, const int32_t *tokens, uint32_t n);
void quire_text_out_destroy(quire_text_out *out);

/* Take in a generated token, and append the text that became showable to `shown`: whole UTF-8;
 * invalid bytes become U+FFFD. When a stop text is complete, *stop_index is its index (of several,
 * the earliest, then the longest), the text before it is appended, and nothing remains held back.
 * Otherwise *stop_index is -1. Errors: QUIRE_NOMEM, QUIRE_INVAL (no such token). */
int quire_text_out_feed(quire_text_out *out, int32_t token, quire_bytes *shown,
                        int32_t *stop_index);

/* End of generation without a stop text: append the text held back. Another text may begin
 * afterwards. Errors: QUIRE_NOMEM. */
int quire_text_out_finish(quire_text_out *out, quire_bytes *shown);

#endif /* QUIRE_ENGINE_TEXT_OUT_H */
