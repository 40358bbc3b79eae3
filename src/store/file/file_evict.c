/* file_evict.c - segments in memory, and the bound: the oldest goes; see file_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define REMOVE_STEP 256u /* entries that are removed under one hold of the lock */

/* ---- segments ---- */

file_segment *quire_file_segment_add(file_store *st, uint32_t number, uint64_t charge_bytes)
{
    file_segment *segment = calloc(1, sizeof *segment);
    uint32_t slot = 0;

    if (segment == NULL) {
        return NULL;
    }
    while (slot < st->n_slots && st->slots[slot] != NULL) {
        slot++;
    }
    if (slot == st->n_slots) {
        const uint32_t n = st->n_slots > 0 ? st->n_slots * 2 : 64;
        file_segment **slots = realloc(st->slots, n * sizeof(file_segment *));

        if (slots == NULL) {
            free(segment);
            return NULL;
        }
        memset(slots + st->n_slots, 0, (n - st->n_slots) * sizeof(file_segment *));
        st->slots = slots;
        st->n_slots = n;
    }
    segment->number = number;
    segment->slot = slot;
    segment->charge_bytes = charge_bytes;
    segment->fd = -1;
    st->slots[slot] = segment;
    if (st->newest != NULL) {
        st->newest->next = segment;
    } else {
        st->oldest = segment;
    }
    st->newest = segment;
    st->n_segments++;
    st->stats.stored_bytes += charge_bytes;
    return segment;
}

void quire_file_segment_free(const file_store *st, file_segment *segment)
{
    if (segment != NULL) {
        if (segment->fd >= 0) {
            (void)st->ops->close(st->ops->ctx, segment->fd);
        }
        free(segment->items);
        free(segment);
    }
}

file_segment *quire_file_segment_unused(file_store *st, file_segment *segment)
{
    if (!segment->is_gone || segment->refs > 0) {
        return NULL;
    }
    st->n_fds -= segment->fd >= 0;
    return segment;
}

file_segment *quire_file_segment_remove(file_store *st, file_segment *segment)
{
    file_segment **at = &st->oldest;
    file_segment *before = NULL;

    while (*at != segment) {
        before = *at;
        at = &(*at)->next;
    }
    *at = segment->next;
    if (st->newest == segment) {
        st->newest = before;
    }
    st->slots[segment->slot] = NULL;
    st->n_segments--;
    st->stats.stored_bytes -= segment->charge_bytes;
    segment->is_gone = true;
    return quire_file_segment_unused(st, segment);
}

int quire_file_item_add(file_segment *segment, uint32_t id, uint32_t place)
{
    if (segment->n_items == segment->items_capacity) {
        const uint32_t capacity = segment->items_capacity > 0 ? segment->items_capacity * 2 : 64;
        file_item *items = realloc(segment->items, capacity * sizeof *items);

        if (items == NULL) {
            return -ENOMEM;
        }
        segment->items = items;
        segment->items_capacity = capacity;
    }
    segment->items[segment->n_items++] = (file_item){ id, place };
    return 0;
}

quire_index_entry *quire_file_item_entry(const file_store *st, const file_segment *segment,
                                         file_item item)
{
    quire_index_entry *entry = quire_index_get(st->index, item.id);

    return (entry->state == QUIRE_INDEX_WRITTEN || entry->state == QUIRE_INDEX_DURABLE) &&
                   entry->segment == segment->slot && entry->place == item.place
               ? entry
               : NULL;
}

/* ---- carry forward ---- */

typedef struct carried {
    file_item item;
    uint32_t blocks;
    uint8_t uses;
    bool is_guarded;
} carried;

static int by_use(const void *a, const void *b)
{
    const carried *x = a, *y = b;

    if (x->is_guarded != y->is_guarded) {
        return x->is_guarded ? -1 : 1;
    }
    if (x->uses != y->uses) {
        return x->uses < y->uses ? 1 : -1;
    }
    return x->item.place < y->item.place ? -1 : x->item.place > y->item.place;
}

/* The used records of a segment, and the guarded ones. Returns their number; *out is freed by the
 * caller. */
static uint32_t carried_choose(file_store *st, const file_segment *segment, carried **out)
{
    carried *list = malloc((segment->n_items + 1) * sizeof *list);
    uint64_t weights;
    uint32_t n = 0;

    *out = list;
    if (list == NULL) {
        return 0;
    }
    (void)pthread_mutex_lock(&st->lock);
    weights = quire_file_weights(st);
    for (uint32_t i = 0; i < segment->n_items; i++) {
        const quire_index_entry *entry = quire_file_item_entry(st, segment, segment->items[i]);

        const bool is_guarded = entry != NULL && quire_file_is_guarded(st, entry, weights);

        if (entry != NULL && (entry->uses > 0 || is_guarded)) {
            list[n++] = (carried){ segment->items[i], entry->blocks, entry->uses, is_guarded };
        }
    }
    (void)pthread_mutex_unlock(&st->lock);
    qsort(list, n, sizeof *list, by_use);
    return n;
}

