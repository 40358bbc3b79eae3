/* matmul_avx2_grid.c - codes and scales of a group of a type with a grid, with AVX2.
 *
 * AVX2 has no look-up of bytes in more than 16, so an index loads the sizes of its weights, a byte
 * each, from a table that is made of the grid's planes: 8 bytes of IQ1 and IQ2, 4 of IQ3. Two
 * registers of four outputs' eights are shuffled into two quads of eight outputs. The signs of
 * eight outputs are made together. Of IQ1 they say whether 1 is added or subtracted. A group's
 * codes are made once for all rows of all tiles at hand, and lie in the L1 cache while the rows
 * pass.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx2_grid.h"

#include "matmul/matmul_grids.h"

#include <immintrin.h>
#include <pthread.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

enum {
    PANEL = QUIRE_MATMUL_PANEL,
    LINE = 4 * PANEL, /* a word for each output */
    CACHE_LINE = 64,
    EIGHT = 8 /* outputs of a register, inputs of an index of IQ2 */
};

/* ---- tables ---- */

static _Alignas(64) uint64_t iq2_xxs_sizes[256], iq2_xs_sizes[512], iq2_s_sizes[1024];
static _Alignas(64) uint32_t iq3_xxs_sizes[256], iq3_s_sizes[512];
static _Alignas(64) uint64_t iq1_codes[2048]; /* 8 times weights, plus 16 */
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

/* The sizes of index i of a grid whose planes have n entries, the first in the lowest byte. */
static uint64_t sizes_at(const uint8_t *planes, uint32_t n, const uint8_t *of_code, uint32_t i)
{
    uint64_t sizes = 0;

    for (uint32_t k = 0; k < EIGHT; k++) {
        const uint32_t code = (uint32_t)planes[k / 4 * n + i] >> (2 * (k % 4)) & 3;

        sizes |= (uint64_t)of_code[code] << (8 * k);
    }
    return sizes;
}

static uint32_t iq3_sizes_at(const uint8_t *planes, uint32_t n, const uint8_t *of_code, uint32_t i)
{
    uint32_t sizes = 0;

    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t code =
            ((uint32_t)planes[i] >> (2 * k) & 3) | ((uint32_t)planes[n + i] >> k & 1) << 2;

        sizes |= (uint32_t)of_code[code] << (8 * k);
    }
    return sizes;
}

static void tables_fill(void)
{
    static const uint8_t iq1_of_code[4] = { 8, 16, 24 };
    const uint8_t *iq2 = quire_matmul_iq2_sizes;

    for (uint32_t i = 0; i < 2048; i++) {
        iq1_codes[i] = sizes_at(quire_matmul_iq1_grid[0], 2048, iq1_of_code, i);
    }
    for (uint32_t i = 0; i < 1024; i++) {
        iq2_s_sizes[i] = sizes_at(quire_matmul_iq2_s_grid[0], 1024, iq2, i);
    }
    for (uint32_t i = 0; i < 512; i++) {
        iq2_xs_sizes[i] = sizes_at(quire_matmul_iq2_xs_grid[0], 512, iq2, i);
        iq3_s_sizes[i] = iq3_sizes_at(quire_matmul_iq3_s_grid[0], 512, quire_matmul_iq3_s_sizes, i);
    }
    for (uint32_t i = 0; i < 256; i++) {
        iq2_xxs_sizes[i] = sizes_at(quire_matmul_iq2_xxs_grid[0], 256, iq2, i);
        iq3_xxs_sizes[i] =
            iq3_sizes_at(quire_matmul_iq3_xxs_grid[0], 256, quire_matmul_iq3_xxs_sizes, i);
    }
}

void quire_matmul_avx2_grid_init(void)
{
    (void)pthread_once(&tables_once, tables_fill);
}

/* ---- codes ---- */

INLINE __m256i load(const unsigned char *at)
{
    return _mm256_load_si256((const void *)at);
}

/* Whether indices have more than 8 bits. */
INLINE bool is_long(quire_matmul_type type)
{
    return type != QUIRE_MATMUL_IQ2_XXS && type != QUIRE_MATMUL_IQ3_XXS;
}

INLINE bool is_iq3(quire_matmul_type type)
{
    return type == QUIRE_MATMUL_IQ3_XXS || type == QUIRE_MATMUL_IQ3_S;
}

