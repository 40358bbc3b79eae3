/* cpu_device.c - the host as a device: its memory, memcpy, and the kernels of src/attn.
 *
 * Every call has done its work when it returns, so an event is a number that nobody waits for.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/device_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef struct cpu_piece {
    struct cpu_piece *next; /* of those that the device gave */
    struct cpu_piece *previous;
} cpu_piece;

typedef struct cpu_device {
    quire_device base;
    quire_attn_workspace *workspace;
    cpu_piece *pieces;
} cpu_device;

/* In front of a piece's bytes. */
#define PIECE_BYTES 64u
#define HUGE_BYTES  ((uintptr_t)2 << 20) /* one huge page of x86-64 and arm64 */

static void cpu_info(const quire_device *device, quire_device_info *out)
{
    const cpu_device *d = (const cpu_device *)device;

    (void)snprintf(out->name, sizeof(out->name), "cpu");
    (void)snprintf(out->description, sizeof(out->description), "this CPU, kernels %s",
                   quire_attn_workspace_isa(d->workspace));
    out->isa = quire_attn_workspace_isa(d->workspace);
    (void)snprintf(out->rounding, sizeof(out->rounding), "%s", out->isa);
    out->is_software = true;
    out->memory = QUIRE_MEMORY_HOST;
}

/* As of a cache's own extents. Failure is harmless: without huge pages all works, only slower. */
static void huge_pages_advise(void *at, uint64_t bytes)
{
    const uintptr_t begin = ((uintptr_t)at + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    const uintptr_t end = ((uintptr_t)at + (uintptr_t)bytes) / HUGE_BYTES * HUGE_BYTES;

    if (begin < end) {
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
}

static int cpu_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                     quire_device_memory *out)
{
    cpu_device *d = (cpu_device *)device;
    cpu_piece *piece;

    QUIRE_FAIL_IF(bytes > SIZE_MAX - PIECE_BYTES, QUIRE_NOMEM);
    piece = device->allocator.alloc(device->allocator.ctx, PIECE_BYTES + (size_t)bytes);
    QUIRE_FAIL_IF(piece == NULL, QUIRE_NOMEM);
    *piece = (cpu_piece){ .next = d->pieces };
    if (d->pieces != NULL) {
        d->pieces->previous = piece;
    }
    d->pieces = piece;
    out->ctx = piece;
    out->addr = out->host = (unsigned char *)piece + PIECE_BYTES;
    if (kind == QUIRE_DEVICE_PAGES) {
        huge_pages_advise(out->host, bytes);
    }
    return QUIRE_OK;
}

static void cpu_free(quire_device *device, quire_device_memory *memory)
{
    cpu_device *d = (cpu_device *)device;
    cpu_piece *piece = memory->ctx;

    if (piece->previous != NULL) {
        piece->previous->next = piece->next;
    } else {
        d->pieces = piece->next;
    }
    if (piece->next != NULL) {
        piece->next->previous = piece->previous;
    }
    device->allocator.free(device->allocator.ctx, piece);
}

static int cpu_copy(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces)
{
    (void)device;
    for (uint32_t i = 0; i < n_pieces; i++) {
        memcpy(pieces[i].to->host + pieces[i].to_offset,
               pieces[i].from->host + pieces[i].from_offset, (size_t)pieces[i].bytes);
    }
    return QUIRE_OK;
}

static int cpu_record(quire_device *device, quire_device_event *out)
{
    *out = device->last_event + 1;
    return QUIRE_OK;
}

static int cpu_wait(quire_device *device, quire_device_event event)
{
    (void)device;
    (void)event;
    return QUIRE_OK;
}

static int cpu_check(const quire_device *device, const quire_attn_layer *layer)
{
    return quire_attn_layer_check(((const cpu_device *)device)->workspace, layer);
}

static int cpu_plan(quire_device *device, const quire_attn_batch *batch)
{
    return quire_attn_begin(((cpu_device *)device)->workspace, batch);
}

static void cpu_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                       uint32_t n_threads)
{
    quire_attn_append(((cpu_device *)device)->workspace, own, thread, n_threads);
}

static void cpu_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                     uint32_t thread, uint32_t n_threads)
{
    quire_attn_run(((cpu_device *)device)->workspace, own, call, thread, n_threads);
}

static void cpu_close(quire_device *device)
{
    cpu_device *d = (cpu_device *)device;
    const quire_allocator allocator = device->allocator;

    while (d->pieces != NULL) {
        cpu_piece *piece = d->pieces;

        d->pieces = piece->next;
        allocator.free(allocator.ctx, piece);
    }
    quire_attn_workspace_destroy(d->workspace);
    allocator.free(allocator.ctx, d);
}

static const quire_device_ops cpu_ops = {
    .is_in_place = true,
    .close = cpu_close,
    .info = cpu_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .record = cpu_record,
    .wait = cpu_wait,
    .check = cpu_check,
    .plan = cpu_plan,
    .append = cpu_append,
    .attn = cpu_attn,
};

int quire_cpu_device_open(quire_device **out, const quire_device_opts *opts, quire_memory memory,
                          quire_error *err)
{
    quire_attn_workspace_opts attn = opts->attn;
    cpu_device init = { .pieces = NULL };
    cpu_device *d;
    int rc;

    *out = NULL;
    quire_device_init(&init.base, &cpu_ops, opts);
    attn.memory = memory;
    rc = quire_attn_workspace_create(&init.workspace, &attn);
    if (rc < 0) {
        return quire_error_set(err, rc, "device cpu: attention cannot be set up: %s",
                               quire_status_text(rc));
    }
    d = init.base.allocator.alloc(init.base.allocator.ctx, sizeof(*d));
    if (d == NULL) {
        quire_attn_workspace_destroy(init.workspace);
        return quire_error_set(err, QUIRE_NOMEM, "device cpu: no memory");
    }
    *d = init;
    *out = &d->base;
    return QUIRE_OK;
}
