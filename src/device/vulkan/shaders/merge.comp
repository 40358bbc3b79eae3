// merge.comp - the partials of a row and head to its output, in ascending order of splits, 64 at a
// time.
//
// Workgroup (x, y): row push.first_row + x, head y. A sink joins the sum of weights, the sum is
// divided by, V is rotated back, gates are applied, sources are added. m and that sum are the row's
// sums, where they are wanted.
//
// SPDX-License-Identifier: MIT
#version 460
#extension GL_GOOGLE_include_directive : require
#include "params.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint N_V = 1;

const uint AT_ONCE = 16; // loads that do not wait for each other

shared float o[1024];
shared float weight[64]; // of the splits at hand
shared float part[64];   // their sums of weights, rescaled

void rotate(uint t, uint n, uint block)
{
    for (uint half_block = 1; half_block < block; half_block *= 2) {
        barrier();
        for (uint i = t; i < n / 2; i += 64) {
            const uint a = i / half_block * 2 * half_block + i % half_block;
            const float x = o[a];
            const float y = o[a + half_block];

            o[a] = x + y;
            o[a + half_block] = x - y;
        }
    }
    barrier();
}

// The greatest of all x.
float greatest(uint t, float x)
{
    weight[t] = x;
    barrier();
    for (uint n = 32; n > 0; n /= 2) {
        if (t < n) {
            weight[t] = max(weight[t], weight[t + n]);
        }
        barrier();
    }
    return weight[0];
}

// Two dimensions of n splits, from `at` on, added to a sum.
vec2 splits_add(vec2 sum, Floats from, uint at, uint size, uint n)
{
    precise vec2 y = sum;
    uint s = 0;

    for (; s + AT_ONCE <= n; s += AT_ONCE) {
        vec2 x[AT_ONCE];

        for (uint i = 0; i < AT_ONCE; i++) {
            x[i] = vec2(from.at[at + (s + i) * size], from.at[at + (s + i) * size + 1]);
        }
        for (uint i = 0; i < AT_ONCE; i++) {
            y = fma(x[i], vec2(weight[s + i]), y);
        }
    }
    for (; s < n; s++) {
        y = fma(vec2(from.at[at + s * size], from.at[at + s * size + 1]), vec2(weight[s]), y);
    }
    return y;
}

void main()
{
    const uint t = gl_LocalInvocationID.x;
    Params p = Params(push.params);
    const Row row = Rows(p.rows).at[push.first_row + gl_WorkGroupID.x];
    const uint h = gl_WorkGroupID.y;
    const uint g = h / (p.n_head / p.n_kv_head);
    const uint n_splits =
        (Seqs(p.seqs).at[row.seq].n_entries + p.split_entries - 1) / p.split_entries;
    const uint size = 2 + N_V * p.d_v;
    Floats from =
        Floats(push.partials +
               (uint64_t(gl_WorkGroupID.x) * p.n_head + h) * push.n_splits_max * size * 4);
    Floats to = Floats(p.result + uint64_t(4) * ((row.index * p.n_head + h) * p.d_v));
    const float sink = p.sinks != 0 ? Floats(p.sinks).at[h] : -INFINITY;
    float m = sink;
    float l;

    for (uint s = t; s < n_splits; s += 64) {
        m = max(m, from.at[s * size]);
    }
    m = greatest(t, m);
    l = sink == -INFINITY ? 0.0 : exp(sink - m);
    for (uint i = 0; i < N_V; i++) {
        const uint block = p.is_prefix != 0 ? p.k[0].rotate : p.v[i].rotate;
        const float factor = block > 1 ? 1.0 / sqrt(float(block)) : 1.0;

        for (uint first = 0; first < n_splits; first += 64) {
            const uint n = min(64, n_splits - first);

            barrier();
            if (t < n) {
                const float ms = from.at[(first + t) * size];

                weight[t] = ms == -INFINITY ? 0.0 : exp(ms - m);
                part[t] = from.at[(first + t) * size + 1] * weight[t];
            }
            barrier();
            for (uint s = 0; s < n && i == 0; s++) {
                l += part[s];
            }
            for (uint j = 2 * t; j < p.d_v; j += 128) { // d_v is even
                const vec2 sum = first == 0 ? vec2(0.0) : vec2(o[j], o[j + 1]);
                const vec2 y =
                    splits_add(sum, from, first * size + 2 + i * p.d_v + j, size, n);

                o[j] = y.x;
                o[j + 1] = y.y;
            }
        }
        for (uint j = 2 * t; j < p.d_v; j += 128) {
            o[j] /= l;
            o[j + 1] /= l;
        }
        rotate(t, p.d_v, block);
        for (uint j = t; j < p.d_v; j += 64) {
            const float gate = p.gate[i] != 0 ? Floats(p.gate[i]).at[g * p.d_v + j] : 1.0;
            const float x = o[j] * factor * gate;

            to.at[j] = i == 0 ? x : to.at[j] + x;
        }
        barrier();
    }
    if (t == 0 && p.sums != 0) {
        Floats sums = Floats(p.sums + uint64_t(8) * (row.index * p.n_head + h));

        sums.at[0] = m;
        sums.at[1] = l;
    }
}
