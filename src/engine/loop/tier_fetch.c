/* tier_fetch.c - pages from below into the tree: prefill by reading. See engine/tier.h.
 *
 * A fetch has a sequence of its own, tied to the request's key. It begins with the pages that the
 * tree has, and grows by one page at a time: append, scatter, publish. So a fetched page comes into
 * the tree in the same way as a computed one, and all rules for pages hold for it.
 *
 * Pages and tokens of a fetch count from the begin of its root on: behind the tokens that left a
 * condensed text (tier_condensed.c).
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "engine/loop/condense_loop.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/tier_patience.h"

#include <math.h>
#include <stdlib.h>

#define SLOTS_MAX   64u /* pages of one fetch under way at once */
#define READS_KNOWN 8u  /* records read before the store's speed counts as known */
#define REST_NS     2e6 /* while nothing runs: time before the inbox is checked again */
#define NS_PER_US   1000.0

/* ---- costs ---- */

double quire_tier_read_us(const quire_store_stats *s)
{
    return s->reads_total >= READS_KNOWN ? (double)s->read_us_total / (double)s->reads_total : 0.0;
}

double quire_tier_page_us(const quire_loop *loop)
{
    return quire_tier_read_us(&loop->figures.now.tier.store);
}

/* Of the slowest part: a page that comes from a disk is not late because others came from the
 * host's memory. */
static double slowest_page_us(const quire_loop *loop)
{
    const quire_tier_stats *tier = &loop->figures.now.tier;
    double us = quire_tier_page_us(loop);

    for (uint32_t i = 0; i < tier->n_parts; i++) {
        us = fmax(us, quire_tier_read_us(&tier->parts[i].stats));
    }
    return us;
}

/* Time of computing the pages that are still wanted; 0 = not known. */
static double compute_us(const quire_loop *loop, uint32_t begin_page, uint32_t end_page)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;

    return quire_cost_prefill_us(&loop->figures.now.cost, begin_page * page_tokens,
                                 end_page * page_tokens, loop->opts.chunk_tokens);
}

/* ---- begin and end ---- */

static void slots_give(quire_tier *tier, quire_fetch *f)
{
    for (uint32_t i = 0; i < f->n_slots; i++) {
        if (f->arrived[i] != NULL) {
            quire_tier_buffer_give(tier, f->arrived[i]);
            f->arrived[i] = NULL;
        }
    }
}

/* Nothing more is asked for or written. The written pages are cached from now on, so the request
 * finds them when it is admitted. The fetch itself ends with its last transfer. */
static void fetch_stop(quire_loop *loop, quire_fetch *f)
{
    if (f->request == NULL) {
        return;
    }
    slots_give(loop->tier, f);
    quire_histogram_add(&loop->figures.now.tier.fetch,
                        (double)(quire_loop_now_us(loop) - f->begun_us) * 1e-6);
    if (f->ref != QUIRE_PREFIX_REF_NULL) {
        (void)quire_prefix_release(loop->tree, f->ref, quire_loop_now_us(loop));
    }
    if (f->seq != QUIRE_SEQ_NULL) {
        (void)quire_seq_close(loop->cache, f->seq);
        quire_loop_released(loop);
    }
    quire_condensed_release(loop->condensed, f->entry);
    f->request->wait.fetch = NULL;
    f->request = NULL;
    loop->figures.now.tier.fetching--;
}

static void fetch_free(quire_tier *tier, quire_fetch *f)
{
    slots_give(tier, f);
    free(f->arrived);
    free(f->keys);
    free(f);
}

void quire_fetches_destroy(quire_loop *loop)
{
    while (loop->tier->fetches != NULL) {
        quire_fetch *f = loop->tier->fetches;

        loop->tier->fetches = f->next;
        fetch_stop(loop, f);
        fetch_free(loop->tier, f);
    }
}

/* Memory for the pages of a fetch that has none yet. */
static int pages_alloc(quire_fetch *f, uint32_t n_pages, uint32_t n_slots)
{
    free(f->keys);
    f->keys = calloc((size_t)n_pages + 1, sizeof *f->keys);
    if (f->arrived == NULL) {
        f->arrived = calloc(n_slots, sizeof(quire_transfer *));
        f->n_slots = f->arrived != NULL ? n_slots : 0;
    }
    QUIRE_FAIL_IF(f->keys == NULL || f->arrived == NULL, QUIRE_NOMEM);
    f->n_pages = n_pages;
    return QUIRE_OK;
}

