/* file_writer.c - the writer thread: order and rate of writes, their durability, and trouble; see
 * file_internal.h.
 *
 *        .---- write or sync fails ----.
 *   READY                               DEGRADED --.
 *        '---- a new segment works <---'    '------' every retry_ms
 *
 * Puts and drops are written in the order in which they came, by their sequence numbers.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include "base/clock.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_MS 1000000u
/* With a clock of the owner's no wait is longer, because that clock wakes nobody. */
#define OWN_CLOCK_WAIT_NS NS_PER_MS
#define WAIT_NS_MAX       (60000ull * NS_PER_MS)
/* Bytes that the rate allowed in this time, and that were not written, may be written later at
 * once. */
#define RATE_BURST_MS 1000u

/* ---- trouble ---- */

/* A put that will not become durable. With the lock. */
static void put_refuse(file_store *st, quire_transfer *t, quire_store_result result)
{
    const uint32_t id = quire_index_find(st->index, &t->found.text.key);

    if (t->found.record_bytes != 0 && id != QUIRE_INDEX_NONE &&
        quire_index_get(st->index, id)->sequence == t->found.sequence) {
        quire_file_forget(st, id, NULL);
    }
    st->stats.refused_total++;
    quire_file_done(st, t, result);
}

static void puts_refuse(file_store *st, file_transfers *list, quire_store_result result)
{
    quire_transfer *t;

    while ((t = quire_file_pop(list)) != NULL) {
        put_refuse(st, t, result);
    }
}

void quire_file_puts_refuse(file_store *st)
{
    puts_refuse(st, &st->unsynced, QUIRE_STORE_IO);
    puts_refuse(st, &st->puts, QUIRE_STORE_CLOSED);
    st->put_bytes = 0;
}

/* "pwrite of segment-0000000000000001.quire failed: No space left on device". */
static void trouble_text(const file_failure *f, int error, char *text, size_t n)
{
    const bool is_locked = error == -EWOULDBLOCK && f->call != NULL && strcmp(f->call, "lock") == 0;
    const char *reason = is_locked ? "another process has the directory" : strerrordesc_np(-error);

    reason = reason != NULL ? reason : "unknown error";
    if (f->call == NULL) {
        (void)snprintf(text, n, "writing failed: %s",
                       error == -EOVERFLOW ? "no number is left for a segment" : reason);
    } else if (f->number == FILE_NUMBER_LOCK || f->number == FILE_NUMBER_DIR) {
        (void)snprintf(text, n, "%s of the %s failed: %s", f->call,
                       f->number == FILE_NUMBER_LOCK ? "lock" : "directory", reason);
    } else {
        (void)snprintf(text, n, "%s of segment-%016x.quire failed: %s", f->call, f->number, reason);
    }
}

int quire_file_failed(file_store *st, int rc, const char *call, uint32_t number)
{
    if (rc < 0) {
        st->failure = (file_failure){ call, number };
    }
    return rc;
}

/* Writing failed: give everything back, and wait for better times. */
static void trouble(file_store *st, int error)
{
    const file_failure failure = st->failure;
    char text[sizeof st->stats.trouble];
    bool is_new;

    trouble_text(&failure, error, text, sizeof text);
    quire_file_open_abandon(st);
    st->failure = (file_failure){ 0 };
    (void)pthread_mutex_lock(&st->lock);
    is_new = st->stats.state != QUIRE_STORE_DEGRADED;
    st->stats.state = QUIRE_STORE_DEGRADED;
    memcpy(st->stats.trouble, text, sizeof text);
    st->retry_at_ns = quire_file_now(st) + (uint64_t)st->opts.retry_ms * NS_PER_MS;
    quire_file_puts_refuse(st);
    (void)pthread_mutex_unlock(&st->lock);
    if (is_new) {
        quire_file_log(st, FILE_LOG_TROUBLE, "%s: %s; nothing is stored until it works again",
                       st->dir, text);
    }
    quire_file_wake(st);
}

/* The directory is not there: make it again and lock it. */
static int dir_make(file_store *st)
{
    const char *call;
    int fd, rc = st->ops->make_dir(st->ops->ctx, st->dir, 0700);

    if (rc < 0 && rc != -EEXIST) {
        return quire_file_failed(st, rc, "mkdir", FILE_NUMBER_DIR);
    }
    rc = quire_file_lock(st, &fd, &call);
    if (rc < 0) {
        (void)quire_file_failed(st, rc, call, FILE_NUMBER_LOCK);
        if (fd >= 0) {
            (void)st->ops->close(st->ops->ctx, fd);
        }
        return rc;
    }
    (void)st->ops->close(st->ops->ctx, st->lock_fd);
    st->lock_fd = fd;
    return 0;
}

