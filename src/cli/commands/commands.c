/* commands.c - finds the command, parses its options, runs it.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/model_option.h"
#include "cli/commands/talk.h"
#include "cli/settings/settings.h"
#include "model/model.h"
#include "quire/attn.h"

#include <stdlib.h>
#include <string.h>

#define COMMANDS_MAX 17

const quire_command *const quire_commands[] = {
    &quire_command_run,           &quire_command_chat,  &quire_command_perplexity,
    &quire_command_bench,         &quire_command_info,  &quire_command_calibrate,
    &quire_command_serve,         &quire_command_cache, &quire_command_pull,
    &quire_command_list,          &quire_command_rm,    &quire_command_devices,
    &quire_command_tune_pages,    &quire_command_sim,   &quire_command_analyze,
    &quire_command_chat_template,
#ifdef QUIRE_HAS_TRAIN
    &quire_command_train,
#endif
};
const size_t quire_n_commands = sizeof(quire_commands) / sizeof(quire_commands[0]);

_Static_assert(sizeof(quire_commands) / sizeof(quire_commands[0]) <= COMMANDS_MAX, "too many");

const quire_command *quire_command_find(const char *name)
{
    for (size_t i = 0; i < quire_n_commands; i++) {
        if (strcmp(quire_commands[i]->name, name) == 0) {
            return quire_commands[i];
        }
    }
    return NULL;
}

static void print_help(FILE *out)
{
    fputs("usage: quire COMMAND [options]\n\n"
          "Runs GGUF language models on a paged KV cache.\n\n",
          out);
    for (size_t i = 0; i < quire_n_commands; i++) {
        fprintf(out, "  %-14s %s\n", quire_commands[i]->name, quire_commands[i]->summary);
    }
    fputs("\n  quire COMMAND --help   its options\n"
          "  quire --version        versions of quire and ggml, instruction set in use\n\n"
          "Results go to stdout, everything else to stderr.\n"
          "Settings of quire serve count for every command that has the option: QUIRE_KV=q8 is "
          "--kv q8.\n"
          "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted by Ctrl-C, after the "
          "figures so far.\n"
          "Two commands differ: Ctrl-C has quire serve finish the running requests and end with 0; "
          "in quire\nchat at a terminal it ends an answer or a line, and the chat goes on.\n",
          out);
}

static int print_version(int argc, char **argv)
{
    bool is_json = argc > 0 && strcmp(argv[0], "--json") == 0;

    if (argc > (is_json ? 1 : 0)) {
        quire_say("unexpected '%.80s': --version takes --json or nothing", argv[is_json ? 1 : 0]);
        return QUIRE_EXIT_USAGE;
    }
    if (is_json) {
        return quire_stdout_json(json_pack("{s:s, s:s, s:s}", "version", QUIRE_VERSION, "ggml",
                                           quire_model_ggml_version(), "isa", quire_attn_isa()));
    }
    printf("quire %s, ggml %s, %s\n", QUIRE_VERSION, quire_model_ggml_version(), quire_attn_isa());
    return QUIRE_EXIT_OK;
}

static int fail_unknown(const char *name)
{
    const char *names[COMMANDS_MAX];
    const char *nearest;

    for (size_t i = 0; i < quire_n_commands; i++) {
        names[i] = quire_commands[i]->name;
    }
    nearest = quire_nearest_name(name, names, quire_n_commands);
    if (nearest != NULL) {
        quire_say("unknown command '%.80s' (did you mean %s?)", name, nearest);
    } else {
        quire_say("unknown command '%.80s' ('quire --help' lists them)", name);
    }
    return QUIRE_EXIT_USAGE;
}

static int help_on(const char *name)
{
    const quire_command *command = quire_command_find(name);

    if (command == NULL) {
        return fail_unknown(name);
    }
    quire_options_help(command, stdout);
    return QUIRE_EXIT_OK;
}

static int run_command(const quire_command *command, int argc, char **argv)
{
    quire_error err = QUIRE_ERROR_INIT;
    void *args = malloc(command->args_bytes);
    int exit_status;
    int rc;

    if (args == NULL) {
        return quire_say_nomem();
    }
    quire_options_init(command, args);
    rc = command->parse != NULL
             ? command->parse(argc, argv, args, &err)
             : quire_settings_parse(command, &quire_command_serve, argc, argv, args, &err);
    if (rc == QUIRE_OPTIONS_HELP) {
        quire_options_help(command, stdout);
        exit_status = QUIRE_EXIT_OK;
    } else if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_USAGE);
    } else if (quire_model_options_resolve(command, args, &err) < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        exit_status = command->run(args);
        exit_status = quire_interrupt_seen() ? QUIRE_EXIT_INTERRUPTED : exit_status;
    }
    free(args);
    return exit_status;
}

static int dispatch(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : NULL;
    const quire_command *command;

    if (name == NULL) {
        print_help(stderr);
        return QUIRE_EXIT_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        if (argc > 2) {
            return help_on(argv[2]);
        }
        print_help(stdout);
        return QUIRE_EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) {
        return print_version(argc - 2, argv + 2);
    }
    command = quire_command_find(name);
    return command != NULL ? run_command(command, argc - 2, argv + 2) : fail_unknown(name);
}

int quire_main(int argc, char **argv)
{
    quire_stdout_open();
    return quire_stdout_close(dispatch(argc, argv));
}
