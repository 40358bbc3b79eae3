/* constraint_fields.c - fields that constrain an answer's text: OpenAI's, llama-server's, vLLM's
 * and SGLang's names for a grammar, a schema, a regular expression and a list of texts.
 *
 * One request has one of them: two could contradict each other.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"
#include "server/json_in.h"
#include "server/json_schema.h"
#include "server/library_schema.h"
#include "server/regex_grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES_MAX QUIRE_SCHEMA_VALUES_MAX

/* A field on its way: its object, and the field that came before it. */
typedef struct constraint {
    quire_generation *gen;
    quire_fields *fields;
    const char *before; /* name of the first field; NULL = none so far */
} constraint;

/* Whether this field may set the grammar. Errors: fields->err. */
static bool is_first(constraint *c, quire_fields *fields, const char *name)
{
    if (c->before != NULL) {
        quire_field_error(fields, name, "not together with %s", c->before);
        return false;
    }
    c->before = name;
    c->gen->constraint = fields->path != NULL ? fields->path : name;
    return fields->err->http == 0;
}

static void set_grammar(constraint *c, const char *text)
{
    free(c->gen->grammar);
    c->gen->grammar = strdup(text);
    c->gen->params.sampler.grammar = c->gen->grammar;
    if (c->gen->grammar == NULL) {
        (void)quire_api_error_nomem(c->fields->err);
    }
}

/* A chat format can place JSON behind thoughts. So a model that thinks gets the schema instead of a
 * grammar that holds from the first token on. */
static bool goes_behind_thoughts(constraint *c, json_t *schema)
{
    quire_generation *gen = c->gen;
    const quire_chat_format *format = gen->http->server->chat;
    quire_chat_abilities abilities = { 0 };
    json_t *form;

    if (gen->is_chat && format != NULL) {
        quire_chat_format_abilities(format, &abilities);
    }
    if (!abilities.has_thinking) {
        return false;
    }
    free(gen->schema);
    free(gen->plain_schema);
    form = quire_library_schema(schema);
    gen->schema = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    gen->plain_schema = form != NULL ? json_dumps(form, JSON_COMPACT) : NULL;
    if (gen->schema == NULL || gen->plain_schema == NULL) {
        (void)quire_api_error_nomem(c->fields->err);
    }
    json_decref(form);
    return true;
}

/* ---- schemas ---- */

static void set_schema(constraint *c, quire_fields *fields, const char *name, json_t *schema)
{
    quire_bytes grammar = { 0 };
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_json_schema_grammar(schema, &grammar, &err) == QUIRE_OK) {
        if (!goes_behind_thoughts(c, schema)) {
            set_grammar(c, grammar.data);
        }
    } else if (err.status == QUIRE_NOMEM) {
        (void)quire_api_error_nomem(fields->err);
    } else {
        quire_field_error(fields, name, "%s", err.message);
    }
    quire_bytes_fini(&grammar);
}

static void set_json_object(constraint *c)
{
    json_t *any = json_pack("{s:s}", "type", "object");

    if (any == NULL) {
        (void)quire_api_error_nomem(c->fields->err);
    } else if (!goes_behind_thoughts(c, any)) {
        set_grammar(c, quire_json_object_grammar());
    }
    json_decref(any);
}

/* A schema, or a text that is one. */
static void set_schema_or_text(constraint *c, quire_fields *fields, const char *name, json_t *value)
{
    json_error_t error;
    json_t *schema;

    if (!json_is_string(value)) {
        set_schema(c, fields, name, value);
        return;
    }
    schema = quire_json_read(json_string_value(value), json_string_length(value),
                             JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (schema == NULL) {
        quire_field_error(fields, name, "the text is no JSON schema: line %d, column %d: %s",
                          error.line, error.column, error.text);
        return;
    }
    set_schema(c, fields, name, schema);
    json_decref(schema);
}

/* A field whose value is a schema. false and "" ask for nothing. */
static void read_schema(constraint *c, quire_fields *fields, const char *name)
{
    json_t *value = quire_field(fields, name);
    const bool asks = value != NULL && !json_is_false(value) &&
                      !(json_is_string(value) && json_string_length(value) == 0);

    if (asks && is_first(c, fields, name)) {
        set_schema_or_text(c, fields, name, value);
    }
}

/* ---- regular expressions and lists ---- */

static void read_regex(constraint *c, quire_fields *fields, const char *name)
{
    static const quire_regex_opts opts = { .is_whole = true };
    const char *pattern = quire_field_string(fields, name, QUIRE_REGEX_BYTES_MAX);
    quire_regex_result result;
    quire_bytes grammar = { 0 };

    if (pattern == NULL || pattern[0] == '\0' || !is_first(c, fields, name)) {
        return;
    }
    (void)quire_bytes_addf(&grammar, "root ::= ");
    if (quire_regex_grammar(pattern, &opts, &grammar, &result) == QUIRE_OK) {
        set_grammar(c, grammar.data);
    } else if (result.why == NULL) {
        (void)quire_api_error_nomem(fields->err);
    } else {
        quire_field_error(fields, name, "%s \"%.64s\"", result.why, result.at);
    }
    quire_bytes_fini(&grammar);
}

static void read_choice(constraint *c, quire_fields *fields, const char *name)
{
    json_t *list = quire_field_array(fields, name, CHOICES_MAX);
    quire_bytes grammar = { 0 };

    if (json_array_size(list) == 0 || !is_first(c, fields, name)) {
        return;
    }
    (void)quire_bytes_addf(&grammar, "root ::= ");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *text = json_array_get(list, i);

        if (!json_is_string(text) || json_string_length(text) == 0) {
            quire_field_error(fields, name, "element %zu must be a string, not empty", i);
            break;
        }
        (void)quire_bytes_addf(&grammar, "%s", i > 0 ? " | " : "");
        (void)quire_grammar_literal_add(&grammar, "", json_string_value(text));
    }
    if (grammar.status < 0) {
        (void)quire_api_error_nomem(fields->err);
    } else if (fields->err->http == 0) {
        set_grammar(c, grammar.data);
    }
    quire_bytes_fini(&grammar);
}

