// The loops of a convolution, the same for floats and for 8-bit integers. Whoever includes this defines DATA, a pointer to
// a tensor's numbers; SUM, what BLOCK products are added up in; VALUE_OF(x), an input as a SUM; WEIGHTS_AT(p), BLOCK
// weights as one; and GRADIENTS_AT(p), BLOCK gradients as one, in the products for weights.
#include "window.h"

#define NO_SUMS(rows)                                                              \
  SUM sum[rows][PANELS];                                                           \
  UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (SUM)0;

// sum[i] += (the value i steps from p, none where `inside` says that it lies in the padding) * weights
#define ADD_PRODUCTS(p, step, inside, weights, panel_stride)                       \
  {                                                                                \
    SUM column[PANELS];                                                            \
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = WEIGHTS_AT((weights) + j * (size_t)(panel_stride)); \
    UNROLL for (int i = 0; i < TILE; i++) if (inside) {                            \
      const SUM value = VALUE_OF((p)[i * (step)]);                                 \
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];      \
    }                                                                              \
  }

// TILE outputs from (oy, ox) on: what they get from all taps and channels of x
#define ADD_FORWARD_PRODUCTS(x, w)                                                 \
  const int edge = INPUT_X(ox, 0), inside = edge >= 0 && edge + SPAN <= width;     \
  for (int first = 0; first < channels; first += IN_BLOCK) {                       \
    const int lanes = channels - first < IN_BLOCK ? channels - first : IN_BLOCK;   \
    DATA plane = x + (size_t)(first / IN_BLOCK * images + image) * height * width * IN_BLOCK; \
    for (int ky = 0; ky < KERNEL_H; ky++) {                                        \
      const int iy = INPUT_Y(oy, ky);                                              \
      if (iy < 0 || iy >= height) continue;                                        \
      for (int kx = 0; kx < KERNEL_W; kx++) {                                      \
        const int ix = INPUT_X(ox, kx);                                            \
        DATA p = plane + (iy * width + ix) * IN_BLOCK;                             \
        DATA weights = w + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * channels + first) * BLOCK; \
        if (inside) {                                                              \
          for (int c = 0; c < lanes; c++)                                          \
            ADD_PRODUCTS(p + c, STRIDE_X * IN_BLOCK, 1, weights + c * BLOCK, TAPS * channels * BLOCK) \
        } else {                                                                   \
          for (int c = 0; c < lanes; c++)                                          \
            ADD_PRODUCTS(p + c, STRIDE_X * IN_BLOCK, ix + i * STRIDE_X >= 0 && ix + i * STRIDE_X < width, \
                         weights + c * BLOCK, TAPS * channels * BLOCK)             \
        }                                                                          \
      }                                                                            \
    }                                                                              \
  }

// Every STRIDE_X-th of TILE inputs from (iy, x0 + residue) on, so that their outputs are neighbours: what they get from
// all taps and channels of dy, with transposed weights t
#define ADD_BACKWARD_PRODUCTS(dy, t)                                               \
  for (int ky = 0; ky < KERNEL_H; ky++) {                                          \
    const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;                  \
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= out_height) continue;      \
    for (int kx = 0; kx < KERNEL_W; kx++) {                                        \
      const int reach_x = REACH_X(x0 + residue, kx), ox = reach_x / STRIDE_X;      \
      if (reach_x % STRIDE_X != 0) continue;                                       \
      const int inside = ox >= 0 && ox + TILE <= out_width;                        \
      for (int first = 0; first < out; first += BLOCK) {                           \
        const int lanes = out - first < BLOCK ? out - first : BLOCK;               \
        DATA p = dy + (((size_t)(first / BLOCK) * images + image) * out_height * out_width + oy * out_width + ox) * BLOCK; \
        DATA weights = t + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * out + first) * BLOCK; \
        if (inside) {                                                              \
          for (int c = 0; c < lanes; c++)                                          \
            ADD_PRODUCTS(p + c, BLOCK, 1, weights + c * BLOCK, TAPS * out * BLOCK) \
        } else {                                                                   \
          for (int c = 0; c < lanes; c++)                                          \
            ADD_PRODUCTS(p + c, BLOCK, ox + i >= 0 && ox + i < out_width, weights + c * BLOCK, TAPS * out * BLOCK) \
        }                                                                          \
      }                                                                            \
    }                                                                              \
  }

// DEPTH channels of x from `channel` on times PANELS blocks of dy, over the (image, output row) pairs from `first` to `last`
#define ADD_WEIGHT_PRODUCTS(x, dy)                                                 \
  for (int row = first; row < last; row++) {                                       \
    const int image = row / out_height, oy = row % out_height, iy = INPUT_Y(oy, ky); \
    if (iy < 0 || iy >= height) continue;                                          \
    DATA p = x + ((size_t)(channel / IN_BLOCK * images + image) * height + iy) * width * IN_BLOCK + channel % IN_BLOCK; \
    DATA d = dy + (((size_t)panel * images + image) * out_height + oy) * out_width * BLOCK; \
    for (int ox = 0; ox < out_width; ox++) {                                       \
      const int ix = INPUT_X(ox, kx);                                              \
      if (ix < 0 || ix >= width) continue;                                         \
      SUM column[PANELS];                                                          \
      UNROLL for (int j = 0; j < PANELS; j++)                                      \
        column[j] = GRADIENTS_AT(d + ((size_t)j * images * out_height * out_width + ox) * BLOCK); \
      UNROLL for (int i = 0; i < DEPTH; i++) {                                     \
        const SUM value = VALUE_OF(p[ix * IN_BLOCK + i]);                          \
        UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];    \
      }                                                                            \
    }                                                                              \
  }
