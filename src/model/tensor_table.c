/* tensor_table.c - see tensor_table.h. The order of the rows is the order in which weights are
 * loaded; the digest of the weights depends on it (weights_digest.h).
 *
 * SPDX-License-Identifier: MIT */
#include "model/tensor_table.h"

#include "base/check.h"
#include "model/weights.h"

#define M(field) offsetof(quire_weights, field)
#define L(field) offsetof(quire_layer_weights, field)

#define MODEL  QUIRE_TENSOR_OF_MODEL
#define LAYER  QUIRE_TENSOR_OF_LAYER
#define ATTN   QUIRE_TENSOR_OF_ATTENTION_LAYER
#define CONV   QUIRE_TENSOR_OF_CONV_LAYER
#define DELTA  QUIRE_TENSOR_OF_DELTA_LAYER
#define MAMBA  QUIRE_TENSOR_OF_MAMBA_LAYER
#define STORED QUIRE_TENSOR_OF_STORED_LAYER
#define DENSE  QUIRE_TENSOR_OF_DENSE_LAYER
#define EXPERT QUIRE_TENSOR_OF_EXPERT_LAYER

#define LATENT_Q       QUIRE_TENSOR_OF_LATENT_Q
#define LATENT_PLAIN_Q QUIRE_TENSOR_OF_LATENT_PLAIN_Q
#define LATENT_SPLIT   QUIRE_TENSOR_OF_LATENT_SPLIT
#define LATENT_JOINT   QUIRE_TENSOR_OF_LATENT_JOINT

#define ONE         QUIRE_DIM_ONE
#define EMBD        QUIRE_DIM_EMBD
#define FF          QUIRE_DIM_FF
#define FF2         QUIRE_DIM_FF_TWICE
#define Q           QUIRE_DIM_Q
#define Q_MAP       QUIRE_DIM_Q_MAP
#define DELTA_HEADS QUIRE_DIM_DELTA_HEADS
#define K           QUIRE_DIM_K
#define V           QUIRE_DIM_V
#define QKV         QUIRE_DIM_QKV
#define HEAD        QUIRE_DIM_HEAD
#define VOCAB       QUIRE_DIM_VOCAB
#define HEADS       QUIRE_DIM_HEADS
#define EXPERTS     QUIRE_DIM_EXPERTS
#define EMBD_EXPERT QUIRE_DIM_EMBD_EXPERT
#define FF_EXPERT   QUIRE_DIM_FF_EXPERT
#define FF_SHARED   QUIRE_DIM_FF_SHARED
#define ROPE        QUIRE_DIM_ROPE
#define TAPS        QUIRE_DIM_TAPS
#define EMBD3       QUIRE_DIM_EMBD_THRICE
#define MIX         QUIRE_DIM_MIX
#define STREAMS     QUIRE_DIM_STREAMS
#define GATE        QUIRE_DIM_GATE

/* A row is a line. */
#define ROW(part_, where_, name_, columns_, rows_, into_)                                          \
    {                                                                                              \
        .name = (name_), .part = QUIRE_PART_##part_, .where = (where_), .columns = (columns_),     \
        .rows = (rows_), .into = (into_)                                                           \
    }
/* The same for each expert. */
#define DEEP(part_, name_, columns_, rows_, into_)                                                 \
    {                                                                                              \
        .name = (name_), .part = QUIRE_PART_##part_, .where = EXPERT, .columns = (columns_),       \
        .rows = (rows_), .depth = EXPERTS, .into = (into_)                                         \
    }
/* Vectors one behind the other. */
#define VECTORS(part_, where_, name_, columns_, depth_, into_)                                     \
    {                                                                                              \
        .name = (name_), .part = QUIRE_PART_##part_, .where = (where_), .columns = (columns_),     \
        .depth = (depth_), .into = (into_)                                                         \
    }
