// params.glsl - parameters that the host passes to the kernels: card/card_params.h has the
// same structs in C.
//
// SPDX-License-Identifier: MIT
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float at[]; };

struct Lane {
    uint64_t offset;
    uint64_t page_stride;
    uint64_t head_stride;
    uint64_t tile_stride;
};

struct Source {
    Lane lane;
    Lane hot_lane;
    uint format;
    uint rotate;
    uint group;
    uint hot_group;
};

struct Entry {
    uint64_t extent; // 0: a hole
    uint slot;
    uint first_slot; // of the page
    uint n_tokens;
    uint first_pos;
    uint positions; // 0: consecutive
    uint unused;
};

struct Seq {
    uint n_tokens;
    uint n_entries;
    uint first_row;      // its place in `rows`
    uint first_entry[8]; // by group
};

struct Row {
    uint seq;
    uint pos;
    uint index;    // in q and out
    uint n_shared; // its first splits that a cascade does
};

// Rows that see all of the same pages, in the splits before n_splits.
struct Cascade {
    uint first; // of its rows, in the list
    uint n_rows;
    uint n_splits;
};

struct Segment {
    uint seq;
    uint entry; // of the sequence's tables
    uint tile;
    uint first_slot;
    uint n_tokens;
    uint first_row;
};

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Entries { Entry at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Seqs { Seq at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Rows { Row at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Cascades { Cascade at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Segments { Segment at[]; };

// Of one sealed format.
struct Levels {
    float level[64];
    uint cell[256]; // by half level unit: the upper half's nearest code, and its level << 8
    uint n_levels;
    uint n_starts;
    float start[6];
};
layout(buffer_reference, std430, buffer_reference_align = 4) buffer LevelTables { Levels at[]; };

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Params {
    uint64_t q[2];
    uint64_t k_new;
    uint64_t v_new;
    uint64_t gate[2];
    uint64_t sinks;
    uint64_t result;
    uint64_t sums; // 0: unwanted
    uint64_t entries;
    uint64_t seqs;
    uint64_t rows;
    uint64_t cascades;
    uint64_t cascade_rows; // Words: places in `rows`
    uint64_t positions;
    uint64_t biases; // Floats, beside positions; 0: none
    uint64_t tables; // LevelTables
    Source k[2];
    Source v[2];
    Source k_store;
    Source v_store;
    uint n_head;
    uint n_kv_head;
    uint d_k;
    uint d_v;
    uint window;
    uint has_chunks;
    uint recent_tiles;
    uint sink_tiles;
    float scale;
    float softcap;
    uint is_prefix;
    uint split_entries;
};

layout(push_constant) uniform Push {
    uint64_t params;
    uint64_t partials; // attn, merge
    uint64_t segments; // append, seal
    uint first_row;    // of the rows, that of workgroup 0
    uint n_rows;       // from there on
    uint n_splits_max;
    uint n_cascades; // attn: 0 = the layer has none
} push;

#define INFINITY uintBitsToFloat(0x7f800000u)
const uint F32 = 0, F16 = 1, BF16 = 2, Q8 = 3, Q6 = 4, Q5 = 5, Q4 = 6, Q3 = 7;
const uint HOT = Q8;
const uint TILE = 64;

bool is_sealed(uint format)
{
    return format >= Q6;
}

uint low_bits(uint format)
{
    return format == Q3 ? 2 : 4;
}

uint high_bits(uint format)
{
    return format == Q6 ? 2 : format == Q4 ? 0 : 1;
}

uint64_t tile_of(Lane lane, Entry entry, uint head, uint tile)
{
    return entry.extent + lane.offset + uint64_t(entry.slot) * lane.page_stride +
           uint64_t(head) * lane.head_stride + uint64_t(tile) * lane.tile_stride;
}

float half_at(uint64_t address, uint i)
{
    const vec2 both = unpackHalf2x16(Words(address).at[i / 2]);

    return (i & 1) == 0 ? both.x : both.y;
}

float bf16_of(uint bits)
{
    return uintBitsToFloat(bits << 16);
}

vec4 signed_bytes(uint word)
{
    return vec4(bitfieldExtract(int(word), 0, 8), bitfieldExtract(int(word), 8, 8),
                bitfieldExtract(int(word), 16, 8), bitfieldExtract(int(word), 24, 8));
}

vec4 bytes_of(uint word)
{
    return vec4(word & 255, word >> 8 & 255, word >> 16 & 255, word >> 24);
}
