/* weights.c - see weights.h.
 *
 * Loading goes in three passes over one list of wanted tensors: place (which kind of buffer holds
 * each tensor), allocate (one ggml context and buffer per kind), fill. A kind is the file mapping,
 * a plain CPU buffer (a mapped tensor that is not aligned as ggml wants it), panels for our own
 * products (one mapping, in huge pages where there are any), or one extra buffer type.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/panels.h"
#include "model/weights_digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>

#define KIND_MAPPED    0u
#define KIND_PLAIN     1u
#define KIND_PANELS    2u
#define KIND_EXTRA     3u
#define EXTRA_MAX      8u
#define KINDS_MAX      (KIND_EXTRA + EXTRA_MAX)
#define LAYER_TENSORS  (18u + 2u * QUIRE_ATTN_SOURCES_MAX)
#define GLOBAL_TENSORS 5u

typedef struct weight_kind {
    ggml_backend_buffer_type_t buft; /* NULL for the mapping and for panels */
    struct ggml_context *ctx;        /* its tensors; NULL while it has none */
    ggml_backend_buffer_t buffer;
} weight_kind;

/* One wanted tensor. */
typedef struct weight_slot {
    struct ggml_tensor **into;
    struct ggml_tensor *meta; /* in the file's context */
    uint64_t offset;          /* of its data in the file */
    uint32_t kind;
} weight_slot;

struct quire_weights_store {
    void *map;
    size_t map_bytes;
    weight_kind kinds[KINDS_MAX];
    uint32_t n_kinds;
    weight_slot *slots;
    uint32_t n_slots;
    const quire_matmul_kernels *kernels; /* NULL: no panels */
    quire_matmul_weight *maps;           /* [n_slots], of those in panels */
    quire_matmul_weight *joint;          /* [n_layer][2] */
    unsigned char *panels;
    size_t panels_bytes;
};

/* What the loaders below share. */
typedef struct weight_load {
    quire_weights *weights;
    const quire_gguf *file;
    const quire_model_desc *desc;
    const quire_model_opts *opts;
    quire_error *err;
} weight_load;

typedef enum weight_need {
    NEED_NOT,
    NEED_IF_THERE,
    NEED_ALWAYS
} weight_need;

typedef enum weight_use {
    USE_PRODUCT, /* src0 of a matrix product: worth repacking */
    USE_ROWS,    /* rows are looked up */
    USE_VECTOR   /* f32, added or multiplied */
} weight_use;

typedef struct weight_want {
    const char *name; /* of a layer: without "blk.N." */
    struct ggml_tensor **into;
    int64_t ne0, ne1; /* ne1 = 1 for a vector */
    weight_use use;
    weight_need need;
} weight_want;

/* ---- pass 1: place ---- */

/* Ask the CPU device whether it multiplies with w from this buffer type. */
static bool extra_buft_takes(ggml_backend_buffer_type_t buft, const struct ggml_tensor *meta)
{
    struct ggml_init_params params = { .mem_size = 4 * ggml_tensor_overhead(), .no_alloc = true };
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor w = *meta;
    bool takes = false;

    if (ctx == NULL) {
        return false;
    }
    /* A buffer of no bytes: the device only looks at its type. */
    w.buffer = ggml_backend_buft_alloc_buffer(buft, 0);
    if (w.buffer != NULL) {
        struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w.ne[0], 512);

        takes = ggml_backend_dev_supports_op(quire_backend_cpu(), ggml_mul_mat(ctx, &w, x));
        ggml_backend_buffer_free(w.buffer);
    }
    ggml_free(ctx);
    return takes;
}

static uint32_t kind_choose(const weight_load *load, const struct ggml_tensor *meta,
                            uint64_t offset, weight_use use)
{
    const struct quire_weights_store *store = load->weights->store;

    if (use == USE_PRODUCT && store->kernels != NULL && quire_panels_take(meta)) {
        return KIND_PANELS;
    }
    if (use == USE_PRODUCT && !load->opts->no_repack) {
        for (uint32_t i = KIND_EXTRA; i < store->n_kinds; i++) {
            if (extra_buft_takes(store->kinds[i].buft, meta)) {
                return i;
            }
        }
    }
    return offset % ggml_backend_buft_get_alignment(store->kinds[KIND_PLAIN].buft) == 0
               ? KIND_MAPPED
               : KIND_PLAIN;
}

