/* saver_round.c - compares the state with the files; see saver_object.h.
 *
 * A kind at a time: pins, then `reuse`, then sessions, which get the rest of the room.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/saver/saver_object.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/prefix/prefix_learned.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The items of one kind, gathered under their source's lock or on the engine's thread. */
typedef struct gathering {
    quire_saver *saver;
    const quire_saved_list *old;
    uint32_t device; /* whose pins are gathered */
    quire_saved_list wanted;
    quire_saved_writing how;
    uint64_t room_bytes; /* that are left */
    size_t n_copied;
    uint64_t n_left_out;
    bool is_full;   /* the rest of the source is left out */
    bool is_behind; /* changes were left for the next round */
    bool is_short;  /* of memory: nothing is settled */
} gathering;

/* An item as its source has it now. `write` makes its bytes of `what`. */
typedef struct found {
    quire_state_name name;
    uint32_t identity;
    uint64_t change;
    size_t n_bytes;
    int (*write)(quire_bytes *item, const void *what, const quire_saved_writing *how);
    const void *what;
} found;

/* Copy a changed item. Returns false when it waits for the next round, in its old version. */
static bool copy(gathering *g, const found *f, quire_saved_item *item)
{
    quire_bytes bytes = { 0 };

    if (g->n_copied > 0 && g->n_copied + f->n_bytes > QUIRE_SAVER_COPY_BYTES) {
        g->is_behind = true;
        return false;
    }
    memcpy(g->how.identity, g->saver->identities[f->identity], sizeof g->how.identity);
    if (f->write(&bytes, f->what, &g->how) < 0) {
        quire_bytes_fini(&bytes);
        g->is_behind = true;
        return false;
    }
    g->n_copied += bytes.n;
    item->bytes = bytes.data;
    item->n_bytes = bytes.n;
    item->change = f->change;
    return true;
}

static void gather(gathering *g, const found *f)
{
    const quire_saved_item *old = quire_saved_list_find(g->old, &f->name, f->identity);
    quire_saved_item item =
        old != NULL ? *old : (quire_saved_item){ .name = f->name, .identity = f->identity };
    const bool is_same = old != NULL && old->change == f->change;

    item.charge_bytes = quire_state_charge(f->n_bytes);
    if (g->is_full || item.charge_bytes > g->room_bytes ||
        f->n_bytes > QUIRE_STATE_ITEM_BYTES_MAX) {
        g->is_full = true;
        g->n_left_out++;
        return;
    }
    g->room_bytes -= item.charge_bytes;
    if (!is_same && !copy(g, f, &item) && !item.is_on_disk) {
        return;
    }
    if (quire_saved_list_add(&g->wanted, &item) < 0) {
        free(item.bytes);
        g->is_short = true;
    }
}

/* ---- the sources ---- */

static int session_write(quire_bytes *item, const void *what, const quire_saved_writing *how)
{
    return quire_saved_session_write(item, what, how);
}

/* From the one used last. */
static int session_take(void *ctx, const quire_session_info *info)
{
    gathering *g = ctx;

    if (info->n_turns > 0) {
        gather(g, &(found){ quire_saved_session_name(info), g->saver->identity_of[info->device],
                            info->changed, quire_saved_session_bytes(info), session_write, info });
    }
    return 0;
}

static int pin_write(quire_bytes *item, const void *what, const quire_saved_writing *how)
{
    return quire_saved_pin_write(item, what, how);
}

static void pin_take(void *ctx, const quire_adapt_pin_view *pin)
{
    gathering *g = ctx;

    gather(g, &(found){ quire_saved_pin_name(pin), g->saver->identity_of[g->device],
                        quire_saver_pin_change(g->device, pin->changed), quire_saved_pin_bytes(pin),
                        pin_write, pin });
}

static void pins_take_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    gathering *g = ctx;

    (void)cache;
    (void)tree;
    quire_adapt_pins_visit(g->saver->devices.adapts[g->device], pin_take, g);
}

static int pins_take(gathering *g)
{
    const quire_saver_devices *devices = &g->saver->devices;

    for (g->device = 0; g->device < devices->n; g->device++) {
        QUIRE_TRY(quire_loop_call(devices->loops[g->device], pins_take_here, g));
    }
    return QUIRE_OK;
}

static uint64_t lookups_of(const quire_loop *loop)
{
    quire_prefix_stats tree;

    quire_prefix_stats_get(quire_loop_parts_get(loop)->tree, &tree);
    return tree.lookups_total;
}

/* Of an identity the one whose tree has seen the most. */
static quire_loop *learned_loop(const quire_saver *saver, uint32_t identity)
{
    quire_loop *most = NULL;

    for (uint32_t i = 0; i < saver->devices.n; i++) {
        quire_loop *loop = saver->devices.loops[i];

        if (saver->identity_of[i] == identity &&
            (most == NULL || lookups_of(loop) > lookups_of(most))) {
            most = loop;
        }
    }
    return most;
}

