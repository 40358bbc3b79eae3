/* test_calibrate.c - quire calibrate end to end, and --kv auto's use of the written file.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/commands/talk.h"
#include "cli/measuring/calibrate.h"
#include "model/memory.h"
#include "program.h"

#include <gguf.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Heads of 8 make tiles large: q4 takes 6.5 bits there and q3 takes 8. */
#define TARGET "7.5"

static char cache[160]; /* XDG_CACHE_HOME of all programs that run here */

static int set_cache(void **state)
{
    (void)state;
    (void)snprintf(cache, sizeof(cache), "%s", program_path("cache"));
    return setenv("XDG_CACHE_HOME", cache, 1);
}

/* Remove the file, then the folders that the program made, innermost first. */
static int clean(void **state)
{
    static const char *const folders[] = { "quire/calibration", "quire", "." };
    char path[512];

    (void)snprintf(path, sizeof(path), "rm -f '%s'/quire/calibration/*.yaml*", cache);
    if (system(path) != 0) {
        return -1;
    }
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", cache, folders[i]);
        (void)rmdir(path);
    }
    (void)rmdir(cache);
    return program_clean(state);
}

static double real(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value)) {
        fail_msg("no number '%s'", key);
    }
    return json_number_value(value);
}

static const char *string(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));

    if (value == NULL) {
        fail_msg("no text '%s'", key);
    }
    return value;
}

static const char *text(void)
{
    return program_text("text.txt", 4000);
}

static json_t *calibrate(const char *out)
{
    return program_json(PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "128",
                                "--chunks", "2", "--kv-sinks", "0", "--target", TARGET, "-o", out,
                                "--json"));
}

/* Run perplexity, which reports the formats that --kv auto chose. */
static program_result use(int exit_status)
{
    return program_expect(exit_status,
                          PROGRAM("perplexity", "-m", program_model(), "-f", text(), "-c", "64",
                                  "--chunks", "1", "--kv", "auto:" TARGET));
}

static void expect_costs(const json_t *side)
{
    static const char *const names[] = { "q8", "q6", "q5", "q4", "q3" };
    double before = 0;

    for (size_t i = 0; i < 5; i++) {
        assert_true(real(side, names[i]) >= before);
        before = real(side, names[i]);
    }
}

/* The part of the result that --kv auto uses. */
static const json_t *kept_of(const json_t *result)
{
    return json_object_get(
        result, json_is_true(json_object_get(result, "uniform_wins")) ? "uniform" : "choice");
}

static void writes_what_auto_uses(void **state)
{
    const char *beside = program_path("random.gguf.kv.yaml");
    json_t *result = calibrate(beside);
    json_t *choice = json_object_get(result, "choice");
    json_t *uniform = json_object_get(result, "uniform");
    json_t *info;
    char partial[256];
    program_result used;
    double all = 0; /* of q3 */

    (void)state;
    assert_string_equal(string(result, "file"), beside);
    assert_int_equal(json_array_size(json_object_get(result, "layers")), 2);
    for (size_t l = 0; l < 2; l++) {
        const json_t *layer = json_array_get(json_object_get(result, "layers"), l);

        expect_costs(json_object_get(layer, "k"));
        expect_costs(json_object_get(layer, "v"));
        all += real(json_object_get(layer, "k"), "q3") + real(json_object_get(layer, "v"), "q3");
    }
    assert_true(all > 0);
    assert_true(real(result, "n_scored") == 2 * 63);
    assert_true(real(result, "runs") == 2 + 2 * 2); /* f16, q8, both sides of two layers */
    assert_true(real(choice, "bits_per_value") <= 7.5);
    assert_true(real(uniform, "bits_per_value") <= 7.5);
    assert_true(real(choice, "kld_sum") <= real(uniform, "kld_sum"));
    assert_true(real(json_object_get(choice, "kld"), "mean") > 0);
    assert_int_equal(access(beside, R_OK), 0);
    (void)snprintf(partial, sizeof(partial), "%s.partial", beside);
    assert_int_not_equal(access(partial, F_OK), 0);

    used = use(0);
    assert_says(used.out, "(calibrated): ");
    program_free(&used);
    info = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text(), "-c", "64",
                                "--chunks", "1", "--kv", "auto:" TARGET, "--json"));
    assert_string_equal(string(json_object_get(info, "kv"), "layers"),
                        string(kept_of(result), "layers"));
    json_decref(info);
    used = program_expect(0, PROGRAM("info", program_model(), "--kv", "auto:" TARGET));
    assert_says(used.out, "(calibrated)");
    program_free(&used);
    json_decref(result);

    assert_int_equal(unlink(beside), 0);
    used = use(0);
    assert_null(strstr(used.out, "calibrated"));
    assert_says(used.out, "auto 7.50 -> ");
    assert_null(strstr(used.err, "warning"));
    program_free(&used);
}

