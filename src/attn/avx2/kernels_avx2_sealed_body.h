/* kernels_avx2_sealed_body.h - the kernels of sealed formats, once with and once without AVX-VNNI.
 *
 * The including file defines SEALED_SUFFIX (of the function names) and SEALED_VNNI (0 or 1). Sums
 * are exact modulo 2^32 either way, so both give the same bits.
 *
 * How codes become levels, and what groups and units are: kernels_avx2_sealed_planes_body.h.
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
#include "attn/avx2/kernels_avx2.h"
#include "attn/avx2/kernels_avx2_sealed_sums_body.h"
#include "attn/sealed_pack.h"

#define TILE          QUIRE_TILE_TOKENS
#define REGISTER_ROWS 4u
#define STRIP_ROWS    48u /* that meet a strip before it is looked up again */
#define UNIT          8u  /* terms: two groups of 4 */

#define K_LEVELS_BIAS 0x80
#define V_LEVELS_BIAS (SEALED_VNNI ? 0 : 0x80)

#define SEALED_JOIN_(a, b) a##b
#define SEALED_JOIN(a, b)  SEALED_JOIN_(a, b)
#define SEALED_NAME(name)  SEALED_JOIN(name, SEALED_SUFFIX)

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
                               const quire_attn_qk *args, quire_avx2_planes planes)
{
    const block b = { format, QUIRE_SIDE_K, n, regs, false };
    source x = { .planes = planes };
    float mean[REGISTER_ROWS];

    mean_logits(args, 0, n, mean);
    for (uint32_t token = 0; token < TILE; token += 8 * regs) {
        qk_block(b, args, &x, 0, token, mean);
        quire_avx2_planes_move(&x.planes, regs);
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

static void qk_strips(const quire_attn_qk *args, quire_avx2_planes planes)
{
    _Alignas(64) char strip[QUIRE_HEAD_DIM_MAX * STRIP_REGS * 8];
    float mean[STRIP_ROWS];
    uint32_t end;

    for (uint32_t row = 0; row < args->n_rows; row = end, planes.ahead = 0) {
        quire_avx2_planes x = planes;

        end = args->n_rows - row < STRIP_ROWS ? args->n_rows : row + STRIP_ROWS;
        mean_logits(args, row, end - row, mean);
        for (uint32_t token = 0; token < TILE; token += 8 * STRIP_REGS) {
            fill_strip(args->format, STRIP_REGS, &x, 0, args->d / UNIT, strip);
            qk_strip(args, strip, row, end, token, mean);
            quire_avx2_planes_move(&x, STRIP_REGS);
        }
    }
}

QUIRE_AVX2_INLINE void qk_format(quire_format format, const quire_attn_qk *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->k_tile, args->next);
    size_t head_bytes = quire_sealed_low_offset(format, QUIRE_SIDE_K, args->d);
    quire_avx2_planes x =
        quire_avx2_planes_of(format, QUIRE_SIDE_K, args->d, args->k_tile, K_LEVELS_BIAS);

    x.ahead = ahead;
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
        qk_strips(args, x);
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

/* Dimensions `dim` and up, where x is, of n_rows packed rows. The last strip may have one register
 * of lanes only; then its other half is anything, and so is what it adds to o beyond d. */
static void pv_strips(const quire_attn_pv *args, quire_avx2_planes x, const packed_rows *packed,
                      uint32_t row, uint32_t n_rows, uint32_t dim)
{
    _Alignas(64) char strip[TILE * STRIP_REGS * 8] = { 0 };
    const source y = { .strip = strip };

    for (; dim < args->d; dim += 8 * STRIP_REGS) {
        uint32_t regs = dim + 8 * STRIP_REGS <= args->d ? STRIP_REGS : 1;

        fill_strip(args->format, regs, &x, first_unit(args), end_unit(args), strip);
        pv_strip(args, &y, packed, row, n_rows, dim);
        quire_avx2_planes_move(&x, STRIP_REGS);
    }
}

/* All rows, looked up in registers as far as `regs` of them are full. */
QUIRE_AVX2_INLINE void pv_rows(quire_format format, uint32_t n, uint32_t regs,
                               const quire_attn_pv *args, quire_avx2_planes planes)
{
    source x = { .planes = planes };
    packed_rows packed;
    uint32_t dim = 0;

    pack_rows(args, 0, n, &packed);
    for (; dim + 8 * regs <= args->d; dim += 8 * regs) {
        pv_block((block){ format, QUIRE_SIDE_V, n, regs, false }, args, &x, &packed, 0, 0, dim);
        quire_avx2_planes_move(&x.planes, regs);
    }
    if (dim < args->d) {
        pv_strips(args, x.planes, &packed, 0, n, dim);
    }
}

static void pv_many(const quire_attn_pv *args, quire_avx2_planes planes)
{
    packed_rows packed;
    uint32_t n;

    for (uint32_t row = 0; row < args->n_rows; row += n, planes.ahead = 0) {
        n = args->n_rows - row < STRIP_ROWS ? args->n_rows - row : STRIP_ROWS;
        pack_rows(args, row, n, &packed);
        pv_strips(args, planes, &packed, row, n, 0);
    }
}

QUIRE_AVX2_INLINE void pv_format(quire_format format, const quire_attn_pv *args)
{
    ptrdiff_t ahead = quire_avx2_ahead(args->v_tile, args->next);
    quire_avx2_planes x =
        quire_avx2_planes_of(format, QUIRE_SIDE_V, args->d, args->v_tile, V_LEVELS_BIAS);

    x.ahead = ahead;
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
        pv_many(args, x);
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
