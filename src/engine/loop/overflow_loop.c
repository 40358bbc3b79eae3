/* overflow_loop.c - which requests are streamed; see engine/overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/overflow_loop.h"

#include "base/check.h"
#include "base/num.h"
#include "engine/loop/loop_object.h"

/* ---- life ---- */

int quire_overflow_create(quire_loop *loop, quire_error *err)
{
    return quire_overflow_is_on(&loop->opts.overflow, loop->runtime)
               ? quire_overflow_open(&loop->overflow.offload, loop->runtime, loop->desc,
                                     &loop->opts.overflow, loop->lanes.device, err)
               : QUIRE_OK;
}

void quire_overflow_destroy(quire_loop *loop)
{
    if (loop->lanes.device != NULL) {
        quire_packed_device_elsewhere_set(loop->lanes.device, NULL);
    }
    quire_overflow_close(loop->overflow.offload, loop->runtime);
}

/* ---- large requests ---- */

/* Memory of the dynamic region for pages. */
static uint64_t memory_bytes(const quire_loop *loop)
{
    quire_region_stats stats = { 0 };

    (void)quire_region_stats_get(loop->cache, QUIRE_REGION_DYNAMIC, &stats);
    return stats.budget_bytes;
}

/* The memory that a large request keeps when others wait for room. */
static uint64_t kept_bytes(const quire_loop *loop)
{
    return (uint64_t)((double)memory_bytes(loop) * QUIRE_OVERFLOW_SHARE);
}

/* Whether one request alone has begun. */
static bool is_alone(const quire_loop *loop)
{
    return loop->set.n_running + loop->set.n_parked == 1;
}

static quire_offload_share share_of(const quire_loop *loop, const quire_request *r)
{
    quire_offload_share share = { 0 };

    if (r->kv.seq != QUIRE_SEQ_NULL) {
        quire_offload_share_get(loop->overflow.offload, r->kv.seq, &share);
    }
    return share;
}

uint32_t quire_overflow_memory_tokens(const quire_loop *loop, const quire_request *r)
{
    return loop->overflow.offload != NULL && quire_request_drops(r)
               ? share_of(loop, r).memory_tokens
               : UINT32_MAX;
}

uint64_t quire_overflow_bytes_max(const quire_loop *loop, uint64_t budget_bytes, bool drops)
{
    uint64_t most_bytes;

    if (loop->overflow.offload == NULL) {
        return budget_bytes;
    }
    budget_bytes += quire_offload_buffer_bytes(loop->overflow.offload);
    if (drops) {
        return budget_bytes;
    }
    most_bytes = (uint64_t)((double)budget_bytes * (1.0 - QUIRE_OFFLOAD_BUFFER_SHARE)) +
                 quire_offload_bytes_max(loop->overflow.offload, budget_bytes);
    return quire_max_u64(budget_bytes, most_bytes); /* few layers: nothing is won */
}

uint64_t quire_overflow_memory_min(const quire_loop *loop, uint64_t budget_bytes, uint32_t n_tokens)
{
    quire_kv_price price = loop->room.price;
    const uint64_t n_pages = (n_tokens + price.page_tokens - 1) / price.page_tokens;

    if (loop->overflow.offload == NULL) {
        return 0;
    }
    price.main_page_bytes = price.hot_page_bytes = 0;
    return quire_kv_price_steps_bytes(&price, n_tokens, 1) + loop->room.states_bytes +
           quire_offload_memory_min(loop->overflow.offload, budget_bytes, n_pages);
}

uint64_t quire_overflow_ahead(const quire_loop *loop, const quire_request *r, uint64_t need_bytes,
                              uint64_t bytes)
{
    uint64_t kept;
    uint64_t held;

    if (loop->overflow.offload == NULL || quire_request_drops(r) ||
        need_bytes <= memory_bytes(loop)) {
        return bytes;
    }
    kept = kept_bytes(loop);
    held = share_of(loop, r).movable_bytes;
    return quire_min_u64(bytes, kept > held ? kept - held : 0);
}

static bool is_large(const quire_loop *loop, const quire_request *r)
{
    return !quire_request_drops(r) &&
           quire_loop_need_bytes(loop, r->n_tokens + 1) > memory_bytes(loop);
}

/* The running request that gives up pages. Beside other requests only a request with more than
 * keep_bytes gives up any. keep_bytes are half of the memory, so at most one request has more. */
