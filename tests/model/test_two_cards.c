/* test_two_cards.c - layers of one model on two cards at the same time, and twice on one of them:
 * runtimes on threads of their own, with ggml's Vulkan backend on Mesa's lavapipe. Its manifest is
 * given to Vulkan's loader twice, so there are two cards.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "device/validated.h"
#include "directory.h"
#include "gguf_gen.h"
#include "model/backend_device.h"
#include "model/kv_identity.h"
#include "model/model_internal.h"
#include "model_fixture.h"

#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARDS    2u
#define RUNTIMES 3u /* the last one is on the first card, too */
#define N_PROMPT 12u
#define N_GROWN  6u

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static const char *const names[CARDS] = { "vulkan0", "vulkan1" };
static ggml_backend_dev_t cards[CARDS];
static char manifests[CARDS][64];

/* Two copies of lavapipe's manifest, as the loader's only ones. */
static bool manifests_make(void)
{
    char text[4096], list[CARDS * sizeof manifests[0] + 1] = "";
    glob_t found;
    FILE *file;
    size_t n = 0;

    if (glob("/usr/share/vulkan/icd.d/lvp_icd*.json", 0, NULL, &found) != 0) {
        return false;
    }
    file = fopen(found.gl_pathv[0], "r");
    globfree(&found);
    if (file != NULL) {
        n = fread(text, 1, sizeof text, file);
        (void)fclose(file);
    }
    for (uint32_t i = 0; i < CARDS && n > 0; i++) {
        (void)snprintf(manifests[i], sizeof manifests[i], "%s/lavapipe%u.json", test_dir, i);
        file = fopen(manifests[i], "w");
        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, n, file), n);
        assert_int_equal(fclose(file), 0);
        (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 0 ? ":" : "",
                       manifests[i]);
    }
    return n > 0 && setenv("VK_ICD_FILENAMES", list, 1) == 0 &&
           setenv("VK_DRIVER_FILES", list, 1) == 0;
}

static bool info_get(const char *name, quire_device_info *info, quire_error *err)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *device;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_entries_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    if (quire_device_open(&device, name, &opts, err) < 0) {
        return false;
    }
    quire_device_info_get(device, info);
    quire_device_close(device);
    return true;
}

static int setup(void **state)
{
    quire_device_info infos[CARDS];
    quire_error err = QUIRE_ERROR_INIT;

    if (test_dir_make(state) < 0) {
        return -1;
    }
    if (manifests_make() && info_get(names[0], &infos[0], &err) &&
        info_get(names[1], &infos[1], &err)) {
        assert_int_not_equal(infos[0].card, infos[1].card);
        (void)quire_backend_devices_find(cards, infos, CARDS, &err);
    }
    if (cards[1] == NULL) {
        (void)printf("two cards: skipped: %s\n", err.message);
    }
    return 0;
}

static int teardown(void **state)
{
    for (uint32_t i = 0; i < CARDS; i++) {
        (void)remove(manifests[i]);
    }
    return test_dir_remove(state);
}

static void need_cards(void)
{
    if (cards[1] == NULL) {
        skip();
    }
}

static quire_model *model_open(int (*split)(void *, const quire_model_desc *, quire_model_split *,
                                            quire_error *))
{
    const gguf_gen_opts gen = {
        .arch = "llama",
        .name = "two cards",
        .n_layer = 2,
        .n_embd = 64,
        .n_ff = 128,
        .n_head = 4,
        .n_kv_head = 2,
        .d_head = 32,
        .n_vocab = 320,
        .n_ctx = 256,
        .rope_base = 1e4f,
        .vocab = GGUF_GEN_VOCAB_SPM,
        .type = GGML_TYPE_Q8_0,
        .seed = 7,
    };
    quire_model_opts opts = { .n_sets = split != NULL ? 1 : CARDS,
                              .n_device_layers = UINT32_MAX,
                              .split = split };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model;

    memcpy(opts.devices, cards, sizeof cards);
    if (quire_model_open(&model, fixture_generate(&gen), &opts, &err) < 0) {
        fail_msg("%s", err.message);
    }
    fixture_generated_remove();
    return model;
}

typedef struct work {
    quire_runtime *runtime;
    uint32_t n_vocab;
    int rc;
    float *logits; /* [1 + N_GROWN][n_vocab] */
} work;

/* A prompt and further tokens. No assertion: it runs on a thread. */
static void *work_run(void *ctx)
{
    work *w = ctx;
    int32_t tokens[N_PROMPT + N_GROWN];
    const float *logits;
    quire_seq_id seq;

    for (uint32_t i = 0; i < N_PROMPT + N_GROWN; i++) {
        tokens[i] = (int32_t)(262 + i * 7 % 58);
    }
    w->rc = quire_seq_open(quire_runtime_cache(w->runtime), QUIRE_REGION_DYNAMIC, &seq);
    for (uint32_t i = 0; i <= N_GROWN && w->rc == QUIRE_OK; i++) {
        const quire_slice slice = { .seq = seq,
                                    .tokens = i == 0 ? tokens : tokens + N_PROMPT + i - 1,
                                    .n_tokens = i == 0 ? N_PROMPT : 1,
                                    .logits = QUIRE_LOGITS_LAST };

        w->rc = quire_runtime_step(w->runtime, &slice, 1, &logits);
        if (w->rc == QUIRE_OK) {
            memcpy(w->logits + (size_t)i * w->n_vocab, logits, w->n_vocab * sizeof *logits);
        }
    }
    return NULL;
}

