/* fetch_file.h - one file from a URL into a partial file beside its place, verified.
 *
 * The partial file is PATH.ID.partial, where ID names the content: the first digits of the expected
 * hash, or of the hash of the server's etag and size. A later call therefore goes on only where the
 * bytes belong to the same content; the bytes there are hashed again first. A server that ignores
 * ranges sends all bytes again. Without hash and etag nothing proves that two answers have the same
 * content, and each try begins anew.
 *
 * A file is complete when it has the expected size and hash. If only a size is known, that is
 * enough; if neither is known, the file is refused before its first byte.
 *
 * The caller holds the lock of the model (quire_model_lock()). Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_FETCH_FILE_H
#define QUIRE_CLI_FETCH_FILE_H

#include "cli/commands/places.h"
#include "cli/pull/http_transfer.h"
#include "cli/pull/model_files.h"

/* Free space that a download leaves on the disk. */
#define QUIRE_FETCH_SPARE_BYTES ((uint64_t)64 << 20)

typedef struct quire_fetch {
    const char *url;
    const char *token;                  /* NULL = none */
    bool is_hub;                        /* the URL is one of the hub */
    const char *path;                   /* the place that the file will have */
    uint64_t bytes;                     /* QUIRE_TRANSFER_UNKNOWN = not known */
    char sha256[QUIRE_SHA256_TEXT_MAX]; /* empty = not known */
    char git_sha1[QUIRE_SHA1_TEXT_MAX];
    char etag[QUIRE_TRANSFER_ETAG_MAX]; /* of the content, for If-Range; empty = not known */
    uint32_t stall_s;
    quire_retry retry;
    /* Progress: bytes of this file that are here. May be NULL. */
    void (*progress)(void *ctx, uint64_t bytes);
    void *progress_ctx;
    /* Results. */
    char partial[QUIRE_PLACE_MAX]; /* set by quire_fetch_prepare() */
    char commit[64];
    uint64_t resumed_bytes; /* that were here before */
} quire_fetch;

/* Ask the server by HEAD for size, etag and hash of a URL, where they are not known. A URL whose
 * hash is known may refuse to say. Errors: quire_transfer_run(), QUIRE_CORRUPT (the size is another
 * one than expected), QUIRE_INVAL (neither size nor hash). */
int quire_fetch_ask(quire_fetch *fetch, quire_error *err);

/* Set fetch->partial and tell how many bytes of it are here already. Errors: QUIRE_LIMIT,
 * QUIRE_NOMEM. */
int quire_fetch_prepare(quire_fetch *fetch, uint64_t *here_bytes, quire_error *err);

/* Fetch and verify; the file stays at fetch->partial, on the disk. Errors: quire_transfer_run(),
 * QUIRE_CORRUPT (another hash or size; nothing is kept), QUIRE_IO (the disk; the received bytes are
 * kept), QUIRE_NOMEM. fetch->sha256 is set on success. */
int quire_fetch_run(quire_fetch *fetch, quire_error *err);

/* Whether a folder's disk has room for need_bytes. Errors: QUIRE_LIMIT (it has not; err has both
 * figures). A disk that does not say counts as one with room. */
int quire_fetch_space(const char *path, uint64_t need_bytes, quire_error *err);

#endif /* QUIRE_CLI_FETCH_FILE_H */
