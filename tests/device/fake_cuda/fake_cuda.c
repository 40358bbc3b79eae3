/* fake_cuda.c - the functions of libcuda.so.1 that src/device/cuda calls. See fake_cuda.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/fake_cuda/fake_cuda.h"

#include "device/cuda/cuda_kernels.h"
#include "device/fake_cuda/fake_cuda_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

fake_cuda_counts fake_counts;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local quire_cuda_ctx ctx_now;
static struct quire_cuda_ctx_object contexts[FAKE_CUDA_CARDS] = { { 0, 0, 0 },
                                                                  { 1, 0, 0 },
                                                                  { 2, 0, 0 } };
static bool is_initialized;
static const char *fail_call;
static uint32_t fail_in;
static int fail_result;
static bool hurries;

struct quire_cuda_module_object {
    const char *ptx;
};

/* ---- for tests ---- */

void fake_cuda_fail(const char *call, uint32_t n, int result)
{
    fail_call = call;
    fail_in = n;
    fail_result = result;
}

bool fake_cuda_has_failed(void)
{
    return fail_call == NULL;
}

void fake_cuda_repair(void)
{
    for (uint32_t i = 0; i < FAKE_CUDA_CARDS; i++) {
        contexts[i].fault = 0;
    }
    fake_cuda_fail(NULL, 0, 0);
    fake_cuda_fault(UINT32_MAX, 0);
    fake_cuda_limit(0);
    fake_cuda_hurry(false);
}

void fake_cuda_hurry(bool on)
{
    hurries = on;
}

fake_cuda_counts fake_cuda_seen(void)
{
    return fake_counts;
}

/* ---- calls ---- */

/* Take the lock. Returns what the call is to return at once; 0: it goes on. */
static int enter(const char *call, bool needs_context)
{
    (void)pthread_mutex_lock(&lock);
    if (fail_call != NULL && strcmp(fail_call, call) == 0 && fail_in-- == 0) {
        fail_call = NULL;
        return fail_result;
    }
    if (!is_initialized && strcmp(call, "cuInit") != 0) {
        return QUIRE_CUDA_NOT_INITIALIZED;
    }
    if (needs_context && (ctx_now == NULL || ctx_now->n_users == 0)) {
        fake_counts.n_errors++;
        return QUIRE_CUDA_INVALID_CONTEXT;
    }
    return needs_context ? ctx_now->fault : 0;
}

