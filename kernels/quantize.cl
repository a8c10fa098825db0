// Quantization: a tensor is rounded to integers (WRITTEN INT8) or, simulated, to the floats that these stand for, and
// range statistics are taken as it is written. A tensor is taken as it lies in memory: the zeros that pad channels are
// in every range. Statistics of a tensor: a record (range.h) for each work-group, then one for the tensor. As with
// integers.h, no two operations may be contracted to one: results are the same to the bit on every device.
#pragma OPENCL FP_CONTRACT OFF
#include "blocked.h"
#include "statistics.h"
#include "scalars.h"
#include "rows.h"
#include "weights.h"

// Least and most value of a tensor: a record for each work-group
KERNEL statistics(INPUT(x) STATISTICS_ARGUMENTS, const int rows, const int rest) {
  LOCAL_RECORDS(shared);
  input x = START(x);
  RangeStatistics s = NO_STATISTICS;
  const Tiles tiles = tiles_of_item(rows);
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step)
    observe(&s, load_row(x, row_of(tile, rows, rest)));
  WRITE_STATISTICS(s, shared);
}

// Further arguments of stochastic rounding
#if STOCHASTIC
#define RANDOM_ARGUMENTS \
  , INPUT_OF(uint, scalars), INPUT(counters), const int m, const int images, const int blocks, const int tensor
#else
#define RANDOM_ARGUMENTS
#endif

// y = x rounded; `bottom` and `top` are the least and the most integer. m rows of 16 channels, of `images`, are there
// for random numbers.
KERNEL quantize(ROUNDED_ARGUMENTS, INPUT(range) STATISTICS_ARGUMENTS, const int rows, const int rest,
                const float bottom, const float top RANDOM_ARGUMENTS) {
  LOCAL_RECORDS(shared);
  __global const float *x = ROUNDED_SOURCE;
  __global Written *y = START(y);
  input range = START(range);
  const float zero = range[ZERO];
  const V scale = (V)range[SCALE_OF], inverse = (V)range[INVERSE];
  const V lowest = (V)(bottom - zero), highest = (V)(top - zero);
#if STOCHASTIC
  __global const uint *scalars = START(scalars);
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
  const int pixels = m / images, before = (int)START(counters)[SEEN];
#endif
  RangeStatistics s = NO_STATISTICS;
  const Tiles bands = tiles_of_item((rows + DRAWN_ROWS - 1) / DRAWN_ROWS);
  for (int band = bands.first; band < bands.last; band += bands.step) {
    const int first = band * DRAWN_ROWS;
    Uniform uniform;
#if STOCHASTIC
    const RowNumbers tile = (uint)first + ROW_STEPS, r = tile / PIECES, pixel = r % (uint)m;
    const RowNumbers value = (pixel % (uint)pixels * (uint)blocks + r / (uint)m) * BLOCK + tile % PIECES * VECTOR_WIDTH;
    uniform = uniform_numbers(value, pixel / (uint)pixels + (uint)before, tensor, scalars[STEP], seed);
#endif
    UNROLL for (int i = 0; i < DRAWN_ROWS; i++) if (first + i < rows) {
      const Row row = row_of(first + i, rows, rest);
      const V v = load_row(x, row);
      const V t = quantized(v, inverse, lowest, highest, uniform.of[i]);
      const V w = t * scale + (v - v);  // an infinity becomes a NaN, which is noticed; the end of the range would not be
      store_row(y, row, WRITTEN == INT8 ? t + zero : w);
      observe(&s, v);
      observe_clipping(&s, v * inverse, lowest, highest);
      observe_rounding(&s, v, w);
    }
  }
  WRITE_STATISTICS(s, shared);
}

// Sets the range in use to [low, high], widened to contain 0.
INLINE void set_range(output record, const float low, const float high, const int bits, const int symmetric) {
  const float least = lower_float(0.0f, low), most = higher_float(0.0f, high);
  const Parameters p = parameters_of((Record)least, (Record)most, bits, symmetric);
  const float scale = ELEMENT(p.scale, 0);
  record[SCALE_OF] = scale;
  record[INVERSE] = 1.0f / scale;
  record[ZERO] = ELEMENT(p.zero, 0);
  record[LOW] = least;
  record[HIGH] = most;
}

