/* test_gguf_parts.c - models in parts: the same results as in one file, and a clear line for each
 * part that is missing, misnamed or of another model.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model_fixture.h"
#include "seed.h"

#include "model/gguf_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_PARTS  3u
#define N_TOKENS 20u
#define N_VOCAB  320u

static char folder[256];

static const char *part_path(char *buffer, size_t cap, uint32_t part)
{
    (void)snprintf(buffer, cap, "%s/model-%05u-of-%05u.gguf", folder, part + 1, N_PARTS);
    return buffer;
}

/* A change to one of the parts. */
typedef struct damage {
    uint32_t part;
    const char *key; /* set to value in that part; NULL = nothing */
    uint32_t value;
    bool is_repeated; /* the part also has a tensor of the first one */
    enum {
        AS_U16,
        AS_I32,
        AS_U32,
        REMOVED
    } how; /* of the key */
} damage;

static void key_change(struct gguf_context *out, const damage *d)
{
    if (d->how == REMOVED) {
        (void)gguf_remove_key(out, d->key);
    } else if (d->how == AS_U16) {
        gguf_set_val_u16(out, d->key, (uint16_t)d->value);
    } else if (d->how == AS_I32) {
        gguf_set_val_i32(out, d->key, (int32_t)d->value);
    } else {
        gguf_set_val_u32(out, d->key, d->value);
    }
}

/* Write the tensors [from, to) of a model as one part; the first has the model's keys. */
static void part_write(const struct gguf_context *whole, struct ggml_context *tensors,
                       uint32_t part, const damage *d)
{
    const int64_t n = gguf_get_n_tensors(whole);
    const int64_t from = n * part / N_PARTS, to = n * (part + 1) / N_PARTS;
    struct gguf_context *out = gguf_init_empty();
    char path[320];

    assert_non_null(out);
    if (part == 0) {
        gguf_set_kv(out, whole);
    }
    gguf_set_val_u16(out, "split.no", (uint16_t)part);
    gguf_set_val_u16(out, "split.count", N_PARTS);
    /* A tensor too many is counted, so that it is found twice later. */
    gguf_set_val_i32(out, "split.tensors.count",
                     (int32_t)n + (d != NULL && d->is_repeated ? 1 : 0));
    if (d != NULL && d->key != NULL && d->part == part) {
        key_change(out, d);
    }
    for (int64_t i = from; i < to; i++) {
        gguf_add_tensor(out, ggml_get_tensor(tensors, gguf_get_tensor_name(whole, i)));
    }
    if (d != NULL && d->is_repeated && d->part == part) {
        gguf_add_tensor(out, ggml_get_tensor(tensors, gguf_get_tensor_name(whole, 0)));
    }
    assert_true(gguf_write_to_file(out, part_path(path, sizeof path, part), false));
    gguf_free(out);
}

static void parts_write(const char *path, const damage *d)
{
    struct ggml_context *tensors = NULL;
    struct gguf_context *whole = gguf_init_from_file(path, (struct gguf_init_params){
                                                               .no_alloc = false,
                                                               .ctx = &tensors,
                                                           });

    assert_non_null(whole);
    for (uint32_t i = 0; i < N_PARTS; i++) {
        part_write(whole, tensors, i, d);
    }
    gguf_free(whole);
    ggml_free(tensors);
}

static void logits_of(const char *path, float *out)
{
    quire_model *model = fixture_open(path);
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_rng rng = test_rng(51);
    int32_t tokens[N_TOKENS];
    quire_runtime *runtime;

    opts.n_ctx = 64;
    opts.n_threads = 1;
    runtime = fixture_runtime(model, &opts);
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)quire_rng_below(&rng, N_VOCAB);
    }
    memcpy(out, fixture_step(runtime, fixture_seq(runtime), tokens, N_TOKENS, QUIRE_LOGITS_LAST),
           N_VOCAB * sizeof *out);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* Types: in place from the mapped files, and copied. */
static void parts_compute_what_one_file_computes(void **state)
{
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_Q8_0 };
    float whole[N_VOCAB], in_parts[N_VOCAB];
    char path[320];

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        gguf_gen_opts gen = fixture_llama("parts", 3, N_VOCAB, 128, 7);
        const char *one;

        gen.type = types[i];
        one = fixture_generate(&gen);
        parts_write(one, NULL);
        logits_of(one, whole);
        logits_of(part_path(path, sizeof path, 0), in_parts);
        assert_memory_equal(whole, in_parts, sizeof whole);
    }
}

static void expect_refused(const char *path, int status, const char *needle)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_gguf *file = NULL;
    const int rc = quire_gguf_open(&file, path, &err);

    if (rc != status || strstr(err.message, needle) == NULL) {
        fail_msg("status %d, message '%s'; expected %d and '%s'", rc, err.message, status, needle);
    }
    assert_null(file);
}

