/* test_kv_identity.c - each fact that KV depends on changes its identity. Facts that differ between
 * two equal runs do not.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "matmul/matmul.h"
#include "model/kv_identity.h"
#include "model_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define N_LAYER      3u
#define N_STORED     2u
#define N_VOCAB      320u

typedef struct identity {
    uint64_t words[2];
} identity;

static bool is_same(identity a, identity b)
{
    return a.words[0] == b.words[0] && a.words[1] == b.words[1];
}

/* ---- the facts ---- */

/* The data behind the pointers of a quire_kv_identity_facts, so that a test can change a single
 * fact. */
typedef struct facts {
    quire_model_desc desc;
    unsigned char weights[16];
    quire_kv_identity_layer stored[N_STORED];
    quire_kv_identity_facts facts;
} facts;

/* Three layers, two of which store; the last reads both. */
static void facts_init(facts *f)
{
    static const uint32_t versions[] = { 1, 1, 1, 1, 1, 1 };

    memset(f, 0, sizeof *f);
    f->desc = (quire_model_desc){ .n_layer = N_LAYER,
                                  .n_stored = N_STORED,
                                  .n_embd = 64,
                                  .n_head = 4,
                                  .n_kv_head = 2,
                                  .d_k = 16,
                                  .d_v = 16,
                                  .rms_eps = 1e-5f,
                                  .attn_scale = 0.25f,
                                  .rope = { .n_dims = 16,
                                            .freq_base = 10000.0f,
                                            .freq_scale = 1.0f,
                                            .attn_factor = 1.0f,
                                            .ctx_orig = 2048 },
                                  .fingerprint = 0x1234567890abcdefu };
    f->desc.kv_map[0] = (quire_kv_map_entry){ .stored = 0, .n_k = 1, .n_v = 1 };
    f->desc.kv_map[1] =
        (quire_kv_map_entry){ .stored = 1, .n_k = 1, .n_v = 1, .k_src = { 1 }, .v_src = { 1 } };
    f->desc.kv_map[2] =
        (quire_kv_map_entry){ .stored = -1, .n_k = 2, .n_v = 1, .k_src = { 0, 1 }, .v_src = { 1 } };
    for (uint32_t s = 0; s < N_STORED; s++) {
        f->stored[s] = (quire_kv_identity_layer){ .k_format = QUIRE_FORMAT_Q8,
                                                  .v_format = QUIRE_FORMAT_Q4,
                                                  .rotate_k = 16,
                                                  .rotate_v = 16,
                                                  .pairs_qk = true };
    }
    f->facts = (quire_kv_identity_facts){ .desc = &f->desc,
                                          .weights = f->weights,
                                          .stored = f->stored,
                                          .page_tokens = 64,
                                          .kv_recent = 128,
                                          .kv_sinks = 64,
                                          .attn_isa = "avx512",
                                          .ggml = "0.0 AVX=1" };
    memcpy(f->facts.versions, versions, sizeof versions);
}

static identity identity_of(const facts *f)
{
    identity id;

    quire_kv_identity_make(&f->facts, id.words);
    return id;
}

/* A function that changes one fact. */
typedef void (*change)(facts *f);

#define CHANGE(name, statement)                                                                    \
    static void name(facts *f)                                                                     \
    {                                                                                              \
        statement;                                                                                 \
    }

