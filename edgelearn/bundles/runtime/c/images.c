/* The kernels of target c that few networks of images need: transposed convolutions, resizing, space to depth; products of two
   computed matrices; bit masks of activations. See kernels.h. */
#include "blocks.h"

/* -- transposed convolutions: the tap (ky, kx) of input pixel (iy, ix) meets output pixel (iy * stride - top + ky * dilation,
   ...). One group's kernels of other passes are those of convolutions. -- */

/* y, m, blocks, epilogue */
void el_finish_outputs(const el_value *v) {
  const Epilogue e = epilogue_of(v + 3);
  const int m = v[1].i;
  int block, row;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      float *y = v[0].p + row_at(block, m, row), sum[B];
      memcpy(sum, y, sizeof sum);
      write_output(e, block, sum, y);
    }
}

/* Arguments in this order, sixteen */
typedef struct {
  int images, height, width, channels, out_height, out_width, out, groups, taps, kernel_w, stride_y, stride_x, dilation_y,
      dilation_x, top, left;
} Transposed;

static Transposed transposed_of(const el_value *v) {
  const Transposed s = {v[0].i, v[1].i, v[2].i,  v[3].i,  v[4].i,  v[5].i,  v[6].i,  v[7].i,
                        v[8].i, v[9].i, v[10].i, v[11].i, v[12].i, v[13].i, v[14].i, v[15].i};
  return s;
}

/* The output row that a tap of an input pixel meets, of all images; -1 outside */
static int met(const Transposed *s, int image, int iy, int ix, int tap) {
  const int oy = iy * s->stride_y - s->top + tap / s->kernel_w * s->dilation_y;
  const int ox = ix * s->stride_x - s->left + tap % s->kernel_w * s->dilation_x;
  if (oy < 0 || oy >= s->out_height || ox < 0 || ox >= s->out_width) return -1;
  return (image * s->out_height + oy) * s->out_width + ox;
}

/* x, dy, partial sums, sizes (of one group), rows a group, blocks, add, groups of rows */
void el_transposed_backward_weights(const el_value *v) {
  const Transposed s = transposed_of(v + 3);
  const int total = s.images * s.height, rows = v[19].i, blocks = v[20].i, out_m = s.images * s.out_height * s.out_width;
  int group, block, tap, channel, row, ix, c;
  for (group = 0; group < v[22].i; group++)
    for (block = 0; block < blocks; block++)
      for (tap = 0; tap < s.taps; tap++)
        for (channel = 0; channel < s.channels; channel++) {
          float *dw = v[2].p + ((size_t)((group * blocks + block) * s.taps + tap) * s.channels + channel) * B, sum[B] = {0};
          for (row = group * rows; row < smaller((group + 1) * rows, total); row++)
            for (ix = 0; ix < s.width; ix++) {
              const int at = met(&s, row / s.height, row % s.height, ix, tap);
              const float value = v[0].p[value_at(channel, total * s.width, row * s.width + ix)];
              if (at >= 0) EACH(c) sum[c] += value * v[1].p[row_at(block, out_m, at) + c];
            }
          EACH(c) dw[c] = v[21].i ? dw[c] + sum[c] : sum[c];
        }
}

/* x, w, y, sizes, blocks, epilogue. w: [out / 16][taps][channels of a group][16] */
void el_transposed_groups_forward(const el_value *v) {
  const Transposed s = transposed_of(v + 3);
  const Epilogue e = epilogue_of(v + 20);
  const int in_group = s.channels / s.groups, out_group = s.out / s.groups, m = s.images * s.height * s.width;
  int block, row, i, tap, c;
  for (block = 0; block < v[19].i; block++)
    for (row = 0; row < s.images * s.out_height * s.out_width; row++) {
      const int image = row / (s.out_height * s.out_width), oy = row / s.out_width % s.out_height, ox = row % s.out_width;
      float sum[B] = {0};
      for (i = 0; i < smaller(B, s.out - block * B); i++)
        for (tap = 0; tap < s.taps; tap++) {
          const int iy = reached(oy, s.top, tap / s.kernel_w, s.dilation_y, s.stride_y, s.height);
          const int ix = reached(ox, s.left, tap % s.kernel_w, s.dilation_x, s.stride_x, s.width);
          const float *w = v[1].p + (size_t)(block * s.taps + tap) * in_group * B + i;
          if (iy < 0 || ix < 0) continue;
          for (c = 0; c < in_group; c++)
            sum[i] += v[0].p[value_at((block * B + i) / out_group * in_group + c, m, (image * s.height + iy) * s.width + ix)] *
                      w[c * B];
        }
      write_output(e, block, sum, v[2].p + row_at(block, s.images * s.out_height * s.out_width, row));
    }
}

