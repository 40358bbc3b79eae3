/* text_files.c - see text_files.h.
 *
 * The files that have a next stretch, but for the one at hand, lie in a heap by the share at which
 * it comes. Shares of one file never fall, so those of the stretches that are read one after
 * another never fall either. Therefore a place says which stretches of other files come before it.
 *
 * SPDX-License-Identifier: MIT */
#include "train/text_files.h"

#include "base/check.h"
#include "base/hash.h"
#include "base/hash128.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE_BYTES 4096u
#define FOLDERS_MAX 16u /* folders within folders; also ends circles of links */
#define NONE        UINT32_MAX

typedef struct text_file {
    char *path;
    uint64_t n_bytes;
    uint64_t offset;
    double phase; /* the part of a stretch that counts as read before it, 0 to 1 */
    double share; /* at which the next stretch comes; of a stretch at hand, at which it came */
} text_file;

struct quire_text_files {
    char *root;
    size_t doc_bytes_max;
    text_file *files; /* [n], in the order of their names */
    uint32_t n;
    uint32_t *heap; /* [n], of which n_heap are used: files, the smallest share first */
    uint32_t n_heap;
    uint32_t at;          /* the file of the last document; NONE before the first */
    bool is_in;           /* the stretch of `at` goes on */
    uint64_t began;       /* offset of the stretch at hand */
    FILE *stream;         /* of stream_file, at its offset */
    uint32_t stream_file; /* NONE: no file is open */
};

/* ---- files ---- */

