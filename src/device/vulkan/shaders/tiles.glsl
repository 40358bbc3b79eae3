// tiles.glsl - numbers of a tile, four at a time: dimensions of a token (K), tokens of a dimension
// (V). Without the row's scale, and K without the tile's mean. Layouts: quire/codec.h.
//
// SPDX-License-Identifier: MIT
#include "params.glsl"

shared float level_of[64]; // of the sealed format at hand

uint mean_bytes(uint d)
{
    return (d * 2 + 63) / 64 * 64;
}

// Codes of four neighbours, of the unit of each plane that they lie in.
uvec4 codes_of(uint format, uint low, uint high, uint at)
{
    const uint lb = low_bits(format);
    const uint hb = high_bits(format);
    const uint l = low >> lb * (at % (8 / lb)) & 0x01010101u * ((1u << lb) - 1);
    uint word = l;

    if (hb != 0) {
        word |= (high >> hb * (at % (8 / hb)) & 0x01010101u * ((1u << hb) - 1)) << lb;
    }
    return uvec4(word & 255, word >> 8 & 255, word >> 16 & 255, word >> 24);
}

vec4 levels_of(uvec4 code)
{
    return vec4(level_of[code.x], level_of[code.y], level_of[code.z], level_of[code.w]);
}

// Dimensions 4 * at .. of slot `slot` of a K tile.
vec4 k4(uint format, uint64_t tile, uint d, uint at, uint slot)
{
    Words w = Words(tile);

    if (format == F32) {
        return vec4(uintBitsToFloat(w.at[(4 * at) * TILE + slot]),
                    uintBitsToFloat(w.at[(4 * at + 1) * TILE + slot]),
                    uintBitsToFloat(w.at[(4 * at + 2) * TILE + slot]),
                    uintBitsToFloat(w.at[(4 * at + 3) * TILE + slot]));
    }
    if (format == F16) {
        return vec4(half_at(tile, (4 * at) * TILE + slot),
                    half_at(tile, (4 * at + 1) * TILE + slot),
                    half_at(tile, (4 * at + 2) * TILE + slot),
                    half_at(tile, (4 * at + 3) * TILE + slot));
    }
    if (format == BF16) {
        const uint a = w.at[(2 * at) * TILE + slot];
        const uint b = w.at[(2 * at + 1) * TILE + slot];

        return vec4(bf16_of(a & 0xffff), bf16_of(a >> 16), bf16_of(b & 0xffff), bf16_of(b >> 16));
    }
    if (format == Q8) {
        return bytes_of(w.at[TILE / 2 + at * TILE + slot]) - 128.0;
    }
    const uint lb = low_bits(format);
    const uint hb = high_bits(format);
    const uint low = (TILE * 2 + mean_bytes(d)) / 4;
    const uint high = low + (d * lb + 31) / 32 * TILE;

    return levels_of(codes_of(format, w.at[low + at / (8 / lb) * TILE + slot],
                              hb == 0 ? 0 : w.at[high + at / (8 / max(hb, 1)) * TILE + slot], at));
}

// Tokens 4 * at .. of dimension i of a V tile.
vec4 v4(uint format, uint64_t tile, uint d, uint at, uint i)
{
    Words w = Words(tile);

    if (format == F32) {
        return vec4(uintBitsToFloat(w.at[(4 * at) * d + i]),
                    uintBitsToFloat(w.at[(4 * at + 1) * d + i]),
                    uintBitsToFloat(w.at[(4 * at + 2) * d + i]),
                    uintBitsToFloat(w.at[(4 * at + 3) * d + i]));
    }
    if (format == F16) {
        return vec4(half_at(tile, (4 * at) * d + i), half_at(tile, (4 * at + 1) * d + i),
                    half_at(tile, (4 * at + 2) * d + i), half_at(tile, (4 * at + 3) * d + i));
    }
    if (format == BF16) {
        const uint a = w.at[(2 * at) * d + i];
        const uint b = w.at[(2 * at + 1) * d + i];

        return vec4(bf16_of(a & 0xffff), bf16_of(a >> 16), bf16_of(b & 0xffff), bf16_of(b >> 16));
    }
    if (format == Q8) {
        return signed_bytes(w.at[TILE / 2 + at * d + i]);
    }
    const uint lb = low_bits(format);
    const uint hb = high_bits(format);
    const uint low = TILE / 2;
    const uint high = low + 2 * lb * d;

    return levels_of(codes_of(format, w.at[low + at / (8 / lb) * d + i],
                              hb == 0 ? 0 : w.at[high + at / (8 / max(hb, 1)) * d + i], at));
}

bool has_scale(uint format)
{
    return format >= Q8;
}

// The scales of tokens 4 * at ..; ones where the format has none.
vec4 scale4(uint format, uint64_t tile, uint at)
{
    if (!has_scale(format)) {
        return vec4(1.0);
    }
    return vec4(unpackHalf2x16(Words(tile).at[2 * at]), unpackHalf2x16(Words(tile).at[2 * at + 1]));
}

float scale_of(uint format, uint64_t tile, uint slot)
{
    return has_scale(format) ? half_at(tile, slot) : 1.0;
}

// The mean of dimensions 4 * at .. of a sealed K tile.
vec4 mean4(uint64_t tile, uint at)
{
    return vec4(unpackHalf2x16(Words(tile).at[TILE / 2 + 2 * at]),
                unpackHalf2x16(Words(tile).at[TILE / 2 + 2 * at + 1]));
}
