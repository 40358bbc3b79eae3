/* test_json_schema.c - texts that a schema's grammar generates are JSON, and valid under the
 * schema.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "grammar_text.h"
#include "model_fixture.h"
#include "seed.h"
#include "server/json_schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))

static quire_model *models[2]; /* SPM, BPE */

static int setup(void **state)
{
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.n_vocab = 400;
    for (size_t i = 0; i < 2; i++) {
        opts.vocab = i == 0 ? GGUF_GEN_VOCAB_SPM : GGUF_GEN_VOCAB_BPE;
        models[i] = fixture_open(fixture_generate(&opts));
        fixture_generated_remove();
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    quire_model_close(models[0]);
    quire_model_close(models[1]);
    return 0;
}

static json_t *parse(const char *text)
{
    json_error_t err;
    json_t *json = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &err);

    if (json == NULL) {
        fail_msg("%s in: %s", err.text, text);
    }
    return json;
}

/* ---- a validator ---- */

static size_t code_points(const char *text)
{
    size_t n = 0;

    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

static bool has_type(const json_t *value, const char *type)
{
    return strcmp(type, "object") == 0    ? json_is_object(value)
           : strcmp(type, "array") == 0   ? json_is_array(value)
           : strcmp(type, "string") == 0  ? json_is_string(value)
           : strcmp(type, "number") == 0  ? json_is_number(value)
           : strcmp(type, "integer") == 0 ? json_is_integer(value)
           : strcmp(type, "boolean") == 0 ? json_is_boolean(value)
                                          : json_is_null(value);
}

static bool is_valid(json_t *root, json_t *schema, json_t *value);

static bool within(const json_t *schema, const char *min, const char *max, size_t n)
{
    const json_t *low = json_object_get(schema, min), *high = json_object_get(schema, max);

    return (low == NULL || n >= (size_t)json_integer_value(low)) &&
           (high == NULL || n <= (size_t)json_integer_value(high));
}

static bool is_valid_object(json_t *root, json_t *schema, json_t *value)
{
    json_t *properties = json_object_get(schema, "properties");
    json_t *item;
    const char *name;
    size_t i;

    json_object_foreach(value, name, item)
    {
        json_t *below = json_object_get(properties, name);

        if (below != NULL ? !is_valid(root, below, item)
                          : json_is_false(json_object_get(schema, "additionalProperties"))) {
            return false;
        }
    }
    json_array_foreach(json_object_get(schema, "required"), i, item)
    {
        if (json_object_get(value, json_string_value(item)) == NULL) {
            return false;
        }
    }
    return true;
}

static bool is_valid_typed(json_t *root, json_t *schema, json_t *value)
{
    json_t *items = json_object_get(schema, "items");
    json_t *item;
    size_t i;

    if (json_is_string(value)) {
        return within(schema, "minLength", "maxLength", code_points(json_string_value(value)));
    }
    if (json_is_array(value)) {
        json_array_foreach(value, i, item)
        {
            if (items != NULL && !is_valid(root, items, item)) {
                return false;
            }
        }
        return within(schema, "minItems", "maxItems", json_array_size(value));
    }
    return !json_is_object(value) || is_valid_object(root, schema, value);
}

/* Whether the value equals a member of a list (enum), matches one (anyOf), or has one as its
 * type. */
static bool is_one(json_t *root, json_t *list, json_t *value, char how)
{
    json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        if (how == 'v'   ? json_equal(item, value)
            : how == 's' ? is_valid(root, item, value)
                         : has_type(value, json_string_value(item))) {
            return true;
        }
    }
    return list == NULL;
}

