/* pinned.c - see pinned.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"
#include "base/num.h"
#include "core/pool/extent.h"

#define SHARE_STEPS   16u /* a step is at most so small a share of the budget */
#define SHARE_DYNAMIC 4u  /* the dynamic region's floor, when none was given */
#define RECENT_US     ((uint64_t)300 * 1000000u)
#define SPILL_SAID_US 10000000u /* spilling is said no more often */
#define MIB           (1024.0 * 1024.0)

/* ---- which region ---- */

quire_region_id quire_engine_region(const quire_engine *engine, uint32_t class_index)
{
    return engine->opts.classes.items[class_index].is_pinned ? engine->pinned.region
                                                             : QUIRE_REGION_DYNAMIC;
}

static quire_region_stats stats_of(const quire_engine *engine, quire_region_id region)
{
    quire_region_stats stats = { 0 };

    (void)quire_region_stats_get(engine->cache, region, &stats);
    return stats;
}

/* What sequences of a region may take: what is free or can be evicted. */
static uint64_t room_of(const quire_region_stats *stats)
{
    const uint64_t budget = stats->budget_bytes + stats->cached_bytes;
    const uint64_t taken = stats->charged_bytes + stats->reserved_bytes;

    return budget > taken ? budget - taken : 0;
}

bool quire_engine_fits(const quire_engine *engine, uint64_t pinned_bytes, uint64_t dynamic_bytes)
{
    const quire_region_stats dynamic = stats_of(engine, QUIRE_REGION_DYNAMIC);
    uint64_t room;

    if (engine->pinned.region == QUIRE_REGION_DYNAMIC) {
        dynamic_bytes += pinned_bytes;
    } else {
        const quire_region_stats pinned = stats_of(engine, engine->pinned.region);

        room = room_of(&pinned);
        if (pinned_bytes > room) {
            if (!pinned.spills_to_dynamic) {
                return false;
            }
            dynamic_bytes += pinned_bytes - room;
        }
    }
    room = room_of(&dynamic);
    return dynamic_bytes <= room;
}

bool quire_engine_helps(const quire_engine *engine, const quire_request *asker,
                        const quire_request *other)
{
    const quire_region_id region = quire_engine_region(engine, asker->class_index);
    const quire_region_id others = quire_engine_region(engine, other->class_index);

    return region == others ||
           (others == QUIRE_REGION_DYNAMIC && stats_of(engine, region).spills_to_dynamic);
}

uint64_t quire_engine_budget_bytes(const quire_engine *engine, uint32_t class_index)
{
    const quire_region_id region = quire_engine_region(engine, class_index);
    const quire_region_stats own = stats_of(engine, region);

    if (region == QUIRE_REGION_DYNAMIC || !own.spills_to_dynamic) {
        return own.budget_bytes;
    }
    return own.budget_bytes + stats_of(engine, QUIRE_REGION_DYNAMIC).budget_bytes;
}

/* ---- create ---- */

static int sizer_open(quire_engine *engine, uint64_t total_bytes, quire_error *err)
{
    const quire_pinned_opts *o = &engine->opts.pinned;
    const uint64_t extent_bytes =
        quire_extent_shape_for(engine->page_bytes, engine->desc->n_stored).size_bytes;
    quire_sizer_opts opts = QUIRE_SIZER_OPTS_INIT;

    opts.floor_bytes = o->floor_bytes;
    opts.ceiling_bytes = o->ceiling_bytes;
    opts.dynamic_floor_bytes =
        o->dynamic_floor_bytes != 0 ? o->dynamic_floor_bytes : total_bytes / SHARE_DYNAMIC;
    opts.step_bytes =
        quire_max_u64(quire_min_u64(extent_bytes, total_bytes / SHARE_STEPS), engine->page_bytes);
    opts.window_us = o->window_us != 0 ? o->window_us : opts.window_us;
    if (o->ceiling_bytes > total_bytes || quire_sizer_init(&engine->pinned.sizer, &opts) < 0) {
        return quire_error_set(
            err, QUIRE_INVAL,
            "pinned region: between a floor of %llu and a ceiling of %llu bytes, of %llu in all",
            (unsigned long long)o->floor_bytes, (unsigned long long)o->ceiling_bytes,
            (unsigned long long)total_bytes);
    }
    engine->pinned.is_adapting = true;
    return QUIRE_OK;
}

