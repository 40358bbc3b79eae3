/* sim_internal.h - common parts of the simulator's modes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_INTERNAL_H
#define QUIRE_TRACE_SIM_INTERNAL_H

#include "trace/sim/sim.h"
#include "trace/sim/sim_tree.h"

/* Samples of a run, evenly spread over its requests. */
typedef struct quire_sim_timeline {
    quire_sim_result *result;
    uint32_t points_max;
    uint32_t every; /* requests */
    uint32_t n_requests;
    uint64_t blocks; /* before the last point */
    uint64_t hit_blocks;
    uint64_t blocks_now; /* with it */
    uint64_t hit_blocks_now;
} quire_sim_timeline;

/* Errors: QUIRE_NOMEM. */
int quire_sim_timeline_begin(quire_sim_timeline *line, const quire_trace *trace,
                             const quire_sim_opts *opts, quire_sim_result *out);
/* A request has been counted. trees: [n], of all devices. Samples of one time become one point, of
 * the last state: requests may come in groups of equal times. */
void quire_sim_timeline_add(quire_sim_timeline *line, const quire_sim_tree *const *trees,
                            uint32_t n, uint64_t time_us);

void quire_sim_count_hits(quire_sim_result *out, const quire_trace *trace,
                          const quire_trace_request *request, uint32_t hit_blocks);
/* At the end: add the tree's counts. */
void quire_sim_count_tree(quire_sim_result *out, const quire_sim_tree *tree);

/* Of n times; they are sorted. */
quire_sim_latency quire_sim_latency_of(double *values, uint32_t n);

static inline uint32_t quire_sim_devices(const quire_sim_opts *opts)
{
    return opts->n_devices != 0 ? opts->n_devices : 1;
}

uint8_t quire_sim_rank(const quire_sim_opts *opts, const quire_trace_request *request);

/* Errors: QUIRE_CANCELED. */
static inline int quire_sim_ask(const quire_sim_cancel *cancel)
{
    return cancel->is_canceled != NULL && cancel->is_canceled(cancel->ctx) ? QUIRE_CANCELED
                                                                           : QUIRE_OK;
}

/* Fill err for a simulation that began; returns status. */
int quire_sim_failed(int status, quire_error *err);

int quire_sim_hits(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                   quire_error *err);
int quire_sim_time(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                   quire_error *err);

#endif /* QUIRE_TRACE_SIM_INTERNAL_H */
