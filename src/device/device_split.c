/* device_split.c - layers of one model on several devices (quire/device.h).
 *
 * An extent is a range of addresses without memory, and a piece of memory on each device that has
 * parts of its pages:
 *
 *   range     at |----- parts of device 0 -----|-- of device 1 --|- unused -|
 *   device 0     |============ piece ==========|
 *   device 1                                   |==== piece ======|
 *
 * The base of a device is the address of its piece less the piece's place in the range: with the
 * base, offsets of lanes are those of an extent in one memory. plan() gives each device the
 * addresses of the batch's pages with its own bases.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_internal.h"
#include "base/check.h"
#include "device/device_internal.h"

#include <string.h>
#include <sys/mman.h>

/* An extent of a group. */
typedef struct split_extent {
    unsigned char *at; /* of the range */
    size_t bytes;
    quire_group_id group;
    unsigned char *pieces[QUIRE_DEVICE_SPLIT_MAX]; /* NULL: the device has no part of it */
} split_extent;

struct quire_device_split {
    quire_allocator allocator;
    quire_device_split_opts opts;
    quire_page_memory memories[QUIRE_DEVICE_SPLIT_MAX]; /* of the devices */
    quire_attn_device attention[QUIRE_DEVICE_SPLIT_MAX];
    split_extent *extents; /* [n_extents_max], by address */
    uint32_t n_extents;
    uint32_t n_extents_max;
    quire_page_addr *addrs[QUIRE_DEVICE_SPLIT_MAX]; /* [n_addrs], by page id */
    uint32_t n_addrs;
    quire_attn_batch batches[QUIRE_DEVICE_SPLIT_MAX]; /* of the step at hand, with these */
    bool is_planned;
};

/* ---- extents ---- */

/* The bytes of a group's extents before those of device i. */
static size_t begin_of(const quire_device_split *s, quire_group_id group, uint32_t i)
{
    return i > 0 ? s->opts.end[group][i - 1] : 0;
}

/* How many extents begin at or below an address. */
static uint32_t n_below(const quire_device_split *s, const unsigned char *addr)
{
    uint32_t low = 0, high = s->n_extents;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if ((uintptr_t)s->extents[middle].at <= (uintptr_t)addr) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The extent that an address lies in. */
static const split_extent *extent_of(const quire_device_split *s, const unsigned char *addr)
{
    const uint32_t n = n_below(s, addr);

    QUIRE_CHECK(n > 0 && (size_t)(addr - s->extents[n - 1].at) < s->extents[n - 1].bytes);
    return &s->extents[n - 1];
}

static int extents_grow(quire_device_split *s)
{
    const uint32_t max = s->n_extents_max > 0 ? 2 * s->n_extents_max : 16;
    split_extent *extents;

    if (s->n_extents < s->n_extents_max) {
        return QUIRE_OK;
    }
    extents = s->allocator.alloc(s->allocator.ctx, max * sizeof(*extents));
    QUIRE_FAIL_IF(extents == NULL, QUIRE_NOMEM);
    if (s->n_extents > 0) {
        memcpy(extents, s->extents, s->n_extents * sizeof(*extents));
    }
    s->allocator.free(s->allocator.ctx, s->extents);
    s->extents = extents;
    s->n_extents_max = max;
    return QUIRE_OK;
}

static void pieces_give(quire_device_split *s, const split_extent *extent)
{
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        const size_t bytes = s->opts.end[extent->group][i] - begin_of(s, extent->group, i);

        if (extent->pieces[i] != NULL) {
            s->memories[i].unmap(s->memories[i].ctx, extent->pieces[i], bytes);
        }
    }
    (void)munmap(extent->at, extent->bytes);
}

/* A range, and a piece of each device; false: no memory is left, and nothing is taken. */
static bool pieces_take(quire_device_split *s, split_extent *extent)
{
    void *at =
        mmap(NULL, extent->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED) {
        return false;
    }
    extent->at = at;
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        const size_t bytes = s->opts.end[extent->group][i] - begin_of(s, extent->group, i);

        if (bytes > 0) {
            extent->pieces[i] = s->memories[i].map(s->memories[i].ctx, bytes);
            if (extent->pieces[i] == NULL) {
                pieces_give(s, extent);
                return false;
            }
        }
    }
    return true;
}

