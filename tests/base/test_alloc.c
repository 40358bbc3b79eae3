/* test_alloc.c - the default allocator: alignment, odd sizes, refusals.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void blocks_are_aligned_and_usable(void **state)
{
    const quire_allocator *allocator = quire_allocator_default();

    (void)state;
    for (size_t size_bytes = 1; size_bytes < 10000; size_bytes += size_bytes / 3 + 1) {
        unsigned char *block = allocator->alloc(allocator->ctx, size_bytes);

        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 64, 0);
        memset(block, 0x5a, size_bytes);
        assert_int_equal(block[size_bytes - 1], 0x5a);
        allocator->free(allocator->ctx, block);
    }
}

static void impossible_sizes_are_refused(void **state)
{
    const quire_allocator *allocator = quire_allocator_default();

    (void)state;
    /* Rounding up to the alignment must not wrap around to a small block. */
    for (size_t below = 0; below < 64; below++) {
        assert_null(allocator->alloc(allocator->ctx, SIZE_MAX - below));
    }
}

static void freeing_null_is_allowed(void **state)
{
    const quire_allocator *allocator = quire_allocator_default();

    (void)state;
    assert_ptr_equal(allocator, quire_allocator_default());
    allocator->free(allocator->ctx, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_usable),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(freeing_null_is_allowed),
    };

    return cmocka_run_group_tests_name("alloc", tests, NULL, NULL);
}