CHANGE(other_fingerprint, f->desc.fingerprint ^= 1)
CHANGE(other_first_weight, f->weights[0] ^= 1)
CHANGE(other_last_weight, f->weights[15] ^= 1)
CHANGE(other_layers, f->desc.n_layer--)
CHANGE(other_width, f->desc.n_embd++)
CHANGE(other_heads, f->desc.n_head = 8)
CHANGE(other_kv_heads, f->desc.n_kv_head = 4)
CHANGE(other_d_k, f->desc.d_k = 32)
CHANGE(other_d_v, f->desc.d_v = 32)
CHANGE(other_scale, f->desc.attn_scale = 0.26f)
CHANGE(other_eps, f->desc.rms_eps = 1e-6f)
CHANGE(other_rope_type, f->desc.rope.type = QUIRE_ROPE_NEOX)
CHANGE(other_rope_scaling, f->desc.rope.scaling = QUIRE_ROPE_SCALING_YARN)
CHANGE(other_rope_dims, f->desc.rope.n_dims = 8)
CHANGE(other_rope_base, f->desc.rope.freq_base = 1e6f)
CHANGE(other_rope_scale, f->desc.rope.freq_scale = 0.5f)
CHANGE(other_rope_ext, f->desc.rope.ext_factor = 1.0f)
CHANGE(other_rope_attn, f->desc.rope.attn_factor = 0.5f)
CHANGE(other_rope_fast, f->desc.rope.beta_fast = 32.0f)
CHANGE(other_rope_slow, f->desc.rope.beta_slow = 1.0f)
CHANGE(other_rope_ctx, f->desc.rope.ctx_orig = 4096)
CHANGE(other_store, f->desc.kv_map[1].stored = -1)
CHANGE(other_k_source, f->desc.kv_map[2].k_src[1] = 0)
CHANGE(other_v_source, f->desc.kv_map[2].v_src[0] = 0)
CHANGE(fewer_k_sources, f->desc.kv_map[2].n_k = 1)
CHANGE(more_v_sources, f->desc.kv_map[2].n_v = 2)
CHANGE(other_k_format, f->stored[1].k_format = QUIRE_FORMAT_F16)
CHANGE(other_v_format, f->stored[1].v_format = QUIRE_FORMAT_F16)
CHANGE(other_rotate_k, f->stored[1].rotate_k = 0)
CHANGE(other_rotate_v, f->stored[0].rotate_v = 0)
CHANGE(other_rounding, f->stored[1].pairs_qk = false)
CHANGE(other_page, f->facts.page_tokens = 128)
CHANGE(other_recent, f->facts.kv_recent = 64)
CHANGE(other_sinks, f->facts.kv_sinks = 0)
CHANGE(other_groups, f->facts.has_window_group = true)
CHANGE(other_bounds, f->facts.has_bounds = true)
CHANGE(other_isa, f->facts.attn_isa = "avx2")
CHANGE(other_ggml, f->facts.ggml = "0.0 AVX=0")
CHANGE(other_identity_version, f->facts.versions[0]++)
CHANGE(other_layout_version, f->facts.versions[1]++)
CHANGE(other_codec_version, f->facts.versions[2]++)
CHANGE(other_rotation_version, f->facts.versions[3]++)
CHANGE(other_rounding_version, f->facts.versions[4]++)
CHANGE(other_kernels_version, f->facts.versions[5]++)

static const change changes[] = {
    other_fingerprint,
    other_first_weight,
    other_last_weight,
    other_layers,
    other_width,
    other_heads,
    other_kv_heads,
    other_d_k,
    other_d_v,
    other_scale,
    other_eps,
    other_rope_type,
    other_rope_scaling,
    other_rope_dims,
    other_rope_base,
    other_rope_scale,
    other_rope_ext,
    other_rope_attn,
    other_rope_fast,
    other_rope_slow,
    other_rope_ctx,
    other_store,
    other_k_source,
    other_v_source,
    fewer_k_sources,
    more_v_sources,
    other_k_format,
    other_v_format,
    other_rotate_k,
    other_rotate_v,
    other_rounding,
    other_page,
    other_recent,
    other_sinks,
    other_groups,
    other_bounds,
    other_isa,
    other_ggml,
    other_identity_version,
    other_layout_version,
    other_codec_version,
    other_rotation_version,
    other_rounding_version,
    other_kernels_version,
};

static void test_each_fact_counts(void **state)
{
    identity seen[COUNT(changes) + 1];
    facts f;

    (void)state;
    facts_init(&f);
    seen[COUNT(changes)] = identity_of(&f);
    assert_true(is_same(seen[COUNT(changes)], identity_of(&f)));
    for (size_t i = 0; i < COUNT(changes); i++) {
        facts_init(&f);
        changes[i](&f);
        seen[i] = identity_of(&f);
    }
    for (size_t i = 0; i <= COUNT(changes); i++) {
        for (size_t j = 0; j < i; j++) {
            if (is_same(seen[i], seen[j])) {
                fail_msg("changes %zu and %zu give the same identity", i, j);
            }
        }
    }
}

/* The identity of these facts is fixed, on any machine, so that stored pages are found by later
 * versions. */
static void test_golden(void **state)
{
    facts f;
    identity id;

    (void)state;
    facts_init(&f);
    id = identity_of(&f);
    assert_int_equal(id.words[0], 0xd0a1bd075576b486u);
    assert_int_equal(id.words[1], 0xb26dd7a3b2185750u);
}

/* Sets of kernels that give the same bits have one identity (test_attn_kernel_sets holds that they
 * do); those that do not, two. */
