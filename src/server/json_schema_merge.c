/* json_schema_merge.c - several schemas that hold at once, as one schema.
 *
 * Two schemas become one keyword by keyword: bounds become the narrower ones, properties and
 * required ones come together, types and values become the common ones. A property, or the items,
 * of both get an allOf of the two, which is merged when it is reached. Keywords that cannot be put
 * together so (two different patterns) are refused by name.
 *
 * The work is bounded: schemas within schemas by their depth, and all merges of one schema by
 * QUIRE_SCHEMA_MERGES_MAX.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_schema_internal.h"

#include "base/check.h"

#include <stdbool.h>
#include <string.h>

static json_t *borrowed(const json_t *json)
{
    return json_incref((json_t *)(uintptr_t)json);
}

/* Give a new schema to the maker. */
static int keep(schema_maker *m, const schema_place *p, json_t *json, json_t **out)
{
    *out = json;
    if (json_array_size(m->merged) == QUIRE_SCHEMA_MERGES_MAX) {
        json_decref(json);
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "schemas of allOf and beside $ref: more than",
                                   "2000");
    }
    return json != NULL && json_array_append_new(m->merged, json) == 0 ? QUIRE_OK : QUIRE_NOMEM;
}

static bool is_listed(const json_t *list, const json_t *item)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_equal(json_array_get(list, i), item)) {
            return true;
        }
    }
    return false;
}

/* ---- keywords of two schemas ---- */

/* The values of an enum or a const as a list. Memory: json_decref(). */
static json_t *values_of(const json_t *schema)
{
    const json_t *only = json_object_get(schema, "const");
    const json_t *list = json_object_get(schema, "enum");

    return only != NULL ? json_pack("[O]", only) : borrowed(list);
}

/* A constraint must not get lost with memory that is missing. */
static json_t *whole_or_none(json_t *json, bool is_whole)
{
    if (!is_whole) {
        json_decref(json);
        return NULL;
    }
    return json;
}

static bool is_type_in(const json_t *types, const char *type)
{
    const json_t *one;

    for (size_t i = 0; i < (json_is_string(types) ? 1 : json_array_size(types)); i++) {
        one = json_is_string(types) ? types : json_array_get(types, i);
        if (json_is_string(one) &&
            (strcmp(json_string_value(one), type) == 0 ||
             (strcmp(json_string_value(one), "number") == 0 && strcmp(type, "integer") == 0))) {
            return true;
        }
    }
    return false;
}

/* The types of both; integers are numbers. NULL without memory, as the lists below. */
static json_t *types_common(const json_t *a, const json_t *b)
{
    json_t *common = json_array();
    bool is_whole = common != NULL;

    for (unsigned k = 0; k < 2; k++) {
        const json_t *from = k == 0 ? a : b, *other = k == 0 ? b : a;

        for (size_t i = 0; i < (json_is_string(from) ? 1 : json_array_size(from)); i++) {
            json_t *one =
                json_is_string(from) ? (json_t *)(uintptr_t)from : json_array_get(from, i);

            if (json_is_string(one) && is_type_in(other, json_string_value(one)) &&
                !is_listed(common, one)) {
                is_whole = json_array_append(common, one) == 0 && is_whole;
            }
        }
    }
    return whole_or_none(common, is_whole);
}

static json_t *list_common(const json_t *a, const json_t *b)
{
    json_t *common = json_array();
    bool is_whole = common != NULL;

    for (size_t i = 0; i < json_array_size(a); i++) {
        if (is_listed(b, json_array_get(a, i))) {
            is_whole = json_array_append(common, json_array_get(a, i)) == 0 && is_whole;
        }
    }
    return whole_or_none(common, is_whole);
}

static json_t *list_union(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a);
    bool is_whole = all != NULL;

    for (size_t i = 0; i < json_array_size(b); i++) {
        if (!is_listed(all, json_array_get(b, i))) {
            is_whole = json_array_append(all, json_array_get(b, i)) == 0 && is_whole;
        }
    }
    return whole_or_none(all, is_whole);
}

/* A schema that both must hold for. */
static json_t *both(const json_t *a, const json_t *b)
{
    return json_equal(a, b) || json_is_true(b) ? borrowed(a)
           : json_is_true(a)                   ? borrowed(b)
                                               : json_pack("{s:[O,O]}", "allOf", a, b);
}

static json_t *properties_union(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a);
    bool is_whole = all != NULL;
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)b, name, value)
    {
        const json_t *before = json_object_get(a, name);
        json_t *merged = before != NULL ? both(before, value) : borrowed(value);

        is_whole = json_object_set_new(all, name, merged) == 0 && is_whole;
    }
    return whole_or_none(all, is_whole);
}

