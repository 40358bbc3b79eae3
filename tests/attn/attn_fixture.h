/* attn_fixture.h - a little KV cache for tests of attention: pages full of NaN, page tables, random
 * K and V stored through the reference codec, and calls with any ISA and number of threads. Sealed
 * formats get a hot table; a tile is sealed as soon as all of its tokens have been stored.
 *
 * Groups: 0 has the first sources, 1 their hot pages if a format is sealed. The second sources lie
 * there too, or in groups 2 and 3.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ATTN_FIXTURE_H
#define QUIRE_TESTS_ATTN_FIXTURE_H

#include "base/rng.h"
#include "quire/attn.h"

#define FIXTURE_SEQS_MAX     12u
#define FIXTURE_EXTENT_PAGES 3u

typedef struct fixture_opts {
    uint32_t n_head;
    uint32_t n_kv_head;
    uint32_t d_k;
    uint32_t d_v;
    quire_format k_format;
    quire_format v_format;
    uint32_t rotate_k;
    uint32_t rotate_v;
    uint32_t n_k;
    uint32_t n_v; /* 0: v_prefix_of_k */
    /* is_mixed: the second sources have the formats and rotations below, not those of the first. */
    bool is_mixed;
    quire_format k_format_2;
    quire_format v_format_2;
    uint32_t rotate_k_2;
    uint32_t rotate_v_2;
    bool has_two_groups; /* the second sources lie in groups of their own */
    uint32_t window;
    bool has_chunks;
    float softcap;
    bool has_sinks;
    bool has_holes;  /* pages that no row sees, because of the window, are holes */
    bool has_drops;  /* some entries have lists of positions */
    bool has_biases; /* ... and their tokens biases */
    bool has_gates;
    bool has_keys;  /* run() gets K of the rows' own tokens, to round queries with: any numbers */
    bool is_ragged; /* entries use random parts of their pages; whole tiles of sealed formats */
    uint32_t recent_tiles;
    uint32_t sink_tiles;
    uint32_t n_punched; /* holes: the first entries of every hot table, from the second on, as far
                         * as they may be */
    uint32_t page_tokens;
    uint32_t split_entries; /* 0 = default */
    uint32_t n_seqs;
    uint32_t n_tokens[FIXTURE_SEQS_MAX];
    uint32_t n_rows[FIXTURE_SEQS_MAX]; /* query rows: the last of its tokens */
    float k_scale;                     /* standard deviation of K, V; 0 = 1 */
    float v_scale;
    float logit_scale; /* standard deviation of the logits, about; 0 = 2 */
} fixture_opts;

typedef struct fixture {
    fixture_opts opts;
    uint32_t n_rows;
    uint32_t n_tokens;
    uint32_t first_token[FIXTURE_SEQS_MAX]; /* of each sequence, in k and v: position 0's */
    uint32_t n_stored[FIXTURE_SEQS_MAX];    /* positions of each sequence that were stored */
    uint32_t n_groups;
    int32_t *positions; /* lists of entries */
    float *biases;      /* beside them; NULL: none */
    uint32_t n_positions;
    float *sinks;
    quire_attn_seq seqs[FIXTURE_SEQS_MAX];
    quire_attn_batch batch;
    quire_attn_layer layer;
    float *q[QUIRE_ATTN_SOURCES_MAX];
    float *k[QUIRE_ATTN_SOURCES_MAX]; /* [n_tokens][n_kv_head][d_k], not rotated */
    float *v[QUIRE_ATTN_SOURCES_MAX];
    float *gate[QUIRE_ATTN_SOURCES_MAX];
    float *keys; /* [n_rows][n_kv_head][d_k] */
    size_t page_bytes;
    uint32_t n_pages; /* page ids 1 .. n_pages */
    unsigned char *store;
    size_t store_bytes; /* whole extents of FIXTURE_EXTENT_PAGES */
    quire_page_addr *page_addr;
} fixture;

/* One K/V shape with a single sequence: heads 8/2, d 64, one source each, pages of 64, one row.
 * With sealed formats one recent tile is hot. Rows have keys. */
