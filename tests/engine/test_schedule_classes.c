/* test_schedule_classes.c - rows of a step between classes, and simulated loads. No model.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/classes.h"
#include "engine/loop/schedule.h"
#include "seed.h"

#include <math.h>
#include <string.h>

#define COUNT(a)  ((uint32_t)(sizeof(a) / sizeof(a)[0]))
#define CHUNK     256u
#define EIGHTH    (CHUNK / 8)
#define ITEMS_MAX 64u
#define BATCH     0u
#define STANDARD  1u
#define REALTIME  2u
#define WEIGHTS   21.0

/* About the costs of a model of 135M parameters on two cores. */
static quire_cost cost_known(void)
{
    return (quire_cost){ .step_us = 9000.0,
                         .several_us = 40000.0,
                         .prefill_row_us = 900.0,
                         .decode_row_us = 900.0,
                         .depth_row_us = 0.2,
                         .n_steps = 1000 };
}

static quire_schedule schedule_default(void)
{
    quire_schedule s;
    quire_classes classes;

    quire_schedule_init(&s);
    quire_classes_default(&classes);
    for (uint32_t i = 0; i < classes.n; i++) {
        s.ranks[classes.items[i].rank].weight = classes.items[i].weight;
        s.ranks[classes.items[i].rank].stretch = classes.items[i].stretch;
    }
    return s;
}

static quire_schedule_item decode(uint64_t arrival, uint8_t rank)
{
    return (quire_schedule_item){
        .arrival = arrival, .n_left = 1, .depth = 100, .is_decode = true, .rank = rank
    };
}

static quire_schedule_item prefill(uint64_t arrival, uint8_t rank, uint32_t n_left)
{
    return (quire_schedule_item){
        .arrival = arrival, .n_left = n_left, .n_until = n_left, .rank = rank
    };
}

/* Rows of a class in a step. */
static uint32_t rows_of(const quire_schedule_item *items, uint32_t n, uint8_t rank)
{
    uint32_t n_rows = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_rows += items[i].rank == rank ? items[i].n_rows : 0;
    }
    return n_rows;
}

static double step_us(const quire_cost *cost, const quire_schedule_item *items, uint32_t n)
{
    quire_cost_step step = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        if (!items[i].is_decode) {
            quire_cost_add_prefill(&step, items[i].depth, items[i].n_rows);
        } else if (items[i].n_rows > 0) {
            quire_cost_add_decode(&step, items[i].depth);
        }
    }
    return quire_cost_step_us(cost, &step);
}

/* ---- one step ---- */

/* Prefill of a high class: the step is its own, however little it fills. */
static void test_prefill_of_a_high_class_is_alone(void **state)
{
    const quire_cost cost = cost_known();
    const quire_schedule_limits limits = { CHUNK, 512, &cost };

    (void)state;
    for (uint32_t n_left = 1; n_left < 1000; n_left += 99) {
        quire_schedule s = schedule_default();
        quire_schedule_item items[] = { prefill(1, BATCH, 900), decode(2, BATCH),
                                        decode(3, STANDARD), prefill(4, REALTIME, n_left),
                                        decode(5, REALTIME) };
        const uint32_t n_rows = quire_schedule_rows(&s, items, COUNT(items), &limits);

        assert_int_equal(n_rows, rows_of(items, COUNT(items), REALTIME));
        assert_int_equal(n_rows, n_left < CHUNK ? n_left + 1 : CHUNK);
    }
}

/* Before anything is known lower classes get their decode and a little prefill. */
static void test_nothing_known(void **state)
{
    const quire_schedule_limits limits = { CHUNK, 512, NULL };
    quire_schedule s = schedule_default();
    quire_schedule_item items[] = { decode(1, REALTIME), decode(2, BATCH), decode(3, BATCH),
                                    prefill(4, BATCH, 900) };

    (void)state;
    assert_int_equal(quire_schedule_rows(&s, items, COUNT(items), &limits), 3 + EIGHTH);
}

/* Lower decode beside a realtime request with credit: as many rows as may be added, requests left
 * out before come first. */