static void learned_take_here(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    gathering *g = ctx;

    (void)cache;
    quire_prefix_learned_save(tree, g->saver->learned);
}

static int reuse_write(quire_bytes *item, const void *what, const quire_saved_writing *how)
{
    const quire_saver *saver = what;

    return quire_saved_reuse_write(item, saver->policy, saver->learned,
                                   quire_prefix_learned_bytes(saver->parts->tree), how);
}

static int reuse_take(gathering *g, uint64_t change)
{
    quire_saver *saver = g->saver;
    const size_t n = quire_prefix_learned_bytes(saver->parts->tree);

    for (uint32_t i = 0; i < saver->n_identities; i++) {
        QUIRE_TRY(quire_loop_call(learned_loop(saver, i), learned_take_here, g));
        gather(g, &(found){ quire_saved_reuse_name(saver->policy), i, change,
                            QUIRE_STATE_HEAD_BYTES + n + QUIRE_STATE_FILE_CHARGE, reuse_write,
                            saver });
    }
    saver->reuse_ns = quire_clock_ns();
    return QUIRE_OK;
}

/* The number of changes that a kind's source counts. */
static uint64_t changes_of(const quire_saver *saver, quire_state_kind kind, bool is_last)
{
    const quire_saver_devices *devices = &saver->devices;
    const uint64_t since_ns = quire_clock_ns() - saver->reuse_ns;
    uint64_t sum = 0;

    switch (kind) {
    case QUIRE_STATE_SESSION:
        return quire_sessions_changes(saver->parts->sessions);
    case QUIRE_STATE_PIN:
        for (uint32_t i = 0; i < devices->n; i++) {
            sum += quire_adapt_pins_changes(devices->adapts[i]);
        }
        return sum;
    default:
        if (!is_last && since_ns / 1000u < QUIRE_SAVER_REUSE_US) {
            return saver->seen[kind];
        }
        for (uint32_t i = 0; i < devices->n; i++) {
            sum += lookups_of(devices->loops[i]); /* trees learn from look-ups alone */
        }
        return sum;
    }
}

static int source_take(gathering *g, quire_state_kind kind, uint64_t changes)
{
    switch (kind) {
    case QUIRE_STATE_SESSION:
        return quire_sessions_visit(g->saver->parts->sessions, NULL, 0, session_take, g);
    case QUIRE_STATE_PIN:
        return pins_take(g);
    default:
        return reuse_take(g, changes);
    }
}

/* ---- to disk ---- */

static void count_io(quire_saver *saver, size_t n_bytes, bool is_written)
{
    (void)pthread_mutex_lock(&saver->lock);
    saver->stats.written_total += is_written;
    saver->stats.written_bytes_total += is_written ? n_bytes : 0;
    saver->stats.failures_total += !is_written;
    (void)pthread_mutex_unlock(&saver->lock);
}

/* The directory is gone, and all items with it. The store makes it again; then all are written. */
static void forget_disk(quire_saver *saver)
{
    for (uint32_t k = 0; k < QUIRE_STATE_KIND_COUNT; k++) {
        for (uint32_t i = 0; i < saver->lists[k].n; i++) {
            saver->lists[k].items[i].change = QUIRE_SAVED_STALE;
            saver->lists[k].items[i].is_on_disk = false;
        }
        saver->is_behind[k] = true;
    }
}

/* An item could not be written or removed. Said once until it works again. */
static void failed(quire_saver *saver, const quire_saved_item *item, int rc, const char *what)
{
    char file[QUIRE_STATE_FILE_NAME_MAX];

    saver->has_failed = true;
    saver->has_vanished |= rc == -ENOENT;
    if (!saver->is_failing) {
        saver->is_failing = true;
        quire_state_file_name(saver->identities[item->identity], &item->name, file);
        quire_saver_log(saver, "state: cannot %s %s: %s; tried again every %u s", what, file,
                        strerror(-rc), QUIRE_SAVER_RETRY_US / 1000000u);
    }
    count_io(saver, 0, false); /* behind the line: a reader of the figure finds it in the log */
}

static void write_new(quire_saver *saver, quire_saved_list *wanted)
{
    for (uint32_t i = 0; i < wanted->n; i++) {
        quire_saved_item *item = &wanted->items[i];
        int rc;

        if (item->bytes == NULL) {
            continue;
        }
        rc = quire_state_dir_write(saver->dirs[item->identity], &item->name, item->bytes,
                                   item->n_bytes);
        free(item->bytes);
        item->bytes = NULL;
        if (rc < 0) {
            item->change = QUIRE_SAVED_STALE; /* so that it differs from its source */
            failed(saver, item, rc, "write");
        } else {
            item->is_on_disk = true;
            count_io(saver, item->n_bytes, true);
        }
    }
}

