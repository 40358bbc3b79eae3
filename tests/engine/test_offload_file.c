/* test_offload_file.c - the file of offloaded pages: reads give the written bytes, by either
 * way of reading, with short reads, failing reads and stripes that change during a job.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "directory.h"
#include "offload/offload_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXTENT      QUIRE_OFFLOAD_STRIPE /* pages of an extent */
#define N_STRIPES   12u
#define PARTS_MAX   200u
#define BLOCK_BYTES 64u /* parts are multiples of it */

/* The operating system's calls, of which reads may be short or fail. */
typedef struct faults {
    quire_file_ops ops;
    size_t read_most;             /* bytes of one read; 0 = all */
    uint32_t n_bad_from;          /* reads from here on fail */
    const unsigned char *damaged; /* reads of these BLOCK_BYTES get a wrong one; NULL: none */
    atomic_uint n_reads;
} faults;

static ssize_t faulty_pread(void *ctx, int fd, void *buffer, size_t n, uint64_t offset)
{
    const quire_file_ops *os = quire_file_ops_default();
    faults *f = ctx;
    ssize_t n_read;

    if (atomic_fetch_add(&f->n_reads, 1) >= f->n_bad_from) {
        return -EIO;
    }
    n_read = os->pread(os->ctx, fd, buffer,
                       f->read_most != 0 && f->read_most < n ? f->read_most : n, offset);
    if (f->damaged != NULL && n_read >= (ssize_t)BLOCK_BYTES &&
        memcmp(buffer, f->damaged, BLOCK_BYTES) == 0) {
        *(unsigned char *)buffer ^= 1;
    }
    return n_read;
}

static faults faults_none(void)
{
    faults f = { .ops = *quire_file_ops_default(), .n_bad_from = UINT32_MAX };

    f.ops.pread = faulty_pread;
    return f;
}

typedef struct scene {
    quire_offload_file *file;
    size_t part_bytes[PARTS_MAX];
    size_t kept_bytes[PARTS_MAX]; /* if pages are read one by one */
    uint32_t n_parts;
    size_t page_bytes;
    unsigned char *memory[N_STRIPES]; /* an extent each */
    uint32_t slots[N_STRIPES];        /* the first of each stripe */
} scene;

static size_t padded(size_t bytes)
{
    return (bytes + QUIRE_OFFLOAD_ALIGN - 1) / QUIRE_OFFLOAD_ALIGN * QUIRE_OFFLOAD_ALIGN;
}

static void scene_open_as(scene *s, faults *f, quire_reads_kind kind, uint32_t n_parts,
                          uint32_t n_stripes, bool keeps)
{
    quire_offload_file_opts opts = { .dir = test_dir,
                                     .n_parts = n_parts,
                                     .extent_pages = EXTENT,
                                     .reads_kind = kind,
                                     .part_bytes = s->part_bytes,
                                     .kept_bytes = keeps ? s->kept_bytes : NULL,
                                     .ops = &f->ops };
    quire_error err = QUIRE_ERROR_INIT;

    *s = (scene){ .n_parts = n_parts };
    f->ops.ctx = f;
    for (uint32_t p = 0; p < n_parts; p++) {
        s->part_bytes[p] = 64u * (1 + p * 37 % 100);
        s->page_bytes += s->part_bytes[p];
        s->kept_bytes[p] = s->part_bytes[p] / 16 + p % 2 * 4;
        opts.capacity_bytes += n_stripes * (keeps ? EXTENT * padded(s->part_bytes[p])
                                                  : padded(EXTENT * s->part_bytes[p]));
    }
    assert_int_equal(quire_offload_file_open(&s->file, &opts, &err), QUIRE_OK);
}

static void scene_open(scene *s, faults *f, quire_reads_kind kind, uint32_t n_parts,
                       uint32_t n_stripes)
{
    scene_open_as(s, f, kind, n_parts, n_stripes, false);
}

static void scene_close(scene *s)
{
    quire_offload_file_close(s->file);
    for (uint32_t i = 0; i < N_STRIPES; i++) {
        free(s->memory[i]);
    }
}

