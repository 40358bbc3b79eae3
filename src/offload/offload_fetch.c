/* offload_fetch.c - see offload_fetch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_fetch.h"

#include "base/check.h"
#include "offload/offload_batch.h"

#include <stdlib.h>
#include <string.h>

#define PART_NONE  UINT32_MAX
#define PLACES_MIN 256u

/* An offloaded page of the batch. If it is copied, its place in the buffer is its number in
 * places[]. */
typedef struct place {
    quire_page_id page;
    uint32_t slot;
    uint32_t at;     /* the slot of the host's memory, or number in the stage's list and slot */
    bool is_in_file; /* and comes by the stage */
    bool is_copied;  /* to the buffer; else attended where it lies */
} place;

struct quire_offload_fetch {
    quire_attn_device inner;
    quire_page_memory memory;
    quire_cache *cache;
    quire_offload_tiers *tiers;
    quire_offload_host *host;   /* of the tiers */
    quire_offload_stage *stage; /* likewise; NULL: no file */
    quire_group_id group;
    bool may_attend;   /* the next steps: quire_offload_fetch_attend() */
    bool is_active;    /* the step at hand has offloaded pages */
    bool has_attended; /* some of them where they lie, since the owner's last word */
    bool missed_file;  /* the last step failed at the file */
    int status;        /* of the step at hand */
    bool runs;         /* the layer at hand */
    uint32_t
        fetched;     /* the part that the buffer has, or that is queued to it, but for the file's */
    uint32_t staged; /* the same of the file's pages */
    uint32_t planned; /* the part that the inner device's addresses say */
    quire_attn_batch batch;
    place *places; /* [n_places], of [places_max]; those that are copied come first */
    uint32_t n_places;
    uint32_t n_copied;
    uint32_t places_max;
    uint32_t *stripes; /* [n_stripes], of [places_max]: of the file, in the order of the stage */
    uint32_t n_stripes;
    quire_offload_addrs addrs;
    unsigned char *buffer; /* of the device's memory */
    size_t buffer_bytes;
};

/* ---- the buffer ---- */

