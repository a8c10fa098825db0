// Quantization: a tensor of INTEGERS is made, or, simulated, one of the float32 values that these would stand for, and
// ranges are measured as it is written. A tensor is taken as it lies in memory: the zeros that pad channels are in every
// range. Sums of a tensor: a record (see quantize.h) for each work-group, then one for the tensor.
#include "integers.h"
#include "rows.h"
#include "jobs.h"
#include "weights.h"

#ifndef INTEGERS
#define INTEGERS 0
#endif

// least and most of a tensor: a record for each work-group
KERNEL statistics(INPUT(x) FOUND_ARGUMENTS, const int rows, const int rest) {
  FROM_WORDS(float, x) FOUND_POINTERS
  EACH_TILE(rows) {
    LOAD_ROW(v, x)
    NOTE(v)
  }
  LEAVE_FOUND
}

// y = what the integers nearest to x stand for, `bottom` and `top` being the least and the most of them; IN_PLACE, x is
// y. m rows of 16 channels, of `images`, are there for random numbers.
#if IN_PLACE
#define SOURCE OUTPUT(y)
#define SOURCE_POINTERS INTO_WORDS(y) __global const float *x = y;
#elif INTEGERS
#define SOURCE INPUT(x), OUTPUT_Q(y)
#define SOURCE_POINTERS FROM_WORDS(float, x) INTO_Q(y)
#else
#define SOURCE INPUT(x), OUTPUT(y)
#define SOURCE_POINTERS FROM_WORDS(float, x) INTO_WORDS(y)
#endif
KERNEL quantize(SOURCE, INPUT(range) FOUND_ARGUMENTS, const int rows, const int rest, const float bottom,
                const float top
#if STOCHASTIC
                , INPUT_WORDS(uint, scalars), INPUT(counters), const int m, const int images, const int blocks,
                const int tensor
#endif
                ) {
  SOURCE_POINTERS FROM_WORDS(float, range) FOUND_POINTERS
  const float zero = range[ZERO];
  const V scale = (V)range[SCALE_OF], inverse = (V)range[INVERSE], lowest = (V)(bottom - zero), highest = (V)(top - zero);
#if STOCHASTIC
  FROM_WORDS(uint, scalars) FROM_WORDS(float, counters)
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
  const int pixels = m / images, before = (int)counters[SEEN];
#endif
  EACH_TILE(rows) {
    LOAD_ROW(v, x)
    V t;
#if STOCHASTIC
    const int row = tile / PIECES, first = (row % m % pixels * blocks + row / m) * BLOCK + tile % PIECES * LANES;
    UNIFORM_FROM(uniform, first, before + row % m / pixels, tensor, scalars[STEP], seed)
    QUANTIZE_STOCHASTIC(t, v, inverse, lowest, highest, uniform)
#else
    QUANTIZE_NEAREST(t, v, inverse, lowest, highest)
#endif
    const V w = DEQUANTIZE(t, scale) + (v - v);  // an infinity becomes a NaN, which is noticed; a limit would not be
#if INTEGERS
    t += zero;
    STORE_ROW_AS(char, STORE_Q, y, t)
#else
    STORE_ROW(y, w)
#endif
    NOTE(v)
    NOTE_CLIPPED(v * inverse, lowest, highest)
    NOTE_BECOMES(v, w)
  }
  LEAVE_FOUND
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
// `parts` records put together by a work-group, whose first item goes on. Every range contains 0, so records begin as zeros.
#define ALL_FOUND(all, found, parts)                                               \
  GROUP_RECORDS                                                                    \
  Record all = (Record)0;                                                          \
  for (int part = get_local_id(0); part < (parts); part += GROUP)                  \
    MERGE(all, LOAD_RECORD(found + (size_t)part * BLOCK))                          \
  OVER_GROUP(all, MERGE)                                                           \
  if (get_local_id(0) > 0) return;
// the range before, fading, and what was found since
#define BLENDED(before, now) ((now) + pace * ((before) - (now)))

// The range of a tensor whose statistics come first; it also knows, with `momentum`, of the mini-batches before.
KERNEL measured_range(INPUT(found), OUTPUT(range), const int parts, const int bits, const int symmetric,
                      const float momentum) {
  FROM_WORDS(float, found) INTO_WORDS(range)
  ALL_FOUND(all, found, parts)
  const float pace = range[UPDATES] > 0.0f ? momentum : 0.0f;
  const float low = BLENDED(range[NEXT_LOW], LANE(all, LEAST_FOUND));
  const float high = BLENDED(range[NEXT_HIGH], LANE(all, MOST_FOUND));
  SET_RANGE(range, low, high, bits, symmetric)
}

// Candidates: the range in use, cut off at 16 distances from 0, the k-th `ratio` times the one before.
#define CANDIDATES                                                                 \
  Record reach, lows, highs;                                                       \
  float distance = HIGHER(-range[LOW], range[HIGH]);                               \
  for (int k = 0; k < BLOCK; k++, distance *= ratio) LANE(reach, k) = distance;    \
  lows = -reach < (Record)range[LOW] ? (Record)range[LOW] : -reach;                          \
  highs = reach > (Record)range[HIGH] ? (Record)range[HIGH] : reach;

// For each candidate: sum of v * w, of w * w, and how many values v lie beyond it; w is what v becomes.
KERNEL try_ranges(INPUT(x), INPUT(range), OUTPUT(tried), const int rows, const int rest, const int bits,
                  const int symmetric, const float bottom, const float top, const float ratio) {
  FROM_WORDS(float, x) FROM_WORDS(float, range) INTO_WORDS(tried)
  CANDIDATES
  Record scale, zero;
  PARAMETERS(Record, lows, highs, scale, zero, bits, symmetric)
  const Record inverse = 1.0f / scale, lowest = bottom - zero, highest = top - zero;
  const float unit = 1.0f / HIGHER(LANE(reach, 0), LEAST_SCALE);  // squares of small gradients would vanish
  Record product = (Record)0, result = (Record)0, beyond = (Record)0;
  EACH_TILE(rows) {
    LOAD_ROW(values, x)
    for (int lane = 0; lane < LANES; lane++) {
      const Record v = (Record)(LANE(values, lane));
      Record t;
      QUANTIZE_NEAREST(t, v, inverse, lowest, highest)
      const Record w = DEQUANTIZE(t, scale) * unit;
      product += v * unit * w;
      result += w * w;
      beyond += ((v < lows) | (v > highs)) ? (Record)1 : (Record)0;
    }
  }
  GROUP_RECORDS
  OVER_GROUP(product, ADD_RECORD)
  OVER_GROUP(result, ADD_RECORD)
  OVER_GROUP(beyond, ADD_RECORD)
  if (get_local_id(0) > 0) return;
  output mine = tried + (size_t)get_group_id(0) * 3 * BLOCK;
  STORE_RECORD(mine, product);
  STORE_RECORD(mine + BLOCK, result);
  STORE_RECORD(mine + 2 * BLOCK, beyond);
}

// The candidate whose values point most nearly where x does (DIRECTION), or the narrowest that leaves no more than
// `most_beyond` values out.
KERNEL choose_range(INPUT(tried), OUTPUT(range), const int parts, const int bits, const int symmetric,
                    const float ratio, const float most_beyond) {
  FROM_WORDS(float, tried) INTO_WORDS(range)
  GROUP_RECORDS
  CANDIDATES
  Record product = (Record)0, result = (Record)0, beyond = (Record)0;
  for (int part = get_local_id(0); part < parts; part += GROUP) {
    product += LOAD_RECORD(tried + (size_t)part * 3 * BLOCK);
    result += LOAD_RECORD(tried + ((size_t)part * 3 + 1) * BLOCK);
    beyond += LOAD_RECORD(tried + ((size_t)part * 3 + 2) * BLOCK);
  }
  OVER_GROUP(product, ADD_RECORD)
  OVER_GROUP(result, ADD_RECORD)
  OVER_GROUP(beyond, ADD_RECORD)
  if (get_local_id(0) > 0) return;
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

// flag = 1 where a tensor held a NaN or an infinity
KERNEL check_found(INPUT(found), OUTPUT(flag), JOBS) {
  FIND_JOB(4)
  JOB_INPUT(found, 1)
  JOB_OUTPUT(flag, 2)
  ALL_FOUND(all, found, job[3])
  flag[0] = LANE(all, CLIPPED) - LANE(all, CLIPPED) == 0.0f ? 0.0f : 1.0f;
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

// Weights: jobs of all layers. Their ranges are what they hold.
KERNEL weight_statistics(INPUT_KERNEL, OUTPUT(extremes), JOBS) {
  FIND_JOB(BEHIND(2) + KERNEL_NUMBERS)
  JOB_OUTPUT(extremes, BEHIND(1))
  JOB_KERNEL(BEHIND(2))
  V least = (V)0, most = (V)0;
  for (int row = start; row < stop; row++) {
    KERNEL_ROW(v, row)
    least = LOWER(least, v);
    most = HIGHER(most, v);
  }
  STORE(extremes + (size_t)item * 2 * BLOCK, least);
  STORE(extremes + ((size_t)item * 2 + 1) * BLOCK, most);
}

#if GROUP > 1
#define EXTREMES_OF_GROUP                                                          \
  __local V shares_[2][GROUP / 2];                                                 \
  const int me = get_local_id(0);                                                  \
  for (int half_ = GROUP / 2; half_ > 0; half_ /= 2) {                             \
    if (me >= half_ && me < 2 * half_) shares_[0][me - half_] = least, shares_[1][me - half_] = most; \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
    if (me < half_) {                                                              \
      least = LOWER(least, shares_[0][me]);                                        \
      most = HIGHER(most, shares_[1][me]);                                         \
    }                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                  \
  }                                                                                \
  if (me > 0) return;
#else
#define EXTREMES_OF_GROUP
#endif

// from `parts` extremes of each of `blocks` blocks; a work-group a block with PER_CHANNEL, else one
KERNEL weight_range(INPUT(extremes), OUTPUT(range), JOBS) {
  FIND_JOB(7)
  JOB_INPUT(extremes, 1)
  JOB_OUTPUT(range, 2)
  const int bits = job[3], symmetric = job[4], blocks = job[5], parts = job[6];
  const int step = PER_CHANNEL ? blocks : 1, first = item / GROUP;
  V least = (V)0, most = (V)0;
  for (int at = first + item % GROUP * step; at < blocks * parts; at += GROUP * step) {
    const V low = LOAD(extremes + (size_t)at * 2 * BLOCK), high = LOAD(extremes + ((size_t)at * 2 + 1) * BLOCK);
    least = LOWER(least, low);
    most = HIGHER(most, high);
  }
  EXTREMES_OF_GROUP
#if PER_CHANNEL
  output fields = range + (size_t)first * BLOCK * BLOCK;
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

#define RANGE_WORD BEHIND(2)
#define SCALARS_WORD (RANGE_WORD + FOUND + 1)
#define NUMBERS_WORD (RANGE_WORD + FOUND + STOCHASTIC + 1)
#define VALUES_WORD (NUMBERS_WORD + KERNEL_NUMBERS)
#define TENSOR_WORD (VALUES_WORD + 1)
#if INTEGERS
#define QUANTIZED_WEIGHTS OUTPUT_Q(y)
#define JOB_WEIGHTS(y, word) __global char *restrict y = y##_memory + (size_t)job[word] * 4 * BLOCK;
#else
#define QUANTIZED_WEIGHTS OUTPUT(y)
#define JOB_WEIGHTS(y, word) JOB_OUTPUT(y, word)
#endif
KERNEL weight_quantize(INPUT_KERNEL, QUANTIZED_WEIGHTS, INPUT(range)
#if FOUND
                       , OUTPUT(found)
#endif
#if STOCHASTIC
                       , INPUT_WORDS(uint, scalars)
#endif
                       , JOBS, const float bottom, const float top) {
  FIND_JOB(TENSOR_WORD + 1)
  JOB_KERNEL(NUMBERS_WORD)
  JOB_WEIGHTS(y, BEHIND(1))
  JOB_INPUT(range, RANGE_WORD)
  const V step = FIELD(range, SCALE_OF, block), inverse = FIELD(range, INVERSE, block), zero = FIELD(range, ZERO, block);
  const V lowest = bottom - zero, highest = top - zero;
#if FOUND
  JOB_OUTPUT(found, RANGE_WORD + 1)
  NOTHING_FOUND
#endif
#if STOCHASTIC
  __global const uint *restrict scalars = scalars_memory + (size_t)job[SCALARS_WORD] * BLOCK;
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
#endif
  for (int row = start; row < stop; row++) {
    KERNEL_ROW(v, row)
    V t;
#if STOCHASTIC
    UNIFORM(uniform, row * blocks + block, 0, job[TENSOR_WORD], scalars[STEP], seed)
    QUANTIZE_STOCHASTIC(t, v, inverse, lowest, highest, uniform)
#else
    QUANTIZE_NEAREST(t, v, inverse, lowest, highest)
#endif
    const V w_ = DEQUANTIZE(t, step) + (v - v);
    const size_t at = ((size_t)block * m + row) * BLOCK;
#if INTEGERS
    STORE_Q(y + at, t + zero);
#else
    STORE(y + at, w_);
#endif
    NOTE(v)
    NOTE_BECOMES(v, w_)
  }
#if FOUND
  IN_LANES(mine)
  if (item == 0) LANE(mine, COUNT) = job[VALUES_WORD];
  STORE_RECORD(found + (size_t)item * BLOCK, mine);
#endif
}