static void cache_folder_is_the_default(void **state)
{
    program_result written =
        program_expect(0, PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "64",
                                  "--chunks", "1", "--target", TARGET));
    program_result used;
    const char *beside;
    char *at;
    char path[512];

    (void)state;
    assert_says(written.err, cache);
    assert_says(written.err, "/quire/calibration/");
    assert_says(written.err, ": --kv auto uses it\n");
    assert_says(written.out, "chosen ");
    assert_says(written.out, "--kv-layers \"");
    used = use(0);
    assert_says(used.out, "(calibrated): ");
    program_free(&used);

    /* A file beside the model that cannot be used does not hide it. */
    at = strstr(written.err, cache);
    (void)snprintf(path, sizeof(path), "%.*s", (int)strcspn(at, ":"), at);
    beside = program_file("random.gguf.kv.yaml", "version: 9\n", 11);
    used = use(0);
    assert_says(used.out, "(calibrated): ");
    assert_says(used.err, "version 9");
    assert_says(used.err, beside);
    assert_says(used.err, path);
    program_free(&used);

    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(beside), 0);
    program_free(&written);
}

/* Whether --kv auto uses a file depends on its folder and on files in other folders. */
static void where_it_lies_is_told(void **state)
{
    const char *beside = program_path("random.gguf.kv.yaml");
    const char *places[] = { program_path("elsewhere.yaml"), beside, NULL,
                             program_path("elsewhere.yaml") };
    const char *says[] = { "uses it when it lies at ", ": --kv auto uses it\n", "instead",
                           "instead" };
    char path[512];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        program_result written = program_expect(
            0, PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "16", "--chunks",
                       "1", "--target", TARGET, places[i] != NULL ? "-o" : NULL, places[i]));

        assert_says(written.err, says[i]);
        if (i != 1) {
            assert_says(written.err, beside);
        }
        program_free(&written);
    }
    assert_int_equal(unlink(beside), 0);
    (void)snprintf(path, sizeof(path), "rm '%s'/quire/calibration/*.yaml", cache);
    assert_int_equal(system(path), 0);
}

/* A file that cannot be used is named, and everything goes on without it. */
static void bad_calibrations_are_told(void **state)
{
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        { "", "empty" },
        { "version: 9\n", "version 9" },
        { "version: 1\n", "fingerprint" },
        { "{[", "" },
        { "not: [yaml", "" },
    };
    const char *beside = program_path("random.gguf.kv.yaml");
    char *other;
    program_result used;
    FILE *file;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)program_file("random.gguf.kv.yaml", cases[i].text, strlen(cases[i].text));
        used = use(0);
        assert_says(used.err, "warning: the calibration ");
        assert_says(used.err, beside);
        assert_says(used.err, cases[i].says);
        assert_ptr_equal(strchr(used.err, '\n'), strstr(used.err, "\n")); /* once */
        assert_null(strstr(strstr(used.err, "warning") + 1, "warning"));
        assert_null(strstr(used.out, "calibrated"));
        program_free(&used);
    }

    /* Another model's. */
    json_decref(calibrate(beside));
    other = calloc(1, 1 << 16);
    assert_non_null(other);
    file = fopen(beside, "r+");
    assert_non_null(file);
    assert_true(fread(other, 1, (1 << 16) - 1, file) > 100);
    {
        char *digit = strstr(other, "fingerprint: ") + strlen("fingerprint: ");
        long offset = (long)(digit - other);

        if (*digit == '\'') {
            offset++;
            digit++;
        }
        assert_int_equal(fseek(file, offset, SEEK_SET), 0);
        assert_int_equal(fputc(*digit == '1' ? '2' : '1', file), *digit == '1' ? '2' : '1');
    }
    assert_int_equal(fclose(file), 0);
    free(other);
    used = use(0);
    assert_says(used.err, "made for another model");
    assert_null(strstr(used.out, "calibrated"));
    program_free(&used);
    used = program_expect(0, PROGRAM("info", program_model(), "--kv", "auto:" TARGET));
    assert_says(used.err, "made for another model");
    program_free(&used);
    /* Nobody asked: nobody is told. */
    used = program_expect(0, PROGRAM("info", program_model()));
    assert_string_equal(used.err, "");
    program_free(&used);
    assert_int_equal(unlink(beside), 0);
}