static int leave(int result)
{
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* A function of the library: its name, its parameters, whether it needs a context, the result. */
#define CALL(name, parameters, needs_context, expression)                                          \
    EXPORT int name parameters;                                                                    \
    int name parameters                                                                            \
    {                                                                                              \
        const int result = enter(#name, needs_context);                                            \
                                                                                                   \
        return leave(result != 0 ? result : (expression));                                         \
    }

static int initialize(unsigned flags)
{
    is_initialized = true;
    return flags == 0 ? QUIRE_CUDA_SUCCESS : FAKE_ERROR();
}
CALL(cuInit, (unsigned flags), false, initialize(flags))

EXPORT int cuGetErrorName(int result, const char **out);
int cuGetErrorName(int result, const char **out)
{
    *out = result == QUIRE_CUDA_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_A_TEST";
    return QUIRE_CUDA_SUCCESS;
}

static int version_get(int *out)
{
    *out = 12040;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuDriverGetVersion, (int *out), false, version_get(out))

static int count_get(int *out)
{
    *out = (int)FAKE_CUDA_CARDS;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuDeviceGetCount, (int *out), false, count_get(out))

static int device_get(quire_cuda_ordinal *out, int i)
{
    *out = i;
    return i >= 0 && i < (int)FAKE_CUDA_CARDS ? QUIRE_CUDA_SUCCESS : QUIRE_CUDA_INVALID_DEVICE;
}
CALL(cuDeviceGet, (quire_cuda_ordinal * out, int i), false, device_get(out, i))

static int name_get(char *out, int bytes, quire_cuda_ordinal i)
{
    (void)snprintf(out, (size_t)bytes, "emulated card %d", i);
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuDeviceGetName, (char *out, int bytes, quire_cuda_ordinal i), false, name_get(out, bytes, i))

static int attribute_get(int *out, int attribute, quire_cuda_ordinal i)
{
    *out = attribute == QUIRE_CUDA_CAPABILITY_MINOR ? 0 : i == 1 ? 6 : 9;
    return attribute == QUIRE_CUDA_CAPABILITY_MAJOR || attribute == QUIRE_CUDA_CAPABILITY_MINOR
               ? QUIRE_CUDA_SUCCESS
               : FAKE_ERROR();
}
CALL(cuDeviceGetAttribute, (int *out, int attribute, quire_cuda_ordinal i), false,
     attribute_get(out, attribute, i))

static int total_get(size_t *out)
{
    *out = FAKE_CUDA_MEMORY_BYTES;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuDeviceTotalMem_v2, (size_t * out, quire_cuda_ordinal i), false, ((void)i, total_get(out)))

static int ctx_retain(quire_cuda_ctx *out, quire_cuda_ordinal i)
{
    *out = &contexts[i];
    contexts[i].n_users++;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuDevicePrimaryCtxRetain, (quire_cuda_ctx * out, quire_cuda_ordinal i), false,
     ctx_retain(out, i))

static int ctx_release(quire_cuda_ordinal i)
{
    return contexts[i].n_users-- > 0 ? QUIRE_CUDA_SUCCESS : FAKE_ERROR();
}
CALL(cuDevicePrimaryCtxRelease_v2, (quire_cuda_ordinal i), false, ctx_release(i))

static int ctx_use(quire_cuda_ctx ctx)
{
    ctx_now = ctx;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuCtxSetCurrent, (quire_cuda_ctx ctx), false, ctx_use(ctx))

static int info_get(size_t *free_bytes, size_t *bytes)
{
    *bytes = FAKE_CUDA_MEMORY_BYTES;
    *free_bytes = FAKE_CUDA_MEMORY_BYTES - fake_memory_used(ctx_now);
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuMemGetInfo_v2, (size_t * free_bytes, size_t *bytes), true, info_get(free_bytes, bytes))

CALL(cuMemAlloc_v2, (quire_cuda_addr * out, size_t bytes), true,
     fake_memory_take(ctx_now, bytes, false, out))
CALL(cuMemFree_v2, (quire_cuda_addr addr), false, fake_memory_give(addr, false))

static int host_take(void **out, size_t bytes)
{
    quire_cuda_addr addr;
    const int result = fake_memory_take(ctx_now, bytes, true, &addr);

    *out = (void *)(uintptr_t)addr;
    return result;
}
CALL(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), true,
     ((void)flags, host_take(out, bytes)))
CALL(cuMemFreeHost, (void *host), false, fake_memory_give((quire_cuda_addr)(uintptr_t)host, true))

static int host_address(quire_cuda_addr *out, void *host)
{
    *out = (quire_cuda_addr)(uintptr_t)host;
    return fake_memory_has(ctx_now, *out, 1) ? QUIRE_CUDA_SUCCESS : FAKE_ERROR();
}
CALL(cuMemHostGetDevicePointer_v2, (quire_cuda_addr * out, void *host, unsigned flags), true,
     ((void)flags, host_address(out, host)))

CALL(cuMemcpyAsync,
     (quire_cuda_addr to, quire_cuda_addr from, size_t bytes, quire_cuda_stream stream), true,
     fake_copy_queue(stream, to, from, bytes))

static int stream_make(quire_cuda_stream *out)
{
    quire_cuda_stream stream = calloc(1, sizeof(*stream));

    if (stream == NULL) {
        return QUIRE_CUDA_OUT_OF_MEMORY;
    }
    stream->ctx = ctx_now;
    fake_stream_begin(stream);
    fake_counts.n_pieces++;
    *out = stream;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuStreamCreate, (quire_cuda_stream * out, unsigned flags), true,
     ((void)flags, stream_make(out)))

static int stream_end(quire_cuda_stream stream)
{
    (void)fake_work_do(stream, NULL);
    fake_stream_end(stream);
    free(stream);
    fake_counts.n_pieces--;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuStreamDestroy_v2, (quire_cuda_stream stream), false, stream_end(stream))

/* Wait for the work in front of an event, or for all. */
static int host_wait(quire_cuda_stream stream, quire_cuda_event until)
{
    fake_counts.n_waits +=
        stream->first != NULL && (until == NULL || until->n_done < until->n_recorded);
    return fake_work_do(stream, until);
}

CALL(cuStreamSynchronize, (quire_cuda_stream stream), true, host_wait(stream, NULL))

CALL(cuStreamWaitEvent, (quire_cuda_stream stream, quire_cuda_event event, unsigned flags), true,
     event->ctx == stream->ctx && stream->ctx == ctx_now && flags == 0
         ? fake_wait_queue(stream, event)
         : FAKE_ERROR())

static int event_make(quire_cuda_event *out)
{
    quire_cuda_event event = calloc(1, sizeof(*event));

    if (event == NULL) {
        return QUIRE_CUDA_OUT_OF_MEMORY;
    }
    event->ctx = ctx_now;
    fake_counts.n_pieces++;
    *out = event;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuEventCreate, (quire_cuda_event * out, unsigned flags), true, ((void)flags, event_make(out)))

/* A card does an event's work even when the event has ended. */
static int event_end(quire_cuda_event event)
{
    if (event->stream != NULL && event->n_done < event->n_recorded) {
        (void)fake_work_do(event->stream, event);
    }
    free(event);
    fake_counts.n_pieces--;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuEventDestroy_v2, (quire_cuda_event event), false, event_end(event))

CALL(cuEventRecord, (quire_cuda_event event, quire_cuda_stream stream), true,
     event->ctx == stream->ctx && stream->ctx == ctx_now ? fake_event_queue(stream, event)
                                                         : FAKE_ERROR())
CALL(cuEventSynchronize, (quire_cuda_event event), true,
     event->stream != NULL ? host_wait(event->stream, event) : QUIRE_CUDA_SUCCESS)

CALL(cuLaunchHostFunc, (quire_cuda_stream stream, void (*function)(void *ctx), void *ctx), true,
     stream->ctx == ctx_now ? fake_host_queue(stream, function, ctx) : FAKE_ERROR())

static int module_load(quire_cuda_module *out, const char *ptx)
{
    quire_cuda_module module;

    if (strstr(ptx, ".version") == NULL || strstr(ptx, ".address_size 64") == NULL) {
        return QUIRE_CUDA_INVALID_IMAGE;
    }
    module = calloc(1, sizeof(*module));
    if (module == NULL) {
        return QUIRE_CUDA_OUT_OF_MEMORY;
    }
    module->ptx = ptx;
    fake_counts.n_pieces++;
    *out = module;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuModuleLoadData, (quire_cuda_module * out, const void *image), true, module_load(out, image))

static int module_end(quire_cuda_module module)
{
    free(module);
    fake_counts.n_pieces--;
    return QUIRE_CUDA_SUCCESS;
}
CALL(cuModuleUnload, (quire_cuda_module module), false, module_end(module))

static int function_get(quire_cuda_function *out, quire_cuda_module module, const char *name)
{
    char entry[64];

    (void)snprintf(entry, sizeof(entry), ".entry %s(", name);
    *out = strstr(module->ptx, entry) != NULL ? fake_kernel_find(name) : NULL;
    return *out != NULL ? QUIRE_CUDA_SUCCESS : QUIRE_CUDA_NOT_FOUND;
}
CALL(cuModuleGetFunction, (quire_cuda_function * out, quire_cuda_module module, const char *name),
     true, function_get(out, module, name))

static int launch(quire_cuda_function function, const unsigned groups[3], const unsigned threads[3],
                  unsigned shared_bytes, quire_cuda_stream stream, void **arguments)
{
    int result;

    if (threads[0] != QUIRE_CUDA_THREADS || threads[1] != 1 || threads[2] != 1 ||
        stream->ctx != ctx_now) {
        return FAKE_ERROR();
    }
    result = fake_kernel_queue(stream, function, groups, shared_bytes, arguments[0], arguments[1]);
    return result == QUIRE_CUDA_SUCCESS && hurries && !stream->has_host ? fake_work_do(stream, NULL)
                                                                        : result;
}
CALL(cuLaunchKernel,
     (quire_cuda_function function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
      unsigned threads_y, unsigned threads_z, unsigned shared_bytes, quire_cuda_stream stream,
      void **arguments, void **extra),
     true,
     ((void)extra, launch(function, (const unsigned[]){ x, y, z },
                          (const unsigned[]){ threads_x, threads_y, threads_z }, shared_bytes,
                          stream, arguments)))
