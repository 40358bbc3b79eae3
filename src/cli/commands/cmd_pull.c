/* cmd_pull.c - quire pull: fetches a model by name.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/talk.h"
#include "cli/pull/pull.h"
#include "model/model.h"
#include "model/text.h"

#include "base/check.h"
#include "base/parse.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct pull_args {
    const char *name;
    const char *sha256;
    const char *token_file;
    int64_t n_retries;
    uint64_t retry_delay_us;
    uint64_t stall_us;
    bool is_json;
} pull_args;

#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number

/* clang-format off */
static const quire_opt options[] = {
    { .names = { "--name" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "NAME",
      .offset = offsetof(pull_args, name),
      .help = "the model: a short name, hf:OWNER/REPO[:FILE.gguf or a quantisation], or a URL; "
              "the name alone, as the first word, is the same" },
    { .names = { "--sha256" }, .type = QUIRE_OPT_TEXT, .unit = "HEX",
      .initial_text = "what the hub or the server says", .offset = offsetof(pull_args, sha256),
      .help = "hash that the file must have" },
    { .names = { "--token-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "HF_TOKEN, or the token of a login",
      .offset = offsetof(pull_args, token_file), .help = "file with the token for the hub" },
    { .names = { "--retries" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 100,
      .initial = TEXT_OF(QUIRE_RETRIES_DEFAULT), .offset = offsetof(pull_args, n_retries),
      .help = "failures in a row without a new byte after which a transfer is given up" },
    { .names = { "--retry-delay" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0, .max = 60,
      .initial = QUIRE_RETRY_DELAY_DEFAULT, .offset = offsetof(pull_args, retry_delay_us),
      .help = "wait before the second try; it doubles with each. 0: never wait" },
    { .names = { "--stall" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 1, .max = 3600,
      .initial = "60s", .offset = offsetof(pull_args, stall_us),
      .help = "a transfer without a byte for this long counts as failed" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(pull_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};
/* clang-format on */

/* 64 hexadecimal digits, lower case. */
static int take_hash(const char *text, char out[QUIRE_SHA256_TEXT_MAX], quire_error *err)
{
    size_t n = 0;

    for (; text[n] != '\0' && n < QUIRE_SHA256_TEXT_MAX - 1; n++) {
        if (!isxdigit((unsigned char)text[n])) {
            break;
        }
        out[n] = (char)tolower((unsigned char)text[n]);
    }
    out[n] = '\0';
    return n == QUIRE_SHA256_TEXT_MAX - 1 && text[n] == '\0'
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "--sha256 '%.80s': it takes 64 hexadecimal digits", text);
}

/* Whether this program can run it, since it is here anyway: reads the description alone. */
static void say_usable(const char *name, const char *path)
{
    const quire_model_opts opts = { .describe_only = true };
    quire_error err = QUIRE_ERROR_INIT;
    quire_model *model = NULL;

    if (quire_model_open(&model, path, &opts, &err) < 0) {
        quire_say("this version cannot run it: %s", err.message);
    } else if (quire_model_chat_template(model) != NULL) {
        quire_say("try: quire chat -m %s", name);
    } else {
        quire_say("it has no chat template; try: quire run -m %s -p TEXT", name);
    }
    quire_model_close(model);
}

static int run(void *opaque)
{
    const pull_args *args = opaque;
    const uint64_t stall_s = (args->stall_us + 999999) / 1000000;
    const quire_hub_opts opts = {
        .token_file = args->token_file,
        .stall_s = (uint32_t)stall_s,
        .retry = { .n_max = (uint32_t)args->n_retries,
                   .delay_us = args->retry_delay_us,
                   .first_us = args->retry_delay_us },
    };
    char sha256[QUIRE_SHA256_TEXT_MAX];
    char bytes[16];
    quire_error err = QUIRE_ERROR_INIT;
    quire_model_name name;
    quire_pulled pulled;

    if (quire_model_name_parse(args->name, &name, &err) < 0 ||
        (args->sha256 != NULL && take_hash(args->sha256, sha256, &err) < 0)) {
        return quire_say_error(&err, QUIRE_EXIT_USAGE);
    }
    quire_interrupt_catch();
    if (quire_pull(&name, args->sha256 != NULL ? sha256 : NULL, &opts, &pulled, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (args->is_json) {
        return quire_stdout_json(json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:b}", "name",
                                           args->name, "path", pulled.path, "sha256", pulled.sha256,
                                           "bytes", (json_int_t)pulled.bytes, "fetched_bytes",
                                           (json_int_t)pulled.fetched_bytes, "files",
                                           (int)pulled.n_files, "was_here", (int)pulled.was_here));
    }
    printf("%s\n", pulled.path);
    if (pulled.was_here) {
        quire_say("it is here already, and the same as there");
    } else {
        quire_say("%s, verified", quire_format_bytes(pulled.bytes, bytes, sizeof(bytes)));
    }
    say_usable(args->name, pulled.path);
    return QUIRE_EXIT_OK;
}

const quire_command quire_command_pull = {
    .name = "pull",
    .usage = "NAME [options]",
    .summary = "Fetches a model by name, verified, and goes on where it was interrupted.",
    .notes = "The path goes to stdout. The hub is https://huggingface.co, or what QUIRE_HUB names; "
             "models lie in\n$QUIRE_MODELS, else in $XDG_DATA_HOME/quire/models or "
             "~/.local/share/quire/models.\n\n"
             "examples: quire pull qwen3-4b\n"
             "          quire pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--name",
    .args_bytes = sizeof(pull_args),
    .run = run,
};
