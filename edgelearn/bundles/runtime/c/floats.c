/* The kernels of target c in float32: see kernels.h. Above each function stand its arguments in order; those in
   brackets may be null. */
#include <math.h>

#include "blocks.h"

/* -- pointwise convolutions and dense layers -- */

enum { ROWS = 4 };

/* sum = `rows` rows of x times a block of w, k channels each */
static void multiply(float sum[ROWS][B], const float *x, const float *w, int m, int k, int row, int rows) {
  int u, i, c;
  memset(sum, 0, ROWS * sizeof *sum);
  for (u = 0; u < k; u++) {
    const float *from = x + value_at(u, m, row), *weights = w + (size_t)u * B;
    for (i = 0; i < rows; i++) {
      const float value = from[i * B];
      EACH(c) sum[i][c] += value * weights[c];
    }
  }
}

/* x, w, y, m, k, blocks, epilogue */
void el_pointwise_forward(const el_value *v) {
  const Epilogue e = epilogue_of(v + 6);
  const int m = v[3].i, k = v[4].i, blocks = v[5].i;
  float sum[ROWS][B];
  int block, row, i;
  for (block = 0; block < blocks; block++)
    for (row = 0; row < m; row += ROWS) {
      const int rows = smaller(ROWS, m - row);
      multiply(sum, v[0].p, v[1].p + (size_t)block * k * B, m, k, row, rows);
      for (i = 0; i < rows; i++) write_output(e, block, sum[i], v[2].p + row_at(block, m, row + i));
    }
}

/* dy, transposed w, m, k, blocks, gradient */
void el_pointwise_backward_data(const el_value *v) {
  const Gradient g = gradient_of(v + 5);
  const int m = v[2].i, k = v[3].i, blocks = v[4].i;
  float sum[ROWS][B];
  int block, row, i;
  for (block = 0; block < blocks; block++)
    for (row = 0; row < m; row += ROWS) {
      const int rows = smaller(ROWS, m - row);
      multiply(sum, v[0].p, v[1].p + (size_t)block * k * B, m, k, row, rows);
      for (i = 0; i < rows; i++) write_gradient(g, row_at(block, m, row + i), sum[i]);
    }
}

/* dy, w, m, k, blocks of dy, gradient */
void el_few_rows_backward_data(const el_value *v) {
  const Gradient g = gradient_of(v + 5);
  const float *dy = v[0].p, *w = v[1].p;
  const int m = v[2].i, k = v[3].i, blocks = v[4].i;
  int row, channel, block, i, c;
  for (row = 0; row < m; row++)
    for (channel = 0; channel < k; channel += B) {
      float total[B] = {0};
      for (block = 0; block < blocks; block++)
        for (i = 0; i < smaller(B, k - channel); i++) {
          const float *weights = w + row_at(block, k, channel + i), *own = dy + row_at(block, m, row);
          float sum = 0;
          EACH(c) sum += weights[c] * own[c];
          total[i] += sum;
        }
      write_gradient(g, row_at(channel / B, m, row), total);
    }
}

/* x, dy, dw, [sums of dy], m, k, blocks, first, count, add, [flags], number of flags' columns, and rows, groups */
void el_pointwise_backward_weights(const el_value *v) {
  const float *x = v[0].p, *dy = v[1].p;
  const int m = v[4].i, k = v[5].i, blocks = v[6].i, count = v[8].i, add = v[9].i, groups = v[13].i;
  int group, block, row, channel, c, is_finite = 1;
  for (group = 0; group < groups; group++) {
    const int start = v[7].i + group * count, stop = smaller(start + count, m);
    for (block = 0; block < blocks; block++) {
      float *dw = v[2].p + row_at(group * blocks + block, k, 0);
      float *sums = v[3].p ? v[3].p + row_at(group * blocks + block, 1, 0) : NULL;
      if (!add) memset(dw, 0, (size_t)k * B * sizeof *dw);
      if (!add && sums) memset(sums, 0, B * sizeof *sums);
      for (row = start; row < stop; row++) {
        const float *g = dy + row_at(block, m, row);
        if (sums) EACH(c) sums[c] += g[c];
        for (channel = 0; channel < k; channel++) {
          const float value = x[value_at(channel, m, row)];
          float *to = dw + (size_t)channel * B;
          EACH(c) to[c] += value * g[c];
        }
      }
      for (channel = 0; v[10].p && channel < k; channel++)
        EACH(c) is_finite &= dw[channel * B + c] - dw[channel * B + c] == 0.0f;
    }
  }
  set_one_flag(v + 10, is_finite);
}

/* -- convolutions, of one group of channels or of groups of whole blocks: each `columns` blocks of the result read so many
   channels of their own; 0 columns: there is one group -- */

static const float *column_of(const float *x, int columns, int block, int channels, int rows) {
  return columns ? x + row_at(block / columns * (channels / B), rows, 0) : x;
}

/* x, w, y, images, height, width, channels, out_height, out_width, blocks, block of x, columns, window, epilogue */
void el_convolution_forward(const el_value *v) {
  const float *w = v[1].p;
  const int images = v[3].i, height = v[4].i, width = v[5].i, channels = v[6].i;
  const int out_height = v[7].i, out_width = v[8].i, blocks = v[9].i, in_block = v[10].i;
  const Window o = window_of(v + 12);
  const Epilogue e = epilogue_of(v + 20);
  int image, block, oy, ox, ky, kx, first, i, c;
  for (block = 0; block < blocks; block++) {
    const float *x = column_of(v[0].p, v[11].i, block, channels, images * height * width);
    for (image = 0; image < images; image++)
      for (oy = 0; oy < out_height; oy++)
        for (ox = 0; ox < out_width; ox++) {
          float sum[B] = {0};
          for (first = 0; first < channels; first += in_block)
            for (ky = 0; ky < o.height; ky++)
              for (kx = 0; kx < o.width; kx++) {
                const int iy = oy * o.stride_y - o.top + ky * o.dilation_y;
                const int ix = ox * o.stride_x - o.left + kx * o.dilation_x;
                const float *from, *weights;
                if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
                from = x + (((size_t)(first / in_block * images + image) * height + iy) * width + ix) * in_block;
                weights = w + ((size_t)(block * o.height * o.width + ky * o.width + kx) * channels + first) * B;
                for (i = 0; i < smaller(in_block, channels - first); i++, weights += B) {
                  const float value = from[i];
                  EACH(c) sum[c] += value * weights[c];
                }
              }
          write_output(e, block, sum, v[2].p + row_at(block, images * out_height * out_width,
                                                      (image * out_height + oy) * out_width + ox));
        }
  }
}

