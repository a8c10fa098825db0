// Normalization within an example: layer and group normalization. `span` rows that follow each other, and the channels
// of one of `groups`, are a set that shares a mean and a variance; sets follow each other by rows, then by group. Gamma
// and beta have `weight_rows` rows, which repeat.
#include "elementwise.h"
#include "finite.h"
#include "group_sum.h"
#include "group_total.h"

#ifndef GAMMA
#define GAMMA 0
#endif
#ifndef BETA
#define BETA 0
#endif
#if GAMMA
#define GAMMA_ARGUMENTS , INPUT(gamma)
#else
#define GAMMA_ARGUMENTS
#endif
#if BETA
#define BETA_ARGUMENTS , INPUT(beta)
#else
#define BETA_ARGUMENTS
#endif
#define SETS_ARGUMENTS const int m, const int span, const int channels, const int groups, const int weight_rows
#ifndef CENTERED
#define CENTERED 1  // 0: the mean counts as 0, as in RMSNormalization
#endif
#define CHUNK 256  // values added one after the other

#define MEAN 0        // statistics: for each field the values of all sets
#define INVERSE 1     // 1 / deviation
#define MEAN_OF_G 2   // mean of the gradient behind gamma
#define MEAN_OF_GX 3  // mean of its product with the normalized input

typedef struct { int m, span, channels, groups, weight_rows; } Sets;
#define SETS ((Sets){m, span, channels, groups, weight_rows})

INLINE int count_of(const Sets s) { return s.m / s.span * s.groups; }

// The set of a work-group: rows from `row` on, channels [first, stop)
typedef struct { int row, first, stop; } Set;

INLINE Set set_of(const Sets s) {
  const int set = get_group_id(0), width = s.channels / s.groups, group = set % s.groups;
  return (Set){set / s.groups * s.span, group * width, (group + 1) * width};
}

INLINE V within(const Set set, const int block, const V v) {
  const Ints channel = block * BLOCK + FIRST_CHANNEL + POSITIONS;
  return ((channel >= (Ints)set.first) & (channel < (Ints)set.stop)) ? v : (V)0;
}

// The gradient behind gamma
INLINE V through_gamma(input gamma, const Sets s, const int block, const int row, const V dy) {
#if GAMMA
  return dy * load(gamma + row_at(block, s.weight_rows, row % s.weight_rows));
#else
  return dy;
#endif
}

typedef enum { OF_VALUES, OF_SQUARES, OF_GRADIENTS } Terms;
typedef struct { V first, second; } Pair;
typedef struct { input_values x, dy; input gamma; float mean, inverse; } Set_inputs;

// Terms that a block and row of a set adds: values; squares of centered values; or gradients behind gamma, and their products
// with the normalized values.
INLINE Pair term_of(const Terms terms, const Set_inputs in, const Sets s, const Set set, const int block,
                    const int row) {
  const size_t at = row_at(block, s.m, row);
  if (terms == OF_GRADIENTS) {
    const V g = within(set, block, through_gamma(in.gamma, s, block, row, load(in.dy + at)));
    return (Pair){g, g * (load(in.x + at) - in.mean) * in.inverse};
  }
  const V centered = within(set, block, load(in.x + at) - in.mean);
  return (Pair){terms == OF_SQUARES ? centered * centered : centered, (V)0};
}

// The share of this work-item in the sums of a set
INLINE Pair share_of(const Terms terms, const Set_inputs in, const Sets s, const Set set) {
  const int low = set.first / BLOCK, total = s.span * ((set.stop - 1) / BLOCK + 1 - low), members = GROUP / VECTORS;
  Pair all = {(V)0, (V)0};
  for (int start = get_local_id(0) / VECTORS; start < total; start += members * CHUNK) {
    Pair sum = {(V)0, (V)0};
    for (int p = start; p < total && p < start + members * CHUNK; p += members) {
      const int block = s.span == 1 ? p : p / s.span;  // a division takes as long as the rest
      const Pair term = term_of(terms, in, s, set, low + block, set.row + p - block * s.span);
      sum.first += term.first;
      sum.second += term.second;
    }
    all.first += sum.first;
    all.second += sum.second;
  }
  return all;
}

