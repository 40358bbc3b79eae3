/* file_read.c - which record is read next, and its result; see file_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- next ---- */

/* The waiting transfer of the highest urgency. With the lock. */
static quire_transfer *top_pop(file_store *st)
{
    for (uint32_t word = FILE_URGENCIES / 64; word-- > 0;) {
        if (st->gets_set[word] != 0) {
            const uint32_t bit = 63u - (uint32_t)__builtin_clzll(st->gets_set[word]);
            file_transfers *list = &st->gets[word * 64 + bit];
            quire_transfer *t = quire_file_pop(list);

            if (list->first == NULL) {
                st->gets_set[word] &= ~((uint64_t)1 << bit);
            }
            return t;
        }
    }
    return NULL;
}

/* Fill in a read for a transfer. False: the transfer is done without a read. With the lock. */
static bool read_set(file_store *st, quire_transfer *t, quire_read *read)
{
    const uint32_t id = quire_index_find(st->index, &t->text.key);
    const quire_index_entry *entry = id != QUIRE_INDEX_NONE ? quire_index_get(st->index, id) : NULL;
    file_segment *segment;

    if (st->is_closing) {
        quire_file_done(st, t, QUIRE_STORE_CLOSED);
        return false;
    }
    if (entry == NULL || entry->state == QUIRE_INDEX_PENDING) {
        quire_file_done(st, t, QUIRE_STORE_ABSENT);
        return false;
    }
    if ((size_t)entry->blocks * QUIRE_SEGMENT_BLOCK > t->capacity) {
        quire_file_done(st, t, QUIRE_STORE_FORMAT);
        return false;
    }
    segment = st->slots[entry->segment];
    segment->refs++;
    segment->used_at = ++st->reads_clock;
    *read = (quire_read){ .fd = segment->fd,
                          .offset = (uint64_t)entry->place * QUIRE_SEGMENT_BLOCK,
                          .n_bytes = (size_t)entry->blocks * QUIRE_SEGMENT_BLOCK,
                          .buffer = t->record,
                          .transfer = t,
                          .segment = segment,
                          .place = entry->place,
                          .sequence = entry->sequence };
    if (st->n_reading++ == 0) {
        st->reading_since_ns = quire_file_now(st);
    }
    return true;
}

/* An fd that may be closed, because too many are open: -1, none. With the lock. */
static int fd_spare(file_store *st)
{
    file_segment *oldest = NULL;
    int fd = -1;

    for (file_segment *s = st->oldest; s != NULL && st->n_fds > QUIRE_FILE_FDS_MAX; s = s->next) {
        if (s->fd >= 0 && s->refs == 0 && (oldest == NULL || s->used_at < oldest->used_at)) {
            oldest = s;
        }
    }
    if (oldest != NULL) {
        fd = oldest->fd;
        oldest->fd = -1;
        st->n_fds--;
    }
    return fd;
}

/* Open the segment's file, if no other thread did. */
static void segment_open(file_store *st, quire_read *read)
{
    file_segment *segment = read->segment;
    char path[FILE_PATH_MAX];
    int fd, spare;

    quire_file_path(st, segment->number, path);
    fd = quire_file_open_direct(st->ops, path, O_RDONLY, 0);
    (void)pthread_mutex_lock(&st->lock);
    spare = fd;
    if (segment->fd < 0 && fd >= 0) {
        segment->fd = fd;
        st->n_fds++;
        spare = fd_spare(st);
    }
    read->fd = segment->fd >= 0 ? segment->fd : fd;
    (void)pthread_mutex_unlock(&st->lock);
    if (spare >= 0) {
        (void)st->ops->close(st->ops->ctx, spare);
    }
}

