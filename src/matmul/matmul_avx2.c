/* matmul_avx2.c - the sets of matrix products for x86 CPUs without AVX-512: packing of x, heads of
 * panels, and the order of passes.
 *
 * SPDX-License-Identifier: MIT */
#include "matmul/matmul_avx2_grid.h"

#include "base/cpu.h"
#include "base/num.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
/* Shifts of fields of heads are constants where the loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 16")

enum {
    QUADS = QUIRE_MATMUL_BLOCK / 4,
    PANEL = QUIRE_MATMUL_PANEL,
    SIDES = PANEL / QUIRE_MATMUL_SIDE,
    WORDS = 4 * PANEL, /* bytes of a word for each output */
    LINE = 64,         /* of a cache */
    /* The distance of prefetches. The CPU's own prefetchers stop at the end of a page. Prefetches
     * one page ahead come too late, and give three quarters of the speed. */
    AHEAD_BYTES = 12288
};

/* ---- x ---- */

/* Eight floats as integers' low bytes: NaN, which converts to the least integer, becomes 0. */
INLINE __m256i round_8(const float *x, __m256 inverse)
{
    const __m256i n = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));

    return _mm256_and_si256(n, _mm256_set1_epi32(0xff));
}

/* A block as int8. */
INLINE __m256i block_round(const float *x, __m256 inverse)
{
    const __m256i low = _mm256_packus_epi32(round_8(x, inverse), round_8(x + 8, inverse));
    const __m256i high = _mm256_packus_epi32(round_8(x + 16, inverse), round_8(x + 24, inverse));

    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The largest |x|; NaN and Inf come out on top. */
INLINE float block_max(const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i max = _mm256_setzero_si256();
    __m128i four;

    for (uint32_t i = 0; i < QUIRE_MATMUL_BLOCK; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const void *)(x + i));

        max = _mm256_max_epi32(max, _mm256_and_si256(bits, magnitude));
    }
    four = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
    four = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 1));
    return _mm_cvtss_f32(_mm_castsi128_ps(four));
}

/* A block into a tile of n_rows rows. */
INLINE void block_pack(const float *x, uint32_t n_rows, int32_t *to)
{
    const float max = block_max(x);
    const bool is_some = !(max < QUIRE_MATMUL_TINY);
    const __m256i n = block_round(x, _mm256_set1_ps(is_some ? 127.0f / max : 0.0f));
    const __m256i sums =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), n), _mm256_set1_epi16(1));
    const __m128i halves =
        _mm_hadd_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    const __m128i both = _mm_hadd_epi32(halves, halves);
    const int32_t first = _mm_cvtsi128_si32(both);
    const int32_t sum = first + _mm_extract_epi32(both, 1);
    const float d = is_some ? max / 127.0f : 0.0f;
    _Alignas(32) int32_t quads[QUADS];

    _mm256_store_si256((__m256i *)(void *)quads, n);
    for (uint32_t k = 0; k < QUADS; k++) {
        to[k * n_rows] = quads[k];
    }
    to[QUIRE_MATMUL_X_SUM * n_rows] = -128 * sum;
    to[QUIRE_MATMUL_X_HALF * n_rows] = -32 * first;
    *(float *)(void *)&to[QUIRE_MATMUL_X_D * n_rows] = d;
    *(float *)(void *)&to[QUIRE_MATMUL_X_DSUM * n_rows] = d * (float)sum;
}

static void tile_pack(const quire_matmul_tile *tile)
{
    const size_t block_words = (size_t)tile->n_rows * (QUIRE_MATMUL_BLOCK_BYTES / 4);

    for (uint32_t b = tile->begin; b < tile->end; b++) {
        for (uint32_t row = 0; row < tile->n_rows; row++) {
            block_pack(tile->rows + row * tile->stride + (size_t)b * QUIRE_MATMUL_BLOCK,
                       tile->n_rows, (int32_t *)tile->at + b * block_words + row);
        }
    }
}

/* ---- heads ---- */

/* Eight f16s from the first of outputs [lane, lane + 8). */
INLINE __m256 halves_at(const unsigned char *halves, uint32_t lane)
{
    return _mm256_cvtph_ps(_mm_load_si128((const void *)(halves + (size_t)2 * lane)));
}

