/* options.c - reads a command line by its table. The --help text is in options_help.c.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/options.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/commands.h"
#include "cli/settings/foreign_options.h"
#include "cli/settings/options_internal.h"

#include <stdbool.h>
#include <string.h>

#define WORD_MAX  128 /* longest value of a list, or name before '=' */
#define SHOWN_MAX 80  /* characters of a bad value that a message repeats */

/* One value on its way into the arguments. */
typedef struct target {
    const quire_opt *opt;
    const char *name; /* as the user wrote it */
    quire_error *err;
} target;

/* Words on their way into the arguments. */
typedef struct reading {
    const quire_command *command;
    void *args;
    const char **texts;          /* [n_options]; may be NULL */
    const quire_opt *positional; /* option that a value without a name is for; NULL = none */
    const char *by_name;         /* value that this option got by its name; NULL = none */
    bool has_positional;
    quire_error *err;
} reading;

const char *quire_options_long_name(const quire_opt *opt)
{
    const char *name = opt->names[0];

    for (size_t i = 1; i < QUIRE_OPT_NAMES_MAX && opt->names[i] != NULL; i++) {
        name = opt->names[i];
    }
    return name;
}

static const quire_opt *find_option(const quire_command *command, const char *word, size_t n)
{
    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];

        for (size_t j = 0; j < QUIRE_OPT_NAMES_MAX && opt->names[j] != NULL; j++) {
            if (strlen(opt->names[j]) == n && memcmp(opt->names[j], word, n) == 0) {
                return opt;
            }
        }
    }
    return NULL;
}

static bool is_help(const char *word)
{
    return strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0;
}

/* " (did you mean q8?)" where a format was misspelt, or written as llama.cpp does; else "". */
static void suggest(const quire_opt *opt, const char *value, char *buffer, size_t buffer_bytes)
{
    bool is_pair = opt->type == QUIRE_OPT_KV || opt->type == QUIRE_OPT_KV_LIST;
    bool is_format = opt->type == QUIRE_OPT_FORMAT && strchr(value, ':') == NULL;
    quire_kv_pair pair;
    char name[24];

    buffer[0] = '\0';
    if ((is_pair || is_format) && quire_kv_pair_suggest(value, &pair)) {
        (void)snprintf(buffer, buffer_bytes, " (did you mean %s?)",
                       quire_kv_pair_name(pair, name, sizeof(name)));
    }
}

static int fail_value(const target *t, int status, const char *value)
{
    /* llama.cpp writes -c 0 and -t -1 for a default that is no number. */
    const bool has_default =
        status == QUIRE_RANGE && t->opt->initial == NULL && t->opt->initial_text != NULL;
    char accepted[QUIRE_OPTIONS_ACCEPTED_MAX];
    char suggestion[48];

    quire_options_accepted(t->opt, accepted, sizeof(accepted));
    suggest(t->opt, value, suggestion, sizeof(suggestion));
    return quire_error_set(t->err, status, "%s '%.*s' is %s%s: it takes %s%s%s", t->name, SHOWN_MAX,
                           value, status == QUIRE_RANGE ? "out of range" : "invalid", suggestion,
                           accepted, has_default ? "; without it: " : "",
                           has_default ? t->opt->initial_text : "");
}

static bool has_letters(const char *text)
{
    return strpbrk(text, "bBgGiIkKmMtT") != NULL;
}

static int parse_count(const quire_opt *opt, const char *text, int64_t *out)
{
    int64_t min = (int64_t)opt->min;
    int64_t max = (int64_t)opt->max;
    int64_t value = 0;

    if (opt->word != NULL && strcmp(text, opt->word) == 0) {
        *out = 0;
        return QUIRE_OK;
    }
    if (has_letters(text)) {
        uint64_t size;

        QUIRE_TRY(quire_parse_size(text, &size));
        QUIRE_FAIL_IF(size > (uint64_t)max || (int64_t)size < min, QUIRE_RANGE);
        value = (int64_t)size;
    } else {
        QUIRE_TRY(quire_parse_i64(text, min, max, &value));
    }
    QUIRE_FAIL_IF(opt->multiple != 0 && value % opt->multiple != 0, QUIRE_RANGE);
    *out = value;
    return QUIRE_OK;
}

static int parse_size(const quire_opt *opt, const char *text, uint64_t *out)
{
    uint64_t size;

    QUIRE_TRY(quire_parse_size(text, &size));
    QUIRE_FAIL_IF(opt->min < opt->max && ((double)size < opt->min || (double)size > opt->max),
                  QUIRE_RANGE);
    *out = size;
    return QUIRE_OK;
}

