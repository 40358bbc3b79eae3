/* test_chat_reading.c - answers that keep to no format, that have too many calls, or that are read
 * without memory or random bytes; triggers that are patterns.
 *
 * The linker redirects getrandom() and posix_memalign(), by which C++ gets its memory, here
 * (--wrap).
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "chat_fixture.h"
#include "model/answer_rules.h"
#include "model/chat_internal.h"
#include "model/sampler.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* Readings run on threads of their own. */
static atomic_uint n_allocations;
static atomic_uint fail_at; /* the allocation that fails, from 1; 0 = none */
static atomic_bool has_no_random;

int __real_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    const unsigned at = atomic_load(&fail_at);

    return at > 0 && atomic_fetch_add(&n_allocations, 1) + 1 == at
               ? ENOMEM
               : __real_posix_memalign(out, align, n);
}

ssize_t __real_getrandom(void *out, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *out, size_t n, unsigned flags)
{
    return atomic_load(&has_no_random) ? -1 : __real_getrandom(out, n, flags);
}

static quire_model *model;

static int open_model(void **state)
{
    (void)state;
    model = chat_fixture_model();
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

static quire_chat_prompt *prompt_of(const char *name, const quire_chat_ask *ask)
{
    char *text = chat_fixture_template(name);
    quire_chat_format *format = chat_fixture_format(model, text);
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_prompt *prompt;

    if (quire_chat_format_apply(format, ask, &prompt, &err) < 0) {
        fail_msg("%s: %s", name, err.message);
    }
    quire_chat_format_destroy(format);
    free(text);
    return prompt;
}

/* A prompt with tools, for several calls. */
static quire_chat_prompt *prompt_with_tools(const char *name)
{
    size_t n;
    quire_chat_ask ask = chat_fixture_cases(&n)[1].ask;

    ask.parallel_calls = QUIRE_CHAT_ON;
    return prompt_of(name, &ask);
}

static quire_chat_reader *reader_of(const quire_chat_prompt *prompt)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_reader *reader;

    assert_int_equal(quire_chat_reader_create(&reader, prompt, &err), QUIRE_OK);
    return reader;
}

static void assert_text(quire_chat_text text, const char *expected)
{
    assert_string_equal(text.data, expected);
    assert_int_equal(text.n, strlen(expected));
}

/* ---- readings ---- */

#define CALL                                                                                       \
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n"                      \
    "</tool_call>\n"
#define ANSWER "<think>\nTwo and three, which is a sum.\n</think>\n\n" CALL CALL

/* Calls beyond the most that a message has are left out. */
static void calls_beyond_the_most_are_left_out(void **state)
{
    quire_chat_prompt *prompt = prompt_with_tools("Qwen-Qwen2.5-7B-Instruct");
    quire_chat_reader *reader = reader_of(prompt);
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_answer answer;
    quire_bytes text = { 0 };

    (void)state;
    for (uint32_t i = 0; i < QUIRE_CHAT_CALLS_MAX + 2; i++) {
        assert_int_equal(quire_bytes_add(&text, CALL, strlen(CALL)), QUIRE_OK);
    }
    assert_int_equal(quire_chat_reader_feed(reader, text.data, text.n, true, &err), QUIRE_OK);
    quire_chat_reader_answer(reader, &answer);
    assert_int_equal(answer.n_calls, QUIRE_CHAT_CALLS_MAX);
    assert_text(answer.calls[QUIRE_CHAT_CALLS_MAX - 1].name, "add");
    quire_bytes_fini(&text);
    quire_chat_reader_destroy(reader);
    quire_chat_prompt_destroy(prompt);
}

/* Feed a reader; the content then. */
static const char *content_after(quire_chat_reader *reader, const char *text, bool is_last)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_answer answer;

    assert_int_equal(quire_chat_reader_feed(reader, text, strlen(text), is_last, &err), QUIRE_OK);
    quire_chat_reader_answer(reader, &answer);
    return answer.content.data;
}

