/* valkey_internal.h - the shared store's object; for valkey_store.c, valkey_get.c, valkey_put.c and
 * valkey_drop.c.
 *
 * A job is one transfer's way through the store. Replies only change a job's fields; the loop of
 * the store's thread looks at all jobs afterwards, and moves those on for which nothing is
 * outstanding. So no job ends while somebody else's code runs on it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_INTERNAL_H
#define QUIRE_STORE_VALKEY_INTERNAL_H

#include <pthread.h>

#include "store/valkey/valkey_epoch.h"
#include "store/valkey/valkey_lineage.h"
#include "store/valkey/valkey_seen.h"
#include "store/valkey/valkey_store.h"

typedef enum quire_vk_phase {
    QUIRE_VK_CHECK,  /* put: is the record there? are there epochs? */
    QUIRE_VK_CREATE, /* put: epochs are made */
    QUIRE_VK_WRITE,
    QUIRE_VK_GET
} quire_vk_phase;

typedef struct quire_vk_job {
    struct quire_vk_job *next;
    quire_transfer *transfer;
    uint64_t stamp;       /* drops that came before it */
    quire_page_text text; /* tokens not set for puts; the salt points into transfer or record */
    uint32_t n_bytes;     /* put: of the record */
    /* The store's thread. */
    quire_vk_phase phase;
    bool is_dropped;
    bool is_cut;                /* a command ended without reply */
    quire_store_result problem; /* OK = none so far */
    uint32_t n_away;            /* commands */
    uint32_t n_tries;
    uint64_t id;
    quire_vk_scope *scopes[QUIRE_EPOCH_COUNT];
    uint64_t tickets[QUIRE_EPOCH_COUNT];
    unsigned char *head; /* get: as read; put: as found, then as written */
    size_t n_head;
    quire_seal_head fields; /* of head */
    bool has_head;
    uint32_t n_chunks;    /* get: that are there; put: that the server has */
    uint32_t chunk_begin; /* get: first chunk of the command under way */
    bool is_known;        /* put: nothing had to be written */
    char words[64];       /* put: of the server that refused it */
} quire_vk_job;

typedef struct quire_vk_jobs {
    quire_vk_job *first;
    quire_vk_job *last;
    uint32_t n;
    uint64_t bytes;
} quire_vk_jobs;

typedef struct quire_vk_drop {
    struct quire_vk_drop *next;
    quire_store_drop what; /* salt points to the bytes below */
    unsigned char salt[QUIRE_PREFIX_SALT_MAX];
    uint64_t number; /* of this drop */
    /* The store's thread. */
    bool is_away;
    bool is_done;
    uint64_t retry_us;
} quire_vk_drop;

typedef struct quire_valkey_store {
    quire_store store; /* must be first */
    quire_valkey_store_opts opts;
    quire_valkey_url url;
    quire_seal_key key;
    char *user;
    char *password;
    quire_vk_tls *tls;
    quire_valkey_name channel;
    char node[17]; /* names this process in messages */
    pthread_t thread;
    bool has_thread;
    int wake_fd;

    pthread_mutex_t lock;
    pthread_cond_t is_tried; /* with has_tried; by the monotonic clock */
    /* Under the lock. */
    quire_vk_jobs inbox;
    quire_vk_drop *new_drops; /* oldest first */
    uint32_t n_drops_waiting; /* new and pending */
    quire_vk_drop *heard;     /* from other machines, oldest first */
    uint32_t n_heard;
    uint64_t drops_total; /* the number of the last one */
    quire_vk_jobs done;
    quire_store_stats stats;
    quire_seen seen;
    bool is_closing;
    bool has_tried; /* the first connection works, or has failed */

    /* The caller's. */
    quire_vk_drop *heard_now; /* given last */

    /* The store's thread. */
    quire_vk_cluster *cluster;
    quire_vk_epochs epochs;
    quire_lineage lineage;
    quire_vk_jobs gets;
    quire_vk_jobs waiting; /* puts */
    quire_vk_jobs puts;    /* that are being sent */
    quire_vk_drop *drops;  /* that no server has taken yet */
    quire_breaker writes;
    char writes_trouble[QUIRE_VK_TROUBLE_MAX];
    uint32_t n_chunks_usual; /* of a record */
    uint64_t sequence;
    uint64_t reading_since_us; /* 0 = no get is under way */
    uint64_t close_at_us;      /* 0 = not closing */
    bool has_done;             /* the owner must be woken */
    bool has_said_mute;        /* a refused message about a drop is in the log */
    unsigned char *ancestors;  /* [8 * QUIRE_SEAL_ANCESTORS_MAX], for one put at a time */
} quire_valkey_store;

