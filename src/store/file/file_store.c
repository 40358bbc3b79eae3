/* file_store.c - the caller's side of the file store; see file_store.h and file_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include "base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_MS 1000000u
#define NOTE_MAX  512u

/* ---- helpers ---- */

uint64_t quire_file_now(const file_store *st)
{
    return st->opts.clock_ns != NULL ? st->opts.clock_ns(st->opts.clock_ctx) : quire_clock_ns();
}

void quire_file_push(file_transfers *list, quire_transfer *transfer)
{
    transfer->next = NULL;
    if (list->last != NULL) {
        list->last->next = transfer;
    } else {
        list->first = transfer;
    }
    list->last = transfer;
    list->n++;
}

quire_transfer *quire_file_pop(file_transfers *list)
{
    quire_transfer *t = list->first;

    if (t != NULL) {
        list->first = t->next;
        list->last = t->next != NULL ? list->last : NULL;
        list->n--;
        t->next = NULL;
    }
    return t;
}

void quire_file_drop_push(file_drops *list, file_drop *drop)
{
    drop->next = NULL;
    if (list->last != NULL) {
        list->last->next = drop;
    } else {
        list->first = drop;
    }
    list->last = drop;
    list->n++;
}

void quire_file_drops_free(file_drops *list)
{
    while (list->first != NULL) {
        file_drop *drop = list->first;

        list->first = drop->next;
        free(drop);
    }
    *list = (file_drops){ 0 };
}

void quire_file_path(const file_store *st, uint32_t number, char *path)
{
    /* create() refuses directories with names so long that this does not fit. */
    (void)snprintf(path, FILE_PATH_MAX, "%.4000s/segment-%016x.quire", st->dir, number);
}

void quire_file_done(file_store *st, quire_transfer *transfer, quire_store_result result)
{
    transfer->result = result;
    quire_file_push(&st->done, transfer);
}

void quire_file_wake(file_store *st)
{
    quire_store_wake(&st->store);
}

void quire_file_log(file_store *st, uint32_t kind, const char *format, ...)
{
    char line[FILE_PATH_MAX + NOTE_MAX];
    va_list args;
    bool is_first;

    (void)pthread_mutex_lock(&st->lock);
    is_first = (st->logged & 1u << kind) == 0;
    st->logged |= 1u << kind;
    (void)pthread_mutex_unlock(&st->lock);
    if (is_first) {
        va_start(args, format);
        (void)vsnprintf(line, sizeof line, format, args);
        va_end(args);
        (void)pthread_mutex_lock(&st->log_lock);
        if (st->opts.log != NULL) {
            st->opts.log(st->opts.log_ctx, line);
        }
        (void)pthread_mutex_unlock(&st->log_lock);
    }
}

void quire_file_quiet(file_store *st)
{
    quire_store_waker_set(&st->store, (quire_store_waker){ 0 });
    (void)pthread_mutex_lock(&st->log_lock);
    st->opts.log = NULL;
    (void)pthread_mutex_unlock(&st->log_lock);
    (void)pthread_mutex_lock(&st->lock);
    st->opts.account_of = NULL;
    (void)pthread_mutex_unlock(&st->lock);
}

static void uncount(file_store *st, const quire_index_entry *entry)
{
    if (entry->state != QUIRE_INDEX_PENDING) {
        quire_file_uncount(st, entry);
    }
}

void quire_file_forget(file_store *st, uint32_t id, uint64_t *counter)
{
    uncount(st, quire_index_get(st->index, id));
    quire_index_remove(st->index, id);
    st->stats.evictions++;
    if (counter != NULL) {
        ++*counter;
    }
}

/* ---- get, put ---- */

static bool is_same_place(const file_store *st, const quire_index_entry *entry,
                          const quire_page_text *text)
{
    return memcmp(&quire_index_root_get(st->index, entry->root)->key, &text->root,
                  sizeof text->root) == 0 &&
           memcmp(&entry->parent, &text->parent, sizeof text->parent) == 0 &&
           entry->first_token == text->first_token &&
           (text->n_tokens == 0 || entry->n_tokens == text->n_tokens);
}

