/* gguf_vocab.c - see gguf_vocab.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_vocab.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "model/gguf_file.h"

#include <gguf.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX   "tokenizer."
#define TEXT_END "<|endoftext|>"
#define BYTES    256u
#define UTF8_MAX 2u /* bytes of one of GPT-2's characters */

/* The values of tokenizer.ggml.token_type. */
enum {
    TYPE_NORMAL = 1,
    TYPE_CONTROL = 3
};

struct quire_gguf_vocab {
    struct gguf_context *keys;
};

static int vocab_new(quire_gguf_vocab **out, quire_error *err)
{
    quire_gguf_vocab *v = calloc(1, sizeof(*v));

    if (v == NULL || (v->keys = gguf_init_empty()) == NULL) {
        free(v);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    *out = v;
    return QUIRE_OK;
}

void quire_gguf_vocab_free(quire_gguf_vocab *v)
{
    if (v != NULL) {
        gguf_free(v->keys);
        free(v);
    }
}

int quire_gguf_vocab_read(quire_gguf_vocab **out, const char *path, quire_error *err)
{
    quire_gguf *file = NULL;
    int rc;

    QUIRE_TRY(quire_gguf_open(&file, path, err));
    rc = vocab_new(out, err);
    if (rc == QUIRE_OK) {
        struct gguf_context *keys = (*out)->keys;

        gguf_set_kv(keys, quire_gguf_context(file));
        for (int64_t i = gguf_get_n_kv(keys); i-- > 0;) {
            if (strncmp(gguf_get_key(keys, i), PREFIX, strlen(PREFIX)) != 0) {
                (void)gguf_remove_key(keys, gguf_get_key(keys, i));
            }
        }
    }
    quire_gguf_close(file);
    return rc;
}

void quire_gguf_vocab_add(const quire_gguf_vocab *v, struct gguf_context *to)
{
    gguf_set_kv(to, v->keys);
}

/* ---- the hash ---- */

static uint64_t add_text(uint64_t hash, const char *text)
{
    return quire_hash_add(hash, text, strlen(text) + 1);
}

/* Arrays of texts have no bytes of their own. */
static uint64_t add_array(uint64_t hash, const struct gguf_context *keys, int64_t i)
{
    static const size_t sizes[] = {
        [GGUF_TYPE_UINT8] = 1,   [GGUF_TYPE_INT8] = 1,    [GGUF_TYPE_UINT16] = 2,
        [GGUF_TYPE_INT16] = 2,   [GGUF_TYPE_UINT32] = 4,  [GGUF_TYPE_INT32] = 4,
        [GGUF_TYPE_FLOAT32] = 4, [GGUF_TYPE_BOOL] = 1,    [GGUF_TYPE_UINT64] = 8,
        [GGUF_TYPE_INT64] = 8,   [GGUF_TYPE_FLOAT64] = 8,
    };
    enum gguf_type type = gguf_get_arr_type(keys, i);
    size_t n = gguf_get_arr_n(keys, i);

    if (type == GGUF_TYPE_STRING) {
        for (size_t j = 0; j < n; j++) {
            hash = add_text(hash, gguf_get_arr_str(keys, i, j));
        }
        return hash;
    }
    return (size_t)type < sizeof(sizes) / sizeof(sizes[0])
               ? quire_hash_add(hash, gguf_get_arr_data(keys, i), n * sizes[type])
               : hash;
}

static uint64_t add_value(uint64_t hash, const struct gguf_context *keys, int64_t i)
{
    switch (gguf_get_kv_type(keys, i)) {
    case GGUF_TYPE_STRING:
        return add_text(hash, gguf_get_val_str(keys, i));
    case GGUF_TYPE_ARRAY:
        return add_array(hash, keys, i);
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
        return quire_hash_add(hash, gguf_get_val_data(keys, i), 8);
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
        return quire_hash_add(hash, gguf_get_val_data(keys, i), 4);
    default: /* numbers of one byte or more, and truth values */
        return quire_hash_add(hash, gguf_get_val_data(keys, i), 1);
    }
}

uint64_t quire_gguf_vocab_hash(const quire_gguf_vocab *v)
{
    uint64_t hash = QUIRE_HASH_INIT;

    for (int64_t i = 0; i < gguf_get_n_kv(v->keys); i++) {
        hash = add_text(hash, gguf_get_key(v->keys, i));
        hash = add_value(hash, v->keys, i);
    }
    return hash;
}

/* ---- BPE ---- */

/* GPT-2's character for a byte, in UTF-8: itself where it is printable, else the next of those from
 * U+0100. */
static size_t character_of(unsigned char byte, char out[UTF8_MAX])
{
    uint32_t code = byte, next = BYTES;

    for (uint32_t b = 0; b <= byte; b++) {
        bool is_printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

        code = is_printable ? b : next;
        next += !is_printable;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

/* The bytes of token i in GPT-2's characters. */
static void add_token(const quire_gguf_bpe *bpe, uint32_t i, quire_bytes *to)
{
    for (uint32_t at = i > 0 ? bpe->ends[i - 1] : 0; at < bpe->ends[i]; at++) {
        char character[UTF8_MAX];
        size_t n = character_of(bpe->bytes[at], character);

        (void)quire_bytes_add(to, character, n);
    }
}

/* Texts one after another, each with a zero byte, and where each begins. */
typedef struct text_list {
    quire_bytes bytes;
    size_t *at;
    const char **texts;
    uint32_t n;
} text_list;

static int list_init(text_list *l, uint32_t n_max)
{
    memset(l, 0, sizeof(*l));
    l->at = calloc((size_t)n_max + 1, sizeof(*l->at));
    l->texts = calloc((size_t)n_max + 1, sizeof(*l->texts));
    return l->at != NULL && l->texts != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static void list_fini(text_list *l)
{
    quire_bytes_fini(&l->bytes);
    free(l->at);
    free(l->texts);
}

static void list_begin(text_list *l)
{
    l->at[l->n++] = l->bytes.n;
}

/* The texts, which stay where they are from now on. */
static const char **list_texts(text_list *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        l->texts[i] = l->bytes.data + l->at[i];
    }
    return l->texts;
}

static int tokens_set(struct gguf_context *g, const quire_gguf_bpe *bpe)
{
    uint32_t n = QUIRE_GGUF_BPE_SPECIALS + bpe->n_tokens;
    int32_t *types = malloc(n * sizeof(*types));
    text_list l;
    int rc = list_init(&l, n);

    if (rc == QUIRE_OK && types != NULL) {
        list_begin(&l);
        types[0] = TYPE_CONTROL;
        (void)quire_bytes_add(&l.bytes, TEXT_END, sizeof(TEXT_END));
        for (uint32_t i = 0; i < bpe->n_tokens; i++) {
            types[QUIRE_GGUF_BPE_SPECIALS + i] = TYPE_NORMAL;
            list_begin(&l);
            add_token(bpe, i, &l.bytes);
            (void)quire_bytes_add(&l.bytes, "", 1);
        }
        rc = l.bytes.status;
    }
    if (rc == QUIRE_OK && types != NULL) {
        gguf_set_arr_str(g, "tokenizer.ggml.tokens", list_texts(&l), n);
        gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, n);
    }
    list_fini(&l);
    rc = types != NULL ? rc : QUIRE_NOMEM;
    free(types);
    return rc;
}

static int merges_set(struct gguf_context *g, const quire_gguf_bpe *bpe)
{
    text_list l;
    int rc = list_init(&l, bpe->n_merges);

    if (rc == QUIRE_OK) {
        for (uint32_t i = 0; i < bpe->n_merges; i++) {
            list_begin(&l);
            add_token(bpe, bpe->merges[i][0], &l.bytes);
            (void)quire_bytes_add(&l.bytes, " ", 1);
            add_token(bpe, bpe->merges[i][1], &l.bytes);
            (void)quire_bytes_add(&l.bytes, "", 1);
        }
        rc = l.bytes.status;
    }
    if (rc == QUIRE_OK) {
        gguf_set_arr_str(g, "tokenizer.ggml.merges", list_texts(&l), l.n);
    }
    list_fini(&l);
    return rc;
}

int quire_gguf_vocab_bpe(quire_gguf_vocab **out, const quire_gguf_bpe *bpe, quire_error *err)
{
    struct gguf_context *g;
    int rc;

    QUIRE_TRY(vocab_new(out, err));
    g = (*out)->keys;
    gguf_set_val_str(g, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(g, "tokenizer.ggml.pre", "gpt-2");
    rc = tokens_set(g, bpe);
    if (rc == QUIRE_OK) {
        rc = merges_set(g, bpe);
    }
    if (rc < 0) {
        quire_gguf_vocab_free(*out);
        *out = NULL;
        return quire_error_set(err, rc, "out of memory");
    }
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 0);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 0);
    gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(g, "tokenizer.ggml.add_eos_token", false);
    return QUIRE_OK;
}
