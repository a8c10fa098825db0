// Convolution with any kernel, stride, padding and dilation. x: [c/IN_BLOCK][images*height*width][IN_BLOCK]: a
// network's input of fewer than 16 channels is stored unpadded, everything else has IN_BLOCK 16.
// w: [out/16][taps][channels][16]. A work-item computes TILE outputs of a row x PANELS blocks of 16 channels.
#include "blocked.h"
#include "activation.h"
#include "epilogue.h"
#include "gradient.h"
#include "group_sum.h"

#define DATA input
#define SUM V
#define VALUE_OF(x) (V)(x)
#define WEIGHTS_AT(p) LOAD(p)
#define GRADIENTS_AT(p) LOAD(p)
#include "window_products.h"

#define TILE_OF_ROW(height, tiles)                                                \
  const int part = ITEM, panel = get_global_id(1) * PANELS;           \
  const int image = part / ((tiles) * (height));                                  \
  if (image >= images) return;                                                    \
  NO_SUMS(TILE)

// y = activation((x * w) * scale + shift)
KERNEL convolution_forward(INPUT(x), INPUT(w), OUTPUT(y), const int images, const int height, const int width,
                           const int channels, const int out_height, const int out_width EPILOGUE_ARGUMENTS) {
  FROM_WORDS(float, x) FROM(w) INTO(y) EPILOGUE_POINTERS
  const int tiles = (out_width + TILE - 1) / TILE;
  TILE_OF_ROW(out_height, tiles)
  const int oy = part / tiles % out_height, ox = part % tiles * TILE;
  ADD_FORWARD_PRODUCTS(x, w)
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
  ADD_BACKWARD_PRODUCTS(dy, t)
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
  NO_SUMS(DEPTH)
  ADD_WEIGHT_PRODUCTS(x, dy)
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) {
    output dw = partials + (((size_t)(group * out_blocks + panel + j) * TAPS + tap) * channels + channel + i) * BLOCK;
    GROUP_SUM(sum[i][j])
    if (LEADS && channel + i < channels) STORE(dw, add ? sum[i][j] + LOAD(dw) : sum[i][j]);
  }
}
