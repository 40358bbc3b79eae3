/* packed_device_internal.h - the parts of quire_packed_device; for src/retain only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PACKED_DEVICE_INTERNAL_H
#define QUIRE_RETAIN_PACKED_DEVICE_INTERNAL_H

#include "retain/packed_copy.h"
#include "retain/packed_device.h"
#include "retain/page_choice.h"
#include "retain/watch.h"

#include <pthread.h>
#include <stdatomic.h>

/* Sequences of a cascade, at most, and the rows of each. */
#define QUIRE_PACKED_CASCADE_SEQS 16u
#define QUIRE_PACKED_CASCADE_ROWS 8u

/* Sequences packed[first] .. packed[first + n_seqs - 1] of a step, whose packed pages are the same.
 * For each lane there is one job for all these sequences. The job reads shared splits once
 * (packed_cascade.c). */
typedef struct quire_packed_cascade {
    uint32_t first;
    uint32_t n_seqs;
} quire_packed_cascade;

/* Sequences of a step that may share packed pages, or one by itself. A tile is that of a lane. */
typedef struct quire_packed_set {
    uint32_t first; /* of packed[] */
    uint32_t n_seqs;
    uint32_t n_rows;    /* of all */
    uint32_t n_own;     /* tiles of a sequence in full pages, on average */
    uint32_t n_mean;    /* packed tiles of a lane, on average */
    uint32_t n_longest; /* packed tiles of the longest lane */
    uint32_t n_parts;   /* cascades */
} quire_packed_set;

/* The tiles of a lane of a sequence as a page table, and the rows on them as a sequence. */
typedef struct quire_packed_table {
    quire_page_entry *entries; /* [n_entries_max] */
    const quire_page_entry **leaves;
    quire_page_entry *hot_entries; /* the same of sealed formats, else NULL */
    const quire_page_entry **hot_leaves;
    quire_page_addr *addrs; /* of several tables: part and place of entry i's tile at first_page +
                               1 + i, of its hot tile at n_entries_max behind that; borrowed */
    quire_page_id first_page;
    quire_attn_seq seq;
} quire_packed_table;

/* A thread's memory and workspace for jobs. On a device, which does the jobs, it has neither
 * workspace nor tables. */
typedef struct quire_packed_worker {
    quire_attn_workspace *workspace;
    quire_packed_table *tables; /* [n_tables] of a job's sequences */
    quire_attn_seq *seqs;       /* [n_tables] as the workspace has them */
    quire_page_addr *addrs;     /* of the tables */
    quire_watch_room watched;   /* of rows that repeat; n_max 0: none yet */
    float *tile;                /* K of one tile, for these and for bounds */
    quire_page_rank *ranks;     /* [n_entries_max]; NULL: pages have no bounds */
    quire_page_id *chosen;      /* [n_entries_max] pages; with ranks */
    unsigned char *keys; /* tiles of K, and their bounds, on their way from a device and back;
                            with ranks */
    unsigned char *bounds;
    uint64_t n_read; /* quire_packed_reads */
    uint64_t n_held;
} quire_packed_worker;

/* Jobs of a layer that threads took, and its hidden states: all threads write the same. */
typedef struct quire_packed_jobs {
    _Atomic uint32_t next_append;
    _Atomic uint32_t next_run;
    _Atomic(const float *) hidden;
    _Atomic size_t hidden_stride;
} quire_packed_jobs;

/* A KV head of some rows of a sequence in a batch of a device. */
typedef struct quire_packed_pair {
    quire_attn_seq seq;
    uint32_t head;
} quire_packed_pair;

/* What the device's plan is of. */
typedef enum quire_packed_planned {
    QUIRE_PACKED_ALL,   /* the step's sequences as they came */
    QUIRE_PACKED_PLAIN, /* the plain ones */
    QUIRE_PACKED_PAIRS
} quire_packed_planned;

