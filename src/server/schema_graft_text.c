/* schema_graft_text.c - values in calls: JSON, and texts without quotes and escapes.
 *
 * Between tags a text has no quotes and no escapes, so enum, const, pattern and format of strings
 * become texts of the grammar. A length holds by leaving out the character with which the tag
 * begins, and blanks at both ends, which some readers drop.
 *
 * SPDX-License-Identifier: MIT */
#include "server/schema_graft_internal.h"

#include "base/check.h"
#include "model/grammar.h"
#include "server/json_schema.h"
#include "server/regex_grammar.h"
#include "server/tool_schema.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX     8     /* unions within unions */
#define FAILED_VISITS 100u  /* work on a schema of JSON that has no grammar */
#define LIMIT_VISITS  2000u /* on one beyond the limits */
#define TAG_BYTES_MAX 256u

int quire_graft_visit(const quire_graft_tool *t, size_t n)
{
    return quire_tool_schema_visit(t->root, n)
               ? QUIRE_OK
               : quire_error_set(&t->g->cause, QUIRE_LIMIT,
                                 "its schemas are read more than %u times: references in unions",
                                 QUIRE_TOOL_VISITS_MAX);
}

static json_int_t count_of(const json_t *schema, const char *keyword, json_int_t none)
{
    const json_t *value = json_object_get(schema, keyword);
    const json_int_t n = json_integer_value(value);

    return json_is_integer(value) && n >= 0 && n <= QUIRE_SCHEMA_COUNT_MAX ? n : none;
}

void quire_graft_counts(const json_t *schema, const char *least, const char *most, json_int_t *min,
                        json_int_t *max)
{
    *min = count_of(schema, least, 0);
    *max = count_of(schema, most, -1);
    if (*max >= 0 && *min > *max) {
        *min = 0;
        *max = -1;
    }
}

int quire_graft_refuse(const quire_graft_tool *t, const json_t *schema, const char *const *keywords)
{
    for (; *keywords != NULL && t->is_strict; keywords++) {
        if (json_object_get(schema, *keywords) != NULL) {
            return quire_error_set(&t->g->cause, QUIRE_INVAL,
                                   "the model's form of calls cannot hold the keyword \"%s\"",
                                   *keywords);
        }
    }
    return QUIRE_OK;
}

/* ---- JSON ---- */

/* An error, or 0 when a schema that is not supported may stay with the library. */
static int stays(const quire_graft_tool *t, int rc)
{
    return t->is_strict || rc == QUIRE_NOMEM ? rc : 0;
}

int quire_graft_json(const quire_graft_tool *t, const json_t *schema, quire_bytes *out)
{
    char root[QUIRE_GRAFT_ROOT_BYTES];
    int rc;

    if (!json_is_object(schema)) {
        return 0;
    }
    QUIRE_TRY(quire_graft_visit(t, 1));
    rc = quire_graft_schema(t->g, t->root->parameters, schema, !t->is_strict, root);
    if (rc < 0) {
        (void)quire_tool_schema_visit(t->root, rc == QUIRE_LIMIT ? LIMIT_VISITS : FAILED_VISITS);
        return stays(t, rc);
    }
    QUIRE_TRY(quire_bytes_addf(out, "%s", root));
    return 1;
}

/* ---- texts ---- */

/* The alternatives of a text so far. */
typedef struct text_list {
    const char *quote;
    char stop;
    unsigned n;
    quire_bytes *out;
} text_list;

static void alternative_begin(text_list *list)
{
    (void)quire_bytes_addf(list->out, "%s", list->n++ == 0 ? "(" : " | ");
}

/* The strings of a list of values. */
static int choices_add(text_list *list, const json_t *values)
{
    for (size_t i = 0; i < json_array_size(values); i++) {
        const char *text = json_string_value(json_array_get(values, i));

        if (text != NULL) {
            alternative_begin(list);
            (void)quire_grammar_literal_add(list->out, list->quote, text);
        }
    }
    return list->out->status < 0 ? list->out->status : 1;
}

static int regex_add(const quire_graft_tool *t, text_list *list, const char *regex)
{
    static const quire_regex_opts opts = { .is_json = false };
    quire_regex_result result;
    quire_bytes text = { 0 };
    int rc = quire_graft_visit(t, strlen(regex) / QUIRE_TOOL_VISIT_VALUES);

    QUIRE_TRY(rc);
    rc = quire_regex_grammar(regex, &opts, &text, &result);

    if (rc == QUIRE_OK) {
        alternative_begin(list);
        (void)quire_grammar_literal_add(list->out, "", list->quote);
        (void)quire_bytes_addf(list->out, " ");
        (void)quire_bytes_add(list->out, text.data, text.n);
        (void)quire_bytes_addf(list->out, " ");
        (void)quire_grammar_literal_add(list->out, "", list->quote);
    }
    quire_bytes_fini(&text);
    QUIRE_TRY(list->out->status);
    return rc < 0 ? stays(t, rc) : 1;
}