/* Remove the files of items that no source has any more. An item whose file cannot be removed stays
 * in the list. */
static void remove_old(quire_saver *saver, const quire_saved_list *old, quire_saved_list *wanted)
{
    quire_saved_list left = { 0 };

    for (uint32_t i = 0; i < old->n; i++) {
        quire_saved_item item = old->items[i];
        int rc;

        if (!item.is_on_disk || quire_saved_list_find(wanted, &item.name, item.identity) != NULL) {
            continue;
        }
        rc = quire_state_dir_remove(saver->dirs[item.identity], &item.name);
        if (rc < 0) {
            item.change = QUIRE_SAVED_STALE;
            failed(saver, &item, rc, "remove");
            (void)quire_saved_list_add(&left, &item);
        }
    }
    for (uint32_t i = 0; i < left.n; i++) { /* now: the list may move as it grows */
        (void)quire_saved_list_add(wanted, &left.items[i]);
    }
    left.n = 0; /* the items are the other list's */
    quire_saved_list_fini(&left);
}

/* Make the files equal to the source. Afterwards the list has the gathered items. An item whose
 * identity has changed is written before the older one goes. */
static void settle(quire_saver *saver, quire_saved_list *list, quire_saved_list *wanted)
{
    quire_saved_list_sort(wanted);
    write_new(saver, wanted);
    remove_old(saver, list, wanted);
    quire_saved_list_sort(wanted);
    list->n = 0; /* its items have no bytes */
    quire_saved_list_fini(list);
    *list = *wanted;
}

/* Sessions make room for the others, later in the same round. */
static uint64_t room_for(const quire_saver *saver, quire_state_kind kind)
{
    uint64_t n_bytes = 0;

    for (uint32_t k = 0; k < QUIRE_STATE_KIND_COUNT; k++) {
        n_bytes += k != (uint32_t)kind && k != QUIRE_STATE_SESSION
                       ? quire_saved_list_bytes(&saver->lists[k])
                       : 0;
    }
    return n_bytes < saver->opts.bytes_max ? saver->opts.bytes_max - n_bytes : 0;
}

/* Returns whether something was written or removed. */
static bool kind_round(quire_saver *saver, quire_state_kind kind, bool is_last)
{
    const uint64_t changes = changes_of(saver, kind, is_last);
    gathering g = { .saver = saver,
                    .old = &saver->lists[kind],
                    .room_bytes = room_for(saver, kind),
                    .how.clock = quire_saver_clock(saver) };

    if (changes == saver->seen[kind] && !saver->is_behind[kind]) {
        return false;
    }
    saver->has_failed = false;
    saver->is_behind[kind] = false;
    if (source_take(&g, kind, changes) < 0 || g.is_short) {
        quire_saved_list_fini(&g.wanted);
        saver->is_behind[kind] = !is_last;
        saver->has_failed = true;
        return false;
    }
    settle(saver, &saver->lists[kind], &g.wanted);
    if (saver->has_vanished) {
        saver->has_vanished = false;
        forget_disk(saver);
    }
    saver->seen[kind] = changes;
    saver->left_out[kind] = g.n_left_out;
    saver->is_behind[kind] |= g.is_behind || saver->has_failed;
    saver->is_behind[QUIRE_STATE_SESSION] |= kind != QUIRE_STATE_SESSION; /* their room changed */
    return true;
}

void quire_saver_figures(quire_saver *saver)
{
    (void)pthread_mutex_lock(&saver->lock);
    saver->stats.items = saver->stats.bytes = saver->stats.left_out = 0;
    for (uint32_t k = 0; k < QUIRE_STATE_KIND_COUNT; k++) {
        saver->stats.items += saver->lists[k].n;
        saver->stats.bytes += quire_saved_list_bytes(&saver->lists[k]);
        saver->stats.left_out += saver->left_out[k];
    }
    (void)pthread_mutex_unlock(&saver->lock);
}

bool quire_saver_round(quire_saver *saver, bool is_last)
{
    static const quire_state_kind order[] = { QUIRE_STATE_PIN, QUIRE_STATE_REUSE,
                                              QUIRE_STATE_SESSION };
    bool has_changed = false, has_failed = false, is_behind = false;

    for (uint32_t i = 0; i < QUIRE_STATE_KIND_COUNT; i++) {
        if (saver->opts.keeps[order[i]]) {
            saver->has_failed = false;
            has_changed |= kind_round(saver, order[i], is_last);
            has_failed |= saver->has_failed;
            is_behind |= saver->is_behind[order[i]];
        }
    }
    if (has_changed) {
        (void)quire_state_dir_sync(saver->dirs[0]);
        quire_saver_figures(saver);
    }
    if (!has_failed && has_changed && saver->is_failing) {
        saver->is_failing = false;
        quire_saver_log(saver, "state: items are written again");
    }
    saver->has_failed = has_failed;
    return is_behind && !has_failed;
}
