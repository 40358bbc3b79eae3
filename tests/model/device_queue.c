/* device_queue.c - see device_queue.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "device_queue.h"

#include <string.h>

#include <ggml-alloc.h>

#ifdef QUIRE_HAS_GGML_IMPL
#include <ggml-backend-impl.h>
#endif

#define QUEUE_MAX 4096u

typedef enum work_kind {
    WORK_GRAPH,
    WORK_SET,
    WORK_GET,
    WORK_LAYER
} work_kind;

typedef struct work {
    work_kind kind;
    ggml_backend_t backend;
    struct ggml_cgraph *cgraph;
    struct ggml_tensor *tensor;
    const void *from;
    void *to;
    size_t bytes;
    quire_attn_layer layer;
    uint32_t number; /* of the layer's call */
    unsigned what;
} work;

static device_queue_mode mode;
static work queue[QUEUE_MAX];
static uint32_t n_queued, n_marked; /* an event holds a value of n_queued */
static uint32_t n_graphs;           /* of the queue */
static device_queue_counts counts;
static ggml_backend_buffer_t hidden;
static char event_object;
static uint32_t n_calls, fails_at;  /* fails_at: of them; 0 = none */
static quire_attn_device attention; /* the CPU's, of device_queue_attend() */

void device_throw(const char *text); /* device_throw.cpp */

/* A call of the device's. */
static void call(void)
{
    n_calls++;
    if (fails_at > 0 && n_calls >= fails_at) {
        n_queued = n_marked = n_graphs = 0;
        device_throw(DEVICE_QUEUE_THROWN);
    }
}

enum ggml_status __real_ggml_backend_graph_compute(ggml_backend_t backend,
                                                   struct ggml_cgraph *cgraph);
enum ggml_status __real_ggml_backend_graph_compute_async(ggml_backend_t backend,
                                                         struct ggml_cgraph *cgraph);
void __real_ggml_backend_tensor_set(struct ggml_tensor *tensor, const void *data, size_t offset,
                                    size_t size);
void __real_ggml_backend_tensor_get(const struct ggml_tensor *tensor, void *data, size_t offset,
                                    size_t size);
void __real_ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                          const void *data, size_t offset, size_t size);
void __real_ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor *tensor,
                                          void *data, size_t offset, size_t size);
void __real_ggml_backend_synchronize(ggml_backend_t backend);
bool __real_ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer);
ggml_backend_event_t __real_ggml_backend_event_new(ggml_backend_dev_t device);
void __real_ggml_backend_event_free(ggml_backend_event_t event);

enum ggml_status __wrap_ggml_backend_graph_compute(ggml_backend_t backend,
                                                   struct ggml_cgraph *cgraph);
enum ggml_status __wrap_ggml_backend_graph_compute_async(ggml_backend_t backend,
                                                         struct ggml_cgraph *cgraph);
void __wrap_ggml_backend_tensor_set(struct ggml_tensor *tensor, const void *data, size_t offset,
                                    size_t size);
void __wrap_ggml_backend_tensor_get(const struct ggml_tensor *tensor, void *data, size_t offset,
                                    size_t size);
void __wrap_ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                          const void *data, size_t offset, size_t size);
void __wrap_ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor *tensor,
                                          void *data, size_t offset, size_t size);
void __wrap_ggml_backend_synchronize(ggml_backend_t backend);
bool __wrap_ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer);
ggml_backend_buffer_type_t __real_ggml_backend_dev_host_buffer_type(ggml_backend_dev_t device);
ggml_backend_buffer_type_t __wrap_ggml_backend_dev_host_buffer_type(ggml_backend_dev_t device);
ggml_backend_event_t __wrap_ggml_backend_event_new(ggml_backend_dev_t device);
void __wrap_ggml_backend_event_free(ggml_backend_event_t event);
void __real_ggml_backend_event_record(ggml_backend_event_t event, ggml_backend_t backend);
void __real_ggml_backend_event_synchronize(ggml_backend_event_t event);
void __wrap_ggml_backend_event_record(ggml_backend_event_t event, ggml_backend_t backend);
void __wrap_ggml_backend_event_synchronize(ggml_backend_event_t event);
size_t __real_ggml_backend_reg_dev_count(ggml_backend_reg_t reg);
size_t __wrap_ggml_backend_reg_dev_count(ggml_backend_reg_t reg);
ggml_backend_t __real_ggml_backend_dev_init(ggml_backend_dev_t device, const char *params);
ggml_backend_t __wrap_ggml_backend_dev_init(ggml_backend_dev_t device, const char *params);
bool __real_ggml_gallocr_reserve_n(ggml_gallocr_t allocator, struct ggml_cgraph *graph,
                                   const int *nodes, const int *leafs);