/* Append the characters of a text of min to max (-1 = any number) characters, not 0. */
static void length_add(text_list *list, json_int_t min, json_int_t max)
{
    const char *escape = strchr("]\\^-", list->stop) != NULL ? "\\" : "";
    char any[16], end[32];
    const json_int_t rest = min > 2 ? min - 2 : 0;

    (void)snprintf(any, sizeof any, "[^%s%c]", escape, list->stop);
    (void)snprintf(end, sizeof end, "[^%s%c \\t\\n\\r]", escape, list->stop);
    if (max == 1) {
        (void)quire_bytes_addf(list->out, "%s%s", end, min == 0 ? "?" : "");
    } else if (max == 2) { /* a repetition of {0,0} is no grammar */
        (void)quire_bytes_addf(list->out, "(%s %s%s)%s", end, end, min < 2 ? "?" : "",
                               min == 0 ? "?" : "");
    } else if (max > 0) {
        (void)quire_bytes_addf(list->out, "(%s %s%s{%lld,%lld} %s%s)%s", end, min < 2 ? "(" : "",
                               any, (long long)rest, (long long)max - 2, end, min < 2 ? ")?" : "",
                               min == 0 ? "?" : "");
    } else {
        (void)quire_bytes_addf(list->out, "%s %s%s{%lld,} %s%s", end, min < 2 ? "(" : "", any,
                               (long long)rest, end, min < 2 ? ")?" : "");
    }
}

/* 0: the schema has no lengths that can be held. */
static int lengths_add(text_list *list, const json_t *schema)
{
    json_int_t min, max;

    quire_graft_counts(schema, "minLength", "maxLength", &min, &max);
    if (min == 0 && max < 0) {
        return 0;
    }
    alternative_begin(list);
    (void)quire_grammar_literal_add(list->out, "", list->quote);
    (void)quire_bytes_addf(list->out, " ");
    if (max != 0) {
        length_add(list, min, max);
    }
    (void)quire_bytes_addf(list->out, " ");
    QUIRE_TRY(quire_grammar_literal_add(list->out, "", list->quote));
    return 1;
}

static int text_add(const quire_graft_tool *t, text_list *list, const json_t *schema, int depth);

/* The values of const or enum as a list. Memory: json_decref(). NULL: there are none. */
static json_t *values_of(const json_t *schema)
{
    json_t *one = json_object_get(schema, "const");

    return one != NULL ? json_pack("[O]", one) : json_incref(json_object_get(schema, "enum"));
}

/* Let enum be the values that two schemas have in common. */
static int values_meet(const quire_graft_tool *t, json_t *into, const json_t *from)
{
    json_t *a = values_of(into), *b = values_of(from);
    json_t *common = a != NULL && b != NULL ? json_array() : json_incref(a != NULL ? a : b);
    int rc =
        quire_graft_visit(t, json_array_size(a) * json_array_size(b) / QUIRE_TOOL_VISIT_VALUES);

    for (size_t i = 0; i < json_array_size(a) && b != NULL && rc == QUIRE_OK; i++) {
        bool is_common = false;

        for (size_t k = 0; k < json_array_size(b) && !is_common; k++) {
            is_common = json_equal(json_array_get(a, i), json_array_get(b, k));
        }
        if (is_common && json_array_append(common, json_array_get(a, i)) != 0) {
            rc = QUIRE_NOMEM;
        }
    }
    if (rc == QUIRE_OK && common != NULL) {
        (void)json_object_del(into, "const");
        rc = json_object_set(into, "enum", common) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    }
    json_decref(a);
    json_decref(b);
    json_decref(common);
    return rc;
}

static bool has_string(const json_t *types)
{
    const json_t *text = json_string_value(types) != NULL ? types : NULL;
    bool is_found = text != NULL && strcmp(json_string_value(text), "string") == 0;

    for (size_t i = 0; i < json_array_size(types); i++) {
        text = json_array_get(types, i);
        is_found =
            is_found || (json_is_string(text) && strcmp(json_string_value(text), "string") == 0);
    }
    return is_found;
}