/* Fill an extent with bytes of its own, and write its first n pages. */
static int stripe_write(scene *s, uint32_t i, uint32_t n)
{
    quire_page_addr addrs[QUIRE_OFFLOAD_STRIPE];
    quire_rng rng = { 100 + i };

    free(s->memory[i]);
    s->memory[i] = malloc(EXTENT * s->page_bytes);
    assert_non_null(s->memory[i]);
    for (size_t k = 0; k < EXTENT * s->page_bytes; k++) {
        s->memory[i][k] = (unsigned char)quire_rng_below(&rng, 256);
    }
    for (uint32_t k = 0; k < n; k++) {
        addrs[k] = (quire_page_addr){ .extent = s->memory[i], .slot = k };
    }
    return quire_offload_file_write(s->file, addrs, n, &s->slots[i]);
}

/* Read a part of the stripes i0, i0 + step, ... and compare it. Returns the job's status. */
static int part_read(scene *s, uint32_t part, uint32_t first, uint32_t step, uint32_t n)
{
    const size_t stripe_bytes = quire_offload_stripe_bytes(s->file, part);
    uint32_t stripes[N_STRIPES];
    quire_offload_job job = { .part = part, .stripes = stripes, .n_stripes = n };
    int rc;

    for (uint32_t i = 0; i < n; i++) {
        stripes[i] = s->slots[first + i * step] / QUIRE_OFFLOAD_STRIPE;
    }
    job.buffer = aligned_alloc(QUIRE_OFFLOAD_ALIGN, n * stripe_bytes);
    assert_non_null(job.buffer);
    quire_offload_job_begin(s->file, &job);
    rc = quire_offload_job_wait(s->file, &job);
    for (uint32_t i = 0; i < n && rc == QUIRE_OK; i++) {
        assert_memory_equal(job.buffer + i * stripe_bytes,
                            s->memory[first + i * step] + quire_offload_part_offset(s->file, part),
                            EXTENT * s->part_bytes[part]);
    }
    free(job.buffer);
    return rc;
}

static void page_check(scene *s, uint32_t i, uint32_t page)
{
    unsigned char *got = malloc(s->page_bytes);
    const unsigned char *at = got;

    assert_non_null(got);
    assert_int_equal(quire_offload_file_read(s->file, s->slots[i] + page, got, s->page_bytes),
                     QUIRE_OK);
    for (uint32_t p = 0; p < s->n_parts; p++) {
        assert_memory_equal(
            at, s->memory[i] + quire_offload_part_offset(s->file, p) + page * s->part_bytes[p],
            s->part_bytes[p]);
        at += s->part_bytes[p];
    }
    free(got);
}

static void same_bytes(quire_reads_kind kind, size_t read_most, uint32_t n_parts)
{
    faults f = faults_none();
    scene s;

    f.read_most = read_most;
    scene_open(&s, &f, kind, n_parts, N_STRIPES);
    for (uint32_t i = 0; i < N_STRIPES; i++) {
        assert_int_equal(stripe_write(&s, i, QUIRE_OFFLOAD_STRIPE), QUIRE_OK);
    }
    assert_int_equal(stripe_write(&s, 0, 1), QUIRE_LIMIT); /* full; nothing has changed */
    for (uint32_t p = 0; p < n_parts; p++) {
        assert_int_equal(part_read(&s, p, 0, 1, N_STRIPES), QUIRE_OK);
        assert_int_equal(part_read(&s, p, 1, 3, 3), QUIRE_OK);
    }
    page_check(&s, 3, 5);
    page_check(&s, N_STRIPES - 1, QUIRE_OFFLOAD_STRIPE - 1);
    scene_close(&s);
}

/* Pages of one part, of a few and of very many, by threads and, where it works, by io_uring. */
static void test_same_bytes(void **state)
{
    static const uint32_t n_parts[] = { 1, 2, 7, PARTS_MAX };

    (void)state;
    for (size_t i = 0; i < sizeof n_parts / sizeof *n_parts; i++) {
        same_bytes(QUIRE_READS_POOL, 0, n_parts[i]);
        same_bytes(QUIRE_READS_POOL, QUIRE_OFFLOAD_ALIGN, n_parts[i]); /* short reads */
        same_bytes(QUIRE_READS_AUTO, 0, n_parts[i]);
    }
}

