/* packed_device.h - attention for sequences that begin with packed pages (packed.h), beside plain
 * ones in the same step. It also keeps data of their texts' last tokens for condensings: queries,
 * or the worth of each token.
 *
 * The device stands before a runtime's own. Sequences without a text of this kind, which is the
 * quire_attn_seq.lanes of a batch, go to the runtime's device as they are, with its cascades and
 * bits; a step without such a text goes there as a whole. Of the others each KV head of a layer is
 * a job of one thread: a page table of the lane's packed tiles and of its tiles in full pages,
 * planned in the thread's own workspace. The kernels, the order of tiles and the splits are those
 * of lanes with a cache of their own (kept_lanes.h), so the bits are the same. A KV head of several
 * sequences with the same packed pages may be one job, in which they are a cascade: splits that
 * they share are read once for their rows (packed_cascade.c).
 *
 * On a device with a queue (quire/device.h) the jobs of a layer are a batch there, in which each
 * KV head of a sequence is a sequence (packed_queue.c). Texts of this kind beside plain ones take
 * turns in the device's plan. The host computes what policies keep of rows: keys that it looks at
 * come from the pages by the device's copies.
 *
 *   plan     divides the batch
 *   append   the runtime's device, then jobs: a head's rows into their full pages; predictions
 *   run      the runtime's device, then jobs: attention; then queries are kept, and the attention
 *            of rows that repeat a part of the text
 *
 * Layers with windows have full pages in a group of their own, also of texts with packed pages. In
 * a step with such a text a workspace of the device computes them, for all sequences; on a device
 * with a queue this computes them by a plan of all sequences.
 *
 * A text whose policy looks at attention keeps the queries of its last `probe` tokens, also before
 * it has packed pages, or sums over its rows since the last condensing. A text with a predictor
 * keeps the predicted worth of its last tokens, from the hidden states of the step
 * (quire_packed_device_hidden_put()).
 *
 * Of a text that attends to a share, rows from position attend_from on read the pages that they
 * may need most (page_choice.h), each row by itself, so the bits do not depend on steps. Rows
 * before read all pages, as those of a plain text. Bounds are made when a tile is full, of all
 * texts of a runtime whose pages have room for them: another text may share the page later.
 * Those of plain texts are made in run(), and of the last layer in sync(), because a step without
 * logits appends to that layer and does not run it. Pages may lie outside of memory while their
 * bounds are there (quire_packed_elsewhere). On a device the host makes the bounds of a tile from
 * keys that it copies, and sends them to the page. A text that chooses pages keeps the bounds of
 * its own ones in the host's memory (quire_packed_mirror).
 *
 * Thread: owner; append() and run() of the device on all threads of a step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PACKED_DEVICE_H
#define QUIRE_RETAIN_PACKED_DEVICE_H

#include "retain/packed.h"
#include "retain/predictor.h"
#include "retain/query_sums.h"

typedef struct quire_packed_device quire_packed_device;

/* Sums over the rows of a text since its last condensing, of policies that need them: queries
 * (query_sums.h), or the attention that each token of a lane got, before that condensing too. Rows
 * that come twice, because a step failed, are added once. */
typedef struct quire_packed_sums {
    uint32_t *ends; /* [lanes] position behind the last row that was added; NULL: there are none */
    uint32_t begin; /* the sums' first row */
    uint32_t next;  /* position behind the last row of a step */
    bool is_whole;  /* no row between these was left out */
    const quire_rotation *rotation; /* borrowed; NULL: no queries */
    float *queries;                 /* [n_layers][n_head][d_k]; NULL: none */
    float *products;                /* [n_layers][n_head][d_k][d_k] */
    uint32_t n_chunk;               /* tokens in full pages, at most */
    float *attention; /* lane after lane: packed tokens, then n_chunk others; NULL: none */
} quire_packed_sums;

/* Bounds of the first pages of a text whose pages lie on a device, in the host's memory. Of a page
 * they are copied once: a full page of a text does not change. */
typedef struct quire_packed_mirror {
    unsigned char *bounds; /* [n_layers][n_pages_max], of a page those of all lanes as they end a
                              part; NULL: no row chooses pages on a device */
    uint32_t *n_known;     /* [n_layers] pages whose bounds are there */
    uint32_t n_pages_max;
} quire_packed_mirror;

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
    uint32_t repeat_at;   /* position of the first row that repeats */
    uint32_t n_sinks;     /* first tokens that a softmax covers beside the part and the rows */
    uint32_t n_repeated;  /* position behind the last token that was repeated */
    double attend_share;  /* below 1: rows choose pages, from */
    uint32_t attend_from; /* this position on */
    uint32_t seen_begin;  /* first position of rows that were seen one after the other */
    uint32_t seen_end;    /* behind the last of them, whose results are still there */
    quire_packed_mirror mirror;
    quire_packed_sums sums;
} quire_packed_text;

typedef struct quire_packed_device_opts {
    quire_attn_device base;
    bool is_on_device;               /* base has a queue and memory of its own; then: */
    const quire_page_memory *memory; /* of base; read by create */
    uint32_t n_pairs_max;            /* sequences of a batch of base */
    const quire_packing *packing;    /* borrowed */
    const quire_rotation *rotation;  /* read by create, its frequencies borrowed; NULL or d 0: no
                                        text sums up queries */
    uint32_t recent_tiles;           /* quire_attn_layer, of sealed formats */
    uint32_t sink_tiles;             /* the same, of texts that attend to a share */
    bool no_cascade;                 /* as in quire_attn_workspace_opts */
    const quire_attn_workspace_opts *window_opts; /* of a workspace for all sequences of a step:
                                                     read by create, with packing->window_group
                                                     in the host's memory */
    uint32_t n_text_max;                          /* tokens of a text */
    uint32_t n_rows_max;                          /* of a step, and of a batch of base */
    uint32_t n_seqs_max;
    uint32_t n_threads;
} quire_packed_device_opts;

