// Transposed convolution: what the kernels of convolution.cl leave to do.
#include "elementwise.h"
#include "epilogue.h"
#include "group_sum.h"

// y = activation(y * scale + shift)
KERNEL finish_outputs(OUTPUT(y), ROWS_ARGUMENTS EPILOGUE_ARGUMENTS) {
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  const Affine affine = affine_of(EPILOGUE, band.block * BLOCK);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, apply(affine, load(y + at)));
  }
}

// partials[group]: [out/16][taps][channels][16] = (add ? what was there : 0) + the sum of x * dy, where input pixel (y,
// x) meets tap (ky, kx) at output pixel (y * stride_y - top + ky * dilation_y, ...), over (image, input row) pairs,
// `rows` a member of a work-group, which computes one tap, DEPTH channels of x and one block of dy.
KERNEL transposed_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials), const int images, const int height,
                                   const int width, const int channels, const int out_height, const int out_width,
                                   const int taps, const int kernel_w, const int stride_y, const int stride_x,
                                   const int dilation_y, const int dilation_x, const int top, const int left,
                                   const int rows, const int out_blocks, const int add) {
  LOCAL_SHARES(shares);
  input x = START(x), dy = ITEM_START(dy);
  const int depth_tiles = (channels + DEPTH - 1) / DEPTH;
  const int tap = get_group_id(0) / depth_tiles, channel = get_group_id(0) % depth_tiles * DEPTH;
  const int block = get_global_id(1), group = get_global_id(2), total = images * height;
  const int first = (group * MEMBERS + ITEM % MEMBERS) * rows, last = first + rows < total ? first + rows : total;
  const int down = tap / kernel_w * dilation_y - top, right = tap % kernel_w * dilation_x - left;
  const int start = right < 0 ? (stride_x - 1 - right) / stride_x : 0;  // input columns whose output lies in the image
  const int reach = out_width - right + stride_x - 1, stop = reach / stride_x < width ? reach / stride_x : width;
  V sum[DEPTH];
  UNROLL for (int i = 0; i < DEPTH; i++) sum[i] = (V)0;
  for (int row = first; row < last; row++) {
    const int image = row / height, oy = row % height * stride_y + down;
    if (oy < 0 || oy >= out_height) continue;
    input values = x + value_at(channel, (size_t)total * width, (size_t)row * width);
    input line = dy + row_at(block, images * out_height * out_width, (image * out_height + oy) * out_width);
    for (int column = start; column < stop; column++) {
      const V g = load(line + (size_t)(column * stride_x + right) * BLOCK);
      UNROLL for (int i = 0; i < DEPTH; i++) sum[i] += g * values[(size_t)column * BLOCK + i];
    }
  }
  UNROLL for (int i = 0; i < DEPTH; i++) {
    output dw = ITEM_START(partials)
                + ((((size_t)group * out_blocks + block) * taps + tap) * channels + channel + i) * BLOCK;
    const V v = group_sum(sum[i], shares);
    if (IS_FIRST_MEMBER && channel + i < channels) store(dw, add ? v + load(dw) : v);
  }
}

// With groups of channels, which need not begin at blocks of 16. w: [out/16][taps][channels of a group][16].
#define GROUPS_ARGUMENTS const int images, const int height, const int width, const int channels,                      \
                         const int out_height, const int out_width, const int out, const int groups, const int taps,  \
                         const int kernel_w, const int stride_y, const int stride_x, const int dilation_y,            \
                         const int dilation_x, const int top, const int left

