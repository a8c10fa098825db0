// Convolutions of 8-bit integers as matrix products by matrix units: see gathered.h. Results have the bits of
// quantized_convolution.cl. Work-groups take tiles in turn, neighbours in the same rows; with RangeStatistics there are as
// many groups as records.
//
// Factors are multiplied as they are stored. What their zero points add to a sum is taken off at the end, from the sums
// of rows and columns, which are products with ones. The padding around an image holds its zero point.
#define VECTOR_WIDTH 4
#include "integers.h"
#include "epilogue.h"
#include "gathered.h"

INLINE Chunk filled_with(const int zero) { return (Chunk)(((uint)zero & 0xFF) * 0x01010101); }

INLINE void multiply(Tile *tile, __local const Chunk *batch, const Place p, const int are_pixels,
                     __local uint *exchange) {
  const Left ones = (Left)0x01010101;
  UNROLL for (int step = 0; step < BATCH; step += STEPS) {
    __local const Chunk *left = batch + step * STEP_CHUNKS, *right = left + LEFT_CHUNKS;
    Left b[WIDE / 2];
    UNROLL for (int j = 0; j < WIDE / 2; j++) b[j] = right_columns(right, p.warp_column + j * 16, 0);
    UNROLL for (int i = 0; i < TALL; i++) {
      const int row = p.warp_row + i * 16;
      const Left a = are_pixels ? left_rows(left, row, 0) : left_columns(left, row, 0);
      UNROLL for (int j = 0; j < WIDE; j++)
        tile->of[i][j] = add_product(tile->of[i][j], a, j % 2 ? b[j / 2].zw : b[j / 2].xy, exchange);
      if (!are_pixels) tile->of_rows[i] = add_product(tile->of_rows[i], a, ones.xy, exchange);
    }
    UNROLL for (int j = 0; j < WIDE; j++)
      tile->of_columns[j] = add_product(tile->of_columns[j], ones, j % 2 ? b[j / 2].zw : b[j / 2].xy, exchange);
  }
}

// The sums of four channels that a lane holds of row LANE / 4 or, `lower`, of the one eight below
INLINE Ints of_channels(const Sums even, const Sums odd, const int lower) {
  return lower ? (Ints)(even.z, odd.z, even.w, odd.w) : (Ints)(even.x, odd.x, even.y, odd.y);
}

// y = activation((x * w) * scale + shift)
KERNEL quantized_units_forward(INPUT_QUANTIZED(x), INPUT_QUANTIZED(w), RESULT_ARGUMENTS, const int images,
                               const int height, const int width, const int out_height, const int out_width,
                               const int k, const int n EPILOGUE_ARGUMENTS) {
  __local Chunk room[STAGED_CHUNKS];
  LOCAL_EXCHANGE(exchange);
  LOCAL_RECORDS(shared);
  const int rows = images * out_height * out_width, depths = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK;
  const int across = (n + COLUMNS - 1) / COLUMNS, down = (rows + ROWS - 1) / ROWS, steps = depths * TAPS;
  input x_range = START(x_range), w_range = RANGE_START(w_range);
  const int zero = (int)x_range[ZERO];
  const float x_step = x_range[SCALE_OF];
  const Chunk fill = filled_with(zero);
  const Result result = RESULT(rows);
  const Epilogue epilogue = EPILOGUE;
  const Taps taps_y = {0, 1, KERNEL_H, INPUT_Y(0, 0), DILATION_Y}, taps_x = {0, 1, KERNEL_W, INPUT_X(0, 0), DILATION_X};
  const Product product = {rows, height, width, k, n, depths, images * height * width, taps_y, taps_x};
  RangeStatistics s = NO_STATISTICS;
  for (int number = get_group_id(0); number < down * across; number += get_global_size(0) / GROUP) {
    const Place p = place_of(number / across, number % across);
    Walk walk = start_walk(product, p, START(x), START(w), steps, out_height, out_width, STRIDE_Y, STRIDE_X);
    Tile tile;
    clear(&tile);
    multiply_steps(&tile, (Factors){.are_pixels = 1, .product = product, .walk = &walk, .fill = fill}, room, steps, p,
                   exchange);
    UNROLL for (int j = 0; j < WIDE; j += 2) {
      const int block = (p.first_column + p.warp_column) / BLOCK + j / 2;
      if (block >= panels) continue;
      const V step = field(w_range, SCALE_OF, block) * x_step;
      const Affine affine = affine_of(epilogue, block * BLOCK);
      const Ints offset = zero * of_channels(tile.of_columns[j], tile.of_columns[j + 1], 0);
      UNROLL for (int i = 0; i < TALL * 2; i++) {
        const int row = p.first_row + p.warp_row + i * 8 + LANE / 4;
        if (row >= rows) continue;
        const V v = VECTOR(convert_float)(of_channels(tile.of[i / 2][j], tile.of[i / 2][j + 1], i % 2) - offset) * step;
        write_result(result, &s, block, row, apply(affine, v), draw(result, block, row, 1).of[0]);
      }
    }
  }
  WRITE_STATISTICS(s, shared);
}

