// Depthwise convolution: each channel has its own KERNEL_H x KERNEL_W taps. x: [c/16][images*height*width][16],
// w: [c/16][taps][16]. A work-item keeps the taps of one block of 16 channels in registers and slides along rows,
// TILE outputs at a time, loading each input column once.
#include "blocked.h"
#include "activation.h"
#include "epilogue.h"
#include "gradient.h"
#include "group_sum.h"
#include "window.h"

// Work-item ITEM covers `rows` rows by `steps` tiles of one image; returns if there is no such part.
#define PART_OF_IMAGE(height, width, tile)                                        \
  const int parts_x = ((width) + (tile) * steps - 1) / ((tile) * steps);          \
  const int parts_y = ((height) + rows - 1) / rows;                               \
  const int part = ITEM, block = get_global_id(1);                    \
  const int image = part / (parts_x * parts_y);                                   \
  if (image >= images) return;                                                    \
  const int first_y = part / parts_x % parts_y * rows;                            \
  const int first_x = part % parts_x * (tile) * steps;                            \
  const int last_y = first_y + rows < (height) ? first_y + rows : (height);       \
  const int last_x = first_x + (tile) * steps < (width) ? first_x + (tile) * steps : (width);

#define LOAD_TAPS(w)                                                              \
  V tap[TAPS];                                                                    \
  UNROLL for (int t = 0; t < TAPS; t++) tap[t] = LOAD(w + (block * TAPS + t) * BLOCK);

// Every tap of row ky that meets column q of the span: sum[output] += column * tap
#define SPREAD_COLUMN(q, ky)                                                      \
  UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {                                  \
    const int d = (q) - kx * DILATION_X;                                          \
    if (d >= 0 && d % STRIDE_X == 0 && d / STRIDE_X < TILE)                       \
      sum[d / STRIDE_X] += column * tap[(ky) * KERNEL_W + kx];                    \
  }

// y = activation((x * w) * scale + shift)
KERNEL depthwise_forward(INPUT(x), INPUT(w), OUTPUT(y), const int images, const int height, const int width,
                         const int out_height, const int out_width, const int rows, const int steps
                         EPILOGUE_ARGUMENTS) {
  FROM(x) FROM(w) INTO(y) EPILOGUE_POINTERS
  PART_OF_IMAGE(out_height, out_width, TILE)
  input plane = x + (size_t)(block * images + image) * height * width * BLOCK;
  output out = y + (size_t)(block * images + image) * out_height * out_width * BLOCK;
  LOAD_TAPS(w)
  LOAD_SCALE(s, block * BLOCK)
  LOAD_SHIFT(t, block * BLOCK)
  for (int oy = first_y; oy < last_y; oy++) for (int ox = first_x; ox < last_x; ox += TILE) {
    V sum[TILE];
    UNROLL for (int i = 0; i < TILE; i++) sum[i] = (V)0;
    const int edge = INPUT_X(ox, 0);
    const int inside = edge >= 0 && edge + SPAN <= width;
    UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
      const int iy = INPUT_Y(oy, ky);
      if (iy < 0 || iy >= height) continue;
      input p = plane + (iy * width + edge) * BLOCK;
      if (inside) {
        UNROLL for (int q = 0; q < SPAN; q++) { const V column = LOAD(p + q * BLOCK); SPREAD_COLUMN(q, ky) }
      } else {
        UNROLL for (int q = 0; q < SPAN; q++)
          if (edge + q >= 0 && edge + q < width) { const V column = LOAD(p + q * BLOCK); SPREAD_COLUMN(q, ky) }
      }
    }
    UNROLL for (int i = 0; i < TILE; i++) if (ox + i < out_width) {
      V v = sum[i];
      APPLY_SCALE(v, s)
      APPLY_SHIFT(v, t)
      ACTIVATE(v)
      STORE(out + (oy * out_width + ox + i) * BLOCK, v);
    }
  }
}

// The outputs that a tile of TILE input columns (every STRIDE_X-th, from column `residue`) meets lie between these.
#define FIRST_REACH (-(((KERNEL_W - 1) * DILATION_X) / STRIDE_X + 1))
#define LAST_REACH (TILE - 1 + (STRIDE_X - 1 + PAD_LEFT) / STRIDE_X)

#define GATHER_COLUMN(q, ky)                                                      \
  UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {                                  \
    const int reach = REACH_X(residue, kx);                                       \
    const int i = (q) - reach / STRIDE_X;                                         \
    if (reach % STRIDE_X == 0 && i >= 0 && i < TILE) sum[i] += column * tap[(ky) * KERNEL_W + kx]; \
  }