static int copy_room(file_store *st, size_t n_bytes)
{
    if (st->copy_bytes < n_bytes) {
        unsigned char *copy = aligned_alloc(QUIRE_PAGE_RECORD_ALIGN, n_bytes);

        if (copy == NULL) {
            return -ENOMEM;
        }
        free(st->copy);
        st->copy = copy;
        st->copy_bytes = n_bytes;
    }
    return 0;
}

/* Whether the item is still there; its key and sequence number. */
static bool item_look(file_store *st, const file_segment *segment, file_item item,
                      quire_index_entry *out)
{
    const quire_index_entry *entry;

    (void)pthread_mutex_lock(&st->lock);
    entry = quire_file_item_entry(st, segment, item);
    if (entry != NULL) {
        *out = *entry;
    }
    (void)pthread_mutex_unlock(&st->lock);
    return entry != NULL;
}

/* Copy one record to the open segment. 0: done, or the record is not worth it. */
static int carry(file_store *st, int fd, const file_segment *segment, const carried *c)
{
    const size_t n_bytes = (size_t)c->blocks * QUIRE_SEGMENT_BLOCK;
    quire_index_entry seen, *entry;
    quire_page_record record;
    uint32_t place;
    int rc;

    if (copy_room(st, n_bytes) < 0 || !item_look(st, segment, c->item, &seen) ||
        quire_file_read_all(st->ops, fd, st->copy, n_bytes,
                            (uint64_t)c->item.place * QUIRE_SEGMENT_BLOCK) < 0 ||
        quire_page_record_open(st->copy, n_bytes, &record) != QUIRE_STORE_OK ||
        record.sequence != seen.sequence ||
        memcmp(&record.text.key, &seen.key, sizeof seen.key) != 0 ||
        !item_look(st, segment, c->item, &seen)) {
        return 0;
    }
    /* The markers of later drops come behind this copy. */
    rc = quire_file_append(st, st->copy, n_bytes,
                           QUIRE_SEGMENT_ENTRY_BYTES + QUIRE_SEGMENT_ROOT_BYTES +
                               quire_segment_salt_room(record.text.salt_bytes),
                           false, &place);
    if (rc < 0) {
        return rc == -ENOBUFS ? 0 : rc;
    }
    (void)pthread_mutex_lock(&st->lock);
    entry = quire_file_item_entry(st, segment, c->item);
    if (entry != NULL && quire_file_item_add(st->open.segment, c->item.id, place) == 0) {
        entry->segment = st->open.segment->slot;
        entry->place = place;
        entry->uses = 0;
        st->stats.copied_total++;
    }
    (void)pthread_mutex_unlock(&st->lock);
    st->open.carried_bytes += n_bytes;
    if (!c->is_guarded) {
        st->carry_credit_bytes -=
            n_bytes < st->carry_credit_bytes ? n_bytes : st->carry_credit_bytes;
    }
    return 0;
}

void quire_file_carry_earn(file_store *st, uint64_t put_bytes)
{
    const uint64_t most = QUIRE_FILE_CARRY_SAVED * st->opts.segment_bytes;

    st->carry_credit_bytes +=
        (uint64_t)((double)put_bytes * QUIRE_FILE_CARRY / (1.0 - QUIRE_FILE_CARRY));
    if (st->carry_credit_bytes > most) {
        st->carry_credit_bytes = most;
    }
}

/* Which records of a segment are carried, and up to where the open segment is filled. */
typedef struct carrying {
    bool is_ahead; /* the segment stays for now: guarded records alone, if it has many */
    uint64_t bytes_max;
} carrying;

static bool is_carried(const file_store *st, const carrying *how, const carried *c)
{
    const uint64_t n_bytes = (uint64_t)c->blocks * QUIRE_SEGMENT_BLOCK;

    return st->open.carried_bytes + n_bytes <= how->bytes_max &&
           (c->is_guarded || (!how->is_ahead && n_bytes <= st->carry_credit_bytes));
}

/* Whether a list has more guarded records than could be carried when their segment goes. */
static bool is_too_much(const file_store *st, const carried *list, uint32_t n)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < n && list[i].is_guarded; i++) {
        n_bytes += (uint64_t)list[i].blocks * QUIRE_SEGMENT_BLOCK;
    }
    return (double)n_bytes > (double)st->opts.segment_bytes * QUIRE_FILE_GUARD_FULL;
}

