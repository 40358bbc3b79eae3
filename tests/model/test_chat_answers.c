/* test_chat_answers.c - answers in the formats of models: read whole and in pieces, forced by
 * grammars, with a budget of thoughts.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "chat_fixture.h"
#include "model/answer_rules.h"
#include "model/sampler.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"
#include "server/schema_graft.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A prompt of a template of the tree, for one of the fixture's cases with changes. */
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

static quire_chat_ask case_ask(size_t i)
{
    size_t n;

    return chat_fixture_cases(&n)[i].ask;
}

/* ---- reading ---- */

static void assert_text(quire_chat_text text, const char *expected)
{
    assert_int_equal(text.n, strlen(expected));
    assert_memory_equal(text.data, expected, text.n);
}

typedef struct pieces {
    quire_bytes reasoning, content, arguments[4];
    char ids[4][64], names[4][64];
    uint32_t n_calls;
} pieces;

static void take_deltas(quire_chat_reader *reader, pieces *p)
{
    quire_chat_delta d;

    while (quire_chat_reader_delta(reader, &d)) {
        switch (d.kind) {
        case QUIRE_CHAT_DELTA_REASONING:
            (void)quire_bytes_add(&p->reasoning, d.text.data, d.text.n);
            break;
        case QUIRE_CHAT_DELTA_CONTENT:
            (void)quire_bytes_add(&p->content, d.text.data, d.text.n);
            break;
        case QUIRE_CHAT_DELTA_CALL:
            assert_int_equal(d.call, p->n_calls);
            (void)snprintf(p->ids[d.call], 64, "%s", d.id.data);
            (void)snprintf(p->names[d.call], 64, "%s", d.name.data);
            p->n_calls++;
            break;
        default:
            (void)quire_bytes_add(&p->arguments[d.call], d.text.data, d.text.n);
            break;
        }
    }
}

static void assert_bytes(const quire_bytes *bytes, quire_chat_text text)
{
    assert_int_equal(bytes->n, text.n);
    assert_memory_equal(bytes->data != NULL ? bytes->data : "", text.data, text.n);
}

/* Read an answer in pieces of n bytes. The deltas make up the answer. */
static void read_in_pieces(const quire_chat_prompt *prompt, const char *text, size_t n,
                           void (*check)(const quire_chat_answer *answer))
{
    quire_chat_reader *reader;
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_answer answer;
    pieces p = { 0 };
    const size_t n_text = strlen(text);

    assert_int_equal(quire_chat_reader_create(&reader, prompt, &err), QUIRE_OK);
    for (size_t at = 0; at < n_text; at += n) {
        const size_t n_now = n_text - at < n ? n_text - at : n;

        assert_int_equal(quire_chat_reader_feed(reader, text + at, n_now, false, &err), QUIRE_OK);
        take_deltas(reader, &p);
    }
    assert_int_equal(quire_chat_reader_feed(reader, "", 0, true, &err), QUIRE_OK);
    take_deltas(reader, &p);
    quire_chat_reader_answer(reader, &answer);
    check(&answer);
    assert_bytes(&p.reasoning, answer.reasoning);
    assert_bytes(&p.content, answer.content);
    assert_int_equal(p.n_calls, answer.n_calls);
    for (uint32_t i = 0; i < answer.n_calls; i++) {
        assert_bytes(&p.arguments[i], answer.calls[i].arguments);
        assert_string_equal(p.names[i], answer.calls[i].name.data);
        assert_string_equal(p.ids[i], answer.calls[i].id.data);
        quire_bytes_fini(&p.arguments[i]);
    }
    quire_bytes_fini(&p.reasoning);
    quire_bytes_fini(&p.content);
    quire_chat_reader_destroy(reader);
}

static void read_all_ways(const char *name, size_t i_case, const char *text,
                          void (*check)(const quire_chat_answer *answer))
{
    quire_chat_ask ask = case_ask(i_case);
    quire_chat_prompt *prompt;

    ask.parallel_calls = QUIRE_CHAT_ON;
    prompt = prompt_of(name, &ask);
    for (size_t n = 1; n <= strlen(text); n = 3 * n + 1) {
        read_in_pieces(prompt, text, n, check);
    }
    read_in_pieces(prompt, text, strlen(text), check);
    quire_chat_prompt_destroy(prompt);
}

