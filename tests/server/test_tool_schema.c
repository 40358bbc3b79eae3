/* test_tool_schema.c - parameters of tools in their plain form.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "quire/error.h"
#include "server/tool_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        /* a choice at the top: all properties, and those that every member requires */
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
    quire_tool_root root = { parameters, 0 };
    json_t *many = json_array(), *list;

    (void)state;
    assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_OK);
    check_equal(list, "[{\"type\":\"object\",\"properties\":{\"z\":{\"type\":\"null\"},\"a\":{}},"
                      "\"required\":[\"a\"],\"definitions\":{\"k\":{\"required\":[\"z\"]}}},{"
                      "\"type\":\"object\",\"properties\":{\"z\":{\"type\":\"null\"}},"
                      "\"required\":[\"z\"],\"definitions\":{\"k\":{\"required\":[\"z\"]}}}]");
    json_decref(parameters);
    for (unsigned i = 0; i < QUIRE_TOOL_ALTERNATIVES_MAX; i++) {
        assert_int_equal(json_array_append_new(many, json_object()), 0);
    }
    parameters = json_pack("{s:O}", "oneOf", many);
    root = (quire_tool_root){ parameters, 0 };
    assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_OK);
    assert_int_equal(json_array_size(list), QUIRE_TOOL_ALTERNATIVES_MAX);
    json_decref(list);
    json_decref(parameters);
    assert_int_equal(json_array_append_new(many, json_object()), 0);
    parameters = json_pack("{s:o}", "oneOf", many);
    root = (quire_tool_root){ parameters, 0 };
    assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_LIMIT);
    assert_null(list);
    json_decref(parameters);
}

/* Properties of one choice would be lost beside those of another. */
static void two_choices_at_once_are_not_known(void **state)
{
    static const char *const cases[] = {
        "{\"allOf\":[{\"oneOf\":[{\"properties\":{\"a\":{}}}]},{\"oneOf\":[{\"properties\":{\"b\":{"
        "}}}]}]}",
        "{\"anyOf\":[{\"properties\":{\"a\":{}}}],\"oneOf\":[{\"properties\":{\"b\":{}}}]}",
        "{\"anyOf\":[{\"oneOf\":[{\"properties\":{\"a\":{}}}]}]}",
    };

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        json_t *parameters = loaded(cases[i]), *list;
        quire_tool_root root = { parameters, 0 };

        assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_INVAL);
        assert_null(list);
        json_decref(parameters);
    }
}

static void references_that_go_round_end(void **state)
{
    json_t *parameters = loaded("{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"},\"b\":{\"anyOf\":[{"
                                "\"$ref\":\"#/$defs/b\"},{\"type\":\"string\"}]}},\"allOf\":[{"
                                "\"$ref\":\"#/$defs/a\"},{\"properties\":{\"b\":{\"$ref\":"
                                "\"#/$defs/b\"}}}]}");
    quire_tool_root root = { parameters, 0 };
    json_t *list;
    json_t *a = json_object_get(json_object_get(parameters, "$defs"), "a");

    (void)state;
    assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_OK);
    assert_int_equal(json_array_size(list), 1);
    assert_false(quire_tool_schema_may_be_text(&root, a));
    /* Behind the depth of unions nothing is known. */
    assert_false(quire_tool_schema_may_be_text(
        &root, json_object_get(json_object_get(json_array_get(list, 0), "properties"), "b")));
    json_decref(list);
    json_decref(parameters);
}

/* A schema without types, or with references that lead nowhere, allows any value. The plain form
 * says object, which templates write as JSON. */
static void any_value_is_an_object(void **state)
{
    static const char *const schemas[] = {
        "{}",
        "{\"$ref\":\"#/$defs/round\"}",
        "{\"$ref\":\"#/$defs/none\"}",
        "{\"anyOf\":[{\"$ref\":\"#/$defs/round\"},{\"type\":\"string\"}]}",
    };

    (void)state;
    for (size_t i = 0; i < N(schemas); i++) {
        json_t *tools = json_pack("[{s:{s:s, s:{s:{s:o}, s:{s:{s:s}}}}}]", "function", "name", "f",
                                  "parameters", "properties", "p", loaded(schemas[i]), "$defs",
                                  "round", "$ref", "#/$defs/round");
        char *text = json_dumps(tools, JSON_COMPACT);
        char *plain = quire_tools_plain(text);

        if (strstr(plain, "\"type\":\"object\"") == NULL) {
            fail_msg("%s became %s", schemas[i], plain);
        }
        free(plain);
        free(text);
        json_decref(tools);
    }
}

