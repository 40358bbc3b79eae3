/* cmd_perplexity.c - quire perplexity: how well a model predicts a text, and how far a setting
 * moves its predictions.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/kv_history.h"
#include "cli/commands/opened_retain.h"
#include "cli/commands/talk.h"
#include "cli/measuring/evaluate.h"
#include "cli/settings/args.h"

#include "base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CTX_DEFAULT 512u
#define CTX_MIN     4u /* below, a half has nothing to score */

typedef struct perplexity_args {
    quire_common_args common;
    const char *file;
    const char *save_logits;
    const char *logits_base;
    quire_kv_choice against;
    bool has_against;
    bool is_kld;
    int64_t n_chunks;   /* 0 = all */
    int64_t score_from; /* 0 = the half of a chunk */
} perplexity_args;

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_MODEL,
    { .names = { "-f", "--file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(perplexity_args, file), .help = "text whose tokens the model predicts; -: "
                                                         "stdin" },
    { .names = { "--chunks" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = INT32_MAX,
      .initial_text = "all", .offset = offsetof(perplexity_args, n_chunks),
      .help = "stop after N chunks, each as long as the context" },
    { .names = { "--score-from" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TOKENS_MAX, .initial_text = "half of the context",
      .offset = offsetof(perplexity_args, score_from),
      .help = "tokens of each chunk that are context only; those behind them are scored" },
    { .names = { "--kld" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(perplexity_args, is_kld),
      .help = "the same as --kld-against f16" },
    { .names = { "--kld-against" }, .type = QUIRE_OPT_KV, .unit = "K[:V]",
      .offset = offsetof(perplexity_args, against),
      .seen_offset = offsetof(perplexity_args, has_against),
      .help = "compute every step with this KV format too, and print the KL divergence from its "
              "predictions" },
    { .names = { "--logits-base" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(perplexity_args, logits_base),
      .help = "print the KL divergence from the log-probabilities in this file (llama-perplexity's "
              "--kl-divergence-base); without -f the text comes from the file" },
    { .names = { "--save-logits" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(perplexity_args, save_logits),
      .help = "write log-probabilities to such a file: 2 bytes per vocabulary entry and scored "
              "token" },
    QUIRE_ROW_JSON,
    QUIRE_ROWS_RUNTIME("512, or that of --logits-base"),
    QUIRE_ROW_DEVICE,
    QUIRE_ROWS_RETAIN,
};
/* clang-format on */

typedef struct perplexity {
    const perplexity_args *args;
    bool has_base_kv; /* --kld or --kld-against */
    quire_kv_choice base_kv;
    quire_opened session;
    quire_opened base; /* --kld-against: beside session */
    quire_logits_file base_file;
    quire_logits_file save_file;
    quire_kv_history history;
    int32_t *from_text; /* tokens of -f */
    const int32_t *tokens;
    size_t n_tokens; /* of the whole text */
    uint32_t n_ctx;
    uint32_t n_chunks;
    quire_evaluation result;
} perplexity;

/* ---- input ---- */

static int open_base_file(perplexity *p, quire_error *err)
{
    const perplexity_args *args = p->args;

    QUIRE_TRY(quire_logits_file_open(&p->base_file, args->logits_base, p->session.desc->n_vocab,
                                     (uint32_t)args->score_from, err));
    if (args->common.n_ctx != 0 && (uint32_t)args->common.n_ctx != p->base_file.n_ctx) {
        return quire_error_set(err, QUIRE_INVAL, "%s was made with -c %u, not -c %lld",
                               args->logits_base, p->base_file.n_ctx,
                               (long long)args->common.n_ctx);
    }
    p->n_ctx = p->base_file.n_ctx;
    p->n_chunks = p->base_file.n_chunks;
    p->tokens = p->base_file.tokens;
    p->n_tokens = (size_t)p->n_chunks * p->n_ctx;
    return QUIRE_OK;
}

/* The base's tokens must be the text's: otherwise the two would be scored on different texts. */
static int check_same_tokens(const perplexity *p, quire_error *err)
{
    for (size_t i = 0; i < (size_t)p->n_chunks * p->n_ctx; i++) {
        if (p->from_text[i] != p->base_file.tokens[i]) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "%s was made from another text than %s (token %zu is %d there, "
                                   "%d here)",
                                   p->args->logits_base, p->args->file, i, p->base_file.tokens[i],
                                   p->from_text[i]);
        }
    }
    return QUIRE_OK;
}

static int choose_text(perplexity *p, quire_error *err)
{
    const perplexity_args *args = p->args;
    uint32_t n_chunks, n_least; /* llama-perplexity wants two chunks */

    p->n_ctx = args->common.n_ctx != 0 ? (uint32_t)args->common.n_ctx : CTX_DEFAULT;
    if (args->logits_base != NULL) {
        QUIRE_TRY(open_base_file(p, err));
    }
    if (args->score_from >= (int64_t)p->n_ctx - 1) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--score-from %lld leaves nothing to score of a context of %u",
                               (long long)args->score_from, p->n_ctx);
    }
    if (args->file != NULL) {
        QUIRE_TRY(quire_evaluate_text(&p->session, args->file, &p->from_text, &p->n_tokens, err));
        p->tokens = p->from_text;
        n_least = args->score_from != 0 ? p->n_ctx : 2 * p->n_ctx;
        if (p->n_tokens < n_least) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "%s has %zu tokens, a context of %u needs at least %u: give "
                                   "more text or a smaller -c",
                                   args->file, p->n_tokens, p->n_ctx, n_least);
        }
        n_chunks = (uint32_t)(p->n_tokens / p->n_ctx);
        p->n_chunks = args->logits_base == NULL || n_chunks < p->n_chunks ? n_chunks : p->n_chunks;
    }
    if (args->n_chunks != 0 && args->n_chunks < p->n_chunks) {
        p->n_chunks = (uint32_t)args->n_chunks;
    }
    return args->file != NULL && args->logits_base != NULL ? check_same_tokens(p, err) : QUIRE_OK;
}

