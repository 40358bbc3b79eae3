/* cmd_train.c - quire train: trains a small model, and writes it as a GGUF file.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/talk.h"
#include "cli/settings/args.h"
#include "cli/settings/settings.h"
#include "cli/training/train_export.h"
#include "cli/training/train_from.h"
#include "cli/training/train_tokens.h"

#include "base/check.h"
#include "base/cpu.h"
#include "train/text_docs.h"
#include "train/trainer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define HELD_TASKS 64u /* tasks of a validation without text */
#define DISTILL    0.5 /* share of the divergence when a model is cut */

typedef struct train_args {
    quire_common_args common; /* threads, json */
    const char *config;
    const char *data;
    const char *checkpoint;
    const char *out;
    const char *scheme;
    const char *tokenizer;
    const char *from;
    bool has_scheme, has_tokenizer, has_distill, has_hidden;
    bool has_sizes; /* a size that --from sets was given */
    double distill, distill_hidden;
    int64_t n_layer, d_model, n_head, n_kv_head, d_head, d_ff;
    int64_t window;
    double rope_base;
    bool no_qk_norm, has_qkv_bias, is_untied, has_shift_heads;
    int gate_form, type, masters;
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

static const char *const types[] = { "f32", "f16", "q8_0", NULL }; /* quire_gguf_out_type */
static const char *const masters[] = { "f32", "bf16", NULL };      /* quire_train_masters */
static const char *const gate_forms[] = { "half", "full", "heads", NULL };

/* clang-format off */
#define AT(field) .offset = offsetof(train_args, field)
#define AT_SIZE(field) AT(field), .seen_offset = offsetof(train_args, has_sizes)
static const quire_opt options[] = {
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
      .max = QUIRE_TRAIN_HIDDEN_MAX, .initial = "0", AT(distill_hidden),
      .seen_offset = offsetof(train_args, has_hidden),
      .help = "weight in this sum of the distance from --from's model in the hidden states" },
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
      .help = "the lowest two layers begin by comparing the tokens right before; with "
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
      .initial = "0.0001", AT(rate_end), .help = "learning rate at the end of its cosine" },
    { .names = { "--decay" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 10,
      .initial = "0.1", AT(decay), .help = "weight decay of matrices" },
    { .names = { "--clip" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 1e9,
      .initial = "1", AT(clip), .help = "largest norm of the gradient; 0: any" },
    { .names = { "--masters" }, .type = QUIRE_OPT_CHOICE, .choices = masters, .initial = "f32",
      AT(masters),
      .help = "numbers of the parameters between steps; bf16 is rounded by chance, by the seed" },
    { .names = { "--rise-max" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 1e9,
      .initial = "3", AT(rise_max),
      .help = "the run stops when the loss is so far above its lowest value; 0: never" },
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
      .help = "share of documents that are made-up tasks" },
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

typedef struct train_run {
    const train_args *args;
    quire_train_plan plan;
    quire_train_from from; /* without --from all zeros */
    float *start;          /* first weights; NULL: random ones */
    quire_train_tokens tokens;
    quire_text_docs_options docs_options;
    quire_trainer *trainer;
    quire_text_docs *docs;
    quire_text_docs *held;
    quire_packer packer;
    double product_rate; /* FLOP/s */
    double start_s;
    uint64_t start_tokens; /* of the run when this process began */
} train_run;

static volatile sig_atomic_t is_terminated;

static void on_terminate(int signal_number)
{
    (void)signal_number;
    is_terminated = 1;
}

static bool must_stop(void)
{
    return is_terminated != 0 || quire_interrupt_seen();
}

/* ---- set-up ---- */

/* A bit for each task of a list of names. */
static int tasks_of(const char *names, unsigned *tasks, quire_error *err)
{
    const char *const *known = quire_task_names();

    *tasks = 0;
    for (const char *at = names; *at != '\0';) {
        size_t n = strcspn(at, ",");
        uint32_t i = 0;

        while (i < QUIRE_TASK_COUNT && (strlen(known[i]) != n || strncmp(known[i], at, n) != 0)) {
            i++;
        }
        if (i == QUIRE_TASK_COUNT) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "--task-kinds: no task \"%.*s\"; there are recall, passkey, "
                                   "copy, instruction",
                                   (int)(n < 80 ? n : 80), at);
        }
        *tasks |= 1u << i;
        at += n + (at[n] == ',');
    }
    return QUIRE_OK;
}

