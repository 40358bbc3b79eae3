/* shadow.c - see shadow.h. A ring of nodes in order of use, cut into segments by the marks; a table
 * of chains finds a node by its hash.
 *
 * Invariants:
 * 1. Segment k holds the blocks between mark k - 1 and mark k: at most segment_max[k].
 * 2. Nodes of a segment stand next to each other, and those of segment k before those of k + 1.
 * 3. oldest[k] is the last node of segment k; 0 when it is empty.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/shadow.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "core/cache/counter.h"
#include "quire/alloc.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define RATE_ONE    ((uint64_t)1 << 32)
#define SALT_SEED   0x5eedu
#define NODES_MIN   64u
#define NODES_MAX   (1u << 30)
#define BLOCK_BYTES (QUIRE_SHADOW_BLOCK_TOKENS * sizeof(int32_t))
#define UNUSED      QUIRE_SHADOW_SIZES /* the segment of blocks not found */

static const double factors[QUIRE_SHADOW_SIZES] = { 0.5, 1.0, 2.0 };

/* Node 0 is the ring's head: its older one is the newest block. */
typedef struct node {
    uint64_t hash;
    uint32_t newer;
    uint32_t older; /* of a free node: the next free one */
    uint32_t chain; /* the next with the same place in the table; 0 = none */
    uint32_t segment;
} node;

struct quire_shadow {
    quire_shadow_opts opts;
    uint64_t rate; /* of RATE_ONE; constant */
    uint64_t capacity_blocks[QUIRE_SHADOW_SIZES];
    uint64_t segment_max[QUIRE_SHADOW_SIZES];
    uint64_t n_in_segment[QUIRE_SHADOW_SIZES];
    uint32_t oldest[QUIRE_SHADOW_SIZES];
    node *nodes;      /* [nodes_max + 2]: the head, and one more while a block comes in */
    uint32_t *chains; /* [n_chains], a power of two */
    uint32_t n_chains;
    uint32_t free;    /* the first free node; 0 = none */
    uint64_t *hashes; /* [blocks_max], of the text at hand */
    quire_counter hits[QUIRE_SHADOW_SIZES];
    quire_counter requests_total;
    quire_counter asking_total;
    quire_counter blocks_total;
    quire_counter asked_total; /* blocks, sampled or not */
    quire_counter ns_total;
};

/* ---- create ---- */

/* R and the marks: the largest size fills the list. */
static void marks_set(quire_shadow *s)
{
    uint64_t below = 0;
    uint64_t largest;

    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const double blocks = (double)s->opts.capacity_blocks * factors[i];

        s->capacity_blocks[i] = quire_max_u64((uint64_t)blocks, 1);
    }
    largest = s->capacity_blocks[QUIRE_SHADOW_SIZES - 1];
    s->rate = RATE_ONE;
    if (largest > s->opts.nodes_max) {
        s->rate = (uint64_t)((double)s->opts.nodes_max / (double)largest * (double)RATE_ONE);
        s->rate = quire_max_u64(s->rate, 1);
    }
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const double share = (double)s->rate / (double)RATE_ONE;
        uint64_t mark = (uint64_t)((double)s->capacity_blocks[i] * share + 0.5);

        mark = quire_min_u64(quire_max_u64(mark, 1), s->opts.nodes_max);
        s->segment_max[i] = mark - below;
        below = mark;
    }
}

static int arrays_create(quire_shadow *s)
{
    const quire_allocator *allocator = quire_allocator_default();
    const uint32_t n_nodes = s->opts.nodes_max + 2;

    for (s->n_chains = NODES_MIN; s->n_chains < s->opts.nodes_max;) {
        s->n_chains *= 2;
    }
    s->hashes = allocator->alloc(allocator->ctx, s->opts.blocks_max * sizeof *s->hashes);
    s->nodes = allocator->alloc(allocator->ctx, n_nodes * sizeof *s->nodes);
    s->chains = allocator->alloc(allocator->ctx, s->n_chains * sizeof *s->chains);
    if (s->hashes == NULL || s->nodes == NULL || s->chains == NULL) {
        return QUIRE_NOMEM;
    }
    memset(s->nodes, 0, n_nodes * sizeof *s->nodes);
    memset(s->chains, 0, s->n_chains * sizeof *s->chains);
    for (uint32_t i = n_nodes - 1; i > 0; i--) {
        s->nodes[i].older = s->free;
        s->free = i;
    }
    return QUIRE_OK;
}

