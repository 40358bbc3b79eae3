/* json_schema_types.c - strings, arrays and objects of a schema.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_schema_internal.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_CHARS 1000u /* of a string longer than QUIRE_SCHEMA_COUNT_MAX */

static bool is_count(const json_t *value, uint32_t most)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= (json_int_t)most;
}

static int count_get(const schema_maker *m, const json_t *schema, const schema_place *p,
                     const char *name, uint32_t most, uint32_t *count)
{
    char what[64];
    const json_t *value = json_object_get(schema, name);

    if (value == NULL || (m->skips_unknown && !is_count(value, most))) {
        return QUIRE_OK;
    }
    if (json_is_real(value) ? json_real_value(value) < 0x1p63
                            : !json_is_integer(value) || json_integer_value(value) < 0) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a count is the value of", name);
    }
    if (!is_count(value, most)) {
        (void)snprintf(what, sizeof what, "more than %" PRIu32 " is the value of", most);
        return quire_schema_refuse(m, QUIRE_LIMIT, p, what, name);
    }
    *count = (uint32_t)json_integer_value(value);
    return QUIRE_OK;
}

static int bounds_within(const schema_maker *m, const json_t *schema, const schema_place *p,
                         const char *const *names, uint32_t most, schema_bounds *b)
{
    *b = (schema_bounds){ 0, UINT32_MAX };
    QUIRE_TRY(count_get(m, schema, p, names[0], most, &b->min));
    QUIRE_TRY(count_get(m, schema, p, names[1], most, &b->max));
    if (b->max < b->min && m->skips_unknown) {
        *b = (schema_bounds){ 0, UINT32_MAX };
    }
    if (b->max < b->min) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "larger than its fellow is", names[0]);
    }
    return QUIRE_OK;
}

static int bounds_get(const schema_maker *m, const json_t *schema, const schema_place *p,
                      const char *const *names, schema_bounds *b)
{
    return bounds_within(m, schema, p, names, QUIRE_SCHEMA_COUNT_MAX, b);
}

/* Repeat from min to max times; the caller handles max 0. */
static void times_add(quire_bytes *text, uint32_t min, uint32_t max)
{
    if (max == UINT32_MAX) {
        (void)quire_bytes_addf(text, "{%" PRIu32 ",}", min);
    } else {
        (void)quire_bytes_addf(text, "{%" PRIu32 ",%" PRIu32 "}", min, max);
    }
}

/* Exactly n characters, more than QUIRE_SCHEMA_COUNT_MAX as blocks of them. */
static void chars_add(quire_bytes *text, uint32_t n)
{
    if (n > QUIRE_SCHEMA_COUNT_MAX) {
        (void)quire_bytes_addf(text, " (char{%u}){%" PRIu32 "}", BLOCK_CHARS, n / BLOCK_CHARS);
        n %= BLOCK_CHARS;
    }
    if (n > 0) {
        (void)quire_bytes_addf(text, " char{%" PRIu32 "}", n);
    }
}

/* At most n characters: some blocks and less than another, or all blocks and the rest. */
static void chars_up_to_add(quire_bytes *text, uint32_t n)
{
    const uint32_t blocks = n / BLOCK_CHARS;

    if (n <= QUIRE_SCHEMA_COUNT_MAX) {
        (void)quire_bytes_addf(text, " char{0,%" PRIu32 "}", n);
        return;
    }
    (void)quire_bytes_addf(text, " ((char{%u}){0,%" PRIu32 "} char{0,%u} |", BLOCK_CHARS,
                           blocks - 1, BLOCK_CHARS - 1);
    chars_add(text, blocks * BLOCK_CHARS);
    if (n % BLOCK_CHARS > 0) {
        (void)quire_bytes_addf(text, " char{0,%" PRIu32 "}", n % BLOCK_CHARS);
    }
    (void)quire_bytes_addf(text, ")");
}

int quire_schema_length_add(const schema_bounds *length, quire_bytes *text)
{
    (void)quire_bytes_addf(text, "\"\\\"\"");
    if (length->max <= QUIRE_SCHEMA_COUNT_MAX && length->max > 0) {
        (void)quire_bytes_addf(text, " char");
        times_add(text, length->min, length->max);
    } else if (length->max > 0) {
        chars_add(text, length->min);
        if (length->max == UINT32_MAX) {
            (void)quire_bytes_addf(text, " char*");
        } else if (length->max > length->min) {
            chars_up_to_add(text, length->max - length->min);
        }
    }
    return quire_bytes_addf(text, " \"\\\"\"");
}

