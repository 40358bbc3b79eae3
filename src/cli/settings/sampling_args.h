/* sampling_args.h - options that choose tokens, of run, chat and serve, in llama.cpp's names.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SAMPLING_ARGS_H
#define QUIRE_CLI_SAMPLING_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/settings/options.h"
#include "model/sampler.h"

typedef struct quire_sampling_args {
    double temperature;
    double dynatemp_range;
    double dynatemp_exponent;
    int64_t top_k;
    double top_p;
    double min_p;
    double top_n_sigma;
    double typical_p;
    double xtc_probability;
    double xtc_threshold;
    double repeat_penalty;
    double frequency_penalty;
    double presence_penalty;
    int64_t repeat_last_n;
    double dry_multiplier;
    double dry_base;
    int64_t dry_allowed_length;
    int64_t dry_penalty_last_n;
    int64_t mirostat;
    double mirostat_tau;
    double mirostat_eta;
    const char *samplers; /* names; NULL = all in the usual order */
    const char *letters;  /* the same by letters */
    int64_t seed;         /* -1 = a new one each time */
    int64_t n_predict;    /* -1 = no limit */
    bool ignores_eos;
} quire_sampling_args;

/* The likeliest token, and none to generate. */
#define QUIRE_SAMPLING_ARGS_INIT                                                                   \
    {                                                                                              \
        .top_p = 1, .typical_p = 1, .repeat_penalty = 1, .dry_base = 1, .dynatemp_exponent = 1     \
    }

/* Check --samplers and --sampler-seq. Errors: QUIRE_INVAL. */
int quire_sampling_args_check(const quire_sampling_args *args, quire_error *err);
/* Options of checked arguments; others than those of quire_sampling_args stay. */
void quire_sampling_args_apply(const quire_sampling_args *args, quire_sampler_opts *opts);

/* clang-format off */
#define QUIRE_ROW_SAMPLING_REAL(args_type, member, unit_, min_, max_, initial_, help_, ...)        \
    { .names = { __VA_ARGS__ }, .type = QUIRE_OPT_REAL, .unit = (unit_), .min = (min_),            \
      .max = (max_), .initial = (initial_), .offset = offsetof(args_type, sampling.member),        \
      .help = (help_) }
#define QUIRE_ROW_SAMPLING_COUNT(args_type, member, min_, max_, initial_, help_, ...)              \
    { .names = { __VA_ARGS__ }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = (min_),               \
      .max = (max_), .initial = (initial_), .offset = offsetof(args_type, sampling.member),        \
      .help = (help_) }

#define QUIRE_ROWS_PENALTIES(args_type)                                                            \
    QUIRE_ROW_SAMPLING_REAL(args_type, repeat_penalty, "P", 0.01, 10, "1",                         \
        "lower the logits of the last tokens of the answer by the factor P; 1: off",               \
        "--repeat-penalty"),                                                                       \
    QUIRE_ROW_SAMPLING_REAL(args_type, frequency_penalty, "F", -2, 2, "0",                         \
        "lower a token's logit by F for each time it is among the last tokens of the answer; "     \
        "0: off", "--frequency-penalty"),                                                          \
    QUIRE_ROW_SAMPLING_REAL(args_type, presence_penalty, "P", -2, 2, "0",                          \
        "lower the logits of the last tokens of the answer by P once; 0: off",                     \
        "--presence-penalty"),                                                                     \
    QUIRE_ROW_SAMPLING_COUNT(args_type, repeat_last_n, 0, QUIRE_PENALTY_TOKENS_MAX, "64",          \
        "tokens of the answer that these penalties count; 0: none", "--repeat-last-n"),            \
    QUIRE_ROW_SAMPLING_REAL(args_type, dry_multiplier, "M", 0, 100, "0",                           \
        "DRY: lower the logit of a token that would go on with a repetition of n tokens by M * "   \
        "B^(n - L); 0: off", "--dry-multiplier"),                                                  \
    QUIRE_ROW_SAMPLING_REAL(args_type, dry_base, "B", 1, 100, "1.75", "the B of DRY",              \
        "--dry-base"),                                                                             \
    QUIRE_ROW_SAMPLING_COUNT(args_type, dry_allowed_length, 0, INT32_MAX, "2",                     \
        "the L of DRY: shorter repetitions cost nothing", "--dry-allowed-length"),                 \
    QUIRE_ROW_SAMPLING_COUNT(args_type, dry_penalty_last_n, 0, QUIRE_PENALTY_TOKENS_MAX, "64",     \
        "last tokens of prompt and answer in which DRY looks for repetitions; 0: none",            \
        "--dry-penalty-last-n")

