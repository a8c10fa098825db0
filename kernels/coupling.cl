// Additive couplings of streams whose values are multiples of `step`, a power of two: sums of those are exact.
#pragma OPENCL FP_CONTRACT OFF
#include "elementwise.h"

#ifndef EXACT
#define EXACT 1
#endif

#if EXACT
#define STEP_ARGUMENTS , const float step, const float inverse
#define STEP ((float2)(step, inverse))
#else
#define STEP_ARGUMENTS
#define STEP ((float2)(1.0f))
#endif

// From 2^23 on a float has no fraction: adding and subtracting it rounds smaller values to the nearest whole number,
// ties to even.
#define WHOLE 8388608.0f

// The multiple of step.x nearest to v; step.y is its inverse.
INLINE V rounded(const V v, const float2 step) {
#if EXACT
  const V t = v * step.y;
  const V nearest = t < (V)0 ? (t - WHOLE) + WHOLE : (t + WHOLE) - WHOLE;
  return (((t <= (V)(-WHOLE)) | (t >= (V)WHOLE)) ? t : nearest) * step.x;
#else
  return v;
#endif
}

// y = x, rounded: the begin of a stream
KERNEL begin(INPUT(x), OUTPUT(y), ROWS_ARGUMENTS STEP_ARGUMENTS) {
  input x = ITEM_START(x);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, rounded(load(x + at), STEP));
  }
}

// y = x + f
KERNEL couple(INPUT(x), INPUT(f), OUTPUT(y), ROWS_ARGUMENTS STEP_ARGUMENTS) {
  input x = ITEM_START(x), f = ITEM_START(f);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, load(x + at) + rounded(load(f + at), STEP));
  }
}

// x = y - f
KERNEL uncouple(INPUT(y), INPUT(f), OUTPUT(x), ROWS_ARGUMENTS STEP_ARGUMENTS) {
  input y = ITEM_START(y), f = ITEM_START(f);
  output x = ITEM_START(x);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    store(x + at, load(y + at) - rounded(load(f + at), STEP));
  }
}
