/* runtime.h - runs a model's steps on the paged cache.
 *
 * A runtime binds one model to one cache, one ggml CPU backend and one set of limits. A step takes
 * a batch of slices (sequence, new tokens): the cache grows by the new tokens, one ggml graph
 * computes the layers with two custom ops (append, paged attention), and the step returns the
 * logits of the wanted rows. Graphs are kept by shape and reused. A step of a known shape allocates
 * only for the growth of the cache: a table leaf every QUIRE_LEAF_ENTRIES pages, extents, and room
 * for page ids.
 *
 * A step that fails leaves every sequence's tokens unchanged, and gives back the room that it
 * reserved. One change may stay: a fork that shared its partly filled tail page may have got its
 * own copy before the step failed (say, with QUIRE_NOPAGES at a later slice). The fork keeps the
 * copy, which is charged as one more page.
 *
 * Groups. A stored layer whose readers all have windows lies in a group of its own, with the other
 * layers of that kind: the window group. Its window is the widest of these readers'. Before each
 * step the pages behind the window of the next token are released, so a sequence holds the pages of
 * a window and a step. All other stored layers are in the main group. There is no window group
 * where no such layer is, with keeps_past or is_contiguous, and when K and V lie elsewhere.
 *
 * Formats of 6 bits and less are sealed (quire/codec.h). Sealed sides also have hot pages, in
 * another group of the cache, which hold their tokens in 8 bits, those of both other groups. After
 * each step the hot pages that no later token can read by the distance rule of quire/attn.h are
 * released. A sequence that is cut back to a place whose hot pages are gone
 * (quire_seq_truncatable()) reads sealed tiles there.
 *
 * Recurrent layers. A sequence of a model with such layers has a state beside its pages
 * (recurrent.h), the runtime's, of its last token. So it can be cut to nothing or continued at its
 * end, nowhere else: quire_runtime_keepable(). A step refuses a sequence whose tokens came in
 * another way than by steps of this runtime.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_H
#define QUIRE_MODEL_RUNTIME_H

#include "model/kv_formats.h"
#include "model/model.h"
#include "quire/attn.h"
#include "quire/cache.h"
#include "quire/device.h"

/* Groups of the cache. */
#define QUIRE_KV_GROUP_MAIN 0u /* lanes in their formats */
#define QUIRE_KV_GROUP_HOT  1u /* those of sealed sides in QUIRE_FORMAT_HOT, if there are any */

#define QUIRE_SPLIT_NAME_BYTES 16u /* of a device's name, as quire_device_info.name */

/* The layers of a model on several devices (quire/device.h, "Layers on several devices"). The KV of
 * a layer is on its device, and attention runs where the KV lies. */
typedef struct quire_runtime_split {
    uint32_t n; /* devices, two or more; 0 = no split */
    char names[QUIRE_DEVICE_SPLIT_MAX][QUIRE_SPLIT_NAME_BYTES]; /* as of quire_device_open() */
    uint32_t end[QUIRE_DEVICE_SPLIT_MAX]; /* device i has layers end[i - 1] (0 for i = 0) to
                                             end[i] - 1; the last end is n_layer */
} quire_runtime_split;

typedef struct quire_kv_groups {
    uint32_t n;
    quire_group_id hot;     /* QUIRE_KV_GROUP_HOT, or 0: no side is sealed */
    quire_group_id window;  /* the last group, or 0: no window group */
    uint32_t window_tokens; /* quire_cache_opts.needs_last_tokens of the window group */
} quire_kv_groups;

typedef struct quire_runtime quire_runtime;

