/* cuda_queue.c - memory and the streams of a card: copies, kernels, events.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/cuda/cuda_internal.h"
#include "device/cuda/cuda_kernels.h"

/* After a fault of a kernel, or of the card, the driver refuses all further work in the process. */
int quire_cuda_status(quire_cuda *cuda, quire_cuda_result result)
{
    switch (result) {
    case QUIRE_CUDA_SUCCESS:
        return QUIRE_OK;
    case QUIRE_CUDA_OUT_OF_MEMORY:
        return QUIRE_NOMEM;
    case QUIRE_CUDA_DEINITIALIZED:
    case QUIRE_CUDA_INVALID_CONTEXT:
    case QUIRE_CUDA_ECC_UNCORRECTABLE:
    case QUIRE_CUDA_NVLINK_UNCORRECTABLE:
    case QUIRE_CUDA_ILLEGAL_ADDRESS:
    case QUIRE_CUDA_LAUNCH_TIMEOUT:
    case QUIRE_CUDA_CONTEXT_IS_DESTROYED:
    case QUIRE_CUDA_UNKNOWN:
        return quire_device_lose(&cuda->card.base);
    default:
        return result >= QUIRE_CUDA_FIRST_FAULT && result <= QUIRE_CUDA_LAUNCH_FAILED
                   ? quire_device_lose(&cuda->card.base)
                   : QUIRE_IO;
    }
}

static int use(quire_cuda *cuda)
{
    return quire_cuda_status(cuda, quire_cuda_context_use(cuda->context));
}

/* ---- the streams ---- */

static int line_open(quire_cuda *cuda, quire_cuda_line *line)
{
    const quire_cuda_calls *c = &cuda->context->calls;

    QUIRE_TRY(
        quire_cuda_status(cuda, c->StreamCreate(&line->stream, QUIRE_CUDA_STREAM_NON_BLOCKING)));
    for (uint32_t i = 0; i < QUIRE_CUDA_EVENTS; i++) {
        QUIRE_TRY(quire_cuda_status(
            cuda, c->EventCreate(&line->events[i], QUIRE_CUDA_EVENT_DISABLE_TIMING)));
    }
    return QUIRE_OK;
}

int quire_cuda_queue_open(quire_card *card)
{
    quire_cuda *cuda = (quire_cuda *)card;

    QUIRE_TRY(use(cuda));
    QUIRE_TRY(line_open(cuda, &cuda->line));
    return line_open(cuda, &cuda->beside);
}

static void line_close(const quire_cuda *cuda, const quire_cuda_line *line)
{
    const quire_cuda_calls *c = &cuda->context->calls;

    for (uint32_t i = 0; i < QUIRE_CUDA_EVENTS; i++) {
        if (line->events[i] != NULL) {
            (void)c->EventDestroy(line->events[i]);
        }
    }
    if (line->stream != NULL) {
        (void)c->StreamDestroy(line->stream);
    }
}

void quire_cuda_close(quire_card *card)
{
    quire_cuda *cuda = (quire_cuda *)card;

    (void)quire_cuda_context_use(cuda->context);
    line_close(cuda, &cuda->line);
    line_close(cuda, &cuda->beside);
    quire_cuda_context_release(cuda->context);
}

/* Where the driver has no event for the end of work, the host waits for all of it: memory that the
 * work uses may be freed next. */
static int settled(quire_cuda *cuda, int status)
{
    if (status < 0 && !cuda->card.base.is_lost) {
        (void)cuda->context->calls.StreamSynchronize(cuda->line.stream);
        (void)cuda->context->calls.StreamSynchronize(cuda->beside.stream);
    }
    return status;
}

/* The event behind piece of work `value`, of so many. Events of earlier work have been recorded
 * again: the oldest one left is behind them. */
static quire_cuda_event event_behind(const quire_cuda_line *line, uint64_t n_submitted,
                                     uint64_t *value)
{
    const uint64_t oldest =
        n_submitted > QUIRE_CUDA_EVENTS ? n_submitted - QUIRE_CUDA_EVENTS + 1 : 1;

    *value = *value < oldest ? oldest : *value;
    return line->events[*value % QUIRE_CUDA_EVENTS];
}

static int line_wait(quire_cuda *cuda, quire_cuda_line *line, uint64_t n_submitted, uint64_t value)
{
    quire_cuda_event event;

    if (value <= line->n_done) {
        return QUIRE_OK;
    }
    event = event_behind(line, n_submitted, &value);
    QUIRE_TRY(settled(cuda, use(cuda)));
    QUIRE_TRY(settled(cuda, quire_cuda_status(cuda, cuda->context->calls.EventSynchronize(event))));
    line->n_done = value;
    return QUIRE_OK;
}

int quire_cuda_wait(quire_card *card, uint64_t value)
{
    quire_cuda *cuda = (quire_cuda *)card;

    return line_wait(cuda, &cuda->line, card->n_submitted, value);
}

int quire_cuda_wait_beside(quire_card *card, uint64_t value)
{
    quire_cuda *cuda = (quire_cuda *)card;

    return line_wait(cuda, &cuda->beside, card->n_beside, value);
}

int quire_cuda_begin(quire_card *card)
{
    return use((quire_cuda *)card);
}

/* Kernels of a stream run one after the other. */
void quire_cuda_barrier(quire_card *card)
{
    (void)card;
}

/* What was queued before a failure is work, too. */
static int line_end(quire_cuda *cuda, quire_cuda_line *line, uint64_t *n_submitted, int status)
{
    const uint64_t value = *n_submitted + 1;
    const quire_cuda_event event = line->events[value % QUIRE_CUDA_EVENTS];
    const int rc = settled(
        cuda, quire_cuda_status(cuda, cuda->context->calls.EventRecord(event, line->stream)));

    if (rc == QUIRE_OK) {
        *n_submitted = value;
    }
    return status < 0 ? status : rc;
}

