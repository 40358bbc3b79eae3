/* gguf_gen_vocab.c - vocabularies that are small, valid and made up.
 *
 *   SPM   <unk> <s> </s> <0x00>..<0xFF>, then pieces from the sequence below
 *   BPE   <|endoftext|> <|im_start|> <|im_end|>, the 256 byte characters of GPT-2, tokens for
 *         filling in where they are asked for, then pieces
 *
 * Pieces: one space and each letter (SPM only: BPE has them as bytes), space + letter, letter
 * pairs, then fillers "w0", "w1", ... that no text reaches. So a text of n letters becomes n/2 to n
 * tokens.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LETTERS    26u
#define TEXT_BYTES 16u

/* The values of tokenizer.ggml.token_type. */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_BYTE = 6
};

typedef struct vocab {
    char (*text)[TEXT_BYTES];
    const char **pointers;
    float *scores;
    int32_t *types;
    char (*merges)[TEXT_BYTES];
    const char **merge_pointers;
    uint32_t n_merges;
    uint32_t n;
    uint32_t capacity;
} vocab;

static bool vocab_alloc(vocab *v, uint32_t capacity)
{
    memset(v, 0, sizeof(*v));
    v->capacity = capacity;
    v->text = calloc(capacity, sizeof(*v->text));
    v->pointers = calloc(capacity, sizeof(*v->pointers));
    v->scores = calloc(capacity, sizeof(*v->scores));
    v->types = calloc(capacity, sizeof(*v->types));
    v->merges = calloc(capacity, sizeof(*v->merges));
    v->merge_pointers = calloc(capacity, sizeof(*v->merge_pointers));
    return v->text != NULL && v->pointers != NULL && v->scores != NULL && v->types != NULL &&
           v->merges != NULL && v->merge_pointers != NULL;
}

static void vocab_free(vocab *v)
{
    free(v->merge_pointers);
    free(v->merges);
    free(v->types);
    free(v->scores);
    free(v->pointers);
    free(v->text);
}

static void vocab_push(vocab *v, const char *text, int32_t type)
{
    if (v->n == v->capacity) {
        return;
    }
    (void)snprintf(v->text[v->n], TEXT_BYTES, "%s", text);
    v->pointers[v->n] = v->text[v->n];
    v->types[v->n] = type;
    /* SPM merges the pair with the highest score first; earlier pieces win. */
    v->scores[v->n] = type == TYPE_NORMAL ? -(float)v->n : 0.0f;
    v->n++;
}

static void merge_push(vocab *v, const char *left, const char *right)
{
    char *text = v->merges[v->n_merges];

    (void)snprintf(text, TEXT_BYTES, "%s %s", left, right);
    v->merge_pointers[v->n_merges++] = text;
}

/* A piece made of two known ones. */
static void pair_push(vocab *v, const char *left, const char *right)
{
    char text[TEXT_BYTES];

    if (v->n < v->capacity) {
        (void)snprintf(text, sizeof(text), "%s%s", left, right);
        merge_push(v, left, right);
        vocab_push(v, text, TYPE_NORMAL);
    }
}

static void pieces_push(vocab *v, const char *space)
{
    char left[2] = { 0 };
    char right[2] = { 0 };

    for (uint32_t i = 0; i < LETTERS; i++) {
        right[0] = (char)('a' + i);
        pair_push(v, space, right);
    }
    for (uint32_t i = 0; i < LETTERS * LETTERS; i++) {
        left[0] = (char)('a' + i / LETTERS);
        right[0] = (char)('a' + i % LETTERS);
        pair_push(v, left, right);
    }
    for (uint32_t i = 0; v->n < v->capacity; i++) {
        char text[TEXT_BYTES];

        (void)snprintf(text, sizeof(text), "w%u", i);
        vocab_push(v, text, TYPE_NORMAL);
    }
}

