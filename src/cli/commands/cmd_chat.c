/* cmd_chat.c - quire chat: a conversation at a terminal, or of lines that are piped in.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/chat.h"
#include "cli/commands/chat_line.h"
#include "cli/commands/commands.h"
#include "cli/commands/kv_history.h"
#include "cli/commands/places.h"
#include "cli/commands/talk.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_MODEL_OPTIONAL("the model that `make run` has fetched"),
    { .names = { "--system" }, .type = QUIRE_OPT_TEXT, .unit = "TEXT",
      .offset = offsetof(quire_chat_args, system), .help = "system message at the start of the "
                                                           "conversation" },
    { .names = { "--chat-template" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "the model's own", .offset = offsetof(quire_chat_args, chat_template),
      .help = "name of a built-in template, such as chatml, or the text of a Jinja template" },
    { .names = { "--chat-template-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "the model's own", .offset = offsetof(quire_chat_args, chat_template_file),
      .help = "Jinja template in place of the model's own" },
    { .names = { "--reasoning-effort" }, .type = QUIRE_OPT_TEXT, .unit = "WORD",
      .initial_text = "the template's", .offset = offsetof(quire_chat_args, reasoning_effort),
      .help = "low, medium, high or another word that the template knows; none: no thoughts" },
    QUIRE_ROWS_SAMPLING(quire_chat_args),
    QUIRE_ROW_JSON,
    QUIRE_ROWS_RUNTIME("the context of the training, or less if memory allows only less"),
    QUIRE_ROW_DEVICE,
    QUIRE_ROWS_CACHE_DIR,
    QUIRE_ROWS_RETAIN,
    { .names = { "--context-overflow" }, .type = QUIRE_OPT_CHOICE,
      .choices = quire_overflow_chat_words, .initial = "refuse",
      .offset = offsetof(quire_chat_args, overflow.how),
      .help = "when the conversation fills the context: end the answer and refuse the message, "
              "drop half of the tokens and move the others to lower positions (shift), drop 64 "
              "tokens at a time (sinks), drop some of the oldest tokens, chosen by the "
              "policy of --retain or keydiff:0.5 (condense), or leave the oldest turns out of the "
              "prompt (truncate_turns)" },
    { .names = { "--context-keep" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "64", .offset = offsetof(quire_chat_args, overflow.keep),
      .seen_offset = offsetof(quire_chat_args, overflow.is_keep_given),
      .help = "first tokens that shift, sinks and condense keep, rounded up to a multiple of 64; "
              "condense keeps the system message as well" },
};
/* clang-format on */

static void refuse_nul(quire_chat *c)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)quire_error_set(&err, QUIRE_INVAL,
                          "the message holds a NUL byte and is not sent; text "
                          "in UTF-16 has such bytes, UTF-8 is needed");
    quire_chat_say_failure(c, &err);
}

/* Carry out a line of the terminal: a command, or a message. */
static void take_line(quire_chat *c, const char *line)
{
    quire_error err = QUIRE_ERROR_INIT;

    if (line[strspn(line, " \t\n")] == '\0' || quire_chat_obey(c, line)) {
        return;
    }
    if (quire_chat_answer_to(c, line, &err) < 0) {
        quire_chat_say_failure(c, &err);
    }
}

static void converse(quire_chat *c, quire_chat_line *in)
{
    c->is_terminal = quire_chat_line_is_terminal(in);
    while (!c->is_over) {
        const char *line;
        const quire_chat_line_kind kind = quire_chat_line_read(in, &line);

        if (kind == QUIRE_CHAT_LINE_END) {
            break;
        }
        if (kind == QUIRE_CHAT_LINE_TEXT) {
            take_line(c, line);
        } else if (kind == QUIRE_CHAT_LINE_NUL) {
            refuse_nul(c);
        } else if (c->is_terminal) {
            quire_say("/exit or Ctrl-D leaves");
        }
        /* Ctrl-C ends an answer or a line. A user may type something else; a script ends. */
        if (c->is_terminal) {
            quire_interrupt_clear();
        }
        c->is_over = c->is_over || quire_interrupt_seen() || quire_stdout_is_lost();
    }
}

