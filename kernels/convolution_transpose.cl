// Transposed convolution: what the kernels of convolution.cl leave to do.
#include "elementwise.h"
#include "epilogue.h"
#include "group_sum.h"

// y = activation(y * scale + shift)
KERNEL finish_outputs(OUTPUT(y), ROWS_ARGUMENTS EPILOGUE_ARGUMENTS) {
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  const Affine affine = affine_of(EPILOGUE, band.block * BLOCK);
  for (int row = band.start; row < band.stop; row++) {
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