/* dy, w, sizes, blocks, gradient */
void el_transposed_groups_backward_data(const el_value *v) {
  const Transposed s = transposed_of(v + 2);
  const Gradient g = gradient_of(v + 19);
  const int in_group = s.channels / s.groups, out_group = s.out / s.groups, out_m = s.images * s.out_height * s.out_width;
  int block, row, i, tap, o;
  for (block = 0; block < v[18].i; block++)
    for (row = 0; row < s.images * s.height * s.width; row++) {
      float dx[B] = {0};
      for (i = 0; i < smaller(B, s.channels - block * B); i++)
        for (tap = 0; tap < s.taps; tap++) {
          const int channel = block * B + i, first = channel / in_group * out_group;
          const int at = met(&s, row / (s.height * s.width), row / s.width % s.height, row % s.width, tap);
          if (at < 0) continue;
          for (o = first; o < first + out_group; o++)
            dx[i] += v[0].p[value_at(o, out_m, at)] *
                     v[1].p[((size_t)(o / B * s.taps + tap) * in_group + channel % in_group) * B + o % B];
        }
      write_gradient(g, row_at(block, s.images * s.height * s.width, row), dx);
    }
}

/* x, dy, partial sums, sizes, rows a part, add, blocks, parts */
void el_transposed_groups_backward_weights(const el_value *v) {
  const Transposed s = transposed_of(v + 3);
  const int in_group = s.channels / s.groups, out_group = s.out / s.groups, rows = v[19].i, blocks = v[21].i;
  const int total = s.images * s.height, out_m = s.images * s.out_height * s.out_width;
  int part, block, weight_row, row, ix, i;
  for (part = 0; part < v[22].i; part++)
    for (block = 0; block < blocks; block++)
      for (weight_row = 0; weight_row < s.taps * in_group; weight_row++) {
        float *dw = v[2].p + ((size_t)(part * blocks + block) * s.taps * in_group + weight_row) * B, sum[B] = {0};
        for (row = part * rows; row < smaller((part + 1) * rows, total); row++)
          for (ix = 0; ix < s.width; ix++) {
            const int at = met(&s, row / s.height, row % s.height, ix, weight_row / in_group);
            for (i = 0; at >= 0 && i < smaller(B, s.out - block * B); i++) {
              const int channel = (block * B + i) / out_group * in_group + weight_row % in_group;
              sum[i] += v[0].p[value_at(channel, total * s.width, row * s.width + ix)] * v[1].p[row_at(block, out_m, at) + i];
            }
          }
        for (i = 0; i < B; i++) dw[i] = v[20].i ? dw[i] + sum[i] : sum[i];
      }
}

/* -- resizing: sparse matrices along the height and the width. A matrix is pairs of words: for each output coordinate where its
   entries start and stop, then the entries, an input coordinate and a factor. -- */

static float factor_of(const float *matrix, int entry) { return matrix[2 * entry + 1]; }

