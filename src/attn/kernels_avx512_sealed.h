/* kernels_avx512_sealed.h - the kernels of sealed formats (q6 q5 q4 q3), for each of the CPUs that
 * a set is compiled for.
 *
 * The including file defines
 *   SEALED_SUFFIX                                 of the function names
 *   SEALED_DOT(acc, a, b)                         acc plus the sums of 4 products u8 * s8, exact
 *   SEALED_LOOK_UP(format, quad, table, index)    see kernels_avx512_levels.h
 *   SEALED_DIRECT_ROWS                            up to so many rows expand as they go
 *   SEALED_WEIGHS                                 1: the set has weigh, pv is given weights
 *
 * A block of few rows (decode) expands codes to levels in registers on the way to the dot products.
 * With more rows (prefill) a tile is expanded once, into a buffer in q8's code layout that stays in
 * the L1 or L2 cache, and the blocks of rows read that. Both have the same integers.
 *
 * K levels are unsigned (+128), so accumulators start at -128 * sum(n), as q8's do.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx512_levels.h"
#include "attn/kernels_avx512_weights.h"

#define ROWS        6u /* of a block at most */
#define REGS        QUIRE_AVX512_REGS
#define EXPANDED    QUIRE_FORMAT_COUNT /* stands for a format: levels lie in a buffer */
#define LEVEL_BYTES (QUIRE_HEAD_DIM_MAX * QUIRE_TILE_TOKENS)

/* Accumulators stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 32")

#define SEALED_JOIN_(a, b) a##b
#define SEALED_JOIN(a, b)  SEALED_JOIN_(a, b)
#define SEALED_NAME(name)  SEALED_JOIN(name, SEALED_SUFFIX)

/* Call body(n, format, ...) with format as a constant. */
#define BY_FORMAT(format, body, ...)                                                               \
    do {                                                                                           \
        switch (format) {                                                                          \
        case QUIRE_FORMAT_Q6:                                                                      \
            body(QUIRE_FORMAT_Q6, __VA_ARGS__);                                                    \
            break;                                                                                 \
        case QUIRE_FORMAT_Q5:                                                                      \
            body(QUIRE_FORMAT_Q5, __VA_ARGS__);                                                    \
            break;                                                                                 \
        case QUIRE_FORMAT_Q4:                                                                      \
            body(QUIRE_FORMAT_Q4, __VA_ARGS__);                                                    \
            break;                                                                                 \
        default:                                                                                   \
            body(QUIRE_FORMAT_Q3, __VA_ARGS__);                                                    \
            break;                                                                                 \
        }                                                                                          \
    } while (0)

/* Bytes of a format's planes that one step of a register takes, on average. */
QUIRE_AVX512_INLINE size_t step_bytes(quire_format format)
{
    return 16u * (quire_sealed_low_bits(format) + quire_sealed_high_bits(format));
}

/* ---- q . K ---- */

typedef struct qk_block {
    const quire_attn_qk *args;
    const uint8_t *levels; /* [d/4][64][4], of EXPANDED */
    size_t q_bytes;
    uint32_t row;
    quire_avx512_ahead ahead;
    level_tables tables;
    __m512 k_scale[REGS];
} qk_block;

QUIRE_AVX512_INLINE void qk_quad(uint32_t n, const int8_t *q, size_t q_bytes,
                                 const __m512i level[REGS], __m512i acc[ROWS][REGS])
{
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        __m512i x = _mm512_set1_epi32(*(const int32_t *)(const void *)(q + r * q_bytes));

        UNROLL
        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = SEALED_DOT(acc[r][i], level[i], x);
        }
    }
}

/* Dot products from codes. One or two rows alone would wait for their additions, so they take two
 * sets of accumulators. */
