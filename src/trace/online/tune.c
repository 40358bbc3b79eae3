/* tune.c - turns measurements into at most one step per setting.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/tune.h"

#include "base/check.h"
#include "base/parse.h"
#include "trace/duration.h"
#include "trace/offline/analyze.h"
#include "trace/offline/mrc.h"
#include "trace/sim/sim.h"

#include <math.h>

#include <stdarg.h>
#include <stdio.h>

#define SHARE_HEADROOM  1.1  /* of the pinned need */
#define SHARE_DEAD_BAND 0.05 /* of the memory */
#define SHARE_STEP      0.05
#define TIME_DEAD_BAND  1.5 /* factors */
#define TIME_STEP       1.5
#define TTL_PER_GAP     2.0  /* a TTL of this many p99 gaps: later returns are rare */
#define MEMORY_GAIN_MIN 0.03 /* of all blocks, for twice the memory */
#define MEMORY_LOSS_MAX 0.005
#define MEMORY_STEP     1.25
#define POLICY_GAIN_MIN 0.01
#define POLICY_RATIO    1.05
#define GAPS_PER_SPAN   4.0 /* longer gaps than a span over this are seen too seldom to judge */

const char *quire_tune_knob_name(quire_tune_knob knob)
{
    static const char *const names[] = {
#define X(sym, val, name) [val] = (name),
        QUIRE_TUNE_KNOB_MAP(X)
#undef X
    };

    return (unsigned)knob < QUIRE_TUNE_KNOB_COUNT ? names[knob] : "unknown";
}

/* ---- measuring ---- */

static void take_analysis(const quire_analysis *a, const quire_tune_ask *ask, quire_tune_facts *out)
{
    out->requests = a->n_requests;
    out->span_us = a->span_us;
    out->one_time_share = a->n_ids > 0 ? (double)a->one_time_ids / a->n_ids : 0.0;
    out->gap_p50_us = quire_dist_quantile(&a->gap_us, 0.5);
    out->gap_p90_us = quire_dist_quantile(&a->gap_us, 0.9);
    out->gap_p99_us = quire_dist_quantile(&a->gap_us, 0.99);
    out->distinct_bytes = (uint64_t)(ask->token_bytes * a->block_tokens * a->n_ids);
    for (uint32_t c = 0; c < a->n_classes; c++) {
        if ((ask->pinned_class_mask >> c & 1u) != 0) {
            out->pinned_need_p99_bytes +=
                ask->token_bytes * (double)quire_dist_quantile(&a->load.held_class_tokens[c], 0.99);
        }
    }
}

static bool has_kv(const quire_tune_ask *ask)
{
    return ask->kv.block_bytes != 0;
}

/* The bytes of a block of the trace, without windows and states. */
static double block_bytes_of(const quire_trace *trace, const quire_tune_ask *ask)
{
    return has_kv(ask) ? (double)ask->kv.block_bytes : ask->token_bytes * trace->block_tokens;
}

static uint64_t blocks_in(const quire_trace *trace, const quire_tune_ask *ask, double bytes)
{
    const double block_bytes = block_bytes_of(trace, ask);

    return block_bytes > 0.0 ? (uint64_t)(bytes / block_bytes) : 0;
}

/* The hit rate of a policy with so much memory; 0 where it does not hold a block. */
static int simulate(const quire_trace *trace, const quire_tune_ask *ask, quire_evict_policy policy,
                    double bytes, double *out)
{
    const quire_sim_opts opts = { .mode = QUIRE_SIM_HITS,
                                  .policy = policy,
                                  .capacity_blocks = blocks_in(trace, ask, bytes),
                                  .kv = ask->kv,
                                  .capacity_bytes = (uint64_t)bytes,
                                  .seed = ask->seed };
    quire_sim_result result;

    *out = 0.0;
    if (opts.capacity_blocks == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_sim_run(trace, &opts, &result, NULL));
    *out = result.blocks > 0 ? (double)result.hit_blocks / (double)result.blocks : 0.0;
    quire_sim_result_fini(&result);
    return QUIRE_OK;
}