int quire_cuda_end(quire_card *card, int status)
{
    quire_cuda *cuda = (quire_cuda *)card;

    return line_end(cuda, &cuda->line, &card->n_submitted, status);
}

static int copies_queue(quire_cuda *cuda, const quire_cuda_line *line,
                        const quire_device_piece *pieces, uint32_t n_pieces)
{
    int status = QUIRE_OK;

    for (uint32_t i = 0; i < n_pieces && status == QUIRE_OK; i++) {
        const quire_device_piece *p = &pieces[i];
        const quire_cuda_piece *to = p->to->ctx;
        const quire_cuda_piece *from = p->from->ctx;

        status = quire_cuda_status(cuda, cuda->context->calls.MemcpyAsync(
                                             to->addr + p->to_offset, from->addr + p->from_offset,
                                             p->bytes, line->stream));
    }
    return status;
}

int quire_cuda_copy(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces)
{
    quire_cuda *cuda = (quire_cuda *)card;

    QUIRE_TRY(quire_cuda_begin(card));
    return quire_cuda_end(card, copies_queue(cuda, &cuda->line, pieces, n_pieces));
}

int quire_cuda_copy_beside(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces)
{
    quire_cuda *cuda = (quire_cuda *)card;
    const quire_cuda_line *line = &cuda->line;
    uint64_t last = card->n_submitted;
    int status = QUIRE_OK;

    QUIRE_TRY(use(cuda));
    if (last > line->n_done) {
        const quire_cuda_event event = event_behind(line, last, &last);

        status = quire_cuda_status(
            cuda, cuda->context->calls.StreamWaitEvent(cuda->beside.stream, event, 0));
    }
    QUIRE_TRY(status);
    return line_end(cuda, &cuda->beside, &card->n_beside,
                    copies_queue(cuda, &cuda->beside, pieces, n_pieces));
}

int quire_cuda_join(quire_card *card, uint64_t value)
{
    quire_cuda *cuda = (quire_cuda *)card;

    if (value <= cuda->beside.n_done) {
        return QUIRE_OK;
    }
    QUIRE_TRY(use(cuda));
    return quire_cuda_status(
        cuda, cuda->context->calls.StreamWaitEvent(
                  cuda->line.stream, event_behind(&cuda->beside, card->n_beside, &value), 0));
}

int quire_cuda_dispatch(quire_card *card, const quire_card_dispatch *dispatch)
{
    static const uint32_t own_floats[QUIRE_CARD_KERNELS] = {
        [QUIRE_CARD_ATTN] = QUIRE_CUDA_ATTN_FLOATS,
        [QUIRE_CARD_MERGE] = QUIRE_CUDA_MERGE_FLOATS,
        [QUIRE_CARD_APPEND] = QUIRE_CUDA_APPEND_FLOATS,
        [QUIRE_CARD_SEAL] = QUIRE_CUDA_SEAL_FLOATS,
    };
    quire_cuda *cuda = (quire_cuda *)card;
    const uint32_t floats = dispatch->shared_floats + own_floats[dispatch->kernel];
    quire_card_push push = dispatch->push;
    quire_card_constants constants = dispatch->constants;
    void *arguments[] = { &push, &constants };
    quire_cuda_function function;

    QUIRE_TRY(quire_cuda_status(cuda, quire_cuda_kernel_get(cuda->context, dispatch->kernel,
                                                            &dispatch->constants, &function)));
    return quire_cuda_status(
        cuda, cuda->context->calls.LaunchKernel(function, dispatch->groups[0], dispatch->groups[1],
                                                dispatch->groups[2], QUIRE_CUDA_THREADS, 1, 1,
                                                floats * (unsigned)sizeof(float), cuda->line.stream,
                                                arguments, NULL));
}

/* ---- memory ---- */

int quire_cuda_piece_make(quire_card *card, quire_device_kind kind, uint64_t bytes,
                          quire_card_piece *base, quire_device_memory *out)
{
    quire_cuda *cuda = (quire_cuda *)card;
    const quire_cuda_calls *c = &cuda->context->calls;
    quire_cuda_piece *piece = (quire_cuda_piece *)base;

    QUIRE_TRY(use(cuda));
    if (kind == QUIRE_DEVICE_PAGES) {
        QUIRE_TRY(quire_cuda_status(cuda, c->MemAlloc(&piece->addr, bytes)));
    } else {
        QUIRE_TRY(quire_cuda_status(
            cuda, c->MemHostAlloc(&piece->host, bytes,
                                  QUIRE_CUDA_HOST_ALLOC_PORTABLE | QUIRE_CUDA_HOST_ALLOC_MAPPED)));
        QUIRE_TRY(
            quire_cuda_status(cuda, c->MemHostGetDevicePointer(&piece->addr, piece->host, 0)));
    }
    out->host = piece->host;
    out->addr = (unsigned char *)(uintptr_t)piece->addr;
    return QUIRE_OK;
}

void quire_cuda_piece_end(quire_card *card, quire_card_piece *base)
{
    const quire_cuda *cuda = (const quire_cuda *)card;
    const quire_cuda_piece *piece = (const quire_cuda_piece *)base;

    (void)quire_cuda_context_use(cuda->context);
    if (piece->host != NULL) {
        (void)cuda->context->calls.MemFreeHost(piece->host);
    } else if (piece->addr != 0) {
        (void)cuda->context->calls.MemFree(piece->addr);
    }
}
