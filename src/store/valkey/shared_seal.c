/* shared_seal.c - see shared_seal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/shared_seal.h"

#include "base/check.h"
#include "base/hash128.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#define MAGIC        "QSH1"
#define MAGIC_SIZE   4u
#define AT_CHUNKS    4u
#define AT_RECORD    8u
#define AT_DROPS     12u
#define AT_EPOCHS    16u
#define AT_WHOLE     40u
#define AT_ANCESTORS 44u
#define AT_MAC       48u
#define ID_BYTES     8u

_Static_assert(AT_MAC + QUIRE_SEAL_MAC_BYTES == QUIRE_SEAL_FIXED_BYTES, "the head's layout");
_Static_assert(QUIRE_SEAL_ID_KEY_BYTES == crypto_shorthash_KEYBYTES, "a key of SipHash");

/* ---- keys ---- */

static void derive(const unsigned char master[32], const char *what, void *out, size_t n)
{
    unsigned char hash[32];

    (void)crypto_generichash(hash, sizeof hash, (const unsigned char *)what, strlen(what), master,
                             32);
    memcpy(out, hash, n);
    sodium_memzero(hash, sizeof hash);
}

int quire_seal_key_make(quire_seal_key *out, const void *secret, size_t n)
{
    unsigned char master[32];
    unsigned char fleet[QUIRE_VALKEY_FLEET_MAX / 2];

    QUIRE_FAIL_IF(n < QUIRE_SEAL_SECRET_MIN, QUIRE_INVAL);
    QUIRE_FAIL_IF(sodium_init() < 0, QUIRE_IO);
    (void)crypto_generichash(master, sizeof master, secret, n, NULL, 0);
    derive(master, "quire shared store: seal", out->mac, sizeof out->mac);
    derive(master, "quire shared store: ancestors", out->id, sizeof out->id);
    derive(master, "quire shared store: fleet", fleet, sizeof fleet);
    (void)sodium_bin2hex(out->fleet, sizeof out->fleet, fleet, sizeof fleet);
    sodium_memzero(master, sizeof master);
    return QUIRE_OK;
}

int quire_seal_key_read(quire_seal_key *out, const char *path, quire_error *err)
{
    unsigned char secret[QUIRE_SEAL_SECRET_MAX + 1];
    FILE *file = fopen(path, "rb");
    size_t n;
    int rc;

    if (file == NULL) {
        return quire_error_set_errno(err, errno, "%.200s: the secret of the shared store", path);
    }
    n = fread(secret, 1, sizeof secret, file);
    rc = ferror(file) != 0
             ? quire_error_set_errno(err, errno, "%.200s: the secret of the shared store", path)
             : QUIRE_OK;
    (void)fclose(file);
    if (rc == QUIRE_OK && (n < QUIRE_SEAL_SECRET_MIN || n > QUIRE_SEAL_SECRET_MAX)) {
        rc =
            quire_error_set(err, QUIRE_INVAL,
                            "%.200s: a secret has %u to %u bytes; `head -c 32 /dev/urandom > FILE` "
                            "makes one",
                            path, QUIRE_SEAL_SECRET_MIN, QUIRE_SEAL_SECRET_MAX);
    }
    if (rc == QUIRE_OK && quire_seal_key_make(out, secret, n) < 0) {
        rc = quire_error_set(err, QUIRE_IO, "libsodium cannot start");
    }
    sodium_memzero(secret, sizeof secret);
    return rc;
}

/* ---- heads ---- */

size_t quire_seal_bytes(const quire_seal_head *head)
{
    return QUIRE_SEAL_FIXED_BYTES + (size_t)head->n_ancestors * ID_BYTES;
}

/* The seal covers all of the head but itself. */
static void mac_make(const quire_seal_key *key, const unsigned char *bytes, size_t n_head,
                     const quire_seal_place *place, unsigned char out[QUIRE_SEAL_MAC_BYTES])
{
    const size_t n_record = (size_t)quire_le_get(bytes + AT_RECORD, 4);
    crypto_generichash_state state;

    (void)crypto_generichash_init(&state, key->mac, sizeof key->mac, QUIRE_SEAL_MAC_BYTES);
    (void)crypto_generichash_update(&state, bytes, AT_MAC);
    (void)crypto_generichash_update(&state, bytes + QUIRE_SEAL_FIXED_BYTES,
                                    n_head - QUIRE_SEAL_FIXED_BYTES);
    (void)crypto_generichash_update(&state, place->root->bytes, QUIRE_PAGE_KEY_BYTES);
    (void)crypto_generichash_update(&state, place->key->bytes, QUIRE_PAGE_KEY_BYTES);
    (void)crypto_generichash_update(&state, place->record, n_record);
    (void)crypto_generichash_final(&state, out, QUIRE_SEAL_MAC_BYTES);
}

void quire_seal_write(const quire_seal_key *key, const quire_seal_head *head,
                      const quire_seal_place *place, unsigned char *out)
{
    unsigned char *at = out + AT_CHUNKS;

    memcpy(out, MAGIC, MAGIC_SIZE);
    at = quire_le_put(at, head->n_chunks, 4);
    at = quire_le_put(at, head->record_bytes, 4);
    at = quire_le_put(at, head->n_drops, 4);
    memcpy(at, head->epochs, sizeof head->epochs);
    at = quire_le_put(out + AT_WHOLE, head->is_whole, 4);
    (void)quire_le_put(at, head->n_ancestors, 4);
    if (head->n_ancestors > 0) {
        memcpy(out + QUIRE_SEAL_FIXED_BYTES, head->ancestors, (size_t)head->n_ancestors * ID_BYTES);
    }
    mac_make(key, out, quire_seal_bytes(head), place, out + AT_MAC);
}

bool quire_seal_read(const unsigned char *bytes, size_t n, quire_seal_head *out)
{
    if (n < QUIRE_SEAL_FIXED_BYTES || memcmp(bytes, MAGIC, MAGIC_SIZE) != 0) {
        return false;
    }
    *out = (quire_seal_head){
        .n_chunks = (uint32_t)quire_le_get(bytes + AT_CHUNKS, 4),
        .record_bytes = (uint32_t)quire_le_get(bytes + AT_RECORD, 4),
        .n_drops = (uint32_t)quire_le_get(bytes + AT_DROPS, 4),
        .is_whole = quire_le_get(bytes + AT_WHOLE, 4) != 0,
        .n_ancestors = (uint32_t)quire_le_get(bytes + AT_ANCESTORS, 4),
        .ancestors = bytes + QUIRE_SEAL_FIXED_BYTES,
    };
    memcpy(out->epochs, bytes + AT_EPOCHS, sizeof out->epochs);
    return out->n_ancestors <= QUIRE_SEAL_ANCESTORS_MAX && quire_seal_bytes(out) == n &&
           out->record_bytes > 0 && out->n_chunks <= QUIRE_VALKEY_CHUNKS_MAX &&
           out->n_chunks == (out->record_bytes - 1) / QUIRE_VALKEY_CHUNK_BYTES + 1;
}

bool quire_seal_is_right(const quire_seal_key *key, const unsigned char *bytes,
                         const quire_seal_place *place)
{
    unsigned char mac[QUIRE_SEAL_MAC_BYTES];
    quire_seal_head head;

    head.n_ancestors = (uint32_t)quire_le_get(bytes + AT_ANCESTORS, 4);
    mac_make(key, bytes, quire_seal_bytes(&head), place, mac);
    return sodium_memcmp(mac, bytes + AT_MAC, sizeof mac) == 0;
}
