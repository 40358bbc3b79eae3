/* reuse_sample.c - lives in queues by age.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/reuse_sample.h"

#include "base/check.h"

#include <string.h>

#define QUEUE_MAX    (QUIRE_REUSE_LIVES / 24) /* lives spread over about 24 bins, 12 octaves */
#define HANDLE_BITS  14u                      /* bits of a handle with the life's number */
#define SERIAL_LIMIT (1u << (32 - HANDLE_BITS))

_Static_assert(QUIRE_REUSE_LIVES < 1u << HANDLE_BITS, "handles name all lives");

void quire_reuse_sample_init(quire_reuse_sample *sample, uint64_t seed)
{
    memset(sample, 0, sizeof(*sample));
    sample->rng.state = seed;
    for (uint32_t i = QUIRE_REUSE_LIVES; i > 0; i--) {
        sample->lives[i].next = sample->free;
        sample->free = (uint16_t)i;
    }
}

static void queue_add(quire_reuse_sample *sample, quire_reuse_model *model, uint16_t number,
                      uint32_t bin)
{
    quire_reuse_life *life = &sample->lives[number];
    quire_reuse_queue *queue = &sample->queues[bin];

    life->bin = (uint8_t)bin;
    life->next = 0;
    life->prev = queue->youngest;
    if (queue->youngest != 0) {
        sample->lives[queue->youngest].next = number;
    } else {
        queue->oldest = number;
    }
    queue->youngest = number;
    queue->n++;
    quire_reuse_wait(model, life->class.id, bin, life->weight, life->start);
}

/* A life leaves its queue; the model learns its part of this bin. */
static void queue_leave(quire_reuse_sample *sample, quire_reuse_model *model, uint16_t number,
                        uint64_t now, bool is_use)
{
    quire_reuse_life *life = &sample->lives[number];
    quire_reuse_queue *queue = &sample->queues[life->bin];
    float begin = model->starts[life->bin];
    float fraction = ((float)(now - life->start) - begin) / (model->starts[life->bin + 1u] - begin);

    if (life->prev != 0) {
        sample->lives[life->prev].next = life->next;
    } else {
        queue->oldest = life->next;
    }
    if (life->next != 0) {
        sample->lives[life->next].prev = life->prev;
    } else {
        queue->youngest = life->prev;
    }
    QUIRE_CHECK(queue->n > 0);
    queue->n--;
    quire_reuse_wait(model, life->class.id, life->bin, -life->weight, life->start);
    quire_reuse_learn(model, &life->class,
                      (quire_reuse_part){ .bin = life->bin,
                                          .fraction = fraction < 0   ? 0
                                                      : fraction > 1 ? 1
                                                                     : fraction,
                                          .weight = life->weight,
                                          .is_use = is_use });
}

static void life_give(quire_reuse_sample *sample, uint16_t number)
{
    quire_reuse_life *life = &sample->lives[number];

    life->is_followed = false;
    life->serial = (life->serial + 1) % SERIAL_LIMIT;
    life->next = sample->free;
    sample->free = number;
}

static void oldest_lose(quire_reuse_sample *sample, quire_reuse_model *model, uint64_t now)
{
    uint32_t bin = QUIRE_REUSE_AGES - 1;
    uint16_t number;

    while (sample->queues[bin].oldest == 0) {
        QUIRE_CHECK(bin > 0);
        bin--;
    }
    number = sample->queues[bin].oldest;
    queue_leave(sample, model, number, now, false);
    life_give(sample, number);
}

uint32_t quire_reuse_follow(quire_reuse_sample *sample, quire_reuse_model *model,
                            const quire_reuse_class *class, uint64_t now)
{
    quire_reuse_life *life;
    uint16_t number;

    if (sample->free == 0) {
        oldest_lose(sample, model, now);
    }
    number = sample->free;
    life = &sample->lives[number];
    sample->free = life->next;
    life->start = now;
    life->weight = 1;
    life->class = *class;
    life->is_followed = true;
    queue_add(sample, model, number, 0);
    return number | life->serial << HANDLE_BITS;
}

void quire_reuse_end(quire_reuse_sample *sample, quire_reuse_model *model, uint32_t handle,
                     uint64_t now, bool is_use)
{
    uint16_t number = (uint16_t)(handle & ((1u << HANDLE_BITS) - 1));
    const quire_reuse_life *life = &sample->lives[number];

    if (number == 0 || !life->is_followed || life->serial != handle >> HANDLE_BITS) {
        return;
    }
    queue_leave(sample, model, number, now, is_use);
    life_give(sample, number);
}

void quire_reuse_advance(quire_reuse_sample *sample, quire_reuse_model *model, uint64_t now)
{
    /* Upwards: a life may go through several bins. */
    for (uint32_t b = 0; b + 1 < QUIRE_REUSE_AGES; b++) {
        uint16_t number;

        while ((number = sample->queues[b].oldest) != 0 &&
               (float)(now - sample->lives[number].start) >= model->starts[b + 1]) {
            quire_reuse_life *life = &sample->lives[number];

            queue_leave(sample, model, number, now, false);
            if (sample->queues[b + 1].n >= QUEUE_MAX) {
                if (quire_rng_next(&sample->rng) >> 63 != 0) {
                    life_give(sample, number);
                    continue;
                }
                life->weight *= 2;
            }
            queue_add(sample, model, number, b + 1);
        }
    }
}
