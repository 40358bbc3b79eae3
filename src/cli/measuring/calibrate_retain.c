/* calibrate_retain.c - see calibrate_retain.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/calibrate_retain.h"

#include "base/check.h"
#include "cli/commands/commands.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/measuring/evaluate.h"
#include "cli/measuring/parallel.h"
#include "cli/measuring/predictor_place.h"
#include "model/memory.h"
#include "model/runtime_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define FITS_BYTES_MAX                                                                             \
    ((uint64_t)1 << 30) /* of layers that are fitted in one pass over the text                     \
                         */
#define HELD_OUT 8u     /* one chunk of so many is not fitted */

/* Sums of a layer's held-out samples, over all heads: x predicted, y measured, as logarithms. */
typedef struct agreement {
    double n, x, y, xx, yy, xy;
} agreement;

typedef struct fitting {
    const quire_calibrate_retain_args *args;
    quire_opened session; /* its runtime has lanes of `reconstruct` before it */
    int32_t *tokens;
    uint32_t n_ctx;
    uint32_t n_chunks;
    uint32_t n_fitted; /* chunks */
    uint32_t sinks;
    quire_seq_id seq;
    quire_predictor *predictor;
    quire_new_file file;
    quire_fit **fits; /* [n_layer]; NULL outside of the pass */
    uint32_t first;   /* layers of the pass */
    uint32_t n_layers;
    agreement *agreements; /* [n_layer] */
    _Atomic int status;
} fitting;

/* ---- opening ---- */

static int read_tokens(fitting *f, quire_error *err)
{
    const quire_calibrate_retain_args *args = f->args;
    const uint32_t trained = f->session.desc->n_ctx_train;
    const uint32_t wanted =
        args->common->n_ctx != 0 ? (uint32_t)args->common->n_ctx : QUIRE_FIT_CTX_DEFAULT;
    size_t n_tokens = 0;

    /* The repeated part lies behind the chunk, so half of the trained context is for each. */
    f->n_ctx = args->common->n_ctx == 0 && wanted > trained / 2 ? trained / 2 : wanted;
    if (f->n_ctx < QUIRE_FIT_CTX_MIN) {
        return quire_error_set(err, QUIRE_INVAL,
                               "-c %u is too short: fitting needs chunks of at least %u tokens",
                               f->n_ctx, QUIRE_FIT_CTX_MIN);
    }
    QUIRE_TRY(quire_evaluate_text(&f->session, args->file, &f->tokens, &n_tokens, err));
    f->n_chunks = args->n_chunks != 0 ? args->n_chunks : QUIRE_FIT_CHUNKS_DEFAULT;
    if (n_tokens / f->n_ctx < f->n_chunks) {
        f->n_chunks = (uint32_t)(n_tokens / f->n_ctx);
    }
    if (f->n_chunks < 2) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s has %zu tokens: fitting and testing need two chunks of %u: give "
                               "more text or a smaller -c",
                               args->file, n_tokens, f->n_ctx);
    }
    f->n_fitted = f->n_chunks - (f->n_chunks + HELD_OUT - 1) / HELD_OUT;
    return QUIRE_OK;
}

static int open_runtime(fitting *f, quire_error *err)
{
    const quire_opened_want want = { .n_ctx = f->n_ctx };
    const quire_model_desc *desc = f->session.desc;
    quire_runtime_opts opts = quire_opened_runtime_opts(f->args->common, &want);
    quire_retention_opts retention = { .chunk = f->n_ctx,
                                       .keeps_hidden = true,
                                       .parallel = quire_parallel };
    char policy[64];

    /* Parts of half a chunk: the default, where chunks are as long as by default. */
    (void)snprintf(policy, sizeof(policy), "reconstruct:1,repeat=%u",
                   f->n_ctx / 2 < 512 ? f->n_ctx / 2 : 512);
    QUIRE_TRY(quire_retain_parse(policy, &retention.spec, err));
    f->sinks = retention.spec.sinks;
    QUIRE_TRY(quire_retention_plan(desc, &retention, &opts, err));
    QUIRE_TRY(quire_memory_check(desc, &opts, f->session.memory_limit_bytes, NULL, err));
    QUIRE_TRY(quire_runtime_create(&f->session.runtime, f->session.model, &opts, err));
    QUIRE_TRY(
        quire_retention_open(&f->session.retention, f->session.runtime, desc, &retention, err));
    f->session.n_ctx = f->n_ctx;
    f->session.n_batch = quire_runtime_opts_get(f->session.runtime)->n_batch;
    return quire_seq_open(quire_runtime_cache(f->session.runtime), QUIRE_REGION_DYNAMIC, &f->seq);
}

/* ---- samples ---- */

/* Layers with windows keep their windows: no token of theirs gets a score. */
static bool is_fitted(const fitting *f, uint32_t l)
{
    return f->session.desc->window[l] == 0;
}

static uint32_t n_fitted_layers(const fitting *f)
{
    return quire_desc_n_unwindowed(f->session.desc);
}

