/* checkpoint.c - see checkpoint.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/checkpoint.h"

#include "base/check.h"
#include "base/hash128.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC      "QUIRETRN"
#define PLACE_AT   120u
#define HASH_AT    (QUIRE_CHECKPOINT_HEAD_BYTES - QUIRE_HASH128_BYTES)
#define PATH_BYTES 4096u

_Static_assert(PLACE_AT + 8 * QUIRE_PACK_PLACE == HASH_AT, "checkpoint.h says where things lie");

static size_t arrays_bytes(const quire_checkpoint *c)
{
    return QUIRE_CHECKPOINT_ARRAYS * (size_t)c->n_parameters * sizeof(float);
}

static uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static double double_of(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void put_head(const quire_checkpoint *c, unsigned char head[QUIRE_CHECKPOINT_HEAD_BYTES])
{
    unsigned char *at = head + 8;

    memcpy(head, MAGIC, 8);
    at = quire_le_put(at, QUIRE_CHECKPOINT_VERSION, 8);
    at = quire_le_put(at, c->n_parameters, 8);
    for (uint32_t i = 0; i < QUIRE_PART_COUNT; i++) {
        at = quire_le_put(at, c->identities[i], 8);
    }
    at = quire_le_put(at, c->n_steps, 8);
    at = quire_le_put(at, c->n_tokens, 8);
    at = quire_le_put(at, bits_of(c->watch[0]), 8);
    at = quire_le_put(at, bits_of(c->watch[1]), 8);
    at = quire_le_put(at, c->level, 8);
    for (uint32_t i = 0; i < QUIRE_PACK_PLACE; i++) {
        at = quire_le_put(at, c->place[i], 8);
    }
    quire_hash128_parts(head, HASH_AT, c->arrays, arrays_bytes(c), head + HASH_AT);
}

/* Write all bytes, or return false with errno. */
static bool write_all(int fd, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;

    while (n > 0) {
        ssize_t done = write(fd, at, n);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            errno = done == 0 ? ENOSPC : errno;
            return false;
        }
        at += done;
        n -= (size_t)done;
    }
    return true;
}

/* A rename is on the disk when its directory is. */
static bool sync_directory(const char *path)
{
    char directory[PATH_BYTES];
    char *slash;
    bool is_done;
    int fd;

    (void)snprintf(directory, sizeof(directory), "%s", path);
    slash = strrchr(directory, '/');
    if (slash == NULL) {
        (void)snprintf(directory, sizeof(directory), ".");
    } else {
        slash[slash == directory] = '\0';
    }
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    is_done = fsync(fd) == 0;
    (void)close(fd);
    return is_done;
}

int quire_checkpoint_write(const char *path, const quire_checkpoint *c, quire_error *err)
{
    unsigned char head[QUIRE_CHECKPOINT_HEAD_BYTES];
    char partial[PATH_BYTES];
    bool is_written;
    int fd;

    if ((size_t)snprintf(partial, sizeof(partial), "%s.partial", path) >= sizeof(partial)) {
        return quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", path);
    }
    put_head(c, head);
    fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        return quire_error_set_errno(err, errno, "cannot write %s", partial);
    }
    is_written = write_all(fd, head, sizeof(head)) && write_all(fd, c->arrays, arrays_bytes(c)) &&
                 fsync(fd) == 0;
    if (!is_written) {
        int rc = quire_error_set_errno(err, errno, "cannot write %s", partial);

        (void)close(fd);
        (void)unlink(partial);
        return rc;
    }
    if (close(fd) != 0 || rename(partial, path) != 0 || !sync_directory(path)) {
        int rc = quire_error_set_errno(err, errno, "cannot write %s", path);

        (void)unlink(partial);
        return rc;
    }
    return QUIRE_OK;
}

/* Bytes read; fewer than n at the end of the file or after an error, with errno. */
static size_t read_all(int fd, void *bytes, size_t n)
{
    unsigned char *at = bytes;
    size_t left = n;

    while (left > 0) {
        ssize_t done = read(fd, at, left);

        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            break;
        }
        at += done;
        left -= (size_t)done;
    }
    return n - left;
}

