/* test_options.c - option tables: accepted values, stored values, messages.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/options.h"

#include "cli/commands/commands.h"
#include "cli/commands/opened.h"
#include "cli/settings/args.h"
#include "cli/stored/stored_args.h"
#include "quire/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef struct sample_args {
    const char *first;
    const char *model;
    int64_t n;
    int64_t pages;
    double temp;
    uint64_t budget;
    int mode;
    quire_kv_choice kv;
    bool has_kv;
    quire_kv_list kvs;
    quire_count_list depths;
    bool is_json;
} sample_args;

static const char *const modes[] = { "slow", "quick", NULL };

/* clang-format off */
static const quire_opt rows[] = {
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "FILE",
      .offset = offsetof(sample_args, model), .help = "a model" },
    { .names = { "-n" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = -1, .max = 1 << 20,
      .initial = "7", .offset = offsetof(sample_args, n), .help = "a count" },
    { .names = { "--pages" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 64, .max = 1024,
      .multiple = 64, .initial = "64", .offset = offsetof(sample_args, pages), .help = "pages" },
    { .names = { "--temp" }, .type = QUIRE_OPT_REAL, .unit = "T", .min = 0, .max = 10,
      .initial = "0.5", .offset = offsetof(sample_args, temp), .help = "a number" },
    { .names = { "--budget" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 16, .max = 1e12,
      .initial = "1k", .offset = offsetof(sample_args, budget), .help = "a size" },
    { .names = { "--mode" }, .type = QUIRE_OPT_CHOICE, .choices = modes, .initial = "quick",
      .offset = offsetof(sample_args, mode), .help = "a choice" },
    { .names = { "--kv" }, .type = QUIRE_OPT_KV, .unit = "K[:V]", .initial = "f16",
      .offset = offsetof(sample_args, kv), .seen_offset = offsetof(sample_args, has_kv),
      .help = "a pair" },
    { .names = { "-ctv" }, .type = QUIRE_OPT_FORMAT, .unit = "V",
      .offset = offsetof(sample_args, kv.pair.v), .help = "a format" },
    { .names = { "--kvs" }, .type = QUIRE_OPT_KV_LIST, .unit = "K,...", .initial = "f16",
      .offset = offsetof(sample_args, kvs), .help = "pairs" },
    { .names = { "-d", "--depth" }, .type = QUIRE_OPT_COUNT_LIST, .unit = "N,...", .min = 0,
      .max = 1 << 20, .initial = "0", .offset = offsetof(sample_args, depths), .help = "counts" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(sample_args, is_json),
      .help = "a flag" },
};
/* clang-format on */

static const quire_command sample = {
    .name = "sample",
    .usage = "-m FILE [options]",
    .summary = "Tests.",
    .options = rows,
    .n_options = COUNT(rows),
    .positional = "--model",
    .args_bytes = sizeof(sample_args),
};

/* Words of a command line, NULL ending them. */
typedef struct words {
    const char *w[8];
} words;

/* Parse after setting the defaults. */
static int parse(words given, sample_args *args, quire_error *err)
{
    static char kept[8][160]; /* texts are borrowed from argv: they must outlive this call */
    char *argv[8];
    int argc = 0;

    while (argc < 8 && given.w[argc] != NULL) {
        (void)snprintf(kept[argc], sizeof(kept[argc]), "%s", given.w[argc]);
        argv[argc] = kept[argc];
        argc++;
    }
    *err = (quire_error)QUIRE_ERROR_INIT;
    quire_options_init(&sample, args);
    return quire_options_parse(&sample, argc, argv, args, err);
}

static void defaults(void **state)
{
    sample_args args;
    quire_error err;

    (void)state;
    assert_int_equal(parse((words){ { "-m", "x" } }, &args, &err), QUIRE_OK);
    assert_string_equal(args.model, "x");
    assert_int_equal(args.n, 7);
    assert_true(args.temp == 0.5);
    assert_int_equal(args.budget, 1000);
    assert_int_equal(args.mode, 1);
    assert_int_equal(args.kv.pair.k, QUIRE_FORMAT_F16);
    assert_false(args.has_kv);
    assert_int_equal(args.kvs.n, 1);
    assert_int_equal(args.depths.n, 1);
    assert_int_equal(args.depths.items[0], 0);
    assert_false(args.is_json);
}

static void values(void **state)
{
    sample_args args;
    quire_error err;

    (void)state;
    assert_int_equal(
        parse((words){ { "model.gguf", "-n", "4k", "--temp=2.5", "--json" } }, &args, &err),
        QUIRE_OK);
    assert_string_equal(args.model, "model.gguf");
    assert_int_equal(args.n, 4000);
    assert_true(args.temp == 2.5);
    assert_true(args.is_json);

    assert_int_equal(
        parse((words){ { "--model=", "-n", "-1", "--budget", "1.5GiB", "--mode", "slow" } }, &args,
              &err),
        QUIRE_OK);
    assert_string_equal(args.model, "");
    assert_int_equal(args.n, -1);
    assert_int_equal(args.budget, 1610612736);
    assert_int_equal(args.mode, 0);

    /* The last one counts; a bare "-" is a value; after "--" nothing is an option. */
    assert_int_equal(parse((words){ { "-m", "a", "-m", "-" } }, &args, &err), QUIRE_OK);
    assert_string_equal(args.model, "-");
    assert_int_equal(parse((words){ { "--", "-n" } }, &args, &err), QUIRE_OK);
    assert_string_equal(args.model, "-n");
}

static void formats(void **state)
{
    sample_args args;
    quire_error err;
    char name[24];

    (void)state;
    assert_int_equal(parse((words){ { "x", "--kv", "q8:f16" } }, &args, &err), QUIRE_OK);
    assert_int_equal(args.kv.pair.k, QUIRE_FORMAT_Q8);
    assert_int_equal(args.kv.pair.v, QUIRE_FORMAT_F16);
    assert_true(args.has_kv);
    assert_string_equal(quire_kv_choice_name(&args.kv, name, sizeof(name)), "q8:f16");

    assert_int_equal(parse((words){ { "x", "--kv", "bf16", "-ctv", "f32" } }, &args, &err),
                     QUIRE_OK);
    assert_int_equal(args.kv.pair.k, QUIRE_FORMAT_BF16);
    assert_int_equal(args.kv.pair.v, QUIRE_FORMAT_F32);

    assert_int_equal(parse((words){ { "x", "--kvs", "q8,f16:f32,bf16" } }, &args, &err), QUIRE_OK);
    assert_int_equal(args.kvs.n, 3);
    assert_int_equal(args.kvs.items[0].pair.v, QUIRE_FORMAT_Q8);
    assert_string_equal(quire_kv_choice_name(&args.kvs.items[1], name, sizeof(name)), "f16:f32");
    assert_string_equal(quire_kv_choice_name(&args.kvs.items[2], name, sizeof(name)), "bf16");

    assert_int_equal(
        parse((words){ { "x", "--kv", "auto:5.5", "--kvs", "auto,q6:q3" } }, &args, &err),
        QUIRE_OK);
    assert_true(args.kv.is_auto && args.kv.bits == 5.5);
    assert_string_equal(quire_kv_choice_name(&args.kv, name, sizeof(name)), "auto:5.5");
    assert_true(args.kvs.items[0].is_auto && args.kvs.items[0].bits == QUIRE_KV_AUTO_BITS);
    assert_string_equal(quire_kv_choice_name(&args.kvs.items[1], name, sizeof(name)), "q6:q3");

    assert_int_equal(parse((words){ { "x", "-d", "0,8k,32" } }, &args, &err), QUIRE_OK);
    assert_int_equal(args.depths.n, 3);
    assert_int_equal(args.depths.items[1], 8000);
    assert_int_equal(args.depths.items[2], 32);
}

static void help_asked(void **state)
{
    sample_args args;
    quire_error err;

    (void)state;
    assert_int_equal(parse((words){ { "-h" } }, &args, &err), QUIRE_OPTIONS_HELP);
    assert_int_equal(parse((words){ { "-n", "3", "--help" } }, &args, &err), QUIRE_OPTIONS_HELP);
}

static void refused(void **state)
{
    static const struct {
        words given;
        int status;
        const char *says[3]; /* parts of the message */
    } cases[] = {
        { { { NULL } }, QUIRE_INVAL, { "-m FILE is missing" } },
        { { { "-m" } }, QUIRE_INVAL, { "-m needs a value", "FILE" } },
        { { { "-m", "--json" } }, QUIRE_INVAL, { "-m needs a value" } },
        { { { "x", "y z" } }, QUIRE_INVAL, { "unexpected 'y z'", "quotes" } },
        { { { "x", "--kvv", "q8" } },
          QUIRE_INVAL,
          { "unknown option --kvv (did you mean --kv?)" } },
        { { { "x", "-n3" } }, QUIRE_INVAL, { "unknown option -n3 (did you mean -n 3?)" } },
        { { { "x", "-q3" } }, QUIRE_INVAL, { "unknown option -q3 ('quire" } },
        { { { "x", "--dept=3" } }, QUIRE_INVAL, { "--dept (did you mean --depth?)" } },
        { { { "x", "--frobnicate" } }, QUIRE_INVAL, { "--frobnicate", "quire sample --help" } },
        { { { "x", "--json=1" } }, QUIRE_INVAL, { "--json takes no value" } },
        { { { "x", "-n", "ten" } }, QUIRE_INVAL, { "-n 'ten' is invalid", "-1 to 1048576" } },
        { { { "x", "-n", "1.5" } }, QUIRE_INVAL, { "-n '1.5'" } },
        { { { "x", "-n", "" } }, QUIRE_INVAL, { "-n ''" } },
        { { { "x", "-n", "2M" } }, QUIRE_RANGE, { "-n '2M' is out of range", "1048576" } },
        { { { "x", "-n", "-2" } }, QUIRE_RANGE, { "-n '-2' is out of range" } },
        { { { "x", "-n", "99999999999999999999" } }, QUIRE_RANGE, { "out of range" } },
        { { { "x", "--pages", "100" } }, QUIRE_RANGE, { "a multiple of 64" } },
        { { { "x", "--temp", "nan" } }, QUIRE_INVAL, { "--temp 'nan'", "0 to 10" } },
        { { { "x", "--temp", "11" } }, QUIRE_RANGE, { "--temp '11' is out of range" } },
        { { { "x", "--budget", "12Q" } }, QUIRE_INVAL, { "--budget '12Q'", "4GiB" } },
        { { { "x", "--budget", "3" } }, QUIRE_RANGE, { "--budget '3'", "16" } },
        { { { "x", "--budget", "-1" } }, QUIRE_INVAL, { "--budget '-1'" } },
        { { { "x", "--mode", "fast" } }, QUIRE_INVAL, { "--mode 'fast'", "slow, quick" } },
        { { { "x", "--kv", "q9" } }, QUIRE_INVAL, { "--kv 'q9'", "f16", "K:V" } },
        { { { "x", "--kv", "f16:" } }, QUIRE_INVAL, { "--kv 'f16:'" } },
        { { { "x", "--kv", "f16:q8:q8" } }, QUIRE_INVAL, { "--kv 'f16:q8:q8'" } },
        { { { "x", "--kv", "q8_0" } }, QUIRE_INVAL, { "(did you mean q8?)", "auto:BITS" } },
        { { { "x", "--kv", "q5_1:iq4_nl" } }, QUIRE_INVAL, { "(did you mean q5:q4?)" } },
        { { { "x", "-ctv", "q4_0" } }, QUIRE_INVAL, { "-ctv 'q4_0'", "(did you mean q4?)" } },
        { { { "x", "-ctv", "auto" } }, QUIRE_INVAL, { "-ctv 'auto' is invalid: it takes" } },
        { { { "x", "--kv", "auto:2" } }, QUIRE_RANGE, { "out of range", "3 to 32 bits" } },
        { { { "x", "--kvs", "q8,q4_0" } }, QUIRE_INVAL, { "--kvs 'q4_0'", "mean q4?" } },
        { { { "x", "--kvs", "q8,,f16" } }, QUIRE_INVAL, { "--kvs ''" } },
        { { { "x", "-d", "0,x" } }, QUIRE_INVAL, { "-d 'x'", "comma" } },
        { { { "x", "-d", "0,2M" } }, QUIRE_RANGE, { "-d '2M' is out of range" } },
        { { { "x", "-d", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1" } },
          QUIRE_RANGE,
          { "at most 32 values" } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        sample_args args;
        quire_error err;
        int rc = parse(cases[i].given, &args, &err);

        if (rc != cases[i].status) {
            fail_msg("case %zu: status %d, message '%s'", i, rc, err.message);
        }
        for (size_t j = 0; j < COUNT(cases[i].says) && cases[i].says[j] != NULL; j++) {
            if (strstr(err.message, cases[i].says[j]) == NULL) {
                fail_msg("case %zu: '%s' lacks '%s'", i, err.message, cases[i].says[j]);
            }
        }
        assert_null(strchr(err.message, '\n'));
    }
}

/* Endless words must neither overrun a buffer nor fill the screen. */
static void long_words(void **state)
{
    static char word[100000];
    static char list[100000];
    char *argv[] = { word, list };
    sample_args args;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    memset(word, 'a', sizeof(word) - 1);
    memcpy(word, "--", 2);
    quire_options_init(&sample, &args);
    assert_int_equal(quire_options_parse(&sample, 1, argv, &args, &err), QUIRE_INVAL);
    assert_true(strlen(err.message) < 300);

    memcpy(word, "--kvs", 6);
    memset(list, 'q', sizeof(list) - 1);
    assert_int_equal(quire_options_parse(&sample, 2, argv, &args, &err), QUIRE_INVAL);
    assert_true(strlen(err.message) < 300);
    list[50] = ':';
    memcpy(word, "--kv", 5);
    assert_int_equal(quire_options_parse(&sample, 2, argv, &args, &err), QUIRE_INVAL);
    assert_true(strlen(err.message) < 300);
}

/* The options for KV formats, as every command that opens a model has them. */
static int parse_run(words given, void *args, quire_error *err)
{
    const quire_command *command = quire_command_find("run");
    char prompt[] = "--prompt=a"; /* which quire run needs */
    char kept[8][64];
    char *argv[9];
    int argc = 0;

    while (argc < 8 && given.w[argc] != NULL) {
        (void)snprintf(kept[argc], sizeof(kept[argc]), "%s", given.w[argc]);
        argv[argc] = kept[argc];
        argc++;
    }
    argv[argc++] = prompt;
    *err = (quire_error)QUIRE_ERROR_INIT;
    quire_options_init(command, args);
    return quire_options_parse(command, argc, argv, args, err);
}

static void kv_options(void **state)
{
    static const struct {
        words given;
        const char *says; /* NULL: accepted */
    } cases[] = {
        { { { "-m", "x" } }, NULL },
        { { { "-m", "x", "--kv", "q8", "-ctv", "q4" } }, NULL },
        { { { "-m", "x", "--kv-layers", "*=q8" } }, NULL },
        { { { "-m", "x", "--kv", "auto:4", "--kv-recent", "0" } }, NULL },
        { { { "-m", "x", "--kv", "auto", "-ctk", "q8" } }, "--kv auto" },
        { { { "-m", "x", "-ctv", "q8", "--kv", "auto" } }, "--kv auto" },
        { { { "-m", "x", "--kv-layers", "*=q8", "--kv", "q8" } }, "--kv-layers and --kv " },
        { { { "-m", "x", "--kv-layers", "*=q8", "-ctk", "q8" } }, "--kv-layers and -ctk" },
        { { { "-m", "x", "--kv-recent", "100" } }, "a multiple of 64" },
        { { { "-m", "x", "--kv-sinks", "65600" } }, "out of range" },
    };
    quire_common_args *args = malloc(quire_command_find("run")->args_bytes);

    (void)state;
    assert_non_null(args);
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_error err;
        int rc = parse_run(cases[i].given, args, &err);

        if ((rc == QUIRE_OK) != (cases[i].says == NULL)) {
            fail_msg("case %zu: status %d, message '%s'", i, rc, err.message);
        }
        assert_true(cases[i].says == NULL || strstr(err.message, cases[i].says) != NULL);
    }
    free(args);
}

static void kv_window_defaults(void **state)
{
    quire_common_args *args = malloc(quire_command_find("run")->args_bytes);
    quire_error err;

    (void)state;
    assert_non_null(args);
    assert_int_equal(parse_run((words){ { "-m", "x" } }, args, &err), QUIRE_OK);
    assert_int_equal(args->kv.recent, QUIRE_KV_RECENT_DEFAULT);
    assert_int_equal(args->kv.sinks, QUIRE_KV_SINKS_DEFAULT);
    assert_false(args->kv.has_choice || args->kv.has_k || args->kv.has_v);
    assert_int_equal(args->kv.choice.pair.k, QUIRE_FORMAT_F16);
    free(args);
}

/* -ctk and -ctv count wherever they stand. */
static void kv_sides(void **state)
{
    static const struct {
        words given;
        quire_kv_pair pair;
    } cases[] = {
        { { { "-m", "x", "-ctk", "q8", "--kv", "q4" } }, { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 } },
        { { { "-m", "x", "--kv", "q4", "-ctk", "q8" } }, { QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 } },
        { { { "-m", "x", "-ctv", "f32", "--kv", "q4:q3" } },
          { QUIRE_FORMAT_Q4, QUIRE_FORMAT_F32 } },
        { { { "-m", "x", "--kv", "q4:q3", "-ctv", "f32" } },
          { QUIRE_FORMAT_Q4, QUIRE_FORMAT_F32 } },
        { { { "-m", "x", "-ctk", "f32", "-ctv", "q8", "--kv", "q3" } },
          { QUIRE_FORMAT_F32, QUIRE_FORMAT_Q8 } },
        { { { "-m", "x", "-ctk", "q8" } }, { QUIRE_FORMAT_Q8, QUIRE_FORMAT_F16 } },
        { { { "-m", "x", "--kv", "q5" } }, { QUIRE_FORMAT_Q5, QUIRE_FORMAT_Q5 } },
    };
    const quire_model_desc desc = { .n_layer = 2, .n_stored = 2, .d_k = 64, .d_v = 64 };
    quire_common_args *args = malloc(quire_command_find("run")->args_bytes);

    (void)state;
    assert_non_null(args);
    for (size_t i = 0; i < COUNT(cases); i++) {
        quire_kv_pair pairs[2];
        quire_error err;

        assert_int_equal(parse_run(cases[i].given, args, &err), QUIRE_OK);
        assert_int_equal(quire_kv_args_resolve(&args->kv, &desc, pairs, &err), QUIRE_OK);
        for (size_t layer = 0; layer < 2; layer++) {
            assert_int_equal(pairs[layer].k, cases[i].pair.k);
            assert_int_equal(pairs[layer].v, cases[i].pair.v);
        }
    }
    free(args);
}

static char *help_text(const quire_command *command)
{
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *out = open_memstream(&text, &text_bytes);

    assert_non_null(out);
    quire_options_help(command, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* All commands, then those below quire cache. */
static const quire_command *command_at(size_t i)
{
    if (i < quire_n_commands) {
        return quire_commands[i];
    }
    i -= quire_n_commands;
    return i < quire_n_stored_commands ? quire_stored_commands[i] : NULL;
}

static void help_lists_everything(void **state)
{
    const quire_command *command;

    (void)state;
    for (size_t c = 0; (command = command_at(c)) != NULL; c++) {
        char *text = help_text(command);

        assert_non_null(strstr(text, command->usage));
        for (size_t i = 0; i < command->n_options; i++) {
            for (size_t j = 0; j < QUIRE_OPT_NAMES_MAX; j++) {
                if (command->options[i].names[j] != NULL) {
                    assert_non_null(strstr(text, command->options[i].names[j]));
                }
            }
        }
        for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
            line += *line == '\n';
            assert_true(strcspn(line, "\n") <= 110);
        }
        assert_null(strstr(text, " \n"));
        free(text);
    }
}

static void names_are_unique(const quire_command *command, size_t at)
{
    const quire_opt *opt = &command->options[at];

    for (size_t other = 0; other < at; other++) {
        for (size_t j = 0; j < QUIRE_OPT_NAMES_MAX && opt->names[j] != NULL; j++) {
            for (size_t k = 0; k < QUIRE_OPT_NAMES_MAX; k++) {
                const char *name = command->options[other].names[k];

                assert_true(name == NULL || strcmp(name, opt->names[j]) != 0);
            }
        }
    }
}

/* Check all option tables: defaults parse, names are unique, rows are complete. */
static void tables_are_sound(void **state)
{
    const quire_command *command;

    (void)state;
    for (size_t c = 0; (command = command_at(c)) != NULL; c++) {
        void *args = malloc(command->args_bytes);
        bool has_json = command->n_options == 0; /* the commands below have it */

        assert_non_null(args);
        assert_true(quire_command_find(command->name) == (c < quire_n_commands ? command : NULL));
        quire_options_init(command, args); /* aborts on a default that does not parse */
        for (size_t i = 0; i < command->n_options; i++) {
            const quire_opt *opt = &command->options[i];

            assert_non_null(opt->names[0]);
            assert_non_null(opt->help);
            assert_true(opt->offset < command->args_bytes);
            assert_true(opt->type == QUIRE_OPT_FLAG || opt->type == QUIRE_OPT_CHOICE ||
                        opt->unit != NULL);
            assert_true((opt->type == QUIRE_OPT_CHOICE) == (opt->choices != NULL));
            /* A model's file may be given by its name. */
            assert_true(opt->is_model || strcmp(opt->names[0], "-m") != 0 ||
                        strcmp(opt->unit, "FILE") != 0);
            has_json = has_json || strcmp(opt->names[0], "--json") == 0;
            names_are_unique(command, i);
        }
        assert_true(has_json);
        free(args);
    }
    assert_null(quire_command_find("nothing"));
}

/* What a runtime leaves to another one beside it: nothing where its budget is larger than the
 * memory, and not a number that has wrapped around. */
static void left_beside(void **state)
{
    static const struct {
        uint64_t limit, runtime, left;
    } cases[] = {
        { 1000, 300, 700 },
        { 1000, 1000, 0 },
        { 1000, 1001, 0 },
        { 1000, UINT64_MAX, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const quire_opened host = { .memory_limit_bytes = cases[i].limit,
                                    .runtime_bytes = cases[i].runtime };
        const quire_opened device = { .memory_limit_bytes = cases[i].limit,
                                      .device = { .name = "mock0", .bytes = cases[i].limit },
                                      .device_bytes = cases[i].runtime };

        assert_true(quire_opened_beside(&host).memory_limit_bytes == cases[i].left);
        assert_true(quire_opened_beside(&device).memory_limit_bytes == cases[i].limit);
        assert_true(quire_opened_beside(&device).device.bytes == cases[i].left);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),         cmocka_unit_test(values),
        cmocka_unit_test(formats),          cmocka_unit_test(help_asked),
        cmocka_unit_test(refused),          cmocka_unit_test(long_words),
        cmocka_unit_test(kv_options),       cmocka_unit_test(kv_window_defaults),
        cmocka_unit_test(kv_sides),         cmocka_unit_test(help_lists_everything),
        cmocka_unit_test(tables_are_sound), cmocka_unit_test(left_beside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
