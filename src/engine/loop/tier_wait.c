/* tier_wait.c - which requests wait for pages from below. See engine/tier.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_loop.h"
#include "engine/loop/loop_object.h"
#include "engine/loop/tier_object.h"

#include "base/num.h"

#include <string.h>

/* Tokens up to which this request finds the pages of another's fetch, if both texts begin alike. */
static uint32_t common_max(const quire_request *r, const quire_fetch *f)
{
    const uint32_t n_common = quire_loop_condensed_common(r, f->request);

    return f->entry == QUIRE_CONDENSED_NULL || n_common == UINT32_MAX ? n_common : 0;
}

/* Another request fetches a prefix that this one needs too: at least a page more than it has, and
 * all tokens that a condensed text is made of. */
static bool is_led(quire_loop *loop, const quire_request *r, uint32_t n_have)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;

    for (quire_fetch *f = loop->tier->fetches; f != NULL; f = f->next) {
        const quire_request *o = f->request;
        uint32_t n_max, n_need;

        if (o == NULL || o == r || !quire_request_is_same_tenant(o, r)) {
            continue;
        }
        n_need =
            quire_max_u32(n_have + page_tokens, quire_condensing_made_of(&o->condensing, f->k));
        n_max = quire_min_u32(quire_min_u32(r->n_tokens - 1, common_max(r, f)),
                              f->n_gone + f->n_pages * page_tokens);
        if (n_max >= n_need && n_have <= f->n_gone + f->next_use * page_tokens &&
            memcmp(r->tokens, o->tokens, n_need * sizeof r->tokens[0]) == 0) {
            quire_fetch_raise(loop->tier, f, r->rank);
            return true;
        }
    }
    return false;
}

bool quire_tier_holds(quire_loop *loop, quire_request *r)
{
    const uint32_t page_tokens = loop->runtime_opts->page_tokens;
    uint32_t n_have;
    uint32_t n_want;

    if (loop->tier == NULL) {
        return false;
    }
    if (r->wait.fetch != NULL || r->wait.has_fetched) {
        return r->wait.fetch != NULL;
    }
    quire_loop_tokens_have(loop, r, &n_have, &n_want);
    if (is_led(loop, r, n_have)) {
        return true;
    }
    /* For a few tokens no state is read. */
    if (n_want / page_tokens <= n_have / page_tokens &&
        (loop->room.is_page_exact || loop->tier->parts.state > 0 || n_have % page_tokens != 0 ||
         n_want <= n_have)) {
        r->wait.has_fetched = true;
        return false; /* all of it is in memory, up to the page where texts part */
    }
    if (loop->tier->n_holds > 0 || (loop->figures.now.tier.fetching == QUIRE_TIER_FETCHES_MAX &&
                                    !quire_fetch_displace(loop, r->rank))) {
        return true;
    }
    r->wait.has_fetched = true;
    return quire_fetch_start(loop, r, n_have, n_want);
}

/* Steps until a running request ends, at most. */
static uint32_t steps_left(const quire_loop *loop, const quire_request *r)
{
    const uint32_t n_end = r->n_prompt + r->max_tokens;
    const uint32_t n_prefill = r->n_tokens > r->kv.n_computed ? r->n_tokens - r->kv.n_computed : 0;

    return n_end - r->n_tokens + n_prefill / loop->opts.chunk_tokens;
}

/* Running requests that end within so many steps. */
static uint32_t ending_within(const quire_loop *loop, uint32_t n_steps)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        n += steps_left(loop, loop->set.running[i]) <= n_steps;
    }
    return n;
}

/* Of the requests of a queue, the first n_next begin to fetch. Returns how many of n_next are left
 * for other queues. */
static uint32_t queue_prefetch(quire_loop *loop, const quire_queue *queue, uint32_t n_next)
{
    for (quire_queue_link *l = queue->first; l != NULL && n_next > 0; l = l->next) {
        quire_request *r = quire_request_of(l);

        if (!r->is_parked) {
            (void)quire_tier_holds(loop, r);
            n_next--;
        }
    }
    return n_next;
}

/* The highest rank is admitted first. */
void quire_tier_prefetch(quire_loop *loop)
{
    uint32_t n_next;

    if (loop->tier == NULL || loop->tier->opts.prefetch_steps == 0 || loop->set.n_queued == 0) {
        return;
    }
    n_next = ending_within(loop, loop->tier->opts.prefetch_steps);
    for (uint32_t rank = QUIRE_RANKS_MAX; rank-- > 0 && n_next > 0;) {
        const uint32_t c = quire_classes_of_rank(&loop->opts.classes, rank);

        if (c != QUIRE_CLASSES_MAX) {
            n_next = queue_prefetch(loop, &loop->set.queues[c], n_next);
        }
    }
}
