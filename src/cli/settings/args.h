/* args.h - options that several commands share: their values and their table rows.
 *
 * A command's argument struct begins with quire_common_args; its table begins with the shared rows
 * and adds its own.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_ARGS_H
#define QUIRE_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/settings/kv_args.h"
#include "cli/settings/options.h"
#include "cli/settings/sampling_args.h"
#include "quire/cache.h"

#define QUIRE_THREADS_MAX 512
/* Tokens between two condensings, with --retain. */
#define QUIRE_PREFILL_CHUNK_DEFAULT 2048
/* Longest context; quire_cache_opts.seq_tokens_max has the same default. */
#define QUIRE_TOKENS_MAX (1 << 20)

typedef struct quire_common_args {
    const char *model;
    int64_t n_threads; /* 0 = all CPUs available */
    int64_t n_ctx;     /* 0 = the command's default */
    quire_kv_args kv;
    uint64_t kv_budget_bytes;    /* 0 = the need of the context */
    uint64_t memory_limit_bytes; /* 0 = the available memory */
    const char *retain;          /* of run and perplexity: a policy; NULL = all tokens are kept */
    int64_t prefill_chunk;       /* 0 = the default */
    const char *attend;          /* of run and perplexity: "top:SHARE"; NULL = all is read */
    int64_t page_tokens;
    int64_t n_batch;
    const char *kv_history;            /* NULL = not asked for */
    const char *cache_dir;             /* of run, chat and bench; NULL = none */
    int kv_overflow;                   /* quire_kv_overflow */
    uint64_t kv_overflow_memory_bytes; /* of the host, for pages of a device; 0 = as
                                          quire_opened_overflow_bytes() says */
    int kv_overflow_attend;            /* of run, chat and serve: quire_overflow_attend */
    uint64_t cache_disk_bytes;
    const char *device;              /* of run, chat, serve, perplexity and bench; NULL = cpu */
    const char *const *device_names; /* [n_device_names], of serve with a runtime on each of several
                                        devices: `device` is one of them. NULL: it is alone */
    uint32_t n_device_names;
    int64_t n_device_layers;  /* of the model, with their weights there */
    int split_mode;           /* quire_split_mode, of several names in `device` */
    const char *tensor_split; /* with QUIRE_SPLIT_LAYER: a share for each name; NULL = by memory */
    bool is_json;
} quire_common_args;

/* What several devices have of a model; the words of --split-mode are in this order. */
typedef enum quire_split_mode {
    QUIRE_SPLIT_NONE,  /* each has all layers: of quire serve alone */
    QUIRE_SPLIT_LAYER, /* each has some of the layers */
    QUIRE_SPLIT_ROW    /* refused by name */
} quire_split_mode;
extern const char *const quire_split_modes[];

/* --kv-overflow-attend, in the order of quire_overflow_attend. */
extern const char *const quire_kv_overflow_attends[];

/* Texts whose KV is larger than the budget. */
typedef enum quire_kv_overflow {
    QUIRE_KV_OVERFLOW_AUTO, /* as TIER if quire_overflow_check() allows the model, else as REFUSE */
    QUIRE_KV_OVERFLOW_TIER, /* in a file in cache_dir, if there is one; of a device, in the host's
                               memory */
    QUIRE_KV_OVERFLOW_REFUSE
} quire_kv_overflow;

#define QUIRE_TEXT_OF(macro)  QUIRE_TEXT_OF_(macro)
#define QUIRE_TEXT_OF_(words) #words

#define QUIRE_HELP_MODEL "model: a GGUF file, or the name of one that quire pull has fetched"

/* clang-format off */
#define QUIRE_ROW_MODEL                                                                            \
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .is_required = true, .is_model = true, \
      .unit = "FILE", .offset = offsetof(quire_common_args, model), .help = QUIRE_HELP_MODEL }

/* For commands that call quire_place_model() or quire_place_chat_model(). */
#define QUIRE_ROW_MODEL_OPTIONAL(initial)                                                          \
    { .names = { "-m", "--model" }, .type = QUIRE_OPT_TEXT, .is_model = true, .unit = "FILE",      \
      .initial_text = initial,                                                                     \
      .offset = offsetof(quire_common_args, model), .help = QUIRE_HELP_MODEL }

#define QUIRE_ROW_JSON                                                                             \
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG,                                               \
      .offset = offsetof(quire_common_args, is_json),                                              \
      .help = "print one JSON document on stdout instead of text" }

