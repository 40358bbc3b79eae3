/* stored.c - see stored.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/stored/stored.h"

#include "base/check.h"
#include "base/num.h"
#include "cli/commands/talk.h"
#include "store/file/file_store.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WINDOW_MAX   16u                   /* reads under way */
#define WINDOW_BYTES ((uint64_t)128 << 20) /* memory for them */
#define ROOM_BYTES   ((uint64_t)20 << 30)  /* beyond present and coming records */

quire_transfer *quire_stored_next(quire_stored *stored)
{
    return quire_store_wait_next(stored->wait, stored->store, UINT32_MAX);
}

/* ---- open, close ---- */

static int fail_dir(const char *dir, int sys_errno, quire_error *err)
{
    if (sys_errno == ENOENT) {
        return quire_error_set(err, QUIRE_IO, "no such directory: %s", dir);
    }
    if (sys_errno == ENOTDIR) {
        return quire_error_set(err, QUIRE_INVAL, "%s is a file, not a cache directory", dir);
    }
    return quire_error_set_errno(err, sys_errno, "cannot read the directory %s", dir);
}

/* Count the segments. A directory with neither a segment nor a lock is none of ours. */
static int dir_look(quire_stored *s, bool is_made, quire_error *err)
{
    bool is_ours = false, is_empty = true;
    struct dirent *e;
    DIR *d = opendir(s->dir);

    if (d == NULL) {
        return is_made && errno == ENOENT ? QUIRE_OK : fail_dir(s->dir, errno, err);
    }
    while ((e = readdir(d)) != NULL) {
        const bool is_segment = strncmp(e->d_name, "segment-", 8) == 0;
        struct stat info;

        if (is_segment && fstatat(dirfd(d), e->d_name, &info, 0) == 0) {
            s->n_segments++;
            s->file_bytes += (uint64_t)info.st_size;
        }
        is_ours |= is_segment || strcmp(e->d_name, "lock") == 0;
        is_empty &= strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    }
    (void)closedir(d);
    if (!is_ours && !(is_made && is_empty)) {
        return quire_error_set(
            err, QUIRE_INVAL, "%s is not a cache directory: it has no segment and no lock", s->dir);
    }
    return QUIRE_OK;
}

void quire_stored_say_trouble(void *ctx, const char *line)
{
    (void)ctx;
    quire_say("cache directory: %s", line);
}

uint64_t quire_stored_room(const quire_stored *stored, const quire_stored_want *want)
{
    return want->capacity_bytes != 0 ? want->capacity_bytes
                                     : stored->file_bytes + 2 * want->added_bytes + ROOM_BYTES;
}

int quire_stored_look(quire_stored *out, const char *dir, bool is_made, quire_error *err)
{
    *out = (quire_stored){ .dir = dir };
    return dir_look(out, is_made, err);
}

int quire_stored_open(quire_stored *out, const char *dir, const quire_stored_want *want,
                      quire_error *err)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;
    int rc;

    QUIRE_TRY(quire_stored_look(out, dir, want->is_made, err));
    out->wait = quire_store_wait_new();
    if (out->wait == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "cannot open %s: out of memory", dir);
    }
    opts.dir = dir;
    opts.is_readonly = !want->is_writer;
    opts.capacity_bytes = quire_stored_room(out, want);
    opts.record_bytes = want->record_bytes;
    opts.write_rate = 0; /* nobody else waits for the disk */
    opts.log = want->is_writer ? quire_stored_say_trouble : NULL;
    rc = quire_file_store_create(&out->store, &opts, err);
    if (rc < 0) {
        quire_stored_close(out);
        return rc;
    }
    quire_store_waker_set(out->store, quire_store_wait_waker(out->wait));
    return QUIRE_OK;
}

static void list_free(quire_stored *s)
{
    free(s->records);
    free(s->by_key);
    free(s->roots);
    s->records = NULL;
    s->by_key = NULL;
    s->roots = NULL;
    s->n = 0;
    s->n_roots = 0;
}

static void give_back(void *ctx, quire_transfer *transfer)
{
    (void)ctx;
    quire_transfer_free(transfer);
}

void quire_stored_close(quire_stored *s)
{
    if (s->store != NULL) {
        s->store->ops->close(s->store, give_back, NULL);
    }
    quire_store_wait_free(s->wait);
    list_free(s);
    *s = (quire_stored){ 0 };
}

