/* saver_restore.c - restores the items in the directory; see saver_object.h.
 *
 * Items are restored in the order of their times: sessions from the one used first, so that the
 * table's order is as before. An item comes back at devices of its identity alone. The log names an
 * item that is refused. The next round removes its file, like every file whose item no source has.
 * Two kinds of files stay, since this program cannot judge them: a file of another version, and one
 * that could not be read.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/saver/saver_object.h"

#include "base/check.h"
#include "core/prefix/prefix_learned.h"

#include <stdlib.h>
#include <string.h>

typedef struct loaded {
    quire_state_name name;
    uint32_t identity;
    uint64_t time_us;
    unsigned char *item; /* NULL = refused */
    size_t n_bytes;
    quire_state_result result;
} loaded;

typedef struct restoring {
    quire_saver *saver;
    quire_saved_clock clock;
    uint32_t identity; /* whose items are listed */
    loaded *items;
    uint32_t n, capacity;
    uint64_t n_bytes; /* of all items in memory */
    uint64_t n_refused;
    uint32_t n_sessions; /* that are still to come */
    bool is_short;       /* of memory */
} restoring;

/* ---- reading the directory ---- */

static void name_take(void *ctx, const quire_state_name *name)
{
    restoring *r = ctx;

    if (r->n == r->capacity) {
        const uint32_t capacity = r->capacity > 0 ? 2 * r->capacity : 64;
        loaded *items = realloc(r->items, capacity * sizeof *items);

        if (items == NULL) {
            r->is_short = true;
            return;
        }
        r->items = items;
        r->capacity = capacity;
    }
    r->items[r->n++] = (loaded){ .name = *name, .identity = r->identity };
}

/* Sessions go before others, and those used first before later ones. */
static bool goes_before(const loaded *a, const loaded *b)
{
    const bool is_session = a->name.kind == QUIRE_STATE_SESSION;

    return is_session != (b->name.kind == QUIRE_STATE_SESSION) ? is_session
                                                               : a->time_us < b->time_us;
}

/* Refuse one of the first n items, to make room for the others. */
static void one_refuse(restoring *r, uint32_t n)
{
    loaded *least = NULL;

    for (uint32_t i = 0; i < n; i++) {
        loaded *l = &r->items[i];

        if (l->item != NULL && (least == NULL || goes_before(l, least))) {
            least = l;
        }
    }
    if (least != NULL) {
        free(least->item);
        least->item = NULL;
        least->result = QUIRE_STATE_LIMIT_RESULT;
        r->n_bytes -= least->n_bytes;
    }
}

/* The items beyond the bound were written when it was larger. */
static void load(restoring *r, uint32_t i)
{
    loaded *l = &r->items[i];

    if (!r->saver->opts.keeps[l->name.kind]) {
        return;
    }
    l->result = quire_state_dir_read(r->saver->dirs[l->identity], &l->name, &l->item, &l->n_bytes,
                                     &l->time_us);
    r->n_bytes += l->item != NULL ? l->n_bytes : 0;
    while (r->n_bytes > 2 * r->saver->opts.bytes_max) {
        one_refuse(r, i + 1);
    }
}

static int by_time(const void *a, const void *b)
{
    const uint64_t ta = ((const loaded *)a)->time_us, tb = ((const loaded *)b)->time_us;

    return ta < tb ? -1 : ta > tb;
}

/* A session or a pin that was written under one identity after another: the process ended before it
 * could remove the older item, which is of no use. */
static void older_forget(restoring *r)
{
    for (uint32_t i = 0; r->saver->n_identities > 1 && i < r->n; i++) {
        loaded *l = &r->items[i];

        for (uint32_t j = i + 1; j < r->n && l->name.kind != QUIRE_STATE_REUSE; j++) {
            if (r->items[j].item != NULL &&
                quire_state_name_compare(&r->items[j].name, &l->name) == 0) {
                free(l->item);
                l->item = NULL;
            }
        }
    }
}

/* ---- one item ---- */

