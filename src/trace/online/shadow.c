/* shadow.c - see shadow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/shadow.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/num.h"
#include "core/cache/counter.h"
#include "trace/sim/sim_tree.h"

#include <stdbool.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PAGE_TOKENS  QUIRE_PAGE_TOKENS_MIN
#define HOT_SLOTS    1024u
#define HOT_SHARE    16u   /* everybody's: more than one request in so many */
#define HOT_REQUESTS 64u   /* before that many nothing is */
#define HOT_FADE     4096u /* counts are halved after so many requests */
#define RATE_ONE     ((uint64_t)1 << 32)
#define SHARE_ONE    ((uint64_t)1 << 16)
#define SALT_SEED    0x5eedu
#define NODES_MIN    64u
#define BLOCK_BYTES  (QUIRE_SHADOW_BLOCK_TOKENS * sizeof(int32_t))

static const double factors[QUIRE_SHADOW_SIZES] = { 0.5, 1.0, 2.0 };

typedef struct ghost {
    quire_sim_tree tree;
    quire_counter capacity_blocks; /* that it stands for */
    quire_counter rate;            /* of RATE_ONE */
    uint64_t held_max;             /* blocks it may hold: rate x capacity */
    quire_counter blocks_total;
    quire_counter hit_blocks_total;
    quire_counter share; /* rate x blocks of all requests, in 1 / SHARE_ONE blocks */
} ghost;

/* How many of the last requests begin with a text: a slot is its most frequent text's. */
typedef struct hot_slot {
    uint64_t hash;
    uint32_t count;
} hot_slot;

struct quire_shadow {
    quire_shadow_opts opts;
    ghost ghosts[QUIRE_SHADOW_SIZES];
    hot_slot hot[HOT_SLOTS];
    uint32_t hot_requests; /* that the counts are of */
    uint64_t *hashes;      /* [blocks_max], of the text at hand */
    quire_counter requests_total;
    quire_counter sampled_total;
    quire_counter errors_total;
    quire_counter ns_total;
};

/* ---- create ---- */

/* Rate and capacity of a ghost for a real capacity. */
static void ghost_size(const quire_shadow *s, ghost *g, double factor, uint64_t capacity_blocks)
{
    uint64_t stands_for = (uint64_t)((double)capacity_blocks * factor);

    stands_for = quire_max_u64(stands_for, 1);
    g->held_max = quire_min_u64(stands_for, s->opts.nodes_max);
    quire_counter_set(&g->capacity_blocks, stands_for);
    quire_counter_set(&g->rate,
                      (uint64_t)((double)g->held_max / (double)stands_for * (double)RATE_ONE));
}

static int ghost_init(const quire_shadow *s, ghost *g)
{
    const quire_sim_opts sim = { .policy = s->opts.policy, .seed = s->opts.seed };
    const quire_sim_tree_opts opts = {
        .sim = &sim,
        .budget_blocks = (uint64_t)s->opts.nodes_max + s->opts.blocks_max,
        .blocks_max = s->opts.blocks_max,
        .seqs_max = 1,
    };
    quire_error err = QUIRE_ERROR_INIT;

    return quire_sim_tree_init(&g->tree, &opts, &err);
}

int quire_shadow_create(quire_shadow **out, const quire_shadow_opts *opts)
{
    const quire_allocator *allocator = quire_allocator_default();
    quire_shadow *s;
    int rc = QUIRE_OK;

    *out = NULL;
    QUIRE_FAIL_IF(opts->capacity_blocks == 0 || opts->nodes_max < NODES_MIN ||
                      opts->blocks_max == 0,
                  QUIRE_INVAL);
    s = allocator->alloc(allocator->ctx, sizeof *s);
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    memset(s, 0, sizeof *s);
    s->opts = *opts;
    s->hashes = allocator->alloc(allocator->ctx, opts->blocks_max * sizeof *s->hashes);
    rc = s->hashes == NULL ? QUIRE_NOMEM : QUIRE_OK;
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES && rc == QUIRE_OK; i++) {
        rc = ghost_init(s, &s->ghosts[i]);
        ghost_size(s, &s->ghosts[i], factors[i], opts->capacity_blocks);
    }
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
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        if (s->ghosts[i].tree.cache != NULL) {
            quire_sim_tree_fini(&s->ghosts[i].tree);
        }
    }
    allocator->free(allocator->ctx, s->hashes);
    allocator->free(allocator->ctx, s);
}

/* ---- which requests ---- */

/* Each hash stands for its block and what is before it. Returns the number of blocks. */
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

/* Count one more request that begins with this text. Returns whether it is everybody's. */
static bool is_hot(quire_shadow *s, uint64_t hash)
{
    hot_slot *slot = &s->hot[hash % HOT_SLOTS];

    if (slot->hash != hash) {
        if (slot->count > 0) {
            slot->count--;
            return false;
        }
        slot->hash = hash;
    }
    slot->count++;
    return s->hot_requests >= HOT_REQUESTS && (uint64_t)slot->count * HOT_SHARE > s->hot_requests;
}

