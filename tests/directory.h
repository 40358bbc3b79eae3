/* directory.h - the directory of a test program, for cmocka's setup and teardown of a group.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DIRECTORY_H
#define QUIRE_TESTS_DIRECTORY_H

#include <stdlib.h>
#include <unistd.h>

static char test_dir[] = "/tmp/quire-test-XXXXXX"; /* its path, once it is made */

static inline int test_dir_make(void **state)
{
    (void)state;
    return mkdtemp(test_dir) != NULL ? 0 : -1;
}

/* Fails if the tests left a file. */
static inline int test_dir_remove(void **state)
{
    (void)state;
    return rmdir(test_dir);
}

#endif /* QUIRE_TESTS_DIRECTORY_H */
