/* kept_lanes.h - the KV of one text, of which every lane keeps other tokens, and a device that
 * computes attention on this KV.
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
 * Some policies give each token a worth while steps run, which a condensing reads (policy.h):
 *
 *   sum         run() adds the attention of the step's rows to the tokens
 *   repeated    between repeat_begin() and repeat_end() the rows of steps repeat a part of the
 *               text. run() notes the most attention that a row pays to each token of the part, by
 *               a softmax over the sinks, the part and the repeated tokens (KVzip, arXiv
 *               2505.23416). Then the rows are dropped again
 *   predicted   append() applies a linear map to the rows' hidden states (hidden_put())
 *
 * Policies that expect queries sum up the queries of all rows, turned back to position 0. Sums
 * cannot forget rows: such a text, and one of `sum`, can only be cut back to nothing.
 *
 * With merge=fit V and biases of kept tokens are fitted (retain/kept_fit.h) when others are
 * dropped. Attention adds a token's bias to its logits. Keys and protected tokens stay as they are.
 * The rows of the fit are the last `probe` queries of each head, QUIRE_KEPT_FIT_ROWS_MAX in all, of
 * the text's repetition.
 *
 * Lanes may be on a device, whose kernels compute attention layer by layer. A condensing reads and
 * writes their tiles through windows of the host's memory (core/pool/tile_window.h). Scores that
 * need attention come from the kept queries, as in the host's memory. For `sum` and `repeated`
 * run() copies the keys that rows pay attention to through such windows in each step: for `sum`
 * those of all tokens. With attend_share the bounds of full pages come through windows, too, and
 * each row that chooses is a step of the device.
 *
 * With attend_share below 1 rows from position attend_from on read only the pages of a lane that
 * can matter most (page_choice.h), each row by itself, so the bits do not depend on steps. Rows
 * before read all pages. The rule is that of shared pages (packed_device.h). Nothing is dropped.
 *
 * Layers with windows are not a policy's business: they keep the tokens that a later row sees, in
 * full, and nothing else. Before a step the lanes give back the pages that no row from the step's
 * first one on sees. Policies, budgets, attend_share and the figures of kept tokens are those of
 * the other layers, which *choose*. full_layers counts all layers of the model.
 *
 *   lane of a layer with a window   [ given back ][ the window ][ rows of the step ]
 *
 * In sealed formats such a layer reads tiles in 8 bits by the distance rule of quire/attn.h, as
 * without a policy.
 *
 * In sealed formats tokens held in full are in 8 bits, until a condensing seals the kept ones. A
 * text that keeps all its tokens (keeps_all) has no condensing. There each tile is sealed when it
 * is full, and rows read tiles in 8 bits by the distance rule of quire/attn.h. Before a step the
 * lanes give back the hot pages that no later row reads.
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

#include "attn/rotation.h"
#include "quire/attn.h"
#include "quire/block_state.h"
#include "quire/cache.h"
#include "retain/page_choice.h"
#include "retain/policy.h"
#include "retain/predictor.h"

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
    uint32_t n_repeat_max; /* rows between repeat_begin() and repeat_end(), at most; they are beyond
                              n_text_max and n_full_max */
    const quire_rotation *rotation;   /* of policies that expect queries; copied */
    const quire_predictor *predictor; /* of policies with a predicted worth; borrowed */
    double attend_share; /* of a lane's pages that a row reads: quire_lanes_attend_from(); 0 or 1
                            = all */
    uint32_t n_hidden;   /* floats of a row's hidden state; 0 = they are not kept */
    bool keeps_all;      /* nothing is condensed. Sealed formats then are hot where plain pages are:
                            by recent_tiles and sink_tiles, which all layers share */
    quire_lanes_parallel *parallel;  /* for condensing; NULL = on the caller's thread */
    bool is_on_device;               /* pages and attention; then create() reads: */
    const quire_page_memory *memory; /* of the pages; copied */
    const quire_attn_device *base;   /* attention there, with quire_lanes_device_limits(); copied */
} quire_lanes_opts;

/* Whether lanes work with these layers. Errors: QUIRE_INVAL (full_layers), QUIRE_UNSUPP (formats,
 * layers that share KV, windows in all layers), QUIRE_NOMEM. */
int quire_lanes_check(const quire_lanes_opts *opts, quire_error *err);

/* Errors: those of quire_lanes_check(), QUIRE_LIMIT. Memory: quire_lanes_destroy(). */
int quire_lanes_create(quire_lanes **out, const quire_lanes_opts *opts, quire_error *err);
void quire_lanes_destroy(quire_lanes *lanes);

/* The most bytes of pages that the lanes take. In layers that choose: the kept share of n_text_max
 * tokens, n_full_max tokens, and one partly filled page a lane. In layers with windows: the window,
 * n_rows_max or n_repeat_max tokens, and two such pages a lane. */
uint64_t quire_lanes_bytes_max(const quire_lanes_opts *opts);
/* The most bytes beside pages, in the host's memory: workspaces, positions, queries, scores. */
uint64_t quire_lanes_buffer_bytes(const quire_lanes_opts *opts);
/* The limits of the steps of a device below: a layer is a step, in which each KV head is a
 * sequence. */
quire_attn_workspace_opts quire_lanes_device_limits(const quire_lanes_opts *opts);

/* Memory: valid until quire_lanes_destroy(). */
quire_attn_device quire_lanes_device(quire_lanes *lanes);

/* The hidden states of a layer's rows, [n_rows] rows `stride` floats apart, before the append() of
 * the layer; for policies with a predicted worth, and with n_hidden. Thread: all of a step; each
 * gives the same. */
