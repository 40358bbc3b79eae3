/* reuse_model.c - classes, hazards and indexes.
 *
 * SPDX-License-Identifier: MIT */
#include "core/evict/reuse_model.h"

#include <math.h>
#include <string.h>

/* Priors of the model. Any values from a quarter to four times these give the same hit rates within
 * noise (docs/eviction.md). */
#define PRIOR_HAZARD   0.1f /* per half octave, the same in each: LRU's assumption */
#define PRIOR_EVENTS   0.1f /* weight of PRIOR_HAZARD, by kind */
#define LEAN_EVENTS    4.0f /* weight of a parent's hazard in a child */
#define PRIOR_VARIANCE QUIRE_REUSE_PRIOR_VARIANCE

#define KEEP            0.96f /* share of the counts kept per round: half in 3,000 requests */
#define CLASSES_A_TIME  2u    /* refreshed per request */
#define LEVELS          8u    /* of scores, octaves */
#define LEVEL_0         4u    /* the level of score 0 */
#define GAPS            14u   /* of mean gaps, octaves of a second, of a private class */
#define SHARED_GAPS     32u   /* half octaves of 0.1 s */
#define GAP_UNIT        100.0f
#define SECOND          1000.0f
#define SCORE_MIN       (-6.0f)
#define SCORE_MAX       4.0f
#define LEFT_MIN        1e-30 /* least share of remaining lives; avoids a division by 0 */
#define SURPRISE_MAX    2.0f  /* bound of a weight's step */
#define KIND_TAIL       0u    /* the last page of a text of one conversation */
#define KIND_PRIVATE    1u
#define KIND_SHARED     2u /* and above: shared by 2, up to 4, up to 8, more conversations */
#define PRIVATE_CLASSES (KIND_SHARED * LEVELS * GAPS)
#define PRIVATE_PARENTS (KIND_SHARED * LEVELS)

_Static_assert(PRIVATE_CLASSES + (QUIRE_REUSE_KINDS - KIND_SHARED) * SHARED_GAPS ==
                   QUIRE_REUSE_CLASSES,
               "numbers of classes");
_Static_assert(PRIVATE_PARENTS + (QUIRE_REUSE_KINDS - KIND_SHARED) * SHARED_GAPS / 2 ==
                   QUIRE_REUSE_PARENTS,
               "numbers of parents");

/* ---- bins and classes ---- */

static uint32_t floor_log2(uint64_t n)
{
    return 63u - (uint32_t)__builtin_clzll(n);
}

uint8_t quire_reuse_half_octaves(uint64_t n, uint8_t max)
{
    uint32_t octaves;
    uint32_t half;

    if (n == 0) {
        return 0;
    }
    n = n < UINT32_MAX ? n : UINT32_MAX;
    octaves = floor_log2(n);
    half = n * n >= 2ull << 2 * octaves;
    return (uint8_t)(2 * octaves + half + 1 < max ? 2 * octaves + half + 1 : max);
}

uint32_t quire_reuse_bin_of(uint32_t age)
{
    return quire_reuse_half_octaves(age, QUIRE_REUSE_AGES - 1);
}

static uint32_t octaves_of(uint8_t half_octaves, uint32_t max)
{
    uint32_t octaves = (half_octaves + 1u) / 2;

    return octaves < max ? octaves : max;
}

/* The logarithm of a gap in units of `step`; 0 = less than one step. */
static uint32_t gap_octaves(float gap, float step, uint32_t max)
{
    return octaves_of(quire_reuse_half_octaves((uint64_t)(gap / step), UINT8_MAX), max);
}

static uint32_t kind_of(const quire_reuse_traits *t)
{
    if (t->texts <= 1) {
        return t->tip == 0 ? KIND_TAIL : KIND_PRIVATE;
    }
    return KIND_SHARED + (t->texts > 2) + (t->texts > 4) + (t->texts > 8);
}

static uint32_t kind_of_class(uint32_t id)
{
    return id < PRIVATE_CLASSES ? id / (LEVELS * GAPS)
                                : KIND_SHARED + (id - PRIVATE_CLASSES) / SHARED_GAPS;
}

static uint32_t parent_of_class(uint32_t id)
{
    return id < PRIVATE_CLASSES ? id / GAPS : PRIVATE_PARENTS + (id - PRIVATE_CLASSES) / 2;
}