static void wrong_parts_are_named(void **state)
{
    static const struct {
        damage change;
        const char *needle;
    } cases[] = {
        { { 1, "split.no", 2, false, AS_U16 },
          "model-00002-of-00003.gguf: split.no is 2 and split.count 3; expected 1 and 3" },
        { { 2, "split.count", 4, false, AS_U16 },
          "00003-of-00003.gguf: split.no is 2 and split.count 4" },
        { { 0, "split.tensors.count", 7, false, AS_I32 },
          "split.tensors.count is 7; the parts have" },
        { { 1, NULL, 0, true, AS_U16 }, "token_embd.weight is in an earlier part as well" },
        /* Types of which libllama aborts, and keys without which it loads no vocabulary. */
        { { 1, "split.no", 1, false, AS_U32 },
          "model-00002-of-00003.gguf: split.no is of type u32; expected u16" },
        { { 0, "split.no", 0, false, AS_I32 }, "split.no is of type i32; expected u16" },
        { { 0, "split.count", 3, false, AS_U32 }, "split.count is of type u32; expected u16" },
        { { 0, "split.tensors.count", 7, false, AS_U16 },
          "split.tensors.count is of type u16; expected i32" },
        { { 0, "split.no", 0, false, REMOVED }, "key split.no is missing" },
        { { 2, "split.no", 0, false, REMOVED }, "00003-of-00003.gguf: key split.no is missing" },
        { { 0, "split.tensors.count", 0, false, REMOVED }, "key split.tensors.count is missing" },
    };
    const gguf_gen_opts gen = fixture_llama("parts", 3, N_VOCAB, 128, 7);
    char path[320];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parts_write(fixture_generate(&gen), &cases[i].change);
        expect_refused(part_path(path, sizeof path, 0), QUIRE_CORRUPT, cases[i].needle);
    }
}

/* A part of many tensors of one number each. */
static void many_write(uint32_t part, uint32_t n_tensors)
{
    const struct ggml_init_params params = {
        .mem_size = (n_tensors + 1) * ggml_tensor_overhead() + n_tensors * 64, .no_alloc = false
    };
    struct ggml_context *tensors = ggml_init(params);
    struct gguf_context *out = gguf_init_empty();
    char path[320];

    assert_non_null(tensors);
    assert_non_null(out);
    gguf_set_val_u16(out, "split.no", (uint16_t)part);
    gguf_set_val_u16(out, "split.count", N_PARTS);
    gguf_set_val_i32(out, "split.tensors.count", (int32_t)(N_PARTS * n_tensors));
    for (uint32_t i = 0; i < n_tensors; i++) {
        struct ggml_tensor *t = ggml_new_tensor_1d(tensors, GGML_TYPE_F32, 1);

        *(float *)t->data = 0.0f;
        (void)ggml_format_name(t, "%u.%u", part, i);
        gguf_add_tensor(out, t);
    }
    assert_true(gguf_write_to_file(out, part_path(path, sizeof path, part), false));
    gguf_free(out);
    ggml_free(tensors);
}

/* Tensors of all parts are compared with each other, so their number has a bound. */
static void too_many_tensors_are_refused(void **state)
{
    char path[320];

    (void)state;
    for (uint32_t i = 0; i < N_PARTS; i++) {
        many_write(i, 8000);
    }
    expect_refused(part_path(path, sizeof path, 0), QUIRE_CORRUPT,
                   "00003-of-00003.gguf: the parts up to this one hold 24000 tensors; expected at "
                   "most 16384");
}

static void other_names_are_refused(void **state)
{
    const gguf_gen_opts gen = fixture_llama("parts", 3, N_VOCAB, 128, 7);
    char path[320], other[320];

    (void)state;
    parts_write(fixture_generate(&gen), NULL);
    expect_refused(part_path(path, sizeof path, 1), QUIRE_INVAL,
                   "part 2 of 3 of a model; name the first part, which ends in "
                   "-00001-of-00003.gguf");
    (void)snprintf(other, sizeof other, "%s/first.gguf", folder);
    assert_int_equal(rename(part_path(path, sizeof path, 0), other), 0);
    expect_refused(other, QUIRE_UNSUPP, "the name must end in -00001-of-00003.gguf");
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(unlink(part_path(path, sizeof path, 2)), 0);
    expect_refused(part_path(path, sizeof path, 0), QUIRE_IO, "00003-of-00003.gguf: cannot open");
}

static int set_up(void **state)
{
    const char *dir = getenv("TMPDIR");

    (void)state;
    (void)snprintf(folder, sizeof folder, "%s/quire-parts-XXXXXX", dir != NULL ? dir : "/tmp");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int tear_down(void **state)
{
    char path[320];

    (void)state;
    for (uint32_t i = 0; i < N_PARTS; i++) {
        (void)unlink(part_path(path, sizeof path, i));
    }
    fixture_generated_remove();
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_compute_what_one_file_computes),
        cmocka_unit_test(wrong_parts_are_named),
        cmocka_unit_test(too_many_tensors_are_refused),
        cmocka_unit_test(other_names_are_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