/* dy, transposed w, images, height, width, channels of dy, out_height, out_width, blocks, columns, window, gradient */
void el_convolution_backward_data(const el_value *v) {
  const float *t = v[1].p;
  const int images = v[2].i, height = v[3].i, width = v[4].i, out = v[5].i, out_height = v[6].i, out_width = v[7].i;
  const int blocks = v[8].i;
  const Window o = window_of(v + 10);
  const Gradient g = gradient_of(v + 18);
  int image, block, iy, ix, ky, kx, j, c;
  for (block = 0; block < blocks; block++) {
    const float *dy = column_of(v[0].p, v[9].i, block, out, images * out_height * out_width);
    for (image = 0; image < images; image++)
      for (iy = 0; iy < height; iy++)
        for (ix = 0; ix < width; ix++) {
          float sum[B] = {0};
          for (ky = 0; ky < o.height; ky++)
            for (kx = 0; kx < o.width; kx++) {
              const int oy = reached(iy, o.top, ky, o.dilation_y, o.stride_y, out_height);
              const int ox = reached(ix, o.left, kx, o.dilation_x, o.stride_x, out_width);
              const float *weights = t + (size_t)(block * o.height * o.width + ky * o.width + kx) * out * B;
              const int row = (image * out_height + oy) * out_width + ox;
              if (oy < 0 || ox < 0) continue;
              for (j = 0; j < out; j++, weights += B) {
                const float value = dy[value_at(j, images * out_height * out_width, row)];
                EACH(c) sum[c] += value * weights[c];
              }
            }
          write_gradient(g, row_at(block, images * height * width, (image * height + iy) * width + ix), sum);
        }
  }
}

/* w, t, taps, channels and filters of a group, rows of t, blocks of t: w transposed group by group */
void el_transpose_columns(const el_value *v) {
  const int taps = v[2].i, in_group = v[3].i, out_group = v[4].i;
  int block, row, i;
  for (block = 0; block < v[6].i; block++)
    for (row = 0; row < v[5].i; row++) {
      const int o = block * B / in_group * out_group + row % out_group;
      const float *w = v[0].p + value_at(o, taps * in_group, row / out_group * in_group + block * B % in_group);
      EACH(i) v[1].p[row_at(block, v[5].i, row) + i] = w[i * B];
    }
}

/* x, dy, partial sums, images, height, width, channels, out_height, out_width, rows a group, blocks, add, groups, block
   of x, columns, window */
void el_convolution_backward_weights(const el_value *v) {
  const float *dy = v[1].p;
  const int images = v[3].i, height = v[4].i, width = v[5].i, channels = v[6].i, out_height = v[7].i;
  const int out_width = v[8].i, rows = v[9].i, blocks = v[10].i, add = v[11].i, groups = v[12].i, in_block = v[13].i;
  const Window o = window_of(v + 15);
  const int taps = o.height * o.width;
  int group, block, tap, row, ox, channel, c;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++)
      for (tap = 0; tap < taps; tap++) {
        const float *x = column_of(v[0].p, v[14].i, block, channels, images * height * width);
        float *dw = v[2].p + (size_t)((group * blocks + block) * taps + tap) * channels * B;
        if (!add) memset(dw, 0, (size_t)channels * B * sizeof *dw);
        for (row = group * rows; row < smaller((group + 1) * rows, images * out_height); row++)
          for (ox = 0; ox < out_width; ox++) {
            const int image = row / out_height, iy = row % out_height * o.stride_y - o.top + tap / o.width * o.dilation_y;
            const int ix = ox * o.stride_x - o.left + tap % o.width * o.dilation_x;
            const float *g = dy + row_at(block, images * out_height * out_width, row * out_width + ox);
            if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
            for (channel = 0; channel < channels; channel++) {
              const int plane = channel / in_block * images + image;
              const float value = x[(((size_t)plane * height + iy) * width + ix) * in_block + channel % in_block];
              float *to = dw + (size_t)channel * B;
              EACH(c) to[c] += value * g[c];
            }
          }
      }
}

/* -- depthwise convolutions -- */

/* x, w, y, images, height, width, out_height, out_width, blocks, window, epilogue */
void el_depthwise_forward(const el_value *v) {
  const int images = v[3].i, height = v[4].i, width = v[5].i, out_height = v[6].i, out_width = v[7].i, blocks = v[8].i;
  const Window o = window_of(v + 9);
  const Epilogue e = epilogue_of(v + 17);
  int plane, oy, ox, ky, kx, c;
  for (plane = 0; plane < blocks * images; plane++) {
    const int block = plane / images;
    const float *x = v[0].p + (size_t)plane * height * width * B, *w = v[1].p + (size_t)block * o.height * o.width * B;
    float *y = v[2].p + (size_t)plane * out_height * out_width * B;
    for (oy = 0; oy < out_height; oy++)
      for (ox = 0; ox < out_width; ox++, y += B) {
        float sum[B] = {0};
        for (ky = 0; ky < o.height; ky++)
          for (kx = 0; kx < o.width; kx++) {
            const int iy = oy * o.stride_y - o.top + ky * o.dilation_y;
            const int ix = ox * o.stride_x - o.left + kx * o.dilation_x;
            const float *from = x + ((ptrdiff_t)iy * width + ix) * B, *tap = w + (ky * o.width + kx) * B;
            if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
            EACH(c) sum[c] += from[c] * tap[c];
          }
        write_output(e, block, sum, y);
      }
  }
}