bool __wrap_ggml_gallocr_reserve_n(ggml_gallocr_t allocator, struct ggml_cgraph *graph,
                                   const int *nodes, const int *leafs);
ggml_backend_buffer_t
__real_ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context *ctx,
                                                ggml_backend_buffer_type_t type);
ggml_backend_buffer_t
__wrap_ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context *ctx,
                                                ggml_backend_buffer_type_t type);

/* ---- the queue ---- */

static void hidden_flip(void)
{
    uint64_t *words = hidden != NULL ? ggml_backend_buffer_get_base(hidden) : NULL;
    const size_t n = hidden != NULL ? ggml_backend_buffer_get_size(hidden) / sizeof *words : 0;

    for (size_t i = 0; i < n; i++) {
        words[i] = ~words[i];
    }
}

static void work_do(const work *w)
{
    switch (w->kind) {
    case WORK_GRAPH:
        hidden_flip();
        assert_int_equal(__real_ggml_backend_graph_compute_async(w->backend, w->cgraph),
                         GGML_STATUS_SUCCESS);
        hidden_flip();
        n_graphs--;
        break;
    case WORK_SET:
        __real_ggml_backend_tensor_set(w->tensor, w->from, 0, w->bytes);
        break;
    case WORK_GET:
        __real_ggml_backend_tensor_get(w->tensor, w->to, 0, w->bytes);
        break;
    case WORK_LAYER:
        if ((w->what & QUIRE_ATTN_QUEUE_APPEND) != 0) {
            attention.append(attention.ctx, &w->layer, 0, 1);
        }
        if ((w->what & QUIRE_ATTN_QUEUE_RUN) != 0) {
            attention.run(attention.ctx, &w->layer, w->number, 0, 1);
        }
        break;
    }
}

/* Do the first n pieces of work. */
static void queue_run(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        work_do(&queue[i]);
    }
    memmove(queue, queue + n, (n_queued - n) * sizeof *queue);
    n_queued -= n;
    n_marked = n_marked > n ? n_marked - n : 0;
}

static void queue_add(const work *w)
{
    assert_true(n_queued < QUEUE_MAX);
    n_graphs += w->kind == WORK_GRAPH;
    queue[n_queued++] = *w;
}

static bool attention_queues(void *ctx)
{
    (void)ctx;
    return true;
}

static void attention_queue(void *ctx, const quire_attn_layer *layer, uint32_t number,
                            unsigned what)
{
    const work w = { .kind = WORK_LAYER, .layer = *layer, .number = number, .what = what };

    (void)ctx;
    counts.layers += (what & QUIRE_ATTN_QUEUE_RUN) != 0;
    if (mode == DEVICE_QUEUE_NONE) {
        work_do(&w);
    } else {
        queue_add(&w);
    }
}

void device_queue_attend(quire_runtime *runtime)
{
    quire_attn_device *device = quire_runtime_device(runtime);

    attention = *device;
    device->queues = attention_queues;
    device->queue = attention_queue;
}

void device_queue_fail(uint32_t n)
{
    n_calls = 0;
    fails_at = n;
}

uint32_t device_queue_calls(void)
{
    return n_calls;
}

void device_queue_set(device_queue_mode next)
{
    assert_int_equal(n_queued, 0);
    mode = next;
}

void device_queue_hide(ggml_backend_buffer_t buffer)
{
    hidden_flip();
    hidden = buffer;
    hidden_flip();
}

device_queue_counts device_queue_counts_take(void)
{
    const device_queue_counts taken = counts;

    counts = (device_queue_counts){ 0 };
    return taken;
}

uint32_t device_queue_length(void)
{
    return n_queued;
}

/* ---- ggml's calls ---- */

enum ggml_status __wrap_ggml_backend_graph_compute(ggml_backend_t backend,
                                                   struct ggml_cgraph *cgraph)
{
    counts.hosts++;
    counts.beside += n_graphs > 0;
    return __real_ggml_backend_graph_compute(backend, cgraph);
}

enum ggml_status __wrap_ggml_backend_graph_compute_async(ggml_backend_t backend,
                                                         struct ggml_cgraph *cgraph)
{
    call();
    counts.graphs++;
    if (mode == DEVICE_QUEUE_NONE) {
        return __real_ggml_backend_graph_compute_async(backend, cgraph);
    }
    queue_add(&(work){ .kind = WORK_GRAPH, .backend = backend, .cgraph = cgraph });
    return GGML_STATUS_SUCCESS;
}

