/* test_device_migration.c - a cache's pages on their way to a device, within it and back, from and
 * to plain and pinned memory, 100,000 times with faults of the mock in between: a page comes back
 * with its bytes, or with an error. On an emulated card of CUDA's the same; on the first Vulkan
 * device the same, fewer times and without faults.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn/attn_fixture.h"
#ifdef QUIRE_TEST_HAS_CUDA
#include "device/cuda/cuda_driver.h"
#include "device/fake_cuda/fake_cuda.h"
#endif
#include "device/mock_device.h"
#include "device/validated.h"
#include "rounds.h"

#include <stdio.h>
#include <string.h>

#define N_EXTENTS    3u
#define EXTENT_PAGES 40u
#define N_PAGES      (N_EXTENTS * EXTENT_PAGES)
#define PAGE_BYTES   4160u /* a part of a stage: its copies end at odd places */
#define PIECES_MAX   100u  /* more than one call to copy() takes */
#define N_MIGRATIONS TEST_ROUNDS(100000u, 20000u)

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

typedef int (*open_fn)(quire_device **out, const quire_device_opts *opts, quire_error *err);

typedef struct migration {
    open_fn open;
    quire_rng rng;
    quire_device *device;
    quire_page_memory memory;
    unsigned char *extents[N_EXTENTS];
    unsigned char *pinned;                    /* [PIECES_MAX][PAGE_BYTES] */
    unsigned char model[N_PAGES][PAGE_BYTES]; /* expected bytes of each page */
    unsigned char host[PIECES_MAX][PAGE_BYTES];
    quire_page_piece pieces[PIECES_MAX];
    uint32_t pages[PIECES_MAX];
    uint64_t n_moved; /* pages */
    uint64_t n_back;  /* moved pages that came back, bytes compared */
    uint32_t n_faults;
} migration;

static unsigned char *addr_of(const migration *m, uint32_t page)
{
    return m->extents[page / EXTENT_PAGES] + (size_t)(page % EXTENT_PAGES) * PAGE_BYTES;
}

static void bytes_make(migration *m, unsigned char *to)
{
    uint64_t x = quire_rng_next(&m->rng);

    for (uint32_t i = 0; i < PAGE_BYTES; i += sizeof x, x += 0x9e3779b97f4a7c15u) {
        memcpy(to + i, &x, sizeof x);
    }
}

static void give_up(migration *m)
{
    for (uint32_t i = 0; i < N_EXTENTS; i++) {
        if (m->extents[i] != NULL) {
            m->memory.unmap(m->memory.ctx, m->extents[i], (size_t)EXTENT_PAGES * PAGE_BYTES);
        }
        m->extents[i] = NULL;
    }
    if (m->pinned != NULL) {
        m->memory.unpin(m->memory.ctx, m->pinned, (size_t)PIECES_MAX * PAGE_BYTES);
    }
    m->pinned = NULL;
    quire_device_close(m->device);
    m->device = NULL;
}

