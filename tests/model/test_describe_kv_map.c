/* test_describe_kv_map.c - the KV map of a file of the architecture quire, and every way a file can
 * contradict itself there.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "describe_fixture.h"
#include "gguf_gen_scheme.h"
#include "model/gguf_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_LAYERS   4u
#define KEY_K      "quire.attention.kv_source_k"
#define KEY_V      "quire.attention.kv_source_v"
#define KEY_WINDOW "quire.attention.window"

static gguf_gen_opts small(const char *scheme)
{
    gguf_gen_opts opts = gguf_edit_small("tiny-quire");
    quire_error err = QUIRE_ERROR_INIT;

    opts.n_layer = N_LAYERS;
    opts.n_head = 4;
    opts.n_kv_head = 2;
    opts.d_head = 16;
    if (gguf_gen_scheme_apply(&opts, scheme, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return opts;
}

static const quire_model_desc *described(const gguf_gen_opts *opts)
{
    static quire_model_desc desc;
    quire_error err = QUIRE_ERROR_INIT;

    if (gguf_gen_write(opts, gguf_edit_path(), &err) != QUIRE_OK ||
        describe_file(&desc, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return &desc;
}

/* The stored layers that the upper half of a scheme's four layers reads. */
typedef struct scheme_case {
    const char *scheme;
    uint32_t n_stored, last_stored, n_kv_head;
    int32_t stored[N_LAYERS];
    uint8_t n_sources;
    uint16_t k[2], v[2]; /* of layer 3 */
    uint8_t gates;
} scheme_case;

static void schemes_are_described(void **state)
{
    static const scheme_case cases[] = {
        { "mha", 4, 3, 4, { 0, 1, 2, 3 }, 1, { 3, 0 }, { 3, 0 }, 0 },
        { "gqa", 4, 3, 2, { 0, 1, 2, 3 }, 1, { 3, 0 }, { 3, 0 }, 0 },
        { "mqa", 4, 3, 1, { 0, 1, 2, 3 }, 1, { 3, 0 }, { 3, 0 }, 0 },
        { "cla2", 2, 2, 2, { 0, -1, 1, -1 }, 1, { 1, 0 }, { 1, 0 }, 0 },
        { "yoco", 2, 1, 2, { 0, 1, -1, -1 }, 1, { 1, 0 }, { 1, 0 }, 0 },
        { "fusedkv", 2, 1, 2, { 0, 1, -1, -1 }, 2, { 0, 1 }, { 0, 1 }, 3 },
        { "fusedkv-lite", 2, 1, 2, { 0, 1, -1, -1 }, 1, { 1, 0 }, { 0, 0 }, 0 },
        { "fusedkv-lite-learnable", 2, 1, 2, { 0, 1, -1, -1 }, 1, { 1, 0 }, { 0, 0 }, 1 },
        { "yoco++", 2, 1, 2, { 0, 1, -1, -1 }, 1, { 1, 0 }, { 1, 0 }, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const scheme_case *c = &cases[i];
        const gguf_gen_opts opts = small(c->scheme);
        const quire_model_desc *desc = described(&opts);
        const quire_kv_map_entry *top = &desc->kv_map[N_LAYERS - 1];

        assert_string_equal(gguf_gen_scheme_name((unsigned)i), c->scheme);
        assert_string_equal(desc->arch_name, "quire");
        assert_string_equal(desc->kv_scheme, c->scheme);
        assert_int_equal(desc->rope.type, QUIRE_ROPE_NEOX);
        assert_true(desc->has_qk_norm);
        assert_int_equal(desc->n_kv_head, c->n_kv_head);
        assert_int_equal(desc->n_stored, c->n_stored);
        assert_int_equal(desc->last_stored, c->last_stored);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            assert_int_equal(desc->kv_map[l].stored, c->stored[l]);
        }
        assert_int_equal(top->n_k, c->n_sources);
        assert_int_equal(top->n_v, c->n_sources);
        assert_memory_equal(top->k_src, c->k, sizeof(c->k));
        assert_memory_equal(top->v_src, c->v, sizeof(c->v));
        assert_int_equal(top->k_gates, c->gates);
        assert_int_equal(top->v_gates, c->gates);
        assert_int_equal(desc->kv_map[0].k_gates, 0);
    }
    assert_null(gguf_gen_scheme_name(sizeof(cases) / sizeof(cases[0])));
}

