/* kernels_avx2_sealed.h - the kernels of sealed formats, once with and once without AVX-VNNI.
 *
 * The including file defines SEALED_SUFFIX (of the function names) and SEALED_VNNI (0 or 1). Sums
 * are exact modulo 2^32 either way, so both give the same bits.
 *
 * K and V tiles differ only in what lies side by side: 64 tokens, with sums over dimensions, or d
 * dimensions, with sums over tokens. Both are lines of lanes here: a register of codes has 8 lanes
 * with 4 neighbouring terms each (a group), and two groups (a unit) share the bytes of a plane of 4
 * bits. Levels come out of a look-up as bytes in q8's layout.
 *
 * VNNI multiplies unsigned with signed bytes: levels + 128 with q in K, P with levels in V. Without
 * it levels + 128 are spread to int16, even and odd bytes, so the other operand comes as the pairs
 * (0, 2) and (1, 3) of each group and nothing saturates as vpmaddubsw would. Accumulators start at
 * -128 * sum(n) where levels have that offset.
 *
 * Up to REGISTER_ROWS rows look codes up in registers, once for all of them. For more, lanes are
 * looked up 16 at a time into a strip that stays in the L1 cache and that all rows are multiplied
 * with.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/kernels_avx2.h"
#include "attn/sealed_pack.h"
#include "codec/sealed.h"

#define TILE          QUIRE_TILE_TOKENS
#define REGISTER_ROWS 4u
#define STRIP_REGS    2u
#define STRIP_ROWS    48u /* that meet a strip before it is looked up again */
#define UNIT          8u  /* terms: two groups of 4 */

/* Bytes of one row's weights for a group: 4 bytes, or 2 pairs of int16. */
#define PARTS         (SEALED_VNNI ? 1u : 2u)
#define WEIGHT_BYTES  (4u * PARTS)
#define V_LEVELS_BIAS (SEALED_VNNI ? 0 : 0x80)

#define SEALED_JOIN_(a, b) a##b
#define SEALED_JOIN(a, b)  SEALED_JOIN_(a, b)
#define SEALED_NAME(name)  SEALED_JOIN(name, SEALED_SUFFIX)

/* ---- codes to levels ---- */

/* Lanes of a tile: its planes from the first of these lanes on, or a strip of levels. */
typedef struct source {
    const char *low;
    const char *high;
    const char *strip; /* NULL: look up */
    size_t line_bytes;
    ptrdiff_t ahead; /* what to prefetch, see quire_avx2_ahead() */
    __m256i tables[4];
} source;

