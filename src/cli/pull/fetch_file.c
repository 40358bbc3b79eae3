/* fetch_file.c - see fetch_file.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/fetch_file.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/talk.h"
#include "cli/pull/file_digest.h"
#include "cli/pull/model_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)1 << 18) /* of one read of the bytes that are here already */
#define ID_DIGITS   16

typedef struct fetching {
    quire_fetch *fetch;
    int fd;
    uint64_t bytes; /* of the partial file, all of them hashed */
    quire_digest *sha256;
    quire_digest *git_sha1; /* NULL unless the file has one */
    bool can_resume;
} fetching;

/* ---- before ---- */

static int check_size(quire_fetch *fetch, uint64_t bytes, quire_error *err)
{
    if (bytes == QUIRE_TRANSFER_UNKNOWN) {
        return QUIRE_OK;
    }
    if (fetch->bytes == QUIRE_TRANSFER_UNKNOWN) {
        fetch->bytes = bytes;
    }
    return bytes == fetch->bytes
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_CORRUPT,
                                 "%.200s has %llu bytes, and %llu were promised: the file has "
                                 "changed, or this is another one",
                                 fetch->url, (unsigned long long)bytes,
                                 (unsigned long long)fetch->bytes);
}

static bool is_sha256(const char *text)
{
    return strlen(text) == QUIRE_SHA256_TEXT_MAX - 1 &&
           strspn(text, "0123456789abcdef") == QUIRE_SHA256_TEXT_MAX - 1;
}

static bool is_get_alone(long status)
{
    return status == 400 || status == 403 || status == 405 || status == 501;
}

/* Some servers, and links that are signed for GET, refuse HEAD. What it would tell is not needed
 * where the hash is known; a file that is refused to GET too fails there. */
static int head_refused(const quire_fetch *fetch, int rc, quire_error *err)
{
    char said[QUIRE_ERROR_MESSAGE_MAX];

    if (fetch->sha256[0] != '\0') {
        return QUIRE_OK;
    }
    (void)snprintf(said, sizeof(said), "%s", err->message);
    return quire_error_set(err, rc,
                           "%.300s; if it refuses only to tell the size (HEAD), --sha256 makes "
                           "that needless",
                           said);
}

int quire_fetch_ask(quire_fetch *fetch, quire_error *err)
{
    const quire_transfer transfer = {
        .url = fetch->url,
        .token = fetch->token,
        .is_hub = fetch->is_hub,
        .is_head = true,
        .stall_s = fetch->stall_s,
    };
    quire_retry retry = fetch->retry;
    quire_transfer_head head;
    int rc;

    do {
        rc = quire_transfer_run(&transfer, &head, err);
    } while (rc < 0 && (rc = quire_retry_wait(&retry, false, &head, rc, err)) == QUIRE_OK);
    if (rc < 0) {
        return rc == QUIRE_INVAL && !fetch->is_hub && is_get_alone(head.status)
                   ? head_refused(fetch, rc, err)
                   : rc;
    }
    memcpy(fetch->commit, head.commit, sizeof(fetch->commit));
    memcpy(fetch->etag, head.etag, sizeof(fetch->etag));
    if (fetch->sha256[0] == '\0' && is_sha256(head.linked_etag)) {
        memcpy(fetch->sha256, head.linked_etag, sizeof(fetch->sha256));
    }
    QUIRE_TRY(check_size(fetch, head.linked_size, err));
    QUIRE_TRY(check_size(fetch, head.length, err));
    if (fetch->bytes == QUIRE_TRANSFER_UNKNOWN && fetch->sha256[0] == '\0') {
        return quire_error_set(err, QUIRE_INVAL,
                               "%.200s: the server says neither the size nor the hash of the file, "
                               "so nothing would tell a whole file from a part: --sha256 gives the "
                               "hash",
                               fetch->url);
    }
    return QUIRE_OK;
}

