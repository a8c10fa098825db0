// Depthwise convolution of 8-bit integers: each channel has its own KERNEL_H x KERNEL_W taps. x: [c/16][images*height*
// width][16], w: [c/16][taps][16], of which x may have a zero point; taps in the padding contribute nothing. A
// work-item computes TILE outputs of a row, loading each input column once. UNIT: four products at a time. Else FLOATS:
// sums of so few products are exact in floats, contracted or not, and vector units add those up faster.
#include "integers.h"
#include "bounds.h"
#include "window.h"

typedef bytes Data;
#ifdef UNIT
typedef Ints Sum;
INLINE V value_of(const Sum sum) { return VECTOR(convert_float)(sum); }
#include "depthwise_quads.h"
#else
#if FLOATS
#pragma OPENCL FP_CONTRACT ON
typedef V Sum;
INLINE Sum tap_at(bytes p) { return VECTOR(convert_float)(load_int8(p)); }
INLINE Sum column_at(Data p, const short zero) { return VECTOR(convert_float)(load_int8(p)) - (V)(float)zero; }
INLINE V value_of(const Sum sum) { return sum; }
#else
typedef Ints Sum;
INLINE Sum tap_at(bytes p) { return load_int8(p); }
INLINE Sum column_at(Data p, const short zero) { return load_centred(p, zero); }
INLINE V value_of(const Sum sum) { return VECTOR(convert_float)(sum); }
#endif
#include "depthwise_products.h"
#pragma OPENCL FP_CONTRACT OFF

typedef Sum Taps[TAPS];
#define SETS_BACKWARD 1
INLINE void load_taps(Taps taps, bytes w, const int block) {
  UNROLL for (int t = 0; t < TAPS; t++) taps[t] = tap_at(w + (block * TAPS + t) * BLOCK);
}
INLINE void load_taps_backward(Taps taps, bytes w, const int block, const int residue) { load_taps(taps, w, block); }

// sum = for each tap, the products of the inputs and the gradients of rows `first` to `last` - 1 of all images of a
// block
INLINE void sum_weight_products(Sum sum[TAPS], Data x, Data dy, const Sizes s, const int first, const int last,
                                const short zero, const short dy_zero) {
  Sum g[TILE];
  clear(sum, TAPS);
  for (int row = first; row < last; row++) for (int ox = 0; ox < s.out_width; ox += TILE) {
    const int image = row / s.out_height, oy = row % s.out_height;
    bytes d = dy + ((size_t)row * s.out_width + ox) * BLOCK;
    UNROLL for (int i = 0; i < TILE; i++) {
      g[i] = (Sum)0;
      if (ox + i < s.out_width) g[i] = column_at(d + i * BLOCK, dy_zero);
    }
    add_weight_products(sum, x + (size_t)image * s.height * s.width * BLOCK, g, s, oy, ox, zero);
  }
}
#endif

// Tile number `tile` of all: column number `column` of `across` tiles in a row of an image and a block
typedef struct { int block, image, row, column; } Place;
INLINE Place place_of(const int tile, const int images, const int height, const int across) {
  const int part = tile % (images * height * across);
  return (Place){tile / (images * height * across), part / (height * across), part / across % height, part % across};
}

// y = activation((x * w) * scale + shift)
KERNEL quantized_depthwise_forward(INPUT_QUANTIZED(x), INPUT_QUANTIZED(w), RESULT_ARGUMENTS, const int images,
                                   const int height, const int width, const int out_height, const int out_width,
                                   const int all_blocks EPILOGUE_ARGUMENTS) {
  LOCAL_RECORDS(shared);
  input x_range = START(x_range), w_range = RANGE_START(w_range);
  const Result result = within_bounds(RESULT(images * out_height * out_width));
  const int across = (out_width + TILE - 1) / TILE;
  const short zero = (short)x_range[ZERO];
  RangeStatistics s = NO_STATISTICS;
  Taps taps;
  int block = -1;  // whose taps these are
  const Tiles tiles = tiles_of_item(images * out_height * across * all_blocks * VECTORS);
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const Place at = place_of(tile / VECTORS, images, out_height, across);
    const int ox = at.column * TILE, first = (at.image * out_height + at.row) * out_width + ox;
    bytes plane = ITEM_START(x) + (size_t)(at.block * images + at.image) * height * width * BLOCK;
    Sum sum[TILE];
    if (at.block != block) load_taps(taps, ITEM_START(w), at.block);
    block = at.block;
    forward_tile(sum, plane, taps, SIZES, at.row, ox, zero);
    const V step = field(w_range, SCALE_OF, at.block) * x_range[SCALE_OF];
    const Affine affine = affine_of(EPILOGUE, at.block * BLOCK);
    Uniform uniform;
    UNROLL for (int i = 0; i < TILE; i++) if (ox + i < out_width) {
      if (i % DRAWN_ROWS == 0) uniform = draw(result, at.block, first + i, 1);
      write_result(result, &s, at.block, first + i,
                   ended(affine, RESIDUAL_START, value_of(sum[i]) * step, result_at(result, at.block, first + i)),
                   uniform.of[i % DRAWN_ROWS]);
    }
  }
  WRITE_STATISTICS(s, shared);
}

