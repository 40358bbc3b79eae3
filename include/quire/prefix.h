/* quire/prefix.h - the prefix tree: which pages hold the KV of which tokens.
 *
 * One tree per cache. A node is one page's worth of tokens and the pages, one per group, that hold
 * them; a path from a root spells a token sequence. Sequences publish what they have computed and
 * new sequences begin with what is there, sharing the pages by reference.
 *
 *   root {identity, salt}                  identity: everything that makes KV bytes valid
 *    '- node 64 tokens, page 7             salt: the tenant; no hit crosses either
 *        |- node 64 tokens, page 9
 *        |   '- node 21 tokens, page 12    an open page: the last of a sequence, partly filled
 *        '- node 64 tokens, page 31        shares k < 64 tokens with page 9: found too, a hit is
 *                                          token-exact unless page_exact is set
 *
 * Token ids are stored and compared; a hash only finds the candidate.
 *
 * A *ref* ties a sequence to the path it was filled from and publishes to. While refs end at or
 * below a node it is not evicted. When a ref is released, what its sequence published stays cached
 * until it is evicted (memory runs short), expires (ttl) or is
 * invalidated.
 *
 * An open page that its sequence still appends to can be hit: the reader is bounded by the number
 * of tokens that were published; the sequence goes on in place, and a reader that appends gets a
 * page of its own. When the sequence is gone, the last holder of the page goes on in place.
 *
 * Groups above 0 may have holes (quire_seq_release()): a node then has no page in that group, and a
 * sequence filled from it has a hole too. A hit does not end inside such a page: it would have to
 * be appended to. As a sequence goes on, publishing lets go of the pages that it released itself
 * and that no other sequence holds, so that hot pages of old tokens do not stay because of the
 * tree. A hole in group 0 ends what is published.
 *
 * A sequence that was truncated and goes on with other tokens publishes these beside the old ones.
 *
 * Time is the caller's (microseconds of any clock that does not go back): core has no clock.
 *
 * Thread: owner of the cache; quire_prefix_stats_get() from anywhere.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_PREFIX_H
#define QUIRE_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"
#include "quire/cache.h"
#include "quire/status.h"
#include "quire/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct quire_prefix quire_prefix;
typedef uint64_t quire_prefix_ref; /* 0 names nothing; a released one is not found again */

#define QUIRE_PREFIX_REF_NULL   0u
#define QUIRE_PREFIX_SALT_MAX   256u /* bytes */
#define QUIRE_PREFIX_NODES_MAX  QUIRE_PAGES_MAX
#define QUIRE_PREFIX_GHOSTS_MAX (1u << 24)

/* Which cached page goes next.  X(symbol, value, "name")
 *
 * Whatever the policy, only leaves go, and constraints come first: what has expired, what the
 * low-traffic rule names, accounts above their quota; then the lowest rank that has candidates, and
 * in it the account furthest above its fair share. Pinned pages are no candidates. */
#define QUIRE_EVICT_POLICY_MAP(X)                                                                  \
    X(DEFAULT, 0, "default") /* predicts: see docs/eviction.md */                                  \
    X(LRU, 1, "lru")                                                                               \
    X(LFU, 2, "lfu")                                                                               \
    X(SLRU, 3, "slru")                                                                             \
    X(FIFO, 4, "fifo")                                                                             \
    X(S3FIFO, 5, "s3fifo")                                                                         \
    X(SIEVE, 6, "sieve")                                                                           \
    X(ARC, 7, "arc")                                                                               \
    X(GDSF, 8, "gdsf")

typedef enum quire_evict_policy {
#define X(sym, val, name) QUIRE_EVICT_##sym = (val),
    QUIRE_EVICT_POLICY_MAP(X)
#undef X
    QUIRE_EVICT_POLICY_COUNT
} quire_evict_policy;
/* "unknown" outside the table. */
const char *quire_evict_policy_name(quire_evict_policy policy);
/* Errors: QUIRE_NOTFOUND. */
int quire_evict_policy_find(const char *name, quire_evict_policy *out);

#define QUIRE_RANKS_MAX    8u    /* service classes: rank 0 is the first to go */
#define QUIRE_ACCOUNTS_MAX 1024u /* tenants with a quota or a share of their own; 0 is the rest */

