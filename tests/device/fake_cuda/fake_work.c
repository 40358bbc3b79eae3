/* fake_work.c - queued work of cards that do not exist, and its kernels.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/cuda_kernels.h"
#include "device/fake_cuda/emulated_machine.h"
#include "device/fake_cuda/fake_cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_ALIGNMENT 16u

emulated_block emulated_block_now;

typedef struct fake_work {
    struct fake_work *next;
    quire_cuda_event event; /* NULL: none */
    uint64_t event_number;
    bool is_wait; /* for the first n_before pieces of another stream */
    uint64_t stream_id;
    uint64_t n_before;
    quire_cuda_function function; /* NULL: a copy, an event or a wait */
    quire_card_push push;
    quire_card_constants constants;
    unsigned groups[3];
    unsigned shared_bytes;
    quire_cuda_addr to, from;
    size_t bytes;
    void (*host)(void *ctx); /* NULL: none */
    void *host_ctx;
} fake_work;

static uint32_t fault_in; /* pieces of work, 0: none */
static int fault_result;

void fake_cuda_fault(uint32_t n, int result)
{
    fault_in = n + 1;
    fault_result = result;
}

/* ---- kernels ---- */

#define KERNELS(X)                                                                                 \
    X(cuda_attn_1)                                                                                 \
    X(cuda_attn_2)                                                                                 \
    X(cuda_attn_4)                                                                                 \
    X(cuda_attn_8)                                                                                 \
    X(cuda_attn_16)                                                                                \
    X(cuda_merge)                                                                                  \
    X(cuda_append)                                                                                 \
    X(cuda_seal)
#define X(name) void name(quire_card_push push, quire_card_constants constants);
KERNELS(X)
#undef X

quire_cuda_function fake_kernel_find(const char *name)
{
#define X(name) { #name, name },
    static struct quire_cuda_function_object functions[] = { KERNELS(X) };
#undef X

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strcmp(functions[i].name, name) == 0) {
            return &functions[i];
        }
    }
    return NULL;
}

/* Ascending and descending, and one between, of threads; of blocks, too. */
static void kernel_run(const fake_work *w)
{
    static const uint32_t orders[] = { 0, 63, 21 };
    const uint64_t n = (uint64_t)w->groups[0] * w->groups[1] * w->groups[2];
    const uint64_t number = fake_counts.n_kernels++;
    float *memory;

    if (posix_memalign((void **)&memory, MEMORY_ALIGNMENT,
                       w->shared_bytes > 0 ? w->shared_bytes : 1) != 0) {
        abort();
    }
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t block = number % 2 == 0 ? i : n - 1 - i;

        memset(memory, 0xff, w->shared_bytes); /* NaN */
        emulated_block_now = (emulated_block){
            .x = (uint32_t)(block % w->groups[0]),
            .y = (uint32_t)(block / w->groups[0] % w->groups[1]),
            .z = (uint32_t)(block / w->groups[0] / w->groups[1]),
            .order = orders[(number + i) % (sizeof(orders) / sizeof(orders[0]))],
            .memory = memory,
        };
        w->function->run(w->push, w->constants);
        fake_counts.n_blocks++;
    }
    free(memory);
}

/* ---- the queue ---- */

static quire_cuda_stream streams;
static uint64_t n_streams; /* that there ever were */

void fake_stream_begin(quire_cuda_stream stream)
{
    stream->last = &stream->first;
    stream->id = ++n_streams;
    stream->next = streams;
    streams = stream;
}

void fake_stream_end(quire_cuda_stream stream)
{
    quire_cuda_stream *at = &streams;

    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
}

static quire_cuda_stream stream_find(uint64_t id)
{
    quire_cuda_stream stream = streams;

    while (stream != NULL && stream->id != id) {
        stream = stream->next;
    }
    return stream;
}

static fake_work *work_add(quire_cuda_stream stream)
{
    fake_work *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        abort();
    }
    *stream->last = w;
    stream->last = &w->next;
    stream->n_queued++;
    return w;
}

