/* gguf_gen.c - the metadata first, then tensor after tensor in chunks of rows.
 *
 * SPDX-License-Identifier: MIT */
#include "gguf_gen.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <gguf.h>

#include "base/check.h"
#include "base/parse.h"
#include "base/rng.h"
#include "gguf_gen_scheme.h"
#include "gguf_gen_vocab.h"

#define CHUNK_VALUES  (1u << 18)
#define KEY_BYTES     96u
#define LAYER_TENSORS 20u /* more than any architecture here has */

static const gguf_gen_opts shapes[] = {
    { .arch = "llama",
      .name = "smollm2-135m",
      .n_layer = 30,
      .n_embd = 576,
      .n_ff = 1536,
      .n_head = 9,
      .n_kv_head = 3,
      .d_head = 64,
      .n_vocab = 49152,
      .n_ctx = 8192,
      .rope_base = 1e5f,
      .is_tied = true },
    { .arch = "llama",
      .name = "llama-1b",
      .n_layer = 16,
      .n_embd = 2048,
      .n_ff = 8192,
      .n_head = 32,
      .n_kv_head = 8,
      .d_head = 64,
      .n_vocab = 128256,
      .n_ctx = 131072,
      .rope_base = 5e5f,
      .rope_scaling = "llama3",
      .rope_factor = 32.0f,
      .rope_ctx_orig = 8192,
      .is_tied = true },
    { .arch = "llama",
      .name = "tinyllama-1.1b",
      .n_layer = 22,
      .n_embd = 2048,
      .n_ff = 5632,
      .n_head = 32,
      .n_kv_head = 4,
      .d_head = 64,
      .n_vocab = 32000,
      .n_ctx = 2048,
      .rope_base = 1e4f },
    { .arch = "llama",
      .name = "llama2-7b",
      .n_layer = 32,
      .n_embd = 4096,
      .n_ff = 11008,
      .n_head = 32,
      .n_kv_head = 32,
      .d_head = 128,
      .n_vocab = 32000,
      .n_ctx = 4096,
      .rope_base = 1e4f },
    { .arch = "llama",
      .name = "tiny-llama",
      .n_layer = 3,
      .n_embd = 128,
      .n_ff = 256,
      .n_head = 4,
      .n_kv_head = 2,
      .d_head = 32,
      .n_vocab = 512,
      .n_ctx = 512,
      .rope_base = 1e4f },
    { .arch = "qwen2",
      .name = "tiny-qwen2",
      .n_layer = 3,
      .n_embd = 128,
      .n_ff = 256,
      .n_head = 4,
      .n_kv_head = 2,
      .d_head = 32,
      .n_vocab = 512,
      .n_ctx = 512,
      .rope_base = 1e6f,
      .is_tied = true,
      .has_qkv_bias = true,
      .vocab = GGUF_GEN_VOCAB_BPE },
    { .arch = "qwen3",
      .name = "tiny-qwen3",
      .n_layer = 3,
      .n_embd = 128,
      .n_ff = 256,
      .n_head = 4,
      .n_kv_head = 2,
      .d_head = 48,
      .n_vocab = 512,
      .n_ctx = 512,
      .rope_base = 1e6f,
      .has_qk_norm = true,
      .vocab = GGUF_GEN_VOCAB_BPE },
    { .arch = "quire",
      .name = "tiny-quire",
      .n_layer = 4,
      .n_embd = 128,
      .n_ff = 256,
      .n_head = 4,
      .n_kv_head = 2,
      .d_head = 32,
      .n_vocab = 512,
      .n_ctx = 512,
      .rope_base = 1e4f,
      .is_tied = true,
      .has_qk_norm = true },
};

bool gguf_gen_shape(const char *name, gguf_gen_opts *out)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            *out = shapes[i];
            out->type = GGML_TYPE_Q8_0;
            return true;
        }
    }
    return false;
}

const char *gguf_gen_shape_name(unsigned i)
{
    return i < sizeof(shapes) / sizeof(shapes[0]) ? shapes[i].name : NULL;
}

/* What a tensor is filled with. */
typedef enum fill {
    FILL_MATRIX,    /* normal, variance gain^2 / columns */
    FILL_NORM,      /* 1 + small noise */
    FILL_BIAS,      /* small noise */
    FILL_GATE,      /* around 0.7: two sources of variance one sum to about one */
    FILL_ROPE_FREQS /* llama3's frequency factors */
} fill;

typedef struct plan_entry {
    struct ggml_tensor *tensor;
    fill how;
    float gain;
} plan_entry;