static void is_weather_and_sum(const quire_chat_answer *answer)
{
    json_t *arguments;

    assert_text(answer->reasoning, "I need both.\n");
    assert_int_equal(answer->n_calls, 2);
    assert_text(answer->calls[0].name, "get_weather");
    assert_text(answer->calls[1].name, "add");
    assert_true(answer->calls[0].id.n > 8);
    assert_string_not_equal(answer->calls[0].id.data, answer->calls[1].id.data);
    arguments = json_loads(answer->calls[0].arguments.data, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(arguments, "city")), "Oslo");
    json_decref(arguments);
    arguments = json_loads(answer->calls[1].arguments.data, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(arguments, "b")), 3);
    json_decref(arguments);
}

static void reads_thoughts_and_parallel_calls(void **state)
{
    (void)state;
    read_all_ways("Qwen-Qwen3-0.6B", 1,
                  "<think>\nI need both.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", "
                  "\"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n<tool_call>\n{\"name\": "
                  "\"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>",
                  is_weather_and_sum);
}

static void is_thought_then_five(const quire_chat_answer *answer)
{
    assert_text(answer->reasoning, "Two and three.\n");
    assert_text(answer->content, "Five, <b>of course</b>.");
    assert_int_equal(answer->n_calls, 0);
}

static void reads_thoughts_before_content(void **state)
{
    (void)state;
    read_all_ways("Qwen-Qwen3-0.6B", 0,
                  "<think>\nTwo and three.\n</think>\n\nFive, <b>of course</b>.",
                  is_thought_then_five);
}

static void is_one_sum(const quire_chat_answer *answer)
{
    assert_int_equal(answer->n_calls, 1);
    assert_text(answer->calls[0].name, "add");
    assert_non_null(strstr(answer->calls[0].arguments.data, "\"a\""));
    assert_text(answer->content, "");
}

static void reads_calls_of_other_formats(void **state)
{
    (void)state;
    read_all_ways("mistralai-Mistral-Nemo-Instruct-2407", 1,
                  "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}, \"id\": "
                  "\"abcdefghi\"}]",
                  is_one_sum);
    read_all_ways("Qwen3-Coder", 1,
                  "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\n3\n"
                  "</parameter>\n</function>\n</tool_call>",
                  is_one_sum);
}

static void is_as_written(const quire_chat_answer *answer)
{
    assert_int_equal(answer->n_calls, 0);
    assert_text(answer->content, "All of 2 < 3, {\"a\": 1} and \xc3\xa9.");
}

static void reads_text_as_content(void **state)
{
    (void)state;
    read_all_ways("Qwen-Qwen2.5-7B-Instruct", 0, "All of 2 < 3, {\"a\": 1} and \xc3\xa9.",
                  is_as_written);
    read_all_ways("Qwen-Qwen2.5-7B-Instruct", 1, "All of 2 < 3, {\"a\": 1} and \xc3\xa9.",
                  is_as_written);
}

static void writes_an_answer_as_a_message_of_the_history(void **state)
{
    const quire_chat_call call = { { "id1", 3 }, { "add", 3 }, { "{\"a\":\"\\n\"}", 10 } };
    const quire_chat_answer answer = { { "why \"so\"\n", 9 }, { "", 0 }, &call, 1, true };
    const quire_chat_answer plain = { { "", 0 }, { "x", 1 }, NULL, 0, true };
    json_t *root, *function;
    char *extra;

    (void)state;
    assert_int_equal(quire_chat_answer_extra(&plain, &extra), QUIRE_OK);
    assert_null(extra);
    assert_int_equal(quire_chat_answer_extra(&answer, &extra), QUIRE_OK);
    root = json_loads(extra, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "reasoning_content")),
                        "why \"so\"\n");
    function = json_object_get(json_array_get(json_object_get(root, "tool_calls"), 0), "function");
    assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                        "{\"a\":\"\\n\"}");
    json_decref(root);
    free(extra);
}

/* ---- grammars ---- */

