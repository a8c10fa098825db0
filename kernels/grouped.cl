// Convolution with several groups of channels, whose borders need not fall between blocks of 16: each value is computed by
// itself, right for every shape, and not fast. Groups of whole blocks are columns of convolution.cl. w: [out/16][taps][channels of a group][16].
#include "elementwise.h"
#include "epilogue.h"
#include "window.h"

// Channel c of pixel (iy, ix) of an image of the input
INLINE float pixel(input_values x, const int images, const int height, const int width, const int image, const int iy,
                   const int ix, const int c) {
  return float_of(
      x[(((size_t)(c / IN_BLOCK) * images + image) * height * width + iy * width + ix) * IN_BLOCK + c % IN_BLOCK]);
}

// y = activation((x * w) * scale + shift)
KERNEL grouped_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int images, const int height, const int width,
                       const int channels, const int out_height, const int out_width, const int out,
                       const int groups EPILOGUE_ARGUMENTS) {
  input_values x = ITEM_START(x), w = ITEM_START(w);
  const int row = get_global_id(0), block = get_global_id(1), rows = images * out_height * out_width;
  if (row >= rows) return;
  const int image = row / (out_height * out_width), oy = row / out_width % out_height, ox = row % out_width;
  const int in_group = channels / groups, out_group = out / groups;
  V v = (V)0;
  for (int i = 0; i < channels_of(block, out); i++) {
    const int first = (block * BLOCK + i) / out_group * in_group;
    float sum = 0.0f;
    for (int tap = 0; tap < TAPS; tap++) {
      const int iy = INPUT_Y(oy, tap / KERNEL_W), ix = INPUT_X(ox, tap % KERNEL_W);
      if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
      for (int c = 0; c < in_group; c++)
        sum += pixel(x, images, height, width, image, iy, ix, first + c)
               * float_of(w[((size_t)(block * TAPS + tap) * in_group + c) * BLOCK + i]);
    }
    ELEMENT(v, i) = sum;
  }
  store(ITEM_START(y) + row_at(block, rows, row), apply(affine_of(EPILOGUE, block * BLOCK), v));
}

// dx = dy * w backwards
KERNEL grouped_backward_data(INPUT_VALUES(dy), INPUT_VALUES(w), const int images, const int height, const int width,
                             const int channels, const int out_height, const int out_width, const int out,
                             const int groups, GRADIENT_ARGUMENTS) {
  input_values dy = ITEM_START(dy), w = ITEM_START(w);
  const Gradient dx = GRADIENT;
  const int row = get_global_id(0), block = get_global_id(1), rows = images * height * width;
  if (row >= rows) return;
  const int image = row / (height * width), iy = row / width % height, ix = row % width;
  const int in_group = channels / groups, out_group = out / groups, out_rows = images * out_height * out_width;
  V v = (V)0;
  for (int i = 0; i < channels_of(block, channels); i++) {
    const int channel = block * BLOCK + i, first = channel / in_group * out_group;
    float sum = 0.0f;
    for (int tap = 0; tap < TAPS; tap++) {
      const int reach_y = REACH_Y(iy, tap / KERNEL_W), reach_x = REACH_X(ix, tap % KERNEL_W);
      const int oy = reach_y / STRIDE_Y, ox = reach_x / STRIDE_X;
      if (reach_y < 0 || reach_x < 0 || reach_y % STRIDE_Y || reach_x % STRIDE_X || oy >= out_height || ox >= out_width)
        continue;
      for (int o = first; o < first + out_group; o++)
        sum += float_of(dy[value_at(o, out_rows, (image * out_height + oy) * out_width + ox)])
               * float_of(w[((size_t)(o / BLOCK * TAPS + tap) * in_group + channel % in_group) * BLOCK + o % BLOCK]);
    }
    ELEMENT(v, i) = sum;
  }
  write_gradient(dx, row_at(block, rows, row), v);
}

// partials[part]: [out/16][taps][channels of a group][16] = (add ? what was there : 0) + the sum of x * dy over `rows`
// (image, output row) pairs
KERNEL grouped_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials), const int images, const int height,
                                const int width, const int channels, const int out_height, const int out_width,
                                const int out, const int groups, const int rows, const int add) {
  input_values x = ITEM_START(x), dy = ITEM_START(dy);
  const int in_group = channels / groups, out_group = out / groups, out_rows = images * out_height * out_width;
  const int weight_row = get_global_id(0), block = get_global_id(1), part = get_global_id(2);
  if (weight_row >= TAPS * in_group) return;
  const int tap = weight_row / in_group, c = weight_row % in_group, blocks = (out + BLOCK - 1) / BLOCK;
  const int first = part * rows, total = images * out_height, last = first + rows < total ? first + rows : total;
  V v = (V)0;
  for (int i = 0; i < channels_of(block, out); i++) {
    const int o = block * BLOCK + i, channel = o / out_group * in_group + c;
    float sum = 0.0f;
    for (int row = first; row < last; row++) {
      const int image = row / out_height, oy = row % out_height, iy = INPUT_Y(oy, tap / KERNEL_W);
      if (iy < 0 || iy >= height) continue;
      for (int ox = 0; ox < out_width; ox++) {
        const int ix = INPUT_X(ox, tap % KERNEL_W);
        if (ix >= 0 && ix < width)
          sum += pixel(x, images, height, width, image, iy, ix, channel)
                 * float_of(dy[value_at(o, out_rows, (image * out_height + oy) * out_width + ox)]);
      }
    }
    ELEMENT(v, i) = sum;
  }
  output dw = ITEM_START(partials) + (((size_t)part * blocks + block) * TAPS * in_group + weight_row) * BLOCK;
  if (add) v += load(dw);
  store(dw, v);
}
