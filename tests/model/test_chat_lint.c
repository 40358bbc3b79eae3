/* test_chat_lint.c - which turns of a chat a template takes out of the cache.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/sanitized.h"
#include "chat_fixture.h"
#include "model/chat_lint.h"
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

static void lint_text(const char *text, quire_chat_lint_case *cases)
{
    quire_chat_format *format = chat_fixture_format(model, text);

    assert_int_equal(quire_chat_lint(format, cases, NULL), QUIRE_OK);
    quire_chat_format_destroy(format);
}

static void lint_template(const char *name, quire_chat_lint_case *cases)
{
    char *text = chat_fixture_template(name);

    lint_text(text, cases);
    free(text);
}

static const quire_chat_lint_case *find(const quire_chat_lint_case *cases, const char *name)
{
    for (size_t i = 0; i < QUIRE_CHAT_LINT_CASES; i++) {
        if (strcmp(cases[i].name, name) == 0) {
            return &cases[i];
        }
    }
    fail_msg("no case '%s'", name);
    return NULL;
}

static void expect(const quire_chat_lint_case *cases, const char *name,
                   quire_chat_lint_verdict verdict)
{
    const quire_chat_lint_case *c = find(cases, name);

    if (c->verdict != verdict) {
        fail_msg("%s: verdict %d and not %d, '%s' then '%s'", name, (int)c->verdict, (int)verdict,
                 c->before, c->after);
    }
}

/* Qwen3 drops the thoughts before the last question. */
static void thoughts_that_are_dropped_break_the_prefix(void **state)
{
    quire_chat_lint_case cases[QUIRE_CHAT_LINT_CASES];
    const quire_chat_lint_case *thoughts;

    (void)state;
    lint_template("Qwen-Qwen3-0.6B", cases);
    thoughts = find(cases, "thoughts");
    assert_int_equal(thoughts->verdict, QUIRE_CHAT_LINT_BREAKS);
    assert_true(thoughts->n_same > 0 && thoughts->n_same < thoughts->n_before);
    assert_non_null(strstr(thoughts->before, "<think>"));
    assert_null(strstr(thoughts->after, "<think>"));
    expect(cases, "earlier answers", QUIRE_CHAT_LINT_BREAKS); /* with empty thoughts */
    expect(cases, "call with thoughts", QUIRE_CHAT_LINT_KEEPS);
}

/* Tools stand before all messages. */
static void tools_that_change_break_the_prefix(void **state)
{
    quire_chat_lint_case cases[QUIRE_CHAT_LINT_CASES];

    (void)state;
    lint_template("Qwen-Qwen2.5-7B-Instruct", cases);
    expect(cases, "tools", QUIRE_CHAT_LINT_BREAKS);
    expect(cases, "answer", QUIRE_CHAT_LINT_KEEPS);
    expect(cases, "earlier answers", QUIRE_CHAT_LINT_KEEPS);
    expect(cases, "call", QUIRE_CHAT_LINT_KEEPS);
    expect(cases, "finished calls", QUIRE_CHAT_LINT_KEEPS);
    expect(cases, "thoughts", QUIRE_CHAT_LINT_NONE);
}

static void an_end_that_gives_way_breaks_the_prefix(void **state)
{
    static const char chat[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ 'now' }}";
    quire_chat_lint_case cases[QUIRE_CHAT_LINT_CASES];

    (void)state;
    lint_text(chat, cases);
    /* "now" ends each prompt, and gives way to the next message. */
    expect(cases, "answer", QUIRE_CHAT_LINT_BREAKS);
    assert_string_equal(find(cases, "answer")->before, "now");
    assert_int_equal(find(cases, "answer")->n_same, find(cases, "answer")->n_before - 3);
    expect(cases, "thinking", QUIRE_CHAT_LINT_NONE);
}

static void a_refusal_has_its_reason(void **state)
{
    static const char chat[] = "{% if messages|length > 4 %}{{ raise_exception('too long') }}"
                               "{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
                               "{% endfor %}";
    quire_chat_lint_case cases[QUIRE_CHAT_LINT_CASES];

    (void)state;
    lint_text(chat, cases);
    expect(cases, "answer", QUIRE_CHAT_LINT_KEEPS);
    expect(cases, "earlier answers", QUIRE_CHAT_LINT_REFUSED);
    assert_non_null(strstr(find(cases, "earlier answers")->reason, "too long"));
}

static void a_date_is_seen(void **state)
{
    quire_chat_format *dated =
        chat_fixture_format(model, "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}");
    quire_chat_format *plain = chat_fixture_format(model, "{{ messages[0].content }}");

    (void)state;
    assert_true(quire_chat_lint_has_date(dated));
    assert_false(quire_chat_lint_has_date(plain));
    quire_chat_format_destroy(dated);
    quire_chat_format_destroy(plain);
}

/* The fields of a case are consistent for any template. */
static void check_case(const char *name, const quire_chat_lint_case *c)
{
    const bool is_whole = c->n_same == c->n_before;

    if ((c->verdict == QUIRE_CHAT_LINT_KEEPS && !is_whole) ||
        (c->verdict == QUIRE_CHAT_LINT_BREAKS && is_whole) ||
        (c->verdict == QUIRE_CHAT_LINT_REFUSED && c->reason[0] == '\0') ||
        strlen(c->before) > QUIRE_CHAT_LINT_PLACE || strchr(c->before, '\n') != NULL ||
        strchr(c->reason, '\n') != NULL) {
        fail_msg("%s, %s: verdict %d, %zu of %zu, '%s', '%s'", name, c->name, (int)c->verdict,
                 c->n_same, c->n_before, c->before, c->reason);
    }
}

static void every_template_gets_verdicts(void **state)
{
    size_t n;
    const char *const *names = chat_fixture_names(&n);

    (void)state;
    for (size_t i = 0; i < n; i += TEST_STRIDE(9u)) {
        quire_chat_lint_case cases[QUIRE_CHAT_LINT_CASES];

        lint_template(names[i], cases);
        for (size_t k = 0; k < QUIRE_CHAT_LINT_CASES; k++) {
            check_case(names[i], &cases[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_that_are_dropped_break_the_prefix),
        cmocka_unit_test(tools_that_change_break_the_prefix),
        cmocka_unit_test(an_end_that_gives_way_breaks_the_prefix),
        cmocka_unit_test(a_refusal_has_its_reason),
        cmocka_unit_test(a_date_is_seen),
        cmocka_unit_test(every_template_gets_verdicts),
    };

    return cmocka_run_group_tests(tests, open_model, close_model);
}
