/* model_damage_vocab.c - damages to a vocabulary; see model_damage.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_damage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const char tokens_key[] = "tokenizer.ggml.tokens";
static const char types_key[] = "tokenizer.ggml.token_type";
static const char scores_key[] = "tokenizer.ggml.scores";
static const char merges_key[] = "tokenizer.ggml.merges";

static uint64_t array_length(const gguf_pieces *p, const char *name)
{
    piece_array a = { 0 };
    const piece_key *key = gguf_pieces_key((gguf_pieces *)(uintptr_t)p, name);

    return key != NULL && piece_array_get(key, &a) ? a.n : 0;
}

/* ---- special tokens ---- */

static const char *const ids[] = {
    "bos",     "eos",     "eot",     "eom",     "unknown", "seperator",
    "padding", "mask",    "fim_pre", "fim_suf", "fim_mid", "fim_pad",
    "fim_rep", "fim_sep", "prefix",  "suffix",  "middle",
};

enum {
    ID_DAMAGES = 6
};

static uint32_t ids_count(const gguf_pieces *whole)
{
    (void)whole;
    return (uint32_t)COUNT(ids) * ID_DAMAGES;
}

static bool ids_apply(model_damage *d, uint32_t i)
{
    const uint32_t n = (uint32_t)array_length(&d->pieces, tokens_key);
    const uint32_t values[] = { n, n - 1, 1u << 31, UINT32_MAX };
    const uint32_t how = i % ID_DAMAGES;
    const int32_t minus = -1;
    char *name = piece_alloc(&d->arena, 64);

    (void)snprintf(name, 64, "tokenizer.ggml.%s_token_id", ids[i / ID_DAMAGES]);
    if (how < COUNT(values)) {
        damage_say(d, "%s: %u", name, values[how]);
        damage_key_set_u32(d, name, values[how]);
    } else if (how == 4) {
        damage_say(d, "%s: -1 as i32", name);
        damage_key_set(d, name, GGUF_TYPE_INT32, &minus, sizeof(minus));
    } else {
        damage_say(d, "%s: a string", name);
        damage_key_set_str(d, name, "1");
    }
    return true;
}

/* Texts are to begin or end with a token that there is or is not. */
static uint32_t adds_count(const gguf_pieces *whole)
{
    (void)whole;
    return 12;
}

static bool adds_apply(model_damage *d, uint32_t i)
{
    static const char *const adds[] = { "tokenizer.ggml.add_bos_token",
                                        "tokenizer.ggml.add_eos_token",
                                        "tokenizer.ggml.add_sep_token" };
    static const char *const ids_of[] = { "tokenizer.ggml.bos_token_id",
                                          "tokenizer.ggml.eos_token_id",
                                          "tokenizer.ggml.seperator_token_id" };
    const uint8_t is_on = i / 3 % 2 == 0;
    const uint32_t which = i % 3;

    damage_say(d, "%s: %s, %s token", adds[which], is_on ? "true" : "false", i < 6 ? "its" : "no");
    damage_key_set(d, adds[which], GGUF_TYPE_BOOL, &is_on, 1);
    if (i >= 6) {
        damage_key_set_u32(d, ids_of[which], UINT32_MAX);
    }
    return true;
}

/* ---- fewer tokens ---- */

static const uint32_t sizes[] = { 1,   2,   3,   4,   16,  64,  100, 128, 200, 255, 256, 257,
                                  258, 259, 260, 261, 262, 263, 264, 265, 266, 267, 319, 511 };

static uint32_t shrink_count(const gguf_pieces *whole)
{
    (void)whole;
    return 2 * (uint32_t)COUNT(sizes);
}

