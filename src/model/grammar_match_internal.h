/* grammar_match_internal.h - the graph of stacks of a matcher; for grammar_match*.c only.
 *
 * Arrays of nodes, edges and threads grow at their end alone. A level is the state behind some
 * bytes of a tested text, and remembers the lengths of the arrays. To go back to a level is to
 * forget all behind these lengths. Nodes of a level get edges in their own column alone, so levels
 * before it never change.
 *
 * Columns have numbers that are not used twice. A table whose entries name their column is emptied
 * by the next column.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAMMAR_MATCH_INTERNAL_H
#define QUIRE_MODEL_GRAMMAR_MATCH_INTERNAL_H

#include "model/grammar_internal.h"
#include "model/grammar_match.h"

#define QUIRE_MATCH_BOTTOM 0u /* the node of the whole text */

typedef struct quire_match_thread {
    uint32_t element;
    uint32_t node;
} quire_match_thread;

typedef struct quire_match_node {
    uint32_t then;  /* the element behind the call */
    uint32_t ended; /* the last column in which the called rule ended */
    uint32_t edge;  /* the first one */
} quire_match_node;

typedef struct quire_match_edge {
    uint32_t node; /* of the caller */
    uint32_t next;
} quire_match_edge;

/* A thread that is there already in a column. */
typedef struct quire_match_seen {
    quire_match_thread thread;
    uint32_t column;
} quire_match_seen;

/* The call of a rule by an element, in the last column that had one. */
typedef struct quire_match_call {
    uint32_t column;
    uint32_t node;
} quire_match_call;

/* A node in a table by its meaning. */
typedef struct quire_match_interned {
    uint32_t hash;
    uint32_t node; /* NONE: an empty place */
} quire_match_interned;

/* The bytes of a character so far. */
typedef struct quire_match_partial {
    uint32_t value;
    uint8_t n_left;
    uint8_t low, high; /* the next byte */
} quire_match_partial;

typedef struct quire_match_level {
    uint32_t first, n_threads;
    uint32_t n_nodes, n_edges; /* at its end */
    bool is_whole;
    quire_match_partial partial;
} quire_match_level;

struct quire_grammar_match {
    const quire_grammar *grammar;
    quire_match_thread *threads, *work;
    quire_match_node *nodes;
    quire_match_edge *edges;
    uint32_t n_threads, n_work, n_nodes, n_edges;
    uint32_t threads_cap, work_cap, nodes_cap, edges_cap;
    uint32_t n_nodes_kept, n_edges_kept; /* of the last collection */
    /* Nodes of the state that mean the same are one node. */
    uint32_t n_nodes_state;         /* all before it were there for the last state */
    quire_match_interned *interned; /* [interned_cap], a power of two; NULL while empty */
    uint32_t n_interned, interned_cap;
    uint32_t *names; /* scratch of quire_match_intern() */
    uint32_t n_names, names_cap;
    uint32_t *parents; /* the same */
    uint32_t n_parents, parents_cap;
    uint32_t column;
    bool is_whole;           /* of the column */
    quire_match_call *calls; /* [elements] */
    quire_match_seen *seen;  /* [seen_cap], a power of two */
    uint32_t n_seen, seen_cap;
    uint64_t n_steps;
    quire_match_level levels[QUIRE_GRAMMAR_TEXT_MAX + 1]; /* the first one is the state */
    size_t n_walked; /* bytes of the last text that were taken */
};

/* Set *slot to the place of a new last item of an array. */
#define QUIRE_MATCH_APPEND(slot, m, items)                                                         \
    do {                                                                                           \
        if ((m)->n_##items == (m)->items##_cap) {                                                  \
            void *room_;                                                                           \
            QUIRE_FAIL_IF((m)->n_##items >= QUIRE_GRAMMAR_NODES_MAX, QUIRE_LIMIT);                 \
            room_ = quire_grammar_room((m)->items, &(m)->items##_cap, (m)->n_##items,              \
                                       sizeof *(m)->items);                                        \
            QUIRE_FAIL_IF(room_ == NULL, QUIRE_NOMEM);                                             \
            (m)->items = room_;                                                                    \
        }                                                                                          \
        (slot) = &(m)->items[(m)->n_##items++];                                                    \
    } while (0)

/* ---- grammar_match_graph.c; errors of these functions: QUIRE_LIMIT, QUIRE_NOMEM ---- */

int quire_match_spend(quire_grammar_match *m, uint32_t n_steps);
/* Whether a thread is new in this column: 1, 0, or an error. */
int quire_match_see(quire_grammar_match *m, quire_match_thread thread);

/* A column is: begin, go on from elements or begin a rule, end. */
void quire_match_column_begin(quire_grammar_match *m, uint32_t n_threads, uint32_t n_nodes,
                              uint32_t n_edges);
/* Go on with an element, unless it has been gone on with. */
int quire_match_go_on(quire_grammar_match *m, uint32_t element, uint32_t node);
int quire_match_rule_begin(quire_grammar_match *m, uint32_t rule, uint32_t node);
/* Go on until all threads stand before a character. The threads of the level are those from `first`
 * on. Returns whether there are any, or the text is whole. */
int quire_match_column_end(quire_grammar_match *m, uint32_t first, quire_match_level *to);

/* ---- grammar_match_nodes.c ---- */

/* Make nodes of the state that mean the same one node. */
int quire_match_intern(quire_grammar_match *m);
/* Forget the nodes that the state does not reach, when there are twice as many as there were. */
int quire_match_collect(quire_grammar_match *m);
/* Forget all nodes, before the first column. */
void quire_match_forget(quire_grammar_match *m);
/* Give columns numbers from 1 on again, when they run out. */
void quire_match_renumber(quire_grammar_match *m);

#endif /* QUIRE_MODEL_GRAMMAR_MATCH_INTERNAL_H */