/* x, rows, columns, m, blocks, from_height, from_width, height, width, gradient */
void el_map_image(const el_value *v) {
  const int32_t *rows = (const int32_t *)(const void *)v[1].p, *columns = (const int32_t *)(const void *)v[2].p;
  const int m = v[3].i, from_height = v[5].i, from_width = v[6].i, height = v[7].i, width = v[8].i;
  const int from_m = m / (height * width) * from_height * from_width;
  const Gradient g = gradient_of(v + 9);
  int block, row, i, j, c;
  for (block = 0; block < v[4].i; block++)
    for (row = 0; row < m; row++) {
      const int first = row / (height * width) * from_height * from_width, oy = row / width % height, ox = row % width;
      float sum[B] = {0};
      for (i = rows[2 * oy]; i < rows[2 * oy + 1]; i++) {
        float of_row[B] = {0};
        for (j = columns[2 * ox]; j < columns[2 * ox + 1]; j++) {
          const float *x = v[0].p + row_at(block, from_m, first + rows[2 * i] * from_width + columns[2 * j]);
          EACH(c) of_row[c] += x[c] * factor_of(v[2].p, j);
        }
        EACH(c) sum[c] += of_row[c] * factor_of(v[1].p, i);
      }
      write_gradient(g, row_at(block, m, row), sum);
    }
}

/* x, m, blocks, height, width, channels, channels of x, size, back, gradient: squares of size x size pixels become channels of
   one pixel */
void el_space_to_depth(const el_value *v) {
  const int m = v[1].i, height = v[3].i, width = v[4].i, channels = v[5].i, from_channels = v[6].i, size = v[7].i, back = v[8].i;
  const int from_m = back ? m / (size * size) : m * size * size;
  const Gradient g = gradient_of(v + 9);
  int block, row, i;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (height * width), iy = row / width % height, ix = row % width;
      float dx[B] = {0};
      for (i = 0; i < smaller(B, channels - block * B); i++) {
        const int c = block * B + i, pixel = back ? 0 : c / from_channels;
        const int from = back ? (image * (height / size) + iy / size) * (width / size) + ix / size
                              : ((image * height + iy) * size + pixel / size) * width * size + ix * size + pixel % size;
        dx[i] = v[0].p[value_at(back ? (iy % size * size + ix % size) * channels + c : c % from_channels, from_m, from)];
      }
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* -- others -- */

/* a, b, images, m, k, blocks, across (a is stored as k x m), gradient: products of matrices of each image */
void el_multiply(const el_value *v) {
  const int images = v[2].i, m = v[3].i, k = v[4].i;
  const Gradient g = gradient_of(v + 7);
  int block, row, i, c;
  for (block = 0; block < v[5].i; block++)
    for (row = 0; row < images * m; row++) {
      const float *b = v[1].p + row_at(block, images * k, row / m * k);
      float sum[B] = {0};
      for (i = 0; i < k; i++) {
        const float value = v[0].p[v[6].i ? value_at(row % m, images * k, row / m * k + i) : value_at(i, images * m, row)];
        EACH(c) sum[c] += value * b[i * B + c];
      }
      write_gradient(g, row_at(block, images * m, row), sum);
    }
}

/* x, y (16 bits a row), m, blocks, function: bit c is set where the derivative of channel c is that at an output of 1 */
void el_pack_bits(const el_value *v) {
  const Function f = {v[4].i, v[5].f, v[6].f};
  uint16_t *y = (uint16_t *)(void *)v[1].p;
  int row, c;
  for (row = 0; row < v[2].i * v[3].i; row++) {
    float passing[B], slope[B], ones[B];
    EACH(c) passing[c] = slope[c] = ones[c] = 1;
    el_apply_slope(f, ones, passing);
    el_apply_slope(f, v[0].p + (size_t)row * B, slope);
    y[row] = 0;
    EACH(c) y[row] = (uint16_t)(y[row] | (slope[c] == passing[c]) << c);
  }
}

/* y, x, m, blocks */
void el_unpack_bits(const el_value *v) {
  const uint16_t *y = (const uint16_t *)(const void *)v[0].p;
  int row, c;
  for (row = 0; row < v[2].i * v[3].i; row++) EACH(c) v[1].p[(size_t)row * B + c] = (float)(y[row] >> c & 1);
}
