/* retained.h - common parts of the tests of --retain and --attend: a text, runs, refusals.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_RETAINED_H
#define QUIRE_TESTS_RETAINED_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

/* A file of 4,000 characters. Memory: static. */
const char *text_file(void);
/* A number of an object, which must be there. */
double number(const json_t *object, const char *key);
/* The program ends with this status and says this. */
void refuse(int status, const char *says, program_args args);
/* kv.retained of a run; NULL: all tokens are in shared pages. Borrowed. */
const json_t *retained_of(const json_t *run);
/* A run answers as another one did. */
void assert_same_text(const json_t *a, const json_t *b);

#endif /* QUIRE_TESTS_RETAINED_H */
