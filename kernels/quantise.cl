// Simulated quantisation: tensors hold the float32 values that integers would stand for, and their ranges are measured
// as they are written. A tensor is taken as it lies in memory, 16 floats a row, whatever its channels: the zeros that
// pad them are in every range. Sums of a tensor: a record (see quantise.h) for each work-group, then one for the tensor.
#include "blocked.h"
#include "jobs.h"
#include "quantise.h"
#include "scalars.h"

#ifndef FOUND
#define FOUND 0
#endif
#ifndef TRACED
#define TRACED 0
#endif

// The rows of a work-item: neighbours on CPUs; on GPUs neighbours in a work-group take neighbouring rows.
#if GROUP > 1
#define EACH_ROW for (int row = get_global_id(0); row < rows; row += get_global_size(0))
#else
#define EACH_ROW                                                                   \
  for (int row = get_global_id(0) * count,                                         \
           stop = ((int)get_global_id(0) + 1) * count < rows ? ((int)get_global_id(0) + 1) * count : rows; \
       row < stop; row++)
#endif

// A tensor of fewer than 16 channels a block may end within a row, after `rest` of its floats.
#define IS_CUT (rest && row == rows - 1)
#define LOAD_ROW(v, x)                                                             \
  V v = (V)0;                                                                      \
  if (IS_CUT) { for (int lane = 0; lane < rest; lane++) LANE(v, lane) = (x)[(size_t)row * BLOCK + lane]; } \
  else v = LOAD((x) + (size_t)row * BLOCK);
#define STORE_ROW(y, v)                                                            \
  if (IS_CUT) { for (int lane = 0; lane < rest; lane++) (y)[(size_t)row * BLOCK + lane] = LANE(v, lane); } \
  else STORE((y) + (size_t)row * BLOCK, v);

#define LOWER(a, b) ((b) < (a) ? (b) : (a))
#define HIGHER(a, b) ((b) > (a) ? (b) : (a))

// What work-items have found, as vectors; SUMMARY makes of them one record of the work-group, in `mine`, held by its
// first work-item. All take part.
#define NOTHING_FOUND V least = (V)0, most = (V)0, clipped = (V)0, signal = (V)0, noise = (V)0, product = (V)0, result = (V)0;
#define OVER_LANES(combined, vector, how) { float c_ = LANE(vector, 0); for (int i = 1; i < BLOCK; i++) { const float l_ = LANE(vector, i); c_ = how; } combined = c_; }
#define SUM (c_ + l_)
#define IN_LANES(record)                                                           \
  V record = (V)0;                                                                 \
  OVER_LANES(LANE(record, LEAST_FOUND), least, LOWER(c_, l_))                      \
  OVER_LANES(LANE(record, MOST_FOUND), most, HIGHER(c_, l_))                       \
  OVER_LANES(LANE(record, CLIPPED), clipped, SUM)                                  \
  OVER_LANES(LANE(record, SIGNAL), signal, SUM)                                    \
  OVER_LANES(LANE(record, NOISE), noise, SUM)                                      \
  OVER_LANES(LANE(record, PRODUCT), product, SUM)                                  \
  OVER_LANES(LANE(record, RESULT), result, SUM)
#define MERGE(into, other)                                                         \
  {                                                                                \
    const V o_ = (other);                                                          \
    const float least_ = LOWER(LANE(into, LEAST_FOUND), LANE(o_, LEAST_FOUND));    \
    const float most_ = HIGHER(LANE(into, MOST_FOUND), LANE(o_, MOST_FOUND));      \
    into += o_;                                                                    \
    LANE(into, LEAST_FOUND) = least_;                                              \
    LANE(into, MOST_FOUND) = most_;                                                \
  }
#if GROUP > 1
#define SUMMARY(mine)                                                              \
  __local V shares[GROUP];                                                         \
  IN_LANES(mine)                                                                   \
  shares[get_local_id(0)] = mine;                                                  \
  barrier(CLK_LOCAL_MEM_FENCE);                                                    \
  if (get_local_id(0) > 0) return;                                                 \
  for (int other = 1; other < GROUP; other++) MERGE(mine, shares[other])
#else
#define SUMMARY(mine) IN_LANES(mine)
#endif

// least and most of a tensor: a record for each work-group
KERNEL statistics(INPUT(x), OUTPUT(found), const int rows, const int count, const int rest) {
  FROM(x) INTO(found)
  NOTHING_FOUND
  EACH_ROW {
    LOAD_ROW(v, x)
    least = LOWER(least, v);
    most = HIGHER(most, v);
  }
  SUMMARY(mine)
  STORE(found + get_group_id(0) * BLOCK, mine);
}