static void spm_fill(vocab *v)
{
    static const char space[] = "\xe2\x96\x81"; /* U+2581 */

    vocab_push(v, "<unk>", TYPE_UNKNOWN);
    vocab_push(v, "<s>", TYPE_CONTROL);
    vocab_push(v, "</s>", TYPE_CONTROL);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[TEXT_BYTES];

        (void)snprintf(text, sizeof(text), "<0x%02X>", byte);
        vocab_push(v, text, TYPE_BYTE);
    }
    vocab_push(v, space, TYPE_NORMAL);
    for (uint32_t i = 0; i < LETTERS; i++) {
        char text[2] = { (char)('a' + i), 0 };

        vocab_push(v, text, TYPE_NORMAL);
    }
    pieces_push(v, space);
}

/* GPT-2's map from bytes to printable characters: printable Latin-1 stays, the others become
 * U+0100 upwards in order (Radford et al., encoder.py). */
static void bpe_byte_text(unsigned byte, char *text)
{
    unsigned code = byte;

    if (!((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae)) {
        code = 0x100 + (byte <= 0x20 ? byte : byte <= 0xa0 ? 0x21 + byte - 0x7f : 0x43);
    }
    if (code < 0x80) {
        text[0] = (char)code;
        text[1] = '\0';
    } else {
        text[0] = (char)(0xc0 | (code >> 6));
        text[1] = (char)(0x80 | (code & 0x3f));
        text[2] = '\0';
    }
}

static const char *const fim_texts[] = { "<|fim_prefix|>", "<|fim_suffix|>", "<|fill|>",
                                         "<|repo_name|>", "<|file_sep|>" };

static void bpe_fill(vocab *v, bool has_fim)
{
    char text[TEXT_BYTES];

    vocab_push(v, "<|endoftext|>", TYPE_CONTROL);
    vocab_push(v, "<|im_start|>", TYPE_CONTROL);
    vocab_push(v, "<|im_end|>", TYPE_CONTROL);
    for (unsigned byte = 0; byte < 256; byte++) {
        bpe_byte_text(byte, text);
        vocab_push(v, text, TYPE_NORMAL);
    }
    for (unsigned i = 0; has_fim && i < sizeof fim_texts / sizeof fim_texts[0]; i++) {
        vocab_push(v, fim_texts[i], TYPE_CONTROL);
    }
    bpe_byte_text(' ', text);
    pieces_push(v, text);
}

/* The number of a token; 0 = none. */
static uint32_t find(const vocab *v, const char *text)
{
    uint32_t i = v->n;

    while (i > 0 && strcmp(v->pointers[--i], text) != 0) {
    }
    return i;
}

int gguf_gen_vocab_add(struct gguf_context *gguf, const gguf_gen_opts *opts)
{
    const bool is_spm = opts->vocab == GGUF_GEN_VOCAB_SPM;
    int rc = QUIRE_NOMEM;
    vocab v;

    if (!vocab_alloc(&v, opts->n_vocab)) {
        goto out;
    }
    gguf_set_val_str(gguf, "tokenizer.ggml.model", is_spm ? "llama" : "gpt2");
    if (is_spm) {
        spm_fill(&v);
        gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, v.scores, v.n);
    } else {
        bpe_fill(&v, opts->has_fim);
        gguf_set_val_str(gguf, "tokenizer.ggml.pre", "qwen2");
        gguf_set_arr_str(gguf, "tokenizer.ggml.merges", v.merge_pointers, v.n_merges);
        if (opts->has_fim) {
            gguf_set_val_u32(gguf, "tokenizer.ggml.fim_mid_token_id", find(&v, "<|fill|>"));
        }
    }
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", v.pointers, v.n);
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, v.types, v.n);
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", is_spm ? 1 : 0);
    gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", is_spm ? 2 : 0);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", is_spm);
    rc = QUIRE_OK;
out:
    vocab_free(&v);
    return rc;
}
