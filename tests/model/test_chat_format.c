/* test_chat_format.c - prompts of models' templates, their limits, and answers read by them.
 *
 * tests/data/chat_prompts.txt holds prompts that the library of the pinned tree made, looked over
 * once. QUIRE_WRITE_PROMPTS=1 writes the file again.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "chat_direct.h"
#include "chat_fixture.h"
#include "model/chat_internal.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS QUIRE_SOURCE_DIR "/tests/data/chat_prompts.txt"

#if QUIRE_SANITIZED
/* Values of the library's interpreter that refer to each other stay (src/model/chat_guard.h). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:jinja::\n";
}
#endif

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

/* ---- prompts ---- */

/* Templates without a date in them. */
static const char *const documented[] = {
    "Qwen-Qwen3-0.6B",
    "Qwen-Qwen2.5-7B-Instruct",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "microsoft-Phi-3.5-mini-instruct",
    "Qwen3-Coder",
};
#define N_DOCUMENTED (sizeof documented / sizeof documented[0])

static void add_prompt(quire_bytes *out, const quire_chat_format *format, const char *name,
                       const chat_case *c)
{
    quire_chat_prompt *prompt;
    quire_chat_rules rules;
    quire_error err = QUIRE_ERROR_INIT;

    (void)quire_bytes_addf(out, "=== %s: %s\n", name, c->name);
    if (quire_chat_format_apply(format, &c->ask, &prompt, &err) < 0) {
        (void)quire_bytes_addf(out, "error %s\n", err.message);
        return;
    }
    quire_chat_prompt_rules(prompt, &rules);
    (void)quire_bytes_addf(out, "%s\n", rules.text.data);
    quire_chat_prompt_destroy(prompt);
}

static void document(quire_bytes *out)
{
    size_t n_cases;
    const chat_case *cases = chat_fixture_cases(&n_cases);

    for (size_t i = 0; i < N_DOCUMENTED; i++) {
        char *text = chat_fixture_template(documented[i]);
        quire_chat_format *format = chat_fixture_format(model, text);

        for (size_t k = 0; k < n_cases; k++) {
            add_prompt(out, format, documented[i], &cases[k]);
        }
        quire_chat_format_destroy(format);
        free(text);
    }
    assert_int_equal(out->status, QUIRE_OK);
}

static void writes_prompts_as_the_templates_say(void **state)
{
    quire_bytes made = { 0 };
    char *committed;
    FILE *file;

    (void)state;
    document(&made);
    if (getenv("QUIRE_WRITE_PROMPTS") != NULL) {
        file = fopen(PROMPTS, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(made.data, 1, made.n, file), made.n);
        assert_int_equal(fclose(file), 0);
    }
    file = fopen(PROMPTS, "rb");
    assert_non_null(file);
    committed = calloc(1, made.n + 2);
    assert_non_null(committed);
    assert_int_equal(fread(committed, 1, made.n + 1, file), made.n);
    (void)fclose(file);
    assert_string_equal(made.data, committed);
    free(committed);
    quire_bytes_fini(&made);
}

/* Every template of the tree renders a plain conversation, or the refusal has a reason. */
static void runs_all_templates_of_the_tree(void **state)
{
    size_t n, n_cases;
    const char *const *names = chat_fixture_names(&n);
    const chat_case *cases = chat_fixture_cases(&n_cases);

    (void)state;
    assert_true(n >= 60);
    for (size_t i = 0; i < n; i++) {
        char *text = chat_fixture_template(names[i]);
        quire_chat_format *format = chat_fixture_format(model, text);

        assert_string_equal(quire_chat_format_warning(format), "");
        for (size_t k = 0; k < n_cases; k++) {
            quire_error err = QUIRE_ERROR_INIT;
            quire_chat_prompt *prompt;
            quire_chat_rules rules;

            if (quire_chat_format_apply(format, &cases[k].ask, &prompt, &err) < 0) {
                assert_int_equal(err.status, QUIRE_INVAL);
                assert_true(strlen(err.message) > 20);
                assert_string_not_equal(cases[k].name, "thought");
                continue;
            }
            quire_chat_prompt_rules(prompt, &rules);
            assert_non_null(strstr(rules.text.data, k == 3 ? "And 4 + 4?" : "What is 2 + 3?"));
            quire_chat_prompt_destroy(prompt);
        }
        quire_chat_format_destroy(format);
        free(text);
    }
}

