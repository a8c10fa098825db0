// Losses of the cosine between a row's outputs and its target: how far it is below a margin.
#include "logits.h"

#define SMALLEST 1e-12f  // added to squared lengths

// losses[row] = weight * max(0, margin - cos(x, target)), or its square; nothing is right or wrong. With GRADIENT, dx is
// that of the losses' sum / batch.
KERNEL cosine_hinge(VALUE_LOSS_ARGUMENTS, const float margin GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  input x = ITEM_START(x), targets = ITEM_START(targets);
  const int row = get_group_id(0), me = get_local_id(0);
  float xx = 0.0f, tt = 0.0f, xt = 0.0f;
  for (int c = me; c < classes; c += GROUP) {
    const size_t at = logit_at(c, n, row);
    const float a = x[at], b = targets[at];
    xx += a * a;
    tt += b * b;
    xt += a * b;
  }
  xx = group_total(xx, shares) + SMALLEST;
  tt = group_total(tt, shares) + SMALLEST;
  xt = group_total(xt, shares);
  const float inverse = 1.0f / (sqrt(xx) * sqrt(tt)), gap = margin - xt * inverse, own = WEIGHT_OF(row);
  const float missing = gap < 0.0f ? 0.0f : gap;  // NaN stays NaN
  if (me == 0) {
#if SQUARED
    START(losses)[row] = own * missing * missing;
#else
    START(losses)[row] = own * missing;
#endif
    START(right)[row] = 0.0f;
  }
#if GRADIENT
#if SQUARED
  const float slope = -2.0f * missing;
#else
  const float slope = gap <= 0.0f ? 0.0f : -1.0f;
#endif
  const float factor = START(scalars)[INVERSE_BATCH] * own * slope * inverse, along = xt / xx;
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, row);
    START(dx)[at] = c < classes ? (targets[at] - along * x[at]) * factor : 0.0f;
  }
#endif
}
