/* layers_cuda.c - see layers_cuda.h.
 *
 * SPDX-License-Identifier: MIT */
#include "layers_cuda.h"

#include "device/cuda/cuda_driver.h"
#include "device/fake_cuda/fake_cuda.h"
#include "model/backend.h"
#include "model/backend_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>

/* As ggml's own header has it, where that is there. */
#ifdef QUIRE_HAS_GGML_IMPL
#include <ggml-backend-impl.h>
#else
struct ggml_backend_event {
    struct ggml_backend_device *device;
    void *context;
};
#endif

#define BACKENDS_MAX 16u
#define WORKS_MAX    8192u

/* ---- the driver's functions, of the emulated card ---- */

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(quire_cuda_ctx *out, quire_cuda_ordinal i);
int cuDevicePrimaryCtxRelease_v2(quire_cuda_ordinal i);
int cuCtxSetCurrent(quire_cuda_ctx ctx);
int cuStreamCreate(quire_cuda_stream *out, unsigned flags);
int cuStreamDestroy_v2(quire_cuda_stream stream);
int cuStreamSynchronize(quire_cuda_stream stream);
int cuStreamWaitEvent(quire_cuda_stream stream, quire_cuda_event event, unsigned flags);
int cuEventCreate(quire_cuda_event *out, unsigned flags);
int cuEventDestroy_v2(quire_cuda_event event);
int cuEventRecord(quire_cuda_event event, quire_cuda_stream stream);
int cuEventSynchronize(quire_cuda_event event);
int cuLaunchHostFunc(quire_cuda_stream stream, void (*function)(void *ctx), void *ctx);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes);

/* ---- ggml's functions ---- */

#define WRAPPED(result, name, parameters)                                                          \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;

WRAPPED(ggml_backend_t, ggml_backend_dev_init, (ggml_backend_dev_t device, const char *params))
WRAPPED(const char *, ggml_backend_reg_name, (ggml_backend_reg_t reg))
WRAPPED(void, ggml_backend_dev_memory,
        (ggml_backend_dev_t device, size_t *free_bytes, size_t *total_bytes))
WRAPPED(void, ggml_backend_free, (ggml_backend_t backend))
WRAPPED(void, ggml_backend_buffer_free, (ggml_backend_buffer_t buffer))
WRAPPED(ggml_backend_buffer_type_t, ggml_backend_dev_buffer_type, (ggml_backend_dev_t device))
WRAPPED(enum ggml_status, ggml_backend_graph_compute_async,
        (ggml_backend_t backend, struct ggml_cgraph *cgraph))
WRAPPED(void, ggml_backend_tensor_set_async,
        (ggml_backend_t backend, struct ggml_tensor *tensor, const void *data, size_t offset,
         size_t size))
WRAPPED(void, ggml_backend_tensor_get_async,
        (ggml_backend_t backend, const struct ggml_tensor *tensor, void *data, size_t offset,
         size_t size))
WRAPPED(void, ggml_backend_synchronize, (ggml_backend_t backend))
WRAPPED(ggml_backend_event_t, ggml_backend_event_new, (ggml_backend_dev_t device))
WRAPPED(void, ggml_backend_event_free, (ggml_backend_event_t event))
WRAPPED(void, ggml_backend_event_record, (ggml_backend_event_t event, ggml_backend_t backend))
WRAPPED(void, ggml_backend_event_synchronize, (ggml_backend_event_t event))
WRAPPED(void, ggml_backend_event_wait, (ggml_backend_t backend, ggml_backend_event_t event))
WRAPPED(ggml_backend_buffer_type_t, ggml_backend_dev_host_buffer_type, (ggml_backend_dev_t device))
WRAPPED(bool, quire_backend_device_is_beside,
        (ggml_backend_dev_t device, const quire_device_info *info))

/* ---- backends and their streams ---- */

typedef struct cuda_backend {
    ggml_backend_t ggml; /* NULL: a free place */
    quire_cuda_stream stream;
    bool is_of_card; /* Quire makes events for it; the host's own backend has none */
} cuda_backend;