int quire_pinned_open(quire_engine *engine, quire_error *err)
{
    const uint64_t total_bytes = stats_of(engine, QUIRE_REGION_DYNAMIC).budget_bytes;
    const uint32_t n_ctx = engine->runtime_opts->n_ctx;
    const uint64_t recent_us = engine->opts.pinned.recent_us;
    const quire_working_set_opts set = { .recent_us = recent_us != 0 ? recent_us : RECENT_US,
                                         .seed = quire_engine_random() };
    quire_region_opts region = QUIRE_REGION_OPTS_INIT;
    int rc;

    engine->pinned.region = QUIRE_REGION_DYNAMIC;
    if (engine->opts.pinned_bytes == 0) {
        return QUIRE_OK;
    }
    region.budget_bytes = engine->opts.pinned_bytes;
    region.spills_to_dynamic = !engine->opts.pinned_stays;
    if (region.budget_bytes >= total_bytes) {
        return quire_error_set(err, QUIRE_INVAL, "pinned region: %llu bytes of a budget of %llu",
                               (unsigned long long)region.budget_bytes,
                               (unsigned long long)total_bytes);
    }
    if ((rc = quire_region_open(engine->cache, &region, &engine->pinned.region)) < 0 ||
        (rc = quire_working_set_create(&engine->pinned.used, &set)) < 0) {
        return quire_error_set(err, rc, "cannot open the pinned region: %s", quire_status_text(rc));
    }
    engine->pinned.touch_us = set.recent_us / 4;
    engine->pinned.block_bytes =
        quire_engine_need_bytes(engine, n_ctx) / n_ctx * QUIRE_WORKING_SET_BLOCK_TOKENS;
    return engine->opts.pinned.ceiling_bytes > 0 ? sizer_open(engine, total_bytes, err) : QUIRE_OK;
}

void quire_pinned_close(quire_engine *engine)
{
    if (engine->pinned.region != QUIRE_REGION_DYNAMIC) {
        (void)quire_region_close(engine->cache, engine->pinned.region);
    }
    quire_working_set_destroy(engine->pinned.used);
}

/* ---- need ---- */

void quire_pinned_touch(quire_engine *engine, const quire_working_set_text *text)
{
    if (engine->pinned.used != NULL) {
        quire_working_set_touch(engine->pinned.used, text, quire_engine_now_us(engine));
    }
}

/* In use now, or used lately. */
static uint64_t need_bytes(const quire_engine *engine, const quire_region_stats *pinned)
{
    const uint64_t live = pinned->charged_bytes - pinned->cached_bytes + pinned->spilled_bytes +
                          pinned->reserved_bytes;
    const uint64_t used =
        quire_working_set_blocks(engine->pinned.used, quire_engine_now_us(engine)) *
        engine->pinned.block_bytes;

    return quire_max_u64(live, used);
}

/* ---- size ---- */

static void say_change(quire_engine *engine, const quire_sizer_decision *d, uint64_t from_bytes)
{
    const bool is_grown = d->budget_bytes > from_bytes;

    (void)quire_events_add(engine->adapt.events, quire_engine_uptime_us(engine),
                           is_grown ? QUIRE_EVENT_REGION_GROWN : QUIRE_EVENT_REGION_SHRUNK,
                           "pinned region %.1f -> %.1f MiB: %s (p99 of the need %.1f MiB)",
                           (double)from_bytes / MIB, (double)d->budget_bytes / MIB,
                           quire_sizer_reason_text(d->reason), (double)d->need_p99_bytes / MIB);
}

/* What keeps it from changing is said when it becomes so. */
static void say_held(quire_engine *engine, const quire_sizer_decision *d)
{
    const bool is_bound = d->reason == QUIRE_SIZER_AT_CEILING ||
                          d->reason == QUIRE_SIZER_DYNAMIC_FLOOR ||
                          d->reason == QUIRE_SIZER_DYNAMIC_HELD || d->reason == QUIRE_SIZER_HELD ||
                          d->reason == QUIRE_SIZER_REFUSED;

    if (is_bound && d->reason != engine->pinned.reason) {
        (void)quire_events_add(engine->adapt.events, quire_engine_uptime_us(engine),
                               QUIRE_EVENT_REGION_HELD,
                               "pinned region stays at %.1f MiB: %s (p99 of the need %.1f MiB)",
                               (double)d->budget_bytes / MIB, quire_sizer_reason_text(d->reason),
                               (double)d->need_p99_bytes / MIB);
    }
    engine->pinned.reason = d->reason;
}

static int transfer(quire_engine *engine, uint64_t from_bytes, uint64_t to_bytes)
{
    const quire_region_id pinned = engine->pinned.region;

    return to_bytes > from_bytes
               ? quire_region_transfer(engine->cache, QUIRE_REGION_DYNAMIC, pinned,
                                       to_bytes - from_bytes)
               : quire_region_transfer(engine->cache, pinned, QUIRE_REGION_DYNAMIC,
                                       from_bytes - to_bytes);
}

