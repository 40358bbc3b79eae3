/* stored_file.c - see stored_file.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/stored/stored_file.h"

#include "base/check.h"
#include "base/hash128.h"
#include "cli/stored/stored.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC       "QKVX"
#define VERSION     1u
#define AT_VERSION  4u
#define AT_COUNT    8u
#define AT_BYTES    16u
#define AT_CHECKSUM 24u

void quire_stored_file_head_write(unsigned char *block, const quire_stored_file_head *head)
{
    memset(block, 0, QUIRE_STORED_FILE_HEAD_BYTES);
    memcpy(block, MAGIC, AT_VERSION);
    (void)quire_le_put(block + AT_VERSION, VERSION, 4);
    (void)quire_le_put(block + AT_COUNT, head->n_records, 4);
    (void)quire_le_put(block + AT_BYTES, head->n_bytes, 8);
    quire_hash128(block, AT_CHECKSUM, block + AT_CHECKSUM);
}

static int fail_head(const quire_stored_file *file, int status, const char *what, quire_error *err)
{
    return quire_error_set(err, status, "%s: %s", file->path, what);
}

static int head_read(quire_stored_file *file, quire_error *err)
{
    unsigned char block[QUIRE_STORED_FILE_HEAD_BYTES];
    unsigned char checksum[QUIRE_HASH128_BYTES];

    if (fread(block, sizeof(block), 1, file->stream) != 1) {
        return ferror(file->stream)
                   ? quire_error_set_errno(err, errno, "cannot read %s", file->path)
                   : fail_head(file, QUIRE_CORRUPT, "too short for an exported text", err);
    }
    if (memcmp(block, MAGIC, AT_VERSION) != 0) {
        return fail_head(file, QUIRE_CORRUPT, "not a file of quire cache export", err);
    }
    if (quire_le_get(block + AT_VERSION, 4) != VERSION) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s: version %llu, this program reads %u",
                               file->path, (unsigned long long)quire_le_get(block + AT_VERSION, 4),
                               VERSION);
    }
    quire_hash128(block, AT_CHECKSUM, checksum);
    if (memcmp(checksum, block + AT_CHECKSUM, sizeof(checksum)) != 0) {
        return fail_head(file, QUIRE_CORRUPT, "the head is damaged", err);
    }
    file->head.n_records = (uint32_t)quire_le_get(block + AT_COUNT, 4);
    file->head.n_bytes = quire_le_get(block + AT_BYTES, 8);
    return QUIRE_OK;
}

int quire_stored_file_open(quire_stored_file *out, const char *path, quire_error *err)
{
    *out = (quire_stored_file){ .path = path, .offset = QUIRE_STORED_FILE_HEAD_BYTES };
    out->stream = fopen(path, "rbe");
    if (out->stream == NULL) {
        return quire_error_set_errno(err, errno, "cannot open %s", path);
    }
    return head_read(out, err);
}

void quire_stored_file_close(quire_stored_file *file)
{
    if (file->stream != NULL) {
        (void)fclose(file->stream);
    }
    free(file->record);
    *file = (quire_stored_file){ 0 };
}

static int fail_record(const quire_stored_file *file, const char *what, quire_error *err)
{
    if (ferror(file->stream)) {
        return quire_error_set_errno(err, errno, "cannot read %s", file->path);
    }
    return quire_error_set(err, QUIRE_CORRUPT, "%s: record %u at offset %llu is damaged: %s",
                           file->path, file->n_read + 1, (unsigned long long)file->offset, what);
}

/* Room for a record; its first bytes stay. */
static int room_make(quire_stored_file *file, size_t n_bytes, quire_error *err)
{
    unsigned char *record;

    if (n_bytes <= file->capacity) {
        return QUIRE_OK;
    }
    record = aligned_alloc(QUIRE_PAGE_RECORD_ALIGN, n_bytes);
    if (record == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: no memory for a record", file->path);
    }
    if (file->capacity > 0) {
        memcpy(record, file->record, QUIRE_PAGE_RECORD_ALIGN);
    }
    free(file->record);
    file->record = record;
    file->capacity = n_bytes;
    return QUIRE_OK;
}

/* 0 if the file ends where its head says, behind the last record. */
static int end_check(const quire_stored_file *file, quire_error *err)
{
    if (file->offset != QUIRE_STORED_FILE_HEAD_BYTES + file->head.n_bytes ||
        fgetc(file->stream) != EOF) {
        return fail_head(file, QUIRE_CORRUPT, "its length is not the one that its head says", err);
    }
    return ferror(file->stream) ? fail_record(file, "", err) : 0;
}

int quire_stored_file_next(quire_stored_file *file, quire_error *err)
{
    const size_t align = QUIRE_PAGE_RECORD_ALIGN;
    quire_store_result result;
    size_t n_bytes;

    if (file->n_read == file->head.n_records) {
        return end_check(file, err);
    }
    QUIRE_TRY(room_make(file, align, err));
    if (fread(file->record, align, 1, file->stream) != 1) {
        return fail_record(file, "the file ends", err);
    }
    n_bytes = quire_page_record_peek(file->record, align);
    if (n_bytes == 0 || n_bytes > QUIRE_PAGE_RECORD_BYTES_MAX) {
        return fail_record(file, quire_store_result_name(QUIRE_STORE_FORMAT), err);
    }
    QUIRE_TRY(room_make(file, n_bytes, err));
    if (n_bytes > align && fread(file->record + align, n_bytes - align, 1, file->stream) != 1) {
        return fail_record(file, "the file ends", err);
    }
    result = quire_page_record_open(file->record, n_bytes, &file->found);
    if (result != QUIRE_STORE_OK || !quire_stored_is_own_key(&file->found)) {
        return fail_record(file, result != QUIRE_STORE_OK ? quire_store_result_name(result) : "key",
                           err);
    }
    file->n_read++;
    file->offset += n_bytes;
    return 1;
}

int quire_stored_file_rewind(quire_stored_file *file, quire_error *err)
{
    if (fseeko(file->stream, QUIRE_STORED_FILE_HEAD_BYTES, SEEK_SET) != 0) {
        return quire_error_set_errno(err, errno, "cannot read %s again", file->path);
    }
    file->n_read = 0;
    file->offset = QUIRE_STORED_FILE_HEAD_BYTES;
    return QUIRE_OK;
}
