/* tool_schema.c - see tool_schema.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/tool_schema.h"

#include "base/check.h"
#include "quire/error.h"
#include "server/json_schema.h"
#include "server/library_schema.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REFS_MAX      8     /* $ref behind $ref */
#define REF_BYTES_MAX 1024u /* of a reference */
#define DEPTH_MAX     16    /* schemas within schemas */

typedef enum type_bit {
    TYPE_STRING = 1,
    TYPE_OBJECT = 2,
    TYPE_ARRAY = 4,
    TYPE_INTEGER = 8,
    TYPE_NUMBER = 16,
    TYPE_BOOLEAN = 32,
    TYPE_NULL = 64,
    TYPE_ANY = 127
} type_bit;

/* The first is preferred where a schema allows several. */
static const char *const type_names[] = { "string", "object",  "array", "integer",
                                          "number", "boolean", "null" };
#define N_TYPES (sizeof type_names / sizeof type_names[0])

bool quire_tool_schema_visit(quire_tool_root *root, size_t n)
{
    const unsigned left = QUIRE_TOOL_VISITS_MAX + 1 - root->n_visits;

    root->n_visits += n < left ? (unsigned)n : left;
    return root->n_visits <= QUIRE_TOOL_VISITS_MAX;
}

const json_t *quire_tool_schema_resolve(const quire_tool_root *root, const json_t *schema)
{
    for (int i = 0; i < REFS_MAX; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const json_t *target = ref != NULL && ref[0] == '#' && strlen(ref) <= REF_BYTES_MAX
                                   ? quire_schema_pointer_find(root->parameters, ref + 1)
                                   : NULL;

        if (target == NULL) {
            break;
        }
        schema = target;
    }
    return schema;
}

/* ---- types ---- */

static unsigned type_of_name(const char *name)
{
    for (size_t i = 0; name != NULL && i < N_TYPES; i++) {
        if (strcmp(name, type_names[i]) == 0) {
            return 1u << i;
        }
    }
    return TYPE_ANY;
}

static unsigned type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_NULL:
        return TYPE_NULL;
    default:
        return TYPE_BOOLEAN;
    }
}

/* The types of a list: values, or names of types. */
static unsigned types_of_list(const json_t *list, bool are_names)
{
    unsigned types = 0;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);

        types |= are_names ? type_of_name(json_string_value(item)) : type_of_value(item);
    }
    return types != 0 ? types : TYPE_ANY;
}

/* The types that the schema's own keywords allow. */
static unsigned own_types(const json_t *schema)
{
    static const struct {
        const char *keyword;
        unsigned types;
    } hints[] = {
        { "properties", TYPE_OBJECT }, { "items", TYPE_ARRAY },      { "prefixItems", TYPE_ARRAY },
        { "pattern", TYPE_STRING },    { "minLength", TYPE_STRING }, { "maxLength", TYPE_STRING },
        { "format", TYPE_STRING },
    };
    const json_t *type = json_object_get(schema, "type");

    if (json_object_get(schema, "const") != NULL) {
        return type_of_value(json_object_get(schema, "const"));
    }
    if (json_object_get(schema, "enum") != NULL) {
        return types_of_list(json_object_get(schema, "enum"), false);
    }
    if (type != NULL) {
        return json_is_array(type) ? types_of_list(type, true)
                                   : type_of_name(json_string_value(type));
    }
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        if (json_object_get(schema, hints[i].keyword) != NULL) {
            return hints[i].types;
        }
    }
    return TYPE_ANY;
}

static unsigned types_of(quire_tool_root *root, const json_t *schema, int depth)
{
    static const char *const unions[] = { "anyOf", "oneOf" };
    const json_t *all;
    unsigned types;

    schema = quire_tool_schema_resolve(root, schema);
    if (depth > DEPTH_MAX || !json_is_object(schema) ||
        !quire_tool_schema_visit(root, 1 + json_array_size(json_object_get(schema, "enum")) /
                                               QUIRE_TOOL_VISIT_VALUES)) {
        return TYPE_ANY;
    }
    types = own_types(schema);
    for (size_t u = 0; u < sizeof unions / sizeof unions[0]; u++) {
        const json_t *list = json_object_get(schema, unions[u]);
        unsigned members = 0;

        for (size_t i = 0; i < json_array_size(list) && members != TYPE_ANY; i++) {
            members |= types_of(root, json_array_get(list, i), depth + 1);
        }
        types &= members != 0 ? members : TYPE_ANY;
    }
    all = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(all) && types != 0; i++) {
        types &= types_of(root, json_array_get(all, i), depth + 1);
    }
    return types;
}