int quire_schema_string_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text)
{
    static const char *const names[] = { "minLength", "maxLength" };
    schema_bounds b;

    QUIRE_TRY(bounds_within(m, schema, p, names, QUIRE_SCHEMA_LENGTH_MAX, &b));
    for (size_t i = 0; i < 2; i++) {
        static const char *const keys[] = { "pattern", "format" };
        const size_t n_before = text->n;
        int rc;

        if (json_object_get(schema, keys[i]) == NULL) {
            continue;
        }
        rc = quire_schema_pattern_add(m, schema, p, keys[i], &b, text);
        if (rc == QUIRE_OK || rc == QUIRE_NOMEM || !m->skips_unknown) {
            return rc;
        }
        text->n = n_before; /* what is not supported constrains nothing */
    }
    return quire_schema_length_add(&b, text);
}

/* The schemas of the first items, each with its own; NULL: there are none. Before draft 2020-12
 * they were a list in "items", and the others "additionalItems". */
static const json_t *first_items(const json_t *schema, const char **key)
{
    const json_t *items = json_object_get(schema, "items");

    *key = json_is_array(items) ? "items" : "prefixItems";
    return json_object_get(schema, *key);
}

static const json_t *other_items(const json_t *schema, const char **key)
{
    *key = json_is_array(json_object_get(schema, "items")) ? "additionalItems" : "items";
    return json_object_get(schema, *key);
}

/* The items of prefixItems as a sequence with commas, at most `max` of them. */
static int prefix_add(schema_maker *m, const json_t *schema, const schema_place *p, size_t max,
                      quire_bytes *text)
{
    const char *key;
    const json_t *list = first_items(schema, &key);

    for (size_t i = 0; i < json_array_size(list) && i < max; i++) {
        const schema_place below = { p, key, i, p->depth + 1 };
        uint32_t item;

        QUIRE_TRY(quire_schema_node_make(m, json_array_get(list, i), &below, &item));
        (void)quire_bytes_addf(text, "%ss-%" PRIu32, i > 0 ? " \",\" ws " : "", item);
    }
    return text->status;
}

/* An array whose first items have schemas of their own. All of these items come, unless maxItems
 * forbids it; more items come if the schema has "items", or minItems asks for them. */
static int tuple_add(schema_maker *m, const json_t *schema, const schema_place *p,
                     const schema_bounds *b, quire_bytes *text)
{
    const char *first_key, *key;
    const uint32_t n = (uint32_t)json_array_size(first_items(schema, &first_key));
    const json_t *items = other_items(schema, &key);
    const schema_place below = { p, key, SIZE_MAX, p->depth + 1 };
    const uint32_t min = b->min > n ? b->min - n : 0;
    const uint32_t max = b->max == UINT32_MAX ? b->max : b->max > n ? b->max - n : 0;
    quire_bytes more_text = { 0 };
    uint32_t item = 0;

    (void)quire_bytes_addf(text, "\"[\" ws ");
    QUIRE_TRY(prefix_add(m, schema, p, b->max, text));
    if (json_is_false(items) && min > 0) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "more items than prefixItems has, asks for",
                                   "minItems");
    }
    if (max > 0 && (min > 0 || items != NULL) && !json_is_false(items)) {
        const uint32_t more = m->n_rules++;

        if (items != NULL) {
            QUIRE_TRY(quire_schema_node_make(m, items, &below, &item));
            (void)quire_bytes_addf(&more_text, "\",\" ws s-%" PRIu32, item);
        } else {
            (void)quire_bytes_addf(&more_text, "\",\" ws value");
        }
        QUIRE_TRY(quire_schema_rule_end(m, &more_text, "s", more));
        (void)quire_bytes_addf(text, " s-%" PRIu32, more);
        times_add(text, min, max);
    }
    return quire_bytes_addf(text, " ws \"]\"");
}

