/* cmd_run.c - quire run: text from a prompt.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/collect.h"
#include "cli/commands/commands.h"
#include "cli/commands/kv_history.h"
#include "cli/commands/new_file.h"
#include "cli/commands/opened_retain.h"
#include "cli/commands/overflow_choice.h"
#include "cli/commands/places.h"
#include "cli/commands/talk.h"
#include "cli/commands/writer.h"
#include "cli/settings/args.h"

#include "base/check.h"
#include "base/parse.h"
#include "engine/context_condense.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_args {
    quire_common_args common;
    quire_sampling_args sampling;
    const char *prompt;
    const char *file;
    quire_overflow_choice overflow;
    const char *save_block_state;
    const char *resume_block_state;
} run_args;

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_MODEL_OPTIONAL("the model that `make run` has fetched, else one of little stories"),
    { .names = { "-p", "--prompt" }, .type = QUIRE_OPT_TEXT, .unit = "TEXT",
      .offset = offsetof(run_args, prompt), .help = "prompt: the text that the model continues" },
    { .names = { "-f", "--file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(run_args, file), .help = "read the prompt from a file; -: stdin" },
    QUIRE_ROWS_SAMPLING(run_args),
    QUIRE_ROW_JSON,
    QUIRE_ROWS_RUNTIME("the context of the training, or less if memory allows only less"),
    QUIRE_ROW_DEVICE,
    QUIRE_ROWS_CACHE_DIR,
    QUIRE_ROWS_RETAIN,
    { .names = { "--context-overflow" }, .type = QUIRE_OPT_CHOICE, .choices = quire_overflow_words,
      .initial = "refuse", .offset = offsetof(run_args, overflow.how),
      .help = "when the context is full: end the text, drop half of the tokens and move the others "
              "to lower positions (shift), drop 64 tokens at a time (sinks), or drop some of the "
              "oldest tokens, chosen by the policy of --retain or keydiff:0.5 (condense)" },
    { .names = { "--context-keep" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "64", .offset = offsetof(run_args, overflow.keep),
      .help = "first tokens that shift, sinks and condense keep, rounded up to a multiple of 64" },
    { .names = { "--save-block-state" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(run_args, save_block_state),
      .help = "with --retain: write what the prompt's next chunk depends on, behind its last whole "
              "step (-b)" },
    { .names = { "--resume-block-state" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(run_args, resume_block_state),
      .help = "with --retain: go on from such a file, whose text begins the prompt" },
};
/* clang-format on */

static int print_json(const run_args *args, const quire_opened *session, const quire_collected *c,
                      const quire_writer_result *result, uint32_t n_held)
{
    return quire_stdout_json(json_pack(
        "{s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:I, s:i, s:o}", "text",
        quire_collected_json(c), "stop", quire_stop_word(result->stop), "prompt_tokens",
        (int)result->n_prompt, "stored_tokens", (int)result->n_stored, "output_tokens",
        (int)result->n_output, "dropped_tokens", (int)result->n_dropped, "condensings",
        (int)result->n_condensings, "prompt_tokens_per_second",
        quire_json_real(quire_rate(result->n_prompt, result->prefill_s)),
        "decode_tokens_per_second", quire_json_real(quire_rate(result->n_steps, result->decode_s)),
        "ttft_ms", result->first_s > 0 ? quire_json_real(1e3 * result->first_s) : json_null(),
        "seed", (json_int_t)args->sampling.seed, "threads",
        (int)quire_runtime_n_threads(session->runtime), "kv",
        quire_opened_kv_json(session, n_held)));
}