/* dy, w, images, height, width, out_height, out_width, blocks, window, gradient */
void el_depthwise_backward_data(const el_value *v) {
  const int images = v[2].i, height = v[3].i, width = v[4].i, out_height = v[5].i, out_width = v[6].i, blocks = v[7].i;
  const Window o = window_of(v + 8);
  const Gradient g = gradient_of(v + 16);
  int plane, iy, ix, ky, kx, c;
  for (plane = 0; plane < blocks * images; plane++) {
    const float *dy = v[0].p + (size_t)plane * out_height * out_width * B;
    const float *w = v[1].p + (size_t)(plane / images) * o.height * o.width * B;
    for (iy = 0; iy < height; iy++)
      for (ix = 0; ix < width; ix++) {
        float sum[B] = {0};
        for (ky = 0; ky < o.height; ky++)
          for (kx = 0; kx < o.width; kx++) {
            const int oy = reached(iy, o.top, ky, o.dilation_y, o.stride_y, out_height);
            const int ox = reached(ix, o.left, kx, o.dilation_x, o.stride_x, out_width);
            const float *from = dy + ((ptrdiff_t)oy * out_width + ox) * B, *tap = w + (ky * o.width + kx) * B;
            if (oy < 0 || ox < 0) continue;
            EACH(c) sum[c] += from[c] * tap[c];
          }
        write_gradient(g, (((size_t)plane * height + iy) * width + ix) * B, sum);
      }
  }
}

/* x, dy, partial sums, [sums of dy], images, height, width, out_height, out_width, rows a group, blocks, add, groups,
   window */
void el_depthwise_backward_weights(const el_value *v) {
  const int images = v[4].i, height = v[5].i, width = v[6].i, out_height = v[7].i, out_width = v[8].i;
  const int rows = v[9].i, blocks = v[10].i, add = v[11].i, groups = v[12].i;
  const Window o = window_of(v + 13);
  const int taps = o.height * o.width;
  int group, block, row, ox, tap, c;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++) {
      float *dw = v[2].p + (size_t)(group * blocks + block) * taps * B;
      float *sums = v[3].p ? v[3].p + (size_t)(group * blocks + block) * B : NULL;
      if (!add) memset(dw, 0, (size_t)taps * B * sizeof *dw);
      if (!add && sums) memset(sums, 0, B * sizeof *sums);
      for (row = group * rows; row < smaller((group + 1) * rows, images * out_height); row++)
        for (ox = 0; ox < out_width; ox++) {
          const int plane = block * images + row / out_height;
          const float *g = v[1].p + (((size_t)plane * out_height + row % out_height) * out_width + ox) * B;
          if (sums) EACH(c) sums[c] += g[c];
          for (tap = 0; tap < taps; tap++) {
            const int iy = row % out_height * o.stride_y - o.top + tap / o.width * o.dilation_y;
            const int ix = ox * o.stride_x - o.left + tap % o.width * o.dilation_x;
            const float *from = v[0].p + (((ptrdiff_t)plane * height + iy) * width + ix) * B;
            if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
            EACH(c) dw[tap * B + c] += from[c] * g[c];
          }
        }
    }
}

/* -- jobs -- */

/* gamma, beta, mean, variance, scale, shift, 1 / deviation, [bias], table, jobs, items, epsilon */
void el_fold_statistics(const el_value *v) {
  const int jobs = v[9].i, items = v[10].i, bias = v[7].p != NULL, words = 8 + bias;
  int number, block, c;
  for (number = 0; number < jobs; number++) {
    const int32_t *job = (const int32_t *)(const void *)v[8].p + number * words;
    for (block = 0; block < items_of(job, number, jobs, words, items); block++)
      for (c = block * B; c < block * B + B; c++) {
        const float inverse = 1.0f / sqrtf(at_word(v[3], job[4])[c] + v[11].f);
        const float scale = at_word(v[0], job[1])[c] * inverse;
        const float center = (bias ? at_word(v[7], job[8])[c] : 0.0f) - at_word(v[2], job[3])[c];
        at_word(v[4], job[5])[c] = scale;
        at_word(v[5], job[6])[c] = at_word(v[1], job[2])[c] + center * scale;
        at_word(v[6], job[7])[c] = inverse;
      }
  }
}

/* w, t, [scale], table, jobs, items */
void el_transpose_blocks(const el_value *v) {
  const int jobs = v[4].i, with_scale = v[2].p != NULL, numbers = 3 + with_scale, words = numbers + 3;
  int number, tap, i, j;
  for (number = 0; number < jobs; number++) {
    const int32_t *job = (const int32_t *)(const void *)v[3].p + number * words;
    const int taps = job[numbers], in = job[numbers + 1], out = job[numbers + 2];
    const float *w = at_word(v[0], job[1]), *scale = with_scale ? at_word(v[2], job[3]) : NULL;
    float *t = at_word(v[1], job[2]);
    for (tap = 0; tap < taps; tap++)
      for (i = 0; i < padded(in); i++)
        for (j = 0; j < out; j++) {
          const float value = i < in ? w[((size_t)(j / B * taps + tap) * in + i) * B + j % B] : 0.0f;
          t[((size_t)(i / B * taps + tap) * out + j) * B + i % B] = scale ? value * scale[j] : value;
        }
  }
}

