/* test_tool_schema.c - parameters of tools in their plain form.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/tool_schema.h"

#include <stdio.h>
#include <stdlib.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static json_t *loaded(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);

    if (value == NULL) {
        fail_msg("%s: %s", text, why.text);
    }
    return value;
}

static void check_equal(json_t *made, const char *wanted)
{
    json_t *value = loaded(wanted);

    if (!json_equal(made, value)) {
        char *text = json_dumps(made, JSON_DECODE_ANY);

        fail_msg("%s\nis not\n%s", text, wanted);
    }
    json_decref(value);
    json_decref(made);
}

static void parameters_have_named_arguments_of_one_type(void **state)
{
    static const struct {
        const char *parameters, *plain;
    } cases[] = {
        /* the first type that may be a string; an integer or null; any value is JSON */
        { "{\"properties\":{\"a\":{\"type\":[\"integer\",\"string\"],\"description\":\"x\"},\"b\":{"
          "\"type\":[\"null\",\"integer\"]},\"c\":{}},\"required\":[\"a\"]}",
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"description\":\"x\"},"
          "\"b\":{\"type\":\"integer\"},\"c\":{\"type\":\"object\"}},\"required\":[\"a\"]}" },
        /* allOf with a reference, and a property that two of its members have */
        { "{\"allOf\":[{\"$ref\":\"#/$defs/k\"},{\"properties\":{\"b\":{\"minimum\":1,\"type\":"
          "\"integer\"}},\"required\":[\"b\"]}],\"$defs\":{\"k\":{\"properties\":{\"a\":{\"const\":"
          "\"x\"},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}",
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":"
          "\"integer\",\"allOf\":[{\"type\":\"integer\"},{\"type\":\"integer\",\"minimum\":1}]}},"
          "\"required\":[\"a\",\"b\"],\"$defs\":{\"k\":{\"properties\":{\"a\":{\"const\":\"x\"},"
          "\"b\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}" },
        /* a choice at the top: all properties, and what each member requires */
        { "{\"oneOf\":[{\"properties\":{\"a\":{\"enum\":[1]}},\"required\":[\"a\",\"z\"]},{"
          "\"properties\":{\"b\":{\"enum\":[1,\"x\"]}},\"required\":[\"z\"]}],\"properties\":{"
          "\"z\":{"
          "\"type\":\"boolean\"}}}",
          "{\"type\":\"object\",\"properties\":{\"z\":{\"type\":\"boolean\"},\"a\":{\"type\":"
          "\"integer\",\"enum\":[1]},\"b\":{\"type\":\"string\"}},\"required\":[\"z\"]}" },
        /* within an argument: a union beside its type, items without a schema */
        { "{\"properties\":{\"a\":{\"anyOf\":[{\"properties\":{}},{\"type\":\"null\"}]},\"b\":{"
          "\"items\":false,\"prefixItems\":[{\"minLength\":1}]}}}",
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"anyOf\":[{\"type\":"
          "\"object\",\"properties\":{}},{\"type\":\"null\"}]},\"b\":{\"type\":\"array\",\"items\":"
          "{"
          "\"type\":\"string\",\"minLength\":1},\"prefixItems\":[{\"type\":\"string\","
          "\"minLength\":1}]}},\"required\":[]}" },
        /* without properties it stays */
        { "{\"type\":\"object\",\"additionalProperties\":true}",
          "{\"type\":\"object\",\"additionalProperties\":true}" },
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        char tools[2048];
        char *text;
        json_t *made;

        (void)snprintf(tools, sizeof tools,
                       "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":%s}}]",
                       cases[i].parameters);
        text = quire_tools_plain(tools);
        assert_non_null(text);
        made = loaded(text);
        check_equal(json_incref(json_object_get(
                        json_object_get(json_array_get(made, 0), "function"), "parameters")),
                    cases[i].plain);
        json_decref(made);
        free(text);
    }
}

static void a_choice_at_the_top_has_its_members(void **state)
{
    json_t *parameters = loaded("{\"properties\":{\"z\":{\"type\":\"null\"}},\"anyOf\":[{"
                                "\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"$ref\":"
                                "\"#/definitions/k\"}],\"definitions\":{\"k\":{\"required\":["
                                "\"z\"]}}}");
    json_t *many = json_array();

    (void)state;
    check_equal(quire_tool_alternatives(parameters),
                "[{\"type\":\"object\",\"properties\":{\"z\":{\"type\":\"null\"},\"a\":{}},"
                "\"required\":[\"a\"],\"definitions\":{\"k\":{\"required\":[\"z\"]}}},{\"type\":"
                "\"object\",\"properties\":{\"z\":{\"type\":\"null\"}},\"required\":[\"z\"],"
                "\"definitions\":{\"k\":{\"required\":[\"z\"]}}}]");
    json_decref(parameters);
    for (unsigned i = 0; i < QUIRE_TOOL_ALTERNATIVES_MAX; i++) {
        assert_int_equal(json_array_append_new(many, json_object()), 0);
    }
    assert_int_equal(json_array_append_new(many, json_object()), 0);
    parameters = json_pack("{s:o}", "oneOf", many);
    assert_null(quire_tool_alternatives(parameters));
    json_decref(parameters);
}

static void references_that_go_round_end(void **state)
{
    json_t *root = loaded("{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"},\"b\":{\"anyOf\":[{\"$ref\":"
                          "\"#/$defs/b\"},{\"type\":\"string\"}]}},\"allOf\":[{\"$ref\":"
                          "\"#/$defs/a\"}]}");
    json_t *list = quire_tool_alternatives(root);
    json_t *a = json_object_get(json_object_get(root, "$defs"), "a");

    (void)state;
    assert_int_equal(json_array_size(list), 1);
    assert_true(quire_tool_schema_is_any(root, a));
    assert_false(quire_tool_schema_may_be_text(root, a));
    json_decref(list);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_have_named_arguments_of_one_type),
        cmocka_unit_test(a_choice_at_the_top_has_its_members),
        cmocka_unit_test(references_that_go_round_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
