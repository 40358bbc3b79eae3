/* json_schema.c - see json_schema.h.
 *
 * Each schema becomes a rule s-N. Each target of a $ref becomes a rule def-N that refers to its
 * s-M, so recursive schemas are possible.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_schema_internal.h"

#include "base/check.h"
#include "model/grammar.h"
#include "server/fields.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* White space is bounded, because uncertain models continue with blanks for ever. Digits are
 * bounded, so that every reader can represent the numbers. An escape stands for one whole
 * character, never for a surrogate or U+0000. */
#define COMMON                                                                                     \
    "ws ::= \" \"? (\"\\n\" [ \\t]{0,32})?\n"                                                      \
    "value ::= object | array | string | number | boolean | null\n"                                \
    "object ::= \"{\" ws (pair (\",\" ws pair)* ws)? \"}\"\n"                                      \
    "pair ::= string \":\" ws value\n"                                                             \
    "array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n"                                     \
    "string ::= \"\\\"\" char* \"\\\"\"\n"                                                         \
    "char ::= [\\x20-\\x21\\x23-\\x5B\\x5D-\\uD7FF\\uE000-\\U0010FFFF] | \"\\\\\" escape\n"        \
    "escape ::= [\"\\\\/bfnrt] | \"u\" unit\n"                                                     \
    "unit ::= [1-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex | \"0\" [1-9a-fA-F] hex hex | "     \
    "\"00\" [1-9a-fA-F] hex | \"000\" [1-9a-fA-F]\n"                                               \
    "hex ::= [0-9a-fA-F]\n"                                                                        \
    "number ::= integer (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?\n"                           \
    "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15})\n"                                             \
    "boolean ::= \"true\" | \"false\"\n"                                                           \
    "null ::= \"null\"\n"

const char *quire_json_object_grammar(void)
{
    return "root ::= object\n" COMMON;
}

/* Number of bytes of a text to show: at most max, whole characters only. */
static int shown(const char *text, size_t max)
{
    size_t n = strnlen(text, max);

    while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) {
        n--;
    }
    return (int)n;
}

static void place_add(const schema_place *p, quire_bytes *text)
{
    if (p->above == NULL) {
        (void)quire_bytes_add(text, "#", 1);
        return;
    }
    place_add(p->above, text);
    (void)quire_bytes_addf(text, "/%.*s", shown(p->step, 64), p->step);
    if (p->index != SIZE_MAX) {
        (void)quire_bytes_addf(text, "/%zu", p->index);
    }
}

int quire_schema_refuse(const schema_maker *m, int status, const schema_place *p, const char *what,
                        const char *name)
{
    quire_bytes text = { 0 };
    const char *where;
    int rc;

    place_add(p, &text);
    where = text.data != NULL ? text.data : "#";
    rc = quire_error_set(m->err, status, "json_schema, %.*s: %s \"%.*s\"", shown(where, 300), where,
                         what, shown(name, 64), name);
    quire_bytes_fini(&text);
    return rc;
}

/* ---- keywords ---- */

