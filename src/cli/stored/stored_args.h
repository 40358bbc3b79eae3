/* stored_args.h - the commands below quire cache, and the arguments that they share.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_STORED_ARGS_H
#define QUIRE_CLI_STORED_ARGS_H

#include "cli/settings/args.h"

#define QUIRE_STORED_WORDS_MAX 256u

/* common.cache_dir is the directory. */
typedef struct quire_stored_args {
    quire_common_args common; /* must be first */
    const quire_command *sub;
    bool wants_help;    /* on sub */
    const char *prompt; /* texts of export: one of these two */
    const char *text_file;
    const char *out;
    const char *words[QUIRE_STORED_WORDS_MAX]; /* behind the directory */
    uint32_t n_words;
} quire_stored_args;

/* clang-format off */
#define QUIRE_ROW_STORED_DIR                                                                       \
    { .names = { "--cache-dir" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "DIR",      \
      .offset = offsetof(quire_common_args, cache_dir),                                            \
      .help = "the cache directory; its name alone, as the first word, is the same" }

#define QUIRE_ROW_STORED_DISK                                                                      \
    { .names = { "--cache-disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,              \
      .max = 1e15, .initial_text = "its present size and 20 GiB",                                 \
      .offset = offsetof(quire_common_args, cache_disk_bytes),                                     \
      .help = "most disk space that the directory takes" }

/* Of commands that open the model. */
#define QUIRE_ROWS_STORED_RUNTIME                                                                  \
    QUIRE_ROW_MODEL, QUIRE_ROW_THREADS,                                                            \
        QUIRE_ROW_CTX("the context of the training, or less if memory allows only less"),          \
        QUIRE_ROWS_KV("f16", QUIRE_KV_DEFAULT_HERE), QUIRE_ROWS_CACHE
/* clang-format on */

/* quire_command.take_word. Errors: QUIRE_LIMIT. */
int quire_stored_word_take(void *args, const char *word, quire_error *err);

/* All commands of quire cache, in the order of --help; cmd_cache.c has the table. */
extern const quire_command *const quire_stored_commands[];
extern const size_t quire_n_stored_commands;

extern const quire_command quire_stored_ls;
extern const quire_command quire_stored_stats;
extern const quire_command quire_stored_verify;
extern const quire_command quire_stored_warm;
extern const quire_command quire_stored_export;
extern const quire_command quire_stored_import;
extern const quire_command quire_stored_gc;

#endif /* QUIRE_CLI_STORED_ARGS_H */
