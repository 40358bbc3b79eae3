/* schema_graft_lists.c - lists of arguments, and the forms that are written without the library's
 * rules of arguments: as in Python, as Gemma 4, and between tags of fixed words.
 *
 * SPDX-License-Identifier: MIT */
#include "server/schema_graft_internal.h"

#include "base/check.h"
#include "server/regex_grammar.h"
#include "server/tool_schema.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GEMMA_QUOTE     "<|\"|>"
#define DEPTH_MAX       8    /* unions within unions */
#define GEMMA_ITEMS_MAX 2000 /* minItems, maxItems */

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
    return out->status < 0 ? out->status : rules->status;
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
        const bool is_kept = are_values ? json_is_string(member)
                                        : quire_tool_schema_may_be_text(t->parameters, member);

        if (is_kept && json_array_append_new(out, are_values ? json_incref(member)
                                                             : strings_of(t, member, depth + 1))) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

/* A schema that may be a string, of its strings alone. NULL: no memory, or too deep. */
static json_t *strings_of(const quire_graft_tool *t, const json_t *schema, int depth)
{
    static const char *const lists[] = { "anyOf", "oneOf", "enum" };
    const json_t *target = quire_tool_schema_resolve(t->parameters, schema);
    json_t *out = depth < DEPTH_MAX ? json_copy((json_t *)(uintptr_t)target) : NULL;

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

    if (!quire_tool_schema_may_be_text(t->parameters, schema)) {
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
    const json_t *resolved = quire_tool_schema_resolve(t->parameters, schema);
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

static int gemma_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out);

static int gemma_or_any_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    const int rc = gemma_add(t, schema, out);

    return rc == 0 ? quire_bytes_addf(out, "gemma4-value") : rc;
}

static int gemma_member_add(const quire_graft_tool *t, const quire_graft_style *style,
                            const char *name, const json_t *schema, quire_bytes *out)
{
    (void)style;
    (void)quire_grammar_literal_add(out, "", name);
    (void)quire_bytes_addf(out, " \":\" space ");
    return gemma_or_any_add(t, schema, out);
}

const quire_graft_style quire_graft_gemma = { .separator = "\",\" space",
                                              .member_add = gemma_member_add };

static int gemma_object_add(const quire_graft_tool *t, const json_t *object, quire_bytes *out)
{
    if (json_object_size(json_object_get(object, "properties")) == 0) {
        return quire_bytes_addf(out, "gemma4-dict") < 0 ? out->status : 1;
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
    quire_bytes rule = { 0 };
    int rc;

    (void)quire_bytes_addf(&rule, "args%u-%c" QUIRE_GRAFT_MARK, list, letter);
    rc = gemma_or_any_add(t, schema, &rule);
    (void)quire_bytes_addf(&rule, "\n");
    if (rc >= 0) {
        rc = quire_bytes_add(&t->g->rules, rule.data, rule.n);
    }
    quire_bytes_fini(&rule);
    return rc;
}

/* The first items, each with a schema of its own. */
static int gemma_tuple_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    const json_t *first = json_object_get(schema, "prefixItems");

    (void)quire_bytes_addf(out, "\"[\" space ");
    for (size_t i = 0; i < json_array_size(first); i++) {
        (void)quire_bytes_addf(out, "%s(", i == 0 ? "" : " \",\" space ");
        QUIRE_TRY(gemma_or_any_add(t, json_array_get(first, i), out));
        (void)quire_bytes_addf(out, ")");
    }
    QUIRE_TRY(quire_bytes_addf(out, " space \"]\""));
    return 1;
}

