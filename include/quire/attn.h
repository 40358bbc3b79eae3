/* quire/attn.h - attention computed directly on the pages of the cache.
 *
 * A call handles one layer for a batch of sequences: decode rows and prefill chunks may mix. It is
 * a pure function of plain structs (page addresses, page-table leaves, lengths, strides), with the
 * same signature on every ISA; quire_attn_ref() defines the answer in double precision.
 *
 *   out[r][h] = sum over V sources s of  gate_s (.) sum_t p[r][h][t] * V_s[t][g]
 *   p[r][h][t] = exp(y[r][h][t]) / (exp(sink[h]) + sum over visible u of exp(y[r][h][u]))
 *   y[r][h][t] = cap(scale * sum over K sources s of  q_s[r][h] . K_s[t][g])
 *   cap(x)     = softcap * tanh(x / softcap), or x where the layer has no softcap
 *   g          = h / (n_head / n_kv_head)
 *
 * A layer without sinks has no exp(sink) (sinks: gpt-oss; softcap: Gemma 2). The token at position
 * u is visible to the row at position r when u <= r, and, in a layer with a window, u > r - window.
 *
 * One K and one V source is the common case. Two sources serve models that fuse the K or V of two
 * stored layers (FusedKV, arXiv 2512.03870); each K source has its own query, which includes the
 * gate. With v_prefix_of_k V is the first d_v dimensions of K (MLA with absorbed projections).
 * Sources may differ in format, rotation and group. append() writes the layer's store, which may be
 * a source of this layer or of other layers only.
 *
 * Groups. A sequence brings one page table per group of the cache. Tables are read by position:
 * each entry says which positions its slots have (quire/types.h). A position that no entry of a
 * table holds was dropped: no row sees this position. A hole is a released page: no row may see one
 * of its positions, and begin() refuses a batch with such a row. So the tables of a group whose
 * layers all have windows may have holes behind the widest window. Tables of groups that one layer
 * reads together are alike: they have the same positions in the same slots, in other pages, with
 * other holes.
 *
 * Hot and sealed form. A side (K or V) whose format is sealed (quire/codec.h) has two forms: its
 * new tokens go to a hot tile (QUIRE_FORMAT_HOT) in a page of the sequence's table of a hot group,
 * and append() seals the tile into its place in the main page as soon as its 64 tokens are there.
 * Distance alone decides which form a row reads: a row in tile i (position / 64) reads tile j
 * (first position / 64) hot when i - j <= recent_tiles or j < sink_tiles, else sealed. If the hot
 * table has a hole there, because the owner of the sequence released the page, the row reads the
 * tile sealed. Sides of other formats lie in the main page only. A sequence with a hot table has
 * position p in slot p % 64 of a tile, or, in a page with dropped tokens, whole tiles; so only its
 * last tile can be open, and every row there reads it hot.
 *
 * Dependence. A result depends on the row's query, the sequence's page tables up to the row's token
 * (the holes of the hot ones included), and the ISA. It does not depend on: the other rows and
 * sequences of the batch, the number of threads, their shares of the work, whether the row comes in
 * a chunk of 1 or of 512, whether pages are shared. Each row visits its tiles in table order; every
 * split_entries table entries the running (m, l, o) of the online softmax is closed as a partial,
 * and partials are merged by log-sum-exp in ascending order. So a prefix hit gives the same bits as
 * a miss, unless the hot form of a tile that the rows would read lies in a hole. Tiles that no row
 * sees are not read.
 *
 * Cascade: if several sequences with few rows (decode) share the pages of whole splits, these
 * splits are read once for all of the sequences. This changes no bit (method: FlashInfer's cascade
 * inference, 2024). A layer that reads several groups is computed without cascades.
 *
 * Parts. The tokens that a row sees may be divided: into those of pages in a device's memory and
 * those of pages in the host's, say. Each part is a batch of its own, whose tables lack the other
 * entries as if their tokens had been dropped, and each gives a result with `sums`.
 * quire_attn_merge joins two results by log-sum-exp into that over both. The joined result is the
 * definition's within the same tolerance, but not the bits of a call without parts: tables are
 * split elsewhere.
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
#include "quire/error.h"
#include "quire/types.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#define QUIRE_ATTN_SOURCES_MAX 2u

/* A sequence's page table in one group. */
typedef struct quire_attn_table {
    const quire_page_entry *const *leaves; /* QUIRE_LEAF_ENTRIES entries each; borrowed */
    uint32_t n_entries;
} quire_attn_table;

