/* The kernels of target c for networks of several columns or streams: convolutions in groups of channels, local response
   normalization, couplings of reversible blocks, gathers, moved channels. See kernels.h. */
#include <math.h>

#include "blocks.h"

/* -- convolutions in groups of channels. Borders of groups need not fall between blocks of 16: the lanes of a block are
   taken group by group, those from `first` to before `stop`. -- */

typedef struct {
  int first, stop, group;
} Lanes;

/* The lanes of a block from `first` on that belong to one group of `size` channels */
static Lanes lanes_of(int block, int first, int channels, int size) {
  const int group = (block * B + first) / size, stop = smaller(B, smaller(channels, (group + 1) * size) - block * B);
  const Lanes lanes = {first, stop, group};
  return lanes;
}

/* sum += value * w for some lanes */
static inline void add_product(float *sum, float value, const float *w, const Lanes lanes) {
  int c;
  if (lanes.stop - lanes.first == B) EACH(c) sum[c] += value * w[c];
  else for (c = lanes.first; c < lanes.stop; c++) sum[c] += value * w[c];
}

/* Sizes. Arguments in this order, eight: images, height, width, channels, out_height, out_width, filters, groups */
typedef struct {
  int images, height, width, channels, out_height, out_width, filters, in_group, out_group;
} Grouped;

static Grouped grouped_of(const el_value *v) {
  const Grouped s = {v[0].i, v[1].i, v[2].i, v[3].i, v[4].i, v[5].i, v[6].i, v[3].i / v[7].i, v[6].i / v[7].i};
  return s;
}

/* Where a channel of a pixel lies, the block of x having `in_block` channels; -1 outside the image */
static ptrdiff_t pixel_at(const Grouped *s, int image, int iy, int ix, int channel, int in_block) {
  const size_t plane = (size_t)(channel / in_block) * s->images + image;
  if (iy < 0 || iy >= s->height || ix < 0 || ix >= s->width) return -1;
  return (ptrdiff_t)(((plane * s->height + iy) * s->width + ix) * in_block + channel % in_block);
}

/* x, w, y, sizes, blocks, block of x, window, epilogue */
void el_grouped_forward(const el_value *v) {
  const Grouped s = grouped_of(v + 3);
  const int rows = s.images * s.out_height * s.out_width, in_block = v[12].i;
  const Window o = window_of(v + 13);
  const Epilogue e = epilogue_of(v + 21);
  const int taps = o.height * o.width;
  int block, row, tap, i;
  for (block = 0; block < v[11].i; block++)
    for (row = 0; row < rows; row++) {
      const int image = row / (s.out_height * s.out_width), oy = row / s.out_width % s.out_height, ox = row % s.out_width;
      float sum[B] = {0};
      Lanes lanes = {0, 0, 0};
      while (lanes.stop < smaller(B, s.filters - block * B)) {
        lanes = lanes_of(block, lanes.stop, s.filters, s.out_group);
        for (tap = 0; tap < taps; tap++) {
          const int iy = oy * o.stride_y - o.top + tap / o.width * o.dilation_y;
          const int ix = ox * o.stride_x - o.left + tap % o.width * o.dilation_x;
          const float *w = v[1].p + (size_t)(block * taps + tap) * s.in_group * B;
          if (pixel_at(&s, image, iy, ix, 0, in_block) < 0) continue;
          for (i = 0; i < s.in_group; i++, w += B)
            add_product(sum, v[0].p[pixel_at(&s, image, iy, ix, lanes.group * s.in_group + i, in_block)], w, lanes);
        }
      }
      write_output(e, block, sum, v[2].p + row_at(block, rows, row));
    }
}

/* dy, w, sizes, blocks, window, gradient. Products with a block of dy are summed in its lanes, the lanes in the end. */
void el_grouped_backward_data(const el_value *v) {
  const Grouped s = grouped_of(v + 2);
  const int rows = s.images * s.height * s.width, out_rows = s.images * s.out_height * s.out_width;
  const Window o = window_of(v + 11);
  const Gradient g = gradient_of(v + 19);
  const int taps = o.height * o.width;
  int block, row, tap, c, i, out_block;
  for (block = 0; block < v[10].i; block++)
    for (row = 0; row < rows; row++) {
      const int image = row / (s.height * s.width), iy = row / s.width % s.height, ix = row % s.width;
      float sums[B][B] = {{0}}, dx[B] = {0};
      Lanes lanes = {0, 0, 0};
      while (lanes.stop < smaller(B, s.channels - block * B)) {
        lanes = lanes_of(block, lanes.stop, s.channels, s.in_group);
        for (tap = 0; tap < taps; tap++) {
          const int oy = reached(iy, o.top, tap / o.width, o.dilation_y, o.stride_y, s.out_height);
          const int ox = reached(ix, o.left, tap % o.width, o.dilation_x, o.stride_x, s.out_width);
          const int first = lanes.group * s.out_group, stop = first + s.out_group;
          if (oy < 0 || ox < 0) continue;
          for (out_block = first / B; out_block * B < stop; out_block++) {
            const int begin = first > out_block * B ? first - out_block * B : 0;
            const Lanes outputs = {begin, smaller(B, stop - out_block * B), 0};
            const float *dy = v[0].p + row_at(out_block, out_rows, (image * s.out_height + oy) * s.out_width + ox);
            const float *w = v[1].p + (size_t)(out_block * taps + tap) * s.in_group * B;
            for (c = lanes.first; c < lanes.stop; c++) {
              const float *weights = w + (size_t)((block * B + c) % s.in_group) * B;
              if (outputs.stop - outputs.first == B) EACH(i) sums[c][i] += dy[i] * weights[i];
              else for (i = outputs.first; i < outputs.stop; i++) sums[c][i] += dy[i] * weights[i];
            }
          }
        }
      }
      EACH(c) EACH(i) dx[c] += sums[c][i];
      write_gradient(g, row_at(block, rows, row), dx);
    }
}

