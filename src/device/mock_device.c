/* mock_device.c - see mock_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/mock_device.h"

#include "base/check.h"
#include "device/device_rows.h"
#include "device/mock_internal.h"

#include <stdio.h>

static void mock_info(const quire_device *device, quire_device_info *out)
{
    const quire_mock *mock = (const quire_mock *)device;
    quire_device_info inner;

    quire_device_info_get(mock->inner, &inner);
    (void)snprintf(out->name, sizeof(out->name), "mock");
    (void)snprintf(out->description, sizeof(out->description), "a mock over %.100s",
                   inner.description);
    out->isa = inner.isa;
    (void)snprintf(out->rounding, sizeof(out->rounding), "mock %.40s", inner.isa);
    out->is_software = true;
    out->memory = QUIRE_MEMORY_DEVICE;
}

static int mock_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                      quire_device_memory *out)
{
    const quire_mock *mock = (const quire_mock *)device;

    QUIRE_TRY(mock->inner->ops->alloc(mock->inner, kind, bytes, out));
    if (kind == QUIRE_DEVICE_PAGES) {
        out->host = NULL;
    } else {
        out->addr = NULL;
    }
    return QUIRE_OK;
}

static void mock_free(quire_device *device, quire_device_memory *memory)
{
    const quire_mock *mock = (const quire_mock *)device;

    mock->inner->ops->free(mock->inner, memory);
}

static unsigned char *bytes_of(const quire_device_memory *memory)
{
    return memory->host != NULL ? memory->host : memory->addr;
}

static int copies_queue(quire_mock *mock, quire_mock_line *line, const quire_device_piece *pieces,
                        uint32_t n_pieces)
{
    QUIRE_TRY(quire_mock_reserve(mock, line, n_pieces));
    for (uint32_t i = 0; i < n_pieces; i++) {
        const quire_device_piece *p = &pieces[i];

        (void)quire_mock_queue(mock, line,
                               &(quire_mock_work){ .kind = QUIRE_MOCK_COPY,
                                                   .to = bytes_of(p->to) + p->to_offset,
                                                   .from = bytes_of(p->from) + p->from_offset,
                                                   .bytes = (size_t)p->bytes,
                                                   .after = mock->line.n_queued });
    }
    return QUIRE_OK;
}

static int mock_copy(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces)
{
    quire_mock *mock = (quire_mock *)device;

    return copies_queue(mock, &mock->line, pieces, n_pieces);
}

static int mock_copy_beside(quire_device *device, const quire_device_piece *pieces,
                            uint32_t n_pieces, quire_device_event *out)
{
    quire_mock *mock = (quire_mock *)device;

    QUIRE_TRY(copies_queue(mock, &mock->beside, pieces, n_pieces));
    *out = mock->beside.n_queued;
    return QUIRE_OK;
}

static int mock_join(quire_device *device, quire_device_event event)
{
    quire_mock *mock = (quire_mock *)device;

    return quire_mock_queue(mock, &mock->line,
                            &(quire_mock_work){ .kind = QUIRE_MOCK_JOIN, .after = event });
}

static int mock_wait_beside(quire_device *device, quire_device_event event)
{
    return quire_mock_pass_beside((quire_mock *)device, event);
}

static int mock_record(quire_device *device, quire_device_event *out)
{
    *out = ((const quire_mock *)device)->line.n_queued;
    return QUIRE_OK;
}

static int mock_wait(quire_device *device, quire_device_event event)
{
    return quire_mock_pass((quire_mock *)device, event);
}

static int mock_check(const quire_device *device, const quire_attn_layer *layer)
{
    return quire_device_check(((const quire_mock *)device)->inner, layer);
}

/* Queued work has the plan before: it is done first. Its failures are reported later. */
static int mock_plan(quire_device *device, const quire_attn_batch *batch)
{
    quire_mock *mock = (quire_mock *)device;
    const int failure = quire_mock_pass(mock, mock->line.n_queued);

    QUIRE_FAIL_IF(device->is_lost, QUIRE_LOST);
    mock->failure = failure;
    mock->batch = (quire_attn_batch){ 0 };
    QUIRE_TRY(quire_device_plan(mock->inner, batch));
    mock->batch = *batch;
    return QUIRE_OK;
}

static int area_reserve(quire_mock *mock, quire_mock_area *area, size_t n_floats)
{
    const quire_allocator *allocator = &mock->base.allocator;

    if (n_floats > area->n_floats) {
        allocator->free(allocator->ctx, area->floats);
        area->n_floats = 0;
        area->floats = allocator->alloc(allocator->ctx, n_floats * sizeof(float));
        QUIRE_FAIL_IF(area->floats == NULL, QUIRE_NOMEM);
        area->n_floats = n_floats;
    }
    return QUIRE_OK;
}

