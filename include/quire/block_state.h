/* quire/block_state.h - the state of a text that keeps a share of its tokens, between two chunks:
 * all data that the rest of the text depends on.
 *
 *   text     | chunk | chunk | chunk ...         computed in chunks; before a chunk is computed,
 *                    ^       ^                   the tokens so far are condensed
 *              state of the text so far
 *
 * A lane (quire/types.h) keeps tokens of its own, so the state has a list of positions for each
 * lane, and K and V of these tokens in pages of 64 tokens. The tokens behind n_condensed are held
 * in full.
 *
 * The state is one piece of memory, which is also the file: all pointers but that of the lanes
 * point into it. Numbers are in the byte order of the machine, and the identity names the machine's
 * kernels, so a state of another kind of machine is refused as foreign.
 *
 *   {head: QUIRE_BLOCK_HEAD_BYTES} {tokens} {lane 0} ... {lane n - 1} {extra} {hash}
 *   lane: {n_tokens, n_queries: 8 bytes each} {positions} {worth} {pages} {hot pages}
 *
 * Each part begins at a multiple of 8 bytes. The hash is XXH3-128 of all bytes before it. The
 * numbers of the head are those of quire_block_state, least byte first.
 *
 *   make a state    set all numbers, alloc(), write the parts through quire_block_part(), seal()
 *   read a file     parse(), which takes over its bytes and checks all of them
 *
 * In each lane of a state positions ascend, and end with those of the tokens that are held in full:
 * n_condensed, n_condensed + 1 ... n_text - 1. A lane of a layer with a window has the tokens of
 * the window alone, at least one if there are any. These may be fewer: then its positions are the
 * last of those. parse() refuses all others; alloc() and seal() do not look.
 *
 * What the pages hold depends on the model and its formats: a state is made from the lanes of a
 * running text, and gives it back to them, in the program (quire run --save-block-state,
 * --resume-block-state). The functions here make, check and read the file of any such state.
 *
 * Thread: any; one state is used by one thread at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BLOCK_STATE_H
#define QUIRE_BLOCK_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define QUIRE_BLOCK_STATE_VERSION 3u
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

/* Pages of a lane of n_tokens tokens. */
uint32_t quire_block_n_pages(uint32_t n_tokens);

/* Make room for the tokens of n_tokens[lane], [n_layers * n_kv_head], in a state whose numbers are
 * set, and set all pointers. The parts are zeros. Errors: QUIRE_NOMEM, QUIRE_LIMIT. Memory:
 * quire_block_state_free(), on errors too. */
int quire_block_state_alloc(quire_block_state *state, const uint32_t *n_tokens);

/* A part of a state that alloc() made, to write to: one of its pointers, without const. */
void *quire_block_part(const quire_block_state *state, const void *part);

/* Write the numbers and the hash: then memory, of n_bytes, is the file. */
void quire_block_state_seal(quire_block_state *state);

/* Read a file of n_bytes, which malloc() gave; they are the state's, on errors too. err names the
 * cause. Errors: QUIRE_CORRUPT (no such file, or damaged), QUIRE_UNSUPP (of another version),
 * QUIRE_NOMEM. Memory: quire_block_state_free(), on errors too. */
int quire_block_state_parse(quire_block_state *out, unsigned char *bytes, size_t n_bytes,
                            quire_error *err);

/* Free what the state points to, and set it to zeros. A state of zeros is allowed. */
void quire_block_state_free(quire_block_state *state);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif /* QUIRE_BLOCK_STATE_H */
