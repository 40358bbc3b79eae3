/* schema_graft_tags.c - arguments that a format writes one by one: see schema_graft.h.
 *
 * Four families of formats do so. The names of rules are the library's.
 *
 *   between tags     <parameter=mode>a</parameter>: a rule "tool-F-arg-A" for each argument. Texts
 *                    end at the tag; the rules ac-N include the tag, the rules until-N do not.
 *   of fixed words   <param name="mode">a</param>: any number of arguments, in the function's rule.
 *   as in Python     F(mode="a", line=3): any arguments with values by python-or-json-value.
 *   as Gemma 4       F{mode:<|"|>a<|"|>,line:3}: any arguments with values by gemma4-value.
 *
 * The first keeps the library's rules and takes other values; the other three get a list of ours
 * (schema_graft_lists.c).
 *
 * SPDX-License-Identifier: MIT */
#include "server/schema_graft_internal.h"

#include "base/check.h"
#include "server/regex_grammar.h"
#include "server/tool_schema.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define REFS_MAX              8    /* rules that are a name alone */
#define TAG_BYTES_MAX         256  /* of a tag that ends a text */
#define NESTED_RULE_BYTES_MAX 200u /* of a rule with others within */

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

/* The rule that a name leads to, over rules that are a name alone. false: over too many. */
static bool follow(const quire_graft *g, const char *name, size_t n_name,
                   char out[QUIRE_GRAFT_RULE_BYTES])
{
    (void)snprintf(out, QUIRE_GRAFT_RULE_BYTES, "%.*s", (int)n_name, name);
    for (int i = 0; i <= REFS_MAX; i++) {
        size_t n, n_first;
        const char *text = quire_graft_rule(g, out, &n);
        const char *first = text != NULL ? quire_graft_name(text, text + n, &n_first) : NULL;

        if (first == NULL || first != text || n_first != n) {
            return true;
        }
        (void)snprintf(out, QUIRE_GRAFT_RULE_BYTES, "%.*s", (int)n, text);
    }
    return false;
}

/* The character that a text with a length leaves out: the first of the tag that is no blank. The
 * tag is literals and classes of a grammar. */
static char stop_of(const char *tag, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        const bool is_escape = tag[i] == '\\';

        if (is_escape && strchr("ntr", tag[i + 1]) != NULL) {
            i++;
        } else if (is_escape) {
            return tag[i + 1];
        } else if (strchr(" \"[](", tag[i]) == NULL) {
            return tag[i];
        }
    }
    return '<';
}

/* Append the value's rule in place of one of the library. `rest`: the grammar behind the library's
 * rule. If the library's rule includes the closing tag, `out` gets the tag behind the value. */
static int tag_value_add(const quire_graft_tool *t, const char *library, const json_t *schema,
                         const char *rest, quire_bytes *out)
{
    const bool has_tag = strncmp(library, "ac-", 3) == 0;
    quire_bytes tag = { 0 };
    size_t n;
    const char *text = quire_graft_rule(t->g, library, &n);
    int rc = 0;

    if (has_tag) {
        rc = tag_of_rules_add(t->g, library, &tag) ? 1 : 0;
    } else if (strncmp(library, "until-", 6) == 0) {
        rc = quire_bytes_addf(&tag, "%s", rest) < 0 ? QUIRE_NOMEM : 1;
    } else if (text != NULL && n > 6 && strncmp(text, "until-", 6) == 0) {
        const char *end = memchr(text, ' ', n); /* a text and its tag */

        rc = end != NULL && quire_bytes_add(&tag, end, n - (size_t)(end - text)) >= 0 ? 1 : 0;
    } else {
        quire_bytes_fini(&tag);
        return quire_graft_json(t, schema, out);
    }
    if (rc == 1) {
        rc = quire_graft_text(t, schema, "", stop_of(tag.data, tag.n), out);
    }
    if (rc == 1 && strncmp(library, "until-", 6) != 0) {
        (void)quire_bytes_add(out, tag.data, tag.n);
    }
    quire_bytes_fini(&tag);
    return out->status < 0 ? out->status : rc;
}

