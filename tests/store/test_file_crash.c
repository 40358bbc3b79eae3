/* test_file_crash.c - every point at which the writer of a cache directory may crash.
 *
 * A script of puts, drops, gets and starts runs on a disk in memory, which keeps a journal. Then
 * the disk fails at each call of the journal, by each rule of mem_disk.h, and a store is opened on
 * the surviving files. Records durable before the failure are there, bit by bit, and dropped ones
 * are not. Only whole records are found, and the store goes on.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"
#include "mem_disk.h"

#include "doze.h"
#include "rounds.h"
#include "seed.h"
#include "store/file/file_visit.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TENANTS   2u  /* numbers 1 and 2 */
#define TEXTS     32u /* of each */
#define STEPS_MAX 400u
#define SEGMENT   ((uint64_t)64 << 10)
#define SEGMENTS  14u /* room for about half of the texts */

/* The fate of a record that a crash may not change. */
typedef enum fate {
    FATE_OPEN,    /* neither */
    FATE_DURABLE, /* a put has ended OK, and the record was not evicted */
    FATE_DROPPED  /* the drop is durable, since a later put is */
} fate;

typedef struct step {
    size_t n_calls; /* in the journal when it has ended */
    unsigned char fates[TENANTS][TEXTS];
} step;

typedef struct script {
    mem_disk *disk;
    quire_file_store_opts opts;
    quire_store *store;
    quire_rng rng;
    bool is_dropped[TENANTS][TEXTS];
    bool has_dropped_text[TENANTS];
    step steps[STEPS_MAX];
    uint32_t n_steps;
} script;

static quire_file_store_opts opts_of(mem_disk *disk)
{
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);

    opts.ops = mem_disk_ops(disk);
    opts.segment_bytes = SEGMENT;
    opts.capacity_bytes = SEGMENTS * SEGMENT;
    opts.reads_max = 1;
    return opts;
}

/* ---- the script ---- */

static void put_some(script *s)
{
    const uint32_t n = 1 + quire_rng_below(&s->rng, 4);
    const uint32_t tenant = quire_rng_below(&s->rng, TENANTS);
    const uint32_t first = quire_rng_below(&s->rng, TEXTS);
    quire_transfer *list[4];

    for (uint32_t i = 0; i < n; i++) {
        /* Mostly a text from its beginning on. */
        const uint32_t text =
            first % 4 == 0 ? (first + i) % TEXTS : first / KIT_CHAIN * KIT_CHAIN + i;

        list[i] = kit_put_new(tenant + 1, text);
        list[i]->is_replacing = quire_rng_below(&s->rng, 4) == 0;
        list[i]->owner = &s->is_dropped[tenant][text];
    }
    s->store->ops->put(s->store, list, n);
    for (uint32_t i = 0; i < n; i++) {
        quire_transfer *t = kit_wait(s->store);

        /* ABSENT: two of the same text, one of them replacing. */
        assert_true(t->result == QUIRE_STORE_OK || t->result == QUIRE_STORE_ABSENT);
        *(bool *)t->owner = false;
        quire_transfer_free(t);
    }
}

static void drop_some(script *s)
{
    const uint32_t tenant = quire_rng_below(&s->rng, TENANTS);
    const uint32_t text = quire_rng_below(&s->rng, TEXTS);
    const bool is_salt = quire_rng_below(&s->rng, 4) == 0;
    quire_store_drop drop = { .what = is_salt ? QUIRE_STORE_DROP_SALT : QUIRE_STORE_DROP_TEXT };
    kit_text named;

    kit_text_make(&named, tenant + 1, text);
    drop.key = named.text.key;
    drop.root = named.text.root;
    drop.salt = named.salt;
    drop.salt_bytes = named.text.salt_bytes;
    assert_int_equal(s->store->ops->drop(s->store, &drop), QUIRE_OK);
    s->has_dropped_text[tenant] |= !is_salt;
    for (uint32_t i = 0; i < TEXTS; i++) {
        s->is_dropped[tenant][i] |= is_salt || (i / KIT_CHAIN == text / KIT_CHAIN && i >= text);
    }
    /* Put a record behind the drop's marker: once it is durable, the drop is durable too. */
    assert_int_equal(kit_put(s->store, 4, s->n_steps), QUIRE_STORE_OK);
}