/* What decides whether a text is sampled: the hash up to its first block that is its own. */
static uint64_t sample_key(quire_shadow *s, uint32_t n_blocks)
{
    uint32_t i = 0;

    if (++s->hot_requests == HOT_FADE) {
        s->hot_requests /= 2;
        for (uint32_t k = 0; k < HOT_SLOTS; k++) {
            s->hot[k].count /= 2;
        }
    }
    while (i + 1 < n_blocks && is_hot(s, s->hashes[i])) {
        i++;
    }
    return s->hashes[i];
}

/* ---- feeding ---- */

/* The tokens that spell the blocks: a hash in the first two of each page. */
static const int32_t *spell(const quire_shadow *s, ghost *g, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < n_blocks; i++) {
        int32_t *page = g->tree.tokens + (size_t)i * PAGE_TOKENS;

        page[0] = (int32_t)(uint32_t)s->hashes[i];
        page[1] = (int32_t)(uint32_t)(s->hashes[i] >> 32);
    }
    return g->tree.tokens;
}

static int ghost_serve(ghost *g, const int32_t *tokens, uint32_t n_asked, uint32_t n_blocks,
                       const quire_shadow_text *text)
{
    const quire_prefix_key key = { .identity = { 1, 1 } };
    const quire_prefix_acquire_opts opts = {
        .tokens_max = n_asked * PAGE_TOKENS,
        .now_us = text->now_us,
        .rank = text->rank,
    };
    quire_prefix_match match;
    quire_prefix_ref ref;
    quire_seq_id seq;
    int rc;

    QUIRE_TRY(quire_seq_open(g->tree.cache, QUIRE_REGION_DYNAMIC, &seq));
    rc = quire_prefix_acquire(g->tree.tree, &key, seq, tokens, n_asked * PAGE_TOKENS, &opts, &match,
                              &ref);
    if (rc == QUIRE_OK) {
        quire_counter_add(&g->blocks_total, n_asked);
        quire_counter_add(&g->hit_blocks_total, match.n_tokens / PAGE_TOKENS);
        rc = quire_seq_append(g->tree.cache, seq, n_blocks * PAGE_TOKENS - match.n_tokens);
        if (rc == QUIRE_OK) {
            rc = quire_prefix_publish(g->tree.tree, ref, tokens, n_blocks * PAGE_TOKENS,
                                      text->now_us);
        }
        (void)quire_prefix_release(g->tree.tree, ref, text->now_us);
    }
    (void)quire_seq_close(g->tree.cache, seq);
    quire_sim_tree_evict(&g->tree, g->held_max);
    return rc;
}

void quire_shadow_feed(quire_shadow *s, const quire_shadow_text *text)
{
    const uint64_t begin_ns = quire_clock_ns();
    const uint32_t n_blocks = hash_blocks(s, text);
    const uint32_t n_asked =
        text->n_prompt > 0
            ? quire_min_u32((text->n_prompt - 1) / QUIRE_SHADOW_BLOCK_TOKENS, n_blocks)
            : 0;
    uint64_t key;

    quire_counter_add(&s->requests_total, 1);
    if (n_blocks > 0) {
        key = sample_key(s, n_blocks) >> 32;
        for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
            ghost *g = &s->ghosts[i];

            quire_counter_add(&g->share, quire_counter_get(&g->rate) / SHARE_ONE * n_asked);
            if (key >= quire_counter_get(&g->rate)) {
                continue;
            }
            if (ghost_serve(g, spell(s, g, n_blocks), n_asked, n_blocks, text) < 0) {
                quire_counter_add(&s->errors_total, 1);
            }
            if (i + 1 == QUIRE_SHADOW_SIZES) {
                quire_counter_add(&s->sampled_total, 1);
            }
        }
    }
    quire_counter_add(&s->ns_total, quire_clock_ns() - begin_ns);
}

void quire_shadow_stats_get(const quire_shadow *s, quire_shadow_stats *out)
{
    *out = (quire_shadow_stats){
        .requests_total = quire_counter_get(&s->requests_total),
        .sampled_total = quire_counter_get(&s->sampled_total),
        .errors_total = quire_counter_get(&s->errors_total),
        .seconds_total = (double)quire_counter_get(&s->ns_total) * 1e-9,
    };
    for (uint32_t i = 0; i < QUIRE_SHADOW_SIZES; i++) {
        const ghost *g = &s->ghosts[i];

        out->sizes[i] = (quire_shadow_size_stats){
            .factor = factors[i],
            .capacity_blocks = quire_counter_get(&g->capacity_blocks),
            .blocks_total = quire_counter_get(&g->blocks_total),
            .hit_blocks_total = quire_counter_get(&g->hit_blocks_total),
            .share_blocks_total = quire_counter_get(&g->share) / SHARE_ONE,
            .sample_rate = (double)quire_counter_get(&g->rate) / (double)RATE_ONE,
        };
    }
}

double quire_shadow_hit_rate(const quire_shadow_size_stats *now,
                             const quire_shadow_size_stats *before)
{
    const quire_shadow_size_stats none = { 0 };
    const quire_shadow_size_stats *b = before != NULL ? before : &none;
    const double share = (double)(now->share_blocks_total - b->share_blocks_total);
    const double blocks = (double)(now->blocks_total - b->blocks_total);
    const double hits = (double)(now->hit_blocks_total - b->hit_blocks_total) + share - blocks;

    if (share < 1.0 || hits <= 0.0) {
        return 0.0;
    }
    return hits < share ? hits / share : 1.0;
}
