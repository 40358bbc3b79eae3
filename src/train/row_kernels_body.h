/* row_kernels_body.h - row functions in one precision and for one ISA; see row_kernels.h. The file
 * that includes it has included as_f32_body.h or as_f64_body.h and defined ROWS_NAME, a name for
 * people, ROWS_TABLE, the symbol of the table, and ROWS_PRODUCT, the matrix product.
 *
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16u

/* A vector of LANES numbers: one register of AVX-512 in single precision, several elsewhere. */
typedef real row_lanes __attribute__((vector_size(LANES * sizeof(real))));

/* The result of comparing two such vectors: all bits of a lane, or none. */
typedef __typeof__((row_lanes){ 0 } > (row_lanes){ 0 }) row_mask;

/* The lanes in one order for all ISAs. */
static real lanes_sum(const row_lanes *lanes)
{
    real x[LANES];

    memcpy(x, lanes, sizeof(x));
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            x[j] += x[j + half];
        }
    }
    return x[0];
}

/* The next LANES of n elements, zeros behind the last. Vectors are passed by address: how they are
 * passed by value depends on the ISA. */
static inline void lanes_load(row_lanes *x, const real *at, size_t n)
{
    *x = (row_lanes){ 0 };
    memcpy(x, at, (n < LANES ? n : LANES) * sizeof(*at));
}

static real row_dot(const real *a, const real *b, size_t n)
{
    row_lanes sum = { 0 };
    row_lanes x, y;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        lanes_load(&x, a + i, LANES);
        lanes_load(&y, b + i, LANES);
        sum += x * y;
    }
    lanes_load(&x, a + i, n - i);
    lanes_load(&y, b + i, n - i);
    sum += x * y;
    return lanes_sum(&sum);
}

static real row_sum(const real *a, size_t n)
{
    row_lanes sum = { 0 };
    row_lanes x;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        lanes_load(&x, a + i, LANES);
        sum += x;
    }
    lanes_load(&x, a + i, n - i);
    sum += x;
    return lanes_sum(&sum);
}

static void row_add(real *restrict y, const real *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += x[i];
    }
}

static void row_mul(real *restrict y, const real *restrict x, const real *restrict gate, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * gate[i];
    }
}

static void row_mul_add(real *restrict y, const real *restrict x, const real *restrict gate,
                        size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] += x[i] * gate[i];
    }
}

static real row_norm(real *restrict y, const real *restrict x, const real *restrict weight,
                     real epsilon, size_t n)
{
    real inv = (real)(1.0 / sqrt((double)(row_dot(x, x, n) / (real)n + epsilon)));

    for (size_t i = 0; i < n; i++) {
        y[i] = x[i] * inv * weight[i];
    }
    return inv;
}

/* y_i = x_i r w_i with r = (mean x^2 + e)^-1/2, so dx_i = r w_i dy_i - x_i r^3 / n sum_j x_j w_j
 * dy_j.
 */
static void row_norm_back(real *const gradients[2], const real *x, const real *weight, real inv,
                          const real *dy, size_t n)
{
    real *restrict dx = gradients[0];
    real *restrict dweight = gradients[1];
    row_lanes sums = { 0 };
    row_lanes a, b, c;
    size_t i = 0;
    real factor;

    for (; i + LANES <= n; i += LANES) {
        lanes_load(&a, x + i, LANES);
        lanes_load(&b, weight + i, LANES);
        lanes_load(&c, dy + i, LANES);
        sums += a * b * c;
    }
    lanes_load(&a, x + i, n - i);
    lanes_load(&b, weight + i, n - i);
    lanes_load(&c, dy + i, n - i);
    sums += a * b * c;
    factor = lanes_sum(&sums) * inv * inv * inv / (real)n;
    for (i = 0; i < n; i++) {
        dx[i] += inv * weight[i] * dy[i] - x[i] * factor;
        dweight[i] += dy[i] * x[i] * inv;
    }
}

#if QT_IS_DOUBLE
static inline real row_exp(real x)
{
    return exp(x);
}
#else
/* e^x = 2^k e^r with |r| <= ln 2 / 2, and e^r by its Taylor polynomial of degree 7 (relative error
 * below 1e-8 before rounding). Below -87 the result stays 1.6e-38, above 88 it stays 1.7e38; NaN
 * stays NaN. 12582912 = 1.5 * 2^23 leaves the rounded number in the low bits of the sum. */