/* A file for one stripe: written, given up page by page, written again. */
static void test_one_stripe(void **state)
{
    faults f = faults_none();
    scene s;

    (void)state;
    scene_open(&s, &f, QUIRE_READS_POOL, 3, 1);
    for (uint32_t n = 1; n <= QUIRE_OFFLOAD_STRIPE; n++) {
        quire_offload_file_stats stats;

        assert_int_equal(stripe_write(&s, 0, n), QUIRE_OK);
        assert_int_equal(stripe_write(&s, 1, 1), QUIRE_LIMIT);
        for (uint32_t i = 0; i < n; i++) {
            page_check(&s, 0, i);
            quire_offload_file_stats_get(s.file, &stats);
            assert_int_equal(stats.stripes_used, 1);
            quire_offload_file_release(s.file, s.slots[0] + i);
        }
        quire_offload_file_stats_get(s.file, &stats);
        assert_int_equal(stats.stripes_used, 0);
    }
    scene_close(&s);
}

/* Reads that fail in the middle of a job end the job with an error, and no other job. */
static void test_errors_in_a_job(void **state)
{
    (void)state;
    for (uint32_t n_good = 0; n_good < 6; n_good++) {
        faults f = faults_none();
        quire_offload_file_stats stats;
        scene s;

        scene_open(&s, &f, QUIRE_READS_POOL, 3, N_STRIPES);
        for (uint32_t i = 0; i < N_STRIPES; i++) {
            assert_int_equal(stripe_write(&s, i, QUIRE_OFFLOAD_STRIPE), QUIRE_OK);
        }
        f.n_bad_from = n_good;
        assert_int_equal(part_read(&s, 1, 0, 2, N_STRIPES / 2), QUIRE_IO); /* a read for each */
        quire_offload_file_stats_get(s.file, &stats);
        assert_true(stats.failures_total > 0 && !stats.is_broken);
        assert_non_null(strstr(quire_offload_file_trouble(s.file), strerror(EIO)));
        f.n_bad_from = UINT32_MAX;
        assert_int_equal(part_read(&s, 1, 0, 1, N_STRIPES), QUIRE_OK);
        scene_close(&s);
        if (n_good == N_STRIPES / 2 - 1) {
            break;
        }
    }
}

/* Stripes change, and single pages are read, while a job is under way: the job is stale, which is
 * no failure; the next job reads the current pages. */
static void test_changes_during_a_job(void **state)
{
    const uint32_t stripes[] = { 0, 1, 2, 3 };
    faults f = faults_none();
    quire_offload_job job = { .part = 2, .stripes = stripes, .n_stripes = 4 };
    quire_offload_file_stats stats;
    scene s;

    (void)state;
    scene_open(&s, &f, QUIRE_READS_POOL, 3, N_STRIPES);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(stripe_write(&s, i, QUIRE_OFFLOAD_STRIPE), QUIRE_OK);
    }
    job.buffer = aligned_alloc(QUIRE_OFFLOAD_ALIGN, 4 * quire_offload_stripe_bytes(s.file, 2));
    assert_non_null(job.buffer);
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t i = round % 4;

        quire_offload_job_begin(s.file, &job);
        page_check(&s, 4, round % QUIRE_OFFLOAD_STRIPE);
        for (uint32_t k = 0; k < QUIRE_OFFLOAD_STRIPE; k++) {
            quire_offload_file_release(s.file, s.slots[i] + k);
        }
        assert_int_equal(stripe_write(&s, i, QUIRE_OFFLOAD_STRIPE), QUIRE_OK);
        assert_int_equal(quire_offload_job_wait(s.file, &job), QUIRE_OK);
        assert_int_equal(part_read(&s, 2, 0, 1, 4), QUIRE_OK);
    }
    quire_offload_file_stats_get(s.file, &stats);
    assert_int_equal(stats.failures_total, 0);
    free(job.buffer);
    scene_close(&s);
}

/* ---- pages one by one ---- */

/* A part of a page of the scene, in memory. */
static const unsigned char *part_at(const scene *s, uint32_t stripe, uint32_t page, uint32_t part)
{
    return s->memory[stripe] + quire_offload_part_offset(s->file, part) +
           page * s->part_bytes[part];
}

