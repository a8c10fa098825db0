// Convolutions of 8-bit integers with any kernel, stride, padding and dilation, and matrix products, as those with one
// tap. x: [c/IN_BLOCK][images*height*width][IN_BLOCK], w: [out/16][taps][channels][16], of which x may have a zero point;
// taps in the padding contribute nothing. A work-item computes TILE outputs of a row x PANELS blocks of 16 channels.
#include "integers.h"
#include "epilogue.h"

#define DATA bytes
#define SUM A
#define VALUE_OF(x) (A)CENTRED(x, zero)
#define WEIGHTS_AT(p) LOAD_Q(p)
#define GRADIENTS_AT(p) LOAD_CENTRED(p, dy_zero)
#include "window_products.h"

// Tile number `tile` of all: TILE outputs of a row of an image, PANELS blocks
#define TILE_OF_ROW(height, across)                                                \
  const int part = tile % (images * (height) * (across)), panel = tile / (images * (height) * (across)) * PANELS; \
  const int image = part / ((across) * (height));                                  \
  NO_SUMS(TILE)

// y = activation((x * w) * scale + shift)
KERNEL quantized_convolution_forward(INPUT_RANGED(x), INPUT_RANGED(w), RESULT_ARGUMENTS, const int images,
                                     const int height, const int width, const int channels, const int out_height,
                                     const int out_width, const int out_blocks EPILOGUE_ARGUMENTS) {
  FROM_RANGED(x) FROM_RANGED(w) RESULT_POINTERS EPILOGUE_POINTERS
  const int across = (out_width + TILE - 1) / TILE, m = images * out_height * out_width;
  const short zero = (short)x_range[ZERO];
  EACH_TILE(images * out_height * across * (out_blocks / PANELS)) {
    TILE_OF_ROW(out_height, across)
    const int oy = part / across % out_height, ox = part % across * TILE;
    ADD_FORWARD_PRODUCTS(x, w)
    UNROLL for (int j = 0; j < PANELS; j++) {
      const V step = FIELD(w_range, SCALE_OF, panel + j) * x_range[SCALE_OF];
      LOAD_SCALE(s, (panel + j) * BLOCK)
      LOAD_SHIFT(t, (panel + j) * BLOCK)
      UNROLL for (int i = 0; i < TILE; i++) if (ox + i < out_width) {
        V v = TO_FLOATS(sum[i][j]) * step;
        APPLY_SCALE(v, s)
        APPLY_SHIFT(v, t)
        ACTIVATE(v)
        WRITE_RESULT(panel + j, (image * out_height + oy) * out_width + ox + i, v)
      }
    }
  }
  LEAVE_FOUND
}

// dx = dy * w backwards, given transposed weights t: [channels/16][taps][out][16]. A tile holds every STRIDE_X-th
// input column from one residue on, so that its outputs are neighbours.
KERNEL quantized_convolution_backward_data(INPUT_RANGED(dy), INPUT_RANGED(t), RESULT_ARGUMENTS, const int images,
                                           const int height, const int width, const int out, const int out_height,
                                           const int out_width, const int blocks_in MASK_ARGUMENTS) {
  FROM_RANGED(dy) FROM_RANGED(t) RESULT_POINTERS MASK_POINTERS
  const int across = (width + TILE * STRIDE_X - 1) / (TILE * STRIDE_X) * STRIDE_X, m = images * height * width;
  const short zero = (short)dy_range[ZERO];
  EACH_TILE(images * height * across * (blocks_in / PANELS)) {
    TILE_OF_ROW(height, across)
    const int iy = part / across % height, residue = part % across % STRIDE_X;
    const int x0 = part % across / STRIDE_X * TILE * STRIDE_X;
    ADD_BACKWARD_PRODUCTS(dy, t)
    UNROLL for (int j = 0; j < PANELS; j++) {
      const V step = FIELD(t_range, SCALE_OF, panel + j) * dy_range[SCALE_OF];
      UNROLL for (int i = 0; i < TILE; i++) {
        const int ix = x0 + residue + i * STRIDE_X;
        if (ix < width)
          WRITE_GRADIENT(panel + j, (image * height + iy) * width + ix, TO_FLOATS(sum[i][j]) * step)
      }
    }
  }
  LEAVE_FOUND
}

// partials[group]: [out/16][taps][channels][16] = (add ? what was there : 0) + the sum of x * dy over `rows` (image,
// output row) pairs; a work-item has one tap, DEPTH channels of x and PANELS blocks of dy.
KERNEL quantized_convolution_backward_weights(INPUT_RANGED(x), INPUT_RANGED(dy), OUTPUT(partials), const int images,
                                              const int height, const int width, const int channels,
                                              const int out_height, const int out_width, const int rows,
                                              const int out_blocks, const int add) {
  FROM_RANGED(x) FROM_RANGED(dy) INTO(partials)
  const int depth_tiles = (channels + DEPTH - 1) / DEPTH;
  const int tap = get_global_id(0) / depth_tiles, channel = get_global_id(0) % depth_tiles * DEPTH;
  if (tap >= TAPS) return;
  const int panel = get_global_id(1) * PANELS, group = get_global_id(2);
  const int ky = tap / KERNEL_W, kx = tap % KERNEL_W;
  const int first = group * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  const short zero = (short)x_range[ZERO], dy_zero = (short)dy_range[ZERO];
  NO_SUMS(DEPTH)
  ADD_WEIGHT_PRODUCTS(x, dy)
  const float step = x_range[SCALE_OF] * dy_range[SCALE_OF];
  UNROLL for (int i = 0; i < DEPTH; i++) if (channel + i < channels) UNROLL for (int j = 0; j < PANELS; j++) {
    output dw = partials + (((size_t)(group * out_blocks + panel + j) * TAPS + tap) * channels + channel + i) * BLOCK;
    V v = TO_FLOATS(sum[i][j]) * step;
    if (add) v += LOAD(dw);
    STORE(dw, v);
  }
}
