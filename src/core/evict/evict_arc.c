/* evict_arc.c - the adaptive replacement cache.
 *
 * N. Megiddo, D. S. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. T1
 * holds the nodes used once, T2 the nodes used again, each in order of use. B1 and B2 hold the
 * ghosts of nodes evicted from T1 and T2. p is the target size of T1: a hit on a ghost of B1 raises
 * p, a hit on a ghost of B2 lowers p. T1 and B1 together have at most the bin's capacity (c), all
 * four lists at most 2 c.
 *
 * The paper makes room before a page enters. Here a page may enter first: a request publishes
 * pages, then a victim is needed. So a node that entered since the last victim is not counted, and
 * is evicted last. When room is made first, p follows a ghost hit one victim later than in the
 * paper. The tree's ring also limits the ghosts.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/evict_policies.h"

enum {
    T1,
    T2
};

/* For ghosts: quire_ghost.list is B1 + 1 or B2 + 1. */
enum {
    B1,
    B2
};

/* Words of a ghost. */
#define NEIGHBOURS 0u /* number of the older ghost of its list, and of the newer << 32 */
#define BIN        1u

typedef struct ghost_list {
    uint32_t oldest; /* by number; 0 = empty */
    uint32_t newest;
    uint32_t n;
} ghost_list;

/* Of a bin. */
typedef struct arc {
    double p;
    uint32_t c;
    uint32_t fresh;      /* the last node that entered since the last victim */
    bool is_fresh_of_b2; /* fresh was a ghost of B2 */
    uint64_t fresh_by;   /* number of the request that created fresh */
    ghost_list b[2];
} arc;

static uint32_t older_of(const quire_ghost *ghost)
{
    return (uint32_t)ghost->words[NEIGHBOURS];
}

static uint32_t newer_of(const quire_ghost *ghost)
{
    return (uint32_t)(ghost->words[NEIGHBOURS] >> 32);
}

static void neighbours_set(quire_ghost *ghost, uint32_t older, uint32_t newer)
{
    ghost->words[NEIGHBOURS] = (uint64_t)newer << 32 | older;
}

static void list_add(quire_evict *evict, ghost_list *list, quire_ghost *ghost)
{
    uint32_t number = quire_ghosts_number(evict->ghosts, ghost);

    neighbours_set(ghost, list->newest, 0);
    if (list->newest != 0) {
        quire_ghost *older = quire_ghosts_at(evict->ghosts, list->newest);

        neighbours_set(older, older_of(older), number);
    } else {
        list->oldest = number;
    }
    list->newest = number;
    list->n++;
}

static void list_remove(quire_evict *evict, ghost_list *list, quire_ghost *ghost)
{
    uint32_t older = older_of(ghost);
    uint32_t newer = newer_of(ghost);

    if (older != 0) {
        quire_ghost *at = quire_ghosts_at(evict->ghosts, older);

        neighbours_set(at, older_of(at), newer);
    } else {
        list->oldest = newer;
    }
    if (newer != 0) {
        quire_ghost *at = quire_ghosts_at(evict->ghosts, newer);

        neighbours_set(at, older, newer_of(at));
    } else {
        list->newest = older;
    }
    list->n--;
    ghost->list = 0;
}

static void list_cut(quire_evict *evict, ghost_list *list)
{
    list_remove(evict, list, quire_ghosts_at(evict->ghosts, list->oldest));
}

/* The list of a ghost, in the bin that its node left. */
static ghost_list *list_of(quire_evict *evict, const quire_ghost *ghost)
{
    arc *a = quire_evict_bin_at(evict, (uint32_t)ghost->words[BIN])->state;

    return &a->b[ghost->list - 1];
}

static void arc_forgotten(quire_evict *evict, quire_ghost *ghost)
{
    if (ghost->list != 0) {
        list_remove(evict, list_of(evict, ghost), ghost);
    }
}

static double at_least_one(double x)
{
    return x > 1.0 ? x : 1.0;
}

/* A request hits a ghost: adapt p. */
static void arc_learn(arc *a, uint32_t list)
{
    double n1 = a->b[B1].n;
    double n2 = a->b[B2].n;

    if (list == B1) {
        a->p += at_least_one(n2 / n1);
        a->p = a->p < a->c ? a->p : a->c;
    } else {
        a->p -= at_least_one(n1 / n2);
        a->p = a->p > 0.0 ? a->p : 0.0;
    }
}

