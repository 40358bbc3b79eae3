/* admit.c - admission: start queued requests that have room and whose prefix no other request
 * computes.
 *
 * The next request is the first of the queue with the highest rank, where waiting raises the rank
 * (classes.h), then by arrival. A request of a high class that lacks a place or room takes it from
 * lower classes (park.c). Parked requests stand in the same queues. They own their pages already,
 * and need only a place and room for further pages.
 *
 * Room is counted in bytes of the budget. The future pages of running requests are reserved (up to
 * the end of their prompts, or of max_tokens: quire_admit). Until then cached pages may use
 * reserved memory; they are evicted when it is claimed. A request that does not fit blocks later
 * requests and lower classes, so that large requests get their turn. A request that waits for the
 * prefix of another request blocks nothing.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/condense_names.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/loop_states.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/pooling.h"
#include "engine/loop/prompt_logprobs.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/num.h"

/* ---- room ---- */

static void demand_add(const quire_loop *loop, const quire_request *r, uint64_t bytes,
                       quire_demand *d)
{
    const bool is_pinned = quire_loop_region(loop, r->class_index) != QUIRE_REGION_DYNAMIC;

    *(is_pinned ? &d->pinned_bytes : &d->dynamic_bytes) += bytes;
}

/* Whether the reserved memory of the running requests and this demand fit together. */
static bool has_room(const quire_loop *loop, quire_demand d)
{
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        const quire_request *v = loop->set.running[i];

        demand_add(loop, v, quire_loop_bytes_ahead(loop, v, quire_request_held(v)), &d);
    }
    return quire_loop_fits(loop, &d);
}

static bool has_room_for(const quire_loop *loop, const quire_request *r, uint64_t bytes)
{
    quire_demand d = { 0 };

    demand_add(loop, r, bytes, &d);
    return has_room(loop, d);
}

/* ---- cached part of the prompt ---- */

static quire_retreat retreat_of(const quire_request *r)
{
    if (quire_request_pools_all(r) || (quire_prompt_logprobs_miss(r) && r->scored.n == 0)) {
        return QUIRE_RETREAT_NO_HIT;
    }
    return r->wait.stuck_tokens == r->n_tokens ? r->wait.retreat : QUIRE_RETREAT_NONE;
}

/* Number of cached tokens that the request may use. */
static uint32_t tokens_to_use(const quire_loop *loop, const quire_request *r)
{
    /* The last token is always computed. */
    const uint32_t n_use =
        quire_prompt_logprobs_usable(r, quire_request_reachable(r, r->n_tokens - 1));

    if (loop->opts.no_prefix_cache || retreat_of(r) == QUIRE_RETREAT_NO_HIT) {
        return 0;
    }
    return retreat_of(r) == QUIRE_RETREAT_FULL_PAGES
               ? n_use - n_use % loop->runtime_opts->page_tokens
               : n_use;
}

/* Look the request up in the tree, unless its last result is still valid. */
static const quire_request_claim *claim_of(const quire_loop *loop, quire_request *r)
{
    const uint64_t tree_generation = quire_prefix_generation(loop->tree);
    const uint64_t cache_generation = quire_cache_generation(loop->cache);
    const quire_region_id pinned = loop->room.pinned;
    quire_request_claim *kept = &r->wait.claim;
    quire_prefix_claim claim;
    quire_condensed_hit hit;

    if (kept->tree_generation == tree_generation && kept->cache_generation == cache_generation) {
        return kept;
    }
    hit = quire_loop_condensed_claim(loop, r, quire_request_reachable(r, r->n_tokens - 1),
                                     tokens_to_use(loop, r), &claim);
    *kept = (quire_request_claim){
        .tree_generation = tree_generation,
        .cache_generation = cache_generation,
        .n_condensings = hit.k,
        .n_gone = hit.n_gone,
        .n_cached = loop->opts.no_prefix_cache ? 0 : hit.n_gone + claim.match.n_tokens,
        .n_used = hit.n_gone + claim.n_tokens,
        .cached_dynamic_bytes = claim.cached_bytes[QUIRE_REGION_DYNAMIC],
        .live_dynamic_bytes = claim.live_bytes[QUIRE_REGION_DYNAMIC],
        .cached_pinned_bytes = pinned != QUIRE_REGION_DYNAMIC ? claim.cached_bytes[pinned] : 0,
    };
    return kept;
}

/* Whether admission is worth trying. May be wrong by answering yes, because cached pages that the
 * request would use also count as free. */
