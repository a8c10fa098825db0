// Depthwise convolution: each channel has its own KERNEL_H x KERNEL_W taps. x: [c/16][images*height*width][16],
// w: [c/16][taps][16]. A work-item keeps the taps of one block of 16 channels in registers and slides along rows,
// TILE outputs at a time, loading each input column once.
#include "blocked.h"
#include "epilogue.h"
#include "gradient.h"
#include "group_sum.h"

typedef input_values Data;
typedef V Sum;
INLINE Sum column_at(Data p, const short zero) { return load(p); }
#include "depthwise_products.h"

// The part of an image of height x width that work-item ITEM computes: `rows` rows by `steps` tiles of `tile` columns.
// No image is left for it where `image` is not below their number.
typedef struct { int image, first_y, first_x, last_y, last_x; } Part;
INLINE Part part_of_image(const int height, const int width, const int tile, const int rows, const int steps) {
  const int parts_x = (width + tile * steps - 1) / (tile * steps), parts_y = (height + rows - 1) / rows, part = ITEM;
  const int first_y = part / parts_x % parts_y * rows, first_x = part % parts_x * tile * steps;
  return (Part){part / (parts_x * parts_y), first_y, first_x, first_y + rows < height ? first_y + rows : height,
                first_x + tile * steps < width ? first_x + tile * steps : width};
}

INLINE void load_taps(V tap[TAPS], input_values w, const int block) {
  UNROLL for (int t = 0; t < TAPS; t++) tap[t] = load(w + (block * TAPS + t) * BLOCK);
}

// y = activation((x * w) * scale + shift)
KERNEL depthwise_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int images, const int height,
                         const int width, const int out_height, const int out_width, const int rows, const int steps
                         EPILOGUE_ARGUMENTS) {
  const int block = get_global_id(1);
  const Part part = part_of_image(out_height, out_width, TILE, rows, steps);
  if (part.image >= images) return;
  input_values plane = ITEM_START(x) + (size_t)(block * images + part.image) * height * width * BLOCK;
  output_values out = ITEM_START(y) + (size_t)(block * images + part.image) * out_height * out_width * BLOCK;
  V tap[TAPS], sum[TILE];
  load_taps(tap, ITEM_START(w), block);
  const Affine affine = affine_of(EPILOGUE, block * BLOCK);
  Moments moments = NO_MOMENTS;
  for (int oy = part.first_y; oy < part.last_y; oy++) for (int ox = part.first_x; ox < part.last_x; ox += TILE) {
    forward_tile(sum, plane, tap, SIZES, oy, ox, 0);
    UNROLL for (int i = 0; i < TILE; i++) {
      sum[i] = apply(affine, sum[i]);
      if (ox + i < out_width) store(out + (oy * out_width + ox + i) * BLOCK, sum[i]);
    }
    add_moments(&moments, sum, 1, TILE, 0, out_width - ox < TILE ? out_width - ox : TILE);
  }
  leave_moments(EPILOGUE, moments, ITEM, block, get_global_size(1));
}

// dx = dy * w backwards
KERNEL depthwise_backward_data(INPUT_VALUES(dy), INPUT_VALUES(w), const int images, const int height, const int width,
                               const int out_height, const int out_width, const int rows, const int steps,
                               GRADIENT_ARGUMENTS) {
  const int block = get_global_id(1);
  const Part part = part_of_image(height, width, TILE * STRIDE_X, rows, steps);
  if (part.image >= images) return;
  input_values plane = ITEM_START(dy) + (size_t)(block * images + part.image) * out_height * out_width * BLOCK;
  const size_t out = (size_t)(block * images + part.image) * height * width * BLOCK;
  const Gradient dx = GRADIENT;
  NormSums sums = norm_sums(dx, block);
  V tap[TAPS], sum[TILE];
  load_taps(tap, ITEM_START(w), block);
  for (int iy = part.first_y; iy < part.last_y; iy++)
    for (int x0 = part.first_x; x0 < part.last_x; x0 += TILE * STRIDE_X)
      UNROLL for (int residue = 0; residue < STRIDE_X; residue++) {
        backward_tile(sum, plane, tap, SIZES, iy, x0 / STRIDE_X, residue, 0);
        UNROLL for (int i = 0; i < TILE; i++) {
          const int ix = x0 + residue + i * STRIDE_X;
          if (ix < width) add_gradient(dx, &sums, out + (iy * width + ix) * BLOCK, sum[i]);
        }
      }
  leave_norm_sums(dx, sums, ITEM, block, get_global_size(1));
}