static int compare_policies(const quire_trace *trace, const quire_tune_ask *ask,
                            quire_tune_facts *out)
{
    for (int p = 0; p < (int)QUIRE_EVICT_POLICY_COUNT; p++) {
        const quire_evict_policy policy = (quire_evict_policy)p;
        double rate;

        QUIRE_TRY(simulate(trace, ask, policy, (double)ask->settings.memory_bytes, &rate));
        if (policy == ask->settings.policy) {
            out->current_policy_hit_rate = rate;
        }
        if (p == 0 || rate > out->best_policy_hit_rate) {
            out->best_policy = policy;
            out->best_policy_hit_rate = rate;
        }
    }
    return QUIRE_OK;
}

/* LRU's hit rates where every block takes the same memory: exact, from one pass. */
static int rates_by_stack(const quire_trace *trace, const quire_tune_ask *ask,
                          quire_tune_facts *out)
{
    const uint64_t capacity = blocks_in(trace, ask, (double)ask->settings.memory_bytes);
    quire_mrc mrc;

    QUIRE_TRY(quire_mrc_init(&mrc, trace, &trace->allocator));
    out->hit_rate = quire_mrc_hit_rate(&mrc, capacity);
    out->hit_rate_half = quire_mrc_hit_rate(&mrc, capacity / 2);
    out->hit_rate_double = quire_mrc_hit_rate(&mrc, 2 * capacity);
    out->hit_rate_infinite = quire_mrc_hit_rate(&mrc, UINT64_MAX);
    quire_mrc_fini(&mrc);
    return QUIRE_OK;
}

/* Room for all blocks of a trace with their windows, and for all states that its requests leave. */
static double all_bytes(const quire_trace *trace, const quire_sim_kv *kv)
{
    double n_states = 0.0;

    for (uint32_t i = 0; i < trace->n_requests && kv->state_bytes != 0; i++) {
        n_states += 4.0 + (double)trace->requests[i].n_blocks * trace->block_tokens /
                              kv->state_every_tokens;
    }
    return (double)trace->n_ids * (double)(kv->block_bytes + kv->window_bytes) +
           n_states * (double)kv->state_bytes;
}

/* LRU's hit rates with windows and states. */
static int rates_by_simulation(const quire_trace *trace, const quire_tune_ask *ask,
                               quire_tune_facts *out)
{
    const double memory = (double)ask->settings.memory_bytes;
    const double all = all_bytes(trace, &ask->kv);
    const struct {
        double bytes;
        double *rate;
    } sizes[] = { { all, &out->hit_rate_infinite },
                  { memory, &out->hit_rate },
                  { memory / 2.0, &out->hit_rate_half },
                  { 2.0 * memory, &out->hit_rate_double } };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (i > 0 && sizes[i].bytes >= all) { /* more memory than that changes nothing */
            *sizes[i].rate = out->hit_rate_infinite;
        } else {
            QUIRE_TRY(simulate(trace, ask, QUIRE_EVICT_LRU, sizes[i].bytes, sizes[i].rate));
        }
    }
    return QUIRE_OK;
}

int quire_tune_measure(const quire_trace *trace, const quire_tune_ask *ask, quire_tune_facts *out)
{
    const quire_load_cost cost = { ask->prefill_token_us, ask->decode_token_us };
    quire_analysis *analysis = NULL;

    *out = (quire_tune_facts){ .best_policy = ask->settings.policy };
    QUIRE_TRY(quire_analysis_create(&analysis, trace, &cost, &trace->allocator));
    take_analysis(analysis, ask, out);
    quire_analysis_destroy(analysis);
    if (quire_trace_longest_blocks(trace) == 0) {
        return QUIRE_OK; /* requests of less than a block */
    }
    QUIRE_TRY(has_kv(ask) ? rates_by_simulation(trace, ask, out) : rates_by_stack(trace, ask, out));
    return ask->compares_policies && blocks_in(trace, ask, (double)ask->settings.memory_bytes) > 0
               ? compare_policies(trace, ask, out)
               : QUIRE_OK;
}

/* ---- suggesting ---- */

