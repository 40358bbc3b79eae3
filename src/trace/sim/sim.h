/* sim.h - a trace through the real core: the hits of a cache of a given size and policy.
 *
 * One block of the trace is one page of a cache with page_bytes = 0 and 64 tokens that spell the
 * block's id; The prefix tree, the pool, the regions and the eviction policies are those of the
 * server; only payloads and the model are missing.
 *
 *   hits  requests one after the other, prompt blocks only: acquire, publish, release, then evict
 *         down to the capacity. A hit is a block served as part of an unbroken prefix. Bounded by
 *         Belady (quire_belady()), which knows the future.
 *         With a disk, blocks that memory lacks and the disk has come into memory first.
 *   time  virtual time: requests arrive at their times, wait, are admitted when their pages fit,
 *         compute by a cost model (prefill us per token and per token of depth, decode us per step
 *         and row), hold pages of prompt and output while they run, and leave them cached. Gives
 *         TTFT and queueing too.
 *
 * With several devices each has a cache of the capacity, and in mode TIME a queue and steps of its
 * own. A disk is common to all. A request goes to the device with the least work before its first
 * token (sim_choice.h); load counts in mode TIME alone, since requests of the other mode come one
 * after the other.
 *
 * With windows or states (quire_sim_kv) a page has the windowed layers' KV of a block apart, texts
 * leave states where the engine's do (engine/loop/loop_states.h), and memory is counted in bytes.
 *
 * Deterministic: the same trace, options and seed give the same figures.
 *
 * Thread: one at a time per run; several runs may go on in several threads.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_SIM_H
#define QUIRE_TRACE_SIM_H

#include "quire/error.h"
#include "quire/prefix.h"
#include "trace/trace.h"

typedef enum quire_sim_mode {
    QUIRE_SIM_HITS,
    QUIRE_SIM_TIME
} quire_sim_mode;

/* The costs of computing: see `quire bench --cost`. */
typedef struct quire_sim_cost {
    double prefill_token_us;       /* one token at depth 0 */
    double prefill_token_depth_us; /* more of it for each token before it */
    double decode_step_us;         /* a step with any contents */
    double decode_row_us;          /* each row of it */
    double decode_row_depth_us;    /* more of it for each token before it */
    uint32_t chunk_tokens;         /* of prefill per step */
    uint32_t n_running_max;
} quire_sim_cost;

/* Round figures of no machine in particular. */
#define QUIRE_SIM_COST_INIT                                                                        \
    {                                                                                              \
        .prefill_token_us = 10.0, .prefill_token_depth_us = 0.0002, .decode_step_us = 2000.0,      \
        .decode_row_us = 50.0, .decode_row_depth_us = 0.005, .chunk_tokens = 512,                  \
        .n_running_max = 64                                                                        \
    }

typedef struct quire_sim_class {
    char name[QUIRE_TRACE_NAME_MAX];
    uint8_t rank;        /* see quire_prefix_acquire_opts */
    double pinned_share; /* of the capacity reserved for this class, 0..1 */
    uint64_t ttl_us;     /* 0 = never */
} quire_sim_class;

/* Which blocks of memory get a copy on disk. */
typedef enum quire_sim_copy {
    QUIRE_SIM_COPY_WORTH,  /* hit at least once, or of a session: the engine's rule */
    QUIRE_SIM_COPY_ALL,    /* as soon as they are computed: quire serve --store-all */
    QUIRE_SIM_COPY_EVICTED /* when memory evicts them: for comparison, no engine does it; without
                              kv only */
} quire_sim_copy;

/* The memory of a block, of a model in which not all layers keep all tokens. Pages of layers with
 * windows and states of recurrent layers are charged apart, and hits end where the last window is
 * whole and where a state is, as in the server: quire/prefix.h. All 0: a block is one page, and
 * memory is counted in blocks. */
typedef struct quire_sim_kv {
    uint64_t block_bytes;     /* of layers that keep all tokens; never 0 with one of the others */
    uint64_t window_bytes;    /* of a block, of layers with windows; 0 = there are none */
    uint32_t window_tokens;   /* the widest window */
    uint64_t state_bytes;     /* of one cached state of all recurrent layers; 0 = there are none */
    uint64_t seq_state_bytes; /* of each of the two states that a running text has; 0 = as cached */
    uint32_t state_every_tokens; /* a text leaves a state each so many tokens, in whole blocks */
} quire_sim_kv;

#define QUIRE_SIM_DEVICES_MAX 8u