static void test_left_out_come_first(void **state)
{
    const quire_cost cost = cost_known();
    const quire_schedule_limits limits = { CHUNK, 512, &cost };
    quire_schedule s = schedule_default();
    quire_schedule_item items[41];
    uint32_t n_rows;

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        items[i] = decode(1 + i, BATCH);
        items[i].n_left_out = i / 20;
    }
    items[40] = decode(100, REALTIME);
    s.ranks[REALTIME].credit_us = 1e9;
    s.ranks[BATCH].wait_us = 65000.0; /* another request may come */
    n_rows = quire_schedule_rows(&s, items, COUNT(items), &limits);
    assert_in_range(n_rows, 22, 40);
    for (uint32_t i = 0; i < COUNT(items); i++) {
        assert_int_equal(items[i].n_rows, i < n_rows);
        assert_int_equal(items[i].rank, i == 0 ? REALTIME : BATCH);
        assert_int_equal(items[i].n_left_out, i > 0 && i <= 20);
    }
    assert_true(step_us(&cost, items, COUNT(items)) - step_us(&cost, items, 1) <= 65000.0);
    s.ranks[REALTIME].credit_us = 0.0;
    assert_int_equal(quire_schedule_rows(&s, items, COUNT(items), &limits), 1);
}

/* Prefill is cut to the delay that batch work may add to a step, and to a round number of rows, but
 * not below an eighth. */
static void test_prefill_is_cut(void **state)
{
    const quire_cost cost = cost_known();
    const quire_schedule_limits limits = { CHUNK, 512, &cost };
    uint32_t last = 0;

    (void)state;
    for (double wait_us = 10000.0; wait_us < 400000.0; wait_us += 1000.0) {
        quire_schedule s = schedule_default();
        quire_schedule_item items[] = { decode(9, REALTIME), decode(2, BATCH), decode(3, BATCH),
                                        prefill(4, BATCH, 900), prefill(5, BATCH, 900) };
        uint32_t n_rows;

        s.ranks[REALTIME].credit_us = 1e9;
        s.ranks[BATCH].wait_us = wait_us;
        n_rows = quire_schedule_rows(&s, items, COUNT(items), &limits);
        assert_true(n_rows >= EIGHTH + 2 && n_rows <= CHUNK && n_rows + 2 >= last);
        if (n_rows > EIGHTH + 3) {
            assert_int_equal(n_rows % 16, 0);
            assert_true(step_us(&cost, items, COUNT(items)) - step_us(&cost, items, 1) <= wait_us);
        }
        last = n_rows;
    }
    assert_int_equal(last, CHUNK);
}

/* A step is given up for a higher class than it is of; not when two classes share it, for credit or
 * because one has a turn. */
static void test_who_may_interrupt(void **state)
{
    const quire_cost cost = cost_known();
    const quire_schedule_limits limits = { CHUNK, 512, &cost };
    quire_schedule s = schedule_default();
    quire_schedule_item items[] = { decode(1, STANDARD), decode(2, BATCH) };

    (void)state;
    (void)quire_schedule_rows(&s, items, 2, &limits);
    assert_int_equal(quire_schedule_interruptible(&s), STANDARD);
    quire_schedule_interrupted(&s, 1000.0);
    assert_true(s.ranks[STANDARD].idle_us == 1000.0 && s.ranks[BATCH].idle_us == 1000.0);
    assert_true(s.ranks[STANDARD].credit_us == 0.0);
    s.ranks[STANDARD].credit_us = 1e9;
    (void)quire_schedule_rows(&s, items, 2, &limits);
    assert_int_equal(quire_schedule_interruptible(&s), QUIRE_RANKS_MAX);
    s = schedule_default();
    s.ranks[STANDARD].idle_us = 1e9;
    (void)quire_schedule_rows(&s, items, 2, &limits);
    assert_int_equal(quire_schedule_interruptible(&s), QUIRE_RANKS_MAX);
}

/* ---- many steps ---- */

typedef struct run {
    double us;         /* of computing */
    uint32_t n_steps;  /* with rows of realtime */
    double us_high;    /* of these */
    uint64_t rows[3];  /* by rank */
    double idle_us[3]; /* longest time without a row, while there was work */
    double since_us[3];
    uint32_t n_gap; /* largest number of steps that a request in decode was left out */
} run;