/* One sequence of a batch. The query rows are the sequence's last n_rows positions: row i is at
 * position n_tokens - n_rows + i, and sees itself. The table of every group ends with the rows'
 * positions; none of these was dropped or lies in a hole. */
typedef struct quire_attn_seq {
    quire_attn_table tables[QUIRE_GROUPS_MAX]; /* by group */
    uint32_t n_tokens;                         /* the position after its last row */
    uint32_t first_row; /* index of its first row in q, k_new, v_new and out */
    uint32_t n_rows;    /* >= 1, <= n_tokens */
    void *lanes;        /* for a device that knows more of the sequence than its tables; or NULL */
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

/* A stored K or V. `rotate` is a Hadamard block, a power of two that divides d, or 0 for none: K
 * and V are transformed when they are stored, q when K is read, and the output of V back. */
typedef struct quire_attn_source {
    quire_format format;
    uint32_t rotate;
    uint32_t group;     /* whose pages hold it */
    uint32_t hot_group; /* whose pages hold its hot form; of sealed formats only */
    quire_attn_lane lane;
    quire_attn_lane hot_lane; /* of sealed formats only */
    bool is_second; /* run() finds its main pages, of group 0, at the batch's second addresses */
} quire_attn_source;

/* One layer's attention. Row strides are in floats. Everything is borrowed for the call. */
typedef struct quire_attn_layer {
    uint32_t n_head; /* query heads; a multiple of n_kv_head */
    uint32_t n_kv_head;
    uint32_t d_k;
    uint32_t d_v;
    uint32_t n_k; /* K sources, 1 or 2 */
    uint32_t n_v; /* V sources, 1 or 2; 0 with v_prefix_of_k */
    bool v_prefix_of_k;
    float scale;        /* on the logits, usually 1/sqrt(d_k) */
    float softcap;      /* on the scaled logits; 0 = none */
    uint32_t window;    /* positions that a row sees, its own included; 0 = all before it */
    bool has_chunks;    /* a row sees only the part of its window in its own chunk; chunks begin at
                           multiples of window */
    const float *sinks; /* [n_head] logits, neither scaled nor capped; NULL = none */
    quire_attn_source k[QUIRE_ATTN_SOURCES_MAX]; /* that run() reads */
    quire_attn_source v[QUIRE_ATTN_SOURCES_MAX];
    quire_attn_source k_store; /* append() writes its rows there */
    quire_attn_source v_store;
    uint32_t recent_tiles; /* the distance rule, for sealed sides */
    uint32_t sink_tiles;

    /* [n_rows][n_head][d_k], one per K source. append() reads q[0] as well. */
    const float *q[QUIRE_ATTN_SOURCES_MAX];
    size_t q_stride;
    const float *v_gate[QUIRE_ATTN_SOURCES_MAX]; /* [n_kv_head][d_v], or NULL for ones */
    float *out;                                  /* [n_rows][n_head][d_v] */
    size_t out_stride;
    /* [n_rows][n_head][2], dense: m and l of each row and head, so that exp(sink) + the sum of all
     * exp(y) is l * exp(m). l = 0: the row sees nothing, and its out is undefined. NULL = unwanted.
     */
    float *sums;

    /* [n_rows][n_kv_head][d_k]: append() stores it in k_store, run() reads it; NULL = none */
    const float *k_new;
    const float *v_new; /* append only: [n_rows][n_kv_head][d_v], goes to v_store; NULL = none */
    size_t k_new_stride;
    size_t v_new_stride;
} quire_attn_layer;

/* The batch all layers of a step share. */
typedef struct quire_attn_batch {
    const quire_attn_seq *seqs;
    uint32_t n_seqs;
    uint32_t page_tokens;             /* multiple of 64 */
    const quire_page_addr *page_addr; /* by page id; see quire_cache_page_addrs() */
    const int32_t
        *positions;      /* of entries with a list: ascending in each; NULL when none has one */
    const float *biases; /* beside positions: added to the logits of a list's tokens, behind the
                            softcap; NULL = none */
    /* Where other parts of the same pages of group 0 lie, as in an extent, for sources that are
     * second; by page id. NULL = no such source. A card refuses them with QUIRE_GROUPS_MAX groups
     * (QUIRE_LIMIT). */
    const quire_page_addr *page_addr_2;
    bool is_rest; /* in a step that was planned before, the rows with which it goes on: layers
                     after an early exit compute them alone */
    bool is_part; /* tables have some of the sequences' entries, without those of the rows, which
                     are attended in another batch. append() stores nothing; run() gives `sums` */
} quire_attn_batch;

/* The properties of a group's tables that hold in all steps. */
typedef struct quire_attn_group {
    uint32_t like; /* the group whose tables these are alike, of a smaller number; its own: none */
    uint32_t window; /* the widest of the layers that read it; 0: some layer sees everything */
    bool is_hot; /* of hot pages: holes may be anywhere but in the rows' tiles. Needs a `like` */
} quire_attn_group;

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
    uint32_t n_groups;     /* tables of each sequence; 0 = one, without a window */
    quire_attn_group groups[QUIRE_GROUPS_MAX];
    bool no_cascade; /* never read pages that sequences share once for all; for comparisons */
    size_t cascade_bytes_max; /* of room for partials of cascades: so much is taken at most.
                                 Sequences for which there is no room left read their pages for
                                 themselves. 0 = default (QUIRE_ATTN_CASCADE_BYTES) */
    quire_memory memory; /* that begin() wants pages in. Another one than the host's is for the plan
                            of a device (quire/device.h): append() and run() read the host's */
    const char *isa;     /* NULL = by the variable QUIRE_ISA of the environment, else the fastest */
    const quire_allocator *allocator;
} quire_attn_workspace_opts;

