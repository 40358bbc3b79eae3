/* test_evict_predict.c - the default policy and its parts: the model, the sample, the bag; and the
 * policy's hits in trees that are too small for the workload.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_bag.h"
#include "core/evict/reuse_sample.h"
#include "prefix_support.h"
#include "seed.h"

#include <math.h>
#include <string.h>

#define PT PAGE_TOKENS

/* ---- the model ---- */

static quire_reuse_traits traits_of(uint8_t turn)
{
    return (quire_reuse_traits){ .turn = turn, .fresh = 12, .length = 16, .tip = 1, .texts = 1 };
}

/* A life of that age ends. */
static void live(quire_reuse_model *model, const quire_reuse_class *class, uint32_t age,
                 bool is_use)
{
    uint32_t last = quire_reuse_bin_of(age);

    for (uint32_t b = 0; b < last; b++) {
        quire_reuse_learn(model, class, (quire_reuse_part){ .bin = b, .fraction = 1, .weight = 1 });
    }
    quire_reuse_learn(
        model, class,
        (quire_reuse_part){ .bin = last, .fraction = 0.5f, .weight = 1, .is_use = is_use });
}

static void refresh_all(quire_reuse_model *model, uint64_t now)
{
    do {
        quire_reuse_refresh(model, now, 100);
    } while (model->next_class != 0);
}

static quire_reuse_model *model_make(void)
{
    quire_reuse_model *model = test_malloc(sizeof(*model));

    quire_reuse_model_init(model);
    return model;
}

/* An untrained model evicts the older node first, like LRU, for every class. */
static void test_model_knows_nothing(void **state)
{
    quire_reuse_model *model = model_make();

    (void)state;
    for (uint32_t id = 0; id < QUIRE_REUSE_CLASSES; id++) {
        for (uint32_t age = 1; age < 1u << 26; age = age * 5 / 4 + 1) {
            assert_true(quire_reuse_index(model, id, age) >
                        quire_reuse_index(model, id, age * 5 / 4 + 1));
            assert_true(quire_reuse_index(model, id, age) == quire_reuse_index(model, 0, age));
        }
    }
    test_free(model);
}

static void test_half_octaves(void **state)
{
    static const uint8_t want[] = { 0, 1, 3, 4, 5, 5, 6, 6, 7 };

    (void)state;
    for (uint32_t n = 0; n < sizeof(want); n++) {
        assert_int_equal(quire_reuse_half_octaves(n, 63), want[n]);
    }
    assert_int_equal(quire_reuse_half_octaves(UINT64_MAX, 63), 63);
    assert_int_equal(quire_reuse_half_octaves(8, 5), 5);
    for (uint32_t b = 5; b < QUIRE_REUSE_AGES - 1; b++) {
        uint32_t begin = (uint32_t)(exp2(0.5 * (b - 1)) + 0.999);

        assert_int_equal(quire_reuse_bin_of(begin), b);
        assert_int_equal(quire_reuse_bin_of(begin - 1), b - 1);
    }
    assert_int_equal(quire_reuse_bin_of(UINT32_MAX), QUIRE_REUSE_AGES - 1);
}

/* Half of the lives return after 100 seconds, the others never: the index rises until then, and is
 * small afterwards. */
static void test_model_learns_a_pause(void **state)
{
    quire_reuse_model *model = model_make();
    quire_reuse_traits traits = traits_of(1);
    quire_reuse_class class = quire_reuse_class_of(model, &traits);
    float before;

    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        live(model, &class, i % 2 == 0 ? 100000 + i * 10 : 3000000, i % 2 == 0);
    }
    refresh_all(model, 0);
    before = quire_reuse_index(model, class.id, 2000);
    for (uint32_t age = 3000; age < 90000; age += 1000) {
        assert_true(quire_reuse_index(model, class.id, age) > 0.99f * before);
        before = quire_reuse_index(model, class.id, age);
    }
    assert_true(before > 1.5f * quire_reuse_index(model, class.id, 2000));
    assert_true(quire_reuse_index(model, class.id, 300000) < 0.1f * before);
    test_free(model);
}

/* Nodes that return more often get a class with a larger index. A useless feature changes no
 * score. */
