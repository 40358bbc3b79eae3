/* fuzz_prefix.c - bytes become operations on a prefix tree, checked by validate and by stamps.
 *
 * Byte 0: groups - 1, page tokens, page exact, TTL, low traffic, ghosts, a pinned region and
 * whether it spills, 1 bit each. Byte 1: budget in pages, and with it the eviction policy. Then
 * operation, argument; operation, argument; ...
 *
 * Also from the input: allocations that fail. Tokens are 0 and 1, so that prefixes meet. Each slot
 * holds a hash of its key and of all tokens up to it: a hit on a wrong page is seen.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/hash.h"
#include "core/cache/cache_internal.h"
#include "quire/prefix.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RUNS_MAX   6u
#define TOKENS_MAX 512u
#define OPS_MAX    500u /* bounds the time of one input */
#define SLOT_BYTES 64u

typedef struct run {
    quire_seq_id seq;
    quire_prefix_ref ref;
    uint32_t key;
    uint32_t n_tokens;
    uint32_t n_published;
    int32_t tokens[TOKENS_MAX];
} run;

typedef struct fuzz {
    quire_cache *cache;
    quire_prefix *tree;
    uint32_t n_allocs; /* that succeed before one fails; 0 = none fails */
    uint64_t now_us;
    quire_region_id pinned; /* 0 = there is none */
    run runs[RUNS_MAX];
    uint32_t n_runs;
} fuzz;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void *fuzz_alloc(void *ctx, size_t size_bytes)
{
    fuzz *f = ctx;

    if (f->n_allocs > 0 && --f->n_allocs == 0) {
        return NULL;
    }
    return quire_allocator_default()->alloc(NULL, size_bytes);
}

static void fuzz_free(void *ctx, void *ptr)
{
    (void)ctx;
    quire_allocator_default()->free(NULL, ptr);
}

static quire_prefix_key key_of(uint32_t key)
{
    return (
        quire_prefix_key){ .identity = { 1 + key % 2, 2 }, .salt = "aa", .salt_bytes = key / 2 };
}

static void stamps(const fuzz *f, const run *r, uint32_t written_from)
{
    const uint32_t page_tokens = f->cache->opts.page_tokens;
    uint64_t stamp = quire_hash_add(QUIRE_HASH_INIT, &r->key, sizeof r->key);
    quire_seq_table table;

    for (uint32_t i = 0; i < r->n_tokens; i++) {
        stamp = quire_hash_add(stamp, &r->tokens[i], sizeof r->tokens[i]);
        for (uint32_t g = 0; g < f->cache->opts.n_groups; g++) {
            const uint32_t entry = i / page_tokens;
            quire_page_addr addr;
            quire_page_id page;
            unsigned char *at;

            QUIRE_CHECK(quire_seq_table_get(f->cache, r->seq, (quire_group_id)g, &table) ==
                        QUIRE_OK);
            page = table.leaves[entry / QUIRE_LEAF_ENTRIES][entry % QUIRE_LEAF_ENTRIES].page;
            if (page == QUIRE_PAGE_NULL) {
                QUIRE_CHECK(g > 0);
                continue;
            }
            addr = quire_cache_page_addrs(f->cache)[page];
            at = addr.extent + (addr.slot * page_tokens + i % page_tokens) * SLOT_BYTES;
            if (i >= written_from) {
                memcpy(at, &stamp, sizeof stamp);
            }
            QUIRE_CHECK(memcmp(at, &stamp, sizeof stamp) == 0);
        }
    }
}

