/* runtime.c - creating a runtime: limits, cache, attention workspace, backend, graphs. Steps are in
 * runtime_step.c.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_device.h"
#include "model/runtime_hidden.h"
#include "model/runtime_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "model/backend_device.h"
#include "model/model_internal.h"

#include <stdlib.h>
#include <string.h>

static int model_check(const quire_runtime *rt, quire_error *err)
{
    if (rt->weights == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "the model was opened without its weights");
    }
    return QUIRE_OK;
}

/* A gate of V as attention takes it, [n_kv_head][d_v], from any of a gate's shapes. */
static void gate_expand(const quire_model_desc *desc, const struct ggml_tensor *gate, float *out)
{
    const float *x = gate->data;
    const uint32_t width = (uint32_t)gate->ne[0]; /* d_v, or half of it */

    for (uint32_t g = 0; g < desc->n_kv_head; g++) {
        const float *row = gate->ne[1] > 1 ? x + (size_t)g * width : x;

        for (uint32_t i = 0; i < desc->d_v; i++) {
            out[(size_t)g * desc->d_v + i] = row[i % width];
        }
    }
}

static int v_gates_fill(quire_runtime *rt)
{
    const quire_model_desc *desc = &rt->model->desc;
    const size_t gate_floats = (size_t)desc->n_kv_head * desc->d_v;
    size_t n = 0;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        n += (size_t)__builtin_popcount(desc->kv_map[il].v_gates);
    }
    if (n == 0) {
        return QUIRE_OK;
    }
    rt->v_gates = calloc(n * gate_floats, sizeof *rt->v_gates);
    QUIRE_FAIL_IF(rt->v_gates == NULL, QUIRE_NOMEM);
    n = 0;
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        for (uint32_t i = 0; i < desc->kv_map[il].n_v; i++) {
            const struct ggml_tensor *gate = rt->weights->layers[il].v_gate[i];

            if (gate != NULL) {
                gate_expand(desc, gate, rt->v_gates + n * gate_floats);
                rt->ops[il].layer.v_gate[i] = rt->v_gates + n++ * gate_floats;
            }
        }
    }
    return QUIRE_OK;
}

void quire_runtime_opts_resolve(const quire_model_desc *desc, quire_runtime_opts *opts)
{
    const quire_runtime_opts initial = QUIRE_RUNTIME_OPTS_INIT;

    opts->n_ctx = opts->n_ctx != 0 ? opts->n_ctx : desc->n_ctx_train;
    opts->n_batch = opts->n_batch != 0 ? opts->n_batch : initial.n_batch;
    opts->n_seqs_max = opts->n_seqs_max != 0 ? opts->n_seqs_max : initial.n_seqs_max;
    opts->page_tokens = opts->page_tokens != 0 ? opts->page_tokens : initial.page_tokens;
    opts->n_threads = opts->n_threads != 0 ? opts->n_threads : quire_cpus_usable();
    if (opts->n_seqs_max == 1 && opts->n_batch > opts->n_ctx) {
        opts->n_batch = opts->n_ctx;
    }
}

static int formats_resolve(quire_runtime *rt, quire_error *err)
{
    const quire_model_desc *desc = &rt->model->desc;
    quire_runtime_opts *o = &rt->opts;

    rt->pairs = calloc(desc->n_stored, sizeof *rt->pairs);
    if (rt->pairs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for the runtime");
    }
    if (o->kv_pairs != NULL) {
        memcpy(rt->pairs, o->kv_pairs, desc->n_stored * sizeof *rt->pairs);
    } else {
        quire_kv_uniform(desc, (quire_kv_pair){ o->k_format, o->v_format }, rt->pairs);
    }
    o->kv_pairs = rt->pairs;
    rt->form = quire_kv_form_of(desc, o);
    rt->groups = quire_kv_groups_of(desc, o);
    return QUIRE_OK;
}

/* For the cache's history. */
static uint64_t us_since_created(void *ctx)
{
    const quire_runtime *rt = ctx;

    return (quire_clock_ns() - rt->created_ns) / 1000u;
}

