/* room.c - see room.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"
#include "engine/loop/overflow_loop.h"
#include "engine/loop/tier_object.h"

#include "base/check.h"
#include "base/num.h"

#define RETURN_PAGES 4u /* a preempted request returns when it can grow by this many pages */

/* ---- needs of requests ---- */

uint64_t quire_loop_need_bytes(const quire_loop *loop, uint32_t n_tokens)
{
    if (n_tokens > 0 && loop->runtime_opts->is_contiguous) {
        n_tokens = loop->runtime_opts->n_ctx;
    }
    return quire_kv_price_bytes(&loop->room.price, n_tokens);
}

uint64_t quire_loop_condensing_bytes(const quire_loop *loop, const quire_condensing *c,
                                     uint32_t n_tokens)
{
    const quire_kv_price price = quire_condensing_price(c, &loop->room.price);

    return loop->runtime_opts->is_contiguous ? quire_loop_need_bytes(loop, n_tokens)
                                             : quire_kv_price_bytes(&price, n_tokens);
}

uint64_t quire_loop_held_bytes(const quire_loop *loop, const quire_request *r, uint32_t n_held)
{
    const quire_condensing *c = &r->condensing;
    quire_kv_price price = quire_condensing_price(c, &loop->room.price);
    uint32_t n_kept = n_held;

    if (loop->runtime_opts->is_contiguous || c->chunk == 0) {
        return quire_loop_need_bytes(loop, n_held);
    }
    if (r->kv.seq != QUIRE_SEQ_NULL) {
        n_kept = quire_min_u32(quire_condensing_kept(c, r->kv.n_condensings), n_held);
    }
    price.hot_pages_max =
        quire_min_u64(price.hot_pages_max, (n_held - n_kept + c->page_tokens - 1) / c->page_tokens);
    return quire_kv_price_bytes(&price, n_held);
}

/* Length of the text that a request must have room for at admission. */
static uint32_t text_target(const quire_loop *loop, const quire_request *r)
{
    const uint32_t n_end = quire_min_u32(r->n_prompt + r->max_tokens, r->n_held_max);
    uint32_t n_ahead = 1;

    if (loop->opts.admit == QUIRE_ADMIT_RESERVE) {
        return n_end;
    }
    if (r->result.n_preemptions > 0) {
        n_ahead = RETURN_PAGES * loop->runtime_opts->page_tokens;
    }
    return quire_min_u32(r->n_tokens + n_ahead, n_end);
}

/* Tokens of its pages. */
static uint32_t tokens_target(const quire_loop *loop, const quire_request *r)
{
    return quire_condensing_need(&r->condensing, text_target(loop, r));
}

/* Rows of the request in one step, from n_have tokens on, at most. */
static uint32_t rows_max(const quire_loop *loop, const quire_request *r, uint32_t n_have)
{
    const uint32_t n_left = r->n_tokens > n_have ? r->n_tokens - n_have : 1;

    return quire_min_u32(n_left, loop->runtime_opts->n_batch);
}

/* Includes one page, for the copy of a partly filled page, and the states of a request without a
 * sequence. Behind a window a request gives up pages
 * as it goes on, so it needs more than it has only for the rows of a step. */
uint64_t quire_loop_bytes_ahead(const quire_loop *loop, const quire_request *r, uint32_t n_have)
{
    const quire_kv_price price = quire_condensing_price(&r->condensing, &loop->room.price);
    const bool has_window = price.window_tokens != 0;
    const uint32_t target = tokens_target(loop, r);
    const uint64_t need =
        has_window ? quire_kv_price_steps_bytes(&price, target, rows_max(loop, r, n_have))
                   : quire_loop_condensing_bytes(loop, &r->condensing, target);
    const uint64_t have = has_window ? quire_kv_price_held_bytes(&loop->room.price, n_have)
                                     : quire_loop_held_bytes(loop, r, n_have);
    const uint64_t states = r->kv.seq == QUIRE_SEQ_NULL ? loop->room.states_bytes : 0;

    if (r->pin != 0) {
        return loop->room.page_bytes + states; /* the pin has set the rest aside */
    }
    return quire_overflow_ahead(loop, r, need, need > have ? need - have : 0) +
           loop->room.page_bytes + states;
}

/* ---- available room ---- */

quire_region_id quire_loop_region(const quire_loop *loop, uint32_t class_index)
{
    return loop->opts.classes.items[class_index].is_pinned ? loop->room.pinned
                                                           : QUIRE_REGION_DYNAMIC;
}

static quire_region_stats stats_of(const quire_loop *loop, quire_region_id region)
{
    quire_region_stats stats = { 0 };

    (void)quire_region_stats_get(loop->cache, region, &stats);
    return stats;
}

