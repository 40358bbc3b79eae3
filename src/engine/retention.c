/* retention.c - see retention.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/retention.h"

#include "base/check.h"

#include <stdlib.h>

struct quire_retention {
    quire_retention_opts opts;
    quire_lanes *lanes;
};

/* The lanes that a runtime's options ask for. Memory: free(*layers), when out was used. */
static int lanes_opts(const quire_model_desc *desc, const quire_retention_opts *opts,
                      const quire_runtime_opts *runtime, quire_attn_layer **layers,
                      quire_lanes_opts *out)
{
    quire_kv_pair *pairs = calloc(desc->n_stored, sizeof *pairs);
    quire_kv_form form;

    *layers = calloc(desc->n_layer, sizeof **layers);
    if (pairs == NULL || *layers == NULL) {
        free(pairs);
        return QUIRE_NOMEM;
    }
    quire_kv_uniform(desc, (quire_kv_pair){ runtime->k_format, runtime->v_format }, pairs);
    form = (quire_kv_form){ .desc = desc,
                            .pairs = runtime->kv_pairs != NULL ? runtime->kv_pairs : pairs,
                            .page_tokens = runtime->page_tokens,
                            .is_whole = true };
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        (void)quire_kv_layout(&form, il, &(*layers)[il]);
    }
    free(pairs);
    *out = (quire_lanes_opts){ .spec = &opts->spec,
                               .layers = *layers,
                               .n_layers = desc->n_layer,
                               .n_text_max = runtime->n_ctx,
                               .n_full_max = opts->chunk,
                               .n_rows_max = runtime->n_batch,
                               .n_threads = runtime->n_threads,
                               .lock_memory = runtime->lock_memory,
                               .parallel = opts->parallel };
    return QUIRE_OK;
}

int quire_retention_plan(const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_runtime_opts *runtime, quire_error *err)
{
    quire_runtime_opts resolved;
    quire_attn_layer *layers;
    quire_lanes_opts lanes;
    int rc;

    runtime->n_batch = runtime->n_batch > opts->chunk ? opts->chunk : runtime->n_batch;
    resolved = *runtime;
    quire_runtime_opts_resolve(desc, &resolved);
    if (lanes_opts(desc, opts, &resolved, &layers, &lanes) < 0) {
        free(layers);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = quire_lanes_check(&lanes, err);
    if (rc == QUIRE_OK) {
        runtime->kv_elsewhere_bytes =
            quire_lanes_bytes_max(&lanes) + quire_lanes_buffer_bytes(&lanes);
    }
    free(layers);
    return rc;
}

int quire_retention_open(quire_retention **out, quire_runtime *runtime,
                         const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_error *err)
{
    quire_retention *retention = calloc(1, sizeof *retention);
    quire_attn_layer *layers = NULL;
    quire_lanes_opts lanes;
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (retention != NULL) {
        rc = lanes_opts(desc, opts, quire_runtime_opts_get(runtime), &layers, &lanes);
    }
    if (rc == QUIRE_OK) {
        retention->opts = *opts;
        rc = quire_lanes_create(&retention->lanes, &lanes, err);
    } else {
        quire_error_set(err, rc, "out of memory");
    }
    free(layers);
    if (rc < 0) {
        free(retention);
        return rc;
    }
    *quire_runtime_device(runtime) = quire_lanes_device(retention->lanes);
    *out = retention;
    return QUIRE_OK;
}

void quire_retention_close(quire_retention *retention)
{
    if (retention != NULL) {
        quire_lanes_destroy(retention->lanes);
        free(retention);
    }
}

int quire_retention_step(quire_retention *retention, quire_runtime *runtime,
                         const quire_slice *slices, uint32_t n_slices, const float **logits)
{
    const uint32_t n_full = quire_lanes_n_full(retention->lanes);
    quire_slice slice = slices[0];
    quire_lanes_stats stats;

    QUIRE_FAIL_IF(n_slices != 1, QUIRE_INVAL);
    QUIRE_FAIL_IF(slice.n_tokens > retention->opts.chunk, QUIRE_LIMIT);
    quire_lanes_stats_get(retention->lanes, &stats);
    if (n_full + slice.n_tokens > retention->opts.chunk &&
        quire_seq_tokens(quire_runtime_cache(runtime), slice.seq) == stats.n_text) {
        QUIRE_TRY(quire_lanes_condense(retention->lanes));
    }
    /* Without logits the last layer would compute no attention, and have no queries to score by. */
    slice.logits = slice.logits == QUIRE_LOGITS_NONE ? QUIRE_LOGITS_LAST : slice.logits;
    return quire_runtime_step(runtime, &slice, 1, logits);
}

const quire_retain_spec *quire_retention_spec(const quire_retention *retention)
{
    return &retention->opts.spec;
}

quire_lanes *quire_retention_lanes(const quire_retention *retention)
{
    return retention->lanes;
}