static bool is_valid(json_t *root, json_t *schema, json_t *value)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    json_t *type = json_object_get(schema, "type");
    json_t *only = json_object_get(schema, "const");

    if (!json_is_object(schema)) {
        return json_is_true(schema);
    }
    if (ref != NULL) {
        return is_valid(
            root, ref[1] == '\0' ? root : json_object_get(json_object_get(root, "$defs"), ref + 8),
            value);
    }
    return (only == NULL || json_equal(only, value)) &&
           (!json_is_string(type) || has_type(value, json_string_value(type))) &&
           (!json_is_array(type) || is_one(root, type, value, 't')) &&
           is_one(root, json_object_get(schema, "enum"), value, 'v') &&
           is_one(root, json_object_get(schema, "anyOf"), value, 's') &&
           is_one(root, json_object_get(schema, "oneOf"), value, 's') &&
           is_valid_typed(root, schema, value);
}

/* ---- generating ---- */

/* Returns how many of n texts ended. */
static uint32_t check_schema(const char *schema_text, int n, quire_rng *rng)
{
    json_t *schema = parse(schema_text);
    quire_error err = QUIRE_ERROR_INIT;
    quire_bytes gbnf = { 0 };
    uint32_t n_ended = 0;

    if (quire_json_schema_grammar(schema, &gbnf, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    for (int i = 0; i < n; i++) {
        char *text = grammar_text_random(models[i % 2], gbnf.data, rng);
        json_t *value;

        if (text == NULL) {
            continue;
        }
        n_ended++;
        value = parse(text);
        if (!is_valid(schema, schema, value)) {
            fail_msg("%s\nis not valid under %s", text, schema_text);
        }
        json_decref(value);
        free(text);
    }
    quire_bytes_fini(&gbnf);
    json_decref(schema);
    return n_ended;
}

static const char *const schemas[] = {
    "{}",
    "true",
    "{\"type\":\"string\"}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}",
    "{\"maxLength\":0}",
    "{\"type\":\"integer\"}",
    "{\"type\":\"number\",\"title\":\"Price\",\"description\":\"in euros\",\"default\":1}",
    "{\"type\":[\"boolean\",\"null\"]}",
    "{\"enum\":[\"red\",\"gr\\\"een\\\\\",\"\\u00e9\\n\",7,1.5,null,true,{\"a\":[]}]}",
    "{\"type\":\"string\",\"enum\":[\"a\",1,\"b\"]}",
    "{\"const\":{\"kind\":\"fixed\"}}",
    "{\"type\":\"object\"}",
    "{\"type\":\"object\",\"additionalProperties\":false}",
    "{\"type\":\"array\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":4}",
    "{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":1}",
    "{\"type\":\"array\",\"maxItems\":0}",
    "{\"items\":{\"enum\":[1,2]},\"minItems\":3}",
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},"
    "\"age\":{\"type\":\"integer\"}},\"required\":[\"name\",\"age\"],"
    "\"additionalProperties\":false}",
    "{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}}}",
    "{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3},"
    "\"d\":{\"const\":4}},\"required\":[\"c\"],\"additionalProperties\":false}",
    "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}]}",
    "{\"oneOf\":[{\"const\":\"x\"},{\"const\":\"xy\"}]}",
    "{\"$defs\":{\"point\":{\"properties\":{\"x\":{\"type\":\"integer\"},"
    "\"y\":{\"type\":\"integer\"}},\"required\":[\"x\",\"y\"],\"additionalProperties\":false}},"
    "\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/point\"},\"maxItems\":3}",
    "{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"integer\"},"
    "\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},"
    "\"required\":[\"value\",\"next\"],\"additionalProperties\":false}",
};

static void test_texts_are_valid(void **state)
{
    quire_rng rng = test_rng(51);

    (void)state;
    for (size_t i = 0; i < N(schemas); i++) {
        const uint32_t n_ended = check_schema(schemas[i], 20, &rng);

        if (n_ended < 10) {
            fail_msg("%u of 20 ended: %s", n_ended, schemas[i]);
        }
    }
}

