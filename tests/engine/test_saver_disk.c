/* test_saver_disk.c - a directory from which no file can be removed: the files stay known, and go
 * when the directory lets them. A directory with more than the bound: the items used last stay.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "base/clock.h"
#include "doze.h"
#include "file_kit.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define N_CTX     64u
#define N_DROPPED 100u /* more than a list of items has room for at first */
#define N_LARGE   8u

static _Atomic bool is_fixed; /* no file can be removed */

static int fixed_unlink(void *ctx, const char *path)
{
    return atomic_load(&is_fixed) ? -EACCES : quire_file_ops_default()->unlink(ctx, path);
}

static quire_saver_stats saver_of(const engine_bench *b)
{
    quire_engine_stats stats;

    quire_engine_stats_get(b->engine, &stats);
    return stats.saver;
}

static void session_add_of(const engine_bench *b, const char *tenant, uint32_t i, const char *text)
{
    static const int32_t tokens[] = { 1, 2, 3 };
    const quire_chat_message message = { "user", text, NULL };
    const uint64_t now_us = quire_clock_ns() / 1000u;
    char id[16];
    const quire_session_info info = { .id = id,
                                      .tenant = tenant,
                                      .tenant_bytes = (uint32_t)strlen(tenant),
                                      .created_us = now_us,
                                      .used_us = now_us,
                                      .n_turns = 1,
                                      .messages = &message,
                                      .n_messages = 1,
                                      .tokens = tokens,
                                      .n_tokens = 3 };
    uint64_t change;

    (void)snprintf(id, sizeof id, "s%u", i);
    assert_int_equal(
        quire_sessions_restore(quire_engine_sessions(b->engine), &info, now_us, &change), QUIRE_OK);
}

static void session_add(const engine_bench *b, const char *tenant, uint32_t i)
{
    session_add_of(b, tenant, i, "so it is");
}

static void session_close(const engine_bench *b, const char *tenant, uint32_t i)
{
    char id[16];
    uint64_t owner;

    (void)snprintf(id, sizeof id, "s%u", i);
    assert_int_equal(quire_sessions_close(quire_engine_sessions(b->engine), tenant,
                                          (uint32_t)strlen(tenant), id, &owner),
                     QUIRE_OK);
}

static uint32_t count_files(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    uint32_t n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        n += strncmp(entry->d_name, "state-", 6) == 0;
    }
    (void)closedir(dir);
    return n;
}

static void test_files_stay(void **state)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 1);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_file_ops ops = *quire_file_ops_default();
    engine_bench b;
    char path[256];

    (void)state;
    kit_dir_make(path);
    ops.unlink = fixed_unlink;
    opts.saver = (quire_saver_opts){
        .dir = path, .keeps[QUIRE_STATE_SESSION] = true, .round_us = 1000, .ops = &ops
    };
    b = bench_tiny(&opts, &runtime);
    session_add(&b, "kept", 0);
    for (uint32_t i = 0; i < N_DROPPED; i++) {
        session_add(&b, "gone", i);
    }
    while (saver_of(&b).written_total < N_DROPPED + 1) {
        test_doze_ms();
    }
    atomic_store(&is_fixed, true);
    for (uint32_t i = 0; i < N_DROPPED; i++) {
        session_close(&b, "gone", i);
    }
    while (saver_of(&b).failures_total < N_DROPPED || saver_of(&b).items < N_DROPPED + 1) {
        test_doze_ms();
    }
    assert_int_equal(saver_of(&b).items, N_DROPPED + 1); /* they are tried again */
    assert_int_equal(count_files(path), N_DROPPED + 1);
    atomic_store(&is_fixed, false);
    bench_close(&b);
    assert_int_equal(count_files(path), 1);
    kit_dir_remove(path);
}

static void text_make(char *text, size_t n)
{
    memset(text, 'a', n);
    text[n] = '\0';
}

/* The bound is smaller than it was: of the sessions that were used last twice the bound is
 * restored, although the first one alone is longer. */
static void test_smaller_bound(void **state)
{
    static char longest[4u << 20], large[(60u << 10) + 1];
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 1);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    engine_bench b;
    char path[256], id[16];

    (void)state;
    kit_dir_make(path);
    opts.saver = (quire_saver_opts){ .dir = path, .keeps[QUIRE_STATE_SESSION] = true };
    b = bench_tiny(&opts, &runtime);
    text_make(longest, sizeof longest - 1);
    text_make(large, sizeof large - 1);
    session_add_of(&b, "t", 0, longest);
    for (uint32_t i = 1; i <= N_LARGE; i++) {
        test_doze_ms(); /* later */
        session_add_of(&b, "t", i, large);
    }
    bench_close(&b);
    assert_int_equal(count_files(path), N_LARGE + 1);

    opts.saver.bytes_max = (uint64_t)(N_LARGE - 2) * (64u << 10) / 2;
    b = bench_tiny(&opts, &runtime);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_SESSION], N_LARGE - 2);
    assert_int_equal(saver_of(&b).refused_total[QUIRE_STATE_LIMIT_RESULT], 3);
    for (uint32_t i = 0; i <= N_LARGE; i++) {
        uint64_t owner;

        (void)snprintf(id, sizeof id, "s%u", i);
        assert_int_equal(quire_sessions_close(quire_engine_sessions(b.engine), "t", 1, id, &owner),
                         i < 3 ? QUIRE_NOTFOUND : QUIRE_OK);
    }
    bench_close(&b);
    kit_dir_remove(path);
}

/* A listing that names one file and then fails. */
typedef struct listing {
    void (*each)(void *arg, const char *name);
    void *arg;
    uint32_t n;
} listing;

static void list_first(void *arg, const char *name)
{
    listing *l = arg;

    if (strncmp(name, "state-", 6) == 0 && l->n++ == 0) {
        l->each(l->arg, name);
    }
}

static int list_fails(void *ctx, const char *path, void (*each)(void *arg, const char *name),
                      void *arg)
{
    listing l = { each, arg, 0 };

    (void)quire_file_ops_default()->list(ctx, path, list_first, &l);
    return -EIO;
}

static char listing_said[256];

static void listing_log(void *ctx, const char *line)
{
    (void)ctx;
    if (strstr(line, "cannot list") != NULL) {
        (void)snprintf(listing_said, sizeof listing_said, "%s", line);
    }
}

/* Items that a failed listing named are restored; the others come back with the next start. */
static void test_part_of_a_listing(void **state)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 1);
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;
    quire_file_ops ops = *quire_file_ops_default();
    engine_bench b;
    char path[256];

    (void)state;
    kit_dir_make(path);
    opts.saver = (quire_saver_opts){ .dir = path,
                                     .keeps[QUIRE_STATE_SESSION] = true,
                                     .round_us = 1000,
                                     .log = listing_log,
                                     .ops = &ops };
    b = bench_tiny(&opts, &runtime);
    session_add(&b, "a", 0);
    session_add(&b, "b", 0);
    bench_close(&b);
    assert_int_equal(count_files(path), 2);
    ops.list = list_fails;
    b = bench_tiny(&opts, &runtime);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_SESSION], 1);
    assert_non_null(strstr(listing_said, "items may be missing"));
    bench_close(&b);
    assert_int_equal(count_files(path), 2);
    ops.list = quire_file_ops_default()->list;
    b = bench_tiny(&opts, &runtime);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_SESSION], 2);
    bench_close(&b);
    kit_dir_remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_stay),
        cmocka_unit_test(test_smaller_bound),
        cmocka_unit_test(test_part_of_a_listing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
