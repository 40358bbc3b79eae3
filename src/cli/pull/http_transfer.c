/* http_transfer.c - see http_transfer.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/http_transfer.h"

#include "base/check.h"
#include "cli/commands/talk.h"
#include "cli/pull/http_head.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define USER_AGENT "quire/" QUIRE_VERSION
#define ORIGIN_MAX 320u

typedef struct running {
    const quire_transfer *transfer;
    quire_transfer_head *head;
    quire_error *err;
    int status; /* of begin and sink */
    bool has_begun;
} running;

bool quire_transfer_is_built(void)
{
    return true;
}

/* ---- URLs ---- */

typedef struct origin {
    char text[ORIGIN_MAX]; /* scheme://host:port */
    char host[256];
    bool is_https;
    bool is_loopback;
} origin;

/* Memory: curl_free() inside. Errors: QUIRE_INVAL. */
static int origin_of(const char *url, origin *out, quire_error *err)
{
    CURLU *parsed = curl_url();
    char *scheme = NULL;
    char *host = NULL;
    char *port = NULL;
    int rc = QUIRE_OK;

    memset(out, 0, sizeof(*out));
    if (parsed == NULL || curl_url_set(parsed, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        curl_url_get(parsed, CURLUPART_HOST, &host, 0) != CURLUE_OK ||
        curl_url_get(parsed, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK ||
        strlen(host) >= sizeof(out->host)) {
        rc = quire_error_set(err, QUIRE_INVAL, "%.200s is no URL that can be fetched", url);
    } else {
        out->is_https = strcasecmp(scheme, "https") == 0;
        out->is_loopback = strcmp(host, "127.0.0.1") == 0 || strcmp(host, "[::1]") == 0 ||
                           strcasecmp(host, "localhost") == 0;
        (void)snprintf(out->host, sizeof(out->host), "%s", host);
        (void)snprintf(out->text, sizeof(out->text), "%s://%s:%s", scheme, host, port);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(parsed);
    return rc;
}

/* ---- callbacks ---- */

static bool is_final(const quire_transfer_head *head)
{
    return head->status >= 200 && head->status < 300;
}

static bool begin_body(running *r)
{
    if (!r->has_begun && r->status == QUIRE_OK) {
        r->has_begun = true;
        if (r->transfer->begin != NULL) {
            r->status = r->transfer->begin(r->transfer->ctx, r->head, r->err);
        }
    }
    return r->status == QUIRE_OK;
}

static size_t on_header(char *data, size_t size, size_t n, void *opaque)
{
    running *r = opaque;

    quire_transfer_head_line(r->head, data, size * n);
    return size * n;
}

static size_t on_body(char *data, size_t size, size_t n, void *opaque)
{
    running *r = opaque;

    if (!is_final(r->head)) {
        return size * n;
    }
    if (!begin_body(r)) {
        return 0;
    }
    r->head->body_bytes += size * n;
    if (r->transfer->sink != NULL) {
        r->status = r->transfer->sink(r->transfer->ctx, data, size * n, r->err);
    }
    return r->status == QUIRE_OK ? size * n : 0;
}

static int on_progress(void *opaque, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)opaque, (void)a, (void)b, (void)c, (void)d;
    return quire_interrupt_seen() ? 1 : 0;
}

/* ---- messages ---- */

/* Worth repeating: the network, and answers that break off. */
static bool is_passing(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_WEIRD_SERVER_REPLY:
        return true;
    default:
        return false;
    }
}

static int fail_curl(const running *r, const origin *at, CURLcode code, const char *details)
{
    if (r->status != QUIRE_OK) {
        return r->status;
    }
    if (code == CURLE_ABORTED_BY_CALLBACK) {
        return quire_error_set(r->err, QUIRE_CANCELED, "interrupted");
    }
    if (code == CURLE_OUT_OF_MEMORY) {
        return quire_error_set(r->err, QUIRE_NOMEM, "out of memory");
    }
    return quire_error_set(r->err, is_passing(code) ? QUIRE_AGAIN : QUIRE_INVAL, "%s: %s", at->host,
                           details[0] != '\0' ? details : curl_easy_strerror(code));
}

/* Answers of a hub that are final and have remedies. */
static int fail_hub(const running *r, const origin *at)
{
    const bool has_token = r->transfer->token != NULL;

    switch (r->head->status) {
    case 401:
        return quire_error_set(
            r->err, QUIRE_INVAL,
            has_token ? "%s refuses the token (401): it is wrong or has expired, or there is no "
                        "such repository"
                      : "%s asks for a token (401): the repository is private or gated, or there "
                        "is none of this name; HF_TOKEN or --token-file gives a token",
            at->host);
    case 403:
        return quire_error_set(r->err, QUIRE_INVAL, "%s refuses (403): %s", at->host,
                               has_token
                                   ? "the repository may be gated: accept its conditions on its "
                                     "page, with the account of this token"
                                   : "the repository may be gated: accept its conditions on its "
                                     "page, and give a token of this account by HF_TOKEN");
    default:
        return quire_error_set(r->err, QUIRE_NOTFOUND,
                               "%s has no such repository, revision or file (%ld)", at->host,
                               r->head->status);
    }
}

/* Answers that are final. No token goes to a plain URL, thus none would help there. */
static int fail_refused(const running *r, const origin *at)
{
    switch (r->head->status) {
    case 401:
    case 403:
        if (r->transfer->is_hub) {
            return fail_hub(r, at);
        }
        return quire_error_set(r->err, QUIRE_INVAL,
                               "%s refuses (%ld): the file is not for everybody, or its link has "
                               "expired; quire sends no password or token to a URL",
                               at->host, r->head->status);
    case 404:
    case 410:
        if (r->transfer->is_hub) {
            return fail_hub(r, at);
        }
        return quire_error_set(r->err, QUIRE_NOTFOUND, "%s has no such file (%ld)", at->host,
                               r->head->status);
    case 416:
        return quire_error_set(r->err, QUIRE_RANGE, "%s has no more bytes (416)", at->host);
    default:
        return quire_error_set(r->err, QUIRE_INVAL, "%s refuses (%ld)", at->host, r->head->status);
    }
}

static int fail_status(const running *r, const origin *at)
{
    switch (r->head->status) {
    case 429:
        return quire_error_set(
            r->err, QUIRE_AGAIN,
            r->transfer->token != NULL || !r->transfer->is_hub
                ? "%s gets too many requests from here (429): try again later"
                : "%s gets too many requests from here (429): try again later, or with a token "
                  "(HF_TOKEN), which has a higher limit",
            at->host);
    case 408:
    case 425:
    case 500:
    case 502:
    case 503:
    case 504:
        return quire_error_set(r->err, QUIRE_AGAIN, "%s is in trouble (%ld): try again later",
                               at->host, r->head->status);
    default:
        return fail_refused(r, at);
    }
}

/* ---- one request ---- */

static bool add_header(struct curl_slist **list, const char *name, const char *value)
{
    char line[1024];
    struct curl_slist *longer;

    (void)snprintf(line, sizeof(line), "%s: %s", name, value);
    longer = curl_slist_append(*list, line);
    if (longer == NULL) {
        return false;
    }
    *list = longer;
    return true;
}

static bool set_options(CURL *curl, running *r, const char *url, char *details)
{
    const quire_transfer *t = r->transfer;
    bool ok = true;

    ok = ok && curl_easy_setopt(curl, CURLOPT_URL, url) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_USERAGENT, USER_AGENT) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, details) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_HEADERDATA, r) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_WRITEDATA, r) == CURLE_OK;
    ok = ok &&
         curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)QUIRE_TRANSFER_CONNECT_S) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)t->stall_s) == CURLE_OK;
    ok = ok && curl_easy_setopt(curl, CURLOPT_NOBODY, t->is_head ? 1L : 0L) == CURLE_OK;
    return ok;
}

