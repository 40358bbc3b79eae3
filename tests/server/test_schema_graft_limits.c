/* test_schema_graft_limits.c - schemas of tools that are too much for a grammar, in formats that
 * write arguments one by one.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>

#include "grammar_text.h"
#include "schema_graft_forms.h"
#include "server/schema_graft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static quire_model *model;

static int setup(void **state)
{
    (void)state;
    model = grammar_text_model();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(model);
    return 0;
}

static json_t *loaded(const char *text)
{
    json_error_t why;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &why);

    if (value == NULL) {
        fail_msg("%.200s: %s", text, why.text);
    }
    return value;
}

static json_t *copies(const char *text, unsigned n)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(json_array_append_new(list, loaded(text)), 0);
    }
    return list;
}

/* Graft a function "f"; takes the parameters. */
static int graft(const char *grammar, json_t *parameters, bool is_strict, quire_bytes *gbnf,
                 quire_error *err)
{
    json_t *tools = json_pack("[{s:s, s:{s:s, s:b, s:o}}]", "type", "function", "function", "name",
                              "f", "strict", is_strict, "parameters", parameters);
    char *text = json_dumps(tools, JSON_COMPACT);
    int rc;

    assert_non_null(text);
    rc = quire_schema_graft(grammar, text, NULL, gbnf, err);
    free(text);
    json_decref(tools);
    return rc;
}

/* The function takes the text; takes the parameters. */
static void check_text(const char *grammar, json_t *parameters, const char *text, bool is_taken)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    if (graft(grammar, parameters, false, &gbnf, &err) < 0) {
        fail_msg("%s", err.message);
    }
    if (grammar_text_is_taken(model, gbnf.data, text) != is_taken) {
        fail_msg("%s %s:\n%.4000s", is_taken ? "not taken is" : "taken is", text, gbnf.data);
    }
    quire_bytes_fini(&gbnf);
}

/* Takes the parameters. */
static void check_strict(const char *grammar, json_t *parameters, int status, const char *says)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(graft(grammar, parameters, true, &gbnf, &err), status);
    if (status < 0 && strstr(err.message, says) == NULL) {
        fail_msg("\"%s\" says nothing of \"%s\"", err.message, says);
    }
    quire_bytes_fini(&gbnf);
}

#define REF_A "{\"$ref\":\"#/$defs/A\"}"

/* Definitions that name themselves ten times: 10^17 schemas. */
static void test_unions_of_themselves(void **state)
{
    static const char *const keywords[] = { "anyOf", "allOf", "oneOf" };
    static const struct {
        const char *grammar, *text;
    } forms[] = { { TAGGED, "f[a_b]any;/" }, { PYTHON, "f(a_b=x)" }, { GEMMA, "f{a_b:{}}" } };

    (void)state;
    for (size_t k = 0; k < N(keywords); k++) {
        for (size_t i = 0; i < N(forms); i++) {
            json_t *parameters =
                json_pack("{s:{s:o}, s:{s:{s:s, s:o}}}", "properties", "a_b", loaded(REF_A),
                          "$defs", "A", "type", "string", keywords[k], copies(REF_A, 10));
            quire_bytes gbnf = { 0 };
            quire_error err = QUIRE_ERROR_INIT;

            assert_int_equal(graft(forms[i].grammar, json_incref(parameters), false, &gbnf, &err),
                             QUIRE_OK);
            assert_true(gbnf.n < 4096);
            quire_bytes_fini(&gbnf);
            json_decref(parameters);
        }
    }
}

/* Unions with members that multiply: 10^9 alternatives, and texts longer than the limit of a
 * grammar. */