static void *split_map_extent(void *ctx, quire_group_id group, size_t bytes)
{
    quire_device_split *s = ctx;
    split_extent extent = { .bytes = bytes, .group = group };
    uint32_t at;

    QUIRE_CHECK(group < s->opts.n_groups && s->opts.end[group][s->opts.n_devices - 1] <= bytes);
    if (extents_grow(s) < 0 || !pieces_take(s, &extent)) {
        return NULL;
    }
    at = n_below(s, extent.at);
    memmove(s->extents + at + 1, s->extents + at, (s->n_extents - at) * sizeof(*s->extents));
    s->extents[at] = extent;
    s->n_extents++;
    return extent.at;
}

static void split_unmap(void *ctx, void *base, size_t bytes)
{
    quire_device_split *s = ctx;
    const uint32_t at = n_below(s, base) - 1;

    QUIRE_CHECK(at < s->n_extents && s->extents[at].at == base && s->extents[at].bytes == bytes);
    pieces_give(s, &s->extents[at]);
    s->n_extents--;
    memmove(s->extents + at, s->extents + at + 1, (s->n_extents - at) * sizeof(*s->extents));
}

/* ---- copies ---- */

/* The device that has a byte of a group's extents; n_devices: none. */
static uint32_t device_at(const quire_device_split *s, uint32_t group, size_t offset)
{
    uint32_t i = 0;

    while (i < s->opts.n_devices && offset >= s->opts.end[group][i]) {
        i++;
    }
    return i;
}

/* The place of bytes on a device, which has all of them. */
static unsigned char *place_of(const quire_device_split *s, const unsigned char *addr, size_t bytes,
                               uint32_t *device)
{
    const split_extent *extent = extent_of(s, addr);
    const size_t offset = (size_t)(addr - extent->at);
    const uint32_t i = device_at(s, extent->group, offset);

    QUIRE_CHECK(i < s->opts.n_devices && bytes <= s->opts.end[extent->group][i] - offset);
    *device = i;
    return extent->pieces[i] + (offset - begin_of(s, extent->group, i));
}

/* The address of an extent on a device that has a piece of it: parts have the offsets that they
 * have in the extent. */
static unsigned char *extent_addr(const quire_device_split *s, const split_extent *extent,
                                  uint32_t device)
{
    return (unsigned char *)((uintptr_t)extent->pieces[device] -
                             begin_of(s, extent->group, device));
}

/* A piece as its device takes it. Returns the device. */
static uint32_t piece_place(const quire_device_split *s, quire_page_copy kind,
                            const quire_page_piece *piece, quire_page_piece *out)
{
    uint32_t to = 0, from = 0;

    *out = *piece;
    if (kind != QUIRE_PAGE_COPY_OUT) {
        out->to = place_of(s, piece->to, piece->bytes, &to);
    }
    if (piece->extent != NULL) {
        const split_extent *extent = extent_of(s, piece->extent);

        out->extent = extent_addr(s, extent, to);
    }
    if (kind != QUIRE_PAGE_COPY_IN) {
        out->from = place_of(s, piece->from, piece->bytes, &from);
    }
    QUIRE_CHECK(kind != QUIRE_PAGE_COPY_WITHIN || to == from); /* one part of two pages */
    return kind == QUIRE_PAGE_COPY_OUT ? from : to;
}

/* One call copies all neighbouring pieces of the same device. */
static int split_copy(void *ctx, quire_page_copy kind, const quire_page_piece *pieces,
                      uint32_t n_pieces)
{
    const quire_device_split *s = ctx;
    quire_page_piece own[QUIRE_PAGE_PIECES];
    uint32_t device = 0, n = 0;

    QUIRE_FAIL_IF(kind == QUIRE_PAGE_COPY_FETCH, QUIRE_UNSUPP);
    for (uint32_t i = 0; i < n_pieces; i++) {
        quire_page_piece piece;
        const uint32_t next = piece_place(s, kind, &pieces[i], &piece);

        if (n > 0 && (next != device || n == QUIRE_PAGE_PIECES)) {
            QUIRE_TRY(s->memories[device].copy(s->memories[device].ctx, kind, own, n));
            n = 0;
        }
        device = next;
        own[n++] = piece;
    }
    return n > 0 ? s->memories[device].copy(s->memories[device].ctx, kind, own, n) : QUIRE_OK;
}

quire_page_memory quire_device_split_page_memory(quire_device_split *s)
{
    return (quire_page_memory){ .memory = QUIRE_MEMORY_DEVICE,
                                .map_extent = split_map_extent,
                                .unmap = split_unmap,
                                .copy = split_copy,
                                .ctx = s };
}

/* ---- a step ---- */

