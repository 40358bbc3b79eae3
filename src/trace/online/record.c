/* record.c - a bounded queue in front of a thread that hashes and writes.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/online/record.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "trace/online/siphash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUEUE_BYTES_DEFAULT ((size_t)64 << 20)
#define HEADER_BEGIN        "{\"quire_trace\":" /* of each recording in a file */

/* A request on its way to the file. */
typedef struct entry {
    struct entry *next;
    quire_recent_request request;
    size_t bytes; /* of the entry */
    int32_t tokens[];
} entry;

struct quire_record {
    char *path;
    int file;
    bool is_plain;
    uint64_t key[2];
    uint64_t unix_less_clock_us; /* Unix time less the clock's time */
    size_t queue_bytes_max;
    void (*failed)(void *ctx, const char *message);
    void *failed_ctx;
    quire_bytes line; /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t has_work;
    entry *first;
    entry **last;
    size_t queue_bytes;
    bool is_closing;
    quire_record_stats stats;
};

/* ---- hashes ---- */

uint64_t quire_record_chain_begin(const uint64_t key[2], uint32_t tenant)
{
    const unsigned char bytes[4] = { (unsigned char)tenant, (unsigned char)(tenant >> 8),
                                     (unsigned char)(tenant >> 16), (unsigned char)(tenant >> 24) };

    return quire_siphash(key, bytes, sizeof(bytes));
}

uint64_t quire_record_chain_add(const uint64_t key[2], uint64_t before, const int32_t *tokens,
                                uint32_t n_tokens)
{
    unsigned char bytes[8 + 4 * QUIRE_RECORD_BLOCK_TOKENS];

    QUIRE_CHECK(n_tokens <= QUIRE_RECORD_BLOCK_TOKENS);
    for (uint32_t i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(before >> (8 * i));
    }
    for (uint32_t i = 0; i < 4 * n_tokens; i++) {
        bytes[8 + i] = (unsigned char)((uint32_t)tokens[i / 4] >> (8 * (i % 4)));
    }
    return quire_siphash(key, bytes, 8 + (size_t)4 * n_tokens);
}

/* ---- lines ---- */

static void text_add(quire_bytes *line, const char *text)
{
    (void)quire_bytes_add(line, "\"", 1);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < 0x20 || c == '"' || c == '\\' || c >= 0x7f) {
            (void)quire_bytes_addf(line, "\\u%04x", c);
        } else {
            (void)quire_bytes_add(line, text, 1);
        }
    }
    (void)quire_bytes_add(line, "\"", 1);
}

static int header_make(quire_bytes *line, const quire_record *r, const quire_record_opts *opts)
{
    (void)quire_bytes_addf(line, HEADER_BEGIN "%d,\"block_tokens\":%u,\"form\":\"%s\"",
                           QUIRE_RECORD_VERSION, QUIRE_RECORD_BLOCK_TOKENS,
                           r->is_plain ? "plain" : "hashed");
    (void)quire_bytes_addf(line, ",\"key\":\"%016" PRIx64 "\"",
                           quire_siphash(r->key, "key", 3)); /* a name for it, not the key */
    if (opts->model != NULL) {
        (void)quire_bytes_addf(line, ",\"model\":");
        text_add(line, opts->model);
    }
    (void)quire_bytes_addf(line, ",\"classes\":[");
    for (uint32_t i = 0; i < opts->n_classes; i++) {
        (void)quire_bytes_addf(line, "%s", i > 0 ? "," : "");
        text_add(line, opts->class_names[i]);
    }
    (void)quire_bytes_addf(line, "]}\n");
    return line->status;
}

static void blocks_add(quire_bytes *line, const quire_record *r, const quire_recent_request *q)
{
    uint64_t hash = quire_record_chain_begin(r->key, q->tenant);

    (void)quire_bytes_addf(line, ",\"blocks\":\"");
    for (uint32_t at = 0; at < q->n_input_tokens; at += QUIRE_RECORD_BLOCK_TOKENS) {
        uint32_t n = q->n_input_tokens - at;

        n = n < QUIRE_RECORD_BLOCK_TOKENS ? n : QUIRE_RECORD_BLOCK_TOKENS;
        hash = quire_record_chain_add(r->key, hash, q->tokens + at, n);
        (void)quire_bytes_addf(line, "%016" PRIx64, hash);
    }
    (void)quire_bytes_addf(line, "\"");
}

static void tokens_add(quire_bytes *line, const quire_recent_request *q)
{
    (void)quire_bytes_addf(line, ",\"tokens\":[");
    for (uint32_t i = 0; i < q->n_input_tokens; i++) {
        (void)quire_bytes_addf(line, "%s%" PRId32, i > 0 ? "," : "", q->tokens[i]);
    }
    (void)quire_bytes_addf(line, "]");
}