#define SCHEMA_TOOLS                                                                               \
    "[{\"type\":\"function\",\"function\":{\"name\":\"edit\",\"description\":\"\",\"parameters\":" \
    "{\"type\":\"object\",\"properties\":{\"mode\":{\"enum\":[\"a\",\"b\"]},\"line\":{\"type\":"   \
    "\"integer\"},\"dry\":{\"type\":\"boolean\"}},\"required\":[\"mode\",\"line\",\"dry\"],"       \
    "\"additionalProperties\":false}}}]"

/* Whether a token is a byte that ends a string, or a part of a character. */
static bool is_odd_byte(uint32_t token)
{
    char piece[64];
    const int64_t n = quire_model_token_text(model, (int32_t)token, false, piece, sizeof piece);

    return n == 1 && (piece[0] == '\0' || ((unsigned char)piece[0] & 0x80u) != 0);
}

static bool is_blank(int32_t token)
{
    char piece[64];

    return quire_model_token_text(model, token, false, piece, sizeof piece) == 1 && piece[0] == ' ';
}

/* Choose tokens by random logits until the answer ends; the text of all tokens. */
static char *random_answer(const quire_chat_rules *rules, int32_t thinking_tokens, quire_rng *rng,
                           const char *first, uint32_t *n_tokens)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_sampler *sampler;
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    float *logits = calloc(n_vocab, sizeof *logits);
    quire_bytes text = { 0 };
    int32_t *led = NULL;
    size_t i_led = 0, n_led = 0;

    assert_non_null(logits);
    opts.temperature = 0.0f;
    if (quire_answer_rules_create(&opts.rules, model, rules, thinking_tokens, &err) < 0 ||
        quire_sampler_create(&sampler, model, &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    quire_answer_rules_release(opts.rules); /* the sampler holds them */
    if (first != NULL) {
        const quire_tokenize_opts how = { .parse_special = true };

        assert_int_equal(
            quire_model_tokenize_all(model, first, strlen(first), &how, &led, &n_led, &err),
            QUIRE_OK);
        i_led = is_blank(led[0]) && first[0] != ' '; /* the vocabulary's, before a text */
    }
    for (*n_tokens = 0; *n_tokens < 2000; (*n_tokens)++) {
        char piece[64];
        int64_t n;
        int32_t token;

        for (uint32_t i = 0; i < n_vocab; i++) {
            logits[i] = is_odd_byte(i) ? -1.0f : (float)quire_rng_unit(rng);
        }
        if (i_led < n_led) {
            logits[led[i_led++]] = 9.0f;
        }
        token = quire_sampler_pick(sampler, logits);
        assert_true(token >= 0);
        if (quire_model_is_eog(model, token)) {
            break;
        }
        n = quire_model_token_text(model, token, false, piece, sizeof piece);
        assert_true(n >= 0 && n <= (int64_t)sizeof piece);
        (void)quire_bytes_add(&text, piece, (size_t)n);
    }
    (void)quire_bytes_add(&text, "", 0);
    quire_sampler_destroy(sampler);
    free(logits);
    free(led);
    return text.data;
}

static void expect_edit(const quire_chat_prompt *prompt, const char *text)
{
    quire_chat_reader *reader;
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_answer answer;
    json_t *arguments, *mode;

    assert_int_equal(quire_chat_reader_create(&reader, prompt, &err), QUIRE_OK);
    assert_int_equal(quire_chat_reader_feed(reader, text, strlen(text), true, &err), QUIRE_OK);
    quire_chat_reader_answer(reader, &answer);
    if (answer.n_calls != 1) {
        fail_msg("%u calls in: %s", answer.n_calls, text);
    }
    for (uint32_t i = 0; i < answer.n_calls; i++) {
        assert_text(answer.calls[i].name, "edit");
        arguments = json_loads(answer.calls[i].arguments.data, JSON_DECODE_INT_AS_REAL, NULL);
        if (!json_is_object(arguments)) {
            fail_msg("not an object: %s (%s)", answer.calls[i].arguments.data, text);
        }
        mode = json_object_get(arguments, "mode");
        assert_true(json_is_string(mode) && strchr("ab", json_string_value(mode)[0]) != NULL);
        assert_true(json_is_number(json_object_get(arguments, "line")));
        assert_true(json_is_boolean(json_object_get(arguments, "dry")));
        assert_int_equal(json_object_size(arguments), 3);
        json_decref(arguments);
    }
    quire_chat_reader_destroy(reader);
}

/* Required calls of the tool, in answers of a model that would say anything. */
static void expect_valid_calls(const char *name, bool is_grafted, quire_rng *rng)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_ask ask = case_ask(0);
    quire_bytes grafted = { 0 };
    quire_chat_prompt *prompt;
    quire_chat_rules rules;

    ask.tools = SCHEMA_TOOLS;
    ask.tool_choice = QUIRE_TOOL_CHOICE_REQUIRED;
    ask.thinking = QUIRE_CHAT_OFF;
    ask.parallel_calls = QUIRE_CHAT_OFF;
    prompt = prompt_of(name, &ask);
    quire_chat_prompt_rules(prompt, &rules);
    assert_non_null(rules.grammar);
    assert_true(!rules.is_grammar_lazy || rules.must_begin != NULL);
    if (is_grafted) {
        assert_int_equal(quire_schema_graft(rules.grammar, ask.tools, NULL, &grafted, &err),
                         QUIRE_OK);
        rules.grammar = grafted.data;
    }
    for (int round = 0; round < TEST_ROUNDS(6, 1); round++) {
        uint32_t n;
        char *text = random_answer(&rules, -1, rng, NULL, &n);

        if (n < 2000) {
            expect_edit(prompt, text);
        } else if (rules.is_grammar_lazy) { /* others let text come first, as much as it likes */
            fail_msg("%s: does not end: %.300s", name, text);
        }
        free(text);
    }
    quire_bytes_fini(&grafted);
    quire_chat_prompt_destroy(prompt);
}

