/* offload_tiers.c - see offload_tiers.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_tiers.h"

#include "base/check.h"
#include "base/num.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Stripes of the host that stay free when one comes up. */
#define STRIPES_SPARE 1u
/* In the file; numbers of slots have 32 bits. */
#define STRIPES_MOST (UINT32_MAX / QUIRE_OFFLOAD_STRIPE / 4)

typedef struct tier_stripe {
    uint64_t read_at; /* the step that read it last, or before which it came */
    uint64_t came_at; /* counts stripes */
    uint32_t at;      /* its number in its place */
    uint8_t slots;    /* a bit by slot; 0: the number is free */
    uint8_t order;
    bool is_in_file;
} tier_stripe;

struct quire_offload_tiers {
    quire_offload_host *host;
    quire_offload_file *file; /* NULL: none */
    quire_offload_stage *stage;
    tier_stripe *stripes; /* [stripes_max] */
    uint32_t stripes_max;
    uint32_t stripe_hint;     /* no free number lies below */
    atomic_uint stripes_used; /* the owner counts, any thread reads */
    uint32_t n_in_file;       /* of them */
    uint64_t step;
    uint64_t n_came;
    size_t page_bytes;
    unsigned char *page; /* [page_bytes] of one on its way up */
    bool rests;          /* raise() failed since the last release */
    quire_offload_below_stats stats;
};

/* ---- opening ---- */

static uint32_t n_rooms_of(const quire_offload_tiers_opts *opts)
{
    return opts->n_reads > 0 ? opts->n_reads : 1;
}

/* Stripes that the file may have, 0: none is of use. *stage_bytes: of the host's memory. */
static uint32_t file_stripes(const quire_offload_tiers_opts *opts, uint64_t *stage_bytes)
{
    const quire_offload_file_opts *file = opts->file;
    uint64_t host_bytes = 0, part_bytes = 0; /* of a stripe in the host's memory, and of a part */
    uint64_t least, each, n;

    for (uint32_t p = 0; p < file->n_parts; p++) {
        const uint64_t bytes = quire_offload_file_bytes_min(&file->part_bytes[p], 1, false);

        host_bytes += QUIRE_OFFLOAD_STRIPE * file->part_bytes[p];
        part_bytes = quire_max_u64(part_bytes, bytes);
    }
    least = quire_offload_file_bytes_min(file->part_bytes, file->n_parts, false);
    each = quire_offload_stage_bytes(part_bytes, n_rooms_of(opts));
    if (each >= host_bytes || opts->host_bytes < host_bytes) {
        return 0;
    }
    n = (uint64_t)((double)opts->host_bytes * QUIRE_OFFLOAD_STAGE_SHARE) / each;
    n = quire_min_u64(n, (opts->host_bytes - host_bytes) / each); /* a stripe stays in any case */
    n = quire_min_u64(n, file->capacity_bytes / least);
    n = quire_min_u64(n, STRIPES_MOST);
    *stage_bytes = n * each;
    return (uint32_t)n;
}

static int file_open(quire_offload_tiers *t, const quire_offload_tiers_opts *opts,
                     uint32_t n_stripes, quire_error *err)
{
    quire_offload_file_opts file = *opts->file;
    int rc;

    /* Never less than the file rounds to whole stripes. */
    file.capacity_bytes =
        n_stripes * quire_offload_file_bytes_min(file.part_bytes, file.n_parts, false);
    file.extent_pages = QUIRE_OFFLOAD_STRIPE; /* pages come from a stripe in the host's memory */
    file.kept_bytes = NULL;
    QUIRE_TRY(quire_offload_file_open(&t->file, &file, err));
    rc = quire_offload_stage_open(&t->stage, opts->memory, t->file, n_rooms_of(opts));
    return rc < 0 ? quire_error_set(err, rc, "no memory for offloaded pages") : rc;
}

