/* kernels_amx.c - bf16 tiles with AMX: q and P in bf16, as kernels_avx512_bf16.c has them, sums as
 * kernels_amx.h says. 16 rows take no longer than one.
 *
 * Order of additions: a logit adds its chunks of 32 dimensions upwards. An output adds the two
 * halves of a tile's tokens, then its former value times rescale.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/amx/kernels_amx.h"

#define COLS_DIMS   (QUIRE_AMX_COLS * QUIRE_AMX_ROWS) /* of a product */
#define EVEN_OF_ALL 0x0000ffff
#define ODD_OF_ALL  ((int32_t)0xffff0000u)

enum {
    PAIR_BYTES = 4,
    CHUNK = 32, /* values of bf16 in a row or column of a register */
    CHUNKS_OF_TOKENS = QUIRE_TILE_TOKENS / CHUNK,
    PAIRS = QUIRE_TILE_TOKENS / 2
};

/* ---- configuration ---- */

/* The operand of ldtilecfg: all 8 registers whole. */
typedef struct amx_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

void quire_amx_enter(quire_attn_cpu_state *before)
{
    static const _Alignas(64) amx_config config = { .palette = 1,
                                                    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
                                                    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };

    _Static_assert(sizeof(config) == sizeof(*before), "what sttilecfg writes");
    __asm__ volatile("sttilecfg %0" : "=m"(*before));
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

/* A palette of 0 is that of a thread that has not configured anything: then no state of AMX need be
 * saved when it is switched. */
void quire_amx_leave(const quire_attn_cpu_state *before)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*before));
}

static uint32_t eighths_of(bool is_in_part)
{
    return is_in_part ? 6 : 8;
}

/* ---- q . K ---- */

static float *logits_of(const quire_attn_qk *args, uint32_t row)
{
    return args->s + row * (size_t)QUIRE_TILE_TOKENS;
}

/* Store the sums of n rows as logits, or add them to the logits of the first source. */
static void logits_of_sums(uint32_t n, bool accumulate, const float *sums, float *s)
{
    for (uint32_t i = 0; i < n * QUIRE_TILE_TOKENS; i += 16) {
        const __m512 x = _mm512_load_ps(sums + i);

        _mm512_store_ps(s + i, accumulate ? _mm512_add_ps(_mm512_load_ps(s + i), x) : x);
    }
}

/* Logits go where they belong if a register's rows are all there, and are not to be added. */
void quire_avx512_qk_bf16_amx(const quire_attn_qk *args)
{
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_BF16, args->d);
    _Alignas(64) char rest[QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES];
    _Alignas(64) float sums[2][QUIRE_AMX_ROWS * QUIRE_TILE_TOKENS];
    quire_amx_product p = { .rows_stride = q_bytes,
                            .lines = args->k_tile,
                            .lines_stride = QUIRE_AMX_SUMS_BYTES,
                            .last = quire_amx_last_lines(args->k_tile, args->d / 2, rest),
                            .n_chunks = (args->d + CHUNK - 1) / CHUNK,
                            .n_cols = QUIRE_AMX_COLS,
                            .ahead = (uintptr_t)args->next,
                            .ahead_to = args->next_to,
                            .eighths = eighths_of(args->next_in_part) };

    for (uint32_t row = 0; row < args->n_rows; row += QUIRE_AMX_ROWS_MAX) {
        uint32_t n[2];
        bool is_direct[2];

        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t first = row + i * QUIRE_AMX_ROWS;

            n[i] = quire_amx_n_rows(args->n_rows, first);
            is_direct[i] = n[i] == QUIRE_AMX_ROWS && !args->accumulate;
            p.sums[i] = (char *)(is_direct[i] ? logits_of(args, first) : sums[i]);
        }
        quire_amx_take_rows(&p, args->packed, args->n_rows, row);
        quire_amx_multiply(QUIRE_AMX_BF16, &p);
        for (uint32_t i = 0; i < 2; i++) {
            if (!is_direct[i]) {
                logits_of_sums(n[i], args->accumulate, sums[i],
                               logits_of(args, row + i * QUIRE_AMX_ROWS));
            }
        }
        p.ahead = 0;
    }
}

/* ---- P . V ---- */

/* A copy of the lines from dimension `dim` on, with zeros for tokens that no row sees: a weight of
 * 0 does not keep a NaN out. */
