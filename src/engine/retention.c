/* retention.c - see retention.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/retention.h"

#include "base/check.h"
#include "base/hash128.h"
#include "base/num.h"
#include "engine/repeating.h"
#include "model/kv_identity.h"
#include "model/rope_frequencies.h"
#include "model/runtime_hidden.h"
#include "model/runtime_rows.h"

#include <stdlib.h>
#include <string.h>

struct quire_retention {
    quire_retention_opts opts;
    quire_lanes *lanes;
    int32_t *text; /* [n_text_max] tokens; NULL: none is repeated */
    int32_t *rows; /* [room] request, lead and part */
    quire_repeating repeating;
    quire_retention_rows n_rows;
};

static bool is_repeated(const quire_retain_spec *spec)
{
    return spec->policy->worth == QUIRE_RETAIN_WORTH_REPEATED;
}

uint32_t quire_retention_room(const quire_retain_spec *spec)
{
    return quire_repeating_room(spec);
}

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
        (*layers)[il].recent_tiles = runtime->kv_recent / QUIRE_TILE_TOKENS;
        (*layers)[il].sink_tiles = runtime->kv_sinks / QUIRE_TILE_TOKENS;
    }
    free(pairs);
    *out = (quire_lanes_opts){ .spec = &opts->spec,
                               .layers = *layers,
                               .n_layers = desc->n_layer,
                               .n_text_max = runtime->n_ctx - quire_retention_room(&opts->spec),
                               .n_repeat_max = quire_retention_room(&opts->spec),
                               .predictor = opts->predictor,
                               .attend_share = opts->attend_share,
                               .n_hidden = opts->keeps_hidden ? desc->n_embd : 0,
                               .keeps_all = opts->keeps_all,
                               .n_full_max = opts->chunk,
                               .n_rows_max = runtime->n_batch,
                               .n_threads = runtime->n_threads,
                               .lock_memory = runtime->lock_memory,
                               .parallel = opts->parallel,
                               .is_on_device = quire_runtime_has_device(runtime) };
    return QUIRE_OK;
}

/* On a device the heads of a layer are sequences of one batch (retain/kept_lanes.h). */
static int check_device(const quire_model_desc *desc, const quire_runtime_opts *runtime,
                        quire_error *err)
{
    if (quire_runtime_has_device(runtime) && runtime->split.n > 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--retain and --split-mode layer: the lanes of all layers are on "
                               "one device");
    }
    if (quire_runtime_has_device(runtime) && quire_desc_has_own(desc)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--retain on device %s works with models without learned sinks and "
                               "gates of V: not with this %s model",
                               runtime->device, desc->arch_name);
    }
    return QUIRE_OK;
}

int quire_retention_plan(const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_runtime_opts *runtime, quire_error *err)
{
    quire_runtime_opts resolved;
    quire_attn_layer *layers;
    quire_lanes_opts lanes;
    int rc;

    QUIRE_TRY(check_device(desc, runtime, err));
    if (desc->latent.is_there) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--retain works with models that store K and V; in models of the "
                               "architecture %s V is a part of K",
                               desc->arch_name);
    }
    if (desc->has_layer_sizes) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--retain works with models whose layers have K and V of one size; "
                               "those of this %s model differ",
                               desc->arch_name);
    }
    runtime->n_batch = runtime->n_batch > opts->chunk ? opts->chunk : runtime->n_batch;
    runtime->n_ctx += quire_retention_room(&opts->spec);
    resolved = *runtime;
    quire_runtime_opts_resolve(desc, &resolved);
    if (lanes_opts(desc, opts, &resolved, &layers, &lanes) < 0) {
        free(layers);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = quire_lanes_check(&lanes, err);
    if (rc == QUIRE_OK && lanes.is_on_device) {
        runtime->kv_elsewhere_bytes = quire_lanes_bytes_max(&lanes);
        runtime->beside_bytes += quire_lanes_buffer_bytes(&lanes);
        runtime->elsewhere_limits = quire_lanes_device_limits(&lanes);
    } else if (rc == QUIRE_OK) {
        runtime->kv_elsewhere_bytes =
            quire_lanes_bytes_max(&lanes) + quire_lanes_buffer_bytes(&lanes);
    }
    free(layers);
    return rc;
}

