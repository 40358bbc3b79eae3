/* file_kit.c - see file_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include "file_kit.h"

#include "base/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- texts ---- */

void kit_text_make(kit_text *out, uint32_t tenant, uint32_t i)
{
    const uint32_t first = i / KIT_CHAIN * KIT_CHAIN;
    quire_prefix_key key = { .identity = { 1, 2 } };
    quire_page_key at;

    memset(out, 0, sizeof *out);
    (void)snprintf(out->salt, sizeof out->salt, "tenant-%u", tenant);
    key.salt = out->salt;
    key.salt_bytes = (uint32_t)strlen(out->salt);
    quire_prefix_key_root(&key, &out->text.root);
    at = out->text.root;
    for (uint32_t p = first; p <= i; p++) {
        for (uint32_t t = 0; t < KIT_TOKENS; t++) {
            out->tokens[t] = (int32_t)(p * KIT_TOKENS + t);
        }
        out->text.parent = at;
        quire_prefix_key_add(&at, out->tokens, KIT_TOKENS, &at);
    }
    out->text.key = at;
    out->text.first_token = (i - first) * KIT_TOKENS;
    out->text.n_tokens = KIT_TOKENS;
    out->text.tokens = out->tokens;
    out->text.salt = out->salt;
    out->text.salt_bytes = key.salt_bytes;
}

static void payload_make(unsigned char *out, uint32_t tenant, uint32_t i)
{
    quire_rng rng = { (uint64_t)tenant << 32 | i };

    for (uint32_t b = 0; b < KIT_PAYLOAD; b++) {
        out[b] = (unsigned char)quire_rng_next(&rng);
    }
}

/* ---- directories ---- */

void kit_dir_make(char path[256])
{
    const char *base = getenv("QUIRE_TEST_DIR");

    (void)snprintf(path, 256, "%s/quire-file-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(path));
}

static void each_file(const char *path, void (*each)(const char *file, void *arg), void *arg)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    char file[1024];

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            each(file, arg);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

static void file_remove(const char *file, void *arg)
{
    (void)arg;
    (void)unlink(file);
}

void kit_dir_remove(const char *path)
{
    each_file(path, file_remove, NULL);
    (void)rmdir(path);
}

static void file_count(const char *file, void *arg)
{
    struct stat st;

    if (stat(file, &st) == 0) {
        *(uint64_t *)arg += (uint64_t)st.st_blocks * 512;
    }
}

uint64_t kit_dir_bytes(const char *path)
{
    uint64_t n = 0;

    file_count(path, &n);
    each_file(path, file_count, &n);
    return n;
}

/* ---- stores ---- */

quire_file_store_opts kit_opts(const char *dir, quire_reads_kind kind)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;

    opts.dir = dir;
    opts.capacity_bytes = KIT_CAPACITY;
    opts.segment_bytes = KIT_SEGMENT;
    opts.write_rate = 0;
    opts.idle_sync_ms = 0;
    opts.reads_kind = kind;
    opts.reads_max = 4;
    return opts;
}

quire_store *kit_open(const quire_file_store_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_store *store;
    const int rc = quire_file_store_create(&store, opts, &err);

    if (rc < 0) {
        print_message("%s\n", err.message);
    }
    assert_int_equal(rc, QUIRE_OK);
    return store;
}

static void give_back(void *ctx, quire_transfer *t)
{
    (void)ctx;
    quire_transfer_free(t);
}

void kit_close(quire_store *store)
{
    store->ops->close(store, give_back, NULL);
}

/* ---- transfers ---- */

quire_transfer *kit_put_new(uint32_t tenant, uint32_t i)
{
    const size_t part_bytes[1] = { KIT_PAYLOAD };
    unsigned char *parts[QUIRE_GROUPS_MAX];
    kit_text text;
    quire_transfer *t = quire_transfer_new(KIT_RECORD, KIT_TOKENS);

    kit_text_make(&text, tenant, i);
    assert_non_null(t);
    assert_int_equal(
        quire_page_record_begin(t->record, t->capacity, &text.text, 1, part_bytes, parts),
        QUIRE_OK);
    payload_make(parts[0], tenant, i);
    return t;
}

/* The right text and payload of a record; kept, since tests compare often. */
typedef struct kit_right {
    kit_text text;
    unsigned char payload[KIT_PAYLOAD];
} kit_right;

static const kit_right *right_of(uint32_t tenant, uint32_t i)
{
    static kit_right *all[KIT_TENANTS_MAX][KIT_TEXTS_MAX];
    kit_right **at;

    assert_true(tenant < KIT_TENANTS_MAX && i < KIT_TEXTS_MAX);
    at = &all[tenant][i];
    if (*at == NULL) {
        *at = malloc(sizeof **at);
        assert_non_null(*at);
        kit_text_make(&(*at)->text, tenant, i);
        payload_make((*at)->payload, tenant, i);
    }
    return *at;
}

