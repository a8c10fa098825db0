// Matrix products over blocked matrices: pointwise convolution and dense layers.
// x: [k/16][m][16], w: [n/16][k][16], y: [n/16][m][16]; m rows, k channels in, n channels out.
//
// A work-item computes ROWS rows x PANELS blocks of 16 channels in registers. The last tile of rows starts early, so
// that it is full, and writes only the rows that its neighbour does not. m >= ROWS, and PANELS divides n/16.
#include "blocked.h"
#include "functions.h"
#include "epilogue.h"
#include "finite.h"
#include "gradient.h"
#include "products.h"

#ifndef DEPTH
#define DEPTH 1
#endif
#ifndef CHECKED
#define CHECKED 0
#endif

// Tiles come in chunks whose rows stay in a core's cache while all panels of w pass by. The grid is (tile of a chunk,
// panel, chunk). Returns the number of the tile among all.
INLINE int tile_of_item(void) { return get_global_id(2) * (get_global_size(0) / VECTORS) + ITEM; }

// The first row of a tile
INLINE int first_row(const int tile, const int m) { return tile * ROWS < m - ROWS ? tile * ROWS : m - ROWS; }

#ifndef BEFORE
#define BEFORE 0
#endif

// y = activation((x w) * scale + shift); BEFORE: what the activation is of, too
KERNEL pointwise_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int m,
                         const int k EPILOGUE_ARGUMENTS OUTPUT_IF(BEFORE, before)) {
  const int tile = tile_of_item(), panel = get_global_id(1) * PANELS;
  if (tile * ROWS >= m) return;
  const int row = first_row(tile, m);
  output_values y = ITEM_START(y);
  V sum[ROWS][PANELS];
  multiply(sum, START(x), ITEM_START(w), m, k, row, panel);
  UNROLL for (int j = 0; j < PANELS; j++) {
    const Affine affine = affine_of(EPILOGUE, (panel + j) * BLOCK);
    UNROLL for (int i = 0; i < ROWS; i++) {
      const size_t at = ((size_t)(panel + j) * m + row + i) * BLOCK;
#if BEFORE
      if (row + i >= tile * ROWS) store(ITEM_START(before) + at, scaled(affine, sum[i][j]));
#endif
      sum[i][j] = apply(affine, sum[i][j]);
      if (row + i >= tile * ROWS) store(y + at, sum[i][j]);
    }
    Moments moments = NO_MOMENTS;
    add_moments(&moments, &sum[0][j], PANELS, ROWS, tile * ROWS - row, ROWS);
    leave_moments(EPILOGUE, moments, tile, panel + j, get_global_size(1) * PANELS);
  }
}

// dx = dy w^T, given the transposed weights [n/16][k][16] (here k counts the forward pass's output channels)
KERNEL pointwise_backward_data(INPUT_VALUES(x), INPUT_VALUES(w), const int m, const int k, GRADIENT_ARGUMENTS) {
  const int tile = tile_of_item(), panel = get_global_id(1) * PANELS;
  if (tile * ROWS >= m) return;
  const int row = first_row(tile, m);
  const Gradient dx = GRADIENT;
  V sum[ROWS][PANELS];
  multiply(sum, START(x), ITEM_START(w), m, k, row, panel);
  UNROLL for (int j = 0; j < PANELS; j++)
    UNROLL for (int i = 0; i < ROWS; i++) if (row + i >= tile * ROWS)
      write_gradient(dx, ((size_t)(panel + j) * m + row + i) * BLOCK, sum[i][j]);
}

// The same from the weights as they are, [n/16][k][16]: a work-item computes 16 channels of dx. For so few rows m that
// a transposed copy of the weights, read once, would cost more than these sums over the elements of vectors.
KERNEL few_rows_backward_data(INPUT_VALUES(dy), INPUT_VALUES(w), const int m, const int k, const int n_blocks,
                              GRADIENT_ARGUMENTS) {
  input_values dy = ITEM_START(dy), w = ITEM_START(w);
  const Gradient dx = GRADIENT;
  const int channel = get_global_id(0) * BLOCK, count = k - channel < BLOCK ? k - channel : BLOCK;
  if (channel >= k) return;
  for (int row = 0; row < m; row++) {
    V sum[BLOCK], total = (V)0;
    UNROLL for (int i = 0; i < BLOCK; i++) sum[i] = (V)0;
    for (int block = 0; block < n_blocks; block++) {
      const V g = factor(load(dy + ((size_t)block * m + row) * BLOCK));
      input_values rows = w + ((size_t)block * k + channel) * BLOCK;
      UNROLL for (int i = 0; i < BLOCK; i++) if (i < count) sum[i] += factor(load(rows + i * BLOCK)) * g;
    }
    UNROLL for (int i = 0; i < BLOCK; i++) ELEMENT(total, i) = sum_of_elements(sum[i]);
    write_gradient(dx, ((size_t)get_global_id(0) * m + row) * BLOCK, total);
  }
}