/* The description was checked against the file's tensors, so every needed tensor exists and has the
 * right shape. */
static void want(weight_load *load, const weight_want *w)
{
    struct quire_weights_store *store = load->weights->store;
    struct ggml_tensor *meta = ggml_get_tensor(quire_gguf_meta(load->file), w->name);
    weight_slot *slot;

    if (w->need == NEED_NOT || (w->need == NEED_IF_THERE && meta == NULL)) {
        return;
    }
    QUIRE_CHECK(meta != NULL && meta->ne[0] == w->ne0 && meta->ne[1] == w->ne1);
    QUIRE_CHECK(meta->ne[2] == 1 && meta->ne[3] == 1);
    QUIRE_CHECK(w->use != USE_VECTOR || meta->type == GGML_TYPE_F32);
    QUIRE_CHECK(store->n_slots < load->desc->n_layer * LAYER_TENSORS + GLOBAL_TENSORS);
    slot = &store->slots[store->n_slots++];
    slot->into = w->into;
    slot->meta = meta;
    slot->offset = quire_gguf_tensor_offset(load->file, w->name);
    slot->kind = kind_choose(load, meta, slot->offset, w->use);
}

static void want_globals(weight_load *load)
{
    const quire_model_desc *desc = load->desc;
    quire_weights *w = load->weights;
    const int64_t n_embd = desc->n_embd, n_vocab = desc->n_vocab;
    const char *head = desc->has_tied_output ? "token_embd.weight" : "output.weight";
    /* As in libllama: an output bias is qwen2's, frequency factors are llama's; quire has the
     * latter, too. */
    const weight_need bias = desc->arch == QUIRE_ARCH_QWEN2 ? NEED_IF_THERE : NEED_NOT;
    const bool has_freqs = desc->arch == QUIRE_ARCH_LLAMA || desc->arch == QUIRE_ARCH_QUIRE;
    const weight_need freqs = has_freqs ? NEED_IF_THERE : NEED_NOT;
    const weight_want list[GLOBAL_TENSORS] = {
        { "token_embd.weight", &w->tok_embd, n_embd, n_vocab, USE_ROWS, NEED_ALWAYS },
        { "output_norm.weight", &w->output_norm, n_embd, 1, USE_VECTOR, NEED_ALWAYS },
        { head, &w->output, n_embd, n_vocab, USE_PRODUCT, NEED_ALWAYS },
        { "output.bias", &w->output_b, n_vocab, 1, USE_VECTOR, bias },
        { "rope_freqs.weight", &w->rope_freqs, desc->rope.n_dims / 2, 1, USE_VECTOR, freqs },
    };

    for (size_t i = 0; i < GLOBAL_TENSORS; i++) {
        want(load, &list[i]);
    }
}

/* The gates of a layer's sources, in whichever of their shapes. */
static void want_gates(weight_load *load, uint32_t il)
{
    quire_layer_weights *l = &load->weights->layers[il];
    char name[GGML_MAX_NAME];

    for (uint32_t i = 0; i < 2 * QUIRE_ATTN_SOURCES_MAX; i++) {
        const bool is_k = i < QUIRE_ATTN_SOURCES_MAX;
        const uint32_t source = i % QUIRE_ATTN_SOURCES_MAX;
        const struct ggml_tensor *meta;

        (void)snprintf(name, sizeof name, "blk.%u.attn_%c_gate.%u", il, is_k ? 'k' : 'v', source);
        meta = ggml_get_tensor(quire_gguf_meta(load->file), name);
        if (meta != NULL) {
            want(load, &(weight_want){ name, is_k ? &l->k_gate[source] : &l->v_gate[source],
                                       meta->ne[0], meta->ne[1], USE_VECTOR, NEED_ALWAYS });
        }
    }
}