typedef struct desk {
    const quire_tune_facts *facts;
    const quire_tune_settings *now;
    const quire_tune_bounds *bounds;
    quire_tune_state *state;
    quire_tune_change *changes;
    uint32_t n;
} desk;

/* Note that measurements ask for a smaller (-1), larger (1) or unchanged setting. Returns true once
 * when enough measurements in a row have asked for the same direction. */
static bool is_news(desk *d, quire_tune_knob knob, int direction)
{
    quire_tune_state *s = d->state;

    if (direction == 0 || direction != s->direction[knob]) {
        s->times[knob] = 0;
    }
    s->direction[knob] = (int8_t)direction;
    if (direction == 0 || s->times[knob] >= QUIRE_TUNE_PATIENCE) {
        return false;
    }
    return ++s->times[knob] == QUIRE_TUNE_PATIENCE;
}

/* The same for an applied step: the next step needs new evidence. */
static bool is_time(desk *d, quire_tune_knob knob, int direction)
{
    if (!is_news(d, knob, direction)) {
        return false;
    }
    d->state->times[knob] = 0;
    return true;
}

__attribute__((format(printf, 3, 4))) static void say(desk *d, quire_tune_change change,
                                                      const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(change.reason, sizeof(change.reason), format, args);
    va_end(args);
    d->changes[d->n++] = change;
}

static double clamp(double value, double least, double most)
{
    return value < least ? least : value > most ? most : value;
}

static void suggest_pinned_share(desk *d)
{
    const double least = d->bounds->pinned_share_min;
    const double most = d->bounds->pinned_share_max;
    const double from = d->now->pinned_share;
    double wanted;
    char need[16];
    char memory[16];

    if (least >= most || d->now->memory_bytes == 0) {
        return;
    }
    wanted = clamp(d->facts->pinned_need_p99_bytes * SHARE_HEADROOM / (double)d->now->memory_bytes,
                   least, most);
    if (is_time(d, QUIRE_TUNE_PINNED_SHARE,
                (wanted > from + SHARE_DEAD_BAND) - (wanted < from - SHARE_DEAD_BAND))) {
        const double to = clamp(wanted, from - SHARE_STEP, from + SHARE_STEP);

        say(d,
            (quire_tune_change){
                .knob = QUIRE_TUNE_PINNED_SHARE, .is_applicable = true, .from = from, .to = to },
            "classes with pinned memory need %s at once (p99) of %s",
            quire_format_bytes((uint64_t)d->facts->pinned_need_p99_bytes, need, sizeof(need)),
            quire_format_bytes(d->now->memory_bytes, memory, sizeof(memory)));
    }
}

/* The value of a time after one step towards the wanted value; the present value when no step is
 * due. */
static double step_time(desk *d, quire_tune_knob knob, double from, double wanted)
{
    const int direction = (wanted > from * TIME_DEAD_BAND) - (wanted * TIME_DEAD_BAND < from);

    return is_time(d, knob, direction) ? clamp(wanted, from / TIME_STEP, from * TIME_STEP) : from;
}

/* Whether the measured time is long enough for gaps of this length. Longer gaps are cut off by its
 * end, so the wanted time may then only grow. */
static bool is_seen_whole(const quire_tune_facts *facts, uint64_t gap_us)
{
    return (double)gap_us * GAPS_PER_SPAN <= (double)facts->span_us;
}

static void suggest_ttl(desk *d)
{
    const double least = (double)d->bounds->ttl_min_us;
    const double most = (double)d->bounds->ttl_max_us;
    const double from = (double)d->now->ttl_us;
    const bool is_whole = is_seen_whole(d->facts, d->facts->gap_p99_us);
    double wanted = clamp(TTL_PER_GAP * (double)d->facts->gap_p99_us, least, most);
    char text[QUIRE_DURATION_TEXT_MAX];
    double to;

    if (least >= most || d->facts->gap_p99_us == 0 || d->now->ttl_us == 0) {
        return;
    }
    if (!is_whole && wanted < from) {
        wanted = from;
    }
    to = step_time(d, QUIRE_TUNE_TTL, from, wanted);
    if (to != from) {
        say(d,
            (quire_tune_change){
                .knob = QUIRE_TUNE_TTL, .is_applicable = true, .from = from, .to = to },
            "99 %% of reused blocks are used again within %s",
            quire_duration_text(d->facts->gap_p99_us, text));
    }
}

