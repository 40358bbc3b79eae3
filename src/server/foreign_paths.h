/* foreign_paths.h - paths of other servers that Quire does not have, and its counterpart of each.
 *
 * The clients of llama-server, vLLM, Ollama and OpenAI ask for these paths by habit. The name
 * of Quire's counterpart helps their users more than "no such path".
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_FOREIGN_PATHS_H
#define QUIRE_SERVER_FOREIGN_PATHS_H

/* The help for a path and all paths below it; NULL when no known server has such a path. Memory:
 * static. */
const char *quire_foreign_path(const char *path);

#endif /* QUIRE_SERVER_FOREIGN_PATHS_H */
