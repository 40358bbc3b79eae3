/* trace.c - a workload's requests and the numbering of their blocks.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/trace.h"

#include "base/check.h"
#include "trace/id_map.h"

#include <stdlib.h>
#include <string.h>

#ifdef QUIRE_TINY
#define REQUESTS_FIRST 1u
#define BLOCKS_FIRST   1u
#else
#define REQUESTS_FIRST 1024u
#define BLOCKS_FIRST   16384u
#endif

void quire_trace_init(quire_trace *trace, const quire_allocator *allocator)
{
    memset(trace, 0, sizeof(*trace));
    trace->allocator = allocator != NULL ? *allocator : *quire_allocator_default();
}

static void chains_end(quire_trace *trace)
{
    if (trace->chains != NULL) {
        quire_id_map_fini(trace->chains);
        trace->allocator.free(trace->allocator.ctx, trace->chains);
        trace->chains = NULL;
    }
}

void quire_trace_fini(quire_trace *trace)
{
    if (trace->allocator.free == NULL) {
        return; /* never initialised */
    }
    chains_end(trace);
    trace->allocator.free(trace->allocator.ctx, trace->requests);
    trace->allocator.free(trace->allocator.ctx, trace->block_ids);
    memset(trace, 0, sizeof(*trace));
}

/* ---- adding ---- */

/* A larger copy of an array. */
static int array_grow(const quire_trace *trace, void **array, size_t used_bytes, size_t bytes)
{
    void *bigger = trace->allocator.alloc(trace->allocator.ctx, bytes);

    QUIRE_FAIL_IF(bigger == NULL, QUIRE_NOMEM);
    if (used_bytes > 0) {
        memcpy(bigger, *array, used_bytes);
    }
    trace->allocator.free(trace->allocator.ctx, *array);
    *array = bigger;
    return QUIRE_OK;
}

static int requests_plan(quire_trace *trace)
{
    uint32_t capacity =
        trace->requests_capacity > 0 ? trace->requests_capacity * 2 : REQUESTS_FIRST;
    void *requests = trace->requests;

    if (trace->n_requests < trace->requests_capacity) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(trace->n_requests >= QUIRE_TRACE_REQUESTS_MAX, QUIRE_LIMIT);
    QUIRE_TRY(array_grow(trace, &requests, trace->n_requests * sizeof(*trace->requests),
                         capacity * sizeof(*trace->requests)));
    trace->requests = requests;
    trace->requests_capacity = capacity;
    return QUIRE_OK;
}

static int blocks_plan(quire_trace *trace, uint32_t n)
{
    uint64_t capacity = trace->blocks_capacity > 0 ? trace->blocks_capacity : BLOCKS_FIRST;
    void *ids = trace->block_ids;

    QUIRE_FAIL_IF(trace->n_blocks + n > QUIRE_TRACE_BLOCKS_MAX, QUIRE_LIMIT);
    if (trace->n_blocks + n <= trace->blocks_capacity) {
        return QUIRE_OK;
    }
    while (capacity < trace->n_blocks + n) {
        capacity *= 2;
    }
    QUIRE_TRY(array_grow(trace, &ids, trace->n_blocks * sizeof(*trace->block_ids),
                         capacity * sizeof(*trace->block_ids)));
    trace->block_ids = ids;
    trace->blocks_capacity = capacity;
    return QUIRE_OK;
}

static int chains_plan(quire_trace *trace, uint32_t n)
{
    if (trace->chains == NULL) {
        trace->chains = trace->allocator.alloc(trace->allocator.ctx, sizeof(*trace->chains));
        QUIRE_FAIL_IF(trace->chains == NULL, QUIRE_NOMEM);
        quire_id_map_init(trace->chains, &trace->allocator);
    }
    return quire_id_map_plan(trace->chains, n);
}

/* Room for a request, and its entry: the calls after this one cannot fail. */
static int request_plan(quire_trace *trace, uint32_t n_blocks)
{
    QUIRE_TRY(requests_plan(trace));
    QUIRE_TRY(blocks_plan(trace, n_blocks));
    return chains_plan(trace, n_blocks);
}

static void request_begin(quire_trace *trace, const quire_trace_request *request)
{
    trace->requests[trace->n_requests] = *request;
    trace->requests[trace->n_requests].first_block = trace->n_blocks;
    trace->n_requests++;
}

/* The block `key` behind the id `before`. */
static uint32_t block_add(quire_trace *trace, uint32_t before, uint64_t key)
{
    uint32_t id = quire_id_map_put(trace->chains, quire_id_pair(before, key));

    trace->block_ids[trace->n_blocks++] = id;
    trace->n_ids = trace->chains->n;
    return id;
}

int quire_trace_add_keys(quire_trace *trace, const quire_trace_request *request,
                         const uint64_t *keys)
{
    uint32_t before = QUIRE_ID_NONE;

    QUIRE_TRY(request_plan(trace, request->n_blocks));
    request_begin(trace, request);
    for (uint32_t i = 0; i < request->n_blocks; i++) {
        before = block_add(trace, before, keys[i]);
    }
    return QUIRE_OK;
}

/* ---- the whole ---- */

/* Requests with equal times stay in the order of addition, known from the order of their blocks
 * (requests without blocks are interchangeable). */
static int by_time(const void *left, const void *right)
{
    const quire_trace_request *a = left;
    const quire_trace_request *b = right;

    if (a->time_us != b->time_us) {
        return a->time_us < b->time_us ? -1 : 1;
    }
    return a->first_block < b->first_block ? -1 : a->first_block > b->first_block;
}

void quire_trace_finish(quire_trace *trace)
{
    uint64_t first_us;

    chains_end(trace);
    if (trace->n_requests == 0) {
        return;
    }
    qsort(trace->requests, trace->n_requests, sizeof(*trace->requests), by_time);
    first_us = trace->requests[0].time_us;
    for (uint32_t i = 0; i < trace->n_requests; i++) {
        trace->requests[i].time_us -= first_us;
    }
}

uint32_t quire_trace_longest_blocks(const quire_trace *trace)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < trace->n_requests; i++) {
        if (trace->requests[i].n_blocks > longest) {
            longest = trace->requests[i].n_blocks;
        }
    }
    return longest;
}
