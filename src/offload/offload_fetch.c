/* offload_fetch.c - see offload_fetch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_fetch.h"

#include "base/check.h"
#include "offload/offload_batch.h"
#include "offload/offload_latch.h"
#include "offload/offload_places.h"

#include <stdlib.h>
#include <string.h>

#define STOP_NONE QUIRE_OFFLOAD_STOP_NONE

struct quire_offload_fetch {
    quire_attn_device inner;
    quire_page_memory memory;
    quire_cache *cache;
    quire_offload_tiers *tiers;
    quire_offload_host *host;   /* of the tiers */
    quire_offload_stage *stage; /* likewise; NULL: no file */
    bool may_attend;            /* the next steps: quire_offload_fetch_attend() */
    bool is_active;             /* the step at hand has offloaded pages */
    bool has_attended;          /* some of them where they lie, since the owner's last word */
    bool missed_file;           /* the last step failed at the file */
    int status;                 /* of the step at hand */
    bool runs;                  /* the layer at hand */
    quire_offload_stops stops;
    quire_offload_latch latch;
    uint32_t at;      /* the stop at hand; NONE: before the first */
    uint32_t fetched; /* the stop whose parts the buffer has, or that are queued to it, but for the
                         file's */
    uint32_t staged;  /* the same of the file's pages */
    uint32_t planned; /* the stop that the inner device's addresses say */
    quire_attn_batch batch;
    quire_offload_places places;
    quire_offload_addrs addrs[QUIRE_OFFLOAD_READS_MAX]; /* for each part of a stop */
    uint32_t n_addrs;
    unsigned char *buffer; /* of the device's memory: one part of all places, then the other */
    size_t buffer_bytes;
    size_t page_bytes_max; /* of a page's parts that one stop reads */
};

/* ---- the buffer ---- */

/* Bytes of the first n parts that a stop reads, of a page. */
static size_t parts_bytes(const quire_offload_fetch *f, uint32_t at, uint32_t n)
{
    const quire_offload_stop *stop = &f->stops.list[at];
    size_t bytes = 0;

    for (uint32_t i = 0; i < n && i < stop->n; i++) {
        bytes += quire_offload_host_part_bytes(f->host, stop->parts[i]);
    }
    return bytes;
}

static size_t stop_bytes(const quire_offload_fetch *f, uint32_t at)
{
    return parts_bytes(f, at, QUIRE_OFFLOAD_READS_MAX);
}

static size_t stop_bytes_max(const quire_offload_fetch *f)
{
    size_t most = 0;

    for (uint32_t at = 0; at < f->stops.n; at++) {
        most = stop_bytes(f, at) > most ? stop_bytes(f, at) : most;
    }
    return most;
}

uint64_t quire_offload_fetch_bytes(const quire_offload_fetch *f, uint32_t n_stripes)
{
    return (uint64_t)n_stripes * QUIRE_OFFLOAD_STRIPE * f->page_bytes_max;
}

void quire_offload_fetch_give(quire_offload_fetch *f)
{
    if (f->buffer != NULL) {
        f->memory.unmap(f->memory.ctx, f->buffer, f->buffer_bytes);
        f->buffer = NULL;
        f->buffer_bytes = 0;
    }
}

void quire_offload_fetch_rest(quire_offload_fetch *f)
{
    quire_offload_fetch_give(f);
    if (f->stage != NULL) {
        quire_offload_stage_rest(f->stage);
    }
}

/* The budget has room for the buffer, but free extents may have the memory. */
static int buffer_reserve(quire_offload_fetch *f)
{
    const size_t bytes = f->places.n_copied * f->page_bytes_max;
    const size_t most =
        (size_t)quire_offload_fetch_bytes(f, quire_offload_tiers_stripes_used(f->tiers));

    if (bytes <= f->buffer_bytes) {
        return QUIRE_OK;
    }
    quire_offload_fetch_give(f);
    f->buffer = f->memory.map(f->memory.ctx, most);
    if (f->buffer == NULL) {
        (void)quire_cache_trim(f->cache, 0);
        f->buffer = f->memory.map(f->memory.ctx, most);
    }
    QUIRE_FAIL_IF(f->buffer == NULL, QUIRE_NOMEM);
    f->buffer_bytes = most;
    return QUIRE_OK;
}

