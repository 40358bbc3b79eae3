/* grammar_match_nodes.c - nodes of a state: equal ones become one, and those of the past are
 * forgotten. See grammar_match_internal.h.
 *
 * Nodes of different columns mean the same when they go on with the same element and have the same
 * edges. Without joining them, a text under ("a"+)+ would have a node for each character, and each
 * character as many threads.
 *
 * SPDX-License-Identifier: MIT */
#include "model/grammar_match_internal.h"

#include "base/check.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define NONE   QUIRE_GRAMMAR_NONE
#define BOTTOM QUIRE_MATCH_BOTTOM
/* Nodes and edges below this number are never collected. */
#define COLLECT_MIN 4096u
#define COLUMN_MAX  (UINT32_MAX / 2)
/* Names of new nodes that have none yet. */
#define NAME_NEW  NONE
#define NAME_OPEN (NONE - 1) /* its callers are being named */

typedef quire_match_thread thread;
typedef quire_match_node node;
typedef quire_match_edge edge;
typedef quire_match_interned interned;

/* ---- the table of nodes ---- */

/* The hash of a node whose edges lead to m->parents. */
static uint32_t hash_of(const quire_grammar_match *m, uint32_t then)
{
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, &then, sizeof then);

    hash = quire_hash_add(hash, m->parents, m->n_parents * sizeof *m->parents);
    return (uint32_t)(hash >> 32) ^ (uint32_t)hash;
}

/* Whether the edges of a node lead to m->parents, in their order. */
static bool has_parents(const quire_grammar_match *m, uint32_t at)
{
    uint32_t i = 0;

    for (uint32_t e = m->nodes[at].edge; e != NONE; e = m->edges[e].next, i++) {
        if (i == m->n_parents || m->edges[e].node != m->parents[i]) {
            return false;
        }
    }
    return i == m->n_parents;
}

/* The node with an element and with edges to m->parents; NONE: there is none. */
static uint32_t table_find(const quire_grammar_match *m, uint32_t hash, uint32_t then)
{
    const uint32_t mask = m->interned_cap - 1;

    for (uint32_t at = hash & mask; m->n_interned > 0; at = (at + 1) & mask) {
        const interned *place = &m->interned[at];

        if (place->node == NONE) {
            return NONE;
        }
        if (place->hash == hash && m->nodes[place->node].then == then &&
            has_parents(m, place->node)) {
            return place->node;
        }
    }
    return NONE;
}

static void table_put(quire_grammar_match *m, interned item)
{
    const uint32_t mask = m->interned_cap - 1;
    uint32_t at = item.hash & mask;

    while (m->interned[at].node != NONE) {
        at = (at + 1) & mask;
    }
    m->interned[at] = item;
    m->n_interned++;
}

static int table_add(quire_grammar_match *m, uint32_t hash, uint32_t at_node)
{
    if (2 * m->n_interned >= m->interned_cap) {
        const uint32_t old_cap = m->interned_cap, cap = old_cap > 0 ? 2 * old_cap : 64;
        interned *old = m->interned, *table = malloc(cap * sizeof *table);

        QUIRE_FAIL_IF(table == NULL, QUIRE_NOMEM);
        memset(table, 0xff, cap * sizeof *table); /* NONE */
        m->interned = table;
        m->interned_cap = cap;
        m->n_interned = 0;
        for (uint32_t i = 0; i < old_cap; i++) {
            if (old[i].node != NONE) {
                table_put(m, old[i]);
            }
        }
        free(old);
    }
    table_put(m, (interned){ hash, at_node });
    return QUIRE_OK;
}

static void table_clear(quire_grammar_match *m)
{
    if (m->interned != NULL) {
        memset(m->interned, 0xff, m->interned_cap * sizeof *m->interned);
    }
    m->n_interned = 0;
}

/* ---- names ---- */

/* The node that stands for a node. */
static uint32_t name_of(const quire_grammar_match *m, uint32_t at_node)
{
    const uint32_t name =
        at_node < m->n_nodes_state ? at_node : m->names[at_node - m->n_nodes_state];

    return name == NAME_OPEN ? at_node : name;
}

