/* policy.h - which tokens a condensed text keeps: the table of policies, their parameters, scores
 * and budgets. Pure arithmetic on arrays, without a model.
 *
 * A *lane* is one KV head of one layer (quire/types.h). Condensing gives every lane a list of kept
 * tokens in three stages:
 *
 *   score    of each token of a lane, by the policy (quire_retain_score())
 *   layers   tokens that a layer keeps in all its lanes (quire_retain_layer_budgets())
 *   choose   the kept tokens of each lane of a layer (quire_retain_choose())
 *
 * The first `sinks` positions of the text and the last `recent` ones are *protected*: no policy
 * drops them. The share counts all tokens that the text ever had, protected ones included. Tokens
 * that an earlier condensing dropped stay dropped.
 *
 * Some policies score a token before a condensing, and lanes keep the score beside the token: its
 * *worth* (quire_retain_worth). A condensing then reads scores of tokens that were computed at
 * different times on one scale.
 *
 * Everything is deterministic: among equal scores the later token is kept.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_POLICY_H
#define QUIRE_RETAIN_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/error.h"

#define QUIRE_RETAIN_FULL_MAX    64u    /* layers named by full_layers */
#define QUIRE_RETAIN_PROBE_MAX   256u   /* queries of the probe window */
#define QUIRE_RETAIN_POOL_MAX    63u    /* width of the average over neighbours */
#define QUIRE_RETAIN_TEXT_MAX    256u   /* bytes of a policy as text */
#define QUIRE_RETAIN_POS_MAX     65536u /* sinks and recent */
#define QUIRE_RETAIN_REPEAT_MAX  8192u  /* tokens that `reconstruct` has repeated at once */
#define QUIRE_RETAIN_FUTURE_MAX  65536u /* positions of `expected` */
#define QUIRE_RETAIN_GRANULE_MAX 1024u  /* tokens */

/* How the worth of a token comes about. */
typedef enum quire_retain_worth {
    QUIRE_RETAIN_WORTH_NONE,     /* the policy scores at a condensing */
    QUIRE_RETAIN_WORTH_SUM,      /* the attention of all rows since the token, its own included */
    QUIRE_RETAIN_WORTH_REPEATED, /* the most attention of a row that repeats the token's text */
    QUIRE_RETAIN_WORTH_PREDICTED /* predicted from the hidden state (retain/predictor.h) */
} quire_retain_worth;

struct quire_retain_spec;

/* A lane whose tokens are to be scored. Tokens are in table order, so positions ascend. */
typedef struct quire_retain_lane {
    uint32_t n_tokens;
    const int32_t *positions; /* [n_tokens] */
    uint32_t n_text;          /* positions of the text so far; all of the lane's are below */
    const float *keys;        /* [n_tokens][d], rotated; NULL unless the policy reads keys */
    uint32_t d;
    /* [n_rows][n_tokens] probabilities: the attention that queries of the probe window pay to these
     * tokens, for all query heads of the lane; NULL unless the policy reads attention. */
    const float *attention;
    uint32_t n_rows;
    uint64_t lane;      /* number of the lane, for `random` */
    const float *worth; /* [n_tokens]; NULL unless the policy has it */
    /* Of policies that expect queries, else NULL: the mean, [n_heads][d], and the covariance,
     * [n_heads][d][d], of the queries to come, transformed as the keys are and times the scale of
     * attention; the norms of V, [n_tokens]. */
    const float *query_mean;
    const float *query_cov;
    uint32_t n_heads;
    const float *value_norms;
    float *scratch; /* [n_tokens] */
} quire_retain_lane;

/* A row of the table. */
typedef struct quire_retain_policy {
    const char *name;
    bool needs_keys;
    bool needs_attention;
    bool weighs_layers;  /* layers get budgets by their attention, else equal ones */
    bool has_full;       /* layers 0, 1 and the last are kept whole unless full_layers says else */
    uint32_t sinks;      /* defaults of the parameters of these names */
    uint32_t recent;     /* */
    double floor;        /* share of a lane's even budget that it gets in any case: 1 = all */
    const char *summary; /* for --help and docs */
    void (*score)(const struct quire_retain_spec *spec, const quire_retain_lane *lane,
                  float *scores);
    quire_retain_worth worth;
    bool expects_queries; /* reads query_mean, query_cov, value_norms and keys */
    bool is_across;       /* the tokens of all layers compete for one budget */
    bool reads_positions; /* beyond their order */
    bool is_by_lane;      /* ... and lanes with the same tokens choose differently */
    bool drops_kept;      /* a kept token is dropped for its age alone */
} quire_retain_policy;

/* A policy with its parameters. */
typedef struct quire_retain_spec {
    const quire_retain_policy *policy;
    double share; /* of the text's tokens, over all lanes: above 0, at most 1 */
    uint32_t sinks;
    uint32_t recent;
    uint32_t probe; /* queries of the probe window, the text's last */
    uint32_t pool;  /* tokens over which scores are averaged; odd */
    double floor;
    double gamma; /* weight of the variance in the scores of `entropy` */
    double tau1;  /* of CAKE's layer preference H^(1/tau1) * V^(1/tau2) */
    double tau2;
    uint64_t seed;    /* of `random` */
    uint32_t repeat;  /* tokens that `reconstruct` has repeated at once */
    uint32_t future;  /* positions over which `expected` turns the queries */
    uint32_t granule; /* each lane keeps a multiple of so many tokens, if it has a multiple */
    double threshold; /* the least score that is kept; 0 = none. See quire_retain_choose() */
    uint32_t n_full;  /* layers kept whole */
    int32_t full[QUIRE_RETAIN_FULL_MAX]; /* their numbers; negative ones count from the last */
    bool has_full; /* full_layers was given; otherwise the policy's default counts */
    bool merges;   /* merge=fit: kept tokens are fitted to stand for dropped ones */
} quire_retain_spec;

