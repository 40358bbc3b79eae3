/* kernels_avx512_vnni.c - q8 with VNNI: multiply and add in one instruction, words for few rows,
 * bytes for many.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_dot.h"

#define Q8_DOT(acc, a, b) quire_avx512_dot_words((acc), (a), (b))
#include "attn/avx512/kernels_avx512_q8_body.h"

/* ---- q . K of many rows ---- */

#define BYTES_ROWS 6 /* K's codes need no spreading, so more rows find room */

QUIRE_AVX512_INLINE void bytes_group(uint32_t n, const qk_block *block, const char *q, uint32_t c,
                                     __m512i acc[BYTES_ROWS][REGS])
{
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, block->args->d);
    const char *codes =
        (const char *)block->args->k_tile + SCALES_BYTES + (size_t)c * QUIRE_TILE_TOKENS;
    __m512i k[REGS];

    UNROLL
    for (uint32_t i = 0; i < REGS; i++) {
        k[i] = _mm512_load_si512(codes + 64 * i);
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const void *from = q + r * q_bytes + c;
        __m512i x = _mm512_set1_epi32(*(const int32_t *)from);

        UNROLL
        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = quire_avx512_dot_bytes(acc[r][i], k[i], x);
        }
    }
}

QUIRE_AVX512_INLINE void bytes_rows(uint32_t n, qk_block *block)
{
    const quire_attn_qk *args = block->args;
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *packed = (const char *)args->packed + block->row * q_bytes;
    const char *q = packed + quire_avx512_q8_bytes_offset(args->d);
    __m512i acc[BYTES_ROWS][REGS];

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const void *header = packed + k / REGS * q_bytes;

        acc[k / REGS][k % REGS] =
            _mm512_set1_epi32(((const quire_avx512_q8_header *)header)->start);
    }
    for (uint32_t c = 0; c < args->d; c += GROUP) {
        quire_avx512_prefetch(&block->ahead, 64 * REGS);
        bytes_group(n, block, q, c, acc);
    }
    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const void *header = packed + k / REGS * q_bytes;
        const __m512 scale = _mm512_set1_ps(((const quire_avx512_q8_header *)header)->scale);
        float *s = args->s + block->row * (size_t)QUIRE_TILE_TOKENS + (size_t)16 * k;
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[k / REGS][k % REGS]), scale);

        x = _mm512_mul_ps(x, block->k_scale[k % REGS]);
        _mm512_store_ps(s, args->accumulate ? _mm512_add_ps(_mm512_load_ps(s), x) : x);
    }
}

static void qk_bytes(const quire_attn_qk *args)
{
    qk_block block = { .args = args,
                       .ahead = quire_avx512_ahead_of_qk(args, (args->n_rows + 5) / 6) };

    quire_avx512_load_scales(args->k_tile, block.k_scale);
    quire_avx512_prefetch_lines(&block.ahead, SCALES_BYTES / 64);
    while (block.row < args->n_rows) {
        uint32_t n = quire_avx512_next_6(args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_6(n, bytes_rows, &block);
        block.row += n;
        quire_avx512_ahead_advance(&block.ahead, args->k_tile);
    }
}

/* Both give the same bits. Of few rows memory is the limit, and beside products of bytes prefetches
 * come too fast for it: 3 rows of head 64 take a third longer than with words. */
void quire_avx512_qk_q8_vnni(const quire_attn_qk *args)
{
    if (args->n_rows > 4) {
        qk_bytes(args);
    } else {
        qk_words(args);
    }
}

/* ---- P . V of many rows ---- */

#define PLANES_ROWS 3 /* each has two accumulators by register of V */

/* A weight of 15 bits as two bytes: codes are multiplied as they lie, where words would have to be
 * spread for every block of rows. The sums are the same integers. */
typedef struct planes_block {
    const quire_attn_pv *args;
    uint32_t first; /* the row of unit[0] and weights[0] */
    uint32_t row;
    uint32_t dim;
    quire_avx512_ahead ahead;
    _Alignas(16) float unit[ROWS_PACKED];
    _Alignas(64) uint8_t weights[ROWS_PACKED][PLANES][QUIRE_TILE_TOKENS]; /* low, high */
} planes_block;

/* The rows' weights against regs registers of dimensions. */
QUIRE_AVX512_INLINE void planes_sums(uint32_t n, uint32_t regs, bool half, planes_block *block,
                                     __m512i acc[PLANES_ROWS * PLANES][REGS])
{
    const quire_attn_pv *args = block->args;
    const uint32_t first = args->slot_begin / GROUP * GROUP;
    const size_t stride = (size_t)GROUP * args->d;
    const char *at = (const char *)args->v_tile + SCALES_BYTES + (size_t)GROUP * block->dim +
                     (size_t)first * args->d;
    /* One pointer for all rows: the others' weights lie at constant distances. */
    const uint8_t *x = block->weights[block->row - block->first][0] + first;
    const uint8_t *x_end = x - first + args->slot_end;
    quire_avx512_ahead ahead = block->ahead; /* in registers */

    UNROLL
    for (uint32_t k = 0; k < n * PLANES * regs; k++) {
        acc[k / regs][k % regs] = _mm512_setzero_si512();
    }
    for (; x < x_end; x += GROUP, at += stride) {
        __m512i v[REGS];

        quire_avx512_prefetch(&ahead, (size_t)64 * regs);
        UNROLL
        for (uint32_t i = 0; i < regs; i++) {
            v[i] = half ? _mm512_maskz_loadu_epi32(0xff, at) : _mm512_loadu_si512(at + 64 * i);
        }
        UNROLL
        for (uint32_t k = 0; k < n * PLANES; k++) {
            const void *from = x + (size_t)k * QUIRE_TILE_TOKENS;
            __m512i same = _mm512_set1_epi32(*(const int32_t *)from);

            UNROLL
            for (uint32_t i = 0; i < regs; i++) {
                acc[k][i] = quire_avx512_dot_bytes(acc[k][i], same, v[i]);
            }
        }
    }
    block->ahead.at = ahead.at;
}

QUIRE_AVX512_INLINE void planes_cols(uint32_t n, uint32_t regs, bool half, planes_block *block)
{
    const quire_attn_pv *args = block->args;
    const float *unit = block->unit + (block->row - block->first);
    const float *rescale = args->rescale + block->row;
    float *o = args->o + block->row * args->o_stride + block->dim;
    __m512i acc[PLANES_ROWS * PLANES][REGS];

    planes_sums(n, regs, half, block, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++, o += args->o_stride) {
        const __m512 factor = _mm512_set1_ps(unit[r]);
        const __m512 old = _mm512_set1_ps(rescale[r]);

        UNROLL
        for (uint32_t i = 0; i < regs; i++) {
            __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(acc[PLANES * r + 1][i], LOW_BITS),
                                           acc[PLANES * r][i]);
            __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor);

            _mm512_store_ps(o + 16 * i, _mm512_fmadd_ps(_mm512_load_ps(o + 16 * i), old, x));
        }
    }
    block->dim += 16 * regs;
}