typedef struct quire_runtime_opts {
    uint32_t n_ctx;        /* longest sequence in tokens; 0 = n_ctx_train */
    uint32_t n_batch;      /* rows of one step at most; default 512 */
    uint32_t n_seqs_max;   /* sequences open at once; default 16 */
    uint32_t n_threads;    /* 0 = all CPUs this process may use */
    uint32_t page_tokens;  /* default 64 */
    quire_format k_format; /* of all layers, unless kv_pairs says otherwise */
    quire_format v_format;
    const quire_kv_pair *kv_pairs; /* [n_stored]; NULL = k_format and v_format everywhere. Copied */
    uint32_t kv_recent;            /* distance rule of sealed formats, multiples of 64 tokens */
    uint32_t kv_sinks;
    quire_format state_format;   /* of the states of recurrent layers that are kept for later texts:
                                    QUIRE_FORMAT_F32 (default) or QUIRE_FORMAT_F16 */
    uint64_t kv_budget_bytes;    /* 0 = n_ctx tokens of one sequence (quire_runtime_kv_bytes()), and
                                    QUIRE_CACHED_STATES_DEFAULT states beside them */
    bool kv_overflows;           /* the budget may be less than that: the caller offloads pages
                                    (quire/cache.h, offloaded pages) */
    uint64_t kv_least_bytes;     /* the budget may be less than that, and as small as this: the most
                                    that a text of n_ctx tokens takes whose tokens the caller drops
                                    on the way (engine/condensing.h); 0 = unused */
    uint64_t beside_bytes;       /* buffers that the caller takes beside the runtime's: a part of
                                    the need (memory.h) */
    uint64_t kv_elsewhere_bytes; /* not 0: K and V lie with a device of the caller's, which takes so
                                    much memory at most; the cache counts tokens, and its pages have
                                    no payload. The caller sets the device before the first step */
    quire_attn_workspace_opts elsewhere_limits; /* with these and a device: K and V lie with one of
                                                   the caller's before it, whose steps have these
                                                   limits. struct_bytes 0: not set */
    uint32_t weights_set;                       /* of the model's (quire_model_opts.devices) */
    const char *device; /* of pages, append and attention (quire/device.h), as "vulkan0"; NULL or
                           "cpu": none, the CPU's kernels read the host's memory. Borrowed for the
                           runtime's life */
    quire_runtime_split split; /* its devices, in place of one; `device` is then a name of all of
                                  them, for messages. See runtime_split.h */
    /* In place of quire_device_open(), for tests; NULL = that one. */
    int (*device_open)(quire_device **out, const char *name, const quire_device_opts *opts,
                       quire_error *err);
    bool attends_host; /* with a device: steps take addresses of pages in the host's memory, too,
                          and attend them there (quire_device_joint_open()) */
    bool no_cascade;   /* see quire_attn_workspace_opts */
    bool lock_memory;
    bool keeps_past;    /* no window group: layers with windows keep all tokens; for comparisons */
    bool is_contiguous; /* every sequence takes n_ctx tokens when it opens; for comparisons */
    bool has_bounds;    /* pages have room for the bounds of each tile's K; the device that reads
                           them writes them (retain/packed_device.h). In the host's memory, and of
                           models whose layers have full pages alone: quire_runtime_rows_check() */
} quire_runtime_opts;

/* States of recurrent layers for which a budget by default has room beside a longest sequence:
 * those of the ends of prompt and text of two texts. A hit needs its state, beside the two of the
 * sequence that gets it. */
#define QUIRE_CACHED_STATES_DEFAULT 4u

#define QUIRE_RUNTIME_OPTS_INIT                                                                    \
    {                                                                                              \
        .n_batch = 512, .n_seqs_max = 16, .page_tokens = 64, .k_format = QUIRE_FORMAT_F16,         \
        .v_format = QUIRE_FORMAT_F16, .kv_recent = QUIRE_KV_RECENT_DEFAULT,                        \
        .kv_sinks = QUIRE_KV_SINKS_DEFAULT, .state_format = QUIRE_FORMAT_F32                       \
    }

/* Replace zeros by defaults in n_ctx, n_batch (at most n_ctx with one sequence), n_seqs_max,
 * n_threads and page_tokens. */
void quire_runtime_opts_resolve(const quire_model_desc *desc, quire_runtime_opts *opts);

/* Whether a runtime of a model could have these options, without zeros and with kv_pairs, as far as
 * is known without its weights and its device. Errors: QUIRE_INVAL, QUIRE_NOPAGES (n_ctx does not
 * fit the budget; err gives both figures), QUIRE_UNSUPP (QUIRE_ISA; sealed formats with
 * is_contiguous; quire_runtime_device_check(), quire_runtime_bounds_check()). Thread: any. */
int quire_runtime_opts_check(const quire_model_desc *desc, const quire_runtime_opts *opts,
                             quire_error *err);

/* Errors: quire_runtime_opts_check(); QUIRE_NOMEM, QUIRE_UNSUPP (this build or the device cannot
 * run the model or an option), QUIRE_NOTFOUND (no such device). The model must outlive the
 * runtime. */
