/* schema_graft_tags.c - arguments that a format writes one by one: see schema_graft.h.
 *
 * Three families of formats do so. The names of rules are the library's.
 *
 *   between tags     <parameter=mode>a</parameter>: a rule "tool-F-arg-A" for each argument. Texts
 *                    end at the tag; the rules ac-N include the tag, the rules until-N do not.
 *   as in Python     F(mode="a", line=3): any arguments with values by python-or-json-value.
 *   as Gemma 4       F{mode:<|"|>a<|"|>,line:3}: any arguments with values by gemma4-value.
 *
 * A text between tags has no quotes and no escapes, so enum, const, pattern and format of strings
 * become texts of the grammar. Lengths do not hold there: the tag may come at any place.
 *
 * SPDX-License-Identifier: MIT */
#include "server/schema_graft_internal.h"

#include "base/check.h"
#include "server/json_schema.h"
#include "server/regex_grammar.h"

#include <stdio.h>
#include <string.h>

#define REFS_MAX      8   /* $ref behind $ref */
#define DEPTH_MAX     8   /* objects and arrays within arguments of Gemma 4 */
#define TAG_BYTES_MAX 256 /* of a tag that ends a text */

#define GEMMA_QUOTE "<|\"|>"

/* What the arguments of one function have in common. */
typedef struct tags {
    quire_graft *g;
    const json_t *parameters;
    bool is_strict;
} tags;

/* ---- schemas ---- */

/* The schema behind $ref; a schema of a form that this file does not know is itself. */
static const json_t *resolve(const tags *t, const json_t *schema)
{
    for (int i = 0; i < REFS_MAX; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        const char *at = ref != NULL && strncmp(ref, "#/", 2) == 0 ? ref + 2 : NULL;
        const char *slash = at != NULL ? strchr(at, '/') : NULL;
        const json_t *defs =
            slash != NULL ? json_object_getn(t->parameters, at, (size_t)(slash - at)) : NULL;
        const json_t *target = defs != NULL ? json_object_get(defs, slash + 1) : NULL;

        if (target == NULL) {
            break;
        }
        schema = target;
    }
    return schema;
}

static bool has_type(const json_t *schema, const char *type)
{
    const char *name = json_string_value(json_object_get(schema, "type"));

    return name != NULL && strcmp(name, type) == 0;
}

/* The values of enum or const when all are strings: an array to free, or NULL. */
static json_t *texts_of(const json_t *schema)
{
    const json_t *one = json_object_get(schema, "const");
    json_t *list =
        one != NULL ? json_pack("[O]", one) : json_incref(json_object_get(schema, "enum"));
    bool are_texts = json_array_size(list) > 0;

    for (size_t i = 0; i < json_array_size(list); i++) {
        are_texts = are_texts && json_is_string(json_array_get(list, i));
    }
    if (!are_texts) {
        json_decref(list);
        list = NULL;
    }
    return list;
}

/* A schema with the definitions that its references name. */
static json_t *with_definitions(const tags *t, const json_t *schema)
{
    static const char *const names[] = { "$defs", "definitions" };
    json_t *copy = json_copy((json_t *)(uintptr_t)schema); /* jansson reads its argument alone */

    for (size_t i = 0; i < sizeof names / sizeof names[0] && copy != NULL; i++) {
        json_t *defs = json_object_get(t->parameters, names[i]);

        if (defs != NULL && json_object_get(copy, names[i]) == NULL &&
            json_object_set(copy, names[i], defs) != 0) {
            json_decref(copy);
            copy = NULL;
        }
    }
    return copy;
}

/* Of a strict function: refuse keywords that the text between tags cannot hold. */
static int refuse_unheld(const tags *t, const json_t *schema, const char *const *keywords)
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

/* ---- values: 1 = appended, 0 = the library's rule stays, or an error ---- */

/* An error, or 0 when a schema that is not supported may stay with the library. */
static int stays(const tags *t, int rc)
{
    return t->is_strict || rc == QUIRE_NOMEM ? rc : 0;
}

