/* attn_internal.h - the workspace, and how a layer's rows are cut into blocks.
 *
 * A task is (sequence, kv head, block of query rows). Its rows are the query heads of the kv head's
 * group for block_queries consecutive queries, query-major, so that one pass over a tile serves
 * them all and a causal bound grows with the row index. A task is one work item, or several over
 * ranges of its splits when there would be too few items to keep the threads busy; where rows are
 * few, an item may be of several kv heads' tasks at once (attn_units.h). A cascade's task
 * is (some sequences of a group, kv head): the splits that they share for one block of all their
 * rows, and the rest of each.
 *
 * A split is split_entries table entries: the unit whose running (m, l, o) is closed as a partial.
 * Splits are fixed by the table alone; items are not, and no result depends on them.
 *
 * Memory of a workspace, all taken at create: the plan of a step (by sequence and by row), one
 * scratch area per thread, and the partials of tasks that several items share. The last is bounded:
 * a task whose partials do not fit is not cut, and no cascade is made of it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ATTN_INTERNAL_H
#define QUIRE_ATTN_INTERNAL_H

#include "attn/kernels.h"
#include "quire/attn.h"

#include <stdatomic.h>

#define QUIRE_ATTN_BLOCK_ROWS_MAX   96u /* rows of a block, unless one query has more heads */
#define QUIRE_ATTN_BLOCK_BYTES_MAX  (192u << 10) /* packed q, logits and o of a block stay in L2 */
#define QUIRE_ATTN_SHARED_TASKS_MAX 1024u        /* tasks that several items share, in one call */

/* Rows of a wide item at most: as many as the kernels take through a step together. */
#define QUIRE_ATTN_WIDE_ROWS_MAX 32u

#define QUIRE_ATTN_CASCADE_ROWS_MAX 8u   /* query rows of a sequence in a cascade */
#define QUIRE_ATTN_CASCADE_WINDOW   256u /* sequences among which a group is looked for */

/* Tokens of a step that go to one tile of a group. Append encodes a segment at once. */
typedef struct quire_attn_segment {
    const quire_attn_seq *seq;
    uint32_t entry; /* of the sequence's tables */
    uint32_t tile;  /* within the page */
    uint16_t first_slot;
    uint16_t n_tokens;
    uint32_t first_row;
} quire_attn_segment;

/* Sequences order[first] .. order[first + n_seqs - 1] share their splits before n_splits, as far as
 * they see them, which are read once for all of them (attn_cascade.h). */
typedef struct quire_attn_cascade {
    uint32_t first;
    uint32_t n_seqs;
    uint32_t n_splits; /* 0 when there is one sequence */
} quire_attn_cascade;

/* The batch at hand as one group's tables have it. */
typedef struct quire_attn_plan {
    uint32_t *split_pos;          /* [n_seqs_max][n_splits_max] first position of each split */
    quire_attn_segment *segments; /* [n_rows_max] */
    uint32_t n_segments;
    uint32_t *order; /* [n_seqs_max] sequences, those of a cascade side by side */
    uint32_t n_ordered;
    quire_attn_cascade *cascades; /* [n_seqs_max] */
    uint32_t n_cascades;
} quire_attn_plan;

/* Counters that different threads write, each in a cache line of its own. */
typedef struct quire_attn_counter {
    _Alignas(64) _Atomic uint32_t value;
} quire_attn_counter;

struct quire_attn_workspace {
    quire_allocator allocator;
    quire_attn_workspace_opts limits; /* with defaults filled in */
    const quire_attn_kernels *kernels;
    const quire_codec *codec;

    uint32_t n_splits_max; /* of one sequence */
    quire_attn_batch batch;
    quire_attn_plan plans[QUIRE_GROUPS_MAX]; /* by group; hot ones have none */
    uint32_t *n_shared;      /* scratch of quire_attn_cascade_plan(): [n_seqs_max], */
    uint32_t *n_joined;      /* [n_splits_max + 1], 0 between calls */
    uint64_t n_saved_splits; /* since create; thread 0 of run() counts */

    quire_attn_counter *next_item; /* [n_layers_max], by call */
    quire_attn_counter
        *done; /* [QUIRE_ATTN_SHARED_TASKS_MAX] items that finished; 0 between calls */
    float *partials;
    size_t partial_floats;
    unsigned char *scratch; /* [n_threads_max] */
    size_t scratch_bytes;   /* of one thread */
    size_t behind_bytes;    /* of them, behind a block's rows: bytes that kernels may read */
};

/* Hot groups of one layer at most: one by source. */
#define QUIRE_ATTN_HOT_MAX (2u * QUIRE_ATTN_SOURCES_MAX)

/* Values of a source that follow from the layer's constants. */
typedef struct quire_attn_source_shape {
    uint32_t hot;   /* place of its hot group among the layer's; QUIRE_ATTN_HOT_MAX: no hot form */
    size_t q_bytes; /* of K: of a row packed for main pages */
    size_t q_hot_bytes; /* and for hot ones; 0 when the format is not sealed */
} quire_attn_source_shape;