/* The one name in a text that is not "space"; NULL: there is none, or there are several. */
static const char *only_name(const char *text, const char *end, size_t *n)
{
    const char *only = NULL;
    size_t n_name;

    for (const char *at = text; (at = quire_graft_name(at, end, &n_name)) != NULL; at += n_name) {
        if (n_name == strlen("space") && memcmp(at, "space", n_name) == 0) {
            continue;
        }
        if (only != NULL) {
            return NULL;
        }
        only = at;
        *n = n_name;
    }
    return only;
}

/* Whether a rule of an argument names one of an item or a member: R-item, R-name. R-schema is the
 * rule of JSON, where quotes are escaped, or of a member with this name, whose tag is "<" "schema"
 * ">". */
static bool is_within(const quire_graft *g, const char *rule, const char *name, size_t n_name)
{
    const size_t n = strlen(rule);
    char schema[QUIRE_GRAFT_RULE_BYTES];
    const char *text;
    size_t n_text;

    if (n_name <= n || memcmp(name, rule, n) != 0 || name[n] != '-') {
        return false;
    }
    if (n_name != n + strlen("-schema") || memcmp(name + n, "-schema", n_name - n) != 0) {
        return true;
    }
    (void)snprintf(schema, sizeof schema, "%.*s", (int)n_name, name);
    text = quire_graft_rule(g, schema, &n_text);
    return text != NULL && memmem(text, n_text, "\"schema\"", strlen("\"schema\"")) != NULL;
}

/* Append the text of a rule of an argument, with our value. 0: of a form that is not known here. */
static int tag_text_add(const quire_graft_tool *t, const char *rule, const json_t *schema,
                        quire_bytes *out)
{
    char library[QUIRE_GRAFT_RULE_BYTES], rest[QUIRE_GRAFT_RULE_BYTES];
    quire_bytes made = { 0 };
    size_t n, n_name = 0;
    const char *text = quire_graft_rule(t->g, rule, &n);
    const char *end = text != NULL ? text + n : NULL;
    const char *name = text != NULL ? only_name(text, end, &n_name) : NULL;
    int rc;

    if (name == NULL || is_within(t->g, rule, name, n_name) ||
        !follow(t->g, name, n_name, library)) {
        return 0;
    }
    (void)snprintf(rest, sizeof rest, "%.*s", (int)(end - name - (ptrdiff_t)n_name), name + n_name);
    (void)quire_bytes_add(&made, text, (size_t)(name - text));
    rc = tag_value_add(t, library, schema, rest, &made);
    if (rc == 1) {
        (void)quire_bytes_add(&made, name + n_name, (size_t)(end - name) - n_name);
        rc = quire_bytes_add(out, made.data, made.n) < 0 ? out->status : 1;
    }
    quire_bytes_fini(&made);
    return rc;
}

static int nested_add(const quire_graft_tool *t, const char *rule, const json_t *schema);

/* Replace a rule of an argument, and those of values within it. */
static int tag_add(const quire_graft_tool *t, const char *rule, const json_t *schema)
{
    quire_bytes out = { 0 };
    int rc = tag_text_add(t, rule, schema, &out);

    if (rc == 1) {
        rc = quire_graft_replace(t->g, rule, out.data);
    } else if (rc == 0) {
        rc = nested_add(t, rule, schema);
    }
    quire_bytes_fini(&out);
    return rc;
}

/* Bound the items in a rule of an array: "(space R-item)*". */
static int items_bound(const quire_graft_tool *t, const char *rule, const char *item,
                       const json_t *schema)
{
    static const char *const counts[] = { "minItems", "maxItems", NULL };
    json_int_t min, max;
    char form[2 * QUIRE_GRAFT_RULE_BYTES];
    quire_bytes out = { 0 };
    size_t n;
    const char *text = quire_graft_rule(t->g, rule, &n), *at;
    int rc = QUIRE_OK;

    (void)snprintf(form, sizeof form, "(space %s)*", item);
    at = memmem(text, n, form, strlen(form));
    quire_graft_counts(schema, counts[0], counts[1], &min, &max);
    if (at == NULL) {
        return quire_graft_refuse(t, schema, counts); /* a form that is not known here */
    }
    if (min == 0 && max < 0) {
        return QUIRE_OK;
    }
    (void)quire_bytes_add(&out, text, (size_t)(at - text));
    if (max == 0) {
        (void)quire_bytes_addf(&out, "\"\""); /* a repetition of {0,0} is no grammar */
    } else if (max > 0) {
        (void)quire_bytes_addf(&out, "(space %s){%lld,%lld}", item, (long long)min, (long long)max);
    } else {
        (void)quire_bytes_addf(&out, "(space %s){%lld,}", item, (long long)min);
    }
    rc = quire_bytes_add(&out, at + strlen(form), n - (size_t)(at - text) - strlen(form));
    rc = rc < 0 ? rc : quire_graft_replace(t->g, rule, out.data);
    quire_bytes_fini(&out);
    return rc;
}

