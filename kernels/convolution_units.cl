// Convolutions as matrix products by matrix units: see gathered.h.
#define VECTOR_WIDTH 4
#define FIRST_CHANNEL 0
#include "blocked.h"
#include "epilogue.h"
#include "gradient.h"
#include "gathered.h"

#define OUT_COLUMNS (WARP_COLUMNS < 32 ? WARP_COLUMNS : 32)  // of a warp's sums that local memory has room for
#define OUT_WIDTH (OUT_COLUMNS + 8)
#define WARP_SUMS (16 * OUT_WIDTH)
#define OUT_CHUNKS (GROUP / 32 * WARP_SUMS / 4)
#define ROOM (STAGED_CHUNKS > OUT_CHUNKS ? STAGED_CHUNKS : OUT_CHUNKS)
#define PLACE place_of(get_group_id(0), get_group_id(1))

#if UNIT == WGMMA
INLINE void multiply(Tile *tile, __local const Chunk *batch, const Place p, const int are_pixels,
                     __local uint *exchange) {
  const uint left = chunk_number(batch) + p.warp_row / 64 * 64 * CHUNKS;
  const uint right = chunk_number(batch) + LEFT_CHUNKS + p.warp_column * CHUNKS;
  BEGIN_PRODUCTS;
  UNROLL for (int step = 0; step < BATCH; step++) UNROLL for (int part = 0; part < PARTS; part++) {
    const uint at = step * STEP_CHUNKS + part * 2;
    const ulong b = matrix_at(right + at);
    UNROLL for (int i = 0; i < TALL; i++) {
      const ulong a = matrix_at(left + at + i * 64 * CHUNKS);
      if (are_pixels) MULTIPLY_64(tile->of[i], a, b, 0);
      else MULTIPLY_64(tile->of[i], a, b, 1);
    }
  }
  END_PRODUCTS;
}
#else
INLINE void multiply(Tile *tile, __local const Chunk *batch, const Place p, const int are_pixels,
                     __local uint *exchange) {
  UNROLL for (int step = 0; step < BATCH; step++) UNROLL for (int part = 0; part < PARTS; part++) {
    __local const Chunk *left = batch + step * STEP_CHUNKS, *right = left + LEFT_CHUNKS;
    Left b[WIDE / 2];
    UNROLL for (int j = 0; j < WIDE / 2; j++) b[j] = right_columns(right, p.warp_column + j * 16, part);
    UNROLL for (int i = 0; i < TALL; i++) {
      const int row = p.warp_row + i * NEXT_ROWS;
      const Left a = are_pixels ? left_rows(left, row, part) : left_columns(left, row, part);
      UNROLL for (int j = 0; j < WIDE; j++)
        tile->of[i][j] = add_product(tile->of[i][j], a, j % 2 ? b[j / 2].zw : b[j / 2].xy, exchange);
    }
  }
}
#endif

// Sums are handed out by way of local memory, in vectors of four channels: 16 rows and OUT_COLUMNS of a warp at a time,
// rows `i` and columns from `first` on of its tile. A work-item gets OUT_PARTS vectors of them.
#define OUT_PARTS (OUT_COLUMNS / 8)
typedef struct { int row, channel; V v; } Handed;

INLINE __local float *room_of_warp(__local Chunk *room) {
  return (__local float *)room + get_local_id(0) / 32 * WARP_SUMS;
}
INLINE void hand_out(__local float *mine, const Tile *tile, const int i, const int first) {
  UNROLL for (int j = 0; j < OUT_COLUMNS / 8; j++) {
    __local float *to = mine + LANE / 4 * OUT_WIDTH + j * 8 + LANE % 4 * 2;
    *(__local float2 *)to = tile->of[i][first / 8 + j].xy;
    *(__local float2 *)(to + 8 * OUT_WIDTH) = tile->of[i][first / 8 + j].zw;
  }
}
INLINE Handed handed(__local const float *mine, const Place p, const int i, const int first, const int part) {
  const int at = part * 32 + LANE, r = at / 4 % 16, c = at / 64 * 16 + at % 4 * 4;
  return (Handed){p.first_row + p.warp_row + i * NEXT_ROWS + r, p.first_column + p.warp_column + first + c,
                  *(__local const V *)(mine + r * OUT_WIDTH + c)};
}

