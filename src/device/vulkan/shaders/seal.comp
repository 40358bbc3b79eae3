// seal.comp - full hot tiles into their sealed form: src/codec/sealed_body.h has the steps.
//
// Workgroup (x, y): segment x, kv head y. Segments that do not fill their tile are passed over.
// Invocation t codes token t, and packs its slot of K's planes; V's planes are packed by dimension,
// from each token's factor.
//
// SPDX-License-Identifier: MIT
#version 460
#extension GL_GOOGLE_include_directive : require
#include "params.glsl"
#include "numbers.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint SIDE = 0; // 1: V
layout(constant_id = 1) const uint FORMAT = 4;

const float ROW_MAX = 4194304.0; // 2^22

shared float mean[1024]; // of K
shared float scale_hot[64];
shared float to_levels[64]; // 127 / the row's largest magnitude
shared float factor[64];    // 0: the row has the smallest positive level throughout
shared uint scale[64];      // f16
shared uint cell[256];

uint t;
uint d;
Words hot;

// Dimension i of a token in the hot tile, before the mean is subtracted.
float stored(uint token, uint i)
{
    if (SIDE == 0) {
        const uint word = hot.at[TILE / 2 + i / 4 * TILE + token];

        return (float(bitfieldExtract(word, int(i % 4) * 8, 8)) - 128.0) * scale_hot[token];
    }
    const uint word = hot.at[TILE / 2 + token / 4 * d + i];

    return float(bitfieldExtract(int(word), int(token % 4) * 8, 8)) * scale_hot[token];
}

float centred(uint token, uint i)
{
    const float y = stored(token, i) - (SIDE == 0 ? mean[i] : 0.0);

    return clamp(y, -ROW_MAX, ROW_MAX);
}

uint cell_of(float y, float f)
{
    return cell[uint(min(abs(y * 2.0 * f), 255.0))];
}

void mean_take(Words to)
{
    uint n = 0;

    for (uint token = 0; token < TILE; token++) {
        n += uint(is_finite(scale_hot[token]));
    }
    for (uint i = t; i < (d + 31) / 32 * 32; i += 64) {
        float sum = 0.0;

        for (uint token = 0; i < d && token < TILE; token++) {
            if (is_finite(scale_hot[token])) {
                sum += clamp(stored(token, i), -65504.0, 65504.0);
            }
        }
        mean[i] = n > 0 ? sum / float(n) : 0.0;
    }
    barrier();
    for (uint i = t; i < (d + 31) / 32 * 16; i += 64) {
        const uint a = f16_of(mean[2 * i], false);
        const uint b = f16_of(mean[2 * i + 1], false);

        to.at[TILE / 2 + i] = a | b << 16;
        mean[2 * i] = unpackHalf2x16(a).x;
        mean[2 * i + 1] = unpackHalf2x16(b).x;
    }
    barrier();
}

// The scale and the factor of token t.
void row_fit(LevelTables tables)
{
    const uint at = FORMAT - Q6;
    float largest = 0.0;
    float best = -1.0;
    float yy = 0.0;
    float ll = 0.0;

    factor[t] = 0.0;
    scale[t] = 0;
    if (!is_finite(scale_hot[t])) {
        scale[t] = 0x7e00u;
        return;
    }
    for (uint i = 0; i < d; i++) {
        largest = max(largest, abs(centred(t, i)));
    }
    if (largest < 7.888609e-31) { // 2^-100
        return;
    }
    to_levels[t] = 127.0 / largest;
    for (uint s = 0; s < tables.at[at].n_starts; s++) {
        const float start = tables.at[at].start[s];
        float products = 0.0;
        float squares = 0.0;

        for (uint i = 0; i < d; i++) {
            const float y = centred(t, i) * to_levels[t];
            const float level = float(cell_of(y, start) >> 8);

            products += abs(y) * level;
            squares += level * level;
        }
        if (products * products / squares > best) {
            best = products * products / squares;
            factor[t] = squares / products;
        }
    }
    for (uint i = 0; i < d; i++) {
        const float y = centred(t, i) * to_levels[t];
        const float level = float(cell_of(y, factor[t]) >> 8);

        yy += y * y;
        ll += level * level;
    }
    scale[t] = f16_of(sqrt(yy / ll) * (largest / 127.0), false);
    if (scale[t] == 0) {
        factor[t] = 0.0;
    }
}

