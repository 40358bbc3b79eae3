/* file_log.c - the end of the log: the segment that is written; see file_internal.h.
 *
 * The footer's room is kept free while records are appended: each record counts with its entry and,
 * as if no other record had the same, its root.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t file_bytes_max(const file_store *st)
{
    return st->opts.segment_bytes - QUIRE_FILE_SEGMENT_OVERHEAD;
}

/* A place of a segment's file. */
typedef struct file_at {
    int fd;
    uint32_t number; /* of the segment */
    uint64_t offset;
} file_at;

static int write_counted(file_store *st, const file_at *at, const void *bytes, size_t n_bytes)
{
    const int rc =
        quire_file_failed(st, quire_file_write_all(st->ops, at->fd, bytes, n_bytes, at->offset),
                          "pwrite", at->number);

    st->rate_tokens -= (int64_t)n_bytes;
    (void)pthread_mutex_lock(&st->lock);
    st->stats.written_bytes_total += rc == 0 ? n_bytes : 0;
    (void)pthread_mutex_unlock(&st->lock);
    return rc;
}

static void head_make(file_store *st, const file_segment *segment, quire_segment_head *head)
{
    (void)pthread_mutex_lock(&st->lock);
    head->number = segment->number;
    head->oldest = st->oldest->number;
    head->sequence = st->sequence;
    head->marked = st->marked;
    (void)pthread_mutex_unlock(&st->lock);
}

static void charge_set(file_store *st, file_segment *segment, uint64_t file_bytes)
{
    const uint64_t charge = file_bytes + QUIRE_FILE_SEGMENT_OVERHEAD;

    (void)pthread_mutex_lock(&st->lock);
    st->stats.stored_bytes += charge - segment->charge_bytes;
    segment->charge_bytes = charge;
    (void)pthread_mutex_unlock(&st->lock);
}

/* ---- begin ---- */

int quire_file_dir_sync(file_store *st)
{
    const int rc =
        quire_file_failed(st, st->ops->sync_dir(st->ops->ctx, st->dir), "fsync", FILE_NUMBER_DIR);

    st->has_unlinked = st->has_unlinked && rc < 0;
    return rc;
}

/* Create the file of a segment with its header. Returns an fd or a negative errno; -EEXIST: there
 * is a file of this number already. */
static int file_create(file_store *st, const file_segment *segment)
{
    const uint32_t n = segment->number;
    quire_segment_head head;
    char path[FILE_PATH_MAX];
    int fd, rc;

    quire_file_path(st, n, path);
    fd = quire_file_open_direct(st->ops, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        return fd == -EEXIST ? fd : quire_file_failed(st, fd, "open", n);
    }
    head_make(st, segment, &head);
    quire_segment_head_write(st->block, &head);
    rc = st->ops->reserve(st->ops->ctx, fd, file_bytes_max(st));
    rc = rc == -EOPNOTSUPP ? 0 : quire_file_failed(st, rc, "fallocate", n);
    if (rc == 0) {
        rc = write_counted(st, &(file_at){ fd, n, 0 }, st->block, QUIRE_SEGMENT_BLOCK);
    }
    if (rc == 0) {
        rc = quire_file_dir_sync(st);
    }
    if (rc < 0) {
        (void)st->ops->close(st->ops->ctx, fd);
        return rc;
    }
    return fd;
}

/* Whether the path still leads to the locked directory. The directory may have vanished, and
 * another directory in its place may have a writer of its own. */
static int lock_check(file_store *st)
{
    char path[FILE_PATH_MAX + 8];

    (void)snprintf(path, sizeof path, "%s/lock", st->dir);
    return quire_file_failed(st, st->ops->is_at(st->ops->ctx, st->lock_fd, path), "stat",
                             FILE_NUMBER_LOCK);
}

static void segment_forget(file_store *st, file_segment *segment)
{
    (void)pthread_mutex_lock(&st->lock);
    segment = quire_file_segment_remove(st, segment);
    (void)pthread_mutex_unlock(&st->lock);
    quire_file_segment_free(st, segment);
}

/* A segment of nothing goes. A file that cannot be removed stays charged, and goes when it is the
 * oldest. */
