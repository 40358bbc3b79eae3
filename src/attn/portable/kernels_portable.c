/* kernels_portable.c - the kernel set in plain C: runs everywhere, and is the model that the SIMD
 * sets are read against.
 *
 * Loops run over slots (qk) or dimensions (pv) innermost, over contiguous memory, so that a
 * compiler vectorises them for the baseline instruction set.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_math.h"
#include "attn/pack/q8_pack.h"
#include "attn/portable/kernels_portable_sealed.h"
#include "codec/codec_internal.h"
#include "codec/half.h"

#include <math.h>
#include <string.h>

#define TILE QUIRE_TILE_TOKENS

/* A packed q8 row: the scale in a cache line of its own, then int16 v[d]. Others: f32 x[d]. */
#define Q8_HEADER_BYTES 64u

static size_t round_up_64(size_t n)
{
    return (n + 63u) & ~(size_t)63u;
}

static size_t q_bytes(quire_format format, uint32_t d)
{
    if (quire_format_is_sealed(format)) {
        return quire_portable_q_bytes_sealed(d);
    }
    if (format == QUIRE_FORMAT_Q8) {
        return Q8_HEADER_BYTES + round_up_64(d * sizeof(int16_t));
    }
    return round_up_64(d * sizeof(float));
}

static void q_pack(quire_format format, uint32_t d, float scale, const float *q, void *packed)
{
    if (quire_format_is_sealed(format)) {
        quire_portable_q_pack_sealed(d, scale, q, packed);
        return;
    }
    if (format == QUIRE_FORMAT_Q8) {
        *(float *)packed =
            quire_q8_pack_q(d, scale, q, (int16_t *)((unsigned char *)packed + Q8_HEADER_BYTES));
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        ((float *)packed)[i] = scale * q[i];
    }
}

/* Dimension i of all 64 tokens as f32. */
static void k_lane(quire_format format, const void *tile, uint32_t i, float *x)
{
    const uint16_t *h = tile;

    switch (format) {
    case QUIRE_FORMAT_F16:
        h += quire_k_index(1, i, 0);
        for (uint32_t s = 0; s < TILE; s++) {
            x[s] = quire_f16_to_f32(h[s]);
        }
        break;
    case QUIRE_FORMAT_BF16:
        h += quire_k_index(2, i, 0);
        for (uint32_t s = 0; s < TILE; s++) {
            x[s] = quire_bf16_to_f32(h[2 * s]);
        }
        break;
    default:
        memcpy(x, (const float *)tile + i * TILE, TILE * sizeof(float));
        break;
    }
}

static void qk_float(const quire_attn_qk *args)
{
    size_t stride = q_bytes(args->format, args->d) / sizeof(float);
    float k[TILE];

    for (uint32_t i = 0; i < args->d; i++) {
        k_lane(args->format, args->k_tile, i, k);
        for (uint32_t r = 0; r < args->n_rows; r++) {
            float q = ((const float *)args->packed)[r * stride + i];
            float *s = args->s + (size_t)r * TILE;

            for (uint32_t t = 0; t < TILE; t++) {
                s[t] += q * k[t];
            }
        }
    }
}

static void qk_q8_row(uint32_t d, const int16_t *n, const uint8_t *codes, int32_t *acc)
{
    memset(acc, 0, TILE * sizeof(*acc));
    for (uint32_t i = 0; i < d; i += 4, codes += 4 * TILE) {
        for (uint32_t t = 0; t < TILE; t++) {
            const uint8_t *k = codes + 4 * t;

            acc[t] += (k[0] - 128) * n[i] + (k[1] - 128) * n[i + 1] + (k[2] - 128) * n[i + 2] +
                      (k[3] - 128) * n[i + 3];
        }
    }
}

static void qk_q8(const quire_attn_qk *args)
{
    size_t stride = q_bytes(QUIRE_FORMAT_Q8, args->d);
    float k_scale[TILE];
    int32_t acc[TILE];

    for (uint32_t t = 0; t < TILE; t++) {
        k_scale[t] = quire_f16_to_f32(((const uint16_t *)args->k_tile)[t]);
    }
    for (uint32_t r = 0; r < args->n_rows; r++) {
        const unsigned char *row = (const unsigned char *)args->packed + r * stride;
        float q_scale = *(const float *)(const void *)row;

        qk_q8_row(args->d, (const int16_t *)(const void *)(row + Q8_HEADER_BYTES),
                  (const uint8_t *)args->k_tile + QUIRE_Q8_CODES_OFFSET, acc);
        for (uint32_t t = 0; t < TILE; t++) {
            args->s[r * TILE + t] += (float)acc[t] * q_scale * k_scale[t];
        }
    }
}

static void qk(const quire_attn_qk *args)
{
    if (!args->accumulate) {
        memset(args->s, 0, (size_t)args->n_rows * TILE * sizeof(*args->s));
    }
    if (args->format == QUIRE_FORMAT_Q8) {
        qk_q8(args);
    } else if (quire_format_is_sealed(args->format)) {
        quire_portable_qk_sealed(args);
    } else {
        qk_float(args);
    }
}

