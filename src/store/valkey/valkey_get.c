/* valkey_get.c - reading records of the shared store. See valkey_store.h.
 *
 * A get asks for three epochs, and for the head and as many chunks as records usually have, all at
 * once. A longer record takes a second command for the rest.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_internal.h"

#include <stdlib.h>
#include <string.h>

#define ARGS_MAX (QUIRE_VALKEY_CHUNKS_MAX + 2u)

/* A command about the head, unless that is there, and about the chunks [chunk_begin, end). */
static void send_keys(quire_valkey_store *m, quire_vk_job *job, const char *command, uint32_t end,
                      quire_vk_done done)
{
    quire_valkey_name names[ARGS_MAX];
    quire_vk_arg args[ARGS_MAX];
    uint32_t n = 0;

    args[n++] = (quire_vk_arg){ command, strlen(command) };
    if (!job->has_head) {
        quire_valkey_name_head(&names[n], m->key.fleet, &job->text.root, &job->text.key);
        args[n] = (quire_vk_arg){ names[n].text, names[n].n };
        n++;
    }
    for (uint32_t i = job->chunk_begin; i < end; i++, n++) {
        quire_valkey_name_chunk(&names[n], m->key.fleet, &job->text.root, &job->text.key, i);
        args[n] = (quire_vk_arg){ names[n].text, names[n].n };
    }
    quire_vk_job_send(m, job, args, n, done);
}

static bool is_string(const quire_resp *reply)
{
    return reply->type == QUIRE_RESP_STRING;
}

/* ---- replies ---- */

static void problem(quire_vk_job *job, quire_store_result result)
{
    if (job->problem == QUIRE_STORE_OK) {
        job->problem = result;
    }
}

static void head_take(quire_vk_job *job, const quire_resp *reply)
{
    const size_t n = is_string(reply) ? (size_t)reply->len : 0;

    if (!is_string(reply)) {
        problem(job, QUIRE_STORE_ABSENT);
        return;
    }
    job->head = malloc(n > 0 ? n : 1);
    if (job->head == NULL) {
        problem(job, QUIRE_STORE_IO);
        return;
    }
    memcpy(job->head, reply->str, n);
    job->n_head = n;
    job->has_head = quire_seal_read(job->head, n, &job->fields);
    if (!job->has_head || job->fields.record_bytes > job->transfer->capacity) {
        problem(job, QUIRE_STORE_FORMAT);
    }
}

/* A chunk that is not of the record's is of no use; the seal would find it, too. */
static void chunk_take(quire_vk_job *job, uint32_t i, const quire_resp *reply)
{
    const size_t at = (size_t)i * QUIRE_VALKEY_CHUNK_BYTES;
    size_t n;

    if (job->problem != QUIRE_STORE_OK || i >= job->fields.n_chunks) {
        return;
    }
    n = job->fields.record_bytes - at;
    n = n < QUIRE_VALKEY_CHUNK_BYTES ? n : QUIRE_VALKEY_CHUNK_BYTES;
    if (!is_string(reply)) {
        problem(job, QUIRE_STORE_ABSENT);
    } else if ((size_t)reply->len != n) {
        problem(job, QUIRE_STORE_CHECKSUM);
    } else {
        memcpy(job->transfer->record + at, reply->str, n);
        job->n_chunks = i + 1;
    }
}

static void values_came(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;
    size_t at = 0;

    job->n_away--;
    if (reply == NULL) {
        job->is_cut = true;
        return;
    }
    if (reply->type != QUIRE_RESP_ARRAY || reply->elements == 0) {
        problem(job, QUIRE_STORE_IO);
        return;
    }
    if (!job->has_head) {
        head_take(job, reply->element[at++]);
    }
    for (uint32_t i = job->chunk_begin; at < reply->elements; i++, at++) {
        chunk_take(job, i, reply->element[at]);
    }
    /* A server may answer fewer values than it was asked for. */
    if (job->problem == QUIRE_STORE_OK && job->n_chunks == job->chunk_begin) {
        problem(job, QUIRE_STORE_IO);
    }
}