/* The schema of all items; NULL: they have several. Without `items` those behind prefixItems are
 * any values, and may be like these. */
static const json_t *items_of(const json_t *schema)
{
    const json_t *first = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");

    if (json_array_size(first) == 0) {
        return items;
    }
    for (size_t i = 1; i < json_array_size(first); i++) {
        if (!json_equal(json_array_get(first, 0), json_array_get(first, i))) {
            return NULL;
        }
    }
    return !json_is_object(items) || json_equal(json_array_get(first, 0), items)
               ? json_array_get(first, 0)
               : NULL;
}

/* A rule whose name is too long stays the library's. */
static int name_refuse(const quire_graft_tool *t, const char *name)
{
    return !t->is_strict ? QUIRE_OK
                         : quire_error_set(&t->g->cause, QUIRE_LIMIT,
                                           "the name of \"%.64s\", with those around it, is longer "
                                           "than %u bytes",
                                           name, NESTED_RULE_BYTES_MAX);
}

/* Values between tags of their own within an argument (MiniMax M3). */
static int nested_add(const quire_graft_tool *t, const char *rule, const json_t *schema)
{
    const json_t *target = quire_tool_schema_resolve(t->root, schema);
    char inner[QUIRE_GRAFT_RULE_BYTES];
    const char *name;
    json_t *member;
    size_t n;

    if (quire_graft_rule(t->g, rule, &n) == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_graft_visit(t, 1));
    if (strlen(rule) > NESTED_RULE_BYTES_MAX) { /* a cut name would be the rule's own */
        return name_refuse(t, rule);
    }
    (void)snprintf(inner, sizeof inner, "%.200s-item", rule);
    if (quire_graft_rule(t->g, inner, &n) != NULL) {
        QUIRE_TRY(items_bound(t, rule, inner, target));
        return tag_add(t, inner, items_of(target));
    }
    json_object_foreach(json_object_get(target, "properties"), name, member)
    {
        (void)snprintf(inner, sizeof inner, "%.200s-", rule);
        quire_graft_rule_name(name, "", inner, sizeof inner);
        if (inner[0] == '\0') {
            QUIRE_TRY(name_refuse(t, name));
        }
        if (quire_graft_rule(t->g, inner, &n) != NULL) {
            QUIRE_TRY(tag_add(t, inner, member));
        }
    }
    return QUIRE_OK;
}

/* ---- functions ---- */

/* How the library names the rules of functions and arguments. */
typedef struct naming {
    const char *function, *before, *between; /* "tool-F"; "tool-F-arg-A" */
} naming;

static const naming namings[] = {
    { "tool-", "tool-", "-arg-" },
    { "ling3-tool-", "ling3-arg-", "-" },
    { "kimi-k3-tool-", "kimi-k3-arg-", "-" },
};