static int places_open(quire_offload_tiers *t, const quire_offload_tiers_opts *opts,
                       quire_error *err)
{
    quire_offload_file_opts host = *opts->file;
    uint64_t stage_bytes = 0;
    uint32_t n = host.dir != NULL ? file_stripes(opts, &stage_bytes) : 0;

    host.capacity_bytes = opts->host_bytes - (n > 0 ? stage_bytes : 0);
    QUIRE_TRY(quire_offload_host_open(&t->host, opts->memory, &host, err));
    return n > 0 ? file_open(t, opts, n, err) : QUIRE_OK;
}

static int tables_open(quire_offload_tiers *t, const quire_offload_file_opts *parts)
{
    quire_offload_file_stats file = { .stripes_max = 0 };

    if (t->file != NULL) {
        quire_offload_file_stats_get(t->file, &file);
    }
    for (uint32_t p = 0; p < parts->n_parts; p++) {
        t->page_bytes += parts->part_bytes[p];
    }
    t->stripes_max = quire_offload_host_stripes_max(t->host) + file.stripes_max;
    t->stripes = calloc(t->stripes_max, sizeof *t->stripes);
    t->page = malloc(t->page_bytes);
    return t->stripes != NULL && t->page != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

int quire_offload_tiers_open(quire_offload_tiers **out, const quire_offload_tiers_opts *opts,
                             quire_error *err)
{
    quire_offload_tiers *t = calloc(1, sizeof *t);
    int rc;

    *out = NULL;
    if (t == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    rc = places_open(t, opts, err);
    if (rc == QUIRE_OK && tables_open(t, opts->file) < 0) {
        rc = quire_error_set(err, QUIRE_NOMEM, "no memory for offloaded pages");
    }
    if (rc < 0) {
        quire_offload_tiers_close(t);
        return rc;
    }
    *out = t;
    return QUIRE_OK;
}

void quire_offload_tiers_close(quire_offload_tiers *t)
{
    if (t == NULL) {
        return;
    }
    quire_offload_stage_close(t->stage);
    quire_offload_file_close(t->file);
    quire_offload_host_close(t->host);
    free(t->stripes);
    free(t->page);
    free(t);
}

quire_offload_host *quire_offload_tiers_host(const quire_offload_tiers *t)
{
    return t->host;
}

quire_offload_stage *quire_offload_tiers_stage(const quire_offload_tiers *t)
{
    return t->stage;
}

/* ---- stripes ---- */

static uint32_t pages_in(uint8_t slots)
{
    uint32_t n = 0;

    for (; slots != 0; slots &= (uint8_t)(slots - 1)) {
        n++;
    }
    return n;
}

static int number_find(quire_offload_tiers *t, uint32_t *out)
{
    uint32_t i = t->stripe_hint;

    while (i < t->stripes_max && t->stripes[i].slots != 0) {
        i++;
    }
    t->stripe_hint = i;
    QUIRE_FAIL_IF(i == t->stripes_max, QUIRE_LIMIT);
    *out = i;
    return QUIRE_OK;
}

static bool is_colder(const tier_stripe *a, const tier_stripe *b)
{
    if (a->read_at != b->read_at) {
        return a->read_at < b->read_at;
    }
    return a->order != b->order ? a->order < b->order : a->came_at < b->came_at;
}

/* The coldest stripe in the host's memory, or the warmest one in the file; NULL: none. */
static tier_stripe *stripe_find(const quire_offload_tiers *t, bool is_in_file)
{
    tier_stripe *found = NULL;

    for (uint32_t i = 0; i < t->stripes_max; i++) {
        tier_stripe *s = &t->stripes[i];

        if (s->slots != 0 && s->is_in_file == is_in_file &&
            (found == NULL || is_colder(s, found) != is_in_file)) {
            found = s;
        }
    }
    return found;
}

static void places_release(const quire_offload_tiers *t, bool is_in_file, uint32_t at,
                           uint8_t slots)
{
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_STRIPE; i++) {
        const uint32_t slot = at * QUIRE_OFFLOAD_STRIPE + i;

        if ((slots & 1u << i) == 0) {
            continue;
        }
        if (is_in_file) {
            quire_offload_file_release(t->file, slot);
        } else {
            quire_offload_host_release(t->host, slot);
        }
    }
}

/* ---- down ---- */

/* The file takes slots 0 to n - 1 of a stripe; those of released pages are free again at once. */
static int stripe_write(quire_offload_tiers *t, const tier_stripe *s, uint32_t *at)
{
    quire_page_addr pages[QUIRE_OFFLOAD_STRIPE];
    uint32_t n = 0, slot;

    for (uint32_t i = 0; i < QUIRE_OFFLOAD_STRIPE; i++) {
        pages[i] = (quire_page_addr){
            .extent = quire_offload_host_stripe(t->host, s->at),
            .slot = i,
        };
        n = (s->slots & 1u << i) != 0 ? i + 1 : n;
    }
    QUIRE_TRY(quire_offload_file_write(t->file, pages, n, &slot));
    *at = slot / QUIRE_OFFLOAD_STRIPE;
    places_release(t, true, *at, (uint8_t)(((1u << n) - 1u) & ~(uint32_t)s->slots));
    return QUIRE_OK;
}

/* Move the coldest stripe from the host's memory to the file. */
static int lower(quire_offload_tiers *t)
{
    quire_offload_file_stats file;
    tier_stripe *s = stripe_find(t, false);
    uint32_t at;
    int rc;

    QUIRE_FAIL_IF(s == NULL, QUIRE_LIMIT);
    quire_offload_file_stats_get(t->file, &file);
    QUIRE_FAIL_IF(file.is_broken, QUIRE_IO);
    QUIRE_FAIL_IF(t->n_in_file == file.stripes_max, QUIRE_LIMIT);
    if (quire_offload_stage_reserve(t->stage, t->n_in_file + 1) < 0) {
        quire_offload_host_failed(t->host, "pinning memory of the host", QUIRE_NOMEM);
        return QUIRE_LIMIT;
    }
    rc = stripe_write(t, s, &at);
    if (rc < 0) {
        quire_offload_stage_trim(t->stage, t->n_in_file);
        return rc;
    }
    places_release(t, false, s->at, s->slots);
    s->at = at;
    s->is_in_file = true;
    t->n_in_file++;
    t->stats.pages += pages_in(s->slots);
    t->stats.pages_down_total += pages_in(s->slots);
    return QUIRE_OK;
}

int quire_offload_tiers_write(quire_offload_tiers *t, const quire_page_addr *pages,
                              uint32_t n_pages, uint8_t order, uint32_t *first_slot)
{
    uint32_t i, slot;
    int rc;

    QUIRE_TRY(number_find(t, &i));
    rc = quire_offload_host_write(t->host, pages, n_pages, &slot);
    if (rc == QUIRE_LIMIT && t->file != NULL) {
        QUIRE_TRY(lower(t));
        rc = quire_offload_host_write(t->host, pages, n_pages, &slot);
    }
    QUIRE_TRY(rc);
    t->stripes[i] = (tier_stripe){ .read_at = t->step,
                                   .came_at = t->n_came++,
                                   .at = slot / QUIRE_OFFLOAD_STRIPE,
                                   .slots = (uint8_t)((1u << n_pages) - 1u),
                                   .order = order };
    atomic_fetch_add(&t->stripes_used, 1);
    *first_slot = i * QUIRE_OFFLOAD_STRIPE;
    return QUIRE_OK;
}

/* ---- pages in their places ---- */

static tier_stripe *stripe_of(const quire_offload_tiers *t, uint32_t slot)
{
    const uint32_t i = slot / QUIRE_OFFLOAD_STRIPE;

    QUIRE_CHECK(i < t->stripes_max &&
                (t->stripes[i].slots & 1u << slot % QUIRE_OFFLOAD_STRIPE) != 0);
    return &t->stripes[i];
}

static uint32_t slot_at(const tier_stripe *s, uint32_t slot)
{
    return s->at * QUIRE_OFFLOAD_STRIPE + slot % QUIRE_OFFLOAD_STRIPE;
}

void quire_offload_tiers_release(quire_offload_tiers *t, uint32_t slot)
{
    const uint32_t i = slot / QUIRE_OFFLOAD_STRIPE;
    tier_stripe *s = stripe_of(t, slot);
    const uint8_t bit = (uint8_t)(1u << slot % QUIRE_OFFLOAD_STRIPE);

    places_release(t, s->is_in_file, s->at, bit);
    s->slots &= (uint8_t)~bit;
    t->stats.pages -= s->is_in_file;
    t->rests = false;
    if (s->slots == 0) {
        atomic_fetch_sub(&t->stripes_used, 1);
        t->stripe_hint = i < t->stripe_hint ? i : t->stripe_hint;
        if (s->is_in_file) {
            quire_offload_stage_trim(t->stage, --t->n_in_file);
        }
    }
}

int quire_offload_tiers_read(quire_offload_tiers *t, uint32_t slot, void *buffer, size_t bytes)
{
    const tier_stripe *s = stripe_of(t, slot);

    return s->is_in_file ? quire_offload_file_read(t->file, slot_at(s, slot), buffer, bytes)
                         : quire_offload_host_read(t->host, slot_at(s, slot), buffer, bytes);
}

bool quire_offload_tiers_in_file(const quire_offload_tiers *t, uint32_t slot)
{
    return stripe_of(t, slot)->is_in_file;
}

uint32_t quire_offload_tiers_use(quire_offload_tiers *t, uint32_t slot)
{
    tier_stripe *s = stripe_of(t, slot);

    s->read_at = t->step;
    return slot_at(s, slot);
}

void quire_offload_tiers_step(quire_offload_tiers *t)
{
    t->step++;
}

/* ---- up ---- */

/* Copy the pages of a stripe in the file to slots of the host. */
static int stripe_read(const quire_offload_tiers *t, const tier_stripe *s, uint32_t first_slot)
{
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_STRIPE; i++) {
        if ((s->slots & 1u << i) != 0) {
            QUIRE_TRY(quire_offload_file_read(t->file, slot_at(s, i), t->page, t->page_bytes));
            quire_offload_host_fill(t->host, first_slot + i, t->page);
        }
    }
    return QUIRE_OK;
}