static int line_make(quire_record *r, const quire_recent_request *q)
{
    quire_bytes *line = &r->line;

    quire_bytes_clear(line);
    line->status = QUIRE_OK;
    (void)quire_bytes_addf(line,
                           "{\"t\":%" PRIu64 ",\"tenant\":%" PRIu32
                           ",\"class\":%u,\"session\":%" PRIu32 ",\"input\":%" PRIu32
                           ",\"output\":%" PRIu32,
                           q->time_us + r->unix_less_clock_us, q->tenant, q->class_index,
                           q->session, q->n_input_tokens, q->n_output_tokens);
    if (q->tokens != NULL && r->is_plain) {
        tokens_add(line, q);
    } else if (q->tokens != NULL) {
        blocks_add(line, r, q);
    }
    (void)quire_bytes_addf(line, "}\n");
    return line->status;
}

static int bytes_write(int file, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t written = write(file, bytes, n);

        if (written < 0 && errno == EINTR) {
            continue;
        }
        QUIRE_FAIL_IF(written <= 0, QUIRE_IO);
        bytes += written;
        n -= (size_t)written;
    }
    return QUIRE_OK;
}

/* ---- the thread ---- */

/* The next entry; NULL when the recorder is closing and nothing is left. */
static entry *entry_take(quire_record *r)
{
    entry *e;

    (void)pthread_mutex_lock(&r->lock);
    while (r->first == NULL && !r->is_closing) {
        (void)pthread_cond_wait(&r->has_work, &r->lock);
    }
    e = r->first;
    if (e != NULL) {
        r->first = e->next;
        r->last = r->first != NULL ? r->last : &r->first;
        r->queue_bytes -= e->bytes;
    }
    (void)pthread_mutex_unlock(&r->lock);
    return e;
}

static void fail(quire_record *r, int rc, int sys_errno)
{
    quire_error err = QUIRE_ERROR_INIT;

    (void)pthread_mutex_lock(&r->lock);
    r->stats.has_failed = true;
    (void)pthread_mutex_unlock(&r->lock);
    if (rc == QUIRE_IO) {
        (void)quire_error_set_errno(&err, sys_errno, "the recording of %s has ended", r->path);
    } else {
        (void)quire_error_set(&err, rc, "the recording of %s has ended: out of memory", r->path);
    }
    if (r->failed != NULL) {
        r->failed(r->failed_ctx, err.message);
    }
}

/* Write an entry, unless the recording has ended. */
static void entry_write(quire_record *r, const entry *e)
{
    bool has_failed;
    int rc;

    (void)pthread_mutex_lock(&r->lock);
    has_failed = r->stats.has_failed;
    (void)pthread_mutex_unlock(&r->lock);
    rc = has_failed ? QUIRE_CANCELED : line_make(r, &e->request);
    if (rc == QUIRE_OK) {
        rc = bytes_write(r->file, r->line.data, r->line.n);
    }
    if (rc < 0 && !has_failed) {
        fail(r, rc, errno);
    }
    (void)pthread_mutex_lock(&r->lock);
    r->stats.written += rc == QUIRE_OK;
    r->stats.dropped += rc < 0;
    r->stats.bytes += rc == QUIRE_OK ? r->line.n : 0;
    (void)pthread_mutex_unlock(&r->lock);
}

static void *work(void *opaque)
{
    quire_record *r = opaque;
    entry *e;

    while ((e = entry_take(r)) != NULL) {
        entry_write(r, e);
        free(e);
    }
    return NULL;
}

/* ---- opening and closing ---- */

/* Whether a file is empty or begins as recordings do, or as a header that was cut off. */
static int begin_check(const char *path, int file, const struct stat *info, quire_error *err)
{
    char first[sizeof(HEADER_BEGIN) - 1];
    const size_t n =
        (uint64_t)info->st_size < sizeof(first) ? (size_t)info->st_size : sizeof(first);

    if (S_ISREG(info->st_mode) &&
        (pread(file, first, n, 0) != (ssize_t)n || memcmp(first, HEADER_BEGIN, n) != 0)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s: the file is no recording; name another, or a new one", path);
    }
    return QUIRE_OK;
}

int quire_record_check(const char *path, quire_error *err)
{
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    int rc = QUIRE_OK;

    if (file >= 0) {
        rc = fstat(file, &info) == 0 ? begin_check(path, file, &info, err) : QUIRE_OK;
        (void)close(file);
    }
    return rc;
}

/* Lines of two writers in one file would each count as those of the header before, and have its
 * key. */
