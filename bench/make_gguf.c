/* make_gguf.c - command line of the random-weight model generator.
 *
 *   make_gguf --shape smollm2-135m --type q8_0 -o FILE [--ctx 65536] [--layers N] ...
 *   make_gguf --shape smollm2-135m --scheme fusedkv-lite -o FILE
 *   make_gguf --shape tiny-llama --arch gemma3 --sliding-window 24 -o FILE
 *   make_gguf --family gpt-oss --type q8_0 --expert-type mxfp4 -o FILE
 *   make_gguf --families
 *
 * SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "arch_cases.h"
#include "base/parse.h"
#include "gguf_gen.h"
#include "gguf_gen_scheme.h"

enum {
    OPT_SHAPE = 256,
    OPT_FAMILY,
    OPT_FAMILIES,
    OPT_SCHEME,
    OPT_ARCH,
    OPT_TYPE,
    OPT_TYPE_MORE,
    OPT_EXPERT_TYPE,
    OPT_SEED,
    OPT_SCALING,
    OPT_FACTOR,
    OPT_BASE,
    OPT_TIED,
    OPT_UNTIED,
    OPT_WINDOW_ARRAY,
    OPT_JOINT_LATENT,
    OPT_HELP,
    OPT_SIZE /* the first of the table below */
};

/* Options that set one size. */
static const struct {
    const char *name;
    size_t offset;
} sizes[] = {
    { "layers", offsetof(gguf_gen_opts, n_layer) },
    { "embd", offsetof(gguf_gen_opts, n_embd) },
    { "ff", offsetof(gguf_gen_opts, n_ff) },
    { "heads", offsetof(gguf_gen_opts, n_head) },
    { "kv-heads", offsetof(gguf_gen_opts, n_kv_head) },
    { "head-dim", offsetof(gguf_gen_opts, d_head) },
    { "vocab", offsetof(gguf_gen_opts, n_vocab) },
    { "ctx", offsetof(gguf_gen_opts, n_ctx) },
    { "rope-ctx", offsetof(gguf_gen_opts, rope_ctx_orig) },
    { "window", offsetof(gguf_gen_opts, window) },
    { "sliding-window", offsetof(gguf_gen_opts, sliding_window) },
    { "rotated", offsetof(gguf_gen_opts, n_rot) },
    { "latent", offsetof(gguf_gen_opts, n_latent) },
    { "latent-q", offsetof(gguf_gen_opts, n_latent_q) },
    { "value-dim", offsetof(gguf_gen_opts, d_value) },
    { "attention-every", offsetof(gguf_gen_opts, attention_every) },
    { "conv-taps", offsetof(gguf_gen_opts, conv_taps) },
    { "ssm-groups", offsetof(gguf_gen_opts, n_delta_k_heads) },
    { "ssm-heads", offsetof(gguf_gen_opts, n_delta_v_heads) },
    { "ssm-head-dim", offsetof(gguf_gen_opts, d_delta_head) },
    { "ssm-state", offsetof(gguf_gen_opts, d_mamba_state) },
    { "distinct", offsetof(gguf_gen_opts, n_distinct) },
    { "nextn", offsetof(gguf_gen_opts, n_nextn) },
    { "experts", offsetof(gguf_gen_opts, n_experts) },
    { "experts-used", offsetof(gguf_gen_opts, n_experts_used) },
    { "expert-groups", offsetof(gguf_gen_opts, n_expert_groups) },
    { "expert-ff", offsetof(gguf_gen_opts, n_ff_expert) },
    { "shared-ff", offsetof(gguf_gen_opts, n_ff_shared) },
    { "window-head-dim", offsetof(gguf_gen_opts, window_d_head) },
    { "shared-kv", offsetof(gguf_gen_opts, n_shared_kv) },
    { "layer-embd", offsetof(gguf_gen_opts, n_embd_layer) },
};
#define N_SIZES  (sizeof(sizes) / sizeof(sizes[0]))
#define N_OTHERS 18u