QUIRE_AVX512_INLINE void qk_direct(quire_format format, uint32_t n, qk_block *block,
                                   const int8_t *q, __m512i acc[ROWS][REGS])
{
    const level_planes planes =
        level_planes_of(format, QUIRE_SIDE_K, block->args->d, block->args->k_tile, 0);
    const level_tables tables = block->tables;
    const uint32_t n_steps = block->args->d / STEP;
    const uint32_t set = n <= 2 ? n : 0; /* rows from one set of accumulators to the next */

    for (uint32_t r = 0; r < set; r++) {
        for (uint32_t i = 0; i < REGS; i++) {
            acc[set + r][i] = _mm512_setzero_si512();
        }
    }
    for (uint32_t s = 0; s < n_steps; s++) {
        const level_step step = level_step_of(format, &planes, s);
        __m512i level[2][REGS];

        quire_avx512_prefetch(&block->ahead, REGS * step_bytes(format));
        level_load_4(format, &tables, &step, level);
        qk_quad(n, q + s * STEP, block->q_bytes, level[0], acc);
        qk_quad(n, q + s * STEP + QUAD, block->q_bytes, level[1], acc + set);
    }
    for (uint32_t r = 0; r < set; r++) {
        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = _mm512_add_epi32(acc[r][i], acc[set + r][i]);
        }
    }
}

/* Dot products from levels. */
QUIRE_AVX512_INLINE void qk_expanded(uint32_t n, const qk_block *block, const int8_t *q,
                                     __m512i acc[ROWS][REGS])
{
    for (uint32_t c = 0; c < block->args->d; c += QUAD) {
        const uint8_t *at = block->levels + (size_t)c * QUIRE_TILE_TOKENS;
        __m512i level[REGS];

        UNROLL
        for (uint32_t i = 0; i < REGS; i++) {
            level[i] = _mm512_load_si512(at + 64 * i);
        }
        qk_quad(n, q + c, block->q_bytes, level, acc);
    }
}

/* sum_i x_i * mean_i of n <= 4 rows: row r has lanes 4r .. 4r + 3. */
QUIRE_AVX512_INLINE __m512 mean_logits(uint32_t n, const qk_block *block, const char *packed)
{
    const uint32_t d = block->args->d;
    const bool is_centred = quire_sealed_is_centred(block->args->format, QUIRE_SIDE_K);
    const uint16_t *mean =
        (const void *)((const char *)block->args->k_tile + QUIRE_SEALED_SCALES_BYTES);
    const char *x = packed + quire_avx512_sealed_x_offset(d);
    __m512 sum[4];

    UNROLL
    for (uint32_t r = 0; r < 4; r++) {
        sum[r] = _mm512_setzero_ps();
    }
    for (uint32_t c = 0; is_centred && c < d; c += 16) {
        __mmask16 lanes = d - c >= 16 ? 0xffff : 0xff;
        __m512 m = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, mean + c)); /* x is 0 beyond d */

        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            const float *from = (const float *)(const void *)(x + r * block->q_bytes) + c;

            sum[r] = _mm512_fmadd_ps(_mm512_load_ps(from), m, sum[r]);
        }
    }
    return quire_avx512_sum_4(sum);
}

/* Sums to logits. */
QUIRE_AVX512_INLINE void store_logits(uint32_t n, bool accumulate, const qk_block *block,
                                      const __m512 mean[2], __m512i acc[ROWS][REGS])
{
    const quire_attn_qk *args = block->args;
    const char *packed = (const char *)args->packed + block->row * block->q_bytes;
    float *s = args->s + block->row * (size_t)QUIRE_TILE_TOKENS;

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const uint32_t r = k / REGS;
        const uint32_t i = k % REGS;
        const quire_avx512_sealed_header *header = (const void *)(packed + r * block->q_bytes);
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][i]), _mm512_set1_ps(header->scale));

        x = _mm512_fmadd_ps(x, block->k_scale[i], quire_avx512_row_of_4(mean[r / 4], r % 4));
        x = accumulate ? _mm512_add_ps(_mm512_load_ps(s + 16 * k), x) : x;
        _mm512_store_ps(s + 16 * k, x);
    }
}

QUIRE_AVX512_INLINE void qk_rows(uint32_t n, quire_format format, qk_block *block)
{
    const char *packed = (const char *)block->args->packed + block->row * block->q_bytes;
    const int8_t *q = (const int8_t *)packed + sizeof(quire_avx512_sealed_header);
    __m512 mean[2];
    __m512i acc[ROWS][REGS];

    mean[0] = mean_logits(n < 4 ? n : 4, block, packed);
    mean[1] = n > 4 ? mean_logits(n - 4, block, packed + 4 * block->q_bytes) : mean[0];
    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const void *header = packed + k / REGS * block->q_bytes;

        acc[k / REGS][k % REGS] =
            _mm512_set1_epi32(((const quire_avx512_sealed_header *)header)->start);
    }
    if (format == EXPANDED) {
        qk_expanded(n, block, q, acc);
    } else {
        qk_direct(format, n, block, q, acc);
    }
    if (block->args->accumulate) {
        store_logits(n, true, block, mean, acc);
    } else {
        store_logits(n, false, block, mean, acc);
    }
}

