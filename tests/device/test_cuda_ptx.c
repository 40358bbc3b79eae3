/* test_cuda_ptx.c - the PTX of CUDA kernels that the build made: entries, and no instruction whose
 * result depends on the card.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/cuda/cuda_context.h"

#include <stdio.h>
#include <string.h>

typedef struct kernel_text {
    const char *name;
    const unsigned char *ptx;
    const size_t *bytes;
} kernel_text;

static const kernel_text kernels[] = {
    { "cuda_attn_1", quire_ptx_attn_1, &quire_ptx_attn_1_bytes },
    { "cuda_attn_2", quire_ptx_attn_2, &quire_ptx_attn_2_bytes },
    { "cuda_attn_4", quire_ptx_attn_4, &quire_ptx_attn_4_bytes },
    { "cuda_attn_8", quire_ptx_attn_8, &quire_ptx_attn_8_bytes },
    { "cuda_attn_16", quire_ptx_attn_16, &quire_ptx_attn_16_bytes },
    { "cuda_merge", quire_ptx_merge, &quire_ptx_merge_bytes },
    { "cuda_append", quire_ptx_append, &quire_ptx_append_bytes },
    { "cuda_seal", quire_ptx_seal, &quire_ptx_seal_bytes },
};
#define N_KERNELS (sizeof(kernels) / sizeof(kernels[0]))

/* Fail at the line of the text that has `words`. */
static void refuse(const kernel_text *kernel, const char *words)
{
    const char *at = strstr((const char *)kernel->ptx, words);

    if (at != NULL) {
        fail_msg("%s: '%.60s'", kernel->name, at);
    }
}

static void require(const kernel_text *kernel, const char *words)
{
    if (strstr((const char *)kernel->ptx, words) == NULL) {
        fail_msg("%s: no '%s'", kernel->name, words);
    }
}

static void test_entries(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KERNELS; i++) {
        char entry[64];

        (void)snprintf(entry, sizeof(entry), ".visible .entry %s(", kernels[i].name);
        assert_int_equal(strlen((const char *)kernels[i].ptx) + 1, *kernels[i].bytes);
        require(&kernels[i], entry);
        require(&kernels[i], ".target sm_70");
        require(&kernels[i], ".version 6");
        require(&kernels[i], ".address_size 64");
        require(&kernels[i], ".maxntid 64"); /* so registers are enough */
    }
}

/* Of f32 the additions, products and so on round to nearest, and are not fused by the driver: it
 * may fuse those without a word for rounding. No instruction approximates, none flushes small
 * numbers to zero, no double is used. */
static void test_rounding(void **state)
{
    static const char *const refused[] = { "\tadd.f32", "\tsub.f32", "\tmul.f32", "\tmad.f32",
                                           ".approx",   ".ftz",      ".full",     ".f64 " };

    (void)state;
    for (size_t i = 0; i < N_KERNELS; i++) {
        for (size_t j = 0; j < sizeof(refused) / sizeof(refused[0]); j++) {
            refuse(&kernels[i], refused[j]);
        }
        require(&kernels[i], ".rn.f32");
    }
}

/* Nothing is called, and no array of a thread's is in memory: all of them are registers. */
static void test_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KERNELS; i++) {
        refuse(&kernels[i], ".extern .func");
        refuse(&kernels[i], "call");
        refuse(&kernels[i], ".local");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