static void arc_born(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_ghost *ghost)
{
    arc *a = bin->state;

    a->fresh = node;
    a->fresh_by = evict->request.number;
    a->is_fresh_of_b2 = false;
    if (ghost == NULL || ghost->list == 0) {
        return;
    }
    a->is_fresh_of_b2 = ghost->list - 1 == B2;
    arc_learn(quire_evict_bin_at(evict, (uint32_t)ghost->words[BIN])->state, ghost->list - 1u);
    list_remove(evict, list_of(evict, ghost), ghost);
    quire_evict_list(evict, bin, node, T2);
}

static void arc_used(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    quire_evict_list(evict, bin, node, T2);
}

static quire_evict_place arc_place(quire_evict *evict, quire_evict_bin *bin, uint32_t node)
{
    const quire_prefix_node *at = quire_evict_at(evict, node);

    (void)bin;
    return (quire_evict_place){ at->list, at->used_tick };
}

/* Whether the last node that entered still needs a victim to make room for it. */
static bool is_fresh(const quire_evict *evict, const quire_evict_bin *bin, const arc *a)
{
    return a->fresh != QUIRE_NODE_NULL && a->fresh_by == evict->request.number &&
           quire_evict_at(evict, a->fresh)->kind == QUIRE_NODE_PAGE &&
           quire_evict_bin_of(evict, a->fresh) == bin;
}

static uint32_t arc_victim(quire_evict *evict, quire_evict_bin *bin)
{
    arc *a = bin->state;
    uint32_t n_fresh[2] = { 0, 0 };
    uint32_t fresh = QUIRE_NODE_NULL;
    uint32_t first[2];
    uint32_t n1;
    bool is_t1;

    if (is_fresh(evict, bin, a)) {
        n_fresh[quire_evict_at(evict, a->fresh)->list] = 1;
    } else {
        a->fresh = QUIRE_NODE_NULL;
        a->is_fresh_of_b2 = false;
    }
    a->c = bin->n_nodes - n_fresh[T1] - n_fresh[T2];
    n1 = bin->n_listed[T1] - n_fresh[T1];
    is_t1 = n1 > 0 && (n1 > a->p || (a->is_fresh_of_b2 && n1 >= a->p));
    for (uint32_t list = T1; list <= T2; list++) {
        first[list] = quire_evict_first(bin, list);
        if (first[list] != QUIRE_NODE_NULL && first[list] == a->fresh && bin->n_candidates > 1) {
            first[list] = QUIRE_NODE_NULL; /* no node follows: it is the latest of all */
            fresh = a->fresh;              /* except for later nodes from another bin */
        }
    }
    a->fresh = QUIRE_NODE_NULL;
    a->is_fresh_of_b2 = false;
    if (first[T1] == QUIRE_NODE_NULL && first[T2] == QUIRE_NODE_NULL) {
        return fresh;
    }
    if (is_t1) {
        return first[T1] != QUIRE_NODE_NULL ? first[T1] : first[T2];
    }
    return first[T2] != QUIRE_NODE_NULL ? first[T2] : first[T1];
}

static void arc_gone(quire_evict *evict, quire_evict_bin *bin, uint32_t node, quire_prefix_gone why,
                     quire_ghost *ghost)
{
    arc *a = bin->state;
    uint32_t list = quire_evict_at(evict, node)->list;
    uint32_t n1 = bin->n_listed[T1] - (list == T1);
    uint32_t n2 = bin->n_listed[T2] - (list == T2);

    a->fresh = a->fresh == node ? QUIRE_NODE_NULL : a->fresh;
    if (why != QUIRE_PREFIX_GONE_MEMORY || ghost == NULL) {
        return;
    }
    ghost->list = (uint8_t)(list == T1 ? B1 + 1 : B2 + 1);
    ghost->words[BIN] = bin->number;
    list_add(evict, list_of(evict, ghost), ghost);
    while (a->b[B1].n > 0 && n1 + a->b[B1].n > a->c) {
        list_cut(evict, &a->b[B1]);
    }
    while (a->b[B2].n > 0 && (uint64_t)n1 + n2 + a->b[B1].n + a->b[B2].n > 2ull * a->c) {
        list_cut(evict, &a->b[B2]);
    }
}

const quire_evict_ops quire_evict_arc = {
    .n_heaps = 2,
    .bin_bytes = sizeof(arc),
    .has_ghosts = true,
    .born = arc_born,
    .used = arc_used,
    .place = arc_place,
    .victim = arc_victim,
    .gone = arc_gone,
    .forgotten = arc_forgotten,
};
