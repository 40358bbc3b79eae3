/* cmd_chat.c - quire chat: a conversation, one line at a time.
 *
 * Each turn renders the whole conversation with the model's template and tokenizes it; the writer
 * computes only tokens that its sequence does not hold yet. A turn that does not fit into the
 * context is refused and leaves the conversation unchanged.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/collect.h"
#include "cli/commands/commands.h"
#include "cli/commands/kv_history.h"
#include "cli/commands/opened.h"
#include "cli/commands/talk.h"
#include "cli/commands/writer.h"
#include "cli/settings/args.h"
#include "model/chat_templates.h"
#include "model/text.h"

#include "base/check.h"
#include "base/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat_args {
    quire_common_args common;
    quire_sampling_args sampling;
    const char *system;
    const char *chat_template;
} chat_args;

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROWS_RUNTIME("the context of the training, or less if memory allows only less"),
    QUIRE_ROWS_CACHE_DIR,
    { .names = { "--system" }, .type = QUIRE_OPT_TEXT, .unit = "TEXT",
      .offset = offsetof(chat_args, system), .help = "system message at the start of the "
                                                     "conversation" },
    { .names = { "--chat-template" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "the model's own", .offset = offsetof(chat_args, chat_template),
      .help = "name or text of a template that libllama knows, such as chatml" },
    QUIRE_ROWS_SAMPLING(chat_args),
    QUIRE_ROW_JSON,
};
/* clang-format on */

typedef struct chat {
    const chat_args *args;
    quire_opened session;
    quire_writer *writer;
    quire_kv_disk *disk;          /* NULL = none */
    quire_chat_message *messages; /* [n_messages]; contents are ours */
    size_t n_messages;
    size_t cap_messages;
    char *rendered; /* the conversation as the template writes it */
    size_t rendered_bytes;
    json_t *turns; /* with --json */
    bool has_failed;
} chat;

static int push_message(chat *c, const char *role, char *content)
{
    QUIRE_FAIL_IF(content == NULL, QUIRE_NOMEM);
    if (c->n_messages == c->cap_messages) {
        size_t cap = c->cap_messages > 0 ? 2 * c->cap_messages : 16;
        quire_chat_message *larger = realloc(c->messages, cap * sizeof(*larger));

        if (larger == NULL) {
            free(content);
            return QUIRE_NOMEM;
        }
        c->messages = larger;
        c->cap_messages = cap;
    }
    c->messages[c->n_messages++] = (quire_chat_message){ role, content };
    return QUIRE_OK;
}

static void drop_messages(chat *c, size_t n_kept)
{
    while (c->n_messages > n_kept) {
        /* The pointer is const for the readers of messages; the bytes came from malloc. */
        free((void *)(uintptr_t)c->messages[--c->n_messages].content);
    }
}

/* Render the conversation so that the assistant is to speak next. */
static int render(chat *c, quire_error *err)
{
    for (;;) {
        int64_t n = quire_model_chat_render(c->session.model, c->args->chat_template, c->messages,
                                            c->n_messages, true, c->rendered, c->rendered_bytes);
        char *larger;

        if (n < 0) {
            return quire_error_set(err, (int)n,
                                   "the chat template is not one that libllama knows; "
                                   "--chat-template NAME picks another, such as chatml");
        }
        if ((size_t)n <= c->rendered_bytes) {
            return (int)n;
        }
        larger = realloc(c->rendered, (size_t)n + 1);
        if (larger == NULL) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
        c->rendered = larger;
        c->rendered_bytes = (size_t)n + 1;
    }
}

