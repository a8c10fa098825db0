// Softmax with cross-entropy over logits [classes/16][n][16]; one work-group an example.
#include "blocked.h"
#include "logits.h"
#include "scalars.h"

// p = softmax(x), padding zero
KERNEL softmax(INPUT(x), OUTPUT(p), const int n, const int classes) {
  FROM(x) INTO(p)
  FIND_TOP
  float sum = 0.0f;
  for (MINE(c, classes)) sum += exp(LOGIT(c) - top);
  GROUP_TOTAL(sum)
  for (MINE(c, PADDED))
    p[((size_t)(c / BLOCK) * n + example) * BLOCK + c % BLOCK] = c < classes ? exp(LOGIT(c) - top) / sum : 0.0f;
}

// losses[example] = -sum target log softmax(x), target = (1 - smoothing) one-hot + smoothing / classes;
// right[example] = 1 where the largest logit is the label's; dx = (softmax(x) - target) / mini-batch if GRADIENT.
KERNEL softmax_cross_entropy(LOSS_ARGUMENTS, const float smoothing GRADIENT_ARGUMENTS) {
  LOSS_POINTERS
  FIND_TOP
  const int label = labels[example];
  float sum = 0.0f, mean = 0.0f;
  for (MINE(c, classes)) { sum += exp(LOGIT(c) - top); mean += LOGIT(c) - top; }
  GROUP_TOTAL(sum)
  GROUP_TOTAL(mean)
  if (me == 0) {
    losses[example] = log(sum) - (1.0f - smoothing) * (LOGIT(label) - top) - smoothing * mean / classes;
    right[example] = best == label ? 1.0f : 0.0f;
  }
#if GRADIENT
  const float weight = scalars[INVERSE_BATCH];
  for (MINE(c, PADDED)) {
    const float target = (c == label ? 1.0f - smoothing : 0.0f) + smoothing / classes;
    dx[((size_t)(c / BLOCK) * n + example) * BLOCK + c % BLOCK] =
        c < classes ? (exp(LOGIT(c) - top) / sum - target) * weight : 0.0f;
  }
#endif
}

// counters += this micro-batch's losses, right answers and examples
KERNEL count_examples(INPUT(losses), INPUT(right), OUTPUT(counters), const int n) {
  FROM(losses) FROM(right) INTO(counters)
  __local float shares[GROUP];
  const int me = get_local_id(0);
  float loss = 0.0f, correct = 0.0f;
  for (MINE(i, n)) { loss += losses[i]; correct += right[i]; }
  GROUP_TOTAL(loss)
  GROUP_TOTAL(correct)
  if (me > 0) return;
  counters[LOSS] += loss;
  counters[CORRECT] += correct;
  counters[SEEN] += n;
}