/* Seven signs in each byte; the eighth makes their number even. */
INLINE __m256i with_parity(__m256i sevens)
{
    const __m256i odd =
        _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, 0,
                         -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const __m256i folded = _mm256_xor_si256(sevens, _mm256_srli_epi16(sevens, 4));

    return _mm256_or_si256(
        sevens, _mm256_shuffle_epi8(odd, _mm256_and_si256(folded, _mm256_set1_epi8(15))));
}

/* 7 bits of each word at 0, 7, 14 and 21 as its bytes. */
INLINE __m256i sevens_of(__m256i words)
{
    const __m256i mask = _mm256_set1_epi32(0x7f);
    __m256i y = _mm256_and_si256(words, mask);

    UNROLL
    for (int i = 1; i < 4; i++) {
        y = _mm256_or_si256(
            y, _mm256_and_si256(_mm256_slli_epi32(words, i), _mm256_slli_epi32(mask, 8 * i)));
    }
    return y;
}

/* 32 bits as bytes of 0 or `value`. */
INLINE __m256i bits_at(const unsigned char *at, int8_t value)
{
    const __m256i byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    const __m256i words = _mm256_set1_epi32(*(const int32_t *)(const void *)at);
    const __m256i found = _mm256_and_si256(_mm256_shuffle_epi8(words, byte), bit);

    return _mm256_and_si256(_mm256_cmpeq_epi8(found, bit), _mm256_set1_epi8(value));
}

/* Eight outputs of block b of a group. */
typedef struct eight {
    const unsigned char *head;
    const unsigned char *codes; /* the outputs' first line */
    uint32_t b, lane;
} eight;

/* The upper bits of their indices. Of a side of 16 outputs the bits of a kind are 8 bytes: half of
 * them are an eight's. */
INLINE const unsigned char *high_of(quire_matmul_type type, const eight *e)
{
    return e->head + quire_matmul_high_at(type, e->b) +
           (size_t)8 * (e->lane / 16 * quire_matmul_high_words(type)) + e->lane % 16 / 2;
}

/* Signs of eight outputs, a byte for eight inputs: a bit for each, of IQ1 the number to add. */
INLINE __m256i signs_at(quire_matmul_type type, const eight *e)
{
    const unsigned char *at = e->codes + (size_t)(is_iq3(type) ? 2 : 1) * LINE;
    const __m256i one = _mm256_set1_epi8(1);

    switch (type) {
    case QUIRE_MATMUL_IQ1_S: /* the upper bit of the block's nibble */
        at = e->head + QUIRE_MATMUL_GRID_SCALES + (size_t)4 * e->lane;
        return _mm256_or_si256(
            _mm256_srai_epi32(_mm256_sll_epi32(load(at), _mm_cvtsi32_si128(28 - 4 * (int)e->b)),
                              31),
            one);
    case QUIRE_MATMUL_IQ1_M:
        return _mm256_or_si256(bits_at(high_of(type, e) + 24, -1), one);
    case QUIRE_MATMUL_IQ2_XXS:
    case QUIRE_MATMUL_IQ3_XXS:
        return with_parity(sevens_of(load(at)));
    case QUIRE_MATMUL_IQ2_XS:
        return with_parity(_mm256_and_si256(load(at), _mm256_set1_epi8(0x7f)));
    default:
        return load(at);
    }
}

/* The bits above the lower 8 bits of the indices of eight outputs. line: in IQ3 0 for even quads
 * and 1 for odd quads. */
INLINE __m256i upper_at(quire_matmul_type type, const eight *e, uint32_t line)
{
    const unsigned char *high = high_of(type, e);

    switch (type) {
    case QUIRE_MATMUL_IQ2_XS: /* above seven signs each */
        return _mm256_and_si256(_mm256_srli_epi16(load(e->codes + LINE), 7), _mm256_set1_epi8(1));
    case QUIRE_MATMUL_IQ2_S:
        return _mm256_or_si256(bits_at(high, 1), bits_at(high + 8, 2));
    case QUIRE_MATMUL_IQ1_S:
    case QUIRE_MATMUL_IQ1_M:
        return _mm256_or_si256(_mm256_or_si256(bits_at(high, 1), bits_at(high + 8, 2)),
                               bits_at(high + 16, 4));
    default:
        return bits_at(high + (size_t)8 * line, 1);
    }
}

/* Indices of eight outputs: the lower 8 bits as the file has them, [output][4]; or where they have
 * more, of outputs 0, 1, 4, 5, and then of 2, 3, 6, 7. */
