// Depthwise convolution of 8-bit integers: each channel has its own KERNEL_H x KERNEL_W taps. x: [c/16][images*height*
// width][16], w: [c/16][taps][16], of which x may have a zero point; taps in the padding contribute nothing. A work-item
// computes TILE outputs of a row, loading each input column once.
#include "integers.h"
#include "epilogue.h"
#include "window.h"

// Tile number `tile` of all: TILE columns, STEP apart, of row `row` of an image and a block
#define TILE_OF_PLANE(height, across)                                              \
  const int block = tile / (images * (height) * (across)), part = tile % (images * (height) * (across)); \
  const int image = part / ((height) * (across)), row = part / (across) % (height); \
  A tap[TAPS], sum[TILE];                                                          \
  UNROLL for (int k = 0; k < TAPS; k++) tap[k] = LOAD_Q(w + (block * TAPS + k) * BLOCK); \
  UNROLL for (int i = 0; i < TILE; i++) sum[i] = (A)0;

// y = activation((x * w) * scale + shift)
KERNEL quantized_depthwise_forward(INPUT_RANGED(x), INPUT_RANGED(w), RESULT_ARGUMENTS, const int images,
                                   const int height, const int width, const int out_height, const int out_width,
                                   const int all_blocks EPILOGUE_ARGUMENTS) {
  FROM_RANGED(x) FROM_RANGED(w) RESULT_POINTERS EPILOGUE_POINTERS
  const int across = (out_width + TILE - 1) / TILE, m = images * out_height * out_width;
  const short zero = (short)x_range[ZERO];
  EACH_TILE(images * out_height * across * all_blocks) {
    TILE_OF_PLANE(out_height, across)
    const int ox = part % across * TILE, edge = INPUT_X(ox, 0);
    UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
      const int iy = INPUT_Y(row, ky);
      if (iy < 0 || iy >= height) continue;
      bytes p = x + (((size_t)(block * images + image) * height + iy) * width + edge) * BLOCK;
      UNROLL for (int q = 0; q < SPAN; q++) if (edge + q >= 0 && edge + q < width) {
        const A column = LOAD_CENTRED(p + q * BLOCK, zero);
        UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
          const int d = q - kx * DILATION_X;
          if (d >= 0 && d % STRIDE_X == 0 && d / STRIDE_X < TILE) sum[d / STRIDE_X] += column * tap[ky * KERNEL_W + kx];
        }
      }
    }
    const V step = FIELD(w_range, SCALE_OF, block) * x_range[SCALE_OF];
    LOAD_SCALE(s, block * BLOCK)
    LOAD_SHIFT(t, block * BLOCK)
    UNROLL for (int i = 0; i < TILE; i++) if (ox + i < out_width) {
      V v = TO_FLOATS(sum[i]) * step;
      APPLY_SCALE(v, s)
      APPLY_SHIFT(v, t)
      ACTIVATE(v)
      WRITE_RESULT(block, (image * out_height + row) * out_width + ox + i, v)
    }
  }
  LEAVE_FOUND
}

// The outputs that a tile of TILE input columns (every STRIDE_X-th, from column `residue`) meets lie between these.
#define FIRST_REACH (-(((KERNEL_W - 1) * DILATION_X) / STRIDE_X + 1))
#define LAST_REACH (TILE - 1 + (STRIDE_X - 1 + PAD_LEFT) / STRIDE_X)