/* The first digits of a hash that names the content; empty when nothing does. */
static int content_id(const quire_fetch *fetch, char out[ID_DIGITS + 1], quire_error *err)
{
    char text[QUIRE_SHA256_TEXT_MAX];
    quire_digest *digest;
    bool is_made;

    out[0] = '\0';
    if (fetch->sha256[0] != '\0' || fetch->git_sha1[0] != '\0') {
        (void)snprintf(out, ID_DIGITS + 1, "%.16s",
                       fetch->sha256[0] != '\0' ? fetch->sha256 : fetch->git_sha1);
        return QUIRE_OK;
    }
    if (fetch->etag[0] == '\0') {
        return QUIRE_OK;
    }
    digest = quire_digest_new(false, 0);
    is_made = digest != NULL && quire_digest_add(digest, fetch->url, strlen(fetch->url) + 1) &&
              quire_digest_add(digest, fetch->etag, strlen(fetch->etag) + 1) &&
              quire_digest_add(digest, &fetch->bytes, sizeof(fetch->bytes)) &&
              quire_digest_text(digest, text);
    quire_digest_free(digest);
    if (!is_made) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    (void)snprintf(out, ID_DIGITS + 1, "%.16s", text);
    return QUIRE_OK;
}

int quire_fetch_prepare(quire_fetch *fetch, uint64_t *here_bytes, quire_error *err)
{
    char id[ID_DIGITS + 1];
    struct stat status;
    int n;

    *here_bytes = 0;
    QUIRE_TRY(content_id(fetch, id, err));
    n = snprintf(fetch->partial, sizeof(fetch->partial), "%s.%s" QUIRE_MODEL_PARTIAL_SUFFIX,
                 fetch->path, id[0] != '\0' ? id : "new");
    if (n < 0 || n >= (int)sizeof(fetch->partial)) {
        return quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", fetch->path);
    }
    quire_model_partials_remove(fetch->path, strrchr(fetch->partial, '/') + 1);
    if (id[0] != '\0' && stat(fetch->partial, &status) == 0) {
        *here_bytes = (uint64_t)status.st_size;
    }
    return QUIRE_OK;
}

int quire_fetch_space(const char *path, uint64_t need_bytes, quire_error *err)
{
    char folder[QUIRE_PLACE_MAX];
    struct statvfs disk;
    uint64_t free_bytes;
    char need[16];
    char there[16];

    (void)snprintf(folder, sizeof(folder), "%s", path);
    /* The nearest folder that exists already. */
    while (statvfs(folder, &disk) != 0) {
        char *slash = strrchr(folder, '/');

        if (slash == NULL || slash == folder) {
            return QUIRE_OK;
        }
        *slash = '\0';
    }
    free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (free_bytes >= QUIRE_FETCH_SPARE_BYTES &&
        free_bytes - QUIRE_FETCH_SPARE_BYTES >= need_bytes) {
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_LIMIT,
                           "no room in %.200s: %s are to come, and %s are free, of which 67 MB are "
                           "left alone (QUIRE_MODELS names another folder)",
                           folder, quire_format_bytes(need_bytes, need, sizeof(need)),
                           quire_format_bytes(free_bytes, there, sizeof(there)));
}

/* ---- the partial file ---- */

static int fail_disk(const fetching *f, quire_error *err)
{
    const int kept = errno;
    char here[16];

    if (kept == ENOSPC || kept == EFBIG || kept == EDQUOT) {
        return quire_error_set_errno(err, kept,
                                     "the disk is full: %s of %.200s are kept, and 'quire pull' "
                                     "goes on from there",
                                     quire_format_bytes(f->bytes, here, sizeof(here)),
                                     f->fetch->path);
    }
    return quire_error_set_errno(err, kept, "cannot write %.300s", f->fetch->partial);
}

static int restart(fetching *f, quire_error *err)
{
    char text[QUIRE_SHA256_TEXT_MAX];

    f->bytes = 0;
    f->fetch->resumed_bytes = 0;              /* the bytes that were here are of no use */
    (void)quire_digest_text(f->sha256, text); /* begins anew */
    if (f->git_sha1 != NULL) {
        (void)quire_digest_text(f->git_sha1, text);
    }
    return ftruncate(f->fd, 0) == 0 && lseek(f->fd, 0, SEEK_SET) == 0 ? QUIRE_OK
                                                                      : fail_disk(f, err);
}