QUIRE_AVX2_INLINE __m256i load_bytes(const char *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

QUIRE_AVX2_INLINE source source_of(quire_format format, quire_side side, uint32_t d,
                                   const void *tile, ptrdiff_t ahead)
{
    const char *bytes = tile;
    const int8_t *levels = quire_sealed_levels(format, side);
    const __m128i bias = _mm_set1_epi8((char)(side == QUIRE_SIDE_K ? 0x80 : V_LEVELS_BIAS));
    source x = { .low = bytes + quire_sealed_low_offset(format, side, d),
                 .high = bytes + quire_sealed_high_offset(format, side, d),
                 .line_bytes = (size_t)4 * (side == QUIRE_SIDE_K ? TILE : d),
                 .ahead = ahead };

    for (uint32_t i = 0; i < 4; i++) {
        __m128i part = _mm_load_si128((const __m128i *)(const void *)(levels + (size_t)16 * i));

        x.tables[i] = _mm256_broadcastsi128_si256(_mm_xor_si128(part, bias));
    }
    return x;
}

/* Each byte's bit `from` at bit `to`; the other bits are anything. */
QUIRE_AVX2_INLINE __m256i move_bit(__m256i x, uint32_t from, uint32_t to)
{
    return to >= from ? _mm256_slli_epi16(x, (int)(to - from))
                      : _mm256_srli_epi16(x, (int)(from - to));
}

/* Units after which the planes' bits are all used. */
QUIRE_AVX2_INLINE uint32_t period_of(quire_format format)
{
    return format == QUIRE_FORMAT_Q4 ? 1 : format == QUIRE_FORMAT_Q6 ? 2 : 4;
}

/* 8 lanes of group `half` of a unit, u = m modulo the period. */
QUIRE_AVX2_INLINE __m256i look_up(quire_format format, const source *x, uint32_t u, uint32_t m,
                                  uint32_t half, uint32_t i)
{
    const __m256i mask = _mm256_set1_epi8(format == QUIRE_FORMAT_Q3 ? 0x03 : 0x0f);
    const char *low_at = x->low + (size_t)32 * i;
    const char *high_at = x->high + (size_t)32 * i;
    __m256i low;
    __m256i high;
    __m256i a;
    __m256i b;

    if (format == QUIRE_FORMAT_Q3) {
        low = _mm256_srli_epi16(load_bytes(low_at + u / 2 * x->line_bytes),
                                (int)(m % 2 * 4 + 2 * half));
    } else {
        low = _mm256_srli_epi16(load_bytes(low_at + u * x->line_bytes), (int)(4 * half));
    }
    low = _mm256_and_si256(low, mask);
    switch (format) {
    case QUIRE_FORMAT_Q3:
        high = move_bit(load_bytes(high_at + u / 4 * x->line_bytes), 2 * m + half, 2);
        low = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(4)));
        return _mm256_shuffle_epi8(x->tables[0], low);
    case QUIRE_FORMAT_Q5:
        high = move_bit(load_bytes(high_at + u / 4 * x->line_bytes), 2 * m + half, 7);
        return _mm256_blendv_epi8(_mm256_shuffle_epi8(x->tables[0], low),
                                  _mm256_shuffle_epi8(x->tables[1], low), high);
    case QUIRE_FORMAT_Q6:
        high = load_bytes(high_at + u / 2 * x->line_bytes);
        a = move_bit(high, m * 4 + 2 * half, 7);
        b = _mm256_blendv_epi8(_mm256_shuffle_epi8(x->tables[2], low),
                               _mm256_shuffle_epi8(x->tables[3], low), a);
        a = _mm256_blendv_epi8(_mm256_shuffle_epi8(x->tables[0], low),
                               _mm256_shuffle_epi8(x->tables[1], low), a);
        return _mm256_blendv_epi8(a, b, move_bit(high, m * 4 + 2 * half + 1, 7));
    default:
        return _mm256_shuffle_epi8(x->tables[0], low);
    }
}

/* The lines that a unit is the first to touch. */
QUIRE_AVX2_INLINE void prefetch_unit(quire_format format, uint32_t regs, const source *x,
                                     uint32_t u, uint32_t m)
{
    uint32_t low_units = format == QUIRE_FORMAT_Q3 ? 2 : 1;
    uint32_t high_units = period_of(format);

    for (uint32_t at = 0; at < 32 * regs; at += 64) {
        if (m % low_units == 0) {
            quire_avx2_prefetch(x->low + u / low_units * x->line_bytes + at, x->ahead);
        }
        if (format != QUIRE_FORMAT_Q4 && m == 0) {
            quire_avx2_prefetch(x->high + u / high_units * x->line_bytes + at, x->ahead);
        }
    }
}

/* ---- sums ---- */

/* Weights of the rows of a block, row_bytes apart. */
typedef struct weights {
    const char *rows;
    size_t row_bytes;
} weights;

QUIRE_AVX2_INLINE __m256i broadcast_weight(const weights *w, uint32_t row, uint32_t group,
                                           uint32_t part)
{
    const char *at = w->rows + row * w->row_bytes + (size_t)group * WEIGHT_BYTES + 4 * part;

    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)at));
}

QUIRE_AVX2_INLINE __m256i dot(quire_side side, __m256i acc, __m256i levels, __m256i weight)
{
#if SEALED_VNNI
    return side == QUIRE_SIDE_K ? _mm256_dpbusd_avx_epi32(acc, levels, weight)
                                : _mm256_dpbusd_avx_epi32(acc, weight, levels);
#else
    (void)side;
    return _mm256_add_epi32(acc, _mm256_madd_epi16(levels, weight));
#endif
}

/* What is multiplied in part 0 or 1 of a register of levels. */
QUIRE_AVX2_INLINE __m256i part_of(__m256i levels, uint32_t part)
{
    if (PARTS == 1) {
        return levels;
    }
    return part == 0 ? _mm256_and_si256(levels, _mm256_set1_epi16(0xff))
                     : _mm256_srli_epi16(levels, 8);
}

/* How a block is multiplied: constants where it is inlined. */
typedef struct block {
    quire_format format; /* of no meaning with a strip */
    quire_side side;
    uint32_t n; /* rows */
    uint32_t regs;
    bool has_strip;
} block;

