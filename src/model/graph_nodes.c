/* graph_nodes.c - the most tensors of a graph; see graph_build.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"

#define NODES_PER_LAYER 80u
#define NODES_FIXED     40u
#define NODES_STREAMS   48u /* of a layer */

size_t quire_graph_nodes(const quire_graphs *graphs, uint32_t n_rows, uint32_t n_logits)
{
    const quire_graphs_opts *o = &graphs->opts;
    const size_t block_bytes = graphs->linear_block_bytes;
    const bool has_streams = quire_arch_row_get(o->desc->arch)->has_streams;
    const size_t n_of_layer = NODES_PER_LAYER + (has_streams ? NODES_STREAMS : 0);
    size_t n = (size_t)o->desc->n_layer * n_of_layer + NODES_FIXED;

    for (uint32_t il = 0; il < o->desc->n_layer; il++) {
        const quire_layer_weights *l = &o->weights->layers[il];
        const struct ggml_tensor *maps[] = { l->wq,
                                             l->wk,
                                             l->wv,
                                             l->wo,
                                             l->attn_gate,
                                             l->gate,
                                             l->up,
                                             l->down,
                                             l->conv_in,
                                             l->wq_a,
                                             l->wkv_a,
                                             l->delta_z,
                                             l->delta_b,
                                             l->delta_a,
                                             l->embd_gate,
                                             l->embd_map,
                                             l->mamba_out,
                                             l->stream_router,
                                             l->stream_predict,
                                             l->stream_correct,
                                             l->laurel_in,
                                             l->laurel_out };
        const bool is_picked = il >= o->desc->last_stored;

        if (l->experts.router != NULL) {
            const uint32_t n_used = o->desc->experts.router.n_used;

            n += quire_graph_experts_nodes(&l->experts, n_used, n_rows, block_bytes);
            n += is_picked ? quire_graph_experts_nodes(&l->experts, n_used, n_logits, block_bytes)
                           : 0;
        }
        for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
            if (maps[i] != NULL) {
                n += quire_linear_nodes(maps[i], n_rows, block_bytes);
                n += is_picked ? quire_linear_nodes(maps[i], n_logits, block_bytes) : 0;
            }
        }
    }
    if (o->weights->layer_embd_map != NULL) {
        n += quire_linear_nodes(o->weights->layer_embd_map, n_rows, block_bytes);
    }
    for (uint32_t i = 0; has_streams && i + 1 < QUIRE_STREAMS; i++) {
        n += quire_linear_nodes(o->weights->streams_in[i], n_rows, block_bytes);
        n += quire_linear_nodes(o->weights->streams_out[i], n_rows, block_bytes);
    }
    return n + quire_linear_nodes(o->weights->output, n_logits, block_bytes);
}
