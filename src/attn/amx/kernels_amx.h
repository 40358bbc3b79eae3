/* kernels_amx.h - products of AMX's tile registers, as attention needs them.
 *
 * A tile register ("register" below, since a tile is 64 tokens here) has 16 rows of 64 bytes. An
 * instruction multiplies 16 rows of queries or weights with 16 lines of a tile and adds to 16 x 16
 * sums. A line has for 16 tokens (K) or dimensions (V) the 2 values of bf16, or the 4 of int8, that
 * go into one sum: the layouts of include/quire/codec.h are the operands of the instruction as they
 * stand. So are the rows of packed queries and of weights, 64 bytes of them at a time (a chunk: 32
 * values of bf16, 64 of int8).
 *
 * Sums of integers are exact. A sum of bf16 adds, by chunk, the even and the odd products upwards,
 * each in a float (rounded once for each product, denormals flushed, for all settings of the
 * thread), then both to the old sum: Intel's Software Developer's Manual, TDPBF16PS. No sum
 * depends on another, so a row's bits do not depend on its neighbours.
 *
 * All is assembly: gcc 12's intrinsics do not name the memory that they read.
 * A thread enters and leaves (quire_amx_enter) around calls of these kernels.
 *
 * Include only from files compiled for AVX-512.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_KERNELS_AMX_H
#define QUIRE_ATTN_KERNELS_AMX_H

#include "attn/avx512/kernels_avx512.h"

#include <string.h>

#define QUIRE_AMX_ROWS  16u /* of a register, and lines */
#define QUIRE_AMX_BYTES 64u /* of a row or a line */
#define QUIRE_AMX_COLS  4u  /* registers side by side: 64 tokens or dimensions */

#define QUIRE_AMX_ROWS_MAX (2 * QUIRE_AMX_ROWS) /* of a product */

/* Bytes between rows of sums: as many as between rows of logits. */
#define QUIRE_AMX_SUMS_BYTES ((size_t)QUIRE_AMX_COLS * QUIRE_AMX_BYTES)

#define QUIRE_AMX_LOAD(reg, at, stride)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #reg                                             \
                     :                                                                             \
                     : "r"(at), "r"((size_t)(stride))                                              \
                     : "memory")
#define QUIRE_AMX_STORE(reg, at, stride)                                                           \
    __asm__ volatile("tilestored %%tmm" #reg ", (%0,%1,1)"                                         \
                     :                                                                             \
                     : "r"(at), "r"((size_t)(stride))                                              \
                     : "memory")
#define QUIRE_AMX_ZERO(reg) __asm__ volatile("tilezero %%tmm" #reg : : :)

typedef enum quire_amx_kind {
    QUIRE_AMX_BF16,
    QUIRE_AMX_S8_U8, /* rows of int8, lines of uint8 */
    QUIRE_AMX_U8_S8
} quire_amx_kind;