INLINE __m256i words_at(const unsigned char *words, uint32_t lane)
{
    return _mm256_load_si256((const void *)(words + (size_t)4 * lane));
}

/* 6 bits of byte i of each word. */
INLINE __m256 byte_of(__m256i words, uint32_t i)
{
    const __m256i byte =
        _mm256_and_si256(_mm256_srli_epi32(words, (int)(8 * i)), _mm256_set1_epi32(63));

    return _mm256_cvtepi32_ps(byte);
}

/* The upper four of eight integers of 6 bits: nibbles, and the two bits above the lower four. */
INLINE __m256i upper_four(__m256i nibbles, __m256i lower)
{
    return _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)),
                           _mm256_and_si256(_mm256_srli_epi32(lower, 2), _mm256_set1_epi8(48)));
}

/* Of GGUF's 12 bytes the first 4 are the lower 4 scales, the next 4 the lower 4 mins, and the last
 * 4 have the scales' and the mins' upper nibbles. */
static void k_head_read(const unsigned char *head, quire_matmul_scales *s)
{
    const __m256 minus = _mm256_set1_ps(-0.0f);

    for (uint32_t lane = 0; lane < PANEL; lane += 8) {
        const __m256 scale = halves_at(head, lane);
        const __m256 min = _mm256_xor_ps(halves_at(head + 2 * PANEL, lane), minus);
        const __m256i both = words_at(head + 3 * WORDS, lane);
        __m256i scales = words_at(head + WORDS, lane);
        __m256i mins = words_at(head + 2 * WORDS, lane);

        UNROLL
        for (uint32_t b = 0; b < QUIRE_MATMUL_STEP_BLOCKS; b++) {
            if (b == 4) {
                scales = upper_four(both, scales);
                mins = upper_four(_mm256_srli_epi32(both, 4), mins);
            }
            _mm256_store_ps(s->scale[b] + lane, _mm256_mul_ps(scale, byte_of(scales, b % 4)));
            _mm256_store_ps(s->min[b] + lane, _mm256_mul_ps(min, byte_of(mins, b % 4)));
        }
    }
}

static void q6_k_head_read(const unsigned char *head, quire_matmul_scales *s)
{
    for (uint32_t lane = 0; lane < PANEL; lane += 8) {
        const __m256 scale = halves_at(head, lane);

        UNROLL
        for (uint32_t i = 0; i < 2 * QUIRE_MATMUL_STEP_BLOCKS; i++) {
            const __m128i bytes =
                _mm_loadl_epi64((const void *)(head + (size_t)(2 + i) * PANEL + lane));

            _mm256_store_ps(s->scale[i] + lane,
                            _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
        }
    }
}

/* `bits` bits of each word from bit `at` on. */
INLINE __m256i field_of(__m256i words, uint32_t at, uint32_t bits)
{
    return _mm256_and_si256(_mm256_srli_epi32(words, (int)at), _mm256_set1_epi32((1 << bits) - 1));
}

/* 16 bytes of nibbles: scales, and above them mins. */
static void q2_k_head_read(const unsigned char *head, quire_matmul_scales *s)
{
    for (uint32_t lane = 0; lane < PANEL; lane += 8) {
        const __m256 scale = halves_at(head, lane), min = halves_at(head + 2 * PANEL, lane);

        UNROLL
        for (uint32_t i = 0; i < 2 * QUIRE_MATMUL_STEP_BLOCKS; i++) {
            const __m256i words = words_at(head + (size_t)(1 + i / 4) * WORDS, lane);
            const __m256i nibble = field_of(words, 8 * (i % 4), 4);
            const __m256i upper = field_of(words, 8 * (i % 4) + 4, 4);

            _mm256_store_ps(s->scale[i] + lane, _mm256_mul_ps(scale, _mm256_cvtepi32_ps(nibble)));
            _mm256_store_ps(s->min[i] + lane, _mm256_mul_ps(min, _mm256_cvtepi32_ps(upper)));
        }
    }
}

/* A scale from its nibble and its upper two bits. */
INLINE __m256 scale_of_6(__m256 scale, __m256i nibble, __m256i high)
{
    const __m256i whole = _mm256_or_si256(nibble, _mm256_slli_epi32(high, 4));

    return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_sub_epi32(whole, _mm256_set1_epi32(32))));
}

