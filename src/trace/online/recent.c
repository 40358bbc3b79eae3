/* recent.c - the ring: records one after the other, the oldest at head.
 *
 * A record is a header and 8 bytes per block, and is never split. A record that does not fit before
 * the end of the ring goes to the beginning; the rest of the ring stays unused, marked by a header
 * with n_bytes = 0 if a header fits.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/recent.h"

#include "base/check.h"
#include "trace/array.h"
#include "trace/id_map.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

typedef struct record {
    uint64_t time_us;
    uint32_t n_blocks; /* hashes that follow */
    uint32_t n_input_tokens;
    uint32_t n_output_tokens;
    uint32_t tenant;
    uint32_t session;
    uint8_t class_index;
    uint8_t is_record; /* 0: the rest of the ring is unused */
    uint8_t pad[2];
} record;

_Static_assert(sizeof(record) % 8 == 0, "hashes follow");

struct quire_recent {
    quire_allocator allocator;
    uint64_t window_us;
    uint64_t seed;
    uint32_t block_tokens;
    uint32_t blocks_max;  /* of one record */
    pthread_mutex_t lock; /* guards the fields below */
    unsigned char *ring;  /* [ring_bytes] */
    size_t ring_bytes;    /* a multiple of 8 */
    size_t head;          /* the oldest record */
    size_t tail;          /* where the next one goes */
    uint64_t newest_us;
    uint32_t n_requests;
};

static size_t record_bytes(uint32_t n_blocks)
{
    return sizeof(record) + n_blocks * sizeof(uint64_t);
}

int quire_recent_create(quire_recent **out, const quire_recent_opts *opts)
{
    const quire_allocator *allocator =
        opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    quire_recent *recent;

    QUIRE_FAIL_IF(opts->window_us == 0 || opts->block_tokens == 0 ||
                      opts->ring_bytes < QUIRE_RECENT_BYTES_MIN ||
                      opts->ring_bytes > QUIRE_RECENT_BYTES_MAX,
                  QUIRE_INVAL);
    recent = allocator->alloc(allocator->ctx, sizeof(*recent));
    QUIRE_FAIL_IF(recent == NULL, QUIRE_NOMEM);
    memset(recent, 0, sizeof(*recent));
    recent->allocator = *allocator;
    recent->window_us = opts->window_us;
    recent->seed = opts->seed;
    recent->block_tokens = opts->block_tokens;
    recent->ring_bytes = opts->ring_bytes / 8 * 8;
    recent->blocks_max = (uint32_t)((recent->ring_bytes / 8 - sizeof(record)) / 8);
    recent->ring = allocator->alloc(allocator->ctx, recent->ring_bytes);
    if (recent->ring == NULL || pthread_mutex_init(&recent->lock, NULL) != 0) {
        quire_array_free(allocator, recent->ring);
        allocator->free(allocator->ctx, recent);
        return QUIRE_NOMEM;
    }
    *out = recent;
    return QUIRE_OK;
}

void quire_recent_destroy(quire_recent *recent)
{
    quire_allocator allocator;

    if (recent == NULL) {
        return;
    }
    allocator = recent->allocator;
    (void)pthread_mutex_destroy(&recent->lock);
    quire_array_free(&allocator, recent->ring);
    allocator.free(allocator.ctx, recent);
}

/* ---- records ---- */

/* The record at *at, which moves to the beginning where the rest of the ring is unused. */
static record record_at(const unsigned char *ring, size_t ring_bytes, size_t *at)
{
    record found = { 0 };

    if (*at + sizeof(found) <= ring_bytes) {
        memcpy(&found, ring + *at, sizeof(found));
    }
    if (!found.is_record) {
        *at = 0;
        memcpy(&found, ring, sizeof(found));
    }
    return found;
}

static void drop_oldest(quire_recent *recent)
{
    const record oldest = record_at(recent->ring, recent->ring_bytes, &recent->head);

    recent->head += record_bytes(oldest.n_blocks);
    recent->n_requests--;
    if (recent->n_requests == 0) {
        recent->head = recent->tail = 0;
    }
}