QUIRE_AVX512_INLINE void qk_few(quire_format format, qk_block *block)
{
    block->tables = level_tables_of(format, QUIRE_SIDE_K);
    while (block->row < block->args->n_rows) {
        uint32_t n = quire_avx512_next_4(block->args->n_rows - block->row);

        QUIRE_AVX512_UP_TO_4(n, qk_rows, format, block);
        block->row += n;
        quire_avx512_ahead_advance(&block->ahead, block->args->k_tile);
    }
}

QUIRE_AVX512_INLINE void expand_k(quire_format format, qk_block *block, uint8_t *levels)
{
    const quire_attn_qk *args = block->args;
    const level_planes planes = level_planes_of(format, QUIRE_SIDE_K, args->d, args->k_tile, 0);
    const level_tables tables = level_tables_of(format, QUIRE_SIDE_K);

    for (uint32_t s = 0; s < args->d / STEP; s++) {
        const level_step step = level_step_of(format, &planes, s);

        quire_avx512_prefetch(&block->ahead, REGS * step_bytes(format));
        for (uint32_t i = 0; i < REGS; i++) {
            uint8_t *to = levels + s * (size_t)(2 * QUAD_BYTES) + 64 * (size_t)i;
            __m512i level[2];

            level_load(format, &tables, &step, 0xffff, i, level);
            _mm512_store_si512(to, level[0]);
            _mm512_store_si512(to + QUAD_BYTES, level[1]);
        }
    }
}

static __attribute__((noinline)) void qk_many(const qk_block *fresh)
{
    _Alignas(64) uint8_t levels[LEVEL_BYTES];
    qk_block block = *fresh;

    BY_FORMAT(block.args->format, expand_k, &block, levels);
    block.levels = levels;
    while (block.row < block.args->n_rows) {
        uint32_t n = quire_avx512_next_6(block.args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_6(n, qk_rows, EXPANDED, &block);
        block.row += n;
    }
}

void SEALED_NAME(quire_avx512_qk_sealed)(const quire_attn_qk *args)
{
    qk_block block; /* field by field: what has no value yet would be cleared, which takes long */

    block.args = args;
    block.q_bytes = quire_avx512_q_bytes(args->format, args->d);
    block.row = 0;
    block.ahead = quire_avx512_ahead_of_qk(args, 1);
    quire_avx512_load_scales(args->k_tile, block.k_scale);
    quire_avx512_prefetch(&block.ahead,
                          quire_sealed_low_offset(args->format, QUIRE_SIDE_K, args->d));
    if (args->n_rows > SEALED_DIRECT_ROWS) {
        qk_many(&block);
        return;
    }
    BY_FORMAT(args->format, qk_few, &block);
}

/* ---- P . V ---- */

/* A block of rows: its weights as integers, and what one unit of them is worth. */
typedef struct pv_block {
    const quire_attn_pv *args;
    const int8_t *levels; /* [16][levels_dims][4], of EXPANDED */
    uint32_t levels_dims;
    uint32_t row;
    uint32_t dim;
    quire_avx512_ahead ahead;
    level_tables tables;
    const quire_attn_weights *weights; /* of the block's rows */
#if !SEALED_WEIGHS
    __m512 v_scale[REGS];
    quire_attn_weights own[ROWS];
#endif
} pv_block;

QUIRE_AVX512_INLINE void pv_quad(uint32_t n, uint32_t regs, const pv_block *block, uint32_t slot,
                                 const __m512i level[REGS], __m512i acc[ROWS][REGS])
{
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const void *from = block->weights[r].n + slot;
        __m512i x = _mm512_set1_epi32(*(const int32_t *)from);

        UNROLL
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = SEALED_DOT(acc[r][i], x, level[i]);
        }
    }
}

