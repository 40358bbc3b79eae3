/* history.c - ring of allocation events.
 *
 * Invariant: at == next_number % capacity, kept as a running index, because a division would cost
 * more than the rest of recording an event.
 *
 * SPDX-License-Identifier: MIT */
#include "core/cache/history.h"

#include "base/check.h"

#include <string.h>

static const char *const kind_names[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_HISTORY_KIND_MAP(X)
#undef X
};

const char *quire_history_kind_name(quire_history_kind kind)
{
    size_t i = (size_t)kind;

    return i < sizeof(kind_names) / sizeof(kind_names[0]) && kind_names[i] != NULL ? kind_names[i]
                                                                                   : "unknown";
}

int quire_history_init(quire_history *history, const quire_allocator *allocator, uint32_t capacity,
                       uint64_t (*clock_us)(void *ctx), void *clock_ctx)
{
    memset(history, 0, sizeof(*history));
    history->allocator = *allocator;
    history->clock_us = clock_us;
    history->clock_ctx = clock_ctx;
    if (capacity > 0) {
        history->events = allocator->alloc(allocator->ctx, capacity * sizeof(*history->events));
        QUIRE_FAIL_IF(history->events == NULL, QUIRE_NOMEM);
        history->capacity = capacity;
    }
    return QUIRE_OK;
}

void quire_history_fini(quire_history *history)
{
    if (history->events != NULL) {
        history->allocator.free(history->allocator.ctx, history->events);
    }
    memset(history, 0, sizeof(*history));
}

int quire_history_visit(const quire_history *history,
                        int (*visit)(void *ctx, const quire_history_event *event), void *ctx)
{
    bool is_wrapped = history->next_number > history->capacity;
    uint32_t n = is_wrapped ? history->capacity : (uint32_t)history->next_number;
    uint32_t at = is_wrapped ? history->at : 0;

    if (history->capacity == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        int rc = visit(ctx, &history->events[at]);

        if (rc != 0) {
            return rc;
        }
        if (++at == history->capacity) {
            at = 0;
        }
    }
    return 0;
}

void quire_history_validate(const quire_history *history)
{
    if (history->capacity == 0) {
        QUIRE_CHECK(history->events == NULL);
        QUIRE_CHECK(history->next_number == 0);
        return;
    }
    QUIRE_CHECK(history->at == history->next_number % history->capacity);
    if (history->next_number > 0) {
        uint32_t last = history->at > 0 ? history->at - 1 : history->capacity - 1;

        QUIRE_CHECK(history->events[last].number == history->next_number - 1);
    }
}