int quire_runtime_create(quire_runtime **out, const quire_model *model,
                         const quire_runtime_opts *opts, quire_error *err);
void quire_runtime_destroy(quire_runtime *runtime);

/* End the cache before the runtime, with all sequences: for an owner of offloaded pages, which end
 * with the cache, and whose memory ends before the device. Then only quire_runtime_destroy() may be
 * called. */
void quire_runtime_cache_end(quire_runtime *runtime);
/* Times in its history are microseconds since the runtime was created. */
quire_cache *quire_runtime_cache(quire_runtime *runtime);
/* With the defaults filled in, kv_pairs and the budget too. Memory: borrowed. Thread: any. */
const quire_runtime_opts *quire_runtime_opts_get(const quire_runtime *runtime);
/* The device of attention that steps go to. The caller may put another one in its place between two
 * steps; layers were checked by the first. */
quire_attn_device *quire_runtime_device(quire_runtime *runtime);
/* The options of attention that follow from runtime options without zeros. Thread: any. */
quire_attn_workspace_opts quire_runtime_attn_opts(const quire_model_desc *desc,
                                                  const quire_runtime_opts *opts);
/* The names of the attention's kernels: those of the CPU or the device. Memory: static. */
const char *quire_runtime_isa(const quire_runtime *runtime);
/* The device of the options; NULL without one, and with a split. */
const quire_device *quire_runtime_memory_device(const quire_runtime *runtime);
/* The devices of a split; NULL without one. */
const quire_device_split *quire_runtime_split_devices(const quire_runtime *runtime);
/* The memory of either, of which the cache's pages are; NULL without. Memory: the runtime's. */
const quire_page_memory *quire_runtime_page_memory(const quire_runtime *runtime);
/* The layers of the model on a device of ggml (quire_model_opts.devices), with the output as one of
 * them. */
uint32_t quire_runtime_n_device_layers(const quire_runtime *runtime);
/* Whether that device was lost, or one of a split: then every step returns QUIRE_LOST. */
bool quire_runtime_is_lost(const quire_runtime *runtime);
/* The name by which the options know the lost device; NULL: none is lost. Memory: the runtime's. */
const char *quire_runtime_lost_name(const quire_runtime *runtime);
/* Write the reason of a loss that ggml has reported, as " (ggml: reason)"; "" of any other. Returns
 * text. QUIRE_RUNTIME_WHY_BYTES are enough. */
#define QUIRE_RUNTIME_WHY_BYTES 176u
char *quire_runtime_lost_why(const quire_runtime *runtime, char *text, size_t text_bytes);
/* Whether the options name a device with memory of its own. Thread: any. */
bool quire_runtime_has_device(const quire_runtime_opts *opts);
/* Whether a runtime with these options can be on the device that they name, as far as is known
 * without the device. Errors: QUIRE_UNSUPP (err names the feature that devices lack). Thread:
 * any. */
int quire_runtime_device_check(const quire_runtime_opts *opts, quire_error *err);
/* Whether pages of a model can have bounds (quire_runtime_opts.has_bounds). Errors: QUIRE_UNSUPP
 * (err names the feature that excludes bounds). Thread: any. */
int quire_runtime_bounds_check(const quire_model_desc *desc, quire_error *err);
uint32_t quire_runtime_n_threads(const quire_runtime *runtime);

typedef enum quire_logits {
    QUIRE_LOGITS_NONE,
    QUIRE_LOGITS_LAST,
    QUIRE_LOGITS_ALL
} quire_logits;

typedef struct quire_slice {
    quire_seq_id seq;
    const int32_t *tokens;
    uint32_t n_tokens; /* >= 1 */
    quire_logits logits;
    uint32_t n_gone; /* tokens of the text that are not in the sequence any more: by so much are the
                        positions of new tokens above their places in the sequence */
    void *lanes;     /* quire_attn_seq.lanes */
    bool keeps_hot;  /* the step releases no hot page of the sequence: quire_runtime_cool() does */
    bool keeps_window; /* nor a page behind the window, so that its rows can be cut again */
} quire_slice;

/* Release the pages of a sequence's window group that no later token sees. A step does this for its
 * sequences before it takes pages; between two steps a sequence holds the pages of its last step,
 * so that they can be published and cut. For an owner whose sequence rests, or grows in other ways.
 */