static bool may_fit(const quire_loop *loop, quire_request *r, uint64_t *need_bytes)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    const quire_request_claim *claim = r->is_parked ? NULL : claim_of(loop, r);
    const uint32_t n_have = claim == NULL ? quire_request_held(r) : claim->n_cached - claim->n_gone;

    *need_bytes = quire_loop_bytes_ahead(loop, r, n_have - n_have % page_tokens);
    return has_room_for(loop, r, *need_bytes);
}

/* Whether the request has room after it has acquired its cached pages, which are then no longer
 * evictable. A request of a pinned class moves the charge of its pages into its region, even of
 * pages in use by others; the dynamic region gains as much room. */
static bool fits(const quire_loop *loop, quire_request *r)
{
    const quire_request_claim *claim = claim_of(loop, r);
    quire_demand d = { .pinned_bytes = claim->cached_pinned_bytes };

    if (quire_loop_region(loop, r->class_index) == QUIRE_REGION_DYNAMIC) {
        d.dynamic_bytes = claim->cached_dynamic_bytes;
    } else {
        d.pinned_bytes += claim->cached_dynamic_bytes + claim->live_dynamic_bytes;
        d.moved_bytes = claim->live_dynamic_bytes;
    }
    demand_add(loop, r, quire_loop_bytes_ahead(loop, r, claim->n_used - claim->n_gone), &d);
    return has_room(loop, d);
}

/* ---- another computes the same prefix ---- */

/* Tokens of the request that a leader will publish: full pages only, where hits end at pages. */
static uint32_t common_tokens(const quire_loop *loop, const quire_request *r,
                              const quire_request *leader)
{
    const uint32_t n_max =
        quire_request_reachable(r, quire_min_u32(quire_min_u32(r->n_tokens - 1, leader->n_tokens),
                                                 quire_loop_condensed_common(r, leader)));
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    uint32_t n = 0;

    while (n < n_max && r->tokens[n] == leader->tokens[n]) {
        n++;
    }
    return loop->room.is_page_exact ? n - n % page_tokens : n;
}

static bool is_leading(const quire_request *r)
{
    return r->state == QUIRE_REQUEST_PREFILL && quire_request_publishes(r);
}

static quire_request *leader_find(const quire_loop *loop, uint64_t arrival)
{
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        if (loop->set.running[i]->link.arrival == arrival) {
            return loop->set.running[i];
        }
    }
    return NULL;
}

/* r waits for the leader, so the leader's prefill inherits r's urgency up to the common prefix.
 * Otherwise r could wait long for the beginning of a long prompt, or behind requests of lower
 * priority. */
static void lead(const quire_loop *loop, quire_request *leader, const quire_request *r)
{
    const bool is_first = leader->lead.n_tokens == 0;

    quire_loop_state_lead(loop, leader, r->wait.held_tokens);
    if (is_first || r->wait.held_tokens < leader->lead.n_tokens) {
        leader->lead.n_tokens = r->wait.held_tokens;
    }
    if (is_first || r->link.priority > leader->lead.priority) {
        leader->lead.priority = r->link.priority;
    }
    if (is_first || r->rank > leader->lead.rank) {
        leader->lead.rank = r->rank;
    }
}

/* Whether to wait for a running request that computes a prefix of this one. */
static bool is_held(quire_loop *loop, quire_request *r)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    quire_request *leader = r->wait.held_by != 0 ? leader_find(loop, r->wait.held_by) : NULL;

    if (loop->opts.no_prefix_cache || quire_request_pools_all(r) || quire_prompt_logprobs_miss(r)) {
        return false;
    }
    if (leader != NULL && is_leading(leader) && leader->kv.n_published < r->wait.held_tokens) {
        lead(loop, leader, r);
        return true;
    }
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        uint32_t n_common;

        leader = loop->set.running[i];
        if (!is_leading(leader) || !quire_request_is_same_tenant(r, leader)) {
            continue;
        }
        n_common = common_tokens(loop, r, leader);
        if (n_common < page_tokens || n_common <= leader->kv.n_published) {
            continue;
        }
        if (n_common >= claim_of(loop, r)->n_cached + page_tokens) {
            loop->figures.now.prefix_waits_total += r->wait.held_by == 0;
            r->wait.held_by = leader->link.arrival;
            r->wait.held_tokens = n_common;
            lead(loop, leader, r);
            return true;
        }
    }
    return false;
}

/* ---- pages below memory ---- */