typedef struct plan {
    const gguf_gen_opts *opts;
    struct gguf_context *gguf;
    struct ggml_context *ggml;
    plan_entry *entries;
    size_t n;
} plan;

/* rows == 0: a vector. */
static void plan_add_typed(plan *p, const char *name, fill how, enum ggml_type type,
                           uint32_t columns, uint32_t rows)
{
    plan_entry *entry = &p->entries[p->n++];

    entry->how = how;
    entry->gain = 1.0f;
    entry->tensor = rows == 0 ? ggml_new_tensor_1d(p->ggml, type, columns)
                              : ggml_new_tensor_2d(p->ggml, type, columns, rows);
    ggml_set_name(entry->tensor, name);
    gguf_add_tensor(p->gguf, entry->tensor);
}

/* A vector in f32, or a matrix of the model's type. */
static void plan_add(plan *p, const char *name, fill how, uint32_t columns, uint32_t rows)
{
    plan_add_typed(p, name, how, rows == 0 ? GGML_TYPE_F32 : p->opts->type, columns, rows);
}

static const char *layer_name(char *buffer, uint32_t layer, const char *suffix)
{
    (void)snprintf(buffer, GGML_MAX_NAME, "blk.%u.%s", layer, suffix);
    return buffer;
}

static void plan_gates(plan *p, uint32_t layer, bool is_k)
{
    const gguf_gen_opts *o = p->opts;
    const uint32_t columns = o->gates == GGUF_GEN_GATES_HALF ? o->d_head / 2 : o->d_head;

    for (uint32_t i = 0; i < gguf_gen_n_gates(o, layer, is_k); i++) {
        const bool is_by_head = o->gates == GGUF_GEN_GATES_HEADS && o->n_kv_head > 1;
        char suffix[32], name[GGML_MAX_NAME];

        (void)snprintf(suffix, sizeof(suffix), "attn_%c_gate.%u", is_k ? 'k' : 'v', i);
        plan_add_typed(p, layer_name(name, layer, suffix), FILL_GATE, GGML_TYPE_F32, columns,
                       is_by_head ? o->n_kv_head : 0);
    }
}

static void plan_layer(plan *p, uint32_t layer)
{
    const gguf_gen_opts *o = p->opts;
    uint32_t q_rows = o->n_head * o->d_head;
    uint32_t kv_rows = o->n_kv_head * o->d_head;
    /* Two branches per layer are added to the residual stream: keep its variance near one. */
    float branch_gain = 1.0f / sqrtf(2.0f * (float)o->n_layer);
    const bool is_stored = gguf_gen_is_stored(o, layer);
    char name[GGML_MAX_NAME];

    plan_add(p, layer_name(name, layer, "attn_norm.weight"), FILL_NORM, o->n_embd, 0);
    plan_add(p, layer_name(name, layer, "attn_q.weight"), FILL_MATRIX, o->n_embd, q_rows);
    if (is_stored) {
        plan_add(p, layer_name(name, layer, "attn_k.weight"), FILL_MATRIX, o->n_embd, kv_rows);
        plan_add(p, layer_name(name, layer, "attn_v.weight"), FILL_MATRIX, o->n_embd, kv_rows);
    }
    if (is_stored && layer > 0 && o->has_mixes) {
        plan_add(p, layer_name(name, layer, "attn_k_mix"), FILL_GATE, 2, 0);
        plan_add(p, layer_name(name, layer, "attn_v_mix"), FILL_GATE, 2, 0);
    }
    plan_gates(p, layer, true);
    plan_gates(p, layer, false);
    if (o->has_qkv_bias) {
        plan_add(p, layer_name(name, layer, "attn_q.bias"), FILL_BIAS, q_rows, 0);
        plan_add(p, layer_name(name, layer, "attn_k.bias"), FILL_BIAS, kv_rows, 0);
        plan_add(p, layer_name(name, layer, "attn_v.bias"), FILL_BIAS, kv_rows, 0);
    }
    if (o->has_qk_norm) {
        plan_add(p, layer_name(name, layer, "attn_q_norm.weight"), FILL_NORM, o->d_head, 0);
        if (is_stored) {
            plan_add(p, layer_name(name, layer, "attn_k_norm.weight"), FILL_NORM, o->d_head, 0);
        }
    }
    plan_add(p, layer_name(name, layer, "attn_output.weight"), FILL_MATRIX, q_rows, o->n_embd);
    p->entries[p->n - 1].gain = branch_gain;
    plan_add(p, layer_name(name, layer, "ffn_norm.weight"), FILL_NORM, o->n_embd, 0);
    plan_add(p, layer_name(name, layer, "ffn_gate.weight"), FILL_MATRIX, o->n_embd, o->n_ff);
    plan_add(p, layer_name(name, layer, "ffn_up.weight"), FILL_MATRIX, o->n_embd, o->n_ff);
    plan_add(p, layer_name(name, layer, "ffn_down.weight"), FILL_MATRIX, o->n_ff, o->n_embd);
    p->entries[p->n - 1].gain = branch_gain;
}

