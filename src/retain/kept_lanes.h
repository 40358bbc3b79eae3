/* kept_lanes.h - the KV of one text in which every lane keeps tokens of its own, and a device that
 * computes attention on it.
 *
 * A lane (one KV head of one layer) is a sequence of a cache of its own, whose pages are one tile
 * of K and one of V. A page table therefore belongs to one lane, and a lane of n tokens takes
 * ceil(n / 64) pages: bytes in use follow the kept tokens, apart from one partly filled page a
 * lane.
 *
 *   lane (layer 5, head 2)   [ kept tokens, with a list of positions ][ recent, positions by one ]
 *                              condensed: tiles without holes           in full
 *
 * quire_lanes_condense() scores all tokens (policy.h), moves the rows of kept ones together, byte
 * for byte, and gives back the pages behind them. K stays rotated by its token's own position, so
 * attention needs positions for causality and windows only. Rows are not decoded and encoded again:
 * condensing again and again loses tokens, never precision.
 *
 * The device stands in for a runtime's (quire_attn_device). It computes with the kernels of
 * quire_attn_run(), one workspace a KV head, on the table of each lane. With all tokens kept the
 * results are the bits of the same model on full pages. Bits depend on the kept tokens, and not on
 * threads and steps.
 *
 *   plan     cuts lanes back to the first row of the step, takes pages for its rows
 *   append   a thread takes a head, plans its workspace for the layer's lane, stores the rows
 *   run      threads take heads and compute; the last queries of the text are kept for scoring
 *   sync     reports a failure of the above
 *
 * One text at a time: a batch has one sequence. A step that begins at position 0 begins a new text.
 * A step may begin behind tokens that were not condensed (then they are dropped), but not inside
 * the condensed part.
 *
 * Thread: owner; append() and run() of the device on all threads of a step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_KEPT_LANES_H
#define QUIRE_RETAIN_KEPT_LANES_H

#include "quire/attn.h"
#include "quire/cache.h"
#include "retain/policy.h"

typedef struct quire_lanes quire_lanes;

/* Call fn(ctx, thread, n_threads) for each thread, and return when all are done. */
typedef void quire_lanes_parallel(uint32_t n_threads,
                                  void (*fn)(void *ctx, uint32_t thread, uint32_t n_threads),
                                  void *ctx);

typedef struct quire_lanes_opts {
    const quire_retain_spec *spec;
    const quire_attn_layer *layers; /* [n_layers] constants; copied. Each reads its own store */
    uint32_t n_layers;
    uint32_t n_text_max; /* longest text */
    uint32_t n_full_max; /* tokens that are held in full between two condensings, at most */
    uint32_t n_rows_max; /* rows of a step */
    uint32_t n_threads;
    bool lock_memory;
    quire_lanes_parallel *parallel; /* for condensing; NULL = on the caller's thread */
} quire_lanes_opts;

/* Whether lanes work with these layers. Errors: QUIRE_INVAL (full_layers), QUIRE_UNSUPP (formats,
 * layers that share KV), QUIRE_NOMEM. */
int quire_lanes_check(const quire_lanes_opts *opts, quire_error *err);

/* Errors: those of quire_lanes_check(), QUIRE_LIMIT. Memory: quire_lanes_destroy(). */
int quire_lanes_create(quire_lanes **out, const quire_lanes_opts *opts, quire_error *err);
void quire_lanes_destroy(quire_lanes *lanes);

/* The most bytes of pages that the lanes take: the kept share of n_text_max tokens, n_full_max
 * tokens, and one partly filled page a lane. */
uint64_t quire_lanes_bytes_max(const quire_lanes_opts *opts);
/* The most bytes beside pages: workspaces, positions, queries, scores. */
uint64_t quire_lanes_buffer_bytes(const quire_lanes_opts *opts);

/* Memory: valid until quire_lanes_destroy(). */
quire_attn_device quire_lanes_device(quire_lanes *lanes);

/* Tokens of the text that were never condensed. */
uint32_t quire_lanes_n_full(const quire_lanes *lanes);

/* Drop tokens until the lanes hold the policy's share of the text so far; between two steps.
 * Errors: QUIRE_INVAL (the policy reads attention, and the last step computed none in the last
 * layer because it wanted no logits), QUIRE_NOMEM. On an error nothing has changed. */
int quire_lanes_condense(quire_lanes *lanes);

typedef struct quire_lanes_stats {
    uint32_t n_text;       /* tokens of the text */
    uint64_t n_held;       /* tokens, summed over lanes */
    uint32_t n_lanes;      /* the full text would be n_lanes * n_text */
    uint32_t generations;  /* condensings of this text: from the second on, input was condensed */
    uint64_t live_bytes;   /* of pages in use */
    uint64_t peak_bytes;   /* most of them, of all texts */
    uint64_t budget_bytes; /* quire_lanes_bytes_max() */
    uint64_t condense_us;  /* time in quire_lanes_condense(), of all texts */
} quire_lanes_stats;

void quire_lanes_stats_get(const quire_lanes *lanes, quire_lanes_stats *out);

/* Held tokens over those of the full text; 1 of an empty text. */
static inline double quire_lanes_share(const quire_lanes_stats *stats)
{
    return stats->n_text > 0 ? (double)stats->n_held / ((double)stats->n_text * stats->n_lanes) : 1;
}

/* The kept positions of a lane, ascending. Memory: borrowed until the next step or condensing. */
const int32_t *quire_lanes_positions(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head,
                                     uint32_t *n);

/* K, [d_k], and V, [d_v], of a lane's token i < n as they are stored: transformed and rounded. */
void quire_lanes_read(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head, uint32_t i,
                      float *k, float *v);

/* The lanes' pages, for figures. Memory: borrowed. */
const quire_cache *quire_lanes_cache(const quire_lanes *lanes);

#endif /* QUIRE_RETAIN_KEPT_LANES_H */
