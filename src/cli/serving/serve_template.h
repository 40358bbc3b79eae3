/* serve_template.h - the chat template of quire serve: a name, a file, or the model's own.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_TEMPLATE_H
#define QUIRE_CLI_SERVE_TEMPLATE_H

#include "cli/serving/serve_args.h"
#include "cli/serving/serve_log.h"
#include "model/model.h"

/* Check --chat-template, or read --chat-template-file into *text. Prints the error. Memory:
 * free(*text); NULL = no file. Returns an exit status. */
int quire_serve_template_read(const quire_serve_args *args, char **text);

/* Whether the template of --chat-template-file can be run, or recognised, with the vocabulary of
 * the model. text: as read; NULL = no file. Errors: of quire_model_open(),
 * quire_chat_format_create(); err names the file of the template. */
int quire_serve_template_check(const quire_serve_args *args, const char *text, quire_error *err);

/* Log how messages will be rendered, where this is not as the model wants it. chat_template: a name
 * or a text, NULL = the model's. */
void quire_serve_template_warn(const quire_serve_log *log, const quire_model *model,
                               const char *chat_template);

#endif /* QUIRE_CLI_SERVE_TEMPLATE_H */