/* ---- the list ---- */

typedef struct listing {
    quire_stored *stored;
    uint32_t capacity;
    uint32_t roots_capacity;
    bool is_out_of_memory;
} listing;

/* Room for `wanted` elements, the new ones zeroed. Returns false when out of memory. */
static bool grow(void **array, uint32_t *capacity, uint32_t wanted, size_t element_bytes)
{
    const uint32_t next = quire_max_u32(quire_max_u32(64, wanted), *capacity * 2);
    char *grown;

    if (wanted <= *capacity) {
        return true;
    }
    grown = realloc(*array, (size_t)next * element_bytes);
    if (grown == NULL) {
        return false;
    }
    memset(grown + (size_t)*capacity * element_bytes, 0,
           (size_t)(next - *capacity) * element_bytes);
    *array = grown;
    *capacity = next;
    return true;
}

static void record_take(void *ctx, const quire_file_record *r)
{
    listing *l = ctx;
    quire_stored *s = l->stored;
    void *records = s->records, *roots = s->roots;

    if (l->is_out_of_memory || !grow(&records, &l->capacity, s->n + 1, sizeof *s->records)) {
        l->is_out_of_memory = true;
        return;
    }
    s->records = records;
    if (!grow(&roots, &l->roots_capacity, r->root_id + 1, sizeof *s->roots)) {
        l->is_out_of_memory = true;
        return;
    }
    s->roots = roots;
    s->n_roots = quire_max_u32(s->n_roots, r->root_id + 1);
    s->roots[r->root_id].n_records++;
    s->roots[r->root_id].salt_bytes = r->salt_bytes;
    memcpy(s->roots[r->root_id].salt, r->salt, r->salt_bytes);
    s->records[s->n++] = (quire_stored_record){ .key = r->key,
                                                .parent = r->parent,
                                                .root = r->root,
                                                .root_id = r->root_id,
                                                .first_token = r->first_token,
                                                .n_tokens = r->n_tokens,
                                                .uses = r->uses,
                                                .segment = r->segment,
                                                .offset = r->offset,
                                                .n_bytes = r->n_bytes };
    s->record_bytes_max = quire_max_u64(s->record_bytes_max, r->n_bytes);
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* By position in the text, then as they lie in the directory. */
static int by_position(const void *a, const void *b)
{
    const quire_stored_record *x = a, *y = b;
    int order = compare_u64(x->first_token, y->first_token);

    order = order != 0 ? order : compare_u64(x->segment, y->segment);
    return order != 0 ? order : compare_u64(x->offset, y->offset);
}

static int by_key(const void *a, const void *b)
{
    const quire_stored_record *x = *(quire_stored_record *const *)a;
    const quire_stored_record *y = *(quire_stored_record *const *)b;

    return memcmp(&x->key, &y->key, sizeof x->key);
}

static quire_stored_record *find(const quire_stored *s, const quire_page_key *key)
{
    const quire_stored_record wanted = { .key = *key };
    const quire_stored_record *at = &wanted;
    quire_stored_record **found =
        s->n > 0 ? bsearch(&at, s->by_key, s->n, sizeof *s->by_key, by_key) : NULL;

    return found != NULL ? *found : NULL;
}

/* Link each record to the one before it, which comes earlier in the list. */
static void link_all(quire_stored *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        quire_stored_record *r = &s->records[i];
        quire_stored_record *before = r->first_token > 0 ? find(s, &r->parent) : NULL;

        if (before != NULL && (before->first_token + before->n_tokens != r->first_token ||
                               before->root_id != r->root_id)) {
            before = NULL;
        }
        r->before = before;
        r->first = before != NULL ? before->first : r;
        r->text_bytes = r->n_bytes + (before != NULL ? before->text_bytes : 0);
        r->is_orphan = before != NULL ? before->is_orphan : r->first_token != 0;
        r->is_condensed = before != NULL ? before->is_condensed
                                         : r->first_token == 0 &&
                                               memcmp(&r->parent, &r->root, sizeof r->root) != 0;
        r->is_end = true;
        if (before != NULL) {
            before->is_end = false;
        }
    }
}