static const struct {
    const char *name;
    schema_keyword_kind kind;
    const char *type; /* implied type */
} keywords[] = {
    { "$schema", SCHEMA_KEYWORD_NOTE, NULL },
    { "$id", SCHEMA_KEYWORD_NOTE, NULL },
    { "$comment", SCHEMA_KEYWORD_NOTE, NULL },
    { "$defs", SCHEMA_KEYWORD_NOTE, NULL },
    { "definitions", SCHEMA_KEYWORD_NOTE, NULL },
    { "discriminator", SCHEMA_KEYWORD_NOTE, NULL }, /* OpenAPI: names the choices of a oneOf */
    { "title", SCHEMA_KEYWORD_NOTE, NULL },
    { "description", SCHEMA_KEYWORD_NOTE, NULL },
    { "default", SCHEMA_KEYWORD_NOTE, NULL },
    { "examples", SCHEMA_KEYWORD_NOTE, NULL },
    { "deprecated", SCHEMA_KEYWORD_NOTE, NULL },
    { "readOnly", SCHEMA_KEYWORD_NOTE, NULL },
    { "writeOnly", SCHEMA_KEYWORD_NOTE, NULL },
    { "contentEncoding", SCHEMA_KEYWORD_NOTE, NULL },
    { "contentMediaType", SCHEMA_KEYWORD_NOTE, NULL },
    { "contentSchema", SCHEMA_KEYWORD_NOTE, NULL },
    { "type", SCHEMA_KEYWORD_TYPED, NULL },
    { "properties", SCHEMA_KEYWORD_TYPED, "object" },
    { "required", SCHEMA_KEYWORD_TYPED, "object" },
    { "additionalProperties", SCHEMA_KEYWORD_TYPED, "object" },
    { "propertyNames", SCHEMA_KEYWORD_TYPED, "object" },
    { "minProperties", SCHEMA_KEYWORD_TYPED, "object" },
    { "maxProperties", SCHEMA_KEYWORD_TYPED, "object" },
    { "items", SCHEMA_KEYWORD_TYPED, "array" },
    { "prefixItems", SCHEMA_KEYWORD_TYPED, "array" },
    { "additionalItems", SCHEMA_KEYWORD_TYPED, "array" },
    { "minItems", SCHEMA_KEYWORD_TYPED, "array" },
    { "maxItems", SCHEMA_KEYWORD_TYPED, "array" },
    { "minLength", SCHEMA_KEYWORD_TYPED, "string" },
    { "maxLength", SCHEMA_KEYWORD_TYPED, "string" },
    { "pattern", SCHEMA_KEYWORD_TYPED, "string" },
    { "format", SCHEMA_KEYWORD_TYPED, "string" },
    { "minimum", SCHEMA_KEYWORD_TYPED, "number" },
    { "maximum", SCHEMA_KEYWORD_TYPED, "number" },
    { "exclusiveMinimum", SCHEMA_KEYWORD_TYPED, "number" },
    { "exclusiveMaximum", SCHEMA_KEYWORD_TYPED, "number" },
    { "multipleOf", SCHEMA_KEYWORD_TYPED, "number" },
    { "$ref", SCHEMA_KEYWORD_WHOLE, NULL },
    { "const", SCHEMA_KEYWORD_WHOLE, NULL },
    { "enum", SCHEMA_KEYWORD_WHOLE, NULL },
    { "anyOf", SCHEMA_KEYWORD_WHOLE, NULL },
    { "oneOf", SCHEMA_KEYWORD_WHOLE, NULL },
    { "allOf", SCHEMA_KEYWORD_ALL, NULL },
};

bool quire_schema_keyword_find(const char *name, schema_keyword_kind *kind, const char **type)
{
    if (strncmp(name, "x-", 2) == 0) { /* OpenAPI: an extension */
        *kind = SCHEMA_KEYWORD_NOTE;
        *type = NULL;
        return true;
    }
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        if (strcmp(keywords[i].name, name) == 0) {
            *kind = keywords[i].kind;
            *type = keywords[i].type;
            return true;
        }
    }
    return false;
}

/* Keywords whose value false constrains nothing, and unevaluatedProperties: false, which needs no
 * rule because the grammar writes the named properties alone. */
static bool is_without_effect(const char *name, const json_t *value)
{
    return json_is_false(value) &&
           (strcmp(name, "uniqueItems") == 0 || strcmp(name, "nullable") == 0 ||
            strcmp(name, "unevaluatedProperties") == 0);
}

/* Summary of a schema: the keyword that defines it alone, the type implied by its keywords, and
 * whether it has to be merged first. */
typedef struct summary {
    const char *whole;
    const char *implied;
    bool is_merged;
} summary;

