/* test_recommend.c - settings that fit the workload, and their file.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/recommend.h"

#include "quire/status.h"
#include "seed.h"
#include "trace/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A trace, its analysis, and a question about it. */
typedef struct study {
    quire_trace trace;
    quire_analysis *analysis;
    quire_mrc mrc;
    quire_recommend_ask ask;
} study;

static void study_make(study *s, uint32_t block_tokens)
{
    const workload_opts opts = { .n_requests = 2000,
                                 .n_conversations = 60,
                                 .shared_blocks = 4,
                                 .turn_blocks_max = 6,
                                 .p_end = 0.1 };
    quire_rng rng = test_rng(51);

    workload_begin(&s->trace, block_tokens);
    workload_conversations(&s->trace, &opts, &rng);
    assert_int_equal(quire_analysis_create(&s->analysis, &s->trace, NULL, NULL), QUIRE_OK);
    assert_int_equal(quire_mrc_init(&s->mrc, &s->trace, NULL), QUIRE_OK);
    s->ask = (quire_recommend_ask){ .analysis = s->analysis,
                                    .mrc = &s->mrc,
                                    .token_bytes = 1e5,
                                    .pinned_class = QUIRE_RECOMMEND_NO_CLASS };
}

static void study_end(study *s)
{
    quire_mrc_fini(&s->mrc);
    quire_analysis_destroy(s->analysis);
    quire_trace_fini(&s->trace);
}

static const quire_recommend_item *item_of(const quire_recommendation *r, const char *key)
{
    for (uint32_t i = 0; i < r->n_items; i++) {
        if (strcmp(r->items[i].key, key) == 0) {
            return &r->items[i];
        }
    }
    return NULL;
}

static void test_sizes(void **state)
{
    quire_recommend_sizes sizes;
    quire_recommend_sizes less;
    study s;

    (void)state;
    study_make(&s, 64);
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.page_tokens % 64, 0);
    assert_true(sizes.capacity_blocks >= quire_mrc_knee(&s.mrc));
    assert_true(sizes.hit_rate >= 0.9 * sizes.hit_rate_infinite);
    assert_true(sizes.capacity_blocks < s.trace.n_ids / 2);
    assert_int_equal(sizes.live_tokens, quire_dist_quantile(&s.analysis->load.held_tokens, 0.99));
    assert_int_equal(sizes.memory_bytes, (sizes.capacity_blocks * 64 + sizes.live_tokens) * 100000);
    assert_int_equal(sizes.pinned_bytes, 0);
    /* Windows and states come on top. */
    s.ask.text_bytes = 5e6;
    s.ask.running_bytes = 3e6;
    quire_recommend_sizes_find(&s.ask, &less);
    assert_int_equal(less.capacity_blocks, sizes.capacity_blocks);
    assert_true(quire_recommend_block_bytes(&s.ask) > 64e5);
    assert_in_range(
        less.memory_bytes - sizes.memory_bytes,
        (uint64_t)((double)sizes.capacity_blocks * (quire_recommend_block_bytes(&s.ask) - 64e5)) +
            3000000,
        sizes.capacity_blocks * 5000000 + 3000000 * UINT64_C(2000));
    s.ask.text_bytes = s.ask.running_bytes = 0;
    /* Half of it. */
    s.ask.memory_bytes = sizes.memory_bytes / 2;
    quire_recommend_sizes_find(&s.ask, &less);
    assert_in_range(less.memory_bytes, s.ask.memory_bytes - 6400000, s.ask.memory_bytes);
    assert_true(less.capacity_blocks < sizes.capacity_blocks);
    assert_true(less.hit_rate < sizes.hit_rate);
    /* Less memory than one block. */
    s.ask.memory_bytes = 1;
    quire_recommend_sizes_find(&s.ask, &less);
    assert_int_equal(less.capacity_blocks, 1);
    assert_int_equal(less.memory_bytes, 1);
    /* More memory than pays off. */
    s.ask.memory_bytes = UINT64_MAX;
    quire_recommend_sizes_find(&s.ask, &less);
    assert_int_equal(less.memory_bytes, sizes.memory_bytes);
    /* Without a model there are no bytes. */
    s.ask.memory_bytes = 0;
    s.ask.token_bytes = 0.0;
    quire_recommend_sizes_find(&s.ask, &less);
    assert_int_equal(less.memory_bytes, 0);
    assert_int_equal(less.capacity_blocks, sizes.capacity_blocks);
    study_end(&s);
}

