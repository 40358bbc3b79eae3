/* schema_graft.c - see schema_graft.h.
 *
 * A grammar is a line for each rule, "name ::= text". The rules of our grammars get a prefix of
 * their own for each schema; those that all of our grammars share are taken once.
 *
 * SPDX-License-Identifier: MIT */
#include "server/schema_graft_internal.h"

#include "base/check.h"
#include "model/chat_format.h"
#include "model/grammar.h"
#include "server/json_schema.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARED_PREFIX "shared-"
#define MARK          QUIRE_GRAFT_MARK

/* ---- names in a grammar ---- */

const char *quire_graft_name(const char *at, const char *end, size_t *n)
{
    while (at < end) {
        const char closing = *at == '"' ? '"' : *at == '[' ? ']' : *at == '{' ? '}' : '\0';

        if (closing != '\0') {
            for (at++; at < end && *at != closing; at++) {
                at += *at == '\\' ? 1 : 0;
            }
            at++;
        } else if (isalnum((unsigned char)*at) || *at == '-') {
            const char *first = at;

            while (at < end && (isalnum((unsigned char)*at) || *at == '-')) {
                at++;
            }
            *n = (size_t)(at - first);
            return first;
        } else {
            at++;
        }
    }
    return NULL;
}

/* Append a text with a prefix before each name; a name that begins with one of the rules of one
 * schema ("s-", "def-") gets `own`. */
static void rename_all(const char *text, const char *end, const char *own, quire_bytes *out)
{
    size_t n;

    for (const char *name; (name = quire_graft_name(text, end, &n)) != NULL; text = name + n) {
        const bool is_own = strncmp(name, "s-", 2) == 0 || strncmp(name, "def-", 4) == 0 ||
                            (n == 4 && strncmp(name, "root", 4) == 0);

        (void)quire_bytes_add(out, text, (size_t)(name - text));
        (void)quire_bytes_addf(out, "%s", is_own ? own : SHARED_PREFIX);
        (void)quire_bytes_add(out, name, n);
    }
    (void)quire_bytes_add(out, text, (size_t)(end - text));
}

/* Index the library's rules: name -> place of the text. */
static int rules_index(quire_graft *g)
{
    for (const char *line = g->grammar; *line != '\0';) {
        const size_t n_line = strcspn(line, "\n");
        const char *mark = memmem(line, n_line, MARK, strlen(MARK));

        if (mark != NULL &&
            json_object_setn_new(g->index, line, (size_t)(mark - line),
                                 json_integer(mark + strlen(MARK) - g->grammar)) != 0) {
            return QUIRE_NOMEM;
        }
        line += n_line + (line[n_line] != '\0' ? 1 : 0);
    }
    return QUIRE_OK;
}

const char *quire_graft_rule(const quire_graft *g, const char *name, size_t *n)
{
    const json_t *place = json_object_get(g->index, name);
    const char *text = place != NULL ? g->grammar + json_integer_value(place) : NULL;

    *n = text != NULL ? strcspn(text, "\n") : 0;
    return text;
}

/* ---- our rules ---- */

/* The rules that all grammars of schemas share, behind the first line. */
static const char *shared_rules(void)
{
    return strchr(quire_json_object_grammar(), '\n') + 1;
}

static void shared_add(quire_graft *g)
{
    const char *shared = shared_rules();

    if (!g->has_shared) {
        rename_all(shared, shared + strlen(shared), "", &g->rules);
        g->has_shared = true;
    }
}

/* Add the rules of a schema's grammar. */
static int rules_add(quire_graft *g, const quire_bytes *gbnf, char root[QUIRE_GRAFT_ROOT_BYTES])
{
    const char *shared = shared_rules();
    const size_t n_shared = strlen(shared);
    char prefix[32];

    QUIRE_CHECK(gbnf->n > n_shared && strcmp(gbnf->data + gbnf->n - n_shared, shared) == 0);
    (void)snprintf(prefix, sizeof prefix, "schema%u-", g->n_schemas++);
    (void)snprintf(root, QUIRE_GRAFT_ROOT_BYTES, "%sroot", prefix);
    rename_all(gbnf->data, gbnf->data + gbnf->n - n_shared, prefix, &g->rules);
    shared_add(g);
    return g->rules.status;
}

