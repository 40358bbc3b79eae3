/* test_file_flips.c - a directory with damaged bytes: flipped bits; records that are torn, in each
 * other's places, cut, of others, or forged. Every get ends with the right record or none.
 *
 * The directory is on a disk in memory, in three states: closed, left by a crash, and without any
 * footer. Damage comes before a store is opened, while one is open, or before one that writes,
 * which is then opened again.
 *
 * Not tried: a forged record with the right key, text, tenant and sequence number, since checksums
 * find damage and do not stop an attacker (docs/tiers.md).
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"
#include "mem_disk.h"

#include "rounds.h"
#include "seed.h"
#include "store/page_record.h"

#include <stdlib.h>
#include <string.h>

#define TEXTS     16u
#define BLOCK     4096u
#define PLACES    64u
#define STATES    3u
#define FLIPS_MAX 200u /* in one directory */

/* Where a record lies. */
typedef struct place {
    uint32_t file;
    size_t offset;
} place;

/* A directory to be damaged; its copy is. */
typedef struct subject {
    mem_disk *disk;
    place places[PLACES];
    uint32_t n_places;
} subject;

typedef struct tally {
    uint64_t n_damaged, n_gets, n_hits;
} tally;

typedef void (*damage)(mem_disk *disk, const subject *s, quire_rng *rng, tally *sum);

/* ---- the directories ---- */

static quire_file_store_opts opts_of(mem_disk *disk, bool is_readonly)
{
    quire_file_store_opts opts = kit_opts("/disk", QUIRE_READS_POOL);

    opts.ops = mem_disk_ops(disk);
    opts.segment_bytes = (uint64_t)64 << 10;
    opts.reads_max = 1;
    opts.is_readonly = is_readonly;
    return opts;
}

static void places_find(subject *s)
{
    const unsigned char *bytes;
    const char *name;
    size_t n;

    for (uint32_t f = 0; (bytes = mem_disk_file(s->disk, f, &name, &n)) != NULL; f++) {
        for (size_t at = BLOCK; at + KIT_RECORD <= n; at += BLOCK) {
            if (quire_page_record_peek(bytes + at, n - at) == KIT_RECORD) {
                assert_true(s->n_places < PLACES);
                s->places[s->n_places++] = (place){ f, at };
            }
        }
    }
    assert_int_equal(s->n_places, TEXTS);
}

static void footers_cut(mem_disk *disk)
{
    const char *name;
    size_t n;

    for (uint32_t f = 0; mem_disk_file(disk, f, &name, &n) != NULL; f++) {
        if (n > 2 * BLOCK) {
            mem_disk_cut(disk, f, n - BLOCK);
        }
    }
}

static void subjects_make(subject all[STATES])
{
    mem_disk *disk = mem_disk_new();
    quire_file_store_opts opts = opts_of(disk, false);
    quire_store *store = kit_open(&opts);
    quire_rng rng = { 1 };

    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_int_equal(kit_put(store, 1, i), QUIRE_STORE_OK);
    }
    memset(all, 0, STATES * sizeof *all);
    all[1].disk = mem_disk_crash(disk, mem_disk_calls(disk), MEM_CRASH_ALL, &rng);
    kit_close(store);
    all[0].disk = mem_disk_copy(disk);
    all[2].disk = mem_disk_copy(disk);
    footers_cut(all[2].disk);
    mem_disk_free(disk);
    for (uint32_t i = 0; i < STATES; i++) {
        places_find(&all[i]);
    }
}

static void subjects_free(subject all[STATES])
{
    for (uint32_t i = 0; i < STATES; i++) {
        mem_disk_free(all[i].disk);
    }
}

/* ---- one damage ---- */

