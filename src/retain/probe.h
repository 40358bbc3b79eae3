/* probe.h - the attention that a few queries pay to the tokens of a lane, from plain arrays.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_PROBE_H
#define QUIRE_RETAIN_PROBE_H

#include "retain/policy.h"

/* The queries of a lane's query heads, as its layer uses them (quire/attn.h). The layer has no
 * window: no policy scores tokens of such layers. */
typedef struct quire_retain_probe {
    const float *queries;   /* [n_heads][n_queries][d], transformed as the keys are */
    const int32_t *rows_at; /* [n_queries] positions */
    uint32_t n_heads;
    uint32_t n_queries;
    float scale;
    float softcap;      /* 0 = none */
    const float *sinks; /* [n_heads]; NULL = none */
} quire_retain_probe;

/* attention, [n_heads * n_queries][n_tokens] = softmax over the lane's tokens that the row sees
 * (and the sink); 0 for tokens that it does not see, and in a row that sees none. The lane has
 * keys. */
void quire_retain_attend(const quire_retain_probe *probe, const quire_retain_lane *lane,
                         float *attention);

#endif /* QUIRE_RETAIN_PROBE_H */