static bool is_one_of(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The value of a keyword that both schemas have; NULL when they cannot be put together. */
static json_t *value_merged(const char *name, const json_t *a, const json_t *b)
{
    static const char *const lows[] = { "minimum", "exclusiveMinimum", "minLength", "minItems",
                                        "minProperties" };
    static const char *const highs[] = { "maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                         "maxProperties" };

    if (json_equal(a, b)) {
        return borrowed(a);
    }
    if (json_is_number(a) && json_is_number(b)) {
        const bool is_less = json_number_value(a) < json_number_value(b);

        if (is_one_of(name, lows, sizeof lows / sizeof lows[0])) {
            return borrowed(is_less ? b : a);
        }
        if (is_one_of(name, highs, sizeof highs / sizeof highs[0])) {
            return borrowed(is_less ? a : b);
        }
    }
    if (strcmp(name, "type") == 0) {
        return types_common(a, b);
    }
    if (strcmp(name, "required") == 0 && json_is_array(a) && json_is_array(b)) {
        return list_union(a, b);
    }
    if (strcmp(name, "properties") == 0 && json_is_object(a) && json_is_object(b)) {
        return properties_union(a, b);
    }
    if (strcmp(name, "additionalProperties") == 0 && (json_is_false(a) || json_is_false(b))) {
        return json_false();
    }
    if (strcmp(name, "items") == 0 || strcmp(name, "additionalProperties") == 0 ||
        strcmp(name, "propertyNames") == 0) {
        return both(a, b);
    }
    return NULL;
}

/* ---- two schemas ---- */

/* A schema without properties but those named allows no property that only the other names. */
static int properties_close(const schema_maker *m, const schema_place *p, json_t *merged,
                            const json_t *closed)
{
    const json_t *named = json_object_get(closed, "properties");
    json_t *properties = json_object_get(merged, "properties");
    const json_t *required = json_object_get(merged, "required");
    const char *name;
    json_t *value;
    void *next;

    if (!json_is_false(json_object_get(closed, "additionalProperties"))) {
        return QUIRE_OK;
    }
    json_object_foreach_safe(properties, next, name, value)
    {
        json_t *text = json_string(name);
        const bool is_required = is_listed(required, text);

        json_decref(text);
        if (json_object_get(named, name) == NULL) {
            if (is_required) {
                return quire_schema_refuse(
                    m, QUIRE_INVAL, p, "one schema requires what another does not allow:", name);
            }
            (void)json_object_del(properties, name);
        }
    }
    return QUIRE_OK;
}

/* enum and const of two schemas. */
static int values_merge(schema_maker *m, const schema_place *p, json_t *merged, const json_t *b)
{
    json_t *x = values_of(merged), *y = values_of(b);
    json_t *common = x != NULL && y != NULL ? list_common(x, y) : borrowed(y);
    const bool is_empty = common != NULL && json_array_size(common) == 0;
    int rc = QUIRE_OK;

    if (json_object_get(b, "const") != NULL || json_object_get(b, "enum") != NULL) {
        (void)json_object_del(merged, "const");
        rc = json_object_set(merged, "enum", common) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    }
    json_decref(x);
    json_decref(y);
    json_decref(common);
    return is_empty
               ? quire_schema_refuse(m, QUIRE_INVAL, p, "no common value have the lists of", "enum")
               : rc;
}

static bool is_note(const char *name)
{
    schema_keyword_kind kind = SCHEMA_KEYWORD_TYPED;
    const char *type;

    return quire_schema_keyword_find(name, &kind, &type) && kind == SCHEMA_KEYWORD_NOTE;
}

/* *out = a and b. Both are flat. */
static int merge_two(schema_maker *m, const json_t *a, const json_t *b, const schema_place *p,
                     const json_t **out)
{
    json_t *merged, *properties;
    const char *name;
    json_t *value;

    QUIRE_TRY(keep(m, p, json_copy((json_t *)(uintptr_t)a), &merged));
    *out = merged;
    properties = json_object_get(merged, "properties");
    if (properties != NULL) { /* may lose some */
        (void)json_object_set_new(merged, "properties", json_copy(properties));
    }
    QUIRE_TRY(values_merge(m, p, merged, b));
    json_object_foreach((json_t *)(uintptr_t)b, name, value)
    {
        const json_t *before = json_object_get(a, name);
        json_t *both_values;

        if (strcmp(name, "enum") == 0 || strcmp(name, "const") == 0 || is_note(name)) {
            continue;
        }
        both_values = before != NULL ? value_merged(name, before, value) : borrowed(value);
        if (both_values == NULL) {
            return quire_schema_refuse(m, QUIRE_INVAL, p, "not supported in two schemas at once is",
                                       name);
        }
        QUIRE_FAIL_IF(json_object_set_new(merged, name, both_values) != 0, QUIRE_NOMEM);
    }
    if (json_array_size(json_object_get(merged, "type")) == 0 &&
        json_is_array(json_object_get(merged, "type"))) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "no common type have the schemas of",
                                   "allOf");
    }
    QUIRE_TRY(properties_close(m, p, merged, a));
    return properties_close(m, p, merged, b);
}

