/* matmul_avx512_panel.c - a panel times a tile with AVX-512 VNNI.
 *
 * Two registers of codes hold 4 inputs of 32 outputs, and vpdpbusd multiplies each with 4 inputs of
 * one row into that row's sums: 64 products an instruction, two of which issue per cycle on Zen 5.
 * As many loads do, so a row's inputs are broadcast once for both. A tile of 8 rows keeps 16 sums
 * of integers in registers and reads each code once; the rows share the work of making codes out of
 * nibbles and bits. More rows gain nothing: sums of floats would go through memory with each block,
 * and 12 rows were slower by a fifth.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx512_rows.h"

#define GROUP_BLOCKS 8u /* at most */

/* The scales of a group's blocks, from its head; of types that have them, of halves of blocks. */
typedef struct group_scales {
    __m512 scale[2 * GROUP_BLOCKS][SIDES];
    __m512 min[2 * GROUP_BLOCKS][SIDES];
} group_scales;

/* ---- heads ---- */

/* 6 bits of byte i of each lane. */
INLINE __m512 byte_of(__m512i words, uint32_t i)
{
    const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(words, 8 * i), _mm512_set1_epi32(63));

    return _mm512_cvtepi32_ps(byte);
}

/* GGUF's 12 bytes hold 8 scales and 8 mins of 6 bits: the first 4 bytes the lower 4 scales, the
 * next 4 the lower 4 mins, the last 4 the nibbles of the upper ones, whose upper two bits are those
 * of the bytes before. */
INLINE void k_head(const unsigned char *head, uint32_t side, group_scales *s)
{
    const __m512 scale = halves_at(head, side), min = halves_at(head + REG, side);
    const unsigned char *words = head + LINE + (size_t)side * REG;
    const __m512i scales = _mm512_load_si512(words);
    const __m512i mins = _mm512_load_si512(words + LINE);
    const __m512i both = _mm512_load_si512(words + 2 * LINE);
    const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(48);
    const __m512i high_scales = _mm512_or_si512(
        _mm512_and_si512(both, nibble), _mm512_and_si512(_mm512_srli_epi32(scales, 2), upper));
    const __m512i high_mins = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(both, 4), nibble),
                                              _mm512_and_si512(_mm512_srli_epi32(mins, 2), upper));

    UNROLL
    for (uint32_t b = 0; b < GROUP_BLOCKS; b++) {
        s->scale[b][side] = _mm512_mul_ps(scale, byte_of(b < 4 ? scales : high_scales, b % 4));
        s->min[b][side] = _mm512_mul_ps(min, byte_of(b < 4 ? mins : high_mins, b % 4));
    }
}

INLINE void q6_k_head(const unsigned char *head, uint32_t side, group_scales *s)
{
    const __m512 scale = halves_at(head, side);
    const unsigned char *bytes = head + REG + (size_t)side * QUIRE_MATMUL_PANEL / 2;

    UNROLL
    for (uint32_t i = 0; i < 2 * GROUP_BLOCKS; i++) {
        const __m128i some = _mm_load_si128((const void *)(bytes + (size_t)i * QUIRE_MATMUL_PANEL));

        s->scale[i][side] = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(some)));
    }
}

/* `bits` bits of each lane from bit `at` on. */
INLINE __m512i field_of(__m512i words, uint32_t at, uint32_t bits)
{
    return _mm512_and_si512(_mm512_srli_epi32(words, at), _mm512_set1_epi32((1 << bits) - 1));
}

/* 16 bytes of nibbles: scales, and above them mins. */
INLINE void q2_k_head(const unsigned char *head, uint32_t side, group_scales *s)
{
    const __m512 scale = halves_at(head, side), min = halves_at(head + REG, side);

    UNROLL
    for (uint32_t i = 0; i < 2 * GROUP_BLOCKS; i++) {
        const __m512i words =
            _mm512_load_si512(head + (size_t)(1 + i / 4) * LINE + (size_t)side * REG);

        s->scale[i][side] =
            _mm512_mul_ps(scale, _mm512_cvtepi32_ps(field_of(words, 8 * (i % 4), 4)));
        s->min[i][side] =
            _mm512_mul_ps(min, _mm512_cvtepi32_ps(field_of(words, 8 * (i % 4) + 4, 4)));
    }
}

/* A scale from its nibble and its upper two bits. */
INLINE __m512 scale_of_6(__m512 scale, __m512i nibble, __m512i high)
{
    const __m512i whole = _mm512_or_si512(nibble, _mm512_slli_epi32(high, 4));

    return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_sub_epi32(whole, _mm512_set1_epi32(32))));
}

