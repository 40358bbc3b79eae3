/* json_schema_merge.c - several schemas that hold at once, as one schema.
 *
 * Two schemas become one keyword by keyword: bounds become the narrower ones, properties and
 * required ones come together, types and values become the common ones. A property, or the items,
 * of both get an allOf of the two, which is merged when it is reached. Keywords that cannot be put
 * together so (two different patterns) are refused by name. A member of anyOf or oneOf that nothing
 * can satisfy with the keywords beside them is left out.
 *
 * The work is bounded: schemas within schemas by their depth, all merges of one schema by
 * QUIRE_SCHEMA_MERGES_MAX, and the values that they look at by QUIRE_SCHEMA_COMPARED_MAX.
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

int quire_schema_keep(schema_maker *m, const schema_place *p, json_t *json, json_t **out)
{
    *out = json;
    if (json_array_size(m->merged) == QUIRE_SCHEMA_MERGES_MAX) {
        json_decref(json);
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "schemas of allOf and beside $ref: more than",
                                   "2000");
    }
    return json != NULL && json_array_append_new(m->merged, json) == 0 ? QUIRE_OK : QUIRE_NOMEM;
}

/* Refuse schemas that no value satisfies at once. */
static int refuse_empty(schema_maker *m, const schema_place *p, const char *what, const char *name)
{
    m->is_empty = true;
    return quire_schema_refuse(m, QUIRE_INVAL, p, what, name);
}

/* ---- work ---- */

/* Count values and names that are looked at. Errors: QUIRE_LIMIT. */
static int look_at(schema_maker *m, const schema_place *p, size_t n)
{
    m->n_compared += n;
    return m->n_compared <= QUIRE_SCHEMA_COMPARED_MAX
               ? QUIRE_OK
               : quire_schema_refuse(m, QUIRE_LIMIT, p,
                                     "values of allOf and beside $ref to compare: more than",
                                     "1000000");
}

/* As json_equal(). Beyond the bound of work nothing is equal; look_at() says so later. */
static bool is_same(schema_maker *m, const json_t *a, const json_t *b)
{
    const char *name;
    json_t *value;
    size_t i;

    m->n_compared++;
    if (a == b) {
        return true;
    }
    if (a == NULL || b == NULL || json_typeof(a) != json_typeof(b) ||
        json_object_size(a) != json_object_size(b) || json_array_size(a) != json_array_size(b) ||
        m->n_compared > QUIRE_SCHEMA_COMPARED_MAX) {
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)a, name, value)
    {
        if (!is_same(m, value, json_object_get(b, name))) {
            return false;
        }
    }
    json_array_foreach(a, i, value)
    {
        if (!is_same(m, value, json_array_get(b, i))) {
            return false;
        }
    }
    m->n_compared += json_string_length(a) / 64;
    return json_is_object(a) || json_is_array(a) || json_equal(a, b);
}

