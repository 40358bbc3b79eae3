/* test_generate.c - quire run and quire chat, end to end.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/commands/places.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static json_int_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value)) {
        fail_msg("no integer '%s'", key);
    }
    return json_integer_value(value);
}

static const char *string(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_string(value)) {
        fail_msg("no string '%s'", key);
    }
    return json_string_value(value);
}

/* ---- run ---- */

static void run_streams_text(void **state)
{
    program_result result = program_expect(0, PROGRAM("run", "-m", program_model(), "-p", "a quire",
                                                      "-n", "12", "--temp", "0", "--ignore-eos"));
    json_t *document = program_json(PROGRAM("run", "-m", program_model(), "-p", "a quire", "-n",
                                            "12", "--temp", "0", "--ignore-eos", "--json"));
    size_t n = json_string_length(json_object_get(document, "text"));

    (void)state;
    /* The same text both ways; on stdout a newline follows. */
    assert_int_equal(result.out_bytes, n + 1);
    assert_memory_equal(result.out, string(document, "text"), n);
    assert_says(result.err, "prompt ");
    assert_says(result.err, "output 12 tokens");
    assert_says(result.err, "KV f16: ");
    assert_string_equal(string(document, "stop"), "limit");
    assert_int_equal(integer(document, "output_tokens"), 12);
    json_decref(document);
    program_free(&result);
}

static void run_reads_prompts_anywhere(void **state)
{
    const char *model = program_model();
    const char *path = program_file("prompt.txt", "what it read\n", 13);
    program_result from_text = program_expect(
        0, PROGRAM("run", "-m", model, "-p", "what it read", "-n", "8", "--temp", "0"));
    program_result from_file =
        program_expect(0, PROGRAM("run", "-m", model, "-f", path, "-n", "8", "--temp", "0"));
    program_result from_stdin = program_run_with(
        "what it read\n", PROGRAM("run", "-m", model, "-f", "-", "-n", "8", "--temp", "0"));

    (void)state;
    assert_string_equal(from_file.out, from_text.out);
    assert_int_equal(from_stdin.exit_status, 0);
    assert_string_equal(from_stdin.out, from_text.out);
    program_free(&from_text);
    program_free(&from_file);
    program_free(&from_stdin);
}

static void run_repeats_with_a_seed(void **state)
{
    const char *model = program_model();
    program_args args = PROGRAM("run", "-m", model, "-p", "a", "-n", "40", "--temp", "2", "--seed",
                                "7", "--top-k", "0", "--top-p", "1", "--min-p", "0");
    program_result first = program_expect(0, args);
    program_result again = program_expect(0, args);
    program_result other;

    (void)state;
    args.words[10] = "8";
    other = program_expect(0, args);
    assert_string_equal(first.out, again.out);
    assert_string_not_equal(first.out, other.out);
    assert_says(first.err, "seed 7");
    program_free(&first);
    program_free(&again);
    program_free(&other);
}

/* The text of 60 tokens with one more option. */
static char *text_with(const char *name, const char *value)
{
    program_result result = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a a a a a a a a", "-n", "60", "--temp",
                   "1.5", "--seed", "9", "--ignore-eos", "--dry-allowed-length", "0", name, value));
    char *text = strdup(result.out);

    assert_non_null(text);
    program_free(&result);
    return text;
}

/* Each option of the samplers changes the text. */
static void samplers_change_the_text(void **state)
{
    static const char *const options[][2] = {
        { "--typical", "0.2" },        { "--top-nsigma", "0.5" },
        { "--xtc-probability", "1" },  { "--dynatemp-range", "1.5" },
        { "--mirostat", "1" },         { "--mirostat", "2" },
        { "--repeat-penalty", "2" },   { "--dry-multiplier", "20" },
        { "--samplers", "top_p" },     { "--sampling-seq", "m" },
        { "--presence-penalty", "2" }, { "--frequency-penalty", "2" },
    };
    char *plain = text_with("--top-k", "40");

    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        char *text = text_with(options[i][0], options[i][1]);

        if (strcmp(text, plain) == 0) {
            fail_msg("%s %s has no effect", options[i][0], options[i][1]);
        }
        free(text);
    }
    free(plain);
}