static int json_value_add(const tags *t, const json_t *schema, quire_bytes *out)
{
    char root[QUIRE_GRAFT_ROOT_BYTES];
    json_t *copy;
    int rc;

    if (!json_is_object(schema)) {
        return 0;
    }
    copy = with_definitions(t, schema);
    QUIRE_FAIL_IF(copy == NULL, QUIRE_NOMEM);
    rc = quire_graft_schema(t->g, copy, !t->is_strict, root);
    json_decref(copy);
    if (rc < 0) {
        return stays(t, rc);
    }
    QUIRE_TRY(quire_bytes_addf(out, "%s", root));
    return 1;
}

static int choices_add(const json_t *texts, const char *quote, quire_bytes *out)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        (void)quire_bytes_addf(out, "%s", i == 0 ? "(" : " | ");
        (void)quire_grammar_literal_add(out, quote, json_string_value(json_array_get(texts, i)));
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

/* A string without escapes between two quotes of its own, which may be "". */
static int plain_text_add(const tags *t, const json_t *schema, const char *quote, quire_bytes *out)
{
    static const char *const lengths[] = { "minLength", "maxLength", NULL };
    static const quire_regex_opts opts = { .is_json = false };
    quire_regex_result result;
    quire_bytes text = { 0 };
    const char *key, *regex;
    json_t *texts = texts_of(schema);
    int rc;

    if (texts != NULL) {
        rc = choices_add(texts, quote, out);
        json_decref(texts);
        return rc;
    }
    QUIRE_TRY(refuse_unheld(t, schema, lengths));
    regex = has_type(schema, "string") ? quire_schema_regex(schema, &key) : NULL;
    if (regex == NULL) {
        return 0;
    }
    rc = quire_regex_grammar(regex, &opts, &text, &result);
    if (rc == QUIRE_OK) {
        (void)quire_grammar_literal_add(out, "", quote);
        (void)quire_bytes_addf(out, " ");
        (void)quire_bytes_add(out, text.data, text.n);
        (void)quire_bytes_addf(out, " ");
        rc = quire_grammar_literal_add(out, "", quote);
    }
    quire_bytes_fini(&text);
    return rc < 0 ? stays(t, rc) : 1;
}

/* ---- between tags ---- */

/* The next alternative of a rule of characters, "[class] name" or "[class]"; NULL = none. *name:
 * NULL = none. */
static const char *alternative_next(const char *at, const char *end, size_t *n_class,
                                    const char **name, size_t *n_name)
{
    const char *class = memchr(at, '[', (size_t)(end - at));
    const char *behind = class != NULL ? class + 1 : end;

    while (behind < end && *behind != ']') {
        behind += *behind == '\\' ? 2 : 1;
    }
    if (behind >= end) {
        return NULL;
    }
    *n_class = (size_t)(behind + 1 - class);
    *name = behind + 1 < end && behind[1] == ' ' && behind + 2 < end && behind[2] != '|'
                ? quire_graft_name(behind + 2, end, n_name)
                : NULL;
    return class;
}

/* Append the class of rule `state` that leads to rule `next`, or the one that leads to no rule.
 * Returns whether it leads on; *is_found: whether there is one. */
static bool tag_class_add(const quire_graft *g, const char *state, const char *next,
                          quire_bytes *out, bool *is_found)
{
    size_t n = 0, n_class = 0, n_name = 0, n_best = 0;
    const char *at = quire_graft_rule(g, state, &n), *best = NULL, *name;
    const char *end = at + (at != NULL ? n : 0);
    bool leads_on = false;

    while (!leads_on && at != NULL &&
           (at = alternative_next(at, end, &n_class, &name, &n_name)) != NULL) {
        leads_on = name != NULL && n_name == strlen(next) && memcmp(name, next, n_name) == 0;
        if (leads_on || name == NULL) {
            best = at;
            n_best = n_class;
        }
        at += n_class;
    }
    *is_found = best != NULL;
    if (best != NULL) {
        (void)quire_bytes_addf(out, " ");
        (void)quire_bytes_add(out, best, n_best);
    }
    return leads_on;
}

