/* kv_disk.c - see kv_disk.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/kv_disk.h"

#include "base/check.h"
#include "base/clock.h"
#include "cli/commands/talk.h"
#include "cli/stored/stored.h"
#include "model/kv_identity.h"
#include "server/tenant.h"
#include "store/file/file_store.h"
#include "store/page_io.h"
#include "store/store_wait.h"

#include <stdlib.h>
#include <string.h>

#define TRANSFERS      16u /* pages under way at once */
#define WAIT_MS        100u
#define CAPACITY_BYTES ((uint64_t)20 << 30)
/* Room for segments beyond the lengths of their files, and for some segments to write. */
#define SPARE_BYTES ((uint64_t)256 << 20)
#define WRITE_NS    ((uint64_t)60 * 1000000000u) /* the longest time that writing may take */
#define READ_NS     ((uint64_t)5 * 1000000000u)  /* the longest time without a page */

struct quire_kv_disk {
    quire_opened *session;
    quire_store *store;
    quire_page_parts parts;
    quire_tenant_salt salt;
    quire_page_key root;
    bool is_sealed; /* open pages are not kept */
    quire_kv_groups groups;
    void *state;       /* of recurrent layers, the last one that was read or written; NULL without
                          such layers */
    uint32_t n_stated; /* tokens before it; 0 = none was read */
    quire_transfer *unused;
    uint32_t n_away;
    quire_store_wait *wait;
};

/* ---- transfers ---- */

static quire_transfer *transfer_take(quire_kv_disk *d)
{
    quire_transfer *t = d->unused;

    if (t != NULL) {
        d->unused = t->next;
        d->n_away++;
    }
    return t;
}

static void transfer_give(void *ctx, quire_transfer *t)
{
    quire_kv_disk *d = ctx;

    t->next = d->unused;
    d->unused = t;
    d->n_away--;
}

/* The next transfer that comes back; NULL when none comes in time, or after Ctrl-C. */
static quire_transfer *transfer_wait(quire_kv_disk *d, uint64_t within_ns)
{
    const uint64_t end_ns = quire_clock_ns() + within_ns;
    quire_transfer *t;

    do {
        t = quire_store_wait_next(d->wait, d->store, WAIT_MS);
    } while (t == NULL && quire_clock_ns() < end_ns && !quire_interrupt_seen());
    return t;
}

/* ---- open and close ---- */

void quire_kv_disk_names(const quire_opened *session, quire_tenant_salt *salt, quire_page_key *root)
{
    quire_prefix_key key;

    quire_tenant_salt_make(salt, "", ""); /* as quire serve without keys */
    key = (quire_prefix_key){ .salt = salt->bytes, .salt_bytes = salt->n };
    quire_kv_identity_get(session->runtime, key.identity);
    quire_prefix_key_root(&key, root);
}

bool quire_kv_disk_has_windows(const quire_kv_disk *disk)
{
    return disk->groups.window != 0;
}

uint32_t quire_kv_disk_state_end(const quire_kv_disk *disk, uint32_t n_tokens)
{
    return disk->parts.state > 0 ? n_tokens - n_tokens % disk->parts.page_tokens : 0;
}

void quire_kv_disk_stats(const quire_kv_disk *disk, quire_store_stats *out)
{
    disk->store->ops->stats(disk->store, out);
}

static int parts_open(quire_kv_disk *d)
{
    const quire_runtime_opts *o = quire_runtime_opts_get(d->session->runtime);

    QUIRE_TRY(
        quire_page_parts_get(quire_runtime_cache(d->session->runtime), o->page_tokens, &d->parts));
    d->groups = quire_kv_groups_of(d->session->desc, o);
    d->is_sealed = d->groups.hot != 0;
    if (d->parts.state > 0) {
        d->state = malloc(d->parts.bytes[d->parts.state]);
        QUIRE_FAIL_IF(d->state == NULL, QUIRE_NOMEM);
    }
    d->wait = quire_store_wait_new();
    QUIRE_FAIL_IF(d->wait == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < TRANSFERS; i++) {
        quire_transfer *t = quire_transfer_new(d->parts.record_bytes, o->page_tokens);

        QUIRE_FAIL_IF(t == NULL, QUIRE_NOMEM);
        t->next = d->unused;
        d->unused = t;
    }
    return QUIRE_OK;
}