/* Jobs of a layer as batches of a device with a queue: each pair of a sequence and a KV head is a
 * sequence there, and so is each row that chooses pages. */
typedef struct quire_packed_queue {
    quire_page_memory memory;
    uint32_t n_pairs_max;
    uint32_t n_rows_max;
    quire_packed_table *tables; /* [n_pairs_max] */
    quire_page_addr *addrs;     /* of the tables */
    quire_packed_pair *pairs;   /* [n_pairs_max] of the batch at hand */
    uint32_t sink_tiles;        /* of this batch: quire_attn_layer */
    quire_attn_seq *seqs;       /* [n_pairs_max] */
    uint32_t n_pairs, n_rows;
    float *q; /* [n_rows_max][group][d_k] rows of one pair after those of the other */
    float *k;
    float *v;
    float *out;
    bool has_queued; /* rows of the tables may wait in the device's queue */
    quire_packed_planned planned;
    bool is_one;      /* the layer's rows were one batch */
    uint32_t lead;    /* first pair of a cascade's first sequence in the batch; UINT32_MAX: none */
    uint32_t n_ready; /* the plan is that of all jobs of layer n_ready - 1; 0: of none */
    /* Of keys that are watched. The lock is that of the device while jobs run. */
    pthread_mutex_t lock;
    quire_packed_window keys;
    int status;
} quire_packed_queue;

struct quire_packed_device {
    quire_attn_device base;
    quire_packed_queue *queue; /* NULL: pages are in the host's memory */
    quire_packing packing;
    uint32_t group; /* query heads of a KV head */
    uint32_t n_entries_max;
    uint32_t n_tables; /* of a worker */
    bool no_cascade;
    uint32_t n_threads;
    uint32_t n_seqs_max;
    uint32_t sink_tiles;          /* of texts that attend to a share */
    quire_rotation rotation;      /* d 0: no text has sums over its queries */
    float *turns;                 /* [n_rows_max][d] back from the rows of such texts */
    quire_packed_worker *workers; /* [n_threads] */
    quire_attn_layer *heads; /* [n_layers] as one head of a layer is computed on its lane's tiles */
    quire_packed_jobs *jobs; /* [n_layers] */
    quire_attn_workspace *windows; /* of layers with windows, in steps with packed texts; NULL: the
                                      model has none */
    quire_packed_elsewhere elsewhere; /* its functions NULL: all pages are in memory */
    /* Of the step: */
    quire_attn_batch batch;
    quire_attn_seq *plain;            /* [n_seqs_max] */
    const quire_attn_seq **packed;    /* [n_seqs_max] those of a cascade side by side */
    quire_packed_cascade *cascades;   /* [n_seqs_max] of packed[] */
    const quire_attn_seq **probed;    /* [n_seqs_max] */
    const quire_attn_seq **repeated;  /* [n_seqs_max] */
    const quire_attn_seq **predicted; /* [n_seqs_max] */
    const quire_attn_seq **summed;    /* [n_seqs_max] */
    const quire_attn_seq **filled;    /* [n_seqs_max] plain ones whose rows fill tiles */
    quire_attn_seq *filled_last;      /* [n_seqs_max] those of the last layer's append */
    uint32_t n_cascades;
    quire_packed_set *sets; /* [n_seqs_max] of packed[] */
    uint32_t n_plain, n_packed, n_probed, n_predicted, n_repeated, n_summed, n_filled;
    uint32_t n_filled_last;
    _Atomic int status;
};

/* The group of hot pages of a worker's tables. */
#define QUIRE_PACKED_HOT 1u

static inline quire_packed_text *quire_packed_text_of(const quire_attn_seq *seq)
{
    return seq->lanes;
}

