/* http_absent.c - in place of http_transfer.c in a build without libcurl.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/http_transfer.h"

#include "cli/pull/file_digest.h"
#include "cli/pull/http_head.h"

quire_digest *quire_digest_new(bool is_git_blob, uint64_t blob_bytes)
{
    (void)is_git_blob, (void)blob_bytes;
    return NULL;
}

void quire_digest_free(quire_digest *digest)
{
    (void)digest;
}

bool quire_digest_add(quire_digest *digest, const void *data, size_t n)
{
    (void)digest, (void)data, (void)n;
    return false;
}

bool quire_digest_text(quire_digest *digest, char out[65])
{
    (void)digest;
    out[0] = '\0';
    return false;
}

bool quire_transfer_is_built(void)
{
    return false;
}

int quire_transfer_run(const quire_transfer *transfer, quire_transfer_head *head, quire_error *err)
{
    quire_transfer_head_clear(head);
    return quire_error_set(err, QUIRE_UNSUPP,
                           "%.80s cannot be fetched: this build has no libcurl or no OpenSSL "
                           "(-DQUIRE_PULL=ON names the missing package)",
                           transfer->url);
}
