/* chat_jinja.h - declarations that the C++ files of chat formats share, over llama.cpp's common
 * library; for chat_*.cpp only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CHAT_JINJA_H
#define QUIRE_MODEL_CHAT_JINJA_H

#include "model/chat_guard.h"
#include "model/chat_internal.h"

/* Headers of the library call it: see cmake/llama_common/limits.h. */
extern "C" void quire_jinja_step(void);

#include <chat.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace quire
{

/* The library's results for tools, schema and switches: immutable, shared by requests. */
struct built_parser {
    std::string key; /* all that it was made of */
    std::string grammar;
    common_peg_arena parser;
};

/* The parsers of the last requests. Making one takes longer than rendering a short history, and the
 * turns of a conversation have one. Thread: any. */
class parser_cache
{
  public:
    /* Render the prompt into p. A parser of an earlier request serves p as well, if tools and
     * switches are equal; otherwise a new parser is made and kept. plain: quire_chat_ask's
     * plain_tools. Throws. */
    void apply(const common_chat_templates *templates, const common_chat_templates_inputs &in,
               const std::vector<common_chat_tool> &plain, quire_chat_parser *p);

  private:
    std::shared_ptr<const built_parser> find(const std::string &key);
    void keep(const std::shared_ptr<const built_parser> &built);

    std::mutex mutex_;
    std::vector<std::shared_ptr<const built_parser>> items_; /* the last used one first */
};

/* Render alone: p has an empty parser. Throws. */
void apply_text(const common_chat_templates *templates, const common_chat_templates_inputs &in,
                const std::vector<common_chat_tool> &plain, quire_chat_parser *p);

/* Read a text of an answer. Throws. */
common_chat_msg parse_answer(const quire_chat_parser *p, const std::string &text, bool is_partial);

} // namespace quire

struct quire_chat_parser {
    std::atomic<unsigned> n_holders{ 1 };
    common_chat_params params; /* without grammar and parser: these are built's */
    std::shared_ptr<const quire::built_parser> built;
    common_chat_parser_params reading;
    common_chat_msg before; /* the part of a continued message that the prompt already holds */
    bool has_short_ids = false;
    bool begins_thinking = false;
    std::string must_begin;
    /* the same as C's arrays */
    std::vector<std::string> trigger_texts;
    std::vector<quire_chat_trigger> triggers;
    std::vector<const char *> stops, shown_tokens;
};

#endif /* QUIRE_MODEL_CHAT_JINJA_H */
