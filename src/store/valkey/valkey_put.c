/* valkey_put.c - writing records to the shared store. See valkey_store.h.
 *
 *   CHECK    epochs are read, and whether the record is there already and holds
 *   CREATE   missing epochs are made, then CHECK again, once
 *   WRITE    chunks, then the head, each with its time to live
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_internal.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEPT_SHARE 8u /* an epoch's time to live is set again after this part of a record's */

typedef struct seconds {
    char text[24];
    size_t n;
} seconds;

static seconds seconds_of(uint64_t n)
{
    seconds s;

    s.n = (size_t)snprintf(s.text, sizeof s.text, "%" PRIu64, n);
    return s;
}

/* ---- quota ---- */

/* The tenant's scope, at the present window. */
static quire_vk_scope *tenant_now(const quire_valkey_store *m, const quire_vk_job *job)
{
    quire_vk_scope *s = job->scopes[QUIRE_EPOCH_TENANT];
    const uint64_t window = (uint64_t)time(NULL) / m->opts.ttl_s;

    if (s->window != window) {
        s->before_bytes = s->window + 1 == window ? s->window_bytes : 0;
        s->window_bytes = 0;
        s->window = window;
    }
    return s;
}

/* Whether the quota leaves room for the record, beside the bytes that the tenant wrote in the last
 * ttl_s, as far as this process has heard. */
static bool has_quota(const quire_valkey_store *m, const quire_vk_job *job)
{
    const quire_vk_scope *s;
    double rest;

    if (m->opts.quota_bytes == 0) {
        return true;
    }
    s = tenant_now(m, job);
    rest = 1.0 - (double)((uint64_t)time(NULL) % m->opts.ttl_s) / (double)m->opts.ttl_s;
    return (double)s->window_bytes + (double)s->before_bytes * rest + (double)job->n_bytes <=
           (double)m->opts.quota_bytes;
}

static void quota_came(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    if (reply != NULL && reply->type == QUIRE_RESP_INTEGER && reply->integer > 0) {
        job->scopes[QUIRE_EPOCH_TENANT]->window_bytes = (uint64_t)reply->integer;
    }
}

static void before_came(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    if (reply != NULL && reply->type == QUIRE_RESP_STRING) {
        job->scopes[QUIRE_EPOCH_TENANT]->before_bytes = strtoull(reply->str, NULL, 10);
    }
}

/* Count the record: before it is written, so that machines together exceed the quota at most by the
 * records that they write at once. */
static void quota_count(quire_valkey_store *m, quire_vk_job *job)
{
    const seconds bytes = seconds_of(job->n_bytes);
    const seconds ttl = seconds_of(2 * m->opts.ttl_s);
    quire_vk_scope *s;
    quire_valkey_name name;

    if (m->opts.quota_bytes == 0) {
        return;
    }
    s = tenant_now(m, job);
    quire_valkey_name_quota(&name, m->key.fleet, &s->key, s->window);
    quire_vk_job_send(
        m, job,
        (quire_vk_arg[]){ QUIRE_VK_WORD("INCRBY"), { name.text, name.n }, { bytes.text, bytes.n } },
        3, quota_came);
    if (s->window_bytes == 0) {
        quire_vk_job_send(
            m, job,
            (quire_vk_arg[]){ QUIRE_VK_WORD("EXPIRE"), { name.text, name.n }, { ttl.text, ttl.n } },
            3, quire_vk_job_replied);
        quire_valkey_name_quota(&name, m->key.fleet, &s->key, s->window - 1);
        quire_vk_job_send(m, job, (quire_vk_arg[]){ QUIRE_VK_WORD("GET"), { name.text, name.n } },
                          2, before_came);
    }
}

/* ---- checking ---- */

