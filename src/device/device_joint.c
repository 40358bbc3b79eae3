/* device_joint.c - attention of a device and of the CPU on pages in both memories (quire/device.h).
 *
 *   plan    tables of sequences with pages in the host's memory -> two batches
 *   run     thread 0: queue the device's part
 *           all threads: shares of the host's part
 *           thread 0: wait for the device's result
 *           the thread that ends last: join the results
 *
 * A divided table lacks the entries of the other part, as if their tokens had been dropped. Other
 * tables stay as they are.
 *
 * SPDX-License-Identifier: MIT */
#include "attn/attn_internal.h"
#include "base/check.h"
#include "device/device_internal.h"
#include "device/device_rows.h"

#include <stdatomic.h>
#include <string.h>

typedef enum joint_part {
    PART_DEVICE,
    PART_HOST,
    N_PARTS
} joint_part;

/* Memory that grows. */
typedef struct room {
    void *at;
    size_t bytes;
} room;

struct quire_device_joint {
    quire_device *device;
    quire_attn_device own; /* the device alone */
    quire_allocator allocator;
    quire_attn_workspace *workspace; /* of the host's part */
    bool is_divided;                 /* the step at hand has pages in both memories */
    quire_attn_batch batches[N_PARTS];
    quire_attn_seq *seqs[N_PARTS]; /* [n_seqs_max] */
    uint32_t *n_host;              /* [n_seqs_max] entries in the host's memory */
    room leaves;                   /* of divided tables: pointers, */
    room entries;                  /* and the entries that they point to */
    uint32_t n_leaves;             /* that were taken */
    room out;                      /* the host's part: [n_rows][n_head_max][head_dim_max] */
    room sums[N_PARTS];            /* [n_rows][n_head_max][2] */
    atomic_uint n_ended;           /* threads that have ended their share of a call */
};

static int room_reserve(const quire_device_joint *j, room *r, size_t bytes)
{
    if (bytes > r->bytes) {
        j->allocator.free(j->allocator.ctx, r->at);
        r->bytes = 0;
        r->at = j->allocator.alloc(j->allocator.ctx, bytes + bytes / 2);
        QUIRE_FAIL_IF(r->at == NULL, QUIRE_NOMEM);
        r->bytes = bytes + bytes / 2;
    }
    return QUIRE_OK;
}

/* ---- tables ---- */

static uint32_t n_leaves_of(uint32_t n_entries)
{
    return quire_attn_ceil_div(n_entries, QUIRE_LEAF_ENTRIES);
}

/* Whether the pages of entry i lie in the host's memory. Errors: QUIRE_UNSUPP (some of them). */
static int entry_is_host(const quire_device_joint *j, const quire_attn_batch *batch,
                         const quire_attn_seq *seq, uint32_t i, bool *is_host)
{
    bool is_own = false;

    *is_host = false;
    for (uint32_t g = 0; g < j->workspace->limits.n_groups; g++) {
        const quire_page_addr *page = quire_attn_page(batch, seq, g, i);

        if (page != NULL) {
            *is_host = *is_host || page->memory == QUIRE_MEMORY_HOST;
            is_own = is_own || page->memory != QUIRE_MEMORY_HOST;
        }
    }
    return *is_host && is_own ? QUIRE_UNSUPP : QUIRE_OK;
}

static int seq_count(const quire_device_joint *j, const quire_attn_batch *batch, uint32_t s)
{
    const quire_attn_seq *seq = &batch->seqs[s];
    const uint32_t n = seq->tables[0].n_entries;

    j->n_host[s] = 0;
    for (uint32_t g = 0; g < j->workspace->limits.n_groups; g++) {
        QUIRE_FAIL_IF(seq->tables[g].n_entries != n || seq->tables[g].leaves == NULL, QUIRE_INVAL);
    }
    for (uint32_t i = 0; i < n; i++) {
        bool is_host;

        QUIRE_TRY(entry_is_host(j, batch, seq, i, &is_host));
        j->n_host[s] += is_host;
    }
    return QUIRE_OK;
}