static void softmax(uint32_t n_rows, uint32_t slot_begin, const uint32_t *slot_end, float *s,
                    float *m, float *l, float *rescale)
{
    for (uint32_t r = 0; r < n_rows; r++, s += TILE) {
        float m_new = m[r];
        float shift;
        float sum = 0.0f;

        rescale[r] = 1.0f;
        if (slot_end[r] <= slot_begin) {
            memset(s, 0, TILE * sizeof(*s));
            continue;
        }
        for (uint32_t t = slot_begin; t < slot_end[r]; t++) {
            m_new = s[t] > m_new ? s[t] : m_new;
        }
        shift = m_new == -INFINITY ? 0.0f : m_new; /* -Inf - -Inf would be NaN where 0 is meant */
        for (uint32_t t = 0; t < TILE; t++) {
            float p = quire_attn_exp(s[t] - shift);

            s[t] = t >= slot_begin && t < slot_end[r] ? p : 0.0f;
        }
        for (uint32_t t = 0; t < TILE; t++) {
            sum += s[t];
        }
        rescale[r] = quire_attn_exp(m[r] - shift);
        l[r] = l[r] * rescale[r] + sum;
        m[r] = m_new;
    }
}

static void v_row(quire_format format, uint32_t d, const void *tile, uint32_t t, float *x)
{
    const uint16_t *h = tile;

    switch (format) {
    case QUIRE_FORMAT_F16:
        h += quire_v_index(1, d, 0, t);
        for (uint32_t i = 0; i < d; i++) {
            x[i] = quire_f16_to_f32(h[i]);
        }
        break;
    case QUIRE_FORMAT_BF16:
        h += quire_v_index(2, d, 0, t);
        for (uint32_t i = 0; i < d; i++) {
            x[i] = quire_bf16_to_f32(h[2 * i]);
        }
        break;
    default:
        memcpy(x, (const float *)tile + (size_t)t * d, d * sizeof(float));
        break;
    }
}

static void pv_q8_row(uint32_t d, const int16_t *n, float unit, const int8_t *codes, float *o)
{
    int32_t acc[QUIRE_HEAD_DIM_MAX];

    memset(acc, 0, d * sizeof(*acc));
    for (uint32_t t = 0; t < TILE; t += 4, codes += (size_t)4 * d) {
        if ((n[t] | n[t + 1] | n[t + 2] | n[t + 3]) == 0) {
            continue;
        }
        for (uint32_t i = 0; i < d; i++) {
            const int8_t *v = codes + 4 * i;

            acc[i] += v[0] * n[t] + v[1] * n[t + 1] + v[2] * n[t + 2] + v[3] * n[t + 3];
        }
    }
    for (uint32_t i = 0; i < d; i++) {
        o[i] += (float)acc[i] * unit;
    }
}

static void pv_q8(const quire_attn_pv *args)
{
    int16_t n[TILE];

    for (uint32_t r = 0; r < args->n_rows; r++) {
        float unit = quire_q8_pack_p(args->p + (size_t)r * TILE, args->v_tile, args->slot_begin,
                                     args->slot_end, n);

        pv_q8_row(args->d, n, unit, (const int8_t *)args->v_tile + QUIRE_Q8_CODES_OFFSET,
                  args->o + r * args->o_stride);
    }
}

static void pv_float(const quire_attn_pv *args)
{
    float v[QUIRE_HEAD_DIM_MAX];

    for (uint32_t t = args->slot_begin; t < args->slot_end; t++) {
        v_row(args->format, args->d, args->v_tile, t, v);
        for (uint32_t r = 0; r < args->n_rows; r++) {
            float weight = args->p[(size_t)r * TILE + t];
            float *o = args->o + r * args->o_stride;

            for (uint32_t i = 0; i < args->d; i++) {
                o[i] += weight * v[i];
            }
        }
    }
}

static void pv(const quire_attn_pv *args)
{
    for (uint32_t r = 0; r < args->n_rows; r++) {
        for (uint32_t i = 0; i < args->d; i++) {
            args->o[r * args->o_stride + i] *= args->rescale[r];
        }
    }
    if (args->format == QUIRE_FORMAT_Q8) {
        pv_q8(args);
    } else if (quire_format_is_sealed(args->format)) {
        quire_portable_pv_sealed(args);
    } else {
        pv_float(args);
    }
}

const quire_attn_kernels *quire_attn_kernels_portable(void)
{
    static const quire_attn_kernels kernels = { .isa = "portable",
                                                .q_bytes = q_bytes,
                                                .q_pack = q_pack,
                                                .qk = qk,
                                                .softmax = softmax,
                                                .pv = pv,
                                                .fold = quire_attn_fold_floats,
                                                .cap = quire_attn_cap_floats };

    return &kernels;
}
