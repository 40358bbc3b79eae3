/* vocab_check.c - checks every property of a vocabulary that libllama's tokenizer relies on.
 *
 * libllama's vocab-only load throws on some damage (its C interface catches the exception and
 * returns NULL) and asserts on other damage. Further damage shows only when a text is tokenized,
 * where nothing catches an exception. The checks follow llama-vocab.cpp at ggml 0.25.1:
 *
 *   V1  the types of all keys it reads, and array lengths of at least the number of tokens
 *   V2  token texts are unique (it asserts), where an empty one counts as "[EMPTY_index]"
 *   V3  special ids exist, also the defaults, when a text is to begin or end with them (asserts)
 *   V4  an SPM vocabulary has a token for each byte (tokenizing throws)
 *   V5  byte tokens are long enough for the digits it cuts out (throws)
 *   V6  texts short enough that rendering them stays small: unknown characters of a BPE token are
 *       rendered as the whole token each, so the space taken grows with the square of the length
 *   V7  no pre-tokenizer that leaves spaces in words (looking up merges asserts)
 *   V8  scores are numbers: NaN has no order, and the merge queue is ordered by score
 *   V9  a byte-level BPE vocabulary has a token for each printable ASCII character: text without is
 *       dropped without a word, to the last character
 *  V10  general.file_type, which libllama reads with the vocabulary, is u32 (it throws)
 *
 * Texts are compared as C strings up to the first zero byte, because libllama reads them so.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "model/gguf_keys.h"
#include "model/gguf_scan.h"
#include "model/tokenizer.h"

#define TOKEN_BYTES_MAX   4096u
#define SQUARES_BYTES_MAX (1u << 30)
#define TYPE_BYTE         6 /* in tokenizer.ggml.token_type */
#define ID_NONE           UINT32_MAX

/* A token's text with its first 8 bytes as a big-endian number. Most comparisons of a sort end with
 * this number, without a look at strings that are scattered over the heap. */
typedef struct token_text {
    uint64_t head;
    const char *text;
} token_text;

typedef struct vocab {
    const quire_gguf *file;
    const struct gguf_context *gguf;
    quire_error *err;
    uint32_t n;
    bool is_spm;
    const char *pre;    /* tokenizer.ggml.pre */
    int64_t tokens;     /* key index */
    token_text *sorted; /* texts that are not empty, in strcmp order */
    uint32_t n_sorted;
} vocab;

/* The array key name of one of two element types; *index is -1 when it is absent. */
static int array_find(const vocab *v, const char *name, enum gguf_type type, enum gguf_type other,
                      int64_t *index)
{
    enum gguf_type found = GGUF_TYPE_COUNT;

    *index = gguf_find_key(v->gguf, name);
    if (*index < 0) {
        return QUIRE_OK;
    }
    if (gguf_get_kv_type(v->gguf, *index) == GGUF_TYPE_ARRAY) {
        found = gguf_get_arr_type(v->gguf, *index);
    }
    if (found != type && found != other) {
        return quire_error_set(v->err, QUIRE_CORRUPT,
                               "%s: %s is not an array of type %s (damaged file?)",
                               quire_gguf_path(v->file), name, gguf_type_name(type));
    }
    return QUIRE_OK;
}

static int array_size_check(const vocab *v, const char *name, int64_t index)
{
    if (gguf_get_arr_n(v->gguf, index) < v->n) {
        return quire_error_set(
            v->err, QUIRE_CORRUPT,
            "%s: %s has %zu elements; expected %" PRIu32 ", one per token (damaged file?)",
            quire_gguf_path(v->file), name, gguf_get_arr_n(v->gguf, index), v->n);
    }
    return QUIRE_OK;
}

static int model_check(vocab *v)
{
    const char *model = NULL;
    const char *pre = "";
    char text[40];

    QUIRE_TRY(quire_gguf_get_str(v->file, "tokenizer.ggml.model", true, &model, v->err));
    QUIRE_TRY(quire_gguf_get_str(v->file, "tokenizer.ggml.pre", false, &pre, v->err));
    v->is_spm = strcmp(model, "llama") == 0;
    /* Gemma 4's is BPE with a pre-tokenizer of its own; the file's name for it does not count. */
    v->pre = strcmp(model, "gemma4") == 0 ? model : pre;
    if (!v->is_spm && v->pre != model && strcmp(model, "gpt2") != 0) {
        return quire_error_set(
            v->err, QUIRE_UNSUPP,
            "%s: tokenizer.ggml.model '%s' is not supported (supported: llama, gpt2, "
            "gemma4)",
            quire_gguf_path(v->file),
            quire_gguf_printable(text, sizeof(text), model, strlen(model)));
    }
    if (!v->is_spm && strcmp(v->pre, "whitespace") == 0) {
        return quire_error_set(v->err, QUIRE_UNSUPP,
                               "%s: tokenizer.ggml.pre '%s' is not supported (V7 of vocab_check.c)",
                               quire_gguf_path(v->file), pre);
    }
    return QUIRE_OK;
}

