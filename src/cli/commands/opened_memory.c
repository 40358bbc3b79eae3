/* opened_memory.c - see opened_memory.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/opened_memory.h"

#include "base/parse.h"
#include "cli/commands/talk.h"
#include "engine/condensing.h"
#include "model/recurrent.h"

#include <stdlib.h>
#include <string.h>

uint32_t quire_opened_default_ctx(const quire_opened *session, const quire_runtime_opts *opts,
                                  uint64_t limit_bytes, const quire_memory_place *place)
{
    const uint32_t trained = session->desc->n_ctx_train;
    const uint32_t fits = quire_memory_tokens_max(session->desc, opts, limit_bytes, place, trained);

    if (fits >= trained / opts->page_tokens * opts->page_tokens || fits == 0) {
        return trained;
    }
    quire_say("the trained context of %u tokens does not fit in memory: this one is %u tokens (-c "
              "sets it)",
              trained, fits);
    return fits;
}

uint64_t quire_opened_budget_of(const quire_model_desc *desc, const quire_runtime_opts *opts,
                                uint32_t n_tokens)
{
    quire_runtime_opts all = *opts;
    quire_runtime_opts own = *opts;

    all.n_ctx = n_tokens;
    own.n_batch = 1;
    own.n_ctx = 4 * opts->page_tokens + opts->kv_recent + opts->kv_sinks;
    return quire_runtime_kv_bytes(desc, &all) +
           opts->n_seqs_max * quire_runtime_kv_bytes(desc, &own);
}

void quire_opened_least_set(const quire_model_desc *desc, const quire_opened_want *want,
                            quire_runtime_opts *opts)
{
    quire_condensing_parts parts = { .predictor = NULL };
    quire_runtime_opts resolved = *opts;
    quire_attn_layer *layers;

    if (want->condenses == NULL || opts->n_ctx == 0) {
        return;
    }
    layers = calloc(desc->n_layer, sizeof *layers);
    if (layers == NULL) {
        return; /* then the budget holds a whole context */
    }
    quire_runtime_opts_resolve(desc, &resolved);
    quire_condensing_packing_init(&parts, layers, desc, &resolved);
    opts->kv_least_bytes = quire_condensing_least_bytes(
        &(quire_condensing_on){ desc, &resolved, &parts }, want->condenses, want->condense_chunk);
    free(layers);
}

int quire_opened_least_check(const quire_model_desc *desc, const quire_opened_want *want,
                             const quire_runtime_opts *opts, quire_error *err)
{
    char formats[64];

    if (opts->kv_budget_bytes == 0 || opts->kv_budget_bytes >= opts->kv_least_bytes) {
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_NOPAGES,
                           "a context of %u tokens needs %llu bytes of KV (%s) with --retain %s:%g "
                           "every %u tokens, the budget is %llu: lower the context (-c), raise the "
                           "budget (--kv-budget), keep a smaller share, or choose a smaller format "
                           "(--kv)",
                           opts->n_ctx, (unsigned long long)opts->kv_least_bytes,
                           quire_kv_summary(desc, opts->kv_pairs, formats, sizeof formats),
                           want->condenses->policy->name, want->condenses->share,
                           want->condense_chunk, (unsigned long long)opts->kv_budget_bytes);
}

/* The memory for KV beside weights and buffers, the host's or the device's; 0: none. rest: the need
 * of weights and buffers, of the host and of the device. */
static uint64_t left_for_kv(const quire_opened *session, const quire_memory_need *need,
                            uint64_t rest[2])
{
    const quire_memory_place *place = quire_opened_place(session);
    const double host_share = quire_memory_host_share(need, place);
    const uint64_t limit_bytes = session->memory_limit_bytes;
    const uint64_t device_left = quire_memory_device_room(need, place);
    quire_memory_need without = *need;
    uint64_t left;

    without.total_bytes -= without.kv_bytes;
    without.kv_bytes = 0;
    rest[0] = quire_memory_host_bytes(&without, place);
    rest[1] = place != NULL ? need->device_weights_bytes + need->device_bytes : 0;
    for (uint32_t i = 0; i < QUIRE_MODEL_DEVICES_MAX; i++) {
        rest[1] += need->layers_weights_bytes[i] + need->layers_buffers_bytes[i];
    }
    if (rest[0] > limit_bytes) {
        return 0;
    }
    left = host_share > 0.0 ? quire_memory_whole(host_share, limit_bytes - rest[0]) : UINT64_MAX;
    return left < device_left ? left : device_left;
}

/* The part of a budget that a longest text may take: cached states have the rest, which is at most
 * half of what the shortest context, of least_bytes, leaves. */