static void segment_undo(file_store *st, file_segment *segment)
{
    char path[FILE_PATH_MAX];
    int rc;

    quire_file_path(st, segment->number, path);
    rc = st->ops->unlink(st->ops->ctx, path);
    if (rc == 0 || rc == -ENOENT) {
        segment_forget(st, segment);
    }
}

/* Add the next segment and create its file. Returns an fd or a negative errno. */
static int segment_create(file_store *st, file_segment **out)
{
    int fd;

    if (st->next_number > QUIRE_SEGMENT_NUMBER_MAX) {
        return -EOVERFLOW;
    }
    (void)pthread_mutex_lock(&st->lock);
    *out = quire_file_segment_add(st, st->next_number, st->opts.segment_bytes);
    (void)pthread_mutex_unlock(&st->lock);
    if (*out == NULL) {
        return -ENOMEM;
    }
    st->next_number++;
    fd = file_create(st, *out);
    if (fd == -EEXIST) {
        segment_forget(st, *out);
    } else if (fd < 0) {
        segment_undo(st, *out);
    }
    return fd;
}

int quire_file_begin(file_store *st)
{
    file_segment *segment;
    int fd, rc = lock_check(st);

    rc = rc == 0 ? quire_file_room_make(st, false) : rc;
    if (rc < 0) {
        return rc;
    }
    /* In a directory that came in the place of the store's own, numbers may be taken by segments of
     * another store, which stay as they are. */
    do {
        fd = segment_create(st, &segment);
    } while (fd == -EEXIST);
    if (fd < 0) {
        return fd;
    }
    st->open = (file_open){
        .segment = segment, .fd = fd, .end_bytes = QUIRE_SEGMENT_BLOCK, .is_dirty = true
    };
    /* A disk in trouble must show that it works before an old segment goes. */
    rc = st->stats.state == QUIRE_STORE_DEGRADED ? quire_file_sync(st) : 0;
    return rc == 0 ? quire_file_room_make(st, true) : rc;
}

/* ---- append, sync ---- */

static bool has_room(const file_store *st, size_t n_bytes, uint64_t footer)
{
    return st->open.segment != NULL &&
           st->open.end_bytes + st->kept.n_bytes + n_bytes +
                   quire_segment_footer_room(st->open.footer_bytes + st->kept.footer_bytes +
                                             footer) <=
               file_bytes_max(st);
}

int quire_file_append(file_store *st, const unsigned char *bytes, size_t n_bytes, uint64_t footer,
                      bool is_new_allowed, uint32_t *place)
{
    int rc;

    if (!has_room(st, n_bytes, footer)) {
        if (!is_new_allowed) {
            return -ENOBUFS;
        }
        rc = st->open.segment != NULL ? quire_file_seal(st) : 0;
        st->kept = (file_kept){ n_bytes, footer };
        rc = rc == 0 ? quire_file_begin(st) : rc; /* appends records that are carried forward */
        st->kept = (file_kept){ 0 };
        if (rc < 0) {
            return rc;
        }
        if (!has_room(st, n_bytes, footer)) {
            return -EFBIG;
        }
    }
    rc = write_counted(st, &(file_at){ st->open.fd, st->open.segment->number, st->open.end_bytes },
                       bytes, n_bytes);
    if (rc < 0) {
        return rc;
    }
    *place = (uint32_t)(st->open.end_bytes / QUIRE_SEGMENT_BLOCK);
    st->open.end_bytes += n_bytes;
    st->open.footer_bytes += footer;
    st->open.is_dirty = true;
    return 0;
}

/* A put whose record is durable now. With the lock. */
static void put_end(file_store *st, quire_transfer *t)
{
    const uint32_t id = quire_index_find(st->index, &t->found.text.key);
    quire_index_entry *entry = id != QUIRE_INDEX_NONE ? quire_index_get(st->index, id) : NULL;
    const bool is_known = t->found.record_bytes == 0;

    /* A later sequence number: the record was durable and is replaced already. */
    if (entry == NULL || (!is_known && entry->sequence < t->found.sequence)) {
        st->stats.refused_total++;
        quire_file_done(st, t, QUIRE_STORE_ABSENT);
        return;
    }
    if (entry->state == QUIRE_INDEX_WRITTEN) {
        entry->state = QUIRE_INDEX_DURABLE;
    }
    if (is_known) {
        st->stats.known_total++;
    } else {
        st->stats.puts_total++;
        st->stats.put_bytes_total += t->found.record_bytes;
    }
    quire_file_done(st, t, QUIRE_STORE_OK);
}