KERNEL set_statistics(INPUT_VALUES(x), OUTPUT(statistics), SETS_ARGUMENTS, const float epsilon) {
  __local float shares[GROUP];
  const Sets s = SETS;
  const Set set = set_of(s);
  const float values = (float)span * (set.stop - set.first);
  Set_inputs in = {ITEM_START(x), 0, 0, 0.0f, 1.0f};
#if CENTERED
  in.mean = group_total(element_sum(share_of(OF_VALUES, in, s, set).first), shares) / values;
#endif
  const float variance = group_total(element_sum(share_of(OF_SQUARES, in, s, set).first), shares) / values;
  if (get_local_id(0) > 0) return;
  output place = START(statistics) + get_group_id(0);
  place[MEAN * count_of(s)] = in.mean;
  place[INVERSE * count_of(s)] = 1.0f / sqrt(variance + epsilon);
}

// A field of the sets that the channels of a work-item belong to. Its pointer isn't restrict: LLVM marks those of
// functions that index vectors, and Oclgrind can't run the marks.
INLINE V field_of(__global const float *statistics, const Sets s, const int number, const int block, const int row) {
  __global const float *first = statistics + number * count_of(s) + row / s.span * s.groups;
  if (s.groups == 1) return (V)first[0];
  V v = (V)0;
  const int width = s.channels / s.groups;
  for (int i = 0; i < VECTOR_WIDTH; i++) {
    const int channel = block * BLOCK + FIRST_CHANNEL + i;
    if (channel < s.channels) ELEMENT(v, i) = first[channel / width];
  }
  return v;
}

INLINE V only_channels(const Sets s, const int block, const V v) {
  return FIRST_CHANNEL + POSITIONS < (Ints)channels_of(block, s.channels) ? v : (V)0;
}

INLINE V normalized(const V x, __global const float *statistics, const Sets s, const int block, const int row) {
  const V centered = x - field_of(statistics, s, MEAN, block, row);
  return only_channels(s, block, centered * field_of(statistics, s, INVERSE, block, row));
}

// y = normalized x * gamma + beta
KERNEL normalize_examples(INPUT_VALUES(x), INPUT(statistics), OUTPUT_VALUES(y), SETS_ARGUMENTS,
                          const int count GAMMA_ARGUMENTS BETA_ARGUMENTS) {
  input_values x = ITEM_START(x);
  input statistics = START(statistics);
  output_values y = ITEM_START(y);
  const Sets s = SETS;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    V v = normalized(load(x + row_at(band.block, m, row)), statistics, s, band.block, row);
#if GAMMA
    v *= load(ITEM_START(gamma) + row_at(band.block, weight_rows, row % weight_rows));
#endif
#if BETA
    v += load(ITEM_START(beta) + row_at(band.block, weight_rows, row % weight_rows));
#endif
    store(y + row_at(band.block, m, row), v);
  }
}

#if GAMMA
#define GAMMA_START ITEM_START(gamma)
#else
#define GAMMA_START 0
#endif

// Adds the means of gradients to the statistics.
KERNEL set_gradients(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(statistics), SETS_ARGUMENTS GAMMA_ARGUMENTS) {
  __local float shares[GROUP];
  const Sets s = SETS;
  const Set set = set_of(s);
  output place = START(statistics) + get_group_id(0);
  const Set_inputs in = {ITEM_START(x), ITEM_START(dy), GAMMA_START, place[MEAN * count_of(s)],
                         place[INVERSE * count_of(s)]};
  const Pair share = share_of(OF_GRADIENTS, in, s, set);
  const float values = (float)span * (set.stop - set.first);
  const float of_g = group_total(element_sum(share.first), shares);
  const float of_gx = group_total(element_sum(share.second), shares);
  if (get_local_id(0) > 0) return;
  place[MEAN_OF_G * count_of(s)] = CENTERED ? of_g / values : 0.0f;
  place[MEAN_OF_GX * count_of(s)] = of_gx / values;
}