int fake_copy_queue(quire_cuda_stream stream, quire_cuda_addr to, quire_cuda_addr from,
                    size_t bytes)
{
    fake_work *w;

    if (!fake_memory_has(stream->ctx, to, bytes) || !fake_memory_has(stream->ctx, from, bytes)) {
        return FAKE_ERROR();
    }
    w = work_add(stream);
    w->to = to;
    w->from = from;
    w->bytes = bytes;
    return QUIRE_CUDA_SUCCESS;
}

int fake_kernel_queue(quire_cuda_stream stream, quire_cuda_function function,
                      const unsigned groups[3], unsigned shared_bytes, const quire_card_push *push,
                      const quire_card_constants *constants)
{
    fake_work *w;

    for (unsigned i = 0; i < 3; i++) {
        if (groups[i] == 0 || groups[i] > (i == 0 ? 0x7fffffffu : 65535u)) {
            return FAKE_ERROR();
        }
    }
    if (shared_bytes > 48u << 10) {
        return FAKE_ERROR();
    }
    w = work_add(stream);
    w->function = function;
    w->push = *push;
    w->constants = *constants;
    memcpy(w->groups, groups, sizeof(w->groups));
    w->shared_bytes = shared_bytes;
    return QUIRE_CUDA_SUCCESS;
}

int fake_host_queue(quire_cuda_stream stream, void (*function)(void *ctx), void *ctx)
{
    fake_work *w = work_add(stream);

    w->host = function;
    w->host_ctx = ctx;
    stream->has_host = true;
    return QUIRE_CUDA_SUCCESS;
}

int fake_event_queue(quire_cuda_stream stream, quire_cuda_event event)
{
    fake_work *w = work_add(stream);

    event->stream = stream;
    event->stream_id = stream->id;
    event->n_before = stream->n_queued;
    w->event = event;
    w->event_number = ++event->n_recorded;
    return QUIRE_CUDA_SUCCESS;
}

int fake_wait_queue(quire_cuda_stream stream, quire_cuda_event event)
{
    fake_work *w = work_add(stream);

    w->is_wait = true;
    w->stream_id = event->stream_id;
    w->n_before = event->n_before;
    return QUIRE_CUDA_SUCCESS;
}

static void work_do(quire_cuda_ctx ctx, const fake_work *w)
{
    if (w->event != NULL) {
        w->event->n_done = w->event_number;
        return;
    }
    if (w->is_wait) {
        return;
    }
    if (fault_in > 0 && --fault_in == 0) {
        ctx->fault = fault_result;
    }
    if (ctx->fault != 0) {
        return;
    }
    if (w->function != NULL) {
        kernel_run(w);
    } else if (w->host != NULL) {
        w->host(w->host_ctx);
    } else if (fake_memory_has(ctx, w->to, w->bytes) && fake_memory_has(ctx, w->from, w->bytes)) {
        memmove((void *)(uintptr_t)w->to, (const void *)(uintptr_t)w->from, w->bytes);
    } else {
        (void)FAKE_ERROR(); /* freed meanwhile */
    }
}

/* Do the first piece of a stream, and before it the pieces of another stream for which it waits. */
static void first_do(quire_cuda_stream stream)
{
    fake_work *w = stream->first;
    const quire_cuda_stream other = w->is_wait ? stream_find(w->stream_id) : NULL;

    while (other != NULL && other->n_done < w->n_before) {
        first_do(other);
    }
    work_do(stream->ctx, w);
    stream->first = w->next;
    stream->last = stream->first == NULL ? &stream->first : stream->last;
    stream->n_done++;
    free(w);
}

int fake_work_do(quire_cuda_stream stream, quire_cuda_event until)
{
    const uint64_t number = until != NULL ? until->n_recorded : 0;

    if (stream->first != NULL && (until == NULL || until->n_done < number)) {
        fake_memory_show(stream->ctx, true);
        while (stream->first != NULL && (until == NULL || until->n_done < number)) {
            first_do(stream);
        }
        fake_memory_show(stream->ctx, false);
    }
    return stream->ctx->fault;
}