/* Steps with the same requests over and over. Their cost is the predicted one times noise. */
static run steps(quire_schedule *s, quire_schedule_item *items, uint32_t n, uint32_t n_steps,
                 quire_rng *rng)
{
    const quire_cost cost = cost_known();
    const quire_schedule_limits limits = { CHUNK, 512, &cost };
    run r = { 0 };

    for (uint32_t step = 0; step < n_steps; step++) {
        double us;

        (void)quire_schedule_rows(s, items, n, &limits);
        us = step_us(&cost, items, n) * (rng != NULL ? 0.7 + 0.6 * quire_rng_unit(rng) : 1.0);
        quire_schedule_done(s, us);
        r.us += us;
        for (uint8_t rank = 0; rank < 3; rank++) {
            const uint32_t n_rows = rows_of(items, n, rank);

            r.rows[rank] += n_rows;
            r.since_us[rank] = n_rows > 0 ? 0.0 : r.since_us[rank] + us;
            r.idle_us[rank] = fmax(r.idle_us[rank], r.since_us[rank]);
        }
        if (rows_of(items, n, REALTIME) > 0) {
            r.n_steps++;
            r.us_high += us;
        }
        for (uint32_t i = 0; i < n; i++) {
            items[i].n_left_out = items[i].n_rows > 0 ? 0 : items[i].n_left_out + 1;
            r.n_gap =
                items[i].is_decode && items[i].n_left_out > r.n_gap ? items[i].n_left_out : r.n_gap;
        }
    }
    return r;
}

/* The mean time between tokens of a high class is the promised one, and the others get the rest of
 * the time. */
static void test_stretch(void **state)
{
    const quire_cost cost = cost_known();
    quire_rng rng = test_rng(61);

    (void)state;
    for (uint32_t n_high = 1; n_high <= 4; n_high++) {
        for (double stretch = 1.1; stretch < 3.0; stretch += 0.3) {
            quire_schedule s = schedule_default();
            quire_schedule_item items[12];
            double alone;
            run r;

            for (uint32_t i = 0; i < n_high; i++) {
                items[i] = decode(i + 1, REALTIME);
            }
            (void)quire_schedule_rows(&s, items, n_high,
                                      &(quire_schedule_limits){ CHUNK, 512, &cost });
            alone = step_us(&cost, items, n_high);
            for (uint32_t i = n_high; i < COUNT(items); i++) {
                items[i] = i < 9 ? decode(100 + i, BATCH) : prefill(100 + i, BATCH, 5000);
            }
            s = schedule_default();
            s.ranks[REALTIME].stretch = stretch;
            s.ranks[BATCH].weight = 1;
            s.ranks[REALTIME].weight = 1000; /* no turns */
            r = steps(&s, items, COUNT(items), 20000, &rng);
            assert_int_equal(r.n_steps, 20000);
            assert_true(r.us_high / r.n_steps <= alone * stretch * 1.03);
            assert_true(r.us_high / r.n_steps >= alone * stretch * 0.93);
            assert_true(r.rows[BATCH] > 0);
        }
    }
}

/* Likewise with a target, which need not leave anything: then only turns come. */
static void test_target(void **state)
{
    quire_rng rng = test_rng(62);

    (void)state;
    for (double target_us = 5000.0; target_us < 100000.0; target_us += 5000.0) {
        quire_schedule s = schedule_default();
        quire_schedule_item items[10];
        run r;

        items[0] = decode(1, REALTIME);
        for (uint32_t i = 1; i < COUNT(items); i++) {
            items[i] = decode(100 + i, BATCH);
        }
        s.ranks[REALTIME].tpot_us = target_us;
        s.ranks[REALTIME].weight = 1000;
        r = steps(&s, items, COUNT(items), 12000, &rng);
        if (target_us > 12000.0) {
            assert_true(r.us_high / r.n_steps <= target_us);
            assert_true(r.rows[BATCH] > 100);
        } else {
            assert_true(r.rows[BATCH] < 100 && r.rows[BATCH] > 0);
        }
    }
}

/* Under any load of higher classes, each class gets rows within its time, and each request in
 * decode within as many turns as its class has requests. */
