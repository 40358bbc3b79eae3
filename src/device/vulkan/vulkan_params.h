/* vulkan_params.h - parameters of the kernels: the structs of shaders/params.glsl in C.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_VULKAN_PARAMS_H
#define QUIRE_DEVICE_VULKAN_PARAMS_H

#include "quire/types.h"

#include <stdint.h>

typedef struct quire_vulkan_lane {
    uint64_t offset;
    uint64_t page_stride;
    uint64_t head_stride;
    uint64_t tile_stride;
} quire_vulkan_lane;

typedef struct quire_vulkan_source {
    quire_vulkan_lane lane;
    quire_vulkan_lane hot_lane;
    uint32_t format;
    uint32_t rotate;
    uint32_t group;
    uint32_t hot_group;
} quire_vulkan_source;

typedef struct quire_vulkan_entry {
    uint64_t extent;
    uint32_t slot;
    uint32_t first_slot;
    uint32_t n_tokens;
    uint32_t first_pos;
    uint32_t positions;
    uint32_t unused;
} quire_vulkan_entry;

typedef struct quire_vulkan_seq {
    uint32_t n_tokens;
    uint32_t n_entries;
    uint32_t first_row;
    uint32_t first_entry[QUIRE_GROUPS_MAX];
} quire_vulkan_seq;

typedef struct quire_vulkan_row {
    uint32_t seq;
    uint32_t pos;
    uint32_t index;
    uint32_t n_shared;
} quire_vulkan_row;

typedef struct quire_vulkan_cascade {
    uint32_t first;
    uint32_t n_rows;
    uint32_t n_splits;
} quire_vulkan_cascade;

typedef struct quire_vulkan_segment {
    uint32_t seq;
    uint32_t entry;
    uint32_t tile;
    uint32_t first_slot;
    uint32_t n_tokens;
    uint32_t first_row;
} quire_vulkan_segment;

typedef struct quire_vulkan_levels {
    float level[64];
    uint32_t cell[256];
    uint32_t n_levels;
    uint32_t n_starts;
    float start[6];
} quire_vulkan_levels;

#define QUIRE_VULKAN_LEVELS 4u /* sealed formats, from q6 on */

typedef struct quire_vulkan_params {
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
    uint64_t tables;
    quire_vulkan_source k[2];
    quire_vulkan_source v[2];
    quire_vulkan_source k_store;
    quire_vulkan_source v_store;
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
} quire_vulkan_params;

typedef struct quire_vulkan_push {
    uint64_t params;
    uint64_t partials;
    uint64_t segments;
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t n_splits_max;
    uint32_t n_cascades;
} quire_vulkan_push;

#endif /* QUIRE_DEVICE_VULKAN_PARAMS_H */
