/* bench_device.c - a device's memory, its copies of pages, and attention on its pages, for
 * scripts/gpu-check.sh.
 *
 *   bench_device [--device vulkan0] [--tokens 32768] [--layers 8] [--seconds 0.5]
 *
 * The workload of attention is that of src/cli/measuring/attn_rate.h.
 *
 * Output, one line each: a name, bytes per second, and the share of the rate that is its bound.
 *
 *   copy within|in|out            as quire devices measures them
 *   pages in|out                  a cache's pages, from plain memory of the host to the device, and
 *                                 back: the way of stores; bound: copy in, out
 *   pinned in|out                 the same from and to pinned memory: the way of texts larger than
 *                                 the device's memory
 *   attention f16|q8|q4           bytes of KV that are read; bound: copy within
 *   beside q8                     bytes of pages that come to the device while steps of attention
 *                                 run, as many as the engine lets come; the share is the speed of
 *                                 the steps, compared with steps alone
 *   pages are of page_tokens 64, and of one layer each, so that a piece is small.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "base/clock.h"
#include "base/parse.h"
#include "cli/measuring/attn_rate.h"
#include "cli/measuring/device_rates.h"
#include "quire/cache.h"
#include "quire/device.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_TOKENS 64u
#define ROUNDS      3u
#define PAGES_BYTES ((uint64_t)64 << 20) /* of a round of page copies, about */

typedef struct bench {
    const char *name;
    uint32_t n_tokens;
    uint32_t n_layers;
    double seconds; /* of a round, about */
} bench;

static int failed(const char *what, int rc)
{
    (void)fprintf(stderr, "bench_device: %s: %s\n", what, quire_status_text(rc));
    return rc;
}

/* ---- a cache's pages on their way ---- */

/* The host's end of the copies: plain or pinned memory. */
static unsigned char *host_take(const quire_page_memory *memory, bool is_pinned, size_t bytes)
{
    return is_pinned ? memory->pin(memory->ctx, bytes) : malloc(bytes);
}

static void host_give(const quire_page_memory *memory, bool is_pinned, unsigned char *host,
                      size_t bytes)
{
    if (host != NULL && is_pinned) {
        memory->unpin(memory->ctx, host, bytes);
    } else {
        free(host);
    }
}

static int pages_measure(quire_device *device, bool is_pinned, double rate[2])
{
    const quire_page_memory memory = quire_device_page_memory(device);
    const size_t page_bytes = quire_attn_work_page_bytes(QUIRE_FORMAT_Q8, PAGE_TOKENS);
    const quire_page_copy in = is_pinned ? QUIRE_PAGE_COPY_FETCH : QUIRE_PAGE_COPY_IN;
    const uint32_t n = (uint32_t)(PAGES_BYTES / page_bytes);
    unsigned char *host = host_take(&memory, is_pinned, n * page_bytes);
    unsigned char *extent = memory.map(memory.ctx, n * page_bytes);
    quire_page_piece *pieces = calloc(n, sizeof *pieces);
    int rc = host != NULL && extent != NULL && pieces != NULL ? QUIRE_OK : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        memset(host, 1, n * page_bytes);
    }
    for (uint32_t round = 0; rc == QUIRE_OK && round < 2 * (ROUNDS + 1); round++) {
        const bool is_in = round % 2 == 0;
        uint64_t ns;

        for (uint32_t i = 0; i < n; i++) {
            unsigned char *at[2] = { host + i * page_bytes, extent + i * page_bytes };

            pieces[i] =
                (quire_page_piece){ .to = at[is_in], .from = at[!is_in], .bytes = page_bytes };
        }
        ns = quire_clock_ns();
        rc = memory.copy(memory.ctx, is_in ? in : QUIRE_PAGE_COPY_OUT, pieces, n);
        rc = rc == QUIRE_OK ? quire_device_sync(device) : rc;
        ns = quire_clock_ns() - ns;
        if (round >= 2) {
            rate[!is_in] = fmax(rate[!is_in], (double)(n * page_bytes) / ((double)ns * 1e-9));
        }
    }
    if (extent != NULL) {
        memory.unmap(memory.ctx, extent, n * page_bytes);
    }
    free(pieces);
    host_give(&memory, is_pinned, host, n * page_bytes);
    return rc;
}

/* ---- pages that come beside steps ---- */

#define STEP_SHARE 0.03 /* of a step's time, for the host's part: as the engine has it */

typedef struct migration {
    unsigned char *host;
    unsigned char *extent;
    size_t page_bytes;
    uint32_t n_pages;
    uint32_t next;
    uint64_t last_ns; /* the end of the call before */
    uint64_t moved_bytes;
} migration;

/* Pages go to the device, in turn, in a share of the time since the call before. */
static int pages_come(void *ctx, quire_device *device)
{
    const quire_page_memory memory = quire_device_page_memory(device);
    migration *m = ctx;
    const uint64_t begin_ns = quire_clock_ns();
    const double share_ns = m->last_ns != 0 ? STEP_SHARE * (double)(begin_ns - m->last_ns) : 0.0;

    if (m->extent == NULL) { /* it ends with the device */
        m->extent = memory.map(memory.ctx, m->n_pages * m->page_bytes);
        QUIRE_FAIL_IF(m->extent == NULL, QUIRE_NOMEM);
    }
    while ((double)(quire_clock_ns() - begin_ns) < share_ns) {
        const uint32_t i = m->next++ % m->n_pages;
        const quire_page_piece piece = { .to = m->extent + i * m->page_bytes,
                                         .from = m->host + i * m->page_bytes,
                                         .bytes = m->page_bytes,
                                         .extent = m->extent,
                                         .slot = i };

        QUIRE_TRY(memory.copy(memory.ctx, QUIRE_PAGE_COPY_IN, &piece, 1));
        m->moved_bytes += m->page_bytes;
    }
    m->last_ns = quire_clock_ns();
    return QUIRE_OK;
}

