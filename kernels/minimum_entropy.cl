// Cross-entropy of examples that have a label, entropy of those that have none; one work-group an example.
#include "logits.h"

// With p = softmax(x): losses[example] = -log p[label], or where the label is negative, weight times the entropy
// H = -sum p log p. right[example] = 1 where the largest logit is the label's. With GRADIENT, dx is the gradient of the
// losses' sum / mini-batch: p - one-hot, or -weight p (log p + H).
KERNEL minimum_entropy(LOSS_ARGUMENTS, const float weight GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  __local int places[GROUP];
  input x = ITEM_START(x);
  const int example = get_group_id(0), me = get_local_id(0), label = START(labels)[example];
  const Top best = find_top(x, n, classes, shares, places);
  const float top = best.value;
  float sum = 0.0f, mean = 0.0f;
  for (int c = me; c < classes; c += GROUP) sum += exp(x[logit_at(c, n, example)] - top);
  sum = group_total(sum, shares);
  for (int c = me; c < classes; c += GROUP) {
    const float logit = x[logit_at(c, n, example)] - top;
    mean += exp(logit) / sum * logit;
  }
  mean = group_total(mean, shares);
  const float entropy = log(sum) - mean;
  if (me == 0) {
    START(losses)[example] = label < 0 ? weight * entropy : log(sum) - (x[logit_at(label, n, example)] - top);
    START(right)[example] = best.place == label ? 1.0f : 0.0f;
  }
#if GRADIENT
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, example);
    float slope = 0.0f;
    if (c < classes) {
      const float log_p = x[at] - top - log(sum), p = exp(x[at] - top) / sum;
      slope = label < 0 ? -weight * p * (log_p + entropy) : p - (c == label ? 1.0f : 0.0f);
    }
    START(dx)[at] = slope * START(scalars)[INVERSE_BATCH];
  }
#endif
}
