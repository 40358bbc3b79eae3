/* offload_stream.c - see offload_stream.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_stream.h"

#include "base/check.h"
#include "offload/offload_batch.h"
#include "offload/offload_buffers.h"
#include "offload/offload_chosen.h"
#include "offload/offload_latch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PLACES_MIN 256u

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
    quire_offload_stops stops;
    quire_offload_latch latch;
    bool is_active;   /* the step at hand has offloaded pages */
    bool is_void;     /* and does no more work: its second plan has failed */
    bool is_choosing; /* all rows that have offloaded pages choose */
    uint32_t at;      /* the stop at hand; NONE: before the first */
    uint32_t pointed; /* the stop that the addresses say */
    int status;       /* of the step at hand */
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
    /* Addresses of all pages, as the inner device sees them: for each part of a stop. */
    quire_offload_addrs addrs[QUIRE_OFFLOAD_READS_MAX];
    uint32_t n_addrs;
    quire_offload_buffers buffers;
};

/* ---- the buffers ---- */

uint64_t quire_offload_stream_bytes(const quire_offload_stream *s, uint32_t n_stripes)
{
    return quire_offload_buffers_bytes(&s->buffers, n_stripes) +
           n_stripes * quire_offload_kept_bytes(s->file);
}

void quire_offload_stream_rest(quire_offload_stream *s)
{
    quire_offload_buffers_rest(&s->buffers);
}

static bool is_broken(const quire_offload_stream *s)
{
    quire_offload_file_stats stats;

    quire_offload_file_stats_get(s->file, &stats);
    return stats.is_broken;
}

/* Begin to read the parts of a stop that no buffer has. */
static void stop_ask(quire_offload_stream *s, uint32_t at, uint32_t to)
{
    const quire_offload_stripes stripes = { s->stripes, s->n_stripes };

    if (quire_offload_buffers_ask(&s->buffers, at, to, &stripes) < 0) {
        s->status = QUIRE_AGAIN;
    }
}

/* Let the pages' i-th addresses say where a part lies, as if it were in an extent. */
static void addrs_point(quire_offload_stream *s, uint32_t i, const quire_offload_buffer *b,
                        uint32_t part)
{
    const size_t stripe_bytes = quire_offload_stripe_bytes(s->file, part);
    const size_t slot_bytes = quire_offload_slot_bytes(s->file, part);
    /* Lanes add the part's offset in an extent. */
    const uintptr_t base = (uintptr_t)b->job.buffer - quire_offload_part_offset(s->file, part);

    for (uint32_t p = 0; p < s->n_places; p++) {
        const place *at = &s->places[p];

        s->addrs[i].of_pages[at->page] = (quire_page_addr){
            // NOLINTNEXTLINE(performance-no-int-to-ptr): an address outside of the buffer
            .extent =
                (unsigned char *)(base + at->stripe_at * stripe_bytes + at->slot * slot_bytes),
            .memory = QUIRE_MEMORY_HOST,
        };
    }
}