// dx = dy * w backwards, given transposed weights t: [n/16][taps][k][16], where k counts the forward pass's output
// channels, and height and width are those of dy. Pixels of dx that meet the same taps, every STRIDE_Y-th row and
// STRIDE_X-th column of an image, are a product of their own.
KERNEL quantized_units_backward_data(INPUT_QUANTIZED(dy), INPUT_QUANTIZED(t), RESULT_ARGUMENTS, const int images,
                                     const int height, const int width, const int in_height, const int in_width,
                                     const int k, const int n MASK_ARGUMENTS) {
  __local Chunk room[STAGED_CHUNKS];
  LOCAL_EXCHANGE(exchange);
  LOCAL_RECORDS(shared);
  const int in_rows = images * in_height * in_width, depths = (k + BLOCK - 1) / BLOCK;
  const int panels = (n + BLOCK - 1) / BLOCK, across = (n + COLUMNS - 1) / COLUMNS;
  const int most = images * ((in_height + STRIDE_Y - 1) / STRIDE_Y) * ((in_width + STRIDE_X - 1) / STRIDE_X);
  const int tiles = (most + ROWS - 1) / ROWS * across;
  input dy_range = START(dy_range), t_range = RANGE_START(t_range);
  const int zero = (int)dy_range[ZERO];
  const float dy_step = dy_range[SCALE_OF];
  const Chunk fill = filled_with(zero);
  const Result result = RESULT(in_rows);
  const Mask mask = MASK_START;
  RangeStatistics s = NO_STATISTICS;
  for (int item = get_group_id(0); item < tiles * STRIDE_Y * STRIDE_X; item += get_global_size(0) / GROUP) {
    const int residue = item / tiles, number = item % tiles, from_y = residue / STRIDE_X, from_x = residue % STRIDE_X;
    const int down = (in_height - from_y + STRIDE_Y - 1) / STRIDE_Y;
    const int wide = (in_width - from_x + STRIDE_X - 1) / STRIDE_X;
    const int rows = images * down * wide, line_count = rows ? down : 1, length = rows ? wide : 1;
    const Place p = place_of(number / across, number % across);
    const Taps taps_y = taps_of(from_y, STRIDE_Y, DILATION_Y, KERNEL_H, PAD_TOP);
    const Taps taps_x = taps_of(from_x, STRIDE_X, DILATION_X, KERNEL_W, PAD_LEFT);
    const int steps = p.first_row < rows ? depths * taps_y.count * taps_x.count : 0;
    const Product product = {rows, height, width, k, n, depths, images * height * width, taps_y, taps_x};
    Walk walk = start_walk(product, p, START(dy), START(t), steps, line_count, length, 1, 1);
    Tile tile;
    clear(&tile);
    multiply_steps(&tile, (Factors){.are_pixels = 1, .product = product, .walk = &walk, .fill = fill}, room, steps, p,
                   exchange);
    int pixel[TALL * 2];
    UNROLL for (int i = 0; i < TALL * 2; i++) {
      const int row = p.first_row + p.warp_row + i * 8 + LANE / 4;
#if STRIDE_Y * STRIDE_X == 1
      pixel[i] = row < rows ? row : -1;
#else
      const int line = row / length, y = line * STRIDE_Y + from_y + line / line_count * (in_height - down * STRIDE_Y);
      pixel[i] = row < rows ? y * in_width + row % length * STRIDE_X + from_x : -1;
#endif
    }
    UNROLL for (int j = 0; j < WIDE; j += 2) {
      const int block = (p.first_column + p.warp_column) / BLOCK + j / 2;
      if (block >= panels) continue;
      const V step = field(t_range, SCALE_OF, block) * dy_step;
      const Ints offset = zero * of_channels(tile.of_columns[j], tile.of_columns[j + 1], 0);
      UNROLL for (int i = 0; i < TALL * 2; i++) if (pixel[i] >= 0) {
        const V v = VECTOR(convert_float)(of_channels(tile.of[i / 2][j], tile.of[i / 2][j + 1], i % 2) - offset) * step;
        write_result_gradient(result, mask, &s, block, pixel[i], v, draw(result, block, pixel[i], 1).of[0]);
      }
    }
  }
  WRITE_STATISTICS(s, shared);
}