static void test_model_learns_who_returns(void **state)
{
    quire_reuse_model *model = model_make();
    quire_rng rng = test_rng(1);
    quire_reuse_class young;
    quire_reuse_class old;

    (void)state;
    for (uint32_t i = 0; i < 3000; i++) {
        quire_reuse_traits traits = traits_of(i % 2 == 0 ? 1 : 6);
        quire_reuse_class class;

        traits.length = (uint8_t)(10 + quire_rng_below(&rng, 2));
        class = quire_reuse_class_of(model, &traits);
        live(model, &class, 50000 + quire_rng_below(&rng, 50000),
             quire_rng_below(&rng, 100) < (i % 2 == 0 ? 10u : 80u));
        if (i % 10 == 0) {
            quire_reuse_refresh(model, 0, 100);
        }
    }
    refresh_all(model, 0);
    young = quire_reuse_class_of(
        model, &(quire_reuse_traits){ .turn = 1, .fresh = 12, .length = 10, .tip = 1, .texts = 1 });
    old = quire_reuse_class_of(
        model, &(quire_reuse_traits){ .turn = 6, .fresh = 12, .length = 11, .tip = 1, .texts = 1 });
    assert_true(old.id > young.id);
    assert_true(quire_reuse_index(model, old.id, 0) > 3 * quire_reuse_index(model, young.id, 0));
    assert_true(fabsf(model->weights[2][10].mean - model->weights[2][11].mean) < 0.25f);
    test_free(model);
}

/* After the workload changes, the model forgets the old one. */
static void test_model_forgets(void **state)
{
    quire_reuse_model *model = model_make();
    quire_reuse_traits traits = traits_of(1);
    quire_reuse_class class = quire_reuse_class_of(model, &traits);
    float before;

    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        live(model, &class, 1000, true);
    }
    refresh_all(model, 0);
    before = quire_reuse_index(model, class.id, 500);
    for (uint32_t i = 0; i < 20000; i++) {
        if (i % 20 == 0) {
            live(model, &class, 1000000, false);
        }
        quire_reuse_refresh(model, 0, 100);
    }
    assert_true(quire_reuse_index(model, class.id, 500) < 0.1f * before);
    test_free(model);
}

/* ---- the sample ---- */

static quire_reuse_sample *sample_make(void)
{
    quire_reuse_sample *sample = test_malloc(sizeof(*sample));

    quire_reuse_sample_init(sample, 7);
    return sample;
}

static double events_in(const quire_reuse_model *model, uint32_t class_id, double *exposed)
{
    double events = 0;

    *exposed = 0;
    for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++) {
        events += model->cells[class_id][b].n_events;
        *exposed += model->cells[class_id][b].n_exposed;
    }
    return events;
}

static void test_sample_handles(void **state)
{
    quire_reuse_model *model = model_make();
    quire_reuse_sample *sample = sample_make();
    quire_reuse_traits traits = traits_of(1);
    quire_reuse_class class = quire_reuse_class_of(model, &traits);
    uint32_t first = quire_reuse_follow(sample, model, &class, 10);
    uint32_t second = quire_reuse_follow(sample, model, &class, 10);
    double exposed;

    (void)state;
    assert_int_not_equal(first, second);
    quire_reuse_end(sample, model, 0, 20, true); /* handle 0 names nothing */
    quire_reuse_end(sample, model, first, 20, true);
    quire_reuse_end(sample, model, first, 20, true); /* ended */
    assert_true(events_in(model, class.id, &exposed) == 1.0);
    assert_int_not_equal(quire_reuse_follow(sample, model, &class, 20), first);
    quire_reuse_end(sample, model, first, 30, true); /* another life has this slot */
    assert_true(events_in(model, class.id, &exposed) == 1.0);
    quire_reuse_end(sample, model, second, 30, false);
    assert_true(events_in(model, class.id, &exposed) == 1.0);
    test_free(sample);
    test_free(model);
}

/* More lives than the sample can hold. Each is used again with the same chance in every half octave
 * of its age, from the second to the 26th. The sample's ratio of uses to exposure must equal that
 * chance, even in bins where most lives were dropped. */
