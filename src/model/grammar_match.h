/* grammar_match.h - texts under a compiled grammar, byte by byte, in bounded time.
 *
 * A grammar can read a text in exponentially many ways. All of them are kept in one graph of stacks
 * (Tomita, "Efficient parsing for natural language", 1986; Scott and Johnstone, "GLL parsing",
 * 2010):
 *
 *   thread   the element that the next character has to fit, and a node
 *   node     the element to go on with when the rule of the thread has ended, and the column (the
 *            number of the character) at which the rule began; edges lead to the nodes of those who
 *            called the rule
 *
 * Calls of a rule in one column that return to the same element share their node. A call at the end
 * of an alternative makes no node, so repetitions do not grow the graph. Behind each text that is
 * fed, nodes that mean the same become one, and nodes of the past are forgotten. A character costs
 * at most the product of elements and edges in steps, however many ways there are.
 *
 * A matcher holds the state behind the text so far. Texts are tested from this state on without
 * changing it. Texts in ascending order share the work on their common beginnings.
 *
 * A text is UTF-8 without zero bytes. The text may end within a character, if any character with
 * these first bytes fits.
 *
 * Bounds. A budget of steps (quire_grammar_match_refill) and of nodes; beyond it a call returns
 * QUIRE_LIMIT. The matcher is of no more use then, nor after QUIRE_NOMEM, until it is reset.
 *
 * Thread: one at a time per matcher.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAMMAR_MATCH_H
#define QUIRE_MODEL_GRAMMAR_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/grammar.h"

/* Steps of a budget: a step is a thread, an edge or a place of a table that is looked at, and takes
 * about 10 ns. */
#define QUIRE_GRAMMAR_STEPS_MAX (4u << 20)
/* Nodes, edges, threads, and elements gone on with in one column: of each at most so many. A
 * matcher takes at most some 50 MiB so. */
#define QUIRE_GRAMMAR_NODES_MAX (512u << 10)
/* A text that is tested. */
#define QUIRE_GRAMMAR_TEXT_MAX 256u

typedef struct quire_grammar_match quire_grammar_match;

/* The state before the first character, with a full budget. grammar: borrowed. Errors: QUIRE_LIMIT,
 * QUIRE_NOMEM. */
int quire_grammar_match_create(quire_grammar_match **out, const quire_grammar *grammar);
void quire_grammar_match_destroy(quire_grammar_match *match);
/* Begin again, with a full budget. Errors: as quire_grammar_match_create(). */
int quire_grammar_match_reset(quire_grammar_match *match);
void quire_grammar_match_refill(quire_grammar_match *match);

/* Whether a text of 1 to QUIRE_GRAMMAR_TEXT_MAX bytes can follow: 1, 0, or an error. n_shared: the
 * number of bytes at its beginning that are those of the text of the last test; 0 for the first
 * test behind a feed. */
int quire_grammar_match_test(quire_grammar_match *match, const char *text, size_t n,
                             size_t n_shared);
/* Let a text follow: 1, or an error. 0: it cannot follow; the state is then as before, or, for a
 * text of more than QUIRE_GRAMMAR_TEXT_MAX bytes, of no more use. */
int quire_grammar_match_feed(quire_grammar_match *match, const char *text, size_t n);
/* Whether the text so far is a whole text of the grammar. */
bool quire_grammar_match_is_whole(const quire_grammar_match *match);

typedef struct quire_grammar_match_counts {
    uint64_t n_steps; /* of the budget */
    uint32_t n_nodes, n_edges, n_threads;
} quire_grammar_match_counts;
quire_grammar_match_counts quire_grammar_match_count(const quire_grammar_match *match);

#endif /* QUIRE_MODEL_GRAMMAR_MATCH_H */
