/* test_cache_model.c - random operations on the real cache against a naive one.
 *
 * The model keeps, for each sequence, an array with one stamp per token: no pages, no sharing. The
 * test fills the slot of each appended token with a pattern made of its stamp; after any sharing,
 * copying, moving or unmapping, the slot of every token of every sequence must hold its own
 * pattern, byte for byte. The budget decides which operations may fail: an operation whose most
 * expensive case fits must not fail.
 *
 * For released pages the model keeps one flag per page and group. Release skips shared leaves; the
 * model detects a shared leaf by its address in two tables.
 *
 * QUIRE_SEED and QUIRE_OPS choose another run.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS_MAX    12u
#define PAGES_MAX   40u
#define TOKENS_MAX  (PAGE_TOKENS * PAGES_MAX)
#define GROUPS_MAX  4u
#define OPS_DEFAULT TEST_ROUNDS(400000u, 40000u)

/* All pages of the run without payload fit one extent, unless those are tiny. */
#define EXTENT_META_IS_SMALL (QUIRE_EXTENT_META_SLOTS < 200u)

typedef struct model_seq {
    quire_seq_id id;
    uint32_t n_tokens;
    uint32_t n_reserved; /* appends up to here cannot fail */
    uint32_t stamps[TOKENS_MAX];
    bool is_hole[GROUPS_MAX][PAGES_MAX]; /* of full pages; false from the end on */
} model_seq;

typedef struct model {
    test_cache t;
    quire_cache_opts opts;
    quire_rng rng;
    model_seq seqs[SEQS_MAX];
    uint32_t n_seqs;
    uint32_t next_stamp;
    uint64_t n_failed;   /* operations that failed for lack of budget */
    uint64_t n_released; /* pages */
    uint64_t n_left;     /* pages left alone, in shared leaves */
    uint64_t n_refused;  /* truncations into a hole */
    quire_seq_id closed;
} model;

static uint32_t below(model *m, uint32_t n)
{
    return quire_rng_below(&m->rng, n);
}

static model_seq *any_seq(model *m)
{
    return m->n_seqs > 0 ? &m->seqs[below(m, m->n_seqs)] : NULL;
}

static void check_tokens(const model *m, const model_seq *seq, uint32_t first, uint32_t step)
{
    assert_int_equal(quire_seq_tokens(m->t.cache, seq->id), seq->n_tokens);
    for (uint32_t i = first; i < seq->n_tokens; i += step) {
        for (uint32_t g = 0; g < m->opts.n_groups; g++) {
            if (seq->is_hole[g][i / PAGE_TOKENS]) {
                assert_int_equal(test_page_of(m->t.cache, seq->id, (quire_group_id)g, i),
                                 QUIRE_PAGE_NULL);
            } else {
                test_slot_check_in(m->t.cache, seq->id, (quire_group_id)g, i, seq->stamps[i]);
            }
        }
    }
}

static void check_all(const model *m)
{
    quire_cache_stats stats = test_stats(m->t.cache);

    quire_cache_validate(m->t.cache);
    assert_int_equal(stats.seqs_open, m->n_seqs);
    assert_int_equal(stats.extent_bytes, m->t.extents.live_bytes);
    assert_int_equal(stats.extent_bytes,
                     stats.live_bytes + stats.cached_bytes + stats.free_bytes + stats.tail_bytes);
    for (uint32_t i = 0; i < m->n_seqs; i++) {
        check_tokens(m, &m->seqs[i], 0, 1);
    }
}

/* Whether n more tokens fit the budget in the worst case: all new pages and a copy of the tail. */
static bool must_fit(const model *m, const model_seq *seq, uint32_t n)
{
    quire_cache_stats stats = test_stats(m->t.cache);
    uint64_t pages = (uint64_t)(seq->n_tokens % PAGE_TOKENS + n) / PAGE_TOKENS + 2;
    uint64_t need_bytes = 0;

    for (uint32_t g = 0; g < m->opts.n_groups; g++) {
        need_bytes += pages * m->t.cache->opts.charge_bytes[g];
    }
    return stats.charged_bytes + need_bytes <= stats.budget_bytes;
}

static void op_open(model *m)
{
    if (m->n_seqs < SEQS_MAX) {
        m->seqs[m->n_seqs].id = test_open(m->t.cache);
        m->seqs[m->n_seqs].n_tokens = 0;
        m->seqs[m->n_seqs].n_reserved = 0;
        memset(m->seqs[m->n_seqs].is_hole, 0, sizeof(m->seqs[m->n_seqs].is_hole));
        m->n_seqs++;
    }
}