/* Everything that has a row or an element for each token becomes shorter. */
static bool shrink_apply(model_damage *d, uint32_t i)
{
    const uint64_t n = array_length(&d->pieces, tokens_key);
    const uint64_t fewer = sizes[i / 2];
    const bool has_ids = i % 2 == 0;

    damage_say(d, "vocabulary and embedding: %u tokens, special ids %s", sizes[i / 2],
               has_ids ? "as before" : "none");
    if (fewer >= n) {
        return false;
    }
    (void)damage_array_resize(d, gguf_pieces_key(&d->pieces, tokens_key), fewer);
    (void)damage_array_resize(d, gguf_pieces_key(&d->pieces, types_key), fewer);
    (void)damage_array_resize(d, gguf_pieces_key(&d->pieces, scores_key), fewer);
    for (uint32_t t = 0; t < d->pieces.n_tensors; t++) {
        piece_tensor *tensor = &d->pieces.tensors[t];

        for (uint32_t k = 0; k < tensor->n_dims; k++) {
            tensor->dims[k] = tensor->dims[k] == n ? fewer : tensor->dims[k];
        }
    }
    for (uint32_t k = 0; k < d->pieces.n_keys; k++) {
        piece_key *key = &d->pieces.keys[k];
        const size_t length = strlen(key->name);
        uint32_t id = UINT32_MAX;

        if (key->type == GGUF_TYPE_UINT32 && length > 11 &&
            strcmp(key->name + length - 11, ".vocab_size") == 0) {
            damage_key_set_u32(d, key->name, (uint32_t)fewer);
        } else if (!has_ids && length > 9 && strcmp(key->name + length - 9, "_token_id") == 0) {
            damage_key_set(d, key->name, GGUF_TYPE_UINT32, &id, sizeof(id));
        }
    }
    return true;
}

/* ---- texts ---- */

enum {
    TEXT_DAMAGES = 7,
    TEXT_PLACES = 12
};

static uint32_t texts_count(const gguf_pieces *whole)
{
    (void)whole;
    return TEXT_DAMAGES * TEXT_PLACES;
}

/* Places are spread over the vocabulary. */
static bool texts_apply(model_damage *d, uint32_t i)
{
    const uint64_t n = array_length(&d->pieces, tokens_key);
    const uint64_t at = i / TEXT_DAMAGES * (n - 1) / (TEXT_PLACES - 1);
    const char *const texts[TEXT_DAMAGES] = {
        "",    "a", damage_letters(d, 5000), damage_letters(d, 4096), "\xff\xfe", "another text",
        "<0x",
    };
    static const char *const words[TEXT_DAMAGES] = { "empty",      "'a'",      "of 5000 bytes",
                                                     "of 4096",    "no UTF-8", "another",
                                                     "half a byte" };

    damage_say(d, "%s: text %u %s", tokens_key, (unsigned)at, words[i % TEXT_DAMAGES]);
    return damage_array_text_set(d, gguf_pieces_key(&d->pieces, tokens_key), at,
                                 texts[i % TEXT_DAMAGES]);
}

/* A text that every vocabulary has to have is gone. */
static const char *const needed[] = { "<0x00>", "<0x0A>",   "<0x20>",   "<0x61>",      "<0xFF>",
                                      "<0xE2>", "a",        "e",        "0",           "~",
                                      "!",      "\xc4\xa0", "\xc4\x8a", "\xe2\x96\x81" };

static uint32_t needed_count(const gguf_pieces *whole)
{
    (void)whole;
    return (uint32_t)COUNT(needed);
}

static bool needed_apply(model_damage *d, uint32_t i)
{
    piece_key *key = gguf_pieces_key(&d->pieces, tokens_key);
    const uint64_t n = array_length(&d->pieces, tokens_key);
    piece_array a;
    const uint8_t *at;

    damage_say(d, "%s: no '%s'", tokens_key, needed[i]);
    (void)piece_array_get(key, &a);
    at = a.first;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t length;

        memcpy(&length, at, sizeof(length));
        if (length == strlen(needed[i]) && memcmp(at + 8, needed[i], length) == 0) {
            return damage_array_text_set(d, key, k, "gone from here");
        }
        at += 8 + length;
    }
    return false;
}

/* ---- types and scores ---- */

static const int32_t types[] = { 0, 1, 2, 3, 4, 5, 6, 7, -1, INT32_MAX };
enum {
    TYPE_PLACES = 5
};

static uint32_t types_count(const gguf_pieces *whole)
{
    (void)whole;
    return (uint32_t)COUNT(types) * (TYPE_PLACES + 1);
}

