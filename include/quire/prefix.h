/* quire/prefix.h - the prefix tree: finds the pages with the KV of a token sequence.
 *
 * One tree per cache. A node is up to one page of tokens, with one page per group for their KV. A
 * path from a root spells a token sequence. Sequences publish computed tokens; new sequences begin
 * with the published prefix of their prompt and share its pages by reference.
 *
 *   root {identity, salt}                  identity: everything that makes KV bytes valid
 *    '- node 64 tokens, page 7             salt: the tenant; no hit crosses either
 *        |- node 64 tokens, page 9
 *        |   '- node 21 tokens, page 12    an open page: the last of a sequence, partly filled
 *        '- node 64 tokens, page 31        shares k < 64 tokens with page 9: found too, a hit is
 *                                          token-exact unless page_exact is set
 *
 * Nodes store the token ids. A hash only finds a candidate; then the ids are compared.
 *
 * A *ref* ties a sequence to its path: the sequence was filled from the path and publishes to it. A
 * node is not evicted while a ref ends at or below it. After a ref is released, the nodes that its
 * sequence published stay cached until eviction (memory runs short), expiry (ttl) or invalidation.
 *
 * A lookup can hit an open page to which its sequence still appends. The reader uses only the
 * published tokens. The sequence continues in place; a reader that appends gets a copy of the page.
 * After the sequence is gone, the last holder of the page continues in place.
 *
 * Groups above 0 may have holes (quire_seq_release()): the node has no page in that group, and a
 * sequence filled from the node has the same hole. A hit does not end inside a node with a hole,
 * because appends would need the page. When a sequence has released pages, its next publication
 * removes them from the tree too, unless another sequence holds them. A hole in group 0 ends it.
 *
 * Groups with a window (quire/cache.h, "Windows") differ in five points.
 *
 *   - A hit of n tokens needs the pages of the last window before n, and the sequence gets no other
 *     page of such a group. Where a page of the window is missing, the hit is shorter: it ends at
 *     the deepest place whose window is whole. So n_tokens of a match may be far below
 *     n_same_tokens.
 *   - A page that a sequence releases behind its window stays cached. It is evicted before any
 *     node, unless an *end* needs it: a place where a later hit is likely to end. Ends are the ends
 *     of prompts and of texts (a path keeps its newest ones and its first) and nodes with several
 *     children. Pages that ends need are evicted alone only when no node is left to evict.
 *   - A node behind which no hit can end any more is evicted together with the last node below it.
 *   - A sequence that computes the tokens of a node again gives the node the pages that it lacks.
 *   - A pin holds the windowed pages of its last window, and no others.
 *
 * States (quire/cache.h). A node may have a page with the state behind its last token. With states,
 * a hit ends at the end of a node that has one: the deepest at or below the place where the text
 * leaves the tree; KV beyond is not used. The owner gives a node its state behind publication
 * (quire_prefix_state_put()) and copies the state to the sequence after a hit
 * (quire_prefix_state_get()). A node that grows loses its state. For eviction and ends, states are
 * pages of a group whose window is the last token: those that no end needs go before all nodes,
 * unless a state is smaller than a page of group 0 and goes with its node; and a node behind which
 * no hit can end goes with the last node below it. Pins hold the states of their last pages.
 *
 * A sequence that was truncated and continues with other tokens publishes the new tokens beside the
 * old ones.
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
typedef uint64_t quire_prefix_ref; /* 0 = none; a released ref is not found again */

#define QUIRE_PREFIX_REF_NULL   0u
#define QUIRE_PREFIX_SALT_MAX   256u /* bytes */
#define QUIRE_PREFIX_NODES_MAX  QUIRE_PAGES_MAX
#define QUIRE_PREFIX_GHOSTS_MAX (1u << 24)

/* The order in which cached pages are evicted. X(symbol, value, "name")
 *
 * Every policy evicts leaves only, and in this order: expired nodes; low-traffic nodes; then nodes
 * of the lowest rank that has candidates, from the account furthest above its fair share. The
 * policy chooses among these nodes. Pinned pages are no candidates. Accounts above their quota lose
 * nodes when something is published: see accounts below. */
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

