/* test_json_schema_rules.c - bounds of numbers, patterns, formats, allOf and the like: which texts
 * the grammar of a schema takes.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "grammar_text.h"
#include "seed.h"
#include "server/json_schema.h"
#include "server/regex_grammar.h"

#include <stdint.h>
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

static json_t *parse(const char *text)
{
    json_error_t err;
    json_t *json = json_loads(text, JSON_DECODE_ANY, &err);

    if (json == NULL) {
        fail_msg("%s in: %s", err.text, text);
    }
    return json;
}

/* Memory: quire_bytes_fini(). */
static quire_bytes grammar_within(const char *schema_text, bool is_known_only)
{
    json_t *schema = parse(schema_text);
    quire_error err = QUIRE_ERROR_INIT;
    quire_bytes gbnf = { 0 };

    if (quire_json_schema_grammar_within(schema, schema, is_known_only, &gbnf, &err) != QUIRE_OK) {
        fail_msg("%s: %s", schema_text, err.message);
    }
    json_decref(schema);
    return gbnf;
}

static quire_bytes grammar_of(const char *schema_text)
{
    return grammar_within(schema_text, false);
}

typedef struct rule_case {
    const char *schema;
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

static void check_cases(const rule_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        quire_bytes gbnf = grammar_of(cases[i].schema);

        check(cases[i].schema, gbnf.data, &cases[i]);
        quire_bytes_fini(&gbnf);
    }
}

/* ---- numbers ---- */

static const rule_case numbers[] = {
    { "{\"enum\":[0.1,-2.5e-7,0.30000000000000004,7]}",
      { "0.1", "-2.5e-7", "0.30000000000000004", "7" },
      { "0.10000000000000001", "0.3" } },
    { "{\"type\":\"integer\",\"minimum\":3,\"maximum\":12}",
      { "3", "9", "10", "12" },
      { "2", "13", "0", "-3", "3.5", "03", "120", "1" } },
    { "{\"type\":\"integer\",\"minimum\":0}", { "0", "7", "1000" }, { "-1", "-0", "00" } },
    { "{\"type\":\"integer\",\"exclusiveMinimum\":0}", { "1", "10" }, { "0", "-1" } },
    { "{\"type\":\"integer\",\"maximum\":-5}", { "-5", "-6", "-100" }, { "-4", "5", "0" } },
    { "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":7}",
      { "-12", "-1", "0", "7" },
      { "-13", "8", "-120", "12" } },
    { "{\"type\":\"integer\",\"minimum\":187,\"exclusiveMaximum\":1043}",
      { "187", "199", "200", "999", "1000", "1042" },
      { "186", "1043", "1100", "18" } },
    { "{\"type\":\"integer\",\"minimum\":2.5,\"maximum\":3.5}", { "3" }, { "2", "4", "3.1" } },
    { "{\"minimum\":0,\"maximum\":1}",
      { "0", "1", "0.5", "0.999", "1.0", "1.000", "0.0" },
      { "1.1", "-0.5", "1.001", "2", "1e3", "0." } },
    { "{\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}",
      { "0.5", "0.001", "0.999" },
      { "0", "1", "0.0", "1.0", "0.000" } },
    { "{\"minimum\":0.25,\"maximum\":0.75}",
      { "0.25", "0.3", "0.750", "0.7", "0.2500", "0.251" },
      { "0.2", "0.76", "0.751", "0.249", "0", "1" } },
    { "{\"minimum\":1.5,\"maximum\":20.05}",
      { "1.5", "1.50", "2", "19.99", "20", "20.0", "20.05", "20.04" },
      { "1.49", "1", "20.06", "20.1", "21", "1.4" } },
    { "{\"minimum\":-0.5,\"maximum\":0.5}",
      { "-0.5", "0", "0.5", "-0.1", "0.49" },
      { "-0.51", "0.51", "1", "-1" } },
    { "{\"maximum\":-1.5}", { "-1.5", "-2", "-1.50" }, { "-1.4", "-1", "0" } },
    { "{\"exclusiveMinimum\":1.5,\"maximum\":1.6}", { "1.51", "1.6", "1.501" }, { "1.5", "1.50" } },
    { "{\"minimum\":5,\"exclusiveMinimum\":true}", { "6", "5.5" }, { "5", "5.0" } },
    { "{\"type\":\"integer\",\"multipleOf\":1,\"maximum\":2,\"minimum\":1}",
      { "1", "2" },
      { "3" } },
    { "{\"type\":\"number\",\"multipleOf\":0.01}",
      { "1", "1.5", "1.25", "-3.07" },
      { "1.255", "1e2" } },
    { "{\"multipleOf\":0.01,\"minimum\":0,\"maximum\":9.99}",
      { "0", "9.99", "4.5", "0.01" },
      { "10", "9.991", "9.999" } },
    { "{\"multipleOf\":0.25,\"minimum\":0,\"maximum\":1}",
      { "0", "0.25", "0.50", "0.75", "1" },
      { "0.3", "1.25" } },
    { "{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-7,\"maximum\":20}",
      { "-7", "0", "7", "14" },
      { "-14", "21", "8", "1" } },
    { "{\"type\":\"integer\",\"multipleOf\":5}",
      { "0", "5", "10", "15", "-25", "1005" },
      { "1", "12", "05" } },
    { "{\"type\":\"integer\",\"multipleOf\":4,\"minimum\":0}",
      { "0", "4", "12", "96", "100", "1024" },
      { "2", "10", "1022", "-4" } },
    { "{\"type\":\"integer\",\"multipleOf\":100}", { "0", "100", "-2500" }, { "50", "1" } },
    { "{\"type\":\"integer\",\"multipleOf\":0.75,\"minimum\":-3,\"maximum\":6}",
      { "-3", "0", "3", "6" },
      { "0.75", "1.50", "1", "9" } },
    { "{\"type\":\"integer\",\"multipleOf\":2.5}", { "0", "5", "-10" }, { "2.5", "2", "12" } },
    { "{\"type\":\"integer\",\"multipleOf\":0.5,\"minimum\":0,\"maximum\":5000}",
      { "0", "4999" },
      { "0.5", "5001" } },
};