/* Count the entries in the host's memory, and the leaves of tables that are to be divided. */
static int seqs_count(const quire_device_joint *j, const quire_attn_batch *batch, size_t *n_leaves)
{
    *n_leaves = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        QUIRE_TRY(seq_count(j, batch, s));
        if (j->n_host[s] > 0) {
            const uint32_t n_own = batch->seqs[s].tables[0].n_entries - j->n_host[s];

            *n_leaves += (size_t)j->workspace->limits.n_groups *
                         (n_leaves_of(j->n_host[s]) + n_leaves_of(n_own));
        }
    }
    return QUIRE_OK;
}

static quire_attn_table table_take(quire_device_joint *j, uint32_t n_entries)
{
    const quire_page_entry **leaves = (const quire_page_entry **)j->leaves.at + j->n_leaves;
    const quire_page_entry *entries = j->entries.at;

    for (uint32_t i = 0; i < n_leaves_of(n_entries); i++) {
        leaves[i] = entries + (size_t)j->n_leaves++ * QUIRE_LEAF_ENTRIES;
    }
    return (quire_attn_table){ .leaves = leaves, .n_entries = n_entries };
}

/* The entries of a part side by side: its leaves lie so. */
static void table_fill(const quire_device_joint *j, const quire_attn_batch *batch,
                       const quire_attn_seq *seq, uint32_t g, quire_attn_table parts[N_PARTS])
{
    quire_page_entry *to[N_PARTS];

    for (uint32_t part = 0; part < N_PARTS; part++) {
        to[part] =
            parts[part].n_entries > 0 ? (quire_page_entry *)(uintptr_t)parts[part].leaves[0] : NULL;
    }
    for (uint32_t i = 0; i < seq->tables[g].n_entries; i++) {
        bool is_host;

        (void)entry_is_host(j, batch, seq, i, &is_host); /* seq_count() has had no error */
        *to[is_host ? PART_HOST : PART_DEVICE]++ = *quire_attn_entry(&seq->tables[g], i);
    }
}

static void seq_divide(quire_device_joint *j, const quire_attn_batch *batch, uint32_t s)
{
    const quire_attn_seq *seq = &batch->seqs[s];
    quire_attn_seq *own = &j->seqs[PART_DEVICE][j->batches[PART_DEVICE].n_seqs++];
    quire_attn_seq *host;

    *own = *seq;
    if (j->n_host[s] == 0) {
        return;
    }
    host = &j->seqs[PART_HOST][j->batches[PART_HOST].n_seqs++];
    *host = *seq;
    for (uint32_t g = 0; g < j->workspace->limits.n_groups; g++) {
        quire_attn_table parts[N_PARTS];

        parts[PART_HOST] = table_take(j, j->n_host[s]);
        parts[PART_DEVICE] = table_take(j, seq->tables[g].n_entries - j->n_host[s]);
        table_fill(j, batch, seq, g, parts);
        host->tables[g] = parts[PART_HOST];
        own->tables[g] = parts[PART_DEVICE];
    }
}

static void batch_divide(quire_device_joint *j, const quire_attn_batch *batch)
{
    j->n_leaves = 0;
    for (uint32_t part = 0; part < N_PARTS; part++) {
        j->batches[part] = *batch;
        j->batches[part].seqs = j->seqs[part];
        j->batches[part].n_seqs = 0;
        j->batches[part].is_part = part == PART_HOST;
    }
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        seq_divide(j, batch, s);
    }
}

