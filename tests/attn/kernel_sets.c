/* kernel_sets.c - see kernel_sets.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "attn/kernel_sets.h"
#include "quire/alloc.h"

#define ROW_BYTES_MAX 4096u /* packed, of the heads that tests have */

uint32_t kernel_sets_all(const quire_attn_kernels **sets)
{
    uint32_t n = 0;

    sets[n++] = quire_attn_kernels_portable();
#if defined(__x86_64__)
    if (quire_attn_kernels_find("avx2") != NULL) {
        sets[n++] = quire_attn_kernels_avx2_plain();
        sets[n++] = quire_attn_kernels_avx2();
    }
    if (quire_attn_kernels_find("avx512") != NULL) {
        sets[n++] = quire_attn_kernels_avx512_plain();
        sets[n++] = quire_attn_kernels_avx512_vnni();
        sets[n++] = quire_attn_kernels_avx512();
    }
    if (quire_attn_kernels_find("avx512+bf16") != NULL) {
        sets[n++] = quire_attn_kernels_avx512_bf16();
    }
    if (quire_attn_kernels_find("avx512+amx") != NULL) {
        sets[n++] = quire_attn_kernels_amx();
    }
#elif defined(__aarch64__)
    assert_non_null(quire_attn_kernels_find("neon"));
    sets[n++] = quire_attn_kernels_neon_plain();
    sets[n++] = quire_attn_kernels_neon();
#endif
    return n;
}

void *kernel_sets_take(size_t bytes)
{
    const quire_allocator *allocator = quire_allocator_default();
    const size_t behind = (size_t)QUIRE_ATTN_ROWS_BEHIND * ROW_BYTES_MAX;
    char *p = allocator->alloc(allocator->ctx, bytes + behind);

    assert_non_null(p);
    memset(p + bytes, 0xff, behind);
    return p;
}
