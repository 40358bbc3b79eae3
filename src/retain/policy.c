/* policy.c - the table of policies, and policies as text.
 *
 * SPDX-License-Identifier: MIT */
#include "retain/policy.h"

#include "base/check.h"
#include "base/parse.h"
#include "retain/retain_score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SINKS      4u   /* StreamingLLM (arXiv 2309.17453) */
#define RECENT     128u /* KVzap (arXiv 2601.07891): none loses much, 512 gains nothing */
#define PROBE      32u  /* CAKE (ICLR 2025) */
#define POOL       5u   /* SnapKV (arXiv 2404.14469) */
#define FLOOR      0.2  /* Ada-KV (arXiv 2407.11550) */
#define GAMMA      200.0
#define TAU1       1.6
#define TAU2       0.4
#define SHARE      0.5
#define REPEAT     512u
#define FUTURE     512u /* Expected Attention, as NVIDIA's kvpress has it */
#define SPEC_BYTES 512u /* of a policy as a user writes it */
#define REAL_BYTES 32u  /* quire_format_real() */

static const quire_retain_policy policies[] = {
    { .name = "entropy",
      .needs_attention = true,
      .weighs_layers = true,
      .has_full = true,
      .sinks = SINKS,
      .recent = RECENT,
      .floor = FLOOR,
      .summary = "most attended tokens; layers by the entropy and variance of their attention",
      .score = quire_retain_score_entropy },
    { .name = "snap",
      .needs_attention = true,
      .sinks = SINKS,
      .recent = RECENT,
      .floor = FLOOR,
      .summary = "tokens that the last queries attend to most",
      .score = quire_retain_score_snap },
    { .name = "reconstruct",
      .sinks = SINKS,
      .recent = RECENT,
      .floor = FLOOR,
      .summary = "tokens that the model attends to while it repeats the text",
      .score = quire_retain_score_worth,
      .worth = QUIRE_RETAIN_WORTH_REPEATED,
      .is_across = true },
    { .name = "predict",
      .sinks = SINKS,
      .recent = RECENT,
      .floor = FLOOR,
      .summary = "the scores of reconstruct as calibrate --retain learned to predict them",
      .score = quire_retain_score_predicted,
      .worth = QUIRE_RETAIN_WORTH_PREDICTED,
      .is_across = true },
    { .name = "expected",
      .needs_keys = true,
      .sinks = SINKS,
      .recent = RECENT,
      .floor = FLOOR,
      .summary = "tokens that queries like those of the text would attend to",
      .score = quire_retain_score_expected,
      .expects_queries = true },
    { .name = "heavy",
      .sinks = SINKS,
      .recent = RECENT,
      .floor = 1.0,
      .summary = "tokens with the most attention from all queries so far",
      .score = quire_retain_score_worth,
      .worth = QUIRE_RETAIN_WORTH_SUM },
    { .name = "keydiff",
      .needs_keys = true,
      .sinks = SINKS,
      .recent = RECENT,
      .floor = 1.0,
      .summary = "tokens whose keys differ most from the average key",
      .score = quire_retain_score_keydiff },
    { .name = "window",
      .sinks = SINKS,
      .recent = RECENT,
      .floor = 1.0,
      .summary = "the first and the last tokens",
      .score = quire_retain_score_last,
      .drops_kept = true },
    { .name = "last",
      .recent = 1,
      .floor = 1.0,
      .summary = "the last tokens",
      .score = quire_retain_score_last,
      .drops_kept = true },
    { .name = "stride",
      .sinks = SINKS,
      .recent = RECENT,
      .floor = 1.0,
      .summary = "evenly spaced tokens",
      .score = quire_retain_score_stride,
      .reads_positions = true },
    { .name = "random",
      .sinks = SINKS,
      .recent = RECENT,
      .floor = 1.0,
      .summary = "tokens by chance",
      .score = quire_retain_score_random,
      .reads_positions = true,
      .is_by_lane = true },
};

#define N_POLICIES (sizeof policies / sizeof policies[0])