#define QUIRE_RANKS_MAX    8u    /* service classes: rank 0 is evicted first */
#define QUIRE_ACCOUNTS_MAX 1024u /* tenants with their own quota or share; 0 is the rest */

typedef struct quire_prefix_opts {
    uint32_t struct_bytes;
    quire_evict_policy policy;
    quire_cache *cache;  /* borrowed; destroy the tree before it. The tree reads no payloads */
    bool is_page_exact;  /* hits end at full pages: sealed formats */
    uint32_t roots_max;  /* distinct (identity, salt); default 65536; a new root replaces the least
                            recently used root without refs */
    uint32_t refs_max;   /* default 4096 */
    uint32_t ghosts_max; /* evicted pages remembered, to explain misses; default 65536, 0 = off */
    uint64_t ttl_us;     /* unused nodes expire after this time; 0 = never */
    /* The low-traffic rule: a prefix older than low_traffic_after_us with fewer hits per hour than
     * low_traffic_hits_per_hour is evicted before all others. 0 = no rule. */
    uint64_t low_traffic_after_us;
    double low_traffic_hits_per_hour;
    /* A secret number. Hashes and orders in the tree depend on the seed, so that a client that does
     * not know it cannot craft prompts that slow the tree. 0 = derived from addresses. */
    uint64_t seed;
    const quire_allocator *allocator; /* NULL = C library */
} quire_prefix_opts;

#define QUIRE_PREFIX_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_prefix_opts), .roots_max = 65536, .refs_max = 4096, \
        .ghosts_max = 65536                                                                        \
    }

/* Create the tree. From now on the cache asks the tree to evict before a call returns
 * QUIRE_NOPAGES, QUIRE_NOMEM or QUIRE_LIMIT. Errors: QUIRE_INVAL (an option, or the cache has a
 * tree), QUIRE_NOMEM. */
int quire_prefix_create(quire_prefix **out, const quire_prefix_opts *opts);
/* Destroy the tree: every cached page is free. Remaining refs end; their sequences stay. */
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
 * H is XXH3-128 without a seed over the concatenated bytes. identity is two 8-byte numbers,
 * salt_bytes one 4-byte number, each token 4 bytes, all least significant byte first. A key is H's
 * canonical form, most significant byte first. The key of a partly filled node covers the node's
 * present tokens.
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

/* The key of `parent`'s text followed by the tokens of one more node, 1 <= n_tokens <= page_tokens.
 * out may be parent. Thread: any. */
void quire_prefix_key_add(const quire_page_key *parent, const int32_t *tokens, uint32_t n_tokens,
                          quire_page_key *out);

/* Why a lookup ended. X(symbol, value, "name") */
#define QUIRE_PREFIX_END_MAP(X)                                                                    \
    X(WHOLE, 0, "whole") /* everything asked for was found */                                      \
    X(NEW, 1, "new")     /* nothing was ever published under this key (or not within memory) */    \
    X(ENDED, 2, "ended") /* the cached text is a prefix of the prompt */                           \
    X(DIVERGED, 3, "diverged") /* other tokens are cached at this place */                         \
    X(EVICTED, 4, "evicted")   /* it was there and was evicted, expired or invalidated */          \
    X(ROUNDED, 5, "rounded")   /* all was found, but the hit ends earlier: quire_prefix_cut */

typedef enum quire_prefix_end {
#define X(sym, val, name) QUIRE_PREFIX_END_##sym = (val),
    QUIRE_PREFIX_END_MAP(X)
#undef X
} quire_prefix_end;
const char *quire_prefix_end_name(quire_prefix_end end);

/* Why a hit ends before the last token that was found. X(symbol, value, "name") */
#define QUIRE_PREFIX_CUT_MAP(X)                                                                    \
    X(NONE, 0, "none")     /* it does not, or the caller's tokens_max ends it */                   \
    X(PAGE, 1, "page")     /* pages are used whole: is_page_exact, holes, pages not in memory */   \
    X(WINDOW, 2, "window") /* a page of the window before the later place is gone */               \
    X(STATE, 3, "state")   /* the later place has no state */