bool quire_file_read_next(void *ctx, quire_read *read)
{
    file_store *st = ctx;
    bool is_set = false, is_any_done = false;

    do {
        quire_transfer *t;

        (void)pthread_mutex_lock(&st->lock);
        while ((t = top_pop(st)) != NULL && !(is_set = read_set(st, t, read))) {
            is_any_done = true;
        }
        (void)pthread_mutex_unlock(&st->lock);
        if (is_set && read->fd < 0) {
            segment_open(st, read);
            if (read->fd < 0) {
                read->error = read->fd;
                quire_file_read_done(st, read);
                is_set = false;
                continue;
            }
        }
        break;
    } while (true);
    if (is_any_done) {
        quire_file_wake(st);
    }
    return is_set;
}

/* ---- done ---- */

static quire_store_result verify(const quire_read *read)
{
    quire_transfer *t = read->transfer;
    quire_store_result result;

    if (read->error != 0) {
        return QUIRE_STORE_IO;
    }
    /* A file that ends early is damaged; it is no failure of the disk. */
    result = read->n_done < read->n_bytes
                 ? QUIRE_STORE_CHECKSUM
                 : quire_page_record_open(t->record, read->n_bytes, &t->found);
    if (result == QUIRE_STORE_OK) {
        result = quire_page_record_check(&t->found, &t->text);
    }
    /* A whole record of the same text, but not the one that the index means: an old one, from a
     * file that was put here by somebody. */
    if (result == QUIRE_STORE_OK && t->found.sequence != read->sequence) {
        result = QUIRE_STORE_CHECKSUM;
    }
    return result;
}

/* A record that cannot be used leaves the index; one that was used is marked. With the lock. */
static void entry_update(file_store *st, const quire_read *read, quire_store_result result)
{
    const file_segment *segment = read->segment;
    const uint32_t id = quire_index_find(st->index, &read->transfer->text.key);
    quire_index_entry *entry = id != QUIRE_INDEX_NONE ? quire_index_get(st->index, id) : NULL;

    if (entry == NULL || entry->state == QUIRE_INDEX_PENDING || entry->sequence != read->sequence) {
        return;
    }
    if (result == QUIRE_STORE_OK) {
        entry->uses = (uint8_t)(entry->uses + (entry->uses < UINT8_MAX));
    } else if ((result != QUIRE_STORE_IO || read->error == -ENOENT) && !segment->is_gone &&
               entry->segment == segment->slot && entry->place == read->place) {
        quire_file_forget(st, id, NULL);
    }
}

void quire_file_read_done(void *ctx, quire_read *read)
{
    file_store *st = ctx;
    quire_transfer *t = read->transfer;
    file_segment *segment = read->segment, *unused;
    const quire_store_result result = verify(read);
    bool is_gone;

    if (result == QUIRE_STORE_IO && read->error != -ENOENT) {
        quire_file_log(st, result, "%s: reading segment %u failed: %s", st->dir, segment->number,
                       strerrordesc_np(-read->error));
    } else if (result != QUIRE_STORE_OK && result != QUIRE_STORE_IO) {
        quire_file_log(st, result,
                       "%s: a record of segment %u cannot be used (%s); it is ignored, and others "
                       "like it without a message",
                       st->dir, segment->number, quire_store_result_name(result));
    }
    (void)pthread_mutex_lock(&st->lock);
    entry_update(st, read, result);
    st->stats.reads_total++;
    st->stats.read_bytes_total += read->n_done;
    if (--st->n_reading == 0) {
        st->stats.read_us_total += (quire_file_now(st) - st->reading_since_ns) / 1000;
    }
    is_gone = segment->is_gone;
    segment->refs--;
    unused = quire_file_segment_unused(st, segment);
    /* The file of a segment that went while the read waited. */
    quire_file_done(st, t,
                    result == QUIRE_STORE_IO && is_gone && read->error == -ENOENT
                        ? QUIRE_STORE_ABSENT
                        : result);
    (void)pthread_mutex_unlock(&st->lock);
    quire_file_segment_free(st, unused);
    quire_file_wake(st);
}
