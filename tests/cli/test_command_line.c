/* test_command_line.c - the command line that all commands share: the model with and without -m,
 * settings in the environment, help for llama.cpp's options.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The rest of a command line that each command with a model needs. */
typedef struct model_command {
    const char *name;
    const char *words[10];
    const char *format; /* path of the KV format in its JSON; NULL: it prints none */
} model_command;

static const model_command model_commands[] = {
    { "run", { "-p", "a", "-n", "1" }, "kv.format" },
    { "chat", { "--chat-template", "chatml", "-n", "1" }, "kv.format" },
    { "perplexity", { "-f", "TEXT", "-c", "64", "--chunks", "1" }, "kv.format" },
    { "bench", { "-p", "8", "-n", "0", "-r", "1" }, "0.kv" },
    { "info", { NULL }, "need.kv" },
    { "calibrate", { "-f", "TEXT", "-c", "64", "--chunks", "1", "--target", "7" }, NULL },
    { "serve", { "--check-config" }, "settings.kv.value" },
};

/* The command's words with the model named in one way or the other. */
static program_args words_with(const model_command *command, const char *model, bool is_named,
                               bool is_json)
{
    program_args args = { { command->name } };
    size_t n = 1;

    if (is_named) {
        args.words[n++] = "-m";
    }
    args.words[n++] = model;
    for (size_t i = 0; command->words[i] != NULL; i++) {
        const bool is_text = strcmp(command->words[i], "TEXT") == 0;

        args.words[n++] = is_text ? program_text("some.txt", 3000) : command->words[i];
    }
    if (strcmp(command->name, "calibrate") == 0) {
        args.words[n++] = "-o";
        args.words[n++] = program_path("out.yaml");
    }
    if (is_json) {
        args.words[n++] = "--json";
    }
    return args;
}

static program_args words_of(const model_command *command, bool is_named, bool is_json)
{
    return words_with(command, program_model(), is_named, is_json);
}

static void the_model_is_named_with_and_without_m(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(model_commands); i++) {
        program_result named = program_expect(0, words_of(&model_commands[i], true, false));
        program_result alone = program_expect(0, words_of(&model_commands[i], false, false));

        program_free(&named);
        program_free(&alone);
    }
}

/* A model that lies in the folder of models under the name hf:some/tiny. */
static void a_name_stands_for_a_path_everywhere(void **state)
{
    char command[600];

    (void)state;
    (void)snprintf(command, sizeof(command),
                   "mkdir -p '%s/some/tiny' && cp '%s' '%s/some/tiny/m.gguf'",
                   program_path("models"), program_model(), program_path("models"));
    assert_int_equal(system(command), 0);
    setenv("QUIRE_MODELS", program_path("models"), 1);
    for (size_t i = 0; i < COUNT(model_commands); i++) {
        program_result result =
            program_expect(0, words_with(&model_commands[i], "hf:some/tiny", i % 2 == 0, false));
        program_result absent =
            program_expect(1, words_with(&model_commands[i], "hf:some/other", true, false));

        assert_says(absent.err, "'quire pull hf:some/other' fetches it");
        program_free(&absent);
        program_free(&result);
    }
    unsetenv("QUIRE_MODELS");
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", program_path("models"));
    assert_int_equal(system(command), 0);
}

static void the_model_is_named_once(void **state)
{
    const char *model = program_model();
    program_result after = program_expect(2, PROGRAM("run", "-m", model, "Once upon a time"));
    program_result before = program_expect(2, PROGRAM("run", model, "-m", model, "-p", "a"));
    program_result two = program_expect(2, PROGRAM("bench", model, model));

    (void)state;
    assert_says(after.err, "unexpected 'Once upon a time' (-p gives the prompt");
    assert_says(before.err, "give one");
    assert_says(two.err, "unexpected '");
    program_free(&after);
    program_free(&before);
    program_free(&two);
}