// partials[group]: [n/16][taps][k][16] = (add ? what was there : 0) + x^T dy over the `span` rows of dy of group
// get_group_id(2)
KERNEL quantized_units_backward_weights(INPUT_QUANTIZED(x), INPUT_QUANTIZED(dy), OUTPUT(partials), const int images,
                                        const int height, const int width, const int out_height, const int out_width,
                                        const int k, const int n, const int span, const int add) {
  __local Chunk room[STAGED_CHUNKS];
  LOCAL_EXCHANGE(exchange);
  const Place p = place_of(get_group_id(0), get_group_id(1));
  const int rows = images * out_height * out_width, group = get_group_id(2), panels = (n + BLOCK - 1) / BLOCK;
  const int start_row = group * span, stop = start_row + span < rows ? start_row + span : rows;
  const int count = start_row < stop ? stop - start_row : 0, steps = (count + 15) / 16;
  const int depths = (k + BLOCK - 1) / BLOCK;
  input x_range = START(x_range), dy_range = START(dy_range);
  const int x_zero = (int)x_range[ZERO], dy_zero = (int)dy_range[ZERO];
  const float scale = x_range[SCALE_OF] * dy_range[SCALE_OF];
  const Chunk fill = filled_with(x_zero);
  Seen seen = start_seen(p, START(x), START(dy), SIZES, depths, panels, start_row);
  Tile tile;
  clear(&tile);
  multiply_steps(&tile, (Factors){.sizes = SIZES, .seen = &seen, .stop = stop, .fill = fill}, room, steps, p, exchange);
  output dw = ITEM_START(partials) + (size_t)group * panels * TAPS * k * BLOCK;
  UNROLL for (int i = 0; i < TALL * 2; i++) {
    const int number = (p.first_row + p.warp_row) / BLOCK + i / 2, block = number / TAPS, tap = number % TAPS;
    const int depth = block * BLOCK + LANE / 4 * 2 + i % 2;
    if (block >= depths || depth >= k) continue;
    const int of_row = dy_zero * ((i % 2 ? tile.of_rows[i / 2].z : tile.of_rows[i / 2].x) - count * x_zero);
    UNROLL for (int j = 0; j < WIDE; j += 2) {
      const int panel = (p.first_column + p.warp_column) / BLOCK + j / 2;
      if (panel >= panels) continue;
      const Ints of_columns = x_zero * of_channels(tile.of_columns[j], tile.of_columns[j + 1], 0);
      const Ints exact = of_channels(tile.of[i / 2][j], tile.of[i / 2][j + 1], i % 2) - of_columns - of_row;
      output to = dw + ((size_t)panel * (TAPS * k) + tap * k + depth) * BLOCK;
      V v = VECTOR(convert_float)(exact) * scale;
      if (add) v += load(to);
      store(to, v);
    }
  }
}
