/* test_schema_graft.c - grammars of schemas in the grammar of a chat format: which texts it takes.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "grammar_text.h"
#include "server/json_schema.h"
#include "server/schema_graft.h"

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

typedef struct rule_case {
    const char *taken[10];
    const char *refused[10];
} rule_case;

static void check(const char *what, const char *gbnf, const rule_case *c)
{
    for (size_t i = 0; i < N(c->taken) && c->taken[i] != NULL; i++) {
        if (!grammar_text_is_taken(model, gbnf, c->taken[i])) {
            fail_msg("%s does not take %s:\n%s", what, c->taken[i], gbnf);
        }
    }
    for (size_t i = 0; i < N(c->refused) && c->refused[i] != NULL; i++) {
        if (grammar_text_is_taken(model, gbnf, c->refused[i])) {
            fail_msg("%s takes %s:\n%s", what, c->refused[i], gbnf);
        }
    }
}

/* The grammar as the library writes it: a rule of each tool's arguments, and rules below it. */
static const char format_grammar[] = "root ::= \"<\" (tool-a-b | tool-c) \">\"\n"
                                     "space ::= | \" \"\n"
                                     "string ::= \"\\\"\" [^\"\\\\]* \"\\\"\"\n"
                                     "tool-a-b ::= \"a.b\" space tool-a-b-schema\n"
                                     "tool-a-b-schema ::= \"{\" tool-a-b-schema-x \"}\"\n"
                                     "tool-a-b-schema-x ::= \"\\\"x\\\":\" string\n"
                                     "tool-c ::= \"c\" space tool-c-schema\n"
                                     "tool-c-schema ::= \"{\" space \"}\"\n";

#define TOOL(name, more, parameters)                                                               \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"" more                              \
    ",\"parameters\":" parameters "}}"

static void check_graft(const char *tools, const rule_case *c)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_schema_graft(format_grammar, tools, NULL, &gbnf, &err), QUIRE_OK);
    check("the graft", gbnf.data, c);
    quire_bytes_fini(&gbnf);
}

static void test_arguments_in_a_format(void **state)
{
    const rule_case bounds = {
        { "<a.b{\"x\":7}>", "<a.b {\"x\":10}>", "<c{\"y\":\"k\"}>", "<c {}>" },
        { "<a.b{\"x\":11}>", "<a.b{\"x\":\"\"}>", "<c{\"y\":\"kk\"}>", "a.b{}" }
    };
    const rule_case library = { { "<a.b{\"x\":\"y\"}>", "<c{ }>" }, { "<a.b{\"x\":1}>" } };
    const rule_case any = { { "<a.b{}>", "<a.b{\"z\": [1]}>" }, { "<a.b[]>" } };
    const rule_case skipped = { { "<a.b{\"x\":1}>", "<c{}>" }, { "<a.b{\"x\":\"\"}>" } };

    (void)state;
    check_graft(
        "[" TOOL(
            "a.b", "",
            "{\"properties\":{\"x\":{\"type\":\"integer\",\"maximum\":10}}}") "," TOOL("c", "",
                                                                                       "{\"properti"
                                                                                       "es\":{"
                                                                                       "\"y\":{"
                                                                                       "\"pattern\""
                                                                                       ":\"^k$\"}}"
                                                                                       "}") "]",
        &bounds);
    /* Nothing is replaced without tools, or when the rules of two tools have the same name. */
    check_graft(NULL, &library);
    check_graft("[" TOOL("a.b", "", "{\"const\":{}}") "," TOOL("a/b", "", "{\"const\":{}}") "]",
                &library);
    /* A schema beyond the limits, one that is not supported, and a keyword that is not known. */
    check_graft("[" TOOL("a.b", "", "{\"properties\":{\"x\":{\"minimum\":1e300}}}") "]", &any);
    check_graft("[" TOOL("a.b", "", "{\"multipleOf\":\"x\",\"type\":\"number\"}") "]", &library);
    check_graft(
        "[" TOOL("a.b", "",
                 "{\"not\":{},\"properties\":{\"x\":{\"const\":1,\"uniqueItems\":true}}}") "]",
        &skipped);
}

static void test_the_answers_schema_in_a_format(void **state)
{
    static const rule_case c = { { "[7]" }, { "[12]", "[]", "7" } };
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(
        quire_schema_graft("response-format ::= response-format-schema\n"
                           "response-format-schema ::= \"[]\"\nroot ::= response-format\n",
                           NULL, "{\"items\":{\"enum\":[7]},\"minItems\":1,\"maxItems\":1}", &gbnf,
                           &err),
        QUIRE_OK);
    check("the answer's schema", gbnf.data, &c);
    quire_bytes_fini(&gbnf);
}

static void test_strict_functions_are_kept_or_refused(void **state)
{
    quire_bytes gbnf = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    assert_int_equal(quire_schema_graft(format_grammar,
                                        "[" TOOL("c", ",\"strict\":true", "{\"not\":{}}") "]", NULL,
                                        &gbnf, &err),
                     QUIRE_INVAL);
    assert_non_null(strstr(err.message,
                           "tools: the strict function \"c\": json_schema, #: not supported "
                           "is the keyword \"not\""));
    quire_bytes_fini(&gbnf);
}

/* Schemas as agents send them are supported as a whole. */
static void test_schemas_of_agents(void **state)
{
    json_t *tools = json_load_file(QUIRE_SOURCE_DIR "/scripts/agents/tools.json", 0, NULL);

    (void)state;
    assert_int_equal(json_array_size(tools), 20);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *tool = json_array_get(tools, i);
        quire_bytes gbnf = { 0 };
        quire_error err = QUIRE_ERROR_INIT;

        if (quire_json_schema_grammar(json_object_get(tool, "parameters"), &gbnf, &err) < 0) {
            fail_msg("%s: %s", json_string_value(json_object_get(tool, "name")), err.message);
        }
        quire_bytes_fini(&gbnf);
    }
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments_in_a_format),
        cmocka_unit_test(test_the_answers_schema_in_a_format),
        cmocka_unit_test(test_strict_functions_are_kept_or_refused),
        cmocka_unit_test(test_schemas_of_agents),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
