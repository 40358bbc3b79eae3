/* test_host_records.c - random records come, are used, replaced, read, damaged and dropped in the
 * host's memory: tables, tree, regions, accounts and figures agree after each change.
 *
 * SPDX-License-Identifier: MIT */
#include "store_support.h"

#include "base/rng.h"
#include "store/host_records.h"

#include <string.h>

#define N_TEXTS   12u
#define N_PAGES   8u
#define N_COMMON  3u /* pages that every second text shares with the one before */
#define N_STEPS   6000u
#define N_HELD    4u
#define CAPACITY  (40u * 8192u)
#define MAX_BYTES 20000u

static test_text texts[N_TEXTS];

static void texts_make(uint64_t seed)
{
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        test_text *t = &texts[i];

        test_text_make(t, N_PAGES, (uint32_t)seed + i, i < N_TEXTS / 2 ? "a" : "b");
        for (uint32_t k = 0; i % 2 == 1 && k < N_PAGES; k++) {
            quire_page_text *page = &t->pages[k];

            if (k < N_COMMON) {
                memcpy(t->tokens + k * TEST_PAGE_TOKENS, texts[i - 1].tokens + k * TEST_PAGE_TOKENS,
                       TEST_PAGE_TOKENS * sizeof t->tokens[0]);
            }
            page->parent = k > 0 ? t->pages[k - 1].key : page->root;
            quire_prefix_key_add(&page->parent, page->tokens, TEST_PAGE_TOKENS, &page->key);
        }
    }
}

/* ---- what must hold ---- */

static void check_node(quire_host_records *h, quire_host_entry *e)
{
    const quire_prefix_node *node = quire_prefix_node_at(&h->order.nodes, e->node);
    const quire_host_entry *up = quire_host_above(h, e);
    uint32_t n_children = 0;

    for (const quire_host_entry *c = h->newest; c != NULL; c = c->older) {
        n_children += quire_host_above(h, c) == e;
    }
    assert_ptr_equal(h->order.entries[e->node], e);
    assert_int_equal(node->parent, up != NULL ? up->node : QUIRE_NODE_NULL);
    assert_int_equal(node->n_children, n_children);
    assert_int_equal(node->n_refs, 0);
    assert_int_equal(quire_evict_has(&h->order.evict, e->node), n_children == 0);
    assert_ptr_equal(quire_host_find(h, &e->record.text.key), e);
    assert_false(e->is_gone);
}

static void check(quire_host_records *h)
{
    uint64_t n = 0, n_bytes = 0, n_pinned = 0;
    uint64_t of[4][2] = { { 0 } };

    for (quire_host_entry *e = h->newest; e != NULL; e = e->older) {
        const quire_prefix_node *node = quire_prefix_node_at(&h->order.nodes, e->node);

        check_node(h, e);
        n++;
        n_bytes += e->n_bytes;
        n_pinned += node->region == QUIRE_HOST_PINNED ? e->n_bytes : 0;
        of[node->account][node->region] += e->n_bytes;
    }
    assert_int_equal(h->stats.records, n);
    assert_int_equal(h->stats.record_bytes, n_bytes);
    assert_int_equal(h->order.pinned_bytes, n_pinned);
    assert_true(n_bytes <= h->capacity_bytes);
    for (uint32_t a = 0; a < 4; a++) {
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(h->order.accounts.items[a].bytes[r], of[a][r]);
        }
    }
    quire_accounts_validate(&h->order.accounts);
    quire_evict_validate(&h->order.evict);
}

/* ---- what happens ---- */

static quire_host_user user_draw(quire_rng *rng)
{
    quire_host_user user = { .asker = { &texts[quire_rng_below(rng, 2)],
                                        quire_rng_below(rng, 6) } };
    quire_prefix_standing *s = &user.use.standing;

    user.use.is_told = quire_rng_below(rng, 2) == 0;
    s->region = quire_rng_below(rng, 3) == 0 ? 2 : QUIRE_REGION_DYNAMIC;
    s->rank = (uint8_t)quire_rng_below(rng, 3);
    s->account = (uint16_t)quire_rng_below(rng, 4);
    s->weight = quire_rng_below(rng, 3);
    s->hits = quire_rng_below(rng, 20);
    s->tip = (uint8_t)quire_rng_below(rng, 5);
    return user;
}

