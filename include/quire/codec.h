/* quire/codec.h - number formats of the KV cache: how 64 tokens of one lane look in memory.
 *
 * A lane is one (layer, kv head) pair. A tile holds QUIRE_TILE_TOKENS tokens of one lane, K or V,
 * in one format. Tile bytes are the same on every ISA, so a tile can be checksummed, written to
 * disk and sent to another machine. A tile is `slot`-addressed: slot s holds the s-th token.
 *
 *   format  bytes per tile       K layout (transposed)      V layout
 *   f32     64 * d * 4           f32  [d][64]               f32  [64][d]
 *   f16     64 * d * 2           f16  [d][64]               f16  [64][d]
 *   bf16    64 * d * 2           bf16 [d/2][64][2]          bf16 [32][d][2]
 *   q8      64 * d + 128         f16 scale[64],             f16 scale[64],
 *                                u8 code[d/4][64][4]        s8 code[16][d][4]
 *   q6..q3  see below            f16 scale[64],             f16 scale[64],
 *                                f16 mean[d] (padded),      code planes
 *                                code planes
 *
 * K is transposed inside the tile so that one vector register holds one dimension (or a group of 2
 * or 4) of 16 tokens. The logits of 64 tokens then come out side by side, without a horizontal sum.
 * V groups 2 or 4 *tokens* because its sum runs over tokens. K codes of q8 are stored +128
 * (unsigned) and V codes signed, as u8 x s8 dot products need them.
 *
 * q8: code = round(x / scale), scale = max|x| / 127 as f16 (rounded up so that no code exceeds
 * 127), one per token and lane: 8 + 16/d bits per value. A row of zeros has scale 0. A row that
 * holds NaN or Inf has scale NaN, so that damage is visible. Finite values beyond the range of f16
 * saturate to the largest finite f16, in f16 and in q8's scale. K may be encoded with the token's
 * queries in view (quire_tile_rows.queries): a few codes are then the other integer beside x /
 * scale, not the nearest.
 *
 * Sealed formats: q6, q5, q4, q3. A tile is encoded once, as a whole, when it has 64 tokens, and is
 * immutable from then on. x[t][i] ~ scale[t] * level[code[t][i]] + mean[i]. `level` is a table of
 * int8 per format (src/codec/sealed.h). `mean`, which only K has, is the tile's average; its logit
 * (q . mean) is added exactly. Codes are those of the nearest levels under a least-squares fit. The
 * scale makes the decoded row as long as the row. Codes lie in planes of 4, 2 or 1 bits (q6 = 4 +
 * 2, q5 = 4 + 1, q4 = 4, q3 = 2 + 1), low bits first. In a plane of b bits one byte holds 8/b
 * dimensions (K) or tokens (V) that are 4 apart:
 *
 *   K plane  u8 [ceil(d*b/32)][64][4]   byte [g][t][j], bits b*m .. b*m+b-1: dimension 32/b*g+4m+j
 *   V plane  u8 [2*b][d][4]             byte [g][i][j], bits b*m .. b*m+b-1: token     32/b*g+4m+j
 *
 * A mask, a shift and a table look-up turn a register of 4-bit codes into two registers in q8's
 * layout. Bits of a K plane behind dimension d are zero.
 *
 * A row with NaN or Inf gets scale NaN and stays out of the mean. A row of zeros has scale 0.
 * Values saturate: at +-65504 in the mean, at +-2^22 in a coded row.
 *
 * d is a multiple of QUIRE_HEAD_DIM_MULTIPLE up to QUIRE_HEAD_DIM_MAX. All buffers are 64-byte
 * aligned. Measured against row-major f16: bench/results.
 *
 * Thread: any; functions touch only their arguments.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CODEC_H
#define QUIRE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/status.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define QUIRE_TILE_TOKENS       64u
#define QUIRE_HEAD_DIM_MULTIPLE 8u
#define QUIRE_HEAD_DIM_MAX      1024u

/*  X(symbol, value, "name")  Values go to disk: append, never renumber. */
#define QUIRE_FORMAT_MAP(X)                                                                        \
    X(F32, 0, "f32")                                                                               \
    X(F16, 1, "f16")                                                                               \
    X(BF16, 2, "bf16")                                                                             \
    X(Q8, 3, "q8")                                                                                 \
    X(Q6, 4, "q6")                                                                                 \
    X(Q5, 5, "q5")                                                                                 \
    X(Q4, 6, "q4")                                                                                 \
    X(Q3, 7, "q3")