static int usage(FILE *stream)
{
    (void)fprintf(stream, "usage: make_gguf (--shape SHAPE | --family FAMILY) -o FILE "
                          "[--type q8_0|q4_0|f16|f32|...]\n"
                          "       [--type-more q6_K|...] [--expert-type mxfp4|...] [--seed N]\n"
                          "       [--layers N] [--embd N] [--ff N] [--heads N] [--kv-heads N] "
                          "[--head-dim N] [--vocab N]\n"
                          "       [--ctx N] [--rope-scaling none|linear|yarn|llama3] "
                          "[--rope-factor X] [--rope-ctx N]\n"
                          "       [--rope-base X] [--tied | --untied] [--scheme SCHEME] "
                          "[--window N]\n"
                          "       [--arch NAME] [--sliding-window N] [--rotated N] [--latent N] "
                          "[--latent-q N] [--value-dim N]\n"
                          "       [--attention-every N] [--conv-taps N] [--ssm-groups N] "
                          "[--ssm-heads N] [--ssm-head-dim N]\n"
                          "       [--ssm-state N] [--distinct VALUES] [--nextn N] [--window-array] "
                          "[--joint-latent]\n"
                          "       [--experts N] [--experts-used N] [--expert-groups N] "
                          "[--expert-ff N] [--shared-ff N]\n"
                          "       [--window-head-dim N] [--shared-kv N] [--layer-embd N]\n"
                          "       make_gguf --families   names of --family, small models of all "
                          "architectures\n"
                          "shapes:");
    for (unsigned i = 0; gguf_gen_shape_name(i) != NULL; i++) {
        (void)fprintf(stream, " %s", gguf_gen_shape_name(i));
    }
    (void)fprintf(stream, "\nschemes:");
    for (unsigned i = 0; gguf_gen_scheme_name(i) != NULL; i++) {
        (void)fprintf(stream, " %s", gguf_gen_scheme_name(i));
    }
    (void)fprintf(stream, "\n");
    return stream == stdout ? 0 : 2;
}

static bool type_parse(const char *name, enum ggml_type *out)
{
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const char *candidate = ggml_type_name((enum ggml_type)type);

        if (candidate != NULL && ggml_blck_size((enum ggml_type)type) > 0 &&
            strcasecmp(candidate, name) == 0) {
            *out = (enum ggml_type)type;
            return true;
        }
    }
    return false;
}

static bool float_parse(const char *text, float *out)
{
    double value = 0.0;

    if (quire_parse_f64(text, 1e-6, 1e12, &value) != QUIRE_OK) {
        return false;
    }
    *out = (float)value;
    return true;
}

static bool option_apply(int option, const char *text, gguf_gen_opts *opts)
{
    int64_t number = 0;

    switch (option) {
    case OPT_SHAPE: /* taken first, see main() */
    case OPT_FAMILY:
    case OPT_SCHEME: /* applied last */
        return true;
    case OPT_ARCH: /* gguf_gen_write() knows the names */
        return (size_t)snprintf(opts->arch, sizeof(opts->arch), "%s", text) < sizeof(opts->arch);
    case OPT_TYPE:
        return type_parse(text, &opts->type);
    case OPT_TYPE_MORE:
        return type_parse(text, &opts->type_more);
    case OPT_EXPERT_TYPE:
        opts->has_expert_type = true;
        return opts->n_experts != 0 && type_parse(text, &opts->expert_type);
    case OPT_SEED:
        if (quire_parse_i64(text, 0, INT64_MAX, &number) != QUIRE_OK) {
            return false;
        }
        opts->seed = (uint64_t)number;
        return true;
    case OPT_SCALING:
        (void)snprintf(opts->rope_scaling, sizeof(opts->rope_scaling), "%s", text);
        return strcmp(text, "none") == 0 || strcmp(text, "linear") == 0 ||
               strcmp(text, "yarn") == 0 || strcmp(text, "llama3") == 0 ||
               strcmp(text, "longrope") == 0;
    case OPT_FACTOR:
        return float_parse(text, &opts->rope_factor);
    case OPT_BASE:
        return float_parse(text, &opts->rope_base);
    case OPT_TIED:
    case OPT_UNTIED:
        opts->is_tied = option == OPT_TIED;
        return true;
    case OPT_WINDOW_ARRAY:
        opts->has_window_array = true;
        return true;
    case OPT_JOINT_LATENT:
        opts->has_joint_latent = true;
        return true;
    default:
        if (quire_parse_i64(text, 1, 1 << 24, &number) != QUIRE_OK) {
            return false;
        }
        *(uint32_t *)(void *)((char *)opts + sizes[option - OPT_SIZE].offset) = (uint32_t)number;
        return true;
    }
}