static void head_came(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    job->is_cut = job->is_cut || reply == NULL;
    if (reply == NULL || reply->type != QUIRE_RESP_STRING) {
        return;
    }
    job->head = malloc((size_t)reply->len + 1);
    if (job->head != NULL) {
        memcpy(job->head, reply->str, (size_t)reply->len);
        job->n_head = (size_t)reply->len;
        job->has_head = quire_seal_read(job->head, job->n_head, &job->fields);
    }
}

static void chunks_came(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    job->is_cut = job->is_cut || reply == NULL;
    if (reply != NULL && reply->type == QUIRE_RESP_INTEGER && reply->integer > 0) {
        job->n_chunks = (uint32_t)reply->integer;
    }
}

static uint32_t chunks_of(const quire_vk_job *job)
{
    return (job->n_bytes - 1) / QUIRE_VALKEY_CHUNK_BYTES + 1;
}

static void check_begin(quire_valkey_store *m, quire_vk_job *job)
{
    const uint32_t n_chunks = chunks_of(job);
    quire_valkey_name names[QUIRE_VALKEY_CHUNKS_MAX];
    quire_vk_arg args[QUIRE_VALKEY_CHUNKS_MAX + 1] = { QUIRE_VK_WORD("EXISTS") };

    job->phase = QUIRE_VK_CHECK;
    if (job->transfer->is_replacing) {
        return;
    }
    for (uint32_t i = 0; i < n_chunks; i++) {
        quire_valkey_name_chunk(&names[i], m->key.fleet, &job->text.root, &job->text.key, i);
        args[i + 1] = (quire_vk_arg){ names[i].text, names[i].n };
    }
    quire_vk_job_send(m, job, args, n_chunks + 1, chunks_came);
    quire_valkey_name_head(&names[0], m->key.fleet, &job->text.root, &job->text.key);
    quire_vk_job_send(m, job,
                      (quire_vk_arg[]){ QUIRE_VK_WORD("GET"), { names[0].text, names[0].n } }, 2,
                      head_came);
}

/* The record is there and holds: nothing is written. */
static bool is_known(const quire_vk_job *job)
{
    return !job->transfer->is_replacing && job->has_head && job->n_chunks == job->fields.n_chunks &&
           job->fields.record_bytes == job->n_bytes && quire_vk_job_is_current(job, &job->fields);
}

/* ---- epochs ---- */

static bool has_epochs(const quire_vk_job *job)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        if (!job->scopes[i]->is_known) {
            return false;
        }
    }
    return true;
}

/* Two machines that make an epoch at once: the first one wins, and the read that follows tells the
 * other. */
static void epochs_create(quire_valkey_store *m, quire_vk_job *job)
{
    const seconds ttl = seconds_of(2 * m->opts.ttl_s);

    job->phase = QUIRE_VK_CREATE;
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        quire_vk_scope *s = job->scopes[i];
        unsigned char value[QUIRE_EPOCH_ENTRY_BYTES];

        if (!s->is_known) {
            const size_t n = quire_vk_scope_value(s, value);
            const quire_vk_arg args[] = { QUIRE_VK_WORD("SET"), { s->name.text, s->name.n },
                                          { value, n },         QUIRE_VK_WORD("EX"),
                                          { ttl.text, ttl.n },  QUIRE_VK_WORD("NX") };

            quire_vk_job_send(m, job, args, s->is_garbage ? 5 : 6, quire_vk_job_replied);
            s->kept_us = quire_vk_now_us();
        }
    }
}

/* Epochs outlive the records that name them. */
static void epochs_keep(quire_valkey_store *m, quire_vk_job *job)
{
    const seconds ttl = seconds_of(2 * m->opts.ttl_s);
    const uint64_t now_us = quire_vk_now_us();

    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        quire_vk_scope *s = job->scopes[i];

        if (now_us - s->kept_us > m->opts.ttl_s * 1000000u / KEPT_SHARE) {
            s->kept_us = now_us;
            quire_vk_job_send(m, job,
                              (quire_vk_arg[]){ QUIRE_VK_WORD("EXPIRE"),
                                                { s->name.text, s->name.n },
                                                { ttl.text, ttl.n } },
                              3, quire_vk_job_replied);
        }
    }
}