// dx = dy * w backwards
KERNEL depthwise_backward_data(INPUT(dy), INPUT(w), const int images, const int height, const int width,
                               const int out_height, const int out_width, const int rows, const int steps,
                               GRADIENT_OUTPUT) {
  FROM(dy) FROM(w) GRADIENT_POINTERS
  PART_OF_IMAGE(height, width, TILE * STRIDE_X)
  input plane = dy + (size_t)(block * images + image) * out_height * out_width * BLOCK;
  const size_t out = (size_t)(block * images + image) * height * width * BLOCK;
  LOAD_TAPS(w)
  for (int iy = first_y; iy < last_y; iy++) for (int x0 = first_x; x0 < last_x; x0 += TILE * STRIDE_X) {
    const int ox = x0 / STRIDE_X;
    const int inside = ox + FIRST_REACH >= 0 && ox + LAST_REACH < out_width;
    UNROLL for (int residue = 0; residue < STRIDE_X; residue++) {
      V sum[TILE];
      UNROLL for (int i = 0; i < TILE; i++) sum[i] = (V)0;
      UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
        const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;
        if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= out_height) continue;
        input p = plane + (oy * out_width + ox) * BLOCK;
        if (inside) {
          UNROLL for (int q = FIRST_REACH; q <= LAST_REACH; q++) {
            const V column = LOAD(p + q * BLOCK);
            GATHER_COLUMN(q, ky)
          }
        } else {
          UNROLL for (int q = FIRST_REACH; q <= LAST_REACH; q++)
            if (ox + q >= 0 && ox + q < out_width) { const V column = LOAD(p + q * BLOCK); GATHER_COLUMN(q, ky) }
        }
      }
      UNROLL for (int i = 0; i < TILE; i++) {
        const int ix = x0 + residue + i * STRIDE_X;
        if (ix < width) WRITE_GRADIENT(out + (iy * width + ix) * BLOCK, sum[i])
      }
    }
  }
}

// partials[group]: [c/16][taps][16] = (add ? what was there : 0) + the sum of x * dy over the (image, output row) pairs
// of the group, `rows` a member; if SUMS, sums[group]: [c] has that of dy
KERNEL depthwise_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials)
#if SUMS
                                  , OUTPUT(sums)
#endif
                                  , const int images, const int height, const int width, const int out_height,
                                  const int out_width, const int rows, const int blocks, const int add) {
  FROM(x) FROM(dy) INTO(partials)
  GROUP_SUM_MEMORY
  const int group = get_group_id(0), block = get_global_id(1);
  const int first = ITEM * rows, total = images * out_height;
#if SUMS
  V columns = (V)0;
#endif
  const int last = first + rows < total ? first + rows : total;
  V sum[TAPS];
  UNROLL for (int t = 0; t < TAPS; t++) sum[t] = (V)0;
  for (int row = first; row < last; row++) for (int ox = 0; ox < out_width; ox += TILE) {
    const int image = row / out_height, oy = row % out_height;
    input plane = x + (size_t)(block * images + image) * height * width * BLOCK;
    input d = dy + ((size_t)(block * images + image) * out_height * out_width + oy * out_width + ox) * BLOCK;
    V g[TILE];
    UNROLL for (int i = 0; i < TILE; i++) { g[i] = (V)0; if (ox + i < out_width) g[i] = LOAD(d + i * BLOCK); }
#if SUMS
    UNROLL for (int i = 0; i < TILE; i++) columns += g[i];
#endif
    const int edge = INPUT_X(ox, 0);
    const int inside = edge >= 0 && edge + SPAN <= width;
    UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
      const int iy = INPUT_Y(oy, ky);
      if (iy < 0 || iy >= height) continue;
      input p = plane + (iy * width + edge) * BLOCK;
      UNROLL for (int q = 0; q < SPAN; q++) if (inside || (edge + q >= 0 && edge + q < width)) {
        const V column = LOAD(p + q * BLOCK);
        UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
          const int i = q - kx * DILATION_X;
          if (i >= 0 && i % STRIDE_X == 0 && i / STRIDE_X < TILE) sum[ky * KERNEL_W + kx] += column * g[i / STRIDE_X];
        }
      }
    }
  }
  output dw = partials + (size_t)(group * blocks + block) * TAPS * BLOCK;
  UNROLL for (int t = 0; t < TAPS; t++) {
    GROUP_SUM(sum[t])
    if (LEADS) STORE(dw + t * BLOCK, add ? sum[t] + LOAD(dw + t * BLOCK) : sum[t]);
  }
#if SUMS
  INTO(sums)
  output dy_sum = sums + (size_t)(group * blocks + block) * BLOCK;
  GROUP_SUM(columns)
  if (LEADS) STORE(dy_sum, add ? columns + LOAD(dy_sum) : columns);
#endif
}
