/* describe_experts.c - the experts of a model: their number and sizes, and how they are chosen.
 *
 * The meaning of every key and the default of every absent one are libllama's
 * (src/models/<name>.cpp at ggml 0.25.1).
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/archs.h"
#include "model/describe_internal.h"
#include "model/gguf_keys.h"

#define FF_MAX (1u << 20)

/* libllama's numbers of expert_gating_func. */
enum {
    GATING_NONE,
    GATING_SOFTMAX,
    GATING_SIGMOID,
    GATING_CHOSEN,
    GATING_MAX = GATING_CHOSEN
};

/* The state that the functions below share. */
typedef struct experts {
    const quire_gguf *file;
    const quire_expert_rule *rule;
    quire_model_desc *desc;
    quire_error *err;
} experts;

static int u32_get(const experts *x, const char *suffix, quire_gguf_range range, uint32_t *value)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    return quire_gguf_get_u32(x->file, quire_gguf_key(key, x->desc->arch_name, suffix), range,
                              value, x->err);
}

/* A number that may also come as an array of a number per layer. */
static int by_layer_get(const experts *x, const char *suffix, quire_gguf_range range,
                        uint32_t *value)
{
    char key[QUIRE_GGUF_KEY_NAME_MAX];

    (void)quire_gguf_key(key, x->desc->arch_name, suffix);
    return quire_gguf_get_u32_or_array(x->file, key, x->desc->n_layer_file, range, value, x->err);
}

/* How many experts there are, and how many a row takes; 0 experts: a model without. */
static int numbers_get(const experts *x)
{
    quire_router *router = &x->desc->experts.router;
    const bool is_optional = x->rule == NULL || x->rule->is_optional;
    const bool may_be_one =
        (quire_arch_row_get(x->desc->arch)->reads & QUIRE_READS_ONE_EXPERT) != 0;
    const quire_gguf_range range = { is_optional ? 0 : 1, QUIRE_EXPERTS_MAX, !is_optional };

    QUIRE_TRY(u32_get(x, "expert_count", range, &router->n_experts));
    if (router->n_experts == 1 && may_be_one) {
        router->n_experts = 0;
    }
    if (router->n_experts == 0) {
        return QUIRE_OK;
    }
    if (x->rule == NULL) {
        return quire_error_set(x->err, QUIRE_UNSUPP,
                               "%s: %s.expert_count is %u; not supported (supported: 0)",
                               quire_gguf_path(x->file), x->desc->arch_name, router->n_experts);
    }
    return by_layer_get(x, "expert_used_count", (quire_gguf_range){ 1, router->n_experts, true },
                        &router->n_used);
}

/* Experts in groups, of which only some groups' are chosen from. */
static int groups_get(const experts *x)
{
    quire_router *r = &x->desc->experts.router;
    const quire_gguf_range range = { 0, QUIRE_EXPERT_GROUPS_MAX, false };
    uint32_t n_of_group;

    QUIRE_TRY(u32_get(x, "expert_group_count", range, &r->n_groups));
    QUIRE_TRY(u32_get(x, "expert_group_used_count", range, &r->n_groups_used));
    if (r->n_groups <= 1) {
        return QUIRE_OK;
    }
    n_of_group = r->n_experts / r->n_groups;
    if (r->n_experts % r->n_groups != 0 || r->n_groups_used == 0 ||
        r->n_groups_used >= r->n_groups || r->n_groups_used * n_of_group < r->n_used) {
        return quire_error_set(x->err, QUIRE_CORRUPT,
                               "%s: %u experts in %u groups (%s.expert_group_count), %u of which "
                               "(expert_group_used_count) give %u experts (expert_used_count); "
                               "expected groups of the same size, of which fewer than all give "
                               "enough (damaged file?)",
                               quire_gguf_path(x->file), r->n_experts, r->n_groups,
                               x->desc->arch_name, r->n_groups_used, r->n_used);
    }
    return QUIRE_OK;
}