/* Errors: QUIRE_NOMEM, QUIRE_UNSUPP. Memory: quire_packed_device_destroy(). */
int quire_packed_device_create(quire_packed_device **out, const quire_packed_device_opts *opts);
void quire_packed_device_destroy(quire_packed_device *device);
/* Bytes that quire_packed_device_create() takes, of which those for attention are the most; base is
 * not read. */
uint64_t quire_packed_device_bytes(const quire_packed_device_opts *opts);

/* Memory: valid until quire_packed_device_destroy(). */
quire_attn_device quire_packed_device_get(quire_packed_device *device);
/* The device behind it. */
quire_attn_device quire_packed_device_base(const quire_packed_device *device);

/* The hidden states of a layer's rows: as quire_lanes_hidden_put(), for a device. */
void quire_packed_device_hidden_put(void *device, uint32_t layer, const float *hidden,
                                    size_t stride);

/* Pages that are not in memory when a step begins. Rows that choose pages look at the bounds of all
 * and read those that they choose. Functions: in run() of a layer, from any of a step's threads. */
typedef struct quire_packed_elsewhere {
    /* The bounds of all lanes of the layer in a page, as they end its part; NULL: they are where
     * the page is. */
    const void *(*bounds)(void *ctx, quire_page_id page);
    /* Bring those of the pages that are elsewhere to their addresses. An error is sync()'s of
     * the device that brings them. */
    void (*need)(void *ctx, const quire_page_id *pages, uint32_t n);
    void *ctx;
} quire_packed_elsewhere;
/* Between two steps. NULL: all pages are in memory. Copied. */
void quire_packed_device_elsewhere_set(quire_packed_device *device,
                                       const quire_packed_elsewhere *elsewhere);
/* Whether all rows of a step's sequence choose pages. */
bool quire_packed_chooses(const quire_attn_seq *seq);
/* Bytes of the bounds that end a layer's part of a page; 0: pages have none. */
size_t quire_packed_device_bounds_bytes(const quire_packed_device *device);

typedef struct quire_packed_reads {
    /* Pages of lanes that rows of texts with a share have read, and those that these lanes had,
     * below the dense layers. */
    uint64_t n_read;
    uint64_t n_held;
    uint64_t n_saved; /* quire_attn_saved_splits() of jobs; not of a device's */
} quire_packed_reads;
quire_packed_reads quire_packed_device_reads(const quire_packed_device *device);

/* Make room to watch the attention of rows to n_watched tokens at most; between two steps. Errors:
 * QUIRE_NOMEM. */
int quire_packed_device_watch(quire_packed_device *device, uint32_t n_watched);

typedef struct quire_packed_text_opts {
    const quire_packing *packing; /* read by create */
    uint32_t probe;
    uint32_t n_worth;
    const quire_predictor *predictor;
    const quire_rotation *rotation; /* sums over queries; NULL: none */
    double attend_share;            /* as in the text; 0 = rows read all pages */
    uint32_t attend_from;
    uint32_t n_mirrored;      /* tokens of a text that chooses pages on a device, at most; else 0 */
    uint32_t n_summed;        /* sums of attention; tokens in full pages, at most; 0 = none */
    uint64_t n_summed_packed; /* packed ones of all lanes, for the number of bytes alone */
} quire_packed_text_opts;

/* Bytes of a text: the places of its lanes, queries, worth, sums and bounds. */
uint64_t quire_packed_text_bytes(const quire_packed_text_opts *opts);
/* Errors: QUIRE_NOMEM. Memory: quire_packed_text_destroy(). */
int quire_packed_text_create(quire_packed_text **out, const quire_packed_text_opts *opts);
void quire_packed_text_destroy(quire_packed_text *text);

/* ---- packed_bounds.c ---- */

uint64_t quire_packed_mirror_bytes(const quire_packed_text_opts *opts);
/* Errors: QUIRE_NOMEM. Memory: quire_packed_mirror_fini(), on errors too. */
int quire_packed_mirror_init(quire_packed_mirror *mirror, const quire_packed_text_opts *opts);
void quire_packed_mirror_fini(quire_packed_mirror *mirror);

/* ---- packed_sums.c ---- */

uint64_t quire_packed_sums_bytes(const quire_packed_text_opts *opts);
/* Errors: QUIRE_NOMEM. Memory: quire_packed_sums_fini(), on errors too. */
int quire_packed_sums_init(quire_packed_sums *sums, const quire_packed_text_opts *opts);
void quire_packed_sums_fini(quire_packed_sums *sums);

/* The text was condensed, or begins: sums begin anew with the row at a position. Attention that
 * kept tokens got before comes from the packed pages. Nothing, for a text without sums. Errors:
 * QUIRE_NOMEM. */
int quire_packed_sums_begin(quire_packed_text *text, const quire_packing *packing,
                            const quire_packed_pages *pages, uint32_t position);

/* Whether the sums have all rows [begin, end), and no other. */
static inline bool quire_packed_sums_are(const quire_packed_sums *sums, uint32_t begin,
                                         uint32_t end)
{
    return sums->is_whole && sums->begin == begin && sums->next == end;
}

/* The attention of a lane's tokens, in their order. */
float *quire_packed_sums_attention(const quire_packed_text *text, uint32_t lane);
/* The sums of a lane's query heads. n_queries: rows in them. */
quire_query_sums quire_packed_sums_queries(const quire_packed_text *text,
                                           const quire_packing *packing, uint32_t lane,
                                           uint64_t *n_queries);

#endif /* QUIRE_RETAIN_PACKED_DEVICE_H */