int quire_schema_array_add(schema_maker *m, const json_t *schema, const schema_place *p,
                           quire_bytes *text)
{
    static const char *const names[] = { "minItems", "maxItems" };
    const char *key;
    const json_t *items = json_object_get(schema, "items");
    const json_t *prefix = first_items(schema, &key);
    const schema_place below = { p, "items", SIZE_MAX, p->depth + 1 };
    const uint32_t more = m->n_rules++;
    quire_bytes more_text = { 0 };
    uint32_t item = 0;
    schema_bounds b;

    QUIRE_TRY(bounds_get(m, schema, p, names, &b));
    if (b.max == 0 || (json_is_false(items) && prefix == NULL)) {
        return b.min == 0 ? quire_bytes_addf(text, "\"[\" ws \"]\"")
                          : quire_schema_refuse(m, QUIRE_INVAL, p,
                                                "no item is allowed, but asked "
                                                "for by",
                                                "minItems");
    }
    if (prefix != NULL) {
        if (!json_is_array(prefix) || json_array_size(prefix) == 0 ||
            json_array_size(prefix) > QUIRE_SCHEMA_PROPERTIES_MAX) {
            return quire_schema_refuse(m, QUIRE_INVAL, p, "not a list of 1 to 100 schemas is", key);
        }
        return tuple_add(m, schema, p, &b, text);
    }
    if (items != NULL) {
        QUIRE_TRY(quire_schema_node_make(m, items, &below, &item));
        (void)quire_bytes_addf(&more_text, "\",\" ws s-%" PRIu32, item);
    } else {
        (void)quire_bytes_addf(&more_text, "\",\" ws value");
    }
    QUIRE_TRY(quire_schema_rule_end(m, &more_text, "s", more));
    (void)quire_bytes_addf(text, "\"[\" ws %s", b.min == 0 ? "(" : "");
    if (items != NULL) {
        (void)quire_bytes_addf(text, "s-%" PRIu32, item);
    } else {
        (void)quire_bytes_addf(text, "value");
    }
    if (b.max > 1) {
        (void)quire_bytes_addf(text, " s-%" PRIu32, more);
        times_add(text, b.min > 0 ? b.min - 1 : 0, b.max == UINT32_MAX ? b.max : b.max - 1);
    }
    return quire_bytes_addf(text, " ws%s \"]\"", b.min == 0 ? ")?" : "");
}

static bool is_listed(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *item = json_string_value(json_array_get(list, i));

        if (item != NULL && strcmp(item, name) == 0) {
            return true;
        }
    }
    return false;
}

static int object_check(const schema_maker *m, const json_t *schema, const schema_place *p)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const json_t *additional = json_object_get(schema, "additionalProperties");

    if (properties != NULL && !json_is_object(properties)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not an object is the value of",
                                   "properties");
    }
    if (required != NULL && !json_is_array(required)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a list is the value of", "required");
    }
    if (json_array_size(required) > QUIRE_SCHEMA_VALUES_MAX) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "more than 1000 names has", "required");
    }
    if (additional != NULL && !json_is_boolean(additional) && !json_is_object(additional)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "neither a boolean nor a schema is",
                                   "additionalProperties");
    }
    return QUIRE_OK;
}

/* The schema of unnamed properties; NULL = any. */
static const json_t *rest_of(const json_t *schema)
{
    const json_t *values = json_object_get(schema, "additionalProperties");

    return values != NULL ? values : json_object_get(schema, "unevaluatedProperties");
}