/* Values that follow from a layer's constants. Sizes of float arrays in floats. */
typedef struct quire_attn_shape {
    uint32_t group; /* query heads of one kv head */
    uint32_t n_v;   /* V sources the kernels see: 1 for v_prefix_of_k */
    uint32_t block_queries;
    uint32_t block_rows; /* block_queries * group */
    uint32_t table;      /* the group whose tables are walked */
    bool has_tables;     /* the layer reads other groups or second addresses as well */
    uint32_t n_hot;      /* hot groups, and which */
    uint32_t hot_groups[QUIRE_ATTN_HOT_MAX];
    quire_attn_source_shape k[QUIRE_ATTN_SOURCES_MAX];
    quire_attn_source_shape v[QUIRE_ATTN_SOURCES_MAX];
    bool has_mixed_v;     /* of two V, one in bf16 */
    size_t weights_bytes; /* of a row; 0: pv makes weights itself */
    size_t o_stride;
} quire_attn_shape;

quire_attn_shape quire_attn_shape_of(const quire_attn_workspace *workspace,
                                     const quire_attn_layer *layer);

static inline uint32_t quire_attn_ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static inline size_t quire_attn_round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Floats of the running state (m, l, o) of n_rows rows, a multiple of 16. */
static inline size_t quire_attn_state_floats(const quire_attn_shape *shape, uint32_t n_rows)
{
    return 2 * quire_attn_round_up(n_rows, 16) + (size_t)shape->n_v * n_rows * shape->o_stride;
}

static inline const quire_page_entry *quire_attn_entry(const quire_attn_table *table, uint32_t i)
{
    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

static inline uint32_t quire_attn_n_splits(const quire_attn_workspace *workspace,
                                           const quire_attn_table *table)
{
    return quire_attn_ceil_div(table->n_entries, workspace->limits.split_entries);
}

/* Address of the page of entry i in a group's table; NULL for a hole. */
static inline const quire_page_addr *quire_attn_page(const quire_attn_batch *batch,
                                                     const quire_attn_seq *seq, uint32_t group,
                                                     uint32_t i)
{
    quire_page_id page = quire_attn_entry(&seq->tables[group], i)->page;

    return page != QUIRE_PAGE_NULL ? &batch->page_addr[page] : NULL;
}

/* The same of the page from which run() reads a source. */
static inline const quire_page_addr *quire_attn_source_page(const quire_attn_batch *batch,
                                                            const quire_attn_seq *seq,
                                                            const quire_attn_source *source,
                                                            uint32_t i)
{
    const quire_page_id page = quire_attn_entry(&seq->tables[source->group], i)->page;
    const quire_page_addr *addrs = source->is_second ? batch->page_addr_2 : batch->page_addr;

    return page != QUIRE_PAGE_NULL ? &addrs[page] : NULL;
}

/* The first position that a row at position `index` sees. */
static inline uint32_t quire_attn_seen_begin(uint32_t window, uint32_t index)
{
    return window == 0 || index < window ? 0 : index - window + 1;
}

/* The same in a layer that may have chunks. */
static inline uint32_t quire_attn_row_begin(const quire_attn_layer *layer, uint32_t index)
{
    return layer->has_chunks ? index - index % layer->window
                             : quire_attn_seen_begin(layer->window, index);
}

/* The last of n splits that begins at a position or before it; 0 when the first begins behind. */
static inline uint32_t quire_attn_split_of(const uint32_t *split_pos, uint32_t n, uint32_t pos)
{
    uint32_t low = 0;

    while (n > 1) { /* it is one of n from `low` on */
        const uint32_t half = n / 2;

        low += split_pos[low + half] <= pos ? half : 0;
        n -= half;
    }
    return low;
}

/* Whether a K in this format is multiplied with queries of 8 bits somewhere. */
static inline bool quire_attn_is_8bit(quire_format format)
{
    return format == QUIRE_FORMAT_Q8 || quire_format_is_sealed(format);
}

/* Address of tile `tile` of kv head g. */
static inline unsigned char *quire_attn_tile(const quire_attn_lane *lane,
                                             const quire_page_addr *page, uint32_t g, uint32_t tile)
{
    return page->extent + lane->offset + page->slot * lane->page_stride + g * lane->head_stride +
           tile * lane->tile_stride;
}

/* The scratch of one thread: a tile as f32 and one row before and after rotation, then the block
 * or, in append(), a tile of queries. */
static inline float *quire_attn_scratch_tile(const quire_attn_workspace *workspace, uint32_t thread)
{
    return (float *)(void *)(workspace->scratch + thread * workspace->scratch_bytes);
}

static inline size_t quire_attn_scratch_tile_floats(const quire_attn_workspace *workspace)
{
    return (size_t)QUIRE_TILE_TOKENS * workspace->limits.head_dim_max;
}

static inline float *quire_attn_scratch_queries(const quire_attn_workspace *workspace,
                                                uint32_t thread)
{
    return quire_attn_scratch_tile(workspace, thread) + quire_attn_scratch_tile_floats(workspace) +
           workspace->limits.head_dim_max;
}

#endif /* QUIRE_ATTN_INTERNAL_H */