static int add_file(quire_text_files *fs, const char *path, uint64_t n_bytes, quire_error *err)
{
    unsigned char hash[QUIRE_HASH128_BYTES];
    const char *name = path + strlen(fs->root);
    text_file *files;

    if (fs->n == QUIRE_DOC_FILES_MAX) {
        return quire_error_set(err, QUIRE_INVAL, "%s: more than %u files", fs->root,
                               QUIRE_DOC_FILES_MAX);
    }
    files = realloc(fs->files, (fs->n + 1) * sizeof(*files));
    if (files == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    fs->files = files;
    quire_hash128(name, strlen(name), hash);
    files[fs->n] = (text_file){ .path = strdup(path),
                                .n_bytes = n_bytes,
                                .phase = (double)quire_le_get(hash, 4) * 0x1p-32 };
    if (files[fs->n].path == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    fs->n++;
    return QUIRE_OK;
}

static int add_path(quire_text_files *fs, const char *path, uint32_t depth, quire_error *err);

static int add_folder(quire_text_files *fs, const char *path, uint32_t depth, quire_error *err)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, alphasort);
    int rc = QUIRE_OK;

    if (n < 0) {
        return quire_error_set_errno(err, errno, "cannot read the folder %s", path);
    }
    for (int i = 0; i < n; i++) {
        char below[PIECE_BYTES];

        if (rc == QUIRE_OK && entries[i]->d_name[0] != '.') {
            int length = snprintf(below, sizeof(below), "%s/%s", path, entries[i]->d_name);

            rc = length < (int)sizeof(below)
                     ? add_path(fs, below, depth + 1, err)
                     : quire_error_set(err, QUIRE_INVAL, "%.80s...: the path is too long", below);
        }
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int add_path(quire_text_files *fs, const char *path, uint32_t depth, quire_error *err)
{
    struct stat status;

    if (stat(path, &status) != 0) {
        return quire_error_set_errno(err, errno, "cannot read %s", path);
    }
    if (S_ISDIR(status.st_mode)) {
        return depth < FOLDERS_MAX
                   ? add_folder(fs, path, depth, err)
                   : quire_error_set(err, QUIRE_INVAL, "%s: more than %u folders within each other",
                                     path, FOLDERS_MAX);
    }
    return S_ISREG(status.st_mode) ? add_file(fs, path, (uint64_t)status.st_size, err) : QUIRE_OK;
}

/* ---- the order ---- */

/* The next stretch of file i comes before that of file j. */
static bool is_before(const quire_text_files *fs, uint32_t i, uint32_t j)
{
    double a = fs->files[i].share, b = fs->files[j].share;

    return a < b || (a == b && i < j);
}

static void heap_put(quire_text_files *fs, uint32_t file)
{
    uint32_t at = fs->n_heap++;

    while (at > 0 && is_before(fs, file, fs->heap[(at - 1) / 2])) {
        fs->heap[at] = fs->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    fs->heap[at] = file;
}

static uint32_t heap_take(quire_text_files *fs)
{
    uint32_t first = fs->heap[0], last = fs->heap[--fs->n_heap], at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < fs->n_heap && is_before(fs, fs->heap[child + 1], fs->heap[child])) {
            child++;
        }
        if (child >= fs->n_heap || !is_before(fs, fs->heap[child], last)) {
            break;
        }
        fs->heap[at] = fs->heap[child];
        at = child;
    }
    fs->heap[at] = last;
    return first;
}

static uint64_t left_of(const text_file *f)
{
    return f->n_bytes - f->offset;
}

/* Set the share of a file that has a next stretch. */
static void set_share(const quire_text_files *fs, text_file *f)
{
    uint64_t left = left_of(f);
    double stretch = left < fs->doc_bytes_max ? (double)left : (double)fs->doc_bytes_max;
    double share = ((double)f->offset + f->phase * stretch) / (double)f->n_bytes;

    f->share = share > f->share ? share : f->share;
}

/* Back to the beginnings, with an empty heap. */
static void reset(quire_text_files *fs)
{
    fs->at = NONE;
    fs->is_in = false;
    fs->n_heap = 0;
    for (uint32_t i = 0; i < fs->n; i++) {
        fs->files[i].offset = 0;
        fs->files[i].share = 0;
        if (fs->files[i].n_bytes > 0) {
            set_share(fs, &fs->files[i]);
        }
    }
}

/* All files that have a next stretch into the heap. */
static void fill_heap(quire_text_files *fs)
{
    for (uint32_t i = 0; i < fs->n; i++) {
        if (left_of(&fs->files[i]) > 0 && !(fs->is_in && i == fs->at)) {
            heap_put(fs, i);
        }
    }
}

/* ---- documents ---- */

static void close_stream(quire_text_files *fs)
{
    if (fs->stream_file != NONE) {
        (void)fclose(fs->stream);
        fs->stream_file = NONE;
    }
}

static int open_stream(quire_text_files *fs, uint32_t i, quire_error *err)
{
    const text_file *f = &fs->files[i];

    if (fs->stream_file == i) {
        return QUIRE_OK;
    }
    close_stream(fs);
    errno = 0;
    fs->stream = fopen(f->path, "rb");
    if (fs->stream == NULL) {
        return quire_error_set_errno(err, errno, "cannot read %s", f->path);
    }
    fs->stream_file = i;
    if (fseeko(fs->stream, (off_t)f->offset, SEEK_SET) != 0) {
        int rc = quire_error_set_errno(err, errno, "cannot read %s", f->path);

        close_stream(fs);
        return rc;
    }
    return QUIRE_OK;
}

static bool is_separator(const char *line)
{
    size_t n = strlen(QUIRE_DOC_SEPARATOR);

    return strncmp(line, QUIRE_DOC_SEPARATOR, n) == 0 && line[n + strspn(line + n, "\r\n")] == '\0';
}

/* Read the next piece of a line behind n_text bytes of its document; the piece has n bytes of text.
 * *ends: the document ends here. A piece has no zero byte behind which something is lost: getc
 * reads bytes one by one. */
static int read_piece(quire_text_files *fs, text_file *f, char piece[PIECE_BYTES], uint64_t n_text,
                      size_t *n, bool *ends, quire_error *err)
{
    bool is_last;
    int c = '\0';

    for (*n = 0; *n + 1 < PIECE_BYTES && *n < left_of(f) && c != '\n';) {
        c = getc_unlocked(fs->stream);
        if (c == EOF) {
            break;
        }
        piece[(*n)++] = (char)c;
    }
    if (c == EOF && ferror(fs->stream)) {
        return quire_error_set_errno(err, errno, "cannot read %s", f->path);
    }
    piece[*n] = '\0';
    f->offset = c == EOF ? f->n_bytes : f->offset + *n;
    is_last = left_of(f) == 0;
    *ends = is_last;
    if (is_separator(piece) && memchr(piece, '\0', *n) == NULL) {
        *n = 0;
        *ends = true;
    } else if (n_text + *n >= fs->doc_bytes_max && (c == '\n' || *n + 1 == PIECE_BYTES)) {
        *ends = true;
    }
    return QUIRE_OK;
}

/* Read a document of file i; text NULL: only its length matters. */
static int read_document(quire_text_files *fs, uint32_t i, quire_bytes *text, quire_error *err)
{
    text_file *f = &fs->files[i];
    char piece[PIECE_BYTES];
    uint64_t n_text = 0;
    bool ends = false;

    QUIRE_TRY(open_stream(fs, i, err));
    while (!ends) {
        size_t n;

        QUIRE_TRY(read_piece(fs, f, piece, n_text, &n, &ends, err));
        n_text += n;
        if (text != NULL && quire_bytes_add(text, piece, n) < 0) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
    }
    return QUIRE_OK;
}

/* Begin the next stretch of file i. */
static void begin_stretch(quire_text_files *fs, uint32_t i)
{
    fs->at = i;
    fs->began = fs->files[i].offset;
    fs->is_in = true;
}

/* The next document of the stretch at hand. */
static int read_on(quire_text_files *fs, quire_bytes *text, quire_error *err)
{
    text_file *f = &fs->files[fs->at];

    QUIRE_TRY(read_document(fs, fs->at, text, err));
    fs->is_in = left_of(f) > 0 && f->offset - fs->began < fs->doc_bytes_max;
    return QUIRE_OK;
}

int quire_text_files_next(quire_text_files *fs, quire_bytes *text, quire_error *err)
{
    quire_bytes_clear(text);
    if (!fs->is_in) {
        if (fs->n_heap == 0) {
            return QUIRE_NOTFOUND;
        }
        begin_stretch(fs, heap_take(fs));
    }
    QUIRE_TRY(read_on(fs, text, err));
    if (!fs->is_in && left_of(&fs->files[fs->at]) > 0) {
        set_share(fs, &fs->files[fs->at]);
        heap_put(fs, fs->at);
    }
    return QUIRE_OK;
}

/* ---- places ---- */

void quire_text_files_rewind(quire_text_files *fs)
{
    close_stream(fs);
    reset(fs);
    fill_heap(fs);
}

void quire_text_files_tell(const quire_text_files *fs, uint64_t *file, uint64_t *offset)
{
    *file = fs->at == NONE ? 0 : fs->at;
    *offset = fs->at == NONE ? 0 : fs->files[fs->at].offset;
}

/* Read a file up to an offset. Its share is then the one at which the last stretch came. */
static int walk_to(quire_text_files *fs, uint32_t i, uint64_t offset, quire_error *err)
{
    text_file *f = &fs->files[i];

    while (f->offset < offset) {
        if (!fs->is_in) {
            set_share(fs, f);
            begin_stretch(fs, i);
        }
        QUIRE_TRY(read_on(fs, NULL, err));
    }
    return f->offset == offset ? QUIRE_OK
                               : quire_error_set(err, QUIRE_INVAL,
                                                 "the data has changed: no document ends at byte "
                                                 "%llu of %s",
                                                 (unsigned long long)offset, f->path);
}

/* Read the stretches of a file that come before the last one of file `last`. */
static int walk_before(quire_text_files *fs, uint32_t i, uint32_t last, quire_error *err)
{
    text_file *f = &fs->files[i];

    while (left_of(f) > 0 && is_before(fs, i, last)) {
        uint64_t began = f->offset;

        if (left_of(f) <= fs->doc_bytes_max) { /* the last stretch */
            f->offset = f->n_bytes;
            break;
        }
        while (left_of(f) > 0 && f->offset - began < fs->doc_bytes_max) {
            QUIRE_TRY(read_document(fs, i, NULL, err));
        }
        if (left_of(f) > 0) {
            set_share(fs, f);
        }
    }
    return QUIRE_OK;
}

int quire_text_files_seek(quire_text_files *fs, uint64_t file, uint64_t offset, quire_error *err)
{
    text_file *f;

    quire_text_files_rewind(fs);
    if (file == 0 && offset == 0) {
        return QUIRE_OK;
    }
    if (file >= fs->n || offset > fs->files[file].n_bytes) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the data has changed: byte %llu of file %llu was read, which is no "
                               "more there",
                               (unsigned long long)offset, (unsigned long long)file + 1);
    }
    fs->n_heap = 0;
    f = &fs->files[file];
    QUIRE_TRY(walk_to(fs, (uint32_t)file, offset, err));
    for (uint32_t i = 0; i < fs->n; i++) {
        if (i != file) {
            QUIRE_TRY(walk_before(fs, i, (uint32_t)file, err));
        }
    }
    close_stream(fs);
    if (!fs->is_in && left_of(f) > 0) {
        set_share(fs, f);
    }
    fill_heap(fs);
    return QUIRE_OK;
}