static token_text token_text_of(const char *text)
{
    token_text result = { 0, text };

    for (int shift = 56; shift >= 0 && *text != '\0'; shift -= 8) {
        result.head |= (uint64_t)(unsigned char)*text++ << shift;
    }
    return result;
}

static int compare_texts(const void *a, const void *b)
{
    const token_text *left = a;
    const token_text *right = b;

    if (left->head != right->head) {
        return left->head < right->head ? -1 : 1;
    }
    return strcmp(left->text, right->text);
}

static bool has_text(const vocab *v, const char *text)
{
    token_text wanted = token_text_of(text);

    return bsearch(&wanted, v->sorted, v->n_sorted, sizeof(*v->sorted), compare_texts) != NULL;
}

static int duplicate_error(const vocab *v, const char *raw)
{
    char text[72];

    return quire_error_set(
        v->err, QUIRE_CORRUPT, "%s: tokenizer.ggml.tokens holds '%s' twice (damaged file?)",
        quire_gguf_path(v->file), quire_gguf_printable(text, sizeof(text), raw, strlen(raw)));
}

/* Collect the texts and check their lengths. */
static int texts_collect(vocab *v)
{
    uint64_t squares = 0;

    v->sorted = malloc(v->n * sizeof(*v->sorted));
    if (v->sorted == NULL) {
        return quire_error_set(v->err, QUIRE_NOMEM, "%s: out of memory", quire_gguf_path(v->file));
    }
    for (uint32_t i = 0; i < v->n; i++) {
        const char *text = gguf_get_arr_str(v->gguf, v->tokens, i);
        size_t n = strlen(text);

        if (n > TOKEN_BYTES_MAX) {
            return quire_error_set(v->err, QUIRE_CORRUPT,
                                   "%s: tokenizer.ggml.tokens[%" PRIu32
                                   "] has %zu bytes; expected at most %u (damaged file?)",
                                   quire_gguf_path(v->file), i, n, TOKEN_BYTES_MAX);
        }
        squares += (uint64_t)n * n;
        if (n > 0) {
            v->sorted[v->n_sorted++] = token_text_of(text);
        }
    }
    if (squares > SQUARES_BYTES_MAX) {
        return quire_error_set(v->err, QUIRE_CORRUPT,
                               "%s: tokenizer.ggml.tokens has too many long tokens: their squared "
                               "lengths add up to %" PRIu64 "; expected at most %u (damaged file?)",
                               quire_gguf_path(v->file), squares, SQUARES_BYTES_MAX);
    }
    return QUIRE_OK;
}

/* Sort the texts and compare neighbours. */
static int texts_check(vocab *v)
{
    QUIRE_TRY(texts_collect(v));
    qsort(v->sorted, v->n_sorted, sizeof(*v->sorted), compare_texts);
    for (uint32_t i = 1; i < v->n_sorted; i++) {
        if (compare_texts(&v->sorted[i - 1], &v->sorted[i]) == 0) {
            return duplicate_error(v, v->sorted[i].text);
        }
    }
    for (uint32_t i = 0; i < v->n && v->n_sorted < v->n; i++) {
        char text[32];

        (void)snprintf(text, sizeof(text), "[EMPTY_%" PRIu32 "]", i);
        if (gguf_get_arr_str(v->gguf, v->tokens, i)[0] == '\0' && has_text(v, text)) {
            return duplicate_error(v, text);
        }
    }
    return QUIRE_OK;
}

