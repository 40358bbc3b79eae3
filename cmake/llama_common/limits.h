/* limits.h - the hook that bounds a running Jinja template; included before each file of the
 * library built here.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_LLAMA_COMMON_LIMITS_H
#define QUIRE_LLAMA_COMMON_LIMITS_H

/* Called for each statement and expression that a template executes, and in loops of builtins.
 * Throws std::runtime_error when the run has reached a limit. Defined in src/model/chat_guard.cpp.
 */
extern "C" void quire_jinja_step(void);

#endif /* QUIRE_LLAMA_COMMON_LIMITS_H */
