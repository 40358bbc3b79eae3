// attn.comp - attention of one row over one split of its table: one partial (m, l, o) per head.
//
// Workgroup (x, y, z): row push.first_row + x, heads of one kv head (up to HEADS of them, y counts
// kv heads and parts of their groups), split z. Tiles are visited in table order, and all sums of a
// head run in an order that depends on the tile alone. Products are in f32 for all formats.
//
// Invocation t has slot t of a tile in q . K, and dimensions t, t + 64, ... in P . V.
//
// SPDX-License-Identifier: MIT
#version 460
#extension GL_GOOGLE_include_directive : require
#include "tiles.glsl"

layout(local_size_x = 64) in;

layout(constant_id = 0) const uint HEADS = 1; // of a workgroup
layout(constant_id = 1) const uint N_K = 1;
layout(constant_id = 2) const uint N_V = 1;

// q [N_K][HEADS][d_k], o [N_V][HEADS][d_v], s [HEADS][64], m, l, rescale [HEADS].
shared float mem[7680];
shared uint seen[2]; // slots of the tile that the row sees

uint t;
Params p;
uint n_heads; // of this workgroup; the last part of a group may have fewer
uint at_o, at_s, at_m, at_l, at_r;

// In blocks, as the definition: butterflies, then a factor.
void rotate(uint at, uint n, uint block)
{
    for (uint half_block = 1; half_block < block; half_block *= 2) {
        barrier();
        for (uint i = t; i < n / 2; i += 64) {
            const uint a = at + i / half_block * 2 * half_block + i % half_block;
            const float x = mem[a];
            const float y = mem[a + half_block];

            mem[a] = x + y;
            mem[a + half_block] = x - y;
        }
    }
    barrier();
    if (block > 1) {
        const float factor = 1.0 / sqrt(float(block));

        for (uint i = t; i < n; i += 64) {
            mem[at + i] *= factor;
        }
        barrier();
    }
}

float tanh_of(float x)
{
    const float a = abs(x);
    const float xx = x * x;

    if (a < 0.3) {
        return x * (1.0 + xx * (-1.0 / 3.0 + xx * (2.0 / 15.0 + xx * (-17.0 / 315.0 +
                                                                      xx * (62.0 / 2835.0)))));
    }
    return sign(x) * (1.0 - 2.0 / (exp(min(2.0 * a, 80.0)) + 1.0)) + 0.0 * x; // NaN stays
}

// The levels of a sealed format for all invocations.
void levels_take(uint format)
{
    barrier();
    level_of[t] = LevelTables(p.tables).at[format - Q6].level[t];
    barrier();
}

// One form of one K source: add to the logits of slot t.
void logits_add(uint source, uint format, uint64_t tile, inout float sum[HEADS])
{
    const uint d = p.d_k;
    float products[HEADS];
    float means[HEADS];

    if (is_sealed(format)) {
        levels_take(format);
    }
    if (t < seen[0] || t >= seen[1]) {
        return;
    }
    for (uint h = 0; h < HEADS; h++) {
        products[h] = means[h] = 0.0;
    }
    for (uint at = 0; at < d / 4; at++) {
        const vec4 k = k4(format, tile, d, at, t);
        const vec4 mean = is_sealed(format) ? mean4(tile, at) : vec4(0.0);

        for (uint h = 0; h < HEADS; h++) {
            const uint q = (source * HEADS + h) * d + 4 * at;
            const vec4 x = vec4(mem[q], mem[q + 1], mem[q + 2], mem[q + 3]);

            products[h] += dot(x, k);
            if (is_sealed(format)) {
                means[h] += dot(x, mean);
            }
        }
    }
    const float scale = scale_of(format, tile, t);

    for (uint h = 0; h < HEADS; h++) {
        sum[h] += products[h] * scale + means[h];
    }
}

// The four weights of a head at tokens 4 * at ..
vec4 weights4(uint h, uint at)
{
    const uint s = at_s + h * TILE + 4 * at;

    return vec4(mem[s], mem[s + 1], mem[s + 2], mem[s + 3]);
}

bvec4 seen4(uint at)
{
    const uvec4 slot = uvec4(4 * at) + uvec4(0, 1, 2, 3);

    return bvec4(uvec4(greaterThanEqual(slot, uvec4(seen[0]))) *
                 uvec4(lessThan(slot, uvec4(seen[1]))));
}