/* A required call has valid arguments, even from a model with random weights. Without parallel
 * calls it is one call, in formats that tag each call, too. */
static void required_calls_have_valid_arguments(void **state)
{
    static const char *const names[] = { "Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct",
                                         "mistralai-Mistral-Nemo-Instruct-2407",
                                         "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
                                         "meta-llama-Llama-3.1-8B-Instruct" };
    quire_rng rng = test_rng(7);

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        expect_valid_calls(names[i], false, &rng);
    }
}

/* Where a format writes arguments one by one, the grammar of the server holds their schemas. The
 * library's takes any text, or any arguments, there. */
static void required_calls_of_tagged_formats_have_valid_arguments(void **state)
{
    static const char *const names[] = { "Qwen3-Coder",          "Qwen3.5-4B",
                                         "MiniMax-M2",           "deepseek-ai-DeepSeek-V3.2",
                                         "StepFun3.5-Flash",     "poolside-Laguna-XS.2",
                                         "LFM2-8B-A1B",          "LFM2.5-Instruct",
                                         "google-gemma-4-31B-it" };
    quire_rng rng = test_rng(13);

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        expect_valid_calls(names[i], true, &rng);
    }
}

/* With tool_choice auto the grammar begins at the tag of a call, not before. */
static void a_tag_begins_the_grammar_of_a_call(void **state)
{
    quire_rng rng = test_rng(8);
    quire_chat_ask ask = case_ask(0);
    quire_chat_prompt *prompt;
    quire_chat_rules rules;
    uint32_t n;
    char *text;

    (void)state;
    ask.tools = SCHEMA_TOOLS;
    ask.thinking = QUIRE_CHAT_OFF;
    ask.parallel_calls = QUIRE_CHAT_OFF;
    prompt = prompt_of("Qwen-Qwen3-0.6B", &ask);
    quire_chat_prompt_rules(prompt, &rules);
    assert_true(rules.is_grammar_lazy);
    assert_true(rules.n_triggers > 0);
    text = random_answer(&rules, -1, &rng, "Let me see. <tool_call>\n", &n);
    assert_non_null(strstr(text, "Let me see. <tool_call>\n"));
    expect_edit(prompt, text);
    free(text);
    quire_chat_prompt_destroy(prompt);
}

/* As above, where a format says by patterns where a call begins: at the answer's start, or behind
 * its thoughts. */