static void compare(agreement *a, double x, double y)
{
    a->n += 1;
    a->x += x;
    a->y += y;
    a->xx += x * x;
    a->yy += y * y;
    a->xy += x * y;
}

/* Pearson's correlation; 0 where one side never changes. */
static double correlation(const agreement *a)
{
    const double xx = a->xx - a->x * a->x / a->n;
    const double yy = a->yy - a->y * a->y / a->n;

    return a->n > 0 && xx > 0 && yy > 0 ? (a->xy - a->x * a->y / a->n) / sqrt(xx * yy) : 0.0;
}

/* The chunk at hand into a layer's fit; worth: [n_kv_head] scratch. */
static void add_layer(fitting *f, uint32_t l, const float **worth)
{
    const quire_lanes *lanes = quire_retention_lanes(f->session.retention);
    const quire_model_desc *desc = f->session.desc;

    for (uint32_t g = 0; g < desc->n_kv_head; g++) {
        worth[g] = quire_lanes_worth(lanes, l, g) + f->sinks;
    }
    quire_fit_add(f->fits[l], quire_lanes_hidden(lanes, l) + (size_t)f->sinks * desc->n_embd, worth,
                  f->n_ctx - f->sinks);
}

static void test_layer(fitting *f, uint32_t l)
{
    const quire_lanes *lanes = quire_retention_lanes(f->session.retention);
    const quire_model_desc *desc = f->session.desc;
    const float *hidden = quire_lanes_hidden(lanes, l);

    for (uint32_t g = 0; g < desc->n_kv_head; g++) {
        const float *worth = quire_lanes_worth(lanes, l, g);

        for (uint32_t t = f->sinks; t < f->n_ctx; t++) {
            const quire_predictor_rows row = { .hidden = hidden + (size_t)t * desc->n_embd,
                                               .n = 1 };
            float predicted;

            quire_predictor_apply(f->predictor, l, g, &row, &predicted);
            compare(&f->agreements[l], log(fmax((double)predicted, QUIRE_PREDICTOR_LEAST)),
                    log(fmax((double)worth[t], QUIRE_PREDICTOR_LEAST)));
        }
    }
}

static void add_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    fitting *f = ctx;
    const float **worth = calloc(f->session.desc->n_kv_head, sizeof(*worth));

    if (worth == NULL) {
        f->status = QUIRE_NOMEM;
        return;
    }
    for (uint32_t l = f->first + thread; l < f->first + f->n_layers; l += n_threads) {
        if (is_fitted(f, l)) {
            add_layer(f, l, worth);
        }
    }
    free(worth);
}

static void solve_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    fitting *f = ctx;

    for (uint32_t i = thread; i < f->n_layers; i += n_threads) {
        const uint32_t l = f->first + i;
        int rc = is_fitted(f, l)
                     ? quire_fit_solve(f->fits[l], quire_predictor_map(f->predictor, l, 0))
                     : QUIRE_OK;

        if (rc < 0) {
            f->status = rc;
        }
    }
}

static void test_share(void *ctx, uint32_t thread, uint32_t n_threads)
{
    fitting *f = ctx;

    for (uint32_t l = thread; l < f->session.desc->n_layer; l += n_threads) {
        if (is_fitted(f, l)) {
            test_layer(f, l);
        }
    }
}

/* Compute and repeat a chunk. */
static int compute(fitting *f, uint32_t chunk, quire_error *err)
{
    quire_cache *cache = quire_runtime_cache(f->session.runtime);
    const float *logits;
    int rc;

    quire_progress("chunk %u of %u, layers from %u", chunk + 1, f->n_chunks, f->first);
    rc = quire_seq_truncate(cache, f->seq, 0);
    if (rc == QUIRE_OK) {
        rc = quire_opened_prefill(&f->session, f->seq, f->tokens + (size_t)chunk * f->n_ctx,
                                  f->n_ctx, NULL, &logits);
    }
    if (rc == QUIRE_OK) {
        rc = quire_retention_repeat(f->session.retention, f->session.runtime, f->seq);
    }
    return rc < 0 ? quire_opened_step_error(&f->session, rc, err) : QUIRE_OK;
}

/* ---- passes ---- */

static int run_share(fitting *f, quire_parallel_fn *fn, quire_error *err)
{
    quire_parallel(quire_runtime_n_threads(f->session.runtime), fn, f);
    return f->status < 0 ? quire_error_set(err, f->status, "cannot fit the maps: %s",
                                           quire_status_text(f->status))
                         : QUIRE_OK;
}