static void keys_make(const quire_loop *loop, quire_fetch *f)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const int32_t *tokens = f->request->tokens + f->n_gone;

    quire_prefix_key_root(&f->key, &f->keys[0]);
    for (uint32_t i = 0; i < f->n_pages; i++) {
        quire_prefix_key_add(&f->keys[i], tokens + (size_t)i * page_tokens, page_tokens,
                             &f->keys[i + 1]);
    }
}

/* Open the sequence with the full pages that the tree has; n_tokens: of the fetch's root. */
static int seq_begin(quire_loop *loop, quire_fetch *f, uint32_t n_tokens)
{
    const quire_request *r = f->request;
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const int32_t *tokens = r->tokens + f->n_gone;
    quire_prefix_acquire_opts opts = {
        .owner = r->owner,
        .now_us = quire_loop_now_us(loop),
        .rank = r->rank,
        .account = quire_loop_account(loop, r->tenant, r->tenant_bytes),
        .is_uncounted = true,
        .is_apart = f->entry != QUIRE_CONDENSED_NULL,
    };
    quire_prefix_match match;

    quire_prefix_lookup(loop->tree, &f->key, tokens, f->n_pages * page_tokens, &match);
    opts.tokens_max = match.n_tokens - match.n_tokens % page_tokens;
    QUIRE_TRY(quire_seq_open(loop->cache, quire_tier_region(loop, r), &f->seq));
    QUIRE_TRY(quire_prefix_acquire(loop->tree, &f->key, f->seq, tokens, n_tokens, &opts, &match,
                                   &f->ref));
    f->next_use = match.n_tokens / page_tokens;
    f->next_get = f->next_use;
    return match.n_tokens % page_tokens == 0 ? QUIRE_OK : QUIRE_AGAIN;
}

/* Enter a fetch behind those of its rank. */
static void fetch_link(quire_tier *tier, quire_fetch *f)
{
    quire_fetch **at = &tier->fetches;

    while (*at != NULL && (*at)->rank >= f->rank) {
        at = &(*at)->next;
    }
    f->next = *at;
    *at = f;
}

void quire_fetch_raise(quire_tier *tier, quire_fetch *f, uint8_t rank)
{
    quire_fetch **at = &tier->fetches;

    if (rank > f->rank) {
        while (*at != f) {
            at = &(*at)->next;
        }
        *at = f->next;
        f->rank = rank;
        fetch_link(tier, f);
    }
}

bool quire_fetch_displace(quire_loop *loop, uint8_t rank)
{
    quire_fetch *last = NULL;

    for (quire_fetch *f = loop->tier->fetches; f != NULL; f = f->next) {
        last = f->request != NULL && f->rank < rank ? f : last;
    }
    if (last != NULL) {
        last->request->wait.has_fetched = false;
        fetch_stop(loop, last);
    }
    return last != NULL;
}

int quire_fetch_open(quire_loop *loop, quire_fetch *f, uint32_t k)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    quire_request *r = f->request;
    const quire_condensing *c = &r->condensing;
    const quire_condensed_text text = quire_condensed_text_of(r);
    const uint32_t n_end = c->chunk != 0 ? (k + 1) * c->chunk : UINT32_MAX;
    uint32_t n_text, n_want;

    f->k = k;
    f->n_gone = quire_condensing_gone(c, k);
    f->stage = QUIRE_FETCH_READS;
    if (k > 0) {
        f->entry = quire_loop_condensed_hold(loop, &text, k);
        QUIRE_FAIL_IF(f->entry == QUIRE_CONDENSED_NULL, QUIRE_NOMEM);
    }
    f->key = quire_loop_condensed_key(loop, r->tenant, r->tenant_bytes, f->entry);
    n_text = quire_min_u32(r->n_tokens, n_end) - f->n_gone;
    n_want = quire_min_u32(f->n_want, quire_request_fetch_end(r, k)) - f->n_gone;
    f->n_open = loop->room.is_page_exact ? 0 : n_want % page_tokens;
    f->is_open_full = n_text - (n_want - n_want % page_tokens) >= page_tokens;
    QUIRE_TRY(
        pages_alloc(f, n_want / page_tokens, quire_min_u32(SLOTS_MAX, loop->tier->n_buffers_max)));
    keys_make(loop, f);
    return seq_begin(loop, f, n_text);
}