static void op_start(fuzz *f, uint8_t op, uint8_t arg)
{
    run *r = &f->runs[f->n_runs];
    const quire_prefix_key key = key_of(op >> 4 & 3);
    quire_prefix_acquire_opts opts = { .owner = op >> 6, .now_us = f->now_us };
    quire_prefix_match match;
    uint32_t n = 1 + arg % 200u;
    const quire_region_id region = (op >> 5 & 1) != 0 ? f->pinned : QUIRE_REGION_DYNAMIC;

    if (f->n_runs == RUNS_MAX || quire_seq_open(f->cache, region, &r->seq) < 0) {
        return;
    }
    opts.rank = (uint8_t)(op >> 5 & 3);
    opts.account = (uint16_t)(op >> 6);
    r->key = op >> 4 & 3;
    if (f->n_runs > 0 && (arg & 1) != 0) { /* like another, up to a place */
        memcpy(r->tokens, f->runs[0].tokens, sizeof r->tokens);
        r->tokens[n / 2] ^= arg >> 7;
    } else {
        for (uint32_t i = 0; i < TOKENS_MAX; i++) {
            r->tokens[i] = (arg >> i % 8) & 1;
        }
    }
    opts.tokens_max = n - (op & 1u);
    opts.is_private = (op & 2) != 0 && (arg & 2) != 0;
    r->n_tokens = 0;
    r->n_published = 0;
    if (quire_prefix_acquire(f->tree, &key, r->seq, r->tokens, n, &opts, &match, &r->ref) < 0) {
        QUIRE_CHECK(quire_seq_tokens(f->cache, r->seq) == 0);
        QUIRE_CHECK(quire_seq_close(f->cache, r->seq) == QUIRE_OK);
        return;
    }
    QUIRE_CHECK(match.n_tokens <= opts.tokens_max && match.n_tokens <= match.n_same_tokens);
    r->n_tokens = match.n_tokens;
    QUIRE_CHECK(quire_seq_tokens(f->cache, r->seq) == r->n_tokens);
    stamps(f, r, TOKENS_MAX);
    f->n_runs++;
}

static void op_append(fuzz *f, run *r, uint32_t n)
{
    const uint32_t before = r->n_tokens;

    n = n < TOKENS_MAX - before ? n : TOKENS_MAX - before;
    if (n > 0 && quire_seq_append(f->cache, r->seq, n) == QUIRE_OK) {
        r->n_tokens += n;
        stamps(f, r, before);
    }
}

static void op_end(fuzz *f, run *r)
{
    stamps(f, r, TOKENS_MAX);
    QUIRE_CHECK(quire_prefix_release(f->tree, r->ref, f->now_us) == QUIRE_OK);
    QUIRE_CHECK(quire_seq_close(f->cache, r->seq) == QUIRE_OK);
    *r = f->runs[--f->n_runs];
}

static void op_tree(fuzz *f, const run *r, uint8_t arg)
{
    const quire_prefix_key key = key_of(arg & 3);

    switch (arg >> 5) {
    case 0:
        (void)quire_prefix_drop_all(f->tree, f->now_us);
        break;
    case 1:
        (void)quire_prefix_drop_salt(f->tree, key.salt, key.salt_bytes, f->now_us);
        break;
    case 2:
        (void)quire_prefix_drop_owner(f->tree, arg & 3, f->now_us);
        break;
    case 3:
    case 4:
        if (r != NULL) {
            (void)quire_prefix_drop_prefix(f->tree, &key, r->tokens, r->n_tokens * (arg & 31u) / 31,
                                           f->now_us);
        }
        break;
    case 5:
        (void)quire_prefix_expire(f->tree, f->now_us, arg & 31);
        break;
    default:
        (void)quire_prefix_evict(f->tree, (arg & 1) != 0 ? f->pinned : 0, (arg & 63u) * 1000);
        break;
    }
}

static void one_op(fuzz *f, uint8_t op, uint8_t arg)
{
    run *r = f->n_runs > 0 ? &f->runs[(op >> 4) % f->n_runs] : NULL;

    f->now_us += arg;
    switch (op % 16) {
    case 12:
        op_tree(f, r, arg);
        break;
    case 13:
        (void)quire_cache_coalesce(f->cache, arg);
        (void)quire_cache_trim(f->cache, 0);
        quire_cache_maintain(f->cache);
        if (f->pinned != 0) {
            (void)quire_region_transfer(f->cache, (arg & 1) != 0 ? f->pinned : 0,
                                        (arg & 1) != 0 ? 0 : f->pinned, arg * 5000u);
        }
        break;
    case 14:
        f->n_allocs = arg % 16;
        break;
    case 15:
        if (r != NULL) {
            (void)quire_seq_release(f->cache, r->seq, 1, 0, r->n_tokens * (arg % 16u) / 15, NULL);
        }
        break;
    default:
        if (r == NULL || op % 16 < 3) {
            op_start(f, op, arg);
        } else if (op % 16 < 7) {
            op_append(f, r, op % 16 < 5 ? arg % 8u : arg % 150u);
        } else if (op % 16 < 10) {
            (void)quire_prefix_publish(f->tree, r->ref, r->tokens,
                                       r->n_tokens - arg % 3u % (r->n_tokens + 1), f->now_us);
        } else {
            op_end(f, r);
        }
        break;
    }
}

