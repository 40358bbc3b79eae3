/* model_fixture.c - see model_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <llama.h>

#include "model/text.h"

static char path_buffer[1024];

const char *fixture_model_path(const char *name)
{
    (void)snprintf(path_buffer, sizeof path_buffer, QUIRE_SOURCE_DIR "/tests/data/%s", name);
    return path_buffer;
}

/* A pattern of paths in the folder where the scripts keep what they fetch. */
static void cache_pattern(char *out, size_t cap, const char *below)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");

    if (cache != NULL && cache[0] != '\0') {
        (void)snprintf(out, cap, "%s/quire/%s", cache, below);
    } else {
        (void)snprintf(out, cap, "%s/.cache/quire/%s", home != NULL ? home : "", below);
    }
}

glob_t fixture_models(void)
{
    const char *dir = getenv("QUIRE_MODELS_DIR");
    char pattern[1024];
    glob_t found;

    assert_int_equal(glob(QUIRE_SOURCE_DIR "/tests/data/*.gguf", 0, NULL, &found), 0);
    cache_pattern(pattern, sizeof pattern, "models/*.gguf");
    (void)glob(pattern, GLOB_APPEND, NULL, &found);
    if (dir != NULL) {
        (void)snprintf(pattern, sizeof pattern, "%s/{,*/}*.gguf", dir);
        (void)glob(pattern, GLOB_APPEND | GLOB_BRACE, NULL, &found);
    }
    return found;
}

const char *fixture_vocab_path(const char *name)
{
    const char *dir = getenv("QUIRE_LLAMA_DIR");
    const char *result = NULL;
    char pattern[1024];
    char below[256];
    glob_t found;

    if (dir != NULL) {
        (void)snprintf(pattern, sizeof pattern, "%s/models/%s", dir, name);
    } else {
        (void)snprintf(below, sizeof below, "llama-*-src/models/%s", name);
        cache_pattern(pattern, sizeof pattern, below);
    }
    if (glob(pattern, 0, NULL, &found) == 0) {
        (void)snprintf(path_buffer, sizeof path_buffer, "%s", found.gl_pathv[0]);
        result = path_buffer;
    } else {
        (void)printf("no %s (set QUIRE_LLAMA_DIR)\n", pattern);
    }
    globfree(&found);
    return result;
}

static char generated_path[256];

gguf_gen_opts fixture_llama(const char *name, uint32_t n_layer, uint32_t n_vocab, uint32_t n_ctx,
                            uint64_t seed)
{
    gguf_gen_opts gen = {
        .arch = "llama",
        .n_layer = n_layer,
        .n_embd = 128,
        .n_ff = 256,
        .n_head = 4,
        .n_kv_head = 2,
        .d_head = 32,
        .n_vocab = n_vocab,
        .n_ctx = n_ctx,
        .rope_base = 10000.0f,
        .vocab = GGUF_GEN_VOCAB_SPM,
        .type = GGML_TYPE_F32,
        .seed = seed,
    };

    (void)snprintf(gen.name, sizeof gen.name, "%s", name);
    return gen;
}

