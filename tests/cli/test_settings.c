/* test_settings.c - settings from flags, the environment and a file: precedence and refusals.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/settings/settings.h"
#include "program.h"
#include "quire/status.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct sample_args {
    const char *config;
    const char *model;
    int64_t n;
    int64_t ctx;
    double temp;
    uint64_t size;
    uint64_t ttl_us;
    bool locks;
    int mode;
    quire_kv_choice kv;
    bool has_kv;
    const char *secret;
} sample_args;

static const char *const modes[] = { "slow", "quick", NULL };

/* clang-format off */
static const quire_opt rows[] = {
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "FILE",
      .offset = offsetof(sample_args, model), .help = "a model" },
    { .names = { "--config" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .is_flag_only = true,
      .offset = offsetof(sample_args, config), .help = "a file" },
    { .names = { "-n" }, .type = QUIRE_OPT_COUNT, .unit = "N", .max = 10, .initial = "7",
      .offset = offsetof(sample_args, n), .help = "no long name" },
    { .names = { "-c", "--ctx", "--ctx-size" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = 1 << 20, .initial = "100", .block_key = "max_seq_len",
      .offset = offsetof(sample_args, ctx), .help = "two long names" },
    { .names = { "--temp" }, .type = QUIRE_OPT_REAL, .unit = "T", .max = 10, .initial = "0.5",
      .offset = offsetof(sample_args, temp), .help = "a number" },
    { .names = { "--max-size" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .initial = "8MiB",
      .offset = offsetof(sample_args, size), .help = "a size" },
    { .names = { "--session-ttl" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 1,
      .max = 86400, .initial = "30m", .offset = offsetof(sample_args, ttl_us), .help = "a time" },
    { .names = { "--lock-memory" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(sample_args, locks),
      .help = "a flag" },
    { .names = { "--mode" }, .type = QUIRE_OPT_CHOICE, .choices = modes, .initial = "slow",
      .offset = offsetof(sample_args, mode), .help = "a choice" },
    { .names = { "--kv" }, .type = QUIRE_OPT_KV, .unit = "K[:V]", .initial = "f16",
      .offset = offsetof(sample_args, kv), .seen_offset = offsetof(sample_args, has_kv),
      .help = "a pair" },
    { .names = { "--api-key" }, .type = QUIRE_OPT_TEXT, .unit = "KEY", .is_secret = true,
      .is_key = true, .initial_text = "none: open to all", .offset = offsetof(sample_args, secret),
      .help = "a secret" },
};
/* clang-format on */

static const quire_command sample = {
    .name = "sample",
    .usage = "[options]",
    .summary = "Tests.",
    .options = rows,
    .n_options = COUNT(rows),
    .args_bytes = sizeof(sample_args),
    .has_settings = true,
};

/* The sources of settings in a test; NULL ends the lists. */
typedef struct given {
    const char *file; /* text of the file; NULL = none */
    const char *variables[4];
    const char *words[8];
} given;

static char *kept[16]; /* variables and words of the last read(), which settings borrow */
static size_t n_kept;

static char *keep(const char *text)
{
    assert_true(n_kept < COUNT(kept));
    kept[n_kept] = strdup(text);
    assert_non_null(kept[n_kept]);
    return kept[n_kept++];
}

static void forget(void)
{
    for (size_t i = 0; i < n_kept; i++) {
        char name[64];

        if (strncmp(kept[i], "QUIRE_", 6) == 0) {
            /* A copy: the environment holds the very text. */
            (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(kept[i], "="), kept[i]);
            assert_int_equal(unsetenv(name), 0);
        }
        free(kept[i]);
    }
    n_kept = 0;
}

/* Memory: settings_fini() after success; texts stay until the next call or forget(). */
static int read_all(given g, quire_settings *settings, sample_args *args, quire_error *err)
{
    char *argv[12];
    int argc = 0;

    forget();
    if (g.file != NULL) {
        argv[argc++] = keep("--config");
        argv[argc++] = keep(program_file("quire.yaml", g.file, strlen(g.file)));
    }
    for (size_t i = 0; i < COUNT(g.variables) && g.variables[i] != NULL; i++) {
        assert_int_equal(putenv(keep(g.variables[i])), 0);
    }
    for (size_t i = 0; i < COUNT(g.words) && g.words[i] != NULL; i++) {
        argv[argc++] = keep(g.words[i]);
    }
    *err = (quire_error)QUIRE_ERROR_INIT;
    quire_options_init(&sample, args);
    return quire_settings_read(settings, &sample, NULL, argc, argv, args, err);
}

static void must_read(given g, quire_settings *settings, sample_args *args)
{
    quire_error err;

    if (read_all(g, settings, args, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
}

static void every_type_from_a_file(void **state)
{
    quire_settings settings;
    sample_args args;

    (void)state;
    must_read((given){ .file = "# a comment\n"
                               "model: \"a b.gguf\"\n"
                               "ctx: 4k\n"
                               "temp: 1.25\n"
                               "max_size: 1.5GiB\n"
                               "session_ttl: 90s\n"
                               "lock_memory: true\n"
                               "mode: quick\n"
                               "kv: 'q8:q4'\n" },
              &settings, &args);
    assert_string_equal(args.model, "a b.gguf");
    assert_int_equal(args.n, 7);
    assert_int_equal(args.ctx, 4000);
    assert_true(args.temp == 1.25);
    assert_int_equal(args.size, 1610612736);
    assert_int_equal(args.ttl_us, 90000000);
    assert_true(args.locks);
    assert_int_equal(args.mode, 1);
    assert_int_equal(args.kv.pair.v, QUIRE_FORMAT_Q4);
    assert_true(args.has_kv);
    assert_int_equal(settings.list[0].source, QUIRE_SETTING_FILE);
    assert_int_equal(settings.list[2].source, QUIRE_SETTING_DEFAULT);
    quire_settings_fini(&settings);
}

static void flags_win_over_environment_over_file(void **state)
{
    const given all = { .file = "model: m\nctx_size: 1\ntemp: 1\nmode: quick\nlock_memory: yes\n",
                        .variables = { "QUIRE_CTX=2", "QUIRE_TEMP=2", "QUIRE_KV=q8" },
                        .words = { "--ctx-size", "3", "--lock-memory=false" } };
    quire_settings settings;
    sample_args args;

    (void)state;
    must_read(all, &settings, &args);
    assert_int_equal(args.ctx, 3);
    assert_true(args.temp == 2);
    assert_int_equal(args.mode, 1);
    assert_false(args.locks);
    assert_int_equal(args.kv.pair.k, QUIRE_FORMAT_Q8);
    assert_int_equal(settings.list[3].source, QUIRE_SETTING_FLAG);
    assert_int_equal(settings.list[4].source, QUIRE_SETTING_ENVIRONMENT);
    assert_int_equal(settings.list[8].source, QUIRE_SETTING_FILE);
    quire_settings_fini(&settings);
}

static void the_environment_names_the_file(void **state)
{
    static const char text[] = "model: m\ninference_params:\n  max_seq_len: 64\n";
    char variable[300];
    quire_settings settings;
    sample_args args;

    (void)state;
    (void)snprintf(variable, sizeof(variable), "QUIRE_CONFIG=%s",
                   program_file("other.yaml", text, sizeof(text) - 1));
    must_read((given){ .variables = { variable, "QUIRE_MODE=", "QUIRE_ISA=portable" } }, &settings,
              &args);
    assert_int_equal(args.ctx, 64);
    assert_int_equal(args.mode, 0); /* an empty variable is none */
    assert_string_equal(settings.list[3].name, "inference_params.max_seq_len");
    quire_settings_fini(&settings);
}

static void api_keys_are_kept(void **state)
{
    quire_config_key keys[2];
    quire_settings settings;
    sample_args args;
    quire_error err;

    (void)state;
    must_read((given){ .file = "model: m\napi_keys:\n  - { key: abc, tenant: a }\n"
                               "  - key_env: NAME\n    admin: true\n" },
              &settings, &args);
    assert_int_equal(quire_config_file_count(settings.file, QUIRE_CONFIG_KEYS), 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(
            quire_config_file_entry(settings.file, QUIRE_CONFIG_KEYS, i, &keys[i], &err), 0);
    }
    assert_string_equal(keys[0].key, "abc");
    assert_string_equal(keys[0].tenant, "a");
    assert_null(keys[0].key_env);
    assert_false(keys[0].is_admin);
    assert_string_equal(keys[1].key_env, "NAME");
    assert_true(keys[1].is_admin);
    quire_settings_fini(&settings);

    /* A variable that holds a key is known. */
    must_read((given){ .file = "model: m\napi_keys: [ { key_env: QUIRE_TEAM_A } ]\n",
                       .variables = { "QUIRE_TEAM_A=abc" } },
              &settings, &args);
    quire_settings_fini(&settings);

    must_read((given){ .file = "%YAML 1.1\n# one\n---\nmodel: m # ---\n\n...\n# end\n" }, &settings,
              &args);
    assert_string_equal(args.model, "m");
    quire_settings_fini(&settings);

    must_read((given){ .file = "", .words = { "-m", "x" } }, &settings, &args);
    assert_int_equal(quire_config_file_count(settings.file, QUIRE_CONFIG_KEYS), 0);
    quire_settings_fini(&settings);
}

static void refused(void **state)
{
    static const struct {
        given g;
        const char *says[3];
    } cases[] = {
        { { .file = "temp: 1\n" }, { "-m FILE is missing" } },
        { { .file = "model: m\ntmep: 1\n" },
          { "quire.yaml: unknown key 'tmep' (did you mean temp?)" } },
        { { .file = "model: m\nmax-size: 1\n" }, { "'max-size' (did you mean max_size?)" } },
        { { .file = "model: m\nmax_seq_len: 1\n" },
          { "'max_seq_len' (did you mean inference_params.max_seq_len?)" } },
        { { .file = "inference_params: { max_sqe_len: 1 }\n" },
          { "quire.yaml: inference_params: unknown key 'max_sqe_len' (did you mean "
            "max_seq_len?)" } },
        { { .file = "api_keys: [ { kye: a } ]\n" },
          { "api_keys[1]: unknown key 'kye' (did you mean key?)" } },
        { { .file = "apikeys: []\n" }, { "(did you mean api_keys?)" } },
        { { .file = "config: x\n" }, { "unknown key 'config'" } },
        { { .file = "frobnicate: 1\n" }, { "'frobnicate' (docs/configuration.md lists them)" } },
        { { .file = "temp: 11\n" }, { "quire.yaml: temp '11' is out of range", "0 to 10" } },
        { { .file = "inference_params: { max_seq_len: 0 }\n" },
          { "inference_params.max_seq_len '0' is out of range" } },
        { { .file = "session_ttl: 30x\n" }, { "session_ttl '30x' is invalid", "30s, 15m or 2h" } },
        { { .file = "session_ttl: 2d\n" }, { "session_ttl '2d' is out of range", "86400" } },
        { { .file = "lock_memory: 1\n" }, { "lock_memory '1'", "true or false" } },
        { { .file = "mode: fast\n" }, { "mode 'fast'", "slow, quick" } },
        { { .file = "kv: q8_0\n" }, { "kv 'q8_0' is invalid (did you mean q8?)" } },
        { { .file = "ctx: 1\nctx_size: 2\n" }, { "ctx and ctx_size are the same setting" } },
        { { .file = "ctx: 1\ninference_params: { max_seq_len: 1 }\n" },
          { "ctx and inference_params.max_seq_len are the same setting" } },
        { { .file = "temp: 1\ntemp: 2\n" }, { "temp is given twice" } },
        { { .file = "temp:\n" }, { "quire.yaml: temp has no value" } },
        { { .file = "temp: [1, 2]\n" }, { "quire.yaml: temp takes one value, not a list" } },
        { { .file = "inference_params: 3\n" },
          { "quire.yaml: inference_params takes keys with their values, not one value" } },
        { { .file = "inference_params:\n" },
          { "takes keys with their values, not one value or " } },
        { { .file = "api_keys: secret\n" },
          { "quire.yaml: api_keys takes a list, not one value" } },
        { { .file = "api_keys: [ secret ]\n" }, { "api_keys[1] takes keys with their values" } },
        { { .file = "api_keys: { key: secret }\n" },
          { "api_keys takes a list, not keys with their values" } },
        { { .file = "- temp\n" }, { "quire.yaml: the file takes keys with their values" } },
        { { .file = "temp: {\n" }, { "quire.yaml: temp takes one value, not keys" } },
        { { .file = "model: m\n\ttemp: 1\n" }, { "not YAML, in or after line 1: found a tab" } },
        { { .file = "model: &a m\nmode: *a\n" }, { "quire.yaml: mode is an alias (*)" } },
        { { .file = "model: m\n? [ temp ]\n: 1\n" },
          { "quire.yaml: in or after line 1: a key that is no text" } },
        { { .file = "model: m\ntemp: ~\n" }, { "quire.yaml: temp is ~: leave it out" } },
        { { .file = "model: m\napi_keys: [ { key: null } ]\n" }, { "api_keys[1].key is null" } },
        { { .file = "model: m\napi_keys: [ { key: a }, { key_file: \"\\e\" } ]\n" },
          { "api_keys[2].key_file holds a control character" } },
        { { .file = "model: m\n---\ntemp: 1\n" }, { "quire.yaml: a second document begins" } },
        { { .file = "model: m\n...\ntemp: 1\n" }, { "quire.yaml: not YAML: " } },
        { { .file = "model: m\n...\n---\ntemp: 1\n" }, { "a second document begins" } },
        { { .words = { "--model", "" } }, { "--model is empty: it takes " } },
        { { .words = { "-m", "m", "--config=" } }, { "--config is empty: it takes FILE" } },
        { { .file = "model: \"a\\eb\"\n" }, { "model holds a control character" } },
        { { .file = "# one\nmodel: \"a\\0b\"\n" }, { "in line 2: a text with a NUL byte" } },
        { { .words = { "--config", "/nowhere/quire.yaml" } },
          { "cannot open /nowhere/quire.yaml" } },
        { { .words = { "--config", "/" } }, { "cannot read /" } },
        { { .variables = { "QUIRE_TMEP=1" } },
          { "unknown setting QUIRE_TMEP in the environment (did you mean QUIRE_TEMP?)" } },
        { { .variables = { "QUIRE_FROBNICATE_ALL=1" } }, { "unknown", "quire sample --help" } },
        { { .variables = { "QUIRE_TEMP=x" } }, { "QUIRE_TEMP 'x' is invalid", "0 to 10" } },
        { { .variables = { "QUIRE_CTX=1", "QUIRE_CTX_SIZE=1" } }, { "are the same setting" } },
        { { .words = { "--temp", "x" } }, { "--temp 'x' is invalid" } },
        { { .words = { "--lock-memory=1" } }, { "--lock-memory '1'", "true or false" } },
        { { .file = "temp: x\n", .words = { "--tmep", "1" } }, { "unknown option --tmep" } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_settings settings;
        sample_args args;
        quire_error err;

        if (read_all(cases[i].g, &settings, &args, &err) >= 0) {
            fail_msg("case %zu was accepted", i);
        }
        for (size_t j = 0; j < COUNT(cases[i].says) && cases[i].says[j] != NULL; j++) {
            assert_says(err.message, cases[i].says[j]);
        }
        assert_null(strchr(err.message, '\n'));
    }
}

/* Nothing in a file may overrun a buffer. */
static void long_texts(void **state)
{
    static const char *const begins[] = {
        "temp: ", "", "inference_params: { max_seq_len: ", "api_keys: [ { tenant: ", "[", "temp: {"
    };
    static char text[70000];

    (void)state;
    for (size_t i = 0; i < COUNT(begins); i++) {
        quire_settings settings;
        sample_args args;
        quire_error err;

        memset(text, i < 4 ? 'a' : '[', sizeof(text) - 2);
        memcpy(text, begins[i], strlen(begins[i]));
        assert_true(read_all((given){ .file = text }, &settings, &args, &err) < 0);
        assert_true(strlen(err.message) < 480);
    }
}

static char *printed(const quire_settings *settings)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(out);
    quire_settings_print(settings, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void what_is_printed_says_where_from(void **state)
{
    const given g = { .file = "model: \"a \\\"b\\\"\"\nsession_ttl: 1h\n",
                      .variables = { "QUIRE_KV=q8:q4", "QUIRE_API_KEY=hush" },
                      .words = { "--temp", "2" } };
    quire_settings settings;
    sample_args args;
    char *text;
    json_t *all;

    (void)state;
    must_read(g, &settings, &args);
    text = printed(&settings);
    assert_says(text, "model: \"a \\\"b\\\"\"  # file, model\n");
    assert_says(text, "session_ttl: 1h  # file, session_ttl\n");
    assert_says(text, "kv: \"q8:q4\"  # environment, QUIRE_KV\n");
    assert_says(text, "temp: 2  # flag, --temp\n");
    assert_says(text, "ctx_size: 100  # default\n");
    assert_says(text, "lock_memory: false  # default\n");
    assert_says(text, "# api_key: (not shown)  # environment, QUIRE_API_KEY\n");
    assert_null(strstr(text, "hush"));

    all = quire_settings_json(&settings);
    assert_string_equal(json_string_value(json_object_get(json_object_get(all, "temp"), "source")),
                        "flag, --temp");
    json_decref(all);
    quire_settings_fini(&settings);

    /* The printed text is a valid file of settings. */
    must_read((given){ .file = text }, &settings, &args);
    assert_string_equal(args.model, "a \"b\"");
    assert_int_equal(args.ttl_us, 3600000000);
    assert_int_equal(args.kv.pair.v, QUIRE_FORMAT_Q4);
    assert_true(args.temp == 2);
    quire_settings_fini(&settings);
    free(text);
}

/* With keys in the file the words for a server without keys are not said. */
static void a_key_that_is_not_given_is_no_word_on_the_others(void **state)
{
    static const struct {
        const char *file, *says;
    } cases[] = {
        { "model: m\n", "# api_key: none: open to all  # default\n" },
        { "model: m\napi_keys: [ { key: abc } ]\n", "# api_key: none  # default\n" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_settings settings;
        sample_args args;
        char *text;

        must_read((given){ .file = cases[i].file }, &settings, &args);
        text = printed(&settings);
        assert_says(text, cases[i].says);
        free(text);
        quire_settings_fini(&settings);
    }
}

static void documentation_has_every_row(void **state)
{
    quire_bytes out = { 0 };

    (void)state;
    assert_int_equal(quire_settings_document(&sample, &out), QUIRE_OK);
    assert_says(out.data, "| `-c`, `--ctx`, `--ctx-size N` | `ctx_size`, "
                          "`inference_params.max_seq_len` | `QUIRE_CTX_SIZE` | ");
    assert_says(out.data, "| `--mode slow\\|quick` | `mode` | `QUIRE_MODE` | a choice");
    assert_says(out.data, "| `--config FILE` | | | a file |");
    quire_bytes_fini(&out);
}

static void help_needs_nothing(void **state)
{
    quire_settings settings;
    sample_args args;
    quire_error err;

    (void)state;
    assert_int_equal(
        read_all((given){ .file = "temp: x\n", .words = { "--help" } }, &settings, &args, &err),
        QUIRE_OPTIONS_HELP);
}

static int clean(void **state)
{
    forget();
    return program_clean(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_from_a_file),
        cmocka_unit_test(flags_win_over_environment_over_file),
        cmocka_unit_test(the_environment_names_the_file),
        cmocka_unit_test(api_keys_are_kept),
        cmocka_unit_test(refused),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(what_is_printed_says_where_from),
        cmocka_unit_test(a_key_that_is_not_given_is_no_word_on_the_others),
        cmocka_unit_test(documentation_has_every_row),
        cmocka_unit_test(help_needs_nothing),
    };

    /* A variable of the person who runs the tests must not change them. */
    (void)unsetenv("QUIRE_CONFIG");
    return cmocka_run_group_tests(tests, NULL, clean);
}