static void test_unions_beside_unions(void **state)
{
    json_t *parameters = json_pack(
        "{s:{s:{s:o, s:o, s:o}}}", "properties", "u", "anyOf", copies("{\"minLength\":1}", 1000),
        "oneOf", copies("{\"maxLength\":9}", 1000), "type", copies("\"string\"", 1000));
    char *text = malloc(1u << 20);

    (void)state;
    check_text(GEMMA, parameters, "f{x}", true); /* the library's rule */
    memset(text, 'x', 1u << 20);
    text[(1u << 20) - 1] = '\0';
    parameters = json_pack("{s:{s:{s:o}}}", "properties", "a_b", "anyOf", copies(REF_A, 1000));
    (void)json_object_set_new(parameters, "$defs", json_pack("{s:{s:[s]}}", "A", "enum", text));
    check_text(TAGGED, json_incref(parameters), "f[a_b]any;/", true);
    check_text(GEMMA, parameters, "f{x}", true);
    free(text);
}

/* More properties than a grammar has bytes for. */
static void test_many_properties(void **state)
{
    json_t *properties = json_object();
    char name[16];

    (void)state;
    for (unsigned i = 0; i < 4000; i++) {
        (void)snprintf(name, sizeof name, "p%u", i);
        (void)json_object_set_new(properties, name, json_pack("{s:i}", "const", (int)i));
    }
    check_text(GEMMA, json_pack("{s:o}", "properties", properties), "f{x}", true);
}

/* Nested definitions, and definitions with names that are equal up to byte 128. */
static void test_definitions_within_definitions(void **state)
{
    json_t *defs = json_object();
    char name[200], longer[216], target[256];
    const unsigned n = 20000;

    (void)state;
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "d%u", i);
        (void)snprintf(target, sizeof target, "#/$defs/d%u", (i + 1) % n);
        (void)json_object_set_new(
            defs, name,
            json_pack("{s:s, s:{s:{s:s}}}", "type", "object", "properties", "n", "$ref", target));
    }
    check_text(
        GEMMA,
        json_pack("{s:{s:{s:s}}, s:O}", "properties", "n", "$ref", "#/$defs/d0", "$defs", defs),
        "f{n:{n:{n:{}}}}", true);
    check_strict(GEMMA,
                 json_pack("{s:s, s:{s:{s:s}}, s:o}", "type", "object", "properties", "n", "$ref",
                           "#/$defs/d0", "$defs", defs),
                 QUIRE_LIMIT, "more than");

    memset(name, 'x', 150);
    memcpy(name + 150, "a", 2);
    (void)snprintf(longer, sizeof longer, "%sa", name);
    (void)snprintf(target, sizeof target, "#/$defs/%s", name);
    defs = json_pack("{s:{s:i}, s:{s:i}}", name, "const", 1, longer, "const", 2);
    {
        json_t *parameters = json_pack("{s:{s:{s:s}, s:{s:s+}}, s:o}", "properties", "p", "$ref",
                                       target, "q", "$ref", target, "a", "$defs", defs);

        check_text(GEMMA, json_incref(parameters), "f{p:1,q:2}", true);
        check_text(GEMMA, parameters, "f{p:1,q:1}", false);
    }
}

/* A rule with a name of 200 bytes: its name with "-item", cut to 200 bytes, would be the rule's own
 * name. */
static void test_names_of_rules_are_not_cut(void **state)
{
    char name[224], grammar[2048], long_name[230];

    (void)state;
    memset(name, 'x', sizeof name);
    (void)snprintf(name + 200 - strlen("tool-f-arg-"), 8, "-item");
    (void)snprintf(grammar, sizeof grammar,
                   "root ::= tool-f\ntool-f ::= (\"f\") tool-f-arg-%s\nspace ::= | \" \"\n"
                   "tool-f-arg-%s ::= (\"<l>\") (space tool-f-arg-%s-item)* \"</l>\"\n"
                   "tool-f-arg-%s-item ::= \"i\"\n",
                   name, name, name, name);
    memset(long_name, 'x', sizeof long_name);
    long_name[229] = '\0';
    check_text(
        grammar,
        json_pack("{s:{s:{s:{}}, s:{s:s}}}", "properties", name, "items", long_name, "const", "y"),
        "f<l>i</l>", true);
    check_strict(grammar,
                 json_pack("{s:s, s:{s:{s:s, s:{s:s}}}}", "type", "object", "properties", name,
                           "type", "array", "items", "type", "string"),
                 QUIRE_LIMIT, "longer than 200 bytes");
}