static void a_pattern_begins_the_grammar_of_a_call(void **state)
{
    static const char *const begins[] = {
        "<|channel|>commentary to=functions",
        "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>commentary to",
        "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant to",
    };
    quire_rng rng = test_rng(14);
    quire_chat_ask ask = case_ask(0);
    quire_chat_prompt *prompt;
    quire_chat_rules rules;

    (void)state;
    ask.tools = SCHEMA_TOOLS;
    ask.parallel_calls = QUIRE_CHAT_OFF;
    prompt = prompt_of("openai-gpt-oss-120b", &ask);
    quire_chat_prompt_rules(prompt, &rules);
    assert_true(rules.is_grammar_lazy);
    assert_true(rules.triggers[0].is_pattern);
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        uint32_t n;
        char *text = random_answer(&rules, -1, &rng, begins[i], &n);

        assert_ptr_equal(strstr(text, begins[i]), text);
        expect_edit(prompt, text);
        free(text);
    }
    quire_chat_prompt_destroy(prompt);
}

/* One function of several can be demanded; the prompt still describes all. */
static void a_named_tool_is_called(void **state)
{
    quire_rng rng = test_rng(9);
    quire_chat_ask ask = case_ask(1);
    quire_error err = QUIRE_ERROR_INIT;
    char *source = chat_fixture_template("Qwen-Qwen2.5-7B-Instruct");
    quire_chat_format *format = chat_fixture_format(model, source);
    quire_chat_prompt *prompt, *other;
    quire_chat_rules rules, all;
    uint32_t n;
    char *text;

    (void)state;
    assert_int_equal(quire_chat_format_apply(format, &ask, &other, &err), QUIRE_OK);
    ask.tool_choice = QUIRE_TOOL_CHOICE_NAMED;
    ask.tool_name = "add";
    assert_int_equal(quire_chat_format_apply(format, &ask, &prompt, &err), QUIRE_OK);
    quire_chat_prompt_rules(prompt, &rules);
    quire_chat_prompt_rules(other, &all);
    assert_string_equal(rules.text.data, all.text.data);
    text = random_answer(&rules, -1, &rng, NULL, &n);
    assert_non_null(strstr(text, "\"add\""));
    free(text);
    quire_chat_prompt_destroy(prompt);
    quire_chat_prompt_destroy(other);
    ask.tool_name = "subtract";
    assert_int_equal(quire_chat_format_apply(format, &ask, &prompt, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "not in tools"));
    quire_chat_format_destroy(format);
    free(source);
}

/* ---- thoughts ---- */

static void thoughts_end_at_their_budget(void **state)
{
    quire_rng rng = test_rng(10);
    quire_chat_ask ask = case_ask(0);
    quire_chat_prompt *prompt = prompt_of("Qwen-QwQ-32B", &ask);
    quire_chat_rules rules;

    (void)state;
    quire_chat_prompt_rules(prompt, &rules);
    assert_string_equal(rules.thinking_end, "</think>");
    assert_true(rules.begins_thinking);
    for (int32_t budget = 0; budget <= 20; budget += 10) {
        uint32_t n;
        char *text = random_answer(&rules, budget, &rng, NULL, &n);
        const char *end = strstr(text, "</think>");

        assert_non_null(end);
        /* No token of this vocabulary has more than 16 bytes; a character may take three more. */
        assert_true((size_t)(end - text) <= 16 * ((size_t)budget + 3));
        free(text);
    }
    quire_chat_prompt_destroy(prompt);
}

/* A call that has to come does so, even where the model would end its answer among its thoughts. */
static void a_required_call_comes_behind_thoughts(void **state)
{
    quire_rng rng = test_rng(12);
    quire_chat_ask ask = case_ask(0);
    quire_chat_prompt *prompt;
    quire_chat_rules rules;

    (void)state;
    ask.tools = SCHEMA_TOOLS;
    ask.tool_choice = QUIRE_TOOL_CHOICE_REQUIRED;
    ask.parallel_calls = QUIRE_CHAT_OFF;
    prompt = prompt_of("Qwen-QwQ-32B", &ask);
    quire_chat_prompt_rules(prompt, &rules);
    assert_true(rules.begins_thinking && rules.must_begin != NULL);
    for (int round = 0; round < TEST_ROUNDS(6, 2); round++) {
        uint32_t n;
        char *text = random_answer(&rules, -1, &rng, NULL, &n);

        if (n < 2000) { /* else it thinks to the end */
            assert_non_null(strstr(text, "</think>"));
            expect_edit(prompt, text);
        }
        free(text);
    }
    quire_chat_prompt_destroy(prompt);
}