/* Where no part of a text can be read, more text may decide; at the end all of it is content. */
static void an_answer_of_no_format_is_content(void **state)
{
    static const char *const names[] = { "Qwen-Qwen2.5-7B-Instruct", "google-gemma-4-31B-it",
                                         "openai-gpt-oss-120b" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n;
        quire_chat_ask ask = chat_fixture_cases(&n)[0].ask;
        quire_chat_prompt *prompt;
        quire_chat_reader *reader;

        ask.schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}";
        prompt = prompt_of(names[i], &ask);
        reader = reader_of(prompt);
        assert_string_equal(content_after(reader, "No ", false), "");
        assert_string_equal(content_after(reader, "JSON", false), "");
        assert_string_equal(content_after(reader, "", true), "No JSON");
        quire_chat_reader_destroy(reader);
        quire_chat_prompt_destroy(prompt);
    }
}

/* As above, where not even the beginning can be read: an answer that has to write the end of the
 * prompt itself. */
static void an_answer_without_its_beginning_is_content(void **state)
{
    size_t n;
    quire_chat_ask ask = chat_fixture_cases(&n)[0].ask;
    quire_chat_prompt *prompt;
    quire_chat_reader *reader;

    (void)state;
    ask.omits_generation_prompt = true;
    prompt = prompt_of("meetkai-functionary-medium-v3.2", &ask);
    reader = reader_of(prompt);
    assert_string_equal(content_after(reader, "Hel", false), "");
    assert_string_equal(content_after(reader, "lo", false), "");
    assert_string_equal(content_after(reader, "", true), "Hello");
    quire_chat_reader_destroy(reader);
    quire_chat_prompt_destroy(prompt);
}

/* Each allocation of a reading fails once. */
static void a_reading_without_memory_is_refused(void **state)
{
    quire_chat_prompt *prompt = prompt_with_tools("Qwen-Qwen3-0.6B");
    unsigned n_refused = 0;

    (void)state;
    for (unsigned at = 1;; at++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_chat_reader *reader = NULL;
        quire_chat_answer answer;
        int rc;

        atomic_store(&n_allocations, 0);
        atomic_store(&fail_at, at);
        rc = quire_chat_reader_create(&reader, prompt, &err);
        rc = rc < 0 ? rc : quire_chat_reader_feed(reader, ANSWER, strlen(ANSWER), true, &err);
        atomic_store(&fail_at, 0);
        if (rc == QUIRE_OK) {
            quire_chat_reader_answer(reader, &answer);
            assert_int_equal(answer.n_calls, 2);
        } else if (rc != QUIRE_NOMEM) {
            fail_msg("allocation %u: %s", at, err.message);
        }
        n_refused += rc < 0;
        if (at == 1) {
            assert_null(reader);
            assert_string_equal(err.message, "no memory for reading an answer");
        }
        quire_chat_reader_destroy(reader);
        if (atomic_load(&n_allocations) < at) {
            break;
        }
    }
    assert_true(n_refused > 10);
    quire_chat_prompt_destroy(prompt);
}

/* The ids of calls are random; without random bytes there is no answer. */
static void calls_without_random_bytes_are_refused(void **state)
{
    quire_chat_prompt *prompt = prompt_with_tools("Qwen-Qwen3-0.6B");
    quire_chat_reader *reader = reader_of(prompt);
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_answer answer;

    (void)state;
    atomic_store(&has_no_random, true);
    assert_int_equal(quire_chat_reader_feed(reader, ANSWER, strlen(ANSWER), true, &err), QUIRE_IO);
    atomic_store(&has_no_random, false);
    assert_string_equal(err.message, "answer: no random bytes for the id of a call");
    quire_chat_reader_answer(reader, &answer);
    assert_int_equal(answer.n_calls, 0);
    quire_chat_reader_destroy(reader);
    quire_chat_prompt_destroy(prompt);
}

/* ---- triggers ---- */

static size_t find_at(const char *pattern, const char *text, bool is_at_start)
{
    quire_chat_place place = { 99, 99 };

    return quire_chat_pattern_find(pattern, text, strlen(text), is_at_start, &place) ? place.at
                                                                                     : SIZE_MAX;
}