static int parse_duration(const quire_opt *opt, const char *text, uint64_t *out)
{
    uint64_t us;

    QUIRE_TRY(quire_parse_duration(text, &us));
    QUIRE_FAIL_IF(opt->min < opt->max &&
                      ((double)us < 1e6 * opt->min || (double)us > 1e6 * opt->max),
                  QUIRE_RANGE);
    *out = us;
    return QUIRE_OK;
}

static int parse_flag(const char *text, bool *out)
{
    static const char *const words[][2] = { { "false", "true" }, { "no", "yes" } };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (int value = 0; value < 2; value++) {
            if (strcmp(text, words[i][value]) == 0) {
                *out = value != 0;
                return QUIRE_OK;
            }
        }
    }
    return QUIRE_INVAL;
}

static int parse_choice(const quire_opt *opt, const char *text, int *out)
{
    for (int i = 0; opt->choices[i] != NULL; i++) {
        if (strcmp(opt->choices[i], text) == 0) {
            *out = i;
            return QUIRE_OK;
        }
    }
    return QUIRE_INVAL;
}

static int parse_list_item(const quire_opt *opt, const char *text, void *place)
{
    quire_count_list *counts = place;
    quire_kv_list *pairs = place;

    if (opt->type == QUIRE_OPT_COUNT_LIST) {
        QUIRE_FAIL_IF(counts->n == QUIRE_OPT_LIST_MAX, QUIRE_LIMIT);
        QUIRE_TRY(parse_count(opt, text, &counts->items[counts->n]));
        counts->n++;
    } else {
        QUIRE_FAIL_IF(pairs->n == QUIRE_OPT_LIST_MAX, QUIRE_LIMIT);
        QUIRE_TRY(quire_kv_choice_parse(text, &pairs->items[pairs->n]));
        pairs->n++;
    }
    return QUIRE_OK;
}

static int parse_list(const target *t, const char *text, void *place)
{
    memset(place, 0,
           t->opt->type == QUIRE_OPT_COUNT_LIST ? sizeof(quire_count_list) : sizeof(quire_kv_list));
    for (;;) {
        size_t n = strcspn(text, ",");
        char item[WORD_MAX];
        int rc = QUIRE_INVAL;

        if (n < sizeof(item)) {
            memcpy(item, text, n);
            item[n] = '\0';
            rc = parse_list_item(t->opt, item, place);
        }
        if (rc == QUIRE_LIMIT) {
            return quire_error_set(t->err, QUIRE_RANGE, "%s: a list holds at most %u values",
                                   t->name, QUIRE_OPT_LIST_MAX);
        }
        if (rc < 0) {
            return fail_value(t, rc, n < sizeof(item) ? item : text);
        }
        if (text[n] == '\0') {
            return QUIRE_OK;
        }
        text += n + 1;
    }
}

static int store_value(const target *t, const char *text, void *args)
{
    void *place = (char *)args + t->opt->offset;
    int rc = QUIRE_OK;

    switch (t->opt->type) {
    case QUIRE_OPT_FLAG:
        *(bool *)place = true;
        rc = text != NULL ? parse_flag(text, place) : QUIRE_OK;
        break;
    case QUIRE_OPT_TEXT:
        *(const char **)place = text;
        break;
    case QUIRE_OPT_COUNT:
        rc = parse_count(t->opt, text, place);
        break;
    case QUIRE_OPT_REAL:
        rc = quire_parse_f64(text, t->opt->min, t->opt->max, place);
        break;
    case QUIRE_OPT_SIZE:
        rc = parse_size(t->opt, text, place);
        break;
    case QUIRE_OPT_DURATION:
        rc = parse_duration(t->opt, text, place);
        break;
    case QUIRE_OPT_CHOICE:
        rc = parse_choice(t->opt, text, place);
        break;
    case QUIRE_OPT_FORMAT:
        rc = quire_format_parse(text, place);
        break;
    case QUIRE_OPT_KV:
        rc = quire_kv_choice_parse(text, place);
        break;
    case QUIRE_OPT_KV_LIST:
    case QUIRE_OPT_COUNT_LIST:
        return parse_list(t, text, place);
    }
    return rc < 0 ? fail_value(t, rc, text) : QUIRE_OK;
}