/* Name a required property that has no schema of its own: its schema is that of unnamed ones. */
static int name_add(const schema_maker *m, const json_t *schema, const schema_place *p,
                    json_t *properties, const json_t *name)
{
    json_t *rest = (json_t *)(uintptr_t)rest_of(schema);
    const char *text = json_string_value(name);

    if (text != NULL && json_object_get(properties, text) != NULL) {
        return QUIRE_OK;
    }
    if (text == NULL || json_is_false(rest)) {
        return m->skips_unknown
                   ? QUIRE_OK
                   : quire_schema_refuse(m, QUIRE_INVAL, p,
                                         "required, but not among the properties, is",
                                         text != NULL ? text : "a value other than a string");
    }
    return json_object_set_new(properties, text, rest != NULL ? json_incref(rest) : json_true()) ==
                   0
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

static bool names_all(const json_t *properties, const json_t *required)
{
    size_t i = 0;

    while (i < json_array_size(required)) {
        const char *name = json_string_value(json_array_get(required, i));

        if (name == NULL || json_object_get(properties, name) == NULL) {
            break;
        }
        i++;
    }
    return i == json_array_size(required);
}

/* Let *schema name all required properties; it may become a copy, which the maker owns. */
static int required_name(schema_maker *m, const json_t **schema, const schema_place *p)
{
    const json_t *required = json_object_get(*schema, "required");
    json_t *before = json_object_get(*schema, "properties");
    json_t *copy, *properties;

    if (!names_all(before, required)) {
        QUIRE_TRY(quire_schema_keep(m, p, json_copy((json_t *)(uintptr_t)*schema), &copy));
        properties = before != NULL ? json_copy(before) : json_object();
        QUIRE_FAIL_IF(json_object_set_new(copy, "properties", properties) != 0, QUIRE_NOMEM);
        for (size_t i = 0; i < json_array_size(required); i++) {
            QUIRE_TRY(name_add(m, copy, p, properties, json_array_get(required, i)));
        }
        *schema = copy;
        before = properties;
    }
    return json_object_size(before) <= QUIRE_SCHEMA_PROPERTIES_MAX
               ? QUIRE_OK
               : quire_schema_refuse(m, QUIRE_LIMIT, p, "more than 100 are the", "properties");
}

/* Rules first .. first + n - 1: the members that may follow a first member, from property k on.
 * Rule pair + k is the name and value of property k. */
static int members_make(schema_maker *m, const json_t *schema, uint32_t pair, uint32_t first)
{
    const json_t *required = json_object_get(schema, "required");
    json_t *properties = json_object_get(schema, "properties");
    const size_t n = json_object_size(properties);
    const char *name;
    json_t *value;
    uint32_t k = 0;

    json_object_foreach(properties, name, value)
    {
        quire_bytes text = { 0 };

        (void)quire_bytes_addf(
            &text, is_listed(required, name) ? "\",\" ws s-%" PRIu32 : "(\",\" ws s-%" PRIu32 ")?",
            pair + k);
        if (k + 1 < n) {
            (void)quire_bytes_addf(&text, " s-%" PRIu32, first + k + 1);
        }
        QUIRE_TRY(quire_schema_rule_end(m, &text, "s", first + k));
        k++;
    }
    return QUIRE_OK;
}

static int pairs_make(schema_maker *m, const json_t *schema, const schema_place *p, uint32_t pair)
{
    json_t *properties = json_object_get(schema, "properties");
    const schema_place in_properties = { p, "properties", SIZE_MAX, p->depth };
    const char *name;
    json_t *value;
    uint32_t k = 0;

    json_object_foreach(properties, name, value)
    {
        const schema_place below = { &in_properties, name, SIZE_MAX, p->depth + 1 };
        json_t *key = json_string(name);
        quire_bytes text = { 0 };
        uint32_t rule;
        int rc;

        QUIRE_FAIL_IF(key == NULL, QUIRE_NOMEM);
        rc = quire_schema_literal_add(key, ":", &text);
        json_decref(key);
        if (rc == QUIRE_OK) {
            rc = quire_schema_node_make(m, value, &below, &rule);
        }
        if (rc < 0) {
            quire_bytes_fini(&text);
            return rc;
        }
        (void)quire_bytes_addf(&text, " ws s-%" PRIu32, rule);
        QUIRE_TRY(quire_schema_rule_end(m, &text, "s", pair + k));
        k++;
    }
    return QUIRE_OK;
}

/* The names of unnamed properties: the strings that the schema propertyNames allows. */
static int names_add(schema_maker *m, const json_t *names, const schema_place *p, quire_bytes *text)
{
    const json_t *type = json_object_get(names, "type");
    json_t *strings;
    uint32_t rule;

    if (names == NULL || json_is_true(names) ||
        (json_is_object(names) && json_object_size(names) == 0)) {
        return quire_bytes_addf(text, "string");
    }
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "string") != 0)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "names are strings, not of the", "type");
    }
    QUIRE_TRY(quire_schema_keep(m, p, json_pack("{s:[O,{s:s}]}", "allOf", names, "type", "string"),
                                &strings));
    QUIRE_TRY(quire_schema_node_make(m, strings, p, &rule));
    return quire_bytes_addf(text, "s-%" PRIu32, rule);
}

/* Whether propertyNames allows the names of properties, as far as it can be seen: a list of them.
 */
static bool are_names(const json_t *names, json_t *properties)
{
    const json_t *list = json_object_get(names, "enum");
    bool is_alone = json_object_size(names) == 1u + (json_object_get(names, "type") != NULL);
    const char *name;
    json_t *value;

    json_object_foreach(properties, name, value)
    {
        is_alone = is_alone && is_listed(list, name);
    }
    return names == NULL || (list != NULL && is_alone);
}