/* Fit layers [first, first + n_layers). */
static int fit_pass(fitting *f, quire_error *err)
{
    const quire_model_desc *desc = f->session.desc;
    int rc = QUIRE_OK;

    for (uint32_t i = 0; i < f->n_layers && rc == QUIRE_OK; i++) {
        if (!is_fitted(f, f->first + i)) {
            continue;
        }
        rc = quire_fit_create(&f->fits[f->first + i], desc->n_embd, desc->n_kv_head);
        if (rc < 0) {
            quire_error_set(err, rc, "out of memory");
        }
    }
    for (uint32_t chunk = 0; chunk < f->n_fitted && rc == QUIRE_OK; chunk++) {
        rc = compute(f, chunk, err);
        rc = rc == QUIRE_OK ? run_share(f, add_share, err) : rc;
    }
    rc = rc == QUIRE_OK ? run_share(f, solve_share, err) : rc;
    for (uint32_t i = 0; i < f->n_layers; i++) {
        quire_fit_free(f->fits[f->first + i]);
        f->fits[f->first + i] = NULL;
    }
    return rc;
}

static int fit(fitting *f, quire_error *err)
{
    const quire_model_desc *desc = f->session.desc;
    const quire_predictor_shape shape = quire_predictor_shape_of(desc);
    const uint64_t fits = FITS_BYTES_MAX / quire_fit_bytes(desc->n_embd, desc->n_kv_head);
    const uint32_t n_at_once =
        fits < 1 ? 1 : (uint32_t)(fits < desc->n_layer ? fits : desc->n_layer);
    int rc = quire_predictor_create(&f->predictor, &shape);

    f->fits = calloc(desc->n_layer, sizeof(*f->fits));
    f->agreements = calloc(desc->n_layer, sizeof(*f->agreements));
    if (rc < 0 || f->fits == NULL || f->agreements == NULL) {
        return quire_error_set(err, rc < 0 ? rc : QUIRE_NOMEM, "out of memory");
    }
    for (f->first = 0; f->first < desc->n_layer && rc == QUIRE_OK; f->first += n_at_once) {
        f->n_layers = desc->n_layer - f->first < n_at_once ? desc->n_layer - f->first : n_at_once;
        rc = fit_pass(f, err);
    }
    f->first = 0;
    for (uint32_t chunk = f->n_fitted; chunk < f->n_chunks && rc == QUIRE_OK; chunk++) {
        rc = compute(f, chunk, err);
        rc = rc == QUIRE_OK ? run_share(f, test_share, err) : rc;
    }
    quire_progress_end();
    return rc;
}

/* ---- output ---- */

static int print(const fitting *f, double fit_s)
{
    const quire_model_desc *desc = f->session.desc;
    json_t *layers;

    if (!f->args->common->is_json) {
        printf("fitted %u layers to %u chunks of %u tokens in %.0f s; tested on %u chunks\n",
               n_fitted_layers(f), f->n_fitted, f->n_ctx, fit_s, f->n_chunks - f->n_fitted);
        printf("correlation of predicted and measured scores\n");
        for (uint32_t l = 0; l < desc->n_layer; l++) {
            if (is_fitted(f, l)) {
                printf("layer %-7u  %.2f\n", l, correlation(&f->agreements[l]));
            }
        }
        quire_say("written to %s: --retain predict uses it", f->file.path);
        return QUIRE_EXIT_OK;
    }
    layers = json_array();
    for (uint32_t l = 0; layers != NULL && l < desc->n_layer; l++) {
        json_array_append_new(layers, is_fitted(f, l)
                                          ? quire_json_real(correlation(&f->agreements[l]))
                                          : json_null());
    }
    return quire_stdout_json(json_pack("{s:s, s:i, s:i, s:i, s:o, s:o}", "file", f->file.path,
                                       "n_ctx", (int)f->n_ctx, "n_fitted", (int)f->n_fitted,
                                       "n_tested", (int)(f->n_chunks - f->n_fitted), "seconds",
                                       quire_json_real(fit_s), "correlation", layers));
}

/* ---- the command ---- */

static void close_all(fitting *f)
{
    quire_new_file_discard(&f->file);
    quire_predictor_free(f->predictor);
    free(f->agreements);
    free(f->fits);
    free(f->tokens);
    quire_opened_close(&f->session);
}

int quire_calibrate_retain(const quire_calibrate_retain_args *args)
{
    fitting f = { .args = args };
    quire_error err = QUIRE_ERROR_INIT;
    double start_s;
    int exit_status;
    int rc = quire_opened_open_model(&f.session, args->common, &err);

    quire_interrupt_catch();
    rc = rc == QUIRE_OK ? read_tokens(&f, &err) : rc;
    /* Open the result file before spending minutes on fitting. */
    rc = rc == QUIRE_OK ? quire_predictor_begin(&f.file, args->out, f.session.desc, &err) : rc;
    rc = rc == QUIRE_OK ? open_runtime(&f, &err) : rc;
    start_s = quire_now_s();
    rc = rc == QUIRE_OK ? fit(&f, &err) : rc;
    rc = rc == QUIRE_OK ? quire_predictor_save(f.predictor, &f.file, &err) : rc;
    if (rc == QUIRE_CANCELED) {
        quire_say("interrupted; no file is written");
        exit_status = QUIRE_EXIT_FAILED;
    } else if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        exit_status = print(&f, quire_now_s() - start_s);
    }
    close_all(&f);
    return exit_status;
}
