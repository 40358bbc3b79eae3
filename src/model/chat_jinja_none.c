/* chat_jinja_none.c - in place of chat_jinja.cpp where llama.cpp's common library is missing.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_internal.h"

#include "base/check.h"

bool quire_chat_jinja_exists(void)
{
    return false;
}

int quire_chat_jinja_create(quire_chat_jinja **out, const quire_model *model, const char *text,
                            quire_error *err)
{
    (void)model;
    (void)text;
    *out = NULL;
    return quire_error_set(err, QUIRE_UNSUPP,
                           "chat template: this program was built without llama.cpp's common "
                           "library, which runs templates");
}

void quire_chat_jinja_destroy(quire_chat_jinja *jinja)
{
    QUIRE_CHECK(jinja == NULL);
}

void quire_chat_jinja_abilities(const quire_chat_jinja *jinja, quire_chat_abilities *out)
{
    QUIRE_CHECK(jinja != NULL);
    *out = (quire_chat_abilities){ 0 };
}

int quire_chat_jinja_apply(const quire_chat_jinja *jinja, const quire_chat_ask *ask,
                           quire_chat_parser **parser, quire_error *err)
{
    (void)ask;
    QUIRE_CHECK(jinja != NULL);
    *parser = NULL;
    return quire_error_set(err, QUIRE_UNSUPP, "chat template: not run by this program");
}

void quire_chat_parser_rules(const quire_chat_parser *parser, quire_chat_rules *rules)
{
    QUIRE_CHECK(parser != NULL);
    *rules = (quire_chat_rules){ 0 };
}

quire_chat_parser *quire_chat_parser_hold(quire_chat_parser *parser)
{
    QUIRE_CHECK(parser != NULL);
    return parser;
}

void quire_chat_parser_release(quire_chat_parser *parser)
{
    QUIRE_CHECK(parser == NULL);
}

int quire_chat_reading_create(quire_chat_reading **out, quire_chat_parser *parser, quire_error *err)
{
    QUIRE_CHECK(parser != NULL);
    *out = NULL;
    return quire_error_set(err, QUIRE_UNSUPP, "answer: not read by this program");
}

void quire_chat_reading_destroy(quire_chat_reading *reading)
{
    QUIRE_CHECK(reading == NULL);
}

int quire_chat_reading_read(quire_chat_reading *reading, const char *text, size_t n, bool is_last,
                            quire_error *err)
{
    (void)text;
    (void)n;
    (void)is_last;
    QUIRE_CHECK(reading != NULL);
    return quire_error_set(err, QUIRE_UNSUPP, "answer: not read by this program");
}

void quire_chat_reading_answer(const quire_chat_reading *reading, quire_chat_answer *out)
{
    QUIRE_CHECK(reading != NULL);
    *out = (quire_chat_answer){ 0 };
}

bool quire_chat_pattern_find(const char *pattern, const char *text, size_t n, bool is_at_start,
                             quire_chat_place *place)
{
    (void)pattern;
    (void)text;
    (void)n;
    (void)is_at_start;
    *place = (quire_chat_place){ 0, 0 };
    return false;
}
