// Convolution with several groups of channels. Borders of groups need not fall between blocks of 16, so each value is
// found by itself: right for every shape, and not fast. w: [out/16][taps][channels of a group][16].
#include "blocked.h"
#include "activation.h"
#include "epilogue.h"
#include "gradient.h"
#include "window.h"

#define INPUT_AT(image, iy, ix, c) \
  x[(((size_t)((c) / IN_BLOCK) * images + (image)) * height * width + (iy) * width + (ix)) * IN_BLOCK + (c) % IN_BLOCK]
#define OUTPUT_AT(image, oy, ox, c) \
  dy[(((size_t)((c) / BLOCK) * images + (image)) * out_height * out_width + (oy) * out_width + (ox)) * BLOCK + (c) % BLOCK]

KERNEL grouped_forward(INPUT(x), INPUT(w), OUTPUT(y), const int images, const int height, const int width,
                       const int channels, const int out_height, const int out_width, const int out,
                       const int groups EPILOGUE_ARGUMENTS) {
  FROM(x) FROM(w) INTO(y) EPILOGUE_POINTERS
  const int row = get_global_id(0), block = get_global_id(1), rows = images * out_height * out_width;
  if (row >= rows) return;
  const int image = row / (out_height * out_width), oy = row / out_width % out_height, ox = row % out_width;
  const int in_group = channels / groups, out_group = out / groups;
  V v = (V)0;
  for (int lane = 0; lane < BLOCK && block * BLOCK + lane < out; lane++) {
    const int first = (block * BLOCK + lane) / out_group * in_group;
    float sum = 0.0f;
    for (int tap = 0; tap < TAPS; tap++) {
      const int iy = INPUT_Y(oy, tap / KERNEL_W), ix = INPUT_X(ox, tap % KERNEL_W);
      if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
      for (int c = 0; c < in_group; c++)
        sum += INPUT_AT(image, iy, ix, first + c) * w[((size_t)(block * TAPS + tap) * in_group + c) * BLOCK + lane];
    }
    LANE(v, lane) = sum;
  }
  LOAD_SCALE(s, block * BLOCK)
  LOAD_SHIFT(t, block * BLOCK)
  APPLY_SCALE(v, s)
  APPLY_SHIFT(v, t)
  ACTIVATE(v)
  STORE(y + ((size_t)block * rows + row) * BLOCK, v);
}

KERNEL grouped_backward_data(INPUT(dy), INPUT(w), const int images, const int height, const int width,
                             const int channels, const int out_height, const int out_width, const int out,
                             const int groups, GRADIENT_OUTPUT) {
  FROM(dy) FROM(w) GRADIENT_POINTERS
  const int row = get_global_id(0), block = get_global_id(1), rows = images * height * width;
  if (row >= rows) return;
  const int image = row / (height * width), iy = row / width % height, ix = row % width;
  const int in_group = channels / groups, out_group = out / groups;
  V v = (V)0;
  for (int lane = 0; lane < BLOCK && block * BLOCK + lane < channels; lane++) {
    const int channel = block * BLOCK + lane, first = channel / in_group * out_group;
    float sum = 0.0f;
    for (int tap = 0; tap < TAPS; tap++) {
      const int reach_y = REACH_Y(iy, tap / KERNEL_W), reach_x = REACH_X(ix, tap % KERNEL_W);
      const int oy = reach_y / STRIDE_Y, ox = reach_x / STRIDE_X;
      if (reach_y < 0 || reach_x < 0 || reach_y % STRIDE_Y || reach_x % STRIDE_X || oy >= out_height || ox >= out_width)
        continue;
      for (int o = first; o < first + out_group; o++)
        sum += OUTPUT_AT(image, oy, ox, o)
               * w[((size_t)(o / BLOCK * TAPS + tap) * in_group + channel % in_group) * BLOCK + o % BLOCK];
    }
    LANE(v, lane) = sum;
  }
  WRITE_GRADIENT(((size_t)block * rows + row) * BLOCK, v)
}

KERNEL grouped_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials), const int images, const int height,
                                const int width, const int channels, const int out_height, const int out_width,
                                const int out, const int groups, const int rows, const int add) {
  FROM(x) FROM(dy) INTO(partials)
  const int in_group = channels / groups, out_group = out / groups;
  const int weight_row = get_global_id(0), block = get_global_id(1), part = get_global_id(2);
  if (weight_row >= TAPS * in_group) return;
  const int tap = weight_row / in_group, c = weight_row % in_group, blocks = (out + BLOCK - 1) / BLOCK;
  const int first = part * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  V v = (V)0;
  for (int lane = 0; lane < BLOCK && block * BLOCK + lane < out; lane++) {
    const int o = block * BLOCK + lane, channel = o / out_group * in_group + c;
    float sum = 0.0f;
    for (int row = first; row < last; row++) {
      const int image = row / out_height, oy = row % out_height, iy = INPUT_Y(oy, tap / KERNEL_W);
      if (iy < 0 || iy >= height) continue;
      for (int ox = 0; ox < out_width; ox++) {
        const int ix = INPUT_X(ox, tap % KERNEL_W);
        if (ix >= 0 && ix < width) sum += INPUT_AT(image, iy, ix, channel) * OUTPUT_AT(image, oy, ox, o);
      }
    }
    LANE(v, lane) = sum;
  }
  output dw = partials + (((size_t)part * blocks + block) * TAPS * in_group + weight_row) * BLOCK;
  if (add) v += LOAD(dw);
  STORE(dw, v);
}