static void plan_tensors(plan *p)
{
    const gguf_gen_opts *o = p->opts;

    plan_add(p, "token_embd.weight", FILL_MATRIX, o->n_embd, o->n_vocab);
    if (strcmp(o->rope_scaling, "llama3") == 0) {
        plan_add(p, "rope_freqs.weight", FILL_ROPE_FREQS, o->d_head / 2, 0);
    }
    for (uint32_t l = 0; l < o->n_layer; l++) {
        plan_layer(p, l);
    }
    plan_add(p, "output_norm.weight", FILL_NORM, o->n_embd, 0);
    if (!o->is_tied) {
        plan_add(p, "output.weight", FILL_MATRIX, o->n_embd, o->n_vocab);
    }
}

static const char *arch_key(char *buffer, const gguf_gen_opts *opts, const char *suffix)
{
    (void)snprintf(buffer, KEY_BYTES, "%s.%s", opts->arch, suffix);
    return buffer;
}

static int plan_keys(plan *p)
{
    const gguf_gen_opts *o = p->opts;
    struct gguf_context *g = p->gguf;
    char key[KEY_BYTES];

    gguf_set_val_str(g, "general.architecture", o->arch);
    gguf_set_val_str(g, "general.name", o->name);
    gguf_set_val_u32(g, arch_key(key, o, "block_count"), o->n_layer);
    gguf_set_val_u32(g, arch_key(key, o, "context_length"), o->n_ctx);
    gguf_set_val_u32(g, arch_key(key, o, "embedding_length"), o->n_embd);
    gguf_set_val_u32(g, arch_key(key, o, "feed_forward_length"), o->n_ff);
    gguf_set_val_u32(g, arch_key(key, o, "attention.head_count"), o->n_head);
    gguf_set_val_u32(g, arch_key(key, o, "attention.head_count_kv"), o->n_kv_head);
    if (o->d_head * o->n_head != o->n_embd) {
        gguf_set_val_u32(g, arch_key(key, o, "attention.key_length"), o->d_head);
        gguf_set_val_u32(g, arch_key(key, o, "attention.value_length"), o->d_head);
    }
    gguf_set_val_u32(g, arch_key(key, o, "rope.dimension_count"), o->d_head);
    gguf_set_val_f32(g, arch_key(key, o, "rope.freq_base"), o->rope_base);
    gguf_set_val_f32(g, arch_key(key, o, "attention.layer_norm_rms_epsilon"), 1e-5f);
    if (o->rope_scaling[0] != '\0' && strcmp(o->rope_scaling, "llama3") != 0) {
        gguf_set_val_str(g, arch_key(key, o, "rope.scaling.type"), o->rope_scaling);
        gguf_set_val_f32(g, arch_key(key, o, "rope.scaling.factor"), o->rope_factor);
        gguf_set_val_u32(g, arch_key(key, o, "rope.scaling.original_context_length"),
                         o->rope_ctx_orig);
    }
    gguf_gen_scheme_keys(g, o);
    return gguf_gen_vocab_add(g, o->vocab, o->n_vocab);
}

/* Close to normal (the sum of four uniforms), variance one, and 20 times cheaper than exact. */
static float cheap_normal(quire_rng *rng)
{
    uint64_t bits = quire_rng_next(rng);
    uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)((bits >> 16) & 0xffff) +
                   (uint32_t)((bits >> 32) & 0xffff) + (uint32_t)(bits >> 48);

    /* Mean 2 * 65535, variance 4 * 65536^2 / 12. */
    return ((float)sum - 131070.0f) * (1.0f / 37837.2f);
}

/* Llama 3.1's scaling: long waves slow down by the factor, short ones stay, with a ramp between
 * (low and high frequency factors 1 and 4, as in the models' config.json). */
static float rope_factor_at(const gguf_gen_opts *o, uint32_t i)
{
    const float low = 1.0f;
    const float high = 4.0f;
    float ctx = (float)o->rope_ctx_orig;
    float wave = 6.2831853f * powf(o->rope_base, 2.0f * (float)i / (float)o->d_head);
    float smooth = (ctx / wave - low) / (high - low);

    if (wave < ctx / high) {
        return 1.0f;
    }
    if (wave > ctx / low) {
        return o->rope_factor;
    }
    return 1.0f / ((1.0f - smooth) / o->rope_factor + smooth);
}