static void references_name_places(void **state)
{
    static const char *const refs[] = { "#/$defs/a~1b", "#/$defs/x/anyOf/1", "#/properties/p",
                                        "#/$defs/r1" };
    json_t *parameters =
        loaded("{\"properties\":{\"p\":{\"type\":\"string\"}},\"$defs\":{\"a/b\":{\"type\":"
               "\"string\"},\"x\":{\"anyOf\":[{},{\"minLength\":1}]},\"r1\":{\"$ref\":"
               "\"#/$defs/r2\"},\"r2\":{\"$ref\":\"#/$defs/r3\"},\"r3\":{\"$ref\":\"#/$defs/r4\"},"
               "\"r4\":{\"$ref\":\"#/$defs/r5\"},\"r5\":{\"$ref\":\"#/$defs/r6\"},\"r6\":{\"$ref\":"
               "\"#/$defs/r7\"},\"r7\":{\"$ref\":\"#/properties/p\"},\"r0\":{\"$ref\":"
               "\"#/$defs/r1\"}}}");
    quire_tool_root root = { parameters, 0 };
    json_t *schema;

    (void)state;
    for (size_t i = 0; i < N(refs); i++) {
        schema = json_pack("{s:s}", "$ref", refs[i]);
        if (!quire_tool_schema_may_be_text(&root, schema)) {
            fail_msg("%s is no text", refs[i]);
        }
        json_decref(schema);
    }
    schema = json_pack("{s:s}", "$ref", "#");
    assert_ptr_equal(quire_tool_schema_resolve(&root, schema), parameters);
    json_decref(schema);
    /* nine of them, and places that are not there, stay */
    schema = json_pack("{s:s}", "$ref", "#/$defs/r0");
    assert_false(quire_tool_schema_may_be_text(&root, schema));
    json_decref(schema);
    schema = json_pack("{s:s}", "$ref", "#/$defs/none");
    assert_ptr_equal(quire_tool_schema_resolve(&root, schema), schema);
    json_decref(schema);
    json_decref(parameters);
}

static json_t *copies(const char *text, unsigned n)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(json_array_append_new(list, loaded(text)), 0);
    }
    return list;
}

/* Ten references to itself in a union are 10^17 schemas, and as many in allOf 10^17 names. */
static void work_on_a_tool_is_bounded(void **state)
{
    static const char ref[] = "{\"$ref\":\"#/$defs/A\"}";
    json_t *parameters = json_pack("{s:{s:{s:o}}}", "$defs", "A", "anyOf", copies(ref, 10));
    quire_tool_root root = { parameters, 0 };
    json_t *schema = loaded(ref), *list;
    char *text, *plain;

    (void)state;
    assert_false(quire_tool_schema_may_be_text(&root, schema));
    json_decref(parameters);
    /* A union that a type ends needs all its members. */
    parameters = json_pack("{s:{s:o}, s:{s:{s:s, s:o}}}", "properties", "a", loaded(ref), "$defs",
                           "A", "type", "string", "anyOf", copies(ref, 10));
    root = (quire_tool_root){ parameters, 0 };
    (void)quire_tool_schema_may_be_text(&root, schema);
    assert_int_equal(root.n_visits, QUIRE_TOOL_VISITS_MAX + 1);
    assert_false(quire_tool_schema_may_be_text(&root, schema));
    assert_false(quire_tool_schema_visit(&root, 0));
    /* Such a tool stays unchanged. */
    list = json_pack("[{s:{s:s, s:O}}]", "function", "name", "f", "parameters", parameters);
    text = json_dumps(list, JSON_COMPACT);
    plain = quire_tools_plain(text);
    assert_string_equal(plain, text);
    free(plain);
    free(text);
    json_decref(list);
    json_decref(parameters);
    parameters = json_pack("{s:o, s:{s:{s:[s], s:o}}}", "allOf", copies(ref, 2), "$defs", "A",
                           "required", "a", "allOf", copies(ref, 10));
    root = (quire_tool_root){ parameters, 0 };
    assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_LIMIT);
    json_decref(parameters);
    json_decref(schema);
}

/* Many schemas of one property are a list, not as many levels. */
static void schemas_of_one_property_are_a_list(void **state)
{
    json_t *parameters = json_pack("{s:[]}", "allOf"), *list;
    quire_tool_root root = { parameters, 0 };

    (void)state;
    for (int i = 0; i < 100; i++) {
        (void)json_array_append_new(json_object_get(parameters, "allOf"),
                                    json_pack("{s:{s:{s:i}}}", "properties", "a", "minimum", i));
    }
    assert_int_equal(quire_tool_alternatives(&root, &list), QUIRE_OK);
    assert_int_equal(
        json_array_size(json_object_get(
            json_object_get(json_object_get(json_array_get(list, 0), "properties"), "a"), "allOf")),
        100);
    json_decref(list);
    json_decref(parameters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_have_named_arguments_of_one_type),
        cmocka_unit_test(a_choice_at_the_top_has_its_members),
        cmocka_unit_test(two_choices_at_once_are_not_known),
        cmocka_unit_test(references_that_go_round_end),
        cmocka_unit_test(any_value_is_an_object),
        cmocka_unit_test(references_name_places),
        cmocka_unit_test(work_on_a_tool_is_bounded),
        cmocka_unit_test(schemas_of_one_property_are_a_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