/* The buffers and the request of a text that is repeated. */
static int repeating_open(quire_retention *retention, const quire_runtime *runtime,
                          uint32_t n_text_max)
{
    if (!is_repeated(&retention->opts.spec)) {
        return QUIRE_OK;
    }
    retention->text = calloc(n_text_max, sizeof *retention->text);
    retention->rows = calloc(quire_retention_room(&retention->opts.spec), sizeof *retention->rows);
    QUIRE_FAIL_IF(retention->text == NULL || retention->rows == NULL, QUIRE_NOMEM);
    return quire_repeating_init(&retention->repeating, quire_runtime_model(runtime));
}

static int open_parts(quire_retention *retention, quire_runtime *runtime,
                      const quire_model_desc *desc, quire_error *err)
{
    float frequencies[QUIRE_HEAD_DIM_MAX / 2] = { 0 };
    const quire_rotation rotation = quire_model_rotation(desc, frequencies);
    quire_attn_layer *layers = NULL;
    quire_lanes_opts lanes;
    int rc = lanes_opts(desc, &retention->opts, quire_runtime_opts_get(runtime), &layers, &lanes);

    if (rc == QUIRE_OK) {
        rc = repeating_open(retention, runtime, lanes.n_text_max);
    }
    if (rc < 0) {
        free(layers);
        return quire_error_set(err, rc, "out of memory");
    }
    quire_model_rope_frequencies(quire_runtime_model(runtime), frequencies);
    lanes.rotation = &rotation;
    lanes.memory = quire_runtime_page_memory(runtime);
    lanes.base = quire_runtime_device(runtime);
    rc = quire_lanes_create(&retention->lanes, &lanes, err);
    free(layers);
    return rc;
}

int quire_retention_open(quire_retention **out, quire_runtime *runtime,
                         const quire_model_desc *desc, const quire_retention_opts *opts,
                         quire_error *err)
{
    quire_retention *retention = calloc(1, sizeof *retention);
    int rc;

    *out = NULL;
    if (retention == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (opts->spec.policy->expects_queries && !quire_model_rope_is_plain(desc)) {
        free(retention);
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--retain %s works with models whose layers all turn K alike; %s "
                               "is not one of them",
                               opts->spec.policy->name, desc->arch_name);
    }
    retention->opts = *opts;
    rc = open_parts(retention, runtime, desc, err);
    if (rc < 0) {
        quire_retention_close(retention);
        return rc;
    }
    *quire_runtime_device(runtime) = quire_lanes_device(retention->lanes);
    if (opts->keeps_hidden || opts->spec.policy->worth == QUIRE_RETAIN_WORTH_PREDICTED) {
        quire_runtime_hidden_set(runtime, quire_lanes_hidden_put, retention->lanes);
    }
    *out = retention;
    return QUIRE_OK;
}

void quire_retention_close(quire_retention *retention)
{
    if (retention != NULL) {
        quire_lanes_destroy(retention->lanes);
        free(retention->rows);
        free(retention->text);
        free(retention);
    }
}

/* ---- repeating ---- */

/* Compute rows behind the text. */
static int compute_rows(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq,
                        uint32_t n_rows)
{
    const uint32_t n_batch = quire_runtime_opts_get(runtime)->n_batch;
    const float *logits;

    for (uint32_t first = 0; first < n_rows; first += n_batch) {
        const quire_slice slice = { .seq = seq,
                                    .tokens = retention->rows + first,
                                    .n_tokens = quire_min_u32(n_batch, n_rows - first),
                                    .logits = QUIRE_LOGITS_LAST };

        QUIRE_TRY(quire_runtime_step(runtime, &slice, 1, &logits));
        retention->n_rows.repeated += slice.n_tokens;
    }
    return QUIRE_OK;
}

