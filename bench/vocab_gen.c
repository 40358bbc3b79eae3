/* vocab_gen.c - see vocab_gen.h.
 *
 *   all   <unk> <s> </s> <mask>, then what the kind needs, then pieces, then special tokens
 *   SPM   byte tokens, the blank U+2581 and some characters
 *   BPE   the 256 byte characters of GPT-2
 *   WPM   U+2581 and some characters, pieces with and without U+2581 before them
 *   UGM   the blank U+2581 and some characters
 *
 * A piece is two earlier ones. No two tokens are equal.
 *
 * SPDX-License-Identifier: MIT */
#include "vocab_gen.h"

#include <gguf.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define TEXT_BYTES 48u
#define TRIES      64u
#define BLANK      "\xe2\x96\x81"

/* The values of tokenizer.ggml.token_type. */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_BYTE = 6
};

typedef struct builder {
    const vocab_gen_opts *opts;
    quire_rng rng;
    char (*texts)[TEXT_BYTES];
    const char **pointers;
    int32_t *types;
    float *scores;
    char (*merges)[2 * TEXT_BYTES];
    const char **merge_pointers;
    uint32_t n, n_merges, cap;
    uint32_t first_piece; /* first token that pieces are made of */
} builder;

static bool has_text(const builder *b, const char *text)
{
    for (uint32_t i = 0; i < b->n; i++) {
        if (strcmp(b->texts[i], text) == 0) {
            return true;
        }
    }
    return false;
}

static void token_add(builder *b, const char *text, int32_t type)
{
    if (b->n == b->cap || text[0] == '\0' || has_text(b, text)) {
        return;
    }
    (void)snprintf(b->texts[b->n], TEXT_BYTES, "%s", text);
    b->pointers[b->n] = b->texts[b->n];
    b->types[b->n] = type;
    /* Few values, so that scores are equal now and then. */
    b->scores[b->n] = type == TYPE_NORMAL ? -(float)quire_rng_below(&b->rng, 40) / 4.0f : 0.0f;
    b->n++;
}

static void byte_tokens_add(builder *b)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];

        (void)snprintf(text, sizeof(text), "<0x%02X>", byte);
        token_add(b, text, TYPE_BYTE);
    }
}

/* GPT-2's characters for bytes (Radford et al., encoder.py). */
static void byte_characters_add(builder *b)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool is_printable =
            (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        const unsigned code = is_printable   ? byte
                              : byte <= 0x20 ? 0x100 + byte
                              : byte <= 0xa0 ? 0x121 + byte - 0x7f
                                             : 0x143;
        char text[3] = { (char)code, 0, 0 };

        if (code >= 0x80) {
            text[0] = (char)(0xc0 | (code >> 6));
            text[1] = (char)(0x80 | (code & 0x3f));
        }
        token_add(b, text, TYPE_NORMAL);
    }
}

static void characters_add(builder *b)
{
    static const char *const characters[] = {
        BLANK,          "a",       "b", "c", "s", "<", ">", "|", "1", "2", ".", "'", "\xc3\xa9",
        "\xe4\xb8\xad", "\xcc\x81"
    };

    for (size_t i = 0; i < sizeof(characters) / sizeof(characters[0]); i++) {
        token_add(b, characters[i], TYPE_NORMAL);
    }
}

/* BPE: of a few common bytes, or most pieces would be of bytes that no text has. */
static uint32_t part_pick(builder *b)
{
    static const char common[] = "abcs<>|12.'";
    const uint32_t kind = quire_rng_below(&b->rng, 4);
    char text[3] = { 0 };

    if (b->opts->kind != VOCAB_GEN_BPE || (kind == 0 && b->n > b->first_piece + 256)) {
        return b->first_piece + quire_rng_below(&b->rng, b->n - b->first_piece);
    }
    if (kind == 1) {
        (void)snprintf(text, sizeof(text), "\xc4\xa0"); /* a blank */
    } else {
        text[0] = common[quire_rng_below(&b->rng, sizeof(common) - 1)];
    }
    for (uint32_t i = b->first_piece; i < b->n; i++) {
        if (strcmp(b->texts[i], text) == 0) {
            return i;
        }
    }
    return b->first_piece;
}

static void piece_add(builder *b)
{
    const char *left = b->texts[part_pick(b)];
    const char *right = b->texts[part_pick(b)];
    char text[2 * TEXT_BYTES];

    (void)snprintf(text, sizeof(text), "%s%s", left, right);
    if (strlen(text) >= TEXT_BYTES || has_text(b, text)) {
        return;
    }
    (void)snprintf(b->merges[b->n_merges], sizeof(b->merges[0]), "%s %s", left, right);
    b->merge_pointers[b->n_merges] = b->merges[b->n_merges];
    b->n_merges++;
    token_add(b, text, TYPE_NORMAL);
}

