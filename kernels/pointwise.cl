// Matrix products over blocked matrices: pointwise convolution and dense layers.
// x: [k/16][m][16], w: [n/16][k][16], y: [n/16][m][16]; m rows, k channels in, n channels out.
//
// A work-item computes ROWS rows x PANELS blocks of 16 channels in registers. The last tile of rows starts early, so
// that it is full, and writes only the rows that its neighbour does not. m >= ROWS, and PANELS divides n/16.
#include "blocked.h"
#include "activation.h"
#include "epilogue.h"
#include "gradient.h"

#define ACCUMULATE_PRODUCT(u)                                                            \
  {                                                                                      \
    V column[PANELS];                                                                    \
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = LOAD(w + (j * (size_t)k + (u)) * BLOCK); \
    UNROLL for (int i = 0; i < ROWS; i++) {                                              \
      const V value = (V)(x[i * BLOCK + (u)]);                                           \
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];            \
    }                                                                                    \
  }

// Tiles come in chunks, whose rows stay in a core's cache while all panels of w pass by: tile, panel, chunk.
#define PRODUCT_TILE                                                                     \
  const int tile = get_global_id(2) * (get_global_size(0) / PARTS) + ITEM;               \
  const int panel = get_global_id(1) * PANELS;                                           \
  if (tile * ROWS >= m) return;                                                          \
  const int row = tile * ROWS < m - ROWS ? tile * ROWS : m - ROWS;                       \
  x += row * BLOCK;                                                                      \
  w += (size_t)panel * k * BLOCK;                                                        \
  V sum[ROWS][PANELS];                                                                   \
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0; \
  for (int block = 0; block < k / BLOCK; block++) {                                      \
    UNROLL for (int u = 0; u < BLOCK; u++) ACCUMULATE_PRODUCT(u)                         \
    x += (size_t)m * BLOCK;                                                              \
    w += BLOCK * BLOCK;                                                                  \
  }                                                                                      \
  for (int u = 0; u < k % BLOCK; u++) ACCUMULATE_PRODUCT(u)

// y = activation((x w) * scale + shift)
KERNEL pointwise_forward(INPUT(x), INPUT(w), OUTPUT(y), const int m, const int k EPILOGUE_ARGUMENTS) {
  FROM_WORDS(float, x) FROM(w) INTO(y) EPILOGUE_POINTERS
  PRODUCT_TILE
  UNROLL for (int j = 0; j < PANELS; j++) {
    LOAD_SCALE(s, (panel + j) * BLOCK)
    LOAD_SHIFT(t, (panel + j) * BLOCK)
    UNROLL for (int i = 0; i < ROWS; i++) if (row + i >= tile * ROWS) {
      V v = sum[i][j];
      APPLY_SCALE(v, s)
      APPLY_SHIFT(v, t)
      ACTIVATE(v)
      STORE(y + ((size_t)(panel + j) * m + row + i) * BLOCK, v);
    }
  }
}

// dx = dy w^T, given the transposed weights [n/16][k][16] (here k counts the forward pass's output channels)
KERNEL pointwise_backward_data(INPUT(x), INPUT(w), const int m, const int k, GRADIENT_OUTPUT) {
  FROM_WORDS(float, x) FROM(w) GRADIENT_POINTERS
  PRODUCT_TILE
  UNROLL for (int j = 0; j < PANELS; j++)
    UNROLL for (int i = 0; i < ROWS; i++) if (row + i >= tile * ROWS)
      WRITE_GRADIENT(((size_t)(panel + j) * m + row + i) * BLOCK, sum[i][j])
}

// The same from the weights as they are, [n/16][k][16]: a work-item 16 channels of dx, for so few rows m that a transposed
// copy of the weights, read once, would cost more than these sums across lanes.
#define ACROSS(v, i)                                                              \
  {                                                                               \
    const float8 half_ = (v).lo + (v).hi;                                         \
    const float4 quarter_ = half_.lo + half_.hi;                                  \
    LANE(total, i) = quarter_.x + quarter_.y + quarter_.z + quarter_.w;           \
  }
KERNEL few_rows_backward_data(INPUT(dy), INPUT(w), const int m, const int k, const int n_blocks, GRADIENT_OUTPUT) {
  FROM(dy) FROM(w) GRADIENT_POINTERS
  const int channel = get_global_id(0) * BLOCK, count = k - channel < BLOCK ? k - channel : BLOCK;
  if (channel >= k) return;
  for (int row = 0; row < m; row++) {
    V sum[BLOCK], total = (V)0;
    UNROLL for (int i = 0; i < BLOCK; i++) sum[i] = (V)0;
    for (int block = 0; block < n_blocks; block++) {
      const V g = LOAD(dy + ((size_t)block * m + row) * BLOCK);
      input rows = w + ((size_t)block * k + channel) * BLOCK;
      UNROLL for (int i = 0; i < BLOCK; i++) if (i < count) sum[i] += LOAD(rows + i * BLOCK) * g;
    }
    UNROLL for (int i = 0; i < BLOCK; i++) ACROSS(sum[i], i)
    WRITE_GRADIENT(((size_t)get_global_id(0) * m + row) * BLOCK, total)
  }
}

// dw = (add ? dw : 0) + x^T dy over rows [first, first + count) of group get_global_id(2); a tile is DEPTH rows of w x
// PANELS blocks. Groups have partial sums of their own, one after the other in dw. If SUMS, the first tiles also add up
// the rows of dy they see.
KERNEL pointwise_backward_weights(INPUT(x), INPUT(dy), OUTPUT(dw)
#if SUMS
                                  , OUTPUT(sums)
#endif
                                  , const int m, const int k, const int n_blocks, const int first, const int count,
                                  const int add) {
  FROM_WORDS(float, x) FROM(dy) INTO(dw)
  const int tile = ITEM, panel = get_global_id(1) * PANELS, group = get_global_id(2);
  const int start = first + group * count, stop = start + count < m ? start + count : m;
  const int channel = tile * DEPTH;
  if (channel >= k) return;
  input a = x + ((size_t)(channel / BLOCK) * m + start) * BLOCK + channel % BLOCK;
  input d = dy + ((size_t)panel * m + start) * BLOCK;
  V sum[DEPTH][PANELS];
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;
#if SUMS
  V row_sum[PANELS];
  UNROLL for (int j = 0; j < PANELS; j++) row_sum[j] = (V)0;
#endif
  for (int row = start; row < stop; row++) {
    V column[PANELS];
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = LOAD(d + (size_t)j * m * BLOCK);
#if SUMS
    if (channel == 0) UNROLL for (int j = 0; j < PANELS; j++) row_sum[j] += column[j];
#endif
    UNROLL for (int i = 0; i < DEPTH; i++) {
      const V value = (V)(a[i]);
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];
    }
    a += BLOCK;
    d += BLOCK;
  }
  output target = dw + ((size_t)(group * n_blocks + panel) * k + channel) * BLOCK;
  UNROLL for (int i = 0; i < DEPTH; i++) if (channel + i < k) UNROLL for (int j = 0; j < PANELS; j++) {
    V v = sum[i][j];
    if (add) v += LOAD(target + ((size_t)j * k + i) * BLOCK);
    STORE(target + ((size_t)j * k + i) * BLOCK, v);
  }
#if SUMS
  INTO(sums)
  if (channel == 0) UNROLL for (int j = 0; j < PANELS; j++) {
    output total = sums + (size_t)(group * n_blocks + panel + j) * BLOCK;
    if (add) row_sum[j] += LOAD(total);
    STORE(total, row_sum[j]);
  }
#endif
}
