/* cuda_seal.cu - full hot tiles into their sealed form, with the bytes of the CPU's codecs:
 * src/codec/sealed_body.h has the steps.
 *
 * Block (x, y): segment x, kv head y. Segments that do not fill their tile are passed over. Thread
 * t codes token t, and packs its slot of K's planes; V's planes are packed by dimension, from each
 * token's factor.
 *
 * constants.at: is V, format.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/kernels/cuda_tiles.h"

#define THREADS QUIRE_CUDA_THREADS
#define ROW_MAX 4194304.0f /* 2^22 */
#define F16_MAX 65504.0f
#define SUMS    16u /* parts of a dot product: src/codec/lanes.h */

typedef struct seal_block {
    const quire_card_levels *table;
    uint64_t hot;
    uint64_t to;
    uint32_t format;
    uint32_t d;
    bool is_v;
    /* The block's memory: the mean of K [d, up to 32 of them]; of each token the scale of its hot
     * row, 127 / its largest magnitude, and its factor (0: the row has the smallest positive level
     * throughout); the table's cells, as bits. */
    uint32_t at_hot, at_norm, at_factor, at_cell;
} seal_block;

FN float clamp_to(float x, float limit)
{
    x = x < limit ? x : limit;
    return x > -limit ? x : -limit;
}

FN bool is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* Dimension i of a token in the hot tile, before the mean is subtracted. */
FN float stored(const seal_block *b, const float *mem, uint32_t token, uint32_t i)
{
    const GLOBAL uint32_t *codes = words_at(b->hot) + TILE / 2;
    const float code = b->is_v ? byte_less_128(codes[token / 4 * b->d + i] ^ 0x80808080u, token % 4)
                               : byte_less_128(codes[i / 4 * TILE + token], i % 4);

    return code * mem[b->at_hot + token];
}

FN float centred(const seal_block *b, const float *mem, uint32_t token, uint32_t i)
{
    return clamp_to(stored(b, mem, token, i) - (b->is_v ? 0.0f : mem[i]), ROW_MAX);
}

/* The same in units of the levels; zeros have no sign. */
FN float scaled(const seal_block *b, const float *mem, uint32_t token, uint32_t i)
{
    return centred(b, mem, token, i) * mem[b->at_norm + token] + 0.0f;
}

/* The code of the upper half nearest to |y| * factor, and its level << 8. */
FN uint32_t cell_of(const seal_block *b, const float *mem, float y, float factor)
{
    const float cell = magnitude_of(y * (2.0f * factor));

    return bits_of(mem[b->at_cell + (uint32_t)(cell < 255.0f ? cell : 255.0f)]);
}

FN void mean_take(const seal_block *b)
{
    GLOBAL uint16_t *to = (GLOBAL uint16_t *)(uintptr_t)b->to + TILE;

    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < (b->d + 31) / 32 * 32; i += THREADS) {
            uint32_t n = 0;
            float sum = 0.0f;

            for (uint32_t token = 0; i < b->d && token < TILE; token++) {
                if (is_finite(mem[b->at_hot + token])) {
                    sum += clamp_to(stored(b, mem, token, i), F16_MAX);
                    n++;
                }
            }
            to[i] = quire_f32_to_f16(n != 0 ? sum / (float)n : 0.0f);
            mem[i] = quire_f16_to_f32(to[i]);
        }
    }
}

/* ---- one row ---- */

FN void sums_clear(float *sums)
{
    UNROLL
    for (uint32_t l = 0; l < SUMS; l++) {
        sums[l] = 0.0f;
    }
}

