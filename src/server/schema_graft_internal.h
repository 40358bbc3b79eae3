/* schema_graft_internal.h - rules that replace the library's; for schema_graft*.c only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_SCHEMA_GRAFT_INTERNAL_H
#define QUIRE_SERVER_SCHEMA_GRAFT_INTERNAL_H

#include "server/schema_graft.h"
#include "server/tool_schema.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>

#define QUIRE_GRAFT_MARK       " ::= "
#define QUIRE_GRAFT_ROOT_BYTES 64u
#define QUIRE_GRAFT_RULE_BYTES 224u

typedef struct quire_graft {
    const char *grammar; /* the library's */
    json_t *index;       /* name of a rule of the library -> place of its text in the grammar */
    quire_bytes rules;   /* all rules, also unused ones */
    json_t *roots; /* name of a rule of the library -> the text that replaces its own; null = two
                      schemas have this name */
    bool has_shared;
    unsigned n_schemas, n_lists; /* rules of ours so far, by kind */
    unsigned depth;              /* schemas within schemas, in Gemma 4's form */
    size_t n_texts;              /* bytes of texts in roots */
    quire_error cause;           /* of the last schema */
} quire_graft;

/* The next name of a rule in a text of a grammar, at or behind `at`; NULL = none. *n: its bytes. */
const char *quire_graft_name(const char *at, const char *end, size_t *n);

/* The text of a rule of the library; NULL = none. *n: its bytes. */
const char *quire_graft_rule(const quire_graft *g, const char *name, size_t *n);

/* Append to the string `out` the library's name for a text, and `behind`: each run of characters
 * other than letters, digits and '-' becomes one '-'. A name that does not fit becomes "", which no
 * rule has. */
void quire_graft_rule_name(const char *text, const char *behind, char *out, size_t size);

/* Replace a rule of the library; the second time the library's stays. Errors: QUIRE_NOMEM. */
int quire_graft_replace(quire_graft *g, const char *rule, const char *text);

/* QUIRE_LIMIT, with g->cause, when our rules and n further bytes are more than a grammar may have.
 */
int quire_graft_room(quire_graft *g, size_t n);

/* Add the rules of a schema whose references are places in `whole`; root: the name of the first.
 * is_known_only: keywords that are not known constrain nothing. Errors:
 * quire_json_schema_grammar(), with g->cause. */
int quire_graft_schema(quire_graft *g, const json_t *whole, const json_t *schema,
                       bool is_known_only, char root[QUIRE_GRAFT_ROOT_BYTES]);

/* Append the name of the rule of any JSON value. */
int quire_graft_any_json(quire_graft *g, quire_bytes *out);

/* A function, or one of the alternatives of its parameters. */
typedef struct quire_graft_tool {
    quire_graft *g;
    const char *function;
    quire_tool_root *root;
    const json_t *parameters; /* an object of quire_tool_alternatives() */
    bool is_strict;
} quire_graft_tool;

/* ---- values: 1 = appended, 0 = the library's rule stays, or an error; schema_graft_text.c ---- */

/* A value as JSON. */
int quire_graft_json(const quire_graft_tool *t, const json_t *schema, quire_bytes *out);

/* A string without escapes between two quotes of its own, which may be "". Of a union the strings
 * alone. Lengths hold for texts without the character `stop`. 0: any text. */
int quire_graft_text(const quire_graft_tool *t, const json_t *schema, const char *quote, char stop,
                     quire_bytes *out);

/* Put the keywords of a schema into another that holds as well: common values, the stricter length.
 * 0: two of them cannot be put together, and `into` has some. */
int quire_graft_put_into(const quire_graft_tool *t, json_t *into, const json_t *from);

/* Append the name of a rule: any text up to the first `tag`, and the tag. */
int quire_graft_until(quire_graft *g, const char *tag, quire_bytes *out);

/* The bounds of a count, at most QUIRE_SCHEMA_COUNT_MAX. *max = -1: there is none. A value that is
 * no such count bounds nothing, nor does a pair that no number keeps to. */
void quire_graft_counts(const json_t *schema, const char *least, const char *most, json_int_t *min,
                        json_int_t *max);

/* Count n schemas as read. Errors: QUIRE_LIMIT, with g->cause, of a tool with too many. */
int quire_graft_visit(const quire_graft_tool *t, size_t n);

/* Of a strict function: refuse keywords that the format cannot hold. */
int quire_graft_refuse(const quire_graft_tool *t, const json_t *schema,
                       const char *const *keywords);

/* ---- lists of arguments: schema_graft_lists.c ---- */

/* How a format writes the arguments of a call, or the members of an object. */
typedef struct quire_graft_style {
    const char *separator;                  /* as a text of the grammar */
    const char *open, *behind_name, *close; /* texts around name and value, or NULL */
    /* Append a member with its name. */
    int (*member_add)(const quire_graft_tool *t, const struct quire_graft_style *style,
                      const char *name, const json_t *schema, quire_bytes *out);
} quire_graft_style;

/* Append the members of an object, in this order: the required ones, and any of the others. */
int quire_graft_list(const quire_graft_tool *t, const quire_graft_style *style,
                     const json_t *object, quire_bytes *out);

extern const quire_graft_style quire_graft_python, quire_graft_gemma;

/* Replace the rules of a function whose arguments a format writes one by one: schema_graft_tags.c.
 * alternatives: of quire_tool_alternatives(); t has the first. Errors: QUIRE_LIMIT, QUIRE_NOMEM,
 * and of a strict function QUIRE_INVAL, with g->cause. */
int quire_graft_tags(const quire_graft_tool *t, const json_t *alternatives);

#endif /* QUIRE_SERVER_SCHEMA_GRAFT_INTERNAL_H */