/* With the lock. Returns whether the transfer is done. */
static bool get_one(file_store *st, quire_transfer *t)
{
    const uint32_t id = quire_index_find(st->index, &t->text.key);
    quire_index_entry *entry = id != QUIRE_INDEX_NONE ? quire_index_get(st->index, id) : NULL;

    t->is_put = false;
    t->found = (quire_page_record){ 0 };
    st->stats.gets_now++;
    if (st->is_closing) {
        quire_file_done(st, t, QUIRE_STORE_CLOSED);
    } else if (entry == NULL || entry->state == QUIRE_INDEX_PENDING ||
               (t->is_query && !is_same_place(st, entry, &t->text))) {
        quire_file_done(st, t, QUIRE_STORE_ABSENT);
    } else if (t->is_query) {
        entry->uses = (uint8_t)(entry->uses + (entry->uses < UINT8_MAX));
        t->found.sequence = entry->sequence;
        quire_file_done(st, t, QUIRE_STORE_OK);
    } else {
        quire_file_push(&st->gets[t->urgency], t);
        st->gets_set[t->urgency / 64] |= (uint64_t)1 << (t->urgency % 64);
        return false;
    }
    return true;
}

static void file_get(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    file_store *st = (file_store *)(void *)store;
    bool is_done = false, is_queued = false;

    (void)pthread_mutex_lock(&st->lock);
    for (uint32_t i = 0; i < n; i++) {
        const bool done = get_one(st, transfers[i]);

        is_done |= done;
        is_queued |= !done;
    }
    (void)pthread_mutex_unlock(&st->lock);
    if (is_queued) {
        quire_reads_kick(st->reads);
    }
    if (is_done) {
        quire_file_wake(st);
    }
}

/* Whether a record fits into a new segment and leaves room there for used records of old ones. */
static bool fits_segment(const file_store *st, const quire_page_record *record)
{
    const uint64_t footer = QUIRE_SEGMENT_ENTRY_BYTES + QUIRE_SEGMENT_ROOT_BYTES +
                            quire_segment_salt_room(record->text.salt_bytes);
    const uint64_t carried = (uint64_t)((double)st->opts.segment_bytes * QUIRE_FILE_CARRY);

    return QUIRE_SEGMENT_BLOCK + record->record_bytes + quire_segment_footer_room(footer) +
               QUIRE_FILE_SEGMENT_OVERHEAD + carried + QUIRE_SEGMENT_BLOCK <=
           st->opts.segment_bytes;
}

/* With the lock. Returns how a put ends at once, or OK: it is queued, or done if the record is
 * known. */
static quire_store_result put_one(file_store *st, quire_transfer *t)
{
    uint32_t id;

    t->is_put = true;
    st->stats.puts_now++;
    if (st->opts.is_readonly || st->is_closing || st->stats.state == QUIRE_STORE_DEGRADED) {
        return QUIRE_STORE_CLOSED;
    }
    if (t->capacity < QUIRE_PAGE_RECORD_ALIGN ||
        quire_page_record_fields(t->record, t->capacity, &t->found) != QUIRE_STORE_OK ||
        !fits_segment(st, &t->found)) {
        return QUIRE_STORE_FORMAT;
    }
    id = quire_index_find(st->index, &t->found.text.key);
    if (id != QUIRE_INDEX_NONE && !t->is_replacing &&
        quire_index_get(st->index, id)->state == QUIRE_INDEX_DURABLE) {
        st->stats.known_total++;
        quire_file_done(st, t, QUIRE_STORE_OK);
        return QUIRE_STORE_OK;
    }
    if (st->put_bytes + t->capacity > st->opts.queue_bytes && st->puts.first != NULL) {
        return QUIRE_STORE_FULL;
    }
    t->found.sequence = st->sequence++;
    if (id != QUIRE_INDEX_NONE && !t->is_replacing) {
        t->found.record_bytes = 0; /* becomes durable with the one before */
    } else if (id == QUIRE_INDEX_NONE &&
               quire_index_add(st->index, &t->found.text, t->found.sequence) == QUIRE_INDEX_NONE) {
        return QUIRE_STORE_FULL;
    }
    st->put_bytes += t->capacity;
    st->put_at_ns = quire_file_now(st);
    quire_file_push(&st->puts, t);
    return QUIRE_STORE_OK;
}