static int carry_all(file_store *st, const file_segment *segment, const carrying *how)
{
    char path[FILE_PATH_MAX];
    carried *list;
    const uint32_t n = carried_choose(st, segment, &list);
    int fd = -1, rc = 0;

    if (n > 0 && (!how->is_ahead || is_too_much(st, list, n))) {
        quire_file_path(st, segment->number, path);
        fd = quire_file_open_direct(st->ops, path, O_RDONLY, 0);
    }
    for (uint32_t i = 0; i < n && fd >= 0 && rc == 0; i++) {
        if (is_carried(st, how, &list[i])) {
            rc = carry(st, fd, segment, &list[i]);
        }
    }
    if (fd >= 0) {
        (void)st->ops->close(st->ops->ctx, fd);
    }
    free(list);
    /* The originals may only go when their copies are durable. */
    return rc == 0 && n > 0 && !how->is_ahead ? quire_file_sync(st) : rc;
}

static carrying carrying_of(const file_store *st, bool is_ahead)
{
    return (carrying){ is_ahead,
                       (uint64_t)((double)st->opts.segment_bytes *
                                  (is_ahead ? QUIRE_FILE_GUARD_AHEAD : QUIRE_FILE_CARRY_SEGMENT)) };
}

/* Segments that will soon be the oldest may be full of guarded records: more than one new segment
 * takes beside new records. So a part of them is carried earlier. */
static int carry_ahead(file_store *st)
{
    const carrying how = carrying_of(st, true);
    const file_segment *segment = st->oldest; /* the list changes in this thread alone */
    int rc = 0;

    for (uint32_t i = 0; i < QUIRE_FILE_GUARD_SEGMENTS && segment != NULL && rc == 0 &&
                         segment != st->open.segment && st->open.carried_bytes < how.bytes_max;
         i++) {
        rc = carry_all(st, segment, &how);
        segment = segment->next;
    }
    return rc;
}

/* ---- the bound ---- */

static void entries_remove(file_store *st, file_segment *segment)
{
    for (uint32_t i = 0; i < segment->n_items;) {
        (void)pthread_mutex_lock(&st->lock);
        for (uint32_t n = 0; n < REMOVE_STEP && i < segment->n_items; n++, i++) {
            if (quire_file_item_entry(st, segment, segment->items[i]) != NULL) {
                quire_file_forget(st, segment->items[i].id, &st->stats.evicted_total);
            }
        }
        (void)pthread_mutex_unlock(&st->lock);
    }
}

static bool has_room(file_store *st, file_segment **oldest)
{
    const uint64_t n_max =
        2 * (st->opts.capacity_bytes / st->opts.segment_bytes) + QUIRE_FILE_SEGMENTS_SPARE;
    bool has;

    (void)pthread_mutex_lock(&st->lock);
    has = st->stats.stored_bytes + st->opts.segment_bytes <= st->opts.capacity_bytes &&
          st->n_segments < n_max;
    *oldest = st->oldest;
    (void)pthread_mutex_unlock(&st->lock);
    return has;
}

/* Whether the oldest segment goes when a few more have begun. */
static bool is_nearly_full(file_store *st)
{
    const uint64_t n_bytes = (1 + QUIRE_FILE_GUARD_SEGMENTS) * st->opts.segment_bytes;
    bool is_full;

    (void)pthread_mutex_lock(&st->lock);
    is_full = st->stats.stored_bytes + n_bytes > st->opts.capacity_bytes;
    (void)pthread_mutex_unlock(&st->lock);
    return is_full && st->n_accounts > 1;
}

int quire_file_room_make(file_store *st, bool is_carrying)
{
    const carrying whole = carrying_of(st, false);
    file_segment *oldest;

    while (!has_room(st, &oldest)) {
        char path[FILE_PATH_MAX];
        int rc;

        if (oldest == NULL || oldest == st->open.segment) {
            return -ENOSPC;
        }
        rc = is_carrying ? carry_all(st, oldest, &whole) : 0;
        if (rc < 0) {
            return rc;
        }
        /* A power failure must not take the markers of drops, and leave the older records. */
        rc = oldest->has_drops && st->has_unlinked ? quire_file_dir_sync(st) : 0;
        if (rc < 0) {
            return rc;
        }
        quire_file_path(st, oldest->number, path);
        rc = st->ops->unlink(st->ops->ctx, path);
        if (rc < 0 && rc != -ENOENT) {
            return quire_file_failed(st, rc, "unlink", oldest->number);
        }
        st->has_unlinked = true;
        entries_remove(st, oldest);
        (void)pthread_mutex_lock(&st->lock);
        oldest = quire_file_segment_remove(st, oldest);
        (void)pthread_mutex_unlock(&st->lock);
        quire_file_segment_free(st, oldest);
    }
    return is_carrying && is_nearly_full(st) ? carry_ahead(st) : 0;
}
