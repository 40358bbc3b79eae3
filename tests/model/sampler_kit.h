/* sampler_kit.h - two small models, their logits, and samplers.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SAMPLER_KIT_H
#define QUIRE_TESTS_SAMPLER_KIT_H

#include "model/sampler.h"
#include "model_fixture.h"

#include "base/rng.h"

extern quire_model *model_spm;
extern quire_model *model_bpe;
extern uint32_t n_vocab; /* of both */
extern float *logits;    /* [n_vocab] */

int sampler_setup(void **state);
int sampler_teardown(void **state);
void logits_random(quire_rng *rng);
/* The token of the largest logit. */
int32_t likeliest(void);
quire_sampler *sampler(const quire_model *model, const quire_sampler_opts *opts);
/* No sampler has these options; the message has `part`. */
void sampler_refused(const quire_sampler_opts *opts, int status, const char *part);

#endif /* QUIRE_TESTS_SAMPLER_KIT_H */
