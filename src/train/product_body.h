/* product_body.h - matrix products in one precision and for one ISA; see product.h. The file that
 * includes it has included as_f32_body.h or as_f64_body.h and defined
 *
 *   LANES         elements of a vector
 *   TILE_ROWS     rows of c that a tile has
 *   TILE_VECTORS  vectors in a row of a tile
 *   PRODUCT_NAME  the symbol of the product
 *   LANES_FMA     (sum, x, y): sum + x y
 *
 * A tile of c stays in registers while k runs. The columns of b that it needs lie in a panel,
 * packed row by row, which all tiles below one another read. Elements of a are read where they lie:
 * a tile needs few rows, or columns, and each element once.
 *
 * SPDX-License-Identifier: MIT */
#include <stddef.h>
#include <string.h>

#define TILE_COLUMNS (LANES * TILE_VECTORS)

typedef real product_lanes __attribute__((vector_size(LANES * sizeof(real))));
typedef real product_four __attribute__((vector_size(4 * sizeof(real))));

/* Elements 0 to 3 are x's, 4 to 7 are y's. gcc before 12 lacks clang's name for this. */
#ifdef __clang__
#define FOUR_OF(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#elif QT_IS_DOUBLE
typedef int64_t product_order __attribute__((vector_size(4 * sizeof(int64_t))));
#define FOUR_OF(x, y, ...) __builtin_shuffle(x, y, (product_order){ __VA_ARGS__ })
#else
typedef int32_t product_order __attribute__((vector_size(4 * sizeof(int32_t))));
#define FOUR_OF(x, y, ...) __builtin_shuffle(x, y, (product_order){ __VA_ARGS__ })
#endif

/* The elements [k][TILE_COLUMNS] of b from (first, column) on, zeros behind the last column. */
typedef struct product_panel {
    const QT(product) * p;
    uint32_t first;
    uint32_t n_k;
    uint32_t column;
    uint32_t n_columns;
    real *to;
} product_panel;

static void panel_copy(const product_panel *panel)
{
    const QT(product) *p = panel->p;
    const real *from = p->b + (size_t)panel->first * p->ldb + panel->column;

    for (uint32_t k = 0; k < panel->n_k; k++, from += p->ldb) {
        real *to = panel->to + (size_t)k * TILE_COLUMNS;

        if (panel->n_columns == TILE_COLUMNS) {
            memcpy(to, from, TILE_COLUMNS * sizeof(real));
        } else {
            memset(to, 0, TILE_COLUMNS * sizeof(real));
            memcpy(to, from, panel->n_columns * sizeof(real));
        }
    }
}

/* Four numbers of four columns become four columns of four numbers. */
static inline void transpose_four(const real *from, size_t stride, real *to)
{
    product_four x[4], y[4];

    for (uint32_t i = 0; i < 4; i++) {
        memcpy(&x[i], from + i * stride, sizeof(x[i]));
    }
    y[0] = FOUR_OF(x[0], x[1], 0, 4, 1, 5);
    y[1] = FOUR_OF(x[2], x[3], 0, 4, 1, 5);
    y[2] = FOUR_OF(x[0], x[1], 2, 6, 3, 7);
    y[3] = FOUR_OF(x[2], x[3], 2, 6, 3, 7);
    x[0] = FOUR_OF(y[0], y[1], 0, 1, 4, 5);
    x[1] = FOUR_OF(y[0], y[1], 2, 3, 6, 7);
    x[2] = FOUR_OF(y[2], y[3], 0, 1, 4, 5);
    x[3] = FOUR_OF(y[2], y[3], 2, 3, 6, 7);
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(to + (size_t)i * TILE_COLUMNS, &x[i], sizeof(x[i]));
    }
}

static void panel_transpose(const product_panel *panel)
{
    const QT(product) *p = panel->p;
    const real *from = p->b + (size_t)panel->column * p->ldb + panel->first;
    uint32_t fours = panel->n_columns / 4 * 4, k4 = panel->n_k / 4 * 4;

    if (panel->n_columns < TILE_COLUMNS) {
        memset(panel->to, 0, (size_t)panel->n_k * TILE_COLUMNS * sizeof(real));
    }
    for (uint32_t j = 0; j < panel->n_columns; j++) {
        bool is_four = j % 4 == 0 && j < fours;

        for (uint32_t k = 0; is_four && k < k4; k += 4) {
            transpose_four(from + (size_t)j * p->ldb + k, p->ldb,
                           panel->to + (size_t)k * TILE_COLUMNS + j);
        }
        for (uint32_t k = j < fours ? k4 : 0; k < panel->n_k; k++) {
            panel->to[(size_t)k * TILE_COLUMNS + j] = from[(size_t)j * p->ldb + k];
        }
    }
}

/* Where an element of a lies: row i, term k at a[i * row + k * term]. */
typedef struct product_a {
    const real *a;
    size_t row;
    size_t term;
} product_a;