/* The i-th part that a stop reads of a page, in the host's memory or in the stage. */
static const unsigned char *bytes_at(const quire_offload_fetch *f, const quire_offload_place *p,
                                     uint32_t at, uint32_t i)
{
    const uint32_t part = f->stops.list[at].parts[i];
    const quire_offload_staged staged = { .stripe = p->at / QUIRE_OFFLOAD_STRIPE,
                                          .slot = p->at % QUIRE_OFFLOAD_STRIPE,
                                          .part = part,
                                          .room = i };

    return p->is_in_file ? quire_offload_stage_at(f->stage, &staged)
                         : quire_offload_host_at(f->host, p->at, part);
}

/* Queue the i-th part of a stop, of all places that are copied to the buffer, those of the file or
 * the others. Neighbours in a stripe are one piece. */
static int part_queue(quire_offload_fetch *f, uint32_t stop, uint32_t part, bool is_in_file)
{
    const size_t bytes = quire_offload_host_part_bytes(f->host, f->stops.list[stop].parts[part]);
    unsigned char *to = f->buffer + f->places.n_copied * parts_bytes(f, stop, part);
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    uint32_t n_pages = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->places.n_copied;) {
        const uint32_t run = quire_offload_places_run(&f->places, i);

        if (f->places.list[i].is_in_file == is_in_file) {
            pieces[n++] = (quire_page_piece){ .to = to + i * bytes,
                                              .from = bytes_at(f, &f->places.list[i], stop, part),
                                              .bytes = run * bytes };
            n_pages += run;
        }
        i += run;
        if (n == QUIRE_PAGE_PIECES || (n > 0 && i == f->places.n_copied)) {
            QUIRE_TRY(f->memory.copy(f->memory.ctx, QUIRE_PAGE_COPY_FETCH, pieces, n));
            n = 0;
        }
    }
    if (!is_in_file) { /* the file counts its own reads */
        quire_offload_host_fetched(f->host, n_pages * bytes);
    }
    return QUIRE_OK;
}

/* The figures count a copy that failed, and not the loss of the device. */
static int failed(quire_offload_fetch *f, int rc)
{
    if (rc < 0 && rc != QUIRE_LOST) {
        quire_offload_host_failed(f->host, "copy to the device", rc);
    }
    return rc;
}

static int stop_fetch(quire_offload_fetch *f, uint32_t at)
{
    f->fetched = at;
    for (uint32_t i = 0; i < f->stops.list[at].n; i++) {
        QUIRE_TRY(failed(f, part_queue(f, at, i, false)));
    }
    return QUIRE_OK;
}

/* The part that is read from the file behind the i-th one of a stop. */
static uint32_t part_behind(const quire_offload_fetch *f, uint32_t at, uint32_t i)
{
    const quire_offload_stop *stop = &f->stops.list[at];

    return i + 1 < stop->n ? stop->parts[i + 1]
                           : f->stops.list[quire_offload_stops_next(&f->stops, at)].parts[0];
}

/* Wait for the parts of the file's pages. The result of the stop before is there, so no copy reads
 * the stage. */
static int stop_stage(quire_offload_fetch *f, uint32_t at)
{
    f->staged = at;
    for (uint32_t i = 0; i < f->stops.list[at].n && f->places.n_stripes > 0; i++) {
        const int rc = quire_offload_stage_take(f->stage, f->stops.list[at].parts[i], i,
                                                part_behind(f, at, i));

        if (rc < 0) {
            f->missed_file = true;
            return rc;
        }
        QUIRE_TRY(failed(f, part_queue(f, at, i, true)));
    }
    return QUIRE_OK;
}

/* ---- plan ---- */

/* Let the pages' i-th addresses say where the i-th part of a stop lies, as if it were in an extent.
 */
