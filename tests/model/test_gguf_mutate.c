/* test_gguf_mutate.c - thousands of damaged headers: each is refused with a message, or libllama
 * loads its vocabulary and uses it. A crash of this program is the failure it looks for.
 *
 * Damage keeps to the header, where the structure is: flipped bits, edge values, truncation, and
 * elements of the file swapped. QUIRE_MUTATIONS sets how many per model (default 1,500, fewer in a
 * slow build).
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "../../fuzz/gguf_exercise.h"
#include "arch_cases.h"
#include "gguf_edit.h"
#include "gguf_gen_scheme.h"
#include "model_fixture.h"
#include "rounds.h"
#include "seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUTATIONS_ENOUGH  1500u /* so many reach each stage */
#define MUTATIONS_DEFAULT TEST_ROUNDS(MUTATIONS_ENOUGH, 500u)
#define MUTATIONS_OF_CASE TEST_ROUNDS(40u, 14u)

typedef struct model_bytes {
    uint8_t *data;
    size_t n;
    size_t header; /* bytes before the tensor data */
} model_bytes;

static void load(const char *path, model_bytes *out)
{
    struct gguf_init_params params = { .no_alloc = true };
    struct gguf_context *gguf = gguf_init_from_file(path, params);
    FILE *file = fopen(path, "rb");

    assert_non_null(gguf);
    assert_non_null(file);
    out->header = gguf_get_data_offset(gguf);
    gguf_free(gguf);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    out->n = (size_t)ftell(file);
    rewind(file);
    out->data = malloc(out->n);
    assert_non_null(out->data);
    assert_int_equal(fread(out->data, 1, out->n, file), out->n);
    (void)fclose(file);
}

/* One edit of the header; may shorten *n. */
static void damage(quire_rng *rng, uint8_t *data, size_t *n, size_t header)
{
    static const uint32_t edges[] = { 0, 1, 0x7f, 0xff, 0x7fffffff, 0x80000000, UINT32_MAX };
    size_t limit = *n < header ? *n : header;
    size_t at = quire_rng_below(rng, (uint32_t)limit);
    size_t from = quire_rng_below(rng, (uint32_t)limit);
    size_t length = 1 + quire_rng_below(rng, 16);

    switch (quire_rng_below(rng, 16)) {
    case 0:
        *n = 1 + quire_rng_below(rng, (uint32_t)*n);
        break;
    case 1:
    case 2:
        if (at + sizeof(edges[0]) <= limit) {
            memcpy(data + at, &edges[quire_rng_below(rng, sizeof(edges) / sizeof(edges[0]))],
                   sizeof(edges[0]));
        }
        break;
    case 3:
    case 4:
        if (at + length <= limit && from + length <= limit) {
            memmove(data + at, data + from, length);
        }
        break;
    case 5:
        data[at] = (uint8_t)quire_rng_next(rng);
        break;
    default:
        data[at] ^= (uint8_t)(1u << quire_rng_below(rng, 8));
        break;
    }
}

static void mutate_model(const char *path, uint64_t n_default)
{
    static const char *const names[GGUF_STAGE_COUNT] = { "open", "describe", "vocabulary",
                                                         "libllama", "none" };
    const char *text = getenv("QUIRE_MUTATIONS");
    uint64_t n_runs = text != NULL ? strtoull(text, NULL, 10) : n_default;
    uint64_t counts[GGUF_STAGE_COUNT] = { 0 };
    quire_rng rng = test_rng(20240721);
    model_bytes model;
    uint8_t *copy;

    load(path, &model);
    copy = malloc(model.n);
    assert_non_null(copy);
    assert_int_equal(gguf_exercise(model.data, model.n), GGUF_STAGE_DONE);
    for (uint64_t run = 0; run < n_runs; run++) {
        uint32_t n_edits = 1 + quire_rng_below(&rng, 3);
        size_t n = model.n;

        memcpy(copy, model.data, model.n);
        for (uint32_t i = 0; i < n_edits; i++) {
            damage(&rng, copy, &n, model.header);
        }
        counts[gguf_exercise(copy, n)]++;
    }
    for (int stage = 0; stage < GGUF_STAGE_COUNT; stage++) {
        (void)printf("refused by %s: %llu\n", names[stage], (unsigned long long)counts[stage]);
    }
    /* Both sides have to be reached, or the test tests nothing. */
    if (n_runs >= MUTATIONS_ENOUGH) {
        assert_true(counts[GGUF_STAGE_OPEN] > n_runs / 100);
        assert_true(counts[GGUF_STAGE_DESCRIBE] > 0);
        assert_true(counts[GGUF_STAGE_VOCAB] > 0);
        assert_true(counts[GGUF_STAGE_DONE] > n_runs / 100);
    }
    free(copy);
    free(model.data);
}

static void mutate_generated(const char *shape)
{
    gguf_gen_opts opts = gguf_edit_small(shape);
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
    mutate_model(gguf_edit_path(), MUTATIONS_DEFAULT);
    (void)unlink(gguf_edit_path());
}

static void generated_spm(void **state)
{
    (void)state;
    mutate_generated("tiny-llama");
}

static void generated_bpe(void **state)
{
    (void)state;
    mutate_generated("tiny-qwen2");
}

/* With a KV map and gates. */
static void generated_fused(void **state)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-quire");
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    opts.n_layer = 3;
    assert_int_equal(gguf_gen_scheme_apply(&opts, "fusedkv", &err), QUIRE_OK);
    assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
    mutate_model(gguf_edit_path(), MUTATIONS_DEFAULT);
    (void)unlink(gguf_edit_path());
}

/* The keys and tensors of all architectures; more layers have no others. */
static void every_architecture(void **state)
{
    const arch_case *c;

    (void)state;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        gguf_gen_opts opts = arch_case_options(c);
        quire_error err = QUIRE_ERROR_INIT;

        if (opts.n_layer < 10 && c->type == GGML_TYPE_F32) {
            assert_int_equal(gguf_gen_write(&opts, gguf_edit_path(), &err), QUIRE_OK);
            mutate_model(gguf_edit_path(), MUTATIONS_OF_CASE);
            (void)unlink(gguf_edit_path());
        }
    }
}

static void stories260k(void **state)
{
    (void)state;
    mutate_model(fixture_model_path(FIXTURE_STORIES), MUTATIONS_DEFAULT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_spm),   cmocka_unit_test(generated_bpe),
        cmocka_unit_test(generated_fused), cmocka_unit_test(every_architecture),
        cmocka_unit_test(stories260k),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