#define STRIP_BLOCK(side, n) ((block){ QUIRE_FORMAT_COUNT, (side), (n), STRIP_REGS, true })

QUIRE_AVX2_INLINE __m256i levels_of(block b, const source *x, uint32_t u, uint32_t m, uint32_t half,
                                    uint32_t i)
{
    return b.has_strip ? load_bytes(x->strip + ((size_t)(2 * u + half) * STRIP_REGS + i) * 32)
                       : look_up(b.format, x, u, m, half, i);
}

QUIRE_AVX2_INLINE void add_unit(block b, const source *x, const weights *w, uint32_t u, uint32_t m,
                                __m256i acc[QUIRE_AVX2_ROWS_MAX][8])
{
    if (!b.has_strip) {
        prefetch_unit(b.format, b.regs, x, u, m);
    }
    for (uint32_t half = 0; half < 2; half++) {
        __m256i levels[8];

        for (uint32_t i = 0; i < b.regs; i++) {
            levels[i] = levels_of(b, x, u, m, half, i);
        }
        for (uint32_t part = 0; part < PARTS; part++) {
            __m256i factor[8];

            for (uint32_t i = 0; i < b.regs; i++) {
                factor[i] = part_of(levels[i], part);
            }
            for (uint32_t r = 0; r < b.n; r++) {
                __m256i weight = broadcast_weight(w, r, 2 * u + half, part);

                for (uint32_t i = 0; i < b.regs; i++) {
                    acc[r][i] = dot(b.side, acc[r][i], factor[i], weight);
                }
            }
        }
    }
}

/* acc += levels times weights over units [begin, end), begin a multiple of 4. */
QUIRE_AVX2_INLINE void add_units(block b, const source *x, const weights *w, uint32_t begin,
                                 uint32_t end, __m256i acc[QUIRE_AVX2_ROWS_MAX][8])
{
    const uint32_t period = b.has_strip ? 1 : period_of(b.format);
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
    for (uint32_t m = 0; period > 1 && u < end; u++, m++) {
        add_unit(b, x, w, u, m, acc);
    }
}

/* Levels of STRIP_REGS registers of lanes, or of the first one only, units [begin, end). */
QUIRE_AVX2_INLINE void fill_strip(quire_format format, uint32_t regs, const source *x,
                                  uint32_t begin, uint32_t end, char *strip)
{
    for (uint32_t u = begin; u < end; u++) {
        uint32_t m = u % period_of(format);

        prefetch_unit(format, regs, x, u, m);
        for (uint32_t half = 0; half < 2; half++) {
            for (uint32_t i = 0; i < regs; i++) {
                _mm256_storeu_si256(
                    (__m256i *)(void *)(strip + ((size_t)(2 * u + half) * STRIP_REGS + i) * 32),
                    look_up(format, x, u, m, half, i));
            }
        }
    }
}

/* Rows of the next block of a strip when `left` are to do. */
static inline uint32_t strip_rows(uint32_t left)
{
    return left == 5 ? 3 : left < 5 ? left : left == 7 || left == 8 ? 4 : 6;
}

/* ---- q . K ---- */

QUIRE_AVX2_INLINE float sum_of(__m256 x)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* The logits that centring took away from every token of the tile, for some rows. */
static void mean_logits(const quire_attn_qk *args, uint32_t row, uint32_t n_rows, float *logits)
{
    const size_t stride = quire_avx2_sealed_q_bytes(args->d);
    const char *x = (const char *)args->packed + row * stride + sizeof(quire_avx2_sealed_header);
    const char *mean = (const char *)args->k_tile + QUIRE_SEALED_SCALES_BYTES;

    if (!quire_sealed_is_centred(args->format, QUIRE_SIDE_K)) {
        memset(logits, 0, n_rows * sizeof(*logits));
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++, x += stride) {
        __m256 even = _mm256_setzero_ps();
        __m256 odd = _mm256_setzero_ps();

        for (uint32_t i = 0; i < args->d; i += 8) {
            __m256 y = _mm256_cvtph_ps(_mm_load_si128((const void *)(mean + 2 * (size_t)i)));
            __m256 z = _mm256_loadu_ps((const void *)(x + 4 * (size_t)i));

            even = i % 16 == 0 ? _mm256_fmadd_ps(y, z, even) : even;
            odd = i % 16 == 0 ? odd : _mm256_fmadd_ps(y, z, odd);
        }
        logits[r] = sum_of(_mm256_add_ps(even, odd));
    }
}