/* The messages of a case as a client sends them. */
static char *messages_json(const quire_chat_ask *ask)
{
    json_t *list = json_array();
    char *text;

    for (size_t i = 0; i < ask->n_messages; i++) {
        const quire_chat_message *from = &ask->messages[i];
        json_t *message = from->extra != NULL ? json_loads(from->extra, 0, NULL) : json_object();

        (void)json_object_set_new(message, "role", json_string(from->role));
        (void)json_object_set_new(message, "content", json_string(from->content));
        (void)json_array_append_new(list, message);
    }
    text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    assert_non_null(text);
    return text;
}

/* Returns whether the template takes the case. */
static bool expect_direct(const quire_chat_format *format, const char *text, const chat_case *c,
                          bool begins_answer)
{
    char *messages = messages_json(&c->ask);
    quire_chat_ask ask = c->ask;
    const chat_direct_ask direct = { .messages = messages,
                                     .tools = ask.tools,
                                     .thinks = ask.thinking != QUIRE_CHAT_OFF,
                                     .has_generation_prompt = begins_answer };
    char *expected = chat_direct_prompt(quire_model_llama(model), text, &direct);
    const bool is_taken = expected != NULL;
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_prompt *prompt;
    quire_chat_rules rules;

    ask.omits_generation_prompt = !begins_answer;
    if (quire_chat_format_apply(format, &ask, &prompt, &err) < 0) {
        assert_null(expected);
    } else {
        assert_non_null(expected);
        quire_chat_prompt_rules(prompt, &rules);
        assert_string_equal(rules.text.data, expected);
        quire_chat_prompt_destroy(prompt);
    }
    free(messages);
    free(expected);
    return is_taken;
}

/* Quire's reading of messages, tools and switches, its limits and its shortcuts change no prompt.
 */
static void writes_what_the_library_writes(void **state)
{
    size_t n, n_cases, n_asked = 0, n_taken = 0;
    const char *const *names = chat_fixture_names(&n);
    const chat_case *cases = chat_fixture_cases(&n_cases);

    (void)state;
    for (size_t i = 0; i < n; i += TEST_STRIDE(9u)) {
        char *text = chat_fixture_template(names[i]);
        quire_chat_format *format = chat_fixture_format(model, text);

        n_asked += n_cases;
        for (size_t k = 0; k < n_cases; k++) {
            n_taken += expect_direct(format, text, &cases[k], (i + k) % 4 != 0);
        }
        quire_chat_format_destroy(format);
        free(text);
    }
    assert_int_equal(n_cases, 5);
    assert_true(n_taken > n_asked * 8 / 10);
}

/* A word of reasoning_effort that the template knows reaches the prompt. A template without
 * thoughts refuses the field. */
static void an_effort_reaches_the_template(void **state)
{
    size_t n;
    chat_case plain = chat_fixture_cases(&n)[0];
    char *text = chat_fixture_template("openai-gpt-oss-120b");
    quire_chat_format *format = chat_fixture_format(model, text);
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_prompt *prompt;
    quire_chat_rules rules;
    static const char *const efforts[] = { "low", "high" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char line[32];

        plain.ask.reasoning_effort = efforts[i];
        assert_int_equal(quire_chat_format_apply(format, &plain.ask, &prompt, &err), QUIRE_OK);
        quire_chat_prompt_rules(prompt, &rules);
        (void)snprintf(line, sizeof line, "Reasoning: %s", efforts[i]);
        assert_non_null(strstr(rules.text.data, line));
        quire_chat_prompt_destroy(prompt);
    }
    quire_chat_format_destroy(format);
    free(text);
    text = chat_fixture_template("Qwen-Qwen2.5-7B-Instruct");
    format = chat_fixture_format(model, text);
    assert_int_equal(quire_chat_format_apply(format, &plain.ask, &prompt, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "reasoning_effort: "));
    quire_chat_format_destroy(format);
    free(text);
}

