// attn.comp - attention of rows over one split of a table: one partial (m, l, o) per row and head.
//
// Workgroup (x, y, z): heads of one kv head (up to HEADS of them, y counts kv heads and parts of
// their groups), split z. With ROWS 1 it has row push.first_row + x. Else it has up to ROWS rows of
// a cascade, which see all tokens of the same pages: each tile is read once for them, unless rows
// read it in different forms. A lane is a head of a row.
//
// Tiles are visited in table order, and all sums of a lane run in an order that depends on the tile
// alone. Products are in f32 for all formats. Rounded results are `precise`, so that a lane's bits
// are the same with any ROWS.
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
layout(constant_id = 3) const uint ROWS = 1; // of a workgroup
layout(constant_id = 4) const uint FLOATS = 7680; // of `mem`: as many as the layer's shape needs
const uint LANES = HEADS * ROWS;

// q [N_K][LANES][d_k], o [N_V][LANES][d_v], s [LANES][64], m, l, rescale [LANES].
shared float mem[FLOATS];
shared uint seen[2]; // slots of the tile that the row sees

uint t;
Params p;
uint n_heads; // of this workgroup; the last part of a group may have fewer
uint n_rows;  // likewise
uint rows_at; // with ROWS > 1: its first row, in the list of cascades
uint row_one; // else: its row
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
    precise float xx = x * x;
    precise float y;

    if (a < 0.3) {
        y = x * (1.0 + xx * (-1.0 / 3.0 +
                             xx * (2.0 / 15.0 + xx * (-17.0 / 315.0 + xx * (62.0 / 2835.0)))));
    } else {
        y = sign(x) * (1.0 - 2.0 / (exp(min(2.0 * a, 80.0)) + 1.0)) + 0.0 * x; // NaN stays
    }
    return y;
}

float add4(float sum, vec4 a, vec4 b)
{
    precise float s = fma(a.x, b.x, sum);

    s = fma(a.y, b.y, s);
    s = fma(a.z, b.z, s);
    s = fma(a.w, b.w, s);
    return s;
}

// The levels of a sealed format for all invocations.
void levels_take(uint format)
{
    barrier();
    level_of[t] = LevelTables(p.tables).at[format - Q6].level[t];
    barrier();
}