/* Each body is a function: inlined together, the bodies would spill the registers with their
 * addresses. */
#define PLANES_64(n)                                                                               \
    static __attribute__((noinline)) void planes_64_##n(planes_block *block)                       \
    {                                                                                              \
        planes_cols(n, 4, false, block);                                                           \
    }
#define PLANES_REST(n)                                                                             \
    static __attribute__((noinline)) void planes_rest_##n(planes_block *block)                     \
    {                                                                                              \
        const uint32_t d = block->args->d;                                                         \
                                                                                                   \
        if ((d & 32) != 0) {                                                                       \
            planes_cols(n, 2, false, block);                                                       \
        }                                                                                          \
        if ((d & 16) != 0) {                                                                       \
            planes_cols(n, 1, false, block);                                                       \
        }                                                                                          \
        if ((d & 8) != 0) {                                                                        \
            planes_cols(n, 1, true, block);                                                        \
        }                                                                                          \
    }
PLANES_64(1)
PLANES_64(2)
PLANES_64(3)
PLANES_REST(1)
PLANES_REST(2)
PLANES_REST(3)

static void planes_rows(uint32_t n, planes_block *block)
{
    static void (*const of_64[])(planes_block *) = { planes_64_1, planes_64_2, planes_64_3 };
    static void (*const of_rest[])(planes_block *) = { planes_rest_1, planes_rest_2,
                                                       planes_rest_3 };

    block->dim = 0;
    while (block->args->d - block->dim >= 64) {
        of_64[n - 1](block);
    }
    if (block->args->d % 64 != 0) {
        of_rest[n - 1](block);
    }
}

static void pv_planes(const quire_attn_pv *args, const __m512 v_scale[REGS])
{
    planes_block block;
    uint32_t end;

    block.args = args;
    block.ahead = quire_avx512_ahead_of_pv(args, (args->n_rows + PLANES_ROWS - 1) / PLANES_ROWS);
    quire_avx512_prefetch_lines(&block.ahead, SCALES_BYTES / 64);
    for (block.first = 0; block.first < args->n_rows; block.first = end) {
        end = block.first + ROWS_PACKED < args->n_rows ? block.first + ROWS_PACKED : args->n_rows;
        quire_avx512_q8_planes(end - block.first, args->p + block.first * (size_t)QUIRE_TILE_TOKENS,
                               v_scale, block.unit, block.weights);
        for (block.row = block.first; block.row < end;) {
            const uint32_t n_left = end - block.row;
            const uint32_t n = n_left == 4 ? 2 : n_left < PLANES_ROWS ? n_left : PLANES_ROWS;

            planes_rows(n, &block);
            block.row += n;
            quire_avx512_ahead_advance(&block.ahead, args->v_tile);
        }
    }
}

/* Both give the same bits. Up to 4 rows are one block by words, whose codes are spread once; 24
 * rows of head 64 take 1.29 us by planes and 1.53 by words (Cascade Lake, 2.4 GHz). */
void quire_avx512_pv_q8_vnni(const quire_attn_pv *args)
{
    const uint64_t visible = quire_avx512_slot_mask(args->slot_begin, args->slot_end);
    __m512 v_scale[REGS];

    if (args->n_rows <= 4) {
        pv_words(args);
        return;
    }
    quire_avx512_load_visible(args->v_tile, visible, v_scale);
    if (quire_avx512_q8_has_sign(v_scale)) {
        pv_words(args);
    } else {
        pv_planes(args, v_scale);
    }
}