int quire_pinned_resize(quire_engine *engine, uint64_t budget_bytes)
{
    const uint64_t now_bytes = stats_of(engine, engine->pinned.region).budget_bytes;

    QUIRE_FAIL_IF(engine->pinned.region == QUIRE_REGION_DYNAMIC, QUIRE_NOTFOUND);
    if (budget_bytes == now_bytes) {
        return QUIRE_OK;
    }
    QUIRE_TRY(transfer(engine, now_bytes, budget_bytes));
    engine->n_releases++; /* somebody has more room than before */
    return QUIRE_OK;
}

/* What the dynamic region cannot give: what is in use, and as much again as is pinned in it. */
static uint64_t dynamic_held(const quire_region_stats *dynamic)
{
    const uint64_t pinned = dynamic->pinned_bytes + dynamic->reserved_bytes;

    return quire_max_u64(dynamic->charged_bytes - dynamic->cached_bytes + dynamic->reserved_bytes,
                         2 * pinned);
}

static void size(quire_engine *engine, const quire_region_stats *pinned, uint64_t need)
{
    const quire_region_stats dynamic = stats_of(engine, QUIRE_REGION_DYNAMIC);
    const quire_sizer_sample sample = {
        .now_us = quire_engine_now_us(engine),
        .need_bytes = need,
        .budget_bytes = pinned->budget_bytes,
        .held_bytes = pinned->charged_bytes - pinned->cached_bytes + pinned->reserved_bytes,
        .dynamic_bytes = dynamic.budget_bytes,
        .dynamic_held_bytes = dynamic_held(&dynamic),
    };
    quire_sizer_decision d = quire_sizer_decide(&engine->pinned.sizer, &sample);

    engine->stats.memory.pinned_need_p99_bytes = d.need_p99_bytes;
    if (d.budget_bytes == sample.budget_bytes) {
        say_held(engine, &d);
    } else if (quire_pinned_resize(engine, d.budget_bytes) < 0) {
        quire_sizer_undo(&engine->pinned.sizer, sample.now_us);
        d.budget_bytes = sample.budget_bytes;
        d.reason = QUIRE_SIZER_REFUSED;
        say_held(engine, &d);
    } else {
        *(d.budget_bytes > sample.budget_bytes ? &engine->stats.memory.pinned_grown_total
                                               : &engine->stats.memory.pinned_shrunk_total) += 1;
        engine->pinned.reason = d.reason;
        say_change(engine, &d, sample.budget_bytes);
    }
}

/* High classes have taken dynamic memory since it was last said. */
static void say_spills(quire_engine *engine, const quire_region_stats *pinned)
{
    const uint64_t now_us = quire_engine_now_us(engine);
    const uint64_t n_pages = pinned->spilled_pages_total - engine->pinned.n_spilled_said;

    if (n_pages == 0 || now_us - engine->pinned.spill_said_us < SPILL_SAID_US) {
        return;
    }
    engine->pinned.n_spilled_said = pinned->spilled_pages_total;
    engine->pinned.spill_said_us = now_us;
    (void)quire_events_add(
        engine->adapt.events, quire_engine_uptime_us(engine), QUIRE_EVENT_SPILLED,
        "high classes took %llu pages beyond the pinned region's %.1f MiB; %.1f MiB are out now",
        (unsigned long long)n_pages, (double)pinned->budget_bytes / MIB,
        (double)pinned->spilled_bytes / MIB);
}

void quire_pinned_upkeep(quire_engine *engine)
{
    const quire_region_stats pinned = stats_of(engine, engine->pinned.region);
    uint64_t need;

    if (engine->pinned.region == QUIRE_REGION_DYNAMIC) {
        return;
    }
    need = need_bytes(engine, &pinned);
    engine->stats.memory.pinned_need_bytes = need;
    say_spills(engine, &pinned);
    if (engine->pinned.is_adapting) {
        size(engine, &pinned, need);
    }
}

void quire_pinned_stats(const quire_engine *engine, quire_memory_stats *out)
{
    const quire_region_stats dynamic = stats_of(engine, QUIRE_REGION_DYNAMIC);

    out->dynamic_budget_bytes = dynamic.budget_bytes;
    out->dynamic_charged_bytes = dynamic.charged_bytes;
    if (engine->pinned.region != QUIRE_REGION_DYNAMIC) {
        const quire_region_stats pinned = stats_of(engine, engine->pinned.region);

        out->pinned_budget_bytes = pinned.budget_bytes;
        out->pinned_charged_bytes = pinned.charged_bytes;
        out->pinned_cached_bytes = pinned.cached_bytes;
        out->pinned_pin_bytes = pinned.pinned_bytes;
        out->spilled_bytes = pinned.spilled_bytes;
        out->spilled_pages_total = pinned.spilled_pages_total;
    }
}
