/* device.c - the public functions of devices: arguments, bounds, loss; then the device's own.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/num.h"
#include "device/device_internal.h"
#ifdef QUIRE_DEVICE_HAS_CUDA
#include "device/cuda/cuda_device.h"
#endif
#ifdef QUIRE_DEVICE_HAS_VULKAN
#include "device/vulkan/vulkan_device.h"
#endif

#include <string.h>

void quire_device_init(quire_device *device, const quire_device_ops *ops,
                       const quire_device_opts *opts)
{
    device->ops = ops;
    device->allocator =
        opts->attn.allocator != NULL ? *opts->attn.allocator : *quire_allocator_default();
    device->memory_bytes_max = opts->memory_bytes_max;
    device->n_groups = opts->attn.n_groups != 0 ? opts->attn.n_groups : 1;
}

int quire_device_lose(quire_device *device)
{
    device->is_lost = true;
    return QUIRE_LOST;
}

#ifdef QUIRE_DEVICE_HAS_VULKAN
#define OPEN_VULKAN open_vulkan
static int open_vulkan(quire_device **out, uint32_t index, const quire_device_opts *opts,
                       quire_error *err)
{
    return quire_vulkan_device_open(out, index, quire_vulkan_validates(), opts, err);
}
#else
#define OPEN_VULKAN NULL
#endif

#ifdef QUIRE_DEVICE_HAS_CUDA
#define OPEN_CUDA quire_cuda_device_open
#else
#define OPEN_CUDA NULL
#endif

/* An interface of drivers for cards: NAME0, NAME1, ... */
typedef struct card_interface {
    const char *name;
    const char *title;
    int (*open)(quire_device **out, uint32_t index, const quire_device_opts *opts,
                quire_error *err); /* NULL: not in this build */
} card_interface;

static const card_interface interfaces[] = {
    { "vulkan", "Vulkan", OPEN_VULKAN },
    { "cuda", "CUDA", OPEN_CUDA },
};

static int open_card(const card_interface *interface, quire_device **out, const char *name,
                     const quire_device_opts *opts, quire_error *err)
{
    const char *digits = name + strlen(interface->name);

    if (interface->open == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "device %s: this build is without %s", name,
                               interface->title);
    }
    if (digits[0] >= '0' && digits[0] <= '9' && digits[1] == '\0') {
        return interface->open(out, (uint32_t)(digits[0] - '0'), opts, err);
    }
    return quire_error_set(err, QUIRE_NOTFOUND, "there is no device '%s' (%s0 to %s9)", name,
                           interface->name, interface->name);
}

int quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                      quire_error *err)
{
    *out = NULL;
    if (opts->struct_bytes != sizeof(*opts)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "device %s: options of another version of libquire", name);
    }
    if (strcmp(name, "cpu") == 0) {
        return quire_cpu_device_open(out, opts, QUIRE_MEMORY_HOST, err);
    }
    for (size_t i = 0; i < sizeof(interfaces) / sizeof(interfaces[0]); i++) {
        if (strncmp(name, interfaces[i].name, strlen(interfaces[i].name)) == 0) {
            return open_card(&interfaces[i], out, name, opts, err);
        }
    }
    return quire_error_set(err, QUIRE_NOTFOUND,
                           "there is no device '%s' (cpu, vulkan0 ..., cuda0 ...)", name);
}

void quire_device_close(quire_device *device)
{
    if (device != NULL) {
        if ((device->stage.bytes > 0 || quire_device_ahead_is_under_way(device)) &&
            quire_device_drain(device) < 0) {
            (void)quire_device_lose(device);
        }
        quire_device_pages_end(device);
        device->ops->close(device);
    }
}

void quire_device_info_get(const quire_device *device, quire_device_info *out)
{
    const uint64_t max_bytes = device->memory_bytes_max;

    *out = (quire_device_info){ .free_bytes = UINT64_MAX,
                                .used_bytes = device->used_bytes,
                                .is_lost = device->is_lost };
    device->ops->info(device, out);
    if (max_bytes != 0) {
        out->memory_bytes =
            out->memory_bytes == 0 ? max_bytes : quire_min_u64(out->memory_bytes, max_bytes);
        out->free_bytes = quire_min_u64(out->free_bytes, max_bytes - device->used_bytes);
    }
}

bool quire_device_is_lost(const quire_device *device)
{
    return device->is_lost;
}

const void *quire_device_queue_owner(const quire_device *device)
{
    return device->ops->queue_owner != NULL ? device->ops->queue_owner(device) : NULL;
}

int quire_device_queue_share(quire_device *device, const void *owner, void *before, void *behind)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    QUIRE_FAIL_IF(device->ops->queue_share == NULL, QUIRE_UNSUPP);
    return device->ops->queue_share(device, owner, before, behind);
}