static int scores_check(const vocab *v)
{
    static const char name[] = "tokenizer.ggml.scores";
    const float *scores;
    int64_t index;

    QUIRE_TRY(array_find(v, name, GGUF_TYPE_FLOAT32, GGUF_TYPE_INT32, &index));
    if (index < 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(array_size_check(v, name, index));
    if (gguf_get_arr_type(v->gguf, index) == GGUF_TYPE_FLOAT32) {
        scores = gguf_get_arr_data(v->gguf, index);
        for (uint32_t i = 0; i < v->n; i++) {
            if (isnan(scores[i])) {
                return quire_error_set(v->err, QUIRE_CORRUPT,
                                       "%s: %s[%" PRIu32 "] is not a number (damaged file?)",
                                       quire_gguf_path(v->file), name, i);
            }
        }
    }
    return QUIRE_OK;
}

static int types_check(const vocab *v)
{
    static const char name[] = "tokenizer.ggml.token_type";
    const int32_t *types;
    int64_t index;

    QUIRE_TRY(array_find(v, name, GGUF_TYPE_INT32, GGUF_TYPE_INT32, &index));
    if (index < 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(array_size_check(v, name, index));
    types = gguf_get_arr_data(v->gguf, index);
    for (uint32_t i = 0; i < v->n; i++) {
        const char *text = gguf_get_arr_str(v->gguf, v->tokens, i);

        /* An empty text becomes "[EMPTY_i]", which is long enough. */
        if (types[i] == TYPE_BYTE && text[0] != '\0' && strlen(text) < strlen("<0x")) {
            return quire_error_set(v->err, QUIRE_CORRUPT,
                                   "%s: %s[%" PRIu32
                                   "] is byte, but the token's text is too short for <0xNN> "
                                   "(damaged file?)",
                                   quire_gguf_path(v->file), name, i);
        }
    }
    return QUIRE_OK;
}

/* A byte of text that no longer token covers becomes <0xNN>, or else the token of this one
 * character. One of the two has to exist. */
static int bytes_check(const vocab *v)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char hex[8];
        char character[2] = { (char)byte, '\0' };

        (void)snprintf(hex, sizeof(hex), "<0x%02X>", byte);
        if (!has_text(v, hex) && (byte == 0 || !has_text(v, character))) {
            return quire_error_set(v->err, QUIRE_CORRUPT,
                                   "%s: tokenizer.ggml.tokens has no token %s; expected one for "
                                   "each byte (damaged file?)",
                                   quire_gguf_path(v->file), hex);
        }
    }
    return QUIRE_OK;
}

static int merges_check(const vocab *v)
{
    int64_t index;

    QUIRE_TRY(array_find(v, "tokenizer.ggml.merges", GGUF_TYPE_STRING, GGUF_TYPE_STRING, &index));
    if (index < 0) {
        return quire_error_set(v->err, QUIRE_CORRUPT,
                               "%s: key tokenizer.ggml.merges is missing (damaged file?)",
                               quire_gguf_path(v->file));
    }
    return QUIRE_OK;
}

/* Check merges and characters. libllama drops a byte of text that has no token, so a prompt can
 * become empty. Only the bytes that every text has must have tokens: some vocabularies lack bytes
 * that UTF-8 never uses. */
static int bpe_check(const vocab *v)
{
    quire_bpe_cut cut;

    QUIRE_TRY(merges_check(v));
    quire_bpe_cut_init(&cut, v->pre);
    for (char c = ' '; c <= '~' && cut.is_byte_level; c++) {
        const char character[2] = { c, '\0' };
        /* GPT-2 writes a blank as U+0120. */
        const char *text = c == ' ' ? "\xc4\xa0" : character;

        if (!has_text(v, text)) {
            return quire_error_set(v->err, QUIRE_CORRUPT,
                                   "%s: tokenizer.ggml.tokens has no token '%s'; expected one for "
                                   "each printable ASCII character (damaged file?)",
                                   quire_gguf_path(v->file), text);
        }
    }
    return QUIRE_OK;
}

/* Check that a key is u32 if it is there. libllama reads no other type for it. */
static int u32_check(const vocab *v, const char *name)
{
    const int64_t index = gguf_find_key(v->gguf, name);

    if (index >= 0 && gguf_get_kv_type(v->gguf, index) != GGUF_TYPE_UINT32) {
        return quire_error_set(v->err, QUIRE_CORRUPT, "%s: %s is not of type u32 (damaged file?)",
                               quire_gguf_path(v->file), name);
    }
    return QUIRE_OK;
}

/* Read a special id, which must lie within the vocabulary. A number of all ones means "none":
 * libllama then takes its default, as for an absent key, and *id stays. */
static int id_get(const vocab *v, const char *name, uint32_t *id)
{
    int64_t index = gguf_find_key(v->gguf, name);
    uint32_t value;

    if (index < 0) {
        return QUIRE_OK;
    }
    QUIRE_TRY(u32_check(v, name));
    value = gguf_get_val_u32(v->gguf, index);
    if (value >= v->n && value != ID_NONE) {
        return quire_error_set(v->err, QUIRE_CORRUPT,
                               "%s: %s is %" PRIu32 "; expected 0..%" PRIu32 " (damaged file?)",
                               quire_gguf_path(v->file), name, value, v->n - 1);
    }
    *id = value != ID_NONE ? value : *id;
    return QUIRE_OK;
}