static void test_nobody_starves(void **state)
{
    const double weights[3] = { 1.0, 4.0, 16.0 };
    const double longest_us = 9000.0 + 40000.0 + 900.0 * (CHUNK + 24) + 0.2 * 300000.0;
    quire_rng rng = test_rng(63);

    (void)state;
    for (int round = 0; round < 300; round++) {
        quire_schedule s = schedule_default();
        quire_schedule_item items[24];
        bool has_prefill[3] = { false }, has_decode[3] = { false };
        uint32_t n = 3 + quire_rng_below(&rng, COUNT(items) - 3);
        run r;

        for (uint32_t i = 0; i < n; i++) {
            const uint8_t rank = (uint8_t)(i < 3 ? i : quire_rng_below(&rng, 3));
            const bool is_decode = quire_rng_below(&rng, 2) == 0;

            items[i] = is_decode ? decode(i + 1, rank) : prefill(i + 1, rank, 1000000);
            has_prefill[rank] |= !is_decode;
            has_decode[rank] |= is_decode;
        }
        s.ranks[BATCH].wait_us = s.ranks[STANDARD].wait_us =
            quire_rng_below(&rng, 2) * (20000.0 + quire_rng_unit(&rng) * 200000.0);
        r = steps(&s, items, n, 2000, &rng);
        for (uint8_t rank = 0; rank < 3; rank++) {
            assert_true(r.rows[rank] > 0);
            assert_true(r.idle_us[rank] <=
                        fmax(QUIRE_TURN_US, s.ranks[rank].wait_us) * WEIGHTS / weights[rank] +
                            2.0 * 1.3 * longest_us);
        }
        assert_true(r.n_gap < 2000);
    }
}

/* Random mixes: the highest class gets the same rows as without the others, except for rows of
 * classes with a turn. No step is too large or empty. */
static void test_invariants(void **state)
{
    const quire_cost cost = cost_known();
    quire_rng rng = test_rng(64);

    (void)state;
    for (int round = 0; round < 20000; round++) {
        const uint32_t n = 1 + quire_rng_below(&rng, ITEMS_MAX);
        const quire_schedule_limits limits = {
            .chunk_tokens = 1 + quire_rng_below(&rng, 300),
            .rows_max = n + quire_rng_below(&rng, 600),
            .cost = quire_rng_below(&rng, 4) > 0 ? &cost : NULL,
        };
        quire_schedule_item items[ITEMS_MAX], alone[ITEMS_MAX];
        quire_schedule s = schedule_default(), one;
        uint32_t n_top = 0, total, sum = 0;
        uint8_t top = 0;
        bool has_turns = false;

        quire_schedule_init(&one);
        for (uint32_t i = 0; i < n; i++) {
            const uint8_t rank = (uint8_t)quire_rng_below(&rng, 3);

            items[i] = quire_rng_below(&rng, 2) == 0
                           ? decode(i + 1, rank)
                           : prefill(i + 1, rank, 1 + quire_rng_below(&rng, 400));
            items[i].n_rows = 77;
            top = rank > top ? rank : top;
        }
        for (uint32_t i = 0; i < n; i++) {
            alone[n_top] = items[i];
            n_top += items[i].rank == top;
        }
        for (uint8_t rank = 0; rank < top; rank++) {
            s.ranks[rank].idle_us = quire_rng_below(&rng, 2) * 1e9;
            s.ranks[rank].wait_us = quire_rng_below(&rng, 2) * 1e5 * quire_rng_unit(&rng);
            has_turns |= s.ranks[rank].idle_us > 0.0;
        }
        total = quire_schedule_rows(&s, items, n, &limits);
        (void)quire_schedule_rows(&one, alone, n_top, &limits);
        assert_true(total > 0 && total <= limits.rows_max);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(items[i].n_rows <= items[i].n_left);
            sum += items[i].n_rows;
            assert_true(i == 0 || items[i - 1].is_decode >= items[i].is_decode);
        }
        assert_int_equal(sum, total);
        if (!has_turns) {
            assert_int_equal(rows_of(items, n, top), rows_of(alone, n_top, top));
        }
        for (uint8_t rank = 0; rank < top; rank++) {
            if (s.ranks[rank].has_turn) {
                assert_true(rows_of(items, n, rank) > 0);
            }
        }
    }
}

/* ---- a load ---- */

#define SLOTS 64u

typedef struct load {
    const quire_cost *cost;
    bool has_classes;
    double gap_us;               /* between realtime requests; 0 = none */
    uint32_t n_prompt, n_answer; /* of realtime */
    uint32_t n_high;             /* how many */
    bool has_batch;              /* as much as there are places */
} load;