static uint32_t device_of(const quire_device_split *s, const quire_attn_source *source)
{
    return source->group < s->opts.n_groups ? device_at(s, source->group, source->lane.offset)
                                            : s->opts.n_devices;
}

/* Whether a device has a source, its hot form too. */
static bool has_source(const quire_device_split *s, uint32_t device,
                       const quire_attn_source *source)
{
    return device_of(s, source) == device &&
           (!quire_format_is_sealed(source->format) ||
            (source->hot_group < s->opts.n_groups &&
             device_at(s, source->hot_group, source->hot_lane.offset) == device));
}

static int split_check(void *ctx, const quire_attn_layer *layer)
{
    const quire_device_split *s = ctx;
    const uint32_t reads = device_of(s, &layer->k[0]);
    const uint32_t stores = device_of(s, &layer->k_store);

    QUIRE_FAIL_IF(reads >= s->opts.n_devices || stores >= s->opts.n_devices, QUIRE_INVAL);
    for (uint32_t i = 0; i < layer->n_k && i < QUIRE_ATTN_SOURCES_MAX; i++) {
        QUIRE_FAIL_IF(!has_source(s, reads, &layer->k[i]), QUIRE_UNSUPP);
    }
    for (uint32_t i = 0; i < layer->n_v && i < QUIRE_ATTN_SOURCES_MAX; i++) {
        QUIRE_FAIL_IF(!has_source(s, reads, &layer->v[i]), QUIRE_UNSUPP);
    }
    QUIRE_FAIL_IF(!has_source(s, stores, &layer->k_store), QUIRE_UNSUPP);
    QUIRE_TRY(s->attention[stores].check(s->attention[stores].ctx, layer));
    return s->attention[reads].check(s->attention[reads].ctx, layer);
}

/* Room for the addresses of pages up to an id. No work that reads the old ones is queued: a step
 * ends with sync(), and its second plan has no other pages. */
static int addrs_reserve(quire_device_split *s, quire_page_id id)
{
    uint32_t n = s->n_addrs > 0 ? s->n_addrs : 256;

    if (id < s->n_addrs) {
        return QUIRE_OK;
    }
    while (n <= id) {
        n *= 2;
    }
    s->n_addrs = 0;
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        s->allocator.free(s->allocator.ctx, s->addrs[i]);
        s->addrs[i] = NULL;
    }
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        s->addrs[i] = s->allocator.alloc(s->allocator.ctx, n * sizeof(*s->addrs[i]));
        QUIRE_FAIL_IF(s->addrs[i] == NULL, QUIRE_NOMEM);
        memset(s->addrs[i], 0, n * sizeof(*s->addrs[i]));
    }
    s->n_addrs = n;
    return QUIRE_OK;
}

/* The address of a page on each device. A page in another memory keeps its address, which the
 * devices' plan() refuses. */
static void addr_set(quire_device_split *s, quire_page_id id, const quire_page_addr *page,
                     const split_extent **last)
{
    const bool is_own = page->extent != NULL && page->memory == QUIRE_MEMORY_DEVICE;

    if (is_own && (*last == NULL || (*last)->at != page->extent)) {
        *last = extent_of(s, page->extent);
    }
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        quire_page_addr *addr = &s->addrs[i][id];

        *addr = *page;
        if (is_own) {
            addr->memory = s->memories[i].memory;
            addr->extent = (*last)->pieces[i] != NULL ? extent_addr(s, *last, i) : page->extent;
        }
    }
}

static quire_page_id last_page(const quire_device_split *s, const quire_attn_batch *batch)
{
    quire_page_id last = 0;

    for (uint32_t q = 0; q < batch->n_seqs; q++) {
        for (uint32_t g = 0; g < s->opts.n_groups; g++) {
            const quire_attn_table *table = &batch->seqs[q].tables[g];

            for (uint32_t i = 0; table->leaves != NULL && i < table->n_entries; i++) {
                const quire_page_id page = quire_attn_entry(table, i)->page;

                last = page > last ? page : last;
            }
        }
    }
    return last;
}

static void addrs_set(quire_device_split *s, const quire_attn_batch *batch)
{
    const split_extent *last = NULL;

    for (uint32_t q = 0; q < batch->n_seqs; q++) {
        for (uint32_t g = 0; g < s->opts.n_groups; g++) {
            const quire_attn_table *table = &batch->seqs[q].tables[g];

            for (uint32_t i = 0; table->leaves != NULL && i < table->n_entries; i++) {
                const quire_page_id page = quire_attn_entry(table, i)->page;

                if (page != QUIRE_PAGE_NULL) {
                    addr_set(s, page, &batch->page_addr[page], &last);
                }
            }
        }
    }
}