/* An object with named properties: their number is not chosen, so the bounds must allow each. */
static int named_count_check(const schema_maker *m, const json_t *schema, const schema_place *p)
{
    static const char *const counts[] = { "minProperties", "maxProperties" };
    schema_bounds b;

    if (m->skips_unknown) {
        return QUIRE_OK;
    }
    QUIRE_TRY(bounds_get(m, schema, p, counts, &b));
    if (json_array_size(json_object_get(schema, "required")) < b.min) {
        return quire_schema_refuse(
            m, QUIRE_INVAL, p, "supported up to the number of required properties is", counts[0]);
    }
    if (json_object_size(json_object_get(schema, "properties")) > b.max) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "supported from the number of properties is",
                                   counts[1]);
    }
    if (!are_names(json_object_get(schema, "propertyNames"),
                   json_object_get(schema, "properties"))) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "beside properties there cannot be",
                                   "propertyNames");
    }
    return QUIRE_OK;
}

/* An object of unnamed properties: those of additionalProperties. */
static int map_add(schema_maker *m, const json_t *schema, const schema_place *p, quire_bytes *text)
{
    static const char *const counts[] = { "minProperties", "maxProperties" };
    const json_t *values = rest_of(schema);
    const json_t *names = json_object_get(schema, "propertyNames");
    const schema_place in_values = { p, "additionalProperties", SIZE_MAX, p->depth + 1 };
    const schema_place in_names = { p, "propertyNames", SIZE_MAX, p->depth + 1 };
    quire_bytes pair = { 0 }, more_text = { 0 };
    const uint32_t first = m->n_rules++, more = m->n_rules++;
    uint32_t rule = 0;
    schema_bounds b;

    QUIRE_TRY(bounds_get(m, schema, p, counts, &b));
    if (b.max == 0 || json_is_false(values)) {
        return b.min == 0 ? quire_bytes_addf(text, "\"{\" ws \"}\"")
                          : quire_schema_refuse(m, QUIRE_INVAL, p,
                                                "no property is allowed, but "
                                                "asked for by",
                                                counts[0]);
    }
    if (!json_is_object(values) && names == NULL && b.min == 0 && b.max == UINT32_MAX) {
        return quire_bytes_addf(text, "object");
    }
    if (json_is_object(values)) {
        QUIRE_TRY(quire_schema_node_make(m, values, &in_values, &rule));
    }
    QUIRE_TRY(names_add(m, names, &in_names, &pair));
    if (json_is_object(values)) {
        (void)quire_bytes_addf(&pair, " \":\" ws s-%" PRIu32, rule);
    } else {
        (void)quire_bytes_addf(&pair, " \":\" ws value");
    }
    QUIRE_TRY(quire_schema_rule_end(m, &pair, "s", first));
    (void)quire_bytes_addf(&more_text, "\",\" ws s-%" PRIu32, first);
    QUIRE_TRY(quire_schema_rule_end(m, &more_text, "s", more));
    (void)quire_bytes_addf(text, "\"{\" ws %ss-%" PRIu32, b.min == 0 ? "(" : "", first);
    if (b.max > 1) {
        (void)quire_bytes_addf(text, " s-%" PRIu32, more);
        times_add(text, b.min > 0 ? b.min - 1 : 0, b.max == UINT32_MAX ? b.max : b.max - 1);
    }
    return quire_bytes_addf(text, " ws%s \"}\"", b.min == 0 ? ")?" : "");
}

int quire_schema_object_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text)
{
    const json_t *required = json_object_get(schema, "required");
    uint32_t n, pair, first, k = 0;
    bool is_optional = true;
    json_t *properties, *value;
    const char *name;

    QUIRE_TRY(object_check(m, schema, p));
    QUIRE_TRY(required_name(m, &schema, p));
    properties = json_object_get(schema, "properties");
    n = (uint32_t)json_object_size(properties);
    pair = m->n_rules;
    first = m->n_rules + n;
    if (n == 0) {
        return map_add(m, schema, p, text);
    }
    QUIRE_TRY(named_count_check(m, schema, p));
    m->n_rules += 2 * n;
    QUIRE_TRY(pairs_make(m, schema, p, pair));
    QUIRE_TRY(members_make(m, schema, pair, first));
    /* The first property is an optional one, or the first required one. */
    (void)quire_bytes_addf(text, "\"{\" ws (");
    json_object_foreach(properties, name, value)
    {
        (void)quire_bytes_addf(text, "%s(s-%" PRIu32, k > 0 ? " | " : "", pair + k);
        if (k + 1 < n) {
            (void)quire_bytes_addf(text, " s-%" PRIu32, first + k + 1);
        }
        (void)quire_bytes_addf(text, " ws)");
        k++;
        if (is_listed(required, name)) {
            is_optional = false;
            break;
        }
    }
    return quire_bytes_addf(text, ")%s \"}\"", is_optional ? "?" : "");
}
