/* options.h - the options of one command, as one table.
 *
 * A row has the names of an option, its type, range and default, the place of its value and its
 * description. Parsing, range checks, messages and the text of --help all use this row, so they
 * cannot disagree.
 *
 * Forms: --name value, --name=value, -n value. A value that is itself the name of an option is an
 * error, because the value was probably forgotten (write --name=-x to pass it). "--" ends the
 * options. The last of repeated options counts. -h and --help are known everywhere. For a command
 * with settings (settings.h), options may also come from a file and the environment, and a flag may
 * be written --name=false.
 *
 * Memory: text values are borrowed from argv. Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPTIONS_H
#define QUIRE_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "model/kv_formats.h"
#include "quire/codec.h"
#include "quire/error.h"

#define QUIRE_OPT_NAMES_MAX 3u
#define QUIRE_OPT_LIST_MAX  32u /* values in one list */

typedef struct quire_kv_list {
    uint32_t n;
    quire_kv_choice items[QUIRE_OPT_LIST_MAX];
} quire_kv_list;

typedef struct quire_count_list {
    uint32_t n;
    int64_t items[QUIRE_OPT_LIST_MAX];
} quire_count_list;

/* The kind of value of an option, and the type at its offset. */
typedef enum quire_opt_type {
    QUIRE_OPT_FLAG,       /* nothing; bool. In a file or the environment: true, false, yes, no */
    QUIRE_OPT_TEXT,       /* anything; const char * */
    QUIRE_OPT_COUNT,      /* a whole number, k M G T allowed; int64_t */
    QUIRE_OPT_REAL,       /* a decimal number; double */
    QUIRE_OPT_SIZE,       /* bytes, k M G T KiB MiB GiB TiB allowed; uint64_t */
    QUIRE_OPT_DURATION,   /* a time, ms s m h d allowed, seconds without; uint64_t microseconds */
    QUIRE_OPT_CHOICE,     /* one of choices; int, its index */
    QUIRE_OPT_FORMAT,     /* a KV format; quire_format */
    QUIRE_OPT_KV,         /* a KV format, K:V, auto or auto:BITS; quire_kv_choice */
    QUIRE_OPT_KV_LIST,    /* those with commas between; quire_kv_list */
    QUIRE_OPT_COUNT_LIST, /* counts with commas between; quire_count_list */
} quire_opt_type;

typedef struct quire_opt {
    const char
        *names[QUIRE_OPT_NAMES_MAX]; /* as written, dashes included; the last is the long one */
    quire_opt_type type;
    bool is_required; /* TEXT only */
    bool is_model;    /* TEXT only: a path, or a name that becomes one (model_option.h) */
    const char *unit; /* stands for the value in --help: "N", "BYTES"; NULL for flags and choices */
    double min;       /* COUNT, REAL, SIZE, DURATION (in seconds) and each value of a COUNT_LIST;
                         min == max: no bounds */
    double max;
    uint32_t multiple;          /* COUNT only: the value is a multiple of this; 0 = any */
    const char *word;           /* COUNT only: a word in place of a number, stored as 0; or NULL */
    const char *initial;        /* default, as it would be written; NULL = all bits zero */
    const char *initial_text;   /* text of the default in --help, if initial is NULL or too short */
    const char *const *choices; /* CHOICE only, NULL-terminated */
    size_t offset;              /* of the value in the command's arguments */
    size_t seen_offset;         /* of a bool that tells whether the option was given; 0 = none */
    const char *help;
    const char *section;   /* heading of this row and those that follow; NULL = as the one before */
    const char *block_key; /* its key in the file's block inference_params too; NULL = none */
    bool is_flag_only;     /* not a setting: neither in a file nor in the environment */
    bool is_secret;        /* not to be shown */
    bool is_key;           /* a key of clients, as those of api_keys in the file are */
} quire_opt;

typedef struct quire_command {
    const char *name;
    const char *usage;   /* the arguments after the name in the usage line */
    const char *summary; /* one line */
    const char *notes;   /* printed after the options; NULL for none */
    const quire_opt *options;
    size_t n_options;
    const char *positional; /* option set by a value without a name; NULL = none */
    /* Takes the values without a name that follow the positional option's. NULL = there are none.
     * Errors: err is filled in. */
    int (*take_word)(void *args, const char *word, quire_error *err);
    size_t args_bytes;
    bool has_settings; /* see settings.h */
    /* Replaces quire_options_parse(), with the same results; run() releases its resources. May be
     * NULL. */
    int (*parse)(int argc, char *const *argv, void *args, quire_error *err);
    /* Check options against each other: returns a negative status, with err filled in. May be
     * NULL. */
    int (*check)(const void *args, quire_error *err);
    int (*run)(void *args); /* returns an exit status */
} quire_command;

/* Give every option of the command its default. args: args_bytes, zeroed by the call. */
void quire_options_init(const quire_command *command, void *args);

/* parse() met -h or --help; later words were not parsed. */
#define QUIRE_OPTIONS_HELP 1

/* Read the words that follow a command's name into args (initialised before), and check them.
 * Errors: QUIRE_INVAL, QUIRE_RANGE, those of check; err names the option, the value and the
 * accepted values. */
int quire_options_parse(const quire_command *command, int argc, char *const *argv, void *args,
                        quire_error *err);

/* Print usage, options and notes. */
void quire_options_help(const quire_command *command, FILE *out);

#endif /* QUIRE_CLI_OPTIONS_H */
