/* vector/kernels_vector_sealed_body.h - the kernels of sealed formats as far as AVX2 and NEON go
 * about them in the same way: which rows meet which lanes of a tile, in registers or in a strip.
 *
 * Up to REGISTER_ROWS rows look codes up in registers, once for all of them. For more, lanes are
 * looked up into a strip that stays in the L1 cache and that all rows are multiplied with.
 *
 * The including file has defined, in the words of its instruction set:
 *
 *   VECTOR(name), VECTOR_INLINE        its functions; how they are inlined
 *   VECTOR_LANES, VECTOR_ROWS_MAX      lanes of 32 bits in a register, rows of a block
 *   STRIP_REGS, strip, source          registers of lanes in a strip; where levels come from
 *   weights, block_sums                integers of rows; sums of a block
 *   strip_rows(), strip_clear()        rows of the next block; a strip with nothing in it
 *   fill_strip_format(), add_unit()    levels of lanes to a strip; the products of one unit
 *   start_logits(), store_logits()     of a block of qk: the sums before the first unit, the result
 *   start_outputs(), store_outputs()   the same of pv
 *   tile_planes(), mean_logits()       the codes of a tile; logits of K's mean
 *   packed_rows, pack_rows()           weights of rows as integers
 *   weights_of_q(), weights_of_p()     where they lie
 *
 * SPDX-License-Identifier: MIT */

typedef VECTOR(planes) planes;

/* acc += levels times weights over units [begin, end), begin a multiple of 4. */
VECTOR_INLINE void add_units(block b, const source *x, const weights *w, uint32_t begin,
                             uint32_t end, block_sums *acc)
{
    const uint32_t period = b.has_strip ? 1 : VECTOR(period)(b.format);
    uint32_t u = begin;

    for (; u + period <= end; u += period) {
        add_unit(b, x, w, u, 0, acc);
        if (period > 1) {
            add_unit(b, x, w, u + 1, 1, acc);
        }
        if (period > 2) {
            add_unit(b, x, w, u + 2, 2, acc);
            add_unit(b, x, w, u + 3, 3, acc);
        }
    }
    if (period > 1 && b.side == QUIRE_SIDE_K) { /* V has whole periods */
#pragma GCC unroll 1
        for (uint32_t m = 0; u < end; u++, m++) {
            add_unit(b, x, w, u, m, acc);
        }
    }
}

/* Levels of the first `regs` registers of a strip, units [begin, end). */
static void fill_strip(quire_format format, uint32_t regs, const planes *x, uint32_t begin,
                       uint32_t end, strip *to)
{
    switch (format) {
    case QUIRE_FORMAT_Q6:
        fill_strip_format(QUIRE_FORMAT_Q6, regs, x, begin, end, to);
        break;
    case QUIRE_FORMAT_Q5:
        fill_strip_format(QUIRE_FORMAT_Q5, regs, x, begin, end, to);
        break;
    case QUIRE_FORMAT_Q4:
        fill_strip_format(QUIRE_FORMAT_Q4, regs, x, begin, end, to);
        break;
    default:
        fill_strip_format(QUIRE_FORMAT_Q3, regs, x, begin, end, to);
        break;
    }
}

/* ---- q . K ---- */

/* Rows row .. row + b.n - 1 and the tokens of b.regs registers. */
VECTOR_INLINE void qk_block(block b, const quire_attn_qk *args, const source *x, uint32_t row,
                            uint32_t token, const float *mean)
{
    const weights w = weights_of_q(args, row);
    block_sums acc;

    start_logits(b, args, x, row, &acc);
    add_units(b, x, &w, 0, args->d / UNIT, &acc);
    store_logits(b, args, row, token, mean, &acc);
}

/* All rows, looked up in registers. */
VECTOR_INLINE void qk_rows(quire_format format, uint32_t n, uint32_t regs,
                           const quire_attn_qk *args, planes at)
{
    const block b = { format, QUIRE_SIDE_K, n, regs, false };
    source x = { .planes = at };
    float mean[REGISTER_ROWS];

    mean_logits(args, 0, n, mean);
    for (uint32_t token = 0; token < TILE; token += VECTOR_LANES * regs) {
        qk_block(b, args, &x, 0, token, mean);
        VECTOR(planes_move)(&x.planes, regs);
    }
}

