/* attn_case.c - see attn_case.h.
 *
 * SPDX-License-Identifier: MIT */
#include "attn_case.h"

#include "base/clock.h"
#include "base/rng.h"
#include "quire/status.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TILES_RANDOM    32u /* distinct tiles of values */
#define THREADS_MAX     ATTN_CASE_THREADS_MAX
#define TOTAL_MIN_S     0.3
#define READ_BYTES      ((size_t)512 << 20) /* more than caches hold ... */
#define READ_PART_BYTES ((size_t)16 << 20)  /* ... of which a run reads this */

enum {
    SEED_K = 1,
    SEED_V = 2,
    SEED_Q = 3
};

/* ---- timing ---- */

/* Run on n_threads at once. prepare is called by one thread before each repeat, outside the time.
 */
typedef struct job {
    void (*prepare)(void *ctx);
    void (*run)(void *ctx, uint32_t thread, uint32_t n_threads);
    void *ctx;
    uint32_t n_threads;
    uint32_t repeats; /* at least, and until TOTAL_MIN_S have gone by */
    double best_s;
    double total_s;
    uint32_t n_runs;
    bool is_done;
    pthread_barrier_t barrier;
} job;

typedef struct job_thread {
    job *job;
    uint32_t index;
    pthread_t thread;
} job_thread;

static double now_s(void)
{
    return 1e-9 * (double)quire_clock_ns();
}

/* One more run; thread 0 keeps the time. */
static void job_step(const job_thread *self)
{
    job *j = self->job;
    double begin_s = 0.0;

    if (self->index == 0) {
        if (j->prepare != NULL) {
            j->prepare(j->ctx);
        }
        begin_s = now_s(); /* not after the barrier: others may be done before we wake up */
    }
    (void)pthread_barrier_wait(&j->barrier);
    j->run(j->ctx, self->index, j->n_threads);
    (void)pthread_barrier_wait(&j->barrier);
    if (self->index == 0) {
        double elapsed_s = now_s() - begin_s;

        j->best_s = elapsed_s < j->best_s ? elapsed_s : j->best_s;
        j->total_s += elapsed_s;
        j->n_runs++;
        j->is_done = j->n_runs >= j->repeats && j->total_s >= TOTAL_MIN_S;
    }
    (void)pthread_barrier_wait(&j->barrier);
}

static void *job_loop(void *arg)
{
    const job_thread *self = arg;

    while (!self->job->is_done) {
        job_step(self);
    }
    return NULL;
}

/* Best time of a run, in seconds. */
static double job_measure(job *j)
{
    job_thread threads[THREADS_MAX];

    j->best_s = INFINITY;
    if (pthread_barrier_init(&j->barrier, NULL, j->n_threads) != 0) {
        return INFINITY;
    }
    for (uint32_t i = 0; i < j->n_threads; i++) {
        threads[i] = (job_thread){ .job = j, .index = i };
        if (i > 0 && pthread_create(&threads[i].thread, NULL, job_loop, &threads[i]) != 0) {
            (void)fprintf(stderr, "bench_attn: cannot start %u threads\n", j->n_threads);
            exit(1); /* those that run wait for the others */
        }
    }
    (void)job_loop(&threads[0]);
    for (uint32_t i = 1; i < j->n_threads; i++) {
        (void)pthread_join(threads[i].thread, NULL);
    }
    (void)pthread_barrier_destroy(&j->barrier);
    return j->best_s;
}

/* ---- memory and values ---- */

/* Zeroed memory on huge pages where the system gives them; NULL without. Release with munmap(). */
static void *map_bytes(size_t size_bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t rounded = (size_bytes + huge - 1) / huge * huge;
    char *p = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(p, rounded, MADV_HUGEPAGE);
    memset(p, 0, rounded);
    return p;
}

static void unmap_bytes(void *p, size_t size_bytes)
{
    if (p != NULL) {
        (void)munmap(p, size_bytes);
    }
}

static float *random_floats(size_t n, uint64_t seed, float scale)
{
    quire_rng rng = { seed };
    float *x = quire_allocator_default()->alloc(NULL, n * sizeof(float));

    for (size_t i = 0; x != NULL && i < n; i++) {
        x[i] = scale * (float)quire_rng_normal(&rng);
    }
    return x;
}

static float *random_queries(const attn_shape *shape, float scale)
{
    return random_floats((size_t)shape->n_rows * shape->group * shape->n_kv_head * shape->d, SEED_Q,
                         scale);
}

