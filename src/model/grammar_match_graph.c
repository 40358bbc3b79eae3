/* grammar_match_graph.c - columns of the graph of stacks: see grammar_match_internal.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/grammar_match_internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define NONE   QUIRE_GRAMMAR_NONE
#define BOTTOM QUIRE_MATCH_BOTTOM

typedef quire_match_thread thread;
typedef quire_match_node node;
typedef quire_match_edge edge;
typedef quire_match_seen seen;

/* ---- threads of a column ---- */

int quire_match_spend(quire_grammar_match *m, uint32_t n)
{
    m->n_steps += n;
    return m->n_steps <= QUIRE_GRAMMAR_STEPS_MAX ? QUIRE_OK : QUIRE_LIMIT;
}

static uint32_t slot_of(const quire_grammar_match *m, thread t)
{
    const uint64_t hash = ((uint64_t)t.element << 32 | t.node) * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(hash >> 32) & (m->seen_cap - 1);
}

/* Twice the places, with the threads of this column. */
static int seen_grow(quire_grammar_match *m)
{
    seen *old = m->seen;
    const uint32_t old_cap = m->seen_cap;

    QUIRE_FAIL_IF(old_cap / 2 >= QUIRE_GRAMMAR_NODES_MAX, QUIRE_LIMIT);
    m->seen = calloc((size_t)2 * old_cap, sizeof *m->seen);
    if (m->seen == NULL) {
        m->seen = old;
        return QUIRE_NOMEM;
    }
    m->seen_cap = 2 * old_cap;
    for (uint32_t i = 0; i < old_cap; i++) {
        if (old[i].column == m->column) {
            uint32_t at = slot_of(m, old[i].thread);

            while (m->seen[at].column == m->column) {
                at = (at + 1) & (m->seen_cap - 1);
            }
            m->seen[at] = old[i];
        }
    }
    free(old);
    return QUIRE_OK;
}

int quire_match_see(quire_grammar_match *m, thread t)
{
    uint32_t at;

    if (2 * m->n_seen >= m->seen_cap) {
        QUIRE_TRY(seen_grow(m));
    }
    at = slot_of(m, t);
    while (m->seen[at].column == m->column) {
        if (m->seen[at].thread.element == t.element && m->seen[at].thread.node == t.node) {
            return 0;
        }
        QUIRE_TRY(quire_match_spend(m, 1));
        at = (at + 1) & (m->seen_cap - 1);
    }
    m->seen[at] = (seen){ t, m->column };
    m->n_seen++;
    return 1;
}

/* ---- a column ---- */

/* Go on with an element, unless it has been gone on with. */
int quire_match_go_on(quire_grammar_match *m, uint32_t element, uint32_t at_node)
{
    const quire_grammar_kind kind = m->grammar->elements[element].kind;
    const thread t = { element, at_node };
    thread *slot;

    QUIRE_TRY(quire_match_spend(m, 1));
    if (kind != QUIRE_GRAMMAR_END) { /* the node remembers its end */
        const int rc = quire_match_see(m, t);

        if (rc <= 0) {
            return rc;
        }
    }
    if (kind == QUIRE_GRAMMAR_CHAR || kind == QUIRE_GRAMMAR_SET) {
        QUIRE_MATCH_APPEND(slot, m, threads);
    } else {
        QUIRE_MATCH_APPEND(slot, m, work);
    }
    *slot = t;
    return QUIRE_OK;
}

/* Begin a rule at a node. */
int quire_match_rule_begin(quire_grammar_match *m, uint32_t rule, uint32_t at_node)
{
    const quire_grammar_rule r = m->grammar->rules[rule];

    for (uint32_t i = 0; i < r.n; i++) {
        QUIRE_TRY(quire_match_go_on(m, m->grammar->alternatives[r.first + i], at_node));
    }
    return QUIRE_OK;
}

/* An edge to a caller. A thread comes to a call once in a column, so no edge is there twice. */
static int edge_add(quire_grammar_match *m, uint32_t from, uint32_t to)
{
    edge *slot;

    QUIRE_MATCH_APPEND(slot, m, edges);
    *slot = (edge){ to, m->nodes[from].edge };
    m->nodes[from].edge = m->n_edges - 1;
    return QUIRE_OK;
}

static int rule_call(quire_grammar_match *m, thread t)
{
    const quire_grammar_element *element = &m->grammar->elements[t.element];
    quire_match_call *known = &m->calls[t.element];
    node *slot;

    if (element[1].kind == QUIRE_GRAMMAR_END) {
        return quire_match_rule_begin(m, element->value, t.node);
    }
    if (known->column == m->column) {
        QUIRE_TRY(edge_add(m, known->node, t.node));
        /* The rule has ended without a character: for this caller, too. */
        return m->nodes[known->node].ended == m->column
                   ? quire_match_go_on(m, t.element + 1, t.node)
                   : QUIRE_OK;
    }
    *known = (quire_match_call){ m->column, m->n_nodes };
    QUIRE_MATCH_APPEND(slot, m, nodes);
    *slot = (node){ t.element + 1, 0, NONE };
    QUIRE_TRY(edge_add(m, known->node, t.node));
    return quire_match_rule_begin(m, element->value, known->node);
}

/* The rule of a node has ended. The callers so far go on here. Callers that this column adds later
 * go on in rule_call(). */
static int rule_end(quire_grammar_match *m, uint32_t at_node)
{
    if (at_node == BOTTOM) {
        m->is_whole = true;
        return QUIRE_OK;
    }
    if (m->nodes[at_node].ended == m->column) {
        return QUIRE_OK;
    }
    m->nodes[at_node].ended = m->column;
    for (uint32_t e = m->nodes[at_node].edge; e != NONE; e = m->edges[e].next) {
        QUIRE_TRY(quire_match_go_on(m, m->nodes[at_node].then, m->edges[e].node));
    }
    return QUIRE_OK;
}

void quire_match_column_begin(quire_grammar_match *m, uint32_t n_threads, uint32_t n_nodes,
                              uint32_t n_edges)
{
    m->column++;
    m->n_threads = n_threads;
    m->n_nodes = n_nodes;
    m->n_edges = n_edges;
    m->n_work = m->n_seen = 0;
    m->is_whole = false;
}

/* Go on until all threads stand before a character. The threads of the level are those from `first`
 * on. Returns whether there are any, or the text is whole. */
int quire_match_column_end(quire_grammar_match *m, uint32_t first, quire_match_level *to)
{
    while (m->n_work > 0) {
        const thread t = m->work[--m->n_work];

        QUIRE_TRY(m->grammar->elements[t.element].kind == QUIRE_GRAMMAR_END ? rule_end(m, t.node)
                                                                            : rule_call(m, t));
    }
    *to = (quire_match_level){ .first = first,
                               .n_threads = m->n_threads - first,
                               .n_nodes = m->n_nodes,
                               .n_edges = m->n_edges,
                               .is_whole = m->is_whole };
    return to->n_threads > 0 || to->is_whole;
}
