/* test_runtime_payload.c - KV that went through one contiguous buffer per page gives attention the
 * same bits: computed in one runtime, gathered, scattered into other pages of another runtime, and
 * continued in both. In formats with one group and with two, in pages of one part and of several.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/runtime_internal.h"
#include "model_fixture.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define N_VOCAB      320u
#define N_CTX        1024u
#define N_PROMPT     437u /* ends inside a page and a tile */
#define N_MORE       70u  /* fills a tile, and seals it */

typedef struct side {
    quire_runtime *runtime;
    quire_cache *cache;
    quire_seq_id seq;
} side;

static side side_open(const quire_model *model, const quire_runtime_opts *opts)
{
    side s = { .runtime = fixture_runtime(model, opts) };

    s.cache = quire_runtime_cache(s.runtime);
    return s;
}

static void side_close(side *s)
{
    quire_cache_validate(s->cache);
    quire_runtime_destroy(s->runtime);
}

static uint32_t n_groups(const side *s)
{
    return quire_cache_payload_bytes(s->cache, QUIRE_KV_GROUP_HOT) > 0 ? 2 : 1;
}

static quire_page_id page_at(const side *s, quire_group_id group, uint32_t entry)
{
    quire_seq_table table;

    assert_int_equal(quire_seq_table_get(s->cache, s->seq, group, &table), QUIRE_OK);
    assert_true(entry < table.n_entries);
    return table.leaves[entry / QUIRE_LEAF_ENTRIES][entry % QUIRE_LEAF_ENTRIES].page;
}

/* Open a sequence with the tokens of `from` in other pages, filled with garbage, and with the holes
 * of `from`. */
static void twin_open(side *to, const side *from, uint32_t page_tokens)
{
    quire_seq_id before = fixture_seq(to->runtime);

    assert_int_equal(quire_runtime_fill(to->runtime, before, 3 * page_tokens, 7), QUIRE_OK);
    to->seq = fixture_seq(to->runtime);
    assert_int_equal(quire_runtime_fill(to->runtime, to->seq, N_PROMPT, 8), QUIRE_OK);
    assert_int_equal(quire_seq_truncate(to->cache, to->seq, 0), QUIRE_OK);
    assert_int_equal(quire_seq_append(to->cache, to->seq, N_PROMPT), QUIRE_OK);
    for (uint32_t e = 0; n_groups(from) > 1 && e * page_tokens < N_PROMPT; e++) {
        if (page_at(from, QUIRE_KV_GROUP_HOT, e) == QUIRE_PAGE_NULL) {
            assert_int_equal(quire_seq_release(to->cache, to->seq, QUIRE_KV_GROUP_HOT,
                                               e * page_tokens, (e + 1) * page_tokens, NULL),
                             QUIRE_OK);
            assert_int_equal(page_at(to, QUIRE_KV_GROUP_HOT, e), QUIRE_PAGE_NULL);
        }
    }
    assert_int_not_equal(page_at(to, QUIRE_KV_GROUP_MAIN, 0),
                         page_at(from, QUIRE_KV_GROUP_MAIN, 0));
}

/* Returns how many pages were carried. */
static uint32_t pages_carry(const side *from, side *to, uint32_t page_tokens)
{
    uint32_t n = 0;

    for (uint32_t g = 0; g < n_groups(from); g++) {
        const size_t n_bytes = quire_cache_payload_bytes(from->cache, (quire_group_id)g);
        void *buffer = malloc(n_bytes);

        assert_non_null(buffer);
        assert_int_equal(n_bytes, quire_cache_payload_bytes(to->cache, (quire_group_id)g));
        for (uint32_t e = 0; e * page_tokens < N_PROMPT; e++) {
            const quire_page_id page = page_at(from, (quire_group_id)g, e);

            if (page == QUIRE_PAGE_NULL) {
                continue;
            }
            assert_int_equal(quire_cache_page_gather(from->cache, page, buffer, n_bytes), QUIRE_OK);
            assert_int_equal(quire_cache_page_scatter(to->cache, page_at(to, (quire_group_id)g, e),
                                                      buffer, n_bytes),
                             QUIRE_OK);
            n++;
        }
        free(buffer);
    }
    return n;
}

static void check_case(const quire_model *model, const char *formats, uint32_t page_tokens)
{
    const quire_model_desc *desc = quire_model_desc_get(model);
    const size_t row_bytes = N_VOCAB * sizeof(float);
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_kv_pair pairs[8];
    int32_t tokens[N_PROMPT + N_MORE];
    quire_error err = QUIRE_ERROR_INIT;
    quire_rng rng = { 3 };
    float *expected = malloc(N_MORE * row_bytes);
    side a;
    side b;

    assert_non_null(expected);
    assert_true(desc->n_stored <= COUNT(pairs));
    assert_int_equal(quire_kv_layers_parse(formats, desc, pairs, &err), QUIRE_OK);
    for (uint32_t i = 0; i < COUNT(tokens); i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
    opts.n_ctx = N_CTX;
    opts.n_batch = 512;
    opts.n_seqs_max = 4;
    opts.n_threads = 1;
    opts.kv_budget_bytes = 64u << 20;
    opts.kv_pairs = pairs;
    opts.page_tokens = page_tokens;
    a = side_open(model, &opts);
    b = side_open(model, &opts);
    a.seq = fixture_seq(a.runtime);
    (void)fixture_step(a.runtime, a.seq, tokens, N_PROMPT, QUIRE_LOGITS_LAST);
    twin_open(&b, &a, page_tokens);
    assert_true(pages_carry(&a, &b, page_tokens) >= (N_PROMPT + page_tokens - 1) / page_tokens);

    memcpy(expected, fixture_step(a.runtime, a.seq, tokens + N_PROMPT, N_MORE, QUIRE_LOGITS_ALL),
           N_MORE * row_bytes);
    if (memcmp(expected,
               fixture_step(b.runtime, b.seq, tokens + N_PROMPT, N_MORE, QUIRE_LOGITS_ALL),
               N_MORE * row_bytes) != 0) {
        fail_msg("%s, %u layers, pages of %u: other bits", formats, desc->n_layer, page_tokens);
    }
    side_close(&b);
    side_close(&a);
    free(expected);
}

static void check_layers(uint32_t n_layer)
{
    static const char *const formats[] = { "*=f32", "*=f16", "*=q8", "*=q4", "*=q8:q3" };
    const gguf_gen_opts gen = fixture_llama("payload", n_layer, N_VOCAB, N_CTX, 5);
    quire_model *model = fixture_open(fixture_generate(&gen));

    for (size_t i = 0; i < COUNT(formats); i++) {
        check_case(model, formats[i], 64);
        check_case(model, formats[i], 128);
    }
    quire_model_close(model);
    fixture_generated_remove();
}

/* A layer is a part. */
static void test_one_part(void **state)
{
    (void)state;
    check_layers(1);
}

static void test_several_parts(void **state)
{
    (void)state;
    check_layers(3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_part),
        cmocka_unit_test(test_several_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