#define QUIRE_SIM_DISK_CARRY 0.9 /* of the file store: QUIRE_FILE_CARRY_SEGMENT */

/* A disk below the memory of all devices: see sim_disk.h. HITS only. */
typedef struct quire_sim_disk_opts {
    uint64_t capacity_blocks; /* 0 = no disk; at least three segments. With kv: the bytes of so many
                                 blocks, without windows and states */
    uint32_t segment_blocks;  /* of the log */
    quire_sim_copy copy;
    double carry;     /* share of a segment that may be carried forward, 0 <= carry < 1 */
    double block_us;  /* to read a block; 0 = always less than to compute it */
    bool is_touching; /* a hit in memory counts as a use of the copy, as in the engine */
} quire_sim_disk_opts;

/* Asked between the requests of a simulation, which true ends. NULL: nothing ends it. Thread: that
 * of the simulation. */
typedef struct quire_sim_cancel {
    bool (*is_canceled)(void *ctx);
    void *ctx;
} quire_sim_cancel;

typedef struct quire_sim_opts {
    quire_sim_mode mode;
    quire_evict_policy policy;
    uint64_t capacity_blocks; /* >= 1; with kv: capacity_bytes counts, and this is not read */
    quire_sim_kv kv;
    uint64_t capacity_bytes; /* with kv: >= kv.block_bytes */
    uint32_t n_devices;      /* at most QUIRE_SIM_DEVICES_MAX; 0 = 1 */
    uint64_t seed;
    quire_sim_cost cost;            /* TIME, and disk.block_us */
    const quire_sim_class *classes; /* [n_classes], by class_index of the trace; NULL = one */
    uint32_t n_classes;
    uint32_t timeline_points; /* at most so many samples of the timeline; 0 = none */
    quire_sim_disk_opts disk;
    quire_sim_cancel cancel;
} quire_sim_opts;

typedef struct quire_sim_point {
    uint64_t time_us;
    uint64_t live_blocks;
    uint64_t cached_blocks;
    uint64_t pinned_blocks; /* charged to pinned regions */
    double hit_rate;        /* since the last point */
} quire_sim_point;

typedef struct quire_sim_latency {
    double mean_us, p50_us, p95_us, p99_us;
} quire_sim_latency;

typedef struct quire_sim_result {
    uint32_t n_devices;
    uint64_t requests;
    uint64_t blocks;          /* of all prompts */
    uint64_t hit_blocks;      /* from memory and from disk */
    uint64_t disk_hit_blocks; /* of them, from disk */
    uint64_t tokens;          /* of all prompts */
    uint64_t hit_tokens;
    uint64_t busiest_blocks;      /* of prompts, computed by the device that computed most */
    uint64_t evictions;           /* blocks; windows and states that went alone are not counted */
    uint64_t states_left;         /* with states: put into the cache */
    uint64_t regret_blocks;       /* asked for after they had been evicted */
    uint64_t disk_skipped_blocks; /* on disk, but computing took less time */
    uint64_t disk_written_blocks;
    uint64_t disk_carried_blocks; /* written again, when their segment went */
    uint64_t refused;             /* TIME: could never fit */
    uint64_t preemptions;         /* TIME */
    quire_sim_latency ttft;       /* TIME */
    quire_sim_latency queued;     /* TIME */
    double makespan_us;           /* TIME: until the last token */
    double busy_us;               /* TIME: in steps, all devices together */
    double busiest_us;            /* TIME: in steps of the device that had most */
    uint64_t pages_touched;       /* looked up or published: the unit of speed */
    double wall_s;
    double cpu_s;              /* of the thread that ran it */
    quire_sim_point *timeline; /* [n_points], of ascending times; quire_sim_result_fini() frees */
    uint32_t n_points;
} quire_sim_result;

/* Errors: QUIRE_INVAL, QUIRE_NOMEM, QUIRE_LIMIT, QUIRE_UNSUPP (a disk in mode TIME,
 * or EVICTED with kv), QUIRE_CANCELED; err names the reason. */
int quire_sim_run(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                  quire_error *err);
void quire_sim_result_fini(quire_sim_result *result);

/* Belady's bound in HITS mode: evict the leaf whose block is asked for again latest, with bypass.
 * Errors: QUIRE_NOMEM, QUIRE_CANCELED. */
int quire_belady(const quire_trace *trace, uint64_t capacity_blocks, const quire_sim_cancel *cancel,
                 quire_sim_result *out);

#endif /* QUIRE_TRACE_SIM_H */
