// Softmax with cross-entropy of probabilities as targets: one-hot or soft.
#include "logits.h"

typedef struct { float loss, slope; } Part;  // of one class: its share of the loss, and that share's slope to log p

// -y log p. With FOCAL, times alpha (1 - p)^gamma.
INLINE Part part_of(const float y, const float log_p, const float gamma, const float alpha) {
#if FOCAL
  const float p = exp(log_p), rest = p < 1.0f ? 1.0f - p : 0.0f, factor = pow(rest, gamma);
  const float bend = rest > 0.0f ? gamma * pow(rest, gamma - 1.0f) * p * log_p : 0.0f;
  return (Part){-alpha * y * factor * log_p, alpha * y * (bend - factor)};
#else
  return (Part){-y * log_p, -y};
#endif
}

// losses[row] = weight * sum over the classes; right[row] = 1 where the largest logit is the largest target's. With
// GRADIENT, dx is that of the losses' sum / batch: slope - p * sum of slopes.
KERNEL categorical_cross_entropy(VALUE_LOSS_ARGUMENTS, const float smoothing, const float gamma,
                                 const float alpha GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  __local int places[GROUP];
  input x = ITEM_START(x), targets = ITEM_START(targets);
  const int row = get_group_id(0), me = get_local_id(0);
  const Top best = find_top(x, n, classes, shares, places), wanted = find_top(targets, n, classes, shares, places);
  const float top = best.value, own = WEIGHT_OF(row), even = smoothing / classes;
  float sum = 0.0f, loss = 0.0f, slopes = 0.0f;
  for (int c = me; c < classes; c += GROUP) sum += exp(x[logit_at(c, n, row)] - top);
  const float log_sum = log(group_total(sum, shares));
  for (int c = me; c < classes; c += GROUP) {
    const size_t at = logit_at(c, n, row);
    const Part part = part_of(targets[at] * (1.0f - smoothing) + even, x[at] - top - log_sum, gamma, alpha);
    loss += part.loss;
    slopes += part.slope;
  }
  loss = group_total(loss, shares);
  slopes = group_total(slopes, shares);
  if (me == 0) {
    START(losses)[row] = own * loss;
    START(right)[row] = best.place == wanted.place ? 1.0f : 0.0f;
  }
#if GRADIENT
  const float weight = START(scalars)[INVERSE_BATCH] * own;
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, row);
    const float log_p = x[at] - top - log_sum;
    const float slope = part_of(targets[at] * (1.0f - smoothing) + even, log_p, gamma, alpha).slope;
    START(dx)[at] = c < classes ? (slope - exp(log_p) * slopes) * weight : 0.0f;
  }
#endif
}