static void test_kernel_families(void **state)
{
    static const char *const isas[] = { "portable", "avx2",        "neon",
                                        "avx512",   "avx512+bf16", "avx512+amx" };
    identity ids[2][COUNT(isas)];

    (void)state;
    for (uint32_t has_bf16 = 0; has_bf16 < 2; has_bf16++) {
        for (size_t i = 0; i < COUNT(isas); i++) {
            facts f;

            facts_init(&f);
            f.facts.attn_isa = isas[i];
            f.stored[1].v_format = has_bf16 ? QUIRE_FORMAT_BF16 : QUIRE_FORMAT_F16;
            ids[has_bf16][i] = identity_of(&f);
            for (size_t j = 0; j < i; j++) {
                assert_int_equal(is_same(ids[has_bf16][i], ids[has_bf16][j]), !has_bf16 && j >= 3);
            }
        }
    }
}

/* The distance rule is one of sealed formats. */
static void test_distance_rule(void **state)
{
    identity ids[2];

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        facts f;

        facts_init(&f);
        f.stored[0].v_format = f.stored[1].v_format = QUIRE_FORMAT_F16;
        f.facts.kv_recent = 64 * i;
        f.facts.kv_sinks = 64 * i;
        ids[i] = identity_of(&f);
    }
    assert_true(is_same(ids[0], ids[1]));
}

/* The format of states counts where there are states. */
static void test_state_format(void **state)
{
    identity ids[2][2];

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        facts f;

        facts_init(&f);
        f.desc.recurrent.n_layers = i / 2;
        f.facts.state_format = i % 2 == 0 ? QUIRE_FORMAT_F32 : QUIRE_FORMAT_F16;
        ids[i / 2][i % 2] = identity_of(&f);
    }
    assert_true(is_same(ids[0][0], ids[0][1]));
    assert_false(is_same(ids[1][0], ids[1][1]));
    assert_false(is_same(ids[0][0], ids[1][0]));
}

/* ---- runtimes ---- */

static identity runtime_identity(const char *path, const quire_model_opts *model_opts,
                                 const quire_runtime_opts *opts)
{
    quire_model *model = fixture_open_as(path, model_opts);
    quire_runtime *runtime;
    identity id;

    runtime = fixture_runtime(model, opts);
    quire_kv_identity_get(runtime, id.words);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
    return id;
}

static quire_runtime_opts some_opts(void)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = 256;
    opts.n_threads = 1;
    opts.k_format = QUIRE_FORMAT_Q8;
    opts.v_format = QUIRE_FORMAT_Q4;
    return opts;
}

static const char *generate(uint64_t seed)
{
    gguf_gen_opts gen = fixture_llama("identity", N_LAYER, N_VOCAB, 256, seed);

    gen.type = GGML_TYPE_Q8_0; /* which panels take */
    return fixture_generate(&gen);
}

/* The identity that a second process of this program prints. */
static identity identity_elsewhere(const char *path)
{
    char self[1024] = "";
    char command[4096];
    identity id = { { 0, 0 } };
    FILE *pipe;

    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    (void)snprintf(command, sizeof command, "'%s' --identity '%s'", self, path);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%" SCNx64 " %" SCNx64, &id.words[0], &id.words[1]), 2);
    assert_int_equal(pclose(pipe), 0);
    return id;
}

static void test_other_processes(void **state)
{
    const quire_runtime_opts opts = some_opts();
    const char *path = generate(5);
    const identity id = runtime_identity(path, NULL, &opts);

    (void)state;
    assert_true(id.words[0] != 0 && id.words[1] != 0 && id.words[0] != id.words[1]);
    assert_true(is_same(id, runtime_identity(path, NULL, &opts)));
    assert_true(is_same(id, identity_elsewhere(path)));
    fixture_generated_remove();
}

/* Threads, limits and budgets change no KV. Formats, pages and the kernels of the products do. */
static void test_runtime_options(void **state)
{
    const quire_model_opts as_mapped = { .no_repack = true };
    const quire_runtime_opts opts = some_opts();
    quire_runtime_opts other = opts;
    const char *path = generate(5);
    const identity id = runtime_identity(path, NULL, &opts);

    (void)state;
    other.n_threads = 2;
    other.n_ctx = 512;
    other.n_batch = 64;
    other.n_seqs_max = 3;
    other.kv_budget_bytes = 64u << 20;
    other.no_cascade = true;
    assert_true(is_same(id, runtime_identity(path, NULL, &other)));
    other = opts;
    other.v_format = QUIRE_FORMAT_Q5;
    assert_false(is_same(id, runtime_identity(path, NULL, &other)));
    other = opts;
    other.page_tokens = 128;
    assert_false(is_same(id, runtime_identity(path, NULL, &other)));
    other = opts;
    other.kv_recent = 0;
    assert_false(is_same(id, runtime_identity(path, NULL, &other)));
    if (quire_matmul_kernels_find(NULL) != NULL) { /* else ggml multiplies in any case */
        assert_false(is_same(id, runtime_identity(path, &as_mapped, &opts)));
    }
    fixture_generated_remove();
}