typedef struct indices {
    const unsigned char *lower;
    const uint16_t *whole;
} indices;

enum {
    WHOLE = 4 * EIGHT
}; /* of eight outputs of a block */

/* A group's indices of more than 8 bits, [block][eight][line][WHOLE]. They are made before any of
 * them is used: a load from a wide store that is still under way waits for it. */
INLINE void whole_make(quire_matmul_type type, const unsigned char *head, uint16_t *to)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t n_lines = is_iq3(type) ? 2 : 1;

    for (uint32_t b = 0; b < QUIRE_MATMUL_STEP_BLOCKS; b++) {
        const unsigned char *codes = head + l->head_bytes + (size_t)b * l->code_bytes;

        for (uint32_t lane = 0; lane < PANEL; lane += EIGHT, codes += 4 * EIGHT) {
            const eight e = { head, codes, b, lane };

            for (uint32_t line = 0; line < n_lines; line++, to += WHOLE) {
                const __m256i lower = load(codes + (size_t)line * LINE);
                const __m256i upper = upper_at(type, &e, line);

                _mm256_store_si256((void *)to, _mm256_unpacklo_epi8(lower, upper));
                _mm256_store_si256((void *)(to + WHOLE / 2), _mm256_unpackhi_epi8(lower, upper));
            }
        }
    }
}

INLINE uint32_t index_at(quire_matmul_type type, const indices *i, uint32_t output, uint32_t k)
{
    const uint32_t place = (output & 1) + (output >> 2 & 1) * 2 + (output >> 1 & 1) * 4;

    return is_long(type) ? i->whole[4 * place + k] : i->lower[4 * output + k];
}

/* Eights of outputs n, n + 1, n + 4 and n + 5. */
INLINE __m256 eights_at(quire_matmul_type type, const indices *i, uint32_t n, uint32_t k)
{
    const uint64_t *table = type == QUIRE_MATMUL_IQ2_XXS  ? iq2_xxs_sizes
                            : type == QUIRE_MATMUL_IQ2_XS ? iq2_xs_sizes
                            : type == QUIRE_MATMUL_IQ2_S  ? iq2_s_sizes
                                                          : iq1_codes;
    const __m128d low = _mm_loadh_pd(_mm_load_sd((const void *)&table[index_at(type, i, n, k)]),
                                     (const void *)&table[index_at(type, i, n + 1, k)]);
    const __m128d high =
        _mm_loadh_pd(_mm_load_sd((const void *)&table[index_at(type, i, n + 4, k)]),
                     (const void *)&table[index_at(type, i, n + 5, k)]);

    return _mm256_castpd_ps(_mm256_insertf128_pd(_mm256_castpd128_pd256(low), high, 1));
}

/* A quad of output n. */
INLINE int quad_at(quire_matmul_type type, const indices *i, uint32_t n, uint32_t k)
{
    const uint32_t *table = type == QUIRE_MATMUL_IQ3_XXS ? iq3_xxs_sizes : iq3_s_sizes;

    return (int)table[index_at(type, i, n, k)];
}

/* Quads of eight outputs. */
INLINE __m256i quads_at(quire_matmul_type type, const indices *i, uint32_t k)
{
    return _mm256_setr_epi32(quad_at(type, i, 0, k), quad_at(type, i, 1, k), quad_at(type, i, 2, k),
                             quad_at(type, i, 3, k), quad_at(type, i, 4, k), quad_at(type, i, 5, k),
                             quad_at(type, i, 6, k), quad_at(type, i, 7, k));
}

/* Sizes with the signs whose bits are set, plus 64. */
INLINE __m256i with_signs(__m256i sizes, __m256i signs, __m256i bits)
{
    const __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);

    /* size or -size - 1, then minus -1 where it is */
    return _mm256_add_epi8(_mm256_xor_si256(sizes, minus),
                           _mm256_sub_epi8(_mm256_set1_epi8(64), minus));
}