static int record_turn(chat *c, const char *user, const quire_collected *answer,
                       const quire_writer_result *result)
{
    if (c->turns == NULL) {
        quire_say("%u tokens read (%u kept from before), %u written, %.1f tokens/s%s%s",
                  result->n_prompt - result->n_reused, result->n_reused, result->n_output,
                  quire_rate(result->n_steps, result->decode_s),
                  result->stop == QUIRE_STOP_END ? "" : "; stopped: ",
                  result->stop == QUIRE_STOP_END ? "" : quire_stop_text(result->stop));
        return QUIRE_OK;
    }
    return json_array_append_new(
               c->turns,
               json_pack("{s:o, s:o, s:s, s:i, s:i, s:i, s:o, s:o}", "user",
                         quire_json_bytes(user, strlen(user)), "assistant",
                         quire_collected_json(answer), "stop", quire_stop_word(result->stop),
                         "prompt_tokens", (int)result->n_prompt, "reused_tokens",
                         (int)result->n_reused, "output_tokens", (int)result->n_output,
                         "decode_tokens_per_second",
                         quire_json_real(quire_rate(result->n_steps, result->decode_s)), "ttft_ms",
                         quire_json_real(1e3 * result->first_s))) == 0
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

/* Answer a line. On failure the conversation is unchanged. */
static int answer(chat *c, const char *line, quire_error *err)
{
    quire_collected text = { .is_streamed = c->turns == NULL, .is_kept = true };
    size_t n_before = c->n_messages;
    quire_writer_result result;
    int32_t *tokens = NULL;
    size_t n_tokens = 0;
    int rc = push_message(c, "user", strdup(line));

    if (rc == QUIRE_OK) {
        rc = render(c, err);
    }
    if (rc >= 0) {
        rc = quire_opened_tokenize(&c->session, c->rendered, (size_t)rc, true, &tokens, &n_tokens,
                                   err);
    }
    if (rc < 0) {
        goto out;
    }
    if (n_tokens > c->session.n_ctx) {
        rc = quire_error_set(err, QUIRE_LIMIT,
                             "the conversation would take %zu tokens, the context holds %u; the "
                             "last message was not added (/reset starts anew, -c raises it)",
                             n_tokens, c->session.n_ctx);
        goto out;
    }
    quire_writer_sink_set(c->writer, quire_collect, &text);
    rc = quire_writer_run(c->writer, tokens, n_tokens, &result, err);
    if (rc < 0) {
        goto out;
    }
    if (text.is_streamed) {
        (void)quire_stdout_write("\n", 1);
    }
    rc = push_message(c, "assistant", quire_collected_text(&text));
    if (rc == QUIRE_OK) {
        rc = record_turn(c, line, &text, &result);
    }

out:
    if (rc < 0) {
        drop_messages(c, n_before);
        if (err->status == QUIRE_OK) {
            quire_error_set(err, rc, "%s", quire_status_text(rc));
        }
    }
    quire_collected_fini(&text);
    free(tokens);
    return rc < 0 ? rc : QUIRE_OK;
}

static int begin(chat *c)
{
    drop_messages(c, 0);
    quire_writer_reset(c->writer);
    return c->args->system != NULL ? push_message(c, "system", strdup(c->args->system)) : QUIRE_OK;
}

/* Execute a command. Returns false if the line is not a command. */
static bool obey(chat *c, const char *line, bool *is_over)
{
    static const char *const commands[] = { "/reset", "/exit", "/help" };
    const char *nearest;

    if (strcmp(line, "/exit") == 0) {
        *is_over = true;
    } else if (strcmp(line, "/reset") == 0) {
        if (begin(c) < 0) {
            c->has_failed = true;
            *is_over = true;
            (void)quire_say_nomem();
        } else {
            quire_say("the conversation is empty now");
        }
    } else if (strcmp(line, "/help") == 0) {
        quire_say("/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an "
                  "answer or leaves; %u of %u tokens of context in use",
                  quire_writer_tokens(c->writer), c->session.n_ctx);
    } else {
        nearest = line[0] == '/' ? quire_nearest_name(line, commands, 3) : NULL;
        if (nearest == NULL) {
            return false;
        }
        quire_say("unknown command %s (did you mean %s?)", line, nearest);
    }
    return true;
}

/* One line of stdin without its end; NULL at the end of input and after Ctrl-C. */
static char *read_line(char **buffer, size_t *buffer_bytes, bool is_terminal)
{
    ssize_t n = -1;

    if (is_terminal) {
        fputs("> ", stderr);
    }
    if (!is_terminal || quire_interrupt_wait_stdin()) {
        n = getline(buffer, buffer_bytes, stdin);
    }
    if (n < 0) {
        if (is_terminal) {
            fputs("\n", stderr);
        }
        return NULL;
    }
    while (n > 0 && ((*buffer)[n - 1] == '\n' || (*buffer)[n - 1] == '\r')) {
        (*buffer)[--n] = '\0';
    }
    return *buffer;
}

static void converse(chat *c)
{
    bool is_terminal = isatty(STDIN_FILENO);
    bool is_over = false;
    char *buffer = NULL;
    size_t buffer_bytes = 0;

    while (!is_over) {
        quire_error err = QUIRE_ERROR_INIT;
        const char *line = read_line(&buffer, &buffer_bytes, is_terminal);

        if (line == NULL) {
            break;
        }
        if (line[0] == '\0' || obey(c, line, &is_over)) {
            continue;
        }
        if (answer(c, line, &err) < 0) {
            /* A user at a terminal can retry; a script must learn of the failure. */
            c->has_failed = c->has_failed || !is_terminal;
            (void)quire_say_error(&err, QUIRE_EXIT_FAILED);
        }
        /* After Ctrl-C a user may ask something else; a script ends. */
        if (is_terminal) {
            quire_interrupt_clear();
        }
        is_over = is_over || quire_interrupt_seen() || quire_stdout_is_lost();
    }
    free(buffer);
}

static int check_template(chat *c, quire_error *err)
{
    char warning[512];

    if (c->args->chat_template == NULL && quire_model_chat_template(c->session.model) == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s has no chat template (tokenizer.chat_template): --chat-template "
                               "NAME gives one, such as chatml, or use quire run",
                               c->args->common.model);
    }
    QUIRE_TRY(push_message(c, "user", strdup("?")));
    QUIRE_TRY(render(c, err));
    drop_messages(c, 0);
    if (c->args->chat_template == NULL &&
        quire_chat_template_warning(c->session.model, warning, sizeof(warning))) {
        quire_say("warning: %s", warning);
    }
    return QUIRE_OK;
}

