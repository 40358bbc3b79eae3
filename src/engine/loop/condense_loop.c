/* condense_loop.c - see condense_loop.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"

int quire_loop_retain_check(const quire_loop *loop, const quire_retain_spec *spec,
                            const char *setting, quire_error *err)
{
    const quire_condensing_on on = { loop->desc, loop->runtime_opts, &loop->lanes.parts };
    /* Several devices are watched in any case; with KV events they have no chunks. */
    const bool has_events = loop->opts.watcher.stored != NULL && !quire_loop_has_heir(loop);
    const char *other = loop->opts.retain_chunk == 0 && quire_loop_has_heir(loop)
                            ? "KV events of several devices, or an engine without chunks"
                        : loop->opts.retain_chunk == 0 ? "an engine without chunks"
                        : has_events                   ? "KV events: they name whole texts"
                                                       : NULL;

    if (other != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s cannot go with %s", setting, other);
    }
    return quire_condensing_check(&on, spec, loop->opts.retain_chunk, setting, err);
}

/* ---- look-up ---- */

/* The last token at which a request with k condensings behind it may begin. From there on it
 * computes the rows that the next condensing looks at. `predict` and sums look at the whole chunk,
 * so a request computes the whole chunk if its text is known to pass the next place; else see
 * begin_again(). */
static uint32_t use_end(const quire_request *r, uint32_t k)
{
    const quire_condensing *c = &r->condensing;
    const uint32_t n_end = (k + 1) * c->chunk;

    if (c->chunk == 0) {
        return quire_request_common(r, UINT32_MAX);
    }
    return quire_condensing_reads_chunk(c) && r->n_tokens <= n_end
               ? n_end
               : n_end - quire_condensing_seen(c);
}

uint32_t quire_request_fetch_end(const quire_request *r, uint32_t k)
{
    const quire_condensing *c = &r->condensing;

    if (c->chunk == 0) {
        return quire_request_common(r, UINT32_MAX);
    }
    return quire_condensing_reads_chunk(c) ? use_end(r, k) : (k + 1) * c->chunk;
}

static quire_condensed_hit hit_of(const quire_request *r, quire_condensed entry, uint32_t k)
{
    const quire_condensing *c = &r->condensing;
    const uint32_t n_end = c->chunk != 0 ? (k + 1) * c->chunk : quire_request_common(r, UINT32_MAX);

    return (quire_condensed_hit){ .entry = k > 0 ? entry : QUIRE_CONDENSED_NULL,
                                  .k = k,
                                  .n_gone = quire_condensing_gone(c, k),
                                  .n_end = n_end,
                                  .n_use_end = use_end(r, k) };
}

static void claim_get(const quire_loop *loop, const quire_request *r,
                      const quire_condensed_hit *hit, const uint32_t n[2],
                      quire_prefix_claim *claim)
{
    const quire_prefix_key key =
        quire_loop_condensed_key(loop, r->tenant, r->tenant_bytes, hit->entry);
    const uint32_t n_ask = quire_min_u32(n[0], hit->n_end) - hit->n_gone;
    const uint32_t n_use = quire_min_u32(n[1], hit->n_use_end) - hit->n_gone;

    quire_prefix_claim_get(loop->tree, &key, r->tokens + hit->n_gone, n_ask, n_use, claim);
}

quire_condensed_hit quire_loop_condensed_claim(const quire_loop *loop, const quire_request *r,
                                               uint32_t n_ask, uint32_t n_use,
                                               quire_prefix_claim *claim)
{
    const uint32_t k_max = quire_condensing_before(&r->condensing, n_use);
    const uint32_t n[2] = { n_ask, n_use };
    quire_condensed_hit hit = hit_of(r, QUIRE_CONDENSED_NULL, 0);

    if (k_max > 0) {
        const quire_condensed_text text = quire_condensed_text_of(r);
        uint32_t k;
        quire_condensed entry = quire_loop_condensed_find(loop, &text, k_max, &k);

        for (; k > 0; k--, entry = quire_condensed_parent(loop->condensed, entry)) {
            hit = hit_of(r, entry, k);
            claim_get(loop, r, &hit, n, claim);
            if (claim->n_tokens >= quire_condensing_kept(&r->condensing, k)) {
                return hit;
            }
        }
        hit = hit_of(r, QUIRE_CONDENSED_NULL, 0);
    }
    claim_get(loop, r, &hit, n, claim);
    return hit;
}

