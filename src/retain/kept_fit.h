/* kept_fit.h - kept tokens of a lane that stand for dropped ones: biases and V by least squares.
 *
 * Method: Attention Matching (arXiv 2602.16284), with ridges instead of its bounds. Rows are
 * queries that look at all tokens of the lane. W[r][t] is the weight of token t, with its bias, in
 * row r. The free tokens j are those that are kept and may change; A[r][j] = W[r][j].
 *
 *   biases  x = argmin |A x - m|^2 + l |x|^2, m[r] = the weights of dropped tokens in row r;
 *           b[j] += ln(1 + x[j]), and b stays between ln QUIRE_KEPT_FIT_LEAST and
 *           ln QUIRE_KEPT_FIT_MOST
 *   V       A again, with the new biases, over the kept tokens alone;
 *           D = argmin |A D - E|^2 + l |D|^2, E[r] = the output of row r with all tokens, less the
 *           output with kept tokens; V[j] += D[j]
 *
 * l is QUIRE_KEPT_FIT_RIDGE times the mean of |A[r]|^2 over the rows. Both are solved in the space
 * of the rows, of which there are fewer than tokens: D = A' (A A' + l I)^-1 E.
 *
 * Thread: any; calls with rooms of their own run side by side.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_KEPT_FIT_H
#define QUIRE_RETAIN_KEPT_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIRE_KEPT_FIT_RIDGE    0.1
#define QUIRE_KEPT_FIT_LEAST    0.05
#define QUIRE_KEPT_FIT_MOST     50.0
#define QUIRE_KEPT_FIT_ROWS_MAX 256u /* so that the time of a lane grows with its tokens alone */

typedef enum quire_kept_role {
    QUIRE_KEPT_FIT_DROPPED,
    QUIRE_KEPT_FIT_KEPT, /* stays as it is */
    QUIRE_KEPT_FIT_FREE  /* kept, and changes */
} quire_kept_role;

typedef struct quire_kept_fit {
    uint32_t n_tokens;
    uint32_t n_rows;
    uint32_t d;                 /* of V */
    bool has_sinks;             /* a sink has the rest of each row's probability, up to 1 */
    const unsigned char *roles; /* [n_tokens] */
    float *attention;           /* [n_rows][n_tokens] probabilities without biases; overwritten */
    float *values;              /* [n_tokens][d] */
    float *biases;              /* [n_tokens] */
} quire_kept_fit;

/* Bytes of room for a fit. */
size_t quire_kept_fit_bytes(uint32_t n_tokens, uint32_t n_rows, uint32_t d);

/* Fit biases and values of the free tokens; without dropped ones nothing changes. room: as above,
 * aligned as doubles. */
void quire_kept_fit_run(const quire_kept_fit *fit, void *room);

#endif /* QUIRE_RETAIN_KEPT_FIT_H */
