// Convolutions of 3 x 3 without strides from fewer products (winograd.h), for CPUs. A work-item takes chunks of CHUNK
// tiles in turn and has its own part of the workspace, small enough for a core's cache. ROWS tiles are multiplied at a
// time, as many as registers hold; they divide CHUNK. PANELS divides out/16.
#include "blocked.h"
#include "epilogue.h"
#include "gradient.h"
#include "products.h"
#include "winograd_tiles.h"

// products[point][panel][tile] = transformed inputs of ROWS tiles from `first` on times PANELS blocks of transformed
// weights
INLINE void multiply_point(output products, input_values x, input_values u, const int channels, const int first) {
  V sum[ROWS][PANELS];
  multiply(sum, x, u, CHUNK, channels, first, 0);
  UNROLL for (int j = 0; j < PANELS; j++) UNROLL for (int t = 0; t < ROWS; t++)
    store(products + (j * CHUNK + first + t) * BLOCK, sum[t][j]);
}

// The outputs of tile t of a chunk
INLINE void load_outputs(V y[4], input products, const int panel, const int t) {
  V points[POINTS];
  UNROLL for (int i = 0; i < POINTS; i++) points[i] = load(products + ((i * PANELS + panel) * CHUNK + t) * BLOCK);
  transform_output(points, y);
}

// Where outputs go: through the epilogue, or, `backward`, as gradients
typedef struct { Gradient gradient; Epilogue epilogue; int backward; } Target;

// Of the images that have MOMENTS, no tile reaches beyond the edge.
INLINE void write_tile(const Target target, Moments *moments, V y[4], const Sizes s, const Place p, const int block) {
  const Affine affine = affine_of(target.epilogue, block * BLOCK);
  if (!target.backward) {
    UNROLL for (int i = 0; i < 4; i++) y[i] = apply(affine, y[i]);
    add_moments(moments, y, 1, 4, 0, 4);
  }
  const size_t plane = (size_t)(block * s.images + p.image) * s.out_height * s.out_width;
  UNROLL for (int i = 0; i < 4; i++) if (p.y + i / 2 < s.out_height && p.x + i % 2 < s.out_width) {
    const size_t at = (plane + (p.y + i / 2) * s.out_width + p.x + i % 2) * BLOCK;
    if (target.backward) write_gradient(target.gradient, at, y[i]);
    else store(target.gradient.dx + at, y[i]);
  }
}

// All outputs of every chunk of this work-item: x times the transformed kernel u
INLINE void convolve(const Target target, input_values x, input_values u, output workspace, const Sizes s,
                     const int channels, const int out_blocks) {
  const int blocks = (channels + BLOCK - 1) / BLOCK, tiles = tiles_of(s);
  output inputs = workspace + get_global_id(0) * (size_t)((blocks + PANELS) * POINTS * CHUNK * BLOCK);
  output products = inputs + blocks * POINTS * CHUNK * BLOCK;
  for (int first = get_global_id(0) * CHUNK; first < tiles; first += get_global_size(0) * CHUNK) {
    const int count = tiles - first < CHUNK ? tiles - first : CHUNK;
    transform_inputs(inputs, x, s, first, count, 0, blocks);
    for (int panel = 0; panel < out_blocks; panel += PANELS) {
      for (int i = 0; i < POINTS; i++) for (int t = 0; t < count; t += ROWS)
        multiply_point(products + i * PANELS * CHUNK * BLOCK, inputs + i * blocks * CHUNK * BLOCK,
                       u + (size_t)(i * out_blocks + panel) * channels * BLOCK, channels, t);
      for (int j = 0; j < PANELS; j++) {
        Moments moments = NO_MOMENTS;
        for (int t = 0; t < count; t++) {
          V y[4];
          load_outputs(y, products, j, t);
          write_tile(target, &moments, y, s, place_of(s, first + t), panel + j);
        }
        leave_moments(target.epilogue, moments, first / CHUNK, panel + j, out_blocks);
      }
    }
  }
}

// y = activation((x * w) * scale + shift)
KERNEL winograd_forward(INPUT(x), INPUT(u), OUTPUT(y), OUTPUT(workspace), SIZES_ARGUMENTS, const int channels,
                        const int out_blocks EPILOGUE_ARGUMENTS) {
  const Target target = {{START(y), 0, NORM}, EPILOGUE, 0};
  convolve(target, START(x), START(u), START(workspace), SIZES, channels, out_blocks);
}

// dx = dy * w backwards: dy is the input, and u of the transposed kernel, FLIPPED
KERNEL winograd_backward_data(INPUT(x), INPUT(u), OUTPUT(workspace), SIZES_ARGUMENTS, const int channels,
                              const int out_blocks, GRADIENT_ARGUMENTS) {
  const Target target = {GRADIENT, {0, 0, 0}, 1};
  convolve(target, START(x), START(u), START(workspace), SIZES, channels, out_blocks);
}
