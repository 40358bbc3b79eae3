/* chat_fixture.h - templates of models, conversations, tools; for tests of chat formats.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_CHAT_FIXTURE_H
#define QUIRE_TESTS_CHAT_FIXTURE_H

#include "model/chat_format.h"

/* The text of a template of the pinned tree's models/templates, by its name without ".jinja".
 * Memory: free(). */
char *chat_fixture_template(const char *name);
/* All of their names, sorted; [*n]. Memory: static. */
const char *const *chat_fixture_names(size_t *n);

/* A small model without a template of its own. Memory: quire_model_close(). */
quire_model *chat_fixture_model(void);

/* The format of a template's text; fails the test when there is none. */
quire_chat_format *chat_fixture_format(const quire_model *model, const char *text);

typedef struct chat_case {
    const char *name;
    quire_chat_ask ask;
} chat_case;
/* Conversations: plain, tools, a history with calls, thoughts, thinking off. [*n] */
const chat_case *chat_fixture_cases(size_t *n);

#endif /* QUIRE_TESTS_CHAT_FIXTURE_H */