static void query_came(void *ctx, const quire_resp *reply)
{
    quire_vk_job *job = ctx;

    job->n_away--;
    job->is_cut = reply == NULL;
    if (reply != NULL && reply->type != QUIRE_RESP_INTEGER) {
        problem(job, QUIRE_STORE_IO);
    } else if (reply != NULL && reply->integer < 2) {
        problem(job, QUIRE_STORE_ABSENT); /* the head and a chunk at least */
    }
}

/* ---- the way of a get ---- */

void quire_vk_get_begin(quire_valkey_store *m, quire_vk_job *job)
{
    quire_transfer *t = job->transfer;

    job->phase = QUIRE_VK_GET;
    job->id = quire_lineage_id(&m->lineage, &job->text.key);
    quire_lineage_add(&m->lineage, job->id, quire_lineage_id(&m->lineage, &job->text.parent));
    if (!quire_vk_cluster_is_up(m->cluster)) {
        job->is_cut = true;
        return;
    }
    if (t->is_query) {
        send_keys(m, job, "TOUCH", m->n_chunks_usual, query_came);
        return;
    }
    if (!quire_vk_job_scopes(m, job)) {
        problem(job, QUIRE_STORE_IO);
        return;
    }
    send_keys(m, job, "MGET", m->n_chunks_usual, values_came);
}

/* The seal is wrong, or the head is nothing: take it away, so that a put writes the page again. */
static void remove_head(quire_valkey_store *m, const quire_vk_job *job)
{
    quire_valkey_name name;
    quire_vk_cmd *cmd;

    quire_valkey_name_head(&name, m->key.fleet, &job->text.root, &job->text.key);
    cmd = quire_vk_cmd_new((quire_vk_arg[]){ QUIRE_VK_WORD("UNLINK"), { name.text, name.n } }, 2,
                           quire_valkey_slot(name.text, name.n), NULL, NULL);
    if (cmd != NULL) {
        quire_vk_cluster_send(m->cluster, cmd);
    }
}

static quire_store_result verify(quire_valkey_store *m, quire_vk_job *job)
{
    quire_transfer *t = job->transfer;
    const quire_seal_place place = { &job->text.root, &job->text.key, t->record };
    quire_store_result result;

    if (!quire_vk_job_is_current(job, &job->fields)) {
        return QUIRE_STORE_ABSENT;
    }
    if (!quire_seal_is_right(&m->key, job->head, &place)) {
        return QUIRE_STORE_CHECKSUM;
    }
    quire_lineage_learn(&m->lineage, &job->fields, quire_lineage_id(&m->lineage, &job->text.root));
    result = quire_page_record_open(t->record, job->fields.record_bytes, &t->found);
    return result == QUIRE_STORE_OK ? quire_page_record_check(&t->found, &t->text) : result;
}

static quire_store_result result_of(quire_valkey_store *m, quire_vk_job *job)
{
    quire_store_result result = job->problem;

    if (job->is_cut) {
        return QUIRE_STORE_CLOSED;
    }
    if (job->is_dropped) {
        return QUIRE_STORE_ABSENT;
    }
    if (job->transfer->is_query) {
        return result;
    }
    if (!quire_vk_job_has_scopes(job)) {
        return QUIRE_STORE_CLOSED;
    }
    result = result == QUIRE_STORE_OK ? verify(m, job) : result;
    if (result == QUIRE_STORE_CHECKSUM || result == QUIRE_STORE_FORMAT) {
        remove_head(m, job);
    }
    return result == QUIRE_STORE_OK && quire_vk_drop_is_pending(m, job) ? QUIRE_STORE_ABSENT
                                                                        : result;
}

bool quire_vk_get_move(quire_valkey_store *m, quire_vk_job *job, quire_store_result *result)
{
    if (!quire_vk_job_is_idle(job)) {
        return false;
    }
    if (!job->is_cut && job->problem == QUIRE_STORE_OK && job->has_head &&
        job->n_chunks < job->fields.n_chunks) {
        job->chunk_begin = job->n_chunks;
        send_keys(m, job, "MGET", job->fields.n_chunks, values_came);
        return false;
    }
    *result = result_of(m, job);
    if (*result == QUIRE_STORE_OK && job->has_head) {
        m->n_chunks_usual = job->fields.n_chunks;
    }
    return true;
}