static work work_make(const quire_model *model, uint32_t card)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    work w = { .n_vocab = quire_model_desc_get(model)->n_vocab };

    opts.n_ctx = 128;
    opts.n_batch = N_PROMPT;
    opts.n_seqs_max = 1;
    opts.n_threads = 1;
    opts.device = names[card];
    opts.weights_set = card;
    w.runtime = fixture_runtime(model, &opts);
    w.logits = calloc((size_t)(1 + N_GROWN) * w.n_vocab, sizeof *w.logits);
    assert_non_null(w.logits);
    return w;
}

static void test_cards(void **state)
{
    pthread_t threads[RUNTIMES];
    uint64_t identities[RUNTIMES][2];
    quire_model *model;
    work works[RUNTIMES];

    (void)state;
    need_cards();
    assert_ptr_not_equal(cards[0], cards[1]);
    model = model_open(NULL);
    assert_int_equal(model->sets[0]->device_bytes, model->sets[1]->device_bytes);
    assert_ptr_not_equal(model->sets[0]->output->buffer, model->sets[1]->output->buffer);
    for (uint32_t i = 0; i < RUNTIMES; i++) {
        works[i] = work_make(model, i % CARDS);
        quire_kv_identity_get(works[i].runtime, identities[i]);
    }
    for (uint32_t i = 0; i < RUNTIMES; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work_run, &works[i]), 0);
    }
    for (uint32_t i = 0; i < RUNTIMES; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(works[i].rc, QUIRE_OK);
    }
    for (uint32_t i = 1; i < RUNTIMES; i++) { /* equal cards share pages, and round alike */
        assert_memory_equal(identities[i], identities[0], sizeof identities[0]);
        assert_memory_equal(works[i].logits, works[0].logits,
                            (size_t)(1 + N_GROWN) * works[0].n_vocab * sizeof(float));
    }
    for (uint32_t i = 0; i < RUNTIMES; i++) {
        quire_runtime_destroy(works[i].runtime);
        free(works[i].logits);
    }
    quire_model_close(model);
}

static int split_set(void *ctx, const quire_model_desc *desc, quire_model_split *out,
                     quire_error *err)
{
    (void)ctx;
    (void)err;
    *out = (quire_model_split){ .n = CARDS };
    memcpy(out->devices, cards, sizeof cards);
    for (uint32_t il = 1; il <= desc->n_layer; il++) {
        out->of[il] = 1; /* and layer 0 on the first card */
    }
    return QUIRE_OK;
}

/* Layers of one runtime on both cards, with their KV and weights, give the logits of one card but
 * for roundings: ggml fuses operations by the graph that it gets. */
static void test_split(void **state)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    uint64_t identities[2][2];
    quire_model *models[2];
    work works[2];
    double diff;

    (void)state;
    need_cards();
    models[0] = model_open(NULL);
    models[1] = model_open(split_set);
    works[0] = work_make(models[0], 0);
    works[1] = work_make(models[1], 0);
    quire_runtime_destroy(works[1].runtime);
    opts.n_ctx = 128;
    opts.n_batch = N_PROMPT;
    opts.n_seqs_max = 1;
    opts.n_threads = 1;
    opts.device = "vulkan0,vulkan1";
    opts.split = (quire_runtime_split){ .n = CARDS,
                                        .names = { "vulkan0", "vulkan1" },
                                        .end = { 1, models[1]->desc.n_layer } };
    works[1].runtime = fixture_runtime(models[1], &opts);
    for (uint32_t i = 0; i < 2; i++) {
        quire_kv_identity_get(works[i].runtime, identities[i]);
        (void)work_run(&works[i]);
        assert_int_equal(works[i].rc, QUIRE_OK);
    }
    assert_memory_not_equal(identities[0], identities[1], sizeof identities[0]);
    diff = fixture_diff_max(works[0].logits, works[1].logits,
                            (size_t)(1 + N_GROWN) * works[0].n_vocab);
    if (!(diff < 1e-3)) {
        fail_msg("logits differ by %g", diff);
    }
    for (uint32_t i = 0; i < 2; i++) {
        quire_runtime_destroy(works[i].runtime);
        free(works[i].logits);
        quire_model_close(models[i]);
    }
}

/* ggml has listed the cards of the process, so one that is named later is refused. */
static void test_other_card(void **state)
{
    quire_device_info info = { .name = "vulkan9",
                               .isa = "vulkan",
                               .is_software = true,
                               .memory = QUIRE_MEMORY_DEVICE,
                               .card = 9 };
    quire_error err = QUIRE_ERROR_INIT;
    ggml_backend_dev_t card;

    (void)state;
    need_cards();
    assert_int_equal(quire_backend_devices_find(&card, &info, 1, &err), QUIRE_UNSUPP);
    assert_string_equal(err.message, "device vulkan9: weights of this process are on other cards");
    info.card = 1;
    assert_int_equal(quire_backend_devices_find(&card, &info, 1, &err), QUIRE_OK);
    assert_ptr_equal(card, cards[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cards),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_other_card),
        cmocka_unit_test(validated_end),
    };

    validated_begin();
    return cmocka_run_group_tests(tests, setup, teardown);
}