/* Bytes written to a file without a name are lost when the file is closed. */
static int open_sync(file_store *st)
{
    const uint32_t n = st->open.segment->number;
    char path[FILE_PATH_MAX];

    quire_file_path(st, n, path);
    QUIRE_TRY(quire_file_failed(st, st->ops->datasync(st->ops->ctx, st->open.fd), "fdatasync", n));
    return quire_file_failed(st, st->ops->is_at(st->ops->ctx, st->open.fd, path), "stat", n);
}

int quire_file_sync(file_store *st)
{
    quire_transfer *t;
    bool is_ended = false;

    if (st->open.segment != NULL && st->open.is_dirty) {
        QUIRE_TRY(open_sync(st));
        st->open.is_dirty = false;
    }
    for (file_drop *d = st->open.drops.first; d != NULL; d = d->next) {
        d->is_durable = true;
    }
    (void)pthread_mutex_lock(&st->lock);
    while ((t = quire_file_pop(&st->unsynced)) != NULL) {
        put_end(st, t);
        is_ended = true;
    }
    (void)pthread_mutex_unlock(&st->lock);
    if (is_ended) {
        quire_file_wake(st);
    }
    return 0;
}

/* ---- footer ---- */

typedef struct footer_maker {
    unsigned char *body;
    unsigned char *roots; /* behind the entries; moved there at the end */
    uint32_t *local;      /* [root ids] index in the footer */
    quire_segment_footer footer;
    size_t room;
} footer_maker;

/* Body of at most: entries and roots of all items, drops. */
static size_t body_bytes_max(const file_segment *segment, const file_drops *drops)
{
    size_t n = (size_t)segment->n_items *
               (QUIRE_SEGMENT_ENTRY_BYTES + QUIRE_SEGMENT_ROOT_BYTES + QUIRE_PREFIX_SALT_MAX);

    for (const file_drop *d = drops->first; d != NULL; d = d->next) {
        n += QUIRE_SEGMENT_DROP_BYTES + QUIRE_PREFIX_SALT_MAX;
    }
    return n;
}

static uint32_t root_list(const file_store *st, footer_maker *m, uint32_t root, unsigned char **at)
{
    if (m->local[root] == QUIRE_INDEX_NONE) {
        const quire_index_root *r = quire_index_root_get(st->index, root);

        *at = quire_segment_root_put(*at, &(quire_segment_root){ r->key, r->salt, r->salt_bytes });
        m->local[root] = m->footer.n_roots++;
    }
    return m->local[root];
}

/* List the live entries of the segment. With the lock. Returns the end of the body. */
static unsigned char *body_fill(file_store *st, footer_maker *m, const file_segment *segment)
{
    unsigned char *at = m->body, *roots = m->roots;

    for (uint32_t i = 0; i < segment->n_items; i++) {
        const quire_index_entry *e = quire_file_item_entry(st, segment, segment->items[i]);

        if (e != NULL) {
            at = quire_segment_entry_put(
                at, &(quire_segment_entry){ .key = e->key,
                                            .parent = e->parent,
                                            .sequence = e->sequence,
                                            .root = root_list(st, m, e->root, &roots),
                                            .place = e->place,
                                            .blocks = e->blocks,
                                            .first_token = e->first_token,
                                            .n_tokens = e->n_tokens,
                                            .uses = e->uses });
            m->footer.n_entries++;
        }
    }
    memmove(at, m->roots, (size_t)(roots - m->roots));
    return at + (roots - m->roots);
}