KERNEL normalize_examples_backward(INPUT_VALUES(x), INPUT_VALUES(dy), INPUT(statistics), SETS_ARGUMENTS,
                                   const int count, GRADIENT_ARGUMENTS GAMMA_ARGUMENTS) {
  input_values x = ITEM_START(x), dy = ITEM_START(dy);
  input statistics = START(statistics);
  const Gradient dx = GRADIENT;
  const Sets s = SETS;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const V g = through_gamma(GAMMA_START, s, band.block, row, load(dy + at));
    const V part = normalized(load(x + at), statistics, s, band.block, row)
                   * field_of(statistics, s, MEAN_OF_GX, band.block, row);
    const V centered = g - field_of(statistics, s, MEAN_OF_G, band.block, row) - part;
    write_gradient(dx, at, only_channels(s, band.block, centered * field_of(statistics, s, INVERSE, band.block, row)));
  }
}

// sums[part]: (add ? what was there : 0) + the sum of dy, or with `scaled` of dy times the normalized input, over the
// repetitions of a row of the weight, `count` a member
KERNEL weight_gradients(INPUT_VALUES(x), INPUT_VALUES(dy), INPUT(statistics), OUTPUT(sums), SETS_ARGUMENTS,
                        const int count, const int scaled, const int add) {
  LOCAL_SHARES(shares);
  const int part = get_group_id(0), block = get_global_id(1), weight_row = get_global_id(2);
  input_values x = ITEM_START(x), dy = ITEM_START(dy);
  input statistics = START(statistics);
  const Sets s = SETS;
  const int first = part * MEMBERS * count, all = m / weight_rows;
  const int last = first + MEMBERS * count < all ? first + MEMBERS * count : all;
  V sum = (V)0;
  for (int repetition = first + ITEM % MEMBERS; repetition < last; repetition += MEMBERS) {
    const int row = repetition * weight_rows + weight_row;
    const size_t at = row_at(block, m, row);
    const V g = load(dy + at);
    sum += scaled ? g * normalized(load(x + at), statistics, s, block, row) : g;
  }
  sum = group_sum(sum, shares);
  output share = ITEM_START(sums) + (((size_t)part * get_global_size(1) + block) * weight_rows + weight_row) * BLOCK;
  if (IS_FIRST_MEMBER) store(share, add ? sum + load(share) : sum);
}

// Sets of one row each, layer normalization of the channels, on CPUs: a work-item takes `count` rows, TOGETHER at a time,
// which stay in its cache from their means to what is written. Rows are the inner loop: blocks of one row lie so far apart
// that they compete for the same places of a cache.
#define TOGETHER 16
#define ROW_ARGUMENTS const int m, const int channels, const int count, const float epsilon

typedef struct { float mean[TOGETHER], inverse[TOGETHER]; } Rows;

// `x` at the first of `n` rows
INLINE void take_rows(Rows *rows, input_values x, const int m, const int channels, const int n, const float epsilon) {
  const int blocks = (channels + BLOCK - 1) / BLOCK;
  V sums[TOGETHER];
  for (int i = 0; i < n; i++) {
    sums[i] = (V)0;
    rows->mean[i] = 0.0f;
  }
#if CENTERED
  for (int block = 0; block < blocks; block++)
    for (int i = 0; i < n; i++) sums[i] += load(x + row_at(block, m, i));
  for (int i = 0; i < n; i++) {
    rows->mean[i] = sum_of_elements(sums[i]) / channels;
    sums[i] = (V)0;
  }
#endif
  for (int block = 0; block < blocks; block++)
    for (int i = 0; i < n; i++) {
      const V centered = UNPADDED(load(x + row_at(block, m, i)) - rows->mean[i], block);
      sums[i] += centered * centered;
    }
  for (int i = 0; i < n; i++) rows->inverse[i] = 1.0f / sqrt(sum_of_elements(sums[i]) / channels + epsilon);
}

