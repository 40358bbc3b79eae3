/* valkey_epoch.c - see valkey_epoch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_epoch.h"

#include "base/bytes.h"
#include "base/hash128.h"
#include "quire/status.h"
#include "store/page_record.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC   "QDROPS1" /* with its zero byte */
#define AT_WHAT 8u
#define TEXT    'T'
#define BEHIND  'B'

/* ---- scopes ---- */

static quire_vk_scope **bucket_of(quire_vk_epochs *e, const quire_page_key *key)
{
    return &e->buckets[quire_le_get(key->bytes, 4) % QUIRE_EPOCH_BUCKETS];
}

static void scope_free(quire_vk_epochs *e, quire_vk_scope **at)
{
    quire_vk_scope *s = *at;

    *at = s->next;
    quire_u64_map_fini(&s->drops);
    free(s);
    e->n_scopes--;
}

void quire_vk_epochs_fini(quire_vk_epochs *e)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_BUCKETS; i++) {
        while (e->buckets[i] != NULL) {
            scope_free(e, &e->buckets[i]);
        }
    }
}

/* Forget scopes without a user, while there are too many. */
static void scopes_bound(quire_vk_epochs *e)
{
    for (uint32_t i = 0; i < QUIRE_EPOCH_BUCKETS && e->n_scopes >= QUIRE_EPOCH_SCOPES_MAX; i++) {
        for (quire_vk_scope **at = &e->buckets[i]; *at != NULL;) {
            if ((*at)->n_users == 0 && !(*at)->is_reading) {
                scope_free(e, at);
            } else {
                at = &(*at)->next;
            }
        }
    }
}

quire_vk_scope *quire_vk_scope_use(quire_vk_epochs *e, quire_epoch_of kind,
                                   const quire_page_key *key)
{
    static const char letters[QUIRE_EPOCH_COUNT] = { 'a', 't', 'e' };
    quire_vk_scope **at = bucket_of(e, key);
    quire_vk_scope *s = *at;

    while (s != NULL && (s->kind != kind || !quire_page_key_is(&s->key, key))) {
        s = s->next;
    }
    if (s == NULL) {
        scopes_bound(e);
        s = calloc(1, sizeof *s);
        if (s == NULL) {
            return NULL;
        }
        s->kind = kind;
        s->key = *key;
        quire_valkey_name_epoch(&s->name, e->fleet, letters[kind], key);
        s->next = *at;
        *at = s;
        e->n_scopes++;
    }
    s->n_users++;
    return s;
}

void quire_vk_scope_release(quire_vk_scope *s)
{
    if (s != NULL) {
        s->n_users--;
    }
}

/* ---- values ---- */

size_t quire_vk_scope_value(const quire_vk_scope *s, unsigned char *out)
{
    randombytes_buf(out, QUIRE_SEAL_EPOCH_BYTES);
    if (s->kind != QUIRE_EPOCH_ROOT) {
        return QUIRE_SEAL_EPOCH_BYTES;
    }
    memcpy(out + QUIRE_SEAL_EPOCH_BYTES, MAGIC, sizeof MAGIC);
    return QUIRE_EPOCH_ENTRY_BYTES;
}

void quire_vk_drop_entry(uint64_t id, bool is_text, unsigned char *out)
{
    memset(out, 0, QUIRE_EPOCH_ENTRY_BYTES);
    (void)quire_le_put(out, id, 8);
    out[AT_WHAT] = is_text ? TEXT : BEHIND;
}

/* The value of an id: the last 'T' in the upper half, the last 'B' in the lower one, each as its
 * place plus 1. */
static void drop_add(quire_vk_scope *s, const unsigned char *entry)
{
    const uint64_t id = quire_le_get(entry, 8);
    const uint64_t place = ++s->n_drops;
    uint64_t last = 0;

    (void)quire_u64_map_get(&s->drops, id, &last);
    last = entry[AT_WHAT] == TEXT ? (last & UINT32_MAX) | place << 32
                                  : (last & ~(uint64_t)UINT32_MAX) | place;
    if (!quire_u64_map_set(&s->drops, id, last)) {
        s->is_known = false; /* out of memory: nothing of the root is used */
    }
}