static void orders_of_samplers_are_checked(void **state)
{
    static const char *const commands[] = { "chat", "serve" };
    program_result run =
        program_expect(2, PROGRAM("run", "-m", "m.gguf", "-p", "a", "--samplers", "dry;dry"));

    (void)state;
    assert_says(run.err, "--samplers dry;dry: \"dry\" is there twice");
    program_free(&run);
    for (size_t i = 0; i < 2; i++) {
        program_result one =
            program_expect(2, PROGRAM(commands[i], "-m", "m.gguf", "--samplers", "top_k;infill"));
        program_result two =
            program_expect(2, PROGRAM(commands[i], "-m", "m.gguf", "--sampler-seq", "kz"));
        program_result both = program_expect(
            2, PROGRAM(commands[i], "-m", "m.gguf", "--samplers", "top_k", "--sampler-seq", "k"));

        assert_says(one.err, "--samplers top_k;infill: \"infill\"");
        assert_says(two.err, "--sampler-seq kz: 'z'");
        assert_says(both.err, "give one of them");
        program_free(&one);
        program_free(&two);
        program_free(&both);
    }
}

/* Formats and page sizes change the bytes of KV as computed. */
static void run_counts_kv(void **state)
{
    static const struct {
        const char *kv;
        const char *page_tokens;
        json_int_t token_bytes;
        json_int_t page;
    } cases[] = {
        { "f16", "64", 64, 64 },    { "f32", "128", 128, 128 },   { "q8", "64", 40, 64 },
        { "q8:f16", "64", 52, 64 }, { "bf16", "1024", 64, 1024 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *document = program_json(PROGRAM("run", "-m", program_model(), "-p", "a", "-n",
                                                "100", "--ignore-eos", "--kv", cases[i].kv,
                                                "--page-tokens", cases[i].page_tokens, "--json"));
        json_t *kv = json_object_get(document, "kv");
        json_int_t n_tokens = integer(document, "prompt_tokens") + 99;
        json_int_t n_pages = (n_tokens + cases[i].page - 1) / cases[i].page;

        assert_string_equal(string(kv, "format"), cases[i].kv);
        assert_int_equal(integer(kv, "tokens"), n_tokens);
        assert_int_equal(integer(kv, "computed_bytes"), n_tokens * cases[i].token_bytes);
        assert_int_equal(integer(kv, "pages"), n_pages);
        assert_int_equal(integer(kv, "live_bytes"), n_pages * cases[i].page * cases[i].token_bytes);
        json_decref(document);
    }
}

/* A size becomes formats by layer; the printed formats can be passed as --kv-layers. */
static void run_chooses_formats(void **state)
{
    json_t *document = program_json(PROGRAM("run", "-m", program_model(), "-p", "a quire", "-n",
                                            "200", "--ignore-eos", "--temp", "0", "--kv",
                                            "auto:7.5", "--kv-recent", "0", "--json"));
    const json_t *kv = json_object_get(document, "kv");
    json_t *again = program_json(PROGRAM("run", "-m", program_model(), "-p", "a quire", "-n", "200",
                                         "--ignore-eos", "--temp", "0", "--kv-layers",
                                         string(kv, "layers"), "--kv-recent", "0", "--json"));
    program_result text = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "3", "--kv", "auto:7.5"));
    program_result poor =
        program_expect(1, PROGRAM("run", "-m", program_model(), "-p", "a", "--kv", "auto:3"));
    program_result wrong = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-p", "a", "--kv-layers", "0-2=q8;*=q4"));
    double bits = json_real_value(json_object_get(kv, "bits_per_value"));

    (void)state;
    assert_true(bits > 7 && bits <= 7.5);
    assert_string_equal(string(document, "text"), string(again, "text"));
    assert_string_equal(string(kv, "format"), string(json_object_get(again, "kv"), "format"));
    assert_int_equal(integer(kv, "recent_tokens"), 0);
    assert_says(text.err, "KV auto 7.50 -> 7.");
    assert_says(poor.err, "on this model: choose ");
    assert_says(wrong.err, "there is no layer 2");
    program_free(&wrong);
    program_free(&poor);
    program_free(&text);
    json_decref(again);
    json_decref(document);
}

