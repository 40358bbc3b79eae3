/* bench_file_store.c - the file store on this disk: the rate of reads beside the disk's own, bytes
 * written per byte of new records at full load, and the time of a start.
 *
 *   bench_file_store DIR [RECORDS]
 *
 * DIR is made and emptied. Figures of one run may be compared with one another only.
 *
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/rng.h"
#include "store/file/file_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PART_BYTES    ((size_t)700 << 10)
#define UNDER_WAY     64u
#define READS_RECORDS 1500u
#define RUNS          3u

static double seconds_since(uint64_t ns)
{
    return (double)(quire_clock_ns() - ns) * 1e-9;
}

static void dir_empty(const char *dir)
{
    char path[4096];

    for (unsigned i = 0; i < 4096; i++) {
        (void)snprintf(path, sizeof path, "%s/segment-%016x.quire", dir, i);
        (void)unlink(path);
    }
}

static quire_store *store_open(const char *dir, uint64_t capacity, uint64_t segment,
                               quire_reads_kind kind)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *store;

    opts.dir = dir;
    opts.capacity_bytes = capacity;
    opts.segment_bytes = segment;
    opts.write_rate = 0;
    opts.close_ms = 60000;
    opts.reads_kind = kind;
    if (quire_file_store_create(&store, &opts, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return store;
}

static void text_set(quire_page_text *text, int32_t *token, uint32_t i)
{
    quire_prefix_key key = { .identity = { 1, 2 } };

    *token = (int32_t)i;
    memset(text, 0, sizeof *text);
    quire_prefix_key_root(&key, &text->root);
    text->parent = text->root;
    quire_prefix_key_add(&text->root, token, 1, &text->key);
    text->n_tokens = 1;
    text->tokens = token;
}

static void transfer_set(quire_transfer *t, uint32_t i, size_t part_bytes, bool is_put)
{
    unsigned char *parts[QUIRE_GROUPS_MAX];
    quire_page_text text;
    int32_t token;

    text_set(&text, &token, i);
    if (!is_put) {
        quire_transfer_text_set(t, &text);
    } else if (quire_page_record_begin(t->record, t->capacity, &text, 1, &part_bytes, parts) < 0) {
        exit(1);
    }
}

/* Move n records through the store, UNDER_WAY at once; returns how many were OK. */
static uint32_t records_move(quire_store *store, uint32_t first, uint32_t n, size_t part_bytes,
                             bool is_put)
{
    const size_t bytes = quire_page_record_bytes(1, 0, 1, &part_bytes);
    uint32_t n_sent = 0, n_back = 0, n_ok = 0;
    quire_transfer *t;

    while (n_back < n) {
        if (n_sent < n && n_sent - n_back < UNDER_WAY) {
            t = quire_transfer_new(bytes, 1);
            if (t == NULL) {
                exit(1);
            }
            transfer_set(t, first + n_sent++, part_bytes, is_put);
            is_put ? store->ops->put(store, &t, 1) : store->ops->get(store, &t, 1);
            continue;
        }
        if (store->ops->poll(store, &t, 1) == 0) {
            const struct timespec pause = { .tv_nsec = 50000 };

            (void)nanosleep(&pause, NULL);
            continue;
        }
        n_ok += t->result == QUIRE_STORE_OK;
        n_back++;
        quire_transfer_free(t);
    }
    return n_ok;
}

static void give_back(void *ctx, quire_transfer *t)
{
    (void)ctx;
    quire_transfer_free(t);
}

