/* valkey_store.c - see valkey_store.h: the thread, its loop, and the calls of the owner.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_internal.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t quire_vk_now_us(void)
{
    return quire_clock_ns() / 1000;
}

/* ---- lists ---- */

void quire_vk_jobs_push(quire_vk_jobs *jobs, quire_vk_job *job)
{
    job->next = NULL;
    if (jobs->last != NULL) {
        jobs->last->next = job;
    } else {
        jobs->first = job;
    }
    jobs->last = job;
    jobs->n++;
    jobs->bytes += job->n_bytes;
}

quire_vk_job *quire_vk_jobs_pop(quire_vk_jobs *jobs)
{
    quire_vk_job *job = jobs->first;

    if (job != NULL) {
        jobs->first = job->next;
        jobs->last = job->next != NULL ? jobs->last : NULL;
        jobs->n--;
        jobs->bytes -= job->n_bytes;
        job->next = NULL;
    }
    return job;
}

/* ---- jobs ---- */

void quire_vk_job_scopes_read(quire_valkey_store *m, quire_vk_job *job)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        job->tickets[i] = quire_vk_scope_read(&m->epochs, job->scopes[i]);
    }
}

bool quire_vk_job_scopes(quire_valkey_store *m, quire_vk_job *job)
{
    const uint32_t n_tenant = m->opts.tenant_bytes != NULL
                                  ? m->opts.tenant_bytes(job->text.salt, job->text.salt_bytes)
                                  : job->text.salt_bytes;
    quire_prefix_key key = { .identity = { m->opts.identity[0], m->opts.identity[1] } };
    quire_page_key keys[QUIRE_EPOCH_COUNT];

    quire_prefix_key_root(&key, &keys[QUIRE_EPOCH_MODEL]);
    key.salt = job->text.salt;
    key.salt_bytes = n_tenant;
    quire_prefix_key_root(&key, &keys[QUIRE_EPOCH_TENANT]);
    keys[QUIRE_EPOCH_ROOT] = job->text.root;
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        job->scopes[i] = quire_vk_scope_use(&m->epochs, (quire_epoch_of)i, &keys[i]);
        if (job->scopes[i] == NULL) {
            return false;
        }
    }
    quire_vk_job_scopes_read(m, job);
    return true;
}

bool quire_vk_job_is_idle(const quire_vk_job *job)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        if (job->scopes[i] != NULL && job->scopes[i]->answered < job->tickets[i]) {
            return false;
        }
    }
    return job->n_away == 0;
}

bool quire_vk_job_has_scopes(const quire_vk_job *job)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        if (job->scopes[i] == NULL || job->scopes[i]->is_failed) {
            return false;
        }
    }
    return true;
}

bool quire_vk_job_is_current(const quire_vk_job *job, const quire_seal_head *head)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        if (!job->scopes[i]->is_known ||
            memcmp(job->scopes[i]->epoch, head->epochs[i], QUIRE_SEAL_EPOCH_BYTES) != 0) {
            return false;
        }
    }
    return !quire_vk_scope_has_dropped(job->scopes[QUIRE_EPOCH_ROOT], head, job->id);
}

void quire_vk_job_send(quire_valkey_store *m, quire_vk_job *job, const quire_vk_arg *args,
                       uint32_t n, quire_vk_done done)
{
    quire_vk_cmd *cmd =
        quire_vk_cmd_new(args, n, quire_valkey_slot(args[1].data, args[1].n), done, job);

    if (cmd == NULL) {
        job->is_cut = true;
        return;
    }
    job->n_away++;
    quire_vk_cluster_send(m->cluster, cmd);
}

void quire_vk_job_replied(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    job->is_cut = job->is_cut || reply == NULL;
}

static void put_count(quire_store_stats *stats, const quire_vk_job *job, quire_store_result result)
{
    const bool is_written = result == QUIRE_STORE_OK && !job->is_known;

    stats->puts_now--;
    stats->refused_total += result != QUIRE_STORE_OK;
    stats->known_total += result == QUIRE_STORE_OK && job->is_known;
    stats->puts_total += is_written;
    stats->put_bytes_total += is_written ? job->n_bytes : 0;
    stats->written_bytes_total += is_written ? job->n_bytes + job->n_head : 0;
}

static void get_count(quire_store_stats *stats, const quire_vk_job *job, quire_store_result result)
{
    stats->gets_now--;
    if (!job->transfer->is_query) {
        stats->results_total[result]++;
        stats->reads_total += job->n_chunks > 0;
        stats->read_bytes_total += job->n_chunks > 0 ? job->n_head + job->fields.record_bytes : 0;
    }
}