static bool hash(fetching *f, const void *data, size_t n)
{
    return quire_digest_add(f->sha256, data, n) &&
           (f->git_sha1 == NULL || quire_digest_add(f->git_sha1, data, n));
}

/* Hash the bytes that are here already. */
static int read_back(fetching *f, quire_error *err)
{
    unsigned char *buffer = malloc(CHUNK_BYTES);
    ssize_t n = 1;

    if (buffer == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    while (n > 0 && !quire_interrupt_seen()) {
        n = read(f->fd, buffer, CHUNK_BYTES);
        if (n > 0) {
            f->bytes += (uint64_t)n;
            (void)hash(f, buffer, (size_t)n);
        }
    }
    free(buffer);
    if (quire_interrupt_seen()) {
        return quire_error_set(err, QUIRE_CANCELED, "interrupted");
    }
    if (n < 0) {
        return quire_error_set_errno(err, errno, "cannot read %.300s", f->fetch->partial);
    }
    f->fetch->resumed_bytes = f->bytes;
    /* More than the file has: of another version of this program, or damaged. */
    return f->bytes <= f->fetch->bytes ? QUIRE_OK : restart(f, err);
}

/* ---- the transfer ---- */

static int on_begin(void *ctx, const quire_transfer_head *head, quire_error *err)
{
    fetching *f = ctx;

    if (f->fetch->commit[0] == '\0') {
        memcpy(f->fetch->commit, head->commit, sizeof(f->fetch->commit));
    }
    if (head->status == 206) {
        if (head->range_from != f->bytes) {
            f->can_resume = false;
            return quire_error_set(err, QUIRE_AGAIN,
                                   "%.200s: the server sent other bytes than were asked for",
                                   f->fetch->url);
        }
        return check_size(f->fetch, head->range_total, err);
    }
    QUIRE_TRY(check_size(f->fetch, head->length, err));
    return f->bytes > 0 ? restart(f, err) : QUIRE_OK;
}

static int on_body(void *ctx, const void *data, size_t n, quire_error *err)
{
    fetching *f = ctx;
    const char *at = data;
    size_t left = n;

    if (f->fetch->bytes != QUIRE_TRANSFER_UNKNOWN && n > f->fetch->bytes - f->bytes) {
        return quire_error_set(err, QUIRE_CORRUPT, "%.200s: more bytes than were promised",
                               f->fetch->url);
    }
    while (left > 0) {
        const ssize_t written = write(f->fd, at, left);

        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return fail_disk(f, err);
        }
        if (!hash(f, at, (size_t)written)) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
        at += written;
        left -= (size_t)written;
        f->bytes += (uint64_t)written;
    }
    if (f->fetch->progress != NULL) {
        f->fetch->progress(f->fetch->progress_ctx, f->bytes);
    }
    return QUIRE_OK;
}

/* One try from where the file ends. */
static int get_rest(fetching *f, quire_transfer_head *head, quire_error *err)
{
    const quire_fetch *fetch = f->fetch;
    const bool has_hash = fetch->sha256[0] != '\0' || fetch->git_sha1[0] != '\0';
    quire_transfer transfer = {
        .url = fetch->url,
        .token = fetch->token,
        .is_hub = fetch->is_hub,
        .stall_s = fetch->stall_s,
        .begin = on_begin,
        .sink = on_body,
        .ctx = f,
    };
    int rc;

    if (f->bytes > 0 && !f->can_resume) {
        QUIRE_TRY(restart(f, err));
    }
    transfer.from = f->bytes;
    transfer.if_range = !has_hash && fetch->etag[0] != '\0' ? fetch->etag : NULL;
    rc = quire_transfer_run(&transfer, head, err);
    if (rc == QUIRE_RANGE && f->bytes > 0) {
        /* The server has fewer bytes than are here: begin anew, once. */
        f->can_resume = false;
        return quire_error_set(err, QUIRE_AGAIN, "%.200s: the server has fewer bytes than are here",
                               fetch->url);
    }
    if (rc == QUIRE_OK && fetch->bytes != QUIRE_TRANSFER_UNKNOWN && f->bytes < fetch->bytes) {
        return quire_error_set(err, QUIRE_AGAIN, "%.200s: the answer ended early", fetch->url);
    }
    return rc;
}

