// Losses of single values: the mean, over the values of a row, of a function of outputs minus targets.
#include "logits.h"

#include "error_kinds.h"

INLINE float error_of(const float d, const float delta) {
  const float size = d < 0.0f ? -d : d;
#if ERROR == SQUARED
  return d * d;
#elif ERROR == ABSOLUTE
  return size;
#else
  return size <= delta ? 0.5f * d * d : delta * (size - 0.5f * delta);
#endif
}

INLINE float slope_of(const float d, const float delta) {
#if ERROR == SQUARED
  return 2.0f * d;
#elif ERROR == ABSOLUTE
  return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d;
#else
  return d > delta ? delta : d < -delta ? -delta : d;
#endif
}

// losses[row] = weight * mean error; nothing is right or wrong. With GRADIENT, dx is that of the losses' sum / batch.
KERNEL regression(VALUE_LOSS_ARGUMENTS, const float delta GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  input x = ITEM_START(x), targets = ITEM_START(targets);
  const int row = get_group_id(0), me = get_local_id(0);
  const float own = WEIGHT_OF(row) / classes;
  float sum = 0.0f;
  for (int c = me; c < classes; c += GROUP) {
    const size_t at = logit_at(c, n, row);
    sum += error_of(x[at] - targets[at], delta);
  }
  sum = group_total(sum, shares);
  if (me == 0) {
    START(losses)[row] = own * sum;
    START(right)[row] = 0.0f;
  }
#if GRADIENT
  const float weight = START(scalars)[INVERSE_BATCH] * own;
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, row);
    START(dx)[at] = c < classes ? slope_of(x[at] - targets[at], delta) * weight : 0.0f;
  }
#endif
}
