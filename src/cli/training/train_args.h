/* train_args.h - the options of quire train.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRAIN_ARGS_H
#define QUIRE_CLI_TRAIN_ARGS_H

#include "cli/settings/args.h"
#include "cli/settings/settings.h"

/* Tokens that training predicts among. */
enum {
    QUIRE_PREDICT_ALL,
    QUIRE_PREDICT_SEEN, /* those of the data */
};

typedef struct train_args {
    quire_common_args common; /* threads, json */
    const char *config;
    const char *data;
    const char *checkpoint;
    const char *out;
    const char *scheme;
    const char *tokenizer;
    const char *from;
    bool has_scheme, has_tokenizer, has_rate_end, has_distill, has_hidden, has_attention;
    bool has_sizes; /* a size that --from sets was given */
    double distill, distill_hidden, distill_attention;
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff;
    int64_t window;
    double rope_base;
    bool no_qk_norm, has_qkv_bias, is_untied, has_shift_heads;
    int gate_form, type, masters, products, predict;
    int64_t n_tokens, n_rows, n_accumulate, n_steps, n_warmup;
    double rate, rate_end, decay, clip, rise_max;
    int64_t seed;
    double held_share, task_share;
    uint64_t doc_bytes, task_bytes, task_bytes_min, task_bytes_first;
    double grow_below;
    int64_t grow_every;
    const char *tasks;
    int64_t every_log, every_held, every_save, n_held;
    quire_settings settings;
} train_args;

#define QUIRE_TRAIN_OPTIONS 53u /* the length of the table */
extern const quire_opt quire_train_options[QUIRE_TRAIN_OPTIONS];

/* Options that do not go together. Errors: QUIRE_INVAL, with the names of the options. */
int quire_train_args_check(const void *args, quire_error *err);

#endif /* QUIRE_CLI_TRAIN_ARGS_H */
