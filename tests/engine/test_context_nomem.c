/* test_context_nomem.c - a full context whose tokens could be published in part only: the tree's
 * pages do not change when tokens move.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "context_kit.h"

static bool publishes_part;

int __real_quire_prefix_publish(quire_prefix *tree, quire_prefix_ref ref, const int32_t *tokens,
                                uint32_t n_tokens, uint64_t now_us);
int __wrap_quire_prefix_publish(quire_prefix *tree, quire_prefix_ref ref, const int32_t *tokens,
                                uint32_t n_tokens, uint64_t now_us);

/* Memory ends behind the first three pages. */
int __wrap_quire_prefix_publish(quire_prefix *tree, quire_prefix_ref ref, const int32_t *tokens,
                                uint32_t n_tokens, uint64_t now_us)
{
    const uint32_t n_part = publishes_part && n_tokens > 192 ? 192 : n_tokens;
    const int rc = __real_quire_prefix_publish(tree, ref, tokens, n_part, now_us);

    return rc == QUIRE_OK && publishes_part ? QUIRE_NOMEM : rc;
}

static void test_part(void **state)
{
    static const setting settings[] = {
        { .format = QUIRE_FORMAT_F16,
          .overflow = QUIRE_CONTEXT_SHIFT,
          .keep = 64,
          .n_contexts = 3 },
        { .format = QUIRE_FORMAT_Q4, .overflow = QUIRE_CONTEXT_SHIFT, .n_contexts = 3 },
        { .format = QUIRE_FORMAT_F16, .overflow = QUIRE_CONTEXT_CONDENSE, .n_contexts = 3 },
    };
    static answer want, plain, got;
    int32_t text[N_LONG];

    (void)state;
    tokens_make(text, N_LONG, 1);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const setting *s = &settings[i];
        const setting refuse = { .format = s->format };
        engine_bench b = context_bench(s);
        quire_request *request;

        expect(&b, s, text, N_PROMPT, N_TOKENS, &want);
        expect(&b, &refuse, text, N_PROMPT, 20, &plain);
        publishes_part = true;
        assert_int_equal(check(&b, s, text, N_PROMPT, &want), 0);
        publishes_part = false;
        assert_true(stats_now(b.engine).context_shifts_total > 0);
        request = ask(&b, &refuse, text, N_PROMPT, 20);
        answer_take(request, &got);
        assert_int_equal(quire_request_result_get(request)->n_cached_tokens, 192);
        if (s->format == QUIRE_FORMAT_F16) { /* in q4, recent tokens that were found are sealed */
            assert_same(&got, &plain);
        }
        quire_request_release(request);
        validate(b.engine);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
