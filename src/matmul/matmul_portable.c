/* matmul_portable.c - the matrix products in plain C: what the other sets must equal bit for bit.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_kernels.h"

#include "codec/half.h"

#include <math.h>
#include <string.h>

#define X_OFFSET 128 /* in the sums that packed x carries */

enum {
    PANEL = QUIRE_MATMUL_PANEL,
    BLOCK = QUIRE_MATMUL_BLOCK
};

/* The largest |x| of a block as f32 bits, so that NaN and Inf come out on top. */
static uint32_t max_bits_of(const float *x)
{
    uint32_t max_bits = 0;

    for (uint32_t i = 0; i < BLOCK; i++) {
        uint32_t magnitude = quire_f32_bits(x[i]) & 0x7fffffffu;

        max_bits = magnitude > max_bits ? magnitude : max_bits;
    }
    return max_bits;
}

/* NaN becomes 0, as the low byte of what the CPU converts it to. */
static int8_t round_to_int8(float x)
{
    return x == x ? (int8_t)rintf(x) : (int8_t)0;
}

static void block_pack(const float *x, uint32_t n_rows, char *at)
{
    const uint32_t max_bits = max_bits_of(x);
    const float max = quire_f32_from_bits(max_bits);
    const int is_some = max_bits >= quire_f32_bits(QUIRE_MATMUL_TINY);
    const float d = is_some ? max / 127.0f : 0.0f;
    const float inverse = is_some ? 127.0f / max : 0.0f;
    int32_t start = 0;

    for (uint32_t i = 0; i < BLOCK; i++) {
        int8_t n = round_to_int8(x[i] * inverse);

        memcpy(at + (size_t)(i / 4) * 4 * n_rows + i % 4, &n, 1);
        start -= X_OFFSET * n;
    }
    memcpy(at + (size_t)BLOCK * n_rows, &start, sizeof start);
    memcpy(at + (size_t)(BLOCK + 4) * n_rows, &d, sizeof d);
}

static void row_pack(const float *row, uint32_t n_in, uint32_t n_rows, void *at)
{
    char *to = at;

    for (uint32_t i = 0; i < n_in; i += BLOCK) {
        block_pack(row + i, n_rows, to);
        to += (size_t)n_rows * QUIRE_MATMUL_BLOCK_BYTES;
    }
}

/* Code of one output's input i in a block. */
static int32_t code_at(quire_matmul_type type, const unsigned char *codes, uint32_t lane,
                       uint32_t i)
{
    uint32_t nibble = i / (BLOCK / 2);
    uint32_t at = type == QUIRE_MATMUL_Q8_0 ? i : i % (BLOCK / 2);
    unsigned char byte = codes[at / 4 * 4 * PANEL + lane * 4 + at % 4];

    return type == QUIRE_MATMUL_Q8_0 ? byte : byte >> (4 * nibble) & 15;
}

/* sum((c - o) n) of one output and one row over a block. */
static int32_t block_sum(quire_matmul_type type, const unsigned char *codes, uint32_t lane,
                         const char *x, uint32_t n_rows)
{
    int32_t start;
    int32_t sum;

    memcpy(&start, x + (size_t)BLOCK * n_rows, sizeof start);
    sum = type == QUIRE_MATMUL_Q8_0 ? start : start / (X_OFFSET / 8);
    for (uint32_t i = 0; i < BLOCK; i++) {
        int8_t n;

        memcpy(&n, x + (size_t)(i / 4) * 4 * n_rows + i % 4, 1);
        sum += code_at(type, codes, lane, i) * n;
    }
    return sum;
}

static void panel_run(const quire_matmul_panel *p)
{
    const quire_matmul_type type = p->weight->type;
    const uint32_t n_blocks = p->weight->n_in / BLOCK;
    const size_t block_bytes = quire_matmul_codes_bytes(type, BLOCK);
    const unsigned char *codes = p->at + quire_matmul_scales_bytes(p->weight->n_in);
    const size_t x_bytes = (size_t)p->n_rows * QUIRE_MATMUL_BLOCK_BYTES;

    for (uint32_t row = 0; row < p->n_rows; row++) {
        for (uint32_t lane = 0; lane < PANEL; lane++) {
            const char *x = (const char *)p->tile + (size_t)4 * row;
            float y = 0.0f;

            for (uint32_t b = 0; b < n_blocks; b++, x += x_bytes) {
                int32_t sum = block_sum(type, codes + b * block_bytes, lane, x, p->n_rows);
                uint16_t scale;
                float d;

                memcpy(&scale, p->at + ((size_t)b * PANEL + lane) * sizeof scale, sizeof scale);
                memcpy(&d, x + (size_t)(BLOCK + 4) * p->n_rows, sizeof d);
                y = fmaf((float)sum, quire_f16_to_f32(scale) * d, y);
            }
            p->y[row * p->y_stride + lane] = y;
        }
    }
}

const quire_matmul_kernels *quire_matmul_kernels_portable(void)
{
    static const quire_matmul_kernels kernels = { "portable", row_pack, panel_run };

    return &kernels;
}
