/* backend_calls.h - the calls of ggml for a device with layers of a model. ggml's Vulkan backend
 * reports by an exception of C++ what the driver of a card refuses: no memory, a failed submission,
 * the loss of the card. Its CUDA backend ends the process then; here such an end becomes an
 * exception, too (quire_backend_cuda_begin()). None passes these functions: the device is lost
 * then, or the call fails.
 *
 * The text of an exception is the first line of quire_backend_log_first() of this thread, and of
 * the lost device.
 *
 * Thread: owner, except where noted.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_BACKEND_CALLS_H
#define QUIRE_MODEL_BACKEND_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUIRE_BACKEND_WHY_BYTES 160u

/* A backend of another device than the host's, with one thread if it computes by threads. Its work
 * is queued. */
typedef struct quire_backend_device {
    ggml_backend_t ggml;         /* NULL: there is none */
    ggml_backend_event_t event;  /* NULL: the device offers none */
    ggml_backend_event_t before; /* of share(); NULL, and behind: there is no work beside */
    ggml_backend_event_t behind;
    uint64_t waits_total;           /* of the host for the device */
    bool is_lost;                   /* an exception came: no call reaches ggml any more */
    bool has_copies;                /* queued, and maybe not submitted */
    struct ggml_context *empty_ctx; /* of a graph without operations, for gather(): Vulkan's */
    struct ggml_cgraph *empty;
    char why[QUIRE_BACKEND_WHY_BYTES]; /* its text */
} quire_backend_device;

/* Errors: QUIRE_NOMEM, QUIRE_IO (an exception); then there is none. */
int quire_backend_device_open(quire_backend_device *backend, ggml_backend_dev_t device);
/* Of a lost device, what ggml cannot release stays until the process ends. */
void quire_backend_device_close(quire_backend_device *backend);

/* Queue a graph, and copies of whole tensors. Of a lost device: nothing, GGML_STATUS_FAILED. */
enum ggml_status quire_backend_device_compute(quire_backend_device *backend,
                                              struct ggml_cgraph *cgraph);
void quire_backend_device_set(quire_backend_device *backend, struct ggml_tensor *to,
                              const void *from);
void quire_backend_device_get(quire_backend_device *backend, const struct ggml_tensor *from,
                              void *to);

/* Have the next compute() submit its operations together. Otherwise ggml's Vulkan backend submits
 * them in parts, each as soon as it has a share of the operations of the graph before: good for a
 * graph that is a whole token, but one that is a layer comes in many parts. */
void quire_backend_device_gather(quire_backend_device *backend);

/* Work of others on the card, queued between submit() and resume(), is behind all that was queued
 * before and in front of all that is queued later. Work of compute() is submitted at once, so in a
 * common queue submit() submits queued copies, and resume() does nothing. Others with a queue of
 * their own wait there for an event of submit(), and resume() has ggml's queue wait for theirs. */
void quire_backend_device_submit(quire_backend_device *backend);
void quire_backend_device_resume(quire_backend_device *backend);

/* Make these events, for others with a queue of their own: the driver's, of ggml's CUDA backend.
 * False: the device offers none. */
bool quire_backend_device_share(quire_backend_device *backend, void **before, void **behind);

/* From a tensor's data, as the host sees it, to its address on the device; the same for all tensors
 * of its buffer. host: where 4 bytes of the host's may be written. Nothing is queued then. False:
 * the device does not tell. */
bool quire_backend_device_shift(quire_backend_device *backend, const struct ggml_tensor *tensor,
                                void *host, ptrdiff_t *shift);

/* mark() marks the work queued so far. join() waits for the work before the last mark, or, without
 * events, for all queued work. finish() waits for all queued work. None waits for a lost device. */
void quire_backend_device_mark(quire_backend_device *backend);
void quire_backend_device_join(quire_backend_device *backend);
void quire_backend_device_finish(quire_backend_device *backend);

/* ---- loading. Thread: any ---- */

/* Device i of the backend that a function of ggml gives, opened: ggml opens a card when its type of
 * buffers is wanted, without a lock. NULL: there is none, or it cannot be opened. Thread: one. */
ggml_backend_dev_t quire_backend_device_at(ggml_backend_reg_t (*backend)(void), uint32_t i);

/* Whether a device computes a small graph: the backend in the build may have no code for a card.
 * Thread: one. */
bool quire_backend_device_computes(ggml_backend_dev_t device);

/* Whether a device is one of a backend: "Vulkan", "CUDA". */
bool quire_backend_device_is_of(ggml_backend_dev_t device, const char *backend);

/* Before ggml's CUDA backend opens a card. From now on a failed call of it is an exception in the
 * thread that made it. All later calls of the driver fail as a rule, in destructors, too: what lies
 * on a card is then kept until the process ends. ggml makes no graphs of CUDA's: they keep
 * addresses of working memory that ggml frees when a card is full. The first call sets an
 * environment variable of ggml's. False: no memory. Thread: one, at start-up. */
bool quire_backend_cuda_begin(void);

/* Whether a device computes an operation. */
bool quire_backend_takes(ggml_backend_dev_t device, const struct ggml_tensor *op);

/* Free and total bytes of the device's memory; 0: not known. */
void quire_backend_memory(ggml_backend_dev_t device, size_t *free_bytes, size_t *total_bytes);

/* A buffer for the tensors of a context; NULL: no memory. */
ggml_backend_buffer_t quire_backend_buffer_new(struct ggml_context *ctx,
                                               ggml_backend_buffer_type_t buft);

/* Release a buffer of any kind (or NULL), or an allocator with buffers on devices. Those of a
 * device whose driver fails stay until the process ends. */
void quire_backend_buffer_free(ggml_backend_buffer_t buffer);
void quire_backend_allocator_free(ggml_gallocr_t allocator, const ggml_backend_dev_t *devices,
                                  uint32_t n);

/* Write a whole tensor of a buffer of any kind, without a queue. False: an exception came. */
bool quire_backend_tensor_write(struct ggml_tensor *to, const void *from);

/* Room in an allocator's buffers for a graph; ids: [nodes], NULL where it has one buffer. False: no
 * memory. */
bool quire_backend_reserve(ggml_gallocr_t allocator, struct ggml_cgraph *cgraph, const int *ids);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_MODEL_BACKEND_CALLS_H */
