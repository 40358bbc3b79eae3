/* json_in.h - reading JSON whose integers may be of any size.
 *
 * jansson has integers of 64 bits, and refuses a text with another one. Clients send such integers:
 * a seed, a bound of a schema, a number in a tool's arguments. Here they become real numbers.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_JSON_IN_H
#define QUIRE_SERVER_JSON_IN_H

#include <jansson.h>

#include <stddef.h>

/* As json_loadb(), with integers beyond 64 bits as reals. Memory: json_decref(). */
json_t *quire_json_read(const char *text, size_t n, size_t flags, json_error_t *error);

#endif /* QUIRE_SERVER_JSON_IN_H */
