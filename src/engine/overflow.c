/* overflow.c - a file for offloaded pages before a runtime's device: see overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/overflow.h"

#include "base/check.h"
#include "retain/page_choice.h"

#include <stdlib.h>

/* ---- the parts that layers read ---- */

/* Call add() for each stored layer that a layer reads. */
typedef int (*source_add)(void *ctx, uint32_t stored);

static int sources_each(const quire_model_desc *desc, uint32_t il, source_add add, void *ctx)
{
    const quire_kv_map_entry *map = &desc->kv_map[il];

    for (uint32_t i = 0; i < map->n_k; i++) {
        QUIRE_TRY(add(ctx, map->k_src[i]));
    }
    for (uint32_t i = 0; i < map->n_v; i++) {
        QUIRE_TRY(add(ctx, map->v_src[i]));
    }
    return QUIRE_OK;
}

static int stored_add(void *ctx, uint32_t stored)
{
    return quire_offload_stop_add(ctx, stored);
}

int quire_overflow_check(const quire_model_desc *desc, quire_error *err)
{
    bool has_whole = false; /* pages that a text keeps to its end */

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_offload_stop stop = { .n = 0 };

        if (!quire_mixer_attends(desc->mixer[il])) {
            continue;
        }
        has_whole = has_whole || desc->window[il] == 0;
        if (sources_each(desc, il, stored_add, &stop) < 0) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "layer %u reads K and V of more than %u layers: pages of such "
                                   "models cannot be offloaded (--kv-overflow refuse)",
                                   il, QUIRE_OFFLOAD_READS_MAX);
        }
    }
    return has_whole
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_UNSUPP,
                                 "no layer of this %s model reads the whole text: it has no pages "
                                 "that could be offloaded (--kv-overflow refuse)",
                                 desc->arch_name);
}

/* The parts of main pages by stored layer, and the stop of a layer. */
typedef struct main_parts {
    uint32_t of[QUIRE_LAYERS_MAX]; /* [n_stored]; QUIRE_LAYERS_MAX: in pages of the window group */
    quire_offload_stop *stop;
} main_parts;

static int part_add(void *ctx, uint32_t stored)
{
    const main_parts *parts = ctx;
    const uint32_t part = parts->of[stored];

    return part < QUIRE_LAYERS_MAX ? quire_offload_stop_add(parts->stop, part) : QUIRE_OK;
}

/* Fill stops, [n_layer]. Returns their number. */
static uint32_t stops_fill(const quire_model_desc *desc, const quire_kv_form *form,
                           quire_offload_stop *stops)
{
    main_parts parts;
    uint32_t n = 0;

    for (uint32_t l = 0; l < desc->n_stored; l++) {
        const bool is_there = quire_kv_part_bytes(form, QUIRE_KV_GROUP_MAIN, l) > 0;

        parts.of[l] = is_there ? n : QUIRE_LAYERS_MAX;
        n += is_there;
    }
    n = 0;
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        if (!quire_mixer_attends(desc->mixer[il])) {
            continue;
        }
        stops[n] = (quire_offload_stop){ .n = 0 };
        parts.stop = &stops[n];
        (void)sources_each(desc, il, part_add, &parts); /* quire_overflow_check() */
        n += stops[n].n > 0;
    }
    return n;
}

/* ---- opening ---- */

/* The inner device has accepted these layers (quire_runtime_create()). */
static void layers_assert(const quire_model_desc *desc, const quire_runtime_opts *o,
                          const quire_attn_device *stream)
{
    const quire_kv_form form = quire_kv_form_of(desc, o);

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_attn_layer layer;

        if (quire_mixer_attends(desc->mixer[il])) {
            (void)quire_kv_layout(&form, il, &layer);
            QUIRE_CHECK(stream->check(stream->ctx, &layer) == QUIRE_OK);
        }
    }
}

static const void *page_bounds(void *ctx, quire_page_id page)
{
    return quire_offload_page_kept(ctx, page);
}

static void need_pages(void *ctx, const quire_page_id *pages, uint32_t n)
{
    quire_offload_pages_need(ctx, pages, n);
}

/* Main pages, as the layers of a step read them. */
typedef struct page_parts {
    size_t *bytes;             /* [n_stored] of each part; n_parts are filled */
    size_t *bounds_bytes;      /* [n_stored] the last of these */
    quire_offload_stop *stops; /* [n_layer]; n_stops are filled */
    uint32_t n_parts;
    uint32_t n_stops;
} page_parts;

static void page_parts_free(page_parts *parts)
{
    free(parts->bytes);
    free(parts->stops);
}

static int page_parts_init(page_parts *parts, const quire_model_desc *desc)
{
    *parts = (page_parts){ .bytes = calloc(2 * (size_t)desc->n_stored, sizeof *parts->bytes),
                           .stops = calloc(desc->n_layer, sizeof *parts->stops) };
    if (parts->bytes == NULL || parts->stops == NULL) {
        page_parts_free(parts);
        return QUIRE_NOMEM;
    }
    parts->bounds_bytes = parts->bytes + desc->n_stored;
    return QUIRE_OK;
}