// One form of one K source: add to the logits of slot t, of lanes [first, end).
void logits_add(uint source, uint format, uint64_t tile, uint first, uint end,
                inout float sum[LANES])
{
    const uint d = p.d_k;
    float products[LANES];
    float means[LANES];

    if (is_sealed(format)) {
        levels_take(format);
    }
    if (t < seen[0] || t >= seen[1]) {
        return;
    }
    for (uint h = 0; h < LANES; h++) {
        products[h] = means[h] = 0.0;
    }
    for (uint at = 0; at < d / 4; at++) {
        const vec4 k = k4(format, tile, d, at, t);
        const vec4 mean = is_sealed(format) ? mean4(tile, at) : vec4(0.0);

        for (uint h = 0; h < LANES; h++) {
            if (h < first || h >= end) {
                continue;
            }
            const uint q = (source * LANES + h) * d + 4 * at;
            const vec4 x = vec4(mem[q], mem[q + 1], mem[q + 2], mem[q + 3]);

            products[h] = add4(products[h], x, k);
            if (is_sealed(format)) {
                means[h] = add4(means[h], x, mean);
            }
        }
    }
    const float scale = scale_of(format, tile, t);

    for (uint h = 0; h < LANES; h++) {
        if (h >= first && h < end) {
            precise float y = fma(products[h], scale, means[h]);

            sum[h] += y;
        }
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

// One form of one V source: o = o * rescale + P . V, of lanes [first, end).
void output_add(uint source, uint format, uint64_t tile, uint first, uint end)
{
    const uint d = p.d_v;

    if (is_sealed(format)) {
        levels_take(format);
    }
    for (uint i = t; i < d; i += 64) {
        float sum[LANES];

        for (uint h = 0; h < LANES; h++) {
            sum[h] = 0.0;
        }
        for (uint at = seen[0] / 4; at < (seen[1] + 3) / 4; at++) {
            vec4 v = p.is_prefix != 0 ? prefix4(format, tile, at, i)
                                      : v4(format, tile, d, at, i) * scale4(format, tile, at);

            v = mix(vec4(0.0), v, seen4(at)); // slots that no row sees may hold NaN
            for (uint h = 0; h < LANES; h++) {
                if (h >= first && h < end) {
                    sum[h] = add4(sum[h], weights4(h, at), v);
                }
            }
        }
        for (uint h = 0; h < LANES; h++) {
            if (h >= first && h < end) {
                const uint o = at_o + (source * LANES + h) * d + i;
                precise float y = fma(mem[o], mem[at_r + h], sum[h]);

                mem[o] = y;
            }
        }
    }
}

// Turn logits into weights, and rescale the earlier sums to the new maximum.
void softmax()
{
    if (t < LANES) {
        float m = mem[at_m + t];

        for (uint i = seen[0]; i < seen[1]; i++) {
            m = max(m, mem[at_s + t * TILE + i]);
        }
        mem[at_r + t] = m == -INFINITY ? 1.0 : exp(mem[at_m + t] - m);
        mem[at_m + t] = m;
    }
    barrier();
    for (uint h = 0; h < LANES; h++) {
        const float s = mem[at_s + h * TILE + t];
        const bool is_seen = t >= seen[0] && t < seen[1] && s != -INFINITY;

        mem[at_s + h * TILE + t] = is_seen ? exp(s - mem[at_m + h]) : 0.0;
    }
    barrier();
    if (t < LANES) {
        float sum = 0.0;

        for (uint i = seen[0]; i < seen[1]; i++) {
            sum += mem[at_s + t * TILE + i];
        }
        precise float l = fma(mem[at_l + t], mem[at_r + t], sum);

        mem[at_l + t] = l;
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

Row row_of(uint r)
{
    return Rows(p.rows).at[ROWS == 1 ? row_one : Words(p.cascade_rows).at[rows_at + r]];
}

// The form in which row r reads a source's tile, whose first token is at position `first`.
uint form_of_row(Source source, uint r, uint e, uint g, uint tile, uint first,
                 out uint64_t address)
{
    const Row row = row_of(r);
    const uint pos = row.pos;
    const bool is_near = pos / TILE - first / TILE <= p.recent_tiles || first / TILE < p.sink_tiles;

    return form_of(source, Seqs(p.seqs).at[row.seq], e, g, tile, is_near, address);
}

// Row r's form, and the end of the rows from r on that read the same.
uint form_of_rows(Source source, uint r, uint e, uint g, uint tile, uint first,
                  out uint64_t address, out uint end)
{
    const uint format = form_of_row(source, r, e, g, tile, first, address);

    end = ROWS == 1 || !is_sealed(source.format) ? n_rows : r + 1;
    while (end < n_rows) {
        uint64_t other;

        if (form_of_row(source, end, e, g, tile, first, other) != format || other != address) {
            break;
        }
        end++;
    }
    return format;
}

// What is added to the logits of the invocation's slot of a tile.
float bias_of(Entry entry, uint tile)
{
    const uint slot = tile * TILE + t;
    const bool has_bias = p.biases != 0 && entry.positions != 0 && slot >= entry.first_slot &&
                          slot < entry.first_slot + entry.n_tokens;

    return has_bias ? Floats(p.biases + uint64_t(4) * (entry.positions + slot - entry.first_slot))
                          .at[0]
                    : 0.0;
}

void visit(uint e, uint g, uint tile, Entry entry)
{
    const uint first = position_of(entry, tile);
    const float bias = bias_of(entry, tile);
    float sum[LANES];
    uint64_t address;
    uint end;

    for (uint h = 0; h < LANES; h++) {
        sum[h] = 0.0;
    }
    for (uint i = 0; i < N_K; i++) {
        for (uint r = 0; r < n_rows; r = end) {
            const uint format = form_of_rows(p.k[i], r, e, g, tile, first, address, end);

            logits_add(i, format, address, r * HEADS, end * HEADS, sum);
        }
    }
    for (uint h = 0; h < LANES; h++) {
        const float y = sum[h] * p.scale;

        mem[at_s + h * TILE + t] =
            (p.softcap == 0.0 ? y : p.softcap * tanh_of(y / p.softcap)) + bias;
    }
    barrier();
    softmax();
    for (uint i = 0; i < N_V; i++) {
        Source source = p.v[i];

        if (p.is_prefix != 0) {
            source = p.k[0];
        }
        for (uint r = 0; r < n_rows; r = end) {
            const uint format = form_of_rows(source, r, e, g, tile, first, address, end);

            output_add(i, format, address, r * HEADS, end * HEADS);
        }
    }
    barrier();
}

// The rows' queries, zeros where there are no more rows or heads.
void queries_take(uint first_head)
{
    for (uint i = 0; i < N_K; i++) {
        Floats q = Floats(p.q[i]);

        for (uint r = 0; r < ROWS; r++) {
            const uint index = r < n_rows ? row_of(r).index : 0;
            const uint n = r < n_rows ? n_heads * p.d_k : 0;
            const uint to = (i * LANES + r * HEADS) * p.d_k;

            for (uint j = t; j < HEADS * p.d_k; j += 64) {
                mem[to + j] = j < n ? q.at[(index * p.n_head + first_head) * p.d_k + j] : 0.0;
            }
        }
        rotate(i * LANES * p.d_k, LANES * p.d_k, p.k[i].rotate);
    }
}

// Of the rows that are those of this dispatch.
void partials_give(uint first_head)
{
    const uint size = 2 + N_V * p.d_v;

    for (uint r = 0; r < n_rows; r++) {
        const uint row = ROWS == 1 ? row_one : Words(p.cascade_rows).at[rows_at + r];
        const uint x = row - push.first_row;

        if (row < push.first_row || x >= push.n_rows) {
            continue;
        }
        for (uint h = 0; h < n_heads; h++) {
            const uint lane = r * HEADS + h;
            const uint64_t index =
                (uint64_t(x) * p.n_head + first_head + h) * push.n_splits_max + gl_WorkGroupID.z;
            Floats to = Floats(push.partials + index * size * 4);

            if (t == 0) {
                to.at[0] = mem[at_m + lane];
                to.at[1] = mem[at_l + lane];
            }
            for (uint i = 0; i < N_V; i++) {
                for (uint j = t; j < p.d_v; j += 64) {
                    to.at[2 + i * p.d_v + j] = mem[at_o + (i * LANES + lane) * p.d_v + j];
                }
            }
        }
    }
}

// Which rows the workgroup has; false: none that has this split.
bool rows_take()
{
    const uint z = gl_WorkGroupID.z;

    if (ROWS == 1) {
        row_one = push.first_row + gl_WorkGroupID.x;
        n_rows = 1;
        return push.n_cascades == 0 || z >= Rows(p.rows).at[row_one].n_shared;
    }
    Cascades cascades = Cascades(p.cascades);
    uint x = gl_WorkGroupID.x;
    uint c = 0;

    while (x >= (cascades.at[c].n_rows + ROWS - 1) / ROWS) {
        x -= (cascades.at[c].n_rows + ROWS - 1) / ROWS;
        c++;
    }
    rows_at = cascades.at[c].first + x * ROWS;
    n_rows = min(ROWS, cascades.at[c].n_rows - x * ROWS);
    if (z >= cascades.at[c].n_splits) {
        return false;
    }
    for (uint r = 0; r < n_rows; r++) {
        const uint row = Words(p.cascade_rows).at[rows_at + r];

        if (row >= push.first_row && row - push.first_row < push.n_rows) {
            return true;
        }
    }
    return false;
}

void main()
{
    t = gl_LocalInvocationID.x;
    p = Params(push.params);
    if (!rows_take()) {
        return;
    }
    const Row row = row_of(0); // all rows see the same tokens of the split
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
    at_o = N_K * LANES * p.d_k;
    at_s = at_o + N_V * LANES * p.d_v;
    at_m = at_s + LANES * TILE;
    at_l = at_m + LANES;
    at_r = at_l + LANES;
    queries_take(g * group + part * HEADS);
    for (uint i = at_o + t; i < at_s; i += 64) {
        mem[i] = 0.0;
    }
    if (t < LANES) {
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
                visit(e, g, tile, entry);
            }
        }
    }
    barrier();
    partials_give(g * group + part * HEADS);
}
