/* page_tune.h - the size of a page for several memories: quire tune-pages, and --page-tokens auto
 * of a server.
 *
 *   devices, host, disk  ->  a curve each (page_curve.h)  ->  one size, one document
 *
 * The document:
 *
 *   { "format": "q8", "tokens": 32768, "page_tokens": 128, "has_share": true,
 *     "memories": [ one quire_page_curve_json() each ] }
 *
 * Curves are kept (page_curve_kept.h). A kept curve is one of the same number format and tokens,
 * and of a device with the same description and rounding, which name card, driver and kernels; of
 * the host with the same kernels; of a disk at the same path.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PAGE_TUNE_H
#define QUIRE_CLI_PAGE_TUNE_H

#include <jansson.h>

#include "cli/measuring/page_curve.h"

#define QUIRE_PAGE_TUNE_TOKENS  32768 /* that attention reads, if nothing else is asked for; */
#define QUIRE_PAGE_TUNE_FEW     1024u /* in the memory of a device that the CPU computes */
#define QUIRE_PAGE_TUNE_DEVICES 8u

typedef enum quire_page_tune_from {
    QUIRE_PAGE_TUNE_NEW,   /* every memory is measured, and its curve kept */
    QUIRE_PAGE_TUNE_FIRST, /* those without a kept curve are */
    QUIRE_PAGE_TUNE_KEPT   /* none is */
} quire_page_tune_from;

typedef struct quire_page_tune {
    const char *const *devices; /* beside the host, which "cpu" is; one of each name is measured */
    uint32_t n_devices;         /* <= QUIRE_PAGE_TUNE_DEVICES */
    const char *dir;            /* a directory of the disk; NULL = no disk */
    quire_format format;
    uint32_t n_tokens; /* 0 = QUIRE_PAGE_TUNE_TOKENS and QUIRE_PAGE_TUNE_FEW */
    quire_page_tune_from from;
    void (*got)(void *ctx, const char *memory, const quire_page_curve *curve); /* NULL = none */
    void *ctx;
} quire_page_tune;

/* The document, with progress on a terminal. A curve that cannot be kept is a warning on stderr.
 * Errors: QUIRE_NOTFOUND (with KEPT: a memory has no kept curve; no device of this name),
 * QUIRE_RANGE (attention needs more memory than there is), QUIRE_NOMEM, those of
 * quire_page_curve_device() and quire_page_curve_disk(). After QUIRE_CANCELED *document has the
 * memories so far, if there are any; else it is NULL after an error. Memory:
 * json_decref(*document). */
int quire_page_tune_get(json_t **document, const quire_page_tune *tune, quire_error *err);

/* The size that a document names. Errors: QUIRE_INVAL (none that pages can have). */
int quire_page_tune_size(const json_t *document, uint32_t *page_tokens);

#endif /* QUIRE_CLI_PAGE_TUNE_H */