/* x, dy, partial sums, sizes, rows a group, add, blocks, parts, block of x, window */
void el_grouped_backward_weights(const el_value *v) {
  const Grouped s = grouped_of(v + 3);
  const int rows = v[11].i, add = v[12].i, blocks = v[13].i, in_block = v[15].i;
  const Window o = window_of(v + 16);
  const int taps = o.height * o.width, out_rows = s.images * s.out_height * s.out_width;
  int part, block, tap, row, ox, i;
  for (part = 0; part < v[14].i; part++)
    for (block = 0; block < blocks; block++)
      for (tap = 0; tap < taps; tap++) {
        float *dw = v[2].p + (size_t)((part * blocks + block) * taps + tap) * s.in_group * B;
        const int stop = smaller((part + 1) * rows, s.images * s.out_height);
        if (!add) memset(dw, 0, (size_t)s.in_group * B * sizeof *dw);
        for (row = part * rows; row < stop; row++)
          for (ox = 0; ox < s.out_width; ox++) {
            const int image = row / s.out_height, oy = row % s.out_height;
            const int iy = oy * o.stride_y - o.top + tap / o.width * o.dilation_y;
            const int ix = ox * o.stride_x - o.left + tap % o.width * o.dilation_x;
            const float *g = v[1].p + row_at(block, out_rows, row * s.out_width + ox);
            Lanes lanes = {0, 0, 0};
            if (pixel_at(&s, image, iy, ix, 0, in_block) < 0) continue;
            while (lanes.stop < smaller(B, s.filters - block * B)) {
              lanes = lanes_of(block, lanes.stop, s.filters, s.out_group);
              for (i = 0; i < s.in_group; i++)
                add_product(dw + i * B, v[0].p[pixel_at(&s, image, iy, ix, lanes.group * s.in_group + i, in_block)], g,
                            lanes);
            }
          }
      }
}

/* -- local response normalization: y = x * s^-beta with s = bias + alpha * the sum of squares over the channels from
   `before` before a channel to `after` after it. Arguments, six: channels, before, after, bias, alpha, beta -- */

typedef struct {
  int channels, before, after;
  float bias, alpha, beta;
} Response;

static Response response_of(const el_value *v) {
  const Response r = {v[0].i, v[1].i, v[2].i, v[3].f, v[4].f, v[5].f};
  return r;
}

/* The sum over channels c - before to c + after of a row's values, or of their squares */
static float window_sum(const float *x, int m, int row, int channels, int c, int before, int after, int squares) {
  const int first = c < before ? 0 : c - before, last = smaller(c + after, channels - 1);
  float sum = 0;
  int i;
  for (i = first; i <= last; i++) {
    const float value = x[value_at(i, m, row)];
    sum += squares ? value * value : value;
  }
  return sum;
}

/* power = s^-beta of a block's channels, and s, which is 1 in the padding; beta 0.75 by square roots */
static void response_power(const Response *r, const float *x, int m, int row, int block, float *s, float *power) {
  int c;
  EACH(c) {
    const int channel = block * B + c, exists = channel < r->channels;
    s[c] = exists ? r->bias + r->alpha * window_sum(x, m, row, r->channels, channel, r->before, r->after, 1) : 1.0f;
  }
  if (r->beta == 0.75f) EACH(c) power[c] = 1.0f / sqrtf(s[c] * sqrtf(s[c]));
  else EACH(c) power[c] = powf(s[c], -r->beta);
}

/* x, y, m, blocks, response */
void el_local_response_forward(const el_value *v) {
  const Response r = response_of(v + 4);
  const int m = v[2].i;
  float s[B], power[B];
  int block, row, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      response_power(&r, v[0].p, m, row, block, s, power);
      EACH(c) v[1].p[at + c] = v[0].p[at + c] * power[c];
    }
}

/* x, dy, terms = dy * x * s^(-beta - 1), m, blocks, response */
void el_local_response_terms(const el_value *v) {
  const Response r = response_of(v + 5);
  const int m = v[3].i;
  float s[B], power[B];
  int block, row, c;
  for (block = 0; block < v[4].i; block++)
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      response_power(&r, v[0].p, m, row, block, s, power);
      EACH(c) v[2].p[at + c] = v[1].p[at + c] * v[0].p[at + c] * (power[c] / s[c]);
    }
}