/* w, t, scale, table, jobs, items */
void el_scale_taps(const el_value *v) {
  const int jobs = v[4].i, items = v[5].i, words = 6;
  int number, block, row, c;
  for (number = 0; number < jobs; number++) {
    const int32_t *job = (const int32_t *)(const void *)v[3].p + number * words;
    const int rows = job[4], blocks = items_of(job, number, jobs, words, items) / job[5];
    for (block = 0; block < blocks; block++)
      for (row = 0; row < rows; row++)
        EACH(c)
          at_word(v[1], job[2])[row_at(block, rows, row) + c] =
              at_word(v[0], job[1])[row_at(block, rows, row) + c] * at_word(v[2], job[3])[block * B + c];
  }
}

/* A block of a kernel, whose channels may have ranges of their own */
static void read_row(const float *w, const float *range, int per_channel, int block, size_t at, float *values) {
  int c;
  if (!per_channel) read_block(w, range, at, values);
  else {
    const float *fields = range + (size_t)block * B * B;
    const int8_t *integers = (const int8_t *)(const void *)w + at;
    EACH(c) values[c] = ((float)integers[c] - fields[ZERO * B + c]) * fields[SCALE_OF * B + c];
  }
}

/* total, flags, [partial sums], [scale], [w], [its range, if it is integers], [sums of w * total], table, jobs, items,
   the range is per channel */
void el_finish_sum(const el_value *v) {
  const int jobs = v[8].i, items = v[9].i, partials = v[2].p != NULL, with_scale = v[3].p != NULL;
  const int gamma = v[4].p != NULL, stored = v[5].p != NULL, scale_word = 3 + partials;
  const int w_word = scale_word + with_scale, numbers = w_word + gamma * (2 + stored);
  const int words = numbers + 4;
  int number, place, row, group, c;
  for (number = 0; number < jobs; number++) {
    const int32_t *job = (const int32_t *)(const void *)v[7].p + number * words;
    const float *range = stored ? at_word(v[5], job[w_word + 1]) : NULL;
    const int m = job[numbers], blocks = job[numbers + 1], count = job[numbers + 2], groups = job[numbers + 3];
    const int parts = (m + count - 1) / count, places = items_of(job, number, jobs, words, items);
    float *total = at_word(v[0], job[1]);
    for (place = 0; place < places; place++) {
      const int block = place / parts, start = place % parts * count;
      float product[B] = {0}, w[B];
      int is_finite = 1;
      for (row = start; row < smaller(start + count, m); row++) {
        const size_t at = row_at(block, m, row);
        if (gamma) read_row(at_word(v[4], job[w_word]), range, v[10].i, block, at, w);
        EACH(c) {
          float sum = partials ? 0.0f : total[at + c];
          for (group = 0; partials && group < groups; group++)
            sum += at_word(v[2], job[3])[(size_t)group * blocks * m * B + at + c];
          if (gamma) product[c] += w[c] * sum;
          if (with_scale) sum *= at_word(v[3], job[scale_word])[block * B + c];
          total[at + c] = sum;
          is_finite &= sum - sum == 0.0f;
        }
      }
      if (gamma) memcpy(at_word(v[6], job[numbers - 1]) + place * B, product, sizeof product);
      set_flag(at_word(v[1], job[2]), place, is_finite);
    }
  }
}

/* dgamma, flags, sums, mean, 1 / deviation, dbeta, [bias], table, jobs, items */
void el_finish_gamma(const el_value *v) {
  const int jobs = v[8].i, items = v[9].i, bias = v[6].p != NULL, words = 8 + bias;
  int number, block, part, c;
  for (number = 0; number < jobs; number++) {
    const int32_t *job = (const int32_t *)(const void *)v[7].p + number * words;
    const int parts = job[7 + bias];
    for (block = 0; block < items_of(job, number, jobs, words, items); block++) {
      int is_finite = 1;
      EACH(c) {
        const int at = block * B + c;
        const float center = (bias ? at_word(v[6], job[7])[at] : 0.0f) - at_word(v[3], job[4])[at];
        float sum = 0;
        for (part = 0; part < parts; part++) sum += at_word(v[2], job[3])[(block * parts + part) * B + c];
        sum = (sum + center * at_word(v[5], job[6])[at]) * at_word(v[4], job[5])[at];
        at_word(v[0], job[1])[at] = sum;
        is_finite &= sum - sum == 0.0f;
      }
      set_flag(at_word(v[1], job[2]), block, is_finite);
    }
  }
}

/* dbias, flags, dbeta, scale, table, jobs, items */
void el_finish_bias(const el_value *v) {
  const int jobs = v[5].i, items = v[6].i, words = 5;
  int number, block, c;
  for (number = 0; number < jobs; number++) {
    const int32_t *job = (const int32_t *)(const void *)v[4].p + number * words;
    for (block = 0; block < items_of(job, number, jobs, words, items); block++) {
      int is_finite = 1;
      for (c = block * B; c < block * B + B; c++) {
        const float value = at_word(v[2], job[3])[c] * at_word(v[3], job[4])[c];
        at_word(v[0], job[1])[c] = value;
        is_finite &= value - value == 0.0f;
      }
      set_flag(at_word(v[1], job[2]), block, is_finite);
    }
  }
}

/* flags, counters, number of flags, step */
void el_count_nonfinite(const el_value *v) {
  float count = 0;
  int i;
  for (i = 0; i < v[2].i; i += v[3].i) {
    count += v[0].p[i];
    v[0].p[i] = 0;
  }
  if (v[1].p[LOSS] - v[1].p[LOSS] != 0.0f) count += 1;
  v[1].p[NONFINITE] = count;
}

/* -- batch normalization -- */

