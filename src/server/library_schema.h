/* library_schema.h - JSON Schemas in the form that the library of chat formats takes.
 *
 * The library makes a grammar of each schema of a chat, and schema_graft.h replaces that grammar by
 * ours. But the library refuses a request whose schema it cannot read: one with a boolean in the
 * place of a schema, with a reference that has escapes or names the whole document, or with a count
 * that is none. Such a place becomes a schema of any value here.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_LIBRARY_SCHEMA_H
#define QUIRE_SERVER_LIBRARY_SCHEMA_H

#include <jansson.h>

/* A copy of a schema in the library's form; no boolean, and not {}, which the library takes for no
 * schema. Memory: json_decref(). NULL: no memory. */
json_t *quire_library_schema(const json_t *schema);

#endif /* QUIRE_SERVER_LIBRARY_SCHEMA_H */
