/* stored_dirs.h - cache directories that tests of quire cache fill, damage and remove.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_STORED_DIRS_H
#define QUIRE_TESTS_STORED_DIRS_H

#include "program.h"

#include <stdint.h>

#define STORED_BLOCK 4096

/* Two texts of more than a page and less than two, that begin differently. */
extern const char stored_river[];
extern const char stored_letter[];

/* A path at which there is nothing. */
const char *stored_dir_new(const char *name);
/* Call each() for the path of every file. */
void stored_dir_each(const char *dir, void (*each)(const char *path));
void stored_file_remove(const char *path);
void stored_dir_remove(const char *dir);

/* Store a text's pages with quire run, which generates nothing. Returns the text's tokens. */
json_int_t stored_put(const char *dir, const char *text, const char *kv);
/* How many tokens of a text quire run finds. */
json_int_t stored_found(const char *dir, const char *text, const char *kv);

/* A member of an object; fails the test if it is missing. */
json_int_t stored_number(const json_t *object, const char *name);
const char *stored_string(const json_t *object, const char *name);

/* Flip a bit of a file. */
void stored_flip(const char *path, int64_t offset);
/* Damage the first record of a segment, behind its head; other files are left alone. */
void stored_segment_damage(const char *path);
/* Path of the segment that stored_segment_damage() damaged last. */
const char *stored_damaged_path(void);

#endif /* QUIRE_TESTS_STORED_DIRS_H */