/* Nibbles in 8 bytes, the lower 8 scales' first; the last 4 bytes have the upper two bits. */
static void q3_k_head_read(const unsigned char *head, quire_matmul_scales *s)
{
    for (uint32_t lane = 0; lane < PANEL; lane += 8) {
        const __m256 scale = halves_at(head, lane);
        const unsigned char *words = head + 2 * PANEL;
        const __m256i high = words_at(words + 2 * WORDS, lane);

        UNROLL
        for (uint32_t i = 0; i < 2 * QUIRE_MATMUL_STEP_BLOCKS; i++) {
            const __m256i low = words_at(words + (size_t)i / 4 % 2 * WORDS, lane);

            _mm256_store_ps(s->scale[i] + lane,
                            scale_of_6(scale, field_of(low, 8 * (i % 4) + (i < 8 ? 0 : 4), 4),
                                       field_of(high, 8 * (i % 4) + 2 * (i / 4), 2)));
        }
    }
}

static void iq4_xs_head_read(const unsigned char *head, quire_matmul_scales *s)
{
    for (uint32_t lane = 0; lane < PANEL; lane += 8) {
        const __m256 scale = halves_at(head, lane);
        const __m256i high = _mm256_cvtepu16_epi32(
            _mm_load_si128((const void *)(head + 2 * PANEL + (size_t)2 * lane)));
        const __m256i low = words_at(head + WORDS, lane);

        UNROLL
        for (uint32_t b = 0; b < QUIRE_MATMUL_STEP_BLOCKS; b++) {
            _mm256_store_ps(s->scale[b] + lane,
                            scale_of_6(scale, field_of(low, 4 * b, 4), field_of(high, 2 * b, 2)));
        }
    }
}

/* Heads of n blocks, which come in pairs. */
static void mxfp4_heads_read(const unsigned char *heads, const quire_matmul_layout *l, uint32_t n,
                             quire_matmul_scales *s)
{
    const __m256i one = _mm256_set1_epi32(1), least = _mm256_set1_epi32(0x00200000);

    for (uint32_t b = 0; b < n; b++) {
        const unsigned char *head =
            heads + (size_t)b / 2 * (l->head_bytes + 2 * l->code_bytes) + (size_t)b % 2 * PANEL;

        for (uint32_t lane = 0; lane < PANEL; lane += 8) {
            const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(head + lane)));
            const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
            const __m256i is_normal = _mm256_cmpgt_epi32(e, one);

            _mm256_store_ps(s->scale[b] + lane,
                            _mm256_castsi256_ps(_mm256_blendv_epi8(_mm256_sllv_epi32(least, e),
                                                                   normal, is_normal)));
        }
    }
}

/* Heads of n groups of a block each. */
static void heads_read(const unsigned char *heads, const quire_matmul_layout *l, uint32_t n,
                       quire_matmul_scales *s)
{
    for (uint32_t b = 0; b < n; b++) {
        const unsigned char *head = heads + (size_t)b * (l->head_bytes + l->code_bytes);

        for (uint32_t lane = 0; lane < PANEL; lane += 8) {
            _mm256_store_ps(s->scale[b] + lane, halves_at(head, lane));
            if (l->head_bytes > 2 * PANEL) {
                _mm256_store_ps(s->min[b] + lane, halves_at(head + 2 * PANEL, lane));
            }
        }
    }
}

/* ---- panels ---- */

/* The tile's rows over a side of a step: in as few passes as possible, of sizes as equal as
 * possible. Only the first pass prefetches. */
INLINE void side_run(const quire_matmul_passes *passes, const quire_matmul_panel *p,
                     quire_matmul_pass pass)
{
    const uint32_t n_passes = (p->n_rows + QUIRE_MATMUL_PASS_ROWS - 1) / QUIRE_MATMUL_PASS_ROWS;
    const char *const x = pass.x;
    float *const y = pass.y;
    uint32_t row = 0;

    for (uint32_t i = 1; i <= n_passes; i++) {
        const uint32_t end = p->n_rows * i / n_passes;

        pass.x = x + (size_t)4 * row;
        pass.y = y + (size_t)row * PANEL;
        passes->run[p->weight->type][end - row - 1](&pass);
        pass.ahead_bytes = 0;
        row = end;
    }
}