void quire_runtime_release(quire_runtime *runtime, quire_seq_id seq);
/* Release the hot pages of a sequence that no later token reads, as a step does. */
void quire_runtime_cool(quire_runtime *runtime, quire_seq_id seq);

/* Compute slices (each sequence at most once, n_batch rows in all). *logits points to rows of
 * n_vocab floats in slice order, valid until the next step; NULL if none were asked for.
 * Errors: QUIRE_NOPAGES, QUIRE_LIMIT, QUIRE_INVAL (token id out of range; no state),
 * QUIRE_NOTFOUND, QUIRE_NOMEM, QUIRE_CANCELED (see below), QUIRE_IO (work of the device failed),
 * QUIRE_LOST (the device; all pages are gone, and every later step returns this). On an error no
 * sequence has changed. */
int quire_runtime_step(quire_runtime *runtime, const quire_slice *slices, uint32_t n_slices,
                       const float **logits);

/* Whether the model has recurrent layers. Thread: any. */
bool quire_runtime_is_recurrent(const quire_runtime *runtime);

/* The largest length up to n_tokens to which a sequence can be cut (quire_seq_truncate()) and go
 * on: quire_seq_truncatable(), and with recurrent layers the present length or 0. */
uint32_t quire_runtime_keepable(const quire_runtime *runtime, quire_seq_id seq, uint32_t n_tokens);

/* Copy the state of a sequence that can be continued, or give a sequence a state that another one
 * of the same tokens had, in quire_runtime_opts.state_format: quire_runtime_state_bytes() bytes, a
 * multiple of 64 whose last bytes are 0; 0 without recurrent layers. */
size_t quire_runtime_state_bytes(const quire_runtime *runtime);
void quire_runtime_state_save(const quire_runtime *runtime, quire_seq_id seq, void *to);
int quire_runtime_state_load(quire_runtime *runtime, quire_seq_id seq, const void *from);

/* Take the two pages for states that a sequence of a model with recurrent layers has
 * (quire_seq_states()), so that neither load nor a step needs more. Errors of both functions:
 * those of quire_seq_states(). */
int quire_runtime_state_reserve(quire_runtime *runtime, quire_seq_id seq);

/* quire_seq_fork() of the cache, and the fork gets the state of the sequence. */
int quire_runtime_fork(quire_runtime *runtime, quire_seq_id seq, quire_seq_id *out);

/* The hidden states behind the last norm of the rows that the last step gave logits for: rows of
 * n_embd floats in the same order, valid as long as these; NULL if there were none. */
const float *quire_runtime_hidden(const quire_runtime *runtime);

/* Call fn(ctx, i) for each i below n on the runtime's threads, and return when all calls have: for
 * work on the rows of a step, behind it. Where ggml keeps its own threads the caller makes all
 * calls. */
void quire_runtime_parts_run(const quire_runtime *runtime, uint32_t n,
                             void (*fn)(void *ctx, uint32_t i), void *ctx);

/* Set a function that decides whether to give up a step. A step calls `gives_up` some hundred
 * times, and ends with QUIRE_CANCELED when it returns true. The thread of quire_runtime_step()
 * makes the calls while the other threads wait, so the function must be quick. NULL = steps are
 * never given up. Returns false when this ggml cannot give up a step. */
bool quire_runtime_canceler_set(quire_runtime *runtime, bool (*gives_up)(void *ctx), void *ctx);

/* Give a sequence n tokens of random KV without computing them (deep contexts for benchmarks; the
 * state of recurrent layers is zero):
 * encodes a pattern once per lane and copies tiles, hot and sealed ones as a step would have left
 * them, behind the window of the window group nothing. If the sequence was not empty, the function
 * meanwhile holds kv_recent more hot tokens, and a window more, than a step does. Errors: as
 * quire_runtime_step(), QUIRE_UNSUPP (kv_elsewhere_bytes); then the sequence is unchanged. */
int quire_runtime_fill(quire_runtime *runtime, quire_seq_id seq, uint32_t n_tokens, uint64_t seed);

