/* foreign_options.c - see foreign_options.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/foreign_options.h"

#include <stdbool.h>
#include <string.h>

typedef struct foreign {
    /* With a blank between them. "--x*": all that begin with --x; "--*-x": all that end with -x. */
    const char *names;
    const char *help;
} foreign;

/* clang-format off */
static const foreign table[] = {
    { "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev "
      "--device -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe "
      "-ncffn --n-cpu-ffn -kvo --kv-offload -nkvo --no-kv-offload --op-offload --no-op-offload "
      "--no-host --rpc -fit --fit -fitt --fit-target -fitc --fit-ctx -fitp --fit-print",
      "'quire run', 'chat', 'serve', 'perplexity' and 'bench' have --device for KV pages and "
      "attention, --split-mode and --tensor-split for several devices, and -ngl for layers of the "
      "model" },
    { "--list-devices", "'quire devices' lists them" },
    { "--retain --prefill-chunk --attend",
      "'quire run', 'quire chat' and 'quire perplexity' can drop tokens of a text, as can 'quire "
      "serve' with --retain and --retain-chunk" },
    { "-fa --flash-attn",
      "attention always reads the KV cache tile by tile; there is no other kind to choose" },
    { "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -hfv -hfrv --hf-repo-v -mu --model-url "
      "-dr --docker-repo --offline --fim-* --gpt-oss-* --vision-* --embd-gemma-default",
      "'quire pull hf:OWNER/REPO' fetches a model, and -m takes its name" },
    { "-cl --cache-list", "'quire list' lists the models that were pulled" },
    { "-cnv --conversation -no-cnv --no-conversation -i --interactive -if --interactive-first -st "
      "--single-turn -mli --multiline-input -r --reverse-prompt --in-prefix --in-prefix-bos "
      "--in-suffix",
      "'quire chat' is a conversation, 'quire run' writes on from a prompt" },
    { "-sys --system-prompt -sysf --system-prompt-file",
      "'quire chat' has --system TEXT" },
    { "--jinja --no-jinja --chat-template-file --chat-template-kwargs -rea --reasoning* "
      "--no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing --prefill-assistant "
      "--no-prefill-assistant",
      "'quire chat' and 'quire serve' run the model's chat template; they have --chat-template "
      "NAME and --chat-template-file FILE, and requests have chat_template_kwargs, "
      "reasoning_format and reasoning_budget" },
    { "--mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io --repack --no-repack "
      "-nr -mmp -lm --load-mode -lzm --lazy-mode",
      "weights are mapped from the file or copied for faster products, as suits them; 'quire "
      "serve' has --lock-memory for KV pages" },
    { "-ctk --cache-type-k -ctv --cache-type-v",
      "--kv K:V sets the formats of K and V" },
    { "--*-draft -ctkd -ctvd -md --draft --draft-* -cd -ngld -hfd -hfrd -td -tbd -devd -otd -cmoed "
      "-ncmoed -Cd -Crd -Cbd -Crbd --spec-* --mtp --eagle3 --dflash -lcs -lcd --lookup-cache-*",
      "there is no speculative decoding" },
    { "-np --parallel",
      "'quire serve' has --parallel, 'quire bench' has --sequences" },
    { "-ns --sequences", "'quire bench' has --sequences" },
    { "-cb --cont-batching -nocb --no-cont-batching",
      "'quire serve' always batches continuously" },
    { "-ub --ubatch-size --batch-size -b",
      "-b, --batch is the size of a step; in 'quire serve' it is --chunk-tokens" },
    { "-tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb "
      "--cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --numa "
      "--delay",
      "-t sets the threads of all steps; taskset or numactl choose the CPUs" },
    { "-kvu --kv-unified -no-kvu --no-kv-unified --kv-unified-per-slot -dt "
      "--defrag-thold",
      "KV pages are one pool for all sequences" },
    { "-cram --cache-ram --cache-reuse -lpc --slots --no-slots -sps --slot-prompt-similarity "
      "--cache-prompt --no-cache-prompt -ctxcp --ctx-checkpoints "
      "--swa-full --swa-checkpoints -cms --checkpoint-min-step --cache-idle-slots "
      "--no-cache-idle-slots",
      "'quire serve' finds every cached prefix by its tokens; --cache-memory-ratio or --kv-budget "
      "sets its memory" },
    { "--slot-save-path",
      "'quire serve' has --cache-dir, which keeps pages and sessions over restarts" },
    { "--prompt-cache --prompt-cache-all --prompt-cache-ro",
      "'quire run', 'quire chat' and 'quire serve' have --cache-dir, which keeps the KV of "
      "prompts" },
    { "--context-shift --no-context-shift --keep -gan --grp-attn-n -gaw --grp-attn-w",
      "'quire run', 'quire chat' and 'quire serve' have --context-overflow and --context-keep" },
    { "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
      "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv "
      "--check-tensors",
      "rope and all else about a model is as the GGUF file says" },
    { "--lora --lora-scaled --lora-init-without-apply --control-vector --control-vector-scaled "
      "--control-vector-layer-range",
      "there are no adapters" },
    { "-mm -mmu -mmdev --mmproj* --no-mmproj* --mtmd-* --image* --video* --audio -mv "
      "--model-vocoder --tts-*",
      "models read and write text only" },
    { "--embedding --embeddings --rerank --reranking --pooling --embd-* --cls-separator "
      "--attention",
      "'quire serve' always has /v1/embeddings, with pooling in requests; it does not rerank" },
    { "--adaptive-target --adaptive-decay -bs --backend-sampling",
      "--help lists the samplers; there is no adaptive-p" },
    { "--dry-sequence-breaker",
      "requests to 'quire serve' have dry_sequence_breakers; else they are llama.cpp's" },
    { "--temp --top-k --top-p --min-p --samplers --sampling-seq --sampler-seq --typical "
      "--typical-p --xtc-* --dry-* --dynatemp-* --mirostat* --top-nsigma --top-n-sigma "
      "--repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty",
      "'quire run', 'quire chat' and 'quire serve' choose tokens by it" },
    { "-l --logit-bias", "requests to 'quire serve' have logit_bias" },
    { "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
      "'quire serve' takes grammar and response_format in requests" },
    { "-e --escape --no-escape",
      "a prompt is taken as it stands; the shell's $'...' writes line breaks" },
    { "--temperature", "--temp T sets it" },
    { "-n --predict --n-predict", "'quire run' has -n, requests have max_tokens and n_predict" },
    { "-s --seed", "'quire run' and 'quire chat' have it, requests have seed" },
    { "-bf --binary-file", "-f reads a file as it is" },
    { "-co --color -v --verbose --verbosity -lv --log-verbosity --log-verbose --log-disable "
      "--log-colors --log-prefix --log-timestamps --no-log-prefix --no-log-timestamps "
      "--log-jsonl --no-log-jsonl --log-prompts-dir --simple-io --no-display-prompt "
      "--display-prompt "
      "--verbose-prompt --perf --no-perf --show-timings --no-show-timings -sp --special -ptc "
      "--print-token-count",
      "the text goes to stdout, figures and messages go to stderr; 'quire serve' has --log-level "
      "and --log-file" },
    { "--warmup --no-warmup", "nothing is computed before the first prompt" },
    { "--ssl-key-file --ssl-cert-file",
      "'quire serve' has --tls-key and --tls-cert" },
    { "-a --alias", "'quire serve' has --model-name" },
    { "-to --timeout",
      "'quire serve' has --max-time for requests, --idle-timeout for connections" },
    { "--api-key-file",
      "'quire serve' has --api-key or QUIRE_API_KEY for one key, and api_keys with key_file in the "
      "file of --config for several" },
    { "--webui* --no-webui* --ui* --no-ui* --path",
      "'quire serve' always has the pages / and /chat" },
    { "--api-prefix --threads-http --metrics --props --media-path --models-* "
      "--no-models-autoload --tools --tools-runtime -ag --agent -no-ag --no-agent "
      "--mcp-servers-* --server-base --cors-credentials --no-cors-credentials --cors-headers "
      "--cors-methods --reuse-port --sse-ping-interval --sleep-idle-seconds --spm-infill --tags",
      "'quire serve --help' lists the server's settings; metrics and /props are always there" },
    { "--kl-divergence --kl-divergence-base --save-all-logits --hellaswag --winogrande "
      "--multiple-choice --ppl-stride --ppl-output-type",
      "'quire perplexity' has --kld, --logits-base and --save-logits" },
    { "-o --output -oe --output-err -pg --n-prompt --n-gen --n-depth --repetitions",
      "'quire bench' has -p, -n, -d, -r and --json" },
};
/* clang-format on */

static bool is_named(const char *name, size_t n_name, const char *word, size_t n)
{
    if (name[n_name - 1] == '*') {
        return n >= n_name - 1 && memcmp(name, word, n_name - 1) == 0;
    }
    if (strncmp(name, "--*", 3) == 0) {
        n_name -= 3;
        return n > 2 + n_name && memcmp(word, "--", 2) == 0 &&
               memcmp(name + 3, word + n - n_name, n_name) == 0;
    }
    return n == n_name && memcmp(name, word, n) == 0;
}

const char *quire_foreign_option(const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        for (const char *name = table[i].names; *name != '\0';) {
            const size_t n_name = strcspn(name, " ");

            if (is_named(name, n_name, word, n)) {
                return table[i].help;
            }
            name += n_name;
            name += strspn(name, " ");
        }
    }
    return NULL;
}