/* The runtime to compare with. */
static int open_base(perplexity *p, const quire_opened_want *want, quire_error *err)
{
    quire_common_args common = p->args->common;
    char kv[QUIRE_SESSION_KV_TEXT_MAX];
    quire_error why = QUIRE_ERROR_INIT;
    int rc;

    common.kv = quire_kv_args_of(&common.kv, &p->base_kv);
    common.retain = NULL; /* the base keeps all tokens, and reads all */
    common.attend = NULL;
    if (p->base_kv.is_auto) {
        quire_opened_look(&p->session, common.model, p->session.desc);
    }
    p->base = quire_opened_beside(&p->session);
    rc = quire_opened_open_runtime(&p->base, &common, want, &why);
    return rc < 0 ? quire_error_set(err, rc, "beside KV %s, %s",
                                    quire_opened_kv_text(&p->session, kv, sizeof(kv)), why.message)
                  : QUIRE_OK;
}

/* Both sides compute the same, so that all differences are 0. */
static bool is_same_as_base(const perplexity *p)
{
    const quire_common_args *common = &p->args->common;
    const size_t bytes = p->session.desc->n_stored * sizeof(p->session.kv_pairs[0]);

    return common->retain == NULL && common->attend == NULL &&
           memcmp(p->session.kv_pairs, p->base.kv_pairs, bytes) == 0;
}

static int open_runtimes(perplexity *p, quire_error *err)
{
    quire_opened_want want = { .n_ctx = p->n_ctx };

    QUIRE_TRY(quire_opened_open_runtime(&p->session, &p->args->common, &want, err));
    if (!p->has_base_kv) {
        return QUIRE_OK;
    }
    QUIRE_TRY(open_base(p, &want, err));
    if (is_same_as_base(p)) {
        quire_say("the KV format is the one that it is compared with: --kv names another, as q8");
    }
    return QUIRE_OK;
}

