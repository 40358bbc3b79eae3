/* valkey_lineage.h - which texts a page continues: the knowledge for dropping texts.
 *
 * Dropping a text ends every text that continues it, also later, when the dropped page is stored
 * again and its old continuations could be reached through it. So each stored record names all its
 * ancestors, and a drop names a page (valkey_epoch.h): a record is ended by a drop of one of its
 * ancestors that is newer than the record.
 *
 * A page is named by an *id*: 64 bits of a keyed hash of its key (SipHash). This table remembers
 * each page's parent, as far as pages passed the store in this process: pages are put and asked for
 * in the order of their text. It keeps the QUIRE_LINEAGE_PAGES most recent ones at least. Ancestors
 * that it does not know make a list that is not *whole*; a record with such a list is ended by
 * every drop of a text of its root.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_LINEAGE_H
#define QUIRE_STORE_VALKEY_LINEAGE_H

#include "store/valkey/shared_seal.h"
#include "store/valkey/valkey_map.h"

#define QUIRE_LINEAGE_PAGES (1u << 17)

typedef struct quire_lineage {
    unsigned char key[QUIRE_SEAL_ID_KEY_BYTES];
    quire_u64_map young; /* id -> id of the parent */
    quire_u64_map old;   /* the young ones of before; forgotten when young is full */
} quire_lineage;

/* Memory: quire_lineage_fini(). */
void quire_lineage_init(quire_lineage *lineage, const quire_seal_key *key);
void quire_lineage_fini(quire_lineage *lineage);

uint64_t quire_lineage_id(const quire_lineage *lineage, const quire_page_key *page);
/* Remember a page's parent (a page, or the root). */
void quire_lineage_add(quire_lineage *lineage, uint64_t id, uint64_t parent);
/* Learn from a read record's head: its page, and the ancestors behind its parent. */
void quire_lineage_learn(quire_lineage *lineage, const quire_seal_head *head, uint64_t root);

/* The ids of the pages from `parent` up to the beginning of the text, the root not among them, 8
 * bytes each: out [8 * max]. Returns their number; *is_whole says whether the root was reached. */
uint32_t quire_lineage_list(quire_lineage *lineage, uint64_t parent, uint64_t root,
                            unsigned char *out, uint32_t max, bool *is_whole);

#endif /* QUIRE_STORE_VALKEY_LINEAGE_H */
