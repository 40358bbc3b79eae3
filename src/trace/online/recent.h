/* recent.h - the last hour's requests in bounded memory, the input of live tuning.
 *
 * A ring of bytes. Each record is a request and the hashes of the blocks of its prompt; a new one
 * pushes the oldest out when the bytes run short or the window has passed. A hash covers its
 * block and all earlier blocks, so equal hashes mean equal prefixes. Texts
 * and token ids are never kept.
 *
 * A prompt of more than an eighth of the ring keeps the first blocks only, which is counted.
 *
 * Thread: any; a lock inside, held for at most one copy of the ring.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_RECENT_H
#define QUIRE_TRACE_RECENT_H

#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"
#include "trace/trace.h"

#define QUIRE_RECENT_BYTES_MIN 4096u
#define QUIRE_RECENT_BYTES_MAX (1u << 30)

typedef struct quire_recent quire_recent;

typedef struct quire_recent_opts {
    uint64_t window_us;    /* age at which requests are forgotten; > 0 */
    size_t ring_bytes;     /* QUIRE_RECENT_BYTES_MIN .. QUIRE_RECENT_BYTES_MAX */
    uint32_t block_tokens; /* > 0 */
    uint64_t seed;         /* of the hashes: secret, so that collisions cannot be constructed */
    const quire_allocator *allocator; /* NULL = C library */
} quire_recent_opts;

/* An hour, 16 MiB (some 2 million blocks), blocks of 64 tokens. */
#define QUIRE_RECENT_OPTS_INIT                                                                     \
    {                                                                                              \
        .window_us = 3600000000u, .ring_bytes = 16u << 20, .block_tokens = 64                      \
    }

/* Errors: QUIRE_INVAL, QUIRE_NOMEM. */
int quire_recent_create(quire_recent **out, const quire_recent_opts *opts);
void quire_recent_destroy(quire_recent *recent); /* NULL is fine */

typedef struct quire_recent_request {
    uint64_t time_us;      /* of arrival, by any clock that does not go back */
    const int32_t *tokens; /* [n_input_tokens], the prompt; NULL = lengths alone */
    uint32_t n_input_tokens;
    uint32_t n_output_tokens;
    uint32_t tenant;
    uint32_t session;    /* 0 = none */
    uint8_t class_index; /* < QUIRE_TRACE_CLASSES_MAX */
} quire_recent_request;

/* Record a finished request; requests need not come in order of arrival. The tenant is part of the
 * hashes, so tenants share no blocks. Cost: hashing the prompt, some GB/s; no allocation. */
void quire_recent_add(quire_recent *recent, const quire_recent_request *request);

/* The recorded requests that are in the window at now_us, as a trace. The call initialises out; the
 * caller ends it with quire_trace_fini() after QUIRE_OK. Classes are numbered, not named; sessions
 * are numbered anew, in the order of the ring. Errors: QUIRE_NOMEM. */
int quire_recent_trace(quire_recent *recent, uint64_t now_us, quire_trace *out);

#endif /* QUIRE_TRACE_RECENT_H */