// dx = dy * w backwards
KERNEL quantized_depthwise_backward_data(INPUT_QUANTIZED(dy), INPUT_QUANTIZED(w), RESULT_ARGUMENTS, const int images,
                                         const int height, const int width, const int out_height,
                                         const int out_width, const int all_blocks MASK_ARGUMENTS) {
  LOCAL_RECORDS(shared);
  input dy_range = START(dy_range), w_range = RANGE_START(w_range);
  const Result result = RESULT(images * height * width);
  const Mask mask = MASK_START;
  const int across = (width + TILE * STRIDE_X - 1) / (TILE * STRIDE_X);
  const short zero = (short)dy_range[ZERO];
  RangeStatistics s = NO_STATISTICS;
  Taps taps[SETS_BACKWARD];
  int block = -1;  // whose taps these are
  const Tiles tiles = tiles_of_item(images * height * across * all_blocks * VECTORS);
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const Place at = place_of(tile / VECTORS, images, height, across);
    const int ox = at.column * TILE, first = (at.image * height + at.row) * width;
    bytes plane = ITEM_START(dy) + (size_t)(at.block * images + at.image) * out_height * out_width * BLOCK;
    const V step = field(w_range, SCALE_OF, at.block) * dy_range[SCALE_OF];
    Sum sum[TILE];
    if (at.block != block)
      UNROLL for (int i = 0; i < SETS_BACKWARD; i++) load_taps_backward(taps[i], ITEM_START(w), at.block, i);
    block = at.block;
    UNROLL for (int residue = 0; residue < STRIDE_X; residue++) {
      backward_tile(sum, plane, taps[residue % SETS_BACKWARD], SIZES, at.row, ox, residue, zero);
      Uniform uniform;
      UNROLL for (int i = 0; i < TILE; i++) {
        const int ix = (ox + i) * STRIDE_X + residue;
        if (ix >= width) continue;
        if (i % DRAWN_ROWS == 0) uniform = draw(result, at.block, first + ix, STRIDE_X);
        write_result_gradient(result, mask, &s, at.block, first + ix, value_of(sum[i]) * step,
                              uniform.of[i % DRAWN_ROWS]);
      }
    }
  }
  WRITE_STATISTICS(s, shared);
}

// partials[group]: [c/16][taps][16] = (add ? what was there : 0) + the sum of x * dy over `rows` (image, output row)
// pairs
KERNEL quantized_depthwise_backward_weights(INPUT_QUANTIZED(x), INPUT_QUANTIZED(dy), OUTPUT(partials), const int images,
                                            const int height, const int width, const int out_height,
                                            const int out_width, const int rows, const int groups, const int blocks,
                                            const int add) {
  input x_range = START(x_range), dy_range = START(dy_range);
  const int group = ITEM, block = get_global_id(1);
  if (group >= groups) return;
  const int first = group * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  const short zero = (short)x_range[ZERO], dy_zero = (short)dy_range[ZERO];
  Sum sum[TAPS];
  sum_weight_products(sum, ITEM_START(x) + (size_t)block * images * height * width * BLOCK,
                      ITEM_START(dy) + (size_t)block * images * out_height * out_width * BLOCK, SIZES, first, last, zero,
                      dy_zero);
  const float step = x_range[SCALE_OF] * dy_range[SCALE_OF];
  output dw = ITEM_START(partials) + (size_t)(group * blocks + block) * TAPS * BLOCK;
  UNROLL for (int t = 0; t < TAPS; t++) {
    V v = value_of(sum[t]) * step;
    if (add) v += load(dw + t * BLOCK);
    store(dw + t * BLOCK, v);
  }
}
