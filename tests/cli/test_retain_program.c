/* test_retain_program.c - --retain of quire run, chat, perplexity and serve, end to end.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "quire/codec.h"
#include "retained.h"
#include "served.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All tokens kept: the figures of a run without. A share: less memory, and the base keeps all. */
static void perplexity_with_a_share(void **state)
{
    const char *text = text_file();
    json_t *full = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                        "512", "--chunks", "2", "--json"));
    json_t *all = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c", "512",
                                       "--chunks", "2", "--retain", "window:1", "--prefill-chunk",
                                       "128", "--json"));
    json_t *some = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                        "512", "--chunks", "2", "--retain", "snap:0.25,recent=16",
                                        "--prefill-chunk", "128", "--kld", "--json"));
    const json_t *kv = json_object_get(some, "kv");
    const json_t *retained = json_object_get(kv, "retained");

    (void)state;
    assert_null(retained_of(full));
    assert_true(number(full, "ppl") == number(all, "ppl"));
    assert_true(number(json_object_get(some, "base"), "ppl") == number(full, "ppl"));
    assert_true(number(some, "ppl") != number(full, "ppl"));
    assert_true(number(retained, "generations") == 3);
    assert_true(number(retained, "computed_tokens") == 2 * 512); /* each token once */
    assert_true(number(retained, "repeated_rows") == 0);
    assert_true(number(retained, "peak_bytes") == number(kv, "live_peak_bytes"));
    assert_true(number(retained, "peak_bytes") <=
                number(json_object_get(full, "kv"), "live_peak_bytes") / 8 * 5);
    assert_true(number(retained, "share") < 0.5);
    assert_true(strncmp(json_string_value(json_object_get(retained, "policy")), "snap:0.25,sinks=4",
                        17) == 0);
    json_decref(some);
    json_decref(all);
    json_decref(full);
}

/* The mean divergence of a run from that of all tokens. */
static double divergence(const json_t *run)
{
    return number(json_object_get(json_object_get(run, "base"), "kld"), "mean");
}

/* merge=fit: nothing dropped gives the figures of a run without; else the same tokens are kept in
 * as many bytes of pages, and predictions come closer to those of all tokens than by dropping. */
static void perplexity_with_a_fit(void **state)
{
#define STORIES(policy)                                                                            \
    PROGRAM("perplexity", "-m", program_data("stories260K-f32.gguf"), "-f",                        \
            program_data("fables.txt"), "-c", "256", "--chunks", "4", "--prefill-chunk", "64",     \
            "--retain", policy, "--kld", "--json")
    json_t *all = program_json(STORIES("reconstruct:1,merge=fit"));
    json_t *dropped = program_json(STORIES("reconstruct:0.5,recent=16"));
    json_t *fitted = program_json(STORIES("reconstruct:0.5,recent=16,merge=fit"));
    const json_t *one = retained_of(dropped);
    const json_t *other = retained_of(fitted);

    (void)state;
    assert_true(divergence(all) == 0);
    assert_true(number(one, "share") == number(other, "share"));
    assert_true(number(one, "peak_bytes") == number(other, "peak_bytes"));
    if (!(divergence(fitted) < 0.9 * divergence(dropped))) {
        fail_msg("fit %g, dropping %g", divergence(fitted), divergence(dropped));
    }
    json_decref(fitted);
    json_decref(dropped);
    json_decref(all);
}

/* Policies that watch the rows of steps, and the one that repeats the text: generations as above,
 * all tokens give the figures of a run without. */
static void perplexity_with_watching_policies(void **state)
{
    static const char *const policies[][2] = {
        { "heavy:1", "heavy:0.3,recent=16" },
        { "expected:1", "expected:0.3,recent=16,future=64" },
        { "reconstruct:1,repeat=40", "reconstruct:0.3,recent=16,repeat=40" },
        { "entropy:1,full_layers=none", "entropy:0.3,recent=16,full_layers=none" },
    };
    const char *text = text_file();
    json_t *full = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                        "512", "--chunks", "2", "--json"));

    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        json_t *all = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                           "512", "--chunks", "2", "--retain", policies[i][0],
                                           "--prefill-chunk", "128", "--json"));
        json_t *some = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                            "512", "--chunks", "2", "--retain", policies[i][1],
                                            "--prefill-chunk", "128", "--json"));
        const json_t *retained = retained_of(some);

        assert_true(number(full, "ppl") == number(all, "ppl"));
        assert_true(number(some, "ppl") != number(full, "ppl"));
        assert_true(number(retained, "generations") == 3);
        assert_true(number(retained, "computed_tokens") == 2 * 512);
        assert_true((number(retained, "repeated_rows") > 2 * 3 * 128) == (i == 2));
        assert_true(number(retained, "share") < 0.55);
        assert_true(number(retained, "peak_bytes") <= number(retained, "budget_bytes"));
        json_decref(some);
        json_decref(all);
    }
    json_decref(full);
}