/* Whether `need` bytes can be written at the tail without touching a record. If they fit only at
 * the beginning of the ring, the tail moves there. */
static bool has_room(quire_recent *recent, size_t need)
{
    if (recent->n_requests == 0) {
        recent->head = recent->tail = 0;
        return true;
    }
    if (recent->tail <= recent->head) {
        return recent->tail + need <= recent->head;
    }
    if (recent->tail + need <= recent->ring_bytes) {
        return true;
    }
    if (need > recent->head) {
        return false;
    }
    if (recent->tail + sizeof(record) <= recent->ring_bytes) {
        memset(recent->ring + recent->tail, 0, sizeof(record));
    }
    recent->tail = 0;
    return true;
}

/* The hash of a block and, through the preceding hash, of all blocks before it. */
static uint64_t hash_block(uint64_t before, const int32_t *tokens, uint32_t n_tokens, uint64_t seed)
{
    return XXH3_64bits_withSeed(tokens, n_tokens * sizeof(tokens[0]),
                                seed ^ (before * 0x9e3779b97f4a7c15u));
}

static void write_hashes(quire_recent *recent, const quire_recent_request *request,
                         uint32_t n_blocks)
{
    uint64_t hash = XXH3_64bits_withSeed(&request->tenant, sizeof(request->tenant), recent->seed);

    for (uint32_t i = 0; i < n_blocks; i++) {
        const uint32_t first = i * recent->block_tokens;
        const uint32_t left = request->n_input_tokens - first;

        hash = hash_block(hash, request->tokens + first,
                          left < recent->block_tokens ? left : recent->block_tokens, recent->seed);
        memcpy(recent->ring + recent->tail + i * sizeof(hash), &hash, sizeof(hash));
    }
    recent->tail += n_blocks * sizeof(hash);
}

static void write_record(quire_recent *recent, const quire_recent_request *request,
                         uint32_t n_blocks)
{
    const record written = { .time_us = request->time_us,
                             .n_blocks = n_blocks,
                             .n_input_tokens = request->n_input_tokens,
                             .n_output_tokens = request->n_output_tokens,
                             .tenant = request->tenant,
                             .session = request->session,
                             .class_index = request->class_index,
                             .is_record = 1 };

    memcpy(recent->ring + recent->tail, &written, sizeof(written));
    recent->tail += sizeof(written);
    write_hashes(recent, request, n_blocks);
}

void quire_recent_add(quire_recent *recent, const quire_recent_request *request)
{
    const uint64_t all =
        ((uint64_t)request->n_input_tokens + recent->block_tokens - 1) / recent->block_tokens;
    uint32_t n_blocks = (uint32_t)(all < recent->blocks_max ? all : recent->blocks_max);

    QUIRE_CHECK(request->class_index < QUIRE_TRACE_CLASSES_MAX);
    if (request->tokens == NULL) {
        n_blocks = 0;
    }
    (void)pthread_mutex_lock(&recent->lock);
    if (request->time_us > recent->newest_us) {
        recent->newest_us = request->time_us;
    }
    while (recent->n_requests > 0) {
        size_t at = recent->head;
        const record oldest = record_at(recent->ring, recent->ring_bytes, &at);

        if (oldest.time_us + recent->window_us >= recent->newest_us) {
            break;
        }
        drop_oldest(recent);
    }
    while (!has_room(recent, record_bytes(n_blocks))) {
        drop_oldest(recent);
    }
    write_record(recent, request, n_blocks);
    recent->n_requests++;
    (void)pthread_mutex_unlock(&recent->lock);
}

/* ---- as a trace ---- */

/* A snapshot of the ring. */
typedef struct copy {
    unsigned char *ring;
    size_t ring_bytes;
    size_t head;
    uint32_t n_requests;
} copy;