/* ---- the whole ---- */

int quire_text_files_open(quire_text_files **out, const char *path, size_t doc_bytes_max,
                          quire_error *err)
{
    quire_text_files *fs = calloc(1, sizeof(*fs));
    int rc;

    if (fs == NULL || (fs->root = strdup(path)) == NULL) {
        free(fs);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    fs->doc_bytes_max = doc_bytes_max;
    fs->stream_file = NONE;
    rc = add_path(fs, path, 0, err);
    if (rc == QUIRE_OK && fs->n == 0) {
        rc = quire_error_set(err, QUIRE_INVAL, "%s has no files", path);
    }
    if (rc == QUIRE_OK && (fs->heap = calloc(fs->n, sizeof(*fs->heap))) == NULL) {
        rc = quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    if (rc < 0) {
        quire_text_files_close(fs);
        return rc;
    }
    quire_text_files_rewind(fs);
    *out = fs;
    return QUIRE_OK;
}

void quire_text_files_close(quire_text_files *fs)
{
    if (fs == NULL) {
        return;
    }
    close_stream(fs);
    for (uint32_t i = 0; i < fs->n; i++) {
        free(fs->files[i].path);
    }
    free(fs->files);
    free(fs->heap);
    free(fs->root);
    free(fs);
}

size_t quire_text_files_count(const quire_text_files *fs)
{
    return fs->n;
}

uint64_t quire_text_files_identity(const quire_text_files *fs)
{
    uint64_t hash = QUIRE_HASH_INIT;

    for (uint32_t i = 0; i < fs->n; i++) {
        const char *name = fs->files[i].path + strlen(fs->root);

        hash = quire_hash_add(hash, name, strlen(name) + 1);
        hash = quire_hash_add(hash, &fs->files[i].n_bytes, sizeof(fs->files[i].n_bytes));
    }
    return hash == 0 ? 1 : hash;
}
