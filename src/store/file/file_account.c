/* file_account.c - how much there is, and whose it is: quotas and shares; see file_store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/file/file_internal.h"

#include <stdlib.h>
#include <string.h>

#define TRIM_STEP 256u /* records that are looked at under one hold of the lock */

int quire_file_accounts_init(file_store *st, quire_error *err)
{
    const quire_file_store_opts *o = &st->opts;
    const uint32_t n = o->n_accounts;

    for (uint32_t i = 0; i < n && n <= QUIRE_FILE_ACCOUNTS_MAX; i++) {
        if (o->accounts[i].weight == 0) {
            return quire_error_set(err, QUIRE_INVAL, "account %u of the store: a weight of 0",
                                   i + 1);
        }
    }
    if (n > QUIRE_FILE_ACCOUNTS_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%u accounts of the store: at most %u are possible", n,
                               QUIRE_FILE_ACCOUNTS_MAX);
    }
    st->accounts = calloc((size_t)n + 1, sizeof *st->accounts);
    st->account_bytes = calloc((size_t)n + 1, sizeof *st->account_bytes);
    if (st->accounts == NULL || st->account_bytes == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "cannot open %s: out of memory", st->dir);
    }
    st->n_accounts = n + 1;
    st->accounts[0].weight = 1;
    if (n > 0) {
        memcpy(st->accounts + 1, o->accounts, n * sizeof *st->accounts);
    }
    st->opts.accounts = NULL; /* the caller's */
    return QUIRE_OK;
}

void quire_file_accounts_fini(file_store *st)
{
    free(st->accounts);
    free(st->account_bytes);
}

/* ---- counts ---- */

uint16_t quire_file_account_of(file_store *st, const quire_index_entry *entry)
{
    quire_index_root *root = quire_index_root_get(st->index, entry->root);

    if (!root->has_account && st->opts.account_of != NULL) {
        root->account = st->opts.account_of(st->opts.account_ctx, root->salt, root->salt_bytes);
        QUIRE_CHECK(root->account < st->n_accounts);
    }
    root->has_account = true;
    return root->account;
}

static uint64_t bytes_of(const quire_index_entry *entry)
{
    return (uint64_t)entry->blocks * QUIRE_SEGMENT_BLOCK;
}

void quire_file_count(file_store *st, const quire_index_entry *entry)
{
    st->stats.records++;
    st->stats.record_bytes += bytes_of(entry);
    st->account_bytes[quire_file_account_of(st, entry)] += bytes_of(entry);
}

void quire_file_uncount(file_store *st, const quire_index_entry *entry)
{
    st->stats.records--;
    st->stats.record_bytes -= bytes_of(entry);
    st->account_bytes[quire_file_account_of(st, entry)] -= bytes_of(entry);
}

/* ---- shares ---- */

uint64_t quire_file_weights(const file_store *st)
{
    uint64_t weights = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < st->n_accounts; i++) {
        if (st->account_bytes[i] > 0) {
            weights += st->accounts[i].weight;
            n++;
        }
    }
    return n >= 2 ? weights : 0;
}

bool quire_file_is_guarded(file_store *st, const quire_index_entry *entry, uint64_t weights)
{
    const uint16_t account = quire_file_account_of(st, entry);
    double share;

    if (weights == 0) {
        return false;
    }
    share = (double)st->opts.capacity_bytes * QUIRE_FILE_SHARED * st->accounts[account].weight /
            (double)weights;
    return (double)st->account_bytes[account] <= share;
}

/* ---- quotas ---- */

/* Look at items [i, ...) of a segment; returns the next one to look at. */
static uint32_t trim_step(file_store *st, const file_segment *segment, uint32_t i, uint16_t account,
                          uint64_t wanted_bytes)
{
    const uint32_t end = segment->n_items - i < TRIM_STEP ? segment->n_items : i + TRIM_STEP;

    (void)pthread_mutex_lock(&st->lock);
    for (; i < end && st->account_bytes[account] > wanted_bytes; i++) {
        const quire_index_entry *entry = quire_file_item_entry(st, segment, segment->items[i]);

        if (entry != NULL && quire_file_account_of(st, entry) == account) {
            quire_file_forget(st, segment->items[i].id, &st->stats.evicted_total);
        }
    }
    (void)pthread_mutex_unlock(&st->lock);
    return end;
}

void quire_file_quota_keep(file_store *st, uint16_t account)
{
    const uint64_t quota_bytes = st->accounts[account].quota_bytes;
    const uint64_t wanted_bytes = quota_bytes - quota_bytes / QUIRE_FILE_QUOTA_SLACK;
    bool is_beyond;

    (void)pthread_mutex_lock(&st->lock);
    is_beyond = quota_bytes > 0 && st->account_bytes[account] > quota_bytes;
    (void)pthread_mutex_unlock(&st->lock);
    /* The list of segments and their items change in this thread alone. */
    for (const file_segment *s = is_beyond ? st->oldest : NULL; s != NULL; s = s->next) {
        for (uint32_t i = 0; i < s->n_items;) {
            i = trim_step(st, s, i, account, wanted_bytes);
        }
    }
}