/* Byte `from_end` of a file, counted from its end, gets another value. */
static void file_flip(const char *path, long from_end)
{
    FILE *file = fopen(path, "r+b");
    int byte;

    assert_non_null(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    byte = fgetc(file);
    assert_true(byte >= 0);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

/* A model of the same shape, name and length with other weights; one with another last weight. */
static void test_other_weights(void **state)
{
    const quire_runtime_opts opts = some_opts();
    const char *path = generate(5);
    const identity id = runtime_identity(path, NULL, &opts);
    identity flipped;

    (void)state;
    file_flip(path, 4);
    flipped = runtime_identity(path, NULL, &opts);
    assert_false(is_same(id, flipped));
    file_flip(path, 4);
    assert_true(is_same(id, runtime_identity(path, NULL, &opts)));
    fixture_generated_remove();
    path = generate(6);
    assert_false(is_same(id, runtime_identity(path, NULL, &opts)));
    fixture_generated_remove();
}

/* ---- kernels ---- */

#define N_PROMPT 150u

/* The results of a set of kernels for a prompt. */
typedef struct result {
    bool is_there; /* this CPU has the set */
    identity id;
    float logits[N_VOCAB];
} result;

static void result_get(result *r, const char *isa, const char *path, quire_format format)
{
    quire_runtime_opts opts = some_opts();
    int32_t tokens[N_PROMPT];
    quire_runtime *runtime;
    quire_model *model;

    opts.k_format = opts.v_format = format;
    assert_int_equal(setenv("QUIRE_ISA", isa, 1), 0);
    r->is_there = quire_attn_isa() != NULL && strcmp(quire_attn_isa(), isa) == 0;
    if (!r->is_there) {
        return;
    }
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        tokens[i] = (int32_t)(i * 7u % N_VOCAB);
    }
    model = fixture_open(path);
    runtime = fixture_runtime(model, &opts);
    quire_kv_identity_get(runtime, r->id.words);
    memcpy(r->logits,
           fixture_step(runtime, fixture_seq(runtime), tokens, N_PROMPT, QUIRE_LOGITS_LAST),
           sizeof r->logits);
    quire_runtime_destroy(runtime);
    quire_model_close(model);
}

/* Among all kernel sets of this CPU, equal identities mean equal results, to the bit. */
static void test_same_identity_same_bits(void **state)
{
    static const char *const isas[] = { "portable", "avx2",        "neon",
                                        "avx512",   "avx512+bf16", "avx512+amx" };
    static const quire_format formats[] = { QUIRE_FORMAT_F32, QUIRE_FORMAT_F16, QUIRE_FORMAT_BF16,
                                            QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };
    const char *before = getenv("QUIRE_ISA");
    char saved[32] = "";
    static result results[COUNT(isas)];
    const char *path = generate(5);

    (void)state;
    (void)snprintf(saved, sizeof saved, "%s", before != NULL ? before : "");
    for (size_t f = 0; f < COUNT(formats); f++) {
        for (size_t i = 0; i < COUNT(isas); i++) {
            result_get(&results[i], isas[i], path, formats[f]);
            for (size_t j = 0; j < i && results[i].is_there; j++) {
                if (results[j].is_there && is_same(results[i].id, results[j].id) &&
                    memcmp(results[i].logits, results[j].logits, sizeof results[i].logits) != 0) {
                    fail_msg("%s and %s differ in %s", isas[i], isas[j],
                             quire_format_name(formats[f]));
                }
            }
        }
        assert_true(results[0].is_there);
    }
    assert_int_equal(before != NULL ? setenv("QUIRE_ISA", saved, 1) : unsetenv("QUIRE_ISA"), 0);
    fixture_generated_remove();
}

static int print_identity(const char *path)
{
    const quire_runtime_opts opts = some_opts();
    const identity id = runtime_identity(path, NULL, &opts);

    (void)printf("%" PRIx64 " %" PRIx64 "\n", id.words[0], id.words[1]);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_fact_counts),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_kernel_families),
        cmocka_unit_test(test_distance_rule),
        cmocka_unit_test(test_state_format),
        cmocka_unit_test(test_other_processes),
        cmocka_unit_test(test_runtime_options),
        cmocka_unit_test(test_other_weights),
        cmocka_unit_test(test_same_identity_same_bits),
    };

    if (argc == 3 && strcmp(argv[1], "--identity") == 0) {
        return print_identity(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
