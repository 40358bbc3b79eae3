/* served.h - a client of the built program's server, for tests that run it end to end.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SERVED_H
#define QUIRE_TESTS_SERVED_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

/* A request to /v1/completions with a prompt of some pages. */
extern const char served_story[];

/* A server that is asked. */
typedef struct served_at {
    const char *address; /* IPv4 */
    uint16_t port;
    const char *headers; /* further ones, each with its CR LF; "" for none */
} served_at;

/* Wait until a started server is ready. Returns its port. */
uint16_t served_port(const program_running *running);
/* One request; the whole reply with its headers, in static memory, until the next request. */
const char *served_exchange(const served_at *at, const char *method, const char *path,
                            const char *body);
/* Where the body of a reply begins. */
const char *served_body(const char *reply);
/* The value of a metric of a server. */
double served_metric_at(const served_at *at, const char *name);
/* One request to this machine; the reply's body, in static memory. */
const char *served_ask(uint16_t port, const char *method, const char *path, const char *body);
/* The value of a metric. */
double served_metric(uint16_t port, const char *name);
/* The answer to served_story, and the cached tokens. */
json_int_t served_complete(uint16_t port, char *text, size_t text_bytes);
/* The same for another body of a request. */
json_int_t served_complete_of(uint16_t port, const char *body, char *text, size_t text_bytes);
/* Wait for a moment, between two looks at something. */
void served_doze(void);
/* Remove a cache directory with its files. Returns the number of segments. */
uint32_t served_remove_dir(const char *dir);
/* End a server by a signal, and check how it ended. */
void served_end(program_running *running, int number);

#endif /* QUIRE_TESTS_SERVED_H */