/* The same of all parts of a stop, each in its buffer; of a step that has failed in any. */
static void stop_point(quire_offload_stream *s, uint32_t at)
{
    const quire_offload_stop *stop = &s->stops.list[at];

    for (uint32_t i = 0; i < stop->n; i++) {
        const quire_offload_buffer *b = quire_offload_buffers_of(&s->buffers, stop->parts[i]);

        addrs_point(s, i, b != NULL ? b : &s->buffers.all[0], stop->parts[i]);
    }
    s->pointed = at;
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

    QUIRE_TRY(quire_offload_buffers_settle(&s->buffers));
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
 * name is listed as often. A step that has begun to read all goes on so: the buffer that chosen
 * pages would come to may be about to get part 0 for the next step. */
static int places_list(quire_offload_stream *s, const quire_attn_batch *batch)
{
    for (uint32_t i = 0; i < s->n_listed; i++) {
        s->stripe_at[s->listed[i]] = 0;
    }
    s->n_places = 0;
    s->n_listed = 0;
    s->is_choosing = s->choice.chooses != NULL && (s->is_choosing || !batch->is_rest);
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
    QUIRE_TRY(quire_offload_buffers_settle(&s->buffers));
    s->generation = generation;
    s->stripes = s->listed;
    s->n_stripes = s->n_listed;
    s->listed = old;
    memcpy(s->listed, s->stripes, s->n_stripes * sizeof *s->stripes);
    return QUIRE_OK;
}

/* How many of the first stops the step reads whole. Where rows choose, stop i has part i. */
static uint32_t n_whole(const quire_offload_stream *s)
{
    return s->is_choosing && s->choice.n_dense < s->stops.n ? s->choice.n_dense : s->stops.n;
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

/* The offloaded pages of a batch, and addresses for them. */
static int pages_begin(quire_offload_stream *s, const quire_attn_batch *batch)
{
    QUIRE_TRY(places_list(s, batch));
    s->is_active = s->n_places > 0;
    if (!s->is_active) {
        return QUIRE_OK;
    }
    QUIRE_FAIL_IF(is_broken(s), QUIRE_IO);
    QUIRE_TRY(stripes_take(s));
    for (uint32_t i = 0; i < s->n_addrs; i++) {
        QUIRE_TRY(quire_offload_addrs_copy(&s->addrs[i], s->cache, batch));
    }
    return s->is_choosing ? choosing_begin(s, batch) : QUIRE_OK;
}

/* The first stop's pages are on their way, and those of the next one. */
static void reading_begin(quire_offload_stream *s)
{
    const uint32_t next = quire_offload_stops_next(&s->stops, 0);

    stop_ask(s, 0, 0);
    stop_point(s, 0);
    s->pointed = QUIRE_OFFLOAD_STOP_NONE; /* nobody has waited for them */
    if (s->status == QUIRE_OK && next < n_whole(s)) {
        stop_ask(s, 0, next);
    }
}

/* ---- a stop ---- */

static size_t offset_of(const void *medium, uint32_t part)
{
    return quire_offload_part_offset(medium, part);
}

static quire_offload_parts parts_of(const quire_offload_stream *s)
{
    return (quire_offload_parts){ .medium = s->file,
                                  .offset = offset_of,
                                  .n = quire_offload_n_parts(s->file),
                                  .group = s->group };
}

/* The parts that a layer reads: check() has found a stop that has them. */
static quire_offload_stop stop_of(const quire_offload_stream *s, const quire_attn_layer *layer)
{
    const quire_offload_parts parts = parts_of(s);
    quire_offload_stop stop;

    (void)quire_offload_stop_of(&parts, layer, &stop);
    return stop;
}

/* The buffer into which chosen pages come, one part after the other. */
static quire_offload_buffer *chosen_buffer(quire_offload_stream *s)
{
    quire_offload_buffer *all = s->buffers.all;

    return &all[quire_offload_buffers_of(&s->buffers, 1) == &all[0] ? 1 : 0];
}

/* Rows have chosen pages of the part at hand, which end here. */
static void chosen_leave(quire_offload_stream *s)
{
    if (s->at != QUIRE_OFFLOAD_STOP_NONE && s->at >= n_whole(s) && s->status == QUIRE_OK) {
        quire_offload_chosen_leave(&s->chosen);
        s->status = s->chosen.status;
    }
}

static void chosen_enter(quire_offload_stream *s, uint32_t part)
{
    quire_offload_buffer *b = chosen_buffer(s);

    b->part = QUIRE_OFFLOAD_PART_NONE; /* its reads have ended: rows have read the part */
    addrs_point(s, 0, b, part);
    quire_offload_chosen_enter(&s->chosen, part, b->job.buffer);
}

/* Wait for the parts of a stop. After a failure the step goes on with any bytes, and the next one
 * reads the part again. */
static int stop_wait(quire_offload_stream *s, uint32_t at)
{
    const quire_offload_stop *stop = &s->stops.list[at];
    int rc = QUIRE_OK;

    for (uint32_t i = 0; i < stop->n && rc == QUIRE_OK; i++) {
        quire_offload_buffer *b = quire_offload_buffers_of(&s->buffers, stop->parts[i]);

        rc = quire_offload_job_wait(s->file, &b->job);
        b->part = rc < 0 ? QUIRE_OFFLOAD_PART_NONE : b->part;
    }
    return rc;
}

/* The parts of a stop are in memory from here on, and those of the next one on their way. No thread
 * reads a buffer now: run() of the layer before has ended, and run() of this one has not begun. */
static void stop_enter(quire_offload_stream *s, uint32_t at)
{
    const uint32_t next = quire_offload_stops_next(&s->stops, at);

    s->at = at;
    if (s->status < 0) { /* the step has failed */
        stop_point(s, at);
        return;
    }
    if (at >= n_whole(s)) {
        chosen_enter(s, at);
        return;
    }
    if (s->pointed == QUIRE_OFFLOAD_STOP_NONE ||
        !quire_offload_stop_is_same(&s->stops.list[at], &s->stops.list[s->pointed])) {
        stop_ask(s, at, at);
        s->status = s->status < 0 ? s->status : stop_wait(s, at);
        stop_point(s, at);
    }
    if (s->status < 0) {
        return;
    }
    if (next < n_whole(s) && (next > at || !s->is_choosing)) {
        stop_ask(s, at, next);
    }
}

/* The next layer, which reads these parts. */
static void layer_enter(quire_offload_stream *s, const quire_offload_stop *stop)
{
    chosen_leave(s);
    stop_enter(s, quire_offload_stops_find(&s->stops, s->at, stop));
}

/* ---- the device ---- */

/* The rows with which the step goes on: the layer at hand has been entered for all of them. */
static int rest_begin(quire_offload_stream *s, const quire_attn_batch *batch)
{
    int rc;

    if (!s->is_active) {
        return QUIRE_OK;
    }
    rc = pages_begin(s, batch);
    s->is_void = rc < 0;
    s->pointed = QUIRE_OFFLOAD_STOP_NONE;
    if (rc == QUIRE_OK && s->is_active) {
        stop_enter(s, s->at != QUIRE_OFFLOAD_STOP_NONE ? s->at : 0);
    }
    return rc;
}

static int step_begin(quire_offload_stream *s, const quire_attn_batch *batch)
{
    s->status = QUIRE_OK;
    s->is_active = s->is_void = false;
    s->at = s->pointed = QUIRE_OFFLOAD_STOP_NONE;
    if (quire_cache_pages_offloaded(s->cache) > 0) {
        QUIRE_TRY(pages_begin(s, batch));
    }
    if (s->is_active) {
        reading_begin(s);
    }
    return QUIRE_OK;
}

static int stream_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_offload_stream *s = ctx;
    quire_attn_batch own = *batch;

    quire_offload_latch_close(&s->latch);
    QUIRE_TRY(batch->is_rest ? rest_begin(s, batch) : step_begin(s, batch));
    if (s->is_active) {
        own.page_addr = s->addrs[0].of_pages;
        own.page_addr_2 = s->n_addrs > 1 ? s->addrs[1].of_pages : NULL;
    }
    return s->inner.plan(s->inner.ctx, &own);
}

static void stream_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                          uint32_t n_threads)
{
    quire_offload_stream *s = ctx;

    if (s->is_void) {
        return;
    }
    if (s->is_active && thread == 0) {
        const quire_offload_stop stop = stop_of(s, layer);

        if (stop.n > 0) {
            layer_enter(s, &stop);
        }
    }
    s->inner.append(s->inner.ctx, layer, thread, n_threads);
}