// partials[group]: [c/16][taps][16] = (add ? what was there : 0) + the sum of x * dy over parts of (image, output row)
// pairs of the group, `rows` a member, each row in `parts`: as a whole, or tile by tile; with SUMS, sums[group]: [c] is
// that of dy. With ROLLING, parts are numbered from the top of a column of tiles to its end, and each row of x is read once for
// all rows of taps.
KERNEL depthwise_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials) OUTPUT_IF(SUMS, sums),
                                  const int images, const int height, const int width, const int out_height,
                                  const int out_width, const int rows, const int blocks, const int add,
                                  const int parts) {
  SEVERAL_LOCAL_SHARES(shares, KERNEL_W);
  const int group = get_group_id(0), block = get_global_id(1), first = ITEM * rows;
  const int total = images * out_height * parts, last = first + rows < total ? first + rows : total;
  V sum[TAPS], g[TILE];
  clear(sum, TAPS);
#if SUMS
  V columns = (V)0;
#endif
#if ROLLING
  V rolling[KERNEL_H][TILE];  // gradients of a row and of those above it, which meet the same row of x
  for (int part = first; part < last;) {
    const int strip = part / out_height, top = part % out_height, image = strip / parts, ox = strip % parts * TILE;
    const int count = last - part < out_height - top ? last - part : out_height - top;
    input_values plane = ITEM_START(x) + (size_t)(block * images + image) * height * width * BLOCK;
    input_values d = ITEM_START(dy) + (size_t)(block * images + image) * out_height * out_width * BLOCK;
    clear(&rolling[0][0], KERNEL_H * TILE);
    for (int i = 0; i < count + KERNEL_H - 1; i++) {
      UNROLL for (int ky = KERNEL_H - 1; ky > 0; ky--) UNROLL for (int t = 0; t < TILE; t++)
        rolling[ky][t] = rolling[ky - 1][t];
      const int oy = i < count ? top + i : -1;
      UNROLL for (int t = 0; t < TILE; t++) rolling[0][t] = column_or_zero(d, oy, ox + t, out_height, out_width, 0);
#if SUMS
      UNROLL for (int t = 0; t < TILE; t++) columns += rolling[0][t];
#endif
      UNROLL for (int q = 0; q < SPAN; q++) {
        const V column = column_or_zero(plane, top + i - PAD_TOP, INPUT_X(ox, 0) + q, height, width, 0);
        UNROLL for (int ky = 0; ky < KERNEL_H; ky++) multiply_column(sum, column, rolling[ky], q, ky);
      }
    }
    part += count;
  }
#else
  for (int part = first; part < last; part++) {
    const int start = part % parts * TILE, stop = parts > 1 && start + TILE < out_width ? start + TILE : out_width;
    for (int ox = start; ox < stop; ox += TILE) {
      const int row = part / parts, image = row / out_height, oy = row % out_height;
      input_values plane = ITEM_START(x) + (size_t)(block * images + image) * height * width * BLOCK;
      const size_t plane_of_dy = (size_t)(block * images + image) * out_height * out_width;
      input_values d = ITEM_START(dy) + (plane_of_dy + oy * out_width) * BLOCK;
      UNROLL for (int i = 0; i < TILE; i++) g[i] = column_or_zero(d, 0, ox + i, 1, out_width, 0);
#if SUMS
      UNROLL for (int i = 0; i < TILE; i++) columns += g[i];
#endif
      add_weight_products(sum, plane, g, SIZES, oy, ox, 0);
    }
  }
#endif
  output dw = ITEM_START(partials) + (size_t)(group * blocks + block) * TAPS * BLOCK;
  UNROLL for (int row = 0; row < TAPS; row += KERNEL_W) {
    group_sums(sum + row, KERNEL_W, shares);
    UNROLL for (int t = row; t < row + KERNEL_W; t++)
      if (IS_FIRST_MEMBER) store(dw + t * BLOCK, add ? sum[t] + load(dw + t * BLOCK) : sum[t]);
  }
#if SUMS
  output dy_sum = ITEM_START(sums) + (size_t)(group * blocks + block) * BLOCK;
  const V v = group_sum(columns, shares);
  if (IS_FIRST_MEMBER) store(dy_sum, add ? v + load(dy_sum) : v);
#endif
}