static void measures_for_a_divergence(void **state)
{
    const char *out = program_path("kld.yaml");
    json_t *tight =
        program_json(PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "128",
                             "--chunks", "1", "--max-kld", "0", "-o", out, "--json"));
    json_t *loose =
        program_json(PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "128",
                             "--chunks", "1", "--max-kld", "100", "-o", out, "--json"));

    (void)state;
    assert_true(real(json_object_get(tight, "choice"), "kld_sum") == 0);
    assert_true(real(json_object_get(loose, "choice"), "bits_per_value") <=
                real(json_object_get(tight, "choice"), "bits_per_value"));
    assert_true(real(json_object_get(loose, "choice"), "bits_per_value") < 6.6);
    json_decref(tight);
    json_decref(loose);
}

/* Measuring one format per side gives about the same costs as measuring all formats. */
static void quick_agrees_with_exhaustive(void **state)
{
    const char *model = program_data("stories260K-f32.gguf");
    const char *fables = program_data("fables.txt");
    json_t *quick;
    json_t *all;
    double log_ratio[2] = { 0, 0 };

    (void)state;
    quick = program_json(PROGRAM("calibrate", "-m", model, "-f", fables, "-c", "256", "--chunks",
                                 "4", "--target", "7", "-o", program_path("quick.yaml"), "--json"));
    all = program_json(PROGRAM("calibrate", "-m", model, "-f", fables, "-c", "256", "--chunks", "4",
                               "--target", "7", "-o", program_path("all.yaml"), "--exhaustive",
                               "--json"));
    assert_int_equal(json_array_size(json_object_get(quick, "measured")), 2);
    assert_int_equal(json_array_size(json_object_get(all, "measured")), 5);
    assert_true(real(all, "runs") == 2 + 5 * 2 * 4);
    for (size_t side = 0; side < 2; side++) {
        static const char *const sides[] = { "k", "v" };
        double sum[2] = { 0, 0 };

        for (size_t l = 0; l < 5; l++) {
            const json_t *of[2] = { json_array_get(json_object_get(quick, "layers"), l),
                                    json_array_get(json_object_get(all, "layers"), l) };

            for (size_t i = 0; i < 2; i++) {
                const json_t *costs = json_object_get(of[i], sides[side]);

                expect_costs(costs);
                sum[i] += real(costs, "q4");
            }
        }
        log_ratio[side] = log(sum[1] / sum[0]);
        if (!(fabs(log_ratio[side]) < log(2.0))) {
            fail_msg("q4 of all %s: %g by the ratio of errors, %g measured", sides[side], sum[0],
                     sum[1]);
        }
    }
    json_decref(quick);
    json_decref(all);
}

