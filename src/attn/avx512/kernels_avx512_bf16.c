/* kernels_avx512_bf16.c - bf16 tiles on CPUs that multiply bf16: q rounded to bf16, P made as bf16,
 * pairs of products added to float sums by vdpbf16ps (kernels.h has the scheme).
 *
 * That is half the multiplications of widening K and V to f32 (kernels_avx512_float.c), and none of
 * the widening; on Zen 5 both instructions issue twice per cycle.
 *
 * The instruction ignores the thread's settings: it flushes denormals and rounds to nearest.
 *
 * Order of additions: a logit adds its pairs of dimensions upwards in one accumulator; an output
 * adds its pairs of tokens upwards in one accumulator, starting from o * rescale.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/avx512/kernels_avx512_softmax_body.h"
#include "base/cpu.h"

#define ROWS 6u
#define REGS QUIRE_AVX512_REGS
#define WIDE (2 * REGS) /* registers of V for up to 2 rows */

#define PAIR_BYTES  4u
#define PASS_BYTES  8192u /* of a tile of up to 64 dimensions */
#define EVEN_OF_ALL 0x0000ffff
#define ODD_OF_ALL  ((int32_t)0xffff0000u)

/* Accumulators stay in registers only where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 32")

/* acc plus the sums of neighbouring products. As assembly for the reason that
 * kernels_avx512_dot.h gives. */
QUIRE_AVX512_INLINE __m512 dot_pairs(__m512 acc, __m512i a, __m512i b)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

QUIRE_AVX512_INLINE __m512i broadcast_pair(const void *at)
{
    return _mm512_set1_epi32(*(const int32_t *)at);
}

/* 32 floats, of which the first n_some are there and the others 0, as bf16 in their order. */
QUIRE_AVX512_INLINE __m512i round_32(const float *x, uint32_t n_some, float scale)
{
    const uint32_t lanes = n_some >= 32 ? ~0u : (1u << n_some) - 1;
    __m512 low = _mm512_maskz_loadu_ps((__mmask16)lanes, x);
    __m512 high = _mm512_setzero_ps();

    if (n_some > 16) {
        high = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), x + 16);
    }
    low = _mm512_mul_ps(low, _mm512_set1_ps(scale));
    high = _mm512_mul_ps(high, _mm512_set1_ps(scale));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

void quire_avx512_bf16_pack(uint32_t d, float scale, const float *q, void *packed)
{
    for (uint32_t c = 0; c < d; c += 32) {
        _mm512_store_si512((char *)packed + 2 * (size_t)c, round_32(q + c, d - c, scale));
    }
}

/* ---- softmax ---- */

/* Weights are powers of two in fixed point. With y = 128 log2(e) (s - m) + 128 * 127, nearest
 * integer, the bits of a bf16 2^(y / 128 - 127) are y less the excess of 1 + f over 2^f, for the
 * fraction f in the lowest 7 bits of y: a table of bytes. Both roundings together are off by 0.64 %
 * at most and by 0.22 % in the root mean square (rounding an exact weight: 0.39 and 0.16). A y
 * below 0 is packed to 0, which is weight 0. */
#define Y_OF_ONE 16256.0f
#define Y_BY_X   0x1.715476p+7f

/* round(f - 128 (2^(f / 128) - 1)) for f = 0 .. 127. */
static const _Alignas(64) uint8_t above_power[128] = {
    0,  0,  1,  1,  1,  1,  2,  2,  2,  3,  3,  3,  3,  4,  4,  4,  4,  5,  5,  5,  5,  6,
    6,  6,  6,  6,  7,  7,  7,  7,  7,  8,  8,  8,  8,  8,  8,  9,  9,  9,  9,  9,  9,  9,
    10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11,
    11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 10, 10, 10, 10, 10, 10,
    10, 10, 10, 9,  9,  9,  9,  9,  9,  9,  8,  8,  8,  8,  8,  7,  7,  7,  7,  7,  6,  6,
    6,  6,  5,  5,  5,  4,  4,  4,  3,  3,  3,  3,  2,  2,  1,  1,  1,  0,
};