void quire_loop_tokens_have(const quire_loop *loop, quire_request *r, uint32_t *n_have,
                            uint32_t *n_want)
{
    *n_have = claim_of(loop, r)->n_cached;
    *n_want = tokens_to_use(loop, r);
}

/* Whether the request waits for pages from below. They are asked for when there is room. */
static bool waits_below(quire_loop *loop, quire_request *r)
{
    uint64_t need_bytes;

    return loop->tier != NULL && (r->wait.fetch != NULL || may_fit(loop, r, &need_bytes)) &&
           quire_tier_holds(loop, r);
}

/* ---- admission ---- */

/* Open a sequence with the cached part of the prompt, n_max tokens at most, or without it
 * (is_miss). If the tree has no reference left, the request runs uncached. */
static int seq_open(quire_loop *loop, quire_request *r, bool is_miss, uint32_t n_max,
                    quire_prefix_match *match)
{
    const uint32_t n_use = quire_min_u32(tokens_to_use(loop, r), n_max);
    quire_prefix_claim claim;
    quire_condensed_hit hit = quire_loop_condensed_claim(loop, r, n_use, n_use, &claim);
    const quire_prefix_key key =
        quire_loop_condensed_key(loop, r->tenant, r->tenant_bytes, hit.entry);
    const quire_prefix_acquire_opts opts = {
        .tokens_max = quire_min_u32(n_use, hit.n_use_end) - hit.n_gone,
        .owner = r->owner,
        .now_us = quire_loop_now_us(loop),
        .is_private = r->is_uncached || loop->opts.no_prefix_cache,
        .is_miss = is_miss,
        .keeps_pages = quire_request_drops(r),
        .rank = r->rank,
        .account = quire_loop_account(loop, r->tenant, r->tenant_bytes),
        .is_apart = hit.entry != QUIRE_CONDENSED_NULL,
    };

    QUIRE_TRY(quire_seq_open(loop->cache, quire_loop_region(loop, r->class_index), &r->kv.seq));
    if (quire_prefix_acquire(loop->tree, &key, r->kv.seq, r->tokens + hit.n_gone,
                             quire_min_u32(r->n_tokens, hit.n_end) - hit.n_gone, &opts, match,
                             &r->kv.ref) < 0) {
        r->kv.ref = QUIRE_PREFIX_REF_NULL;
        *match = (quire_prefix_match){ .end = QUIRE_PREFIX_END_NEW, .cached_token = -1 };
        hit = (quire_condensed_hit){ 0 };
    }
    QUIRE_TRY(quire_loop_condensed_begin(loop, r, &hit, match));
    return quire_loop_state_begin(loop, r, match);
}

/* The same with all of the cached part that the request may use. */
static int seq_hit(quire_loop *loop, quire_request *r, bool is_miss, quire_prefix_match *match)
{
    uint32_t n_max;

    QUIRE_TRY(seq_open(loop, r, is_miss, UINT32_MAX, match));
    n_max = quire_overflow_memory_tokens(loop, r);
    if (n_max == UINT32_MAX) {
        return QUIRE_OK;
    }
    quire_loop_seq_end(loop, r);
    return seq_open(loop, r, n_max == 0, n_max, match);
}

/* The request has no sequence any more, if it had one. */
static void seq_give_up(quire_loop *loop, quire_request *r)
{
    if (r->kv.seq != QUIRE_SEQ_NULL) {
        quire_loop_seq_end(loop, r);
    }
}

/* A hit whose state finds no room, or whose list of kept tokens cannot be read, is given up: the
 * pages that it holds can then be evicted. */
static int seq_begin(quire_loop *loop, quire_request *r, quire_prefix_match *match)
{
    const bool is_miss = loop->opts.no_prefix_cache || retreat_of(r) == QUIRE_RETREAT_NO_HIT;
    int rc = seq_hit(loop, r, is_miss, match);

    if (rc < 0 && rc != QUIRE_LOST && r->kv.seq != QUIRE_SEQ_NULL) {
        quire_loop_seq_end(loop, r);
        rc = seq_open(loop, r, true, 0, match);
    }
    if (rc < 0) {
        seq_give_up(loop, r);
        return rc;
    }
    r->kv.is_own = r->overflow != QUIRE_CONTEXT_REFUSE && retreat_of(r) == QUIRE_RETREAT_NO_HIT;
    r->kv.n_computed = match->n_tokens;
    r->kv.n_published = match->n_tokens;
    r->kv.n_found = match->n_tokens - r->kv.n_dropped;
    return QUIRE_OK;
}