typedef struct quire_prefix_opts {
    uint32_t struct_bytes;
    quire_evict_policy policy;
    quire_cache *cache;  /* borrowed; destroy the tree before it. Payloads are never looked at */
    bool is_page_exact;  /* hits end at full pages: sealed formats */
    uint32_t roots_max;  /* distinct (identity, salt); default 65536; beyond it the root that was
                            not asked for longest goes, of those that nobody runs on */
    uint32_t refs_max;   /* default 4096 */
    uint32_t ghosts_max; /* evicted pages remembered, to explain misses; default 65536, 0 = off */
    uint64_t ttl_us;     /* nodes not used for so long expire; 0 = never */
    /* A prefix older than this and hit less often than so many times an hour is evicted before all
     * others. 0 = no such rule. */
    uint64_t low_traffic_after_us;
    double low_traffic_hits_per_hour;
    /* Any number that who makes prompts cannot know: orders and hashes depend on it, so that no
     * prompts can be made that slow the tree. 0 = taken from addresses. */
    uint64_t seed;
    const quire_allocator *allocator; /* NULL = C library */
} quire_prefix_opts;

#define QUIRE_PREFIX_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_prefix_opts), .roots_max = 65536, .refs_max = 4096, \
        .ghosts_max = 65536                                                                        \
    }

/* Create the tree. From now on the cache asks it for pages before QUIRE_NOPAGES, QUIRE_NOMEM or
 * QUIRE_LIMIT is returned. Errors: QUIRE_INVAL (an option, or the cache has a tree), QUIRE_NOMEM.
 */
int quire_prefix_create(quire_prefix **out, const quire_prefix_opts *opts);
/* Lets go of every cached page. Refs still held are gone too; their sequences stay. */
void quire_prefix_destroy(quire_prefix *tree);

typedef struct quire_prefix_key {
    uint64_t identity[2];
    const void *salt; /* compared byte by byte; NULL with salt_bytes 0 */
    uint32_t salt_bytes;
} quire_prefix_key;

/* ---- keys of texts ----
 *
 * A text has a key of 128 bits, equal in every process and on every machine. Keys are made page by
 * page:
 *
 *   of a root   H("quire text 1", identity, salt_bytes, salt)
 *   of a node   H(key of its parent, its tokens)
 *
 * H is XXH3-128 without a seed over these bytes one after the other; identity is two numbers of 8
 * bytes, salt_bytes one of 4, tokens are of 4 bytes each, all least significant byte first. A key
 * is H's canonical form, most significant byte first. A node that is partly filled has a key of
 * the tokens that it has.
 *
 * H is not cryptographic: two texts with one key can be constructed. A store must keep the tokens
 * beside the key and compare them. The tree's own look-ups use other hashes, which depend on
 * opts.seed. */

#define QUIRE_PAGE_KEY_BYTES 16u

typedef struct quire_page_key {
    unsigned char bytes[QUIRE_PAGE_KEY_BYTES];
} quire_page_key;

/* The key of a root. Thread: any. */
void quire_prefix_key_root(const quire_prefix_key *key, quire_page_key *out);

/* The key of the text that goes on behind `parent`'s with one page's tokens: n_tokens is from 1 to
 * page_tokens. out may be parent. Thread: any. */
void quire_prefix_key_add(const quire_page_key *parent, const int32_t *tokens, uint32_t n_tokens,
                          quire_page_key *out);

/* Why a lookup ended where it did.  X(symbol, value, "name") */
#define QUIRE_PREFIX_END_MAP(X)                                                                    \
    X(WHOLE, 0, "whole") /* everything asked for was found */                                      \
    X(NEW, 1, "new")     /* nothing was ever published under this key (or not within memory) */    \
    X(ENDED, 2, "ended") /* the cached text is a prefix of what was asked for */                   \
    X(DIVERGED, 3, "diverged") /* other tokens are cached at this place */                         \
    X(EVICTED, 4, "evicted")   /* it was there and was evicted, expired or invalidated */          \
    X(ROUNDED, 5, "rounded")   /* all was found, but the hit has to end at a full page:            \
                                  is_page_exact, or a page with a hole */

typedef enum quire_prefix_end {
#define X(sym, val, name) QUIRE_PREFIX_END_##sym = (val),
    QUIRE_PREFIX_END_MAP(X)
#undef X
} quire_prefix_end;
const char *quire_prefix_end_name(quire_prefix_end end);

/* Why nodes went.  X(symbol, value, "name") */
#define QUIRE_PREFIX_GONE_MAP(X)                                                                   \
    X(NONE, 0, "none")                                                                             \
    X(MEMORY, 1, "memory")           /* chosen by the policy when pages were short */              \
    X(LOW_TRAFFIC, 2, "low_traffic") /* likewise, chosen by the low-traffic rule */                \
    X(TTL, 3, "ttl")                                                                               \
    X(INVALIDATED, 4, "invalidated")                                                               \
    X(CLOSED, 5, "closed") /* its session was closed */

