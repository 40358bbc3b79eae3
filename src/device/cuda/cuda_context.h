/* cuda_context.h - the state of one card that all devices of a process share: the driver's
 * functions, the context, the kernels loaded so far.
 *
 * Devices on the same card have one context, which ends with the last of them. It is the card's
 * primary context, as other libraries in the process use it.
 *
 * Thread: any; a context has a lock for its kernels. A thread that calls the driver does so between
 * calls of quire_cuda_context_use().
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_CONTEXT_H
#define QUIRE_DEVICE_CUDA_CONTEXT_H

#include "device/card/card.h"
#include "device/cuda/cuda_driver.h"
#include "quire/error.h"

#include <pthread.h>

#define QUIRE_CUDA_MODULES 8u /* attn for 1, 2, 4, 8, 16 lanes; merge, append, seal */

typedef struct quire_cuda_kernel {
    quire_cuda_module module; /* NULL: not loaded yet */
    quire_cuda_function function;
} quire_cuda_kernel;

typedef struct quire_cuda_context {
    struct quire_cuda_context *next;
    uint32_t n_users;
    uint32_t index; /* among the cards that can be used */
    uint32_t place; /* among all cards */
    void *library;
    quire_cuda_calls calls;
    quire_cuda_ordinal ordinal;
    quire_cuda_ctx ctx;
    char name[128];
    int capability[2]; /* major, minor */
    int driver;        /* its version, as 12040; 0 = not known */
    size_t memory_bytes;
    quire_cuda_kernel kernels[QUIRE_CUDA_MODULES];
    pthread_mutex_t lock;
} quire_cuda_context;

/* Errors: QUIRE_NOTFOUND (no driver, no such device), QUIRE_NOMEM, QUIRE_IO (the driver refused),
 * QUIRE_UNSUPP (a driver without a function). Memory: quire_cuda_context_release(). */
int quire_cuda_context_get(quire_cuda_context **out, uint32_t index, quire_error *err);
void quire_cuda_context_release(quire_cuda_context *context);

/* Make it the calling thread's. */
quire_cuda_result quire_cuda_context_use(const quire_cuda_context *context);

/* The function of a kernel; loaded when it is wanted first. The context is the thread's. */
quire_cuda_result quire_cuda_kernel_get(quire_cuda_context *context, quire_card_kernel kernel,
                                        const quire_card_constants *constants,
                                        quire_cuda_function *out);

/* PTX of the kernels, made by the build; each ends with a NUL. */
extern const unsigned char quire_ptx_attn_1[], quire_ptx_attn_2[], quire_ptx_attn_4[];
extern const unsigned char quire_ptx_attn_8[], quire_ptx_attn_16[];
extern const unsigned char quire_ptx_merge[], quire_ptx_append[], quire_ptx_seal[];
extern const size_t quire_ptx_attn_1_bytes, quire_ptx_attn_2_bytes, quire_ptx_attn_4_bytes;
extern const size_t quire_ptx_attn_8_bytes, quire_ptx_attn_16_bytes;
extern const size_t quire_ptx_merge_bytes, quire_ptx_append_bytes, quire_ptx_seal_bytes;

#endif /* QUIRE_DEVICE_CUDA_CONTEXT_H */