/* ---- the environment ---- */

static const json_t *at(const json_t *value, const char *path)
{
    char words[64];
    char *rest = words;
    char *word;

    assert_true(strlen(path) < sizeof(words));
    memcpy(words, path, strlen(path) + 1);
    while ((word = strsep(&rest, ".")) != NULL) {
        value = json_is_array(value) ? json_array_get(value, (size_t)strtoul(word, NULL, 10))
                                     : json_object_get(value, word);
    }
    assert_true(json_is_string(value));
    return value;
}

static void set(const char *name, const char *value)
{
    assert_int_equal(value != NULL ? setenv(name, value, 1) : unsetenv(name), 0);
}

static void kv_of_the_environment_counts_everywhere(void **state)
{
    (void)state;
    set("QUIRE_KV", "q5");
    for (size_t i = 0; i < COUNT(model_commands); i++) {
        json_t *document;

        if (model_commands[i].format == NULL) {
            continue;
        }
        document = program_json(words_of(&model_commands[i], false, true));
        if (strcmp(json_string_value(at(document, model_commands[i].format)), "q5") != 0) {
            fail_msg("%s: not q5", model_commands[i].name);
        }
        json_decref(document);
    }
    set("QUIRE_KV", NULL);
}

/* Standard output with this format in the environment, and with --kv. Memory: free(). */
static char *out_with(const char *variable, const char *kv, program_args args)
{
    program_result result;
    char *out;

    set("QUIRE_KV", variable);
    for (size_t i = 0; kv != NULL && i + 2 < COUNT(args.words); i++) {
        if (args.words[i] == NULL) {
            args.words[i] = "--kv";
            args.words[i + 1] = kv;
            break;
        }
    }
    result = program_expect(0, args);
    set("QUIRE_KV", NULL);
    out = strdup(result.out);
    program_free(&result);
    return out;
}

/* Commands that read a trace print no format: figures of the memory tell the format. */
static void kv_of_the_environment_counts_for_traces(void **state)
{
    const program_args commands[] = {
        PROGRAM("sim", program_data("mooncake.jsonl"), "--memory", "1GB", "-m", "llama-7b",
                "--policy", "lru", "-t", "1", "--json"),
        PROGRAM("analyze", program_data("mooncake.jsonl"), "-m", "llama-7b", "-t", "1", "--json"),
    };

    (void)state;
    for (size_t i = 0; i < COUNT(commands); i++) {
        char *by_flag = out_with(NULL, "q5", commands[i]);
        char *by_variable = out_with("q5", NULL, commands[i]);
        char *otherwise = out_with("q5", "f16", commands[i]);

        assert_string_equal(by_variable, by_flag);
        assert_string_not_equal(by_variable, otherwise);
        free(by_flag);
        free(by_variable);
        free(otherwise);
    }
}

static json_int_t stored_tokens(const char *dir, const char *text, const char *kv)
{
    json_t *document = program_json(PROGRAM("run", program_model(), "-t", "1", "-f", text, "-n",
                                            "0", "--kv", kv, "--cache-dir", dir, "--json"));
    const json_int_t n = json_integer_value(json_object_get(document, "stored_tokens"));

    json_decref(document);
    return n;
}

static void kv_of_the_environment_counts_for_stored_pages(void **state)
{
    const char *dir = program_path("warm");
    const char *text = program_text("warm.txt", 300);
    char command[600];

    (void)state;
    free(out_with("q5", NULL, PROGRAM("cache", "warm", dir, text, "-m", program_model())));
    assert_int_equal(stored_tokens(dir, text, "q6"), 0);
    assert_true(stored_tokens(dir, text, "q5") > 0);
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

static char *file_read(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);

    assert_non_null(file);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    assert_int_equal(fclose(file), 0);
    return text;
}

