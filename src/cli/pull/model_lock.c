/* model_lock.c - locks of models, and their removal; see model_folder.h.
 *
 * A lock is a flock() on FILE.lock, which is removed while the lock is held (lock_file.h).
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/model_folder.h"

#include "base/check.h"
#include "cli/commands/lock_file.h"
#include "cli/commands/talk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Create the folders above a path; path is unchanged on return. */
static int make_folders(char *path, quire_error *err)
{
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        int result;

        *at = '\0';
        result = mkdir(path, 0777);
        if (result != 0 && errno != EEXIST) {
            return quire_error_set_errno(
                err, errno, "cannot make the folder %s (QUIRE_MODELS names another)", path);
        }
        *at = '/';
    }
    return QUIRE_OK;
}

static int lock_path(const char *path, char buffer[QUIRE_PLACE_MAX], quire_error *err)
{
    const int n = snprintf(buffer, QUIRE_PLACE_MAX, "%s" QUIRE_MODEL_LOCK_SUFFIX, path);

    return n > 0 && n < (int)QUIRE_PLACE_MAX
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_LIMIT, "%.80s...: the path is too long", path);
}

static int wait_for(int fd, const char *path, bool *has_said, quire_error *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return QUIRE_OK;
    }
    if (errno != EWOULDBLOCK) {
        return quire_error_set_errno(err, errno, "cannot lock %s", path);
    }
    if (!*has_said) {
        quire_say("another process is at work on %s: waiting for it", path);
        *has_said = true;
    }
    while (flock(fd, LOCK_EX) != 0) {
        if (errno != EINTR) {
            return quire_error_set_errno(err, errno, "cannot lock %s", path);
        }
        if (quire_interrupt_seen()) {
            return quire_error_set(err, QUIRE_CANCELED, "interrupted");
        }
    }
    return QUIRE_OK;
}

int quire_model_lock(const char *path, int *fd, quire_error *err)
{
    char name[QUIRE_PLACE_MAX];
    bool has_said = false;
    int rc = QUIRE_OK;

    *fd = -1;
    QUIRE_TRY(lock_path(path, name, err));
    QUIRE_TRY(make_folders(name, err));
    while (rc == QUIRE_OK) {
        *fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (*fd < 0) {
            return quire_error_set_errno(
                err, errno, "cannot write beside %s (QUIRE_MODELS names another folder)", path);
        }
        rc = wait_for(*fd, path, &has_said, err);
        if (rc == QUIRE_OK && quire_lock_file_has_name(*fd, name)) {
            return QUIRE_OK;
        }
        (void)close(*fd);
        *fd = -1;
    }
    return rc;
}

void quire_model_unlock(const char *path, int fd)
{
    char name[QUIRE_PLACE_MAX];

    if (fd >= 0) {
        if (lock_path(path, name, NULL) == QUIRE_OK) {
            (void)unlink(name);
        }
        (void)close(fd);
    }
}

/* ---- removal ---- */

void quire_model_partials_remove(const char *path, const char *keep)
{
    char folder[QUIRE_PLACE_MAX];
    const char *slash = strrchr(path, '/');
    const size_t n_suffix = strlen(QUIRE_MODEL_PARTIAL_SUFFIX);
    DIR *dir;
    struct dirent *entry;

    if (slash == NULL || strlen(path) >= sizeof(folder)) {
        return;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
    dir = opendir(folder);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const size_t n = strlen(entry->d_name);
        const size_t n_base = strlen(slash + 1);

        /* FILE.ID.partial, and not a file whose name only begins alike. */
        if (n > n_base + n_suffix + 1 && strncmp(entry->d_name, slash + 1, n_base) == 0 &&
            entry->d_name[n_base] == '.' &&
            strcmp(entry->d_name + n - n_suffix, QUIRE_MODEL_PARTIAL_SUFFIX) == 0 &&
            strchr(entry->d_name + n_base + 1, '.') == entry->d_name + n - n_suffix &&
            (keep == NULL || strcmp(entry->d_name, keep) != 0)) {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

/* Remove the empty folders above a path, up to the folder of models. */
static void remove_folders(const char *path)
{
    char root[QUIRE_PLACE_MAX];
    char folder[QUIRE_PLACE_MAX];
    char *slash;

    if (quire_models_folder(root, NULL) < 0 || strncmp(path, root, strlen(root)) != 0) {
        return;
    }
    (void)snprintf(folder, sizeof(folder), "%s", path);
    while ((slash = strrchr(folder, '/')) != NULL && (size_t)(slash - folder) > strlen(root)) {
        *slash = '\0';
        if (rmdir(folder) != 0) {
            return;
        }
    }
}

static int remove_file(const char *path, quire_error *err)
{
    return unlink(path) == 0 || errno == ENOENT
               ? QUIRE_OK
               : quire_error_set_errno(err, errno, "cannot remove %s", path);
}

int quire_model_remove(const char *path, quire_error *err)
{
    const uint32_t n_parts = quire_model_parts(path);
    char at[QUIRE_PLACE_MAX];
    int rc = QUIRE_OK;
    int n;

    QUIRE_CHECK(strlen(path) < sizeof(at));
    (void)snprintf(at, sizeof(at), "%s", path);
    for (uint32_t i = 1; i <= n_parts && rc == QUIRE_OK; i++) {
        if (n_parts > 1) {
            quire_model_part_set(at, i);
        }
        rc = remove_file(at, err);
        quire_model_partials_remove(at, NULL);
    }
    n = snprintf(at, sizeof(at), "%s" QUIRE_MODEL_RECORD_SUFFIX, path);
    if (rc == QUIRE_OK && n > 0 && n < (int)sizeof(at)) {
        rc = remove_file(at, err);
    }
    if (rc == QUIRE_OK) {
        (void)snprintf(at, sizeof(at), "%s" QUIRE_MODEL_LOCK_SUFFIX, path);
        (void)unlink(at);
        remove_folders(path);
    }
    return rc;
}
