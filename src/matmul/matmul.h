/* matmul.h - y = W x for block-quantised weights, by integer products, for one row as for hundreds.
 *
 * Why Quire has this. ggml multiplies these types well for one row (bound by memory) and, after
 * repacking, for hundreds of rows. A step that decodes for several users has 2 to 64 rows, for
 * which ggml is slow. ggml's result for a row also depends on the other rows of the step, so a step
 * of another shape may choose another token. A cache of computed prefixes must not depend on the
 * shape of steps. Here
 *
 *   - a row's result does not depend on which rows are computed with it, on the number of threads
 *     or on the kernel set: every set gives the same bits;
 *   - weights are read once for up to QUIRE_MATMUL_TILE_ROWS rows, in order, in whole cache lines.
 *
 * Arithmetic. Inputs of a row are cut in blocks of 32; each is rounded to 8 bits with a scale of
 * its own: x = d n, d = max |x| / 127 (f32), n = x * (127 / max |x|) to nearest even. The
 * contribution of a block to the output depends on the type of the weights. Integer sums are exact,
 * c is unsigned:
 *
 *   w = s (c - o)         y = fma((float)(sum(c n) - o sum(n)), s * d, y)
 *     Q8_0 (o = 128), Q4_0 (8), Q5_0 (16), IQ4_NL (128, c from a table); s is f16
 *     MXFP4 (128, c from a table): s is a power of two
 *     IQ4_XS (128, c from a table): s is an f16 of 256 inputs times an integer of 6 bits, less 32
 *     IQ2_XXS, IQ3_XXS, IQ3_S (128, c from a grid and signs): s is an f16 of 256 inputs times an
 *     odd integer of 5 bits, over 8, 4 and 1
 *     IQ1_S (128, c - o is 8 times a weight of a grid, -1, 0 or 1, and 1 more or less): s is an f16
 *     of 256 inputs times an odd integer of 4 bits, over 8
 *   w = s c + m           y = fma((float)sum(c n), s * d, y), then y = fma(m, d * sum(n), y)
 *     Q4_1, Q5_1: s and m are f16. Q4_K, Q5_K: s and -m are products of the f16 of 256 inputs and a
 *     6-bit integer of the block, exact in f32
 *   w = s (c - o)         y = fma(t, d, y), t = fma((float)sum1, s1, (float)sum0 * s0)
 *     Q6_K (o = 32), Q3_K (4), IQ2_XS and IQ2_S (128, c from a grid and signs): s and sum for each
 *     half of the block; s is an f16 of 256 inputs times an int8, an integer of 6 bits less 32, or
 *     an odd integer of 5 bits over 8. IQ1_M is the same with c and s as of IQ1_S
 *   w = s c - m           y = fma(t, d, y), then y = fma(u, d, y), u = fma(-n1, m1, -n0 m0)
 *     Q2_K: t as above; n0 and n1 are sums of n. s and m are f16s of 256 inputs times integers of 4
 *     bits
 *
 * Blocks are added in ascending order. A block whose max |x| is below QUIRE_MATMUL_TINY counts as
 * zero; NaN and Inf in x give NaN or Inf.
 *
 * Layout of weights: panels of 32 outputs, one after the other, in as many bytes as in GGUF. For
 * each of GGUF's blocks a panel has a head and after it the codes of each 32 inputs. A head holds,
 * one after the other and [output] each:
 *   s f16; m f16                                       (m: Q4_1, Q5_1)
 *   f16 of s; f16 of m; [3] of GGUF's 12 bytes as u32  (Q4_K, Q5_K)
 *   f16 of s; f16 of m; [4] of GGUF's 16 bytes as u32  (Q2_K)
 *   f16 of s; [3] of GGUF's 12 bytes as u32            (Q3_K)
 *   f16 of s; [16] int8                                (Q6_K)
 *   f16 of s; GGUF's upper two bits of 8 as u16; its nibbles as u32   (IQ4_XS)
 *   f16 of s                                                          (IQ2_XXS, IQ3_XXS)
 *   f16 of s; [2] of GGUF's 8 bytes of scales as u32                  (IQ2_XS, IQ2_S)
 *   f16 of s; GGUF's 4 bytes of scales as u32                         (IQ3_S)
 *   f16 of s; u32 of the upper 4 bits of GGUF's 8 words of 16 bits    (IQ1_S)
 *   [2] of GGUF's 8 bytes of scales as u32                            (IQ1_M)
 *   then of IQ2_S, IQ3_S, IQ1_S and IQ1_M: [block][output / 16][n] u64 of upper bits of indices,
 *   bit 4 (output % 16) + k of which belongs to byte k of the output: the two bits of an index
 *   (IQ2_S), the bits of the two lines of indices (IQ3_S), the three bits of an index (IQ1_S), or
 *   these and a bit that is set where codes are 1 less (IQ1_M)
 *   [2] exponents of s, u8                             (MXFP4, whose blocks are taken in pairs)
 * and codes of 32 inputs are
 *   Q8_0: [input / 4][output][4] bytes
 *   IQ1: [output][4] lower 8 bits of indices
 *   IQ2: [output][4] lower 8 bits of indices; [output] GGUF's signs and scale as u32 (XXS), or [4]
 *   bytes: 7 signs and the ninth bit of the index (XS), 8 signs (S)
 *   IQ3: [2][output][4] lower 8 bits of indices, of even quads and of odd ones; [output] GGUF's
 *   signs and scale as u32 (XXS), or [4] bytes of 8 signs (S)
 *   Q2_K, Q3_K: [2][output][4] bytes, bits 2 k and 2 k + 1 of which are those of input 4 k + byte,
 *   16 further on in the second; of Q3_K: then [output][4] bytes whose bit k is the third of input
 *   4 k + byte
 *   the others: [input / 4, 0..3][output][4] bytes, the high nibbles being inputs 16 further on;
 *   of 5 bits: then [output][4] bytes whose bit k is the fifth of input 4 k + byte; of 6 bits: then
 *   [2][output][4] bytes, bits 2 k and 2 k + 1 of which are the upper two of input 4 k + byte, 16
 *   further on in the second
 *
 * Layout of x: tiles of up to QUIRE_MATMUL_TILE_ROWS rows, as equal as can be. A tile holds for
 * each block n as [input / 4][row][4] int8, then [row] of -128 sum(n) int32, -32 sum(n) of the
 * first 16 int32, d f32, d * sum(n) f32.
 *
 * Thread: any. Weights and packed x are read only; each call names its part of the work.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MATMUL_MATMUL_H
#define QUIRE_MATMUL_MATMUL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_MATMUL_BLOCK       32u /* inputs that share a scale */
#define QUIRE_MATMUL_PANEL       32u /* outputs that are computed together */
#define QUIRE_MATMUL_TILE_ROWS   8u  /* rows of x that share a reading of the weights */
#define QUIRE_MATMUL_BLOCK_BYTES 48u /* of a row's block in packed x */
#define QUIRE_MATMUL_TINY        1e-30f