typedef enum quire_prefix_cut {
#define X(sym, val, name) QUIRE_PREFIX_CUT_##sym = (val),
    QUIRE_PREFIX_CUT_MAP(X)
#undef X
} quire_prefix_cut;
const char *quire_prefix_cut_name(quire_prefix_cut cut);

/* Why a node ended. X(symbol, value, "name") */
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
    uint32_t n_tokens;      /* usable tokens; shared by the sequence after acquire */
    uint32_t n_same_tokens; /* cached tokens found, before rounding to pages or the limit */
    quire_prefix_end end;   /* why the lookup ended at n_same_tokens */
    int32_t cached_token;   /* DIVERGED: the next token of another branch (with several branches, of
                               one next in order to the prompt); else -1 */
    uint32_t n_gone_tokens; /* EVICTED: tokens after n_same_tokens that were cached before, as known
                               from whole pages and ends of texts */
    quire_prefix_gone gone; /* EVICTED: why */
    uint64_t gone_us;       /* EVICTED: when */
    bool is_gone_stored;    /* EVICTED: the first of them had a copy below memory (KEPT) then */
    quire_prefix_cut cut;   /* why n_tokens is below n_same_tokens; the last of several reasons */
} quire_prefix_match;

/* The match that acquire would find. Changes nothing: no counters, no recency. Cost, per page: one
 * hash and one comparison of page_tokens ids. */
void quire_prefix_lookup(const quire_prefix *tree, const quire_prefix_key *key,
                         const int32_t *tokens, uint32_t n_tokens, quire_prefix_match *match);

/* A lookup, and the bytes of the pages that acquire would use, by charged region. Neither sum
 * includes pinned pages: a hit does not change their charge. */
typedef struct quire_prefix_claim {
    quire_prefix_match match;
    uint32_t n_tokens; /* tokens that acquire would use: of the match, at most tokens_max */
    uint64_t cached_bytes[QUIRE_REGIONS_MAX]; /* pages that only the tree holds now */
    uint64_t live_bytes[QUIRE_REGIONS_MAX];   /* pages that sequences hold already */
} quire_prefix_claim;

/* Changes nothing. Cost: quire_prefix_lookup(), and one access to each page of the match. */
void quire_prefix_claim_get(const quire_prefix *tree, const quire_prefix_key *key,
                            const int32_t *tokens, uint32_t n_tokens, uint32_t tokens_max,
                            quire_prefix_claim *claim);

/* A number, never 0, that changes whenever the result of a lookup may change: when nodes or refs
 * come and go, when a node loses a page, and when pages are pinned, recharged, off- or onloaded.
 * While the number is unchanged, a lookup's result holds, except for cached_token when several
 * branches are next in order (their use decides which one is reported). A claim's result holds
 * while quire_cache_generation() is unchanged too. Cost: O(1). */
uint64_t quire_prefix_generation(const quire_prefix *tree);

typedef struct quire_prefix_acquire_opts {
    uint32_t tokens_max; /* use at most this number (a full hit computes its last token again) */
    uint64_t owner;      /* the publishing session's number; 0 = no owner */
    uint64_t now_us;
    bool is_private;   /* publish nothing (cache_prompt: false); hits are still used */
    bool is_miss;      /* use no hit: for comparisons */
    bool keeps_pages;  /* publication gives the sequence no offloaded page in place of its own */
    uint8_t rank;      /* of the request: pages keep the highest rank of their users */
    uint16_t account;  /* of the tenant; read when the key is new (a root has one account) */
    bool is_uncounted; /* not in the statistics: the request is the owner's, not a client's */
    bool is_apart; /* pages under the key are counted in apart_bytes; read when the key is new */
} quire_prefix_acquire_opts;

