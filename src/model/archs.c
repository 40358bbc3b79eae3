/* archs.c - see archs.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/archs.h"

#include <string.h>

#include "base/check.h"

/* Parts that nearly all rows share. */
#define PRE_NORMS      (QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM)
#define POST_NORMS     (QUIRE_PART_ATTN_POST_NORM | QUIRE_PART_FFN_POST_NORM)
#define ATTENTION      (QUIRE_PART_BASE | QUIRE_PART_LAST_NORM | QUIRE_PART_QKV)
#define GATED          (QUIRE_PART_FFN_GATE | QUIRE_PART_FFN_UP | QUIRE_PART_FFN_DOWN)
#define LATENT         (QUIRE_PART_BASE | QUIRE_PART_LAST_NORM | QUIRE_PART_LATENT)
#define EXPERTS_SHARED (QUIRE_PART_EXPERTS | QUIRE_PART_EXPERTS_SHARED)
#define DELTA_NETS                                                                                 \
    (ATTENTION | QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM_LATE | QUIRE_PART_QK_NORM |            \
     QUIRE_PART_DELTA_NET)
#define QKV_MAY (QUIRE_PART_QKV_FUSED | QUIRE_PART_QKV_BIAS | QUIRE_PART_QKV_BIAS_FUSED)
#define LLAMA_MAY                                                                                  \
    (QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS | QUIRE_PART_O_BIAS |                     \
     QUIRE_PART_FFN_BIAS | QUIRE_PART_FFN_GATE_BIAS)

