/* The kernels of target c for normalization within an example: layer, group and root mean square. See kernels.h.

   `span` rows that follow each other, and the channels of one of `groups`, are a set with statistics in common. Sets follow
   each other by rows, then by group. Gamma and beta have `weight_rows` rows, which repeat. */
#include <math.h>

#include "blocks.h"

enum { CHUNK = 256 }; /* rows that are summed by themselves */
enum { MEAN, RECIPROCAL, MEAN_OF_G, MEAN_OF_GX }; /* statistics: of each the values of all sets. RECIPROCAL: 1 / deviation;
                                                     G: gradients behind gamma; GX: their products with normal values */

/* Arguments in this order, five: m, span, channels, groups, weight_rows */
typedef struct {
  int m, span, channels, groups, weight_rows, width, count;
} Sets;

static Sets sets_of(const el_value *v) {
  const Sets s = {v[0].i, v[1].i, v[2].i, v[3].i, v[4].i, v[2].i / v[3].i, v[0].i / v[1].i * v[3].i};
  return s;
}

static int set_of(const Sets *s, int row, int channel) { return row / s->span * s->groups + channel / s->width; }

/* The factor of a channel in a row; 1 without gamma */
static float weight_of(const float *gamma, const Sets *s, int channel, int row) {
  return gamma ? gamma[value_at(channel, s->weight_rows, row % s->weight_rows)] : 1.0f;
}

static float normal(const float *x, const float *statistics, const Sets *s, int channel, int row) {
  const int set = set_of(s, row, channel);
  return (x[value_at(channel, s->m, row)] - statistics[MEAN * s->count + set]) * statistics[RECIPROCAL * s->count + set];
}

/* The mean over a set of (x - shift)^power, or, given dy, of dy behind gamma times that */
static float mean_of(const float *x, const float *dy, const float *gamma, const Sets *s, int set, float shift, int power) {
  const int first = set % s->groups * s->width, start = set / s->groups * s->span;
  float total = 0;
  int chunk, row, c;
  for (chunk = 0; chunk < s->span; chunk += CHUNK) {
    float part = 0;
    for (row = start + chunk; row < start + smaller(chunk + CHUNK, s->span); row++) {
      float of_row = 0;
      for (c = first; c < first + s->width; c++) {
        const size_t at = value_at(c, s->m, row);
        const float moved = x[at] - shift, term = power == 0 ? 1.0f : power == 1 ? moved : moved * moved;
        of_row += dy ? dy[at] * weight_of(gamma, s, c, row) * term : term;
      }
      part += of_row;
    }
    total += part;
  }
  return total / ((float)s->span * s->width);
}

/* x, statistics, sets, epsilon, centered (0: the mean counts as 0) */
void el_set_statistics(const el_value *v) {
  const Sets s = sets_of(v + 2);
  int set;
  for (set = 0; set < s.count; set++) {
    const float mean = v[8].i ? mean_of(v[0].p, NULL, NULL, &s, set, 0, 1) : 0.0f;
    v[1].p[MEAN * s.count + set] = mean;
    v[1].p[RECIPROCAL * s.count + set] = 1.0f / sqrtf(mean_of(v[0].p, NULL, NULL, &s, set, mean, 2) + v[7].f);
  }
}

/* x, statistics, y, sets, [gamma], [beta]: y = normal x * gamma + beta */
void el_normalize_examples(const el_value *v) {
  const Sets s = sets_of(v + 3);
  const float *beta = v[9].p;
  int row, c;
  for (row = 0; row < s.m; row++)
    for (c = 0; c < padded(s.channels); c++) {
      float y = 0;
      if (c < s.channels) y = normal(v[0].p, v[1].p, &s, c, row) * weight_of(v[8].p, &s, c, row);
      if (c < s.channels && beta) y += beta[value_at(c, s.weight_rows, row % s.weight_rows)];
      v[2].p[value_at(c, s.m, row)] = y;
    }
}

/* x, dy, statistics, sets, [gamma], centered */
void el_set_gradients(const el_value *v) {
  const Sets s = sets_of(v + 3);
  float *statistics = v[2].p;
  int set;
  for (set = 0; set < s.count; set++) {
    const float mean = statistics[MEAN * s.count + set], factor = statistics[RECIPROCAL * s.count + set];
    statistics[MEAN_OF_G * s.count + set] = v[9].i ? mean_of(v[0].p, v[1].p, v[8].p, &s, set, 0, 0) : 0.0f;
    statistics[MEAN_OF_GX * s.count + set] = mean_of(v[0].p, v[1].p, v[8].p, &s, set, mean, 1) * factor;
  }
}

/* x, dy, statistics, sets, [gamma], gradient */
void el_normalize_examples_backward(const el_value *v) {
  const Sets s = sets_of(v + 3);
  const Gradient g = gradient_of(v + 9);
  const float *statistics = v[2].p;
  int block, row, c;
  for (block = 0; block < (s.channels + B - 1) / B; block++)
    for (row = 0; row < s.m; row++) {
      const size_t at = row_at(block, s.m, row);
      float dx[B] = {0};
      for (c = 0; c < smaller(B, s.channels - block * B); c++) {
        const int channel = block * B + c, set = set_of(&s, row, channel);
        const float own = v[1].p[at + c] * weight_of(v[8].p, &s, channel, row) - statistics[MEAN_OF_G * s.count + set];
        const float part = normal(v[0].p, statistics, &s, channel, row) * statistics[MEAN_OF_GX * s.count + set];
        dx[c] = (own - part) * statistics[RECIPROCAL * s.count + set];
      }
      write_gradient(g, at, dx);
    }
}

/* x, dy, statistics, sums, sets, repetitions of a row of the weight in a part, scaled, add, blocks, parts: sums of dy, or,
   scaled, of its products with normal values */
void el_weight_gradients(const el_value *v) {
  const Sets s = sets_of(v + 4);
  const int count = v[9].i, repetitions = s.m / s.weight_rows, blocks = v[12].i;
  int part, block, weight_row, repetition, c;
  for (part = 0; part < v[13].i; part++)
    for (block = 0; block < blocks; block++)
      for (weight_row = 0; weight_row < s.weight_rows; weight_row++) {
        float *to = v[3].p + row_at(part * blocks + block, s.weight_rows, weight_row), sum[B] = {0};
        for (repetition = part * count; repetition < smaller((part + 1) * count, repetitions); repetition++) {
          const int row = repetition * s.weight_rows + weight_row;
          const float *dy = v[1].p + row_at(block, s.m, row);
          for (c = 0; c < smaller(B, s.channels - block * B); c++)
            sum[c] += v[10].i ? dy[c] * normal(v[0].p, v[2].p, &s, block * B + c, row) : dy[c];
        }
        EACH(c) to[c] = v[11].i ? to[c] + sum[c] : sum[c];
      }
}
