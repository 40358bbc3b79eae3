/* sim_report.h - a simulation's plots, for the pages of `quire sim` and `quire analyze`.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SIM_REPORT_H
#define QUIRE_CLI_SIM_REPORT_H

#include <jansson.h>

#include "cli/traces/sim_grid.h"

/* Hit rates by capacity, a curve per policy, and Belady's; returns the plot, borrowed. block_bytes:
 * the size of a block, to show sizes too; 0 = not known. */
json_t *quire_sim_report_curves(json_t *report, const quire_sim_grid *grid, double block_bytes);
/* The same as a table. */
void quire_sim_report_table(json_t *report, const quire_sim_grid *grid);

/* A run's timeline: blocks of the regions, and the hit rate. what: "policy lru, 3000 blocks". */
void quire_sim_report_timeline(json_t *report, const quire_sim_result *result, const char *what);

/* The page of quire sim; about: its second line. Memory: json_decref(). */
json_t *quire_sim_report(const quire_sim_grid *grid, const char *about, double block_bytes);

#endif /* QUIRE_CLI_SIM_REPORT_H */