// y = what the integers nearest to x stand for, `bottom` and `top` being the least and the most of them; IN_PLACE, x is
// y. What x held is left in `found`, added to what is there with `add`; `values` is how many there are without padding.
#if IN_PLACE
#define SOURCE OUTPUT(y)
#define SOURCE_POINTERS INTO(y) __global const float *x = y;
#else
#define SOURCE INPUT(x), OUTPUT(y)
#define SOURCE_POINTERS FROM(x) INTO(y)
#endif
KERNEL quantise(SOURCE, INPUT(range), const int rows, const int count, const int rest,
                const float bottom, const float top
#if FOUND
                , OUTPUT(found), const int values, const int add
#endif
#if STOCHASTIC
                , INPUT_WORDS(uint, scalars), INPUT(counters), const int m, const int images, const int blocks,
                const int passed, const int tensor
#endif
                ) {
  SOURCE_POINTERS FROM(range)
  const float zero = range[ZERO];
  const V scale = (V)range[SCALE_OF], inverse = (V)range[INVERSE], lowest = (V)(bottom - zero), highest = (V)(top - zero);
#if FOUND
  INTO(found)
  NOTHING_FOUND
#endif
#if STOCHASTIC
  FROM_WORDS(uint, scalars) FROM(counters)
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
  const int pixels = m / images, before = (int)counters[SEEN] - passed;
#endif
  EACH_ROW {
    LOAD_ROW(v, x)
    V t;
#if STOCHASTIC
    UNIFORM(uniform, row % m % pixels * blocks + row / m, before + row % m / pixels, tensor, scalars[STEP], seed)
    QUANTISE_STOCHASTIC(t, v, inverse, lowest, highest, uniform)
#else
    QUANTISE_NEAREST(t, v, inverse, lowest, highest)
#endif
    const V w = DEQUANTISE(t, scale) + (v - v);  // an infinity becomes a NaN, which is noticed; a limit would not be
    STORE_ROW(y, w)
#if FOUND
    const V exact = v * inverse;
    least = LOWER(least, v);
    most = HIGHER(most, v);
    clipped += ((exact < lowest - 0.5f) | (exact > highest + 0.5f)) ? (V)1 : (V)0;
#if TRACED
    signal += v * v;
    noise += (v - w) * (v - w);
    product += v * w;
    result += w * w;
#endif
#endif
  }
#if FOUND
  SUMMARY(mine)
  if (get_group_id(0) == 0) LANE(mine, COUNT) = values;
  if (add) MERGE(mine, LOAD(found + get_group_id(0) * BLOCK))
  STORE(found + get_group_id(0) * BLOCK, mine);
#endif
}

#define SET_RANGE(record, low, high, bits, symmetric)                              \
  {                                                                                \
    const float low_ = LOWER(0.0f, low), high_ = HIGHER(0.0f, high);               \
    float scale_, zero_;                                                           \
    PARAMETERS(float, low_, high_, scale_, zero_, bits, symmetric)                 \
    record[SCALE_OF] = scale_;                                                     \
    record[INVERSE] = 1.0f / scale_;                                               \
    record[ZERO] = zero_;                                                          \
    record[LOW] = low_;                                                            \
    record[HIGH] = high_;                                                          \
  }
#define ALL_FOUND(all, found, parts)                                               \
  V all = LOAD(found);                                                             \
  for (int part = 1; part < parts; part++) MERGE(all, LOAD(found + (size_t)part * BLOCK))
// the range before, fading, and what was found since
#define BLENDED(before, now) ((now) + pace * ((before) - (now)))

// The range of a tensor whose statistics come first; it also knows, with `momentum`, of the mini-batches before.
KERNEL measured_range(INPUT(found), OUTPUT(range), const int parts, const int bits, const int symmetric,
                      const float momentum) {
  FROM(found) INTO(range)
  if (get_global_id(0) > 0) return;
  ALL_FOUND(all, found, parts)
  const float pace = range[UPDATES] > 0.0f ? momentum : 0.0f;
  const float low = BLENDED(range[NEXT_LOW], LANE(all, LEAST_FOUND));
  const float high = BLENDED(range[NEXT_HIGH], LANE(all, MOST_FOUND));
  SET_RANGE(range, low, high, bits, symmetric)
}

// Candidates: the range in use, cut off at 16 distances from 0, the k-th `ratio` times the one before.
#define CANDIDATES                                                                 \
  V reach, lows, highs;                                                            \
  float distance = HIGHER(-range[LOW], range[HIGH]);                               \
  for (int k = 0; k < BLOCK; k++, distance *= ratio) LANE(reach, k) = distance;    \
  lows = -reach < (V)range[LOW] ? (V)range[LOW] : -reach;                          \
  highs = reach > (V)range[HIGH] ? (V)range[HIGH] : reach;