static int evaluate(perplexity *p, quire_error *err)
{
    bool is_saved = p->args->save_logits != NULL;
    quire_evaluate_opts opts = {
        .session = &p->session,
        .base_session = p->has_base_kv ? &p->base : NULL,
        .base_file = p->args->logits_base != NULL ? &p->base_file : NULL,
        .save_file = is_saved ? &p->save_file : NULL,
        .tokens = p->tokens,
        .n_ctx = p->n_ctx,
        .n_chunks = p->n_chunks,
        .score_from = (uint32_t)p->args->score_from,
    };

    QUIRE_TRY(quire_kv_history_open(&p->history, quire_runtime_cache(p->session.runtime),
                                    p->args->common.kv_history, err));
    if (is_saved) {
        quire_logits_head head = { p->n_ctx, p->session.desc->n_vocab, p->n_chunks, p->tokens,
                                   (uint32_t)p->args->score_from };

        QUIRE_TRY(quire_logits_file_create(&p->save_file, p->args->save_logits, &head, err));
    }
    QUIRE_TRY(quire_evaluate(&p->result, &opts, err));
    return is_saved ? quire_logits_file_finish(&p->save_file, err) : QUIRE_OK;
}

/* ---- output ---- */

static double share_stderr(double share, uint64_t n)
{
    return n > 1 ? sqrt(share * (1 - share) / (double)(n - 1)) : 0;
}

static json_t *base_json(const perplexity *p, const char *name)
{
    const quire_evaluation *r = &p->result;
    double difference = quire_mean_value(&r->nll_difference);
    double same_top = (double)r->n_same_top / (double)r->kld.n;
    json_t *kld = quire_interval_json(quire_mean_value(&r->kld), quire_mean_stderr(&r->kld));

    if (kld != NULL) {
        json_object_set_new(kld, "median",
                            quire_json_real(quire_quantile(r->kld_values, r->kld.n, 0.5)));
        json_object_set_new(kld, "p99",
                            quire_json_real(quire_quantile(r->kld_values, r->kld.n, 0.99)));
        json_object_set_new(kld, "max", quire_json_real(r->kld_max));
    }
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kind",
                     p->has_base_kv ? "kv" : "file", "name", quire_json_bytes(name, strlen(name)),
                     "ppl", quire_json_real(quire_perplexity(&r->nll_base)), "ppl_stderr",
                     quire_json_real(quire_perplexity_stderr(&r->nll_base)), "ppl_ratio",
                     quire_json_real(exp(difference)), "nll_difference",
                     quire_interval_json(difference, quire_mean_stderr(&r->nll_difference)), "kld",
                     kld, "top1_agreement", quire_json_real(same_top), "top1_agreement_stderr",
                     quire_json_real(share_stderr(same_top, r->kld.n)));
}

static uint32_t score_from(const perplexity *p)
{
    return p->args->score_from != 0 ? (uint32_t)p->args->score_from : p->n_ctx / 2;
}

/* Share of the scored queries' (query, key) pairs that read sealed sides at 8 bit; 0 without any.
 */
static double hot_share(const perplexity *p)
{
    const quire_opened *s = &p->session;

    if (!quire_kv_is_sealed(s->desc, s->kv_pairs)) {
        return 0;
    }
    return quire_kv_hot_share(score_from(p), p->n_ctx, (uint32_t)s->kv.recent,
                              (uint32_t)s->kv.sinks);
}

static json_t *kv_json(const perplexity *p)
{
    quire_cache_stats stats;
    json_t *kv = quire_opened_kv_json(&p->session, p->n_ctx);

    quire_cache_stats_get(quire_opened_cache(&p->session), &stats);
    if (kv != NULL) {
        json_object_set_new(kv, "live_peak_bytes",
                            json_integer((json_int_t)stats.charged_peak_bytes));
        json_object_set_new(kv, "extent_peak_bytes",
                            json_integer((json_int_t)stats.extent_peak_bytes));
        json_object_set_new(kv, "hot_pair_share", quire_json_real(hot_share(p)));
    }
    return kv;
}