static void argument_rule(const naming *by, const char *function, const char *name,
                          char out[QUIRE_GRAFT_RULE_BYTES])
{
    (void)snprintf(out, QUIRE_GRAFT_RULE_BYTES, "%s", by->before);
    quire_graft_rule_name(function, by->between, out, QUIRE_GRAFT_RULE_BYTES);
    if (out[0] != '\0') {
        quire_graft_rule_name(name, "", out, QUIRE_GRAFT_RULE_BYTES);
    }
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

/* A member as the library's rule of the argument has it. */
static int tag_member_add(const quire_graft_tool *t, const quire_graft_style *style,
                          const char *name, const json_t *schema, quire_bytes *out)
{
    char rule[QUIRE_GRAFT_RULE_BYTES];
    int rc;

    argument_rule(&namings[strcmp(style->open, namings[1].before) == 0 ? 1 : 0], t->function, name,
                  rule);
    if (rule[0] == '\0') {
        return quire_error_set(&t->g->cause, QUIRE_LIMIT, "the name of \"%.64s\" is too long",
                               name);
    }
    rc = tag_text_add(t, rule, schema, out);
    return rc == 0 ? quire_bytes_addf(out, "%s", rule) : rc;
}

/* A member between tags of fixed words. */
static int word_member_add(const quire_graft_tool *t, const quire_graft_style *style,
                           const char *name, const json_t *schema, quire_bytes *out)
{
    const bool is_text = quire_tool_schema_may_be_text(t->root, schema);
    int rc = 0;

    (void)quire_grammar_literal_add(out, "", style->open);
    (void)quire_bytes_addf(out, " ");
    (void)quire_grammar_literal_add(out, "", name);
    (void)quire_bytes_addf(out, " ");
    (void)quire_grammar_literal_add(out, "", style->behind_name);
    (void)quire_bytes_addf(out, " ");
    rc = is_text ? quire_graft_text(t, schema, "", '<', out)
                 : quire_graft_json(t, quire_tool_schema_resolve(t->root, schema), out);
    if (rc == 0 && is_text) {
        return quire_graft_until(t->g, style->close, out);
    }
    if (rc == 0) {
        rc = quire_graft_any_json(t->g, out);
    }
    QUIRE_TRY(rc);
    (void)quire_bytes_addf(out, " ");
    return quire_grammar_literal_add(out, "", style->close);
}

/* The end of an item of a rule: a group, a literal, a class or a name, with its repetition. */
static const char *item_end(const char *at, const char *end)
{
    int depth = 0;

    do {
        const char closing = *at == '"' ? '"' : *at == '[' ? ']' : '\0';

        if (closing != '\0') {
            for (at++; at < end && *at != closing; at++) {
                at += *at == '\\' ? 1 : 0;
            }
        }
        depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
        at++;
    } while (at < end && (depth > 0 || (*at != ' ' && *at != ')')));
    return at < end ? at : end;
}

/* The items of a rule that hold the arguments, beginning with the first that has the marker. */
static bool span_find(const char *text, size_t n, const char *marker, const char **begin,
                      const char **behind)
{
    const char *end = text + n;

    *begin = *behind = NULL;
    for (const char *at = text; at < end;) {
        const char *next = item_end(at, end);

        if (memmem(at, (size_t)(next - at), marker, strlen(marker)) != NULL) {
            *begin = *begin == NULL ? at : *begin;
            *behind = next;
        }
        at = next < end && *next == ' ' ? next + 1 : next;
        if (next == end || (next < end && *next == ')')) {
            break;
        }
    }
    return *begin != NULL;
}

/* Append the list of each alternative. */
static int lists_add(const quire_graft_tool *t, const quire_graft_style *style,
                     const json_t *alternatives, quire_bytes *out)
{
    for (size_t i = 0; i < json_array_size(alternatives); i++) {
        quire_graft_tool one = *t;

        one.parameters = json_array_get(alternatives, i);
        (void)quire_bytes_addf(out, "%s", i == 0 ? "(" : " | ");
        QUIRE_TRY(quire_graft_list(&one, style, one.parameters, out));
    }
    return quire_bytes_addf(out, ")");
}

/* Replace the items with the marker in a function's rule by lists of arguments. */
static int span_replace(const quire_graft_tool *t, const char *rule, const char *marker,
                        const quire_graft_style *style, const json_t *alternatives)
{
    quire_graft_style own = *style;
    quire_bytes out = { 0 };
    size_t n;
    const char *text = quire_graft_rule(t->g, rule, &n);
    const char *begin, *behind;
    int rc;

    if (!span_find(text, n, marker, &begin, &behind)) {
        return QUIRE_OK;
    }
    if (own.separator == NULL) {
        own.separator = names_rule(begin, (size_t)(behind - begin), "space") ? "space" : "";
    }
    (void)quire_bytes_add(&out, text, (size_t)(begin - text));
    rc = lists_add(t, &own, alternatives, &out);
    if (rc >= 0) {
        rc = quire_bytes_add(&out, behind, n - (size_t)(behind - text));
    }
    rc = rc < 0 ? rc : quire_graft_replace(t->g, rule, out.data);
    quire_bytes_fini(&out);
    return rc;
}

/* Replace the rule of a function: `begin`, the arguments, `end`. */
static int function_add(const quire_graft_tool *t, const char *rule, const json_t *alternatives,
                        const quire_graft_style *style, const char *const ends[2])
{
    quire_bytes out = { 0 };
    int rc;

    (void)quire_grammar_literal_add(&out, "", t->function);
    (void)quire_bytes_addf(&out, " %s space ", ends[0]);
    rc = lists_add(t, style, alternatives, &out);
    if (rc == QUIRE_OK) {
        rc = quire_bytes_addf(&out, " space %s", ends[1]);
    }
    if (rc == QUIRE_OK) {
        rc = quire_graft_replace(t->g, rule, out.data);
    }
    quire_bytes_fini(&out);
    return rc;
}

static int tagged_add(const quire_graft_tool *t, const naming *by, const char *rule,
                      const json_t *alternatives)
{
    static const quire_graft_style words[] = {
        { "space", "<param name=\"", "\">", "</param>", word_member_add },
        { "space", "<atem:parameter name=\"", "\">", "</atem:parameter>", word_member_add },
        { "", "<|open|>argument key=\"", "\"<|sep|>", "<|close|>argument<|sep|>", word_member_add },
    };
    const quire_graft_style library = { .open = by->before, .member_add = tag_member_add };
    char marker[QUIRE_GRAFT_RULE_BYTES];
    const char *name;
    json_t *schema;
    size_t n;
    const char *text = quire_graft_rule(t->g, rule, &n);

    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(marker, sizeof marker, "\"%s", i == 0 ? "<param name=" : "<atem:parameter");
        if (text != NULL && memmem(text, n, marker, strlen(marker)) != NULL) {
            return span_replace(t, rule, marker, &words[i], alternatives);
        }
    }
    if (by == &namings[2]) {
        return span_replace(t, rule, by->before, &words[2], alternatives);
    }
    if (json_array_size(alternatives) > 1 && text != NULL) {
        /* Permutations are rules as well: "tool-F-args-N", "ling3-F-args-N". */
        (void)snprintf(marker, sizeof marker, "%s", by == &namings[1] ? "ling3-" : "tool-");
        return span_replace(t, rule, marker, &library, alternatives);
    }
    json_object_foreach(json_object_get(t->parameters, "properties"), name, schema)
    {
        char argument[QUIRE_GRAFT_RULE_BYTES];

        argument_rule(by, t->function, name, argument);
        if (argument[0] == '\0') {
            QUIRE_TRY(name_refuse(t, name));
        }
        QUIRE_TRY(tag_add(t, argument, schema));
    }
    return QUIRE_OK;
}