// The range before, fading, and the one found since
INLINE float blended(const float before, const float now, const float pace) { return now + pace * (before - now); }

// The range of a tensor whose statistics come first; with `momentum`, the mini-batches before also count.
KERNEL measured_range(INPUT(records), OUTPUT(range), const int parts, const int bits, const int symmetric,
                      const float momentum) {
  LOCAL_RECORDS(shared);
  output range = START(range);
  const Record all = merged_records(START(records), parts, shared);
  if (get_local_id(0) > 0) return;
  const float pace = range[UPDATES] > 0.0f ? momentum : 0.0f;
  const float low = blended(range[NEXT_LOW], ELEMENT(all, LEAST_FOUND), pace);
  const float high = blended(range[NEXT_HIGH], ELEMENT(all, MOST_FOUND), pace);
  set_range(range, low, high, bits, symmetric);
}

// Candidates: the range in use, cut off at 16 distances from 0, the k-th `ratio` times the one before
typedef struct { Record reach, low, high; } Candidates;
INLINE void find_candidates(__global const float *range, const float ratio, Candidates *found) {
  Record reach;
  float distance = higher_float(-range[LOW], range[HIGH]);
  for (int k = 0; k < BLOCK; k++, distance *= ratio) ELEMENT(reach, k) = distance;
  const Record low = (Record)range[LOW], high = (Record)range[HIGH];
  found->reach = reach;
  found->low = -reach < low ? low : -reach;
  found->high = reach > high ? high : reach;
}

// For each candidate: sum of v * w, of w * w, and the number of values v beyond it; w is what v becomes.
KERNEL try_ranges(INPUT(x), INPUT(range), OUTPUT(tried), const int rows, const int rest, const int bits,
                  const int symmetric, const float bottom, const float top, const float ratio) {
  LOCAL_RECORDS(shared);
  input x = START(x);
  Candidates c;
  find_candidates(START(range), ratio, &c);
  const Parameters p = parameters_of(c.low, c.high, bits, symmetric);
  const Record inverse = 1.0f / p.scale, lowest = bottom - p.zero, highest = top - p.zero;
  const float unit = 1.0f / higher_float(ELEMENT(c.reach, 0), LEAST_SCALE);  // squares of small gradients would vanish
  Record product = (Record)0, result = (Record)0, beyond = (Record)0;
  const Tiles tiles = tiles_of_item(rows);
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const V row = load_row(x, row_of(tile, rows, rest));
    for (int i = 0; i < VECTOR_WIDTH; i++) {
      const Record v = (Record)(ELEMENT(row, i));
      const Record w = nearest_of_record(scaled_record(v, inverse, lowest, highest)) * p.scale * unit;
      product += v * unit * w;
      result += w * w;
      beyond += ((v < c.low) | (v > c.high)) ? (Record)1 : (Record)0;
    }
  }
  product = record_of_group(product, 0, shared);
  result = record_of_group(result, 0, shared);
  beyond = record_of_group(beyond, 0, shared);
  if (get_local_id(0) > 0) return;
  output mine = START(tried) + (size_t)get_group_id(0) * 3 * BLOCK;
  store_record(mine, product);
  store_record(mine + BLOCK, result);
  store_record(mine + 2 * BLOCK, beyond);
}

// The candidate whose values point most nearly in the direction of x (DIRECTION), or the narrowest with no more than
// `most_beyond` values beyond it
KERNEL choose_range(INPUT(tried), OUTPUT(range), const int parts, const int bits, const int symmetric,
                    const float ratio, const float most_beyond) {
  LOCAL_RECORDS(shared);
  input tried = START(tried);
  Record product = (Record)0, result = (Record)0, beyond = (Record)0;
  for (int part = get_local_id(0); part < parts; part += GROUP) {
    product += load_record(tried + (size_t)part * 3 * BLOCK);
    result += load_record(tried + ((size_t)part * 3 + 1) * BLOCK);
    beyond += load_record(tried + ((size_t)part * 3 + 2) * BLOCK);
  }
  product = record_of_group(product, 0, shared);
  result = record_of_group(result, 0, shared);
  beyond = record_of_group(beyond, 0, shared);
  if (get_local_id(0) > 0) return;  // the range is read and written by one work-item alone
  output range = START(range);
  Candidates c;
  find_candidates(range, ratio, &c);
  int best = 0;
  for (int k = 1; k < BLOCK; k++) {
#if DIRECTION  // cosines times the length of x
    if (ELEMENT(product, k) * sqrt(ELEMENT(result, best)) > ELEMENT(product, best) * sqrt(ELEMENT(result, k))) best = k;
#else
    if (ELEMENT(beyond, k) <= most_beyond) best = k;
#endif
  }
  set_range(range, ELEMENT(c.low, best), ELEMENT(c.high, best), bits, symmetric);
}