/* ---- parameters ---- */

typedef enum param_kind {
    PARAM_COUNT,
    PARAM_REAL,
    PARAM_LAYERS,
    PARAM_MERGE
} param_kind;

typedef enum param_reader {
    READ_BY_ALL,
    READ_BY_ATTENTION,
    READ_BY_POOLED,
    READ_BY_ENTROPY,
    READ_BY_RANDOM,
    READ_BY_REPEATED,
    READ_BY_EXPECTED,
    READ_BY_THRESHOLD /* policies whose scores are attention, or stand for it */
} param_reader;

typedef struct param {
    const char *name;
    param_kind kind;
    param_reader reader;
    size_t offset; /* in quire_retain_spec: uint32_t, double or none */
    double min;
    double max;
} param;

#define AT(member) offsetof(quire_retain_spec, member)

/* The seed is a count of 64 bits; the others have 32. */
static const param params[] = {
    { "sinks", PARAM_COUNT, READ_BY_ALL, AT(sinks), 0, QUIRE_RETAIN_POS_MAX },
    { "recent", PARAM_COUNT, READ_BY_ALL, AT(recent), 1, QUIRE_RETAIN_POS_MAX },
    { "floor", PARAM_REAL, READ_BY_ALL, AT(floor), 0, 1 },
    { "probe", PARAM_COUNT, READ_BY_ATTENTION, AT(probe), 1, QUIRE_RETAIN_PROBE_MAX },
    { "pool", PARAM_COUNT, READ_BY_POOLED, AT(pool), 1, QUIRE_RETAIN_POOL_MAX },
    { "gamma", PARAM_REAL, READ_BY_ENTROPY, AT(gamma), 0, 1e9 },
    { "tau1", PARAM_REAL, READ_BY_ENTROPY, AT(tau1), 0.01, 100 },
    { "tau2", PARAM_REAL, READ_BY_ENTROPY, AT(tau2), 0.01, 100 },
    { "seed", PARAM_COUNT, READ_BY_RANDOM, AT(seed), 0, 4294967295.0 },
    { "repeat", PARAM_COUNT, READ_BY_REPEATED, AT(repeat), 16, QUIRE_RETAIN_REPEAT_MAX },
    { "future", PARAM_COUNT, READ_BY_EXPECTED, AT(future), 1, QUIRE_RETAIN_FUTURE_MAX },
    { "threshold", PARAM_REAL, READ_BY_THRESHOLD, AT(threshold), 0, 1e6 },
    { "granule", PARAM_COUNT, READ_BY_ALL, AT(granule), 1, QUIRE_RETAIN_GRANULE_MAX },
    { "full_layers", PARAM_LAYERS, READ_BY_ALL, 0, 0, 0 },
    { "merge", PARAM_MERGE, READ_BY_REPEATED, 0, 0, 0 },
};

#define N_PARAMS (sizeof params / sizeof params[0])

static bool is_read(const quire_retain_policy *policy, const param *p)
{
    switch (p->reader) {
    case READ_BY_ATTENTION:
        return policy->needs_attention;
    case READ_BY_POOLED:
        return policy->needs_attention || policy->worth == QUIRE_RETAIN_WORTH_PREDICTED;
    case READ_BY_ENTROPY:
        return policy->weighs_layers;
    case READ_BY_RANDOM:
        return policy->score == quire_retain_score_random;
    case READ_BY_REPEATED:
        return policy->worth == QUIRE_RETAIN_WORTH_REPEATED;
    case READ_BY_EXPECTED:
        return policy->expects_queries;
    case READ_BY_THRESHOLD:
        return policy->needs_attention || policy->expects_queries ||
               policy->worth != QUIRE_RETAIN_WORTH_NONE;
    case READ_BY_ALL:
        break;
    }
    return true;
}

/* "a, b, c" */
static void names_of_policies(char *text, size_t text_bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < N_POLICIES && n < text_bytes; i++) {
        n +=
            (size_t)snprintf(text + n, text_bytes - n, "%s%s", i > 0 ? ", " : "", policies[i].name);
    }
}

