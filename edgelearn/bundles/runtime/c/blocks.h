/* Shared by the kernels of target c: blocks of 16 channels, how results are written, windows, jobs. */
#ifndef EDGELEARN_BLOCKS_H
#define EDGELEARN_BLOCKS_H

#include <stddef.h>
#include <string.h>

#include "kernels.h"

enum { B = 16 };
enum { LOSS, CORRECT, SEEN, NONFINITE }; /* of counters */
enum { INVERSE_BATCH, LEARNING_RATE, CORRECTION, SEED, SEED_HIGH, STEP, SECOND_CORRECTION }; /* of scalars */

static inline int smaller(int a, int b) { return a < b ? a : b; }

/* Channels with the padding of the last block */
static inline int padded(int channels) { return (channels + B - 1) / B * B; }

/* A loop over the channels of a block */
#define EACH(c) for (c = 0; c < B; c++)

/* An element-wise function: its number in kernels.h, and its settings */
typedef struct {
  int name;
  float a, b;
} Function;

void el_apply(Function f, float *y);                        /* y = function(y), for a block */
void el_apply_slope(Function f, const float *z, float *g);  /* g *= the derivative, given the output z (or the input) */

/* -- how results are written -- */

/* y = function(sum * scale + shift) for the channels of a block. Arguments: [scale], [shift], function, a, b */
typedef struct {
  const float *scale, *shift;
  Function function;
} Epilogue;

static inline Epilogue epilogue_of(const el_value *v) {
  const Epilogue e = {v[0].p, v[1].p, {v[2].i, v[3].f, v[4].f}};
  return e;
}

static inline void write_output(const Epilogue e, int block, const float *sum, float *y) {
  int c;
  EACH(c) y[c] = sum[c];
  if (e.scale) EACH(c) y[c] *= e.scale[block * B + c];
  if (e.shift) EACH(c) y[c] += e.shift[block * B + c];
  el_apply(e.function, y);
}

/* Gradients. Arguments: dx, [output of the activation before], [its range, if it is integers], mask, accumulate,
   function, a, b. mask 1: this share is multiplied by the derivative of the activation before; 2: the sum with earlier
   shares is. */
typedef struct {
  float *dx;
  const float *output, *range;
  int mask, accumulate;
  Function function;
} Gradient;

static inline Gradient gradient_of(const el_value *v) {
  const Gradient g = {v[0].p, v[1].p, v[2].p, v[3].i, v[4].i, {v[5].i, v[6].f, v[7].f}};
  return g;
}

enum { SCALE_OF, INVERSE, ZERO, LOW, HIGH, LEAST_FOUND, MOST_FOUND, CLIPPED, COUNT, NEXT_LOW = 13, NEXT_HIGH, UPDATES };

/* The floats that a block of integers stands for, or of floats if there is no range */
static inline void read_block(const float *x, const float *range, size_t at, float *values) {
  const int8_t *integers = (const int8_t *)(const void *)x + at;
  int c;
  if (!range) memcpy(values, x + at, B * sizeof *values);
  else EACH(c) values[c] = ((float)integers[c] - range[ZERO]) * range[SCALE_OF];
}

/* v *= the derivative of the activation before */
static inline void through_mask(const Gradient *g, size_t at, float *v) {
  float output[B];
  read_block(g->output, g->range, at, output);
  el_apply_slope(g->function, output, v);
}

static inline void write_gradient(const Gradient g, size_t at, float *v) {
  int c;
  if (g.mask == 1) through_mask(&g, at, v);
  if (g.accumulate) EACH(c) v[c] += g.dx[at + c];
  if (g.mask == 2) through_mask(&g, at, v);
  memcpy(g.dx + at, v, B * sizeof *v);
}

static inline size_t row_at(int block, int rows, int row) { return ((size_t)block * rows + row) * B; }
static inline size_t value_at(int channel, int rows, int row) { return row_at(channel / B, rows, row) + channel % B; }

/* -- windows -- */

/* Taps, strides, dilations, and the padding above and to the left. Arguments in this order, eight */
typedef struct {
  int height, width, stride_y, stride_x, dilation_y, dilation_x, top, left;
} Window;

static inline Window window_of(const el_value *v) {
  const Window w = {v[0].i, v[1].i, v[2].i, v[3].i, v[4].i, v[5].i, v[6].i, v[7].i};
  return w;
}

/* The output row or column that tap number `tap` of an input one belongs to, or -1 */
static inline int reached(int input, int padding, int tap, int dilation, int stride, int outputs) {
  const int reach = input + padding - tap * dilation;
  return reach < 0 || reach % stride != 0 || reach / stride >= outputs ? -1 : reach / stride;
}

/* -- jobs: work of many layers, from a table of words. A tensor of a job starts at a word's blocks of 16 floats. -- */

static inline float *at_word(const el_value base, int32_t word) { return base.p + (ptrdiff_t)word * B; }

/* Work-items of a job: up to the first of the next, or of all */
static inline int items_of(const int32_t *job, int number, int jobs, int words, int items) {
  return (number + 1 < jobs ? job[words] : items) - job[0];
}

/* A flag is set for 16 values that hold a NaN or an infinity. */
static inline void set_flag(float *flags, int place, int is_finite) { flags[place] = is_finite ? 0.0f : 1.0f; }

/* The same for a gradient that one function writes whole. Arguments: [flags], number of their columns, and rows */
static inline void set_one_flag(const el_value *v, int is_finite) {
  if (!v[0].p) return;
  memset(v[0].p, 0, (size_t)v[1].i * v[2].i * sizeof(float));
  set_flag(v[0].p, 0, is_finite);
}

/* The first of the largest values of a row, in floats.c */
int el_top_of(const float *x, int n, int classes, int row);

/* The least and the most of updated weights, in floats.c. Arguments: pieces, extremes, number of pieces; a piece is its first
   block, one behind the last, and the blocks where both go, or -1 */
void el_leave_extremes(const float *w, const el_value *v);

/* Random words from a counter and a key, by Philox4x32: Salmon, Moraes, Dror and Shaw 2011. In integers.c */
void el_philox(uint32_t counter[4], uint32_t k0, uint32_t k1, int rounds);

/* -- batch normalization, in floats.c -- */

/* The rows of a set, which have statistics in common: m of a block, or of one of `bands` sub-bands of images, of which
   each has `share` rows. Arguments in this order, three; without sub-bands the last two are 0. */
typedef struct {
  int m, share, bands;
} Rows;

static inline Rows rows_of(const el_value *v) {
  const Rows rows = {v[0].i, v[1].i, v[2].i};
  return rows;
}

static inline size_t set_row_at(const Rows r, int set, int row) {
  if (!r.bands) return row_at(set, r.m, row);
  return row_at(set / r.bands * (r.m / r.share) + row / r.share, r.bands * r.share, set % r.bands * r.share + row % r.share);
}

void el_batch_statistics(const float *y, const float *range, const el_value *v, int set, const Rows rows, float epsilon,
                         float pace);
void el_batch_gradients(const float *dz, const float *y, const float *range, const el_value *v, int set,
                        const Rows rows, int moving, int add, float *slope, float *offset);

#endif