static void test_sample_is_unbiased(void **state)
{
    enum {
        LIVES = 60000,
        DAYS = 16384
    };
    quire_reuse_model *model = model_make();
    quire_reuse_sample *sample = sample_make();
    quire_rng rng = test_rng(2);
    quire_reuse_traits traits = traits_of(1);
    quire_reuse_class class = quire_reuse_class_of(model, &traits);
    uint32_t *handles = test_malloc((LIVES + 1) * sizeof(*handles));
    uint32_t *next = test_malloc((LIVES + 1) * sizeof(*next));
    uint32_t *days = test_malloc(DAYS * sizeof(*days)); /* the lives used again on each day, from
                                                           1 */

    (void)state;
    memset(days, 0, DAYS * sizeof(*days));
    for (uint32_t i = 1; i <= LIVES; i++) {
        uint32_t bin = 2;

        quire_reuse_advance(sample, model, i);
        for (uint32_t k = days[i % DAYS]; k != 0; k = next[k]) {
            quire_reuse_end(sample, model, handles[k], i, true);
        }
        days[i % DAYS] = 0;
        handles[i] = quire_reuse_follow(sample, model, &class, i);
        while (bin < 26 && quire_rng_unit(&rng) >= 0.1) {
            bin++;
        }
        if (bin < 26) {
            float width = model->starts[bin + 1] - model->starts[bin];
            float age = model->starts[bin] + width * (float)quire_rng_unit(&rng);
            uint32_t *day = &days[(i + (uint32_t)ceilf(age)) % DAYS];

            next[i] = *day;
            *day = i;
        }
    }
    for (uint32_t b = 10; b < 26; b++) {
        const quire_reuse_cell *cell = &model->cells[class.id][b];

        assert_true(cell->n_events / cell->n_exposed > 0.08);
        assert_true(cell->n_events / cell->n_exposed < 0.13);
    }
    assert_true(model->cells[class.id][28].n_events == 0);
    test_free(days);
    test_free(next);
    test_free(handles);
    test_free(sample);
    test_free(model);
}

/* ---- the bag ---- */

static void test_bag(void **state)
{
    enum {
        NODES = 2000
    };
    quire_bag bag = { 0 };
    quire_rng rng = test_rng(3);
    uint32_t slots[NODES + 1] = { 0 }; /* from 1; 0 = outside */
    uint32_t n = 0;

    (void)state;
    for (uint32_t step = 0; step < 50000; step++) {
        uint32_t node = 1 + quire_rng_below(&rng, NODES);

        if (slots[node] == 0) {
            quire_bag_item item = { .node = node, .used = step };
            uint32_t slot;

            assert_int_equal(quire_bag_add(&bag, quire_allocator_default(), item, &slot), QUIRE_OK);
            slots[node] = slot + 1;
            quire_bag_remember(&bag, item, (float)(node % 100));
            quire_bag_remember(&bag, item, (float)(node % 100)); /* once */
            n++;
        } else {
            uint32_t slot = slots[node] - 1;
            uint32_t moved;

            assert_int_equal(quire_bag_at(&bag, slot)->node, node);
            moved = quire_bag_remove(&bag, slot);
            slots[node] = 0;
            if (moved != 0) {
                slots[moved] = slot + 1;
            }
            n--;
        }
        assert_int_equal(bag.n, n);
        for (uint32_t i = 0; i < bag.n_drawn; i++) {
            assert_int_not_equal(slots[bag.drawn[i].item.node], 0);
            assert_true(i == 0 || bag.drawn[i - 1].index <= bag.drawn[i].index);
        }
    }
    assert_true(n > NODES / 4 && bag.n_drawn > 0);
    quire_bag_fini(&bag, quire_allocator_default());
}

/* ---- the policy ---- */

typedef struct scene {
    test_prefix p;
    uint64_t query_tokens;
    uint64_t hit_tokens;
} scene;

static void scene_create(scene *s, uint32_t n_pages, quire_evict_policy policy)
{
    quire_prefix_opts opts = QUIRE_PREFIX_OPTS_INIT;

    memset(s, 0, sizeof(*s));
    opts.policy = policy;
    opts.seed = 7;
    test_prefix_create(&s->p, n_pages, &opts);
}

/* Request text number i, of n pages, after_us later. */
static void ask(scene *s, uint32_t i, uint32_t n_pages, uint64_t after_us)
{
    int32_t text[8 * PT];

    assert_true(n_pages <= 8);
    s->p.now_us += after_us;
    test_text(text, n_pages * PT, (int32_t)(i * 10000));
    s->hit_tokens += test_run_whole(&s->p, text, n_pages * PT).n_tokens;
    s->query_tokens += n_pages * PT;
}