/* Which documents there are, and their tokens. */
static int set_up_data(train_run *r, quire_error *err)
{
    const train_args *a = r->args;
    quire_text_docs_options *o = &r->docs_options;

    *o = (quire_text_docs_options){ .path = a->data,
                                    .doc_bytes_max = a->doc_bytes,
                                    .held_share = a->data != NULL ? a->held_share : 0,
                                    .task_share = a->data != NULL ? a->task_share : 1,
                                    .task_bytes = a->task_bytes,
                                    .task_bytes_min = a->task_bytes_min,
                                    .task_bytes_first = a->task_bytes_first,
                                    .n_tasks = HELD_TASKS,
                                    .seed = (uint64_t)a->seed };
    QUIRE_TRY(tasks_of(a->tasks, &o->tasks, err));
    QUIRE_TRY(quire_train_tokens_open(&r->tokens, a->from != NULL ? a->from : a->tokenizer,
                                      a->checkpoint, o, err));
    o->tokenizer = &r->tokens.by;
    return QUIRE_OK;
}

static int open_data(train_run *r, quire_error *err)
{
    quire_text_docs_options o = r->docs_options;

    QUIRE_TRY(quire_text_docs_open(&r->docs, &o, err));
    quire_packer_init(&r->packer, quire_text_docs_reader(r->docs));
    o.is_held = true;
    o.task_bytes_first = 0; /* the validation is of all lengths from the beginning */
    o.task_share = r->args->data != NULL ? 0 : 1;
    return quire_text_docs_open(&r->held, &o, err);
}

/* The model by its options. */
static int start_fresh(train_run *r, quire_error *err)
{
    const train_args *a = r->args;

    r->plan.shape = (quire_train_shape){
        .n_vocab = r->tokens.by.n_vocab,
        .n_layer = (uint32_t)a->n_layer,
        .d_model = (uint32_t)a->d_model,
        .n_head = (uint32_t)a->n_head,
        .n_kv_head = (uint32_t)(a->n_kv_head > 0 ? a->n_kv_head : a->n_head),
        .d_head = (uint32_t)a->d_head,
        .d_ff = (uint32_t)a->d_ff,
        .rope_base = a->rope_base,
        .norm_epsilon = 1e-5,
        .has_qk_norm = !a->no_qk_norm,
        .has_qkv_bias = a->has_qkv_bias,
        .is_tied = !a->is_untied,
        .gate_form = (quire_gate_form)a->gate_form,
    };
    QUIRE_TRY(quire_train_scheme_set(&r->plan.shape, a->scheme, err));
    r->plan.has_shift_heads = a->has_shift_heads;
    return a->window > 0 ? quire_train_window_set(&r->plan.shape, (uint32_t)a->window, err)
                         : QUIRE_OK;
}

/* The file's model, cut by the scheme, with the file's model as it was for its teacher. */
static int start_from(train_run *r, quire_error *err)
{
    const train_args *a = r->args;
    quire_train_plan *p = &r->plan;

    QUIRE_TRY(quire_train_from_open(&r->from, a->from, err));
    p->shape = r->from.shape;
    if (a->has_scheme) {
        QUIRE_TRY(quire_train_scheme_set(&p->shape, a->scheme, err));
    }
    if (a->window > 0) {
        QUIRE_TRY(quire_train_window_set(&p->shape, (uint32_t)a->window, err));
    }
    QUIRE_TRY(quire_train_from_start(&r->from, &p->shape, p->seed, &r->start, err));
    p->start = r->start;
    p->start_identity = r->from.identity;
    p->teacher = (quire_train_teacher){
        .shape = &r->from.shape,
        .parameters = r->from.parameters,
        .share = a->has_distill  ? a->distill
                 : a->has_scheme ? DISTILL
                                 : 0,
        .hidden = a->distill_hidden,
    };
    return QUIRE_OK;
}

static int make_plan(train_run *r, quire_error *err)
{
    const train_args *a = r->args;

    r->plan = (quire_train_plan){
        .n_rows = (uint32_t)a->n_rows,
        .n_tokens = (uint32_t)a->n_tokens,
        .n_accumulate = (uint32_t)a->n_accumulate,
        .n_threads = a->common.n_threads > 0 ? (uint32_t)a->common.n_threads : quire_cpus_usable(),
        .n_steps = (uint64_t)a->n_steps,
        .n_warmup = (uint64_t)a->n_warmup,
        .rate = a->rate,
        .rate_end = a->rate_end < a->rate ? a->rate_end : a->rate,
        .beta1 = QUIRE_TRAIN_BETA1,
        .beta2 = QUIRE_TRAIN_BETA2,
        .epsilon = QUIRE_TRAIN_EPSILON,
        .decay = a->decay,
        .clip = a->clip,
        .masters = (quire_train_masters)a->masters,
        .rise_max = a->rise_max,
        .level_below = a->task_bytes_first > 0 ? a->grow_below : 0,
        .level_every = (uint64_t)a->grow_every,
        .seed = (uint64_t)a->seed,
        .data_identity = quire_text_docs_identity(&r->docs_options),
        .tokenizer_identity = r->tokens.by.identity,
    };
    return a->from != NULL ? start_from(r, err) : start_fresh(r, err);
}