/* Tie an open, empty sequence to the tree and fill it with the longest cached prefix of tokens.
 * Adds n_tokens to the queried and match->n_tokens to the hit tokens, and makes the path most
 * recently used.
 * Memory: *ref is released with quire_prefix_release(), before the sequence is closed.
 * Errors: QUIRE_NOTFOUND (no such sequence), QUIRE_INVAL (the sequence has tokens, reserved room or
 * a ref; the salt is too long; rank or account is out of range), QUIRE_LIMIT (refs_max; roots_max
 * when every root has refs), QUIRE_NOMEM. On error nothing has changed, the sequence is empty, *ref
 * is null and *match is empty. */
int quire_prefix_acquire(quire_prefix *tree, const quire_prefix_key *key, quire_seq_id seq,
                         const int32_t *tokens, uint32_t n_tokens,
                         const quire_prefix_acquire_opts *opts, quire_prefix_match *match,
                         quire_prefix_ref *ref);

/* Publish the sequence's first n_tokens tokens, which are `tokens` and whose KV is computed. Full
 * pages become nodes; the rest becomes the ref's open page. An existing node with the same tokens
 * stays. When such a node is a full page, the sequence takes the node's pages in place of its own
 * copies, except for pages that the sequence shares with a fork. Both copies were computed from the
 * same tokens, so they differ no more than a hit from a miss.
 *
 * Call publish as tokens are computed: after a chunk of prefill, when a page fills, at the end. A
 * private ref, or a ref whose path was invalidated, publishes nothing. With is_page_exact open
 * pages are not published. Tokens published before are not compared again: only truncation changes
 * them, and the sequence records truncation.
 * Errors: QUIRE_NOTFOUND (ref), QUIRE_INVAL (n_tokens beyond the sequence, or the sequence is
 * closed), QUIRE_LIMIT, QUIRE_NOMEM. On error the nodes published so far stay, and the rest is not
 * cached. Cost: O(tokens not published yet + pages released since). */
int quire_prefix_publish(quire_prefix *tree, quire_prefix_ref ref, const int32_t *tokens,
                         uint32_t n_tokens, uint64_t now_us);

/* The page with the state behind the n_tokens tokens of a text that a ref's sequence was filled
 * with or has published: to copy from (get), or to fill before any other call (put). get:
 * QUIRE_PAGE_NULL when no node of this text ends there or it has no state. put: QUIRE_PAGE_NULL
 * also when the node has a state already, or there is no room. Cached pages make room. A state of a
 * pinned node is pinned, if its region can promise the bytes. The cache has states. */
quire_page_id quire_prefix_state_get(const quire_prefix *tree, quire_prefix_ref ref,
                                     uint32_t n_tokens);
quire_page_id quire_prefix_state_put(quire_prefix *tree, quire_prefix_ref ref, uint32_t n_tokens);

/* Release a ref, before quire_seq_close(): its nodes can be evicted from now on. A ref whose path
 * was invalidated is released like any other. A ref whose sequence was closed first still holds its
 * published nodes, and nothing else, until it is released. Errors: QUIRE_NOTFOUND. */
int quire_prefix_release(quire_prefix *tree, quire_prefix_ref ref, uint64_t now_us);

/* Release a ref, and evict its path from the end upwards, each node with the cached ones below it,
 * up to one at or below which another ref ends. The sequence keeps its pages, on which the tree no
 * longer relies. Errors: QUIRE_NOTFOUND. */
int quire_prefix_leave(quire_prefix *tree, quire_prefix_ref ref, uint64_t now_us);

/* ---- ranks and accounts ----
 *
 * A node's rank is the highest rank of its users. Eviction in a region starts with the lowest rank.
 * A node's account is the account of its root: the account of the first request under that key. An
 * account above its quota loses its own pages as soon as it publishes more. Pages in use at that
 * time go after their release, with the next publication of any account. Among accounts within
 * their quotas, the account furthest above its fair share of a region loses first. A fair share is
 * the region's budget times the account's weight, divided by the sum of the weights of all accounts
 * with bytes in the region. */