/* Nibbles in 8 bytes, the lower 8 scales' first; the last 4 bytes have the upper two bits. */
INLINE void q3_k_head(const unsigned char *head, uint32_t side, group_scales *s)
{
    const __m512 scale = halves_at(head, side);
    const unsigned char *words = head + REG + (size_t)side * REG;
    const __m512i low[2] = { _mm512_load_si512(words), _mm512_load_si512(words + LINE) };
    const __m512i high = _mm512_load_si512(words + 2 * LINE);

    UNROLL
    for (uint32_t i = 0; i < 2 * GROUP_BLOCKS; i++) {
        s->scale[i][side] =
            scale_of_6(scale, field_of(low[i / 4 % 2], 8 * (i % 4) + (i < 8 ? 0 : 4), 4),
                       field_of(high, 8 * (i % 4) + 2 * (i / 4), 2));
    }
}

INLINE void iq4_xs_head(const unsigned char *head, uint32_t side, group_scales *s)
{
    const __m512 scale = halves_at(head, side);
    const __m512i high = _mm512_cvtepu16_epi32(
        _mm256_load_si256((const void *)(head + REG + (size_t)side * REG / 2)));
    const __m512i low = _mm512_load_si512(head + LINE + (size_t)side * REG);

    UNROLL
    for (uint32_t b = 0; b < GROUP_BLOCKS; b++) {
        s->scale[b][side] = scale_of_6(scale, field_of(low, 4 * b, 4), field_of(high, 2 * b, 2));
    }
}

/* 2^(e - 128) of each lane's e. */
INLINE __m512 power_of(__m512i e)
{
    const __mmask16 is_least = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);

    return _mm512_castsi512_ps(
        _mm512_mask_sllv_epi32(normal, is_least, _mm512_set1_epi32(0x00200000), e));
}

INLINE void mxfp4_head(const unsigned char *head, uint32_t side, group_scales *s)
{
    const unsigned char *bytes = head + (size_t)side * QUIRE_MATMUL_PANEL / 2;

    UNROLL
    for (uint32_t b = 0; b < 2; b++) {
        const __m128i some = _mm_load_si128((const void *)(bytes + (size_t)b * QUIRE_MATMUL_PANEL));

        s->scale[b][side] = power_of(_mm512_cvtepu8_epi32(some));
    }
}

INLINE void head_read(quire_matmul_type type, const unsigned char *head, group_scales *s)
{
    UNROLL
    for (uint32_t side = 0; side < SIDES; side++) {
        if (type == QUIRE_MATMUL_Q6_K) {
            q6_k_head(head, side, s);
        } else if (type == QUIRE_MATMUL_Q2_K) {
            q2_k_head(head, side, s);
        } else if (type == QUIRE_MATMUL_Q3_K) {
            q3_k_head(head, side, s);
        } else if (type == QUIRE_MATMUL_IQ4_XS) {
            iq4_xs_head(head, side, s);
        } else if (type == QUIRE_MATMUL_MXFP4) {
            mxfp4_head(head, side, s);
        } else if (type == QUIRE_MATMUL_Q4_K || type == QUIRE_MATMUL_Q5_K) {
            k_head(head, side, s);
        } else {
            s->scale[0][side] = halves_at(head, side);
            if (type == QUIRE_MATMUL_Q4_1 || type == QUIRE_MATMUL_Q5_1) {
                s->min[0][side] = halves_at(head + REG, side);
            }
        }
    }
}

/* ---- codes ---- */

/* Fields of `bits` above the nibbles; field i lies i times as far up. */
INLINE __m512i with_high(__m512i nibbles, const unsigned char *at, uint32_t i, uint32_t bits)
{
    const __m512i mask = _mm512_set1_epi8((char)(((1u << bits) - 1) << 4));
    const __m512i high = _mm512_load_si512(at);
    const __m512i there = i * bits > 4 ? _mm512_srli_epi16(high, i * bits - 4)
                                       : _mm512_slli_epi16(high, 4 - i * bits);

    return _mm512_ternarylogic_epi32(there, mask, nibbles, 0xea); /* (there & mask) | nibbles */
}

/* Quad k of codes of two bits. */
INLINE __m512i twos_at(const unsigned char *codes, uint32_t k)
{
    const __m512i four = _mm512_load_si512(codes + (size_t)k / 4 * LINE);

    return _mm512_and_si512(_mm512_srli_epi16(four, 2 * (k % 4)), _mm512_set1_epi8(3));
}

/* The third bits of quad k above them. */
INLINE __m512i with_third(__m512i twos, const unsigned char *at, uint32_t k)
{
    const __m512i bits = _mm512_load_si512(at);
    const __m512i there = k > 2 ? _mm512_srli_epi16(bits, k - 2) : _mm512_slli_epi16(bits, 2 - k);

    /* (there & mask) | twos */
    return _mm512_ternarylogic_epi32(there, _mm512_set1_epi8(4), twos, 0xea);
}

