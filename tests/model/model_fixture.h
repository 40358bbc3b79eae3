/* model_fixture.h - helpers that the tests of the model runtime share: models, from tests/data or
 * generated, and libllama's own answer to compare with.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_MODEL_FIXTURE_H
#define QUIRE_TESTS_MODEL_FIXTURE_H

#include <glob.h>
#include <stddef.h>
#include <stdint.h>

#include "model/model.h"
#include "model/runtime.h"

#include "gguf_gen.h"

/* The trained model that the repository holds. Its bytes are tokens; it has no chat template. */
#define FIXTURE_STORIES "stories260K-f32.gguf"

/* Path of a model in tests/data. Memory: static, until the next call. */
const char *fixture_model_path(const char *name);

/* Every model at hand: those of tests/data, the default model where scripts/fetch-model.sh has
 * fetched it, those of QUIRE_MODELS_DIR and the folders in it. Memory: end with globfree(). */
glob_t fixture_models(void);

/* Path of libllama's tokenizer fixture of that name in the cached source tree (or QUIRE_LLAMA_DIR);
 * NULL when absent. Memory: static, until the next call. */
const char *fixture_vocab_path(const char *name);

/* A llama of 4 heads of 32, 2 of them with keys, in f32. */
gguf_gen_opts fixture_llama(const char *name, uint32_t n_layer, uint32_t n_vocab, uint32_t n_ctx,
                            uint64_t seed);

/* Write a generated model to a file of this process. Memory: static, until the next call; the file
 * goes away with fixture_generated_remove(). */
const char *fixture_generate(const gguf_gen_opts *opts);
void fixture_generated_remove(void);

/* Open or fail the test with the error's text. */
quire_model *fixture_open(const char *path);
quire_model *fixture_open_as(const char *path, const quire_model_opts *opts);
quire_runtime *fixture_runtime(const quire_model *model, const quire_runtime_opts *opts);
quire_seq_id fixture_seq(quire_runtime *runtime);

/* One slice through quire_runtime_step(); fails the test on error. */
const float *fixture_step(quire_runtime *runtime, quire_seq_id seq, const int32_t *tokens,
                          uint32_t n_tokens, quire_logits logits);

/* libllama on the same file: CPU, f32 KV, no flash attention. */
typedef struct fixture_peer fixture_peer;
fixture_peer *fixture_peer_open(const char *path, uint32_t n_ctx);
/* The same of a model with experts, whose choices are watched in texts of at most 512 tokens:
 * fixture_peer_tie(). */
fixture_peer *fixture_peer_open_router(const char *path, uint32_t n_ctx, const quire_router *router,
                                       float tie);
void fixture_peer_close(fixture_peer *peer);
/* Forget the text so far. */
void fixture_peer_restart(fixture_peer *peer);
/* The first token of the text so far at whose choice of experts, or of groups of them, the last
 * score taken and the first one left differ by at most `tie` times the larger one; UINT32_MAX:
 * there is none, or nothing is watched. */
uint32_t fixture_peer_tie(const fixture_peer *peer);
/* Logits of all n tokens, [n][n_vocab], continuing where the last call ended. */
const float *fixture_peer_decode(fixture_peer *peer, const int32_t *tokens, uint32_t n_tokens);

/* The hidden states of all n tokens behind the last norm, [n][n_embd], likewise. */
const float *fixture_peer_hidden(fixture_peer *peer, const int32_t *tokens, uint32_t n_tokens);

/* Perplexity of a text by libllama, of the second half of each of n_chunks chunks of n_ctx tokens,
 * as llama-perplexity defines it. The text has as many tokens. */
double fixture_peer_perplexity(const char *path, const char *text, uint32_t n_ctx,
                               uint32_t n_chunks);

double fixture_diff_max(const float *a, const float *b, size_t n);
int32_t fixture_argmax(const float *logits, uint32_t n);

#endif /* QUIRE_TESTS_MODEL_FIXTURE_H */
