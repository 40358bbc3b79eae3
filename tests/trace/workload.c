/* workload.c - traces for tests.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/workload.h"

#include "quire/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CONVERSATION_BLOCKS_MAX 512u

void workload_begin(quire_trace *trace, uint32_t block_tokens)
{
    quire_trace_init(trace, NULL);
    trace->block_tokens = block_tokens;
    trace->has_contents = true;
    trace->n_classes = 1;
    trace->n_tenants = 1;
}

void workload_add_as(quire_trace *trace, quire_trace_request request, const char *blocks)
{
    uint64_t keys[64];

    request.n_blocks = (uint32_t)strlen(blocks);
    assert_true(request.n_blocks <= sizeof(keys) / sizeof(keys[0]));
    if (request.n_input_tokens == 0) {
        request.n_input_tokens = request.n_blocks * trace->block_tokens;
    }
    for (uint32_t i = 0; i < request.n_blocks; i++) {
        keys[i] = (unsigned char)blocks[i];
    }
    assert_int_equal(quire_trace_add_keys(trace, &request, keys), QUIRE_OK);
}

void workload_add(quire_trace *trace, uint64_t time_us, const char *blocks)
{
    workload_add_as(trace, (quire_trace_request){ .time_us = time_us }, blocks);
}

typedef struct conversation {
    uint32_t n;
    uint64_t keys[CONVERSATION_BLOCKS_MAX];
} conversation;

void workload_conversations(quire_trace *trace, const workload_opts *opts, quire_rng *rng)
{
    conversation *open = test_calloc(opts->n_conversations, sizeof(*open));
    uint64_t next_key = opts->shared_blocks;
    uint64_t time_us = 0;

    for (uint32_t r = 0; r < opts->n_requests; r++) {
        conversation *c = &open[quire_rng_below(rng, opts->n_conversations)];
        const uint32_t more = 1 + quire_rng_below(rng, opts->turn_blocks_max);
        quire_trace_request request = { .n_output_tokens = 1 + quire_rng_below(rng, 500) };

        if (c->n == 0 || c->n + more > CONVERSATION_BLOCKS_MAX) {
            c->n = opts->shared_blocks;
            for (uint32_t i = 0; i < c->n; i++) {
                c->keys[i] = i;
            }
        }
        for (uint32_t i = 0; i < more; i++) {
            c->keys[c->n++] = next_key++;
        }
        time_us += quire_rng_below(rng, 2000000);
        request.time_us = time_us;
        request.n_blocks = c->n;
        request.n_input_tokens = c->n * trace->block_tokens;
        assert_int_equal(quire_trace_add_keys(trace, &request, c->keys), QUIRE_OK);
        if (quire_rng_unit(rng) < opts->p_end) {
            c->n = 0;
        }
    }
    test_free(open);
    quire_trace_finish(trace);
}