static void options_fill(struct option *options)
{
    const struct option others[N_OTHERS] = {
        { "shape", required_argument, NULL, OPT_SHAPE },
        { "family", required_argument, NULL, OPT_FAMILY },
        { "families", no_argument, NULL, OPT_FAMILIES },
        { "scheme", required_argument, NULL, OPT_SCHEME },
        { "arch", required_argument, NULL, OPT_ARCH },
        { "type", required_argument, NULL, OPT_TYPE },
        { "type-more", required_argument, NULL, OPT_TYPE_MORE },
        { "expert-type", required_argument, NULL, OPT_EXPERT_TYPE },
        { "seed", required_argument, NULL, OPT_SEED },
        { "rope-scaling", required_argument, NULL, OPT_SCALING },
        { "rope-factor", required_argument, NULL, OPT_FACTOR },
        { "rope-base", required_argument, NULL, OPT_BASE },
        { "tied", no_argument, NULL, OPT_TIED },
        { "untied", no_argument, NULL, OPT_UNTIED },
        { "window-array", no_argument, NULL, OPT_WINDOW_ARRAY },
        { "joint-latent", no_argument, NULL, OPT_JOINT_LATENT },
        { "help", no_argument, NULL, OPT_HELP },
        { NULL, 0, NULL, 0 },
    };

    for (size_t i = 0; i < N_SIZES; i++) {
        options[i] = (struct option){ sizes[i].name, required_argument, NULL, OPT_SIZE + (int)i };
    }
    memcpy(options + N_SIZES, others, sizeof(others));
}

/* One by line, "experts" behind those with experts. */
static int families_print(void)
{
    arch_family family;

    for (size_t i = 0; arch_family_get(i, &family); i++) {
        (void)printf("%s%s\n", family.name, family.has_experts ? " experts" : "");
    }
    return 0;
}

static bool family_take(const char *name, gguf_gen_opts *opts)
{
    arch_family family;

    if (!arch_family_find(name, &family)) {
        return false;
    }
    *opts = family.options;
    return true;
}

int main(int argc, char **argv)
{
    struct option options[N_SIZES + N_OTHERS];
    gguf_gen_opts opts = { 0 };
    quire_error err = QUIRE_ERROR_INIT;
    const char *scheme = NULL;
    const char *path = NULL;
    int option;

    options_fill(options);
    /* Apply the shape first: the other options modify it, regardless of their order. */
    while ((option = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
        if (option == OPT_HELP) {
            return usage(stdout);
        }
        if (option == OPT_FAMILIES) {
            return families_print();
        }
        if (option == '?' || (option == OPT_SHAPE && !gguf_gen_shape(optarg, &opts)) ||
            (option == OPT_FAMILY && !family_take(optarg, &opts))) {
            return usage(stderr);
        }
        path = option == 'o' ? optarg : path;
        scheme = option == OPT_SCHEME ? optarg : scheme;
    }
    if (path == NULL || opts.n_layer == 0 || optind != argc) {
        return usage(stderr);
    }
    optind = 1;
    while ((option = getopt_long(argc, argv, "o:", options, NULL)) != -1) {
        if (option != 'o' && !option_apply(option, optarg, &opts)) {
            (void)fprintf(stderr, "make_gguf: %s: invalid value '%s'\n", argv[optind - 2], optarg);
            return 2;
        }
    }
    if (opts.window != 0 && scheme == NULL) {
        (void)fprintf(stderr, "make_gguf: --window needs --scheme yoco or yoco++\n");
        return 2;
    }
    if ((scheme != NULL && gguf_gen_scheme_apply(&opts, scheme, &err) != QUIRE_OK) ||
        gguf_gen_write(&opts, path, &err) != QUIRE_OK) {
        (void)fprintf(stderr, "make_gguf: %s\n", err.message);
        return err.status == QUIRE_INVAL || err.status == QUIRE_NOTFOUND ? 2 : 1;
    }
    return 0;
}
