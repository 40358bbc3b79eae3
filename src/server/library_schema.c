/* library_schema.c - see library_schema.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/library_schema.h"

#include "base/check.h"
#include "server/json_schema.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static json_t *any_value(void)
{
    return json_pack("{s:s}", "title", "any");
}

/* A choice that adds nothing to the others. */
static json_t *no_value(void)
{
    return json_pack("{s:[{s:s},{s:s}]}", "allOf", "type", "null", "type", "boolean");
}

/* A reference as the library follows it: step by step, without escapes. */
static bool is_plain_ref(const json_t *root, const char *ref)
{
    const json_t *target = ref != NULL && strncmp(ref, "#/", 2) == 0 && strpbrk(ref, "%~") == NULL
                               ? quire_schema_pointer_find(root, ref + 1)
                               : NULL;

    return json_is_object(target) || json_is_boolean(target);
}

static void refs_write(const json_t *root, json_t *schema)
{
    const json_t *ref = json_object_get(schema, "$ref");

    if (ref != NULL && !is_plain_ref(root, json_string_value(ref))) {
        (void)json_object_del(schema, "$ref");
    }
}

/* Bounds that the library could not hold in its integers. */
static void bounds_write(json_t *schema)
{
    static const char *const counts[] = { "minItems", "maxItems", "minLength", "maxLength" };
    static const char *const bounds[] = { "minimum", "maximum", "exclusiveMinimum",
                                          "exclusiveMaximum" };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const json_t *value = json_object_get(schema, counts[i]);
        const json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;

        if (value != NULL && (n < 0 || n > INT32_MAX)) {
            (void)json_object_del(schema, counts[i]);
        }
    }
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        const json_t *value = json_object_get(schema, bounds[i]);

        if (json_is_real(value) && !(fabs(json_real_value(value)) < 0x1p62)) {
            (void)json_object_del(schema, bounds[i]);
        }
    }
}

static int form_write(const json_t *root, json_t *schema, unsigned depth);

/* Member `key` of `object`: a schema, or a boolean. */
static int member_write(const json_t *root, json_t *object, const char *key, unsigned depth)
{
    json_t *schema = json_object_get(object, key);

    if (json_is_boolean(schema)) {
        return json_object_set_new(object, key, any_value()) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    }
    return form_write(root, schema, depth + 1);
}

static int map_write(const json_t *root, json_t *map, unsigned depth)
{
    const char *key;
    json_t *value;
    void *next;

    json_object_foreach_safe(map, next, key, value)
    {
        QUIRE_TRY(member_write(root, map, key, depth));
    }
    return QUIRE_OK;
}

/* References count the members, so each stays in its place. */
static int list_write(const json_t *root, json_t *list, bool are_choices, unsigned depth)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *schema = json_array_get(list, i);

        if (json_is_boolean(schema)) {
            json_t *form = are_choices && json_is_false(schema) ? no_value() : any_value();

            QUIRE_FAIL_IF(json_array_set_new(list, i, form) != 0, QUIRE_NOMEM);
        } else {
            QUIRE_TRY(form_write(root, schema, depth + 1));
        }
    }
    return QUIRE_OK;
}

/* Definitions deeper than other schemas can be are not used, and stay. */
static int form_write(const json_t *root, json_t *schema, unsigned depth)
{
    static const char *const maps[] = { "properties", "$defs", "definitions" };
    static const char *const choices[] = { "anyOf", "oneOf" };
    static const char *const lists[] = { "prefixItems", "allOf" };

    if (!json_is_object(schema) || depth > QUIRE_SCHEMA_DEPTH_MAX) {
        return QUIRE_OK;
    }
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        QUIRE_TRY(map_write(root, json_object_get(schema, maps[i]), depth));
    }
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        QUIRE_TRY(list_write(root, json_object_get(schema, choices[i]), true, depth));
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        QUIRE_TRY(list_write(root, json_object_get(schema, lists[i]), false, depth));
    }
    if (json_is_array(json_object_get(schema, "items"))) {
        QUIRE_TRY(list_write(root, json_object_get(schema, "items"), false, depth));
    } else if (json_is_false(json_object_get(schema, "items")) &&
               json_object_get(schema, "prefixItems") != NULL) {
        (void)json_object_del(schema, "items"); /* would hide the first ones */
    } else {
        QUIRE_TRY(member_write(root, schema, "items", depth));
    }
    QUIRE_TRY(member_write(root, schema, "propertyNames", depth));
    refs_write(root, schema);
    bounds_write(schema);
    return form_write(root, json_object_get(schema, "additionalProperties"), depth + 1);
}

json_t *quire_library_schema(const json_t *schema)
{
    const bool is_any = json_is_boolean(schema) || json_object_size(schema) == 0;
    json_t *copy = is_any ? any_value() : json_deep_copy(schema);

    if (copy != NULL && form_write(schema, copy, 0) < 0) {
        json_decref(copy);
        copy = NULL;
    }
    return copy;
}