/* Of commands that can have their KV on a device. */
#define QUIRE_ROWS_DEVICE_NAMES                                                                    \
    { .names = { "--device" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",                             \
      .initial_text = "cpu", .offset = offsetof(quire_common_args, device),                        \
      .help = "where KV pages and attention are: cpu, vulkan0, vulkan1, ..., cuda0, cuda1, ..., "  \
              "or auto: the first card that Vulkan lists, else the first that CUDA lists, else "   \
              "cpu. Matrix products stay on the CPU, except those of -ngl. Several names have "    \
              "commas between: with --split-mode layer, and in quire serve" },                     \
    { .names = { "-sm", "--split-mode" }, .type = QUIRE_OPT_CHOICE,                                \
      .choices = quire_split_modes, .initial = "none",                                             \
      .offset = offsetof(quire_common_args, split_mode),                                           \
      .help = "with several names in --device: none: each device has the KV of all layers, for "   \
              "some of the requests of quire serve; layer: each has the KV of some layers, for "   \
              "all texts. row is refused" },                                                       \
    { .names = { "-ts", "--tensor-split" }, .type = QUIRE_OPT_TEXT, .unit = "SHARES",              \
      .initial_text = "in proportion to memory",                                                   \
      .offset = offsetof(quire_common_args, tensor_split),                                         \
      .help = "with --split-mode layer: the shares of the devices in the layers' KV, with commas " \
              "between: \"3,1\"" }

#define QUIRE_ROW_DEVICE                                                                           \
    QUIRE_ROWS_DEVICE_NAMES,                                                                       \
    { .names = { "-ngl", "--gpu-layers", "--n-gpu-layers" }, .type = QUIRE_OPT_COUNT, .unit = "N", \
      .min = 0, .max = INT32_MAX, .initial_text = "0",                                             \
      .offset = offsetof(quire_common_args, n_device_layers),                                      \
      .help = "with --device: so many layers of the model, the last ones, have their weights and " \
              "products on the device, in quire serve on each of several cards; the output " \
              "matrix counts as the layer behind the last" }

#define QUIRE_ROW_THREADS                                                                          \
    { .names = { "-t", "--threads" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,              \
      .max = QUIRE_THREADS_MAX, .initial_text = "all CPUs available",                              \
      .offset = offsetof(quire_common_args, n_threads), .help = "CPU threads" }

/* block_key: for commands with settings. */
#define QUIRE_ROW_CTX(default_text)                                                                \
    { .names = { "-c", "--ctx", "--ctx-size" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,    \
      .max = QUIRE_TOKENS_MAX, .initial_text = (default_text),                                     \
      .offset = offsetof(quire_common_args, n_ctx), .help = "context in tokens",                   \
      .block_key = "max_seq_len" }

/* Recent and first tokens that stay in 8 bits, with formats of 6 bits and less. */
#define QUIRE_ROWS_KV_WINDOW                                                                       \
    { .names = { "--kv-recent" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,                  \
      .max = QUIRE_KV_TOKENS_MAX, .multiple = 64,                                                  \
      .initial = QUIRE_TEXT_OF(QUIRE_KV_RECENT_DEFAULT),                                           \
      .offset = offsetof(quire_common_args, kv.recent),                                            \
      .help = "with q6 to q3: each token reads so many tokens before it in 8 bits, in whole "      \
              "tiles of 64, and its own tile as well; a multiple of 64" },                         \
    { .names = { "--kv-sinks" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,                   \
      .max = QUIRE_KV_TOKENS_MAX, .multiple = 64,                                                  \
      .initial = QUIRE_TEXT_OF(QUIRE_KV_SINKS_DEFAULT),                                            \
      .offset = offsetof(quire_common_args, kv.sinks),                                             \
      .help = "with q6 to q3: first tokens of a text that are read in 8 bit; a multiple of 64" }

/* Text of --help on the two defaults of --kv. A server needs room for many conversations; other
 * commands should be comparable with llama.cpp. */
#define QUIRE_KV_DEFAULT_HERE  "f16, as llama.cpp; quire serve: q8, about half of that"
#define QUIRE_KV_DEFAULT_SERVE "q8, about half of f16; other commands: f16, as llama.cpp"

/* --kv for both, -ctk and -ctv for one each, as llama.cpp names them. */
#define QUIRE_ROWS_KV(default_format, default_text)                                                \
    { .names = { "--kv" }, .type = QUIRE_OPT_KV, .unit = "K[:V]",                                  \
      .initial = (default_format), .initial_text = (default_text),                                 \
      .offset = offsetof(quire_common_args, kv.choice),                                            \
      .seen_offset = offsetof(quire_common_args, kv.has_choice),                                   \
      .help = "number format of the KV cache" },                                                   \
    { .names = { "-ctk", "--cache-type-k" }, .type = QUIRE_OPT_FORMAT, .unit = "K",                \
      .offset = offsetof(quire_common_args, kv.k),                                                 \
      .seen_offset = offsetof(quire_common_args, kv.has_k),                                        \
      .help = "number format of K, instead of --kv's" },                                           \
    { .names = { "-ctv", "--cache-type-v" }, .type = QUIRE_OPT_FORMAT, .unit = "V",                \
      .offset = offsetof(quire_common_args, kv.v),                                                 \
      .seen_offset = offsetof(quire_common_args, kv.has_v),                                        \
      .help = "number format of V, instead of --kv's" },                                           \
    { .names = { "--kv-layers" }, .type = QUIRE_OPT_TEXT, .unit = "LIST",                          \
      .offset = offsetof(quire_common_args, kv.layers),                                            \
      .help = "number formats by layer, instead of --kv: LAYERS=K[:V];... The first entry that "   \
              "names a layer counts; -1 is the last layer, -2--1 are the last two, * are the "     \
              "others: \"0-1,-2--1=q8;*=q5:q4\"" },                                                \
    QUIRE_ROWS_KV_WINDOW,                                                                          \
    { .names = { "--state-type" }, .type = QUIRE_OPT_CHOICE, .choices = quire_state_types,         \
      .initial = "f32", .offset = offsetof(quire_common_args, kv.state),                           \
      .help = "number format of the states of recurrent layers that are kept for later texts; "    \
              "f16 takes half the memory, and a hit then differs from a miss in the last digits" }

#define QUIRE_ROW_PAGE_OR(own_word, own_help)                                                      \
    { .names = { "--page-tokens" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 64, .max = 1024,  \
      .multiple = 64, .word = (own_word), .initial = "64",                                         \
      .offset = offsetof(quire_common_args, page_tokens), .help = own_help }

#define QUIRE_ROW_PAGE QUIRE_ROW_PAGE_OR(NULL, "tokens in a KV page, a multiple of 64")

/* Options that memory depends on, besides the context and its formats. */
#define QUIRE_ROWS_STEP                                                                            \
    QUIRE_ROW_PAGE,                                                                                \
    { .names = { "-b", "--batch" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,                \
      .max = 65536, .initial = "512", .offset = offsetof(quire_common_args, n_batch),              \
      .help = "prompt tokens computed in one step" }

#define QUIRE_ROWS_BUDGET(default_budget)                                                          \
    { .names = { "--memory-limit" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1,            \
      .max = 1e18, .initial_text = "the available memory",                                         \
      .offset = offsetof(quire_common_args, memory_limit_bytes),                                   \
      .help = "refuse a model, before loading it, if all memory needed is more than this" },       \
    { .names = { "--kv-budget" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1, .max = 1e18,  \
      .initial_text = (default_budget),                                                            \
      .offset = offsetof(quire_common_args, kv_budget_bytes), .help = "memory for KV pages" }

#define QUIRE_ROWS_CACHE QUIRE_ROWS_BUDGET("as much as the context needs"), QUIRE_ROWS_STEP

#define QUIRE_ROW_KV_HISTORY                                                                       \
    { .names = { "--kv-history" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",                         \
      .offset = offsetof(quire_common_args, kv_history),                                           \
      .help = "at the end, write cache statistics and the last "                                   \
              QUIRE_TEXT_OF(QUIRE_HISTORY_EVENTS_DEFAULT)                                          \
              " events of KV pages (taken, shared, released, moved) as JSON Lines" }

/* Options of commands that keep their KV on disk. */
#define QUIRE_ROWS_CACHE_DIR                                                                       \
    { .names = { "--cache-dir" }, .type = QUIRE_OPT_TEXT, .unit = "DIR",                           \
      .offset = offsetof(quire_common_args, cache_dir),                                            \
      .help = "keep the KV of the text in this directory, and read known beginnings from there" }, \
    { .names = { "--cache-disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,              \
      .max = 1e15, .initial_text = "20GiB, or more if the directory takes more already",           \
      .offset = offsetof(quire_common_args, cache_disk_bytes),                                     \
      .help = "most disk space that the directory takes" },                                        \
    { .names = { "--kv-overflow" }, .type = QUIRE_OPT_CHOICE, .choices = quire_kv_overflows,       \
      .initial = "auto", .offset = offsetof(quire_common_args, kv_overflow),                       \
      .help = "with a --kv-budget that the text's KV exceeds: keep the rest of its pages in a "    \
              "nameless file in --cache-dir, or with --device in the host's memory and from "      \
              "there on in that file, and read them from there in each step (tier), refuse, or "   \
              "tier for models that can and refuse for others (auto)" },                           \
    { .names = { "--kv-overflow-memory" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,      \
      .max = 1e15, .initial_text = "0, half of the host's memory beside the model",                \
      .offset = offsetof(quire_common_args, kv_overflow_memory_bytes),                             \
      .help = "with --device: most memory of the host for such pages, with the buffers of the "    \
              "file behind it" },                                                                  \
    { .names = { "--kv-overflow-attend" }, .type = QUIRE_OPT_CHOICE,                               \
      .choices = quire_kv_overflow_attends, .initial = "device",                                   \
      .offset = offsetof(quire_common_args, kv_overflow_attend),                                   \
      .help = "with --device: where generated tokens read such pages: on the device, to which "    \
              "each step copies them (device), where they lie, by the CPU's kernels, while the "   \
              "device reads the others (host), or where steps took less time so far (auto). With " \
              "host and auto the last bits of a text depend on which pages lay where" }

/* The choices of --kv-overflow, in the order of quire_kv_overflow. */
extern const char *const quire_kv_overflows[];

/* Options of each command with one runtime. */
#define QUIRE_ROWS_RUNTIME(default_ctx)                                                  \
    QUIRE_ROW_THREADS, QUIRE_ROW_CTX(default_ctx),                                                 \
        QUIRE_ROWS_KV("f16", QUIRE_KV_DEFAULT_HERE), QUIRE_ROWS_CACHE, QUIRE_ROW_KV_HISTORY

/* Options of commands that can drop tokens of a text. */
#define QUIRE_ROWS_RETAIN                                                                          \
    { .names = { "--retain" }, .type = QUIRE_OPT_TEXT, .unit = "POLICY[:SHARE][,KEY=VALUE...]",    \
      .offset = offsetof(quire_common_args, retain),                                               \
      .help = "keep only a share of the tokens' KV in each layer and head, chosen by a policy: "   \
              "reconstruct, predict, entropy, snap, expected, heavy, keydiff, window, last, "      \
              "stride or random (docs/retention.md)" },                                            \
    { .names = { "--prefill-chunk" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 64,             \
      .max = QUIRE_TOKENS_MAX, .initial_text = QUIRE_TEXT_OF(QUIRE_PREFILL_CHUNK_DEFAULT),         \
      .offset = offsetof(quire_common_args, prefill_chunk),                                        \
      .help = "with --retain: tokens that are held in full before the next ones are dropped" },    \
    { .names = { "--attend" }, .type = QUIRE_OPT_TEXT, .unit = "top:SHARE",                        \
      .offset = offsetof(quire_common_args, attend),                                               \
      .help = "generated tokens (of perplexity: scored ones) read only the share of the pages "    \
              "that can matter most to their queries, in each layer and head; nothing is dropped" }
/* clang-format on */

/* The share of --attend top:SHARE. Errors: QUIRE_INVAL. */
int quire_attend_read(const char *text, double *share, quire_error *err);

/* Refuse --retain, --prefill-chunk and --attend where they cannot work: a policy that does not
 * parse, and other options that need all tokens. Errors: QUIRE_INVAL. */
int quire_retain_args_check(const quire_common_args *args, quire_error *err);

/* For quire_command.check of every command whose arguments begin with quire_common_args. */
static inline int quire_common_check(const void *args, quire_error *err)
{
    const quire_common_args *common = args;
    int rc = quire_kv_args_check(&common->kv, err);

    return rc < 0 ? rc : quire_retain_args_check(common, err);
}

/* For commands with QUIRE_ROWS_CACHE_DIR. Errors: QUIRE_INVAL. */
static inline int quire_cache_dir_check(const quire_common_args *common, quire_error *err)
{
    return common->cache_disk_bytes == 0 || common->cache_dir != NULL
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "--cache-disk says how much --cache-dir takes: give --cache-dir "
                                 "too");
}

#endif /* QUIRE_CLI_ARGS_H */
