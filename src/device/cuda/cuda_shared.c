/* cuda_shared.c - layers between another's work on the same card: the order of both streams, and
 * parameters on their way. See cuda_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/cuda/cuda_internal.h"

#include <string.h>

#define ALIGNMENT  64u
#define PART_BYTES (256u << 10) /* parameters of some hundred layers */

const void *quire_cuda_queue_owner(const quire_card *card)
{
    return ((const quire_cuda *)card)->owner;
}

/* Events of the driver and of NVIDIA's runtime library are the same objects. */
int quire_cuda_queue_share(quire_card *card, const void *owner, void *before, void *behind)
{
    quire_cuda *cuda = (quire_cuda *)card;

    cuda->owner = owner;
    cuda->before = before;
    cuda->behind = behind;
    return QUIRE_OK;
}

int quire_cuda_behind_owner(quire_card *card)
{
    quire_cuda *cuda = (quire_cuda *)card;

    return quire_cuda_status(
        cuda, cuda->context->calls.StreamWaitEvent(cuda->line.stream, cuda->before, 0));
}

int quire_cuda_before_owner(quire_card *card)
{
    quire_cuda *cuda = (quire_cuda *)card;

    return quire_cuda_status(cuda,
                             cuda->context->calls.EventRecord(cuda->behind, cuda->line.stream));
}

/* Until the work that reads a part is done. Work that failed was waited for: it has no number. */
static int part_wait(quire_card *card, uint64_t last)
{
    return card->calls->wait(card, last < card->n_submitted ? last : card->n_submitted);
}

/* Room for so many bytes at ring->at. */
static int ring_reserve(quire_card *card, quire_cuda_ring *ring, uint64_t bytes)
{
    if (bytes > ring->part_bytes) {
        const uint64_t part = bytes > PART_BYTES ? bytes : PART_BYTES;

        if (ring->part_bytes > 0) {
            QUIRE_TRY(quire_card_wait_all(card)); /* parts are in use */
        }
        ring->part_bytes = 0;
        QUIRE_TRY(quire_card_reserve(card, QUIRE_DEVICE_PINNED, QUIRE_CUDA_RING_PARTS * part,
                                     &ring->memory));
        ring->part_bytes = part;
        memset(ring->last, 0, sizeof(ring->last));
        ring->part = 0;
        ring->at = 0;
    }
    if (ring->at + bytes > ring->part_bytes) {
        const uint32_t next = (ring->part + 1) % QUIRE_CUDA_RING_PARTS;

        QUIRE_TRY(part_wait(card, ring->last[next]));
        ring->part = next;
        ring->at = 0;
    }
    return QUIRE_OK;
}

int quire_cuda_write(quire_card *card, const quire_device_memory *to, const void *from,
                     uint64_t bytes)
{
    quire_cuda *cuda = (quire_cuda *)card;
    quire_cuda_ring *ring = &cuda->ring;
    const uint64_t taken = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const quire_cuda_piece *target = to->ctx;
    const quire_cuda_piece *pinned;
    uint64_t at;

    QUIRE_TRY(ring_reserve(card, ring, taken));
    pinned = ring->memory.ctx;
    at = ring->part * ring->part_bytes + ring->at;
    memcpy(ring->memory.host + at, from, bytes);
    ring->last[ring->part] = card->n_submitted + 1;
    ring->at += taken;
    return quire_cuda_status(cuda, cuda->context->calls.MemcpyAsync(target->addr, pinned->addr + at,
                                                                    bytes, cuda->line.stream));
}
