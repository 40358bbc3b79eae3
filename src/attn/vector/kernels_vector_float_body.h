/* vector/kernels_vector_float_body.h - the kernels of f32, f16 and bf16 tiles, widened to f32 in
 * registers: for AVX2 and NEON.
 *
 * A tile is a sequence of lines: in K one per dimension with 64 tokens, in V one per token with d
 * dimensions. bf16 has two values of neighbouring lines in each 32 bits ("planes"): a shift and a
 * mask widen them.
 *
 * The including file has defined, in the words of its instruction set:
 *
 *   VECTOR(name), VECTOR_INLINE       its functions; how they are inlined
 *   VECTOR_LANES, VECTOR_ROWS_MAX     floats in a register, rows of a block
 *   VECTOR_REGS_MAX                   registers of the tile in a block of one row
 *   LINE_BYTES                        that one prefetch brings
 *   vector                            a register
 *   vector_load(), vector_store()     VECTOR_LANES floats, as aligned as a row of results is
 *   vector_zero(), vector_scale()     zeros; a register times one float in memory
 *   widen()                           the elements of one plane, as f32
 *   add_line()                        a block's sums += the elements of a line times the rows'
 *                                     weights for the line
 *   FLOAT_BLOCKS(one, rows)           calls one(n, regs) for the blocks that the rows are cut into
 *
 * SPDX-License-Identifier: MIT */

/* The sums of a block: n rows by regs registers of the tile. */
typedef vector float_sums[VECTOR_ROWS_MAX][VECTOR_REGS_MAX];

VECTOR_INLINE uint32_t planes_of(quire_format format)
{
    return format == QUIRE_FORMAT_BF16 ? 2 : 1;
}

/* Bytes of one element of a line, all its planes together. */
VECTOR_INLINE size_t unit_of(quire_format format)
{
    return format == QUIRE_FORMAT_F16 ? 2 : 4;
}

VECTOR_INLINE void line_prefetch(const char *line, size_t n_bytes, ptrdiff_t ahead)
{
    for (uint32_t at = 0; at < n_bytes; at += LINE_BYTES) {
        VECTOR(prefetch)(line + at, ahead);
    }
}

/* Results of n rows, `stride` floats apart. */
VECTOR_INLINE void results_store(uint32_t n, uint32_t regs, float_sums acc, float *to,
                                 size_t stride)
{
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            vector_store(to + r * stride + VECTOR_LANES * i, acc[r][i]);
        }
    }
}

/* ---- q . K ---- */

VECTOR_INLINE void qk_block(quire_format format, uint32_t n, uint32_t regs,
                            const quire_attn_qk *args, uint32_t row, uint32_t token,
                            ptrdiff_t ahead)
{
    const uint32_t planes = planes_of(format);
    const size_t unit = unit_of(format);
    const size_t stride = VECTOR(q_bytes)(format, args->d) / sizeof(float);
    const float *q = (const float *)args->packed + row * stride;
    const char *k = (const char *)args->k_tile + token * unit;
    float *s = args->s + (size_t)row * TILE + token;
    float_sums acc;

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] =
                args->accumulate ? vector_load(s + r * TILE + VECTOR_LANES * i) : vector_zero();
        }
    }
    for (uint32_t c = 0; c < args->d; c += planes, k += TILE * unit) {
        line_prefetch(k, regs * VECTOR_LANES * unit, ahead);
        for (uint32_t plane = 0; plane < planes; plane++) {
            add_line(format, n, regs, k, plane, q + c + plane, stride, acc);
        }
    }
    results_store(n, regs, acc, s, TILE);
}

VECTOR_INLINE void qk_rows(quire_format format, uint32_t n, uint32_t regs,
                           const quire_attn_qk *args, uint32_t row, ptrdiff_t ahead)
{
    for (uint32_t token = 0; token < TILE; token += VECTOR_LANES * regs) {
        qk_block(format, n, regs, args, row, token, ahead);
    }
}