/* Rows row .. end - 1 against a strip; the format makes no difference here. */
static void qk_strip(const quire_attn_qk *args, const strip *levels, uint32_t row, uint32_t end,
                     uint32_t token, const float *mean)
{
    const source x = { .strip = levels };
    uint32_t n;

    for (; row < end; row += n, mean += n) {
        n = strip_rows(end - row);
        switch (n) {
        case 1:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 1), args, &x, row, token, mean);
            break;
        case 2:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 2), args, &x, row, token, mean);
            break;
        case 3:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 3), args, &x, row, token, mean);
            break;
#if VECTOR_ROWS_MAX > 4
        case 4:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 4), args, &x, row, token, mean);
            break;
#endif
        default:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, VECTOR_ROWS_MAX), args, &x, row, token, mean);
            break;
        }
    }
}

static void qk_strips(const quire_attn_qk *args, planes at)
{
    strip levels;
    float mean[STRIP_ROWS];
    uint32_t end;

    for (uint32_t row = 0; row < args->n_rows; row = end, at.ahead = 0) {
        planes x = at;

        end = args->n_rows - row < STRIP_ROWS ? args->n_rows : row + STRIP_ROWS;
        mean_logits(args, row, end - row, mean);
        for (uint32_t token = 0; token < TILE; token += VECTOR_LANES * STRIP_REGS) {
            fill_strip(args->format, STRIP_REGS, &x, 0, args->d / UNIT, &levels);
            qk_strip(args, &levels, row, end, token, mean);
            VECTOR(planes_move)(&x, STRIP_REGS);
        }
    }
}

VECTOR_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = VECTOR(ahead)(args->k_tile, args->next);
    size_t head_bytes = quire_sealed_low_offset(format, QUIRE_SIDE_K, args->d);
    planes x = tile_planes(format, QUIRE_SIDE_K, args->d, args->k_tile);

    x.ahead = ahead;
    for (size_t byte = 0; byte < head_bytes; byte += LINE_BYTES) {
        VECTOR(prefetch)((const char *)args->k_tile + byte, ahead);
    }
    switch (args->n_rows) {
    case 1:
        qk_rows(format, 1, 8, args, x);
        break;
    case 2:
        qk_rows(format, 2, 4, args, x);
        break;
    case 3:
        qk_rows(format, 3, STRIP_REGS, args, x);
        break;
    case 4:
        qk_rows(format, 4, STRIP_REGS, args, x);
        break;
    default:
        qk_strips(args, x);
        break;
    }
}

void SEALED_NAME(VECTOR(qk_sealed))(const quire_attn_qk *args)
{
    switch (args->format) {
    case QUIRE_FORMAT_Q6:
        qk_format(QUIRE_FORMAT_Q6, args);
        break;
    case QUIRE_FORMAT_Q5:
        qk_format(QUIRE_FORMAT_Q5, args);
        break;
    case QUIRE_FORMAT_Q4:
        qk_format(QUIRE_FORMAT_Q4, args);
        break;
    default:
        qk_format(QUIRE_FORMAT_Q3, args);
        break;
    }
}

/* ---- P . V ---- */

/* A tile's units with seen tokens, in whole periods: sealed tiles are hardly ever seen in part. */
static inline uint32_t first_unit(const quire_attn_pv *args)
{
    return args->slot_begin / (4 * UNIT) * 4;
}

static inline uint32_t end_unit(const quire_attn_pv *args)
{
    return (args->slot_end + 4 * UNIT - 1) / (4 * UNIT) * 4;
}

/* b.n packed rows from `first` on, and the dimensions of b.regs registers. Packed row 0 is row
 * first_row of the call. */
VECTOR_INLINE void pv_block(block b, const quire_attn_pv *args, const source *x,
                            const packed_rows *packed, uint32_t first, uint32_t first_row,
                            uint32_t dim)
{
    const weights w = weights_of_p(packed, first);
    block_sums acc;

    start_outputs(b, x, packed, first, &acc);
    add_units(b, x, &w, first_unit(args), end_unit(args), &acc);
    store_outputs(b, args, packed, first, first_row + first, dim, &acc);
}

