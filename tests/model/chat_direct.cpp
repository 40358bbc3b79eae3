/* chat_direct.cpp - see chat_direct.h.
 *
 * SPDX-License-Identifier: MIT */
#include "chat_direct.h"

/* Headers of the library call it: see cmake/llama_common/limits.h. */
extern "C" void quire_jinja_step(void);

#include <chat.h>
#include <common.h>

#include <cstring>

char *chat_direct_prompt(const struct llama_model *llama, const char *text,
                         const chat_direct_ask *ask)
{
    try {
        const auto templates = common_chat_templates_init(llama, text);
        const auto caps = common_chat_templates_get_caps(templates.get());
        common_chat_templates_inputs in;

        in.messages = common_chat_msgs_parse_oaicompat(common_json::parse(ask->messages));
        if (ask->tools != nullptr) {
            in.tools = common_chat_tools_parse_oaicompat(common_json::parse(ask->tools));
        }
        in.parallel_tool_calls = caps.at("supports_parallel_tool_calls");
        in.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
        in.enable_thinking = ask->thinks;
        in.add_generation_prompt = ask->has_generation_prompt;
        return strdup(common_chat_templates_apply(templates.get(), in).prompt.c_str());
    } catch (const std::exception &) {
        return nullptr;
    }
}