/* The head of a group that is a step. */
static void super_head_read(quire_matmul_type type, const unsigned char *head,
                            quire_matmul_scales *s)
{
    switch (type) {
    case QUIRE_MATMUL_Q2_K:
        q2_k_head_read(head, s);
        break;
    case QUIRE_MATMUL_Q3_K:
        q3_k_head_read(head, s);
        break;
    case QUIRE_MATMUL_IQ4_XS:
        iq4_xs_head_read(head, s);
        break;
    case QUIRE_MATMUL_Q6_K:
        q6_k_head_read(head, s);
        break;
    default:
        k_head_read(head, s);
        break;
    }
}

/* A step that begins with block b; y is added to. */
INLINE void step_run(const quire_matmul_passes *passes, const quire_matmul_panel *p, uint32_t b,
                     float *y)
{
    const quire_matmul_type type = p->weight->type;
    const quire_matmul_layout *l = &quire_matmul_layouts[type];
    const uint32_t block_bytes = PANEL * l->gguf_bytes / (l->group / QUIRE_MATMUL_BLOCK);
    const unsigned char *head = p->at + (size_t)b * block_bytes;
    const uint32_t n_blocks =
        quire_min_u32(QUIRE_MATMUL_STEP_BLOCKS, p->weight->n_in / QUIRE_MATMUL_BLOCK - b);
    quire_matmul_scales scales;

    if (l->group == QUIRE_MATMUL_BLOCK) {
        heads_read(head, l, n_blocks, &scales);
    } else if (type == QUIRE_MATMUL_MXFP4) {
        mxfp4_heads_read(head, l, n_blocks, &scales);
    } else {
        super_head_read(type, head, &scales);
    }
    for (uint32_t side = 0; side < SIDES; side++) {
        const uint32_t lane = side * QUIRE_MATMUL_SIDE;
        const uint32_t ahead_bytes = p->is_first ? block_bytes / SIDES : 0;

        side_run(passes, p,
                 (quire_matmul_pass){
                     .codes = head + l->head_bytes + (size_t)4 * lane,
                     .scale = scales.scale[0] + lane,
                     .min = scales.min[0] + lane,
                     .y = y + lane,
                     .x = (const char *)p->tile + (size_t)b * p->n_rows * QUIRE_MATMUL_BLOCK_BYTES,
                     .x_stride = (size_t)4 * p->n_rows,
                     .n_blocks = n_blocks,
                     .ahead_bytes = ahead_bytes,
                     .ahead = head + AHEAD_BYTES + (size_t)side * n_blocks * ahead_bytes,
                 });
    }
}

INLINE void panel_run(const quire_matmul_passes *passes, const quire_matmul_panel *p)
{
    _Alignas(32) float y[QUIRE_MATMUL_TILE_ROWS * PANEL];

    for (uint32_t row = 0; row < p->n_rows; row++) {
        memset(y + (size_t)row * PANEL, 0, PANEL * sizeof *y);
        /* Else the stores at the end would wait, and those of the next panel's sums for them. */
        for (uint32_t lane = 0; lane < PANEL; lane += LINE / sizeof(float)) {
            _mm_prefetch((const char *)(p->y + row * p->y_stride + lane), _MM_HINT_T0);
        }
    }
    for (uint32_t b = 0; b < p->weight->n_in / QUIRE_MATMUL_BLOCK; b += QUIRE_MATMUL_STEP_BLOCKS) {
        step_run(passes, p, b, y);
    }
    for (uint32_t row = 0; row < p->n_rows; row++) {
        memcpy(p->y + row * p->y_stride, y + (size_t)row * PANEL, PANEL * sizeof *y);
    }
}

/* ---- types with a grid ---- */