/* A matrix of each stream but the first, one behind the other. */
#define STREAM_MAPS(name_, field_)                                                                 \
    {                                                                                              \
        .name = (name_), .part = QUIRE_PART_STREAMS, .columns = EMBD, .rows = EMBD,                \
        .depth = QUIRE_DIM_STREAMS_MORE, .cuts = {                                                 \
            { EMBD, M(field_[0]) },                                                                \
            { EMBD, M(field_[1]) },                                                                \
            { EMBD, M(field_[2]) }                                                                 \
        }                                                                                          \
    }
_Static_assert(QUIRE_STREAMS == QUIRE_TENSOR_CUTS_MAX + 1, "a cut for each stream but the first");
#define CUT_QKV(q, k, v)                                                                           \
    {                                                                                              \
        { Q, L(q) }, { K, L(k) },                                                                  \
        {                                                                                          \
            V, L(v)                                                                                \
        }                                                                                          \
    }

static const quire_tensor_row table[] = {
    { .name = "token_embd.weight",
      .part = QUIRE_PART_BASE,
      .columns = EMBD,
      .rows = VOCAB,
      .is_looked_up = true,
      .into = M(tok_embd) },
    ROW(LAST_NORM, MODEL, "output_norm.weight", EMBD, ONE, M(output_norm)),
    ROW(LAST_NORM_EMBD, MODEL, "token_embd_norm.weight", EMBD, ONE, M(output_norm)),
    ROW(NORM_BIAS, MODEL, "output_norm.bias", EMBD, ONE, M(output_norm_b)),
    ROW(OUTPUT, MODEL, "output.weight", EMBD, VOCAB, M(output)),
    ROW(OUTPUT_BIAS, MODEL, "output.bias", VOCAB, ONE, M(output_b)),
    ROW(ROPE_FREQS, MODEL, "rope_freqs.weight", ROPE, ONE, M(rope_freqs)),
    ROW(ROPE_FACTORS, MODEL, "rope_factors_long.weight", ROPE, ONE, M(rope_long)),
    ROW(ROPE_FACTORS, MODEL, "rope_factors_short.weight", ROPE, ONE, M(rope_short)),
    ROW(ATTN_NORM, LAYER, "attn_norm.weight", EMBD, ONE, L(attn_norm)),
    ROW(NORM_BIAS, LAYER, "attn_norm.bias", EMBD, ONE, L(attn_norm_b)),
    { .name = "attn_qkv.weight",
      .part = QUIRE_PART_QKV_FUSED,
      .where = ATTN,
      .columns = EMBD,
      .rows = QKV,
      .cuts = CUT_QKV(wq, wk, wv) },
    { .name = "attn_qkv.bias",
      .part = QUIRE_PART_QKV_BIAS_FUSED,
      .where = ATTN,
      .columns = QKV,
      .rows = ONE,
      .cuts = CUT_QKV(bq, bk, bv) },
    ROW(QKV, ATTN, "attn_q.weight", EMBD, Q_MAP, L(wq)),
    ROW(QKV_BIAS, ATTN, "attn_q.bias", Q, ONE, L(bq)),
    ROW(QKV, STORED, "attn_k.weight", EMBD, K, L(wk)),
    ROW(QKV_BIAS, STORED, "attn_k.bias", K, ONE, L(bk)),
    ROW(QKV, STORED, "attn_v.weight", EMBD, V, L(wv)),
    ROW(QK, ATTN, "attn_q.weight", EMBD, Q_MAP, L(wq)),
    ROW(QK, STORED, "attn_k.weight", EMBD, K, L(wk)),
    ROW(V, STORED, "attn_v.weight", EMBD, V, L(wv)),
    ROW(QKV_BIAS, STORED, "attn_v.bias", V, ONE, L(bv)),
    ROW(LATENT, LATENT_Q, "attn_q_a.weight", EMBD, QUIRE_DIM_LATENT_Q, L(wq_a)),
    ROW(LATENT, LATENT_Q, "attn_q_a_norm.weight", QUIRE_DIM_LATENT_Q, ONE, L(q_a_norm)),
    ROW(LATENT, LATENT_Q, "attn_q_b.weight", QUIRE_DIM_LATENT_Q, QUIRE_DIM_LATENT_HEADS, L(wq)),
    ROW(LATENT, LATENT_PLAIN_Q, "attn_q.weight", EMBD, QUIRE_DIM_LATENT_HEADS, L(wq)),
    ROW(LATENT, LAYER, "attn_kv_a_mqa.weight", EMBD, QUIRE_DIM_LATENT_ROW, L(wkv_a)),
    ROW(LATENT, LAYER, "attn_kv_a_norm.weight", QUIRE_DIM_LATENT, ONE, L(kv_a_norm)),
    { .name = "attn_k_b.weight",
      .part = QUIRE_PART_LATENT,
      .where = LATENT_SPLIT,
      .columns = QUIRE_DIM_LATENT_PLAIN,
      .rows = QUIRE_DIM_LATENT,
      .depth = HEADS,
      .into = L(wk_b) },
    { .name = "attn_v_b.weight",
      .part = QUIRE_PART_LATENT,
      .where = LATENT_SPLIT,
      .columns = QUIRE_DIM_LATENT,
      .rows = QUIRE_DIM_LATENT_OUT,
      .depth = HEADS,
      .into = L(wv_b) },
    { .name = "attn_kv_b.weight",
      .part = QUIRE_PART_LATENT,
      .where = LATENT_JOINT,
      .columns = QUIRE_DIM_LATENT,
      .rows = QUIRE_DIM_LATENT_TOGETHER,
      .is_looked_up = true, /* one half is used turned: weights_latent.h */
      .into = L(wkv_b) },
    ROW(BASE, ATTN, "attn_output.weight", QUIRE_DIM_O, EMBD, L(wo)),
    ROW(O_BIAS, ATTN, "attn_output.bias", EMBD, ONE, L(bo)),
    ROW(ATTN_GATE, ATTN, "attn_gate.weight", EMBD, QUIRE_DIM_O, L(attn_gate)),
    ROW(ATTN_GATE_HEADS, ATTN, "attn_gate.weight", EMBD, HEADS, L(attn_gate)),
    ROW(QK_NORM, ATTN, "attn_q_norm.weight", HEAD, ONE, L(q_norm)),
    ROW(QK_NORM, STORED, "attn_k_norm.weight", HEAD, ONE, L(k_norm)),
    ROW(QK_NORM_ROW, ATTN, "attn_q_norm.weight", Q, ONE, L(q_norm)),
    ROW(QK_NORM_ROW, STORED, "attn_k_norm.weight", K, ONE, L(k_norm)),
    ROW(KV_MAP, STORED, "attn_k_mix", MIX, ONE, L(k_mix)),
    ROW(KV_MAP, STORED, "attn_v_mix", MIX, ONE, L(v_mix)),
    ROW(SHORT_CONV, CONV, "shortconv.in_proj.weight", EMBD, EMBD3, L(conv_in)),
    { .name = "shortconv.conv.weight",
      .part = QUIRE_PART_SHORT_CONV,
      .where = CONV,
      .columns = TAPS,
      .rows = EMBD,
      .is_looked_up = true,
      .into = L(conv) },
    ROW(SHORT_CONV, CONV, "shortconv.out_proj.weight", EMBD, EMBD, L(wo)),
    ROW(DELTA_NET, DELTA, "attn_qkv.weight", EMBD, QUIRE_DIM_CONV, L(conv_in)),
    ROW(DELTA_NET, DELTA, "attn_gate.weight", EMBD, QUIRE_DIM_DELTA, L(delta_z)),
    { .name = "ssm_conv1d.weight",
      .part = QUIRE_PART_DELTA_NET,
      .where = DELTA,
      .columns = TAPS,
      .rows = QUIRE_DIM_CONV,
      .is_looked_up = true,
      .into = L(conv) },
    ROW(DELTA_GATES, DELTA, "ssm_beta.weight", EMBD, DELTA_HEADS, L(delta_b)),
    ROW(DELTA_GATES, DELTA, "ssm_alpha.weight", EMBD, DELTA_HEADS, L(delta_a)),
    ROW(DELTA_JOINT, DELTA, "ssm_ba.weight", EMBD, QUIRE_DIM_DELTA_HEADS_TWICE, L(delta_b)),
    ROW(DELTA_NET, DELTA, "ssm_dt.bias", DELTA_HEADS, ONE, L(delta_dt)),
    ROW(DELTA_NET, DELTA, "ssm_a", DELTA_HEADS, ONE, L(delta_decay)),
    ROW(DELTA_NET, DELTA, "ssm_norm.weight", QUIRE_DIM_DELTA_HEAD, ONE, L(delta_norm)),
    ROW(DELTA_NET, DELTA, "ssm_out.weight", QUIRE_DIM_DELTA, EMBD, L(wo)),
    ROW(MAMBA, MAMBA, "ssm_in.weight", EMBD, QUIRE_DIM_MAMBA_IN, L(conv_in)),
    { .name = "ssm_conv1d.weight",
      .part = QUIRE_PART_MAMBA,
      .where = MAMBA,
      .columns = TAPS,
      .rows = QUIRE_DIM_CONV,
      .is_looked_up = true,
      .into = L(conv) },
    ROW(MAMBA, MAMBA, "ssm_conv1d.bias", QUIRE_DIM_CONV, ONE, L(conv_b)),
    ROW(MAMBA, MAMBA, "ssm_dt.bias", DELTA_HEADS, ONE, L(delta_dt)),
    VECTORS(MAMBA, MAMBA, "ssm_a", ONE, DELTA_HEADS, L(delta_decay)),
    VECTORS(MAMBA, MAMBA, "ssm_d", ONE, DELTA_HEADS, L(mamba_skip)),
    VECTORS(MAMBA_NORM, MAMBA, "ssm_norm.weight", QUIRE_DIM_GROUP, QUIRE_DIM_GROUPS, L(mamba_norm)),
    ROW(MAMBA, MAMBA, "ssm_out.weight", QUIRE_DIM_DELTA, EMBD, L(mamba_out)),
    ROW(ATTN_POST_NORM, LAYER, "post_attention_norm.weight", EMBD, ONE, L(attn_post_norm)),
    ROW(POST_NORMS_BARE, LAYER, "post_attention_norm", EMBD, ONE, L(attn_post_norm)),
    ROW(POST_NORMS_BARE, LAYER, "post_ffw_norm", EMBD, ONE, L(ffn_post_norm)),
    ROW(FFN_NORM, LAYER, "ffn_norm.weight", EMBD, ONE, L(ffn_norm)),
    ROW(FFN_NORM_BARE, LAYER, "ffn_norm", EMBD, ONE, L(ffn_norm)),
    ROW(FFN_NORM_LATE, LAYER, "post_attention_norm.weight", EMBD, ONE, L(ffn_norm)),
    ROW(NORM_BIAS, LAYER, "ffn_norm.bias", EMBD, ONE, L(ffn_norm_b)),
    ROW(FFN_GATE, DENSE, "ffn_gate.weight", EMBD, FF, L(gate)),
    ROW(FFN_GATE_BIAS, DENSE, "ffn_gate.bias", FF, ONE, L(gate_b)),
    ROW(FFN_UP, DENSE, "ffn_up.weight", EMBD, FF, L(up)),
    { .name = "ffn_up.weight",
      .part = QUIRE_PART_FFN_FUSED,
      .where = DENSE,
      .columns = EMBD,
      .rows = FF2,
      .cuts = { { FF, L(gate) }, { FF, L(up) } } },
    ROW(FFN_BIAS, DENSE, "ffn_up.bias", FF, ONE, L(up_b)),
    ROW(FFN_DOWN, DENSE, "ffn_down.weight", FF, EMBD, L(down)),
    ROW(FFN_BIAS, DENSE, "ffn_down.bias", EMBD, ONE, L(down_b)),
    ROW(SINKS, ATTN, "attn_sinks.weight", HEADS, ONE, L(sinks)),
    ROW(EXPERTS_BASE, EXPERT, "ffn_gate_inp.weight", EMBD, EXPERTS, L(experts.router)),
    ROW(EXPERTS_BIAS, EXPERT, "ffn_gate_inp.bias", EXPERTS, ONE, L(experts.router_b)),
    ROW(EXPERTS_CHOICE_BIAS, EXPERT, "exp_probs_b.bias", EXPERTS, ONE, L(experts.choice_b)),
    ROW(EXPERTS_CHOICE_BARE, EXPERT, "exp_probs_b", EXPERTS, ONE, L(experts.choice_b)),
    DEEP(EXPERTS_APART, "ffn_gate_exps.weight", EMBD, FF_EXPERT, L(experts.gate)),
    DEEP(EXPERTS_BIAS, "ffn_gate_exps.bias", FF_EXPERT, ONE, L(experts.gate_b)),
    DEEP(EXPERTS_APART, "ffn_up_exps.weight", EMBD, FF_EXPERT, L(experts.up)),
    DEEP(EXPERTS_BIAS, "ffn_up_exps.bias", FF_EXPERT, ONE, L(experts.up_b)),
    DEEP(EXPERTS_FUSED, "ffn_gate_up_exps.weight", EMBD, QUIRE_DIM_FF_EXPERT_TWICE,
         L(experts.gate_up)),
    DEEP(EXPERTS_PLAIN, "ffn_up_exps.weight", EMBD_EXPERT, FF_EXPERT, L(experts.up)),
    DEEP(EXPERTS_BASE, "ffn_down_exps.weight", FF_EXPERT, EMBD_EXPERT, L(experts.down)),
    ROW(EXPERTS_NARROW, EXPERT, "ffn_latent_down.weight", EMBD, EMBD_EXPERT, L(experts.narrow)),
    ROW(EXPERTS_NARROW, EXPERT, "ffn_latent_up.weight", EMBD_EXPERT, EMBD, L(experts.widen)),
    ROW(EXPERTS_SCALE, EXPERT, "ffn_down_exps.scale", EXPERTS, ONE, L(experts.down_scale)),
    ROW(EXPERTS_BESIDE, EXPERT, "ffn_gate_inp.scale", EMBD, ONE, L(experts.router_scale)),
    ROW(EXPERTS_BESIDE, EXPERT, "pre_ffw_norm_2.weight", EMBD, ONE, L(experts.norm)),
    ROW(EXPERTS_BESIDE, EXPERT, "post_ffw_norm_1.weight", EMBD, ONE, L(experts.dense_post_norm)),
    ROW(EXPERTS_BESIDE, EXPERT, "post_ffw_norm_2.weight", EMBD, ONE, L(experts.post_norm)),
    DEEP(EXPERTS_BIAS, "ffn_down_exps.bias", EMBD, ONE, L(experts.down_b)),
    ROW(EXPERTS_SHARED, EXPERT, "ffn_gate_shexp.weight", EMBD, FF_SHARED, L(experts.shared_gate)),
    ROW(EXPERTS_SHARED, EXPERT, "ffn_up_shexp.weight", EMBD, FF_SHARED, L(experts.shared_up)),
    ROW(EXPERTS_SHARED, EXPERT, "ffn_down_shexp.weight", FF_SHARED, EMBD, L(experts.shared_down)),
    ROW(EXPERTS_SHARED_PLAIN, EXPERT, "ffn_up_shexp.weight", EMBD, FF_SHARED, L(experts.shared_up)),
    ROW(EXPERTS_SHARED_PLAIN, EXPERT, "ffn_down_shexp.weight", FF_SHARED, EMBD,
        L(experts.shared_down)),
    ROW(EXPERTS_SHARED_GATE, EXPERT, "ffn_gate_inp_shexp.weight", EMBD, ONE,
        L(experts.shared_router)),
    ROW(FFN_POST_NORM, LAYER, "post_ffw_norm.weight", EMBD, ONE, L(ffn_post_norm)),
    { .name = "per_layer_token_embd.weight",
      .part = QUIRE_PART_LAYER_EMBD,
      .columns = QUIRE_DIM_EMBD_LAYERS,
      .rows = VOCAB,
      .is_looked_up = true,
      .into = M(layer_embd) },
    ROW(LAYER_EMBD, MODEL, "per_layer_model_proj.weight", EMBD, QUIRE_DIM_EMBD_LAYERS,
        M(layer_embd_map)),
    ROW(LAYER_EMBD, MODEL, "per_layer_proj_norm.weight", QUIRE_DIM_EMBD_LAYER, ONE,
        M(layer_embd_norm)),
    ROW(LAYER_EMBD, LAYER, "inp_gate.weight", EMBD, QUIRE_DIM_EMBD_LAYER, L(embd_gate)),
    ROW(LAYER_EMBD, LAYER, "proj.weight", QUIRE_DIM_EMBD_LAYER, EMBD, L(embd_map)),
    ROW(LAYER_EMBD, LAYER, "post_norm.weight", EMBD, ONE, L(embd_post_norm)),
    ROW(OUT_SCALE, LAYER, "layer_output_scale.weight", ONE, ONE, L(out_scale)),
    STREAM_MAPS("altup_proj.weight", streams_in),
    STREAM_MAPS("altup_unembd_proj.weight", streams_out),
    ROW(STREAMS, LAYER, "altup_router.weight", EMBD, STREAMS, L(stream_router)),
    ROW(STREAMS, LAYER, "altup_router_norm.weight", EMBD, ONE, L(stream_router_norm)),
    ROW(STREAMS, LAYER, "altup_predict_coef.weight", STREAMS, QUIRE_DIM_STREAMS_SQUARED,
        L(stream_predict)),
    ROW(STREAMS, LAYER, "altup_correct_coef.weight", STREAMS, STREAMS, L(stream_correct)),
    ROW(STREAMS, LAYER, "altup_correct_scale.weight", EMBD, ONE, L(stream_scale)),
    ROW(STREAMS, LAYER, "laurel_l.weight", EMBD, QUIRE_DIM_LAUREL, L(laurel_in)),
    ROW(STREAMS, LAYER, "laurel_r.weight", QUIRE_DIM_LAUREL, EMBD, L(laurel_out)),
    ROW(STREAMS, LAYER, "laurel_post_norm.weight", EMBD, ONE, L(laurel_norm)),
    ROW(KV_MAP, LAYER, "attn_k_gate.0", GATE, ONE, L(k_gate[0])),
    ROW(KV_MAP, LAYER, "attn_k_gate.1", GATE, ONE, L(k_gate[1])),
    ROW(KV_MAP, LAYER, "attn_v_gate.0", GATE, ONE, L(v_gate[0])),
    ROW(KV_MAP, LAYER, "attn_v_gate.1", GATE, ONE, L(v_gate[1])),
};

