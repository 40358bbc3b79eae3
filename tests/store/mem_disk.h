/* mem_disk.h - a directory in memory under the file store, and its contents after a power failure.
 *
 *   start --- call --- call --- sync --- call --- ...        the journal: every call that writes
 *     '------------------------------------'
 *              mem_disk_crash(k, rule): a new disk, as it is found after a failure at call k
 *
 * A call is sure to survive a failure when a sync that covers it came before the failure: datasync
 * for the bytes and the length of a file, sync_dir for names. Of the other calls each may survive,
 * or not, or in part, in any order; the rule says which. The call at which the disk fails counts
 * among these.
 *
 * There is one directory for all paths: only the last name of a path counts. No file is shared with
 * another process, so lock always works. Descriptors are this disk's own, so only threads can read
 * (QUIRE_READS_POOL).
 *
 * Thread: any, unless marked otherwise.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_STORE_MEM_DISK_H
#define QUIRE_TESTS_STORE_MEM_DISK_H

#include "base/rng.h"
#include "store/file/file_ops.h"
#include "store/store.h"

typedef struct mem_disk mem_disk;

/* The calls not covered by a sync that survive. */
typedef enum mem_crash {
    MEM_CRASH_ALL,     /* every one: the process was killed, the machine was not */
    MEM_CRASH_NONE,    /* none */
    MEM_CRASH_TORN,    /* every one but the last, of which a part survives */
    MEM_CRASH_LATEST,  /* the last alone */
    MEM_CRASH_RANDOM,  /* each call, and of writes each sector, by chance */
    MEM_CRASH_LENGTHS, /* RANDOM, but lost writes still lengthen their file */
    MEM_CRASH_RULES
} mem_crash;

/* An empty disk without a directory. Out of memory ends the test. */
mem_disk *mem_disk_new(void);
void mem_disk_free(mem_disk *disk);
/* A copy with an empty journal. No call may be under way. */
mem_disk *mem_disk_copy(const mem_disk *disk);
const quire_file_ops *mem_disk_ops(mem_disk *disk);
/* A file store of 64 MiB on the disk, read by two threads. Memory: end with ops->close(). */
quire_store *mem_disk_store(mem_disk *disk);

/* Calls in the journal. */
size_t mem_disk_calls(mem_disk *disk);
/* Files that are open. */
uint32_t mem_disk_open_files(mem_disk *disk);
/* The disk after a failure at call number `call`, the first being 0: `call` calls have returned. No
 * call may be under way. rng: for the rules by chance. */
mem_disk *mem_disk_crash(const mem_disk *disk, size_t call, mem_crash rule, quire_rng *rng);

/* Files in the directory. */
uint32_t mem_disk_files(mem_disk *disk);
/* The bytes of the file number i in the order of names, to be looked at and changed; NULL: there
 * are fewer files, or the file is empty. No call may be under way. */
unsigned char *mem_disk_file(mem_disk *disk, uint32_t i, const char **name, size_t *n_bytes);
/* Cut a file. */
void mem_disk_cut(mem_disk *disk, uint32_t i, size_t n_bytes);

#endif /* QUIRE_TESTS_STORE_MEM_DISK_H */