/* Read a part of some pages by themselves and compare it; the others' places stay as they are. The
 * stripes come to the buffer from the last to the first. Returns the job's status. */
static int pages_read(scene *s, uint32_t part, uint32_t every)
{
    const size_t stripe_bytes = quire_offload_stripe_bytes(s->file, part);
    const size_t slot_bytes = quire_offload_slot_bytes(s->file, part);
    quire_offload_page pages[N_STRIPES * QUIRE_OFFLOAD_STRIPE];
    quire_offload_job job = { .part = part, .pages = pages };
    int rc;

    for (uint32_t k = 0; k < N_STRIPES * QUIRE_OFFLOAD_STRIPE; k++) {
        const uint32_t i = k / QUIRE_OFFLOAD_STRIPE, page = k % QUIRE_OFFLOAD_STRIPE;

        if (every == 1 || k * 5 % 7 % every == 0) {
            pages[job.n_pages++] = (quire_offload_page){
                .slot = s->slots[i] + page,
                .place = (N_STRIPES - 1 - i) * QUIRE_OFFLOAD_STRIPE + page,
            };
        }
    }
    assert_true(job.n_pages > 0);
    job.buffer = aligned_alloc(QUIRE_OFFLOAD_ALIGN, N_STRIPES * stripe_bytes);
    assert_non_null(job.buffer);
    memset(job.buffer, 0x5a, N_STRIPES * stripe_bytes);
    quire_offload_job_begin(s->file, &job);
    rc = quire_offload_job_wait(s->file, &job);
    for (uint32_t k = 0, n = 0; k < N_STRIPES * QUIRE_OFFLOAD_STRIPE && rc == QUIRE_OK; k++) {
        const uint32_t i = k / QUIRE_OFFLOAD_STRIPE, page = k % QUIRE_OFFLOAD_STRIPE;
        const unsigned char *at =
            job.buffer + (N_STRIPES - 1 - i) * stripe_bytes + page * slot_bytes;

        if (n < job.n_pages && pages[n].slot == s->slots[i] + page) {
            assert_memory_equal(at, part_at(s, i, page, part), s->part_bytes[part]);
            n++;
        } else {
            assert_int_equal(at[0], 0x5a);
            assert_int_equal(at[slot_bytes - 1], 0x5a);
        }
    }
    free(job.buffer);
    return rc;
}

/* Single pages, read by threads and by io_uring, with short reads; whole stripes and whole pages of
 * such a file; and the bytes that stay in memory. */
static void test_pages_one_by_one(void **state)
{
    static const struct {
        quire_reads_kind kind;
        size_t read_most;
    } cases[] = { { QUIRE_READS_POOL, 0 },
                  { QUIRE_READS_POOL, QUIRE_OFFLOAD_ALIGN },
                  { QUIRE_READS_AUTO, 0 } };

    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        faults f = faults_none();
        quire_offload_file_stats before, after;
        scene s;

        f.read_most = cases[c].read_most;
        scene_open_as(&s, &f, cases[c].kind, 7, N_STRIPES, true);
        for (uint32_t i = 0; i < N_STRIPES; i++) {
            assert_int_equal(stripe_write(&s, i, QUIRE_OFFLOAD_STRIPE), QUIRE_OK);
        }
        for (uint32_t p = 0; p < s.n_parts; p++) {
            for (uint32_t every = 1; every < 5; every++) {
                assert_int_equal(pages_read(&s, p, every), QUIRE_OK);
            }
            for (uint32_t k = 0; k < N_STRIPES * QUIRE_OFFLOAD_STRIPE; k++) {
                const uint32_t i = k / QUIRE_OFFLOAD_STRIPE, page = k % QUIRE_OFFLOAD_STRIPE;

                assert_memory_equal(quire_offload_kept(s.file, s.slots[i] + page, p),
                                    part_at(&s, i, page, p) + s.part_bytes[p] - s.kept_bytes[p],
                                    s.kept_bytes[p]);
            }
        }
        page_check(&s, 3, 5);
        /* Only the requested pages are read. */
        quire_offload_file_stats_get(s.file, &before);
        assert_int_equal(pages_read(&s, 0, 4), QUIRE_OK);
        quire_offload_file_stats_get(s.file, &after);
        assert_true(after.read_bytes_total - before.read_bytes_total <
                    N_STRIPES * quire_offload_stripe_bytes(s.file, 0) / 2);
        assert_int_equal(after.failures_total, 0);
        scene_close(&s);
    }
}

