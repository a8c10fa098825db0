// The weights' gradient of convolutions of 3 x 3 without strides from fewer products (winograd.h), for CPUs. A work-item
// takes IN_BLOCKS x OUT_BLOCKS blocks of the weights in turn and has its own part of the workspace. DEPTH divides 16,
// PANELS divides OUT_BLOCKS.
#include "blocked.h"
#include "winograd_tiles.h"

// Floats of a work-item's workspace
#define WORKSPACE (POINTS * BLOCK * (CHUNK * (IN_BLOCKS + OUT_BLOCKS) + IN_BLOCKS * OUT_BLOCKS * BLOCK))

// du of DEPTH channels x PANELS blocks of filters at a point += the products of `count` tiles, or = where `first`
INLINE void add_tiles(output du, input x, input dy, const int rows, const int count, const int first) {
  V sum[DEPTH][PANELS];
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;
  for (int t = 0; t < count; t++) {
    V column[PANELS];
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = load(dy + (j * CHUNK + t) * BLOCK);
    UNROLL for (int i = 0; i < DEPTH; i++) {
      const V value = (V)x[t * BLOCK + i];
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];
    }
  }
  UNROLL for (int i = 0; i < DEPTH; i++) UNROLL for (int j = 0; j < PANELS; j++) {
    output target = du + (j * rows + i) * BLOCK;
    store(target, first ? sum[i][j] : sum[i][j] + load(target));
  }
}

INLINE void transform_output_gradients(output chunk, input dy, const Sizes s, const int first, const int count,
                                       const int block) {
  for (int b = 0; b < OUT_BLOCKS; b++) for (int t = 0; t < count; t++) {
    const Place p = place_of(s, first + t);
    V pixels[4], points[POINTS];
    input plane = dy + (size_t)((block + b) * s.images + p.image) * s.out_height * s.out_width * BLOCK;
    load_pixels(pixels, 2, plane, p.y, p.x, s.out_height, s.out_width);
    transform_output_gradient(pixels, points);
    store_points(chunk, OUT_BLOCKS, b, t, points);
  }
}

// partials[group]: [out/16][9][channels][16] = (add ? what was there : 0) + the sum of x * dy over the `span` tiles of
// a group. A work-item computes IN_BLOCKS x OUT_BLOCKS blocks of them at a time, at all points.
KERNEL winograd_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials), OUTPUT(workspace), SIZES_ARGUMENTS,
                                 const int channels, const int out_blocks, const int groups, const int span,
                                 const int add) {
  const Sizes s = SIZES;
  const int rows = IN_BLOCKS * BLOCK, tiles = tiles_of(s);
  const int across = out_blocks / OUT_BLOCKS, down = (channels + rows - 1) / rows;
  output inputs = START(workspace) + get_global_id(0) * (size_t)WORKSPACE;
  output gradients = inputs + POINTS * CHUNK * rows, du = gradients + POINTS * CHUNK * OUT_BLOCKS * BLOCK;
  for (int task = get_global_id(0); task < groups * down * across; task += get_global_size(0)) {
    const int group = task / (down * across), block = task / across % down * IN_BLOCKS;
    const int panel = task % across * OUT_BLOCKS;
    const int start = group * span, stop = start + span < tiles ? start + span : tiles;
    for (int first = start; first == start || first < stop; first += CHUNK) {
      const int count = stop - first < CHUNK ? stop - first : CHUNK;
      transform_inputs(inputs, START(x), s, first, count, block, IN_BLOCKS);
      transform_output_gradients(gradients, START(dy), s, first, count, panel);
      for (int i = 0; i < POINTS; i++) for (int c = 0; c < rows; c += DEPTH) for (int j = 0; j < OUT_BLOCKS; j += PANELS)
        add_tiles(du + ((i * OUT_BLOCKS + j) * rows + c) * BLOCK,
                  inputs + (i * IN_BLOCKS + c / BLOCK) * CHUNK * BLOCK + c % BLOCK,
                  gradients + (i * OUT_BLOCKS + j) * CHUNK * BLOCK, rows, count, first == start);
    }
    for (int j = 0; j < OUT_BLOCKS; j++) for (int c = 0; c < rows && block * BLOCK + c < channels; c++) {
      V points[POINTS], dw[9];
      UNROLL for (int i = 0; i < POINTS; i++) points[i] = load(du + ((i * OUT_BLOCKS + j) * rows + c) * BLOCK);
      transform_kernel_gradient(points, dw);
      UNROLL for (int tap = 0; tap < 9; tap++) {
        const size_t row = ((size_t)(group * out_blocks + panel + j) * 9 + tap) * channels + block * BLOCK + c;
        output target = START(partials) + row * BLOCK;
        store(target, add ? dw[tap] + load(target) : dw[tap]);
      }
    }
  }
}
