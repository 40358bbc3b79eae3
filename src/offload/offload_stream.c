/* offload_stream.c - see offload_stream.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_stream.h"

#include "base/check.h"
#include "offload/offload_batch.h"
#include "offload/offload_chosen.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PART_NONE  UINT32_MAX
#define PLACES_MIN 256u

typedef struct buffer {
    quire_offload_job job;
    uint32_t part; /* that it holds or is being filled with */
} buffer;

/* An offloaded page of the batch: where its address stands, and where its bytes come. */
typedef struct place {
    quire_page_id page;
    uint32_t stripe_at; /* in stripes[] */
    uint32_t slot;      /* in the stripe */
} place;

struct quire_offload_stream {
    quire_offload_stream *lost; /* the next one in the list of lost ones */
    quire_attn_device inner;
    const quire_cache *cache;
    quire_offload_file *file;
    quire_group_id group;
    quire_offload_choice choice;
    quire_offload_chosen chosen; /* with a choice */
    bool is_active;              /* the step at hand has offloaded pages */
    bool is_choosing;            /* and all rows that have some choose */
    uint32_t entered;            /* the part at hand */
    int status;                  /* of the step at hand */
    /* The offloaded pages of the last batch that had some. */
    uint64_t generation; /* of the file, for which the lists hold */
    place *places;       /* [n_places], of [places_max] */
    uint32_t n_places;
    uint32_t places_max;
    uint32_t *stripes; /* [n_stripes], of [places_max]; jobs read it */
    uint32_t n_stripes;
    uint32_t *listed; /* the same of the batch at hand */
    uint32_t n_listed;
    uint32_t *stripe_at; /* [stripes_max of the file]: place in stripes[] + 1; 0: not in it */
    /* Addresses of all pages, as the inner device sees them. */
    quire_offload_addrs addrs;
    buffer buffers[QUIRE_OFFLOAD_BUFFERS];
    unsigned char *memory; /* of both */
    size_t memory_bytes;   /* reserved; backed where it was written */
};

/* ---- the buffers ---- */

static uint64_t buffers_bytes(const quire_offload_file *file, uint32_t n_stripes)
{
    return (uint64_t)QUIRE_OFFLOAD_BUFFERS * n_stripes * quire_offload_stripe_bytes_max(file);
}

uint64_t quire_offload_stream_bytes(const quire_offload_file *file, uint32_t n_stripes)
{
    return buffers_bytes(file, n_stripes) + n_stripes * quire_offload_kept_bytes(file);
}

static int memory_reserve(quire_offload_stream *s)
{
    quire_offload_file_stats stats;
    void *memory;

    quire_offload_file_stats_get(s->file, &stats);
    s->memory_bytes = buffers_bytes(s->file, stats.stripes_max);
    memory = mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    QUIRE_FAIL_IF(memory == MAP_FAILED, QUIRE_NOMEM);
    s->memory = memory;
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_BUFFERS; i++) {
        s->buffers[i].job.buffer = s->memory + i * (s->memory_bytes / QUIRE_OFFLOAD_BUFFERS);
        s->buffers[i].part = PART_NONE;
    }
    s->stripe_at = calloc(stats.stripes_max, sizeof *s->stripe_at);
    QUIRE_FAIL_IF(s->stripe_at == NULL, QUIRE_NOMEM);
    return QUIRE_OK;
}

static bool is_broken(const quire_offload_stream *s)
{
    quire_offload_file_stats stats;

    quire_offload_file_stats_get(s->file, &stats);
    return stats.is_broken;
}

/* Wait until no buffer is being filled. Errors: QUIRE_IO (the file is broken: a read may still be
 * under way, and use stripes[]). */
static int buffers_settle(quire_offload_stream *s)
{
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_BUFFERS; i++) {
        if (s->buffers[i].part != PART_NONE) {
            (void)quire_offload_job_wait(s->file, &s->buffers[i].job);
            s->buffers[i].part = PART_NONE;
        }
    }
    return is_broken(s) ? QUIRE_IO : QUIRE_OK;
}

void quire_offload_stream_rest(quire_offload_stream *s)
{
    if (buffers_settle(s) == QUIRE_OK) {
        (void)madvise(s->memory, s->memory_bytes, MADV_DONTNEED);
    }
}

static buffer *buffer_of(quire_offload_stream *s, uint32_t part)
{
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_BUFFERS; i++) {
        if (s->buffers[i].part == part) {
            return &s->buffers[i];
        }
    }
    return NULL;
}