static void print_summary(const run_args *args, const quire_opened *session,
                          const quire_writer_result *result, uint32_t n_held)
{
    quire_cache_stats stats;
    char kv[QUIRE_SESSION_KV_TEXT_MAX];
    char live[16];
    char charged[16];
    char first[48] = "";

    quire_cache_stats_get(quire_opened_cache(session), &stats);
    if (result->first_s > 0) { /* with -n 0 and in an interrupted prompt there is none */
        (void)snprintf(first, sizeof(first), ", first token after %.3f s", result->first_s);
    }
    quire_say("prompt %u tokens, %.1f tokens/s%s", result->n_prompt,
              quire_rate(result->n_prompt, result->prefill_s), first);
    if (args->resume_block_state != NULL) {
        quire_say("%u of these tokens are those of %s", result->n_reused, args->resume_block_state);
    }
    if (args->common.cache_dir != NULL) {
        quire_say("read %u of these tokens from %s", result->n_stored, args->common.cache_dir);
    }
    quire_say("output %u tokens, %.1f tokens/s; stopped: %s", result->n_output,
              quire_rate(result->n_steps, result->decode_s), quire_stop_text(result->stop));
    if (result->n_dropped > 0) {
        quire_say("%u tokens left the context (--context-overflow %s)", result->n_dropped,
                  quire_overflow_words[args->overflow.how]);
    }
    if (result->n_condensings > 0) {
        quire_say("the context was condensed %u times by %s", result->n_condensings,
                  args->overflow.retain != NULL ? args->overflow.retain : QUIRE_CONTEXT_RETAIN);
    }
    quire_say("KV %s: %u tokens in %llu page%s, %s live, %s charged",
              quire_opened_kv_text(session, kv, sizeof(kv)), n_held,
              (unsigned long long)stats.pages_live, stats.pages_live == 1 ? "" : "s",
              quire_format_bytes(stats.live_bytes, live, sizeof(live)),
              quire_format_bytes(stats.charged_bytes, charged, sizeof(charged)));
    quire_opened_say_retained(session);
    if (args->sampling.temperature + args->sampling.dynatemp_range > 0) {
        quire_say("seed %lld (--seed repeats it)", (long long)args->sampling.seed);
    }
}

/* Read the prompt and turn it into tokens. */
static int prepare(const run_args *args, const quire_opened *session, int32_t **tokens,
                   size_t *n_tokens, quire_error *err)
{
    char *from_file = NULL;
    const char *text = args->prompt;
    quire_error cause = QUIRE_ERROR_INIT;
    size_t text_bytes;
    int rc = QUIRE_OK;

    if (args->file != NULL) {
        rc = quire_read_file(args->file, &from_file, &text_bytes, err);
        text = from_file;
        /* A text file ends with a newline that is no part of the prompt. */
        if (rc == QUIRE_OK && text_bytes > 0 && text[text_bytes - 1] == '\n') {
            text_bytes--;
        }
    } else {
        text_bytes = strlen(text);
    }
    if (rc == QUIRE_OK) {
        rc = quire_opened_tokenize(session, text, text_bytes, true, tokens, n_tokens, &cause);
        if (rc < 0) {
            quire_error_set(err, rc, "cannot tokenize the prompt: %s", cause.message);
        }
    }
    free(from_file);
    return rc;
}