/* Rows choose pages only in models in which layer number i of those that store K and V reads part i
 * and no other (quire_condensing_packing_init()). */
static quire_offload_choice choice_of(const quire_packed_device *chooser, const page_parts *parts)
{
    const size_t bounds_bytes = chooser != NULL ? quire_packed_device_bounds_bytes(chooser) : 0;

    if (bounds_bytes == 0) {
        return (quire_offload_choice){ .chooses = NULL };
    }
    QUIRE_CHECK(parts->n_stops == parts->n_parts);
    for (uint32_t p = 0; p < parts->n_parts; p++) {
        QUIRE_CHECK(parts->stops[p].n == 1 && parts->stops[p].parts[0] == p);
        parts->bounds_bytes[p] = bounds_bytes;
    }
    return (quire_offload_choice){ .chooses = quire_packed_chooses,
                                   .n_dense = QUIRE_ATTEND_DENSE,
                                   .kept_bytes = parts->bounds_bytes };
}

static int offload_open(quire_offload **out, quire_runtime *runtime, const quire_model_desc *desc,
                        const quire_overflow_opts *opts, quire_packed_device *chooser,
                        page_parts *parts, quire_error *err)
{
    const quire_runtime_opts *o = quire_runtime_opts_get(runtime);
    const quire_kv_form form = quire_kv_form_of(desc, o);
    const size_t page_bytes =
        quire_kv_parts(&form, QUIRE_KV_GROUP_MAIN, parts->bytes, &parts->n_parts);
    quire_offload_opts offload = {
        .cache = quire_runtime_cache(runtime),
        .inner = quire_runtime_device(runtime),
        .group = QUIRE_KV_GROUP_MAIN,
        .memory = quire_runtime_page_memory(runtime),
        .host_bytes = opts->host_bytes,
        .stops = parts->stops,
        .file = { .dir = opts->dir,
                  .capacity_bytes = opts->capacity_bytes,
                  .wait_ms = opts->wait_ms,
                  .ops = opts->ops,
                  .n_parts = parts->n_parts,
                  .part_bytes = parts->bytes,
                  .extent_pages = quire_cache_extent_pages(page_bytes, parts->n_parts) },
    };
    quire_packed_elsewhere elsewhere = { .bounds = page_bounds, .need = need_pages };
    quire_attn_device stream;

    parts->n_stops = stops_fill(desc, &form, parts->stops);
    offload.n_stops = parts->n_stops;
    offload.choice = choice_of(chooser, parts);
    QUIRE_TRY(quire_offload_open(out, &offload, err));
    elsewhere.ctx = *out;
    if (offload.choice.chooses != NULL) {
        quire_packed_device_elsewhere_set(chooser, &elsewhere);
    }
    stream = quire_offload_device(*out);
    layers_assert(desc, o, &stream);
    *quire_runtime_device(runtime) = stream;
    return QUIRE_OK;
}

uint64_t quire_overflow_bytes_min(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const quire_kv_form form = quire_kv_form_of(desc, opts);

    return QUIRE_OFFLOAD_STRIPE * (uint64_t)quire_kv_parts(&form, QUIRE_KV_GROUP_MAIN, NULL, NULL);
}

uint64_t quire_overflow_file_bytes_min(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const quire_kv_form form = quire_kv_form_of(desc, opts);
    size_t part_bytes[QUIRE_LAYERS_MAX];
    uint32_t n_parts;

    (void)quire_kv_parts(&form, QUIRE_KV_GROUP_MAIN, part_bytes, &n_parts);
    return quire_offload_file_bytes_min(part_bytes, n_parts, opts->has_bounds);
}

uint32_t quire_overflow_stripes(uint64_t page_bytes)
{
    const uint64_t n = QUIRE_OVERFLOW_ROUND_BYTES / (QUIRE_OFFLOAD_STRIPE * page_bytes);

    return n < 1 ? 1 : n < QUIRE_OVERFLOW_STRIPES_MAX ? (uint32_t)n : QUIRE_OVERFLOW_STRIPES_MAX;
}

bool quire_overflow_is_on(const quire_overflow_opts *opts, const quire_runtime *runtime)
{
    return quire_runtime_page_memory(runtime) != NULL ? opts->host_bytes > 0 : opts->dir != NULL;
}

int quire_overflow_open(quire_offload **out, quire_runtime *runtime, const quire_model_desc *desc,
                        const quire_overflow_opts *opts, quire_packed_device *chooser,
                        quire_error *err)
{
    page_parts parts;
    int rc;

    *out = NULL;
    QUIRE_TRY(quire_overflow_check(desc, err));
    if (page_parts_init(&parts, desc) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    rc = offload_open(out, runtime, desc, opts, chooser, &parts, err);
    page_parts_free(&parts);
    return rc;
}

void quire_overflow_close(quire_offload *offload, quire_runtime *runtime)
{
    if (offload != NULL && runtime != NULL) {
        *quire_runtime_device(runtime) = quire_offload_inner(offload);
    }
    quire_offload_close(offload);
}
