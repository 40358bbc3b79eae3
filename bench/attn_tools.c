/* attn_tools.c - see attn_tools.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_tools.h"

#include "base/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TOTAL_MIN_S     0.3
#define READ_BYTES      ((size_t)512 << 20) /* more than caches hold ... */
#define READ_PART_BYTES ((size_t)16 << 20)  /* ... of which a run reads this */

/* ---- timing ---- */

/* A job being measured. */
typedef struct job {
    const attn_job *what;
    double best_s;
    double total_s;
    uint32_t n_runs;
    bool is_done;
    pthread_barrier_t barrier;
} job;

typedef struct job_thread {
    job *job;
    uint32_t index;
    pthread_t thread;
} job_thread;

static double now_s(void)
{
    return 1e-9 * (double)quire_clock_ns();
}

/* One more run; thread 0 keeps the time. */
static void job_step(const job_thread *self)
{
    job *j = self->job;
    double begin_s = 0.0;

    if (self->index == 0) {
        if (j->what->prepare != NULL) {
            j->what->prepare(j->what->ctx);
        }
        begin_s = now_s(); /* not after the barrier: others may be done before we wake up */
    }
    (void)pthread_barrier_wait(&j->barrier);
    j->what->run(j->what->ctx, self->index, j->what->n_threads);
    (void)pthread_barrier_wait(&j->barrier);
    if (self->index == 0) {
        double elapsed_s = now_s() - begin_s;

        j->best_s = elapsed_s < j->best_s ? elapsed_s : j->best_s;
        j->total_s += elapsed_s;
        j->n_runs++;
        j->is_done = j->n_runs >= j->what->repeats && j->total_s >= TOTAL_MIN_S;
    }
    (void)pthread_barrier_wait(&j->barrier);
}

static void *job_loop(void *arg)
{
    const job_thread *self = arg;

    while (!self->job->is_done) {
        job_step(self);
    }
    return NULL;
}

double attn_job_measure(const attn_job *what)
{
    job_thread threads[ATTN_THREADS_MAX];
    job j = { .what = what, .best_s = INFINITY };

    if (pthread_barrier_init(&j.barrier, NULL, what->n_threads) != 0) {
        return INFINITY;
    }
    for (uint32_t i = 0; i < what->n_threads; i++) {
        threads[i] = (job_thread){ .job = &j, .index = i };
        if (i > 0 && pthread_create(&threads[i].thread, NULL, job_loop, &threads[i]) != 0) {
            (void)fprintf(stderr, "bench_attn: cannot start %u threads\n", what->n_threads);
            exit(1); /* those that run wait for the others */
        }
    }
    (void)job_loop(&threads[0]);
    for (uint32_t i = 1; i < what->n_threads; i++) {
        (void)pthread_join(threads[i].thread, NULL);
    }
    (void)pthread_barrier_destroy(&j.barrier);
    return j.best_s;
}

/* ---- memory ---- */

void *attn_map(size_t size_bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t rounded = (size_bytes + huge - 1) / huge * huge;
    char *p = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(p, rounded, MADV_HUGEPAGE);
    memset(p, 0, rounded);
    return p;
}

void attn_unmap(void *p, size_t size_bytes)
{
    if (p != NULL) {
        (void)munmap(p, size_bytes);
    }
}

/* ---- the machine ---- */

typedef struct limits {
    const attn_machine *machine;
    const char *buffer;
    size_t part;
    uint64_t rounds;
    uint32_t flops;
} limits;

static void read_prepare(void *ctx)
{
    limits *c = ctx;

    c->part = (c->part + 1) % (READ_BYTES / READ_PART_BYTES);
}

static void read_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const limits *c = ctx;
    size_t share = READ_PART_BYTES / n_threads / 1024 * 1024;

    c->machine->read(c->buffer + c->part * READ_PART_BYTES + thread * share, share);
}

double attn_read_bandwidth(const attn_machine *machine, uint32_t n_threads)
{
    char *buffer = attn_map(READ_BYTES);
    limits c = { .machine = machine, .buffer = buffer };
    attn_job j = { .prepare = read_prepare,
                   .run = read_run,
                   .ctx = &c,
                   .n_threads = n_threads,
                   .repeats = READ_BYTES / READ_PART_BYTES };
    double seconds = buffer != NULL ? attn_job_measure(&j) : INFINITY;

    attn_unmap(buffer, READ_BYTES);
    return (double)(READ_PART_BYTES / n_threads / 1024 * 1024 * n_threads) / seconds;
}

static void fma_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    limits *c = ctx;
    uint32_t flops = c->machine->fma(c->rounds);

    (void)n_threads;
    if (thread == 0) {
        c->flops = flops;
    }
}

double attn_fma_peak(const attn_machine *machine, uint32_t n_threads)
{
    limits c = { .machine = machine, .rounds = 20000 };
    attn_job j = { .run = fma_run, .ctx = &c, .n_threads = n_threads, .repeats = 7 };
    double seconds = attn_job_measure(&j);

    return (double)c.rounds * c.flops * n_threads / seconds;
}