/* Without the key. GLM-4.7-Flash's first files lack it, and libllama knows them by their size. */
static quire_gating default_gating(const experts *x)
{
    const struct ggml_tensor *t = ggml_get_tensor(quire_gguf_meta(x->file), "token_embd.weight");
    const bool is_glm_flash = x->desc->arch == QUIRE_ARCH_DEEPSEEK2 &&
                              (x->desc->n_layer == 47 || x->desc->n_layer == 48) && t != NULL &&
                              t->ne[1] == 154880;

    return is_glm_flash ? QUIRE_GATING_SIGMOID : x->rule->gating;
}

static int router_get(const experts *x)
{
    static const quire_gating gatings[] = { [GATING_SOFTMAX] = QUIRE_GATING_SOFTMAX,
                                            [GATING_SIGMOID] = QUIRE_GATING_SIGMOID,
                                            [GATING_CHOSEN] = QUIRE_GATING_CHOSEN };
    quire_router *router = &x->desc->experts.router;
    const uint32_t reads = x->rule->reads;
    char key[QUIRE_GGUF_KEY_NAME_MAX];
    uint32_t gating = GATING_NONE;
    float scale = 0.0f;

    if ((reads & QUIRE_EXPERTS_READ_GATING) != 0) {
        QUIRE_TRY(
            u32_get(x, "expert_gating_func", (quire_gguf_range){ 0, GATING_MAX, false }, &gating));
    }
    router->gating = gating == GATING_NONE ? default_gating(x) : gatings[gating];
    router->is_normalised = x->rule->is_normalised;
    router->chooses_by_logits = x->rule->chooses_by_logits;
    if ((reads & QUIRE_EXPERTS_READ_NORM) != 0) {
        (void)quire_gguf_key(key, x->desc->arch_name, "expert_weights_norm");
        QUIRE_TRY(quire_gguf_get_bool(x->file, key, &router->is_normalised, x->err));
    }
    if ((reads & QUIRE_EXPERTS_READ_SCALE) != 0) {
        (void)quire_gguf_key(key, x->desc->arch_name, "expert_weights_scale");
        QUIRE_TRY(quire_gguf_get_f32(x->file, key, (quire_gguf_range_f32){ 0.0f, 1e6f, false },
                                     &scale, x->err));
    }
    router->scale = scale == 0.0f ? 1.0f : scale;
    return groups_get(x);
}