enum { CHUNK = 512 }; /* rows that are summed by themselves */

/* Scale and shift from the statistics of a set's rows, which are y, or integers of y's `range`. v: gamma, beta, scale,
   shift, mean, 1 / deviation, moving mean, moving variance */
void el_batch_statistics(const float *y, const float *range, const el_value *v, int set, const Rows rows, float epsilon,
                         float pace) {
  const int at = set * B, m = rows.m;
  float mean[B] = {0}, squares[B] = {0}, value[B];
  int start, row, c;
  for (start = 0; start < m; start += CHUNK) { /* chunks combined: Chan, Golub and LeVeque 1983 */
    const int stop = smaller(start + CHUNK, m), count = stop - start;
    float center[B] = {0}, own[B] = {0};
    for (row = start; row < stop; row++) {
      read_block(y, range, set_row_at(rows, set, row), value);
      EACH(c) center[c] += value[c];
    }
    EACH(c) center[c] *= 1.0f / count;
    for (row = start; row < stop; row++) {
      read_block(y, range, set_row_at(rows, set, row), value);
      EACH(c) own[c] += (value[c] - center[c]) * (value[c] - center[c]);
    }
    EACH(c) {
      const float step = center[c] - mean[c];
      mean[c] += step * ((float)count / (start + count));
      squares[c] += own[c] + step * step * ((float)start * count / (start + count));
    }
  }
  EACH(c) {
    const float variance = squares[c] * (1.0f / m), inverse = 1.0f / sqrtf(variance + epsilon);
    v[2].p[at + c] = v[0].p[at + c] * inverse;
    v[3].p[at + c] = v[1].p[at + c] - mean[c] * v[2].p[at + c];
    v[4].p[at + c] = mean[c];
    v[5].p[at + c] = inverse;
    v[6].p[at + c] += (mean[c] - v[6].p[at + c]) * pace;
    v[7].p[at + c] += (variance - v[7].p[at + c]) * pace;
  }
}

/* y, gamma, beta, scale, shift, mean, 1 / deviation, moving mean, moving variance, z, rows, sets, epsilon, pace,
   function, a, b */
void el_whole_forward(const el_value *v) {
  const Rows rows = rows_of(v + 10);
  const Function function = {v[16].i, v[17].f, v[18].f};
  int set, row, c;
  for (set = 0; set < v[13].i; set++) {
    const float *scale = v[3].p + set * B, *shift = v[4].p + set * B;
    el_batch_statistics(v[0].p, NULL, v + 1, set, rows, v[14].f, v[15].f);
    for (row = 0; row < rows.m; row++) {
      const size_t at = set_row_at(rows, set, row);
      EACH(c) v[9].p[at + c] = v[0].p[at + c] * scale[c] + shift[c];
      el_apply(function, v[9].p + at);
    }
  }
}

/* y, scale, shift, z, rows, sets, function, a, b */
void el_normalize_forward(const el_value *v) {
  const Rows rows = rows_of(v + 4);
  const Function function = {v[8].i, v[9].f, v[10].f};
  int set, row, c;
  for (set = 0; set < v[7].i; set++)
    for (row = 0; row < rows.m; row++) {
      const size_t at = set_row_at(rows, set, row);
      EACH(c) v[3].p[at + c] = v[0].p[at + c] * v[1].p[set * B + c] + v[2].p[set * B + c];
      el_apply(function, v[3].p + at);
    }
}

/* Gradients of gamma and beta from a set's rows, and what dx = dz * scale - y * slope + offset takes. v: scale, mean,
   1 / deviation, dgamma, dbeta */
void el_batch_gradients(const float *dz, const float *y, const float *range, const el_value *v, int set,
                        const Rows rows, int moving, int add, float *slope, float *offset) {
  const float *scale = v[0].p + set * B, *mean = v[1].p + set * B, *inverse = v[2].p + set * B;
  float *dgamma = v[3].p + set * B, *dbeta = v[4].p + set * B;
  const int m = rows.m;
  float sum[B] = {0}, product[B] = {0}, value[B];
  int start, row, c;
  for (start = 0; start < m; start += CHUNK) {
    float own[B] = {0}, own_product[B] = {0};
    for (row = start; row < smaller(start + CHUNK, m); row++) {
      const size_t at = set_row_at(rows, set, row);
      read_block(y, range, at, value);
      EACH(c) {
        own[c] += dz[at + c];
        own_product[c] += dz[at + c] * ((value[c] - mean[c]) * inverse[c]);
      }
    }
    EACH(c) sum[c] += own[c];
    EACH(c) product[c] += own_product[c];
  }
  EACH(c) {
    dbeta[c] = add ? dbeta[c] + sum[c] : sum[c];
    dgamma[c] = add ? dgamma[c] + product[c] : product[c];
    slope[c] = moving ? 0.0f : scale[c] * inverse[c] * product[c] * (1.0f / m);
    offset[c] = moving ? 0.0f : slope[c] * mean[c] - scale[c] * sum[c] * (1.0f / m);
  }
}

/* dz, y, scale, mean, 1 / deviation, dgamma, dbeta, rows, sets, moving, add, gradient */
void el_whole_backward(const el_value *v) {
  const Rows rows = rows_of(v + 7);
  const Gradient g = gradient_of(v + 13);
  float slope[B], offset[B], dx[B];
  int set, row, c;
  for (set = 0; set < v[10].i; set++) {
    el_batch_gradients(v[0].p, v[1].p, NULL, v + 2, set, rows, v[11].i, v[12].i, slope, offset);
    for (row = 0; row < rows.m; row++) {
      const size_t at = set_row_at(rows, set, row);
      EACH(c) dx[c] = v[0].p[at + c] * v[2].p[set * B + c] - v[1].p[at + c] * slope[c] + offset[c];
      write_gradient(g, at, dx);
    }
  }
}