/* Sealed formats: fewer bytes again. */
static void perplexity_in_four_bits(void **state)
{
    const char *text = text_file();
    json_t *half = program_json(PROGRAM("perplexity", "-m", program_model(), "-f", text, "-c",
                                        "512", "--chunks", "2", "--retain", "snap:0.5,recent=16",
                                        "--prefill-chunk", "128", "--json"));
    json_t *small = program_json(PROGRAM(
        "perplexity", "-m", program_model(), "-f", text, "-c", "512", "--chunks", "2", "--kv", "q4",
        "--retain", "snap:0.5,recent=16", "--prefill-chunk", "128", "--kld", "--json"));
    const json_t *retained = retained_of(small);

    (void)state;
    assert_true(number(retained, "generations") >= 3);
    assert_true(number(retained, "share") < 0.8);
    assert_true(number(retained, "peak_bytes") <= number(retained, "budget_bytes"));
    assert_true(number(retained, "peak_bytes") < number(retained_of(half), "peak_bytes"));
    assert_true(number(small, "ppl") > 0);
    json_decref(small);
    json_decref(half);
}

/* The server has read the file: all requests share the texts that it condenses. */
static void serve_predicted(const char *model)
{
    char first[256], again[256];
    program_running running = program_start(
        PROGRAM("serve", "-m", model, "-t", "1", "--port", "0", "--log-level", "errors", "--retain",
                "predict:0.5,recent=60", "--retain-chunk", "128"));
    const uint16_t port = served_port(&running);

    assert_int_equal(served_complete(port, first, sizeof first), 0);
    assert_true(
        served_metric(port, "quire_condensings_total{cache_source=\"computed\",input=\"whole\"}") >=
        1);
    assert_true(served_complete(port, again, sizeof again) > 128);
    assert_string_equal(first, again);
    served_end(&running, SIGTERM);
}

/* A server with KV in four bits, the same answer from cached pages. */
static void server_in_four_bits(void **state)
{
    program_running running = program_start(PROGRAM(
        "serve", "-m", program_model(), "-t", "1", "--port", "0", "--log-level", "errors", "--kv",
        "q4", "--kv-recent", "0", "--retain", "keydiff:0.25,recent=60", "--retain-chunk", "128"));
    const uint16_t port = served_port(&running);
    char first[4096], again[4096];

    (void)state;
    assert_int_equal(served_complete(port, first, sizeof first), 0);
    assert_true(
        served_metric(port, "quire_condensings_total{cache_source=\"computed\",input=\"whole\"}") >=
        1);
    assert_true(served_metric(port, "quire_condensed_cached_bytes") > 0);
    assert_true(served_complete(port, again, sizeof again) >= 128);
    assert_string_equal(first, again);
    served_end(&running, SIGTERM);
}

/* The KV budget that a server has with 1 GiB for all. */
static int64_t budget_with(const char *kv, const char *name, const char *value, const char *chunk)
{
    json_t *document =
        program_json(PROGRAM("serve", "-m", program_model(), "--memory-limit", "1GiB",
                             "--cache-memory-ratio", "1", "--max-batch-size", "4", "--kv", kv, name,
                             value, "--retain-chunk", chunk, "--check-config", "--json"));
    const int64_t bytes =
        (int64_t)number(json_object_get(document, "effective"), "kv_budget_bytes");

    json_decref(document);
    return bytes;
}

static int64_t budget_beside(const char *policy, const char *chunk)
{
    return budget_with("q8", "--retain", policy, chunk);
}