static void names_of_params(const quire_retain_policy *policy, char *text, size_t text_bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < N_PARAMS && n < text_bytes; i++) {
        if (is_read(policy, &params[i])) {
            n += (size_t)snprintf(text + n, text_bytes - n, "%s%s", n > 0 ? ", " : "",
                                  params[i].name);
        }
    }
}

static int find_policy(const char *name, quire_retain_spec *out, quire_error *err)
{
    char names[128];

    for (size_t i = 0; i < N_POLICIES; i++) {
        if (strcmp(policies[i].name, name) == 0) {
            const quire_retain_policy *p = &policies[i];

            *out = (quire_retain_spec){ .policy = p,
                                        .share = SHARE,
                                        .sinks = p->sinks,
                                        .recent = p->recent,
                                        .probe = PROBE,
                                        .pool = p->needs_attention ? POOL : 1,
                                        .floor = p->floor,
                                        .gamma = GAMMA,
                                        .tau1 = TAU1,
                                        .tau2 = TAU2,
                                        .repeat = REPEAT,
                                        .future = FUTURE,
                                        .granule = 1 };
            return QUIRE_OK;
        }
    }
    names_of_policies(names, sizeof names);
    return quire_error_set(err, QUIRE_INVAL,
                           "there is no retention policy \"%s\": the policies are %s", name, names);
}

static int parse_full(char *value, quire_retain_spec *out, quire_error *err)
{
    char *rest = value;

    out->has_full = true;
    out->n_full = 0;
    if (strcmp(value, "none") == 0) {
        return QUIRE_OK;
    }
    while (rest != NULL) {
        char *word = rest;
        int64_t layer;

        rest = strchr(rest, '+');
        if (rest != NULL) {
            *rest++ = '\0';
        }
        if (quire_parse_i64(word, -65536, 65535, &layer) < 0) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "full_layers: \"%s\" is no number of a layer (numbers with + "
                                   "between them, -1 is the last layer, or \"none\")",
                                   word);
        }
        if (out->n_full == QUIRE_RETAIN_FULL_MAX) {
            return quire_error_set(err, QUIRE_INVAL, "full_layers names more than %u layers",
                                   QUIRE_RETAIN_FULL_MAX);
        }
        out->full[out->n_full++] = (int32_t)layer;
    }
    return QUIRE_OK;
}

static int parse_merge(const char *value, quire_retain_spec *out, quire_error *err)
{
    out->merges = strcmp(value, "fit") == 0;
    if (!out->merges && strcmp(value, "none") != 0) {
        return quire_error_set(err, QUIRE_INVAL, "merge=%s: it is \"fit\" or \"none\"", value);
    }
    return QUIRE_OK;
}

static int set_count(const param *p, const char *value, quire_retain_spec *out, quire_error *err)
{
    int64_t count;

    if (quire_parse_i64(value, (int64_t)p->min, (int64_t)p->max, &count) < 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s=%s: a whole number from %.0f to %.0f is wanted", p->name, value,
                               p->min, p->max);
    }
    if (p->offset == AT(seed)) {
        out->seed = (uint64_t)count;
        return QUIRE_OK;
    }
    if (p->offset == AT(pool) && count % 2 == 0) {
        return quire_error_set(err, QUIRE_INVAL, "pool=%s: must be odd", value);
    }
    *(uint32_t *)(void *)((char *)out + p->offset) = (uint32_t)count;
    return QUIRE_OK;
}

