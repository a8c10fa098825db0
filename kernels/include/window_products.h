// The loops of a convolution, the same for floats and for 8-bit integers. x:
// [c/IN_BLOCK][images*height*width][IN_BLOCK], dy: [out/16][images*out_height*out_width][16], w:
// [out/16][taps][channels][16]. Whoever includes this defines
//   Data: a pointer to a tensor's numbers; Sum: a vector of 16 sums of products;
//   value_of(x, zero): an input as a Sum, less its zero point; weights_at(p): 16 weights as a Sum;
//   gradients_at(p, zero): 16 gradients as a Sum, less their zero point;
//   write_outputs, write_gradients and write_weights, which take the sums of a tile and a target of their own type:
//   Outputs, Gradients or Weights.
// Floats have the zero point 0 and ignore it.
//
// Sums are local to the function that has the loops: clang 14 optimizes functions before it inlines them, and keeps
// sums that it gets from a caller in memory.
#include "window.h"

INLINE void clear(Sum sum[][PANELS], const int rows) {
  UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (Sum)0;
}

// sum[i] += p[i * step] * weights, for PANELS panels of weights, `panel_stride` apart. Value i lies in column
// first + i * stride of `width`; if `checked`, columns outside, in the padding, add nothing.
INLINE void add_products(Sum sum[TILE][PANELS], Data p, const int step, Data weights, const int panel_stride,
                         const short zero, const int checked, const int first, const int stride, const int width) {
  Sum column[PANELS];
  UNROLL for (int j = 0; j < PANELS; j++) column[j] = weights_at(weights + j * (size_t)panel_stride);
  UNROLL for (int i = 0; i < TILE; i++) if (!checked || (first + i * stride >= 0 && first + i * stride < width)) {
    const Sum value = value_of(p[i * step], zero);
    UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];
  }
}

// TILE outputs from (oy, ox) on and PANELS blocks from `panel` on: the products of all taps and channels of x
INLINE void forward_tile(const Outputs target, Data x, Data w, const Sizes s, const int channels, const int image,
                         const int oy, const int ox, const int panel, const short zero) {
  Sum sum[TILE][PANELS];
  clear(sum, TILE);
  const int edge = INPUT_X(ox, 0), inside = edge >= 0 && edge + SPAN <= s.width;
  const int panel_stride = TAPS * channels * BLOCK;
  for (int first = 0; first < channels; first += IN_BLOCK) {
    const int count = channels - first < IN_BLOCK ? channels - first : IN_BLOCK;
    Data plane = x + (size_t)(first / IN_BLOCK * s.images + image) * s.height * s.width * IN_BLOCK;
    for (int ky = 0; ky < KERNEL_H; ky++) {
      const int iy = INPUT_Y(oy, ky);
      if (iy < 0 || iy >= s.height) continue;
      for (int kx = 0; kx < KERNEL_W; kx++) {
        const int ix = INPUT_X(ox, kx);
        Data p = plane + (iy * s.width + ix) * IN_BLOCK;
        Data weights = w + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * channels + first) * BLOCK;
        if (inside) {
          for (int c = 0; c < count; c++)
            add_products(sum, p + c, STRIDE_X * IN_BLOCK, weights + c * BLOCK, panel_stride, zero, 0, 0, 0, 0);
        } else {
          for (int c = 0; c < count; c++)
            add_products(sum, p + c, STRIDE_X * IN_BLOCK, weights + c * BLOCK, panel_stride, zero, 1, ix, STRIDE_X,
                         s.width);
        }
      }
    }
  }
  write_outputs(target, sum, s, image, oy, ox, panel);
}

// Gradients of TILE inputs, every STRIDE_X-th from (iy, ix) on, so that their outputs are neighbours: the products of
// all taps and channels of dy with transposed weights t: [channels/16][taps][out][16]
INLINE void backward_tile(const Gradients target, Data dy, Data t, const Sizes s, const int out, const int image,
                          const int iy, const int ix, const int panel, const short zero) {
  Sum sum[TILE][PANELS];
  clear(sum, TILE);
  const int panel_stride = TAPS * out * BLOCK;
  for (int ky = 0; ky < KERNEL_H; ky++) {
    const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= s.out_height) continue;
    for (int kx = 0; kx < KERNEL_W; kx++) {
      const int reach_x = REACH_X(ix, kx), ox = reach_x / STRIDE_X;
      if (reach_x % STRIDE_X != 0) continue;
      const int inside = ox >= 0 && ox + TILE <= s.out_width;
      for (int first = 0; first < out; first += BLOCK) {
        const int count = out - first < BLOCK ? out - first : BLOCK;
        Data plane = dy + (size_t)(first / BLOCK * s.images + image) * s.out_height * s.out_width * BLOCK;
        Data p = plane + (oy * s.out_width + ox) * BLOCK;
        Data weights = t + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * out + first) * BLOCK;
        if (inside) {
          for (int c = 0; c < count; c++)
            add_products(sum, p + c, BLOCK, weights + c * BLOCK, panel_stride, zero, 0, 0, 0, 0);
        } else {
          for (int c = 0; c < count; c++)
            add_products(sum, p + c, BLOCK, weights + c * BLOCK, panel_stride, zero, 1, ox, 1, s.out_width);
        }
      }
    }
  }
  write_gradients(target, sum, s, image, iy, ix, panel);
}

// Gradients of the weights of one tap, of DEPTH channels of x from `channel` on and PANELS blocks of dy from `panel`
// on: products over the (image, output row) pairs from `first` to `last`
INLINE void weight_tile(const Weights target, Data x, Data dy, const Sizes s, const int tap, const int channel,
                        const int panel, const int first, const int last, const short zero, const short dy_zero) {
  Sum sum[DEPTH][PANELS];
  clear(sum, DEPTH);
  const int ky = tap / KERNEL_W, kx = tap % KERNEL_W;
  // The columns of the output whose input lies in the image
  const int before = -INPUT_X(0, kx), after = s.width + before;
  const int start = before > 0 ? (before + STRIDE_X - 1) / STRIDE_X : 0;
  const int reach = after > 0 ? (after + STRIDE_X - 1) / STRIDE_X : 0, stop = reach < s.out_width ? reach : s.out_width;
  for (int row = first; row < last; row++) {
    const int image = row / s.out_height, oy = row % s.out_height, iy = INPUT_Y(oy, ky);
    if (iy < 0 || iy >= s.height) continue;
    Data p = x + ((size_t)(channel / IN_BLOCK * s.images + image) * s.height + iy) * s.width * IN_BLOCK
             + channel % IN_BLOCK;
    Data d = dy + (((size_t)panel * s.images + image) * s.out_height + oy) * s.out_width * BLOCK;
    for (int ox = start; ox < stop; ox++) {
      const int ix = INPUT_X(ox, kx);
      Sum column[PANELS];
      UNROLL for (int j = 0; j < PANELS; j++)
        column[j] = gradients_at(d + ((size_t)j * s.images * s.out_height * s.out_width + ox) * BLOCK, dy_zero);
      UNROLL for (int i = 0; i < DEPTH; i++) {
        const Sum value = value_of(p[ix * IN_BLOCK + i], zero);
        UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];
      }
    }
  }
  write_weights(target, sum, tap, channel, panel);
}
