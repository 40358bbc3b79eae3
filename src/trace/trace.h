/* trace.h - a workload: requests with times, lengths, and the identity of their prompt blocks.
 *
 * All formats become this one: requests in order of time, each with the content ids of the blocks
 * of its prompt. A block is block_tokens tokens. Two requests with equal first k ids have equal
 * first k * block_tokens tokens. The last block of a prompt may be shorter. Ids are numbered
 * densely from 0 in order of appearance, so arrays can be indexed by id. Ids are chained: an id
 * identifies its block and all earlier blocks. Requests with a common id have equal text up to that
 * block, and an id is a node of the tree of all prompts.
 *
 *   block_ids  [ a b c | a b d e | ... ]      all requests' ids, one after the other
 *   requests   [ {first_block 0, n_blocks 3}, {3, 4}, ... ]
 *
 * A format without contents (Azure/Splitwise CSV: times and lengths) gives every block an id of its
 * own; has_contents is false then, and hit rates mean nothing: reports must say so.
 *
 * Memory: one owner; end with quire_trace_fini(). Thread: one at a time; a filled-in trace may be
 * read by many.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_TRACE_H
#define QUIRE_TRACE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"

#define QUIRE_TRACE_REQUESTS_MAX (1u << 26)
#define QUIRE_TRACE_BLOCKS_MAX   (1u << 30) /* of all requests */
#define QUIRE_TRACE_CLASSES_MAX  8u
#define QUIRE_TRACE_NAME_MAX     64u

typedef struct quire_trace_request {
    uint64_t time_us;     /* since the first request */
    uint64_t first_block; /* index into block_ids */
    uint32_t n_blocks;
    uint32_t n_input_tokens;
    uint32_t n_output_tokens;
    uint32_t tenant;     /* numbered from 0; 0 where the format has none */
    uint32_t session;    /* numbered from 1; 0 = not known */
    uint8_t class_index; /* into class_names; 0 where the format has none */
} quire_trace_request;

typedef struct quire_id_map quire_id_map;

typedef struct quire_trace {
    quire_allocator allocator;
    uint32_t block_tokens;
    bool has_contents;             /* equal ids mean equal tokens */
    quire_trace_request *requests; /* [n_requests], by time_us, ties in order of the file */
    uint32_t n_requests;
    uint32_t requests_capacity;
    uint32_t *block_ids; /* [n_blocks] */
    uint64_t n_blocks;
    uint64_t blocks_capacity;
    uint32_t n_ids; /* ids are below this */
    uint32_t n_tenants;
    uint32_t n_sessions;
    uint32_t n_classes;
    char class_names[QUIRE_TRACE_CLASSES_MAX][QUIRE_TRACE_NAME_MAX];
    uint64_t n_lines;     /* read */
    uint64_t n_bad_lines; /* left out; the first of them are named by the reader */
    quire_id_map *chains; /* from {id before, block} to id, while requests are added */
} quire_trace;

/* An empty trace. Allocates nothing. NULL allocator = C library. */
void quire_trace_init(quire_trace *trace, const quire_allocator *allocator);
void quire_trace_fini(quire_trace *trace);

/* Add a request behind the others. keys: [n_blocks], any numbers: equal keys behind equal
 * beginnings get equal ids. first_block is filled in. Errors: QUIRE_LIMIT, QUIRE_NOMEM; nothing was
 * added then. */
int quire_trace_add_keys(quire_trace *trace, const quire_trace_request *request,
                         const uint64_t *keys);

/* Finish a trace: sort requests by time, let the times begin at 0, and free memory needed only for
 * adding. No request may be added afterwards. */
void quire_trace_finish(quire_trace *trace);

/* Blocks of the longest prompt; 0 in an empty trace. */
uint32_t quire_trace_longest_blocks(const quire_trace *trace);

static inline const uint32_t *quire_trace_blocks(const quire_trace *trace,
                                                 const quire_trace_request *request)
{
    return trace->block_ids + request->first_block;
}

#endif /* QUIRE_TRACE_TRACE_H */