static uint32_t some_tokens(model *m, const model_seq *seq)
{
    uint32_t n = below(m, 4) == 0 ? below(m, PAGE_TOKENS * 6) : 1 + below(m, 4);
    uint32_t most = TOKENS_MAX - seq->n_tokens;

    return n < most ? n : most;
}

static void op_append(model *m)
{
    model_seq *seq = any_seq(m);
    uint32_t n;
    bool must;
    int rc;

    if (seq == NULL) {
        return;
    }
    n = some_tokens(m, seq);
    must = must_fit(m, seq, n) || seq->n_tokens + n <= seq->n_reserved;
    rc = quire_seq_append(m->t.cache, seq->id, n);
    if (rc != QUIRE_OK) {
        assert_int_equal(rc, QUIRE_NOPAGES);
        assert_false(must);
        m->n_failed++;
        check_tokens(m, seq, below(m, 16), 16);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        seq->stamps[seq->n_tokens] = m->next_stamp++;
        seq->n_tokens++;
        test_slot_write(m->t.cache, seq->id, seq->n_tokens - 1, seq->stamps[seq->n_tokens - 1]);
    }
}

static void op_reserve(model *m)
{
    model_seq *seq = any_seq(m);
    uint32_t n;
    bool must;
    int rc;

    if (seq == NULL) {
        return;
    }
    n = some_tokens(m, seq);
    must = must_fit(m, seq, n);
    rc = quire_seq_reserve(m->t.cache, seq->id, n);
    assert_int_equal(quire_seq_tokens(m->t.cache, seq->id), seq->n_tokens);
    if (rc == QUIRE_OK) {
        uint32_t end = seq->n_tokens + n;

        seq->n_reserved = end > seq->n_reserved ? end : seq->n_reserved;
    } else {
        assert_int_equal(rc, QUIRE_NOPAGES);
        assert_false(must);
        m->n_failed++;
    }
}

static void op_fork(model *m)
{
    model_seq *seq = any_seq(m);
    quire_cache_stats before = test_stats(m->t.cache);

    if (seq == NULL || m->n_seqs == SEQS_MAX) {
        return;
    }
    seq->n_reserved = 0;
    m->seqs[m->n_seqs] = *seq;
    m->seqs[m->n_seqs].id = test_fork(m->t.cache, seq->id);
    m->n_seqs++;
    assert_int_equal(test_stats(m->t.cache).pages_live, before.pages_live);
    assert_int_equal(test_stats(m->t.cache).page_copies_total, before.page_copies_total);
}

/* The longest length up to n that does not end inside a hole. */
static uint32_t truncatable(const model *m, const model_seq *seq, uint32_t n)
{
    while (n % PAGE_TOKENS != 0) {
        bool is_cut = false;

        for (uint32_t g = 0; g < m->opts.n_groups; g++) {
            is_cut = is_cut || seq->is_hole[g][n / PAGE_TOKENS];
        }
        if (!is_cut) {
            break;
        }
        n--;
    }
    return n;
}

static void op_truncate(model *m)
{
    model_seq *seq = any_seq(m);
    uint32_t n;
    uint32_t wanted;

    if (seq == NULL) {
        return;
    }
    assert_int_equal(quire_seq_truncate(m->t.cache, seq->id, seq->n_tokens + 1), QUIRE_RANGE);
    assert_int_equal(quire_seq_truncatable(m->t.cache, seq->id, UINT32_MAX), seq->n_tokens);
    wanted =
        below(m, 3) == 0 ? seq->n_tokens / PAGE_TOKENS * PAGE_TOKENS : below(m, seq->n_tokens + 1);
    n = truncatable(m, seq, wanted);
    assert_int_equal(quire_seq_truncatable(m->t.cache, seq->id, wanted), n);
    if (n < wanted) {
        assert_int_equal(quire_seq_truncate(m->t.cache, seq->id, wanted), QUIRE_RANGE);
        check_tokens(m, seq, below(m, 16), 16);
        m->n_refused++;
    }
    seq->n_tokens = n;
    seq->n_reserved = 0;
    for (uint32_t g = 0; g < m->opts.n_groups; g++) {
        for (uint32_t p = n / PAGE_TOKENS; p < PAGES_MAX; p++) {
            seq->is_hole[g][p] = false;
        }
    }
    assert_int_equal(quire_seq_truncate(m->t.cache, seq->id, n), QUIRE_OK);
}

