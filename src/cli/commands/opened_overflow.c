/* opened_overflow.c - see opened_overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/opened_overflow.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "model/memory.h"

#include <stdio.h>
#include <stdlib.h>

#define OVERFLOW_SIZES 2u /* the file for offloaded pages: so many times the context's KV */

int quire_opened_overflow_check(const quire_opened *session, const quire_common_args *args,
                                quire_error *err)
{
    const char *choice = quire_kv_overflow_attends[args->kv_overflow_attend];
    quire_error why = QUIRE_ERROR_INIT;
    int rc;

    if (args->kv_overflow_attend == QUIRE_OVERFLOW_ATTEND_DEVICE) {
        return QUIRE_OK;
    }
    if (session->device.name == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--kv-overflow-attend %s needs a device: without one all pages are "
                               "read by the CPU",
                               choice);
    }
    if (session->split.n > 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--kv-overflow-attend %s and --split-mode layer: no pages lie "
                               "outside of the devices' memory",
                               choice);
    }
    if (args->kv_overflow == QUIRE_KV_OVERFLOW_REFUSE) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--kv-overflow-attend %s and --kv-overflow refuse: no pages lie in "
                               "the host's memory then",
                               choice);
    }
    rc = quire_overflow_check(session->desc, &why);
    return rc < 0 ? quire_error_set(err, rc, "--kv-overflow-attend %s: %.200s", choice, why.message)
                  : QUIRE_OK;
}

void quire_opened_overflow_want(const quire_opened *session, const quire_common_args *args,
                                quire_opened_want *want)
{
    const bool is_on =
        args->kv_overflow == QUIRE_KV_OVERFLOW_TIER ||
        (args->kv_overflow == QUIRE_KV_OVERFLOW_AUTO && args->retain == NULL &&
         session->split.n == 0 && quire_overflow_check(session->desc, NULL) == QUIRE_OK);

    want->overflow_host = is_on && session->device.name != NULL;
    want->overflow_dir = is_on ? args->cache_dir : NULL;
}

/* Memory that the limit leaves beside the runtimes of all devices. Each has buffers in the host's
 * memory. The KV of devices whose memory is the host's counts as well, as the budget or as the
 * share of the memory left; other cards are taken to be like the first one. */
static uint64_t left_bytes(const quire_opened *session, const quire_opened_want *want,
                           const quire_runtime_opts *opts)
{
    const quire_memory_place *place = session->device.name != NULL ? &session->device : NULL;
    const bool is_hosts = place == NULL || place->is_hosts;
    const bool has_kv = is_hosts || want->n_cpus > 0; /* the host, on some device */
    const uint64_t n_more_cards = want->n_devices > 1 ? want->n_devices - 1 : 0;
    const uint64_t limit_bytes = session->memory_limit_bytes;
    quire_memory_need need;
    uint64_t host_bytes;
    uint64_t left;

    quire_memory_need_get(session->desc, opts, &need);
    host_bytes = quire_memory_host_bytes(&need, place);
    if (is_hosts) {
        host_bytes += opts->kv_budget_bytes - need.kv_bytes;
        host_bytes += n_more_cards * (need.device_bytes + opts->kv_budget_bytes);
    }
    host_bytes += want->n_cpus * opts->kv_budget_bytes;
    /* beside_bytes is common to all devices. */
    host_bytes += (n_more_cards + want->n_cpus) * (need.buffers_bytes - want->beside_bytes);
    left = host_bytes < limit_bytes ? limit_bytes - host_bytes : 0;
    return has_kv && opts->kv_budget_bytes == 0 ? (uint64_t)((double)left * (1.0 - want->kv_share))
                                                : left;
}

int quire_opened_overflow_bytes(quire_opened *session, const quire_common_args *args,
                                const quire_opened_want *want, uint64_t *bytes, quire_error *err)
{
    const uint64_t set_bytes = args->kv_overflow_memory_bytes;
    const uint32_t n_devices = want->n_devices > 0 ? want->n_devices : 1;
    char wanted[16], least[16], has[16];
    quire_runtime_opts opts;
    uint64_t min_bytes, left;

    QUIRE_TRY(quire_opened_draft(session, args, want, &opts, err));
    left = left_bytes(session, want, &opts);
    quire_runtime_opts_resolve(session->desc, &opts);
    min_bytes = n_devices * quire_overflow_bytes_min(session->desc, &opts);
    free((void *)(uintptr_t)opts.kv_pairs);
    *bytes = set_bytes != 0 ? set_bytes : left / 2;
    if (set_bytes > left) {
        return quire_error_set(
            err, QUIRE_NOMEM,
            "--kv-overflow-memory is %s, but the runtime leaves %s of the host's memory: lower it, "
            "or raise --memory-limit",
            quire_format_bytes(set_bytes, wanted, sizeof(wanted)),
            quire_format_bytes(left, has, sizeof(has)));
    }
    if (*bytes >= min_bytes) {
        *bytes /= n_devices;
        return QUIRE_OK;
    }
    if (args->kv_overflow == QUIRE_KV_OVERFLOW_TIER) {
        return quire_error_set(
            err, QUIRE_NOMEM,
            "--kv-overflow tier: pages outside of the device need at least %s of the host's "
            "memory, and there are %s for them: raise --kv-overflow-memory or --memory-limit, or "
            "use --kv-overflow refuse",
            quire_format_bytes(min_bytes, least, sizeof(least)),
            quire_format_bytes(*bytes, has, sizeof(has)));
    }
    *bytes = 0;
    return QUIRE_OK;
}