int quire_shadow_create(quire_shadow **out, const quire_shadow_opts *opts)
{
    const quire_allocator *allocator = quire_allocator_default();
    quire_shadow *s;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(opts->capacity_blocks == 0 || opts->nodes_max < NODES_MIN ||
                      opts->nodes_max > NODES_MAX || opts->blocks_max == 0,
                  QUIRE_INVAL);
    s = allocator->alloc(allocator->ctx, sizeof *s);
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    memset(s, 0, sizeof *s);
    s->opts = *opts;
    marks_set(s);
    rc = arrays_create(s);
    if (rc < 0) {
        quire_shadow_destroy(s);
        return rc;
    }
    *out = s;
    return QUIRE_OK;
}

void quire_shadow_destroy(quire_shadow *s)
{
    const quire_allocator *allocator = quire_allocator_default();

    if (s == NULL) {
        return;
    }
    allocator->free(allocator->ctx, s->chains);
    allocator->free(allocator->ctx, s->nodes);
    allocator->free(allocator->ctx, s->hashes);
    allocator->free(allocator->ctx, s);
}

/* ---- the list ---- */

static uint32_t *chain_of(quire_shadow *s, uint64_t hash)
{
    return &s->chains[(uint32_t)hash & (s->n_chains - 1)]; /* the high bits decide the sample */
}

static uint32_t find(quire_shadow *s, uint64_t hash)
{
    uint32_t i = *chain_of(s, hash);

    while (i != 0 && s->nodes[i].hash != hash) {
        i = s->nodes[i].chain;
    }
    return i;
}

/* The oldest of a segment leaves it, without leaving the list. */
static void segment_shrink(quire_shadow *s, uint32_t k)
{
    const uint32_t newer = s->nodes[s->oldest[k]].newer;

    s->n_in_segment[k]--;
    s->oldest[k] = s->n_in_segment[k] > 0 ? newer : 0;
}

static void unlink_node(quire_shadow *s, uint32_t i)
{
    const node *n = &s->nodes[i];

    s->nodes[n->newer].older = n->older;
    s->nodes[n->older].newer = n->newer;
}

/* A block takes its place as the newest of all. */
static void push(quire_shadow *s, uint32_t i)
{
    node *n = &s->nodes[i];

    n->newer = 0;
    n->older = s->nodes[0].older;
    s->nodes[n->older].newer = i;
    s->nodes[0].older = i;
    n->segment = 0;
    s->n_in_segment[0]++;
    s->oldest[0] = s->oldest[0] != 0 ? s->oldest[0] : i;
}

/* Forget the block, which stands in no segment any more. */
static void drop(quire_shadow *s, uint32_t i)
{
    uint32_t *at = chain_of(s, s->nodes[i].hash);

    while (*at != i) {
        at = &s->nodes[*at].chain;
    }
    *at = s->nodes[i].chain;
    unlink_node(s, i);
    s->nodes[i].older = s->free;
    s->free = i;
}

/* Blocks beyond their segment's mark move on to the next segment, and out of the last one. */
static void spill(quire_shadow *s)
{
    for (uint32_t k = 0; k < QUIRE_SHADOW_SIZES && s->n_in_segment[k] > s->segment_max[k]; k++) {
        const uint32_t i = s->oldest[k];

        segment_shrink(s, k);
        s->nodes[i].segment = k + 1;
        if (k + 1 == QUIRE_SHADOW_SIZES) {
            drop(s, i);
        } else {
            s->n_in_segment[k + 1]++;
            s->oldest[k + 1] = s->oldest[k + 1] != 0 ? s->oldest[k + 1] : i;
        }
    }
}

/* The block is used now. */
static void use(quire_shadow *s, uint64_t hash)
{
    uint32_t i = find(s, hash);

    if (i != 0) {
        const uint32_t k = s->nodes[i].segment;

        if (s->oldest[k] == i) {
            segment_shrink(s, k);
        } else {
            s->n_in_segment[k]--;
        }
        unlink_node(s, i);
    } else {
        i = s->free;
        QUIRE_CHECK(i != 0);
        s->free = s->nodes[i].older;
        s->nodes[i].hash = hash;
        s->nodes[i].chain = *chain_of(s, hash);
        *chain_of(s, hash) = i;
    }
    push(s, i);
    spill(s);
}

