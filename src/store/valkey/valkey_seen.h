/* valkey_seen.h - which records this process has found in the shared store, or put there: a hint
 * for callers that do not want to wait for a server.
 *
 * A record may have gone since, by its time to live or for want of room; the hint ends when a get
 * does not find it. A drop, also of another machine, ends all hints.
 *
 * Thread: its owner's, under the store's lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_SEEN_H
#define QUIRE_STORE_VALKEY_SEEN_H

#include "store/valkey/valkey_map.h"

#define QUIRE_SEEN_RECORDS (1u << 17) /* the most recent ones at least */

/* All bits zero: empty. Memory: quire_seen_forget(). */
typedef struct quire_seen {
    quire_u64_map young; /* id -> whether it is there */
    quire_u64_map old;   /* the young ones of before */
} quire_seen;

void quire_seen_note(quire_seen *seen, uint64_t id, bool is_there);
bool quire_seen_has(const quire_seen *seen, uint64_t id);
void quire_seen_forget(quire_seen *seen);

#endif /* QUIRE_STORE_VALKEY_SEEN_H */
