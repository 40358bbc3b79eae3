/* cmd_tune_pages.c - quire tune-pages: the size of a page for each memory of this machine.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/talk.h"
#include "cli/measuring/page_tune.h"
#include "cli/settings/args.h"

#include "base/parse.h"

#include <stdio.h>

typedef struct tune_pages_args {
    const char *device;
    quire_format format;
    int64_t n_tokens;
    const char *dir;
    bool is_json;
} tune_pages_args;

/* clang-format off */
static const quire_opt options[] = {
    { .names = { "--device" }, .type = QUIRE_OPT_TEXT, .unit = "NAME", .initial = "auto",
      .offset = offsetof(tune_pages_args, device),
      .help = "device to measure beside the host: vulkan0, cuda0 and so on, cpu for none, "
              "auto" },
    { .names = { "--dir" }, .type = QUIRE_OPT_TEXT, .unit = "DIR",
      .offset = offsetof(tune_pages_args, dir),
      .help = "also measure the disk of this directory, by a file that is removed" },
    { .names = { "--format" }, .type = QUIRE_OPT_FORMAT, .unit = "FORMAT", .initial = "q8",
      .offset = offsetof(tune_pages_args, format), .help = "number format of K and V" },
    { .names = { "-n", "--tokens" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1024,
      .max = 1 << 20, .initial = QUIRE_TEXT_OF(QUIRE_PAGE_TUNE_TOKENS),
      .offset = offsetof(tune_pages_args, n_tokens), .help = "tokens that attention reads" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(tune_pages_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};
/* clang-format on */

/* ---- output ---- */

static void print_rate(double rate, double best)
{
    if (best > 0.0) {
        printf("  %7.2f %3.0f %%", rate / 1e9, 100.0 * rate / best);
    } else {
        printf("  %13s", "-");
    }
}

static void curve_print(const char *memory, const quire_page_curve *curve)
{
    const quire_page_point best = quire_page_curve_best(curve);

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        const quire_page_point *p = &curve->points[i];
        char bytes[16];

        printf("%-8s %6u%c %10s", i == 0 ? memory : "", p->page_tokens,
               i != curve->choice ? ' '
               : curve->has_share ? '*'
                                  : '?',
               quire_format_bytes(p->piece_bytes, bytes, sizeof(bytes)));
        print_rate(p->in, best.in);
        print_rate(p->out, best.out);
        print_rate(p->attention, best.attention);
        printf("\n");
    }
    if (curve->is_cached) {
        quire_say("%s: the file system has no direct access, so its rates are the memory's",
                  memory);
    }
}

static void show(void *ctx, const char *memory, const quire_page_curve *curve)
{
    uint32_t *n_shown = ctx;

    if ((*n_shown)++ == 0) {
        printf("%-8s %6s  %10s  %13s  %13s  %13s\n", "memory", "tokens", "piece", "in", "out",
               "attention");
    }
    curve_print(memory, curve);
}

/* Takes the document over. */
static int conclude(json_t *document, bool is_json)
{
    const bool has_share = json_is_true(json_object_get(document, "has_share"));
    const json_int_t page_tokens = json_integer_value(json_object_get(document, "page_tokens"));

    if (is_json) {
        return quire_stdout_json(document);
    }
    json_decref(document);
    printf("GB/s, and the share of the best; *: the smallest size with %.0f %% of each, ?: no size "
           "has that, and this one comes nearest\n"
           "--page-tokens %lld %s\n",
           100.0 * QUIRE_PAGE_SHARE, (long long)page_tokens,
           has_share ? "suits all of these memories"
                     : "comes nearest: no size suits all of these memories");
    return QUIRE_EXIT_OK;
}

/* ---- the command ---- */

static int run(void *opaque)
{
    const tune_pages_args *args = opaque;
    const char *device = quire_device_choose(args->device);
    uint32_t n_shown = 0;
    const quire_page_tune tune = { .devices = &device,
                                   .n_devices = 1,
                                   .dir = args->dir,
                                   .format = args->format,
                                   .n_tokens = (uint32_t)args->n_tokens,
                                   .got = args->is_json ? NULL : show,
                                   .ctx = &n_shown };
    quire_error err = QUIRE_ERROR_INIT;
    json_t *document;

    if (args->dir != NULL && args->dir[0] == '\0') {
        quire_error_set(&err, QUIRE_INVAL, "--dir: an empty name");
        return quire_say_error(&err, QUIRE_EXIT_USAGE);
    }
    /* The disk comes last: its directory is not to be refused after measurements. */
    if (args->dir != NULL && quire_page_curve_disk_check(args->dir, &err) < 0) {
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    quire_interrupt_catch();
    if (quire_page_tune_get(&document, &tune, &err) < 0) {
        (void)quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    /* Of fewer memories where it was interrupted. */
    return document != NULL ? conclude(document, args->is_json) : QUIRE_EXIT_FAILED;
}

const quire_command quire_command_tune_pages = {
    .name = "tune-pages",
    .usage = "[options]",
    .summary = "Measures which size of KV pages suits a device, the host and a disk.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .args_bytes = sizeof(tune_pages_args),
    .run = run,
};