#define N_ROWS (sizeof(table) / sizeof(table[0]))
_Static_assert(N_ROWS <= QUIRE_TENSOR_ROWS_MAX, "callers count tensors by row");

const quire_tensor_row *quire_tensor_row_get(size_t i)
{
    return i < N_ROWS ? &table[i] : NULL;
}

static bool has_network(const quire_model_desc *desc, uint32_t il)
{
    return !quire_arch_row_get(desc->arch)->is_single || desc->mixer[il] == QUIRE_MIXER_NONE;
}

static bool has_experts(const quire_model_desc *desc, uint32_t il)
{
    const quire_expert_desc *e = &desc->experts;

    return il >= e->n_dense && (e->step <= 1 || (il + 1) % e->step == 0) && has_network(desc, il);
}

bool quire_tensor_is_in_layer(const quire_model_desc *desc, const quire_tensor_row *row,
                              uint32_t il)
{
    const bool is_shared =
        (row->part & (QUIRE_PART_EXPERTS_SHARED | QUIRE_PART_EXPERTS_SHARED_PLAIN)) != 0;

    switch (row->where) {
    case QUIRE_TENSOR_OF_LAYER:
        return true;
    case QUIRE_TENSOR_OF_ATTENTION_LAYER:
        return quire_mixer_attends(desc->mixer[il]);
    case QUIRE_TENSOR_OF_MAMBA_LAYER:
        return quire_mixer_is_mamba(desc->mixer[il]);
    case QUIRE_TENSOR_OF_DELTA_LAYER:
        return desc->mixer[il] == QUIRE_MIXER_DELTA_NET;
    case QUIRE_TENSOR_OF_CONV_LAYER:
        return desc->mixer[il] == QUIRE_MIXER_SHORT_CONV;
    case QUIRE_TENSOR_OF_STORED_LAYER:
        return desc->kv_map[il].stored >= 0;
    case QUIRE_TENSOR_OF_DENSE_LAYER:
        return (!has_experts(desc, il) || desc->experts.is_beside) && has_network(desc, il);
    case QUIRE_TENSOR_OF_EXPERT_LAYER:
        return has_experts(desc, il) && (!is_shared || desc->experts.n_ff_shared > 0);
    case QUIRE_TENSOR_OF_LATENT_Q:
        return desc->latent.n_q > 0;
    case QUIRE_TENSOR_OF_LATENT_PLAIN_Q:
        return desc->latent.n_q == 0;
    case QUIRE_TENSOR_OF_LATENT_SPLIT:
        return desc->latent.is_split;
    case QUIRE_TENSOR_OF_LATENT_JOINT:
        return !desc->latent.is_split;
    case QUIRE_TENSOR_OF_MODEL:
        break;
    }
    return false;
}