/* Quad k of a block; codes begin with the side's. */
INLINE __m512i quad_at(quire_matmul_type type, const unsigned char *codes, uint32_t k)
{
    const unsigned char *high = codes + (size_t)4 * LINE;
    __m512i four;

    if (type == QUIRE_MATMUL_Q8_0) {
        return _mm512_load_si512(codes + (size_t)k * LINE);
    }
    if (type == QUIRE_MATMUL_Q2_K) {
        return twos_at(codes, k);
    }
    if (type == QUIRE_MATMUL_Q3_K) {
        return with_third(twos_at(codes, k), codes + (size_t)2 * LINE, k);
    }
    four = _mm512_load_si512(codes + (size_t)k % 4 * LINE);
    four = _mm512_and_si512(k < 4 ? four : _mm512_srli_epi16(four, 4), _mm512_set1_epi8(15));
    switch (type) {
    case QUIRE_MATMUL_IQ4_NL:
    case QUIRE_MATMUL_IQ4_XS:
    case QUIRE_MATMUL_MXFP4:
        return _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(
                _mm_loadu_si128((const void *)(type == QUIRE_MATMUL_MXFP4 ? quire_matmul_mxfp4
                                                                          : quire_matmul_iq4_nl))),
            four);
    case QUIRE_MATMUL_Q5_0:
    case QUIRE_MATMUL_Q5_1:
    case QUIRE_MATMUL_Q5_K:
        return with_high(four, high, k, 1);
    case QUIRE_MATMUL_Q6_K:
        return with_high(four, high + (size_t)k / 4 * LINE, k % 4, 2);
    default:
        return four;
    }
}

/* ---- products ---- */

/* The first value of a row's sum of quads from `quad` on: the offset of codes. */
INLINE __m512i start_of(quire_matmul_type type, const char *x, uint32_t n, uint32_t r,
                        uint32_t quad)
{
    const __m512i half = int_at(x, QUIRE_MATMUL_X_HALF * n + r);
    const __m512i sum = int_at(x, QUIRE_MATMUL_X_SUM * n + r);

    switch (type) {
    case QUIRE_MATMUL_Q8_0:
    case QUIRE_MATMUL_IQ4_NL:
    case QUIRE_MATMUL_IQ4_XS:
    case QUIRE_MATMUL_MXFP4:
        return sum;
    case QUIRE_MATMUL_Q4_0:
        return _mm512_srai_epi32(sum, 4);
    case QUIRE_MATMUL_Q5_0:
        return _mm512_srai_epi32(sum, 3);
    case QUIRE_MATMUL_Q6_K:
        return quad == 0 ? half : _mm512_sub_epi32(_mm512_srai_epi32(sum, 2), half);
    case QUIRE_MATMUL_Q3_K:
        return quad == 0 ? _mm512_srai_epi32(half, 3)
                         : _mm512_sub_epi32(_mm512_srai_epi32(sum, 5), _mm512_srai_epi32(half, 3));
    default:
        return _mm512_setzero_si512();
    }
}

/* The sums of n rows over quads [begin, end) of a block. */
INLINE void sums(quire_matmul_type type, uint32_t n, const unsigned char *codes, const char *x,
                 uint32_t begin, __m512i acc[ROWS][SIDES])
{
    const uint32_t end = quire_matmul_has_halves(type) ? begin + QUADS / 2 : QUADS;

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r][0] = acc[r][1] = start_of(type, x, n, r, begin);
    }
    UNROLL
    for (uint32_t k = begin; k < end; k++) {
        __m512i first = quad_at(type, codes, k);
        __m512i second = quad_at(type, codes + REG, k);

        /* Without this, gcc 12 loads values again for each row that it could keep. */
        __asm__("" : "+v"(first), "+v"(second));
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            const __m512i quad = int_at(x, k * n + r);

            acc[r][0] = dot(acc[r][0], first, quad);
            acc[r][1] = dot(acc[r][1], second, quad);
        }
    }
}