static int rooms_reserve(quire_device_joint *j, const quire_attn_batch *batch, size_t n_leaves)
{
    const quire_attn_workspace_opts *limits = &j->workspace->limits;
    const size_t n_heads = (size_t)quire_device_n_rows(batch) * limits->n_head_max;

    QUIRE_TRY(room_reserve(j, &j->leaves, n_leaves * sizeof(quire_page_entry *)));
    QUIRE_TRY(
        room_reserve(j, &j->entries, n_leaves * QUIRE_LEAF_ENTRIES * sizeof(quire_page_entry)));
    QUIRE_TRY(room_reserve(j, &j->out, n_heads * limits->head_dim_max * sizeof(float)));
    for (uint32_t part = 0; part < N_PARTS; part++) {
        QUIRE_TRY(room_reserve(j, &j->sums[part], n_heads * 2 * sizeof(float)));
    }
    return QUIRE_OK;
}

/* ---- a step ---- */

static int joint_check(void *ctx, const quire_attn_layer *layer)
{
    const quire_device_joint *j = ctx;

    QUIRE_TRY(j->own.check(j->own.ctx, layer));
    return quire_attn_layer_check(j->workspace, layer);
}

static int joint_plan(void *ctx, const quire_attn_batch *batch)
{
    quire_device_joint *j = ctx;
    size_t n_leaves;

    j->is_divided = false;
    atomic_store_explicit(&j->n_ended, 0, memory_order_relaxed);
    QUIRE_FAIL_IF(batch->n_seqs > j->workspace->limits.n_seqs_max, QUIRE_LIMIT);
    QUIRE_TRY(seqs_count(j, batch, &n_leaves));
    if (n_leaves == 0) {
        return j->own.plan(j->own.ctx, batch);
    }
    QUIRE_TRY(rooms_reserve(j, batch, n_leaves));
    batch_divide(j, batch);
    QUIRE_TRY(quire_attn_begin(j->workspace, &j->batches[PART_HOST]));
    QUIRE_TRY(j->own.plan(j->own.ctx, &j->batches[PART_DEVICE]));
    j->is_divided = true;
    return QUIRE_OK;
}

static void joint_append(void *ctx, const quire_attn_layer *layer, uint32_t thread,
                         uint32_t n_threads)
{
    const quire_device_joint *j = ctx;

    j->own.append(j->own.ctx, layer, thread, n_threads);
}

/* The layer with the sums of the device's part, which has the sinks. */
static quire_attn_layer device_layer(const quire_device_joint *j, const quire_attn_layer *layer)
{
    quire_attn_layer own = *layer;

    if (own.sums == NULL) {
        own.sums = j->sums[PART_DEVICE].at;
    }
    return own;
}

static quire_attn_layer host_layer(const quire_device_joint *j, const quire_attn_layer *layer)
{
    quire_attn_layer host = *layer;

    host.sinks = NULL;
    host.out = j->out.at;
    host.out_stride = (size_t)layer->n_head * layer->d_v;
    host.sums = j->sums[PART_HOST].at;
    return host;
}

static void run_divided(quire_device_joint *j, const quire_attn_layer *layer, uint32_t call,
                        uint32_t thread, uint32_t n_threads)
{
    const quire_attn_layer own = device_layer(j, layer);
    const quire_attn_layer host = host_layer(j, layer);
    quire_attn_layer there = own;

    if (thread == 0) {
        quire_device_step_queue(j->device, &own, call, &there);
    }
    quire_attn_run(j->workspace, &host, call, thread, n_threads);
    if (thread == 0) {
        quire_device_step_finish(j->device, &own, &there);
    }
    if (atomic_fetch_add_explicit(&j->n_ended, 1, memory_order_acq_rel) + 1 == n_threads) {
        atomic_store_explicit(&j->n_ended, 0, memory_order_relaxed);
        if (j->device->step_status == QUIRE_OK) { /* else the device has left no result */
            quire_attn_merge(&j->batches[PART_HOST], &own, &host);
        }
    }
}