/* The buffers that the policy's requests need beside pages are taken off the KV budget. */
static void buffers_are_counted(void **state)
{
    json_t *info = program_json(PROGRAM("info", "-m", program_model(), "--json"));
    const int64_t n_layers = (int64_t)number(info, "n_layer");
    const int64_t n_lanes = n_layers * (int64_t)number(info, "n_kv_head");
    const int64_t query_bytes = n_layers * (int64_t)number(info, "n_head") *
                                (int64_t)number(info, "d_k") * (int64_t)sizeof(float);
    const int64_t even = budget_beside("keydiff:0.5,recent=60", "256");
    const int64_t sealed = budget_with("q4", "--retain", "keydiff:0.5,recent=60", "256");
    const int64_t lanes = budget_beside("keydiff:0.5,recent=60,floor=0.2", "256");
    const int64_t snap = budget_beside("snap:0.5,recent=60,probe=32", "256");
    const int64_t repeated = budget_beside("reconstruct:0.5,recent=60,repeat=64", "256");
    const int64_t n_requests = (lanes - snap) / (32 * query_bytes);
    const json_t *f16 = json_array_get(json_object_get(info, "kv"), 1);
    const int64_t name_bytes = 4096 * (int64_t)sizeof(int32_t); /* for each token of a chunk */
    int64_t names;
    const int64_t kv_bytes = 2 * 512 * (int64_t)number(f16, "bytes_per_token");
    char limit[32], kv[32];
    program_result refused;

    (void)state;
    assert_true(n_requests >= 4);
    assert_int_equal(lanes - snap, n_requests * 32 * query_bytes);
    assert_int_equal(lanes -
                         budget_beside("entropy:0.5,recent=60,probe=64,full_layers=none", "256"),
                     n_requests * 64 * query_bytes);
    /* Beside the scratch of each thread, which does not depend on the chunk. */
    assert_int_equal(repeated - budget_beside("reconstruct:0.5,recent=60,repeat=64", "512"),
                     n_requests * n_lanes * 256 * (int64_t)sizeof(float) + name_bytes * 256);
    assert_true(even - repeated > n_requests * n_lanes * 256 * (int64_t)sizeof(float));
    /* Packed pages have lists, and a device that computes their attention. Even policies have them
     * in sealed formats; texts that read a share of their pages have the device. */
    assert_true(even - lanes > n_requests * (n_lanes + 1) * (int64_t)sizeof(uint32_t));
    assert_true(budget_with("q4", "--cache-state", "none", "256") - sealed >
                n_requests * (n_lanes + 1) * (int64_t)sizeof(uint32_t) + name_bytes * 256);
    /* All policies have names of condensed texts: the tokens of chunks, which are no longer than a
     * context. */
    names = budget_with("q8", "--cache-state", "none", "256") - even;
    assert_in_range(names, name_bytes * 256, name_bytes * 256 + (1 << 20));
    assert_int_equal(even - budget_beside("keydiff:0.5,recent=60", "512"), name_bytes * 256);
    assert_int_equal(budget_beside("keydiff:0.5,recent=60", "512"),
                     budget_beside("keydiff:0.5,recent=60", "32768"));
    assert_int_equal(sealed,
                     budget_with("q4", "--retain", "keydiff:0.5,recent=60,floor=0.2", "256"));
    assert_true(even + names - budget_with("q8", "--attend", "top:0.5", "256") > 0);
    /* A budget that only a policy without buffers leaves. */
    (void)snprintf(kv, sizeof kv, "%lld", (long long)kv_bytes);
    (void)snprintf(limit, sizeof limit, "%lld", (long long)((1 << 30) - even + kv_bytes));
    refused =
        program_expect(0, PROGRAM("serve", "-m", program_model(), "--memory-limit", limit,
                                  "--kv-budget", kv, "--max-batch-size", "4", "--retain-chunk",
                                  "256", "--retain", "keydiff:0.5,recent=60", "--check-config"));
    program_free(&refused);
    refused = program_expect(1, PROGRAM("serve", "-m", program_model(), "--memory-limit", limit,
                                        "--kv-budget", kv, "--max-batch-size", "4",
                                        "--retain-chunk", "256", "--retain",
                                        "snap:0.5,recent=60,probe=32", "--check-config"));
    assert_says(refused.err, "the limit is");
    program_free(&refused);
    json_decref(info);
}

/* calibrate --retain writes a file, which predict finds beside the model. */
static void predict_learns_first(void **state)
{
    const char *text = text_file();
    const char *model = program_model();
    char beside[4096];
    const int64_t budget = budget_beside("keydiff:0.5,recent=60", "256");
    json_t *learned, *some;

    (void)state;
    refuse(1, "predict has learned nothing about this model",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "predict", "-c", "256"));
    refuse(1, "--retain: the policy predict has learned nothing about this model",
           PROGRAM("serve", "-m", model, "--port", "0", "--retain", "predict", "-c", "256"));
    (void)snprintf(beside, sizeof beside, "%s.retain", model);
    learned = program_json(PROGRAM("calibrate", "--retain", "-m", model, "-f", text, "-c", "128",
                                   "--chunks", "9", "-o", beside, "--json"));
    assert_true(number(learned, "n_fitted") == 7);
    assert_true(number(learned, "n_tested") == 2);
    assert_int_equal(json_array_size(json_object_get(learned, "correlation")), 2);
    some = program_json(PROGRAM("info", "-m", model, "--json"));
    assert_int_equal(budget - budget_beside("keydiff:0.5,recent=60", "256"),
                     (int64_t)(number(some, "n_layer") * number(some, "n_kv_head") *
                               (number(some, "n_embd") + 1)) *
                         (int64_t)sizeof(float));
    json_decref(some);
    some = program_json(PROGRAM("perplexity", "-m", model, "-f", text, "-c", "512", "--chunks", "1",
                                "--retain", "predict:0.3,recent=16", "--prefill-chunk", "128",
                                "--json"));
    assert_true(number(retained_of(some), "generations") == 3);
    assert_true(number(retained_of(some), "computed_tokens") == 512);
    serve_predicted(model);
    assert_int_equal(truncate(beside, 100), 0);
    refuse(1, ".retain cannot be used: 100 bytes do not fit",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "predict", "-c", "256"));
    assert_int_equal(unlink(beside), 0);
    json_decref(some);
    json_decref(learned);
}

