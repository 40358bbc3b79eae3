/* condensing.h - texts of requests that keep a share of their tokens, in the pages that all
 * requests share: where a text is condensed, how many tokens it holds, and the condensing itself.
 *
 *   text      0 ........... chunk ......... 2 chunk ....... 3 chunk ...... n
 *   before the token at position k * chunk is computed, condensing number k takes place:
 *   sequence  [ kept(k) tokens of each lane, of the first k * chunk ][ the rest, in full ]
 *
 * The places depend on the text alone, and so does kept(k). The kept pages are a function of the
 * text, the policy with its parameters, the chunk and the model: requests of one policy share them
 * as they share other pages. Condensing number k reads the result of number k - 1: k is the text's
 * count of generations.
 *
 * Each lane keeps tokens of its own. With an even policy (keydiff, window, last, stride and random,
 * with the same number for all lanes) a page holds a token of each lane in each slot, and kept(k)
 * is the share of the text so far, and at least the protected tokens, rounded up to whole pages.
 *
 * Other policies give each lane a number of its own: entropy, snap, and the above with floor below
 * 1 or full_layers. Their kept tokens lie in packed pages (retain/packed.h), where the tiles of all
 * lanes follow each other and a list names them. A condensing is one unit: its pages are found,
 * or made, together. kept(k) counts the tokens that so many pages have in a plain text: those of
 * the most tiles that the policy can keep (the share of all lanes, whole layers and protected
 * tokens at least, a tile more for each lane whose protected tokens end inside a tile) and of the
 * list. It does not depend on the choice. Lanes keep whole tiles (granule=64), so that the full
 * pages behind them are the same for all lanes.
 *
 * In sealed formats, and in models with windows, even policies have packed pages, too. Layers with
 * windows drop nothing by a policy: the pages of the window before a place are copied to the places
 * of the last of the kept(k) tokens, which stand for the window's tokens in these layers.
 *
 *   full layers    [ packed pages: kept(k) tokens                   ][ the rest, in full ]
 *   with windows   [ holes                  ][ the window, in full  ][ the rest, in full ]
 *
 * Policies whose layers compete for one budget (predict) have a number for each lane in any case.
 *
 * entropy and snap score by the queries of the last `probe` tokens before the place. These are
 * tokens of the text that the condensing's name covers, never later ones, so their pages are shared
 * like the others'; no policy here is private to a request. A request that would begin inside of
 * these tokens begins before them and computes them once more, because pages hold no queries.
 *
 * predict gives each token a worth when its chunk is computed, from the hidden states of the layers
 * by maps that were learned before (retain/predictor.h). The worth of kept tokens lies in the list
 * of packed pages, that of the chunk's tokens with the request. Full pages hold none: a request
 * whose prompt passes the next place begins at the last one, and a request that comes to a place
 * without having seen all tokens of the chunk begins again there (condense_loop.c). A hash of the
 * maps belongs to the condensing's name.
 *
 * reconstruct has the model repeat the chunk before its place (repeating.h): rows behind the text,
 * whose attention is the chunk's worth, and which leave the sequence again. So nothing of the rows
 * before is needed, and a request may begin anywhere. The rows depend on the text before the place
 * alone.
 *
 * expected and heavy sum up over all rows of the chunk, its queries or their attention to each
 * token. The sums are with the request. Those of expected begin anew behind each place; those of
 * heavy go on, as the worth of kept tokens in the list of packed pages. A request must compute the
 * whole chunk, as for predict.
 *
 * Thread: any; quire_condense(): the owner of the runtime.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONDENSING_H
#define QUIRE_ENGINE_CONDENSING_H

#include "base/num.h"
#include "model/runtime.h"
#include "quire/error.h"
#include "retain/packed_device.h"
#include "retain/policy.h"

#define QUIRE_CONDENSING_NAME_MAX (QUIRE_RETAIN_TEXT_MAX + 64u) /* bytes */