/* The part of another run that differs, with the settings in it. */
static int identities_check(const char *path, const quire_checkpoint *c, const unsigned char *head,
                            quire_error *err)
{
    static const char *const parts[] = {
        [QUIRE_PART_TOKENIZER] = "another tokenizer",
        [QUIRE_PART_TEACHER] =
            "another teacher, distill, distill_hidden, distill_attention or shift heads",
        [QUIRE_PART_MODEL] = "another model (sizes, scheme, norms or gates)",
        [QUIRE_PART_BATCH] = "another batch (rows, context or batches of a step)",
        [QUIRE_PART_OPTIMIZER] =
            "another weight decay, clipping, kind of masters or kind of products",
        [QUIRE_PART_SEED] = "another seed",
        [QUIRE_PART_DATA] = "other documents (their length, or the share that is held out)",
    };

    for (uint32_t i = 0; i < QUIRE_PART_COUNT; i++) {
        if (quire_le_get(head + 24 + 8 * i, 8) != c->identities[i]) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "%s belongs to a run with %s: give the settings of that run, or "
                                   "another file",
                                   path, parts[i]);
        }
    }
    return QUIRE_OK;
}

static int head_check(const char *path, const quire_checkpoint *c, const unsigned char *head,
                      quire_error *err)
{
    if (memcmp(head, MAGIC, 8) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s is no checkpoint of a training run", path);
    }
    if (quire_le_get(head + 8, 8) != QUIRE_CHECKPOINT_VERSION) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: version %llu of checkpoints, known is %u: go on with the "
                               "program that wrote it, or give another file",
                               path, (unsigned long long)quire_le_get(head + 8, 8),
                               QUIRE_CHECKPOINT_VERSION);
    }
    QUIRE_TRY(identities_check(path, c, head, err));
    if (quire_le_get(head + 16, 8) != c->n_parameters) {
        return quire_error_set(err, QUIRE_INVAL, "%s has %llu parameters, this run has %llu", path,
                               (unsigned long long)quire_le_get(head + 16, 8),
                               (unsigned long long)c->n_parameters);
    }
    return QUIRE_OK;
}

static void get_head(quire_checkpoint *c, const unsigned char *head)
{
    c->n_steps = quire_le_get(head + 80, 8);
    c->n_tokens = quire_le_get(head + 88, 8);
    c->watch[0] = double_of(quire_le_get(head + 96, 8));
    c->watch[1] = double_of(quire_le_get(head + 104, 8));
    c->level = quire_le_get(head + 112, 8);
    for (uint32_t i = 0; i < QUIRE_PACK_PLACE; i++) {
        c->place[i] = quire_le_get(head + PLACE_AT + 8 * i, 8);
    }
}

static int read_open(int fd, const char *path, quire_checkpoint *c, quire_error *err)
{
    unsigned char head[QUIRE_CHECKPOINT_HEAD_BYTES], hash[QUIRE_HASH128_BYTES];
    unsigned char more;

    errno = 0;
    if (read_all(fd, head, sizeof(head)) < sizeof(head)) {
        return errno != 0 ? quire_error_set_errno(err, errno, "cannot read %s", path)
                          : quire_error_set(err, QUIRE_CORRUPT, "%s is cut short", path);
    }
    QUIRE_TRY(head_check(path, c, head, err));
    if (read_all(fd, c->arrays, arrays_bytes(c)) < arrays_bytes(c)) {
        return errno != 0 ? quire_error_set_errno(err, errno, "cannot read %s", path)
                          : quire_error_set(err, QUIRE_CORRUPT, "%s is cut short", path);
    }
    quire_hash128_parts(head, HASH_AT, c->arrays, arrays_bytes(c), hash);
    if (read_all(fd, &more, 1) != 0 || memcmp(hash, head + HASH_AT, sizeof(hash)) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT, "%s is damaged: its checksum is wrong", path);
    }
    get_head(c, head);
    return QUIRE_OK;
}

int quire_checkpoint_read(const char *path, quire_checkpoint *c, quire_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc;

    if (fd < 0) {
        rc = quire_error_set_errno(err, errno, "cannot read %s", path);
        return errno == ENOENT ? QUIRE_NOTFOUND : rc;
    }
    rc = read_open(fd, path, c, err);
    (void)close(fd);
    return rc;
}
