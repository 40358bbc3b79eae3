/* chat_commands.c - lines of quire chat that begin with '/'.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/chat.h"

#include "base/parse.h"
#include "cli/commands/opened_retain.h"
#include "cli/commands/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct command {
    const char *name;
    const char *args; /* "" = none */
    const char *help; /* NULL: another program's name for the command before, not listed */
    void (*run)(quire_chat *c, const char *args);
} command;

static void say_nomem(quire_chat *c)
{
    c->has_failed = c->is_over = true;
    (void)quire_say_nomem();
}

static void reset(quire_chat *c, const char *args)
{
    (void)args;
    if (quire_chat_begin(c) < 0) {
        say_nomem(c);
    } else {
        quire_say("the conversation is empty now");
    }
}

static void undo(quire_chat *c, const char *args)
{
    const size_t n = quire_chat_last_turn(c);

    (void)args;
    if (n == c->n_messages) {
        quire_say("there is no turn to take back");
        return;
    }
    quire_chat_drop(c, n);
    quire_say("the last turn is taken back; %zu messages are left", c->n_messages);
}

static void retry(quire_chat *c, const char *args)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)args;
    if (quire_chat_last_turn(c) == c->n_messages) {
        quire_say("there is no turn to repeat");
    } else if (quire_chat_answer_again(c, &err) < 0) {
        quire_chat_say_failure(c, &err);
    }
}

static void set_system(quire_chat *c, const char *args)
{
    free(c->system);
    c->system = args[0] != '\0' ? strdup(args) : NULL;
    if ((args[0] != '\0' && c->system == NULL) || quire_chat_begin(c) < 0) {
        say_nomem(c);
        return;
    }
    quire_say("the conversation is empty now, %s",
              c->system != NULL ? "with this system message" : "without a system message");
}

static void think(quire_chat *c, const char *args)
{
    quire_chat_abilities abilities;

    quire_chat_format_abilities(c->format, &abilities);
    if (!abilities.has_thinking) {
        quire_say("the chat template has no switch for thinking");
    } else if (strcmp(args, "on") == 0 || strcmp(args, "off") == 0) {
        c->thinking = strcmp(args, "on") == 0 ? QUIRE_CHAT_ON : QUIRE_CHAT_OFF;
        quire_say("thinking is %s from the next answer on", args);
    } else {
        quire_say("/think takes on or off");
    }
}

static void status(quire_chat *c, const char *args)
{
    char kv[QUIRE_SESSION_KV_TEXT_MAX];

    (void)args;
    quire_say("%u of %u tokens of context in use, %zu messages, KV %s",
              quire_writer_tokens(c->writer), c->session.n_ctx, c->n_messages,
              quire_opened_kv_text(&c->session, kv, sizeof kv));
    quire_opened_say_retained(&c->session);
}

static void leave(quire_chat *c, const char *args)
{
    (void)args;
    c->is_over = true;
}

static void help(quire_chat *c, const char *args);

static const command commands[] = {
    { "/help", "", "this list", help },
    { "/reset", "", "forget the conversation", reset },
    { "/clear", "", NULL, reset },
    { "/undo", "", "take the last turn back", undo },
    { "/retry", "", "answer the last message again", retry },
    { "/system", " [TEXT]", "begin anew with this system message, or with none", set_system },
    { "/think", " on|off", "let the model think before it answers", think },
    { "/status", "", "tokens and memory in use", status },
    { "/exit", "", "leave; so does Ctrl-D", leave },
    { "/quit", "", NULL, leave },
    { "/bye", "", NULL, leave },
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void help(quire_chat *c, const char *args)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char usage[32];

        if (commands[i].help == NULL) {
            continue;
        }
        (void)snprintf(usage, sizeof usage, "%s%s", commands[i].name, commands[i].args);
        quire_say("  %-16s %s", usage, commands[i].help);
    }
    quire_say("Ctrl-C stops an answer. A backslash at the end of a line goes on in the next one, "
              "pasted lines are one message, and a blank before '/' sends the line as text.");
    status(c, args);
}

bool quire_chat_obey(quire_chat *c, const char *line)
{
    const size_t n = strcspn(line, " \t");
    const char *args = line + n + strspn(line + n, " \t");
    const char *names[N_COMMANDS];
    const char *nearest;
    char name[24];

    if (line[0] != '/' || strchr(line, '\n') != NULL) {
        return false;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), line);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(commands[i].name, name) == 0) {
            if (args[0] != '\0' && commands[i].args[0] == '\0') {
                quire_say("%s takes no words behind it", name);
            } else {
                commands[i].run(c, args);
            }
            return true;
        }
    }
    nearest = quire_nearest_name(name, names, N_COMMANDS);
    if (nearest != NULL) {
        quire_say("unknown command %s (did you mean %s?)", name, nearest);
    } else {
        quire_say("unknown command %s: /help lists the commands, a blank before '/' sends the line "
                  "as text",
                  name);
    }
    return true;
}

void quire_chat_banner(const quire_chat *c)
{
    const char *path = c->args->common.model;
    const char *slash = strrchr(path, '/');
    char kv[QUIRE_SESSION_KV_TEXT_MAX];

    quire_say("%s, %u tokens of context, KV %s; /help lists the commands",
              slash != NULL ? slash + 1 : path, c->session.n_ctx,
              quire_opened_kv_text(&c->session, kv, sizeof kv));
}