static void part_point(quire_offload_fetch *f, uint32_t stop, uint32_t part)
{
    const uint32_t number = f->stops.list[stop].parts[part];
    const size_t bytes = quire_offload_host_part_bytes(f->host, number);
    const unsigned char *buffer = f->buffer + f->places.n_copied * parts_bytes(f, stop, part);
    /* Lanes add the part's offset in an extent. */
    const size_t offset = quire_offload_host_part_offset(f->host, number);

    for (uint32_t i = 0; i < f->places.n; i++) {
        const quire_offload_place *at = &f->places.list[i];
        const uintptr_t begin =
            at->is_copied ? (uintptr_t)buffer + i * bytes : (uintptr_t)bytes_at(f, at, stop, part);

        f->addrs[part].of_pages[at->page] = (quire_page_addr){
            // NOLINTNEXTLINE(performance-no-int-to-ptr): an address outside of the memory
            .extent = (unsigned char *)(begin - offset),
            .memory = at->is_copied ? f->inner.memory : QUIRE_MEMORY_HOST,
        };
    }
}

/* Plan with the addresses of a stop: a device takes addresses when it plans. Those in the host's
 * memory it reads when it runs. */
static int stop_plan(quire_offload_fetch *f, uint32_t at)
{
    const bool is_first = f->planned == STOP_NONE;

    for (uint32_t i = 0; i < f->stops.list[at].n; i++) {
        part_point(f, at, i);
    }
    f->planned = at;
    return is_first || f->places.n_copied > 0 ? f->inner.plan(f->inner.ctx, &f->batch) : QUIRE_OK;
}

/* Have the file's pages read, from a part on. */
static int stage_begin(quire_offload_fetch *f, uint32_t part)
{
    const int rc = f->places.n_stripes > 0 ? quire_offload_stage_begin(f->stage, f->places.stripes,
                                                                       f->places.n_stripes, part)
                                           : QUIRE_OK;

    f->missed_file = rc < 0;
    return rc;
}

/* Addresses of the batch's pages, for all parts of a stop. */
static int batch_take(quire_offload_fetch *f, const quire_attn_batch *batch)
{
    for (uint32_t i = 0; i < f->n_addrs; i++) {
        QUIRE_TRY(quire_offload_addrs_copy(&f->addrs[i], f->cache, batch));
    }
    f->batch = *batch;
    f->batch.page_addr = f->addrs[0].of_pages;
    f->batch.page_addr_2 = f->n_addrs > 1 ? f->addrs[1].of_pages : NULL;
    return QUIRE_OK;
}

/* The offloaded pages of the batch, from a stop on. */
static int fetch_begin(quire_offload_fetch *f, const quire_attn_batch *batch, uint32_t at)
{
    QUIRE_TRY(stage_begin(f, f->stops.list[at].parts[0]));
    QUIRE_TRY(batch_take(f, batch));
    QUIRE_TRY(buffer_reserve(f));
    f->is_active = true;
    f->has_attended = f->has_attended || f->places.n_copied < f->places.n;
    return stop_fetch(f, at);
}

/* ---- the device ---- */

static int step_plan(quire_offload_fetch *f, const quire_attn_batch *batch)
{
    f->status = QUIRE_OK;
    f->is_active = f->missed_file = false;
    f->at = f->fetched = f->staged = f->planned = STOP_NONE;
    if (quire_cache_pages_offloaded(f->cache) > 0) {
        quire_offload_tiers_step(f->tiers);
        QUIRE_TRY(quire_offload_places_list(&f->places, batch, f->may_attend));
        if (f->places.n > 0) {
            QUIRE_TRY(fetch_begin(f, batch, 0));
        }
    }
    return f->is_active ? stop_plan(f, 0) : f->inner.plan(f->inner.ctx, batch);
}

/* The rows with which the step goes on read the same offloaded pages as all of its rows, or some of
 * these pages. If they read the same, the pages in the buffer are used again. */
static int rest_plan(quire_offload_fetch *f, const quire_attn_batch *batch)
{
    const uint32_t at = f->at != STOP_NONE ? f->at : 0;
    const uint32_t n_places = f->places.n;
    const uint32_t n_copied = f->places.n_copied;

    QUIRE_TRY(quire_offload_places_list(&f->places, batch, f->may_attend));
    f->is_active = f->places.n > 0;
    if (!f->is_active) {
        return f->inner.plan(f->inner.ctx, batch);
    }
    if (f->places.n == n_places && f->places.n_copied == n_copied) {
        QUIRE_TRY(batch_take(f, batch));
    } else {
        f->staged = STOP_NONE;
        QUIRE_TRY(fetch_begin(f, batch, at));
    }
    if (f->staged == STOP_NONE) {
        QUIRE_TRY(stop_stage(f, at));
    }
    f->planned = STOP_NONE;
    return stop_plan(f, at);
}

