/* mock_queue.c - the queue of a mock device: time, faults, and the work itself.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/mock_internal.h"

#include <string.h>

#define GARBAGE 0xa5 /* in place of the bytes of a failed copy */

int quire_mock_reserve(quire_mock *mock, uint32_t n)
{
    const quire_allocator *allocator = &mock->base.allocator;
    const uint64_t needed = mock->n_queued - mock->n_done + n;
    quire_mock_work *work;
    uint32_t max = 16;

    if (needed <= mock->work_max) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(needed > UINT32_MAX / 2, QUIRE_NOMEM);
    while (max < needed) {
        max *= 2;
    }
    work = allocator->alloc(allocator->ctx, max * sizeof(*work));
    QUIRE_FAIL_IF(work == NULL, QUIRE_NOMEM);
    for (uint64_t i = mock->n_done; i < mock->n_queued; i++) {
        work[i % max] = mock->work[i % mock->work_max];
    }
    allocator->free(allocator->ctx, mock->work);
    mock->work = work;
    mock->work_max = max;
    return QUIRE_OK;
}

int quire_mock_queue(quire_mock *mock, const quire_mock_work *work)
{
    quire_mock_work *place;

    QUIRE_TRY(quire_mock_reserve(mock, 1));
    place = &mock->work[mock->n_queued++ % mock->work_max];
    *place = *work;
    place->due = mock->now + mock->opts.delay_ticks;
    quire_mock_do_due(mock);
    return QUIRE_OK;
}

static void do_copy(quire_mock *mock, const quire_mock_work *work)
{
    if (quire_rng_unit(&mock->rng) < mock->opts.copy_failure) {
        memset(work->to, GARBAGE, work->bytes);
        mock->failure = QUIRE_IO;
        return;
    }
    memcpy(work->to, work->from, work->bytes);
}

static void do_first(quire_mock *mock)
{
    const quire_mock_work *work = &mock->work[mock->n_done % mock->work_max];

    mock->n_done++;
    if (mock->n_done == mock->opts.lose_at || quire_rng_unit(&mock->rng) < mock->opts.loss) {
        (void)quire_device_lose(&mock->base);
    }
    if (mock->base.is_lost) { /* the queue is lost with the device */
        mock->n_done = mock->n_queued;
        return;
    }
    switch (work->kind) {
    case QUIRE_MOCK_COPY:
        do_copy(mock, work);
        break;
    case QUIRE_MOCK_APPEND:
        quire_device_append(mock->inner, &work->layer, 0, 1);
        break;
    case QUIRE_MOCK_ATTN:
        quire_device_attn(mock->inner, &work->layer, work->call, 0, 1);
        break;
    }
}

void quire_mock_do_due(quire_mock *mock)
{
    while (mock->n_done < mock->n_queued &&
           mock->work[mock->n_done % mock->work_max].due <= mock->now) {
        do_first(mock);
    }
}

int quire_mock_pass(quire_mock *mock, uint64_t number)
{
    int failure;

    while (mock->n_done < number) {
        const uint64_t due = mock->work[mock->n_done % mock->work_max].due;

        mock->now = mock->now > due ? mock->now : due;
        do_first(mock);
    }
    QUIRE_FAIL_IF(mock->base.is_lost, QUIRE_LOST);
    failure = mock->failure;
    mock->failure = QUIRE_OK;
    return failure;
}