static void test_numbers(void **state)
{
    (void)state;
    check_cases(numbers, N(numbers));
}

/* Every number within random bounds is taken, and none beyond. */
static void test_random_bounds(void **state)
{
    quire_rng rng = test_rng(61);

    (void)state;
    for (int round = 0; round < 60; round++) {
        const int scale = round % 2 == 0 ? 1 : 100;
        const int low = (int)quire_rng_below(&rng, 2400) - 1200;
        const int high = low + (int)quire_rng_below(&rng, round % 3 == 0 ? 12 : 1500);
        char schema[160];
        quire_bytes gbnf;

        if (scale == 1) {
            (void)snprintf(schema, sizeof schema,
                           "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", low, high);
        } else {
            (void)snprintf(schema, sizeof schema,
                           "{\"type\":\"number\",\"minimum\":%.2f,\"maximum\":%.2f}", low / 100.0,
                           high / 100.0);
        }
        gbnf = grammar_of(schema);
        for (int i = 0; i < 12; i++) {
            const int near = i % 2 == 0 ? low : high;
            const int n = near + (int)quire_rng_below(&rng, 7) - 3;
            char text[32];

            if (n == 0 && low < 0) {
                continue; /* "-0.00" is not written */
            }
            (void)snprintf(text, sizeof text, scale == 1 ? "%.0f" : "%.2f", n / (double)scale);
            if (grammar_text_is_taken(model, gbnf.data, text) != (n >= low && n <= high)) {
                fail_msg("%s and %s:\n%s", schema, text, gbnf.data);
            }
        }
        quire_bytes_fini(&gbnf);
    }
}

/* ---- strings ---- */