static const quire_arch_row rows[QUIRE_ARCH_COUNT] = {
    [QUIRE_ARCH_LLAMA] = { .name = "llama",
                           .models = "Llama 1 to 3.3, Mistral 7B, Mixtral, Yi, SmolLM2, TinyLlama",
                           .rope_type = QUIRE_ROPE_NORMAL,
                           .experts = { .is_there = true,
                                        .is_optional = true,
                                        .is_normalised = true },
                           .needs = ATTENTION | PRE_NORMS | GATED | QUIRE_PART_EXPERTS,
                           .may = LLAMA_MAY },
    [QUIRE_ARCH_QWEN2] = { .name = "qwen2",
                           .models = "Qwen 2, Qwen 2.5, QwQ, DeepSeek-R1-Distill-Qwen",
                           .rope_type = QUIRE_ROPE_NEOX,
                           .needs = ATTENTION | PRE_NORMS | GATED,
                           .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_OUTPUT_BIAS },
    [QUIRE_ARCH_QWEN3] = { .name = "qwen3",
                           .models = "Qwen 3, dense",
                           .rope_type = QUIRE_ROPE_NEOX,
                           .needs = ATTENTION | PRE_NORMS | GATED | QUIRE_PART_QK_NORM,
                           .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_QUIRE] = { .name = "quire",
                           .models = "models trained by quire train (schemes.md)",
                           .rope_type = QUIRE_ROPE_NEOX,
                           .needs = ATTENTION | PRE_NORMS | GATED,
                           .may = QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS | QUIRE_PART_QK_NORM |
                                  QUIRE_PART_KV_MAP },
    [QUIRE_ARCH_GEMMA] = { .name = "gemma",
                           .models = "Gemma, CodeGemma",
                           .rope_type = QUIRE_ROPE_NEOX,
                           .has_partial_rope = true,
                           .act = QUIRE_ACT_GELU,
                           .embd_scale = QUIRE_EMBD_SCALE_SQRT,
                           .needs = ATTENTION | PRE_NORMS | GATED,
                           .may = QKV_MAY },
    [QUIRE_ARCH_GEMMA2] = { .name = "gemma2",
                            .models = "Gemma 2",
                            .rope_type = QUIRE_ROPE_NEOX,
                            .has_partial_rope = true,
                            .window = { .is_there = true,
                                        .tokens = 4096,
                                        .pattern = 2,
                                        .rope = QUIRE_WINDOW_ROPE_LIKE },
                            .act = QUIRE_ACT_GELU,
                            .embd_scale = QUIRE_EMBD_SCALE_SQRT,
                            .logit_softcap = 30.0f,
                            .wide_scale_layers = 46, /* the model of 27 B */
                            .reads = QUIRE_READS_ATTN_SOFTCAP | QUIRE_READS_LOGIT_SOFTCAP,
                            .needs = ATTENTION | PRE_NORMS | POST_NORMS | GATED,
                            .may = QKV_MAY },
    [QUIRE_ARCH_GEMMA3] = { .name = "gemma3",
                            .models = "Gemma 3, text",
                            .rope_type = QUIRE_ROPE_NEOX,
                            .has_partial_rope = true,
                            .window = { .is_there = true,
                                        .is_optional = true,
                                        .pattern = 6,
                                        .rope = QUIRE_WINDOW_ROPE_OWN },
                            .act = QUIRE_ACT_GELU,
                            .embd_scale = QUIRE_EMBD_SCALE_SQRT,
                            .wide_scale_layers = 62, /* the model of 27 B */
                            .reads = QUIRE_READS_LOGIT_SOFTCAP,
                            .needs =
                                ATTENTION | PRE_NORMS | POST_NORMS | GATED | QUIRE_PART_QK_NORM,
                            .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_PHI3] = { .name = "phi3",
                          .models = "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
                          .rope_type = QUIRE_ROPE_NEOX,
                          .has_partial_rope = true,
                          .needs =
                              ATTENTION | PRE_NORMS | QUIRE_PART_FFN_FUSED | QUIRE_PART_FFN_DOWN,
                          .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FACTORS },
    [QUIRE_ARCH_MISTRAL3] = { .name = "mistral3",
                              .models = "Mistral Small 3.1 and 3.2, Ministral 3",
                              .rope_type = QUIRE_ROPE_NORMAL,
                              .reads = QUIRE_READS_TEMPERATURE | QUIRE_READS_YARN,
                              .needs = ATTENTION | PRE_NORMS | GATED,
                              .may = LLAMA_MAY },
    [QUIRE_ARCH_SMOLLM3] = { .name = "smollm3",
                             .models = "SmolLM3",
                             .rope_type = QUIRE_ROPE_NORMAL,
                             .rope_where = QUIRE_ROPE_NOT_EVERY_4TH,
                             .needs = ATTENTION | PRE_NORMS | GATED,
                             .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_GRANITE] = { .name = "granite",
                             .models = "Granite 3.x, Granite 4 dense",
                             .rope_type = QUIRE_ROPE_NORMAL,
                             .rope_where = QUIRE_ROPE_FINETUNED,
                             .embd_scale = QUIRE_EMBD_SCALE_KEY,
                             .logit_scale = QUIRE_LOGIT_SCALE_OVER,
                             .reads = QUIRE_READS_RESIDUAL_SCALE | QUIRE_READS_ATTN_SCALE |
                                      QUIRE_READS_DEEPSTACK,
                             .needs = ATTENTION | PRE_NORMS | GATED,
                             .may = LLAMA_MAY },
    [QUIRE_ARCH_OLMO2] = { .name = "olmo2",
                           .models = "OLMo 2, Olmo 3",
                           .rope_type = QUIRE_ROPE_NEOX,
                           .window = { .is_there = true,
                                       .is_optional = true,
                                       .pattern = 4,
                                       .rope = QUIRE_WINDOW_ROPE_UNSCALED },
                           .needs = ATTENTION | POST_NORMS | GATED | QUIRE_PART_QK_NORM_ROW |
                                    QUIRE_PART_OUTPUT,
                           .may = QKV_MAY },
    [QUIRE_ARCH_GLM4] = { .name = "glm4",
                          .models = "GLM-4-0414, GLM-Z1",
                          .rope_type = QUIRE_ROPE_NORMAL,
                          .has_partial_rope = true,
                          .reads = QUIRE_READS_NEXTN | QUIRE_READS_SECTIONS,
                          .needs = ATTENTION | PRE_NORMS | POST_NORMS | QUIRE_PART_FFN_FUSED |
                                   QUIRE_PART_FFN_DOWN,
                          .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_COHERE2] = { .name = "cohere2",
                             .models = "Command R7B, Command A",
                             .rope_type = QUIRE_ROPE_NORMAL,
                             .has_partial_rope = true,
                             .rope_where = QUIRE_ROPE_WINDOWED,
                             .window = { .is_there = true, .pattern = 4 },
                             .norm = QUIRE_NORM_LAYER,
                             .is_parallel = true,
                             .logit_scale = QUIRE_LOGIT_SCALE_TIMES,
                             .needs = ATTENTION | QUIRE_PART_ATTN_NORM | GATED,
                             .may = QKV_MAY },
    [QUIRE_ARCH_EXAONE4] = { .name = "exaone4",
                             .models = "EXAONE 4",
                             .rope_type = QUIRE_ROPE_NEOX,
                             .rope_where = QUIRE_ROPE_WINDOWED_IF_ANY,
                             .window = { .is_there = true,
                                         .tokens = 4096,
                                         .pattern = 4,
                                         .in_layers = 64 }, /* the model of 32 B */
                             .reads = QUIRE_READS_NEXTN,
                             .needs = ATTENTION | POST_NORMS | GATED | QUIRE_PART_QK_NORM,
                             .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS },
    [QUIRE_ARCH_STARCODER2] = { .name = "starcoder2",
                                .models = "StarCoder 2, Granite Code 20B and 34B",
                                .rope_type = QUIRE_ROPE_NEOX,
                                .norm = QUIRE_NORM_LAYER,
                                .ffn = QUIRE_FFN_PLAIN,
                                .act = QUIRE_ACT_GELU,
                                .needs = ATTENTION | PRE_NORMS | QUIRE_PART_NORM_BIAS |
                                         QUIRE_PART_O_BIAS | QUIRE_PART_FFN_UP |
                                         QUIRE_PART_FFN_DOWN | QUIRE_PART_FFN_BIAS,
                                .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_SEED_OSS] = { .name = "seed_oss",
                              .models = "Seed-OSS",
                              .rope_type = QUIRE_ROPE_NEOX,
                              .needs = ATTENTION | QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM_LATE |
                                       GATED,
                              .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_HUNYUAN_DENSE] = { .name = "hunyuan-dense",
                                   .models = "Hunyuan 0.5B to 7B",
                                   .rope_type = QUIRE_ROPE_NEOX,
                                   .qk_norm = QUIRE_QK_NORM_ROPED,
                                   .reads = QUIRE_READS_ROPE_ALPHA | QUIRE_READS_ONE_EXPERT |
                                            QUIRE_READS_SECTIONS,
                                   .needs = ATTENTION | PRE_NORMS | GATED | QUIRE_PART_QK_NORM,
                                   .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_ERNIE4_5] = { .name = "ernie4_5",
                              .models = "ERNIE 4.5 0.3B",
                              .rope_type = QUIRE_ROPE_NORMAL,
                              .needs = ATTENTION | PRE_NORMS | GATED,
                              .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_INTERNLM2] = { .name = "internlm2",
                               .models = "InternLM 2, InternLM 2.5",
                               .rope_type = QUIRE_ROPE_NORMAL,
                               .needs = ATTENTION | PRE_NORMS | GATED | QUIRE_PART_OUTPUT,
                               .may = QKV_MAY },
    [QUIRE_ARCH_APERTUS] = { .name = "apertus",
                             .models = "Apertus",
                             .rope_type = QUIRE_ROPE_NEOX,
                             .ffn = QUIRE_FFN_PLAIN,
                             .act = QUIRE_ACT_XIELU,
                             .reads = QUIRE_READS_XIELU,
                             .needs = ATTENTION | PRE_NORMS | QUIRE_PART_QK_NORM |
                                      QUIRE_PART_FFN_UP | QUIRE_PART_FFN_DOWN | QUIRE_PART_OUTPUT,
                             .may = QKV_MAY | QUIRE_PART_O_BIAS | QUIRE_PART_ROPE_FREQS },
    [QUIRE_ARCH_ARCEE] = { .name = "arcee",
                           .models = "AFM 4.5B",
                           .rope_type = QUIRE_ROPE_NORMAL,
                           .ffn = QUIRE_FFN_PLAIN,
                           .act = QUIRE_ACT_RELU2,
                           .needs = ATTENTION | PRE_NORMS | QUIRE_PART_FFN_UP | QUIRE_PART_FFN_DOWN,
                           .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS },
    [QUIRE_ARCH_COMMAND_R] = { .name = "command-r",
                               .models = "Command R, Aya Expanse (not Command R+)",
                               .rope_type = QUIRE_ROPE_NORMAL,
                               .has_partial_rope = true,
                               .norm = QUIRE_NORM_LAYER,
                               .is_parallel = true,
                               .logit_scale = QUIRE_LOGIT_SCALE_TIMES,
                               .needs = ATTENTION | QUIRE_PART_ATTN_NORM | GATED,
                               .may = QKV_MAY },
    [QUIRE_ARCH_EXAONE] = { .name = "exaone",
                            .models = "EXAONE 3, EXAONE 3.5, EXAONE Deep",
                            .rope_type = QUIRE_ROPE_NEOX,
                            .needs = ATTENTION | PRE_NORMS | GATED,
                            .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS },
    [QUIRE_ARCH_NEMOTRON] = { .name = "nemotron",
                              .models = "Nemotron 4, Nemotron-Mini, Minitron",
                              .rope_type = QUIRE_ROPE_NEOX,
                              .has_partial_rope = true,
                              .norm = QUIRE_NORM_LAYER,
                              .ffn = QUIRE_FFN_PLAIN,
                              .act = QUIRE_ACT_RELU2,
                              .needs = ATTENTION | PRE_NORMS | QUIRE_PART_NORM_BIAS |
                                       QUIRE_PART_FFN_UP | QUIRE_PART_FFN_DOWN | QUIRE_PART_OUTPUT,
                              .may = QKV_MAY | QUIRE_PART_O_BIAS | QUIRE_PART_FFN_BIAS },
    [QUIRE_ARCH_QWEN3MOE] = { .name = "qwen3moe",
                              .models = "Qwen 3 with experts (30B-A3B, 235B-A22B), Qwen3-Coder",
                              .rope_type = QUIRE_ROPE_NEOX,
                              .experts = { .is_there = true,
                                           .ff = QUIRE_EXPERT_FF_SHARE,
                                           .is_normalised = true },
                              .needs =
                                  ATTENTION | PRE_NORMS | QUIRE_PART_QK_NORM | QUIRE_PART_EXPERTS,
                              .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_GPT_OSS] = { .name = "gpt-oss",
                             .models = "gpt-oss 20B and 120B",
                             .rope_type = QUIRE_ROPE_NEOX,
                             .window = { .is_there = true,
                                         .pattern = 2,
                                         .rope = QUIRE_WINDOW_ROPE_LIKE },
                             .act = QUIRE_ACT_CLAMPED,
                             .experts = { .is_there = true,
                                          .ff = QUIRE_EXPERT_FF_KEY,
                                          .gating = QUIRE_GATING_CHOSEN },
                             .needs = ATTENTION | QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM_LATE |
                                      QUIRE_PART_O_BIAS | QUIRE_PART_SINKS | QUIRE_PART_EXPERTS |
                                      QUIRE_PART_EXPERTS_BIAS | QUIRE_PART_OUTPUT,
                             .may = QKV_MAY },
    [QUIRE_ARCH_QWEN2MOE] = { .name = "qwen2moe",
                              .models = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
                              .rope_type = QUIRE_ROPE_NEOX,
                              .experts = { .is_there = true,
                                           .ff = QUIRE_EXPERT_FF_SHARE,
                                           .shared = QUIRE_EXPERT_SHARED_ALWAYS },
                              .needs = ATTENTION | PRE_NORMS | EXPERTS_SHARED |
                                       QUIRE_PART_EXPERTS_SHARED_GATE | QUIRE_PART_OUTPUT,
                              .may = QKV_MAY },
    [QUIRE_ARCH_GRANITEMOE] = { .name = "granitemoe",
                                .models = "Granite 3.x with experts (1B-A400M, 3B-A800M)",
                                .rope_type = QUIRE_ROPE_NORMAL,
                                .experts = { .is_there = true,
                                             .is_optional = true,
                                             .shared = QUIRE_EXPERT_SHARED_LENGTH,
                                             .is_normalised = true },
                                .embd_scale = QUIRE_EMBD_SCALE_KEY,
                                .logit_scale = QUIRE_LOGIT_SCALE_OVER,
                                .reads = QUIRE_READS_RESIDUAL_SCALE | QUIRE_READS_ATTN_SCALE,
                                .needs = ATTENTION | PRE_NORMS | GATED | EXPERTS_SHARED,
                                .may = LLAMA_MAY },
    [QUIRE_ARCH_OLMOE] = { .name = "olmoe",
                           .models = "OLMoE",
                           .rope_type = QUIRE_ROPE_NEOX,
                           .experts = { .is_there = true },
                           .needs = ATTENTION | PRE_NORMS | QUIRE_PART_QK_NORM_ROW |
                                    QUIRE_PART_EXPERTS | QUIRE_PART_OUTPUT,
                           .may = QKV_MAY },
    [QUIRE_ARCH_GLM4MOE] = { .name = "glm4moe",
                             .models = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
                             .rope_type = QUIRE_ROPE_NEOX,
                             .has_partial_rope = true,
                             .experts = { .is_there = true,
                                          .ff = QUIRE_EXPERT_FF_KEY,
                                          .shared = QUIRE_EXPERT_SHARED_COUNT,
                                          .gating = QUIRE_GATING_SIGMOID,
                                          .reads =
                                              QUIRE_EXPERTS_READ_GATING | QUIRE_EXPERTS_READ_NORM |
                                              QUIRE_EXPERTS_READ_SCALE | QUIRE_EXPERTS_READ_LEAD },
                             .reads = QUIRE_READS_NEXTN | QUIRE_READS_SECTIONS,
                             .needs = ATTENTION | QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_NORM_LATE |
                                      GATED | EXPERTS_SHARED | QUIRE_PART_EXPERTS_CHOICE_BIAS,
                             .may = QKV_MAY | QUIRE_PART_QK_NORM | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_ERNIE4_5_MOE] = { .name = "ernie4_5-moe",
                                  .models = "ERNIE 4.5 with experts (21B-A3B, 300B-A47B)",
                                  .rope_type = QUIRE_ROPE_NORMAL,
                                  .experts = { .is_there = true,
                                               .ff = QUIRE_EXPERT_FF_KEY,
                                               .shared = QUIRE_EXPERT_SHARED_LENGTH,
                                               .is_normalised = true,
                                               .reads = QUIRE_EXPERTS_READ_LEAD |
                                                        QUIRE_EXPERTS_READ_STEP },
                                  .reads = QUIRE_READS_SECTIONS,
                                  .needs = ATTENTION | PRE_NORMS | GATED | EXPERTS_SHARED,
                                  .may = QKV_MAY | QUIRE_PART_O_BIAS | QUIRE_PART_OUTPUT |
                                         QUIRE_PART_EXPERTS_CHOICE_BIAS },
    [QUIRE_ARCH_HUNYUAN_MOE] = { .name = "hunyuan-moe",
                                 .models = "Hunyuan-A13B",
                                 .rope_type = QUIRE_ROPE_NEOX,
                                 .qk_norm = QUIRE_QK_NORM_ROPED,
                                 .experts = { .is_there = true,
                                              .shared = QUIRE_EXPERT_SHARED_ALWAYS,
                                              .is_normalised = true },
                                 .needs =
                                     ATTENTION | PRE_NORMS | EXPERTS_SHARED | QUIRE_PART_QK_NORM,
                                 .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_LFM2] = { .name = "lfm2",
                          .models = "LFM2 350M to 2.6B, LFM2.5",
                          .rope_type = QUIRE_ROPE_NEOX,
                          .window = { .is_there = true, .is_optional = true },
                          .recurrent = QUIRE_MIXER_SHORT_CONV,
                          .needs = QUIRE_PART_BASE | QUIRE_PART_LAST_NORM_EMBD | QUIRE_PART_QKV |
                                   PRE_NORMS | GATED | QUIRE_PART_QK_NORM | QUIRE_PART_SHORT_CONV,
                          .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_DEEPSEEK2] = { .name = "deepseek2",
                               .models = "DeepSeek-V2, V2-Lite, V3, R1, Kimi K2, GLM-4.7-Flash, "
                                         "Moonlight",
                               .rope_type = QUIRE_ROPE_NORMAL,
                               .has_partial_rope = true,
                               .latent = QUIRE_LATENT_SPLIT,
                               .experts = { .is_there = true,
                                            .ff = QUIRE_EXPERT_FF_KEY,
                                            .shared = QUIRE_EXPERT_SHARED_COUNT,
                                            .reads = QUIRE_EXPERTS_READ_GATING |
                                                     QUIRE_EXPERTS_READ_NORM |
                                                     QUIRE_EXPERTS_READ_SCALE |
                                                     QUIRE_EXPERTS_READ_LEAD },
                               .reads = QUIRE_READS_NEXTN | QUIRE_READS_LOG_MUL |
                                        QUIRE_READS_TEMPERATURE | QUIRE_READS_TEMPERATURE_LENGTH,
                               .needs = LATENT | PRE_NORMS | GATED | EXPERTS_SHARED,
                               .may = QUIRE_PART_OUTPUT | QUIRE_PART_EXPERTS_CHOICE_BIAS |
                                      QUIRE_PART_EXPERTS_FUSED },
    [QUIRE_ARCH_MINICPM3] = { .name = "minicpm3",
                              .models = "MiniCPM3-4B",
                              .rope_type = QUIRE_ROPE_NEOX,
                              .has_partial_rope = true,
                              .latent = QUIRE_LATENT_JOINT,
                              .has_depth_scales = true,
                              .needs = LATENT | PRE_NORMS | GATED,
                              .may = QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FACTORS },
    [QUIRE_ARCH_LFM2MOE] = { .name = "lfm2moe",
                             .models = "LFM2 with experts (8B-A1B, 24B-A2B)",
                             .rope_type = QUIRE_ROPE_NEOX,
                             .recurrent = QUIRE_MIXER_SHORT_CONV,
                             .experts = { .is_there = true,
                                          .ff = QUIRE_EXPERT_FF_KEY,
                                          .gating = QUIRE_GATING_SIGMOID,
                                          .is_normalised = true,
                                          .reads =
                                              QUIRE_EXPERTS_READ_GATING | QUIRE_EXPERTS_READ_LEAD },
                             .needs = QUIRE_PART_BASE | QUIRE_PART_LAST_NORM_EMBD | QUIRE_PART_QKV |
                                      PRE_NORMS | GATED |
                                      QUIRE_PART_QK_NORM | QUIRE_PART_SHORT_CONV |
                                      QUIRE_PART_EXPERTS | QUIRE_PART_EXPERTS_CHOICE_BIAS,
                             .may = QKV_MAY | QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_QWEN3NEXT] = { .name = "qwen3next",
                               .models = "Qwen3-Next 80B-A3B, Qwen3-Coder-Next",
                               .rope_type = QUIRE_ROPE_NEOX,
                               .has_partial_rope = true,
                               .recurrent = QUIRE_MIXER_DELTA_NET,
                               .has_q_gate = true,
                               .experts = { .is_there = true,
                                            .ff = QUIRE_EXPERT_FF_SHARE,
                                            .shared = QUIRE_EXPERT_SHARED_ALWAYS,
                                            .is_normalised = true },
                               .reads = QUIRE_READS_NEXTN,
                               .needs = DELTA_NETS | EXPERTS_SHARED |
                                        QUIRE_PART_EXPERTS_SHARED_GATE | QUIRE_PART_DELTA_JOINT,
                               .may = QUIRE_PART_OUTPUT | QUIRE_PART_EXPERTS_FUSED },
    [QUIRE_ARCH_QWEN35] = { .name = "qwen35",
                            .models = "Qwen 3.5 and 3.6, dense, text",
                            .rope_type = QUIRE_ROPE_NEOX,
                            .has_partial_rope = true,
                            .recurrent = QUIRE_MIXER_DELTA_NET,
                            .has_q_gate = true,
                            .reads = QUIRE_READS_NEXTN | QUIRE_READS_MROPE,
                            .needs = DELTA_NETS | GATED | QUIRE_PART_DELTA_GATES,
                            .may = QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_QWEN35MOE] = { .name = "qwen35moe",
                               .models = "Qwen 3.5 and 3.6 with experts, text",
                               .rope_type = QUIRE_ROPE_NEOX,
                               .has_partial_rope = true,
                               .recurrent = QUIRE_MIXER_DELTA_NET,
                               .has_q_gate = true,
                               .experts = { .is_there = true,
                                            .ff = QUIRE_EXPERT_FF_SHARE,
                                            .shared = QUIRE_EXPERT_SHARED_ALWAYS,
                                            .is_normalised = true },
                               .reads = QUIRE_READS_NEXTN | QUIRE_READS_MROPE,
                               .needs = DELTA_NETS | EXPERTS_SHARED |
                                        QUIRE_PART_EXPERTS_SHARED_GATE | QUIRE_PART_DELTA_GATES,
                               .may = QUIRE_PART_OUTPUT | QUIRE_PART_EXPERTS_FUSED },
    [QUIRE_ARCH_GRANITE_HYBRID] = { .name = "granitehybrid",
                                    .models = "Granite 4 H (350M, 1B, Micro, Tiny, Small), Bamba",
                                    .rope_type = QUIRE_ROPE_NORMAL,
                                    .has_partial_rope = true,
                                    .rope_where = QUIRE_ROPE_FINETUNED,
                                    .recurrent = QUIRE_MIXER_MAMBA,
                                    .experts = { .is_there = true,
                                                 .is_optional = true,
                                                 .shared = QUIRE_EXPERT_SHARED_LENGTH,
                                                 .is_normalised = true },
                                    .embd_scale = QUIRE_EMBD_SCALE_KEY,
                                    .logit_scale = QUIRE_LOGIT_SCALE_OVER_IF_ANY,
                                    .reads = QUIRE_READS_RESIDUAL_SCALE | QUIRE_READS_ATTN_SCALE,
                                    .needs = ATTENTION | PRE_NORMS | GATED | EXPERTS_SHARED |
                                             QUIRE_PART_MAMBA | QUIRE_PART_MAMBA_NORM,
                                    .may = LLAMA_MAY },
    [QUIRE_ARCH_NEMOTRON_H] = { .name = "nemotron_h",
                                .models = "Nemotron-H, Nemotron Nano 2 (9B, 12B)",
                                .rope_type = QUIRE_ROPE_NORMAL,
                                .rope_where = QUIRE_ROPE_NOWHERE,
                                .recurrent = QUIRE_MIXER_MAMBA,
                                .is_single = true,
                                .ffn = QUIRE_FFN_PLAIN,
                                .act = QUIRE_ACT_RELU2,
                                .reads = QUIRE_READS_EPS_TWICE,
                                .needs = ATTENTION | QUIRE_PART_ATTN_NORM | QUIRE_PART_FFN_UP |
                                         QUIRE_PART_FFN_DOWN | QUIRE_PART_MAMBA |
                                         QUIRE_PART_MAMBA_NORM,
                                .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_O_BIAS |
                                       QUIRE_PART_FFN_BIAS },
    [QUIRE_ARCH_FALCON_H1] = { .name = "falcon-h1",
                               .models = "Falcon-H1 (0.5B to 34B)",
                               .rope_type = QUIRE_ROPE_NEOX,
                               .has_partial_rope = true,
                               .recurrent = QUIRE_MIXER_BOTH,
                               .needs = ATTENTION | QUIRE_PART_ATTN_NORM |
                                        QUIRE_PART_FFN_NORM_BARE | GATED | QUIRE_PART_MAMBA,
                               .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_FFN_BIAS |
                                      QUIRE_PART_FFN_GATE_BIAS | QUIRE_PART_MAMBA_NORM },
    [QUIRE_ARCH_GEMMA4] = { .name = "gemma4",
                            .models = "Gemma 4, text (E2B, E4B, 26B-A4B, 31B)",
                            .rope_type = QUIRE_ROPE_NEOX,
                            .window = { .is_there = true,
                                        .pattern = 6,
                                        .rope = QUIRE_WINDOW_ROPE_OWN },
                            .has_v_norm = true,
                            .has_layer_sizes = true,
                            .has_shared_kv = true,
                            .has_full_factors = true,
                            .attn_scale = 1.0f,
                            .act = QUIRE_ACT_GELU,
                            .experts = { .is_there = true,
                                         .is_optional = true,
                                         .is_beside = true,
                                         .ff = QUIRE_EXPERT_FF_KEY,
                                         .is_normalised = true },
                            .embd_scale = QUIRE_EMBD_SCALE_SQRT,
                            .logit_softcap = 30.0f,
                            .reads = QUIRE_READS_LOGIT_SOFTCAP,
                            .needs = QUIRE_PART_BASE | QUIRE_PART_LAST_NORM | QUIRE_PART_QK |
                                     QUIRE_PART_QK_NORM | PRE_NORMS | POST_NORMS | GATED |
                                     QUIRE_PART_ROPE_FREQS | QUIRE_PART_EXPERTS |
                                     QUIRE_PART_EXPERTS_BESIDE,
                            .may = QUIRE_PART_V | QUIRE_PART_OUTPUT | QUIRE_PART_LAYER_EMBD |
                                   QUIRE_PART_OUT_SCALE | QUIRE_PART_EXPERTS_FUSED |
                                   QUIRE_PART_EXPERTS_SCALE },
    [QUIRE_ARCH_GEMMA3N] = { .name = "gemma3n",
                             .models = "Gemma 3n, text (E2B, E4B)",
                             .rope_type = QUIRE_ROPE_NEOX,
                             .window = { .is_there = true,
                                         .pattern = 5,
                                         .rope = QUIRE_WINDOW_ROPE_OWN },
                             .has_v_norm = true,
                             .has_shared_kv = true,
                             .own_kv_layers = 20,
                             .has_streams = true,
                             .sparse_layers = 10,
                             .attn_scale = 1.0f,
                             .act = QUIRE_ACT_GELU,
                             .embd_scale = QUIRE_EMBD_SCALE_SQRT,
                             .logit_softcap = 30.0f,
                             .needs = ATTENTION | PRE_NORMS | POST_NORMS |
                                      GATED | QUIRE_PART_QK_NORM | QUIRE_PART_LAYER_EMBD |
                                      QUIRE_PART_STREAMS,
                             .may = QUIRE_PART_OUTPUT },
    [QUIRE_ARCH_LLAMA4] = { .name = "llama4",
                            .models = "Llama 4 Scout and Maverick, text",
                            .rope_type = QUIRE_ROPE_NORMAL,
                            .rope_where = QUIRE_ROPE_NOT_EVERY_4TH,
                            .window = { .is_there = true,
                                        .is_chunked = true,
                                        .tokens = 8192,
                                        .pattern = 4,
                                        .rope = QUIRE_WINDOW_ROPE_LIKE },
                            .mean_qk_experts = 128, /* Maverick */
                            .unroped_temperature = 0.1f,
                            .experts = { .is_there = true,
                                         .ff = QUIRE_EXPERT_FF_KEY,
                                         .shared = QUIRE_EXPERT_SHARED_ONE,
                                         .gating = QUIRE_GATING_SIGMOID,
                                         .chooses_by_logits = true,
                                         .weighs_input = true,
                                         .reads = QUIRE_EXPERTS_READ_STEPS },
                            .needs = ATTENTION | PRE_NORMS | GATED | EXPERTS_SHARED,
                            .may = QKV_MAY | QUIRE_PART_OUTPUT | QUIRE_PART_ROPE_FREQS },
};