static int run(void *opaque)
{
    chat_args *args = opaque;
    chat c = { .args = args };
    quire_kv_history history = { .cache = NULL };
    quire_error err = QUIRE_ERROR_INIT;
    int exit_status = QUIRE_EXIT_OK;
    int rc;

    quire_sampling_seed(&args->sampling);
    rc = quire_opened_open(&c.session, &args->common, &err);
    if (rc == QUIRE_OK) {
        rc = check_template(&c, &err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_kv_history_open(&history, quire_runtime_cache(c.session.runtime),
                                   args->common.kv_history, &err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_writer_create(&c.writer, &c.session, &args->sampling, &err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_kv_disk_open(&c.disk, &args->common, &c.session, &err);
    }
    if (rc == QUIRE_OK) {
        quire_writer_disk_set(c.writer, c.disk);
    }
    if (rc == QUIRE_OK && args->common.is_json) {
        c.turns = json_array();
        rc = c.turns == NULL ? quire_error_set(&err, QUIRE_NOMEM, "out of memory") : QUIRE_OK;
    }
    if (rc == QUIRE_OK && begin(&c) < 0) {
        rc = quire_error_set(&err, QUIRE_NOMEM, "out of memory");
    }
    if (rc == QUIRE_OK) {
        quire_interrupt_catch();
        converse(&c);
        if (c.turns != NULL) {
            exit_status = quire_stdout_json(
                json_pack("{s:O, s:o, s:I}", "turns", c.turns, "kv",
                          quire_opened_kv_json(&c.session, quire_writer_tokens(c.writer)), "seed",
                          (json_int_t)args->sampling.seed));
        }
        exit_status = c.has_failed ? QUIRE_EXIT_FAILED : exit_status;
    } else {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    /* Before the sequence is closed, because the file shows its pages. */
    exit_status = quire_kv_history_close(&history, exit_status);
    json_decref(c.turns);
    drop_messages(&c, 0);
    free(c.messages);
    free(c.rendered);
    quire_writer_destroy(c.writer);
    quire_kv_disk_close(c.disk);
    quire_opened_close(&c.session);
    return exit_status;
}

const quire_command quire_command_chat = {
    .name = "chat",
    .usage = "[-m] FILE [options]",
    .summary = "Talks with a chat model, one line at a time; the KV cache stays between turns.",
    .notes = "/reset forgets the conversation; /exit or Ctrl-D ends the program. Ctrl-C stops an\n"
             "answer; at the prompt, or when lines are piped in, Ctrl-C ends the program.\n"
             "Lines may also be piped in: the answers go to stdout, one after the other.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(chat_args),
    .check = quire_common_check,
    .run = run,
};
