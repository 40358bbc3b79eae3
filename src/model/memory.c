/* memory.c - the arithmetic of memory.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/memory.h"

#include "base/parse.h"
#include "model/runtime_device.h"
#include "model/runtime_internal.h"
#include "model/runtime_split.h"
#include "model/step_sizes.h"

#include <stdio.h>
#include <string.h>

/* Allowance for code and libraries, thread stacks and memory that malloc keeps: 11 MB were measured
 * with a model of 1 MB. */
#define PROGRAM_BYTES ((uint64_t)24 << 20)
/* A token's text, score, type and its places in libllama's tables: about 220 bytes with a
 * vocabulary of 49,152; texts can be longer. */
#define VOCAB_TOKEN_BYTES ((uint64_t)512)

#define DEVICE_PARTIALS    ((uint64_t)16 << 20) /* floats of partial results, about */
#define DEVICE_ENTRY_BYTES ((uint64_t)32)       /* of a table, on a device */
/* Pinned memory that copies of a device's pages pass, 2 MiB of them to the host: device_ahead.h and
 * device_pages.c of src/device. */
#define DEVICE_COPIES_BYTES ((uint64_t)10 << 20)

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Without a budget the need is that of one sequence: the states that the cache has room for beside
 * it (QUIRE_CACHED_STATES_DEFAULT) take memory only when they are cached. Within a budget every
 * sequence may grow up to the context. */
static uint64_t kv_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const uint64_t n_seqs = o->kv_budget_bytes != 0 ? o->n_seqs_max : 1;
    const uint64_t seq_bytes = quire_runtime_kv_bytes(desc, o);
    const uint64_t all_bytes = seq_bytes <= UINT64_MAX / n_seqs ? n_seqs * seq_bytes : UINT64_MAX;

    return o->kv_budget_bytes != 0 && o->kv_budget_bytes < all_bytes ? o->kv_budget_bytes
                                                                     : all_bytes;
}

/* K and V of a row, in the layer where they are largest. */
static uint64_t kv_row(const quire_model_desc *desc)
{
    uint64_t most = 0;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        const quire_layer_sizes sizes = quire_layer_sizes_of(desc, il);

        most = larger(most, (uint64_t)sizes.n_kv_head * (sizes.d_k + sizes.d_v));
    }
    return most;
}

/* The factors of all convolutions, by tap. */
static uint64_t kernels_bytes(const quire_recurrent_desc *r)
{
    return sizeof(float) * (uint64_t)r->n_layers * r->conv_taps * r->conv_width;
}

/* The graphs of steps, and all that they compute in. */
static uint64_t graphs_bytes(const quire_model_desc *desc, const quire_graphs_size *graphs)
{
    return graphs->buffer_bytes + graphs->work_bytes + graphs->kept_bytes +
           kernels_bytes(&desc->recurrent);
}

/* Memory of src/device/device_joint.c beside the workspace: the host's part of a batch of rows, the
 * sums of both parts, and divided tables. Each allocation is 1.5 times its need. */
static uint64_t joint_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const uint64_t row = (uint64_t)desc->n_head * (larger(desc->d_k, desc->d_v) + 4);
    const uint64_t n_entries = (uint64_t)o->n_seqs_max * quire_kv_groups_of(desc, o).n *
                               (o->n_ctx / o->page_tokens + 2 * QUIRE_LEAF_ENTRIES);

    return (sizeof(float) * o->n_batch * row + sizeof(quire_page_entry) * n_entries) / 2 * 3;
}

static uint64_t workspace_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const quire_attn_workspace_opts attn = quire_runtime_attn_opts(desc, o);

    return quire_attn_workspace_bytes(&attn);
}

/* Devices that are not the CPU. */
static uint32_t n_cards(const quire_runtime_opts *o)
{
    uint32_t n = o->split.n == 0 && quire_runtime_has_device(o) ? 1 : 0;

    for (uint32_t i = 0; i < o->split.n; i++) {
        n += strcmp(o->split.names[i], "cpu") != 0;
    }
    return n;
}

static uint64_t buffers_bytes(const quire_model_desc *desc, const quire_runtime_opts *o,
                              const quire_graphs_size *graphs)
{
    const uint64_t workspace = workspace_bytes(desc, o);

    return graphs_bytes(desc, graphs) + workspace + n_cards(o) * DEVICE_COPIES_BYTES +
           (o->attends_host && quire_runtime_has_device(o) ? workspace + joint_bytes(desc, o) : 0);
}