typedef enum quire_prefix_gone {
#define X(sym, val, name) QUIRE_PREFIX_GONE_##sym = (val),
    QUIRE_PREFIX_GONE_MAP(X)
#undef X
    QUIRE_PREFIX_GONE_COUNT
} quire_prefix_gone;
const char *quire_prefix_gone_name(quire_prefix_gone gone);

typedef struct quire_prefix_match {
    uint32_t n_tokens;      /* that can be used: shared by the sequence, after acquire */
    uint32_t n_same_tokens; /* equal to something cached, before rounding to pages or the limit */
    quire_prefix_end end;   /* why it ended at n_same_tokens */
    int32_t cached_token;   /* DIVERGED: what another branch has there (of several, one whose tokens
                               are next to these in order); else -1 */
    uint32_t n_gone_tokens; /* EVICTED: how many tokens after n_same_tokens were there once, as far
                               as whole pages and ends of texts show */
    quire_prefix_gone gone; /* EVICTED: why */
    uint64_t gone_us;       /* EVICTED: when */
} quire_prefix_match;

/* What acquire would find. Changes nothing: no counters, no recency.
 * Cost: a hash and a comparison of page_tokens ids per page. */
void quire_prefix_lookup(const quire_prefix *tree, const quire_prefix_key *key,
                         const int32_t *tokens, uint32_t n_tokens, quire_prefix_match *match);

/* A lookup, and the pages that acquire would take, by the region they are charged to. Pinned pages
 * are in neither sum: a hit changes nothing about their charge. */
typedef struct quire_prefix_claim {
    quire_prefix_match match;
    uint32_t n_tokens; /* of the match, at most tokens_max: acquire would use so many */
    uint64_t cached_bytes[QUIRE_REGIONS_MAX]; /* only the tree holds them: in use after acquire */
    uint64_t live_bytes[QUIRE_REGIONS_MAX];   /* sequences hold them already */
} quire_prefix_claim;

/* Changes nothing. Cost: quire_prefix_lookup(), and a look at each page of the match. */
void quire_prefix_claim_get(const quire_prefix *tree, const quire_prefix_key *key,
                            const int32_t *tokens, uint32_t n_tokens, uint32_t tokens_max,
                            quire_prefix_claim *claim);

/* A number, never 0, that changes whenever a lookup may have another answer than before: when nodes
 * or refs come and go, when a node loses a page, and when pages get pinned or charged to another
 * region. While it stays, the answer of a lookup holds, but for cached_token where several branches
 * are next to each other (which of them it names depends on their use), and that of a claim if
 * quire_cache_generation() stays too. Cost: O(1). */
uint64_t quire_prefix_generation(const quire_prefix *tree);

typedef struct quire_prefix_acquire_opts {
    uint32_t tokens_max; /* use at most so many (a full hit computes its last token again) */
    uint64_t owner;      /* who publishes: a session's number; 0 = nobody in particular */
    uint64_t now_us;
    bool is_private;   /* publish nothing (cache_prompt: false); hits are used all the same */
    bool is_miss;      /* use nothing: for comparisons */
    uint8_t rank;      /* of who asks: pages keep the highest rank that used them */
    uint16_t account;  /* of the tenant; counts when the key is new (a root belongs to one) */
    bool is_uncounted; /* no part of the statistics: the owner itself asks, not a client */
} quire_prefix_acquire_opts;

/* Tie an open, empty sequence to the tree and fill it with the longest prefix of tokens that is
 * cached. Counts n_tokens queried and match->n_tokens hit; makes the path most recently used.
 * Memory: *ref is released with quire_prefix_release(), before the sequence is closed.
 * Errors: QUIRE_NOTFOUND (no such sequence), QUIRE_INVAL (it has tokens, reserved room or a ref; a
 * salt too long, rank or account out of range), QUIRE_LIMIT (refs_max; roots_max when somebody runs
 * on every root), QUIRE_NOMEM; then nothing has changed and the
 * sequence is empty, *ref null and *match empty. */
int quire_prefix_acquire(quire_prefix *tree, const quire_prefix_key *key, quire_seq_id seq,
                         const int32_t *tokens, uint32_t n_tokens,
                         const quire_prefix_acquire_opts *opts, quire_prefix_match *match,
                         quire_prefix_ref *ref);

