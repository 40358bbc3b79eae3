/* fake_cuda_internal.h - between fake_cuda.c (calls), fake_memory.c (memory) and fake_work.c
 * (work). The lock is held around all of these functions.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_FAKE_CUDA_INTERNAL_H
#define QUIRE_TESTS_DEVICE_FAKE_CUDA_INTERNAL_H

#include "device/card/card_params.h"
#include "device/cuda/cuda_driver.h"
#include "device/fake_cuda/fake_cuda.h"

#include <stdbool.h>

/* A card's primary context. */
struct quire_cuda_ctx_object {
    int ordinal;
    uint32_t n_users;
    int fault; /* what all calls return; 0: none */
};

typedef void fake_kernel(quire_card_push push, quire_card_constants constants);

struct quire_cuda_function_object {
    const char *name;
    fake_kernel *run;
};

struct quire_cuda_event_object {
    quire_cuda_ctx ctx;
    quire_cuda_stream stream; /* where it was recorded last; NULL: nowhere */
    uint64_t n_recorded;
    uint64_t n_done;
    uint64_t stream_id; /* and its work up to the last record */
    uint64_t n_before;
};

struct quire_cuda_stream_object {
    quire_cuda_ctx ctx;
    struct fake_work *first;
    struct fake_work **last;
    struct quire_cuda_stream_object *next; /* of all streams */
    uint64_t id;                           /* no two streams have the same, ever */
    uint64_t n_queued;
    uint64_t n_done;
    bool has_host; /* a function of the host's was queued */
};

extern fake_cuda_counts fake_counts;
#define FAKE_ERROR() (fake_counts.n_errors++, QUIRE_CUDA_INVALID_VALUE)

/* fake_memory.c */
int fake_memory_take(quire_cuda_ctx ctx, size_t bytes, bool is_hosts, quire_cuda_addr *out);
int fake_memory_give(quire_cuda_addr addr, bool is_hosts);
/* Whether [addr, + bytes) lies in one piece that the context can use. */
bool fake_memory_has(quire_cuda_ctx ctx, quire_cuda_addr addr, size_t bytes);
/* Let the host, and so kernels, access the memory of a card, or hide it. */
void fake_memory_show(quire_cuda_ctx ctx, bool is_shown);
uint64_t fake_memory_used(quire_cuda_ctx ctx);

/* fake_work.c */
int fake_copy_queue(quire_cuda_stream stream, quire_cuda_addr to, quire_cuda_addr from,
                    size_t bytes);
int fake_kernel_queue(quire_cuda_stream stream, quire_cuda_function function,
                      const unsigned groups[3], unsigned shared_bytes, const quire_card_push *push,
                      const quire_card_constants *constants);
int fake_host_queue(quire_cuda_stream stream, void (*function)(void *ctx), void *ctx);
int fake_event_queue(quire_cuda_stream stream, quire_cuda_event event);
/* Later work of the stream comes behind the work that the event was recorded behind last. */
int fake_wait_queue(quire_cuda_stream stream, quire_cuda_event event);
void fake_stream_begin(quire_cuda_stream stream);
void fake_stream_end(quire_cuda_stream stream);
/* Do a stream's work up to an event (NULL: all). Returns the fault of its card. */
int fake_work_do(quire_cuda_stream stream, quire_cuda_event until);

/* The kernel of a name; NULL: none. */
quire_cuda_function fake_kernel_find(const char *name);

#endif /* QUIRE_TESTS_DEVICE_FAKE_CUDA_INTERNAL_H */