/* Count a first admission. */
static void count_admission(quire_loop *loop, quire_request *r, const quire_prefix_match *match)
{
    quire_engine_stats *s = &loop->figures.now;
    quire_explanation e;

    r->admitted_us = quire_loop_now_us(loop);
    r->result.n_cached_tokens = match->n_tokens;
    s->prompt_tokens_total += r->n_prompt;
    *(r->has_session ? &s->cached_tokens_session_total : &s->cached_tokens_prefix_total) +=
        match->n_tokens;
    quire_histogram_add(&s->queue, (double)(r->admitted_us - r->submitted_us) * 1e-6);
    quire_histogram_add(&s->classes[r->class_index].queue,
                        (double)(r->admitted_us - r->submitted_us) * 1e-6);
    quire_loop_qos_admitted(loop, r);
    quire_overflow_admitted(loop, r);
    loop->events.admitted(loop->events.ctx, r, match);
    quire_explanation_begin(&e, r, match, r->admitted_us);
    quire_request_explained(r, &e);
}

/* Count a later admission. */
static void count_return(quire_loop *loop, quire_request *r, const quire_prefix_match *match)
{
    const uint32_t n_again = r->kv.n_lost > match->n_tokens ? r->kv.n_lost - match->n_tokens : 0;

    r->result.n_recomputed_tokens += n_again;
    loop->figures.now.recomputed_tokens_total += n_again;
    r->kv.n_lost = 0;
}

typedef enum admission {
    ADMITTED,
    NO_PLACE,
    NO_ROOM,
    FAILED
} admission;

/* Whether no other request has pages. Then waiting cannot help, and the request may try. */
static bool is_alone(const quire_loop *loop, const quire_request *r)
{
    return loop->set.n_running + loop->set.n_parked == (r->is_parked ? 1u : 0u);
}

/* Whether the request did not fit, and no pages were released since. */
static bool is_blocked(const quire_loop *loop, const quire_request *r)
{
    return !is_alone(loop, r) && r->wait.blocked_at == loop->room.n_releases;
}

/* Find a place and, by estimate, room; take them from lower classes if necessary. */
static admission make_way(quire_loop *loop, quire_request *r)
{
    uint64_t need_bytes;

    while (!is_alone(loop, r) && !may_fit(loop, r, &need_bytes)) {
        const uint64_t lower_bytes = quire_loop_lower_bytes(loop, r);

        if (quire_overflow_yield(loop)) {
            continue;
        }

        /* Displace none if displacing all of them would not suffice. */
        if (!has_room_for(loop, r, need_bytes > lower_bytes ? need_bytes - lower_bytes : 0) ||
            !quire_loop_room_make(loop, r)) {
            return NO_ROOM;
        }
    }
    if (loop->set.n_running == loop->opts.n_running_max && !quire_loop_place_make(loop, r)) {
        return NO_PLACE;
    }
    return ADMITTED;
}

/* The cheap part of the decision, since each round makes it. */
static admission may_begin(const quire_loop *loop, const quire_request *r)
{
    const quire_victim_ask ask = { .rank = r->rank, .is_below = true };

    if (is_blocked(loop, r)) {
        return NO_ROOM;
    }
    if (loop->set.n_running == loop->opts.n_running_max && quire_loop_victim(loop, &ask) == NULL) {
        return NO_PLACE;
    }
    return ADMITTED;
}

/* Resume a parked request. */
static void resume(quire_loop *loop, quire_request *r, uint8_t rank_now)
{
    quire_loop_unpark(loop, r);
    quire_loop_running_add(loop, r, rank_now);
    loop->figures.now.classes[r->class_index].resumed_total++;
    loop->figures.now.classes[r->class_index].promoted_total += rank_now > r->rank;
}

static admission begin(quire_loop *loop, quire_request *r, uint8_t rank_now)
{
    quire_prefix_match match;
    int rc;

    if (!is_alone(loop, r) && !fits(loop, r)) {
        return NO_ROOM;
    }
    rc = seq_begin(loop, r, &match);
    if (rc == QUIRE_LOST) {
        return NO_ROOM; /* the round ends all requests */
    }
    if (rc < 0) {
        /* The end of another request will help, or that of fetches. */
        if (!is_alone(loop, r) || quire_tier_yield(loop)) {
            return NO_ROOM;
        }
        quire_loop_end(
            loop, r,
            &(quire_ending){ .finish = QUIRE_FINISH_ERROR, .status = rc, .stop_index = -1 });
        return FAILED;
    }
    quire_loop_dequeue(loop, r);
    quire_loop_running_add(loop, r, rank_now);
    r->state = QUIRE_REQUEST_PREFILL;
    quire_tier_touch(loop, r);
    loop->figures.now.classes[r->class_index].promoted_total += rank_now > r->rank;
    if (r->admitted_us == 0) {
        count_admission(loop, r, &match);
    } else {
        count_return(loop, r, &match);
    }
    return ADMITTED;
}