quire_transfer *kit_get_new(uint32_t tenant, uint32_t i)
{
    quire_transfer *t = quire_transfer_new(KIT_RECORD, KIT_TOKENS);

    assert_non_null(t);
    quire_transfer_text_set(t, &right_of(tenant, i)->text.text);
    return t;
}

bool kit_is_right(const quire_transfer *t, uint32_t tenant, uint32_t i)
{
    const kit_right *right = right_of(tenant, i);

    return t->found.n_parts == 1 && t->found.part_bytes[0] == KIT_PAYLOAD &&
           memcmp(t->found.parts[0], right->payload, KIT_PAYLOAD) == 0 &&
           quire_page_record_check(&t->found, &right->text.text) == QUIRE_STORE_OK;
}

quire_transfer *kit_wait(quire_store *store)
{
    quire_transfer *t;

    /* A store that gives nothing back is ended by the test's timeout. */
    while (store->ops->poll(store, &t, 1) == 0) {
        const struct timespec pause = { .tv_nsec = 20000 };

        (void)nanosleep(&pause, NULL);
    }
    return t;
}

quire_store_result kit_put(quire_store *store, uint32_t tenant, uint32_t i)
{
    quire_transfer *t = kit_put_new(tenant, i);
    quire_store_result result;

    store->ops->put(store, &t, 1);
    t = kit_wait(store);
    result = t->result;
    quire_transfer_free(t);
    return result;
}

static quire_store_result get_or_query(quire_store *store, uint32_t tenant, uint32_t i,
                                       bool is_query)
{
    quire_transfer *t = kit_get_new(tenant, i);
    quire_store_result result;

    t->is_query = is_query;
    store->ops->get(store, &t, 1);
    t = kit_wait(store);
    result = t->result;
    assert_true(result != QUIRE_STORE_OK || is_query || kit_is_right(t, tenant, i));
    quire_transfer_free(t);
    return result;
}

quire_store_result kit_get(quire_store *store, uint32_t tenant, uint32_t i)
{
    return get_or_query(store, tenant, i, false);
}

quire_store_result kit_query(quire_store *store, uint32_t tenant, uint32_t i)
{
    return get_or_query(store, tenant, i, true);
}

void kit_get_all(quire_store *store, uint32_t tenant, uint32_t n, quire_store_result *results)
{
    quire_transfer **list = malloc((n + 1) * sizeof(quire_transfer *));

    assert_non_null(list);
    for (uint32_t i = 0; i < n; i++) {
        list[i] = kit_get_new(tenant, i);
        list[i]->owner = &results[i];
    }
    store->ops->get(store, list, n);
    for (uint32_t i = 0; i < n; i++) {
        quire_transfer *t = kit_wait(store);
        quire_store_result *result = t->owner;

        *result = t->result;
        assert_true(t->result != QUIRE_STORE_OK ||
                    kit_is_right(t, tenant, (uint32_t)(result - results)));
        quire_transfer_free(t);
    }
    free(list);
}

void kit_drop(quire_store *store, quire_store_drop_what what, uint32_t tenant, uint32_t i)
{
    quire_store_drop drop = { .what = what };
    kit_text text;

    kit_text_make(&text, tenant, i);
    drop.key = text.text.key;
    drop.salt = text.salt;
    drop.salt_bytes = text.text.salt_bytes;
    assert_int_equal(store->ops->drop(store, &drop), QUIRE_OK);
}

uint64_t kit_count(uint64_t usual, uint64_t chaos)
{
    return getenv("QUIRE_CHAOS") != NULL ? chaos : usual;
}

void kit_tell(const char *format, ...)
{
    va_list args;

    (void)printf("chaos: ");
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)printf("\n");
    (void)fflush(stdout);
}

int kit_run(const struct CMUnitTest *tests, size_t n)
{
    static quire_reads_kind kinds[] = { QUIRE_READS_POOL, QUIRE_READS_AUTO };
    struct CMUnitTest *own = malloc(n * sizeof *own);
    int n_failed = 0;

    if (own == NULL) {
        return 1;
    }
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t i = 0; i < n; i++) {
            own[i] = tests[i];
            own[i].initial_state = &kinds[k];
        }
        /* cmocka's own macro wants an array of known size. */
        n_failed += _cmocka_run_group_tests(k == 0 ? "threads" : "io_uring", own, n, NULL, NULL);
    }
    free(own);
    return n_failed;
}
