/* schema_graft_lists.c - lists of arguments, and the forms that are written without the library's
 * rules of arguments: as in Python, as Gemma 4, and between tags of fixed words.
 *
 * SPDX-License-Identifier: MIT */
#include "server/schema_graft_internal.h"

#include "base/check.h"
#include "server/json_schema.h"
#include "server/regex_grammar.h"
#include "server/tool_schema.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GEMMA_QUOTE   "<|\"|>"
#define DEPTH_MAX     8 /* unions within unions */
#define GEMMA_NOTHING 2 /* of a union: no alternative */

/* ---- lists ---- */

static bool is_required(const json_t *object, const char *name)
{
    const json_t *list = json_object_get(object, "required");
    bool is_found = false;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *other = json_string_value(json_array_get(list, i));

        is_found = is_found || (other != NULL && strcmp(other, name) == 0);
    }
    return is_found;
}

/* Add a rule "args<list>-a<i>" for each member. */
static int members_add(const quire_graft_tool *t, const quire_graft_style *style,
                       const json_t *properties, unsigned list)
{
    const char *name;
    json_t *schema;
    unsigned i = 0;

    json_object_foreach((json_t *)(uintptr_t)properties, name, schema)
    {
        quire_bytes rule = { 0 };
        int rc;

        (void)quire_bytes_addf(&rule, "args%u-a%u" QUIRE_GRAFT_MARK, list, i++);
        rc = style->member_add(t, style, name, schema, &rule);
        (void)quire_bytes_addf(&rule, "\n");
        if (rc >= 0) {
            rc = quire_graft_room(t->g, rule.n);
        }
        if (rc >= 0) {
            rc = quire_bytes_add(&t->g->rules, rule.data, rule.n);
        }
        quire_bytes_fini(&rule);
        QUIRE_TRY(rc);
    }
    return QUIRE_OK;
}

int quire_graft_list(const quire_graft_tool *t, const quire_graft_style *style,
                     const json_t *object, quire_bytes *out)
{
    const json_t *properties = json_object_get(object, "properties");
    const unsigned list = t->g->n_lists++;
    quire_bytes *rules = &t->g->rules;
    bool has_required = false;
    unsigned i = 0, n_others = 0;
    const char *name;
    json_t *schema;

    QUIRE_TRY(quire_graft_visit(t, 1 + json_object_size(properties) *
                                           json_array_size(json_object_get(object, "required")) /
                                           QUIRE_TOOL_VISIT_VALUES));
    QUIRE_TRY(members_add(t, style, properties, list));
    json_object_foreach((json_t *)(uintptr_t)properties, name, schema)
    {
        if (is_required(object, name)) {
            (void)quire_bytes_addf(out, "%s args%u-a%u ", has_required ? style->separator : "",
                                   list, i);
            has_required = true;
        } else {
            /* -f: the first of the list is this one or a later one; -r: more of the list. */
            (void)quire_bytes_addf(rules, "args%u-f%u ::= args%u-a%u args%u-r%u | args%u-f%u\n",
                                   list, n_others, list, i, list, n_others + 1, list, n_others + 1);
            (void)quire_bytes_addf(rules, "args%u-r%u ::= (%s args%u-a%u)? args%u-r%u\n", list,
                                   n_others, style->separator, list, i, list, n_others + 1);
            n_others++;
        }
        i++;
    }
    (void)quire_bytes_addf(rules, "args%u-f%u ::= \"\"\nargs%u-r%u ::= \"\"\n", list, n_others,
                           list, n_others);
    (void)quire_bytes_addf(out, "args%u-%c0", list, has_required ? 'r' : 'f');
    QUIRE_TRY(out->status);
    QUIRE_TRY(rules->status);
    return quire_graft_room(t->g, out->n);
}

/* ---- as in Python ---- */

static json_t *strings_of(const quire_graft_tool *t, const json_t *schema, int depth);

