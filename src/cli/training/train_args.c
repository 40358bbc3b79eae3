/* train_args.c - see train_args.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/training/train_args.h"

#include "base/check.h"
#include "train/text_docs.h"
#include "train/trainer.h"

#include <stddef.h>

static const char *const types[] = { "f32", "f16", "q8_0", NULL }; /* quire_gguf_out_type */
static const char *const masters[] = { "f32", "bf16", NULL };      /* quire_train_masters */
static const char *const products[] = { "f32", "bf16", NULL };     /* quire_train_products */
static const char *const predictions[] = { "all", "seen", NULL };
static const char *const gate_forms[] = { "half", "full", "heads", NULL };

/* clang-format off */
#define AT(field) .offset = offsetof(train_args, field)
#define AT_SIZE(field) AT(field), .seen_offset = offsetof(train_args, has_sizes)
const quire_opt quire_train_options[QUIRE_TRAIN_OPTIONS] = {
    { .names = { "--config" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .is_flag_only = true,
      AT(config), .help = "YAML file with settings: n_layer: 8 is --n-layer 8" },
    { .names = { "--data" }, .type = QUIRE_OPT_TEXT, .unit = "PATH", AT(data),
      .initial_text = "tasks alone",
      .help = "a text file, or a folder of them; documents end at lines <|endoftext|>" },
    { .names = { "--checkpoint" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .is_required = true,
      AT(checkpoint), .help = "state of the run; when the file exists, the run goes on from it" },
    { .names = { "-o", "--output" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", AT(out),
      .initial_text = "none", .help = "GGUF file of the trained model, written at the end" },
    { .names = { "--type" }, .type = QUIRE_OPT_CHOICE, .choices = types, .initial = "f32", AT(type),
      .help = "numbers of the file's matrices" },
    { .names = { "--scheme" }, .type = QUIRE_OPT_TEXT, .unit = "NAME", .initial = "fusedkv-lite",
      AT(scheme), .seen_offset = offsetof(train_args, has_scheme), .section = "model",
      .help = "which layers share K and V: mha, gqa, mqa, cla2, yoco, yoco++, fusedkv, "
              "fusedkv-lite, fusedkv-lite-learnable" },
    { .names = { "--from" }, .type = QUIRE_OPT_TEXT, .is_model = true, .unit = "FILE",
      .initial_text = "none",
      AT(from), .help = "GGUF file of a model to start from, which gives the sizes, the tokenizer "
                        "and, without --scheme, the scheme" },
    { .names = { "--distill" }, .type = QUIRE_OPT_REAL, .unit = "SHARE", .min = 0, .max = 1,
      .initial_text = "0.5 with --from and --scheme, else 0", AT(distill),
      .seen_offset = offsetof(train_args, has_distill),
      .help = "share of the divergence from the predictions of --from's model in the "
              "minimised sum; the rest is the loss" },
    { .names = { "--distill-hidden" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0,
      .max = QUIRE_TRAIN_WEIGHT_MAX, .initial = "0", AT(distill_hidden),
      .seen_offset = offsetof(train_args, has_hidden),
      .help = "weight in this sum of the distance from --from's model in the hidden states" },
    { .names = { "--distill-attention" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0,
      .max = QUIRE_TRAIN_WEIGHT_MAX, .initial = "0", AT(distill_attention),
      .seen_offset = offsetof(train_args, has_attention),
      .help = "weight in this sum of the divergence from the attention of --from's model" },
    { .names = { "--predict" }, .type = QUIRE_OPT_CHOICE, .choices = predictions, .initial = "all",
      AT(predict), .help = "a step of training predicts among all tokens of the vocabulary, or "
                           "among those that --data has and some of the others in turn" },
    { .names = { "--n-layer" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TRAIN_LAYERS_MAX, .initial = "8", AT_SIZE(n_layer), .help = "layers" },
    { .names = { "--d-model" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TRAIN_SIZE_MAX, .initial = "128", AT_SIZE(d_model), .help = "width" },
    { .names = { "--n-head" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TRAIN_SIZE_MAX, .initial = "4", AT_SIZE(n_head), .help = "heads" },
    { .names = { "--n-kv-head" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TRAIN_SIZE_MAX, .initial_text = "as many as heads", AT_SIZE(n_kv_head),
      .help = "KV heads" },
    { .names = { "--d-head" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 2,
      .max = QUIRE_TRAIN_SIZE_MAX, .initial = "32", AT_SIZE(d_head), .help = "size of a head" },
    { .names = { "--d-ff" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TRAIN_SIZE_MAX, .initial = "352", AT_SIZE(d_ff),
      .help = "width of feed-forward" },
    { .names = { "--window" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TRAIN_SIZE_MAX, .initial = "0", AT(window),
      .help = "with yoco and yoco++: tokens that layers below the middle one see; 0: all" },
    { .names = { "--rope-base" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 2, .max = 1e9,
      .initial = "10000", AT_SIZE(rope_base), .help = "base of the rotary embedding" },
    { .names = { "--no-qk-norm" }, .type = QUIRE_OPT_FLAG, AT_SIZE(no_qk_norm),
      .help = "no norms of query and key heads" },
    { .names = { "--qkv-bias" }, .type = QUIRE_OPT_FLAG, AT_SIZE(has_qkv_bias),
      .help = "biases of Q, K and V" },
    { .names = { "--shift-heads" }, .type = QUIRE_OPT_FLAG, AT_SIZE(has_shift_heads),
      .help = "heads of the first layer begin by looking at the tokens right before, and those of "
              "the next layer that stores K and V at what followed the same tokens; with "
              "--no-qk-norm" },
    { .names = { "--untied" }, .type = QUIRE_OPT_FLAG, AT_SIZE(is_untied),
      .help = "output weights of their own, not those of the embedding" },
    { .names = { "--gates" }, .type = QUIRE_OPT_CHOICE, .choices = gate_forms, .initial = "half",
      AT_SIZE(gate_form),
      .help = "numbers in a gate: one for both halves of a head, for a head, or for each head" },
    { .names = { "-c", "--ctx" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 8, .max = 8192,
      .initial = "512", AT(n_tokens), .section = "training",
      .help = "context: tokens of a row, into which documents are packed" },
    { .names = { "--rows" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 4096,
      .initial = "8", AT(n_rows), .help = "rows of a batch" },
    { .names = { "--accumulate" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TRAIN_ACCUMULATE_MAX, .initial = "1", AT(n_accumulate),
      .help = "batches of a step" },
    { .names = { "--steps" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1e9,
      .initial = "1000", AT(n_steps), .help = "steps of the run" },
    { .names = { "--warmup" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 1e9,
      .initial = "100", AT(n_warmup), .help = "steps in which the learning rate rises" },
    { .names = { "--rate" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 10,
      .initial = "0.001", AT(rate), .help = "highest learning rate of AdamW" },
    { .names = { "--rate-end" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 10,
      .initial = "0.0001", AT(rate_end), .seen_offset = offsetof(train_args, has_rate_end),
      .help = "learning rate at the end of its cosine; never above --rate" },
    { .names = { "--decay" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 10,
      .initial = "0.1", AT(decay), .help = "weight decay of matrices" },
    { .names = { "--clip" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 1e9,
      .initial = "1", AT(clip), .help = "largest norm of the gradient; 0: any" },
    { .names = { "--masters" }, .type = QUIRE_OPT_CHOICE, .choices = masters, .initial = "f32",
      AT(masters),
      .help = "numbers of the parameters between steps; bf16 is rounded by chance, by the seed" },
    { .names = { "--products" }, .type = QUIRE_OPT_CHOICE, .choices = products, .initial = "f32",
      AT(products),
      .help = "numbers that products of matrices multiply; sums are f32. bf16 is faster on CPUs "
              "with AVX-512 BF16 and slower on others" },
    { .names = { "--rise-max" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 1e9,
      .initial = "3", AT(rise_max),
      .help = "the run stops when the loss is so far above its lowest value since the tasks grew "
              "last; 0: never" },
    { .names = { "--seed" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 4294967295.0,
      .initial = "1", AT(seed), .help = "seed of first weights, tasks and rounding" },
    QUIRE_ROW_THREADS,
    { .names = { "--tokenizer" }, .type = QUIRE_OPT_TEXT, .unit = "NAME", .initial = "bytes",
      .section = "data", AT(tokenizer), .seen_offset = offsetof(train_args, has_tokenizer),
      .help = "bytes; bpe:N, a vocabulary of N tokens that is learned from the text; or the "
              "tokenizer of a GGUF file" },
    { .names = { "--doc-bytes" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES",
      .min = QUIRE_DOC_BYTES_MIN, .max = QUIRE_DOC_BYTES_MAX, .initial = "64KiB", AT(doc_bytes),
      .help = "longer documents are cut at the next line end" },
    { .names = { "--held" }, .type = QUIRE_OPT_REAL, .unit = "SHARE", .min = 0, .max = 0.5,
      .initial = "0.02", AT(held_share), .help = "share of documents for validation" },
    { .names = { "--tasks" }, .type = QUIRE_OPT_REAL, .unit = "SHARE", .min = 0, .max = 1,
      .initial_text = "0; 1 without --data", AT(task_share),
      .help = "share of the tokens that are those of made-up tasks" },
    { .names = { "--task-kinds" }, .type = QUIRE_OPT_TEXT, .unit = "NAMES", AT(tasks),
      .initial = "recall,passkey,copy,instruction", .help = "which tasks, in equal shares" },
    { .names = { "--task-bytes" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES",
      .min = QUIRE_TASK_BYTES_MIN, .max = QUIRE_TASK_BYTES_MAX, .initial = "256", AT(task_bytes),
      .help = "length of the longest task, about" },
    { .names = { "--task-bytes-min" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES",
      .min = QUIRE_TASK_BYTES_MIN, .max = QUIRE_TASK_BYTES_MAX, .initial_text = "as the longest",
      AT(task_bytes_min), .help = "length of the shortest task" },
    { .names = { "--task-bytes-first" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES",
      .min = QUIRE_TASK_BYTES_MIN, .max = QUIRE_TASK_BYTES_MAX, .initial_text = "as the longest",
      AT(task_bytes_first),
      .help = "length of the longest task at first; it doubles up to --task-bytes" },
    { .names = { "--grow-below" }, .type = QUIRE_OPT_REAL, .unit = "NATS", .min = 0, .max = 1e9,
      .initial = "0.1", AT(grow_below),
      .help = "the longest task doubles when the smoothed loss is below" },
    { .names = { "--grow-every" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1e9,
      .initial = "50", AT(grow_every), .help = "steps between such looks at the loss" },
    { .names = { "--log-every" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1e9,
      .initial = "10", AT(every_log), .section = "reports", .help = "steps between lines" },
    { .names = { "--held-every" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1e9,
      .initial = "200", AT(every_held), .help = "steps between validations" },
    { .names = { "--held-batches" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1e9,
      .initial = "20", AT(n_held), .help = "batches of a validation, at most" },
    { .names = { "--save-every" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1e9,
      .initial = "200", AT(every_save), .help = "steps between checkpoints" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, AT(common.is_json),
      .help = "lines on stdout as JSON objects" },
};
/* clang-format on */

/* Options that the file of --from answers, or that need it. */
int quire_train_args_check(const void *opaque, quire_error *err)
{
    const train_args *a = opaque;

    if (a->from == NULL && (a->has_distill || a->has_hidden || a->has_attention)) {
        return quire_error_set(err, QUIRE_INVAL, "%s needs --from, the model to learn from",
                               a->has_distill  ? "--distill"
                               : a->has_hidden ? "--distill-hidden"
                                               : "--distill-attention");
    }
    if (a->predict == QUIRE_PREDICT_SEEN && (a->data == NULL || a->task_share > 0)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--predict seen needs --data and no --tasks: made-up tasks have any "
                               "token");
    }
    if (a->from != NULL && !a->has_scheme && a->window > 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--window with --from needs --scheme yoco or yoco++: without, the "
                               "file's windows stay");
    }
    if (a->from != NULL && (a->has_sizes || a->has_tokenizer)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--from brings the model's sizes, norms and tokenizer along: leave "
                               "out %s",
                               a->has_tokenizer ? "--tokenizer"
                                                : "--n-layer to --untied, and --gates");
    }
    return QUIRE_OK;
}
