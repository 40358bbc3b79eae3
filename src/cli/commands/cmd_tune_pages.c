/* cmd_tune_pages.c - quire tune-pages: the size of a page for each memory of this machine.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/talk.h"
#include "cli/measuring/page_curve.h"
#include "cli/settings/args.h"

#include "base/check.h"
#include "base/parse.h"
#include "model/memory.h"

#include <stdio.h>

#define WORK_LAYERS  4u   /* so that no cache of the hardware holds one */
#define WORK_SECONDS 0.03 /* of a round */
#define MEMORIES_MAX 3u   /* a device, the host, a disk */

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
      .max = 1 << 20, .initial = "32768", .offset = offsetof(tune_pages_args, n_tokens),
      .help = "tokens that attention reads" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .offset = offsetof(tune_pages_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};
/* clang-format on */

typedef struct tuning {
    quire_attn_work work;
    bool is_json;
    json_t *list;
    quire_page_curve curves[MEMORIES_MAX]; /* [n_shown] */
    uint32_t n_shown;
} tuning;

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

static json_t *curve_json(const char *memory, const quire_page_curve *curve)
{
    json_t *points = json_array();

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        const quire_page_point *p = &curve->points[i];

        (void)json_array_append_new(
            points, json_pack("{s:i, s:I, s:o, s:o, s:o}", "page_tokens", (int)p->page_tokens,
                              "piece_bytes", (json_int_t)p->piece_bytes, "in_bytes_per_second",
                              quire_json_real(p->in), "out_bytes_per_second",
                              quire_json_real(p->out), "attention_bytes_per_second",
                              p->attention > 0.0 ? quire_json_real(p->attention) : json_null()));
    }
    return json_pack("{s:s, s:i, s:b, s:b, s:o}", "memory", memory, "page_tokens",
                     (int)curve->points[curve->choice].page_tokens, "has_share",
                     (int)curve->has_share, "is_cached", (int)curve->is_cached, "curve", points);
}

static void show(tuning *t, const char *memory, const quire_page_curve *curve)
{
    quire_progress_end();
    t->curves[t->n_shown++] = *curve;
    if (t->is_json) {
        (void)json_array_append_new(t->list, curve_json(memory, curve));
        return;
    }
    if (t->n_shown == 1) {
        printf("%-8s %6s  %10s  %13s  %13s  %13s\n", "memory", "tokens", "piece", "in", "out",
               "attention");
    }
    curve_print(memory, curve);
}

/* ---- the command ---- */

static int check(const tuning *t, const tune_pages_args *args, quire_error *err)
{
    const uint64_t need = quire_page_curve_bytes(&t->work);
    const uint64_t have = quire_memory_available();
    char need_text[16], have_text[16];

    if (args->dir != NULL && args->dir[0] == '\0') {
        return quire_error_set(err, QUIRE_INVAL, "--dir: an empty name");
    }
    if (need > have) {
        return quire_error_set(err, QUIRE_RANGE,
                               "%lld tokens (--tokens) of %s need %s of memory, %s are available",
                               (long long)args->n_tokens, quire_format_name(args->format),
                               quire_format_bytes(need, need_text, sizeof(need_text)),
                               quire_format_bytes(have, have_text, sizeof(have_text)));
    }
    return QUIRE_OK;
}

static int measure(tuning *t, const tune_pages_args *args, quire_error *err)
{
    const char *device = quire_device_choose(args->device);
    quire_page_curve curve;

    if (!quire_device_is_cpu(device)) {
        quire_progress("measuring %s", device);
        t->work.device = device;
        QUIRE_TRY(quire_page_curve_device(&curve, &t->work, err));
        show(t, device, &curve);
    }
    quire_progress("measuring the host");
    t->work.device = "cpu";
    QUIRE_TRY(quire_page_curve_device(&curve, &t->work, err));
    show(t, "host", &curve);
    if (args->dir != NULL) {
        quire_progress("measuring %s", args->dir);
        QUIRE_TRY(quire_page_curve_disk(&curve, &t->work, args->dir, err));
        show(t, "disk", &curve);
    }
    return QUIRE_OK;
}

/* The choice for the memories that were measured. Takes t->list over. */
static int conclude(const tuning *t, const tune_pages_args *args)
{
    bool has_share;
    const uint32_t choice = quire_page_curves_choose(t->curves, t->n_shown, &has_share);
    const uint32_t page_tokens = t->curves[0].points[choice].page_tokens;

    if (args->is_json) {
        return quire_stdout_json(json_pack("{s:s, s:i, s:i, s:b, s:o}", "format",
                                           quire_format_name(args->format), "tokens",
                                           (int)args->n_tokens, "page_tokens", (int)page_tokens,
                                           "has_share", (int)has_share, "memories", t->list));
    }
    json_decref(t->list);
    printf("GB/s, and the share of the best; *: the smallest size with %.0f %% of each, ?: no size "
           "has that, and this one comes nearest\n"
           "--page-tokens %u %s\n",
           100.0 * QUIRE_PAGE_SHARE, page_tokens,
           has_share ? "suits all of these memories"
                     : "comes nearest: no size suits all of these memories");
    return QUIRE_EXIT_OK;
}

static int run(void *opaque)
{
    const tune_pages_args *args = opaque;
    tuning t = { .work = { .format = args->format,
                           .n_tokens = (uint32_t)args->n_tokens,
                           .n_layers = WORK_LAYERS,
                           .seconds = WORK_SECONDS },
                 .is_json = args->is_json,
                 .list = json_array() };
    quire_error err = QUIRE_ERROR_INIT;
    int rc;

    if (t.list == NULL) {
        return quire_say_nomem();
    }
    rc = check(&t, args, &err);
    if (rc < 0) {
        json_decref(t.list);
        return quire_say_error(&err, rc == QUIRE_INVAL ? QUIRE_EXIT_USAGE : QUIRE_EXIT_FAILED);
    }
    quire_interrupt_catch();
    rc = measure(&t, args, &err);
    quire_progress_end();
    if (rc < 0) {
        (void)quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (rc == QUIRE_OK || (rc == QUIRE_CANCELED && t.n_shown > 0)) {
        return conclude(&t, args); /* of fewer memories where it was interrupted */
    }
    json_decref(t.list);
    return QUIRE_EXIT_FAILED;
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