typedef enum work_kind {
    WORK_GRAPH,
    WORK_SET,
    WORK_GET
} work_kind;

/* A piece of work that a stream does once. */
typedef struct work {
    work_kind kind;
    ggml_backend_t backend;
    struct ggml_cgraph *cgraph;
    struct ggml_tensor *tensor;
    const void *from;
    void *to;
    size_t bytes;
} work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static quire_cuda_ctx context; /* NULL: calls go to ggml as they are */
static cuda_backend backends[BACKENDS_MAX];
static work works[WORKS_MAX]; /* a ring: far more than a step has */
static uint32_t n_works;
static bool offers_events = true, ignores_waits, is_named;
static _Thread_local cuda_backend *opened; /* last */

/* What ggml does where a call of NVIDIA's library fails. */
static void check(int result)
{
    if (result != QUIRE_CUDA_SUCCESS) {
        quire_backend_log_note("CUDA error: an error of a test");
        ggml_abort(__FILE__, __LINE__, "CUDA error");
    }
}

static void use(void)
{
    check(cuCtxSetCurrent(context));
}

/* Whether the driver still answers. */
static bool answers(void)
{
    size_t free_bytes, bytes;

    (void)cuCtxSetCurrent(context);
    return cuMemGetInfo_v2(&free_bytes, &bytes) == QUIRE_CUDA_SUCCESS;
}

/* In a destructor nothing catches what check() has thrown there. */
static void destructor_check(void)
{
    if (context != NULL && !answers()) {
        abort();
    }
}

void layers_cuda_begin(void)
{
    if (cuInit(0) != QUIRE_CUDA_SUCCESS ||
        cuDevicePrimaryCtxRetain(&context, 0) != QUIRE_CUDA_SUCCESS) {
        abort();
    }
}

void layers_cuda_end(void)
{
    context = NULL;
    (void)cuDevicePrimaryCtxRelease_v2(0);
}

void layers_cuda_offer_events(bool offers)
{
    offers_events = offers;
}

void layers_cuda_ignore_waits(bool ignores)
{
    ignores_waits = ignores;
}

void layers_cuda_name(bool names)
{
    is_named = names;
}

const char *__wrap_ggml_backend_reg_name(ggml_backend_reg_t reg)
{
    return is_named && reg == ggml_backend_dev_backend_reg(quire_backend_cpu())
               ? "CUDA"
               : __real_ggml_backend_reg_name(reg);
}

static void nothing(void *ctx)
{
    (void)ctx;
}

void layers_cuda_lose(void)
{
    quire_cuda_stream stream;

    use();
    check(cuStreamCreate(&stream, QUIRE_CUDA_STREAM_NON_BLOCKING));
    fake_cuda_fault(0, QUIRE_CUDA_ILLEGAL_ADDRESS);
    check(cuLaunchHostFunc(stream, nothing, NULL));
    (void)cuStreamSynchronize(stream);
    (void)cuStreamDestroy_v2(stream);
}