static void run_refuses_mixed_options(void **state)
{
    program_result result = program_expect(
        2, PROGRAM("run", "-m", program_model(), "-p", "a", "--kv", "auto", "-ctk", "q8"));
    program_result other = program_expect(
        2, PROGRAM("run", "-m", program_model(), "-p", "a", "--cache-type-k", "q8_0"));

    (void)state;
    assert_says(result.err, "--kv auto");
    assert_says(other.err, "did you mean q8?");
    program_free(&other);
    program_free(&result);
}

static void run_ends_with_the_context(void **state)
{
    json_t *document = program_json(PROGRAM("run", "-m", program_model(), "-p", "a quire of pages",
                                            "-c", "64", "--ignore-eos", "--json"));
    program_result result = program_expect(
        0, PROGRAM("run", "-m", program_model(), "-p", "a quire", "-c", "64", "--ignore-eos"));

    (void)state;
    assert_string_equal(string(document, "stop"), "context");
    /* The last token written needs no place in KV. */
    assert_int_equal(integer(document, "output_tokens"),
                     64 - integer(document, "prompt_tokens") + 1);
    assert_says(result.err, "the context is full");
    json_decref(document);
    program_free(&result);
}

static void run_refuses_what_does_not_fit(void **state)
{
    const char *model = program_model();
    const char *text = program_text("long.txt", 3000);
    program_result too_long =
        program_expect(1, PROGRAM("run", "-m", model, "-f", text, "-c", "100"));
    program_result too_poor =
        program_expect(1, PROGRAM("run", "-m", model, "-p", "a", "--kv-budget", "1k"));
    program_result no_file = program_expect(1, PROGRAM("run", "-m", model, "-f", "/none/text"));
    program_result none = program_expect(0, PROGRAM("run", "-m", model, "-p", "a", "-n", "0"));

    (void)state;
    assert_says(too_long.err, "the context holds 100");
    assert_says(too_long.err, "the prompt has ");
    assert_string_equal(too_long.out, "");
    assert_says(too_poor.err, "a context of 512 tokens needs ");
    assert_says(too_poor.err, "the budget is 1000: ");
    assert_says(too_poor.err, "--kv-budget");
    assert_says(no_file.err, "/none/text: No such file");
    assert_string_equal(none.out, "\n");
    assert_says(none.err, "tokens/s\n"); /* and no time of a first token */
    assert_null(strstr(none.err, "first token"));
    program_free(&too_long);
    program_free(&too_poor);
    program_free(&no_file);
    program_free(&none);
}

static void run_can_be_interrupted(void **state)
{
    program_result result = program_run_interrupted(
        NULL, PROGRAM("run", "-m", program_model(), "-p", "a", "-c", "200k", "--ignore-eos"));

    (void)state;
    assert_int_equal(result.exit_status, 130);
    assert_says(result.err, "stopped: interrupted");
    program_free(&result);
}

/* A model that knows something: the same start of a story from every KV format. */
static void run_tells_a_story(void **state)
{
    static const char *const formats[] = { "f32", "f16", "bf16", "q8" };
    const char *model = program_data("stories260K-f32.gguf");

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        program_result result =
            program_expect(0, PROGRAM("run", "-m", model, "-p", "Once upon a time", "-n", "20",
                                      "--temp", "0", "--kv", formats[i]));

        assert_says(result.out, ", there was a little girl named Lily.");
        program_free(&result);
    }
}

