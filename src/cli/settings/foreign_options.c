/* foreign_options.c - see foreign_options.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/foreign_options.h"

#include <string.h>

typedef struct foreign {
    const char *names; /* with a blank between them */
    const char *help;
} foreign;

/* clang-format off */
static const foreign table[] = {
    { "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev "
      "--device --list-devices -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe "
      "-nkvo --no-kv-offload --no-op-offload --rpc -fit --fit",
      "'quire run', 'chat', 'serve', 'perplexity' and 'bench' have --device for KV pages and "
      "attention, and -ngl for layers of the model" },
    { "--retain --prefill-chunk --attend",
      "'quire run', 'quire chat' and 'quire perplexity' can drop tokens of a text, as can 'quire "
      "serve' with --retain and --retain-chunk" },
    { "-fa --flash-attn",
      "attention always reads the KV cache tile by tile; there is no other kind to choose" },
    { "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -hfv -hfrv --hf-repo-v -mu --model-url "
      "-dr --docker-repo --offline",
      "'quire pull hf:OWNER/REPO' fetches a model, and -m takes its name" },
    { "-cnv --conversation -no-cnv --no-conversation -i --interactive -if --interactive-first -st "
      "--single-turn -mli --multiline-input -r --reverse-prompt --in-prefix --in-suffix",
      "'quire chat' is a conversation, 'quire run' writes on from a prompt" },
    { "-sys --system-prompt -sysf --system-prompt-file",
      "'quire chat' has --system TEXT" },
    { "--jinja --no-jinja --chat-template-file --chat-template-kwargs --reasoning-format "
      "--reasoning-budget --skip-chat-parsing --prefill-assistant --no-prefill-assistant",
      "'quire chat' and 'quire serve' run the model's chat template; they have --chat-template "
      "NAME and --chat-template-file FILE, and requests have chat_template_kwargs, "
      "reasoning_format and reasoning_budget" },
    { "--mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io --no-repack -mmp",
      "weights are mapped from the file or copied for faster products, as suits them; 'quire "
      "serve' has --lock-memory for KV pages" },
    { "-ctk --cache-type-k -ctv --cache-type-v",
      "--kv K:V sets the formats of K and V" },
    { "-ctkd --cache-type-k-draft -ctvd --cache-type-v-draft -md --model-draft --draft --draft-n "
      "--draft-max --draft-min --draft-n-min --draft-p-min -cd --ctx-size-draft -ngld -hfd "
      "--spec-type -lcs -lcd",
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
    { "-kvu --kv-unified -no-kvu --no-kv-unified -dt --defrag-thold",
      "KV pages are one pool for all sequences" },
    { "-cram --cache-ram --cache-reuse -lpc --slots --no-slots -sps --slot-prompt-similarity "
      "--slot-save-path --cache-prompt --no-cache-prompt -ctxcp --ctx-checkpoints --swa-full",
      "'quire serve' finds every cached prefix by its tokens; --cache-memory-ratio or --kv-budget "
      "sets its memory" },
    { "--prompt-cache --prompt-cache-all --prompt-cache-ro",
      "'quire serve' and 'quire chat' keep the KV of earlier prompts while they run" },
    { "--context-shift --no-context-shift --keep",
      "'quire run', 'quire chat' and 'quire serve' have --context-overflow and --context-keep" },
    { "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
      "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv "
      "--check-tensors",
      "rope and all else about a model is as the GGUF file says" },
    { "--lora --lora-scaled --lora-init-without-apply --control-vector --control-vector-scaled "
      "--control-vector-layer-range",
      "there are no adapters" },
    { "-mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload "
      "--no-mmproj-offload --image --audio -mv --model-vocoder --tts-use-guide-tokens",
      "models read and write text only" },
    { "--embedding --embeddings --rerank --reranking --pooling --embd-normalize --attention",
      "'quire serve' always has /v1/embeddings, with pooling in requests; it does not rerank" },
    { "--samplers --sampling-seq --sampler-seq --typical --xtc-probability --xtc-threshold "
      "--dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n "
      "--dry-sequence-breaker --dynatemp-range --dynatemp-exp --mirostat --mirostat-lr "
      "--mirostat-ent --top-nsigma --top-n-sigma --adaptive-target --adaptive-decay -bs",
      "tokens are chosen by --temp, --top-k, --top-p and --min-p" },
    { "--repeat-last-n --repeat-penalty --presence-penalty --frequency-penalty -l --logit-bias",
      "'quire serve' has penalties, and logit_bias in requests" },
    { "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
      "'quire serve' takes grammar and response_format in requests" },
    { "-e --escape --no-escape",
      "a prompt is taken as it stands; the shell's $'...' writes line breaks" },
    { "--temperature", "--temp T sets it" },
    { "-bf --binary-file", "-f reads a file as it is" },
    { "-co --color -v --verbose --verbosity -lv --log-verbosity --log-verbose --log-disable "
      "--log-colors --log-prefix --log-timestamps --simple-io --no-display-prompt --display-prompt "
      "--verbose-prompt --perf --no-perf --show-timings --no-show-timings -sp --special -ptc "
      "--print-token-count",
      "the text goes to stdout, figures and messages go to stderr" },
    { "--warmup --no-warmup", "nothing is computed before the first prompt" },
    { "--ssl-key-file --ssl-cert-file",
      "'quire serve' has --tls-key and --tls-cert" },
    { "-a --alias", "'quire serve' has --model-name" },
    { "-to --timeout",
      "'quire serve' has --max-time for requests, --idle-timeout for connections" },
    { "--api-key-file --path --api-prefix --webui --no-webui --threads-http --metrics --props "
      "--media-path --models-dir --models-max --tools",
      "'quire serve --help' lists the server's settings; metrics and /props are always there" },
    { "--kl-divergence --kl-divergence-base --save-all-logits --hellaswag --winogrande "
      "--multiple-choice --ppl-stride --ppl-output-type",
      "'quire perplexity' has --kld, --logits-base and --save-logits" },
    { "-oe --output-err -pg --n-prompt --n-gen --n-depth --repetitions",
      "'quire bench' has -p, -n, -d, -r and --json" },
};
/* clang-format on */

const char *quire_foreign_option(const char *word, size_t n)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        for (const char *name = table[i].names; *name != '\0';) {
            const size_t n_name = strcspn(name, " ");

            if (n_name == n && memcmp(name, word, n) == 0) {
                return table[i].help;
            }
            name += n_name;
            name += strspn(name, " ");
        }
    }
    return NULL;
}
