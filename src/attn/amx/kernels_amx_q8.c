/* kernels_amx_q8.c - q8 tiles with AMX, for many rows: the integers, and so the bits, of
 * kernels_avx512_vnni.c. A weight of 15 bits is two bytes: a row of P is two rows of a product,
 * which are added up after it.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/amx/kernels_amx.h"
#include "attn/avx512/kernels_avx512_q8_weights_body.h"

/* Up to so many rows take no longer in vector registers. */
#define FEW_ROWS 4u

/* ---- q . K ---- */

/* Logits of n rows from `first` on. */
static void store_logits(const quire_attn_qk *args, uint32_t first, uint32_t n,
                         const __m512 k_scale[REGS], register_sums sums)
{
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *packed = (const char *)args->packed + first * q_bytes;
    float *s = args->s + first * (size_t)QUIRE_TILE_TOKENS;

    for (uint32_t r = 0; r < n; r++, packed += q_bytes, s += QUIRE_TILE_TOKENS) {
        const quire_avx512_q8_header *header = (const void *)packed;
        const __m512i start = _mm512_set1_epi32(header->start);
        const __m512 scale = _mm512_set1_ps(header->scale);

        for (uint32_t i = 0; i < REGS; i++) {
            const __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums[r] + 16 * i), start);
            const __m512 x =
                _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), k_scale[i]);

            _mm512_store_ps(s + 16 * i,
                            args->accumulate ? _mm512_add_ps(_mm512_load_ps(s + 16 * i), x) : x);
        }
    }
}

static void qk_many(const quire_attn_qk *args)
{
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_Q8, args->d);
    const char *q = (const char *)args->packed + quire_avx512_q8_bytes_offset(args->d);
    const char *codes = (const char *)args->k_tile + SCALES_BYTES;
    const uint32_t n_lines = args->d / GROUP;
    _Alignas(64) char rest[QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES];
    _Alignas(64) register_sums sums[2];
    quire_avx512_ahead ahead = quire_avx512_ahead_of_qk(args, 1);
    quire_amx_product p = { .rows_stride = q_bytes,
                            .lines = codes,
                            .lines_stride = QUIRE_AMX_SUMS_BYTES,
                            .last = quire_amx_last_lines(codes, n_lines, rest),
                            .n_chunks = (n_lines + QUIRE_AMX_ROWS - 1) / QUIRE_AMX_ROWS,
                            .n_cols = QUIRE_AMX_COLS,
                            .sums = { (char *)sums[0], (char *)sums[1] },
                            .ahead_to = args->next_to,
                            .eighths = 8 };
    __m512 k_scale[REGS];

    quire_avx512_load_scales(args->k_tile, k_scale);
    quire_avx512_prefetch_lines(&ahead, SCALES_BYTES / 64);
    p.ahead = args->next != NULL ? ahead.at : 0;
    for (uint32_t row = 0; row < args->n_rows; row += QUIRE_AMX_ROWS_MAX) {
        const uint32_t second = row + QUIRE_AMX_ROWS;

        quire_amx_take_rows(&p, q, args->n_rows, row);
        quire_amx_multiply(QUIRE_AMX_S8_U8, &p);
        store_logits(args, row, quire_amx_n_rows(args->n_rows, row), k_scale, sums[0]);
        store_logits(args, second, quire_amx_n_rows(args->n_rows, second), k_scale, sums[1]);
        p.ahead = 0;
    }
}

void quire_avx512_qk_q8_amx(const quire_attn_qk *args)
{
    if (args->n_rows > FEW_ROWS) {
        qk_many(args);
    } else {
        quire_avx512_qk_q8_vnni(args);
    }
}

/* ---- P . V ---- */

/* The codes of less than 64 dimensions from `dim` on, zeros behind them. */
static void copy_codes(const quire_attn_pv *args, uint32_t dim, char *to)
{
    const char *from = (const char *)args->v_tile + SCALES_BYTES + (size_t)GROUP * dim;
    const size_t bytes = (size_t)GROUP * (args->d - dim);

    for (uint32_t g = 0; g < QUIRE_AMX_ROWS; g++, to += QUIRE_AMX_SUMS_BYTES) {
        memcpy(to, from + (size_t)g * GROUP * args->d, bytes);
        memset(to + bytes, 0, QUIRE_AMX_SUMS_BYTES - bytes);
    }
}

