/* kernels_avx512_sealed_qk_body.h - q . K of sealed formats: a part of
 * kernels_avx512_sealed_body.h.
 *
 * SPDX-License-Identifier: MIT */
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

#if SEALED_AMX

/* Logits of n rows from the block's row on. */
QUIRE_AVX512_INLINE void qk_of_sums(uint32_t n, qk_block *block, register_sums sums)
{
    const char *packed = (const char *)block->args->packed + block->row * block->q_bytes;
    const __m512 mean[2] = { mean_logits(n, block, packed) };
    __m512i acc[ROWS][REGS];

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const quire_avx512_sealed_header *header =
            (const void *)(packed + k / REGS * block->q_bytes);

        acc[k / REGS][k % REGS] = _mm512_add_epi32(
            _mm512_load_si512(sums[k / REGS] + 16 * (k % REGS)), _mm512_set1_epi32(header->start));
    }
    store_logits(n, block->args->accumulate, block, mean, acc);
    block->row += n;
}

static void qk_rows_of_levels(qk_block *block, uint8_t *levels)
{
    const quire_attn_qk *args = block->args;
    const char *q = (const char *)args->packed + sizeof(quire_avx512_sealed_header);
    const uint32_t n_chunks = (args->d + 63) / 64;
    _Alignas(64) register_sums sums[2];
    quire_amx_product p = { .rows_stride = block->q_bytes,
                            .lines = (const char *)levels,
                            .lines_stride = QUIRE_AMX_SUMS_BYTES,
                            .last = (const char *)levels + (n_chunks - 1) * QUAD_BYTES * 16u,
                            .n_chunks = n_chunks,
                            .n_cols = QUIRE_AMX_COLS,
                            .sums = { (char *)sums[0], (char *)sums[1] } };

    memset(levels + args->d / QUAD * QUAD_BYTES, 0, (n_chunks * 16 - args->d / QUAD) * QUAD_BYTES);
    while (block->row < args->n_rows) {
        const uint32_t n = quire_min_u32(args->n_rows - block->row, QUIRE_AMX_ROWS_MAX);

        quire_amx_take_rows(&p, q, args->n_rows, block->row);
        quire_amx_multiply(QUIRE_AMX_S8_U8, &p);
        for (uint32_t r = 0; r < n; r += 4) {
            QUIRE_AVX512_UP_TO_4(n - r, qk_of_sums, block, sums[0] + r);
        }
    }
}

#else

static void qk_rows_of_levels(qk_block *block, uint8_t *levels)
{
    block->levels = levels;
    while (block->row < block->args->n_rows) {
        uint32_t n = quire_avx512_next_6(block->args->n_rows - block->row);

        QUIRE_AVX512_UP_TO_6(n, qk_rows, EXPANDED, block);
        block->row += n;
    }
}

#endif

static __attribute__((noinline)) void qk_many(const qk_block *fresh)
{
    _Alignas(64) uint8_t levels[LEVEL_BYTES];
    qk_block block = *fresh;

    BY_FORMAT(block.args->format, expand_k, &block, levels);
    qk_rows_of_levels(&block, levels);
}

void SEALED_NAME(quire_avx512_qk_sealed)(const quire_attn_qk *args)
{
    qk_block block; /* filled field by field: an initializer would clear all other fields, which
                       takes long */

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