/* The most that the directory may take: never so little that pages of others would go. */
static int capacity_get(const quire_common_args *args, uint64_t *out, quire_error *err)
{
    quire_stored directory;

    *out = args->cache_disk_bytes;
    if (*out == 0) {
        QUIRE_TRY(quire_stored_look(&directory, args->cache_dir, true, err));
        *out = directory.file_bytes + SPARE_BYTES;
        *out = *out > CAPACITY_BYTES ? *out : CAPACITY_BYTES;
    }
    return QUIRE_OK;
}

static int store_open(quire_kv_disk *d, const quire_common_args *args, quire_error *err)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;

    opts.dir = args->cache_dir;
    QUIRE_TRY(capacity_get(args, &opts.capacity_bytes, err));
    opts.record_bytes = d->parts.record_bytes;
    opts.write_rate = 0; /* one text: it is written once */
    opts.log = quire_stored_say_trouble;
    QUIRE_TRY(quire_file_store_create(&d->store, &opts, err));
    quire_store_waker_set(d->store, quire_store_wait_waker(d->wait));
    return QUIRE_OK;
}

int quire_kv_disk_open(quire_kv_disk **out, const quire_common_args *args, quire_opened *session,
                       quire_error *err)
{
    quire_kv_disk *d;
    int rc;

    *out = NULL;
    if (args->cache_dir == NULL) {
        return QUIRE_OK;
    }
    d = calloc(1, sizeof *d);
    if (d == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for pages of the cache directory");
    }
    d->session = session;
    quire_kv_disk_names(session, &d->salt, &d->root);
    rc = parts_open(d);
    if (rc < 0) {
        (void)quire_error_set(err, rc, "cannot keep pages of this model on disk: %s",
                              quire_status_text(rc));
    } else {
        rc = store_open(d, args, err);
    }
    if (rc < 0) {
        quire_kv_disk_close(d);
        return rc;
    }
    *out = d;
    return QUIRE_OK;
}

void quire_kv_disk_close(quire_kv_disk *d)
{
    if (d == NULL) {
        return;
    }
    if (d->store != NULL) {
        d->store->ops->close(d->store, transfer_give, d);
    }
    while (d->unused != NULL) {
        quire_transfer *t = d->unused;

        d->unused = t->next;
        quire_transfer_free(t);
    }
    quire_store_wait_free(d->wait);
    free(d->state);
    free(d);
}

/* ---- texts ---- */

/* A walk over the pages of a text. */
typedef struct text_walk {
    const int32_t *tokens;
    uint32_t n_tokens;
    uint32_t page;
    quire_page_key parent; /* of the text before the page */
} text_walk;

/* The page at the walk; its key too. */
static quire_page_text text_of(const quire_kv_disk *d, const text_walk *w)
{
    const uint32_t first = w->page * d->parts.page_tokens;
    const uint32_t n_rest = w->n_tokens - first;
    quire_page_text text = {
        .parent = w->parent,
        .root = d->root,
        .first_token = first,
        .n_tokens = n_rest < d->parts.page_tokens ? n_rest : d->parts.page_tokens,
        .tokens = w->tokens + first,
        .salt = d->salt.bytes,
        .salt_bytes = d->salt.n,
    };

    quire_prefix_key_add(&w->parent, text.tokens, text.n_tokens, &text.key);
    return text;
}

/* ---- reading ---- */

/* Ask for the page at the walk and go on. `is_open`: for a stored beginning of the page. */
static bool ask(quire_kv_disk *d, text_walk *w, bool is_open)
{
    quire_page_text text = text_of(d, w);
    quire_transfer *t = transfer_take(d);

    if (t == NULL) {
        return false;
    }
    w->page++;
    w->parent = text.key;
    if (is_open) {
        quire_page_record_slot(&text.parent, text.tokens[0], &text.key);
        text.n_tokens = 0;
    }
    quire_transfer_text_set(t, &text);
    t->is_query = false;
    t->is_replacing = false;
    d->store->ops->get(d->store, &t, 1);
    return true;
}

/* Wait for all transfers; their records are of no use. */
static void drain(quire_kv_disk *d, quire_transfer **arrived)
{
    quire_transfer *t;

    for (uint32_t i = 0; i < TRANSFERS; i++) {
        if (arrived[i] != NULL) {
            transfer_give(d, arrived[i]);
            arrived[i] = NULL;
        }
    }
    while (d->n_away > 0 && (t = transfer_wait(d, READ_NS)) != NULL) {
        transfer_give(d, t);
    }
}

