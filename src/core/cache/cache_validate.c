/* cache_validate.c - checks the invariants of tables, sequences and the modules below.
 *
 * Checking references allocates nothing, so that it works in the middle of an out-of-memory test.
 * Each leaf entry subtracts one from its page's refs; then all refs must be 0; then the same walk
 * restores them. Leaves are counted in the same way, in n_seen.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/cache_internal.h"

/* Call visit(cache, leaf) for each (sequence, group, leaf). */
static void leaves_visit(const quire_cache *cache,
                         void (*visit)(const quire_cache *cache, quire_leaf *leaf))
{
    for (uint32_t i = 0; i < cache->seqs.n_items; i++) {
        const quire_seq *seq = cache->seqs.items[i];

        for (uint32_t g = 0; seq->id != QUIRE_SEQ_NULL && g < cache->opts.n_groups; g++) {
            for (uint32_t l = 0; l < seq->tables[g].n_leaves; l++) {
                visit(cache, quire_leaf_of(seq->tables[g].leaves[l]));
            }
        }
    }
}

/* Take the references of sequences to their pages with states, or put them back. */
static void states_count(const quire_cache *cache, bool is_taken)
{
    for (uint32_t i = 0; i < cache->seqs.n_items; i++) {
        const quire_seq *seq = cache->seqs.items[i];

        for (uint32_t k = 0; seq->id != QUIRE_SEQ_NULL && k < 2; k++) {
            quire_page *page = &cache->pool.pages[seq->states[k]];

            QUIRE_CHECK(seq->states[0] != QUIRE_PAGE_NULL || seq->states[1] == QUIRE_PAGE_NULL);
            if (seq->states[k] == QUIRE_PAGE_NULL) {
                continue;
            }
            QUIRE_CHECK(page->group == quire_cache_seq_state_group(cache) &&
                        page->refs == (is_taken ? 1 : 0));
            page->refs = is_taken ? 0 : 1;
        }
    }
}

static void leaf_take_refs(const quire_cache *cache, quire_leaf *leaf)
{
    if (leaf->n_seen++ > 0) {
        return;
    }
    QUIRE_CHECK(leaf->n_entries >= 1 && leaf->n_entries <= QUIRE_LEAF_ENTRIES);
    for (uint32_t i = 0; i < leaf->n_entries; i++) {
        const quire_page_entry *entry = &leaf->entries[i];

        if (entry->page == QUIRE_PAGE_NULL) {
            continue;
        }
        QUIRE_CHECK(entry->page < cache->pool.id_end);
        QUIRE_CHECK(cache->pool.pages[entry->page].refs > 0);
        QUIRE_CHECK(cache->pool.pages[entry->page].n_filled >= entry->n_tokens);
        cache->pool.pages[entry->page].refs--;
    }
}

static void leaf_check_seen(const quire_cache *cache, quire_leaf *leaf)
{
    (void)cache;
    QUIRE_CHECK(leaf->n_seen == leaf->refs);
}

static void leaf_put_refs(const quire_cache *cache, quire_leaf *leaf)
{
    if (leaf->n_seen > 0) {
        leaf->n_seen = 0;
        for (uint32_t i = 0; i < leaf->n_entries; i++) {
            if (leaf->entries[i].page != QUIRE_PAGE_NULL) {
                cache->pool.pages[leaf->entries[i].page].refs++;
            }
        }
    }
}