// dx = dy * w backwards
KERNEL quantized_depthwise_backward_data(INPUT_RANGED(dy), INPUT_RANGED(w), RESULT_ARGUMENTS, const int images,
                                         const int height, const int width, const int out_height,
                                         const int out_width, const int all_blocks MASK_ARGUMENTS) {
  FROM_RANGED(dy) FROM_RANGED(w) RESULT_POINTERS MASK_POINTERS
  const int across = (width + TILE * STRIDE_X - 1) / (TILE * STRIDE_X), m = images * height * width;
  const short zero = (short)dy_range[ZERO];
  EACH_TILE(images * height * across * all_blocks) {
    TILE_OF_PLANE(height, across)
    const int ox = part % across * TILE, x0 = ox * STRIDE_X;
    const V step = FIELD(w_range, SCALE_OF, block) * dy_range[SCALE_OF];
    UNROLL for (int residue = 0; residue < STRIDE_X; residue++) {
      UNROLL for (int i = 0; i < TILE; i++) sum[i] = (A)0;
      UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
        const int reach_y = REACH_Y(row, ky), oy = reach_y / STRIDE_Y;
        if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= out_height) continue;
        bytes p = dy + (((size_t)(block * images + image) * out_height + oy) * out_width + ox) * BLOCK;
        UNROLL for (int q = FIRST_REACH; q <= LAST_REACH; q++) if (ox + q >= 0 && ox + q < out_width) {
          const A column = LOAD_CENTRED(p + q * BLOCK, zero);
          UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
            const int reach = REACH_X(residue, kx), i = q - reach / STRIDE_X;
            if (reach % STRIDE_X == 0 && i >= 0 && i < TILE) sum[i] += column * tap[ky * KERNEL_W + kx];
          }
        }
      }
      UNROLL for (int i = 0; i < TILE; i++) {
        const int ix = x0 + residue + i * STRIDE_X;
        if (ix < width) WRITE_GRADIENT(block, (image * height + row) * width + ix, TO_FLOATS(sum[i]) * step)
      }
    }
  }
  LEAVE_FOUND
}

// partials[group]: [c/16][taps][16] = (add ? what was there : 0) + the sum of x * dy over `rows` (image, output row)
// pairs
KERNEL quantized_depthwise_backward_weights(INPUT_RANGED(x), INPUT_RANGED(dy), OUTPUT(partials), const int images,
                                            const int height, const int width, const int out_height,
                                            const int out_width, const int rows, const int groups, const int blocks,
                                            const int add) {
  FROM_RANGED(x) FROM_RANGED(dy) INTO(partials)
  const int group = get_global_id(0), block = get_global_id(1);
  if (group >= groups) return;
  const int first = group * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  const short zero = (short)x_range[ZERO], dy_zero = (short)dy_range[ZERO];
  A sum[TAPS];
  UNROLL for (int k = 0; k < TAPS; k++) sum[k] = (A)0;
  for (int row = first; row < last; row++) for (int ox = 0; ox < out_width; ox += TILE) {
    const int image = row / out_height, oy = row % out_height, edge = INPUT_X(ox, 0);
    bytes d = dy + (((size_t)(block * images + image) * out_height + oy) * out_width + ox) * BLOCK;
    A g[TILE];
    UNROLL for (int i = 0; i < TILE; i++) { g[i] = (A)0; if (ox + i < out_width) g[i] = LOAD_CENTRED(d + i * BLOCK, dy_zero); }
    UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
      const int iy = INPUT_Y(oy, ky);
      if (iy < 0 || iy >= height) continue;
      bytes p = x + (((size_t)(block * images + image) * height + iy) * width + edge) * BLOCK;
      UNROLL for (int q = 0; q < SPAN; q++) if (edge + q >= 0 && edge + q < width) {
        const A column = LOAD_CENTRED(p + q * BLOCK, zero);
        UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
          const int i = q - kx * DILATION_X;
          if (i >= 0 && i % STRIDE_X == 0 && i / STRIDE_X < TILE) sum[ky * KERNEL_W + kx] += column * g[i / STRIDE_X];
        }
      }
    }
  }
  const float step = x_range[SCALE_OF] * dy_range[SCALE_OF];
  output dw = partials + (size_t)(group * blocks + block) * TAPS * BLOCK;
  UNROLL for (int k = 0; k < TAPS; k++) {
    V v = TO_FLOATS(sum[k]) * step;
    if (add) v += LOAD(dw + k * BLOCK);
    STORE(dw + k * BLOCK, v);
  }
}
