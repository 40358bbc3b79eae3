/* qos.c - effects of classes on a step: time for lower classes, interruption, figures.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"

#include "base/check.h"

#define US_PER_MS     1000.0
#define EXPECT_US     30000000u /* a class with work in this time may get more at any moment */
#define GIVE_UP_SHARE 0.8       /* of the predicted step time */
#define TYPICAL_N     16.0      /* prompts in the running mean of their cost */

/* ---- before a step ---- */

void quire_loop_qos_prepare(quire_loop *loop)
{
    const quire_classes *classes = &loop->opts.classes;
    const uint64_t now_us = quire_loop_now_us(loop);
    double least_us = 0.0;

    for (uint32_t i = 0; i < loop->set.n_running; i++) {
        loop->step.seen_us[loop->set.running[i]->class_index] = now_us;
    }
    for (uint32_t rank = QUIRE_RANKS_MAX; rank-- > 0;) {
        const uint32_t index = quire_classes_of_rank(classes, rank);

        loop->step.schedule.ranks[rank].wait_us = least_us;
        if (index != QUIRE_CLASSES_MAX && loop->step.seen_us[index] != 0 &&
            now_us - loop->step.seen_us[index] < EXPECT_US) {
            const double us =
                quire_schedule_wait_us(&loop->figures.now.cost, loop->step.typical_us[index],
                                       classes->items[index].ttft_target_ms * US_PER_MS);

            least_us = least_us == 0.0 || us < least_us ? us : least_us;
        }
    }
}

void quire_loop_qos_admitted(quire_loop *loop, const quire_request *r)
{
    double *typical_us = &loop->step.typical_us[r->class_index];
    const double us = quire_cost_prefill_us(&loop->figures.now.cost, r->kv.n_computed, r->n_tokens,
                                            loop->opts.chunk_tokens);

    *typical_us += (us - *typical_us) * (*typical_us == 0.0 ? 1.0 : 1.0 / TYPICAL_N);
}

/* ---- while it is computed ---- */

/* Finish a nearly complete step: redoing it would cost its requests more than the newcomer loses by
 * waiting. */
bool quire_loop_qos_gives_up(void *ctx)
{
    const quire_loop *loop = ctx;

    if (atomic_load_explicit(&loop->inbox.urgent_rank, memory_order_relaxed) <= loop->step.rank) {
        return false;
    }
    return loop->step.us <= 0.0 ||
           (double)(quire_loop_now_us(loop) - loop->step.begin_us) < GIVE_UP_SHARE * loop->step.us;
}

void quire_loop_qos_interrupted(quire_loop *loop, uint32_t n_items, uint64_t step_us)
{
    bool is_in[QUIRE_CLASSES_MAX] = { false };

    for (uint32_t i = 0; i < n_items; i++) {
        const quire_request *r = loop->step.items[i].request;

        is_in[r->class_index] = is_in[r->class_index] || loop->step.items[i].n_rows > 0;
    }
    for (uint32_t i = 0; i < loop->opts.classes.n; i++) {
        loop->figures.now.classes[i].interrupted_total += is_in[i];
    }
    quire_schedule_interrupted(&loop->step.schedule, (double)step_us);
}

/* ---- after it ---- */

void quire_loop_qos_rows(quire_loop *loop, uint32_t n_items)
{
    for (uint32_t i = 0; i < n_items; i++) {
        const quire_schedule_item *item = &loop->step.items[i];
        quire_request *r = item->request;
        quire_class_stats *c = &loop->figures.now.classes[r->class_index];

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

void quire_loop_qos_step(quire_loop *loop, const quire_cost_step *cost, uint64_t step_us)
{
    const quire_classes *classes = &loop->opts.classes;

    for (uint32_t i = 0; i < classes->n; i++) {
        const uint8_t rank = classes->items[i].rank;
        const quire_schedule_class *c = &loop->step.schedule.ranks[rank];
        const double promised_us = quire_schedule_promised_us(&loop->step.schedule, rank);
        quire_class_stats *s = &loop->figures.now.classes[i];

        s->steps_total += c->has_rows;
        s->turns_total += c->has_turn;
        s->late_steps_total += promised_us > 0.0 && (double)step_us > promised_us;
        loop->step.told.promised_us[i] = promised_us;
    }
    loop->step.told.n_rows = cost->prefill_rows + cost->decode_rows;
    loop->step.told.us = (double)step_us;
    quire_schedule_done(&loop->step.schedule, (double)step_us);
    quire_cost_learn(&loop->figures.now.cost, cost, (double)step_us);
}

void quire_loop_qos_first(quire_loop *loop, const quire_request *r)
{
    quire_histogram_add(&loop->figures.now.classes[r->class_index].ttft,
                        (double)(r->first_us - r->submitted_us) * 1e-6);
    loop->events.first_token(loop->events.ctx, r);
}