/* Append the tag that the rules ac-N, ac-N-01, ... look for, as a class for each character. */
static bool tag_of_rules_add(const quire_graft *g, const char *first, quire_bytes *out)
{
    char state[QUIRE_GRAFT_RULE_BYTES], next[QUIRE_GRAFT_RULE_BYTES];
    bool is_found = true;

    (void)snprintf(state, sizeof state, "%s", first);
    for (unsigned i = 1; is_found && i <= TAG_BYTES_MAX; i++) {
        (void)snprintf(next, sizeof next, "%.200s-%02u", first, i);
        if (!tag_class_add(g, state, next, out, &is_found)) {
            return is_found;
        }
        (void)snprintf(state, sizeof state, "%s", next);
    }
    return false;
}

/* The rule that a name leads to, over rules that are a name alone. */
static void follow(const quire_graft *g, const char *name, size_t n_name,
                   char out[QUIRE_GRAFT_RULE_BYTES])
{
    (void)snprintf(out, QUIRE_GRAFT_RULE_BYTES, "%.*s", (int)n_name, name);
    for (int i = 0; i < REFS_MAX; i++) {
        size_t n, n_first;
        const char *text = quire_graft_rule(g, out, &n);
        const char *first = text != NULL ? quire_graft_name(text, text + n, &n_first) : NULL;

        if (first == NULL || first != text || n_first != n) {
            return;
        }
        (void)snprintf(out, QUIRE_GRAFT_RULE_BYTES, "%.*s", (int)n, text);
    }
}

/* Append the value's rule in place of one of the library, with the tag if that one includes it. */
static int tag_value_add(const tags *t, const char *library, const json_t *schema, quire_bytes *out)
{
    const bool has_tag = strncmp(library, "ac-", 3) == 0;
    quire_bytes tag = { 0 };
    int rc;

    if (!has_tag && strncmp(library, "until-", 6) != 0) {
        return json_value_add(t, schema, out);
    }
    rc = plain_text_add(t, resolve(t, schema), "", out);
    if (rc == 1 && has_tag) {
        rc = tag_of_rules_add(t->g, library, &tag) ? 1 : 0;
        (void)quire_bytes_add(out, tag.data, tag.n);
    }
    quire_bytes_fini(&tag);
    return out->status < 0 ? out->status : rc;
}

static int tag_add(const tags *t, const char *rule, const json_t *schema)
{
    char library[QUIRE_GRAFT_RULE_BYTES];
    quire_bytes out = { 0 };
    size_t n, n_name, n_other;
    const char *text = quire_graft_rule(t->g, rule, &n);
    const char *end = text != NULL ? text + n : NULL;
    const char *name = text != NULL ? quire_graft_name(text, end, &n_name) : NULL;
    int rc;

    if (name == NULL || quire_graft_name(name + n_name, end, &n_other) != NULL) {
        return QUIRE_OK; /* of a form that this file does not know */
    }
    follow(t->g, name, n_name, library);
    (void)quire_bytes_add(&out, text, (size_t)(name - text));
    rc = tag_value_add(t, library, schema, &out);
    if (rc == 1) {
        rc = quire_bytes_add(&out, name + n_name, (size_t)(end - name) - n_name);
        rc = rc < 0 ? rc : quire_graft_replace(t->g, rule, out.data);
    }
    quire_bytes_fini(&out);
    return rc;
}

/* ---- lists of arguments ---- */