/* Rows row .. row + b.n - 1 and the tokens of b.regs registers. */
QUIRE_AVX2_INLINE void qk_block(block b, const quire_attn_qk *args, const source *x, uint32_t row,
                                uint32_t token, const float *mean)
{
    const size_t stride = quire_avx2_sealed_q_bytes(args->d);
    const char *q = (const char *)args->packed + row * stride;
    const weights w = { q + quire_avx2_sealed_weights_offset(args->d), stride };
    const uint16_t *scales = (const uint16_t *)args->k_tile + token;
    __m256i acc[QUIRE_AVX2_ROWS_MAX][8];

    for (uint32_t r = 0; r < b.n; r++) {
        const quire_avx2_sealed_header *header = (const void *)(q + r * stride);

        for (uint32_t i = 0; i < b.regs; i++) {
            acc[r][i] = _mm256_set1_epi32(header->start);
        }
    }
    add_units(b, x, &w, 0, args->d / UNIT, acc);
    for (uint32_t r = 0; r < b.n; r++) {
        const quire_avx2_sealed_header *header = (const void *)(q + r * stride);

        for (uint32_t i = 0; i < b.regs; i++) {
            float *s = args->s + (size_t)(row + r) * TILE + token + 8 * i;
            __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(scales + 8 * i));
            __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[r][i]), _mm256_set1_ps(header->scale));

            y = _mm256_mul_ps(y, _mm256_cvtph_ps(halves));
            y = _mm256_add_ps(y, _mm256_set1_ps(mean[r]));
            _mm256_store_ps(s, args->accumulate ? _mm256_add_ps(_mm256_load_ps(s), y) : y);
        }
    }
}

/* All rows, looked up in registers. */
QUIRE_AVX2_INLINE void qk_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_qk *args, source x)
{
    const block b = { format, QUIRE_SIDE_K, n, regs, false };
    float mean[REGISTER_ROWS];

    mean_logits(args, 0, n, mean);
    for (uint32_t token = 0; token < TILE; token += 8 * regs) {
        qk_block(b, args, &x, 0, token, mean);
        x.low += (size_t)32 * regs;
        x.high += (size_t)32 * regs;
    }
}

/* Rows row .. end - 1 against a strip; the format makes no difference here. */
static void qk_strip(const quire_attn_qk *args, const char *strip, uint32_t row, uint32_t end,
                     uint32_t token, const float *mean)
{
    const source x = { .strip = strip };
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
        case 4:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 4), args, &x, row, token, mean);
            break;
        default:
            qk_block(STRIP_BLOCK(QUIRE_SIDE_K, 6), args, &x, row, token, mean);
            break;
        }
    }
}

QUIRE_AVX2_INLINE void qk_strips(quire_format format, const quire_attn_qk *args, source x)
{
    _Alignas(64) char strip[QUIRE_HEAD_DIM_MAX * STRIP_REGS * 8];
    float mean[STRIP_ROWS];
    uint32_t end;

    for (uint32_t row = 0; row < args->n_rows; row = end, x.ahead = 0) {
        source lanes = x;

        end = args->n_rows - row < STRIP_ROWS ? args->n_rows : row + STRIP_ROWS;
        mean_logits(args, row, end - row, mean);
        for (uint32_t token = 0; token < TILE; token += 8 * STRIP_REGS) {
            fill_strip(format, STRIP_REGS, &lanes, 0, args->d / UNIT, strip);
            qk_strip(args, strip, row, end, token, mean);
            lanes.low += (size_t)32 * STRIP_REGS;
            lanes.high += (size_t)32 * STRIP_REGS;
        }
    }
}

QUIRE_AVX2_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->k_tile, args->next);
    size_t head_bytes = quire_sealed_low_offset(format, QUIRE_SIDE_K, args->d);
    source x = source_of(format, QUIRE_SIDE_K, args->d, args->k_tile, ahead);

    for (size_t at = 0; at < head_bytes; at += 64) {
        quire_avx2_prefetch((const char *)args->k_tile + at, ahead);
    }
    switch (args->n_rows) {
    case 1:
        qk_rows(format, 1, 8, args, x);
        break;
    case 2:
        qk_rows(format, 2, 4, args, x);
        break;
    case 3:
        qk_rows(format, 3, 2, args, x);
        break;
    case 4:
        qk_rows(format, 4, 2, args, x);
        break;
    default:
        qk_strips(format, args, x);
        break;
    }
}