static int resume(train_run *r, quire_error *err)
{
    int rc = quire_trainer_load(r->trainer, &r->packer, r->args->checkpoint, err);

    if (rc == QUIRE_NOTFOUND) {
        return QUIRE_OK;
    }
    QUIRE_TRY(rc);
    quire_text_docs_level_set(r->docs, quire_trainer_level(r->trainer));
    quire_say("going on from step %llu of %s", (unsigned long long)quire_trainer_steps(r->trainer),
              r->args->checkpoint);
    return QUIRE_OK;
}

/* ---- reports ---- */

static uint64_t step_tokens(const quire_train_plan *p)
{
    return (uint64_t)p->n_accumulate * p->n_rows * p->n_tokens;
}

static void report_step(train_run *r, const quire_train_report *s)
{
    double seconds = quire_now_s() - r->start_s;
    double rate = quire_rate((double)(s->n_tokens - r->start_tokens), seconds);
    double share =
        r->product_rate > 0 ? rate * quire_train_flop_per_token(r->trainer) / r->product_rate : 0;
    double tokens_left = (double)(r->plan.n_steps - s->step) * (double)step_tokens(&r->plan);
    double left_s = rate > 0 ? tokens_left / rate : 0;
    json_int_t task_bytes = (json_int_t)quire_text_docs_task_bytes(r->docs);

    if (r->args->common.is_json) {
        json_t *line =
            json_pack("{s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "step", (json_int_t)s->step,
                      "loss", s->loss, "gradient_norm", s->gradient_norm, "rate", s->rate, "tokens",
                      (json_int_t)s->n_tokens, "tokens_per_s", rate, "product_share", share,
                      "left_s", left_s);

        if (quire_train_is_taught(&r->plan.teacher)) {
            (void)json_object_set_new(line, "divergence", json_real(s->divergence));
        }
        if (r->plan.teacher.hidden > 0) {
            (void)json_object_set_new(line, "hidden", json_real(s->hidden));
        }
        if (r->args->task_bytes_first > 0) {
            (void)json_object_set_new(line, "task_bytes", json_integer(task_bytes));
        }
        (void)quire_stdout_json_line(line);
    } else {
        printf("step %llu of %llu   loss %.4f", (unsigned long long)s->step,
               (unsigned long long)r->plan.n_steps, s->loss);
        if (quire_train_is_taught(&r->plan.teacher)) {
            printf("   divergence %.4f", s->divergence);
        }
        if (r->plan.teacher.hidden > 0) {
            printf("   hidden %.4f", s->hidden);
        }
        if (r->args->task_bytes_first > 0) {
            printf("   tasks to %lld bytes", (long long)task_bytes);
        }
        printf("   %.0f tokens/s   %.0f %% of sgemm   %.0f s left\n", rate, 100 * share, left_s);
        (void)fflush(stdout);
    }
}

static int report_held(train_run *r, quire_error *err)
{
    static const uint64_t beginning[QUIRE_DOC_PLACE];
    const quire_doc_reader *reader = quire_text_docs_reader(r->held);
    uint64_t step = quire_trainer_steps(r->trainer), n_targets;
    quire_packer packer;
    double loss;

    QUIRE_TRY(reader->seek(reader->ctx, beginning, err));
    quire_packer_init(&packer, reader);
    QUIRE_TRY(quire_trainer_evaluate(r->trainer, &packer, (uint64_t)r->args->n_held, &loss,
                                     &n_targets, err));
    if (n_targets == 0) {
        return QUIRE_OK;
    }
    if (r->args->common.is_json) {
        (void)quire_stdout_json_line(json_pack("{s:I, s:f, s:I}", "step", (json_int_t)step,
                                               "held_loss", loss, "held_tokens",
                                               (json_int_t)n_targets));
    } else {
        printf("step %llu   validation loss %.4f (%llu tokens)\n", (unsigned long long)step, loss,
               (unsigned long long)n_targets);
    }
    return QUIRE_OK;
}

/* ---- the run ---- */

static int save(train_run *r, quire_error *err)
{
    return quire_trainer_save(r->trainer, &r->packer, r->args->checkpoint, err);
}

