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
#include "gguf_gen_codes.h"
#include "gguf_gen_plan.h"
#include "gguf_gen_vocab.h"

#define CHUNK_VALUES    (1u << 18)
#define DISTINCT_VALUES (1u << 24) /* of a tensor of experts */

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

/* The deviation of a matrix' weights. */
static float scale_of(const gguf_gen_entry *entry)
{
    return entry->gain / sqrtf((float)entry->tensor->ne[0]);
}

static void fill_values(const gguf_gen_plan *p, const gguf_gen_entry *entry, quire_rng *rng,
                        float *x, size_t n)
{
    const float scale = scale_of(entry);

    switch (entry->how) {
    case GGUF_GEN_FILL_MATRIX:
        for (size_t i = 0; i < n; i++) {
            x[i] = scale * cheap_normal(rng);
        }
        break;
    case GGUF_GEN_FILL_NORM:
        for (size_t i = 0; i < n; i++) {
            x[i] = entry->gain * (1.0f + 0.1f * cheap_normal(rng));
        }
        break;
    case GGUF_GEN_FILL_DECAY:
        for (size_t i = 0; i < n; i++) {
            x[i] = -0.3f + 0.05f * cheap_normal(rng);
        }
        break;
    case GGUF_GEN_FILL_GATE:
        for (size_t i = 0; i < n; i++) {
            x[i] = 0.7f + 0.2f * cheap_normal(rng);
        }
        break;
    case GGUF_GEN_FILL_BIAS:
        for (size_t i = 0; i < n; i++) {
            x[i] = 0.1f * cheap_normal(rng);
        }
        break;
    case GGUF_GEN_FILL_ROPE_FREQS:
        for (size_t i = 0; i < n; i++) {
            x[i] = rope_factor_at(p->opts, (uint32_t)i);
        }
        break;
    case GGUF_GEN_FILL_RAMP:
        for (size_t i = 0; i < n; i++) {
            x[i] = 1.0f + entry->gain * (float)i;
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

/* Rows of the tensor in its type. */
static void chunk_fill(const gguf_gen_plan *p, const gguf_gen_entry *entry, quire_rng *rng,
                       float *values, void *packed, size_t n_rows)
{
    const struct ggml_tensor *t = entry->tensor;
    const size_t columns = (size_t)t->ne[0];

    if (gguf_gen_codes_has(t->type)) {
        gguf_gen_codes_fill(t->type, rng, scale_of(entry), packed, n_rows * columns);
        return;
    }
    fill_values(p, entry, rng, values, n_rows * columns);
    (void)ggml_quantize_chunk(t->type, values, packed, 0, (int64_t)n_rows, (int64_t)columns, NULL);
}

/* values and packed hold chunk_rows rows of the tensor. */
static bool tensor_write(const gguf_gen_plan *p, const gguf_gen_entry *entry, FILE *file,
                         float *values, void *packed)
{
    const struct ggml_tensor *t = entry->tensor;
    size_t columns = (size_t)t->ne[0];
    size_t rows = (size_t)(t->ne[1] * t->ne[2]);
    size_t chunk_rows = CHUNK_VALUES / columns > 0 ? CHUNK_VALUES / columns : 1;
    /* Experts of large models repeat: making them all different takes many minutes. */
    size_t n_distinct = p->opts->n_distinct != 0 ? p->opts->n_distinct
                        : t->ne[2] > 1           ? DISTINCT_VALUES
                                                 : SIZE_MAX;
    quire_rng rng = { p->opts->seed };
    size_t written_bytes = 0;

    /* A stream of its own for every name: adding a tensor changes no other. */
    for (const char *c = t->name; *c != '\0'; c++) {
        rng.state = quire_rng_next(&rng) ^ (unsigned char)*c;
    }
    for (size_t row = 0; row < rows; row += chunk_rows) {
        size_t n_rows = rows - row < chunk_rows ? rows - row : chunk_rows;
        size_t bytes = ggml_row_size(t->type, t->ne[0]) * n_rows;

        if (row * columns < n_distinct) {
            chunk_fill(p, entry, &rng, values, packed, n_rows);
        }
        if (fwrite(packed, 1, bytes, file) != bytes) {
            return false;
        }
        written_bytes += bytes;
    }
    return pad_to(file, written_bytes, gguf_get_alignment(p->gguf));
}

/* Bytes of the whole file. */
static uint64_t plan_bytes(const gguf_gen_plan *p)
{
    uint64_t total_bytes = gguf_get_meta_size(p->gguf);
    const uint64_t alignment = gguf_get_alignment(p->gguf);

    for (size_t i = 0; i < p->n; i++) {
        total_bytes += (ggml_nbytes(p->entries[i].tensor) + alignment - 1) / alignment * alignment;
    }
    return total_bytes;
}

/* Refuse a model that does not fit on the disk, before minutes are spent on filling the disk. The
 * bytes of an old file at the path count as free. */
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
        return QUIRE_OK; /* no disk to fill, or opening the file will report the error */
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

/* The file with a hole for its values. */
static bool hollow_write(const gguf_gen_plan *p, FILE *file)
{
    return fflush(file) == 0 && ftruncate(fileno(file), (off_t)plan_bytes(p)) == 0;
}

static int plan_write(const gguf_gen_plan *p, const char *path, quire_error *err)
{
    size_t columns_max = CHUNK_VALUES;
    size_t chunk_bytes;
    size_t meta_bytes = gguf_get_meta_size(p->gguf);
    FILE *file = NULL;
    void *packed = NULL;
    void *meta = malloc(meta_bytes);
    float *values = NULL;
    int rc = QUIRE_NOMEM;

    for (size_t i = 0; i < p->n; i++) {
        const size_t columns = (size_t)p->entries[i].tensor->ne[0];

        columns_max = columns > columns_max ? columns : columns_max;
    }
    chunk_bytes = columns_max * sizeof(float);
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
    if (p->opts->is_hollow && !hollow_write(p, file)) {
        rc = quire_error_set_errno(err, errno, "%s: cannot write", path);
    }
    for (size_t i = 0; i < p->n && rc == QUIRE_OK && !p->opts->is_hollow; i++) {
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

static int latent_check(const gguf_gen_opts *o, quire_error *err)
{
    const bool is_latent =
        quire_arch_row_get(quire_arch_find(o->arch))->latent != QUIRE_LATENT_NONE;

    if (is_latent != (o->n_latent != 0) ||
        (is_latent && (o->n_rot == 0 || o->n_rot >= o->d_head || o->d_value == 0))) {
        return quire_error_set(err, QUIRE_INVAL,
                               "architecture %s: latent attention is %u wide, of heads of %u with "
                               "%u turned numbers and results of %u",
                               o->arch, o->n_latent, o->d_head, o->n_rot, o->d_value);
    }
    return QUIRE_OK;
}

/* Types of weights: floats, and those with blocks but for the two of products' other side. */
static int type_check(enum ggml_type type, quire_error *err)
{
    const bool is_float = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;

    if (!is_float &&
        (!ggml_is_quantized(type) || type == GGML_TYPE_Q8_1 || type == GGML_TYPE_Q8_K)) {
        return quire_error_set(err, QUIRE_INVAL, "no weights are of the type %s",
                               ggml_type_name(type));
    }
    return QUIRE_OK;
}

static int opts_check(const gguf_gen_opts *o, quire_error *err)
{
    const int64_t block = ggml_blck_size(o->type);
    const int64_t expert_block = ggml_blck_size(o->has_expert_type ? o->expert_type : o->type);

    if (quire_arch_find(o->arch) == QUIRE_ARCH_COUNT) {
        return quire_error_set(err, QUIRE_INVAL, "no model of the architecture '%s' can be made",
                               o->arch);
    }

    if (o->n_layer == 0 || o->n_embd == 0 || o->n_ff == 0 || o->n_head == 0 || o->n_kv_head == 0 ||
        o->n_head % o->n_kv_head != 0 || o->d_head == 0 || o->d_head % 2 != 0 || o->n_ctx == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "sizes must be positive, heads a multiple of "
                               "kv-heads, head-dim even");
    }
    QUIRE_TRY(latent_check(o, err));
    if (o->n_vocab < GGUF_GEN_VOCAB_MIN) {
        return quire_error_set(err, QUIRE_INVAL, "vocab is %u; expected at least %u", o->n_vocab,
                               GGUF_GEN_VOCAB_MIN);
    }
    QUIRE_TRY(type_check(o->type, err));
    QUIRE_TRY(type_check(o->type_more, err));
    QUIRE_TRY(type_check(o->has_expert_type ? o->expert_type : o->type, err));
    if (o->n_embd % block != 0 || o->n_ff % block != 0 || (o->n_head * o->d_head) % block != 0) {
        return quire_error_set(
            err, QUIRE_INVAL, "widths %u, %u and %u must be multiples of %lld for type %s",
            o->n_embd, o->n_ff, o->n_head * o->d_head, (long long)block, ggml_type_name(o->type));
    }
    if (o->n_experts != 0 &&
        (o->n_experts_used == 0 || o->n_experts_used > o->n_experts ||
         o->n_embd % expert_block != 0 || o->n_ff_expert % expert_block != 0)) {
        return quire_error_set(
            err, QUIRE_INVAL, "%u of %u experts of width %u cannot be made in blocks of %lld",
            o->n_experts_used, o->n_experts, o->n_ff_expert, (long long)expert_block);
    }
    return QUIRE_OK;
}

int gguf_gen_write(const gguf_gen_opts *opts, const char *path, quire_error *err)
{
    size_t n_max = gguf_gen_plan_tensors_max(opts);
    struct ggml_init_params params = { .mem_size = n_max * ggml_tensor_overhead(),
                                       .no_alloc = true };
    gguf_gen_plan p = { .opts = opts };
    int rc;

    QUIRE_TRY(opts_check(opts, err));
    p.entries = calloc(n_max, sizeof(*p.entries));
    p.ggml = ggml_init(params);
    p.gguf = gguf_init_empty();
    if (p.entries == NULL || p.ggml == NULL || p.gguf == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", path);
        goto out;
    }
    rc = gguf_gen_plan_keys(&p);
    if (rc != QUIRE_OK) {
        (void)quire_error_set(err, rc, "%s: out of memory", path);
        goto out;
    }
    gguf_gen_plan_tensors(&p);
    rc = opts->is_hollow ? QUIRE_OK : room_check(path, plan_bytes(&p), err);
    if (rc == QUIRE_OK) {
        rc = plan_write(&p, path, err);
    }
out:
    gguf_free(p.gguf);
    ggml_free(p.ggml);
    free(p.entries);
    return rc;
}