static int set_param(char *word, quire_retain_spec *out, quire_error *err)
{
    char *value = strchr(word, '=');
    char names[128];
    double real;

    if (value != NULL) {
        *value++ = '\0';
    }
    for (size_t i = 0; i < N_PARAMS; i++) {
        const param *p = &params[i];

        if (strcmp(p->name, word) != 0 || !is_read(out->policy, p)) {
            continue;
        }
        if (value == NULL) {
            return quire_error_set(err, QUIRE_INVAL, "%s has no value: %s=...", word, word);
        }
        if (p->kind == PARAM_LAYERS) {
            return parse_full(value, out, err);
        }
        if (p->kind == PARAM_MERGE) {
            return parse_merge(value, out, err);
        }
        if (p->kind == PARAM_COUNT) {
            return set_count(p, value, out, err);
        }
        if (quire_parse_f64(value, p->min, p->max, &real) < 0) {
            return quire_error_set(err, QUIRE_INVAL, "%s=%s: a number from %g to %g is wanted",
                                   p->name, value, p->min, p->max);
        }
        *(double *)(void *)((char *)out + p->offset) = real;
        return QUIRE_OK;
    }
    names_of_params(out->policy, names, sizeof names);
    return quire_error_set(err, QUIRE_INVAL, "the policy %s has no parameter \"%s\": it has %s",
                           out->policy->name, word, names);
}

static int parse_share(const char *value, quire_retain_spec *out, quire_error *err)
{
    if (quire_parse_f64(value, 0, 1, &out->share) < 0 || out->share <= 0) {
        return quire_error_set(
            err, QUIRE_INVAL, "a share of \"%s\": a number above 0 and at most 1 is wanted", value);
    }
    return QUIRE_OK;
}

static size_t put_text(const quire_retain_spec *spec, char *buffer, size_t buffer_bytes);

/* Whether the spec has room for its text, also with a granule that the caller sets later. */
static int check_text(const quire_retain_spec *spec, quire_error *err)
{
    quire_retain_spec longest = *spec;
    char text[QUIRE_RETAIN_TEXT_MAX];

    longest.granule = QUIRE_RETAIN_GRANULE_MAX;
    if (put_text(&longest, text, sizeof text) < sizeof text) {
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "%s with all its parameters takes more than %u bytes as text: "
                           "full_layers must name fewer layers, or numbers have fewer digits",
                           spec->policy->name, QUIRE_RETAIN_TEXT_MAX - 1);
}

int quire_retain_parse_lanes(const char *text, quire_retain_spec *out, quire_error *err)
{
    char copy[SPEC_BYTES];
    char *rest, *share;

    *out = (quire_retain_spec){ 0 };
    if (strlen(text) >= sizeof copy) {
        return quire_error_set(err, QUIRE_INVAL, "a retention policy of %zu bytes: at most %zu",
                               strlen(text), sizeof copy - 1);
    }
    memcpy(copy, text, strlen(text) + 1);
    rest = strchr(copy, ',');
    if (rest != NULL) {
        *rest++ = '\0';
    }
    share = strchr(copy, ':');
    if (share != NULL) {
        *share++ = '\0';
    }
    QUIRE_TRY(find_policy(copy, out, err));
    if (share != NULL) {
        QUIRE_TRY(parse_share(share, out, err));
    }
    while (rest != NULL) {
        char *word = rest;

        rest = strchr(rest, ',');
        if (rest != NULL) {
            *rest++ = '\0';
        }
        QUIRE_TRY(set_param(word, out, err));
    }
    if (share == NULL && out->threshold > 0) {
        out->share = 1; /* the text decides */
    }
    return check_text(out, err);
}

int quire_retain_parse(const char *text, quire_retain_spec *out, quire_error *err)
{
    QUIRE_TRY(quire_retain_parse_lanes(text, out, err));
    if (out->merges) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "merge=fit is for --retain of quire run and quire perplexity, "
                               "without --context-overflow condense");
    }
    return QUIRE_OK;
}

/* ---- as text ---- */