int quire_loop_condensed_begin(quire_loop *loop, quire_request *r, const quire_condensed_hit *hit,
                               quire_prefix_match *match)
{
    if (hit->k == 0) {
        return quire_loop_lanes_begin(loop, r);
    }
    /* The look-up left out the text's last token, by which another page with the same tokens may be
     * found: one whose window is not whole. */
    QUIRE_FAIL_IF(match->n_tokens < quire_condensing_kept(&r->condensing, hit->k), QUIRE_NOPAGES);
    quire_condensed_keep(loop->condensed, hit->entry);
    r->kv.condensed = hit->entry;
    r->kv.n_condensings = hit->k;
    r->kv.n_dropped = hit->n_gone;
    r->result.n_dropped_tokens = hit->n_gone;
    r->result.n_condensings = hit->k;
    loop->figures.now.condensings_found_total++;
    loop->figures.now.condensings_found_again_total += hit->k > 1;
    match->n_tokens += hit->n_gone;
    match->n_same_tokens += hit->n_gone;
    return quire_loop_lanes_begin(loop, r);
}

uint32_t quire_loop_condensed_common(const quire_request *a, const quire_request *b)
{
    const uint32_t chunk = /* 0 is none */
        quire_min_u32(a->condensing.chunk - 1, b->condensing.chunk - 1) + 1;
    const uint32_t n =
        quire_condensing_is_same(&a->condensing, &b->condensing) ? UINT32_MAX : chunk;

    return quire_request_common(a, quire_request_common(b, n));
}

/* ---- condensing ---- */

#define UNSEEN     QUIRE_NOTFOUND /* the request has not computed all that the condensing reads, */
#define UNREPEATED QUIRE_RANGE    /* or not repeated it */
#define UNREAD     QUIRE_CORRUPT  /* it is not known what the pages of the condensed text hold */

/* A sequence with the text condensed once more, and its tie to the tree. */
typedef struct condensed {
    quire_condensed entry;
    quire_seq_id seq;
    quire_prefix_ref ref;
    bool is_found; /* another request had condensed this text */
} condensed;

/* Tie the new sequence to the tree, and fill it if all kept pages are there. Without an entry or a
 * tie the request shares nothing from now on. */
static void tie(quire_loop *loop, const quire_request *r, uint32_t n_gone, uint32_t n_kept,
                condensed *out)
{
    const quire_prefix_key key =
        quire_loop_condensed_key(loop, r->tenant, r->tenant_bytes, out->entry);
    const int32_t *tokens = r->tokens + n_gone;
    quire_prefix_acquire_opts opts = {
        .tokens_max = n_kept,
        .owner = r->owner,
        .now_us = quire_loop_now_us(loop),
        .is_private = r->is_uncached || loop->opts.no_prefix_cache || r->kv.is_own,
        .rank = r->rank,
        .account = quire_loop_account(loop, r->tenant, r->tenant_bytes),
        .is_uncounted = true,
        .is_apart = true,
    };
    quire_prefix_match match;

    if (out->entry == QUIRE_CONDENSED_NULL) {
        return;
    }
    quire_prefix_lookup(loop->tree, &key, tokens, n_kept, &match);
    opts.is_miss = match.n_tokens < n_kept || loop->opts.no_prefix_cache ||
                   (r->wait.stuck_tokens == r->n_tokens && r->wait.retreat == QUIRE_RETREAT_NO_HIT);
    if (quire_prefix_acquire(loop->tree, &key, out->seq, tokens, n_kept, &opts, &match, &out->ref) <
        0) {
        out->ref = QUIRE_PREFIX_REF_NULL;
    }
    out->is_found = quire_seq_tokens(loop->cache, out->seq) == n_kept;
    QUIRE_CHECK(out->is_found || quire_seq_tokens(loop->cache, out->seq) == 0);
}

/* Memory has no room for both texts: condense within the pages of the request. The tree lets go of
 * them first, with the text as it was before. From then on the request publishes nothing until it
 * is condensed, or begins again. */