uint64_t quire_offload_fetch_bytes(const quire_offload_tiers *tiers, uint32_t n_stripes)
{
    return (uint64_t)n_stripes * QUIRE_OFFLOAD_STRIPE *
           quire_offload_host_part_bytes_max(quire_offload_tiers_host(tiers));
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
    const size_t bytes = f->n_copied * quire_offload_host_part_bytes_max(f->host);
    const size_t most =
        (size_t)quire_offload_fetch_bytes(f->tiers, quire_offload_tiers_stripes_used(f->tiers));

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

/* One part of a page, in the host's memory or in the stage. */
static const unsigned char *bytes_at(const quire_offload_fetch *f, const place *p, uint32_t part)
{
    return p->is_in_file ? quire_offload_stage_at(f->stage, p->at / QUIRE_OFFLOAD_STRIPE,
                                                  p->at % QUIRE_OFFLOAD_STRIPE, part)
                         : quire_offload_host_at(f->host, p->at, part);
}

/* Places from i on that are neighbours in a stripe, and so in its place. */
static uint32_t run_length(const quire_offload_fetch *f, uint32_t i)
{
    const uint32_t slot = f->places[i].slot;
    uint32_t n = 1;

    while (i + n < f->n_copied && f->places[i + n].slot == slot + n &&
           (slot + n) % QUIRE_OFFLOAD_STRIPE != 0) {
        n++;
    }
    return n;
}

/* Queue one part of all places that are copied to the buffer, those of the file or the others.
 * Neighbours in a stripe are one piece. */
static int part_queue(quire_offload_fetch *f, uint32_t part, bool is_in_file)
{
    const size_t bytes = quire_offload_host_part_bytes(f->host, part);
    quire_page_piece pieces[QUIRE_PAGE_PIECES];
    uint32_t n_pages = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_copied;) {
        const uint32_t run = run_length(f, i);

        if (f->places[i].is_in_file == is_in_file) {
            pieces[n++] = (quire_page_piece){ .to = f->buffer + i * bytes,
                                              .from = bytes_at(f, &f->places[i], part),
                                              .bytes = run * bytes };
            n_pages += run;
        }
        i += run;
        if (n == QUIRE_PAGE_PIECES || (n > 0 && i == f->n_copied)) {
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

static int part_fetch(quire_offload_fetch *f, uint32_t part)
{
    f->fetched = part;
    return failed(f, part_queue(f, part, false));
}

/* Wait for one part of the file's pages. The result of the part before is there, so no copy reads
 * the stage. */
static int part_stage(quire_offload_fetch *f, uint32_t part)
{
    int rc;

    f->staged = part;
    if (f->n_stripes == 0) {
        return QUIRE_OK;
    }
    rc = quire_offload_stage_take(f->stage, part);
    if (rc < 0) {
        f->missed_file = true;
        return rc;
    }
    return failed(f, part_queue(f, part, true));
}

/* ---- plan ---- */

static int places_grow(quire_offload_fetch *f)
{
    const uint32_t n = f->places_max != 0 ? f->places_max * 2 : PLACES_MIN;
    place *places = realloc(f->places, n * sizeof *places);
    uint32_t *stripes;

    QUIRE_FAIL_IF(places == NULL, QUIRE_NOMEM);
    f->places = places;
    stripes = realloc(f->stripes, n * sizeof *stripes);
    QUIRE_FAIL_IF(stripes == NULL, QUIRE_NOMEM);
    f->stripes = stripes;
    f->places_max = n;
    return QUIRE_OK;
}

static int place_add(void *ctx, quire_page_id page, uint32_t slot)
{
    quire_offload_fetch *f = ctx;

    if (f->n_places == f->places_max) {
        QUIRE_TRY(places_grow(f));
    }
    f->places[f->n_places++] = (place){ .page = page, .slot = slot, .is_copied = true };
    return QUIRE_OK;
}

static int by_slot(const void *a, const void *b)
{
    const place *x = a;
    const place *y = b;

    return (x->slot > y->slot) - (x->slot < y->slot);
}

/* Those that are copied first, each kind by slot. */
static int by_kind(const void *a, const void *b)
{
    const place *x = a;
    const place *y = b;

    return x->is_copied != y->is_copied ? y->is_copied - x->is_copied : by_slot(a, b);
}

static const quire_page_entry *entry_of(const quire_attn_table *table, uint32_t i)
{
    return &table->leaves[i / QUIRE_LEAF_ENTRIES][i % QUIRE_LEAF_ENTRIES];
}

/* Whether the pages of entry i in other groups are there: its hot tiles. */
static bool has_beside(const quire_offload_fetch *f, const quire_attn_seq *seq, uint32_t i)
{
    for (uint32_t g = 0; g < QUIRE_GROUPS_MAX; g++) {
        if (g != f->group && i < seq->tables[g].n_entries &&
            entry_of(&seq->tables[g], i)->page != QUIRE_PAGE_NULL) {
            return true;
        }
    }
    return false;
}

/* The offloaded pages of a sequence that have pages beside them on the device are copied. */
static void beside_mark(quire_offload_fetch *f, const quire_attn_batch *batch,
                        const quire_attn_seq *seq)
{
    for (uint32_t i = 0; i < seq->tables[f->group].n_entries; i++) {
        const quire_page_id page = entry_of(&seq->tables[f->group], i)->page;
        const quire_page_addr *addr = &batch->page_addr[page];

        if (page != QUIRE_PAGE_NULL && addr->memory == QUIRE_MEMORY_OFFLOADED &&
            has_beside(f, seq, i)) {
            const place key = { .slot = addr->slot };
            place *at = bsearch(&key, f->places, f->n_places, sizeof *f->places, by_slot);

            at->is_copied = true; /* places[] has all of the batch */
        }
    }
}

/* Mark the places that the step copies to the device; the CPU attends the other pages in place.
 * places[] is by slot. */
static void places_divide(quire_offload_fetch *f, const quire_attn_batch *batch)
{
    for (uint32_t i = 0; i < f->n_places; i++) {
        f->places[i].is_copied = false;
    }
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        beside_mark(f, batch, &batch->seqs[s]);
    }
    qsort(f->places, f->n_places, sizeof *f->places, by_kind);
    f->n_copied = 0;
    while (f->n_copied < f->n_places && f->places[f->n_copied].is_copied) {
        f->n_copied++;
    }
}

/* Find the pages in their places, and list the stripes of the file. places[] is by slot. */
static void places_find(quire_offload_fetch *f)
{
    uint32_t last = UINT32_MAX; /* the stripe listed last */

    f->n_stripes = 0;
    quire_offload_tiers_step(f->tiers);
    for (uint32_t i = 0; i < f->n_places; i++) {
        place *p = &f->places[i];

        p->at = quire_offload_tiers_use(f->tiers, p->slot);
        p->is_in_file = quire_offload_tiers_in_file(f->tiers, p->slot);
        if (!p->is_in_file) {
            continue;
        }
        if (p->slot / QUIRE_OFFLOAD_STRIPE != last) {
            last = p->slot / QUIRE_OFFLOAD_STRIPE;
            f->stripes[f->n_stripes++] = p->at / QUIRE_OFFLOAD_STRIPE;
        }
        p->at = (f->n_stripes - 1) * QUIRE_OFFLOAD_STRIPE + p->slot % QUIRE_OFFLOAD_STRIPE;
    }
}

/* List the batch's offloaded pages by slot, each once. */
static int places_list(quire_offload_fetch *f, const quire_attn_batch *batch)
{
    uint32_t n = 0;

    f->n_places = 0;
    QUIRE_TRY(quire_offload_pages_each(batch, f->group, place_add, f));
    if (f->n_places > 1) {
        qsort(f->places, f->n_places, sizeof *f->places, by_slot);
    }
    for (uint32_t i = 0; i < f->n_places; i++) {
        if (n == 0 || f->places[n - 1].slot != f->places[i].slot) {
            f->places[n++] = f->places[i];
        }
    }
    f->n_places = f->n_copied = n;
    places_find(f);
    if (f->may_attend && n > 0) {
        places_divide(f, batch);
    }
    return QUIRE_OK;
}

/* Let the pages' addresses say where a part lies, as if it were in an extent. */
static void part_point(quire_offload_fetch *f, uint32_t part)
{
    const size_t bytes = quire_offload_host_part_bytes(f->host, part);
    /* Lanes add the part's offset in an extent. */
    const size_t offset = quire_offload_host_part_offset(f->host, part);

    for (uint32_t i = 0; i < f->n_places; i++) {
        const place *at = &f->places[i];
        const uintptr_t begin =
            at->is_copied ? (uintptr_t)f->buffer + i * bytes : (uintptr_t)bytes_at(f, at, part);

        f->addrs.of_pages[at->page] = (quire_page_addr){
            // NOLINTNEXTLINE(performance-no-int-to-ptr): an address outside of the memory
            .extent = (unsigned char *)(begin - offset),
            .memory = at->is_copied ? f->inner.memory : QUIRE_MEMORY_HOST,
        };
    }
}

/* Plan with the addresses of a part: a device takes addresses when it plans. Those in the host's
 * memory it reads when it runs. */
static int part_plan(quire_offload_fetch *f, uint32_t part)
{
    const bool is_first = f->planned == PART_NONE;

    part_point(f, part);
    f->planned = part;
    return is_first || f->n_copied > 0 ? f->inner.plan(f->inner.ctx, &f->batch) : QUIRE_OK;
}

/* Have the file's pages read. */
static int stage_begin(quire_offload_fetch *f)
{
    const int rc =
        f->n_stripes > 0 ? quire_offload_stage_begin(f->stage, f->stripes, f->n_stripes) : QUIRE_OK;

    f->missed_file = rc < 0;
    return rc;
}

static int fetch_begin(quire_offload_fetch *f, const quire_attn_batch *batch)
{
    QUIRE_TRY(places_list(f, batch));
    if (f->n_places == 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(stage_begin(f));
    QUIRE_TRY(quire_offload_addrs_copy(&f->addrs, f->cache, batch));
    QUIRE_TRY(buffer_reserve(f));
    f->is_active = true;
    f->has_attended = f->has_attended || f->n_copied < f->n_places;
    f->batch = *batch;
    f->batch.page_addr = f->addrs.of_pages;
    return part_fetch(f, 0);
}

/* ---- the device ---- */

static int fetch_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_offload_fetch *f = ctx;
    int rc = QUIRE_OK;

    f->status = QUIRE_OK;
    f->is_active = f->missed_file = false;
    f->fetched = f->staged = f->planned = PART_NONE;
    if (quire_cache_pages_offloaded(f->cache) > 0) {
        rc = fetch_begin(f, batch);
    }
    if (rc == QUIRE_OK) {
        rc = f->is_active ? part_plan(f, 0) : f->inner.plan(f->inner.ctx, batch);
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
                                  .n = quire_offload_host_n_parts(f->host) };
}

static uint32_t part_of(const quire_offload_fetch *f, const quire_attn_layer *layer)
{
    const quire_offload_parts parts = parts_of(f);

    return quire_offload_part_of(&parts, layer);
}

/* The layer's part is in the buffer, or queued to it, from here on. */
static int part_enter(quire_offload_fetch *f, uint32_t part)
{
    if (f->fetched != part) {
        QUIRE_TRY(part_fetch(f, part));
    }
    if (f->staged != part) {
        QUIRE_TRY(part_stage(f, part));
    }
    return f->planned != part ? part_plan(f, part) : QUIRE_OK;
}

static void note(quire_offload_fetch *f, int rc)
{
    if (rc < 0 && f->status == QUIRE_OK) {
        f->status = rc;
    }
}

static void fetch_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                         uint32_t n_threads)
{
    quire_offload_fetch *f = ctx;

    if (thread != 0) {
        return;
    }
    if (f->status == QUIRE_OK && f->is_active) {
        note(f, part_enter(f, part_of(f, layer)));
    }
    f->runs = f->status == QUIRE_OK;
    if (f->runs) {
        f->inner.append(f->inner.ctx, layer, thread, n_threads);
    }
}

/* All threads run the layer or none: `runs` has not changed since the barrier behind append(). */
static void fetch_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                      uint32_t n_threads)
{
    quire_offload_fetch *f = ctx;

    if (!f->runs) {
        return;
    }
    f->inner.run(f->inner.ctx, layer, call, thread, n_threads);
    if (thread == 0 && f->is_active) {
        const uint32_t part = part_of(f, layer);
        const size_t bytes = quire_offload_host_part_bytes(f->host, part);

        quire_offload_host_attended(f->host, (f->n_places - f->n_copied) * bytes);
        note(f,
             part + 1 < quire_offload_host_n_parts(f->host) ? part_fetch(f, part + 1) : QUIRE_OK);
    }
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

    QUIRE_TRY(quire_offload_layer_check(&parts, layer));
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
                                .sync = fetch_sync };
}

/* ---- opening ---- */

int quire_offload_fetch_open(quire_offload_fetch **out, const quire_offload_fetch_opts *opts)
{
    quire_offload_fetch *f = calloc(1, sizeof *f);

    *out = f;
    QUIRE_FAIL_IF(f == NULL, QUIRE_NOMEM);
    f->inner = *opts->inner;
    f->memory = *opts->memory;
    f->cache = opts->cache;
    f->group = opts->group;
    f->tiers = opts->tiers;
    f->host = quire_offload_tiers_host(opts->tiers);
    f->stage = quire_offload_tiers_stage(opts->tiers);
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
    free(f->addrs.of_pages);
    free(f->places);
    free(f->stripes);
    free(f);
}
