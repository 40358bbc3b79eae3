/* test_chat_ended.c - a history with its answer, rendered by a short conversation, is the whole
 * history's rendering, for all templates of the pinned tree.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/sanitized.h"
#include "chat_fixture.h"
#include "model/chat_ended.h"
#include "model/chat_internal.h"
#include "rounds.h"

#include <stdlib.h>
#include <string.h>

#if QUIRE_SANITIZED
/* Values of the library's interpreter that refer to each other stay (src/model/chat_guard.h). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:jinja::\n";
}
#endif

#define CALL(id, name, city)                                                                       \
    "{\"tool_calls\": [{\"id\": \"" id                                                             \
    "\", \"type\": \"function\", \"function\": {\"name\": \"" name                                 \
    "\", \"arguments\": \"{\\\"city\\\": \\\"" city "\\\"}\"}}]}"
#define RESULT(id, name) "{\"tool_call_id\": \"" id "\", \"name\": \"" name "\"}"

static const quire_chat_message history[] = {
    { "system", "You answer in short.", NULL },
    { "user", "How warm is it?", NULL },
    { "assistant", "", CALL("call00001", "weather", "Oslo") },
    { "tool", "7 degrees", RESULT("call00001", "weather") },
    { "assistant", "", CALL("call00002", "weather", "Rome") },
    { "tool", "21 degrees", RESULT("call00002", "weather") },
    { "assistant", "7 in Oslo, 21 in Rome.", NULL },
    { "user", "And tomorrow?", NULL },
    { "assistant", "Who knows.", NULL },
    { "user", "The weather service.", NULL },
    { "assistant", "", CALL("call00003", "forecast", "Oslo") },
    { "tool", "8 degrees", RESULT("call00003", "forecast") },
    { "assistant", "8 degrees.", NULL },
};
#define N_HISTORY (sizeof history / sizeof history[0])

static const char *const tools =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"now\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"forecast\", \"description\": \"later\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": "
    "\"string\"}}}}}]";

typedef struct counts {
    unsigned n_short;
    unsigned n_all;
} counts;

/* Render the first n messages, the last of which is an answer, in both ways. */
static void turn_check(const quire_chat_format *format, const char *name, size_t n, counts *c)
{
    quire_chat_ask ask = { .messages = history, .n_messages = n - 1, .tools = tools };
    quire_chat_prompt *prompt = NULL;
    quire_chat_prompt *whole = NULL;
    quire_chat_rules rules, expected;
    quire_bytes text = { 0 };
    bool is_short;

    if (quire_chat_format_apply(format, &ask, &prompt, NULL) < 0) {
        return; /* the template refuses these messages */
    }
    quire_chat_prompt_rules(prompt, &rules);
    ask.n_messages = n;
    ask.omits_generation_prompt = true;
    ask.is_text_only = true;
    if (quire_chat_format_apply(format, &ask, &whole, NULL) == QUIRE_OK) {
        quire_chat_prompt_rules(whole, &expected);
        assert_int_equal(quire_chat_ended_render(format, &ask, rules.text, &text, &is_short, NULL),
                         QUIRE_OK);
        if (text.n != expected.text.n || memcmp(text.data, expected.text.data, text.n) != 0) {
            fail_msg("%s, %zu messages: [%s] and not [%s]", name, n, text.data, expected.text.data);
        }
        c->n_all++;
        c->n_short += is_short;
    }
    quire_bytes_fini(&text);
    quire_chat_prompt_destroy(prompt);
    quire_chat_prompt_destroy(whole);
}

static counts template_check(const quire_model *model, const char *name)
{
    char *text = chat_fixture_template(name);
    quire_chat_format *format = chat_fixture_format(model, text);
    counts c = { 0, 0 };

    for (size_t n = 1; n <= N_HISTORY; n++) {
        if (strcmp(history[n - 1].role, "assistant") == 0) {
            turn_check(format, name, n, &c);
        }
    }
    quire_chat_format_destroy(format);
    free(text);
    return c;
}

static void test_all_templates(void **state)
{
    quire_model *model = chat_fixture_model();
    size_t n;
    const char *const *names = chat_fixture_names(&n);
    counts sum = { 0, 0 };

    (void)state;
    for (size_t i = 0; i < n; i += TEST_STRIDE(9u)) {
        const counts c = template_check(model, names[i]);

        sum.n_all += c.n_all;
        sum.n_short += c.n_short;
    }
    print_message("%u of %u turns by short conversations\n", sum.n_short, sum.n_all);
    assert_true(sum.n_all > 0);
    quire_model_close(model);
}

/* All turns but the first call and the first answer without a call. */
static void test_common_templates(void **state)
{
    static const char *const names[] = { "Qwen-Qwen3-0.6B", "Qwen3-Coder",
                                         "NousResearch-Hermes-3-Llama-3.1-8B-tool_use" };
    quire_model *model = chat_fixture_model();

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const counts c = template_check(model, names[i]);

        print_message("%s: %u of %u\n", names[i], c.n_short, c.n_all);
        assert_int_equal(c.n_all, 6);
        assert_true(c.n_short >= 4);
    }
    quire_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_common_templates),
        cmocka_unit_test(test_all_templates),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
