/* test_vocab.c - vocabularies that libllama would abort or throw on are refused by name, and those
 * it tolerates are not.
 *
 * libllama loads and uses each vocabulary that passes: a false pass is a crash of this program.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "../../fuzz/gguf_exercise.h"
#include "gguf_edit.h"
#include "model/gguf_file.h"
#include "model_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_VOCAB 268u /* of gguf_edit_small() */

/* Load and use the file at path with libllama. Returns the stage that it reached. */
static gguf_stage exercise_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    gguf_stage stage;
    size_t n;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    n = (size_t)ftell(file);
    rewind(file);
    data = malloc(n);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, n, file), n);
    (void)fclose(file);
    stage = gguf_exercise(data, n);
    free(data);
    return stage;
}

/* needle NULL: must pass here and in libllama. */
static void expect(const gguf_edit *edit, int status, const char *needle)
{
    static quire_model_desc desc;
    quire_error err = QUIRE_ERROR_INIT;
    quire_gguf *file = NULL;
    const char *path = gguf_edit_path();
    int rc;

    gguf_edit_save(edit, path);
    if (quire_gguf_open(&file, path, &err) != QUIRE_OK ||
        quire_gguf_describe(file, &desc, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    rc = quire_gguf_check_vocab(file, &desc, &err);
    quire_gguf_close(file);
    if (rc != status || (needle != NULL && (strstr(err.message, needle) == NULL ||
                                            strncmp(err.message, path, strlen(path)) != 0))) {
        fail_msg("status %d, message '%s'; expected %d and '%s'", rc, err.message, status,
                 needle != NULL ? needle : "");
    }
    if (rc == QUIRE_OK) {
        assert_int_equal(exercise_file(path), GGUF_STAGE_DONE);
    }
}

static void open_small(gguf_edit *edit, const char *shape)
{
    gguf_gen_opts opts = gguf_edit_small(shape);

    gguf_edit_open(edit, &opts);
    assert_int_equal(gguf_get_arr_n(edit->gguf, gguf_find_key(edit->gguf, "tokenizer.ggml.tokens")),
                     N_VOCAB);
}

static void set_token(gguf_edit *edit, uint32_t id, const char *text)
{
    static const char key[] = "tokenizer.ggml.tokens";
    int64_t index = gguf_find_key(edit->gguf, key);
    const char *texts[N_VOCAB];
    char *copies[N_VOCAB];

    for (uint32_t i = 0; i < N_VOCAB; i++) {
        copies[i] = strdup(i == id ? text : gguf_get_arr_str(edit->gguf, index, i));
        assert_non_null(copies[i]);
        texts[i] = copies[i];
    }
    gguf_set_arr_str(edit->gguf, key, texts, N_VOCAB);
    for (uint32_t i = 0; i < N_VOCAB; i++) {
        free(copies[i]);
    }
}

static void set_type(gguf_edit *edit, uint32_t id, int32_t type)
{
    static const char key[] = "tokenizer.ggml.token_type";
    int32_t types[N_VOCAB];

    memcpy(types, gguf_get_arr_data(edit->gguf, gguf_find_key(edit->gguf, key)), sizeof(types));
    types[id] = type;
    gguf_set_arr_data(edit->gguf, key, GGUF_TYPE_INT32, types, N_VOCAB);
}

static void set_score(gguf_edit *edit, uint32_t id, float score)
{
    static const char key[] = "tokenizer.ggml.scores";
    float scores[N_VOCAB];

    memcpy(scores, gguf_get_arr_data(edit->gguf, gguf_find_key(edit->gguf, key)), sizeof(scores));
    scores[id] = score;
    gguf_set_arr_data(edit->gguf, key, GGUF_TYPE_FLOAT32, scores, N_VOCAB);
}

typedef struct key_case {
    gguf_edit_key change;
    int status;
    const char *needle;
} key_case;

static void run_key_cases(const char *shape, const key_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        gguf_edit edit;

        open_small(&edit, shape);
        gguf_edit_apply(&edit, &cases[i].change);
        expect(&edit, cases[i].status, cases[i].needle);
        gguf_edit_close(&edit);
    }
}

static void spm_keys(void **state)
{
    static const key_case cases[] = {
        { { "tokenizer.ggml.model", EDIT_REMOVE, 0, NULL, 0 },
          QUIRE_CORRUPT,
          "key tokenizer.ggml.model is missing" },
        { { "tokenizer.ggml.model", EDIT_STR, 0, "bert", 0 },
          QUIRE_UNSUPP,
          "tokenizer.ggml.model 'bert' is not supported (supported: llama, gpt2, gemma4)" },
        { { "tokenizer.ggml.model", EDIT_STR, 0, "no_vocab", 0 }, QUIRE_UNSUPP, "'no_vocab'" },
        { { "tokenizer.ggml.model", EDIT_U32, 1, NULL, 0 }, QUIRE_CORRUPT, "expected string" },
        { { "tokenizer.ggml.model", EDIT_STR, 0, "gpt2", 0 }, QUIRE_CORRUPT, "merges is missing" },
        { { "tokenizer.ggml.pre", EDIT_BOOL, 1, NULL, 0 }, QUIRE_CORRUPT, "pre is of type bool" },
        { { "tokenizer.ggml.tokens", EDIT_REMOVE, 0, NULL, 0 },
          QUIRE_CORRUPT,
          "tokenizer.ggml.tokens is missing or does not have the 268 tokens" },
        { { "tokenizer.ggml.tokens", EDIT_STR, 0, "x", 0 },
          QUIRE_CORRUPT,
          "tokenizer.ggml.tokens is not an array of type str" },
        { { "tokenizer.ggml.scores", EDIT_U32_ARRAY, 0, NULL, 4 },
          QUIRE_CORRUPT,
          "tokenizer.ggml.scores is not an array of type f32" },
        { { "tokenizer.ggml.scores", EDIT_F32, 0, NULL, 0 }, QUIRE_CORRUPT, "not an array" },
        { { "tokenizer.ggml.scores", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.token_type", EDIT_U32_ARRAY, 1, NULL, 4 },
          QUIRE_CORRUPT,
          "tokenizer.ggml.token_type is not an array of type i32" },
        { { "tokenizer.ggml.token_type", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.bos_token_id", EDIT_U32, 268, NULL, 0 },
          QUIRE_CORRUPT,
          "tokenizer.ggml.bos_token_id is 268; expected 0..267" },
        { { "tokenizer.ggml.eos_token_id", EDIT_U32, 4e9, NULL, 0 }, QUIRE_CORRUPT, "4000000000" },
        { { "tokenizer.ggml.eos_token_id", EDIT_I32, 2, NULL, 0 },
          QUIRE_CORRUPT,
          "not of type u32" },
        { { "tokenizer.ggml.eos_token_id", EDIT_U32, UINT32_MAX, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.bos_token_id", EDIT_REMOVE, 0, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.unknown_token_id", EDIT_U32, 300, NULL, 0 }, QUIRE_CORRUPT, "is 300" },
        { { "tokenizer.ggml.seperator_token_id", EDIT_U32, 300, NULL, 0 },
          QUIRE_CORRUPT,
          "is 300" },
        { { "tokenizer.ggml.padding_token_id", EDIT_U32, 267, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.fim_pad_token_id", EDIT_STR, 0, "x", 0 }, QUIRE_CORRUPT, "type u32" },
        { { "tokenizer.ggml.middle_token_id", EDIT_U32, 268, NULL, 0 }, QUIRE_CORRUPT, "is 268" },
        { { "tokenizer.ggml.add_bos_token", EDIT_U32, 1, NULL, 0 },
          QUIRE_CORRUPT,
          "expected bool" },
        { { "tokenizer.ggml.add_eos_token", EDIT_BOOL, 1, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.add_space_prefix", EDIT_U32, 1, NULL, 0 }, QUIRE_CORRUPT, "bool" },
        { { "tokenizer.ggml.add_space_prefix", EDIT_BOOL, 0, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.token_type_count", EDIT_STR, 0, "x", 0 }, QUIRE_CORRUPT, "type u32" },
        { { "tokenizer.ggml.token_type_count", EDIT_U16, 2, NULL, 0 }, QUIRE_CORRUPT, "type u32" },
        { { "general.file_type", EDIT_U16, 0, NULL, 0 },
          QUIRE_CORRUPT,
          "general.file_type is not of type u32" },
        { { "general.file_type", EDIT_U32, 9999, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.suppress_tokens", EDIT_U32_ARRAY, 9, NULL, 2 },
          QUIRE_CORRUPT,
          "suppress_tokens is not an array of type i32" },
        { { "tokenizer.chat_template", EDIT_U32, 1, NULL, 0 }, QUIRE_CORRUPT, "expected string" },
        { { "tokenizer.chat_template", EDIT_STR, 0, "{{ <|im_start|> }}", 0 }, QUIRE_OK, NULL },
    };

    (void)state;
    run_key_cases("tiny-llama", cases, sizeof(cases) / sizeof(cases[0]));
}

static void bpe_keys(void **state)
{
    static const key_case cases[] = {
        { { "tokenizer.ggml.merges", EDIT_REMOVE, 0, NULL, 0 },
          QUIRE_CORRUPT,
          "merges is missing" },
        { { "tokenizer.ggml.merges", EDIT_U32_ARRAY, 1, NULL, 4 },
          QUIRE_CORRUPT,
          "tokenizer.ggml.merges is not an array of type str" },
        { { "tokenizer.ggml.merges", EDIT_STR_ARRAY, 0, "nospace", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.merges", EDIT_STR_ARRAY, 0, "", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.pre", EDIT_STR, 0, "whitespace", 0 }, QUIRE_UNSUPP, "'whitespace'" },
        { { "tokenizer.ggml.pre", EDIT_STR, 0, "gpt-2", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.pre", EDIT_STR, 0, "llama-bpe", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.pre", EDIT_STR, 0, "sarvam-moe", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.pre", EDIT_STR, 0, "gemma4", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.model", EDIT_STR, 0, "gemma4", 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.model", EDIT_STR, 0, "gemma5", 0 },
          QUIRE_UNSUPP,
          "'gemma5' is not supported (supported: llama, gpt2, gemma4)" },
        { { "tokenizer.ggml.add_bos_token", EDIT_BOOL, 1, NULL, 0 }, QUIRE_OK, NULL },
        { { "tokenizer.ggml.bos_token_id", EDIT_U32, 268, NULL, 0 }, QUIRE_CORRUPT, "is 268" },
    };

    (void)state;
    run_key_cases("tiny-qwen2", cases, sizeof(cases) / sizeof(cases[0]));
}

static void expect_token(const char *shape, uint32_t id, const char *text, int status,
                         const char *needle)
{
    gguf_edit edit;

    open_small(&edit, shape);
    set_token(&edit, id, text);
    expect(&edit, status, needle);
    gguf_edit_close(&edit);
}

static void token_texts(void **state)
{
    char *text = malloc(5000);

    (void)state;
    assert_non_null(text);
    memset(text, 'x', 4999);
    text[4999] = '\0';
    expect_token("tiny-llama", 267, "<s>", QUIRE_CORRUPT,
                 "tokenizer.ggml.tokens holds '<s>' twice");
    expect_token("tiny-llama", 267, "", QUIRE_OK, NULL);
    expect_token("tiny-llama", 267, "\xff\xfe", QUIRE_OK, NULL);
    expect_token("tiny-qwen2", 267, "\xff\xe4", QUIRE_OK, NULL);
    expect_token("tiny-llama", 267, text, QUIRE_CORRUPT,
                 "tokenizer.ggml.tokens[267] has 4999 bytes; expected at most 4096");
    text[4096] = '\0';
    expect_token("tiny-llama", 267, text, QUIRE_OK, NULL);
    /* The longest text of characters that BPE cannot render: 4,096 of them would each be rendered
     * as all 4,096 bytes. */
    memset(text, '\xff', 4096);
    expect_token("tiny-qwen2", 267, text, QUIRE_OK, NULL);
    free(text);
}

/* libllama renames an empty text, and a text of that name would be a duplicate. */
static void empty_texts(void **state)
{
    gguf_edit edit;

    (void)state;
    open_small(&edit, "tiny-llama");
    set_token(&edit, 266, "");
    set_token(&edit, 267, "");
    expect(&edit, QUIRE_OK, NULL);
    set_token(&edit, 267, "[EMPTY_265]");
    expect(&edit, QUIRE_OK, NULL);
    set_token(&edit, 267, "[EMPTY_266]");
    expect(&edit, QUIRE_CORRUPT, "holds '[EMPTY_266]' twice");
    gguf_edit_close(&edit);
}

static void texts_that_blow_up(void **state)
{
    gguf_edit edit;
    char text[4097];

    (void)state;
    open_small(&edit, "tiny-qwen2");
    for (uint32_t i = 0; i < 65; i++) {
        memset(text, 'x', 4096);
        text[4096] = '\0';
        text[0] = (char)('0' + i);
        set_token(&edit, 200 + i, text);
    }
    expect(&edit, QUIRE_CORRUPT, "tokenizer.ggml.tokens has too many long tokens");
    gguf_edit_close(&edit);
}

static void byte_tokens(void **state)
{
    (void)state;
    /* Ids 3..258 are the bytes; 'b' of 0x62 has a token of its own, 'Z' of 0x5A has none. */
    expect_token("tiny-llama", 3 + 0x5a, "gone", QUIRE_CORRUPT,
                 "has no token <0x5A>; expected one for each byte");
    expect_token("tiny-llama", 3, "gone", QUIRE_CORRUPT, "has no token <0x00>");
    expect_token("tiny-llama", 3 + 0x62, "gone", QUIRE_OK, NULL);
}

static void types_and_scores(void **state)
{
    gguf_edit edit;

    (void)state;
    open_small(&edit, "tiny-llama");
    set_type(&edit, 267, -5);
    set_score(&edit, 267, -INFINITY);
    expect(&edit, QUIRE_OK, NULL);
    set_type(&edit, 267, 6); /* byte */
    set_token(&edit, 267, "<0");
    expect(&edit, QUIRE_CORRUPT,
           "tokenizer.ggml.token_type[267] is byte, but the token's text is too short");
    set_token(&edit, 267, "<0x");
    expect(&edit, QUIRE_OK, NULL);
    set_score(&edit, 200, NAN);
    expect(&edit, QUIRE_CORRUPT, "tokenizer.ggml.scores[200] is not a number");
    gguf_set_arr_data(edit.gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, (float[2]){ 0 }, 2);
    expect(&edit, QUIRE_CORRUPT, "tokenizer.ggml.scores has 2 elements; expected 268");
    gguf_remove_key(edit.gguf, "tokenizer.ggml.scores");
    gguf_set_arr_data(edit.gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, (int32_t[2]){ 0 },
                      2);
    expect(&edit, QUIRE_CORRUPT, "tokenizer.ggml.token_type has 2 elements; expected 268");
    gguf_edit_close(&edit);
}

/* The checks must not be stricter than the models people have. */
static void real_vocabularies_pass(void **state)
{
    static quire_model_desc desc;
    glob_t models = fixture_models();

    (void)state;
    for (size_t i = 0; i < models.gl_pathc; i++) {
        quire_error err = QUIRE_ERROR_INIT;
        quire_gguf *file = NULL;
        int rc = quire_gguf_open(&file, models.gl_pathv[i], &err);

        rc = rc == QUIRE_OK ? quire_gguf_describe(file, &desc, &err) : rc;
        rc = rc == QUIRE_OK ? quire_gguf_check_vocab(file, &desc, &err) : rc;
        /* A folder of the user's may hold other architectures; that of the tests does not. */
        if (rc != QUIRE_OK && (rc != QUIRE_UNSUPP || i == 0)) {
            fail_msg("%s", err.message);
        }
        quire_gguf_close(file);
    }
    globfree(&models);
}

/* libllama's own tokenizer fixtures are vocabularies without tensors: the check alone. */
static void llama_fixtures_pass(void **state)
{
    static const char *const names[] = {
        "ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-bpe.gguf", "ggml-vocab-qwen2.gguf",
        "ggml-vocab-gpt-2.gguf",     "ggml-vocab-gpt-neox.gguf",  "ggml-vocab-deepseek-llm.gguf",
    };
    uint32_t n_found = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct gguf_init_params params = { .no_alloc = true };
        gguf_gen_opts opts = gguf_edit_small("tiny-llama");
        const char *path = fixture_vocab_path(names[i]);
        struct gguf_context *vocab = path != NULL ? gguf_init_from_file(path, params) : NULL;
        gguf_edit edit;

        if (vocab == NULL) {
            continue;
        }
        n_found++;
        opts.n_vocab =
            (uint32_t)gguf_get_arr_n(vocab, gguf_find_key(vocab, "tokenizer.ggml.tokens"));
        gguf_edit_open(&edit, &opts);
        gguf_set_kv(edit.gguf, vocab);
        gguf_set_val_str(edit.gguf, "general.architecture", "llama");
        gguf_set_val_u32(edit.gguf, "llama.block_count", 1);
        gguf_set_val_u32(edit.gguf, "llama.embedding_length", opts.n_embd);
        gguf_set_val_u32(edit.gguf, "llama.feed_forward_length", opts.n_ff);
        gguf_set_val_u32(edit.gguf, "llama.attention.head_count", opts.n_head);
        gguf_set_val_u32(edit.gguf, "llama.attention.head_count_kv", opts.n_kv_head);
        gguf_set_val_u32(edit.gguf, "llama.rope.dimension_count", opts.d_head);
        expect(&edit, QUIRE_OK, NULL);
        gguf_edit_close(&edit);
        gguf_free(vocab);
    }
    if (n_found == 0) {
        skip();
    }
}

static int remove_file(void **state)
{
    (void)state;
    (void)unlink(gguf_edit_path());
    return 0;
}

/* Opening without weights, as `quire info` does, refuses the files that opening in full refuses,
 * and names the field. */
static void opening_refuses(const gguf_edit *edit, const char *needle)
{
    const char *path = gguf_edit_path();

    gguf_edit_save(edit, path);
    for (unsigned k = 0; k < 2; k++) {
        const quire_model_opts opts = { .describe_only = k == 0 };
        quire_error err = QUIRE_ERROR_INIT;
        quire_model *model = NULL;
        const int rc = quire_model_open(&model, path, &opts, &err);

        if (rc == QUIRE_OK || strstr(err.message, needle) == NULL) {
            fail_msg("status %d, message '%s'; expected '%s'", rc, err.message, needle);
        }
        assert_null(model);
    }
}

static void info_refuses_what_run_does(void **state)
{
    static const gguf_edit_key unknown = { "tokenizer.ggml.pre", EDIT_STR, 0, "made-up\x1b[2J", 0 };
    gguf_edit edit;

    (void)state;
    open_small(&edit, "tiny-qwen2");
    gguf_edit_apply(&edit, &unknown);
    opening_refuses(&edit, "tokenizer.ggml.pre 'made-up?[2J'"); /* no escapes of terminals */
    gguf_edit_close(&edit);
    open_small(&edit, "tiny-qwen2");
    set_token(&edit, 3 + 'A', "lost");
    opening_refuses(&edit, "tokenizer.ggml.tokens has no token 'A'");
    gguf_edit_close(&edit);
    open_small(&edit, "tiny-qwen2");
    set_token(&edit, 3 + ' ', "lost");
    opening_refuses(&edit, "tokenizer.ggml.tokens has no token '\xc4\xa0'");
    gguf_edit_close(&edit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spm_keys),
        cmocka_unit_test(bpe_keys),
        cmocka_unit_test(token_texts),
        cmocka_unit_test(empty_texts),
        cmocka_unit_test(texts_that_blow_up),
        cmocka_unit_test(byte_tokens),
        cmocka_unit_test(types_and_scores),
        cmocka_unit_test(real_vocabularies_pass),
        cmocka_unit_test(llama_fixtures_pass),
        cmocka_unit_test(info_refuses_what_run_does),
    };

    return cmocka_run_group_tests(tests, NULL, remove_file);
}