static void calibrate_sets_its_formats_and_says_so(void **state)
{
    const model_command *calibrate = NULL;
    program_result help = program_expect(0, PROGRAM("calibrate", "--help"));
    char *files[2];

    (void)state;
    for (size_t i = 0; i < COUNT(model_commands); i++) {
        if (strcmp(model_commands[i].name, "calibrate") == 0) {
            calibrate = &model_commands[i];
        }
    }
    assert_non_null(calibrate);
    for (size_t i = 0; i < 2; i++) {
        free(out_with(i == 0 ? NULL : "q3", NULL, words_of(calibrate, false, false)));
        files[i] = file_read(program_path("out.yaml"));
    }
    assert_string_equal(files[0], files[1]);
    assert_says(help.out, "there is no --kv, and QUIRE_KV does not count");
    assert_null(strstr(help.out, "--kv K[:V]"));
    free(files[0]);
    free(files[1]);
    program_free(&help);
}

static void the_environment_gives_the_model(void **state)
{
    program_result result;

    (void)state;
    set("QUIRE_MODEL", program_model());
    set("QUIRE_TEMP", "0");
    result = program_expect(0, PROGRAM("run", "-p", "a", "-n", "1"));
    assert_null(strstr(result.err, "seed")); /* greedy: no seed to repeat */
    program_free(&result);
    set("QUIRE_MODEL", NULL);
    set("QUIRE_TEMP", NULL);
}

static void the_command_line_wins_over_the_environment(void **state)
{
    json_t *document;

    (void)state;
    set("QUIRE_KV", "q5");
    document =
        program_json(PROGRAM("run", program_model(), "-p", "a", "-n", "1", "--kv", "q8", "--json"));
    assert_string_equal(json_string_value(at(document, "kv.format")), "q8");
    json_decref(document);
    set("QUIRE_KV", NULL);
}

/* Without a model: a line or an element for each row of the table. */
static void info_lists_the_architectures(void **state)
{
    program_result text = program_expect(0, PROGRAM("info", "--architectures"));
    json_t *document = program_json(PROGRAM("info", "--architectures", "--json"));
    const json_t *list = json_object_get(document, "architectures");
    size_t n_lines = 0;

    (void)state;
    for (const char *c = text.out; *c != '\0'; c++) {
        n_lines += *c == '\n';
    }
    assert_says(text.out, "gemma3");
    assert_true(n_lines > 20);
    assert_int_equal(json_array_size(list), n_lines);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")),
                        "llama");
    program_free(&text);
    json_decref(document);
}

static void a_wrong_setting_in_the_environment_is_named(void **state)
{
    program_result result;

    (void)state;
    set("QUIRE_KV", "q8_0");
    result = program_expect(2, PROGRAM("info", program_model()));
    assert_says(result.err, "QUIRE_KV 'q8_0' is invalid (did you mean q8?)");
    program_free(&result);
    /* Help and wrong options come first. */
    program_result help = program_expect(0, PROGRAM("info", "--help"));
    program_result wrong = program_expect(2, PROGRAM("info", program_model(), "--kvv", "q8"));

    assert_says(wrong.err, "--kvv");
    program_free(&help);
    program_free(&wrong);
    set("QUIRE_KV", NULL);
}

/* Settings that only the server has, variables of tests, and those of other programs. */
static void what_is_no_option_here_is_passed_over(void **state)
{
    program_result result;

    (void)state;
    set("QUIRE_PORT", "nonsense");
    set("QUIRE_SEED", "1");
    set("QUIRE_BRANCH_OFFICE", "k");
    result = program_expect(0, PROGRAM("info", program_model()));
    assert_string_equal(result.err, "");
    program_free(&result);
    set("QUIRE_PAGE_TOKEN", "128");
    result = program_expect(0, PROGRAM("info", program_model()));
    assert_says(result.err, "QUIRE_PAGE_TOKEN in the environment is no setting: did you mean "
                            "QUIRE_PAGE_TOKENS?");
    program_free(&result);
    set("QUIRE_PORT", NULL);
    set("QUIRE_SEED", NULL);
    set("QUIRE_BRANCH_OFFICE", NULL);
    set("QUIRE_PAGE_TOKEN", NULL);
}

