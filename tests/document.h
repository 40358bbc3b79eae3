/* document.h - parts of docs/ that are made from tables of the program.
 *
 * A document holds a made part between two marks:
 *
 *   <!-- NAME: made by make docs -->
 *
 *   ...
 *
 *   <!-- end of NAME -->
 *
 * The rest of the document is written by hand.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DOCUMENT_H
#define QUIRE_TESTS_DOCUMENT_H

#include "base/bytes.h"

/* Compare the part `name` of docs/`file` with `made`, or replace the part when QUIRE_WRITE_DOCS is
 * in the environment. Fails the test when the marks are missing or the part differs. */
void document_part(const char *file, const char *name, const quire_bytes *made);

#endif /* QUIRE_TESTS_DOCUMENT_H */
