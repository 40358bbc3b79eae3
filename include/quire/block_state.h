/* quire/block_state.h - the state of a text that keeps a share of its tokens, between two chunks:
 * all data that the rest of the text depends on.
 *
 *   text     | chunk | chunk | chunk ...         computed in chunks; before a chunk is computed,
 *                    ^       ^                   the tokens so far are condensed
 *              state of the text so far
 *
 * A lane (quire/types.h) keeps tokens of its own, so the state has a list of positions for each
 * lane, and K and V of these tokens in pages of 64 tokens. The tokens behind n_condensed are held
 * in full, in all lanes.
 *
 * The state is one piece of memory, which is also the file (src/retain/block_memory.h): all
 * pointers but that of the lanes point into it. Numbers are in the byte order of the machine, and
 * the identity names the machine's kernels, so a state of another kind of machine is refused as
 * foreign.
 *
 *   {head: QUIRE_BLOCK_HEAD_BYTES} {tokens} {lane 0} ... {lane n - 1} {extra} {hash}
 *   lane: {n_tokens, n_queries: 8 bytes each} {positions} {worth} {pages} {hot pages}
 *
 * Each part begins at a multiple of 8 bytes. The hash is XXH3-128 of all bytes before it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BLOCK_STATE_H
#define QUIRE_BLOCK_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_BLOCK_STATE_VERSION 2u
#define QUIRE_BLOCK_POLICY_MAX    256u /* bytes of a policy as text, its end included */
#define QUIRE_BLOCK_HEAD_BYTES    400u
#define QUIRE_BLOCK_PAGE_TOKENS   64u /* QUIRE_TILE_TOKENS */

/* One lane's tokens. */
typedef struct quire_block_lane {
    uint32_t n_tokens;
    uint64_t n_queries;       /* in the sums of `extra` */
    const int32_t *positions; /* [n_tokens] in the text, ascending */
    const float *worth;       /* [n_tokens]; NULL: the policy has none */
    /* n_pages: as many pages as n_tokens need. [n_pages][page_bytes]: K's tile, then V's. */
    const unsigned char *pages;
    const unsigned char *hot_pages; /* [n_pages][hot_bytes], zeros where a tile is sealed; NULL: no
                                       format is sealed */
} quire_block_lane;

typedef struct quire_block_state {
    uint64_t identity[2]; /* of the model, formats and kernels, for quire_prefix_key */
    uint64_t maps[2];     /* a hash of the maps by which the policy predicts; zeros: it has none */
    char policy[QUIRE_BLOCK_POLICY_MAX]; /* with all its parameters */
    uint32_t chunk;                      /* tokens held in full, at most */
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t n_text;      /* tokens of the text so far */
    uint32_t n_condensed; /* positions that were part of the last condensing */
    uint32_t generations; /* condensings of the text so far */
    uint32_t n_repeated;  /* positions whose worth is known, of policies that repeat the text */
    bool has_worth;
    uint64_t page_bytes;
    uint64_t hot_bytes;
    const int32_t *tokens;   /* [n_text] */
    quire_block_lane *lanes; /* [n_layers][n_kv_head] */
    /* Data of the text's queries that the policy keeps: the probe's, sums and products. */
    const float *extra; /* [n_extra] */
    uint64_t n_extra;
    unsigned char *memory; /* [n_bytes] */
    size_t n_bytes;
} quire_block_state;

#endif /* QUIRE_BLOCK_STATE_H */