#define SLIDING(...)                                                                               \
    PROGRAM("perplexity", "-m", program_model_sliding(), "-f", text_file(), "-c", "512", "-b",     \
            "64", "--chunks", "2", "--json", __VA_ARGS__)

/* Two of four layers have a window, of 300 tokens: they keep it, and the share is that of the other
 * layers. Maps are fitted for those alone. */
static void windows_stay(void **state)
{
    json_t *full = program_json(SLIDING("--kv", "f16"));
    json_t *all = program_json(SLIDING("--retain", "window:1", "--prefill-chunk", "64"));
    json_t *some =
        program_json(SLIDING("--retain", "snap:0.25,recent=16", "--prefill-chunk", "64"));
    const double full_bytes = number(json_object_get(full, "kv"), "live_peak_bytes");
    char beside[4096];
    json_t *learned;
    program_result said;

    (void)state;
    assert_true(number(full, "ppl") == number(all, "ppl"));
    assert_true(number(some, "ppl") != number(full, "ppl"));
    assert_true(number(retained_of(some), "share") < 0.4);
    /* Without a policy 512 tokens in two layers and up to 7 pages in the others; with it 3 or 4
     * pages, and the same windows. */
    assert_true(number(retained_of(some), "peak_bytes") <= full_bytes * 11 / 15);
    assert_true(number(retained_of(some), "budget_bytes") <= full_bytes * 12 / 15);
    said = program_expect(0, PROGRAM("run", "-m", program_model_sliding(), "-f", text_file(), "-n",
                                     "1", "-c", "4096", "--retain", "snap:0.25,recent=16"));
    assert_says(said.err, " tokens in the layers without a window by snap:0.25,");
    program_free(&said);
    (void)snprintf(beside, sizeof beside, "%s.retain", program_model_sliding());
    learned =
        program_json(PROGRAM("calibrate", "--retain", "-m", program_model_sliding(), "-f",
                             text_file(), "-c", "128", "--chunks", "4", "-o", beside, "--json"));
    assert_int_equal(json_array_size(json_object_get(learned, "correlation")), 4);
    for (size_t l = 0; l < 4; l++) {
        assert_int_equal(json_is_null(json_array_get(json_object_get(learned, "correlation"), l)),
                         l % 2 == 0);
    }
    json_decref(some);
    some = program_json(SLIDING("--retain", "predict:0.25,recent=16", "--prefill-chunk", "64"));
    assert_true(number(retained_of(some), "share") < 0.4);
    assert_int_equal(unlink(beside), 0);
    json_decref(learned);
    json_decref(some);
    json_decref(all);
    json_decref(full);
}

static void run_with_a_share(void **state)
{
    const char *text = text_file();
    program_result result = program_expect(
        0, PROGRAM("run", "-m", program_model_deep(), "-f", text, "-n", "20", "--temp", "0",
                   "--ignore-eos", "--retain", "entropy:0.4,recent=64", "--prefill-chunk", "256"));

    (void)state;
    assert_says(result.err, " tokens by entropy:0.4,sinks=4,recent=64,");
    assert_says(result.err, "KV at most ");
    program_free(&result);
}