static bool is_listed(schema_maker *m, const json_t *list, const json_t *item)
{
    for (size_t i = 0; i < json_array_size(list) && m->n_compared <= QUIRE_SCHEMA_COMPARED_MAX;
         i++) {
        if (is_same(m, json_array_get(list, i), item)) {
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

/* The types of both; integers are numbers. NULL without memory, as the lists below, and for lists
 * with more names than there are types. */
static json_t *types_common(schema_maker *m, const json_t *a, const json_t *b)
{
    const bool is_short = json_array_size(a) <= QUIRE_SCHEMA_TYPES_MAX &&
                          json_array_size(b) <= QUIRE_SCHEMA_TYPES_MAX;
    json_t *common = is_short ? json_array() : NULL;
    bool is_whole = common != NULL;

    for (unsigned k = 0; k < 2 && is_whole; k++) {
        const json_t *from = k == 0 ? a : b, *other = k == 0 ? b : a;

        for (size_t i = 0; i < (json_is_string(from) ? 1 : json_array_size(from)); i++) {
            json_t *one =
                json_is_string(from) ? (json_t *)(uintptr_t)from : json_array_get(from, i);

            if (json_is_string(one) && is_type_in(other, json_string_value(one)) &&
                !is_listed(m, common, one)) {
                is_whole = json_array_append(common, one) == 0 && is_whole;
            }
        }
    }
    return whole_or_none(common, is_whole);
}

static json_t *list_common(schema_maker *m, const json_t *a, const json_t *b)
{
    json_t *common = json_array();
    bool is_whole = common != NULL;

    for (size_t i = 0; i < json_array_size(a); i++) {
        if (is_listed(m, b, json_array_get(a, i))) {
            is_whole = json_array_append(common, json_array_get(a, i)) == 0 && is_whole;
        }
    }
    return whole_or_none(common, is_whole);
}

static json_t *list_union(schema_maker *m, const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a);
    bool is_whole = all != NULL;

    for (size_t i = 0; i < json_array_size(b); i++) {
        if (!is_listed(m, all, json_array_get(b, i))) {
            is_whole = json_array_append(all, json_array_get(b, i)) == 0 && is_whole;
        }
    }
    return whole_or_none(all, is_whole);
}

/* Whether a schema allows every value. */
static bool is_any(const json_t *schema)
{
    return json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0);
}

/* A schema that both must hold for. */
static json_t *both(schema_maker *m, const json_t *a, const json_t *b)
{
    return is_any(b) || is_same(m, a, b) ? borrowed(a)
           : is_any(a)                   ? borrowed(b)
                                         : json_pack("{s:[O,O]}", "allOf", a, b);
}

static json_t *properties_union(schema_maker *m, const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a);
    bool is_whole = all != NULL;
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)b, name, value)
    {
        const json_t *before = json_object_get(a, name);
        json_t *merged = before != NULL ? both(m, before, value) : borrowed(value);

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
static json_t *value_merged(schema_maker *m, const char *name, const json_t *a, const json_t *b)
{
    static const char *const lows[] = { "minimum", "exclusiveMinimum", "minLength", "minItems",
                                        "minProperties" };
    static const char *const highs[] = { "maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                         "maxProperties" };

    if (strcmp(name, "properties") == 0 && json_is_object(a) && json_is_object(b)) {
        return properties_union(m, a, b); /* a copy, which may lose some */
    }
    if (is_same(m, a, b)) {
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
        return types_common(m, a, b);
    }
    if (strcmp(name, "required") == 0 && json_is_array(a) && json_is_array(b)) {
        return list_union(m, a, b);
    }
    if ((strcmp(name, "items") == 0 || strcmp(name, "additionalProperties") == 0) &&
        (json_is_false(a) || json_is_false(b))) {
        return json_false();
    }
    if (strcmp(name, "items") == 0 || strcmp(name, "additionalProperties") == 0 ||
        strcmp(name, "propertyNames") == 0) {
        return both(m, a, b);
    }
    return NULL;
}

/* ---- two schemas ---- */

/* Properties that only the other schema names are additional ones of this: none, or those that its
 * additionalProperties allows. */
static int properties_close(schema_maker *m, const schema_place *p, json_t *merged,
                            const json_t *closed)
{
    const json_t *named = json_object_get(closed, "properties");
    const json_t *rest = json_object_get(closed, "additionalProperties");
    json_t *properties = json_object_get(merged, "properties");
    const json_t *required = json_object_get(merged, "required");
    const char *name;
    json_t *value;
    void *next;

    if (rest == NULL || is_any(rest)) {
        return QUIRE_OK;
    }
    json_object_foreach_safe(properties, next, name, value)
    {
        json_t *text = json_string(name);
        const bool is_required = is_listed(m, required, text);

        json_decref(text);
        if (json_object_get(named, name) != NULL) {
            continue;
        }
        if (!json_is_false(rest)) {
            QUIRE_FAIL_IF(json_object_set_new(properties, name, both(m, value, rest)) != 0,
                          QUIRE_NOMEM);
        } else if (is_required) {
            return refuse_empty(m, p, "one schema requires what another does not allow:", name);
        } else {
            (void)json_object_del(properties, name);
        }
    }
    return QUIRE_OK;
}

/* The first items of one schema are items of the other, which has no first items. */
static int prefix_close(schema_maker *m, const schema_place *p, json_t *merged, const json_t *a,
                        const json_t *b)
{
    const json_t *prefix = json_object_get(a, "prefixItems");
    const json_t *items = json_object_get(b, "items");
    json_t *list;

    if (prefix == NULL || items == NULL || json_object_get(b, "prefixItems") != NULL ||
        is_any(items)) {
        return QUIRE_OK;
    }
    if (json_is_false(items)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not supported in two schemas at once is",
                                   "prefixItems");
    }
    list = json_array();
    for (size_t i = 0; i < json_array_size(prefix) && list != NULL; i++) {
        if (json_array_append_new(list, both(m, json_array_get(prefix, i), items)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return json_object_set_new(merged, "prefixItems", list) == 0 ? QUIRE_OK : QUIRE_NOMEM;
}

/* enum and const of two schemas. */
static int values_merge(schema_maker *m, const schema_place *p, json_t *merged, const json_t *b)
{
    json_t *x = values_of(merged), *y = values_of(b);
    json_t *common =
        x != NULL && y != NULL && !is_same(m, x, y) ? list_common(m, x, y) : borrowed(y);
    const bool is_empty = common != NULL && json_array_size(common) == 0;
    int rc = QUIRE_OK;

    if (json_object_get(b, "const") != NULL || json_object_get(b, "enum") != NULL) {
        (void)json_object_del(merged, "const");
        rc = json_object_set(merged, "enum", common) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    }
    json_decref(x);
    json_decref(y);
    json_decref(common);
    QUIRE_TRY(look_at(m, p, 0)); /* beyond the bound nothing is common */
    return is_empty ? refuse_empty(m, p, "no common value have the lists of", "enum") : rc;
}

/* Types of one schema and values of the other have to have something in common. */
static int types_check(schema_maker *m, const schema_place *p, const json_t *merged)
{
    const json_t *types = json_object_get(merged, "type");
    json_t *values = values_of(merged);
    const size_t n = json_array_size(values);
    int rc = look_at(m, p, n * (1 + json_array_size(types)));
    bool is_fitting = n == 0;

    for (size_t i = 0; i < n && rc == QUIRE_OK && !is_fitting; i++) {
        is_fitting = quire_schema_is_of_types(json_array_get(values, i), types);
    }
    json_decref(values);
    QUIRE_TRY(rc);
    if (json_is_array(types) && json_array_size(types) == 0) {
        return refuse_empty(m, p, "no common type have the schemas of", "allOf");
    }
    return is_fitting ? QUIRE_OK : refuse_empty(m, p, "no value is of the", "type");
}

static bool is_note(const char *name)
{
    schema_keyword_kind kind = SCHEMA_KEYWORD_TYPED;
    const char *type;

    return quire_schema_keyword_find(name, &kind, &type) && kind == SCHEMA_KEYWORD_NOTE;
}

/* Add the keywords of b to *merged, a copy of a. */
static int keywords_merge(schema_maker *m, const schema_place *p, json_t *merged, const json_t *a,
                          const json_t *b)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)b, name, value)
    {
        const json_t *before = json_object_get(a, name);
        json_t *both_values;

        if (strcmp(name, "enum") == 0 || strcmp(name, "const") == 0 || is_note(name)) {
            continue;
        }
        both_values = before != NULL                    ? value_merged(m, name, before, value)
                      : strcmp(name, "properties") == 0 ? json_copy(value) /* may lose some */
                                                        : borrowed(value);
        if (both_values == NULL) {
            return quire_schema_refuse(m, QUIRE_INVAL, p, "not supported in two schemas at once is",
                                       name);
        }
        QUIRE_FAIL_IF(json_object_set_new(merged, name, both_values) != 0, QUIRE_NOMEM);
    }
    return QUIRE_OK;
}

/* The members of a schema, and those of its keywords. */
static size_t members_of(const json_t *schema)
{
    size_t n = json_object_size(schema);
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)schema, name, value)
    {
        n += json_object_size(value) + json_array_size(value);
    }
    return n;
}

