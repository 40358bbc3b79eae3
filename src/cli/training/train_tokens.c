/* train_tokens.c - see train_tokens.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_tokens.h"

#include "base/check.h"
#include "cli/commands/talk.h"
#include "cli/training/train_export.h"
#include "model/text.h"
#include "train/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096u
#define BPE        "bpe:"

/* ---- a file's tokenizer ---- */

/* Text is data: a control token that is written in it is text too. */
static int encode(void *ctx, const char *text, size_t n_bytes, int32_t **tokens, size_t *n_tokens,
                  quire_error *err)
{
    static const quire_tokenize_opts opts = { .add_special = false };

    return quire_model_tokenize_all(ctx, text, n_bytes, &opts, tokens, n_tokens, err);
}

static int open_file(quire_train_tokens *t, const char *path, quire_error *err)
{
    static const quire_model_opts opts = { .describe_only = true };

    QUIRE_TRY(quire_model_open(&t->model, path, &opts, err));
    QUIRE_TRY(quire_gguf_vocab_read(&t->vocab, path, err));
    t->by = (quire_train_tokenizer){
        .ctx = t->model,
        .n_vocab = quire_model_desc_get(t->model)->n_vocab,
        .begin = quire_model_adds_bos(t->model) ? quire_model_bos(t->model) : -1,
        .end = quire_model_eos(t->model),
        .identity = quire_gguf_vocab_hash(t->vocab),
        .encode = encode,
    };
    return QUIRE_OK;
}

/* ---- a learned vocabulary ---- */