/* Create the cache. This function fills in the options that follow from the layout of pages. */
static int cache_create(quire_runtime *rt, quire_cache_opts *opts)
{
    const uint32_t n_stored = rt->model->desc.n_stored;
    size_t *parts = calloc((size_t)n_stored * rt->groups.n, sizeof(*parts));
    int rc = QUIRE_NOMEM;

    opts->n_groups = rt->groups.n;
    opts->needs_last_tokens[rt->groups.window] = rt->groups.window_tokens;
    for (uint32_t g = 0; parts != NULL && g < opts->n_groups; g++) {
        size_t *part_bytes = parts + (size_t)g * n_stored;

        if (rt->opts.kv_elsewhere_bytes != 0) {
            break; /* pages without payload */
        }
        opts->page_bytes[g] =
            quire_kv_parts(&rt->form, (quire_group_id)g, part_bytes, &opts->n_parts[g]);
        opts->part_bytes[g] = part_bytes;
    }
    if (parts != NULL) {
        rc = quire_cache_create(&rt->cache, opts);
    }
    free(parts);
    return rc;
}

static int cache_open(quire_runtime *rt, quire_error *err)
{
    quire_runtime_opts *o = &rt->opts;
    quire_cache_opts opts = QUIRE_CACHE_OPTS_INIT;
    int rc;

    if (o->kv_budget_bytes == 0) {
        o->kv_budget_bytes = quire_runtime_kv_bytes(&rt->model->desc, o) +
                             QUIRE_CACHED_STATES_DEFAULT * quire_runtime_state_bytes(rt);
    }
    opts.page_tokens = o->page_tokens;
    opts.budget_bytes = o->kv_budget_bytes;
    opts.state_bytes = quire_runtime_state_bytes(rt);
    if (o->state_format != QUIRE_FORMAT_F32) {
        opts.seq_state_bytes = quire_state_page_bytes(&rt->model->desc, QUIRE_FORMAT_F32);
    }
    opts.seqs_max = o->n_seqs_max;
    opts.seq_tokens_max = o->n_ctx;
    opts.lock_memory = o->lock_memory;
    opts.memory = quire_runtime_is_on_device(rt) ? &rt->page_memory : NULL;
    opts.clock_us = us_since_created;
    opts.clock_ctx = rt;
    rt->created_ns = quire_clock_ns();
    rc = cache_create(rt, &opts);
    return rc < 0
               ? quire_error_set(err, rc, "cannot create the KV cache: %s", quire_status_text(rc))
               : QUIRE_OK;
}

/* The tables of all groups have the same positions in the same slots. */
static void attn_groups(const quire_kv_groups *groups, quire_attn_workspace_opts *opts)
{
    opts->n_groups = groups->n;
    if (groups->window != 0) {
        opts->groups[groups->window] =
            (quire_attn_group){ .like = QUIRE_KV_GROUP_MAIN, .window = groups->window_tokens };
    }
    if (groups->hot != 0) {
        opts->groups[groups->hot] =
            (quire_attn_group){ .like = QUIRE_KV_GROUP_MAIN, .is_hot = true };
    }
}

quire_attn_workspace_opts quire_runtime_attn_opts(const quire_model_desc *desc,
                                                  const quire_runtime_opts *o)
{
    const quire_kv_groups groups = quire_kv_groups_of(desc, o);
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    if (o->elsewhere_limits.struct_bytes != 0) {
        return o->elsewhere_limits;
    }
    attn_groups(&groups, &opts);
    opts.n_threads_max = o->n_threads;
    opts.n_seqs_max = o->n_seqs_max;
    opts.n_rows_max = o->n_batch;
    opts.n_head_max = desc->n_head;
    opts.head_dim_max = desc->d_k > desc->d_v ? desc->d_k : desc->d_v;
    opts.n_entries_max = (o->n_ctx + o->page_tokens - 1) / o->page_tokens;
    opts.page_tokens = o->page_tokens;
    opts.n_layers_max = desc->n_layer;
    opts.no_cascade = o->no_cascade;
    return opts;
}