/* Add block b of a group. */
INLINE void block_add(quire_matmul_type type, uint32_t n, const unsigned char *codes, const char *x,
                      const group_scales *s, uint32_t b, __m512 y[ROWS][SIDES])
{
    const bool has_min = type == QUIRE_MATMUL_Q4_1 || type == QUIRE_MATMUL_Q5_1;
    const bool has_less = type == QUIRE_MATMUL_Q4_K || type == QUIRE_MATMUL_Q5_K;
    __m512i acc[ROWS][SIDES];

    sums(type, n, codes, x, 0, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m512 d = float_at(x, QUIRE_MATMUL_X_D * n + r);
        const __m512 dsum = float_at(x, QUIRE_MATMUL_X_DSUM * n + r);

        UNROLL
        for (uint32_t i = 0; i < SIDES; i++) {
            __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][i]),
                                         _mm512_mul_ps(s->scale[b][i], d), y[r][i]);

            if (has_min) {
                sum = _mm512_fmadd_ps(s->min[b][i], dsum, sum);
            } else if (has_less) {
                sum = _mm512_fnmadd_ps(s->min[b][i], dsum, sum);
            }
            y[r][i] = sum;
        }
    }
}

/* Add block b of a group whose halves have scales. */
INLINE void halves_add(quire_matmul_type type, uint32_t n, const unsigned char *codes,
                       const char *x, const group_scales *s, uint32_t b, __m512 y[ROWS][SIDES])
{
    __m512i acc[ROWS][SIDES];
    __m512 first[ROWS][SIDES];

    sums(type, n, codes, x, 0, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        UNROLL
        for (uint32_t i = 0; i < SIDES; i++) {
            first[r][i] = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[r][i]), s->scale[2 * b][i]);
        }
    }
    sums(type, n, codes, x, QUADS / 2, acc);
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const __m512 d = float_at(x, QUIRE_MATMUL_X_D * n + r);
        /* Minus the sums of the halves. */
        const __m512i n0 = _mm512_srai_epi32(int_at(x, QUIRE_MATMUL_X_HALF * n + r), 5);
        const __m512i n1 =
            _mm512_sub_epi32(_mm512_srai_epi32(int_at(x, QUIRE_MATMUL_X_SUM * n + r), 7), n0);

        UNROLL
        for (uint32_t i = 0; i < SIDES; i++) {
            const __m512 both =
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[r][i]), s->scale[2 * b + 1][i], first[r][i]);

            y[r][i] = _mm512_fmadd_ps(both, d, y[r][i]);
            if (type == QUIRE_MATMUL_Q2_K) {
                const __m512 least =
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(n1), s->min[2 * b + 1][i],
                                    _mm512_mul_ps(_mm512_cvtepi32_ps(n0), s->min[2 * b][i]));

                y[r][i] = _mm512_fmadd_ps(least, d, y[r][i]);
            }
        }
    }
}

INLINE void panel_rows(quire_matmul_type type, uint32_t n, const quire_matmul_panel *p)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t n_groups = p->weight->n_in / l->group;
    const unsigned char *at = p->at;
    const char *x = p->tile;
    const quire_prefetch to = ahead_of(type, n, p);
    __m512 y[ROWS][SIDES];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        y[r][0] = y[r][1] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        group_scales s;

        prefetch(at, l->head_bytes, to);
        head_read(type, at, &s);
        at += l->head_bytes;
        for (uint32_t b = 0; b < l->group / QUIRE_MATMUL_BLOCK; b++) {
            prefetch(at, l->code_bytes, to);
            if (quire_matmul_has_halves(type)) {
                halves_add(type, n, at, x, &s, b, y);
            } else {
                block_add(type, n, at, x, &s, b, y);
            }
            at += l->code_bytes;
            x += (size_t)n * QUIRE_MATMUL_BLOCK_BYTES;
        }
    }
    y_store(n, p, y);
}

PANEL_FNS(Q8_0)
PANEL_FNS(Q4_0)
PANEL_FNS(Q4_1)
PANEL_FNS(Q5_0)
PANEL_FNS(Q5_1)
PANEL_FNS(IQ4_NL)
PANEL_FNS(Q4_K)
PANEL_FNS(Q5_K)
PANEL_FNS(Q6_K)
PANEL_FNS(MXFP4)
PANEL_FNS(Q2_K)
PANEL_FNS(Q3_K)
PANEL_FNS(IQ4_XS)

void quire_matmul_avx512_panel(const quire_matmul_panel *panel)
{
    static void (*const runs[QUIRE_MATMUL_TYPES][ROWS])(const quire_matmul_panel *) = {
        PANEL_LIST(Q8_0),   PANEL_LIST(Q4_0),   PANEL_LIST(Q4_1), PANEL_LIST(Q5_0),
        PANEL_LIST(Q5_1),   PANEL_LIST(IQ4_NL), PANEL_LIST(Q4_K), PANEL_LIST(Q5_K),
        PANEL_LIST(Q6_K),   PANEL_LIST(MXFP4),  PANEL_LIST(Q2_K), PANEL_LIST(Q3_K),
        PANEL_LIST(IQ4_XS),
    };

    runs[panel->weight->type][panel->n_rows - 1](panel);
}