/* ---- writing ---- */

/* Make the head; seal record and head. */
static bool seal(quire_valkey_store *m, quire_vk_job *job)
{
    const uint64_t parent = quire_lineage_id(&m->lineage, &job->text.parent);
    const uint64_t root = quire_lineage_id(&m->lineage, &job->text.root);
    const quire_seal_place place = { &job->text.root, &job->text.key, job->transfer->record };
    quire_seal_head head = { .n_chunks = chunks_of(job), .record_bytes = job->n_bytes };

    head.n_drops = job->scopes[QUIRE_EPOCH_ROOT]->n_drops;
    for (uint32_t i = 0; i < QUIRE_EPOCH_COUNT; i++) {
        memcpy(head.epochs[i], job->scopes[i]->epoch, QUIRE_SEAL_EPOCH_BYTES);
    }
    head.ancestors = m->ancestors;
    head.n_ancestors = quire_lineage_list(&m->lineage, parent, root, m->ancestors,
                                          QUIRE_SEAL_ANCESTORS_MAX, &head.is_whole);
    free(job->head);
    job->n_head = quire_seal_bytes(&head);
    job->head = malloc(job->n_head);
    if (job->head == NULL) {
        return false;
    }
    quire_page_record_seal(job->transfer->record, ++m->sequence);
    quire_seal_write(&m->key, &head, &place, job->head);
    return true;
}

static void stored(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    job->is_cut = job->is_cut || reply == NULL;
    if (reply != NULL && !quire_resp_is_status(reply, "OK") && job->problem == QUIRE_STORE_OK) {
        job->problem = QUIRE_STORE_IO;
        (void)snprintf(job->words, sizeof job->words, "%s",
                       reply->type == QUIRE_RESP_ERROR ? reply->str : "no OK");
    }
}

static void set(quire_valkey_store *m, quire_vk_job *job, const quire_valkey_name *name,
                const void *value, size_t n)
{
    const seconds ttl = seconds_of(m->opts.ttl_s);
    const quire_vk_arg args[] = { QUIRE_VK_WORD("SET"),
                                  { name->text, name->n },
                                  { value, n },
                                  QUIRE_VK_WORD("EX"),
                                  { ttl.text, ttl.n } };

    quire_vk_job_send(m, job, args, 5, stored);
}

/* The head comes last: a reader that finds the head finds the chunks. */
static void write_begin(quire_valkey_store *m, quire_vk_job *job)
{
    quire_valkey_name name;

    job->phase = QUIRE_VK_WRITE;
    if (!seal(m, job)) {
        job->problem = QUIRE_STORE_IO;
        return;
    }
    quota_count(m, job);
    epochs_keep(m, job);
    for (uint32_t i = 0; i < chunks_of(job); i++) {
        const size_t at = (size_t)i * QUIRE_VALKEY_CHUNK_BYTES;
        const size_t rest = job->n_bytes - at;

        quire_valkey_name_chunk(&name, m->key.fleet, &job->text.root, &job->text.key, i);
        set(m, job, &name, job->transfer->record + at,
            rest < QUIRE_VALKEY_CHUNK_BYTES ? rest : QUIRE_VALKEY_CHUNK_BYTES);
    }
    quire_valkey_name_head(&name, m->key.fleet, &job->text.root, &job->text.key);
    set(m, job, &name, job->head, job->n_head);
}

/* ---- the way of a put ---- */

static void put_begin(quire_valkey_store *m, quire_vk_job *job)
{
    job->id = quire_lineage_id(&m->lineage, &job->text.key);
    quire_lineage_add(&m->lineage, job->id, quire_lineage_id(&m->lineage, &job->text.parent));
    if (!quire_vk_job_scopes(m, job)) {
        job->problem = QUIRE_STORE_IO;
    } else if (!has_quota(m, job)) {
        job->problem = QUIRE_STORE_FULL;
    } else {
        check_begin(m, job);
    }
}

