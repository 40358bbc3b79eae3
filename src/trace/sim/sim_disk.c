/* sim_disk.c - the log of a simulated disk.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim/sim_disk.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define SEGMENT_BYTES        (64u << 20) /* of the file store */
#define SEGMENTS_USUAL       256u
#define SEGMENT_BLOCKS_LEAST 10u

uint32_t quire_sim_disk_segment(uint64_t disk_blocks, uint64_t block_bytes)
{
    const uint64_t wanted =
        block_bytes > 0 ? SEGMENT_BYTES / block_bytes : disk_blocks / SEGMENTS_USUAL;
    const uint64_t most = disk_blocks / QUIRE_SIM_DISK_BLOCKS_MIN;
    const uint64_t n = wanted > SEGMENT_BLOCKS_LEAST ? wanted : SEGMENT_BLOCKS_LEAST;

    return (uint32_t)(n < most ? n : most);
}

/* The sizes of records, and of a segment, which has room for the largest of them. */
static void sizes_set(quire_sim_disk *disk, const quire_sim_kv *kv)
{
    const uint64_t block = kv->block_bytes != 0 ? kv->block_bytes : 1;
    uint64_t items;

    for (uint32_t parts = 0; parts < QUIRE_SIM_PART_SETS; parts++) {
        disk->sizes[parts] = block +
                             ((parts & QUIRE_SIM_PART_WINDOWS) != 0 ? kv->window_bytes : 0) +
                             ((parts & QUIRE_SIM_PART_STATE) != 0 ? kv->state_bytes : 0);
    }
    disk->segment_size = disk->opts.segment_blocks * block;
    if (disk->segment_size < disk->sizes[QUIRE_SIM_PART_SETS - 1]) {
        disk->segment_size = disk->sizes[QUIRE_SIM_PART_SETS - 1];
    }
    items = disk->segment_size / block;
    /* A segment lists a block once. */
    disk->segment_items = items < disk->n_ids ? (uint32_t)items : disk->n_ids;
}

int quire_sim_disk_init(quire_sim_disk *disk, const quire_sim_disk_opts *opts,
                        const quire_sim_kv *kv, uint32_t n_ids)
{
    uint64_t n_segments;

    *disk = (quire_sim_disk){ .opts = *opts, .n_ids = n_ids };
    QUIRE_FAIL_IF(opts->segment_blocks == 0 || !(opts->carry >= 0.0 && opts->carry < 1.0),
                  QUIRE_INVAL);
    sizes_set(disk, kv);
    n_segments = (uint64_t)((double)opts->capacity_blocks * (double)disk->sizes[0] /
                            (double)disk->segment_size);
    QUIRE_FAIL_IF(n_segments < QUIRE_SIM_DISK_SEGMENTS_MIN || n_segments > UINT32_MAX / 2,
                  QUIRE_INVAL);
    disk->n_slots = (uint32_t)n_segments;
    disk->oldest = 1;
    disk->open = 1;
    disk->entries = calloc(n_ids, sizeof(*disk->entries));
    disk->items = calloc((size_t)disk->n_slots * disk->segment_items, sizeof(*disk->items));
    disk->n_items = calloc(disk->n_slots, sizeof(*disk->n_items));
    disk->used_size = calloc(disk->n_slots, sizeof(*disk->used_size));
    disk->used = calloc(disk->segment_items, sizeof(*disk->used));
    return disk->entries != NULL && disk->items != NULL && disk->n_items != NULL &&
                   disk->used_size != NULL && disk->used != NULL
               ? QUIRE_OK
               : QUIRE_NOMEM;
}

void quire_sim_disk_fini(quire_sim_disk *disk)
{
    free(disk->entries);
    free(disk->items);
    free(disk->n_items);
    free(disk->used_size);
    free(disk->used);
    memset(disk, 0, sizeof(*disk));
}

int quire_sim_above_init(quire_sim_above *above, uint32_t n_ids)
{
    *above = (quire_sim_above){ .entries = calloc(n_ids, sizeof(*above->entries)),
                                .residents = calloc(n_ids, sizeof(*above->residents)) };
    return above->entries != NULL && above->residents != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

void quire_sim_above_fini(quire_sim_above *above)
{
    free(above->entries);
    free(above->residents);
    *above = (quire_sim_above){ .entries = NULL };
}

uint32_t quire_sim_disk_run(const quire_sim_disk *disk, const uint32_t *ids, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && quire_sim_disk_has(disk, ids[i])) {
        i++;
    }
    return i;
}

/* ---- the log ---- */

static uint32_t *items_of(const quire_sim_disk *disk, uint32_t segment)
{
    return disk->items + (size_t)(segment % disk->n_slots) * disk->segment_items;
}

static uint32_t *n_items_of(const quire_sim_disk *disk, uint32_t segment)
{
    return &disk->n_items[segment % disk->n_slots];
}

static uint64_t *used_of(const quire_sim_disk *disk, uint32_t segment)
{
    return &disk->used_size[segment % disk->n_slots];
}

static bool has_room(const quire_sim_disk *disk, uint64_t size)
{
    return *used_of(disk, disk->open) + size <= disk->segment_size;
}