/* The items have a rule of their own, since the array names them twice. */
static int gemma_array_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    static const char *const counts[] = { "minItems", "maxItems", NULL };
    static const char *const others[] = { "uniqueItems", "contains", NULL };
    const json_int_t min = json_integer_value(json_object_get(schema, "minItems"));
    const json_t *most = json_object_get(schema, "maxItems");
    const json_int_t max = most != NULL ? json_integer_value(most) : GEMMA_ITEMS_MAX;
    const unsigned list = t->g->n_lists++;
    char bound[32] = "";

    QUIRE_TRY(quire_graft_refuse(t, schema, others));
    if (json_array_size(json_object_get(schema, "prefixItems")) > 0) {
        return gemma_tuple_add(t, schema, out);
    }
    if (min < 0 || min > max || max > GEMMA_ITEMS_MAX) {
        QUIRE_TRY(quire_graft_refuse(t, schema, counts));
        return 0;
    }
    if (max == 0) {
        return quire_bytes_addf(out, "\"[\" space \"]\"") < 0 ? out->status : 1;
    }
    QUIRE_TRY(gemma_rule_add(t, json_object_get(schema, "items"), list, 'i'));
    if (most != NULL) {
        (void)snprintf(bound, sizeof bound, "%lld", (long long)max - 1);
    }
    QUIRE_TRY(quire_bytes_addf(
        out, "\"[\" space (args%u-i (\",\" space args%u-i){%lld,%s} space)%s \"]\"", list, list,
        min > 1 ? (long long)min - 1 : 0, bound, min == 0 ? "?" : ""));
    return 1;
}

/* A copy of a schema in which a member of a union, or a type, takes the union's place; `member` is
 * taken. NULL: no memory. */
static json_t *chosen(const quire_graft_tool *t, const json_t *schema, const char *keyword,
                      json_t *member)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    const json_t *resolved = quire_tool_schema_resolve(t->parameters, member);

    if (copy != NULL && strcmp(keyword, "type") == 0) {
        (void)json_object_set(copy, "type", member);
    } else if (copy != NULL) {
        (void)json_object_del(copy, keyword);
        (void)json_object_update(copy, (json_t *)(uintptr_t)resolved);
    }
    return copy;
}

static int gemma_union_add(const quire_graft_tool *t, const json_t *schema, const char *keyword,
                           quire_bytes *out)
{
    json_t *members = json_object_get(schema, keyword);
    json_t *member;
    size_t i;

    json_array_foreach(members, i, member)
    {
        json_t *one = json_object_get(member, "$ref") != NULL
                          ? json_incref(member) /* it may go round: it has a rule */
                          : chosen(t, schema, keyword, member);
        int rc;

        QUIRE_FAIL_IF(one == NULL, QUIRE_NOMEM);
        (void)quire_bytes_addf(out, "%s", i == 0 ? "(" : " | ");
        rc = gemma_or_any_add(t, one, out);
        json_decref(one);
        QUIRE_TRY(rc);
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

/* The values of const or enum: strings in their quotes, others as JSON. */
static int gemma_values_add(const json_t *list, quire_bytes *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

        QUIRE_FAIL_IF(text == NULL, QUIRE_NOMEM);
        (void)quire_bytes_addf(out, "%s", i == 0 ? "(" : " | ");
        (void)quire_grammar_literal_add(out, json_is_string(value) ? GEMMA_QUOTE : "",
                                        json_is_string(value) ? json_string_value(value) : text);
        free(text);
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

/* A rule for each target of a $ref, so that it may contain itself. */
static int gemma_ref_add(const quire_graft_tool *t, const json_t *schema, const json_t *target,
                         quire_bytes *out)
{
    char key[QUIRE_GRAFT_RULE_BYTES];
    const json_t *known;
    unsigned list;

    (void)snprintf(key, sizeof key, "ref:%.64s:%.128s", t->function,
                   json_string_value(json_object_get(schema, "$ref")));
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
static int gemma_add(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    static const char *const unheld[] = { "allOf", "not", NULL };
    static const char *const unions[] = { "anyOf", "oneOf", "type" };
    const json_t *target = quire_tool_schema_resolve(t->parameters, schema);
    const json_t *one = json_object_get(schema, "const");

    if (!json_is_object(schema)) {
        return 0;
    }
    QUIRE_TRY(quire_graft_refuse(t, schema, unheld));
    if (target != schema) {
        return gemma_ref_add(t, schema, target, out);
    }
    if (one != NULL) {
        json_t *list = json_pack("[O]", one);
        const int rc = list != NULL ? gemma_values_add(list, out) : QUIRE_NOMEM;

        json_decref(list);
        return rc;
    }
    if (json_array_size(json_object_get(schema, "enum")) > 0) {
        return gemma_values_add(json_object_get(schema, "enum"), out);
    }
    for (size_t i = 0; i < sizeof unions / sizeof unions[0]; i++) {
        if (json_array_size(json_object_get(schema, unions[i])) > 0) {
            return gemma_union_add(t, schema, unions[i], out);
        }
    }
    return gemma_typed_add(t, schema, out);
}