void SEALED_NAME(quire_avx2_qk_sealed)(const quire_attn_qk *args)
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

void SEALED_NAME(quire_avx2_q_pack_sealed)(uint32_t d, float scale, const float *q, void *packed)
{
    quire_avx2_sealed_header *header = packed;
    float *x = (float *)(void *)((char *)packed + sizeof(*header));
    void *w = (char *)packed + quire_avx2_sealed_weights_offset(d);
    int8_t n[QUIRE_HEAD_DIM_MAX];
    int32_t sum = 0;

    header->scale = quire_sealed_pack_q(d, scale, q, n);
    for (uint32_t i = 0; i < d; i++) {
        x[i] = scale * q[i];
        sum += n[i];
#if SEALED_VNNI
        ((int8_t *)w)[i] = n[i];
#else
        ((int16_t *)w)[i] = n[(i & ~3u) | (i & 1) << 1 | (i & 2) >> 1];
#endif
    }
    header->start = -128 * sum;
}

/* ---- P . V ---- */

/* Weights of some rows as integers, and what one unit of them is worth. */
typedef struct packed_rows {
    float unit[STRIP_ROWS];
    int32_t start[STRIP_ROWS];
    _Alignas(64) char weights[STRIP_ROWS][TILE / 4 * WEIGHT_BYTES];
} packed_rows;

/* 16 weights w * inverse as integers, in the order in which they are multiplied. */
QUIRE_AVX2_INLINE __m128i store_weights(const __m256 w[2], float inverse, char *to)
{
    __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(w[0], _mm256_set1_ps(inverse)));
    __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(w[1], _mm256_set1_ps(inverse)));
    __m256i n = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);

#if SEALED_VNNI
    n = _mm256_permute4x64_epi64(_mm256_packus_epi16(n, n), 0xd8);
    _mm_store_si128((__m128i *)(void *)to, _mm256_castsi256_si128(n));
    return _mm_setzero_si128();
#else
    _mm256_store_si256((__m256i *)(void *)to,
                       _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(n, 0xd8), 0xd8));
    n = _mm256_madd_epi16(n, _mm256_set1_epi16(1));
    return _mm_add_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
#endif
}

/* As quire_sealed_pack_p() (sealed_pack.h) does it. */
static void pack_row(const float *p, const void *v_tile, packed_rows *to, uint32_t row)
{
    const uint16_t *scales = v_tile;
    __m256i top = _mm256_setzero_si256();
    __m128i sum = _mm_setzero_si128();
    __m128i m;
    __m256 w[8];
    uint32_t max_bits;
    float max;

    for (uint32_t i = 0; i < 8; i++) {
        __m128i halves = _mm_load_si128((const __m128i *)(const void *)(scales + 8 * i));
        __m256 x = _mm256_load_ps(p + 8 * i);
        __m256 used = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ);

        w[i] = _mm256_and_ps(used, _mm256_mul_ps(x, _mm256_cvtph_ps(halves)));
        top = _mm256_max_epu32(top, _mm256_castps_si256(w[i]));
    }
    m = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    max_bits = (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1)));
    max = quire_f32_from_bits(max_bits);
    if (max_bits >= QUIRE_F32_INF_BITS || max < QUIRE_ATTN_Q8_TINY) {
        memset(to->weights[row], 0, sizeof(to->weights[row]));
        to->unit[row] = max_bits >= QUIRE_F32_INF_BITS ? NAN : 0.0f;
        to->start[row] = 0;
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        sum = _mm_add_epi32(sum, store_weights(w + 2 * i, QUIRE_ATTN_SEALED_P_MAX / max,
                                               to->weights[row] + (size_t)4 * i * WEIGHT_BYTES));
    }
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    to->unit[row] = max / QUIRE_ATTN_SEALED_P_MAX;
    to->start[row] = -V_LEVELS_BIAS * _mm_cvtsi128_si32(sum);
}

