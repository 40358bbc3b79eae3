/* step_sizes.c - see step_sizes.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/step_sizes.h"

#include "base/check.h"
#include "base/hash.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The shortest contexts have batches of their own: quire_memory_tokens_max() asks for several. */
#define KEPT_MAX 16u

/* What the sizes depend on. */
typedef struct size_key {
    uint32_t n_batch;
    uint32_t n_threads;
    uint32_t set;
    uint64_t pairs; /* hash of the layers that round K and queries with each other in view */
} size_key;

typedef struct kept_size {
    size_key key; /* n_batch 0: unused */
    quire_graphs_size size;
} kept_size;

struct quire_step_sizes {
    const quire_model_desc *desc;
    quire_weights *outlines[QUIRE_MODEL_SETS_MAX];
    pthread_mutex_t mutex;            /* of all below, and of the outlines */
    quire_graph_op *ops;              /* [n_layer] */
    quire_graph_recurrent *recurrent; /* [n_layer] */
    quire_graph_exit exit;
    kept_size kept[KEPT_MAX];
    uint32_t next; /* place of the next result */
};

int quire_step_sizes_create(quire_step_sizes **out, const quire_model_desc *desc,
                            quire_weights *outlines[QUIRE_MODEL_SETS_MAX])
{
    quire_step_sizes *s = calloc(1, sizeof *s);

    *out = NULL;
    if (s == NULL || pthread_mutex_init(&s->mutex, NULL) != 0) {
        quire_weights_destroy_sets(outlines);
        free(s);
        return QUIRE_NOMEM;
    }
    s->desc = desc;
    memcpy(s->outlines, outlines, sizeof s->outlines);
    s->ops = calloc(desc->n_layer, sizeof *s->ops);
    s->recurrent = calloc(desc->n_layer, sizeof *s->recurrent);
    if (s->ops == NULL || s->recurrent == NULL) {
        quire_step_sizes_destroy(s);
        return QUIRE_NOMEM;
    }
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        s->ops[il].has_append = desc->kv_map[il].stored >= 0;
        s->ops[il].layer_index = il;
        s->recurrent[il] = (quire_graph_recurrent){ .taps = desc->recurrent.conv_taps,
                                                    .width = desc->recurrent.conv_width,
                                                    .shape = &desc->recurrent };
    }
    *out = s;
    return QUIRE_OK;
}

void quire_step_sizes_destroy(quire_step_sizes *s)
{
    if (s == NULL) {
        return;
    }
    quire_weights_destroy_sets(s->outlines);
    (void)pthread_mutex_destroy(&s->mutex);
    free(s->recurrent);
    free(s->ops);
    free(s);
}

/* The layout of K and V of each layer, and a hash of what the graphs depend on in it. Errors:
 * QUIRE_NOMEM. */
static int layers_set(quire_step_sizes *s, const quire_runtime_opts *opts, uint64_t *hash)
{
    const quire_model_desc *desc = s->desc;
    quire_kv_pair *pairs = NULL;
    quire_runtime_opts o = *opts;
    quire_kv_form form;

    if (o.kv_pairs == NULL) {
        pairs = calloc(desc->n_stored, sizeof *pairs);
        QUIRE_FAIL_IF(pairs == NULL, QUIRE_NOMEM);
        quire_kv_uniform(desc, (quire_kv_pair){ o.k_format, o.v_format }, pairs);
        o.kv_pairs = pairs;
    }
    form = quire_kv_form_of(desc, &o);
    *hash = QUIRE_HASH_INIT;
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        unsigned char is_paired = 0;

        if (quire_mixer_attends(desc->mixer[il])) {
            s->ops[il].layer = (quire_attn_layer){ 0 };
            (void)quire_kv_layout(&form, il, &s->ops[il].layer);
            is_paired = quire_attn_pairs_qk(&s->ops[il].layer) ? 1 : 0;
        }
        *hash = quire_hash_add(*hash, &is_paired, 1);
    }
    free(pairs);
    return QUIRE_OK;
}

static bool is_same(const size_key *a, const size_key *b)
{
    return a->n_batch == b->n_batch && a->n_threads == b->n_threads && a->set == b->set &&
           a->pairs == b->pairs;
}

static quire_graphs_size measure(quire_step_sizes *s, const size_key *key)
{
    const quire_graphs_opts graphs = { .desc = s->desc,
                                       .weights = s->outlines[key->set],
                                       .ops = s->ops,
                                       .recurrent = s->recurrent,
                                       .exit = &s->exit,
                                       .n_rows_max = key->n_batch,
                                       .n_threads = key->n_threads };
    kept_size *kept = &s->kept[s->next];
    quire_graphs_size size;

    if (quire_graphs_measure(&graphs, &size) < 0) {
        return (quire_graphs_size){ 0 };
    }
    *kept = (kept_size){ *key, size };
    s->next = (s->next + 1) % KEPT_MAX;
    return size;
}

quire_graphs_size quire_step_sizes_get(quire_step_sizes *s, const quire_runtime_opts *opts)
{
    size_key key = { .n_batch = opts->n_batch,
                     .n_threads = opts->n_threads,
                     .set = opts->weights_set };
    quire_graphs_size size = { 0 };
    bool is_found = false;

    QUIRE_CHECK(key.n_batch > 0 && key.n_threads > 0 && key.set < QUIRE_MODEL_SETS_MAX);
    (void)pthread_mutex_lock(&s->mutex);
    if (layers_set(s, opts, &key.pairs) == QUIRE_OK) {
        for (uint32_t i = 0; !is_found && i < KEPT_MAX; i++) {
            is_found = is_same(&s->kept[i].key, &key);
            size = is_found ? s->kept[i].size : size;
        }
        size = is_found ? size : measure(s, &key);
    }
    (void)pthread_mutex_unlock(&s->mutex);
    return size;
}

uint32_t quire_step_sizes_layer_side(const quire_step_sizes *s, uint32_t set, uint32_t layer)
{
    QUIRE_CHECK(set < QUIRE_MODEL_SETS_MAX && s->outlines[set] != NULL);
    return quire_weights_layer_side(s->outlines[set], layer);
}