// A tile of a weight gradient is computed in PARTS, one after the other, whose sums fit into the registers.
#ifndef PARTS
#define PARTS 1
#endif
#define PART ((DEPTH + PARTS - 1) / PARTS)
#define OF_PART(i) if (first + i < DEPTH)  // constant, as the number of iterations is: else sums would stay in memory

typedef struct { int m, k, n_blocks, panel, group, channel, start, stop, add; } Tile;

// Write PART rows of a tile from its row `first` on: x and dy point to the first row that is summed up, and to the tile's
// channels and panel. Returns a sum that is 0 if all that is written is finite.
INLINE V write_part(output dw, output sums, input_values x, input_values dy, const Tile t, const int first) {
  V sum[PART][PANELS], rest = (V)0;
  UNROLL for (int i = 0; i < PART; i++) OF_PART(i) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;
#if SUMS
  V row_sum[PANELS];
  UNROLL for (int j = 0; j < PANELS; j++) row_sum[j] = (V)0;
#endif
  for (int row = t.start; row < t.stop; row++) {
    V column[PANELS];
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = load(dy + (size_t)j * t.m * BLOCK);
#if SUMS
    if (t.channel + first == 0) UNROLL for (int j = 0; j < PANELS; j++) row_sum[j] += column[j];
#endif
    UNROLL for (int i = 0; i < PART; i++) OF_PART(i) {
      const V value = (V)(factor(float_of(x[first + i])));
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * factor(column[j]);
    }
    x += BLOCK;
    dy += BLOCK;
  }
  output target = dw + ((size_t)(t.group * t.n_blocks + t.panel) * t.k + t.channel + first) * BLOCK;
  UNROLL for (int i = 0; i < PART; i++) OF_PART(i)
    if (t.channel + first + i < t.k) UNROLL for (int j = 0; j < PANELS; j++) {
      V v = sum[i][j];
      if (t.add) v += load(target + ((size_t)j * t.k + i) * BLOCK);
      store(target + ((size_t)j * t.k + i) * BLOCK, v);
      rest += v - v;
    }
#if SUMS
  if (t.channel + first == 0) UNROLL for (int j = 0; j < PANELS; j++) {
    output total = sums + (size_t)(t.group * t.n_blocks + t.panel + j) * BLOCK;
    if (t.add) row_sum[j] += load(total);
    store(total, row_sum[j]);
  }
#endif
  return rest;
}

// dw = (add ? dw : 0) + x^T dy over rows [first, first + count) of group get_global_id(2); a tile is DEPTH rows of w x
// PANELS blocks. Groups have partial sums of their own, one after the other in dw. With SUMS, the first tiles also add
// up the rows of dy they read. CHECKED: a tile sets a flag if what it writes isn't finite.
KERNEL pointwise_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(dw) OUTPUT_IF(SUMS, sums),
                                  const int m, const int k, const int n_blocks, const int first, const int count,
                                  const int add OUTPUT_IF(CHECKED, flags)) {
  const int tile = ITEM, panel = get_global_id(1) * PANELS, group = get_global_id(2);
  const int start = first + group * count, stop = start + count < m ? start + count : m;
  const int channel = tile * DEPTH;
  if (channel >= k) return;
  input_values a = START(x) + ((size_t)(channel / BLOCK) * m + start) * BLOCK + channel % BLOCK;
  input_values d = ITEM_START(dy) + ((size_t)panel * m + start) * BLOCK;
  const Tile t = {m, k, n_blocks, panel, group, channel, start, stop, add};
#if SUMS
  output of_rows = ITEM_START(sums);
#else
  output of_rows = 0;
#endif
  V rest = write_part(ITEM_START(dw), of_rows, a, d, t, 0);
#if PARTS > 1
  rest += write_part(ITEM_START(dw), of_rows, a, d, t, PART);
#endif
#if PARTS > 2
  rest += write_part(ITEM_START(dw), of_rows, a, d, t, 2 * PART);
#endif
#if CHECKED
  write_flag(START(flags), get_global_id(1) * ((k + DEPTH - 1) / DEPTH) + tile, rest);
#endif
}
