/* serve_docs.c - docs/configuration.md, made from the table of settings.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/serving/serve_args.h"
#include "model/chat_templates.h"

static const char heading[] =
    "# Configuration of quire serve\n\n"
    "Made from the option table of the program by `make docs`; `quire serve --help` says the same."
    "\n\n"
    "A setting can stand in four places; an earlier one in this list wins:\n\n"
    "1. a flag: `--kv-recent 0` (those that take no value can be switched off: "
    "`--lock-memory=false`)\n"
    "2. the environment: `QUIRE_KV_RECENT=0` (an empty variable counts as none)\n"
    "3. a YAML file, named by `--config FILE` or `QUIRE_CONFIG`: `kv_recent: 0`\n"
    "4. its default\n\n"
    "The other commands (`run`, `chat`, `bench`, `info`, ...) read their flags. From the "
    "environment "
    "they read\nthose of these settings that are their options too: `QUIRE_KV=q8 quire run ...` is "
    "`quire run --kv q8 ...`.\nThey read no file.\n\n"
    "`quire serve` keeps KV in q8, because the memory of a server decides how many conversations "
    "stay\ncached. The other commands keep KV in f16, llama.cpp's default, so that their texts and "
    "figures compare\nwith llama.cpp's.\n\n"
    "A key or a `QUIRE_` variable that is unknown is an error, which names the nearest one. "
    "`quire serve --check-config` checks everything but the port, without loading\nweights, and "
    "prints each "
    "setting with the place it came from. Sizes take `k M G T` and `KiB MiB GiB TiB`, times `ms s "
    "m h d` (seconds without).\n\n"
    "```yaml\n"
    "model: model.gguf\n"
    "port: 8080\n"
    "kv: q8\n"
    "session_ttl: 2h\n"
    "inference_params:            # the same settings by other names\n"
    "  max_batch_size: 8          # requests computed at once\n"
    "  max_seq_len: 8192          # context in tokens\n"
    "  cache_memory_ratio: 0.6    # of the memory that weights and buffers leave, for KV pages\n"
    "  prefetch_steps: 0          # reserved for caches in tiers; has no effect yet\n"
    "api_keys:\n"
    "  - { key_env: TEAM_A_KEY, tenant: team-a }    # from a variable, which must not be empty\n"
    "  - { key_file: secrets/b, tenant: team-b }    # the first line of a file\n"
    "  - { key: not-a-secret }                      # tenant \"default\"\n"
    "  - { key_env: OPS_KEY, admin: true }          # may administer, and only that\n"
    "  - { key_env: NIGHT_KEY, tenant: night, max_class: batch }\n"
    "classes:                       # the most important first\n"
    "  - { name: realtime, weight: 16, pinned: true, tpot_target: 80ms, max_running: 4 }\n"
    "  - { name: standard, weight: 4 }\n"
    "  - { name: batch, weight: 1, max_queue: 1000, cache_ttl: 1h }\n"
    "tenants:\n"
    "  - { name: team-b, cache_quota: 1GiB, weight: 2 }\n"
    "```\n\n"
    "The file is one YAML document without aliases. A key without a value is an error, and so is "
    "the value\n`null`: leave the key out for its default. Paths are relative to the folder that "
    "the program is started in.\n\n"
    "Tenants share no cached prefix, session or explanation. Without any key the server listens "
    "on loopback addresses only, and everybody is one tenant who may\nadminister.\n\n"
    "SIGTERM or SIGINT: new requests are refused (503) while those that run finish, then the "
    "program ends with status 0. A second signal ends it at once, with\nstatus 1.\n\n";

static const char templates_heading[] =
    "\n## Chat templates\n\n"
    "libllama recognises the common templates of model files. Where it does not, "
    "`/v1/chat/completions` is refused (which is said at start) until `--chat-template`\nnames "
    "one of these:\n\n";

int quire_serve_document(quire_bytes *out)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    const size_t n = quire_chat_template_names(names);

    (void)quire_bytes_add(out, heading, sizeof(heading) - 1);
    (void)quire_settings_document(&quire_command_serve, out);
    quire_config_lists_document(out);
    (void)quire_bytes_add(out, templates_heading, sizeof(templates_heading) - 1);
    for (size_t i = 0; i < n; i++) {
        (void)quire_bytes_addf(out, "%s`%s`%s",
                               i == 0        ? ""
                               : i % 10 == 0 ? ",\n"
                                             : ", ",
                               names[i], i + 1 == n ? "\n" : "");
    }
    return out->status;
}