/* Properties of an engine's model that condensings need; constant. */
typedef struct quire_condensing_parts {
    quire_packing packing;                   /* n_layers 0: pages cannot be packed */
    const quire_predictor *predictor;        /* of the model; NULL: nothing was learned */
    unsigned char maps[QUIRE_HASH128_BYTES]; /* quire_predictor_hash() */
    const quire_rotation *rotation;          /* of K; NULL: not all layers turn it alike */
    uint32_t model_layers[QUIRE_LAYERS_MAX]; /* of the packing, with windows */
} quire_condensing_parts;

typedef struct quire_condensing {
    quire_retain_spec spec;
    uint32_t chunk; /* tokens, a multiple of page_tokens; 0: the text keeps all tokens */
    uint32_t page_tokens;
    quire_packing packing;                /* of policies by lane; n_layers 0: the policy is even */
    const quire_predictor *predictor;     /* of policies with a predicted worth */
    const quire_rotation *rotation;       /* of policies that expect queries */
    char text[QUIRE_RETAIN_TEXT_MAX];     /* quire_retain_text() */
    char name[QUIRE_CONDENSING_NAME_MAX]; /* the text, with the maps if there are any */
} quire_condensing;

/* Whether lanes may keep different numbers of tokens. */
bool quire_condensing_is_by_lane(const quire_retain_spec *spec);
/* Whether even policies keep their tokens in packed pages, too. */
static inline bool quire_condensing_packs(const quire_condensing_parts *parts)
{
    return quire_packing_is_sealed(&parts->packing) || parts->packing.window_group != 0;
}

/* Whether texts in shared pages can be condensed by a policy. `setting` begins the message:
 * "--retain", or "retain:". Errors: QUIRE_UNSUPP (the policy or one of its parameters); err names
 * it. */
int quire_condensing_policy_check(const quire_retain_spec *spec, const char *setting,
                                  quire_error *err);

/* Set the packing of a runtime's parts, or of one that would have these options with formats by
 * layer (kv_pairs). layers: [n_layer], which parts borrows. */
void quire_condensing_packing_init(quire_condensing_parts *parts, quire_attn_layer *layers,
                                   const quire_model_desc *desc, const quire_runtime_opts *opts);

/* Whether all layers turn K alike, so that a rotation can be one of the parts. */
bool quire_condensing_turns(const quire_model_desc *desc);

/* A runtime, or the options of one that is not there yet. Borrowed. */
typedef struct quire_condensing_on {
    const quire_model_desc *desc;
    const quire_runtime_opts *opts; /* with kv_pairs */
    const quire_condensing_parts *parts;
} quire_condensing_on;

/* Whether texts of a runtime can be condensed so every `chunk` tokens. Errors: also QUIRE_UNSUPP
 * for the model, its formats, the runtime (quire_opts_rows_fixed()) or a predictor that is
 * missing, QUIRE_INVAL (whole layers; the pages would be as many as those of the text). */
int quire_condensing_check(const quire_condensing_on *on, const quire_retain_spec *spec,
                           uint32_t chunk, const char *setting, quire_error *err);
/* Whether a condensing keeps at least as many tokens as layers with windows see. Errors:
 * QUIRE_INVAL. */
int quire_condensing_window_check(const quire_condensing *c, const char *setting, quire_error *err);
/* Whether generated tokens can read a share of the pages. Errors: QUIRE_UNSUPP (pages without
 * bounds; quire_runtime_bounds_check(); pages that cannot be packed). */
int quire_attending_check(const quire_condensing_on *on, const char *setting, quire_error *err);

/* is_full, [n_layers of the packing]: whether a layer is kept whole. n may be NULL, or gets their
 * number. Errors: quire_retain_full_layers(), for the layers of the model. */
int quire_condensing_full_layers(const quire_retain_spec *spec, const quire_packing *packing,
                                 bool *is_full, uint32_t *n, quire_error *err);