/* The parts of a dot product added, in the order of src/codec/lanes.h. */
FN float sums_total(const float *sums)
{
    float s[SUMS / 2];

    UNROLL
    for (uint32_t l = 0; l < SUMS / 2; l++) {
        s[l] = sums[l] + sums[l + SUMS / 2];
    }
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* With the levels nearest to y * factor: y . level, level . level, y . y. */
typedef struct row_sums {
    float products;
    float squares;
    float own;
} row_sums;

FN row_sums sums_of(const seal_block *b, const float *mem, uint32_t token, float factor)
{
    float products[SUMS], own[SUMS];
    row_sums sums;

    sums_clear(products);
    sums_clear(own);
    sums.squares = 0.0f; /* exact */
    for (uint32_t i = 0; i < b->d; i += SUMS) {
        UNROLL
        for (uint32_t l = 0; l < SUMS; l++) {
            if (i + l < b->d) {
                const float y = scaled(b, mem, token, i + l);
                const float level = (float)(cell_of(b, mem, y, factor) >> 8);

                products[l] += magnitude_of(y) * level;
                own[l] += y * y;
                sums.squares += level * level;
            }
        }
    }
    sums.products = sums_total(products);
    sums.own = sums_total(own);
    return sums;
}

/* The factor of a row with the best start. */
FN float factor_find(const seal_block *b, const float *mem, uint32_t token)
{
    float best = -1.0f;
    float factor = 1.0f;

    for (uint32_t n = 0; n < b->table->n_starts; n++) {
        const row_sums sums = sums_of(b, mem, token, b->table->start[n]);

        if (sums.products * sums.products / sums.squares > best) {
            best = sums.products * sums.products / sums.squares;
            factor = sums.squares / sums.products;
        }
    }
    return factor;
}

/* The factor of a token; returns the bits of its scale. */
FN uint16_t row_fit(const seal_block *b, float *mem, uint32_t token)
{
    float largest = 0.0f;
    float factor;
    row_sums sums;
    uint16_t scale;

    mem[b->at_factor + token] = 0.0f;
    if (!is_finite(mem[b->at_hot + token])) {
        return QUIRE_F16_NAN_BITS;
    }
    for (uint32_t i = 0; i < b->d; i++) {
        const float y = magnitude_of(centred(b, mem, token, i));

        largest = y > largest ? y : largest;
    }
    if (!(largest >= 7.888609e-31f)) { /* 2^-100 */
        return 0;
    }
    mem[b->at_norm + token] = 127.0f / largest;
    factor = factor_find(b, mem, token);
    sums = sums_of(b, mem, token, factor);
    scale = quire_f32_to_f16(sqrt_of(sums.own / sums.squares) * (largest / 127.0f));
    mem[b->at_factor + token] = scale != 0 ? factor : 0.0f;
    return scale;
}

/* ---- planes ---- */

FN uint32_t code_of(const seal_block *b, const float *mem, uint32_t token, uint32_t i)
{
    const uint32_t n_levels = b->table->n_levels;
    const float factor = mem[b->at_factor + token];
    uint32_t code;
    float y;

    if (i >= b->d) {
        return 0;
    }
    if (factor == 0.0f) {
        return n_levels / 2;
    }
    y = scaled(b, mem, token, i);
    code = cell_of(b, mem, y, factor) & 255;
    return y < 0.0f ? n_levels - 1 - code : code;
}

/* A unit of a plane: bits [shift, + bits) of the codes of 8 / bits words, which four neighbours
 * share: dimensions of a token (K), or tokens of a dimension (V). `at`: the token or the
 * dimension. */
FN uint32_t unit_of(const seal_block *b, const float *mem, uint32_t unit, uint32_t at,
                    uint32_t bits, uint32_t shift)
{
    uint32_t word = 0;

    for (uint32_t m = 0; m < 8 / bits; m++) {
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t i = 32 / bits * unit + 4 * m + j;
            const uint32_t code = b->is_v ? code_of(b, mem, i, at) : code_of(b, mem, at, i);

            word |= (code >> shift & ((1u << bits) - 1)) << (8 * j + bits * m);
        }
    }
    return word;
}

/* A plane that begins at word `first` of the tile. */
FN void plane_give(const seal_block *b, uint32_t first, uint32_t bits, uint32_t shift)
{
    GLOBAL uint32_t *to = (GLOBAL uint32_t *)(uintptr_t)b->to + first;
    const uint32_t n_units = b->is_v ? 2 * bits : (b->d * bits + 31) / 32;
    const uint32_t n = b->is_v ? b->d : TILE;

    EACH_THREAD(t, mem)
    {
        for (uint32_t unit = 0; unit < n_units; unit++) {
            for (uint32_t i = t; i < n; i += THREADS) {
                to[unit * n + i] = unit_of(b, mem, unit, i, bits, shift);
            }
        }
    }
}

FN void tile_seal(const seal_block *b)
{
    GLOBAL uint16_t *scales = (GLOBAL uint16_t *)(uintptr_t)b->to;
    const uint32_t lb = low_bits(b->format);
    const uint32_t hb = high_bits(b->format);

    EACH_THREAD(t, mem)
    {
        mem[b->at_hot + t] = half_at(b->hot, t);
        for (uint32_t i = t; i < 256; i += THREADS) {
            mem[b->at_cell + i] = float_of(b->table->cell[i]);
        }
    }
    if (!b->is_v) {
        mean_take(b);
    }
    EACH_THREAD(t, mem)
    {
        scales[t] = row_fit(b, mem, t);
    }
    plane_give(b, b->is_v ? v_low_at() : k_low_at(b->d), lb, 0);
    if (hb != 0) {
        plane_give(b, b->is_v ? v_high_at(b->format, b->d) : k_high_at(b->format, b->d), hb, lb);
    }
}

KERNEL(cuda_seal)
{
    const quire_card_params *p = (const quire_card_params *)(uintptr_t)push.params;
    const quire_card_segment *segment =
        (const quire_card_segment *)(uintptr_t)push.segments + block_x();
    const quire_card_seq *seq = (const quire_card_seq *)(uintptr_t)p->seqs + segment->seq;
    const quire_card_source *store = constants.at[0] != 0 ? &p->v_store : &p->k_store;
    const quire_card_entry *entries = (const quire_card_entry *)(uintptr_t)p->entries;
    seal_block b;

    if (segment->first_slot + segment->n_tokens != TILE) {
        return;
    }
    b.format = constants.at[1];
    b.is_v = constants.at[0] != 0;
    b.d = b.is_v ? p->d_v : p->d_k;
    b.table = (const quire_card_levels *)(uintptr_t)p->tables + (b.format - QUIRE_FORMAT_Q6);
    b.hot = tile_of(&store->hot_lane, entries + seq->first_entry[store->hot_group] + segment->entry,
                    block_y(), segment->tile);
    b.to = tile_of(&store->lane, entries + seq->first_entry[store->group] + segment->entry,
                   block_y(), segment->tile);
    b.at_hot = (b.d + 31) / 32 * 32;
    b.at_norm = b.at_hot + TILE;
    b.at_factor = b.at_norm + TILE;
    b.at_cell = b.at_factor + TILE;
    tile_seal(&b);
}
