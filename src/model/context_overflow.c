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

/* Refuse an overflow that the place of the pages does not allow. */
static int check_place(const quire_context_on *on, const char *name, quire_error *err)
{
    if (on->offloads) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s and --kv-overflow: K of offloaded pages cannot be turned",
                               on->setting, name);
    }
    return on->opts->is_contiguous
               ? quire_error_set(err, QUIRE_UNSUPP, "%s %s and a contiguous cache", on->setting,
                                 name)
               : QUIRE_OK;
}

/* Check the formats of one layer for sinks and condense, which turn K more than once, or keep
 * single tokens of a tile. */
static int check_pair(const quire_context_on *on, quire_context_overflow overflow,
                      quire_kv_pair pair, quire_error *err)
{
    const char *name = quire_context_overflow_name(overflow);

    if (pair.k == QUIRE_FORMAT_Q8 || quire_format_is_sealed(pair.k)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s turns K %s: in %s each time adds an error. "
                               "Use f32, f16 or bf16, or shift",
                               on->setting, name,
                               overflow == QUIRE_CONTEXT_SINKS ? "every 64 tokens"
                                                               : "again and again",
                               quire_format_name(pair.k));
    }
    return overflow == QUIRE_CONTEXT_CONDENSE && quire_format_is_sealed(pair.v)
               ? quire_error_set(err, QUIRE_UNSUPP,
                                 "%s %s keeps single tokens: V in %s is coded by 64. Use f32, "
                                 "f16, bf16 or q8 for V, or shift",
                                 on->setting, name, quire_format_name(pair.v))
               : QUIRE_OK;
}

static int check_formats(const quire_context_on *on, quire_context_overflow overflow,
                         quire_error *err)
{
    if (quire_opts_shift_check(on->desc, on->opts) < 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s works with models whose layers see the whole text and turn "
                               "K alike",
                               on->setting, quire_context_overflow_name(overflow));
    }
    for (uint32_t l = 0; overflow != QUIRE_CONTEXT_SHIFT && l < on->desc->n_stored; l++) {
        QUIRE_TRY(check_pair(on, overflow, on->opts->kv_pairs[l], err));
    }
    return QUIRE_OK;
}

int quire_context_overflow_check(const quire_context_on *on, quire_context_overflow overflow,
                                 uint32_t keep, quire_error *err)
{
    const char *name = quire_context_overflow_name(overflow);
    const uint32_t n_ctx = on->opts->n_ctx;
    uint32_t n_least;

    if (overflow == QUIRE_CONTEXT_REFUSE) {
        return QUIRE_OK;
    }
    QUIRE_TRY(check_place(on, name, err));
    QUIRE_TRY(check_formats(on, overflow, err));
    /* keep may be any number of a request. */
    keep = keep < n_ctx ? keep : n_ctx;
    n_least = quire_context_overflow_keep(keep) + TILES_MIN * TILE;
    return n_ctx >= n_least
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "%s %s with %u tokens kept needs a context of at least %u tokens: "
                                 "raise -c",
                                 on->setting, name, quire_context_overflow_keep(keep), n_least);
}