/* sums += rows * lines; kind is a constant. */
#define QUIRE_AMX_DOT(kind, sums, rows, lines)                                                     \
    do {                                                                                           \
        if ((kind) == QUIRE_AMX_BF16) {                                                            \
            __asm__ volatile("tdpbf16ps %%tmm" #lines ", %%tmm" #rows ", %%tmm" #sums : : :);      \
        } else if ((kind) == QUIRE_AMX_S8_U8) {                                                    \
            __asm__ volatile("tdpbsud %%tmm" #lines ", %%tmm" #rows ", %%tmm" #sums : : :);        \
        } else {                                                                                   \
            __asm__ volatile("tdpbusd %%tmm" #lines ", %%tmm" #rows ", %%tmm" #sums : : :);        \
        }                                                                                          \
    } while (0)

/* The sums of a register of rows, by row. */
typedef int32_t register_sums[QUIRE_AMX_ROWS][QUIRE_TILE_TOKENS];

/* One or two registers of rows against up to 64 columns of a tile. */
typedef struct quire_amx_product {
    const char *rows[2]; /* 16 each; [1] NULL: one register */
    size_t rows_stride;
    const char *lines;
    size_t lines_stride;
    const char *last; /* of the last chunk, the lines */
    uint32_t n_chunks;
    uint32_t n_cols; /* registers */
    char *sums[2];   /* of each register of rows [16][64], 4 bytes each */
    uintptr_t ahead; /* address of the next line to prefetch; 0: nothing */
    quire_prefetch ahead_to;
    uint32_t eighths; /* of the lines' bytes, that are prefetched */
} quire_amx_product;

/* Rows from `row` on that a product of both registers takes, of n_rows that begin with `at`. */
QUIRE_AVX512_INLINE void quire_amx_take_rows(quire_amx_product *p, const void *at, uint32_t n_rows,
                                             uint32_t row)
{
    const char *first = (const char *)at + row * p->rows_stride;

    p->rows[0] = first;
    p->rows[1] = n_rows - row > QUIRE_AMX_ROWS ? first + QUIRE_AMX_ROWS * p->rows_stride : NULL;
}

/* The number of rows, of n_rows, in a register that begins with row `first`. */
QUIRE_AVX512_INLINE uint32_t quire_amx_n_rows(uint32_t n_rows, uint32_t first)
{
    const uint32_t n = n_rows > first ? n_rows - first : 0;

    return n < QUIRE_AMX_ROWS ? n : QUIRE_AMX_ROWS;
}

/* Prefetch n lines; returns the address behind them. 0: nothing to prefetch. */
QUIRE_AVX512_INLINE uintptr_t quire_amx_prefetch(uintptr_t at, quire_prefetch to, uint32_t n)
{
    quire_avx512_ahead ahead = { .at = at, .to = to };

    if (at != 0) {
        quire_avx512_prefetch_lines(&ahead, n);
    }
    return ahead.at;
}

/* The lines of a K tile's last chunk, of n_lines; zeros after them, in `to`, where there are less
 * than a register has. */
static inline const char *quire_amx_last_lines(const char *lines, uint32_t n_lines,
                                               char to[QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES])
{
    const size_t whole = n_lines / QUIRE_AMX_ROWS * QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES;
    const size_t rest = n_lines % QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES;

    if (rest == 0) {
        return lines + whole - QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES;
    }
    memcpy(to, lines + whole, rest);
    memset(to + rest, 0, QUIRE_AMX_ROWS * QUIRE_AMX_SUMS_BYTES - rest);
    return to;
}

/* 16 rows, 64 columns. Fields are copied, since assembly that may write to memory makes the
 * compiler read them again. */
QUIRE_AVX512_INLINE void quire_amx_1_4(quire_amx_kind kind, const quire_amx_product *p)
{
    const size_t stride = p->lines_stride;
    const size_t chunk_bytes = QUIRE_AMX_ROWS * stride;
    const size_t rows_stride = p->rows_stride;
    const char *rows = p->rows[0];
    const char *lines = p->lines;
    const char *last = p->last;
    const quire_prefetch to = p->ahead_to;
    const uint32_t eighths = p->eighths;
    char *const sums = p->sums[0];
    uintptr_t ahead = p->ahead;

    QUIRE_AMX_ZERO(0);
    QUIRE_AMX_ZERO(1);
    QUIRE_AMX_ZERO(2);
    QUIRE_AMX_ZERO(3);
    for (uint32_t n_left = p->n_chunks; n_left > 0; n_left--) {
        lines = n_left == 1 ? last : lines;
        QUIRE_AMX_LOAD(4, rows, rows_stride);
        QUIRE_AMX_LOAD(5, lines, stride);
        QUIRE_AMX_DOT(kind, 0, 4, 5);
        ahead = quire_amx_prefetch(ahead, to, 2 * eighths);
        QUIRE_AMX_LOAD(6, lines + 64, stride);
        QUIRE_AMX_DOT(kind, 1, 4, 6);
        ahead = quire_amx_prefetch(ahead, to, 2 * eighths);
        QUIRE_AMX_LOAD(7, lines + 128, stride);
        QUIRE_AMX_DOT(kind, 2, 4, 7);
        ahead = quire_amx_prefetch(ahead, to, 2 * eighths);
        QUIRE_AMX_LOAD(5, lines + 192, stride);
        QUIRE_AMX_DOT(kind, 3, 4, 5);
        ahead = quire_amx_prefetch(ahead, to, 2 * eighths);
        rows += QUIRE_AMX_BYTES;
        lines += chunk_bytes;
    }
    QUIRE_AMX_STORE(0, sums, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(1, sums + 64, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(2, sums + 128, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(3, sums + 192, QUIRE_AMX_SUMS_BYTES);
}

/* 32 rows, 32 columns from `at` on; returns the next address to prefetch. */
QUIRE_AVX512_INLINE uintptr_t quire_amx_2_2(quire_amx_kind kind, const quire_amx_product *p,
                                            size_t at, uintptr_t ahead)
{
    const size_t stride = p->lines_stride;
    const size_t chunk_bytes = QUIRE_AMX_ROWS * stride;
    const size_t rows_stride = p->rows_stride;
    const char *rows_0 = p->rows[0];
    const char *rows_1 = p->rows[1];
    const char *lines = p->lines + at;
    const char *last = p->last + at;
    const quire_prefetch to = p->ahead_to;
    const uint32_t eighths = p->eighths;
    char *const sums_0 = p->sums[0] + at;
    char *const sums_1 = p->sums[1] + at;

    QUIRE_AMX_ZERO(0);
    QUIRE_AMX_ZERO(1);
    QUIRE_AMX_ZERO(2);
    QUIRE_AMX_ZERO(3);
    for (uint32_t n_left = p->n_chunks; n_left > 0; n_left--) {
        lines = n_left == 1 ? last : lines;
        QUIRE_AMX_LOAD(4, rows_0, rows_stride);
        QUIRE_AMX_LOAD(6, lines, stride);
        QUIRE_AMX_DOT(kind, 0, 4, 6);
        ahead = quire_amx_prefetch(ahead, to, eighths);
        QUIRE_AMX_LOAD(7, lines + 64, stride);
        QUIRE_AMX_DOT(kind, 1, 4, 7);
        ahead = quire_amx_prefetch(ahead, to, eighths);
        QUIRE_AMX_LOAD(5, rows_1, rows_stride);
        QUIRE_AMX_DOT(kind, 2, 5, 6);
        ahead = quire_amx_prefetch(ahead, to, eighths);
        QUIRE_AMX_DOT(kind, 3, 5, 7);
        ahead = quire_amx_prefetch(ahead, to, eighths);
        rows_0 += QUIRE_AMX_BYTES;
        rows_1 += QUIRE_AMX_BYTES;
        lines += chunk_bytes;
    }
    QUIRE_AMX_STORE(0, sums_0, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(1, sums_0 + 64, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(2, sums_1, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(3, sums_1 + 64, QUIRE_AMX_SUMS_BYTES);
    return ahead;
}

/* 16 rows or 32, 16 columns from `at` on: the rest of a head. */
QUIRE_AVX512_INLINE uintptr_t quire_amx_x_1(quire_amx_kind kind, const quire_amx_product *p,
                                            size_t at, uintptr_t ahead)
{
    const uint32_t second = p->rows[1] != NULL ? 1 : 0;

    QUIRE_AMX_ZERO(0);
    QUIRE_AMX_ZERO(1);
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        const char *lines =
            c + 1 == p->n_chunks ? p->last : p->lines + c * QUIRE_AMX_ROWS * p->lines_stride;

        QUIRE_AMX_LOAD(4, p->rows[0] + (size_t)QUIRE_AMX_BYTES * c, p->rows_stride);
        QUIRE_AMX_LOAD(5, p->rows[second] + (size_t)QUIRE_AMX_BYTES * c, p->rows_stride);
        QUIRE_AMX_LOAD(6, lines + at, p->lines_stride);
        QUIRE_AMX_DOT(kind, 0, 4, 6);
        QUIRE_AMX_DOT(kind, 1, 5, 6);
        ahead = quire_amx_prefetch(ahead, p->ahead_to, 2 * p->eighths);
    }
    QUIRE_AMX_STORE(0, p->sums[0] + at, QUIRE_AMX_SUMS_BYTES);
    QUIRE_AMX_STORE(1, p->sums[second] + at, QUIRE_AMX_SUMS_BYTES);
    return ahead;
}

/* sums = rows * lines; kind is a constant. */
QUIRE_AVX512_INLINE void quire_amx_multiply(quire_amx_kind kind, const quire_amx_product *p)
{
    uintptr_t ahead = p->ahead;
    uint32_t col = 0;

    if (p->rows[1] == NULL && p->n_cols == QUIRE_AMX_COLS) {
        quire_amx_1_4(kind, p);
        return;
    }
    for (; p->rows[1] != NULL && col + 2 <= p->n_cols; col += 2) {
        ahead = quire_amx_2_2(kind, p, (size_t)QUIRE_AMX_BYTES * col, ahead);
    }
    for (; col < p->n_cols; col++) {
        ahead = quire_amx_x_1(kind, p, (size_t)QUIRE_AMX_BYTES * col, ahead);
    }
}

#endif /* QUIRE_ATTN_KERNELS_AMX_H */