/* Memory of a split beside that of its devices: the workspaces of CPUs behind the first one, and of
 * each device the addresses of pages, whose arrays have up to twice as many places. */
static uint64_t split_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const quire_kv_price price = quire_kv_price_make(desc, o);
    const uint64_t pages_bytes =
        price.main_page_bytes + price.hot_page_bytes + price.window_page_bytes;
    const uint64_t n_pages = quire_kv_groups_of(desc, o).n * (kv_bytes(desc, o) / pages_bytes + 1);
    const uint64_t n_cpus = o->split.n - n_cards(o);

    return o->split.n * 2 * sizeof(quire_page_addr) * n_pages +
           (n_cpus > 1 ? (n_cpus - 1) * workspace_bytes(desc, o) : 0);
}

/* Rows of two layers, partial results, and a batch's tables, each as src/device/card takes them:
 * half as much again as was asked for. */
static uint64_t device_bytes(const quire_model_desc *desc, const quire_runtime_opts *o)
{
    const uint64_t n_q = (uint64_t)desc->n_head * (2 * desc->d_k + desc->d_v);
    const uint64_t rows = 2 * (uint64_t)o->n_batch * (n_q + kv_row(desc));
    const uint64_t n_splits =
        1 + ((uint64_t)o->n_ctx + QUIRE_DEVICE_SPLIT_TOKENS - 1) / QUIRE_DEVICE_SPLIT_TOKENS;
    const uint64_t row = (uint64_t)desc->n_head * n_splits * (2 + 2 * desc->d_v);
    const uint64_t partials =
        o->n_batch < DEVICE_PARTIALS / row + 1 ? o->n_batch * row : larger(DEVICE_PARTIALS, row);
    const quire_attn_workspace_opts attn = quire_runtime_attn_opts(desc, o);
    const uint64_t n_entries = (uint64_t)attn.n_seqs_max * attn.n_groups * (attn.n_entries_max + 2);
    /* Lists of the tokens that are kept, and of their biases. */
    const uint64_t lists = o->elsewhere_limits.struct_bytes != 0
                               ? n_entries * QUIRE_TILE_TOKENS * 2 * sizeof(int32_t)
                               : 0;

    return (sizeof(float) * (rows + partials) + DEVICE_ENTRY_BYTES * n_entries + lists) / 2 * 3;
}

void quire_memory_need_get(const quire_model_desc *desc, const quire_runtime_opts *opts,
                           quire_memory_need *out)
{
    quire_runtime_opts o = *opts;
    quire_graphs_size graphs;

    quire_runtime_opts_resolve(desc, &o);
    graphs = quire_step_sizes_get(desc->step_sizes, &o);
    *out = (quire_memory_need){
        .n_ctx = o.n_ctx,
        .weights_bytes = desc->resident_bytes,
        .kv_bytes = kv_bytes(desc, &o),
        .buffers_bytes = buffers_bytes(desc, &o, &graphs) + o.beside_bytes +
                         (o.split.n > 0 ? split_bytes(desc, &o) : 0),
        .program_bytes = PROGRAM_BYTES + VOCAB_TOKEN_BYTES * desc->n_vocab,
        .device_bytes = device_bytes(desc, &o) + (o.split.n == 0 ? graphs.device_bytes[0] : 0),
        .device_weights_bytes = o.split.n == 0 ? desc->device_weight_bytes[o.weights_set] : 0,
        .has_states = desc->recurrent.n_layers != 0,
    };
    for (uint32_t i = 0; i < o.split.n; i++) {
        out->shares[i] = quire_split_share(desc, &o, i);
    }
    for (uint32_t i = 0; o.split.n > 0 && i < QUIRE_MODEL_DEVICES_MAX; i++) {
        out->layers_weights_bytes[i] = desc->device_weight_bytes[i];
        out->layers_buffers_bytes[i] = graphs.device_bytes[i];
    }
    out->total_bytes = out->weights_bytes + out->kv_bytes + out->buffers_bytes + out->program_bytes;
}

/* ---- the device, or devices ---- */

double quire_memory_host_share(const quire_memory_need *need, const quire_memory_place *place)
{
    double share = 0.0;

    if (place == NULL || need->has_states || place->n_parts == 0) {
        return quire_memory_kv_is_hosts(need, place) ? 1.0 : 0.0;
    }
    for (uint32_t i = 0; i < place->n_parts; i++) {
        share += place->parts[i].is_hosts ? need->shares[i] : 0.0;
    }
    return share < 1.0 ? share : 1.0;
}