typedef struct quire_account_opts {
    uint64_t quota_bytes; /* charge of all cached and shared pages of the account; 0 = no limit */
    uint32_t weight;      /* >= 1; 1 unless it was set */
} quire_account_opts;

/* Errors: QUIRE_RANGE (account), QUIRE_INVAL (weight 0), QUIRE_NOMEM. Pages above a lowered quota
 * are evicted at once, except for pages in use. */
int quire_prefix_account_set(quire_prefix *tree, uint16_t account, const quire_account_opts *opts);

typedef struct quire_account_info {
    uint64_t quota_bytes;
    uint32_t weight;
    uint64_t bytes;                           /* charge of the pages in its nodes */
    uint64_t region_bytes[QUIRE_REGIONS_MAX]; /* the same by region */
    uint64_t quota_evicted_bytes_total;       /* evicted because the account was above its quota */
} quire_account_info;
/* An account that was never used or set has no limit and weight 1. Errors: QUIRE_RANGE. */
int quire_prefix_account_get(const quire_prefix *tree, uint16_t account, quire_account_info *out);

/* Nodes of this rank expire after ttl_us without use; 0 = never. The default of every rank is
 * opts.ttl_us. Errors: QUIRE_RANGE (rank). */
int quire_prefix_ttl_set(quire_prefix *tree, uint8_t rank, uint64_t ttl_us);

/* Change the low-traffic rule: see quire_prefix_opts. Cost: O(nodes). Errors: QUIRE_INVAL (negative
 * or NaN). */
int quire_prefix_low_traffic_set(quire_prefix *tree, uint64_t after_us, double hits_per_hour);

/* Set the cost of computing a token at depth d, for policies that weigh it: token_us + d *
 * token_depth_us; by default all cost the same. Errors: QUIRE_INVAL (negative, infinite, NaN). */
int quire_prefix_cost_set(quire_prefix *tree, double token_us, double token_depth_us);

/* ---- letting go ---- */

/* Evict cached pages of a region until need_bytes of its charge are free or no candidate is left;
 * UINT64_MAX: all candidates, offloaded ones too. Order: expired, low traffic, then as the policy
 * decides; children before parents. Returns the freed bytes. The cache calls it for pages. */
uint64_t quire_prefix_evict(quire_prefix *tree, quire_region_id region, uint64_t need_bytes);

/* Drop expired nodes, at most nodes_max, and set the tree's time. Returns how many were dropped. */
uint32_t quire_prefix_expire(quire_prefix *tree, uint64_t now_us, uint32_t nodes_max);

typedef struct quire_prefix_dropped {
    uint64_t nodes;
    uint64_t tokens;
    uint64_t freed_bytes; /* charge of pages without a holder */
} quire_prefix_dropped;

/* Invalidation takes effect before these functions return: no later lookup finds the named nodes.
 * Sequences that run on the pages keep them, but their refs publish nothing any more. Invalidation
 * wins over pins: a pin of a named node is lost (quire/pin.h).
 *   all     everything
 *   salt    one tenant: every root with this salt
 *   salts   every root whose salt begins with these bytes
 *   prefix  every cached text that begins with tokens, from the first node that contains the last
 *           of them; n_tokens 0 names the whole root. A running sequence with a shorter published
 *           text continues to publish until its tokens turn out to be the named ones (or until a
 *           second, different text is dropped: then it publishes no more)
 *   owner   the nodes that the owner published and nobody else has used since (a closed session),
 *           except for owner 0; the owner's running refs publish no more. Cost: O(nodes dropped +
 *           refs) */
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
    uint64_t hits_total;    /* acquires with a hit */
    uint64_t published_tokens_total;
    uint64_t gone_nodes_total[QUIRE_PREFIX_GONE_COUNT];
    uint64_t gone_tokens_total[QUIRE_PREFIX_GONE_COUNT];
    uint64_t regret_tokens_total; /* queried after their eviction or expiry */
    uint64_t nodes;
    uint64_t tokens;          /* in nodes */
    uint64_t evictable_bytes; /* charge of pages that only the tree holds */
    uint64_t roots;
    uint64_t refs;
    uint64_t apart_bytes; /* charge of pages in nodes of keys that are apart, in use or not */
} quire_prefix_stats;
/* Thread: any (each figure is atomic, the snapshot as a whole is not). */
void quire_prefix_stats_get(const quire_prefix *tree, quire_prefix_stats *out);

