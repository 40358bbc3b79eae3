/* pinned.c - see pinned.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/adapt/adapt_object.h"

#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "core/pool/extent.h"

#define SHARE_STEPS   16u /* a step is at most a sixteenth of the budget */
#define SHARE_DYNAMIC 4u  /* default floor of the dynamic region: a quarter */
#define RECENT_US     ((uint64_t)300 * 1000000u)
#define SPILL_SAID_US 10000000u /* least time between events about spilling */
#define BYTES_TEXT    16u       /* quire_format_bytes() */

static quire_region_stats stats_of(const quire_adapt *adapt, quire_region_id region)
{
    quire_region_stats stats = { 0 };

    (void)quire_region_stats_get(adapt->parts->cache, region, &stats);
    return stats;
}

/* ---- create ---- */

static int sizer_open(quire_adapt *adapt, uint64_t total_bytes, quire_error *err)
{
    const quire_pinned_opts *o = &adapt->parts->opts->pinned;
    const uint64_t extent_bytes =
        quire_extent_shape_for(adapt->parts->page_bytes, adapt->parts->desc->n_stored).size_bytes;
    quire_sizer_opts opts = QUIRE_SIZER_OPTS_INIT;

    opts.floor_bytes = o->floor_bytes;
    opts.ceiling_bytes = o->ceiling_bytes;
    opts.dynamic_floor_bytes =
        o->dynamic_floor_bytes != 0 ? o->dynamic_floor_bytes : total_bytes / SHARE_DYNAMIC;
    opts.step_bytes = quire_max_u64(quire_min_u64(extent_bytes, total_bytes / SHARE_STEPS),
                                    adapt->parts->page_bytes);
    opts.window_us = o->window_us != 0 ? o->window_us : opts.window_us;
    if (o->ceiling_bytes > total_bytes || quire_sizer_init(&adapt->pinned.sizer, &opts) < 0) {
        return quire_error_set(
            err, QUIRE_INVAL,
            "pinned region: between a floor of %llu and a ceiling of %llu bytes, of %llu in all",
            (unsigned long long)o->floor_bytes, (unsigned long long)o->ceiling_bytes,
            (unsigned long long)total_bytes);
    }
    adapt->pinned.is_adapting = true;
    return QUIRE_OK;
}

int quire_pinned_open(quire_adapt *adapt, quire_error *err)
{
    const uint32_t n_ctx = adapt->parts->runtime_opts->n_ctx;
    const uint64_t recent_us = adapt->parts->opts->pinned.recent_us;
    const quire_working_set_opts set = { .recent_us = recent_us != 0 ? recent_us : RECENT_US,
                                         .seed = quire_loop_random() };
    uint64_t total_bytes;
    int rc;

    if (adapt->parts->pinned == QUIRE_REGION_DYNAMIC) {
        return QUIRE_OK;
    }
    rc = quire_working_set_create(&adapt->pinned.used, &set);
    if (rc < 0) {
        return quire_error_set(err, rc, "cannot open the pinned region: %s", quire_status_text(rc));
    }
    adapt->pinned.touch_us = set.recent_us / 4;
    adapt->pinned.block_bytes =
        quire_loop_need_bytes(adapt->loop, n_ctx) / n_ctx * QUIRE_WORKING_SET_BLOCK_TOKENS;
    total_bytes = stats_of(adapt, QUIRE_REGION_DYNAMIC).budget_bytes +
                  stats_of(adapt, adapt->parts->pinned).budget_bytes;
    return adapt->parts->opts->pinned.ceiling_bytes > 0 ? sizer_open(adapt, total_bytes, err)
                                                        : QUIRE_OK;
}

void quire_pinned_close(quire_adapt *adapt)
{
    quire_working_set_destroy(adapt->pinned.used);
}

/* ---- need ---- */

void quire_pinned_touch(quire_adapt *adapt, const quire_working_set_text *text)
{
    if (adapt->pinned.used != NULL) {
        quire_working_set_touch(adapt->pinned.used, text, quire_loop_now_us(adapt->loop));
    }
}

/* Bytes in use or recently used. */
static uint64_t need_bytes(const quire_adapt *adapt, const quire_region_stats *pinned)
{
    const uint64_t live = pinned->charged_bytes - pinned->cached_bytes + pinned->spilled_bytes +
                          pinned->reserved_bytes;
    const uint64_t used =
        quire_working_set_blocks(adapt->pinned.used, quire_loop_now_us(adapt->loop)) *
        adapt->pinned.block_bytes;

    return quire_max_u64(live, used);
}

/* ---- size ---- */

static void say_change(quire_adapt *adapt, const quire_sizer_decision *d, uint64_t from_bytes)
{
    const bool is_grown = d->budget_bytes > from_bytes;
    char from[BYTES_TEXT], to[BYTES_TEXT], need[BYTES_TEXT];

    (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop),
                           is_grown ? QUIRE_EVENT_REGION_GROWN : QUIRE_EVENT_REGION_SHRUNK,
                           "pinned region %s -> %s: %s (p99 of the need %s)",
                           quire_format_bytes(from_bytes, from, sizeof from),
                           quire_format_bytes(d->budget_bytes, to, sizeof to),
                           quire_sizer_reason_text(d->reason),
                           quire_format_bytes(d->need_p99_bytes, need, sizeof need));
}

