/* runtime_check.c - options of a runtime that cannot work, before there is one.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime.h"

#include "base/check.h"
#include "model/recurrent.h"
#include "model/runtime_rows.h"

#include <string.h>

#define THREADS_MAX 512u /* ggml's GGML_MAX_N_THREADS */

static int numbers_check(const quire_runtime_opts *o, quire_error *err)
{
    if (o->n_threads > THREADS_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%u threads: at most %u are possible",
                               o->n_threads, THREADS_MAX);
    }
    if (o->n_ctx > INT32_MAX / 2 || o->n_batch > INT32_MAX / 2) {
        return quire_error_set(err, QUIRE_INVAL, "context of %u tokens or batch of %u is too large",
                               o->n_ctx, o->n_batch);
    }
    if (o->page_tokens < QUIRE_PAGE_TOKENS_MIN || o->page_tokens > QUIRE_PAGE_TOKENS_MAX ||
        o->page_tokens % QUIRE_TILE_TOKENS != 0) {
        return quire_error_set(
            err, QUIRE_INVAL, "pages of %u tokens: must be a multiple of %u from %u to %u",
            o->page_tokens, QUIRE_TILE_TOKENS, QUIRE_PAGE_TOKENS_MIN, QUIRE_PAGE_TOKENS_MAX);
    }
    if (o->kv_recent % QUIRE_TILE_TOKENS != 0 || o->kv_sinks % QUIRE_TILE_TOKENS != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%u recent and %u first tokens in 8 bit: both must be multiples of "
                               "%u",
                               o->kv_recent, o->kv_sinks, QUIRE_TILE_TOKENS);
    }
    if (!quire_state_format_known(o->state_format)) {
        return quire_error_set(err, QUIRE_INVAL, "states are kept in f32 or f16, not in %s",
                               quire_format_name(o->state_format));
    }
    return QUIRE_OK;
}

int quire_runtime_bounds_check(const quire_model_desc *desc, quire_error *err)
{
    const char *other = desc->latent.is_there ? "latent attention" : quire_desc_rows_fixed(desc);

    /* A phrase goes on behind its colon with the reason why tokens cannot be dropped. The reason
     * does not apply to bounds, so it is cut off. */
    return other == NULL ? QUIRE_OK
                         : quire_error_set(
                               err, QUIRE_UNSUPP,
                               "bounds of pages (--attend) and %.*s cannot go together in a server",
                               (int)strcspn(other, ":"), other);
}

/* Refuse formats that heads of these sizes cannot have. */
static int formats_check(const quire_model_desc *desc, const quire_runtime_opts *o,
                         quire_error *err)
{
    for (uint32_t i = 0; i < desc->n_stored; i++) {
        const quire_kv_pair pair = o->kv_pairs[i];
        const quire_layer_sizes sizes = quire_stored_sizes_of(desc, i);

        if (desc->latent.is_there && pair.k != pair.v) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "KV formats %s:%s of layer %u: in models of the architecture %s "
                                   "V is a part of K and has its format; name one format",
                                   quire_format_name(pair.k), quire_format_name(pair.v), i,
                                   desc->arch_name);
        }
        if (quire_tile_bytes(pair.k, QUIRE_SIDE_K, sizes.d_k) == 0 ||
            quire_tile_bytes(pair.v, QUIRE_SIDE_V, sizes.d_v) == 0) {
            return quire_error_set(
                err, QUIRE_INVAL, "KV formats %s:%s of layer %u do not fit heads of %u and %u",
                quire_format_name(pair.k), quire_format_name(pair.v), i, sizes.d_k, sizes.d_v);
        }
    }
    if (quire_opts_is_sealed(desc, o) && o->is_contiguous) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "a contiguous cache has no room for the 8-bit copies of recent "
                               "tokens that formats of 6 bits and less need: choose q8, f16, bf16 "
                               "or f32");
    }
    return o->has_bounds ? quire_runtime_bounds_check(desc, err) : QUIRE_OK;
}

/* The options are named as the commands write them. */
static int budget_check(const quire_model_desc *desc, const quire_runtime_opts *o, quire_error *err)
{
    const uint64_t whole_bytes = quire_runtime_kv_bytes(desc, o);
    const uint64_t need_bytes = o->kv_least_bytes != 0 ? o->kv_least_bytes : whole_bytes;
    char formats[64];

    if (whole_bytes == UINT64_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "context of %u tokens is too large", o->n_ctx);
    }
    if (o->kv_budget_bytes == 0 || o->kv_budget_bytes >= need_bytes || o->kv_overflows) {
        return QUIRE_OK;
    }
    return quire_error_set(
        err, QUIRE_NOPAGES,
        "a context of %u tokens needs %llu bytes of KV (%s), the budget is %llu: "
        "lower the context (-c), raise the budget (--kv-budget) or choose a "
        "smaller format (--kv)",
        o->n_ctx, (unsigned long long)need_bytes,
        quire_kv_summary(desc, o->kv_pairs, formats, sizeof formats),
        (unsigned long long)o->kv_budget_bytes);
}

int quire_runtime_opts_check(const quire_model_desc *desc, const quire_runtime_opts *opts,
                             quire_error *err)
{
    quire_attn_workspace_opts attn;

    QUIRE_TRY(quire_attn_isa_check(err));
    QUIRE_TRY(numbers_check(opts, err));
    QUIRE_TRY(formats_check(desc, opts, err));
    QUIRE_TRY(quire_runtime_device_check(opts, err));
    QUIRE_TRY(budget_check(desc, opts, err));
    attn = quire_runtime_attn_opts(desc, opts);
    return quire_attn_workspace_bytes(&attn) != 0
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "steps of %u tokens of %u sequences, with %u tokens of context "
                                 "each, are more than attention can plan",
                                 opts->n_batch, opts->n_seqs_max, opts->n_ctx);
}