/* How a format writes the arguments of a call, or the members of an object. */
typedef struct list_style {
    const char *equals, *separator; /* as texts of the grammar */
    const char *any;                /* the library's rule of any value */
    int (*value_add)(const tags *t, const json_t *schema, int depth, quire_bytes *out);
} list_style;

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
static int members_add(const tags *t, const list_style *style, const json_t *properties,
                       unsigned list, int depth)
{
    const char *name;
    json_t *schema;
    unsigned i = 0;

    json_object_foreach((json_t *)(uintptr_t)properties, name, schema)
    {
        quire_bytes rule = { 0 };
        int rc;

        (void)quire_bytes_addf(&rule, "args%u-a%u" QUIRE_GRAFT_MARK, list, i++);
        (void)quire_grammar_literal_add(&rule, "", name);
        (void)quire_bytes_addf(&rule, " %s ", style->equals);
        rc = style->value_add(t, resolve(t, schema), depth, &rule);
        if (rc == 0) {
            rc = quire_bytes_addf(&rule, "%s", style->any);
        }
        (void)quire_bytes_addf(&rule, "\n");
        if (rc >= 0) {
            rc = quire_bytes_add(&t->g->rules, rule.data, rule.n);
        }
        quire_bytes_fini(&rule);
        QUIRE_TRY(rc);
    }
    return QUIRE_OK;
}

