/* kernels_neon.c - the NEON kernel set: dispatch by format, query packing, softmax.
 *
 * Sealed formats use the dot-product extension where the processor has it. q8 does not: sdot
 * multiplies bytes, and q8's P has 15 bits (kernels.h); the largest, 32767, does not even split
 * into two signed bytes. Its q has 8, and q . K by sdot would give the same integers; whether sdot
 * is faster has to be measured on such a processor first: times under qemu say nothing.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/neon/kernels_neon.h"
#include "attn/attn_math.h"
#include "attn/pack/q8_pack.h"
#include "attn/pack/sealed_pack.h"
#include "base/cpu.h"

#define TILE            QUIRE_TILE_TOKENS
#define REGS            (TILE / 4u)
#define VECTOR(name)    quire_neon_##name
#define VECTOR_Q8_START (-64)
#include "attn/vector/kernels_vector_set_body.h"

/* quire_attn_exp() (attn_math.h) for 4 values, with fused multiply-adds. */
static inline float32x4_t exp_of_nonpositive(float32x4_t x)
{
    uint32x4_t is_low = vcltq_f32(x, vdupq_n_f32(QUIRE_EXP_MIN)); /* not NaN */
    float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693359375f));
    float32x4_t p = vdupq_n_f32(1.9875691500e-4f);
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));

    r = vfmaq_f32(r, n, vdupq_n_f32(2.12194440e-4f));
    p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), p, r);
    p = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.0f)), p, vmulq_f32(r, r));
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), is_low));
}

/* All ones in the lanes of slots 4 * i .. 4 * i + 3 that lie in [begin, end). */
static inline uint32x4_t visible(uint32_t i, uint32_t begin, uint32_t end)
{
    static const uint32_t lanes[4] = { 0, 1, 2, 3 };
    uint32x4_t slot = vaddq_u32(vld1q_u32(lanes), vdupq_n_u32(4 * i));

    return vandq_u32(vcgeq_u32(slot, vdupq_n_u32(begin)), vcltq_u32(slot, vdupq_n_u32(end)));
}

/* One row that sees something. Returns rescale. */
static inline float softmax_row(uint32_t begin, uint32_t end, float *s, float *m, float *l)
{
    float32x4_t max = vdupq_n_f32(-INFINITY);
    float32x4_t sum = vdupq_n_f32(0.0f);
    float m_new;
    float shift;
    float rescale;

    for (uint32_t i = 0; i < REGS; i++) {
        float32x4_t x = vld1q_f32(s + 4 * i);

        /* no comparison with a NaN holds: it shows in P, not here */
        max = vbslq_f32(vandq_u32(vcgtq_f32(x, max), visible(i, begin, end)), x, max);
    }
    m_new = vmaxvq_f32(max);
    m_new = m_new > *m ? m_new : *m;
    shift = m_new == -INFINITY ? 0.0f : m_new; /* -Inf - -Inf would be NaN where 0 is meant */
    for (uint32_t i = 0; i < REGS; i++) {
        float32x4_t p = exp_of_nonpositive(vsubq_f32(vld1q_f32(s + 4 * i), vdupq_n_f32(shift)));

        p = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(p), visible(i, begin, end)));
        sum = vaddq_f32(sum, p);
        vst1q_f32(s + 4 * i, p);
    }
    rescale = quire_attn_exp(*m - shift);
    *l = *l * rescale + vaddvq_f32(sum);
    *m = m_new;
    return rescale;
}

static void softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                    float *m, float *l, float *rescale)
{
    for (uint32_t r = 0; r < n_rows; r++, s += TILE) {
        if (slot_end[r] > slot_begin) {
            rescale[r] = softmax_row(slot_begin, slot_end[r], s, m + r, l + r);
        } else {
            rescale[r] = 1.0f;
            memset(s, 0, TILE * sizeof(*s));
        }
    }
}

static void q_pack(quire_format format, uint32_t d, float scale, const float *q, void *packed)
{
    float *x = packed;

    if (format == QUIRE_FORMAT_Q8) {
        q_pack_q8(d, scale, q, packed);
        return;
    }
    if (quire_format_is_sealed(format)) {
        quire_neon_sealed_header *header = packed;
        int8_t *n = (int8_t *)packed + quire_neon_sealed_weights_offset(d);

        header->scale = quire_sealed_pack_q(d, scale, q, n);
        x = (float *)(void *)(header + 1);
    }
    for (uint32_t i = 0; i < d; i += 4) {
        vst1q_f32(x + i, vmulq_n_f32(vld1q_f32(q + i), scale));
    }
}

static void qk_dotprod(const quire_attn_qk *args)
{
    quire_format_is_sealed(args->format) ? quire_neon_qk_sealed_dotprod(args) : qk(args);
}

static void pv_dotprod(const quire_attn_pv *args)
{
    quire_format_is_sealed(args->format) ? quire_neon_pv_sealed_dotprod(args) : pv(args);
}

const quire_attn_kernels *quire_attn_kernels_neon_plain(void)
{
    static const quire_attn_kernels kernels = { .isa = "neon",
                                                .q_bytes = q_bytes,
                                                .q_pack = q_pack,
                                                .qk = qk,
                                                .softmax = softmax,
                                                .pv = pv,
                                                .fold = quire_attn_fold_floats,
                                                .cap = quire_attn_cap_floats };

    return &kernels;
}

const quire_attn_kernels *quire_attn_kernels_neon(void)
{
    static const quire_attn_kernels kernels = { .isa = "neon",
                                                .q_bytes = q_bytes,
                                                .q_pack = q_pack,
                                                .qk = qk_dotprod,
                                                .softmax = softmax,
                                                .pv = pv_dotprod,
                                                .fold = quire_attn_fold_floats,
                                                .cap = quire_attn_cap_floats };

    return quire_cpu_get()->has_neon_dotprod ? &kernels : quire_attn_kernels_neon_plain();
}