static void wrong_usage_is_told(void **state)
{
    const char *model = program_model();
    const struct {
        program_args args;
        const char *says;
    } cases[] = {
        { PROGRAM("calibrate", "-f", "x"), "-m FILE is missing" },
        { PROGRAM("calibrate", "-m", model), "-f FILE is missing" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "--target", "2"), "3 to 32" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "--target", "4", "--max-kld", "1"),
          "use one" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "--max-kld", "-1"), "0 to 100" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "-c", "3"), "at least 4" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "--chunks", "0"), "--chunks '0'" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "--kv-recent", "5"), "multiple of 64" },
        { PROGRAM("calibrate", "-m", model, "-f", "x", "--kv", "q8"),
          "--kv is an option of quire run, not of quire calibrate" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_result result = program_expect(2, cases[i].args);

        assert_says(result.err, cases[i].says);
        assert_string_equal(result.out, "");
        program_free(&result);
    }
}

static void failures_leave_no_file(void **state)
{
    const char *model = program_model();
    const char *out = program_path("none.yaml");
    const char *few = program_file("few.txt", "a few words", 11);
    const struct {
        program_args args;
        const char *says;
    } cases[] = {
        { PROGRAM("calibrate", "-m", model, "-f", "/nonexistent", "-o", out), "No such file" },
        { PROGRAM("calibrate", "-m", "/nonexistent", "-f", few, "-o", out), "No such file" },
        { PROGRAM("calibrate", "-m", model, "-f", few, "-c", "64", "-o", out),
          "needs at least as many" },
        { PROGRAM("calibrate", "-m", model, "-f", text(), "-c", "64", "--chunks", "1", "--target",
                  "3", "-o", out),
          "less than the formats can reach" },
        { PROGRAM("calibrate", "-m", model, "-f", text(), "-c", "64", "--kv-budget", "1k",
                  "--target", TARGET, "-o", out),
          "--kv-budget" },
        { PROGRAM("calibrate", "-m", model, "-f", text(), "-c", "64", "--target", TARGET, "-o",
                  "/nonexistent/x"),
          "cannot write /nonexistent/x" },
        { PROGRAM("calibrate", "-m", model, "-f", text(), "-c", "64", "--target", TARGET, "-o",
                  "/"),
          "not a regular file" },
        { PROGRAM("calibrate", "-m", model, "-f", text(), "-c", "64", "--target", TARGET, "-o",
                  "/dev/null"),
          "not a regular file" },
    };
    char partial[256];

    (void)state;
    (void)snprintf(partial, sizeof(partial), "%s.partial", out);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_result result = program_expect(1, cases[i].args);

        assert_says(result.err, cases[i].says);
        assert_string_equal(result.out, "");
        assert_int_not_equal(access(out, F_OK), 0);
        assert_int_not_equal(access(partial, F_OK), 0);
        program_free(&result);
    }
}

/* The model with its last norm, and so all logits, multiplied. Memory: static per name. */
static const char *scaled_model(const char *name, float factor)
{
    struct gguf_init_params params = { .no_alloc = true };
    struct gguf_context *gguf = gguf_init_from_file(program_model(), params);
    char *bytes = NULL;
    size_t n_bytes;
    quire_error err = QUIRE_ERROR_INIT;
    const char *path;
    int64_t tensor;
    size_t offset;

    assert_non_null(gguf);
    tensor = gguf_find_tensor(gguf, "output_norm.weight");
    assert_true(tensor >= 0);
    assert_int_equal(gguf_get_tensor_size(gguf, tensor), 16 * sizeof(float));
    offset = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, tensor);
    gguf_free(gguf);
    assert_int_equal(quire_read_file(program_model(), &bytes, &n_bytes, &err), QUIRE_OK);
    for (size_t i = 0; i < 16; i++) {
        float value;

        memcpy(&value, bytes + offset + i * sizeof(value), sizeof(value));
        value *= factor;
        memcpy(bytes + offset + i * sizeof(value), &value, sizeof(value));
    }
    path = program_file(name, bytes, n_bytes);
    free(bytes);
    return path;
}