/* Whether another sequence's table has the leaf of a page too. */
static bool is_leaf_shared(const model *m, const model_seq *seq, quire_group_id group,
                           uint32_t page)
{
    uint32_t index = page / QUIRE_LEAF_ENTRIES;
    quire_seq_table own;

    assert_int_equal(quire_seq_table_get(m->t.cache, seq->id, group, &own), QUIRE_OK);
    for (uint32_t i = 0; i < m->n_seqs; i++) {
        quire_seq_table other;

        assert_int_equal(quire_seq_table_get(m->t.cache, m->seqs[i].id, group, &other), QUIRE_OK);
        if (&m->seqs[i] != seq && index * QUIRE_LEAF_ENTRIES < other.n_entries &&
            own.leaves[index] == other.leaves[index]) {
            return true;
        }
    }
    return false;
}

/* Either any range, or all but the first page and a window at the end, as a runtime would. */
static void op_release(model *m)
{
    model_seq *seq = any_seq(m);
    quire_group_id group = (quire_group_id)below(m, m->opts.n_groups);
    uint32_t window = below(m, PAGE_TOKENS * 4);
    uint32_t begin = PAGE_TOKENS;
    uint32_t n_expected = 0;
    uint32_t n = 0;
    uint32_t end;

    if (seq == NULL) {
        return;
    }
    end = begin + window < seq->n_tokens ? seq->n_tokens - window : begin;
    if (below(m, 4) == 0) {
        begin = below(m, TOKENS_MAX);
        end = begin + below(m, TOKENS_MAX);
    }
    for (uint32_t p = 0; p < seq->n_tokens / PAGE_TOKENS; p++) {
        if (p * PAGE_TOKENS < begin || (p + 1) * PAGE_TOKENS > end || seq->is_hole[group][p]) {
            continue;
        }
        if (is_leaf_shared(m, seq, group, p)) {
            m->n_left++;
        } else {
            seq->is_hole[group][p] = true;
            n_expected++;
        }
    }
    assert_int_equal(quire_seq_release(m->t.cache, seq->id, group, begin, end, &n), QUIRE_OK);
    assert_int_equal(n, n_expected);
    m->n_released += n;
}

static void op_close(model *m)
{
    model_seq *seq = any_seq(m);

    if (seq == NULL) {
        return;
    }
    m->closed = seq->id;
    assert_int_equal(quire_seq_close(m->t.cache, seq->id), QUIRE_OK);
    assert_int_equal(quire_seq_close(m->t.cache, m->closed), QUIRE_NOTFOUND);
    m->n_seqs--;
    if (seq != &m->seqs[m->n_seqs]) {
        *seq = m->seqs[m->n_seqs];
    }
}

static void op_upkeep(model *m)
{
    quire_cache_stats before = test_stats(m->t.cache);
    quire_cache_stats after;
    uint64_t keep_bytes = below(m, 3) * QUIRE_EXTENT_UNIT_BYTES;

    switch (below(m, 3)) {
    case 0:
        (void)quire_cache_coalesce(m->t.cache, below(m, 40));
        after = test_stats(m->t.cache);
        assert_int_equal(after.pages_live, before.pages_live);
        assert_true(after.extents_empty >= before.extents_empty);
        break;
    case 1:
        (void)quire_cache_trim(m->t.cache, keep_bytes);
        after = test_stats(m->t.cache);
        assert_int_equal(after.live_bytes, before.live_bytes);
        assert_true(after.extent_bytes <= before.extent_bytes);
        break;
    default:
        quire_cache_maintain(m->t.cache);
        assert_true(test_stats(m->t.cache).watermark_pages <= m->opts.watermark_pages_max);
        break;
    }
}

/* Squeeze and widen the budget, so that lack of pages is met at many fills. */
static void op_budget(model *m)
{
    uint64_t full = m->opts.budget_bytes;
    uint64_t charged = test_stats(m->t.cache).charged_bytes;
    uint64_t wanted = full / 2 + below(m, (uint32_t)(full / 2));
    int rc = quire_region_budget_set(m->t.cache, QUIRE_REGION_DYNAMIC, wanted);

    assert_int_equal(rc, wanted >= charged ? QUIRE_OK : QUIRE_INVAL);
    if (below(m, 2) == 0) {
        assert_int_equal(quire_region_budget_set(m->t.cache, QUIRE_REGION_DYNAMIC, full), QUIRE_OK);
    }
}