int quire_stored_list(quire_stored *stored, quire_error *err)
{
    listing l = { .stored = stored };

    list_free(stored);
    quire_file_store_visit(stored->store, record_take, &l);
    stored->by_key = malloc((stored->n + 1) * sizeof *stored->by_key);
    if (l.is_out_of_memory || stored->by_key == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: no memory for the list of records",
                               stored->dir);
    }
    if (stored->n > 0) {
        qsort(stored->records, stored->n, sizeof *stored->records, by_position);
    }
    for (uint32_t i = 0; i < stored->n; i++) {
        stored->by_key[i] = &stored->records[i];
    }
    qsort(stored->by_key, stored->n, sizeof *stored->by_key, by_key);
    link_all(stored);
    return QUIRE_OK;
}

const quire_stored_record *quire_stored_find(const quire_stored *stored, const quire_page_key *key)
{
    return find(stored, key);
}

bool quire_stored_names(const quire_stored *stored, const quire_stored_record *record,
                        quire_tenant_names *out)
{
    const quire_stored_root *root = &stored->roots[record->root_id];

    return quire_tenant_salt_names(root->salt, root->salt_bytes, out);
}

/* ---- reading ---- */

static void ask(quire_stored *s, const quire_stored_record *r, quire_transfer *t)
{
    const quire_stored_root *root = &s->roots[r->root_id];
    const quire_page_text text = { .key = r->key,
                                   .parent = r->parent,
                                   .root = r->root,
                                   .first_token = r->first_token,
                                   .salt = root->salt,
                                   .salt_bytes = root->salt_bytes };

    quire_transfer_text_set(t, &text);
    s->store->ops->get(s->store, &t, 1);
}

/* Reads under way: transfer i belongs to the records whose number is i modulo the window. */
typedef struct window {
    quire_transfer *transfers[WINDOW_MAX];
    bool has_arrived[WINDOW_MAX];
    uint32_t n; /* transfers */
    uint32_t n_away;
} window;

static int window_open(window *w, uint64_t record_bytes)
{
    const uint64_t n = WINDOW_BYTES / quire_max_u64(record_bytes, 1);

    for (; w->n < WINDOW_MAX && (w->n == 0 || w->n < n); w->n++) {
        w->transfers[w->n] = quire_transfer_new(record_bytes, 0);
        QUIRE_FAIL_IF(w->transfers[w->n] == NULL, QUIRE_NOMEM);
        w->transfers[w->n]->owner = &w->has_arrived[w->n];
    }
    return QUIRE_OK;
}

static void window_arrive(quire_stored *s, window *w)
{
    const quire_transfer *t = quire_stored_next(s);

    *(bool *)t->owner = true;
    w->n_away--;
}

static void window_close(quire_stored *s, window *w)
{
    while (w->n_away > 0) {
        window_arrive(s, w);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        quire_transfer_free(w->transfers[i]);
    }
}

int quire_stored_read(quire_stored *stored, const quire_stored_record *const *records, uint32_t n,
                      bool (*each)(void *ctx, const quire_stored_record *record,
                                   const quire_transfer *transfer),
                      void *ctx)
{
    window w = { .n = 0 };
    uint32_t asked = 0;
    int rc = window_open(&w, stored->record_bytes_max);

    for (uint32_t i = 0; i < n && rc == QUIRE_OK; i++) {
        for (; asked < n && asked < i + w.n; asked++, w.n_away++) {
            w.has_arrived[asked % w.n] = false;
            ask(stored, records[asked], w.transfers[asked % w.n]);
        }
        while (!w.has_arrived[i % w.n]) {
            window_arrive(stored, &w);
        }
        if (quire_interrupt_seen() || !each(ctx, records[i], w.transfers[i % w.n])) {
            rc = QUIRE_CANCELED;
        }
    }
    window_close(stored, &w);
    return rc;
}

bool quire_stored_is_own_key(const quire_page_record *record)
{
    int32_t tokens[QUIRE_PAGE_TOKENS_MAX];
    quire_page_key key;

    quire_page_record_tokens(record, tokens);
    quire_prefix_key_add(&record->text.parent, tokens, record->text.n_tokens, &key);
    if (memcmp(&key, &record->text.key, sizeof key) == 0) {
        return true;
    }
    quire_page_record_slot(&record->text.parent, tokens[0], &key);
    return memcmp(&key, &record->text.key, sizeof key) == 0;
}
