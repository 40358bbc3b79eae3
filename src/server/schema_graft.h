/* schema_graft.h - the grammar of a chat format with our grammars of schemas in it.
 *
 * The library's grammar of a chat format contains the grammar of each tool's arguments, made by the
 * library, which passes over many keywords: bounds of numbers, formats, patterns without anchors,
 * multipleOf, allOf beside properties. So the rules of arguments are replaced by those of
 * json_schema.h, and rules that nothing refers to any more are left out.
 *
 * Some formats write arguments one by one: between tags (Qwen3-Coder, GLM, MiniMax, Kimi K3), as in
 * Python (LFM2), or in a notation of their own (Gemma 4). There each argument's rule is replaced,
 * or the list of all arguments. Formats of other kinds keep the library's grammar.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_SCHEMA_GRAFT_H
#define QUIRE_SERVER_SCHEMA_GRAFT_H

#include "base/bytes.h"
#include "quire/error.h"

/* Append to `out` the grammar with the schemas of tools (an array as in quire_chat_ask, or NULL)
 * and of the answer (JSON, or NULL) in place of the library's. Keywords of tools that are not known
 * constrain nothing; a schema beyond the limits of json_schema.h allows any object, and one that is
 * not supported for another reason leaves the library's rule. With "strict": true in its function
 * each of these is an error, and so is a keyword that the format cannot hold. Errors: QUIRE_INVAL,
 * QUIRE_LIMIT (a strict schema, or the answer's; err begins with "tools: "), QUIRE_NOMEM. */
int quire_schema_graft(const char *grammar, const char *tools, const char *schema, quire_bytes *out,
                       quire_error *err);

#endif /* QUIRE_SERVER_SCHEMA_GRAFT_H */