/* Begin to fill a buffer other than `keep` with a part, unless one has it. */
static buffer *part_ask(quire_offload_stream *s, uint32_t part, const buffer *keep)
{
    buffer *b = buffer_of(s, part);

    if (b != NULL) {
        return b;
    }
    b = &s->buffers[keep == &s->buffers[0] ? 1 : 0];
    /* A step that was given up may have left a read under way. */
    if (b->part != PART_NONE && quire_offload_job_wait(s->file, &b->job) == QUIRE_AGAIN) {
        s->status = QUIRE_AGAIN; /* the read has the buffer for ever */
        return b;
    }
    b->part = part;
    b->job.part = part;
    b->job.stripes = s->stripes;
    b->job.n_stripes = s->n_stripes;
    quire_offload_job_begin(s->file, &b->job);
    return b;
}

/* Let the pages' addresses say where a part lies, as if it were in an extent. */
static void addrs_point(quire_offload_stream *s, const buffer *b, uint32_t part)
{
    const size_t stripe_bytes = quire_offload_stripe_bytes(s->file, part);
    const size_t slot_bytes = quire_offload_slot_bytes(s->file, part);
    /* Lanes add the part's offset in an extent. */
    const uintptr_t base = (uintptr_t)b->job.buffer - quire_offload_part_offset(s->file, part);

    for (uint32_t i = 0; i < s->n_places; i++) {
        const place *at = &s->places[i];

        s->addrs.of_pages[at->page] = (quire_page_addr){
            // NOLINTNEXTLINE(performance-no-int-to-ptr): an address outside of the buffer
            .extent =
                (unsigned char *)(base + at->stripe_at * stripe_bytes + at->slot * slot_bytes),
            .memory = QUIRE_MEMORY_HOST,
        };
    }
}

/* ---- plan ---- */

/* Room in an array of 4-byte numbers. */
static int grow(uint32_t **array, uint32_t n)
{
    uint32_t *more = realloc(*array, n * sizeof *more);

    QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
    *array = more;
    return QUIRE_OK;
}

/* Nothing is being read: jobs use stripes[]. */
static int places_grow(quire_offload_stream *s)
{
    const uint32_t n = s->places_max != 0 ? s->places_max * 2 : PLACES_MIN;
    place *places;

    QUIRE_TRY(buffers_settle(s));
    places = realloc(s->places, n * sizeof *places);
    QUIRE_FAIL_IF(places == NULL, QUIRE_NOMEM);
    s->places = places;
    QUIRE_TRY(grow(&s->stripes, n));
    QUIRE_TRY(grow(&s->listed, n));
    s->places_max = n;
    return QUIRE_OK;
}

static int place_add(void *ctx, quire_page_id page, uint32_t slot)
{
    quire_offload_stream *s = ctx;
    const uint32_t stripe = slot / QUIRE_OFFLOAD_STRIPE;

    if (s->n_places == s->places_max) {
        QUIRE_TRY(places_grow(s));
    }
    if (s->stripe_at[stripe] == 0) {
        s->listed[s->n_listed++] = stripe;
        s->stripe_at[stripe] = s->n_listed;
    }
    s->places[s->n_places++] = (place){ .page = page,
                                        .stripe_at = s->stripe_at[stripe] - 1,
                                        .slot = slot % QUIRE_OFFLOAD_STRIPE };
    return QUIRE_OK;
}

/* List the offloaded pages of the batch, in the order of its tables. A page that several tables
 * name is listed as often. */
static int places_list(quire_offload_stream *s, const quire_attn_batch *batch)
{
    for (uint32_t i = 0; i < s->n_listed; i++) {
        s->stripe_at[s->listed[i]] = 0;
    }
    s->n_places = 0;
    s->n_listed = 0;
    s->is_choosing = s->choice.chooses != NULL;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const uint32_t n_before = s->n_places;
        quire_attn_batch one = *batch;

        one.seqs = &batch->seqs[i];
        one.n_seqs = 1;
        QUIRE_TRY(quire_offload_pages_each(&one, s->group, place_add, s));
        s->is_choosing = s->is_choosing && (s->n_places == n_before || s->choice.chooses(one.seqs));
    }
    return QUIRE_OK;
}