static const rule_case strings[] = {
    { "{\"pattern\":\"^[a-c]{2,3}$\"}",
      { "\"ab\"", "\"abc\"" },
      { "\"a\"", "\"abcd\"", "\"ad\"" } },
    { "{\"pattern\":\"b+\"}", { "\"b\"", "\"abbc\"", "\"\\\"b\"" }, { "\"ac\"", "\"\"" } },
    { "{\"pattern\":\"^a|b$\"}", { "\"ax\"", "\"xb\"" }, { "\"xa\"", "\"bx\"" } },
    { "{\"pattern\":\"^(foo|ba?r)(?:-\\\\d+)?$\"}",
      { "\"foo\"", "\"br\"", "\"bar-12\"" },
      { "\"baar\"", "\"foo-\"" } },
    { "{\"pattern\":\"^[^\\\"x]\\\\.\\\\\\\\$\"}", { "\"a.\\\\\"" }, { "\"x.\\\\\"" } },
    { "{\"pattern\":\"^\\\\w+\\\\s\\\\S$\"}", { "\"a_1 !\"", "\"a\\nb\"" }, { "\"a b c\"" } },
    { "{\"pattern\":\"^\\\\u0041\\\\x42\\\\u{43}$\"}", { "\"ABC\"" }, { "\"abc\"" } },
    { "{\"pattern\":\"^a{0}b??$\"}", { "\"b\"", "\"\"" }, { "\"ab\"" } },
    { "{\"pattern\":\"^(?<year>[0-9]{4})$\",\"minLength\":4,\"maxLength\":9}",
      { "\"2026\"" },
      { "\"26\"" } },
    { "{\"pattern\":\"^.$\"}", { "\"a\"", "\"\\\"\"" }, { "\"\\n\"" } },
    { "{\"format\":\"date\"}",
      { "\"2026-02-28\"", "\"1999-12-31\"", "\"2024-02-29\"", "\"2000-02-29\"" },
      { "\"2026-02-30\"", "\"2026-13-01\"", "\"2026-04-31\"", "\"26-04-01\"", "\"2026-02-29\"",
        "\"1900-02-29\"", "\"2024-02-30\"" } },
    { "{\"format\":\"date-time\"}",
      { "\"2026-11-24T05:36:07Z\"", "\"2026-11-24T05:36:07.25+01:00\"" },
      { "\"2026-11-24\"", "\"2026-11-24T25:00:00Z\"", "\"2026-11-24 05:36:07Z\"" } },
    { "{\"format\":\"time\"}", { "\"23:59:59Z\"" }, { "\"24:00:00Z\"", "\"23:59:59\"" } },
    { "{\"format\":\"duration\"}",
      { "\"P3DT4H5S\"", "\"PT5M\"", "\"P2W\"", "\"PT1H30M\"", "\"P1Y\"", "\"P1Y6M\"",
        "\"P1DT2H\"" },
      { "\"P\"", "\"PT\"", "\"P1DT\"", "\"P1D2Y\"", "\"P1\"" } },
    { "{\"format\":\"email\"}",
      { "\"a.b@example.org\"", "\"a@b-c.d.co.uk\"" },
      { "\"a.b\"", "\"a@@b.org\"", "\".a@b.org\"", "\"a@b\"", "\"a@b.1\"", "\"a@b.c\"" } },
    { "{\"format\":\"ipv4\"}", { "\"192.168.0.255\"" }, { "\"1.2.3\"", "\"256.1.1.1\"" } },
    { "{\"format\":\"ipv6\"}",
      { "\"::1\"", "\"2001:db8:0:0:0:0:0:1\"", "\"::\"", "\"fe80::1:2\"" },
      { "\"1:2\"", "\":::\"", "\"12345::\"" } },
    { "{\"format\":\"hostname\"}", { "\"a-b.example\"" }, { "\"-a\"", "\"a..b\"" } },
    { "{\"format\":\"uri\"}",
      { "\"https://example.org/a?b=c#d\"", "\"mailto:a@b.c\"", "\"http://u:p@a.b:80\"",
        "\"file:///a\"", "\"urn:a:b\"", "\"x:/\"" },
      { "\"example.org\"", "\"http://a b\"", "\"http:\"", "\"http://a:b/\"", "\"http://\"",
        "\"http://a@b@c\"" } },
    { "{\"format\":\"uri-reference\"}", { "\"/a/b\"", "\"a?b\"" }, { "\"a b\"" } },
    /* As zod writes them: z.email(), z.iso.date(), z.string().startsWith("ab"). */
    { "{\"format\":\"email\",\"pattern\":\"^(?:[A-Za-z0-9_'+\\\\-]+\\\\.)*[A-Za-z0-9_'+\\\\-]*"
      "[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$\"}",
      { "\"o'b.c@example.org\"" },
      { "\"a.b\"", "\".a@b.org\"" } },
    { "{\"format\":\"date\",\"pattern\":\"^(?:\\\\d\\\\d0[48]-02-29|\\\\d{4}-02-(?:0[1-9]|1\\\\d))$"
      "\"}",
      { "\"2004-02-29\"", "\"2005-02-19\"" },
      { "\"2005-02-29\"" } },
    { "{\"format\":\"starts_with\",\"pattern\":\"^ab.*\"}", { "\"abc\"" }, { "\"ac\"" } },
    /* One repetition takes the bounds of the length. */
    { "{\"pattern\":\"^[a-z][a-z0-9]*$\",\"maxLength\":3}",
      { "\"a\"", "\"a1b\"" },
      { "\"a1b2\"", "\"1\"", "\"\"" } },
    { "{\"pattern\":\"^(ab){1,9}$\",\"minLength\":3,\"maxLength\":7}",
      { "\"abab\"", "\"ababab\"" },
      { "\"ab\"", "\"abababab\"" } },
    { "{\"pattern\":\"^a?b$\",\"minLength\":2}", { "\"ab\"" }, { "\"b\"" } },
    /* As Pydantic writes HttpUrl, Decimal, SecretStr and Json. */
    { "{\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
      { "\"https://u@a.b:80/c?d=%20#e\"" },
      { "\"a.b\"", "\"\"" } },
    { "{\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
      { "\"1\"", "\"-0.50\"" },
      { "\"\"", "\"-.\"", "\"1e5\"" } },
    { "{\"format\":\"password\",\"writeOnly\":true,\"minLength\":2}",
      { "\"a b\"" },
      { "\"a\"", "1" } },
    { "{\"contentSchema\":{\"x\":1},\"x-name\":[],\"type\":\"string\"}", { "\"{}\"" }, { "1" } },
    { "{\"format\":\"uuid\"}",
      { "\"01234567-89ab-cdef-0123-456789ABCDEF\"" },
      { "\"0123456789abcdef\"" } },
};

/* Strings of more characters than a grammar repeats at once. */
static void test_long_strings(void **state)
{
    static const size_t bounds[][2] = { { 0, 2001 }, { 1, 3000 }, { 2500, 2501 }, { 2001, 4500 } };

    (void)state;
    for (size_t i = 0; i < N(bounds); i++) {
        const size_t lengths[] = { bounds[i][0],     bounds[i][1], bounds[i][1] + 1,
                                   bounds[i][0] - 1, (size_t)1000, (size_t)2000 };
        char schema[80];
        quire_bytes gbnf;

        (void)snprintf(schema, sizeof schema, "{\"minLength\":%zu,\"maxLength\":%zu}", bounds[i][0],
                       bounds[i][1]);
        gbnf = grammar_of(schema);
        for (size_t k = 0; k < N(lengths); k++) {
            const size_t n = lengths[k] == SIZE_MAX ? 0 : lengths[k];
            char *text = malloc(n + 3);

            assert_non_null(text);
            memset(text, 'a', n + 2);
            text[0] = text[n + 1] = '"';
            text[n + 2] = '\0';
            if (grammar_text_is_taken(model, gbnf.data, text) !=
                (n >= bounds[i][0] && n <= bounds[i][1])) {
                fail_msg("%s and a text of %zu characters", schema, n);
            }
            free(text);
        }
        quire_bytes_fini(&gbnf);
    }
}