static uint32_t kind_of_parent(uint32_t parent)
{
    return parent < PRIVATE_PARENTS ? parent / LEVELS
                                    : KIND_SHARED + (parent - PRIVATE_PARENTS) / (SHARED_GAPS / 2);
}

static void features_set(uint16_t *values, const quire_reuse_traits *t, uint32_t kind)
{
    uint32_t turn = t->turn < 3 ? t->turn : 3;
    uint32_t length = octaves_of(t->length, 19);
    uint32_t fresh = octaves_of(t->fresh, 19);

    length = length < 4 ? 0 : length - 4;
    fresh = fresh < 4 ? 0 : fresh - 4;
    values[0] = quire_reuse_half_octaves(t->turn, 15);
    values[1] = t->fresh;
    values[2] = t->length;
    values[3] = (uint16_t)gap_octaves(t->mean_gap, GAP_UNIT, 20);
    values[4] = t->last_gap;
    values[5] = (uint16_t)octaves_of(quire_reuse_half_octaves(t->uses, 16), 8);
    values[6] = (uint16_t)(turn * 64 + (t->fresh < 63 ? t->fresh : 63));
    values[7] = t->tip < 4 ? t->tip : 4;
    values[8] = (uint16_t)((t->turn > 1 ? 256u : 0u) + length * 16 + fresh);
    values[9] = (uint16_t)kind;
}

static float score_bound(float score)
{
    return score < SCORE_MIN ? SCORE_MIN : score > SCORE_MAX ? SCORE_MAX : score;
}

static float score_of(const quire_reuse_model *model, const uint16_t *values)
{
    float score = 0;

    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        score += model->weights[f][values[f]].mean;
    }
    return score_bound(score);
}

quire_reuse_class quire_reuse_class_of(const quire_reuse_model *model,
                                       const quire_reuse_traits *traits)
{
    uint32_t kind = kind_of(traits);
    quire_reuse_class class;
    int32_t level;

    features_set(class.values, traits, kind);
    if (kind >= KIND_SHARED) {
        uint8_t gap =
            quire_reuse_half_octaves((uint64_t)(traits->mean_gap / GAP_UNIT), SHARED_GAPS - 1);

        class.id = (uint16_t)(PRIVATE_CLASSES + (kind - KIND_SHARED) * SHARED_GAPS + gap);
        return class;
    }
    level = (int32_t)floorf(score_of(model, class.values) * 1.442695f + 0.5f) + (int32_t)LEVEL_0;
    level = level < 0 ? 0 : level >= (int32_t)LEVELS ? (int32_t)LEVELS - 1 : level;
    class.id =
        (uint16_t)((kind * LEVELS + (uint32_t)level) * GAPS +
                   (traits->mean_gap > 0 ? 1 + gap_octaves(traits->mean_gap, SECOND, GAPS - 2)
                                         : 0));
    return class;
}

/* ---- learning ---- */

void quire_reuse_wait(quire_reuse_model *model, uint32_t class_id, uint32_t bin, float weight,
                      uint64_t start)
{
    quire_reuse_cell *cell = &model->cells[class_id][bin];

    cell->n_waiting += weight;
    cell->waiting_start += (double)weight * (double)start;
}

/* One step of the additive model. The expected hazard in this part of a life is the kind's hazard
 * times the score's factor. The weights share the surprise in proportion to their uncertainty. */
static void weights_learn(quire_reuse_model *model, const quire_reuse_class *class, float hazard,
                          quire_reuse_part part)
{
    quire_reuse_weight *weights[QUIRE_REUSE_FEATURES];
    float score = 0;
    float variance = 0;
    float expected;
    float surprise;
    float information;
    float share;

    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        weights[f] = &model->weights[f][class->values[f]];
        score += weights[f]->mean;
        variance += weights[f]->variance;
    }
    expected = hazard * part.fraction * expf(score_bound(score));
    surprise = part.weight * ((part.is_use ? 1.0f : 0.0f) - expected);
    information = part.weight * expected;
    surprise = surprise < SURPRISE_MAX ? surprise : SURPRISE_MAX;
    share = 1.0f / (1.0f + information * variance);
    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        float gain = weights[f]->variance * share;

        weights[f]->mean += gain * surprise;
        weights[f]->variance -= gain * weights[f]->variance * information;
    }
}

