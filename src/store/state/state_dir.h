/* state_dir.h - items of state (state_item.h) as files in a cache directory.
 *
 *   DIR/state-<identity>-<kind>-<name>.quire      identity and name: 32 hex digits each
 *   DIR/state.tmp                                 an item that is being written
 *
 * Why a file for each item. A change costs as many bytes as the item that changed, a damaged byte
 * costs one item, and an item that ended is gone with its file: no older copy of it can come back.
 *
 * Writing an item: into state.tmp, then fdatasync, then rename. So a file is the old item or the
 * new one, whole. quire_state_dir_sync() makes the names durable: items that were synced survive a
 * crash of the machine, and items that were renamed survive a kill of the process.
 *
 * Bound: the caller keeps its items below bytes_max. Items of other identities may take as many
 * bytes again; beyond, those written longest ago go first, when the directory is opened. A caller
 * with several identities opens the directory for each, and names the others as its own.
 *
 * Two writers: the caller makes sure that there is one (the file store's lock). Readers may come
 * at any time.
 *
 * Thread: one at a time. Blocks: every call does input and output.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_STATE_DIR_H
#define QUIRE_STORE_STATE_DIR_H

#include "quire/error.h"
#include "store/file/file_ops.h"
#include "store/state/state_item.h"

#define QUIRE_STATE_FILE_CHARGE 4096u /* a file takes whole blocks, and its name */

typedef struct quire_state_dir quire_state_dir;

typedef struct quire_state_dir_opts {
    const char *path; /* of a directory that exists */
    unsigned char identity[QUIRE_HASH128_BYTES];
    const unsigned char (*own)[QUIRE_HASH128_BYTES]; /* [n_own], read by open: further identities of
                                                        the caller, whose items stay */
    uint32_t n_own;
    bool is_readonly;
    uint64_t bytes_max;        /* of items of other identities */
    const quire_file_ops *ops; /* NULL = the operating system's */
} quire_state_dir_opts;

/* Errors: QUIRE_NOMEM, QUIRE_INVAL (the path is too long). */
int quire_state_dir_open(quire_state_dir **out, const quire_state_dir_opts *opts, quire_error *err);
void quire_state_dir_close(quire_state_dir *dir); /* NULL is allowed */

/* Call each for every file that has the name of an item of this identity. Returns 0 or a negative
 * errno. */
int quire_state_dir_list(quire_state_dir *dir,
                         void (*each)(void *ctx, const quire_state_name *name), void *ctx);
/* Read and check an item. Memory: *item is free()'s, NULL without QUIRE_STATE_OK_RESULT. */
quire_state_result quire_state_dir_read(quire_state_dir *dir, const quire_state_name *name,
                                        unsigned char **item, size_t *n_bytes, uint64_t *time_us);
/* Write or replace an item, sealed for this identity. Returns 0 or a negative errno. On an error
 * the file that was there is unchanged. */
int quire_state_dir_write(quire_state_dir *dir, const quire_state_name *name, const void *item,
                          size_t n_bytes);
/* Returns 0 or a negative errno; an item that is not there was removed. */
int quire_state_dir_remove(quire_state_dir *dir, const quire_state_name *name);
int quire_state_dir_sync(quire_state_dir *dir);

/* Bytes that an item takes on the disk. */
uint64_t quire_state_charge(size_t n_bytes);
/* The name of an item's file, without its directory. */
#define QUIRE_STATE_FILE_NAME_MAX 96u
void quire_state_file_name(const unsigned char identity[QUIRE_HASH128_BYTES],
                           const quire_state_name *name, char out[QUIRE_STATE_FILE_NAME_MAX]);

#endif /* QUIRE_STORE_STATE_DIR_H */
