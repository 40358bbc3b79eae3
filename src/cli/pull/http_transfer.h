/* http_transfer.h - one HTTP GET or HEAD by libcurl, with its redirects.
 *
 * Redirects are followed here rather than by libcurl, because the answer that redirects carries the
 * hash of the file (X-Linked-Etag), and because a token must not travel on: it is sent to the
 * origin of the first URL alone, and only by https or to this machine. A redirect from https to
 * http is refused. Proxies, certificates and their variables are libcurl's.
 *
 * Nothing of an answer that is not 2xx reaches the sink. Waiting is bounded by names below, all but
 * the time of a body that keeps coming.
 *
 * Thread: owner; the first transfer of a process on the main thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRANSFER_H
#define QUIRE_CLI_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/pull/model_name.h"
#include "quire/error.h"

#define QUIRE_TRANSFER_REDIRECTS_MAX 10u
#define QUIRE_TRANSFER_CONNECT_S     30u
#define QUIRE_TRANSFER_ETAG_MAX      200u
#define QUIRE_TRANSFER_UNKNOWN       UINT64_MAX

/* Values from the headers of an answer; a text is empty and a number UNKNOWN where its header is
 * missing. */
typedef struct quire_transfer_head {
    long status;
    uint64_t length;     /* bytes of the body */
    uint64_t range_from; /* of a 206: the first byte and the size of all */
    uint64_t range_total;
    char etag[QUIRE_TRANSFER_ETAG_MAX];        /* without its quotes; empty for weak ones */
    char linked_etag[QUIRE_TRANSFER_ETAG_MAX]; /* of the first answer: the hub's */
    uint64_t linked_size;
    char commit[64];
    char next[QUIRE_NAME_URL_MAX]; /* rel="next" of Link */
    uint32_t retry_after_s;        /* 0 = not said */
    uint64_t body_bytes;           /* that have come */
} quire_transfer_head;

typedef struct quire_transfer {
    const char *url;
    const char *token; /* NULL = none */
    bool is_hub;       /* a hub's URL: refusals speak of repositories and tokens */
    bool is_head;
    uint64_t from;        /* first byte that is wanted; 0 = all */
    const char *if_range; /* with from: only if the content still has this etag; NULL = none */
    uint32_t stall_s;     /* end a transfer without a byte for this long */
    /* Called before the body of a 2xx answer, and without a body too. A negative status ends the
     * transfer with it; err is filled in. */
    int (*begin)(void *ctx, const quire_transfer_head *head, quire_error *err);
    int (*sink)(void *ctx, const void *data, size_t n, quire_error *err);
    void *ctx;
} quire_transfer;

/* Whether this build has libcurl. */
bool quire_transfer_is_built(void);

/* Run it. Errors: QUIRE_AGAIN (the network, or a server that may do better later: worth repeating;
 * head->retry_after_s), QUIRE_NOTFOUND (404, 410), QUIRE_RANGE (416), QUIRE_INVAL (other refusals,
 * certificates, URLs), QUIRE_CANCELED (Ctrl-C), QUIRE_UNSUPP (a build without libcurl), those of
 * begin and sink. err names the host and the remedy; it never has the token. */
int quire_transfer_run(const quire_transfer *transfer, quire_transfer_head *head, quire_error *err);

/* ---- repeating ---- */

#define QUIRE_RETRIES_DEFAULT     5         /* failures in a row without a new byte */
#define QUIRE_RETRY_DELAY_DEFAULT "1s"      /* before the second try; doubles */
#define QUIRE_RETRY_DELAY_MAX_US  60000000u /* of one wait of ours */
#define QUIRE_RETRY_AFTER_MAX_S   300u      /* of one that a server asks for */
#define QUIRE_ATTEMPTS_MAX        1000u     /* of one file, with progress or without */

typedef struct quire_retry {
    uint32_t n_max;    /* failures in a row */
    uint64_t delay_us; /* before the next try */
    uint64_t first_us; /* delay_us at the start; 0: tries follow at once */
    uint32_t n_failed; /* in a row */
    uint32_t n_attempts;
} quire_retry;

/* After a failure: wait, or give up. is_moving: bytes came since the last failure. status and err
 * are those of the failure. Returns QUIRE_OK to try again, else status, or QUIRE_CANCELED. */
int quire_retry_wait(quire_retry *retry, bool is_moving, const quire_transfer_head *head,
                     int status, quire_error *err);

#endif /* QUIRE_CLI_TRANSFER_H */