// Before a mini-batch: use the range that the one before has left.
KERNEL next_range(OUTPUT(range), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 4);
  output range = JOB_START(range, 1);
  const float low = range[NEXT_LOW], high = range[NEXT_HIGH];
  set_range(range, low, high, job.words[2], job.words[3]);
}

// flag = 1 where a tensor held a NaN or an infinity
KERNEL check_finite(INPUT(records), OUTPUT(flag), JOBS) {
  LOCAL_RECORDS(shared);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 4);
  const Record all = merged_records(JOB_START(records, 1), job.words[3], shared);
  if (get_local_id(0) > 0) return;
  JOB_START(flag, 2)[0] = ELEMENT(all, CLIPPED) - ELEMENT(all, CLIPPED) == 0.0f ? 0.0f : 1.0f;
}

// How learn_range gets the next range
#include "range_rules.h"

// After a mini-batch, unless it held a NaN or an infinity: its statistics, and the range for the next one
KERNEL learn_range(OUTPUT(range), INPUT(records), INPUT(counters), JOBS, const float momentum) {
  LOCAL_RECORDS(shared);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 5);
  output range = JOB_START(range, 1);
  if (JOB_START(counters, 3)[NONFINITE] != 0.0f) return;
  const Record all = merged_records(JOB_START(records, 2), job.words[4], shared);
  if (get_local_id(0) > 0) return;
  for (int number = LEAST_FOUND; number <= RESULT_POWER; number++) range[number] = ELEMENT(all, number);
  const float low = ELEMENT(all, LEAST_FOUND), high = ELEMENT(all, MOST_FOUND);
#if RULE == RULE_OWN
  range[LOW] = low;
  range[HIGH] = high;
#endif
#if RULE == RULE_KEEP
  range[NEXT_LOW] = range[LOW];
  range[NEXT_HIGH] = range[HIGH];
#else
  const float pace = range[UPDATES] > 0.0f ? momentum : 0.0f;
  range[NEXT_LOW] = blended(range[NEXT_LOW], low, pace);
  range[NEXT_HIGH] = blended(range[NEXT_HIGH], high, pace);
#endif
  range[UPDATES] += 1.0f;
}

// The least or, with `want_most`, the most of a work-group's values, in its first item
INLINE Record extreme_of_group(Record mine, const int want_most, __local Record *shared) {
#if GROUP > 1
  const int me = get_local_id(0);
  for (int count = GROUP / 2; count > 0; count /= 2) {
    if (me >= count && me < 2 * count) shared[me - count] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < count) {
      const Record other = shared[me];
      mine = want_most ? (other > mine ? other : mine) : (other < mine ? other : mine);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
  return mine;
}

// Weights: jobs of all layers. Their ranges are those of their values.
KERNEL weight_statistics(INPUT_KERNEL, OUTPUT(extremes), JOBS) {
  LOCAL_RECORDS(shared);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, BEHIND(2) + KERNEL_NUMBERS);
  output extremes = JOB_START(extremes, BEHIND(1)) + (size_t)(job.item / GROUP) * 2 * BLOCK;
  const KernelRows k = KERNEL_ROWS(BEHIND(2));
  V least = (V)0, most = (V)0;
  for (int row = k.start; row < k.stop; row += GROUP) {
    const V v = kernel_row(k, row);
    least = lower(least, v);
    most = higher(most, v);
  }
  least = extreme_of_group(least, 0, shared);
  most = extreme_of_group(most, 1, shared);
  if (get_local_id(0) > 0) return;
  store(extremes, least);
  store(extremes + BLOCK, most);
}