/* The text is computed to a place, and from there on by another process. */
static void run_goes_on_from_a_state(void **state)
{
#define RETAINED                                                                                   \
    "run", "-m", model, "-n", "20", "--temp", "0", "--ignore-eos", "-c", "512", "--retain",        \
        "snap:0.5,recent=16", "--prefill-chunk", "128", "-b", "64", "--json"
    const char *model = program_model();
    char *text = malloc(401);
    const char *saved = program_file("text.state", "", 0);
    json_t *whole, *first, *rest;
    program_result said;
    char from[64];
    int n_whole, n_state;

    (void)state;
    for (size_t i = 0; i < 400; i++) {
        text[i] = "the quire keeps what it needs. "[i * 7 % 31];
    }
    text[400] = '\0';
    whole = program_json(PROGRAM(RETAINED, "-p", text));
    first = program_json(PROGRAM(RETAINED, "-p", text, "--save-block-state", saved));
    rest = program_json(PROGRAM(RETAINED, "-p", text, "--resume-block-state", saved));
    assert_same_text(first, whole);
    assert_same_text(rest, whole);
    /* Each token is computed once: by the run that saved the state, or by the one that went on. */
    n_whole = (int)number(whole, "prompt_tokens") + 20 - 1; /* the last token is not computed */
    n_state = ((int)number(whole, "prompt_tokens") - 1) / 64 * 64;
    assert_true(number(retained_of(whole), "computed_tokens") == n_whole);
    assert_true(number(retained_of(first), "computed_tokens") == n_whole);
    assert_true(n_state > 2 * 128);
    assert_true(number(retained_of(rest), "computed_tokens") == n_whole - n_state);
    said = program_expect(0, PROGRAM("run", "-m", model, "-n", "1", "-c", "512", "--retain",
                                     "snap:0.5,recent=16", "--prefill-chunk", "128", "-b", "64",
                                     "-p", text, "--resume-block-state", saved));
    (void)snprintf(from, sizeof(from), "%d of these tokens are those of ", n_state);
    assert_says(said.err, from);
    program_free(&said);
    refuse(1, "text.state cannot be resumed: the prompt does not begin with its",
           PROGRAM(RETAINED, "-p", "other", "--resume-block-state", saved));
    refuse(1, "text.state cannot be resumed: it is of another model, other KV formats",
           PROGRAM(RETAINED, "-p", "other", "--kv", "q8", "--resume-block-state", saved));
    refuse(1, "has no whole step of 64 (-b) before its last token",
           PROGRAM(RETAINED, "-p", "short", "--save-block-state", saved));
    refuse(1, "cannot be resumed: it is no state of a text",
           PROGRAM(RETAINED, "-p", text, "--resume-block-state", model));
    refuse(1, "cannot open /none", PROGRAM(RETAINED, "-p", text, "--resume-block-state", "/none"));
    /* The failed run left the file unchanged. */
    json_decref(rest);
    rest = program_json(PROGRAM(RETAINED, "-p", text, "--resume-block-state", saved));
    assert_same_text(rest, whole);
    json_decref(rest);
    json_decref(first);
    json_decref(whole);
    free(text);
}

/* A conversation with 40 tokens an answer; retain NULL: it keeps all. */
static json_t *chat_of(const char *lines, const char *retain, const char *chunk)
{
    program_result result = program_run_with(
        lines, PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-c", "512",
                       "-n", "40", "--temp", "0", "--ignore-eos", "--json",
                       retain != NULL ? "--retain" : NULL, retain, "--prefill-chunk", chunk));
    json_t *document = json_loads(result.out, 0, NULL);

    if (result.exit_status != 0 || document == NULL) {
        fail_msg("%d: %s", result.exit_status, result.err);
    }
    program_free(&result);
    return document;
}

static const json_t *turn_of(const json_t *chat, size_t i)
{
    return json_array_get(json_object_get(chat, "turns"), i);
}

/* The KV stays between turns unless its last condensing saw tokens that change with the next turn.
 * Then the turn is computed anew, and gives the same answer. */
static void chats_keep_a_share(void **state)
{
    static const struct {
        const char *policy;
        bool forgets;
    } cases[] = { { "keydiff:0.4,recent=16", true }, { "snap:0.4,recent=16", false } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *chat = chat_of("abc\n/retry\ndef\nghi\n/reset\nabc\n", cases[i].policy, "128");
        const json_t *answer = json_object_get(turn_of(chat, 0), "assistant");
        const json_t *retained = retained_of(chat);

        assert_int_equal(json_array_size(json_object_get(chat, "turns")), 5);
        /* A text of less than a chunk is whole. */
        assert_true(json_equal(json_object_get(turn_of(chat, 1), "assistant"), answer));
        assert_true(json_equal(json_object_get(turn_of(chat, 4), "assistant"), answer));
        assert_true(number(turn_of(chat, 1), "reused_tokens") ==
                    (cases[i].forgets ? number(turn_of(chat, 1), "prompt_tokens") - 1 : 0));
        assert_true(number(retained, "generations") == 0); /* of the last conversation */
        json_decref(chat);
        chat = chat_of("abc\ndef\nghi\njkl\n", cases[i].policy, "128");
        retained = retained_of(chat);
        assert_true(number(retained, "generations") >= 2);
        assert_true(number(retained, "share") < 0.9);
        assert_true(number(turn_of(chat, 3), "prompt_tokens") > 256);
        json_decref(chat);
    }
}