int quire_graft_any_json(quire_graft *g, quire_bytes *out)
{
    shared_add(g);
    return quire_bytes_addf(out, SHARED_PREFIX "value");
}

/* Let a rule be any object. */
static int any_object_add(quire_graft *g, const char *rule)
{
    shared_add(g);
    return json_object_set_new(g->roots, rule, json_string(SHARED_PREFIX "object")) == 0
               ? g->rules.status
               : QUIRE_NOMEM;
}

void quire_graft_rule_name(const char *text, const char *behind, char *out, size_t size)
{
    const size_t n_behind = strlen(behind);
    size_t n = strlen(out);
    bool is_run = false;

    for (; *text != '\0' && n + 1 < size; text++) {
        const bool is_kept = isalnum((unsigned char)*text) || *text == '-';

        if (is_kept || !is_run) {
            out[n++] = is_kept ? *text : '-';
        }
        is_run = !is_kept;
    }
    if (*text != '\0' || n + n_behind + 1 > size) {
        out[0] = '\0';
        return;
    }
    memcpy(out + n, behind, n_behind + 1);
}

/* Arguments are an object, whether their schema says so or not. */
static json_t *arguments_of(json_t *parameters)
{
    json_t *copy = json_copy(parameters);

    if (copy != NULL && json_object_get(copy, "type") == NULL) {
        (void)json_object_set_new(copy, "type", json_string("object"));
    }
    return copy;
}

int quire_graft_room(quire_graft *g, size_t n)
{
    const size_t n_ours = g->rules.n - strlen(g->grammar) + g->n_texts;

    if (n_ours + n > QUIRE_GRAMMAR_BYTES_MAX) {
        return quire_error_set(&g->cause, QUIRE_LIMIT, "its grammar has more than %u bytes",
                               QUIRE_GRAMMAR_BYTES_MAX);
    }
    return QUIRE_OK;
}

int quire_graft_schema(quire_graft *g, const json_t *whole, const json_t *schema,
                       bool is_known_only, char root[QUIRE_GRAFT_ROOT_BYTES])
{
    quire_bytes gbnf = { 0 };
    int rc = quire_graft_room(g, 0);

    if (rc == QUIRE_OK) {
        rc = quire_json_schema_grammar_within(whole, schema, is_known_only, &gbnf, &g->cause);
    }
    if (rc == QUIRE_OK) {
        rc = rules_add(g, &gbnf, root);
    }
    quire_bytes_fini(&gbnf);
    return rc;
}

int quire_graft_replace(quire_graft *g, const char *rule, const char *text)
{
    json_t *other = json_object_get(g->roots, rule) == NULL ? json_string(text) : json_null();

    g->n_texts += strlen(text);
    return json_object_set_new(g->roots, rule, other) == 0 ? QUIRE_OK : QUIRE_NOMEM;
}

/* Replace a rule by a schema. */
static int schema_add(quire_graft *g, const char *rule, const json_t *schema, bool is_known_only)
{
    char root[QUIRE_GRAFT_ROOT_BYTES];
    const int rc = quire_graft_schema(g, schema, schema, is_known_only, root);

    return rc == QUIRE_OK ? quire_graft_replace(g, rule, root) : rc;
}

/* Replace the rule of all arguments. */
static int arguments_add(quire_graft *g, const char *rule, json_t *parameters, bool is_strict)
{
    json_t *schema;
    int rc;

    if (json_object_get(g->roots, rule) != NULL) {
        return quire_graft_replace(g, rule, "");
    }
    schema = arguments_of(parameters);
    QUIRE_FAIL_IF(schema == NULL, QUIRE_NOMEM);
    rc = schema_add(g, rule, schema, !is_strict);
    json_decref(schema);
    /* A schema beyond the limits would be too much for the library, too. */
    return rc == QUIRE_LIMIT && !is_strict ? any_object_add(g, rule) : rc;
}