// Tokens 4 * at .. of dimension i, of a V that is the beginning of K.
vec4 prefix4(uint format, uint64_t tile, uint at, uint i)
{
    const vec4 scale = scale4(format, tile, at);
    const float mean = is_sealed(format) ? mean4(tile, i / 4)[i % 4] : 0.0;
    vec4 v;

    for (uint j = 0; j < 4; j++) {
        v[j] = k4(format, tile, p.d_k, i / 4, 4 * at + j)[i % 4];
    }
    return v * scale + mean;
}

// One form of one V source: o = o * rescale + P . V.
void output_add(uint source, uint format, uint64_t tile)
{
    const uint d = p.d_v;

    if (is_sealed(format)) {
        levels_take(format);
    }
    for (uint i = t; i < d; i += 64) {
        float sum[HEADS];

        for (uint h = 0; h < HEADS; h++) {
            sum[h] = 0.0;
        }
        for (uint at = seen[0] / 4; at < (seen[1] + 3) / 4; at++) {
            vec4 v = p.is_prefix != 0 ? prefix4(format, tile, at, i)
                                      : v4(format, tile, d, at, i) * scale4(format, tile, at);

            v = mix(vec4(0.0), v, seen4(at)); // what is not seen may be NaN
            for (uint h = 0; h < HEADS; h++) {
                sum[h] += dot(weights4(h, at), v);
            }
        }
        for (uint h = 0; h < HEADS; h++) {
            const uint o = at_o + (source * HEADS + h) * d + i;

            mem[o] = mem[o] * mem[at_r + h] + sum[h];
        }
    }
}

// Logits to weights, and what came before to the new maximum.
void softmax()
{
    if (t < HEADS) {
        float m = mem[at_m + t];

        for (uint i = seen[0]; i < seen[1]; i++) {
            m = max(m, mem[at_s + t * TILE + i]);
        }
        mem[at_r + t] = m == -INFINITY ? 1.0 : exp(mem[at_m + t] - m);
        mem[at_m + t] = m;
    }
    barrier();
    for (uint h = 0; h < HEADS; h++) {
        const float s = mem[at_s + h * TILE + t];
        const bool is_seen = t >= seen[0] && t < seen[1] && s != -INFINITY;

        mem[at_s + h * TILE + t] = is_seen ? exp(s - mem[at_m + h]) : 0.0;
    }
    barrier();
    if (t < HEADS) {
        float sum = 0.0;

        for (uint i = seen[0]; i < seen[1]; i++) {
            sum += mem[at_s + t * TILE + i];
        }
        mem[at_l + t] = mem[at_l + t] * mem[at_r + t] + sum;
    }
}

// Which slots [0], [1] - 1 of a tile the row sees.
uvec2 slots_seen(Entry entry, uint tile, uint row, uint begin)
{
    const uint first = max(entry.first_slot, tile * TILE);
    const uint end = min(entry.first_slot + entry.n_tokens, (tile + 1) * TILE);
    const uint before = first - entry.first_slot;
    uvec2 s = uvec2(first, end);

    if (entry.positions == 0) {
        const uint pos = entry.first_pos + before;

        s.x = first + (begin > pos ? min(begin - pos, end - first) : 0);
        s.y = row < pos ? first : min(end, first + (row - pos + 1));
    } else {
        Words list = Words(p.positions + uint64_t(4) * (entry.positions + before));
        uint n = end - first;
        uint i = 0;

        while (i < n && list.at[i] < begin) {
            i++;
        }
        while (n > i && list.at[n - 1] > row) {
            n--;
        }
        s = uvec2(first + i, first + n);
    }
    return s - uvec2(tile * TILE);
}

uint position_of(Entry entry, uint tile)
{
    const uint before = max(entry.first_slot, tile * TILE) - entry.first_slot;

    return entry.positions == 0
               ? entry.first_pos + before
               : Words(p.positions + uint64_t(4) * (entry.positions + before)).at[0];
}

// The form in which the row reads a source's tile: the format, and the tile's address.
uint form_of(Source source, Seq seq, uint e, uint g, uint tile, bool is_near, out uint64_t address)
{
    Entries entries = Entries(p.entries);

    if (is_sealed(source.format) && is_near) {
        const Entry hot = entries.at[seq.first_entry[source.hot_group] + e];

        if (hot.extent != 0) {
            address = tile_of(source.hot_lane, hot, g, tile);
            return HOT;
        }
    }
    address = tile_of(source.lane, entries.at[seq.first_entry[source.group] + e], g, tile);
    return source.format;
}

