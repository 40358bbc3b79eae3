/* kernels_avx512.c - the AVX-512 kernel set: dispatch by format, query packing, softmax.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_math.h"
#include "attn/avx512/kernels_avx512_softmax_body.h"
#include "base/cpu.h"

#define REGS   QUIRE_AVX512_REGS
#define UNROLL _Pragma("GCC unroll 16")

/* The largest is looked for among all 4 rows: which one must rise shows later. */
QUIRE_AVX512_INLINE bool four_weights(uint32_t n, bool is_whole, bool is_sure,
                                      const quire_avx512_rows *rows, uint32_t row,
                                      const float *shift)
{
    float *s = rows->s + row * (size_t)QUIRE_TILE_TOKENS;
    __m512 top = _mm512_set1_ps(-INFINITY);
    __m512 p[4][REGS];
    __m512 sum[4];

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const uint64_t visible = quire_avx512_visible(is_whole, rows, row + k / REGS);

        p[k / REGS][k % REGS] =
            _mm512_sub_ps(_mm512_load_ps(s + 16 * k), _mm512_set1_ps(shift[k / REGS]));
        top = _mm512_mask_max_ps(top, (__mmask16)(visible >> (16 * (k % REGS))),
                                 p[k / REGS][k % REGS], top);
    }
    if (!is_sure && _mm512_cmp_ps_mask(top, _mm512_set1_ps(QUIRE_ATTN_RISE), _CMP_GT_OQ) != 0) {
        return false;
    }
    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const uint64_t visible = quire_avx512_visible(is_whole, rows, row + k / REGS);

        p[k / REGS][k % REGS] =
            quire_avx512_exp((__mmask16)(visible >> (16 * (k % REGS))), p[k / REGS][k % REGS]);
        _mm512_store_ps(s + 16 * k, p[k / REGS][k % REGS]);
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        sum[r] = _mm512_add_ps(_mm512_add_ps(p[r][0], p[r][1]), _mm512_add_ps(p[r][2], p[r][3]));
    }
    quire_avx512_four_sums(n, is_sure, rows, row, sum);
    return true;
}

static quire_attn_softmax softmax;
QUIRE_AVX512_SOFTMAX(softmax, four_weights)

static size_t q_bytes(quire_format format, uint32_t d)
{
    return quire_avx512_q_bytes(format, d);
}

static void pack_float(uint32_t d, float scale, const float *q, void *packed)
{
    float *to = packed;

    for (uint32_t c = 0; c < d; c++) {
        to[c] = scale * q[c];
    }
}

/* q_pack, qk and pv of a set, by format, and its table; the arguments after sealed_suffix are the
 * rest of the table. */
#define KERNELS_BY_FORMAT(name, suffix, bf16_pack, bf16_suffix, q8_suffix, sealed_suffix, ...)     \
    static void q_pack##suffix(quire_format format, uint32_t d, float scale, const float *q,       \
                               void *packed)                                                       \
    {                                                                                              \
        if (quire_format_is_sealed(format)) {                                                      \
            quire_avx512_sealed_pack(d, scale, q, packed);                                         \
        } else if (format == QUIRE_FORMAT_Q8) {                                                    \
            quire_avx512_q8_pack(d, scale, q, packed);                                             \
        } else if (format == QUIRE_FORMAT_BF16) {                                                  \
            bf16_pack(d, scale, q, packed);                                                        \
        } else {                                                                                   \
            pack_float(d, scale, q, packed);                                                       \
        }                                                                                          \
    }                                                                                              \
    static void qk##suffix(const quire_attn_qk *args)                                              \
    {                                                                                              \
        if (quire_format_is_sealed(args->format)) {                                                \
            quire_avx512_qk_sealed##sealed_suffix(args);                                           \
        } else if (args->format == QUIRE_FORMAT_Q8) {                                              \
            quire_avx512_qk_q8##q8_suffix(args);                                                   \
        } else if (args->format == QUIRE_FORMAT_BF16) {                                            \
            quire_avx512_qk##bf16_suffix(args);                                                    \
        } else {                                                                                   \
            quire_avx512_qk_float(args);                                                           \
        }                                                                                          \
    }                                                                                              \
    static void pv##suffix(const quire_attn_pv *args)                                              \
    {                                                                                              \
        if (quire_format_is_sealed(args->format)) {                                                \
            quire_avx512_pv_sealed##sealed_suffix(args);                                           \
        } else if (args->format == QUIRE_FORMAT_Q8) {                                              \
            quire_avx512_pv_q8##q8_suffix(args);                                                   \
        } else if (args->format == QUIRE_FORMAT_BF16) {                                            \
            quire_avx512_pv##bf16_suffix(args);                                                    \
        } else {                                                                                   \
            quire_avx512_pv_float(args);                                                           \
        }                                                                                          \
    }                                                                                              \
    static const quire_attn_kernels kernels##suffix = { .isa = (name),                             \
                                                        .q_bytes = q_bytes,                        \
                                                        .q_pack = q_pack##suffix,                  \
                                                        .qk = qk##suffix,                          \
                                                        .softmax = softmax,                        \
                                                        .pv = pv##suffix,                          \
                                                        .fold = quire_attn_fold_floats,            \
                                                        .cap = quire_attn_cap_floats,              \
                                                        __VA_ARGS__ };

#define BF16_AND_WEIGH .softmax_bf16 = quire_avx512_bf16_softmax, .weigh = quire_avx512_weigh

KERNELS_BY_FORMAT("avx512", _plain, pack_float, _float, , , .weigh = NULL)
KERNELS_BY_FORMAT("avx512", _vnni, pack_float, _float, _vnni, _vnni, .weigh = NULL)
KERNELS_BY_FORMAT("avx512", _vbmi, pack_float, _float, _vnni, _vbmi, .weigh = quire_avx512_weigh)
KERNELS_BY_FORMAT("avx512+bf16", _bf16, quire_avx512_bf16_pack, _bf16, _vnni, _vbmi, BF16_AND_WEIGH)
KERNELS_BY_FORMAT("avx512+amx", _amx, quire_avx512_bf16_pack, _bf16_amx, _amx, _amx, BF16_AND_WEIGH,
                  .shares_ahead = true, .enter = quire_amx_enter, .leave = quire_amx_leave)

const quire_attn_kernels *quire_attn_kernels_avx512_plain(void)
{
    return &kernels_plain;
}

const quire_attn_kernels *quire_attn_kernels_avx512_vnni(void)
{
    return quire_cpu_get()->has_avx512_vnni ? &kernels_vnni : &kernels_plain;
}

const quire_attn_kernels *quire_attn_kernels_avx512(void)
{
    return quire_cpu_get()->has_avx512_vbmi ? &kernels_vbmi : quire_attn_kernels_avx512_vnni();
}

const quire_attn_kernels *quire_attn_kernels_avx512_bf16(void)
{
    return quire_cpu_get()->has_avx512_bf16 ? &kernels_bf16 : NULL;
}

const quire_attn_kernels *quire_attn_kernels_amx(void)
{
    return quire_cpu_amx_allow() ? &kernels_amx : NULL;
}