/* Elements of a copy of a key's array of 4-byte numbers. NULL: there is none. */
static uint8_t *numbers_of(model_damage *d, const char *name, uint64_t *n)
{
    piece_key *key = gguf_pieces_key(&d->pieces, name);
    piece_array a;

    if (key == NULL || !piece_array_get(key, &a) || piece_number_bytes(a.type) != 4) {
        return NULL;
    }
    damage_key_set(d, name, key->type, key->value, key->value_bytes);
    *n = a.n;
    return (uint8_t *)(uintptr_t)key->value + PIECE_ARRAY_HEAD;
}

static bool numbers_fill(model_damage *d, const char *name, uint32_t place, const void *number)
{
    uint64_t n = 0;
    uint8_t *numbers = numbers_of(d, name, &n);

    for (uint64_t k = 0; numbers != NULL && k < n; k++) {
        if (place == TYPE_PLACES || k == place * (n - 1) / (TYPE_PLACES - 1)) {
            memcpy(numbers + 4 * k, number, 4);
        }
    }
    return numbers != NULL;
}

static bool types_apply(model_damage *d, uint32_t i)
{
    const uint32_t place = i / (uint32_t)COUNT(types);

    damage_say(d, "%s: %s %d (place %u)", types_key, place == TYPE_PLACES ? "all" : "one",
               types[i % COUNT(types)], place);
    return numbers_fill(d, types_key, place, &types[i % COUNT(types)]);
}

static const float scores[] = { 0.0f, 1e30f, -1e30f, INFINITY, -INFINITY, NAN };

static uint32_t scores_count(const gguf_pieces *whole)
{
    (void)whole;
    return (uint32_t)COUNT(scores) * (TYPE_PLACES + 1);
}

static bool scores_apply(model_damage *d, uint32_t i)
{
    const uint32_t place = i / (uint32_t)COUNT(scores);

    damage_say(d, "%s: %s %g (place %u)", scores_key, place == TYPE_PLACES ? "all" : "one",
               (double)scores[i % COUNT(scores)], place);
    return numbers_fill(d, scores_key, place, &scores[i % COUNT(scores)]);
}

/* ---- merges, names ---- */

static const char *const merges[] = { "", " ", "a", "a ", " a", "a b c", "none none", "\xff \xfe" };
enum {
    MERGE_PLACES = 3
};

static uint32_t merges_count(const gguf_pieces *whole)
{
    return array_length(whole, merges_key) > 0 ? (uint32_t)COUNT(merges) * MERGE_PLACES : 0;
}

static bool merges_apply(model_damage *d, uint32_t i)
{
    const uint64_t n = array_length(&d->pieces, merges_key);
    const uint64_t at = i / COUNT(merges) * (n - 1) / (MERGE_PLACES - 1);

    damage_say(d, "%s: merge %u '%s'", merges_key, (unsigned)at, merges[i % COUNT(merges)]);
    return damage_array_text_set(d, gguf_pieces_key(&d->pieces, merges_key), at,
                                 merges[i % COUNT(merges)]);
}

typedef struct text_key {
    const char *key;
    const char *text;
} text_key;

static const text_key text_keys[] = {
    { "tokenizer.ggml.model", "llama" },    { "tokenizer.ggml.model", "gpt2" },
    { "tokenizer.ggml.model", "gemma4" },   { "tokenizer.ggml.model", "bert" },
    { "tokenizer.ggml.model", "t5" },       { "tokenizer.ggml.model", "rwkv" },
    { "tokenizer.ggml.model", "plamo2" },   { "tokenizer.ggml.model", "none" },
    { "tokenizer.ggml.model", "no_vocab" }, { "tokenizer.ggml.pre", "" },
    { "tokenizer.ggml.pre", "nonesuch" },   { "tokenizer.ggml.pre", "default" },
    { "tokenizer.ggml.pre", "llama-bpe" },  { "tokenizer.ggml.pre", "qwen2" },
    { "tokenizer.ggml.pre", "whitespace" }, { "tokenizer.ggml.pre", "deepseek-llm" },
    { "tokenizer.ggml.pre", "gemma4" },     { "tokenizer.chat_template", "{% for" },
    { "tokenizer.chat_template", "" },      { "general.architecture", "llama" },
    { "general.architecture", "qwen2" },    { "general.architecture", "gemma2" },
    { "general.architecture", "quire" },    { "general.architecture", "bert" },
    { "general.architecture", "" },         { "general.architecture", "clip" },
    { "general.type", "adapter" },          { "general.type", "imatrix" },
};