/* Without the keys every layer stores its own; norms of heads are optional. */
static void plain_files(void **state)
{
    gguf_gen_opts opts = small("gqa");
    const quire_model_desc *desc;

    (void)state;
    opts.has_map = false;
    opts.has_qk_norm = false;
    desc = described(&opts);
    assert_int_equal(desc->n_stored, N_LAYERS);
    assert_int_equal(desc->last_stored, N_LAYERS - 1);
    assert_string_equal(desc->kv_scheme, "");
    assert_false(desc->has_qk_norm);
    assert_int_equal(desc->kv_map[2].k_src[0], 2);
}

static void windows_are_described(void **state)
{
    gguf_gen_opts opts = small("yoco");
    quire_error err = QUIRE_ERROR_INIT;
    const quire_model_desc *desc = described(&opts);

    (void)state;
    assert_int_equal(desc->window[0], 0);
    opts.window = 70;
    assert_int_equal(gguf_gen_scheme_apply(&opts, "yoco", &err), QUIRE_OK);
    desc = described(&opts);
    assert_int_equal(desc->window[0], 70);
    assert_int_equal(desc->window[1], 0); /* its KV is read by the upper half */
    assert_int_equal(gguf_gen_scheme_apply(&opts, "cla2", &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "the schemes yoco"));
}

static void gate_shapes(void **state)
{
    static const gguf_gen_gates shapes[] = { GGUF_GEN_GATES_HALF, GGUF_GEN_GATES_HEAD,
                                             GGUF_GEN_GATES_HEADS };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        gguf_gen_opts opts = small("fusedkv");

        opts.gates = shapes[i];
        assert_int_equal(described(&opts)->kv_map[2].v_gates, 3);
    }
}

/* One element of a key's array changed. */
typedef struct source_case {
    const char *key;
    uint32_t at; /* 2 * layer + source */
    int32_t value;
    const char *needle;
} source_case;