static int file_lock(const quire_record *r, const struct stat *info, quire_error *err)
{
    if (S_ISREG(info->st_mode) && flock(r->file, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        return quire_error_set(err, QUIRE_LIMIT, "%s: another recording writes to this file",
                               r->path);
    }
    return QUIRE_OK;
}

/* Open for appending; a last line that was cut off is ended. */
static int file_open(quire_record *r, quire_error *err)
{
    struct stat info;
    char last = '\n';

    r->file = open(r->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (r->file < 0 || fstat(r->file, &info) < 0) {
        return quire_error_set_errno(err, errno, "%s: cannot be recorded to", r->path);
    }
    QUIRE_TRY(file_lock(r, &info, err));
    QUIRE_TRY(begin_check(r->path, r->file, &info, err));
    if (S_ISREG(info.st_mode) && info.st_size > 0 &&
        (pread(r->file, &last, 1, info.st_size - 1) != 1 ||
         (last != '\n' && bytes_write(r->file, "\n", 1) < 0))) {
        return quire_error_set_errno(err, errno, "%s: cannot be recorded to", r->path);
    }
    return QUIRE_OK;
}

static int header_write(quire_record *r, const quire_record_opts *opts, quire_error *err)
{
    struct timespec now;

    if (getrandom(r->key, sizeof(r->key), 0) != (ssize_t)sizeof(r->key)) {
        return quire_error_set_errno(err, errno, "%s: no random key", r->path);
    }
    (void)clock_gettime(CLOCK_REALTIME, &now);
    r->unix_less_clock_us =
        (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u - quire_clock_ns() / 1000u;
    if (header_make(&r->line, r, opts) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", r->path);
    }
    if (bytes_write(r->file, r->line.data, r->line.n) < 0) {
        return quire_error_set_errno(err, errno, "%s: cannot be written", r->path);
    }
    return QUIRE_OK;
}

static void record_free(quire_record *r)
{
    (void)pthread_mutex_destroy(&r->lock);
    (void)pthread_cond_destroy(&r->has_work);
    if (r->file >= 0) {
        (void)close(r->file);
    }
    quire_bytes_fini(&r->line);
    free(r->path);
    free(r);
}

/* No signal is handled on the recorder's thread: where files may not grow any more the failed write
 * says so, instead of ending the program. */
static int thread_start(quire_record *r)
{
    sigset_t all;
    sigset_t before;
    int rc;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&r->thread, NULL, work, r);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0 ? QUIRE_OK : QUIRE_NOMEM;
}

int quire_record_open(quire_record **out, const quire_record_opts *opts, quire_error *err)
{
    quire_record *r;
    int rc;

    *out = NULL;
    if (opts->n_classes > QUIRE_TRACE_CLASSES_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%s: more than %u classes", opts->path,
                               QUIRE_TRACE_CLASSES_MAX);
    }
    r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", opts->path);
    }
    r->file = -1;
    r->last = &r->first;
    r->is_plain = opts->is_plain;
    r->queue_bytes_max = opts->queue_bytes > 0 ? opts->queue_bytes : QUEUE_BYTES_DEFAULT;
    r->failed = opts->failed;
    r->failed_ctx = opts->failed_ctx;
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->has_work, NULL);
    r->path = strdup(opts->path);
    rc = r->path != NULL ? file_open(r, err)
                         : quire_error_set(err, QUIRE_NOMEM, "%s: out of memory", opts->path);
    if (rc == QUIRE_OK) {
        rc = header_write(r, opts, err);
    }
    if (rc == QUIRE_OK && thread_start(r) < 0) {
        rc = quire_error_set(err, QUIRE_NOMEM, "%s: no thread to record with", opts->path);
    }
    if (rc < 0) {
        record_free(r);
        return rc;
    }
    *out = r;
    return QUIRE_OK;
}

void quire_record_close(quire_record *r)
{
    if (r == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&r->lock);
    r->is_closing = true;
    (void)pthread_cond_signal(&r->has_work);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_join(r->thread, NULL);
    record_free(r);
}

void quire_record_add(quire_record *r, const quire_recent_request *request)
{
    size_t n_tokens = request->tokens != NULL ? request->n_input_tokens : 0;
    size_t bytes = sizeof(entry) + n_tokens * sizeof(int32_t);
    entry *e = bytes <= r->queue_bytes_max ? malloc(bytes) : NULL;
    bool is_kept;

    if (e != NULL) {
        e->next = NULL;
        e->bytes = bytes;
        e->request = *request;
        if (n_tokens > 0) {
            memcpy(e->tokens, request->tokens, n_tokens * sizeof(int32_t));
        }
        e->request.tokens = request->tokens != NULL ? e->tokens : NULL;
    }
    (void)pthread_mutex_lock(&r->lock);
    is_kept = e != NULL && !r->stats.has_failed && r->queue_bytes + bytes <= r->queue_bytes_max;
    if (is_kept) {
        *r->last = e;
        r->last = &e->next;
        r->queue_bytes += bytes;
        (void)pthread_cond_signal(&r->has_work);
    } else {
        r->stats.dropped++;
    }
    (void)pthread_mutex_unlock(&r->lock);
    if (!is_kept) {
        free(e);
    }
}

void quire_record_stats_get(quire_record *r, quire_record_stats *out)
{
    (void)pthread_mutex_lock(&r->lock);
    *out = r->stats;
    (void)pthread_mutex_unlock(&r->lock);
}
