/* The kernels of target c that choose rows or reduce them: rows of a table by computed numbers, sums and maxima over any
   axes, gradients of a softmax within a network. See kernels.h. */
#include <math.h>

#include "blocks.h"

enum { CHUNK = 256 }; /* values that are summed by themselves */

/* -- rows by numbers, [count / 16][images][16] -- */

/* The row that a number names, negative ones counted from the end; -1 for one that isn't there */
static int named_row(float number, int size) {
  const float nearest = number < 0 ? number - 0.5f : number + 0.5f;
  int place;
  if (!(nearest > -(float)size - 1 && nearest < (float)size)) return -1;
  place = (int)nearest;
  return place < 0 ? place + size : place;
}

/* x, numbers, m, blocks, channels to fill or 0, images, numbers of an image, rows of the table, rows of `inner`, the table is
   shared, gradient */
void el_take(const el_value *v) {
  const int m = v[2].i, channels = v[4].i, images = v[5].i, taken = v[6].i, size = v[7].i, inner = v[8].i, shared = v[9].i;
  const Gradient g = gradient_of(v + 10);
  int block, row, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / inner / taken, place = named_row(v[1].p[value_at(row / inner % taken, images, image)], size);
      const int from = ((shared ? 0 : image) * size + place) * inner + row % inner;
      float dx[B];
      EACH(c) dx[c] = place < 0 ? NAN : v[0].p[row_at(block, (shared ? 1 : images) * size * inner, from) + c];
      EACH(c) if (channels && block * B + c >= channels) dx[c] = 0;
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* numbers, dy, m, blocks, images, numbers of an image, rows of the table, rows of `inner`, gradient */
void el_give_back(const el_value *v) {
  const int m = v[2].i, images = v[4].i, taken = v[5].i, size = v[6].i, inner = v[7].i;
  const Gradient g = gradient_of(v + 8);
  int block, row, i, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / inner / size, place = row / inner % size;
      float sum[B] = {0};
      for (i = 0; i < taken; i++) {
        const float *dy = v[1].p + row_at(block, images * taken * inner, (image * taken + i) * inner + row % inner);
        if (named_row(v[0].p[value_at(i, images, image)], size) != place) continue;
        EACH(c) sum[c] += dy[c];
      }
      write_gradient(g, row_at(block, m, row), sum);
    }
}

/* numbers, dy, sums, rows of the table, rows of dy in a group, images, numbers of an image, groups, blocks, add */
void el_give_back_shared(const el_value *v) {
  const int m = v[3].i, count = v[4].i, images = v[5].i, taken = v[6].i, blocks = v[8].i;
  int group, block, row, c;
  for (group = 0; group < v[7].i; group++)
    for (block = 0; block < blocks; block++) {
      float *sums = v[2].p + row_at(group * blocks + block, m, 0);
      if (!v[9].i) memset(sums, 0, (size_t)m * B * sizeof *sums);
      for (row = group * count; row < smaller((group + 1) * count, images * taken); row++) {
        const int place = named_row(v[0].p[value_at(row % taken, images, row / taken)], m);
        const float *dy = v[1].p + row_at(block, images * taken, row);
        if (place >= 0) EACH(c) sums[place * B + c] += dy[c];
      }
    }
}

/* -- reductions. A row of a table is an axis: a coordinate moves the source's row and its channel. -- */

enum { SIZE, ROW_STRIDE, CHANNEL_STRIDE, WORDS };
enum { SUM, MAXIMUM, SHARE };

typedef struct {
  int row, channel;
} Place;

static Place moved(Place place, const int32_t *axis, int coordinate) {
  const Place to = {place.row + coordinate * axis[ROW_STRIDE], place.channel + coordinate * axis[CHANNEL_STRIDE]};
  return to;
}

/* The place of value number `rest`, in C order, of `axes` axes */
static Place place_of(Place place, const int32_t *axis, int axes, int rest) {
  int a;
  for (a = axes - 1; a >= 0; rest /= axis[a * WORDS + SIZE], a--)
    place = moved(place, axis + a * WORDS, rest % axis[a * WORDS + SIZE]);
  return place;
}

/* A value from `place` on, along the axis that became the channels; aligned: these are the source's channels */
static float value_from(const float *x, Place place, const int32_t *axis, int m, int channel, int aligned) {
  const Place at = aligned ? place : moved(place, axis, channel);
  return x[value_at(aligned ? channel : at.channel, m, at.row)];
}

/* x, table, y, m, blocks, axes, reduced axes, values of a row, rows of an example of x, rows of one of y, channels, aligned,
   factor, [most], [dy], kind */