typedef struct quire_runtime_stats {
    uint64_t steps_total;
    uint64_t graphs_built_total;
    uint64_t graph_reuses_total;
    uint64_t compute_buffer_bytes;
    uint64_t attn_rows_total; /* rows whose attention was computed, summed over the layers */
    uint64_t attn_us_total;   /* time in the attention op, thread 0 */
    uint64_t append_us_total;
    uint64_t step_us_total;
    uint64_t layers_waits_total; /* of the host for the device with layers of the model */
} quire_runtime_stats;
void quire_runtime_stats_get(const quire_runtime *runtime, quire_runtime_stats *out);

/* The most bytes of KV pages that one sequence of opts->n_ctx tokens takes: main pages for all
 * tokens, hot pages for the sinks, the recent window and a step, pages of the window group for the
 * window and a step, the two pages for states; kv_elsewhere_bytes if it is set.
 * n_ctx, n_batch and page_tokens must not be 0. UINT64_MAX when the number does not fit. */
uint64_t quire_runtime_kv_bytes(const quire_model_desc *desc, const quire_runtime_opts *opts);

/* The same for any number of tokens. The sums over the layers are computed once, for callers that
 * ask often. */
typedef struct quire_kv_price {
    uint32_t page_tokens;
    uint32_t n_batch;
    uint64_t main_page_bytes; /* UINT64_MAX: more than can be counted */
    uint64_t hot_page_bytes;
    uint64_t hot_pages_max; /* of one sequence */
    uint64_t window_page_bytes;
    uint32_t window_tokens; /* 0: no window group */
} quire_kv_price;
quire_kv_price quire_kv_price_make(const quire_model_desc *desc, const quire_runtime_opts *opts);
uint64_t quire_kv_price_bytes(const quire_kv_price *price, uint64_t n_tokens);
/* The same for steps of at most n_rows rows of the sequence. */
uint64_t quire_kv_price_steps_bytes(const quire_kv_price *price, uint64_t n_tokens,
                                    uint32_t n_rows);
/* The least bytes of KV pages that a sequence of n_tokens tokens holds between two steps. */
uint64_t quire_kv_price_held_bytes(const quire_kv_price *price, uint64_t n_tokens);

/* The form of a model's KV. */
typedef struct quire_kv_form {
    const quire_model_desc *desc;
    const quire_kv_pair *pairs; /* [n_stored] */
    uint32_t page_tokens;
    bool is_whole;   /* without a window group */
    bool has_bounds; /* see quire_runtime_opts */
} quire_kv_form;

/* The form that resolved options give; pairs is opts->kv_pairs, which must not be NULL. */
quire_kv_form quire_kv_form_of(const quire_model_desc *desc, const quire_runtime_opts *opts);

/* The groups of a runtime with these options; kv_pairs may be NULL. */
quire_kv_groups quire_kv_groups_of(const quire_model_desc *desc, const quire_runtime_opts *opts);

/* Bytes of the K and V of n_tokens tokens of a sequence, outside of hot pages, as if tokens took no
 * pages: of stored layers in the window group, of the tokens in their own readers' windows. */
uint64_t quire_kv_tokens_bytes(const quire_kv_form *form, uint64_t n_tokens);

typedef struct quire_kv_page_bytes {
    size_t main; /* 64 where all stored layers are in the window group */
    size_t hot;  /* 0: no side is sealed */
    size_t window;
} quire_kv_page_bytes;

/* The page layout of a model: fills the sources and stores of `layer` for one model layer, each
 * with the group, the format and the rotation of its own stored layer, and returns the bytes of a
 * page in each group. A part of a page (quire/cache.h) is a stored layer of the group: [K: kv
 * head][tile], [V: kv head][tile]; hot pages leave out the sides that are not sealed. With
 * has_bounds the part of a main page ends with [bounds: kv head][tile], 2 * d_k numbers in bf16 and
 * whole lines of 64 bytes each. */
quire_kv_page_bytes quire_kv_layout(const quire_kv_form *form, uint32_t model_layer,
                                    quire_attn_layer *layer);

/* The bytes of a stored layer's part in the pages of a group; 0 if the group has none. */
size_t quire_kv_part_bytes(const quire_kv_form *form, quire_group_id group, uint32_t stored);

/* The parts of a page of a group. part_bytes: [n_stored], or NULL; n_parts may be NULL. Returns
 * their sum. */
size_t quire_kv_parts(const quire_kv_form *form, quire_group_id group, size_t *part_bytes,
                      uint32_t *n_parts);

#endif /* QUIRE_MODEL_RUNTIME_H */