static int condense_within(quire_loop *loop, quire_request *r, uint32_t k, const condensed *out)
{
    QUIRE_TRY(quire_condense_share(&r->condensing, loop->cache, k, r->kv.seq, out->seq));
    if (r->kv.ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_leave(loop->tree, r->kv.ref, quire_loop_now_us(loop));
        r->kv.ref = QUIRE_PREFIX_REF_NULL;
    }
    return quire_condense_shared(&r->condensing, loop->runtime, k, r->kv.lanes, r->kv.seq,
                                 out->seq);
}

static int condensed_make(quire_loop *loop, quire_request *r, condensed *out)
{
    const uint32_t k = r->kv.n_condensings + 1;
    const uint32_t n_gone = quire_condensing_gone(&r->condensing, k);
    const quire_condensed_text text = quire_condensed_text_of(r);
    int rc;

    QUIRE_TRY(quire_seq_open(loop->cache, quire_loop_region(loop, r->class_index), &out->seq));
    out->entry = quire_loop_condensed_hold(loop, &text, k);
    tie(loop, r, n_gone, quire_condensing_kept(&r->condensing, k), out);
    if (out->is_found) {
        return QUIRE_OK;
    }
    if (!quire_condensing_has_seen(&r->condensing, k, r->kv.lanes)) {
        return UNSEEN;
    }
    if (quire_condensing_is_unrepeated(&r->condensing, k, r->kv.lanes)) {
        return UNREPEATED;
    }
    rc = quire_condense(&r->condensing, loop->runtime, k, r->kv.lanes, r->kv.seq, out->seq);
    return rc == QUIRE_NOPAGES ? condense_within(loop, r, k, out) : rc;
}

static void let_go(quire_loop *loop, quire_prefix_ref ref, quire_seq_id seq, quire_condensed entry)
{
    if (ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(loop->tree, ref, quire_loop_now_us(loop));
    }
    if (seq != QUIRE_SEQ_NULL) {
        (void)quire_seq_close(loop->cache, seq);
    }
    quire_condensed_release(loop->condensed, entry);
}

/* The request goes on with the condensed text. Errors: UNREAD, QUIRE_LOST: it cannot. */
static int take_over(quire_loop *loop, quire_request *r, const condensed *c)
{
    const uint32_t n_gone = quire_condensing_gone(&r->condensing, r->kv.n_condensings + 1);
    quire_engine_stats *s = &loop->figures.now;
    int rc;

    quire_loop_condensed_cool(loop, r);
    let_go(loop, r->kv.ref, r->kv.seq, r->kv.condensed);
    s->condensings_total += !c->is_found;
    s->condensings_found_total += c->is_found;
    s->condensings_again_total += !c->is_found && r->kv.n_condensings > 0;
    s->condensings_found_again_total += c->is_found && r->kv.n_condensings > 0;
    s->condensed_tokens_total += n_gone - r->kv.n_dropped;
    r->kv.ref = c->ref;
    r->kv.seq = c->seq;
    r->kv.condensed = c->entry;
    r->kv.n_condensings++;
    r->kv.n_dropped = n_gone;
    r->kv.n_found = c->is_found ? quire_request_held(r) : 0;
    r->kv.n_published = c->is_found ? r->kv.n_computed : n_gone;
    r->result.n_dropped_tokens = n_gone;
    r->result.n_condensings = r->kv.n_condensings;
    quire_loop_publish(loop, r);
    quire_loop_released(loop);
    rc = quire_loop_lanes_follow(loop, r);
    return rc == QUIRE_OK || rc == QUIRE_LOST ? rc : UNREAD;
}

static int condense_one(quire_loop *loop, quire_request *r)
{
    condensed c = { .seq = QUIRE_SEQ_NULL };
    int rc;

    quire_loop_publish(loop, r);
    rc = condensed_make(loop, r, &c);
    if (rc < 0) {
        let_go(loop, c.ref, c.seq, c.entry);
        return rc;
    }
    return take_over(loop, r, &c);
}

static bool is_due(const quire_request *r)
{
    return r->n_tokens > r->kv.n_computed &&
           quire_condensing_before(&r->condensing, r->kv.n_computed) > r->kv.n_condensings;
}

