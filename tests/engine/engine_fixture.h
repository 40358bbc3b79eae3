/* engine_fixture.h - common parts of the engine's tests: an engine on a model, requests, a plain
 * loop for reference answers, and a gate that stops the engine.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ENGINE_FIXTURE_H
#define QUIRE_TESTS_ENGINE_FIXTURE_H

#include "engine/engine.h"
#include "engine/loop/loop_call.h"
#include "model_fixture.h"

#define FIXTURE_WAIT_MS 240000u /* far longer than any wait, also on lavapipe under asan */

typedef struct engine_bench {
    quire_model *model;
    quire_runtime *runtime;
    quire_engine *engine;
    uint32_t n_vocab;
} engine_bench;

/* A generated model of f32 weights: 2 layers, 320 tokens, a context of n_ctx. */
engine_bench bench_tiny(const quire_engine_opts *engine, const quire_runtime_opts *runtime);
/* The model with weights in Q8_0, which are copied into panels, and heads of d_head. */
engine_bench bench_panels(uint32_t d_head, const quire_engine_opts *engine,
                          const quire_runtime_opts *runtime);
/* The model in f32 with n_layer layers, and heads of 32. */
engine_bench bench_deep(uint32_t n_layer, const quire_engine_opts *engine,
                        const quire_runtime_opts *runtime);
/* The deep model with weights in panels: a row has the same bits in any step. */
engine_bench bench_deep_panels(uint32_t n_layer, const quire_engine_opts *engine,
                               const quire_runtime_opts *runtime);
/* A model of the architecture quire with 4 layers, weights in Q8_0, and a scheme of
 * gguf_gen_scheme.h. */
engine_bench bench_scheme(const char *scheme, const quire_engine_opts *engine,
                          const quire_runtime_opts *runtime);
/* The model of bench_scheme() with layers that store their own K and V and have windows; 0 = none.
 */
engine_bench bench_windows(const int32_t windows[4], const quire_engine_opts *engine,
                           const quire_runtime_opts *runtime);
/* So many layers of models that are opened next lie on a second backend of the CPU. */
extern uint32_t bench_device_layers;
/* Sets of weights with such layers; 0 = one. */
extern uint32_t bench_sets;
/* A model of the architecture lfm2, or qwen35, with 5 layers, weights in Q8_0: all but two of its
 * layers are recurrent. */
engine_bench bench_recurrent(const char *arch, const quire_engine_opts *engine,
                             const quire_runtime_opts *runtime);
/* A family of arch_cases.h, with windows, where it has them, of so many tokens. */
engine_bench bench_family(const char *name, uint32_t window, const quire_engine_opts *engine,
                          const quire_runtime_opts *runtime);
/* A model with 4 layers whose K is not turned alike: the last layer does not turn it, or
 * (has_halves) all layers turn the first half of each head. */
engine_bench bench_unturned(bool has_halves, const quire_engine_opts *engine,
                            const quire_runtime_opts *runtime);
/* A model with latent attention (deepseek2): 2 layers, rows of 40 values, the first 32 of which are
 * V. */
engine_bench bench_latent(const quire_engine_opts *engine, const quire_runtime_opts *runtime);
/* A generated model of the architecture llama, whose options may be changed: 4 heads, 2 of them
 * with keys; and an engine on such a model. */
gguf_gen_opts bench_gen_opts(enum ggml_type type, uint32_t d_head, uint32_t n_layer,
                             uint32_t n_ctx);
engine_bench bench_generated(const gguf_gen_opts *gen, const quire_engine_opts *engine,
                             const quire_runtime_opts *runtime);
/* Ends the engine, checks the cache, and that no page is live any more. */
void bench_close(engine_bench *b);

/* Runtime options that tests begin with: 1 thread, f32 KV, pages of 64. */
quire_runtime_opts bench_runtime_opts(uint32_t n_ctx, uint32_t n_seqs_max);

/* Tokens of a text of its own for each seed; none of them control tokens. */
void tokens_make(int32_t *tokens, uint32_t n, uint64_t seed);

/* Greedy, no stop texts, no end of generation. */
quire_request_params params_greedy(const int32_t *tokens, uint32_t n, uint32_t max_tokens);
/* Submit, or fail the test with the error's text. */
quire_request *submit(const engine_bench *b, const quire_request_params *params);
/* All tokens until the end, at most n. Returns how many. */
uint32_t collect(quire_request *request, int32_t *tokens, uint32_t n);
/* Wait for the end. */
const quire_request_result *finish(quire_request *request);
/* finish() and release, with a check of the ending. */
void finish_as(quire_request *request, quire_finish ending);

/* The tokens that a loop of one sequence generates with the same runtime options. Returns the least
 * gap between the best and the second-best logit of a token. Below REFERENCE_GAP_MIN the shape of a
 * step can decide, and answers must not be compared. */
float reference(const engine_bench *b, const int32_t *prompt, uint32_t n_prompt, int32_t *tokens,
                uint32_t n);
#define REFERENCE_GAP_MIN 1e-4f

/* Have fn run on the engine's thread between two steps, and wait for it: quire_loop_call(). */
int engine_call(quire_engine *engine, quire_loop_fn fn, void *ctx);

/* The engine stops between two steps from gate_close() to gate_open(). gate_step() lets it run one
 * round, which is one step if a request runs. */
typedef struct gate gate;
gate *gate_close(quire_engine *engine);
/* Close the gate of one of several devices, counted from 0. */
gate *gate_close_at(quire_engine *engine, uint32_t device);
void gate_step(gate *g);
void gate_open(gate *g);

/* A clock that is turned by hand: quire_engine_opts.clock_us, with an _Atomic uint64_t for ctx. */
uint64_t hands_of(void *ctx);

/* Charge of a page of so many tokens of the generated model, in f32. */
uint64_t tiny_page_bytes(uint32_t page_tokens);

/* How many of the last 256 events are of this kind and begin so. */
uint32_t events_of(const engine_bench *b, quire_event_kind kind, const char *begin);

/* Figures as of between two steps. */
quire_engine_stats stats_now(quire_engine *engine);

/* prefix and cache validated on the engine's thread. */
void validate(quire_engine *engine);

#endif /* QUIRE_TESTS_ENGINE_FIXTURE_H */
