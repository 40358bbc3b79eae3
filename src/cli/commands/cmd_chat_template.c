/* cmd_chat_template.c - quire chat-template check: the effect of a model's chat template on the
 * cache.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"

#include "base/check.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/settings/args.h"
#include "cli/settings/settings.h"
#include "model/chat_lint.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct template_args {
    const char *model;
    const char *chat_template;
    const char *chat_template_file;
    bool is_json;
} template_args;

/* clang-format off */
static const quire_opt options[] = {
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .is_required = true, .is_model = true,
      .unit = "FILE", .offset = offsetof(template_args, model), .help = QUIRE_HELP_MODEL },
    { .names = { "--chat-template" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "the model's own", .offset = offsetof(template_args, chat_template),
      .help = "name of a built-in template, or the text of a Jinja template" },
    { .names = { "--chat-template-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "the model's own", .offset = offsetof(template_args, chat_template_file),
      .help = "Jinja template in place of the model's own" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .is_flag_only = true,
      .offset = offsetof(template_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};
/* clang-format on */

static const char *verdict_word(quire_chat_lint_verdict verdict)
{
    static const char *const words[] = { "keeps", "breaks", "refused", "none" };

    return words[verdict];
}

static void print_case(const quire_chat_lint_case *c)
{
    switch (c->verdict) {
    case QUIRE_CHAT_LINT_KEEPS:
        printf("keeps    %s, when %s\n", c->name, c->what);
        break;
    case QUIRE_CHAT_LINT_BREAKS:
        printf("breaks   %s, when %s: %zu of %zu bytes stay\n"
               "           was  \"%s\"\n           is   \"%s\"\n",
               c->name, c->what, c->n_same, c->n_before, c->before, c->after);
        break;
    case QUIRE_CHAT_LINT_REFUSED:
        printf("refused  %s: %s\n", c->name, c->reason);
        break;
    default:
        printf("none     %s: the template has no such thing\n", c->name);
        break;
    }
}

static json_t *case_json(const quire_chat_lint_case *c)
{
    json_t *object = json_pack("{s:s, s:s, s:s}", "turn", c->name, "when", c->what, "verdict",
                               verdict_word(c->verdict));

    if (c->verdict <= QUIRE_CHAT_LINT_BREAKS) {
        (void)json_object_set_new(object, "bytes", json_integer((json_int_t)c->n_before));
        (void)json_object_set_new(object, "bytes_kept", json_integer((json_int_t)c->n_same));
    }
    if (c->verdict == QUIRE_CHAT_LINT_BREAKS) {
        (void)json_object_set_new(object, "was", json_string(c->before));
        (void)json_object_set_new(object, "is", json_string(c->after));
    }
    if (c->verdict == QUIRE_CHAT_LINT_REFUSED) {
        (void)json_object_set_new(object, "reason", json_string(c->reason));
    }
    return object;
}

static int print_json(const quire_chat_format *format, const quire_chat_lint_case *cases)
{
    json_t *list = json_array();

    for (size_t i = 0; i < QUIRE_CHAT_LINT_CASES; i++) {
        (void)json_array_append_new(list, case_json(&cases[i]));
    }
    return quire_stdout_json(json_pack("{s:o, s:b, s:s}", "turns", list, "has_date",
                                       quire_chat_lint_has_date(format), "warning",
                                       quire_chat_format_warning(format)));
}

static int check(const template_args *args, const quire_chat_format *format, quire_error *err)
{
    quire_chat_lint_case cases[QUIRE_CHAT_LINT_CASES];

    QUIRE_TRY(quire_chat_lint(format, cases, err));
    if (args->is_json) {
        return print_json(format, cases);
    }
    if (quire_chat_format_warning(format)[0] != '\0') {
        quire_say("warning: %s", quire_chat_format_warning(format));
    }
    for (size_t i = 0; i < QUIRE_CHAT_LINT_CASES; i++) {
        print_case(&cases[i]);
    }
    if (quire_chat_lint_has_date(format)) {
        printf("date     the template can write the date: prompts differ from day to day\n");
    }
    return QUIRE_EXIT_OK;
}

static int open_format(const template_args *args, const quire_model *model, char **text,
                       quire_chat_format **format, quire_error *err)
{
    const char *own = args->chat_template;
    size_t n;

    if (args->chat_template_file != NULL) {
        QUIRE_TRY(quire_read_file(args->chat_template_file, text, &n, err));
        own = *text;
    }
    return quire_chat_format_create(format, model, own, err);
}

static int run(void *opaque)
{
    const template_args *args = opaque;
    const quire_model_opts opts = { .describe_only = true };
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_format *format = NULL;
    quire_model *model = NULL;
    char *text = NULL;
    int exit_status;
    int rc;

    rc = quire_model_open(&model, args->model, &opts, &err);
    if (rc == QUIRE_OK) {
        rc = open_format(args, model, &text, &format, &err);
    }
    exit_status = rc == QUIRE_OK ? check(args, format, &err) : rc;
    if (exit_status < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_chat_format_destroy(format);
    quire_model_close(model);
    free(text);
    return exit_status;
}

static int parse(int argc, char *const *argv, void *args, quire_error *err)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        return QUIRE_OPTIONS_HELP;
    }
    if (argc == 0 || strcmp(argv[0], "check") != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "quire chat-template has the command check: quire chat-template "
                               "check -m FILE");
    }
    return quire_settings_parse(&quire_command_chat_template, &quire_command_serve, argc - 1,
                                argv + 1, args, err);
}

const quire_command quire_command_chat_template = {
    .name = "chat-template",
    .usage = "check [-m] FILE [options]",
    .summary = "Says which turns of a chat the model's template takes out of the cache.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(template_args),
    .parse = parse,
    .run = run,
};
