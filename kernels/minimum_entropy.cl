// Cross-entropy of examples that have a label, entropy of those that haven't; one work-group an example.
#include "blocked.h"
#include "logits.h"
#include "scalars.h"

// With p = softmax(x): losses[example] = -log p[label], or where the label is negative, weight times the entropy
// H = -sum p log p. right[example] = 1 where the largest logit is the label's. If GRADIENT, dx is the gradient of the
// losses' sum / mini-batch: p - one-hot, or -weight p (log p + H).
KERNEL minimum_entropy(LOSS_ARGUMENTS, const float weight GRADIENT_ARGUMENTS) {
  LOSS_POINTERS
  FIND_TOP
  const int label = labels[example];
  float sum = 0.0f, mean = 0.0f;
  for (MINE(c, classes)) sum += exp(LOGIT(c) - top);
  GROUP_TOTAL(sum)
  for (MINE(c, classes)) mean += exp(LOGIT(c) - top) / sum * (LOGIT(c) - top);
  GROUP_TOTAL(mean)
  const float entropy = log(sum) - mean;
  if (me == 0) {
    losses[example] = label < 0 ? weight * entropy : log(sum) - (LOGIT(label) - top);
    right[example] = best == label ? 1.0f : 0.0f;
  }
#if GRADIENT
  for (MINE(c, PADDED)) {
    float slope = 0.0f;
    if (c < classes) {
      const float log_p = LOGIT(c) - top - log(sum), p = exp(LOGIT(c) - top) / sum;
      slope = label < 0 ? -weight * p * (log_p + entropy) : p - (c == label ? 1.0f : 0.0f);
    }
    dx[((size_t)(c / BLOCK) * n + example) * BLOCK + c % BLOCK] = slope * scalars[INVERSE_BATCH];
  }
#endif
}
