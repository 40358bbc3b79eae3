/* writer.h - one sequence that reads a prompt and generates text after it.
 *
 * The writer knows the tokens of the text that its sequence holds in KV. It compares a new prompt
 * with them and computes only the tokens after the longest common prefix. So a chat keeps its KV
 * between turns, also when tokens have left its context. With --retain it keeps the dropped state
 * as long as a prompt goes on behind the condensed part, and else computes the text anew.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_WRITER_H
#define QUIRE_CLI_WRITER_H

#include <stdbool.h>

#include "cli/commands/kv_disk.h"
#include "cli/commands/new_file.h"
#include "cli/commands/opened.h"
#include "cli/settings/args.h"
#include "model/context_overflow.h"
#include "model/sampler.h"
#include "retain/policy.h"

typedef enum quire_stop {
    QUIRE_STOP_END,         /* the model ended the text, by its token or a stop text */
    QUIRE_STOP_LIMIT,       /* -n */
    QUIRE_STOP_CONTEXT,     /* the context is full */
    QUIRE_STOP_INTERRUPTED, /* Ctrl-C */
    QUIRE_STOP_SINK         /* the text could not be written */
} quire_stop;

/* "end of text" and so on; and the same as one word for JSON. Memory: static. */
const char *quire_stop_text(quire_stop stop);
const char *quire_stop_word(quire_stop stop);

typedef struct quire_writer_result {
    uint32_t n_prompt;      /* tokens of the prompt; if interrupted, those read */
    uint32_t n_reused;      /* of n_prompt, already in KV */
    uint32_t n_stored;      /* of n_reused, read from disk */
    uint32_t n_output;      /* tokens written */
    uint32_t n_steps;       /* of one token each, after the prompt */
    uint32_t n_dropped;     /* tokens that left the context */
    uint32_t n_condensings; /* of the context */
    double prefill_s;       /* computing the prompt's new tokens */
    double first_s;         /* from the call until the first token is sampled */
    double decode_s;        /* the steps after the prompt */
    quire_stop stop;
} quire_writer_result;

/* Whole UTF-8; returns false to stop. */
typedef bool quire_text_sink(void *ctx, const char *text, size_t text_bytes);

typedef struct quire_writer quire_writer;

/* sampling->seed must be resolved (quire_sampling_seed()). The session must outlive the writer.
 * Errors: QUIRE_NOMEM, QUIRE_LIMIT; err tells. Memory: quire_writer_destroy(). */
int quire_writer_create(quire_writer **out, quire_opened *session,
                        const quire_sampling_args *sampling, quire_error *err);
void quire_writer_destroy(quire_writer *writer);

/* Read a prompt and write until something stops it. A prompt longer than the context, or than
 * QUIRE_TOKENS_MAX where contexts overflow, is refused and leaves the writer as it was; err names
 * both counts. Errors: QUIRE_LIMIT, QUIRE_INVAL (empty
 * prompt), QUIRE_CANCELED (interrupted while reading; *result has the progress), as
 * quire_runtime_step(). */
int quire_writer_run(quire_writer *writer, const int32_t *tokens, size_t n_tokens,
                     quire_writer_result *result, quire_error *err);

/* Set the sink of text for quire_writer_run(). */
void quire_writer_sink_set(quire_writer *writer, quire_text_sink *sink, void *ctx);

/* Whether the session's context can overflow so: `keep` tokens at the beginning stay, rounded up to
 * whole tiles. A text that lost tokens by another number is forgotten. Errors:
 * quire_context_overflow_check(), quire_context_condense_check(). */
int quire_writer_overflow_set(quire_writer *writer, quire_context_overflow overflow, uint32_t keep,
                              quire_error *err);

/* The policy of QUIRE_CONTEXT_CONDENSE, before quire_writer_overflow_set(); without it the writer
 * has QUIRE_CONTEXT_RETAIN. spec is copied. */
void quire_writer_retain_set(quire_writer *writer, const quire_retain_spec *spec);

/* Control tokens whose text is shown, in later runs. tokens: borrowed until the next call. */
void quire_writer_show(quire_writer *writer, const int32_t *tokens, uint32_t n);

/* Texts that end an answer, in later runs; copied, none of them empty. They are not part of it. To
 * be called before quire_writer_show(). Errors: QUIRE_NOMEM: the texts are as before. */
int quire_writer_stops_set(quire_writer *writer, const char *const *texts, uint32_t n);

/* Read known beginnings of prompts from disk, and keep new pages there. disk is borrowed; NULL =
 * none. */
void quire_writer_disk_set(quire_writer *writer, quire_kv_disk *disk);

/* Begin with the state of a text that keeps a share of its tokens; `tokens` are the next prompt,
 * which begins with this text. Errors: those of quire_block_file_read() and quire_retention_load();
 * QUIRE_INVAL (another prompt); err names the file. */
int quire_writer_block_resume(quire_writer *writer, const char *path, const int32_t *tokens,
                              size_t n_tokens, quire_error *err);

/* Write the state behind the prompt's last whole step (session.n_batch) to a file, which the writer
 * finishes while it reads the prompt. file is borrowed; NULL = none. A prompt without a whole step
 * is then refused. */
void quire_writer_block_save(quire_writer *writer, quire_new_file *file);

/* Tokens that the sequence holds now. */
uint32_t quire_writer_tokens(const quire_writer *writer);

/* Forget everything read and written. */
void quire_writer_reset(quire_writer *writer);

/* Replace seed -1 by a new random one. */
void quire_sampling_seed(quire_sampling_args *sampling);

#endif /* QUIRE_CLI_WRITER_H */
