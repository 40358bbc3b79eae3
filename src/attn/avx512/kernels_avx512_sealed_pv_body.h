/* kernels_avx512_sealed_pv_body.h - P . V of sealed formats: a part of
 * kernels_avx512_sealed_body.h.
 *
 * SPDX-License-Identifier: MIT */
/* A block of rows: its weights as integers, and the value of one unit. */
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

/* Sums to o. The data of the rows is read first: the compiler must assume that a store to o changes
 * the data. */
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

#if SEALED_AMX

/* o of n rows from the block's row on. */
QUIRE_AVX512_INLINE void pv_of_sums(uint32_t n, uint32_t n_cols, pv_block *block,
                                    register_sums sums)
{
    __m512i acc[ROWS][REGS];

    block->weights = block->args->weights + block->row;
    for (uint32_t i = 0; i < n_cols; i++) {
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            acc[r][0] = _mm512_load_si512(sums[r] + 16 * i);
        }
        pv_store(n, 1, block, acc);
        block->dim += 16;
    }
    block->dim -= 16 * n_cols;
    block->row += n;
}

/* All rows against up to 64 dimensions. */
static void pv_rows_of_cols(pv_block *block, quire_amx_product *p)
{
    const quire_attn_pv *args = block->args;
    _Alignas(64) register_sums sums[2];

    p->sums[0] = (char *)sums[0];
    p->sums[1] = (char *)sums[1];
    block->row = 0;
    while (block->row < args->n_rows) {
        const uint32_t n = quire_min_u32(args->n_rows - block->row, QUIRE_AMX_ROWS_MAX);

        quire_amx_take_rows(p, args->weights, args->n_rows, block->row);
        quire_amx_multiply(QUIRE_AMX_U8_S8, p);
        for (uint32_t r = 0; r < n; r += 4) {
            QUIRE_AVX512_UP_TO_4(n - r, pv_of_sums, p->n_cols, block, sums[0] + r);
        }
    }
}

static void pv_rows_of_levels(pv_block *block)
{
    quire_amx_product p = { .rows_stride = sizeof(*block->args->weights),
                            .lines_stride = (size_t)QUAD * block->levels_dims,
                            .n_chunks = 1 };

    for (block->dim = 0; block->dim < block->levels_dims; block->dim += 16 * p.n_cols) {
        const uint32_t n_cols = (block->levels_dims - block->dim) / 16;

        p.n_cols = n_cols < QUIRE_AMX_COLS ? n_cols : QUIRE_AMX_COLS;
        p.lines = (const char *)block->levels + (size_t)QUAD * block->dim;
        p.last = p.lines;
        pv_rows_of_cols(block, &p);
    }
}

#else

static void pv_rows_of_levels(pv_block *block)
{
    while (block->row < block->args->n_rows) {
        uint32_t n = quire_avx512_next_6(block->args->n_rows - block->row);

        QUIRE_AVX512_UP_TO_6(n, pv_rows, EXPANDED, block);
        block->row += n;
    }
}

#endif

static __attribute__((noinline)) void pv_many(const pv_block *fresh)
{
    _Alignas(64) int8_t levels[LEVEL_BYTES];
    pv_block block = *fresh;

    block.levels = levels;
    block.levels_dims = (block.args->d + 15u) & ~15u;
    BY_FORMAT(block.args->format, expand_v, &block, levels);
    pv_rows_of_levels(&block);
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