/* Begin a fetch of the pages behind n_have tokens, up to n_want. */
static bool fetch_begin(quire_loop *loop, quire_request *r, uint32_t n_have, uint32_t n_want)
{
    const quire_prefix_key key = quire_loop_key(loop, r->tenant, r->tenant_bytes);
    quire_tier *tier = loop->tier;
    quire_fetch *f = calloc(1, sizeof *f);

    if (f == NULL) {
        return false;
    }
    f->begun_us = quire_loop_now_us(loop);
    f->moved_us = f->begun_us;
    quire_prefix_key_root(&key, &f->root);
    f->n_have = n_have;
    f->n_want = n_want;
    f->k_have = r->wait.claim.n_condensings;
    f->k_max = quire_condensing_before(&r->condensing, n_want);
    f->request = r;
    f->rank = r->rank;
    r->wait.fetch = f;
    loop->figures.now.tier.fetching++;
    fetch_link(tier, f);
    loop->figures.now.tier.fetches_total++;
    if (!quire_fetch_look(loop, f)) {
        fetch_stop(loop, f);
        return false;
    }
    return true;
}

/* ---- asking ---- */

static quire_page_text text_of(const quire_loop *loop, const quire_fetch *f, uint32_t page)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const int32_t *tokens = f->request->tokens + f->n_gone + (size_t)page * page_tokens;
    quire_page_text text = { .parent = f->keys[page],
                             .root = f->root,
                             .first_token = page * page_tokens,
                             .salt = f->key.salt,
                             .salt_bytes = f->key.salt_bytes };

    if (page < f->n_pages) {
        text.key = f->keys[page + 1];
        text.n_tokens = page_tokens;
        text.tokens = tokens;
    } else if (f->is_open_full) {
        quire_prefix_key_add(&text.parent, tokens, page_tokens, &text.key);
        text.n_tokens = page_tokens;
        text.tokens = tokens;
    } else { /* an open page: its tokens are compared when it is there */
        quire_page_record_slot(&text.parent, tokens[0], &text.key);
    }
    return text;
}

/* Pages that a fetch wants, the open one included. */
static uint32_t page_end(const quire_fetch *f)
{
    return f->n_pages + (f->n_open > 0);
}

/* Whether a fetch could ask for another page, had it a buffer. */
static bool is_hungry(const quire_fetch *f)
{
    return f->request != NULL && f->stage == QUIRE_FETCH_READS && f->next_get < page_end(f) &&
           f->next_get - f->next_use < f->n_slots;
}

static void ask(quire_loop *loop, quire_fetch *f)
{
    quire_transfer *t;

    while (is_hungry(f) && (t = quire_tier_buffer_take(loop->tier)) != NULL) {
        const quire_page_text text = text_of(loop, f, f->next_get);

        quire_transfer_text_set(t, &text);
        t->owner = f;
        t->urgency = f->rank;
        t->is_query = false;
        t->use = quire_tier_use(loop, f->request, f->rank);
        f->next_get++;
        f->n_away++;
        loop->tier->store->ops->get(loop->tier->store, &t, 1);
    }
}

void quire_fetch_arrived(quire_loop *loop, quire_transfer *t)
{
    const uint32_t page = t->text.first_token / loop->runtime_opts->page_tokens;
    quire_fetch *f = t->owner;

    f->n_away--;
    if (f->request == NULL || f->stage != QUIRE_FETCH_READS || page > f->n_pages) {
        quire_tier_buffer_give(loop->tier, t);
    } else {
        f->arrived[page % f->n_slots] = t;
        f->moved_us = quire_loop_now_us(loop);
    }
}

/* ---- writing into the tree ---- */

/* Write the next page. Errors: QUIRE_NOTFOUND (the store does not have it, or it is of no use),
 * QUIRE_NOPAGES and others (no room). */
static int page_use(quire_loop *loop, quire_fetch *f, const quire_transfer *t)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const uint32_t page = f->next_use;
    const uint64_t now_us = quire_loop_now_us(loop);
    const int32_t *tokens = f->request->tokens + f->n_gone;
    uint32_t n;
    int rc;

    QUIRE_FAIL_IF(t->result != QUIRE_STORE_OK, QUIRE_NOTFOUND);
    /* The store has compared the tokens of full pages. */
    n = page < f->n_pages
            ? page_tokens
            : quire_page_same(&t->found, tokens + (size_t)page * page_tokens, f->n_open);
    QUIRE_FAIL_IF(!quire_fetch_is_useful(loop, t, n), QUIRE_NOTFOUND);
    do {
        rc = quire_page_read(loop->cache, &loop->tier->parts, f->seq, &t->found, n);
    } while (rc == QUIRE_NOPAGES && quire_overflow_fetch_room(loop, f->request, f->seq));
    QUIRE_FAIL_IF(rc < 0, rc == QUIRE_CORRUPT ? QUIRE_NOTFOUND : rc);
    QUIRE_TRY(quire_prefix_publish(loop->tree, f->ref, tokens, page * page_tokens + n, now_us));
    quire_fetch_state(loop, f, t, n);
    if (page < f->n_pages) { /* NOTFOUND: the text was invalidated meanwhile */
        QUIRE_TRY(quire_prefix_copy_mark_ref(loop->tree, f->ref, QUIRE_COPY_KEPT));
    }
    quire_runtime_release(loop->runtime, f->seq);
    loop->figures.now.tier.fetched_tokens_total += n;
    loop->figures.now.tier.fetched_bytes_total += t->found.record_bytes;
    return QUIRE_OK;
}