static quire_request *giver_find(const quire_loop *loop, uint64_t keep_bytes)
{
    const bool gives_any = is_alone(loop);

    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        quire_request *r = loop->set.running[i];
        const quire_offload_share share =
            (gives_any && !quire_request_drops(r)) || is_large(loop, r)
                ? share_of(loop, r)
                : (quire_offload_share){ 0 };

        if (share.movable_bytes > keep_bytes) {
            return r;
        }
    }
    return NULL;
}

/* Let go of all pages that only the tree holds, offloaded ones too. */
static void unused_drop(quire_loop *loop)
{
    (void)quire_prefix_evict(loop->tree, QUIRE_REGION_DYNAMIC, UINT64_MAX);
    if (loop->room.pinned != QUIRE_REGION_DYNAMIC) {
        (void)quire_prefix_evict(loop->tree, loop->room.pinned, UINT64_MAX);
    }
}

static int unused_find(void *ctx, const quire_page_info *page)
{
    (void)ctx;
    return page->is_offloaded && page->refs == 0 && !page->is_pinned;
}

uint8_t quire_overflow_order(const quire_loop *loop, const quire_request *r)
{
    const bool is_pinned = quire_loop_region(loop, r->class_index) != QUIRE_REGION_DYNAMIC;

    return (uint8_t)(r->rank + (is_pinned ? QUIRE_RANKS_MAX : 0));
}

/* Offload a stripe. The places may be full of pages that nobody uses any more, also where pages
 * cannot go on from the host's memory to a disk that fails; else nothing is won by dropping those
 * that are in memory. */
static bool give(quire_loop *loop, const quire_request *r, quire_seq_id seq)
{
    int rc = quire_offload_seq(loop->overflow.offload, seq, quire_overflow_order(loop, r));

    if ((rc == QUIRE_LIMIT || rc == QUIRE_IO) &&
        quire_cache_pages_visit(loop->cache, unused_find, NULL) != 0) {
        unused_drop(loop);
        rc = quire_offload_seq(loop->overflow.offload, seq, quire_overflow_order(loop, r));
    }
    loop->overflow.has_failed = rc == QUIRE_IO;
    return rc > 0;
}

bool quire_overflow_relieve(quire_loop *loop)
{
    const quire_request *r;

    if (loop->overflow.offload == NULL) {
        return false;
    }
    if (quire_offload_settle(loop->overflow.offload) > 0) {
        return true;
    }
    loop->overflow.has_failed = false;
    r = giver_find(loop, is_alone(loop) ? 0 : kept_bytes(loop));
    return r != NULL && give(loop, r, r->kv.seq);
}

bool quire_overflow_fetch_room(quire_loop *loop, const quire_request *r, quire_seq_id seq)
{
    return loop->overflow.offload != NULL && is_large(loop, r) && give(loop, r, seq);
}

void quire_overflow_admitted(quire_loop *loop, const quire_request *r)
{
    loop->figures.now.overflow.requests_total +=
        loop->overflow.offload != NULL && is_large(loop, r);
}

bool quire_overflow_yield(quire_loop *loop)
{
    bool has_given;
    uint32_t n_max;

    if (loop->overflow.offload == NULL) {
        return false;
    }
    n_max = quire_overflow_stripes(loop->room.page_bytes);
    has_given = quire_offload_settle(loop->overflow.offload) > 0;
    if (has_given || loop->overflow.n_given >= n_max) {
        return has_given;
    }
    for (; loop->overflow.n_given < n_max; loop->overflow.n_given++) {
        const quire_request *r = giver_find(loop, kept_bytes(loop));

        if (r == NULL || !give(loop, r, r->kv.seq)) {
            break;
        }
        has_given = true;
    }
    return has_given;
}

/* ---- pages that are attended where they lie ---- */

static bool may_attend(const quire_loop *loop)
{
    return loop->overflow.offload != NULL && loop->runtime_opts->attends_host &&
           loop->opts.overflow.attend != QUIRE_OVERFLOW_ATTEND_DEVICE &&
           quire_cache_pages_offloaded(loop->cache) > 0;
}

static bool takes_host(const quire_loop *loop)
{
    return loop->opts.overflow.attend == QUIRE_OVERFLOW_ATTEND_HOST ||
           quire_attend_choose(&loop->overflow.choice) == QUIRE_ATTEND_HOST;
}

/* Prompts are computed on the device alone, so that other requests can have their pages. */
void quire_overflow_step_begin(quire_loop *loop, uint32_t n_items)
{
    bool is_generated = true; /* all rows of requests with offloaded pages */
    uint64_t bytes = 0;

    loop->overflow.attend_bytes = 0;
    loop->overflow.is_timed = true;
    if (!may_attend(loop)) {
        return;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        const quire_schedule_item *item = &loop->step.items[i];

        if (item->n_rows > 0) {
            const uint64_t own = share_of(loop, item->request).offloaded_bytes;

            bytes += own;
            is_generated = is_generated && (own == 0 || item->is_decode);
            loop->overflow.is_timed = loop->overflow.is_timed && item->is_decode;
        }
    }
    if (is_generated) {
        loop->overflow.attend_bytes = bytes;
        quire_offload_attend(loop->overflow.offload, bytes > 0 && takes_host(loop));
    }
}