/* *out = a and b. Both are flat. */
static int merge_two(schema_maker *m, const json_t *a, const json_t *b, const schema_place *p,
                     const json_t **out)
{
    json_t *merged, *properties;

    QUIRE_TRY(look_at(m, p, members_of(a) + members_of(b)));
    QUIRE_TRY(quire_schema_keep(m, p, json_copy((json_t *)(uintptr_t)a), &merged));
    *out = merged;
    properties = json_object_get(merged, "properties");
    if (properties != NULL) { /* may lose some */
        QUIRE_FAIL_IF(json_object_set_new(merged, "properties", json_copy(properties)) != 0,
                      QUIRE_NOMEM);
    }
    QUIRE_TRY(values_merge(m, p, merged, b));
    QUIRE_TRY(keywords_merge(m, p, merged, a, b));
    QUIRE_TRY(types_check(m, p, merged));
    QUIRE_TRY(properties_close(m, p, merged, a));
    QUIRE_TRY(properties_close(m, p, merged, b));
    QUIRE_TRY(prefix_close(m, p, merged, a, b));
    QUIRE_TRY(prefix_close(m, p, merged, b, a));
    return look_at(m, p, 0); /* compared beyond the bound: the result is wrong */
}

/* ---- one schema ---- */

/* A copy without notes and without one keyword. */
static int without(schema_maker *m, const json_t *schema, const schema_place *p,
                   const char *left_out, json_t **out)
{
    const char *name;
    json_t *value;

    QUIRE_TRY(look_at(m, p, json_object_size(schema)));
    QUIRE_TRY(quire_schema_keep(m, p, json_object(), out));
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

/* unevaluatedProperties: false of a part knows the properties of this part alone. */
static int evaluated_close(schema_maker *m, const schema_place *p, const json_t **flat)
{
    json_t *closed;

    if (!json_is_false(json_object_get(*flat, "unevaluatedProperties"))) {
        return QUIRE_OK;
    }
    QUIRE_TRY(without(m, *flat, p, "unevaluatedProperties", &closed));
    *flat = closed;
    return json_object_get(closed, "additionalProperties") != NULL ||
                   json_object_set_new(closed, "additionalProperties", json_false()) == 0
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

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
    if (json_is_false(other)) {
        return refuse_empty(m, p, "a schema is an object, not", "false");
    }
    if (!json_is_object(other)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "a schema is an object, not",
                                   "something else");
    }
    QUIRE_TRY(flatten(m, other, p, true, &flat));
    QUIRE_TRY(evaluated_close(m, p, &flat));
    return merge_two(m, *out, flat, p, out);
}

