/* weights.c - see weights.h.
 *
 * Loading goes in three passes over one list of wanted tensors: place (which kind of buffer holds
 * each tensor), allocate (one ggml context and buffer per kind), fill. A kind is the mapped files,
 * a plain CPU buffer (a mapped tensor that is not aligned as ggml wants it), panels for our own
 * products (one mapping, in huge pages where there are any), a device's memory, or one extra buffer
 * type.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/backend.h"
#include "model/backend_calls.h"
#include "model/weights_device.h"
#include "model/weights_digest.h"
#include "model/weights_latent.h"
#include "model/weights_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>

/* ---- pass 2: allocate ---- */

static int files_map(quire_weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    const uint32_t n = quire_gguf_n_parts(load->file);

    store->files = calloc(n, sizeof *store->files);
    QUIRE_FAIL_IF(store->files == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n; i++) {
        QUIRE_TRY(quire_weights_map_open(&store->files[i], quire_gguf_part_path(load->file, i),
                                         quire_gguf_part_bytes(load->file, i), load->err));
        store->n_files++;
    }
    return QUIRE_OK;
}

/* One mapping for all panels. */
static int panels_create(quire_weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    unsigned char *at;

    if (store->panels_bytes == 0) {
        return QUIRE_OK;
    }
    at =
        mmap(NULL, store->panels_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return quire_error_set_errno(load->err, errno, "%s: cannot map %zu bytes for weights",
                                     quire_gguf_path(load->file), store->panels_bytes);
    }
    store->panels = at;
    (void)madvise(at, store->panels_bytes, MADV_HUGEPAGE);
    return quire_weights_panels_place(load, (uintptr_t)at);
}

static int no_memory(const quire_weight_load *load)
{
    return quire_error_set(load->err, QUIRE_NOMEM, "%s: no memory for the weights",
                           quire_gguf_path(load->file));
}