static int mock_enter(quire_device *device, const quire_attn_layer *layer, quire_attn_layer *own)
{
    quire_mock *mock = (quire_mock *)device;
    const quire_device_rows rows = quire_device_rows_of(layer, quire_device_n_rows(&mock->batch));
    quire_mock_area *area = &mock->areas[++mock->area % QUIRE_MOCK_AREAS];

    QUIRE_TRY(quire_mock_pass(mock, area->last));
    QUIRE_TRY(area_reserve(mock, area, rows.n_floats));
    quire_device_rows_take(&rows, layer, area->floats, own);
    return QUIRE_OK;
}

/* Without memory for the queue the work is left out, which the next wait reports. */
static void queue_step(quire_mock *mock, const quire_mock_work *work)
{
    if (quire_mock_queue(mock, &mock->line, work) < 0 && mock->failure == QUIRE_OK) {
        mock->failure = QUIRE_NOMEM;
    }
    mock->areas[mock->area % QUIRE_MOCK_AREAS].last = mock->line.n_queued;
}

static void mock_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                        uint32_t n_threads)
{
    (void)thread;
    (void)n_threads;
    queue_step((quire_mock *)device,
               &(quire_mock_work){ .kind = QUIRE_MOCK_APPEND, .layer = *own });
}

static void mock_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                      uint32_t thread, uint32_t n_threads)
{
    (void)thread;
    (void)n_threads;
    queue_step((quire_mock *)device,
               &(quire_mock_work){ .kind = QUIRE_MOCK_ATTN, .layer = *own, .call = call });
}

static int mock_leave(quire_device *device, const quire_attn_layer *layer,
                      const quire_attn_layer *own)
{
    quire_mock *mock = (quire_mock *)device;

    if (layer->out == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_mock_pass(mock, mock->line.n_queued));
    quire_device_rows_give(layer, &mock->batch, own);
    return QUIRE_OK;
}

static void mock_close(quire_device *device)
{
    quire_mock *mock = (quire_mock *)device;
    const quire_allocator allocator = device->allocator;

    if (!device->is_lost) {
        (void)quire_mock_pass(mock, mock->line.n_queued);
        (void)quire_mock_pass_beside(mock, mock->beside.n_queued);
    }
    for (uint32_t i = 0; i < QUIRE_MOCK_AREAS; i++) {
        allocator.free(allocator.ctx, mock->areas[i].floats);
    }
    allocator.free(allocator.ctx, mock->line.work);
    allocator.free(allocator.ctx, mock->beside.work);
    quire_device_close(mock->inner);
    allocator.free(allocator.ctx, mock);
}

static const quire_device_ops mock_ops = {
    .close = mock_close,
    .info = mock_info,
    .alloc = mock_alloc,
    .free = mock_free,
    .copy = mock_copy,
    .record = mock_record,
    .wait = mock_wait,
    .copy_beside = mock_copy_beside,
    .join = mock_join,
    .wait_beside = mock_wait_beside,
    .check = mock_check,
    .plan = mock_plan,
    .enter = mock_enter,
    .append = mock_append,
    .attn = mock_attn,
    .leave = mock_leave,
};

int quire_mock_device_open(quire_device **out, const quire_device_opts *opts,
                           const quire_mock_device_opts *faults, quire_error *err)
{
    quire_mock init = { .opts = *faults, .rng = { .state = faults->seed } };
    quire_device_opts inner = *opts;
    quire_mock *mock;

    *out = NULL;
    quire_device_init(&init.base, &mock_ops, opts);
    inner.memory_bytes_max = 0;
    QUIRE_TRY(quire_cpu_device_open(&init.inner, &inner, QUIRE_MEMORY_DEVICE, err));
    mock = init.base.allocator.alloc(init.base.allocator.ctx, sizeof(*mock));
    if (mock == NULL) {
        quire_device_close(init.inner);
        return quire_error_set(err, QUIRE_NOMEM, "device mock: no memory");
    }
    *mock = init;
    *out = &mock->base;
    return QUIRE_OK;
}

void quire_mock_device_set(quire_device *device, const quire_mock_device_opts *faults)
{
    ((quire_mock *)device)->opts = *faults;
}

void quire_mock_device_tick(quire_device *device)
{
    quire_mock *mock = (quire_mock *)device;

    mock->now++;
    quire_mock_do_due(mock);
}

uint64_t quire_mock_device_n_queued(const quire_device *device)
{
    const quire_mock *mock = (const quire_mock *)device;
    uint64_t n = mock->beside.n_queued - mock->beside.n_done;

    for (uint64_t i = mock->line.n_done; i < mock->line.n_queued; i++) {
        n += mock->line.work[i % mock->line.work_max].kind != QUIRE_MOCK_JOIN;
    }
    return n;
}
