/* attn_fixture_run.c - calls with a fixture's batch, and how far off their results are.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_fixture.h"
#include "attn/kernels.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define THREADS_MAX 8u

size_t fixture_out_floats(const fixture *f)
{
    return (size_t)f->n_rows * f->opts.n_head * f->opts.d_v;
}

typedef struct worker {
    quire_attn_workspace *workspace;
    const quire_attn_layer *layer;
    bool is_append;
    uint32_t thread;
    uint32_t n_threads;
} worker;

static void *work(void *arg)
{
    const worker *w = arg;

    if (w->is_append) {
        quire_attn_append(w->workspace, w->layer, w->thread, w->n_threads);
    } else {
        quire_attn_run(w->workspace, w->layer, 0, w->thread, w->n_threads);
    }
    return NULL;
}

static void work_all(quire_attn_workspace *workspace, const quire_attn_layer *layer, bool is_append,
                     uint32_t n_threads)
{
    worker workers[THREADS_MAX];
    pthread_t threads[THREADS_MAX];

    assert_in_range(n_threads, 1, THREADS_MAX);
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i] = (worker){ workspace, layer, is_append, i, n_threads };
        if (i > 0) {
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        }
    }
    (void)work(&workers[0]);
    for (uint32_t i = 1; i < n_threads; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

float *fixture_new_rows(const fixture *f, const quire_attn_batch *batch, const float *x,
                        uint32_t row_floats)
{
    float *rows = fixture_take((size_t)f->n_rows * row_floats * sizeof(float));

    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        const quire_attn_seq *seq = &batch->seqs[b];
        uint32_t s = 0;

        while (f->seqs[s].first_row + f->seqs[s].n_rows <= seq->first_row) {
            s++;
        }
        for (uint32_t i = 0; i < seq->n_rows; i++) {
            size_t token = f->first_token[s] + seq->n_tokens - seq->n_rows + i;

            memcpy(rows + (size_t)(seq->first_row + i) * row_floats, x + token * row_floats,
                   row_floats * sizeof(float));
        }
    }
    return rows;
}

quire_attn_workspace_opts fixture_small_opts(void)
{
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    opts.n_threads_max = 2;
    opts.n_seqs_max = 2;
    opts.n_rows_max = 8;
    opts.n_head_max = 4;
    opts.head_dim_max = 64;
    opts.n_entries_max = 3;
    opts.page_tokens = 64;
    opts.n_layers_max = 2;
    return opts;
}

quire_attn_workspace_opts fixture_workspace_opts(const fixture *f, const fixture_run_opts *opts)
{
    quire_attn_workspace_opts ws_opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    ws_opts.n_threads_max = opts->n_threads;
    ws_opts.n_seqs_max = FIXTURE_SEQS_MAX;
    ws_opts.n_rows_max = f->n_rows;
    ws_opts.n_head_max = f->opts.n_head;
    ws_opts.head_dim_max = f->opts.d_k > f->opts.d_v ? f->opts.d_k : f->opts.d_v;
    for (uint32_t s = 0; s < f->opts.n_seqs; s++) {
        uint32_t n = f->seqs[s].tables[0].n_entries;

        ws_opts.n_entries_max = n > ws_opts.n_entries_max ? n : ws_opts.n_entries_max;
    }
    ws_opts.split_entries = f->opts.split_entries;
    ws_opts.page_tokens = f->opts.page_tokens;
    ws_opts.n_layers_max = 1;
    ws_opts.n_groups = f->n_groups;
    for (uint32_t g = 0; g < f->n_groups; g++) {
        const bool is_hot = g % 2 == 1;

        ws_opts.groups[g] =
            (quire_attn_group){ .window = is_hot ? 0 : f->opts.window, .is_hot = is_hot };
    }
    ws_opts.no_cascade = opts->no_cascade;
    ws_opts.isa = opts->isa;
    return ws_opts;
}

quire_attn_workspace *fixture_workspace(const fixture *f, const fixture_run_opts *opts)
{
    const quire_attn_workspace_opts ws_opts = fixture_workspace_opts(f, opts);
    quire_attn_workspace *workspace;

    assert_int_equal(quire_attn_workspace_create(&workspace, &ws_opts), QUIRE_OK);
    return workspace;
}

void fixture_run(fixture *f, const quire_attn_batch *batch, const fixture_run_opts *opts,
                 float *out)
{
    const fixture_opts *o = &f->opts;
    quire_attn_workspace *workspace = fixture_workspace(f, opts);
    quire_attn_layer layer = f->layer;
    size_t row_floats = (size_t)o->n_head * o->d_v;
    float *padded = fixture_take(f->n_rows * layer.out_stride * sizeof(float));
    float *k_new = NULL;
    float *v_new = NULL;

    batch = batch != NULL ? batch : &f->batch;
    layer.out = padded;
    assert_int_equal(quire_attn_layer_check(workspace, &layer), QUIRE_OK);
    assert_int_equal(quire_attn_begin(workspace, batch), QUIRE_OK);
    if (opts->has_append) {
        layer.k_new_stride = (size_t)o->n_kv_head * o->d_k;
        layer.v_new_stride = (size_t)o->n_kv_head * o->d_v;
        k_new = fixture_new_rows(f, batch, f->k[0], (uint32_t)layer.k_new_stride);
        layer.k_new = k_new;
        if (o->n_v > 0) {
            v_new = fixture_new_rows(f, batch, f->v[0], (uint32_t)layer.v_new_stride);
            layer.v_new = v_new;
        }
        work_all(workspace, &layer, true, opts->n_threads);
    }
    work_all(workspace, &layer, false, opts->n_threads);
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        for (uint32_t i = 0; i < batch->seqs[b].n_rows; i++) {
            size_t row = batch->seqs[b].first_row + i;

            memcpy(out + row * row_floats, padded + row * layer.out_stride,
                   row_floats * sizeof(float));
        }
    }
    free(k_new);
    free(v_new);
    free(padded);
    quire_attn_workspace_destroy(workspace);
}

double *fixture_ref(fixture *f)
{
    double *ref = fixture_take(fixture_out_floats(f) * sizeof(double));

    assert_int_equal(quire_attn_ref(&f->batch, &f->layer, ref), QUIRE_OK);
    return ref;
}

/* A NaN on either side is an infinite error. */
static double relative(double difference, double norm)
{
    if (difference == 0.0) {
        return 0.0;
    }
    return difference / norm < INFINITY ? sqrt(difference / norm) : INFINITY;
}