static uint64_t for_text(const quire_model_desc *desc, const quire_runtime_opts *opts,
                         uint64_t least_bytes)
{
    const uint64_t budget_bytes = opts->kv_budget_bytes;
    const uint64_t half = budget_bytes > least_bytes ? (budget_bytes - least_bytes) / 2 : 0;
    const uint64_t states =
        QUIRE_CACHED_STATES_DEFAULT * quire_state_page_bytes(desc, opts->state_format);

    return budget_bytes - (states < half ? states : half);
}

int quire_opened_share_memory(const quire_opened *session, double share, quire_runtime_opts *opts,
                              quire_error *err)
{
    quire_memory_place place = session->device;
    quire_runtime_opts one = *opts;
    quire_memory_need need;
    uint64_t rest[2];
    uint64_t left_bytes, host_bytes, least_bytes;
    char seq[16], budget[16], left[16];

    one.n_ctx = one.n_ctx != 0 ? one.n_ctx : one.page_tokens;
    quire_memory_need_get(session->desc, &one, &need);
    left_bytes = left_for_kv(session, &need, rest);
    if (left_bytes == 0) {
        return quire_memory_check(session->desc, &one, session->memory_limit_bytes,
                                  quire_opened_place(session), err);
    }
    opts->kv_budget_bytes = (uint64_t)(share * (double)left_bytes);
    least_bytes = opts->kv_least_bytes != 0 ? opts->kv_least_bytes : need.kv_bytes;
    if (least_bytes > opts->kv_budget_bytes && !opts->kv_overflows) {
        return quire_error_set(
            err, QUIRE_NOMEM,
            "%u tokens of context take %s of KV%s, but weights and buffers leave %s of memory, and "
            "%g of that are %s: lower -c, choose a smaller --kv format or raise "
            "--cache-memory-ratio%s%s",
            one.n_ctx, quire_format_bytes(least_bytes, seq, sizeof(seq)),
            opts->kv_least_bytes != 0 ? " with --retain" : "",
            quire_format_bytes(left_bytes, left, sizeof(left)), share,
            quire_format_bytes(opts->kv_budget_bytes, budget, sizeof(budget)),
            place.name != NULL ? "; the memory is that of device " : "",
            place.name != NULL ? place.name : "");
    }
    if (opts->n_ctx == 0) {
        const uint64_t text_bytes = for_text(session->desc, opts, need.kv_bytes);

        host_bytes =
            place.n_parts == 0 && quire_memory_kv_is_hosts(&need, quire_opened_place(session))
                ? rest[0] + text_bytes
                : session->memory_limit_bytes;
        place.bytes = rest[1] + text_bytes;
        place.kv_bytes_max = place.n_parts > 0 ? text_bytes : 0;
        opts->n_ctx =
            quire_opened_default_ctx(session, opts, host_bytes, place.name != NULL ? &place : NULL);
    }
    return QUIRE_OK;
}

uint64_t quire_opened_budget_excess(const quire_opened *session, const quire_runtime_opts *opts)
{
    const quire_memory_place *place = quire_opened_place(session);
    const uint64_t limit_bytes = session->memory_limit_bytes;
    quire_memory_need need;
    uint64_t rest, bytes;

    quire_memory_need_get(session->desc, opts, &need);
    rest = opts->kv_budget_bytes > need.kv_bytes ? opts->kv_budget_bytes - need.kv_bytes : 0;
    rest = quire_memory_share(quire_memory_host_share(&need, place), rest);
    bytes = quire_memory_host_bytes(&need, place);
    if (bytes <= limit_bytes && rest <= limit_bytes - bytes) {
        return 0;
    }
    return bytes <= limit_bytes ? rest - (limit_bytes - bytes) : rest + (bytes - limit_bytes);
}

/* ---- of a runtime ---- */

static uint64_t sum_of(uint64_t a, uint64_t b)
{
    return b <= UINT64_MAX - a ? a + b : UINT64_MAX;
}

void quire_opened_count(quire_opened *session, const quire_runtime_opts *opts)
{
    quire_memory_need need;
    uint64_t more_bytes, host_bytes;
    double host_share;

    quire_memory_need_get(session->desc, opts, &need);
    need.device_weights_bytes = 0; /* another runtime on the device has the same */
    memset(need.layers_weights_bytes, 0, sizeof need.layers_weights_bytes);
    host_share = quire_memory_host_share(&need, quire_opened_place(session));
    host_bytes = quire_memory_host_bytes(&need, quire_opened_place(session)) - need.weights_bytes -
                 need.program_bytes;
    /* Cached texts fill the rest of the budget. */
    more_bytes = quire_rest_of(opts->kv_budget_bytes, need.kv_bytes);
    session->runtime_bytes = sum_of(host_bytes, quire_memory_share(host_share, more_bytes));
    session->device_bytes = sum_of(need.kv_bytes + need.device_bytes, more_bytes);
    memcpy(session->device_shares, need.shares, sizeof(session->device_shares));
}