/* Bytes that sequences of a region may take: free or evictable. */
static uint64_t room_of(const quire_region_stats *stats)
{
    const uint64_t budget = stats->budget_bytes + stats->cached_bytes;
    const uint64_t taken = stats->charged_bytes + stats->reserved_bytes;

    return budget > taken ? budget - taken : 0;
}

bool quire_loop_fits(const quire_loop *loop, const quire_demand *demand)
{
    const quire_region_stats dynamic = stats_of(loop, QUIRE_REGION_DYNAMIC);
    uint64_t dynamic_bytes = demand->dynamic_bytes;
    uint64_t room;

    if (loop->room.pinned == QUIRE_REGION_DYNAMIC) {
        dynamic_bytes += demand->pinned_bytes;
    } else {
        const quire_region_stats pinned = stats_of(loop, loop->room.pinned);

        room = room_of(&pinned);
        if (demand->pinned_bytes > room) {
            if (!pinned.spills_to_dynamic) {
                return false;
            }
            dynamic_bytes += demand->pinned_bytes - room;
        }
    }
    return dynamic_bytes <= room_of(&dynamic) + demand->moved_bytes;
}

bool quire_loop_helps(const quire_loop *loop, const quire_request *asker,
                      const quire_request *other)
{
    const quire_region_id region = quire_loop_region(loop, asker->class_index);
    const quire_region_id others = quire_loop_region(loop, other->class_index);

    return region == others ||
           (others == QUIRE_REGION_DYNAMIC && stats_of(loop, region).spills_to_dynamic);
}

uint64_t quire_loop_budget_bytes(const quire_loop *loop, uint32_t class_index, bool drops)
{
    const quire_region_id region = quire_loop_region(loop, class_index);
    const quire_region_stats own = stats_of(loop, region);
    const uint64_t dynamic_bytes =
        quire_overflow_bytes_max(loop, stats_of(loop, QUIRE_REGION_DYNAMIC).budget_bytes, drops);

    if (region == QUIRE_REGION_DYNAMIC) {
        return dynamic_bytes;
    }
    return own.budget_bytes + (own.spills_to_dynamic ? dynamic_bytes : 0);
}

/* ---- the pinned region ---- */

int quire_room_open(quire_loop *loop, quire_error *err)
{
    const uint64_t total_bytes = stats_of(loop, QUIRE_REGION_DYNAMIC).budget_bytes;
    quire_region_opts region = QUIRE_REGION_OPTS_INIT;
    int rc;

    loop->room.pinned = QUIRE_REGION_DYNAMIC;
    loop->room.n_releases = 1; /* a request's blocked_at = 0 means not blocked */
    if (loop->opts.pinned_bytes == 0) {
        return QUIRE_OK;
    }
    region.budget_bytes = loop->opts.pinned_bytes;
    region.spills_to_dynamic = !loop->opts.pinned_stays;
    if (region.budget_bytes >= total_bytes) {
        return quire_error_set(err, QUIRE_INVAL, "pinned region: %llu bytes of a budget of %llu",
                               (unsigned long long)region.budget_bytes,
                               (unsigned long long)total_bytes);
    }
    rc = quire_region_open(loop->cache, &region, &loop->room.pinned);
    return rc < 0 ? quire_error_set(err, rc, "cannot open the pinned region: %s",
                                    quire_status_text(rc))
                  : QUIRE_OK;
}

void quire_room_close(quire_loop *loop)
{
    if (loop->room.pinned != QUIRE_REGION_DYNAMIC) {
        (void)quire_region_close(loop->cache, loop->room.pinned);
    }
}

static int transfer(quire_loop *loop, uint64_t from_bytes, uint64_t to_bytes)
{
    const quire_region_id pinned = loop->room.pinned;

    return to_bytes > from_bytes ? quire_region_transfer(loop->cache, QUIRE_REGION_DYNAMIC, pinned,
                                                         to_bytes - from_bytes)
                                 : quire_region_transfer(loop->cache, pinned, QUIRE_REGION_DYNAMIC,
                                                         from_bytes - to_bytes);
}

int quire_loop_pinned_resize(quire_loop *loop, uint64_t budget_bytes)
{
    const uint64_t now_bytes = stats_of(loop, loop->room.pinned).budget_bytes;

    QUIRE_FAIL_IF(loop->room.pinned == QUIRE_REGION_DYNAMIC, QUIRE_NOTFOUND);
    if (budget_bytes == now_bytes) {
        return QUIRE_OK;
    }
    QUIRE_TRY(transfer(loop, now_bytes, budget_bytes));
    quire_tier_regions_changed(loop);
    quire_loop_released(loop); /* one of the regions has more room */
    return QUIRE_OK;
}

void quire_loop_released(quire_loop *loop)
{
    loop->room.n_releases++;
}