void el_reduce(const el_value *v) {
  const int32_t *axis = (const int32_t *)(const void *)v[1].p;
  const int m = v[3].i, axes = v[5].i, total = v[7].i, from_rows = v[8].i, rows = v[9].i, channels = v[10].i, kind = v[15].i;
  int row, channel, start, p;
  for (row = 0; row < m; row++)
    for (channel = 0; channel < v[4].i * B; channel++) {
      const Place image = {row / rows * from_rows, 0}, first = place_of(image, axis, axes - 1, row % rows);
      const size_t at = value_at(channel, m, row);
      float all = kind == MAXIMUM ? -INFINITY : 0;
      v[2].p[at] = 0;
      if (channel >= channels) continue;
      for (start = 0; start < total; start += CHUNK) {
        float sum = kind == MAXIMUM ? -INFINITY : 0;
        for (p = start; p < smaller(start + CHUNK, total); p++) {
          const Place place = place_of(first, axis + axes * WORDS, v[6].i, p);
          const float value = value_from(v[0].p, place, axis + (axes - 1) * WORDS, m / rows * from_rows, channel, v[11].i);
          if (kind == MAXIMUM) sum = value > sum || value != value ? value : sum;
          else sum += kind == SUM ? value : value == v[13].p[at] ? 1.0f : 0.0f;
        }
        if (kind == MAXIMUM) all = sum > all || sum != sum ? sum : all;
        else all += sum;
      }
      v[2].p[at] = kind == SHARE ? v[14].p[at] / (all > 0 ? all : 1.0f) : all * v[12].f;
    }
}

/* x, most, share, table, m, blocks, axes, rows of an example of most, of x, channels, aligned, gradient */
void el_pass_to_maxima(const el_value *v) {
  const int32_t *axis = (const int32_t *)(const void *)v[3].p;
  const int m = v[4].i, axes = v[6].i, from_rows = v[7].i, rows = v[8].i, channels = v[9].i, aligned = v[10].i;
  const int from_m = m / rows * from_rows;
  const Gradient g = gradient_of(v + 11);
  int block, row, c;
  for (block = 0; block < v[5].i; block++)
    for (row = 0; row < m; row++) {
      const Place image = {row / rows * from_rows, 0}, place = place_of(image, axis, axes - 1, row % rows);
      const int32_t *last = axis + (axes - 1) * WORDS;
      const size_t at = row_at(block, m, row);
      float dx[B] = {0};
      for (c = 0; c < smaller(B, channels - block * B); c++)
        if (v[0].p[at + c] == value_from(v[1].p, place, last, from_m, block * B + c, aligned))
          dx[c] = value_from(v[2].p, place, last, from_m, block * B + c, aligned);
      write_gradient(g, at, dx);
    }
}

/* -- the gradients of a softmax inside a network, and of its logarithm -- */

static float sum_of_row(const float *x, const float *y, int m, int blocks, int row) {
  float sum = 0;
  int c;
  for (c = 0; c < blocks * B; c++) sum += x ? x[value_at(c, m, row)] * y[value_at(c, m, row)] : y[value_at(c, m, row)];
  return sum;
}

/* p, dy, m, blocks, gradient */
void el_softmax_backward(const el_value *v) {
  const int m = v[2].i;
  const Gradient g = gradient_of(v + 4);
  int row, block, c;
  for (row = 0; row < m; row++) {
    const float sum = sum_of_row(v[0].p, v[1].p, m, v[3].i, row);
    for (block = 0; block < v[3].i; block++) {
      const size_t at = row_at(block, m, row);
      float dx[B];
      EACH(c) dx[c] = v[0].p[at + c] * (v[1].p[at + c] - sum);
      write_gradient(g, at, dx);
    }
  }
}

/* y, dy, m, blocks, channels to fill or 0, gradient */
void el_log_softmax_backward(const el_value *v) {
  const int m = v[2].i, channels = v[4].i;
  const Gradient g = gradient_of(v + 5);
  int row, block, c;
  for (row = 0; row < m; row++) {
    const float sum = sum_of_row(NULL, v[1].p, m, v[3].i, row);
    for (block = 0; block < v[3].i; block++) {
      const size_t at = row_at(block, m, row);
      float dx[B];
      EACH(c) dx[c] = v[1].p[at + c] - expf(v[0].p[at + c]) * sum;
      EACH(c) if (channels && block * B + c >= channels) dx[c] = 0;
      write_gradient(g, at, dx);
    }
  }
}
