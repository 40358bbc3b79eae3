/* chat_internal.h - declarations that the C and C++ files of chat formats share; for src/model
 * only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_INTERNAL_H
#define QUIRE_MODEL_CHAT_INTERNAL_H

#include "model/chat_format.h"

struct llama_model;

#ifdef __cplusplus
extern "C" {
#endif

/* The model as libllama loaded it: vocabulary and template. */
const struct llama_model *quire_model_llama(const quire_model *model);

/* ---- the engine of Jinja templates (chat_jinja.cpp, or chat_jinja_none.c) ---- */

typedef struct quire_chat_jinja quire_chat_jinja;

bool quire_chat_jinja_exists(void);
/* text: of a template, NULL = the model's own. Errors: as quire_chat_format_create(). */
int quire_chat_jinja_create(quire_chat_jinja **out, const quire_model *model, const char *text,
                            quire_error *err);
void quire_chat_jinja_destroy(quire_chat_jinja *jinja);
void quire_chat_jinja_abilities(const quire_chat_jinja *jinja, quire_chat_abilities *out);

typedef struct quire_chat_parser quire_chat_parser; /* shared by prompt and readers */
/* Errors: as quire_chat_format_apply(). Memory: rules->* and *parser belong to the parser; release
 * it. */
int quire_chat_jinja_apply(const quire_chat_jinja *jinja, const quire_chat_ask *ask,
                           quire_chat_parser **parser, quire_error *err);
void quire_chat_parser_rules(const quire_chat_parser *parser, quire_chat_rules *rules);
quire_chat_parser *quire_chat_parser_hold(quire_chat_parser *parser);
void quire_chat_parser_release(quire_chat_parser *parser);

/* The parser of a prompt; NULL where a built-in template has made it. */
quire_chat_parser *quire_chat_prompt_parser(const quire_chat_prompt *prompt);

/* A reading of an answer. The fields point into the reading. */
typedef struct quire_chat_reading quire_chat_reading;
int quire_chat_reading_create(quire_chat_reading **out, quire_chat_parser *parser,
                              quire_error *err);
void quire_chat_reading_destroy(quire_chat_reading *reading);
/* Read the whole answer so far. */
int quire_chat_reading_read(quire_chat_reading *reading, const char *text, size_t n, bool is_last,
                            quire_error *err);
void quire_chat_reading_answer(const quire_chat_reading *reading, quire_chat_answer *out);

/* ---- grammars that begin at a trigger ---- */

typedef struct quire_chat_place {
    size_t at;    /* of the match */
    size_t begin; /* of the grammar: the first group of the match that has text, or the match */
} quire_chat_place;

/* The place of a trigger's pattern in a text of at most some hundred bytes; patterns of a whole
 * answer count only at its start. */
bool quire_chat_pattern_find(const char *pattern, const char *text, size_t n, bool is_at_start,
                             quire_chat_place *place);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_MODEL_CHAT_INTERNAL_H */