void quire_lanes_hidden_put(void *lanes, uint32_t layer, const float *hidden, size_t stride);

/* The most tokens, n at most, to which the text can be cut so that the rest is computed as if the
 * cut ones had never been there; 0 where the lanes cannot forget them: inside the condensed part,
 * of policies with sums, of policies that score by the text's last queries, and where a window
 * before the cut was given back. With sealed formats and keeps_all, or layers with windows, a cut
 * inside a tile whose hot pages are gone moves back to the start of the tile; rows behind it read
 * such tiles sealed. */
uint32_t quire_lanes_keepable(const quire_lanes *lanes, uint32_t n);
/* Cut the text to its first n tokens, between two steps; n is keepable. */
void quire_lanes_truncate(quire_lanes *lanes, uint32_t n);

/* With attend_share: rows of tokens from this position of the text on choose pages, until the next
 * call. At first there are none. Between two steps. */
void quire_lanes_attend_from(quire_lanes *lanes, uint32_t position);

/* Tokens of the text that were never condensed. */
uint32_t quire_lanes_n_full(const quire_lanes *lanes);

/* The rows of the steps until repeat_end() repeat the tokens at positions [begin, end), which were
 * not condensed. */
void quire_lanes_repeat_begin(quire_lanes *lanes, uint32_t begin, uint32_t end);
/* Drop the rows again. is_done: all rows were computed, so the tokens have their worth. */
void quire_lanes_repeat_end(quire_lanes *lanes, bool is_done);
/* The position behind the last token that was repeated. */
uint32_t quire_lanes_n_repeated(const quire_lanes *lanes);

/* Whether a condensing now would look at tokens that the last one did not. In sealed formats the
 * recent tokens stay in full, and whole tiles are condensed. */
bool quire_lanes_condenses(const quire_lanes *lanes);
/* Drop tokens until the lanes hold the policy's share of the text so far; between two steps. Unless
 * quire_lanes_condenses() there is nothing to do.
 * Errors: QUIRE_INVAL (the policy reads attention, and the last step computed none in the last
 * layer because it wanted no logits; or tokens that are to be repeated were not), QUIRE_NOMEM,
 * QUIRE_LOST. On an error nothing has changed, unless a copy of a device failed in the middle: then
 * the lanes have no text. */
int quire_lanes_condense(quire_lanes *lanes);

typedef struct quire_lanes_stats {
    uint32_t n_text;       /* tokens of the text */
    uint64_t n_held;       /* tokens, summed over the lanes of layers that choose */
    uint32_t n_lanes;      /* their number: the full text would be n_lanes * n_text */
    uint32_t n_windowed;   /* lanes of layers with windows */
    uint32_t generations;  /* condensings of this text: from the second on, input was condensed */
    uint64_t live_bytes;   /* of pages in use */
    uint64_t peak_bytes;   /* most of them, of all texts */
    uint64_t budget_bytes; /* quire_lanes_bytes_max() */
    uint64_t pages_held_total; /* of rows that chose pages, in the layers that choose, */
    uint64_t pages_read_total; /* and those of them that were read */
    uint64_t condense_us;      /* time in quire_lanes_condense(), of all texts */
} quire_lanes_stats;

void quire_lanes_stats_get(const quire_lanes *lanes, quire_lanes_stats *out);

/* Held tokens over those of the full text; 1 of an empty text. */
static inline double quire_lanes_share(const quire_lanes_stats *stats)
{
    return stats->n_text > 0 ? (double)stats->n_held / ((double)stats->n_text * stats->n_lanes) : 1;
}

/* The kept positions of a lane, ascending. NULL in a layer with a window, whose lanes hold the last
 * n tokens of the text. Memory: borrowed until the next step or condensing. */
const int32_t *quire_lanes_positions(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head,
                                     uint32_t *n);

/* K, [d_k], and V, [d_v], of the i-th token that a lane holds, as they are stored: transformed and
 * rounded. For tests: zeros where a device fails. */
void quire_lanes_read(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head, uint32_t i,
                      float *k, float *v);

/* The biases of a lane's tokens, [n]; NULL where nothing is fitted. Memory: borrowed until the next
 * step or condensing. */
const float *quire_lanes_biases(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head);

/* The worth of a lane's tokens, [n]; NULL where the policy has none, and in layers with windows.
 * Memory: borrowed until the next step or condensing. */
const float *quire_lanes_worth(const quire_lanes *lanes, uint32_t layer, uint32_t kv_head);

/* The hidden states of a layer's tokens held in full, [quire_lanes_n_full()][n_hidden]; NULL in
 * layers with windows. Memory: as above. */
const float *quire_lanes_hidden(const quire_lanes *lanes, uint32_t layer);

/* Between two steps: make a state of the lanes, whose text is `tokens`. The caller sets its
 * identity, policy and chunk, and seals it. Errors: QUIRE_NOMEM, QUIRE_LIMIT, QUIRE_UNSUPP (merge:
 * a state has no biases). Memory:
 * quire_block_state_free(), on errors too. */
int quire_lanes_save(const quire_lanes *lanes, const int32_t *tokens, quire_block_state *state);

/* Fill lanes without a text from a state. Errors: QUIRE_INVAL (of lanes of another form),
 * QUIRE_CORRUPT, QUIRE_LIMIT (a longer text than the lanes hold), those of quire_seq_reserve();
 * then the lanes have no text. */
int quire_lanes_load(quire_lanes *lanes, const quire_block_state *state);

/* The lanes' pages, for figures. Memory: borrowed. */
const quire_cache *quire_lanes_cache(const quire_lanes *lanes);

#endif /* QUIRE_RETAIN_KEPT_LANES_H */
