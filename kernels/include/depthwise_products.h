// The loops of a depthwise convolution, the same for floats and for 8-bit integers. Whoever includes this defines
//   Data: a pointer to a tensor's numbers; Sum: a vector of sums of products;
//   column_at(p, zero): the channels of a pixel as a Sum, less the zero point.
// Floats have the zero point 0 and ignore it. Each input column of a tile is loaded once.
#include "window.h"

// A column of a row of an image, 0 outside. A GPU reads before it looks whether it lies inside: a branch for each column
// would have it wait for each in turn.
INLINE int nearest_in(const int at, const int size) { return at < 0 ? 0 : at < size ? at : size - 1; }
INLINE Sum column_or_zero(Data plane, const int row, const int column, const int height, const int width,
                          const short zero) {
  const int inside = is_in(row, height) && is_in(column, width);
#if VECTORS > 1
  const Sum v = column_at(plane + (nearest_in(row, height) * width + nearest_in(column, width)) * BLOCK, zero);
  return inside ? v : (Sum)0;
#else
  return inside ? column_at(plane + (row * width + column) * BLOCK, zero) : (Sum)0;
#endif
}

INLINE void clear(Sum *sums, const int count) { UNROLL for (int i = 0; i < count; i++) sums[i] = (Sum)0; }

// sum[output] += column q of the span times every tap of row ky that meets it
INLINE void spread_column(Sum sum[TILE], const Sum column, const Sum tap[TAPS], const int q, const int ky) {
  UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
    const int d = q - kx * DILATION_X;
    if (d >= 0 && d % STRIDE_X == 0 && d / STRIDE_X < TILE) sum[d / STRIDE_X] += column * tap[ky * KERNEL_W + kx];
  }
}

// sum = TILE outputs from (oy, ox) on, of the image that starts at `plane`
INLINE void forward_tile(Sum sum[TILE], Data plane, const Sum tap[TAPS], const Sizes s, const int oy, const int ox,
                         const short zero) {
  clear(sum, TILE);
#if VECTORS > 1
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) UNROLL for (int q = 0; q < SPAN; q++)
    spread_column(sum, column_or_zero(plane, INPUT_Y(oy, ky), INPUT_X(ox, 0) + q, s.height, s.width, zero), tap, q, ky);
#else
  const int edge = INPUT_X(ox, 0), inside = edge >= 0 && edge + SPAN <= s.width;
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    const int iy = INPUT_Y(oy, ky);
    if (iy < 0 || iy >= s.height) continue;
    Data p = plane + (iy * s.width + edge) * BLOCK;
    if (inside) {
      UNROLL for (int q = 0; q < SPAN; q++) spread_column(sum, column_at(p + q * BLOCK, zero), tap, q, ky);
    } else {
      UNROLL for (int q = 0; q < SPAN; q++)
        if (edge + q >= 0 && edge + q < s.width) spread_column(sum, column_at(p + q * BLOCK, zero), tap, q, ky);
    }
  }
#endif
}

// The outputs that a tile of TILE input columns (every STRIDE_X-th, from column `residue` on) meets lie between these.
#define FIRST_REACH (-(((KERNEL_W - 1) * DILATION_X) / STRIDE_X + 1))
#define LAST_REACH (TILE - 1 + (STRIDE_X - 1 + PAD_LEFT) / STRIDE_X)

// sum[input] += column q of the outputs times every tap of row ky that meets it
INLINE void gather_column(Sum sum[TILE], const Sum column, const Sum tap[TAPS], const int q, const int ky,
                          const int residue) {
  UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
    const int reach = REACH_X(residue, kx), i = q - reach / STRIDE_X;
    if (reach % STRIDE_X == 0 && i >= 0 && i < TILE) sum[i] += column * tap[ky * KERNEL_W + kx];
  }
}

// sum = the gradients of TILE inputs, every STRIDE_X-th from (iy, ox * STRIDE_X + residue) on; `plane` is an image of
// dy
INLINE void backward_tile(Sum sum[TILE], Data plane, const Sum tap[TAPS], const Sizes s, const int iy, const int ox,
                          const int residue, const short zero) {
  clear(sum, TILE);
#if VECTORS > 1
  UNROLL for (int phase = 0; phase < STRIDE_Y; phase++) if ((iy + PAD_TOP) % STRIDE_Y == phase) {
    UNROLL for (int ky = 0; ky < KERNEL_H; ky++) if ((phase - ky * DILATION_Y) % STRIDE_Y == 0) {
      const int oy = REACH_Y(iy, ky) < 0 ? -1 : REACH_Y(iy, ky) / STRIDE_Y;
      UNROLL for (int q = FIRST_REACH; q <= LAST_REACH; q++)
        gather_column(sum, column_or_zero(plane, oy, ox + q, s.out_height, s.out_width, zero), tap, q, ky, residue);
    }
  }
#else
  const int inside = ox + FIRST_REACH >= 0 && ox + LAST_REACH < s.out_width;
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= s.out_height) continue;
    Data p = plane + (oy * s.out_width + ox) * BLOCK;
    if (inside) {
      UNROLL for (int q = FIRST_REACH; q <= LAST_REACH; q++)
        gather_column(sum, column_at(p + q * BLOCK, zero), tap, q, ky, residue);
    } else {
      UNROLL for (int q = FIRST_REACH; q <= LAST_REACH; q++)
        if (ox + q >= 0 && ox + q < s.out_width)
          gather_column(sum, column_at(p + q * BLOCK, zero), tap, q, ky, residue);
    }
  }
#endif
}

// The products of column q of the inputs with the gradients g that row ky of the taps meets it with
INLINE void multiply_column(Sum sum[TAPS], const Sum column, const Sum g[TILE], const int q, const int ky) {
  UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
    const int i = q - kx * DILATION_X;
    if (i >= 0 && i % STRIDE_X == 0 && i / STRIDE_X < TILE) sum[ky * KERNEL_W + kx] += column * g[i / STRIDE_X];
  }
}

// sum[tap] += the products of TILE gradients g of the outputs from (oy, ox) on with the inputs they met
INLINE void add_weight_products(Sum sum[TAPS], Data plane, const Sum g[TILE], const Sizes s, const int oy, const int ox,
                                const short zero) {
#if VECTORS > 1
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) UNROLL for (int q = 0; q < SPAN; q++)
    multiply_column(sum, column_or_zero(plane, INPUT_Y(oy, ky), INPUT_X(ox, 0) + q, s.height, s.width, zero), g, q, ky);
#else
  const int edge = INPUT_X(ox, 0), inside = edge >= 0 && edge + SPAN <= s.width;
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    const int iy = INPUT_Y(oy, ky);
    if (iy < 0 || iy >= s.height) continue;
    Data p = plane + (iy * s.width + edge) * BLOCK;
    UNROLL for (int q = 0; q < SPAN; q++)
      if (inside || (edge + q >= 0 && edge + q < s.width))
        multiply_column(sum, column_at(p + q * BLOCK, zero), g, q, ky);
  }
#endif
}