/* The devices of an identity. */
static uint32_t devices_of(const quire_saver *saver, uint32_t identity)
{
    uint32_t devices = 0;

    for (uint32_t i = 0; i < saver->devices.n; i++) {
        devices |= saver->identity_of[i] == identity ? 1u << i : 0;
    }
    return devices;
}

static uint32_t first_of(uint32_t devices)
{
    uint32_t i = 0;

    while ((devices & 1u << i) == 0) {
        i++;
    }
    return i;
}

static quire_state_result result_of(int rc)
{
    switch (rc) {
    case QUIRE_OK:
        return QUIRE_STATE_OK_RESULT;
    case QUIRE_CANCELED:
        return QUIRE_STATE_EXPIRED_RESULT;
    case QUIRE_LIMIT:
    case QUIRE_NOPAGES:
        return QUIRE_STATE_LIMIT_RESULT;
    case QUIRE_NOMEM:
        return QUIRE_STATE_IO_RESULT;
    default:
        return QUIRE_STATE_FIELDS_RESULT;
    }
}

static int pin_restore(quire_saver *saver, const quire_adapt_pin_view *pin, uint32_t devices,
                       uint64_t *change, quire_error *err)
{
    const quire_classes *classes = &saver->parts->opts->classes;
    quire_engine_pin_params params = { .name = pin->name,
                                       .tokens = pin->tokens,
                                       .n_tokens = pin->n_tokens,
                                       .ttl_s = pin->ttl_s,
                                       .tenant = pin->tenant,
                                       .tenant_bytes = pin->tenant_bytes,
                                       .is_background = true };
    quire_error why = QUIRE_ERROR_INIT;
    quire_saver_pin_place place;
    quire_retain_spec retain;

    while (params.class_index < classes->n &&
           strcmp(classes->items[params.class_index].name, pin->class_name) != 0) {
        params.class_index++;
    }
    if (params.class_index == classes->n) {
        return quire_error_set(err, QUIRE_LIMIT, "there is no class '%.40s' any more",
                               pin->class_name);
    }
    if (pin->retain[0] != '\0') {
        if (quire_retain_parse(pin->retain, &retain, &why) < 0) {
            return quire_error_set(err, QUIRE_INVAL, "retain: %s", why.message);
        }
        params.retain = &retain;
    }
    QUIRE_TRY(saver->devices.pin_restore(
        saver->devices.ctx, &(quire_saver_pin){ &params, pin->expires_us, devices }, &place, err));
    *change = quire_saver_pin_change(place.device, place.changed);
    return QUIRE_OK;
}

/* All trees of these devices begin with it. */
static int learned_restore(const quire_saver *saver, const quire_saved *saved, uint32_t devices)
{
    for (uint32_t i = 0; i < saver->devices.n; i++) {
        if ((devices & 1u << i) != 0) {
            QUIRE_TRY(quire_prefix_learned_load(quire_loop_parts_get(saver->devices.loops[i])->tree,
                                                saved->learned, saved->n_learned));
        }
    }
    return QUIRE_OK;
}

/* Hand an item that was read to its owner. */
static quire_state_result give(restoring *r, quire_saved *saved, const loaded *l, uint64_t *change,
                               quire_error *err)
{
    quire_saver *saver = r->saver;
    const uint32_t devices = devices_of(saver, l->identity);

    saved->session.device = first_of(devices);
    switch (l->name.kind) {
    case QUIRE_STATE_SESSION:
        return result_of(quire_sessions_restore(saver->parts->sessions, &saved->session,
                                                r->clock.now_us, change));
    case QUIRE_STATE_PIN:
        return result_of(pin_restore(saver, &saved->pin, devices, change, err));
    default:
        *change = 0; /* the look-ups of another process */
        return strcmp(saved->policy, saver->policy) != 0
                   ? QUIRE_STATE_LIMIT_RESULT
                   : result_of(learned_restore(saver, saved, devices));
    }
}

