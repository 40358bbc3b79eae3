/* card_params.h - parameters of the kernels. CUDA kernels include this file; the shaders of Vulkan
 * have the same structs in shaders/params.glsl.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CARD_PARAMS_H
#define QUIRE_DEVICE_CARD_PARAMS_H

#include "quire/types.h"

#include <stdint.h>

typedef struct quire_card_lane {
    uint64_t offset;
    uint64_t page_stride;
    uint64_t head_stride;
    uint64_t tile_stride;
} quire_card_lane;

typedef struct quire_card_source {
    quire_card_lane lane;
    quire_card_lane hot_lane;
    uint32_t format;
    uint32_t rotate;
    uint32_t group;
    uint32_t hot_group;
} quire_card_source;

typedef struct quire_card_entry {
    uint64_t extent;
    uint32_t slot;
    uint32_t first_slot;
    uint32_t n_tokens;
    uint32_t first_pos;
    uint32_t positions;
    uint32_t unused;
} quire_card_entry;

typedef struct quire_card_seq {
    uint32_t n_tokens;
    uint32_t n_entries;
    uint32_t first_row;
    uint32_t first_entry[QUIRE_GROUPS_MAX];
} quire_card_seq;

typedef struct quire_card_row {
    uint32_t seq;
    uint32_t pos;
    uint32_t index;
    uint32_t n_shared;
} quire_card_row;

typedef struct quire_card_cascade {
    uint32_t first;
    uint32_t n_rows;
    uint32_t n_splits;
} quire_card_cascade;

typedef struct quire_card_segment {
    uint32_t seq;
    uint32_t entry;
    uint32_t tile;
    uint32_t first_slot;
    uint32_t n_tokens;
    uint32_t first_row;
} quire_card_segment;

typedef struct quire_card_levels {
    float level[64];
    uint32_t cell[256];
    uint32_t n_levels;
    uint32_t n_starts;
    float start[6];
} quire_card_levels;

#define QUIRE_CARD_LEVELS 4u /* sealed formats, from q6 on */

typedef struct quire_card_params {
    uint64_t q[2];
    uint64_t k_new;
    uint64_t v_new;
    uint64_t gate[2];
    uint64_t sinks;
    uint64_t result;
    uint64_t sums;
    uint64_t entries;
    uint64_t seqs;
    uint64_t rows;
    uint64_t cascades;
    uint64_t cascade_rows;
    uint64_t positions;
    uint64_t biases;
    uint64_t tables;
    quire_card_source k[2];
    quire_card_source v[2];
    quire_card_source k_store;
    quire_card_source v_store;
    uint32_t n_head;
    uint32_t n_kv_head;
    uint32_t d_k;
    uint32_t d_v;
    uint32_t window;
    uint32_t has_chunks;
    uint32_t recent_tiles;
    uint32_t sink_tiles;
    float scale;
    float softcap;
    uint32_t is_prefix;
    uint32_t split_entries;
} quire_card_params;

typedef struct quire_card_push {
    uint64_t params;
    uint64_t partials;
    uint64_t segments;
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t n_splits_max;
    uint32_t n_cascades;
} quire_card_push;

#define QUIRE_CARD_CONSTANTS_MAX 5u

/* What a kernel is compiled for, by constant_id, or gets beside its parameters. attn: heads of a
 * workgroup (a power of two), n_k, n_v, rows of a workgroup, floats of its memory. merge: n_v.
 * append: is V, format, minds queries. seal: is V, format. */
typedef struct quire_card_constants {
    uint32_t at[QUIRE_CARD_CONSTANTS_MAX];
} quire_card_constants;

#endif /* QUIRE_DEVICE_CARD_PARAMS_H */