static void get_some(script *s)
{
    for (uint32_t i = 0; i < 4; i++) {
        (void)kit_get(s->store, 1 + quire_rng_below(&s->rng, TENANTS),
                      quire_rng_below(&s->rng, TEXTS));
    }
}

static void mark_durable(void *ctx, const quire_file_record *record)
{
    step *at = ctx;

    for (uint32_t tenant = 0; tenant < TENANTS; tenant++) {
        for (uint32_t i = 0; i < TEXTS; i++) {
            kit_text text;

            kit_text_make(&text, tenant + 1, i);
            if (memcmp(&record->key, &text.text.key, sizeof record->key) == 0) {
                at->fates[tenant][i] = FATE_DURABLE;
            }
        }
    }
}

/* Dropping a text may also drop records with a beginning that is not stored, since no one knows
 * which text they continue. */
static void orphans_unmark(const script *s, uint32_t tenant, unsigned char *fates)
{
    for (uint32_t i = 1; i < TEXTS && s->has_dropped_text[tenant]; i++) {
        if (i % KIT_CHAIN != 0 && fates[i] == FATE_DURABLE && fates[i - 1] != FATE_DURABLE) {
            fates[i] = FATE_OPEN;
        }
    }
}

static void step_end(script *s)
{
    step *at = &s->steps[s->n_steps++];

    for (uint32_t tenant = 0; tenant < TENANTS; tenant++) {
        for (uint32_t i = 0; i < TEXTS; i++) {
            at->fates[tenant][i] = s->is_dropped[tenant][i] ? FATE_DROPPED : FATE_OPEN;
        }
    }
    quire_file_store_visit(s->store, mark_durable, at);
    for (uint32_t tenant = 0; tenant < TENANTS; tenant++) {
        orphans_unmark(s, tenant, at->fates[tenant]);
    }
    at->n_calls = mem_disk_calls(s->disk);
}

static void script_run(script *s, uint32_t n_steps)
{
    s->disk = mem_disk_new();
    s->opts = opts_of(s->disk);
    s->store = kit_open(&s->opts);
    step_end(s);
    while (s->n_steps < n_steps) {
        const uint32_t choice = quire_rng_below(&s->rng, 100);

        if (choice < 65) {
            put_some(s);
        } else if (choice < 80) {
            get_some(s);
        } else if (choice < 93) {
            drop_some(s);
        } else {
            kit_close(s->store);
            s->store = kit_open(&s->opts);
        }
        step_end(s);
    }
    kit_close(s->store);
    assert_int_equal(mem_disk_open_files(s->disk), 0);
}

/* ---- after the crash ---- */

typedef struct tally {
    uint64_t n_crashes, n_durable, n_found, n_dropped, n_evicted;
} tally;

static uint64_t evicted_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats.evicted_total;
}

/* Check the store after a failure between two steps. A start after a crash may find that there is
 * no room for a segment any more; then the oldest goes, and nothing of it is carried forward. */
static void look(const script *s, quire_store *store, size_t call, bool was_evicting, tally *sum)
{
    quire_store_result results[TEXTS];
    uint32_t at = 0;

    while (at + 1 < s->n_steps && s->steps[at + 1].n_calls <= call) {
        at++;
    }
    for (uint32_t tenant = 0; tenant < TENANTS; tenant++) {
        const unsigned char *before = s->steps[at].fates[tenant];
        const unsigned char *after = s->steps[at + (at + 1 < s->n_steps)].fates[tenant];

        kit_get_all(store, tenant + 1, TEXTS, results);
        for (uint32_t i = 0; i < TEXTS; i++) {
            const unsigned char kept = before[i] == after[i] ? before[i] : FATE_OPEN;

            assert_true(results[i] == QUIRE_STORE_OK || results[i] == QUIRE_STORE_ABSENT);
            assert_true(kept != FATE_DURABLE || results[i] == QUIRE_STORE_OK || was_evicting);
            sum->n_evicted += kept == FATE_DURABLE && results[i] != QUIRE_STORE_OK;
            assert_true(kept != FATE_DROPPED || results[i] == QUIRE_STORE_ABSENT);
            sum->n_found += results[i] == QUIRE_STORE_OK;
            sum->n_durable += kept == FATE_DURABLE;
            sum->n_dropped += kept == FATE_DROPPED;
        }
    }
}