// For each candidate: sum of v * w, of w * w, and how many values v lie beyond it; w is what v becomes.
KERNEL try_ranges(INPUT(x), INPUT(range), OUTPUT(tried), const int rows, const int count, const int rest,
                  const int bits, const int symmetric, const float bottom, const float top, const float ratio) {
  FROM(x) FROM(range) INTO(tried)
  CANDIDATES
  V scale, zero;
  PARAMETERS(V, lows, highs, scale, zero, bits, symmetric)
  const V inverse = 1.0f / scale, lowest = bottom - zero, highest = top - zero;
  const float unit = 1.0f / HIGHER(LANE(reach, 0), LEAST_SCALE);  // squares of small gradients would vanish
  V product = (V)0, result = (V)0, beyond = (V)0;
  EACH_ROW {
    LOAD_ROW(row_values, x)
    for (int lane = 0; lane < BLOCK; lane++) {
      const V v = (V)(LANE(row_values, lane));
      V t;
      QUANTISE_NEAREST(t, v, inverse, lowest, highest)
      const V w = DEQUANTISE(t, scale) * unit;
      product += v * unit * w;
      result += w * w;
      beyond += ((v < lows) | (v > highs)) ? (V)1 : (V)0;
    }
  }
#if GROUP > 1
  __local V shares[3][GROUP];
  const int me = get_local_id(0);
  shares[0][me] = product, shares[1][me] = result, shares[2][me] = beyond;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me > 0) return;
  for (int i = 1; i < GROUP; i++) product += shares[0][i], result += shares[1][i], beyond += shares[2][i];
#endif
  output mine = tried + (size_t)get_group_id(0) * 3 * BLOCK;
  STORE(mine, product);
  STORE(mine + BLOCK, result);
  STORE(mine + 2 * BLOCK, beyond);
}

// The candidate whose values point most nearly where x does (DIRECTION), or the narrowest that leaves no more than
// `most_beyond` values out.
KERNEL choose_range(INPUT(tried), OUTPUT(range), const int parts, const int bits, const int symmetric,
                    const float ratio, const float most_beyond) {
  FROM(tried) INTO(range)
  if (get_global_id(0) > 0) return;
  CANDIDATES
  V product = (V)0, result = (V)0, beyond = (V)0;
  for (int part = 0; part < parts; part++) {
    product += LOAD(tried + (size_t)part * 3 * BLOCK);
    result += LOAD(tried + ((size_t)part * 3 + 1) * BLOCK);
    beyond += LOAD(tried + ((size_t)part * 3 + 2) * BLOCK);
  }
  int best = 0;
  for (int k = 1; k < BLOCK; k++) {
#if DIRECTION  // cosines times the length of x
    if (LANE(product, k) * sqrt(LANE(result, best)) > LANE(product, best) * sqrt(LANE(result, k))) best = k;
#else
    if (LANE(beyond, k) <= most_beyond) best = k;
#endif
  }
  const float low = LANE(lows, best), high = LANE(highs, best);
  SET_RANGE(range, low, high, bits, symmetric)
}

// Before a mini-batch: the range that the one before has left.
KERNEL next_range(OUTPUT(range), JOBS) {
  FIND_JOB(4)
  JOB_OUTPUT(range, 1)
  const float low = range[NEXT_LOW], high = range[NEXT_HIGH];
  SET_RANGE(range, low, high, job[2], job[3])
}

// After a mini-batch, unless a NaN or an infinity was found: what it held, and the range for the next one. RULE 0: what
// was found, and with `momentum` what was found before; 1: the range in use; 2: what was found is also what was in use.
KERNEL learn_range(OUTPUT(range), INPUT(found), INPUT(counters), JOBS, const float momentum) {
  FIND_JOB(5)
  JOB_OUTPUT(range, 1)
  JOB_INPUT(found, 2)
  JOB_INPUT(counters, 3)
  if (counters[NONFINITE] != 0.0f) return;
  ALL_FOUND(all, found, job[4])
  for (int field = LEAST_FOUND; field <= RESULT; field++) range[field] = LANE(all, field);
  const float low = LANE(all, LEAST_FOUND), high = LANE(all, MOST_FOUND);
#if RULE == 2
  range[LOW] = low;
  range[HIGH] = high;
#endif
#if RULE == 1
  range[NEXT_LOW] = range[LOW];
  range[NEXT_HIGH] = range[HIGH];
#else
  const float pace = range[UPDATES] > 0.0f ? momentum : 0.0f;
  range[NEXT_LOW] = BLENDED(range[NEXT_LOW], low);
  range[NEXT_HIGH] = BLENDED(range[NEXT_HIGH], high);
#endif
  range[UPDATES] += 1.0f;
}