/* Make the sequence's first n_tokens tokens, which are `tokens` and whose KV is computed, known:
 * full pages become nodes and the rest the ref's open page. Where a node with these tokens exists
 * it stays, and where it is a full page the sequence goes on with the node's pages and lets go of
 * its own copies: both were computed from the same tokens, so they differ at most as much as a hit
 * does from a miss. (Not in pages that it shares with a fork.) Call it as tokens are computed:
 * after a chunk of prefill, when a page fills, at the end. Does nothing on a private ref or on one
 * whose path was invalidated; with is_page_exact open pages are not published. Tokens said before
 * are not compared again: they change by truncation only, which the sequence remembers. Errors:
 * QUIRE_NOTFOUND (ref), QUIRE_INVAL (n_tokens beyond the sequence, or it is closed), QUIRE_LIMIT,
 * QUIRE_NOMEM: what was published before stays, the rest is not cached. Cost: O(tokens not
 * published yet + pages released since). */
int quire_prefix_publish(quire_prefix *tree, quire_prefix_ref ref, const int32_t *tokens,
                         uint32_t n_tokens, uint64_t now_us);

/* Let go: what was published can be evicted from now on. Before quire_seq_close(). A ref whose path
 * was invalidated is released like any other; one whose sequence was closed first holds what it
 * published, and nothing else, until then.
 * Errors: QUIRE_NOTFOUND. */
int quire_prefix_release(quire_prefix *tree, quire_prefix_ref ref, uint64_t now_us);

/* ---- ranks and accounts ----
 *
 * A node's rank is the highest of those that used it: eviction in a region goes from the lowest
 * rank up. A node's account is that of its root, which is the account of whoever first asked under
 * that key. An account above its quota loses pages of its own as soon as it publishes more; what
 * was in use then goes with the next publication of anybody after it was let go of. Below quotas,
 * whoever is furthest above his fair share of a region loses first: the region's budget times his
 * weight, divided by the weights of all who have bytes there. */

typedef struct quire_account_opts {
    uint64_t quota_bytes; /* charge of all cached and shared pages of the account; 0 = no limit */
    uint32_t weight;      /* >= 1; 1 unless it was set */
} quire_account_opts;

/* Errors: QUIRE_RANGE (account), QUIRE_INVAL (weight 0), QUIRE_NOMEM. What is above a lower quota
 * goes at once, as far as nobody holds it. */
int quire_prefix_account_set(quire_prefix *tree, uint16_t account, const quire_account_opts *opts);

typedef struct quire_account_info {
    uint64_t quota_bytes;
    uint32_t weight;
    uint64_t bytes;                           /* charge of the pages in its nodes */
    uint64_t region_bytes[QUIRE_REGIONS_MAX]; /* the same by region */
    uint64_t quota_evicted_bytes_total;       /* what went because it was above its quota */
} quire_account_info;
/* An account that was never used or set is as if set to no limit and weight 1. Errors: QUIRE_RANGE.
 */
int quire_prefix_account_get(const quire_prefix *tree, uint16_t account, quire_account_info *out);

/* Nodes of this rank expire when they were not used for ttl_us; 0 = never. The default of every
 * rank is opts.ttl_us. Errors: QUIRE_RANGE (rank). */
int quire_prefix_ttl_set(quire_prefix *tree, uint8_t rank, uint64_t ttl_us);

/* Another low-traffic rule: see quire_prefix_opts. Cost: O(nodes). Errors: QUIRE_INVAL (negative or
 * NaN). */
int quire_prefix_low_traffic_set(quire_prefix *tree, uint64_t after_us, double hits_per_hour);

/* What computing a token at depth d costs: token_us + d * token_depth_us. Policies that weigh cost
 * use it; without, every token costs the same. Errors: QUIRE_INVAL (negative, infinite or NaN). */
int quire_prefix_cost_set(quire_prefix *tree, double token_us, double token_depth_us);

/* ---- letting go ---- */

/* Evict cached pages of a region until need_bytes of its charge are gone or nothing is left that
 * may go. Expired ones first, then low traffic, then as the policy says; children before
 * parents. Returns the bytes. The cache calls this itself when pages run short. */
uint64_t quire_prefix_evict(quire_prefix *tree, quire_region_id region, uint64_t need_bytes);

/* Drop what has expired, at most nodes_max nodes; also tells the tree what time it is. Returns the
 * number of nodes. */
uint32_t quire_prefix_expire(quire_prefix *tree, uint64_t now_us, uint32_t nodes_max);

typedef struct quire_prefix_dropped {
    uint64_t nodes;
    uint64_t tokens;
    uint64_t freed_bytes; /* charge of pages that nobody holds any more */
} quire_prefix_dropped;