static int compare_numbers(const void *a, const void *b)
{
    const uint32_t *left = a;
    const uint32_t *right = b;

    return (*left > *right) - (*left < *right);
}

/* Collect the nodes that a node's edges lead to, each once, in ascending order. */
static int parents_collect(quire_grammar_match *m, uint32_t at_node)
{
    uint32_t *slot;
    uint32_t n = 0;

    m->n_parents = 0;
    for (uint32_t e = m->nodes[at_node].edge; e != NONE; e = m->edges[e].next) {
        QUIRE_MATCH_APPEND(slot, m, parents);
        *slot = name_of(m, m->edges[e].node);
    }
    if (m->n_parents > 1) {
        qsort(m->parents, m->n_parents, sizeof *m->parents, compare_numbers);
    }
    for (uint32_t i = 0; i < m->n_parents; i++) {
        if (n == 0 || m->parents[i] != m->parents[n - 1]) {
            m->parents[n++] = m->parents[i];
        }
    }
    m->n_parents = n;
    return QUIRE_OK;
}

/* Name a new node whose callers have names. */
static int node_name(quire_grammar_match *m, uint32_t at_node)
{
    uint32_t *name = &m->names[at_node - m->n_nodes_state];
    node *n = &m->nodes[at_node];
    uint32_t e = n->edge, hash;

    QUIRE_TRY(parents_collect(m, at_node));
    QUIRE_TRY(quire_match_spend(m, m->n_parents));
    hash = hash_of(m, n->then);
    *name = table_find(m, hash, n->then);
    if (*name != NONE) {
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < m->n_parents; i++) {
        const uint32_t next = m->edges[e].next;

        m->edges[e].node = m->parents[i];
        if (i + 1 == m->n_parents) {
            m->edges[e].next = NONE;
        }
        e = next;
    }
    *name = at_node;
    return table_add(m, hash, at_node);
}

/* Name all new nodes behind a node's edges, then the node. */
static int nodes_name(quire_grammar_match *m, uint32_t from)
{
    const uint32_t first = m->n_nodes_state;
    thread *slot;

    if (from < first || m->names[from - first] != NAME_NEW) {
        return QUIRE_OK;
    }
    m->n_work = 0;
    QUIRE_MATCH_APPEND(slot, m, work);
    *slot = (thread){ m->nodes[from].edge, from };
    m->names[from - first] = NAME_OPEN;
    while (m->n_work > 0) { /* a thread's element is here the edge to look at next */
        thread *top = &m->work[m->n_work - 1];
        uint32_t to;

        if (top->element == NONE) {
            m->n_work--;
            QUIRE_TRY(node_name(m, top->node));
            continue;
        }
        to = m->edges[top->element].node;
        top->element = m->edges[top->element].next;
        if (to >= first && m->names[to - first] == NAME_NEW) {
            m->names[to - first] = NAME_OPEN;
            QUIRE_MATCH_APPEND(slot, m, work);
            *slot = (thread){ m->nodes[to].edge, to };
        }
    }
    return QUIRE_OK;
}

int quire_match_intern(quire_grammar_match *m)
{
    const uint32_t n_threads = m->n_threads;
    uint32_t *slot;

    m->n_names = 0;
    for (uint32_t i = m->n_nodes_state; i < m->n_nodes; i++) {
        QUIRE_MATCH_APPEND(slot, m, names);
        *slot = NAME_NEW;
    }
    m->column++; /* an empty table of threads */
    m->n_seen = m->n_threads = 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        thread t = m->threads[i];
        int rc;

        QUIRE_TRY(nodes_name(m, t.node));
        t.node = name_of(m, t.node);
        rc = quire_match_see(m, t);
        if (rc < 0) {
            return rc;
        }
        if (rc > 0) {
            m->threads[m->n_threads++] = t;
        }
    }
    m->n_nodes_state = m->n_nodes;
    return QUIRE_OK;
}