#define QUIRE_ATTN_SPLIT_TOKENS  1024u
#define QUIRE_ATTN_CASCADE_BYTES (16u << 20)
#define QUIRE_ATTN_WORKSPACE_OPTS_INIT                                                             \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_attn_workspace_opts)                                \
    }

/* Allocate all memory that later calls need. Errors: QUIRE_INVAL (limits), QUIRE_UNSUPP (isa not in
 * this build or CPU), QUIRE_NOMEM. Memory: release with quire_attn_workspace_destroy(). */
int quire_attn_workspace_create(quire_attn_workspace **out, const quire_attn_workspace_opts *opts);
void quire_attn_workspace_destroy(quire_attn_workspace *workspace);

/* Bytes that quire_attn_workspace_create() allocates with these options, without the overhead of
 * the allocator; 0 for options that it would refuse. Thread: any. */
uint64_t quire_attn_workspace_bytes(const quire_attn_workspace_opts *opts);

/* The kernels of a workspace whose options name none: the fastest, or those that QUIRE_ISA names;
 * "none" when this build or CPU lacks the named kernels. Memory: static. Thread: any. */
const char *quire_attn_isa(void);

/* Whether this build and CPU have the kernels that QUIRE_ISA names. Errors: QUIRE_UNSUPP; err names
 * those that they have. Thread: any. */
int quire_attn_isa_check(quire_error *err);

/* "avx512" and so on: the kernels this workspace uses. Memory: static. */
const char *quire_attn_workspace_isa(const quire_attn_workspace *workspace);

/* Splits of a KV head that run() has not read since create, because it read them for another
 * sequence of the batch, too. Thread: between two steps. */
uint64_t quire_attn_saved_splits(const quire_attn_workspace *workspace);

/* Plan a step: check the batch against the limits, cut it into work items, reset the counters of
 * all layers. The batch (and all it points to) is borrowed until the last run() of the step.
 * Errors: QUIRE_INVAL (tables: see quire_attn_seq, quire_attn_group), QUIRE_LIMIT, QUIRE_UNSUPP (a
 * page in another memory than the workspace's).
 * Cost: O(table entries and lists + rows + 256 e for each sequence), for each group that is not
 * hot; e is 1 for sequences that differ in their first page, and split_entries at most for the
 * others; no allocation.
 * After a failure the step is empty: append() and run() have nothing to do. */
int quire_attn_begin(quire_attn_workspace *workspace, const quire_attn_batch *batch);

/* Store k_new and v_new of the batch's rows into their slots of k_store and v_store. Where
 * quire_attn_pairs_qk() holds, K is rounded with q[0] in view: the rows' queries, or NULL. Thread
 * `thread` of `n_threads` does its share. The layer must satisfy quire_attn_layer_check(). */
void quire_attn_append(quire_attn_workspace *workspace, const quire_attn_layer *layer,
                       uint32_t thread, uint32_t n_threads);

