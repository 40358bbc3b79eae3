/* test_train_run.c - checkpoints and runs: a run that was killed and resumed has the bits of one
 * that was not; damaged and foreign checkpoints; teachers; runs that diverge.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "run_kit.h"
#include "seed.h"
#include "train/trainer.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/quire-train-XXXXXX";
static char path[128];

/* Counting is learned: every next token is certain. */
static void test_learns(void **state)
{
    static const char *const schemes[] = { "mha", "fusedkv", "fusedkv-lite" };

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        quire_train_plan plan = small_plan(schemes[i]);
        quire_train_report report;
        double loss;
        uint64_t n_targets;
        run r;

        run_open(&r, &plan);
        report = run_steps(&r, 1);
        assert_true(fabs(report.loss - log(VOCAB)) < 0.1);
        report = run_steps(&r, 39);
        assert_true(report.loss < 0.2);
        assert_int_equal(report.step, 40);
        assert_int_equal(report.n_tokens, 40 * 2 * TOKENS);
        assert_int_equal(quire_trainer_evaluate(r.trainer, &r.packer, 2, &loss, &n_targets, NULL),
                         QUIRE_OK);
        assert_true(loss < 0.2 && n_targets > TOKENS && n_targets <= 2 * TOKENS);
        quire_trainer_destroy(r.trainer);
    }
}

/* Batches inside of long questions have no targets and are passed over; data without any target end
 * the run. */
static void test_long_questions(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_train_report report;
    quire_error err = QUIRE_ERROR_INIT;
    run r;

    (void)state;
    run_open(&r, &plan);
    r.docs.n_given = DOC_MAX - 1;
    report = run_steps(&r, 3);
    assert_true(report.loss > 0);
    assert_true(r.docs.at > 40);
    r.docs.n_given = DOC_MAX + 1;
    for (uint32_t i = 0; i < 2; i++) { /* past the document at hand */
        packed b;

        fill(&r.packer, &b);
    }
    assert_int_equal(quire_trainer_step(r.trainer, &r.packer, &report, &err), QUIRE_NOTFOUND);
    assert_non_null(strstr(err.message, "no more tokens to predict"));
    quire_trainer_destroy(r.trainer);
}