typedef struct outcome {
    double ttft_us; /* the worst */
    double tpot_us;
    double rows_per_s;
    uint64_t low_rows;
} outcome;

typedef struct sim_request {
    double sent_us, first_us;
    uint32_t n_prompt, n_left, n_answered, n_answer, n_left_out;
    bool is_high;
} sim_request;

static sim_request sim_batch(double now_us)
{
    return (sim_request){ .sent_us = now_us, .n_prompt = 512, .n_left = 512, .n_answer = 64 };
}

/* Advance a request by its rows of a step that ends now. Returns whether that was its end. */
static bool sim_advance(sim_request *r, const quire_schedule_item *item, double now_us,
                        outcome *out)
{
    r->n_left_out = item->n_rows > 0 ? 0 : r->n_left_out + 1;
    if (item->n_rows == 0 || (!item->is_decode && (r->n_left -= item->n_rows) > 0)) {
        return false;
    }
    r->first_us = item->is_decode ? r->first_us : now_us;
    if (++r->n_answered < r->n_answer) {
        return false;
    }
    if (r->is_high) {
        out->ttft_us = fmax(out->ttft_us, r->first_us - r->sent_us);
        out->tpot_us = fmax(out->tpot_us, (now_us - r->first_us) / (r->n_answer - 1));
    }
    return true;
}

typedef struct simulation {
    const load *l;
    quire_schedule schedule;
    sim_request requests[SLOTS];
    quire_schedule_item items[SLOTS];
    uint32_t n;
    uint32_t n_sent; /* of realtime */
    double now_us;
    double busy_us; /* while batch had all there was */
    uint64_t rows;
} simulation;

/* Due realtime requests take places of batch requests; batch requests take free places. */
static void sim_arrive(simulation *sim)
{
    const load *l = sim->l;

    for (; sim->n_sent < l->n_high && sim->now_us >= sim->n_sent * l->gap_us; sim->n_sent++) {
        sim->n -= sim->n == SLOTS;
        sim->requests[sim->n++] = (sim_request){
            .sent_us = sim->n_sent * l->gap_us,
            .n_prompt = l->n_prompt,
            .n_left = l->n_prompt,
            .n_answer = l->n_answer,
            .is_high = true,
        };
    }
    while (l->has_batch && sim->n < SLOTS && sim->n_sent < l->n_high) {
        sim->requests[sim->n++] = sim_batch(sim->now_us);
    }
}

/* Returns the number of realtime requests. */
static uint32_t sim_items(simulation *sim)
{
    uint32_t n_high = 0;

    for (uint32_t i = 0; i < sim->n; i++) {
        const sim_request *r = &sim->requests[i];

        sim->items[i] = (quire_schedule_item){
            .request = &sim->requests[i],
            .arrival = (uint64_t)r->sent_us * SLOTS + i,
            .depth = r->n_prompt - r->n_left + r->n_answered,
            .n_left = r->n_left > 0 ? r->n_left : 1,
            .n_until = r->n_left,
            .n_left_out = r->n_left_out,
            .rank = (uint8_t)(!sim->l->has_classes ? STANDARD
                              : r->is_high         ? REALTIME
                                                   : BATCH),
            .is_decode = r->n_left == 0,
        };
        n_high += r->is_high;
    }
    return n_high;
}