/* The device's kernels, those of both, or the CPU's. */
static int kernels_open(quire_runtime *rt, quire_error *err)
{
    quire_attn_workspace_opts opts = quire_runtime_attn_opts(&rt->model->desc, &rt->opts);
    int rc;

    if (rt->memory_device != NULL && rt->opts.attends_host) {
        QUIRE_TRY(quire_device_joint_open(&rt->joint, rt->memory_device, &opts, err));
        rt->device = quire_device_joint_attention(rt->joint);
        return QUIRE_OK;
    }
    if (quire_runtime_is_on_device(rt)) {
        rt->device = rt->split != NULL ? quire_device_split_attention(rt->split)
                                       : quire_device_attention(rt->memory_device);
        /* Rows are computed there, if the weights are on the device of this queue's owner. */
        if (rt->device.queue != NULL &&
            quire_device_queue_owner(rt->memory_device) != rt->weights->devices[0]) {
            rt->device.queue = NULL;
            rt->device.queues = NULL;
        }
        rt->queues = rt->device.queue != NULL;
        return QUIRE_OK;
    }
    rc = quire_attn_workspace_create(&rt->workspace, &opts);
    if (rc < 0) {
        return quire_error_set(err, rc, "cannot set up attention: %s", quire_status_text(rc));
    }
    rt->device = quire_attn_device_cpu(rt->workspace);
    return QUIRE_OK;
}

static int attention_open(quire_runtime *rt, quire_error *err)
{
    const quire_model_desc *desc = &rt->model->desc;
    const quire_runtime_opts *o = &rt->opts;
    int rc;

    QUIRE_TRY(kernels_open(rt, err));
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_graph_op *op = &rt->ops[il];
        const struct ggml_tensor *sinks = rt->weights->layers[il].sinks;

        if (!quire_mixer_attends(desc->mixer[il])) {
            continue;
        }
        (void)quire_kv_layout(&rt->form, il, &op->layer);
        op->layer.sinks = sinks != NULL ? sinks->data : NULL;
        op->layer.recent_tiles = o->kv_recent / QUIRE_TILE_TOKENS;
        op->layer.sink_tiles = o->kv_sinks / QUIRE_TILE_TOKENS;
        op->device = &rt->device;
        op->call = il;
        op->has_append = desc->kv_map[il].stored >= 0;
        op->layer_index = il;
        /* Else the device before it checks its own layers. */
        rc = o->elsewhere_limits.struct_bytes == 0 ? rt->device.check(rt->device.ctx, &op->layer)
                                                   : QUIRE_OK;
        if (rc < 0) {
            return quire_error_set(err, rc, "layer %u: attention on %s cannot run it: %s", il,
                                   rt->device.name, quire_status_text(rc));
        }
    }
    rt->exit.device = &rt->device;
    rc = v_gates_fill(rt);
    return rc < 0 ? quire_error_set(err, rc, "no memory for the runtime") : QUIRE_OK;
}

/* The frequency factors: llama3's, or those for contexts of the runtime's length. libllama's choice
 * is by the length of the context, too, not by that of a text. */
static struct ggml_tensor *rope_factors(const quire_runtime *rt)
{
    const quire_weights *w = rt->weights;

    if (w->rope_freqs != NULL) {
        return w->rope_freqs;
    }
    return quire_runtime_is_long(rt) ? w->rope_long : w->rope_short;
}

/* Layers of ggml's backend and of Quire's device are in two queues of one card, ordered by events.
 * Without these events rows pass the host's memory. */
static void queues_share(quire_runtime *rt)
{
    quire_backend_device *backend = &rt->layers_backends[0];
    const ggml_backend_dev_t device = rt->weights->devices[0];
    quire_device_info info;
    void *before, *behind;

    if (rt->weights->n_devices != 1 || rt->memory_device == NULL) {
        return;
    }
    quire_device_info_get(rt->memory_device, &info);
    if (quire_backend_device_is_beside(device, &info) &&
        quire_backend_device_share(backend, &before, &behind)) {
        (void)quire_device_queue_share(rt->memory_device, device, before, behind);
    }
}

/* The backend of layers on a device. One that computes by threads has one: ggml's own are lent to
 * the host's backend. */
