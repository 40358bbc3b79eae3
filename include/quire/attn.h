/* quire/attn.h - attention computed directly on the pages of the cache.
 *
 * A call handles one layer for a batch of sequences: decode rows and prefill chunks may mix. It is
 * a pure function of plain structs (page addresses, page-table leaves, lengths, strides), with the
 * same signature on every ISA; quire_attn_ref() defines the answer in double precision.
 *
 *   out[r][h] = sum over V sources s of  gate_s (.) sum_t p[r][h][t] * V_s[t][g]
 *   p[r][h]   = softmax over tokens t <= index(r) of
 *               scale * sum over K sources s of  q_s[r][h] . K_s[t][g]
 *   g         = h / (n_head / n_kv_head)
 *
 * One K and one V source is the common case; two serve models that fuse the K or V of two stored
 * layers (FusedKV, arXiv 2512.03870), each K source with its own query (the gate is folded into
 * it). With v_prefix_of_k V is the first d_v dimensions of K (MLA with absorbed projections).
 *
 * Hot and sealed form. A side (K or V) whose format is sealed (quire/codec.h) has two forms: its
 * new tokens go to a hot tile (QUIRE_FORMAT_HOT) in a page of the sequence's hot table, and
 * append() seals the tile into its place in the main page as soon as its 64 tokens are there. Which
 * form a row reads is a function of distance alone: a row in tile i (token index / 64) reads tile j
 * hot when i - j <= recent_tiles or j < sink_tiles, else sealed; and sealed too where the hot table
 * has a hole (QUIRE_PAGE_NULL), because whoever owns the sequence has released that page. Sides of
 * other formats lie in the main page only. A sequence with a hot table has token t in slot t % 64
 * of a tile, so only its last tile can be open, and every row there reads it hot.
 *
 * What a result depends on: the row's query, the sequence's page tables up to the row's token (the
 * holes of the hot one included), the ISA. Not on: the other rows and sequences of the batch, the
 * number of threads, which thread does what, whether the row comes in a chunk of 1 or of 512,
 * whether pages are shared. Each row visits its tiles in table order; every split_entries table
 * entries the running (m, l, o) of the online softmax is closed as a partial, and partials are
 * merged by log-sum-exp in ascending order. So a prefix hit gives the same bits as a miss, unless
 * the rows would read hot what lies in a hole.
 *
 * Cascade: where short rows of several sequences (decode) share the pages of whole splits, those
 * splits are read once for all of them; by the above that changes no bit (method: FlashInfer's
 * cascade inference, 2024).
 *
 * Threads: a workspace is planned by one thread (quire_attn_begin), then any number of threads call
 * quire_attn_append and quire_attn_run with their index, all of them finishing the one before the
 * first starts the next (ggml's barrier between graph nodes does that).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_H
#define QUIRE_ATTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"
#include "quire/codec.h"
#include "quire/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define QUIRE_ATTN_SOURCES_MAX 2u

/* One sequence of a batch. Its query rows are its last n_rows tokens: row i of the sequence sits at
 * token index n_tokens - n_rows + i and sees every token up to and including itself. */
typedef struct quire_attn_seq {
    const quire_page_entry *const *leaves; /* QUIRE_LEAF_ENTRIES entries each; borrowed */
    uint32_t n_entries;
    uint32_t n_tokens;  /* tokens in those entries, the query rows included */
    uint32_t first_row; /* index of its first row in q, k_new, v_new and out */
    uint32_t n_rows;    /* >= 1, <= n_tokens */
    /* The hot table: entry i holds the same tokens in the same slots as entry i of leaves, or is a
     * hole. NULL when no layer has a sealed side. No query row's token must be in a hole. */
    const quire_page_entry *const *hot_leaves;
} quire_attn_seq;

/* Where a stored K or V lies: tile i (of page_tokens / 64) of kv head g of the page in slot s of an
 * extent starts at extent + offset + s * page_stride + g * head_stride + i * tile_stride. All four
 * in bytes, multiples of 64. */
