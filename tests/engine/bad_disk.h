/* bad_disk.h - the operating system's calls for files, of which some go wrong.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_BAD_DISK_H
#define QUIRE_TESTS_BAD_DISK_H

#include "doze.h"
#include "store/file/file_ops.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct bad_disk {
    quire_file_ops ops;
    uint32_t n_writes_good; /* then one write is damaged, or all fail */
    bool fails;
    bool is_stuck;         /* reads never end, until the test ends */
    bool has_stuck_writes; /* likewise */
    atomic_uint n_writes;
    atomic_bool is_over;
} bad_disk;

static inline ssize_t bad_disk_pwrite(void *ctx, int fd, const void *buffer, size_t n,
                                      uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    bad_disk *d = ctx;
    const uint32_t i = atomic_fetch_add(&d->n_writes, 1);

    while (d->has_stuck_writes && !atomic_load(&d->is_over)) {
        test_doze_ms();
    }
    if (d->fails && i >= d->n_writes_good) {
        return -ENOSPC;
    }
    if (!d->fails && i == d->n_writes_good) {
        ((unsigned char *)(uintptr_t)buffer)[n / 3] ^= 0x10; /* the owner's bounce buffer */
    }
    return os->pwrite(os->ctx, fd, buffer, n, offset);
}

static inline int bad_disk_read_begin(void *ctx, int fd, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    bad_disk *d = ctx;

    while (d->is_stuck && !atomic_load(&d->is_over)) {
        test_doze_ms();
    }
    return os->read_begin(os->ctx, fd, n, offset);
}

/* Set the calls; the other fields are set. */
static inline void bad_disk_begin(bad_disk *d)
{
    d->ops = *quire_file_ops_default();
    d->ops.pwrite = bad_disk_pwrite;
    d->ops.read_begin = bad_disk_read_begin;
    d->ops.ctx = d;
}

#endif /* QUIRE_TESTS_BAD_DISK_H */