/* Saved and resumed by a trainer with another number of threads: the bits of one run. */
static void test_resume_bits(void **state)
{
    quire_train_plan plan = small_plan("fusedkv");
    run whole, half, rest;

    (void)state;
    run_open(&whole, &plan);
    run_open(&half, &plan);
    (void)run_steps(&whole, 9);
    (void)run_steps(&half, 5);
    assert_int_equal(quire_trainer_save(half.trainer, &half.packer, path, NULL), QUIRE_OK);
    plan.n_threads = 1;
    run_open(&rest, &plan);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    assert_int_equal(quire_trainer_steps(rest.trainer), 5);
    assert_memory_not_equal(quire_trainer_parameters(rest.trainer),
                            quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    (void)run_steps(&rest, 4);
    assert_memory_equal(quire_trainer_parameters(rest.trainer),
                        quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    quire_trainer_destroy(whole.trainer);
    quire_trainer_destroy(half.trainer);
    quire_trainer_destroy(rest.trainer);
}

/* A student of a trained teacher, stopped and resumed: the bits of one run. */
static void check_taught(double share, double hidden, double attention)
{
    quire_train_plan teacher = small_plan("mha"), plan = small_plan("fusedkv-lite");
    quire_train_report report, first;
    run of_teacher, whole, half, rest;

    run_open(&of_teacher, &teacher);
    (void)run_steps(&of_teacher, 20);
    plan.teacher =
        (quire_train_teacher){ &teacher.shape, quire_trainer_parameters(of_teacher.trainer), share,
                               hidden, attention };
    plan.start_identity = 5;
    run_open(&whole, &plan);
    run_open(&half, &plan);
    first = run_steps(&whole, 1);
    assert_true(first.divergence > 0.05);
    assert_true(hidden > 0 ? first.hidden > 0.1 : first.hidden == 0);
    assert_true(attention > 0 ? first.attention > 0.1 : first.attention == 0);
    (void)run_steps(&whole, 6);
    (void)run_steps(&half, 3);
    assert_int_equal(quire_trainer_save(half.trainer, &half.packer, path, NULL), QUIRE_OK);
    plan.n_threads = 1;
    run_open(&rest, &plan);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    (void)run_steps(&rest, 4);
    assert_memory_equal(quire_trainer_parameters(rest.trainer),
                        quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    /* The teacher's predictions are learned, its hidden states and its attention. */
    report = run_steps(&whole, 33);
    assert_true(report.divergence < 0.3);
    assert_true(hidden == 0 || report.hidden < 0.5 * first.hidden);
    assert_true(attention == 0 || report.attention < 0.5 * first.attention);
    quire_trainer_destroy(whole.trainer);
    quire_trainer_destroy(half.trainer);
    quire_trainer_destroy(rest.trainer);
    quire_trainer_destroy(of_teacher.trainer);
}

static void test_taught_bits(void **state)
{
    (void)state;
    check_taught(0.7, 0, 0);
    check_taught(0.7, 1, 0);
    check_taught(0, 1, 0);
    check_taught(0.7, 0, 100);
    check_taught(0, 1, 100);
}

/* A run that predicts among tokens does not read the list after its creation, is resumed by one
 * with other threads, and counts the arithmetic of these tokens alone. With all tokens it has the
 * bits of a run without a list. */
static void test_choices(void **state)
{
    int32_t choices[VOCAB];
    quire_train_plan plan = small_plan("fusedkv"), among = plan;
    run plain, whole, half, rest;

    (void)state;
    for (int32_t i = 0; i < (int32_t)VOCAB; i++) {
        choices[i] = i;
    }
    among.choices = choices;
    among.n_choices = VOCAB;
    run_open(&plain, &plan);
    run_open(&whole, &among);
    among.n_choices = VOCAB - 2;
    run_open(&half, &among);
    assert_true(quire_train_flop_per_token(whole.trainer) ==
                quire_train_flop_per_token(plain.trainer));
    assert_true(quire_train_flop_per_token(whole.trainer) -
                    quire_train_flop_per_token(half.trainer) ==
                6.0 * 2 * 24);
    among.n_threads = 1;
    run_open(&rest, &among);
    memset(choices, 0, sizeof(choices));
    (void)run_steps(&plain, 5);
    (void)run_steps(&whole, 5);
    assert_memory_equal(quire_trainer_parameters(plain.trainer),
                        quire_trainer_parameters(whole.trainer), parameters_bytes(&plain));
    (void)run_steps(&half, 3);
    assert_int_equal(quire_trainer_save(half.trainer, &half.packer, path, NULL), QUIRE_OK);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    (void)run_steps(&half, 2);
    (void)run_steps(&rest, 2);
    assert_memory_equal(quire_trainer_parameters(half.trainer),
                        quire_trainer_parameters(rest.trainer), parameters_bytes(&half));
    assert_memory_not_equal(quire_trainer_parameters(half.trainer),
                            quire_trainer_parameters(whole.trainer), parameters_bytes(&half));
    quire_trainer_destroy(plain.trainer);
    quire_trainer_destroy(whole.trainer);
    quire_trainer_destroy(half.trainer);
    quire_trainer_destroy(rest.trainer);
}

/* First weights that are given are those of the first step. */
static void test_start(void **state)
{
    quire_train_plan plan = small_plan("mha");
    run first, second;

    (void)state;
    run_open(&first, &plan);
    (void)run_steps(&first, 10);
    plan.start = quire_trainer_parameters(first.trainer);
    run_open(&second, &plan);
    assert_memory_equal(plan.start, quire_trainer_parameters(second.trainer),
                        parameters_bytes(&first));
    quire_trainer_destroy(first.trainer);
    quire_trainer_destroy(second.trainer);
}

/* The child saves after each step and says so, until it is killed. */
static void child_run(const quire_train_plan *plan, int said)
{
    run r;

    run_open(&r, plan);
    for (;;) {
        (void)run_steps(&r, 1);
        if (quire_trainer_save(r.trainer, &r.packer, path, NULL) < 0 || write(said, "", 1) != 1) {
            _exit(1);
        }
    }
}

static void test_kill(void **state)
{
    quire_train_plan plan = small_plan("fusedkv-lite-learnable");
    uint64_t n_steps;
    run whole, rest;
    int said[2];
    char byte;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(said), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        child_run(&plan, said[1]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(read(said[0], &byte, 1), 1);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)close(said[0]);
    (void)close(said[1]);
    run_open(&rest, &plan);
    assert_int_equal(quire_trainer_load(rest.trainer, &rest.packer, path, NULL), QUIRE_OK);
    assert_true(quire_trainer_steps(rest.trainer) >= 4);
    (void)run_steps(&rest, 3);
    n_steps = quire_trainer_steps(rest.trainer);
    run_open(&whole, &plan);
    (void)run_steps(&whole, (uint32_t)n_steps);
    assert_memory_equal(quire_trainer_parameters(rest.trainer),
                        quire_trainer_parameters(whole.trainer), parameters_bytes(&whole));
    quire_trainer_destroy(whole.trainer);
    quire_trainer_destroy(rest.trainer);
}

static void refuse_load(run *r, int status, const char *text)
{
    quire_error err = QUIRE_ERROR_INIT;

    assert_int_equal(quire_trainer_load(r->trainer, &r->packer, path, &err), status);
    if (strstr(err.message, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
    }
}

/* A changed byte at each of some places, a cut and an added byte. */
static void test_damaged(void **state)
{
    static const long places[] = { 50, 90, 155, 260 };
    quire_train_plan plan = small_plan("mha");
    struct stat status;
    run r;

    (void)state;
    run_open(&r, &plan);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        FILE *f;
        int byte;

        assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
        f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, places[i], SEEK_SET), 0);
        byte = fgetc(f);
        assert_int_equal(fseek(f, places[i], SEEK_SET), 0);
        assert_int_equal(fputc(byte ^ 1, f), byte ^ 1);
        assert_int_equal(fclose(f), 0);
        refuse_load(&r, i == 0 ? QUIRE_INVAL : QUIRE_CORRUPT,
                    i == 0 ? "belongs to a run with another batch" : "checksum");
    }
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(truncate(path, status.st_size + 1), 0);
    refuse_load(&r, QUIRE_CORRUPT, "checksum");
    assert_int_equal(truncate(path, status.st_size - 1), 0);
    refuse_load(&r, QUIRE_CORRUPT, "is cut short");
    assert_int_equal(truncate(path, 50), 0);
    refuse_load(&r, QUIRE_CORRUPT, "is cut short");
    assert_int_equal(unlink(path), 0);
    refuse_load(&r, QUIRE_NOTFOUND, "cannot read");
    quire_trainer_destroy(r.trainer);
}

/* Runs with and without a weight of hidden states or of attention, and with two of them. */
static void check_foreign(size_t weight)
{
    quire_train_plan plan = small_plan("fusedkv-lite"), teacher = small_plan("mha");
    double *at = (double *)((char *)&plan.teacher + weight);
    run of_teacher, r, other;

    run_open(&of_teacher, &teacher);
    plan.teacher.shape = &teacher.shape;
    plan.teacher.parameters = quire_trainer_parameters(of_teacher.trainer);
    for (uint32_t i = 0; i < 2; i++) {
        *at = i;
        run_open(&r, &plan);
        assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
        assert_int_equal(quire_trainer_load(r.trainer, &r.packer, path, NULL), QUIRE_OK);
        *at = 1.5 - i;
        run_open(&other, &plan);
        refuse_load(&other, QUIRE_INVAL, "distill, distill_hidden");
        quire_trainer_destroy(other.trainer);
        quire_trainer_destroy(r.trainer);
    }
    quire_trainer_destroy(of_teacher.trainer);
}

static void test_foreign_weights(void **state)
{
    (void)state;
    check_foreign(offsetof(quire_train_teacher, hidden));
    check_foreign(offsetof(quire_train_teacher, attention));
}

static void test_foreign(void **state)
{
    quire_train_plan plan = small_plan("mha");
    run r, other;
    FILE *f;

    (void)state;
    run_open(&r, &plan);
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    for (uint32_t i = 0; i < 10; i++) {
        static const char *const parts[] = {
            "tokenizer", "model (sizes", "batch",           "weight decay",
            "seed",      "documents",    "another teacher", "distill, distill_hidden",
            "model",     "model (sizes"
        };
        quire_train_plan changed = plan;

        changed.tokenizer_identity += i == 0;
        changed.shape.d_ff += i == 1;
        changed.n_accumulate += i == 2;
        changed.decay += i == 3 ? 0.1 : 0;
        changed.seed += i == 4;
        changed.data_identity += i == 5;
        changed.start_identity += i == 6;
        changed.shape.has_qkv_bias = i == 8;
        changed.shape.has_rope_factors = i == 9;
        for (uint32_t j = 0; j < plan.shape.d_head / 2; j++) {
            changed.shape.rope_factors[j] = 1;
        }
        changed.teacher = (quire_train_teacher){ &plan.shape, quire_trainer_parameters(r.trainer),
                                                 i == 7 ? 0.5 : 0, 0, 0 };
        run_open(&other, &changed);
        refuse_load(&other, QUIRE_INVAL, parts[i]);
        quire_trainer_destroy(other.trainer);
    }
    f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
    refuse_load(&r, QUIRE_CORRUPT, "is no checkpoint");
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 8, SEEK_SET), 0);
    assert_int_equal(fputc(7, f), 7);
    assert_int_equal(fclose(f), 0);
    refuse_load(&r, QUIRE_INVAL, "version 7 of checkpoints");
    /* Of a program that read files one after another. */
    f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 8, SEEK_SET), 0);
    assert_int_equal(fputc(3, f), 3);
    assert_int_equal(fclose(f), 0);
    refuse_load(&r, QUIRE_INVAL, "version 3 of checkpoints, known is 5");
    quire_trainer_destroy(r.trainer);
}