static void test_strings(void **state)
{
    (void)state;
    check_cases(strings, N(strings));
}

/* ---- schemas of several parts ---- */

static const rule_case parts[] = {
    { "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
      "{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}]}",
      { "{\"a\":1,\"b\":null}" },
      { "{\"a\":1}", "{\"b\":null}" } },
    { "{\"$defs\":{\"base\":{\"properties\":{\"a\":{\"minimum\":1}},\"required\":[\"a\"]}},"
      "\"allOf\":[{\"$ref\":\"#/$defs/base\"}],\"properties\":{\"a\":{\"maximum\":2}}}",
      { "{\"a\":1}", "{\"a\":2}" },
      { "{\"a\":0}", "{\"a\":3}", "{}" } },
    { "{\"definitions\":{\"n\":{\"type\":\"integer\"}},\"$ref\":\"#/definitions/n\","
      "\"description\":\"a note\",\"minimum\":5}",
      { "5" },
      { "4" } },
    { "{\"properties\":{\"a\":{\"$ref\":\"#/properties/b/items\"},"
      "\"b\":{\"items\":{\"const\":7}}},\"required\":[\"a\"]}",
      { "{\"a\":7}" },
      { "{\"a\":8}" } },
    { "{\"$defs\":{\"a/b\":{\"const\":1}},\"$ref\":\"#/$defs/a~1b\"}", { "1" }, { "2" } },
    { "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},"
      "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
      { "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}" },
      { "{}" } },
    { "{\"type\":\"string\",\"anyOf\":[{\"maxLength\":1},{\"minLength\":3,\"maxLength\":3}]}",
      { "\"a\"", "\"abc\"" },
      { "\"ab\"", "1" } },
    { "{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]}]}", { "2", "3" }, { "1", "4" } },
    { "{\"allOf\":[{\"const\":2},{\"type\":\"integer\"}]}", { "2" }, { "1" } },
    { "{\"allOf\":[{\"type\":[\"number\",\"null\"]},{\"type\":[\"integer\",\"string\"]}]}",
      { "1" },
      { "null", "1.5", "\"\"" } },
    { "{\"allOf\":[{\"minimum\":1,\"maximum\":9},{\"minimum\":3,\"type\":\"integer\"},true]}",
      { "3", "9" },
      { "2", "10" } },
    { "{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":false},"
      "{\"properties\":{\"b\":{\"const\":2}}}]}",
      { "{\"a\":1}", "{}" },
      { "{\"b\":2}" } },
    { "{\"$defs\":{\"tree\":{\"properties\":{\"next\":{\"allOf\":[{\"$ref\":\"#/$defs/tree\"}],"
      "\"description\":\"a note\"}}}},\"$ref\":\"#/$defs/tree\"}",
      { "{\"next\":{\"next\":{}}}" },
      { "{\"next\":1}" } },
    { "{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}",
      { "[1,null]" },
      { "[1]", "[null,1]", "[1,null,2]" } },
    { "{\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":2},\"maxItems\":3}",
      { "[1]", "[1,2]", "[1,2,2]" },
      { "[]", "[1,2,2,2]", "[2]" } },
    { "{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}",
      { "[1,2]" },
      { "[1,2,3]" } },
    { "{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"maxItems\":1}", { "[1]" }, { "[1,2]" } },
    { "{\"prefixItems\":[{\"const\":1}],\"minItems\":2}", { "[1,true]" }, { "[1]" } },
    { "{\"type\":\"array\",\"items\":[{\"const\":1},{\"const\":2}],\"minItems\":2,\"maxItems\":2}",
      { "[1,2]" },
      { "[1]", "[1,2,3]", "[2,1]" } },
    { "{\"items\":[{\"const\":1}],\"additionalItems\":{\"const\":2},\"maxItems\":3}",
      { "[1]", "[1,2,2]" },
      { "[]", "[1,1]" } },
    { "{\"items\":{\"const\":1},\"additionalItems\":false}", { "[1,1]" }, { "[2]" } },
    { "{\"items\":false}", { "[]" }, { "[1]" } },
    { "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
      { "{}", "{\"x\":1}", "{\"x\":1,\"y\":2}" },
      { "{\"x\":\"a\"}", "{\"x\":null}" } },
    { "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]$\"},\"minProperties\":1,"
      "\"maxProperties\":2}",
      { "{\"a\":1}", "{\"a\":1,\"b\":[]}" },
      { "{}", "{\"A\":1}", "{\"a\":1,\"b\":2,\"c\":3}" } },
    { "{\"type\":\"array\",\"uniqueItems\":false,\"items\":{\"const\":1}}",
      { "[1,1]" },
      { "[2]" } },
    /* Additional properties of one schema are those that only the other names. */
    { "{\"allOf\":[{\"additionalProperties\":{\"type\":\"integer\"}},"
      "{\"properties\":{\"x\":{\"type\":[\"string\",\"integer\"]}}}]}",
      { "{\"x\":1}", "{}" },
      { "{\"x\":\"a\"}" } },
    { "{\"additionalProperties\":{},\"properties\":{\"a\":{}},\"allOf\":[{\"properties\":"
      "{\"n\":{\"$ref\":\"#\"}}}]}",
      { "{\"n\":{\"n\":{\"a\":1}}}" },
      { "{\"n\":1}" } },
    /* Putting schemas together changes neither of them. */
    { "{\"$defs\":{\"b\":{\"properties\":{\"x\":{\"const\":1}}}},\"properties\":{\"p\":{\"allOf\":["
      "{\"additionalProperties\":false},{\"$ref\":\"#/$defs/b\"}]},"
      "\"q\":{\"$ref\":\"#/$defs/b\"}}}",
      { "{\"p\":{},\"q\":{\"x\":1}}" },
      { "{\"p\":{\"x\":1}}", "{\"q\":{\"x\":2}}" } },
    { "{\"allOf\":[{\"prefixItems\":[{\"type\":\"string\"}]},{\"items\":{\"maxLength\":1}}]}",
      { "[\"a\"]", "[\"a\",\"b\"]" },
      { "[\"ab\"]", "[\"a\",\"bc\"]", "[1]" } },
    { "{\"allOf\":[{\"items\":{\"const\":1}},{\"items\":false}]}", { "[]" }, { "[1]" } },
    { "{\"type\":\"object\",\"unevaluatedProperties\":false}", { "{}" }, { "{\"a\":1}" } },
    { "{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}}}],\"properties\":{\"b\":{\"const\":2}},"
      "\"unevaluatedProperties\":false}",
      { "{\"b\":2,\"a\":1}" },
      { "{\"c\":1}" } },
    { "{\"allOf\":[{\"properties\":{\"a\":{\"const\":1}},\"unevaluatedProperties\":false},"
      "{\"properties\":{\"b\":{\"const\":2}}}]}",
      { "{\"a\":1}" },
      { "{\"b\":2}", "{\"a\":1,\"b\":2}" } },
    /* Names are strings, whatever else their schema allows. */
    { "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",1]}}",
      { "{\"a\":1}" },
      { "{1:1}", "{\"b\":1}" } },
    { "{\"type\":\"object\",\"propertyNames\":{\"minimum\":1}}", { "{\"a\":1}" }, { "{1:1}" } },
    { "{\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"integer\"},{\"const\":\"k\"}]}},"
      "\"propertyNames\":{\"$ref\":\"#/$defs/n\"}}",
      { "{\"k\":1}" },
      { "{1:1}", "{\"a\":1}" } },
    /* Required properties without schemas of their own are additional ones. */
    { "{\"type\":\"object\",\"required\":[\"a\"]}",
      { "{\"a\":1}", "{\"a\":[]}" },
      { "{}", "{\"b\":1}" } },
    { "{\"properties\":{\"b\":{\"const\":2}},\"required\":[\"a\",\"b\"],"
      "\"additionalProperties\":{\"const\":1}}",
      { "{\"b\":2,\"a\":1}" },
      { "{\"b\":2}", "{\"b\":2,\"a\":2}", "{\"a\":1}" } },
    /* As zod writes z.record(z.enum(["a", "b"]), z.number()). */
    { "{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\",\"enum\":[\"a\",\"b\"]},"
      "\"additionalProperties\":{\"type\":\"number\"},\"required\":[\"a\",\"b\"]}",
      { "{\"a\":1,\"b\":2.5}" },
      { "{\"a\":1}", "{\"a\":1,\"b\":\"x\"}", "{\"a\":1,\"b\":2,\"c\":3}" } },
    /* A choice that cannot hold beside the other keywords is none. */
    { "{\"anyOf\":[false,{\"const\":\"a\"},false,{\"const\":1}]}", { "\"a\"", "1" }, { "2" } },
    { "{\"type\":\"string\",\"anyOf\":[{\"const\":\"a\"},{\"type\":\"null\"},{\"enum\":[1]},false]"
      "}",
      { "\"a\"" },
      { "null", "1", "\"b\"" } },
    { "{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"],\"oneOf\":[{\"properties\":{"
      "\"b\":{}},\"additionalProperties\":false},{\"properties\":{\"b\":{\"const\":2}}}]}",
      { "{\"a\":1,\"b\":2}" },
      { "{\"b\":2}", "{\"a\":1,\"b\":3}" } },
    /* As Pydantic writes a union with a discriminator. */
    { "{\"discriminator\":{\"mapping\":{\"a\":\"#/$defs/A\"},\"propertyName\":\"t\"},\"oneOf\":["
      "{\"$ref\":\"#/$defs/A\"}],\"$defs\":{\"A\":{\"properties\":{\"t\":{\"const\":\"a\"}},"
      "\"required\":[\"t\"]}}}",
      { "{\"t\":\"a\"}" },
      { "{}" } },
    /* As ts-json-schema-generator writes a reference. */
    { "{\"$defs\":{\"P<\u00dc,1>\":{\"const\":1},\"100%41\":{\"const\":2}},\"anyOf\":["
      "{\"$ref\":\"#/$defs/P%3C%c3%9C%2C1%3E\"},{\"$ref\":\"#/$defs/100%41\"}]}",
      { "1", "2" },
      { "3" } },
};

