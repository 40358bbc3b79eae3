/* offload_kit.c - see offload_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "directory.h"
#include "offload_kit.h"

#include <stdlib.h>
#include <string.h>

size_t offload_part_offset(uint32_t part)
{
    return quire_cache_extent_pages(PAGE_BYTES, N_PARTS) * part * PART_BYTES;
}

quire_page_id offload_page_of(const quire_seq_table *table, uint32_t i)
{
    return table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES].page;
}

static int inner_check(void *ctx, const quire_attn_layer *layer)
{
    (void)ctx;
    (void)layer;
    return QUIRE_OK;
}

static void inner_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                         uint32_t n_threads)
{
    (void)ctx;
    (void)layer;
    (void)thread;
    (void)n_threads;
}

quire_attn_device offload_inner(void *ctx, int (*plan)(void *ctx, const quire_attn_batch *batch),
                                void (*run)(void *ctx, const quire_attn_layer *layer, uint32_t call,
                                            uint32_t thread, uint32_t n_threads),
                                int (*sync)(void *ctx))
{
    return (quire_attn_device){ .name = "test",
                                .ctx = ctx,
                                .check = inner_check,
                                .plan = plan,
                                .append = inner_append,
                                .run = run,
                                .sync = sync };
}

static bool chooses(const quire_attn_seq *seq)
{
    return seq->lanes != NULL;
}

void offload_open(quire_cache **cache, uint64_t budget_bytes, quire_offload **offload,
                  quire_offload_opts *opts, bool has_choice)
{
    static size_t part_bytes[N_PARTS], kept_bytes[N_PARTS];
    quire_cache_opts cache_opts = QUIRE_CACHE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    for (uint32_t p = 0; p < N_PARTS; p++) {
        part_bytes[p] = PART_BYTES;
        kept_bytes[p] = KEPT_BYTES;
    }
    cache_opts.page_bytes[0] = PAGE_BYTES;
    cache_opts.n_parts[0] = N_PARTS;
    cache_opts.part_bytes[0] = part_bytes;
    cache_opts.budget_bytes = budget_bytes;
    cache_opts.memory = opts->memory;
    assert_int_equal(quire_cache_create(cache, &cache_opts), QUIRE_OK);
    opts->cache = *cache;
    opts->choice = has_choice ? (quire_offload_choice){ chooses, N_DENSE, kept_bytes }
                              : (quire_offload_choice){ .chooses = NULL };
    opts->file.dir = test_dir;
    opts->file.n_parts = N_PARTS;
    opts->file.part_bytes = part_bytes;
    opts->file.extent_pages = quire_cache_extent_pages(PAGE_BYTES, N_PARTS);
    opts->file.reads_kind = QUIRE_READS_POOL;
    assert_int_equal(quire_offload_open(offload, opts, &err), QUIRE_OK);
}

void offload_fill(quire_cache *cache, quire_seq_id *seq, quire_seq_table *table, uint32_t n_pages,
                  unsigned char (*byte_of)(uint32_t number, uint32_t page, uint32_t part),
                  uint32_t number)
{
    unsigned char *page = malloc(PAGE_BYTES);

    assert_non_null(page);
    assert_int_equal(quire_seq_open(cache, QUIRE_REGION_DYNAMIC, seq), QUIRE_OK);
    assert_int_equal(quire_seq_append(cache, *seq, n_pages * P + 1), QUIRE_OK);
    assert_int_equal(quire_seq_table_get(cache, *seq, 0, table), QUIRE_OK);
    for (uint32_t i = 0; i < n_pages; i++) {
        for (uint32_t p = 0; p < N_PARTS; p++) {
            memset(page + p * PART_BYTES, byte_of(number, i, p), PART_BYTES);
        }
        assert_int_equal(
            quire_cache_page_scatter(cache, offload_page_of(table, i), page, PAGE_BYTES), QUIRE_OK);
    }
    free(page);
}