static void file_put(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    file_store *st = (file_store *)(void *)store;
    bool is_done;

    (void)pthread_mutex_lock(&st->lock);
    for (uint32_t i = 0; i < n; i++) {
        const quire_store_result result = put_one(st, transfers[i]);

        if (result != QUIRE_STORE_OK) {
            st->stats.refused_total++;
            quire_file_done(st, transfers[i], result);
        }
    }
    is_done = st->done.first != NULL;
    (void)pthread_cond_signal(&st->work);
    (void)pthread_mutex_unlock(&st->lock);
    if (is_done) {
        quire_file_wake(st);
    }
}

/* ---- drop ---- */

static uint64_t drop_position(void *ctx, const quire_index_entry *entry)
{
    (void)ctx;
    (void)entry;
    return 0;
}

static void drop_each(void *ctx, const quire_index_entry *entry)
{
    file_store *st = ctx;

    uncount(st, entry);
    st->stats.dropped_total++;
}

/* Queue a marker. A marker that ends all records replaces the waiting markers. With the lock. */
static int drop_queue(file_store *st, const quire_store_drop *drop)
{
    file_drop *d = calloc(1, sizeof *d);

    if (d == NULL) {
        return QUIRE_NOMEM;
    }
    d->drop = *drop;
    d->sequence = st->sequence++;
    if (drop->what == QUIRE_STORE_DROP_ALL) {
        quire_file_drops_free(&st->drops);
    }
    if (d->drop.salt_bytes > 0) {
        memcpy(d->salt, drop->salt, drop->salt_bytes);
    }
    d->drop.salt = d->salt;
    quire_file_drop_push(&st->drops, d);
    st->put_at_ns = quire_file_now(st);
    (void)pthread_cond_signal(&st->work);
    return st->stats.state == QUIRE_STORE_DEGRADED ? QUIRE_IO : QUIRE_OK;
}

static int file_drop_records(quire_store *store, const quire_store_drop *wanted)
{
    static const quire_page_key zeros;
    file_store *st = (file_store *)(void *)store;
    quire_index_drop drop = { .drop = *wanted, .position = 1 };
    uint32_t id;
    int rc;

    QUIRE_FAIL_IF(!quire_marker_is_valid(wanted), QUIRE_INVAL);
    (void)pthread_mutex_lock(&st->lock);
    /* The records end now, as they will after the next start: else one of them would count as
     * durable. */
    if (st->drops.n >= QUIRE_FILE_DROPS_MAX) {
        drop.drop = (quire_store_drop){ .what = QUIRE_STORE_DROP_ALL };
    }
    id = quire_index_find(st->index, &wanted->key);
    if (wanted->what >= QUIRE_STORE_DROP_TEXT && id != QUIRE_INDEX_NONE &&
        memcmp(&wanted->root, &zeros, sizeof zeros) == 0) {
        drop.drop.root = quire_index_root_get(st->index, quire_index_get(st->index, id)->root)->key;
    }
    (void)quire_index_drop_apply(st->index, &drop, 1, drop_position, drop_each, st);
    rc = st->opts.is_readonly ? QUIRE_IO : drop_queue(st, &drop.drop);
    (void)pthread_mutex_unlock(&st->lock);
    return rc;
}

/* ---- poll, stats ---- */

/* Bring a transfer's result up to date: a record that was found and has gone since is absent. */
static void result_settle(file_store *st, quire_transfer *t)
{
    uint32_t id;

    if (t->is_put) {
        st->stats.puts_now--;
        return;
    }
    st->stats.gets_now--;
    if (t->result == QUIRE_STORE_OK) {
        id = quire_index_find(st->index, &t->text.key);
        if (id == QUIRE_INDEX_NONE ||
            quire_index_get(st->index, id)->sequence != t->found.sequence) {
            t->result = QUIRE_STORE_ABSENT;
        }
    }
    if (!t->is_query) {
        st->stats.results_total[t->result]++;
    }
}

static uint32_t file_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    file_store *st = (file_store *)(void *)store;
    uint32_t i = 0;

    (void)pthread_mutex_lock(&st->lock);
    while (i < n && (out[i] = quire_file_pop(&st->done)) != NULL) {
        result_settle(st, out[i++]);
    }
    (void)pthread_mutex_unlock(&st->lock);
    return i;
}

