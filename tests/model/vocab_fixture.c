/* vocab_fixture.c - see vocab_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "vocab_fixture.h"

#include "model/backend.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void vocab_open(quire_model *model, const char *path, const char *pre)
{
    struct llama_model_params params = llama_model_default_params();
    struct llama_model_kv_override overrides[2];

    memset(overrides, 0, sizeof overrides);
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    (void)snprintf(overrides[0].key, sizeof overrides[0].key, "tokenizer.ggml.pre");
    (void)snprintf(overrides[0].val_str, sizeof overrides[0].val_str, "%s", pre);
    memset(model, 0, sizeof *model);
    params.vocab_only = true;
    params.kv_overrides = pre[0] != '\0' ? overrides : NULL;
    assert_int_equal(quire_backend_init(NULL), QUIRE_OK);
    model->llama = llama_model_load_from_file(path, params);
    assert_non_null(model->llama);
    model->vocab = llama_model_get_vocab(model->llama);
    model->desc.n_vocab = (uint32_t)llama_vocab_n_tokens(model->vocab);
    if (pre[0] != '\0') {
        assert_int_equal(quire_tokenizer_create(&model->tokenizer, model->vocab, pre), QUIRE_OK);
    } else {
        assert_int_equal(quire_model_tokenizer_create(model, NULL), QUIRE_OK);
    }
}

void vocab_generate(quire_model *model, const vocab_gen_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    char path[64];

    (void)snprintf(path, sizeof path, "vocab_fixture_%d.gguf", (int)getpid());
    if (vocab_gen_write(opts, path, &err) < 0) {
        fail_msg("%s", err.message);
    }
    vocab_open(model, path, "");
    (void)unlink(path);
}

void vocab_close(quire_model *model)
{
    quire_tokenizer_destroy(model->tokenizer);
    llama_model_free(model->llama);
}

const char *vocab_pre_name(size_t i)
{
    static const char *const names[] = {
        "default",     "llama-bpe",       "jais-2",
        "smaug-bpe",   "deepseek-llm",    "deepseek-v3",
        "spark2_5",    "youtu",           "deepseek-coder",
        "falcon",      "starcoder",       "gpt-2",
        "qwen2",       "qwen35",          "bloom",
        "chatglm-bpe", "viking",          "tekken",
        "chameleon",   "gpt-4o",          "granite-embed-multi-97m",
        "tiny_aya",    "kimi-k2",         "superbpe",
        "bailingmoe",  "seed-coder",      "ufakzeka",
        "grok-2",      "afmoe",           "laguna",
        "exaone-moe",  "minicpm5",        "jina-v2-de",
        "olmo",        "command-r",       "hunyuan",
        "talkie",      "granite-docling", "minimax-m2",
        NULL,
    };

    return names[i];
}