/* The buffers' contents are of use when the stripes are those of the step before, unchanged. */
static int stripes_take(quire_offload_stream *s)
{
    const uint64_t generation = quire_offload_file_generation(s->file);
    uint32_t *old = s->stripes;

    if (s->generation == generation && s->n_stripes == s->n_listed &&
        memcmp(s->stripes, s->listed, s->n_listed * sizeof *s->listed) == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(buffers_settle(s));
    s->generation = generation;
    s->stripes = s->listed;
    s->n_stripes = s->n_listed;
    s->listed = old;
    memcpy(s->listed, s->stripes, s->n_stripes * sizeof *s->stripes);
    return QUIRE_OK;
}

/* How many of the first parts the step reads whole. */
static uint32_t n_whole(const quire_offload_stream *s)
{
    const uint32_t n_parts = quire_offload_n_parts(s->file);

    return s->is_choosing && s->choice.n_dense < n_parts ? s->choice.n_dense : n_parts;
}

static int choosing_begin(quire_offload_stream *s, const quire_attn_batch *batch)
{
    s->chosen.addrs = batch->page_addr;
    s->chosen.stripe_at = s->stripe_at;
    s->chosen.stripes = s->stripes;
    s->chosen.n_stripes = s->n_stripes;
    QUIRE_TRY(quire_offload_chosen_begin(&s->chosen, s->n_places));
    for (uint32_t i = 0; i < s->n_places; i++) {
        quire_offload_chosen_add(&s->chosen, batch->page_addr[s->places[i].page].slot);
    }
    return QUIRE_OK;
}

static int stream_begin(quire_offload_stream *s, const quire_attn_batch *batch)
{
    const buffer *first;

    QUIRE_TRY(places_list(s, batch));
    s->is_active = s->n_places > 0;
    if (!s->is_active) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(is_broken(s), QUIRE_IO);
    QUIRE_TRY(stripes_take(s));
    QUIRE_TRY(quire_offload_addrs_copy(&s->addrs, s->cache, batch));
    if (s->is_choosing) {
        QUIRE_TRY(choosing_begin(s, batch));
    }
    s->entered = 0;
    first = part_ask(s, 0, buffer_of(s, 1));
    addrs_point(s, first, 0);
    if (s->status == QUIRE_OK && n_whole(s) > 1) {
        (void)part_ask(s, 1, first);
    }
    return QUIRE_OK;
}

/* ---- the device ---- */

static int stream_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_offload_stream *s = ctx;
    quire_attn_batch own = *batch;

    s->status = QUIRE_OK;
    s->is_active = false;
    if (quire_cache_pages_offloaded(s->cache) > 0) {
        QUIRE_TRY(stream_begin(s, batch));
    }
    own.page_addr = s->is_active ? s->addrs.of_pages : batch->page_addr;
    return s->inner.plan(s->inner.ctx, &own);
}

static size_t offset_of(const void *medium, uint32_t part)
{
    return quire_offload_part_offset(medium, part);
}

static quire_offload_parts parts_of(const quire_offload_stream *s)
{
    return (quire_offload_parts){ .medium = s->file,
                                  .offset = offset_of,
                                  .n = quire_offload_n_parts(s->file) };
}

static uint32_t part_of(const quire_offload_stream *s, const quire_attn_layer *layer)
{
    const quire_offload_parts parts = parts_of(s);

    return quire_offload_part_of(&parts, layer);
}

/* The buffer into which chosen pages come, one part after the other. */
static buffer *chosen_buffer(quire_offload_stream *s)
{
    return &s->buffers[buffer_of(s, 1) == &s->buffers[0] ? 1 : 0];
}

/* Rows have chosen pages of the part at hand, which end here. */
static void chosen_leave(quire_offload_stream *s)
{
    if (s->entered >= n_whole(s) && s->status == QUIRE_OK) {
        quire_offload_chosen_leave(&s->chosen);
        s->status = s->chosen.status;
    }
}

static void chosen_enter(quire_offload_stream *s, uint32_t part)
{
    buffer *b = chosen_buffer(s);

    b->part = PART_NONE; /* its reads have ended: rows have read the part */
    addrs_point(s, b, part);
    quire_offload_chosen_enter(&s->chosen, part, b->job.buffer);
}

/* The layer's part is in memory from here on, and the next one on its way. No thread reads a
 * buffer now: run() of the layer before has ended, and run() of this one has not begun. */
