// Convolutions of 8-bit integers with any kernel, stride, padding and dilation, and matrix products, as those with one
// tap. x: [c/IN_BLOCK][images*height*width][IN_BLOCK], w: [out/16][taps][channels][16], of which x may have a zero
// point; taps in the padding contribute nothing. A work-item computes TILE outputs of a row x PANELS blocks of 16
// channels.
#include "integers.h"
#include "bounds.h"

typedef bytes Data;
typedef Ints Sum;
INLINE Sum value_of(const char x, const short zero) { return (Ints)((int)(short)(x - zero)); }
INLINE Sum weights_at(Data p) { return load_int8(p); }
INLINE Sum gradients_at(Data p, const short zero) { return load_centred(p, zero); }

// A tile's sums, times a step, are written as a result, as a gradient, or to the partial sums of the weights.
#include "window.h"
#ifdef UNIT
#define BY_QUADS 1
#else
#define BY_QUADS 0
#endif
#include "quads.h"
// Taps of a row of the kernel whose channels lie one after the other, in the input as in the weights: with a unit they
// are one tap with the channels of all.
#if BY_QUADS && IN_BLOCK < BLOCK && DILATION_X == 1
#define WIDE KERNEL_W
#else
#define WIDE 1
#endif
typedef struct { Quads totals[TAPS][PANELS]; int panel; } Kept;  // with a unit: sums of weights, from tile to tile
typedef struct {
  Result result;
  RangeStatistics *statistics;
  Epilogue epilogue;
  Residual residual;
  input w_range;
  float step;
  Kept *kept;
} Outputs;
typedef struct { Result result; RangeStatistics *statistics; Mask mask; input w_range; float step; Kept *kept; } Gradients;
typedef struct { output partials; int channels, out_blocks, group, add; float step; V *rest; } Weights;
#ifndef CHECKED
#define CHECKED 0
#endif

INLINE void write_outputs(const Outputs target, Ints sum[TILE][PANELS], const Sizes s, const int image, const int oy,
                          const int ox, const int panel) {
  UNROLL for (int j = 0; j < PANELS; j++) {
    const V step = field(target.w_range, SCALE_OF, panel + j) * target.step;
    const Affine affine = affine_of(target.epilogue, (panel + j) * BLOCK);
    Uniform uniform;
    UNROLL for (int i = 0; i < TILE; i++) if (ox + i < s.out_width) {
      const int row = (image * s.out_height + oy) * s.out_width + ox + i;
      if (i % DRAWN_ROWS == 0) uniform = draw(target.result, panel + j, row, 1);
      write_result(target.result, target.statistics, panel + j, row,
                   ended(affine, target.residual, VECTOR(convert_float)(sum[i][j]) * step,
                         result_at(target.result, panel + j, row)), uniform.of[i % DRAWN_ROWS]);
    }
  }
}

INLINE void write_gradients(const Gradients target, Ints sum[TILE][PANELS], const Sizes s, const int image,
                            const int iy, const int first, const int panel) {
  UNROLL for (int j = 0; j < PANELS; j++) {
    const V step = field(target.w_range, SCALE_OF, panel + j) * target.step;
    Uniform uniform;
    UNROLL for (int i = 0; i < TILE; i++) if (first + i * STRIDE_X < s.width) {
      const int row = (image * s.height + iy) * s.width + first + i * STRIDE_X;
      if (i % DRAWN_ROWS == 0) uniform = draw(target.result, panel + j, row, STRIDE_X);
      write_result_gradient(target.result, target.mask, target.statistics, panel + j, row,
                            VECTOR(convert_float)(sum[i][j]) * step, uniform.of[i % DRAWN_ROWS]);
    }
  }
}

// A gradient is read again at the end of the step, when a CPU's cache holds other things: writing past the cache spares
// reading it first.
INLINE void store_past_cache(output pointer, const V v) {
#if defined(__has_builtin) && GROUP == 1
#if __has_builtin(__builtin_nontemporal_store)
  __builtin_nontemporal_store(v, (__global V *)pointer);
#define WRITES_PAST_CACHE 1
#endif
#endif
#ifndef WRITES_PAST_CACHE
  store(pointer, v);
#endif
}

INLINE void write_weights(const Weights target, Ints sum[DEPTH][PANELS], const int tap, const int channel,
                          const int panel) {
  UNROLL for (int i = 0; i < DEPTH; i++) if (channel + i < target.channels) UNROLL for (int j = 0; j < PANELS; j++) {
    const size_t block = target.group * target.out_blocks + panel + j;
    output dw = target.partials + ((block * (TAPS / WIDE) + tap) * target.channels + channel + i) * BLOCK;
    V v = VECTOR(convert_float)(sum[i][j]) * target.step;
    if (target.add) v += load(dw);
    store_past_cache(dw, v);
    *target.rest += v - v;
  }
}
#if BY_QUADS
#include "quad_products.h"
#else
#include "window_products.h"
#endif

