/* fake_memory.c - memory of cards that do not exist, and pinned memory. Each piece is a mapping of
 * its own between pages without access; its end is at most 255 bytes before the last of them.
 *
 * SPDX-License-Identifier: MIT */
#include "device/fake_cuda/fake_cuda_internal.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 256u

typedef struct fake_piece {
    struct fake_piece *next;
    quire_cuda_ctx ctx;
    bool is_hosts;
    unsigned char *mapping; /* a page without access, then `inner`, then a page without access */
    size_t inner_bytes;
    quire_cuda_addr addr;
    size_t bytes;
} fake_piece;

static fake_piece *pieces;
static uint64_t limit_bytes;

void fake_cuda_limit(uint64_t bytes)
{
    limit_bytes = bytes;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void piece_show(const fake_piece *piece, bool is_shown)
{
    (void)mprotect(piece->mapping + page_bytes(), piece->inner_bytes,
                   is_shown ? PROT_READ | PROT_WRITE : PROT_NONE);
}

uint64_t fake_memory_used(quire_cuda_ctx ctx)
{
    uint64_t n = 0;

    for (const fake_piece *p = pieces; p != NULL; p = p->next) {
        n += p->ctx == ctx && !p->is_hosts ? p->bytes : 0;
    }
    return n;
}

int fake_memory_take(quire_cuda_ctx ctx, size_t bytes, bool is_hosts, quire_cuda_addr *out)
{
    const uint64_t limit = limit_bytes != 0 ? limit_bytes : FAKE_CUDA_MEMORY_BYTES;
    const size_t page = page_bytes();
    fake_piece *piece;

    *out = 0;
    if (bytes == 0) {
        return FAKE_ERROR();
    }
    if (!is_hosts && (bytes > limit || fake_memory_used(ctx) > limit - bytes)) {
        return QUIRE_CUDA_OUT_OF_MEMORY;
    }
    piece = calloc(1, sizeof(*piece));
    if (piece == NULL) {
        return QUIRE_CUDA_OUT_OF_MEMORY;
    }
    piece->ctx = ctx;
    piece->is_hosts = is_hosts;
    piece->bytes = bytes;
    piece->inner_bytes = (bytes + page - 1) / page * page;
    piece->mapping = mmap(NULL, piece->inner_bytes + 2 * page, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (piece->mapping == MAP_FAILED) {
        free(piece);
        return QUIRE_CUDA_OUT_OF_MEMORY;
    }
    piece->addr =
        (quire_cuda_addr)(uintptr_t)(piece->mapping + page +
                                     (piece->inner_bytes - bytes) / ALIGNMENT * ALIGNMENT);
    piece_show(piece, is_hosts);
    piece->next = pieces;
    pieces = piece;
    fake_counts.n_pieces++;
    *out = piece->addr;
    return QUIRE_CUDA_SUCCESS;
}

int fake_memory_give(quire_cuda_addr addr, bool is_hosts)
{
    for (fake_piece **at = &pieces; *at != NULL; at = &(*at)->next) {
        fake_piece *piece = *at;

        if (piece->addr == addr && piece->is_hosts == is_hosts) {
            *at = piece->next;
            (void)munmap(piece->mapping, piece->inner_bytes + 2 * page_bytes());
            free(piece);
            fake_counts.n_pieces--;
            return QUIRE_CUDA_SUCCESS;
        }
    }
    return FAKE_ERROR();
}

bool fake_memory_has(quire_cuda_ctx ctx, quire_cuda_addr addr, size_t bytes)
{
    for (const fake_piece *p = pieces; p != NULL; p = p->next) {
        if (addr >= p->addr && addr - p->addr <= p->bytes && bytes <= p->bytes - (addr - p->addr)) {
            return p->is_hosts || p->ctx == ctx;
        }
    }
    return false;
}

void fake_memory_show(quire_cuda_ctx ctx, bool is_shown)
{
    for (const fake_piece *p = pieces; p != NULL; p = p->next) {
        if (p->ctx == ctx && !p->is_hosts) {
            piece_show(p, is_shown);
        }
    }
}