/* Between the owner's drop and its arrival in the thread a get may end here. */
static bool is_dropped_since(const quire_valkey_store *m, const quire_vk_job *job)
{
    for (const quire_vk_drop *drop = m->new_drops; drop != NULL; drop = drop->next) {
        if (job->stamp < drop->number && quire_vk_drop_may_end(drop, &job->text)) {
            return true;
        }
    }
    return false;
}

void quire_vk_job_end(quire_valkey_store *m, quire_vk_job *job, quire_store_result result)
{
    quire_transfer *t = job->transfer;

    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        quire_vk_scope_release(job->scopes[i]);
        job->scopes[i] = NULL;
    }
    (void)pthread_mutex_lock(&m->lock);
    if (result == QUIRE_STORE_OK && !t->is_put && is_dropped_since(m, job)) {
        result = QUIRE_STORE_ABSENT;
    }
    if (t->is_put) {
        put_count(&m->stats, job, result);
    } else {
        get_count(&m->stats, job, result);
    }
    if (result == QUIRE_STORE_OK || (result == QUIRE_STORE_ABSENT && !t->is_put)) {
        quire_seen_note(&m->seen, quire_lineage_id(&m->lineage, &job->text.key),
                        result == QUIRE_STORE_OK);
    }
    t->result = result;
    free(job->head);
    job->head = NULL;
    quire_vk_jobs_push(&m->done, job);
    (void)pthread_mutex_unlock(&m->lock);
    m->has_done = true;
}

/* ---- the loop ---- */

typedef bool (*move_fn)(quire_valkey_store *m, quire_vk_job *job, quire_store_result *result);

/* Move the jobs of a list on. */
static void jobs_move(quire_valkey_store *m, quire_vk_jobs *jobs, move_fn move)
{
    for (uint32_t n = jobs->n; n > 0; n--) {
        quire_vk_job *job = quire_vk_jobs_pop(jobs);
        quire_store_result result;

        if (move(m, job, &result)) {
            quire_vk_job_end(m, job, result);
        } else {
            quire_vk_jobs_push(jobs, job);
        }
    }
}

/* Take the transfers and drops that the owner has given. */
static void inbox_take(quire_valkey_store *m)
{
    quire_vk_jobs fresh;
    quire_vk_drop *drops;
    quire_vk_job *job;

    (void)pthread_mutex_lock(&m->lock);
    fresh = m->inbox;
    m->inbox = (quire_vk_jobs){ 0 };
    drops = m->new_drops;
    m->new_drops = NULL;
    if (m->is_closing && m->close_at_us == 0) {
        m->close_at_us = quire_vk_now_us() + m->opts.close_ms * 1000u;
    }
    (void)pthread_mutex_unlock(&m->lock);
    quire_vk_drops_take(m, drops, &fresh);
    quire_vk_drops_move(m, quire_vk_now_us());
    while ((job = quire_vk_jobs_pop(&fresh)) != NULL) {
        if (job->transfer->is_put) {
            quire_vk_jobs_push(&m->waiting, job);
        } else {
            quire_vk_jobs_push(&m->gets, job);
            quire_vk_get_begin(m, job);
        }
    }
}

static void reading_count(quire_valkey_store *m, uint64_t now_us)
{
    if (m->reading_since_us > 0) {
        (void)pthread_mutex_lock(&m->lock);
        m->stats.read_us_total += now_us - m->reading_since_us;
        (void)pthread_mutex_unlock(&m->lock);
    }
    m->reading_since_us = m->gets.n > 0 ? now_us : 0;
}

static bool has_all_failed(const quire_vk_cluster *c)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        if (c->links[i]->breaker.opened_total == 0) {
            return false;
        }
    }
    return true;
}

static void state_update(quire_valkey_store *m, uint64_t now_us)
{
    const bool is_up = quire_vk_cluster_is_up(m->cluster);
    const bool is_full =
        m->writes.state == QUIRE_BREAKER_OPEN && now_us < quire_breaker_due_us(&m->writes);
    char trouble[sizeof m->stats.trouble] = { 0 };

    if (!is_up) {
        quire_vk_cluster_trouble(m->cluster, trouble, sizeof trouble);
    } else if (is_full) {
        (void)snprintf(trouble, sizeof trouble, "%s", m->writes_trouble);
    }
    (void)pthread_mutex_lock(&m->lock);
    m->stats.state = is_up && !is_full ? QUIRE_STORE_READY : QUIRE_STORE_DEGRADED;
    memcpy(m->stats.trouble, trouble, sizeof trouble);
    if (!m->has_tried && (is_up || has_all_failed(m->cluster))) {
        m->has_tried = true;
        (void)pthread_cond_signal(&m->is_tried);
    }
    (void)pthread_mutex_unlock(&m->lock);
}