bool quire_memory_kv_is_hosts(const quire_memory_need *need, const quire_memory_place *place)
{
    if (place == NULL || place->is_hosts || need->has_states) {
        return true;
    }
    for (uint32_t i = 0; i < place->n_parts; i++) {
        if (place->parts[i].is_hosts) {
            return true;
        }
    }
    return false;
}

static uint64_t part_weights(const quire_memory_need *need, const quire_memory_part *part)
{
    return part->layers > 0 ? need->layers_weights_bytes[part->layers - 1] : 0;
}

static uint64_t part_buffers(const quire_memory_need *need, const quire_memory_part *part)
{
    return need->device_bytes +
           (part->layers > 0 ? need->layers_buffers_bytes[part->layers - 1] : 0);
}

/* Buffers of devices whose memory is the host's; those of the CPU are the host's own. */
static uint64_t host_device_bytes(const quire_memory_need *need, const quire_memory_place *place)
{
    uint64_t bytes = 0;

    if (place == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < place->n_parts; i++) {
        const quire_memory_part *part = &place->parts[i];

        bytes += part->is_hosts && !part->is_cpu ? part_buffers(need, part) : 0;
    }
    return bytes + (place->is_hosts ? need->device_bytes : 0);
}

/* Weights on devices whose memory is the host's. */
static uint64_t host_weights_bytes(const quire_memory_need *need, const quire_memory_place *place)
{
    uint64_t bytes = place != NULL && place->is_hosts ? need->device_weights_bytes : 0;

    for (uint32_t i = 0; place != NULL && i < place->n_parts; i++) {
        bytes += place->parts[i].is_hosts ? part_weights(need, &place->parts[i]) : 0;
    }
    return bytes;
}

quire_memory_use quire_memory_host_use(const quire_memory_need *need,
                                       const quire_memory_place *place)
{
    return (quire_memory_use){
        .weights_bytes = need->weights_bytes + host_weights_bytes(need, place),
        .kv_bytes = quire_memory_share(quire_memory_host_share(need, place), need->kv_bytes),
        .buffers_bytes = need->buffers_bytes + host_device_bytes(need, place),
    };
}

uint64_t quire_memory_host_bytes(const quire_memory_need *need, const quire_memory_place *place)
{
    const quire_memory_use use = quire_memory_host_use(need, place);

    return quire_memory_use_sum(&use) + need->program_bytes;
}

quire_memory_use quire_memory_device_use(const quire_memory_need *need,
                                         const quire_memory_place *place, uint32_t i)
{
    const quire_memory_part *part = &place->parts[i];

    if (place->n_parts == 0) {
        return (quire_memory_use){ need->device_weights_bytes, need->kv_bytes, need->device_bytes };
    }
    return (quire_memory_use){ part_weights(need, part),
                               quire_memory_share(need->shares[i], need->kv_bytes),
                               part->is_cpu ? 0 : part_buffers(need, part) };
}

uint32_t quire_memory_layer_side(const quire_model_desc *desc, uint32_t set, uint32_t layer)
{
    return quire_step_sizes_layer_side(desc->step_sizes, set, layer);
}

/* The room for KV of the memory of device i of a split, which devices of its name share. */
static uint64_t part_room(const quire_memory_need *need, const quire_memory_place *place,
                          uint32_t i)
{
    const quire_memory_part *part = &place->parts[i];
    uint64_t fixed_bytes = 0;
    double share = 0.0;

    for (uint32_t k = 0; k < place->n_parts; k++) {
        if (strcmp(place->parts[k].name, part->name) == 0) {
            fixed_bytes += part_buffers(need, &place->parts[k]);
            fixed_bytes += part_weights(need, &place->parts[k]);
            share += need->shares[k];
        }
    }
    if (part->is_cpu || part->bytes == UINT64_MAX) {
        return UINT64_MAX;
    }
    return fixed_bytes < part->bytes
               ? quire_memory_whole(share > 0.0 ? share : 1.0, part->bytes - fixed_bytes)
               : 0;
}

/* The device of a split with the least room. */
static uint32_t tightest_part(const quire_memory_need *need, const quire_memory_place *place)
{
    uint32_t tightest = 0;

    for (uint32_t i = 1; i < place->n_parts; i++) {
        tightest = part_room(need, place, i) < part_room(need, place, tightest) ? i : tightest;
    }
    return tightest;
}

