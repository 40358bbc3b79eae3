/* test_file_accounts.c - quotas and shares of tenants in a directory: a tenant that writes much
 * evicts its own records.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include <string.h>

#define QUIET       1u /* tenants; their accounts have the same numbers */
#define LOUD        2u
#define STRANGER    7u   /* account 0 */
#define N_QUIET     60u  /* below a half of the half that is shared out */
#define N_LOUD      900u /* more than twice the directory's room */
#define AMPLIFY_MAX 3.0

static quire_reads_kind kind_of(void **state)
{
    return *(const quire_reads_kind *)*state;
}

static uint16_t account_of(void *ctx, const void *salt, uint32_t salt_bytes)
{
    for (uint32_t tenant = QUIET; tenant <= LOUD; tenant++) {
        kit_text text;

        kit_text_make(&text, tenant, 0);
        if (text.text.salt_bytes == salt_bytes && memcmp(text.text.salt, salt, salt_bytes) == 0) {
            return (uint16_t)tenant;
        }
    }
    (void)ctx;
    return 0;
}

static quire_store_stats stats_of(const quire_store *store)
{
    quire_store_stats stats;

    store->ops->stats(store, &stats);
    return stats;
}

static void put_all(quire_store *store, const char *dir, uint32_t tenant, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(kit_put(store, tenant, i), QUIRE_STORE_OK);
        assert_true(kit_dir_bytes(dir) <= KIT_CAPACITY);
    }
}

/* The number of texts in [0, n) that the store has; *first is the first of them, n if none. */
static uint32_t found(quire_store *store, uint32_t tenant, uint32_t n, uint32_t *first)
{
    uint32_t n_found = 0;

    *first = n;
    for (uint32_t i = n; i > 0; i--) {
        if (kit_get(store, tenant, i - 1) == QUIRE_STORE_OK) {
            n_found++;
            *first = i - 1;
        }
    }
    return n_found;
}

/* A tenant writes a little and never reads; then another, or one without an account, floods the
 * directory. Returns how many records of the first are left. */
static uint32_t flood(void **state, const quire_file_account accounts[2], uint32_t loud)
{
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    quire_store_stats stats;
    uint32_t n_left, first, n_loud;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    if (accounts != NULL) {
        opts.accounts = accounts;
        opts.n_accounts = 2;
        opts.account_of = account_of;
    }
    store = kit_open(&opts);
    put_all(store, dir, QUIET, N_QUIET);
    put_all(store, dir, loud, N_LOUD);
    stats = stats_of(store);
    assert_int_equal(stats.state, QUIRE_STORE_READY);
    assert_true((double)stats.written_bytes_total <= AMPLIFY_MAX * (double)stats.put_bytes_total);
    kit_close(store);

    opts.accounts = accounts; /* a restart changes nothing */
    store = kit_open(&opts);
    n_left = found(store, QUIET, N_QUIET, &first);
    n_loud = found(store, loud, N_LOUD, &first);
    assert_true(n_loud > 0);
    assert_int_equal(n_loud, N_LOUD - first); /* the newest, in a row */
    if (accounts != NULL && loud == LOUD && accounts[1].quota_bytes > 0) {
        assert_true((uint64_t)n_loud * KIT_RECORD <= accounts[1].quota_bytes);
        assert_true((uint64_t)(n_loud + 1) * KIT_RECORD >=
                    accounts[1].quota_bytes - accounts[1].quota_bytes / QUIRE_FILE_QUOTA_SLACK);
    }
    kit_close(store);
    kit_dir_remove(dir);
    return n_left;
}

static void test_flood(void **state)
{
    const quire_file_account equal[2] = { { 0, 1 }, { 0, 1 } };
    const quire_file_account bounded[2] = { { 0, 1 }, { 50 * KIT_RECORD, 1 } };

    assert_int_equal(flood(state, NULL, LOUD), 0); /* without shares the quiet tenant loses all */
    assert_int_equal(flood(state, equal, LOUD), N_QUIET);
    assert_int_equal(flood(state, bounded, LOUD), N_QUIET);
    assert_int_equal(flood(state, equal, STRANGER), N_QUIET);
}

/* Beyond its share, too, a tenant keeps about its share. */
static void test_share(void **state)
{
    const quire_file_account accounts[2] = { { 0, 1 }, { 0, 3 } };
    const uint32_t n_share =
        (uint32_t)((double)KIT_CAPACITY * QUIRE_FILE_SHARED / 4.0 / KIT_RECORD);
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    uint32_t first, n_left;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    opts.accounts = accounts;
    opts.n_accounts = 2;
    opts.account_of = account_of;
    store = kit_open(&opts);
    put_all(store, dir, QUIET, 3 * n_share);
    put_all(store, dir, LOUD, N_LOUD);
    n_left = found(store, QUIET, 3 * n_share, &first);
    assert_in_range(n_left, n_share - KIT_SEGMENT / KIT_RECORD, n_share);
    kit_close(store);
    kit_dir_remove(dir);
}

/* A quota counts from the start, also one that has become smaller. */
static void test_quota(void **state)
{
    quire_file_account accounts[2] = { { 40 * KIT_RECORD, 1 }, { 0, 1 } };
    char dir[256];
    quire_file_store_opts opts;
    quire_store *store;
    uint32_t first;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    opts.accounts = accounts;
    opts.n_accounts = 2;
    opts.account_of = account_of;
    store = kit_open(&opts);
    put_all(store, dir, QUIET, 40);
    put_all(store, dir, LOUD, 40);
    put_all(store, dir, STRANGER, 40);
    assert_int_equal(found(store, QUIET, 40, &first), 40);
    kit_close(store);
    accounts[0].quota_bytes = 10 * KIT_RECORD;
    store = kit_open(&opts);
    assert_in_range(found(store, QUIET, 40, &first), 9, 10);
    assert_int_equal(first + found(store, QUIET, 40, &first), 40); /* the newest */
    assert_int_equal(found(store, LOUD, 40, &first), 40);
    assert_int_equal(found(store, STRANGER, 40, &first), 40);
    kit_drop(store, QUIRE_STORE_DROP_SALT, QUIET, 0); /* drops free the quota */
    put_all(store, dir, QUIET, 9);
    assert_int_equal(found(store, QUIET, 9, &first), 9);
    kit_close(store);
    kit_dir_remove(dir);
}

static void test_options(void **state)
{
    const quire_file_account accounts[1] = { { 0, 0 } };
    char dir[256];
    quire_file_store_opts opts;
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *store;

    kit_dir_make(dir);
    opts = kit_opts(dir, kind_of(state));
    opts.accounts = accounts;
    opts.n_accounts = 1;
    assert_int_equal(quire_file_store_create(&store, &opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "a weight of 0"));
    opts.n_accounts = QUIRE_FILE_ACCOUNTS_MAX + 1;
    assert_int_equal(quire_file_store_create(&store, &opts, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "4097 accounts"));
    kit_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_options),
    };

    return kit_run(tests, sizeof tests / sizeof tests[0]);
}
