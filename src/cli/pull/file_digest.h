/* file_digest.h - the hashes by which a downloaded file is verified, computed while bytes come.
 *
 * sha256 of the bytes, or sha1 of a git blob ("blob SIZE", a zero byte, the bytes): the hub gives
 * one of the two for a file. By OpenSSL's libcrypto, which uses the instructions of the CPU.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_FILE_DIGEST_H
#define QUIRE_CLI_FILE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct quire_digest quire_digest;

/* is_git_blob: sha1 of a blob of blob_bytes; else sha256. NULL when out of memory.
 * Memory: quire_digest_free(). */
quire_digest *quire_digest_new(bool is_git_blob, uint64_t blob_bytes);
void quire_digest_free(quire_digest *digest);
bool quire_digest_add(quire_digest *digest, const void *data, size_t n);
/* The hash in lower-case hexadecimal digits, 64 or 40 of them, and begin anew. */
bool quire_digest_text(quire_digest *digest, char out[65]);

#endif /* QUIRE_CLI_FILE_DIGEST_H */
