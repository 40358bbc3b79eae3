/* offload_buffers.c - see offload_buffers.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_buffers.h"

#include "base/check.h"
#include "base/num.h"

#include <sys/mman.h>

uint64_t quire_offload_buffers_bytes(const quire_offload_buffers *b, uint32_t n_stripes)
{
    return (uint64_t)b->n * n_stripes * quire_offload_stripe_bytes_max(b->file);
}

int quire_offload_buffers_open(quire_offload_buffers *b, quire_offload_file *file,
                               const quire_offload_stops *stops)
{
    quire_offload_file_stats stats;
    void *memory;

    quire_offload_file_stats_get(file, &stats);
    b->file = file;
    b->stops = stops;
    b->n = quire_max_u32(quire_offload_stops_span_max(stops), QUIRE_OFFLOAD_BUFFERS_MIN);
    b->memory_bytes = quire_offload_buffers_bytes(b, stats.stripes_max);
    memory = mmap(NULL, b->memory_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_FAIL_IF(memory == MAP_FAILED, QUIRE_NOMEM);
    b->memory = memory;
    for (uint32_t i = 0; i < b->n; i++) {
        b->all[i].job.buffer = b->memory + i * (b->memory_bytes / b->n);
        b->all[i].part = QUIRE_OFFLOAD_PART_NONE;
    }
    return QUIRE_OK;
}

void quire_offload_buffers_close(quire_offload_buffers *b)
{
    if (b->memory != NULL) {
        (void)munmap(b->memory, b->memory_bytes);
        b->memory = NULL;
    }
}

int quire_offload_buffers_settle(quire_offload_buffers *b)
{
    quire_offload_file_stats stats;

    for (uint32_t i = 0; i < b->n; i++) {
        if (b->all[i].part != QUIRE_OFFLOAD_PART_NONE) {
            (void)quire_offload_job_wait(b->file, &b->all[i].job);
            b->all[i].part = QUIRE_OFFLOAD_PART_NONE;
        }
    }
    quire_offload_file_stats_get(b->file, &stats);
    return stats.is_broken ? QUIRE_IO : QUIRE_OK;
}

void quire_offload_buffers_rest(quire_offload_buffers *b)
{
    if (quire_offload_buffers_settle(b) == QUIRE_OK) {
        (void)madvise(b->memory, b->memory_bytes, MADV_DONTNEED);
    }
}

quire_offload_buffer *quire_offload_buffers_of(quire_offload_buffers *b, uint32_t part)
{
    for (uint32_t i = 0; i < b->n; i++) {
        if (b->all[i].part == part) {
            return &b->all[i];
        }
    }
    return NULL;
}

/* The buffer that is free first; there is one that neither stop reads. */
static quire_offload_buffer *free_find(quire_offload_buffers *b, uint32_t at, uint32_t to)
{
    quire_offload_buffer *found = NULL;
    uint32_t found_until = 0;

    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t part = b->all[i].part;
        uint32_t until;

        if (part == QUIRE_OFFLOAD_PART_NONE) {
            return &b->all[i];
        }
        if (quire_offload_stop_has(&b->stops->list[at], part) ||
            quire_offload_stop_has(&b->stops->list[to], part)) {
            continue;
        }
        until = quire_offload_stops_until(b->stops, at, part);
        if (found == NULL || until > found_until) {
            found = &b->all[i];
            found_until = until;
        }
    }
    QUIRE_CHECK(found != NULL);
    return found;
}

int quire_offload_buffers_ask(quire_offload_buffers *b, uint32_t at, uint32_t to,
                              const quire_offload_stripes *stripes)
{
    const quire_offload_stop *stop = &b->stops->list[to];

    for (uint32_t i = 0; i < stop->n; i++) {
        quire_offload_buffer *free;

        if (quire_offload_buffers_of(b, stop->parts[i]) != NULL) {
            continue;
        }
        free = free_find(b, at, to);
        /* A step that was given up may have left a read under way. */
        QUIRE_FAIL_IF(free->part != QUIRE_OFFLOAD_PART_NONE &&
                          quire_offload_job_wait(b->file, &free->job) == QUIRE_AGAIN,
                      QUIRE_AGAIN);
        free->part = stop->parts[i];
        free->job.part = free->part;
        free->job.stripes = stripes->at;
        free->job.n_stripes = stripes->n;
        quire_offload_job_begin(b->file, &free->job);
    }
    return QUIRE_OK;
}