#define QUIRE_ROWS_TRUNCATION(args_type)                                                           \
    QUIRE_ROW_SAMPLING_COUNT(args_type, top_k, 0, INT32_MAX, "40",                                 \
        "sample among the N most likely tokens; 0: off", "--top-k"),                               \
    QUIRE_ROW_SAMPLING_REAL(args_type, top_p, "P", 0, 1, "0.95",                                   \
        "sample among the likeliest tokens whose chances add up to P; 1: off", "--top-p"),         \
    QUIRE_ROW_SAMPLING_REAL(args_type, min_p, "P", 0, 1, "0.05",                                   \
        "drop tokens less likely than P times the likeliest token; 0: off", "--min-p"),            \
    QUIRE_ROW_SAMPLING_REAL(args_type, top_n_sigma, "N", -1, 100, "-1",                            \
        "drop tokens whose logit is more than N standard deviations below the largest; 0, -1: "    \
        "off", "--top-nsigma", "--top-n-sigma"),                                                   \
    QUIRE_ROW_SAMPLING_REAL(args_type, typical_p, "P", 0, 1, "1",                                  \
        "locally typical sampling: keep the tokens whose surprise is nearest to the entropy, up "  \
        "to a sum of chances of P; 1: off", "--typical", "--typical-p"),                           \
    QUIRE_ROW_SAMPLING_REAL(args_type, xtc_probability, "P", 0, 1, "0",                            \
        "XTC: with this chance drop all but the least likely of the tokens above "                 \
        "--xtc-threshold; 0: off", "--xtc-probability"),                                           \
    QUIRE_ROW_SAMPLING_REAL(args_type, xtc_threshold, "P", 0, 1, "0.1",                            \
        "the chance from which on XTC drops tokens; above 0.5: off", "--xtc-threshold"),           \
    QUIRE_ROW_SAMPLING_COUNT(args_type, mirostat, 0, 2, "0",                                       \
        "mirostat 1 or 2, in place of all samplers but penalties, DRY and --temp; 0: off",         \
        "--mirostat"),                                                                             \
    QUIRE_ROW_SAMPLING_REAL(args_type, mirostat_eta, "E", 0, 10, "0.1",                            \
        "learning rate of mirostat", "--mirostat-lr"),                                             \
    QUIRE_ROW_SAMPLING_REAL(args_type, mirostat_tau, "T", 0, 100, "5",                             \
        "target surprise of mirostat", "--mirostat-ent")

/* Sampling options. For a struct `args_type` with a member `sampling`. */
#define QUIRE_ROWS_SAMPLER(args_type, heading)                                                     \
    { .section = (heading),                                                                        \
      .names = { "--temp" }, .type = QUIRE_OPT_REAL, .unit = "T", .min = 0, .max = 100,            \
      .initial = "0.8", .offset = offsetof(args_type, sampling.temperature),                       \
      .help = "temperature of sampling; 0 always takes the most likely token" },                   \
    QUIRE_ROW_SAMPLING_REAL(args_type, dynatemp_range, "R", 0, 100, "0",                           \
        "dynamic temperature: within T - R .. T + R of --temp T, by the entropy of the tokens; "   \
        "0: off", "--dynatemp-range"),                                                             \
    QUIRE_ROW_SAMPLING_REAL(args_type, dynatemp_exponent, "E", 0, 100, "1",                        \
        "how the entropy becomes the dynamic temperature", "--dynatemp-exp"),                      \
    QUIRE_ROWS_TRUNCATION(args_type), QUIRE_ROWS_PENALTIES(args_type),                             \
    { .names = { "--samplers" }, .type = QUIRE_OPT_TEXT, .unit = "NAMES",                          \
      .initial_text = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",         \
      .offset = offsetof(args_type, sampling.samplers),                                            \
      .help = "samplers in their order, with ; between; others are off. penalties come first, "    \
              "then dry" },                                                                        \
    { .names = { "--sampling-seq", "--sampler-seq" }, .type = QUIRE_OPT_TEXT, .unit = "LETTERS",   \
      .initial_text = "edskypmxt", .offset = offsetof(args_type, sampling.letters),                \
      .help = "--samplers by their letters" }

#define QUIRE_ROWS_SAMPLING(args_type)                                                             \
    { .names = { "-n", "--predict" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = -1,             \
      .max = QUIRE_TOKENS_MAX, .initial = "-1", .initial_text = "-1, no limit",                    \
      .offset = offsetof(args_type, sampling.n_predict), .help = "most tokens to generate" },      \
    QUIRE_ROWS_SAMPLER(args_type, NULL),                                                           \
    { .names = { "-s", "--seed" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = -1,                \
      .max = 4294967294.0, .initial = "-1", .initial_text = "-1, another one each time",           \
      .offset = offsetof(args_type, sampling.seed), .help = "seed of the random choices" },        \
    { .names = { "--ignore-eos" }, .type = QUIRE_OPT_FLAG,                                         \
      .offset = offsetof(args_type, sampling.ignores_eos),                                         \
      .help = "never choose a token that ends the text" }
/* clang-format on */

#endif /* QUIRE_CLI_SAMPLING_ARGS_H */
