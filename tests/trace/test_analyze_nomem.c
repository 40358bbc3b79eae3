/* test_analyze_nomem.c - every allocation of the analysis fails once: a status, and nothing leaks.
 *
 * SPDX-License-Identifier: MIT */
#include "core/core_support.h"
#include "quire/status.h"
#include "seed.h"
#include "trace/offline/analyze.h"
#include "trace/offline/mrc.h"
#include "trace/offline/shards.h"
#include "trace/online/recent.h"
#include "trace/online/tune.h"
#include "trace/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef int attempt(const quire_trace *trace, const quire_allocator *allocator);

/* Let one call after the other fail, until none is left to. */
static void exhaust(attempt *run, uint64_t least)
{
    const workload_opts opts = { .n_requests = 50,
                                 .n_conversations = 5,
                                 .shared_blocks = 2,
                                 .turn_blocks_max = 100,
                                 .p_end = 0.1 };
    quire_rng rng = test_rng(61);
    quire_trace trace;
    test_memory memory;
    uint64_t n = 0;

    workload_begin(&trace, 64);
    workload_conversations(&trace, &opts, &rng);
    do {
        int rc;

        test_memory_init(&memory);
        memory.fail_at = n++;
        rc = run(&trace, &memory.allocator);
        assert_int_equal(rc, memory.has_failed ? QUIRE_NOMEM : QUIRE_OK);
        assert_int_equal(memory.n_live, 0);
    } while (memory.has_failed);
    assert_in_range(n, least + 1, 1000);
    quire_trace_fini(&trace);
}

static int run_analysis(const quire_trace *trace, const quire_allocator *allocator)
{
    quire_analysis *analysis;
    const int rc = quire_analysis_create(&analysis, trace, NULL, allocator);

    if (rc == QUIRE_OK) {
        quire_analysis_destroy(analysis);
    }
    return rc;
}

static int run_mrc(const quire_trace *trace, const quire_allocator *allocator)
{
    quire_mrc mrc;
    const int rc = quire_mrc_init(&mrc, trace, allocator);

    if (rc == QUIRE_OK) {
        quire_mrc_fini(&mrc);
    }
    return rc;
}

static int run_shards(const quire_trace *trace, const quire_allocator *allocator)
{
    const quire_shards_opts opts = { .sample_max = 64, .allocator = allocator };
    quire_shards *shards;
    int rc = quire_shards_create(&shards, &opts);

    if (rc == QUIRE_OK) {
        rc = quire_shards_add_trace(shards, trace);
        quire_shards_destroy(shards);
    }
    return rc;
}

static int run_recent(const quire_trace *trace, const quire_allocator *allocator)
{
    static const int32_t tokens[1000];
    quire_recent_opts opts = QUIRE_RECENT_OPTS_INIT;
    quire_recent *recent;
    quire_trace made;
    int rc;

    (void)trace;
    opts.ring_bytes = QUIRE_RECENT_BYTES_MIN;
    opts.allocator = allocator;
    rc = quire_recent_create(&recent, &opts);
    if (rc != QUIRE_OK) {
        return rc;
    }
    quire_recent_add(recent, &(quire_recent_request){ .tokens = tokens, .n_input_tokens = 1000 });
    rc = quire_recent_trace(recent, 1, &made);
    if (rc == QUIRE_OK) {
        quire_trace_fini(&made);
    }
    quire_recent_destroy(recent);
    return rc;
}

static int run_tune(const quire_trace *trace, const quire_allocator *allocator)
{
    const quire_tune_ask ask = { .settings = { .memory_bytes = 1u << 20 }, .token_bytes = 10.0 };
    quire_tune_facts facts;
    quire_trace copy = *trace;

    copy.allocator = *allocator; /* the measurement allocates from it */
    return quire_tune_measure(&copy, &ask, &facts);
}

static void test_all(void **state)
{
    (void)state;
    exhaust(run_analysis, 6);
    exhaust(run_mrc, 4);
    exhaust(run_shards, 8);
    exhaust(run_recent, 5);
    exhaust(run_tune, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
