/* kv_pack.c - see kv_pack.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/kv_events/kv_pack.h"

#include "base/check.h"
#include "server/tenant.h"

#include <msgpack.h>
#include <string.h>

/* Items that become one event. */
typedef struct run {
    quire_kv_news_kind kind;
    uint8_t rank;
    size_t begin;
    size_t end;
    uint32_t n_pages;
    uint32_t n_tokens;
} run;

typedef struct news {
    const unsigned char *bytes;
    size_t n;
} news;

static bool continues(const quire_kv_news_item *last, const quire_kv_news_item *next)
{
    if (next->kind != last->kind || next->rank != last->rank || next->kind == QUIRE_KV_CLEARED) {
        return false;
    }
    return next->kind == QUIRE_KV_REMOVED ||
           (!next->is_first && next->parent == last->hash && next->n_tokens == last->n_tokens);
}

/* The run that begins at `at`, of pages_max >= 1 pages at most. */
static run run_at(const news *from, size_t at, uint32_t pages_max)
{
    quire_kv_news_item item, next;
    run r = { .begin = at, .end = quire_kv_news_read(from->bytes, at, &item) };

    r.kind = item.kind;
    r.rank = item.rank;
    r.n_pages = 1;
    r.n_tokens = item.n_tokens;
    while (r.end < from->n && r.n_pages < pages_max) {
        const size_t end = quire_kv_news_read(from->bytes, r.end, &next);

        if (!continues(&item, &next)) {
            break;
        }
        item = next;
        r.end = end;
        r.n_pages++;
        r.n_tokens += item.n_tokens;
    }
    return r;
}

/* ---- msgpack ---- */

static int write_bytes(void *ctx, const char *data, size_t n)
{
    return quire_bytes_add(ctx, data, n);
}

static void pack_text(msgpack_packer *to, const char *text)
{
    const size_t n = strlen(text);

    (void)msgpack_pack_str(to, n);
    (void)msgpack_pack_str_body(to, text, n);
}

static void pack_hashes(msgpack_packer *to, const news *from, const run *r)
{
    quire_kv_news_item item;

    (void)msgpack_pack_array(to, r->n_pages);
    for (size_t at = r->begin; at < r->end;) {
        at = quire_kv_news_read(from->bytes, at, &item);
        (void)msgpack_pack_uint64(to, item.hash);
    }
}

static void pack_tokens(msgpack_packer *to, const news *from, const run *r)
{
    quire_kv_news_item item;

    (void)msgpack_pack_array(to, r->n_tokens);
    for (size_t at = r->begin; at < r->end;) {
        at = quire_kv_news_read(from->bytes, at, &item);
        for (uint32_t i = 0; i < item.n_tokens; i++) {
            (void)msgpack_pack_int32(to, item.tokens[i]);
        }
    }
}

/* The names in a salt that are not empty. A salt of other bytes has none. */
static uint32_t names_of(const quire_kv_news_item *first, quire_tenant_names *names)
{
    if (first->salt_bytes == 0 || !quire_tenant_salt_names(first->salt, first->salt_bytes, names)) {
        return 0;
    }
    return (uint32_t)(names->tenant[0] != '\0') + (uint32_t)(names->cache_salt[0] != '\0');
}

static void pack_extra_keys(msgpack_packer *to, const quire_tenant_names *names, uint32_t n_names,
                            uint32_t n_pages)
{
    (void)msgpack_pack_array(to, n_pages);
    (void)msgpack_pack_array(to, n_names);
    if (names->tenant[0] != '\0') {
        pack_text(to, names->tenant);
    }
    if (names->cache_salt[0] != '\0') {
        pack_text(to, names->cache_salt);
    }
    for (uint32_t i = 1; i < n_pages; i++) {
        (void)msgpack_pack_nil(to);
    }
}

static void pack_stored(msgpack_packer *to, const news *from, const run *r)
{
    quire_tenant_names names;
    quire_kv_news_item first;
    uint32_t n_names;

    (void)quire_kv_news_read(from->bytes, r->begin, &first);
    n_names = names_of(&first, &names);
    (void)msgpack_pack_array(to, n_names > 0 ? 9 : 8);
    pack_text(to, "BlockStored");
    pack_hashes(to, from, r);
    if (first.is_first) {
        (void)msgpack_pack_nil(to);
    } else {
        (void)msgpack_pack_uint64(to, first.parent);
    }
    pack_tokens(to, from, r);
    (void)msgpack_pack_uint32(to, first.n_tokens);
    (void)msgpack_pack_nil(to); /* lora_id */
    (void)msgpack_pack_nil(to); /* medium */
    (void)msgpack_pack_nil(to); /* lora_name */
    if (n_names > 0) {
        pack_extra_keys(to, &names, n_names, r->n_pages);
    }
}

static void pack_run(msgpack_packer *to, const news *from, const run *r)
{
    switch (r->kind) {
    case QUIRE_KV_CLEARED:
        (void)msgpack_pack_array(to, 1);
        pack_text(to, "AllBlocksCleared");
        break;
    case QUIRE_KV_STORED:
        pack_stored(to, from, r);
        break;
    case QUIRE_KV_REMOVED:
        (void)msgpack_pack_array(to, 3);
        pack_text(to, "BlockRemoved");
        pack_hashes(to, from, r);
        (void)msgpack_pack_nil(to); /* medium */
        break;
    }
}

/* Count the runs of a batch, which are of the first one's device. Returns its end. */
static size_t batch_measure(const news *from, size_t at, uint32_t pages_max, uint32_t *n_runs,
                            quire_kv_packed *packed)
{
    uint32_t left = pages_max;

    *n_runs = 0;
    *packed = (quire_kv_packed){ 0 };
    while (at < from->n && left > 0) {
        const run r = run_at(from, at, left);

        if (*n_runs > 0 && r.rank != packed->rank) {
            break;
        }
        packed->rank = r.rank;
        packed->stored += r.kind == QUIRE_KV_STORED ? r.n_pages : 0;
        packed->removed += r.kind == QUIRE_KV_REMOVED ? r.n_pages : 0;
        packed->cleared += r.kind == QUIRE_KV_CLEARED;
        left -= r.n_pages;
        at = r.end;
        ++*n_runs;
    }
    return at;
}

size_t quire_kv_pack(quire_bytes *out, const unsigned char *bytes, size_t n, size_t at,
                     uint32_t pages_max, double seconds, quire_kv_packed *packed)
{
    const news from = { bytes, n };
    msgpack_packer to;
    uint32_t n_runs;
    const size_t end = batch_measure(&from, at, pages_max, &n_runs, packed);
    uint32_t left = pages_max;

    msgpack_packer_init(&to, out, write_bytes);
    (void)msgpack_pack_array(&to, 3);
    (void)msgpack_pack_double(&to, seconds);
    (void)msgpack_pack_array(&to, n_runs);
    while (at < end) {
        const run r = run_at(&from, at, left);

        pack_run(&to, &from, &r);
        left -= r.n_pages;
        at = r.end;
    }
    (void)msgpack_pack_int(&to, packed->rank); /* data_parallel_rank */
    return end;
}