/* DEGRADED: try whether a new segment works. */
static void retry(file_store *st)
{
    int rc = quire_file_begin(st);

    if (rc == -ENOENT && st->open.segment == NULL) {
        rc = dir_make(st);
        rc = rc == 0 ? quire_file_begin(st) : rc;
    }
    rc = rc == 0 ? quire_file_sync(st) : rc;
    if (rc < 0) {
        trouble(st, rc);
        return;
    }
    (void)pthread_mutex_lock(&st->lock);
    st->stats.state = QUIRE_STORE_READY;
    st->stats.trouble[0] = '\0';
    /* The next trouble is news again. */
    st->logged &= ~(1u << FILE_LOG_TROUBLE);
    (void)pthread_mutex_unlock(&st->lock);
}

/* ---- rate ---- */

static void rate_fill(file_store *st)
{
    const uint64_t now_ns = quire_file_now(st);
    const int64_t burst = (int64_t)(st->opts.write_rate * RATE_BURST_MS / 1000);
    const double earned =
        (double)(now_ns - st->rate_at_ns) * (double)st->opts.write_rate / 1000000000.0;

    /* Time of which less than one byte came is not lost. */
    if (earned >= 1.0) {
        st->rate_at_ns = now_ns;
        st->rate_tokens =
            earned >= (double)(burst - st->rate_tokens) ? burst : st->rate_tokens + (int64_t)earned;
    }
}

/* Nanoseconds until something may be written: 0, now. */
static uint64_t rate_wait_ns(file_store *st)
{
    if (st->opts.write_rate == 0) {
        return 0;
    }
    rate_fill(st);
    return st->rate_tokens >= 0
               ? 0
               : (uint64_t)((double)-st->rate_tokens * 1e9 / (double)st->opts.write_rate) + 1;
}

/* ---- one put, one drop ---- */

typedef enum put_fate {
    PUT_WRITE,
    PUT_KNOWN,
    PUT_ABSENT
} put_fate;

/* The state of a queued put. With the lock. */
static put_fate put_fate_of(const file_store *st, const quire_transfer *t)
{
    const uint32_t id = quire_index_find(st->index, &t->found.text.key);
    const quire_index_entry *entry = id != QUIRE_INDEX_NONE ? quire_index_get(st->index, id) : NULL;

    if (entry == NULL) {
        return PUT_ABSENT;
    }
    if (entry->state == QUIRE_INDEX_PENDING) {
        return entry->sequence == t->found.sequence ? PUT_WRITE : PUT_ABSENT;
    }
    /* The record to be replaced. If it was dropped, its replacement is dropped as well. */
    if (t->is_replacing && entry->sequence < t->found.sequence) {
        return PUT_WRITE;
    }
    /* Written by an earlier put: durable with the next sync. */
    return t->found.record_bytes == 0 ? PUT_KNOWN : PUT_ABSENT;
}

/* Whether the entry may stand for the transfer's record now; one that is replaced is changed. */
static bool entry_take(file_store *st, quire_index_entry *entry, const quire_transfer *t)
{
    const quire_page_text *text = &t->found.text;

    if (entry->state == QUIRE_INDEX_PENDING) {
        return entry->sequence == t->found.sequence;
    }
    if (!t->is_replacing || entry->sequence >= t->found.sequence ||
        memcmp(&quire_index_root_get(st->index, entry->root)->key, &text->root,
               sizeof text->root) != 0) {
        return false;
    }
    quire_file_uncount(st, entry);
    entry->sequence = t->found.sequence;
    entry->parent = text->parent;
    entry->first_token = text->first_token;
    entry->n_tokens = (uint16_t)text->n_tokens;
    return true;
}

/* The record is in the open segment at `place`. *account: whose it is. With the lock. */
static void put_written(file_store *st, quire_transfer *t, uint32_t place, uint16_t *account)
{
    const uint32_t id = quire_index_find(st->index, &t->found.text.key);
    quire_index_entry *entry = id != QUIRE_INDEX_NONE ? quire_index_get(st->index, id) : NULL;

    if (entry == NULL || quire_file_item_add(st->open.segment, id, place) < 0 ||
        !entry_take(st, entry, t)) {
        put_refuse(st, t, QUIRE_STORE_ABSENT);
        return;
    }
    entry->segment = st->open.segment->slot;
    entry->place = place;
    entry->blocks = t->found.record_bytes / QUIRE_SEGMENT_BLOCK;
    entry->state = QUIRE_INDEX_WRITTEN;
    quire_file_count(st, entry);
    *account = quire_file_account_of(st, entry);
    if (st->unsynced.first == NULL) {
        st->unsynced_at_ns = quire_file_now(st);
    }
    quire_file_push(&st->unsynced, t);
}