static void fill_values(const plan *p, const plan_entry *entry, quire_rng *rng, float *x, size_t n)
{
    float scale = entry->gain / sqrtf((float)entry->tensor->ne[0]);

    switch (entry->how) {
    case FILL_MATRIX:
        for (size_t i = 0; i < n; i++) {
            x[i] = scale * cheap_normal(rng);
        }
        break;
    case FILL_NORM:
        for (size_t i = 0; i < n; i++) {
            x[i] = 1.0f + 0.1f * cheap_normal(rng);
        }
        break;
    case FILL_GATE:
        for (size_t i = 0; i < n; i++) {
            x[i] = 0.7f + 0.2f * cheap_normal(rng);
        }
        break;
    case FILL_BIAS:
        for (size_t i = 0; i < n; i++) {
            x[i] = 0.1f * cheap_normal(rng);
        }
        break;
    case FILL_ROPE_FREQS:
        for (size_t i = 0; i < n; i++) {
            x[i] = rope_factor_at(p->opts, (uint32_t)i);
        }
        break;
    }
}

static bool pad_to(FILE *file, size_t written_bytes, size_t alignment)
{
    static const char zeros[64];
    size_t left = (alignment - written_bytes % alignment) % alignment;

    QUIRE_CHECK(left <= sizeof(zeros));
    return fwrite(zeros, 1, left, file) == left;
}

/* values and packed hold chunk_rows rows of the tensor. */
static bool tensor_write(const plan *p, const plan_entry *entry, FILE *file, float *values,
                         void *packed)
{
    const struct ggml_tensor *t = entry->tensor;
    size_t columns = (size_t)t->ne[0];
    size_t rows = (size_t)t->ne[1];
    size_t chunk_rows = CHUNK_VALUES / columns > 0 ? CHUNK_VALUES / columns : 1;
    quire_rng rng = { p->opts->seed };
    size_t written_bytes = 0;

    /* A stream of its own for every name: adding a tensor changes no other. */
    for (const char *c = t->name; *c != '\0'; c++) {
        rng.state = quire_rng_next(&rng) ^ (unsigned char)*c;
    }
    for (size_t row = 0; row < rows; row += chunk_rows) {
        size_t n_rows = rows - row < chunk_rows ? rows - row : chunk_rows;
        size_t bytes;

        fill_values(p, entry, &rng, values, n_rows * columns);
        bytes = ggml_quantize_chunk(t->type, values, packed, 0, (int64_t)n_rows, (int64_t)columns,
                                    NULL);
        if (fwrite(packed, 1, bytes, file) != bytes) {
            return false;
        }
        written_bytes += bytes;
    }
    return pad_to(file, written_bytes, gguf_get_alignment(p->gguf));
}

/* Bytes of the whole file. */
static uint64_t plan_bytes(const plan *p)
{
    uint64_t total_bytes = gguf_get_meta_size(p->gguf);
    const uint64_t alignment = gguf_get_alignment(p->gguf);

    for (size_t i = 0; i < p->n; i++) {
        total_bytes += (ggml_nbytes(p->entries[i].tensor) + alignment - 1) / alignment * alignment;
    }
    return total_bytes;
}

/* Refuse what the disk has no room for, before minutes are spent on filling it. What a file of that
 * name takes now will be free. */
static int room_check(const char *path, uint64_t need_bytes, quire_error *err)
{
    char folder[PATH_MAX];
    char *slash;
    struct statvfs disk;
    struct stat old = { 0 };
    uint64_t free_bytes;
    char need[16];
    char have[16];

    (void)snprintf(folder, sizeof(folder), "%s", path);
    slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
    if ((stat(path, &old) == 0 && !S_ISREG(old.st_mode)) ||
        statvfs(slash != NULL ? folder : ".", &disk) != 0) {
        return QUIRE_OK; /* no disk to fill, or opening the file will say what is wrong */
    }
    free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize + (uint64_t)old.st_blocks * 512u;
    if (need_bytes <= free_bytes) {
        return QUIRE_OK;
    }
    return quire_error_set(err, QUIRE_IO,
                           "%s: the model takes %s, the disk has %s free: make room or choose "
                           "another folder",
                           path, quire_format_bytes(need_bytes, need, sizeof(need)),
                           quire_format_bytes(free_bytes, have, sizeof(have)));
}