/* The members of a list that are or may be strings: values, or schemas. NULL: no memory. */
static json_t *string_members(const quire_graft_tool *t, const json_t *list, bool are_values,
                              int depth)
{
    json_t *out = json_array();

    for (size_t i = 0; i < json_array_size(list) && out != NULL; i++) {
        json_t *member = json_array_get(list, i);
        const bool is_kept =
            are_values ? json_is_string(member) : quire_tool_schema_may_be_text(t->root, member);

        if (is_kept && json_array_append_new(out, are_values ? json_incref(member)
                                                             : strings_of(t, member, depth + 1))) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

/* A schema that may be a string, of its strings alone. NULL: no memory, or too deep, or too much
 * work. */
static json_t *strings_of(const quire_graft_tool *t, const json_t *schema, int depth)
{
    static const char *const lists[] = { "anyOf", "oneOf", "enum" };
    const json_t *target = quire_tool_schema_resolve(t->root, schema);
    const bool is_read =
        depth < DEPTH_MAX &&
        quire_tool_schema_visit(t->root, 1 + json_object_size(target) / 8 +
                                             json_array_size(json_object_get(target, "enum")) /
                                                 QUIRE_TOOL_VISIT_VALUES);
    json_t *out = is_read ? json_copy((json_t *)(uintptr_t)target) : NULL;

    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && out != NULL; i++) {
        const json_t *list = json_object_get(target, lists[i]);

        if (list != NULL &&
            json_object_set_new(out, lists[i], string_members(t, list, i == 2, depth)) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    if (out != NULL && json_is_array(json_object_get(out, "type"))) {
        (void)json_object_set_new(out, "type", json_string("string"));
    }
    return out;
}

/* A value that may be a string is one: the reader of calls takes no other. */
static int python_value_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    json_t *text;
    int rc;

    if (!quire_tool_schema_may_be_text(t->root, schema)) {
        return quire_graft_json(t, schema, out);
    }
    text = strings_of(t, schema, 0);
    rc = text != NULL ? quire_graft_json(t, text, out) : 0;
    json_decref(text);
    if (rc == 0) {
        text = json_pack("{s:s}", "type", "string");
        QUIRE_FAIL_IF(text == NULL, QUIRE_NOMEM);
        rc = quire_graft_json(t, text, out);
        json_decref(text);
    }
    return rc;
}

/* JSON is a part of the library's values of Python; so are the words of Python. */
static int python_member_add(const quire_graft_tool *t, const quire_graft_style *style,
                             const char *name, const json_t *schema, quire_bytes *out)
{
    const json_t *resolved = quire_tool_schema_resolve(t->root, schema);
    const char *type = json_string_value(json_object_get(resolved, "type"));
    size_t n;
    int rc;

    (void)style;
    (void)quire_grammar_literal_add(out, "", name);
    (void)quire_bytes_addf(out, " \"=\" (");
    rc = python_value_add(t, resolved, out);
    if (rc == 0) {
        rc = quire_graft_rule(t->g, "python-or-json-value", &n) != NULL
                 ? quire_bytes_addf(out, "python-or-json-value")
                 : quire_graft_any_json(t->g, out);
    }
    QUIRE_TRY(rc);
    if (type != NULL && strcmp(type, "boolean") == 0 &&
        json_object_get(resolved, "const") == NULL && json_object_get(resolved, "enum") == NULL) {
        (void)quire_bytes_addf(out, " | \"True\" | \"False\"");
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

const quire_graft_style quire_graft_python = { .separator = "\",\" space",
                                               .member_add = python_member_add };

/* ---- as Gemma 4 ---- */

/* The unions that begin with the value that is written now. A reference to one of them adds nothing
 * to it, and would be a left recursion of the grammar. */
typedef struct gemma_heads {
    const json_t *unions[QUIRE_SCHEMA_DEPTH_MAX];
    unsigned n;
} gemma_heads;

static int gemma_add(const quire_graft_tool *t, const json_t *schema, gemma_heads *heads,
                     quire_bytes *out);

/* A value, or GEMMA_NOTHING: a union of itself alone. 0: any. */
static int gemma_head_add(const quire_graft_tool *t, const json_t *schema, gemma_heads *heads,
                          quire_bytes *out)
{
    const unsigned n = json_object_get(schema, "$ref") == NULL ? 1 : 0; /* its target counts */
    int rc;

    QUIRE_TRY(quire_graft_visit(t, 1 + json_object_size(schema) / 8));
    QUIRE_TRY(quire_graft_room(t->g, out->n));
    if (t->g->depth == QUIRE_SCHEMA_DEPTH_MAX) {
        return !t->is_strict ? 0
                             : quire_error_set(&t->g->cause, QUIRE_LIMIT,
                                               "schemas within schemas: more than %u",
                                               QUIRE_SCHEMA_DEPTH_MAX);
    }
    t->g->depth += n;
    rc = gemma_add(t, schema, heads, out);
    t->g->depth -= n;
    return rc;
}

static int gemma_or_any_add(const quire_graft_tool *t, const json_t *schema, gemma_heads *heads,
                            quire_bytes *out)
{
    gemma_heads none = { .n = 0 };
    const int rc = gemma_head_add(t, schema, heads != NULL ? heads : &none, out);

    return rc == 0 || rc == GEMMA_NOTHING ? quire_bytes_addf(out, "gemma4-value") : rc;
}

static int gemma_member_add(const quire_graft_tool *t, const quire_graft_style *style,
                            const char *name, const json_t *schema, quire_bytes *out)
{
    (void)style;
    (void)quire_grammar_literal_add(out, "", name);
    (void)quire_bytes_addf(out, " \":\" space ");
    return gemma_or_any_add(t, schema, NULL, out);
}

const quire_graft_style quire_graft_gemma = { .separator = "\",\" space",
                                              .member_add = gemma_member_add };

static int gemma_object_add(const quire_graft_tool *t, const json_t *object, quire_bytes *out)
{
    static const char *const others[] = { "propertyNames", "minProperties", "maxProperties", NULL };
    static const char *const rest[] = { "additionalProperties", NULL };
    const json_t *more = json_object_get(object, "additionalProperties");

    QUIRE_TRY(quire_graft_refuse(t, object, others));
    if (json_object_size(json_object_get(object, "properties")) == 0) {
        if (json_object_size(more) > 0) {
            QUIRE_TRY(quire_graft_refuse(t, object, rest));
        }
        QUIRE_TRY(
            quire_bytes_addf(out, "%s", json_is_false(more) ? "\"{\" space \"}\"" : "gemma4-dict"));
        return 1;
    }
    (void)quire_bytes_addf(out, "\"{\" space ");
    QUIRE_TRY(quire_graft_list(t, &quire_graft_gemma, object, out));
    QUIRE_TRY(quire_bytes_addf(out, " space \"}\""));
    return 1;
}

/* Add a rule "args<list>-<letter>" of a value. */
static int gemma_rule_add(const quire_graft_tool *t, const json_t *schema, unsigned list,
                          char letter)
{
    gemma_heads heads = { .unions = { schema }, .n = 1 };
    quire_bytes rule = { 0 };
    int rc;

    (void)quire_bytes_addf(&rule, "args%u-%c" QUIRE_GRAFT_MARK, list, letter);
    rc = gemma_or_any_add(t, schema, &heads, &rule);
    (void)quire_bytes_addf(&rule, "\n");
    if (rc >= 0) {
        rc = quire_graft_room(t->g, rule.n);
    }
    if (rc >= 0) {
        rc = quire_bytes_add(&t->g->rules, rule.data, rule.n);
    }
    quire_bytes_fini(&rule);
    return rc;
}

/* The first items, each with a schema of its own, and no others. 0: another number is asked for. */
static int gemma_tuple_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    static const char *const counts[] = { "minItems", "maxItems", NULL };
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_int_t n = (json_int_t)json_array_size(first);
    json_int_t min, max;

    quire_graft_counts(schema, counts[0], counts[1], &min, &max);
    if (min > n || (max >= 0 && max < n)) { /* items beyond these, or fewer */
        QUIRE_TRY(quire_graft_refuse(t, schema, counts));
        return 0;
    }
    (void)quire_bytes_addf(out, "\"[\" space ");
    for (size_t i = 0; i < json_array_size(first); i++) {
        (void)quire_bytes_addf(out, "%s(", i == 0 ? "" : " \",\" space ");
        QUIRE_TRY(gemma_or_any_add(t, json_array_get(first, i), NULL, out));
        (void)quire_bytes_addf(out, ")");
    }
    QUIRE_TRY(quire_bytes_addf(out, " space \"]\""));
    return 1;
}

/* The items have a rule of their own, since the array names them twice. */
static int gemma_array_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    static const char *const others[] = { "uniqueItems", "contains", NULL };
    const unsigned list = t->g->n_lists++;
    json_int_t min, max;
    char bound[32] = "";

    QUIRE_TRY(quire_graft_refuse(t, schema, others));
    if (json_array_size(json_object_get(schema, "prefixItems")) > 0) {
        return gemma_tuple_add(t, schema, out);
    }
    quire_graft_counts(schema, "minItems", "maxItems", &min, &max);
    if (max == 0) {
        return quire_bytes_addf(out, "\"[\" space \"]\"") < 0 ? out->status : 1;
    }
    QUIRE_TRY(gemma_rule_add(t, json_object_get(schema, "items"), list, 'i'));
    if (max == 1) { /* a repetition of {0,0} is no grammar */
        QUIRE_TRY(quire_bytes_addf(out, "\"[\" space (args%u-i space)%s \"]\"", list,
                                   min == 0 ? "?" : ""));
        return 1;
    }
    if (max > 0) {
        (void)snprintf(bound, sizeof bound, "%lld", (long long)max - 1);
    }
    QUIRE_TRY(quire_bytes_addf(
        out, "\"[\" space (args%u-i (\",\" space args%u-i){%lld,%s} space)%s \"]\"", list, list,
        min > 1 ? (long long)min - 1 : 0, bound, min == 0 ? "?" : ""));
    return 1;
}

/* *out = a copy of a schema in which a member of a union, or a type, takes the union's place. */
static int chosen(const quire_graft_tool *t, const json_t *schema, const char *keyword,
                  json_t *member, json_t **out)
{
    const json_t *resolved = quire_tool_schema_resolve(t->root, member);
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    int rc;

    *out = copy;
    QUIRE_FAIL_IF(copy == NULL, QUIRE_NOMEM);
    if (strcmp(keyword, "type") == 0) {
        return json_object_set(copy, "type", member) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    }
    (void)json_object_del(copy, keyword);
    rc = quire_graft_put_into(t, copy, resolved);
    if (rc == 0) { /* not both: the member's keywords */
        (void)json_object_update(copy, (json_t *)(uintptr_t)resolved);
    }
    return rc < 0 ? rc : QUIRE_OK;
}

static bool is_union(const json_t *schema)
{
    return json_array_size(json_object_get(schema, "anyOf")) > 0 ||
           json_array_size(json_object_get(schema, "oneOf")) > 0;
}

static bool is_head(const gemma_heads *heads, const json_t *schema)
{
    unsigned i = 0;

    while (i < heads->n && heads->unions[i] != schema) {
        i++;
    }
    return i < heads->n;
}

/* One member of a union. A reference has a rule, since it may go round; one to a union is written
 * here, once. */
static int gemma_choice_add(const quire_graft_tool *t, const json_t *schema, const char *keyword,
                            json_t *member, gemma_heads *heads, quire_bytes *out)
{
    const json_t *target = quire_tool_schema_resolve(t->root, member);
    json_t *one = NULL;
    int rc = QUIRE_OK;

    if (target != member && is_union(target)) {
        if (is_head(heads, target)) {
            return GEMMA_NOTHING;
        }
        QUIRE_FAIL_IF(heads->n == QUIRE_SCHEMA_DEPTH_MAX,
                      t->is_strict ? quire_error_set(&t->g->cause, QUIRE_LIMIT,
                                                     "unions that begin with unions: more than %u",
                                                     QUIRE_SCHEMA_DEPTH_MAX)
                                   : 0);
        heads->unions[heads->n++] = target;
        return gemma_head_add(t, target, heads, out);
    }
    if (json_object_get(member, "$ref") != NULL) {
        one = json_incref(member);
    } else {
        rc = chosen(t, schema, keyword, member, &one);
    }
    if (rc == QUIRE_OK) {
        rc = gemma_head_add(t, one, heads, out);
    }
    json_decref(one);
    return rc;
}

static int gemma_union_add(const quire_graft_tool *t, const json_t *schema, const char *keyword,
                           gemma_heads *heads, quire_bytes *out)
{
    bool is_empty = true;
    json_t *member;
    size_t i;

    json_array_foreach(json_object_get(schema, keyword), i, member)
    {
        quire_bytes text = { 0 };
        int rc = quire_graft_visit(t, 1 + json_object_size(schema) / 8);

        if (rc == QUIRE_OK) {
            rc = gemma_choice_add(t, schema, keyword, member, heads, &text);
        }
        if (rc == 0) {
            rc = quire_bytes_addf(&text, "gemma4-value");
        }
        if (rc >= 0 && rc != GEMMA_NOTHING) {
            (void)quire_bytes_addf(out, "%s", is_empty ? "(" : " | ");
            rc = quire_bytes_add(out, text.data, text.n);
            is_empty = false;
        }
        quire_bytes_fini(&text);
        QUIRE_TRY(rc);
        QUIRE_TRY(quire_graft_room(t->g, out->n));
    }
    if (is_empty) {
        return GEMMA_NOTHING;
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

/* The values of const or enum that are of the schema's type: strings in their quotes, others as
 * JSON. 0: there are none. */
static int gemma_values_add(const json_t *list, const json_t *types, quire_bytes *out)
{
    bool is_empty = true;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        char *text;

        if (!quire_schema_is_of_types(value, types)) {
            continue;
        }
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        QUIRE_FAIL_IF(text == NULL, QUIRE_NOMEM);
        (void)quire_bytes_addf(out, "%s", is_empty ? "(" : " | ");
        (void)quire_grammar_literal_add(out, json_is_string(value) ? GEMMA_QUOTE : "",
                                        json_is_string(value) ? json_string_value(value) : text);
        free(text);
        is_empty = false;
    }
    if (is_empty) {
        return 0;
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

/* A rule for each target of a $ref, so that it may contain itself. */
static int gemma_ref_add(const quire_graft_tool *t, const json_t *target, quire_bytes *out)
{
    char key[32];
    const json_t *known;
    unsigned list;

    if (json_object_get(target, "$ref") != NULL) {
        return 0; /* it goes round */
    }
    (void)snprintf(key, sizeof key, "ref:%p", (const void *)target); /* the tools live on */
    known = json_object_get(t->g->index, key);
    list = known != NULL ? (unsigned)json_integer_value(known) : t->g->n_lists++;
    if (known == NULL) {
        QUIRE_FAIL_IF(json_object_set_new(t->g->index, key, json_integer(list)) != 0, QUIRE_NOMEM);
        QUIRE_TRY(gemma_rule_add(t, target, list, 'd'));
    }
    return quire_bytes_addf(out, "args%u-d", list) < 0 ? out->status : 1;
}

static bool is_of(const json_t *schema, const char *type, const char *keyword)
{
    const json_t *has = json_object_get(schema, "type");

    return has != NULL ? json_is_string(has) && strcmp(json_string_value(has), type) == 0
                       : keyword != NULL && json_object_get(schema, keyword) != NULL;
}

static int gemma_typed_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    static const char *const json_types[] = { "integer", "number", "boolean", "null" };
    int rc;

    for (size_t i = 0; i < sizeof json_types / sizeof json_types[0]; i++) {
        if (is_of(schema, json_types[i], NULL)) {
            return quire_graft_json(t, schema, out);
        }
    }
    if (is_of(schema, "array", "items") || is_of(schema, "array", "prefixItems")) {
        return gemma_array_add(t, schema, out);
    }
    if (is_of(schema, "object", "properties")) {
        return gemma_object_add(t, schema, out);
    }
    rc = quire_graft_text(t, schema, GEMMA_QUOTE, '<', out);
    if (rc == 0 && is_of(schema, "string", NULL)) {
        QUIRE_TRY(quire_bytes_addf(out, "gemma4-string"));
        rc = 1;
    }
    return rc;
}

/* Any value of Gemma 4's form. 0: any. */
static int gemma_add(const quire_graft_tool *t, const json_t *schema, gemma_heads *heads,
                     quire_bytes *out)
{
    static const char *const unheld[] = { "allOf", "not", NULL };
    static const char *const unions[] = { "anyOf", "oneOf", "type" };
    const json_t *target = quire_tool_schema_resolve(t->root, schema);
    const json_t *one = json_object_get(schema, "const");

    if (!json_is_object(schema)) {
        return 0;
    }
    QUIRE_TRY(quire_graft_refuse(t, schema, unheld));
    if (target != schema) {
        return gemma_ref_add(t, target, out);
    }
    if (one != NULL) {
        json_t *list = json_pack("[O]", one);
        const int rc = list != NULL ? gemma_values_add(list, json_object_get(schema, "type"), out)
                                    : QUIRE_NOMEM;

        json_decref(list);
        return rc;
    }
    if (json_array_size(json_object_get(schema, "enum")) > 0) {
        return gemma_values_add(json_object_get(schema, "enum"), json_object_get(schema, "type"),
                                out);
    }
    for (size_t i = 0; i < sizeof unions / sizeof unions[0]; i++) {
        if (json_array_size(json_object_get(schema, unions[i])) > 0) {
            return gemma_union_add(t, schema, unions[i], heads, out);
        }
    }
    return gemma_typed_add(t, schema, out);
}