static int raise_stripe(quire_offload_tiers *t, tier_stripe *s)
{
    uint32_t slot;
    int rc;

    QUIRE_TRY(quire_offload_host_take(t->host, s->slots, &slot));
    rc = stripe_read(t, s, slot);
    if (rc < 0) {
        places_release(t, false, slot / QUIRE_OFFLOAD_STRIPE, s->slots);
        return rc;
    }
    places_release(t, true, s->at, s->slots);
    s->at = slot / QUIRE_OFFLOAD_STRIPE;
    s->is_in_file = false;
    quire_offload_stage_trim(t->stage, --t->n_in_file);
    return (int)pages_in(s->slots);
}

int quire_offload_tiers_raise(quire_offload_tiers *t)
{
    const uint32_t n_free =
        quire_offload_host_stripes_max(t->host) - quire_offload_host_stripes_used(t->host);
    tier_stripe *s;
    int rc;

    if (t->n_in_file == 0 || t->rests || n_free <= STRIPES_SPARE) {
        return 0;
    }
    s = stripe_find(t, true);
    if (s->read_at < t->step) { /* nobody waits for it */
        return 0;
    }
    rc = raise_stripe(t, s);
    if (rc < 0) {
        t->rests = true;
        return rc == QUIRE_LIMIT ? 0 : rc;
    }
    t->stats.pages -= (uint64_t)rc;
    t->stats.pages_up_total += (uint64_t)rc;
    return rc;
}

/* ---- figures ---- */

uint32_t quire_offload_tiers_stripes_max(const quire_offload_tiers *t)
{
    return t->stripes_max;
}

uint32_t quire_offload_tiers_stripes_used(const quire_offload_tiers *t)
{
    return atomic_load(&t->stripes_used);
}

void quire_offload_tiers_stats_get(const quire_offload_tiers *t, quire_offload_below_stats *out)
{
    *out = t->stats;
    out->is_on = t->file != NULL;
    if (t->file != NULL) {
        quire_offload_file_stats_get(t->file, &out->file);
    }
}

const char *quire_offload_tiers_file_trouble(const quire_offload_tiers *t)
{
    return t->file != NULL ? quire_offload_file_trouble(t->file) : "";
}