static int train(train_run *r, quire_error *err)
{
    const train_args *a = r->args;
    uint64_t step = quire_trainer_steps(r->trainer);

    r->start_s = quire_now_s();
    r->start_tokens = step * step_tokens(&r->plan);
    while (step < r->plan.n_steps && !must_stop()) {
        quire_train_report report;

        QUIRE_TRY(quire_trainer_step(r->trainer, &r->packer, &report, err));
        step = report.step;
        quire_text_docs_level_set(r->docs, quire_trainer_level(r->trainer));
        if (step % (uint64_t)a->every_log == 0 || step == r->plan.n_steps) {
            report_step(r, &report);
        }
        if (step % (uint64_t)a->every_held == 0 && step < r->plan.n_steps) {
            QUIRE_TRY(report_held(r, err));
        }
        if (step % (uint64_t)a->every_save == 0) {
            QUIRE_TRY(save(r, err));
        }
    }
    QUIRE_TRY(save(r, err));
    return must_stop() ? QUIRE_CANCELED : report_held(r, err);
}

static int write_model(const train_run *r, quire_error *err)
{
    const quire_train_export model = { .shape = &r->plan.shape,
                                       .layout = quire_trainer_layout(r->trainer),
                                       .parameters = quire_trainer_parameters(r->trainer),
                                       .vocab = r->tokens.vocab,
                                       .n_ctx = r->plan.n_tokens > r->from.n_ctx ? r->plan.n_tokens
                                                                                 : r->from.n_ctx,
                                       .type = (quire_gguf_out_type)r->args->type };

    return r->args->out != NULL ? quire_train_export_write(&model, r->args->out, err) : QUIRE_OK;
}

static int run_all(train_run *r, quire_error *err)
{
    struct sigaction action = { .sa_handler = on_terminate };

    quire_interrupt_catch();
    QUIRE_TRY(set_up_data(r, err));
    QUIRE_TRY(make_plan(r, err));
    QUIRE_TRY(quire_trainer_create(&r->trainer, &r->plan, err));
    QUIRE_TRY(open_data(r, err));
    QUIRE_TRY(resume(r, err));
    (void)sigaction(SIGTERM, &action, NULL);
    r->product_rate = quire_trainer_product_rate(r->trainer);
    quire_say("%zu parameters, %s, sgemm %.0f GFLOP/s",
              quire_trainer_layout(r->trainer)->n_parameters, r->plan.shape.scheme,
              r->product_rate * 1e-9);
    QUIRE_TRY(train(r, err));
    return write_model(r, err);
}

static int run(void *opaque)
{
    train_args *args = opaque;
    train_run r = { .args = args };
    quire_error err = QUIRE_ERROR_INIT;
    int rc = run_all(&r, &err);
    int exit_status = QUIRE_EXIT_OK;

    if (rc == QUIRE_CANCELED && r.trainer == NULL) {
        quire_say("%s", err.message);
    } else if (rc == QUIRE_CANCELED) {
        quire_say("stopped at step %llu; the same command goes on from %s",
                  (unsigned long long)quire_trainer_steps(r.trainer), args->checkpoint);
    } else if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_trainer_destroy(r.trainer);
    quire_text_docs_close(r.docs);
    quire_text_docs_close(r.held);
    quire_train_tokens_close(&r.tokens);
    quire_train_from_close(&r.from);
    free(r.start);
    quire_settings_fini(&args->settings);
    return exit_status;
}

/* Options that the file of --from answers, or that need it. */
static int check(const void *opaque, quire_error *err)
{
    const train_args *a = opaque;

    if (a->from == NULL && (a->has_distill || a->has_hidden)) {
        return quire_error_set(err, QUIRE_INVAL, "%s needs --from, the model to learn from",
                               a->has_distill ? "--distill" : "--distill-hidden");
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

static int parse(int argc, char *const *argv, void *opaque, quire_error *err)
{
    train_args *args = opaque;

    return quire_settings_read(&args->settings, &quire_command_train, &quire_command_serve, argc,
                               argv, args, err);
}

const quire_command quire_command_train = {
    .name = "train",
    .usage = "[--config] FILE [options]",
    .summary = "Trains a small model whose layers may share K and V.",
    .notes = "All options can be given in the YAML file (--n-layer as n_layer).\n"
             "Ctrl-C and SIGTERM write a checkpoint; the same command goes on from it, with the "
             "same bits.\n\n"
             "example: quire train --data texts/ --scheme fusedkv-lite --checkpoint run.checkpoint "
             "-o model.gguf",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--config",
    .args_bytes = sizeof(train_args),
    .has_settings = true,
    .parse = parse,
    .check = check,
    .run = run,
};