/* The sizes of latent attention. */
static int64_t latent_size(const quire_model_desc *desc, quire_dim which)
{
    const quire_latent_desc *l = &desc->latent;
    const int64_t n_head = desc->n_head;

    switch (which) {
    case QUIRE_DIM_LATENT:
        return desc->d_v;
    case QUIRE_DIM_LATENT_ROW:
        return desc->d_k;
    case QUIRE_DIM_LATENT_Q:
        return l->n_q;
    case QUIRE_DIM_LATENT_HEADS:
        return n_head * (l->d_plain + desc->rope.n_dims);
    case QUIRE_DIM_LATENT_PLAIN:
        return l->d_plain;
    case QUIRE_DIM_LATENT_OUT:
        return l->d_out;
    case QUIRE_DIM_LATENT_TOGETHER:
        return n_head * ((int64_t)l->d_plain + l->d_out);
    default:
        return 1;
    }
}

/* The sizes of Mamba-2. */
static int64_t mamba_size(const quire_recurrent_desc *r, quire_dim which)
{
    const int64_t inner = (int64_t)r->n_v_heads * r->d_head;

    switch (which) {
    case QUIRE_DIM_MAMBA_IN:
        return inner + r->conv_width + r->n_v_heads;
    case QUIRE_DIM_GROUPS:
        return r->n_k_heads;
    default:
        return inner / r->n_k_heads;
    }
}