static int generate(run_args *args, quire_opened *session, quire_error *err)
{
    quire_collected text = { .is_streamed = !args->common.is_json,
                             .is_kept = args->common.is_json };
    quire_kv_history history;
    quire_new_file block = { .stream = NULL };
    quire_writer *writer = NULL;
    quire_kv_disk *disk = NULL;
    quire_writer_result result;
    int32_t *tokens = NULL;
    size_t n_tokens = 0;
    int exit_status = QUIRE_EXIT_FAILED;
    int rc;

    rc = quire_kv_history_open(&history, quire_runtime_cache(session->runtime),
                               args->common.kv_history, err);
    if (rc == QUIRE_OK) {
        rc = prepare(args, session, &tokens, &n_tokens, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_writer_create(&writer, session, &args->sampling, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_overflow_choice_apply(&args->overflow, writer, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_kv_disk_open(&disk, &args->common, session, err);
    }
    if (rc == QUIRE_OK && args->resume_block_state != NULL) {
        rc = quire_writer_block_resume(writer, args->resume_block_state, tokens, n_tokens, err);
    }
    if (rc == QUIRE_OK && args->save_block_state != NULL) {
        rc = quire_new_file_open(&block, args->save_block_state, err);
        quire_writer_block_save(writer, &block);
    }
    if (rc < 0) {
        goto out;
    }
    quire_writer_sink_set(writer, quire_collect, &text);
    quire_writer_disk_set(writer, disk);
    rc = quire_writer_run(writer, tokens, n_tokens, &result, err);
    if (rc < 0 && rc != QUIRE_CANCELED) {
        goto out;
    }
    rc = QUIRE_OK; /* an interrupted prompt also has figures */
    exit_status = QUIRE_EXIT_OK;
    if (args->common.is_json) {
        exit_status = print_json(args, session, &text, &result, quire_writer_tokens(writer));
    } else {
        (void)quire_stdout_write("\n", 1);
        print_summary(args, session, &result, quire_writer_tokens(writer));
    }

out:
    if (rc < 0) {
        exit_status = quire_say_error(err, QUIRE_EXIT_FAILED);
    }
    /* Before the sequence is closed, because the file shows its pages. */
    exit_status = quire_kv_history_close(&history, exit_status);
    quire_new_file_discard(&block);
    quire_writer_destroy(writer);
    quire_kv_disk_close(disk);
    free(tokens);
    quire_collected_fini(&text);
    return exit_status;
}

/* A state has no room for the biases of fitted tokens. */
static int check_merge(const run_args *args, quire_error *err)
{
    quire_retain_spec spec;

    if (args->save_block_state == NULL && args->resume_block_state == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_retain_parse_lanes(args->common.retain, &spec, err)); /* checked before */
    return spec.merges ? quire_error_set(err, QUIRE_UNSUPP,
                                         "merge=fit and --%s-block-state: such a file has no "
                                         "biases of fitted tokens",
                                         args->save_block_state != NULL ? "save" : "resume")
                       : QUIRE_OK;
}

/* Options that only quire run has, and that exclude condense. */
static int check_condense(const run_args *args, quire_error *err)
{
    if (args->overflow.how == QUIRE_CONTEXT_CONDENSE &&
        (args->save_block_state != NULL || args->resume_block_state != NULL)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--context-overflow condense and --%s-block-state: such a text is "
                               "condensed when its context is full, not in chunks",
                               args->save_block_state != NULL ? "save" : "resume");
    }
    return QUIRE_OK;
}

static int check(const void *opaque, quire_error *err)
{
    const run_args *args = opaque;

    if ((args->prompt == NULL) == (args->file == NULL)) {
        return quire_error_set(err, QUIRE_INVAL, "%s",
                               args->prompt == NULL ? "no prompt given: -p TEXT or -f FILE"
                                                    : "-p and -f both give a prompt: use one");
    }
    QUIRE_TRY(quire_common_check(args, err));
    QUIRE_TRY(quire_sampling_args_check(&args->sampling, err));
    QUIRE_TRY(quire_cache_dir_check(&args->common, err));
    if (args->common.retain == NULL &&
        (args->save_block_state != NULL || args->resume_block_state != NULL)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--%s-block-state needs --retain: other texts are kept with "
                               "--cache-dir",
                               args->save_block_state != NULL ? "save" : "resume");
    }
    QUIRE_TRY(check_merge(args, err));
    QUIRE_TRY(check_condense(args, err));
    return quire_overflow_choice_check(&args->overflow, &args->common, err);
}

static int run(void *opaque)
{
    run_args *args = opaque;
    quire_error err = QUIRE_ERROR_INIT;
    char model[QUIRE_PLACE_MAX];
    quire_opened session;
    int exit_status;

    if (args->common.model == NULL) {
        if (quire_place_model(model, &err) < 0) {
            return quire_say_error(&err, QUIRE_EXIT_USAGE);
        }
        args->common.model = model;
    }
    quire_overflow_choice_take(&args->overflow, &args->common);
    quire_sampling_seed(&args->sampling);
    if (quire_opened_open(&session, &args->common, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_interrupt_catch();
    exit_status = generate(args, &session, &err);
    quire_opened_close(&session);
    return exit_status;
}

const quire_command quire_command_run = {
    .name = "run",
    .usage = "[[-m] FILE] (-p TEXT | -f FILE) [options]",
    .summary = "Continues a prompt: the text goes to stdout, a summary to stderr.",
    .notes = "example: quire run -m model.gguf -p 'Once upon a time' -n 100 --kv q8",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(run_args),
    .check = check,
    .run = run,
};
