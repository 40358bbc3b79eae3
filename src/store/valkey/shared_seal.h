/* shared_seal.h - the seal of a record in a store that others can write to.
 *
 * A file's checksum finds damage. Here the checksum is keyed (BLAKE2b, libsodium's
 * crypto_generichash), and the key follows from a secret that the machines of a fleet share. So
 * nobody without the secret can make a record that is accepted. The seal covers the head, the key
 * and root under which the record was asked for, and every byte of the record: a record copied to
 * another key does not match. A holder of the store can still take records away, and can bring back
 * an older state of them: the same KV of the same text, or none.
 *
 * The head, little-endian, by offset:
 *     0  magic "QSH1"       4  chunks (u32)        8  record_bytes (u32)   12  drops seen (u32)
 *    16  epoch of the model    24  of the tenant   32  of the root         (8 random bytes each)
 *    40  is_whole (u32)    44  ancestors (u32)    48  seal (32 bytes)
 *    80  ancestors: 8 bytes each, from the parent on (valkey_lineage.h)
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_SHARED_SEAL_H
#define QUIRE_STORE_SHARED_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"
#include "quire/prefix.h"
#include "store/valkey/valkey_key.h"

#define QUIRE_SEAL_SECRET_MIN    32u   /* bytes of a secret */
#define QUIRE_SEAL_SECRET_MAX    4096u /* likewise */
#define QUIRE_SEAL_MAC_BYTES     32u
#define QUIRE_SEAL_ID_KEY_BYTES  16u
#define QUIRE_SEAL_EPOCH_BYTES   8u
#define QUIRE_SEAL_FIXED_BYTES   80u
#define QUIRE_SEAL_ANCESTORS_MAX 65536u

/* The keys that follow from a secret. */
typedef struct quire_seal_key {
    unsigned char mac[QUIRE_SEAL_MAC_BYTES];
    unsigned char id[QUIRE_SEAL_ID_KEY_BYTES]; /* of ancestors' ids */
    char fleet[QUIRE_VALKEY_FLEET_MAX + 1];    /* in the names of keys */
} quire_seal_key;

typedef enum quire_epoch_of {
    QUIRE_EPOCH_MODEL,
    QUIRE_EPOCH_TENANT,
    QUIRE_EPOCH_ROOT,
    QUIRE_EPOCH_COUNT
} quire_epoch_of;

typedef struct quire_seal_head {
    uint32_t n_chunks;
    uint32_t record_bytes;
    uint32_t n_drops; /* of the root, that the writer had seen */
    unsigned char epochs[QUIRE_EPOCH_COUNT][QUIRE_SEAL_EPOCH_BYTES];
    bool is_whole; /* the ancestors reach the beginning of the text */
    uint32_t n_ancestors;
    const unsigned char *ancestors; /* [8 * n_ancestors], unaligned */
} quire_seal_head;

/* A record and the place where it is kept. */
typedef struct quire_seal_place {
    const quire_page_key *root;
    const quire_page_key *key;
    const unsigned char *record; /* [head->record_bytes] */
} quire_seal_place;

/* Errors: QUIRE_INVAL (too short), QUIRE_IO (libsodium cannot start). */
int quire_seal_key_make(quire_seal_key *out, const void *secret, size_t n);
/* From a file: QUIRE_SEAL_SECRET_MIN to QUIRE_SEAL_SECRET_MAX bytes, all of which count. Errors:
 * QUIRE_INVAL, QUIRE_IO, with a message that names the file. */
int quire_seal_key_read(quire_seal_key *out, const char *path, quire_error *err);

/* Bytes of a head. */
size_t quire_seal_bytes(const quire_seal_head *head);
/* Write a head, sealed. out: [quire_seal_bytes()]. Cost: one pass over the record. */
void quire_seal_write(const quire_seal_key *key, const quire_seal_head *head,
                      const quire_seal_place *place, unsigned char *out);
/* Read the fields of a head; nothing is verified but lengths. False: these bytes are no head. The
 * ancestors point into bytes. */
bool quire_seal_read(const unsigned char *bytes, size_t n, quire_seal_head *out);
/* Whether the seal of a read head is that of head and place. Cost: one pass over the record. */
bool quire_seal_is_right(const quire_seal_key *key, const unsigned char *bytes,
                         const quire_seal_place *place);

#endif /* QUIRE_STORE_SHARED_SEAL_H */