/* ---- options of others ---- */

static void options_of_llama_cpp_get_help(void **state)
{
    static const char *const cases[][3] = {
        { "calibrate", "-ngl", "-ngl for layers of the model" },
        { "train", "--n-gpu-layers=99", "-ngl for layers of the model" },
        { "train", "-sm", "-ngl for layers of the model" },
        { "calibrate", "-ts", "-ngl for layers of the model" },
        { "run", "-fa", "tile by tile" },
        { "run", "-hf", "'quire pull hf:OWNER/REPO' fetches a model" },
        { "run", "-cnv", "'quire chat'" },
        { "run", "--jinja", "run the model's chat template" },
        { "bench", "-ctk", "--kv K:V" },
        { "bench", "-ctv", "--kv K:V" },
        { "run", "--mlock", "--lock-memory" },
        { "run", "--no-mmap", "weights are mapped" },
        { "run", "--parallel", "'quire serve' has --parallel" },
        { "run", "-np", "'quire serve' has --parallel" },
        { "serve", "-cb", "always batches continuously" },
        { "serve", "-ub", "--chunk-tokens" },
        { "serve", "--alias", "--model-name" },
        { "chat", "--adaptive-target", "no adaptive-p" },
        { "bench", "--mirostat", "choose tokens by it" },
        { "perplexity", "--dry-base", "choose tokens by it" },
        { "run", "-kvo", "-ngl for layers of the model" },
        { "serve", "--kv-offload", "-ngl for layers of the model" },
        { "chat", "--gpu-layers-draft", "no speculative decoding" },
        { "serve", "--spec-draft-n-max", "no speculative decoding" },
        { "serve", "--lookup-cache-static", "no speculative decoding" },
        { "serve", "-td", "no speculative decoding" },
        { "run", "--image-max-tokens", "text only" },
        { "run", "--video", "text only" },
        { "run", "-mmdev", "text only" },
        { "serve", "--ui", "pages / and /chat" },
        { "serve", "--webui-config", "pages / and /chat" },
        { "serve", "--slot-save-path", "--cache-dir, which keeps pages" },
        { "run", "--prompt-cache", "--cache-dir, which keeps the KV" },
        { "serve", "--api-key-file", "key_file" },
        { "serve", "--verbose", "--log-level" },
        { "serve", "--seed", "requests have seed" },
        { "run", "--list-devices", "'quire devices'" },
        { "bench", "-o", "--json" },
        { "serve", "--cors-headers", "the server's settings" },
        { "serve", "--sse-ping-interval", "the server's settings" },
        { "run", "--agent", "the server's settings" },
        { "serve", "--reasoning-budget-message", "run the model's chat template" },
        { "chat", "-rea", "run the model's chat template" },
        { "run", "--dry-sequence-breaker", "dry_sequence_breakers" },
        { "run", "--logit-bias", "logit_bias" },
        { "run", "--cache-list", "'quire list'" },
        { "serve", "--n-predict", "'quire run' has -n" },
        { "serve", "-n", "'quire run' has -n" },
        { "serve", "-gan", "--context-overflow" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        program_result result = program_expect(2, PROGRAM(cases[i][0], "m.gguf", cases[i][1], "9"));

        assert_says(result.err, cases[i][2]);
        assert_null(strstr(result.err, "did you mean"));
        program_free(&result);
    }
}

static void options_of_other_commands_are_named(void **state)
{
    program_result port = program_expect(2, PROGRAM("run", "m.gguf", "--port", "80"));
    program_result kld = program_expect(2, PROGRAM("bench", "m.gguf", "--kld"));

    (void)state;
    assert_says(port.err, "--port is an option of quire serve, not of quire run");
    assert_says(kld.err, "--kld is an option of quire perplexity, not of quire bench");
    program_free(&port);
    program_free(&kld);
}

/* A guess at an option of one letter is worth nothing. */
static void short_names_are_not_guessed(void **state)
{
    program_result none = program_expect(2, PROGRAM("run", "m.gguf", "-x"));
    program_result dash = program_expect(2, PROGRAM("run", "m.gguf", "-kv", "q8"));

    (void)state;
    assert_says(none.err, "unknown option -x ('quire run --help' lists them)");
    assert_says(dash.err, "(did you mean --kv?)");
    program_free(&none);
    program_free(&dash);
}

static void help_says_why_defaults_differ(void **state)
{
    program_result run = program_expect(0, PROGRAM("run", "--help"));
    program_result serve = program_expect(0, PROGRAM("serve", "--help"));

    (void)state;
    assert_says(run.out, "quire serve: q8");
    assert_says(serve.out, "other commands: f16");
    program_free(&run);
    program_free(&serve);
}

/* A shell's command with the program in $program. Returns its exit status. */
static int shell(const char *command)
{
    const char *program = getenv("QUIRE_PROGRAM");
    int status;

    setenv("program", program != NULL ? program : QUIRE_PROGRAM, 1);
    status = system(command);
    unsetenv("program");
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Without stdin, stdout or stderr no other file takes their numbers: stdin is not read from another
 * one, and the server's log does not go to the recording. */
static void closed_standard_streams_stay_closed(void **state)
{
    const char *said = program_path("said.txt"), *record = program_path("record.jsonl");
    char command[2048], line[512];
    FILE *file;

    (void)state;
    (void)snprintf(command, sizeof(command), "\"$program\" run '%s' -f - -n 1 <&- 2>'%s'",
                   program_model(), said);
    assert_int_equal(shell(command), 1);
    file = fopen(said, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_int_equal(fclose(file), 0);
    assert_says(line, "cannot read -: Bad file descriptor");
    (void)snprintf(command, sizeof(command), "\"$program\" run '%s' -p a -n 1 >&- 2>'%s'",
                   program_model(), said);
    assert_int_equal(shell(command), 1);
    (void)snprintf(command, sizeof(command),
                   "\"$program\" serve '%s' --port 0 --record '%s' >'%s' 2>&- & "
                   "until grep -q ready '%s'; do kill -0 $! || exit 9; sleep 0.05; done; "
                   "kill -TERM $!; wait $!",
                   program_model(), record, said, said);
    assert_int_equal(shell(command), 0);
    file = fopen(record, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        assert_int_equal(line[0], '{');
    }
    assert_int_equal(fclose(file), 0);
    (void)remove(said);
    (void)remove(record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_is_named_with_and_without_m),
        cmocka_unit_test(a_name_stands_for_a_path_everywhere),
        cmocka_unit_test(the_model_is_named_once),
        cmocka_unit_test(kv_of_the_environment_counts_everywhere),
        cmocka_unit_test(kv_of_the_environment_counts_for_traces),
        cmocka_unit_test(kv_of_the_environment_counts_for_stored_pages),
        cmocka_unit_test(calibrate_sets_its_formats_and_says_so),
        cmocka_unit_test(the_environment_gives_the_model),
        cmocka_unit_test(the_command_line_wins_over_the_environment),
        cmocka_unit_test(info_lists_the_architectures),
        cmocka_unit_test(a_wrong_setting_in_the_environment_is_named),
        cmocka_unit_test(what_is_no_option_here_is_passed_over),
        cmocka_unit_test(options_of_llama_cpp_get_help),
        cmocka_unit_test(options_of_other_commands_are_named),
        cmocka_unit_test(short_names_are_not_guessed),
        cmocka_unit_test(help_says_why_defaults_differ),
        cmocka_unit_test(closed_standard_streams_stay_closed),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