bool quire_tool_schema_may_be_text(quire_tool_root *root, const json_t *schema)
{
    const unsigned types = types_of(root, schema, 0);

    return types != TYPE_ANY && (types & TYPE_STRING) != 0;
}

/* ---- alternatives ---- */

/* Count a value and all within it. */
static bool visit_all(quire_tool_root *root, const json_t *value)
{
    bool is_left = quire_tool_schema_visit(root, 1);
    const char *name;
    json_t *member;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)value, name, member)
    {
        is_left = is_left && visit_all(root, member);
    }
    json_array_foreach(value, i, member)
    {
        is_left = is_left && visit_all(root, member);
    }
    return is_left;
}

/* Set a property; a second schema of one name is put together with the first by `keyword`, in one
 * list: their number is no depth. */
static int property_set(quire_tool_root *root, json_t *properties, const char *name, json_t *schema,
                        const char *keyword)
{
    json_t *other = json_object_get(properties, name);
    const json_t *before = json_object_size(other) == 1 ? json_object_get(other, keyword) : NULL;
    json_t *list;

    if (other == NULL || other == schema) {
        return json_object_set(properties, name, schema) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    }
    QUIRE_FAIL_IF(!visit_all(root, schema) ||
                      !quire_tool_schema_visit(root, json_array_size(before)),
                  QUIRE_LIMIT);
    if (json_equal(other, schema)) {
        return QUIRE_OK;
    }
    list = json_is_array(before) ? json_copy((json_t *)(uintptr_t)before) : json_pack("[O]", other);
    if (json_array_append(list, schema) != 0) {
        json_decref(list);
        return QUIRE_NOMEM;
    }
    return json_object_set_new(properties, name, json_pack("{s:o}", keyword, list)) == 0
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

static int properties_add(quire_tool_root *root, const json_t *from, json_t *out,
                          const char *keyword)
{
    json_t *properties = json_object_get(out, "properties");
    const char *name;
    json_t *schema;

    json_object_foreach((json_t *)(uintptr_t)json_object_get(from, "properties"), name, schema)
    {
        QUIRE_FAIL_IF(!quire_tool_schema_visit(root, 1), QUIRE_LIMIT);
        QUIRE_TRY(property_set(root, properties, name, schema, keyword));
    }
    return QUIRE_OK;
}

static int required_add(quire_tool_root *root, const json_t *from, json_t *out)
{
    json_t *names = json_object_get(from, "required");

    QUIRE_FAIL_IF(!quire_tool_schema_visit(root, json_array_size(names)), QUIRE_LIMIT);
    return !json_is_array(names) || json_array_extend(json_object_get(out, "required"), names) == 0
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

/* *choices = anyOf or oneOf of the schema, if there is one. A second one has properties that no
 * alternative would name. */
static int choices_find(const json_t *schema, const json_t **choices)
{
    static const char *const unions[] = { "anyOf", "oneOf" };

    for (size_t u = 0; u < sizeof unions / sizeof unions[0]; u++) {
        const json_t *list = json_object_get(schema, unions[u]);

        QUIRE_FAIL_IF(list != NULL && *choices != NULL && *choices != list, QUIRE_INVAL);
        *choices = list != NULL ? list : *choices;
    }
    return QUIRE_OK;
}

/* Add the properties and the required names of a schema and of the members of its allOf to `out`.
 * *choices: anyOf or oneOf, if there is one. */
static int gather(quire_tool_root *root, const json_t *schema, int depth, json_t *out,
                  const json_t **choices)
{
    const json_t *target = quire_tool_schema_resolve(root, schema);
    const json_t *all = json_object_get(schema, "allOf");

    QUIRE_FAIL_IF(depth > DEPTH_MAX || !quire_tool_schema_visit(root, 1), QUIRE_LIMIT);
    QUIRE_TRY(choices_find(schema, choices));
    QUIRE_TRY(properties_add(root, schema, out, "allOf"));
    QUIRE_TRY(required_add(root, schema, out));
    if (target != schema) {
        QUIRE_TRY(gather(root, target, depth + 1, out, choices));
    }
    for (size_t i = 0; i < json_array_size(all); i++) {
        QUIRE_TRY(gather(root, json_array_get(all, i), depth + 1, out, choices));
    }
    return QUIRE_OK;
}

static json_t *object_create(const json_t *root)
{
    static const char *const names[] = { "$defs", "definitions" };
    json_t *object = json_pack("{s:s, s:{}, s:[]}", "type", "object", "properties", "required");

    for (size_t i = 0; object != NULL && i < sizeof names / sizeof names[0]; i++) {
        json_t *defs = json_object_get(root, names[i]);

        if (defs != NULL && json_object_set(object, names[i], defs) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

/* Append the object of parameters with one member of their choices; NULL = without. */
static int alternative_add(quire_tool_root *root, const json_t *choice, const json_t **choices,
                           json_t *out)
{
    json_t *object = object_create(root->parameters);
    const json_t *inner = *choices != NULL ? json_null() : NULL; /* a choice within a choice */
    int rc = object != NULL && out != NULL ? QUIRE_OK : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        rc = gather(root, root->parameters, 0, object, choices);
    }
    if (rc == QUIRE_OK && choice != NULL) {
        rc = gather(root, choice, 0, object, &inner);
    }
    if (rc == QUIRE_OK && json_array_append(out, object) != 0) {
        rc = QUIRE_NOMEM;
    }
    json_decref(object);
    return rc;
}

int quire_tool_alternatives(quire_tool_root *root, json_t **out)
{
    json_t *list = json_array();
    const json_t *choices = NULL;
    int rc = alternative_add(root, NULL, &choices, list);
    const size_t n = json_array_size(choices);

    *out = NULL;
    if (rc == QUIRE_OK && n > QUIRE_TOOL_ALTERNATIVES_MAX) {
        rc = QUIRE_LIMIT;
    }
    if (rc == QUIRE_OK && n > 0) {
        (void)json_array_clear(list); /* the object without a choice */
    }
    for (size_t i = 0; i < n && rc == QUIRE_OK; i++) {
        rc = alternative_add(root, json_array_get(choices, i), &choices, list);
    }
    if (rc != QUIRE_OK) {
        json_decref(list);
        return rc;
    }
    *out = list;
    return QUIRE_OK;
}

/* ---- the plain form ---- */

static int make_plain(quire_tool_root *root, json_t *schema, int depth);

static int members_make_plain(quire_tool_root *root, json_t *schema, int depth)
{
    static const char *const objects[] = { "properties", "$defs", "definitions" };
    static const char *const arrays[] = { "anyOf", "oneOf", "allOf", "prefixItems" };
    const char *name;
    json_t *member;
    size_t i;

    for (size_t k = 0; k < sizeof objects / sizeof objects[0]; k++) {
        json_object_foreach(json_object_get(schema, objects[k]), name, member)
        {
            if (make_plain(root, member, depth + 1) != 0) {
                return -1;
            }
        }
    }
    for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
        json_array_foreach(json_object_get(schema, arrays[k]), i, member)
        {
            if (make_plain(root, member, depth + 1) != 0) {
                return -1;
            }
        }
    }
    return make_plain(root, json_object_get(schema, "items"), depth + 1);
}

/* Give a schema and those within one type each. */
static int make_plain(quire_tool_root *root, json_t *schema, int depth)
{
    const unsigned types = types_of(root, schema, 0);

    if (!json_is_object(schema) || depth > DEPTH_MAX) {
        return 0;
    }
    if (json_is_boolean(json_object_get(schema, "items"))) {
        json_t *first = json_array_get(json_object_get(schema, "prefixItems"), 0);

        if (json_object_set_new(schema, "items",
                                first != NULL ? json_deep_copy(first) : json_object()) != 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < N_TYPES; i++) {
        /* Any value: as an object, since it is written as JSON. */
        if (types == TYPE_ANY ? (1u << i) == TYPE_OBJECT : (types & (1u << i)) != 0) {
            if (json_object_set_new(schema, "type", json_string(type_names[i])) != 0) {
                return -1;
            }
            break;
        }
    }
    return members_make_plain(root, schema, depth);
}

/* An argument: a string, or a union beside its one type. */
static json_t *argument_plain(quire_tool_root *root, json_t *schema)
{
    json_t *copy = json_deep_copy(schema);
    json_t *text = json_object_get(schema, "description");

    if (copy == NULL || !json_is_object(schema) || make_plain(root, copy, 0) != 0) {
        return copy;
    }
    if (quire_tool_schema_may_be_text(root, schema)) {
        json_decref(copy);
        copy = json_pack("{s:s}", "type", "string");
        if (copy != NULL && text != NULL && json_object_set(copy, "description", text) != 0) {
            json_decref(copy);
            copy = NULL;
        }
    } else if (json_object_get(schema, "$ref") != NULL) {
        json_t *type = json_incref(json_object_get(copy, "type"));

        copy = json_pack("{s:[o], s:o}", "anyOf", copy, "type", type);
    }
    return copy;
}

/* Let the required names be those of both. */
static int required_meet(quire_tool_root *root, json_t *out, const json_t *other)
{
    json_t *names = json_object_get(out, "required");
    const json_t *list = json_object_get(other, "required");
    const size_t n_pairs = json_array_size(names) * json_array_size(list);

    QUIRE_FAIL_IF(!quire_tool_schema_visit(root, n_pairs / QUIRE_TOOL_VISIT_VALUES), QUIRE_LIMIT);
    for (size_t i = json_array_size(names); i-- > 0;) {
        bool is_both = false;

        for (size_t k = 0; k < json_array_size(list); k++) {
            is_both = is_both || json_equal(json_array_get(names, i), json_array_get(list, k));
        }
        if (!is_both) {
            (void)json_array_remove(names, i);
        }
    }
    return QUIRE_OK;
}

/* NULL, and the object is released. */
static json_t *without(json_t *object)
{
    json_decref(object);
    return NULL;
}

/* The plain properties with the other keywords of parameters; takes `plain`. */
static json_t *beside_the_rest(const json_t *parameters, json_t *plain)
{
    static const char *const replaced[] = { "$ref", "allOf", "anyOf", "oneOf" };
    json_t *out = json_copy((json_t *)(uintptr_t)parameters); /* jansson reads it alone */

    for (size_t i = 0; out != NULL && i < sizeof replaced / sizeof replaced[0]; i++) {
        (void)json_object_del(out, replaced[i]);
    }
    if (out == NULL || json_object_update(out, plain) != 0) {
        json_decref(out);
        out = NULL;
    }
    json_decref(plain);
    return out;
}

/* NULL: no memory, no properties to name, or too much work. */
static json_t *parameters_plain(const json_t *parameters)
{
    quire_tool_root root = { parameters, 0 };
    json_t *list = NULL;
    int rc = quire_tool_alternatives(&root, &list);
    json_t *out = json_incref(json_array_get(list, 0));
    json_t *properties = json_object_get(out, "properties");
    const char *name;
    json_t *schema;
    void *next;

    for (size_t i = 1; i < json_array_size(list) && rc == QUIRE_OK; i++) {
        rc = properties_add(&root, json_array_get(list, i), out, "anyOf");
        rc = rc == QUIRE_OK ? required_meet(&root, out, json_array_get(list, i)) : rc;
    }
    json_object_foreach_safe(properties, next, name, schema)
    {
        (void)json_object_set_new(properties, name, argument_plain(&root, schema));
    }
    json_decref(list);
    return rc == QUIRE_OK && json_object_size(properties) > 0 && quire_tool_schema_visit(&root, 0)
               ? beside_the_rest(parameters, out)
               : without(out);
}

char *quire_tools_plain(const char *tools)
{
    json_t *list = json_loads(tools, 0, NULL);
    char *text;
    json_t *tool;
    size_t i;

    json_array_foreach(list, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        json_t *parameters = json_object_get(function, "parameters");
        json_t *plain = json_object_size(parameters) > 0 ? parameters_plain(parameters) : NULL;

        if (plain != NULL || json_object_size(parameters) > 0) {
            (void)json_object_set_new(function, "parameters",
                                      quire_library_schema(plain != NULL ? plain : parameters));
        }
        json_decref(plain);
    }
    text = list != NULL ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    return text;
}