/* Range, If-Range and the token. Memory: curl_slist_free_all(*list). */
static bool set_headers(CURL *curl, const running *r, bool takes_token, struct curl_slist **list)
{
    const quire_transfer *t = r->transfer;
    char value[QUIRE_TRANSFER_ETAG_MAX + 600];
    bool ok = true;

    if (t->from > 0) {
        (void)snprintf(value, sizeof(value), "bytes=%llu-", (unsigned long long)t->from);
        ok = add_header(list, "Range", value);
        if (ok && t->if_range != NULL) {
            (void)snprintf(value, sizeof(value), "\"%s\"", t->if_range);
            ok = add_header(list, "If-Range", value);
        }
    }
    if (ok && takes_token) {
        (void)snprintf(value, sizeof(value), "Bearer %s", t->token);
        ok = add_header(list, "Authorization", value);
    }
    return ok && curl_easy_setopt(curl, CURLOPT_HTTPHEADER, *list) == CURLE_OK;
}

/* One request without redirects. *redirect: where the answer points to, empty if nowhere. */
static int request(running *r, const char *url, bool takes_token, char redirect[QUIRE_NAME_URL_MAX])
{
    char details[CURL_ERROR_SIZE] = { 0 };
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = NULL;
    char *to = NULL;
    origin at;
    int rc = QUIRE_OK;

    redirect[0] = '\0';
    if (curl == NULL) {
        return quire_error_set(r->err, QUIRE_NOMEM, "out of memory");
    }
    rc = origin_of(url, &at, r->err);
    if (rc == QUIRE_OK &&
        (!set_options(curl, r, url, details) || !set_headers(curl, r, takes_token, &headers))) {
        rc = quire_error_set(r->err, QUIRE_NOMEM, "out of memory");
    }
    if (rc == QUIRE_OK) {
        const CURLcode code = curl_easy_perform(curl);

        if (code != CURLE_OK) {
            rc = fail_curl(r, &at, code, details);
        } else if (is_final(r->head)) {
            rc = begin_body(r) ? QUIRE_OK : r->status;
        } else if (curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &to) == CURLE_OK && to != NULL &&
                   strlen(to) < QUIRE_NAME_URL_MAX) {
            memcpy(redirect, to, strlen(to) + 1);
        } else {
            rc = fail_status(r, &at);
        }
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return rc;
}

