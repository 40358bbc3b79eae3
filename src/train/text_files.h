/* text_files.h - the text files of a folder as one sequence of documents, all files mixed.
 *
 * Files are read piece by piece and never lie in memory as a whole; at most one is open. A document
 * ends at a line that says only <|endoftext|>, at the end of its file, or at the first line end
 * after doc_bytes_max.
 *
 * **Order.** A file is read from front to back, in stretches: documents until doc_bytes_max bytes
 * are read or the file ends. The next stretch is that of the file of which the smallest share has
 * been read. Here the share counts the bytes before the stretch and a part of the stretch; the part
 * comes from a hash of the file's name. So files that are one stretch each lie all over the pass,
 * and whatever is read has text of all files in proportion to their lengths.
 *
 * **A place** is a file and an offset in it: the one where the last document ended. The order says
 * how far each other file is read then, so seek() reads all text before the place once more.
 *
 * Lengths are those at open(); bytes that come to a file later are not read.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRAIN_TEXT_FILES_H
#define QUIRE_TRAIN_TEXT_FILES_H

#include "base/bytes.h"
#include "quire/error.h"

#include <stddef.h>
#include <stdint.h>

#define QUIRE_DOC_SEPARATOR "<|endoftext|>"
#define QUIRE_DOC_FILES_MAX 1000000u

typedef struct quire_text_files quire_text_files;

/* path: a file or a folder, with folders in it; names that begin with a dot are left out. Errors:
 * QUIRE_INVAL (no files, too many files, a path too long), QUIRE_IO, QUIRE_NOMEM; err names the
 * path. Memory: quire_text_files_close(). */
int quire_text_files_open(quire_text_files **out, const char *path, size_t doc_bytes_max,
                          quire_error *err);
void quire_text_files_close(quire_text_files *files);

size_t quire_text_files_count(const quire_text_files *files);

/* A hash of the names below the path and of the lengths; never 0. A place means nothing for files
 * with another one. */
uint64_t quire_text_files_identity(const quire_text_files *files);

/* Clear text and fill it with the next document, which may be empty. Errors: QUIRE_NOTFOUND (all
 * files are read; err is left alone), QUIRE_IO, QUIRE_NOMEM. */
int quire_text_files_next(quire_text_files *files, quire_bytes *text, quire_error *err);

void quire_text_files_rewind(quire_text_files *files);

/* Where the last document ended: file, from 0 in the order of names, and offset in bytes. Both are
 * 0 before the first document. */
void quire_text_files_tell(const quire_text_files *files, uint64_t *file, uint64_t *offset);

/* Go on behind a place of tell(). Errors: QUIRE_INVAL (no document ends there: the data changed),
 * QUIRE_IO. */
int quire_text_files_seek(quire_text_files *files, uint64_t file, uint64_t offset,
                          quire_error *err);

#endif /* QUIRE_TRAIN_TEXT_FILES_H */