static void test_parts(void **state)
{
    (void)state;
    check_cases(parts, N(parts));
}

/* As for tools: a part that is not supported costs no other part its constraints. */
static const rule_case known_only[] = {
    { "{\"properties\":{\"a\":{\"pattern\":\"^(?!x)\\\\w+$\"},\"b\":{\"maximum\":3}},\"required\":["
      "\"a\",\"b\"]}",
      { "{\"a\":\"x!\",\"b\":3}" },
      { "{\"a\":\"x\",\"b\":4}", "{\"a\":1,\"b\":3}" } },
    { "{\"format\":\"cuid\",\"minLength\":2}", { "\"ab\"" }, { "\"a\"" } },
    { "{\"format\":\"date\",\"pattern\":\"(?=.)\"}", { "\"2026-01-31\"" }, { "\"x\"" } },
    { "{\"format\":\"cuid\",\"pattern\":\"^[a-z]$\"}", { "\"a\"" }, { "\"A\"" } },
    { "{\"pattern\":\"^[a-z]+A+$\",\"maxLength\":2}", { "\"abA\"" }, { "\"A\"" } },
    { "{\"type\":\"string\",\"minLength\":1,\"maxLength\":65535}", { "\"a\"" }, { "\"\"", "1" } },
    { "{\"items\":{\"const\":1},\"minItems\":3,\"maxItems\":2}", { "[]", "[1]" }, { "[2]" } },
    { "{\"type\":\"number\",\"multipleOf\":0.3,\"minimum\":0}", { "0.3", "1" }, { "-1" } },
    { "{\"type\":\"any\"}", { "1", "\"a\"", "[]" }, { "" } },
    { "{\"enum\":[\"a\",\"b\"],\"minLength\":1}", { "\"a\"" }, { "\"c\"" } },
    { "{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\",\"b\"],\"minProperties\":5}",
      { "{\"a\":1,\"b\":[]}" },
      { "{}", "{\"a\":1}" } },
};