/* One step; it is given up when a realtime request comes before most of it is done. */
static void sim_step(simulation *sim, uint32_t n_high, outcome *out)
{
    const load *l = sim->l;
    const quire_schedule_limits limits = { CHUNK, CHUNK + SLOTS, l->cost };
    const uint32_t n_rows = quire_schedule_rows(&sim->schedule, sim->items, sim->n, &limits);
    const bool is_measured = l->has_batch && sim->n_sent < l->n_high;
    double us = step_us(l->cost, sim->items, sim->n);
    const bool is_given_up = l->has_classes && n_high == 0 && sim->n_sent < l->n_high &&
                             quire_schedule_interruptible(&sim->schedule) < REALTIME &&
                             sim->n_sent * l->gap_us < sim->now_us + us * 0.8;
    uint32_t n_kept = 0;

    if (is_given_up) {
        us = sim->n_sent * l->gap_us + 2000.0 - sim->now_us;
        quire_schedule_interrupted(&sim->schedule, us);
    } else {
        quire_schedule_done(&sim->schedule, us);
    }
    sim->now_us += us;
    sim->busy_us += is_measured ? us : 0.0;
    sim->rows += is_measured && !is_given_up ? n_rows : 0;
    for (uint32_t i = 0; i < sim->n && !is_given_up; i++) {
        sim_request *r = sim->items[i].request;

        out->low_rows += r->is_high ? 0 : sim->items[i].n_rows;
        if (sim_advance(r, &sim->items[i], sim->now_us, out)) {
            r->n_answer = 0; /* gone */
        }
    }
    for (uint32_t i = 0; i < sim->n; i++) {
        if (sim->requests[i].n_answer > 0) {
            sim->requests[n_kept++] = sim->requests[i];
        }
    }
    sim->n = n_kept;
}

/* Realtime at even distances, beside batch that fills all places if there is any. */
static outcome simulate(const load *l)
{
    simulation sim = { .l = l, .schedule = schedule_default() };
    outcome out = { 0 };
    quire_cost_step prompt = { 0 };
    bool is_over = false;

    quire_cost_add_prefill(&prompt, 0, l->n_prompt);
    sim.schedule.ranks[BATCH].wait_us =
        quire_schedule_wait_us(l->cost, quire_cost_step_us(l->cost, &prompt), 0.0);
    while (!is_over) {
        uint32_t n_high;

        sim_arrive(&sim);
        n_high = sim_items(&sim);
        is_over = sim.n_sent == l->n_high && n_high == 0; /* only batch is left */
        if (sim.n == 0) {
            sim.now_us = sim.n_sent * l->gap_us;
        } else if (!is_over) {
            sim_step(&sim, n_high, &out);
        }
    }
    out.rows_per_s = sim.busy_us > 0.0 ? (double)sim.rows / sim.busy_us * 1e6 : 0.0;
    return out;
}

/* A simulation of the bench of classes: realtime requests at a tenth of the capacity beside as much
 * batch work as the machine can take. */
static void test_load(void **state)
{
    /* Machines: factors on the time of a step, and on the cost of further rows. */
    const double machines[][2] = {
        { 0.3, 1.0 }, { 1.0, 1.0 }, { 4.0, 1.0 }, { 1.0, 0.1 }, { 1.0, 0.0 }
    };

    (void)state;
    for (uint32_t i = 0; i < COUNT(machines); i++) {
        quire_cost cost = cost_known();
        load l = { .cost = &cost, .n_prompt = 256, .n_answer = 32, .n_high = 1, .has_batch = true };
        outcome one, alone, classes;

        cost.step_us *= machines[i][0];
        cost.several_us *= machines[i][0] * machines[i][1];
        cost.prefill_row_us *= machines[i][0];
        cost.decode_row_us *= machines[i][0];
        cost.depth_row_us *= machines[i][0];
        l.gap_us = 100e6;
        l.n_high = 3;
        one = simulate(&l);
        l.gap_us = (l.n_prompt + l.n_answer) / (0.1 * one.rows_per_s) * 1e6;
        l.n_high = 100;
        one = simulate(&l);
        l.has_classes = true;
        classes = simulate(&l);
        l.has_batch = false;
        alone = simulate(&l);
        assert_true(classes.low_rows > 0);
        assert_true(classes.ttft_us <= 1.2 * alone.ttft_us);
        assert_true(classes.tpot_us <= 1.15 * alone.tpot_us);
        assert_true(classes.rows_per_s >= 0.85 * one.rows_per_s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefill_of_a_high_class_is_alone),
        cmocka_unit_test(test_nothing_known),
        cmocka_unit_test(test_left_out_come_first),
        cmocka_unit_test(test_prefill_is_cut),
        cmocka_unit_test(test_who_may_interrupt),
        cmocka_unit_test(test_stretch),
        cmocka_unit_test(test_target),
        cmocka_unit_test(test_nobody_starves),
        cmocka_unit_test(test_invariants),
        cmocka_unit_test(test_load),
    };

    return cmocka_run_group_tests_name("schedule_classes", tests, NULL, NULL);
}