/* The types' names and blocks are GGUF's. */
typedef enum quire_matmul_type {
    QUIRE_MATMUL_Q8_0,
    QUIRE_MATMUL_Q4_0,
    QUIRE_MATMUL_Q4_1,
    QUIRE_MATMUL_Q5_0,
    QUIRE_MATMUL_Q5_1,
    QUIRE_MATMUL_IQ4_NL,
    QUIRE_MATMUL_Q4_K,
    QUIRE_MATMUL_Q5_K,
    QUIRE_MATMUL_Q6_K,
    QUIRE_MATMUL_MXFP4,
    QUIRE_MATMUL_Q2_K,
    QUIRE_MATMUL_Q3_K,
    QUIRE_MATMUL_IQ4_XS,
    QUIRE_MATMUL_IQ2_XXS, /* from here on: types with grids (matmul_grids.h) */
    QUIRE_MATMUL_IQ2_XS,
    QUIRE_MATMUL_IQ2_S,
    QUIRE_MATMUL_IQ3_XXS,
    QUIRE_MATMUL_IQ3_S,
    QUIRE_MATMUL_IQ1_S,
    QUIRE_MATMUL_IQ1_M
} quire_matmul_type;
#define QUIRE_MATMUL_TYPES 20u

typedef struct quire_matmul_kernels quire_matmul_kernels;

/* A matrix [n_out][n_in]. Memory: panels belong to the caller that made them, aligned to 64
 * bytes. */
typedef struct quire_matmul_weight {
    const quire_matmul_kernels *kernels;
    quire_matmul_type type;
    uint32_t n_in;
    uint32_t n_out;
    unsigned char *panels;
} quire_matmul_weight;

/* Whether a matrix has whole blocks of GGUF and whole panels, as all functions here require. */
bool quire_matmul_takes(quire_matmul_type type, uint64_t n_in, uint64_t n_out);

/* Whether the set multiplies a type faster than ggml does, for one row and for many. */
bool quire_matmul_is_fast(const quire_matmul_kernels *kernels, quire_matmul_type type);

/* Bytes of a matrix in panels: as many as in GGUF, a multiple of 64. */
size_t quire_matmul_weight_bytes(quire_matmul_type type, uint32_t n_in, uint32_t n_out);

/* Fill the panels from GGUF's rows (n_out of them, one after the other, any alignment). */
void quire_matmul_weight_pack(const quire_matmul_weight *weight, const void *rows);

/* Bytes of n_rows packed rows. */
size_t quire_matmul_x_bytes(uint32_t n_in, uint32_t n_rows);

/* The set by name ("avx512", "avx2+vnni", "avx2", "portable"); NULL: the fastest of this CPU that
 * QUIRE_ISA allows. Returns NULL when the CPU lacks the named set. Also returns NULL, when the
 * fastest set is wanted, if only the portable set is left: ggml's products are faster than this
 * set. */
const quire_matmul_kernels *quire_matmul_kernels_find(const char *name);

/* Rows of f32 to be packed. */
typedef struct quire_matmul_x {
    const float *rows;
    size_t stride; /* floats between rows */
    uint32_t n_in;
    uint32_t n_rows;
} quire_matmul_x;

/* Thread `thread`'s part of packing x into `packed`. Every thread's part must be done before any
 * product. */
void quire_matmul_x_pack(const quire_matmul_kernels *kernels, const quire_matmul_x *x, void *packed,
                         uint32_t thread, uint32_t n_threads);

/* Where results go: y[row * stride + output]. */
typedef struct quire_matmul_y {
    float *rows;
    size_t stride; /* floats between rows */
    uint32_t n_rows;
} quire_matmul_y;

/* Thread `thread`'s part of y = W x. */
void quire_matmul_run(const quire_matmul_weight *weight, const void *packed,
                      const quire_matmul_y *y, uint32_t thread, uint32_t n_threads);

#endif /* QUIRE_MATMUL_MATMUL_H */
