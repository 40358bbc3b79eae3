/* fields.h - reading fields of a JSON body: the one place where types and ranges are checked.
 *
 * Errors go to one quire_api_error (400, with the field in message and param). The first error is
 * kept; after it each call returns its fallback, so a handler reads all its fields and checks once.
 * null counts as absent. Unknown fields are ignored, because clients send fields for other servers;
 * those that look misspelt are named in the log and in a header (quire_fields_near()). Known but
 * unsupported fields are refused (unsupported.h).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_FIELDS_H
#define QUIRE_SERVER_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "engine/engine.h"
#include "server/api_error.h"

/* The names that were asked for of an object; static. */
#define QUIRE_FIELDS_ASKED_MAX 512u
typedef struct quire_fields_asked {
    const char *names[QUIRE_FIELDS_ASKED_MAX];
    uint32_t n; /* those beyond the list are not counted */
} quire_fields_asked;

typedef struct quire_fields {
    json_t *object;   /* borrowed */
    const char *path; /* of the object in the body: "stream_options"; NULL = the body itself */
    quire_api_error *err;
    quire_fields_asked *asked; /* gets each name of quire_field(); NULL = nobody wants to know */
} quire_fields;

/* Call when a request has been read: lists the fields of the object that no quire_field() asked for
 * and whose names look like misspelt names of absent fields. Up to QUIRE_FIELDS_NEAR_MAX names,
 * with commas between; characters other than letters, digits, '_' and '-' become '?'. "" = none. */
#define QUIRE_FIELDS_NEAR_MAX   3u
#define QUIRE_FIELDS_NEAR_BYTES 100u
void quire_fields_near(const quire_fields *fields, char out[QUIRE_FIELDS_NEAR_BYTES]);

/* NULL when absent or null. */
json_t *quire_field(const quire_fields *fields, const char *name);

/* A policy of retention, or "none": *out has no policy then. Returns whether the field is there. */
bool quire_field_retain(quire_fields *fields, quire_retain_spec *out);
/* "top:SHARE", or "none": *share is 0 then. Returns whether the field is there. */
bool quire_field_attend(quire_fields *fields, double *share);
bool quire_field_bool(quire_fields *fields, const char *name, bool fallback);
int64_t quire_field_int(quire_fields *fields, const char *name, int64_t fallback, int64_t min,
                        int64_t max);
double quire_field_number(quire_fields *fields, const char *name, double fallback, double min,
                          double max);
/* NULL when absent. Memory: the body's. */
const char *quire_field_string(quire_fields *fields, const char *name, size_t bytes_max);
json_t *quire_field_array(quire_fields *fields, const char *name, size_t n_max);
json_t *quire_field_object(quire_fields *fields, const char *name);
/* Required ones: absent is an error. */
json_t *quire_field_required(quire_fields *fields, const char *name);

/* Values without effect for any field. */
#define QUIRE_FIELD_NOTHING "false, \"\", [], {}"
/* Refuse a field that is not supported, unless its value is null or one of `accepted`: JSON values
 * with commas between. Errors: 400 "unsupported_parameter"; the message names the field, says why,
 * and lists the accepted values. */
void quire_field_refuse(quire_fields *fields, const char *name, const char *accepted,
                        const char *why);

/* "expected a string, got a number" about a field. */
void quire_field_type_error(quire_fields *fields, const char *name, const char *expected,
                            json_t *got);
/* An error about a field in other words. */
__attribute__((format(printf, 3, 4))) void quire_field_error(quire_fields *fields, const char *name,
                                                             const char *format, ...);

/* The same about a value that Quire knows and does not support: "unsupported_parameter". */
__attribute__((format(printf, 3, 4))) void
quire_field_unsupported(quire_fields *fields, const char *name, const char *format, ...);

/* "a string" */
const char *quire_json_type_text(json_t *value);

/* A value as compact JSON, its numbers in the fewest digits that read as the same value: 0.1 rather
 * than 0.10000000000000001. Memory: free(). NULL: no memory. */
char *quire_json_dump(const json_t *value);

#endif /* QUIRE_SERVER_FIELDS_H */