/* All tokens kept: the answers of a chat without --retain, also behind cuts. */
static void chats_that_keep_all(void **state)
{
    const char *lines = "abc\ndef\n/undo\nghi\n/retry\njkl\n";
    json_t *all = chat_of(lines, "stride:1", "64");
    json_t *plain = chat_of(lines, NULL, NULL);

    (void)state;
    assert_true(number(retained_of(all), "generations") > 1);
    for (size_t i = 0; i < 5; i++) {
        assert_non_null(turn_of(all, i));
        assert_true(json_equal(json_object_get(turn_of(all, i), "assistant"),
                               json_object_get(turn_of(plain, i), "assistant")));
    }
    json_decref(plain);
    json_decref(all);
}

static void chat_says_the_share(void **state)
{
    program_result result = program_run_with(
        "abc\n/status\n",
        PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-n", "200", "--temp",
                "0", "--ignore-eos", "--retain", "window:0.5,recent=8", "--prefill-chunk", "64"));

    (void)state;
    assert_int_equal(result.exit_status, 0);
    assert_says(result.err, " tokens by window:0.5,");
    assert_says(result.err, "KV at most ");
    program_free(&result);
}

/* The bytes of a text that quire serve condenses: kept pages, and the tokens behind the last place.
 */
static void info_of_a_share(void **state)
{
    json_t *info =
        program_json(PROGRAM("info", "-m", program_model(), "--retain", "keydiff:0.25,recent=64",
                             "--retain-chunk", "500", "--json"));
    const json_t *retained = json_object_get(info, "retained");
    const json_t *row = json_array_get(json_object_get(retained, "kv"), 1);
    const json_t *plain = json_array_get(json_object_get(info, "kv"), 1);
    const double token_bytes = number(plain, "bytes_per_token");
    size_t i;
    const json_t *context;

    (void)state;
    assert_string_equal(json_string_value(json_object_get(row, "kv")),
                        json_string_value(json_object_get(plain, "kv")));
    assert_true(number(retained, "chunk") == 512);
    json_array_foreach(json_object_get(row, "contexts"), i, context)
    {
        const uint32_t n = (uint32_t)number(context, "tokens");
        const uint32_t n_places = (n - 1) / 512;
        /* A quarter of 512 is two whole pages; the protected 68 are less. */
        const uint32_t n_held = n_places * 128 + n - n_places * 512;
        /* Before the last place, unless the tokens behind it are as many. */
        const uint32_t n_place = n_places == 0 ? 0 : (n_places - 1) * 128 + 512;
        const uint32_t n_most = n_place > n_held ? n_place : n_held;

        assert_true(number(context, "held_tokens") == n_held);
        assert_true(number(context, "bytes") == token_bytes * ((n_held + 63) / 64 * 64));
        assert_true(number(context, "most_bytes") == token_bytes * ((n_most + 63) / 64 * 64));
    }
    assert_true(i >= 4);
    json_decref(info);
}

/* Pages of 64 tokens for n_tokens tokens of all lanes together, and their list. */
static uint32_t packed_pages(const json_t *info, double token_bytes, double n_tokens)
{
    const uint32_t n_layers = (uint32_t)number(info, "n_layer");
    const uint32_t n_heads = (uint32_t)number(info, "n_kv_head");
    const uint32_t part_bytes = (uint32_t)token_bytes * 64 / n_layers;
    const uint32_t n_places = (uint32_t)n_tokens / 64; /* whole tiles here */
    const uint32_t list_bytes = (1 + n_layers * n_heads + 64 * n_places) * 4;
    const uint32_t n_parts =
        (list_bytes + part_bytes - 1) / part_bytes + (n_places + n_heads - 1) / n_heads;

    return (n_parts + n_layers - 1) / n_layers;
}

/* Where lanes keep numbers of their own, the share counts for all of them together. */
static void info_by_lane(void **state)
{
    json_t *info = program_json(PROGRAM("info", "-m", program_model(), "--retain",
                                        "snap:0.25,recent=60", "--retain-chunk", "512", "--json"));
    const double n_lanes = number(info, "n_layer") * number(info, "n_kv_head");

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        const json_t *row =
            json_array_get(json_object_get(json_object_get(info, "retained"), "kv"), f);
        const double token_bytes =
            number(json_array_get(json_object_get(info, "kv"), f), "bytes_per_token");
        size_t i;
        const json_t *context;

        json_array_foreach(json_object_get(row, "contexts"), i, context)
        {
            const uint32_t n = (uint32_t)number(context, "tokens");
            const uint32_t n_text = (n - 1) / 512 * 512;
            const uint32_t n_kept =
                n_text == 0 ? 0 : 64 * packed_pages(info, token_bytes, n_text * n_lanes / 4);

            assert_true(number(context, "held_tokens") == n_kept + n - n_text);
            assert_true(number(context, "most_bytes") >= number(context, "bytes"));
        }
        assert_true(i >= 4);
    }
    json_decref(info);
}