/* x, sums, m, blocks, count, add, groups */
void el_channel_sums(const el_value *v) {
  const int m = v[2].i, blocks = v[3].i, count = v[4].i, add = v[5].i, groups = v[6].i;
  int group, block, row, c;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++) {
      float *sums = v[1].p + (size_t)(group * blocks + block) * B;
      if (!add) memset(sums, 0, B * sizeof *sums);
      for (row = group * count; row < smaller((group + 1) * count, m); row++)
        EACH(c) sums[c] += v[0].p[row_at(block, m, row) + c];
    }
}

/* -- pooling -- */

/* x, y, images, pixels, blocks */
void el_global_average_forward(const el_value *v) {
  const int images = v[2].i, pixels = v[3].i;
  int plane, p, c;
  for (plane = 0; plane < images * v[4].i; plane++) {
    float *y = v[1].p + (size_t)plane * B;
    float sum[B] = {0};
    for (p = 0; p < pixels; p++) EACH(c) sum[c] += v[0].p[((size_t)plane * pixels + p) * B + c];
    EACH(c) y[c] = sum[c] * (1.0f / pixels);
  }
}

/* dy, m, blocks, pixels, gradient */
void el_global_average_backward(const el_value *v) {
  const int m = v[1].i, pixels = v[3].i;
  const Gradient g = gradient_of(v + 4);
  int block, row, c;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      const float *dy = v[0].p + row_at(block, m / pixels, row / pixels);
      float share[B];
      EACH(c) share[c] = dy[c] * (1.0f / pixels);
      write_gradient(g, row_at(block, m, row), share);
    }
}

typedef struct {
  int top, bottom, left, right; /* pixels [top, bottom) x [left, right) */
} Box;

static int within(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

static Box pixels_of(const Window o, int height, int width, int oy, int ox) {
  const int top = oy * o.stride_y - o.top, left = ox * o.stride_x - o.left;
  const Box box = {within(top, 0, height), within(top + o.height, 0, height), within(left, 0, width),
                   within(left + o.width, 0, width)};
  return box;
}

/* x, y, m, blocks, height, width, out_height, out_width, window; `average` or the maximum */
static void pool(const el_value *v, int average) {
  const int m = v[2].i, blocks = v[3].i, height = v[4].i, width = v[5].i, out_height = v[6].i, out_width = v[7].i;
  const Window o = window_of(v + 8);
  int block, row, iy, ix, c;
  for (block = 0; block < blocks; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (out_height * out_width), images = m / (out_height * out_width);
      const Box box = pixels_of(o, height, width, row / out_width % out_height, row % out_width);
      const float *x = v[0].p + row_at(block, images, image) * height * width;
      float *y = v[1].p + row_at(block, m, row);
      if (average) memset(y, 0, B * sizeof *y);
      else memcpy(y, x + ((size_t)box.top * width + box.left) * B, B * sizeof *y);
      for (iy = box.top; iy < box.bottom; iy++)
        for (ix = box.left; ix < box.right; ix++) {
          const float *from = x + ((size_t)iy * width + ix) * B;
          if (average) EACH(c) y[c] += from[c];
          else EACH(c) y[c] = from[c] > y[c] || from[c] != from[c] ? from[c] : y[c]; /* a NaN stays */
        }
      if (average) EACH(c) y[c] *= 1.0f / ((box.bottom - box.top) * (box.right - box.left));
    }
}
void el_max_forward(const el_value *v) { pool(v, 0); }
void el_average_forward(const el_value *v) { pool(v, 1); }

/* x, y, taps that first hold the maximum (bytes), m, blocks, height, width, out_height, out_width, window */
void el_max_taps(const el_value *v) {
  const int m = v[3].i, blocks = v[4].i, height = v[5].i, width = v[6].i, out_height = v[7].i, out_width = v[8].i;
  const Window o = window_of(v + 9);
  int block, row, tap, c;
  for (block = 0; block < blocks; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (out_height * out_width), images = m / (out_height * out_width);
      const float *x = v[0].p + row_at(block, images, image) * height * width, *y = v[1].p + row_at(block, m, row);
      signed char *chosen = (signed char *)v[2].p + row_at(block, m, row);
      memset(chosen, -1, B);
      for (tap = o.height * o.width - 1; tap >= 0; tap--) {
        const int iy = row / out_width % out_height * o.stride_y - o.top + tap / o.width * o.dilation_y;
        const int ix = row % out_width * o.stride_x - o.left + tap % o.width * o.dilation_x;
        if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
        EACH(c) if (x[((size_t)iy * width + ix) * B + c] == y[c]) chosen[c] = (signed char)tap;
      }
    }
}

/* x, y, dy, m of dx, blocks, height, width, out_height, out_width, window, gradient. Each window's gradient goes to the
   first of its pixels that holds the maximum. */
void el_max_backward(const el_value *v) {
  const int m = v[3].i, height = v[5].i, width = v[6].i, out_height = v[7].i, out_width = v[8].i;
  const Window o = window_of(v + 9);
  const Gradient g = gradient_of(v + 17);
  int block, row, ky, kx, iy, ix, c;
  for (block = 0; block < v[4].i; block++)
    for (row = 0; row < m; row++) {
      const int images = m / (height * width), plane = block * images + row / (height * width);
      const int py = row / width % height, px = row % width;
      const float *x = v[0].p + (size_t)plane * height * width * B, *own = x + ((size_t)py * width + px) * B;
      float sum[B] = {0};
      for (ky = 0; ky < o.height; ky++)
        for (kx = 0; kx < o.width; kx++) {
          const int oy = reached(py, o.top, ky, 1, o.stride_y, out_height);
          const int ox = reached(px, o.left, kx, 1, o.stride_x, out_width);
          const size_t at = (((size_t)plane * out_height + (oy < 0 ? 0 : oy)) * out_width + (ox < 0 ? 0 : ox)) * B;
          const Box box = pixels_of(o, height, width, oy, ox);
          float share[B];
          if (oy < 0 || ox < 0) continue;
          EACH(c) share[c] = own[c] == v[1].p[at + c] ? v[2].p[at + c] : 0;
          for (iy = box.top; iy <= py; iy++)
            for (ix = box.left; ix < (iy < py ? box.right : px); ix++)
              EACH(c) if (x[((size_t)iy * width + ix) * B + c] == v[1].p[at + c]) share[c] = 0;
          EACH(c) sum[c] += share[c];
        }
      write_gradient(g, row_at(block, m, row), sum);
    }
}

/* [chosen taps], dy, m of dx, blocks, height, width, out_height, out_width, window, gradient */
static void pool_backward(const el_value *v, int average) {
  const int m = v[2].i, blocks = v[3].i, height = v[4].i, width = v[5].i, out_height = v[6].i, out_width = v[7].i;
  const Window o = window_of(v + 8);
  const Gradient g = gradient_of(v + 16);
  int block, row, ky, kx, c;
  for (block = 0; block < blocks; block++)
    for (row = 0; row < m; row++) {
      const int images = m / (height * width), plane = block * images + row / (height * width);
      float sum[B] = {0};
      for (ky = 0; ky < o.height; ky++)
        for (kx = 0; kx < o.width; kx++) {
          const int oy = reached(row / width % height, o.top, ky, 1, o.stride_y, out_height);
          const int ox = reached(row % width, o.left, kx, 1, o.stride_x, out_width);
          const size_t at = (((size_t)plane * out_height + (oy < 0 ? 0 : oy)) * out_width + (ox < 0 ? 0 : ox)) * B;
          if (oy < 0 || ox < 0) continue;
          if (average) {
            const Box box = pixels_of(o, height, width, oy, ox);
            EACH(c) sum[c] += v[1].p[at + c] * (1.0f / ((box.bottom - box.top) * (box.right - box.left)));
          } else {
            EACH(c) if (((signed char *)v[0].p)[at + c] == ky * o.width + kx) sum[c] += v[1].p[at + c];
          }
        }
      write_gradient(g, row_at(block, m, row), sum);
    }
}
void el_max_backward_taps(const el_value *v) { pool_backward(v, 0); }
void el_average_backward(const el_value *v) { pool_backward(v, 1); }

/* -- element by element -- */

/* x, y, m, blocks, channels to fill or 0, function, a, b */
void el_activation_forward(const el_value *v) {
  const Function function = {v[5].i, v[6].f, v[7].f};
  const int m = v[2].i;
  int block, row, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      float *y = v[1].p + row_at(block, m, row);
      memcpy(y, v[0].p + row_at(block, m, row), B * sizeof *y);
      el_apply(function, y);
      for (c = 0; v[4].i && c < B; c++) if (block * B + c >= v[4].i) y[c] = 0;
    }
}

