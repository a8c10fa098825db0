// How a kernel writes its result, whose m rows are pixels of images: as floats, or, QUANTIZED, rounded by a range that
// is known by then, and WRITTEN as integers (INT8) or as the floats that these stand for (FLOAT32). The values written
// are observed (statistics.h).
//
// A backward kernel writes a gradient: MASK and ACCUMULATE are as in gradient.h. MASKED_BY is the format of the
// activation whose derivative is applied; what another consumer has written is floats.
#include "stored.h"
#include "statistics.h"
#include "scalars.h"
#include "activation.h"

#ifndef QUANTIZED
#define QUANTIZED 0
#endif
#ifndef MASK
#define MASK 0
#endif
#ifndef MASKED_BY
#define MASKED_BY FLOAT32
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0
#endif

typedef struct {
  __global Written *restrict values;
  int m;
  float scale, inverse, zero, lowest, highest;  // of the range
  int pixels, blocks, tensor, before;           // for random numbers
  uint step;
  uint2 seed;
} Result;

INLINE Result quantized_result(__global Written *restrict values, const int m, input range, const float bottom,
                               const float top) {
  Result r;
  r.values = values;
  r.m = m;
  r.scale = range[SCALE_OF];
  r.zero = range[ZERO];
  r.inverse = range[INVERSE];
  r.lowest = bottom - r.zero;
  r.highest = top - r.zero;
  return r;
}

// With the counters of random numbers for a tensor whose images have `pixels` rows in each of `blocks`
INLINE Result with_random_numbers(Result r, __global const uint *restrict scalars, input counters, const int pixels,
                                  const int blocks, const int tensor) {
  r.pixels = pixels;
  r.blocks = blocks;
  r.tensor = tensor;
  r.before = (int)counters[SEEN];
  r.step = scalars[STEP];
  r.seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
  return r;
}

#if QUANTIZED && STOCHASTIC
#define RESULT_ARGUMENTS                                                                                         \
  OUTPUT_OF(Written, result), INPUT(result_range), const float bottom, const float top, INPUT_OF(uint, scalars), \
  INPUT(counters), const int pixels, const int blocks, const int tensor STATISTICS_ARGUMENTS
#define RESULT(m)                                                                                      \
  with_random_numbers(quantized_result(ITEM_START(result), m, START(result_range), bottom, top), START(scalars), \
                      START(counters), pixels, blocks, tensor)
#elif QUANTIZED
#define RESULT_ARGUMENTS \
  OUTPUT_OF(Written, result), INPUT(result_range), const float bottom, const float top STATISTICS_ARGUMENTS
#define RESULT(m) quantized_result(ITEM_START(result), m, START(result_range), bottom, top)
#else
#define RESULT_ARGUMENTS OUTPUT(result) STATISTICS_ARGUMENTS
#define RESULT(m) ((Result){ITEM_START(result), m})
#endif

INLINE size_t result_at(const Result r, const int block, const int row) { return ((size_t)block * r.m + row) * BLOCK; }

// Uniform numbers for DRAWN_ROWS rows of a block from `row` on, `step` apart: what stochastic rounding takes
INLINE Uniform draw(const Result r, const int block, const int row, const int step) {
#if QUANTIZED && STOCHASTIC
  const RowNumbers rows = (uint)row + ROW_STEPS * (uint)step;
  const uint pixels = r.pixels, whole = (uint)row / pixels;
  RowNumbers image = (RowNumbers)whole;
  if (DRAWN_ROWS > 1 && row - whole * pixels + (DRAWN_ROWS - 1) * step >= pixels) image = rows / pixels;
  const RowNumbers first = ((rows - image * pixels) * (uint)r.blocks + (uint)block) * BLOCK + FIRST_CHANNEL;
  return uniform_numbers(first, image + (uint)r.before, r.tensor, r.step, r.seed);
#else
  return (Uniform){{(V)0}};
#endif
}

// Writes v, rounded with `uniform` numbers.
INLINE void write_result(const Result r, RangeStatistics *s, const int block, const int row, const V v,
                         const V uniform) {
  __global Written *target = r.values + result_at(r, block, row);
  observe(s, v);
#if QUANTIZED
  const V inverse = (V)r.inverse, lowest = (V)r.lowest, highest = (V)r.highest;
  const V t = quantized(v, inverse, lowest, highest, uniform), w = t * r.scale;
  observe_clipping(s, v * inverse, lowest, highest);
  observe_rounding(s, v, w);
#if WRITTEN == INT8 && !STOCHASTIC
  store_nearest_int8(target, bounded(v * inverse, lowest, highest), r.zero);
#elif WRITTEN == INT8
  store_int8(target, t, (V)r.zero);
#else
  store(target, w + (v - v));  // an infinity becomes a NaN, which is noticed; the end of the range would not be
#endif
#else
  store(target, v);
#endif
}

// The activation whose derivative is applied to a gradient
#if MASK && MASKED_BY == INT8
typedef struct { bytes activation; float scale, zero; } Mask;
#define MASK_ARGUMENTS , INPUT_OF(char, activation), INPUT(activation_range)
#define MASK_START ((Mask){ITEM_START(activation), START(activation_range)[SCALE_OF], START(activation_range)[ZERO]})
#elif MASK
typedef struct { input activation; } Mask;
#define MASK_ARGUMENTS , INPUT(activation)
#define MASK_START ((Mask){ITEM_START(activation)})
#else
typedef struct { int none; } Mask;
#define MASK_ARGUMENTS
#define MASK_START ((Mask){0})
#endif

INLINE void write_result_gradient(const Result r, const Mask mask, RangeStatistics *s, const int block, const int row,
                                  V v, const V uniform) {
  const size_t at = result_at(r, block, row);
#if MASK && MASKED_BY == INT8
  v = through_activation(dequantized(mask.activation + at, (V)mask.scale, (V)mask.zero), v);
#elif MASK
  v = through_activation(load(mask.activation + at), v);
#endif
#if ACCUMULATE
  v += load(r.values + at);
#endif
  write_result(r, s, block, row, v, uniform);
}
