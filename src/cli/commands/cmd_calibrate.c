/* cmd_calibrate.c - quire calibrate: measure the cost of KV formats for a model, and choose the
 * best formats of a size.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/talk.h"
#include "cli/measuring/calibrate.h"
#include "cli/measuring/calibrate_retain.h"
#include "cli/measuring/calibration_place.h"
#include "cli/measuring/cost_fit.h"
#include "cli/settings/args.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CTX_DEFAULT 512u
#define CTX_MIN     4u /* below, a half has nothing to score */

/* One format measures the sensitivity of a side; the coarsest one stands out most from the
 * noise. */
#define FORMATS_QUICK (1u << QUIRE_FORMAT_Q3)
#define FORMATS_ALL                                                                                \
    (1u << QUIRE_FORMAT_Q6 | 1u << QUIRE_FORMAT_Q5 | 1u << QUIRE_FORMAT_Q4 | 1u << QUIRE_FORMAT_Q3)

typedef struct calibrate_args {
    quire_common_args common;
    const char *file;
    const char *out;
    double target_bits;
    double kld_max;
    bool has_target;
    bool has_kld_max;
    bool is_exhaustive;
    bool is_retain;
    bool has_chunks;
    int64_t n_chunks;
} calibrate_args;

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_MODEL,
    { .names = { "-f", "--file" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "FILE",
      .offset = offsetof(calibrate_args, file), .help = "text whose tokens the model predicts; -: "
                                                        "stdin" },
    { .names = { "--target" }, .type = QUIRE_OPT_REAL, .unit = "BITS", .min = QUIRE_KV_BITS_MIN,
      .max = QUIRE_KV_BITS_MAX, .initial = "4.5", .offset = offsetof(calibrate_args, target_bits),
      .seen_offset = offsetof(calibrate_args, has_target),
      .help = "average size for which formats are chosen now, in bits per value; later --kv "
              "auto:BITS can ask for any size" },
    { .names = { "--max-kld" }, .type = QUIRE_OPT_REAL, .unit = "X", .min = 0, .max = 100,
      .initial_text = "none", .offset = offsetof(calibrate_args, kld_max),
      .seen_offset = offsetof(calibrate_args, has_kld_max),
      .help = "instead of --target: choose the smallest size whose costs add up to at most X (KL "
              "divergence in nats)" },
    { .names = { "--chunks" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 65536,
      .initial = "2", .offset = offsetof(calibrate_args, n_chunks),
      .seen_offset = offsetof(calibrate_args, has_chunks),
      .help = "chunks of the text that are measured, each as long as the context; with --retain "
              "16, of 1024 tokens" },
    { .names = { "--retain" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(calibrate_args, is_retain),
      .help = "instead of formats: learn to predict which tokens matter, for --retain predict" },
    { .names = { "--exhaustive" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(calibrate_args, is_exhaustive),
      .help = "measure q6, q5, q4 and q3 for every side instead of q3 alone; takes up to four "
              "times as long" },
    { .names = { "-o", "--output" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "a file in ~/.cache/quire/calibration",
      .offset = offsetof(calibrate_args, out),
      .help = "file of the result; --kv auto also finds MODEL.kv.yaml beside the model, and "
              "--retain predict MODEL.retain" },
    QUIRE_ROW_THREADS,
    QUIRE_ROW_CTX("512"),
    /* Default differs from other commands: an 8 bit window would hide the formats from most queries
     * of a short text, but from few at long context. */
    { .names = { "--kv-recent" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_KV_TOKENS_MAX, .multiple = 64, .initial = "0",
      .offset = offsetof(quire_common_args, kv.recent),
      .help = "how many tokens before it a token reads in 8 bit meanwhile; a multiple of 64" },
    { .names = { "--kv-sinks" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_KV_TOKENS_MAX, .multiple = 64, .initial = QUIRE_TEXT_OF(QUIRE_KV_SINKS_DEFAULT),
      .offset = offsetof(quire_common_args, kv.sinks),
      .help = "first tokens of a chunk that are read in 8 bit meanwhile; a multiple of 64" },
    QUIRE_ROWS_CACHE,
    QUIRE_ROW_JSON,
};
/* clang-format on */

/* One choice of formats, measured as a whole. */
typedef struct checked {
    quire_kv_pair *pairs; /* [n_stored] */
    quire_cost_sample kld;
} checked;

typedef struct calibrate {
    const calibrate_args *args;
    quire_common_args common; /* args', with f16 as the formats */
    quire_opened session;
    int32_t *tokens;
    uint32_t n_ctx;
    uint32_t n_chunks;
    quire_meter meter;
    quire_calibration result;
    quire_new_file file;
    double bits; /* the size to choose for */
    double measure_s;
    checked choice;  /* chosen by the table; the result is the uniform pair if that is better */
    checked uniform; /* the best pair for all layers, of at most that size */
} calibrate;

/* ---- measuring ---- */

static int read_tokens(calibrate *c, quire_error *err)
{
    const calibrate_args *args = c->args;
    size_t n_tokens = 0;

    c->n_ctx = c->common.n_ctx != 0 ? (uint32_t)c->common.n_ctx : CTX_DEFAULT;
    QUIRE_TRY(quire_evaluate_text(&c->session, args->file, &c->tokens, &n_tokens, err));
    if (n_tokens < c->n_ctx) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s has %zu tokens, a context of %u needs at least as many: give "
                               "more text or a smaller -c",
                               args->file, n_tokens, c->n_ctx);
    }
    c->n_chunks = (uint32_t)args->n_chunks;
    if (n_tokens / c->n_ctx < c->n_chunks) {
        c->n_chunks = (uint32_t)(n_tokens / c->n_ctx);
    }
    return QUIRE_OK;
}

/* Report a size that no formats reach before measuring; the rules choose among the same formats. */
static int check_target(calibrate *c, quire_error *err)
{
    const quire_model_desc *desc = c->session.desc;

    QUIRE_TRY(quire_calibration_init(&c->result, desc, err));
    return c->args->has_kld_max ? QUIRE_OK
                                : quire_kv_auto(desc, c->args->target_bits, c->result.pairs, err);
}

/* The last part of a path. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static int measure(calibrate *c, quire_error *err)
{
    const quire_meter_opts opts = {
        .session = &c->session,
        .common = &c->common,
        .tokens = c->tokens,
        .n_ctx = c->n_ctx,
        .n_chunks = c->n_chunks,
    };
    const double start_s = quire_now_s();

    (void)snprintf(c->result.model, sizeof(c->result.model), "%s", base_name(c->common.model));
    (void)snprintf(c->result.text, sizeof(c->result.text), "%s", base_name(c->args->file));
    QUIRE_TRY(quire_meter_open(&c->meter, &opts, err));
    QUIRE_TRY(quire_calibrate(&c->result, &c->meter,
                              c->args->is_exhaustive ? FORMATS_ALL : FORMATS_QUICK, err));
    c->measure_s = quire_now_s() - start_s;
    return QUIRE_OK;
}

/* ---- choosing ---- */

static int choose(calibrate *c, quire_error *err)
{
    const quire_model_desc *desc = c->session.desc;

    c->bits = c->args->target_bits;
    if (c->args->has_kld_max) {
        QUIRE_TRY(quire_calibration_bits_for(&c->result, desc, c->args->kld_max, &c->bits, err));
    }
    QUIRE_TRY(quire_calibration_choose(&c->result, desc, c->bits, c->result.pairs, err));
    c->choice.pairs = calloc(desc->n_stored, sizeof(*c->choice.pairs));
    if (c->choice.pairs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    memcpy(c->choice.pairs, c->result.pairs, desc->n_stored * sizeof(*c->choice.pairs));
    return QUIRE_OK;
}

static int check_one(calibrate *c, checked *one, quire_error *err)
{
    quire_evaluation run;
    int rc = quire_meter_run(&c->meter, one->pairs, &run, err);

    one->kld = (quire_cost_sample){ true, quire_mean_value(&run.kld), quire_mean_stderr(&run.kld) };
    quire_evaluation_fini(&run);
    return rc;
}

/* Measure the whole choice, and the uniform pair that it has to beat. */
static int check(calibrate *c, quire_error *err)
{
    const quire_model_desc *desc = c->session.desc;
    quire_kv_pair uniform;

    QUIRE_TRY(check_one(c, &c->choice, err));
    if (!quire_calibration_uniform(&c->result, desc, c->bits, &uniform)) {
        return QUIRE_OK;
    }
    c->uniform.pairs = calloc(desc->n_stored, sizeof(*c->uniform.pairs));
    if (c->uniform.pairs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    quire_kv_uniform(desc, uniform, c->uniform.pairs);
    QUIRE_TRY(check_one(c, &c->uniform, err));
    c->result.uniform_wins = quire_cost_is_behind(c->choice.kld, c->uniform.kld);
    if (c->result.uniform_wins) {
        quire_kv_uniform(desc, uniform, c->result.pairs);
    }
    return QUIRE_OK;
}

/* ---- output ---- */

static void print_checked(const calibrate *c, const char *what, const checked *one)
{
    const quire_model_desc *desc = c->session.desc;
    const double mean = one->kld.mean;
    const double half = QUIRE_INTERVAL_95 * one->kld.std_err;
    char summary[160];

    printf("%-8s %5.2f bits  KL divergence %.3e, 95 %% interval %.3e .. %.3e, by the table %.3e   "
           "%s\n",
           what, quire_kv_bits(desc, one->pairs), mean, mean - half, mean + half,
           quire_calibration_sum(&c->result, one->pairs),
           quire_kv_summary(desc, one->pairs, summary, sizeof(summary)));
}

static void say_where(const calibrate *c)
{
    char taken[QUIRE_CALIBRATION_PATH_MAX];

    if (quire_calibration_is_taken(c->common.model, c->session.desc, c->file.path, taken)) {
        quire_say("written to %s: --kv auto uses it", c->file.path);
    } else if (taken[0] != '\0') {
        quire_say("written to %s: --kv auto uses %s instead", c->file.path, taken);
    } else {
        quire_say("written to %s: --kv auto uses it when it lies at %s" QUIRE_CALIBRATION_BESIDE,
                  c->file.path, c->common.model);
    }
}

/* Costs of single sides do not always add up. */
static void say_winner(const calibrate *c)
{
    if (c->result.uniform_wins) {
        quire_say("measured as a whole, formats by the table of costs are behind one pair for all "
                  "layers: that is chosen, now and by --kv auto for sizes like this");
    }
}

/* "-" for a cost left unmeasured by an interruption. */
static char *cost_text(double cost, char *text, size_t text_bytes)
{
    (void)snprintf(text, text_bytes, isfinite(cost) ? "%.3e" : "-", cost);
    return text;
}

static void print_costs(const quire_calibration *r)
{
    char k[24];
    char v[24];

    printf("cost of q4 in  K          V\n");
    for (uint32_t l = 0; l < r->n_stored; l++) {
        printf("layer %-7u  %-9s  %s\n", l,
               cost_text(r->costs[l].of[QUIRE_SIDE_K][QUIRE_FORMAT_Q4], k, sizeof(k)),
               cost_text(r->costs[l].of[QUIRE_SIDE_V][QUIRE_FORMAT_Q4], v, sizeof(v)));
    }
}

static void print_text(const calibrate *c)
{
    const quire_calibration *r = &c->result;
    char layers[QUIRE_KV_LAYERS_TEXT_MAX];

    printf("%u predictions of %u chunks of %u tokens, %u runs in %.0f s\n", r->n_scored,
           r->n_chunks, r->n_ctx, c->meter.n_runs_all, c->measure_s);
    print_costs(r);
    print_checked(c, r->uniform_wins ? "by table" : "chosen", &c->choice);
    if (c->uniform.pairs != NULL) {
        print_checked(c, r->uniform_wins ? "chosen" : "uniform", &c->uniform);
    }
    printf("--kv-layers \"%s\"\n",
           quire_kv_layers_text(c->session.desc, r->pairs, layers, sizeof(layers)));
    say_where(c);
}

static json_t *side_json(const double *costs)
{
    json_t *side = json_object();

    for (uint32_t f = QUIRE_FORMAT_Q8; side != NULL && f < QUIRE_FORMAT_COUNT; f++) {
        json_object_set_new(side, quire_format_name((quire_format)f), quire_json_real(costs[f]));
    }
    return side;
}

static json_t *checked_json(const calibrate *c, const checked *one)
{
    const quire_model_desc *desc = c->session.desc;
    char layers[QUIRE_KV_LAYERS_TEXT_MAX];

    if (one->pairs == NULL) {
        return json_null();
    }
    return json_pack("{s:o, s:s, s:o, s:o}", "bits_per_value",
                     quire_json_real(quire_kv_bits(desc, one->pairs)), "layers",
                     quire_kv_layers_text(desc, one->pairs, layers, sizeof(layers)), "kld_sum",
                     quire_json_real(quire_calibration_sum(&c->result, one->pairs)), "kld",
                     quire_interval_json(one->kld.mean, one->kld.std_err));
}

/* file NULL: an interruption came before the choice. */
static int print_json(const calibrate *c, const char *file)
{
    const quire_calibration *r = &c->result;
    json_t *measured = json_array();
    json_t *layers = json_array();

    for (uint32_t f = 0; measured != NULL && f < QUIRE_FORMAT_COUNT; f++) {
        if ((r->measured >> f & 1u) != 0) {
            json_array_append_new(measured, json_string(quire_format_name((quire_format)f)));
        }
    }
    for (uint32_t l = 0; layers != NULL && l < r->n_stored; l++) {
        json_array_append_new(layers,
                              json_pack("{s:o, s:o}", "k", side_json(r->costs[l].of[QUIRE_SIDE_K]),
                                        "v", side_json(r->costs[l].of[QUIRE_SIDE_V])));
    }
    return quire_stdout_json(json_pack(
        "{s:o, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "model",
        quire_json_bytes(c->common.model, strlen(c->common.model)), "file",
        file != NULL ? quire_json_bytes(file, strlen(file)) : json_null(), "n_ctx", (int)r->n_ctx,
        "n_chunks", (int)r->n_chunks, "n_scored", (int)r->n_scored, "kv_recent", (int)r->kv_recent,
        "kv_sinks", (int)r->kv_sinks, "runs", (int)c->meter.n_runs_all, "seconds",
        quire_json_real(c->measure_s), "target_bits", quire_json_real(c->bits), "measured",
        measured, "layers", layers, "choice", checked_json(c, &c->choice), "uniform",
        checked_json(c, &c->uniform), "uniform_wins", (int)r->uniform_wins));
}

/* Print the costs measured before Ctrl-C; partial costs give no choice. */
static int print_interrupted(calibrate *c)
{
    /* Includes the interrupted run. */
    quire_say("interrupted after %u runs; no file is written",
              c->meter.n_runs > 0 ? c->meter.n_runs - 1 : 0);
    if (c->result.measured == 0) {
        return QUIRE_EXIT_FAILED;
    }
    free(c->choice.pairs);
    free(c->uniform.pairs);
    c->choice.pairs = c->uniform.pairs = NULL;
    if (c->args->common.is_json) {
        return print_json(c, NULL);
    }
    print_costs(&c->result);
    return QUIRE_EXIT_FAILED;
}

/* ---- the command ---- */

static int check_args(const void *opaque, quire_error *err)
{
    const calibrate_args *args = opaque;

    if (args->is_retain && (args->has_target || args->has_kld_max || args->is_exhaustive)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain and %s: the one learns which tokens matter, the other "
                               "chooses formats",
                               args->has_target    ? "--target"
                               : args->has_kld_max ? "--max-kld"
                                                   : "--exhaustive");
    }
    if (args->has_target && args->has_kld_max) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--target and --max-kld both say how far to go: use one");
    }
    if (args->common.n_ctx != 0 && args->common.n_ctx < (int64_t)CTX_MIN) {
        return quire_error_set(err, QUIRE_INVAL,
                               "-c %lld is too short: measuring needs a context of at least %u "
                               "tokens",
                               (long long)args->common.n_ctx, CTX_MIN);
    }
    return QUIRE_OK;
}

static int run(void *opaque)
{
    const calibrate_args *args = opaque;
    calibrate c = { .args = args, .common = args->common };
    quire_error err = QUIRE_ERROR_INIT;
    int exit_status = QUIRE_EXIT_OK;
    int rc;

    c.common.kv.choice.pair = (quire_kv_pair){ QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 };
    if (args->is_retain) {
        const quire_calibrate_retain_args retain = {
            .common = &c.common,
            .file = args->file,
            .out = args->out,
            .n_chunks = args->has_chunks ? (uint32_t)args->n_chunks : 0,
        };

        return quire_calibrate_retain(&retain);
    }
    rc = quire_opened_open_model(&c.session, &c.common, &err);
    quire_interrupt_catch();
    if (rc == QUIRE_OK) {
        rc = read_tokens(&c, &err);
    }
    if (rc == QUIRE_OK) {
        rc = check_target(&c, &err);
    }
    /* Open the result file before spending minutes on measuring. */
    if (rc == QUIRE_OK) {
        rc = quire_calibration_create(&c.file, args->out, c.session.desc, &err);
    }
    if (rc == QUIRE_OK) {
        rc = measure(&c, &err);
    }
    if (rc == QUIRE_OK) {
        rc = choose(&c, &err);
    }
    if (rc == QUIRE_OK) {
        rc = check(&c, &err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_calibration_save(&c.result, c.session.desc, &c.file, &err);
    }
    if (rc == QUIRE_CANCELED) {
        exit_status = print_interrupted(&c);
    } else if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    } else {
        say_winner(&c);
        if (args->common.is_json) {
            exit_status = print_json(&c, c.file.path);
        } else {
            print_text(&c);
        }
    }
    quire_new_file_discard(&c.file);
    free(c.uniform.pairs);
    free(c.choice.pairs);
    quire_calibration_fini(&c.result);
    quire_meter_close(&c.meter);
    free(c.tokens);
    quire_opened_close(&c.session);
    return exit_status;
}

const quire_command quire_command_calibrate = {
    .name = "calibrate",
    .usage = "[-m] FILE -f FILE [options]",
    .summary = "Measures the cost of KV formats for a model, layer by layer, for --kv auto.",
    .notes =
        "A run stores one side (K or V) of one layer in a smaller format, and all other sides in\n"
        "q8. The KL divergence of its predictions gives the cost of this side. The program then\n"
        "chooses the formats with the least sum of costs for a size. The text should resemble the\n"
        "texts that the model will read and write; some thousand tokens are enough. The program\n"
        "sets the formats of all runs, so there is no --kv, and QUIRE_KV does not count.\n\n"
        "With --retain the program learns instead which tokens of a text matter: the model "
        "repeats\n"
        "the text, and a linear map of each layer learns the attention that tokens get. The "
        "policy\n"
        "predict of --retain uses these maps (docs/retention.md).\n\n"
        "example: quire calibrate -m model.gguf -f wiki.test.raw --target 4.5\n"
        "         quire run -m model.gguf --kv auto:4.5 -p \"Once upon a time\"",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(calibrate_args),
    .check = check_args,
    .run = run,
};
