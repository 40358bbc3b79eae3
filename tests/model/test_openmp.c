/* test_openmp.c - our replacements of the OpenMP functions that ggml calls behave as OpenMP
 * defines, and OpenMP is not loaded.
 *
 * SPDX-License-Identifier: MIT */
#include "model/openmp.h"

#include "model/backend.h"

#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define ITERATIONS_MAX 100
#define THREADS        3u

void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);
void GOMP_barrier(void);
bool GOMP_single_start(void);
bool GOMP_loop_nonmonotonic_dynamic_start(long begin, long end, long step, long chunk, long *from,
                                          long *to);
bool GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to);
void GOMP_loop_end(void);
void GOMP_atomic_start(void);
void GOMP_atomic_end(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);

typedef struct region {
    long begin, end, step;
    atomic_int n_done[ITERATIONS_MAX]; /* by index in the loop */
    int n_iterations;                  /* under GOMP_atomic */
    atomic_int n_members, n_singles;
    bool is_within; /* thread numbers */
} region;

/* Parallel, single, a loop, a reduction: as GCC compiles them. */
static void region_body(void *data)
{
    region *r = data;
    int n_mine = 0;
    long from, to;

    atomic_fetch_add(&r->n_members, 1);
    if (GOMP_single_start()) {
        atomic_fetch_add(&r->n_singles, 1);
        r->is_within = omp_get_thread_num() < omp_get_num_threads();
    }
    GOMP_barrier();
    if (GOMP_loop_nonmonotonic_dynamic_start(r->begin, r->end, r->step, 4, &from, &to)) {
        do {
            for (long i = from; r->step > 0 ? i < to : i > to; i += r->step) {
                atomic_fetch_add(&r->n_done[(i - r->begin) / r->step], 1);
                n_mine++;
            }
        } while (GOMP_loop_nonmonotonic_dynamic_next(&from, &to));
    }
    GOMP_loop_end();
    GOMP_atomic_start();
    r->n_iterations += n_mine;
    GOMP_atomic_end();
}

static void region_check(region *r, int n_members, int n_iterations)
{
    assert_int_equal(r->n_members, n_members);
    assert_int_equal(r->n_singles, 1);
    assert_true(r->is_within);
    assert_int_equal(r->n_iterations, n_iterations);
    for (int i = 0; i < ITERATIONS_MAX; i++) {
        assert_int_equal(r->n_done[i], i < n_iterations ? 1 : 0);
    }
}

typedef struct call {
    region *region;
    unsigned n_threads;
} call;

static void region_run(void *ctx)
{
    const call *c = ctx;

    GOMP_parallel(region_body, c->region, c->n_threads, 0);
}

static void test_region_on_a_lent_team(void **state)
{
    static const struct {
        long begin, end, step;
        int n;
    } loops[] = { { 0, 100, 1, 100 }, { 0, 2, 1, 2 },   { 5, 5, 1, 0 },   { 7, 3, 1, 0 },
                  { -3, 20, 7, 4 },   { 10, 0, -3, 4 }, { 0, 10, -1, 0 }, { 100, 0, -1, 100 } };

    (void)state;
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        for (unsigned n = 0; n <= THREADS + 1; n++) {
            region r = { .begin = loops[i].begin, .end = loops[i].end, .step = loops[i].step };
            call c = { &r, n };
            quire_team *team; /* a new one: its first run has all members */

            assert_int_equal(quire_team_create(&team, THREADS), 0);
            quire_openmp_run(team, region_run, &c);
            region_check(&r, n == 0 || n > THREADS ? (int)THREADS : (int)n, loops[i].n);
            quire_team_destroy(team);
        }
    }
}

static void test_region_without_a_team(void **state)
{
    region r = { .end = 10, .step = 1 };

    (void)state;
    GOMP_parallel(region_body, &r, 4, 0);
    region_check(&r, 4, 10);
    assert_int_equal(omp_get_thread_num(), 0);
    assert_int_equal(omp_get_num_threads(), 1);
}

static int name_check(struct dl_phdr_info *info, size_t bytes, void *found)
{
    static const char *const names[] = { "libgomp", "libomp", "libiomp" };

    (void)bytes;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strstr(info->dlpi_name, names[i]) != NULL) {
            (void)snprintf(found, 256, "%s", info->dlpi_name);
        }
    }
    return 0;
}

static void test_openmp_is_not_loaded(void **state)
{
    char found[256] = "";

    (void)state;
    assert_int_equal(quire_backend_init(NULL), 0);
    (void)dl_iterate_phdr(name_check, found);
    assert_string_equal(found, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_region_on_a_lent_team),
        cmocka_unit_test(test_region_without_a_team),
        cmocka_unit_test(test_openmp_is_not_loaded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
