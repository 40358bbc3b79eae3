/* foreign_paths.c - see foreign_paths.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/foreign_paths.h"

#include <stddef.h>
#include <string.h>

typedef struct foreign {
    const char *paths; /* with a blank between them */
    const char *help;
} foreign;

/* clang-format off */
static const foreign table[] = {
    { "/lora-adapters /v1/load_lora_adapter /v1/unload_lora_adapter", "there are no adapters" },
    { "/rerank /reranking /v1/rerank /v1/reranking /v2/rerank /score /v1/score /classify /pooling",
      "Quire does not rerank or classify; /v1/embeddings makes vectors" },
    { "/models/load /models/unload",
      "a server has one model, the one that 'quire serve -m' names" },
    { "/embedding", "/v1/embeddings makes vectors" },
    { "/slots",
      "there are no slots to save or restore: session_id in requests keeps a conversation, "
      "--cache-dir keeps pages over restarts" },
    { "/api/chat /api/generate /api/tags /api/show /api/ps /api/pull /api/embed /api/embeddings "
      "/api/version",
      "Quire does not speak Ollama's API; OpenAI's is at /v1, Anthropic's at /v1/messages" },
    { "/v1/audio /v1/images /v1/videos /v1/realtime", "models read and write text only" },
    { "/v1/files /v1/uploads /v1/batches /v1/assistants /v1/threads /v1/vector_stores "
      "/v1/fine_tuning /v1/moderations /v1/conversations",
      "Quire keeps no files and runs no jobs; /v1/chat/completions and /v1/responses answer" },
    { "/v1/complete", "/v1/messages and /v1/completions answer" },
};
/* clang-format on */

const char *quire_foreign_path(const char *path)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        for (const char *name = table[i].paths; *name != '\0';) {
            const size_t n = strcspn(name, " ");

            if (strncmp(name, path, n) == 0 && (path[n] == '\0' || path[n] == '/')) {
                return table[i].help;
            }
            name += n;
            name += strspn(name, " ");
        }
    }
    return NULL;
}
