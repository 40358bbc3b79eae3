/* cmd_cache.c - quire cache: finds the command below it, parses its options, runs it.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/commands.h"
#include "cli/commands/model_option.h"
#include "cli/commands/talk.h"
#include "cli/settings/settings.h"
#include "cli/stored/stored_args.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "cache " /* of the names of the commands below */

const quire_command *const quire_stored_commands[] = {
    &quire_stored_ls,     &quire_stored_stats,  &quire_stored_verify, &quire_stored_warm,
    &quire_stored_export, &quire_stored_import, &quire_stored_gc,
};
#define N_SUBS (sizeof(quire_stored_commands) / sizeof(quire_stored_commands[0]))

const size_t quire_n_stored_commands = N_SUBS;

static const char *short_name(const quire_command *sub)
{
    return sub->name + strlen(PREFIX);
}

static int find_sub(const char *name, const quire_command **out, quire_error *err)
{
    const char *names[N_SUBS];
    const char *nearest;

    for (size_t i = 0; i < N_SUBS; i++) {
        names[i] = short_name(quire_stored_commands[i]);
        if (strcmp(names[i], name) == 0) {
            *out = quire_stored_commands[i];
            return QUIRE_OK;
        }
    }
    nearest = quire_nearest_name(name, names, N_SUBS);
    if (nearest != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "unknown command 'cache %.80s' (did you mean cache %s?)", name,
                               nearest);
    }
    return quire_error_set(err, QUIRE_INVAL,
                           "unknown command 'cache %.80s' ('quire cache --help' lists them)", name);
}

int quire_stored_word_take(void *opaque, const char *word, quire_error *err)
{
    quire_stored_args *args = opaque;

    if (args->n_words == QUIRE_STORED_WORDS_MAX) {
        return quire_error_set(err, QUIRE_LIMIT, "'%.80s': at most %u files at a time", word,
                               QUIRE_STORED_WORDS_MAX);
    }
    args->words[args->n_words++] = word;
    return QUIRE_OK;
}

static int parse(int argc, char *const *argv, void *opaque, quire_error *err)
{
    quire_stored_args *args = opaque;
    const quire_command *sub = NULL;
    int rc;

    if (argc == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "quire cache needs a command ('quire cache --help' lists them)");
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        return QUIRE_OPTIONS_HELP;
    }
    QUIRE_TRY(find_sub(argv[0], &sub, err));
    quire_options_init(sub, args);
    rc = quire_settings_parse(sub, &quire_command_serve, argc - 1, argv + 1, args, err);
    args->sub = sub;
    args->wants_help = rc == QUIRE_OPTIONS_HELP;
    return rc < 0 ? rc : QUIRE_OK;
}

static int run(void *opaque)
{
    quire_stored_args *args = opaque;
    quire_error err = QUIRE_ERROR_INIT;

    if (args->wants_help) {
        quire_options_help(args->sub, stdout);
        return QUIRE_EXIT_OK;
    }
    if (quire_model_options_resolve(args->sub, args, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    return args->sub->run(args);
}

const quire_command quire_command_cache = {
    .name = "cache",
    .usage = "COMMAND DIR [options]",
    .summary = "Looks after a cache directory (--cache-dir): lists, checks, fills it.",
    .notes = "commands:\n"
             "  ls        lists the texts\n"
             "  stats     sums up: records, bytes, texts\n"
             "  verify    reads and checks every record\n"
             "  warm      computes texts and stores their pages\n"
             "  export    writes the stored pages of a text to a file\n"
             "  import    puts the pages of such a file into a directory\n"
             "  gc        drops the records that no request can reach\n"
             "\n"
             "'quire cache COMMAND --help' lists the options of each, --json among them.\n\n"
             "example: quire cache ls ~/.quire",
    .args_bytes = sizeof(quire_stored_args),
    .parse = parse,
    .run = run,
};
