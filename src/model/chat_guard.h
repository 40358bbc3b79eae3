/* chat_guard.h - runs code of llama.cpp's common library within limits; C++, for chat_*.cpp only.
 *
 * Templates come with model files and answers come from models, so the work here has untrusted
 * input. Work runs on a thread of its own, with a stack that no nesting within
 * QUIRE_CHAT_TEMPLATE_BYTES_MAX fills. Between steps of a template (quire_jinja_step()) the guard
 * checks processor time, memory and depth, and throws. Memory is counted in operator new, which
 * this module replaces for the whole program; a thread without a guard is not affected. operator
 * new itself throws only where one allocation of more than a MiB exceeds the limit, or near the end
 * of the stack: destructors, in which a throw would end the process, do not allocate so much.
 *
 * The library counts references. Values of a template that refer to each other are therefore never
 * freed: a hostile template leaks memory, at most the limit at each run.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_GUARD_H
#define QUIRE_MODEL_CHAT_GUARD_H

#include "model/chat_format.h"

namespace quire
{

/* A failure of the input, with its status. */
struct failure {
    int status;
    const char *text; /* static */
};

/* guard_run() for work(ctx). The caller is in no guard yet and catches nothing: no memory is taken
 * there, as a std::function would do. */
int guard_call(const char *what, void (*work)(const void *ctx), const void *ctx, quire_error *err);

/* Run work. `what` names the input in messages ("chat template", "answer"). No exception passes.
 * Errors: QUIRE_LIMIT (a limit), QUIRE_INVAL (an exception: its text), QUIRE_NOMEM, the status of a
 * thrown failure. */
template <typename F> int guard_run(const char *what, const F &work, quire_error *err)
{
    return guard_call(
        what, [](const void *f) { (*static_cast<const F *>(f))(); }, &work, err);
}

} // namespace quire

#endif /* QUIRE_MODEL_CHAT_GUARD_H */