static void suggest_low_traffic(desk *d)
{
    const double least = (double)d->bounds->low_traffic_min_us;
    const double most = (double)d->bounds->low_traffic_max_us;
    const double from = (double)d->now->low_traffic_after_us;
    const uint64_t gap_us = d->facts->gap_p90_us;
    char text[QUIRE_DURATION_TEXT_MAX];
    double wanted;
    double to;

    if (least >= most || gap_us == 0 || d->now->low_traffic_after_us == 0) {
        return;
    }
    wanted = clamp((double)gap_us, least, most);
    if (!is_seen_whole(d->facts, gap_us) && wanted < from) {
        wanted = from;
    }
    to = step_time(d, QUIRE_TUNE_LOW_TRAFFIC, from, wanted);
    if (to != from) {
        say(d,
            (quire_tune_change){
                .knob = QUIRE_TUNE_LOW_TRAFFIC, .is_applicable = true, .from = from, .to = to },
            "90 %% of reused blocks are used again within %s; %.0f %% of the blocks were asked for "
            "once",
            quire_duration_text(gap_us, text), 100.0 * d->facts->one_time_share);
    }
}

static void suggest_memory(desk *d)
{
    const quire_tune_facts *f = d->facts;
    const double from = (double)d->now->memory_bytes;
    const double gain = f->hit_rate_double - f->hit_rate;
    const bool is_more = gain >= MEMORY_GAIN_MIN;
    const bool is_less = !is_more && f->hit_rate - f->hit_rate_half <= MEMORY_LOSS_MAX;
    const double to = is_more ? from * MEMORY_STEP : from / MEMORY_STEP;

    if (!is_news(d, QUIRE_TUNE_MEMORY, is_more - is_less)) {
        return;
    }
    say(d, (quire_tune_change){ .knob = QUIRE_TUNE_MEMORY, .from = from, .to = to },
        "%s the memory would have served %.1f %% of the prompts, this serves %.1f %% (LRU)",
        is_more ? "twice" : "half", 100.0 * (is_more ? f->hit_rate_double : f->hit_rate_half),
        100.0 * f->hit_rate);
}

static void suggest_policy(desk *d)
{
    const quire_tune_facts *f = d->facts;
    const bool is_better =
        f->best_policy != d->now->policy && f->best_policy_hit_rate > 0.0 &&
        f->best_policy_hit_rate >= f->current_policy_hit_rate + POLICY_GAIN_MIN &&
        f->best_policy_hit_rate >= f->current_policy_hit_rate * POLICY_RATIO;

    if (is_better && d->state->policy != f->best_policy) {
        d->state->times[QUIRE_TUNE_POLICY] = 0;
    }
    d->state->policy = f->best_policy;
    if (is_news(d, QUIRE_TUNE_POLICY, is_better)) {
        say(d,
            (quire_tune_change){ .knob = QUIRE_TUNE_POLICY,
                                 .from = (double)d->now->policy,
                                 .to = (double)f->best_policy },
            "%s would have served %.1f %% of the prompts, %s %.1f %%",
            quire_evict_policy_name(f->best_policy), 100.0 * f->best_policy_hit_rate,
            quire_evict_policy_name(d->now->policy), 100.0 * f->current_policy_hit_rate);
    }
}

uint32_t quire_tune_suggest(const quire_tune_facts *facts, const quire_tune_settings *settings,
                            const quire_tune_bounds *bounds, quire_tune_state *state,
                            quire_tune_change changes[QUIRE_TUNE_KNOB_COUNT])
{
    desk d = {
        .facts = facts, .now = settings, .bounds = bounds, .state = state, .changes = changes
    };

    if (facts->requests < QUIRE_TUNE_REQUESTS_MIN) {
        return 0;
    }
    suggest_pinned_share(&d);
    suggest_ttl(&d);
    suggest_low_traffic(&d);
    suggest_memory(&d);
    suggest_policy(&d);
    return d.n;
}