/* The cause of a tool without alternatives. */
static int alternatives_refuse(quire_graft *g, int rc)
{
    if (rc == QUIRE_INVAL) {
        return quire_error_set(&g->cause, rc,
                               "the model's form of calls cannot hold anyOf or oneOf of parameters "
                               "beside or within another one");
    }
    return rc == QUIRE_LIMIT
               ? quire_error_set(&g->cause, rc,
                                 "parameters: more than %u members of anyOf or oneOf, or more "
                                 "than %u schemas",
                                 QUIRE_TOOL_ALTERNATIVES_MAX, QUIRE_TOOL_VISITS_MAX)
               : rc;
}

/* Replace the rules of a function whose arguments are written one by one. */
static int tags_add(quire_graft *g, const char *function, const json_t *parameters, bool is_strict)
{
    quire_tool_root root = { parameters, 0 };
    json_t *alternatives;
    int rc = quire_tool_alternatives(&root, &alternatives);
    const quire_graft_tool t = { g, function, &root, json_array_get(alternatives, 0), is_strict };
    quire_bytes unused = { 0 };

    rc = rc == QUIRE_OK ? rc : alternatives_refuse(g, rc);
    if (rc == QUIRE_OK && is_strict) {
        rc = quire_json_schema_grammar(parameters, &unused, &g->cause);
        quire_bytes_fini(&unused);
    }
    if (rc == QUIRE_OK && (json_array_size(alternatives) > 1 ||
                           json_object_size(json_object_get(t.parameters, "properties")) > 0)) {
        rc = quire_graft_tags(&t, alternatives);
    }
    if (rc == QUIRE_OK) {
        rc = quire_graft_visit(&t, 0); /* too much work leaves some arguments without schemas */
    }
    json_decref(alternatives);
    return rc;
}

static int tool_add(quire_graft *g, json_t *tool, quire_error *err)
{
    json_t *function = json_object_get(tool, "function");
    json_t *parameters = json_object_get(function, "parameters");
    const char *name = json_string_value(json_object_get(function, "name"));
    const bool is_strict = json_is_true(json_object_get(function, "strict"));
    char rule[QUIRE_GRAFT_RULE_BYTES] = "tool-";
    size_t n;
    int rc;

    if (name == NULL || json_object_size(parameters) == 0) {
        return QUIRE_OK; /* without arguments: the library's rule is the empty object */
    }
    quire_graft_rule_name(name, "-schema", rule, sizeof rule);
    rc = quire_graft_rule(g, rule, &n) != NULL ? arguments_add(g, rule, parameters, is_strict)
                                               : tags_add(g, name, parameters, is_strict);
    if (rc < 0 && rc != QUIRE_NOMEM && is_strict) {
        return quire_error_set(err, rc, "tools: the strict function \"%.64s\": %.600s", name,
                               g->cause.message);
    }
    return rc == QUIRE_NOMEM ? rc : QUIRE_OK;
}

static int tools_add(quire_graft *g, const char *text, quire_error *err)
{
    json_t *tools = text != NULL ? json_loads(text, 0, NULL) : NULL;
    int rc = text != NULL && tools == NULL ? QUIRE_NOMEM : QUIRE_OK;

    for (size_t i = 0; i < json_array_size(tools) && rc == QUIRE_OK; i++) {
        rc = tool_add(g, json_array_get(tools, i), err);
    }
    json_decref(tools);
    return rc;
}

/* The rule of the answer's schema is named in one of two ways. The library's rule in its place
 * would allow more, which nobody would notice. */
static int answer_add(quire_graft *g, const char *grammar, const char *text, quire_error *err)
{
    static const char longer[] = "response-format-schema";
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    int rc;

    QUIRE_FAIL_IF(schema == NULL, QUIRE_NOMEM);
    rc = schema_add(g, strstr(grammar, longer) != NULL ? longer : "response-format", schema, false);
    json_decref(schema);
    return rc < 0 && rc != QUIRE_NOMEM
               ? quire_error_set(err, rc, "tools: the schema of the answer beside them: %.600s",
                                 g->cause.message)
               : rc;
}

/* ---- the rules that are used ---- */

typedef struct rule {
    const char *name, *text, *end; /* end: of the text; the name ends at the mark */
    bool is_used;
} rule;

typedef struct rule_table {
    rule *rules;
    size_t n;
    size_t *waiting; /* [n] used rules whose texts were not looked at yet */
    size_t n_waiting;
    json_t *index; /* name -> place in rules */
} rule_table;