/* A format that is coded by 64 tokens: packed pages, and the tokens behind the last place, also in
 * 8 bits. */
static void check_sealed(const json_t *info, size_t f)
{
    const json_t *plain = json_object_get(info, "kv");
    const json_t *row = json_array_get(json_object_get(json_object_get(info, "retained"), "kv"), f);
    const double token_bytes = number(json_array_get(plain, f), "bytes_per_token");
    const double hot_bytes = number(json_array_get(plain, QUIRE_FORMAT_HOT), "bytes_per_token");
    const double n_lanes = number(info, "n_layer") * number(info, "n_kv_head");
    size_t i;
    const json_t *context;

    assert_string_equal(json_string_value(json_object_get(row, "kv")),
                        quire_format_name((quire_format)f));
    json_array_foreach(json_object_get(row, "contexts"), i, context)
    {
        const uint32_t n = (uint32_t)number(context, "tokens"), n_places = (n - 1) / 512;
        const uint32_t n_kept =
            n_places == 0 ? 0 : 64 * packed_pages(info, token_bytes, n_places * 128 * n_lanes);
        const uint32_t n_open = n - n_places * 512;

        assert_true(number(context, "held_tokens") == n_kept + n_open);
        assert_true(number(context, "bytes") == token_bytes * (n_kept + (n_open + 63) / 64 * 64) +
                                                    hot_bytes * ((n_open + 63) / 64 * 64));
        /* At least the kept pages, the chunk in both forms, and 3 more pages in 8 bits. */
        assert_true(n_places < 2 || number(context, "most_bytes") >=
                                        token_bytes * (n_kept + 512) + hot_bytes * (512 + 3 * 64));
    }
    assert_true(i >= 4);
}

static void info_of_sealed_formats(void **state)
{
    json_t *info =
        program_json(PROGRAM("info", "-m", program_model(), "--retain",
                             "keydiff:0.25,sinks=0,recent=64", "--retain-chunk", "512", "--json"));
    json_t *old = program_json(PROGRAM("info", "-m", program_model(), "--retain", "last:0.25",
                                       "--retain-chunk", "512", "--json"));
    const json_t *rows = json_object_get(json_object_get(info, "retained"), "kv");

    (void)state;
    for (size_t f = QUIRE_FORMATS_DIRECT; f < QUIRE_FORMAT_COUNT; f++) {
        check_sealed(info, f);
    }
    /* The policy "last" later drops tokens that it kept, and kept tokens are sealed in four
     * formats. So these rows are missing. */
    assert_int_equal(json_array_size(json_object_get(json_object_get(old, "retained"), "kv")),
                     json_array_size(rows) - 4);
    json_decref(old);
    json_decref(info);
}

/* Pages of one head each have no file below them. */
static void no_overflow_file(void **state)
{
    const char *model = program_model();

    (void)state;
    for (int i = 0; i < 2; i++) {
        const char *command = i == 0 ? "run" : "chat", *last = i == 0 ? "--prompt=a" : NULL;

        refuse(2, "which all stay in memory; quire serve --attend can have pages in a file",
               PROGRAM(command, "-m", model, "--attend", "top:0.5", "--kv-overflow", "tier", last));
        refuse(2, "--retain and --kv-overflow tier: with --retain each head has pages of its own",
               PROGRAM(command, "-m", model, "--retain", "keydiff", "--kv-overflow", "tier", last));
    }
}