static void test_strict_functions_of_too_many_alternatives(void **state)
{
    static const char one[] = "{\"type\":\"object\",\"properties\":{\"c\":{\"const\":1}}}";

    (void)state;
    check_strict(PYTHON, json_pack("{s:o}", "anyOf", copies(one, 16)), QUIRE_OK, "");
    check_strict(PYTHON, json_pack("{s:o}", "anyOf", copies(one, 17)), QUIRE_LIMIT,
                 "more than 16 members");
    check_strict(PYTHON, json_pack("{s:o, s:o}", "anyOf", copies(one, 2), "oneOf", copies(one, 2)),
                 QUIRE_INVAL, "cannot hold anyOf or oneOf");
}

/* anyOf of one member, n times around a constant "x". */
static json_t *nested_unions(unsigned n)
{
    json_t *schema = loaded("{\"const\":\"x\"}");

    for (unsigned i = 0; i < n; i++) {
        schema = json_pack("{s:[o]}", "anyOf", schema);
    }
    return json_pack("{s:{s:o}, s:[s]}", "properties", "a_b", schema, "required", "a_b");
}

static void test_unions_within_unions(void **state)
{
    (void)state;
    check_text(TAGGED, nested_unions(8), "f[a_b]x;/", true);
    check_text(TAGGED, nested_unions(8), "f[a_b]y;/", false);
    check_text(TAGGED, nested_unions(9), "f[a_b]y;/", true);
    check_text(PYTHON, nested_unions(7), "f(a_b=\"x\")", true);
    check_text(PYTHON, nested_unions(7), "f(a_b=\"y\")", false);
    check_text(PYTHON, nested_unions(8), "f(a_b=\"y\")", true);
}

/* Unions that begin with a union, n times. */
static json_t *unions_in_a_row(unsigned n)
{
    json_t *defs = json_object();
    char name[16], target[32];

    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "u%u", i);
        (void)snprintf(target, sizeof target, "#/$defs/u%u", i + 1);
        (void)json_object_set_new(
            defs, name,
            i + 1 < n ? json_pack("{s:[{s:s}, {s:i}]}", "anyOf", "$ref", target, "const", (int)i)
                      : json_pack("{s:[{s:i}]}", "anyOf", "const", (int)i));
    }
    return json_pack("{s:s, s:{s:{s:s}}, s:o}", "type", "object", "properties", "u", "$ref",
                     "#/$defs/u0", "$defs", defs);
}

/* A union of n unions. */
static json_t *unions_side_by_side(unsigned n)
{
    json_t *defs = json_pack("{s:{s:[]}}", "u", "anyOf");
    json_t *members = json_object_get(json_object_get(defs, "u"), "anyOf");
    char name[16], target[32];

    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "u%u", i);
        (void)snprintf(target, sizeof target, "#/$defs/u%u", i);
        (void)json_object_set_new(defs, name, json_pack("{s:[{s:i}]}", "anyOf", "const", (int)i));
        (void)json_array_append_new(members, json_pack("{s:s}", "$ref", target));
    }
    return json_pack("{s:s, s:{s:{s:s}}, s:o}", "type", "object", "properties", "u", "$ref",
                     "#/$defs/u", "$defs", defs);
}

static void test_unions_that_begin_with_unions(void **state)
{
    (void)state;
    check_text(GEMMA, unions_in_a_row(31), "f{u:30}", true);
    check_text(GEMMA, unions_in_a_row(31), "f{u:{x}}", false);
    check_text(GEMMA, unions_in_a_row(32), "f{u:{x}}", true);
    check_strict(GEMMA, unions_in_a_row(31), QUIRE_OK, "");
    check_strict(GEMMA, unions_in_a_row(32), QUIRE_LIMIT, "schemas within schemas: more than 32");
    check_text(GEMMA, unions_side_by_side(31), "f{u:{x}}", false);
    check_text(GEMMA, unions_side_by_side(32), "f{u:{x}}", true);
    check_strict(GEMMA, unions_side_by_side(31), QUIRE_OK, "");
    check_strict(GEMMA, unions_side_by_side(32), QUIRE_LIMIT, "begin with unions: more than 32");
}