static void test_json_object(void **state)
{
    quire_rng rng = test_rng(52);
    uint32_t n_ended = 0, n_full = 0;

    (void)state;
    for (int i = 0; i < 60; i++) {
        char *text = grammar_text_random(models[i % 2], quire_json_object_grammar(), &rng);
        json_t *value;

        if (text == NULL) {
            continue;
        }
        /* A random object may name a key twice. */
        value = json_loads(text, 0, NULL);
        if (!json_is_object(value)) {
            fail_msg("no object: %s", text);
        }
        n_ended++;
        n_full += json_object_size(value) > 0;
        json_decref(value);
        free(text);
    }
    assert_true(n_ended > 30 && n_full > 10);
}

/* ---- random schemas ---- */

static void schema_random(quire_rng *rng, quire_bytes *text, int depth)
{
    static const char *const plain[] = { "string", "number", "integer", "boolean", "null" };
    const uint32_t kind = quire_rng_below(rng, depth > 0 ? 6 : 3);
    const uint32_t n = 1 + quire_rng_below(rng, 4);

    if (kind == 0) {
        (void)quire_bytes_addf(text, "{\"type\":\"%s\"}", plain[quire_rng_below(rng, 5)]);
    } else if (kind == 1) {
        const uint32_t min = quire_rng_below(rng, 4);

        (void)quire_bytes_addf(text, "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u}", min,
                               min + quire_rng_below(rng, 4));
    } else if (kind == 2) {
        (void)quire_bytes_addf(text, "{\"enum\":[\"v%u\",%u,null]}", n, n);
    } else if (kind == 3) {
        (void)quire_bytes_addf(
            text, "{\"type\":\"array\",\"minItems\":%u,\"maxItems\":%u,\"items\":", n - 1, n);
        schema_random(rng, text, depth - 1);
        (void)quire_bytes_addf(text, "}");
    } else if (kind == 4) {
        for (uint32_t i = 0; i < n; i++) {
            (void)quire_bytes_addf(text, "%s", i == 0 ? "{\"anyOf\":[" : ",");
            schema_random(rng, text, depth - 1);
        }
        (void)quire_bytes_addf(text, "]}");
    } else {
        uint32_t n_required = 0;

        (void)quire_bytes_addf(text, "{\"additionalProperties\":false,\"properties\":{");
        for (uint32_t i = 0; i < n; i++) {
            (void)quire_bytes_addf(text, "%s\"p%u\":", i > 0 ? "," : "", i);
            schema_random(rng, text, depth - 1);
        }
        (void)quire_bytes_addf(text, "},\"required\":[");
        for (uint32_t i = 0; i < n; i++) {
            if (quire_rng_below(rng, 2) == 0) {
                (void)quire_bytes_addf(text, "%s\"p%u\"", n_required++ > 0 ? "," : "", i);
            }
        }
        (void)quire_bytes_addf(text, "]}");
    }
}

static void test_random_schemas(void **state)
{
    quire_rng rng = test_rng(53);
    uint32_t n_ended = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        quire_bytes text = { 0 };

        schema_random(&rng, &text, 3);
        n_ended += check_schema(text.data, 2, &rng);
        quire_bytes_fini(&text);
    }
    assert_true(n_ended > 120);
}

/* ---- refusals ---- */

