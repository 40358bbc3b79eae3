/* sim_job.h - a request in virtual time: its sequence, pages and progress.
 *
 * A job computes its prompt, then writes its answer. A preempted job releases its memory, and later
 * computes the uncached parts of both again.
 *
 * Pages of answers get numbers that no prompt has, because a trace does not link answers to later
 * prompts. Such pages take memory and are never hit.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_JOB_H
#define QUIRE_TRACE_SIM_JOB_H

#include <stdbool.h>

#include "trace/sim/sim_text.h"

typedef struct quire_sim_job {
    const quire_trace_request *request;
    uint32_t index;        /* of the request */
    uint32_t n_written;    /* tokens of its answer */
    uint32_t own_id;       /* name of its first page behind the prompt */
    uint32_t n_to_compute; /* tokens of its prompt, for the choice of a device */
    uint8_t rank;
    bool has_begun;    /* its first token is out */
    bool has_been;     /* admitted before: it was preempted */
    double arrived_us; /* virtual time */
    /* While it runs: */
    quire_sim_text text;
    uint64_t promised;   /* charge of blocks to come, with windows or states */
    uint32_t n_rows;     /* tokens that it computes in this step */
    uint32_t n_computed; /* tokens in the cache */
    uint32_t hit_blocks; /* of its prompt, at admission */
} quire_sim_job;

/* Tokens that must be computed before the next one can be written. */
static inline uint32_t quire_sim_job_wants(const quire_sim_job *job)
{
    return job->request->n_input_tokens + job->n_written;
}

/* Blocks of prompt and answer. */
uint32_t quire_sim_job_blocks(const quire_trace *trace, const quire_trace_request *request);

/* The charge of a sequence of n_blocks blocks that computes chunk_tokens tokens in a step at most.
 */
uint64_t quire_sim_job_charge(const quire_sim_tree *tree, uint32_t n_blocks, uint32_t chunk_tokens);

/* The parts of the simulation that a job needs. */
typedef struct quire_sim_place {
    quire_sim_tree *tree;
    const quire_trace *trace;
    uint64_t now_us;
    uint32_t chunk_tokens;
} quire_sim_place;

/* Open the job's sequence, find its prefix and make room for it. Errors: QUIRE_NOPAGES (the job
 * then holds nothing), others as the core's. */
int quire_sim_job_admit(quire_sim_job *job, const quire_sim_place *place);

/* Of n tokens that a job could compute next, those up to the place of its next state. */
uint32_t quire_sim_job_until(const quire_sim_job *job, const quire_sim_tree *tree, uint32_t n);

/* The job has computed n more tokens: publish its whole blocks. Errors: QUIRE_NOPAGES (the answer
 * needs a page; nothing has changed), others as the core's. */
int quire_sim_job_advance(quire_sim_job *job, const quire_sim_place *place, uint32_t n_tokens);

/* Publish the job's blocks and release them. */
void quire_sim_job_leave(quire_sim_job *job, const quire_sim_place *place);

#endif /* QUIRE_TRACE_SIM_JOB_H */