/* A damaged page is seen when it is read, and not by jobs without it. */
static void test_a_damaged_page(void **state)
{
    faults f = faults_none();
    quire_offload_job job = { .part = 2 };
    quire_offload_page page;
    scene s;

    (void)state;
    scene_open_as(&s, &f, QUIRE_READS_POOL, 3, N_STRIPES, true);
    for (uint32_t i = 0; i < N_STRIPES; i++) {
        assert_int_equal(stripe_write(&s, i, QUIRE_OFFLOAD_STRIPE), QUIRE_OK);
    }
    f.damaged = part_at(&s, 1, 3, 2);
    job.pages = &page;
    job.n_pages = 1;
    job.buffer = aligned_alloc(QUIRE_OFFLOAD_ALIGN, quire_offload_stripe_bytes(s.file, 2));
    assert_non_null(job.buffer);
    for (uint32_t i = 0; i < QUIRE_OFFLOAD_STRIPE; i++) {
        page = (quire_offload_page){ .slot = s.slots[1] + i, .place = i };
        quire_offload_job_begin(s.file, &job);
        assert_int_equal(quire_offload_job_wait(s.file, &job), i == 3 ? QUIRE_CORRUPT : QUIRE_OK);
    }
    free(job.buffer);
    scene_close(&s);
}

/* A file system without nameless files, on which names last. */
typedef struct named_disk {
    quire_file_ops ops;
    struct stat files[2]; /* that were opened */
    char paths[2][256];
    uint32_t n;
} named_disk;

static int named_open(void *ctx, const char *path, int flags, mode_t mode)
{
    const quire_file_ops *os = quire_file_ops_default();
    named_disk *d = ctx;
    int fd;

    if ((flags & O_TMPFILE) == O_TMPFILE) {
        return -EOPNOTSUPP;
    }
    fd = os->open(os->ctx, path, flags, mode);
    if (fd >= 0) {
        assert_true(d->n < 2);
        assert_int_equal(fstat(fd, &d->files[d->n]), 0);
        (void)snprintf(d->paths[d->n], sizeof d->paths[0], "%s", path);
        d->n++;
    }
    return fd;
}

static int named_unlink(void *ctx, const char *path)
{
    (void)ctx;
    (void)path;
    return 0;
}

/* Two devices of one process never have one file, although the names of their files begin before
 * either ends. */
static void test_two_named_files(void **state)
{
    named_disk d = { .ops = *quire_file_ops_default() };
    const size_t part_bytes = 4096;
    quire_offload_file_opts opts = { .dir = test_dir,
                                     .n_parts = 1,
                                     .extent_pages = EXTENT,
                                     .reads_kind = QUIRE_READS_POOL,
                                     .part_bytes = &part_bytes,
                                     .capacity_bytes = EXTENT * part_bytes,
                                     .ops = &d.ops };
    quire_offload_file *files[2];
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    d.ops.ctx = &d;
    d.ops.open = named_open;
    d.ops.unlink = named_unlink;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(quire_offload_file_open(&files[i], &opts, &err), QUIRE_OK);
    }
    assert_int_equal(d.n, 2);
    assert_int_not_equal(d.files[0].st_ino, d.files[1].st_ino);
    for (uint32_t i = 0; i < 2; i++) {
        quire_offload_file_close(files[i]);
        assert_int_equal(unlink(d.paths[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),       cmocka_unit_test(test_one_stripe),
        cmocka_unit_test(test_errors_in_a_job),  cmocka_unit_test(test_changes_during_a_job),
        cmocka_unit_test(test_pages_one_by_one), cmocka_unit_test(test_a_damaged_page),
        cmocka_unit_test(test_two_named_files),
    };

    return cmocka_run_group_tests_name("offload_file", tests, test_dir_make, test_dir_remove);
}