/* parts: read; NULL: the policy is even. */
void quire_condensing_init(quire_condensing *out, const quire_retain_spec *spec, uint32_t chunk,
                           uint32_t page_tokens, const quire_condensing_parts *parts);

/* Whether both condense every text alike. */
bool quire_condensing_is_same(const quire_condensing *a, const quire_condensing *b);

/* Condensings before the token at a position is computed. */
static inline uint32_t quire_condensing_before(const quire_condensing *c, uint32_t position)
{
    return c->chunk != 0 ? position / c->chunk : 0;
}

/* Tokens in the pages of a text after condensing number k; 0 for k = 0. With an even policy each
 * lane has this number. Cost: O(k). */
uint32_t quire_condensing_kept(const quire_condensing *c, uint32_t k);

/* Tokens that left the sequence in the first k condensings: a multiple of page_tokens. */
static inline uint32_t quire_condensing_gone(const quire_condensing *c, uint32_t k)
{
    return k * c->chunk - quire_condensing_kept(c, k);
}

/* The least number of tokens of a text that was condensed k times. */
static inline uint32_t quire_condensing_made_of(const quire_condensing *c, uint32_t k)
{
    return k * c->chunk;
}

/* Tokens of the kept(k) ones that can lie in pages of the text before condensing number k
 * (quire_condense_share()): packed pages grow behind those before, and the pages of the chunk come
 * free when all lanes have moved. */
static inline uint32_t quire_condensing_shared(const quire_condensing *c, uint32_t k)
{
    const uint32_t n = quire_condensing_kept(c, k);

    return c->packing.n_layers == 0 ? n : quire_min_u32(n, quire_condensing_kept(c, k - 1));
}

/* The most tokens for which a text of n_tokens tokens must have pages at a time. During the last
 * condensing: the held tokens, and beside them the kept ones that cannot share their pages or the
 * rows that repeat the text, whichever are more. Behind it: the kept tokens and those of the last
 * chunk. */
uint32_t quire_condensing_need(const quire_condensing *c, uint32_t n_tokens);

/* The number of tokens before a place whose queries the condensing there reads. */
static inline uint32_t quire_condensing_probe(const quire_condensing *c)
{
    const bool is_probed = c->chunk != 0 && c->spec.policy->needs_attention;

    return is_probed ? (c->spec.probe < c->chunk ? c->spec.probe : c->chunk) : 0;
}

/* Sums over the rows of the chunk are read at its end. */
static inline bool quire_condensing_is_summed(const quire_condensing *c)
{
    return c->chunk != 0 &&
           (c->spec.policy->worth == QUIRE_RETAIN_WORTH_SUM || c->spec.policy->expects_queries);
}

/* Whether a condensing reads data of all rows of the chunk (sums, scores, hot pages of sealed
 * formats), so that one request must compute them all. */
static inline bool quire_condensing_reads_chunk(const quire_condensing *c)
{
    return quire_condensing_is_summed(c) || quire_packing_is_sealed(&c->packing) ||
           (c->chunk != 0 && c->spec.policy->worth == QUIRE_RETAIN_WORTH_PREDICTED);
}

/* The number of tokens before a place that the condensing request must have computed itself. */
static inline uint32_t quire_condensing_seen(const quire_condensing *c)
{
    return quire_condensing_reads_chunk(c) ? c->chunk : quire_condensing_probe(c);
}

/* Whether the request of a text has computed the rows that condensing number k looks at. text: of
 * policies by lane. */
static inline bool quire_condensing_has_seen(const quire_condensing *c, uint32_t k,
                                             const quire_packed_text *text)
{
    const uint32_t n = quire_condensing_seen(c), end = k * c->chunk;

    return (n == 0 || (text->seen_end == end && text->seen_begin <= end - n)) &&
           (!quire_condensing_is_summed(c) || quire_packed_sums_are(&text->sums, end - n, end));
}

