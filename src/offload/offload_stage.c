/* offload_stage.c - see offload_stage.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_stage.h"

#include "base/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PART_NONE UINT32_MAX

struct quire_offload_stage {
    quire_offload_stage *lost; /* the next one in the list of lost ones */
    quire_page_memory memory;
    quire_offload_file *file;
    uint32_t stripes_max;
    size_t stripe_bytes; /* of the largest part */
    uint32_t n_rooms;    /* of a stripe in pinned memory, side by side */
    uint32_t chunk_stripes;
    uint32_t n_chunks;      /* pinned */
    unsigned char **chunks; /* [stripes_max / chunk_stripes, rounded up] */
    unsigned char *reading; /* ordinary memory: reserved, backed where it was written */
    uint32_t *stripes;      /* [n_stripes] of the step; the job reads it */
    uint32_t n_stripes;
    uint64_t generation; /* of the file, for which the list holds */
    quire_offload_job job;
    uint32_t asked; /* the part that is being read, or was read and not taken */
};

uint64_t quire_offload_stage_bytes(uint64_t stripe_bytes_max, uint32_t n_rooms)
{
    return (1 + n_rooms) * stripe_bytes_max;
}

/* Pinned memory of a stripe. */
static size_t rooms_bytes(const quire_offload_stage *s)
{
    return s->n_rooms * s->stripe_bytes;
}

/* ---- opening ---- */

