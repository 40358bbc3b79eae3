/* valkey_key.h - names of keys in a shared store, and the slots of a cluster.
 *
 *   quire:<fleet>:<root>:{<page key>}:h         head of a record (shared_seal.h)
 *   quire:<fleet>:<root>:{<page key>}:0 ...     the record's bytes in chunks
 *   quire:<fleet>:e:<root>                      epoch and drops of one tenant's salt of a model
 *   quire:<fleet>:t:<tenant>                    epoch of a tenant with all its salts
 *   quire:<fleet>:a:<model>                     epoch of a model
 *   quire:<fleet>:q:<tenant>:<window>           bytes that the tenant wrote in a window of time
 *   quire:<fleet>:drops                         channel: news of drops
 *
 * <fleet> is 8 hexadecimal digits that follow from the secret key: machines with different secrets
 * never meet. The others are 32 digits of 128-bit hashes. <root> follows from model, formats,
 * tenant and cache_salt, so it is a prefix of the tenant's own. The braces put head and chunks of a
 * record into one slot of a cluster, so that one MGET reads them.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_KEY_H
#define QUIRE_STORE_VALKEY_KEY_H

#include <stddef.h>
#include <stdint.h>

#include "quire/prefix.h"

#define QUIRE_VALKEY_SLOTS       16384u
#define QUIRE_VALKEY_CHUNK_BYTES 983040u /* below 1 MiB, with a margin for the server's own */
#define QUIRE_VALKEY_FLEET_MAX   8u

/* Values are bounded by QUIRE_PAGE_RECORD_BYTES_MAX / QUIRE_VALKEY_CHUNK_BYTES. */
#define QUIRE_VALKEY_CHUNKS_MAX 512u

typedef struct quire_valkey_name {
    char text[112];
    uint32_t n;
} quire_valkey_name;

/* The slot of a key: CRC16 (XMODEM) of the part in the first braces, or of all of it. */
uint16_t quire_valkey_slot(const char *key, size_t n);

/* fleet: QUIRE_VALKEY_FLEET_MAX digits and a zero byte. */
void quire_valkey_name_head(quire_valkey_name *out, const char *fleet, const quire_page_key *root,
                            const quire_page_key *key);
void quire_valkey_name_chunk(quire_valkey_name *out, const char *fleet, const quire_page_key *root,
                             const quire_page_key *key, uint32_t chunk);
/* kind: 'e', 't' or 'a'. */
void quire_valkey_name_epoch(quire_valkey_name *out, const char *fleet, char kind,
                             const quire_page_key *key);
void quire_valkey_name_quota(quire_valkey_name *out, const char *fleet,
                             const quire_page_key *tenant, uint64_t window);
void quire_valkey_name_channel(quire_valkey_name *out, const char *fleet);

#endif /* QUIRE_STORE_VALKEY_KEY_H */