static int ids_check(const vocab *v)
{
    static const char *const others[] = {
        "eot_token_id",     "eom_token_id",     "unknown_token_id", "seperator_token_id",
        "padding_token_id", "mask_token_id",    "fim_pre_token_id", "fim_suf_token_id",
        "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
        "prefix_token_id",  "suffix_token_id",  "middle_token_id",
    };
    /* libllama's default ids; an id beyond the vocabulary counts as none. */
    uint32_t bos = v->is_spm ? 1 : 11;
    uint32_t eos = v->is_spm ? 2 : 11;
    bool adds_bos = true; /* some pre-tokenizers say so by themselves */
    bool adds_eos = false;
    bool lacks_bos;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char key[QUIRE_GGUF_KEY_NAME_MAX];
        uint32_t id;

        (void)snprintf(key, sizeof(key), "tokenizer.ggml.%s", others[i]);
        QUIRE_TRY(id_get(v, key, &id));
    }
    QUIRE_TRY(id_get(v, "tokenizer.ggml.bos_token_id", &bos));
    QUIRE_TRY(id_get(v, "tokenizer.ggml.eos_token_id", &eos));
    QUIRE_TRY(quire_gguf_get_bool(v->file, "tokenizer.ggml.add_bos_token", &adds_bos, v->err));
    QUIRE_TRY(quire_gguf_get_bool(v->file, "tokenizer.ggml.add_eos_token", &adds_eos, v->err));
    lacks_bos = adds_bos && bos >= v->n;
    if (lacks_bos || (adds_eos && eos >= v->n)) {
        return quire_error_set(
            v->err, QUIRE_CORRUPT,
            "%s: texts are to %s with a token (tokenizer.ggml.%s_token_id) that the "
            "vocabulary of %" PRIu32 " tokens lacks (damaged file?)",
            quire_gguf_path(v->file), lacks_bos ? "begin" : "end", lacks_bos ? "bos" : "eos", v->n);
    }
    return QUIRE_OK;
}

/* Keys of which only the type can be wrong. */
static int other_keys_check(const vocab *v)
{
    static const char *const bools[] = {
        "tokenizer.ggml.add_sep_token",
        "tokenizer.ggml.add_space_prefix",
        "tokenizer.ggml.remove_extra_whitespaces",
        "tokenizer.ggml.normalizer.lowercase",
        "tokenizer.ggml.normalizer.strip_accents",
    };
    const char *text;
    int64_t index;

    for (size_t i = 0; i < sizeof(bools) / sizeof(bools[0]); i++) {
        bool value;

        QUIRE_TRY(quire_gguf_get_bool(v->file, bools[i], &value, v->err));
    }
    QUIRE_TRY(u32_check(v, "tokenizer.ggml.token_type_count"));
    QUIRE_TRY(u32_check(v, "general.file_type"));
    QUIRE_TRY(
        array_find(v, "tokenizer.ggml.suppress_tokens", GGUF_TYPE_INT32, GGUF_TYPE_INT32, &index));
    return quire_gguf_get_str(v->file, "tokenizer.chat_template", false, &text, v->err);
}

int quire_gguf_check_vocab(const quire_gguf *file, const quire_model_desc *desc, quire_error *err)
{
    static const char name[] = "tokenizer.ggml.tokens";
    vocab v = { .file = file, .gguf = quire_gguf_context(file), .err = err, .n = desc->n_vocab };
    int rc;

    QUIRE_TRY(model_check(&v));
    QUIRE_TRY(array_find(&v, name, GGUF_TYPE_STRING, GGUF_TYPE_STRING, &v.tokens));
    if (v.tokens < 0 || gguf_get_arr_n(v.gguf, v.tokens) != v.n) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: %s is missing or does not have the %" PRIu32
                               " tokens of the embedding (damaged file?)",
                               quire_gguf_path(file), name, v.n);
    }
    if ((rc = texts_check(&v)) == QUIRE_OK && (rc = scores_check(&v)) == QUIRE_OK &&
        (rc = types_check(&v)) == QUIRE_OK &&
        (rc = v.is_spm ? bytes_check(&v) : bpe_check(&v)) == QUIRE_OK &&
        (rc = ids_check(&v)) == QUIRE_OK) {
        rc = other_keys_check(&v);
    }
    free(v.sorted);
    return rc;
}
