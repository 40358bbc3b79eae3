/* file_recover.c - builds the index from the files in the directory; see file_internal.h.
 *
 * Segments are read in the order of their numbers, which is the order of the log: a later record of
 * a key replaces an earlier one, and a marker ends records that stand before it. Markers are
 * applied when all records are known, because texts are followed by way of their parents.
 *
 * A segment with a footer costs two reads. The rest is read whole, and gets its footer now.
 *
 * An unreadable segment may have markers of drops. If no later segment rules this out, the records
 * before its end are not used: dropped records must not come back. The files of these records stay,
 * and a start that can read all segments finds them again.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAIL_BYTES (64u << 10) /* read at once: the trailer and, mostly, all of the footer */

typedef struct recovery {
    file_store *st;
    uint32_t *numbers; /* of the files, ascending */
    uint32_t n_numbers, capacity;
    bool is_out_of_memory;
    quire_index_drop *drops;
    uint32_t n_drops, drops_capacity;
    quire_segment_head newest; /* the head in the blocks that were written last */
    uint32_t unread_first;     /* segments that could not be read, and no head read so far says */
    uint32_t unread_last;      /* whether they have markers. 0 = none */
    unsigned char *tail;       /* [TAIL_BYTES] */
} recovery;

/* ---- names ---- */

