/* saver_object.h - the struct of the saver, for src/engine/saver only.
 *
 *   restore   on the owner's thread, before the loops start
 *   round     on the saver's thread:  gather (all items)  -->  settle (changed items, to disk)
 *   close     on the owner's thread, before the loops stop: a last round
 *
 * A *list* has the items of one kind that are on disk, by name. The source of
 * an item counts its changes, and the list has the count at the last write. Where both counts agree
 * nothing is done.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SAVER_OBJECT_H
#define QUIRE_ENGINE_SAVER_OBJECT_H

#include <pthread.h>

#include "engine/adapt/adapt.h"
#include "engine/loop/loop.h"
#include "engine/saver/saved.h"
#include "engine/saver/saver_life.h"
#include "store/state/state_dir.h"

#define QUIRE_SAVED_STALE UINT64_MAX /* no source has this number: the item on disk is to go */

typedef struct quire_saved_item {
    quire_state_name name;
    uint32_t identity; /* number of it */
    uint64_t change;
    uint64_t charge_bytes;
    char *bytes; /* a new version, [n_bytes], to be written; NULL = the one on disk is right */
    size_t n_bytes;
    bool is_on_disk; /* in some version */
} quire_saved_item;

/* Sorted by name and identity, except while it is gathered. */
typedef struct quire_saved_list {
    quire_saved_item *items;
    uint32_t n, capacity;
} quire_saved_list;

struct quire_saver {
    quire_saver_devices devices;
    const quire_loop_parts *parts; /* of the first device */
    quire_saver_opts opts;
    /* Different devices may have one identity. */
    quire_state_dir *dirs[QUIRE_REPLICAS_MAX]; /* [n_identities], of each identity */
    unsigned char identities[QUIRE_REPLICAS_MAX][QUIRE_HASH128_BYTES];
    uint32_t n_identities;
    uint32_t identity_of[QUIRE_REPLICAS_MAX]; /* by device */
    const char *policy;                       /* name of the tree's */
    unsigned char *learned;                   /* [quire_prefix_learned_bytes()] */

    /* The saver's thread, or the owner's while there is none. */
    quire_saved_list lists[QUIRE_STATE_KIND_COUNT];
    uint64_t seen[QUIRE_STATE_KIND_COUNT]; /* changes that the list shows */
    bool is_behind[QUIRE_STATE_KIND_COUNT];
    uint64_t left_out[QUIRE_STATE_KIND_COUNT];
    uint64_t reuse_ns; /* when it was copied last */
    bool has_failed;   /* in this round */
    bool has_vanished; /* the directory has, in this round */
    bool is_failing;   /* since an earlier round: said once */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_stopping;        /* under the lock */
    quire_saver_stats stats; /* under the lock */
};

quire_saved_clock quire_saver_clock(const quire_saver *saver);
/* The change of a pin on a device: each device counts for itself. */
uint64_t quire_saver_pin_change(uint32_t device, uint64_t changed);
/* Log printf's line. */
__attribute__((format(printf, 2, 3))) void quire_saver_log(const quire_saver *saver,
                                                           const char *format, ...);

/* ---- saver_list.c ---- */

int quire_saved_list_add(quire_saved_list *list, const quire_saved_item *item);
void quire_saved_list_sort(quire_saved_list *list);
/* An item of a sorted list; NULL = none. */
quire_saved_item *quire_saved_list_find(const quire_saved_list *list, const quire_state_name *name,
                                        uint32_t identity);
uint64_t quire_saved_list_bytes(const quire_saved_list *list);
void quire_saved_list_fini(quire_saved_list *list);

/* ---- saver_restore.c ---- */

/* Restore the items that the directory has. Errors: QUIRE_NOMEM. */
int quire_saver_restore(quire_saver *saver, quire_error *err);

/* ---- saver_round.c ---- */

/* Write the items that differ from their files. is_last: `reuse` too, whenever it was written last.
 * Returns whether there is more to do at once. */
bool quire_saver_round(quire_saver *saver, bool is_last);
/* Count the lists. */
void quire_saver_figures(quire_saver *saver);

#endif /* QUIRE_ENGINE_SAVER_OBJECT_H */