static void special_add(builder *b)
{
    static const char characters[] = "<<>|as  \n";
    static const int32_t types[] = { TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_USER_DEFINED,
                                     TYPE_UNKNOWN };
    const uint32_t n = 1 + quire_rng_below(&b->rng, 4) + quire_rng_below(&b->rng, 3);
    char text[8] = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        text[i] = characters[quire_rng_below(&b->rng, sizeof(characters) - 1)];
    }
    token_add(b, text, types[quire_rng_below(&b->rng, sizeof(types) / sizeof(types[0]))]);
}

static void tokens_add(builder *b)
{
    const vocab_gen_opts *opts = b->opts;
    uint32_t n;

    token_add(b, "<unk>", TYPE_UNKNOWN);
    token_add(b, "<s>", TYPE_CONTROL);
    token_add(b, "</s>", TYPE_CONTROL);
    token_add(b, "<mask>", TYPE_CONTROL);
    token_add(b, "<|endoftext|>", TYPE_CONTROL);
    if (opts->kind == VOCAB_GEN_SPM) {
        byte_tokens_add(b);
    }
    b->first_piece = b->n;
    if (opts->kind == VOCAB_GEN_BPE) {
        byte_characters_add(b);
    } else {
        characters_add(b);
    }
    n = b->n + opts->n_pieces;
    for (uint32_t i = 0; i < TRIES * opts->n_pieces && b->n < n; i++) {
        piece_add(b);
    }
    n = b->n + opts->n_specials;
    for (uint32_t i = 0; i < TRIES * opts->n_specials && b->n < n; i++) {
        special_add(b);
    }
}

static void keys_set(const builder *b, struct gguf_context *gguf)
{
    static const char *const models[] = { "llama", "gpt2", "bert", "t5" };
    const vocab_gen_opts *opts = b->opts;

    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_str(gguf, "general.name", opts->strips_right ? "phi-3 made up" : "made up");
    gguf_set_val_u32(gguf, "llama.context_length", 512);
    gguf_set_val_u32(gguf, "llama.embedding_length", 16);
    gguf_set_val_u32(gguf, "llama.block_count", 1);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", models[opts->kind]);
    if (opts->kind == VOCAB_GEN_BPE) {
        gguf_set_val_str(gguf, "tokenizer.ggml.pre", opts->pre);
        gguf_set_arr_str(gguf, "tokenizer.ggml.merges", b->merge_pointers, b->n_merges);
    } else {
        gguf_set_val_bool(gguf, "tokenizer.ggml.add_space_prefix", !opts->has_no_prefix);
    }
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", b->pointers, b->n);
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, b->types, b->n);
    gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, b->scores, b->n);
    gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_u32(gguf, "tokenizer.ggml.seperator_token_id", 2);
    gguf_set_val_u32(gguf, "tokenizer.ggml.padding_token_id", 3);
    gguf_set_val_u32(gguf, "tokenizer.ggml.mask_token_id", 3);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", opts->seed % 2 == 1);
}

static int file_write(const builder *b, const char *path, quire_error *err)
{
    struct gguf_context *gguf = gguf_init_empty();
    bool is_written;

    if (gguf == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: no memory", path);
    }
    keys_set(b, gguf);
    is_written = gguf_write_to_file(gguf, path, true);
    gguf_free(gguf);
    return is_written ? QUIRE_OK : quire_error_set(err, QUIRE_IO, "%s: cannot be written", path);
}

int vocab_gen_write(const vocab_gen_opts *opts, const char *path, quire_error *err)
{
    builder b = { .opts = opts, .cap = 600 + opts->n_pieces + opts->n_specials };
    int rc = QUIRE_NOMEM;

    b.rng.state = opts->seed;
    b.texts = calloc(b.cap, sizeof(*b.texts));
    b.pointers = calloc(b.cap, sizeof(*b.pointers));
    b.types = calloc(b.cap, sizeof(*b.types));
    b.scores = calloc(b.cap, sizeof(*b.scores));
    b.merges = calloc(b.cap, sizeof(*b.merges));
    b.merge_pointers = calloc(b.cap, sizeof(*b.merge_pointers));
    if (b.texts != NULL && b.pointers != NULL && b.types != NULL && b.scores != NULL &&
        b.merges != NULL && b.merge_pointers != NULL) {
        tokens_add(&b);
        rc = file_write(&b, path, err);
    } else {
        (void)quire_error_set(err, rc, "%s: no memory", path);
    }
    free(b.merge_pointers);
    free(b.merges);
    free(b.scores);
    free(b.types);
    free(b.pointers);
    free(b.texts);
    return rc;
}