/* Of several devices each has a share of one cache and of the running requests, then the size that
 * was found for it; no more than its memory. */
static void test_devices(void **state)
{
    quire_recommendation r;
    quire_recommend_sizes one, two;
    quire_recommend_policies none = { .n = 0 };
    study s;

    (void)state;
    study_make(&s, 64);
    quire_recommend_sizes_find(&s.ask, &one);
    assert_int_equal(one.n_devices, 1);
    assert_int_equal(one.total_blocks, one.capacity_blocks);
    s.ask.n_devices = 2;
    quire_recommend_sizes_find(&s.ask, &two);
    assert_int_equal(two.n_devices, 2);
    assert_int_equal(two.capacity_blocks, (one.capacity_blocks + 1) / 2);
    assert_int_equal(two.live_tokens, one.live_tokens);
    assert_int_equal(two.memory_bytes, two.capacity_blocks * 6400000 + two.live_tokens * 50000);
    quire_recommend_sizes_each(&s.ask, two.capacity_blocks + 10, 0.5, &two);
    assert_int_equal(two.capacity_blocks, (one.capacity_blocks + 1) / 2 + 10);
    assert_int_equal(two.memory_bytes, two.capacity_blocks * 6400000 + two.live_tokens * 50000);
    assert_true(two.hit_rate > 0.49 && two.hit_rate < 0.51);
    quire_recommend_settings(&s.ask, &two, &none, &r);
    assert_non_null(
        strstr(item_of(&r, "kv_budget")->reason, "Each of 2 devices has such a budget. "));
    assert_non_null(strstr(item_of(&r, "kv_budget")->reason, "; one cache needs "));
    s.ask.memory_bytes = two.memory_bytes - 10 * 6400000;
    quire_recommend_sizes_each(&s.ask, two.capacity_blocks, 0.5, &two);
    assert_in_range(two.capacity_blocks, (one.capacity_blocks + 1) / 2 - 1,
                    (one.capacity_blocks + 1) / 2);
    study_end(&s);
}

static void test_disk(void **state)
{
    static const quire_evict_policy policies[] = { QUIRE_EVICT_DEFAULT };
    static const double rates[] = { 0.10 };
    const quire_recommend_policies given = { .policies = policies,
                                             .hit_rates = rates,
                                             .n = 1,
                                             .disk_hit_rate = 0.15,
                                             .disk_all_hit_rate = 0.20 };
    quire_recommend_sizes memory;
    quire_recommend_sizes sizes;
    quire_recommendation r;
    study s;

    (void)state;
    study_make(&s, 64);
    quire_recommend_sizes_find(&s.ask, &memory);
    quire_recommend_settings(&s.ask, &memory, &given, &r);
    assert_null(item_of(&r, "cache_disk")); /* not asked for */
    /* The disk gets the blocks that memory should have, also when memory is smaller. */
    s.ask.memory_bytes = memory.memory_bytes / 2;
    s.ask.disk_bytes = UINT64_MAX / 2;
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_true(sizes.capacity_blocks < memory.capacity_blocks);
    assert_int_equal(sizes.disk_blocks, memory.capacity_blocks);
    assert_int_equal(sizes.disk_bytes, memory.capacity_blocks * 6400000);
    quire_recommend_settings(&s.ask, &sizes, &given, &r);
    assert_non_null(
        strstr(item_of(&r, "cache_disk")->reason, "Needs a cache_dir. Memory alone serves 10.0 %"));
    assert_non_null(strstr(item_of(&r, "cache_disk")->reason, "it is 15.0 %, and 20.0 %"));
    /* No more than there is. */
    s.ask.disk_bytes = 10 * 6400000 + 1;
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.disk_blocks, 10);
    assert_int_equal(sizes.disk_bytes, 64000000);
    s.ask.token_bytes = 0.0;
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.disk_blocks, 0);
    study_end(&s);
}