/* Parse "POLICY[:SHARE][,key=value...]". Keys: sinks, recent, probe, pool, floor, gamma, tau1,
 * tau2, seed, repeat, future, granule, threshold, full_layers (numbers with + between them, or
 * "none"). A key that the policy does not read is refused by name. With a threshold and no share
 * the share is 1. Errors: QUIRE_INVAL; err names the word, and the ones that are known, or the
 * policy, if quire_retain_text() has no room for its parameters. */
int quire_retain_parse(const char *text, quire_retain_spec *out, quire_error *err);

/* The same with the key `merge`, "none" or "fit", of texts in lanes (retain/kept_lanes.h); the
 * function above refuses "fit". */
int quire_retain_parse_lanes(const char *text, quire_retain_spec *out, quire_error *err);

/* The policy and all parameters that it reads, in one order, with all digits: specs choose alike if
 * their texts are equal, and a parsed text is the same spec again. A parsed spec has room for its
 * text in QUIRE_RETAIN_TEXT_MAX bytes with any granule. Returns buffer, of at least so many. */
char *quire_retain_text(const quire_retain_spec *spec, char *buffer, size_t buffer_bytes);

/* Whether full_layers names a layer, or the policy by default. */
bool quire_retain_names_layer(const quire_retain_spec *spec, uint32_t n_layers, uint32_t layer);

/* is_full[l] = whether layer l is kept whole. chooses, [n_layers]: the layers whose tokens are
 * chosen; the share counts these alone, and the others are not full. NULL: all. Errors: QUIRE_INVAL
 * (a layer that the model lacks, or whole layers alone are more than the share). */
int quire_retain_full_layers(const quire_retain_spec *spec, uint32_t n_layers, const bool *chooses,
                             bool *is_full, quire_error *err);

/* Whether a position is protected. */
static inline bool quire_retain_is_protected(const quire_retain_spec *spec, uint32_t n_text,
                                             uint32_t position)
{
    return position < spec->sinks || (uint64_t)position + spec->recent >= n_text;
}

/* scores[t], [n_tokens]: the higher, the sooner token t is kept. NaN counts as the lowest score.
 * Sources: docs/retention.md. */
void quire_retain_score(const quire_retain_spec *spec, const quire_retain_lane *lane,
                        float *scores);

/* CAKE's two figures of a layer's attention, summed over lanes. */
typedef struct quire_retain_measure {
    double entropy;  /* sum of -a ln a over all rows and tokens */
    double variance; /* sum over tokens and query heads of the variance over the probe's queries */
} quire_retain_measure;

/* Add a lane's figures to its layer's. attention is [head][query][token]: n_queries of n_rows rows
 * belong to one query head. */
void quire_retain_measure_add(quire_retain_measure *measure, const quire_retain_lane *lane,
                              uint32_t n_queries);

/* A layer before its budget is known. All counts are over the lanes of the layer. */
typedef struct quire_retain_layer {
    uint32_t n_lanes;
    uint64_t n_held;      /* tokens held now */
    uint64_t n_protected; /* of these */
    bool is_full;
    quire_retain_measure measure; /* of policies that weigh layers */
    double weight;                /* of the budget; quire_retain_layer_budgets() writes it */
} quire_retain_layer;

/* budgets[l] = tokens that layer l keeps in all lanes. Their sum is at most share * n_text *
 * (lanes), except that whole layers and protected tokens are always kept. No budget is above
 * n_held; tokens that a layer cannot use go to the others by their weights. Layers of `entropy`
 * weigh H^(1/tau1) * V^(1/tau2), the others the same for each lane. */
void quire_retain_layer_budgets(const quire_retain_spec *spec, uint32_t n_text,
                                quire_retain_layer *layers, uint32_t n_layers, uint64_t *budgets);

/* A layer whose tokens are chosen. */
typedef struct quire_retain_choice {
    uint32_t n_lanes;
    const uint32_t *n_tokens;        /* [n_lanes] */
    const int32_t *const *positions; /* [n_lanes][n_tokens] */
    const float *const *scores;      /* [n_lanes][n_tokens] */
    uint32_t n_text;
    uint64_t budget;  /* tokens of all lanes */
    uint32_t granule; /* above 1: each lane keeps a multiple of so many tokens, and n_tokens are */
} quire_retain_choice;

/* is_kept[lane][t]: protected tokens; then each lane's best up to `floor` of an even share of the
 * budget; then the best of all lanes (Ada-KV) until the budget is used, or the threshold is not
 * reached. The threshold counts in means of the lane's scores, or, for policies with a worth, in
 * scores. With a granule lanes are then rounded: down, except for those with the largest
 * remainders, as far as the budget allows, and those that would lose a protected token. Errors:
 * QUIRE_NOMEM (scratch: 16 bytes a token). */
int quire_retain_choose(const quire_retain_spec *spec, const quire_retain_choice *choice,
                        bool *const *is_kept);

#endif /* QUIRE_RETAIN_POLICY_H */
