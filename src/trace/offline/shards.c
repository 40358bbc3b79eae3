/* shards.c - a hash table and a heap of the samples, an LRU stack over them, and the distances in
 * buckets of 1.6 %.
 *
 * Samples are numbered by the place in an array that they keep as long as they are followed; the
 * table finds them by hash, the heap knows the greatest hash.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/shards.h"

#include "base/check.h"
#include "trace/array.h"
#include "trace/offline/lru_stack.h"

#include <math.h>
#include <string.h>

#define NONE         UINT32_MAX
#define SAMPLES_MIN  16u
#define PER_DOUBLING 64u
#define BUCKETS      (40u * PER_DOUBLING) /* up to 2^40 blocks */

typedef struct sample {
    uint64_t hash;
    uint32_t next; /* in its chain of the table, or of the free ones */
} sample;

struct quire_shards {
    quire_allocator allocator;
    quire_lru_stack stack;
    sample *samples;  /* [sample_max + 1]: one more is there before the greatest is dropped */
    uint32_t *chains; /* [mask + 1], heads by hash */
    uint32_t *heap;   /* [sample_max + 1], samples, the greatest hash first */
    uint32_t *found;  /* [found_capacity], samples of the request at hand */
    uint32_t found_capacity;
    uint32_t sample_max;
    uint32_t n;
    uint32_t free; /* first free sample */
    uint64_t mask;
    uint64_t seed;
    uint64_t threshold; /* hashes below it are followed; 0 = all are */
    uint64_t n_blocks;
    uint64_t n_sampled;
    double weight;        /* of all that was counted: first uses too */
    double hits[BUCKETS]; /* weights by distance */
};

static double rate_of(const quire_shards *s)
{
    return s->threshold == 0 ? 1.0 : (double)s->threshold * 0x1p-64;
}

static uint64_t hash_of(const quire_shards *s, uint64_t name)
{
    uint64_t x = name + s->seed + 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u; /* splitmix64's finish, see base/rng.h */
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int make_arrays(quire_shards *s)
{
    const size_t n = (size_t)s->sample_max + 1;

    s->mask = 31;
    while (s->mask + 1 < n) {
        s->mask = 2 * s->mask + 1;
    }
    s->samples = quire_array_alloc(&s->allocator, n, sizeof(*s->samples));
    s->heap = quire_array_alloc(&s->allocator, n, sizeof(*s->heap));
    s->chains = quire_array_alloc(&s->allocator, s->mask + 1, sizeof(*s->chains));
    if (s->samples == NULL || s->heap == NULL || s->chains == NULL) {
        return QUIRE_NOMEM;
    }
    memset(s->chains, 0xff, (s->mask + 1) * sizeof(*s->chains));
    for (uint32_t i = 0; i < n; i++) {
        s->samples[i].next = i + 1 < n ? i + 1 : NONE;
    }
    return quire_lru_stack_init(&s->stack, (uint32_t)n, &s->allocator);
}

int quire_shards_create(quire_shards **out, const quire_shards_opts *opts)
{
    const quire_allocator *allocator =
        opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    quire_shards *s;

    QUIRE_FAIL_IF(opts->sample_max < SAMPLES_MIN || opts->sample_max > QUIRE_SHARDS_SAMPLES_MAX,
                  QUIRE_INVAL);
    s = allocator->alloc(allocator->ctx, sizeof(*s));
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    memset(s, 0, sizeof(*s));
    s->allocator = *allocator;
    s->sample_max = opts->sample_max;
    s->seed = opts->seed;
    if (make_arrays(s) != QUIRE_OK) {
        quire_shards_destroy(s);
        return QUIRE_NOMEM;
    }
    *out = s;
    return QUIRE_OK;
}

void quire_shards_destroy(quire_shards *shards)
{
    quire_allocator allocator;

    if (shards == NULL) {
        return;
    }
    allocator = shards->allocator;
    if (shards->stack.slots != NULL) {
        quire_lru_stack_fini(&shards->stack);
    }
    quire_array_free(&allocator, shards->samples);
    quire_array_free(&allocator, shards->heap);
    quire_array_free(&allocator, shards->chains);
    quire_array_free(&allocator, shards->found);
    allocator.free(allocator.ctx, shards);
}

/* ---- the heap ---- */

static uint64_t heap_hash(const quire_shards *s, uint32_t at)
{
    return s->samples[s->heap[at]].hash;
}

static void heap_add(quire_shards *s, uint32_t added)
{
    uint32_t at = s->n++;

    s->heap[at] = added;
    while (at > 0 && heap_hash(s, (at - 1) / 2) < heap_hash(s, at)) {
        const uint32_t parent = (at - 1) / 2;

        s->heap[at] = s->heap[parent];
        s->heap[parent] = added;
        at = parent;
    }
}

static uint32_t heap_take(quire_shards *s)
{
    const uint32_t greatest = s->heap[0];
    const uint32_t moved = s->heap[--s->n];
    uint32_t at = 0;

    s->heap[0] = moved;
    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < s->n && heap_hash(s, child + 1) > heap_hash(s, child)) {
            child++;
        }
        if (child >= s->n || heap_hash(s, child) <= heap_hash(s, at)) {
            return greatest;
        }
        s->heap[at] = s->heap[child];
        s->heap[child] = moved;
        at = child;
    }
}

/* ---- samples ---- */