/* Append the members of an object, in this order: the required ones, and any of the others. */
static int list_add(const tags *t, const list_style *style, const json_t *object, int depth,
                    quire_bytes *out)
{
    const json_t *properties = json_object_get(object, "properties");
    const unsigned list = t->g->n_lists++;
    quire_bytes *rules = &t->g->rules;
    bool has_required = false;
    unsigned i = 0, n_others = 0;
    const char *name;
    json_t *schema;

    QUIRE_TRY(members_add(t, style, properties, list, depth));
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

/* JSON is a part of the library's values of Python; so are the words of Python. */
static int python_value_add(const tags *t, const json_t *schema, int depth, quire_bytes *out)
{
    int rc;

    (void)depth;
    (void)quire_bytes_addf(out, "(");
    rc = json_value_add(t, schema, out);
    if (rc == 0) {
        rc = quire_bytes_addf(out, "python-or-json-value");
    }
    QUIRE_TRY(rc);
    if (has_type(schema, "boolean") && json_object_get(schema, "const") == NULL) {
        (void)quire_bytes_addf(out, " | \"True\" | \"False\"");
    }
    QUIRE_TRY(quire_bytes_addf(out, ")"));
    return 1;
}

static int gemma_value_add(const tags *t, const json_t *schema, int depth, quire_bytes *out);

static const list_style gemma_style = { "\":\" space", "\",\" space", "gemma4-value",
                                        gemma_value_add };

static int gemma_object_add(const tags *t, const json_t *object, int depth, quire_bytes *out)
{
    if (json_object_size(json_object_get(object, "properties")) == 0) {
        return 0;
    }
    (void)quire_bytes_addf(out, "\"{\" space ");
    QUIRE_TRY(list_add(t, &gemma_style, object, depth + 1, out));
    QUIRE_TRY(quire_bytes_addf(out, " space \"}\""));
    return 1;
}

/* The items have a rule of their own, since the array names them twice. */
static int gemma_array_add(const tags *t, const json_t *schema, int depth, quire_bytes *out)
{
    static const char *const unheld[] = { "minItems", "maxItems", "prefixItems", NULL };
    const unsigned list = t->g->n_lists++;
    quire_bytes item = { 0 };
    int rc;

    QUIRE_TRY(refuse_unheld(t, schema, unheld));
    rc = gemma_value_add(t, resolve(t, json_object_get(schema, "items")), depth + 1, &item);
    if (rc == 1) {
        (void)quire_bytes_addf(&t->g->rules, "args%u-i ::= ", list);
        (void)quire_bytes_add(&t->g->rules, item.data, item.n);
        (void)quire_bytes_addf(&t->g->rules, "\n");
        rc = quire_bytes_addf(out, "\"[\" space (args%u-i (\",\" space args%u-i)* space)? \"]\"",
                              list, list);
        rc = rc < 0 ? rc : 1;
    }
    quire_bytes_fini(&item);
    return rc;
}

/* Any value of Gemma 4's form. */
static int gemma_value_add(const tags *t, const json_t *schema, int depth, quire_bytes *out)
{
    static const char *const json_types[] = { "integer", "number", "boolean", "null" };
    static const char *const unheld[] = { "anyOf", "oneOf", "allOf", NULL };
    int rc;

    QUIRE_TRY(refuse_unheld(t, schema, unheld));
    if (!json_is_object(schema) || depth > DEPTH_MAX) {
        return 0;
    }
    for (size_t i = 0; i < sizeof json_types / sizeof json_types[0]; i++) {
        if (has_type(schema, json_types[i])) {
            return json_value_add(t, schema, out);
        }
    }
    if (has_type(schema, "array")) {
        return gemma_array_add(t, schema, depth, out);
    }
    if (has_type(schema, "object")) {
        return gemma_object_add(t, schema, depth, out);
    }
    rc = plain_text_add(t, schema, GEMMA_QUOTE, out);
    if (rc == 0 && has_type(schema, "string")) {
        QUIRE_TRY(quire_bytes_addf(out, "gemma4-string"));
        rc = 1;
    }
    return rc;
}

/* ---- functions ---- */

/* Replace the rule of a function: `begin`, the arguments, `end`. */
static int function_add(const tags *t, const char *rule, const char *function,
                        const list_style *style, const char *begin, const char *end)
{
    quire_bytes out = { 0 };
    int rc;

    (void)quire_grammar_literal_add(&out, "", function);
    (void)quire_bytes_addf(&out, " %s space ", begin);
    rc = list_add(t, style, t->parameters, 0, &out);
    if (rc == QUIRE_OK) {
        rc = quire_bytes_addf(&out, " space %s", end);
    }
    if (rc == QUIRE_OK) {
        rc = quire_graft_replace(t->g, rule, out.data);
    }
    quire_bytes_fini(&out);
    return rc;
}

static bool names_rule(const char *text, size_t n, const char *rule)
{
    size_t n_name;

    for (const char *at = text; (at = quire_graft_name(at, text + n, &n_name)) != NULL;
         at += n_name) {
        if (n_name == strlen(rule) && memcmp(at, rule, n_name) == 0) {
            return true;
        }
    }
    return false;
}

static int tagged_add(const tags *t, const char *function)
{
    const json_t *properties = json_object_get(t->parameters, "properties");
    const char *name;
    json_t *schema;

    json_object_foreach((json_t *)(uintptr_t)properties, name, schema)
    {
        char rule[QUIRE_GRAFT_RULE_BYTES] = "tool-";

        quire_graft_rule_name(function, "-arg-", rule, sizeof rule);
        quire_graft_rule_name(name, "", rule, sizeof rule);
        QUIRE_TRY(tag_add(t, rule, schema));
    }
    return QUIRE_OK;
}

int quire_graft_tags(quire_graft *g, const char *function, const json_t *parameters, bool is_strict)
{
    static const list_style python_style = { "\"=\"", "\",\" space", "python-or-json-value",
                                             python_value_add };
    const tags t = { g, parameters, is_strict };
    char rule[QUIRE_GRAFT_RULE_BYTES] = "tool-";
    quire_bytes unused = { 0 };
    const char *text;
    size_t n = 0;
    int rc = QUIRE_OK;

    if (json_object_size(json_object_get(parameters, "properties")) == 0) {
        return QUIRE_OK;
    }
    if (is_strict) {
        rc = quire_json_schema_grammar(parameters, &unused, &g->cause);
        quire_bytes_fini(&unused);
        QUIRE_TRY(rc);
    }
    quire_graft_rule_name(function, "", rule, sizeof rule);
    text = quire_graft_rule(g, rule, &n);
    if (text != NULL && names_rule(text, n, "python-or-json-value")) {
        return function_add(&t, rule, function, &python_style, "\"(\"", "\")\"");
    }
    if (text != NULL && names_rule(text, n, "gemma4-dict")) {
        return function_add(&t, rule, function, &gemma_style, "\"{\"", "\"}\"");
    }
    return tagged_add(&t, function);
}
