/* overflow.c - a file for offloaded pages before a runtime's device: see overflow.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/overflow.h"

#include "base/check.h"

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

static int offload_open(quire_offload **out, quire_runtime *runtime, const quire_model_desc *desc,
                        const quire_overflow_opts *opts, size_t *part_bytes, quire_error *err)
{
    const quire_runtime_opts *o = quire_runtime_opts_get(runtime);
    const quire_kv_form form = quire_kv_form_of(desc, o);
    const size_t page_bytes = quire_kv_parts(&form, QUIRE_KV_GROUP_MAIN, part_bytes, NULL);
    const quire_offload_opts offload = {
        .cache = quire_runtime_cache(runtime),
        .inner = quire_runtime_device(runtime),
        .group = QUIRE_KV_GROUP_MAIN,
        .memory = quire_runtime_page_memory(runtime),
        .file = { .dir = opts->dir,
                  .capacity_bytes = opts->capacity_bytes,
                  .wait_ms = opts->wait_ms,
                  .ops = opts->ops,
                  .n_parts = desc->n_stored,
                  .part_bytes = part_bytes,
                  .extent_pages = quire_cache_extent_pages(page_bytes, desc->n_stored) },
    };
    quire_attn_device stream;

    QUIRE_TRY(quire_offload_open(out, &offload, err));
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

uint32_t quire_overflow_stripes(uint64_t page_bytes)
{
    const uint64_t n = QUIRE_OVERFLOW_ROUND_BYTES / (QUIRE_OFFLOAD_STRIPE * page_bytes);

    return n < 1 ? 1 : n < QUIRE_OVERFLOW_STRIPES_MAX ? (uint32_t)n : QUIRE_OVERFLOW_STRIPES_MAX;
}

bool quire_overflow_is_on(const quire_overflow_opts *opts, const quire_runtime *runtime)
{
    return quire_runtime_page_memory(runtime) != NULL ? opts->capacity_bytes > 0
                                                      : opts->dir != NULL;
}

int quire_overflow_open(quire_offload **out, quire_runtime *runtime, const quire_model_desc *desc,
                        const quire_overflow_opts *opts, quire_error *err)
{
    size_t *part_bytes;
    int rc;

    *out = NULL;
    QUIRE_TRY(quire_overflow_check(desc, err));
    part_bytes = calloc(desc->n_stored, sizeof *part_bytes);
    if (part_bytes == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    rc = offload_open(out, runtime, desc, opts, part_bytes, err);
    free(part_bytes);
    return rc;
}

void quire_overflow_close(quire_offload *offload, quire_runtime *runtime)
{
    if (offload != NULL && runtime != NULL) {
        *quire_runtime_device(runtime) = quire_offload_inner(offload);
    }
    quire_offload_close(offload);
}