static int get_all(fetching *f, quire_error *err)
{
    quire_retry retry = f->fetch->retry;
    quire_transfer_head head = { .retry_after_s = 0 };
    int rc = QUIRE_OK;

    if (f->bytes > 0 && f->bytes == f->fetch->bytes) {
        return QUIRE_OK;
    }
    do {
        const uint64_t before = f->bytes;

        rc = get_rest(f, &head, err);
        if (rc < 0) {
            rc = quire_retry_wait(&retry, f->can_resume && f->bytes > before, &head, rc, err);
        } else {
            break;
        }
    } while (rc == QUIRE_OK);
    return rc;
}

/* Compare the hashes of the fetched bytes with the expected ones. */
static int verify(fetching *f, quire_error *err)
{
    quire_fetch *fetch = f->fetch;
    char sha256[QUIRE_SHA256_TEXT_MAX] = { 0 };
    char git_sha1[QUIRE_SHA256_TEXT_MAX] = { 0 };

    if (!quire_digest_text(f->sha256, sha256) ||
        (f->git_sha1 != NULL && !quire_digest_text(f->git_sha1, git_sha1))) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (fetch->sha256[0] != '\0' && strcmp(fetch->sha256, sha256) != 0) {
        return quire_error_set(
            err, QUIRE_CORRUPT,
            "%.160s: the bytes have the sha256 %s, and %s was promised: nothing is "
            "kept",
            fetch->url, sha256, fetch->sha256);
    }
    if (fetch->git_sha1[0] != '\0' && strcmp(fetch->git_sha1, git_sha1) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%.160s: the bytes have another hash than was promised: nothing is "
                               "kept",
                               fetch->url);
    }
    memcpy(fetch->sha256, sha256, sizeof(fetch->sha256));
    return QUIRE_OK;
}

/* Fetch and verify. A resumed file whose hash is wrong is fetched anew, once. */
static int get_verified(fetching *f, quire_error *err)
{
    int rc;

    rc = get_all(f, err);
    if (rc == QUIRE_OK) {
        rc = verify(f, err);
    }
    if (rc == QUIRE_CORRUPT && f->fetch->resumed_bytes > 0) {
        quire_say("%s; fetching it anew", err->message);
        rc = restart(f, err);
        if (rc == QUIRE_OK) {
            rc = get_all(f, err);
        }
        if (rc == QUIRE_OK) {
            rc = verify(f, err);
        }
    }
    return rc;
}

int quire_fetch_run(quire_fetch *fetch, quire_error *err)
{
    const bool has_id =
        fetch->sha256[0] != '\0' || fetch->git_sha1[0] != '\0' || fetch->etag[0] != '\0';
    fetching f = { .fetch = fetch, .can_resume = has_id };
    int rc;

    QUIRE_CHECK(fetch->partial[0] != '\0');
    fetch->resumed_bytes = 0;
    f.sha256 = quire_digest_new(false, 0);
    f.git_sha1 = fetch->git_sha1[0] != '\0' ? quire_digest_new(true, fetch->bytes) : NULL;
    f.fd = open(fetch->partial, O_RDWR | O_CREAT | O_CLOEXEC | (has_id ? 0 : O_TRUNC), 0666);
    if (f.sha256 == NULL || (fetch->git_sha1[0] != '\0' && f.git_sha1 == NULL)) {
        rc = quire_error_set(err, QUIRE_NOMEM, "out of memory");
    } else if (f.fd < 0) {
        rc = fail_disk(&f, err);
    } else {
        rc = read_back(&f, err);
    }
    if (rc == QUIRE_OK) {
        rc = get_verified(&f, err);
    }
    if (rc == QUIRE_OK && fsync(f.fd) != 0) {
        rc = fail_disk(&f, err);
    }
    if (f.fd >= 0) {
        (void)close(f.fd);
        if (rc == QUIRE_CORRUPT || (rc < 0 && !f.can_resume) || (rc < 0 && f.bytes == 0)) {
            (void)unlink(fetch->partial);
        }
    }
    quire_digest_free(f.git_sha1);
    quire_digest_free(f.sha256);
    return rc;
}