/* Invalidation takes effect before these return: no later lookup finds what they name. Sequences
 * that run on the pages keep them; their refs publish nothing any more. It wins over pins: a pin of
 * what is named is lost (quire/pin.h).
 *   all     everything
 *   salt    one tenant: every root with this salt
 *   salts   every root whose salt begins with these bytes
 *   prefix  every cached text that begins with tokens, from the first node that contains the last
 *           of them on; n_tokens 0 is the whole root. A running sequence of which less is known
 *           goes on publishing unless its tokens turn out to be these (or two such texts were
 *           named: then it publishes no more)
 *   owner   what the owner published and nobody else has used since (a closed session), owner 0
 *           excepted; its running refs publish no more. Cost: O(nodes dropped + refs) */
quire_prefix_dropped quire_prefix_drop_all(quire_prefix *tree, uint64_t now_us);
quire_prefix_dropped quire_prefix_drop_salt(quire_prefix *tree, const void *salt,
                                            uint32_t salt_bytes, uint64_t now_us);
quire_prefix_dropped quire_prefix_drop_salts(quire_prefix *tree, const void *begin,
                                             uint32_t begin_bytes, uint64_t now_us);
quire_prefix_dropped quire_prefix_drop_prefix(quire_prefix *tree, const quire_prefix_key *key,
                                              const int32_t *tokens, uint32_t n_tokens,
                                              uint64_t now_us);
quire_prefix_dropped quire_prefix_drop_owner(quire_prefix *tree, uint64_t owner, uint64_t now_us);

/* ---- observation ---- */

typedef struct quire_prefix_stats {
    uint64_t query_tokens_total;
    uint64_t hit_tokens_total;
    uint64_t lookups_total; /* acquires */
    uint64_t hits_total;    /* acquires that used something */
    uint64_t published_tokens_total;
    uint64_t gone_nodes_total[QUIRE_PREFIX_GONE_COUNT];
    uint64_t gone_tokens_total[QUIRE_PREFIX_GONE_COUNT];
    uint64_t regret_tokens_total; /* asked for after they had been evicted or had expired */
    uint64_t nodes;
    uint64_t tokens;          /* in nodes */
    uint64_t evictable_bytes; /* charge of pages that only the tree holds */
    uint64_t roots;
    uint64_t refs;
} quire_prefix_stats;
/* Thread: any (each figure is atomic, the snapshot as a whole is not). */
void quire_prefix_stats_get(const quire_prefix *tree, quire_prefix_stats *out);

typedef struct quire_prefix_node_info {
    const quire_page_id *pages; /* [n_groups], QUIRE_PAGE_NULL = none */
    const int32_t *tokens;      /* [n_tokens] of this node */
    uint32_t n_tokens;
    uint32_t first_token; /* position of tokens[0] */
    uint32_t n_children;
    uint32_t n_refs; /* that end here, those of pins included */
    uint32_t n_pins; /* that hold it: they end here or below */
    uint32_t hits;
    quire_region_id region; /* that its pages are charged to */
    uint8_t rank;
    uint16_t account;
    uint64_t owner; /* 0 = nobody in particular, or several */
    uint64_t created_us;
    uint64_t used_us;
    const void *salt; /* of the root */
    uint32_t salt_bytes;
    quire_page_key key; /* of the text up to the end of the node */
} quire_prefix_node_info;

/* Visit every node, parents before children, until visit returns non-zero; returns that value.
 * visit must not change the tree. */
int quire_prefix_visit(const quire_prefix *tree,
                       int (*visit)(void *ctx, const quire_prefix_node_info *node), void *ctx);

typedef struct quire_prefix_page_use {
    const quire_page_id *pages; /* [n_groups], QUIRE_PAGE_NULL = none */
    uint32_t n_groups;
    uint64_t owner; /* 0 = nobody in particular, or several */
    uint64_t used_us;
} quire_prefix_page_use;

/* Visit the nodes among n_ids ids from `first` on, in no order, for a picture that is taken in
 * pieces; begin with 1. Returns the id to go on with, 0 after the last one. Nodes that come or go
 * between two pieces may be missed. Cost: O(n_ids), a cache miss each. */
uint32_t quire_prefix_visit_some(const quire_prefix *tree, uint32_t first, uint32_t n_ids,
                                 void (*visit)(void *ctx, const quire_prefix_page_use *use),
                                 void *ctx);

/* Bytes of a path: charge of the pages that hold `tokens` as far as they are cached; *own_bytes of
 * those that belong to owner alone. Either may be NULL. */
void quire_prefix_path_bytes(const quire_prefix *tree, const quire_prefix_key *key,
                             const int32_t *tokens, uint32_t n_tokens, uint64_t owner,
                             uint64_t *bytes, uint64_t *own_bytes);

/* Check every invariant; aborts with a message when one is broken. */
void quire_prefix_validate(const quire_prefix *tree);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_PREFIX_H */