/* Close the file; of a failed attempt nothing stays behind. */
static int file_close(FILE *file, const char *path, int rc, quire_error *err)
{
    struct stat info;
    bool is_regular = fstat(fileno(file), &info) == 0 && S_ISREG(info.st_mode);

    if (fclose(file) != 0 && rc == QUIRE_OK) {
        rc = quire_error_set_errno(err, errno, "%s: cannot write", path);
    }
    if (rc < 0 && is_regular) {
        (void)unlink(path);
    }
    return rc;
}

static int plan_write(const plan *p, const char *path, quire_error *err)
{
    size_t columns_max = p->opts->n_ff > p->opts->n_embd ? p->opts->n_ff : p->opts->n_embd;
    size_t chunk_bytes;
    size_t meta_bytes = gguf_get_meta_size(p->gguf);
    FILE *file = NULL;
    void *packed = NULL;
    void *meta = malloc(meta_bytes);
    float *values = NULL;
    int rc = QUIRE_NOMEM;

    columns_max = columns_max > p->opts->n_head * p->opts->d_head
                      ? columns_max
                      : p->opts->n_head * p->opts->d_head;
    chunk_bytes = (columns_max > CHUNK_VALUES ? columns_max : CHUNK_VALUES) * sizeof(float);
    values = malloc(chunk_bytes);
    packed = malloc(chunk_bytes);
    if (meta == NULL || values == NULL || packed == NULL) {
        (void)quire_error_set(err, rc, "%s: out of memory", path);
        goto out;
    }
    rc = QUIRE_OK;
    gguf_get_meta_data(p->gguf, meta);
    file = fopen(path, "wb");
    if (file == NULL || fwrite(meta, 1, meta_bytes, file) != meta_bytes) {
        rc = quire_error_set_errno(err, errno, "%s: cannot write", path);
        goto out;
    }
    for (size_t i = 0; i < p->n && rc == QUIRE_OK; i++) {
        if (!tensor_write(p, &p->entries[i], file, values, packed)) {
            rc = quire_error_set_errno(err, errno, "%s: cannot write", path);
        }
    }
out:
    if (file != NULL) {
        rc = file_close(file, path, rc, err);
    }
    free(packed);
    free(values);
    free(meta);
    return rc;
}

static int opts_check(const gguf_gen_opts *o, quire_error *err)
{
    int64_t block = ggml_blck_size(o->type);

    if (o->n_layer == 0 || o->n_embd == 0 || o->n_ff == 0 || o->n_head == 0 || o->n_kv_head == 0 ||
        o->n_head % o->n_kv_head != 0 || o->d_head == 0 || o->d_head % 2 != 0 || o->n_ctx == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "sizes must be positive, heads a multiple of "
                               "kv-heads, head-dim even");
    }
    if (o->n_vocab < GGUF_GEN_VOCAB_MIN) {
        return quire_error_set(err, QUIRE_INVAL, "vocab is %u; expected at least %u", o->n_vocab,
                               GGUF_GEN_VOCAB_MIN);
    }
    if (block == 0 || ggml_quantize_requires_imatrix(o->type)) {
        return quire_error_set(err, QUIRE_INVAL, "type %s cannot be made from random weights",
                               ggml_type_name(o->type));
    }
    if (o->n_embd % block != 0 || o->n_ff % block != 0 || (o->n_head * o->d_head) % block != 0) {
        return quire_error_set(
            err, QUIRE_INVAL, "widths %u, %u and %u must be multiples of %lld for type %s",
            o->n_embd, o->n_ff, o->n_head * o->d_head, (long long)block, ggml_type_name(o->type));
    }
    return QUIRE_OK;
}

int gguf_gen_write(const gguf_gen_opts *opts, const char *path, quire_error *err)
{
    size_t n_max = (size_t)opts->n_layer * LAYER_TENSORS + LAYER_TENSORS;
    struct ggml_init_params params = { .mem_size = n_max * ggml_tensor_overhead(),
                                       .no_alloc = true };
    plan p = { .opts = opts };
    int rc;

    QUIRE_TRY(opts_check(opts, err));
    p.entries = calloc(n_max, sizeof(*p.entries));
    p.ggml = ggml_init(params);
    p.gguf = gguf_init_empty();
    if (p.entries == NULL || p.ggml == NULL || p.gguf == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", path);
        goto out;
    }
    rc = plan_keys(&p);
    if (rc != QUIRE_OK) {
        (void)quire_error_set(err, rc, "%s: out of memory", path);
        goto out;
    }
    plan_tensors(&p);
    rc = room_check(path, plan_bytes(&p), err);
    if (rc == QUIRE_OK) {
        rc = plan_write(&p, path, err);
    }
out:
    gguf_free(p.gguf);
    ggml_free(p.ggml);
    free(p.entries);
    return rc;
}