/* 64 dimensions from codes; accumulators as in qk_direct(). */
QUIRE_AVX512_INLINE void pv_direct(quire_format format, uint32_t n, pv_block *block,
                                   __m512i acc[ROWS][REGS])
{
    const quire_attn_pv *args = block->args;
    const level_planes planes =
        level_planes_of(format, QUIRE_SIDE_V, args->d, args->v_tile, block->dim);
    const level_tables tables = block->tables;
    const uint32_t end = (args->slot_end + STEP - 1) / STEP;
    const uint32_t set = n <= 2 ? n : 0;

    for (uint32_t r = 0; r < set; r++) {
        for (uint32_t i = 0; i < REGS; i++) {
            acc[set + r][i] = _mm512_setzero_si512();
        }
    }
    for (uint32_t s = args->slot_begin / STEP; s < end; s++) {
        const level_step step = level_step_of(format, &planes, s);
        __m512i level[2][REGS];

        quire_avx512_prefetch(&block->ahead, REGS * step_bytes(format));
        level_load_4(format, &tables, &step, level);
        pv_quad(n, REGS, block, s * STEP, level[0], acc);
        pv_quad(n, REGS, block, s * STEP + QUAD, level[1], acc + set);
    }
    for (uint32_t r = 0; r < set; r++) {
        for (uint32_t i = 0; i < REGS; i++) {
            acc[r][i] = _mm512_add_epi32(acc[r][i], acc[set + r][i]);
        }
    }
}

/* 16 * regs dimensions from levels. */
QUIRE_AVX512_INLINE void pv_expanded(uint32_t n, uint32_t regs, const pv_block *block,
                                     __m512i acc[ROWS][REGS])
{
    const quire_attn_pv *args = block->args;

    for (uint32_t t = args->slot_begin / QUAD * QUAD; t < args->slot_end; t += QUAD) {
        const int8_t *at =
            block->levels + (size_t)t * block->levels_dims + (size_t)QUAD * block->dim;
        __m512i level[REGS];

        UNROLL
        for (uint32_t i = 0; i < regs; i++) {
            level[i] = _mm512_load_si512(at + 64 * i);
        }
        pv_quad(n, regs, block, t, level, acc);
    }
}

/* Sums to o. What rows need is read first: for all the compiler knows, a store to o changes it. */
QUIRE_AVX512_INLINE void pv_store(uint32_t n, uint32_t regs, const pv_block *block,
                                  __m512i acc[ROWS][REGS])
{
    const quire_attn_pv *args = block->args;
    const size_t stride = args->o_stride;
    float *o = args->o + block->row * stride + block->dim;
    __m512 unit[ROWS];
    __m512 rescale[ROWS];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        unit[r] = _mm512_set1_ps(block->weights[r].unit);
        rescale[r] = _mm512_set1_ps(args->rescale[block->row + r]);
    }
    UNROLL
    for (uint32_t k = 0; k < n * regs; k++) {
        const uint32_t r = k / regs;
        float *to = o + r * stride + (size_t)16 * (k % regs);
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][k % regs]), unit[r]);

        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), rescale[r], x));
    }
}

QUIRE_AVX512_INLINE void pv_cols(uint32_t n, quire_format format, uint32_t regs, pv_block *block)
{
    __m512i acc[ROWS][REGS];

    UNROLL
    for (uint32_t k = 0; k < n * regs; k++) {
        acc[k / regs][k % regs] = _mm512_setzero_si512();
    }
    if (format == EXPANDED) {
        pv_expanded(n, regs, block, acc);
    } else {
        pv_direct(format, n, block, acc);
    }
    pv_store(n, regs, block, acc);
    block->dim += 16 * regs;
}

QUIRE_AVX512_INLINE void pv_rows(uint32_t n, quire_format format, pv_block *block)
{
    const quire_attn_pv *args = block->args;
    const uint32_t d = format == EXPANDED ? block->levels_dims : args->d;

#if SEALED_WEIGHS
    block->weights = args->weights + block->row;
#else
    block->weights = block->own;
    quire_avx512_weights(n, args->p + block->row * (size_t)QUIRE_TILE_TOKENS, block->v_scale,
                         block->own);
#endif
    block->dim = 0;
    while (d - block->dim >= 64) {
        pv_cols(n, format, 4, block);
    }
    if (format == EXPANDED && (d & 32) != 0) {
        pv_cols(n, format, 2, block);
    }
    if (format == EXPANDED && (d & 16) != 0) {
        pv_cols(n, format, 1, block);
    }
}