void quire_match_forget(quire_grammar_match *m)
{
    table_clear(m);
    m->n_nodes_kept = m->n_edges_kept = 0;
    m->n_nodes_state = 1;
    m->nodes[BOTTOM] = (node){ NONE, 0, NONE };
}

/* ---- nodes that no thread reaches ---- */

/* Mark the nodes that the state reaches in map[], by 1. */
static int nodes_mark(quire_grammar_match *m, uint32_t *map)
{
    thread *slot;

    m->n_work = 0;
    map[BOTTOM] = 1;
    for (uint32_t i = 0; i < m->n_threads; i++) {
        const uint32_t n = m->threads[i].node;

        if (map[n] == 0) {
            map[n] = 1;
            QUIRE_MATCH_APPEND(slot, m, work);
            slot->node = n;
        }
    }
    while (m->n_work > 0) {
        uint32_t e = m->nodes[m->work[--m->n_work].node].edge;

        for (; e != NONE; e = m->edges[e].next) {
            const uint32_t n = m->edges[e].node;

            if (map[n] == 0) {
                map[n] = 1;
                QUIRE_MATCH_APPEND(slot, m, work);
                slot->node = n;
            }
        }
    }
    return QUIRE_OK;
}

/* Keep the marked nodes; map[] becomes their new numbers. */
static void nodes_move(quire_grammar_match *m, uint32_t *map, edge *edges)
{
    uint32_t n_nodes = 0, n_edges = 0;

    for (uint32_t i = 0; i < m->n_nodes; i++) {
        if (map[i] != 0) {
            map[i] = n_nodes++;
        }
    }
    n_nodes = 0;
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        uint32_t e = m->nodes[i].edge;
        node *moved = &m->nodes[n_nodes];

        if (i != BOTTOM && map[i] == 0) {
            continue;
        }
        *moved = m->nodes[i];
        moved->edge = e != NONE ? n_edges : NONE;
        for (; e != NONE; e = m->edges[e].next) {
            const bool is_last = m->edges[e].next == NONE;

            edges[n_edges] = (edge){ map[m->edges[e].node], is_last ? NONE : n_edges + 1 };
            n_edges++;
        }
        n_nodes++;
    }
    for (uint32_t i = 0; i < m->n_threads; i++) {
        m->threads[i].node = map[m->threads[i].node];
    }
    free(m->edges);
    m->edges = edges;
    m->n_nodes = m->n_nodes_kept = m->n_nodes_state = n_nodes;
    m->n_edges = m->n_edges_kept = n_edges;
}

/* Fill the table again: the numbers of nodes have changed, in the same order. */
static int table_fill(quire_grammar_match *m)
{
    table_clear(m);
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        if (i != BOTTOM) {
            QUIRE_TRY(parents_collect(m, i));
            QUIRE_TRY(table_add(m, hash_of(m, m->nodes[i].then), i));
        }
    }
    return QUIRE_OK;
}

int quire_match_collect(quire_grammar_match *m)
{
    uint32_t *map;
    edge *edges;
    int rc = QUIRE_NOMEM;

    if (m->n_nodes < 2 * m->n_nodes_kept + COLLECT_MIN &&
        m->n_edges < 2 * m->n_edges_kept + COLLECT_MIN) {
        return QUIRE_OK;
    }
    map = calloc(m->n_nodes, sizeof *map);
    edges = malloc(m->edges_cap * sizeof *edges);
    if (map != NULL && edges != NULL) {
        rc = nodes_mark(m, map);
    }
    if (rc == QUIRE_OK) {
        nodes_move(m, map, edges);
    } else {
        free(edges);
    }
    free(map);
    return rc == QUIRE_OK ? table_fill(m) : rc;
}

void quire_match_renumber(quire_grammar_match *m)
{
    if (m->column <= COLUMN_MAX) {
        return;
    }
    m->column = 0;
    memset(m->seen, 0, m->seen_cap * sizeof *m->seen);
    memset(m->calls, 0, m->grammar->n_elements * sizeof *m->calls);
    for (uint32_t i = 0; i < m->n_nodes; i++) {
        m->nodes[i].ended = 0;
    }
}