/* A group times n tiles, whose sums are in y. */
INLINE void group_run(const quire_matmul_passes *passes, const quire_matmul_panel *tiles,
                      uint32_t n, uint32_t b, float (*y)[QUIRE_MATMUL_TILE_ROWS * PANEL])
{
    const quire_matmul_type type = tiles->weight->type;
    const size_t group_bytes = (size_t)PANEL * quire_matmul_layouts[type].gguf_bytes;
    const unsigned char *head = tiles->at + b / QUIRE_MATMUL_STEP_BLOCKS * group_bytes;
    _Alignas(32) unsigned char codes[QUIRE_MATMUL_GRID_GROUP_BYTES];
    quire_matmul_scales scales;

    quire_matmul_avx2_grid_read(type, head, tiles->is_first ? AHEAD_BYTES : 0, codes);
    quire_matmul_avx2_grid_scales(type, head, &scales);
    for (uint32_t t = 0; t < n; t++) {
        const quire_matmul_panel *p = &tiles[t];

        for (uint32_t lane = 0; lane < PANEL; lane += QUIRE_MATMUL_SIDE) {
            side_run(passes, p,
                     (quire_matmul_pass){ .codes = codes + (size_t)4 * lane,
                                          .scale = scales.scale[0] + lane,
                                          .min = scales.min[0] + lane,
                                          .y = y[t] + lane,
                                          .x = (const char *)p->tile +
                                               (size_t)b * p->n_rows * QUIRE_MATMUL_BLOCK_BYTES,
                                          .x_stride = (size_t)4 * p->n_rows,
                                          .n_blocks = QUIRE_MATMUL_STEP_BLOCKS,
                                          .ahead = codes });
        }
    }
}

/* A panel times n tiles. */
INLINE void grid_run(const quire_matmul_passes *passes, const quire_matmul_panel *tiles, uint32_t n)
{
    _Alignas(32) float y[QUIRE_MATMUL_GRID_TILES][QUIRE_MATMUL_TILE_ROWS * PANEL];

    for (uint32_t t = 0; t < n; t++) {
        memset(y[t], 0, (size_t)tiles[t].n_rows * PANEL * sizeof y[t][0]);
    }
    for (uint32_t b = 0; b < tiles->weight->n_in / QUIRE_MATMUL_BLOCK;
         b += QUIRE_MATMUL_STEP_BLOCKS) {
        group_run(passes, tiles, n, b, y);
    }
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t row = 0; row < tiles[t].n_rows; row++) {
            memcpy(tiles[t].y + row * tiles[t].y_stride, y[t] + (size_t)row * PANEL,
                   PANEL * sizeof y[t][0]);
        }
    }
}

/* ---- sets ---- */

static void panel_avx2(const quire_matmul_panel *p)
{
    if (quire_matmul_has_grid(p->weight->type)) {
        grid_run(&quire_matmul_avx2_passes, p, 1);
        return;
    }
    panel_run(&quire_matmul_avx2_passes, p);
}

static void panel_avxvnni(const quire_matmul_panel *p)
{
    if (quire_matmul_has_grid(p->weight->type)) {
        grid_run(&quire_matmul_avxvnni_passes, p, 1);
        return;
    }
    panel_run(&quire_matmul_avxvnni_passes, p);
}

static void grid_avx2(const quire_matmul_panel *panels, uint32_t n)
{
    grid_run(&quire_matmul_avx2_passes, panels, n);
}

static void grid_avxvnni(const quire_matmul_panel *panels, uint32_t n)
{
    grid_run(&quire_matmul_avxvnni_passes, panels, n);
}

const quire_matmul_kernels *quire_matmul_kernels_avx2(void)
{
    static const quire_matmul_kernels kernels = { "avx2", tile_pack, panel_avx2, grid_avx2 };

    if (!quire_cpu_get()->has_avx2) {
        return NULL;
    }
    quire_matmul_avx2_grid_init();
    return &kernels;
}

const quire_matmul_kernels *quire_matmul_kernels_avxvnni(void)
{
    static const quire_matmul_kernels kernels = { "avx2+vnni", tile_pack, panel_avxvnni,
                                                  grid_avxvnni };

    if (!quire_cpu_get()->has_avx_vnni) {
        return NULL;
    }
    quire_matmul_avx2_grid_init();
    return &kernels;
}
