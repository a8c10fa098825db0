// Convolution with any kernel, stride, padding and dilation. x: [c/IN_BLOCK][images*height*width][IN_BLOCK]: a
// network's input of fewer than 16 channels is stored unpadded, everything else has IN_BLOCK 16.
// w: [out/16][taps][channels][16]. A work-item computes TILE outputs of a row x PANELS blocks of 16 channels.
#include "blocked.h"
#include "activation.h"
#include "epilogue.h"
#include "gradient.h"
#include "group_sum.h"
#include "window.h"

#define TILE_OF_ROW(height, tiles)                                                \
  const int part = ITEM, panel = get_global_id(1) * PANELS;           \
  const int image = part / ((tiles) * (height));                                  \
  if (image >= images) return;                                                    \
  V sum[TILE][PANELS];                                                            \
  UNROLL for (int i = 0; i < TILE; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;

// sum[i] += (the value i steps from p, 0 where `inside` says that it lies in the padding) * weights
#define ADD_PRODUCTS(p, step, inside, weights, panel_stride)                      \
  {                                                                               \
    V column[PANELS];                                                             \
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = LOAD((weights) + j * (size_t)(panel_stride)); \
    UNROLL for (int i = 0; i < TILE; i++) if (inside) {                           \
      const V value = (V)((p)[i * (step)]);                                       \
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];     \
    }                                                                             \
  }

// y = activation((x * w) * scale + shift)
KERNEL convolution_forward(INPUT(x), INPUT(w), OUTPUT(y), const int images, const int height, const int width,
                           const int channels, const int out_height, const int out_width EPILOGUE_ARGUMENTS) {
  FROM_WORDS(float, x) FROM(w) INTO(y) EPILOGUE_POINTERS
  const int tiles = (out_width + TILE - 1) / TILE;
  TILE_OF_ROW(out_height, tiles)
  const int oy = part / tiles % out_height, ox = part % tiles * TILE;
  const int edge = INPUT_X(ox, 0), inside = edge >= 0 && edge + SPAN <= width;
  for (int first = 0; first < channels; first += IN_BLOCK) {
    const int lanes = channels - first < IN_BLOCK ? channels - first : IN_BLOCK;
    input plane = x + (size_t)(first / IN_BLOCK * images + image) * height * width * IN_BLOCK;
    for (int ky = 0; ky < KERNEL_H; ky++) {
      const int iy = INPUT_Y(oy, ky);
      if (iy < 0 || iy >= height) continue;
      for (int kx = 0; kx < KERNEL_W; kx++) {
        const int ix = INPUT_X(ox, kx);
        input p = plane + (iy * width + ix) * IN_BLOCK;
        input weights = w + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * channels + first) * BLOCK;
        if (inside) {
          for (int c = 0; c < lanes; c++)
            ADD_PRODUCTS(p + c, STRIDE_X * IN_BLOCK, 1, weights + c * BLOCK, TAPS * channels * BLOCK)
        } else {
          for (int c = 0; c < lanes; c++)
            ADD_PRODUCTS(p + c, STRIDE_X * IN_BLOCK, ix + i * STRIDE_X >= 0 && ix + i * STRIDE_X < width,
                         weights + c * BLOCK, TAPS * channels * BLOCK)
        }
      }
    }
  }
  UNROLL for (int j = 0; j < PANELS; j++) {
    LOAD_SCALE(s, (panel + j) * BLOCK)
    LOAD_SHIFT(t, (panel + j) * BLOCK)
    UNROLL for (int i = 0; i < TILE; i++) if (ox + i < out_width) {
      V v = sum[i][j];
      APPLY_SCALE(v, s)
      APPLY_SHIFT(v, t)
      ACTIVATE(v)
      STORE(y + (((size_t)(panel + j) * images + image) * out_height * out_width + oy * out_width + ox + i) * BLOCK, v);
    }
  }
}