static inline const quire_page_entry *quire_packed_entry(const quire_attn_seq *seq, uint32_t i)
{
    const quire_attn_table *table = &seq->tables[0];

    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

/* ---- packed_device.c ---- */

/* The hot page of entry i of a sequence; NULL: none. */
const quire_page_addr *quire_packed_hot_of(const quire_packed_device *d, const quire_attn_seq *seq,
                                           uint32_t i);
/* Fill a table with the tiles of a lane of a sequence, or with those of its rows alone. Tiles that
 * a table `like` with the same addresses has in the same entries get the same pages; NULL: none. */
void quire_packed_tiles_fill(const quire_packed_device *d, quire_packed_table *table,
                             const quire_packed_table *like, const quire_attn_seq *seq,
                             uint32_t lane, bool rows_only);
/* Plan the worker's workspace for rows of a lane of n <= n_tables sequences: on all its tiles, or
 * on those of the rows alone. Returns whether that worked. */
bool quire_packed_job_begin(quire_packed_device *d, quire_packed_worker *w,
                            const quire_attn_seq *const *seqs, uint32_t n, uint32_t lane,
                            bool rows_only);
/* The same of one sequence, with the lane's tiles of the first n of the ranks. */
void quire_packed_tiles_fill_on(const quire_packed_device *d, quire_packed_table *table,
                                const quire_attn_seq *seq, uint32_t lane,
                                const quire_page_rank *ranks, uint32_t n);
/* ... whose ranks are the worker's first n. */
bool quire_packed_job_begin_on(quire_packed_device *d, quire_packed_worker *w,
                               const quire_attn_seq *seq, uint32_t lane, uint32_t n);

/* Pages of a table, whose addresses a set of tables has behind that of page 0. */
static inline uint32_t quire_packed_table_pages(const quire_packing *p, uint32_t n_entries_max)
{
    return quire_packing_is_sealed(p) ? 2 * n_entries_max : n_entries_max;
}
/* Errors: QUIRE_NOMEM. Memory: quire_packed_tables_destroy(). */
int quire_packed_tables_create(const quire_packed_device *d, uint32_t n, quire_packed_table **out,
                               quire_page_addr **addrs);
void quire_packed_tables_destroy(quire_packed_table *tables, uint32_t n, quire_page_addr *addrs);
uint64_t quire_packed_tables_bytes(const quire_packing *p, uint32_t n_entries_max, uint32_t n);

/* ---- packed_cascade.c ---- */

/* Tables that a worker has: a cascade has no more sequences. */
uint32_t quire_packed_cascade_tables(const quire_packed_device_opts *o);
/* Put the step's packed sequences that share packed pages side by side, and cut them into cascades;
 * for a device with a queue they are not cut. */
void quire_packed_cascades_plan(quire_packed_device *d);
/* Attention of a cascade on a lane. one: the layer of the lane. */
void quire_packed_cascade_run(quire_packed_device *d, quire_packed_worker *w,
                              const quire_packed_cascade *cascade, const quire_attn_layer *one,
                              uint32_t lane);

/* ---- packed_queue.c: jobs that a device with a queue does, on thread 0 of a step ---- */

uint64_t quire_packed_queue_bytes(const quire_packed_device_opts *opts, uint32_t n_entries_max);
/* Errors: QUIRE_NOMEM. Memory: quire_packed_queue_destroy(), on errors too. */
int quire_packed_queue_create(quire_packed_device *d, const quire_packed_device_opts *opts);
void quire_packed_queue_destroy(quire_packed_queue *queue);

/* A step of which some sequences have packed pages. Errors: those of a device's plan(). */
int quire_packed_queue_plan(quire_packed_device *d);
/* Give the device the plan of all sequences. Returns whether it has it; failures go to the step's
 * status. */
bool quire_packed_queue_all(quire_packed_device *d);
/* A layer of such a step: its rows, and attention; of the plain sequences, too. Failures go to the
 * step's status. */
void quire_packed_queue_append(quire_packed_device *d, const quire_attn_layer *call, uint32_t l);
void quire_packed_queue_run(quire_packed_device *d, const quire_attn_layer *call, uint32_t index,
                            uint32_t l);

/* ---- packed_attend.c: rows that choose pages ---- */

/* Whether rows of the step choose pages. */
bool quire_packed_attends(const quire_attn_seq *seq);
/* Whether rows of the step fill a tile. */
static inline bool quire_packed_fills(const quire_attn_seq *seq)
{
    return seq->n_tokens / QUIRE_TILE_TOKENS > (seq->n_tokens - seq->n_rows) / QUIRE_TILE_TOKENS;
}
/* Rows [first, first + n) of a sequence's rows in the step. */
quire_attn_seq quire_packed_rows_of(const quire_attn_seq *seq, uint32_t first, uint32_t n);
/* How many of the first rows read all tiles of a lane. */
uint32_t quire_packed_n_dense(const quire_packed_device *d, const quire_attn_seq *seq,
                              uint32_t lane);
/* The tiles that the only row of a sequence reads of a lane: their ranks are the worker's first
 * ones. Returns their number. one: the layer of the lane. */
uint32_t quire_packed_row_choose(const quire_packed_device *d, quire_packed_worker *w,
                                 const quire_attn_seq *seq, const quire_attn_layer *one,
                                 uint32_t lane);
/* Attention of the step's rows, of pages in the host's memory. */
void quire_packed_attend(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                         const quire_attn_layer *one, uint32_t lane);

/* ---- packed_bounds.c ---- */

/* A worker's memory for bounds; none, of pages without. Errors: QUIRE_NOMEM. */
int quire_packed_bounder_init(quire_packed_worker *w, const quire_packing *p,
                              uint32_t n_entries_max, bool has_queue);
void quire_packed_bounder_fini(quire_packed_worker *w);
uint64_t quire_packed_bounder_bytes(const quire_packing *p, uint32_t n_entries_max, bool has_queue);

/* Make the bounds of the tiles of a lane that the rows of the step fill; nothing, of pages without
 * bounds. A failed copy goes to the step's status. Not under the queue's lock. */
void quire_packed_bound(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                        uint32_t lane);
/* Bring the bounds of a layer of a sequence's full pages that its text does not have yet. Under the
 * queue's lock. Errors: those of quire_page_memory.copy. */
int quire_packed_mirror_fetch(quire_packed_device *d, const quire_attn_seq *seq, uint32_t l);
/* The bounds of a lane's tile, which are in memory also when the page is not. Of a tile in a page
 * that is not full they are anything. */
const uint16_t *quire_packed_bounds_at(const quire_packed_device *d, const quire_attn_seq *seq,
                                       uint32_t lane, uint32_t tile);

/* ---- packed_watch.c: attention of a step's rows to tokens of a lane ---- */

/* The most attention of rows that repeat to each token of the part. one: the layer of the lane. */
void quire_packed_repeat(quire_packed_device *d, quire_packed_worker *w, const quire_attn_seq *seq,
                         const quire_attn_layer *one, uint32_t lane);
/* Add the attention of rows [skip, ...) of a sequence to the sums of all tokens of the lane. */
void quire_packed_attention_add(quire_packed_device *d, quire_packed_worker *w,
                                const quire_attn_seq *seq, const quire_attn_layer *one,
                                uint32_t lane, uint32_t skip);

/* ---- packed_sums.c ---- */

/* A step's rows [begin, end) of the text come. */
void quire_packed_sums_expect(quire_packed_sums *sums, uint32_t begin, uint32_t end);
/* The turns of a sequence's rows. */
void quire_packed_sums_turns(quire_packed_device *d, const quire_attn_seq *seq);
/* Add a sequence's rows to the sums of a lane. */
void quire_packed_sums_add(quire_packed_device *d, quire_packed_worker *w,
                           const quire_attn_seq *seq, const quire_attn_layer *one, uint32_t lane);

#endif /* QUIRE_RETAIN_PACKED_DEVICE_INTERNAL_H */