static int layers_open(quire_runtime *rt, quire_error *err)
{
    for (uint32_t i = 0; i < rt->weights->n_devices; i++) {
        char why[QUIRE_BACKEND_WHY_BYTES];
        int rc;

        quire_backend_log_clear();
        rc = quire_backend_device_open(&rt->layers_backends[i], rt->weights->devices[i]);
        if (rc < 0) {
            quire_backend_log_first(why, sizeof why);
            return quire_error_set(
                err, rc, "ggml's device %s cannot be opened (%s): leave out -ngl",
                ggml_backend_dev_name(rt->weights->devices[i]), why[0] != '\0' ? why : "no memory");
        }
    }
    return QUIRE_OK;
}

/* why: ggml's reason, or "". */
static int no_room(const quire_runtime *rt, int rc, const char *why, quire_error *err)
{
    return quire_error_set(err, rc,
                           "out of memory for steps of %u tokens%s%s%s: choose a smaller batch "
                           "(-b)",
                           rt->opts.n_batch, why[0] != '\0' ? " (" : "", why,
                           why[0] != '\0' ? ")" : "");
}

/* The host's, and those of devices. */
static int backends_open(quire_runtime *rt, quire_error *err)
{
    const int rc = quire_backend_open(&rt->backend, rt->opts.n_threads);

    if (rc < 0) {
        return no_room(rt, rc, "", err);
    }
    QUIRE_TRY(layers_open(rt, err));
    queues_share(rt);
    return QUIRE_OK;
}

static int graphs_open(quire_runtime *rt, const quire_graphs_opts *graphs, quire_error *err)
{
    char why[QUIRE_BACKEND_WHY_BYTES];
    int rc;

    quire_backend_log_clear();
    rc = quire_graphs_init(&rt->graphs, graphs);
    quire_backend_log_first(why, sizeof why); /* the buffer, and its size */
    return rc < 0 ? no_room(rt, rc, why, err) : rc;
}

int quire_runtime_create(quire_runtime **out, const quire_model *model,
                         const quire_runtime_opts *opts, quire_error *err)
{
    const quire_model_desc *desc = &model->desc;
    quire_runtime *rt = calloc(1, sizeof *rt);
    quire_graphs_opts graphs;
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (rt == NULL) {
        return quire_error_set(err, rc, "no memory for the runtime");
    }
    rt->model = model;
    rt->weights = opts->weights_set < model->n_sets ? model->sets[opts->weights_set] : NULL;
    rt->opts = *opts;
    quire_runtime_opts_resolve(desc, &rt->opts);
    if ((rc = model_check(rt, err)) < 0 || (rc = formats_resolve(rt, err)) < 0 ||
        (rc = quire_runtime_opts_check(desc, &rt->opts, err)) < 0 ||
        (rc = quire_runtime_device_open(rt, err)) < 0 || (rc = cache_open(rt, err)) < 0) {
        goto out;
    }
    rt->ops = calloc(desc->n_layer, sizeof *rt->ops);
    rt->attn_seqs = calloc(rt->opts.n_seqs_max, sizeof *rt->attn_seqs);
    rt->exit_seqs = calloc(rt->opts.n_seqs_max, sizeof *rt->exit_seqs);
    rt->before_tokens = calloc(rt->opts.n_seqs_max, sizeof *rt->before_tokens);
    if (rt->ops == NULL || rt->attn_seqs == NULL || rt->exit_seqs == NULL ||
        rt->before_tokens == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "no memory for the runtime");
        goto out;
    }
    if ((rc = backends_open(rt, err)) < 0 || (rc = attention_open(rt, err)) < 0 ||
        (rc = quire_runtime_recurrent_open(rt, err)) < 0) {
        goto out;
    }
    graphs = (quire_graphs_opts){ .desc = desc,
                                  .weights = rt->weights,
                                  .ops = rt->ops,
                                  .recurrent = rt->recurrent,
                                  .exit = &rt->exit,
                                  .rope_factors = rope_factors(rt),
                                  .layers = rt->layers_backends,
                                  .n_rows_max = rt->opts.n_batch,
                                  .n_threads = rt->opts.n_threads };
    rc = graphs_open(rt, &graphs, err);
    if (rc == QUIRE_OK) {
        *out = rt;
        rt = NULL;
    }