int quire_options_store(const quire_opt *opt, const char *name, const char *text, void *args,
                        quire_error *err)
{
    const target t = { opt, name, err };

    if (opt->seen_offset != 0) {
        *(bool *)((char *)args + opt->seen_offset) = true;
    }
    return store_value(&t, text, args);
}

/* store() of a word of the command line, which is remembered. */
static int take(reading *r, const quire_opt *opt, const char *name, const char *text)
{
    if (r->texts != NULL) {
        r->texts[opt - r->command->options] = text != NULL ? text : "true";
    }
    return quire_options_store(opt, name, text, r->args, r->err);
}

void quire_options_init(const quire_command *command, void *args)
{
    memset(args, 0, command->args_bytes);
    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];
        target t = { opt, quire_options_long_name(opt), NULL };

        if (opt->initial != NULL) {
            int rc = store_value(&t, opt->initial, args);

            QUIRE_CHECK(rc == QUIRE_OK); /* the table itself is wrong */
        }
    }
}

/* Another command that has an option of this name; NULL = none. */
static const quire_command *find_elsewhere(const quire_command *command, const char *word, size_t n)
{
    for (size_t i = 0; i < quire_n_commands; i++) {
        if (quire_commands[i] != command && find_option(quire_commands[i], word, n) != NULL) {
            return quire_commands[i];
        }
    }
    return NULL;
}

/* The long name that a word was probably meant to be. Between names of one letter a guess is worth
 * nothing: -fa is not -f. */
static const char *guess_name(const quire_command *command, const char *word)
{
    const char *names[QUIRE_OPTIONS_MAX * QUIRE_OPT_NAMES_MAX];
    size_t n_names = 0;

    QUIRE_CHECK(command->n_options <= QUIRE_OPTIONS_MAX);
    for (size_t i = 0; i < command->n_options; i++) {
        for (size_t j = 0; j < QUIRE_OPT_NAMES_MAX && command->options[i].names[j] != NULL; j++) {
            if (strncmp(command->options[i].names[j], "--", 2) == 0) {
                names[n_names++] = command->options[i].names[j];
            }
        }
    }
    return quire_nearest_name(word, names, n_names);
}

/* Of a short option with its number behind it, as in -n3: the letters of the name; else 0. */
static size_t glued_name(const quire_command *command, const char *word, size_t n)
{
    size_t n_name = n;

    while (n_name > 1 && word[n_name - 1] >= '0' && word[n_name - 1] <= '9') {
        n_name--;
    }
    return n_name < n && word[1] != '-' && find_option(command, word, n_name) != NULL ? n_name : 0;
}

static int fail_unknown(const quire_command *command, const char *word, size_t n, quire_error *err)
{
    const size_t n_glued = glued_name(command, word, n);
    const char *foreign = quire_foreign_option(word, n);
    const quire_command *elsewhere = find_elsewhere(command, word, n);
    char shown[WORD_MAX];
    const char *guess;

    (void)snprintf(shown, sizeof(shown), "%.*s", (int)(n < SHOWN_MAX ? n : SHOWN_MAX), word);
    if (foreign != NULL && elsewhere != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s is not an option of quire %s: %s", shown,
                               command->name, foreign);
    }
    if (foreign != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s is llama.cpp's, not an option of quire %s: %s",
                               shown, command->name, foreign);
    }
    if (elsewhere != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s is an option of quire %s, not of quire %s",
                               shown, elsewhere->name, command->name);
    }
    if (n_glued != 0) {
        return quire_error_set(err, QUIRE_INVAL, "unknown option %s (did you mean %.*s %s?)", shown,
                               (int)n_glued, shown, shown + n_glued);
    }
    guess = guess_name(command, shown);
    if (guess != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "unknown option %s (did you mean %s?)", shown,
                               guess);
    }
    return quire_error_set(err, QUIRE_INVAL, "unknown option %s ('quire %s --help' lists them)",
                           shown, command->name);
}

static bool has_text_option(const quire_command *command, const char *name)
{
    const quire_opt *opt = find_option(command, name, strlen(name));

    return opt != NULL && opt->type == QUIRE_OPT_TEXT;
}