/* Without memory of the host a device's pages have no way to the file behind it. */
static void host_leave(const quire_opened *session, quire_opened_want *want)
{
    want->overflow_dir = session->device.name != NULL ? NULL : want->overflow_dir;
}

int quire_opened_overflow_settle(quire_opened *session, const quire_common_args *args,
                                 quire_opened_want *want, quire_error *err)
{
    const bool has_budget = args->kv_budget_bytes != 0 || want->kv_share > 0 || want->n_tokens != 0;

    /* Else the budget holds the whole context. */
    want->overflow_host = want->overflow_host && session->device.name != NULL && has_budget;
    if (!want->overflow_host) {
        host_leave(session, want);
        return QUIRE_OK;
    }
    want->attends_host = args->kv_overflow_attend != QUIRE_OVERFLOW_ATTEND_DEVICE;
    QUIRE_TRY(quire_opened_overflow_bytes(session, args, want, &want->overflow_host_bytes, err));
    if (want->overflow_host_bytes == 0) {
        want->overflow_host = false;
        want->attends_host = false;
        host_leave(session, want);
        quire_say("warning: " QUIRE_OVERFLOW_NO_MEMORY);
        return QUIRE_OK;
    }
    session->attend = (quire_overflow_attend)args->kv_overflow_attend;
    return QUIRE_OK;
}

/* Where the budget holds the whole context, there is nothing to offload. */
int quire_opened_overflow_open(quire_opened *session, const quire_opened_want *want,
                               quire_error *err)
{
    const quire_runtime_opts *o = quire_runtime_opts_get(session->runtime);
    const uint64_t need_bytes = quire_runtime_kv_bytes(session->desc, o);
    const quire_overflow_opts opts = { .dir = want->overflow_dir,
                                       .capacity_bytes = OVERFLOW_SIZES * need_bytes,
                                       .host_bytes =
                                           want->overflow_host ? want->overflow_host_bytes : 0 };
    int rc;

    if (!quire_overflow_is_on(&opts, session->runtime) ||
        need_bytes * o->n_seqs_max <= o->kv_budget_bytes) {
        return QUIRE_OK;
    }
    rc = quire_overflow_open(&session->offload, session->runtime, session->desc, &opts, NULL, err);
    if (rc < 0) {
        quire_opened_close_runtime(session);
    }
    return rc;
}

char *quire_opened_overflow_trouble(const quire_opened *session, char *buffer, size_t buffer_bytes)
{
    const bool is_on = session->offload != NULL;
    const char *file = is_on ? quire_offload_trouble(session->offload, true) : "";
    const char *host = is_on ? quire_offload_trouble(session->offload, false) : "";

    (void)snprintf(buffer, buffer_bytes, "%s%s%s%s",
                   file[0] != '\0' ? "; overflow file in --cache-dir: " : "", file,
                   host[0] != '\0' ? "; offloaded pages: " : "", host);
    return buffer;
}

static uint64_t offloaded_bytes(const quire_opened *session, quire_seq_id seq)
{
    quire_offload_share share;

    quire_offload_share_get(session->offload, seq, &share);
    return share.offloaded_bytes;
}

static bool takes_host(const quire_opened *session)
{
    return session->attend == QUIRE_OVERFLOW_ATTEND_HOST ||
           quire_attend_choose(&session->attend_choice) == QUIRE_ATTEND_HOST;
}

int quire_opened_decode(quire_opened *session, const quire_slice *slice, const float **logits,
                        bool *is_mixed)
{
    const bool may_attend =
        session->offload != NULL && session->attend != QUIRE_OVERFLOW_ATTEND_DEVICE;
    const uint64_t bytes = may_attend ? offloaded_bytes(session, slice->seq) : 0;
    const uint64_t begin_ns = quire_clock_ns();
    int rc;

    *is_mixed = false;
    if (bytes == 0) {
        return quire_opened_step(session, slice, 1, logits);
    }
    quire_offload_attend(session->offload, takes_host(session));
    rc = quire_opened_step(session, slice, 1, logits);
    *is_mixed = quire_offload_attended(session->offload);
    quire_offload_attend(session->offload, false);
    /* A step that moves pages takes longer. */
    if (rc == QUIRE_OK && offloaded_bytes(session, slice->seq) == bytes) {
        quire_attend_measured(&session->attend_choice,
                              *is_mixed ? QUIRE_ATTEND_HOST : QUIRE_ATTEND_DEVICE, bytes,
                              (quire_clock_ns() - begin_ns) / 1000);
    }
    return rc;
}

bool quire_opened_relieve(quire_opened *session, quire_seq_id seq)
{
    return session->offload != NULL && (quire_offload_settle(session->offload) > 0 ||
                                        quire_offload_seq(session->offload, seq, 0) > 0);
}
