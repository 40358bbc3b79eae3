/* json_schema.h - JSON Schemas as grammars.
 *
 * docs/server.md describes the supported subset. Other keywords are refused with their name and
 * place, because a client that asks for a constraint must not get a text without it. Each text of
 * the grammar is valid under the schema, but not conversely: properties come in the order of the
 * schema, unnamed properties come only in objects without named ones, white space and the digits of
 * numbers are bounded.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_JSON_SCHEMA_H
#define QUIRE_SERVER_JSON_SCHEMA_H

#include <jansson.h>

#include <stdbool.h>

#include "base/bytes.h"
#include "quire/error.h"

#define QUIRE_SCHEMA_DEPTH_MAX      32u      /* schemas within schemas */
#define QUIRE_SCHEMA_PROPERTIES_MAX 100u     /* of one object */
#define QUIRE_SCHEMA_VALUES_MAX     1000u    /* of enum, anyOf, oneOf */
#define QUIRE_SCHEMA_COUNT_MAX      2000u    /* minItems, maxItems */
#define QUIRE_SCHEMA_LENGTH_MAX     1000000u /* minLength, maxLength */
#define QUIRE_SCHEMA_REFS_MAX       256u     /* distinct targets */
#define QUIRE_SCHEMA_TYPES_MAX      7u       /* of one list */
#define QUIRE_SCHEMA_MERGES_MAX                                                                    \
    2000u                                  /* merged schemas: allOf, and keywords beside $ref      \
                                            */
#define QUIRE_SCHEMA_COMPARED_MAX 1000000u /* values and names that merges look at */

/* Append the grammar of a schema, in the syntax of quire_sampler_create(). Errors: QUIRE_INVAL (err
 * gives the place, "#/properties/name: ..."), QUIRE_LIMIT (a limit above, or of model/grammar.h),
 * QUIRE_NOMEM. */
int quire_json_schema_grammar(const json_t *schema, quire_bytes *gbnf, quire_error *err);
/* The same of a schema within another one, in which its references are places. is_known_only:
 * keywords, counts, patterns and formats that are not supported constrain nothing, and are no
 * error.
 */
int quire_json_schema_grammar_within(const json_t *root, const json_t *schema, bool is_known_only,
                                     quire_bytes *gbnf, quire_error *err);

/* The value at a JSON pointer (RFC 6901), "" = root; NULL: there is none. Characters may be written
 * as in a URI, %XX. Borrowed from root. */
const json_t *quire_schema_pointer_find(const json_t *root, const char *pointer);

/* Whether a value is of a type, or of one in a list; NULL = of any. */
bool quire_schema_is_of_types(const json_t *value, const json_t *types);

/* The regular expression of a string's "pattern" or "format". NULL: there is none, or its value is
 * no expression and no known format. Memory: the schema's, or static. */
const char *quire_schema_regex(const json_t *schema);

/* The grammar of any JSON object. Memory: static. */
const char *quire_json_object_grammar(void);

#endif /* QUIRE_SERVER_JSON_SCHEMA_H */