static void name_take(void *arg, const char *name)
{
    recovery *r = arg;
    char expected[64];
    char *end;
    unsigned long long number;

    if (strncmp(name, "segment-", 8) != 0) {
        return;
    }
    number = strtoull(name + 8, &end, 16);
    (void)snprintf(expected, sizeof expected, "segment-%016llx.quire", number);
    if (strcmp(name, expected) != 0 || number == 0 || number > QUIRE_SEGMENT_NUMBER_MAX) {
        return;
    }
    if (r->n_numbers == r->capacity) {
        const uint32_t capacity = r->capacity > 0 ? r->capacity * 2 : 64;
        uint32_t *numbers = realloc(r->numbers, capacity * sizeof *numbers);

        if (numbers == NULL) {
            r->is_out_of_memory = true;
            return;
        }
        r->numbers = numbers;
        r->capacity = capacity;
    }
    r->numbers[r->n_numbers++] = (uint32_t)number;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* ---- found segments and entries ---- */

static uint64_t position_of(uint32_t number, uint32_t place)
{
    return (uint64_t)number << 32 | place;
}

/* A record at a place; the newest of its key counts. Salts of other lengths or bytes under one root
 * cannot be kept apart, so such a record is left out. */
static int record_found(recovery *r, file_segment *segment, const quire_page_text *text,
                        const quire_segment_entry *at)
{
    file_store *st = r->st;
    uint32_t id = quire_index_find(st->index, &text->key);
    quire_index_entry *entry;

    r->newest.sequence = quire_max_u64(r->newest.sequence, at->sequence + 1);
    if (id != QUIRE_INDEX_NONE) {
        quire_file_forget(st, id, NULL);
    }
    id = quire_index_add(st->index, text, at->sequence);
    if (id == QUIRE_INDEX_NONE) {
        return 0;
    }
    entry = quire_index_get(st->index, id);
    entry->segment = segment->slot;
    entry->place = at->place;
    entry->blocks = at->blocks;
    entry->uses = (uint8_t)quire_min_u32(at->uses, UINT8_MAX);
    entry->state = QUIRE_INDEX_DURABLE;
    (void)pthread_mutex_lock(&st->lock); /* create may give up waiting, and its caller go */
    quire_file_count(st, entry);
    (void)pthread_mutex_unlock(&st->lock);
    return quire_file_item_add(segment, id, at->place);
}

/* A marker at a place of segment `number`. */
static int drop_found(recovery *r, uint32_t number, const quire_store_drop *drop, uint64_t sequence,
                      uint32_t place)
{
    quire_index_drop *d;
    unsigned char *salt;

    r->newest.sequence = quire_max_u64(r->newest.sequence, sequence + 1);
    r->st->marked = quire_max_u32(r->st->marked, number);
    if (r->n_drops == r->drops_capacity) {
        const uint32_t capacity = r->drops_capacity > 0 ? r->drops_capacity * 2 : 64;
        quire_index_drop *drops = realloc(r->drops, capacity * sizeof *drops);

        if (drops == NULL) {
            return -ENOMEM;
        }
        r->drops = drops;
        r->drops_capacity = capacity;
    }
    salt = malloc(drop->salt_bytes + 1);
    if (salt == NULL) {
        return -ENOMEM;
    }
    memcpy(salt, drop->salt, drop->salt_bytes);
    d = &r->drops[r->n_drops++];
    *d = (quire_index_drop){ *drop, position_of(number, place) };
    d->drop.salt = salt;
    return 0;
}

/* ---- segments that cannot be read ---- */

static int unread(recovery *r, file_segment *segment, const char *what, int error)
{
    segment->has_drops = true;
    quire_file_log(r->st, FILE_LOG_DAMAGE, "%s: segment %u cannot be %s: %s", r->st->dir,
                   segment->number, what, strerrordesc_np(-error));
    r->unread_first = r->unread_first != 0 ? r->unread_first : segment->number;
    r->unread_last = segment->number;
    r->st->n_unread++;
    return 0;
}

/* `marked` as in a later head: the last of these segments that may have a marker. */
static int unread_settle(recovery *r, uint64_t marked)
{
    static const quire_store_drop all = { .what = QUIRE_STORE_DROP_ALL, .salt = "" };
    const uint32_t first = r->unread_first;
    const uint32_t last = (uint32_t)quire_min_u64(r->unread_last, marked);

    r->unread_first = r->unread_last = 0;
    if (first == 0 || last < first) {
        return 0;
    }
    quire_file_log(r->st, FILE_LOG_UNREAD,
                   "%s: segment %u, which cannot be read, may say that older records were dropped: "
                   "these are not used",
                   r->st->dir, last);
    return drop_found(r, last, &all, 0, UINT32_MAX);
}

static int head_found(recovery *r, const file_segment *segment, const quire_segment_head *head)
{
    r->newest.sequence = quire_max_u64(r->newest.sequence, head->sequence);
    if (head->number != segment->number) {
        return 0;
    }
    r->newest.oldest = quire_max_u64(r->newest.oldest, head->oldest);
    return unread_settle(r, head->marked);
}

/* ---- with a footer ---- */

static int body_take(recovery *r, file_segment *segment, const quire_segment_footer *footer,
                     const unsigned char *body)
{
    quire_segment_cursor cursor = quire_segment_roots(footer, body);
    quire_segment_root *roots = malloc((footer->n_roots + 1) * sizeof *roots);
    int rc = roots != NULL ? 0 : -ENOMEM;

    for (uint32_t i = 0; i < footer->n_roots && rc == 0; i++) {
        quire_segment_root_next(&cursor, &roots[i]);
    }
    for (uint32_t i = 0; i < footer->n_entries && rc == 0; i++) {
        quire_segment_entry e;
        quire_page_text text;

        quire_segment_entry_get(body, i, &e);
        text = (quire_page_text){ .key = e.key,
                                  .parent = e.parent,
                                  .root = roots[e.root].key,
                                  .first_token = e.first_token,
                                  .n_tokens = e.n_tokens,
                                  .salt = roots[e.root].salt,
                                  .salt_bytes = roots[e.root].salt_bytes };
        rc = record_found(r, segment, &text, &e);
    }
    segment->has_drops = footer->n_drops > 0;
    for (uint32_t i = 0; i < footer->n_drops && rc == 0; i++) {
        quire_segment_drop d;

        quire_segment_drop_next(&cursor, &d);
        rc = drop_found(r, segment->number, &d.drop, d.sequence, d.place);
    }
    free(roots);
    return rc;
}

/* Take a segment from its footer. 1: done, 0: it has none that is valid; else a negative errno. */
static int footer_take(recovery *r, file_segment *segment, int fd, uint64_t file_bytes)
{
    const file_store *st = r->st;
    const uint32_t n = (uint32_t)quire_min_u64(file_bytes, TAIL_BYTES);
    const unsigned char *trailer = r->tail + n - QUIRE_SEGMENT_BLOCK;
    quire_segment_footer footer;
    unsigned char *whole = NULL;
    const unsigned char *body;
    uint64_t room;
    int rc;

    if (file_bytes % QUIRE_SEGMENT_BLOCK != 0 || file_bytes < 2 * QUIRE_SEGMENT_BLOCK ||
        quire_file_read_all(st->ops, fd, r->tail, n, file_bytes - n) < 0 ||
        !quire_segment_trailer_read(trailer, file_bytes, &footer) ||
        footer.head.number != segment->number) {
        return 0;
    }
    room = quire_segment_footer_room(footer.body_bytes);
    body = r->tail + n - room;
    if (room > n) {
        whole = aligned_alloc(QUIRE_SEGMENT_BLOCK, room);
        if (whole == NULL || quire_file_read_all(st->ops, fd, whole, room, file_bytes - room) < 0) {
            free(whole);
            return whole == NULL ? -ENOMEM : 0;
        }
        body = whole;
    }
    rc = 0;
    if (quire_segment_body_check(trailer, &footer, body, file_bytes)) {
        rc = head_found(r, segment, &footer.head);
        rc = rc == 0 ? body_take(r, segment, &footer, body) : rc;
        rc = rc < 0 ? rc : 1;
    }
    free(whole);
    return rc;
}

/* ---- without ---- */

typedef struct scan {
    unsigned char *bytes; /* of the whole file */
    uint64_t n_bytes;
    uint64_t end_bytes; /* behind the last thing that is whole */
    file_drops drops;   /* for the footer */
    bool is_damaged;
} scan;

static int scan_marker(recovery *r, file_segment *segment, scan *s, uint64_t at)
{
    file_drop *d = calloc(1, sizeof *d);

    if (d == NULL) {
        return -ENOMEM;
    }
    (void)quire_marker_read(s->bytes + at, &d->drop, &d->sequence);
    d->place = (uint32_t)(at / QUIRE_SEGMENT_BLOCK);
    memcpy(d->salt, d->drop.salt, d->drop.salt_bytes);
    d->drop.salt = d->salt;
    d->is_durable = true;
    quire_file_drop_push(&s->drops, d);
    segment->has_drops = true;
    return drop_found(r, segment->number, &d->drop, d->sequence, d->place);
}

/* Look at one place. Returns the length of the record or drop there, 0 if there is no whole one, or
 * a negative errno. */
static int64_t scan_one(recovery *r, file_segment *segment, scan *s, uint64_t at)
{
    const size_t left = (size_t)(s->n_bytes - at);
    const size_t n = quire_page_record_peek(s->bytes + at, left);
    quire_store_drop drop;
    quire_page_record record;
    uint64_t sequence;
    int rc;

    if (n > 0 && n <= left && quire_page_record_open(s->bytes + at, n, &record) == QUIRE_STORE_OK) {
        const quire_segment_entry entry = { .sequence = record.sequence,
                                            .place = (uint32_t)(at / QUIRE_SEGMENT_BLOCK),
                                            .blocks = (uint32_t)(n / QUIRE_SEGMENT_BLOCK) };

        rc = record_found(r, segment, &record.text, &entry);
        return rc < 0 ? rc : (int64_t)n;
    }
    if (quire_marker_read(s->bytes + at, &drop, &sequence)) {
        rc = scan_marker(r, segment, s, at);
        return rc < 0 ? rc : (int64_t)QUIRE_SEGMENT_BLOCK;
    }
    return 0;
}

/* Take all that is whole. Damage is passed over block by block: a marker behind it still counts. */
static int scan_take(recovery *r, file_segment *segment, scan *s)
{
    quire_segment_head head;
    uint64_t at = QUIRE_SEGMENT_BLOCK;

    s->end_bytes = QUIRE_SEGMENT_BLOCK;
    if (s->n_bytes >= QUIRE_SEGMENT_BLOCK && quire_segment_head_read(s->bytes, &head)) {
        QUIRE_TRY(head_found(r, segment, &head));
    }
    while (at + QUIRE_SEGMENT_BLOCK <= s->n_bytes) {
        const int64_t n = scan_one(r, segment, s, at);

        if (n < 0) {
            return (int)n;
        }
        if (n > 0) {
            at += (uint64_t)n;
            s->end_bytes = at;
        } else {
            s->is_damaged = true;
            at += QUIRE_SEGMENT_BLOCK;
        }
    }
    return 0;
}

/* So that the next start need not read all of it again. Failure costs only that. The records may
 * not be durable yet, where the last process was killed before a sync: the sync comes before the
 * footer, which after a power failure must list no lost record in the place of an older, durable
 * one. */
static void scan_footer(recovery *r, file_segment *segment, const scan *s)
{
    file_store *st = r->st;
    const uint32_t marked = st->marked;
    char path[FILE_PATH_MAX];
    uint64_t end_bytes = s->end_bytes;
    int fd;

    quire_file_path(st, segment->number, path);
    fd = quire_file_open_direct(st->ops, path, O_WRONLY, 0);
    if (fd < 0) {
        return;
    }
    st->marked = quire_max_u32(marked, r->unread_last); /* the head of this segment did not say */
    if (st->ops->truncate(st->ops->ctx, fd, end_bytes) == 0 &&
        st->ops->datasync(st->ops->ctx, fd) == 0 &&
        quire_file_footer_write(st, fd, segment, &s->drops, &end_bytes) == 0) {
        (void)st->ops->datasync(st->ops->ctx, fd);
        st->stats.stored_bytes += end_bytes - s->n_bytes;
        segment->charge_bytes += end_bytes - s->n_bytes;
    }
    st->marked = marked;
    (void)st->ops->close(st->ops->ctx, fd);
}

static int scan_segment(recovery *r, file_segment *segment, int fd, uint64_t file_bytes)
{
    file_store *st = r->st;
    scan s = { .n_bytes = file_bytes };
    int rc;

    /* No store makes such files. It stays until it is the oldest. */
    if (file_bytes > QUIRE_FILE_SEGMENT_BYTES_MAX) {
        return 0;
    }
    s.bytes = aligned_alloc(QUIRE_SEGMENT_BLOCK,
                            (file_bytes / QUIRE_SEGMENT_BLOCK + 1) * QUIRE_SEGMENT_BLOCK);
    if (s.bytes == NULL) {
        return -ENOMEM;
    }
    /* Whole blocks only: bytes behind them are torn. */
    s.n_bytes = file_bytes / QUIRE_SEGMENT_BLOCK * QUIRE_SEGMENT_BLOCK;
    rc = quire_file_read_all(st->ops, fd, s.bytes, s.n_bytes, 0);
    if (rc < 0) {
        rc = unread(r, segment, "read", rc);
    } else {
        rc = scan_take(r, segment, &s);
        s.n_bytes = file_bytes;
        if (rc == 0 && !st->opts.is_readonly &&
            s.end_bytes + QUIRE_SEGMENT_BLOCK <= QUIRE_FILE_SEGMENT_BYTES_MAX) {
            scan_footer(r, segment, &s);
        }
    }
    quire_file_drops_free(&s.drops);
    free(s.bytes);
    return rc;
}

/* ---- all ---- */

static int segment_take(recovery *r, uint32_t number)
{
    file_store *st = r->st;
    char path[FILE_PATH_MAX];
    uint64_t file_bytes = 0;
    file_segment *segment;
    int fd, rc;

    quire_file_path(st, number, path);
    fd = quire_file_open_direct(st->ops, path, O_RDONLY, 0);
    if (fd == -ENOENT) {
        return 0;
    }
    rc = fd >= 0 ? st->ops->size(st->ops->ctx, fd, &file_bytes) : fd;
    segment = quire_file_segment_add(
        st, number, rc < 0 ? st->opts.segment_bytes : file_bytes + QUIRE_FILE_SEGMENT_OVERHEAD);
    if (segment == NULL) {
        rc = -ENOMEM;
    } else if (rc < 0) {
        rc = unread(r, segment, fd < 0 ? "opened" : "read", rc);
    } else {
        rc = footer_take(r, segment, fd, file_bytes);
        rc = rc == 0 ? scan_segment(r, segment, fd, file_bytes) : rc;
    }
    if (fd >= 0) {
        (void)st->ops->close(st->ops->ctx, fd);
    }
    return rc < 0 ? rc : 0;
}

static uint64_t entry_position(void *ctx, const quire_index_entry *entry)
{
    const file_store *st = ctx;

    return position_of(st->slots[entry->segment]->number, entry->place);
}

static void entry_dropped(void *ctx, const quire_index_entry *entry)
{
    quire_file_uncount(ctx, entry);
}

/* Forget the records of a segment, and take it off the list if its file can be removed. */
static void segment_discard(file_store *st, file_segment *segment)
{
    char path[FILE_PATH_MAX];
    int rc;

    for (uint32_t i = 0; i < segment->n_items; i++) {
        if (quire_file_item_entry(st, segment, segment->items[i]) != NULL) {
            quire_file_forget(st, segment->items[i].id, NULL);
        }
    }
    quire_file_path(st, segment->number, path);
    rc = st->opts.is_readonly ? -EROFS : st->ops->unlink(st->ops->ctx, path);
    if (rc == 0 || rc == -ENOENT) {
        quire_file_segment_free(st, quire_file_segment_remove(st, segment));
    }
}

/* Files that should have gone before the end of the last run. Markers that dropped their records
 * may have gone. */
static void leftovers_discard(recovery *r)
{
    file_store *st = r->st;

    for (file_segment *s = st->oldest, *next; s != NULL; s = next) {
        next = s->next;
        if (s->number < r->newest.oldest) {
            segment_discard(st, s);
        }
    }
}

static int recover_all(recovery *r)
{
    file_store *st = r->st;
    int rc = 0;

    for (uint32_t i = 0; i < r->n_numbers && rc == 0; i++) {
        rc = segment_take(r, r->numbers[i]);
    }
    rc = rc == 0 ? unread_settle(r, QUIRE_SEGMENT_NOT_KNOWN) : rc;
    if (rc < 0) {
        return rc;
    }
    if (r->n_drops > 0) {
        (void)quire_index_drop_apply(st->index, r->drops, r->n_drops, entry_position, entry_dropped,
                                     st);
    }
    st->sequence = quire_max_u64(st->sequence, r->newest.sequence);
    st->next_number = r->n_numbers > 0 ? r->numbers[r->n_numbers - 1] + 1 : 1;
    leftovers_discard(r);
    if (!st->opts.is_readonly) {
        /* The capacity may be smaller than it was. */
        (void)quire_file_room_make(st, false);
        for (uint32_t i = 0; i < st->n_accounts; i++) { /* so may quotas */
            quire_file_quota_keep(st, (uint16_t)i);
        }
    }
    return 0;
}

int quire_file_recover(file_store *st, quire_error *err)
{
    recovery r = { .st = st, .tail = aligned_alloc(QUIRE_SEGMENT_BLOCK, TAIL_BYTES) };
    int rc = r.tail != NULL ? 0 : -ENOMEM;

    rc = rc == 0 ? st->ops->list(st->ops->ctx, st->dir, name_take, &r) : rc;
    rc = rc == 0 && r.is_out_of_memory ? -ENOMEM : rc;
    if (rc == 0 && r.n_numbers > 0) {
        qsort(r.numbers, r.n_numbers, sizeof *r.numbers, by_number);
    }
    rc = rc == 0 ? recover_all(&r) : rc;
    for (uint32_t i = 0; i < r.n_drops; i++) {
        free((void *)(uintptr_t)r.drops[i].drop.salt);
    }
    free(r.drops);
    free(r.numbers);
    free(r.tail);
    st->stats.evictions = 0;
    st->failure = (file_failure){ 0 };
    return rc < 0 ? quire_error_set_errno(err, -rc, "cannot read the cache directory %s", st->dir)
                  : QUIRE_OK;
}