static int beside_measure(const bench *b)
{
    const size_t page_bytes = quire_attn_work_page_bytes(QUIRE_FORMAT_Q8, PAGE_TOKENS);
    migration m = { .page_bytes = page_bytes, .n_pages = (uint32_t)(PAGES_BYTES / page_bytes) };
    quire_attn_work work = { .device = b->name,
                             .format = QUIRE_FORMAT_Q8,
                             .n_tokens = b->n_tokens,
                             .page_tokens = PAGE_TOKENS,
                             .n_layers = b->n_layers,
                             .seconds = b->seconds,
                             .has_results = true };
    double alone, beside;
    uint64_t ns;
    int rc = quire_attn_rate_get(&work, &alone, NULL);

    m.host = calloc(m.n_pages, page_bytes);
    rc = rc == QUIRE_OK && m.host == NULL ? QUIRE_NOMEM : rc;
    work.before_step = pages_come;
    work.ctx = &m;
    ns = quire_clock_ns();
    rc = rc == QUIRE_OK ? quire_attn_rate_get(&work, &beside, NULL) : rc;
    ns = quire_clock_ns() - ns;
    free(m.host);
    if (rc < 0) {
        return failed("pages beside steps", rc);
    }
    printf("beside q8 %.6g %.4f\n", (double)m.moved_bytes / ((double)ns * 1e-9), beside / alone);
    return QUIRE_OK;
}

/* ---- the program ---- */

static int formats_measure(const bench *b, double within)
{
    static const quire_format formats[] = { QUIRE_FORMAT_F16, QUIRE_FORMAT_Q8, QUIRE_FORMAT_Q4 };

    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const quire_attn_work work = { .device = b->name,
                                       .format = formats[i],
                                       .n_tokens = b->n_tokens,
                                       .page_tokens = PAGE_TOKENS,
                                       .n_layers = b->n_layers,
                                       .seconds = b->seconds };
        double rate;
        const int rc = quire_attn_rate_get(&work, &rate, NULL);

        if (rc < 0) {
            return failed(quire_format_name(formats[i]), rc);
        }
        printf("attention %s %.6g %.4f\n", quire_format_name(formats[i]), rate, rate / within);
        (void)fflush(stdout);
    }
    return QUIRE_OK;
}

static int device_open(quire_device **out, const char *name)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_layers_max = opts.attn.n_entries_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = PAGE_TOKENS;
    if (quire_device_open(out, name, &opts, &err) < 0) {
        (void)fprintf(stderr, "bench_device: %s\n", err.message);
        return err.status;
    }
    return QUIRE_OK;
}

static int run(const bench *b)
{
    quire_device_rates rates;
    quire_device_info info;
    quire_device *device;
    double pages[2] = { 0 };
    double pinned[2] = { 0 };
    int rc;

    QUIRE_TRY(device_open(&device, b->name));
    quire_device_info_get(device, &info);
    printf("device %s (%s)\n", info.name, info.description);
    rc = quire_device_rates_get(device, &rates);
    rc = rc == QUIRE_OK ? pages_measure(device, false, pages) : rc;
    rc = rc == QUIRE_OK ? pages_measure(device, true, pinned) : rc;
    quire_device_close(device);
    if (rc < 0) {
        return failed("copies", rc);
    }
    printf("copy within %.6g 1\ncopy in %.6g 1\ncopy out %.6g 1\n", rates.within, rates.in,
           rates.out);
    printf("pages in %.6g %.4f\npages out %.6g %.4f\n", pages[0], pages[0] / rates.in, pages[1],
           pages[1] / rates.out);
    printf("pinned in %.6g %.4f\npinned out %.6g %.4f\n", pinned[0], pinned[0] / rates.in,
           pinned[1], pinned[1] / rates.out);
    (void)fflush(stdout);
    QUIRE_TRY(formats_measure(b, rates.within));
    return beside_measure(b);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = { { "device", required_argument, NULL, 'd' },
                                           { "tokens", required_argument, NULL, 't' },
                                           { "layers", required_argument, NULL, 'l' },
                                           { "seconds", required_argument, NULL, 's' },
                                           { NULL, 0, NULL, 0 } };
    bench b = { .name = "vulkan0", .n_tokens = 32768, .n_layers = 8, .seconds = 0.5 };
    int option;

    while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (option) {
        case 'd':
            b.name = optarg;
            break;
        case 't':
            b.n_tokens = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'l':
            b.n_layers = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 's':
            b.seconds = strtod(optarg, NULL);
            break;
        default:
            return 2;
        }
    }
    if (b.n_tokens < PAGE_TOKENS || b.n_tokens > 1u << 20 || b.n_layers < 1 || b.n_layers > 64) {
        (void)fprintf(stderr, "bench_device: 64 to 1048576 tokens, 1 to 64 layers\n");
        return 2;
    }
    return run(&b) == QUIRE_OK ? 0 : 1;
}
