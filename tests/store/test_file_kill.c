/* test_file_kill.c - kill -9 of a process that writes to a cache directory, at random moments.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include "seed.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEXTS       2000u /* that go into a directory without eviction */
#define DIR_ROUNDS  20    /* rounds with one directory */
#define BATCH       4u
#define KILL_US_MAX 150000u

/* The child puts new texts, says which are durable, and reads others. */
static void child_run(const quire_file_store_opts *opts, int fd, uint32_t next)
{
    quire_store *store = kit_open(opts);

    for (;; next += BATCH) {
        quire_transfer *list[BATCH];

        for (uint32_t i = 0; i < BATCH; i++) {
            list[i] = kit_put_new(1, (next + i) % TEXTS);
            list[i]->owner = (void *)(uintptr_t)((next + i) % TEXTS);
        }
        store->ops->put(store, list, BATCH);
        for (uint32_t i = 0; i < BATCH; i++) {
            quire_transfer *t = kit_wait(store);
            const uint32_t text = (uint32_t)(uintptr_t)t->owner;

            if (t->result == QUIRE_STORE_OK) {
                (void)!write(fd, &text, sizeof text);
            }
            quire_transfer_free(t);
        }
        (void)kit_get(store, 1, next * 7 % TEXTS);
    }
}

/* Start a child, kill it, and mark the texts that it reported as durable. Returns their number. */
static uint32_t child_kill(const quire_file_store_opts *opts, uint32_t next, uint32_t after_us,
                           bool is_durable[TEXTS])
{
    const struct timespec pause = { .tv_nsec = (long)after_us * 1000 };
    uint32_t text, n = 0;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        child_run(opts, ends[1], next);
        _exit(1);
    }
    assert_true(child > 0);
    (void)close(ends[1]);
    (void)nanosleep(&pause, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    while (read(ends[0], &text, sizeof text) == (ssize_t)sizeof text) {
        assert_true(text < TEXTS);
        is_durable[text] = true;
        n++;
    }
    (void)close(ends[0]);
    return n;
}

typedef struct tally {
    uint64_t n_durable, n_hits;
} tally;

/* Durable records are there, bit by bit. */
static void look(const quire_file_store_opts *opts, const bool is_durable[TEXTS], tally *sum)
{
    static quire_store_result results[TEXTS];
    quire_store *store = kit_open(opts);

    kit_get_all(store, 1, TEXTS, results);
    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_true(results[i] == QUIRE_STORE_OK || results[i] == QUIRE_STORE_ABSENT);
        assert_true(!is_durable[i] || results[i] == QUIRE_STORE_OK);
        sum->n_durable += is_durable[i];
        sum->n_hits += results[i] == QUIRE_STORE_OK;
    }
    kit_close(store);
}

static void test_kill(void **state)
{
    const quire_reads_kind kind = *(const quire_reads_kind *)*state;
    const int n_rounds = (int)kit_count(20, 1000);
    quire_rng rng = test_rng(23);
    bool is_durable[TEXTS] = { false };
    tally sum = { 0 };
    uint32_t next = 0;
    char dir[256];

    for (int round = 0; round < n_rounds; round++) {
        quire_file_store_opts opts;

        if (round % DIR_ROUNDS == 0) {
            if (round > 0) {
                kit_dir_remove(dir);
            }
            kit_dir_make(dir);
            memset(is_durable, 0, sizeof is_durable);
            next = 0;
        }
        opts = kit_opts(dir, kind);
        opts.capacity_bytes = (uint64_t)2 * TEXTS * KIT_RECORD;
        next += child_kill(&opts, next, quire_rng_below(&rng, KILL_US_MAX), is_durable);
        look(&opts, is_durable, &sum);
    }
    kit_dir_remove(dir);
    kit_tell("kill -9, reading by %s: %d kills; %llu durable records, 0 lost; %llu hits, 0 wrong",
             kind == QUIRE_READS_POOL ? "threads" : "io_uring", n_rounds,
             (unsigned long long)sum.n_durable, (unsigned long long)sum.n_hits);
    assert_true(sum.n_durable > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_kill) };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