/* TILES_RANDOM encoded tiles. */
static unsigned char *random_tiles(uint32_t d, quire_side side, quire_format format, uint64_t seed)
{
    const quire_tile_rows rows = { .d = d, .n_tokens = QUIRE_TILE_TOKENS, .stride = d };
    const quire_codec *codec = quire_codec_get();
    size_t tile_bytes = quire_tile_bytes(format, side, d);
    size_t tile_floats = (size_t)QUIRE_TILE_TOKENS * d;
    float *x = random_floats(TILES_RANDOM * tile_floats, seed, 1.0f);
    unsigned char *tiles = quire_allocator_default()->alloc(NULL, TILES_RANDOM * tile_bytes);

    for (uint32_t i = 0; x != NULL && tiles != NULL && i < TILES_RANDOM; i++) {
        (side == QUIRE_SIDE_K ? codec->encode_k : codec->encode_v)(
            format, &rows, x + i * tile_floats, tiles + i * tile_bytes);
    }
    if (x == NULL) {
        free(tiles);
        tiles = NULL;
    }
    free(x);
    return tiles;
}

/* ---- paged ---- */

typedef struct paged {
    attn_shape shape;
    quire_attn_workspace *ws;
    quire_attn_batch batch;
    quire_attn_seq seq;
    quire_attn_layer layer; /* the one to run next; layers lie layer_bytes apart */
    size_t layer_bytes;
    size_t page_bytes;
    uint32_t n_pages;
    unsigned char *store;
    unsigned char **page_addr;
    quire_page_entry *entries;
    const quire_page_entry **leaves;
} paged;

/* The next layer, so that no cache holds what a run reads. */
static void paged_prepare(void *ctx)
{
    paged *p = ctx;

    (void)quire_attn_begin(p->ws, &p->batch);
    p->layer.k[0].page_offset += p->layer_bytes;
    p->layer.v[0].page_offset += p->layer_bytes;
    if (p->layer.v[0].page_offset >= p->page_bytes) {
        p->layer.k[0].page_offset -= p->page_bytes;
        p->layer.v[0].page_offset -= p->page_bytes;
    }
}

static void paged_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const paged *p = ctx;

    quire_attn_run(p->ws, &p->layer, 0, thread, n_threads);
}

static unsigned char *lane_tile(const quire_attn_lane *lane, unsigned char *layer, uint32_t g,
                                size_t tile)
{
    return layer + lane->page_offset + g * lane->head_stride + tile * lane->tile_stride;
}

/* A page has, for each layer, the tiles of each K head, then of each V head. Fills all of them. */
static int paged_fill(paged *p, attn_format format)
{
    const attn_shape *shape = &p->shape;
    const uint32_t page_tiles = shape->page_tokens / QUIRE_TILE_TOKENS;
    size_t k_bytes = quire_tile_bytes(format.k, QUIRE_SIDE_K, shape->d);
    size_t v_bytes = quire_tile_bytes(format.v, QUIRE_SIDE_V, shape->d);
    unsigned char *k = random_tiles(shape->d, QUIRE_SIDE_K, format.k, SEED_K);
    unsigned char *v = random_tiles(shape->d, QUIRE_SIDE_V, format.v, SEED_V);

    for (size_t i = 0; k != NULL && v != NULL && i < (size_t)p->n_pages * page_tiles; i++) {
        unsigned char *page = p->store + i / page_tiles * p->page_bytes;

        for (uint32_t lane = 0; lane < shape->n_layers * shape->n_kv_head; lane++) {
            uint32_t layer = lane / shape->n_kv_head;
            uint32_t g = lane % shape->n_kv_head;

            memcpy(lane_tile(&p->layer.k[0], page + layer * p->layer_bytes, g, i % page_tiles),
                   k + i % TILES_RANDOM * k_bytes, k_bytes);
            memcpy(lane_tile(&p->layer.v[0], page + layer * p->layer_bytes, g, i % page_tiles),
                   v + i % TILES_RANDOM * v_bytes, v_bytes);
        }
    }
    free(k);
    free(v);
    return k != NULL && v != NULL ? QUIRE_OK : QUIRE_NOMEM;
}

static void paged_tables(paged *p)
{
    const uint32_t page_tokens = p->shape.page_tokens;

    for (uint32_t i = 0; i < p->n_pages; i++) {
        uint32_t rest = p->shape.n_tokens - i * page_tokens;

        p->page_addr[i + 1] = p->store + i * p->page_bytes;
        p->leaves[i / QUIRE_LEAF_ENTRIES] =
            p->entries + i / QUIRE_LEAF_ENTRIES * QUIRE_LEAF_ENTRIES;
        p->entries[i] = (quire_page_entry){
            .page = i + 1,
            .n_tokens = (uint16_t)(rest < page_tokens ? rest : page_tokens),
            .first_pos = (int32_t)(i * page_tokens),
        };
    }
    p->seq = (quire_attn_seq){ .leaves = p->leaves,
                               .n_entries = p->n_pages,
                               .n_tokens = p->shape.n_tokens,
                               .n_rows = p->shape.n_rows };
    p->batch = (quire_attn_batch){
        .seqs = &p->seq, .n_seqs = 1, .page_tokens = page_tokens, .page_addr = p->page_addr
    };
}