/* Whether the servers take writes: one put finds out when a pause is over. */
static bool may_write(quire_valkey_store *m, uint64_t now_us)
{
    return quire_vk_cluster_is_up(m->cluster) &&
           (quire_breaker_is_closed(&m->writes) ||
            (m->puts.n == 0 && quire_breaker_probe(&m->writes, now_us)));
}

void quire_vk_puts_begin(quire_valkey_store *m, uint64_t now_us)
{
    while (m->waiting.n > 0) {
        quire_vk_job *job;

        if (m->writes.state == QUIRE_BREAKER_HALF_OPEN && m->puts.n > 0) {
            return; /* wait for the one that finds out */
        }
        if (m->puts.n > 0 && m->puts.bytes + m->waiting.first->n_bytes > QUIRE_VK_WRITES_BYTES) {
            break;
        }
        if (!m->waiting.first->is_dropped && quire_vk_drop_is_pending(m, m->waiting.first) &&
            quire_vk_cluster_is_up(m->cluster)) {
            break; /* it comes after the drop */
        }
        job = quire_vk_jobs_pop(&m->waiting);
        if (job->is_dropped || !may_write(m, now_us)) {
            quire_vk_job_end(m, job, job->is_dropped ? QUIRE_STORE_ABSENT : QUIRE_STORE_CLOSED);
            continue;
        }
        quire_vk_jobs_push(&m->puts, job);
        put_begin(m, job);
    }
    while (m->waiting.bytes > m->opts.queue_bytes && m->waiting.n > 1) {
        quire_vk_job_end(m, quire_vk_jobs_pop(&m->waiting), QUIRE_STORE_FULL);
    }
}

/* Conclude from the end of a write how the servers do. */
static void write_ended(quire_valkey_store *m, const quire_vk_job *job)
{
    const uint64_t now_us = quire_vk_now_us();

    if (job->problem == QUIRE_STORE_IO && job->words[0] != '\0') {
        (void)snprintf(m->writes_trouble, sizeof m->writes_trouble, "writing: %s", job->words);
        quire_breaker_failed(&m->writes, now_us);
    } else if (!job->is_cut) {
        (void)quire_breaker_good(&m->writes, now_us, 0);
    }
}

/* The result of a put for which nothing is outstanding, or OK: it goes on. */
static quire_store_result obstacle(quire_valkey_store *m, const quire_vk_job *job)
{
    if (job->problem != QUIRE_STORE_OK) {
        return job->problem;
    }
    if (job->is_cut || !quire_vk_job_has_scopes(job)) {
        return QUIRE_STORE_CLOSED;
    }
    return job->is_dropped || quire_vk_drop_is_pending(m, job) ? QUIRE_STORE_ABSENT
                                                               : QUIRE_STORE_OK;
}

bool quire_vk_put_move(quire_valkey_store *m, quire_vk_job *job, quire_store_result *result)
{
    if (!quire_vk_job_is_idle(job)) {
        return false;
    }
    *result = obstacle(m, job);
    if (job->phase == QUIRE_VK_WRITE) {
        write_ended(m, job);
    }
    if (*result != QUIRE_STORE_OK || job->phase == QUIRE_VK_WRITE) {
        return true;
    }
    if (job->phase == QUIRE_VK_CREATE) {
        job->phase = QUIRE_VK_CHECK;
        quire_vk_job_scopes_read(m, job);
    } else if (!has_epochs(job)) {
        *result = QUIRE_STORE_IO;
        if (job->n_tries++ > 0) {
            return true;
        }
        epochs_create(m, job);
    } else if (is_known(job)) {
        job->is_known = true;
        return true;
    } else {
        write_begin(m, job);
    }
    return false;
}
