/* cmd_train.c - quire train: trains a small model, and writes it as a GGUF file.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/new_file.h"
#include "cli/commands/talk.h"
#include "cli/settings/args.h"
#include "cli/settings/settings.h"
#include "cli/training/train_args.h"
#include "cli/training/train_export.h"
#include "cli/training/train_from.h"
#include "cli/training/train_lock.h"
#include "cli/training/train_places.h"
#include "cli/training/train_seen.h"
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

typedef struct train_run {
    const train_args *args;
    quire_train_lock lock;
    quire_train_plan plan;
    quire_train_from from; /* without --from all zeros */
    float *start;          /* first weights; NULL: random ones */
    quire_train_tokens tokens;
    quire_train_seen seen; /* without --predict seen all zeros */
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

/* Tokens to predict among. */
static int set_up_choices(train_run *r, quire_error *err)
{
    if (r->args->predict == QUIRE_PREDICT_SEEN) {
        QUIRE_TRY(quire_train_seen_read(&r->seen, &r->docs_options, err));
        r->plan.choices = r->seen.tokens;
        r->plan.n_choices = r->seen.n;
        r->plan.n_turns = QUIRE_TRAIN_TURNS;
        quire_say("the data has %u of %u tokens", r->seen.n, r->tokens.by.n_vocab);
    }
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
        .attention = a->distill_attention,
    };
    return QUIRE_OK;
}

/* The learning rate does not rise along its cosine. */
static double rate_end(const train_args *a)
{
    if (a->rate_end > a->rate && a->has_rate_end) {
        quire_say("--rate-end %g is above --rate %g: the learning rate stays at %g", a->rate_end,
                  a->rate, a->rate);
    }
    return a->rate_end < a->rate ? a->rate_end : a->rate;
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
        .rate_end = rate_end(a),
        .beta1 = QUIRE_TRAIN_BETA1,
        .beta2 = QUIRE_TRAIN_BETA2,
        .epsilon = QUIRE_TRAIN_EPSILON,
        .decay = a->decay,
        .clip = a->clip,
        .masters = (quire_train_masters)a->masters,
        .products = (quire_train_products)a->products,
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
    if (quire_trainer_steps(r->trainer) >= r->plan.n_steps) {
        quire_say("%s has all steps already (%llu, --steps %llu): nothing is trained",
                  r->args->checkpoint, (unsigned long long)quire_trainer_steps(r->trainer),
                  (unsigned long long)r->plan.n_steps);
    } else {
        quire_say("going on from step %llu of %s",
                  (unsigned long long)quire_trainer_steps(r->trainer), r->args->checkpoint);
    }
    return QUIRE_OK;
}

/* ---- reports ---- */