/* The mapped files as buffers of the CPU backend. */
static int mapped_buffers_create(const quire_weight_load *load, size_t tensor_bytes_max)
{
    const struct quire_weights_store *store = load->weights->store;

    for (uint32_t i = 0; i < store->n_files; i++) {
        quire_weights_map *file = &store->files[i];

        file->buffer = ggml_backend_dev_buffer_from_host_ptr(quire_backend_cpu(), file->base,
                                                             file->bytes, tensor_bytes_max);
        if (file->buffer == NULL) {
            return no_memory(load);
        }
        ggml_backend_buffer_set_usage(file->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    return QUIRE_OK;
}

static int buffers_create(quire_weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    size_t tensor_bytes_max = 0;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        size_t n = ggml_nbytes(store->slots[i].meta);

        tensor_bytes_max = n > tensor_bytes_max ? n : tensor_bytes_max;
    }
    for (uint32_t i = 0; i < store->n_kinds; i++) {
        quire_weight_kind *kind = &store->kinds[i];

        if (kind->ctx == NULL || i == QUIRE_KIND_PANELS) {
            continue;
        }
        if (i == QUIRE_KIND_MAPPED) {
            QUIRE_TRY(mapped_buffers_create(load, tensor_bytes_max));
            continue;
        }
        kind->buffer = quire_backend_buffer_new(kind->ctx, kind->buft);
        if (kind->buffer == NULL) {
            return quire_kind_is_device(i)
                       ? quire_weights_device_full(load->weights->devices[i - QUIRE_KIND_DEVICE],
                                                   kind->ctx, load->err)
                       : no_memory(load);
        }
        ggml_backend_buffer_set_usage(kind->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    return panels_create(load);
}

/* ---- pass 3: fill ---- */

#define PLACE_CHARS 64u

/* The name of the memory from which the tensor is multiplied. Of a device it is that of its
 * backend, without the number of the card: the runtime's identity has the card and its driver
 * (quire_split_rounding_of()), and equal cards round alike. Of several devices their division
 * counts: ggml fuses operations of a device's layers, which rounds in other ways. */
static const char *place_of(const quire_weights *weights, uint32_t kind, char place[PLACE_CHARS])
{
    if (kind == QUIRE_KIND_PANELS) {
        return "panels";
    }
    if (quire_kind_is_device(kind)) {
        const uint32_t i = kind - QUIRE_KIND_DEVICE;
        const char *name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(weights->devices[i]));

        if (weights->n_devices == 1) {
            return name;
        }
        (void)snprintf(place, PLACE_CHARS, "%.40s %u of %u", name, i, weights->n_devices);
        return place;
    }
    return kind >= QUIRE_KIND_EXTRA ? ggml_backend_buft_name(weights->store->kinds[kind].buft)
                                    : "plain";
}

static void progress_say(const quire_weight_load *load, uint64_t done_bytes, uint64_t total_bytes)
{
    const double of_set = (double)done_bytes / (double)total_bytes;

    if (load->opts->progress != NULL) {
        load->opts->progress(load->opts->progress_ctx,
                             (float)((load->n_done + of_set) / quire_weights_sets(load->opts)));
    }
}

/* Put a tensor where it belongs; source: its bytes in the file. */
static int tensor_fill(quire_weight_load *load, uint32_t i, const quire_weights_map *file,
                       char *source)
{
    quire_weights *weights = load->weights;
    const quire_weight_slot *slot = &weights->store->slots[i];
    const size_t n_bytes = ggml_nbytes(slot->meta);

    if (load->has != NULL && !quire_kind_is_device(slot->kind)) {
        return QUIRE_OK;
    }
    if (slot->kind == QUIRE_KIND_MAPPED) {
        QUIRE_FAIL_IF(ggml_backend_tensor_alloc(file->buffer, *slot->into, source) !=
                          GGML_STATUS_SUCCESS,
                      QUIRE_NOMEM);
        weights->mapped_bytes += n_bytes;
        return QUIRE_OK;
    }
    if (slot->kind == QUIRE_KIND_PANELS) {
        quire_matmul_weight_pack(&weights->store->maps[i], source);
    } else {
        QUIRE_TRY(quire_weights_device_write(*slot->into, source, load->err));
    }
    quire_weights_map_drop(file, slot->place.offset, n_bytes);
    *(quire_kind_is_device(slot->kind) ? &weights->device_bytes : &weights->repacked_bytes) +=
        n_bytes;
    return QUIRE_OK;
}

static int tensors_fill(quire_weight_load *load)
{
    const struct quire_weights_store *store = load->weights->store;
    const quire_weights_map *files = (load->has != NULL ? load->has->store : store)->files;
    uint64_t total_bytes = 1, done_bytes = 0;
    char place[PLACE_CHARS];

    for (uint32_t i = 0; i < store->n_slots; i++) {
        total_bytes += ggml_nbytes(store->slots[i].meta);
    }
    for (uint32_t i = 0; i < store->n_slots; i++) {
        const quire_weight_slot *slot = &store->slots[i];
        const size_t n_bytes = ggml_nbytes(slot->meta);
        const quire_weights_map *file = &files[slot->place.part];
        const uint64_t offset = slot->place.offset;
        char *source = (char *)file->base + offset;

        QUIRE_CHECK(offset <= file->bytes && n_bytes <= file->bytes - offset);
        quire_weights_digest_add(load->weights->digest, slot->meta,
                                 place_of(load->weights, slot->kind, place), source);
        QUIRE_TRY(tensor_fill(load, i, file, source));
        done_bytes += n_bytes;
        progress_say(load, done_bytes, total_bytes);
    }
    return QUIRE_OK;
}

/* ---- */

static int set_load(quire_weight_load *load)
{
    const quire_model_desc *desc = load->desc;

    load->weights = calloc(1, sizeof *load->weights);
    QUIRE_FAIL_IF(load->weights == NULL, QUIRE_NOMEM);
    QUIRE_TRY(quire_weights_place(load));
    QUIRE_TRY(load->has == NULL ? files_map(load) : QUIRE_OK);
    QUIRE_TRY(quire_weights_tensors_create(load));
    QUIRE_TRY(buffers_create(load));
    QUIRE_TRY(tensors_fill(load));
    return load->has == NULL ? quire_weights_latent_make(load->weights, desc) : QUIRE_OK;
}

int quire_weights_load(quire_weights *sets[QUIRE_MODEL_SETS_MAX], const quire_gguf *file,
                       const quire_model_desc *desc, const quire_model_opts *opts,
                       const quire_model_split *split, quire_error *err)
{
    const uint32_t n = quire_weights_sets(opts), first = quire_weights_host_set(opts);
    int rc = QUIRE_OK;

    memset(sets, 0, QUIRE_MODEL_SETS_MAX * sizeof(quire_weights *));
    for (uint32_t i = 0; i < n && rc == QUIRE_OK; i++) {
        /* The set with the host's tensors goes first. */
        const uint32_t set = i == 0 ? first : i <= first ? i - 1 : i;
        quire_weight_load load = { .file = file,
                                   .desc = desc,
                                   .opts = opts,
                                   .set = set,
                                   .split = split,
                                   .has = sets[first],
                                   .n_done = i,
                                   .err = err };

        rc = quire_weights_load_fail(&load, set_load(&load));
        sets[set] = load.weights;
    }
    if (rc < 0) {
        quire_weights_destroy_sets(sets);
    }
    return rc;
}

void quire_weights_destroy_sets(quire_weights *sets[QUIRE_MODEL_SETS_MAX])
{
    for (uint32_t i = 0; i < QUIRE_MODEL_SETS_MAX; i++) {
        quire_weights_destroy(sets[i]);
        sets[i] = NULL;
    }
}

uint8_t quire_weights_side(const quire_weights *weights, const struct ggml_tensor *tensor)
{
    const char *at = (const char *)tensor;

    for (uint32_t i = 0; i < weights->n_devices; i++) {
        struct ggml_context *ctx = weights->store->kinds[QUIRE_KIND_DEVICE + i].ctx;
        const char *begin = ctx != NULL ? ggml_get_mem_buffer(ctx) : NULL;

        if (begin != NULL && at >= begin && at < begin + ggml_get_mem_size(ctx)) {
            return (uint8_t)(1 + i);
        }
    }
    return 0;
}

void quire_weights_destroy(quire_weights *weights)
{
    struct quire_weights_store *store;

    if (weights == NULL) {
        return;
    }
    quire_weights_latent_free(weights->latent);
    store = weights->store;
    if (store != NULL) {
        for (uint32_t i = 0; i < store->n_kinds; i++) {
            quire_backend_buffer_free(store->kinds[i].buffer);
            ggml_free(store->kinds[i].ctx);
        }
        for (uint32_t i = 0; i < store->n_files; i++) {
            quire_weights_map_close(&store->files[i]);
        }
        free(store->files);
        if (store->panels != NULL) {
            (void)munmap(store->panels, store->panels_bytes);
        }
        ggml_free(store->cuts);
        free(store->joint);
        free(store->maps);
        free(store->slots);
    }
    free(store);
    free(weights->layers);
    free(weights);
}