/* A layer that stores nothing has no append(). */
static void run_enter(quire_offload_stream *s, const quire_offload_stop *stop, uint32_t call,
                      uint32_t thread)
{
    if (thread == 0) {
        layer_enter(s, stop);
        quire_offload_latch_open(&s->latch, call);
    } else {
        quire_offload_latch_wait(&s->latch, call);
    }
}

static void stream_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                       uint32_t n_threads)
{
    quire_offload_stream *s = ctx;
    quire_attn_layer own;

    if (s->is_void) {
        return;
    }
    if (s->is_active) {
        const quire_offload_stop stop = stop_of(s, layer);

        if (stop.n > 0 && !quire_offload_layer_stores(layer)) {
            run_enter(s, &stop, call, thread);
        }
        if (stop.n > 1) {
            const quire_offload_parts parts = parts_of(s);

            own = quire_offload_layer_at(&parts, layer, &stop);
            layer = &own;
        }
    }
    s->inner.run(s->inner.ctx, layer, call, thread, n_threads);
}

/* The buffer of the chosen pages is free: part 0 comes there, for the next step. */
static void choosing_end(quire_offload_stream *s)
{
    chosen_leave(s);
    s->is_active = false;
    if (s->status == QUIRE_OK) {
        stop_ask(s, 0, 0);
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

    QUIRE_TRY(quire_offload_layer_check(&parts, &s->stops, layer));
    return s->inner.check(s->inner.ctx, layer);
}

/* ---- for the device that chooses ---- */

const void *quire_offload_stream_kept(const quire_offload_stream *s, quire_page_id page)
{
    const quire_page_addr *addr = &quire_cache_page_addrs(s->cache)[page];

    return addr->memory == QUIRE_MEMORY_OFFLOADED ? quire_offload_kept(s->file, addr->slot, s->at)
                                                  : NULL;
}

void quire_offload_stream_need(quire_offload_stream *s, const quire_page_id *pages, uint32_t n)
{
    /* After a failed read of an earlier part no part is at hand. */
    if (s->is_active && s->status == QUIRE_OK && s->at >= n_whole(s)) {
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

static int tables_open(quire_offload_stream *s, const quire_offload_opts *opts)
{
    quire_offload_file_stats stats;

    quire_offload_file_stats_get(s->file, &stats);
    QUIRE_TRY(quire_offload_stops_init(&s->stops, opts->stops, opts->n_stops,
                                       quire_offload_n_parts(s->file)));
    s->n_addrs = quire_offload_stops_reads_max(&s->stops);
    s->stripe_at = calloc(stats.stripes_max, sizeof *s->stripe_at);
    QUIRE_FAIL_IF(s->stripe_at == NULL, QUIRE_NOMEM);
    return quire_offload_buffers_open(&s->buffers, s->file, &s->stops);
}

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
    quire_offload_latch_init(&s->latch);
    rc = tables_open(s, opts);
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
    /* A read may still end in the buffers: they stay. */
    if (s->buffers.memory != NULL && quire_offload_buffers_settle(&s->buffers) < 0) {
        s->lost = atomic_exchange(&lost, s);
        return;
    }
    quire_offload_buffers_close(&s->buffers);
    quire_offload_stops_fini(&s->stops);
    quire_offload_latch_fini(&s->latch);
    quire_offload_chosen_fini(&s->chosen);
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_READS_MAX; i++) {
        free(s->addrs[i].of_pages);
    }
    free(s->stripe_at);
    free(s->listed);
    free(s->stripes);
    free(s->places);
    free(s);
}