static void refused_json(json_t *schema, int status, const char *part)
{
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
    const char *schema, *part;
} refusals[] = {
    { "1", "json_schema, #: a schema is an object" },
    { "false", "not \"false\"" },
    { "{\"type\":\"text\"}", "#: there is no type \"text\"" },
    { "{\"type\":[]}", "neither a type nor" },
    { "{\"type\":[\"string\",3]}", "there is no type \"\"" },
    { "{\"if\":{}}", "#: not supported is the keyword \"if\"" },
    { "{\"properties\":{\"a\":{\"items\":{\"contains\":1}}}}",
      "#/properties/a/items: not supported is the keyword \"contains\"" },
    { "{\"anyOf\":[{},{\"patternProperties\":{}}]}", "#/anyOf/1: not supported is the keyword" },
    { "{\"$defs\":{\"d\":{\"not\":{}}},\"$ref\":\"#/$defs/d\"}", "#/$defs/d: not supported" },
    { "{\"anyOf\":[{}],\"oneOf\":[{}]}", "beside another keyword" },
    { "{\"enum\":[1],\"minLength\":1}", "cannot be \"minLength\"" },
    { "{\"anyOf\":[]}", "\"anyOf\"" },
    { "{\"enum\":{}}", "\"enum\"" },
    { "{\"enum\":[1,2],\"type\":\"string\"}", "no value is of the \"type\"" },
    { "{\"minLength\":-1}", "\"minLength\"" },
    { "{\"maxItems\":1.5}", "\"maxItems\"" },
    { "{\"minLength\":3,\"maxLength\":2}", "larger than its fellow" },
    { "{\"properties\":[]}", "\"properties\"" },
    { "{\"type\":\"object\",\"required\":\"a\"}", "\"required\"" },
    { "{\"additionalProperties\":false,\"required\":[\"a\"]}",
      "not among the properties, is \"a\"" },
    { "{\"properties\":{},\"required\":[3]}", "not among the properties" },
    { "{\"$ref\":3}", "\"$ref\"" },
    { "{\"$ref\":\"#/$defs/none\"}", "#/$defs/none" },
    { "{\"$ref\":\"https://example.com/schema\"}", "https://example.com" },
    { "{\"$ref\":\"#\"}", "can begin with itself" },
    { "{\"type\":\"123456789012345678901234567890123456789012345678901234567890123\u00e9\"}",
      "0123\"" }, /* a character is not cut */
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(refusals); i++) {
        refused_json(parse(refusals[i].schema), QUIRE_INVAL, refusals[i].part);
    }
}

static void test_limits(void **state)
{
    json_t *deep = json_object(), *wide = json_object(), *values = json_array();
    json_t *refs = json_object(), *uses = json_array();
    char name[32];

    (void)state;
    for (int i = 0; i < 33; i++) {
        deep = json_pack("{s:o}", "items", deep);
    }
    refused_json(deep, QUIRE_LIMIT, "schemas within schemas");
    for (int i = 0; i < 101; i++) {
        (void)snprintf(name, sizeof(name), "p%d", i);
        assert_int_equal(json_object_set_new(wide, name, json_true()), 0);
    }
    refused_json(json_pack("{s:O}", "properties", wide), QUIRE_LIMIT, "\"properties\"");
    assert_int_equal(json_object_del(wide, "p0"), 0);
    {
        json_t *schema = json_pack("{s:o}", "properties", wide);
        quire_bytes gbnf = { 0 };

        assert_int_equal(quire_json_schema_grammar(schema, &gbnf, NULL), QUIRE_OK);
        quire_bytes_fini(&gbnf);
        json_decref(schema);
    }
    for (int i = 0; i < 1001; i++) {
        assert_int_equal(json_array_append_new(values, json_integer(i)), 0);
    }
    refused_json(json_pack("{s:o}", "enum", values), QUIRE_LIMIT, "\"enum\"");
    refused_json(parse("{\"maxLength\":1000001}"), QUIRE_LIMIT, "\"maxLength\"");
    for (int i = 0; i < 257; i++) {
        (void)snprintf(name, sizeof(name), "#/$defs/d%d", i);
        assert_int_equal(json_object_set_new(refs, name + 8, json_object()), 0);
        assert_int_equal(json_array_append_new(uses, json_pack("{s:s}", "$ref", name)), 0);
    }
    refused_json(json_pack("{s:o, s:o}", "$defs", refs, "anyOf", uses), QUIRE_LIMIT, "256");
    values = json_array();
    for (int i = 0; i < 300; i++) {
        char text[1001];

        memset(text, 'x', 1000);
        text[1000] = '\0';
        assert_int_equal(json_array_append_new(values, json_string(text)), 0);
    }
    refused_json(json_pack("{s:o}", "enum", values), QUIRE_LIMIT, "262144 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_are_valid), cmocka_unit_test(test_json_object),
        cmocka_unit_test(test_random_schemas),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
