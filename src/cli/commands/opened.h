/* opened.h - a model and a runtime opened from a command's options, and the steps on them.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPENED_H
#define QUIRE_CLI_OPENED_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/settings/args.h"
#include "model/model.h"
#include "model/runtime.h"

typedef struct quire_opened {
    quire_model *model;
    const quire_model_desc *desc;
    quire_runtime *runtime;
    quire_kv_args kv;        /* what the runtime's formats come from */
    quire_kv_pair *kv_pairs; /* [n_stored], the runtime's; goes with it */
    uint32_t n_ctx;
    uint32_t n_batch;
    uint64_t memory_limit_bytes;    /* as it was before the weights were loaded */
    uint64_t runtime_bytes;         /* KV and buffers of the runtime, as reckoned */
    quire_calibration *calibration; /* of the model; NULL = none, or nobody asked yet */
    bool has_looked;                /* for a calibration */
    bool has_warned;                /* of a context beyond the trained one: once is enough */
} quire_opened;

/* Open the model that args name, with progress on a terminal. Weights that leave no room for args'
 * context (one page of it where -c was not given) are refused before they are loaded.
 * Errors: as quire_model_open(), QUIRE_NOMEM. */
int quire_opened_open_model(quire_opened *session, const quire_common_args *args, quire_error *err);

/* Look for the model's calibration once, as --kv auto does. A second session on the same model that
 * is a copy of this one shares what was found: have it found before. */
void quire_opened_look(quire_opened *session, const char *model_path, const quire_model_desc *desc);

/* What a command asks of its runtime beyond the shared options; zero = nothing special. */
typedef struct quire_opened_want {
    uint32_t n_ctx;      /* instead of args->n_ctx */
    uint32_t n_seqs_max; /* 0 = 1 */
    bool no_cascade;     /* see quire_attn_workspace_opts */
    uint32_t n_tokens;   /* of all sequences together, what they share once: the KV budget is for
                            these where args give none; 0 = n_ctx */
    const quire_kv_pair *kv_pairs; /* [n_stored] formats instead of args'; NULL = args' */
    double kv_share; /* 0..1: where args give no KV budget it is this much of the memory that
                        weights and buffers leave; 0 = no such rule */
    bool lock_memory;
    bool is_contiguous;
} quire_opened_want;

/* What the shared options ask of a runtime; the formats are the caller's to set. */
quire_runtime_opts quire_opened_runtime_opts(const quire_common_args *args,
                                             const quire_opened_want *want);

/* Open the model's file without its weights, for quire_opened_plan() alone. Errors: as
 * quire_model_open(). */
int quire_opened_describe(quire_opened *session, const quire_common_args *args, quire_error *err);

/* The options that a runtime would be created with, refused when they need more memory than there
 * is. opts->kv_pairs is session->kv_pairs, which stay the session's. Nothing is taken for it.
 * Errors: QUIRE_NOMEM, as quire_kv_args_resolve(). */
int quire_opened_plan(quire_opened *session, const quire_common_args *args,
                      const quire_opened_want *want, quire_runtime_opts *opts, quire_error *err);

/* Create the runtime. Where neither args nor want name a context it is the trained one, or the
 * longest that fits in memory, which is said on stderr; as is a context longer than the model was
 * trained for. Errors: as quire_runtime_create(), QUIRE_NOMEM (it would not fit, nothing was
 * taken); the model stays open. */
int quire_opened_open_runtime(quire_opened *session, const quire_common_args *args,
                              const quire_opened_want *want, quire_error *err);

/* A copy of a session with a runtime, for a second one beside it on the same model: the limit of
 * this one is what the first leaves. Close its runtime only, before the session. */
quire_opened quire_opened_beside(const quire_opened *session);

/* Both of the above with args as they are. */
int quire_opened_open(quire_opened *session, const quire_common_args *args, quire_error *err);

void quire_opened_close_runtime(quire_opened *session);
/* Close what is open; a session of zeros is fine. */
void quire_opened_close(quire_opened *session);

/* Tokens of a text, allocated; Ctrl-C ends it. Memory: free(*tokens). Errors: those of
 * quire_model_tokenize_all(), with its message. */
int quire_opened_tokenize(const quire_opened *session, const char *text, size_t text_bytes,
                          bool parse_special, int32_t **tokens, size_t *n_tokens, quire_error *err);

/* Compute tokens of one sequence in steps of at most n_batch; *logits belongs to the last token.
 * progress (NULL for none) is what the progress line calls it.
 * Errors: as quire_runtime_step(), QUIRE_CANCELED after Ctrl-C (the steps done so far stay). */
int quire_opened_prefill(quire_opened *session, quire_seq_id seq, const int32_t *tokens,
                         size_t n_tokens, const char *progress, const float **logits);

/* Fill err for a failed step: budget, limit and memory are told apart. Returns status. */
int quire_opened_step_error(const quire_opened *session, int status, quire_error *err);

/* The runtime's KV formats, for people: quire_kv_args_text(). Returns buffer. */
#define QUIRE_SESSION_KV_TEXT_MAX 160u
char *quire_opened_kv_text(const quire_opened *session, char *buffer, size_t buffer_bytes);

/* Formats and memory of the KV cache as JSON: the formats as text, as a list by layers and in bits
 * per value; bytes live, charged and taken from the OS, pages, and what the tokens alone need. NULL
 * when out of memory. */
json_t *quire_opened_kv_json(const quire_opened *session, uint64_t n_tokens);

/* A whole file ("-" = stdin), with a zero byte after it that does not count.
 * Memory: free(*text). Errors: QUIRE_IO, QUIRE_NOMEM, QUIRE_LIMIT (over 1 GiB). */
int quire_read_file(const char *path, char **text, size_t *text_bytes, quire_error *err);

#endif /* QUIRE_CLI_OPENED_H */