/* Weights of 32 tokens from their logits less m. */
QUIRE_AVX512_INLINE __m512i weights_32(__m512 low, __m512 high)
{
    const __m512 one = _mm512_set1_ps(Y_OF_ONE);
    const __m512 by_x = _mm512_set1_ps(Y_BY_X);
    const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0); /* packing is by 128 bits */
    __m512i y = _mm512_packus_epi32(_mm512_cvtps_epi32(_mm512_fmadd_ps(low, by_x, one)),
                                    _mm512_cvtps_epi32(_mm512_fmadd_ps(high, by_x, one)));
    __m512i above =
        _mm512_maskz_permutex2var_epi8(0x5555555555555555u, _mm512_load_si512(above_power), y,
                                       _mm512_load_si512(above_power + 64));

    return _mm512_permutexvar_epi64(order, _mm512_sub_epi16(y, above));
}

/* NaN, which has no place in fixed point. */
static __attribute__((noinline)) void damage_row(float *s)
{
    for (uint32_t i = 0; i < QUIRE_TILE_TOKENS / 32; i++) {
        _mm512_store_si512(s + 16 * i, _mm512_set1_epi16(0x7fc0));
    }
}

/* Rows with a NaN go the way of those whose m must rise. */
QUIRE_AVX512_INLINE bool four_weights(uint32_t n, bool is_whole, bool is_sure,
                                      const quire_avx512_rows *rows, uint32_t row,
                                      const float *shift)
{
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    const __m512 most = _mm512_set1_ps(QUIRE_ATTN_RISE);
    float *s = rows->s + row * (size_t)QUIRE_TILE_TOKENS;
    __mmask16 is_below[4] = { 0xffff, 0xffff, 0xffff, 0xffff };
    __m512 x[4][REGS];
    __m512 sum[4];

    UNROLL
    for (uint32_t k = 0; k < n * REGS; k++) {
        const uint64_t visible = quire_avx512_visible(is_whole, rows, row + k / REGS);

        x[k / REGS][k % REGS] =
            _mm512_maskz_sub_ps((__mmask16)(visible >> (16 * (k % REGS))),
                                _mm512_load_ps(s + 16 * k), _mm512_set1_ps(shift[k / REGS]));
        is_below[k / REGS] =
            _mm512_mask_cmp_ps_mask(is_below[k / REGS], x[k / REGS][k % REGS], most, _CMP_LE_OQ);
    }
    if (!is_sure && (is_below[0] & is_below[1] & is_below[2] & is_below[3]) != 0xffff) {
        return false;
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        const uint64_t visible = quire_avx512_visible(is_whole, rows, row + r);
        __m512i p[REGS / 2];

        UNROLL
        for (uint32_t i = 0; i < REGS / 2; i++) {
            p[i] = _mm512_maskz_mov_epi16((__mmask32)(visible >> (32 * i)),
                                          weights_32(x[r][2 * i], x[r][2 * i + 1]));
            _mm512_store_si512(s + r * QUIRE_TILE_TOKENS + 16 * i, p[i]);
        }
        sum[r] = dot_pairs(dot_pairs(_mm512_setzero_ps(), p[0], ones), p[1], ones);
        if (is_sure && is_below[r] != 0xffff) {
            damage_row(s + r * QUIRE_TILE_TOKENS);
            sum[r] = _mm512_set1_ps(NAN);
        }
    }
    quire_avx512_four_sums(n, is_sure, rows, row, sum);
    return true;
}

QUIRE_AVX512_SOFTMAX(quire_avx512_bf16_softmax, four_weights)

/* ---- products ---- */

/* The common form of q . K and P . V: rows of pairs against the lines of a tile. One pair of each
 * row is multiplied with one line. */
typedef struct product {
    const char *x; /* pairs of the first row */
    size_t x_stride;
    const char *line;
    size_t line_stride;
    uint32_t n_steps;
    float *out; /* of the first row */
    size_t out_stride;
    const float *rescale; /* of P . V: by row */
    bool accumulate;      /* of q . K */
    uintptr_t ahead;      /* address of the next prefetch */
    size_t ahead_stride;  /* by step */
    size_t ahead_apart;   /* from two lines of a step to the next two */
    quire_prefetch to;
} product;

/* The constants that a body is compiled for. */
typedef struct product_shape {
    uint32_t n;     /* rows */
    uint32_t regs;  /* of a line */
    uint32_t lines; /* prefetched by step */
} product_shape;