typedef struct quire_attn_lane {
    size_t offset;
    size_t page_stride;
    size_t head_stride;
    size_t tile_stride;
} quire_attn_lane;

/* One layer's attention. Row strides are in floats. Everything is borrowed for the call. */
typedef struct quire_attn_layer {
    uint32_t n_head; /* query heads; a multiple of n_kv_head */
    uint32_t n_kv_head;
    uint32_t d_k;
    uint32_t d_v;
    quire_format k_format;
    quire_format v_format;
    uint32_t rotate_k; /* Hadamard block applied to K when stored and to q when read: a power of */
    uint32_t rotate_v; /* two that divides d, or 0 for none. rotate_v is undone on the output */
    uint32_t n_k;      /* K sources, 1 or 2 */
    uint32_t n_v;      /* V sources, 1 or 2; 0 with v_prefix_of_k */
    bool v_prefix_of_k;
    float scale;                               /* on the logits, usually 1/sqrt(d_k) */
    quire_attn_lane k[QUIRE_ATTN_SOURCES_MAX]; /* in main pages */
    quire_attn_lane v[QUIRE_ATTN_SOURCES_MAX];
    quire_attn_lane k_hot[QUIRE_ATTN_SOURCES_MAX]; /* in hot pages; of sealed sides only */
    quire_attn_lane v_hot[QUIRE_ATTN_SOURCES_MAX];
    uint32_t recent_tiles; /* the distance rule, for sealed sides */
    uint32_t sink_tiles;

    /* [n_rows][n_head][d_k], one per K source. append() reads q[0] as well. */
    const float *q[QUIRE_ATTN_SOURCES_MAX];
    size_t q_stride;
    const float *v_gate[QUIRE_ATTN_SOURCES_MAX]; /* [n_kv_head][d_v], or NULL for ones */
    float *out;                                  /* [n_rows][n_head][d_v] */
    size_t out_stride;

    /* [n_rows][n_kv_head][d_k]: append() stores it in lane k[0], run() reads it; NULL = none */
    const float *k_new;
    const float *v_new; /* append only: [n_rows][n_kv_head][d_v], goes to lane v[0]; NULL = none */
    size_t k_new_stride;
    size_t v_new_stride;
} quire_attn_layer;

/* The batch all layers of a step share. */
typedef struct quire_attn_batch {
    const quire_attn_seq *seqs;
    uint32_t n_seqs;
    uint32_t page_tokens;             /* multiple of 64 */
    const quire_page_addr *page_addr; /* by page id; see quire_cache_page_addrs() */
} quire_attn_batch;

typedef struct quire_attn_workspace quire_attn_workspace;

typedef struct quire_attn_workspace_opts {
    uint32_t struct_bytes;
    uint32_t n_threads_max;
    uint32_t n_seqs_max;
    uint32_t n_rows_max; /* rows of one batch */
    uint32_t n_head_max;
    uint32_t head_dim_max;  /* of K and of V */
    uint32_t n_entries_max; /* page-table entries of one sequence */
    uint32_t split_entries; /* entries per partial; 0 = default (QUIRE_ATTN_SPLIT_TOKENS worth) */
    uint32_t page_tokens;
    uint32_t n_layers_max; /* run() calls between two begin() calls */
    bool no_cascade;       /* never read pages that sequences share once for all; for comparisons */
    const char *isa;       /* NULL = fastest, or what the environment variable QUIRE_ISA names */
    const quire_allocator *allocator;
} quire_attn_workspace_opts;

#define QUIRE_ATTN_SPLIT_TOKENS 1024u
#define QUIRE_ATTN_WORKSPACE_OPTS_INIT                                                             \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_attn_workspace_opts)                                \
    }

/* Allocate everything that any later call needs. Errors: QUIRE_INVAL (limits), QUIRE_UNSUPP (isa
 * not in this build or CPU), QUIRE_NOMEM. Memory: release with quire_attn_workspace_destroy(). */