QUIRE_AVX512_INLINE void pv_few(quire_format format, pv_block *block)
{
    block->tables = level_tables_of(format, QUIRE_SIDE_V);
    while (block->row < block->args->n_rows) {
        uint32_t n = quire_avx512_next_4(block->args->n_rows - block->row);

        QUIRE_AVX512_UP_TO_4(n, pv_rows, format, block);
        block->row += n;
        quire_avx512_ahead_advance(&block->ahead, block->args->v_tile);
    }
}

QUIRE_AVX512_INLINE void expand_v(quire_format format, pv_block *block, int8_t *levels)
{
    const quire_attn_pv *args = block->args;
    const level_planes planes = level_planes_of(format, QUIRE_SIDE_V, args->d, args->v_tile, 0);
    const level_tables tables = level_tables_of(format, QUIRE_SIDE_V);
    const size_t quad_bytes = (size_t)QUAD * block->levels_dims;
    const uint32_t end = (args->slot_end + STEP - 1) / STEP;

    for (uint32_t s = args->slot_begin / STEP; s < end; s++) {
        const level_step step = level_step_of(format, &planes, s);

        for (uint32_t i = 0; 16 * i < args->d; i++) {
            __mmask16 lanes = args->d - 16 * i >= 16 ? 0xffff : 0xff;
            int8_t *to = levels + s * 2 * quad_bytes + 64 * (size_t)i;
            __m512i level[2];

            quire_avx512_prefetch(&block->ahead, step_bytes(format));
            level_load(format, &tables, &step, lanes, i, level);
            _mm512_store_si512(to, level[0]);
            _mm512_store_si512(to + quad_bytes, level[1]);
        }
    }
}

static __attribute__((noinline)) void pv_many(const pv_block *fresh)
{
    _Alignas(64) int8_t levels[LEVEL_BYTES];
    pv_block block = *fresh;

    block.levels = levels;
    block.levels_dims = (block.args->d + 15u) & ~15u;
    BY_FORMAT(block.args->format, expand_v, &block, levels);
    while (block.row < block.args->n_rows) {
        uint32_t n = quire_avx512_next_6(block.args->n_rows - block.row);

        QUIRE_AVX512_UP_TO_6(n, pv_rows, EXPANDED, &block);
        block.row += n;
    }
}

static void pv_all(pv_block *block)
{
    const quire_attn_pv *args = block->args;

    block->row = 0;
    if (args->n_rows > SEALED_DIRECT_ROWS || args->d % 64 != 0) {
        pv_many(block);
        return;
    }
    BY_FORMAT(args->format, pv_few, block);
}

#if SEALED_WEIGHS

void SEALED_NAME(quire_avx512_pv_sealed)(const quire_attn_pv *args)
{
    pv_block block;

    block.args = args;
    block.ahead = quire_avx512_ahead_of_pv(args, 1);
    quire_avx512_prefetch(&block.ahead, QUIRE_SEALED_SCALES_BYTES);
    pv_all(&block);
}

#else

/* Row by row, each with the scales of the tokens that it gives weight only. */
static void pv_damaged(const pv_block *block)
{
    quire_attn_pv args = *block->args;
    pv_block single = *block;

    args.n_rows = 1;
    single.args = &args;
    for (uint32_t r = 0; r < block->args->n_rows; r++) {
        quire_avx512_scales_of_row(args.p, block->v_scale, single.v_scale);
        pv_all(&single);
        args.p += QUIRE_TILE_TOKENS;
        args.rescale++;
        args.o += args.o_stride;
    }
}

void SEALED_NAME(quire_avx512_pv_sealed)(const quire_attn_pv *args)
{
    uint64_t visible = quire_avx512_slot_mask(args->slot_begin, args->slot_end);
    pv_block block;

    block.args = args;
    block.ahead = quire_avx512_ahead_of_pv(args, 1);
    quire_avx512_load_visible(args->v_tile, visible, block.v_scale);
    quire_avx512_prefetch(&block.ahead, QUIRE_SEALED_SCALES_BYTES);
    quire_avx512_is_damaged(args->v_tile, visible) ? pv_damaged(&block) : pv_all(&block);
}

#endif
