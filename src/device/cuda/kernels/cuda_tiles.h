/* cuda_tiles.h - numbers of a tile, four at a time: dimensions of a token (K), tokens of a
 * dimension (V). Without the row's scale, and K without the tile's mean. Layouts: quire/codec.h.
 *
 * Callers give `format` as a constant, so the compiler removes the branches by format.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_TILES_H
#define QUIRE_DEVICE_CUDA_TILES_H

#include "device/cuda/kernels/cuda_machine.h"

#define TILE QUIRE_TILE_TOKENS

typedef struct float_4 {
    float x, y, z, w;
} float_4;

FN float_4 make_4(float x, float y, float z, float w)
{
    float_4 v;

    v.x = x;
    v.y = y;
    v.z = z;
    v.w = w;
    return v;
}

/* Of the block's memory: at a multiple of 16 bytes. */
FN float_4 floats_at(const float *x)
{
    const float *at = (const float *)__builtin_assume_aligned(x, 16);

    return make_4(at[0], at[1], at[2], at[3]);
}

FN const GLOBAL uint32_t *words_at(uint64_t address)
{
    return (const GLOBAL uint32_t *)(uintptr_t)address;
}

FN const GLOBAL float *floats_of(uint64_t address)
{
    return (const GLOBAL float *)(uintptr_t)address;
}

FN float half_at(uint64_t address, uint32_t i)
{
    return half_value(((const GLOBAL uint16_t *)(uintptr_t)address)[i]);
}

FN float low_bf16(uint32_t word)
{
    return float_of(word << 16);
}

FN float high_bf16(uint32_t word)
{
    return float_of(word & 0xffff0000u);
}

/* Byte i of a word less 128: 2^23 + byte is a float with the byte in its lowest bits. */
FN float byte_less_128(uint32_t word, uint32_t i)
{
    return float_of(0x4b000000u | (word >> 8 * i & 255u)) - 8388736.0f;
}

FN bool is_sealed(uint32_t format)
{
    return format >= QUIRE_FORMAT_Q6;
}

FN bool has_scale(uint32_t format)
{
    return format >= QUIRE_FORMAT_Q8;
}

FN uint32_t low_bits(uint32_t format)
{
    return format == QUIRE_FORMAT_Q3 ? 2 : 4;
}

FN uint32_t high_bits(uint32_t format)
{
    return format == QUIRE_FORMAT_Q6 ? 2 : format == QUIRE_FORMAT_Q4 ? 0 : 1;
}

FN uint32_t mean_bytes(uint32_t d)
{
    return (d * 2 + 63) / 64 * 64;
}

/* The planes of a sealed tile, in words from its beginning. */
FN uint32_t k_low_at(uint32_t d)
{
    return (TILE * 2 + mean_bytes(d)) / 4;
}

FN uint32_t k_high_at(uint32_t format, uint32_t d)
{
    return k_low_at(d) + (d * low_bits(format) + 31) / 32 * TILE;
}

FN uint32_t v_low_at(void)
{
    return TILE / 2;
}

FN uint32_t v_high_at(uint32_t format, uint32_t d)
{
    return v_low_at() + 2 * low_bits(format) * d;
}

FN uint64_t tile_of(const quire_card_lane *lane, const quire_card_entry *entry, uint32_t head,
                    uint32_t tile)
{
    return entry->extent + lane->offset + (uint64_t)entry->slot * lane->page_stride +
           (uint64_t)head * lane->head_stride + (uint64_t)tile * lane->tile_stride;
}

/* Codes of neighbours 4 * at .. as bytes, of the unit of each plane that they lie in. */
FN uint32_t codes_of(uint32_t format, uint32_t low, uint32_t high, uint32_t at)
{
    const uint32_t lb = low_bits(format);
    const uint32_t hb = high_bits(format);
    uint32_t word = low >> lb * (at % (8 / lb)) & 0x01010101u * ((1u << lb) - 1);

    if (hb != 0) {
        word |= (high >> hb * (at % (8 / hb)) & 0x01010101u * ((1u << hb) - 1)) << lb;
    }
    return word;
}

