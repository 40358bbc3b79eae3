/* fuzz_tokenize.c - texts that take long to tokenize, and texts with other tokens than libllama's.
 *
 * The first byte of an input chooses a vocabulary, the second the pre-tokenizer of BPE and the
 * flags. The rest is a text, whose tokens are compared with libllama's.
 *
 * With FUZZ_SLOW in the environment, as `make fuzz` has it, the target also looks for slow texts.
 * The text is repeated up to two lengths, one SCALE times the other. The longer one must not take
 * SLOWER_MAX times as long: linear time takes SCALE times as long, quadratic time its square.
 * Processor time of the whole process is compared, the least of some runs, and only where it is far
 * above a clock's error. Runs whose squared lengths are bounded instead (text.h) are not timed. A
 * text between special tokens costs libllama a new regular expression each, which is linear but
 * takes seconds: a run ends at TIME_MAX_S. The tests set no FUZZ_SLOW, because they measure no
 * time; test_tokenize_same has long texts of each kind.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/backend.h"
#include "model/model_internal.h"
#include "vocab_gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TEXT_BYTES_MAX 256u
#define SHORT_BYTES    ((size_t)4 << 10)
#define SCALE          16u
#define SLOWER_MAX     (SCALE * SCALE / 3)
#define FLOOR_NS       UINT64_C(20000000)
#define N_TRIES        5
#define TIME_MAX_S     4u /* of one text: below the seconds that libFuzzer gives an input */
#define N_VOCABS       8u
#define N_TOKENS_MAX   (3 * TEXT_BYTES_MAX + 8)

static const vocab_gen_opts vocabs[N_VOCABS] = {
    { .kind = VOCAB_GEN_SPM, .n_pieces = 200, .n_specials = 20, .seed = 1 },
    { .kind = VOCAB_GEN_BPE, .pre = "qwen2", .n_pieces = 200, .n_specials = 20, .seed = 2 },
    { .kind = VOCAB_GEN_WPM, .n_pieces = 200, .n_specials = 20, .seed = 3 },
    { .kind = VOCAB_GEN_UGM, .n_pieces = 200, .n_specials = 20, .seed = 4 },
    { .kind = VOCAB_GEN_BPE, .pre = "deepseek-llm", .n_pieces = 200, .n_specials = 20, .seed = 5 },
    { .kind = VOCAB_GEN_BPE, .pre = "superbpe", .n_pieces = 200, .n_specials = 20, .seed = 6 },
    { .kind = VOCAB_GEN_BPE, .pre = "jais-2", .n_pieces = 200, .n_specials = 20, .seed = 7 },
    { .kind = VOCAB_GEN_SPM, .n_pieces = 200, .n_specials = 60, .strips_right = true, .seed = 8 },
};

/* Opened when it is first wanted. */
static const quire_model *model_of(unsigned i)
{
    static quire_model models[N_VOCABS];
    quire_model *model = &models[i];
    struct llama_model_params params = llama_model_default_params();
    quire_error err = QUIRE_ERROR_INIT;
    char path[64];
    int fd;

    if (model->llama != NULL) {
        return model;
    }
    QUIRE_CHECK(quire_backend_init(NULL) == QUIRE_OK);
    fd = memfd_create("vocab", MFD_CLOEXEC);
    QUIRE_CHECK(fd >= 0);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    QUIRE_CHECK(vocab_gen_write(&vocabs[i], path, &err) == QUIRE_OK);
    params.vocab_only = true;
    model->llama = llama_model_load_from_file(path, params);
    QUIRE_CHECK(model->llama != NULL);
    (void)close(fd);
    model->vocab = llama_model_get_vocab(model->llama);
    QUIRE_CHECK(quire_model_tokenizer_create(model, &err) == QUIRE_OK);
    return model;
}

