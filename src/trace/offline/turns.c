/* turns.c - finds conversations in prompts.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/turns.h"

#include "quire/status.h"
#include "trace/array.h"

#include <string.h>

#define SHARED UINT32_MAX

/* State of a block during the pass over the requests. */
typedef struct block {
    uint32_t owner;    /* the session that has used it; 0 = none yet, SHARED = several */
    uint32_t ended_by; /* the session whose last prompt has its last full block here; 0 = none */
} block;

static bool is_named(const quire_trace *trace)
{
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        if (trace->requests[r].session != 0) {
            return true;
        }
    }
    return false;
}

/* The session that a request continues; 0 = none. */
static uint32_t continued(block *blocks, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = n; i > 0; i--) {
        block *at = &blocks[ids[i - 1]];
        const uint32_t session = at->ended_by;

        if (session != 0 && at->owner == session) {
            at->ended_by = 0;
            return session;
        }
    }
    return 0;
}

static void infer(quire_turns *turns, const quire_trace *trace, block *blocks)
{
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const quire_trace_request *request = &trace->requests[r];
        const uint32_t *ids = quire_trace_blocks(trace, request);
        const uint32_t n = request->n_blocks;
        uint32_t full = trace->block_tokens > 0 ? request->n_input_tokens / trace->block_tokens : n;
        uint32_t session = continued(blocks, ids, n);

        if (session == 0) {
            session = ++turns->n_sessions;
        }
        for (uint32_t i = 0; i < n; i++) {
            uint32_t *owner = &blocks[ids[i]].owner;

            *owner = *owner == 0 || *owner == session ? session : SHARED;
        }
        full = full < n ? full : n;
        if (full > 0) {
            blocks[ids[full - 1]].ended_by = session;
        }
        turns->sessions[r] = session;
    }
}

static void copy_names(quire_turns *turns, const quire_trace *trace)
{
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        turns->sessions[r] = trace->requests[r].session;
        if (turns->sessions[r] > turns->n_sessions) {
            turns->n_sessions = turns->sessions[r];
        }
    }
}

int quire_turns_init(quire_turns *turns, const quire_trace *trace, const quire_allocator *allocator)
{
    block *blocks = NULL;

    *turns =
        (quire_turns){ .allocator = allocator != NULL ? *allocator : *quire_allocator_default() };
    turns->sessions =
        quire_array_alloc(&turns->allocator, trace->n_requests, sizeof(*turns->sessions));
    if (turns->sessions == NULL) {
        return QUIRE_NOMEM;
    }
    memset(turns->sessions, 0, trace->n_requests * sizeof(*turns->sessions));
    if (is_named(trace)) {
        copy_names(turns, trace);
        return QUIRE_OK;
    }
    if (!trace->has_contents) {
        return QUIRE_OK;
    }
    blocks = quire_array_alloc(&turns->allocator, trace->n_ids, sizeof(*blocks));
    if (blocks == NULL) {
        quire_turns_fini(turns);
        return QUIRE_NOMEM;
    }
    memset(blocks, 0, trace->n_ids * sizeof(*blocks));
    turns->is_inferred = true;
    infer(turns, trace, blocks);
    quire_array_free(&turns->allocator, blocks);
    return QUIRE_OK;
}

void quire_turns_fini(quire_turns *turns)
{
    quire_array_free(&turns->allocator, turns->sessions);
    turns->sessions = NULL;
}