// The range of weights from `parts` extremes of each of `blocks` blocks; with PER_CHANNEL a work-group a block, else
// one
KERNEL weight_range(INPUT(extremes), OUTPUT(range), JOBS) {
  LOCAL_RECORDS(shared);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 7);
  input extremes = JOB_START(extremes, 1);
  const int bits = job.words[3], symmetric = job.words[4], blocks = job.words[5], parts = job.words[6];
  const int block = job.item / GROUP, first = block * parts, count = PER_CHANNEL ? parts : blocks * parts;
  V least = (V)0, most = (V)0;
  for (int at = first + job.item % GROUP; at < first + count; at += GROUP) {
    least = lower(least, load(extremes + (size_t)at * 2 * BLOCK));
    most = higher(most, load(extremes + ((size_t)at * 2 + 1) * BLOCK));
  }
  least = extreme_of_group(least, 0, shared);
  most = extreme_of_group(most, 1, shared);
  if (get_local_id(0) > 0) return;
#if PER_CHANNEL
  output fields = JOB_START(range, 2) + (size_t)block * BLOCK * BLOCK;
  const Parameters p = parameters_of(least, most, bits, symmetric);
  store(fields + SCALE_OF * BLOCK, p.scale);
  store(fields + INVERSE * BLOCK, 1.0f / p.scale);
  store(fields + ZERO * BLOCK, p.zero);
  store(fields + LOW * BLOCK, least);
  store(fields + HIGH * BLOCK, most);
#else
  set_range(JOB_START(range, 2), least_of(least), most_of(most), bits, symmetric);
#endif
}

// Words of a job of weight_quantize
#define RANGE_WORD BEHIND(2)
#define SCALARS_WORD (RANGE_WORD + STATISTICS + 1)
#define NUMBERS_WORD (RANGE_WORD + STATISTICS + STOCHASTIC + 1)
#define VALUES_WORD (NUMBERS_WORD + KERNEL_NUMBERS)
#define TENSOR_WORD (VALUES_WORD + 1)

// y = the kernel's rows, rounded by its range
KERNEL weight_quantize(INPUT_KERNEL, OUTPUT_OF(Written, y), INPUT(range) OUTPUT_IF(STATISTICS, records)
                       INPUT_OF_IF(STOCHASTIC, uint, scalars), JOBS, const float bottom, const float top) {
  LOCAL_RECORDS(shared);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, TENSOR_WORD + 1);
  const KernelRows k = KERNEL_ROWS(NUMBERS_WORD);
  __global Written *y = JOB_START(y, BEHIND(1));
  input range = JOB_START(range, RANGE_WORD);
  const V scale = field(range, SCALE_OF, k.block), inverse = field(range, INVERSE, k.block);
  const V zero = field(range, ZERO, k.block), lowest = bottom - zero, highest = top - zero;
  const Ints whole_zero = VECTOR(as_int)(zero + ROUND_SHIFT) - (Ints)0x4B400000;
#if STOCHASTIC
  __global const uint *scalars = JOB_START(scalars, SCALARS_WORD);
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
#endif
  RangeStatistics s = NO_STATISTICS;
  for (int row = k.start; row < k.stop; row += GROUP) {
    const V v = kernel_row(k, row);
#if STOCHASTIC
    const uint first = (row * k.blocks + k.block) * BLOCK;
    const V uniform = uniform_numbers(first, 0, job.words[TENSOR_WORD], scalars[STEP], seed).of[0];
#else
    const V uniform = (V)0;
#endif
    const V t = quantized(v, inverse, lowest, highest, uniform), w = t * scale + (v - v);
    const size_t at = ((size_t)k.block * k.m + row) * BLOCK;
#if WRITTEN == INT8 && !STOCHASTIC
    store_nearest_above(y + at, bounded(v * inverse, lowest, highest), whole_zero);
#elif WRITTEN == INT8
    store_int8(y + at, t, zero);
#else
    store(y + at, w);
#endif
    observe(&s, v);
    observe_rounding(&s, v, w);
  }
#if STATISTICS
  write_job_record(s, JOB_START(records, RANGE_WORD + 1), job.item, job.words[VALUES_WORD], shared);
#endif
}