/* The request began with tokens of its chunk that were cached, came to the place while it wrote,
 * and no other request has condensed this text. It is preempted and computes the chunk itself: its
 * text now passes the place. */
static void begin_again(quire_loop *loop, quire_request *r)
{
    quire_loop_preempt(loop, r);
    r->wait.blocked_at = 0; /* no pages are missing */
}

/* The request cannot read the list of the tokens that were kept: there was no memory, or the list
 * is damaged. Another step would take the pages for others. The request computes its text again,
 * and uses nothing that is cached; if that does not help, it ends. */
static void begin_anew(quire_loop *loop, quire_request *r)
{
    if (r->wait.stuck_tokens == r->n_tokens && r->wait.retreat == QUIRE_RETREAT_NO_HIT) {
        quire_loop_end(loop, r,
                       &(quire_ending){ .finish = QUIRE_FINISH_ERROR,
                                        .status = QUIRE_NOMEM,
                                        .stop_index = -1,
                                        .message = "no memory to read which tokens of the text "
                                                   "were kept (retain)" });
        return;
    }
    r->wait.stuck_tokens = r->n_tokens;
    r->wait.retreat = QUIRE_RETREAT_NO_HIT;
    begin_again(loop, r);
}

bool quire_loop_condense(quire_loop *loop)
{
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        quire_request *r = loop->set.running[i];
        int rc;

        if (!is_due(r)) {
            continue;
        }
        rc = condense_one(loop, r);
        /* A part in each round, so that other requests get their steps; then it is at the place
         * again. */
        if (rc == UNREPEATED) {
            rc = quire_loop_lanes_repeat(loop, r, r->kv.n_condensings + 1);
        }
        if (rc == UNSEEN) {
            begin_again(loop, r);
            return false;
        }
        if (rc == UNREAD) {
            begin_anew(loop, r);
            return false;
        }
        if (rc < 0) {
            quire_loop_relieve(loop, rc == QUIRE_LIMIT ? QUIRE_NOPAGES : rc);
            return false;
        }
    }
    return true;
}

void quire_loop_condensed_cool(quire_loop *loop, quire_request *r)
{
    const uint32_t n_gone = r->kv.n_dropped;

    if (r->kv.seq == QUIRE_SEQ_NULL || r->condensing.chunk == 0 ||
        !quire_packing_is_sealed(&r->condensing.packing)) {
        return;
    }
    quire_runtime_cool(loop->runtime, r->kv.seq);
    if (quire_request_publishes(r) && r->kv.n_published > n_gone) {
        /* Nothing new: the tree lets go of the pages that the sequence has released. */
        (void)quire_prefix_publish(loop->tree, r->kv.ref, r->tokens + n_gone,
                                   r->kv.n_published - n_gone, quire_loop_now_us(loop));
    }
}

void quire_loop_condensed_forget(quire_loop *loop, quire_request *r)
{
    quire_condensed_release(loop->condensed, r->kv.condensed);
    quire_loop_lanes_end(r);
    r->kv.condensed = QUIRE_CONDENSED_NULL;
    r->kv.n_condensings = 0;
}

/* ---- invalidation ---- */

/* Whether the k chunks of an entry are the named tokens, as far as both go. */
static bool spells(const quire_loop *loop, quire_condensed entry, uint32_t k,
                   const quire_invalidate *what)
{
    for (; k > 0; k--, entry = quire_condensed_parent(loop->condensed, entry)) {
        uint32_t n_bytes;
        const int32_t *tokens = quire_condensed_bytes(loop->condensed, entry, &n_bytes);
        const uint32_t n_chunk = n_bytes / (uint32_t)sizeof(int32_t);
        const uint32_t begin = (k - 1) * n_chunk;

        if (begin < what->n_tokens) {
            const uint32_t n = quire_min_u32(n_chunk, what->n_tokens - begin);

            if (memcmp(tokens, what->tokens + begin, n * sizeof(int32_t)) != 0) {
                return false;
            }
        }
    }
    return true;
}

/* The condensings of an entry's text. */
static uint32_t depth_of(const quire_loop *loop, quire_condensed entry)
{
    uint32_t k = 0;

    while ((entry = quire_condensed_parent(loop->condensed, entry)) != QUIRE_CONDENSED_NULL) {
        k++;
    }
    return k;
}