const char *fixture_generate(const gguf_gen_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    const char *dir = getenv("TMPDIR");

    (void)snprintf(generated_path, sizeof generated_path, "%s/quire-test-%ld.gguf",
                   dir != NULL ? dir : "/tmp", (long)getpid());
    if (gguf_gen_write(opts, generated_path, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return generated_path;
}

void fixture_generated_remove(void)
{
    (void)unlink(generated_path);
}

quire_model *fixture_open_as(const char *path, const quire_model_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;

    if (quire_model_open(&model, path, opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return model;
}

quire_model *fixture_open(const char *path)
{
    return fixture_open_as(path, NULL);
}

quire_runtime *fixture_runtime(const quire_model *model, const quire_runtime_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime = NULL;

    if (quire_runtime_create(&runtime, model, opts, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return runtime;
}

quire_seq_id fixture_seq(quire_runtime *runtime)
{
    quire_seq_id seq = QUIRE_SEQ_NULL;

    assert_int_equal(quire_seq_open(quire_runtime_cache(runtime), QUIRE_REGION_DYNAMIC, &seq),
                     QUIRE_OK);
    return seq;
}

const float *fixture_step(quire_runtime *runtime, quire_seq_id seq, const int32_t *tokens,
                          uint32_t n_tokens, quire_logits logits)
{
    const quire_slice slice = {
        .seq = seq, .tokens = tokens, .n_tokens = n_tokens, .logits = logits
    };
    const float *result = NULL;

    assert_int_equal(quire_runtime_step(runtime, &slice, 1, &result), QUIRE_OK);
    return result;
}

#define PEER_STEP_MAX 512u /* tokens: its logits of attention grow with the context */

struct fixture_peer {
    struct llama_model *model;
    struct llama_context *ctx;
    struct llama_batch batch;
    int32_t n_past;
    quire_router router; /* n_experts 0: not watched */
    float tie;
    uint32_t first_tie;
};

static int by_score(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return x > y ? -1 : x < y;
}

/* Whether the k best of n scores are a matter of rounding. */
static bool is_tie(const float *scores, uint32_t n, uint32_t k, float tie)
{
    float sorted[QUIRE_EXPERTS_MAX];

    memcpy(sorted, scores, n * sizeof *scores);
    qsort(sorted, n, sizeof *sorted, by_score);
    return k > 0 && k < n &&
           sorted[k - 1] - sorted[k] <= tie * fmaxf(fabsf(sorted[k - 1]), fabsf(sorted[k]));
}

/* A result of the graph: the order of a row of scores for each token, of experts or of groups. Rows
 * of experts by group have no border: the best two of a group are added. */
static bool choice_watch(struct ggml_tensor *t, bool is_asked, void *user)
{
    fixture_peer *peer = user;
    const struct ggml_tensor *scores = t->src[0];

    if (t->op != GGML_OP_ARGSORT || t->ne[1] != peer->batch.n_tokens || t->ne[2] != 1) {
        return !is_asked;
    }
    for (int32_t i = 0; !is_asked && i < peer->batch.n_tokens; i++) {
        const float *row = (const float *)((const char *)scores->data + (size_t)i * scores->nb[1]);
        const uint32_t n = (uint32_t)t->ne[0];
        const uint32_t k =
            n == peer->router.n_experts ? peer->router.n_used : peer->router.n_groups_used;
        const uint32_t at = (uint32_t)(peer->n_past - peer->batch.n_tokens + i);

        if (at < peer->first_tie && is_tie(row, n, k, peer->tie)) {
            peer->first_tie = at;
        }
    }
    return true;
}

fixture_peer *fixture_peer_open(const char *path, uint32_t n_ctx)
{
    return fixture_peer_open_router(path, n_ctx, &(quire_router){ 0 }, 0.0f);
}

fixture_peer *fixture_peer_open_router(const char *path, uint32_t n_ctx, const quire_router *router,
                                       float tie)
{
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_context_params params = llama_context_default_params();
    fixture_peer *peer = calloc(1, sizeof *peer);

    assert_non_null(peer);
    /* On CPUs with AMX libllama v0.5.0 aborts with deepseek2 in Q8_0 when it repacks weights. */
    model_params.use_extra_bufts = false;
    peer->model = llama_model_load_from_file(path, model_params);
    assert_non_null(peer->model);
    params.n_ctx = n_ctx;
    params.n_batch = n_ctx;
    params.n_ubatch = n_ctx <= PEER_STEP_MAX ? n_ctx : PEER_STEP_MAX;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.n_threads = params.n_threads_batch = 1;
    peer->router = *router;
    peer->tie = tie;
    peer->first_tie = UINT32_MAX;
    if (router->n_experts != 0) {
        params.cb_eval = choice_watch;
        params.cb_eval_user_data = peer;
    }
    peer->ctx = llama_init_from_model(peer->model, params);
    assert_non_null(peer->ctx);
    peer->batch = llama_batch_init((int32_t)n_ctx, 0, 1);
    return peer;
}

void fixture_peer_close(fixture_peer *peer)
{
    llama_batch_free(peer->batch);
    llama_free(peer->ctx);
    llama_model_free(peer->model);
    free(peer);
}

void fixture_peer_restart(fixture_peer *peer)
{
    llama_memory_clear(llama_get_memory(peer->ctx), true);
    peer->n_past = 0;
    peer->first_tie = UINT32_MAX;
}

uint32_t fixture_peer_tie(const fixture_peer *peer)
{
    return peer->first_tie;
}

const float *fixture_peer_decode(fixture_peer *peer, const int32_t *tokens, uint32_t n_tokens)
{
    peer->batch.n_tokens = (int32_t)n_tokens;
    for (uint32_t i = 0; i < n_tokens; i++) {
        peer->batch.token[i] = tokens[i];
        peer->batch.pos[i] = peer->n_past++;
        peer->batch.n_seq_id[i] = 1;
        peer->batch.seq_id[i][0] = 0;
        peer->batch.logits[i] = 1;
    }
    assert_int_equal(llama_decode(peer->ctx, peer->batch), 0);
    return llama_get_logits(peer->ctx);
}

const float *fixture_peer_hidden(fixture_peer *peer, const int32_t *tokens, uint32_t n_tokens)
{
    llama_set_embeddings(peer->ctx, true);
    (void)fixture_peer_decode(peer, tokens, n_tokens);
    return llama_get_embeddings(peer->ctx);
}

double fixture_peer_perplexity(const char *path, const char *text, uint32_t n_ctx,
                               uint32_t n_chunks)
{
    quire_model *model = fixture_open(path);
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    const int64_t n_text = (int64_t)strlen(text);
    int32_t *tokens = malloc((size_t)(n_text + 2) * sizeof(*tokens));
    double sum = 0;
    uint32_t n_scored = 0;

    assert_non_null(tokens);
    assert_true(quire_model_tokenize(model, text, (size_t)n_text, true, false, tokens,
                                     (size_t)n_text + 2) >= (int64_t)n_chunks * n_ctx);
    for (uint32_t i = 0; i < n_chunks; i++) {
        fixture_peer *peer = fixture_peer_open(path, n_ctx);
        int32_t *chunk = tokens + (size_t)i * n_ctx;
        const float *logits;

        chunk[0] = quire_model_bos(model);
        logits = fixture_peer_decode(peer, chunk, n_ctx);
        for (uint32_t t = n_ctx / 2; t + 1 < n_ctx; t++) {
            const float *row = logits + (size_t)t * n_vocab;
            double total = 0;

            for (uint32_t v = 0; v < n_vocab; v++) {
                total += exp((double)row[v] - (double)row[chunk[t + 1]]);
            }
            sum += log(total);
            n_scored++;
        }
        fixture_peer_close(peer);
    }
    free(tokens);
    quire_model_close(model);
    return exp(sum / n_scored);
}

double fixture_diff_max(const float *a, const float *b, size_t n)
{
    double worst = 0.0;

    for (size_t i = 0; i < n; i++) {
        const double diff = fabs((double)a[i] - (double)b[i]);

        /* NaN compares false with everything: keep it visible. */
        worst = diff <= worst ? worst : diff;
    }
    return worst;
}

int32_t fixture_argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}