static void want_layer(weight_load *load, uint32_t il)
{
    const quire_model_desc *desc = load->desc;
    quire_layer_weights *l = &load->weights->layers[il];
    const int64_t n_embd = desc->n_embd, n_ff = desc->n_ff;
    const int64_t n_q = (int64_t)desc->n_head * desc->d_k;
    const int64_t n_k = (int64_t)desc->n_kv_head * desc->d_k;
    const int64_t n_v = (int64_t)desc->n_kv_head * desc->d_v;
    const int64_t n_o = (int64_t)desc->n_head * desc->d_v;
    const weight_need qkv_bias = desc->has_qkv_bias ? NEED_ALWAYS : NEED_NOT;
    const weight_need qk_norm = desc->has_qk_norm ? NEED_ALWAYS : NEED_NOT;
    const weight_need kv = desc->kv_map[il].stored >= 0 ? NEED_ALWAYS : NEED_NOT;
    const weight_need bias = desc->arch == QUIRE_ARCH_LLAMA ? NEED_IF_THERE : NEED_NOT;
    const weight_want list[] = {
        { "attn_norm.weight", &l->attn_norm, n_embd, 1, USE_VECTOR, NEED_ALWAYS },
        { "attn_q.weight", &l->wq, n_embd, n_q, USE_PRODUCT, NEED_ALWAYS },
        { "attn_q.bias", &l->bq, n_q, 1, USE_VECTOR, qkv_bias },
        { "attn_k.weight", &l->wk, n_embd, n_k, USE_PRODUCT, kv },
        { "attn_k.bias", &l->bk, n_k, 1, USE_VECTOR, qkv_bias },
        { "attn_v.weight", &l->wv, n_embd, n_v, USE_PRODUCT, kv },
        { "attn_v.bias", &l->bv, n_v, 1, USE_VECTOR, qkv_bias },
        { "attn_output.weight", &l->wo, n_o, n_embd, USE_PRODUCT, NEED_ALWAYS },
        { "attn_output.bias", &l->bo, n_embd, 1, USE_VECTOR, bias },
        { "attn_q_norm.weight", &l->q_norm, desc->d_k, 1, USE_VECTOR, qk_norm },
        { "attn_k_norm.weight", &l->k_norm, desc->d_k, 1, USE_VECTOR,
          kv == NEED_NOT ? NEED_NOT : qk_norm },
        { "attn_k_mix", &l->k_mix, 2, 1, USE_VECTOR, NEED_IF_THERE },
        { "attn_v_mix", &l->v_mix, 2, 1, USE_VECTOR, NEED_IF_THERE },
        { "ffn_norm.weight", &l->ffn_norm, n_embd, 1, USE_VECTOR, NEED_ALWAYS },
        { "ffn_gate.weight", &l->gate, n_embd, n_ff, USE_PRODUCT, NEED_ALWAYS },
        { "ffn_gate.bias", &l->gate_b, n_ff, 1, USE_VECTOR, bias },
        { "ffn_up.weight", &l->up, n_embd, n_ff, USE_PRODUCT, NEED_ALWAYS },
        { "ffn_up.bias", &l->up_b, n_ff, 1, USE_VECTOR, bias },
        { "ffn_down.weight", &l->down, n_ff, n_embd, USE_PRODUCT, NEED_ALWAYS },
        { "ffn_down.bias", &l->down_b, n_embd, 1, USE_VECTOR, bias },
    };
    char name[GGML_MAX_NAME];

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        weight_want w = list[i];

        (void)snprintf(name, sizeof name, "blk.%u.%s", il, list[i].name);
        w.name = name;
        want(load, &w);
    }
}

/* ---- pass 2: allocate ---- */

static int kinds_init(struct quire_weights_store *store)
{
    ggml_backend_buffer_type_t *extra = quire_backend_extra_bufts();

    store->kinds[KIND_PLAIN].buft = ggml_backend_dev_buffer_type(quire_backend_cpu());
    store->n_kinds = KIND_EXTRA;
    for (; extra != NULL && *extra != NULL && store->n_kinds < KINDS_MAX; extra++) {
        store->kinds[store->n_kinds++].buft = *extra;
    }
    return store->kinds[KIND_PLAIN].buft != NULL ? QUIRE_OK : QUIRE_UNSUPP;
}

