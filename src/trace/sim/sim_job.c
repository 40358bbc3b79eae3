/* sim_job.c - a job on the tree.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim_job.h"

#include "base/check.h"
#include "trace/sim/sim_internal.h"

#define PAGE_TOKENS QUIRE_PAGE_TOKENS_MIN

static uint32_t blocks_of(const quire_trace *trace, uint64_t n_tokens)
{
    return (uint32_t)((n_tokens + trace->block_tokens - 1) / trace->block_tokens);
}

uint32_t quire_sim_job_blocks(const quire_trace *trace, const quire_trace_request *request)
{
    uint32_t n = blocks_of(trace, (uint64_t)request->n_input_tokens + request->n_output_tokens);

    return n > request->n_blocks ? n : request->n_blocks;
}

/* Blocks that hold n_tokens of the job. The trace may give a prompt more or fewer blocks than its
 * length needs (text is cut by bytes); the trace's blocks count. */
static uint32_t job_blocks(const quire_sim_job *job, const quire_trace *trace, uint32_t n_tokens)
{
    const quire_trace_request *request = job->request;
    uint32_t n = blocks_of(trace, n_tokens);

    if (n_tokens < request->n_input_tokens) {
        return n < request->n_blocks ? n : request->n_blocks;
    }
    return n > request->n_blocks ? n : request->n_blocks;
}

/* The tokens of its first n blocks. */
static const int32_t *job_text(const quire_sim_job *job, const quire_sim_place *place, uint32_t n)
{
    const quire_trace_request *request = job->request;
    uint32_t n_prompt = n < request->n_blocks ? n : request->n_blocks;
    int32_t *tokens =
        quire_sim_tree_text(place->tree, quire_trace_blocks(place->trace, request), n_prompt);

    for (uint32_t i = n_prompt; i < n; i++) {
        tokens[(size_t)i * PAGE_TOKENS] = -1 - (int32_t)(job->own_id + i - n_prompt);
    }
    return tokens;
}

static void job_end(quire_sim_job *job, const quire_sim_place *place)
{
    (void)quire_prefix_release(place->tree->tree, job->ref, place->now_us);
    (void)quire_seq_close(place->tree->cache, job->seq);
    job->seq = QUIRE_SEQ_NULL;
    job->ref = QUIRE_PREFIX_REF_NULL;
}

/* All tokens that the job wants can come from the cache, except the last, which is computed. */
static uint32_t computed_by(const quire_sim_job *job, const quire_trace *trace, uint32_t hit_blocks)
{
    uint64_t n = (uint64_t)hit_blocks * trace->block_tokens;
    uint32_t wants = quire_sim_job_wants(job);

    return n < wants ? (uint32_t)n : wants - 1;
}

int quire_sim_job_admit(quire_sim_job *job, const quire_sim_place *place)
{
    const quire_sim_tree *t = place->tree;
    uint32_t n_blocks = job_blocks(job, place->trace, quire_sim_job_wants(job));
    const int32_t *tokens = job_text(job, place, n_blocks);
    quire_prefix_acquire_opts opts = { .tokens_max = n_blocks * PAGE_TOKENS,
                                       .owner = job->request->session,
                                       .now_us = place->now_us,
                                       .rank = job->rank };
    quire_prefix_match match;
    uint32_t hit_blocks;
    int rc;

    QUIRE_TRY(
        quire_seq_open(t->cache, quire_sim_tree_region(t, job->request->class_index), &job->seq));
    rc = quire_prefix_acquire(t->tree, &quire_sim_key, job->seq, tokens, n_blocks * PAGE_TOKENS,
                              &opts, &match, &job->ref);
    if (rc < 0) {
        (void)quire_seq_close(t->cache, job->seq);
        return rc;
    }
    hit_blocks = match.n_tokens / PAGE_TOKENS;
    rc = quire_seq_append(t->cache, job->seq, (n_blocks - hit_blocks) * PAGE_TOKENS);
    if (rc < 0) {
        job_end(job, place);
        return rc;
    }
    job->n_computed = computed_by(job, place->trace, hit_blocks);
    job->n_published = hit_blocks;
    job->hit_blocks = hit_blocks < job->request->n_blocks ? hit_blocks : job->request->n_blocks;
    job->gone_blocks = match.n_gone_tokens / PAGE_TOKENS;
    return QUIRE_OK;
}

/* Make the first n blocks known. */
static int job_publish(quire_sim_job *job, const quire_sim_place *place, uint32_t n)
{
    if (n <= job->n_published) {
        return QUIRE_OK;
    }
    job->n_published = n;
    return quire_prefix_publish(place->tree->tree, job->ref, job_text(job, place, n),
                                n * PAGE_TOKENS, place->now_us);
}

int quire_sim_job_advance(quire_sim_job *job, const quire_sim_place *place, uint32_t n_tokens)
{
    const quire_sim_tree *t = place->tree;
    uint32_t n_computed = job->n_computed + n_tokens;
    uint32_t n_held = quire_seq_tokens(t->cache, job->seq) / PAGE_TOKENS;
    uint32_t n_needed = job_blocks(job, place->trace, n_computed);
    uint32_t n_whole = n_computed / place->trace->block_tokens;

    if (n_needed > n_held) {
        QUIRE_TRY(quire_seq_append(t->cache, job->seq, (n_needed - n_held) * PAGE_TOKENS));
    }
    job->n_computed = n_computed;
    if (n_computed >= job->request->n_input_tokens && n_whole < job->request->n_blocks) {
        n_whole = job->request->n_blocks; /* the prompt's last block has an id of its own */
    }
    return job_publish(job, place, n_whole < n_needed ? n_whole : n_needed);
}

void quire_sim_job_leave(quire_sim_job *job, const quire_sim_place *place)
{
    bool is_done =
        job->n_computed + 1 >= job->request->n_input_tokens + job->request->n_output_tokens;

    if (is_done) { /* the last page too, however full it is */
        (void)job_publish(job, place, quire_seq_tokens(place->tree->cache, job->seq) / PAGE_TOKENS);
    }
    job_end(job, place);
}