/* Open a device and fill its pages with the model's bytes. Returns false after a fault. */
static bool begin(migration *m)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    opts.attn = fixture_small_opts();
    if (m->open(&m->device, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    m->memory = quire_device_page_memory(m->device);
    for (uint32_t i = 0; i < N_EXTENTS; i++) {
        m->extents[i] = m->memory.map(m->memory.ctx, (size_t)EXTENT_PAGES * PAGE_BYTES);
        assert_non_null(m->extents[i]);
    }
    m->pinned = m->memory.pin(m->memory.ctx, (size_t)PIECES_MAX * PAGE_BYTES);
    assert_non_null(m->pinned);
    for (uint32_t page = 0; page < N_PAGES; page++) {
        const quire_page_piece piece = { .to = addr_of(m, page),
                                         .from = m->model[page],
                                         .bytes = PAGE_BYTES };

        bytes_make(m, m->model[page]);
        if (m->memory.copy(m->memory.ctx, QUIRE_PAGE_COPY_IN, &piece, 1) < 0) {
            return false;
        }
    }
    return true;
}

/* Different pages, in random order. Returns their number. */
static uint32_t pages_choose(migration *m, uint32_t most)
{
    const uint32_t n = 1 + quire_rng_below(&m->rng, most);
    uint32_t all[N_PAGES];

    for (uint32_t i = 0; i < N_PAGES; i++) {
        all[i] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = i + quire_rng_below(&m->rng, N_PAGES - i);

        m->pages[i] = all[j];
        all[j] = all[i];
    }
    return n;
}

/* Pages from the host, from the device, or from each other. Errors: those of copy(). */
static int migrate(migration *m)
{
    const quire_page_copy kind = (quire_page_copy)quire_rng_below(&m->rng, 4);
    const bool is_in = kind == QUIRE_PAGE_COPY_IN || kind == QUIRE_PAGE_COPY_FETCH;
    const bool is_pinned = kind == QUIRE_PAGE_COPY_FETCH ||
                           (kind == QUIRE_PAGE_COPY_OUT && quire_rng_below(&m->rng, 2) == 0);
    unsigned char *host = is_pinned ? m->pinned : m->host[0];
    const uint32_t most = quire_rng_below(&m->rng, 20) == 0 ? PIECES_MAX : 8;
    uint32_t n = pages_choose(m, most);
    int rc;

    n = kind == QUIRE_PAGE_COPY_WITHIN ? n / 2 : n; /* half of them are targets */
    for (uint32_t i = 0; i < n; i++) {
        unsigned char *page = addr_of(m, m->pages[i]);

        if (is_in) {
            bytes_make(m, host + (size_t)i * PAGE_BYTES);
            m->pieces[i] = (quire_page_piece){ .to = page,
                                               .from = host + (size_t)i * PAGE_BYTES,
                                               .bytes = PAGE_BYTES };
        } else if (kind == QUIRE_PAGE_COPY_OUT) {
            m->pieces[i] = (quire_page_piece){ .to = host + (size_t)i * PAGE_BYTES,
                                               .from = page,
                                               .bytes = PAGE_BYTES };
        } else {
            m->pieces[i] = (quire_page_piece){ .to = page,
                                               .from = addr_of(m, m->pages[n + i]),
                                               .bytes = PAGE_BYTES };
        }
    }
    rc = n > 0 ? m->memory.copy(m->memory.ctx, kind, m->pieces, n) : QUIRE_OK;
    if (kind == QUIRE_PAGE_COPY_FETCH && rc == QUIRE_OK) { /* its source changes next time */
        const quire_page_piece back = { .to = m->host[0],
                                        .from = addr_of(m, m->pages[0]),
                                        .bytes = PAGE_BYTES };

        rc = m->memory.copy(m->memory.ctx, QUIRE_PAGE_COPY_OUT, &back, 1);
    }
    for (uint32_t i = 0; i < n && rc == QUIRE_OK; i++) {
        unsigned char *model = m->model[m->pages[i]];

        if (kind == QUIRE_PAGE_COPY_OUT) {
            assert_memory_equal(host + (size_t)i * PAGE_BYTES, model, PAGE_BYTES);
            m->n_back++;
        } else {
            memcpy(model, is_in ? host + (size_t)i * PAGE_BYTES : m->model[m->pages[n + i]],
                   PAGE_BYTES);
        }
        m->n_moved++;
    }
    return rc;
}

/* After a fault the device is lost, and takes nothing any more. */
static void fault_check(migration *m, int rc)
{
    const quire_page_piece piece = { .to = m->host[0], .from = addr_of(m, 0), .bytes = PAGE_BYTES };
    quire_device_info info;

    assert_int_equal(rc, QUIRE_LOST);
    quire_device_info_get(m->device, &info);
    assert_true(info.is_lost);
    assert_int_equal(m->memory.copy(m->memory.ctx, QUIRE_PAGE_COPY_OUT, &piece, 1), QUIRE_LOST);
    m->n_faults++;
}

static void run(migration *m, uint64_t n_moves)
{
    bool is_open = false;

    while (m->n_moved < n_moves) {
        int rc = QUIRE_LOST;

        if (!is_open) {
            give_up(m);
            is_open = begin(m);
        }
        if (is_open) {
            rc = migrate(m);
        }
        if (rc < 0) {
            fault_check(m, rc);
            is_open = false;
        }
    }
    give_up(m);
    (void)printf("%llu pages moved, %llu compared, %u faults\n", (unsigned long long)m->n_moved,
                 (unsigned long long)m->n_back, m->n_faults);
}

static migration work; /* too large for a stack */

/* Each device has other faults, after other delays. */
static int open_mock(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    const quire_mock_device_opts mock = { .seed = quire_rng_next(&work.rng),
                                          .delay_ticks = quire_rng_below(&work.rng, 3),
                                          .copy_failure = 1.0 / 2000,
                                          .loss = 1.0 / 4000 };

    return quire_mock_device_open(out, opts, &mock, err);
}

static void test_faults(void **state)
{
    (void)state;
    work = (migration){ .open = open_mock, .rng = { 25 } };
    run(&work, N_MIGRATIONS);
    assert_true(work.n_faults > N_MIGRATIONS / 10000);
    assert_true(work.n_back > N_MIGRATIONS / 5);
}

#ifdef QUIRE_TEST_HAS_CUDA
/* The card faults in one of its next pieces of work. */
static int open_cuda(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    int rc;

    fake_cuda_repair();
    rc = quire_device_open(out, "cuda0", opts, err);
    fake_cuda_fault(N_PAGES + quire_rng_below(&work.rng, 8000), QUIRE_CUDA_ILLEGAL_ADDRESS);
    return rc;
}

static void test_cuda(void **state)
{
    (void)state;
    work = (migration){ .open = open_cuda, .rng = { 27 } };
    run(&work, N_MIGRATIONS);
    fake_cuda_repair();
    assert_true(work.n_faults > N_MIGRATIONS / 10000);
    assert_true(work.n_back > N_MIGRATIONS / 5);
    assert_int_equal(fake_cuda_seen().n_pieces, 0);
    assert_int_equal(fake_cuda_seen().n_errors, 0);
}
#endif

static int open_vulkan(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    return quire_device_open(out, "vulkan0", opts, err);
}

static void test_vulkan(void **state)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_device *device;

    (void)state;
    opts.attn = fixture_small_opts();
    if (open_vulkan(&device, &opts, &err) < 0) {
        (void)printf("skipped: %s\n", err.message);
        skip();
    }
    quire_device_close(device);
    work = (migration){ .open = open_vulkan, .rng = { 26 } };
    run(&work, N_MIGRATIONS / 20);
    assert_int_equal(work.n_faults, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
#ifdef QUIRE_TEST_HAS_CUDA
        cmocka_unit_test(test_cuda),
#endif
        cmocka_unit_test(test_vulkan),
        cmocka_unit_test(validated_end),
    };

    validated_begin();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