/* Codes of eight outputs of a block. lines: their indices, of IQ3 those of odd quads too. */
INLINE void eight_read(quire_matmul_type type, const eight *e, const indices lines[2],
                       unsigned char *to)
{
    const __m256i word = _mm256_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 0, 0,
                                          0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m256i bits[2] = { _mm256_set1_epi32(0x08040201), _mm256_set1_epi32((int)0x80402010u) };
    const __m256i signs = signs_at(type, e);

    UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        const __m256i one =
            _mm256_shuffle_epi8(signs, _mm256_add_epi8(word, _mm256_set1_epi8((char)k)));
        __m256i sizes[2];

        if (is_iq3(type)) {
            sizes[0] = quads_at(type, &lines[0], k);
            sizes[1] = quads_at(type, &lines[1], k);
        } else {
            const __m256 a = eights_at(type, &lines[0], 0, k), b = eights_at(type, &lines[0], 2, k);

            sizes[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
            sizes[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
        }
        UNROLL
        for (uint32_t q = 0; q < 2; q++) {
            _mm256_store_si256((void *)(to + (size_t)(2 * k + q) * LINE),
                               quire_matmul_is_iq1(type) ? _mm256_add_epi8(sizes[q], one)
                                                         : with_signs(sizes[q], one, bits[q]));
        }
    }
}

/* A group of a type, known when this is compiled. */
INLINE void group_read(quire_matmul_type type, const unsigned char *head, size_t ahead_bytes,
                       unsigned char *to)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t n_lines = is_iq3(type) ? 2 : 1;
    _Alignas(32) uint16_t whole[QUIRE_MATMUL_STEP_BLOCKS * PANEL / EIGHT * 2 * WHOLE];
    const uint16_t *at = whole;

    if (is_long(type)) {
        whole_make(type, head, whole);
    }
    for (uint32_t b = 0; b < QUIRE_MATMUL_STEP_BLOCKS; b++, to += QUIRE_MATMUL_GRID_BLOCK_BYTES) {
        const unsigned char *codes = head + l->head_bytes + (size_t)b * l->code_bytes;

        for (size_t i = 0; ahead_bytes != 0 && i < PANEL * l->gguf_bytes / QUIRE_MATMUL_STEP_BLOCKS;
             i += CACHE_LINE) {
            _mm_prefetch((const char *)codes + ahead_bytes + i, _MM_HINT_T0);
        }
        for (uint32_t lane = 0; lane < PANEL; lane += EIGHT, codes += 4 * EIGHT) {
            const indices lines[2] = { { codes, at }, { codes + LINE, at + WHOLE } };
            const eight e = { head, codes, b, lane };

            eight_read(type, &e, lines, to + (size_t)4 * lane);
            at += (size_t)n_lines * WHOLE;
        }
    }
}

void quire_matmul_avx2_grid_read(quire_matmul_type type, const unsigned char *head,
                                 size_t ahead_bytes, unsigned char *to)
{
    switch (type) {
    case QUIRE_MATMUL_IQ2_XXS:
        group_read(QUIRE_MATMUL_IQ2_XXS, head, ahead_bytes, to);
        break;
    case QUIRE_MATMUL_IQ2_XS:
        group_read(QUIRE_MATMUL_IQ2_XS, head, ahead_bytes, to);
        break;
    case QUIRE_MATMUL_IQ2_S:
        group_read(QUIRE_MATMUL_IQ2_S, head, ahead_bytes, to);
        break;
    case QUIRE_MATMUL_IQ3_XXS:
        group_read(QUIRE_MATMUL_IQ3_XXS, head, ahead_bytes, to);
        break;
    case QUIRE_MATMUL_IQ1_S:
        group_read(QUIRE_MATMUL_IQ1_S, head, ahead_bytes, to);
        break;
    case QUIRE_MATMUL_IQ1_M:
        group_read(QUIRE_MATMUL_IQ1_M, head, ahead_bytes, to);
        break;
    default:
        group_read(QUIRE_MATMUL_IQ3_S, head, ahead_bytes, to);
        break;
    }
}

/* ---- scales ---- */

/* Bits of words as odd integers: (2 there + 1), of the bits of `mask` from bit `at` on. */
INLINE __m256 odd_of(__m256i words, uint32_t at, int32_t mask)
{
    const __m256i there =
        _mm256_and_si256(_mm256_srli_epi32(words, (int)at), _mm256_set1_epi32(mask));

    return _mm256_cvtepi32_ps(
        _mm256_or_si256(_mm256_add_epi32(there, there), _mm256_set1_epi32(1)));
}