void __wrap_ggml_backend_tensor_set(struct ggml_tensor *tensor, const void *data, size_t offset,
                                    size_t size)
{
    call();
    counts.blocking++;
    __real_ggml_backend_tensor_set(tensor, data, offset, size);
}

void __wrap_ggml_backend_tensor_get(const struct ggml_tensor *tensor, void *data, size_t offset,
                                    size_t size)
{
    counts.blocking++;
    __real_ggml_backend_tensor_get(tensor, data, offset, size);
}

void __wrap_ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                          const void *data, size_t offset, size_t size)
{
    const work w = { .kind = WORK_SET, .tensor = tensor, .from = data, .bytes = size };

    call();
    counts.copies++;
    assert_int_equal(offset, 0);
    if (mode == DEVICE_QUEUE_NONE) {
        __real_ggml_backend_tensor_set_async(backend, tensor, data, offset, size);
    } else if (mode == DEVICE_QUEUE_TWO) {
        work_do(&w);
    } else {
        queue_add(&w);
    }
}

void __wrap_ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor *tensor,
                                          void *data, size_t offset, size_t size)
{
    work w = { .kind = WORK_GET, .to = data, .bytes = size };

    call();
    counts.copies++;
    assert_int_equal(offset, 0);
    if (mode == DEVICE_QUEUE_NONE) {
        __real_ggml_backend_tensor_get_async(backend, tensor, data, offset, size);
        return;
    }
    memcpy(&w.tensor, &tensor, sizeof tensor);
    queue_add(&w);
}

void __wrap_ggml_backend_synchronize(ggml_backend_t backend)
{
    call();
    counts.waits++;
    queue_run(n_queued);
    __real_ggml_backend_synchronize(backend);
}

bool __wrap_ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer)
{
    return buffer != hidden && __real_ggml_backend_buffer_is_host(buffer);
}

#ifdef QUIRE_HAS_GGML_IMPL

bool device_queue_has_two_memories(void)
{
    return true;
}

/* The CPU's type under another address: ggml takes it for another one. */
ggml_backend_buffer_type_t __wrap_ggml_backend_dev_host_buffer_type(ggml_backend_dev_t device)
{
    static struct ggml_backend_buffer_type type;

    if (mode == DEVICE_QUEUE_NONE) {
        return __real_ggml_backend_dev_host_buffer_type(device);
    }
    type = *ggml_backend_dev_buffer_type(device);
    type.device = device;
    return &type;
}

#else

bool device_queue_has_two_memories(void)
{
    return false;
}

ggml_backend_buffer_type_t __wrap_ggml_backend_dev_host_buffer_type(ggml_backend_dev_t device)
{
    return __real_ggml_backend_dev_host_buffer_type(device);
}

#endif

ggml_backend_event_t __wrap_ggml_backend_event_new(ggml_backend_dev_t device)
{
    return mode >= DEVICE_QUEUE_EVENTS ? (ggml_backend_event_t)(void *)&event_object
                                       : __real_ggml_backend_event_new(device);
}

void __wrap_ggml_backend_event_free(ggml_backend_event_t event)
{
    if ((void *)event != &event_object) {
        __real_ggml_backend_event_free(event);
    }
}

void __wrap_ggml_backend_event_record(ggml_backend_event_t event, ggml_backend_t backend)
{
    call();
    if ((void *)event == &event_object) {
        n_marked = n_queued;
    } else {
        __real_ggml_backend_event_record(event, backend);
    }
}

void __wrap_ggml_backend_event_synchronize(ggml_backend_event_t event)
{
    call();
    counts.waits++;
    counts.events++;
    if ((void *)event == &event_object) {
        queue_run(n_marked);
    } else {
        __real_ggml_backend_event_synchronize(event);
    }
}

/* ---- loading ---- */

size_t __wrap_ggml_backend_reg_dev_count(ggml_backend_reg_t reg)
{
    call();
    return __real_ggml_backend_reg_dev_count(reg);
}

ggml_backend_t __wrap_ggml_backend_dev_init(ggml_backend_dev_t device, const char *params)
{
    call();
    return __real_ggml_backend_dev_init(device, params);
}

/* The allocator of a graph that host and device compute. */
bool __wrap_ggml_gallocr_reserve_n(ggml_gallocr_t allocator, struct ggml_cgraph *graph,
                                   const int *nodes, const int *leafs)
{
    call();
    return __real_ggml_gallocr_reserve_n(allocator, graph, nodes, leafs);
}

ggml_backend_buffer_t
__wrap_ggml_backend_alloc_ctx_tensors_from_buft(struct ggml_context *ctx,
                                                ggml_backend_buffer_type_t type)
{
    call();
    return __real_ggml_backend_alloc_ctx_tensors_from_buft(ctx, type);
}