static cuda_backend *place_of(ggml_backend_t ggml)
{
    cuda_backend *found = NULL;

    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < BACKENDS_MAX && found == NULL; i++) {
        found = backends[i].ggml == ggml ? &backends[i] : NULL;
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

static quire_cuda_stream stream_of(ggml_backend_t ggml)
{
    const cuda_backend *backend = place_of(ggml);

    if (backend == NULL) {
        abort();
    }
    return backend->stream;
}

/* The host's backend has a stream, too, which stays empty. */
ggml_backend_t __wrap_ggml_backend_dev_init(ggml_backend_dev_t device, const char *params)
{
    const ggml_backend_t ggml = __real_ggml_backend_dev_init(device, params);
    quire_cuda_stream stream;
    cuda_backend *backend;

    if (context == NULL || ggml == NULL) {
        return ggml;
    }
    use();
    check(cuStreamCreate(&stream, QUIRE_CUDA_STREAM_NON_BLOCKING));
    backend = place_of(NULL);
    if (backend == NULL) {
        abort();
    }
    (void)pthread_mutex_lock(&lock);
    *backend = (cuda_backend){ .ggml = ggml, .stream = stream };
    opened = backend;
    (void)pthread_mutex_unlock(&lock);
    return ggml;
}

void __wrap_ggml_backend_free(ggml_backend_t ggml)
{
    cuda_backend *backend = ggml != NULL ? place_of(ggml) : NULL;

    if (backend != NULL) {
        if (backend->is_of_card) {
            destructor_check();
        }
        (void)cuCtxSetCurrent(context);
        (void)cuStreamDestroy_v2(backend->stream);
        (void)pthread_mutex_lock(&lock);
        *backend = (cuda_backend){ .ggml = NULL };
        (void)pthread_mutex_unlock(&lock);
    }
    __real_ggml_backend_free(ggml);
}

/* ---- work ---- */

static void work_do(void *ctx)
{
    const work *w = ctx;

    switch (w->kind) {
    case WORK_GRAPH:
        if (__real_ggml_backend_graph_compute_async(w->backend, w->cgraph) != GGML_STATUS_SUCCESS) {
            abort();
        }
        break;
    case WORK_SET:
        memcpy(w->tensor->data, w->from, w->bytes);
        break;
    case WORK_GET:
        memcpy(w->to, w->tensor->data, w->bytes);
        break;
    }
}

static void work_queue(const work *w)
{
    work *place;

    (void)pthread_mutex_lock(&lock);
    place = &works[n_works++ % WORKS_MAX];
    *place = *w;
    (void)pthread_mutex_unlock(&lock);
    use();
    check(cuLaunchHostFunc(stream_of(w->backend), work_do, place));
}

enum ggml_status __wrap_ggml_backend_graph_compute_async(ggml_backend_t backend,
                                                         struct ggml_cgraph *cgraph)
{
    if (context == NULL) {
        return __real_ggml_backend_graph_compute_async(backend, cgraph);
    }
    work_queue(&(work){ .kind = WORK_GRAPH, .backend = backend, .cgraph = cgraph });
    return GGML_STATUS_SUCCESS;
}

void __wrap_ggml_backend_tensor_set_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                          const void *data, size_t offset, size_t size)
{
    if (context == NULL || offset != 0) {
        __real_ggml_backend_tensor_set_async(backend, tensor, data, offset, size);
        return;
    }
    work_queue(&(work){
        .kind = WORK_SET, .backend = backend, .tensor = tensor, .from = data, .bytes = size });
}

void __wrap_ggml_backend_tensor_get_async(ggml_backend_t backend, const struct ggml_tensor *tensor,
                                          void *data, size_t offset, size_t size)
{
    work w = { .kind = WORK_GET, .backend = backend, .to = data, .bytes = size };

    if (context == NULL || offset != 0) {
        __real_ggml_backend_tensor_get_async(backend, tensor, data, offset, size);
        return;
    }
    memcpy(&w.tensor, &tensor, sizeof tensor);
    work_queue(&w);
}

void __wrap_ggml_backend_synchronize(ggml_backend_t backend)
{
    if (context != NULL) {
        use();
        check(cuStreamSynchronize(stream_of(backend)));
    }
    __real_ggml_backend_synchronize(backend);
}

/* ---- events ---- */

ggml_backend_event_t __wrap_ggml_backend_event_new(ggml_backend_dev_t device)
{
    ggml_backend_event_t event;
    quire_cuda_event of_driver;

    if (opened != NULL) {
        opened->is_of_card = true;
        opened = NULL;
    }
    if (context == NULL || !offers_events) {
        return __real_ggml_backend_event_new(device);
    }
    use();
    check(cuEventCreate(&of_driver, QUIRE_CUDA_EVENT_DISABLE_TIMING));
    event = malloc(sizeof *event);
    if (event == NULL) {
        abort();
    }
    *event = (struct ggml_backend_event){ .device = device, .context = of_driver };
    return event;
}