/* Milliseconds until something is due; -1 = never. */
static int patience(const quire_valkey_store *m, uint64_t now_us)
{
    uint64_t due_us = quire_vk_cluster_due_us(m->cluster);
    const uint64_t writes_us = quire_breaker_due_us(&m->writes);

    /* The state changes when writes may be tried again. */
    due_us = writes_us > now_us && writes_us < due_us ? writes_us : due_us;
    for (const quire_vk_drop *drop = m->drops; drop != NULL; drop = drop->next) {
        due_us = !drop->is_away && drop->retry_us > now_us && drop->retry_us < due_us
                     ? drop->retry_us
                     : due_us;
    }
    due_us = m->close_at_us > 0 && m->close_at_us < due_us ? m->close_at_us : due_us;
    if (due_us == UINT64_MAX) {
        return -1;
    }
    return due_us <= now_us ? 0 : (int)((due_us - now_us) / 1000 + 1);
}

static void owner_wake(quire_valkey_store *m)
{
    if (m->has_done) {
        quire_store_wake(&m->store);
    }
    m->has_done = false;
}

static bool is_over(const quire_valkey_store *m)
{
    return m->close_at_us > 0 &&
           (quire_vk_now_us() >= m->close_at_us ||
            (m->gets.n == 0 && m->waiting.n == 0 && m->puts.n == 0 && m->drops == NULL));
}

/* One round: input, jobs, output. */
static void round_do(quire_valkey_store *m, const struct pollfd *fds, uint32_t n)
{
    uint64_t now_us = quire_vk_now_us();
    uint64_t count;

    if (fds[0].revents != 0) {
        (void)!read(m->wake_fd, &count, sizeof count);
    }
    quire_vk_cluster_io(m->cluster, fds + 1, n, now_us);
    inbox_take(m);
    jobs_move(m, &m->gets, quire_vk_get_move);
    jobs_move(m, &m->puts, quire_vk_put_move);
    now_us = quire_vk_now_us();
    quire_vk_puts_begin(m, now_us);
    quire_vk_cluster_tick(m->cluster, now_us);
    quire_vk_drops_move(m, now_us);
    reading_count(m, now_us);
    state_update(m, now_us);
    owner_wake(m);
}

static bool has_idle(const quire_vk_jobs *jobs)
{
    for (const quire_vk_job *job = jobs->first; job != NULL; job = job->next) {
        if (quire_vk_job_is_idle(job)) {
            return true;
        }
    }
    return false;
}

static void *run(void *ctx)
{
    quire_valkey_store *m = ctx;
    struct pollfd fds[QUIRE_VK_NODES_MAX + 2];

    while (!is_over(m)) {
        const uint32_t n = quire_vk_cluster_watch(m->cluster, fds + 1);
        const bool is_restless = has_idle(&m->gets) || has_idle(&m->puts);

        fds[0] = (struct pollfd){ .fd = m->wake_fd, .events = POLLIN };
        if (poll(fds, n + 1, is_restless ? 0 : patience(m, quire_vk_now_us())) < 0) {
            QUIRE_CHECK(errno == EINTR || errno == EAGAIN || errno == ENOMEM);
            continue;
        }
        round_do(m, fds, n);
    }
    return NULL;
}

/* ---- the owner's calls ---- */

static void wake_thread(const quire_valkey_store *m)
{
    const uint64_t one = 1;

    (void)!write(m->wake_fd, &one, sizeof one);
}

/* A put's text is in its record. */
static bool record_text(quire_vk_job *job)
{
    quire_page_record record;

    if (quire_page_record_fields(job->transfer->record, job->transfer->capacity, &record) !=
        QUIRE_STORE_OK) {
        return false;
    }
    job->text = record.text;
    job->n_bytes = record.record_bytes;
    return true;
}

static void take(quire_valkey_store *m, quire_transfer *t, bool is_put)
{
    quire_vk_job *job = calloc(1, sizeof *job);

    QUIRE_CHECK(job != NULL); /* a transfer has no other way back */
    t->is_put = is_put;
    job->transfer = t;
    job->text = t->text;
    (void)pthread_mutex_lock(&m->lock);
    job->stamp = m->drops_total;
    m->stats.gets_now += !is_put;
    m->stats.puts_now += is_put;
    if (is_put && !record_text(job)) {
        t->result = QUIRE_STORE_FORMAT;
        put_count(&m->stats, job, QUIRE_STORE_FORMAT);
        quire_vk_jobs_push(&m->done, job);
    } else {
        quire_vk_jobs_push(&m->inbox, job);
    }
    (void)pthread_mutex_unlock(&m->lock);
}

