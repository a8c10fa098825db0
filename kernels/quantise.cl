// Quantisation: a tensor of INTEGERS is made, or, simulated, one of the float32 values that these would stand for, and
// ranges are measured as it is written. A tensor is taken as it lies in memory, 16 floats a row, whatever its channels: the zeros that
// pad them are in every range. Sums of a tensor: a record (see quantise.h) for each work-group, then one for the tensor.
#include "integers.h"
#include "jobs.h"

#ifndef INTEGERS
#define INTEGERS 0
#endif

// A row is as many floats as a work-item handles at a time. A tensor of fewer than 16 channels a block may end within
// one, after `rest` of its floats.
#define IS_CUT (rest && tile == rows - 1)
#define LOAD_ROW(v, x)                                                             \
  V v = (V)0;                                                                      \
  if (IS_CUT) { for (int lane = 0; lane < rest; lane++) LANE(v, lane) = (x)[(size_t)tile * LANES + lane]; } \
  else v = LOAD((x) + (size_t)tile * LANES);
#define STORE_ROW(y, v)                                                            \
  if (IS_CUT) { for (int lane = 0; lane < rest; lane++) (y)[(size_t)tile * LANES + lane] = LANE(v, lane); } \
  else STORE((y) + (size_t)tile * LANES, v);

#define STORE_INTEGERS(y, t)                                                       \
  if (IS_CUT) { for (int lane = 0; lane < rest; lane++) (y)[(size_t)tile * LANES + lane] = (char)LANE(t, lane); } \
  else STORE_Q((y) + (size_t)tile * LANES, t);

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
KERNEL quantise(SOURCE, INPUT(range) FOUND_ARGUMENTS, const int rows, const int rest, const float bottom,
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
    const int row = tile / PARTS, first = (row % m % pixels * blocks + row / m) * BLOCK + tile % PARTS * LANES;
    UNIFORM_FROM(uniform, first, before + row % m / pixels, tensor, scalars[STEP], seed)
    QUANTISE_STOCHASTIC(t, v, inverse, lowest, highest, uniform)
#else
    QUANTISE_NEAREST(t, v, inverse, lowest, highest)
#endif
    const V w = DEQUANTISE(t, scale) + (v - v);  // an infinity becomes a NaN, which is noticed; a limit would not be
#if INTEGERS
    t += zero;
    STORE_INTEGERS(y, t)
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
#define ALL_FOUND(all, found, parts)                                               \
  Record all = LOAD_RECORD(found);                                                 \
  for (int part = 1; part < parts; part++) MERGE(all, LOAD_RECORD(found + (size_t)part * BLOCK))
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
      QUANTISE_NEAREST(t, v, inverse, lowest, highest)
      const Record w = DEQUANTISE(t, scale) * unit;
      product += v * unit * w;
      result += w * w;
      beyond += ((v < lows) | (v > highs)) ? (Record)1 : (Record)0;
    }
  }
#if GROUP > 1
  __local Record shares[3][GROUP];
  const int me = get_local_id(0);
  shares[0][me] = product, shares[1][me] = result, shares[2][me] = beyond;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me > 0) return;
  for (int i = 1; i < GROUP; i++) product += shares[0][i], result += shares[1][i], beyond += shares[2][i];
#endif
  output mine = tried + (size_t)get_group_id(0) * 3 * BLOCK;
  STORE_RECORD(mine, product);
  STORE_RECORD(mine + BLOCK, result);
  STORE_RECORD(mine + 2 * BLOCK, beyond);
}

// The candidate whose values point most nearly where x does (DIRECTION), or the narrowest that leaves no more than
// `most_beyond` values out.
KERNEL choose_range(INPUT(tried), OUTPUT(range), const int parts, const int bits, const int symmetric,
                    const float ratio, const float most_beyond) {
  FROM(tried) INTO(range)
  if (get_global_id(0) > 0) return;
  CANDIDATES
  Record product = (Record)0, result = (Record)0, beyond = (Record)0;
  for (int part = 0; part < parts; part++) {
    product += LOAD_RECORD(tried + (size_t)part * 3 * BLOCK);
    result += LOAD_RECORD(tried + ((size_t)part * 3 + 1) * BLOCK);
    beyond += LOAD_RECORD(tried + ((size_t)part * 3 + 2) * BLOCK);
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
#if INTEGERS
#define QUANTISED_WEIGHTS OUTPUT_Q(y)
#define JOB_WEIGHTS(y, word) __global char *restrict y = y##_memory + (size_t)job[word] * 4 * BLOCK;
#else
#define QUANTISED_WEIGHTS OUTPUT(y)
#define JOB_WEIGHTS(y, word) JOB_OUTPUT(y, word)
#endif
KERNEL weight_quantise(INPUT(w), QUANTISED_WEIGHTS, INPUT(range)
#if FOUND
                       , OUTPUT(found)
#endif
#if STOCHASTIC
                       , INPUT_WORDS(uint, scalars)
#endif
                       , JOBS, const float bottom, const float top) {
  FIND_JOB(TENSOR_WORD + 1)
  JOB_INPUT(w, 1)
  JOB_WEIGHTS(y, 2)
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
    const V w_ = DEQUANTISE(t, scale) + (v - v);
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
  if (item == 0) LANE(mine, COUNT) = job[TENSOR_WORD - 1];
  STORE_RECORD(found + (size_t)item * BLOCK, mine);
#endif
}
