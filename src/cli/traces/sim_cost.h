/* sim_cost.h - costs of computation in a simulation, as written by `quire bench --cost`.
 *
 * A JSON object with a number, in microseconds, for each field of quire_sim_cost that ends in _us.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SIM_COST_H
#define QUIRE_CLI_SIM_COST_H

#include <jansson.h>

#include "quire/error.h"
#include "trace/sim/sim.h"

/* clang-format off */
/* For a struct `args_type` with members cost, chunk_tokens and n_running_max. */
#define QUIRE_ROWS_SIM_COST(args_type)                                                             \
    { .names = { "--cost" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",                               \
      .initial_text = "round figures of no particular machine",                                    \
      .offset = offsetof(args_type, cost),                                                         \
      .help = "with --mode time or --disk: file with the cost of steps, from quire bench "         \
              "--cost" },                                                                          \
    { .names = { "-b", "--batch" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 65536,  \
      .initial = "512", .offset = offsetof(args_type, chunk_tokens),                               \
      .help = "with --mode time: prompt tokens computed in one step" },                            \
    { .names = { "-np", "--parallel" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,            \
      .max = 65536, .initial = "64", .offset = offsetof(args_type, n_running_max),                 \
      .help = "with --mode time: requests that run at once" }
/* clang-format on */

/* The defaults, overridden by the file; path NULL: the defaults. Errors: QUIRE_IO, QUIRE_INVAL; err
 * names the reason. */
int quire_sim_cost_read(const char *path, quire_sim_cost *out, quire_error *err);

/* NULL when there is no memory. */
json_t *quire_sim_cost_json(const quire_sim_cost *cost);

#endif /* QUIRE_CLI_SIM_COST_H */
