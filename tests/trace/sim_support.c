/* sim_support.c - see sim_support.h.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim_support.h"

#include "trace/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

quire_sim_result simulate(const quire_trace *trace, const quire_sim_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_sim_result result;

    if (quire_sim_run(trace, opts, &result, &err) < 0) {
        fail_msg("%s", err.message);
    }
    return result;
}

quire_sim_result run_belady(const quire_trace *trace, uint64_t capacity)
{
    quire_sim_result result;

    assert_int_equal(quire_belady(trace, capacity, NULL, &result), QUIRE_OK);
    return result;
}

void random_trace(quire_trace *trace, uint32_t n_requests, quire_rng *rng)
{
    const workload_opts opts = { .n_requests = n_requests,
                                 .n_conversations = 1 + quire_rng_below(rng, 30),
                                 .shared_blocks = quire_rng_below(rng, 4),
                                 .turn_blocks_max = 1 + quire_rng_below(rng, 4),
                                 .p_end = 0.1 };

    workload_begin(trace, 16);
    workload_conversations(trace, &opts, rng);
    quire_trace_finish(trace);
}
