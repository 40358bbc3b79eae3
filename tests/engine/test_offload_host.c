/* test_offload_host.c - slots of offloaded pages in pinned memory: its bounds, and failed pins.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "offload/offload_host.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES   ((size_t)1 << 20)
#define STRIPE_BYTES (QUIRE_OFFLOAD_STRIPE * PAGE_BYTES)
#define IN_BLOCK     (uint32_t)(QUIRE_OFFLOAD_BLOCK_BYTES / STRIPE_BYTES)

#define IN_BLOCK_MAX 16u

/* Pinned memory of which so much is left. */
typedef struct pins {
    size_t left;
    size_t pinned_bytes;
} pins;

static void *pins_pin(void *ctx, size_t bytes)
{
    pins *p = ctx;

    if (bytes > p->left) {
        return NULL;
    }
    p->left -= bytes;
    p->pinned_bytes += bytes;
    return malloc(bytes);
}

static void pins_unpin(void *ctx, void *base, size_t bytes)
{
    pins *p = ctx;

    p->left += bytes;
    p->pinned_bytes -= bytes;
    free(base);
}

static int pins_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces, uint32_t n)
{
    (void)ctx;
    assert_int_equal(kind, QUIRE_PAGE_COPY_OUT);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    }
    return QUIRE_OK;
}

static quire_offload_host *host_open(pins *p, uint64_t capacity_bytes)
{
    const size_t part_bytes = PAGE_BYTES;
    const quire_page_memory memory = {
        .copy = pins_copy, .pin = pins_pin, .unpin = pins_unpin, .ctx = p
    };
    const quire_offload_file_opts opts = {
        .capacity_bytes = capacity_bytes, .n_parts = 1, .part_bytes = &part_bytes, .extent_pages = 1
    };
    quire_offload_host *host;

    assert_int_equal(quire_offload_host_open(&host, &memory, &opts, NULL), QUIRE_OK);
    return host;
}

/* Write one page as a stripe. Returns the status. */
static int write_one(quire_offload_host *host, unsigned char byte, uint32_t *slot)
{
    unsigned char *page = malloc(PAGE_BYTES);
    const quire_page_addr addr = { .extent = page };
    int rc;

    memset(page, byte, PAGE_BYTES);
    rc = quire_offload_host_write(host, &addr, 1, slot);
    free(page);
    return rc;
}

/* The last block ends with the last stripe: no more is pinned than the capacity. */
static void test_bounds(void **state)
{
    const uint64_t capacity_bytes = QUIRE_OFFLOAD_BLOCK_BYTES + STRIPE_BYTES + PAGE_BYTES;
    pins p = { .left = SIZE_MAX };
    quire_offload_host *host = host_open(&p, capacity_bytes);
    uint32_t slot;

    (void)state;
    assert_int_equal(quire_offload_host_stripes_max(host), IN_BLOCK + 1);
    for (uint32_t i = 0; i < IN_BLOCK + 1; i++) {
        assert_int_equal(write_one(host, (unsigned char)i, &slot), QUIRE_OK);
        assert_true(p.pinned_bytes <= capacity_bytes);
    }
    assert_int_equal(p.pinned_bytes, QUIRE_OFFLOAD_BLOCK_BYTES + STRIPE_BYTES);
    assert_int_equal(*quire_offload_host_at(host, slot, 0), IN_BLOCK);
    assert_int_equal(write_one(host, 0, &slot), QUIRE_LIMIT);
    quire_offload_host_close(host);
    assert_int_equal(p.pinned_bytes, 0);
}

/* A block that cannot be pinned hides no free stripe of the blocks behind it. */
static void test_failed_pin(void **state)
{
    pins p = { .left = SIZE_MAX };
    quire_offload_host *host = host_open(&p, 2 * QUIRE_OFFLOAD_BLOCK_BYTES);
    quire_offload_file_stats stats;
    uint32_t slots[IN_BLOCK_MAX], slot;

    (void)state;
    assert_true(IN_BLOCK < IN_BLOCK_MAX);
    for (uint32_t i = 0; i < IN_BLOCK + 1; i++) {
        assert_int_equal(write_one(host, 1, &slots[i]), QUIRE_OK);
    }
    for (uint32_t i = 0; i < IN_BLOCK; i++) {
        quire_offload_host_release(host, slots[i]);
    }
    assert_int_equal(p.pinned_bytes, QUIRE_OFFLOAD_BLOCK_BYTES);
    p.left = 0;
    for (uint32_t i = 1; i < IN_BLOCK; i++) {
        assert_int_equal(write_one(host, 2, &slot), QUIRE_OK);
        assert_int_equal(slot, (IN_BLOCK + i) * QUIRE_OFFLOAD_STRIPE);
    }
    assert_int_equal(write_one(host, 2, &slot), QUIRE_LIMIT);
    quire_offload_host_stats_get(host, &stats);
    assert_true(stats.failures_total > 0);
    assert_non_null(strstr(quire_offload_host_trouble(host), "pinning"));
    p.left = SIZE_MAX - p.pinned_bytes;
    assert_int_equal(write_one(host, 3, &slot), QUIRE_OK);
    assert_int_equal(slot, 0);
    quire_offload_host_close(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_failed_pin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