/* The place where the grammar begins. */
static size_t find_begin(const char *pattern, const char *text)
{
    quire_chat_place place = { 99, 99 };

    assert_true(quire_chat_pattern_find(pattern, text, strlen(text), true, &place));
    return place.begin;
}

static void a_pattern_is_found_where_it_begins(void **state)
{
    (void)state;
    assert_int_equal(find_at("b(c)?(d+)", "abcdd", true), 1);
    /* The grammar begins at the first group that has text. */
    assert_int_equal(find_begin("b(c)?(d+)", "abcdd"), 2);
    assert_int_equal(find_begin("b(c)?(d+)", "abdd"), 2);
    assert_int_equal(find_begin("bc(x?)(d+)", "abcdd"), 3);
    assert_int_equal(find_begin("b(x?)c", "abc"), 1);
    assert_int_equal(find_begin("bc", "abc"), 1);
    assert_int_equal(find_at(">>>(?!all)", "x>>>add", false), 1);
    assert_true(find_at(">>>(?!all)", "x>>>all", false) == SIZE_MAX);
    /* A whole text, which is one only at the start. */
    assert_int_equal(find_at("^\\s+to$", " to", true), 0);
    assert_true(find_at("^\\s+to$", " to=", true) == SIZE_MAX);
    assert_true(find_at("^\\s+to$", " to", false) == SIZE_MAX);
    /* The start of the answer is not that of the text. */
    assert_int_equal(find_at("^a", "ab", true), 0);
    assert_true(find_at("^a", "ab", false) == SIZE_MAX);
    /* No pattern at all. */
    assert_true(find_at("a(", "a(", true) == SIZE_MAX);
}

/* Pick the tokens of a text, each of which must be allowed. */
static void pick_text(quire_sampler *sampler, float *logits, const char *text)
{
    int32_t tokens[64];
    const int64_t n = quire_model_tokenize(model, text, strlen(text), false, true, tokens, 64);

    assert_true(n > 0 && n <= 64);
    for (int64_t i = 0; i < n; i++) {
        logits[tokens[i]] = 9.0f;
        assert_int_equal(quire_sampler_pick(sampler, logits), tokens[i]);
        logits[tokens[i]] = 0.0f;
    }
}

/* A text that a pattern takes for a call and the grammar does not goes on without the grammar. The
 * grammar begins at the next text that both take. */
static void a_text_that_the_grammar_refuses_is_no_call(void **state)
{
    const quire_chat_trigger trigger = { "[a-z]*(<c+>)", true };
    const quire_chat_rules rules = { .grammar = "root ::= \"<c>\" [0-9]+ \"!\"",
                                     .is_grammar_lazy = true,
                                     .triggers = &trigger,
                                     .n_triggers = 1 };
    float *logits = calloc(quire_model_desc_get(model)->n_vocab, sizeof *logits);
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *sampler;
    char piece[64];
    int32_t token;

    (void)state;
    assert_non_null(logits);
    opts.temperature = 0.0f;
    assert_int_equal(quire_answer_rules_create(&opts.rules, model, &rules, -1, &err), QUIRE_OK);
    assert_int_equal(quire_sampler_create(&sampler, model, &opts, &err), QUIRE_OK);
    quire_answer_rules_release(opts.rules); /* the sampler holds them */
    pick_text(sampler, logits, "a<cc>dog<c>");
    token = quire_sampler_pick(sampler, logits);
    assert_int_equal(quire_model_token_text(model, token, false, piece, sizeof piece), 1);
    assert_in_range(piece[0], '0', '9');
    quire_sampler_destroy(sampler);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_beyond_the_most_are_left_out),
        cmocka_unit_test(an_answer_of_no_format_is_content),
        cmocka_unit_test(an_answer_without_its_beginning_is_content),
        cmocka_unit_test(a_reading_without_memory_is_refused),
        cmocka_unit_test(calls_without_random_bytes_are_refused),
        cmocka_unit_test(a_pattern_is_found_where_it_begins),
        cmocka_unit_test(a_text_that_the_grammar_refuses_is_no_call),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