VECTOR_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = VECTOR(ahead)(args->k_tile, args->next);

    for (uint32_t row = 0, n; row < args->n_rows; row += n, ahead = 0) {
        n = float_rows(args->n_rows - row);
        FLOAT_BLOCKS(n, qk_rows, format, args, row, ahead);
    }
}

void VECTOR(qk_float)(const quire_attn_qk *args)
{
    if (args->format == QUIRE_FORMAT_F32) {
        qk_format(QUIRE_FORMAT_F32, args);
    } else if (args->format == QUIRE_FORMAT_F16) {
        qk_format(QUIRE_FORMAT_F16, args);
    } else {
        qk_format(QUIRE_FORMAT_BF16, args);
    }
}

/* ---- P . V ---- */

VECTOR_INLINE void pv_block(quire_format format, uint32_t n, uint32_t regs,
                            const quire_attn_pv *args, uint32_t row, uint32_t dim, ptrdiff_t ahead)
{
    const uint32_t planes = planes_of(format);
    const size_t unit = unit_of(format);
    const float *p = args->p + (size_t)row * TILE;
    float *o = args->o + row * args->o_stride + dim;
    uint32_t line = args->slot_begin / planes;
    const char *v = (const char *)args->v_tile + (line * (size_t)args->d + dim) * unit;
    float_sums acc;

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < regs; i++) {
            acc[r][i] = vector_scale(vector_load(o + r * args->o_stride + VECTOR_LANES * i),
                                     args->rescale + row + r);
        }
    }
    for (; line * planes < args->slot_end; line++, v += args->d * unit) {
        line_prefetch(v, regs * VECTOR_LANES * unit, ahead);
        for (uint32_t plane = 0; plane < planes; plane++) {
            const uint32_t t = line * planes + plane;

            if (planes > 1 && (t < args->slot_begin || t >= args->slot_end)) {
                continue; /* the neighbour in a pair may be anything, NaN too */
            }
            add_line(format, n, regs, v, plane, p + t, TILE, acc);
        }
    }
    results_store(n, regs, acc, o, args->o_stride);
}

/* Dimensions from `dim` on in blocks of `regs` registers. Returns the first that is left. */
VECTOR_INLINE uint32_t pv_dims(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_pv *args, uint32_t row, uint32_t dim,
                               ptrdiff_t ahead)
{
    for (; dim + VECTOR_LANES * regs <= args->d; dim += VECTOR_LANES * regs) {
        pv_block(format, n, regs, args, row, dim, ahead);
    }
    return dim;
}

/* All dimensions, `regs` registers at a time, then the rest by halves down to 8 dimensions. */
VECTOR_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                           const quire_attn_pv *args, uint32_t row, ptrdiff_t ahead)
{
    uint32_t dim = pv_dims(format, n, regs, args, row, 0, ahead);

    if (VECTOR_LANES * regs > 32 && dim + 32 <= args->d) {
        pv_block(format, n, 32 / VECTOR_LANES, args, row, dim, ahead);
        dim += 32;
    }
    if (VECTOR_LANES * regs > 16 && dim + 16 <= args->d) {
        pv_block(format, n, 16 / VECTOR_LANES, args, row, dim, ahead);
        dim += 16;
    }
    if (dim < args->d) {
        pv_block(format, n, 8 / VECTOR_LANES, args, row, dim, ahead);
    }
}

VECTOR_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = VECTOR(ahead)(args->v_tile, args->next);

    for (uint32_t row = 0, n; row < args->n_rows; row += n, ahead = 0) {
        n = float_rows(args->n_rows - row);
        FLOAT_BLOCKS(n, pv_rows, format, args, row, ahead);
    }
}

void VECTOR(pv_float)(const quire_attn_pv *args)
{
    if (args->format == QUIRE_FORMAT_F32) {
        pv_format(QUIRE_FORMAT_F32, args);
    } else if (args->format == QUIRE_FORMAT_F16) {
        pv_format(QUIRE_FORMAT_F16, args);
    } else {
        pv_format(QUIRE_FORMAT_BF16, args);
    }
}
