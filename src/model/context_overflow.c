/* context_overflow.c - see context_overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/context_overflow.h"

#include "base/check.h"
#include "model/runtime_shift.h"

#include <string.h>

#define TILE      QUIRE_TILE_TOKENS
#define TILES_MIN 4u /* behind the tokens that are kept */

static const char *const names[] = { [QUIRE_CONTEXT_REFUSE] = "refuse",
                                     [QUIRE_CONTEXT_SHIFT] = "shift",
                                     [QUIRE_CONTEXT_SINKS] = "sinks",
                                     [QUIRE_CONTEXT_CONDENSE] = "condense" };

const char *quire_context_overflow_name(quire_context_overflow overflow)
{
    return names[overflow];
}

bool quire_context_overflow_find(const char *name, quire_context_overflow *out)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (quire_context_overflow)i;
            return true;
        }
    }
    return false;
}

uint32_t quire_context_overflow_keep(uint32_t keep)
{
    return (keep + TILE - 1) / TILE * TILE;
}

uint32_t quire_context_overflow_drop(quire_context_overflow overflow, uint32_t n_keep,
                                     uint32_t n_held)
{
    const uint32_t n_middle = n_held - n_keep;

    return overflow == QUIRE_CONTEXT_SINKS ? TILE : (n_middle / 2 + TILE - 1) / TILE * TILE;
}

int quire_context_overflow_check(const quire_runtime *runtime, const quire_model_desc *desc,
                                 quire_context_overflow overflow, uint32_t keep,
                                 const char *setting, quire_error *err)
{
    const quire_runtime_opts *opts = quire_runtime_opts_get(runtime);
    const char *name = quire_context_overflow_name(overflow);
    uint32_t n_least;

    if (overflow == QUIRE_CONTEXT_REFUSE) {
        return QUIRE_OK;
    }
    if (quire_runtime_memory_device(runtime) != NULL) {
        return quire_error_set(
            err, QUIRE_UNSUPP,
            "%s %s moves tokens in the host's memory, and the KV is on device %s", setting, name,
            opts->device);
    }
    if (quire_runtime_shift_check(runtime) < 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s works with KV in f32, f16, bf16 and q8, and "
                               "with models whose layers see the whole text and turn K alike",
                               setting, name);
    }
    for (uint32_t l = 0; l < desc->n_stored; l++) {
        if (overflow != QUIRE_CONTEXT_SHIFT && opts->kv_pairs[l].k == QUIRE_FORMAT_Q8) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "%s %s turns K %s: in q8 each time adds an error. "
                                   "Use f32, f16 or bf16, or shift",
                                   setting, name,
                                   overflow == QUIRE_CONTEXT_SINKS ? "every 64 tokens"
                                                                   : "again and again");
        }
    }
    /* keep may be any number of a request. */
    keep = keep < opts->n_ctx ? keep : opts->n_ctx;
    n_least = quire_context_overflow_keep(keep) + TILES_MIN * TILE;
    return opts->n_ctx >= n_least
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "%s %s with %u tokens kept needs a context of at least %u tokens: "
                                 "raise -c",
                                 setting, name, quire_context_overflow_keep(keep), n_least);
}