uint64_t quire_memory_device_room(const quire_memory_need *need, const quire_memory_place *place)
{
    const uint64_t fixed_bytes = need->device_bytes + need->device_weights_bytes;

    if (place == NULL) {
        return UINT64_MAX;
    }
    if (place->n_parts > 0) {
        return part_room(need, place, tightest_part(need, place));
    }
    return fixed_bytes < place->bytes ? place->bytes - fixed_bytes : 0;
}

static bool fits_device(const quire_memory_need *need, const quire_memory_place *place)
{
    return need->kv_bytes <= quire_memory_device_room(need, place) &&
           (place == NULL || place->kv_bytes_max == 0 || need->kv_bytes <= place->kv_bytes_max);
}

/* Bytes that a device lacks, of a split the one with the least room. */
static uint64_t device_missing(const quire_memory_need *need, const quire_memory_place *place)
{
    const uint32_t tightest = place->n_parts > 0 ? tightest_part(need, place) : 0;
    const char *name = place->parts[tightest].name;
    uint64_t has_bytes = place->bytes;
    uint64_t bytes = 0;

    if (place->n_parts == 0) {
        const quire_memory_use use = quire_memory_device_use(need, place, 0);

        bytes = quire_memory_use_sum(&use);
    }
    for (uint32_t i = 0; i < place->n_parts; i++) {
        const quire_memory_use use = quire_memory_device_use(need, place, i);

        bytes += strcmp(place->parts[i].name, name) == 0 ? quire_memory_use_sum(&use) : 0;
        has_bytes = place->parts[tightest].bytes;
    }
    return bytes > has_bytes ? bytes - has_bytes : 1; /* shares are rounded */
}

uint64_t quire_memory_missing(const quire_memory_need *need, uint64_t limit_bytes,
                              const quire_memory_place *place)
{
    const uint64_t host_bytes = quire_memory_host_bytes(need, place);

    return larger(host_bytes > limit_bytes ? host_bytes - limit_bytes : 0,
                  fits_device(need, place) ? 0 : device_missing(need, place));
}

uint32_t quire_memory_tokens_max(const quire_model_desc *desc, const quire_runtime_opts *opts,
                                 uint64_t limit_bytes, const quire_memory_place *place,
                                 uint32_t tokens_max)
{
    quire_runtime_opts o = *opts;
    uint32_t fits = 0;
    uint32_t too_many;

    quire_runtime_opts_resolve(desc, &o);
    too_many = tokens_max / o.page_tokens + 1;
    o.n_batch = opts->n_batch;
    o.kv_budget_bytes = 0;
    while (too_many - fits > 1) {
        const uint32_t n_pages = fits + (too_many - fits) / 2;
        quire_memory_need need;

        o.n_ctx = n_pages * o.page_tokens;
        quire_memory_need_get(desc, &o, &need);
        if (quire_memory_host_bytes(&need, place) <= limit_bytes && fits_device(&need, place)) {
            fits = n_pages;
        } else {
            too_many = n_pages;
        }
    }
    return fits * o.page_tokens;
}

/* "16.1 GB (weights 7.16 GB, KV 8.72 GB, ...)": the memory that the host needs. */
static void need_text(const quire_memory_need *need, const quire_memory_place *place, char *text,
                      size_t text_bytes)
{
    const bool has_kv = quire_memory_kv_is_hosts(need, place);
    const quire_memory_use use = quire_memory_host_use(need, place);
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {
        { "weights", use.weights_bytes },
        { "KV", use.kv_bytes },
        { "buffers", use.buffers_bytes },
        { "program", need->program_bytes },
    };
    char bytes[16];
    size_t n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && n < text_bytes; i++) {
        if (i == 1 && !has_kv) {
            continue;
        }
        n += (size_t)snprintf(text + n, text_bytes - n, "%s%s %s", i > 0 ? ", " : "", parts[i].name,
                              quire_format_bytes(parts[i].bytes, bytes, sizeof bytes));
    }
}

static char *formats_text(const quire_model_desc *desc, const quire_runtime_opts *opts,
                          char *buffer, size_t buffer_bytes)
{
    const quire_kv_pair pair = { opts->k_format, opts->v_format };

    return opts->kv_pairs != NULL ? quire_kv_summary(desc, opts->kv_pairs, buffer, buffer_bytes)
                                  : quire_kv_pair_name(pair, buffer, buffer_bytes);
}

/* "a shorter context (-c 4096 fits), ", or nothing. */
static void ctx_text(uint32_t tokens, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (tokens > 0) {
        (void)snprintf(text, text_bytes, "a shorter context (-c %u fits), ", tokens);
    }
}

