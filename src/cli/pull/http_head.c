/* http_head.c - see http_head.h. Servers are not trusted: malformed fields are left out.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/http_head.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define VALUE_MAX 4096u

void quire_transfer_head_clear(quire_transfer_head *head)
{
    memset(head, 0, sizeof(*head));
    head->length = head->range_from = head->range_total = QUIRE_TRANSFER_UNKNOWN;
    head->linked_size = QUIRE_TRANSFER_UNKNOWN;
}

static void begin_answer(quire_transfer_head *head, const char *line)
{
    quire_transfer_head kept = *head;
    const char *space = strchr(line, ' ');
    int64_t status = 0;
    char digits[4] = { 0 };

    quire_transfer_head_clear(head);
    memcpy(head->linked_etag, kept.linked_etag, sizeof(head->linked_etag));
    memcpy(head->commit, kept.commit, sizeof(head->commit));
    head->linked_size = kept.linked_size;
    if (space != NULL) {
        (void)snprintf(digits, sizeof(digits), "%.3s", space + 1);
        if (quire_parse_i64(digits, 100, 599, &status) == QUIRE_OK) {
            head->status = (long)status;
        }
    }
}

static uint64_t number_of(const char *text)
{
    int64_t value;

    return quire_parse_i64(text, 0, INT64_MAX, &value) == QUIRE_OK ? (uint64_t)value
                                                                   : QUIRE_TRANSFER_UNKNOWN;
}

/* "text", without the quotes; weak ones (W/"...") say nothing about bytes. */
static void take_etag(char *out, size_t out_bytes, const char *value)
{
    size_t n = strlen(value);

    out[0] = '\0';
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
        value++;
        n -= 2;
    }
    if (n == 0 || n >= out_bytes || strncmp(value, "W/", 2) == 0 || memchr(value, '"', n) != NULL) {
        return;
    }
    memcpy(out, value, n);
    out[n] = '\0';
}

/* bytes FROM-LAST/TOTAL. */
static void take_range(quire_transfer_head *head, const char *value)
{
    char from[24];
    const char *dash = strchr(value, '-');
    const char *slash = strchr(value, '/');

    if (strncasecmp(value, "bytes ", 6) != 0 || dash == NULL || slash == NULL ||
        dash - value - 6 >= (int)sizeof(from)) {
        return;
    }
    (void)snprintf(from, sizeof(from), "%.*s", (int)(dash - value - 6), value + 6);
    head->range_from = number_of(from);
    head->range_total = number_of(slash + 1);
}

/* <URL>; rel="next". */
static void take_link(quire_transfer_head *head, const char *value)
{
    for (const char *at = strchr(value, '<'); at != NULL; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        const char *rel = end != NULL ? strstr(end, "rel=\"next\"") : NULL;
        const char *other = end != NULL ? strchr(end, '<') : NULL;

        if (rel != NULL && (other == NULL || rel < other) &&
            (size_t)(end - at - 1) < sizeof(head->next)) {
            (void)snprintf(head->next, sizeof(head->next), "%.*s", (int)(end - at - 1), at + 1);
            return;
        }
    }
}

static void take_field(quire_transfer_head *head, const char *name, const char *value)
{
    if (strcasecmp(name, "content-length") == 0) {
        head->length = number_of(value);
    } else if (strcasecmp(name, "content-range") == 0) {
        take_range(head, value);
    } else if (strcasecmp(name, "etag") == 0) {
        take_etag(head->etag, sizeof(head->etag), value);
    } else if (strcasecmp(name, "x-linked-etag") == 0 && head->linked_etag[0] == '\0') {
        take_etag(head->linked_etag, sizeof(head->linked_etag), value);
    } else if (strcasecmp(name, "x-linked-size") == 0 &&
               head->linked_size == QUIRE_TRANSFER_UNKNOWN) {
        head->linked_size = number_of(value);
    } else if (strcasecmp(name, "x-repo-commit") == 0 && head->commit[0] == '\0' &&
               strlen(value) < sizeof(head->commit) &&
               strspn(value, "0123456789abcdef") == strlen(value)) {
        memcpy(head->commit, value, strlen(value) + 1);
    } else if (strcasecmp(name, "retry-after") == 0) {
        const uint64_t seconds = number_of(value);

        head->retry_after_s = seconds < UINT32_MAX ? (uint32_t)seconds : 0;
    } else if (strcasecmp(name, "link") == 0) {
        take_link(head, value);
    }
}

void quire_transfer_head_line(quire_transfer_head *head, const char *line, size_t n)
{
    char text[VALUE_MAX];
    char *value;

    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' ')) {
        n--;
    }
    if (n >= sizeof(text) || memchr(line, '\0', n) != NULL) {
        return;
    }
    memcpy(text, line, n);
    text[n] = '\0';
    if (strncasecmp(text, "HTTP/", 5) == 0) {
        begin_answer(head, text);
        return;
    }
    value = strchr(text, ':');
    if (value == NULL) {
        return;
    }
    *value++ = '\0';
    value += strspn(value, " \t");
    take_field(head, text, value);
}