static json_t *chunks_json(const quire_evaluation *r)
{
    json_t *chunks = json_array();

    for (uint32_t i = 0; chunks != NULL && i < r->n_chunks; i++) {
        json_array_append_new(chunks, quire_json_real(r->chunk_ppl[i]));
    }
    return chunks;
}

static int print_json(const perplexity *p, const char *base_name)
{
    const quire_evaluation *r = &p->result;
    json_int_t n_tokens = (json_int_t)p->n_chunks * p->n_ctx;
    json_t *document =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:I, s:I, s:I, s:o, s:o, s:o}", "model",
                  quire_json_bytes(p->args->common.model, strlen(p->args->common.model)), "ppl",
                  quire_json_real(quire_perplexity(&r->nll)), "ppl_stderr",
                  quire_json_real(quire_perplexity_stderr(&r->nll)), "nll",
                  quire_json_real(quire_mean_value(&r->nll)), "nll_stderr",
                  quire_json_real(quire_mean_stderr(&r->nll)), "n_ctx", (int)p->n_ctx, "n_chunks",
                  (int)p->n_chunks, "n_tokens", n_tokens, "n_scored", (json_int_t)r->nll.n,
                  "n_text_tokens", (json_int_t)p->n_tokens, "tokens_per_second",
                  quire_json_real(quire_rate((double)n_tokens, r->compute_s)), "kv", kv_json(p),
                  "chunks", chunks_json(r));

    if (document != NULL && r->has_base) {
        json_object_set_new(document, "base", base_json(p, base_name));
    }
    return quire_stdout_json(document);
}

static double half_interval(double stderr_)
{
    return QUIRE_INTERVAL_95 * stderr_;
}

static void print_text(const perplexity *p, const char *base_name)
{
    const quire_evaluation *r = &p->result;
    char kv[QUIRE_SESSION_KV_TEXT_MAX];
    double difference = quire_mean_value(&r->nll_difference);
    double same_top;
    double kld;
    double half;

    printf("perplexity %.4f +/- %.4f   %u chunks of %u tokens, %llu scored, KV %s\n",
           quire_perplexity(&r->nll), quire_perplexity_stderr(&r->nll), p->n_chunks, p->n_ctx,
           (unsigned long long)r->nll.n, quire_opened_kv_text(&p->session, kv, sizeof(kv)));
    if (hot_share(p) > 0) {
        printf(
            "%.1f %% of the scored queries' keys and values were read at 8 bit (recent, sinks)\n",
            100 * hot_share(p));
    }
    if (r->has_base) {
        same_top = (double)r->n_same_top / (double)r->kld.n;
        printf("against %s:\n", base_name);
        printf("  its perplexity       %.4f +/- %.4f\n", quire_perplexity(&r->nll_base),
               quire_perplexity_stderr(&r->nll_base));
        printf("  perplexity, ratio    %.5f   95 %% interval %.5f .. %.5f\n", exp(difference),
               exp(difference - half_interval(quire_mean_stderr(&r->nll_difference))),
               exp(difference + half_interval(quire_mean_stderr(&r->nll_difference))));
        kld = quire_mean_value(&r->kld);
        half = half_interval(quire_mean_stderr(&r->kld));
        printf("  KL divergence        %.3e   95 %% interval %.3e .. %.3e\n", kld,
               fmax(kld - half, 0), kld + half);
        printf("                       median %.3e, 99 %% %.3e, largest %.3e\n",
               quire_quantile(r->kld_values, r->kld.n, 0.5),
               quire_quantile(r->kld_values, r->kld.n, 0.99), r->kld_max);
        half = half_interval(share_stderr(same_top, r->kld.n));
        printf("  same top token       %.3f %%   95 %% interval %.3f .. %.3f %%\n", 100 * same_top,
               100 * fmax(same_top - half, 0), 100 * fmin(same_top + half, 1));
    }
    quire_opened_say_retained(&p->session);
    quire_say("%.1f tokens/s; +/- is one standard error",
              quire_rate((double)p->n_chunks * p->n_ctx, r->compute_s));
}