static bool is_later(const quire_vk_scope *s, uint64_t id, uint32_t n_seen, bool is_self)
{
    uint64_t last;

    return quire_u64_map_get(&s->drops, id, &last) &&
           (last >> 32 > n_seen || (!is_self && (last & UINT32_MAX) > n_seen));
}

bool quire_vk_scope_has_dropped(const quire_vk_scope *s, const quire_seal_head *head, uint64_t id)
{
    if (head->n_drops == s->n_drops) {
        return false;
    }
    if (head->n_drops > s->n_drops || !head->is_whole || is_later(s, id, head->n_drops, true)) {
        return true;
    }
    for (uint32_t i = 0; i < head->n_ancestors; i++) {
        if (is_later(s, quire_le_get(head->ancestors + (size_t)i * 8, 8), head->n_drops, false)) {
            return true;
        }
    }
    return false;
}

/* ---- reading ---- */

/* One read of a scope. */
typedef struct scope_read {
    quire_vk_epochs *epochs;
    quire_vk_scope *scope;
    uint32_t n_seen; /* drops that were known when it began */
    uint32_t n_away;
    bool is_failed;
    bool has_begin;
    unsigned char begin[QUIRE_EPOCH_ENTRY_BYTES];
    quire_bytes drops;
} scope_read;

static void read_begin(quire_vk_epochs *e, quire_vk_scope *s);

static void read_end(quire_vk_epochs *e, quire_vk_scope *s, bool is_failed)
{
    s->is_reading = false;
    s->is_failed = is_failed;
    s->answered = s->asked;
    if (s->is_wanted) {
        s->is_wanted = false;
        s->asked++;
        read_begin(e, s);
    }
    e->answered(e->ctx);
}

static void scope_forget(quire_vk_scope *s, bool is_garbage)
{
    s->is_known = false;
    s->is_garbage = is_garbage;
    s->n_drops = 0;
    quire_u64_map_fini(&s->drops);
}

static void scope_begin(quire_vk_scope *s, const unsigned char *epoch)
{
    scope_forget(s, false);
    memcpy(s->epoch, epoch, sizeof s->epoch);
    s->is_known = true;
}

static bool is_string(const quire_resp *reply)
{
    return reply != NULL && reply->type == QUIRE_RESP_STRING;
}

static void read_free(scope_read *r)
{
    quire_bytes_fini(&r->drops);
    free(r);
}

/* The epoch of a tenant or model. */
static void epoch_came(void *ctx, const quire_resp *reply)
{
    scope_read *r = ctx;
    quire_vk_scope *s = r->scope;
    const bool is_failed = reply == NULL || reply->type == QUIRE_RESP_ERROR;

    if (!is_string(reply)) {
        scope_forget(s, false);
    } else if ((size_t)reply->len != sizeof s->epoch) {
        scope_forget(s, true);
    } else {
        scope_begin(s, (const unsigned char *)reply->str);
    }
    read_end(r->epochs, s, is_failed);
    read_free(r);
}

/* Both replies about a root are there. */
static void root_came(scope_read *r)
{
    quire_vk_scope *s = r->scope;
    const bool is_epoch = memcmp(r->begin + QUIRE_SEAL_EPOCH_BYTES, MAGIC, sizeof MAGIC) == 0;
    const bool is_same =
        s->is_known && is_epoch && memcmp(r->begin, s->epoch, sizeof s->epoch) == 0;

    if (r->is_failed || r->drops.status != QUIRE_OK) {
        read_end(r->epochs, s, true);
    } else if (!is_epoch || r->drops.n % QUIRE_EPOCH_ENTRY_BYTES != 0) {
        scope_forget(s, r->has_begin);
        read_end(r->epochs, s, false);
    } else if (!is_same && r->n_seen > 0) {
        scope_forget(s, false);
        read_begin(r->epochs, s); /* from the first drop on; the same ticket */
    } else {
        if (!is_same) {
            scope_begin(s, r->begin);
        }
        for (size_t at = 0; at < r->drops.n; at += QUIRE_EPOCH_ENTRY_BYTES) {
            drop_add(s, (const unsigned char *)r->drops.data + at);
        }
        read_end(r->epochs, s, false);
    }
    read_free(r);
}