void visit(Seq seq, uint e, uint g, uint tile, uint row, uint first)
{
    const bool is_near = row / TILE - first / TILE <= p.recent_tiles || first / TILE < p.sink_tiles;
    float sum[HEADS];
    uint64_t address;

    for (uint h = 0; h < HEADS; h++) {
        sum[h] = 0.0;
    }
    for (uint i = 0; i < N_K; i++) {
        const uint format = form_of(p.k[i], seq, e, g, tile, is_near, address);

        logits_add(i, format, address, sum);
    }
    for (uint h = 0; h < HEADS; h++) {
        const float y = sum[h] * p.scale;

        mem[at_s + h * TILE + t] = p.softcap == 0.0 ? y : p.softcap * tanh_of(y / p.softcap);
    }
    barrier();
    softmax();
    for (uint i = 0; i < N_V; i++) {
        Source source = p.v[i];

        if (p.is_prefix != 0) {
            source = p.k[0];
        }
        const uint format = form_of(source, seq, e, g, tile, is_near, address);

        output_add(i, format, address);
    }
    barrier();
}

// The row's queries, zeros where the group has no more heads.
void queries_take(uint row, uint first_head)
{
    for (uint i = 0; i < N_K; i++) {
        Floats q = Floats(p.q[i]);

        for (uint j = t; j < HEADS * p.d_k; j += 64) {
            const uint from = (row * p.n_head + first_head) * p.d_k + j;

            mem[i * HEADS * p.d_k + j] = j < n_heads * p.d_k ? q.at[from] : 0.0;
        }
        rotate(i * HEADS * p.d_k, HEADS * p.d_k, p.k[i].rotate);
    }
}

void partial_give(uint x, uint first_head)
{
    const uint size = 2 + N_V * p.d_v;

    for (uint h = 0; h < n_heads; h++) {
        const uint64_t index =
            (uint64_t(x) * p.n_head + first_head + h) * push.n_splits_max + gl_WorkGroupID.z;
        Floats to = Floats(push.partials + index * size * 4);

        if (t == 0) {
            to.at[0] = mem[at_m + h];
            to.at[1] = mem[at_l + h];
        }
        for (uint i = 0; i < N_V; i++) {
            for (uint j = t; j < p.d_v; j += 64) {
                to.at[2 + i * p.d_v + j] = mem[at_o + (i * HEADS + h) * p.d_v + j];
            }
        }
    }
}

void main()
{
    t = gl_LocalInvocationID.x;
    p = Params(push.params);
    const Row row = Rows(p.rows).at[push.first_row + gl_WorkGroupID.x];
    const Seq seq = Seqs(p.seqs).at[row.seq];
    const uint group = p.n_head / p.n_kv_head;
    const uint n_parts = (group + HEADS - 1) / HEADS;
    const uint g = gl_WorkGroupID.y / n_parts;
    const uint part = gl_WorkGroupID.y % n_parts;
    const uint table = seq.first_entry[p.k[0].group];
    const uint e_begin = gl_WorkGroupID.z * p.split_entries;
    const uint e_end = min(e_begin + p.split_entries, seq.n_entries);
    uint begin = 0; // the first position that the row sees

    if (e_begin >= seq.n_entries) {
        return;
    }
    n_heads = min(HEADS, group - part * HEADS);
    at_o = N_K * HEADS * p.d_k;
    at_s = at_o + N_V * HEADS * p.d_v;
    at_m = at_s + HEADS * TILE;
    at_l = at_m + HEADS;
    at_r = at_l + HEADS;
    queries_take(row.index, g * group + part * HEADS);
    for (uint i = at_o + t; i < at_s; i += 64) {
        mem[i] = 0.0;
    }
    if (t < HEADS) {
        mem[at_m + t] = -INFINITY;
        mem[at_l + t] = 0.0;
    }
    if (p.has_chunks != 0) {
        begin = row.pos - row.pos % p.window;
    } else if (p.window != 0 && row.pos >= p.window) {
        begin = row.pos - p.window + 1;
    }
    for (uint e = e_begin; e < e_end; e++) {
        const Entry entry = Entries(p.entries).at[table + e];
        const uint end = (entry.first_slot + entry.n_tokens + TILE - 1) / TILE;

        if (entry.first_pos > row.pos) {
            break;
        }
        for (uint tile = entry.first_slot / TILE; tile < end; tile++) {
            const uvec2 s = slots_seen(entry, tile, row.pos, begin);

            if (s.x < s.y) {
                if (t == 0) {
                    seen[0] = s.x;
                    seen[1] = s.y;
                }
                barrier();
                visit(seq, e, g, tile, row.pos, position_of(entry, tile));
            }
        }
    }
    barrier();
    partial_give(gl_WorkGroupID.x, g * group + part * HEADS);
}
