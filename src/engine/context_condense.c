/* context_condense.c - see context_condense.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/context_condense.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/even_choice.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"
#include "model/runtime_shift.h"

#include <stdlib.h>

#define TILE    QUIRE_TILE_TOKENS
#define OLD_MIN 2u /* tiles */

void quire_context_condense_default(quire_retain_spec *out)
{
    const int rc = quire_retain_parse(QUIRE_CONTEXT_RETAIN, out, NULL);

    QUIRE_CHECK(rc == QUIRE_OK);
}

/* ---- checks ---- */

int quire_context_condense_policy_check(const quire_retain_spec *spec, const char *setting,
                                        quire_error *err)
{
    const quire_retain_policy *policy = spec->policy;

    if (policy->worth != QUIRE_RETAIN_WORTH_NONE || policy->needs_attention ||
        policy->expects_queries || policy->is_across) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s condense by %s needs more than keys and positions: use keydiff, "
                               "window, last, stride or random",
                               setting, policy->name);
    }
    if (spec->floor < 1 || spec->n_full > 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s condense by %s: all heads keep the same number of tokens, so %s "
                               "cannot be given",
                               setting, policy->name, spec->floor < 1 ? "floor" : "full_layers");
    }
    return QUIRE_OK;
}

int quire_context_condense_check(const quire_context_on *on, const quire_retain_spec *spec,
                                 uint32_t keep, quire_error *err)
{
    const uint64_t n_ctx = on->opts->n_ctx;
    const char *fixed = quire_opts_rows_fixed(on->desc, on->opts);
    quire_retain_spec initial;
    uint64_t n_least;

    if (spec == NULL) {
        quire_context_condense_default(&initial);
        spec = &initial;
    }
    QUIRE_TRY(quire_context_overflow_check(on, QUIRE_CONTEXT_CONDENSE, keep, err));
    QUIRE_TRY(quire_context_condense_policy_check(spec, on->setting, err));
    if (quire_opts_rows_check(on->desc, on->opts) < 0) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s condense cannot go with %s", on->setting,
                               fixed != NULL ? fixed : "latent attention");
    }
    /* keep may be any number of a request. */
    n_least = (uint64_t)quire_context_condense_keep(spec, (uint32_t)quire_min_u64(keep, n_ctx)) +
              quire_context_overflow_keep(spec->recent) + OLD_MIN * TILE;
    return n_ctx >= n_least
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "%s condense with %u first tokens kept and the last %u (recent of "
                                 "%s) needs a context of at least %llu tokens: raise -c",
                                 on->setting, quire_context_condense_keep(spec, keep), spec->recent,
                                 spec->policy->name, (unsigned long long)n_least);
}

/* ---- numbers ---- */

uint32_t quire_context_condense_keep(const quire_retain_spec *spec, uint32_t keep)
{
    return quire_context_overflow_keep(quire_max_u32(keep, spec->sinks));
}

quire_context_sizes quire_context_condense_sizes(const quire_retain_spec *spec, uint32_t n_keep,
                                                 uint32_t n_held)
{
    const uint32_t n_middle = n_held - n_keep;
    const uint32_t n_half = (n_middle / 2 + TILE - 1) / TILE * TILE;
    const uint32_t n_old_max = (n_middle - spec->recent) / TILE * TILE;
    const uint32_t n_old = quire_min_u32(n_half, n_old_max);
    const uint32_t n_share = (uint32_t)(spec->share * (double)n_old);

    return (quire_context_sizes){
        .n_old = n_old,
        .n_kept = quire_min_u32((n_share + TILE - 1) / TILE * TILE, n_old - TILE),
    };
}

/* ---- choosing ---- */

/* A condensing under way. */
typedef struct condensing {
    const quire_retain_spec *spec;
    quire_runtime_rows rows;
    uint32_t n_held;
    uint32_t n_keep;
    quire_context_sizes sizes;
    quire_even_room room;
    bool *is_kept; /* [lane][n_old] */
} condensing;

static int condensing_init(condensing *c, uint32_t n_lanes, uint32_t d_k)
{
    const uint32_t n_old = c->sizes.n_old;

    c->is_kept = malloc((size_t)n_lanes * n_old * sizeof *c->is_kept);
    QUIRE_FAIL_IF(c->is_kept == NULL, QUIRE_NOMEM);
    QUIRE_TRY(quire_even_room_init(&c->room, c->spec, n_old, (size_t)c->n_keep + n_old, d_k));
    for (uint32_t t = 0; t < n_old; t++) {
        c->room.positions[t] = (int32_t)(c->n_keep + t);
    }
    return QUIRE_OK;
}

static void condensing_fini(condensing *c)
{
    quire_even_room_fini(&c->room);
    free(c->is_kept);
}

/* The first tokens, which stay, stand before the old ones in the pages. */
static int choose(condensing *c, uint32_t lane, uint32_t d_k)
{
    const uint32_t n = c->sizes.n_old;
    const quire_even_lane even = { .lane = lane,
                                   .n = n,
                                   .n_text = c->n_held,
                                   .n_kept = c->sizes.n_kept,
                                   .first_row = c->n_keep,
                                   .d_k = d_k };

    if (c->room.keys != NULL) {
        quire_runtime_rows_keys(&c->rows, quire_runtime_lane_at(c->rows.runtime, lane),
                                c->n_keep + n, c->room.keys);
    }
    return quire_even_choose(c->spec, &c->room, &even, c->is_kept + (size_t)lane * n);
}

/* Errors: QUIRE_NOMEM, QUIRE_LOST. */
static int choose_all(condensing *c, quire_runtime *runtime, quire_seq_id seq, uint32_t d_k)
{
    const uint32_t n_lanes = quire_runtime_n_lanes(runtime);
    int rc = quire_runtime_rows_begin(runtime, seq, seq, &c->rows);
    int rc_end;

    for (uint32_t i = 0; i < n_lanes && rc == QUIRE_OK; i++) {
        rc = choose(c, i, d_k);
    }
    rc_end = quire_runtime_rows_end(&c->rows);
    return rc < 0 ? rc : rc_end;
}

int quire_context_condense(const quire_retain_spec *spec, quire_runtime *runtime, quire_seq_id seq,
                           uint32_t n_keep, bool *is_torn)
{
    const uint32_t n_held = quire_seq_tokens(quire_runtime_cache(runtime), seq);
    const uint32_t d_k = quire_model_desc_get(quire_runtime_model(runtime))->d_k;
    condensing c = { .spec = spec,
                     .n_held = n_held,
                     .n_keep = n_keep,
                     .sizes = quire_context_condense_sizes(spec, n_keep, n_held) };
    int rc = condensing_init(&c, quire_runtime_n_lanes(runtime), d_k);

    *is_torn = false;
    rc = rc == QUIRE_OK ? choose_all(&c, runtime, seq, d_k) : rc;
    if (rc == QUIRE_OK) {
        const quire_thinning thinning = { .begin = n_keep,
                                          .end = n_keep + c.sizes.n_old,
                                          .n_kept = c.sizes.n_kept,
                                          .is_kept = c.is_kept };

        rc = quire_runtime_thin(runtime, seq, &thinning, is_torn);
    }
    condensing_fini(&c);
    return rc;
}