/* Whether the layer reads the K that it stores, as its first source, and in 8 bit for some tiles
 * (hot tiles count). Then K and queries are rounded with each other in view: append() rounds k_new
 * so that its errors change the products with queries like the token's own, q[0], little; run()
 * rounds q[0] so that its errors change the products with K like the token's own, k_new, little
 * (docs/formats.md). With a NULL in place of q[0] or k_new, the other is rounded to nearest. Stored
 * bytes and results depend on these arguments. A caller that wants the same bits for the same
 * tokens gives both to append() and run() in every step, or in none, even for rows whose output is
 * not wanted. */
bool quire_attn_pairs_qk(const quire_attn_layer *layer);

/* Attention of all rows over their tables, the rows just appended included. `call` counts the
 * layers of the step from 0: each call of a step needs its own. */
void quire_attn_run(quire_attn_workspace *workspace, const quire_attn_layer *layer, uint32_t call,
                    uint32_t thread, uint32_t n_threads);

/* Join the result of a part: of the rows of `batch`, out and sums of `part` into those of `layer`.
 * Both layers have `sums`, and one of them at most has sinks. A row that saw nothing in a part
 * takes the other's result. Each row and head is joined by itself, in f32, in one order: its bits
 * depend on the two results alone. Thread: any; rows must not be joined twice at once. */
void quire_attn_merge(const quire_attn_batch *batch, const quire_attn_layer *layer,
                      const quire_attn_layer *part);

/* Check a layer's constants (not its pointers) once, when a model is opened.
 * Errors: QUIRE_INVAL (groups that are not alike or not hot, and a window wider than its group's,
 * too), QUIRE_LIMIT (beyond the workspace's limits), QUIRE_UNSUPP (two K sources with
 * v_prefix_of_k). */
int quire_attn_layer_check(const quire_attn_workspace *workspace, const quire_attn_layer *layer);

/* ---- devices ---- */

/* A place where attention is computed, seen from a step: first plan(), then append() and run() of
 * each layer, then sync(). All threads of a step call append() and run(), with a barrier between
 * two calls. A device with a queue of its own lets thread 0 fill the queue. append() and run()
 * cannot fail; sync() reports a device that was lost meanwhile. `ctx` belongs to the device.
 *
 * Where the rows are computed on the same device, by work in the same queue, a layer need not come
 * back to the host. If queues() says so of the planned step, one thread may call queue() in the
 * place of append() and run(): it queues the append, attention, or both in this order, and does not
 * wait. Rows of q, k_new, v_new and out lie side by side in the device's memory, and the pointers
 * of the layer to them are the device's addresses. Gates and sinks are the host's. Work that was
 * queued before writes the rows, and work that is queued later reads `out`. */
#define QUIRE_ATTN_QUEUE_APPEND 1u
#define QUIRE_ATTN_QUEUE_RUN    2u

typedef struct quire_attn_device {
    const char *name;    /* "cpu"; static */
    quire_memory memory; /* in which it reads and writes pages */
    void *ctx;
    int (*check)(void *ctx, const quire_attn_layer *layer); /* as quire_attn_layer_check() */
    int (*plan)(void *ctx, const quire_attn_batch *batch);  /* as quire_attn_begin() */
    void (*append)(void *ctx, const quire_attn_layer *layer, uint32_t thread, uint32_t n_threads);
    void (*run)(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                uint32_t n_threads);
    int (*sync)(void *ctx); /* wait until all pages and rows are written */
    bool (*queues)(void *ctx);
    void (*queue)(void *ctx, const quire_attn_layer *layer, uint32_t call,
                  unsigned what); /* NULL, and queues: rows are the host's */
} quire_attn_device;

/* This CPU, by way of a workspace, which must outlive the device. */
quire_attn_device quire_attn_device_cpu(quire_attn_workspace *workspace);

/* ---- the definition ---- */

/* Double precision, one row after the other, over decoded tiles. The batch and the layer must be
 * such as begin() and quire_attn_layer_check() accept. out is [n_rows][n_head][d_v] doubles, dense.
 * Errors: QUIRE_NOMEM. */
int quire_attn_ref(const quire_attn_batch *batch, const quire_attn_layer *layer, double *out);

/* The same with the sums, [n_rows][n_head][2] doubles, dense; rows that see nothing have an out of
 * zeros. Rows of other batches are left alone. */
int quire_attn_ref_part(const quire_attn_batch *batch, const quire_attn_layer *layer, double *out,
                        double *sums);

/* The definition of quire_attn_merge(): n results of d_v numbers each, `part` into `out`. */
void quire_attn_ref_merge(size_t n, uint32_t d_v, double *out, double *sums, const double *part_out,
                          const double *part_sums);

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