void quire_reuse_learn(quire_reuse_model *model, const quire_reuse_class *class,
                       quire_reuse_part part)
{
    quire_reuse_cell *cell = &model->cells[class->id][part.bin];
    uint32_t kind = kind_of_class(class->id);

    cell->n_exposed += part.weight * part.fraction;
    cell->n_events += part.is_use ? part.weight : 0;
    if (kind < KIND_SHARED) {
        weights_learn(model, class, model->kinds[kind][part.bin], part);
    }
}

/* ---- hazards and indexes ---- */

/* Exposure in a bin at a time, including lives that are in the bin. */
static float exposure_of(const quire_reuse_model *model, const quire_reuse_cell *cell, uint32_t bin,
                         uint64_t now)
{
    double begin = (double)now - (double)model->starts[bin];
    double waiting = ((double)cell->n_waiting * begin - cell->waiting_start) /
                     (double)(model->starts[bin + 1] - model->starts[bin]);

    return cell->n_exposed + (waiting > 0 ? (float)waiting : 0);
}

static float hazard_of(float n_events, float n_exposed, float prior, float prior_events)
{
    return (n_events + prior_events) / (n_exposed + prior_events / prior);
}

/* A stretch of ages: expected uses and expected time in the stretch, per life that began. */
typedef struct stretch {
    double uses;
    double time;
} stretch;

static bool is_steeper(stretch a, stretch b)
{
    return a.uses * b.time > b.uses * a.time;
}

/* The best ratio of uses to time: adds stretches, the first at the end of hull, while they improve
 * the ratio. The time starts at least_time, because an earlier eviction makes no room sooner. */
static float best_ratio(const stretch *hull, uint32_t n, double least_time)
{
    stretch sum = { 0, least_time };

    while (n > 0 && is_steeper(hull[n - 1], sum)) {
        sum.uses += hull[n - 1].uses;
        sum.time += hull[n - 1].time;
        n--;
    }
    return (float)(sum.uses / sum.time);
}

/* Compute the best ratio of uses to time from the start of each bin. From the last bin to the
 * first, the least concave curve above (time, uses) grows by one stretch; the new stretch absorbs
 * the stretches behind it while these are steeper. */
static void indexes_set(const quire_reuse_model *model, const float *hazards, float *indexes)
{
    stretch bins[QUIRE_REUSE_AGES];
    stretch hull[QUIRE_REUSE_AGES];
    double left[QUIRE_REUSE_AGES + 1] = { 1 };
    uint32_t n = 0;

    for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++) {
        double uses = left[b] * (1.0 - (double)expf(-hazards[b]));
        double width = (double)(model->starts[b + 1] - model->starts[b]);

        bins[b] = (stretch){ uses, (left[b] - 0.5 * uses) * width };
        left[b + 1] = left[b] - uses > LEFT_MIN ? left[b] - uses : LEFT_MIN;
    }
    for (uint32_t b = QUIRE_REUSE_AGES; b-- > 0;) {
        stretch top = bins[b];

        while (n > 0 && is_steeper(hull[n - 1], top)) {
            n--;
            top.uses += hull[n].uses;
            top.time += hull[n].time;
        }
        hull[n++] = top;
        indexes[b] = best_ratio(hull, n, left[b] * (double)model->least_time);
    }
}

static void class_refresh(quire_reuse_model *model, uint32_t id, uint64_t now)
{
    const float *prior = model->parents[parent_of_class(id)];
    float hazards[QUIRE_REUSE_AGES];

    for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++) {
        const quire_reuse_cell *cell = &model->cells[id][b];

        hazards[b] =
            hazard_of(cell->n_events, exposure_of(model, cell, b, now), prior[b], LEAN_EVENTS);
    }
    indexes_set(model, hazards, model->indexes[id]);
}