/* Report the reason that blocks a change, once when the reason appears. */
static void say_held(quire_adapt *adapt, const quire_sizer_decision *d)
{
    const bool is_bound = d->reason == QUIRE_SIZER_AT_CEILING ||
                          d->reason == QUIRE_SIZER_DYNAMIC_FLOOR ||
                          d->reason == QUIRE_SIZER_DYNAMIC_HELD || d->reason == QUIRE_SIZER_HELD ||
                          d->reason == QUIRE_SIZER_REFUSED;
    char budget[BYTES_TEXT], need[BYTES_TEXT];

    if (is_bound && d->reason != adapt->pinned.reason) {
        (void)quire_events_add(adapt->events, quire_loop_uptime_us(adapt->loop),
                               QUIRE_EVENT_REGION_HELD,
                               "pinned region stays at %s: %s (p99 of the need %s)",
                               quire_format_bytes(d->budget_bytes, budget, sizeof budget),
                               quire_sizer_reason_text(d->reason),
                               quire_format_bytes(d->need_p99_bytes, need, sizeof need));
    }
    adapt->pinned.reason = d->reason;
}

/* Bytes that the dynamic region cannot give: those in use, and at least twice the pinned bytes. */
static uint64_t dynamic_held(const quire_region_stats *dynamic)
{
    const uint64_t pinned = dynamic->pinned_bytes + dynamic->reserved_bytes;

    return quire_max_u64(dynamic->charged_bytes - dynamic->cached_bytes + dynamic->reserved_bytes,
                         2 * pinned);
}

bool quire_pinned_may_be(const quire_adapt *adapt, uint64_t bytes)
{
    const quire_region_stats dynamic = stats_of(adapt, QUIRE_REGION_DYNAMIC);
    const uint64_t now_bytes = stats_of(adapt, adapt->parts->pinned).budget_bytes;

    return bytes <= now_bytes || bytes - now_bytes + dynamic_held(&dynamic) <= dynamic.budget_bytes;
}

static void size(quire_adapt *adapt, const quire_region_stats *pinned, uint64_t need)
{
    const quire_region_stats dynamic = stats_of(adapt, QUIRE_REGION_DYNAMIC);
    const quire_sizer_sample sample = {
        .now_us = quire_loop_now_us(adapt->loop),
        .need_bytes = need,
        .budget_bytes = pinned->budget_bytes,
        .held_bytes = pinned->charged_bytes - pinned->cached_bytes + pinned->reserved_bytes,
        .dynamic_bytes = dynamic.budget_bytes,
        .dynamic_held_bytes = dynamic_held(&dynamic),
    };
    quire_sizer_decision d = quire_sizer_decide(&adapt->pinned.sizer, &sample);

    adapt->figures.pinned_need_p99_bytes = d.need_p99_bytes;
    if (d.budget_bytes == sample.budget_bytes) {
        say_held(adapt, &d);
    } else if (quire_loop_pinned_resize(adapt->loop, d.budget_bytes) < 0) {
        quire_sizer_undo(&adapt->pinned.sizer, sample.now_us);
        d.budget_bytes = sample.budget_bytes;
        d.reason = QUIRE_SIZER_REFUSED;
        say_held(adapt, &d);
    } else {
        *(d.budget_bytes > sample.budget_bytes ? &adapt->figures.pinned_grown_total
                                               : &adapt->figures.pinned_shrunk_total) += 1;
        adapt->pinned.reason = d.reason;
        say_change(adapt, &d, sample.budget_bytes);
    }
}

/* Report dynamic memory taken by high classes since the last report. */
static void say_spills(quire_adapt *adapt, const quire_region_stats *pinned)
{
    const uint64_t now_us = quire_loop_now_us(adapt->loop);
    const uint64_t n_pages = pinned->spilled_pages_total - adapt->pinned.n_spilled_said;
    char budget[BYTES_TEXT], out[BYTES_TEXT];

    if (n_pages == 0 || now_us - adapt->pinned.spill_said_us < SPILL_SAID_US) {
        return;
    }
    adapt->pinned.n_spilled_said = pinned->spilled_pages_total;
    adapt->pinned.spill_said_us = now_us;
    (void)quire_events_add(
        adapt->events, quire_loop_uptime_us(adapt->loop), QUIRE_EVENT_SPILLED,
        "high classes took %llu pages beyond the pinned region's %s; %s are out now",
        (unsigned long long)n_pages,
        quire_format_bytes(pinned->budget_bytes, budget, sizeof budget),
        quire_format_bytes(pinned->spilled_bytes, out, sizeof out));
}

void quire_pinned_upkeep(quire_adapt *adapt)
{
    const quire_region_stats pinned = stats_of(adapt, adapt->parts->pinned);
    uint64_t need;

    if (adapt->parts->pinned == QUIRE_REGION_DYNAMIC) {
        return;
    }
    need = need_bytes(adapt, &pinned);
    adapt->figures.pinned_need_bytes = need;
    say_spills(adapt, &pinned);
    if (adapt->pinned.is_adapting) {
        size(adapt, &pinned, need);
    }
}

void quire_pinned_stats(const quire_adapt *adapt, quire_memory_stats *out)
{
    const quire_region_stats dynamic = stats_of(adapt, QUIRE_REGION_DYNAMIC);

    out->dynamic_budget_bytes = dynamic.budget_bytes;
    out->dynamic_charged_bytes = dynamic.charged_bytes;
    if (adapt->parts->pinned != QUIRE_REGION_DYNAMIC) {
        const quire_region_stats pinned = stats_of(adapt, adapt->parts->pinned);

        out->pinned_budget_bytes = pinned.budget_bytes;
        out->pinned_charged_bytes = pinned.charged_bytes;
        out->pinned_cached_bytes = pinned.cached_bytes;
        out->pinned_pin_bytes = pinned.pinned_bytes;
        out->spilled_bytes = pinned.spilled_bytes;
        out->spilled_pages_total = pinned.spilled_pages_total;
    }
}
