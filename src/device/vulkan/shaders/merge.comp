// merge.comp - the partials of a row and head to its output, in ascending order of splits.
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

shared float o[1024];

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

    for (uint s = 0; s < n_splits; s++) {
        m = max(m, from.at[s * size]);
    }
    l = sink == -INFINITY ? 0.0 : exp(sink - m);
    for (uint s = 0; s < n_splits; s++) {
        const float ms = from.at[s * size];

        l += from.at[s * size + 1] * (ms == -INFINITY ? 0.0 : exp(ms - m));
    }
    if (t == 0 && p.sums != 0) {
        Floats sums = Floats(p.sums + uint64_t(8) * (row.index * p.n_head + h));

        sums.at[0] = m;
        sums.at[1] = l;
    }
    for (uint i = 0; i < N_V; i++) {
        const uint block = p.is_prefix != 0 ? p.k[0].rotate : p.v[i].rotate;
        const float factor = block > 1 ? 1.0 / sqrt(float(block)) : 1.0;

        for (uint j = t; j < p.d_v; j += 64) {
            float sum = 0.0;

            for (uint s = 0; s < n_splits; s++) {
                const float ms = from.at[s * size];

                sum +=
                    from.at[s * size + 2 + i * p.d_v + j] * (ms == -INFINITY ? 0.0 : exp(ms - m));
            }
            o[j] = sum / l;
        }
        rotate(t, p.d_v, block);
        for (uint j = t; j < p.d_v; j += 64) {
            const float gate = p.gate[i] != 0 ? Floats(p.gate[i]).at[g * p.d_v + j] : 1.0;
            const float x = o[j] * factor * gate;

            to.at[j] = i == 0 ? x : to.at[j] + x;
        }
        barrier();
    }
}