QUIRE_AVX512_INLINE void product_steps(product_shape shape, const product *at,
                                       __m512 acc[ROWS][WIDE])
{
    const char *x = at->x;
    const char *x_end = x + (size_t)at->n_steps * PAIR_BYTES;
    const char *line = at->line;
    const char *ahead = (const char *)at->ahead;
    const size_t ahead_stride = at->ahead_stride;
    const size_t ahead_apart = at->ahead_apart;
    const quire_prefetch to = at->to;
    const size_t x_stride = at->x_stride;
    const size_t line_stride = at->line_stride;

    for (; x < x_end; x += PAIR_BYTES, line += line_stride) {
        __m512i pair[WIDE];

        if (to == QUIRE_PREFETCH_L2) {
            quire_prefetch_lines(ahead, shape.lines, QUIRE_PREFETCH_L2);
        } else if (to == QUIRE_PREFETCH_L1) {
            UNROLL
            for (uint32_t i = 0; i < shape.lines; i += 2) {
                quire_prefetch_lines(ahead + i / 2 * ahead_apart, shape.lines == 1 ? 1 : 2,
                                     QUIRE_PREFETCH_L1);
            }
        }
        ahead += ahead_stride;
        UNROLL
        for (uint32_t i = 0; i < shape.regs; i++) {
            pair[i] = _mm512_loadu_si512(line + 64 * i);
        }
        UNROLL
        for (uint32_t r = 0; r < shape.n; r++) {
            __m512i same = broadcast_pair(x + r * x_stride);

            UNROLL
            for (uint32_t i = 0; i < shape.regs; i++) {
                acc[r][i] = dot_pairs(acc[r][i], pair[i], same);
            }
        }
    }
}

/* Each body is a function: inlined together, the bodies would spill the registers with their
 * addresses. */
#define BODY(body, n, regs, lines)                                                                 \
    static __attribute__((noinline)) void body##_##n##_##regs##_##lines(const product *at)         \
    {                                                                                              \
        body((product_shape){ n, regs, lines }, at);                                               \
    }
#define BODIES_OF_ROWS(body, n) BODY(body, n, 4, 1) BODY(body, n, 4, 2) BODY(body, n, 4, 4)
#define BODIES(body)                                                                               \
    BODIES_OF_ROWS(body, 1)                                                                        \
    BODIES_OF_ROWS(body, 2)                                                                        \
    BODIES_OF_ROWS(body, 3)                                                                        \
    BODIES_OF_ROWS(body, 4)                                                                        \
    BODIES_OF_ROWS(body, 6)

typedef void body_fn(const product *at);

#define ROW_OF_BODIES(body, n)                                                                     \
    {                                                                                              \
        body##_##n##_4_1, body##_##n##_4_2, body##_##n##_4_4                                       \
    }
#define TABLE_OF_BODIES(body)                                                                      \
    {                                                                                              \
        [1] = ROW_OF_BODIES(body, 1), [2] = ROW_OF_BODIES(body, 2), [3] = ROW_OF_BODIES(body, 3),  \
        [4] = ROW_OF_BODIES(body, 4), [6] = ROW_OF_BODIES(body, 6)                                 \
    }

/* Of the next tile, how many lines this block of rows prefetches by step of 4. */
QUIRE_AVX512_INLINE uint32_t ahead_lines(const quire_avx512_ahead *ahead)
{
    return ahead->n_shares == 1 ? 4 : ahead->n_shares == 2 ? 2 : 1;
}

/* Where they lie. A block that prefetches a whole tile asks for lines faster than memory delivers
 * them. The CPU's own prefetchers stop at the end of a page of 4 KB, so a tile of two pages comes
 * from both at once (3 rows of head 64 out of memory: 9.3 -> 8.2 ns by token and kv head). Larger
 * tiles lose by it (4 rows of head 128: 16.7 -> 19.1), and without any prefetch it is 14 and 26.
 * That is Zen 5. On Zen 4, which reads ahead by itself, tiles that are read in one pass come faster
 * alone: 12.7 -> 10.7; not those of two passes (25.9 -> 26.6). */
QUIRE_AVX512_INLINE void ahead_set(product *at, quire_prefetch to, uint32_t lines,
                                   size_t tile_bytes)
{
    const bool is_whole = lines == 4 && tile_bytes <= PASS_BYTES;
    const bool is_halved = is_whole && to == QUIRE_PREFETCH_L1;
    const bool is_alone = is_whole && to == QUIRE_PREFETCH_L2 && quire_cpu_get()->reads_ahead;

    at->to = is_alone ? QUIRE_PREFETCH_NONE : to;
    at->ahead_apart = is_halved ? tile_bytes / 2 : 128;
    at->ahead_stride = is_halved ? 128 : (size_t)64 * lines;
}

/* ---- q . K ---- */

