/* mock_queue.c - the queue of a mock device: time, faults, and the work itself.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/mock_internal.h"

#include <string.h>

#define GARBAGE 0xa5 /* in place of the bytes of a failed copy */

int quire_mock_reserve(quire_mock *mock, quire_mock_line *line, uint32_t n)
{
    const quire_allocator *allocator = &mock->base.allocator;
    const uint64_t needed = line->n_queued - line->n_done + n;
    quire_mock_work *work;
    uint32_t max = 16;

    if (needed <= line->work_max) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(needed > UINT32_MAX / 2, QUIRE_NOMEM);
    while (max < needed) {
        max *= 2;
    }
    work = allocator->alloc(allocator->ctx, max * sizeof(*work));
    QUIRE_FAIL_IF(work == NULL, QUIRE_NOMEM);
    for (uint64_t i = line->n_done; i < line->n_queued; i++) {
        work[i % max] = line->work[i % line->work_max];
    }
    allocator->free(allocator->ctx, line->work);
    line->work = work;
    line->work_max = max;
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

static const quire_mock_work *first_of(const quire_mock_line *line)
{
    return &line->work[line->n_done % line->work_max];
}

/* Take the first piece of a queue off. Returns whether it is to be done. */
static bool take_first(quire_mock *mock, quire_mock_line *line)
{
    if (first_of(line)->kind != QUIRE_MOCK_JOIN) {
        mock->n_worked++;
        if (mock->n_worked == mock->opts.lose_at || quire_rng_unit(&mock->rng) < mock->opts.loss) {
            (void)quire_device_lose(&mock->base);
        }
    }
    line->n_done++;
    if (mock->base.is_lost) { /* the queues are lost with the device */
        mock->line.n_done = mock->line.n_queued;
        mock->beside.n_done = mock->beside.n_queued;
    }
    return !mock->base.is_lost;
}

/* Copies of the second queue. The work before them is done. */
static void do_beside(quire_mock *mock, uint64_t number)
{
    while (mock->beside.n_done < number) {
        const quire_mock_work *work = first_of(&mock->beside);

        if (take_first(mock, &mock->beside)) {
            do_copy(mock, work);
        }
    }
}

static void do_first(quire_mock *mock)
{
    const quire_mock_work *work = first_of(&mock->line);

    if (!take_first(mock, &mock->line)) {
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
    case QUIRE_MOCK_JOIN:
        do_beside(mock, work->after);
        break;
    }
}

static bool is_due(const quire_mock *mock, const quire_mock_line *line)
{
    return line->n_done < line->n_queued && first_of(line)->due <= mock->now;
}

static void do_due(quire_mock *mock)
{
    while (is_due(mock, &mock->line)) {
        do_first(mock);
    }
}

static void do_due_beside(quire_mock *mock)
{
    while (is_due(mock, &mock->beside) && first_of(&mock->beside)->after <= mock->line.n_done) {
        do_beside(mock, mock->beside.n_done + 1);
    }
}

void quire_mock_do_due(quire_mock *mock)
{
    do_due(mock);
    do_due_beside(mock);
}

int quire_mock_queue(quire_mock *mock, quire_mock_line *line, const quire_mock_work *work)
{
    quire_mock_work *place;

    QUIRE_TRY(quire_mock_reserve(mock, line, 1));
    place = &line->work[line->n_queued++ % line->work_max];
    *place = *work;
    place->due = mock->now + mock->opts.delay_ticks;
    if (line == &mock->line) {
        do_due(mock);
    } else {
        do_due_beside(mock);
    }
    return QUIRE_OK;
}

static void pass(quire_mock *mock, uint64_t number)
{
    while (mock->line.n_done < number) {
        const uint64_t due = first_of(&mock->line)->due;

        mock->now = mock->now > due ? mock->now : due;
        do_first(mock);
    }
}

static int failure_take(quire_mock *mock)
{
    const int failure = mock->failure;

    QUIRE_FAIL_IF(mock->base.is_lost, QUIRE_LOST);
    mock->failure = QUIRE_OK;
    return failure;
}

int quire_mock_pass(quire_mock *mock, uint64_t number)
{
    pass(mock, number);
    return failure_take(mock);
}

int quire_mock_pass_beside(quire_mock *mock, uint64_t number)
{
    quire_mock_line *line = &mock->beside;

    while (line->n_done < number) {
        const uint64_t n_done = line->n_done;
        const uint64_t due = first_of(line)->due;

        pass(mock, first_of(line)->after);
        mock->now = mock->now > due ? mock->now : due;
        if (line->n_done == n_done) { /* no join has done it, and no loss */
            do_beside(mock, n_done + 1);
        }
    }
    return failure_take(mock);
}
