/* file_digest.c - see file_digest.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/file_digest.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct quire_digest {
    EVP_MD_CTX *ctx;
    bool is_git_blob;
    uint64_t blob_bytes;
};

static bool begin(quire_digest *digest)
{
    char header[40];
    int n;

    if (EVP_DigestInit_ex(digest->ctx, digest->is_git_blob ? EVP_sha1() : EVP_sha256(), NULL) !=
        1) {
        return false;
    }
    n = snprintf(header, sizeof(header), "blob %llu", (unsigned long long)digest->blob_bytes);
    return !digest->is_git_blob || EVP_DigestUpdate(digest->ctx, header, (size_t)n + 1) == 1;
}

quire_digest *quire_digest_new(bool is_git_blob, uint64_t blob_bytes)
{
    quire_digest *digest = calloc(1, sizeof(*digest));

    if (digest == NULL) {
        return NULL;
    }
    digest->is_git_blob = is_git_blob;
    digest->blob_bytes = blob_bytes;
    digest->ctx = EVP_MD_CTX_new();
    if (digest->ctx == NULL || !begin(digest)) {
        quire_digest_free(digest);
        return NULL;
    }
    return digest;
}

void quire_digest_free(quire_digest *digest)
{
    if (digest != NULL) {
        EVP_MD_CTX_free(digest->ctx);
        free(digest);
    }
}

bool quire_digest_add(quire_digest *digest, const void *data, size_t n)
{
    return EVP_DigestUpdate(digest->ctx, data, n) == 1;
}

bool quire_digest_text(quire_digest *digest, char out[65])
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    if (EVP_DigestFinal_ex(digest->ctx, bytes, &n) != 1 || n > 32) {
        return false;
    }
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(out + 2 * (size_t)i, 3, "%02x", bytes[i]);
    }
    return begin(digest);
}
