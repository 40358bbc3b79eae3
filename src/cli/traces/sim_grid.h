/* sim_grid.h - simulations of policies x capacities on several threads, and their results.
 *
 * Rows are policies in the order asked for, then Belady's bound; columns are capacities.
 *
 * Thread: the main thread only; quire_sim_grid_run() starts others.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SIM_GRID_H
#define QUIRE_CLI_SIM_GRID_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli/settings/options.h"
#include "trace/sim/sim.h"

#define QUIRE_SIM_POLICIES_MAX ((uint32_t)QUIRE_EVICT_POLICY_COUNT)
#define QUIRE_SIM_COLUMNS_MAX  (QUIRE_OPT_LIST_MAX + 1) /* a list and the recommended size */

typedef struct quire_sim_column {
    uint64_t blocks;       /* that fit, of layers that keep all tokens */
    uint64_t memory_bytes; /* 0: given in blocks; not with opts.kv */
} quire_sim_column;

typedef struct quire_sim_grid {
    const quire_trace *trace;
    quire_sim_opts opts; /* but for policy and capacity */
    quire_evict_policy policies[QUIRE_SIM_POLICIES_MAX];
    uint32_t n_policies;
    quire_sim_column columns[QUIRE_SIM_COLUMNS_MAX];
    uint32_t n_columns;
    quire_sim_result *results; /* [n_policies + 1][n_columns] */
    bool *is_done;             /* the same: all unless interrupted */
    uint32_t n_done;
} quire_sim_grid;

/* Row n_policies is Belady's. */
const char *quire_sim_grid_row_name(const quire_sim_grid *grid, uint32_t row);
const quire_sim_result *quire_sim_grid_at(const quire_sim_grid *grid, uint32_t row,
                                          uint32_t column);
bool quire_sim_grid_has(const quire_sim_grid *grid, uint32_t row, uint32_t column);
/* Results of a row. */
uint32_t quire_sim_grid_row_done(const quire_sim_grid *grid, uint32_t row);
/* Share of prompt blocks, 0..1; 0 for none. */
double quire_sim_hit_rate(const quire_sim_result *result);

/* Ctrl-C (talk.h). */
quire_sim_cancel quire_sim_interrupt(void);

/* Fill in the results. Errors: as quire_sim_run(), QUIRE_CANCELED after Ctrl-C, which ends
 * simulations that have begun. Memory: quire_sim_grid_fini(), also after a failure. */
int quire_sim_grid_run(quire_sim_grid *grid, uint32_t n_threads, quire_error *err);
void quire_sim_grid_fini(quire_sim_grid *grid);

void quire_sim_grid_print(const quire_sim_grid *grid, FILE *out);
/* An array of an object per policy and capacity; NULL when there is no memory. */
json_t *quire_sim_grid_json(const quire_sim_grid *grid);

#endif /* QUIRE_CLI_SIM_GRID_H */
