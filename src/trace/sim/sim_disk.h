/* sim_disk.h - a simulated disk below memory: which blocks have a copy there.
 *
 *   memory --- copies, by rule ---> open segment -> [full segments, oldest first] -> gone
 *                                        ^                     |
 *                                        '--- carried forward -'
 *
 * The disk is the log of store/file/file_store.h without bytes. Copies go to the end of the log.
 * When a segment begins and there would not be room for another, the oldest one goes. Its blocks
 * that were used since they were written are carried forward, the most used first, at most
 * opts.carry of a segment.
 *
 * Blocks have marks, as nodes of the tree have (quire/prefix.h): a block in memory that has its
 * mark is not copied again. A block that comes into memory has its mark if it came from the disk.
 * As in the engine, the mark stays when the disk loses the copy.
 *
 * One disk is below the memories of all devices. Each memory has marks of its own, and a block with
 * a copy is not written again.
 *
 * With windows or states (quire_sim_kv) the tree's own marks count, because they know whether a
 * copy has all parts of the node. A record then has parts: the block of layers that keep all
 * tokens, the block's pages of windowed layers, the state behind it. The log is counted in bytes,
 * and a record that gets another part is written anew.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_DISK_H
#define QUIRE_TRACE_SIM_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/prefix.h"
#include "trace/sim/sim.h"

/* Parts of a record beside its block: bits of a set. */
#define QUIRE_SIM_PART_WINDOWS 1u
#define QUIRE_SIM_PART_STATE   2u
#define QUIRE_SIM_PART_SETS    4u

typedef struct quire_sim_disk_entry {
    uint32_t segment; /* its number; 0 = not on disk */
    uint8_t parts;
    uint32_t uses; /* since it was written or carried forward */
} quire_sim_disk_entry;

typedef struct quire_sim_above_entry {
    uint32_t round; /* EVICTED: the last one in which memory had it */
    bool is_marked;
    bool is_resident; /* EVICTED: among residents */
} quire_sim_above_entry;

/* The memory of a device above the disk. */
typedef struct quire_sim_above {
    quire_sim_above_entry *entries; /* [n_ids], by block */
    uint32_t *residents; /* EVICTED: [n_ids], blocks that it had after the last request */
    uint32_t n_residents;
    uint32_t round;
} quire_sim_above;

typedef struct quire_sim_disk {
    quire_sim_disk_opts opts;
    quire_sim_disk_entry *entries; /* [n_ids], by block */
    uint32_t n_ids;
    uint64_t sizes[QUIRE_SIM_PART_SETS]; /* of records, by parts: bytes, or 1 without kv */
    uint64_t segment_size;
    uint32_t segment_items; /* records of a segment at most */
    uint32_t *items;        /* [n_slots][segment_items]: segment s in slot s % n_slots */
    uint32_t *n_items;      /* [n_slots] */
    uint64_t *used_size;    /* [n_slots], by the records and those that were written anew */
    uint32_t n_slots;       /* segments there may be, and one that begins */
    uint32_t oldest;        /* numbers from 1 on */
    uint32_t open;
    uint32_t *used; /* [segment_items], for carrying forward */
    uint64_t written_blocks;
    uint64_t carried_blocks;
    uint64_t evicted_blocks;
} quire_sim_disk;

#define QUIRE_SIM_DISK_BLOCKS_MIN 8u /* for quire_sim_disk_segment() */
/* The open segment, a full segment, and room for a third one. */
#define QUIRE_SIM_DISK_SEGMENTS_MIN 3u

/* The blocks of a segment: as many as the file store has if the size of a block is known (else 0),
 * within limits: carrying forward needs some blocks in a segment, and the log some segments. */
uint32_t quire_sim_disk_segment(uint64_t disk_blocks, uint64_t block_bytes);

/* opts->capacity_blocks > 0; with kv they stand for the bytes of so many blocks without parts.
 * Errors: QUIRE_INVAL, QUIRE_NOMEM. Memory: quire_sim_disk_fini(), also after a failure. */
int quire_sim_disk_init(quire_sim_disk *disk, const quire_sim_disk_opts *opts,
                        const quire_sim_kv *kv, uint32_t n_ids);
void quire_sim_disk_fini(quire_sim_disk *disk);

/* Errors: QUIRE_NOMEM. Memory: quire_sim_above_fini(), also after a failure. */
int quire_sim_above_init(quire_sim_above *above, uint32_t n_ids);
void quire_sim_above_fini(quire_sim_above *above);

static inline bool quire_sim_disk_has(const quire_sim_disk *disk, uint32_t id)
{
    return disk->entries[id].segment != 0;
}

/* How many of the blocks are on disk, before the first that is not. */
uint32_t quire_sim_disk_run(const quire_sim_disk *disk, const uint32_t *ids, uint32_t n);

/* A request has used its first n_memory blocks from memory, has read the next n_fetched ones, and
 * computes the rest. */
typedef struct quire_sim_disk_use {
    const uint32_t *ids; /* [n] */
    uint32_t n;
    uint32_t n_memory;
    uint32_t n_fetched;
    bool has_session;
} quire_sim_disk_use;

/* Blocks of a request in a memory get their marks, and those that the rule names are copied. */
void quire_sim_disk_request(quire_sim_disk *disk, quire_sim_above *above,
                            const quire_sim_disk_use *use);

/* EVICTED: the tree has evicted blocks for want of memory. Blocks that the tree does not have any
 * more are copied now. Cost: O(nodes). */
void quire_sim_disk_evicted(quire_sim_disk *disk, quire_sim_above *above, quire_prefix *tree);

/* Copy a block of a memory, if it has no mark there. */
void quire_sim_disk_copy(quire_sim_disk *disk, quire_sim_above *above, uint32_t id);

/* Write a record with these parts. Only with kv. */
void quire_sim_disk_write(quire_sim_disk *disk, uint32_t id, uint8_t parts);

/* Only with kv: a request has used its first n_memory blocks from memory, and has read the next
 * n_fetched ones. */
void quire_sim_disk_uses(quire_sim_disk *disk, const uint32_t *ids, uint32_t n_memory,
                         uint32_t n_fetched);

#endif /* QUIRE_TRACE_SIM_DISK_H */