static void copy_seen(const quire_attn_pv *args, uint32_t dim, char *to)
{
    const uint32_t n_dims = args->d - dim;

    for (uint32_t pair = 0; pair < PAIRS; pair++, to += QUIRE_AMX_SUMS_BYTES) {
        const char *from = (const char *)args->v_tile + (pair * args->d + dim) * (size_t)PAIR_BYTES;
        const bool sees_even = 2 * pair >= args->slot_begin && 2 * pair < args->slot_end;
        const bool sees_odd = 2 * pair + 1 >= args->slot_begin && 2 * pair + 1 < args->slot_end;
        const __m512i seen =
            _mm512_set1_epi32((sees_even ? EVEN_OF_ALL : 0) | (sees_odd ? ODD_OF_ALL : 0));

        for (uint32_t i = 0; i < QUIRE_AMX_COLS; i++) {
            const uint32_t n = n_dims > 16 * i ? n_dims - 16 * i : 0;
            const __mmask16 lanes = (__mmask16)(n >= 16 ? 0xffff : (1u << n) - 1);

            _mm512_store_si512(
                to + 64 * i,
                _mm512_and_si512(_mm512_maskz_loadu_epi32(lanes, from + 64 * i), seen));
        }
    }
}

/* o = o * rescale + sums, of n rows and n_cols registers from dimension `dim` on. */
static void add_sums(const quire_attn_pv *args, uint32_t first, uint32_t n, uint32_t dim,
                     uint32_t n_cols, const float *sums)
{
    for (uint32_t r = 0; r < n; r++, sums += QUIRE_TILE_TOKENS) {
        const __m512 rescale = _mm512_set1_ps(args->rescale[first + r]);
        float *o = args->o + (first + r) * args->o_stride + dim;

        for (uint32_t i = 0; i < n_cols; i++) {
            _mm512_store_ps(o + 16 * i, _mm512_fmadd_ps(_mm512_load_ps(o + 16 * i), rescale,
                                                        _mm512_load_ps(sums + 16 * i)));
        }
    }
}

/* All rows against the dimensions of a product, from `dim` on. */
static void pv_cols(const quire_attn_pv *args, uint32_t dim, quire_amx_product *p)
{
    _Alignas(64) float sums[2][QUIRE_AMX_ROWS * QUIRE_TILE_TOKENS];

    p->sums[0] = (char *)sums[0];
    p->sums[1] = (char *)sums[1];
    for (uint32_t row = 0; row < args->n_rows; row += QUIRE_AMX_ROWS_MAX) {
        const uint32_t second = row + QUIRE_AMX_ROWS;

        quire_amx_take_rows(p, args->p, args->n_rows, row);
        quire_amx_multiply(QUIRE_AMX_BF16, p);
        add_sums(args, row, quire_amx_n_rows(args->n_rows, row), dim, p->n_cols, sums[0]);
        add_sums(args, second, quire_amx_n_rows(args->n_rows, second), dim, p->n_cols, sums[1]);
        p->ahead = 0;
    }
}

void quire_avx512_pv_bf16_amx(const quire_attn_pv *args)
{
    const bool is_whole = args->slot_begin == 0 && args->slot_end == QUIRE_TILE_TOKENS;
    const size_t line_bytes = (size_t)args->d * PAIR_BYTES;
    const uint32_t eighths = eighths_of(args->next_in_part);
    const size_t ahead_bytes = PAIRS * QUIRE_AMX_SUMS_BYTES * eighths / 8;
    _Alignas(64) char copy[PAIRS * QUIRE_AMX_COLS * QUIRE_AMX_BYTES];
    quire_amx_product p = { .rows_stride = QUIRE_TILE_TOKENS * sizeof(float),
                            .n_chunks = CHUNKS_OF_TOKENS,
                            .ahead_to = args->next_to,
                            .eighths = eighths };

    for (uint32_t dim = 0; dim < args->d; dim += COLS_DIMS) {
        const uint32_t n_dims = args->d - dim < COLS_DIMS ? args->d - dim : COLS_DIMS;

        p.lines = (const char *)args->v_tile + (size_t)dim * PAIR_BYTES;
        p.lines_stride = line_bytes;
        p.n_cols = (n_dims + 15) / 16;
        if (!is_whole || n_dims % 16 != 0) {
            copy_seen(args, dim, copy);
            p.lines = copy;
            p.lines_stride = QUIRE_AMX_SUMS_BYTES;
        }
        p.last = p.lines + QUIRE_AMX_ROWS * p.lines_stride;
        p.ahead = args->next != NULL ? (uintptr_t)args->next + dim / COLS_DIMS * ahead_bytes : 0;
        pv_cols(args, dim, &p);
    }
}