// y = activation((x * w) * scale + shift); with DEPTH_ROWS, given transposed weights [k/16][taps][n][16]
KERNEL convolution_units_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int images, const int height,
                                 const int width, const int out_height, const int out_width, const int k,
                                 const int n EPILOGUE_ARGUMENTS) {
  __local Chunk room[ROOM] ALIGNED;
  LOCAL_EXCHANGE(exchange);
  output_values y = START(y);
  const Epilogue epilogue = EPILOGUE;
  const Place p = PLACE;
  const int rows = images * out_height * out_width, blocks = (k + BLOCK - 1) / BLOCK;
  const int panels = (n + BLOCK - 1) / BLOCK;
  const Taps taps_y = {0, 1, KERNEL_H, INPUT_Y(0, 0), DILATION_Y}, taps_x = {0, 1, KERNEL_W, INPUT_X(0, 0), DILATION_X};
  const Product product = {rows, height, width, k, n, blocks, images * height * width, taps_y, taps_x};
  const int taps = blocks * TAPS, steps = (taps + TOGETHER - 1) / TOGETHER;
  Walk walk = start_walk(product, p, START(x), START(w), taps, out_height, out_width, STRIDE_Y, STRIDE_X);
  Tile tile;
  clear(&tile);
  multiply_steps(&tile, (Factors){.are_pixels = 1, .product = product, .walk = &walk}, room, steps, p, exchange);
  UNROLL for (int i = 0; i < TALL; i++) HOLD(tile.of[i]);
  __local float *const mine = room_of_warp(room);
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int first = 0; first < WARP_COLUMNS; first += OUT_COLUMNS) {
    hand_out(mine, &tile, i, first);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int part = 0; part < OUT_PARTS; part++) {
      const Handed sums = handed(mine, p, i, first, part);
      const int row = sums.row, channel = sums.channel;
      if (row < rows && channel < panels * BLOCK)
        store(y + ((size_t)(channel / BLOCK) * rows + row) * BLOCK + channel % BLOCK,
              apply(affine_of(epilogue, channel), sums.v));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

// dx = dy * w backwards, given transposed weights [n/16][taps][k][16], with DEPTH_ROWS w itself: here x is dy, k counts
// the forward pass's output channels, and height and width are those of dy. Pixels of dx that meet the same taps, every
// STRIDE_Y-th row and STRIDE_X-th column of an image, are a product of their own: number get_global_id(2).
KERNEL convolution_units_backward_data(INPUT_VALUES(x), INPUT_VALUES(w), const int images, const int height,
                                       const int width, const int in_height, const int in_width, const int k,
                                       const int n, GRADIENT_ARGUMENTS) {
  __local Chunk room[ROOM] ALIGNED;
  LOCAL_EXCHANGE(exchange);
  const Gradient dx = GRADIENT;
  const Place p = PLACE;
  const int top = get_group_id(2) / STRIDE_X, edge = get_group_id(2) % STRIDE_X;
  const int down = (in_height - top + STRIDE_Y - 1) / STRIDE_Y, across = (in_width - edge + STRIDE_X - 1) / STRIDE_X;
  const int rows = images * down * across, in_rows = images * in_height * in_width;
  const int blocks = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK;
  const Taps taps_y = taps_of(top, STRIDE_Y, DILATION_Y, KERNEL_H, PAD_TOP);
  const Taps taps_x = taps_of(edge, STRIDE_X, DILATION_X, KERNEL_W, PAD_LEFT);
  const int count = taps_y.count * taps_x.count, steps = p.first_row < rows ? blocks * count : 0;
  const Product product = {rows, height, width, k, n, blocks, images * height * width, taps_y, taps_x};
  Walk walk = start_walk(product, p, START(x), START(w), steps, rows ? down : 1, rows ? across : 1, 1, 1);
  Tile tile;
  clear(&tile);
  multiply_steps(&tile, (Factors){.are_pixels = 1, .product = product, .walk = &walk}, room, steps, p, exchange);
  UNROLL for (int i = 0; i < TALL; i++) HOLD(tile.of[i]);
  __local float *const mine = room_of_warp(room);
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int first = 0; first < WARP_COLUMNS; first += OUT_COLUMNS) {
    hand_out(mine, &tile, i, first);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int part = 0; part < OUT_PARTS; part++) {
      const Handed sums = handed(mine, p, i, first, part);
      const int row = sums.row, channel = sums.channel;
      if (row >= rows || channel >= panels * BLOCK) continue;
#if STRIDE_Y * STRIDE_X == 1
      const int pixel = row;
#else
      const int line = row / across * STRIDE_Y + top + row / (across * down) * (in_height - down * STRIDE_Y);
      const int pixel = line * in_width + row % across * STRIDE_X + edge;
#endif
      write_gradient(dx, ((size_t)(channel / BLOCK) * in_rows + pixel) * BLOCK + channel % BLOCK, sums.v);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

// partials[group]: [n/16][taps][k][16] = (add ? what was there : 0) + x^T dy over the `span` rows of dy of group
// get_global_id(2)
KERNEL convolution_units_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials), const int images,
                                          const int height, const int width, const int out_height, const int out_width,
                                          const int k, const int n, const int span, const int add) {
  __local Chunk room[ROOM] ALIGNED;
  LOCAL_EXCHANGE(exchange);
  const Place p = PLACE;
  const int rows = images * out_height * out_width, group = get_group_id(2), panels = (n + BLOCK - 1) / BLOCK;
  const int start = group * span, stop = start + span < rows ? start + span : rows, blocks = (k + BLOCK - 1) / BLOCK;
  const int steps = start < stop ? (stop - start + 15) / 16 : 0;
  Seen seen = start_seen(p, START(x), START(dy), SIZES, blocks, panels, start);
  Tile tile;
  clear(&tile);
  multiply_steps(&tile, (Factors){.sizes = SIZES, .seen = &seen, .stop = stop}, room, steps, p, exchange);
  output dw = START(partials) + (size_t)group * panels * TAPS * k * BLOCK;
  UNROLL for (int i = 0; i < TALL; i++) HOLD(tile.of[i]);
  __local float *const mine = room_of_warp(room);
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int first = 0; first < WARP_COLUMNS; first += OUT_COLUMNS) {
    hand_out(mine, &tile, i, first);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int part = 0; part < OUT_PARTS; part++) {
      const Handed sums = handed(mine, p, i, first, part);
      const int number = sums.row / SHARE, block = number / TAPS, depth = block * BLOCK + sums.row % SHARE;
      const int channel = sums.channel;
      if (block >= blocks || depth >= k || channel >= panels * BLOCK) continue;
      const size_t weight_row = (size_t)(channel / BLOCK) * (TAPS * k) + number % TAPS * k + depth;
      output to = dw + weight_row * BLOCK + channel % BLOCK;
      store(to, add ? sums.v + load(to) : sums.v);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