/* ---- feeding ---- */

/* Each hash covers its block and all earlier blocks. Returns the number of blocks. */
static uint32_t hash_blocks(quire_shadow *s, const quire_shadow_text *text)
{
    const uint32_t n =
        quire_min_u32(text->n_tokens / QUIRE_SHADOW_BLOCK_TOKENS, s->opts.blocks_max);
    uint64_t hash = XXH3_64bits_withSeed(text->salt, text->salt_bytes, s->opts.seed ^ SALT_SEED);

    for (uint32_t i = 0; i < n; i++) {
        hash = XXH3_64bits_withSeed(text->tokens + (size_t)i * QUIRE_SHADOW_BLOCK_TOKENS,
                                    BLOCK_BYTES, hash);
        s->hashes[i] = hash;
    }
    return n;
}

static bool is_sampled(const quire_shadow *s, uint64_t hash)
{
    return hash >> 32 < s->rate;
}

/* Count the sampled blocks among the first n_asked, and for each size the cached ones. */
static void count_hits(quire_shadow *s, uint32_t n_asked)
{
    uint64_t n_sampled = 0;

    for (uint32_t i = 0; i < n_asked; i++) {
        uint32_t found;

        if (!is_sampled(s, s->hashes[i])) {
            continue;
        }
        n_sampled++;
        found = find(s, s->hashes[i]);
        for (uint32_t k = found != 0 ? s->nodes[found].segment : UNUSED; k < QUIRE_SHADOW_SIZES;
             k++) {
            quire_counter_add(&s->hits[k], 1);
        }
    }
    quire_counter_add(&s->blocks_total, n_sampled);
    quire_counter_add(&s->asking_total, n_sampled > 0);
    quire_counter_add(&s->asked_total, n_asked);
}

void quire_shadow_feed(quire_shadow *s, const quire_shadow_text *text)
{
    const uint64_t begin_ns = quire_clock_ns();
    const uint32_t n_blocks = hash_blocks(s, text);
    const uint32_t n_asked =
        text->n_prompt > 0
            ? quire_min_u32((text->n_prompt - 1) / QUIRE_SHADOW_BLOCK_TOKENS, n_blocks)
            : 0;

    quire_counter_add(&s->requests_total, 1);
    count_hits(s, n_asked);
    for (uint32_t i = n_blocks; i > 0; i--) {
        if (is_sampled(s, s->hashes[i - 1])) {
            use(s, s->hashes[i - 1]);
        }
    }
    quire_counter_add(&s->ns_total, quire_clock_ns() - begin_ns);
}

/* ---- figures ---- */

void quire_shadow_stats_get(const quire_shadow *s, quire_shadow_stats *out)
{
    const double share = (double)s->rate / (double)RATE_ONE;
    const double expected = share * (double)quire_counter_get(&s->asked_total);

    *out = (quire_shadow_stats){
        .requests_total = quire_counter_get(&s->requests_total),
        .asking_total = quire_counter_get(&s->asking_total),
        .blocks_total = quire_counter_get(&s->blocks_total),
        .expected_blocks_total = (uint64_t)(expected + 0.5),
        .sample_rate = share,
        .seconds_total = (double)quire_counter_get(&s->ns_total) * 1e-9,
    };
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        out->sizes[i] = (quire_shadow_size_stats){
            .factor = factors[i],
            .capacity_blocks = s->capacity_blocks[i],
            .hit_blocks_total = quire_counter_get(&s->hits[i]),
        };
    }
}

bool quire_shadow_is_telling(const quire_shadow_stats *stats)
{
    return stats->asking_total >= QUIRE_SHADOW_REQUESTS_MIN &&
           stats->blocks_total >= QUIRE_SHADOW_BLOCKS_MIN;
}

double quire_shadow_hit_rate(const quire_shadow_stats *stats, uint32_t size)
{
    const double expected = (double)stats->expected_blocks_total;
    const double missing = expected - (double)stats->blocks_total;
    const double hits = (double)stats->sizes[size].hit_blocks_total + missing;

    if (expected < 1.0 || hits <= 0.0) {
        return 0.0;
    }
    return hits < expected ? hits / expected : 1.0;
}
