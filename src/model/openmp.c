/* openmp.c - the OpenMP entry points that ggml calls, on a team of ours.
 *
 * ggml built by GCC calls libgomp for its threads. In a static build these functions replace
 * libgomp's, so that ggml's operators and Quire's own run on one team of threads. The team's way of
 * waiting suits busy machines, and ThreadSanitizer can follow it. cmake/openmp.cmake checks that
 * ggml's archives call no other function of OpenMP. If they do, or if ggml is a shared library,
 * this file is not built and OpenMP is linked.
 *
 * A parallel region runs on the team that quire_openmp_run() lends to the calling thread. Without
 * such a team the region starts one.
 *
 * Sources: the interface of libgomp (GCC's manual, "The libgomp ABI"), OpenMP 5.2 on its meaning.
 *
 * SPDX-License-Identifier: MIT */
#include "model/openmp.h"

#include "base/cpu.h"
#include "quire/status.h"

#include <pthread.h>
#include <stdbool.h>

/* The names are GCC's and OpenMP's. */
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

static _Thread_local quire_team *lent;
static pthread_mutex_t atomic_lock = PTHREAD_MUTEX_INITIALIZER;

void quire_openmp_run(quire_team *team, quire_team_fn *fn, void *ctx)
{
    quire_team *outer = lent;

    lent = team;
    fn(ctx);
    lent = outer;
}

/* Work without a lent team, such as a conversion of weights, takes long enough to start threads for
 * it. */
static void run_once(void (*fn)(void *), void *data, uint32_t n_threads)
{
    quire_team *team = NULL;

    if (n_threads > 1 && quire_team_create(&team, n_threads) == QUIRE_OK) {
        quire_team_run(team, 0, fn, data);
        quire_team_destroy(team);
    } else {
        fn(data);
    }
}

void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags)
{
    (void)flags;
    if (lent != NULL) {
        quire_team_run(lent, n_threads, fn, data);
    } else {
        run_once(fn, data, n_threads > 0 ? n_threads : quire_cpus_usable());
    }
}

void GOMP_barrier(void)
{
    quire_team_meet();
}

/* OpenMP allows any member to execute the block. */
bool GOMP_single_start(void)
{
    return quire_team_index() == 0;
}

/* A dynamic schedule may deal the iterations out in any way: each member gets one range. */
bool GOMP_loop_nonmonotonic_dynamic_start(long begin, long end, long step, long chunk, long *from,
                                          long *to)
{
    const long n = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
    const long size = (long)quire_team_size();
    const long index = (long)quire_team_index();

    (void)chunk;
    if (n <= 0) {
        return false;
    }
    *from = begin + n * index / size * step;
    *to = begin + n * (index + 1) / size * step;
    return *from != *to;
}

bool GOMP_loop_nonmonotonic_dynamic_next(long *from, long *to)
{
    (void)from;
    (void)to;
    return false;
}

void GOMP_loop_end(void)
{
    quire_team_meet();
}

void GOMP_atomic_start(void)
{
    (void)pthread_mutex_lock(&atomic_lock);
}

void GOMP_atomic_end(void)
{
    (void)pthread_mutex_unlock(&atomic_lock);
}

int omp_get_thread_num(void)
{
    return (int)quire_team_index();
}

int omp_get_num_threads(void)
{
    return (int)quire_team_size();
}