static void table_validate(const quire_cache *cache, const quire_seq *seq, uint32_t group)
{
    const quire_table *table = &seq->tables[group];
    uint32_t page_tokens = cache->opts.page_tokens;
    uint32_t left = seq->n_tokens;

    QUIRE_CHECK(table->n_leaves <= table->leaves_capacity);
    QUIRE_CHECK(table->n_entries <= table->n_held);
    QUIRE_CHECK(table->n_entries == (seq->n_tokens + page_tokens - 1) / page_tokens);
    QUIRE_CHECK(table->n_leaves == (table->n_held + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES);
    for (uint32_t i = 0; i < table->n_held; i++) {
        const quire_page_entry *entry = quire_table_entry(table, i);
        const quire_leaf *leaf = quire_leaf_of(table->leaves[i / QUIRE_LEAF_ENTRIES]);
        uint32_t n = left < page_tokens ? left : page_tokens;

        QUIRE_CHECK(entry->first_slot == 0 && entry->positions == 0);
        QUIRE_CHECK(entry->first_pos == (int32_t)(i * page_tokens));
        QUIRE_CHECK(entry->n_tokens == n);
        QUIRE_CHECK(n > 0 || leaf->refs == 1);
        if (entry->page == QUIRE_PAGE_NULL) {
            QUIRE_CHECK(n == page_tokens);
        } else {
            QUIRE_CHECK(cache->pool.pages[entry->page].group == group);
        }
        left -= n;
    }
    for (uint32_t l = 0; l < table->n_leaves; l++) {
        uint32_t first = l * QUIRE_LEAF_ENTRIES;
        uint32_t n = table->n_held - first;

        n = n < QUIRE_LEAF_ENTRIES ? n : QUIRE_LEAF_ENTRIES;
        QUIRE_CHECK(quire_leaf_of(table->leaves[l])->n_entries == n);
        QUIRE_CHECK(l == 0 || quire_leaf_of(table->leaves[l])->refs <=
                                  quire_leaf_of(table->leaves[l - 1])->refs);
    }
    QUIRE_CHECK(table->holes_begin <= table->holes_end && table->holes_end <= table->n_entries);
    for (uint32_t i = table->holes_begin; i < table->holes_end; i++) {
        QUIRE_CHECK(quire_table_entry(table, i)->page == QUIRE_PAGE_NULL);
    }
}

/* Check the promise of ready_tokens: see seq.h. */
static void ready_validate(const quire_cache *cache, const quire_seq *seq, uint32_t group)
{
    const quire_table *table = &seq->tables[group];
    const quire_page_entry *tail;

    QUIRE_CHECK(seq->n_tokens <= seq->ready_tokens);
    QUIRE_CHECK(seq->ready_tokens <= cache->opts.seq_tokens_max);
    QUIRE_CHECK(seq->ready_tokens == seq->n_tokens ||
                seq->ready_tokens <= (uint64_t)table->n_held * cache->opts.page_tokens);
    if (seq->ready_tokens == seq->n_tokens || seq->n_tokens % cache->opts.page_tokens == 0) {
        return;
    }
    tail = quire_table_entry(table, table->n_entries - 1);
    QUIRE_CHECK(cache->pool.pages[tail->page].n_kept <= tail->n_tokens);
    QUIRE_CHECK(quire_leaf_of(table->leaves[(table->n_entries - 1) / QUIRE_LEAF_ENTRIES])->refs ==
                1);
}

static void seqs_validate(const quire_cache *cache)
{
    const quire_seqs *seqs = &cache->seqs;
    uint64_t n_in[QUIRE_REGIONS_MAX] = { 0 };
    uint32_t n_open = 0;
    uint32_t n_closed = 0;

    for (uint32_t i = 0; i < seqs->n_items; i++) {
        const quire_seq *seq = seqs->items[i];

        if (seq->id == QUIRE_SEQ_NULL) {
            continue;
        }
        QUIRE_CHECK(quire_seqs_find(seqs, seq->id) == seq);
        QUIRE_CHECK(seq->n_tokens <= cache->opts.seq_tokens_max);
        QUIRE_CHECK(seq->region < QUIRE_REGIONS_MAX &&
                    quire_counter_get(&cache->regions.items[seq->region].is_open) != 0);
        n_in[seq->region]++;
        for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
            table_validate(cache, seq, g);
            ready_validate(cache, seq, g);
        }
        n_open++;
    }
    for (uint32_t number = seqs->free_head; number != 0;
         number = seqs->items[number - 1]->next_free) {
        QUIRE_CHECK(seqs->items[number - 1]->id == QUIRE_SEQ_NULL);
        QUIRE_CHECK(++n_closed <= seqs->n_items);
    }
    QUIRE_CHECK(n_open == quire_counter_get(&seqs->n_open) && n_open <= seqs->seqs_max);
    QUIRE_CHECK(n_open + n_closed == seqs->n_items);
    for (uint32_t r = 0; r < QUIRE_REGIONS_MAX; r++) {
        QUIRE_CHECK(n_in[r] == quire_counter_get(&cache->regions.items[r].n_seqs));
    }
}

void quire_cache_validate(const quire_cache *cache)
{
    uint32_t n_spare = 0;

    quire_pool_validate(&cache->pool);
    quire_history_validate(&cache->history);
    seqs_validate(cache);
    states_count(cache, true);
    leaves_visit(cache, leaf_take_refs);
    leaves_visit(cache, leaf_check_seen);
    for (quire_page_id id = 1; id < cache->pool.id_end; id++) {
        QUIRE_CHECK(cache->pool.pages[id].refs == 0);
    }
    leaves_visit(cache, leaf_put_refs);
    states_count(cache, false);
    for (const quire_leaf *leaf = cache->stock.spare; leaf != NULL; leaf = leaf->next_spare) {
        n_spare++;
    }
    QUIRE_CHECK(n_spare == cache->stock.n_spare);
}