/* The device of a split whose share of KV does not fit. */
static int fail_part(const quire_model_desc *desc, const quire_runtime_opts *opts,
                     const quire_memory_need *need, const quire_memory_place *place,
                     uint32_t tokens, quire_error *err)
{
    const uint32_t i = tightest_part(need, place);
    const quire_memory_part *part = &place->parts[i];
    const quire_memory_use use = quire_memory_device_use(need, place, i);
    char formats[64], kv[16], buffers[16], has[16], ctx[48], weights[16] = "";

    ctx_text(tokens, ctx, sizeof ctx);
    if (use.weights_bytes > 0) {
        (void)quire_format_bytes(use.weights_bytes, weights, sizeof weights);
    }
    return quire_error_set(
        err, QUIRE_NOMEM,
        "%u tokens of KV %s need more than device %.20s has for its layers: their KV is %s, beside "
        "buffers of %s%s%s, of %s of memory. Choose %sa smaller KV format (--kv), a smaller share "
        "for it (--tensor-split), or --device cpu",
        need->n_ctx, formats_text(desc, opts, formats, sizeof formats), part->name,
        quire_format_bytes(use.kv_bytes, kv, sizeof kv),
        quire_format_bytes(use.buffers_bytes, buffers, sizeof buffers),
        weights[0] != '\0' ? " and weights of " : "", weights,
        quire_format_bytes(part->bytes, has, sizeof has), ctx);
}

static int fail_device(const quire_model_desc *desc, const quire_runtime_opts *opts,
                       const quire_memory_need *need, const quire_memory_place *place,
                       uint32_t tokens, quire_error *err)
{
    const quire_memory_use use = quire_memory_device_use(need, place, 0);
    const uint64_t bytes = quire_memory_use_sum(&use);
    char formats[64], kv[16], buffers[16], total[16], has[16], missing[16], ctx[48];
    char weights[32] = "", size[16];

    ctx_text(tokens, ctx, sizeof ctx);
    if (use.weights_bytes != 0) {
        (void)snprintf(weights, sizeof weights, "weights %s, ",
                       quire_format_bytes(use.weights_bytes, size, sizeof size));
    }
    return quire_error_set(
        err, QUIRE_NOMEM,
        "%u tokens of KV %s need %s on device %s (%sKV %s, buffers %s), which has %s: %s too "
        "much. Choose %sa smaller KV format (--kv), %sor --device cpu",
        need->n_ctx, formats_text(desc, opts, formats, sizeof formats),
        quire_format_bytes(bytes, total, sizeof total), place->name, weights,
        quire_format_bytes(use.kv_bytes, kv, sizeof kv),
        quire_format_bytes(use.buffers_bytes, buffers, sizeof buffers),
        quire_format_bytes(place->bytes, has, sizeof has),
        quire_format_bytes(bytes - place->bytes, missing, sizeof missing), ctx,
        weights[0] != '\0' ? "fewer layers there (-ngl), " : "");
}

int quire_memory_check(const quire_model_desc *desc, const quire_runtime_opts *opts,
                       uint64_t limit_bytes, const quire_memory_place *place, quire_error *err)
{
    const uint32_t tokens = quire_memory_tokens_max(desc, opts, limit_bytes, place, 1u << 30);
    quire_memory_need need;
    char formats[64], parts[160], total[16], limit[16], missing[16], ctx[48];
    uint64_t bytes;

    quire_memory_need_get(desc, opts, &need);
    if (!fits_device(&need, place) && place->n_parts > 0) {
        return fail_part(desc, opts, &need, place, tokens, err);
    }
    if (!fits_device(&need, place)) {
        return fail_device(desc, opts, &need, place, tokens, err);
    }
    bytes = quire_memory_host_bytes(&need, place);
    if (bytes <= limit_bytes) {
        return QUIRE_OK;
    }
    need_text(&need, place, parts, sizeof parts);
    ctx_text(tokens, ctx, sizeof ctx);
    return quire_error_set(
        err, QUIRE_NOMEM,
        "%u tokens of KV %s need %s (%s), the limit is %s: %s too much. Choose %sa smaller KV "
        "format (--kv) or smaller weights, or set --memory-limit",
        need.n_ctx, formats_text(desc, opts, formats, sizeof formats),
        quire_format_bytes(bytes, total, sizeof total), parts,
        quire_format_bytes(limit_bytes, limit, sizeof limit),
        quire_format_bytes(bytes - limit_bytes, missing, sizeof missing), ctx);
}