/* The transfer of a page; others that come first are put aside. */
static quire_transfer *arrival_of(quire_kv_disk *d, quire_transfer **arrived, uint32_t page)
{
    while (arrived[page % TRANSFERS] == NULL) {
        quire_transfer *t = transfer_wait(d, READ_NS);

        if (t == NULL) {
            return NULL;
        }
        arrived[t->text.first_token / d->parts.page_tokens % TRANSFERS] = t;
    }
    return arrived[page % TRANSFERS];
}

/* Append a record's first n tokens. Where memory is short, other pages of the text leave it. */
static int page_append(quire_kv_disk *d, quire_seq_id seq, const quire_page_record *record,
                       uint32_t n)
{
    const void *state;
    int rc;

    do {
        rc = quire_page_read(quire_runtime_cache(d->session->runtime), &d->parts, seq, record, n);
    } while (rc == QUIRE_NOPAGES && quire_opened_relieve(d->session, seq));
    quire_runtime_release(d->session->runtime, seq);
    state = rc == QUIRE_OK ? quire_page_state(&d->parts, record, n) : NULL;
    if (state != NULL) {
        memcpy(d->state, state, d->parts.bytes[d->parts.state]);
        d->n_stated = record->text.first_token + n;
    }
    return rc;
}

/* Append full pages to the sequence, in order. */
static void read_full(quire_kv_disk *d, quire_seq_id seq, text_walk *asked, uint32_t n_pages)
{
    quire_transfer *arrived[TRANSFERS] = { NULL };
    uint32_t page = asked->page;

    while (page < n_pages) {
        quire_transfer *t;

        while (asked->page < n_pages && asked->page < page + TRANSFERS && ask(d, asked, false)) {
        }
        t = arrival_of(d, arrived, page);
        if (t == NULL || t->result != QUIRE_STORE_OK ||
            page_append(d, seq, &t->found, d->parts.page_tokens) < 0) {
            break;
        }
        arrived[page % TRANSFERS] = NULL;
        transfer_give(d, t);
        page++;
    }
    drain(d, arrived);
}

/* Append the begin of the page at the walk, as far as an open page was kept. */
static void read_open(quire_kv_disk *d, quire_seq_id seq, text_walk *w)
{
    const int32_t *tokens = w->tokens + (size_t)w->page * d->parts.page_tokens;
    const uint32_t n_rest = w->n_tokens - w->page * d->parts.page_tokens;
    quire_transfer *t;

    if (!ask(d, w, true) || (t = transfer_wait(d, READ_NS)) == NULL) {
        return;
    }
    if (t->result == QUIRE_STORE_OK) {
        const uint32_t n = quire_page_same(&t->found, tokens, n_rest);

        if (n > 0) {
            (void)page_append(d, seq, &t->found, n);
        }
    }
    transfer_give(d, t);
}

/* A walk at the end of the sequence's pages. */
static text_walk walk_to(const quire_kv_disk *d, const int32_t *tokens, uint32_t n_tokens,
                         uint32_t n_pages)
{
    text_walk w = { .tokens = tokens, .n_tokens = n_tokens, .parent = d->root };

    for (; w.page < n_pages; w.page++) {
        w.parent = text_of(d, &w).key;
    }
    return w;
}

/* Cut the sequence back to where its last window is whole: records of pages far before the end of a
 * text have none. Returns the tokens that are left. */
static uint32_t windows_cut(const quire_kv_disk *d, quire_seq_id seq)
{
    quire_cache *cache = quire_runtime_cache(d->session->runtime);
    const uint32_t n_have = quire_seq_tokens(cache, seq);
    const uint32_t n = quire_seq_truncatable(cache, seq, n_have);

    return n == n_have || quire_seq_truncate(cache, seq, n) == QUIRE_OK ? n : n_have;
}

/* Cut a sequence that had n_before tokens back to the last state that was read, and give the
 * sequence this state. If no state was read, go back to the state before. Returns the tokens that
 * are left. */