static int repeat_part(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq,
                       uint32_t begin, uint32_t end)
{
    const uint32_t n_text = quire_seq_tokens(quire_runtime_cache(runtime), seq);
    const uint32_t n_rows =
        quire_repeating_rows(&retention->repeating, retention->text, begin, end, retention->rows);
    int rc, cut;

    quire_lanes_repeat_begin(retention->lanes, begin, end);
    rc = compute_rows(retention, runtime, seq, n_rows);
    quire_lanes_repeat_end(retention->lanes, rc == QUIRE_OK);
    /* Nothing of the sequence is shared, and its pages have no payload. */
    cut = quire_seq_truncate(quire_runtime_cache(runtime), seq, n_text);
    return rc < 0 ? rc : cut;
}

int quire_retention_repeat(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq)
{
    const uint32_t n_text = quire_seq_tokens(quire_runtime_cache(runtime), seq);
    const uint32_t n_part = retention->opts.spec.repeat;

    while (quire_lanes_n_repeated(retention->lanes) < n_text) {
        const uint32_t begin = quire_lanes_n_repeated(retention->lanes);

        QUIRE_TRY(
            repeat_part(retention, runtime, seq, begin, quire_min_u32(begin + n_part, n_text)));
    }
    return QUIRE_OK;
}

/* ---- steps ---- */

/* Tokens are repeated when they are condensed: in sealed formats the recent ones may be a chunk and
 * more. */
static int condense(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq)
{
    if (!quire_lanes_condenses(retention->lanes)) {
        return QUIRE_OK;
    }
    if (is_repeated(&retention->opts.spec)) {
        QUIRE_TRY(quire_retention_repeat(retention, runtime, seq));
    }
    return quire_lanes_condense(retention->lanes);
}

/* Whether the policy reads queries of the text itself. Without logits the last layer of a step
 * computes none: it stores K and V, and no attention follows. */
static bool reads_queries(const quire_retain_spec *spec)
{
    return spec->policy->needs_attention || spec->policy->expects_queries || spec->merges ||
           spec->policy->worth == QUIRE_RETAIN_WORTH_SUM;
}

int quire_retention_step(quire_retention *retention, quire_runtime *runtime,
                         const quire_slice *slices, uint32_t n_slices, const float **logits)
{
    const uint32_t n_full = quire_lanes_n_full(retention->lanes);
    quire_slice slice = slices[0];
    quire_lanes_stats stats;
    uint32_t begin;

    QUIRE_FAIL_IF(n_slices != 1, QUIRE_INVAL);
    QUIRE_FAIL_IF(slice.n_tokens > retention->opts.chunk, QUIRE_LIMIT);
    begin = quire_seq_tokens(quire_runtime_cache(runtime), slice.seq);
    QUIRE_FAIL_IF(slice.n_tokens > quire_runtime_opts_get(runtime)->n_ctx -
                                       quire_retention_room(&retention->opts.spec) - begin,
                  QUIRE_LIMIT);
    quire_lanes_stats_get(retention->lanes, &stats);
    if (n_full + slice.n_tokens > retention->opts.chunk && begin == stats.n_text) {
        QUIRE_TRY(condense(retention, runtime, slice.seq));
    }
    if (retention->text != NULL) {
        memcpy(retention->text + begin, slice.tokens, slice.n_tokens * sizeof *slice.tokens);
    }
    if (slice.logits == QUIRE_LOGITS_NONE && reads_queries(&retention->opts.spec)) {
        slice.logits = QUIRE_LOGITS_LAST;
    }
    QUIRE_TRY(quire_runtime_step(runtime, &slice, 1, logits));
    retention->n_rows.of_text += slice.n_tokens;
    return QUIRE_OK;
}

quire_retention_rows quire_retention_rows_get(const quire_retention *retention)
{
    return retention->n_rows;
}

int quire_retention_truncate(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq,
                             uint32_t n_tokens, uint32_t *n_left)
{
    *n_left =
        quire_lanes_keepable(retention->lanes, quire_runtime_keepable(runtime, seq, n_tokens));
    QUIRE_TRY(quire_seq_truncate(quire_runtime_cache(runtime), seq, *n_left));
    quire_lanes_truncate(retention->lanes, *n_left);
    return QUIRE_OK;
}

