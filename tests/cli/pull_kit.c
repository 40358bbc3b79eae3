/* pull_kit.c - see pull_kit.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pull_kit.h"

#include "cli/pull/file_digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const variables[] = {
    "HF_TOKEN",    "HF_TOKEN_PATH", "HF_ENDPOINT", "http_proxy", "https_proxy",
    "HTTPS_PROXY", "ALL_PROXY",     "all_proxy",   "no_proxy",   "NO_PROXY",
};

void pull_kit_read(pull_kit *kit, const char *path)
{
    FILE *file = fopen(path, "rb");
    quire_digest *digest = quire_digest_new(false, 0);

    assert_non_null(file);
    assert_non_null(digest);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    kit->n_body = (size_t)ftell(file);
    rewind(file);
    kit->body = malloc(kit->n_body);
    assert_non_null(kit->body);
    assert_int_equal(fread(kit->body, 1, kit->n_body, file), kit->n_body);
    fclose(file);
    assert_true(quire_digest_add(digest, kit->body, kit->n_body));
    assert_true(quire_digest_text(digest, kit->sha256));
    quire_digest_free(digest);
}

static void remove_folder(const char *folder)
{
    char command[300];

    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

hub_entry pull_kit_file(const pull_kit *kit)
{
    return (hub_entry){ .body = kit->body, .n_body = kit->n_body };
}

static void change_list(pull_kit *kit)
{
    hub_double_change(kit->hub, KIT_LIST,
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
}

void pull_kit_list(pull_kit *kit, const char *path, unsigned long long bytes, const char *sha256)
{
    (void)snprintf(kit->list, sizeof(kit->list),
                   "[{\"type\": \"file\", \"path\": \"%s\", \"size\": %llu, \"oid\": \"0\", "
                   "\"lfs\": {\"oid\": \"%s\", \"size\": %llu}}]",
                   path, bytes, sha256, bytes);
    change_list(kit);
}

void pull_kit_start(pull_kit *kit)
{
    char port[64];

    memset(kit, 0, sizeof(*kit));
    pull_kit_read(kit, program_model());
    (void)snprintf(kit->folder, sizeof(kit->folder), "%s", program_path("models"));
    remove_folder(kit->folder);
    kit->hub = hub_double_start(NULL, 0);
    (void)snprintf(
        kit->list, sizeof(kit->list),
        "[{\"type\": \"directory\", \"path\": \"x\", \"size\": 0, \"oid\": \"1\"},"
        " {\"type\": \"file\", \"path\": \"README.md\", \"size\": 5, \"oid\": \"2\"},"
        " {\"type\": \"file\", \"path\": \"../evil-Q4_K_M.gguf\", \"size\": 5},"
        " {\"type\": \"file\", \"path\": \"mmproj-stories-Q4_K_M.gguf\", \"size\": 5},"
        " {\"type\": \"file\", \"path\": \"stories-Q4_K_M.gguf\", \"size\": %zu, "
        "\"oid\": \"3\", \"lfs\": {\"oid\": \"%s\", \"size\": %zu, \"pointerSize\": 9}},"
        " {\"type\": \"file\", \"path\": \"stories-Q8_0.gguf\", \"size\": %zu, "
        "\"oid\": \"4\", \"lfs\": {\"oid\": \"%s\", \"size\": %zu, \"pointerSize\": 9}}]",
        kit->n_body, kit->sha256, kit->n_body, kit->n_body, kit->sha256, kit->n_body);
    change_list(kit);
    hub_double_change(kit->hub, KIT_Q4, pull_kit_file(kit));
    hub_double_change(kit->hub, KIT_Q8, pull_kit_file(kit));
    (void)snprintf(port, sizeof(port), "http://127.0.0.1:%u", hub_double_port(kit->hub));
    setenv("QUIRE_HUB", port, 1);
    setenv("QUIRE_MODELS", kit->folder, 1);
    setenv("HF_HOME", kit->folder, 1); /* where there is no login */
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        unsetenv(variables[i]);
    }
}

void pull_kit_stop(pull_kit *kit)
{
    hub_double_stop(kit->hub);
    remove_folder(kit->folder);
    free(kit->body);
    unsetenv("QUIRE_HUB");
    unsetenv("QUIRE_MODELS");
    unsetenv("HF_HOME");
    unsetenv("HF_TOKEN");
    unsetenv("http_proxy");
}

void pull_kit_has(const pull_kit *kit, const char *path)
{
    char full[400];
    char *bytes = malloc(kit->n_body + 1);
    FILE *file;

    (void)snprintf(full, sizeof(full), "%s/%s", kit->folder, path);
    file = fopen(full, "rb");
    if (file == NULL) {
        fail_msg("%s is not there", full);
    }
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, kit->n_body + 1, file), kit->n_body);
    assert_memory_equal(bytes, kit->body, kit->n_body);
    fclose(file);
    free(bytes);
}

void pull_kit_has_not(const pull_kit *kit, const char *path)
{
    char full[400];

    (void)snprintf(full, sizeof(full), "%s/%s", kit->folder, path);
    assert_int_not_equal(access(full, F_OK), 0);
}

size_t pull_kit_partial(const pull_kit *kit)
{
    json_t *list = program_json(PROGRAM("list", "--json"));
    const size_t bytes = (size_t)json_integer_value(json_object_get(list, "partial_bytes"));

    (void)kit;
    json_decref(list);
    return bytes;
}

void pull_kit_asked(const pull_kit *kit, const char *line, size_t n)
{
    char *log = hub_double_log(kit->hub);
    size_t found = 0;

    for (const char *at = log; *at != '\0'; at += strcspn(at, "\n") + 1) {
        found += strncmp(at, line, strlen(line)) == 0 && at[strlen(line)] == '\n';
    }
    if (found != n) {
        fail_msg("'%s': %zu times, not %zu, in:\n%s", line, found, n, log);
    }
    free(log);
}
