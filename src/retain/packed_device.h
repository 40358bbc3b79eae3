/* packed_device.h - attention for sequences that begin with packed pages (packed.h), beside plain
 * ones in the same step, and what a condensing needs of their texts' last tokens: queries, or the
 * worth of each token.
 *
 * The device stands before a runtime's own. Sequences without a text of this kind, which is the
 * quire_attn_seq.lanes of a batch, go to the runtime's device as they are, with its cascades and
 * bits; a step without such a text goes there as a whole. Of the others each KV head of a layer is
 * a job of one thread: a page table of the lane's packed tiles and of its tiles in full pages,
 * planned in the thread's own workspace. The kernels, the order of tiles and the splits are those
 * of lanes with a cache of their own (kept_lanes.h), so the bits are the same.
 *
 *   plan     divides the batch
 *   append   the runtime's device, then jobs: a head's rows into their full pages; predictions
 *   run      the runtime's device, then jobs: attention; then queries are kept, and what rows that
 *            repeat a part of the text attend to
 *
 * A text whose policy looks at attention keeps the queries of its last `probe` tokens, also before
 * it has packed pages. A text with a predictor keeps the predicted worth of its last tokens, from
 * the hidden states of the step (quire_packed_device_hidden_put()).
 *
 * Thread: owner; append() and run() of the device on all threads of a step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PACKED_DEVICE_H
#define QUIRE_RETAIN_PACKED_DEVICE_H

#include "retain/packed.h"
#include "retain/predictor.h"

typedef struct quire_packed_device quire_packed_device;

/* A text of a sequence, by which a batch names it. */
typedef struct quire_packed_text {
    quire_packed_lanes lanes; /* n_pages 0: no page is packed */
    uint32_t n_gone;          /* by so much are positions above the places in the sequence */
    uint32_t probe;           /* queries that are kept; 0 = none */
    float *queries;           /* [n_layers][n_head][probe][d_k], at position % probe, as K is turned
                                 and transformed; NULL: none */
    uint32_t n_worth;         /* tokens that have a worth; 0 = none */
    float *worth;             /* [lanes][n_worth], at position % n_worth; NULL: none */
    const quire_predictor *predictor; /* of the worth; borrowed; NULL: none */
    /* Of a worth that is repeated (kept_lanes.h): the step's rows repeat the tokens at positions
     * [repeat_begin, repeat_end), which are in full pages; empty: they belong to the text. */
    uint32_t repeat_begin;
    uint32_t repeat_end;
    uint32_t repeat_at;  /* position of the first row that repeats */
    uint32_t n_sinks;    /* first tokens that a softmax covers beside the part and the rows */
    uint32_t n_repeated; /* position behind the last token that was repeated */
    uint32_t seen_begin; /* positions whose rows were seen one after the other; */
    uint32_t seen_end;   /* what the last ones left is there */
} quire_packed_text;

typedef struct quire_packed_device_opts {
    quire_attn_device base;       /* in host memory */
    const quire_packing *packing; /* borrowed */
    uint32_t n_text_max;          /* tokens of a text */
    uint32_t n_rows_max;          /* of a step */
    uint32_t n_seqs_max;
    uint32_t n_threads;
} quire_packed_device_opts;

/* Errors: QUIRE_NOMEM, QUIRE_UNSUPP. Memory: quire_packed_device_destroy(). */
int quire_packed_device_create(quire_packed_device **out, const quire_packed_device_opts *opts);
void quire_packed_device_destroy(quire_packed_device *device);

/* Memory: valid until quire_packed_device_destroy(). */
quire_attn_device quire_packed_device_get(quire_packed_device *device);
/* The device behind it. */
quire_attn_device quire_packed_device_base(const quire_packed_device *device);

/* The hidden states of a layer's rows: as quire_lanes_hidden_put(), for a device. */
void quire_packed_device_hidden_put(void *device, uint32_t layer, const float *hidden,
                                    size_t stride);

/* Room for rows that repeat parts, of so many watched tokens at most; between two steps. Errors:
 * QUIRE_NOMEM. */
int quire_packed_device_watch(quire_packed_device *device, uint32_t n_watched);

typedef struct quire_packed_text_opts {
    const quire_packing *packing; /* read by create */
    uint32_t probe;
    uint32_t n_worth;
    const quire_predictor *predictor;
} quire_packed_text_opts;

/* Bytes of the queries and the worth of a text. */
uint64_t quire_packed_text_bytes(const quire_packed_text_opts *opts);
/* Errors: QUIRE_NOMEM. Memory: quire_packed_text_destroy(). */
int quire_packed_text_create(quire_packed_text **out, const quire_packed_text_opts *opts);
void quire_packed_text_destroy(quire_packed_text *text);

#endif /* QUIRE_RETAIN_PACKED_DEVICE_H */