static double hit_rate(const scene *s)
{
    return (double)s->hit_tokens / (double)s->query_tokens;
}

/* A loop over 1.5 times the capacity: LRU never hits; keeping a part of the loop hits two in
 * three. */
static double run_loop(quire_evict_policy policy)
{
    scene s;

    scene_create(&s, 40, policy);
    for (uint32_t i = 0; i < 3000; i++) {
        ask(&s, i % 15, 4, 100000);
    }
    quire_prefix_validate(s.p.tree);
    test_prefix_destroy(&s.p);
    return hit_rate(&s);
}

static void test_loop(void **state)
{
    (void)state;
    assert_true(run_loop(QUIRE_EVICT_LRU) == 0);
    assert_true(run_loop(QUIRE_EVICT_DEFAULT) > 0.4);
}

/* Popular texts among one-time texts: one-time texts do not evict the popular ones. */
static double run_pollution(quire_evict_policy policy)
{
    quire_rng rng = test_rng(4);
    scene s;

    scene_create(&s, 40, policy);
    for (uint32_t i = 0; i < 4000; i++) {
        if (i % 4 == 0) {
            ask(&s, quire_rng_below(&rng, 8), 4, 100000);
        } else {
            ask(&s, 100 + i, 4, 100000);
        }
    }
    test_prefix_destroy(&s.p);
    return hit_rate(&s);
}

static void test_pollution(void **state)
{
    double lru = run_pollution(QUIRE_EVICT_LRU);
    double own = run_pollution(QUIRE_EVICT_DEFAULT);

    (void)state;
    assert_true(own > 1.5 * lru);
    assert_true(own > 0.18); /* of the quarter that can hit */
}

/* Conversations whose next turns come soon: the best case of LRU. */
static double run_recent(quire_evict_policy policy)
{
    quire_rng rng = test_rng(5);
    scene s;

    scene_create(&s, 60, policy);
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t window = i / 8;

        ask(&s, window + quire_rng_below(&rng, 6), 1 + i % 6, 1000000);
    }
    test_prefix_destroy(&s.p);
    return hit_rate(&s);
}

static void test_recent(void **state)
{
    (void)state;
    assert_true(run_recent(QUIRE_EVICT_DEFAULT) > 0.98 * run_recent(QUIRE_EVICT_LRU));
}

/* The same seed and requests give the same hits, also when all requests come at the same time. */
static void test_deterministic(void **state)
{
    (void)state;
    for (uint64_t after_us = 0; after_us <= 1000; after_us += 1000) {
        uint64_t hits[2];

        for (uint32_t i = 0; i < 2; i++) {
            quire_rng rng = test_rng(6);
            scene s;

            scene_create(&s, 30, QUIRE_EVICT_DEFAULT);
            for (uint32_t k = 0; k < 1500; k++) {
                ask(&s, quire_rng_below(&rng, 30), 1 + k % 5, after_us);
            }
            hits[i] = s.hit_tokens;
            test_prefix_destroy(&s.p);
        }
        assert_int_equal(hits[0], hits[1]);
        assert_true(hits[0] > 0);
    }
}

/* A candidate without memory in the bag is evicted like the others. */
static void test_no_memory(void **state)
{
    quire_prefix_acquire_opts opts = { .tokens_max = 2 * PT };
    quire_prefix_key key = test_key();
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;
    int32_t text[2 * PT];
    scene s;

    (void)state;
    scene_create(&s, 64, QUIRE_EVICT_DEFAULT);
    test_text(text, 2 * PT, 0);
    seq = test_open(s.p.cache);
    assert_int_equal(quire_prefix_acquire(s.p.tree, &key, seq, text, 2 * PT, &opts, &match, &ref),
                     QUIRE_OK);
    test_append(s.p.cache, seq, 2 * PT);
    assert_int_equal(quire_prefix_publish(s.p.tree, ref, text, 2 * PT, 1000), QUIRE_OK);
    s.p.t.memory.fail_at = s.p.t.memory.n_calls;
    assert_int_equal(quire_prefix_release(s.p.tree, ref, 1000), QUIRE_OK);
    assert_true(s.p.t.memory.has_failed);
    assert_int_equal(quire_seq_close(s.p.cache, seq), QUIRE_OK);
    ask(&s, 1, 2, 2000);
    quire_prefix_validate(s.p.tree);
    assert_int_equal(quire_prefix_evict(s.p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX),
                     4 * PAGE_BYTES);
    quire_prefix_validate(s.p.tree);
    test_prefix_destroy(&s.p);
}