static void test_known_only(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(known_only); i++) {
        quire_bytes gbnf = grammar_within(known_only[i].schema, true);

        check(known_only[i].schema, gbnf.data, &known_only[i]);
        quire_bytes_fini(&gbnf);
    }
}

/* ---- refusals ---- */

static void refused(const char *schema_text, int status, const char *part)
{
    json_t *schema = parse(schema_text);
    quire_error err = QUIRE_ERROR_INIT;
    quire_bytes gbnf = { 0 };

    assert_int_equal(quire_json_schema_grammar(schema, &gbnf, &err), status);
    if (strstr(err.message, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, err.message);
    }
    quire_bytes_fini(&gbnf);
    json_decref(schema);
}

static const struct {
    const char *schema;
    int status;
    const char *part;
} refusals[] = {
    { "{\"minimum\":\"1\"}", QUIRE_INVAL, "not a number is the value of \"minimum\"" },
    { "{\"exclusiveMaximum\":[]}", QUIRE_INVAL, "\"exclusiveMaximum\"" },
    { "{\"minimum\":3,\"maximum\":2}", QUIRE_INVAL, "above the maximum is the \"minimum\"" },
    { "{\"type\":\"integer\",\"minimum\":1.2,\"maximum\":1.8}", QUIRE_INVAL, "no number" },
    { "{\"exclusiveMinimum\":1,\"exclusiveMaximum\":1}", QUIRE_INVAL, "no number" },
    { "{\"minimum\":1e300}", QUIRE_LIMIT, "\"minimum\"" },
    { "{\"minimum\":1e-30}", QUIRE_LIMIT, "16 digits behind the point" },
    { "{\"multipleOf\":0}", QUIRE_INVAL, "\"multipleOf\"" },
    { "{\"multipleOf\":7}", QUIRE_INVAL, "1000 multiples" },
    { "{\"multipleOf\":7,\"minimum\":0,\"maximum\":100000}", QUIRE_INVAL, "1000 multiples" },
    { "{\"multipleOf\":0.00000025}", QUIRE_LIMIT, "\"multipleOf\"" },
    { "{\"pattern\":7}", QUIRE_INVAL, "\"that is no string\"" },
    { "{\"pattern\":\"(?=a)\"}", QUIRE_INVAL, "#: pattern: not supported is the group \"(?=a)\"" },
    { "{\"pattern\":\"a\\\\b\"}", QUIRE_INVAL, "escape \"\\b\"" },
    { "{\"pattern\":\"(a)\\\\1\"}", QUIRE_INVAL, "escape \"\\1\"" },
    { "{\"pattern\":\"\\\\p{L}\"}", QUIRE_INVAL, "escape" },
    { "{\"pattern\":\"[b-a]\"}", QUIRE_INVAL, "range" },
    { "{\"pattern\":\"[a\"}", QUIRE_INVAL, "no ] ends" },
    { "{\"pattern\":\"(a\"}", QUIRE_INVAL, "no ) ends" },
    { "{\"pattern\":\"a)\"}", QUIRE_INVAL, "no ( begins" },
    { "{\"pattern\":\"*a\"}", QUIRE_INVAL, "nothing to repeat" },
    { "{\"pattern\":\"a**\"}", QUIRE_INVAL, "nothing to repeat" },
    { "{\"pattern\":\"a^b\"}", QUIRE_INVAL, "only at the beginning" },
    { "{\"pattern\":\"a$b\"}", QUIRE_INVAL, "only at the end" },
    { "{\"pattern\":\"a\\\\\"}", QUIRE_INVAL, "nothing follows" },
    { "{\"pattern\":\"\\\\u{110000}\"}", QUIRE_INVAL, "no character is" },
    { "{\"pattern\":\"a{3,2}\"}", QUIRE_INVAL, "larger bound" },
    { "{\"pattern\":\"a{2001}\"}", QUIRE_LIMIT, "2000 repetitions" },
    { "{\"pattern\":\"[]\"}", QUIRE_INVAL, "no character of a text" },
    { "{\"pattern\":\"^a+b+$\",\"maxLength\":3}", QUIRE_INVAL, "minLength or maxLength" },
    { "{\"pattern\":\"^(a|bc)+$\",\"maxLength\":3}", QUIRE_INVAL, "minLength or maxLength" },
    { "{\"pattern\":\"^a+$|^b$\",\"maxLength\":3}", QUIRE_INVAL, "minLength or maxLength" },
    { "{\"pattern\":\"^aa+$\",\"maxLength\":1}", QUIRE_INVAL, "minLength or maxLength" },
    { "{\"pattern\":\"a+\",\"maxLength\":3}", QUIRE_INVAL, "minLength or maxLength" },
    { "{\"pattern\":\"^2\",\"format\":\"date\"}", QUIRE_INVAL, "cannot be \"format\"" },
    { "{\"pattern\":\"^a$|b\",\"format\":\"date\"}", QUIRE_INVAL, "cannot be \"format\"" },
    { "{\"pattern\":\"^a$\",\"format\":3}", QUIRE_INVAL, "cannot be \"format\"" },
    { "{\"format\":\"uri\",\"maxLength\":2000}", QUIRE_INVAL, "minLength or maxLength" },
    { "{\"format\":\"iri\"}", QUIRE_INVAL, "not supported is the format \"iri\"" },
    { "{\"allOf\":[]}", QUIRE_INVAL, "\"allOf\"" },
    { "{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", QUIRE_INVAL, "no common type" },
    { "{\"allOf\":[{\"enum\":[1]},{\"const\":2}]}", QUIRE_INVAL, "no common value" },
    { "{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", QUIRE_INVAL,
      "two schemas at once is \"pattern\"" },
    { "{\"allOf\":[{\"additionalProperties\":false},{\"properties\":{\"a\":{}},"
      "\"required\":[\"a\"]}]}",
      QUIRE_INVAL, "does not allow: \"a\"" },
    { "{\"allOf\":[{\"not\":{}},{}]}", QUIRE_INVAL, "\"not\"" },
    { "{\"allOf\":[3,{}]}", QUIRE_INVAL, "#/allOf/0: a schema is an object" },
    { "{\"allOf\":[{\"prefixItems\":[{}]},{\"items\":false}]}", QUIRE_INVAL,
      "two schemas at once is \"prefixItems\"" },
    { "{\"type\":\"string\",\"anyOf\":[{\"enum\":[1]},{\"type\":\"null\"}]}", QUIRE_INVAL,
      "no common type" },
    { "{\"propertyNames\":{\"enum\":[1,2]}}", QUIRE_INVAL, "no value is of the \"type\"" },
    { "{\"$ref\":\"#/$defs/%4\"}", QUIRE_INVAL, "#/$defs/%4" },
    { "{\"$ref\":\"#\",\"minimum\":1}", QUIRE_LIMIT, "schemas within schemas" },
    { "{\"properties\":{\"a\":{\"$ref\":\"#\",\"minProperties\":0}}}", QUIRE_LIMIT, "schemas" },
    { "{\"prefixItems\":[]}", QUIRE_INVAL, "\"prefixItems\"" },
    { "{\"items\":[]}", QUIRE_INVAL, "\"items\"" },
    { "{\"items\":[{\"not\":1}]}", QUIRE_INVAL, "#/items/0: not supported" },
    { "{\"items\":[{}],\"additionalItems\":{\"not\":1}}", QUIRE_INVAL, "#/additionalItems: not" },
    { "{\"prefixItems\":[{}],\"items\":false,\"minItems\":2}", QUIRE_INVAL, "\"minItems\"" },
    { "{\"items\":false,\"minItems\":1}", QUIRE_INVAL, "\"minItems\"" },
    { "{\"oneOf\":[false]}", QUIRE_INVAL, "no value satisfies \"oneOf\"" },
    { "{\"additionalProperties\":3}", QUIRE_INVAL, "\"additionalProperties\"" },
    { "{\"type\":\"object\",\"additionalProperties\":false,\"minProperties\":1}", QUIRE_INVAL,
      "\"minProperties\"" },
    { "{\"propertyNames\":{\"type\":\"integer\"}}", QUIRE_INVAL, "names are strings" },
    { "{\"required\":[\"c\"],\"propertyNames\":{\"enum\":[\"a\",\"b\"]}}", QUIRE_INVAL,
      "\"propertyNames\"" },
    { "{\"required\":[\"a\",3]}", QUIRE_INVAL, "a value other than a string" },
    { "{\"properties\":{\"a\":{}},\"propertyNames\":{\"maxLength\":1}}", QUIRE_INVAL,
      "\"propertyNames\"" },
    { "{\"properties\":{\"a\":{}},\"minProperties\":1}", QUIRE_INVAL, "\"minProperties\"" },
    { "{\"properties\":{\"a\":{},\"b\":{}},\"maxProperties\":1}", QUIRE_INVAL,
      "\"maxProperties\"" },
    { "{\"uniqueItems\":true}", QUIRE_INVAL, "\"uniqueItems\"" },
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(refusals); i++) {
        refused(refusals[i].schema, refusals[i].status, refusals[i].part);
    }
}