/* Returns the bytes that the parameter takes; more than text_bytes: it is cut. */
static size_t put_param(const quire_retain_spec *spec, const param *p, char *text,
                        size_t text_bytes)
{
    const void *at = (const char *)spec + p->offset;
    char real[REAL_BYTES];
    size_t n = 0;

    if ((p->offset == AT(threshold) && spec->threshold <= 0) ||
        (p->offset == AT(granule) && spec->granule <= 1)) {
        return 0;
    }
    if (p->kind == PARAM_REAL) {
        return (size_t)snprintf(text, text_bytes, ",%s=%s", p->name,
                                quire_format_real(*(const double *)at, real, sizeof real));
    }
    if (p->kind == PARAM_COUNT) {
        return (size_t)snprintf(text, text_bytes, ",%s=%llu", p->name,
                                p->offset == AT(seed) ? (unsigned long long)spec->seed
                                                      : (unsigned long long)*(const uint32_t *)at);
    }
    if (p->kind == PARAM_MERGE) {
        return spec->merges ? (size_t)snprintf(text, text_bytes, ",%s=fit", p->name) : 0;
    }
    if (!spec->has_full) {
        return 0;
    }
    n = (size_t)snprintf(text, text_bytes, ",%s=%s", p->name, spec->n_full == 0 ? "none" : "");
    for (uint32_t i = 0; i < spec->n_full && n < text_bytes; i++) {
        n += (size_t)snprintf(text + n, text_bytes - n, "%s%d", i > 0 ? "+" : "", spec->full[i]);
    }
    return n;
}

/* Returns the bytes of the text without its end; buffer_bytes or more: it is cut. */
static size_t put_text(const quire_retain_spec *spec, char *buffer, size_t buffer_bytes)
{
    char share[REAL_BYTES];
    size_t n = (size_t)snprintf(buffer, buffer_bytes, "%s:%s", spec->policy->name,
                                quire_format_real(spec->share, share, sizeof share));

    for (size_t i = 0; i < N_PARAMS && n < buffer_bytes; i++) {
        if (is_read(spec->policy, &params[i])) {
            n += put_param(spec, &params[i], buffer + n, buffer_bytes - n);
        }
    }
    return n;
}

char *quire_retain_text(const quire_retain_spec *spec, char *buffer, size_t buffer_bytes)
{
    /* A text that was cut would be that of other specs, too. */
    QUIRE_CHECK(put_text(spec, buffer, buffer_bytes) < buffer_bytes);
    return buffer;
}

/* ---- layers that are kept whole ---- */

/* The layers that full_layers names, or the policy by default: *n numbers. */
static const int32_t *named_layers(const quire_retain_spec *spec, uint32_t *n)
{
    static const int32_t by_default[] = { 0, 1, -1 };

    *n = spec->has_full ? spec->n_full : spec->policy->has_full ? 3 : 0;
    return spec->has_full ? spec->full : by_default;
}

bool quire_retain_names_layer(const quire_retain_spec *spec, uint32_t n_layers, uint32_t layer)
{
    uint32_t n;
    const int32_t *named = named_layers(spec, &n);

    for (uint32_t i = 0; i < n; i++) {
        if ((named[i] < 0 ? (int64_t)n_layers + named[i] : named[i]) == (int64_t)layer) {
            return true;
        }
    }
    return false;
}

int quire_retain_full_layers(const quire_retain_spec *spec, uint32_t n_layers, const bool *chooses,
                             bool *is_full, quire_error *err)
{
    uint32_t n_full = 0, n_choosing = 0, n_named;
    const int32_t *named = named_layers(spec, &n_named);

    for (uint32_t i = 0; spec->has_full && i < n_named; i++) {
        if (named[i] >= (int64_t)n_layers || named[i] < -(int64_t)n_layers) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "full_layers names layer %d, but the model has %u layers",
                                   named[i], n_layers);
        }
    }
    for (uint32_t l = 0; l < n_layers; l++) {
        const bool is_choosing = chooses == NULL || chooses[l];

        is_full[l] = is_choosing && quire_retain_names_layer(spec, n_layers, l);
        n_choosing += is_choosing;
        n_full += is_full[l];
    }
    if (n_full > 0 && (double)n_full >= spec->share * n_choosing && spec->share < 1) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s:%g with %u of %u layers%s kept whole: the share must be above "
                               "%g, or full_layers name fewer layers",
                               spec->policy->name, spec->share, n_full, n_choosing,
                               n_choosing < n_layers ? " without a window" : "",
                               (double)n_full / n_choosing);
    }
    return QUIRE_OK;
}