/* A document's bytes, which are its tokens between begin and end. */
static int count_document(quire_bpe_words *words, const quire_doc *doc, char **text,
                          quire_error *err)
{
    char *bytes = realloc(*text, doc->n);

    if (bytes == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    *text = bytes;
    for (size_t i = 1; i + 1 < doc->n; i++) {
        bytes[i - 1] = (char)(doc->tokens[i] - QUIRE_BYTE_FIRST);
    }
    return quire_bpe_words_add(words, bytes, doc->n - 2, err);
}

/* One pass over the text, or QUIRE_TRAIN_BPE_TASKS tasks. */
static int count_documents(quire_bpe_words *words, quire_text_docs *docs, bool has_text,
                           quire_error *err)
{
    const quire_doc_reader *reader = quire_text_docs_reader(docs);
    char *text = NULL;
    int rc = QUIRE_OK;

    for (uint64_t i = 0; rc == QUIRE_OK && (has_text || i < QUIRE_TRAIN_BPE_TASKS); i++) {
        uint64_t place[QUIRE_DOC_PLACE];
        quire_doc doc;

        if (quire_interrupt_seen()) {
            rc = quire_error_set(err, QUIRE_CANCELED, "stopped while the vocabulary was learned");
            break;
        }
        rc = reader->next(reader->ctx, &doc, err);
        reader->tell(reader->ctx, place);
        if (rc < 0 || place[2] > 0) {
            break;
        }
        rc = count_document(words, &doc, &text, err);
    }
    free(text);
    return rc;
}

static int learn(uint32_t n_tokens, const quire_text_docs_options *options, quire_bpe_table *table,
                 quire_error *err)
{
    quire_text_docs_options by_bytes = *options;
    quire_bpe_words *words = NULL;
    quire_text_docs *docs = NULL;
    int rc;

    by_bytes.tokenizer = NULL;
    by_bytes.task_share = options->path != NULL ? 0 : 1; /* what is random teaches no words */
    QUIRE_TRY(quire_text_docs_open(&docs, &by_bytes, err));
    rc = quire_bpe_words_create(&words, QUIRE_BPE_WORDS_MAX, err);
    if (rc == QUIRE_OK) {
        rc = count_documents(words, docs, options->path != NULL, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_bpe_learn(words, n_tokens - QUIRE_GGUF_BPE_SPECIALS, table, err);
    }
    quire_bpe_words_destroy(words);
    quire_text_docs_close(docs);
    return rc;
}

/* The smallest model that has the vocabulary, all zeros. */
static int write_zeros(const quire_gguf_vocab *vocab, uint32_t n_vocab, const char *path,
                       quire_error *err)
{
    quire_train_shape shape = { .n_vocab = n_vocab,
                                .n_layer = 1,
                                .d_model = QUIRE_GGUF_Q8_BLOCK,
                                .n_head = 1,
                                .n_kv_head = 1,
                                .d_head = QUIRE_GGUF_Q8_BLOCK,
                                .d_ff = QUIRE_GGUF_Q8_BLOCK,
                                .rope_base = 10000,
                                .norm_epsilon = 1e-5,
                                .has_qk_norm = true,
                                .is_tied = true };
    quire_train_layout layout;
    float *zeros;
    int rc;

    QUIRE_TRY(quire_train_scheme_set(&shape, "mha", err));
    if (quire_train_layout_init(&layout, &shape) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    zeros = calloc(layout.n_parameters, sizeof(*zeros));
    rc = zeros == NULL
             ? quire_error_set(err, QUIRE_NOMEM, "out of memory")
             : quire_train_export_write(&(quire_train_export){ .shape = &shape,
                                                               .layout = &layout,
                                                               .parameters = zeros,
                                                               .vocab = vocab,
                                                               .n_ctx = QUIRE_GGUF_Q8_BLOCK,
                                                               .type = QUIRE_GGUF_OUT_Q8_0 },
                                        path, err);
    free(zeros);
    quire_train_layout_fini(&layout);
    return rc;
}

static int write_learned(uint32_t n_vocab, const quire_text_docs_options *docs, const char *path,
                         quire_error *err)
{
    quire_gguf_vocab *vocab = NULL;
    quire_bpe_table table;
    int rc;

    quire_say("learning a vocabulary of %u tokens", n_vocab);
    QUIRE_TRY(learn(n_vocab, docs, &table, err));
    rc = quire_gguf_vocab_bpe(&vocab,
                              &(quire_gguf_bpe){ table.n_tokens, table.n_merges, table.bytes,
                                                 table.ends, (const uint32_t(*)[2])table.merges },
                              err);
    if (rc == QUIRE_OK) {
        rc = write_zeros(vocab, n_vocab, path, err);
    }
    quire_gguf_vocab_free(vocab);
    quire_bpe_table_fini(&table);
    return rc;
}

static int open_learned(quire_train_tokens *t, const char *name, const char *checkpoint,
                        const quire_text_docs_options *docs, quire_error *err)
{
    char path[PATH_BYTES], *end;
    unsigned long n = strtoul(name, &end, 10);

    if (*name < '0' || *name > '9' || *end != '\0' || n < QUIRE_TRAIN_BPE_MIN ||
        n > QUIRE_BPE_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--tokenizer bpe:%.40s: %u to %u tokens are possible", name,
                               QUIRE_TRAIN_BPE_MIN, QUIRE_BPE_TOKENS_MAX);
    }
    if ((size_t)snprintf(path, sizeof(path), "%s.tokenizer.gguf", checkpoint) >= sizeof(path)) {
        return quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", checkpoint);
    }
    if (access(path, F_OK) != 0) {
        QUIRE_TRY(write_learned((uint32_t)n, docs, path, err));
    }
    QUIRE_TRY(open_file(t, path, err));
    if (t->by.n_vocab != n) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s has %u tokens, not %lu: give bpe:%u, or remove the file", path,
                               t->by.n_vocab, n, t->by.n_vocab);
    }
    return QUIRE_OK;
}

int quire_train_tokens_open(quire_train_tokens *t, const char *name, const char *checkpoint,
                            const quire_text_docs_options *docs, quire_error *err)
{
    memset(t, 0, sizeof(*t));
    if (strcmp(name, "bytes") == 0) {
        t->by = *quire_byte_tokenizer();
        return QUIRE_OK;
    }
    return strncmp(name, BPE, strlen(BPE)) == 0
               ? open_learned(t, name + strlen(BPE), checkpoint, docs, err)
               : open_file(t, name, err);
}

void quire_train_tokens_close(quire_train_tokens *t)
{
    quire_gguf_vocab_free(t->vocab);
    quire_model_close(t->model);
    memset(t, 0, sizeof(*t));
}