/* Each schema names the next one twice: without a bound there would be 2^14 of them. */
static void test_merges_are_bounded(void **state)
{
    quire_bytes text = { 0 };

    (void)state;
    (void)quire_bytes_addf(&text, "{\"$defs\":{");
    for (int i = 0; i < 14; i++) {
        (void)quire_bytes_addf(&text,
                               "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},"
                               "{\"$ref\":\"#/$defs/d%d\"}],\"type\":\"object\"},",
                               i, i + 1, i + 1);
    }
    (void)quire_bytes_addf(&text, "\"d14\":{}},\"$ref\":\"#/$defs/d0\"}");
    refused(text.data, QUIRE_LIMIT, "2000");
    quire_bytes_fini(&text);
}

static void many_add(quire_bytes *text, const char *keyword, char letter, int n)
{
    (void)quire_bytes_addf(text, "{\"%s\":[", keyword);
    for (int i = 0; i < n; i++) {
        (void)quire_bytes_addf(text, "%s\"%c%d\"", i > 0 ? "," : "", letter, i);
    }
    (void)quire_bytes_addf(text, "]}");
}

/* Values are compared with values: 20,000 with 20,000 would take seconds, 500,000 hours. */
static void test_lists_are_bounded(void **state)
{
    static const struct {
        const char *keyword;
        int status;
        const char *part;
    } lists[] = {
        { "enum", QUIRE_LIMIT, "to compare: more than \"1000000\"" },
        { "required", QUIRE_LIMIT, "to compare: more than \"1000000\"" },
        { "type", QUIRE_INVAL, "\"type\"" },
    };

    (void)state;
    for (size_t i = 0; i < N(lists); i++) {
        quire_bytes text = { 0 };

        (void)quire_bytes_addf(&text, "{\"allOf\":[");
        many_add(&text, lists[i].keyword, 'a', 20000);
        (void)quire_bytes_addf(&text, ",");
        many_add(&text, lists[i].keyword, 'b', 20000);
        (void)quire_bytes_addf(&text, "]}");
        refused(text.data, lists[i].status, lists[i].part);
        quire_bytes_fini(&text);
    }
}