void __wrap_ggml_backend_event_free(ggml_backend_event_t event)
{
    if (context == NULL || event == NULL) {
        __real_ggml_backend_event_free(event);
        return;
    }
    (void)cuEventDestroy_v2(event->context);
    free(event);
}

void __wrap_ggml_backend_event_record(ggml_backend_event_t event, ggml_backend_t backend)
{
    if (context == NULL) {
        __real_ggml_backend_event_record(event, backend);
        return;
    }
    use();
    check(cuEventRecord(event->context, stream_of(backend)));
}

void __wrap_ggml_backend_event_synchronize(ggml_backend_event_t event)
{
    if (context == NULL) {
        __real_ggml_backend_event_synchronize(event);
        return;
    }
    use();
    check(cuEventSynchronize(event->context));
}

void __wrap_ggml_backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event)
{
    if (context == NULL) {
        __real_ggml_backend_event_wait(backend, event);
    } else if (!ignores_waits) {
        use();
        check(cuStreamWaitEvent(stream_of(backend), event->context, 0));
    }
}

/* ---- memory and the card ---- */

#ifdef QUIRE_HAS_GGML_IMPL
static struct ggml_backend_buffer_type of_card; /* and the host's, which is the same device */
#endif

/* A card's memory is its own, as ggml's real backend says of it. The CPU's is no device's. */
ggml_backend_buffer_type_t __wrap_ggml_backend_dev_buffer_type(ggml_backend_dev_t device)
{
    const ggml_backend_buffer_type_t type = __real_ggml_backend_dev_buffer_type(device);

#ifdef QUIRE_HAS_GGML_IMPL
    if (is_named && device == quire_backend_cpu()) {
        of_card = *type;
        of_card.device = device;
        return &of_card;
    }
#endif
    return type;
}

void __wrap_ggml_backend_buffer_free(ggml_backend_buffer_t buffer)
{
#ifdef QUIRE_HAS_GGML_IMPL
    if (buffer != NULL && ggml_backend_buffer_get_type(buffer) == &of_card) {
        destructor_check();
    }
#endif
    __real_ggml_backend_buffer_free(buffer);
}

/* As the real one: no bytes where the driver refuses to name them. */
void __wrap_ggml_backend_dev_memory(ggml_backend_dev_t device, size_t *free_bytes,
                                    size_t *total_bytes)
{
    __real_ggml_backend_dev_memory(device, free_bytes, total_bytes);
    if (context != NULL && !answers()) {
        *free_bytes = *total_bytes = 0;
    }
}

#ifdef QUIRE_HAS_GGML_IMPL
static struct ggml_backend_device first_card;
static uint64_t pinned_bytes;

static ggml_backend_buffer_t pin(ggml_backend_buffer_type_t type, size_t bytes)
{
    pinned_bytes += bytes;
    return of_card.iface.alloc_buffer(type, bytes);
}
#endif

uint64_t layers_cuda_pinned(void)
{
#ifdef QUIRE_HAS_GGML_IMPL
    return pinned_bytes;
#else
    return UINT64_MAX;
#endif
}

/* Pinned memory of the host is another memory than the device's. The real backend says of it that
 * it is the first card's, and the device may be another card. */
ggml_backend_buffer_type_t __wrap_ggml_backend_dev_host_buffer_type(ggml_backend_dev_t device)
{
#ifdef QUIRE_HAS_GGML_IMPL
    static struct ggml_backend_buffer_type type;

    if (context != NULL) {
        first_card = *device;
        type = *ggml_backend_dev_buffer_type(device);
        type.iface.alloc_buffer = is_named ? pin : type.iface.alloc_buffer;
        type.device = is_named ? &first_card : device;
        return &type;
    }
#endif
    return __real_ggml_backend_dev_host_buffer_type(device);
}

bool __wrap_quire_backend_device_is_beside(ggml_backend_dev_t device, const quire_device_info *info)
{
    return context != NULL ? device == quire_backend_cpu() && info->card == 0
                           : __real_quire_backend_device_is_beside(device, info);
}
