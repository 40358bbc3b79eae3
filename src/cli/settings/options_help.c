/* options_help.c - descriptions of options' values, and the text of --help.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/options_internal.h"

#include "base/text_buffer.h"

#include <stdbool.h>
#include <string.h>

#define LEFT_COLUMNS 30 /* where the explanations start */
#define LINE_COLUMNS 96

static bool has_bounds(const quire_opt *opt)
{
    return opt->min < opt->max;
}

static bool lists_bytes(const quire_opt *opt)
{
    return opt->type == QUIRE_OPT_COUNT_LIST && strncmp(opt->unit, "BYTES", strlen("BYTES")) == 0;
}

static void add_formats(quire_text *t)
{
    for (int i = 0; i < (int)QUIRE_FORMAT_COUNT; i++) {
        quire_text_add(t, "%s%s", i > 0 ? ", " : "", quire_format_name((quire_format)i));
    }
}

static void add_choices(quire_text *t, const quire_opt *opt, const char *between)
{
    for (size_t i = 0; opt->choices[i] != NULL; i++) {
        quire_text_add(t, "%s%s", i > 0 ? between : "", opt->choices[i]);
    }
}

void quire_options_accepted(const quire_opt *opt, char *buffer, size_t buffer_bytes)
{
    quire_text t = { buffer, buffer_bytes, 0 };

    buffer[0] = '\0';
    switch (opt->type) {
    case QUIRE_OPT_FLAG:
        quire_text_add(&t, "true or false");
        break;
    case QUIRE_OPT_TEXT:
        quire_text_add(&t, "%s", opt->unit);
        break;
    case QUIRE_OPT_COUNT:
    case QUIRE_OPT_COUNT_LIST:
        if (lists_bytes(opt)) {
            quire_text_add(&t, "sizes such as 512M or 4GiB, comma-separated");
            break;
        }
        quire_text_add(&t, "%s from %.0f to %.0f",
                       opt->type == QUIRE_OPT_COUNT ? "a whole number"
                                                    : "whole numbers, comma-separated,",
                       opt->min, opt->max);
        if (opt->multiple != 0) {
            quire_text_add(&t, ", a multiple of %u", opt->multiple);
        }
        if (opt->word != NULL) {
            quire_text_add(&t, ", or %s", opt->word);
        }
        break;
    case QUIRE_OPT_REAL:
        quire_text_add(&t, "a number from %g to %g", opt->min, opt->max);
        break;
    case QUIRE_OPT_SIZE:
        quire_text_add(&t, "a size such as 512M or 4GiB");
        if (has_bounds(opt)) {
            quire_text_add(&t, " from %.0f to %.0f bytes", opt->min, opt->max);
        }
        break;
    case QUIRE_OPT_DURATION:
        quire_text_add(&t, "a time such as 30s, 15m or 2h");
        if (has_bounds(opt)) {
            quire_text_add(&t, " from %.9g to %.9g seconds", opt->min, opt->max);
        }
        break;
    case QUIRE_OPT_CHOICE:
        quire_text_add(&t, "one of ");
        add_choices(&t, opt, ", ");
        break;
    case QUIRE_OPT_FORMAT:
        quire_text_add(&t, "one of ");
        add_formats(&t);
        break;
    case QUIRE_OPT_KV:
    case QUIRE_OPT_KV_LIST:
        add_formats(&t);
        quire_text_add(&t, "%s",
                       opt->type == QUIRE_OPT_KV
                           ? ", two of them as K:V, auto, or auto:BITS"
                           : ", pairs K:V, auto, or auto:BITS, comma-separated");
        quire_text_add(&t, " (%g to %g bits)", QUIRE_KV_BITS_MIN, QUIRE_KV_BITS_MAX);
        break;
    }
}

static void print_row(FILE *out, const char *left, const char *words)
{
    int column = (int)strlen(left);
    bool is_first = true;

    fprintf(out, "%s", left);
    if (column >= LEFT_COLUMNS) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", LEFT_COLUMNS - column, "");
    column = LEFT_COLUMNS;
    while (*words != '\0') {
        int n = (int)strcspn(words, " ");

        if (!is_first && column + 1 + n > LINE_COLUMNS) {
            fprintf(out, "\n%*s", LEFT_COLUMNS, "");
            column = LEFT_COLUMNS;
        } else if (!is_first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, words);
        column += n;
        words += n;
        words += strspn(words, " ");
        is_first = false;
    }
    fputc('\n', out);
}

static void describe_left(quire_text *t, const quire_opt *opt)
{
    quire_text_add(t, "  ");
    for (size_t i = 0; i < QUIRE_OPT_NAMES_MAX && opt->names[i] != NULL; i++) {
        quire_text_add(t, "%s%s", i > 0 ? ", " : "", opt->names[i]);
    }
    if (opt->type == QUIRE_OPT_CHOICE) {
        quire_text_add(t, " ");
        add_choices(t, opt, "|");
    } else if (opt->unit != NULL) {
        quire_text_add(t, " %s", opt->unit);
    }
}

void quire_options_describe(const quire_opt *opt, char *buffer, size_t buffer_bytes)
{
    quire_text t = { buffer, buffer_bytes, 0 };
    const char *initial = opt->initial_text != NULL ? opt->initial_text : opt->initial;
    /* An upper bound such as 2^31 only guards arithmetic; --help omits it. */
    bool has_range =
        (opt->type == QUIRE_OPT_REAL || opt->type == QUIRE_OPT_COUNT) && opt->max < 1e6;

    buffer[0] = '\0';
    quire_text_add(&t, "%s", opt->help);
    if (opt->type == QUIRE_OPT_KV || opt->type == QUIRE_OPT_KV_LIST ||
        opt->type == QUIRE_OPT_FORMAT) {
        quire_text_add(&t, ": ");
        add_formats(&t);
        if (opt->type != QUIRE_OPT_FORMAT) {
            quire_text_add(&t, ", or auto:BITS for an average size");
        }
    }
    if (has_range) {
        quire_text_add(&t, " (%g to %g%s%s)", opt->min, opt->max,
                       initial != NULL ? "; default: " : "", initial != NULL ? initial : "");
    } else if (initial != NULL) {
        quire_text_add(&t, " (default: %s)", initial);
    }
}

void quire_options_help(const quire_command *command, FILE *out)
{
    fprintf(out, "usage: quire %s %s\n\n%s\n\n", command->name, command->usage, command->summary);
    for (size_t i = 0; i < command->n_options; i++) {
        char left[96];
        char right[QUIRE_OPTIONS_DESCRIBED_MAX];
        quire_text t_left = { left, sizeof(left), 0 };

        if (command->options[i].section != NULL) {
            fprintf(out, "\n%s\n", command->options[i].section);
        }
        describe_left(&t_left, &command->options[i]);
        quire_options_describe(&command->options[i], right, sizeof(right));
        print_row(out, left, right);
    }
    print_row(out, "  -h, --help", "this text");
    if (command->notes != NULL) {
        fprintf(out, "\n%s\n", command->notes);
    }
}