/* Open a store on a disk, look, use it. The disk stays. */
static void revive(const script *s, mem_disk *disk, size_t call, bool was_evicting, tally *sum)
{
    const quire_file_store_opts opts = opts_of(disk);
    quire_store *store = kit_open(&opts);

    sum->n_crashes++;
    look(s, store, call, was_evicting || evicted_of(store) > 0, sum);
    assert_int_equal(kit_put(store, 3, 0), QUIRE_STORE_OK);
    assert_int_equal(kit_get(store, 3, 0), QUIRE_STORE_OK);
    kit_close(store);
    assert_int_equal(mem_disk_open_files(disk), 0);
}

/* One failure, and then a second one while the store recovers from the first. */
static void crash(script *s, size_t call, mem_crash rule, tally *sum)
{
    mem_disk *disk = mem_disk_crash(s->disk, call, rule, &s->rng);
    quire_file_store_opts opts;
    quire_store *store;
    mem_disk *again;
    bool was_evicting;

    opts = opts_of(disk);
    store = kit_open(&opts); /* its recovery makes the journal */
    was_evicting = evicted_of(store) > 0;
    kit_close(store);
    again = mem_disk_crash(disk, quire_rng_below(&s->rng, (uint32_t)mem_disk_calls(disk) + 1),
                           (mem_crash)quire_rng_below(&s->rng, MEM_CRASH_RULES), &s->rng);
    revive(s, disk, call, was_evicting, sum);
    revive(s, again, call, was_evicting, sum);
    mem_disk_free(again);
    mem_disk_free(disk);
}

static void test_every_crash(void **state)
{
    const uint32_t n_steps = (uint32_t)kit_count(TEST_ROUNDS(60, 25), STEPS_MAX);
    script *s = calloc(1, sizeof *s);
    tally sum = { 0 };
    size_t n_calls;

    (void)state;
    assert_non_null(s);
    s->rng = test_rng(41);
    script_run(s, n_steps);
    n_calls = mem_disk_calls(s->disk);
    for (size_t call = 0; call <= n_calls; call += TEST_STRIDE(7u)) {
        for (uint32_t rule = 0; rule < MEM_CRASH_RULES; rule++) {
            crash(s, call, (mem_crash)rule, &sum);
        }
    }
    kit_tell("crash points: all %zu calls of a writer, %llu crashes; %llu durable records, 0 lost, "
             "%llu evicted at the start; "
             "%llu dropped, 0 found; %llu hits, 0 wrong",
             n_calls, (unsigned long long)sum.n_crashes, (unsigned long long)sum.n_durable,
             (unsigned long long)sum.n_evicted, (unsigned long long)sum.n_dropped,
             (unsigned long long)sum.n_found);
    mem_disk_free(s->disk);
    free(s);
}

/* ---- a kill, and then a crash while the next process starts ---- */

static uint64_t clock_at(void *ctx)
{
    return atomic_load((atomic_ullong *)ctx);
}

static uint64_t written_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats.written_bytes_total;
}

/* A store whose first record is durable, and of which another is written in its place, without a
 * sync: it is as good as killed. *t: the transfer that waits. */