/* Settings are rounded up to whole units, but not above the memory and the disk that there are. */
static void test_rounding(void **state)
{
    static const struct {
        uint64_t bytes, most;
        const char *said;
    } cases[] = { { 1000001, 0, "2MB" },
                  { 1000001, 2000000, "2MB" },
                  { 1000001, 1999999, "1MB" },
                  { 999999, 999999, "999999" },
                  { 17179869184, 17179869184, "17179MB" },
                  { 137438953472, 137438953472, "137GB" },
                  { 137438953472, 0, "138GB" } };
    const quire_recommend_policies none = { .n = 0 };
    quire_recommend_sizes sizes;
    quire_recommendation r;
    study s;

    (void)state;
    study_make(&s, 64);
    quire_recommend_sizes_find(&s.ask, &sizes);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        s.ask.memory_bytes = s.ask.disk_bytes = cases[i].most;
        sizes.memory_bytes = sizes.disk_bytes = cases[i].bytes;
        sizes.disk_blocks = 1;
        quire_recommend_settings(&s.ask, &sizes, &none, &r);
        assert_string_equal(item_of(&r, "kv_budget")->value, cases[i].said);
        assert_string_equal(item_of(&r, "cache_disk")->value, cases[i].said);
    }
    study_end(&s);
}

static void test_policy(void **state)
{
    static const quire_evict_policy policies[] = { QUIRE_EVICT_DEFAULT, QUIRE_EVICT_LRU,
                                                   QUIRE_EVICT_GDSF };
    double rates[] = { 0.300, 0.250, 0.301 };
    quire_recommend_policies given = { .policies = policies, .hit_rates = rates, .n = 3 };
    quire_recommend_sizes sizes;
    quire_recommendation r;
    study s;

    (void)state;
    study_make(&s, 64);
    quire_recommend_sizes_find(&s.ask, &sizes);
    quire_recommend_settings(&s.ask, &sizes, &given, &r);
    assert_int_equal(r.policy, QUIRE_EVICT_DEFAULT); /* as good as the best */
    assert_string_equal(item_of(&r, "cache_policy")->value, "default");
    rates[2] = 0.31;
    quire_recommend_settings(&s.ask, &sizes, &given, &r);
    assert_int_equal(r.policy, QUIRE_EVICT_GDSF);
    assert_true(r.policy_hit_rate == 0.31);
    assert_non_null(strstr(item_of(&r, "cache_policy")->reason, "gdsf 31.0 %"));
    given.n = 0;
    quire_recommend_settings(&s.ask, &sizes, &given, &r);
    assert_int_equal(r.policy, QUIRE_EVICT_DEFAULT);
    study_end(&s);
}

static void test_ttl(void **state)
{
    const quire_recommend_policies none = { .n = 0 };
    quire_recommend_sizes sizes;
    quire_recommendation r;
    study s;

    (void)state;
    study_make(&s, 64);
    quire_recommend_sizes_find(&s.ask, &sizes);
    /* Gaps of 10 s in a trace of 30 minutes. */
    memset(&s.analysis->gap_us, 0, sizeof(s.analysis->gap_us));
    quire_dist_add_n(&s.analysis->gap_us, 10000000, 100);
    s.analysis->span_us = 1800000000;
    quire_recommend_settings(&s.ask, &sizes, &none, &r);
    assert_int_equal(r.ttl_us, 30000000);
    assert_string_equal(item_of(&r, "cache_ttl")->value, "30s");
    /* In one of 30 s. */
    s.analysis->span_us = 30000000;
    quire_recommend_settings(&s.ask, &sizes, &none, &r);
    assert_int_equal(r.ttl_us, 0);
    assert_string_equal(item_of(&r, "cache_ttl")->value, "0");
    assert_non_null(strstr(item_of(&r, "cache_ttl")->reason, "too short"));
    memset(&s.analysis->gap_us, 0, sizeof(s.analysis->gap_us));
    quire_recommend_settings(&s.ask, &sizes, &none, &r);
    assert_string_equal(item_of(&r, "cache_ttl")->value, "0");
    study_end(&s);
}