/* ---- one schema ---- */

/* A copy without notes and without one keyword. */
static int without(schema_maker *m, const json_t *schema, const schema_place *p,
                   const char *left_out, json_t **out)
{
    const char *name;
    json_t *value;

    QUIRE_TRY(keep(m, p, json_object(), out));
    json_object_foreach((json_t *)(uintptr_t)schema, name, value)
    {
        if (strcmp(name, left_out) != 0 && !is_note(name)) {
            QUIRE_FAIL_IF(json_object_set(*out, name, value) != 0, QUIRE_NOMEM);
        }
    }
    return QUIRE_OK;
}

static int flatten(schema_maker *m, const json_t *schema, const schema_place *p, bool inlines,
                   const json_t **out);

/* Merge *out with the schema at a place below, flat. */
static int merge_with(schema_maker *m, const json_t *other, const schema_place *p,
                      const json_t **out)
{
    const json_t *flat = other;

    if (p->depth > QUIRE_SCHEMA_DEPTH_MAX) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "schemas within schemas: more than", "32");
    }
    if (json_is_true(other)) {
        return QUIRE_OK;
    }
    if (!json_is_object(other)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "a schema is an object, not",
                                   json_is_false(other) ? "false" : "something else");
    }
    QUIRE_TRY(flatten(m, other, p, true, &flat));
    return merge_two(m, *out, flat, p, out);
}

/* anyOf or oneOf: keywords beside them go into each of their schemas. */
static int distribute(schema_maker *m, const json_t *schema, const schema_place *p,
                      const char *choice, const json_t **out)
{
    const json_t *list = json_object_get(schema, choice);
    json_t *rest, *made, *choices;

    QUIRE_TRY(without(m, schema, p, choice, &rest));
    if (json_object_size(rest) == 0 || !json_is_array(list)) {
        *out = schema; /* stands alone; a wrong list is refused later */
        return QUIRE_OK;
    }
    QUIRE_TRY(keep(m, p, json_pack("{s:[]}", choice), &made));
    choices = json_object_get(made, choice);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const schema_place below = { p, choice, i, p->depth + 1 };
        const json_t *merged = rest;

        QUIRE_TRY(merge_with(m, json_array_get(list, i), &below, &merged));
        QUIRE_FAIL_IF(json_array_append(choices, (json_t *)(uintptr_t)merged) != 0, QUIRE_NOMEM);
    }
    *out = made;
    return QUIRE_OK;
}

/* inlines: a $ref is replaced by its target also where nothing stands beside it. */
static int flatten(schema_maker *m, const json_t *schema, const schema_place *p, bool inlines,
                   const json_t **out)
{
    const json_t *all = json_object_get(schema, "allOf");
    const json_t *flat;
    json_t *rest;

    QUIRE_TRY(without(m, schema, p, "allOf", &rest));
    flat = rest;
    if (all != NULL && (!json_is_array(all) || json_array_size(all) == 0)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a list with something in it is",
                                   "allOf");
    }
    if (!inlines && json_array_size(all) == 1 && json_object_size(rest) == 0) {
        *out = json_array_get(all, 0); /* a $ref stays one, and may contain itself */
        return QUIRE_OK;
    }
    if (json_object_get(rest, "$ref") != NULL) {
        const schema_place below = { p, "$ref", SIZE_MAX, p->depth + 1 };
        const json_t *target;

        QUIRE_TRY(quire_schema_ref_find(m, rest, p, &target));
        QUIRE_TRY(without(m, rest, p, "$ref", &rest));
        flat = rest;
        QUIRE_TRY(merge_with(m, target, &below, &flat));
    }
    for (size_t i = 0; i < json_array_size(all); i++) {
        const schema_place below = { p, "allOf", i, p->depth + 1 };

        QUIRE_TRY(merge_with(m, json_array_get(all, i), &below, &flat));
    }
    if (json_object_get(flat, "anyOf") != NULL) {
        return distribute(m, flat, p, "anyOf", out);
    }
    if (json_object_get(flat, "oneOf") != NULL) {
        return distribute(m, flat, p, "oneOf", out);
    }
    *out = flat;
    return QUIRE_OK;
}

int quire_schema_merge(schema_maker *m, const json_t *schema, const schema_place *p,
                       const json_t **out)
{
    return flatten(m, schema, p, false, out);
}