/* The tokens of a text on its own. */
static size_t add_tokens(int32_t *tokens, size_t n, const char *text)
{
    const int64_t n_more =
        quire_model_tokenize(model, text, strlen(text), false, true, tokens + n, 64);

    assert_true(n_more > 0 && n_more <= 64);
    return n + (size_t)n_more;
}

/* Thoughts count without the tags around them, whether the prompt or the answer begins them. */
static void counts_the_tokens_of_thoughts(void **state)
{
    static const char *const names[] = { "Qwen-QwQ-32B", "Qwen-Qwen3-0.6B" };

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        quire_chat_ask ask = case_ask(0);
        quire_chat_prompt *prompt = prompt_of(names[i], &ask);
        const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
        quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;
        float *logits = calloc(n_vocab, sizeof *logits);
        quire_error err = QUIRE_ERROR_INIT;
        quire_sampler *sampler;
        quire_chat_rules rules;
        int32_t tokens[256];
        size_t starts[256];
        size_t n, begin, tag, n_thoughts = 0;
        quire_bytes text = { 0 };

        assert_non_null(logits);
        opts.temperature = 0.0f;
        quire_chat_prompt_rules(prompt, &rules);
        assert_int_equal(rules.begins_thinking, i == 0);
        assert_int_equal(quire_answer_rules_create(&opts.rules, model, &rules, -1, &err), 0);
        assert_int_equal(quire_sampler_create(&sampler, model, &opts, &err), 0);
        quire_answer_rules_release(opts.rules);
        n = i == 0 ? 0 : add_tokens(tokens, 0, "<think>");
        begin = n;
        n = add_tokens(tokens, n, "Once upon a time");
        n = add_tokens(tokens, n, "</think>");
        n = add_tokens(tokens, n, "there was a dog");
        for (size_t k = 0; k < n; k++) {
            char piece[64];
            const int64_t n_piece =
                quire_model_token_text(model, tokens[k], false, piece, sizeof piece);

            logits[tokens[k]] = 9.0f;
            assert_int_equal(quire_sampler_pick(sampler, logits), tokens[k]);
            logits[tokens[k]] = 0.0f;
            assert_true(n_piece > 0 && n_piece <= (int64_t)sizeof piece);
            starts[k] = text.n;
            (void)quire_bytes_add(&text, piece, (size_t)n_piece);
        }
        tag = (size_t)(strstr(text.data, "</think>") - text.data);
        for (size_t k = begin; k < n; k++) {
            n_thoughts += starts[k] < tag;
        }
        assert_int_equal(quire_sampler_thought_tokens(sampler), n_thoughts);
        quire_bytes_fini(&text);
        quire_sampler_reset(sampler);
        assert_int_equal(quire_sampler_thought_tokens(sampler), 0);
        assert_int_equal(quire_sampler_thought_tokens(NULL), 0);
        quire_sampler_destroy(sampler);
        quire_chat_prompt_destroy(prompt);
        free(logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_the_tokens_of_thoughts),
        cmocka_unit_test(reads_thoughts_and_parallel_calls),
        cmocka_unit_test(reads_thoughts_before_content),
        cmocka_unit_test(reads_calls_of_other_formats),
        cmocka_unit_test(reads_text_as_content),
        cmocka_unit_test(writes_an_answer_as_a_message_of_the_history),
        cmocka_unit_test(required_calls_have_valid_arguments),
        cmocka_unit_test(required_calls_of_tagged_formats_have_valid_arguments),
        cmocka_unit_test(a_tag_begins_the_grammar_of_a_call),
        cmocka_unit_test(a_pattern_begins_the_grammar_of_a_call),
        cmocka_unit_test(a_named_tool_is_called),
        cmocka_unit_test(thoughts_end_at_their_budget),
        cmocka_unit_test(a_required_call_comes_behind_thoughts),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