/* ---- the model that comes with the program ---- */

#define STORY ", there was a little girl named Lily."

/* A real model of shared K and V: the same start of a story from formats that lose little. */
static void run_tells_its_own_story(void **state)
{
    static const char *const formats[] = { "f32", "f16", "bf16", "q8" };
    char *first = NULL;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        program_result result = program_expect(
            0, PROGRAM("run", "-m", program_data(QUIRE_PLACE_STORIES), "-p", "Once upon a time",
                       "-n", "12", "--temp", "0", "--kv", formats[i]));

        assert_says(result.out, STORY);
        if (first == NULL) {
            first = strdup(result.out);
        }
        assert_string_equal(result.out, first);
        program_free(&result);
    }
    free(first);
}

/* Without -m the program takes the model that `make run` fetched, or else, but for chats, the model
 * of stories, and says which. */
static void run_finds_a_model(void **state)
{
    static const char *const folders[] = { "cache", "cache/quire", "cache/quire/models" };
    char fetched[512];
    program_result result;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mkdir(program_path(folders[i]), 0700), 0);
    }
    assert_int_equal(setenv("XDG_CACHE_HOME", program_path("cache"), 1), 0);
    result = program_expect(0, PROGRAM("run", "-p", "Once upon a time", "-n", "12", "--temp", "0"));
    assert_says(result.err, QUIRE_PLACE_STORIES ", which knows little stories only");
    assert_says(result.out, STORY);
    program_free(&result);
    result = program_expect(2, PROGRAM("chat"));
    assert_says(result.err, "no model: -m FILE names one, `make run` and 'quire pull' fetch one");
    program_free(&result);

    (void)snprintf(fetched, sizeof(fetched), "%s/" QUIRE_PLACE_FETCHED, program_path(folders[2]));
    assert_int_equal(symlink(program_model(), fetched), 0);
    result = program_expect(0, PROGRAM("run", "-p", "Once", "-n", "1"));
    assert_says(result.err, "no -m: the model is ");
    assert_says(result.err, QUIRE_PLACE_FETCHED);
    assert_null(strstr(result.err, "little stories"));
    program_free(&result);
    result = program_run_with("Hello\n", PROGRAM("chat", "--chat-template", "chatml", "-n", "1"));
    assert_int_equal(result.exit_status, 0);
    assert_says(result.err, QUIRE_PLACE_FETCHED);
    program_free(&result);

    assert_int_equal(unlink(fetched), 0);
    for (size_t i = 3; i-- > 0;) {
        assert_int_equal(rmdir(program_path(folders[i])), 0);
    }
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
}

/* ---- chat ---- */

static json_t *chat(const char *input, program_args args, int exit_status)
{
    program_result result = program_run_with(input, args);
    json_t *document;

    if (result.exit_status != exit_status) {
        fail_msg("exit status %d, stderr: %s", result.exit_status, result.err);
    }
    document = json_loads(result.out, JSON_ALLOW_NUL, NULL);
    if (document == NULL) {
        fail_msg("not JSON: %s", result.out);
    }
    program_free(&result);
    return document;
}

/* A later turn computes only tokens that the sequence does not hold. */
static void check_turns(const json_t *turns)
{
    json_int_t before = 0;

    for (size_t i = 0; i < json_array_size(turns); i++) {
        const json_t *turn = json_array_get(turns, i);

        assert_true(integer(turn, "prompt_tokens") > before);
        if (i == 0) {
            assert_int_equal(integer(turn, "reused_tokens"), 0);
        } else {
            /* All of the last turn's prompt, except for a few tokens at its end: the tokenizer
             * joins them differently when an answer follows. */
            assert_true(integer(turn, "reused_tokens") >= before - 8);
        }
        before = integer(turn, "prompt_tokens");
    }
}