static bool fuzz_create(fuzz *f, const uint8_t *head)
{
    const quire_allocator allocator = { fuzz_alloc, fuzz_free, f };
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;
    quire_prefix_opts prefix_opts = QUIRE_PREFIX_OPTS_INIT;

    opts.allocator = &allocator;
    opts.n_groups = 1 + head[0] % 2u;
    opts.page_tokens = QUIRE_PAGE_TOKENS_MIN << (head[0] >> 1 & 1);
    opts.page_bytes[0] = (size_t)opts.page_tokens * SLOT_BYTES;
    opts.page_bytes[1] = opts.page_bytes[0];
    if (opts.n_groups > 1 && (head[0] & 64) != 0) {
        opts.needs_last_tokens[1] = 1 + head[1] % (3u * opts.page_tokens);
    }
    opts.budget_bytes = (1 + (uint64_t)head[1]) * opts.page_bytes[0];
    opts.seqs_max = RUNS_MAX;
    opts.seq_tokens_max = TOKENS_MAX;
    opts.watermark_pages_max = 4;
    if (quire_cache_create(&f->cache, &opts) < 0) {
        return false;
    }
    prefix_opts.cache = f->cache;
    prefix_opts.allocator = &allocator;
    prefix_opts.policy = (quire_evict_policy)(head[1] % QUIRE_EVICT_POLICY_COUNT);
    prefix_opts.is_page_exact = (head[0] & 4) != 0;
    prefix_opts.ttl_us = (head[0] & 8) != 0 ? 3000 : 0;
    prefix_opts.low_traffic_after_us = (head[0] & 16) != 0 ? 1000 : 0;
    prefix_opts.low_traffic_hits_per_hour = 1e6;
    prefix_opts.ghosts_max = (head[0] & 32) != 0 ? 5 : 0;
    prefix_opts.roots_max = 3;
    prefix_opts.refs_max = RUNS_MAX;
    if (quire_prefix_create(&f->tree, &prefix_opts) < 0) {
        quire_cache_destroy(f->cache);
        return false;
    }
    f->pinned = 0;
    if ((head[0] & 64) != 0) {
        quire_region_opts region_opts = QUIRE_REGION_OPTS_INIT;

        region_opts.budget_bytes = opts.budget_bytes / 4;
        region_opts.spills_to_dynamic = (head[0] & 128) != 0;
        QUIRE_CHECK(quire_region_open(f->cache, &region_opts, &f->pinned) == QUIRE_OK);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    static fuzz f; /* too large for a stack */
    uint32_t n_ops = 0;

    if (size_bytes < 2) {
        return 0;
    }
    f.n_runs = 0;
    f.n_allocs = 0;
    f.now_us = 0;
    if (!fuzz_create(&f, data)) {
        return 0;
    }
    for (size_t at = 2; at + 1 < size_bytes && n_ops < OPS_MAX; at += 2, n_ops++) {
        one_op(&f, data[at], data[at + 1]);
        if (n_ops % 4 == 0) {
            quire_prefix_validate(f.tree);
            quire_cache_validate(f.cache);
        }
    }
    while (f.n_runs > 0) {
        op_end(&f, &f.runs[0]);
    }
    quire_prefix_validate(f.tree);
    QUIRE_CHECK(f.pinned == 0 || quire_region_close(f.cache, f.pinned) == QUIRE_OK);
    quire_prefix_destroy(f.tree);
    quire_cache_validate(f.cache);
    quire_cache_destroy(f.cache);
    return 0;
}