/* The turn of the last request, which the policy stores behind the mean gap. */
static uint8_t turn_noted(const scene *s)
{
    return ((const uint8_t *)s->p.tree->evict.request.words)[sizeof(float)];
}

/* A conversation continues behind its last text or, when the answer is left out, behind that text's
 * prompt; also when the whole text was evicted. A text behind the middle of a prompt begins another
 * conversation. */
static void test_turns(void **state)
{
    int32_t text[8 * PT];
    test_run run;
    scene s;

    (void)state;
    scene_create(&s, 64, QUIRE_EVICT_DEFAULT);
    test_text(text, 8 * PT, 0);
    run = test_run_start(&s.p, text, 3 * PT);
    assert_int_equal(turn_noted(&s), 1);
    test_run_extend(&s.p, &run, text, 8 * PT);
    test_run_end(&s.p, &run);
    test_text(text + 3 * PT, 2 * PT, 50000);
    s.p.now_us += 1000000;
    (void)test_run_whole(&s.p, text, 5 * PT);
    assert_int_equal(turn_noted(&s), 2);
    assert_int_equal(quire_prefix_evict(s.p.tree, QUIRE_REGION_DYNAMIC, UINT64_MAX),
                     10 * PAGE_BYTES);
    test_text(text + 5 * PT, PT, 60000);
    s.p.now_us += 1000000;
    (void)test_run_whole(&s.p, text, 6 * PT);
    assert_int_equal(turn_noted(&s), 3);
    test_text(text + 2 * PT, PT, 70000);
    (void)test_run_whole(&s.p, text, 3 * PT);
    assert_int_equal(turn_noted(&s), 1);
    test_prefix_destroy(&s.p);
}

/* A pin of a text is held and dropped. */
static void pin_once(scene *s, const int32_t *text, uint32_t n)
{
    const quire_pin_spec spec = { .name = "pin", .key = test_key(), .tokens = text, .n_tokens = n };
    quire_pins *pins = test_pins_create(&s->p, 0);
    quire_pin_id id;

    assert_int_equal(quire_pins_reserve(pins, &spec, s->p.now_us, &id, NULL), QUIRE_OK);
    assert_int_equal(quire_pins_hold(pins, id, s->p.now_us, NULL), QUIRE_OK);
    assert_int_equal(quire_pins_drop(pins, id, s->p.now_us), QUIRE_OK);
    quire_pins_destroy(pins);
}

/* A pin that is dropped is no request: a conversation behind its text goes on with its
 * turns. */
static void test_pin(void **state)
{
    int32_t text[8 * PT];
    float mean_gap;
    scene s;

    (void)state;
    scene_create(&s, 64, QUIRE_EVICT_DEFAULT);
    test_text(text, 8 * PT, 0);
    for (uint32_t turn = 1; turn <= 3; turn++) {
        s.p.now_us += 1024000;
        (void)test_run_whole(&s.p, text, 2 * turn * PT);
        assert_int_equal(turn_noted(&s), turn);
        pin_once(&s, text, 2 * turn * PT);
    }
    s.p.now_us += 1024000;
    (void)test_run_whole(&s.p, text, 7 * PT);
    assert_int_equal(turn_noted(&s), 4);
    memcpy(&mean_gap, s.p.tree->evict.request.words, sizeof(mean_gap));
    assert_float_equal(mean_gap, 1000, 1);
    test_prefix_destroy(&s.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_knows_nothing),
        cmocka_unit_test(test_half_octaves),
        cmocka_unit_test(test_model_learns_a_pause),
        cmocka_unit_test(test_model_learns_who_returns),
        cmocka_unit_test(test_model_forgets),
        cmocka_unit_test(test_sample_handles),
        cmocka_unit_test(test_sample_is_unbiased),
        cmocka_unit_test(test_bag),
        cmocka_unit_test(test_loop),
        cmocka_unit_test(test_pollution),
        cmocka_unit_test(test_recent),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_pin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