static void joint_run(void *ctx, const quire_attn_layer *layer, uint32_t call, uint32_t thread,
                      uint32_t n_threads)
{
    quire_device_joint *j = ctx;

    if (j->is_divided) {
        run_divided(j, layer, call, thread, n_threads);
    } else {
        j->own.run(j->own.ctx, layer, call, thread, n_threads);
    }
}

static int joint_sync(void *ctx)
{
    const quire_device_joint *j = ctx;

    return j->own.sync(j->own.ctx);
}

quire_attn_device quire_device_joint_attention(quire_device_joint *j)
{
    return (quire_attn_device){ .name = j->own.name,
                                .memory = j->own.memory,
                                .ctx = j,
                                .check = joint_check,
                                .plan = joint_plan,
                                .append = joint_append,
                                .run = joint_run,
                                .sync = joint_sync };
}

/* ---- opening ---- */

static int arrays_take(quire_device_joint *j)
{
    const size_t n = j->workspace->limits.n_seqs_max;

    j->n_host = j->allocator.alloc(j->allocator.ctx, n * sizeof(*j->n_host));
    QUIRE_FAIL_IF(j->n_host == NULL, QUIRE_NOMEM);
    for (uint32_t part = 0; part < N_PARTS; part++) {
        j->seqs[part] = j->allocator.alloc(j->allocator.ctx, n * sizeof(*j->seqs[part]));
        QUIRE_FAIL_IF(j->seqs[part] == NULL, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

static int joint_init(quire_device_joint *j, const quire_attn_workspace_opts *opts)
{
    quire_attn_workspace_opts host = *opts;

    host.memory = QUIRE_MEMORY_HOST;
    QUIRE_TRY(quire_attn_workspace_create(&j->workspace, &host));
    return arrays_take(j);
}

static bool are_alike(const quire_attn_workspace_opts *opts)
{
    for (uint32_t g = 0; g < opts->n_groups && g < QUIRE_GROUPS_MAX; g++) {
        if (opts->groups[g].like != 0) {
            return false;
        }
    }
    return true;
}

int quire_device_joint_open(quire_device_joint **out, quire_device *device,
                            const quire_attn_workspace_opts *opts, quire_error *err)
{
    const quire_allocator *allocator =
        opts->allocator != NULL ? opts->allocator : quire_allocator_default();
    const quire_attn_device own = quire_device_attention(device);
    quire_device_joint *j;
    int rc;

    *out = NULL;
    if (device->ops->is_in_place) {
        return quire_error_set(err, QUIRE_UNSUPP, "device %s: its memory is the host's", own.name);
    }
    if (!are_alike(opts)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "device %s: pages in the host's memory need groups that are alike",
                               own.name);
    }
    j = allocator->alloc(allocator->ctx, sizeof(*j));
    if (j == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "device %s: no memory", own.name);
    }
    memset(j, 0, sizeof(*j));
    j->device = device;
    j->own = own;
    j->allocator = *allocator;
    atomic_init(&j->n_ended, 0);
    rc = joint_init(j, opts);
    if (rc < 0) {
        quire_device_joint_close(j);
        return quire_error_set(err, rc, "device %s: attention on the host cannot be set up: %s",
                               own.name, quire_status_text(rc));
    }
    *out = j;
    return QUIRE_OK;
}

void quire_device_joint_close(quire_device_joint *j)
{
    if (j == NULL) {
        return;
    }
    for (uint32_t part = 0; part < N_PARTS; part++) {
        j->allocator.free(j->allocator.ctx, j->sums[part].at);
        j->allocator.free(j->allocator.ctx, j->seqs[part]);
    }
    j->allocator.free(j->allocator.ctx, j->out.at);
    j->allocator.free(j->allocator.ctx, j->entries.at);
    j->allocator.free(j->allocator.ctx, j->leaves.at);
    j->allocator.free(j->allocator.ctx, j->n_host);
    quire_attn_workspace_destroy(j->workspace);
    j->allocator.free(j->allocator.ctx, j);
}