/* No crash, no file, no layer that costs nothing. */
static void extreme_models_are_told(void **state)
{
    static const struct {
        const char *name;
        float factor;
        const char *says;
    } cases[] = {
        { "large.gguf", 1e9f, "layer 0, K: q8 costs " },
        { "infinite.gguf", INFINITY, "logits are not finite with KV formats f16" },
    };
    const char *out = program_path("none.yaml");

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        program_result result = program_expect(
            1, PROGRAM("calibrate", "-m", scaled_model(cases[i].name, cases[i].factor), "-f",
                       text(), "-c", "128", "--kv-sinks", "0", "--chunks", "1", "--target", TARGET,
                       "-o", out));

        assert_says(result.err, cases[i].says);
        assert_string_equal(result.out, "");
        assert_int_not_equal(access(out, F_OK), 0);
        program_free(&result);
    }
}

/* Sizes out of reach are told before anything is measured. */
static void unreachable_is_told_at_once(void **state)
{
    program_args args = PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "64",
                                "--chunks", "1", "-o", program_path("none.yaml"), "--target", "3");
    program_result result = program_run_on_terminal(args);

    (void)state;
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "less than the formats can reach");
    assert_null(strstr(result.err, "f16: "));
    program_free(&result);
    args.words[12] = TARGET;
    result = program_run_on_terminal(args);
    assert_int_equal(result.exit_status, 0);
    assert_says(result.err, "f16: "); /* the line that the failed run must lack */
    program_free(&result);
}

static void full_disk_is_told(void **state)
{
    const char *out = program_file("full.yaml", "before\n", 7);
    char partial[256];
    struct stat status;
    program_result result;

    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        print_message("/dev/full is missing\n");
        skip();
    }
    (void)snprintf(partial, sizeof(partial), "%s.partial", out);
    assert_int_equal(symlink("/dev/full", partial), 0);
    result = program_expect(1, PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "64",
                                       "--chunks", "1", "--target", "7", "-o", out));
    assert_says(result.err, "No space left");
    assert_string_equal(result.out, "");
    program_free(&result);
    assert_int_equal(stat(out, &status), 0);
    assert_int_equal(status.st_size, 7); /* the old file is untouched */
    assert_int_not_equal(lstat(partial, &status), 0);
}

static void no_home_is_told(void **state)
{
    const char *home = getenv("HOME");
    char *kept = home != NULL ? strdup(home) : NULL;
    program_result result;

    (void)state;
    assert_int_equal(unsetenv("HOME"), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", "relative", 1), 0);
    result = program_expect(1, PROGRAM("calibrate", "-m", program_model(), "-f", text(), "-c", "64",
                                       "--chunks", "1", "--target", TARGET));
    assert_says(result.err, "-o says where");
    program_free(&result);
    result = use(0); /* nowhere to look, nothing to say */
    assert_null(strstr(result.err, "warning"));
    program_free(&result);
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    if (kept != NULL) {
        assert_int_equal(setenv("HOME", kept, 1), 0);
    }
    free(kept);
}

/* Kept logits count against the limit. */
static void counts_logits(const quire_meter_opts *opts)
{
    quire_opened session = *opts->session;
    quire_meter_opts limited = *opts;
    quire_meter meter;
    quire_error err = QUIRE_ERROR_INIT;
    quire_kv_pair pairs[2] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                               { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 } };
    quire_runtime_opts runtime = QUIRE_RUNTIME_OPTS_INIT;
    quire_memory_need need;
    const uint64_t logits = (uint64_t)2 * 31 * 268 * sizeof(float);

    runtime.n_ctx = opts->n_ctx;
    runtime.n_batch = (uint32_t)opts->common->n_batch;
    runtime.page_tokens = (uint32_t)opts->common->page_tokens;
    runtime.n_seqs_max = 1;
    runtime.kv_recent = (uint32_t)opts->common->kv.recent;
    runtime.kv_sinks = (uint32_t)opts->common->kv.sinks;
    runtime.kv_pairs = pairs;
    quire_memory_need_get(session.desc, &runtime, &need);
    limited.session = &session;

    session.memory_limit_bytes = need.total_bytes + logits;
    assert_int_equal(quire_meter_open(&meter, &limited, &err), QUIRE_OK);
    quire_meter_close(&meter);
    session.memory_limit_bytes--;
    assert_int_equal(quire_meter_open(&meter, &limited, &err), QUIRE_NOMEM);
    assert_non_null(strstr(err.message, "66.5 kB of logits"));
    assert_non_null(strstr(err.message, "the limit is"));
    quire_meter_close(&meter);
    session.memory_limit_bytes = logits - 1;
    assert_int_equal(quire_meter_open(&meter, &limited, &err), QUIRE_NOMEM);
    assert_non_null(strstr(err.message, "66.5 kB of logits"));
    quire_meter_close(&meter);
}