static void put_process(file_store *st, quire_transfer *t)
{
    uint16_t account = 0;
    uint32_t place;
    put_fate fate;
    int rc;

    (void)pthread_mutex_lock(&st->lock);
    fate = put_fate_of(st, t);
    if (fate == PUT_KNOWN) {
        if (st->unsynced.first == NULL) {
            st->unsynced_at_ns = quire_file_now(st);
        }
        quire_file_push(&st->unsynced, t);
    } else if (fate == PUT_ABSENT) {
        st->stats.refused_total++;
        quire_file_done(st, t, QUIRE_STORE_ABSENT);
    }
    (void)pthread_mutex_unlock(&st->lock);
    if (fate != PUT_WRITE) {
        quire_file_wake(st);
        return;
    }
    quire_page_record_seal(t->record, t->found.sequence);
    rc = quire_file_append(st, t->record, t->found.record_bytes,
                           QUIRE_SEGMENT_ENTRY_BYTES + QUIRE_SEGMENT_ROOT_BYTES +
                               quire_segment_salt_room(t->found.text.salt_bytes),
                           true, &place);
    if (rc == 0) {
        quire_file_carry_earn(st, t->found.record_bytes);
    }
    (void)pthread_mutex_lock(&st->lock);
    if (rc == 0) {
        put_written(st, t, place, &account);
    } else {
        /* Given back IO by trouble(), after the state has changed. */
        quire_file_push(&st->unsynced, t);
    }
    (void)pthread_mutex_unlock(&st->lock);
    if (rc < 0) {
        trouble(st, rc);
    } else {
        quire_file_quota_keep(st, account);
    }
}

static void drop_process(file_store *st, file_drop *drop)
{
    int rc;

    /* Not the writer's block: a new segment may need it on the way. */
    unsigned char *block = aligned_alloc(QUIRE_SEGMENT_BLOCK, QUIRE_SEGMENT_BLOCK);

    rc = block != NULL ? 0 : -ENOMEM;
    if (rc == 0) {
        quire_marker_write(block, &drop->drop, drop->sequence);
        rc = quire_file_append(st, block, QUIRE_SEGMENT_BLOCK,
                               QUIRE_SEGMENT_DROP_BYTES +
                                   quire_segment_salt_room(drop->drop.salt_bytes),
                               true, &drop->place);
    }
    free(block);
    if (rc == 0) {
        drop->is_durable = false;
        st->marked = st->open.segment->number;
        st->open.segment->has_drops = true;
        quire_file_drop_push(&st->open.drops, drop);
        return;
    }
    (void)pthread_mutex_lock(&st->lock);
    drop->next = st->drops.first;
    st->drops.first = drop;
    st->drops.last = st->drops.last != NULL ? st->drops.last : drop;
    st->drops.n++;
    (void)pthread_mutex_unlock(&st->lock);
    trouble(st, rc);
}

/* ---- the loop ---- */

/* Take the next put or drop in order; drops do not wait for the rate. With the lock. */
static void next_take(file_store *st, bool may_put, quire_transfer **put, file_drop **drop)
{
    file_drop *d = st->drops.first;
    quire_transfer *t = st->puts.first;

    *put = NULL;
    *drop = NULL;
    if (d != NULL && (t == NULL || d->sequence < t->found.sequence)) {
        st->drops.first = d->next;
        st->drops.last = d->next != NULL ? st->drops.last : NULL;
        st->drops.n--;
        *drop = d;
    } else if (t != NULL && may_put) {
        *put = quire_file_pop(&st->puts);
        st->put_bytes -= st->put_bytes < t->capacity ? st->put_bytes : t->capacity;
    }
}

static bool is_unsynced(const file_store *st)
{
    return st->unsynced.first != NULL || (st->open.segment != NULL && st->open.is_dirty);
}