/* A built-in template, chosen by name, writes libllama's text, and refuses tools. */
static void refuses_tools_with_a_built_in_template(void **state)
{
    size_t n;
    const chat_case *cases = chat_fixture_cases(&n);
    quire_chat_format *format = chat_fixture_format(model, "chatml");
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_abilities abilities;
    quire_chat_prompt *prompt;
    quire_chat_rules rules;

    (void)state;
    assert_int_equal(quire_chat_format_apply(format, &cases[0].ask, &prompt, &err), QUIRE_OK);
    quire_chat_prompt_rules(prompt, &rules);
    assert_string_equal(rules.text.data, "<|im_start|>system\nBe brief.<|im_end|>\n"
                                         "<|im_start|>user\nHello<|im_end|>\n"
                                         "<|im_start|>assistant\nHi.<|im_end|>\n"
                                         "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n"
                                         "<|im_start|>assistant\n");
    quire_chat_prompt_destroy(prompt);
    assert_int_equal(quire_chat_format_apply(format, &cases[1].ask, &prompt, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "tools: "));
    assert_non_null(strstr(err.message, "--chat-template-file")); /* the way out */
    assert_int_equal(quire_chat_format_apply(format, &cases[2].ask, &prompt, &err), QUIRE_UNSUPP);
    quire_chat_format_abilities(format, &abilities);
    assert_false(abilities.has_jinja || abilities.has_tools);
    quire_chat_format_destroy(format);
    assert_int_equal(quire_chat_format_create(&format, model, NULL, &err), QUIRE_UNSUPP);
    assert_non_null(strstr(err.message, "has no chat template"));
}

/* ---- limits ---- */

static void expect_failure(const char *text, int status, const char *reason)
{
    static const quire_chat_message message = { "user", "x", NULL };
    const quire_chat_ask ask = { .messages = &message, .n_messages = 1 };
    quire_chat_format *format = NULL;
    quire_chat_prompt *prompt = NULL;
    quire_error err = QUIRE_ERROR_INIT;
    int rc = quire_chat_format_create(&format, model, text, &err);

    if (rc == QUIRE_OK) {
        rc = quire_chat_format_apply(format, &ask, &prompt, &err);
    }
    if (rc == QUIRE_OK || strstr(err.message, reason) == NULL ||
        strchr(err.message, '\n') != NULL) {
        fail_msg("%.60s: %d, %s", text, rc, err.message);
    }
    (void)status;
    quire_chat_format_destroy(format);
}

static void stops_templates_at_their_limits(void **state)
{
    char *deep = malloc(4096);
    char *large = malloc(QUIRE_CHAT_TEMPLATE_BYTES_MAX + 2);

    (void)state;
    assert_true(deep != NULL && large != NULL);
    expect_failure("{% for i in range(4000000000) %}x{% endfor %}", QUIRE_LIMIT,
                   "QUIRE_CHAT_MEMORY_MAX");
    expect_failure("{% set ns = namespace(t='x') %}{% for i in range(60) %}{% set ns.t = ns.t ~ "
                   "ns.t %}{% endfor %}{{ ns.t }}",
                   QUIRE_LIMIT, "QUIRE_CHAT_MEMORY_MAX");
    expect_failure("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", QUIRE_LIMIT,
                   "QUIRE_CHAT_STACK_BYTES_MAX");
    expect_failure("{% set a = [] %}{% set _ = a.append(a) %}{{ a | tojson }}", QUIRE_LIMIT,
                   "QUIRE_CHAT_STACK_BYTES_MAX");
    expect_failure("{{ 'x' * 9000000000 }}", QUIRE_LIMIT, "QUIRE_CHAT_");
    memset(deep, '(', 4000);
    memcpy(deep, "{{", 2);
    deep[4000] = '\0';
    expect_failure(deep, QUIRE_LIMIT, "nested too deeply");
    memset(large, 'x', QUIRE_CHAT_TEMPLATE_BYTES_MAX + 1);
    memcpy(large, "{{ 1 }}", 7);
    large[QUIRE_CHAT_TEMPLATE_BYTES_MAX + 1] = '\0';
    expect_failure(large, QUIRE_LIMIT, "more than");
    free(deep);
    free(large);
}