/* output or input of the function, dy, m, blocks, channels to fill or 0, function, a, b, gradient */
void el_activation_backward(const el_value *v) {
  const Function function = {v[5].i, v[6].f, v[7].f};
  const Gradient g = gradient_of(v + 8);
  const int m = v[2].i;
  int block, row, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      float dx[B];
      memcpy(dx, v[1].p + row_at(block, m, row), sizeof dx);
      el_apply_slope(function, v[0].p + row_at(block, m, row), dx);
      for (c = 0; v[4].i && c < B; c++) if (block * B + c >= v[4].i) dx[c] = 0;
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* a, b, y, m, blocks, function, a, b */
void el_add(const el_value *v) {
  const Function function = {v[5].i, v[6].f, v[7].f};
  const int rows = v[3].i * v[4].i;
  int row, c;
  for (row = 0; row < rows; row++) {
    float *y = v[2].p + (size_t)row * B;
    EACH(c) y[c] = v[0].p[(size_t)row * B + c] + v[1].p[(size_t)row * B + c];
    el_apply(function, y);
  }
}

/* x, m, blocks, gradient */
void el_copy(const el_value *v) {
  const Gradient g = gradient_of(v + 3);
  int row;
  for (row = 0; row < v[1].i * v[2].i; row++) {
    float dx[B];
    memcpy(dx, v[0].p + (size_t)row * B, sizeof dx);
    write_gradient(g, (size_t)row * B, dx);
  }
}

/* x of one block of `channels`, m, channels, gradient */
void el_pad_channels(const el_value *v) {
  const Gradient g = gradient_of(v + 3);
  const int channels = v[2].i;
  int row;
  for (row = 0; row < v[1].i; row++) {
    float dx[B] = {0};
    memcpy(dx, v[0].p + (size_t)row * channels, (size_t)channels * sizeof *dx);
    write_gradient(g, (size_t)row * B, dx);
  }
}

/* x, m, from_rows, from_channels, to_rows, to_channels, gradient */
void el_reshape(const el_value *v) {
  const int m = v[1].i, from_rows = v[2].i, from_channels = v[3].i, to_rows = v[4].i, to_channels = v[5].i;
  const Gradient g = gradient_of(v + 6);
  int block, row, c;
  for (block = 0; block < (to_channels + B - 1) / B; block++)
    for (row = 0; row < m; row++) {
      float dx[B] = {0};
      for (c = 0; c < smaller(B, to_channels - block * B); c++) {
        const int place = row % to_rows * to_channels + block * B + c;
        const int from = row / to_rows * from_rows + place / from_channels;
        dx[c] = v[0].p[value_at(place % from_channels, m / to_rows * from_rows, from)];
      }
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* -- losses -- */

/* See blocks.h */
int el_top_of(const float *x, int n, int classes, int row) {
  int c, best = 0;
  for (c = 1; c < classes; c++) if (x[value_at(c, n, row)] > x[value_at(best, n, row)]) best = c;
  return best;
}

/* x, p, n, classes, logarithm: probabilities, or their logarithms */
void el_softmax(const el_value *v) {
  const int n = v[2].i, classes = v[3].i;
  int row, c;
  for (row = 0; row < n; row++) {
    const float top = v[0].p[value_at(el_top_of(v[0].p, n, classes, row), n, row)];
    float sum = 0;
    for (c = 0; c < classes; c++) sum += expf(v[0].p[value_at(c, n, row)] - top);
    for (c = 0; c < padded(classes); c++) {
      const float logit = c < classes ? v[0].p[value_at(c, n, row)] - top : 0.0f, p = v[4].i ? logit - logf(sum) : expf(logit) / sum;
      v[1].p[value_at(c, n, row)] = c < classes ? p : 0.0f;
    }
  }
}

/* x, labels (int32), losses, right answers, n, classes, smoothing, [scalars], [dx] */
void el_softmax_cross_entropy(const el_value *v) {
  const float *x = v[0].p, smoothing = v[6].f;
  const int n = v[4].i, classes = v[5].i;
  int row, c;
  for (row = 0; row < n; row++) {
    const int label = ((const int32_t *)(const void *)v[1].p)[row], best = el_top_of(x, n, classes, row);
    const float top = x[value_at(best, n, row)];
    float sum = 0, mean = 0;
    for (c = 0; c < classes; c++) {
      sum += expf(x[value_at(c, n, row)] - top);
      mean += x[value_at(c, n, row)] - top;
    }
    v[2].p[row] = logf(sum) - (1.0f - smoothing) * (x[value_at(label, n, row)] - top) - smoothing * mean / classes;
    v[3].p[row] = best == label ? 1.0f : 0.0f;
    for (c = 0; v[8].p && c < padded(classes); c++) {
      const size_t at = value_at(c, n, row);
      const float target = (c == label ? 1.0f - smoothing : 0.0f) + smoothing / classes;
      v[8].p[at] = c < classes ? (expf(x[at] - top) / sum - target) * v[7].p[INVERSE_BATCH] : 0.0f;
    }
  }
}

/* losses, right answers, counters, rows, examples, share, weight, place */
void el_count_examples(const el_value *v) {
  float loss = 0, correct = 0;
  int i;
  for (i = 0; i < v[3].i; i++) {
    loss += v[0].p[i];
    correct += v[1].p[i];
  }
  loss *= v[5].f;
  correct *= v[5].f;
  v[2].p[LOSS] += loss * v[6].f;
  v[2].p[CORRECT] += correct;
  v[2].p[SEEN] += v[4].i;
}

/* -- updates: nothing changes where a gradient is not finite -- */

/* See blocks.h */
void el_leave_extremes(const float *w, const el_value *v) {
  const int32_t *piece = (const int32_t *)(const void *)v[0].p;
  int number, block, c;
  for (number = 0; piece && number < v[2].i; number++, piece += 3) {
    float *least, *most;
    if (piece[2] < 0) continue;
    least = at_word(v[1], piece[2]);
    most = least + B;
    memset(least, 0, 2 * B * sizeof *least);
    for (block = piece[0]; block < piece[1]; block++)
      EACH(c) {
        const float value = w[(size_t)block * B + c];
        least[c] = value < least[c] ? value : least[c];
        most[c] = value > most[c] ? value : most[c];
      }
  }
}

/* w, g, scalars, counters, blocks, decay, [pieces], [extremes], number of pieces */
void el_sgd(const el_value *v) {
  const float rate = v[2].p[LEARNING_RATE], kept = 1.0f - rate * v[5].f;
  size_t i;
  if (v[3].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[4].i * B; i++) v[0].p[i] = v[0].p[i] * kept - v[1].p[i] * rate;
  el_leave_extremes(v[0].p, v + 6);
}

/* w, g, scalars, counters, blocks, decay, [pieces], [extremes], number of pieces, velocity, momentum, nesterov */
void el_sgd_momentum(const el_value *v) {
  const float rate = v[2].p[LEARNING_RATE], kept = 1.0f - rate * v[5].f, momentum = v[10].f;
  size_t i;
  if (v[3].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[4].i * B; i++) {
    const float step = v[1].p[i] * rate, moved = v[9].p[i] * momentum - step;
    v[9].p[i] = moved;
    v[0].p[i] = v[0].p[i] * kept + (v[11].i ? moved * momentum - step : moved);
  }
  el_leave_extremes(v[0].p, v + 6);
}

/* w, g, scalars, counters, blocks, decay, [pieces], [extremes], number of pieces, first moment, second moment, 1 - beta 1,
   1 - beta 2, epsilon */
void el_adam(const el_value *v) {
  const float rate = v[2].p[LEARNING_RATE], kept = 1.0f - rate * v[5].f, pace = rate * v[2].p[CORRECTION];
  float *first = v[9].p, *second = v[10].p;
  size_t i;
  if (v[3].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[4].i * B; i++) {
    const float g = v[1].p[i];
    first[i] += (g - first[i]) * v[11].f;
    second[i] += (g * g - second[i]) * v[12].f;
    v[0].p[i] = v[0].p[i] * kept - first[i] * pace / (sqrtf(second[i]) + v[13].f);
  }
  el_leave_extremes(v[0].p, v + 6);
}

/* x, y, counters, blocks */
void el_commit(const el_value *v) {
  if (v[2].p[NONFINITE] == 0.0f) memcpy(v[1].p, v[0].p, (size_t)v[3].i * B * sizeof(float));
}
