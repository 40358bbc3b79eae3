/* json_schema_internal.h - construction of a grammar from a schema; for json_schema*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_JSON_SCHEMA_INTERNAL_H
#define QUIRE_SERVER_JSON_SCHEMA_INTERNAL_H

#include "server/json_schema.h"

#include <stdint.h>

/* The place of a schema: the steps from the root. */
typedef struct schema_place {
    const struct schema_place *above;
    const char *step; /* NULL at the root */
    size_t index;     /* index in a list; SIZE_MAX outside lists */
    uint32_t depth;
} schema_place;

typedef struct schema_maker {
    const json_t *root;
    quire_bytes *out;
    quire_error *err;
    uint32_t n_rules;
    const json_t *refs[QUIRE_SCHEMA_REFS_MAX]; /* targets: def-0 .. */
    const char *ref_names[QUIRE_SCHEMA_REFS_MAX];
    uint32_t n_refs;
} schema_maker;

/* Fill in the error: "json_schema, #/properties/x: <what> "<name>"". Returns status. */
int quire_schema_refuse(const schema_maker *m, int status, const schema_place *p, const char *what,
                        const char *name);

/* Append a value's JSON and `behind` as a literal of the grammar. Errors: QUIRE_NOMEM. */
int quire_schema_literal_add(const json_t *value, const char *behind, quire_bytes *text);

/* Make the rule of a schema, *rule is its number. */
int quire_schema_node_make(schema_maker *m, const json_t *schema, const schema_place *p,
                           uint32_t *rule);
/* Append rule name-number of this text to the grammar; frees text. */
int quire_schema_rule_end(schema_maker *m, quire_bytes *text, const char *name, uint32_t number);

/* Append the grammar of values of one type under a schema. Errors as
 * quire_json_schema_grammar(). */
int quire_schema_string_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text);
int quire_schema_array_add(schema_maker *m, const json_t *schema, const schema_place *p,
                           quire_bytes *text);
int quire_schema_object_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text);

#endif /* QUIRE_SERVER_JSON_SCHEMA_INTERNAL_H */