static void mixed_mark(quire_loop *loop, uint32_t n_items)
{
    for (uint32_t i = 0; i < n_items; i++) {
        const quire_schedule_item *item = &loop->step.items[i];
        quire_request *r = item->request;

        if (item->n_rows > 0 && r->kv.n_mixed_from == 0 && share_of(loop, r).offloaded_bytes > 0) {
            r->kv.n_mixed_from = r->kv.n_computed;
        }
    }
}

void quire_overflow_step_end(quire_loop *loop, uint32_t n_items, bool is_done)
{
    quire_loop_overflow *o = &loop->overflow;
    bool has_attended;

    if (o->attend_bytes == 0) {
        return;
    }
    has_attended = quire_offload_attended(o->offload);
    quire_offload_attend(o->offload, false);
    if (is_done && has_attended) {
        mixed_mark(loop, n_items);
    }
    if (is_done && o->is_timed) {
        quire_attend_measured(&o->choice, has_attended ? QUIRE_ATTEND_HOST : QUIRE_ATTEND_DEVICE,
                              o->attend_bytes, quire_loop_now_us(loop) - loop->step.begin_us);
    }
    o->attend_bytes = 0;
}

/* ---- pages that cannot be read ---- */

/* Whether a request has pages in the place at which the step failed. */
static bool is_hit(const quire_loop *loop, const quire_request *r)
{
    const quire_offload_share share = share_of(loop, r);

    return quire_offload_missed_file(loop->overflow.offload) ? share.file_bytes > 0
                                                             : share.offloaded_bytes > 0;
}

bool quire_overflow_lost(quire_loop *loop, int status)
{
    bool is_any = false;

    if (loop->overflow.offload == NULL || (status != QUIRE_IO && status != QUIRE_CORRUPT)) {
        return false;
    }
    for (uint32_t i = loop->set.n_running; i > 0; i--) {
        quire_request *r = loop->set.running[i - 1];

        if (r->wait.n_unread < QUIRE_OVERFLOW_TRIES && is_hit(loop, r)) {
            r->wait.n_unread++;
            r->wait.stuck_tokens = r->n_tokens;
            r->wait.retreat = QUIRE_RETREAT_NO_HIT; /* the tree may have these pages */
            quire_loop_preempt(loop, r);
            r->wait.blocked_at = 0;
            loop->figures.now.overflow.lost_total++;
            is_any = true;
        }
    }
    /* The tree must not hand out these pages again. */
    unused_drop(loop);
    return is_any;
}

void quire_overflow_clear(quire_loop *loop)
{
    if (loop->overflow.offload != NULL) {
        unused_drop(loop);
        (void)quire_offload_settle(loop->overflow.offload);
    }
}

const char *quire_overflow_trouble(const quire_loop *loop, bool of_file)
{
    return loop->overflow.offload != NULL ? quire_offload_trouble(loop->overflow.offload, of_file)
                                          : "";
}

bool quire_overflow_has_failed(const quire_loop *loop)
{
    return loop->overflow.has_failed;
}

/* ---- upkeep ---- */

void quire_overflow_upkeep(quire_loop *loop, bool is_idle)
{
    if (loop->overflow.offload == NULL) {
        return;
    }
    loop->overflow.n_given = 0;
    if (quire_offload_settle(loop->overflow.offload) > 0) {
        quire_loop_released(loop);
    }
    if (is_idle) {
        quire_offload_rest(loop->overflow.offload);
        return;
    }
    if (loop->set.n_queued > 0 || quire_cache_pages_offloaded(loop->cache) == 0) {
        return;
    }
    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        if (quire_offload_back(loop->overflow.offload, loop->set.running[i]->kv.seq,
                               QUIRE_OVERFLOW_KEEP_PAGES * loop->room.page_bytes) != 0) {
            return;
        }
    }
    (void)quire_offload_raise(loop->overflow.offload);
}

void quire_overflow_stats_fill(quire_loop *loop)
{
    quire_overflow_stats *s = &loop->figures.now.overflow;

    s->is_on = loop->overflow.offload != NULL;
    if (s->is_on) {
        quire_offload_stats_get(loop->overflow.offload, &s->offload);
    }
}