/* The f16s of 8 outputs of IQ1_M, of four pieces each. */
INLINE __m128i iq1_m_halves(const __m256i words[2])
{
    const __m256i low =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(words[0], 12), _mm256_set1_epi32(0x0f)),
                        _mm256_and_si256(_mm256_srli_epi32(words[0], 24), _mm256_set1_epi32(0xf0)));
    const __m256i high = _mm256_or_si256(
        _mm256_and_si256(_mm256_srli_epi32(words[1], 4), _mm256_set1_epi32(0x0f00)),
        _mm256_and_si256(_mm256_srli_epi32(words[1], 16), _mm256_set1_epi32(0xf000)));
    const __m256i whole = _mm256_or_si256(low, high);

    return _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
}

/* The scales of a group of a type, known when this is compiled. */
INLINE void group_scales(quire_matmul_type type, const unsigned char *head, quire_matmul_scales *s)
{
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const __m256 factor = _mm256_set1_ps(quire_matmul_grid_factor(type));

    for (uint32_t lane = 0; lane < PANEL; lane += EIGHT) {
        const unsigned char *scales = head + QUIRE_MATMUL_GRID_SCALES + (size_t)4 * lane;
        const unsigned char *words =
            head + l->head_bytes + (size_t)(is_iq3(type) ? 2 : 1) * LINE + (size_t)4 * lane;
        const __m256 scale = _mm256_mul_ps(
            _mm256_cvtph_ps(_mm_load_si128((const void *)(head + (size_t)2 * lane))), factor);

        UNROLL
        for (uint32_t b = 0; b < QUIRE_MATMUL_STEP_BLOCKS; b++) {
            if (!is_long(type)) {
                const __m256i word = load(words + (size_t)b * l->code_bytes);

                _mm256_store_ps(s->scale[b] + lane, _mm256_mul_ps(scale, odd_of(word, 28, 15)));
            } else if (!quire_matmul_has_halves(type)) {
                _mm256_store_ps(s->scale[b] + lane,
                                _mm256_mul_ps(scale, odd_of(load(scales), 4 * b,
                                                            quire_matmul_is_iq1(type) ? 7 : 15)));
            } else {
                const __m256i word = load(scales + (size_t)b / 4 * LINE);

                _mm256_store_ps(s->scale[2 * b] + lane,
                                _mm256_mul_ps(scale, odd_of(word, 8 * (b % 4), 15)));
                _mm256_store_ps(s->scale[2 * b + 1] + lane,
                                _mm256_mul_ps(scale, odd_of(word, 8 * (b % 4) + 4, 15)));
            }
        }
    }
}

/* Four words of 16 bits in two of 32: in the upper four bits of each are four of the f16, and below
 * them 3 bits for each 16 inputs. */
INLINE void iq1_m_scales(const unsigned char *head, quire_matmul_scales *s)
{
    const __m256 factor = _mm256_set1_ps(quire_matmul_grid_factor(QUIRE_MATMUL_IQ1_M));

    for (uint32_t lane = 0; lane < PANEL; lane += EIGHT) {
        const __m256i words[2] = { load(head + (size_t)4 * lane),
                                   load(head + LINE + (size_t)4 * lane) };
        const __m256 scale = _mm256_mul_ps(_mm256_cvtph_ps(iq1_m_halves(words)), factor);

        UNROLL
        for (uint32_t i = 0; i < 2 * QUIRE_MATMUL_STEP_BLOCKS; i++) {
            _mm256_store_ps(
                s->scale[i] + lane,
                _mm256_mul_ps(scale, odd_of(words[i / 8], 16 * (i / 4 % 2) + 3 * (i % 4), 7)));
        }
    }
}

void quire_matmul_avx2_grid_scales(quire_matmul_type type, const unsigned char *head,
                                   quire_matmul_scales *s)
{
    switch (type) {
    case QUIRE_MATMUL_IQ2_XXS:
        group_scales(QUIRE_MATMUL_IQ2_XXS, head, s);
        break;
    case QUIRE_MATMUL_IQ3_XXS:
        group_scales(QUIRE_MATMUL_IQ3_XXS, head, s);
        break;
    case QUIRE_MATMUL_IQ3_S:
        group_scales(QUIRE_MATMUL_IQ3_S, head, s);
        break;
    case QUIRE_MATMUL_IQ1_S:
        group_scales(QUIRE_MATMUL_IQ1_S, head, s);
        break;
    case QUIRE_MATMUL_IQ1_M:
        iq1_m_scales(head, s);
        break;
    default: /* IQ2_XS and IQ2_S */
        group_scales(QUIRE_MATMUL_IQ2_XS, head, s);
        break;
    }
}
