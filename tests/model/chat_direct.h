/* chat_direct.h - prompts by llama.cpp's library, called without Quire's code between; for tests.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_CHAT_DIRECT_H
#define QUIRE_TESTS_CHAT_DIRECT_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct llama_model;

/* A chat request in OpenAI's JSON. tools NULL = none. */
typedef struct chat_direct_ask {
    const char *messages, *tools;
    bool thinks;
    bool has_generation_prompt;
} chat_direct_ask;

/* The prompt by a template's text; NULL where the template refuses the messages. The tokens BOS and
 * EOS are those of llama. Memory: free(). */
char *chat_direct_prompt(const struct llama_model *llama, const char *text,
                         const chat_direct_ask *ask);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_TESTS_CHAT_DIRECT_H */