/* The segments from front to back, O_DIRECT, pieces of 4 MiB. */
static double disk_read(const char *dir)
{
    const size_t piece = (size_t)4 << 20;
    unsigned char *buffer = aligned_alloc(4096, piece);
    const uint64_t begin_ns = quire_clock_ns();
    double total = 0;
    char path[4096];

    for (unsigned i = 1; i < 64; i++) {
        ssize_t n;
        int fd;

        (void)snprintf(path, sizeof path, "%s/segment-%016x.quire", dir, i);
        fd = open(path, O_RDONLY | O_DIRECT);
        while (fd >= 0 && (n = read(fd, buffer, piece)) > 0) {
            total += (double)n;
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    free(buffer);
    return total / seconds_since(begin_ns) / 1e6;
}

static void reads_measure(const char *dir)
{
    static const quire_reads_kind kinds[] = { QUIRE_READS_URING, QUIRE_READS_POOL };
    quire_store *store = store_open(dir, (uint64_t)4 << 30, (uint64_t)64 << 20, QUIRE_READS_AUTO);

    (void)records_move(store, 0, READS_RECORDS, PART_BYTES, true);
    store->ops->close(store, give_back, NULL);
    for (uint32_t run = 0; run < RUNS; run++) {
        (void)printf("disk, sequential, O_DIRECT: %.0f MB/s\n", disk_read(dir));
        for (int k = 0; k < 2; k++) {
            uint64_t begin_ns;
            uint32_t n_ok;

            store = store_open(dir, (uint64_t)4 << 30, (uint64_t)64 << 20, kinds[k]);
            begin_ns = quire_clock_ns();
            n_ok = records_move(store, 0, READS_RECORDS, PART_BYTES, false);
            (void)printf("store, %s: %.0f MB/s, %u of %u records\n",
                         quire_file_store_reads_name(store),
                         (double)n_ok * (double)PART_BYTES / seconds_since(begin_ns) / 1e6, n_ok,
                         READS_RECORDS);
            store->ops->close(store, give_back, NULL);
        }
    }
    dir_empty(dir);
}

/* Put four times the capacity, and get records of the newer half all the time. */
static void amplification_measure(const char *dir)
{
    quire_store *store = store_open(dir, (uint64_t)128 << 20, (uint64_t)8 << 20, QUIRE_READS_AUTO);
    quire_rng rng = { 1 };
    quire_store_stats stats;

    for (uint32_t i = 0; i < 4000; i += 20) {
        (void)records_move(store, i, 20, (size_t)120 << 10, true);
        for (uint32_t g = 0; g < 10; g++) {
            const uint32_t back = quire_rng_below(&rng, 900);

            (void)records_move(store, i > back ? i - back : 0, 1, (size_t)120 << 10, false);
        }
    }
    store->ops->stats(store, &stats);
    (void)printf("written : put bytes: %.3f (%llu carried forward, %llu evicted)\n",
                 (double)stats.written_bytes_total / (double)stats.put_bytes_total,
                 (unsigned long long)stats.copied_total, (unsigned long long)stats.evicted_total);
    store->ops->close(store, give_back, NULL);
    dir_empty(dir);
}

static void start_measure(const char *dir, uint32_t n_records)
{
    quire_store *store = store_open(dir, (uint64_t)8 << 30, (uint64_t)64 << 20, QUIRE_READS_AUTO);
    quire_store_stats stats;

    (void)records_move(store, 0, n_records, (size_t)6 << 10, true);
    store->ops->close(store, give_back, NULL);
    for (uint32_t run = 0; run < RUNS; run++) {
        const uint64_t begin_ns = quire_clock_ns();

        store = store_open(dir, (uint64_t)8 << 30, (uint64_t)64 << 20, QUIRE_READS_AUTO);
        store->ops->stats(store, &stats);
        (void)printf("start with %llu records: %.1f ms\n", (unsigned long long)stats.records,
                     seconds_since(begin_ns) * 1e3);
        store->ops->close(store, give_back, NULL);
    }
    dir_empty(dir);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_file_store DIR [RECORDS]\n");
        return 2;
    }
    (void)mkdir(argv[1], 0700);
    dir_empty(argv[1]);
    reads_measure(argv[1]);
    amplification_measure(argv[1]);
    start_measure(argv[1], argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 100000);
    return 0;
}
