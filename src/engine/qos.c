/* qos.c - what classes mean to a step: what lower ones may add to it, figures, degradation.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/engine_internal.h"

#include "base/check.h"

#define US_PER_MS     1000.0
#define EXPECT_US     30000000u /* a class that had work so lately may have more any moment */
#define GIVE_UP_SHARE 0.8       /* of a step */
#define TYPICAL_N     16.0      /* prompts over which their usual cost is taken */

/* ---- before a step ---- */

void quire_engine_qos_prepare(quire_engine *engine)
{
    const quire_classes *classes = &engine->opts.classes;
    const uint64_t now_us = quire_engine_now_us(engine);
    double least_us = 0.0;

    for (uint32_t i = 0; i < engine->n_running; i++) {
        engine->qos.seen_us[engine->running[i]->class_index] = now_us;
    }
    for (uint32_t rank = QUIRE_RANKS_MAX; rank-- > 0;) {
        const uint32_t index = quire_classes_of_rank(classes, rank);

        engine->schedule.ranks[rank].wait_us = least_us;
        if (index != QUIRE_CLASSES_MAX && engine->qos.seen_us[index] != 0 &&
            now_us - engine->qos.seen_us[index] < EXPECT_US) {
            const double us =
                quire_schedule_wait_us(&engine->stats.cost, engine->qos.typical_us[index],
                                       classes->items[index].ttft_target_ms * US_PER_MS);

            least_us = least_us == 0.0 || us < least_us ? us : least_us;
        }
    }
}

void quire_engine_qos_admitted(quire_engine *engine, const quire_request *r)
{
    double *typical_us = &engine->qos.typical_us[r->class_index];
    const double us = quire_cost_prefill_us(&engine->stats.cost, r->n_computed, r->n_tokens,
                                            engine->opts.chunk_tokens);

    *typical_us += (us - *typical_us) * (*typical_us == 0.0 ? 1.0 : 1.0 / TYPICAL_N);
}

/* ---- while it is computed ---- */

/* A step that is nearly done is not given up: what is left of it costs the one who came less than
 * all of it costs those who are in it. */
bool quire_engine_qos_gives_up(void *ctx)
{
    const quire_engine *engine = ctx;

    if (atomic_load_explicit(&engine->urgent_rank, memory_order_relaxed) <= engine->step_rank) {
        return false;
    }
    return engine->step_us <= 0.0 || (double)(quire_engine_now_us(engine) - engine->step_begin_us) <
                                         GIVE_UP_SHARE * engine->step_us;
}

void quire_engine_qos_interrupted(quire_engine *engine, uint32_t n_items, uint64_t step_us)
{
    bool is_in[QUIRE_CLASSES_MAX] = { false };

    for (uint32_t i = 0; i < n_items; i++) {
        const quire_request *r = engine->items[i].request;

        is_in[r->class_index] = is_in[r->class_index] || engine->items[i].n_rows > 0;
    }
    for (uint32_t i = 0; i < engine->opts.classes.n; i++) {
        engine->stats.classes[i].interrupted_total += is_in[i];
    }
    quire_schedule_interrupted(&engine->schedule, (double)step_us);
}

/* ---- after it ---- */

void quire_engine_qos_rows(quire_engine *engine, uint32_t n_items)
{
    for (uint32_t i = 0; i < n_items; i++) {
        const quire_schedule_item *item = &engine->items[i];
        quire_request *r = item->request;
        quire_class_stats *c = &engine->stats.classes[r->class_index];

        if (!item->is_decode) {
            c->prefill_rows_total += item->n_rows;
        } else if (item->n_rows > 0) {
            c->decode_rows_total++;
            r->n_left_out = 0;
        } else {
            c->left_out_total++;
            r->n_left_out++;
        }
    }
}

void quire_engine_qos_step(quire_engine *engine, const quire_cost_step *cost, uint64_t step_us)
{
    const quire_classes *classes = &engine->opts.classes;

    for (uint32_t i = 0; i < classes->n; i++) {
        const uint8_t rank = classes->items[i].rank;
        const quire_schedule_class *c = &engine->schedule.ranks[rank];
        const double promised_us = quire_schedule_promised_us(&engine->schedule, rank);
        quire_class_stats *s = &engine->stats.classes[i];

        s->steps_total += c->has_rows;
        s->turns_total += c->has_turn;
        s->late_steps_total += promised_us > 0.0 && (double)step_us > promised_us;
        quire_degrade_step(&engine->qos.degrade, i, promised_us, (double)step_us);
    }
    quire_schedule_done(&engine->schedule, (double)step_us);
    quire_cost_learn(&engine->stats.cost, cost, (double)step_us);
}

void quire_engine_qos_first(quire_engine *engine, const quire_request *r)
{
    const double seconds = (double)(r->first_us - r->submitted_us) * 1e-6;
    const double target_ms = engine->opts.classes.items[r->class_index].ttft_target_ms;

    quire_histogram_add(&engine->stats.classes[r->class_index].ttft, seconds);
    if (target_ms > 0.0) {
        quire_degrade_first(&engine->qos.degrade, r->class_index, seconds * 1e3 > target_ms);
    }
}

/* ---- now and then ---- */

void quire_engine_qos_tick(quire_engine *engine)
{
    const uint32_t cut =
        quire_degrade_tick(&engine->qos.degrade, quire_engine_now_us(engine), engine->n_running_of);

    if (cut != QUIRE_CLASSES_MAX) {
        engine->stats.classes[cut].cuts_total++;
        quire_engine_limit_apply(engine, cut);
    }
}