typedef enum quire_format {
#define X(sym, val, name) QUIRE_FORMAT_##sym = (val),
    QUIRE_FORMAT_MAP(X)
#undef X
    QUIRE_FORMAT_COUNT
} quire_format;

/* "q8"; "unknown" outside the table. Memory: static. */
const char *quire_format_name(quire_format format);

/* Find a format by its name. Errors: QUIRE_INVAL when there is none (then *out is unchanged). */
int quire_format_parse(const char *name, quire_format *out);

/* The contents of a tile, K or V, which the formats lay out differently. */
typedef enum quire_side {
    QUIRE_SIDE_K,
    QUIRE_SIDE_V
} quire_side;

/* Whether the format needs all 64 tokens of a tile at once. While a tile of such a format is open
 * or recent, its tokens are kept in QUIRE_FORMAT_HOT. */
bool quire_format_is_sealed(quire_format format);
#define QUIRE_FORMAT_HOT     QUIRE_FORMAT_Q8
#define QUIRE_FORMATS_DIRECT 4u /* formats below this value are not sealed */

/* Bytes of one tile of d dimensions; 0 when d or the format is invalid. A multiple of 64 for every
 * valid d. */
size_t quire_tile_bytes(quire_format format, quire_side side, uint32_t d);

/* Average bits per stored value, scales and means included: 8 + 16/d for q8. */
double quire_format_bits(quire_format format, quire_side side, uint32_t d);

/* The rows of an encode or decode: n_tokens rows of d floats, row i at x + i * stride, to or from
 * slots first_slot .. first_slot + n_tokens - 1 of the tile. */
typedef struct quire_tile_rows {
    uint32_t d;          /* head dimension */
    uint32_t first_slot; /* 0 .. 63 */
    uint32_t n_tokens;   /* first_slot + n_tokens <= 64 */
    size_t stride;       /* floats between rows, >= d */
    /* Used by encode_k in q8 only: for each row the sum of its token's queries of this kv head, d
     * floats, transformed as the row is; queries_stride floats apart. Codes are then rounded so
     * that their errors change the products with such queries little. Codes are rounded to nearest
     * if this is NULL, and in rows whose sum has NaN or Inf, or a mean square below 2^-100 or above
     * 2^100. */
    const float *queries;
    size_t queries_stride;
} quire_tile_rows;

/* One implementation of all formats. Instances differ in speed only: encode gives the same bytes
 * on every ISA, decode the same floats. Sealed formats encode whole tiles: first_slot 0, n_tokens
 * 64. */
typedef struct quire_codec {
    const char *isa; /* "ref", "avx2" */
    void (*encode_k)(quire_format format, const quire_tile_rows *rows, const float *x, void *tile);
    void (*encode_v)(quire_format format, const quire_tile_rows *rows, const float *x, void *tile);
    void (*decode_k)(quire_format format, const quire_tile_rows *rows, const void *tile, float *x);
    void (*decode_v)(quire_format format, const quire_tile_rows *rows, const void *tile, float *x);
    /* Round n queries, [n][d], to the numbers that q8 kernels multiply with: whole multiples of
     * max|q| / 127. The rounding errors change the products with K like `key` little. key, [d], is
     * the K of the queries' own token, transformed as they are, and does not overlap them. d as
     * above. The same floats on every ISA. Queries with NaN or Inf, or whose largest magnitude is
     * below 2^-60 or above 2^60, stay unchanged. All queries do if key has NaN or Inf, or a mean
     * square below 2^-100 or above 2^100. */
    void (*round_queries)(uint32_t d, uint32_t n, const float *key, float *q);
    /* The V tile of the first d_v of the d_k dimensions of a K tile, d_v <= d_k both as above, for
     * attention whose V is a part of K. The tile is of the same format and holds the same numbers.
     * Of a sealed format it is a q8 tile: the scales of K, and its levels as codes; K's mean is
     * left out. The same bytes on every ISA. */
    void (*v_of_k)(quire_format format, uint32_t d_k, uint32_t d_v, const void *k_tile,
                   void *v_tile);
} quire_codec;

/* The fastest codec for this CPU, or the one that QUIRE_ISA names (see quire/attn.h).
 * Memory: static. */
const quire_codec *quire_codec_get(void);

/* The codec of a named ISA; NULL when this build or this CPU lacks it. */
const quire_codec *quire_codec_find(const char *isa);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_CODEC_H */