int64_t quire_dim_size(const quire_model_desc *desc, quire_dim which, uint32_t layer)
{
    const quire_layer_sizes sizes = quire_layer_sizes_of(desc, layer);
    const int64_t q = (int64_t)desc->n_head * sizes.d_k;
    const int64_t k = (int64_t)sizes.n_kv_head * sizes.d_k;
    const int64_t v = (int64_t)sizes.n_kv_head * sizes.d_v;

    switch (which) {
    case QUIRE_DIM_EMBD:
        return desc->n_embd;
    case QUIRE_DIM_EMBD_LAYER:
        return desc->n_embd_layer;
    case QUIRE_DIM_EMBD_LAYERS:
        return (int64_t)desc->n_embd_layer * desc->n_layer;
    case QUIRE_DIM_EMBD_THRICE:
        return 3 * (int64_t)desc->n_embd;
    case QUIRE_DIM_Q_MAP:
        return quire_arch_row_get(desc->arch)->has_q_gate ? 2 * q : q;
    case QUIRE_DIM_CONV:
        return desc->recurrent.conv_width;
    case QUIRE_DIM_DELTA:
        return (int64_t)desc->recurrent.n_v_heads * desc->recurrent.d_head;
    case QUIRE_DIM_DELTA_HEADS:
        return desc->recurrent.n_v_heads;
    case QUIRE_DIM_DELTA_HEADS_TWICE:
        return 2 * (int64_t)desc->recurrent.n_v_heads;
    case QUIRE_DIM_DELTA_HEAD:
        return desc->recurrent.d_head;
    case QUIRE_DIM_TAPS:
        return desc->recurrent.conv_taps;
    case QUIRE_DIM_MAMBA_IN:
    case QUIRE_DIM_GROUPS:
    case QUIRE_DIM_GROUP:
        return mamba_size(&desc->recurrent, which);
    case QUIRE_DIM_FF:
        return sizes.n_ff;
    case QUIRE_DIM_FF_TWICE:
        return 2 * (int64_t)sizes.n_ff;
    case QUIRE_DIM_EMBD_EXPERT:
        return desc->experts.n_embd != 0 ? desc->experts.n_embd : desc->n_embd;
    case QUIRE_DIM_FF_EXPERT:
        return desc->experts.n_ff;
    case QUIRE_DIM_FF_EXPERT_TWICE:
        return 2 * (int64_t)desc->experts.n_ff;
    case QUIRE_DIM_FF_SHARED:
        return desc->experts.n_ff_shared;
    case QUIRE_DIM_EXPERTS:
        return desc->experts.router.n_experts;
    case QUIRE_DIM_HEADS:
        return desc->n_head;
    case QUIRE_DIM_Q:
        return q;
    case QUIRE_DIM_K:
        return k;
    case QUIRE_DIM_V:
        return v;
    case QUIRE_DIM_QKV:
        return q + k + v;
    case QUIRE_DIM_HEAD:
        return sizes.d_k;
    case QUIRE_DIM_VOCAB:
        return desc->n_vocab;
    case QUIRE_DIM_ROPE:
        return desc->rope.n_dims / 2;
    case QUIRE_DIM_MIX:
        return 2;
    case QUIRE_DIM_STREAMS:
        return QUIRE_STREAMS;
    case QUIRE_DIM_STREAMS_MORE:
        return QUIRE_STREAMS - 1;
    case QUIRE_DIM_STREAMS_SQUARED:
        return (int64_t)QUIRE_STREAMS * QUIRE_STREAMS;
    case QUIRE_DIM_LAUREL:
        return QUIRE_LAUREL_RANK;
    case QUIRE_DIM_O:
        return desc->latent.is_there ? (int64_t)desc->n_head * desc->latent.d_out : q;
    case QUIRE_DIM_GATE:
    case QUIRE_DIM_ONE:
        break;
    default:
        return latent_size(desc, which);
    }
    return 1;
}
