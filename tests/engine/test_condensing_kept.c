/* test_condensing_kept.c - the pages that are set aside before a choice have room for any choice:
 * of random policies, parameters, models and scores, condensing after condensing.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "rounds.h"
#include "seed.h"

#include "base/num.h"
#include "engine/condensing.h"
#include "retain/lanes_choice.h"

#include <math.h>
#include <string.h>

#define TILE       QUIRE_TILE_TOKENS
#define LANES_MAX  (6u * 4u)
#define TOKENS_MAX (6u * 512u)
#define N_ROUNDS   TEST_ROUNDS(400u, 60u)

/* A text whose lanes keep tokens. */
typedef struct kept_text {
    quire_condensing c;
    bool is_sealed;
    uint32_t n[LANES_MAX];
    int32_t positions[LANES_MAX][TOKENS_MAX];
} kept_text;

static quire_retain_spec spec_make(quire_rng *rng, uint32_t n_layers, bool is_sealed)
{
    static const char *const names[] = { "entropy", "snap",    "reconstruct", "predict", "expected",
                                         "heavy",   "keydiff", "stride",      "random",  "window" };
    const uint32_t n_names = is_sealed ? 9 : 10; /* without those that drop kept tokens */
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    char text[128], full[32] = "none";

    if (quire_rng_below(rng, 2) == 0) {
        (void)snprintf(full, sizeof full, "%u", quire_rng_below(rng, n_layers));
    }
    (void)snprintf(text, sizeof text, "%s:%.3f,sinks=%u,recent=%u,floor=%.2f,full_layers=%s",
                   names[quire_rng_below(rng, n_names)], 0.02 + 0.98 * quire_rng_unit(rng),
                   quire_rng_below(rng, 3) == 0 ? quire_rng_below(rng, 700) : 4,
                   1 + quire_rng_below(rng, quire_rng_below(rng, 3) == 0 ? 600 : 130),
                   quire_rng_unit(rng), full);
    assert_int_equal(quire_retain_parse(text, &spec, &err), QUIRE_OK);
    if (quire_rng_below(rng, 4) == 0) {
        spec.threshold = quire_rng_unit(rng);
    }
    return spec;
}

/* Returns whether the settings work. */
static bool text_make(kept_text *t, quire_rng *rng)
{
    const uint32_t n_layers = 1 + quire_rng_below(rng, 6);
    quire_condensing_parts parts = { .packing = { .n_layers = n_layers,
                                                  .n_kv_head = 1 + quire_rng_below(rng, 4),
                                                  .page_tokens = TILE << quire_rng_below(rng, 2),
                                                  .k_bytes = 64u << quire_rng_below(rng, 8),
                                                  .v_bytes = 64u << quire_rng_below(rng, 8) } };
    const uint32_t page_tokens = parts.packing.page_tokens;
    bool is_full[QUIRE_LAYERS_MAX];
    quire_retain_spec spec;

    memset(t->n, 0, sizeof t->n);
    t->is_sealed = quire_rng_below(rng, 3) == 0;
    parts.packing.hot_group = t->is_sealed;
    spec = spec_make(rng, n_layers, t->is_sealed);
    quire_condensing_init(&t->c, &spec, page_tokens * (1 + quire_rng_below(rng, 512 / page_tokens)),
                          page_tokens, &parts);
    return t->c.packing.n_layers > 0 &&
           quire_condensing_full_layers(&spec, &t->c.packing, is_full, NULL, NULL) == QUIRE_OK;
}

/* Scores of random kinds: also alike, and not numbers. */
static void scores_make(quire_lanes_choice *choice, quire_rng *rng)
{
    const uint32_t kind = quire_rng_below(rng, 4);

    for (uint32_t lane = 0; lane < choice->n_layers * choice->n_kv_head; lane++) {
        const float scale = kind == 1 ? (float)lane : 1.0f;

        for (uint32_t i = 0; i < choice->n_tokens[lane]; i++) {
            choice->scores[lane][i] = kind == 2   ? 1.0f
                                      : kind == 3 ? NAN
                                                  : scale * (float)quire_rng_unit(rng);
        }
        choice->measures[lane] = (quire_retain_measure){
            .entropy = quire_rng_below(rng, 3) == 0 ? 0.0 : 100 * quire_rng_unit(rng),
            .variance = quire_rng_below(rng, 5) == 0 ? 0.0 : quire_rng_unit(rng)
        };
    }
}

