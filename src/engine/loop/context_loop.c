/* context_loop.c - see context_loop.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/context_loop.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/context_condense.h"
#include "engine/loop/loop_object.h"
#include "model/runtime_shift.h"

static quire_context_on on_of(const quire_loop *loop, const char *setting)
{
    return (quire_context_on){ .desc = loop->desc, .opts = loop->runtime_opts, .setting = setting };
}

int quire_loop_context_check(const quire_loop *loop, quire_context_overflow overflow, uint32_t keep,
                             const char *setting, quire_error *err)
{
    const quire_context_on on = on_of(loop, setting);

    return quire_context_overflow_check(&on, overflow, keep, err);
}

int quire_loop_context_condense_check(const quire_loop *loop, const quire_retain_spec *spec,
                                      uint32_t keep, const char *setting, quire_error *err)
{
    const quire_context_on on = on_of(loop, setting);

    return quire_context_condense_check(&on, spec, keep, err);
}

uint32_t quire_loop_text_max(const quire_loop *loop, quire_context_overflow overflow)
{
    const uint64_t n_ctx = loop->runtime_opts->n_ctx;

    return overflow == QUIRE_CONTEXT_REFUSE
               ? (uint32_t)n_ctx
               : (uint32_t)quire_min_u64(n_ctx * QUIRE_CONTEXTS_MAX, INT32_MAX);
}

/* Whether the tree relies on tokens of a sequence behind the first n_keep ones. */
static bool is_relied_on(const quire_loop *loop, quire_seq_id seq, uint32_t n_keep)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    quire_seq_table table = { 0 };
    bool is_kept = false;

    (void)quire_seq_table_get(loop->cache, seq, 0, &table);
    for (uint32_t i = n_keep / page_tokens; i < table.n_entries && !is_kept; i++) {
        const uint32_t first = i * page_tokens;
        quire_page_info info = { 0 };

        (void)quire_cache_page_info_get(
            loop->cache, table.leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page, &info);
        is_kept = first + info.n_kept > quire_max_u32(first, n_keep);
    }
    return is_kept;
}

/* Whether the request's pages behind the kept tokens are its own. A publication for which there was
 * no memory may have published a part. */
static bool has_own_pages(const quire_loop *loop, const quire_request *r, uint32_t n_keep)
{
    return r->kv.n_dropped > 0 ||
           (r->kv.n_published <= n_keep && !is_relied_on(loop, r->kv.seq, n_keep));
}

/* The request shares no more pages. */
static void leave_tree(quire_loop *loop, quire_request *r)
{
    if (r->kv.ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(loop->tree, r->kv.ref, quire_loop_now_us(loop));
        r->kv.ref = QUIRE_PREFIX_REF_NULL;
    }
}

/* The tokens [n_keep, n_keep + n) leave, and the others get pages of their own. Errors: those of
 * quire_runtime_shift_away(). */
static int move_away(quire_loop *loop, quire_request *r, uint32_t n_keep, uint32_t n, bool *is_torn)
{
    quire_seq_id seq;

    leave_tree(loop, r); /* then pages that the sequence gives up can be evicted */
    QUIRE_TRY(
        quire_runtime_shift_away(loop->runtime, r->kv.seq, n_keep, n_keep + n, &seq, is_torn));
    (void)quire_seq_close(loop->cache, r->kv.seq);
    r->kv.seq = seq;
    return QUIRE_OK;
}

/* Errors: those of quire_runtime_shift_away(); *is_torn: the sequence has lost pages or tokens. */
static int drop_tokens(quire_loop *loop, quire_request *r, bool *is_torn)
{
    const uint32_t n_keep = quire_context_overflow_keep(r->context_keep);
    const uint32_t n = quire_context_overflow_drop(r->overflow, n_keep, quire_request_held(r));

    *is_torn = false;
    return has_own_pages(loop, r, n_keep)
               ? quire_runtime_shift(loop->runtime, r->kv.seq, n_keep, n_keep + n, is_torn)
               : move_away(loop, r, n_keep, n, is_torn);
}

/* The same where a policy chooses the tokens that leave. */
static int condense(quire_loop *loop, quire_request *r, bool *is_torn)
{
    const uint32_t n_keep = quire_context_overflow_keep(r->context_keep);
    int rc;

    *is_torn = false;
    if (!has_own_pages(loop, r, n_keep)) {
        QUIRE_TRY(move_away(loop, r, n_keep, 0, is_torn)); /* of the sequence before */
    }
    rc = quire_context_condense(&r->context_retain, loop->runtime, r->kv.seq, n_keep, is_torn);
    if (rc < 0 && r->kv.ref == QUIRE_PREFIX_REF_NULL) {
        r->kv.n_published = quire_min_u32(r->kv.n_published, n_keep); /* the rest is its own now */
    }
    return rc;
}

static void count_dropped(quire_loop *loop, quire_request *r, uint32_t n_before)
{
    const uint32_t n = n_before - quire_seq_tokens(loop->cache, r->kv.seq);

    r->kv.n_dropped += n;
    r->kv.n_found = quire_min_u32(r->kv.n_found, quire_context_overflow_keep(r->context_keep));
    r->result.n_dropped_tokens = r->kv.n_dropped;
    loop->figures.now.context_shifts_total++;
    loop->figures.now.context_dropped_tokens_total += n;
    if (r->overflow == QUIRE_CONTEXT_CONDENSE) {
        loop->figures.now.context_condensings_whole_total += r->kv.n_condensings == 0;
        loop->figures.now.context_condensings_again_total += r->kv.n_condensings > 0;
        r->result.n_condensings = ++r->kv.n_condensings;
    }
    quire_loop_released(loop);
}

/* There was no memory to make room, or the device is lost. */
static void give_up(quire_loop *loop, quire_request *r, int status, bool is_torn)
{
    const bool is_alone = loop->set.n_running + loop->set.n_parked == 1;

    if (status == QUIRE_LOST) {
        return; /* the round ends all requests */
    }
    if (is_torn) {
        leave_tree(loop, r);
    }
    if (is_torn && !is_alone) {
        quire_loop_preempt(loop, r); /* the rest of its pages is of no use */
        return;
    }
    if (is_alone && r->wait.stuck_tokens != r->n_tokens) {
        /* It begins again with pages of its own (is_own): a hit of full pages would not help. */
        r->wait.stuck_tokens = r->n_tokens;
        r->wait.retreat = QUIRE_RETREAT_FULL_PAGES;
    }
    /* A sequence too many is the fault of parked requests, too. */
    quire_loop_relieve(loop, status == QUIRE_LIMIT ? QUIRE_NOPAGES : status);
}

bool quire_loop_contexts_clear(quire_loop *loop)
{
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        quire_request *r = loop->set.running[i];
        const uint32_t n_held = quire_request_held(r);
        bool is_torn;
        int rc;

        if (n_held < r->n_held_max || r->n_tokens == r->kv.n_computed) {
            continue;
        }
        quire_loop_publish(loop, r);
        rc = r->overflow == QUIRE_CONTEXT_CONDENSE ? condense(loop, r, &is_torn)
                                                   : drop_tokens(loop, r, &is_torn);
        if (rc < 0) {
            give_up(loop, r, rc, is_torn);
            return false;
        }
        count_dropped(loop, r, n_held);
    }
    return true;
}