static quire_store *killed_make(const quire_file_store_opts *opts, atomic_ullong *now_ns,
                                quire_transfer **t)
{
    quire_store *store = kit_open(opts);
    uint64_t n_written;

    *t = kit_put_new(1, 0);
    store->ops->put(store, t, 1);
    atomic_fetch_add(now_ns, 1000000000);
    quire_transfer_free(kit_wait(store));
    n_written = written_of(store);
    *t = kit_put_new(1, 0);
    (*t)->is_replacing = true;
    store->ops->put(store, t, 1);
    while (written_of(store) < n_written + KIT_RECORD) {
        test_doze();
    }
    return store;
}

/* The start finds the second record, which may not be durable. When the machine fails now, the
 * first one is still there, or the second. */
static void test_crash_of_a_start(void **state)
{
    mem_disk *disk = mem_disk_new();
    quire_file_store_opts opts = opts_of(disk);
    atomic_ullong now_ns = 1;
    quire_rng rng = test_rng(43);
    quire_store *killed, *next;
    quire_transfer *t;
    size_t first, last;

    (void)state;
    opts.clock_ns = clock_at;
    opts.clock_ctx = &now_ns;
    opts.idle_sync_ms = 1;
    killed = killed_make(&opts, &now_ns, &t);
    opts.clock_ns = NULL;
    first = mem_disk_calls(disk);
    next = kit_open(&opts); /* this disk lets two processes write */
    last = mem_disk_calls(disk);
    assert_int_equal(kit_get(next, 1, 0), QUIRE_STORE_OK);
    for (size_t call = first; call <= last; call++) {
        for (uint32_t rule = 0; rule < MEM_CRASH_RULES; rule++) {
            mem_disk *after = mem_disk_crash(disk, call, (mem_crash)rule, &rng);
            const quire_file_store_opts own = opts_of(after);
            quire_store *store = kit_open(&own);

            assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_OK);
            kit_close(store);
            mem_disk_free(after);
        }
    }
    kit_close(next);
    atomic_fetch_add(&now_ns, 1000000000);
    quire_transfer_free(kit_wait(killed));
    kit_close(killed);
    mem_disk_free(disk);
}

/* Fill the store until records are evicted. */
static void fill(const quire_file_store_opts *opts)
{
    quire_store *store = kit_open(opts);

    for (uint32_t i = 0; evicted_of(store) == 0; i++) {
        assert_int_equal(kit_put(store, 3, i), QUIRE_STORE_OK);
    }
    kit_close(store);
}

/* Several short segments go for one new segment: the oldest with a record, and behind it one with
 * the marker that drops the record. n_short: short segments behind these two, on which depends how
 * many go at once. */
static void crash_between_unlinks(uint32_t n_short)
{
    mem_disk *disk = mem_disk_new();
    const quire_file_store_opts opts = opts_of(disk);
    quire_rng rng = test_rng(44);
    size_t first;

    for (uint32_t i = 0; i < 2 + n_short; i++) {
        quire_store *store = kit_open(&opts);

        if (i == 1) {
            kit_drop(store, QUIRE_STORE_DROP_TEXT, 1, 0);
        }
        assert_int_equal(kit_put(store, 1 + (i > 0), i), QUIRE_STORE_OK); /* and the marker */
        kit_close(store);
    }
    first = mem_disk_calls(disk);
    fill(&opts);
    for (size_t call = first; call <= mem_disk_calls(disk); call++) {
        mem_disk *after = mem_disk_crash(disk, call, MEM_CRASH_LATEST, &rng);
        const quire_file_store_opts own = opts_of(after);
        quire_store *store = kit_open(&own);

        assert_int_equal(kit_get(store, 1, 0), QUIRE_STORE_ABSENT);
        kit_close(store);
        mem_disk_free(after);
    }
    mem_disk_free(disk);
}

static void test_crash_between_unlinks(void **state)
{
    (void)state;
    for (uint32_t n_short = 0; n_short < 8; n_short++) {
        crash_between_unlinks(n_short);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_crash),
        cmocka_unit_test(test_crash_of_a_start),
        cmocka_unit_test(test_crash_between_unlinks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