/* A record at the end of the open segment, which has room for it. */
static void append(quire_sim_disk *disk, uint32_t id)
{
    quire_sim_disk_entry *entry = &disk->entries[id];

    *used_of(disk, disk->open) += disk->sizes[entry->parts];
    if (entry->segment != disk->open) { /* else an older record of this segment is dead */
        items_of(disk, disk->open)[(*n_items_of(disk, disk->open))++] = id;
    }
    entry->segment = disk->open;
    entry->uses = 0;
}

/* The most used of the n blocks goes to the end of the list, the first written of those with equal
 * use. */
static void most_used_last(const quire_sim_disk *disk, uint32_t *ids, uint32_t n)
{
    uint32_t most = 0;
    uint32_t id;

    for (uint32_t i = 1; i < n; i++) {
        if (disk->entries[ids[i]].uses > disk->entries[ids[most]].uses) {
            most = i;
        }
    }
    id = ids[most];
    memmove(&ids[most], &ids[most + 1], (n - most - 1) * sizeof(*ids));
    ids[n - 1] = id;
}

/* The oldest segment goes; its used blocks are carried forward. */
static void oldest_remove(quire_sim_disk *disk)
{
    const uint64_t carry_max = (uint64_t)(disk->opts.carry * (double)disk->segment_size);
    const uint32_t *items = items_of(disk, disk->oldest);
    const uint32_t n_items = *n_items_of(disk, disk->oldest);
    uint32_t n_used = 0;

    for (uint32_t i = 0; i < n_items; i++) {
        if (disk->entries[items[i]].segment == disk->oldest && disk->entries[items[i]].uses > 0) {
            disk->used[n_used++] = items[i];
        }
    }
    while (n_used > 0 && *used_of(disk, disk->open) < carry_max) {
        most_used_last(disk, disk->used, n_used);
        n_used--;
        if (has_room(disk, disk->sizes[disk->entries[disk->used[n_used]].parts])) {
            append(disk, disk->used[n_used]);
            disk->carried_blocks++;
        }
    }
    for (uint32_t i = 0; i < n_items; i++) {
        if (disk->entries[items[i]].segment == disk->oldest) {
            disk->entries[items[i]].segment = 0;
            disk->evicted_blocks++;
        }
    }
    disk->oldest++;
}

static void segment_begin(quire_sim_disk *disk)
{
    disk->open++;
    *n_items_of(disk, disk->open) = 0;
    *used_of(disk, disk->open) = 0;
    while (disk->open - disk->oldest + 1 >= disk->n_slots) { /* room for one more is kept */
        oldest_remove(disk);
    }
}

/* ---- blocks ---- */

void quire_sim_disk_write(quire_sim_disk *disk, uint32_t id, uint8_t parts)
{
    while (!has_room(disk, disk->sizes[parts])) {
        segment_begin(disk);
    }
    disk->entries[id].parts = parts;
    append(disk, id);
    disk->written_blocks++;
}

void quire_sim_disk_copy(quire_sim_disk *disk, quire_sim_above *above, uint32_t id)
{
    if (above->entries[id].is_marked) {
        return;
    }
    above->entries[id].is_marked = true;
    if (!quire_sim_disk_has(disk, id)) { /* else of an earlier stay, or of another device */
        quire_sim_disk_write(disk, id, 0);
    }
}

void quire_sim_disk_uses(quire_sim_disk *disk, const uint32_t *ids, uint32_t n_memory,
                         uint32_t n_fetched)
{
    for (uint32_t i = 0; i < n_memory + n_fetched; i++) {
        disk->entries[ids[i]].uses += i < n_memory ? disk->opts.is_touching : 1;
    }
}

void quire_sim_disk_request(quire_sim_disk *disk, quire_sim_above *above,
                            const quire_sim_disk_use *use)
{
    const quire_sim_copy rule = disk->opts.copy;

    for (uint32_t i = 0; i < use->n; i++) {
        const uint32_t id = use->ids[i];
        quire_sim_above_entry *entry = &above->entries[id];
        const bool is_hit = i < use->n_memory; /* in memory, where the node's own hits count */
        const bool is_worth = rule == QUIRE_SIM_COPY_ALL ||
                              (rule == QUIRE_SIM_COPY_WORTH && (is_hit || use->has_session));

        if (!is_hit) {
            entry->is_marked = i < use->n_memory + use->n_fetched;
        }
        disk->entries[id].uses += is_hit ? disk->opts.is_touching : entry->is_marked;
        if (is_worth) {
            quire_sim_disk_copy(disk, above, id);
        }
        if (rule == QUIRE_SIM_COPY_EVICTED && !entry->is_resident) {
            entry->is_resident = true;
            above->residents[above->n_residents++] = id;
        }
    }
}

static void see(void *ctx, const quire_prefix_copy *copy)
{
    quire_sim_above *above = ctx;

    above->entries[copy->tokens[0]].round = above->round;
}

void quire_sim_disk_evicted(quire_sim_disk *disk, quire_sim_above *above, quire_prefix *tree)
{
    uint32_t n = 0;

    above->round++;
    (void)quire_prefix_copies_visit(tree, 1, UINT32_MAX, see, above);
    for (uint32_t i = 0; i < above->n_residents; i++) {
        const uint32_t id = above->residents[i];

        above->entries[id].is_resident = above->entries[id].round == above->round;
        if (above->entries[id].is_resident) {
            above->residents[n++] = id;
        } else {
            quire_sim_disk_copy(disk, above, id);
        }
    }
    above->n_residents = n;
}
