/* hub_double.h - an HTTP server on loopback that answers as a test wants: files with ranges,
 * redirects, refusals, connections that break off or stand still.
 *
 * Each connection has a thread and takes one request. Thread: the test's, which must not change the
 * entries while the server runs, but for hub_double_change().
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_HUB_DOUBLE_H
#define QUIRE_TESTS_HUB_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HUB_ENTRIES_MAX 16

typedef struct hub_entry {
    const char *path;    /* of the request line, with its query */
    int status;          /* 0 = 200, or 206 for a range */
    const char *headers; /* more of them, each with its line end; NULL = none */
    const void *body;
    size_t n_body;
    bool ignores_ranges;
    bool has_no_length;   /* the end of the connection ends the body */
    bool has_wrong_range; /* says another beginning than it sends */
    uint32_t n_busy;      /* so many requests get busy_status first */
    int busy_status;
    uint32_t n_cut; /* so many connections end after cut_bytes of the body; HEAD is not counted */
    size_t cut_bytes;
    bool is_held; /* the body stands still after cut_bytes, until hub_double_release() */
} hub_entry;

typedef struct hub_double hub_double;

/* Entries and their bodies are copied; paths and headers must live as long as the server. */
hub_double *hub_double_start(const hub_entry *entries, size_t n);
uint16_t hub_double_port(const hub_double *hub);
void hub_double_change(hub_double *hub, const char *path, hub_entry entry);
/* Let all bodies that stand still go on. */
void hub_double_release(hub_double *hub);
/* Requests so far, one a line: "GET /path range=100- auth=Bearer x\n". Memory: free(). */
char *hub_double_log(hub_double *hub);
void hub_double_log_clear(hub_double *hub);
void hub_double_stop(hub_double *hub);

#endif /* QUIRE_TESTS_HUB_DOUBLE_H */
