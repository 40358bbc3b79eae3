/* fuzz_store_dir.c - bytes as a segment's file in a directory, on a disk in memory: a store is
 * opened on it, each record that its index has is read, and the directory is opened once more.
 *
 * The first byte: bit 0, checksums are put right; bit 1, the store writes, so recovered segments
 * get a footer, and the second start finds the records that the first start read.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "mem_disk.h"
#include "store/file/file_store.h"
#include "store/file/file_visit.h"
#include "store/file/segment.h"
#include "store_mend.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX   (256u << 10)
#define RECORDS_MAX 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

typedef struct list {
    quire_file_record records[RECORDS_MAX];
    uint32_t n;
} list;

static void record_take(void *ctx, const quire_file_record *record)
{
    list *l = ctx;

    QUIRE_CHECK(record->n_bytes > 0 && record->n_bytes <= QUIRE_PAGE_RECORD_BYTES_MAX);
    QUIRE_CHECK(record->salt_bytes <= QUIRE_PREFIX_SALT_MAX);
    if (l->n < RECORDS_MAX && record->n_bytes <= BYTES_MAX) {
        l->records[l->n++] = *record;
    }
}

/* Read a record by its entry in the index. Returns whether the record verified. */
static bool record_read(quire_store *store, const quire_file_record *record)
{
    quire_transfer *t = quire_transfer_new(record->n_bytes, 0);
    const quire_page_text text = { .key = record->key,
                                   .parent = record->parent,
                                   .root = record->root,
                                   .first_token = record->first_token,
                                   .salt = record->salt,
                                   .salt_bytes = record->salt_bytes };
    bool is_ok;

    QUIRE_CHECK(t != NULL);
    quire_transfer_text_set(t, &text);
    store->ops->get(store, &t, 1);
    while (store->ops->poll(store, &t, 1) == 0) {
        (void)sched_yield();
    }
    is_ok = t->result == QUIRE_STORE_OK;
    if (is_ok) {
        QUIRE_CHECK(memcmp(&t->found.text.key, &record->key, sizeof record->key) == 0);
        QUIRE_CHECK(t->found.record_bytes == record->n_bytes);
    }
    quire_transfer_free(t);
    return is_ok;
}

static void give_back(void *ctx, quire_transfer *transfer)
{
    (void)ctx;
    quire_transfer_free(transfer);
}

/* Returns how many records verified. */
static uint32_t dir_try(mem_disk *disk, bool is_readonly)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;
    quire_store *store;
    uint32_t n_ok = 0;
    list *l = calloc(1, sizeof *l);

    QUIRE_CHECK(l != NULL);
    opts.dir = "/disk";
    opts.ops = mem_disk_ops(disk);
    opts.capacity_bytes = (uint64_t)16 << 20;
    opts.segment_bytes = (uint64_t)64 << 10;
    opts.reads_kind = QUIRE_READS_POOL;
    opts.reads_max = 1;
    opts.is_readonly = is_readonly;
    if (quire_file_store_create(&store, &opts, NULL) == QUIRE_OK) {
        quire_file_store_visit(store, record_take, l);
        for (uint32_t i = 0; i < l->n; i++) {
            n_ok += record_read(store, &l->records[i]);
        }
        store->ops->close(store, give_back, NULL);
    }
    QUIRE_CHECK(mem_disk_open_files(disk) == 0);
    free(l);
    return n_ok;
}

/* A disk with one segment file of these bytes. The number in the name of the file is the number in
 * its header, since the store ignores the footer of a file with another name. */
static mem_disk *disk_make(const unsigned char *bytes, size_t n)
{
    mem_disk *disk = mem_disk_new();
    const quire_file_ops *ops = mem_disk_ops(disk);
    quire_segment_head head = { .number = 1 };
    char path[64];
    int fd;

    if (n < QUIRE_SEGMENT_BLOCK || !quire_segment_head_read(bytes, &head) || head.number == 0) {
        head.number = 1;
    }
    (void)snprintf(path, sizeof path, "/disk/segment-%016x.quire", (unsigned)head.number);
    (void)ops->make_dir(ops->ctx, "/disk", 0700);
    fd = ops->open(ops->ctx, path, O_RDWR | O_CREAT, 0600);
    QUIRE_CHECK(fd >= 0 && ops->pwrite(ops->ctx, fd, bytes, n, 0) == (ssize_t)n);
    (void)ops->close(ops->ctx, fd);
    return disk;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const bool is_mended = size_bytes > 0 && (data[0] & 1) != 0;
    const bool is_readonly = size_bytes > 0 && (data[0] & 2) == 0;
    const size_t n = size_bytes - 1;
    unsigned char *bytes;
    mem_disk *disk;
    uint32_t n_ok;

    if (size_bytes < 2 || n > BYTES_MAX) {
        return 0;
    }
    bytes = malloc(n);
    if (bytes == NULL) {
        return 0;
    }
    memcpy(bytes, data + 1, n);
    if (is_mended && n >= QUIRE_SEGMENT_BLOCK) {
        fuzz_segment_mend(bytes, n / QUIRE_SEGMENT_BLOCK * QUIRE_SEGMENT_BLOCK);
    }
    disk = disk_make(bytes, n);
    n_ok = dir_try(disk, is_readonly);
    QUIRE_CHECK(dir_try(disk, true) == n_ok);
    mem_disk_free(disk);
    free(bytes);
    return 0;
}
