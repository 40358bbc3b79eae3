/* stored_file.h - records of one text as a file, to be carried to another directory or machine.
 *
 *   0        4096
 *   +--------+--------+--------+- - -
 *   | head   | record | record |
 *   +--------+--------+--------+- - -
 *
 * Records are those of page_record.h, as they lie in a segment, in the order of the text. The head
 * is {magic "QKVX", version u32, count u32, zero u32, bytes of all records u64, XXH3-128 of the
 * bytes before}, then zeros. Numbers are little-endian.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_STORED_FILE_H
#define QUIRE_CLI_STORED_FILE_H

#include <stdio.h>

#include "quire/error.h"
#include "store/page_record.h"

#define QUIRE_STORED_FILE_HEAD_BYTES QUIRE_PAGE_RECORD_ALIGN

typedef struct quire_stored_file_head {
    uint32_t n_records;
    uint64_t n_bytes; /* of all records */
} quire_stored_file_head;

/* block is [QUIRE_STORED_FILE_HEAD_BYTES]. */
void quire_stored_file_head_write(unsigned char *block, const quire_stored_file_head *head);

/* A file that is read. */
typedef struct quire_stored_file {
    FILE *stream;
    const char *path; /* borrowed */
    quire_stored_file_head head;
    uint32_t n_read;         /* records */
    uint64_t offset;         /* of the next one */
    unsigned char *record;   /* the last one, aligned to QUIRE_PAGE_RECORD_ALIGN */
    size_t capacity;         /* of it */
    quire_page_record found; /* its fields */
} quire_stored_file;

/* Open a file and read its head. Errors: QUIRE_IO, QUIRE_CORRUPT, QUIRE_UNSUPP (another version),
 * QUIRE_NOMEM; err names the file. Memory: quire_stored_file_close(), also after an error. */
int quire_stored_file_open(quire_stored_file *out, const char *path, quire_error *err);
void quire_stored_file_close(quire_stored_file *file);

/* Read and verify the next record: checksum, fields, and whether the key follows from the tokens.
 * The end is verified too: it must come after head.n_records, and nothing may follow. Returns 1, or
 * 0 at the end. Errors: QUIRE_IO, QUIRE_CORRUPT, QUIRE_NOMEM; err names file, record and offset. */
int quire_stored_file_next(quire_stored_file *file, quire_error *err);
/* Go back to the first record. Errors: QUIRE_IO. */
int quire_stored_file_rewind(quire_stored_file *file, quire_error *err);

#endif /* QUIRE_CLI_STORED_FILE_H */
