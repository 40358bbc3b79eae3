/* test_template_audit.c - text of a chat template that the built-in template in its place lacks.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "gguf_edit.h"
#include "model/chat_templates.h"
#include "model/template_audit.h"
#include "model_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHATML                                                                                     \
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + "                \
    "message['content'] + '<|im_end|>' + '\\n' }}{%- endfor %}"                                    \
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

typedef struct template_case {
    const char *text;
    const char *extra; /* NULL = none */
} template_case;

/* Templates compared with ChatML. NULL: no difference is reported. */
static const template_case cases[] = {
    { CHATML, NULL },
    { "", NULL },
    { "{{", NULL },
    { "{% if", NULL },
    { "{{ 'abc", "abc" },
    /* A system prompt of its own, the beginning of an answer: Qwen2.5 and QwQ. */
    { "{%- if messages[0]['role'] != 'system' %}{{- '<|im_start|>system\\nYou are "
      "made up.<|im_end|>\\n' }}{%- endif %}" CHATML,
      "<|im_start|>system You are made up.<|im_end|>" },
    { CHATML "{{- '<|im_start|>assistant\\n<think>\\n' }}", "<|im_start|>assistant <think>" },
    { "{%- set default_prompt = \"You are a made up model.\" %}" CHATML,
      "You are a made up model." },
    { "Today is a day. " CHATML, "Today is a day." },
    /* Text under conditions that need tools, or other fields that no request has. */
    { "{%- if tools %}{{- '# Tools' }}{%- else %}{%- endif %}" CHATML, NULL },
    { "{%- if tools %}{{- '# Tools' }}{%- else %}{{- 'No tools' }}{%- endif %}" CHATML,
      "No tools" },
    { "{%- if not tools %}{{- 'Alone' }}{%- else %}{{- '# Tools' }}{%- endif %}" CHATML, "Alone" },
    { "{%- if tools is none %}{%- elif x %}{{- '# Tools' }}{%- endif %}" CHATML, NULL },
    { "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>' }}{% endif "
      "%}",
      NULL },
    { "{%- if x or tools %}{{- 'Either' }}{%- endif %}", "Either" },
    { "{%- for tool in tools %}{%- if tool.x %}{{- 'Tool' }}{%- endif %}{%- endfor %}", NULL },
    { "{%- for t in tools %}{%- for m in messages %}{{- 'x y' }}{%- endfor %}{%- endfor %}"
      "{{- 'behind' }}",
      "behind" },
    { "{%- macro write(x) %}{{- 'Macro' }}{%- endmacro %}" CHATML, NULL },
    /* Strings that are not written. */
    { "{{ raise_exception('Wrong order') }}{# A comment. #}" CHATML, NULL },
    { "{{ message.content.split('</think>')[-1] | replace('some', 'other') }}", NULL },
    { "{{ 'Yes' if message.role == 'expert' else '' }}", "Yes" },
    { "{{ '' if 'expert' in message.content else bos_token }}", NULL },
    { "{%- set marker = 'never written' %}{%- set a = ns(x='never written at all') %}", NULL },
    { "{{ ('grouped ' + x) }}", "grouped" },
    { "{%- set text %}set by a block{%- endset %}", "set by a block" },
    { "{{ \"it's \\\"so\\\"\" }}", "it's \"so\"" },
};

static void test_cases(void **state)
{
    static const char written[] = "<|im_start|>system\n1<|im_end|>\n<|im_start|>user\n2<|im_end|>\n"
                                  "<|im_start|>assistant\n";

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char extra[64] = "";
        const bool has = quire_template_has_extra(cases[i].text, written, extra, sizeof extra);

        if (has != (cases[i].extra != NULL) || (has && strcmp(extra, cases[i].extra) != 0)) {
            fail_msg("%s: '%s', expected '%s'", cases[i].text, extra,
                     cases[i].extra != NULL ? cases[i].extra : "none");
        }
    }
}

/* Every beginning of a template, and deep nesting: no reading beyond either. */
static void test_damaged(void **state)
{
    char deep[200 * 8 + 1] = "";
    char extra[8];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t n = 0; n < strlen(cases[i].text); n++) {
            char *text = strndup(cases[i].text, n);

            assert_non_null(text);
            (void)quire_template_has_extra(text, "", extra, sizeof extra);
            assert_true(strlen(extra) < sizeof extra);
            free(text);
        }
    }
    for (size_t i = 0; i < 200; i++) {
        memcpy(deep + 8 * i, "{%if x%}", 8);
    }
    assert_false(quire_template_has_extra(deep, "", extra, sizeof extra));
}

static bool warning_of(const char *chat_template, char *warning, size_t n)
{
    const gguf_edit_key change = { "tokenizer.chat_template", EDIT_STR, 0, chat_template, 0 };
    gguf_gen_opts opts = gguf_edit_small("tiny-qwen2");
    gguf_edit edit;
    quire_model *model;
    bool has;

    gguf_edit_open(&edit, &opts);
    gguf_edit_apply(&edit, &change);
    gguf_edit_save(&edit, gguf_edit_path());
    gguf_edit_close(&edit);
    model = fixture_open(gguf_edit_path());
    has = quire_chat_template_warning(model, warning, n);
    quire_model_close(model);
    return has;
}

static void test_warning(void **state)
{
    char warning[512];

    (void)state;
    assert_false(warning_of(CHATML, warning, sizeof warning));
    assert_false(warning_of("no template at all", warning, sizeof warning));
    assert_true(warning_of("{{- '<|im_start|>system\\nBe made up.<|im_end|>' }}" CHATML, warning,
                           sizeof warning));
    assert_non_null(strstr(warning, "'chatml'"));
    assert_non_null(strstr(warning, "\"<|im_start|>system Be made up.<|im_end|>\""));
    (void)unlink(gguf_edit_path());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_warning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