static void damaged_sources_are_named(void **state)
{
    static const source_case cases[] = {
        { KEY_K, 0, -1, KEY_K " of layer 0 begins with -1; its first source must be a layer" },
        { KEY_V, 6, -1, KEY_V " of layer 3 begins with -1" },
        { KEY_K, 7, 4, "element 7 of " KEY_K " is 4; expected -1..3 (damaged file?)" },
        { KEY_V, 1, -2, "element 1 of " KEY_V " is -2; expected -1..3" },
        { KEY_K, 0, 2,
          KEY_K " of layer 0 names layer 2, which is computed later; a source is the layer itself "
                "or an earlier one" },
        { KEY_V, 5, 3, KEY_V " of layer 2 names layer 3, which is computed later" },
        { KEY_K, 7, 0, KEY_K " of layer 3 names layer 0 twice" },
        { KEY_V, 6, 2, KEY_V " of layer 3 names layer 2, which stores no K and V" },
        { KEY_K, 6, 2, KEY_K " of layer 3 names layer 2, which stores no K and V" },
        { KEY_K, 4, 2,
          "layer 2 reads its own K but not its own V; a layer stores both or neither" },
        { KEY_K, 2, 0,
          "layer 1 reads its own V but not its own K; a layer stores both or neither" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const source_case *c = &cases[i];
        gguf_gen_opts opts = small("fusedkv");
        int32_t sources[N_LAYERS][2];
        gguf_edit edit;

        memcpy(sources, strcmp(c->key, KEY_K) == 0 ? opts.k_sources : opts.v_sources,
               sizeof(sources));
        sources[c->at / 2][c->at % 2] = c->value;
        gguf_edit_open(&edit, &opts);
        gguf_set_arr_data(edit.gguf, c->key, GGUF_TYPE_INT32, sources, (size_t)2 * N_LAYERS);
        describe_expect(&edit, QUIRE_CORRUPT, c->needle);
        gguf_edit_close(&edit);
    }
}

static void damaged_keys_are_named(void **state)
{
    static const struct {
        gguf_edit_key change;
        const char *needle;
    } cases[] = {
        { { KEY_K, EDIT_REMOVE, 0, NULL, 0 }, "key " KEY_K " is missing" },
        { { KEY_V, EDIT_REMOVE, 0, NULL, 0 }, "key " KEY_V " is missing" },
        { { KEY_K, EDIT_U32_ARRAY, 0, NULL, 7 },
          KEY_K " has 7 elements; expected 8 (damaged file?)" },
        { { KEY_V, EDIT_U32, 3, NULL, 0 }, KEY_V " is of type u32; expected an array of integers" },
        { { KEY_V, EDIT_STR_ARRAY, 0, "0", 0 }, "expected an array of integers" },
        { { KEY_WINDOW, EDIT_U32_ARRAY, 0, NULL, 3 },
          KEY_WINDOW " has 3 elements; expected 4 (damaged file?)" },
        { { KEY_WINDOW, EDIT_U32, 3, NULL, 0 },
          KEY_WINDOW " is of type u32; expected an array of integers" },
        { { "quire.attention.kv_scheme", EDIT_U32, 3, NULL, 0 },
          "quire.attention.kv_scheme is of type u32; expected string" },
        { { "quire.attention.value_length", EDIT_U32, 8, NULL, 0 },
          "key_length is 16 but value_length is 8; supported: equal ones" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gguf_gen_opts opts = small("fusedkv");
        gguf_edit edit;

        gguf_edit_open(&edit, &opts);
        gguf_edit_apply(&edit, &cases[i].change);
        describe_expect(&edit, i == 8 ? QUIRE_UNSUPP : QUIRE_CORRUPT, cases[i].needle);
        gguf_edit_close(&edit);
    }
}

static void damaged_tensors_are_named(void **state)
{
    static const describe_tensor_case cases[] = {
        { "fusedkv", "blk.2.attn_k_gate.1", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.2.attn_k_gate.1 is missing: the layer's other K source has a gate" },
        { "fusedkv", "blk.3.attn_v_gate.0", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.3.attn_v_gate.0 is missing: the layer's other V source has a gate" },
        { "fusedkv", "blk.2.attn_k_gate.0", NULL, GGML_TYPE_F32, 7, 1, QUIRE_CORRUPT,
          "tensor blk.2.attn_k_gate.0 has shape 7 x 1 x 1 x 1; expected 8, 16 or 16 x 2" },
        { "fusedkv", "blk.2.attn_v_gate.0", NULL, GGML_TYPE_F32, 16, 4, QUIRE_CORRUPT,
          "tensor blk.2.attn_v_gate.0 has shape 16 x 4 x 1 x 1" },
        { "fusedkv", "blk.2.attn_v_gate.0", NULL, GGML_TYPE_F32, 8, 2, QUIRE_CORRUPT,
          "tensor blk.2.attn_v_gate.0 has shape 8 x 2 x 1 x 1" },
        { "fusedkv", "blk.2.attn_v_gate.0", NULL, GGML_TYPE_F16, 8, 1, QUIRE_UNSUPP,
          "tensor blk.2.attn_v_gate.0 is of type f16; supported here: f32" },
        { "fusedkv-lite-learnable", "blk.2.attn_k_gate.0", "blk.2.attn_k_gate.1", 0, 0, 0,
          QUIRE_CORRUPT, "tensor blk.2.attn_k_gate.1 has no source: layer 2 has 1 K source" },
        { "fusedkv-lite-learnable", "blk.2.attn_v_gate.0", "blk.1.attn_v_gate.0", 0, 0, 0,
          QUIRE_CORRUPT, "tensor blk.1.attn_v_gate.0 is a gate on layer 1's own V alone" },
        { "fusedkv-lite-learnable", "blk.2.attn_v_gate.0", "blk.2.attn_v_gate.2", 0, 0, 0,
          QUIRE_UNSUPP, "blk.2.attn_v_gate.2 has no place in a quire model" },
        { "fusedkv-lite", "blk.1.attn_k.weight", "blk.2.attn_k.weight", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.2.attn_k.weight belongs to a layer that stores no K and V "
          "(quire.attention.kv_source_k)" },
        { "fusedkv-lite", "blk.1.attn_v.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.1.attn_v.weight is missing" },
        { "cla2", "blk.2.attn_k.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.2.attn_k.weight is missing" },
        { "cla2", "blk.2.attn_k_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.2.attn_k_norm.weight is missing" },
        { "cla2", "blk.1.attn_q_norm.weight", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.1.attn_q_norm.weight is missing" },
        { "cla2", "blk.2.attn_k_norm.weight", "blk.3.attn_k_norm.weight", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.3.attn_k_norm.weight belongs to a layer that stores no K and V" },
        { "yoco++", "blk.1.attn_k_mix", "blk.0.attn_k_mix", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.0.attn_k_mix mixes layer 0 with itself" },
        { "yoco++", "blk.1.attn_v_mix", "blk.2.attn_v_mix", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.2.attn_v_mix belongs to a layer that stores no K and V" },
        { "yoco++", "blk.1.attn_v_mix", NULL, GGML_TYPE_F32, 3, 1, QUIRE_CORRUPT,
          "tensor blk.1.attn_v_mix has shape 3 x 1 x 1 x 1; expected 2 x 1" },
        { "gqa", "blk.2.attn_k_norm.weight", "blk.2.attn_output.bias", 0, 0, 0, QUIRE_UNSUPP,
          "blk.2.attn_output.bias has no place in a quire model" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const gguf_gen_opts opts = small(cases[i].model);

        describe_tensor_check(&cases[i], &opts);
    }
}

/* Biases belong to the layers that have the weights beside them. */
static void biases_are_described(void **state)
{
    static const describe_tensor_case cases[] = {
        { "fusedkv-lite", "blk.1.attn_k.bias", "blk.2.attn_k.bias", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.2.attn_k.bias belongs to a layer that stores no K and V" },
        { "fusedkv-lite", "blk.1.attn_v.bias", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.1.attn_v.bias is missing" },
        { "fusedkv-lite", "blk.3.attn_q.bias", "", 0, 0, 0, QUIRE_CORRUPT,
          "tensor blk.3.attn_q.bias is missing" },
        { "yoco++", "blk.1.attn_k.bias", NULL, GGML_TYPE_F32, 64, 1, QUIRE_CORRUPT,
          "tensor blk.1.attn_k.bias has shape 64 x 1 x 1 x 1; expected 32 x 1" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gguf_gen_opts opts = small(cases[i].model);

        assert_false(described(&opts)->has_qkv_bias);
        opts.has_qkv_bias = true;
        assert_true(described(&opts)->has_qkv_bias);
        describe_tensor_check(&cases[i], &opts);
    }
}

/* Refusals of the generator, and the least numbers of layers. */
static void schemes_take_shapes(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    gguf_gen_opts opts = small("gqa");

    (void)state;
    assert_int_equal(gguf_gen_scheme_apply(&opts, "nothing", &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "unknown scheme 'nothing'"));
    opts.n_layer = GGUF_GEN_LAYERS_MAX + 1;
    assert_int_equal(gguf_gen_scheme_apply(&opts, "gqa", &err), QUIRE_INVAL);
    for (unsigned i = 0; gguf_gen_scheme_name(i) != NULL; i++) {
        for (uint32_t n = 1; n <= 3; n++) {
            opts = small("gqa");
            opts.n_layer = n;
            assert_int_equal(gguf_gen_scheme_apply(&opts, gguf_gen_scheme_name(i), &err), QUIRE_OK);
            assert_in_range(described(&opts)->n_stored, (n + 1) / 2, n);
        }
    }
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(gguf_edit_path());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemes_are_described),     cmocka_unit_test(plain_files),
        cmocka_unit_test(windows_are_described),     cmocka_unit_test(gate_shapes),
        cmocka_unit_test(damaged_sources_are_named), cmocka_unit_test(damaged_keys_are_named),
        cmocka_unit_test(damaged_tensors_are_named), cmocka_unit_test(biases_are_described),
        cmocka_unit_test(schemes_take_shapes),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