FN float_4 levels_of(const float *levels, uint32_t codes)
{
    return make_4(levels[codes & 255], levels[codes >> 8 & 255], levels[codes >> 16 & 255],
                  levels[codes >> 24]);
}

FN float_4 bytes_less_128(uint32_t word)
{
    return make_4(byte_less_128(word, 0), byte_less_128(word, 1), byte_less_128(word, 2),
                  byte_less_128(word, 3));
}

/* Codes 4 * at .. of slot `slot` of a sealed K tile, as bytes. */
FN uint32_t k_codes(uint32_t format, uint64_t tile, uint32_t d, uint32_t at, uint32_t slot)
{
    const GLOBAL uint32_t *w = words_at(tile);
    const uint32_t lb = low_bits(format);
    const uint32_t hb = high_bits(format);
    const uint32_t low = w[k_low_at(d) + at / (8 / lb) * TILE + slot];
    uint32_t high = 0;

    if (hb != 0) {
        high = w[k_high_at(format, d) + at / (8 / most(hb, 1)) * TILE + slot];
    }
    return codes_of(format, low, high, at);
}

/* Dimensions 4 * at .. of slot `slot` of a K tile. levels: of a sealed format. */
FN float_4 k4(uint32_t format, uint64_t tile, uint32_t d, uint32_t at, uint32_t slot,
              const float *levels)
{
    const GLOBAL uint32_t *w = words_at(tile);
    const uint32_t i = 4 * at * TILE + slot;

    switch (format) {
    case QUIRE_FORMAT_F32:
        return make_4(float_of(w[i]), float_of(w[i + TILE]), float_of(w[i + 2 * TILE]),
                      float_of(w[i + 3 * TILE]));
    case QUIRE_FORMAT_F16:
        return make_4(half_at(tile, i), half_at(tile, i + TILE), half_at(tile, i + 2 * TILE),
                      half_at(tile, i + 3 * TILE));
    case QUIRE_FORMAT_BF16: {
        const uint32_t a = w[2 * at * TILE + slot];
        const uint32_t b = w[(2 * at + 1) * TILE + slot];

        return make_4(low_bf16(a), high_bf16(a), low_bf16(b), high_bf16(b));
    }
    case QUIRE_FORMAT_Q8:
        return bytes_less_128(w[TILE / 2 + at * TILE + slot]);
    default:
        return levels_of(levels, k_codes(format, tile, d, at, slot));
    }
}

/* Dimension i of a slot of a K tile. */
FN float k1(uint32_t format, uint64_t tile, uint32_t d, uint32_t i, uint32_t slot,
            const float *levels)
{
    const GLOBAL uint32_t *w = words_at(tile);

    switch (format) {
    case QUIRE_FORMAT_F32:
        return float_of(w[i * TILE + slot]);
    case QUIRE_FORMAT_F16:
        return half_at(tile, i * TILE + slot);
    case QUIRE_FORMAT_BF16: {
        const uint32_t word = w[i / 2 * TILE + slot];

        return i % 2 == 0 ? low_bf16(word) : high_bf16(word);
    }
    case QUIRE_FORMAT_Q8:
        return byte_less_128(w[TILE / 2 + i / 4 * TILE + slot], i % 4);
    default:
        return levels[k_codes(format, tile, d, i / 4, slot) >> 8 * (i % 4) & 255];
    }
}