static void chat_keeps_its_kv(void **state)
{
    json_t *document = chat("a quire of pages\nand bound\n\n/help\nand numbered\n",
                            PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml",
                                    "--system", "holds", "-n", "10", "--temp", "0", "--json"),
                            0);
    const json_t *turns = json_object_get(document, "turns");

    (void)state;
    assert_int_equal(json_array_size(turns), 3);
    assert_string_equal(string(json_array_get(turns, 1), "user"), "and bound");
    check_turns(turns);
    json_decref(document);
}

/* Long enough to release the hot form of the first page; a turn that returns into this page
 * recomputes it. */
static void chat_with_sealed_kv(void **state)
{
    static const char input[] =
        "a quire of pages holds many words\nand bound in leather\nand numbered one by one\n"
        "and read by nobody\nfrom the first to the last\n";
    json_t *document =
        chat(input,
             PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-n", "10",
                     "--temp", "0", "--kv", "q4", "--kv-recent", "0", "--kv-sinks", "0", "--json"),
             0);
    const json_t *turns = json_object_get(document, "turns");
    const json_t *last = json_array_get(turns, 4);

    (void)state;
    assert_int_equal(json_array_size(turns), 5);
    assert_true(integer(last, "prompt_tokens") > 128);
    assert_true(integer(last, "reused_tokens") > 64);
    assert_string_equal(string(json_object_get(document, "kv"), "format"), "q4");
    json_decref(document);
}

static void chat_resets(void **state)
{
    json_t *document = chat("a quire\n/reset\na quire\n/exit\nnever read\n",
                            PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml",
                                    "-n", "10", "--temp", "0", "--json"),
                            0);
    const json_t *turns = json_object_get(document, "turns");
    const json_t *first = json_array_get(turns, 0);
    const json_t *second = json_array_get(turns, 1);

    (void)state;
    assert_int_equal(json_array_size(turns), 2);
    assert_int_equal(integer(second, "reused_tokens"), 0);
    assert_int_equal(integer(second, "prompt_tokens"), integer(first, "prompt_tokens"));
    assert_string_equal(string(second, "assistant"), string(first, "assistant"));
    json_decref(document);
}

/* A message that does not fit is refused; the next one still finds the conversation. */
static void chat_refuses_what_does_not_fit(void **state)
{
    char input[3000];
    program_args args = PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-n",
                                "4", "--temp", "0", "-c", "192", "--json");
    program_result result;
    json_t *document;
    size_t n = (size_t)snprintf(input, sizeof(input), "a quire\n");

    (void)state;
    memset(input + n, 'x', 1500);
    (void)snprintf(input + n + 1500, sizeof(input) - n - 1500, "\nof pages\n");
    result = program_run_with(input, args);
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "the context holds 192");
    assert_says(result.err, "/reset");
    document = json_loads(result.out, JSON_ALLOW_NUL, NULL);
    assert_non_null(document);
    assert_int_equal(json_array_size(json_object_get(document, "turns")), 2);
    check_turns(json_object_get(document, "turns"));
    json_decref(document);
    program_free(&result);
}

static void chat_needs_a_template(void **state)
{
    /* Names of Ollama and llama.cpp; the word behind the end is no command of the chat any more. */
    static const char *const others[] = { "/clear\n", "/quit\n/behind the end\n",
                                          "/bye\n/behind the end\n" };
    const char *model = program_model();
    program_result none = program_expect(1, PROGRAM("chat", "-m", model));
    program_result unknown =
        program_expect(1, PROGRAM("chat", "-m", model, "--chat-template", "nonsense"));
    program_result typo = program_run_with(
        "/rest\n", PROGRAM("chat", "-m", model, "--chat-template", "chatml", "-n", "1"));

    (void)state;
    assert_says(none.err, "has no chat template");
    assert_says(none.err, "--chat-template");
    assert_says(unknown.err, "--chat-template");
    assert_int_equal(typo.exit_status, 0);
    assert_says(typo.err, "did you mean /reset?");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        program_result other = program_run_with(
            others[i], PROGRAM("chat", "-m", model, "--chat-template", "chatml", "-n", "1"));

        assert_int_equal(other.exit_status, 0);
        assert_null(strstr(other.err, "unknown command"));
        assert_null(strstr(other.err, "behind the end"));
        program_free(&other);
    }
    program_free(&none);
    program_free(&unknown);
    program_free(&typo);
}

