/* sim_job.c - a job on the tree.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim_job.h"

#include "base/check.h"
#include "core/cache/state_spare.h"
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
    place->tree->promised -= job->promised;
    job->promised = 0;
    quire_sim_text_end(place->tree, &job->text, place->now_us);
}

/* All tokens that the job wants can come from the cache, except the last, which is computed. */
static uint32_t computed_by(const quire_sim_job *job, const quire_trace *trace, uint32_t hit_blocks)
{
    uint64_t n = (uint64_t)hit_blocks * trace->block_tokens;
    uint32_t wants = quire_sim_job_wants(job);

    return n < wants ? (uint32_t)n : wants - 1;
}

/* Whether a job takes pages step by step: pages behind windows are let go meanwhile, and states are
 * left. */
static bool is_gradual(const quire_sim_tree *t)
{
    return t->kv.window_bytes != 0 || t->kv.state_bytes != 0;
}

uint64_t quire_sim_job_charge(const quire_sim_tree *t, uint32_t n_blocks, uint32_t chunk_tokens)
{
    const uint64_t block = t->kv.block_bytes != 0 ? t->kv.block_bytes : 1;
    const uint32_t n_step = (chunk_tokens + t->block_tokens - 1) / t->block_tokens + 1;
    const uint32_t n_window = t->window_blocks + n_step;

    return n_blocks * block + (n_window < n_blocks ? n_window : n_blocks) * t->kv.window_bytes +
           2 * t->kv.seq_state_bytes;
}

/* Room for the rest of the job's blocks, on paper as in the engine, and its states. */
static int gradual_begin(quire_sim_job *job, const quire_sim_place *place, uint32_t n_blocks)
{
    quire_sim_tree *t = place->tree;
    const uint32_t n_rest = n_blocks - job->text.hit_blocks;
    quire_page_id pages[2];

    QUIRE_FAIL_IF(quire_sim_job_charge(t, n_rest, place->chunk_tokens) >
                      quire_sim_tree_room(t, job->request->class_index),
                  QUIRE_NOPAGES);
    if (t->kv.state_bytes != 0) {
        QUIRE_TRY(quire_seq_states(t->cache, job->text.seq, pages));
    }
    job->promised = n_rest * t->kv.block_bytes;
    t->promised += job->promised;
    return QUIRE_OK;
}

int quire_sim_job_admit(quire_sim_job *job, const quire_sim_place *place)
{
    quire_sim_tree *t = place->tree;
    const uint32_t n_blocks = job_blocks(job, place->trace, quire_sim_job_wants(job));
    const quire_sim_text_ask ask = { .request = job->request,
                                     .tokens = job_text(job, place, n_blocks),
                                     .n_blocks = n_blocks,
                                     .n_tokens = quire_sim_job_wants(job),
                                     .now_us = place->now_us,
                                     .rank = job->rank };
    uint32_t hit_blocks;
    int rc;

    QUIRE_TRY(quire_sim_text_begin(t, &ask, &job->text));
    rc = is_gradual(t) ? gradual_begin(job, place, n_blocks)
                       : quire_sim_text_grow(t, &job->text, n_blocks);
    if (rc < 0) {
        job_end(job, place);
        return rc;
    }
    hit_blocks = job->text.hit_blocks;
    job->n_computed = computed_by(job, place->trace, hit_blocks);
    job->hit_blocks = hit_blocks < job->request->n_blocks ? hit_blocks : job->request->n_blocks;
    return QUIRE_OK;
}

uint32_t quire_sim_job_until(const quire_sim_job *job, const quire_sim_tree *t, uint32_t n)
{
    const uint64_t next = quire_sim_text_next(t, &job->text, job->n_computed / t->block_tokens);
    const uint64_t n_until = next * t->block_tokens - job->n_computed;

    return t->kv.state_bytes != 0 && n_until < n ? (uint32_t)n_until : n;
}

static int job_publish(quire_sim_job *job, const quire_sim_place *place, uint32_t n)
{
    return n > job->text.n_published
               ? quire_sim_text_publish(place->tree, &job->text, job_text(job, place, n), n,
                                        place->now_us)
               : QUIRE_OK;
}

/* Take the blocks of a step. */
static int job_grow(quire_sim_job *job, const quire_sim_place *place, uint32_t n_blocks)
{
    quire_sim_tree *t = place->tree;
    const uint32_t n_before = quire_seq_tokens(t->cache, job->text.seq) / PAGE_TOKENS;
    uint64_t taken;

    QUIRE_TRY(quire_sim_text_grow(t, &job->text, n_blocks));
    taken =
        (quire_seq_tokens(t->cache, job->text.seq) / PAGE_TOKENS - n_before) * t->kv.block_bytes;
    taken = taken < job->promised ? taken : job->promised;
    job->promised -= taken;
    t->promised -= taken;
    return QUIRE_OK;
}

int quire_sim_job_advance(quire_sim_job *job, const quire_sim_place *place, uint32_t n_tokens)
{
    uint32_t n_computed = job->n_computed + n_tokens;
    uint32_t n_needed = job_blocks(job, place->trace, n_computed);
    uint32_t n_whole = n_computed / place->trace->block_tokens;

    QUIRE_TRY(job_grow(job, place, n_needed));
    job->n_computed = n_computed;
    if (n_computed >= job->request->n_input_tokens && n_whole < job->request->n_blocks) {
        n_whole = job->request->n_blocks; /* the prompt's last block has an id of its own */
    }
    QUIRE_TRY(job_publish(job, place, n_whole < n_needed ? n_whole : n_needed));
    if (n_computed % place->trace->block_tokens == 0) {
        quire_sim_text_state(place->tree, &job->text, job->text.n_published, false);
    }
    return QUIRE_OK;
}

/* As in the engine: a sequence that ends has room for its state in the page that no step writes. */
static void spare_drop(const quire_sim_job *job, quire_sim_tree *t)
{
    quire_page_id pages[2];

    if (t->kv.state_bytes != 0 && quire_seq_states(t->cache, job->text.seq, pages) == QUIRE_OK) {
        quire_seq_state_spare_drop(t->cache, job->text.seq, quire_cache_state(t->cache, pages[0]));
    }
}

void quire_sim_job_leave(quire_sim_job *job, const quire_sim_place *place)
{
    bool is_done =
        job->n_computed + 1 >= job->request->n_input_tokens + job->request->n_output_tokens;

    if (is_done) { /* the last page too, however full it is */
        (void)job_publish(job, place,
                          quire_seq_tokens(place->tree->cache, job->text.seq) / PAGE_TOKENS);
    }
    if (is_done || job->n_computed % place->trace->block_tokens == 0) {
        spare_drop(job, place->tree);
        quire_sim_text_state(place->tree, &job->text, job->text.n_published, true);
    }
    job_end(job, place);
}