/* Hazards of parents and kinds in one bin of ages. */
static void bin_refresh(quire_reuse_model *model, uint32_t bin, uint64_t now)
{
    float events[QUIRE_REUSE_PARENTS] = { 0 };
    float exposed[QUIRE_REUSE_PARENTS] = { 0 };
    float kind_events[QUIRE_REUSE_KINDS] = { 0 };
    float kind_exposed[QUIRE_REUSE_KINDS] = { 0 };

    for (uint32_t id = 0; id < QUIRE_REUSE_CLASSES; id++) {
        quire_reuse_cell *cell = &model->cells[id][bin];
        float exposure = exposure_of(model, cell, bin, now);

        events[parent_of_class(id)] += cell->n_events;
        exposed[parent_of_class(id)] += exposure;
        kind_events[kind_of_class(id)] += cell->n_events;
        kind_exposed[kind_of_class(id)] += exposure;
        cell->n_events *= KEEP;
        cell->n_exposed *= KEEP;
    }
    for (uint32_t k = 0; k < QUIRE_REUSE_KINDS; k++) {
        model->kinds[k][bin] =
            hazard_of(kind_events[k], kind_exposed[k], PRIOR_HAZARD, PRIOR_EVENTS);
    }
    for (uint32_t p = 0; p < QUIRE_REUSE_PARENTS; p++) {
        float factor = p < PRIVATE_PARENTS ? exp2f((float)(p % LEVELS) - LEVEL_0) : 1;

        model->parents[p][bin] = hazard_of(
            events[p], exposed[p], factor * model->kinds[kind_of_parent(p)][bin], LEAN_EVENTS);
    }
}

static void round_begin(quire_reuse_model *model, uint64_t now)
{
    for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++) {
        bin_refresh(model, b, now);
    }
    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        for (uint32_t v = 0; v < QUIRE_REUSE_VALUES; v++) {
            quire_reuse_weight *weight = &model->weights[f][v];
            float variance = weight->variance / KEEP;

            weight->variance = variance < PRIOR_VARIANCE ? variance : PRIOR_VARIANCE;
        }
    }
}

void quire_reuse_refresh(quire_reuse_model *model, uint64_t now, float least_time)
{
    model->least_time = least_time;
    if (model->next_class == 0) {
        round_begin(model, now);
    }
    for (uint32_t i = 0; i < CLASSES_A_TIME; i++) {
        class_refresh(model, model->next_class, now);
        model->next_class = (model->next_class + 1) % QUIRE_REUSE_CLASSES;
    }
}

void quire_reuse_refresh_all(quire_reuse_model *model, uint64_t now)
{
    round_begin(model, now);
    for (uint32_t id = 0; id < QUIRE_REUSE_CLASSES; id++) {
        class_refresh(model, id, now);
    }
    model->next_class = 0;
}

float quire_reuse_index(const quire_reuse_model *model, uint32_t class_id, uint32_t age)
{
    uint32_t bin = quire_reuse_bin_of(age);
    const float *indexes = model->indexes[class_id];
    float into;

    if (bin + 1 >= QUIRE_REUSE_AGES) {
        return indexes[QUIRE_REUSE_AGES - 1];
    }
    into = ((float)age - model->starts[bin]) / (model->starts[bin + 1] - model->starts[bin]);
    return indexes[bin] + into * (indexes[bin + 1] - indexes[bin]);
}

float quire_reuse_chance(const quire_reuse_model *model, uint32_t class_id, uint64_t now,
                         uint32_t within)
{
    const uint32_t last = quire_reuse_bin_of(within);
    float events = 0;
    float sum = 0;

    for (uint32_t b = 0; b <= last; b++) {
        const quire_reuse_cell *cell = &model->cells[class_id][b];
        const float exposure = exposure_of(model, cell, b, now);

        events += cell->n_events;
        sum += cell->n_events > 0 ? cell->n_events / fmaxf(exposure, cell->n_events) : 0;
    }
    return events >= QUIRE_REUSE_EVIDENCE ? 1.0f - expf(-sum) : 0;
}

void quire_reuse_model_init(quire_reuse_model *model)
{
    memset(model, 0, sizeof(*model));
    model->least_time = 1;
    for (uint32_t b = 1; b <= QUIRE_REUSE_AGES; b++) {
        model->starts[b] = exp2f(0.5f * (float)(b - 1));
    }
    for (uint32_t f = 0; f < QUIRE_REUSE_FEATURES; f++) {
        for (uint32_t v = 0; v < QUIRE_REUSE_VALUES; v++) {
            model->weights[f][v].variance = PRIOR_VARIANCE;
        }
    }
    round_begin(model, 0);
    for (uint32_t b = 0; b < QUIRE_REUSE_AGES; b++) {
        /* No class has a score yet: all are alike. */
        for (uint32_t p = 0; p < QUIRE_REUSE_PARENTS; p++) {
            model->parents[p][b] = PRIOR_HAZARD;
        }
    }
    class_refresh(model, 0, 0);
    for (uint32_t id = 1; id < QUIRE_REUSE_CLASSES; id++) {
        memcpy(model->indexes[id], model->indexes[0], sizeof(model->indexes[0]));
    }
}