/* Whether the next page is one of those that a condensed text is made of. */
static bool is_made_of_less(const quire_loop *loop, const quire_fetch *f)
{
    return f->next_use * loop->runtime_opts->page_tokens <
           quire_condensing_kept(&f->request->condensing, f->k);
}

/* Without that page the others are of no use: look for an earlier condensing, when the transfers
 * under way are back. */
static void turn_back(quire_loop *loop, quire_fetch *f)
{
    slots_give(loop->tier, f);
    (void)quire_prefix_release(loop->tree, f->ref, quire_loop_now_us(loop));
    (void)quire_seq_close(loop->cache, f->seq);
    quire_loop_released(loop);
    quire_condensed_release(loop->condensed, f->entry);
    f->ref = QUIRE_PREFIX_REF_NULL;
    f->seq = QUIRE_SEQ_NULL;
    f->entry = QUIRE_CONDENSED_NULL;
    f->k_max = f->k - 1;
    if (f->k_have > f->k_max) { /* the tree had this one when the fetch began */
        f->k_have = f->k_max;
        f->n_have = 0;
    }
    f->stage = QUIRE_FETCH_ENDS;
}

/* A full page is not there: its begin may be, as an open page. Returns whether that is asked for.
 */
static bool open_turn_to(quire_loop *loop, quire_fetch *f)
{
    if (loop->room.is_page_exact || (f->next_use == f->n_pages && !f->is_open_full)) {
        return false;
    }
    slots_give(loop->tier, f); /* later pages; those under way are given back when they arrive */
    if (f->next_use < f->n_pages) {
        f->n_pages = f->next_use;
        f->n_open = loop->runtime_opts->page_tokens;
    }
    f->is_open_full = false;
    f->next_get = f->next_use;
    ask(loop, f);
    return true;
}

/* Write the arrived pages in order, until one is missing or the time is over. Returns the time
 * taken. */
static double pages_use(quire_loop *loop, quire_fetch *f, double may_ns)
{
    const uint64_t begin_ns = quire_clock_ns();
    double spent_ns = 0.0;

    while (f->request != NULL && f->stage == QUIRE_FETCH_READS && spent_ns < may_ns) {
        quire_transfer *t = f->arrived[f->next_use % f->n_slots];
        int rc;

        if (f->next_use == page_end(f)) {
            fetch_stop(loop, f);
            break;
        }
        if (t == NULL) {
            break;
        }
        rc = page_use(loop, f, t);
        if (rc == QUIRE_OK) {
            f->arrived[f->next_use % f->n_slots] = NULL;
            quire_tier_buffer_give(loop->tier, t);
            f->next_use++;
            loop->tier->pause_us = 0; /* the store works */
        } else if (rc == QUIRE_NOTFOUND && is_made_of_less(loop, f)) {
            turn_back(loop, f);
        } else if (rc != QUIRE_NOTFOUND || !open_turn_to(loop, f)) {
            loop->figures.now.tier.short_total += rc != QUIRE_NOTFOUND;
            fetch_stop(loop, f);
        }
        spent_ns = (double)(quire_clock_ns() - begin_ns);
    }
    return spent_ns;
}

/* ---- patience ---- */

/* Whether pages come too slowly. */
static bool is_too_slow(const quire_loop *loop, const quire_fetch *f, uint64_t now_us)
{
    const quire_tier_patience patience = {
        .wait_us = (double)loop->tier->opts.wait_us,
        .local_us = (double)loop->tier->local_wait_us,
        .page_us = slowest_page_us(loop),
        .compute_us = compute_us(loop, f->next_use, f->n_pages),
    };

    const bool is_there =
        f->stage == QUIRE_FETCH_READS && f->arrived[f->next_use % f->n_slots] != NULL;

    return f->n_away > 0 && !is_there && loop->tier->opts.wait_us != QUIRE_TIER_WAIT_ALWAYS &&
           (double)(now_us - f->moved_us) > quire_tier_patience_us(&patience);
}