static int summarize(const schema_maker *m, const json_t *schema, const schema_place *p, summary *s)
{
    const char *name, *typed = NULL;
    json_t *value;

    *s = (summary){ NULL, NULL, false };
    json_object_foreach((json_t *)(uintptr_t)schema, name, value)
    {
        schema_keyword_kind kind;
        const char *type;

        if (is_without_effect(name, value)) {
            continue;
        }
        if (!quire_schema_keyword_find(name, &kind, &type)) {
            if (m->skips_unknown) {
                continue;
            }
            return quire_schema_refuse(m, QUIRE_INVAL, p, "not supported is the keyword", name);
        }
        if (kind == SCHEMA_KEYWORD_WHOLE) {
            if (s->whole != NULL) {
                return quire_schema_refuse(m, QUIRE_INVAL, p,
                                           "beside another keyword there cannot be", name);
            }
            s->whole = name;
        } else if (kind == SCHEMA_KEYWORD_TYPED) {
            typed = type == NULL && typed != NULL ? typed : name;
            s->implied = type == NULL ? s->implied : type;
        }
        s->is_merged = s->is_merged || kind == SCHEMA_KEYWORD_ALL;
    }
    if (s->whole != NULL && typed != NULL) {
        const bool is_value = strcmp(s->whole, "enum") == 0 || strcmp(s->whole, "const") == 0;

        if (is_value && s->implied != NULL && !m->skips_unknown) {
            return quire_schema_refuse(m, QUIRE_INVAL, p, "beside another keyword there cannot be",
                                       typed);
        }
        s->is_merged = s->is_merged || !is_value;
    }
    return QUIRE_OK;
}

/* ---- pieces of grammar ---- */

/* A value's JSON as a literal of the grammar. */
int quire_schema_literal_add(const json_t *value, const char *behind, quire_bytes *text)
{
    char *dump = quire_json_dump(value);

    QUIRE_FAIL_IF(dump == NULL, QUIRE_NOMEM);
    (void)quire_bytes_add(text, "\"", 1);
    for (const char *c = dump; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            (void)quire_bytes_add(text, "\\", 1);
        }
        (void)quire_bytes_add(text, c, 1);
    }
    free(dump);
    (void)quire_bytes_addf(text, "%s\"", behind);
    return text->status;
}

int quire_schema_rule_end(schema_maker *m, quire_bytes *text, const char *name, uint32_t number)
{
    int rc = text->status;

    if (rc == QUIRE_OK && m->out->n + text->n > QUIRE_GRAMMAR_BYTES_MAX) {
        rc = quire_error_set(m->err, QUIRE_LIMIT, "json_schema: its grammar has more than %u bytes",
                             QUIRE_GRAMMAR_BYTES_MAX);
    }
    if (rc == QUIRE_OK) {
        (void)quire_bytes_addf(m->out, "%s-%" PRIu32 " ::= ", name, number);
        (void)quire_bytes_add(m->out, text->data, text->n);
        rc = quire_bytes_add(m->out, "\n", 1);
    }
    quire_bytes_fini(text);
    return rc;
}

/* ---- types ---- */

static int type_add(schema_maker *m, const json_t *schema, const schema_place *p, const char *type,
                    quire_bytes *text)
{
    if (strcmp(type, "object") == 0) {
        return quire_schema_object_add(m, schema, p, text);
    }
    if (strcmp(type, "array") == 0) {
        return quire_schema_array_add(m, schema, p, text);
    }
    if (strcmp(type, "string") == 0) {
        return quire_schema_string_add(m, schema, p, text);
    }
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0) {
        return quire_schema_number_add(m, schema, p, type[0] == 'i', text);
    }
    if (strcmp(type, "boolean") == 0 || strcmp(type, "null") == 0) {
        return quire_bytes_addf(text, "%s", type);
    }
    return m->skips_unknown ? quire_bytes_addf(text, "value")
                            : quire_schema_refuse(m, QUIRE_INVAL, p, "there is no type", type);
}

static int types_add(schema_maker *m, const json_t *schema, const schema_place *p,
                     const char *implied, quire_bytes *text)
{
    const json_t *type = json_object_get(schema, "type");

    if (json_is_string(type)) {
        return type_add(m, schema, p, json_string_value(type), text);
    }
    if (type == NULL) {
        return implied != NULL ? type_add(m, schema, p, implied, text)
                               : quire_bytes_addf(text, "value");
    }
    if (!json_is_array(type) || json_array_size(type) == 0 ||
        json_array_size(type) > QUIRE_SCHEMA_TYPES_MAX) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "neither a type nor a list of types is",
                                   "type");
    }
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *name = json_string_value(json_array_get(type, i));

        (void)quire_bytes_addf(text, "%s", i > 0 ? " | " : "");
        QUIRE_TRY(type_add(m, schema, p, name != NULL ? name : "", text));
    }
    return QUIRE_OK;
}