static void compare(const quire_model *model, const char *text, size_t n,
                    const quire_tokenize_opts *opts)
{
    int32_t expected[N_TOKENS_MAX];
    int32_t got[N_TOKENS_MAX];
    const int32_t n_expected = llama_tokenize(model->vocab, text, (int32_t)n, expected,
                                              N_TOKENS_MAX, opts->add_special, opts->parse_special);
    const int64_t n_got = quire_model_tokenize(model, text, n, opts->add_special,
                                               opts->parse_special, got, N_TOKENS_MAX);

    QUIRE_CHECK(n_got == n_expected);
    QUIRE_CHECK(memcmp(got, expected, (size_t)n_got * sizeof(got[0])) == 0);
}

static uint64_t process_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Processor time of a text of n_bytes, up to the end or to TIME_MAX_S. */
static uint64_t tokenize_ns(const quire_model *model, const char *text, size_t n_bytes,
                            const quire_tokenize_opts *opts)
{
    const uint64_t begin_ns = process_ns();
    int32_t *tokens;
    size_t n_tokens;
    const int rc = quire_model_tokenize_all(model, text, n_bytes, opts, &tokens, &n_tokens, NULL);

    QUIRE_CHECK(rc == QUIRE_OK || rc == QUIRE_LIMIT);
    free(tokens);
    return process_ns() - begin_ns;
}

/* Whether the long text takes more than SLOWER_MAX times as long, each time it is tried. */
static bool is_slow(const quire_model *model, const char *text, const quire_tokenize_opts *opts)
{
    uint64_t short_ns = UINT64_MAX;

    for (unsigned i = 0; i < N_TRIES; i++) {
        const uint64_t long_ns = tokenize_ns(model, text, SCALE * SHORT_BYTES, opts);
        const uint64_t ns = tokenize_ns(model, text, SHORT_BYTES, opts);

        short_ns = ns < short_ns ? ns : short_ns;
        if (long_ns < FLOOR_NS || long_ns / SLOWER_MAX < short_ns) {
            return false;
        }
    }
    return true;
}

/* Whether a pre-tokenizer looks at characters again, more often than there are characters. Such
 * runs take squared time by contract, and QUIRE_TOKENIZE_SQUARES_MAX bounds them. */
static bool has_slow_runs(const char *pre, const char *text, size_t n_bytes)
{
    quire_bpe_cut cut;

    if (pre == NULL) {
        return false;
    }
    quire_bpe_cut_init(&cut, pre);
    return quire_bpe_cut_squares(&cut, text, n_bytes) > n_bytes;
}

/* text has room for the longer one of the two lengths. */
static void check_speed(const quire_model *model, const char *pre, char *text, size_t n,
                        const quire_tokenize_opts *opts)
{
    for (size_t i = n; i < SCALE * SHORT_BYTES; i++) {
        text[i] = text[i - n];
    }
    QUIRE_CHECK(has_slow_runs(pre, text, SCALE * SHORT_BYTES) || !is_slow(model, text, opts));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    quire_tokenize_opts opts = { .time_max_s = TIME_MAX_S };
    const char *pre;
    const quire_model *model;
    char *text;
    size_t n;

    if (size < 3) {
        return 0;
    }
    pre = vocabs[data[0] % N_VOCABS].pre;
    model = model_of(data[0] % N_VOCABS);
    opts.add_special = (data[1] & 1) != 0;
    opts.parse_special = (data[1] & 2) != 0;
    n = size - 2 < TEXT_BYTES_MAX ? size - 2 : TEXT_BYTES_MAX;
    text = malloc(SCALE * SHORT_BYTES);
    QUIRE_CHECK(text != NULL);
    memcpy(text, data + 2, n);
    /* libllama throws on code points beyond Unicode. */
    for (size_t i = 0; i < n; i++) {
        text[i] = (unsigned char)text[i] >= 0xf4 ? '?' : text[i];
    }
    compare(model, text, n, &opts);
    if (getenv("FUZZ_SLOW") != NULL) {
        check_speed(model, pre, text, n, &opts);
    }
    free(text);
    return 0;
}