/* ---- the command ---- */

static int check(const void *opaque, quire_error *err)
{
    const perplexity_args *args = opaque;

    if (args->file == NULL && args->logits_base == NULL) {
        return quire_error_set(err, QUIRE_INVAL, "no text given: -f FILE names one");
    }
    if (args->has_against && args->is_kld) {
        return quire_error_set(err, QUIRE_INVAL, "--kld is --kld-against f16: use one of them");
    }
    if ((args->has_against || args->is_kld) && args->logits_base != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--kld-against and --logits-base both give a base: use one");
    }
    if (args->save_logits != NULL && args->common.kv_history != NULL &&
        strcmp(args->save_logits, args->common.kv_history) == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--save-logits and --kv-history both write %s: name two files",
                               args->save_logits);
    }
    if (args->common.n_ctx != 0 && args->common.n_ctx < (int64_t)CTX_MIN) {
        return quire_error_set(
            err, QUIRE_INVAL,
            "-c %lld is too short: perplexity needs a context of at least %u tokens",
            (long long)args->common.n_ctx, CTX_MIN);
    }
    return quire_common_check(args, err);
}

static int run(void *opaque)
{
    const perplexity_args *args = opaque;
    perplexity p = { .args = args,
                     .has_base_kv = args->is_kld || args->has_against,
                     .base_kv = { .pair = { QUIRE_FORMAT_F16, QUIRE_FORMAT_F16 } } };
    quire_error err = QUIRE_ERROR_INIT;
    char against[40] = "KV ";
    const char *base_name = p.has_base_kv ? against : args->logits_base;
    int exit_status = QUIRE_EXIT_OK;
    int rc;

    p.base_kv = args->has_against ? args->against : p.base_kv;
    (void)quire_kv_choice_name(&p.base_kv, against + 3, sizeof(against) - 3);
    rc = quire_opened_open_model(&p.session, &args->common, &err);
    quire_interrupt_catch();
    if (rc == QUIRE_OK) {
        rc = choose_text(&p, &err);
    }
    if (rc == QUIRE_OK) {
        rc = open_runtimes(&p, &err);
    }
    if (rc == QUIRE_OK) {
        rc = evaluate(&p, &err);
    }
    if (rc < 0) {
        exit_status = quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (rc == QUIRE_OK || (rc == QUIRE_CANCELED && p.result.n_chunks > 0)) {
        p.n_chunks = p.result.n_chunks; /* fewer where it was interrupted */
        if (args->common.is_json) {
            exit_status = print_json(&p, base_name);
        } else {
            print_text(&p, base_name);
        }
    }
    exit_status = quire_kv_history_close(&p.history, exit_status);
    quire_evaluation_fini(&p.result);
    quire_logits_file_close(&p.save_file);
    quire_logits_file_close(&p.base_file);
    free(p.from_text);
    quire_opened_close_runtime(&p.base);
    quire_opened_close(&p.session);
    return exit_status;
}

const quire_command quire_command_perplexity = {
    .name = "perplexity",
    .usage = "[-m] FILE -f FILE [options]",
    .summary = "Measures how well a model predicts a text, and how much a KV format changes the "
               "predictions.",
    .notes =
        "The text is cut into chunks as long as the context, and the second half of each chunk is\n"
        "scored. llama-perplexity does the same, so its figures can be compared with these. With\n"
        "--score-from they cannot, and --logits-base takes files of the same N only.\n"
        "--kv-history describes the cache of --kv, not that of --kld-against.\n\n"
        "example: quire perplexity -m model.gguf -f wiki.test.raw -c 2048 --chunks 4 --kv q8 --kld",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(perplexity_args),
    .check = check,
    .run = run,
};
