/* bench_cost.h - the costs of computing with a model on this machine, for simulations.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_BENCH_COST_H
#define QUIRE_CLI_BENCH_COST_H

#include "cli/commands/opened.h"
#include "trace/sim/sim.h"

/* Speeds that the costs are made of, in tokens per second of all sequences together. */
typedef struct quire_cost_speeds {
    uint32_t depth;     /* of the deep ones, > 0 */
    uint32_t n_prompt;  /* tokens of a prefill, all in one step, > 0 */
    uint32_t n_several; /* sequences of the decode with several, > 1 */
    double prefill, prefill_deep;
    double decode, decode_deep, decode_several;
} quire_cost_speeds;

/* Costs under which a step would give those speeds; none is below 0. chunk_tokens and n_running_max
 * stay as they are. */
void quire_cost_of_speeds(const quire_cost_speeds *speeds, quire_sim_cost *out);

/* Measure the costs with an open model and no open runtime. depth 0 = 2,048. Errors: as
 * quire_opened_open_runtime(), quire_measure(). */
int quire_bench_cost(quire_opened *session, const quire_common_args *args, uint32_t depth,
                     uint32_t n_repeats, quire_sim_cost *out, quire_error *err);

#endif /* QUIRE_CLI_BENCH_COST_H */