QUIRE_AVX512_INLINE void qk(product_shape shape, const product *at)
{
    __m512 acc[ROWS][WIDE];
    float *s = at->out;

    UNROLL
    for (uint32_t k = 0; k < shape.n * REGS; k++) {
        acc[k / REGS][k % REGS] = _mm512_setzero_ps();
    }
    product_steps(shape, at, acc);
    if (at->accumulate) {
        UNROLL
        for (uint32_t k = 0; k < shape.n * REGS; k++) {
            acc[k / REGS][k % REGS] =
                _mm512_add_ps(_mm512_load_ps(s + 16 * k), acc[k / REGS][k % REGS]);
        }
    }
    UNROLL
    for (uint32_t k = 0; k < shape.n * REGS; k++) {
        _mm512_store_ps(s + 16 * k, acc[k / REGS][k % REGS]);
    }
}

BODIES(qk)

void quire_avx512_qk_bf16(const quire_attn_qk *args)
{
    static body_fn *const bodies[ROWS + 1][3] = TABLE_OF_BODIES(qk);
    const size_t q_bytes = quire_avx512_q_bytes(QUIRE_FORMAT_BF16, args->d);
    quire_avx512_ahead ahead = quire_avx512_ahead_of_qk(args, (args->n_rows + 5) / 6);
    product at = { .x = args->packed,
                   .x_stride = q_bytes,
                   .line = args->k_tile,
                   .line_stride = QUIRE_TILE_TOKENS * PAIR_BYTES,
                   .n_steps = args->d / 2,
                   .out = args->s,
                   .accumulate = args->accumulate };
    uint32_t n;

    for (uint32_t n_left = args->n_rows; n_left > 0; n_left -= n) {
        const uint32_t lines = ahead_lines(&ahead);

        n = quire_avx512_next_6(n_left);
        at.ahead = ahead.at;
        ahead_set(&at, args->next_to, lines, args->d / 2 * at.line_stride);
        bodies[n][lines / 2](&at);
        at.x += n * q_bytes;
        at.out += n * (size_t)QUIRE_TILE_TOKENS;
        ahead.at += (size_t)64 * lines * at.n_steps;
        quire_avx512_ahead_advance(&ahead, args->k_tile);
    }
}

/* ---- P . V ---- */

QUIRE_AVX512_INLINE void pv(product_shape shape, const product *at)
{
    size_t stride = at->out_stride;
    float *o = at->out;
    __m512 acc[ROWS][WIDE];

    UNROLL
    for (uint32_t r = 0; r < shape.n; r++, o += stride) {
        __m512 rescale = _mm512_set1_ps(at->rescale[r]);

        UNROLL
        for (uint32_t i = 0; i < shape.regs; i++) {
            acc[r][i] = _mm512_mul_ps(_mm512_load_ps(o + 16 * i), rescale);
        }
    }
    product_steps(shape, at, acc);
    o = at->out; /* anew: 24 addresses kept from above would be spilled and come back */
    stride = at->out_stride;
    __asm__("" : "+r"(o), "+r"(stride));
    UNROLL
    for (uint32_t r = 0; r < shape.n; r++, o += stride) {
        UNROLL
        for (uint32_t i = 0; i < shape.regs; i++) {
            _mm512_store_ps(o + 16 * i, acc[r][i]);
        }
    }
}

BODIES(pv)
BODY(pv, 1, 8, 8)
BODY(pv, 2, 8, 8)

/* At most 16 dimensions, of which `lanes` are there; o is padded. */
QUIRE_AVX512_INLINE void pv_rest(uint32_t n, const product *at, __mmask16 lanes)
{
    __m512 acc[ROWS];

    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        acc[r] = _mm512_mul_ps(_mm512_load_ps(at->out + r * at->out_stride),
                               _mm512_set1_ps(at->rescale[r]));
    }
    for (uint32_t step = 0; step < at->n_steps; step++) {
        __m512i pair = _mm512_maskz_loadu_epi32(lanes, at->line + step * at->line_stride);

        quire_prefetch_lines((const char *)at->ahead + QUIRE_PREFETCH_LINE * step, 1, at->to);
        UNROLL
        for (uint32_t r = 0; r < n; r++) {
            acc[r] = dot_pairs(acc[r], pair,
                               broadcast_pair(at->x + r * at->x_stride + PAIR_BYTES * step));
        }
    }
    UNROLL
    for (uint32_t r = 0; r < n; r++) {
        _mm512_store_ps(at->out + r * at->out_stride, acc[r]);
    }
}

/* A pair of which only one token is seen: the other half of V is masked by `seen`. rescale NULL: o
 * is rescaled already. */