static int take_copy(quire_recent *recent, copy *out)
{
    *out = (copy){ .ring_bytes = recent->ring_bytes };
    out->ring = recent->allocator.alloc(recent->allocator.ctx, recent->ring_bytes);
    QUIRE_FAIL_IF(out->ring == NULL, QUIRE_NOMEM);
    (void)pthread_mutex_lock(&recent->lock);
    /* Pages of a ring that never filled up are not touched. */
    if (recent->tail > recent->head) {
        memcpy(out->ring + recent->head, recent->ring + recent->head, recent->tail - recent->head);
    } else if (recent->n_requests > 0) {
        memcpy(out->ring, recent->ring, recent->ring_bytes);
    }
    out->head = recent->head;
    out->n_requests = recent->n_requests;
    (void)pthread_mutex_unlock(&recent->lock);
    return QUIRE_OK;
}

/* Where records go. */
typedef struct sink {
    quire_trace *trace;
    uint64_t *hashes;      /* [blocks_max], of one record */
    quire_id_map sessions; /* by the numbers that they were given */
    uint64_t since_us;
} sink;

/* Renumber sessions from 1: the numbers of a long-running server are large, and readers of the
 * trace index tables by them. */
static int session_number(sink *s, uint32_t session, uint32_t *out)
{
    *out = 0;
    if (session != 0) {
        QUIRE_TRY(quire_id_map_plan(&s->sessions, 1));
        *out = quire_id_map_put(&s->sessions, session) + 1;
    }
    return QUIRE_OK;
}

/* Add the record at *at, unless it is too old; *at moves behind it. */
static int add_record(const copy *c, size_t *at, sink *s)
{
    const record found = record_at(c->ring, c->ring_bytes, at);
    quire_trace *out = s->trace;
    quire_trace_request request = { .time_us = found.time_us,
                                    .n_blocks = found.n_blocks,
                                    .n_input_tokens = found.n_input_tokens,
                                    .n_output_tokens = found.n_output_tokens,
                                    .tenant = found.tenant,
                                    .class_index = found.class_index };

    memcpy(s->hashes, c->ring + *at + sizeof(found), found.n_blocks * sizeof(*s->hashes));
    *at += record_bytes(found.n_blocks);
    if (found.time_us < s->since_us) {
        return QUIRE_OK;
    }
    QUIRE_TRY(session_number(s, found.session, &request.session));
    QUIRE_TRY(quire_trace_add_keys(out, &request, s->hashes));
    out->n_tenants = found.tenant >= out->n_tenants ? found.tenant + 1 : out->n_tenants;
    out->n_sessions = s->sessions.n;
    out->n_classes = found.class_index >= out->n_classes ? found.class_index + 1u : out->n_classes;
    return QUIRE_OK;
}

int quire_recent_trace(quire_recent *recent, uint64_t now_us, quire_trace *out)
{
    sink s = { .trace = out,
               .since_us = now_us > recent->window_us ? now_us - recent->window_us : 0 };
    copy c;
    int rc = QUIRE_OK;

    QUIRE_TRY(take_copy(recent, &c));
    quire_trace_init(out, &recent->allocator);
    out->block_tokens = recent->block_tokens;
    out->has_contents = true;
    quire_id_map_init(&s.sessions, &recent->allocator);
    s.hashes = quire_array_alloc(&recent->allocator, recent->blocks_max, sizeof(*s.hashes));
    if (s.hashes == NULL) {
        rc = QUIRE_NOMEM;
    }
    for (uint32_t i = 0; rc == QUIRE_OK && i < c.n_requests; i++) {
        rc = add_record(&c, &c.head, &s);
    }
    quire_array_free(&recent->allocator, s.hashes);
    quire_id_map_fini(&s.sessions);
    quire_array_free(&recent->allocator, c.ring);
    if (rc != QUIRE_OK) {
        quire_trace_fini(out);
        return QUIRE_NOMEM;
    }
    quire_trace_finish(out);
    return QUIRE_OK;
}
