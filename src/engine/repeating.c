/* repeating.c - see repeating.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/repeating.h"

#include "base/check.h"
#include "base/num.h"
#include "model/text.h"

#include <string.h>

/* Any words will do: models that were trained to complete text repeat by the tokens before the part
 * alone. */
#define ASK "\n\nThe text above once more, word for word:\n"

int quire_repeating_init(quire_repeating *out, const quire_model *model)
{
    const int64_t n = quire_model_tokenize(model, ASK, strlen(ASK), false, false, out->ask,
                                           QUIRE_REPEATING_ASK_TOKENS);

    QUIRE_FAIL_IF(n < 0, (int)n);
    /* A vocabulary of bytes has no room for it: the tokens before the part are enough. */
    out->n_ask = n <= QUIRE_REPEATING_ASK_TOKENS ? (uint32_t)n : 0;
    return QUIRE_OK;
}

uint32_t quire_repeating_room(const quire_retain_spec *spec)
{
    return spec->policy->worth == QUIRE_RETAIN_WORTH_REPEATED
               ? spec->repeat + QUIRE_REPEATING_LEAD_TOKENS + QUIRE_REPEATING_ASK_TOKENS
               : 0;
}

uint32_t quire_repeating_rows(const quire_repeating *repeating, const int32_t *text, uint32_t begin,
                              uint32_t end, int32_t *rows)
{
    const uint32_t n_lead = quire_min_u32(begin, QUIRE_REPEATING_LEAD_TOKENS);
    const uint32_t n = n_lead + (end - begin);

    memcpy(rows, repeating->ask, repeating->n_ask * sizeof *rows);
    memcpy(rows + repeating->n_ask, text + begin - n_lead, n * sizeof *rows);
    return repeating->n_ask + n;
}