/* Rows in work, as many as two registers have: their bytes, low and high in turns. */
typedef struct pv_block {
    const quire_attn_pv *args;
    uint32_t row;
    uint32_t n;
    uintptr_t ahead; /* next address to prefetch; 0: nothing more */
    uintptr_t ahead_end;
    uint32_t n_by_row; /* lines */
    _Alignas(16) float unit[QUIRE_AMX_ROWS];
    _Alignas(64) uint8_t weights[QUIRE_AMX_ROWS][PLANES][QUIRE_TILE_TOKENS];
    _Alignas(64) char copy[QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES];
    _Alignas(64) register_sums sums[2];
} pv_block;

/* o = o * rescale + the sums of both bytes, of a product's dimensions. */
static void add_sums(pv_block *block, uint32_t dim, uint32_t n_cols)
{
    const quire_attn_pv *args = block->args;
    const int32_t *low = (const void *)block->sums; /* of both registers, row after row */
    float *o = args->o + block->row * args->o_stride + dim;

    for (uint32_t r = 0; r < block->n; r++, o += args->o_stride) {
        const int32_t *high = low + QUIRE_TILE_TOKENS;
        const __m512 rescale = _mm512_set1_ps(args->rescale[block->row + r]);
        const __m512 factor = _mm512_set1_ps(block->unit[r]);

        block->ahead = quire_amx_prefetch(block->ahead, args->next_to, block->n_by_row);
        block->ahead = block->ahead < block->ahead_end ? block->ahead : 0;
        for (uint32_t i = 0; i < n_cols; i++) {
            const __m512i sum =
                _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(high + 16 * i), LOW_BITS),
                                 _mm512_load_si512(low + 16 * i));
            const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor);

            _mm512_store_ps(o + 16 * i, _mm512_fmadd_ps(_mm512_load_ps(o + 16 * i), rescale, x));
        }
        low = high + QUIRE_TILE_TOKENS;
    }
}

/* The block's rows against all dimensions. Prefetches are spread over the work on single rows:
 * beside the products, lines would be requested faster than memory delivers them. */
static void pv_rows(pv_block *block, quire_amx_product *p)
{
    const quire_attn_pv *args = block->args;

    quire_amx_take_rows(p, block->weights, PLANES * block->n, 0);
    for (uint32_t dim = 0; dim < args->d; dim += 16 * p->n_cols) {
        const uint32_t n_dims = args->d - dim < 64 ? args->d - dim : 64;

        p->n_cols = (n_dims + 15) / 16;
        p->lines_stride = (size_t)GROUP * args->d;
        p->lines = (const char *)args->v_tile + SCALES_BYTES + (size_t)GROUP * dim;
        if (n_dims % 16 != 0) {
            copy_codes(args, dim, block->copy);
            p->lines_stride = QUIRE_AMX_SUMS_BYTES;
            p->lines = block->copy;
        }
        p->last = p->lines;
        quire_amx_multiply(QUIRE_AMX_U8_S8, p);
        add_sums(block, dim, p->n_cols);
    }
}

/* Weights outside the slots are 0, and codes are integers: no unseen slot gets through. */
static void pv_many(const quire_attn_pv *args, const __m512 v_scale[REGS])
{
    pv_block block;
    quire_avx512_ahead ahead = quire_avx512_ahead_of_pv(args, 1);
    quire_amx_product p = { .rows_stride = QUIRE_TILE_TOKENS,
                            .n_chunks = 1,
                            .sums = { (char *)block.sums[0], (char *)block.sums[1] } };

    quire_avx512_prefetch_lines(&ahead, SCALES_BYTES / 64);
    block.args = args;
    block.ahead = args->next != NULL ? ahead.at : 0;
    block.ahead_end = ahead.at + (size_t)QUIRE_TILE_TOKENS * args->d;
    block.n_by_row = (64 + args->n_rows - 1) / args->n_rows; /* where 64 dimensions are a pass */
    for (block.row = 0; block.row < args->n_rows; block.row += QUIRE_AMX_ROWS) {
        block.n = quire_amx_n_rows(args->n_rows, block.row);
        quire_avx512_q8_planes(block.n, args->p + block.row * (size_t)QUIRE_TILE_TOKENS, v_scale,
                               block.unit, block.weights);
        pv_rows(&block, &p);
    }
}

void quire_avx512_pv_q8_amx(const quire_attn_pv *args)
{
    const uint64_t visible = quire_avx512_slot_mask(args->slot_begin, args->slot_end);
    __m512 v_scale[REGS];

    if (args->n_rows <= FEW_ROWS) {
        quire_avx512_pv_q8_vnni(args);
        return;
    }
    quire_avx512_load_visible(args->v_tile, visible, v_scale);
    if (quire_avx512_q8_has_sign(v_scale)) {
        quire_avx512_pv_q8_vnni(args);
    } else {
        pv_many(args, v_scale);
    }
}
