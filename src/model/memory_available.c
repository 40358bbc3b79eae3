/* memory_available.c - the memory that this process may still take, and has taken; see memory.h.
 *
 * /proc/meminfo gives the machine's figure. A control group may allow less: its limit, minus the
 * group's use, plus the group's file pages, because the kernel drops file pages on demand. Every
 * group from this process's own up to the root is asked, since each bounds the ones below.
 *
 * SPDX-License-Identifier: MIT */
#include "model/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN    UINT64_MAX
#define LINE_BYTES 512

/* The files of version 1 and version 2 with the same figures. */
typedef struct cgroup_version {
    const char *controller; /* in /proc/self/cgroup */
    const char *mount;
    const char *limit;
    const char *usage;
    const char *stat_keys[2]; /* file pages */
} cgroup_version;

static const cgroup_version versions[] = {
    { "", "/sys/fs/cgroup", "memory.max", "memory.current", { "active_file", "inactive_file" } },
    { "memory",
      "/sys/fs/cgroup/memory",
      "memory.limit_in_bytes",
      "memory.usage_in_bytes",
      { "total_active_file", "total_inactive_file" } },
};

/* The number in the line of a file that begins with key and a blank or colon; "" = the file's first
 * line. UNKNOWN when there is none ("max" is none). */
static uint64_t number_read(const char *path, const char *key)
{
    const size_t key_bytes = strlen(key);
    FILE *file = fopen(path, "re");
    uint64_t value = UNKNOWN;
    char line[LINE_BYTES];

    while (file != NULL && value == UNKNOWN && fgets(line, sizeof line, file) != NULL) {
        const char *text = line + key_bytes;

        if (strncmp(line, key, key_bytes) != 0 || (key_bytes > 0 && *text != ':' && *text != ' ')) {
            continue;
        }
        text += strspn(text, ": \t");
        if (*text >= '0' && *text <= '9') {
            value = strtoull(text, NULL, 10);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return value;
}

static uint64_t group_number(const char *folder, const char *name, const char *key)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);

    return n > 0 && (size_t)n < sizeof path ? number_read(path, key) : UNKNOWN;
}

/* The bytes that one group leaves; UNKNOWN when the group sets no limit. */
static uint64_t group_available(const cgroup_version *version, const char *folder)
{
    const uint64_t limit = group_number(folder, version->limit, "");
    const uint64_t usage = group_number(folder, version->usage, "");
    uint64_t used = usage;

    if (limit == UNKNOWN || usage == UNKNOWN) {
        return limit;
    }
    for (size_t i = 0; i < 2; i++) {
        const uint64_t file = group_number(folder, "memory.stat", version->stat_keys[i]);

        used -= file == UNKNOWN ? 0 : file < used ? file : used;
    }
    return limit > used ? limit - used : 0;
}

/* folder is the path of the process's group and is shortened to each parent in turn, down to its
 * first root_bytes bytes. */
static uint64_t groups_available(const cgroup_version *version, char *folder, size_t root_bytes)
{
    uint64_t least = UNKNOWN;

    for (;;) {
        const uint64_t available = group_available(version, folder);
        char *slash = strrchr(folder, '/');

        least = available < least ? available : least;
        if (slash == NULL || (size_t)(slash - folder) < root_bytes) {
            return least;
        }
        *slash = '\0';
    }
}

/* Whether a list "cpu,memory" has the name; "" only in the empty list. */
static bool has_name(const char *list, size_t list_bytes, const char *name)
{
    const size_t n = strlen(name);

    while (list_bytes >= n) {
        const char *comma = memchr(list, ',', list_bytes);
        const size_t word = comma != NULL ? (size_t)(comma - list) : list_bytes;

        if (word == n && memcmp(list, name, n) == 0) {
            return true;
        }
        if (comma == NULL) {
            return false;
        }
        list += word + 1;
        list_bytes -= word + 1;
    }
    return false;
}

static uint64_t cgroups_available(const char *root)
{
    char path[PATH_MAX];
    char line[LINE_BYTES];
    uint64_t least = UNKNOWN;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *list = strchr(line, ':');
        const char *group = list != NULL ? strchr(list + 1, ':') : NULL;

        for (size_t i = 0; group != NULL && i < sizeof versions / sizeof versions[0]; i++) {
            const cgroup_version *v = &versions[i];
            uint64_t available;
            int n;

            if (!has_name(list + 1, (size_t)(group - list - 1), v->controller)) {
                continue;
            }
            n = snprintf(path, sizeof path, "%s%s%.*s", root, v->mount,
                         (int)strcspn(group + 1, "\n"), group + 1);
            if (n <= 0 || (size_t)n >= sizeof path) {
                continue;
            }
            available = groups_available(v, path, strlen(root) + strlen(v->mount));
            least = available < least ? available : least;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return least;
}

uint64_t quire_memory_available_in(const char *root)
{
    const uint64_t groups = cgroups_available(root);
    char path[PATH_MAX];
    uint64_t kib;

    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    kib = number_read(path, "MemAvailable");
    if (kib == UNKNOWN) {
        kib = number_read(path, "MemTotal"); /* kernels and sandboxes without the other */
    }
    if (kib != UNKNOWN && kib < UINT64_MAX / 1024 && kib * 1024 < groups) {
        return kib * 1024;
    }
    return groups;
}

uint64_t quire_memory_available(void)
{
    return quire_memory_available_in("");
}

uint64_t quire_memory_resident_peak(void)
{
    const uint64_t kib = number_read("/proc/self/status", "VmHWM");

    return kib != UNKNOWN ? kib * 1024 : 0;
}
