/* json_schema_internal.h - construction of a grammar from a schema; for json_schema*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_JSON_SCHEMA_INTERNAL_H
#define QUIRE_SERVER_JSON_SCHEMA_INTERNAL_H

#include "server/json_schema.h"

#include <stdbool.h>
#include <stdint.h>

/* The place of a schema: the steps from the root. */
typedef struct schema_place {
    const struct schema_place *above;
    const char *step; /* NULL at the root */
    size_t index;     /* index in a list; SIZE_MAX outside lists */
    uint32_t depth;
} schema_place;

typedef struct schema_maker {
    const json_t *schema;
    const json_t *root; /* references are places in it; the schema itself, or one around it */
    quire_bytes *out;
    quire_error *err;
    bool skips_unknown; /* keywords and values that are not supported constrain nothing */
    uint32_t n_rules;
    const json_t *refs[QUIRE_SCHEMA_REFS_MAX]; /* targets: def-0 .. */
    const char *ref_names[QUIRE_SCHEMA_REFS_MAX];
    uint32_t n_refs;
    json_t *merged;    /* an array that owns the schemas made by quire_schema_merge() */
    size_t n_compared; /* values that merges have looked at */
    bool is_empty;     /* the last error: no value satisfies the schema */
} schema_maker;

typedef enum schema_keyword_kind {
    SCHEMA_KEYWORD_NOTE,  /* no constraint on values */
    SCHEMA_KEYWORD_TYPED, /* constrains values of one type */
    SCHEMA_KEYWORD_WHOLE, /* defines the schema alone */
    SCHEMA_KEYWORD_ALL    /* allOf: constraints besides the others */
} schema_keyword_kind;

/* The kind of a keyword, and in *type the type that it implies; false when it is unknown. */
bool quire_schema_keyword_find(const char *name, schema_keyword_kind *kind, const char **type);

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

/* Give a new schema, or NULL without memory, to the maker. Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_schema_keep(schema_maker *m, const schema_place *p, json_t *json, json_t **out);

/* A schema without allOf, and with $ref, anyOf, oneOf alone: keywords beside them are merged into
 * their schemas. *out belongs to the maker. Errors as quire_json_schema_grammar(). */
int quire_schema_merge(schema_maker *m, const json_t *schema, const schema_place *p,
                       const json_t **out);
/* The schema that a $ref names. Errors: QUIRE_INVAL. */
int quire_schema_ref_find(const schema_maker *m, const json_t *schema, const schema_place *p,
                          const json_t **target);

/* Append the grammar of a schema that one keyword defines: enum, const, anyOf, oneOf, $ref. */
int quire_schema_values_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text);
int quire_schema_choices_add(schema_maker *m, const json_t *schema, const schema_place *p,
                             const char *name, quire_bytes *text);
int quire_schema_ref_add(schema_maker *m, const json_t *schema, const schema_place *p,
                         quire_bytes *text);

/* Bounds of a count; max UINT32_MAX = none. */
typedef struct schema_bounds {
    uint32_t min, max;
} schema_bounds;

/* Append a string of a length. */
int quire_schema_length_add(const schema_bounds *length, quire_bytes *text);
/* Append a string under "pattern" or "format": the key, which the schema has. */
int quire_schema_pattern_add(schema_maker *m, const json_t *schema, const schema_place *p,
                             const char *key, const schema_bounds *length, quire_bytes *text);

/* Append the grammar of values of one type under a schema. Errors as
 * quire_json_schema_grammar(). */
int quire_schema_number_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            bool is_integer, quire_bytes *text);
int quire_schema_string_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text);
int quire_schema_array_add(schema_maker *m, const json_t *schema, const schema_place *p,
                           quire_bytes *text);
int quire_schema_object_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            quire_bytes *text);

#endif /* QUIRE_SERVER_JSON_SCHEMA_INTERNAL_H */