static void part_enter(quire_offload_stream *s, uint32_t part)
{
    const uint32_t n_parts = n_whole(s);
    const uint32_t next = part + 1 < n_parts ? part + 1 : 0;
    buffer *b;
    int rc;

    chosen_leave(s);
    s->entered = part;
    if (s->status < 0) { /* the step has failed */
        addrs_point(s, &s->buffers[0], part);
        return;
    }
    if (part >= n_parts) {
        chosen_enter(s, part);
        return;
    }
    b = part_ask(s, part, NULL);
    rc = s->status < 0 ? s->status : quire_offload_job_wait(s->file, &b->job);
    addrs_point(s, b, part);
    if (rc < 0) {
        s->status = rc;
        b->part = PART_NONE; /* the next step reads it again */
    } else if (n_parts > 1 && (next > 0 || !s->is_choosing)) {
        (void)part_ask(s, next, b);
    }
}

static void stream_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                          uint32_t n_threads)
{
    quire_offload_stream *s = ctx;

    if (s->is_active && thread == 0) {
        part_enter(s, part_of(s, layer));
    }
    s->inner.append(s->inner.ctx, layer, thread, n_threads);
}

static void stream_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                       uint32_t n_threads)
{
    quire_offload_stream *s = ctx;

    s->inner.run(s->inner.ctx, layer, call, thread, n_threads);
}

/* The buffer of the chosen pages is free: part 0 comes there, for the next step. */
static void choosing_end(quire_offload_stream *s)
{
    chosen_leave(s);
    s->is_active = false;
    if (s->status == QUIRE_OK) {
        (void)part_ask(s, 0, buffer_of(s, 1));
    }
}

static int stream_sync(void *ctx)
{
    quire_offload_stream *s = ctx;

    QUIRE_TRY(s->inner.sync(s->inner.ctx));
    if (s->is_active && s->is_choosing) {
        choosing_end(s);
    }
    return s->status == QUIRE_AGAIN ? QUIRE_IO : s->status;
}

static int stream_check(void *ctx, const quire_attn_layer *layer)
{
    const quire_offload_stream *s = ctx;
    const quire_offload_parts parts = parts_of(s);

    QUIRE_TRY(quire_offload_layer_check(&parts, layer));
    return s->inner.check(s->inner.ctx, layer);
}

/* ---- for the device that chooses ---- */

const void *quire_offload_stream_kept(const quire_offload_stream *s, quire_page_id page)
{
    const quire_page_addr *addr = &quire_cache_page_addrs(s->cache)[page];

    return addr->memory == QUIRE_MEMORY_OFFLOADED
               ? quire_offload_kept(s->file, addr->slot, s->entered)
               : NULL;
}

void quire_offload_stream_need(quire_offload_stream *s, const quire_page_id *pages, uint32_t n)
{
    /* After a failed read of an earlier part no part is at hand. */
    if (s->is_active && s->status == QUIRE_OK && s->entered >= n_whole(s)) {
        quire_offload_chosen_need(&s->chosen, pages, n);
    }
}

quire_attn_device quire_offload_stream_device(quire_offload_stream *s)
{
    return (quire_attn_device){ .name = s->inner.name,
                                .memory = s->inner.memory,
                                .ctx = s,
                                .check = stream_check,
                                .plan = stream_plan,
                                .append = stream_append,
                                .run = stream_run,
                                .sync = stream_sync };
}

/* ---- opening ---- */

int quire_offload_stream_open(quire_offload_stream **out, const quire_offload_opts *opts,
                              quire_offload_file *file)
{
    quire_offload_stream *s = calloc(1, sizeof *s);
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    s->inner = *opts->inner;
    s->cache = opts->cache;
    s->file = file;
    s->group = opts->group;
    s->choice = opts->choice;
    s->choice.kept_bytes = NULL; /* the file has copied it */
    rc = memory_reserve(s);
    if (rc == QUIRE_OK && s->choice.chooses != NULL) {
        rc = quire_offload_chosen_init(&s->chosen, file);
    }
    if (rc < 0) {
        quire_offload_stream_close(s);
        return rc;
    }
    *out = s;
    return QUIRE_OK;
}

/* Streams that a stuck disk may still write to. */
static _Atomic(quire_offload_stream *) lost;

void quire_offload_stream_close(quire_offload_stream *s)
{
    if (s == NULL) {
        return;
    }
    if (s->memory != NULL) {
        if (buffers_settle(s) < 0) { /* a read may still end in the buffers: they stay */
            s->lost = atomic_exchange(&lost, s);
            return;
        }
        (void)munmap(s->memory, s->memory_bytes);
    }
    quire_offload_chosen_fini(&s->chosen);
    free(s->addrs.of_pages);
    free(s->stripe_at);
    free(s->listed);
    free(s->stripes);
    free(s->places);
    free(s);
}