static void says_why_a_template_fails(void **state)
{
    (void)state;
    expect_failure("{% for %}", QUIRE_UNSUPP, "chat template: ");
    expect_failure("{{ raise_exception('roles must alternate') }}", QUIRE_INVAL,
                   "roles must alternate");
    expect_failure("{{ messages | no_such_filter }}", QUIRE_INVAL, "no_such_filter");
    expect_failure("{{ (1 }}", QUIRE_UNSUPP, "chat template: ");
}

static size_t below(quire_rng *rng, size_t n)
{
    return quire_rng_below(rng, (uint32_t)n);
}

/* A template with some bytes changed, taken out or put in. */
static void damage(char *text, size_t *n, size_t cap, quire_rng *rng)
{
    static const char pieces[] = "{}%()[]'\"|.,~+-*/ \n<>=abcifor0123";
    const uint32_t n_edits = 1 + quire_rng_below(rng, 6);

    for (uint32_t i = 0; i<n_edits && * n> 2; i++) {
        const size_t at = below(rng, *n);
        const size_t most = *n - at < 40 ? *n - at : 40;
        const size_t n_cut = below(rng, most + 1);

        switch (quire_rng_below(rng, 3)) {
        case 0:
            text[at] = pieces[below(rng, sizeof pieces - 1)];
            break;
        case 1:
            memmove(text + at, text + at + n_cut, *n - at - n_cut + 1);
            *n -= n_cut;
            break;
        default:
            if (*n + n_cut < cap) { /* twice the same piece */
                memmove(text + at + n_cut, text + at, *n - at + 1);
                *n += n_cut;
            }
            break;
        }
    }
}

/* For any text of a template the format is made or refused, and prompts are made or refused. */
static void survives_damaged_templates(void **state)
{
    quire_rng rng = test_rng(24);
    const uint64_t rounds = test_ops(TEST_ROUNDS(24, 4));
    size_t n_names, n_cases, n_made = 0;
    const char *const *names = chat_fixture_names(&n_names);
    const chat_case *cases = chat_fixture_cases(&n_cases);

    (void)state;
    for (uint64_t i = 0; i < rounds; i++) {
        char *whole = chat_fixture_template(names[below(&rng, n_names)]);
        size_t n = strlen(whole);
        char *text = realloc(whole, n + 512);
        quire_error err = QUIRE_ERROR_INIT;
        quire_chat_format *format = NULL;
        quire_chat_prompt *prompt = NULL;

        assert_non_null(text);
        damage(text, &n, n + 500, &rng);
        if (quire_chat_format_create(&format, model, text, &err) == QUIRE_OK) {
            const chat_case *c = &cases[below(&rng, n_cases)];

            n_made += quire_chat_format_apply(format, &c->ask, &prompt, &err) == QUIRE_OK;
        }
        assert_true(prompt != NULL || err.message[0] != '\0');
        quire_chat_prompt_destroy(prompt);
        quire_chat_format_destroy(format);
        free(text);
    }
    assert_true(n_made > 0);
}

/* The library cannot read "items": false. The prompt has the schema, the grammar the names. */
static void a_schema_that_the_library_refuses_is_described(void **state)
{
    char *text = chat_fixture_template("Qwen-Qwen2.5-7B-Instruct");
    quire_chat_format *format = chat_fixture_format(model, text);
    quire_error err = QUIRE_ERROR_INIT;
    size_t n_cases;
    quire_chat_ask ask = chat_fixture_cases(&n_cases)[0].ask;
    quire_chat_prompt *prompt;
    quire_chat_rules rules;

    (void)state;
    ask.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"pair\",\"parameters\":{\"type\":"
                "\"object\",\"properties\":{\"both\":{\"type\":\"array\",\"items\":false},\"name\":"
                "{\"type\":\"string\"}},\"required\":[\"both\"]}}}]";
    assert_int_equal(quire_chat_format_apply(format, &ask, &prompt, &err), QUIRE_OK);
    quire_chat_prompt_rules(prompt, &rules);
    assert_non_null(strstr(rules.text.data, "\"items\": false"));
    assert_non_null(strstr(rules.grammar, "tool-pair-schema ::="));
    assert_non_null(strstr(rules.grammar, "both"));
    quire_chat_prompt_destroy(prompt);
    quire_chat_format_destroy(format);
    free(text);
}