static void part_came(scope_read *r, const quire_resp *reply)
{
    r->is_failed = r->is_failed || !is_string(reply);
    if (--r->n_away == 0) {
        root_came(r);
    }
}

static void begin_came(void *ctx, const quire_resp *reply)
{
    scope_read *r = ctx;

    r->has_begin = is_string(reply) && reply->len > 0;
    if (r->has_begin && (size_t)reply->len == sizeof r->begin) {
        memcpy(r->begin, reply->str, sizeof r->begin);
    }
    part_came(r, reply);
}

static void drops_came(void *ctx, const quire_resp *reply)
{
    scope_read *r = ctx;

    if (is_string(reply)) {
        (void)quire_bytes_add(&r->drops, reply->str, (size_t)reply->len);
    }
    part_came(r, reply);
}

static void root_read(quire_vk_epochs *e, quire_vk_scope *s, scope_read *r)
{
    const quire_vk_arg name = { s->name.text, s->name.n };
    const uint32_t slot = quire_valkey_slot(s->name.text, s->name.n);
    char from[24];
    const int n = snprintf(from, sizeof from, "%u",
                           QUIRE_EPOCH_ENTRY_BYTES * (1 + (s->is_known ? s->n_drops : 0)));
    quire_vk_cmd *begin =
        quire_vk_cmd_new((quire_vk_arg[]){ QUIRE_VK_WORD("GETRANGE"), name, QUIRE_VK_WORD("0"),
                                           QUIRE_VK_WORD("15") },
                         4, slot, begin_came, r);
    quire_vk_cmd *drops = quire_vk_cmd_new(
        (quire_vk_arg[]){
            QUIRE_VK_WORD("GETRANGE"), name, { from, (size_t)n }, QUIRE_VK_WORD("-1") },
        4, slot, drops_came, r);

    if (begin == NULL || drops == NULL) {
        free(begin);
        free(drops);
        read_free(r);
        read_end(e, s, true);
        return;
    }
    r->n_away = 2;
    quire_vk_cluster_send(e->cluster, begin);
    quire_vk_cluster_send(e->cluster, drops);
}

static void read_begin(quire_vk_epochs *e, quire_vk_scope *s)
{
    scope_read *r = calloc(1, sizeof *r);
    quire_vk_cmd *get;

    s->is_reading = true;
    if (r == NULL) {
        read_end(e, s, true);
        return;
    }
    *r = (scope_read){ .epochs = e, .scope = s, .n_seen = s->is_known ? s->n_drops : 0 };
    if (s->kind == QUIRE_EPOCH_ROOT) {
        root_read(e, s, r);
        return;
    }
    get = quire_vk_cmd_new((quire_vk_arg[]){ QUIRE_VK_WORD("GET"), { s->name.text, s->name.n } }, 2,
                           quire_valkey_slot(s->name.text, s->name.n), epoch_came, r);
    if (get == NULL) {
        read_free(r);
        read_end(e, s, true);
        return;
    }
    quire_vk_cluster_send(e->cluster, get);
}

uint64_t quire_vk_scope_read(quire_vk_epochs *e, quire_vk_scope *s)
{
    if (s->is_reading) {
        s->is_wanted = true;
        return s->asked + 1;
    }
    s->asked++;
    read_begin(e, s);
    return s->answered >= s->asked ? s->answered : s->asked;
}