/* A save that fails names the file and leaves the earlier one. */
static void test_save_fails(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_error err = QUIRE_ERROR_INIT;
    char blocked[160];
    run r;

    (void)state;
    run_open(&r, &plan);
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, "/nowhere/at/all", &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "/nowhere/at/all"));
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    (void)snprintf(blocked, sizeof(blocked), "%s.partial", path);
    assert_int_equal(mkdir(blocked, 0700), 0);
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, &err), QUIRE_IO);
    assert_int_equal(rmdir(blocked), 0);
    assert_int_equal(quire_trainer_load(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    /* A full disk: every write to this device fails. */
    assert_int_equal(symlink("/dev/full", blocked), 0);
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, &err), QUIRE_IO);
    assert_non_null(strstr(err.message, "No space left"));
    assert_int_equal(quire_trainer_load(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    quire_trainer_destroy(r.trainer);
}

static void test_diverges(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_train_report report;
    quire_error err = QUIRE_ERROR_INIT;
    float *before;
    int rc = QUIRE_OK;
    run r;

    (void)state;
    plan.rate = plan.rate_end = 3;
    plan.n_warmup = 0;
    plan.rise_max = 1;
    run_open(&r, &plan);
    before = malloc(parameters_bytes(&r));
    assert_non_null(before);
    for (uint32_t i = 0; rc == QUIRE_OK && i < 40; i++) {
        memcpy(before, quire_trainer_parameters(r.trainer), parameters_bytes(&r));
        rc = quire_trainer_step(r.trainer, &r.packer, &report, &err);
    }
    assert_int_equal(rc, QUIRE_RANGE);
    assert_non_null(strstr(err.message, "the run diverges; the step was not taken"));
    assert_memory_equal(before, quire_trainer_parameters(r.trainer), parameters_bytes(&r));
    free(before);
    quire_trainer_destroy(r.trainer);
}

/* Longer tasks have a higher loss at first, which is no divergence: the lowest loss is that of the
 * level. */
static void test_levels_begin_anew(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_train_report report;
    run r;

    (void)state;
    plan.rate = plan.rate_end = 3;
    plan.n_warmup = 0;
    plan.rise_max = 1;
    plan.level_below = 1e9;
    for (uint64_t every = 1; every <= 1000; every *= 1000) {
        int rc = QUIRE_OK;
        uint32_t i = 0;

        plan.level_every = every;
        run_open(&r, &plan);
        for (; rc == QUIRE_OK && i < 40; i++) {
            rc = quire_trainer_step(r.trainer, &r.packer, &report, NULL);
        }
        assert_int_equal(rc, every == 1 ? QUIRE_OK : QUIRE_RANGE);
        assert_int_equal(quire_trainer_level(r.trainer), every == 1 ? 40 : 0);
        quire_trainer_destroy(r.trainer);
    }
}

/* A parameter that is no number, as after a fault of disk or memory. */
static void test_not_finite(void **state)
{
    quire_train_plan plan = small_plan("fusedkv");
    quire_checkpoint c = { .arrays = NULL };
    quire_train_report report;
    quire_error err = QUIRE_ERROR_INIT;
    FILE *f;
    run r;

    (void)state;
    run_open(&r, &plan);
    assert_int_equal(quire_trainer_save(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    c.n_parameters = quire_trainer_layout(r.trainer)->n_parameters;
    c.arrays = calloc(3 * c.n_parameters, sizeof(float));
    assert_non_null(c.arrays);
    f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 24, SEEK_SET), 0);
    assert_int_equal(fread(c.identities, sizeof(c.identities), 1, f), 1);
    assert_int_equal(fclose(f), 0);
    c.arrays[c.n_parameters - 1] = NAN;
    assert_int_equal(quire_checkpoint_write(path, &c, NULL), QUIRE_OK);
    assert_int_equal(quire_trainer_load(r.trainer, &r.packer, path, NULL), QUIRE_OK);
    assert_int_equal(quire_trainer_step(r.trainer, &r.packer, &report, &err), QUIRE_RANGE);
    assert_non_null(strstr(err.message, "step 1: loss"));
    free(c.arrays);
    quire_trainer_destroy(r.trainer);
}

static void test_no_data(void **state)
{
    quire_train_plan plan = small_plan("mha");
    quire_train_report report;
    quire_error err = QUIRE_ERROR_INIT;
    double loss;
    uint64_t n_targets;
    run r;

    (void)state;
    run_open(&r, &plan);
    r.docs.n_docs = 1; /* of one token */
    assert_int_equal(quire_trainer_step(r.trainer, &r.packer, &report, &err), QUIRE_NOTFOUND);
    assert_int_equal(quire_trainer_evaluate(r.trainer, &r.packer, 0, &loss, &n_targets, &err),
                     QUIRE_OK);
    assert_int_equal(n_targets, 0);
    quire_trainer_destroy(r.trainer);
}

static void test_schedule(void **state)
{
    quire_train_plan p = small_plan("mha");

    (void)state;
    assert_true(fabs(quire_train_rate(&p, 0) - 0.01 / 4) < 1e-12);
    assert_true(fabs(quire_train_rate(&p, 3) - 0.01) < 1e-12);
    assert_true(fabs(quire_train_rate(&p, 4) - 0.01) < 1e-12);
    assert_true(fabs(quire_train_rate(&p, 22) - 0.0055) < 1e-12); /* half way */
    assert_true(fabs(quire_train_rate(&p, 40) - 0.001) < 1e-12);
    assert_true(fabs(quire_train_rate(&p, 400) - 0.001) < 1e-12);
}

static void test_refused_plans(void **state)
{
    quire_train_plan good = small_plan("mha"), p = good;
    quire_trainer *t = NULL;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    p.rate_end = 1;
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "last learning rate: 1"));
    p = good;
    p.n_accumulate = QUIRE_TRAIN_ACCUMULATE_MAX + 1;
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "batches in a step: 4097; 1 to 4096"));
    p = good;
    p.teacher.hidden = QUIRE_TRAIN_WEIGHT_MAX + 1;
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "weight of hidden states: 1001; 0 to 1000"));
    p.teacher = (quire_train_teacher){ &good.shape, NULL, 0, 1, 0 };
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "distillation of hidden states needs"));
    p.teacher = (quire_train_teacher){ &good.shape, NULL, 0, 0, 1 };
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "distillation of attention needs"));
    p.teacher.attention = QUIRE_TRAIN_WEIGHT_MAX + 1;
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    assert_non_null(strstr(err.message, "weight of attention: 1001; 0 to 1000"));
    p = good;
    p.beta2 = NAN;
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
    p = good;
    p.n_threads = 0;
    assert_int_equal(quire_trainer_create(&t, &p, &err), QUIRE_INVAL);
}

static void test_rate(void **state)
{
    quire_train_plan plan = small_plan("mha");
    run r;

    (void)state;
    run_open(&r, &plan);
    assert_true(quire_trainer_product_rate(r.trainer) > 1e6);
    assert_true(quire_train_flop_per_token(r.trainer) ==
                6.0 * (double)(quire_trainer_layout(r.trainer)->n_parameters - VOCAB * 24));
    quire_trainer_destroy(r.trainer);
}

static int setup(void **state)
{
    (void)state;
    if (mkdtemp(dir) == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/run.checkpoint", dir);
    return 0;
}

static int teardown(void **state)
{
    char blocked[160];

    (void)state;
    (void)snprintf(blocked, sizeof(blocked), "%s.partial", path);
    (void)unlink(blocked);
    (void)unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill), /* first: no threads yet */
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_resume_bits),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_save_fails),
        cmocka_unit_test(test_diverges),
        cmocka_unit_test(test_levels_begin_anew),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_no_data),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_refused_plans),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_taught_bits),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_long_questions),
        cmocka_unit_test(test_foreign_weights),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