static int open_all(quire_chat *c, quire_chat_args *args, quire_kv_history *history,
                    quire_error *err)
{
    QUIRE_TRY(quire_opened_open(&c->session, &args->common, err));
    QUIRE_TRY(quire_chat_format_open(c, err));
    QUIRE_TRY(quire_kv_history_open(history, quire_runtime_cache(c->session.runtime),
                                    args->common.kv_history, err));
    QUIRE_TRY(quire_writer_create(&c->writer, &c->session, &args->sampling, err));
    QUIRE_TRY(quire_overflow_choice_apply(&args->overflow, c->writer, err));
    QUIRE_TRY(quire_kv_disk_open(&c->disk, &args->common, &c->session, err));
    quire_writer_disk_set(c->writer, c->disk);
    c->turns = args->common.is_json ? json_array() : NULL;
    c->system = args->system != NULL ? strdup(args->system) : NULL;
    if ((args->common.is_json && c->turns == NULL) || (args->system != NULL && c->system == NULL) ||
        quire_chat_begin(c) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    return QUIRE_OK;
}

static int talk(quire_chat *c)
{
    quire_chat_line *in = quire_chat_line_open();
    int exit_status = QUIRE_EXIT_OK;

    if (in == NULL) {
        return quire_say_nomem();
    }
    if (quire_chat_line_is_terminal(in)) {
        quire_chat_banner(c);
    }
    quire_interrupt_catch();
    converse(c, in);
    quire_chat_line_close(in);
    if (c->turns != NULL) {
        exit_status = quire_stdout_json(
            json_pack("{s:O, s:o, s:I}", "turns", c->turns, "kv",
                      quire_opened_kv_json(&c->session, quire_writer_tokens(c->writer)), "seed",
                      (json_int_t)c->args->sampling.seed));
    }
    return c->has_failed ? QUIRE_EXIT_FAILED : exit_status;
}

static int check(const void *opaque, quire_error *err)
{
    const quire_chat_args *args = opaque;

    QUIRE_TRY(quire_common_check(args, err));
    QUIRE_TRY(quire_sampling_args_check(&args->sampling, err));
    QUIRE_TRY(quire_cache_dir_check(&args->common, err));
    return quire_overflow_choice_check(&args->overflow, &args->common, err);
}

static int run(void *opaque)
{
    quire_chat_args *args = opaque;
    quire_chat c = { .args = args };
    quire_kv_history history = { .cache = NULL };
    quire_error err = QUIRE_ERROR_INIT;
    char model[QUIRE_PLACE_MAX];
    int exit_status;

    if (args->common.model == NULL) {
        if (quire_place_chat_model(model, &err) < 0) {
            return quire_say_error(&err, QUIRE_EXIT_USAGE);
        }
        args->common.model = model;
    }
    quire_overflow_choice_take(&args->overflow, &args->common);
    quire_sampling_seed(&args->sampling);
    if (open_all(&c, args, &history, &err) == QUIRE_OK) {
        exit_status = talk(&c);
    } else {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    /* Before the sequence is closed, because the file shows its pages. */
    exit_status = quire_kv_history_close(&history, exit_status);
    json_decref(c.turns);
    quire_chat_fini(&c);
    quire_kv_disk_close(c.disk);
    quire_opened_close(&c.session);
    return exit_status;
}

const quire_command quire_command_chat = {
    .name = "chat",
    .usage = "[[-m] FILE] [options]",
    .summary = "Talks with a chat model; the KV cache stays between turns.",
    .notes =
        "/help lists the commands; /exit or Ctrl-D ends the program. Ctrl-C stops an answer; when\n"
        "lines are piped in, Ctrl-C ends the program.\n"
        "Lines may also be piped in: the answers go to stdout, one after the other.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(quire_chat_args),
    .check = check,
    .run = run,
};
