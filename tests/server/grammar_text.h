/* grammar_text.h - texts under a grammar: random ones, and whether it takes a given one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_GRAMMAR_TEXT_H
#define QUIRE_TESTS_GRAMMAR_TEXT_H

#include <stdbool.h>

#include "base/rng.h"
#include "model/model.h"

/* A model with a token for each byte, BPE. Memory: quire_model_close(). */
quire_model *grammar_text_model(void);

/* Text under a grammar with random logits; NULL when it did not end in time. Ends of strings and
 * lists are likely. Memory: free(). */
char *grammar_text_random(const quire_model *model, const char *gbnf, quire_rng *rng);
/* Whether the grammar takes the text, from its first character to its end. The model has a token
 * for each byte of it. */
bool grammar_text_is_taken(const quire_model *model, const char *gbnf, const char *text);

#endif /* QUIRE_TESTS_GRAMMAR_TEXT_H */
