/* limits.h - the hooks of the library built here; included before each of its files.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_LLAMA_COMMON_LIMITS_H
#define QUIRE_LLAMA_COMMON_LIMITS_H

/* Called for each statement and expression that a template executes, and in loops of builtins.
 * Throws std::runtime_error when the run has reached a limit. Defined in src/model/chat_guard.cpp.
 */
extern "C" void quire_jinja_step(void);

/* Whether the caller wants the text of a prompt alone: no parser and no grammar is made. Weak: a
 * program without this function gets all. Defined in src/model/chat_parsers.cpp. */
extern "C" __attribute__((weak)) bool quire_chat_wants_text(void);

static inline bool quire_makes_parsers(void)
{
    return quire_chat_wants_text == nullptr || !quire_chat_wants_text();
}

#endif /* QUIRE_LLAMA_COMMON_LIMITS_H */
