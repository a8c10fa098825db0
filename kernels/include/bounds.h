// Activations that only keep values within bounds, such as ReLU, of a result that is written as integers and that
// nothing observes: the rounding keeps its integers within tighter bounds instead. A positive factor leaves values in
// order, so bits are the same. The last activation before the result is meant (residual.h).
#include "epilogue.h"
#include "residual.h"

#if RESIDUAL == 2
#define LAST_ACTIVATION SUM_ACTIVATION
#define LAST_A SUM_ACTIVATION_A
#define LAST_B SUM_ACTIVATION_B
#elif RESIDUAL
#define LAST_ACTIVATION linear_
#else
#define LAST_ACTIVATION ACTIVATION
#define LAST_A ACTIVATION_A
#define LAST_B ACTIVATION_B
#endif

#define BOUNDS_OF_relu_ 1
#define BOUNDS_OF_relu6_ 2
#define BOUNDS_OF_clip_ 3
#if QUANTIZED && WRITTEN == INT8 && !STOCHASTIC && !STATISTICS
#define BOUNDS JOIN(BOUNDS_OF_, LAST_ACTIVATION)
#else
#define BOUNDS 0
#endif

// The result, whose rounding does what the last activation would
INLINE Result within_bounds(Result r) {
#if BOUNDS == 3
  const float least = LAST_A * r.inverse, most = LAST_B * r.inverse;
#elif BOUNDS == 2
  const float least = 0.0f, most = 6.0f * r.inverse;
#elif BOUNDS
  const float least = 0.0f, most = r.highest;
#endif
#if BOUNDS
  r.highest = most < r.lowest ? r.lowest : most < r.highest ? most : r.highest;
  r.lowest = least > r.lowest ? least : r.lowest;
#endif
  return r;
}

// The value to write at `at`, from sums times their step
INLINE V ended(const Affine affine, const Residual residual, const V v, const size_t at) {
#if RESIDUAL
  const V sum = residual_sum(residual, apply(affine, v), at);
#endif
#if RESIDUAL == 2 && !BOUNDS
  return JOIN(SUM_ACTIVATION, forward)(sum, SUM_ACTIVATION_A, SUM_ACTIVATION_B);
#elif RESIDUAL
  return sum;
#elif BOUNDS
  return scaled(affine, v);
#else
  return apply(affine, v);
#endif
}