int quire_attn_workspace_create(quire_attn_workspace **out, const quire_attn_workspace_opts *opts);
void quire_attn_workspace_destroy(quire_attn_workspace *workspace);

/* Bytes that quire_attn_workspace_create() allocates with these options, what the allocator adds
 * left out; 0 where it would refuse them. Thread: any. */
uint64_t quire_attn_workspace_bytes(const quire_attn_workspace_opts *opts);

/* The kernels a workspace gets when its options name none: the fastest, or what QUIRE_ISA names;
 * "none" when this build or CPU lacks that. Memory: static. Thread: any. */
const char *quire_attn_isa(void);

/* "avx512" and so on: the kernels this workspace uses. Memory: static. */
const char *quire_attn_workspace_isa(const quire_attn_workspace *workspace);

/* Plan a step: check the batch against the limits, cut it into work items, reset the counters of
 * all layers. The batch (and what it points to) is borrowed until the last run() of the step.
 * Errors: QUIRE_INVAL (hot tables too: see quire_attn_seq), QUIRE_LIMIT; QUIRE_UNSUPP for an entry
 * with rope_shift != 0 (not yet).
 * Cost: O(table entries + rows + 256 * sequences * e), where e is 1 for sequences that differ in
 * their first page and split_entries at most for the others; no allocation. After a failure the
 * step is empty: append() and run() have nothing to do. */
int quire_attn_begin(quire_attn_workspace *workspace, const quire_attn_batch *batch);

/* Store k_new and v_new of the batch's rows into their slots, where quire_attn_pairs_qk() with
 * q[0] in view, which must be the rows' queries or NULL; thread `thread` of `n_threads` does
 * its share. The layer must satisfy quire_attn_layer_check(); a layer with a sealed side needs a
 * hot table in every sequence, here and in run(). */
void quire_attn_append(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                       uint32_t thread, uint32_t n_threads);

/* Whether the layer's K is in 8 bit somewhere (hot counts). There K and queries are rounded with
 * each other in view, if they can be: append() rounds k_new so that its errors hide from queries
 * like the token's own, q[0], and run() rounds q[0] so that its errors hide from K like the token's
 * own, k_new; together that takes 30 to 45 % off the divergence of attention's weights
 * that 8 bits cause (docs/formats.md). A NULL there means to nearest. What is stored and what comes
 * out depend on it, so whoever wants the same bits for the same tokens gives both to both always,
 * or never, whether a row's output is wanted or not. */
bool quire_attn_pairs_qk(const quire_attn_layer *layer);

/* Attention of all rows over their tables, the rows just appended included. `call` counts the
 * layers of the step from 0: each call of a step needs its own. */
void quire_attn_run(quire_attn_workspace *workspace, const quire_attn_layer *layer, uint32_t call,
                    uint32_t thread, uint32_t n_threads);

/* Check a layer's constants (not its pointers) once, when a model is opened.
 * Errors: QUIRE_INVAL, QUIRE_LIMIT (beyond the workspace's limits), QUIRE_UNSUPP (two K sources or
 * sealed K with v_prefix_of_k). */
int quire_attn_layer_check(const quire_attn_workspace *workspace, const quire_attn_layer *layer);

/* The definition: double precision, one row after the other, over decoded tiles. out is
 * [n_rows][n_head][d_v] doubles, dense. Errors: QUIRE_NOMEM. */
int quire_attn_ref(const quire_attn_batch *batch, const quire_attn_layer *layer, double *out);

/* In-place Walsh-Hadamard transform of n floats in blocks of `block` (a power of two dividing n),
 * scaled by 1/sqrt(block): orthonormal, its own inverse. */
void quire_hadamard(float *x, size_t n, uint32_t block);

/* The largest power of two that divides d. */
uint32_t quire_hadamard_block(uint32_t d);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_ATTN_H */
