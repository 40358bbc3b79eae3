/* commands.h - the commands of `quire`; one file per command.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_COMMANDS_H
#define QUIRE_CLI_COMMANDS_H

#include "cli/settings/options.h"

extern const quire_command quire_command_run;
extern const quire_command quire_command_chat;
extern const quire_command quire_command_chat_template;
extern const quire_command quire_command_perplexity;
extern const quire_command quire_command_bench;
extern const quire_command quire_command_info;
extern const quire_command quire_command_calibrate;
extern const quire_command quire_command_serve;
extern const quire_command quire_command_cache;
extern const quire_command quire_command_pull;
extern const quire_command quire_command_list;
extern const quire_command quire_command_rm;
extern const quire_command quire_command_devices;
extern const quire_command quire_command_tune_pages;
extern const quire_command quire_command_sim;
extern const quire_command quire_command_analyze;
extern const quire_command quire_command_train; /* builds with QUIRE_HAS_TRAIN */

/* All commands, in the order of --help. */
extern const quire_command *const quire_commands[];
extern const size_t quire_n_commands;

/* The command of that name, or NULL. */
const quire_command *quire_command_find(const char *name);

/* Run the program: argv[0] is its own name. Returns the exit status. */
int quire_main(int argc, char **argv);

#endif /* QUIRE_CLI_COMMANDS_H */