static inline real row_exp(real x)
{
    const float magic = 12582912.0F;
    float y = x < -87.0F ? -87.0F : x;
    float shifted, k, r, p;
    uint32_t bits;

    y = y > 88.0F ? 88.0F : y;
    shifted = y * 1.44269504F + magic;
    k = shifted - magic;
    r = y - k * 0.693359375F;
    r = r + k * 2.12194440e-4F;
    p = 1.0F / 5040.0F;
    p = p * r + 1.0F / 720.0F;
    p = p * r + 1.0F / 120.0F;
    p = p * r + 1.0F / 24.0F;
    p = p * r + 1.0F / 6.0F;
    p = p * r + 0.5F;
    p = p * r + 1.0F;
    p = p * r + 1.0F;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127u) << 23;
    memcpy(&k, &bits, sizeof(k));
    return p * k;
}
#endif

/* Compilers keep an array of lanes in memory here, and wait for it; so masks, and two vectors. */
static real row_max(const real *x, size_t n)
{
    row_lanes max[2], y;
    real lanes[2 * LANES];
    real best = x[0];
    size_t i = 0;

    for (uint32_t j = 0; j < 2 * LANES; j++) {
        lanes[j] = x[0];
    }
    memcpy(max, lanes, sizeof(max));
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        for (uint32_t j = 0; j < 2; j++) {
            lanes_load(&y, x + i + j * LANES, LANES);
            row_mask is_more = y > max[j];
            max[j] = (row_lanes)((is_more & (row_mask)y) | (~is_more & (row_mask)max[j]));
        }
    }
    memcpy(lanes, max, sizeof(lanes));
    for (uint32_t j = 0; j < 2 * LANES; j++) {
        best = lanes[j] > best ? lanes[j] : best;
    }
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

static void row_softmax_again(real *restrict x, real scale, real lse, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = row_exp(x[i] * scale - lse);
    }
}

static real row_softmax(real *restrict x, real scale, size_t n)
{
    real max = row_max(x, n) * scale;
    real sum, inv;

    row_softmax_again(x, scale, max, n);
    sum = row_sum(x, n);
    inv = (real)1 / sum;
    for (size_t i = 0; i < n; i++) {
        x[i] *= inv;
    }
    return max + (real)log((double)sum);
}

static void row_softmax_back(real *restrict ds, const real *restrict p, real d, real scale,
                             size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ds[i] = p[i] * (ds[i] - d) * scale;
    }
}

static void row_swiglu(real *restrict y, const real *restrict gate, const real *restrict up,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = gate[i] / ((real)1 + row_exp(-gate[i])) * up[i];
    }
}

/* silu(g) = g s(g), silu'(g) = s + g s (1 - s). */
static void row_swiglu_back(real *restrict gate, real *restrict up, real *restrict y,
                            const real *restrict dy, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        real g = gate[i], u = up[i], d = dy[i];
        real s = (real)1 / ((real)1 + row_exp(-g));

        y[i] = g * s * u;
        gate[i] = d * u * (s + g * s * ((real)1 - s));
        up[i] = d * g * s;
    }
}

static void row_rope(real *restrict x, const real *restrict cos, const real *restrict sin,
                     real sign, size_t n)
{
    size_t half = n / 2;

    for (size_t j = 0; j < half; j++) {
        real a = x[j], b = x[j + half], s = sin[j] * sign;

        x[j] = a * cos[j] - b * s;
        x[j + half] = a * s + b * cos[j];
    }
}

/* Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2. */
static void row_adamw(const QT(adamw) * step, real *parameters, const real *gradients,
                      real *moments[2], size_t n)
{
    const QT(adamw) s = *step;
    real *restrict p = parameters;
    real *restrict m = moments[0];
    real *restrict v = moments[1];

    for (size_t i = 0; i < n; i++) {
        real g = gradients[i] * s.gradient_scale;

        m[i] = s.beta1 * m[i] + ((real)1 - s.beta1) * g;
        v[i] = s.beta2 * v[i] + ((real)1 - s.beta2) * g * g;
#if QT_IS_DOUBLE
        p[i] -= s.rate *
                (m[i] * s.correction1 / (sqrt(v[i] * s.correction2) + s.epsilon) + s.decay * p[i]);
#else
        p[i] -= s.rate *
                (m[i] * s.correction1 / (sqrtf(v[i] * s.correction2) + s.epsilon) + s.decay * p[i]);
#endif
    }
}

const QT(rows) ROWS_TABLE = {
    .name = ROWS_NAME,
    .dot = row_dot,
    .add = row_add,
    .mul = row_mul,
    .mul_add = row_mul_add,
    .norm = row_norm,
    .norm_back = row_norm_back,
    .softmax = row_softmax,
    .softmax_again = row_softmax_again,
    .softmax_back = row_softmax_back,
    .swiglu = row_swiglu,
    .swiglu_back = row_swiglu_back,
    .rope = row_rope,
    .adamw = row_adamw,
    .product = ROWS_PRODUCT,
};