KERNEL normalize_rows(INPUT_VALUES(x), OUTPUT_VALUES(y), ROW_ARGUMENTS GAMMA_ARGUMENTS BETA_ARGUMENTS) {
  input_values x = START(x);
  output_values y = START(y);
  const int begin = get_global_id(0) * count, stop = begin + count < m ? begin + count : m;
  for (int first = begin; first < stop; first += TOGETHER) {
    const int n = stop - first < TOGETHER ? stop - first : TOGETHER;
    Rows rows;
    take_rows(&rows, x + first * BLOCK, m, channels, n, epsilon);
    for (int block = 0; block < (channels + BLOCK - 1) / BLOCK; block++) {
      V factor = (V)1, shift = (V)0;
#if GAMMA
      factor = load(START(gamma) + block * BLOCK);
#endif
#if BETA
      shift = load(START(beta) + block * BLOCK);
#endif
      for (int i = 0; i < n; i++) {
        const size_t at = row_at(block, m, first + i);
        store(y + at, UNPADDED((load(x + at) - rows.mean[i]) * rows.inverse[i] * factor + shift, block));
      }
    }
  }
}

#ifndef GAMMA_SUMS
#define GAMMA_SUMS 0
#endif
#ifndef BETA_SUMS
#define BETA_SUMS 0
#endif

// A work-item adds its rows to sums of its own: (add ? what was there : 0) + the gradients of gamma and of beta.
KERNEL normalize_rows_backward(INPUT_VALUES(x), INPUT_VALUES(dy), ROW_ARGUMENTS, const int add,
                               GRADIENT_ARGUMENTS GAMMA_ARGUMENTS OUTPUT_IF(GAMMA_SUMS, gammas)
                                   OUTPUT_IF(BETA_SUMS, betas)) {
  input_values x = START(x), dy = START(dy);
  const Gradient dx = GRADIENT;
  const int blocks = (channels + BLOCK - 1) / BLOCK;
  const int begin = get_global_id(0) * count, stop = begin + count < m ? begin + count : m;
  int first = begin;
  do {  // once even without a row, for the sums
    const int n = stop - first < TOGETHER ? stop - first : TOGETHER, more = add || first > begin;
    Rows rows;
    V of_g[TOGETHER], of_gx[TOGETHER];
    float mean_of_g[TOGETHER], mean_of_gx[TOGETHER];
    take_rows(&rows, x + first * BLOCK, m, channels, n, epsilon);
    for (int i = 0; i < n; i++) of_g[i] = of_gx[i] = (V)0;
    for (int block = 0; block < blocks; block++) {
      V factor = (V)1;
#if GAMMA
      factor = load(START(gamma) + block * BLOCK);
#endif
      for (int i = 0; i < n; i++) {
        const size_t at = row_at(block, m, first + i);
        const V g = load(dy + at) * factor;
        of_g[i] += g;
        of_gx[i] += g * (load(x + at) - rows.mean[i]);
      }
    }
    for (int i = 0; i < n; i++) {
      mean_of_g[i] = CENTERED ? sum_of_elements(of_g[i]) / channels : 0.0f;
      mean_of_gx[i] = sum_of_elements(of_gx[i]) * rows.inverse[i] / channels;
    }
    for (int block = 0; block < blocks; block++) {
      V factor = (V)1, of_gamma = (V)0, of_beta = (V)0;
#if GAMMA
      factor = load(START(gamma) + block * BLOCK);
#endif
      for (int i = 0; i < n; i++) {
        const size_t at = row_at(block, m, first + i);
        const V gradient = load(dy + at), normal = (load(x + at) - rows.mean[i]) * rows.inverse[i];
        of_gamma += gradient * normal;
        of_beta += gradient;
        const V g = gradient * factor;  // rounded as in the means, so that a single channel has a gradient of 0
        const V centered = g - mean_of_g[i] - normal * mean_of_gx[i];
        write_gradient(dx, at, UNPADDED(centered * rows.inverse[i], block));
      }
#if GAMMA_SUMS
      output gammas = START(gammas) + ((size_t)get_global_id(0) * blocks + block) * BLOCK;
      store(gammas, more ? of_gamma + load(gammas) : of_gamma);
#endif
#if BETA_SUMS
      output betas = START(betas) + ((size_t)get_global_id(0) * blocks + block) * BLOCK;
      store(betas, more ? of_beta + load(betas) : of_beta);
#endif
    }
    first += TOGETHER;
  } while (first < stop);
}