static void refuse(restoring *r, const loaded *l, const quire_error *err)
{
    char file[QUIRE_STATE_FILE_NAME_MAX];

    r->saver->stats.refused_total[l->result]++;
    if (l->result != QUIRE_STATE_EXPIRED_RESULT && r->n_refused++ < QUIRE_SAVER_LINES_MAX) {
        quire_state_file_name(r->saver->identities[l->identity], &l->name, file);
        quire_saver_log(r->saver, "state: %s is refused (%s%s%s); the rest is used", file,
                        quire_state_result_name(l->result), err->message[0] != '\0' ? ": " : "",
                        err->message);
    }
}

/* Whether a session is one of the oldest, beyond the size of the table. */
static bool is_beyond(restoring *r, const loaded *l)
{
    return l->name.kind == QUIRE_STATE_SESSION &&
           r->n_sessions-- > r->saver->parts->opts->sessions.sessions_max;
}

static void restore_one(restoring *r, loaded *l)
{
    const uint32_t n_vocab = r->saver->parts->desc->n_vocab;
    quire_saved_item item = { .name = l->name,
                              .identity = l->identity,
                              .charge_bytes = quire_state_charge(l->n_bytes),
                              .is_on_disk = true };
    quire_state_head head = { .name = l->name, .time_us = l->time_us };
    quire_error err = QUIRE_ERROR_INIT;
    quire_saved saved;

    if (l->item != NULL && is_beyond(r, l)) {
        l->result = QUIRE_STATE_LIMIT_RESULT;
    } else if (l->item != NULL) {
        l->result = quire_saved_read(&saved, l->item, l->n_bytes, &head, n_vocab, &r->clock);
    }
    if (l->item != NULL && l->result == QUIRE_STATE_OK_RESULT) {
        l->result = give(r, &saved, l, &item.change, &err);
        quire_saved_fini(&saved);
    }
    if (l->result != QUIRE_STATE_OK_RESULT) {
        refuse(r, l, &err);
    } else if (l->item != NULL) {
        r->saver->stats.restored_total[l->name.kind]++;
    }
    if (l->result != QUIRE_STATE_IO_RESULT && l->result != QUIRE_STATE_VERSION_RESULT &&
        quire_saved_list_add(&r->saver->lists[l->name.kind], &item) < 0) {
        r->is_short = true;
    }
}

/* ---- all ---- */

static void restore_all(restoring *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        load(r, i);
    }
    if (r->n > 1) {
        qsort(r->items, r->n, sizeof r->items[0], by_time);
    }
    older_forget(r);
    for (uint32_t i = 0; i < r->n; i++) {
        r->n_sessions += r->items[i].item != NULL && r->items[i].name.kind == QUIRE_STATE_SESSION;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        restore_one(r, &r->items[i]);
    }
    if (r->n_refused > QUIRE_SAVER_LINES_MAX) {
        quire_saver_log(r->saver, "state: %llu more items are refused",
                        (unsigned long long)(r->n_refused - QUIRE_SAVER_LINES_MAX));
    }
}

/* Where a listing fails, files that it did not name stay: the next start lists them. A session or a
 * pin that changes until then gets its file anew. */
static void list_all(restoring *r)
{
    quire_saver *saver = r->saver;

    for (; r->identity < saver->n_identities; r->identity++) {
        const uint32_t n = r->n;
        const int rc = quire_state_dir_list(saver->dirs[r->identity], name_take, r);

        if (rc < 0) {
            quire_saver_log(saver, "state: cannot list %s: %s; %s", saver->opts.dir, strerror(-rc),
                            r->n > n ? "items may be missing" : "nothing is restored");
        }
    }
}

int quire_saver_restore(quire_saver *saver, quire_error *err)
{
    restoring r = { .saver = saver, .clock = quire_saver_clock(saver) };

    list_all(&r);
    restore_all(&r);
    for (uint32_t k = 0; k < QUIRE_STATE_KIND_COUNT; k++) {
        quire_saved_list_sort(&saver->lists[k]);
        saver->is_behind[k] = true; /* refused items are to be removed */
    }
    quire_saver_figures(saver);
    for (uint32_t i = 0; i < r.n; i++) {
        free(r.items[i].item);
    }
    free(r.items);
    return r.is_short ? quire_error_set(err, QUIRE_NOMEM, "no memory to restore the state")
                      : QUIRE_OK;
}