/* sums[TILE_ROWS][TILE_COLUMNS] = n_k terms. */
static inline void tile_sums(const product_a *a, const real *panel, uint32_t n_k,
                             product_lanes sums[TILE_ROWS][TILE_VECTORS])
{
    product_lanes sum[TILE_ROWS][TILE_VECTORS] = { 0 };
    const real *x = a->a;

    for (uint32_t k = 0; k < n_k; k++, x += a->term, panel += TILE_COLUMNS) {
        product_lanes b[TILE_VECTORS];

#pragma GCC unroll 4
        for (uint32_t j = 0; j < TILE_VECTORS; j++) {
            memcpy(&b[j], panel + (size_t)j * LANES, sizeof(b[j]));
        }
#pragma GCC unroll 16
        for (uint32_t i = 0; i < TILE_ROWS; i++) {
            product_lanes one = x[i * a->row] - (product_lanes){ 0 };

#pragma GCC unroll 4
            for (uint32_t j = 0; j < TILE_VECTORS; j++) {
                sum[i][j] = LANES_FMA(sum[i][j], one, b[j]);
            }
        }
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < TILE_ROWS; i++) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < TILE_VECTORS; j++) {
            sums[i][j] = sum[i][j];
        }
    }
}

/* The sums of whole tiles go to c by vectors. */
static void tile_write(product_lanes sums[TILE_ROWS][TILE_VECTORS], real *c, size_t ldc,
                       bool is_added)
{
    for (uint32_t i = 0; i < TILE_ROWS; i++, c += ldc) {
        product_lanes row[TILE_VECTORS];

        memcpy(row, c, is_added ? sizeof(row) : 0);
        for (uint32_t j = 0; j < TILE_VECTORS; j++) {
            row[j] = is_added ? row[j] + sums[i][j] : sums[i][j];
        }
        memcpy(c, row, sizeof(row));
    }
}

typedef struct tile_place {
    real *c;
    size_t ldc;
    uint32_t n_rows;
    uint32_t n_columns;
    bool is_added;
} tile_place;

static void tile_write_part(product_lanes sums[TILE_ROWS][TILE_VECTORS], const tile_place *place)
{
    real from[TILE_ROWS][TILE_COLUMNS];

    memcpy(from, sums, sizeof(from));
    for (uint32_t i = 0; i < place->n_rows; i++) {
        real *c = place->c + i * place->ldc;

        for (uint32_t j = 0; j < place->n_columns; j++) {
            c[j] = place->is_added ? c[j] + from[i][j] : from[i][j];
        }
    }
}

/* The last tile's rows behind the last of a repeat it: they are computed and not written. */
static void tile_run(const product_a *a, const product_panel *panel, const tile_place *place)
{
    product_lanes sums[TILE_ROWS][TILE_VECTORS];
    real rows[QUIRE_PRODUCT_K][TILE_ROWS];
    product_a whole = *a;

    if (place->n_rows < TILE_ROWS) {
        for (uint32_t k = 0; k < panel->n_k; k++) {
            for (uint32_t i = 0; i < TILE_ROWS; i++) {
                uint32_t row = i < place->n_rows ? i : place->n_rows - 1;

                rows[k][i] = a->a[row * a->row + k * a->term];
            }
        }
        whole = (product_a){ rows[0], 1, TILE_ROWS };
    }
    tile_sums(&whole, panel->to, panel->n_k, sums);
    if (place->n_rows == TILE_ROWS && place->n_columns == TILE_COLUMNS) {
        tile_write(sums, place->c, place->ldc, place->is_added);
    } else {
        tile_write_part(sums, place);
    }
}

static void panel_run(const product_panel *panel)
{
    const QT(product) *p = panel->p;
    size_t row = p->is_a_transposed ? 1 : p->lda, term = p->is_a_transposed ? p->lda : 1;

    for (uint32_t i = 0; i < p->m; i += TILE_ROWS) {
        const product_a a = { p->a + i * row + panel->first * term, row, term };
        const tile_place place = {
            .c = p->c + (size_t)i * p->ldc + panel->column,
            .ldc = p->ldc,
            .n_rows = p->m - i < TILE_ROWS ? p->m - i : TILE_ROWS,
            .n_columns = panel->n_columns,
            .is_added = p->is_added || panel->first > 0,
        };

        tile_run(&a, panel, &place);
    }
}

void PRODUCT_NAME(const QT(product) * p)
{
    real packed[QUIRE_PRODUCT_K * TILE_COLUMNS] __attribute__((aligned(64)));
    product_panel panel = { .p = p, .to = packed };

    for (uint32_t k = 0; k < p->k; k += QUIRE_PRODUCT_K) {
        panel.first = k;
        panel.n_k = p->k - k < QUIRE_PRODUCT_K ? p->k - k : QUIRE_PRODUCT_K;
        for (uint32_t j = 0; j < p->n; j += TILE_COLUMNS) {
            panel.column = j;
            panel.n_columns = p->n - j < TILE_COLUMNS ? p->n - j : TILE_COLUMNS;
            if (p->is_b_transposed) {
                panel_transpose(&panel);
            } else {
                panel_copy(&panel);
            }
            panel_run(&panel);
        }
    }
}
