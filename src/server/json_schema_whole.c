/* json_schema_whole.c - keywords that define a schema alone: enum, const, anyOf, oneOf, $ref.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_schema_internal.h"

#include "base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define POINTER_STEP_BYTES 256u

/* Whether a number is an integer, in any notation. */
static bool is_whole(const json_t *value)
{
    return json_is_integer(value) ||
           (json_is_real(value) && floor(json_real_value(value)) == json_real_value(value));
}

static bool is_of_type(const json_t *value, const char *type)
{
    return (json_is_object(value) && strcmp(type, "object") == 0) ||
           (json_is_array(value) && strcmp(type, "array") == 0) ||
           (json_is_string(value) && strcmp(type, "string") == 0) ||
           (json_is_boolean(value) && strcmp(type, "boolean") == 0) ||
           (json_is_null(value) && strcmp(type, "null") == 0) ||
           (json_is_number(value) && strcmp(type, "number") == 0) ||
           (is_whole(value) && strcmp(type, "integer") == 0);
}

bool quire_schema_is_of_types(const json_t *value, const json_t *types)
{
    if (types == NULL || json_is_string(types)) {
        return types == NULL || is_of_type(value, json_string_value(types));
    }
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));

        if (type != NULL && is_of_type(value, type)) {
            return true;
        }
    }
    return false;
}

/* A list of 1 to QUIRE_SCHEMA_VALUES_MAX. */
static int list_check(const schema_maker *m, const json_t *list, const schema_place *p,
                      const char *name)
{
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a list with something in it is", name);
    }
    if (json_array_size(list) > QUIRE_SCHEMA_VALUES_MAX) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "more than 1000 values has", name);
    }
    return QUIRE_OK;
}

int quire_schema_values_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text)
{
    const json_t *only = json_object_get(schema, "const");
    const json_t *list = json_object_get(schema, "enum");
    const json_t *types = json_object_get(schema, "type");
    const char *between = "";

    if (only == NULL) {
        QUIRE_TRY(list_check(m, list, p, "enum"));
    }
    if (json_array_size(types) > QUIRE_SCHEMA_TYPES_MAX) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "neither a type nor a list of types is",
                                   "type");
    }
    for (size_t i = 0; i < (only != NULL ? 1 : json_array_size(list)); i++) {
        const json_t *value = only != NULL ? only : json_array_get(list, i);

        if (quire_schema_is_of_types(value, types)) {
            (void)quire_bytes_addf(text, "%s", between);
            QUIRE_TRY(quire_schema_literal_add(value, "", text));
            between = " | ";
        }
    }
    return between[0] != '\0'
               ? QUIRE_OK
               : quire_schema_refuse(m, QUIRE_INVAL, p, "no value is of the", "type");
}

int quire_schema_choices_add(schema_maker *m, const json_t *schema, const schema_place *p,
                             const char *name, quire_bytes *text)
{
    const json_t *list = json_object_get(schema, name);
    const size_t n_before = text->n;

    QUIRE_TRY(list_check(m, list, p, name));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const schema_place below = { p, name, i, p->depth + 1 };
        uint32_t rule;

        if (json_is_false(json_array_get(list, i))) {
            continue; /* a choice that no value satisfies */
        }
        QUIRE_TRY(quire_schema_node_make(m, json_array_get(list, i), &below, &rule));
        (void)quire_bytes_addf(text, "%ss-%" PRIu32, text->n > n_before ? " | " : "", rule);
    }
    if (text->status == QUIRE_OK && text->n == n_before) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "no value satisfies", name);
    }
    return text->status;
}

/* Copy one step of a JSON pointer (RFC 6901) without its escapes. Returns where the next step
 * begins; NULL when the step is too long. */
static const char *pointer_step(const char *from, char *step, size_t size)
{
    size_t n = 0;

    for (; *from != '\0' && *from != '/'; from++) {
        if (n + 1 == size) {
            return NULL;
        }
        if (from[0] == '~' && (from[1] == '0' || from[1] == '1')) {
            from++;
            step[n++] = *from == '0' ? '~' : '/';
        } else {
            step[n++] = *from;
        }
    }
    step[n] = '\0';
    return from;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The member of an object with the name of a step. A pointer within a URI writes some characters as
 * %XX (RFC 6901, 6); a name as it stands comes first. */
static json_t *member_find(const json_t *object, char *step)
{
    json_t *member = json_object_get(object, step);
    char *to = step;

    for (const char *from = step; member == NULL && *from != '\0'; from++, to++) {
        const int high = from[0] == '%' ? hex_digit(from[1]) : -1;
        const int low = high >= 0 ? hex_digit(from[2]) : -1;

        *to = low >= 0 ? (char)(16 * high + low) : *from;
        from += low >= 0 ? 2 : 0;
    }
    if (member == NULL) {
        *to = '\0';
        member = json_object_get(object, step);
    }
    return member;
}

const json_t *quire_schema_pointer_find(const json_t *root, const char *pointer)
{
    const json_t *at = root;
    char step[POINTER_STEP_BYTES];

    while (pointer != NULL && *pointer == '/' && at != NULL) {
        pointer = pointer_step(pointer + 1, step, sizeof step);
        if (pointer == NULL) {
            return NULL;
        }
        if (json_is_array(at)) {
            char *end;
            const unsigned long i = strtoul(step, &end, 10);

            at = step[0] >= '0' && step[0] <= '9' && *end == '\0' ? json_array_get(at, i) : NULL;
        } else {
            at = member_find(at, step);
        }
    }
    return pointer != NULL && *pointer == '\0' ? at : NULL;
}

int quire_schema_ref_find(const schema_maker *m, const json_t *schema, const schema_place *p,
                          const json_t **target)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));

    *target = NULL;
    if (ref == NULL) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a string is", "$ref");
    }
    if (ref[0] == '#') {
        *target = quire_schema_pointer_find(m->root, ref + 1);
    }
    return *target != NULL
               ? QUIRE_OK
               : quire_schema_refuse(m, QUIRE_INVAL, p,
                                     "neither # nor a place in this schema is the $ref", ref);
}

int quire_schema_ref_add(schema_maker *m, const json_t *schema, const schema_place *p,
                         quire_bytes *text)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target;
    uint32_t i = 0;

    QUIRE_TRY(quire_schema_ref_find(m, schema, p, &target));
    while (i < m->n_refs && m->refs[i] != target) {
        i++;
    }
    if (i == QUIRE_SCHEMA_REFS_MAX) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "more than 256 different ones: the $ref",
                                   ref);
    }
    if (i == m->n_refs) {
        m->refs[i] = target;
        m->ref_names[i] = ref[1] != '\0' ? ref + 2 : ref;
        m->n_refs++;
    }
    return quire_bytes_addf(text, "def-%" PRIu32, i);
}