/* Bytes that are not UTF-8 must not reach JSON. */
static void chat_cleans_bytes(void **state)
{
    json_t *document = chat(
        "\xff\xfe broken \xc3\n",
        PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml", "-n", "4", "--json"),
        0);
    const json_t *turns = json_object_get(document, "turns");

    (void)state;
    assert_says(string(json_array_get(turns, 0), "user"), "\xef\xbf\xbd broken ");
    json_decref(document);
}

/* Where lines are piped in, Ctrl-C ends the conversation too. */
static void chat_can_be_interrupted(void **state)
{
    program_result result = program_run_interrupted(
        "a quire\n/help\n", PROGRAM("chat", "-m", program_model(), "--chat-template", "chatml",
                                    "-c", "200k", "--ignore-eos"));

    (void)state;
    assert_int_equal(result.exit_status, 130);
    assert_says(result.err, "stopped: interrupted");
    assert_null(strstr(result.err, "tokens of context in use"));
    program_free(&result);
}

/* A model that answers in words, and the same in both ways to show it. */
static void chat_talks(void **state)
{
    static const char says[] = "Tell me a story.\nWhat did she do then?\n";
    const char *model = program_data("stories260K-f32.gguf");
    program_result result = program_run_with(
        says, PROGRAM("chat", "-m", model, "--chat-template", "chatml", "-n", "24", "--temp", "0"));
    json_t *document = chat(says,
                            PROGRAM("chat", "-m", model, "--chat-template", "chatml", "-n", "24",
                                    "--temp", "0", "--json"),
                            0);
    const json_t *turns = json_object_get(document, "turns");

    (void)state;
    assert_int_equal(result.exit_status, 0);
    check_turns(turns);
    assert_int_equal(json_array_size(turns), 2);
    /* The answer is kept too, but for its last token: that was never computed. */
    assert_true(integer(json_array_get(turns, 1), "reused_tokens") >=
                integer(json_array_get(turns, 0), "prompt_tokens") +
                    integer(json_array_get(turns, 0), "output_tokens") - 1);
    for (size_t i = 0; i < 2; i++) {
        assert_true(strlen(string(json_array_get(turns, i), "assistant")) > 0);
        assert_says(result.out, string(json_array_get(turns, i), "assistant"));
    }
    json_decref(document);
    program_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_streams_text),
        cmocka_unit_test(run_reads_prompts_anywhere),
        cmocka_unit_test(run_repeats_with_a_seed),
        cmocka_unit_test(samplers_change_the_text),
        cmocka_unit_test(orders_of_samplers_are_checked),
        cmocka_unit_test(run_counts_kv),
        cmocka_unit_test(run_chooses_formats),
        cmocka_unit_test(run_refuses_mixed_options),
        cmocka_unit_test(run_ends_with_the_context),
        cmocka_unit_test(run_refuses_what_does_not_fit),
        cmocka_unit_test(run_can_be_interrupted),
        cmocka_unit_test(run_tells_a_story),
        cmocka_unit_test(run_tells_its_own_story),
        cmocka_unit_test(run_finds_a_model),
        cmocka_unit_test(chat_keeps_its_kv),
        cmocka_unit_test(chat_with_sealed_kv),
        cmocka_unit_test(chat_resets),
        cmocka_unit_test(chat_refuses_what_does_not_fit),
        cmocka_unit_test(chat_needs_a_template),
        cmocka_unit_test(chat_cleans_bytes),
        cmocka_unit_test(chat_can_be_interrupted),
        cmocka_unit_test(chat_talks),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
