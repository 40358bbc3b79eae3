/* gguf_write.c - see gguf_write.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/gguf_write.h"

#include "base/check.h"

#include <errno.h>
#include <ggml.h>
#include <gguf.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES  128u
#define F16_MAX    65504.0f
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
    static const uint32_t file_types[] = { 0, 1, 7 }; /* llama.cpp's LLAMA_FTYPE_* */
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
    gguf_set_val_u32(g, "general.file_type", file_types[m->type]);
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

static void add_windows(struct gguf_context *g, const quire_gguf_out *m)
{
    uint32_t any = 0;
    char key[KEY_BYTES];

    for (uint32_t i = 0; m->windows != NULL && i < m->n_layer; i++) {
        any |= m->windows[i];
    }
    if (any != 0) { /* of the bits of int32: a window is smaller */
        gguf_set_arr_data(g, key_of(m, "attention.window", key), GGUF_TYPE_INT32, m->windows,
                          m->n_layer);
    }
}

/* ---- tensors ---- */

/* A file that is being put together. ggml reads the data of tensors when it writes the file, so
 * converted data live until then. */
typedef struct out_file {
    const quire_gguf_out *model;
    struct gguf_context *gguf;
    struct ggml_context *ctx;
    void **converted; /* [n_tensors] */
} out_file;

static enum ggml_type type_of(const quire_gguf_out *m, const quire_gguf_out_tensor *t)
{
    if (m->type == QUIRE_GGUF_OUT_F32 || t->n_rows == 1 || t->stays_f32) {
        return GGML_TYPE_F32;
    }
    return m->type == QUIRE_GGUF_OUT_F16 || t->n_cols % QUIRE_GGUF_Q8_BLOCK != 0 ? GGML_TYPE_F16
                                                                                 : GGML_TYPE_Q8_0;
}

/* q8_0 keeps a scale in f16 that is a 127th of the largest number, so this bound serves both. */
static int range_check(const quire_gguf_out_tensor *t, quire_error *err)
{
    for (size_t i = 0; i < (size_t)t->n_rows * t->n_cols; i++) {
        if (!(fabsf(t->data[i]) <= F16_MAX)) {
            return quire_error_set(err, QUIRE_RANGE,
                                   "%s has the number %g, which f16 and q8_0 cannot hold: write "
                                   "the file in f32",
                                   t->name, (double)t->data[i]);
        }
    }
    return QUIRE_OK;
}

/* The data in the type. Memory: free(*to). */
static int convert(const quire_gguf_out_tensor *from, enum ggml_type type, void **to,
                   quire_error *err)
{
    QUIRE_TRY(range_check(from, err));
    *to = malloc(from->n_rows * ggml_row_size(type, (int64_t)from->n_cols));
    if (*to == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", from->name);
    }
    (void)ggml_quantize_chunk(type, from->data, *to, 0, from->n_rows, from->n_cols, NULL);
    return QUIRE_OK;
}

static int add_tensor(const out_file *f, uint32_t index, quire_error *err)
{
    const quire_gguf_out_tensor *from = &f->model->tensors[index];
    enum ggml_type type = type_of(f->model, from);
    struct ggml_tensor *t =
        from->n_rows > 1
            ? ggml_new_tensor_2d(f->ctx, type, (int64_t)from->n_cols, (int64_t)from->n_rows)
            : ggml_new_tensor_1d(f->ctx, type, (int64_t)from->n_cols);
    const void *data = from->data;

    if (t == NULL || strlen(from->name) >= sizeof(t->name)) {
        return quire_error_set(err, QUIRE_INVAL, "the tensor's name %.80s is too long", from->name);
    }
    if (type != GGML_TYPE_F32) {
        QUIRE_TRY(convert(from, type, &f->converted[index], err));
        data = f->converted[index];
    }
    ggml_set_name(t, from->name);
    gguf_add_tensor(f->gguf, t);
    gguf_set_tensor_data(f->gguf, from->name, data);
    return QUIRE_OK;
}

static int put_together(const out_file *f, const char *path, quire_error *err)
{
    if (f->ctx == NULL || f->gguf == NULL || f->converted == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    add_keys(f->gguf, f->model);
    add_windows(f->gguf, f->model);
    if (f->model->vocab != NULL) {
        quire_gguf_vocab_add(f->model->vocab, f->gguf);
    } else {
        add_vocabulary(f->gguf);
    }
    for (uint32_t i = 0; i < f->model->n_tensors; i++) {
        QUIRE_TRY(add_tensor(f, i, err));
    }
    errno = 0;
    if (!gguf_write_to_file(f->gguf, path, false)) {
        return quire_error_set_errno(err, errno != 0 ? errno : EIO, "cannot write %s", path);
    }
    return QUIRE_OK;
}

int quire_gguf_write(const char *path, const quire_gguf_out *m, quire_error *err)
{
    struct ggml_init_params params = { .mem_size = (m->n_tensors + 1) * ggml_tensor_overhead(),
                                       .no_alloc = true };
    out_file f = { .model = m,
                   .gguf = gguf_init_empty(),
                   .ctx = ggml_init(params),
                   .converted = calloc((size_t)m->n_tensors + 1, sizeof(*f.converted)) };
    int rc = put_together(&f, path, err);

    gguf_free(f.gguf);
    ggml_free(f.ctx);
    for (uint32_t i = 0; f.converted != NULL && i < m->n_tensors; i++) {
        free(f.converted[i]);
    }
    free(f.converted);
    return rc;
}