static void file_stats(const quire_store *store, quire_store_stats *out)
{
    /* The lock changes, the store does not. */
    file_store *st = (file_store *)(uintptr_t)store;

    (void)pthread_mutex_lock(&st->lock);
    *out = st->stats;
    if (st->n_reading > 0) {
        out->read_us_total += (quire_file_now(st) - st->reading_since_ns) / 1000;
    }
    (void)pthread_mutex_unlock(&st->lock);
}

const char *quire_file_store_reads_name(const quire_store *store)
{
    return quire_reads_name(((const file_store *)(const void *)store)->reads);
}

/* ---- close ---- */

static void store_free(file_store *st)
{
    while (st->oldest != NULL) {
        file_segment *segment = st->oldest;

        st->oldest = segment->next;
        quire_file_segment_free(st, segment);
    }
    if (st->lock_fd >= 0) {
        (void)st->ops->close(st->ops->ctx, st->lock_fd);
    }
    quire_file_drops_free(&st->drops);
    quire_index_destroy(st->index);
    free(st->slots);
    free(st->block);
    free(st->copy);
    quire_file_accounts_fini(st);
    (void)pthread_cond_destroy(&st->work);
    (void)pthread_cond_destroy(&st->ended);
    (void)pthread_mutex_destroy(&st->lock);
    (void)pthread_mutex_destroy(&st->log_lock);
    free(st);
}

/* Wait for the writer until close_at_ns. Returns whether it ended. */
static bool writer_end(file_store *st)
{
    const struct timespec until = quire_timespec(st->close_at_ns);
    bool is_ended = !st->has_writer;

    if (is_ended) {
        return true;
    }
    (void)pthread_mutex_lock(&st->lock);
    while (!st->is_writer_ended &&
           pthread_cond_timedwait(&st->ended, &st->lock, &until) != ETIMEDOUT) {
    }
    is_ended = st->is_writer_ended;
    (void)pthread_mutex_unlock(&st->lock);
    if (is_ended) {
        (void)pthread_join(st->writer, NULL);
    } else {
        (void)pthread_detach(st->writer);
        (void)pthread_mutex_lock(&st->lock);
        quire_file_puts_refuse(st);
        (void)pthread_mutex_unlock(&st->lock);
    }
    return is_ended;
}

static void file_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                       void *ctx)
{
    file_store *st = (file_store *)(void *)store;
    quire_transfer *t;
    bool is_clean;

    (void)pthread_mutex_lock(&st->lock);
    st->is_closing = true;
    st->close_at_ns = quire_clock_ns() + (uint64_t)st->opts.close_ms * NS_PER_MS;
    for (uint32_t i = 0; i < FILE_URGENCIES; i++) {
        while ((t = quire_file_pop(&st->gets[i])) != NULL) {
            quire_file_done(st, t, QUIRE_STORE_CLOSED);
        }
    }
    memset(st->gets_set, 0, sizeof st->gets_set);
    (void)pthread_cond_signal(&st->work);
    (void)pthread_mutex_unlock(&st->lock);

    is_clean = writer_end(st);
    is_clean = (st->reads == NULL || quire_reads_close(st->reads, st->close_at_ns)) && is_clean;
    if (!is_clean) {
        quire_file_log(st, FILE_LOG_CLOSE,
                       "%s: the disk did not answer within %u ms; its "
                       "unfinished reads and writes are left behind",
                       st->dir, st->opts.close_ms);
    }
    quire_file_quiet(st);
    for (;;) {
        (void)pthread_mutex_lock(&st->lock);
        t = quire_file_pop(&st->done);
        if (t != NULL) {
            result_settle(st, t);
        }
        (void)pthread_mutex_unlock(&st->lock);
        if (t == NULL) {
            break;
        }
        give_back(ctx, t);
    }
    if (is_clean) {
        store_free(st);
    }
}

const quire_store_ops quire_file_store_ops = { .get = file_get,
                                               .put = file_put,
                                               .drop = file_drop_records,
                                               .poll = file_poll,
                                               .stats = file_stats,
                                               .has = quire_file_has,
                                               .close = file_close };
