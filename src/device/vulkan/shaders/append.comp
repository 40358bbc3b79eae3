// append.comp - K or V of new rows into their slots of a tile.
//
// Workgroup (x, y): segment x (rows of one tile), kv head y. Rows are stored one after the other:
// rotated, then written four neighbouring dimensions at a time, each by the same invocation for all
// rows, because words of a tile hold several tokens. A sealed side is written hot. Values are
// rounded to nearest; K in 8 bit with the token's queries in view, where the layer has them
// (src/codec/q8_rounding_body.h has the rule).
//
// SPDX-License-Identifier: MIT
#version 460
#extension GL_GOOGLE_include_directive : require
#include "params.glsl"
#include "numbers.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint SIDE = 0; // 1: V
layout(constant_id = 1) const uint FORMAT = 0;
layout(constant_id = 2) const uint PAIRS = 0; // 1: K in 8 bit minds queries

const uint MOVES_MAX = 4;
const float GAIN_MIN = -9.5367431640625e-7; // -2^-20: a smaller gain is no gain

shared float x[1024];
shared float largest[64];
shared float u[1024]; // the sum of the queries of the token and the head, scaled to mean square 1
shared float e[1024]; // codes minus values
shared uint place[64];

uint t;

void rotate(uint d, uint block)
{
    for (uint half_block = 1; half_block < block; half_block *= 2) {
        barrier();
        for (uint i = t; i < d / 2; i += 64) {
            const uint a = i / half_block * 2 * half_block + i % half_block;
            const float left = x[a];
            const float right = x[a + half_block];

            x[a] = left + right;
            x[a + half_block] = left - right;
        }
    }
    barrier();
    if (block > 1) {
        const float factor = 1.0 / sqrt(float(block));

        for (uint i = t; i < d; i += 64) {
            x[i] *= factor;
        }
        barrier();
    }
}

void half_put(Words w, uint i, uint bits)
{
    const uint old = w.at[i / 2];

    w.at[i / 2] = (i & 1) == 0 ? old & 0xffff0000u | bits : old & 0xffffu | bits << 16;
}

// The row's largest magnitude for all invocations: infinity where the row has NaN or infinity.
float largest_of(uint d)
{
    float m = 0.0;

    for (uint i = t; i < d; i += 64) {
        m = is_finite(x[i]) ? max(m, abs(x[i])) : INFINITY;
        if (m == INFINITY) {
            break;
        }
    }
    largest[t] = m;
    barrier();
    for (uint n = 32; n > 0; n /= 2) {
        if (t < n) {
            largest[t] = max(largest[t], largest[t + n]);
        }
        barrier();
    }
    m = largest[0];
    barrier();
    return m;
}

// The sum over the invocations.
float sum_of(float part)
{
    largest[t] = part;
    barrier();
    for (uint n = 32; n > 0; n /= 2) {
        if (t < n) {
            largest[t] += largest[t + n];
        }
        barrier();
    }
    part = largest[0];
    barrier();
    return part;
}

// The queries of a row and a head of K into u; false where they give no direction.
bool queries_take(Params p, uint row, uint g, uint d)
{
    const uint heads = p.n_head / p.n_kv_head;
    Floats q = Floats(p.q[0]);
    float squares = 0.0;

    for (uint i = t; i < d; i += 64) {
        float sum = 0.0;

        for (uint h = 0; h < heads; h++) {
            sum += q.at[(row * p.n_head + g * heads + h) * d + i];
        }
        x[i] = sum;
    }
    rotate(d, p.k_store.rotate);
    for (uint i = t; i < d; i += 64) {
        squares += x[i] * x[i];
    }
    squares = sum_of(squares) / float(d);
    if (!(squares >= 7.888609e-31 && squares <= 1.2676506e30)) { // 2^-100, 2^100; NaN is neither
        return false;
    }
    for (uint i = t; i < d; i += 64) {
        u[i] = x[i] / sqrt(squares);
    }
    barrier();
    return true;
}

// The gain of the best move, whose code is place[0]. A move takes e towards 0 and past it; exact
// codes do not move. Of equal gains the lowest place counts.
float move_find(uint d, float e_u)
{
    float best = 0.0;
    uint at = 0;

    for (uint i = t; i < d; i += 64) {
        const float along = e[i] < 0.0 ? u[i] : -u[i];
        const float gain = 1.0 - 2.0 * abs(e[i]) + u[i] * u[i] + 2.0 * e_u * along;

        if (e[i] != 0.0 && gain < best) {
            best = gain;
            at = i;
        }
    }
    largest[t] = best;
    place[t] = at;
    barrier();
    for (uint n = 32; n > 0; n /= 2) {
        if (t < n && (largest[t + n] < largest[t] ||
                      largest[t + n] == largest[t] && place[t + n] < place[t])) {
            largest[t] = largest[t + n];
            place[t] = place[t + n];
        }
        barrier();
    }
    best = largest[0];
    return best;
}

