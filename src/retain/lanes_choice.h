/* lanes_choice.h - the last two stages of a condensing (policy.h) on all lanes of a text: budgets
 * of layers, and the kept tokens of each lane. Texts with lanes of their own (kept_lanes.h) and
 * texts of the engine in packed pages (packed.h) choose by it, so both keep the same tokens.
 *
 *   init      arrays of lanes: the caller sets n_tokens, positions and is_full
 *   room      arrays of tokens: the caller sets scores, and measures of policies that weigh layers
 *   budgets   then share() on each thread; is_kept is the result
 *
 * A lane may have tokens that stay in any case, before and behind those that are chosen: `n_before`
 * and `n_behind`. They count against the share, unless it is that of the chosen tokens alone.
 *
 * Thread: owner; share() on all threads, each with its number.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_LANES_CHOICE_H
#define QUIRE_RETAIN_LANES_CHOICE_H

#include "retain/policy.h"

/* Arrays of lanes are layer after layer. Tokens are in table order. */
typedef struct quire_lanes_choice {
    const quire_retain_spec *spec;
    uint32_t n_layers;
    uint32_t n_kv_head;
    uint32_t n_text;
    uint32_t granule;               /* quire_retain_choice */
    uint32_t n_behind;              /* last tokens of each lane, which stay */
    uint32_t n_apart;               /* above 0: the share is of so many tokens, those of each lane
                                       that are chosen */
    uint32_t *n_tokens;             /* [lanes] */
    uint32_t *n_before;             /* [lanes] first tokens, which stay; 0 at first */
    const int32_t **positions;      /* [lanes][n_tokens] */
    bool *is_full;                  /* [n_layers] */
    float **scores;                 /* [lanes][n_tokens] of layers that are not full */
    quire_retain_measure *measures; /* [lanes] */
    bool **is_kept;                 /* [lanes][n_tokens] */
    quire_retain_layer *layers;     /* [n_layers] */
    uint64_t *budgets;              /* [n_layers] */
    uint64_t n_across;              /* tokens that are chosen of all layers that are not full */
    uint64_t across_budget;         /* sum of these layers' budgets */
    float *all_scores;
    bool *all_kept;
} quire_lanes_choice;

/* Errors: QUIRE_NOMEM. Memory: quire_lanes_choice_fini(), on errors too. */
int quire_lanes_choice_init(quire_lanes_choice *choice, const quire_retain_spec *spec,
                            uint32_t n_layers, uint32_t n_kv_head, uint32_t n_text);
void quire_lanes_choice_fini(quire_lanes_choice *choice);

/* Make scores and is_kept; all tokens are kept at first. Errors: QUIRE_NOMEM. */
int quire_lanes_choice_room(quire_lanes_choice *choice);

void quire_lanes_choice_budgets(quire_lanes_choice *choice);

/* Whether tokens of a layer are to be chosen; the others keep all. After budgets(). */
bool quire_lanes_choice_cuts(const quire_lanes_choice *choice, uint32_t l);

/* Choose in this thread's layers. Errors: QUIRE_NOMEM. */
int quire_lanes_choice_share(const quire_lanes_choice *choice, uint32_t thread, uint32_t n_threads);

#endif /* QUIRE_RETAIN_LANES_CHOICE_H */