// y = activation((x * w) * scale + shift)
KERNEL transposed_groups_forward(INPUT(x), INPUT(w), OUTPUT(y), GROUPS_ARGUMENTS EPILOGUE_ARGUMENTS) {
  input x = START(x), w = START(w);
  const int row = ITEM, block = get_global_id(1), rows = images * out_height * out_width;
  if (row >= rows) return;
  const int image = row / (out_height * out_width), oy = row / out_width % out_height, ox = row % out_width;
  const int in_group = channels / groups, out_group = out / groups;
  const size_t m = (size_t)images * height * width;
  V v = (V)0;
  for (int i = 0; i < VECTOR_WIDTH; i++) {
    const int o = block * BLOCK + FIRST_CHANNEL + i, first = o / out_group * in_group;
    if (o >= out) continue;
    float sum = 0.0f;
    for (int tap = 0; tap < taps; tap++) {
      const int reach_y = oy + top - tap / kernel_w * dilation_y, reach_x = ox + left - tap % kernel_w * dilation_x;
      const int iy = reach_y / stride_y, ix = reach_x / stride_x;
      if (reach_y < 0 || reach_x < 0 || reach_y % stride_y || reach_x % stride_x || iy >= height || ix >= width)
        continue;
      for (int c = 0; c < in_group; c++)
        sum += x[value_at(first + c, m, ((size_t)image * height + iy) * width + ix)]
               * w[((size_t)(block * taps + tap) * in_group + c) * BLOCK + o % BLOCK];
    }
    ELEMENT(v, i) = sum;
  }
  store(ITEM_START(y) + row_at(block, rows, row), apply(affine_of(EPILOGUE, block * BLOCK), v));
}

KERNEL transposed_groups_backward_data(INPUT(dy), INPUT(w), GROUPS_ARGUMENTS, GRADIENT_ARGUMENTS) {
  input dy = START(dy), w = START(w);
  const Gradient dx = GRADIENT;
  const int row = ITEM, block = get_global_id(1), rows = images * height * width;
  if (row >= rows) return;
  const int image = row / (height * width), iy = row / width % height, ix = row % width;
  const int in_group = channels / groups, out_group = out / groups;
  const size_t m = (size_t)images * out_height * out_width;
  V v = (V)0;
  for (int i = 0; i < VECTOR_WIDTH; i++) {
    const int channel = block * BLOCK + FIRST_CHANNEL + i, first = channel / in_group * out_group;
    if (channel >= channels) continue;
    float sum = 0.0f;
    for (int tap = 0; tap < taps; tap++) {
      const int oy = iy * stride_y - top + tap / kernel_w * dilation_y;
      const int ox = ix * stride_x - left + tap % kernel_w * dilation_x;
      if (oy < 0 || oy >= out_height || ox < 0 || ox >= out_width) continue;
      for (int o = first; o < first + out_group; o++)
        sum += dy[value_at(o, m, ((size_t)image * out_height + oy) * out_width + ox)]
               * w[((size_t)(o / BLOCK * taps + tap) * in_group + channel % in_group) * BLOCK + o % BLOCK];
    }
    ELEMENT(v, i) = sum;
  }
  write_gradient(dx, row_at(block, rows, row), v);
}

// partials[part]: like w, (add ? what was there : 0) + the sum of x * dy over `rows` (image, input row) pairs
KERNEL transposed_groups_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials), GROUPS_ARGUMENTS, const int rows,
                                          const int add) {
  input x = START(x), dy = START(dy);
  const int in_group = channels / groups, out_group = out / groups, blocks = get_global_size(1);
  const int weight_row = ITEM, block = get_global_id(1), part = get_global_id(2), total = images * height;
  if (weight_row >= taps * in_group) return;
  const int tap = weight_row / in_group, c = weight_row % in_group;
  const int first = part * rows, last = first + rows < total ? first + rows : total;
  const size_t m = (size_t)total * width, out_m = (size_t)images * out_height * out_width;
  V v = (V)0;
  for (int i = 0; i < VECTOR_WIDTH; i++) {
    const int o = block * BLOCK + FIRST_CHANNEL + i, channel = o / out_group * in_group + c;
    if (o >= out) continue;
    float sum = 0.0f;
    for (int row = first; row < last; row++) {
      const int image = row / height, oy = row % height * stride_y - top + tap / kernel_w * dilation_y;
      if (oy < 0 || oy >= out_height) continue;
      for (int ix = 0; ix < width; ix++) {
        const int ox = ix * stride_x - left + tap % kernel_w * dilation_x;
        if (ox >= 0 && ox < out_width)
          sum += x[value_at(channel, m, (size_t)row * width + ix)]
                 * dy[value_at(o, out_m, ((size_t)image * out_height + oy) * out_width + ox)];
      }
    }
    ELEMENT(v, i) = sum;
  }
  output dw = ITEM_START(partials) + (((size_t)part * blocks + block) * taps * in_group + weight_row) * BLOCK;
  store(dw, add ? v + load(dw) : v);
}