void quire_retention_attend_from(quire_retention *retention, uint32_t position)
{
    quire_lanes_attend_from(retention->lanes, position);
}

/* ---- states ---- */

/* Of the maps that the policy reads. */
static void maps_get(const quire_retention *retention, uint64_t maps[2])
{
    unsigned char hash[QUIRE_HASH128_BYTES] = { 0 };

    if (retention->opts.spec.policy->worth == QUIRE_RETAIN_WORTH_PREDICTED) {
        quire_predictor_hash(retention->opts.predictor, hash);
    }
    maps[0] = quire_le_get(hash, 8);
    maps[1] = quire_le_get(hash + 8, 8);
}

int quire_retention_save(const quire_retention *retention, const quire_runtime *runtime,
                         const int32_t *tokens, quire_block_state *out)
{
    *out = (quire_block_state){ .chunk = retention->opts.chunk };
    quire_kv_identity_get(runtime, out->identity);
    maps_get(retention, out->maps);
    (void)quire_retain_text(&retention->opts.spec, out->policy, sizeof out->policy);
    QUIRE_TRY(quire_lanes_save(retention->lanes, tokens, out));
    quire_block_state_seal(out);
    return QUIRE_OK;
}

int quire_retention_state_check(const quire_retention *retention, const quire_runtime *runtime,
                                const quire_block_state *state, quire_error *err)
{
    char policy[QUIRE_RETAIN_TEXT_MAX];
    uint64_t identity[2], maps[2];

    quire_kv_identity_get(runtime, identity);
    maps_get(retention, maps);
    (void)quire_retain_text(&retention->opts.spec, policy, sizeof policy);
    if (identity[0] != state->identity[0] || identity[1] != state->identity[1]) {
        return quire_error_set(err, QUIRE_INVAL,
                               "it is of another model, other KV formats or another kind of CPU");
    }
    if (strcmp(policy, state->policy) != 0) {
        return quire_error_set(err, QUIRE_INVAL, "its text was condensed by %s", state->policy);
    }
    if (maps[0] != state->maps[0] || maps[1] != state->maps[1]) {
        return quire_error_set(err, QUIRE_INVAL,
                               "its text was condensed by %s with other maps than those of quire "
                               "calibrate --retain that are here now",
                               retention->opts.spec.policy->name);
    }
    if (retention->opts.chunk != state->chunk) {
        return quire_error_set(err, QUIRE_INVAL, "its text was condensed every %u tokens",
                               state->chunk);
    }
    return QUIRE_OK;
}

int quire_retention_load(quire_retention *retention, quire_runtime *runtime, quire_seq_id seq,
                         const quire_block_state *state, quire_error *err)
{
    quire_cache *cache = quire_runtime_cache(runtime);
    int rc;

    QUIRE_TRY(quire_retention_state_check(retention, runtime, state, err));
    rc = quire_seq_reserve(cache, seq, state->n_text);
    rc = rc == QUIRE_OK ? quire_seq_append(cache, seq, state->n_text) : rc;
    rc = rc == QUIRE_OK ? quire_lanes_load(retention->lanes, state) : rc;
    if (rc < 0) {
        (void)quire_seq_truncate(cache, seq, 0);
        return quire_error_set(err, rc, "%s",
                               rc == QUIRE_LIMIT ? "its text is longer than the context"
                                                 : quire_status_text(rc));
    }
    if (retention->text != NULL) {
        memcpy(retention->text, state->tokens, state->n_text * sizeof *state->tokens);
    }
    return QUIRE_OK;
}

bool quire_retention_drops(const quire_retention *retention)
{
    return retention->opts.spec.share < 1 || retention->opts.spec.threshold > 0;
}

const quire_retain_spec *quire_retention_spec(const quire_retention *retention)
{
    return &retention->opts.spec;
}

quire_lanes *quire_retention_lanes(const quire_retention *retention)
{
    return retention->lanes;
}
