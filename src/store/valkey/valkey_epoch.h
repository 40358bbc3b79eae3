/* valkey_epoch.h - how records in a shared store end: epochs, and drops of texts.
 *
 * A record names the epochs under which it was written: of its model, of its tenant, and of its
 * root (the tenant's salt of the model). An epoch is 8 random bytes in the store, under a key of
 * its own (valkey_key.h). Dropping all of a root, tenant or model replaces the epoch. An epoch that
 * got lost (restart, eviction) ends the records likewise, because the next writer makes another
 * one.
 *
 * The value of a root's epoch goes on with the drops of texts, in order:
 *
 *     epoch (8)  "QDROPS1" 0 (8)   | id of a page (8)  'T' or 'B'  zeros (7) |  ...
 *
 * 'T' ends the page and every text that continues it, 'B' only these texts. A record says how many
 * drops its writer had seen; a later drop of the page or of one of its ancestors ends the record.
 * At QUIRE_EPOCH_DROPS_MAX drops the epoch is replaced instead, which ends everything of the root.
 *
 * A reader asks for the epochs with each record, in the same round trip: so a machine that heard of
 * no drop learns of it at its next read. Each *scope* (model, tenant, root) that is in use is
 * remembered here, and only news of it are transferred.
 *
 * Thread: the store's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_EPOCH_H
#define QUIRE_STORE_VALKEY_EPOCH_H

#include "store/valkey/shared_seal.h"
#include "store/valkey/valkey_cluster.h"
#include "store/valkey/valkey_map.h"

#define QUIRE_EPOCH_DROPS_MAX   16384u
#define QUIRE_EPOCH_ENTRY_BYTES 16u   /* of a drop, and of the beginning */
#define QUIRE_EPOCH_SCOPES_MAX  4096u /* remembered; unused ones beyond go */
#define QUIRE_EPOCH_BUCKETS     1024u

typedef struct quire_vk_scope {
    struct quire_vk_scope *next; /* in its bucket */
    quire_epoch_of kind;
    quire_page_key key;
    quire_valkey_name name;
    uint32_t n_users;
    /* As last read. */
    bool is_known;   /* there is an epoch */
    bool is_garbage; /* there is something else */
    unsigned char epoch[QUIRE_SEAL_EPOCH_BYTES];
    uint32_t n_drops;
    quire_u64_map drops; /* id -> last 'T' and last 'B' */
    /* Reading: tickets are numbers of reads. */
    bool is_reading;
    bool is_wanted;    /* another read follows */
    bool is_failed;    /* the last read failed */
    uint64_t asked;    /* the read under way, or the last one */
    uint64_t answered; /* the last one that ended */
    uint64_t kept_us;  /* when its time to live was last set */
    /* Of a tenant: the bytes that it wrote. */
    uint64_t window;
    uint64_t window_bytes;
    uint64_t before_bytes; /* in the window before */
} quire_vk_scope;

typedef struct quire_vk_epochs {
    quire_vk_cluster *cluster;
    const char *fleet;
    void (*answered)(void *ctx); /* a read ended */
    void *ctx;
    quire_vk_scope *buckets[QUIRE_EPOCH_BUCKETS];
    uint32_t n_scopes;
} quire_vk_epochs;

void quire_vk_epochs_fini(quire_vk_epochs *epochs);

/* A scope, in use until quire_vk_scope_release(). NULL: out of memory. */
quire_vk_scope *quire_vk_scope_use(quire_vk_epochs *epochs, quire_epoch_of kind,
                                   const quire_page_key *key);
void quire_vk_scope_release(quire_vk_scope *scope);

/* Read the scope, not earlier than now. Returns the ticket: the read has ended when
 * scope->answered >= ticket. */
uint64_t quire_vk_scope_read(quire_vk_epochs *epochs, quire_vk_scope *scope);

/* The value that begins a new epoch: out[QUIRE_EPOCH_ENTRY_BYTES]. Returns its length. */
size_t quire_vk_scope_value(const quire_vk_scope *scope, unsigned char *out);
/* The entry of a drop: out[QUIRE_EPOCH_ENTRY_BYTES]. */
void quire_vk_drop_entry(uint64_t id, bool is_text, unsigned char *out);

/* Whether a drop ended the record `id` with this head; scope is its root's, known, and has the
 * head's epoch. */
bool quire_vk_scope_has_dropped(const quire_vk_scope *scope, const quire_seal_head *head,
                                uint64_t id);

#endif /* QUIRE_STORE_VALKEY_EPOCH_H */