static void use(rule_table *t, const char *name, size_t n)
{
    json_t *at = json_object_getn(t->index, name, n);
    const size_t i = (size_t)json_integer_value(at);

    if (at != NULL && !t->rules[i].is_used) {
        t->rules[i].is_used = true;
        t->waiting[t->n_waiting++] = i;
    }
}

/* The rule in a line; false when there is none. */
static bool rule_read(const quire_graft *g, const char *line, const char *end, rule *out,
                      size_t *n_name)
{
    const char *mark = strstr(line, MARK);
    const char *other;

    if (mark == NULL || mark >= end) {
        return false;
    }
    *n_name = (size_t)(mark - line);
    *out = (rule){ line, mark + strlen(MARK), end, false };
    other = json_string_value(json_object_getn(g->roots, line, *n_name));
    if (other != NULL) {
        out->text = other;
        out->end = other + strlen(other);
    }
    return true;
}

static int table_fill(rule_table *t, const quire_graft *g)
{
    const char *end;

    for (const char *line = g->rules.data; *line != '\0'; line = *end != '\0' ? end + 1 : end) {
        size_t n_name;

        end = line + strcspn(line, "\n");
        if (!rule_read(g, line, end, &t->rules[t->n], &n_name)) {
            continue;
        }
        QUIRE_FAIL_IF(
            json_object_setn_new(t->index, line, n_name, json_integer((json_int_t)t->n)) != 0,
            QUIRE_NOMEM);
        t->n++;
    }
    return QUIRE_OK;
}

static int used_add(rule_table *t, quire_bytes *out)
{
    use(t, "root", strlen("root"));
    while (t->n_waiting > 0) {
        const rule *r = &t->rules[t->waiting[--t->n_waiting]];
        const char *at = r->text;
        size_t n;

        (void)quire_bytes_add(out, r->name, (size_t)(strstr(r->name, MARK) - r->name));
        (void)quire_bytes_addf(out, MARK);
        (void)quire_bytes_add(out, r->text, (size_t)(r->end - r->text));
        (void)quire_bytes_add(out, "\n", 1);
        while ((at = quire_graft_name(at, r->end, &n)) != NULL) {
            use(t, at, n);
            at += n;
        }
    }
    return out->status;
}

/* Append the rules that root leads to, the replaced ones with their other texts. */
static int rules_write(const quire_graft *g, quire_bytes *out)
{
    rule_table t = { .index = json_object() };
    size_t n_lines = 1;
    int rc = QUIRE_NOMEM;

    for (const char *c = g->rules.data; *c != '\0'; c++) {
        n_lines += *c == '\n';
    }
    t.rules = calloc(n_lines, sizeof t.rules[0]);
    t.waiting = calloc(n_lines, sizeof t.waiting[0]);
    if (t.rules != NULL && t.waiting != NULL && t.index != NULL) {
        rc = table_fill(&t, g);
    }
    if (rc == QUIRE_OK) {
        rc = used_add(&t, out);
    }
    free(t.rules);
    free(t.waiting);
    json_decref(t.index);
    return rc;
}

int quire_schema_graft(const char *grammar, const char *tools, const char *schema, quire_bytes *out,
                       quire_error *err)
{
    quire_graft g = { .grammar = grammar,
                      .index = json_object(),
                      .roots = json_object(),
                      .cause = QUIRE_ERROR_INIT };
    int rc = g.roots != NULL && g.index != NULL ? rules_index(&g) : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        (void)quire_bytes_add(&g.rules, grammar, strlen(grammar));
        rc = quire_bytes_add(&g.rules, "\n", 1);
    }
    if (rc == QUIRE_OK) {
        rc = tools_add(&g, tools, err);
    }
    if (rc == QUIRE_OK && schema != NULL) {
        rc = answer_add(&g, grammar, schema, err);
    }
    if (rc == QUIRE_OK) {
        rc = rules_write(&g, out);
    }
    quire_bytes_fini(&g.rules);
    json_decref(g.index);
    json_decref(g.roots);
    return rc == QUIRE_NOMEM ? quire_error_set(err, rc, "no memory for the grammar of tools") : rc;
}