/* ---- groups of fields ---- */

/* A schema in the place of another type would be dropped without a word. */
static void refuse_inner_schema(quire_fields *format, const char *type)
{
    if (type != NULL && quire_field(format, "json_schema") != NULL) {
        quire_field_error(format, "json_schema", "needs the type \"json_schema\"");
    }
}

/* OpenAI's response_format; llama-server also takes the schema beside the type. */
static void read_response_format(constraint *c)
{
    json_t *object = quire_field_object(c->fields, "response_format");
    quire_fields format = { .object = object, .path = "response_format", .err = c->fields->err };
    quire_fields inner = { .path = "response_format.json_schema", .err = c->fields->err };
    json_t *schema;
    const char *type;
    bool has_schema;

    if (object == NULL) {
        return;
    }
    (void)quire_field_required(&format, "type");
    type = quire_field_string(&format, "type", 32);
    schema = quire_field(&format, "schema");
    if (type == NULL || strcmp(type, "text") == 0) {
        if (schema != NULL && type != NULL) {
            quire_field_error(&format, "schema", "needs the type \"json_schema\"");
        }
        refuse_inner_schema(&format, type);
        return;
    }
    has_schema = strcmp(type, "json_schema") == 0;
    if (!has_schema) {
        refuse_inner_schema(&format, type);
    }
    if (!has_schema && strcmp(type, "json_object") != 0) {
        quire_field_error(&format, "type", "must be \"text\", \"json_object\" or \"json_schema\"");
        return;
    }
    if (!is_first(c, c->fields, "response_format")) {
        return;
    }
    if (schema != NULL) {
        set_schema(c, c->fields, "response_format", schema);
    } else if (!has_schema) {
        set_json_object(c);
    } else {
        (void)quire_field_required(&format, "json_schema");
        inner.object = quire_field_object(&format, "json_schema");
        if (inner.object != NULL && quire_field_required(&inner, "schema") != NULL) {
            set_schema(c, c->fields, "response_format", quire_field(&inner, "schema"));
        }
    }
}

/* The members that read_structured_outputs() knows, and those that change no answer here: objects
 * with properties have no further ones anyway, and there is one implementation. */
static bool is_structured_member(const char *name)
{
    static const char *const names[] = {
        "json",
        "regex",
        "choice",
        "json_object",
        "grammar",
        "structural_tag",
        "whitespace_pattern",
        "disable_any_whitespace",
        "disable_fallback",
        "disable_additional_properties",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Every member constrains, so one that nobody knows is refused. */
static void refuse_other_members(quire_fields *fields)
{
    const char *name;
    json_t *value;

    json_object_foreach(fields->object, name, value)
    {
        if (!is_structured_member(name) && !json_is_null(value)) {
            quire_field_error(fields, name, "is no member of structured_outputs");
        }
    }
}

/* vLLM's newer form. */
static void read_structured_outputs(constraint *c)
{
    json_t *object = quire_field_object(c->fields, "structured_outputs");
    quire_fields fields = { .object = object, .path = "structured_outputs", .err = c->fields->err };

    if (object == NULL) {
        return;
    }
    read_schema(c, &fields, "json");
    read_regex(c, &fields, "regex");
    read_choice(c, &fields, "choice");
    if (quire_field_bool(&fields, "json_object", false) && is_first(c, &fields, "json_object")) {
        set_json_object(c);
    }
    quire_field_refuse(&fields, "grammar", QUIRE_FIELD_NOTHING, "use the field grammar, as GBNF");
    quire_field_refuse(&fields, "structural_tag", QUIRE_FIELD_NOTHING, "use a grammar");
    quire_field_refuse(&fields, "whitespace_pattern", QUIRE_FIELD_NOTHING,
                       "white space is a blank, or a line break with blanks");
    quire_field_refuse(&fields, "disable_any_whitespace", "false",
                       "white space is a blank, or a line break with blanks");
    refuse_other_members(&fields);
}

void quire_constraint_read(quire_generation *gen, quire_fields *fields)
{
    const char *grammar = quire_field_string(fields, "grammar", QUIRE_GRAMMAR_BYTES_MAX);
    constraint c = { gen, fields, NULL };

    if (grammar != NULL && grammar[0] != '\0' && is_first(&c, fields, "grammar")) {
        set_grammar(&c, grammar);
    }
    read_response_format(&c);
    read_schema(&c, fields, "json_schema");
    read_schema(&c, fields, "guided_json");
    read_regex(&c, fields, "guided_regex");
    read_choice(&c, fields, "guided_choice");
    read_regex(&c, fields, "regex");
    if (quire_field_bool(fields, "guided_json_object", false) &&
        is_first(&c, fields, "guided_json_object")) {
        set_json_object(&c);
    }
    read_structured_outputs(&c);
}