/* A value without a name where none is taken, or no more. */
static int fail_unexpected(const reading *r, const char *word)
{
    char hint[128];

    if (has_text_option(r->command, "--prompt")) {
        (void)snprintf(hint, sizeof(hint),
                       "-p gives the prompt; a text with blanks needs quotes around it");
    } else if (has_text_option(r->command, "--file")) {
        (void)snprintf(hint, sizeof(hint), "-f FILE names the text");
    } else if (r->positional != NULL) {
        (void)snprintf(hint, sizeof(hint),
                       "quire %s takes one %s; a name with blanks needs quotes around it",
                       r->command->name, r->positional->unit);
    } else {
        (void)snprintf(hint, sizeof(hint), "'quire %s --help' lists the options", r->command->name);
    }
    return quire_error_set(r->err, QUIRE_INVAL, "unexpected '%.*s' (%s)", SHOWN_MAX, word, hint);
}

static int store_positional(reading *r, const char *word)
{
    if (r->positional == NULL || r->has_positional || r->by_name != NULL) {
        return r->command->take_word != NULL ? r->command->take_word(r->args, word, r->err)
                                             : fail_unexpected(r, word);
    }
    r->has_positional = true;
    return take(r, r->positional, r->command->positional, word);
}

/* Take the value of an option that was named. */
static int take_named(reading *r, const quire_opt *opt, const char *name, const char *text)
{
    if (opt == r->positional && r->has_positional) {
        return quire_error_set(r->err, QUIRE_INVAL,
                               "%s '%.*s' and a value without a name are both "
                               "the %s: give one",
                               name, SHOWN_MAX, text, opt->unit);
    }
    r->by_name = opt == r->positional ? text : r->by_name;
    return take(r, opt, name, text);
}

static int parse_named(reading *r, int argc, char *const *argv, int *at)
{
    const char *word = argv[*at];
    const char *equals = strchr(word, '=');
    size_t n = equals != NULL ? (size_t)(equals - word) : strlen(word);
    const quire_opt *opt = find_option(r->command, word, n);
    char name[WORD_MAX];

    if (opt == NULL) {
        return fail_unknown(r->command, word, n, r->err);
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)n, word);
    if (opt->type == QUIRE_OPT_FLAG) {
        if (equals != NULL && !r->command->has_settings) {
            return quire_error_set(r->err, QUIRE_INVAL, "%s takes no value", name);
        }
        return take(r, opt, name, equals != NULL ? equals + 1 : NULL);
    }
    if (equals != NULL) {
        return take_named(r, opt, name, equals + 1);
    }
    if (*at + 1 >= argc || find_option(r->command, argv[*at + 1], strlen(argv[*at + 1])) != NULL) {
        char accepted[QUIRE_OPTIONS_ACCEPTED_MAX];

        quire_options_accepted(opt, accepted, sizeof(accepted));
        return quire_error_set(r->err, QUIRE_INVAL, "%s needs a value: it takes %s", name,
                               accepted);
    }
    ++*at;
    return take_named(r, opt, name, argv[*at]);
}

static int check_required(const quire_command *command, const void *args, quire_error *err)
{
    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];

        if (opt->is_required && *(const char *const *)((const char *)args + opt->offset) == NULL) {
            return quire_error_set(err, QUIRE_INVAL, "%s %s is missing (%s)", opt->names[0],
                                   opt->unit, opt->help);
        }
    }
    return QUIRE_OK;
}

int quire_options_check(const quire_command *command, const void *args, quire_error *err)
{
    QUIRE_TRY(check_required(command, args, err));
    return command->check != NULL ? command->check(args, err) : QUIRE_OK;
}

int quire_options_words(const quire_command *command, int argc, char *const *argv, void *args,
                        const char **texts, quire_error *err)
{
    reading r = { .command = command, .args = args, .texts = texts, .err = err };
    bool has_ended = false;

    if (command->positional != NULL) {
        r.positional = find_option(command, command->positional, strlen(command->positional));
        QUIRE_CHECK(r.positional != NULL);
    }
    for (int i = 0; i < argc; i++) {
        if (!has_ended && strcmp(argv[i], "--") == 0) {
            has_ended = true;
        } else if (!has_ended && is_help(argv[i])) {
            return QUIRE_OPTIONS_HELP;
        } else if (!has_ended && argv[i][0] == '-' && argv[i][1] != '\0') {
            QUIRE_TRY(parse_named(&r, argc, argv, &i));
        } else {
            QUIRE_TRY(store_positional(&r, argv[i]));
        }
    }
    return QUIRE_OK;
}

int quire_options_parse(const quire_command *command, int argc, char *const *argv, void *args,
                        quire_error *err)
{
    int rc = quire_options_words(command, argc, argv, args, NULL, err);

    return rc == QUIRE_OK ? quire_options_check(command, args, err) : rc;
}
