/* kv_identity.h - a name of 128 bits for all that KV bytes depend on beside the tokens.
 *
 * Runtimes with the same identity compute the same K and V for the same tokens, so pages of one may
 * be read by the other: in another process, after a restart, on another machine of the same kind.
 * The facts:
 *
 *   the model      fingerprint, samples of the weights, shapes, rope, which layer reads which KV
 *   the form       formats by layer and side, of states, rotation, rounding rule, page size, layout
 *   the reading    the distance rule of sealed formats: the KV of deeper layers depends on it
 *   the kernels    those of attention and of linear maps, as far as their bits differ
 *
 * Threads, batches, budgets and context length are not among the facts. (Linear maps of ggml depend
 * on the batch; both results are valid answers, see docs/architecture.md.)
 *
 * The numbers below are versions of rules in the code. A commit that changes a rule raises its
 * number, so that an older program's pages are not taken for this program's.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_KV_IDENTITY_H
#define QUIRE_MODEL_KV_IDENTITY_H

#include "model/kv_formats.h"
#include "model/model.h"
#include "model/runtime.h"

#define QUIRE_KV_IDENTITY_VERSION 1u /* which facts count, and how they are written */
#define QUIRE_KV_LAYOUT_VERSION   1u /* where bytes lie: quire_kv_layout(), quire/codec.h */
#define QUIRE_KV_CODEC_VERSION    1u /* how values become codes: scales, levels, rounding alone */
#define QUIRE_KV_ROTATION_VERSION 1u /* the transform behind quire_hadamard() */
#define QUIRE_KV_ROUNDING_VERSION 1u /* rounding in view of queries: quire_attn_pairs_qk() */
#define QUIRE_KV_KERNELS_VERSION  5u /* order of additions in attention, products and the graph */

/* A stored layer's K and V. */
typedef struct quire_kv_identity_layer {
    quire_format k_format;
    quire_format v_format;
    uint32_t rotate_k; /* Hadamard block, 0 = none */
    uint32_t rotate_v;
    bool pairs_qk; /* K and queries are rounded with each other in view */
} quire_kv_identity_layer;

/* All facts. Pointers are borrowed. */
typedef struct quire_kv_identity_facts {
    const quire_model_desc *desc;
    const unsigned char *weights;          /* [16], quire_weights.digest */
    const quire_kv_identity_layer *stored; /* [desc->n_stored] */
    uint32_t page_tokens;
    uint32_t kv_recent; /* tokens; count where a format is sealed */
    uint32_t kv_sinks;
    quire_format state_format; /* counts with recurrent layers */
    bool has_window_group;     /* pages of stored layers with windows are apart (quire_kv_groups) */
    bool has_bounds;           /* pages have bounds of K */
    bool is_long; /* the frequency factors are those of long contexts; false without factors */
    const char *attn_isa; /* quire_attn_workspace_isa(), or quire_split_rounding_of(), or
                             quire_split_rounding() */
    const char *ggml;     /* quire_backend_kernels() */
    uint32_t versions[6]; /* as defined above, in that order */
} quire_kv_identity_facts;

#define QUIRE_KV_IDENTITY_VERSIONS                                                                 \
    {                                                                                              \
        QUIRE_KV_IDENTITY_VERSION, QUIRE_KV_LAYOUT_VERSION, QUIRE_KV_CODEC_VERSION,                \
            QUIRE_KV_ROTATION_VERSION, QUIRE_KV_ROUNDING_VERSION, QUIRE_KV_KERNELS_VERSION         \
    }

/* The identity of these facts, for quire_prefix_key. The same numbers on every machine. */
void quire_kv_identity_make(const quire_kv_identity_facts *facts, uint64_t identity[2]);

/* The identity of a runtime. */
void quire_kv_identity_get(const quire_runtime *runtime, uint64_t identity[2]);

#endif /* QUIRE_MODEL_KV_IDENTITY_H */
