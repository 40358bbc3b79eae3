/* cmd_info.c - quire info: description of a model, and memory of its context.
 *
 * Everything is computed from the file; no weights are loaded.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/info_need.h"
#include "cli/commands/info_retain.h"
#include "cli/commands/opened.h"
#include "cli/commands/opened_memory.h"
#include "cli/commands/talk.h"
#include "cli/settings/args.h"
#include "model/archs.h"
#include "model/memory.h"
#include "model/model.h"
#include "model/recurrent.h"

#include "base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct info_args {
    quire_common_args common;
    bool lists_architectures;
    const char *retain; /* NULL = texts keep all tokens */
    int64_t retain_chunk;
    const quire_opened *session; /* no option: the model and the memory */
} info_args;

/* clang-format off */
static const quire_opt options[] = {
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(info_args, common.model), .is_model = true, .help = QUIRE_HELP_MODEL },
    { .names = { "--architectures" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(info_args, lists_architectures),
      .help = "list the architectures that Quire computes, instead of a model" },
    QUIRE_ROW_THREADS,
    QUIRE_ROW_CTX("the context of the training"),
    QUIRE_ROWS_KV("f16", QUIRE_KV_DEFAULT_HERE),
    { .names = { "--memory", "--memory-limit" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1,
      .max = 1e18, .initial_text = "the available memory",
      .offset = offsetof(info_args, common.memory_limit_bytes),
      .help = "memory into which weights, KV pages and buffers must fit" },
    { .names = { "--retain" }, .type = QUIRE_OPT_TEXT, .unit = "POLICY[:SHARE][,KEY=VALUE...]",
      .offset = offsetof(info_args, retain),
      .help = "also the KV bytes of texts that quire serve --retain condenses so" },
    { .names = { "--retain-chunk" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 64,
      .max = QUIRE_TOKENS_MAX, .initial = "1024", .offset = offsetof(info_args, retain_chunk),
      .help = "tokens between two places at which such a text drops tokens, rounded up to whole "
              "pages" },
    QUIRE_ROW_DEVICE,
    QUIRE_ROWS_STEP,
    QUIRE_ROW_JSON,
};
/* clang-format on */

static const uint32_t standard_ctx[] = { 2048, 8192, 32768, 131072 };
#define N_STANDARD_CTX (sizeof(standard_ctx) / sizeof(standard_ctx[0]))

/* One format's costs. */
typedef struct cost {
    quire_format format;
    quire_kv_price price;    /* contexts are counted in whole pages, hot ones left out */
    uint64_t hot_page_bytes; /* of sealed formats */
    uint64_t token_bytes;    /* beyond the windows */
    uint64_t longest_tokens; /* 0 when not even the weights fit */
} cost;

static uint64_t context_bytes(const cost *c, uint64_t n_tokens)
{
    return quire_kv_price_bytes(&c->price, n_tokens);
}

/* A text that keeps a share of its tokens: n_tokens of them in pages, and of sealed formats n_hot
 * in 8 bits, too. */
static uint64_t retained_bytes(const cost *c, uint64_t n_tokens, uint64_t n_hot)
{
    return context_bytes(c, n_tokens) +
           (n_hot + c->price.page_tokens - 1) / c->price.page_tokens * c->hot_page_bytes;
}

/* The memory that admission demands for a request with such a text. */
static uint64_t most_bytes(const cost *c, const quire_condensing *of, uint32_t n_tokens)
{
    quire_kv_price price = quire_condensing_price(of, &c->price);

    price.hot_page_bytes = c->hot_page_bytes;
    return quire_kv_price_bytes(&price, quire_condensing_need(of, n_tokens));
}

/* The runtime's options of other commands, without the formats. */
static quire_runtime_opts runtime_opts(const info_args *args)
{
    const quire_opened_want nothing_special = { 0 };

    return quire_opened_runtime_opts(&args->common, &nothing_special);
}

static cost cost_of(const info_args *args, const quire_model_desc *desc, quire_format format,
                    uint64_t memory_bytes)
{
    quire_runtime_opts opts = runtime_opts(args);
    quire_runtime_opts resolved;
    cost c = { .format = format };

    opts.k_format = opts.v_format = format;
    /* quire_info_need_get() has said why not. */
    (void)quire_opened_device_set(args->session, desc, &opts, NULL);
    resolved = opts;
    quire_runtime_opts_resolve(desc, &resolved);
    c.price = quire_kv_price_make(desc, &resolved);
    c.hot_page_bytes = c.price.hot_page_bytes;
    c.price.hot_page_bytes = 0;
    c.token_bytes = c.price.main_page_bytes / c.price.page_tokens;
    /* A sequence, and so -c, ends at QUIRE_TOKENS_MAX even if more would fit. */
    c.longest_tokens = quire_memory_tokens_max(desc, &opts, memory_bytes,
                                               quire_opened_place(args->session), QUIRE_TOKENS_MAX);
    return c;
}

/* The sizes to list: the trained context and the standard ones, ascending, each once. */
static size_t list_ctx(const quire_model_desc *desc, uint32_t *out)
{
    size_t n = 0;
    bool is_listed = false;

    for (size_t i = 0; i < N_STANDARD_CTX; i++) {
        if (!is_listed && desc->n_ctx_train <= standard_ctx[i]) {
            out[n++] = desc->n_ctx_train;
            is_listed = true;
        }
        if (desc->n_ctx_train != standard_ctx[i]) {
            out[n++] = standard_ctx[i];
        }
    }
    if (!is_listed) {
        out[n++] = desc->n_ctx_train;
    }
    return n;
}

/* Average bits per stored value of a format. */
static double bits_of(const quire_model_desc *desc, quire_format format)
{
    return quire_kv_uniform_bits(desc, (quire_kv_pair){ format, format });
}

static json_t *kv_json(const info_args *args, const quire_model_desc *desc, uint64_t memory_bytes)
{
    uint32_t ctx[N_STANDARD_CTX + 1];
    size_t n_ctx = list_ctx(desc, ctx);
    json_t *rows = json_array();

    for (int f = 0; f < (int)QUIRE_FORMAT_COUNT; f++) {
        cost c = cost_of(args, desc, (quire_format)f, memory_bytes);
        json_t *contexts = json_array();

        for (size_t i = 0; i < n_ctx; i++) {
            json_array_append_new(contexts, json_pack("{s:i, s:I}", "tokens", (int)ctx[i], "bytes",
                                                      (json_int_t)context_bytes(&c, ctx[i])));
        }
        json_array_append_new(rows, json_pack("{s:s, s:f, s:I, s:I, s:I, s:o}", "kv",
                                              quire_format_name(c.format), "bits_per_value",
                                              bits_of(desc, c.format), "bytes_per_token",
                                              (json_int_t)c.token_bytes, "train_context_bytes",
                                              (json_int_t)context_bytes(&c, desc->n_ctx_train),
                                              "longest_context_tokens",
                                              (json_int_t)c.longest_tokens, "contexts", contexts));
    }
    return rows;
}

/* Texts that keep a share of their tokens: bytes at their end, and the most on the way. */
static json_t *retained_json(const info_args *args, const quire_model_desc *desc,
                             quire_info_retain *retained, uint64_t memory_bytes)
{
    uint32_t ctx[N_STANDARD_CTX + 1];
    size_t n_ctx = list_ctx(desc, ctx);
    json_t *rows = json_array();

    for (int f = 0; f < (int)QUIRE_FORMAT_COUNT; f++) {
        const cost c = cost_of(args, desc, (quire_format)f, memory_bytes);
        const quire_condensing of = quire_info_retain_of(retained, c.format);
        json_t *contexts;

        if (!quire_info_retain_works(retained, &of, c.format)) {
            continue;
        }
        contexts = json_array();
        for (size_t i = 0; i < n_ctx; i++) {
            const quire_info_retained held = quire_info_retain_held(&of, ctx[i]);

            json_array_append_new(
                contexts, json_pack("{s:i, s:i, s:I, s:I}", "tokens", (int)ctx[i], "held_tokens",
                                    (int)held.n_tokens, "bytes",
                                    (json_int_t)retained_bytes(&c, held.n_tokens, held.n_hot),
                                    "most_bytes", (json_int_t)most_bytes(&c, &of, ctx[i])));
        }
        json_array_append_new(
            rows, json_pack("{s:s, s:o}", "kv", quire_format_name(c.format), "contexts", contexts));
    }
    return json_pack("{s:s, s:i, s:o}", "policy", retained->policy.text, "chunk",
                     (int)retained->policy.chunk, "kv", rows);
}

static int print_json(const info_args *args, const quire_model_desc *d, const quire_info_need *need,
                      quire_info_retain *retained, uint64_t memory_bytes)
{
    const char *path = args->common.model;
    json_t *document = json_pack(
        "{s:o, s:o, s:o, s:s, s:I, s:I, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, "
        "s:I, "
        "s:o, s:o}",
        "file", quire_json_bytes(path, strlen(path)), "name",
        quire_json_bytes(d->name, strlen(d->name)), "arch",
        quire_json_bytes(d->arch_name, strlen(d->arch_name)), "file_type", d->file_type, "n_params",
        (json_int_t)d->n_params, "weight_bytes", (json_int_t)d->weight_bytes, "n_layer",
        (int)d->n_layer, "n_stored_layers", (int)d->n_stored, "kv_scheme", d->kv_scheme, "n_embd",
        (int)d->n_embd, "n_ff", (int)d->n_ff, "n_head", (int)d->n_head, "n_kv_head",
        (int)d->n_kv_head, "d_k", (int)d->d_k, "d_v", (int)d->d_v, "n_vocab", (int)d->n_vocab,
        "n_ctx_train", (int)d->n_ctx_train, "memory_bytes", (json_int_t)memory_bytes, "need",
        quire_info_need_json(need), "kv", kv_json(args, d, memory_bytes));

    if (document != NULL && args->retain != NULL) {
        (void)json_object_set_new(document, "retained",
                                  retained_json(args, d, retained, memory_bytes));
    }
    return quire_stdout_json(document);
}

/* "2 of 6 layers see 48 to 64 tokens" */
static void print_windows(const quire_model_desc *d)
{
    uint32_t n = 0, least = UINT32_MAX, most = 0;

    for (uint32_t l = 0; l < d->n_layer; l++) {
        if (d->window[l] != 0) {
            n++;
            least = d->window[l] < least ? d->window[l] : least;
            most = d->window[l] > most ? d->window[l] : most;
        }
    }
    if (n > 0 && least == most) {
        printf("  windows     %u of %u layers see %u tokens\n", n, d->n_layer, most);
    } else if (n > 0) {
        printf("  windows     %u of %u layers see %u to %u tokens\n", n, d->n_layer, least, most);
    }
}

/* "8 of 12 layers, a state of 164 KB beside the KV of a text, 82 KB where it is cached (f16)" */
static void print_recurrent(const quire_model_desc *d, int state_type)
{
    const quire_format format = quire_state_type_format(state_type);
    const uint64_t bytes = quire_state_page_bytes(d, QUIRE_FORMAT_F32);
    const uint64_t kept_bytes = quire_state_page_bytes(d, format);
    char text[16];

    if (d->recurrent.n_layers == 0) {
        return;
    }
    printf("  recurrent   %u of %u layers, a state of %s beside the KV of a text",
           d->recurrent.n_layers, d->n_layer, quire_format_bytes(bytes, text, sizeof(text)));
    if (kept_bytes != bytes) {
        printf(", %s where it is cached (%s)", quire_format_bytes(kept_bytes, text, sizeof(text)),
               quire_format_name(format));
    }
    printf("\n");
}

/* "1 to 2 kv heads, K and V 32 to 64 wide" */
static void print_layer_sizes(const quire_model_desc *d)
{
    uint32_t n_least = d->n_kv_head, d_least = d->d_k;

    for (uint32_t l = 0; l < d->n_layer; l++) {
        const quire_layer_sizes sizes = quire_layer_sizes_of(d, l);

        n_least = sizes.n_kv_head < n_least ? sizes.n_kv_head : n_least;
        d_least = sizes.d_k < d_least ? sizes.d_k : d_least;
    }
    printf("  layers      %u to %u kv heads, K and V %u to %u wide\n", n_least, d->n_kv_head,
           d_least, d->d_k);
}

static void print_attention(const quire_model_desc *d)
{
    if (d->latent.is_there) {
        printf("  attention   %u heads over one row of %u, V its first %u, rope base %g\n",
               d->n_head, d->d_k, d->d_v, (double)d->rope.freq_base);
        return;
    }
    printf("  attention   %u heads, %u kv heads, K %u and V %u wide, rope base %g%s%s\n", d->n_head,
           d->n_kv_head, d->d_k, d->d_v, (double)d->rope.freq_base,
           d->has_qk_norm ? ", normalised q and k" : "", d->has_qkv_bias ? ", biases" : "");
    if (d->has_layer_sizes) {
        print_layer_sizes(d);
    }
}

static void print_shape(const char *path, const quire_model_desc *d, int state_type)
{
    char weights[16];

    printf("%s\n", path);
    printf("  name        %s\n", d->name[0] != '\0' ? d->name : "(none)");
    printf("  type        %s, %s, %.4g M parameters, weights %s\n", d->arch_name, d->file_type,
           (double)d->n_params / 1e6,
           quire_format_bytes(d->weight_bytes, weights, sizeof(weights)));
    printf("  shape       %u layers (%u store KV%s%s), %u wide, feed-forward %u, vocabulary %u\n",
           d->n_layer, d->n_stored, d->kv_scheme[0] != '\0' ? ": " : "", d->kv_scheme, d->n_embd,
           d->n_ff, d->n_vocab);
    if (d->experts.router.n_experts > 0) {
        printf("  experts     %u of %u for a token, each %u wide", d->experts.router.n_used,
               d->experts.router.n_experts, d->experts.n_ff);
        if (d->experts.n_ff_shared > 0) {
            printf(", %u wide for all tokens", d->experts.n_ff_shared);
        }
        if (d->experts.n_dense > 0) {
            printf(", none in the first %u layers", d->experts.n_dense);
        }
        printf("\n");
    }
    print_attention(d);
    print_windows(d);
    print_recurrent(d, state_type);
    printf("  context     %u tokens in training\n", d->n_ctx_train);
}

static void print_costs(const info_args *args, const quire_model_desc *d, uint64_t memory_bytes)
{
    uint32_t ctx[N_STANDARD_CTX + 1];
    size_t n_ctx = list_ctx(d, ctx);
    char text[16];

    printf("\n  KV bytes    per token");
    for (size_t i = 0; i < n_ctx; i++) {
        printf(" %9u%c", ctx[i], ctx[i] == d->n_ctx_train ? '*' : ' ');
    }
    printf("   longest context in %s%s\n", quire_format_bytes(memory_bytes, text, sizeof(text)),
           quire_opened_place(args->session) != NULL ? " and on devices" : "");
    for (int f = 0; f < (int)QUIRE_FORMAT_COUNT; f++) {
        cost c = cost_of(args, d, (quire_format)f, memory_bytes);

        printf("  %-11s %9" PRIu64, quire_format_name(c.format), c.token_bytes);
        for (size_t i = 0; i < n_ctx; i++) {
            printf(" %9s ", quire_format_bytes(context_bytes(&c, ctx[i]), text, sizeof(text)));
        }
        if (c.longest_tokens > 0) {
            printf("   %" PRIu64 " tokens\n", c.longest_tokens);
        } else {
            printf("   %s\n",
                   memory_bytes < d->resident_bytes ? "weights do not fit" : "none fits");
        }
    }
    if (cost_of(args, d, QUIRE_FORMAT_F16, memory_bytes).price.window_tokens != 0) {
        printf("  A token costs this much beyond the windows: layers with a window keep the window "
               "and a\n  step of a sequence, which the sums include.\n");
    }
    printf("  * trained context. The longest context leaves room for weights and buffers, is in\n"
           "  whole pages of %u tokens and at most %u tokens.\n",
           (unsigned)args->common.page_tokens, (unsigned)QUIRE_TOKENS_MAX);
}

static void print_retained_row(const quire_model_desc *d, const cost *c, const quire_condensing *of)
{
    uint32_t ctx[N_STANDARD_CTX + 1];
    const size_t n_ctx = list_ctx(d, ctx);
    char text[16];

    printf("  %-21s", quire_format_name(c->format));
    for (size_t i = 0; i < n_ctx; i++) {
        const quire_info_retained held = quire_info_retain_held(of, ctx[i]);
        const uint64_t bytes = retained_bytes(c, held.n_tokens, held.n_hot);

        printf(" %9s ", quire_format_bytes(bytes, text, sizeof(text)));
    }
    printf("\n  %-21s", "  most on the way");
    for (size_t i = 0; i < n_ctx; i++) {
        printf(" %9s ", quire_format_bytes(most_bytes(c, of, ctx[i]), text, sizeof(text)));
    }
    printf("\n");
}

/* Bytes as those of print_costs(), of texts that keep a share of their tokens. */
static void print_retained(const info_args *args, const quire_model_desc *d,
                           quire_info_retain *retained, uint64_t memory_bytes)
{
    printf("\n  KV bytes with --retain %s, every %u tokens\n", retained->policy.text,
           retained->policy.chunk);
    for (int f = 0; f < (int)QUIRE_FORMAT_COUNT; f++) {
        const cost c = cost_of(args, d, (quire_format)f, memory_bytes);

        const quire_condensing of = quire_info_retain_of(retained, c.format);

        if (quire_info_retain_works(retained, &of, c.format)) {
            print_retained_row(d, &c, &of);
        }
    }
    printf("  The kept tokens of the last place in whole pages, and the tokens behind it. The most "
           "is needed\n  before a place, or while a text is condensed there: the least --kv-budget "
           "of quire serve with\n  this --retain. q6 to q3 have the tokens behind the place in 8 "
           "bits, too.\n");
}

static void print_architectures(void)
{
    for (int a = 0; a < (int)QUIRE_ARCH_COUNT; a++) {
        const quire_arch_row *row = quire_arch_row_get((quire_arch)a);

        printf("%-14s %s\n", row->name, row->models);
    }
}

static int print_architectures_json(void)
{
    json_t *list = json_array();

    for (int a = 0; a < (int)QUIRE_ARCH_COUNT; a++) {
        const quire_arch_row *row = quire_arch_row_get((quire_arch)a);

        (void)json_array_append_new(
            list, json_pack("{s:s, s:s}", "name", row->name, "models", row->models));
    }
    return quire_stdout_json(json_pack("{s:o}", "architectures", list));
}

static int check(const void *opaque, quire_error *err)
{
    const info_args *args = opaque;

    if (args->common.model == NULL && !args->lists_architectures) {
        return quire_error_set(err, QUIRE_INVAL, "-m FILE is missing (" QUIRE_HELP_MODEL ")");
    }
    return quire_common_check(opaque, err);
}

/* The model is described. */
static int show(info_args *args, const quire_info_need *need, quire_info_retain *retained)
{
    const quire_model_desc *desc = args->session->desc;
    const uint64_t memory_bytes = args->session->memory_limit_bytes;

    if (args->common.is_json) {
        return print_json(args, desc, need, retained, memory_bytes);
    }
    print_shape(args->common.model, desc, args->common.kv.state);
    print_costs(args, desc, memory_bytes);
    if (args->retain != NULL) {
        print_retained(args, desc, retained, memory_bytes);
    }
    quire_info_need_print(need);
    return QUIRE_EXIT_OK;
}

static int run(void *opaque)
{
    info_args *args = opaque;
    quire_info_retain retained = { .policy = { .chunk = 0 } };
    quire_error err = QUIRE_ERROR_INIT;
    quire_opened session = { .model = NULL };
    quire_info_need need;
    int exit_status;
    int rc;

    if (args->lists_architectures) {
        if (args->common.is_json) {
            return print_architectures_json();
        }
        print_architectures();
        return QUIRE_EXIT_OK;
    }
    args->session = &session;
    rc = quire_opened_describe(&session, &args->common, &err);
    if (rc == QUIRE_OK) {
        retained.desc = session.desc;
        rc = quire_info_need_get(&need, &session, &args->common, &err);
    }
    if (rc == QUIRE_OK && args->retain != NULL) {
        rc = quire_info_retain_read(&retained, args->retain, (uint32_t)args->retain_chunk,
                                    (uint32_t)args->common.page_tokens, &err);
    }
    exit_status =
        rc == QUIRE_OK ? show(args, &need, &retained) : quire_say_error(&err, QUIRE_EXIT_FAILED);
    quire_info_retain_fini(&retained);
    quire_opened_close(&session);
    return exit_status;
}

const quire_command quire_command_info = {
    .name = "info",
    .usage = "{[-m] FILE | --architectures} [-c N] [--kv K[:V]] [--memory BYTES] [options]",
    .summary = "Shows a model's shape and the memory of its KV cache in every format.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(info_args),
    .check = check,
    .run = run,
};