fixture_error fixture_error_of(const fixture *f, const float *out, const double *ref)
{
    size_t d = f->opts.d_v;
    double total_difference = 0.0;
    double total_norm = 0.0;
    fixture_error error = { 0.0, 0.0 };

    for (size_t row = 0; row < (size_t)f->n_rows * f->opts.n_head; row++) {
        double difference = 0.0;
        double norm = 0.0;
        double row_error;

        for (size_t i = row * d; i < (row + 1) * d; i++) {
            difference += ((double)out[i] - ref[i]) * ((double)out[i] - ref[i]);
            norm += ref[i] * ref[i];
        }
        row_error = relative(difference, norm);
        error.worst_row = row_error > error.worst_row ? row_error : error.worst_row;
        total_difference += difference;
        total_norm += norm;
    }
    error.total = relative(total_difference, total_norm);
    return error;
}

uint32_t fixture_isas(const char **isas, uint32_t max)
{
    static const char *const names[] = { "portable",    "avx2",       "avx512",
                                         "avx512+bf16", "avx512+amx", "neon" };
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && n < max; i++) {
        if (quire_attn_kernels_find(names[i]) != NULL) {
            isas[n++] = names[i];
        }
    }
    return n;
}

uint64_t fixture_seed(void)
{
    const char *text = getenv("QUIRE_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 20260101u;

    print_message("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}