static void bad_combinations(void **state)
{
    const char *model = program_model();

    (void)state;
    refuse(2, "--retain snapp: there is no retention policy \"snapp\"",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snapp"));
    refuse(2, "a share of \"0\"", PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap:0"));
    refuse(2, "--save-block-state needs --retain",
           PROGRAM("run", "-m", model, "-p", "a", "--save-block-state", "x"));
    refuse(2, "merge=fit and --save-block-state",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "reconstruct,merge=fit",
                   "--save-block-state", "x"));
    refuse(2, "merge=fit and --resume-block-state",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "reconstruct,merge=fit",
                   "--resume-block-state", "x"));
    refuse(2, "merge=fit is for --retain of quire run and quire perplexity",
           PROGRAM("serve", "-m", model, "--retain", "reconstruct,merge=fit"));
    refuse(2, "the policy predict has no parameter \"merge\"",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "predict,merge=fit"));
    refuse(
        1, "merge=fit changes V of kept tokens",
        PROGRAM("run", "-m", model, "-p", "a", "--retain", "reconstruct,merge=fit", "--kv", "q4"));
    refuse(1, "merge=fit and --attend",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "reconstruct,merge=fit", "--attend",
                   "top:0.5"));
    refuse(1, "K or V that it does not store",
           PROGRAM("run", "-m", program_model_shared(), "-p", "a", "--retain",
                   "reconstruct,merge=fit"));
    refuse(2, "give --retain too",
           PROGRAM("run", "-m", model, "-p", "a", "--prefill-chunk", "512"));
    refuse(2, "--retain and --cache-dir",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--cache-dir", "x"));
    refuse(2, "--retain and --target",
           PROGRAM("calibrate", "--retain", "-m", model, "-f", "x", "--target", "5"));
    refuse(1, "fitting and testing need two chunks",
           PROGRAM("calibrate", "--retain", "-m", model, "-f", text_file(), "-c", "3000"));
    refuse(2, "--retain and --kv-history",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv-history", "x"));
    refuse(2, "instead of --kv auto",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv", "auto"));
    refuse(2, "instead of --kv-layers",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "snap", "--kv-layers", "*=q8"));
    refuse(1, "tokens in q4 stay in their tile",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "window", "--kv", "q4"));
    refuse(1, "layers kept whole",
           PROGRAM("run", "-m", model, "-p", "a", "--retain", "entropy:0.1"));
    refuse(1, "K or V that it does not store",
           PROGRAM("run", "-m", program_model_shared(), "-p", "a", "--retain", "snap"));
    refuse(2, "--retain heavy: in shared pages a lane keeps whole tiles",
           PROGRAM("serve", "-m", model, "--retain", "heavy,granule=3"));
    refuse(1, "--retain expected works with models whose layers all turn K alike",
           PROGRAM("serve", "-m", program_model_unturned(), "--port", "0", "--retain", "expected"));
    refuse(1, "--retain expected works with models whose layers all turn K alike",
           PROGRAM("run", "-m", program_model_unturned(), "-p", "a", "--retain", "expected"));
    refuse(2, "--retain and --context-overflow",
           PROGRAM("serve", "-m", model, "--retain", "keydiff", "--context-overflow", "shift"));
    refuse(2, "--retain and --kv-overflow tier",
           PROGRAM("serve", "-m", model, "--retain", "keydiff", "--kv-overflow", "tier",
                   "--cache-dir", "x"));
    refuse(1, "--retain snap cannot go with layers that share KV",
           PROGRAM("info", "-m", program_model_shared(), "--retain", "snap"));
    refuse(1, "fewer than the 300 that layers with windows see",
           PROGRAM("info", "-m", program_model_sliding(), "--retain", "keydiff:0.1,recent=8",
                   "--retain-chunk", "512"));
    refuse(1, "--retain snap:0.9 of 64 tokens takes as many pages as the tokens themselves",
           PROGRAM("info", "-m", model, "--retain", "snap:0.9", "--retain-chunk", "64"));
    refuse(2, "--retain best: there is no retention policy",
           PROGRAM("serve", "-m", model, "--retain", "best"));
    refuse(2, "--retain and --cache-dir",
           PROGRAM("chat", "-m", model, "--retain", "snap", "--cache-dir", "x"));
    refuse(2, "--context-overflow shift and --retain",
           PROGRAM("chat", "-m", model, "--retain", "snap", "--context-overflow", "shift"));
    refuse(1, "K or V that it does not store",
           PROGRAM("chat", "-m", program_model_shared(), "--retain", "snap"));
    refuse(2, "'quire run', 'quire chat' and 'quire perplexity' can drop tokens",
           PROGRAM("bench", "-m", model, "--retain", "snap"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perplexity_with_a_share),
        cmocka_unit_test(perplexity_with_a_fit),
        cmocka_unit_test(perplexity_with_watching_policies),
        cmocka_unit_test(perplexity_in_four_bits),
        cmocka_unit_test(server_in_four_bits),
        cmocka_unit_test(buffers_are_counted),
        cmocka_unit_test(predict_learns_first),
        cmocka_unit_test(windows_stay),
        cmocka_unit_test(run_with_a_share),
        cmocka_unit_test(run_goes_on_from_a_state),
        cmocka_unit_test(chats_keep_a_share),
        cmocka_unit_test(chats_that_keep_all),
        cmocka_unit_test(chat_says_the_share),
        cmocka_unit_test(info_of_a_share),
        cmocka_unit_test(info_by_lane),
        cmocka_unit_test(info_of_sealed_formats),
        cmocka_unit_test(bad_combinations),
        cmocka_unit_test(no_overflow_file),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