int quire_device_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                       quire_device_memory *out)
{
    *out = (quire_device_memory){ 0 };
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    QUIRE_FAIL_IF(bytes == 0, QUIRE_INVAL);
    QUIRE_FAIL_IF(device->memory_bytes_max != 0 &&
                      bytes > device->memory_bytes_max - device->used_bytes,
                  QUIRE_NOMEM);
    QUIRE_TRY(device->ops->alloc(device, kind, bytes, out));
    out->bytes = bytes;
    device->used_bytes += bytes;
    return QUIRE_OK;
}

/* A device may be lost for its owner alone, by a call that failed. Its queues go on all the same,
 * and no wait of the owner reaches them. */
static void queues_end(quire_device *device)
{
    quire_device_event event;

    if (device->ops->record(device, &event) == QUIRE_OK) {
        (void)device->ops->wait(device, event);
    }
    quire_device_ahead_wait(device);
}

void quire_device_free(quire_device *device, quire_device_memory *memory)
{
    if (memory->bytes != 0) {
        QUIRE_CHECK(memory->bytes <= device->used_bytes);
        if (device->is_lost) {
            queues_end(device);
        }
        device->ops->free(device, memory);
        device->used_bytes -= memory->bytes;
    }
    *memory = (quire_device_memory){ 0 };
}

static bool is_inside(const quire_device_memory *memory, uint64_t offset, uint64_t bytes)
{
    return offset <= memory->bytes && bytes <= memory->bytes - offset;
}

int quire_device_copy(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    for (uint32_t i = 0; i < n_pieces; i++) {
        const quire_device_piece *p = &pieces[i];

        QUIRE_FAIL_IF(p->bytes == 0, QUIRE_INVAL);
        QUIRE_FAIL_IF(!is_inside(p->to, p->to_offset, p->bytes), QUIRE_INVAL);
        QUIRE_FAIL_IF(!is_inside(p->from, p->from_offset, p->bytes), QUIRE_INVAL);
        QUIRE_FAIL_IF(p->to->ctx == p->from->ctx && p->to_offset < p->from_offset + p->bytes &&
                          p->from_offset < p->to_offset + p->bytes,
                      QUIRE_INVAL);
    }
    return n_pieces > 0 ? device->ops->copy(device, pieces, n_pieces) : QUIRE_OK;
}

int quire_device_record(quire_device *device, quire_device_event *out)
{
    *out = 0;
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    QUIRE_TRY(device->ops->record(device, out));
    device->last_event = *out;
    return QUIRE_OK;
}

int quire_device_wait(quire_device *device, quire_device_event event)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    QUIRE_FAIL_IF(event > device->last_event, QUIRE_INVAL);
    return quire_device_ahead_status(device, device->ops->wait(device, event));
}

int quire_device_drain_steps(quire_device *device)
{
    quire_device_event event;

    QUIRE_TRY(quire_device_record(device, &event));
    return quire_device_wait(device, event);
}

int quire_device_drain(quire_device *device)
{
    QUIRE_TRY(quire_device_drain_steps(device));
    return quire_device_ahead_drain(device);
}

int quire_device_sync(quire_device *device)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    QUIRE_TRY(quire_device_ahead_settle(device));
    return quire_device_drain(device);
}

int quire_device_check(const quire_device *device, const quire_attn_layer *layer)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    return device->ops->check(device, layer);
}

int quire_device_plan(quire_device *device, const quire_attn_batch *batch)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    quire_device_ahead_begin(device);
    /* It checks tables, and may wait for the queue. */
    QUIRE_TRY(quire_device_ahead_status(device, device->ops->plan(device, batch)));
    return quire_device_ahead_plan(device, batch);
}

int quire_device_enter(quire_device *device, const quire_attn_layer *layer, quire_attn_layer *own)
{
    *own = *layer;
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    if (device->ops->is_in_place) {
        return QUIRE_OK;
    }
    return quire_device_ahead_status(device, device->ops->enter(device, layer, own));
}

void quire_device_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                         uint32_t n_threads)
{
    if (device->ops->is_in_place || (thread == 0 && !device->is_lost)) {
        device->ops->append(device, own, thread, n_threads);
    }
}

void quire_device_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                       uint32_t thread, uint32_t n_threads)
{
    if (device->ops->is_in_place || (thread == 0 && !device->is_lost)) {
        device->ops->attn(device, own, call, thread, n_threads);
    }
}

int quire_device_leave(quire_device *device, const quire_attn_layer *layer,
                       const quire_attn_layer *own)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    if (device->ops->is_in_place) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_device_ahead_status(device, device->ops->leave(device, layer, own)));
    if (layer->out != NULL) {
        quire_device_ahead_next(device);
    }
    return QUIRE_OK;
}

int quire_device_queue(quire_device *device, const quire_attn_layer *layer, unsigned what)
{
    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    QUIRE_TRY(quire_device_ahead_status(device, device->ops->queue(device, layer, what)));
    if ((what & QUIRE_ATTN_QUEUE_RUN) != 0) {
        quire_device_ahead_behind(device);
    }
    return QUIRE_OK;
}