/* Whether the second value of a keyword takes the first one's place. */
static bool is_stricter(const char *name, const json_t *before, const json_t *value)
{
    const bool is_least = strcmp(name, "minLength") == 0;

    if (is_least || strcmp(name, "maxLength") == 0) {
        return !json_is_integer(before) ||
               (json_is_integer(value) &&
                is_least == (json_integer_value(value) > json_integer_value(before)));
    }
    return strcmp(name, "type") != 0 || json_is_array(before) || has_string(before);
}

int quire_graft_put_into(const quire_graft_tool *t, json_t *into, const json_t *from)
{
    static const char *const alone[] = { "pattern", "format", "anyOf", "oneOf", "allOf" };
    const char *name;
    json_t *value;

    QUIRE_TRY(quire_graft_visit(t, 1 + json_object_size(from) / 8));
    QUIRE_TRY(values_meet(t, into, from));
    json_object_foreach((json_t *)(uintptr_t)from, name, value)
    {
        const json_t *before = json_object_get(into, name);

        if (strcmp(name, "enum") == 0 || strcmp(name, "const") == 0) {
            continue;
        }
        for (size_t i = 0; before != NULL && i < sizeof alone / sizeof alone[0]; i++) {
            const bool is_same =
                before == value || (json_is_string(value) && json_equal(before, value));

            if (strcmp(name, alone[i]) == 0 && !is_same) {
                return 0;
            }
        }
        if (before == NULL || is_stricter(name, before, value)) {
            QUIRE_FAIL_IF(json_object_set(into, name, value) != 0, QUIRE_NOMEM);
        }
    }
    return 1;
}

/* A member of a union with the keywords beside the union. 0: any text. */
static int member_add(const quire_graft_tool *t, text_list *list, const json_t *schema,
                      const char *keyword, const json_t *member, int depth)
{
    json_t *merged;
    int rc = 1;

    QUIRE_TRY(quire_graft_visit(t, 1 + json_object_size(schema) / 8));
    merged = json_copy((json_t *)(uintptr_t)schema);
    QUIRE_FAIL_IF(merged == NULL, QUIRE_NOMEM);
    (void)json_object_del(merged, keyword);
    if (json_is_object(member)) {
        rc = quire_graft_put_into(t, merged, member);
    }
    if (rc == 1 && quire_tool_schema_may_be_text(t->root, merged)) {
        rc = text_add(t, list, merged, depth + 1);
    }
    json_decref(merged);
    return rc;
}

/* The members of a union. 0: one of them is any text. */
static int union_add(const quire_graft_tool *t, text_list *list, const json_t *schema,
                     const char *keyword, int depth)
{
    const json_t *members = json_object_get(schema, keyword);
    int rc = 1;

    for (size_t i = 0; i < json_array_size(members) && rc == 1; i++) {
        const json_t *member = quire_tool_schema_resolve(t->root, json_array_get(members, i));

        if (json_is_object(member) || json_is_true(member)) { /* no other schema takes a text */
            rc = member_add(t, list, schema, keyword, member, depth);
        }
    }
    return rc;
}

/* A schema with the members of its allOf put into it. 0: any text. */
static int all_add(const quire_graft_tool *t, text_list *list, const json_t *schema, int depth)
{
    const json_t *all = json_object_get(schema, "allOf");
    json_t *merged;
    int rc = 1;

    QUIRE_TRY(quire_graft_visit(t, 1 + json_object_size(schema) / 8));
    merged = json_copy((json_t *)(uintptr_t)schema);
    QUIRE_FAIL_IF(merged == NULL, QUIRE_NOMEM);
    (void)json_object_del(merged, "allOf");
    for (size_t i = 0; i < json_array_size(all) && rc == 1; i++) {
        const json_t *member = quire_tool_schema_resolve(t->root, json_array_get(all, i));

        rc = json_is_object(member) ? quire_graft_put_into(t, merged, member) : 1;
    }
    if (rc == 1) {
        rc = text_add(t, list, merged, depth + 1);
    }
    json_decref(merged);
    return rc;
}