/* Nanoseconds until the next sync: 0, now; WAIT_NS_MAX, there is nothing to sync. With the lock. */
static uint64_t sync_wait_ns(const file_store *st)
{
    const uint64_t now_ns = quire_file_now(st);
    const uint64_t late_ns = st->unsynced_at_ns + (uint64_t)st->opts.sync_ms * NS_PER_MS;
    const uint64_t idle_ns = st->put_at_ns + (uint64_t)st->opts.idle_sync_ms * NS_PER_MS;
    uint64_t at_ns = late_ns;

    if (!is_unsynced(st)) {
        return WAIT_NS_MAX;
    }
    if (st->unsynced.first == NULL) {
        at_ns = idle_ns; /* drops and headers */
    } else if (st->puts.first == NULL && idle_ns < at_ns) {
        at_ns = idle_ns;
    }
    return at_ns > now_ns ? at_ns - now_ns : 0;
}

/* Wait for work, at most for some time. With the lock. */
static void work_wait(file_store *st, uint64_t wait_ns)
{
    const uint64_t longest = st->opts.clock_ns != NULL ? OWN_CLOCK_WAIT_NS : WAIT_NS_MAX;
    const uint64_t until_ns = quire_clock_ns() + quire_min_u64(wait_ns, longest);
    const struct timespec until = quire_timespec(until_ns);

    (void)pthread_cond_timedwait(&st->work, &st->lock, &until);
}

/* One turn in trouble. Returns false at the end. With the lock, which it lets go of. */
static bool degraded_turn(file_store *st)
{
    const uint64_t now_ns = quire_file_now(st);

    if (st->is_closing && (st->has_retried || st->drops.first == NULL)) {
        return false;
    }
    st->has_retried = st->is_closing; /* the disk may work again: drops are not to be lost */
    if (!st->is_closing && now_ns < st->retry_at_ns) {
        work_wait(st, st->retry_at_ns - now_ns);
        return true;
    }
    (void)pthread_mutex_unlock(&st->lock);
    retry(st);
    (void)pthread_mutex_lock(&st->lock);
    return true;
}

/* One turn. Returns false when all is written and the store closes. With the lock. */
static bool turn(file_store *st)
{
    const uint64_t rate_ns = rate_wait_ns(st);
    quire_transfer *put;
    file_drop *drop;
    int rc;

    if (st->is_closing && quire_clock_ns() > st->close_at_ns) {
        puts_refuse(st, &st->puts, QUIRE_STORE_CLOSED);
    }
    next_take(st, rate_ns == 0 || st->is_closing, &put, &drop);
    if (put != NULL || drop != NULL) {
        (void)pthread_mutex_unlock(&st->lock);
        if (put != NULL) {
            put_process(st, put);
        } else {
            drop_process(st, drop);
        }
        (void)pthread_mutex_lock(&st->lock);
    }
    if (st->stats.state != QUIRE_STORE_DEGRADED && sync_wait_ns(st) == 0) {
        (void)pthread_mutex_unlock(&st->lock);
        rc = quire_file_sync(st);
        if (rc < 0) {
            trouble(st, rc);
        }
        (void)pthread_mutex_lock(&st->lock);
        return true;
    }
    if (put != NULL || drop != NULL) {
        return true;
    }
    if (st->is_closing && st->puts.first == NULL) {
        return false;
    }
    work_wait(st, quire_min_u64(sync_wait_ns(st), st->puts.first != NULL ? rate_ns : WAIT_NS_MAX));
    return true;
}

/* The last things: a footer, or no file at all. */
static void finish(file_store *st)
{
    int rc;

    if (st->open.segment == NULL || st->open.end_bytes == QUIRE_SEGMENT_BLOCK) {
        quire_file_open_abandon(st);
        return;
    }
    rc = quire_file_seal(st);
    if (rc < 0) {
        trouble(st, rc);
    }
}

void *quire_file_writer_main(void *ctx)
{
    file_store *st = ctx;
    uint32_t n_drops;

    st->rate_at_ns = quire_file_now(st);
    st->rate_tokens = (int64_t)(st->opts.write_rate * RATE_BURST_MS / 1000);
    (void)pthread_mutex_lock(&st->lock);
    while (st->stats.state == QUIRE_STORE_DEGRADED ? degraded_turn(st) : turn(st)) {
    }
    (void)pthread_mutex_unlock(&st->lock);
    finish(st);
    (void)pthread_mutex_lock(&st->lock);
    n_drops = st->drops.n;
    (void)pthread_mutex_unlock(&st->lock);
    if (n_drops > 0) {
        quire_file_log(
            st, FILE_LOG_DROPS,
            "%s: drops that could not be written: %u; the next start may find what they dropped",
            st->dir, n_drops);
    }
    (void)pthread_mutex_lock(&st->lock);
    quire_file_puts_refuse(st);
    st->is_writer_ended = true;
    (void)pthread_cond_signal(&st->ended);
    (void)pthread_mutex_unlock(&st->lock);
    return NULL;
}