static void valkey_get(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        take(quire_vk_self(store), transfers[i], false);
    }
    wake_thread(quire_vk_self(store));
}

static void valkey_put(quire_store *store, quire_transfer *const *transfers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        take(quire_vk_self(store), transfers[i], true);
    }
    wake_thread(quire_vk_self(store));
}

static uint32_t valkey_poll(quire_store *store, quire_transfer **out, uint32_t n)
{
    quire_valkey_store *m = quire_vk_self(store);
    quire_vk_job *job;
    uint32_t i = 0;

    (void)pthread_mutex_lock(&m->lock);
    while (i < n && (job = quire_vk_jobs_pop(&m->done)) != NULL) {
        out[i++] = job->transfer;
        free(job);
    }
    (void)pthread_mutex_unlock(&m->lock);
    return i;
}

static void valkey_stats(const quire_store *store, quire_store_stats *out)
{
    quire_valkey_store *m = quire_vk_self(store);

    (void)pthread_mutex_lock(&m->lock);
    *out = m->stats;
    (void)pthread_mutex_unlock(&m->lock);
}

/* ---- the end ---- */

static void jobs_end(quire_valkey_store *m, quire_vk_jobs *jobs)
{
    quire_vk_job *job;

    while ((job = quire_vk_jobs_pop(jobs)) != NULL) {
        quire_vk_job_end(m, job, QUIRE_STORE_CLOSED);
    }
}

void quire_vk_drops_free(quire_vk_drop *drop)
{
    while (drop != NULL) {
        quire_vk_drop *next = drop->next;

        free(drop);
        drop = next;
    }
}

static void secret_free(char *text)
{
    if (text != NULL) {
        explicit_bzero(text, strlen(text));
        free(text);
    }
}

static void store_free(quire_valkey_store *m)
{
    quire_vk_drops_free(m->drops);
    quire_vk_drops_free(m->new_drops);
    quire_vk_drops_free(m->heard);
    free(m->heard_now);
    quire_vk_epochs_fini(&m->epochs);
    quire_seen_forget(&m->seen);
    quire_lineage_fini(&m->lineage);
    quire_vk_tls_free(m->tls);
    if (m->wake_fd >= 0) {
        (void)close(m->wake_fd);
    }
    (void)pthread_cond_destroy(&m->is_tried);
    (void)pthread_mutex_destroy(&m->lock);
    explicit_bzero(&m->key, sizeof m->key);
    secret_free(m->password);
    free(m->user);
    free(m->cluster);
    free(m->ancestors);
    free(m);
}

static void store_end(quire_valkey_store *m)
{
    if (m->has_thread) {
        (void)pthread_mutex_lock(&m->lock);
        m->is_closing = true;
        (void)pthread_mutex_unlock(&m->lock);
        wake_thread(m);
        (void)pthread_join(m->thread, NULL);
    }
    if (m->cluster != NULL) {
        quire_vk_cluster_fini(m->cluster);
    }
    if (m->drops != NULL && m->opts.log != NULL) {
        m->opts.log(m->opts.log_ctx, "no server took the last invalidation: other machines may "
                                     "still find what was dropped");
    }
    jobs_end(m, &m->gets);
    jobs_end(m, &m->waiting);
    jobs_end(m, &m->puts);
    jobs_end(m, &m->inbox);
}

static void valkey_close(quire_store *store, void (*give_back)(void *ctx, quire_transfer *transfer),
                         void *ctx)
{
    quire_valkey_store *m = quire_vk_self(store);
    quire_vk_job *job;

    store_end(m);
    while ((job = quire_vk_jobs_pop(&m->done)) != NULL) {
        give_back(ctx, job->transfer);
        free(job);
    }
    store_free(m);
}

void quire_vk_store_free(quire_valkey_store *m)
{
    store_end(m);
    store_free(m);
}

int quire_vk_store_start(quire_valkey_store *m)
{
    static const quire_store_ops ops = {
        .get = valkey_get,
        .put = valkey_put,
        .drop = quire_vk_drop_call,
        .heard = quire_vk_news_next,
        .poll = valkey_poll,
        .stats = valkey_stats,
        .has = quire_vk_has,
        .close = valkey_close,
    };
    sigset_t all;
    sigset_t before;

    m->store = (quire_store){ .ops = &ops, .name = "valkey" };
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    m->has_thread = pthread_create(&m->thread, NULL, run, m) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return m->has_thread ? QUIRE_OK : QUIRE_NOMEM;
}