static void pv_half_pair(const quire_attn_pv *args, const float *rescale, uint32_t pair,
                         int32_t seen)
{
    const char *line = (const char *)args->v_tile + (size_t)pair * args->d * PAIR_BYTES;

    for (uint32_t r = 0; r < args->n_rows; r++) {
        const __m512i same = broadcast_pair(args->p + r * (size_t)QUIRE_TILE_TOKENS + pair);

        for (uint32_t c = 0; c < args->d; c += 16) {
            const __mmask16 lanes = args->d - c >= 16 ? 0xffff : 0xff;
            float *o = args->o + r * args->o_stride + c;
            __m512i v = _mm512_maskz_loadu_epi32(lanes, line + (size_t)c * PAIR_BYTES);
            __m512 acc = _mm512_load_ps(o);

            acc = rescale != NULL ? _mm512_mul_ps(acc, _mm512_set1_ps(rescale[r])) : acc;
            _mm512_store_ps(o, dot_pairs(acc, _mm512_and_si512(v, _mm512_set1_epi32(seen)), same));
        }
    }
}

/* All dimensions of a block of n rows; `at` begins with the first of them, and ends past the last.
 * By pointer, since a copy would wait for the fields just stored, and with them for the block
 * before. */
QUIRE_AVX512_INLINE void pv_block(const quire_attn_pv *args, uint32_t n, product *at,
                                  quire_avx512_ahead *ahead)
{
    static body_fn *const bodies[ROWS + 1][3] = TABLE_OF_BODIES(pv);
    const uint32_t lines = ahead_lines(ahead);
    const size_t tile_bytes = QUIRE_TILE_TOKENS / 2 * at->line_stride;
    uint32_t left = args->d;
    uint32_t dims;

    for (; left > 0; left -= dims, at->line += (size_t)dims * PAIR_BYTES, at->out += dims) {
        at->ahead = ahead->at;
        if (left >= 128 && n <= 2 && lines == 4) {
            dims = 128;
            ahead_set(at, args->next_to, 8, tile_bytes);
            (n == 1 ? pv_1_8_8 : pv_2_8_8)(at);
        } else if (left >= 64) {
            dims = 64;
            ahead_set(at, args->next_to, lines, tile_bytes);
            bodies[n][lines / 2](at);
        } else {
            const __mmask16 lanes = left >= 16 ? 0xffff : 0xff;

            dims = left >= 16 ? 16 : 8;
            at->ahead = lines == 4 ? at->ahead : (uintptr_t)at->line;
            at->to = args->next_to;
            QUIRE_AVX512_UP_TO_6(n, pv_rest, at, lanes);
        }
        ahead->at += (size_t)at->n_steps * dims * lines;
    }
}

void quire_avx512_pv_bf16(const quire_attn_pv *args)
{
    static const float ones[] = { 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f };
    const bool begins_odd = (args->slot_begin & 1) != 0 && args->slot_begin < args->slot_end;
    const bool ends_odd = (args->slot_end & 1) != 0 && args->slot_begin < args->slot_end;
    const uint32_t first = (args->slot_begin + 1) / 2;
    const uint32_t end = args->slot_end / 2;
    quire_avx512_ahead ahead = quire_avx512_ahead_of_pv(args, (args->n_rows + 5) / 6);
    product at = {
        .x = (const char *)(args->p + first),
        .x_stride = QUIRE_TILE_TOKENS * sizeof(float),
        .line = (const char *)args->v_tile + (size_t)first * args->d * PAIR_BYTES,
        .line_stride = (size_t)args->d * PAIR_BYTES,
        .n_steps = end > first ? end - first : 0,
        .out = args->o,
        .out_stride = args->o_stride,
    };
    uint32_t n;

    if (begins_odd) {
        pv_half_pair(args, args->rescale, first - 1, ODD_OF_ALL);
    }
    for (uint32_t n_left = args->n_rows; n_left > 0; n_left -= n) {
        n = quire_avx512_next_6(n_left);
        at.rescale = begins_odd ? ones : args->rescale + (args->n_rows - n_left);
        pv_block(args, n, &at, &ahead);
        at.x += n * at.x_stride;
        at.line -= at.line_stride;
        at.out += n * args->o_stride - args->d;
        quire_avx512_ahead_advance(&ahead, args->v_tile);
    }
    if (ends_odd) {
        pv_half_pair(args, NULL, end, EVEN_OF_ALL);
    }
}