static void paged_layer(paged *p, attn_format format, const float *q, float *out)
{
    const attn_shape *shape = &p->shape;
    size_t k_bytes = quire_tile_bytes(format.k, QUIRE_SIDE_K, shape->d);
    size_t v_bytes = quire_tile_bytes(format.v, QUIRE_SIDE_V, shape->d);
    size_t n_tiles = shape->page_tokens / QUIRE_TILE_TOKENS;
    uint32_t n_head = shape->group * shape->n_kv_head;

    p->layer = (quire_attn_layer){
        .n_head = n_head,
        .n_kv_head = shape->n_kv_head,
        .d_k = shape->d,
        .d_v = shape->d,
        .k_format = format.k,
        .v_format = format.v,
        .n_k = 1,
        .n_v = 1,
        .scale = 1.0f / sqrtf((float)shape->d),
        .k[0] = { .page_offset = 0, .head_stride = n_tiles * k_bytes, .tile_stride = k_bytes },
        .v[0] = { .page_offset = shape->n_kv_head * n_tiles * k_bytes,
                  .head_stride = n_tiles * v_bytes,
                  .tile_stride = v_bytes },
        .q[0] = q,
        .q_stride = (size_t)n_head * shape->d,
        .out = out,
        .out_stride = (size_t)n_head * shape->d,
    };
    p->layer_bytes = shape->n_kv_head * n_tiles * (k_bytes + v_bytes);
    p->page_bytes = shape->n_layers * p->layer_bytes;
}

static int paged_workspace(paged *p, const char *isa)
{
    quire_attn_workspace_opts opts = QUIRE_ATTN_WORKSPACE_OPTS_INIT;

    opts.n_threads_max = p->shape.n_threads;
    opts.n_seqs_max = 1;
    opts.n_rows_max = p->shape.n_rows;
    opts.n_head_max = p->layer.n_head;
    opts.head_dim_max = p->shape.d;
    opts.n_entries_max = p->n_pages;
    opts.page_tokens = p->shape.page_tokens;
    opts.n_layers_max = 1;
    opts.isa = isa;
    return quire_attn_workspace_create(&p->ws, &opts);
}

int attn_case_paged(const attn_shape *shape, attn_format format, const char *isa, float *out,
                    attn_timing *timing)
{
    uint32_t n_pages = (shape->n_tokens + shape->page_tokens - 1) / shape->page_tokens;
    uint32_t n_leaves = (n_pages + QUIRE_LEAF_ENTRIES - 1) / QUIRE_LEAF_ENTRIES;
    float *q = random_queries(shape, 1.0f);
    paged p = { .shape = *shape, .n_pages = n_pages };
    job j = { .prepare = paged_prepare,
              .run = paged_run,
              .ctx = &p,
              .n_threads = shape->n_threads,
              .repeats = shape->repeats };
    int rc = QUIRE_NOMEM;

    paged_layer(&p, format, q, out);
    p.store = map_bytes(n_pages * p.page_bytes);
    p.page_addr = calloc(n_pages + 1, sizeof(*p.page_addr));
    p.entries = calloc((size_t)n_leaves * QUIRE_LEAF_ENTRIES, sizeof(*p.entries));
    p.leaves = calloc(n_leaves, sizeof(*p.leaves));
    if (q == NULL || p.store == NULL || p.page_addr == NULL || p.entries == NULL ||
        p.leaves == NULL) {
        goto out;
    }
    paged_tables(&p);
    rc = paged_fill(&p, format);
    if (rc == QUIRE_OK) {
        rc = paged_workspace(&p, isa);
    }
    if (rc == QUIRE_OK) {
        rc = quire_attn_layer_check(p.ws, &p.layer);
    }
    if (rc == QUIRE_OK) {
        timing->seconds = job_measure(&j);
        timing->kv_bytes = (double)n_pages * (double)p.layer_bytes;
    }
out:
    quire_attn_workspace_destroy(p.ws);
    free(p.leaves);
    free(p.entries);
    free(p.page_addr);
    unmap_bytes(p.store, n_pages * p.page_bytes);
    free(q);
    return rc;
}

/* ---- row-major ---- */

typedef struct row_major {
    const attn_machine *machine;
    attn_shape shape;
    uint16_t *kv; /* by layer, by kv head: K [n_tokens][d], then V */
    uint32_t layer;
    const float *q;
    float *out;
} row_major;

static void row_major_prepare(void *ctx)
{
    row_major *c = ctx;

    c->layer = (c->layer + 1) % c->shape.n_layers;
}

