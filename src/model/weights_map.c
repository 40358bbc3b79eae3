/* weights_map.c - see weights_map.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/weights_map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

int quire_weights_map_open(quire_weights_map *map, const char *path, uint64_t file_bytes,
                           quire_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *base = MAP_FAILED;
    off_t end;

    *map = (quire_weights_map){ 0 };
    if (fd < 0) {
        return quire_error_set_errno(err, errno, "%s: cannot open", path);
    }
    /* The offsets were checked against the length at open: a file that shrank since would fault. */
    end = lseek(fd, 0, SEEK_END);
    if (end < 0 || (uint64_t)end < file_bytes) {
        (void)close(fd);
        return quire_error_set(err, QUIRE_IO, "%s: the file changed while it was loaded", path);
    }
    base = mmap(NULL, (size_t)file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (base == MAP_FAILED) {
        return quire_error_set_errno(err, errno, "%s: cannot map %llu bytes", path,
                                     (unsigned long long)file_bytes);
    }
    (void)posix_madvise(base, (size_t)file_bytes, POSIX_MADV_WILLNEED);
    map->base = base;
    map->bytes = (size_t)file_bytes;
    return QUIRE_OK;
}

void quire_weights_map_close(quire_weights_map *map)
{
    ggml_backend_buffer_free(map->buffer);
    if (map->base != NULL) {
        (void)munmap(map->base, map->bytes);
    }
}

void quire_weights_map_drop(const quire_weights_map *map, uint64_t offset, size_t n_bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = (offset + page - 1) / page * page;
    const uint64_t end = (offset + n_bytes) / page * page;

    if (end > begin) {
        (void)madvise((char *)map->base + begin, (size_t)(end - begin), MADV_DONTNEED);
    }
}
