/* gguf_write.c - see gguf_write.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_write.h"

#include "base/check.h"

#include <errno.h>
#include <ggml.h>
#include <gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES  128u
#define TEXT_BYTES 8u
#define BYTES      256u
#define FIRST_BYTE 3u
#define SPARE      (FIRST_BYTE + BYTES) /* <0x20>, which no text reaches */

/* The values of tokenizer.ggml.token_type. */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_BYTE = 6
};

static void add_vocabulary(struct gguf_context *g)
{
    static const char *const specials[] = { "<unk>", "<s>", "</s>" };
    char bytes[BYTES][TEXT_BYTES];
    const char *texts[QUIRE_GGUF_BYTE_VOCAB];
    float scores[QUIRE_GGUF_BYTE_VOCAB] = { 0 };
    int32_t types[QUIRE_GGUF_BYTE_VOCAB];

    for (uint32_t i = 0; i < SPARE; i++) {
        types[i] = i >= FIRST_BYTE ? TYPE_BYTE : i > 0 ? TYPE_CONTROL : TYPE_UNKNOWN;
        if (i < FIRST_BYTE) {
            texts[i] = specials[i];
        } else {
            (void)snprintf(bytes[i - FIRST_BYTE], TEXT_BYTES, "<0x%02X>", i - FIRST_BYTE);
            texts[i] = bytes[i - FIRST_BYTE];
        }
    }
    /* SPM writes a blank as U+2581 before it looks for pieces and bytes. Readers of files want a
     * token for each byte nevertheless. */
    texts[SPARE] = "<0x20>";
    types[SPARE] = TYPE_BYTE;
    texts[FIRST_BYTE + ' '] = "\xe2\x96\x81";
    types[FIRST_BYTE + ' '] = TYPE_NORMAL;
    gguf_set_val_str(g, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", texts, QUIRE_GGUF_BYTE_VOCAB);
    gguf_set_arr_data(g, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, QUIRE_GGUF_BYTE_VOCAB);
    gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types,
                      QUIRE_GGUF_BYTE_VOCAB);
    gguf_set_val_u32(g, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_u32(g, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(g, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_bool(g, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(g, "tokenizer.ggml.add_eos_token", false);
    gguf_set_val_bool(g, "tokenizer.ggml.add_space_prefix", false);
}

/* "quire.block_count" in a buffer. */
static const char *key_of(const quire_gguf_out *m, const char *suffix, char key[KEY_BYTES])
{
    (void)snprintf(key, KEY_BYTES, "%s.%s", m->arch, suffix);
    return key;
}

static void add_keys(struct gguf_context *g, const quire_gguf_out *m)
{
    const struct {
        const char *name;
        uint32_t value;
    } counts[] = {
        { "block_count", m->n_layer },         { "context_length", m->n_ctx },
        { "embedding_length", m->d_model },    { "feed_forward_length", m->d_ff },
        { "attention.head_count", m->n_head }, { "attention.head_count_kv", m->n_kv_head },
        { "attention.key_length", m->d_head }, { "attention.value_length", m->d_head },
        { "rope.dimension_count", m->d_head },
    };
    char key[KEY_BYTES];

    gguf_set_val_str(g, "general.architecture", m->arch);
    gguf_set_val_str(g, "general.name", m->name);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        gguf_set_val_u32(g, key_of(m, counts[i].name, key), counts[i].value);
    }
    gguf_set_val_f32(g, key_of(m, "rope.freq_base", key), m->rope_base);
    gguf_set_val_f32(g, key_of(m, "attention.layer_norm_rms_epsilon", key), m->norm_epsilon);
    if (m->kv_scheme != NULL) {
        gguf_set_val_str(g, key_of(m, "attention.kv_scheme", key), m->kv_scheme);
    }
    if (m->kv_source_k != NULL) {
        gguf_set_arr_data(g, key_of(m, "attention.kv_source_k", key), GGUF_TYPE_INT32,
                          m->kv_source_k, (size_t)m->n_layer * 2);
        gguf_set_arr_data(g, key_of(m, "attention.kv_source_v", key), GGUF_TYPE_INT32,
                          m->kv_source_v, (size_t)m->n_layer * 2);
    }
}

/* ggml reads the data through the tensor and does not change it. */
static int add_tensor(struct gguf_context *g, struct ggml_context *ctx,
                      const quire_gguf_out_tensor *from, quire_error *err)
{
    struct ggml_tensor *t =
        from->n_rows > 1
            ? ggml_new_tensor_2d(ctx, GGML_TYPE_F32, (int64_t)from->n_cols, (int64_t)from->n_rows)
            : ggml_new_tensor_1d(ctx, GGML_TYPE_F32, (int64_t)from->n_cols);

    if (t == NULL || strlen(from->name) >= sizeof(t->name)) {
        return quire_error_set(err, QUIRE_INVAL, "the tensor's name %.80s is too long", from->name);
    }
    ggml_set_name(t, from->name);
    gguf_add_tensor(g, t);
    gguf_set_tensor_data(g, from->name, from->data);
    return QUIRE_OK;
}

int quire_gguf_write(const char *path, const quire_gguf_out *m, quire_error *err)
{
    struct ggml_init_params params = { .mem_size = (m->n_tensors + 1) * ggml_tensor_overhead(),
                                       .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);
    struct gguf_context *g = gguf_init_empty();
    int rc = QUIRE_OK;

    if (ctx == NULL || g == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "out of memory");
    } else {
        add_keys(g, m);
        add_vocabulary(g);
    }
    for (uint32_t i = 0; rc == QUIRE_OK && i < m->n_tensors; i++) {
        rc = add_tensor(g, ctx, &m->tensors[i], err);
    }
    errno = 0;
    if (rc == QUIRE_OK && !gguf_write_to_file(g, path, false)) {
        rc = quire_error_set_errno(err, errno != 0 ? errno : EIO, "cannot write %s", path);
    }
    gguf_free(g);
    ggml_free(ctx);
    return rc;
}