static void row_major_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const row_major *c = ctx;
    const attn_shape *shape = &c->shape;
    uint32_t n_head = shape->group * shape->n_kv_head;
    size_t lane = (size_t)shape->n_tokens * shape->d;

    for (uint32_t h = n_head * thread / n_threads; h < n_head * (thread + 1) / n_threads; h++) {
        const uint16_t *k = c->kv + (c->layer * shape->n_kv_head + h / shape->group) * 2 * lane;
        attn_row_major args = { .k = k,
                                .v = k + lane,
                                .q = c->q + (size_t)h * shape->d,
                                .out = c->out + (size_t)h * shape->d,
                                .d = shape->d,
                                .n_tokens = shape->n_tokens };

        c->machine->row_major(&args);
    }
}

/* Every lane gets the same values; a V tile of f16 is row-major as it is, so K is encoded as one.
 */
static int row_major_fill(const attn_shape *shape, uint16_t *kv)
{
    size_t lane = (size_t)shape->n_tokens * shape->d;

    for (uint32_t which = 0; which < 2; which++) {
        unsigned char *tiles =
            random_tiles(shape->d, QUIRE_SIDE_V, QUIRE_FORMAT_F16, which == 0 ? SEED_K : SEED_V);

        if (tiles == NULL) {
            return QUIRE_NOMEM;
        }
        for (uint32_t g = 0; g < shape->n_layers * shape->n_kv_head; g++) {
            uint16_t *to = kv + (2 * g + which) * lane;

            for (size_t t = 0; t < shape->n_tokens; t++) {
                memcpy(to + t * shape->d,
                       tiles + t % (TILES_RANDOM * QUIRE_TILE_TOKENS) * shape->d * sizeof(*to),
                       shape->d * sizeof(*to));
            }
        }
        free(tiles);
    }
    return QUIRE_OK;
}

int attn_case_row_major(const attn_shape *shape, const attn_machine *machine, float *out,
                        attn_timing *timing)
{
    size_t kv_bytes = 2 * sizeof(uint16_t) * shape->n_tokens * shape->n_kv_head * shape->d;
    uint16_t *kv = map_bytes(kv_bytes * shape->n_layers);
    float *q = random_queries(shape, 1.0f / sqrtf((float)shape->d));
    row_major c = { .machine = machine, .shape = *shape, .kv = kv, .q = q, .out = out };
    job j = { .prepare = row_major_prepare,
              .run = row_major_run,
              .ctx = &c,
              .n_threads = shape->n_threads,
              .repeats = shape->repeats };
    int rc = kv != NULL && q != NULL ? row_major_fill(shape, kv) : QUIRE_NOMEM;

    if (rc == QUIRE_OK) {
        timing->seconds = job_measure(&j);
        timing->kv_bytes = (double)kv_bytes;
    }
    unmap_bytes(kv, kv_bytes * shape->n_layers);
    free(q);
    return rc;
}

/* ---- the machine ---- */

typedef struct limits {
    const attn_machine *machine;
    const char *buffer;
    size_t part;
    uint64_t rounds;
    uint32_t flops;
} limits;

static void read_prepare(void *ctx)
{
    limits *c = ctx;

    c->part = (c->part + 1) % (READ_BYTES / READ_PART_BYTES);
}

static void read_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    const limits *c = ctx;
    size_t share = READ_PART_BYTES / n_threads / 1024 * 1024;

    c->machine->read(c->buffer + c->part * READ_PART_BYTES + thread * share, share);
}

double attn_read_bandwidth(const attn_machine *machine, uint32_t n_threads)
{
    char *buffer = map_bytes(READ_BYTES);
    limits c = { .machine = machine, .buffer = buffer };
    job j = { .prepare = read_prepare,
              .run = read_run,
              .ctx = &c,
              .n_threads = n_threads,
              .repeats = READ_BYTES / READ_PART_BYTES };
    double seconds = buffer != NULL ? job_measure(&j) : INFINITY;

    unmap_bytes(buffer, READ_BYTES);
    return (double)(READ_PART_BYTES / n_threads / 1024 * 1024 * n_threads) / seconds;
}

static void fma_run(void *ctx, uint32_t thread, uint32_t n_threads)
{
    limits *c = ctx;
    uint32_t flops = c->machine->fma(c->rounds);

    (void)n_threads;
    if (thread == 0) {
        c->flops = flops;
    }
}

double attn_fma_peak(const attn_machine *machine, uint32_t n_threads)
{
    limits c = { .machine = machine, .rounds = 20000 };
    job j = { .run = fma_run, .ctx = &c, .n_threads = n_threads, .repeats = 7 };
    double seconds = job_measure(&j);

    return (double)c.rounds * c.flops * n_threads / seconds;
}