typedef struct quire_prefix_node_info {
    const quire_page_id *pages; /* [n_groups], QUIRE_PAGE_NULL = none */
    const int32_t *tokens;      /* [n_tokens] of this node */
    uint32_t n_tokens;
    uint32_t first_token; /* position of tokens[0] */
    uint32_t n_children;
    uint32_t n_refs; /* refs that end here, including pins' refs */
    uint32_t n_pins; /* pins that hold the node: they end here or below */
    uint32_t hits;
    quire_region_id region; /* to which its pages are charged */
    uint8_t rank;
    uint16_t account;
    uint64_t owner; /* 0 = no owner, or several */
    uint64_t created_us;
    uint64_t used_us;
    const void *salt; /* of the root */
    uint32_t salt_bytes;
    quire_page_key key; /* of the text up to the node's end */
} quire_prefix_node_info;

/* Visit every node, parents before children, until visit returns non-zero; returns that value.
 * visit must not change the tree. */
int quire_prefix_visit(const quire_prefix *tree,
                       int (*visit)(void *ctx, const quire_prefix_node_info *node), void *ctx);

typedef struct quire_prefix_page_use {
    const quire_page_id *pages; /* [n_groups], QUIRE_PAGE_NULL = none */
    uint32_t n_groups;
    uint64_t owner; /* 0 = no owner, or several */
    uint64_t used_us;
} quire_prefix_page_use;

/* Visit the nodes among n_ids ids from `first` on, in no order, to visit all nodes in several
 * calls; begin with id 1. Returns the id for the next call, 0 after the last one. Nodes that come
 * or go between two calls may be missed. Cost: O(n_ids), one cache miss each. */
uint32_t quire_prefix_visit_some(const quire_prefix *tree, uint32_t first, uint32_t n_ids,
                                 void (*visit)(void *ctx, const quire_prefix_page_use *use),
                                 void *ctx);

/* ---- copies below memory ----
 *
 * The owner of a tree may keep copies of nodes elsewhere, by their keys. The tree holds one mark
 * per node for this purpose. A new node, and a partly filled node that grew, have the mark NONE.
 * The mark ends with the node. When a node is evicted or expires, its record among the ended nodes
 * remembers the mark KEPT: lookups tell (is_gone_stored), and a full node that comes back has the
 * mark again. */

typedef enum quire_copy_mark {
    QUIRE_COPY_NONE,
    QUIRE_COPY_ASKED, /* a copy is being made or looked for */
    QUIRE_COPY_KEPT   /* a copy was made */
} quire_copy_mark;

typedef struct quire_prefix_copy {
    uint32_t node; /* for quire_prefix_copy_mark_set() */
    quire_copy_mark mark;
    quire_copy_mark parent_mark; /* KEPT for the child of a root */
    uint32_t n_groups;
    const quire_page_id *pages; /* [n_groups], QUIRE_PAGE_NULL = none. Without the pages of groups
                                   with windows that no end needs: a copy can do without them. When
                                   an end needs them later, the mark is NONE again */
    bool has_windows;           /* pages of groups with windows are among them */
    bool has_state;   /* the node's state is among them: pages[n_groups - 1]. When the node gets a
                         state later, the mark is NONE again */
    bool needs_state; /* the cache has states: hits end where one is */
    const int32_t *tokens; /* [n_tokens] of this node */
    uint32_t n_tokens;
    uint32_t first_token; /* position of tokens[0] */
    bool is_full;
    uint32_t hits;
    uint32_t n_refs;
    uint32_t n_pins;
    uint64_t owner;
    uint64_t used_us;
    const quire_page_key *key;
    const quire_page_key *parent_key;
} quire_prefix_copy;

