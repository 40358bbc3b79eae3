/* attn_machine_body.h - attn_machine for one vector width. The including file defines VEC (a
 * register of VEC_LANES floats), the operations on it, and MACHINE_NAME.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_machine.h"

#include <math.h>

#define REGS_MAX (1024 / VEC_LANES)

/* n is the number of registers of a row: a constant where this is inlined for the usual sizes. */
static inline __attribute__((always_inline)) void row_major_body(const attn_row_major *args,
                                                                 uint32_t n)
{
    VEC q[REGS_MAX];
    VEC o[REGS_MAX];
    float m = -INFINITY;
    float l = 0.0f;

    for (uint32_t i = 0; i < n; i++) {
        q[i] = VEC_LOAD(args->q + (size_t)i * VEC_LANES);
        o[i] = VEC_SET(0.0f);
    }
    for (uint32_t t = 0; t < args->n_tokens; t++) {
        const uint16_t *k = args->k + (size_t)t * args->d;
        const uint16_t *v = args->v + (size_t)t * args->d;
        VEC sum[2] = { VEC_SET(0.0f), VEC_SET(0.0f) };
        float logit;
        float p = 1.0f;

        for (uint32_t i = 0; i < n; i++) {
            sum[i % 2] = VEC_FMA(VEC_LOAD_F16(k + (size_t)i * VEC_LANES), q[i], sum[i % 2]);
        }
        logit = VEC_REDUCE(VEC_ADD(sum[0], sum[1]));
        if (logit > m) {
            float rescale = expf(m - logit);

            for (uint32_t i = 0; i < n; i++) {
                o[i] = VEC_MUL(o[i], VEC_SET(rescale));
            }
            l *= rescale;
            m = logit;
        } else {
            p = expf(logit - m);
        }
        l += p;
        for (uint32_t i = 0; i < n; i++) {
            o[i] = VEC_FMA(VEC_LOAD_F16(v + (size_t)i * VEC_LANES), VEC_SET(p), o[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        VEC_STORE(args->out + (size_t)i * VEC_LANES, VEC_MUL(o[i], VEC_SET(1.0f / l)));
    }
}

static void row_major(const attn_row_major *args)
{
    switch (args->d) {
    case 48:
        row_major_body(args, 48 / VEC_LANES);
        break;
    case 64:
        row_major_body(args, 64 / VEC_LANES);
        break;
    case 96:
        row_major_body(args, 96 / VEC_LANES);
        break;
    case 128:
        row_major_body(args, 128 / VEC_LANES);
        break;
    default:
        row_major_body(args, args->d / VEC_LANES);
        break;
    }
}

static void read_all(const void *buffer, size_t size_bytes)
{
    const char *p = buffer;
    const char *end = p + size_bytes;

    for (; p < end; p += 256) {
        for (int i = 0; i < 256; i += (int)sizeof(VEC)) {
            VEC x = VEC_LOAD((const float *)(const void *)(p + i));

            __asm__ volatile("" : : "x"(x)); /* the value counts as used */
        }
    }
}

static uint32_t fma_rounds(uint64_t n)
{
    VEC acc[12];
    VEC a = VEC_SET(0.5f);
    VEC b = VEC_SET(1.0f);

    for (int i = 0; i < 12; i++) {
        acc[i] = VEC_SET((float)i);
    }
    for (uint64_t round = 0; round < n; round++) {
        for (int i = 0; i < 12; i++) {
            acc[i] = VEC_FMA(acc[i], a, b);
        }
        __asm__ volatile("" : "+x"(a));
    }
    for (int i = 0; i < 12; i++) {
        __asm__ volatile("" : : "x"(acc[i]));
    }
    return 12 * 2 * VEC_LANES;
}

const attn_machine *MACHINE_NAME(void)
{
    static const attn_machine machine = { MACHINE_ISA, row_major, read_all, fma_rounds };

    return &machine;
}
