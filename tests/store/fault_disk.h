/* fault_disk.h - between the file store and a disk: calls that fail, move less than they were asked
 * to, are slow, or do not return.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_STORE_FAULT_DISK_H
#define QUIRE_TESTS_STORE_FAULT_DISK_H

#include "store/file/file_ops.h"

#include <pthread.h>

typedef enum fault_call {
    FAULT_OPEN,
    FAULT_CLOSE,
    FAULT_PREAD,
    FAULT_PWRITE,
    FAULT_READ_BEGIN,
    FAULT_DATASYNC,
    FAULT_TRUNCATE,
    FAULT_RESERVE,
    FAULT_SIZE,
    FAULT_IS_AT,
    FAULT_UNLINK,
    FAULT_MAKE_DIR,
    FAULT_SYNC_DIR,
    FAULT_LIST,
    FAULT_LOCK,
    FAULT_CALLS
} fault_call;

#define FAULT_BIT(call) (1u << (call))
#define FAULT_ALL       (FAULT_BIT(FAULT_CALLS) - 1)

typedef struct fault_plan {
    uint32_t calls;       /* bits: these are counted */
    unsigned first, last; /* of these, by number from 1, the ones that suffer */
    int error;            /* an errno: they fail; close closes all the same. 0: they do not */
    bool is_short;        /* pread and pwrite move a block at most */
    bool is_stuck;        /* they return when there is another plan */
    uint32_t delay_ms;    /* before they begin */
} fault_plan;

typedef struct fault_disk {
    quire_file_ops ops; /* for the store */
    const quire_file_ops *base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fault_plan plan;
    uint64_t n_plans;
    unsigned n_calls; /* of the plan */
    unsigned n_stuck; /* threads that are in such a call */
    int n_open;       /* files */
} fault_disk;

void fault_disk_init(fault_disk *f, const quire_file_ops *base);
/* Set another plan; {0}: no call fails. Stuck calls go on. */
void fault_disk_set(fault_disk *f, fault_plan plan);
/* Calls of the plan so far. */
unsigned fault_disk_calls(fault_disk *f);
/* Wait until n threads are stuck. */
void fault_disk_wait_stuck(fault_disk *f, unsigned n);
/* Files that are open. */
int fault_disk_open_files(fault_disk *f);
/* "open". */
const char *fault_call_name(fault_call call);

#endif /* QUIRE_TESTS_STORE_FAULT_DISK_H */
