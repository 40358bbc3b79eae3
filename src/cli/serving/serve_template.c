/* serve_template.c - see serve_template.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_template.h"

#include "base/parse.h"
#include "base/text_buffer.h"

#include "cli/commands/commands.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/settings/options.h"
#include "model/chat_format.h"
#include "model/chat_templates.h"

#include <stdlib.h>

#define TEMPLATES_BYTES 2048u

static char *list_templates(char *buffer, size_t buffer_bytes)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    const size_t n = quire_chat_template_names(names);
    quire_text text = { buffer, buffer_bytes, 0 };

    buffer[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        quire_text_add(&text, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return buffer;
}

/* The names do not fit into a message of their own, so this says all. */
static int check_name(const char *name)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    const size_t n = quire_chat_template_names(names);
    const char *nearest = quire_nearest_name(name, names, n);
    char list[TEMPLATES_BYTES];

    if (quire_chat_template_is_name(name)) {
        return QUIRE_EXIT_OK;
    }
    quire_say("chat_template '%.80s' is unknown%s%s%s: it takes one of %s", name,
              nearest != NULL ? " (did you mean " : "", nearest != NULL ? nearest : "",
              nearest != NULL ? "?)" : "", list_templates(list, sizeof(list)));
    return QUIRE_EXIT_USAGE;
}

int quire_serve_template_read(const quire_serve_args *args, char **text)
{
    quire_error err = QUIRE_ERROR_INIT;
    size_t n;

    *text = NULL;
    if (args->chat_template != NULL && args->chat_template_file != NULL) {
        quire_say("chat_template and chat_template_file are both given: take one of them");
        return QUIRE_EXIT_USAGE;
    }
    if (args->chat_template != NULL) {
        return check_name(args->chat_template);
    }
    if (args->chat_template_file == NULL) {
        return QUIRE_EXIT_OK;
    }
    if (!quire_chat_format_runs_jinja()) {
        quire_say("chat_template_file: this program was built without llama.cpp's common library, "
                  "which runs templates");
        return QUIRE_EXIT_FAILED;
    }
    return quire_read_file(args->chat_template_file, text, &n, &err) < 0
               ? quire_say_error(&err, QUIRE_EXIT_FAILED)
               : QUIRE_EXIT_OK;
}

int quire_serve_template_check(const quire_serve_args *args, const char *text, quire_error *err)
{
    const quire_model_opts opts = { .describe_only = true };
    quire_error why = QUIRE_ERROR_INIT;
    quire_chat_format *format = NULL;
    quire_model *model = NULL;
    int rc;

    if (text == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_model_open(&model, args->common.model, &opts, err));
    rc = quire_chat_format_create(&format, model, text, &why);
    if (rc < 0) {
        rc = quire_error_set(err, rc, "chat_template_file: %.120s: %.300s",
                             args->chat_template_file, why.message);
    }
    quire_chat_format_destroy(format);
    quire_model_close(model);
    return rc;
}

void quire_serve_template_warn(const quire_serve_log *log, const quire_model *model,
                               const char *chat_template)
{
    const bool is_missing = chat_template == NULL && quire_model_chat_template(model) == NULL;
    quire_chat_format *format = NULL;
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_chat_format_create(&format, model, chat_template, &err) < 0) {
        quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                             "warning: the model's chat template is %s%s%s: /v1/chat/completions "
                             "is refused, /v1/completions works; --chat-template NAME gives one, "
                             "such as chatml (docs/configuration.md lists them)",
                             is_missing ? "missing" : "not usable (", is_missing ? "" : err.message,
                             is_missing ? "" : ")");
    } else if (quire_chat_format_warning(format)[0] != '\0') {
        quire_serve_log_line(log, QUIRE_LOG_ERRORS, "warning: %s",
                             quire_chat_format_warning(format));
    }
    quire_chat_format_destroy(format);
}
