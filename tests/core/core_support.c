/* core_support.c - see the header.
 *
 * SPDX-License-Identifier: MIT */
#include "core_support.h"

#include <string.h>

/* ---- doubles ---- */

static void *memory_alloc(void *ctx, size_t size_bytes)
{
    test_memory *memory = ctx;
    void *ptr;

    assert_true(size_bytes > 0);
    if (memory->n_calls++ == memory->fail_at) {
        memory->has_failed = true;
        return NULL;
    }
    ptr = quire_allocator_default()->alloc(NULL, size_bytes);
    assert_non_null(ptr);
    memset(ptr, 0xa5, size_bytes); /* nothing may rely on zeroed memory */
    memory->n_live++;
    return ptr;
}

static void memory_free(void *ctx, void *ptr)
{
    test_memory *memory = ctx;

    if (ptr != NULL) {
        assert_true(memory->n_live > 0);
        memory->n_live--;
        quire_allocator_default()->free(NULL, ptr);
    }
}

void test_memory_init(test_memory *memory)
{
    memset(memory, 0, sizeof(*memory));
    memory->allocator = (quire_allocator){ memory_alloc, memory_free, memory };
    memory->fail_at = NEVER;
}

static void *extents_map(void *ctx, size_t size_bytes)
{
    test_extents *extents = ctx;
    const quire_extent_source *os = quire_extent_source_os();
    uint64_t call = extents->n_calls++;

    assert_true(size_bytes > 0 && size_bytes % QUIRE_EXTENT_UNIT_BYTES == 0);
    if (call == extents->fail_at || call >= extents->fail_from) {
        extents->has_failed = true;
        return NULL;
    }
    extents->n_live++;
    extents->live_bytes += size_bytes;
    return os->map(os->ctx, size_bytes);
}

static void extents_unmap(void *ctx, void *base, size_t size_bytes)
{
    test_extents *extents = ctx;
    const quire_extent_source *os = quire_extent_source_os();

    assert_true(extents->n_live > 0 && extents->live_bytes >= size_bytes);
    extents->n_live--;
    extents->live_bytes -= size_bytes;
    os->unmap(os->ctx, base, size_bytes);
}

static bool extents_lock(void *ctx, void *base, size_t size_bytes)
{
    test_extents *extents = ctx;

    (void)base;
    (void)size_bytes;
    if (extents->n_locks_ok == 0) {
        return false;
    }
    extents->n_locks_ok--;
    return true;
}

void test_extents_init(test_extents *extents)
{
    memset(extents, 0, sizeof(*extents));
    extents->source = (quire_extent_source){ extents_map, extents_unmap, extents_lock, extents };
    extents->fail_at = NEVER;
    extents->fail_from = NEVER;
}

/* ---- caches ---- */

quire_cache_opts test_opts(uint32_t n_pages)
{
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;

    opts.page_tokens = PAGE_TOKENS;
    opts.page_bytes[0] = PAGE_BYTES;
    opts.budget_bytes = (uint64_t)n_pages * PAGE_BYTES;
    return opts;
}

void test_cache_create(test_cache *t, const quire_cache_opts *opts, uint32_t pages_max,
                       uint32_t extents_max)
{
    quire_cache_opts own = *opts;
    quire_cache_env env = { &t->extents.source, pages_max > 0 ? pages_max : QUIRE_PAGES_MAX,
                            extents_max > 0 ? extents_max : QUIRE_EXTENTS_MAX };

    test_memory_init(&t->memory);
    test_extents_init(&t->extents);
    own.allocator = &t->memory.allocator;
    assert_int_equal(quire_cache_create_in(&t->cache, &own, &env), QUIRE_OK);
    assert_non_null(t->cache);
    quire_cache_validate(t->cache);
}

void test_cache_destroy(test_cache *t)
{
    quire_cache_validate(t->cache);
    quire_cache_destroy(t->cache);
    assert_int_equal(t->memory.n_live, 0);
    assert_int_equal(t->extents.n_live, 0);
    assert_int_equal(t->extents.live_bytes, 0);
}

quire_seq_id test_open(quire_cache *cache)
{
    return test_open_in(cache, QUIRE_REGION_DYNAMIC);
}

quire_seq_id test_open_in(quire_cache *cache, quire_region_id region)
{
    quire_seq_id seq;

    assert_int_equal(quire_seq_open(cache, region, &seq), QUIRE_OK);
    assert_int_not_equal(seq, QUIRE_SEQ_NULL);
    return seq;
}

quire_seq_id test_fork(quire_cache *cache, quire_seq_id seq)
{
    quire_seq_id fork;

    assert_int_equal(quire_seq_fork(cache, seq, &fork), QUIRE_OK);
    assert_int_not_equal(fork, seq);
    assert_int_equal(quire_seq_tokens(cache, fork), quire_seq_tokens(cache, seq));
    return fork;
}

void test_append(quire_cache *cache, quire_seq_id seq, uint32_t n_tokens)
{
    uint32_t before = quire_seq_tokens(cache, seq);

    assert_int_equal(quire_seq_append(cache, seq, n_tokens), QUIRE_OK);
    assert_int_equal(quire_seq_tokens(cache, seq), before + n_tokens);
}