// dx = dy * w backwards, given transposed weights t: [channels/16][taps][out][16]. A tile holds every STRIDE_X-th
// input column from one residue on, so that its outputs are neighbours.
KERNEL convolution_backward_data(INPUT(dy), INPUT(t), const int images, const int height, const int width,
                                 const int out, const int out_height, const int out_width, GRADIENT_OUTPUT) {
  FROM_WORDS(float, dy) FROM(t) GRADIENT_POINTERS
  const int tiles = (width + TILE * STRIDE_X - 1) / (TILE * STRIDE_X) * STRIDE_X;
  TILE_OF_ROW(height, tiles)
  const int iy = part / tiles % height, residue = part % tiles % STRIDE_X;
  const int x0 = part % tiles / STRIDE_X * TILE * STRIDE_X;
  for (int ky = 0; ky < KERNEL_H; ky++) {
    const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= out_height) continue;
    for (int kx = 0; kx < KERNEL_W; kx++) {
      const int reach_x = REACH_X(x0 + residue, kx), ox = reach_x / STRIDE_X;
      if (reach_x % STRIDE_X != 0) continue;
      const int inside = ox >= 0 && ox + TILE <= out_width;
      for (int first = 0; first < out; first += BLOCK) {
        const int lanes = out - first < BLOCK ? out - first : BLOCK;
        input p = dy + (((size_t)(first / BLOCK) * images + image) * out_height * out_width + oy * out_width + ox) * BLOCK;
        input weights = t + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * out + first) * BLOCK;
        if (inside) {
          for (int c = 0; c < lanes; c++)
            ADD_PRODUCTS(p + c, BLOCK, 1, weights + c * BLOCK, TAPS * out * BLOCK)
        } else {
          for (int c = 0; c < lanes; c++)
            ADD_PRODUCTS(p + c, BLOCK, ox + i >= 0 && ox + i < out_width, weights + c * BLOCK, TAPS * out * BLOCK)
        }
      }
    }
  }
  UNROLL for (int j = 0; j < PANELS; j++)
    UNROLL for (int i = 0; i < TILE; i++) {
      const int ix = x0 + residue + i * STRIDE_X;
      if (ix < width)
        WRITE_GRADIENT((((size_t)(panel + j) * images + image) * height * width + iy * width + ix) * BLOCK, sum[i][j])
    }
}

// partials[group]: [out/16][taps][channels][16] = (add ? what was there : 0) + the sum of x * dy over (image, output row)
// pairs, `rows` a member of a work-group; it has one tap, DEPTH channels of x and PANELS blocks of dy.
KERNEL convolution_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials), const int images, const int height,
                                    const int width, const int channels, const int out_height, const int out_width,
                                    const int rows, const int out_blocks, const int add) {
  FROM_WORDS(float, x) FROM(dy) INTO(partials)
  GROUP_SUM_MEMORY
  const int depth_tiles = (channels + DEPTH - 1) / DEPTH;
  const int tap = get_group_id(0) / depth_tiles, channel = get_group_id(0) % depth_tiles * DEPTH;
  const int panel = get_global_id(1) * PANELS, group = get_global_id(2);
  const int ky = tap / KERNEL_W, kx = tap % KERNEL_W;
  const int first = (group * MEMBERS + ITEM % MEMBERS) * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  V sum[DEPTH][PANELS];
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;
  for (int row = first; row < last; row++) {
    const int image = row / out_height, oy = row % out_height, iy = INPUT_Y(oy, ky);
    if (iy < 0 || iy >= height) continue;
    input p = x + ((size_t)(channel / IN_BLOCK * images + image) * height + iy) * width * IN_BLOCK + channel % IN_BLOCK;
    input d = dy + (((size_t)panel * images + image) * out_height + oy) * out_width * BLOCK;
    for (int ox = 0; ox < out_width; ox++) {
      const int ix = INPUT_X(ox, kx);
      if (ix < 0 || ix >= width) continue;
      V column[PANELS];
      UNROLL for (int j = 0; j < PANELS; j++)
        column[j] = LOAD(d + ((size_t)j * images * out_height * out_width + ox) * BLOCK);
      UNROLL for (int i = 0; i < DEPTH; i++) {
        const V value = (V)(p[ix * IN_BLOCK + i]);
        UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];
      }
    }
  }
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) {
    output dw = partials + (((size_t)(group * out_blocks + panel + j) * TAPS + tap) * channels + channel + i) * BLOCK;
    GROUP_SUM(sum[i][j])
    if (LEADS && channel + i < channels) STORE(dw, add ? sum[i][j] + LOAD(dw) : sum[i][j]);
  }
}
