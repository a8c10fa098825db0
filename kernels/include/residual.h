// A sum that a kernel computes as it writes, with the bits of launches of their own: its result is rounded by the range
// that it would be stored with, and a tensor of integers of the same shape is added. RESIDUAL: 0, none; 1, the sum; 2,
// an activation of the sum, SUM_ACTIVATION, once that is rounded by its range.
#ifndef RESIDUAL
#define RESIDUAL 0
#endif

#ifndef SUM_ACTIVATION_A
#define SUM_ACTIVATION_A 0.0f
#endif
#ifndef SUM_ACTIVATION_B
#define SUM_ACTIVATION_B 0.0f
#endif

#if RESIDUAL
typedef struct { V scale, inverse, lowest, highest; } Rounding;
INLINE Rounding rounding_by(input range, const float bottom, const float top) {
  return (Rounding){(V)range[SCALE_OF], (V)range[INVERSE], (V)(bottom - range[ZERO]), (V)(top - range[ZERO])};
}
INLINE V rounded(const Rounding by, const V v) {
  return nearest(bounded(v * by.inverse, by.lowest, by.highest)) * by.scale;
}
#endif

#if RESIDUAL == 2
typedef struct { Rounding own, sum; bytes other; V other_scale, other_zero; } Residual;
#define SUM_ARGUMENTS , INPUT(sum_range), const float sum_bottom, const float sum_top
#define SUM_ROUNDING rounding_by(START(sum_range), sum_bottom, sum_top)
#elif RESIDUAL
typedef struct { Rounding own; int none; bytes other; V other_scale, other_zero; } Residual;
#define SUM_ARGUMENTS
#define SUM_ROUNDING 0
#endif

#if RESIDUAL
#define RESIDUAL_ARGUMENTS \
  , INPUT(own_range), const float own_bottom, const float own_top, INPUT_QUANTIZED(other) SUM_ARGUMENTS
#define RESIDUAL_START                                                                                       \
  ((Residual){rounding_by(START(own_range), own_bottom, own_top), SUM_ROUNDING, START(other), \
              (V)(START(other_range)[SCALE_OF]), (V)(START(other_range)[ZERO])})
#else
typedef struct { int none; } Residual;
#define RESIDUAL_ARGUMENTS
#define RESIDUAL_START ((Residual){0})
#endif

// The sum at `at` of a result v and the other tensor, as an activation of it takes it
INLINE V residual_sum(const Residual r, const V v, const size_t at) {
#if RESIDUAL
  const V sum = rounded(r.own, v) + dequantized(r.other + at, r.other_scale, r.other_zero);
#endif
#if RESIDUAL == 2
  return rounded(r.sum, sum);
#elif RESIDUAL
  return sum;
#else
  return v;
#endif
}