/* Tools with schemas of a simpler form take the place of those that a template cannot write, and
 * the calls are read as these say. */
static void plain_tools_are_described_instead(void **state)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
        "{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":%s}},\"required\":[]}}}]";
    char *text = chat_fixture_template("google-gemma-4-31B-it");
    quire_chat_format *format = chat_fixture_format(model, text);
    quire_error err = QUIRE_ERROR_INIT;
    size_t n_cases;
    quire_chat_ask ask = chat_fixture_cases(&n_cases)[0].ask;
    quire_chat_prompt *prompt;
    quire_chat_rules rules;
    char given[512], plain[512];

    (void)state;
    (void)snprintf(given, sizeof given, tools,
                   "\"array\",\"items\":{\"type\":[\"string\",\"null\"]}");
    (void)snprintf(plain, sizeof plain, tools, "\"array\",\"items\":{\"type\":\"string\"}");
    ask.tools = given;
    assert_int_equal(quire_chat_format_apply(format, &ask, &prompt, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "cannot describe these tools: "));
    ask.plain_tools = plain;
    assert_int_equal(quire_chat_format_apply(format, &ask, &prompt, &err), QUIRE_OK);
    quire_chat_prompt_rules(prompt, &rules);
    assert_non_null(strstr(rules.text.data, "kind"));
    quire_chat_prompt_destroy(prompt);
    quire_chat_format_destroy(format);
    free(text);
}

/* The library's grammars of a few formats take more than their readers do, or any number of calls.
 */
static void grammars_of_calls_are_mended(void **state)
{
    static const struct {
        const char *name, *has, *lacks;
        quire_chat_switch parallel;
    } cases[] = {
        { "meetkai-functionary-medium-v3.2", "\ntools ::= (tool-get-weather | tool-add)\n", ")+",
          QUIRE_CHAT_OFF },
        { "meetkai-functionary-medium-v3.2", "\ntools ::= (tool-get-weather | tool-add){1,128}\n",
          ")+", QUIRE_CHAT_ON },
        { "Kimi-K3", "(\" index=\\\"\" [0-9]{1,3} \"\\\"\")? \"<|sep|>\"", ")+", QUIRE_CHAT_OFF },
        { "GLM-4.7-Flash", ") \"</tool_call>\"", "space \"</tool_call>\"", QUIRE_CHAT_OFF },
    };
    size_t n_cases;
    const chat_case *chats = chat_fixture_cases(&n_cases);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = chat_fixture_template(cases[i].name);
        quire_chat_format *format = chat_fixture_format(model, text);
        quire_error err = QUIRE_ERROR_INIT;
        quire_chat_ask ask = chats[1].ask;
        quire_chat_prompt *prompt;
        quire_chat_rules rules;

        ask.parallel_calls = cases[i].parallel;
        ask.tool_choice = QUIRE_TOOL_CHOICE_REQUIRED;
        if (quire_chat_format_apply(format, &ask, &prompt, &err) < 0) {
            fail_msg("%s", err.message);
        }
        quire_chat_prompt_rules(prompt, &rules);
        if (strstr(rules.grammar, cases[i].has) == NULL ||
            strstr(rules.grammar, cases[i].lacks) != NULL) {
            fail_msg("%s:\n%s", cases[i].name, rules.grammar);
        }
        quire_chat_prompt_destroy(prompt);
        quire_chat_format_destroy(format);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars_of_calls_are_mended),
        cmocka_unit_test(plain_tools_are_described_instead),
        cmocka_unit_test(writes_prompts_as_the_templates_say),
        cmocka_unit_test(runs_all_templates_of_the_tree),
        cmocka_unit_test(writes_what_the_library_writes),
        cmocka_unit_test(an_effort_reaches_the_template),
        cmocka_unit_test(refuses_tools_with_a_built_in_template),
        cmocka_unit_test(a_schema_that_the_library_refuses_is_described),
        cmocka_unit_test(stops_templates_at_their_limits),
        cmocka_unit_test(says_why_a_template_fails),
        cmocka_unit_test(survives_damaged_templates),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
