// Sigmoid with cross-entropy of several labels, each on its own: the mean over a row's labels.
#include "logits.h"

typedef struct { float loss, slope; } Part;  // of one label

// The cross-entropy of a logit x and a target y from 0 to 1. With FOCAL, times (1 - p_t)^gamma, where p_t is the
// probability of what is right, and times alpha for what is there, 1 - alpha for what isn't (alpha < 0: times 1).
INLINE Part part_of(const float x, const float y, const float gamma, const float alpha) {
  const float size = x < 0.0f ? -x : x, e = exp(-size), one = 1.0f / (1.0f + e), zero = e / (1.0f + e);
  const float p = x >= 0.0f ? one : zero, not_p = x >= 0.0f ? zero : one;
  Part part = {(x > 0.0f ? x : 0.0f) - x * y + log1p(e), p - y};
#if FOCAL
  const float wrong = y * not_p + (1.0f - y) * p, factor = pow(wrong, gamma);
  const float balance = alpha < 0.0f ? 1.0f : y * alpha + (1.0f - y) * (1.0f - alpha);
  const float bend = wrong > 0.0f ? gamma * pow(wrong, gamma - 1.0f) * (1.0f - 2.0f * y) * p * not_p : 0.0f;
  part.slope = balance * (bend * part.loss + factor * part.slope);
  part.loss *= balance * factor;
#endif
  return part;
}

// losses[row] = weight * mean over the labels; right[row]: the share of labels on the right side of 1/2. With GRADIENT,
// dx is that of the losses' sum / batch.
KERNEL binary_cross_entropy(VALUE_LOSS_ARGUMENTS, const float smoothing, const float gamma,
                            const float alpha GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  input x = ITEM_START(x), targets = ITEM_START(targets);
  const int row = get_group_id(0), me = get_local_id(0);
  const float own = WEIGHT_OF(row) / classes;
  float sum = 0.0f, right_ones = 0.0f;
  for (int c = me; c < classes; c += GROUP) {
    const size_t at = logit_at(c, n, row);
    const float y = targets[at];
    sum += part_of(x[at], y * (1.0f - smoothing) + 0.5f * smoothing, gamma, alpha).loss;
    right_ones += (x[at] > 0.0f) == (y > 0.5f) ? 1.0f : 0.0f;
  }
  sum = group_total(sum, shares);
  right_ones = group_total(right_ones, shares);
  if (me == 0) {
    START(losses)[row] = own * sum;
    START(right)[row] = right_ones / classes;
  }
#if GRADIENT
  const float weight = START(scalars)[INVERSE_BATCH] * own;
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, row);
    const float y = targets[at] * (1.0f - smoothing) + 0.5f * smoothing;
    START(dx)[at] = c < classes ? part_of(x[at], y, gamma, alpha).slope * weight : 0.0f;
  }
#endif
}