static int fetch_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_offload_fetch *f = ctx;
    int rc;

    quire_offload_latch_close(&f->latch);
    if (!batch->is_rest) {
        rc = step_plan(f, batch);
    } else if (f->status < 0) {
        return QUIRE_OK; /* the step does no more work: sync() says why */
    } else {
        rc = f->is_active ? rest_plan(f, batch) : f->inner.plan(f->inner.ctx, batch);
        f->runs = f->runs && rc == QUIRE_OK;
    }
    if (rc < 0) {
        f->is_active = false;
    }
    return rc;
}

static size_t offset_of(const void *medium, uint32_t part)
{
    return quire_offload_host_part_offset(medium, part);
}

static quire_offload_parts parts_of(const quire_offload_fetch *f)
{
    return (quire_offload_parts){ .medium = f->host,
                                  .offset = offset_of,
                                  .n = quire_offload_host_n_parts(f->host),
                                  .group = f->places.group };
}

/* The parts that a layer reads: check() has found a stop that has them. */
static quire_offload_stop stop_of(const quire_offload_fetch *f, const quire_attn_layer *layer)
{
    const quire_offload_parts parts = parts_of(f);
    quire_offload_stop stop;

    (void)quire_offload_stop_of(&parts, layer, &stop);
    return stop;
}

/* Whether the parts of a stop are those that `other` says. */
static bool is_at(const quire_offload_fetch *f, uint32_t other, uint32_t at)
{
    return other != STOP_NONE &&
           quire_offload_stop_is_same(&f->stops.list[other], &f->stops.list[at]);
}

/* The parts of the next layer, which reads these, are in the buffer, or queued to it, from here on.
 */
static int layer_enter(quire_offload_fetch *f, const quire_offload_stop *stop)
{
    f->at = quire_offload_stops_find(&f->stops, f->at, stop);
    if (!is_at(f, f->fetched, f->at)) {
        QUIRE_TRY(stop_fetch(f, f->at));
    }
    if (!is_at(f, f->staged, f->at)) {
        QUIRE_TRY(stop_stage(f, f->at));
    }
    return is_at(f, f->planned, f->at) ? QUIRE_OK : stop_plan(f, f->at);
}

static void note(quire_offload_fetch *f, int rc)
{
    if (rc < 0 && f->status == QUIRE_OK) {
        f->status = rc;
    }
}

/* Thread 0. */
static void enter(quire_offload_fetch *f, const quire_offload_stop *stop)
{
    if (f->status == QUIRE_OK && f->is_active && stop->n > 0) {
        note(f, layer_enter(f, stop));
    }
    f->runs = f->status == QUIRE_OK;
}

static void fetch_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                         uint32_t n_threads)
{
    quire_offload_fetch *f = ctx;
    const quire_offload_stop stop = stop_of(f, layer);

    if (thread != 0) {
        return;
    }
    enter(f, &stop);
    if (f->runs) {
        f->inner.append(f->inner.ctx, layer, thread, n_threads);
    }
}

/* Queue the parts of the next layer. */
static int next_fetch(quire_offload_fetch *f)
{
    const uint32_t next = f->at + 1;

    return next < f->stops.n && !is_at(f, f->fetched, next) ? stop_fetch(f, next) : QUIRE_OK;
}

/* All threads run the layer or none: `runs` has not changed since the barrier behind append(), or
 * in a layer without an append() since thread 0 opened the latch. */
