/* pull_kit.h - set-up that the tests of quire pull share: a hub with one repository, and a folder
 * for the test's models.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_PULL_KIT_H
#define QUIRE_TESTS_PULL_KIT_H

#include "hub_double.h"
#include "program.h"

#define KIT_LIST  "/api/models/some/stories-GGUF/tree/main?recursive=true"
#define KIT_FILES "/some/stories-GGUF/resolve/main/"
#define KIT_Q4    KIT_FILES "stories-Q4_K_M.gguf"
#define KIT_Q8    KIT_FILES "stories-Q8_0.gguf"
#define WRONG     "e2b0e9d5a2a0b3a7f2a2b4ab2e0d4be7fdcd5b3e7ac81d7dc4c9a4f1d0a0c2d1" /* a sha256 */
#define KIT_NAME  "hf:some/stories-GGUF"

/* A repository of two models, both of them program_model()'s bytes, and the environment of a user
 * with an empty folder: QUIRE_MODELS, QUIRE_HUB, no token, no proxy. */
typedef struct pull_kit {
    hub_double *hub;
    char folder[200];
    char *body;
    size_t n_body;
    char sha256[65];
    char list[2048]; /* the hub's answer */
} pull_kit;

void pull_kit_start(pull_kit *kit);
void pull_kit_stop(pull_kit *kit);
/* Read body, n_body and sha256 from a file. */
void pull_kit_read(pull_kit *kit, const char *path);
/* The entry of a whole file; change it as wanted. */
hub_entry pull_kit_file(const pull_kit *kit);
/* A list with one file of these figures in place of both. */
void pull_kit_list(pull_kit *kit, const char *path, unsigned long long bytes, const char *sha256);

/* The words of a pull that never waits. */
#define PULL(...) PROGRAM("pull", "--retry-delay", "0", __VA_ARGS__)

/* A file below the folder is there with the model's bytes; it is not. */
void pull_kit_has(const pull_kit *kit, const char *path);
void pull_kit_has_not(const pull_kit *kit, const char *path);
/* Bytes of the partial files in the folder. */
size_t pull_kit_partial(const pull_kit *kit);
/* The log has this line, so many times. */
void pull_kit_asked(const pull_kit *kit, const char *line, size_t n);

#endif /* QUIRE_TESTS_PULL_KIT_H */