/* Append the alternatives of a schema that may be a string. 0: any text. */
static int text_add(const quire_graft_tool *t, text_list *list, const json_t *schema, int depth)
{
    const json_t *one, *values;
    const char *regex;

    schema = quire_tool_schema_resolve(t->root, schema);
    QUIRE_TRY(quire_graft_visit(t, 1 + json_array_size(json_object_get(schema, "enum")) /
                                           QUIRE_TOOL_VISIT_VALUES));
    QUIRE_TRY(quire_graft_room(t->g, list->out->n));
    if (depth > DEPTH_MAX) {
        return 0;
    }
    if (json_object_get(schema, "allOf") != NULL) {
        return all_add(t, list, schema, depth);
    }
    if (json_object_get(schema, "anyOf") != NULL) {
        return union_add(t, list, schema, "anyOf", depth);
    }
    if (json_object_get(schema, "oneOf") != NULL) {
        return union_add(t, list, schema, "oneOf", depth);
    }
    one = json_object_get(schema, "const");
    values = json_object_get(schema, "enum");
    if (json_is_string(one)) {
        alternative_begin(list);
        QUIRE_TRY(quire_grammar_literal_add(list->out, list->quote, json_string_value(one)));
        return 1;
    }
    if (values != NULL) {
        return choices_add(list, values);
    }
    regex = quire_schema_regex(schema);
    if (regex != NULL) {
        return regex_add(t, list, regex);
    }
    return lengths_add(list, schema);
}

int quire_graft_text(const quire_graft_tool *t, const json_t *schema, const char *quote, char stop,
                     quire_bytes *out)
{
    quire_bytes text = { 0 };
    text_list list = { .quote = quote, .stop = stop, .out = &text };
    int rc = quire_tool_schema_may_be_text(t->root, schema) ? text_add(t, &list, schema, 0) : 0;

    if (rc == 1 && list.n > 0) {
        (void)quire_bytes_addf(&text, ")");
        rc = quire_bytes_add(out, text.data, text.n) < 0 ? out->status : 1;
    } else if (rc == 1) {
        rc = 0;
    }
    quire_bytes_fini(&text);
    return rc;
}

/* ---- any text ---- */

static void class_add(quire_bytes *out, const char *negation, const char *chars, size_t n)
{
    (void)quire_bytes_addf(out, "[%s", negation);
    for (size_t i = 0; i < n; i++) {
        if (chars[i] == '\n') {
            (void)quire_bytes_addf(out, "\\n");
        } else {
            (void)quire_bytes_addf(out, "%s%c", strchr("]\\^-[", chars[i]) != NULL ? "\\" : "",
                                   chars[i]);
        }
    }
    (void)quire_bytes_addf(out, "]");
}

/* How much of the tag ends `n` bytes of it and a byte more. */
static size_t state_behind(const char *tag, size_t n, char next)
{
    for (size_t k = n + 1; k > 0; k--) {
        if (tag[k - 1] == next && memcmp(tag, tag + n + 1 - k, k - 1) == 0) {
            return k;
        }
    }
    return 0;
}

/* The rule of a text that ends with the first n bytes of the tag. */
static void state_add(quire_graft *g, unsigned id, const char *tag, size_t n)
{
    char seen[TAG_BYTES_MAX + 1] = "";
    size_t n_seen = 0;

    (void)quire_bytes_addf(&g->rules, "text%u-%zu" QUIRE_GRAFT_MARK, id, n);
    for (size_t i = 0; i <= n; i++) {
        const size_t next = state_behind(tag, n, tag[i]);

        if (next == 0 || memchr(seen, tag[i], n_seen) != NULL) {
            continue;
        }
        seen[n_seen++] = tag[i];
        class_add(&g->rules, "", &tag[i], 1);
        if (tag[next] != '\0') {
            (void)quire_bytes_addf(&g->rules, " text%u-%zu", id, next);
        }
        (void)quire_bytes_addf(&g->rules, " | ");
    }
    class_add(&g->rules, "^", seen, n_seen);
    (void)quire_bytes_addf(&g->rules, " text%u-0\n", id);
}

int quire_graft_until(quire_graft *g, const char *tag, quire_bytes *out)
{
    char key[TAG_BYTES_MAX + 8];
    const json_t *known;
    unsigned id;

    QUIRE_FAIL_IF(strlen(tag) > TAG_BYTES_MAX, QUIRE_LIMIT);
    (void)snprintf(key, sizeof key, "until:%s", tag);
    known = json_object_get(g->index, key);
    id = known != NULL ? (unsigned)json_integer_value(known) : g->n_lists++;
    if (known == NULL) {
        QUIRE_FAIL_IF(json_object_set_new(g->index, key, json_integer(id)) != 0, QUIRE_NOMEM);
        for (size_t n = 0; tag[n] != '\0'; n++) {
            state_add(g, id, tag, n);
        }
        QUIRE_TRY(g->rules.status);
    }
    QUIRE_TRY(quire_bytes_addf(out, "text%u-0", id));
    return 1;
}