static uint32_t find(const quire_shards *s, uint64_t hash)
{
    uint32_t at = s->chains[hash & s->mask];

    while (at != NONE && s->samples[at].hash != hash) {
        at = s->samples[at].next;
    }
    return at;
}

static uint32_t follow(quire_shards *s, uint64_t hash)
{
    const uint32_t at = s->free;

    s->free = s->samples[at].next;
    s->samples[at] = (sample){ hash, s->chains[hash & s->mask] };
    s->chains[hash & s->mask] = at;
    heap_add(s, at);
    return at;
}

/* Drop the sample with the greatest hash, which becomes the threshold. */
static void drop_greatest(quire_shards *s)
{
    const uint32_t at = heap_take(s);
    const uint64_t hash = s->samples[at].hash;
    uint32_t *link = &s->chains[hash & s->mask];

    while (*link != at) {
        link = &s->samples[*link].next;
    }
    *link = s->samples[at].next;
    s->samples[at].next = s->free;
    s->free = at;
    s->threshold = hash > 0 ? hash : 1;
    quire_lru_stack_remove(&s->stack, at);
}

/* ---- requests ---- */

static uint32_t bucket_of(double distance)
{
    const double at = distance > 1.0 ? ceil(log2(distance) * PER_DOUBLING) : 0.0;

    return at < BUCKETS - 1 ? (uint32_t)at : BUCKETS - 1;
}

static int find_room(quire_shards *s, uint32_t n)
{
    uint32_t capacity = s->found_capacity > 0 ? s->found_capacity : 64;
    uint32_t *found;

    if (n <= s->found_capacity) {
        return QUIRE_OK;
    }
    while (capacity < n) {
        capacity = capacity <= UINT32_MAX / 2 ? 2 * capacity : n;
    }
    found = quire_array_alloc(&s->allocator, capacity, sizeof(*found));
    QUIRE_FAIL_IF(found == NULL, QUIRE_NOMEM);
    quire_array_free(&s->allocator, s->found);
    s->found = found;
    s->found_capacity = capacity;
    return QUIRE_OK;
}

/* The places in names of the blocks that are followed, counted by the distance that they have as
 * the request arrives. */
static uint32_t count_request(quire_shards *s, const uint64_t *names, uint32_t n)
{
    const double rate = rate_of(s);
    uint32_t n_found = 0;

    for (uint32_t i = 0; i < n; i++) {
        const uint64_t hash = hash_of(s, names[i]);
        uint32_t at;

        if (s->threshold != 0 && hash >= s->threshold) {
            continue;
        }
        s->found[n_found++] = i;
        s->weight += 1.0 / rate;
        at = find(s, hash);
        if (at != NONE) {
            s->hits[bucket_of(quire_lru_stack_depth(&s->stack, at) / rate)] += 1.0 / rate;
        }
    }
    return n_found;
}

int quire_shards_add(quire_shards *shards, const uint64_t *names, uint32_t n)
{
    uint32_t n_found;

    QUIRE_TRY(find_room(shards, n));
    n_found = count_request(shards, names, n);
    shards->n_blocks += n;
    shards->n_sampled += n_found;
    for (uint32_t i = n_found; i > 0; i--) {
        const uint64_t hash = hash_of(shards, names[shards->found[i - 1]]);
        uint32_t at = find(shards, hash);

        if (shards->threshold != 0 && hash >= shards->threshold) {
            continue; /* the threshold has sunk meanwhile */
        }
        if (at == NONE) {
            at = follow(shards, hash);
        }
        quire_lru_stack_use(&shards->stack, at);
        if (shards->n > shards->sample_max) {
            drop_greatest(shards);
        }
    }
    return QUIRE_OK;
}

int quire_shards_add_trace(quire_shards *shards, const quire_trace *trace)
{
    uint64_t *names =
        quire_array_alloc(&shards->allocator, quire_trace_longest_blocks(trace), sizeof(*names));
    int rc = QUIRE_OK;

    QUIRE_FAIL_IF(names == NULL, QUIRE_NOMEM);
    for (uint32_t r = 0; rc == QUIRE_OK && r < trace->n_requests; r++) {
        const uint32_t *ids = quire_trace_blocks(trace, &trace->requests[r]);

        for (uint32_t i = 0; i < trace->requests[r].n_blocks; i++) {
            names[i] = ids[i];
        }
        rc = quire_shards_add(shards, names, trace->requests[r].n_blocks);
    }
    quire_array_free(&shards->allocator, names);
    return rc;
}

double quire_shards_hit_rate(const quire_shards *shards, uint64_t capacity_blocks)
{
    double hits = (double)shards->n_blocks - shards->weight;
    uint32_t last;

    if (shards->n_blocks == 0 || capacity_blocks == 0) {
        return 0.0;
    }
    last = bucket_of((double)capacity_blocks);
    for (uint32_t i = 0; i <= last; i++) {
        hits += shards->hits[i];
    }
    hits /= (double)shards->n_blocks;
    return hits < 0.0 ? 0.0 : hits > 1.0 ? 1.0 : hits;
}

void quire_shards_stats_get(const quire_shards *shards, quire_shards_stats *out)
{
    *out = (quire_shards_stats){
        .blocks = shards->n_blocks,
        .sampled = shards->n_sampled,
        .samples = shards->n,
        .rate = rate_of(shards),
    };
}
