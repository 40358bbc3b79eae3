/* sim_support.h - runs of the simulator for its tests: an error fails the test.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_TRACE_SIM_SUPPORT_H
#define QUIRE_TESTS_TRACE_SIM_SUPPORT_H

#include "base/rng.h"
#include "trace/sim/sim.h"

quire_sim_result simulate(const quire_trace *trace, const quire_sim_opts *opts);
quire_sim_result run_belady(const quire_trace *trace, uint64_t capacity);

/* A trace of random conversations. Memory: quire_trace_fini(). */
void random_trace(quire_trace *trace, uint32_t n_requests, quire_rng *rng);

#endif /* QUIRE_TESTS_TRACE_SIM_SUPPORT_H */