static int map_file(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    const char *path = quire_gguf_path(load->file);
    const uint64_t file_bytes = quire_gguf_file_bytes(load->file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *map = MAP_FAILED;
    off_t end;

    if (fd < 0) {
        return quire_error_set_errno(load->err, errno, "%s: cannot open", path);
    }
    /* The offsets were checked against the length at open: a file that shrank since would fault. */
    end = lseek(fd, 0, SEEK_END);
    if (end < 0 || (uint64_t)end < file_bytes) {
        (void)close(fd);
        return quire_error_set(load->err, QUIRE_IO, "%s: the file changed while it was loaded",
                               path);
    }
    map = mmap(NULL, (size_t)file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (map == MAP_FAILED) {
        return quire_error_set_errno(load->err, errno, "%s: cannot map %llu bytes", path,
                                     (unsigned long long)file_bytes);
    }
    (void)posix_madvise(map, (size_t)file_bytes, POSIX_MADV_WILLNEED);
    store->map = map;
    store->map_bytes = (size_t)file_bytes;
    return QUIRE_OK;
}

/* Create the tensors of every kind in use. */
static int tensors_create(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    struct ggml_init_params params = { .mem_size = store->n_slots * ggml_tensor_overhead(),
                                       .no_alloc = true };

    for (uint32_t i = 0; i < store->n_slots; i++) {
        weight_slot *slot = &store->slots[i];
        weight_kind *kind = &store->kinds[slot->kind];

        if (kind->ctx == NULL) {
            kind->ctx = ggml_init(params);
            if (kind->ctx == NULL) {
                return QUIRE_NOMEM;
            }
        }
        *slot->into = ggml_dup_tensor(kind->ctx, slot->meta);
        ggml_set_name(*slot->into, ggml_get_name(slot->meta));
    }
    return QUIRE_OK;
}

/* Panels that follow each other are one matrix: *joint of n tensors, or NULL. */
static quire_matmul_weight *join(quire_matmul_weight *joint, struct ggml_tensor *const *tensors,
                                 uint32_t n)
{
    const quire_matmul_weight *first = quire_weights_panels(tensors[0]);

    if (first == NULL) {
        return NULL;
    }
    *joint = *first;
    for (uint32_t i = 1; i < n; i++) {
        const quire_matmul_weight *next = quire_weights_panels(tensors[i]);
        const size_t bytes = quire_matmul_weight_bytes(joint->type, joint->n_in, joint->n_out);

        if (next == NULL || next->type != joint->type || next->n_in != joint->n_in ||
            next->panels != joint->panels + bytes) {
            return NULL;
        }
        joint->n_out += next->n_out;
    }
    return joint;
}

static void join_layers(quire_weights *weights)
{
    for (uint32_t il = 0; il < weights->n_layer; il++) {
        quire_layer_weights *l = &weights->layers[il];
        quire_matmul_weight *joint = weights->store->joint + (size_t)2 * il;

        if (l->wk != NULL) {
            l->qkv = join(joint, (struct ggml_tensor *[]){ l->wq, l->wk, l->wv }, 3);
        }
        l->gate_up = join(joint + 1, (struct ggml_tensor *[]){ l->gate, l->up }, 2);
    }
}

/* One mapping for all panels. */
static int panels_create(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    unsigned char *at;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        if (store->slots[i].kind == KIND_PANELS) {
            store->panels_bytes += ggml_nbytes(store->slots[i].meta);
        }
    }
    if (store->panels_bytes == 0) {
        return QUIRE_OK;
    }
    store->maps = calloc(store->n_slots, sizeof *store->maps);
    store->joint = calloc(load->weights->n_layer, 2 * sizeof *store->joint);
    QUIRE_FAIL_IF(store->maps == NULL || store->joint == NULL, QUIRE_NOMEM);
    at =
        mmap(NULL, store->panels_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return quire_error_set_errno(load->err, errno, "%s: cannot map %zu bytes for weights",
                                     quire_gguf_path(load->file), store->panels_bytes);
    }
    store->panels = at;
    (void)madvise(at, store->panels_bytes, MADV_HUGEPAGE);
    for (uint32_t i = 0; i < store->n_slots; i++) {
        weight_slot *slot = &store->slots[i];

        if (slot->kind == KIND_PANELS) {
            store->maps[i] = quire_panels_weight(slot->meta, store->kernels);
            store->maps[i].panels = at;
            (*slot->into)->extra = &store->maps[i];
            at += ggml_nbytes(slot->meta);
        }
    }
    join_layers(load->weights);
    return QUIRE_OK;
}

static int buffers_create(weight_load *load)
{
    struct quire_weights_store *store = load->weights->store;
    size_t tensor_bytes_max = 0;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        size_t n = ggml_nbytes(store->slots[i].meta);

        tensor_bytes_max = n > tensor_bytes_max ? n : tensor_bytes_max;
    }
    for (uint32_t i = 0; i < store->n_kinds; i++) {
        weight_kind *kind = &store->kinds[i];

        if (kind->ctx == NULL || i == KIND_PANELS) {
            continue;
        }
        kind->buffer =
            i == KIND_MAPPED
                ? ggml_backend_dev_buffer_from_host_ptr(quire_backend_cpu(), store->map,
                                                        store->map_bytes, tensor_bytes_max)
                : ggml_backend_alloc_ctx_tensors_from_buft(kind->ctx, kind->buft);
        if (kind->buffer == NULL) {
            return quire_error_set(load->err, QUIRE_NOMEM, "%s: no memory for the weights",
                                   quire_gguf_path(load->file));
        }
        ggml_backend_buffer_set_usage(kind->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    return panels_create(load);
}

/* ---- pass 3: fill ---- */

/* The copied pages will not be read again: give them back instead of counting them twice. */
static void source_drop(const struct quire_weights_store *store, uint64_t offset, size_t n_bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = (offset + page - 1) / page * page;
    const uint64_t end = (offset + n_bytes) / page * page;

    if (end > begin) {
        (void)madvise((char *)store->map + begin, (size_t)(end - begin), MADV_DONTNEED);
    }
}

/* The name of the memory from which the tensor is multiplied. */
static const char *place_of(const struct quire_weights_store *store, uint32_t kind)
{
    if (kind == KIND_PANELS) {
        return "panels";
    }
    return kind >= KIND_EXTRA ? ggml_backend_buft_name(store->kinds[kind].buft) : "plain";
}

static int tensors_fill(weight_load *load)
{
    quire_weights *weights = load->weights;
    struct quire_weights_store *store = weights->store;
    uint64_t total_bytes = 1, done_bytes = 0;

    for (uint32_t i = 0; i < store->n_slots; i++) {
        total_bytes += ggml_nbytes(store->slots[i].meta);
    }
    for (uint32_t i = 0; i < store->n_slots; i++) {
        const weight_slot *slot = &store->slots[i];
        const size_t n_bytes = ggml_nbytes(slot->meta);
        char *source = (char *)store->map + slot->offset;

        QUIRE_CHECK(slot->offset <= store->map_bytes && n_bytes <= store->map_bytes - slot->offset);
        quire_weights_digest_add(weights->digest, slot->meta, place_of(store, slot->kind), source);
        if (slot->kind == KIND_MAPPED) {
            if (ggml_backend_tensor_alloc(store->kinds[KIND_MAPPED].buffer, *slot->into, source) !=
                GGML_STATUS_SUCCESS) {
                return QUIRE_NOMEM;
            }
            weights->mapped_bytes += n_bytes;
        } else {
            if (slot->kind == KIND_PANELS) {
                quire_matmul_weight_pack(&store->maps[i], source);
            } else {
                ggml_backend_tensor_set(*slot->into, source, 0, n_bytes);
            }
            source_drop(store, slot->offset, n_bytes);
            weights->repacked_bytes += n_bytes;
        }
        done_bytes += n_bytes;
        if (load->opts->progress != NULL) {
            load->opts->progress(load->opts->progress_ctx,
                                 (float)((double)done_bytes / (double)total_bytes));
        }
    }
    return QUIRE_OK;
}

/* ---- */

/* Pass 1: the slots of all wanted tensors. load->weights stays the caller's, also on failure. */
static int weights_place(weight_load *load)
{
    const quire_model_desc *desc = load->desc;
    quire_weights *weights = load->weights;
    struct quire_weights_store *store = calloc(1, sizeof *store);

    weights->store = store;
    weights->n_layer = desc->n_layer;
    weights->layers = calloc(desc->n_layer, sizeof *weights->layers);
    QUIRE_FAIL_IF(weights->layers == NULL || store == NULL, QUIRE_NOMEM);
    store->kernels = load->opts->no_repack ? NULL : quire_matmul_kernels_find(NULL);
    store->slots = calloc(desc->n_layer * LAYER_TENSORS + GLOBAL_TENSORS, sizeof *store->slots);
    QUIRE_FAIL_IF(store->slots == NULL, QUIRE_NOMEM);
    QUIRE_TRY(kinds_init(store));
    want_globals(load);
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        want_layer(load, il);
        want_gates(load, il);
    }
    return QUIRE_OK;
}

/* Say what failed if nobody else did. */
static int fail_load(const weight_load *load, int rc)
{
    if (rc < 0 && load->err != NULL && load->err->status == QUIRE_OK) {
        quire_error_set(load->err, rc, "%s: cannot load the weights: %s",
                        quire_gguf_path(load->file), quire_status_text(rc));
    }
    return rc;
}

int quire_weights_load(quire_weights **out, const quire_gguf *file, const quire_model_desc *desc,
                       const quire_model_opts *opts, quire_error *err)
{
    weight_load load = { .file = file, .desc = desc, .opts = opts, .err = err };
    int rc = QUIRE_NOMEM;

    *out = NULL;
    load.weights = calloc(1, sizeof *load.weights);
    if (load.weights == NULL) {
        return fail_load(&load, rc);
    }
    if ((rc = weights_place(&load)) < 0 || (rc = map_file(&load)) < 0 ||
        (rc = tensors_create(&load)) < 0 || (rc = buffers_create(&load)) < 0 ||
        (rc = tensors_fill(&load)) < 0) {
        quire_weights_destroy(load.weights);
        return fail_load(&load, rc);
    }
    *out = load.weights;
    return QUIRE_OK;
}

int quire_weights_resident_bytes(uint64_t *out, const quire_gguf *file,
                                 const quire_model_desc *desc, const quire_model_opts *opts,
                                 quire_error *err)
{
    weight_load load = { .file = file, .desc = desc, .opts = opts, .err = err };
    uint64_t embd_offset = UINT64_MAX;
    int rc = QUIRE_NOMEM;

    *out = 0;
    load.weights = calloc(1, sizeof *load.weights);
    if (load.weights != NULL && (rc = weights_place(&load)) == QUIRE_OK) {
        const struct quire_weights_store *store = load.weights->store;

        for (uint32_t i = 0; i < store->n_slots; i++) {
            const weight_slot *slot = &store->slots[i];

            /* A tied output matrix that is used in place is the embedding's own bytes. */
            if (slot->kind != KIND_MAPPED || slot->offset != embd_offset) {
                *out += ggml_nbytes(slot->meta);
            }
            embd_offset = i == 0 && slot->kind == KIND_MAPPED ? slot->offset : embd_offset;
        }
    }
    quire_weights_destroy(load.weights);
    return fail_load(&load, rc);
}

void quire_weights_destroy(quire_weights *weights)
{
    struct quire_weights_store *store;

    if (weights == NULL) {
        return;
    }
    store = weights->store;
    if (store != NULL) {
        for (uint32_t i = 0; i < store->n_kinds; i++) {
            ggml_backend_buffer_free(store->kinds[i].buffer);
            ggml_free(store->kinds[i].ctx);
        }
        if (store->map != NULL) {
            (void)munmap(store->map, store->map_bytes);
        }
        if (store->panels != NULL) {
            (void)munmap(store->panels, store->panels_bytes);
        }
        free(store->joint);
        free(store->maps);
        free(store->slots);
    }
    free(store);
    free(weights->layers);
    free(weights);
}