/* An argument of "x". Its rule is n names away from the tag of n_tag letters. */
static void check_tag(unsigned n_names, unsigned n_tag, const char *value, bool is_taken)
{
    quire_bytes grammar = { 0 }, text = { 0 };

    (void)quire_bytes_addf(&grammar, "root ::= tool-f\ntool-f ::= (\"f\") tool-f-arg-a\n"
                                     "tool-f-arg-a ::= (\"=\") n0\n");
    for (unsigned i = 0; i < n_names; i++) {
        (void)quire_bytes_addf(&grammar, "n%u ::= ", i);
        (void)quire_bytes_addf(&grammar, i + 1 < n_names ? "n%u\n" : "ac-1\n", i + 1);
    }
    (void)quire_bytes_addf(&grammar, "ac-1 ::= [;] ac-1-01 | [^;] ac-1\n");
    for (unsigned i = 1; i < n_tag; i++) {
        (void)quire_bytes_addf(&grammar, "ac-1-%02u ::= [;]", i);
        if (i + 1 < n_tag) {
            (void)quire_bytes_addf(&grammar, " ac-1-%02u", i + 1);
        }
        (void)quire_bytes_addf(&grammar, " | [^;] ac-1\n");
    }
    (void)quire_bytes_addf(&text, "f=%s", value);
    for (unsigned i = 0; i < n_tag; i++) {
        (void)quire_bytes_addf(&text, ";");
    }
    assert_int_equal(text.status, 0);
    assert_int_equal(grammar.status, 0);
    check_text(grammar.data, loaded("{\"properties\":{\"a\":{\"const\":\"x\"}}}"), text.data,
               is_taken);
    quire_bytes_fini(&text);
    quire_bytes_fini(&grammar);
}

static void test_tags_of_the_library(void **state)
{
    (void)state;
    check_tag(8, 256, "x", true);
    check_tag(8, 256, "y", false);
    check_tag(8, 257, "y", true); /* the library's rule */
    check_tag(9, 2, "y", true);
}

/* The answer's schema has no room beside the tools': it is refused, since an answer without it
 * would go unnoticed. */
static void test_an_answer_beside_large_tools(void **state)
{
    static const char grammar[] = "root ::= tool-f-schema | tool-g-schema | response-format\n"
                                  "tool-f-schema ::= \"{}\"\ntool-g-schema ::= \"{}\"\n"
                                  "response-format ::= \"1\"\n";
    json_t *values = json_array();
    json_t *tools;
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;
    char value[301];
    char *text;

    (void)state;
    for (int i = 0; i < 500; i++) {
        (void)snprintf(value, sizeof value, "%0300d", i);
        assert_int_equal(json_array_append_new(values, json_string(value)), 0);
    }
    tools = json_pack("[{s:{s:s, s:{s:{s:{s:O}}}}}, {s:{s:s, s:{s:{s:{s:O}}}}}]", "function",
                      "name", "f", "parameters", "properties", "x", "enum", values, "function",
                      "name", "g", "parameters", "properties", "x", "enum", values);
    text = json_dumps(tools, JSON_COMPACT);
    assert_non_null(text);
    assert_int_equal(quire_schema_graft(grammar, text, "{\"const\":2}", &gbnf, &err), QUIRE_LIMIT);
    assert_non_null(
        strstr(err.message, "tools: the schema of the answer beside them: its grammar"));
    quire_bytes_fini(&gbnf);
    free(text);
    json_decref(tools);
    json_decref(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unions_of_themselves),
        cmocka_unit_test(test_unions_beside_unions),
        cmocka_unit_test(test_many_properties),
        cmocka_unit_test(test_definitions_within_definitions),
        cmocka_unit_test(test_names_of_rules_are_not_cut),
        cmocka_unit_test(test_strict_functions_of_too_many_alternatives),
        cmocka_unit_test(test_unions_within_unions),
        cmocka_unit_test(test_unions_that_begin_with_unions),
        cmocka_unit_test(test_tags_of_the_library),
        cmocka_unit_test(test_an_answer_beside_large_tools),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