int quire_transfer_run(const quire_transfer *transfer, quire_transfer_head *head, quire_error *err)
{
    running r = { .transfer = transfer, .head = head, .err = err, .status = QUIRE_OK };
    char url[QUIRE_NAME_URL_MAX];
    char next[QUIRE_NAME_URL_MAX];
    origin first;
    origin at;

    quire_transfer_head_clear(head);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return quire_error_set(err, QUIRE_NOMEM, "libcurl cannot begin");
    }
    QUIRE_TRY(origin_of(transfer->url, &first, err));
    QUIRE_CHECK(strlen(transfer->url) < sizeof(url));
    memcpy(url, transfer->url, strlen(transfer->url) + 1);
    for (uint32_t i = 0; i <= QUIRE_TRANSFER_REDIRECTS_MAX; i++) {
        bool takes_token;

        QUIRE_TRY(origin_of(url, &at, err));
        if (first.is_https && !at.is_https) {
            return quire_error_set(err, QUIRE_INVAL, "%s redirects from https to http: refused",
                                   first.host);
        }
        takes_token = transfer->token != NULL && strcmp(at.text, first.text) == 0 &&
                      (at.is_https || at.is_loopback);
        QUIRE_TRY(request(&r, url, takes_token, next));
        if (next[0] == '\0') {
            return QUIRE_OK;
        }
        memcpy(url, next, sizeof(url));
    }
    return quire_error_set(err, QUIRE_INVAL, "%s redirects more than %u times", first.host,
                           QUIRE_TRANSFER_REDIRECTS_MAX);
}
