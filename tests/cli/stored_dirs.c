/* stored_dirs.c - see stored_dirs.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "stored_dirs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char stored_river[] = "the river ran to the sea and the tree saw it all the long day, and a "
                            "dog and a cat ran by the old house";
const char stored_letter[] = "dear friend, today there is little to say about the weather, so this "
                             "letter speaks of the garden and of its stones";

/* ---- directories ---- */

const char *stored_dir_new(const char *name)
{
    const char *path = program_path(name);
    struct stat info;

    assert_int_not_equal(stat(path, &info), 0);
    return path;
}

/* Call each() for the path of every file. */
void stored_dir_each(const char *dir, void (*each)(const char *path))
{
    DIR *d = opendir(dir);
    struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char path[1024];

        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') {
            each(path);
        }
    }
    (void)closedir(d);
}

void stored_file_remove(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

void stored_dir_remove(const char *dir)
{
    stored_dir_each(dir, stored_file_remove);
    assert_int_equal(rmdir(dir), 0);
}

/* Store a text's pages; nothing is generated. Returns its tokens. */
json_int_t stored_put(const char *dir, const char *text, const char *kv)
{
    json_t *document =
        program_json(PROGRAM("run", "-m", program_model(), "-t", "1", "-p", text, "-n", "0",
                             "--temp", "0", "--kv", kv, "--cache-dir", dir, "--json"));
    const json_int_t n = json_integer_value(json_object_get(document, "prompt_tokens"));

    json_decref(document);
    assert_true(n > 64);
    return n;
}

json_int_t stored_number(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_integer(value)) {
        fail_msg("no number %s", name);
    }
    return json_integer_value(value);
}

const char *stored_string(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_string(value)) {
        fail_msg("no string %s", name);
    }
    return json_string_value(value);
}

/* ---- damage ---- */

static char damaged[1024];

/* Flip a bit in the middle of a block. */
void stored_flip(const char *path, int64_t offset)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
    (void)close(fd);
}

/* Damage the first record of a segment, behind its head. */
void stored_segment_damage(const char *path)
{
    if (strstr(path, "segment-") != NULL) {
        (void)snprintf(damaged, sizeof damaged, "%s", path);
        stored_flip(path, STORED_BLOCK + 2000);
    }
}

/* The number of a text's tokens that quire run finds in the directory. */
json_int_t stored_found(const char *dir, const char *text, const char *kv)
{
    json_t *document =
        program_json(PROGRAM("run", "-m", program_model(), "-t", "1", "-p", text, "-n", "0",
                             "--temp", "0", "--kv", kv, "--cache-dir", dir, "--json"));
    const json_int_t n = stored_number(document, "stored_tokens");

    json_decref(document);
    return n;
}

const char *stored_damaged_path(void)
{
    return damaged;
}
