/* cuda_driver.h - the part of NVIDIA's driver API that devices use: types, numbers and the names of
 * functions, as libcuda.so.1 has them. The library comes with the driver; NVIDIA's toolkit is
 * needed neither here nor at run time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_DRIVER_H
#define QUIRE_DEVICE_CUDA_DRIVER_H

#include <stddef.h>

#define QUIRE_CUDA_LIBRARY "libcuda.so.1"

typedef int quire_cuda_result;
typedef int quire_cuda_ordinal; /* a device */
typedef unsigned long long quire_cuda_addr;
typedef struct quire_cuda_ctx_object *quire_cuda_ctx;
typedef struct quire_cuda_stream_object *quire_cuda_stream;
typedef struct quire_cuda_event_object *quire_cuda_event;
typedef struct quire_cuda_module_object *quire_cuda_module;
typedef struct quire_cuda_function_object *quire_cuda_function;

/* Results. */
#define QUIRE_CUDA_SUCCESS                 0
#define QUIRE_CUDA_INVALID_VALUE           1
#define QUIRE_CUDA_OUT_OF_MEMORY           2
#define QUIRE_CUDA_NOT_INITIALIZED         3
#define QUIRE_CUDA_DEINITIALIZED           4
#define QUIRE_CUDA_NO_DEVICE               100
#define QUIRE_CUDA_INVALID_DEVICE          101
#define QUIRE_CUDA_INVALID_IMAGE           200
#define QUIRE_CUDA_INVALID_CONTEXT         201
#define QUIRE_CUDA_ECC_UNCORRECTABLE       214
#define QUIRE_CUDA_NVLINK_UNCORRECTABLE    220
#define QUIRE_CUDA_NOT_FOUND               500
#define QUIRE_CUDA_ILLEGAL_ADDRESS         700
#define QUIRE_CUDA_LAUNCH_OUT_OF_RESOURCES 701
#define QUIRE_CUDA_LAUNCH_TIMEOUT          702
#define QUIRE_CUDA_CONTEXT_IS_DESTROYED    709
#define QUIRE_CUDA_FIRST_FAULT             714 /* 714 to 719: faults of a kernel */
#define QUIRE_CUDA_LAUNCH_FAILED           719
#define QUIRE_CUDA_UNKNOWN                 999

/* Attributes of a device. */
#define QUIRE_CUDA_CAPABILITY_MAJOR 75
#define QUIRE_CUDA_CAPABILITY_MINOR 76

/* Flags. */
#define QUIRE_CUDA_HOST_ALLOC_PORTABLE  1u /* pinned for all contexts */
#define QUIRE_CUDA_HOST_ALLOC_MAPPED    2u /* with an address on the card */
#define QUIRE_CUDA_STREAM_NON_BLOCKING  1u /* does not wait for the default stream */
#define QUIRE_CUDA_EVENT_DISABLE_TIMING 2u

/* X(name here, name in the library, parameters) */
#define QUIRE_CUDA_CALLS(X)                                                                        \
    X(Init, cuInit, (unsigned))                                                                    \
    X(DriverGetVersion, cuDriverGetVersion, (int *))                                               \
    X(GetErrorName, cuGetErrorName, (quire_cuda_result, const char **))                            \
    X(DeviceGetCount, cuDeviceGetCount, (int *))                                                   \
    X(DeviceGet, cuDeviceGet, (quire_cuda_ordinal *, int))                                         \
    X(DeviceGetName, cuDeviceGetName, (char *, int, quire_cuda_ordinal))                           \
    X(DeviceGetAttribute, cuDeviceGetAttribute, (int *, int, quire_cuda_ordinal))                  \
    X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, quire_cuda_ordinal))                         \
    X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (quire_cuda_ctx *, quire_cuda_ordinal))    \
    X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (quire_cuda_ordinal))                 \
    X(CtxSetCurrent, cuCtxSetCurrent, (quire_cuda_ctx))                                            \
    X(MemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))                                           \
    X(MemAlloc, cuMemAlloc_v2, (quire_cuda_addr *, size_t))                                        \
    X(MemFree, cuMemFree_v2, (quire_cuda_addr))                                                    \
    X(MemHostAlloc, cuMemHostAlloc, (void **, size_t, unsigned))                                   \
    X(MemFreeHost, cuMemFreeHost, (void *))                                                        \
    X(MemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                       \
      (quire_cuda_addr *, void *, unsigned))                                                       \
    X(MemcpyAsync, cuMemcpyAsync, (quire_cuda_addr, quire_cuda_addr, size_t, quire_cuda_stream))   \
    X(StreamCreate, cuStreamCreate, (quire_cuda_stream *, unsigned))                               \
    X(StreamDestroy, cuStreamDestroy_v2, (quire_cuda_stream))                                      \
    X(StreamSynchronize, cuStreamSynchronize, (quire_cuda_stream))                                 \
    X(StreamWaitEvent, cuStreamWaitEvent, (quire_cuda_stream, quire_cuda_event, unsigned))         \
    X(EventCreate, cuEventCreate, (quire_cuda_event *, unsigned))                                  \
    X(EventDestroy, cuEventDestroy_v2, (quire_cuda_event))                                         \
    X(EventRecord, cuEventRecord, (quire_cuda_event, quire_cuda_stream))                           \
    X(EventSynchronize, cuEventSynchronize, (quire_cuda_event))                                    \
    X(ModuleLoadData, cuModuleLoadData, (quire_cuda_module *, const void *))                       \
    X(ModuleUnload, cuModuleUnload, (quire_cuda_module))                                           \
    X(ModuleGetFunction, cuModuleGetFunction,                                                      \
      (quire_cuda_function *, quire_cuda_module, const char *))                                    \
    X(LaunchKernel, cuLaunchKernel,                                                                \
      (quire_cuda_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,  \
       quire_cuda_stream, void **, void **))

typedef struct quire_cuda_calls {
#define X(name, symbol, parameters) quire_cuda_result(*name) parameters;
    QUIRE_CUDA_CALLS(X)
#undef X
} quire_cuda_calls;

#endif /* QUIRE_DEVICE_CUDA_DRIVER_H */