/* n_rows packed rows, the first one row `row` of the call, against a strip. */
static void pv_strip(const quire_attn_pv *args, const source *x, const packed_rows *packed,
                     uint32_t row, uint32_t n_rows, uint32_t dim)
{
    uint32_t n;

    for (uint32_t first = 0; first < n_rows; first += n) {
        n = strip_rows(n_rows - first);
        switch (n) {
        case 1:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 1), args, x, packed, first, row, dim);
            break;
        case 2:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 2), args, x, packed, first, row, dim);
            break;
        case 3:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 3), args, x, packed, first, row, dim);
            break;
#if VECTOR_ROWS_MAX > 4
        case 4:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 4), args, x, packed, first, row, dim);
            break;
#endif
        default:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, VECTOR_ROWS_MAX), args, x, packed, first, row, dim);
            break;
        }
    }
}

/* Dimensions `dim` and up, where x is, of n_rows packed rows. The last strip may be half full.
 * Then its other half is undefined, and so are the sums that it adds to o beyond d. */
static void pv_strips(const quire_attn_pv *args, planes x, const packed_rows *packed, uint32_t row,
                      uint32_t n_rows, uint32_t dim)
{
    strip levels;
    const source y = { .strip = &levels };

    strip_clear(&levels);
    for (; dim < args->d; dim += VECTOR_LANES * STRIP_REGS) {
        uint32_t regs = dim + VECTOR_LANES * STRIP_REGS <= args->d ? STRIP_REGS : 8 / VECTOR_LANES;

        fill_strip(args->format, regs, &x, first_unit(args), end_unit(args), &levels);
        pv_strip(args, &y, packed, row, n_rows, dim);
        VECTOR(planes_move)(&x, STRIP_REGS);
    }
}

/* All rows, looked up in registers as far as `regs` of them are full. */
VECTOR_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                           const quire_attn_pv *args, planes at)
{
    source x = { .planes = at };
    packed_rows packed;
    uint32_t dim = 0;

    pack_rows(args, 0, n, &packed);
    for (; dim + VECTOR_LANES * regs <= args->d; dim += VECTOR_LANES * regs) {
        pv_block((block){ format, QUIRE_SIDE_V, n, regs, false }, args, &x, &packed, 0, 0, dim);
        VECTOR(planes_move)(&x.planes, regs);
    }
    if (dim < args->d) {
        pv_strips(args, x.planes, &packed, 0, n, dim);
    }
}

static void pv_many(const quire_attn_pv *args, planes at)
{
    packed_rows packed;
    uint32_t n;

    for (uint32_t row = 0; row < args->n_rows; row += n, at.ahead = 0) {
        n = args->n_rows - row < STRIP_ROWS ? args->n_rows - row : STRIP_ROWS;
        pack_rows(args, row, n, &packed);
        pv_strips(args, at, &packed, row, n, 0);
    }
}

VECTOR_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = VECTOR(ahead)(args->v_tile, args->next);
    planes x = tile_planes(format, QUIRE_SIDE_V, args->d, args->v_tile);

    x.ahead = ahead;
    for (size_t byte = 0; byte < QUIRE_SEALED_SCALES_BYTES; byte += LINE_BYTES) {
        VECTOR(prefetch)((const char *)args->v_tile + byte, ahead);
    }
    switch (args->n_rows) {
    case 1:
        pv_rows(format, 1, 8, args, x);
        break;
    case 2:
        pv_rows(format, 2, 4, args, x);
        break;
    case 3:
        pv_rows(format, 3, STRIP_REGS, args, x);
        break;
    case 4:
        pv_rows(format, 4, STRIP_REGS, args, x);
        break;
    default:
        pv_many(args, x);
        break;
    }
}

void SEALED_NAME(VECTOR(pv_sealed))(const quire_attn_pv *args)
{
    switch (args->format) {
    case QUIRE_FORMAT_Q6:
        pv_format(QUIRE_FORMAT_Q6, args);
        break;
    case QUIRE_FORMAT_Q5:
        pv_format(QUIRE_FORMAT_Q5, args);
        break;
    case QUIRE_FORMAT_Q4:
        pv_format(QUIRE_FORMAT_Q4, args);
        break;
    default:
        pv_format(QUIRE_FORMAT_Q3, args);
        break;
    }
}
