/* gguf_exercise.c - see gguf_exercise.h.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_exercise.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <llama.h>

#include "base/check.h"
#include "model/backend.h"
#include "model/gguf_file.h"
#include "model/model_internal.h"
#include "model/runtime.h"

#define TOKENS_MAX 4096

/* The bytes as a file in memory: libllama opens by path. */
static int memory_file(const uint8_t *data, size_t size_bytes)
{
    int fd = memfd_create("gguf", MFD_CLOEXEC);

    QUIRE_CHECK(fd >= 0);
    while (size_bytes > 0) {
        ssize_t n = write(fd, data, size_bytes);

        QUIRE_CHECK(n > 0);
        data += n;
        size_bytes -= (size_t)n;
    }
    return fd;
}

/* Every byte value once, then text that merges, then text that looks like special tokens. */
static size_t sample_text(char *text)
{
    static const char tail[] = " the cat and the dog  \n\t1234 <s></s><|im_end|> \xe4\xb8\xad";

    for (int i = 0; i < 256; i++) {
        text[i] = (char)i;
    }
    memcpy(text + 256, tail, sizeof(tail) - 1);
    return 256 + sizeof(tail) - 1;
}

/* Ours are the same tokens. */
static void compare_tokens(const quire_model *model, const char *text, size_t n, int flags,
                           const int32_t *expected, int32_t n_expected)
{
    const quire_tokenize_opts opts = { .add_special = (flags & 1) != 0,
                                       .parse_special = (flags & 2) != 0 };
    int32_t *tokens;
    size_t n_tokens;

    QUIRE_CHECK(quire_model_tokenize_all(model, text, n, &opts, &tokens, &n_tokens, NULL) ==
                QUIRE_OK);
    QUIRE_CHECK((size_t)n_expected == n_tokens);
    QUIRE_CHECK(memcmp(tokens, expected, n_tokens * sizeof(*tokens)) == 0);
    free(tokens);
}

static void use_vocab(struct llama_model *model)
{
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    quire_model ours = { .llama = model, .vocab = vocab };
    llama_token *tokens = malloc(TOKENS_MAX * sizeof(*tokens));
    char text[512];
    char piece[64];
    size_t n = sample_text(text);

    QUIRE_CHECK(tokens != NULL);
    QUIRE_CHECK(quire_model_tokenizer_create(&ours, NULL) == QUIRE_OK);
    for (int flags = 0; flags < 4; flags++) {
        int32_t n_tokens = llama_tokenize(vocab, text, (int32_t)n, tokens, TOKENS_MAX,
                                          (flags & 1) != 0, (flags & 2) != 0);

        for (int32_t i = 0; i < n_tokens && i < TOKENS_MAX; i++) {
            QUIRE_CHECK(tokens[i] >= 0 && tokens[i] < llama_vocab_n_tokens(vocab));
        }
        compare_tokens(&ours, text, n, flags, tokens, n_tokens);
    }
    quire_tokenizer_destroy(ours.tokenizer);
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
        (void)llama_token_to_piece(vocab, token, piece, sizeof(piece), 0, (token & 1) != 0);
        (void)llama_vocab_is_eog(vocab, token);
    }
    QUIRE_CHECK(llama_vocab_bos(vocab) < llama_vocab_n_tokens(vocab));
    QUIRE_CHECK(llama_vocab_eos(vocab) < llama_vocab_n_tokens(vocab));
    free(tokens);
}

static void use_template(const struct llama_model *model)
{
    const struct llama_chat_message messages[] = { { "system", "Be brief." }, { "user", "Hi" } };
    const char *text = llama_model_chat_template(model, NULL);
    char rendered[512];

    if (text != NULL) {
        (void)llama_chat_apply_template(text, messages, 2, true, rendered, sizeof(rendered));
    }
}

/* One step of the model itself, with any numbers: shapes that passed the checks must be usable. */
static void use_weights(const char *path)
{
    static const int32_t tokens[] = { 0, 1, 2, 1 };
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime *runtime = NULL;
    quire_model *model = NULL;
    quire_seq_id seq = QUIRE_SEQ_NULL;
    const float *logits = NULL;

    opts.n_ctx = 64;
    opts.n_batch = 8;
    opts.n_threads = 1;
    opts.n_seqs_max = 1;
    if (quire_model_open(&model, path, NULL, &err) == QUIRE_OK &&
        quire_runtime_create(&runtime, model, &opts, &err) == QUIRE_OK &&
        quire_seq_open(quire_runtime_cache(runtime), QUIRE_REGION_DYNAMIC, &seq) == QUIRE_OK) {
        const quire_slice slice = {
            .seq = seq, .tokens = tokens, .n_tokens = 4, .logits = QUIRE_LOGITS_LAST
        };

        QUIRE_CHECK(quire_runtime_step(runtime, &slice, 1, &logits) == QUIRE_OK && logits != NULL);
    } else {
        QUIRE_CHECK(err.status < 0 && err.message[0] != '\0');
    }
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

static gguf_stage load_with_llama(const char *path, quire_arch arch)
{
    struct llama_model *model = quire_model_llama_load(path, arch);

    if (model == NULL) {
        return GGUF_STAGE_LLAMA;
    }
    use_vocab(model);
    use_template(model);
    llama_model_free(model);
    use_weights(path);
    return GGUF_STAGE_DONE;
}

static gguf_stage checks_run(const char *path, quire_arch *arch, quire_error *err)
{
    quire_model_desc *desc = calloc(1, sizeof(*desc));
    quire_gguf *file = NULL;
    gguf_stage stage = GGUF_STAGE_LLAMA;

    QUIRE_CHECK(desc != NULL);
    if (quire_gguf_open(&file, path, err) != QUIRE_OK) {
        stage = GGUF_STAGE_OPEN;
    } else if (quire_gguf_describe(file, desc, err) != QUIRE_OK) {
        stage = GGUF_STAGE_DESCRIBE;
    } else if (quire_gguf_check_vocab(file, desc, err) != QUIRE_OK) {
        stage = GGUF_STAGE_VOCAB;
    }
    *arch = desc->arch;
    quire_gguf_close(file);
    free(desc);
    return stage;
}

gguf_stage gguf_exercise(const uint8_t *data, size_t size_bytes)
{
    quire_error err = QUIRE_ERROR_INIT;
    int fd = memory_file(data, size_bytes);
    gguf_stage stage;
    quire_arch arch;
    char path[64];

    QUIRE_CHECK(quire_backend_init(&err) == QUIRE_OK);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    stage = checks_run(path, &arch, &err);
    if (stage == GGUF_STAGE_LLAMA) {
        stage = load_with_llama(path, arch);
    } else {
        QUIRE_CHECK(err.status < 0 && strncmp(err.message, path, strlen(path)) == 0 &&
                    strchr(err.message, '\n') == NULL);
    }
    (void)close(fd);
    return stage;
}