static void test_pages(void **state)
{
    quire_recommend_sizes sizes;
    study s;

    (void)state;
    study_make(&s, 64);
    for (uint32_t p = 0; p < QUIRE_ANALYZE_PAGES; p++) {
        s.analysis->pages[p].lost_share = 0.001 * s.analysis->pages[p].page_tokens / 64;
        s.analysis->pages[p].unused_share = 0.004;
    }
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.page_tokens, 1024);
    s.analysis->pages[4].unused_share = 0.005;
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.page_tokens, 512);
    for (uint32_t p = 0; p < QUIRE_ANALYZE_PAGES; p++) {
        s.analysis->pages[p].lost_share = 0.5;
    }
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.page_tokens, 64);
    study_end(&s);
}

static void test_pinned(void **state)
{
    const quire_recommend_policies none = { .n = 0 };
    quire_recommend_sizes sizes;
    quire_recommendation r;
    study s;

    (void)state;
    study_make(&s, 64);
    s.ask.pinned_class = 0;
    s.ask.class_name = "realtime";
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_true(sizes.pinned_bytes > 0);
    assert_true((double)sizes.pinned_bytes <= 0.8 * (double)sizes.memory_bytes);
    quire_recommend_settings(&s.ask, &sizes, &none, &r);
    assert_non_null(item_of(&r, "pinned"));
    assert_non_null(strstr(item_of(&r, "pinned")->reason, "realtime"));
    s.ask.memory_bytes = 100000000;
    quire_recommend_sizes_find(&s.ask, &sizes);
    assert_int_equal(sizes.pinned_bytes, 80000000);
    study_end(&s);
}

/* Comments have bounded lines, and no text ends one. */
static void test_yaml(void **state)
{
    const quire_recommend_policies none = { .n = 0 };
    quire_recommend_sizes sizes;
    quire_recommendation r;
    quire_bytes yaml = { 0 };
    study s;

    (void)state;
    study_make(&s, 64);
    s.ask.token_bytes = 0.0;
    quire_recommend_sizes_find(&s.ask, &sizes);
    quire_recommend_settings(&s.ask, &sizes, &none, &r);
    assert_int_equal(quire_recommend_yaml(&r, "evil\nport: 1\x01 name", &yaml), QUIRE_OK);
    assert_non_null(strstr(yaml.data, "# evil port: 1? name\n"));
    assert_non_null(strstr(yaml.data, "\n# kv_budget: BYTES\n"));
    assert_non_null(strstr(yaml.data, "\ncache_policy: default\n"));
    for (const char *line = yaml.data; *line != '\0'; line = strchr(line, '\n') + 1) {
        const size_t n = (size_t)(strchr(line, '\n') - line);

        assert_in_range(n, 0, 97);
        assert_true(n == 0 || line[0] == '#' || strncmp(line, "page_tokens: ", 13) == 0 ||
                    strncmp(line, "cache_", 6) == 0);
    }
    quire_bytes_fini(&yaml);
    study_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),  cmocka_unit_test(test_devices),  cmocka_unit_test(test_disk),
        cmocka_unit_test(test_policy), cmocka_unit_test(test_rounding), cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_pages),  cmocka_unit_test(test_pinned),   cmocka_unit_test(test_yaml),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