int quire_graft_tags(const quire_graft_tool *t, const json_t *alternatives)
{
    static const char *const round[] = { "\"(\"", "\")\"" };
    static const char *const curly[] = { "\"{\"", "\"}\"" };
    const naming *by = &namings[0];
    char rule[QUIRE_GRAFT_RULE_BYTES], call[QUIRE_GRAFT_RULE_BYTES];
    const char *text = NULL;
    size_t n = 0;

    for (size_t i = 0; i < sizeof namings / sizeof namings[0] && text == NULL; i++) {
        by = &namings[i];
        (void)snprintf(rule, sizeof rule, "%s", by->function);
        quire_graft_rule_name(t->function, "", rule, sizeof rule);
        text = quire_graft_rule(t->g, rule, &n);
    }
    if (text == NULL) {
        return QUIRE_OK;
    }
    (void)snprintf(call, sizeof call, "(\"%s\" \"(\")", t->function);
    if (n > strlen(call) && memcmp(text, call, strlen(call)) == 0) {
        return function_add(t, rule, alternatives, &quire_graft_python, round);
    }
    if (names_rule(text, n, "gemma4-dict")) {
        return function_add(t, rule, alternatives, &quire_graft_gemma, curly);
    }
    return tagged_add(t, by, rule, alternatives);
}