/* Build body and trailer in one piece of memory: *out, [*n_bytes]. */
static int footer_make(file_store *st, const file_segment *segment, const file_drops *drops,
                       unsigned char **out, size_t *n_bytes)
{
    const size_t body_max = body_bytes_max(segment, drops);
    footer_maker m = { .room = (size_t)quire_segment_footer_room(body_max) };
    unsigned char *at;

    m.body = aligned_alloc(QUIRE_SEGMENT_BLOCK, m.room);
    head_make(st, segment, &m.footer.head);
    (void)pthread_mutex_lock(&st->lock);
    m.local = malloc((quire_index_root_ids(st->index) + 1) * sizeof *m.local);
    if (m.body == NULL || m.local == NULL) {
        (void)pthread_mutex_unlock(&st->lock);
        free(m.body);
        free(m.local);
        return -ENOMEM;
    }
    memset(m.local, 0xff, quire_index_root_ids(st->index) * sizeof *m.local);
    m.roots = m.body + (size_t)segment->n_items * QUIRE_SEGMENT_ENTRY_BYTES;
    at = body_fill(st, &m, segment);
    (void)pthread_mutex_unlock(&st->lock);
    for (const file_drop *d = drops->first; d != NULL; d = d->next) {
        at = quire_segment_drop_put(at, &(quire_segment_drop){ d->drop, d->sequence, d->place });
        m.footer.n_drops++;
    }
    m.footer.body_bytes = (uint32_t)(at - m.body);
    *n_bytes = (size_t)quire_segment_footer_room(m.footer.body_bytes);
    memset(at, 0, *n_bytes - m.footer.body_bytes);
    quire_segment_trailer_write(m.body + *n_bytes - QUIRE_SEGMENT_BLOCK, &m.footer, m.body);
    free(m.local);
    *out = m.body;
    return 0;
}

int quire_file_footer_write(file_store *st, int fd, const file_segment *segment,
                            const file_drops *drops, uint64_t *end_bytes)
{
    unsigned char *footer;
    size_t n_bytes;
    int rc = footer_make(st, segment, drops, &footer, &n_bytes);

    if (rc == 0) {
        rc = write_counted(st, &(file_at){ fd, segment->number, *end_bytes }, footer, n_bytes);
        free(footer);
        *end_bytes += n_bytes;
    }
    return rc;
}

/* ---- end ---- */

static void open_forget(file_store *st)
{
    (void)st->ops->close(st->ops->ctx, st->open.fd);
    quire_file_drops_free(&st->open.drops);
    st->open = (file_open){ .fd = -1 };
}

int quire_file_seal(file_store *st)
{
    uint64_t end_bytes = st->open.end_bytes;
    int rc;

    /* Before the footer: after a crash the footer must list no lost record in the place of an
     * older, durable one. */
    QUIRE_TRY(quire_file_sync(st));
    rc = quire_file_footer_write(st, st->open.fd, st->open.segment, &st->open.drops, &end_bytes);
    if (rc < 0) {
        return rc;
    }
    st->open.is_dirty = true;
    /* Gives back reserved space that was not used. */
    rc = quire_file_failed(st, st->ops->truncate(st->ops->ctx, st->open.fd, end_bytes), "ftruncate",
                           st->open.segment->number);
    rc = rc == 0 ? quire_file_sync(st) : rc;
    if (rc < 0) {
        return rc;
    }
    charge_set(st, st->open.segment, end_bytes);
    open_forget(st);
    return 0;
}

void quire_file_open_abandon(file_store *st)
{
    file_segment *segment = st->open.segment;
    const bool is_empty = st->open.end_bytes == QUIRE_SEGMENT_BLOCK;
    file_drops again = { 0 };
    file_drop *d;

    if (segment == NULL) {
        return;
    }
    if (!is_empty) {
        if (st->ops->truncate(st->ops->ctx, st->open.fd, st->open.end_bytes) == 0) {
            charge_set(st, segment, st->open.end_bytes);
        }
        /* For records that were carried here: their originals go when writing works again. */
        (void)st->ops->datasync(st->ops->ctx, st->open.fd);
    }
    while ((d = st->open.drops.first) != NULL) {
        st->open.drops.first = d->next;
        if (d->is_durable) {
            free(d);
        } else {
            quire_file_drop_push(&again, d);
        }
    }
    st->open.drops = (file_drops){ 0 };
    (void)pthread_mutex_lock(&st->lock);
    while ((d = st->drops.first) != NULL) {
        st->drops.first = d->next;
        quire_file_drop_push(&again, d);
    }
    st->drops = again;
    (void)pthread_mutex_unlock(&st->lock);
    open_forget(st);
    if (is_empty) { /* else each retry of a long trouble would leave a file */
        segment_undo(st, segment);
    }
}