// Codes of a row of K into x, in place of its values.
void codes_pair(uint d, float inverse)
{
    float part = 0.0;

    for (uint i = t; i < d; i += 64) {
        const float y = clamp(x[i] * inverse, -127.0, 127.0);

        x[i] = roundEven(y);
        e[i] = x[i] - y;
        part += e[i] * u[i];
    }
    float e_u = sum_of(part);

    for (uint n = 0; n < MOVES_MAX; n++) {
        const float gain = move_find(d, e_u);
        const uint i = place[0];

        if (gain >= GAIN_MIN) {
            break;
        }
        const float by = e[i] < 0.0 ? 1.0 : -1.0;

        e_u += by * u[i];
        barrier(); // all have read e[i] and the place
        if (t == 0) {
            x[i] += by;
            e[i] += by;
        }
        barrier();
    }
    barrier();
}

void store_q8(Words w, uint d, uint slot, bool pairs)
{
    const float m = largest_of(d);
    uint scale = 0;
    float inverse = 0.0;

    if (m == INFINITY) {
        scale = 0x7e00u;
    } else if (m > 0.0) {
        // Divided by as much less as a device may be off, so that no code exceeds 127.
        scale = f16_of(m / 127.0 * (1.0 + 1e-6), true);
        inverse = 1.0 / unpackHalf2x16(scale).x;
    }
    if (t == 0) {
        half_put(w, slot, scale);
    }
    if (pairs && inverse != 0.0) {
        codes_pair(d, inverse);
        inverse = 1.0;
    }
    for (uint at = t; at < d / 4; at += 64) {
        ivec4 code;

        for (uint j = 0; j < 4; j++) {
            code[j] =
                inverse == 0.0 ? 0 : int(clamp(roundEven(x[4 * at + j] * inverse), -127, 127));
        }
        if (SIDE == 0) {
            const uvec4 u = uvec4(code + 128);

            w.at[TILE / 2 + at * TILE + slot] = u.x | u.y << 8 | u.z << 16 | u.w << 24;
        } else {
            for (uint j = 0; j < 4; j++) {
                const uint word = TILE / 2 + slot / 4 * d + 4 * at + j;

                w.at[word] = bitfieldInsert(w.at[word], uint(code[j]), int(slot % 4) * 8, 8);
            }
        }
    }
}

// Dimensions 4 * at .. of a format of floats.
void store_floats(Words w, uint d, uint slot, uint at)
{
    for (uint j = 0; j < 4; j++) {
        const uint i = 4 * at + j;
        const uint index = SIDE == 0 ? i * TILE + slot : slot * d + i;

        if (FORMAT == F32) {
            w.at[index] = floatBitsToUint(x[i]);
        } else if (FORMAT == F16) {
            half_put(w, index, f16_of(x[i], false));
        } else if (SIDE == 0) {
            half_put(w, (i / 2 * TILE + slot) * 2 + i % 2, bf16_bits(x[i]));
        } else {
            half_put(w, (slot / 2 * d + i) * 2 + slot % 2, bf16_bits(x[i]));
        }
    }
}

void main()
{
    t = gl_LocalInvocationID.x;
    Params p = Params(push.params);
    const uint g = gl_WorkGroupID.y;
    const uint d = SIDE == 0 ? p.d_k : p.d_v;
    const Segment segment = Segments(push.segments).at[gl_WorkGroupID.x];
    Floats rows = Floats(SIDE == 0 ? p.k_new : p.v_new);
    Source store = p.k_store;

    if (SIDE == 1) {
        store = p.v_store;
    }
    const uint group = is_sealed(FORMAT) ? store.hot_group : store.group;
    const uint table = Seqs(p.seqs).at[segment.seq].first_entry[group];
    const Entry entry = Entries(p.entries).at[table + segment.entry];
    Lane lane = store.lane;

    if (is_sealed(FORMAT)) {
        lane = store.hot_lane;
    }
    Words w = Words(tile_of(lane, entry, g, segment.tile));

    for (uint r = 0; r < segment.n_tokens; r++) {
        barrier(); // the row before is stored
        bool pairs = false;

        if (PAIRS == 1) {
            pairs = queries_take(p, segment.first_row + r, g, d);
            barrier();
        }
        for (uint i = t; i < d; i += 64) {
            x[i] = rows.at[((segment.first_row + r) * p.n_kv_head + g) * d + i];
        }
        rotate(d, store.rotate);
        if (FORMAT >= Q8) {
            store_q8(w, d, segment.first_slot + r, pairs);
        } else {
            for (uint at = t; at < d / 4; at += 64) {
                store_floats(w, d, segment.first_slot + r, at);
            }
        }
    }
}