static void fetch_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                      uint32_t n_threads)
{
    quire_offload_fetch *f = ctx;
    const quire_offload_stop stop = stop_of(f, layer);
    const bool is_active = f->is_active && stop.n > 0;
    quire_attn_layer own;

    if (is_active && !quire_offload_layer_stores(layer)) {
        if (thread == 0) {
            enter(f, &stop);
            quire_offload_latch_open(&f->latch, call);
        } else {
            quire_offload_latch_wait(&f->latch, call);
        }
    }
    if (!f->runs) {
        return;
    }
    if (is_active && stop.n > 1) {
        const quire_offload_parts parts = parts_of(f);

        own = quire_offload_layer_at(&parts, layer, &stop);
        layer = &own;
    }
    f->inner.run(f->inner.ctx, layer, call, thread, n_threads);
    if (is_active && thread == 0) {
        quire_offload_host_attended(f->host,
                                    (f->places.n - f->places.n_copied) * stop_bytes(f, f->at));
        note(f, next_fetch(f));
    }
}

/* A step without offloaded pages is the inner device's. */
static bool fetch_queues(void *ctx)
{
    const quire_offload_fetch *f = ctx;

    return !f->is_active && f->status == QUIRE_OK && f->inner.queues(f->inner.ctx);
}

static void fetch_queue(void *ctx, const quire_attn_layer *layer, uint32_t call, unsigned what)
{
    const quire_offload_fetch *f = ctx;

    f->inner.queue(f->inner.ctx, layer, call, what);
}

static int fetch_sync(void *ctx)
{
    quire_offload_fetch *f = ctx;
    const int rc = f->inner.sync(f->inner.ctx);
    const int status = f->status;

    f->status = QUIRE_OK;
    if (f->is_active && status == QUIRE_OK && rc == QUIRE_IO) {
        (void)failed(f, rc);
    }
    f->is_active = false;
    return rc < 0 ? rc : status;
}

static int fetch_check(void *ctx, const quire_attn_layer *layer)
{
    const quire_offload_fetch *f = ctx;
    const quire_offload_parts parts = parts_of(f);

    QUIRE_TRY(quire_offload_layer_check(&parts, &f->stops, layer));
    return f->inner.check(f->inner.ctx, layer);
}

quire_attn_device quire_offload_fetch_device(quire_offload_fetch *f)
{
    return (quire_attn_device){ .name = f->inner.name,
                                .memory = f->inner.memory,
                                .ctx = f,
                                .check = fetch_check,
                                .plan = fetch_plan,
                                .append = fetch_append,
                                .run = fetch_run,
                                .sync = fetch_sync,
                                .queues = f->inner.queue != NULL ? fetch_queues : NULL,
                                .queue = f->inner.queue != NULL ? fetch_queue : NULL };
}

/* ---- opening ---- */

int quire_offload_fetch_open(quire_offload_fetch **out, const quire_offload_fetch_opts *opts)
{
    quire_offload_fetch *f = calloc(1, sizeof *f);
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(f == NULL, QUIRE_NOMEM);
    f->inner = *opts->inner;
    f->memory = *opts->memory;
    f->cache = opts->cache;
    f->places.group = opts->group;
    f->places.tiers = opts->tiers;
    f->tiers = opts->tiers;
    f->host = quire_offload_tiers_host(opts->tiers);
    f->stage = quire_offload_tiers_stage(opts->tiers);
    quire_offload_latch_init(&f->latch);
    rc = quire_offload_stops_init(&f->stops, opts->stops, opts->n_stops,
                                  quire_offload_host_n_parts(f->host));
    if (rc < 0) {
        quire_offload_fetch_close(f);
        return rc;
    }
    f->n_addrs = quire_offload_stops_reads_max(&f->stops);
    f->page_bytes_max = stop_bytes_max(f);
    *out = f;
    return QUIRE_OK;
}

void quire_offload_fetch_attend(quire_offload_fetch *f, bool may_attend)
{
    f->may_attend = may_attend;
    f->has_attended = false;
}

bool quire_offload_fetch_attended(const quire_offload_fetch *f)
{
    return f->has_attended;
}

bool quire_offload_fetch_missed_file(const quire_offload_fetch *f)
{
    return f->missed_file;
}

void quire_offload_fetch_close(quire_offload_fetch *f)
{
    if (f == NULL) {
        return;
    }
    quire_offload_fetch_give(f);
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_READS_MAX; i++) {
        free(f->addrs[i].of_pages);
    }
    quire_offload_stops_fini(&f->stops);
    quire_offload_latch_fini(&f->latch);
    quire_offload_places_fini(&f->places);
    free(f);
}