static const char *products_name(const train_run *r)
{
    return r->plan.products == QUIRE_PRODUCTS_BF16 ? "bf16 products" : "sgemm";
}

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
        if (r->plan.teacher.attention > 0) {
            (void)json_object_set_new(line, "attention", json_real(s->attention));
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
        if (r->plan.teacher.attention > 0) {
            printf("   attention %.4f", s->attention);
        }
        if (r->args->task_bytes_first > 0) {
            printf("   tasks to %lld bytes", (long long)task_bytes);
        }
        printf("   %.0f tokens/s   %.0f %% of %s   %.0f s left\n", rate, 100 * share,
               products_name(r), left_s);
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

/* After a step that was not taken, or text that could not be read: save the state at a place,
 * unless the checkpoint has it, and say so behind the reason. */
static int keep_last_good(train_run *r, const uint64_t place[QUIRE_PACK_PLACE], uint64_t saved,
                          int rc, quire_error *err)
{
    unsigned long long step = quire_trainer_steps(r->trainer);
    const char *path = r->args->checkpoint;
    quire_error reason = *err, failure = QUIRE_ERROR_INIT;

    if (step == 0) {
        return rc;
    }
    if (step > saved && quire_trainer_save_at(r->trainer, place, path, &failure) < 0) {
        return quire_error_set(err, rc, "%s. The state after step %llu is lost: %s", reason.message,
                               step, failure.message);
    }
    return quire_error_set(err, rc, "%s. %s has the state after step %llu", reason.message, path,
                           step);
}

/* Lines, a validation and a checkpoint, where they are due after a step. */
static int after_step(train_run *r, const quire_train_report *report, uint64_t *saved,
                      quire_error *err)
{
    const train_args *a = r->args;
    const uint64_t step = report->step;

    if (step % (uint64_t)a->every_log == 0 || step == r->plan.n_steps) {
        report_step(r, report);
    }
    if (step % (uint64_t)a->every_held == 0 && step < r->plan.n_steps) {
        const int rc = report_held(r, err);

        if (rc < 0) {
            uint64_t place[QUIRE_PACK_PLACE];

            quire_packer_tell(&r->packer, place);
            return keep_last_good(r, place, *saved, rc, err);
        }
    }
    if (step % (uint64_t)a->every_save == 0) {
        QUIRE_TRY(save(r, err));
        *saved = step;
    }
    return QUIRE_OK;
}

static int train(train_run *r, quire_error *err)
{
    uint64_t step = quire_trainer_steps(r->trainer), saved = step;

    r->start_s = quire_now_s();
    r->start_tokens = step * step_tokens(&r->plan);
    while (step < r->plan.n_steps && !must_stop()) {
        uint64_t place[QUIRE_PACK_PLACE];
        quire_train_report report;
        int rc;

        quire_packer_tell(&r->packer, place);
        rc = quire_trainer_step(r->trainer, &r->packer, &report, err);
        if (rc == QUIRE_NOTFOUND && step == 0 && r->args->data != NULL) {
            return quire_error_set(err, rc, "%s has too little text to train on", r->args->data);
        }
        if (rc < 0) {
            return keep_last_good(r, place, saved, rc, err);
        }
        step = report.step;
        quire_text_docs_level_set(r->docs, quire_trainer_level(r->trainer));
        QUIRE_TRY(after_step(r, &report, &saved, err));
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

/* Files that cannot be written, or lie in each other's way, are named before the run, not at its
 * first checkpoint or its end. */
static int check_files(const train_args *a, quire_error *err)
{
    QUIRE_TRY(quire_new_file_check(a->checkpoint, err));
    if (a->out != NULL) {
        QUIRE_TRY(quire_new_file_check(a->out, err));
    }
    return quire_train_places_check(a, err);
}

static int run_all(train_run *r, quire_error *err)
{
    struct sigaction action = { .sa_handler = on_terminate };

    QUIRE_TRY(check_files(r->args, err));
    QUIRE_TRY(quire_train_lock_take(&r->lock, r->args->checkpoint, err));
    quire_interrupt_catch();
    QUIRE_TRY(set_up_data(r, err));
    QUIRE_TRY(make_plan(r, err));
    QUIRE_TRY(set_up_choices(r, err));
    QUIRE_TRY(quire_trainer_create(&r->trainer, &r->plan, err));
    QUIRE_TRY(open_data(r, err));
    QUIRE_TRY(resume(r, err));
    (void)sigaction(SIGTERM, &action, NULL);
    r->product_rate = quire_trainer_product_rate(r->trainer);
    quire_say("%zu parameters, %s, %s %.0f GFLOP/s", quire_trainer_layout(r->trainer)->n_parameters,
              r->plan.shape.scheme, products_name(r), r->product_rate * 1e-9);
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
    quire_train_seen_close(&r.seen);
    quire_train_from_close(&r.from);
    quire_train_lock_drop(&r.lock);
    free(r.start);
    quire_settings_fini(&args->settings);
    return exit_status;
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
    .options = quire_train_options,
    .n_options = QUIRE_TRAIN_OPTIONS,
    .positional = "--config",
    .args_bytes = sizeof(train_args),
    .has_settings = true,
    .parse = parse,
    .check = quire_train_args_check,
    .run = run,
};