static void pack_rows(const quire_attn_pv *args, uint32_t row, uint32_t n, packed_rows *to)
{
    for (uint32_t r = 0; r < n; r++) {
        pack_row(args->p + (size_t)(row + r) * TILE, args->v_tile, to, r);
    }
}

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
QUIRE_AVX2_INLINE void pv_block(block b, const quire_attn_pv *args, const source *x,
                                const packed_rows *packed, uint32_t first, uint32_t first_row,
                                uint32_t dim)
{
    const weights w = { packed->weights[first], sizeof(packed->weights[0]) };
    uint32_t row = first_row + first;
    float *o = args->o + row * args->o_stride + dim;
    __m256i acc[QUIRE_AVX2_ROWS_MAX][8];

    for (uint32_t r = 0; r < b.n; r++) {
        for (uint32_t i = 0; i < b.regs; i++) {
            acc[r][i] = _mm256_set1_epi32(packed->start[first + r]);
        }
    }
    add_units(b, x, &w, first_unit(args), end_unit(args), acc);
    for (uint32_t r = 0; r < b.n; r++) {
        __m256 rescale = _mm256_set1_ps(args->rescale[row + r]);
        __m256 unit = _mm256_set1_ps(packed->unit[first + r]);

        for (uint32_t i = 0; i < b.regs; i++) {
            float *to = o + r * args->o_stride + 8 * i;
            __m256 old = _mm256_mul_ps(_mm256_load_ps(to), rescale);

            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[r][i]), unit, old));
        }
    }
}

/* All rows, looked up in registers. */
QUIRE_AVX2_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_pv *args, source x)
{
    packed_rows packed;
    uint32_t dim = 0;

    pack_rows(args, 0, n, &packed);
    for (; dim + 8 * regs <= args->d; dim += 8 * regs) {
        pv_block((block){ format, QUIRE_SIDE_V, n, regs, false }, args, &x, &packed, 0, 0, dim);
        x.low += (size_t)32 * regs;
        x.high += (size_t)32 * regs;
    }
    for (; regs == 8 && dim + 16 <= args->d; dim += 16) {
        pv_block((block){ format, QUIRE_SIDE_V, n, 2, false }, args, &x, &packed, 0, 0, dim);
        x.low += 64;
        x.high += 64;
    }
    for (; dim < args->d; dim += 8) {
        pv_block((block){ format, QUIRE_SIDE_V, n, 1, false }, args, &x, &packed, 0, 0, dim);
        x.low += 32;
        x.high += 32;
    }
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
        case 4:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 4), args, x, packed, first, row, dim);
            break;
        default:
            pv_block(STRIP_BLOCK(QUIRE_SIDE_V, 6), args, x, packed, first, row, dim);
            break;
        }
    }
}

/* The last strip may have one register of lanes only; then its other half is anything, and so is
 * what it adds to o beyond d. */
QUIRE_AVX2_INLINE void pv_strips(quire_format format, const quire_attn_pv *args, source x)
{
    _Alignas(64) char strip[TILE * STRIP_REGS * 8] = { 0 };
    const source y = { .strip = strip };
    packed_rows packed;
    uint32_t n;

    for (uint32_t row = 0; row < args->n_rows; row += n, x.ahead = 0) {
        source lanes = x;

        n = args->n_rows - row < STRIP_ROWS ? args->n_rows - row : STRIP_ROWS;
        pack_rows(args, row, n, &packed);
        for (uint32_t dim = 0; dim < args->d; dim += 8 * STRIP_REGS) {
            uint32_t regs = dim + 8 * STRIP_REGS <= args->d ? STRIP_REGS : 1;

            fill_strip(format, regs, &lanes, first_unit(args), end_unit(args), strip);
            pv_strip(args, &y, &packed, row, n, dim);
            lanes.low += (size_t)32 * STRIP_REGS;
            lanes.high += (size_t)32 * STRIP_REGS;
        }
    }
}

QUIRE_AVX2_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->v_tile, args->next);
    source x = source_of(format, QUIRE_SIDE_V, args->d, args->v_tile, ahead);

    for (size_t at = 0; at < QUIRE_SEALED_SCALES_BYTES; at += 64) {
        quire_avx2_prefetch((const char *)args->v_tile + at, ahead);
    }
    switch (args->n_rows) {
    case 1:
        pv_rows(format, 1, 8, args, x);
        break;
    case 2:
        pv_rows(format, 2, 4, args, x);
        break;
    case 3:
        pv_rows(format, 3, 2, args, x);
        break;
    case 4:
        pv_rows(format, 4, 2, args, x);
        break;
    default:
        pv_strips(format, args, x);
        break;
    }
}

void SEALED_NAME(quire_avx2_pv_sealed)(const quire_attn_pv *args)
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