/* Whether the model is to repeat tokens before it. */
static inline bool quire_condensing_is_unrepeated(const quire_condensing *c, uint32_t k,
                                                  const quire_packed_text *text)
{
    return c->spec.policy->worth == QUIRE_RETAIN_WORTH_REPEATED && text->n_repeated != k * c->chunk;
}

/* The price of pages for requests that condense so: in sealed formats they keep the hot pages of
 * their chunk. */
quire_kv_price quire_condensing_price(const quire_condensing *c, const quire_kv_price *price);

/* The KV memory that admission demands for the longest text of a runtime, if the policy condenses
 * it: bytes of quire_condensing_need(), states included, and at most quire_runtime_kv_bytes().
 * on->opts: without zeros. */
uint64_t quire_condensing_least_bytes(const quire_condensing_on *on, const quire_retain_spec *spec,
                                      uint32_t chunk);

/* The data of a text that a request has beside its pages, of a policy by lane. */
quire_packed_text_opts quire_condensing_text_opts(const quire_condensing *c);
/* Tokens whose attention each worker watches at a time, of texts of n_ctx tokens; 0 = none. */
uint32_t quire_condensing_n_watched(const quire_condensing *c, uint32_t n_ctx);
/* The device of texts with packed pages, but for its base. all: of a workspace of the runtime. */
quire_packed_device_opts quire_condensing_device_opts(const quire_condensing_on *on,
                                                      const quire_attn_workspace_opts *all);
/* Memory beside the pages of texts with packed pages. */
typedef struct quire_condensing_bytes {
    uint64_t of_request; /* data of each request for its text */
    uint64_t of_thread;  /* data of each thread for the attention that it watches */
    uint64_t of_device;  /* of the device that computes their attention, with all its threads */
} quire_condensing_bytes;

/* Of a policy; zeros if its texts have no packed pages. spec NULL: of texts that read a share of
 * their pages (attend). opts without zeros. */
quire_condensing_bytes quire_condensing_bytes_of(const quire_condensing_on *on,
                                                 const quire_retain_spec *spec, uint32_t chunk);

/* The most bytes that an engine takes for the names of texts whose chunks have n_tokens tokens. */
uint64_t quire_condensing_names_bytes(uint32_t n_tokens);

/* Condensing number k: `from` holds the kept(k - 1) + chunk tokens before it, and the empty
 * sequence `to` gets the kept(k) tokens of it in pages of its own. text: of `from`, of policies by
 * lane. Errors: those of quire_seq_reserve(), QUIRE_NOMEM, QUIRE_INVAL
 * (quire_condensing_has_seen()); then `to` has no tokens. */
int quire_condense(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                   const quire_packed_text *text, quire_seq_id from, quire_seq_id to);

/* The same where memory has no room for both texts, in two steps: the rows move within the pages of
 * `from` that it alone holds, to the same bytes.
 *
 *   share    `to` gets kept(k) tokens: pages of `from`, and new ones where these are too few or
 *            have other holders. Errors: quire_seq_inherit(); then nothing has changed
 *            ... the caller has the prefix tree let go of the pages of `from`
 *   shared   moves the rows. Then `from` holds anything, and is to be closed. Errors:
 *            QUIRE_NOPAGES (the tree still relies on a page of `to`), QUIRE_NOMEM, QUIRE_INVAL:
 *            `to` has no tokens, and `from` its own. QUIRE_LOST: both hold anything */
int quire_condense_share(const quire_condensing *c, quire_cache *cache, uint32_t k,
                         quire_seq_id from, quire_seq_id to);
int quire_condense_shared(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                          const quire_packed_text *text, quire_seq_id from, quire_seq_id to);

/* condensing_lanes.c: the same of a policy by lane. `to` has room for kept(k) tokens. */
int quire_condense_lanes(const quire_condensing *c, quire_runtime *runtime, uint32_t k,
                         const quire_packed_text *text, quire_seq_id from, quire_seq_id to);

#endif /* QUIRE_ENGINE_CONDENSING_H */