static int split_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_device_split *s = ctx;

    s->is_planned = false;
    QUIRE_TRY(addrs_reserve(s, last_page(s, batch)));
    addrs_set(s, batch);
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        quire_attn_batch *own = &s->batches[i];

        *own = *batch;
        own->page_addr = s->addrs[i];
        QUIRE_TRY(s->attention[i].plan(s->attention[i].ctx, own));
    }
    s->is_planned = true;
    return QUIRE_OK;
}

static void split_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                         uint32_t n_threads)
{
    const quire_device_split *s = ctx;
    const quire_attn_device *own = &s->attention[device_of(s, &layer->k_store)];

    if (s->is_planned) {
        own->append(own->ctx, layer, thread, n_threads);
    }
}

static void split_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                      uint32_t n_threads)
{
    const quire_device_split *s = ctx;
    const quire_attn_device *own = &s->attention[device_of(s, &layer->k[0])];

    if (s->is_planned) {
        own->run(own->ctx, layer, call, thread, n_threads);
    }
}

/* The first failure; a loss goes before others. */
static int split_sync(void *ctx)
{
    const quire_device_split *s = ctx;
    int status = QUIRE_OK;

    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        const int rc = s->attention[i].sync(s->attention[i].ctx);

        if (status == QUIRE_OK || rc == QUIRE_LOST) {
            status = rc;
        }
    }
    return status;
}

quire_attn_device quire_device_split_attention(quire_device_split *s)
{
    const char *name = s->attention[0].name;

    for (uint32_t i = 1; i < s->opts.n_devices; i++) {
        name = strcmp(s->attention[i].name, s->attention[0].name) != 0 ? "split" : name;
    }
    return (quire_attn_device){ .name = name,
                                .memory = QUIRE_MEMORY_DEVICE,
                                .ctx = s,
                                .check = split_check,
                                .plan = split_plan,
                                .append = split_append,
                                .run = split_run,
                                .sync = split_sync };
}

/* ---- opening ---- */

static bool are_in_order(const quire_device_split_opts *opts)
{
    bool is_fine = opts->n_devices > 0 && opts->n_devices <= QUIRE_DEVICE_SPLIT_MAX &&
                   opts->n_groups > 0 && opts->n_groups <= QUIRE_GROUPS_MAX;

    for (uint32_t g = 0; is_fine && g < opts->n_groups; g++) {
        for (uint32_t i = 1; is_fine && i < opts->n_devices; i++) {
            is_fine = opts->end[g][i - 1] <= opts->end[g][i];
        }
    }
    return is_fine;
}

int quire_device_split_open(quire_device_split **out, const quire_device_split_opts *opts,
                            quire_error *err)
{
    const quire_allocator *allocator =
        opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    quire_device_split *s;

    *out = NULL;
    if (opts->struct_bytes != sizeof(*opts) || !are_in_order(opts)) {
        return quire_error_set(err, QUIRE_INVAL, "a split of devices: options");
    }
    s = allocator->alloc(allocator->ctx, sizeof(*s));
    if (s == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "a split of devices: no memory");
    }
    memset(s, 0, sizeof(*s));
    s->allocator = *allocator;
    s->opts = *opts;
    for (uint32_t i = 0; i < opts->n_devices; i++) {
        s->memories[i] = quire_device_page_memory(opts->devices[i]);
        s->attention[i] = quire_device_attention(opts->devices[i]);
    }
    *out = s;
    return QUIRE_OK;
}

void quire_device_split_close(quire_device_split *s)
{
    if (s == NULL) {
        return;
    }
    QUIRE_CHECK(s->n_extents == 0); /* the cache has ended */
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        quire_device_close(s->opts.devices[i]);
        s->allocator.free(s->allocator.ctx, s->addrs[i]);
    }
    s->allocator.free(s->allocator.ctx, s->extents);
    s->allocator.free(s->allocator.ctx, s);
}

uint32_t quire_device_split_count(const quire_device_split *s)
{
    return s->opts.n_devices;
}

const quire_device *quire_device_split_device(const quire_device_split *s, uint32_t i)
{
    return s->opts.devices[i];
}

const quire_device *quire_device_split_lost(const quire_device_split *s)
{
    for (uint32_t i = 0; i < s->opts.n_devices; i++) {
        if (quire_device_is_lost(s->opts.devices[i])) {
            return s->opts.devices[i];
        }
    }
    return NULL;
}