static void get_all(quire_store *store, tally *sum)
{
    quire_store_result results[TEXTS];

    kit_get_all(store, 1, TEXTS, results);
    for (uint32_t i = 0; i < TEXTS; i++) {
        assert_true(results[i] != QUIRE_STORE_IO && results[i] != QUIRE_STORE_CLOSED);
        sum->n_gets++;
        sum->n_hits += results[i] == QUIRE_STORE_OK;
    }
}

static void look(mem_disk *disk, bool is_readonly, tally *sum)
{
    const quire_file_store_opts opts = opts_of(disk, is_readonly);
    quire_store *store = kit_open(&opts);

    get_all(store, sum);
    if (!is_readonly) {
        assert_int_equal(kit_put(store, 2, 0), QUIRE_STORE_OK);
        assert_int_equal(kit_get(store, 2, 0), QUIRE_STORE_OK);
    }
    kit_close(store);
}

static void look_while(mem_disk *disk, const subject *s, damage each, quire_rng *rng, tally *sum)
{
    const quire_file_store_opts opts = opts_of(disk, true);
    quire_store *store = kit_open(&opts);

    each(disk, s, rng, sum);
    get_all(store, sum);
    kit_close(store);
}

static void damage_try(const subject *s, damage each, quire_rng *rng, tally *sum)
{
    mem_disk *disk = mem_disk_copy(s->disk);
    const uint32_t way = quire_rng_below(rng, 10);

    if (way < 5) {
        look_while(disk, s, each, rng, sum);
    } else {
        each(disk, s, rng, sum);
        look(disk, way < 9, sum);
        if (way == 9) {
            look(disk, true, sum);
        }
    }
    assert_int_equal(mem_disk_open_files(disk), 0);
    mem_disk_free(disk);
}

static void damage_many(damage each, uint64_t seed, uint64_t wanted, tally *sum)
{
    subject all[STATES];
    quire_rng rng = test_rng(seed);

    subjects_make(all);
    while (sum->n_damaged < wanted) {
        damage_try(&all[quire_rng_below(&rng, STATES)], each, &rng, sum);
    }
    assert_true(sum->n_hits > 0 && sum->n_hits < sum->n_gets);
    subjects_free(all);
}

/* ---- flipped bits ---- */

/* Flip one bit, in a file other than the lock. One flip in three is near the beginning of a block,
 * where the fields of headers, records, markers and trailers are. */
static void flip(mem_disk *disk, quire_rng *rng)
{
    unsigned char *bytes = NULL;
    const char *name;
    size_t n = 0, at;

    while (bytes == NULL || n < BLOCK) {
        bytes = mem_disk_file(disk, quire_rng_below(rng, PLACES / 4), &name, &n);
    }
    at = quire_rng_below(rng, (uint32_t)n);
    if (quire_rng_below(rng, 3) == 0) {
        at = at / BLOCK * BLOCK + quire_rng_below(rng, 128);
    }
    bytes[at < n ? at : n - 1] ^= (unsigned char)(1u << quire_rng_below(rng, 8));
}

static void flip_some(mem_disk *disk, const subject *s, quire_rng *rng, tally *sum)
{
    const uint32_t n = quire_rng_below(rng, 10) > 0 ? 1 : 1 + quire_rng_below(rng, FLIPS_MAX);

    (void)s;
    for (uint32_t i = 0; i < n; i++) {
        flip(disk, rng);
    }
    sum->n_damaged += n;
}

static void test_flips(void **state)
{
    tally sum = { 0 };

    (void)state;
    damage_many(flip_some, 51, kit_count(TEST_ROUNDS(20000, 2000), 1000000), &sum);
    kit_tell("flipped bits: %llu; %llu gets, %llu hits, 0 wrong", (unsigned long long)sum.n_damaged,
             (unsigned long long)sum.n_gets, (unsigned long long)sum.n_hits);
}

/* ---- records ---- */

static unsigned char *at_place(mem_disk *disk, const place *p)
{
    const char *name;
    size_t n;

    return mem_disk_file(disk, p->file, &name, &n) + p->offset;
}

