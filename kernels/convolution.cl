// Convolution with any kernel, stride, padding and dilation. x: [c/IN_BLOCK][images*height*width][IN_BLOCK]: a
// network's input of fewer than 16 channels is stored unpadded, everything else has IN_BLOCK 16.
// w: [out/16][taps][channels][16]. A work-item computes TILE outputs of a row x PANELS blocks of 16 channels.
#include "blocked.h"
#include "epilogue.h"
#include "gradient.h"
#include "group_sum.h"

typedef input_values Data;
typedef V Sum;
INLINE Sum value_of(const Value x, const short zero) { return (V)factor(float_of(x)); }
INLINE Sum weights_at(Data p) { return factor(load(p)); }
INLINE Sum gradients_at(Data p, const short zero) { return factor(load(p)); }

// A tile's sums are written to y, as a gradient, or to the partial sums of the weights.
#include "window.h"
typedef struct { output_values y; Epilogue epilogue; } Outputs;
typedef Gradient Gradients;
typedef struct { output partials; int channels, out_blocks, group, add; __local V *shares; } Weights;

INLINE void write_outputs(const Outputs target, V sum[TILE][PANELS], const Sizes s, const int image, const int oy,
                          const int ox, const int panel) {
  UNROLL for (int j = 0; j < PANELS; j++) {
    const Affine affine = affine_of(target.epilogue, (panel + j) * BLOCK);
    UNROLL for (int i = 0; i < TILE; i++) {
      const size_t plane = (size_t)(panel + j) * s.images + image;
      const size_t row = plane * s.out_height * s.out_width + oy * s.out_width + ox + i;
      sum[i][j] = apply(affine, sum[i][j]);
      if (ox + i < s.out_width) store(target.y + row * BLOCK, sum[i][j]);
    }
    Moments moments = NO_MOMENTS;
    add_moments(&moments, &sum[0][j], PANELS, TILE, 0, s.out_width - ox < TILE ? s.out_width - ox : TILE);
    leave_moments(target.epilogue, moments, ITEM, panel + j, get_global_size(1) * PANELS);
  }
}

INLINE void write_gradients(const Gradients target, V sum[TILE][PANELS], const Sizes s, const int image, const int iy,
                            const int first, const int panel) {
  UNROLL for (int j = 0; j < PANELS; j++)
    UNROLL for (int i = 0; i < TILE; i++) {
      const int ix = first + i * STRIDE_X;
      const size_t plane = (size_t)(panel + j) * s.images + image;
      if (ix < s.width) write_gradient(target, (plane * s.height * s.width + iy * s.width + ix) * BLOCK, sum[i][j]);
    }
}

INLINE void write_weights(const Weights target, V sum[DEPTH][PANELS], const int tap, const int channel,
                          const int panel) {
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) {
    const size_t block = target.group * target.out_blocks + panel + j;
    output dw = target.partials + ((block * TAPS + tap) * target.channels + channel + i) * BLOCK;
    const V v = group_sum(sum[i][j], target.shares);
    if (IS_FIRST_MEMBER && channel + i < target.channels) store(dw, target.add ? v + load(dw) : v);
  }
}
#include "window_products.h"

// Groups of channels that are whole blocks: each COLUMN_BLOCKS blocks of the result read `channels` of their own. 0: there
// is one group.
#ifndef COLUMN_BLOCKS
#define COLUMN_BLOCKS 0
#endif
INLINE Data column_of(Data x, const int panel, const int channels, const int rows) {
#if COLUMN_BLOCKS
  return x + (size_t)(panel / COLUMN_BLOCKS * (channels / BLOCK)) * rows * BLOCK;
#else
  return x;
#endif
}

// y = activation((x * w) * scale + shift)
KERNEL convolution_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int images, const int height,
                           const int width, const int channels, const int out_height,
                           const int out_width EPILOGUE_ARGUMENTS) {
  const int tiles = (out_width + TILE - 1) / TILE, part = ITEM, panel = get_global_id(1) * PANELS;
  const int image = part / (tiles * out_height), oy = part / tiles % out_height, ox = part % tiles * TILE;
  if (image >= images) return;
  const Outputs target = {ITEM_START(y), EPILOGUE};
  const Data column = column_of(START(x), panel, channels, images * height * width);
  forward_tile(target, column, ITEM_START(w), SIZES, channels, image, oy, ox, panel, 0);
}

// dx = dy * w backwards, given transposed weights t: [channels/16][taps][out][16]. A tile holds every STRIDE_X-th
// input column from one residue on, so that its outputs are neighbours.
KERNEL convolution_backward_data(INPUT_VALUES(dy), INPUT_VALUES(t), const int images, const int height, const int width,
                                 const int out, const int out_height, const int out_width, GRADIENT_ARGUMENTS) {
  const int tiles = (width + TILE * STRIDE_X - 1) / (TILE * STRIDE_X) * STRIDE_X;
  const int part = ITEM, panel = get_global_id(1) * PANELS, image = part / (tiles * height);
  if (image >= images) return;
  const int iy = part / tiles % height, residue = part % tiles % STRIDE_X;
  const int ix = part % tiles / STRIDE_X * TILE * STRIDE_X + residue;
  const Data column = column_of(START(dy), panel, out, images * out_height * out_width);
  backward_tile(GRADIENT, column, ITEM_START(t), SIZES, out, image, iy, ix, panel, 0);
}

// partials[group]: [out/16][taps][channels][16] = (add ? what was there : 0) + the sum of x * dy over (image, output
// row) pairs, `rows` a member of a work-group, which computes one tap, DEPTH channels of x and PANELS blocks of dy.
KERNEL convolution_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials), const int images,
                                    const int height, const int width, const int channels, const int out_height,
                                    const int out_width, const int rows, const int out_blocks, const int add) {
  LOCAL_SHARES(shares);
  const int depth_tiles = (channels + DEPTH - 1) / DEPTH;
  const int tap = get_group_id(0) / depth_tiles, channel = get_group_id(0) % depth_tiles * DEPTH;
  const int panel = get_global_id(1) * PANELS, group = get_global_id(2), total = images * out_height;
  const int first = (group * MEMBERS + ITEM % MEMBERS) * rows, last = first + rows < total ? first + rows : total;
  const Weights target = {ITEM_START(partials), channels, out_blocks, group, add, shares};
  const Data column = column_of(START(x), panel, channels, images * height * width);
  weight_tile(target, column, ITEM_START(dy), SIZES, tap, channel, panel, first, last, 0, 0);
}