uint code_of(uint token, uint i, uint n_levels)
{
    if (i >= d) {
        return 0;
    }
    if (factor[token] == 0.0) {
        return n_levels / 2;
    }
    const float y = centred(token, i) * to_levels[token];
    const uint code = cell_of(y, factor[token]) & 255;

    return y < 0.0 ? n_levels - 1 - code : code;
}

// Slot t of a K plane.
void k_plane(Words to, uint at, uint bits, uint shift, uint n_levels)
{
    for (uint u = 0; u < (d * bits + 31) / 32; u++) {
        uint word = 0;

        for (uint m = 0; m < 8 / bits; m++) {
            for (uint j = 0; j < 4; j++) {
                const uint code = code_of(t, 32 / bits * u + 4 * m + j, n_levels);

                word |= (code >> shift & (1u << bits) - 1) << 8 * j + bits * m;
            }
        }
        to.at[at + u * TILE + t] = word;
    }
}

void v_plane(Words to, uint at, uint bits, uint shift, uint n_levels)
{
    for (uint u = 0; u < 2 * bits; u++) {
        for (uint i = t; i < d; i += 64) {
            uint word = 0;

            for (uint m = 0; m < 8 / bits; m++) {
                for (uint j = 0; j < 4; j++) {
                    const uint code = code_of(32 / bits * u + 4 * m + j, i, n_levels);

                    word |= (code >> shift & (1u << bits) - 1) << 8 * j + bits * m;
                }
            }
            to.at[at + u * d + i] = word;
        }
    }
}

void main()
{
    t = gl_LocalInvocationID.x;
    Params p = Params(push.params);
    const Segment segment = Segments(push.segments).at[gl_WorkGroupID.x];
    LevelTables tables = LevelTables(p.tables);
    const uint n_levels = tables.at[FORMAT - Q6].n_levels;
    const uint lb = low_bits(FORMAT);
    const uint hb = high_bits(FORMAT);
    Source store = p.k_store;

    if (segment.first_slot + segment.n_tokens != TILE) {
        return;
    }
    if (SIDE == 1) {
        store = p.v_store;
    }
    d = SIDE == 0 ? p.d_k : p.d_v;
    const Seq seq = Seqs(p.seqs).at[segment.seq];
    const Entry from = Entries(p.entries).at[seq.first_entry[store.hot_group] + segment.entry];
    const Entry into = Entries(p.entries).at[seq.first_entry[store.group] + segment.entry];

    hot = Words(tile_of(store.hot_lane, from, gl_WorkGroupID.y, segment.tile));
    Words to = Words(tile_of(store.lane, into, gl_WorkGroupID.y, segment.tile));

    scale_hot[t] = half_at(uint64_t(hot), t);
    for (uint i = t; i < 256; i += 64) {
        cell[i] = tables.at[FORMAT - Q6].cell[i];
    }
    barrier();
    if (SIDE == 0) {
        mean_take(to);
    }
    row_fit(tables);
    barrier();
    if (t < TILE / 2) {
        to.at[t] = scale[2 * t] | scale[2 * t + 1] << 16;
    }
    if (SIDE == 0) {
        const uint low = (TILE * 2 + (d * 2 + 63) / 64 * 64) / 4;

        k_plane(to, low, lb, 0, n_levels);
        if (hb != 0) {
            k_plane(to, low + (d * lb + 31) / 32 * TILE, max(hb, 1), lb, n_levels);
        }
    } else {
        v_plane(to, TILE / 2, lb, 0, n_levels);
        if (hb != 0) {
            v_plane(to, TILE / 2 + 2 * lb * d, max(hb, 1), lb, n_levels);
        }
    }
}
