/* tool_schema.h - parameters of tools in a plain form.
 *
 * A format that writes arguments one by one needs to know them one by one, and of each whether it
 * is a text or JSON. The schema of parameters may hide both behind $ref, allOf and unions.
 *
 * Thread: any. All functions borrow their arguments and return new references.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_TOOL_SCHEMA_H
#define QUIRE_SERVER_TOOL_SCHEMA_H

#include <jansson.h>

#include <stdbool.h>

#define QUIRE_TOOL_ALTERNATIVES_MAX 16u /* of anyOf or oneOf at the top of parameters */

/* The schema behind $ref; a reference of a form other than "#/a/b" stays. Borrowed from root. */
const json_t *quire_tool_schema_resolve(const json_t *root, const json_t *schema);

/* Whether a value may be a string, and whether it may be nothing else. A schema that says nothing
 * of types allows any value. */
bool quire_tool_schema_may_be_text(const json_t *root, const json_t *schema);
bool quire_tool_schema_is_any(const json_t *root, const json_t *schema);

/* The objects that parameters may be, each with properties, required and definitions of its own:
 * one, or one for each member of anyOf or oneOf. NULL: no memory, or too many alternatives. */
json_t *quire_tool_alternatives(const json_t *parameters);

/* Tools (as in quire_chat_ask) for a template and a library that know simple schemas only: the
 * parameters name all properties, and each schema within has one type. An argument that may be a
 * string is one. Memory: free(). NULL: no memory, or no array. */
char *quire_tools_plain(const char *tools);

#endif /* QUIRE_SERVER_TOOL_SCHEMA_H */