/* Visit the nodes among n_ids ids from `first` on, in no order; begin with id 1. Returns the id for
 * the next call, 0 after the last one. visit must not change the tree, except by
 * quire_prefix_copy_mark_set(). Cost: O(n_ids), two cache misses each. */
uint32_t quire_prefix_copies_visit(quire_prefix *tree, uint32_t first, uint32_t n_ids,
                                   void (*visit)(void *ctx, const quire_prefix_copy *copy),
                                   void *ctx);

/* Visit the nodes of a ref's path, from the root to the ref's end, which counts as an end from now
 * on. Errors: QUIRE_NOTFOUND, QUIRE_NOMEM. */
int quire_prefix_copies_visit_path(quire_prefix *tree, quire_prefix_ref ref,
                                   void (*visit)(void *ctx, const quire_prefix_copy *copy),
                                   void *ctx);

/* The key under which a node's text was published. Memory: salt is borrowed, until the tree
 * changes. Cost: O(pages before the node). */
void quire_prefix_copy_root(const quire_prefix *tree, uint32_t node, quire_prefix_key *out);

/* Set the mark of a node, if it still has this key. Errors: QUIRE_NOTFOUND. */
int quire_prefix_copy_mark_set(quire_prefix *tree, uint32_t node, const quire_page_key *key,
                               quire_copy_mark mark);

/* Set the mark of the node at which a ref ends. Errors: QUIRE_NOTFOUND (no such ref, or a ref
 * without a node). */
int quire_prefix_copy_mark_ref(quire_prefix *tree, quire_prefix_ref ref, quire_copy_mark mark);

/* Copies of nodes that are gone may have ended: no record remembers a mark any more. Call it when
 * copies were dropped. Cost: O(1), but O(ghosts) once in 255 calls. */
void quire_prefix_copies_forget(quire_prefix *tree);

/* ---- watching ----
 *
 * A watcher is told which full pages of text the tree has. Its knowledge is exact at all times: the
 * pages stored since it was last cleared, without those removed since, are pages of the tree; and
 * all of the tree's full pages are among them while quire_prefix_watch_some() returns false. A page
 * is stored after the page before it, and removed before that one.
 *
 * A watcher may refuse anything, for want of room. A refused page follows with a later call of
 * quire_prefix_watch_some(), unless it has gone by then. After a refused removal the watcher hears
 * nothing more until quire_prefix_watch_some() has cleared it; then everything follows again, some
 * pages with each call. */

/* A full page of text. Pointers are borrowed until the call returns. */
typedef struct quire_prefix_page {
    const quire_page_key *key;
    const quire_page_key *parent; /* of the text before; of the root if first_token is 0 */
    uint32_t first_token;         /* position of tokens[0] */
    uint32_t n_tokens;            /* page_tokens */
    const int32_t *tokens;
    const void *salt; /* of the root; only if first_token is 0 */
    uint32_t salt_bytes;
} quire_prefix_page;

/* Called on the tree's thread, inside of calls that change the tree; must not use the tree. Each
 * function returns whether it took the news. */
typedef struct quire_prefix_watcher {
    bool (*cleared)(void *ctx);
    bool (*stored)(void *ctx, const quire_prefix_page *page);
    bool (*removed)(void *ctx, const quire_page_key *key);
    /* Whether everything shall be told again; asked by quire_prefix_watch_some(). NULL = never. */
    bool (*again)(void *ctx);
    void *ctx;
} quire_prefix_watcher;

/* Begin to tell a watcher, which is copied, instead of any other; NULL = none. */
void quire_prefix_watch(quire_prefix *tree, const quire_prefix_watcher *watcher);

/* Tell the watcher about pages that it does not know yet, looking at n_ids nodes at most. Returns
 * whether there is more. Cost without more to tell: O(1). */
bool quire_prefix_watch_some(quire_prefix *tree, uint32_t n_ids);

/* *bytes gets the charge of the cached pages of `tokens`, *own_bytes the charge of those that
 * belong to owner alone. Either may be NULL. */
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