fixture_opts fixture_defaults(void);

/* Set the properties in which layers differ at random: window, softcap and sinks; with two sources
 * also their formats, rotations and groups. n_tokens must be set before. */
void fixture_vary(fixture_opts *opts, quire_rng *rng);

/* Build everything and store all tokens. Fails the running test when memory is short. */
void fixture_init(fixture *f, const fixture_opts *opts, quire_rng *rng);
void fixture_free(fixture *f);

/* Encode K and V of positions [begin, end) of a sequence from f->k and f->v again. Not in a
 * hole. K in 8 bit minds the queries of tokens that are query rows, if f->layer has q. */
void fixture_store(fixture *f, uint32_t seq, uint32_t begin, uint32_t end);

/* Entry i of a table, to be changed. */
quire_page_entry *fixture_entry(const quire_attn_table *table, uint32_t i);

/* The bias of an entry's token i. */
float fixture_bias(const fixture *f, const quire_page_entry *entry, uint32_t i);

/* The position of an entry's token i, and the one after its last. */
uint32_t fixture_position(const fixture *f, const quire_page_entry *entry, uint32_t i);
uint32_t fixture_entry_end(const fixture *f, const quire_page_entry *entry);

/* A sequence as it was when it had n_tokens tokens, tables included; n_rows and first_row as they
 * are. Memory: release with fixture_free_seq() before `seq` changes. */
quire_attn_seq fixture_truncated(const fixture *f, const quire_attn_seq *seq, uint32_t n_tokens);
void fixture_free_seq(const quire_attn_seq *seq, const quire_attn_seq *truncated);

/* Memory of the test's, aligned as tiles are. Release with free(). Fails the running test when it
 * is short. */
void *fixture_take(size_t bytes);

/* Fill all pages with bytes that decode to NaN. */
void fixture_wipe(fixture *f);

/* Make holes of all pages of a sequence that none of its rows sees, because of the window. */
void fixture_let_go(const fixture *f, uint32_t seq);

/* Floats of the output: [n_rows][n_head][d_v], dense. */
size_t fixture_out_floats(const fixture *f);

typedef struct fixture_run_opts {
    const char *isa; /* NULL = fastest */
    uint32_t n_threads;
    bool has_append; /* append the rows' K and V first */
    bool no_cascade;
} fixture_run_opts;

/* For 2 sequences of 3 entries of 64 tokens, 8 rows, 4 heads of up to 64, 2 threads, 2 layers. */
quire_attn_workspace_opts fixture_small_opts(void);

/* Limits of a workspace for the fixture's batch. */
quire_attn_workspace_opts fixture_workspace_opts(const fixture *f, const fixture_run_opts *opts);

/* A workspace for the fixture's batch. */
quire_attn_workspace *fixture_workspace(const fixture *f, const fixture_run_opts *opts);

/* K or V, [n_tokens][row_floats], of the batch's rows, [n_rows][row_floats], in row order. Memory:
 * release with free(). */
float *fixture_new_rows(const fixture *f, const quire_attn_batch *batch, const float *x,
                        uint32_t row_floats);

/* Attention over batch (NULL: the fixture's own) with a workspace of its own. */
void fixture_run(fixture *f, const quire_attn_batch *batch, const fixture_run_opts *opts,
                 float *out);

/* The reference, dense. Memory: release with free(). */
double *fixture_ref(fixture *f);

/* ||out - ref|| / ||ref||, over the whole output and for the worst (row, head). */
typedef struct fixture_error {
    double total;
    double worst_row;
} fixture_error;
fixture_error fixture_error_of(const fixture *f, const float *out, const double *ref);

/* ISAs of this build on this CPU. Returns their number, at most `max`. */
uint32_t fixture_isas(const char **isas, uint32_t max);

/* The seed of this run: QUIRE_SEED, or a fixed one. Printed, so that a failure can be repeated. */
uint64_t fixture_seed(void);

#endif /* QUIRE_TESTS_ATTN_FIXTURE_H */
