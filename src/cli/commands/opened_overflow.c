/* opened_overflow.c - see opened_overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/opened_overflow.h"

#include "base/check.h"
#include "model/memory.h"

#define OVERFLOW_SIZES 2u /* the file for offloaded pages: so many times the context's KV */

void quire_opened_overflow_want(const quire_opened *session, const quire_common_args *args,
                                quire_opened_want *want)
{
    const bool is_on = args->kv_overflow == QUIRE_KV_OVERFLOW_TIER ||
                       (args->kv_overflow == QUIRE_KV_OVERFLOW_AUTO && args->retain == NULL &&
                        quire_overflow_check(session->desc, NULL) == QUIRE_OK);

    want->overflow_host = is_on && session->device.name != NULL;
    want->overflow_dir = is_on && !want->overflow_host ? args->cache_dir : NULL;
}

uint64_t quire_opened_overflow_bytes(const quire_opened *session, const quire_common_args *args)
{
    const uint64_t limit_bytes = session->memory_limit_bytes;
    quire_memory_need need;
    uint64_t host_bytes;

    if (args->kv_overflow_memory_bytes != 0) {
        return args->kv_overflow_memory_bytes;
    }
    quire_memory_need_get(session->desc, quire_runtime_opts_get(session->runtime), &need);
    host_bytes =
        quire_memory_host_bytes(&need, session->device.name != NULL ? &session->device : NULL);
    return host_bytes < limit_bytes ? (limit_bytes - host_bytes) / 2 : 0;
}

/* Where the budget holds the whole context, there is nothing to offload. */
int quire_opened_overflow_open(quire_opened *session, const quire_common_args *args,
                               const quire_opened_want *want, quire_error *err)
{
    const quire_runtime_opts *o = quire_runtime_opts_get(session->runtime);
    const uint64_t need_bytes = quire_runtime_kv_bytes(session->desc, o);
    const quire_overflow_opts opts = { .dir = want->overflow_dir,
                                       .capacity_bytes =
                                           want->overflow_host
                                               ? quire_opened_overflow_bytes(session, args)
                                               : OVERFLOW_SIZES * need_bytes };
    int rc;

    if (!quire_overflow_is_on(&opts, session->runtime) ||
        need_bytes * o->n_seqs_max <= o->kv_budget_bytes) {
        return QUIRE_OK;
    }
    rc = quire_overflow_open(&session->offload, session->runtime, session->desc, &opts, err);
    if (rc < 0) {
        quire_opened_close_runtime(session);
    }
    return rc;
}

bool quire_opened_relieve(quire_opened *session, quire_seq_id seq)
{
    return session->offload != NULL && (quire_offload_settle(session->offload) > 0 ||
                                        quire_offload_seq(session->offload, seq) > 0);
}