quire_region_id test_region_open(quire_cache *cache, uint64_t budget_bytes, bool spills)
{
    quire_region_opts opts = QUIRE_REGION_OPTS_INIT;
    quire_region_id region;

    opts.budget_bytes = budget_bytes;
    opts.spills_to_dynamic = spills;
    assert_int_equal(quire_region_open(cache, &opts, &region), QUIRE_OK);
    return region;
}

quire_region_stats test_region_stats(const quire_cache *cache, quire_region_id region)
{
    quire_region_stats stats;

    assert_int_equal(quire_region_stats_get(cache, region, &stats), QUIRE_OK);
    return stats;
}

quire_cache_stats test_stats(const quire_cache *cache)
{
    quire_cache_stats stats;

    quire_cache_stats_get(cache, &stats);
    return stats;
}

static const quire_page_entry *entry_of(const quire_cache *cache, quire_seq_id seq,
                                        quire_group_id group, uint32_t token)
{
    uint32_t index = token / cache->opts.page_tokens;
    quire_seq_table table;
    const quire_page_entry *entry;

    assert_int_equal(quire_seq_table_get(cache, seq, group, &table), QUIRE_OK);
    assert_true(token < table.n_tokens && index < table.n_entries);
    entry = &table.leaves[index / QUIRE_LEAF_ENTRIES][index % QUIRE_LEAF_ENTRIES];
    assert_int_equal(entry->first_pos, index * cache->opts.page_tokens);
    assert_int_equal(entry->first_slot, 0);
    assert_int_equal(entry->positions, 0);
    assert_true(token - index * cache->opts.page_tokens < entry->n_tokens);
    return entry;
}

quire_page_id test_page_of(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                           uint32_t token)
{
    return entry_of(cache, seq, group, token)->page;
}

unsigned char *test_payload(const quire_cache *cache, quire_page_id page, size_t at)
{
    const quire_page_addr addr = quire_cache_page_addrs(cache)[page];
    const quire_group_id group = cache->pool.pages[page].group;
    const quire_pool_class *class = &cache->pool.classes[cache->pool.groups[group].class_index];
    const size_t n_pages = quire_cache_extent_pages(class->page_bytes, class->n_parts);
    unsigned char *part = addr.extent;
    uint32_t p = 0;

    assert_true((addr.extent == NULL) == (class->page_bytes == 0));
    if (addr.extent == NULL) {
        return NULL;
    }
    for (; at >= class->part_bytes[p]; p++) {
        at -= class->part_bytes[p];
        part += n_pages * class->part_bytes[p];
    }
    return part + addr.slot * class->part_bytes[p] + at;
}

unsigned char *test_slot(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                         uint32_t token)
{
    quire_page_id page = test_page_of(cache, seq, group, token);
    size_t slot_bytes = cache->opts.page_bytes[group] / cache->opts.page_tokens;

    assert_int_not_equal(page, QUIRE_PAGE_NULL);
    return test_payload(cache, page, (token % cache->opts.page_tokens) * slot_bytes);
}

static uint64_t pattern(uint32_t stamp, uint32_t group)
{
    return ((uint64_t)stamp << 8 | group) * 0x9e3779b97f4a7c15u;
}

void test_slot_write(const quire_cache *cache, quire_seq_id seq, uint32_t token, uint32_t stamp)
{
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        unsigned char *slot = test_slot(cache, seq, (quire_group_id)g, token);
        size_t slot_bytes = cache->opts.page_bytes[g] / cache->opts.page_tokens;
        uint64_t word = pattern(stamp, g);

        for (size_t at = 0; at < slot_bytes; at += sizeof(word), word++) {
            memcpy(slot + at, &word, sizeof(word));
        }
    }
}

void test_slot_check_in(const quire_cache *cache, quire_seq_id seq, quire_group_id group,
                        uint32_t token, uint32_t stamp)
{
    const unsigned char *slot = test_slot(cache, seq, group, token);
    size_t slot_bytes = cache->opts.page_bytes[group] / cache->opts.page_tokens;
    uint64_t word = pattern(stamp, group);
    uint64_t differs = 0;

    for (size_t at = 0; at < slot_bytes; at += sizeof(word), word++) {
        uint64_t found;

        memcpy(&found, slot + at, sizeof(found));
        differs |= found ^ word;
    }
    if (differs != 0) {
        fail_msg("sequence %u, token %u, group %u: payload differs", seq, token, group);
    }
}

void test_slot_check(const quire_cache *cache, quire_seq_id seq, uint32_t token, uint32_t stamp)
{
    for (uint32_t g = 0; g < cache->opts.n_groups; g++) {
        test_slot_check_in(cache, seq, (quire_group_id)g, token, stamp);
    }
}

void test_append_stamped(quire_cache *cache, quire_seq_id seq, uint32_t n, uint32_t first)
{
    uint32_t at = quire_seq_tokens(cache, seq);

    test_append(cache, seq, n);
    for (uint32_t i = 0; i < n; i++) {
        test_slot_write(cache, seq, at + i, first + i);
    }
}