static bool is_of(const quire_loop *loop, quire_condensed entry, const quire_invalidate *what)
{
    uint32_t n_bytes;
    const void *tenant = quire_loop_condensed_tenant(loop, entry, &n_bytes);

    return n_bytes == what->tenant_bytes &&
           (n_bytes == 0 || memcmp(tenant, what->tenant, n_bytes) == 0);
}

static void add_dropped(quire_prefix_dropped *sum, quire_prefix_dropped one)
{
    sum->nodes += one.nodes;
    sum->tokens += one.tokens;
    sum->freed_bytes += one.freed_bytes;
}

/* Drop the roots of all texts that begin with the named tokens, or may. A root whose text is
 * shorter goes as a whole: the text that follows in it is computed again. */
static void drop_prefix(quire_loop *loop, const quire_invalidate *what,
                        quire_prefix_dropped *dropped)
{
    for (uint32_t i = 0; i < QUIRE_CONDENSED_MAX; i++) {
        const quire_condensed entry = quire_condensed_at(loop->condensed, i);
        const uint32_t k = entry != QUIRE_CONDENSED_NULL ? depth_of(loop, entry) : 0;

        if (k > 0 && is_of(loop, entry, what) && spells(loop, entry, k, what)) {
            const quire_prefix_key key =
                quire_loop_condensed_key(loop, what->tenant, what->tenant_bytes, entry);

            add_dropped(dropped, quire_prefix_drop_prefix(loop->tree, &key, NULL, 0,
                                                          quire_loop_now_us(loop)));
        }
    }
}

static bool is_named(const quire_request *r, const quire_invalidate *what)
{
    const uint32_t n_common = quire_min_u32(r->n_tokens, what->n_tokens);
    const bool begins =
        r->tenant_bytes >= what->tenant_bytes &&
        (what->tenant_bytes == 0 || memcmp(r->tenant, what->tenant, what->tenant_bytes) == 0);

    switch (what->what) {
    case QUIRE_INVALIDATE_ALL:
        return true;
    case QUIRE_INVALIDATE_TENANTS:
        return begins;
    case QUIRE_INVALIDATE_TENANT:
        return begins && r->tenant_bytes == what->tenant_bytes;
    case QUIRE_INVALIDATE_PREFIX:
        return begins && r->tenant_bytes == what->tenant_bytes &&
               (n_common == 0 ||
                memcmp(r->tokens, what->tokens, n_common * sizeof *what->tokens) == 0);
    case QUIRE_INVALIDATE_SESSION:
        break; /* its requests publish nothing: invalidate.c */
    }
    return false;
}

/* Rows computed before the invalidation must not be published by the next condensing. */
static void silence(quire_request *r, const quire_invalidate *what)
{
    r->is_uncached = r->is_uncached || (r->condensing.chunk != 0 && is_named(r, what));
}

void quire_loop_condensed_invalidate(quire_loop *loop, const quire_invalidate *what,
                                     quire_prefix_dropped *dropped)
{
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        silence(loop->set.running[i], what);
    }
    for (uint32_t i = 0; i < loop->set.n_parked; i++) {
        silence(loop->set.parked[i], what);
    }
    if (what->what == QUIRE_INVALIDATE_PREFIX) {
        drop_prefix(loop, what, dropped);
    }
}

/* ---- figures ---- */

static void count_held(quire_loop *loop, const quire_request *r)
{
    if (r->kv.n_condensings > 0) {
        loop->figures.now.condensed_held_bytes +=
            quire_loop_held_bytes(loop, r, quire_request_held(r));
        loop->figures.now.condensed_text_bytes += quire_loop_need_bytes(loop, r->kv.n_computed);
    }
}

void quire_loop_condensed_stats_fill(quire_loop *loop)
{
    loop->figures.now.condensed_texts = quire_condensed_count(loop->condensed);
    loop->figures.now.condensed_held_bytes = 0;
    loop->figures.now.condensed_text_bytes = 0;
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        count_held(loop, loop->set.running[i]);
    }
    for (uint32_t i = 0; i < loop->set.n_parked; i++) {
        count_held(loop, loop->set.parked[i]);
    }
}