static int arrays_open(quire_offload_stage *s)
{
    const size_t n_chunks = (s->stripes_max + s->chunk_stripes - 1) / s->chunk_stripes;
    void *reading;

    s->chunks = calloc(n_chunks, sizeof *s->chunks);
    s->stripes = calloc(s->stripes_max, sizeof *s->stripes);
    QUIRE_FAIL_IF(s->chunks == NULL || s->stripes == NULL, QUIRE_NOMEM);
    reading = mmap(NULL, s->stripes_max * s->stripe_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_FAIL_IF(reading == MAP_FAILED, QUIRE_NOMEM);
    s->reading = reading;
    return QUIRE_OK;
}

int quire_offload_stage_open(quire_offload_stage **out, const quire_page_memory *memory,
                             quire_offload_file *file, uint32_t n_rooms)
{
    quire_offload_stage *s = calloc(1, sizeof *s);
    quire_offload_file_stats stats;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    quire_offload_file_stats_get(file, &stats);
    s->memory = *memory;
    s->file = file;
    s->stripes_max = stats.stripes_max;
    s->stripe_bytes = quire_offload_stripe_bytes_max(file);
    s->n_rooms = n_rooms;
    s->chunk_stripes = (uint32_t)(QUIRE_OFFLOAD_CHUNK_BYTES / rooms_bytes(s));
    s->chunk_stripes = s->chunk_stripes > 0 ? s->chunk_stripes : 1;
    s->asked = PART_NONE;
    rc = arrays_open(s);
    if (rc < 0) {
        quire_offload_stage_close(s);
        return rc;
    }
    *out = s;
    return QUIRE_OK;
}

static bool is_broken(const quire_offload_stage *s)
{
    quire_offload_file_stats stats;

    quire_offload_file_stats_get(s->file, &stats);
    return stats.is_broken;
}

/* Wait until nothing is being read. Errors: QUIRE_IO (the file is broken: a read may still be under
 * way, and use its memory and stripes[]). */
static int settle(quire_offload_stage *s)
{
    if (s->asked != PART_NONE) {
        (void)quire_offload_job_wait(s->file, &s->job);
        s->asked = PART_NONE;
    }
    return is_broken(s) ? QUIRE_IO : QUIRE_OK;
}

/* Stages that a stuck disk may still write to. */
static _Atomic(quire_offload_stage *) lost;

void quire_offload_stage_close(quire_offload_stage *s)
{
    if (s == NULL) {
        return;
    }
    quire_offload_stage_trim(s, 0);
    free(s->chunks);
    s->chunks = NULL;
    if (s->reading != NULL) {
        if (settle(s) < 0) { /* a read may still end there: the memory stays */
            s->lost = atomic_exchange(&lost, s);
            return;
        }
        (void)munmap(s->reading, s->stripes_max * s->stripe_bytes);
    }
    free(s->stripes);
    free(s);
}

void quire_offload_stage_rest(quire_offload_stage *s)
{
    if (settle(s) == QUIRE_OK) {
        (void)madvise(s->reading, s->stripes_max * s->stripe_bytes, MADV_DONTNEED);
    }
}

/* ---- pinned memory ---- */

/* The last chunk ends with the last stripe. */
static size_t chunk_bytes(const quire_offload_stage *s, uint32_t chunk)
{
    const uint32_t left = s->stripes_max - chunk * s->chunk_stripes;

    return (left < s->chunk_stripes ? left : s->chunk_stripes) * rooms_bytes(s);
}

int quire_offload_stage_reserve(quire_offload_stage *s, uint32_t n_stripes)
{
    const uint32_t n_before = s->n_chunks;

    QUIRE_CHECK(n_stripes <= s->stripes_max);
    while (s->n_chunks * s->chunk_stripes < n_stripes) {
        unsigned char *chunk = s->memory.pin(s->memory.ctx, chunk_bytes(s, s->n_chunks));

        if (chunk == NULL) {
            quire_offload_stage_trim(s, n_before * s->chunk_stripes);
            return QUIRE_LIMIT;
        }
        s->chunks[s->n_chunks++] = chunk;
    }
    return QUIRE_OK;
}

void quire_offload_stage_trim(quire_offload_stage *s, uint32_t n_stripes)
{
    const uint32_t n = (n_stripes + s->chunk_stripes - 1) / s->chunk_stripes;

    while (s->n_chunks > n) {
        s->n_chunks--;
        s->memory.unpin(s->memory.ctx, s->chunks[s->n_chunks], chunk_bytes(s, s->n_chunks));
    }
}

static unsigned char *pinned_at(const quire_offload_stage *s, uint32_t stripe, uint32_t room)
{
    return s->chunks[stripe / s->chunk_stripes] + stripe % s->chunk_stripes * rooms_bytes(s) +
           room * s->stripe_bytes;
}

const unsigned char *quire_offload_stage_at(const quire_offload_stage *s,
                                            const quire_offload_staged *at)
{
    return pinned_at(s, at->stripe, at->room) +
           at->slot * quire_offload_slot_bytes(s->file, at->part);
}

/* ---- a step ---- */

static void ask(quire_offload_stage *s, uint32_t part)
{
    s->asked = part;
    s->job.part = part;
    s->job.stripes = s->stripes;
    s->job.n_stripes = s->n_stripes;
    s->job.buffer = s->reading;
    quire_offload_job_begin(s->file, &s->job);
}

int quire_offload_stage_begin(quire_offload_stage *s, const uint32_t *stripes, uint32_t n,
                              uint32_t first_part)
{
    const uint64_t generation = quire_offload_file_generation(s->file);

    QUIRE_FAIL_IF(is_broken(s), QUIRE_IO);
    QUIRE_CHECK(n > 0 && n <= s->n_chunks * s->chunk_stripes);
    /* What was read at the end of the step before is of use when nothing has changed. */
    if (s->asked == first_part && s->generation == generation && s->n_stripes == n &&
        memcmp(s->stripes, stripes, n * sizeof *stripes) == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(settle(s));
    s->generation = generation;
    s->n_stripes = n;
    memcpy(s->stripes, stripes, n * sizeof *stripes);
    ask(s, first_part);
    return QUIRE_OK;
}

int quire_offload_stage_take(quire_offload_stage *s, uint32_t part, uint32_t room, uint32_t next)
{
    const size_t bytes = quire_offload_stripe_bytes(s->file, part);
    int rc;

    if (s->asked != part) { /* another order of layers than that of parts */
        QUIRE_TRY(settle(s));
        ask(s, part);
    }
    rc = quire_offload_job_wait(s->file, &s->job);
    s->asked = PART_NONE;
    QUIRE_FAIL_IF(rc < 0, rc == QUIRE_AGAIN ? QUIRE_IO : rc);
    for (uint32_t i = 0; i < s->n_stripes; i++) {
        memcpy(pinned_at(s, i, room), s->reading + i * bytes, bytes);
    }
    ask(s, next);
    return QUIRE_OK;
}