typedef struct number_key {
    const char *key;
    uint32_t type;
    uint64_t number;
} number_key;

static const number_key number_keys[] = {
    { "general.file_type", GGUF_TYPE_UINT32, 9999 },
    { "general.file_type", GGUF_TYPE_INT32, 0 },
    { "general.file_type", GGUF_TYPE_UINT16, 0 },
    { "general.quantization_version", GGUF_TYPE_UINT32, 99 },
    { "general.quantization_version", GGUF_TYPE_UINT8, 2 },
    { "split.count", GGUF_TYPE_UINT16, 0 },
    { "split.count", GGUF_TYPE_UINT16, 1 },
    { "split.count", GGUF_TYPE_UINT16, 2 },
    { "split.count", GGUF_TYPE_UINT16, 9999 },
    { "split.count", GGUF_TYPE_UINT32, 0 },
    { "split.count", GGUF_TYPE_UINT32, 1 },
    { "split.count", GGUF_TYPE_UINT32, 70000 },
    { "split.count", GGUF_TYPE_FLOAT32, 0 },
    { "split.no", GGUF_TYPE_UINT16, 1 },
    { "split.no", GGUF_TYPE_UINT32, 1 },
    { "split.tensors.count", GGUF_TYPE_INT32, 1 },
    { "tokenizer.ggml.token_type_count", GGUF_TYPE_UINT32, UINT32_MAX },
    { "tokenizer.ggml.token_type_count", GGUF_TYPE_UINT8, 2 },
    { "tokenizer.ggml.add_space_prefix", GGUF_TYPE_UINT8, 1 },
    { "tokenizer.ggml.remove_extra_whitespaces", GGUF_TYPE_UINT8, 1 },
    { "tokenizer.ggml.precompiled_charsmap", GGUF_TYPE_UINT32, 1 },
    { "tokenizer.ggml.suppress_tokens", GGUF_TYPE_UINT32, 1 },
    { "tokenizer.ggml.normalizer.lowercase", GGUF_TYPE_UINT32, 1 },
    { "tokenizer.chat_template", GGUF_TYPE_UINT32, 1 },
    { "tokenizer.chat_templates", GGUF_TYPE_UINT32, 1 },
    { "tokenizer.rwkv.world", GGUF_TYPE_UINT32, 1 },
    { "tokenizer.huggingface.json", GGUF_TYPE_UINT32, 1 },
    { "adapter.type", GGUF_TYPE_UINT32, 1 },
};

static uint32_t numbers_count(const gguf_pieces *whole)
{
    (void)whole;
    return (uint32_t)COUNT(number_keys);
}

static bool numbers_apply(model_damage *d, uint32_t i)
{
    const number_key *n = &number_keys[i];

    damage_say(d, "%s: %u of type %s", n->key, (unsigned)n->number,
               gguf_type_name((enum gguf_type)n->type));
    damage_key_set(d, n->key, n->type, &n->number, piece_number_bytes(n->type));
    return true;
}

static uint32_t names_count(const gguf_pieces *whole)
{
    (void)whole;
    return (uint32_t)COUNT(text_keys);
}

static bool names_apply(model_damage *d, uint32_t i)
{
    damage_say(d, "%s: '%s'", text_keys[i].key, text_keys[i].text);
    damage_key_set_str(d, text_keys[i].key, text_keys[i].text);
    return true;
}

const damage_group damage_groups_vocab[] = {
    { ids_count, ids_apply },       { adds_count, adds_apply },
    { shrink_count, shrink_apply }, { texts_count, texts_apply },
    { needed_count, needed_apply }, { types_count, types_apply },
    { scores_count, scores_apply }, { merges_count, merges_apply },
    { names_count, names_apply },   { numbers_count, numbers_apply },
};
const uint32_t n_damage_groups_vocab = (uint32_t)COUNT(damage_groups_vocab);