const quire_arch_row *quire_arch_row_get(quire_arch arch)
{
    QUIRE_CHECK((unsigned)arch < QUIRE_ARCH_COUNT);
    return &rows[arch];
}

quire_arch quire_arch_find(const char *name)
{
    unsigned i = 0;

    while (i < QUIRE_ARCH_COUNT && strcmp(rows[i].name, name) != 0) {
        i++;
    }
    return (quire_arch)i;
}

/* ---- the nearest name ---- */

#define NAME_MAX_CHARS 32u
#define EDITS_MAX      2u
#define COMMON_MIN     4u

static size_t common_prefix(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] != '\0' && a[n] == b[n]) {
        n++;
    }
    return n;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to insert, delete or replace (Levenshtein's distance). */
static size_t edits(const char *a, const char *b)
{
    size_t row[NAME_MAX_CHARS + 1];
    const size_t n = strlen(b);

    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t before = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            const size_t replaced = before + (a[i - 1] != b[j - 1] ? 1 : 0);

            before = row[j];
            row[j] = least(replaced, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

const char *quire_arch_nearest(const char *name)
{
    const char *best = NULL;
    size_t best_common = 0, best_edits = SIZE_MAX;

    if (strlen(name) > NAME_MAX_CHARS) {
        return NULL;
    }
    for (size_t i = 0; i < QUIRE_ARCH_COUNT; i++) {
        const size_t common = common_prefix(name, rows[i].name);
        const size_t distance = edits(name, rows[i].name);
        const bool is_near = common >= COMMON_MIN || distance <= EDITS_MAX;

        if (is_near && (common > best_common || (common == best_common && distance < best_edits))) {
            best = rows[i].name;
            best_common = common;
            best_edits = distance;
        }
    }
    return best;
}