/* ---- schemas ---- */

static int node_add(schema_maker *m, const json_t *schema, const schema_place *p, quire_bytes *text)
{
    summary s;

    if (p->depth > QUIRE_SCHEMA_DEPTH_MAX) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "schemas within schemas: more than", "32");
    }
    if (json_is_true(schema)) {
        return quire_bytes_addf(text, "value");
    }
    if (!json_is_object(schema)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "a schema is an object, not",
                                   json_is_false(schema) ? "false" : "something else");
    }
    QUIRE_TRY(summarize(m, schema, p, &s));
    if (s.is_merged) {
        const schema_place below = { p->above, p->step, p->index, p->depth + 1 };

        QUIRE_TRY(quire_schema_merge(m, schema, p, &schema));
        return node_add(m, schema, &below, text);
    }
    if (s.whole == NULL) {
        return types_add(m, schema, p, s.implied, text);
    }
    if (strcmp(s.whole, "$ref") == 0) {
        return quire_schema_ref_add(m, schema, p, text);
    }
    if (strcmp(s.whole, "anyOf") == 0 || strcmp(s.whole, "oneOf") == 0) {
        return quire_schema_choices_add(m, schema, p, s.whole, text);
    }
    return quire_schema_values_add(m, schema, p, text);
}

int quire_schema_node_make(schema_maker *m, const json_t *schema, const schema_place *p,
                           uint32_t *rule)
{
    quire_bytes text = { 0 };
    int rc;

    *rule = m->n_rules++;
    rc = node_add(m, schema, p, &text);
    if (rc < 0) {
        quire_bytes_fini(&text);
        return rc;
    }
    return quire_schema_rule_end(m, &text, "s", *rule);
}

static int schema_make(schema_maker *m)
{
    const schema_place top = { NULL, NULL, SIZE_MAX, 0 };
    uint32_t rule;

    QUIRE_TRY(quire_schema_node_make(m, m->schema, &top, &rule));
    (void)quire_bytes_addf(m->out, "root ::= s-%" PRIu32 "\n", rule);
    for (uint32_t i = 0; i < m->n_refs; i++) { /* n_refs grows in the loop */
        const schema_place p = { &top, m->ref_names[i], SIZE_MAX, 0 };

        QUIRE_TRY(quire_schema_node_make(m, m->refs[i], m->refs[i] == m->root ? &top : &p, &rule));
        (void)quire_bytes_addf(m->out, "def-%" PRIu32 " ::= s-%" PRIu32 "\n", i, rule);
    }
    return quire_bytes_add(m->out, COMMON, strlen(COMMON));
}

static int grammar_make(schema_maker *m)
{
    const size_t n_before = m->out->n;
    quire_error cause = QUIRE_ERROR_INIT;
    int rc;

    m->merged = json_array();
    rc = m->merged != NULL ? schema_make(m) : QUIRE_NOMEM;
    json_decref(m->merged);
    if (rc == QUIRE_NOMEM) {
        return quire_error_set(m->err, rc, "no memory for the grammar of a schema");
    }
    QUIRE_TRY(rc);
    rc = quire_grammar_check(m->out->data + n_before, &cause);
    if (rc < 0) {
        return quire_error_set(m->err, rc, "json_schema: %.400s", cause.message);
    }
    return QUIRE_OK;
}

int quire_json_schema_grammar(const json_t *schema, quire_bytes *gbnf, quire_error *err)
{
    return quire_json_schema_grammar_within(schema, schema, false, gbnf, err);
}

int quire_json_schema_grammar_within(const json_t *root, const json_t *schema, bool is_known_only,
                                     quire_bytes *gbnf, quire_error *err)
{
    schema_maker m = {
        .schema = schema, .root = root, .out = gbnf, .err = err, .skips_unknown = is_known_only
    };

    return grammar_make(&m);
}