static uint32_t states_cut(const quire_kv_disk *d, quire_seq_id seq, uint32_t n_before)
{
    quire_runtime *runtime = d->session->runtime;
    quire_cache *cache = quire_runtime_cache(runtime);

    if (d->n_stated > 0 && quire_seq_truncatable(cache, seq, d->n_stated) == d->n_stated &&
        quire_seq_truncate(cache, seq, d->n_stated) == QUIRE_OK &&
        quire_runtime_state_load(runtime, seq, d->state) == QUIRE_OK) {
        return d->n_stated;
    }
    QUIRE_CHECK(quire_seq_truncate(cache, seq, n_before) == QUIRE_OK); /* whole pages */
    return n_before;
}

uint32_t quire_kv_disk_read(quire_kv_disk *d, quire_seq_id seq, const int32_t *tokens,
                            uint32_t n_tokens)
{
    const quire_cache *cache = quire_runtime_cache(d->session->runtime);
    const uint32_t n_before = quire_seq_tokens(cache, seq);
    uint32_t n_have = n_before;
    text_walk w;

    if (n_have % d->parts.page_tokens != 0) {
        return n_have;
    }
    d->n_stated = 0;
    w = walk_to(d, tokens, n_tokens, n_have / d->parts.page_tokens);
    read_full(d, seq, &w, n_tokens / d->parts.page_tokens);
    n_have = quire_seq_tokens(cache, seq);
    if (!d->is_sealed && n_have < n_tokens && d->n_away == 0) {
        w = walk_to(d, tokens, n_tokens, n_have / d->parts.page_tokens);
        read_open(d, seq, &w);
    }
    return d->parts.state > 0 ? states_cut(d, seq, n_before) : windows_cut(d, seq);
}

/* ---- writing ---- */

static int put(quire_kv_disk *d, quire_seq_id seq, const text_walk *w, quire_transfer *t)
{
    const quire_cache *cache = quire_runtime_cache(d->session->runtime);
    quire_page_text text = text_of(d, w);
    quire_page_id pages[QUIRE_GROUPS_MAX];
    const void *state = NULL;

    for (uint32_t g = 0; g < quire_cache_groups(cache); g++) {
        quire_seq_table table;

        QUIRE_TRY(quire_seq_table_get(cache, seq, (quire_group_id)g, &table));
        pages[g] = table.leaves[w->page / QUIRE_LEAF_ENTRIES][w->page % QUIRE_LEAF_ENTRIES].page;
    }
    if (d->parts.state > 0) { /* there is the state of the last token alone */
        const uint32_t n_all = quire_seq_tokens(cache, seq);

        pages[d->parts.state] = QUIRE_PAGE_NULL;
        if (text.first_token + text.n_tokens == n_all &&
            quire_runtime_keepable(d->session->runtime, seq, n_all) == n_all) {
            quire_runtime_state_save(d->session->runtime, seq, d->state);
            state = d->state;
        }
    }
    if (text.n_tokens < d->parts.page_tokens) {
        quire_page_record_slot(&text.parent, text.tokens[0], &text.key);
    }
    t->is_replacing = text.n_tokens < d->parts.page_tokens ||
                      state != NULL || /* older ones lack it */
                      (d->groups.window != 0 && pages[d->groups.window] != QUIRE_PAGE_NULL);
    QUIRE_TRY(quire_page_write(cache, &d->parts, &text, pages, state, t));
    d->store->ops->put(d->store, &t, 1);
    return QUIRE_OK;
}

void quire_kv_disk_write(quire_kv_disk *d, quire_seq_id seq, const int32_t *tokens,
                         uint32_t n_tokens)
{
    const uint64_t end_ns = quire_clock_ns() + WRITE_NS;
    text_walk w = { .tokens = tokens, .n_tokens = n_tokens, .parent = d->root };
    quire_transfer *t;

    if (d->is_sealed) {
        w.n_tokens -= n_tokens % d->parts.page_tokens;
    }
    while (w.page * d->parts.page_tokens < w.n_tokens && quire_clock_ns() < end_ns) {
        t = transfer_take(d);
        if (t == NULL) {
            t = transfer_wait(d, WRITE_NS);
            if (t == NULL) {
                return;
            }
            transfer_give(d, t);
            continue;
        }
        if (put(d, seq, &w, t) < 0) {
            transfer_give(d, t);
            return;
        }
        w.parent = text_of(d, &w).key;
        w.page++;
    }
    while (d->n_away > 0 && (t = transfer_wait(d, WRITE_NS)) != NULL) {
        transfer_give(d, t);
    }
}
