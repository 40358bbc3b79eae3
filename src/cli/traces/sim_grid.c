/* sim_grid.c - the runs of a grid, handed out to threads one by one.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/sim_grid.h"

#include "base/check.h"
#include "cli/commands/talk.h"
#include "cli/measuring/parallel.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct grid_run {
    quire_sim_grid *grid;
    uint32_t n_cells;
    pthread_mutex_t lock; /* guards the fields below */
    uint32_t next;
    int rc; /* the first failure */
    quire_error *err;
} grid_run;

const char *quire_sim_grid_row_name(const quire_sim_grid *grid, uint32_t row)
{
    return row < grid->n_policies ? quire_evict_policy_name(grid->policies[row]) : "belady";
}

const quire_sim_result *quire_sim_grid_at(const quire_sim_grid *grid, uint32_t row, uint32_t column)
{
    return &grid->results[row * grid->n_columns + column];
}

bool quire_sim_grid_has(const quire_sim_grid *grid, uint32_t row, uint32_t column)
{
    return grid->is_done[row * grid->n_columns + column];
}

uint32_t quire_sim_grid_row_done(const quire_sim_grid *grid, uint32_t row)
{
    uint32_t n = 0;

    for (uint32_t column = 0; column < grid->n_columns; column++) {
        n += quire_sim_grid_has(grid, row, column);
    }
    return n;
}

static bool is_interrupted(void *ctx)
{
    (void)ctx;
    return quire_interrupt_seen();
}

quire_sim_cancel quire_sim_interrupt(void)
{
    return (quire_sim_cancel){ .is_canceled = is_interrupted };
}

double quire_sim_hit_rate(const quire_sim_result *result)
{
    return result->blocks > 0 ? (double)result->hit_blocks / (double)result->blocks : 0.0;
}

static int cell_run(quire_sim_grid *grid, uint32_t cell, quire_error *err)
{
    uint32_t row = cell / grid->n_columns;
    quire_sim_opts opts = grid->opts;

    opts.cancel = quire_sim_interrupt();
    opts.capacity_blocks = grid->columns[cell % grid->n_columns].blocks;
    opts.capacity_bytes = grid->columns[cell % grid->n_columns].memory_bytes;
    if (row == grid->n_policies) {
        /* Memory and disk, or all devices, together hold no more than one cache of their sizes. */
        const uint64_t n_devices = opts.n_devices != 0 ? opts.n_devices : 1;
        int rc =
            quire_belady(grid->trace, n_devices * opts.capacity_blocks + opts.disk.capacity_blocks,
                         &opts.cancel, &grid->results[cell]);

        return rc < 0 ? quire_error_set(err, rc, "Belady's bound: %s", quire_status_text(rc)) : rc;
    }
    opts.policy = grid->policies[row];
    return quire_sim_run(grid->trace, &opts, &grid->results[cell], err);
}

/* The next cell, n_cells when there is none. */
static uint32_t cell_take(grid_run *run)
{
    uint32_t cell;

    (void)pthread_mutex_lock(&run->lock);
    run->rc = run->rc == QUIRE_OK && quire_interrupt_seen() ? QUIRE_CANCELED : run->rc;
    cell = run->rc < 0 ? run->n_cells : run->next;
    if (cell < run->n_cells) {
        run->next++;
        quire_progress("simulation %u of %u", run->next, run->n_cells);
    }
    (void)pthread_mutex_unlock(&run->lock);
    return cell;
}

static void cells_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    grid_run *run = ctx;
    uint32_t cell;

    (void)thread;
    (void)n_threads;
    while ((cell = cell_take(run)) < run->n_cells) {
        quire_error err = QUIRE_ERROR_INIT;
        int rc = cell_run(run->grid, cell, &err);

        (void)pthread_mutex_lock(&run->lock);
        if (rc == QUIRE_OK) {
            run->grid->is_done[cell] = true;
            run->grid->n_done++;
        } else if (run->rc == QUIRE_OK) {
            run->rc = rc;
            *run->err = err;
        }
        (void)pthread_mutex_unlock(&run->lock);
    }
}

int quire_sim_grid_run(quire_sim_grid *grid, uint32_t n_threads, quire_error *err)
{
    grid_run run = { .grid = grid,
                     .n_cells = (grid->n_policies + 1) * grid->n_columns,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .err = err };

    grid->results = calloc(run.n_cells, sizeof(*grid->results));
    grid->is_done = calloc(run.n_cells, sizeof(*grid->is_done));
    if (grid->results == NULL || grid->is_done == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    quire_parallel(n_threads < run.n_cells ? n_threads : run.n_cells, cells_run, &run);
    quire_progress_end();
    (void)pthread_mutex_destroy(&run.lock);
    return run.rc != QUIRE_CANCELED
               ? run.rc
               : quire_error_set(err, run.rc, "interrupted after %u of %u simulations",
                                 grid->n_done, run.n_cells);
}

void quire_sim_grid_fini(quire_sim_grid *grid)
{
    for (uint32_t i = 0; grid->results != NULL && i < (grid->n_policies + 1) * grid->n_columns;
         i++) {
        quire_sim_result_fini(&grid->results[i]);
    }
    free(grid->is_done);
    free(grid->results);
    grid->is_done = NULL;
    grid->results = NULL;
}