// Weights: jobs of all layers, `count` rows of a block of channels a work-item. Their ranges are what they hold.
#define WEIGHT_ROWS(number)                                                        \
  const int m = job[number], blocks = job[number + 1], count = job[number + 2];    \
  const int block = item % blocks, start = item / blocks * count, stop = start + count < m ? start + count : m;

KERNEL weight_statistics(INPUT(w), OUTPUT(extremes), JOBS) {
  FIND_JOB(6)
  JOB_INPUT(w, 1)
  JOB_OUTPUT(extremes, 2)
  WEIGHT_ROWS(3)
  V least = (V)0, most = (V)0;
  for (int row = start; row < stop; row++) {
    const V v = LOAD(w + ((size_t)block * m + row) * BLOCK);
    least = LOWER(least, v);
    most = HIGHER(most, v);
  }
  STORE(extremes + (size_t)item * 2 * BLOCK, least);
  STORE(extremes + ((size_t)item * 2 + 1) * BLOCK, most);
}

// from `parts` extremes of each of `blocks` blocks; a work-item a block with PER_CHANNEL, else one
KERNEL weight_range(INPUT(extremes), OUTPUT(range), JOBS) {
  FIND_JOB(7)
  JOB_INPUT(extremes, 1)
  JOB_OUTPUT(range, 2)
  const int bits = job[3], symmetric = job[4], blocks = job[5], parts = job[6];
  V least = (V)0, most = (V)0;
#if PER_CHANNEL
  for (int at = item; at < blocks * parts; at += blocks) {
#else
  for (int at = 0; at < blocks * parts; at++) {
#endif
    const V low = LOAD(extremes + (size_t)at * 2 * BLOCK), high = LOAD(extremes + ((size_t)at * 2 + 1) * BLOCK);
    least = LOWER(least, low);
    most = HIGHER(most, high);
  }
#if PER_CHANNEL
  output fields = range + (size_t)item * BLOCK * BLOCK;
  V scale, zero;
  PARAMETERS(V, least, most, scale, zero, bits, symmetric)
  STORE(fields + SCALE_OF * BLOCK, scale);
  STORE(fields + INVERSE * BLOCK, 1.0f / scale);
  STORE(fields + ZERO * BLOCK, zero);
  STORE(fields + LOW * BLOCK, least);
  STORE(fields + HIGH * BLOCK, most);
#else
  float low, high;
  OVER_LANES(low, least, LOWER(c_, l_))
  OVER_LANES(high, most, HIGHER(c_, l_))
  SET_RANGE(range, low, high, bits, symmetric)
#endif
}

#define TENSOR_WORD (8 + FOUND + STOCHASTIC)  // behind rows, blocks, rows of a work-item and values
KERNEL weight_quantise(INPUT(w), OUTPUT(y), INPUT(range)
#if FOUND
                       , OUTPUT(found)
#endif
#if STOCHASTIC
                       , INPUT_WORDS(uint, scalars)
#endif
                       , JOBS, const float bottom, const float top) {
  FIND_JOB(TENSOR_WORD + 1)
  JOB_INPUT(w, 1)
  JOB_OUTPUT(y, 2)
  JOB_INPUT(range, 3)
  WEIGHT_ROWS(4 + FOUND + STOCHASTIC)
  const V scale = FIELD(range, SCALE_OF, block), inverse = FIELD(range, INVERSE, block), zero = FIELD(range, ZERO, block);
  const V lowest = bottom - zero, highest = top - zero;
#if FOUND
  JOB_OUTPUT(found, 4)
  NOTHING_FOUND
#endif
#if STOCHASTIC
  __global const uint *restrict scalars = scalars_memory + (size_t)job[4 + FOUND] * BLOCK;
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
#endif
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    const V v = LOAD(w + at);
    V t;
#if STOCHASTIC
    UNIFORM(uniform, row * blocks + block, 0, job[TENSOR_WORD], scalars[STEP], seed)
    QUANTISE_STOCHASTIC(t, v, inverse, lowest, highest, uniform)
#else
    QUANTISE_NEAREST(t, v, inverse, lowest, highest)
#endif
    const V result_row = DEQUANTISE(t, scale) + (v - v);
    STORE(y + at, result_row);
#if FOUND
    least = LOWER(least, v);
    most = HIGHER(most, v);
#if TRACED
    signal += v * v;
    noise += (v - result_row) * (v - result_row);
    product += v * result_row;
    result += result_row * result_row;
#endif
#endif
  }
#if FOUND
  IN_LANES(mine)
  if (item == 0) LANE(mine, COUNT) = job[TENSOR_WORD - 1];
  STORE(found + (size_t)item * BLOCK, mine);
#endif
}