static void one_op(model *m)
{
    uint32_t pick = below(m, 1000);

    if (pick < 530) {
        op_append(m);
    } else if (pick < 600) {
        op_release(m);
    } else if (pick < 660) {
        op_reserve(m);
    } else if (pick < 740) {
        op_fork(m);
    } else if (pick < 840) {
        op_truncate(m);
    } else if (pick < 900) {
        op_close(m);
    } else if (pick < 960) {
        op_open(m);
    } else if (pick < 998) {
        op_upkeep(m);
    } else {
        op_budget(m);
    }
}

static void run_model(const quire_cache_opts *opts, uint64_t seed, uint64_t n_ops)
{
    model *m = calloc(1, sizeof(*m));

    assert_non_null(m);
    m->opts = *opts;
    m->rng = test_rng(seed);
    test_cache_create(&m->t, opts, 0, 0);
    for (uint64_t op = 0; op < n_ops; op++) {
        one_op(m);
        if (op % 64 == 0 && m->n_seqs > 0) {
            check_tokens(m, any_seq(m), below(m, 8), 8);
        }
        if (op % 2048 == 0) {
            check_all(m);
        }
    }
    check_all(m);
    assert_true(m->n_failed > 0); /* else no operation met the budget */
    assert_true(m->n_released > 0 && m->n_left > 0 && m->n_refused > 0);
    assert_true(test_stats(m->t.cache).page_copies_total > 0);
    if (m->opts.page_bytes[0] > 0 || EXTENT_META_IS_SMALL) {
        assert_true(test_stats(m->t.cache).page_moves_total > 0);
    }
    while (m->n_seqs > 0) {
        op_close(m);
    }
    quire_cache_validate(m->t.cache);
    assert_int_equal(test_stats(m->t.cache).pages_live, 0);
    assert_int_equal(test_stats(m->t.cache).charged_bytes, 0);
    (void)quire_cache_trim(m->t.cache, 0);
    assert_int_equal(test_stats(m->t.cache).extents, 0);
    test_cache_destroy(&m->t);
    free(m);
}

static void test_one_group(void **state)
{
    quire_cache_opts opts = test_opts(150);

    (void)state;
    opts.history_events = 100;
    opts.watermark_pages_max = 20;
    run_model(&opts, 1, test_ops(OPS_DEFAULT) / 2);
}

/* Three page sizes and one group without payload; two groups share a class. */
static void test_many_groups(void **state)
{
    quire_cache_opts opts = test_opts(0);

    (void)state;
    opts.n_groups = 4;
    opts.page_bytes[1] = PAGE_BYTES / 4;
    opts.page_bytes[2] = 0;
    opts.page_bytes[3] = PAGE_BYTES / 4;
    opts.charge_bytes[2] = 64;
    opts.budget_bytes = (uint64_t)100 * (PAGE_BYTES / 2 * 3 + 64);
    opts.watermark_pages_max = 40;
    run_model(&opts, 2, test_ops(OPS_DEFAULT) / 4);
}

/* Pages in parts: groups of equal page size share a class only when their parts are equal. */
static void test_parts(void **state)
{
    static const size_t halves[] = { PAGE_BYTES / 2, 0, PAGE_BYTES / 2 };
    static const size_t thirds[] = { 0, PAGE_BYTES / 2, PAGE_BYTES / 2 };
    static const size_t small[] = { PAGE_BYTES / 8, PAGE_BYTES / 8 };
    quire_cache_opts opts = test_opts(0);

    (void)state;
    opts.n_groups = 4;
    for (uint32_t g = 1; g < opts.n_groups; g++) {
        opts.page_bytes[g] = PAGE_BYTES;
    }
    opts.page_bytes[2] = PAGE_BYTES / 4;
    opts.n_parts[0] = 3;
    opts.part_bytes[0] = halves;
    opts.n_parts[1] = 3;
    opts.part_bytes[1] = thirds;
    opts.n_parts[2] = 2;
    opts.part_bytes[2] = small;
    opts.n_parts[3] = 3;
    opts.part_bytes[3] = halves;
    opts.budget_bytes = (uint64_t)100 * (PAGE_BYTES / 4 * 13);
    opts.watermark_pages_max = 40;
    run_model(&opts, 4, test_ops(OPS_DEFAULT) / 4);
}

/* Metadata only, as simulators run it. */
static void test_no_payload(void **state)
{
    quire_cache_opts opts = test_opts(0);

    (void)state;
    opts.n_groups = 2;
    opts.page_bytes[0] = 0;
    opts.page_bytes[1] = 0;
    opts.budget_bytes = 200;
    run_model(&opts, 3, test_ops(OPS_DEFAULT) / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_group),
        cmocka_unit_test(test_many_groups),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_no_payload),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
