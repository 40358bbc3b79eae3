/* overflow.c - a file for offloaded pages before a runtime's device: see overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/overflow.h"

#include "base/check.h"
#include "retain/page_choice.h"

#include <stdlib.h>

static bool is_shared(const quire_kv_map_entry *map)
{
    return map->stored < 0 || map->n_k != 1 || map->k_src[0] != map->stored || map->n_v > 1 ||
           (map->n_v == 1 && map->v_src[0] != map->stored);
}

int quire_overflow_check(const quire_model_desc *desc, quire_error *err)
{
    if (desc->recurrent.n_layers > 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s has recurrent layers: pages of such models cannot be offloaded "
                               "(--kv-overflow refuse)",
                               desc->arch_name);
    }
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        if (is_shared(&desc->kv_map[il])) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "layer %u shares its KV with others: such pages cannot be "
                                   "offloaded (--kv-overflow refuse)",
                                   il);
        }
        if (desc->window[il] != 0) {
            return quire_error_set(err, QUIRE_UNSUPP,
                                   "layer %u has a window: pages of such models cannot be "
                                   "offloaded (--kv-overflow refuse)",
                                   il);
        }
    }
    return QUIRE_OK;
}

/* The inner device has accepted these layers (quire_runtime_create()). */
static void layers_assert(const quire_model_desc *desc, const quire_runtime_opts *o,
                          const quire_attn_device *stream)
{
    const quire_kv_form form = quire_kv_form_of(desc, o);

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        quire_attn_layer layer;

        (void)quire_kv_layout(&form, il, &layer);
        QUIRE_CHECK(stream->check(stream->ctx, &layer) == QUIRE_OK);
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

/* Bytes of each part. */
typedef struct parts_bytes {
    size_t *of_parts;  /* [n_stored] */
    size_t *of_bounds; /* [n_stored] the last of these */
} parts_bytes;

/* Layer l stores part l: no layer shares its K and V (quire_overflow_check()). */
static quire_offload_choice choice_of(const quire_model_desc *desc,
                                      const quire_packed_device *chooser, const parts_bytes *bytes)
{
    const size_t bounds_bytes = chooser != NULL ? quire_packed_device_bounds_bytes(chooser) : 0;

    if (bounds_bytes == 0) {
        return (quire_offload_choice){ .chooses = NULL };
    }
    for (uint32_t p = 0; p < desc->n_stored; p++) {
        QUIRE_CHECK(desc->kv_map[p].stored == (int32_t)p);
        bytes->of_bounds[p] = bounds_bytes;
    }
    return (quire_offload_choice){ .chooses = quire_packed_chooses,
                                   .n_dense = QUIRE_ATTEND_DENSE,
                                   .kept_bytes = bytes->of_bounds };
}

static int offload_open(quire_offload **out, quire_runtime *runtime, const quire_model_desc *desc,
                        const quire_overflow_opts *opts, quire_packed_device *chooser,
                        const parts_bytes *bytes, quire_error *err)
{
    const quire_runtime_opts *o = quire_runtime_opts_get(runtime);
    const quire_kv_form form = quire_kv_form_of(desc, o);
    const size_t page_bytes = quire_kv_parts(&form, QUIRE_KV_GROUP_MAIN, bytes->of_parts, NULL);
    const quire_offload_opts offload = {
        .cache = quire_runtime_cache(runtime),
        .inner = quire_runtime_device(runtime),
        .group = QUIRE_KV_GROUP_MAIN,
        .memory = quire_runtime_page_memory(runtime),
        .host_bytes = opts->host_bytes,
        .choice = choice_of(desc, chooser, bytes),
        .file = { .dir = opts->dir,
                  .capacity_bytes = opts->capacity_bytes,
                  .wait_ms = opts->wait_ms,
                  .ops = opts->ops,
                  .n_parts = desc->n_stored,
                  .part_bytes = bytes->of_parts,
                  .extent_pages = quire_cache_extent_pages(page_bytes, desc->n_stored) },
    };
    quire_packed_elsewhere elsewhere = { .bounds = page_bounds, .need = need_pages };
    quire_attn_device stream;

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

    (void)quire_kv_parts(&form, QUIRE_KV_GROUP_MAIN, part_bytes, NULL);
    return quire_offload_file_bytes_min(part_bytes, desc->n_stored, opts->has_bounds);
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
    parts_bytes bytes;
    int rc;

    *out = NULL;
    QUIRE_TRY(quire_overflow_check(desc, err));
    bytes.of_parts = calloc(2 * (size_t)desc->n_stored, sizeof *bytes.of_parts);
    if (bytes.of_parts == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    bytes.of_bounds = bytes.of_parts + desc->n_stored;
    rc = offload_open(out, runtime, desc, opts, chooser, &bytes, err);
    free(bytes.of_parts);
    return rc;
}

void quire_overflow_close(quire_offload *offload, quire_runtime *runtime)
{
    if (offload != NULL && runtime != NULL) {
        *quire_runtime_device(runtime) = quire_offload_inner(offload);
    }
    quire_offload_close(offload);
}