/* From a sector on the record is another one, zeros, or noise. */
static void tear(unsigned char *record, const unsigned char *other, quire_rng *rng)
{
    const size_t from = (size_t)512 * quire_rng_below(rng, KIT_RECORD / 512);
    const uint32_t with = quire_rng_below(rng, 3);

    for (size_t i = from; i < KIT_RECORD; i++) {
        record[i] = with == 0 ? other[i] : with == 1 ? 0 : (unsigned char)quire_rng_next(rng);
    }
}

static void exchange(unsigned char *a, unsigned char *b)
{
    unsigned char record[KIT_RECORD];

    memcpy(record, a, KIT_RECORD);
    memcpy(a, b, KIT_RECORD);
    memcpy(b, record, KIT_RECORD);
}

/* Make a whole record with another payload. Its text differs from the stored one in one property:
 * tenant, identity, tokens, position, text before, or length. With has_own_key its key is that of
 * its own text, else the stored record's key. */
static void forge(unsigned char *record, bool has_own_key, quire_rng *rng)
{
    const size_t part_bytes[1] = { KIT_PAYLOAD };
    unsigned char made[KIT_RECORD], *parts[QUIRE_GROUPS_MAX];
    quire_page_record here;
    quire_page_text text;
    int32_t tokens[QUIRE_PAGE_TOKENS_MAX];

    assert_int_equal(quire_page_record_open(record, KIT_RECORD, &here), QUIRE_STORE_OK);
    quire_page_record_tokens(&here, tokens);
    text = here.text;
    text.tokens = tokens;
    switch (quire_rng_below(rng, 6)) {
    case 0:
        text.salt = "tenant-7";
        break;
    case 1:
        text.root.bytes[quire_rng_below(rng, 16)] ^= 1;
        break;
    case 2:
        tokens[quire_rng_below(rng, KIT_TOKENS)] += 1;
        break;
    case 3:
        text.first_token += KIT_TOKENS;
        break;
    case 4:
        text.parent.bytes[quire_rng_below(rng, 16)] ^= 1;
        break;
    default:
        text.n_tokens--;
        break;
    }
    if (has_own_key) {
        quire_prefix_key_add(&text.parent, tokens, text.n_tokens, &text.key);
    }
    assert_int_equal(quire_page_record_begin(made, sizeof made, &text, 1, part_bytes, parts),
                     QUIRE_OK);
    memset(parts[0], 0xee, KIT_PAYLOAD);
    quire_page_record_seal(made, here.sequence + (has_own_key ? 0 : quire_rng_below(rng, 2)));
    memcpy(record, made, KIT_RECORD);
}

static void record_change(mem_disk *disk, const subject *s, quire_rng *rng, tally *sum)
{
    const place *p = &s->places[quire_rng_below(rng, s->n_places)];
    unsigned char *a = at_place(disk, p);
    unsigned char *b = at_place(disk, &s->places[quire_rng_below(rng, s->n_places)]);

    sum->n_damaged++;
    switch (quire_rng_below(rng, 5)) {
    case 0:
        tear(a, b, rng);
        break;
    case 1:
        exchange(a, b);
        sum->n_damaged++;
        break;
    case 2:
        mem_disk_cut(disk, p->file, p->offset + quire_rng_below(rng, KIT_RECORD));
        break;
    default:
        forge(a, quire_rng_below(rng, 2) == 0, rng);
        break;
    }
}

static void test_records(void **state)
{
    tally sum = { 0 };

    (void)state;
    damage_many(record_change, 53, kit_count(TEST_ROUNDS(2000, 300), 10000), &sum);
    kit_tell("torn, swapped, cut, foreign and forged records: %llu; %llu gets, %llu hits, 0 wrong",
             (unsigned long long)sum.n_damaged, (unsigned long long)sum.n_gets,
             (unsigned long long)sum.n_hits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flips),
        cmocka_unit_test(test_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