/* Tokens 4 * at .. of dimension i of a V tile. */
FN float_4 v4(uint32_t format, uint64_t tile, uint32_t d, uint32_t at, uint32_t i,
              const float *levels)
{
    const GLOBAL uint32_t *w = words_at(tile);
    const uint32_t first = 4 * at * d + i;

    switch (format) {
    case QUIRE_FORMAT_F32:
        return make_4(float_of(w[first]), float_of(w[first + d]), float_of(w[first + 2 * d]),
                      float_of(w[first + 3 * d]));
    case QUIRE_FORMAT_F16:
        return make_4(half_at(tile, first), half_at(tile, first + d), half_at(tile, first + 2 * d),
                      half_at(tile, first + 3 * d));
    case QUIRE_FORMAT_BF16: {
        const uint32_t a = w[2 * at * d + i];
        const uint32_t b = w[(2 * at + 1) * d + i];

        return make_4(low_bf16(a), high_bf16(a), low_bf16(b), high_bf16(b));
    }
    case QUIRE_FORMAT_Q8: /* signed bytes */
        return bytes_less_128(w[TILE / 2 + at * d + i] ^ 0x80808080u);
    default: {
        const uint32_t lb = low_bits(format);
        const uint32_t hb = high_bits(format);
        const uint32_t low = w[v_low_at() + at / (8 / lb) * d + i];
        uint32_t high = 0;

        if (hb != 0) {
            high = w[v_high_at(format, d) + at / (8 / most(hb, 1)) * d + i];
        }
        return levels_of(levels, codes_of(format, low, high, at));
    }
    }
}

FN float_4 halves_at(uint64_t address, uint32_t i)
{
    return make_4(half_at(address, i), half_at(address, i + 1), half_at(address, i + 2),
                  half_at(address, i + 3));
}

/* The scales of tokens 4 * at ..; ones where the format has none. */
FN float_4 scale4(uint32_t format, uint64_t tile, uint32_t at)
{
    return has_scale(format) ? halves_at(tile, 4 * at) : make_4(1.0f, 1.0f, 1.0f, 1.0f);
}

FN float scale_of(uint32_t format, uint64_t tile, uint32_t slot)
{
    return has_scale(format) ? half_at(tile, slot) : 1.0f;
}

/* The mean of dimensions 4 * at .. of a sealed K tile. */
FN float_4 mean4(uint64_t tile, uint32_t at)
{
    return halves_at(tile, TILE + 4 * at);
}

FN float mean1(uint64_t tile, uint32_t i)
{
    return half_at(tile, TILE + i);
}

FN float add4(float sum, float_4 a, float_4 b)
{
    sum = fma_of(a.x, b.x, sum);
    sum = fma_of(a.y, b.y, sum);
    sum = fma_of(a.z, b.z, sum);
    return fma_of(a.w, b.w, sum);
}

/* CALL(f) with f the constant that `format` is. */
#define BY_FORMAT(format, CALL)                                                                    \
    switch (format) {                                                                              \
    case QUIRE_FORMAT_F32:                                                                         \
        CALL(QUIRE_FORMAT_F32);                                                                    \
        break;                                                                                     \
    case QUIRE_FORMAT_F16:                                                                         \
        CALL(QUIRE_FORMAT_F16);                                                                    \
        break;                                                                                     \
    case QUIRE_FORMAT_BF16:                                                                        \
        CALL(QUIRE_FORMAT_BF16);                                                                   \
        break;                                                                                     \
    case QUIRE_FORMAT_Q8:                                                                          \
        CALL(QUIRE_FORMAT_Q8);                                                                     \
        break;                                                                                     \
    case QUIRE_FORMAT_Q6:                                                                          \
        CALL(QUIRE_FORMAT_Q6);                                                                     \
        break;                                                                                     \
    case QUIRE_FORMAT_Q5:                                                                          \
        CALL(QUIRE_FORMAT_Q5);                                                                     \
        break;                                                                                     \
    case QUIRE_FORMAT_Q4:                                                                          \
        CALL(QUIRE_FORMAT_Q4);                                                                     \
        break;                                                                                     \
    default:                                                                                       \
        CALL(QUIRE_FORMAT_Q3);                                                                     \
        break;                                                                                     \
    }

#endif /* QUIRE_DEVICE_CUDA_TILES_H */
