/* describe_latent.c - the sizes of latent attention (MLA): the keys of DeepSeek-V2 and MiniCPM3.
 *
 * Files of today have key_length_mla and value_length_mla, the sizes of a head before its matrices
 * are applied to Q and to the result; their key_length and value_length are those of the latent
 * row. Older files, and files of minicpm3, have the sizes of a head as key_length and value_length.
 * The meaning of every key is libllama's (src/models/deepseek2.cpp and minicpm3.cpp at ggml
 * 0.25.1).
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"
#include "quire/codec.h"

#define RANK_MAX (1u << 16)

/* The state that the functions below share. */
typedef struct latent {
    const quire_gguf *file;
    quire_model_desc *desc;
    quire_error *err;
} latent;

static int size_get(const latent *x, const char *suffix, bool is_required, uint32_t *value)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, x->desc->arch_name, suffix);
    return quire_gguf_get_u32(x->file, key, (quire_gguf_range){ 1, RANK_MAX, is_required }, value,
                              x->err);
}

/* The sizes of a head of Q and of a head's result; whether the file has the matrices of both
 * apart. */
static int heads_get(const latent *x, uint32_t *d_head)
{
    quire_latent_desc *l = &x->desc->latent;
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, x->desc->arch_name, "attention.key_length_mla");
    l->is_split = quire_arch_row_get(x->desc->arch)->latent == QUIRE_LATENT_SPLIT &&
                  quire_gguf_find(x->file, key) >= 0;
    if (l->is_split) {
        QUIRE_TRY(size_get(x, "attention.key_length_mla", true, d_head));
        return size_get(x, "attention.value_length_mla", true, &l->d_out);
    }
    *d_head = l->d_out = x->desc->n_embd / x->desc->n_head;
    QUIRE_TRY(size_get(x, "attention.key_length", false, d_head));
    return size_get(x, "attention.value_length", false, &l->d_out);
}

/* Whether Q comes from a compressed row: the tensors say so, since libllama knows the models
 * without by their number of layers. */
static int rank_get(const latent *x)
{
    if (ggml_get_tensor(quire_gguf_meta(x->file), "blk.0.attn_q.weight") != NULL) {
        return QUIRE_OK;
    }
    return size_get(x, "attention.q_lora_rank", true, &x->desc->latent.n_q);
}

static bool is_lane(uint32_t d)
{
    return d % QUIRE_HEAD_DIM_MULTIPLE == 0 && d > 0 && d <= QUIRE_HEAD_DIM_MAX;
}

int quire_describe_latent(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const latent x = { file, desc, err };
    uint32_t n_kv = 0, n_rot = 0, d_head = 0;

    desc->latent.is_there = true;
    QUIRE_TRY(size_get(&x, "attention.kv_lora_rank", true, &n_kv));
    QUIRE_TRY(size_get(&x, "rope.dimension_count", true, &n_rot));
    QUIRE_TRY(rank_get(&x));
    QUIRE_TRY(heads_get(&x, &d_head));
    if (d_head <= n_rot) {
        return quire_error_set(err, QUIRE_CORRUPT,
                               "%s: heads of %u with %u turned dimensions "
                               "(%s.rope.dimension_count); expected fewer than a head has (damaged "
                               "file?)",
                               quire_gguf_path(file), d_head, n_rot, desc->arch_name);
    }
    if (!is_lane(n_kv) || !is_lane(n_kv + n_rot)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s: %s.attention.kv_lora_rank is %u, with %u turned dimensions "
                               "behind it; supported: multiples of %u up to %u together",
                               quire_gguf_path(file), desc->arch_name, n_kv, n_rot,
                               QUIRE_HEAD_DIM_MULTIPLE, QUIRE_HEAD_DIM_MAX);
    }
    desc->latent.d_plain = d_head - n_rot;
    desc->n_kv_head = 1;
    desc->d_k = n_kv + n_rot;
    desc->d_v = n_kv;
    return QUIRE_OK;
}