static quire_page_text *page_draw(quire_rng *rng)
{
    return &texts[quire_rng_below(rng, N_TEXTS)].pages[quire_rng_below(rng, N_PAGES)];
}

static quire_host_entry *entry_draw(const quire_host_records *h, quire_rng *rng)
{
    return quire_host_find(h, &page_draw(rng)->key);
}

static void insert(quire_host_records *h, quire_rng *rng)
{
    const quire_host_user user = user_draw(rng);
    quire_page_text page = *page_draw(rng);
    quire_transfer *t;
    quire_host_entry *e;

    if (quire_rng_below(rng, 30) == 0) { /* a key that was made to be equal */
        page.first_token = quire_rng_below(rng, N_PAGES) * TEST_PAGE_TOKENS;
        page.parent = page_draw(rng)->key;
    }
    t = test_put_sized(&page, 0, 1 + quire_rng_below(rng, MAX_BYTES));
    quire_page_record_seal(t->record, 1);
    e = quire_host_entry_new(t->record, quire_page_record_peek(t->record, t->capacity));
    assert_non_null(e);
    assert_int_equal(quire_host_insert(h, e, &user), QUIRE_OK);
    quire_transfer_free(t);
}

/* As host_store.c does. */
static void read_end(quire_host_records *h, quire_host_entry *e, bool is_damaged)
{
    e->n_readers--;
    if (!e->is_gone && is_damaged) {
        quire_host_remove(h, e, QUIRE_PREFIX_GONE_INVALIDATED);
    } else if (e->is_gone && e->n_readers == 0) {
        quire_host_entry_free(e);
    }
}

/* A reader holds an entry for a while. */
static void read_some(quire_host_records *h, quire_rng *rng, quire_host_entry **held)
{
    quire_host_entry **at = &held[quire_rng_below(rng, N_HELD)];

    if (*at != NULL) {
        read_end(h, *at, quire_rng_below(rng, 4) == 0);
        *at = NULL;
    } else if ((*at = entry_draw(h, rng)) != NULL) {
        (*at)->n_readers++;
    }
}

static void drop(quire_host_records *h, quire_rng *rng)
{
    const quire_page_text *page = page_draw(rng);
    quire_store_drop what = { .what = (quire_store_drop_what)quire_rng_below(rng, 5),
                              .key = page->key,
                              .salt = page->salt,
                              .salt_bytes = page->salt_bytes };

    if (quire_rng_below(rng, 2) == 0) {
        what.root = page->root;
    }
    if (what.what != QUIRE_STORE_DROP_ALL || quire_rng_below(rng, 10) == 0) {
        quire_host_drop_apply(h, &what);
    }
}

static void go(quire_host_records *h, quire_rng *rng, quire_host_entry **held)
{
    const uint32_t what = quire_rng_below(rng, 100);
    quire_host_entry *e;

    if (what < 60) {
        insert(h, rng);
    } else if (what < 80 && (e = entry_draw(h, rng)) != NULL) {
        const quire_host_user user = user_draw(rng);

        quire_host_use(h, e, &user);
    } else if (what < 96) {
        read_some(h, rng, held);
    } else if (what < 98) {
        h->pinned_shares = quire_rng_below(rng, 5) * 0.2;
    } else {
        drop(h, rng);
    }
}

static void test_all_agree(void **state)
{
    (void)state;
    for (uint32_t policy = 0; policy < QUIRE_EVICT_POLICY_COUNT; policy++) {
        const quire_host_store_opts opts = { .capacity_bytes = CAPACITY,
                                             .policy = (quire_evict_policy)policy };
        quire_host_records *h = quire_host_records_new(&opts);
        quire_host_entry *held[N_HELD] = { NULL };
        quire_rng rng = { policy + 1 };

        assert_non_null(h);
        h->n_stores = 1;
        texts_make(policy * N_TEXTS);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(quire_accounts_plan(&h->order.accounts, (uint16_t)i), QUIRE_OK);
        }
        for (uint32_t step = 0; step < N_STEPS; step++) {
            go(h, &rng, held);
            check(h);
        }
        assert_true(h->stats.evicted_total > 100 && h->stats.dropped_total > 100);
        for (uint32_t i = 0; i < N_HELD; i++) {
            if (held[i] != NULL) {
                read_end(h, held[i], false);
            }
        }
        quire_host_records_free(h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
