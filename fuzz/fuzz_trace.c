/* fuzz_trace.c - bytes as a trace file: a file is read or refused, and a trace that was read is
 * consistent and can be simulated.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "trace/read/read.h"
#include "trace/sim/sim.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BLOCKS_MAX 20000u /* that are simulated: bounds the time of one input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void check(const quire_trace *trace)
{
    uint64_t before_us = 0;
    uint32_t n_seen = 0;

    QUIRE_CHECK(trace->n_requests > 0 && trace->requests[0].time_us == 0);
    QUIRE_CHECK(trace->block_tokens > 0 && trace->n_ids <= trace->n_blocks);
    for (uint64_t i = 0; i < trace->n_blocks; i++) {
        QUIRE_CHECK(trace->block_ids[i] <= n_seen);
        n_seen += trace->block_ids[i] == n_seen;
    }
    QUIRE_CHECK(n_seen == trace->n_ids);
    for (uint32_t i = 0; i < trace->n_requests; i++) {
        const quire_trace_request *request = &trace->requests[i];

        QUIRE_CHECK(request->time_us >= before_us && request->n_input_tokens > 0);
        QUIRE_CHECK(request->first_block + request->n_blocks <= trace->n_blocks);
        QUIRE_CHECK(request->session <= trace->n_sessions && request->tenant < trace->n_tenants);
        QUIRE_CHECK(request->class_index < trace->n_classes);
        before_us = request->time_us;
    }
}

static void simulate(const quire_trace *trace, quire_sim_mode mode)
{
    quire_sim_opts opts = { .mode = mode, .capacity_blocks = 50, .seed = 1 };
    quire_sim_result result;
    quire_sim_result bound;

    opts.cost = (quire_sim_cost)QUIRE_SIM_COST_INIT;
    if (quire_sim_run(trace, &opts, &result, NULL) < 0) {
        return;
    }
    QUIRE_CHECK(result.hit_blocks <= trace->n_blocks - trace->n_ids);
    if (mode == QUIRE_SIM_HITS && quire_belady(trace, 50, NULL, &bound) == QUIRE_OK) {
        QUIRE_CHECK(result.hit_blocks <= bound.hit_blocks);
    }
    quire_sim_result_fini(&result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    quire_trace trace;
    FILE *file;

    if (size_bytes == 0) {
        return 0;
    }
    file = fmemopen((void *)(uintptr_t)data, size_bytes, "rb");
    if (file == NULL) {
        return 0;
    }
    opts.line_bytes_max = 4096;
    opts.bad_lines_max = 20;
    opts.requests_max = 100;
    if (quire_trace_read_stream(file, &opts, &trace, NULL, NULL) == QUIRE_OK) {
        uint64_t n_tokens = 0;

        check(&trace);
        for (uint32_t i = 0; i < trace.n_requests; i++) {
            n_tokens += trace.requests[i].n_input_tokens + trace.requests[i].n_output_tokens;
        }
        if (trace.n_blocks < BLOCKS_MAX) {
            simulate(&trace, QUIRE_SIM_HITS);
        }
        if (n_tokens < BLOCKS_MAX) {
            simulate(&trace, QUIRE_SIM_TIME);
        }
        quire_trace_fini(&trace);
    }
    (void)fclose(file);
    return 0;
}