static void pause(quire_loop *loop, uint64_t now_us)
{
    quire_tier *tier = loop->tier;

    tier->pause_us = tier->pause_us == 0
                         ? QUIRE_TIER_PAUSE_US
                         : quire_min_u64(2 * tier->pause_us, QUIRE_TIER_PAUSE_MAX_US);
    tier->paused_until_us = now_us + tier->pause_us;
}

void quire_fetches_move(quire_loop *loop, uint64_t step_us)
{
    const uint64_t now_us = quire_loop_now_us(loop);
    quire_tier *tier = loop->tier;
    int32_t hungry_rank = -1; /* the highest rank that lacks buffers */
    double may_ns =
        step_us > 0 ? (double)step_us * NS_PER_US * QUIRE_TIER_SHARE - tier->use_debt_ns : REST_NS;

    for (quire_fetch **at = &tier->fetches; *at != NULL;) {
        quire_fetch *f = *at;

        if (f->request == NULL && f->n_away == 0) {
            *at = f->next;
            fetch_free(tier, f);
            continue;
        }
        if (f->request != NULL && f->n_away == 0 && f->stage != QUIRE_FETCH_READS &&
            !(f->stage == QUIRE_FETCH_LOOKS ? quire_fetch_looked(loop, f)
                                            : quire_fetch_look(loop, f))) {
            fetch_stop(loop, f);
        }
        if (f->request != NULL) {
            may_ns -= pages_use(loop, f, may_ns);
            if ((int32_t)f->rank >= hungry_rank) { /* buffers that become free go to higher ranks */
                ask(loop, f);
            }
            if (is_hungry(f) && hungry_rank < 0) {
                hungry_rank = f->rank;
            }
        }
        if (f->request != NULL && is_too_slow(loop, f, now_us)) {
            loop->figures.now.tier.slow_total++;
            pause(loop, now_us);
            fetch_stop(loop, f);
        }
        at = &f->next;
    }
    tier->use_debt_ns = step_us > 0 && may_ns < 0.0 ? -may_ns : 0.0;
}

/* ---- requests ---- */

/* Whether asking the store is worth it. */
static bool is_worth(quire_loop *loop, uint32_t n_have, uint32_t n_want)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const uint32_t begin = n_have / page_tokens;
    const uint32_t end = n_want / page_tokens;
    const double compute = compute_us(loop, begin, end);
    const double fetch = quire_tier_page_us(loop) * (end - begin);
    const bool is_dear =
        compute > 0.0 && fetch > compute && loop->tier->opts.wait_us != QUIRE_TIER_WAIT_ALWAYS;

    /* A sequence stays free for a request. */
    if (loop->set.n_running + loop->set.n_parked + loop->figures.now.tier.fetching + 2 >
            loop->runtime_opts->n_seqs_max ||
        quire_loop_now_us(loop) < loop->tier->paused_until_us || is_dear) {
        loop->figures.now.tier.skipped_total++;
        return false;
    }
    return true;
}

bool quire_fetch_start(quire_loop *loop, quire_request *r, uint32_t n_have, uint32_t n_want)
{
    if (!is_worth(loop, n_have, n_want) || !fetch_begin(loop, r, n_have, n_want)) {
        return false;
    }
    ask(loop, r->wait.fetch);
    quire_tier_poll(loop, loop->set.n_running > 0); /* answers that the store has at once */
    return r->wait.fetch != NULL;
}

bool quire_tier_is_fetching(const quire_loop *loop)
{
    return loop->tier != NULL && (loop->figures.now.tier.fetching > 0 || loop->tier->n_holds > 0);
}

bool quire_tier_yield(quire_loop *loop)
{
    bool has_yielded = false;

    for (quire_fetch *f = loop->tier != NULL ? loop->tier->fetches : NULL; f != NULL; f = f->next) {
        has_yielded = has_yielded || f->request != NULL;
        fetch_stop(loop, f);
    }
    return has_yielded;
}

void quire_loop_fetch_hold(quire_loop *loop)
{
    if (loop->tier != NULL) {
        loop->tier->n_holds++;
    }
}

void quire_loop_fetch_release(quire_loop *loop)
{
    if (loop->tier != NULL) {
        QUIRE_CHECK(loop->tier->n_holds > 0);
        loop->tier->n_holds--;
    }
}

void quire_tier_leave(quire_loop *loop, quire_request *r)
{
    if (r->wait.fetch != NULL) {
        fetch_stop(loop, r->wait.fetch);
    }
}