static void choice_begin(kept_text *t, uint32_t k, quire_lanes_choice *choice, quire_rng *rng)
{
    const quire_packing *p = &t->c.packing;

    assert_int_equal(
        quire_lanes_choice_init(choice, &t->c.spec, p->n_layers, p->n_kv_head, k * t->c.chunk),
        QUIRE_OK);
    choice->n_apart = t->is_sealed ? t->c.chunk : 0;
    assert_int_equal(quire_condensing_full_layers(&t->c.spec, p, choice->is_full, NULL, NULL),
                     QUIRE_OK);
    for (uint32_t lane = 0; lane < quire_packing_n_lanes(p); lane++) {
        choice->n_before[lane] = t->is_sealed ? t->n[lane] : 0;
        for (uint32_t i = 0; i < t->c.chunk; i++) {
            t->positions[lane][t->n[lane]++] = (int32_t)((k - 1) * t->c.chunk + i);
        }
        choice->n_tokens[lane] = t->n[lane];
        choice->positions[lane] = t->positions[lane];
    }
    assert_int_equal(quire_lanes_choice_room(choice), QUIRE_OK);
    scores_make(choice, rng);
}

/* Condensing number k: whole tiles for each lane, all protected tokens, within the pages. */
static void condense(kept_text *t, uint32_t k, quire_rng *rng)
{
    const quire_packing *p = &t->c.packing;
    quire_lanes_choice choice;
    uint64_t n_all = 0;

    choice_begin(t, k, &choice, rng);
    quire_lanes_choice_budgets(&choice);
    assert_int_equal(quire_lanes_choice_share(&choice, 0, 1), QUIRE_OK);
    for (uint32_t lane = 0; lane < quire_packing_n_lanes(p); lane++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < t->n[lane]; i++) {
            if (choice.is_kept[lane][i]) {
                t->positions[lane][n++] = t->positions[lane][i];
            } else {
                assert_false(quire_retain_is_protected(&t->c.spec, k * t->c.chunk,
                                                       (uint32_t)t->positions[lane][i]));
            }
        }
        assert_int_equal(n % TILE, 0);
        t->n[lane] = n;
        n_all += n;
    }
    if (quire_packing_pages(p, n_all) * t->c.page_tokens > quire_condensing_kept(&t->c, k)) {
        fail_msg("%s every %u tokens, %u layers of %u heads%s: condensing %u keeps %llu tokens in "
                 "%llu pages of %u",
                 t->c.text, t->c.chunk, p->n_layers, p->n_kv_head, t->is_sealed ? ", sealed" : "",
                 k, (unsigned long long)n_all, (unsigned long long)quire_packing_pages(p, n_all),
                 quire_condensing_kept(&t->c, k) / t->c.page_tokens);
    }
    quire_lanes_choice_fini(&choice);
}

static void test_room(void **state)
{
    static kept_text t;
    quire_rng rng = test_rng(1);

    (void)state;
    for (uint32_t round = 0; round < N_ROUNDS;) {
        if (text_make(&t, &rng)) {
            for (uint32_t k = 1; k <= 6; k++) {
                condense(&t, k, &rng);
                assert_true(quire_condensing_kept(&t.c, k) >= quire_condensing_kept(&t.c, k - 1));
                assert_true(quire_condensing_need(&t.c, k * t.c.chunk + 1) >=
                            quire_condensing_need(&t.c, k * t.c.chunk));
            }
            round++;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_room) };

    return cmocka_run_group_tests_name("condensing_kept", tests, NULL, NULL);
}