/* anyOf or oneOf: keywords beside them go into each of their schemas. One that cannot hold beside
 * them is left out. */
static int distribute(schema_maker *m, const json_t *schema, const schema_place *p,
                      const char *choice, const json_t **out)
{
    const json_t *list = json_object_get(schema, choice);
    json_t *rest, *made, *choices;
    int rc = QUIRE_OK;

    QUIRE_TRY(without(m, schema, p, choice, &rest));
    if (json_object_size(rest) == 0 || !json_is_array(list)) {
        *out = schema; /* stands alone; a wrong list is refused later */
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_schema_keep(m, p, json_pack("{s:[]}", choice), &made));
    choices = json_object_get(made, choice);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const schema_place below = { p, choice, i, p->depth + 1 };
        const json_t *merged = rest;

        rc = merge_with(m, json_array_get(list, i), &below, &merged);
        if (rc == QUIRE_INVAL && m->is_empty) { /* a choice that no value satisfies */
            m->is_empty = false;
            continue;
        }
        QUIRE_TRY(rc);
        QUIRE_FAIL_IF(json_array_append(choices, (json_t *)(uintptr_t)merged) != 0, QUIRE_NOMEM);
    }
    *out = made;
    m->is_empty = rc < 0 && json_array_size(choices) == 0; /* err has the last one's reason */
    return m->is_empty ? rc : QUIRE_OK;
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
