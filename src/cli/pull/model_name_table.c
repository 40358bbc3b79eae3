/* model_name_table.c - short names of well-known GGUF repositories, of architectures that Quire
 * runs.
 *
 * The table has names and repositories only; the hub lists the files of a repository. The entries
 * were looked up in the public pages of the hub.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/model_name.h"

const quire_short_name quire_short_names[] = {
    { "smollm2-135m", "bartowski", "SmolLM2-135M-Instruct-GGUF", "0.1 GB, for trying things" },
    { "smollm2-360m", "bartowski", "SmolLM2-360M-Instruct-GGUF", "0.3 GB" },
    { "smollm2-1.7b", "bartowski", "SmolLM2-1.7B-Instruct-GGUF", "1.1 GB" },
    { "tinyllama-1.1b", "TheBloke", "TinyLlama-1.1B-Chat-v1.0-GGUF", "0.7 GB" },
    { "llama3.2-1b", "bartowski", "Llama-3.2-1B-Instruct-GGUF", "0.8 GB, tools" },
    { "llama3.2-3b", "bartowski", "Llama-3.2-3B-Instruct-GGUF", "2.0 GB, tools" },
    { "llama3.1-8b", "bartowski", "Meta-Llama-3.1-8B-Instruct-GGUF", "4.9 GB, tools" },
    { "qwen2.5-3b", "bartowski", "Qwen2.5-3B-Instruct-GGUF", "1.9 GB, tools" },
    { "qwen2.5-7b", "bartowski", "Qwen2.5-7B-Instruct-GGUF", "4.7 GB, tools" },
    { "qwen2.5-coder-7b", "bartowski", "Qwen2.5-Coder-7B-Instruct-GGUF", "4.7 GB, code" },
    { "qwen3-0.6b", "Qwen", "Qwen3-0.6B-GGUF", "0.6 GB in Q8_0, reasoning, tools" },
    { "qwen3-1.7b", "Qwen", "Qwen3-1.7B-GGUF", "1.8 GB in Q8_0, reasoning, tools" },
    { "qwen3-4b", "Qwen", "Qwen3-4B-GGUF", "2.5 GB, reasoning, tools" },
    { "qwen3-8b", "Qwen", "Qwen3-8B-GGUF", "5.0 GB, reasoning, tools" },
    { "qwen3-14b", "Qwen", "Qwen3-14B-GGUF", "9.0 GB, reasoning, tools" },
    { "mistral-7b", "TheBloke", "Mistral-7B-Instruct-v0.2-GGUF", "4.4 GB" },
};
const size_t quire_n_short_names = sizeof(quire_short_names) / sizeof(quire_short_names[0]);
