/* model.c - opening a model: header, vocabulary, tokenizer, weights; see model.h for the order.
 *
 * SPDX-License-Identifier: MIT */
#include "model/model_internal.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/gguf_file.h"
#include "model/gguf_scan.h"
#include "model/step_sizes.h"
#include "model/weights_outline.h"

#include <stdlib.h>
#include <string.h>

/* The vocabulary was checked before, so libllama refuses only vocabularies that this build does not
 * support. */
static int tokenizer_refused(const char *path, quire_error *err)
{
    static const char pre[] = "unknown pre-tokenizer type: ";
    char reason[256], raw[256];
    const char *name;

    quire_backend_log_first(raw, sizeof raw); /* which may hold bytes of the file */
    (void)quire_gguf_printable(reason, sizeof reason, raw, strlen(raw));
    name = strstr(reason, pre);
    if (name != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: tokenizer.ggml.pre %s is not known to this build's libllama",
                               path, name + sizeof pre - 1);
    }
    return quire_error_set(err, QUIRE_UNSUPP,
                           "%s: libllama cannot load the tokenizer (tokenizer.ggml.*)%s%s", path,
                           reason[0] != '\0' ? ": " : "", reason);
}

struct llama_model *quire_model_llama_load(const char *path, quire_arch arch)
{
    const struct llama_model_kv_override as_qwen3[] = {
        { .tag = LLAMA_KV_OVERRIDE_TYPE_STR, .key = "general.architecture", .val_str = "qwen3" },
        { .key = "" }, /* the end */
    };
    struct llama_model_params params = llama_model_default_params();

    params.vocab_only = true;
    params.kv_overrides = arch == QUIRE_ARCH_QUIRE ? as_qwen3 : NULL;
    return llama_model_load_from_file(path, params);
}

static int tokenizer_load(quire_model *model, const char *path, quire_error *err)
{
    quire_backend_log_clear();
    model->llama = quire_model_llama_load(path, model->desc.arch);
    if (model->llama == NULL) {
        return tokenizer_refused(path, err);
    }
    model->vocab = llama_model_get_vocab(model->llama);
    if (llama_vocab_n_tokens(model->vocab) != (int32_t)model->desc.n_vocab) {
        return quire_error_set(
            err, QUIRE_CORRUPT,
            "%s: tokenizer.ggml.tokens gives %d tokens, token_embd.weight has %u rows", path,
            (int)llama_vocab_n_tokens(model->vocab), (unsigned)model->desc.n_vocab);
    }
    QUIRE_TRY(quire_model_tokenizer_create(model, err));
    return quire_dry_memo_create(&model->dry_memo) < 0
               ? quire_error_set(err, QUIRE_NOMEM, "%s: no memory", path)
               : QUIRE_OK;
}

/* Ask for the split of the layers, with the memory of a model whose weights are all the host's. */
static int split_get(quire_model *model, const quire_gguf *file, const quire_model_opts *opts,
                     quire_error *err)
{
    quire_model_opts hosts = *opts;
    quire_weights_bytes bytes;
    quire_weights *outline;

    hosts.n_device_layers = 0;
    QUIRE_TRY(quire_weights_outline(&outline, &bytes, file, &model->desc, &hosts, 0, NULL, err));
    quire_weights_destroy(outline);
    model->desc.resident_bytes = bytes.host;
    return opts->split(opts->split_ctx, &model->desc, &model->split, err);
}

/* The memory of weights and steps, before they are loaded. */
static int sizes_get(quire_model *model, const quire_gguf *file, const quire_model_opts *opts,
                     quire_error *err)
{
    const quire_model_split *split = opts->split != NULL ? &model->split : NULL;
    quire_model_desc *desc = &model->desc;
    quire_weights *outlines[QUIRE_MODEL_SETS_MAX] = { NULL };
    int rc = QUIRE_OK;

    QUIRE_TRY(split != NULL ? split_get(model, file, opts, err) : QUIRE_OK);
    for (uint32_t i = 0; i < model->n_sets && rc == QUIRE_OK; i++) {
        quire_weights_bytes bytes;

        rc = quire_weights_outline(&outlines[i], &bytes, file, desc, opts, i, split, err);
        desc->device_weight_bytes[i] = bytes.device[0];
        for (uint32_t d = 0; split != NULL && d < split->n; d++) {
            desc->device_weight_bytes[d] = bytes.device[d];
        }
        desc->resident_bytes =
            i == quire_weights_host_set(opts) ? bytes.host : desc->resident_bytes;
    }
    if (rc < 0) {
        quire_weights_destroy_sets(outlines);
        return rc;
    }
    rc = quire_step_sizes_create(&desc->step_sizes, desc, outlines);
    return rc < 0 ? quire_error_set(err, rc, "%s: no memory", quire_gguf_path(file)) : QUIRE_OK;
}

int quire_model_open(quire_model **out, const char *path, const quire_model_opts *opts,
                     quire_error *err)
{
    static const quire_model_opts defaults = { 0 };
    quire_error local = QUIRE_ERROR_INIT;
    quire_gguf *file = NULL;
    quire_model *model = NULL;
    int rc;

    *out = NULL;
    opts = opts != NULL ? opts : &defaults;
    err = err != NULL ? err : &local;
    *err = local;
    if ((rc = quire_backend_init(err)) < 0 || (rc = quire_gguf_open(&file, path, err)) < 0) {
        goto out;
    }
    model = calloc(1, sizeof *model);
    if (model == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "%s: no memory", path);
        goto out;
    }
    QUIRE_CHECK(opts->n_sets <= (opts->split == NULL ? QUIRE_MODEL_SETS_MAX : 1));
    model->n_sets = quire_weights_sets(opts);
    if ((rc = quire_gguf_describe(file, &model->desc, err)) < 0 ||
        (rc = quire_gguf_check_vocab(file, &model->desc, err)) < 0) {
        goto out;
    }
    if ((rc = sizes_get(model, file, opts, err)) < 0 ||
        (opts->admit != NULL && (rc = opts->admit(opts->admit_ctx, &model->desc, err)) < 0)) {
        goto out;
    }
    if ((rc = tokenizer_load(model, path, err)) < 0) {
        goto out;
    }
    if (!opts->describe_only &&
        (rc = quire_weights_load(model->sets, file, &model->desc, opts,
                                 opts->split != NULL ? &model->split : NULL, err)) < 0) {
        goto out;
    }
    model->weights = model->sets[0];
    *out = model;
    model = NULL;
out:
    quire_model_close(model);
    quire_gguf_close(file);
    return rc;
}

void quire_model_close(quire_model *model)
{
    if (model == NULL) {
        return;
    }
    quire_weights_destroy_sets(model->sets);
    quire_step_sizes_destroy(model->desc.step_sizes);
    quire_tokenizer_destroy(model->tokenizer);
    quire_dry_memo_destroy(model->dry_memo);
    llama_model_free(model->llama);
    free(model);
}

const quire_model_desc *quire_model_desc_get(const quire_model *model)
{
    return &model->desc;
}