/* ---- regular expressions of whole texts ---- */

static void test_whole_regex(void **state)
{
    static const quire_regex_opts opts = { .is_whole = true };
    static const rule_case c = { "",
                                 { "yes", "no\n", "\"q\"", "a\\b" },
                                 { "yesno", "y", "xyes", "" } };
    quire_regex_result result;
    quire_bytes gbnf = { 0 };
    char pattern[QUIRE_REGEX_BYTES_MAX + 2];

    (void)state;
    (void)quire_bytes_addf(&gbnf, "root ::= ");
    assert_int_equal(quire_regex_grammar("yes|no\\n|^\"q\"$|a\\\\b", &opts, &gbnf, &result),
                     QUIRE_OK);
    assert_int_equal(result.chars_min, 3);
    assert_int_equal(result.chars_max, 3);
    check("regex", gbnf.data, &c);
    quire_bytes_clear(&gbnf);
    memset(pattern, 'a', sizeof pattern);
    pattern[sizeof pattern - 1] = '\0';
    assert_int_equal(quire_regex_grammar(pattern, &opts, &gbnf, &result), QUIRE_LIMIT);
    assert_non_null(strstr(result.why, "4096"));
    memset(pattern, '(', 34);
    pattern[33] = '\0';
    assert_int_equal(quire_regex_grammar(pattern, &opts, &gbnf, &result), QUIRE_LIMIT);
    assert_non_null(strstr(result.why, "32 groups"));
    quire_bytes_clear(&gbnf);
    (void)quire_bytes_addf(&gbnf, "[");
    for (unsigned i = 0; i <= QUIRE_REGEX_RANGES_MAX; i++) {
        (void)quire_bytes_addf(&gbnf, "\\u%04x", 0x100 + 2 * i);
    }
    (void)quire_bytes_addf(&gbnf, "]");
    memcpy(pattern, gbnf.data, gbnf.n + 1);
    assert_int_equal(quire_regex_grammar(pattern, &opts, &gbnf, &result), QUIRE_LIMIT);
    assert_non_null(strstr(result.why, "128 ranges"));
    quire_bytes_fini(&gbnf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_random_bounds),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_long_strings),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_known_only),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_merges_are_bounded),
        cmocka_unit_test(test_lists_are_bounded),
        cmocka_unit_test(test_whole_regex),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
