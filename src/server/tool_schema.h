/* tool_schema.h - parameters of tools in a plain form.
 *
 * A format that writes arguments one by one needs a list of the arguments. It writes strings as
 * plain text and all other values as JSON, so the list says for each argument which of the two
 * applies. The schema of parameters may hide names and types behind $ref, allOf and unions.
 *
 * Thread: any. All functions borrow their arguments and return new references.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_TOOL_SCHEMA_H
#define QUIRE_SERVER_TOOL_SCHEMA_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>

#define QUIRE_TOOL_ALTERNATIVES_MAX 16u    /* of anyOf or oneOf at the top of parameters */
#define QUIRE_TOOL_VISITS_MAX       20000u /* schemas of a tool; one counts each time it is read */
#define QUIRE_TOOL_VISIT_VALUES     64u    /* values or names that count as a schema */

/* The parameters of a tool, and the work that was done on them: references let a short schema have
 * more places than memory has bytes. */
typedef struct quire_tool_root {
    const json_t *parameters; /* borrowed; references are places in them */
    unsigned n_visits;
} quire_tool_root;

/* Count n schemas as read. false: more than QUIRE_TOOL_VISITS_MAX; the tool is too much work. */
bool quire_tool_schema_visit(quire_tool_root *root, size_t n);

/* The schema behind $ref; a reference that names no place in the parameters stays. Borrowed. */
const json_t *quire_tool_schema_resolve(const quire_tool_root *root, const json_t *schema);

/* Whether a value may be a string, in a schema that does not allow every type. A schema without
 * types allows every type, and so does a schema behind the last visit. */
bool quire_tool_schema_may_be_text(quire_tool_root *root, const json_t *schema);

/* *out = the objects that parameters may be, each with properties, required and definitions of its
 * own: one, or one for each member of anyOf or oneOf. Errors, with *out = NULL: QUIRE_INVAL
 * (several choices hold at once), QUIRE_LIMIT (too many alternatives or visits, or too deep),
 * QUIRE_NOMEM. */
int quire_tool_alternatives(quire_tool_root *root, json_t **out);

/* Tools (as in quire_chat_ask) for a template and a library that know simple schemas only: the
 * parameters name all properties, and each schema within has one type. An argument that may be a
 * string is one. A tool whose arguments are not known (quire_tool_alternatives()) stays as it is.
 * Memory: free(). NULL: no memory, or no array. */
char *quire_tools_plain(const char *tools);

#endif /* QUIRE_SERVER_TOOL_SCHEMA_H */