/* x, dy, terms, m, blocks, response, gradient. Terms are of the channels whose windows hold this one. */
void el_local_response_backward(const el_value *v) {
  const Response r = response_of(v + 5);
  const Gradient g = gradient_of(v + 11);
  const int m = v[3].i;
  float s[B], power[B], dx[B];
  int block, row, c;
  for (block = 0; block < v[4].i; block++)
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      response_power(&r, v[0].p, m, row, block, s, power);
      EACH(c) {
        const int channel = block * B + c;
        const float sum = channel < r.channels
                              ? window_sum(v[2].p, m, row, r.channels, channel, r.after, r.before, 0)
                              : 0.0f;
        dx[c] = v[1].p[at + c] * power[c] - v[0].p[at + c] * sum * (2.0f * r.alpha * r.beta);
      }
      write_gradient(g, at, dx);
    }
}

/* -- couplings of streams, whose values are multiples of a step: sums of those are exact -- */

#define WHOLE 8388608.0f /* 2^23: adding and subtracting it rounds smaller values to the nearest whole number */

/* The multiple of `step` nearest to a value; a step of 0 leaves it as it is. */
static float rounded(float value, float step, float inverse) {
  const float t = value * inverse, nearest = t < 0 ? (t - WHOLE) + WHOLE : (t + WHOLE) - WHOLE;
  if (step == 0) return value;
  return (t <= -WHOLE || t >= WHOLE ? t : nearest) * step;
}

/* x, y, values, step, 1 / step: the start of a stream */
void el_begin(const el_value *v) {
  size_t i;
  for (i = 0; i < (size_t)v[2].i * v[3].i * B; i++) v[1].p[i] = rounded(v[0].p[i], v[4].f, v[5].f);
}

/* a, f, result, m, blocks, step, 1 / step */
void el_couple(const el_value *v) {
  size_t i;
  for (i = 0; i < (size_t)v[3].i * v[4].i * B; i++) v[2].p[i] = v[0].p[i] + rounded(v[1].p[i], v[5].f, v[6].f);
}

void el_uncouple(const el_value *v) {
  size_t i;
  for (i = 0; i < (size_t)v[3].i * v[4].i * B; i++) v[2].p[i] = v[0].p[i] - rounded(v[1].p[i], v[5].f, v[6].f);
}

/* -- moved values -- */

/* An axis of a gather's result. With t = step * coordinate + begin, the source's coordinate is t / divisor, if that is
   whole and t in [low, high); where `clamped`, the nearest t in there. It moves the source's row and channel by strides. */
typedef struct {
  int32_t size, step, begin, divisor, low, high, clamped, row_stride, channel_stride;
} Axis;

typedef struct {
  int row, channel, exists;
} Source;

static Source moved(Source source, const Axis *axis, int coordinate) {
  int t = axis->step * coordinate + axis->begin;
  if (axis->clamped) t = t < axis->low ? axis->low : smaller(t, axis->high - 1);
  source.exists = source.exists && t >= axis->low && t < axis->high && t % axis->divisor == 0;
  source.row += t / axis->divisor * axis->row_stride;
  source.channel += t / axis->divisor * axis->channel_stride;
  return source;
}

/* x, axes (int32, nine an axis), m, blocks, axes with that of channels, rows of an example of x, rows and channels of one
   of dx, aligned: channels keep their place within blocks, factor, value where there is no source, gradient */
void el_gather(const el_value *v) {
  const Axis *axes = (const Axis *)(const void *)v[1].p, *last = axes + v[4].i - 1;
  const int m = v[2].i, from_rows = v[5].i, rows = v[6].i, channels = v[7].i, aligned = v[8].i;
  const int from_m = m / rows * from_rows;
  const Gradient g = gradient_of(v + 11);
  int block, row, c, a;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      Source source = {row / rows * from_rows, 0, 1};
      float dx[B] = {0};
      int rest = row % rows;
      for (a = v[4].i - 2; a >= 0; rest /= axes[a].size, a--) source = moved(source, axes + a, rest % axes[a].size);
      for (c = 0; c < smaller(B, channels - block * B); c++) {
        Source from = source;
        if (aligned) from.channel = block * B + last->begin + c;
        else from = moved(source, last, block * B + c);
        dx[c] = from.exists ? v[0].p[value_at(from.channel, from_m, from.row)] * v[9].f : v[10].f;
      }
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* x, m, blocks, the first of them, channels of x, channels of dx, shift, gradient: channel c = channel c + shift of x, or 0 */
void el_move_channels(const el_value *v) {
  const Gradient g = gradient_of(v + 7);
  const int m = v[1].i, first = v[3].i;
  int block, row, c;
  for (block = first; block < first + v[2].i; block++)
    for (row = 0; row < m; row++) {
      float dx[B] = {0};
      for (c = 0; c < smaller(B, v[5].i - block * B); c++) {
        const int from = block * B + c + v[6].i;
        if (from >= 0 && from < v[4].i) dx[c] = v[0].p[value_at(from, m, row)];
      }
      write_gradient(g, row_at(block, m, row), dx);
    }
}
