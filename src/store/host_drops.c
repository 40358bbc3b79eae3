/* host_drops.c - records of the host's memory that a drop ends; see host_records.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/host_records.h"

static void drop_entry(quire_host_records *h, quire_host_entry *e)
{
    quire_host_remove(h, e, QUIRE_PREFIX_GONE_INVALIDATED);
    h->stats.dropped_total++;
}

/* Of all texts, those of the drop's salts. */
static void drop_salts(quire_host_records *h, const quire_store_drop *drop)
{
    for (quire_host_entry *e = h->newest, *older; e != NULL; e = older) {
        older = e->older;
        if (quire_store_drop_has_salt(drop, &e->record.text)) {
            drop_entry(h, e);
        }
    }
}

/* Drop all that continues the text of a key: down to a text without a child, that one, then its
 * parent. */
static void drop_branch(quire_host_records *h, const quire_page_key *key)
{
    quire_host_entry *e = quire_host_child(h, key);

    while (e != NULL) {
        quire_host_entry *child = quire_host_child(h, &e->record.text.key);

        if (child == NULL || child == e) {
            const quire_page_key parent = e->record.text.parent;

            drop_entry(h, e);
            child = quire_page_key_is(&parent, key) ? quire_host_child(h, key)
                                                    : quire_host_find(h, &parent);
        }
        e = child;
    }
}

static bool is_first(const quire_host_entry *e)
{
    return quire_page_key_is(&e->record.text.parent, &e->record.text.root);
}

/* Find out whether an entry's text is there from its beginning on, for it and all above it. */
static void look_above(const quire_host_records *h, quire_host_entry *e)
{
    quire_host_entry *top = e, *up = e;
    bool is_orphan;

    while (up != NULL && up->looked_at != h->n_drops) {
        top = up;
        up = is_first(top) ? NULL : quire_host_above(h, top);
    }
    is_orphan = up != NULL ? up->is_orphan : !is_first(top);
    while (e != up) {
        e->looked_at = h->n_drops;
        e->is_orphan = is_orphan;
        e = e != top ? quire_host_above(h, e) : up;
    }
}

/* Drop the records of a root, zeros for all, that may continue a dropped text: of the text before
 * them a part is missing. Pages leave from the end of a text, but one may come before the page in
 * front of it, and a damaged one leaves from the middle. */
static void drop_orphans(quire_host_records *h, const quire_page_key *root)
{
    static const quire_page_key zeros;
    const bool is_all = quire_page_key_is(root, &zeros);
    quire_host_entry *older;

    for (quire_host_entry *e = h->newest; e != NULL; e = e->older) {
        look_above(h, e);
    }
    for (quire_host_entry *e = h->newest; e != NULL; e = older) {
        older = e->older;
        if (e->is_orphan && (is_all || quire_page_key_is(&e->record.text.root, root))) {
            drop_entry(h, e);
        }
    }
}

void quire_host_drop_apply(quire_host_records *h, const quire_store_drop *drop)
{
    quire_host_entry *e;

    h->n_drops++;
    if (drop->what != QUIRE_STORE_DROP_TEXT && drop->what != QUIRE_STORE_DROP_BEHIND) {
        drop_salts(h, drop);
        return;
    }
    drop_orphans(h, &drop->root); /* while all of the text is there */
    drop_branch(h, &drop->key);
    e = drop->what == QUIRE_STORE_DROP_TEXT ? quire_host_find(h, &drop->key) : NULL;
    if (e != NULL) {
        drop_entry(h, e);
    }
}