// Tile number `tile` of all: tile number `column` of `across` in a row of an image, and PANELS blocks from `panel` on
typedef struct { int panel, image, row, column; } Place;
INLINE Place place_of(const int tile, const int images, const int height, const int across) {
  const int part = tile % (images * height * across);
  return (Place){tile / (images * height * across) * PANELS, part / (across * height), part / across % height,
                 part % across};
}

// y = activation((x * w) * scale + shift), or the sum of that and another tensor (residual.h)
KERNEL quantized_convolution_forward(INPUT_QUANTIZED(x), INPUT_QUANTIZED(w), RESULT_ARGUMENTS, const int images,
                                     const int height, const int width, const int channels, const int out_height,
                                     const int out_width, const int out_blocks EPILOGUE_ARGUMENTS
                                     RESIDUAL_ARGUMENTS) {
  LOCAL_RECORDS(shared);
  input x_range = START(x_range);
  RangeStatistics s = NO_STATISTICS;
  Kept kept;
  kept.panel = -1;
  const Outputs target = {within_bounds(RESULT(images * out_height * out_width)), &s, EPILOGUE, RESIDUAL_START,
                          START(w_range), x_range[SCALE_OF], &kept};
  const int across = (out_width + TILE - 1) / TILE;
  const Tiles tiles = tiles_of_item(images * out_height * across * (out_blocks / PANELS));
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const Place at = place_of(tile, images, out_height, across);
    forward_tile(target, START(x), START(w), SIZES, channels, at.image, at.row, at.column * TILE, at.panel,
                 (short)x_range[ZERO]);
  }
  WRITE_STATISTICS(s, shared);
}

// dx = dy * w backwards, given transposed weights t: [channels/16][taps][out][16]. A tile holds every STRIDE_X-th
// input column from one residue on, so that its outputs are neighbours.
KERNEL quantized_convolution_backward_data(INPUT_QUANTIZED(dy), INPUT_QUANTIZED(t), RESULT_ARGUMENTS, const int images,
                                           const int height, const int width, const int out, const int out_height,
                                           const int out_width, const int blocks_in MASK_ARGUMENTS) {
  LOCAL_RECORDS(shared);
  input dy_range = START(dy_range);
  RangeStatistics s = NO_STATISTICS;
  Kept kept;
  kept.panel = -1;
  const Gradients target = {RESULT(images * height * width), &s, MASK_START, START(t_range), dy_range[SCALE_OF], &kept};
  const int across = (width + TILE * STRIDE_X - 1) / (TILE * STRIDE_X) * STRIDE_X;
  const Tiles tiles = tiles_of_item(images * height * across * (blocks_in / PANELS));
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const Place at = place_of(tile, images, height, across);
    const int ix = at.column / STRIDE_X * TILE * STRIDE_X + at.column % STRIDE_X;
    backward_tile(target, START(dy), START(t), SIZES, out, at.image, at.row, ix, at.panel, (short)dy_range[ZERO]);
  }
  WRITE_STATISTICS(s, shared);
}

// partials[group]: [out/16][taps][channels][16] = (add ? what was there : 0) + the sum of x * dy over `rows` (image,
// output row) pairs. A tile has one tap, or WIDE of them, DEPTH channels of x and PANELS blocks of dy; each of `items`
// work-items has neighbouring ones, which lie one after the other in memory. CHECKED: it sets a flag if what it writes
// isn't finite.
KERNEL quantized_convolution_backward_weights(INPUT_QUANTIZED(x), INPUT_QUANTIZED(dy), OUTPUT(partials),
                                              const int images, const int height, const int width, const int channels,
                                              const int out_height, const int out_width, const int rows,
                                              const int out_blocks, const int items, const int add
                                              OUTPUT_IF(CHECKED, flags)) {
  input x_range = START(x_range), dy_range = START(dy_range);
  const int deep = channels * WIDE, depth_tiles = (deep + DEPTH - 1) / DEPTH, tiles = TAPS / WIDE * depth_tiles;
  const int item = get_global_id(0), panel = get_global_id(1) * PANELS, group = get_global_id(2);
  if (item >= items) return;
  const int first = group * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  V rest = (V)0;  // 0 as long as all that is written is finite
  const Weights target = {START(partials), deep, out_blocks, group, add, x_range[SCALE_OF] * dy_range[SCALE_OF], &rest};
  for (int tile = item * tiles / items; tile < (item + 1) * tiles / items; tile++)
    weight_tile(target, START(x), START(dy), SIZES, tile / depth_tiles, tile % depth_tiles * DEPTH, panel, first, last,
                (short)x_range[ZERO], (short)dy_range[ZERO]);
#if CHECKED
  START(flags)[get_global_id(1) * items + item] = sum_of(rest) == 0.0f ? 0.0f : 1.0f;
#endif
}