static inline quire_valkey_store *quire_vk_self(const quire_store *store)
{
    return (quire_valkey_store *)(uintptr_t)store;
}

/* ---- valkey_store.c ---- */

void quire_vk_jobs_push(quire_vk_jobs *jobs, quire_vk_job *job);
quire_vk_job *quire_vk_jobs_pop(quire_vk_jobs *jobs);
/* A job has ended: its transfer goes to poll. The job is in no list. */
void quire_vk_job_end(quire_valkey_store *m, quire_vk_job *job, quire_store_result result);
/* Take the job's scopes into use, and read them. False: out of memory. */
bool quire_vk_job_scopes(quire_valkey_store *m, quire_vk_job *job);
/* Ask for the scopes again. */
void quire_vk_job_scopes_read(quire_valkey_store *m, quire_vk_job *job);
/* Whether nothing is outstanding. */
bool quire_vk_job_is_idle(const quire_vk_job *job);
/* Whether the epochs could be read. */
bool quire_vk_job_has_scopes(const quire_vk_job *job);
/* Whether a record with this head holds now. The scopes are read. */
bool quire_vk_job_is_current(const quire_vk_job *job, const quire_seal_head *head);
/* Send a command about the job's record; counts it. */
void quire_vk_job_send(quire_valkey_store *m, quire_vk_job *job, const quire_vk_arg *args,
                       uint32_t n, quire_vk_done done);
/* For replies of which only an error matters. ctx: the job. */
void quire_vk_job_replied(void *ctx, const quire_resp *reply);
uint64_t quire_vk_now_us(void);

/* Begin the thread. Errors: QUIRE_NOMEM. */
int quire_vk_store_start(quire_valkey_store *m);
/* End the thread, and free a store that no owner has. */
void quire_vk_store_free(quire_valkey_store *m);

/* ---- valkey_seen.c ---- */

/* Thread: any. */
uint32_t quire_vk_has(const quire_store *store, const quire_page_key *keys, uint32_t n);

/* ---- valkey_get.c ---- */

void quire_vk_get_begin(quire_valkey_store *m, quire_vk_job *job);
/* Move a get on. Returns true when it has a result. */
bool quire_vk_get_move(quire_valkey_store *m, quire_vk_job *job, quire_store_result *result);

/* ---- valkey_put.c ---- */

/* Begin puts as far as there is room for them; refuse puts that do not fit into the queue. */
void quire_vk_puts_begin(quire_valkey_store *m, uint64_t now_us);
bool quire_vk_put_move(quire_valkey_store *m, quire_vk_job *job, quire_store_result *result);

/* ---- valkey_drop.c ---- */

/* Tell the servers. */
void quire_vk_drops_move(quire_valkey_store *m, uint64_t now_us);
/* Take over new drops, oldest first; mark the jobs that they end, of those under way and of `fresh`
 * ones as far as they are older. */
void quire_vk_drops_take(quire_valkey_store *m, quire_vk_drop *drops, const quire_vk_jobs *fresh);
/* Whether a drop that no server has taken yet ends a job's text. */
bool quire_vk_drop_is_pending(quire_valkey_store *m, const quire_vk_job *job);
/* Whether a drop may end a text: never wrongly false. Thread: any. */
bool quire_vk_drop_may_end(const quire_vk_drop *drop, const quire_page_text *text);
/* Thread: the caller's. */
int quire_vk_drop_call(quire_store *store, const quire_store_drop *what);
void quire_vk_drops_free(quire_vk_drop *drop);

/* ---- valkey_news.c ---- */

/* Tell the other machines of a drop. */
void quire_vk_news_send(quire_valkey_store *m, const quire_store_drop *what);
/* Take a message from the channel. */
void quire_vk_news_heard(void *ctx, const char *data, size_t n);
/* The next drop of another machine. Thread: the caller's. */
bool quire_vk_news_next(quire_store *store, quire_store_drop *out);

#endif /* QUIRE_STORE_VALKEY_INTERNAL_H */