static admission admit_one(quire_loop *loop, quire_request *r, uint8_t rank_now)
{
    admission result = make_way(loop, r);

    if (result == ADMITTED) {
        if (r->is_parked) {
            resume(loop, r, rank_now);
        } else {
            result = begin(loop, r, rank_now);
        }
    }
    if (result == NO_ROOM) {
        r->wait.blocked_at = loop->room.n_releases;
    }
    return result;
}

/* ---- the next request ---- */

/* The next request of each queue. */
typedef struct cursors {
    quire_queue_link *at[QUIRE_CLASSES_MAX]; /* NULL: end of the queue, or shut */
    uint64_t now_us;
} cursors;

/* The rank of a request, raised by its wait. */
static uint8_t rank_of(const quire_loop *loop, const quire_request *r, uint64_t now_us)
{
    const uint64_t waited_us = now_us > r->wait.since_us ? now_us - r->wait.since_us : 0;
    const uint64_t rank = r->rank + waited_us / loop->opts.aging_us;

    if (loop->set.n_promoted_of[r->class_index] >= loop->set.n_promoted_max[r->class_index]) {
        return r->rank;
    }
    return rank < loop->set.rank_max ? (uint8_t)rank : loop->set.rank_max;
}

static quire_request *next_find(const quire_loop *loop, cursors *c, uint8_t *rank_now)
{
    quire_request *next = NULL;

    *rank_now = 0;
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        quire_request *r = c->at[i] != NULL ? quire_request_of(c->at[i]) : NULL;
        const uint8_t rank = r != NULL ? rank_of(loop, r, c->now_us) : 0;

        if (r != NULL && (next == NULL || rank > *rank_now ||
                          (rank == *rank_now && r->link.arrival < next->link.arrival))) {
            next = r;
            *rank_now = rank;
        }
    }
    if (next != NULL) {
        c->at[next->class_index] = next->link.next;
    }
    return next;
}

/* Admit no more requests of classes up to this rank. */
static void shut(const quire_loop *loop, cursors *c, uint8_t rank)
{
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        if (loop->opts.classes.items[i].rank <= rank) {
            c->at[i] = NULL;
        }
    }
}

/* Only parked requests have pages, and none has room to continue. Resume the most urgent one; the
 * others give up their pages when it needs them. */
static void resume_somebody(quire_loop *loop)
{
    quire_request *first = loop->set.parked[0];

    for (uint32_t i = 1; i < loop->set.n_parked; i++) {
        quire_request *r = loop->set.parked[i];

        if (r->rank != first->rank ? r->rank > first->rank
                                   : r->link.arrival < first->link.arrival) {
            first = r;
        }
    }
    resume(loop, first, first->rank);
}

void quire_loop_admit(quire_loop *loop)
{
    cursors c = { .now_us = quire_loop_now_us(loop) };
    quire_request *r;
    uint8_t rank_now;

    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        c.at[i] = loop->set.queues[i].first;
    }
    while ((r = next_find(loop, &c, &rank_now)) != NULL) {
        const uint32_t i = r->class_index;
        const bool is_starving = loop->set.n_running_of[i] == 0;
        admission result = may_begin(loop, r);

        if (loop->set.n_running_of[i] >= loop->set.limits[i]) {
            c.at[i] = NULL;
            continue;
        }
        if (result == ADMITTED && !r->is_parked && (is_held(loop, r) || waits_below(loop, r))) {
            continue;
        }
        result = result == ADMITTED ? admit_one(loop, r, rank_now) : result;
        if (result == NO_PLACE) {
            shut(loop, &c, r->rank);
        } else if (result == NO_ROOM) {
            /* A class that has waited long without a running request blocks higher classes, too. */
            shut(loop, &c, is_starving ? rank_now : r->rank);
        }
    }
    if (loop->set.n_running == 0 && loop->set.n_parked > 0) {
        resume_somebody(loop);
    }
    quire_tier_prefetch(loop);
}