/* The sizes of an expert's network, and of the one that all rows pass through. */
static int widths_get(const experts *x)
{
    const quire_gguf_range range = { 1, FF_MAX, x->rule->ff == QUIRE_EXPERT_FF_KEY };
    const quire_gguf_range optional = { 0, FF_MAX, false };
    quire_expert_desc *e = &x->desc->experts;
    uint32_t n = 0;

    if ((quire_arch_row_get(x->desc->arch)->may & QUIRE_PART_EXPERTS_NARROW) != 0) {
        QUIRE_TRY(u32_get(x, "moe_latent_size", optional, &e->n_embd));
    }
    e->n_ff = x->desc->n_ff;
    if (x->rule->ff == QUIRE_EXPERT_FF_SHARE) {
        e->n_ff = x->desc->n_ff / e->router.n_used;
    }
    if (x->rule->ff != QUIRE_EXPERT_FF_SAME) {
        QUIRE_TRY(by_layer_get(x, "expert_feed_forward_length", range, &e->n_ff));
    }
    switch (x->rule->shared) {
    case QUIRE_EXPERT_SHARED_NONE:
        break;
    case QUIRE_EXPERT_SHARED_ONE:
        e->n_ff_shared = e->n_ff;
        break;
    case QUIRE_EXPERT_SHARED_COUNT:
        QUIRE_TRY(
            u32_get(x, "expert_shared_count", (quire_gguf_range){ 0, FF_MAX / e->n_ff, true }, &n));
        e->n_ff_shared = n * e->n_ff;
        break;
    case QUIRE_EXPERT_SHARED_IF_COUNTED:
        QUIRE_TRY(u32_get(x, "expert_shared_count",
                          (quire_gguf_range){ 0, FF_MAX / e->n_ff, false }, &n));
        e->n_ff_shared = n * e->n_ff;
        QUIRE_TRY(u32_get(x, "expert_shared_feed_forward_length", optional, &e->n_ff_shared));
        e->n_ff_shared = n == 0 ? 0 : e->n_ff_shared != 0 ? e->n_ff_shared : n * e->n_ff;
        break;
    case QUIRE_EXPERT_SHARED_LENGTH_OR_ONE:
    case QUIRE_EXPERT_SHARED_TIMES:
        QUIRE_TRY(u32_get(x, "expert_shared_feed_forward_length", optional, &e->n_ff_shared));
        e->n_ff_shared = e->n_ff_shared != 0 ? e->n_ff_shared : e->n_ff;
        if (x->rule->shared == QUIRE_EXPERT_SHARED_TIMES) {
            QUIRE_TRY(u32_get(x, "expert_shared_count",
                              (quire_gguf_range){ 1, FF_MAX / e->n_ff_shared, true }, &n));
            e->n_ff_shared *= n;
        }
        break;
    case QUIRE_EXPERT_SHARED_LENGTH:
    case QUIRE_EXPERT_SHARED_ALWAYS:
        QUIRE_TRY(u32_get(x, "expert_shared_feed_forward_length", optional, &e->n_ff_shared));
        if (e->n_ff_shared == 0 && x->rule->shared == QUIRE_EXPERT_SHARED_ALWAYS) {
            e->n_ff_shared = x->desc->n_ff;
        }
        break;
    }
    return e->n_ff > 0 ? QUIRE_OK
                       : quire_error_set(x->err, QUIRE_CORRUPT,
                                         "%s: %s.feed_forward_length is %u; %u experts of a row "
                                         "need as many (damaged file?)",
                                         quire_gguf_path(x->file), x->desc->arch_name,
                                         x->desc->n_ff, e->router.n_used);
}

/* The layers before the first one with a router. */
static uint32_t lead_find(const experts *x)
{
    uint32_t n = 0;

    while (n < x->desc->n_layer) {
        char name[64];

        (void)snprintf(name, sizeof(name), "blk.%u.ffn_gate_inp.weight", n);
        if (ggml_get_tensor(quire_gguf_meta(x->file), name) != NULL) {
            break;
        }
        n++;
    }
    return n;
}

int quire_describe_experts(const quire_gguf *file, quire_model_desc *desc, quire_error *err)
{
    const quire_arch_row *arch = quire_arch_row_get(desc->arch);
    const experts x = { file, arch->experts.is_there ? &arch->experts : NULL, desc, err };

    QUIRE_TRY(numbers_get(&x));
    if (desc->experts.router.n_experts == 0) {
        desc->experts.n_dense = desc->n_layer;
        return QUIRE_OK;
    }
    desc->experts.is_beside = arch->experts.is_beside;
    desc->experts.weighs_input = arch->experts.weighs_input;
    QUIRE_TRY(router_get(&x));
    QUIRE_TRY(widths_get(&x));
    if ((x.rule->reads & QUIRE_EXPERTS_READ_LEAD) != 0) {
        QUIRE_TRY(u32_get(&x, "leading_dense_block_count",
                          (quire_gguf_range){ 0, desc->n_layer, false }, &desc->experts.n_dense));
    }
    if ((x.rule->reads & QUIRE_EXPERTS_FIND_LEAD) != 0) {
        desc->experts.n_dense = lead_find(&x);
    }
    desc->experts.step = 1;
    if ((x.rule->reads & (QUIRE_EXPERTS_READ_STEP | QUIRE_EXPERTS_READ_STEPS)) != 0) {
        /* libllama's loader of ernie4_5-moe knows no other step than 1 either. */
        const uint32_t most = (x.rule->reads & QUIRE_EXPERTS_READ_STEP) != 0 ? 1 : desc->n_layer;

        QUIRE_TRY(u32_get(&x, "interleave_moe_layer_step", (quire_gguf_range){ 1, most, true },
                          &desc->experts.step));
    }
    return QUIRE_OK;
}
