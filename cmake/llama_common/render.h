/* render.h - one run of a template where the library would make three; included by chat.cpp.
 *
 * For each request the library renders the history three times: for the prompt, and with and
 * without the beginning of an answer, whose difference it needs. Most templates ask for
 * add_generation_prompt only in their last statements. Such a template is run once up to there, and
 * its last statements twice, each time with variables of their own. The texts are kept until the
 * same thread renders something else.
 *
 * A template whose last statements could change an object that both runs see (a namespace, a list)
 * is run as a whole each time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_LLAMA_COMMON_RENDER_H
#define QUIRE_LLAMA_COMMON_RENDER_H

#include "chat.h"
#include "jinja/runtime.h"
#include "json.h"

#include <set>
#include <string>

namespace quire_render
{

/* The last texts of this thread: [without, with the beginning of an answer]. */
struct memo {
    const common_chat_template *tmpl = nullptr;
    common_json input;
    bool marks_input = false;
    bool has[2] = { false, false };
    std::string texts[2];
    const void *place = nullptr; /* of the inputs, while they cannot have changed */
};

inline memo &last_memo()
{
    static thread_local memo last;

    return last;
}

/* ---- the beginning of an answer, without looking at the inputs again ----
 *
 * A format first renders its inputs, which are const, and then asks for the beginning of an answer
 * to the same inputs. Where the inputs lie at the same place, and nothing else was rendered
 * between, they are the same. */

inline void begin_request()
{
    last_memo().place = nullptr;
}

inline void begin_render()
{
    last_memo().place = nullptr;
}

inline void end_render(const void *inputs)
{
    memo &last = last_memo();

    last.place = last.tmpl != nullptr && last.has[false] && last.has[true] ? inputs : nullptr;
}

/* The text that the beginning of an answer adds. */
inline bool find_end(const void *inputs, std::string *end)
{
    const memo &last = last_memo();
    size_t n = 0;

    if (last.place != inputs) {
        return false;
    }
    while (n < last.texts[false].size() && n < last.texts[true].size() &&
           last.texts[false][n] == last.texts[true][n]) {
        n++;
    }
    *end = last.texts[true].substr(n);
    return true;
}

/* Calls that change nothing. */
inline bool is_harmless_call(const jinja::call_expression *call)
{
    static const std::set<std::string> functions = { "raise_exception", "strftime_now", "range" };
    static const std::set<std::string> methods = { "startswith", "endswith", "strip",  "lstrip",
                                                   "rstrip",     "split",    "items",  "keys",
                                                   "values",     "get",      "upper",  "lower",
                                                   "title",      "replace",  "rsplit", "find" };

    if (const auto *name = jinja::cast_stmt<jinja::identifier>(call->callee)) {
        return functions.count(name->val) > 0;
    }
    if (const auto *member = jinja::cast_stmt<jinja::member_expression>(call->callee)) {
        const auto *name = jinja::cast_stmt<jinja::identifier>(member->property);

        return !member->computed && name != nullptr && methods.count(name->val) > 0;
    }
    return false;
}

/* Whether a statement keeps to its own variables. */
inline bool is_harmless(const jinja::statement *node)
{
    if (const auto *call = dynamic_cast<const jinja::call_expression *>(node)) {
        return is_harmless_call(call);
    }
    if (const auto *set = dynamic_cast<const jinja::set_statement *>(node)) {
        return jinja::is_stmt<jinja::identifier>(set->assignee);
    }
    return dynamic_cast<const jinja::call_statement *>(node) == nullptr;
}

struct findings {
    bool asks = false; /* for add_generation_prompt */
    bool is_harmless = true;
};

inline findings look(const jinja::statement *statement)
{
    findings found;
    jinja::context ctx;

    ctx.visitor = [&](bool is_leaf, const jinja::statement *node,
                      std::vector<jinja::visitor_pair> children) {
        const auto *name = dynamic_cast<const jinja::identifier *>(node);

        (void)is_leaf;
        found.asks = found.asks || (name != nullptr && name->val == "add_generation_prompt");
        found.is_harmless = found.is_harmless && is_harmless(node);
        for (const auto &list : children) {
            for (const auto *child : list.second) {
                if (child != nullptr) {
                    child->visit(ctx);
                }
            }
        }
    };
    statement->visit(ctx);
    return found;
}

/* The number of statements before those that ask for add_generation_prompt; all of them where the
 * rest cannot be run twice. */
inline size_t find_fork(const jinja::program &program)
{
    const size_t n = program.body.size();
    size_t first = n;

    for (size_t i = 0; i < n; i++) {
        const findings found = look(program.body[i].get());

        first = first == n && found.asks ? i : first;
        if (first < n && !found.is_harmless) {
            return n;
        }
    }
    return first;
}

inline std::string run(const jinja::program &program, size_t from, size_t to, jinja::context &ctx)
{
    auto results = jinja::mk_val<jinja::value_array>();

    for (size_t i = from; i < to; i++) {
        results->push_back(program.body[i]->execute(ctx));
    }
    return jinja::runtime::gather_string_parts(results)->as_string().str();
}

inline std::string run_end(const jinja::program &program, size_t from, const jinja::context &ctx,
                           bool begins_answer)
{
    jinja::context own(ctx);

    if (begins_answer) {
        own.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(true));
    }
    return run(program, from, program.body.size(), own);
}

/* ctx: without the input. */
inline std::string render(const common_chat_template &tmpl, jinja::context &ctx, common_json &input,
                          bool begins_answer, bool marks_input)
{
    memo &last = last_memo();
    const jinja::program &program = tmpl.prog;
    const bool is_free = !input.contains("add_generation_prompt");
    size_t fork = program.body.size();

    if (is_free) {
        if (last.tmpl == &tmpl && last.has[begins_answer] && last.marks_input == marks_input &&
            last.input == input) {
            return last.texts[begins_answer];
        }
        if (tmpl.quire_fork.load() < 0) {
            tmpl.quire_fork.store((long)find_fork(program));
        }
        fork = (size_t)tmpl.quire_fork.load();
    }
    jinja::global_from_json(ctx, input, marks_input);
    last.tmpl = nullptr;
    last.has[false] = last.has[true] = false;
    if (fork == program.body.size()) {
        if (begins_answer) {
            ctx.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(true));
        }
        last.texts[begins_answer] = run(program, 0, fork, ctx);
    } else {
        const std::string head = run(program, 0, fork, ctx);

        last.texts[begins_answer] = head + run_end(program, fork, ctx, begins_answer);
        try {
            last.texts[!begins_answer] = head + run_end(program, fork, ctx, !begins_answer);
            last.has[!begins_answer] = true;
        } catch (const std::exception &) {
            /* who asks for that text gets the error */
        }
    }
    last.has[begins_answer] = true;
    if (is_free) {
        last.tmpl = &tmpl;
        last.input = std::move(input);
        last.marks_input = marks_input;
    }
    return last.texts[begins_answer];
}

} // namespace quire_render

#endif /* QUIRE_LLAMA_COMMON_RENDER_H */