out:
    quire_runtime_destroy(rt);
    return rc;
}

void quire_runtime_destroy(quire_runtime *rt)
{
    if (rt == NULL) {
        return;
    }
    for (uint32_t i = 0; i < QUIRE_MODEL_DEVICES_MAX; i++) { /* their last copies are done */
        quire_backend_device_close(&rt->layers_backends[i]);
    }
    quire_graphs_fini(&rt->graphs);
    quire_backend_close(&rt->backend);
    quire_attn_workspace_destroy(rt->workspace);
    quire_cache_destroy(rt->cache);
    quire_device_joint_close(rt->joint);
    quire_device_close(rt->memory_device); /* whose memory the cache's pages were */
    quire_device_split_close(rt->split);
    quire_runtime_recurrent_close(rt);
    free(rt->before_tokens);
    free(rt->exit_seqs);
    free(rt->attn_seqs);
    free(rt->v_gates);
    free(rt->ops);
    free(rt->pairs);
    free(rt->rounding);
    free(rt);
}

void quire_runtime_cache_end(quire_runtime *rt)
{
    quire_cache_destroy(rt->cache);
    rt->cache = NULL;
}

quire_cache *quire_runtime_cache(quire_runtime *rt)
{
    return rt->cache;
}

const quire_runtime_opts *quire_runtime_opts_get(const quire_runtime *rt)
{
    return &rt->opts;
}

quire_attn_device *quire_runtime_device(quire_runtime *rt)
{
    return &rt->device;
}

const char *quire_runtime_isa(const quire_runtime *rt)
{
    return quire_runtime_is_on_device(rt) ? rt->device.name
                                          : quire_attn_workspace_isa(rt->workspace);
}

uint32_t quire_runtime_n_device_layers(const quire_runtime *rt)
{
    return rt->weights->n_layer + 1 - rt->weights->device_from;
}

const quire_page_memory *quire_runtime_page_memory(const quire_runtime *rt)
{
    return quire_runtime_is_on_device(rt) ? &rt->page_memory : NULL;
}

const quire_device *quire_runtime_memory_device(const quire_runtime *rt)
{
    return rt->memory_device;
}

const quire_device_split *quire_runtime_split_devices(const quire_runtime *rt)
{
    return rt->split;
}

void quire_runtime_hidden_set(quire_runtime *rt, quire_hidden_fn *fn, void *ctx)
{
    for (uint32_t il = 0; il < rt->model->desc.n_layer; il++) {
        rt->ops[il].hidden = fn;
        rt->ops[il].hidden_ctx = ctx;
    }
}

const quire_model *quire_runtime_model(const quire_runtime *rt)
{
    return rt->model;
}

uint32_t quire_runtime_n_threads(const quire_runtime *rt)
{
    return rt->opts.n_threads;
}

void quire_runtime_stats_get(const quire_runtime *rt, quire_runtime_stats *out)
{
    uint64_t attn_ns = 0, append_ns = 0, rows = 0;

    for (uint32_t il = 0; il < rt->model->desc.n_layer; il++) {
        attn_ns += rt->ops[il].attn_ns;
        append_ns += rt->ops[il].append_ns;
        rows += rt->ops[il].rows_total;
    }
    *out = (quire_runtime_stats){
        .steps_total = rt->steps_total,
        .graphs_built_total = rt->graphs.built_total,
        .graph_reuses_total = rt->graphs.reused_total,
        .compute_buffer_bytes = quire_graphs_buffer_bytes(&rt->graphs),
        .attn_rows_total = rows,
        .attn_us_total = attn_ns / 1000,
        .append_us_total = append_ns / 1000,
        .step_us_total = rt->step_ns / 1000,
    };
    for (uint32_t i = 0; i < rt->weights->n_devices; i++) {
        out->layers_waits_total += rt->layers_backends[i].waits_total;
    }
}