/* In this process, since the program prints nothing while it measures. */
static void meter_bounds_and_interrupt(void **state)
{
    quire_common_args common = { .model = program_model(), .page_tokens = 64, .n_batch = 512 };
    quire_opened session;
    quire_meter meter;
    quire_error err = QUIRE_ERROR_INIT;
    int32_t *tokens = calloc(128, sizeof(*tokens));
    quire_meter_opts opts = {
        .session = &session, .common = &common, .tokens = tokens, .n_ctx = 64, .n_chunks = 2
    };
    quire_kv_pair pairs[2] = { { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 },
                               { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 } };
    quire_calibration result;
    quire_evaluation run;
    float kept;

    (void)state;
    assert_non_null(tokens);
    common.kv.choice.pair = pairs[0];
    for (int32_t i = 0; i < 128; i++) {
        tokens[i] = 3 + i;
    }
    assert_int_equal(quire_opened_open_model(&session, &common, &err), QUIRE_OK);

    /* A run with unchanged formats moves nothing. */
    assert_int_equal(quire_meter_open(&meter, &opts, &err), QUIRE_OK);
    assert_int_equal(quire_meter_run(&meter, pairs, &run, &err), QUIRE_OK);
    assert_int_equal(run.kld.n, 2 * 31);
    assert_true(fabs(run.kld_max) == 0.0);
    quire_evaluation_fini(&run);

    /* No number is no measurement. */
    kept = meter.base_logits[5];
    meter.base_logits[5] = NAN;
    assert_int_equal(quire_meter_run(&meter, pairs, &run, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "not finite with KV formats f16"));
    quire_evaluation_fini(&run);
    assert_int_equal(quire_calibration_init(&result, session.desc, &err), QUIRE_OK);
    assert_int_equal(quire_calibrate(&result, &meter, 1u << QUIRE_FORMAT_Q3, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "not finite with KV formats q8"));
    quire_calibration_fini(&result);
    meter.base_logits[5] = kept;

    quire_interrupt_catch();
    assert_int_equal(raise(SIGINT), 0);
    assert_int_equal(quire_meter_run(&meter, pairs, &run, &err), QUIRE_CANCELED);
    quire_evaluation_fini(&run);
    quire_meter_close(&meter);
    assert_int_equal(quire_meter_open(&meter, &opts, &err), QUIRE_CANCELED);
    assert_non_null(strstr(err.message, "interrupted"));
    quire_meter_close(&meter);
    quire_interrupt_clear();

    counts_logits(&opts);
    opts.n_chunks = 1 << 16;
    opts.n_ctx = 512;
    assert_int_equal(quire_meter_open(&meter, &opts, &err), QUIRE_LIMIT);
    assert_non_null(strstr(err.message, "1.07 GB"));
    quire_meter_close(&meter);
    quire_opened_close(&session);
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_auto_uses),
        cmocka_unit_test(cache_folder_is_the_default),
        cmocka_unit_test(where_it_lies_is_told),
        cmocka_unit_test(bad_calibrations_are_told),
        cmocka_unit_test(measures_for_a_divergence),
        cmocka_unit_test(quick_agrees_with_exhaustive),
        cmocka_unit_test(wrong_usage_is_told),
        cmocka_unit_test(failures_leave_no_file),
        cmocka_unit_test(extreme_models_are_told),
        cmocka_unit_test(unreachable_is_told_at_once),
        cmocka_unit_test(full_disk_is_told),
        cmocka_unit_test(no_home_is_told),
        cmocka_unit_test(meter_bounds_and_interrupt),
    };

    return cmocka_run_group_tests(tests, set_cache, clean);
}
