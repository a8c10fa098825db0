// Softmax with cross-entropy over logits [classes/16][n][16]; one work-item an example.
#include "blocked.h"
#include "scalars.h"

#define LOGIT(c) x[((size_t)((c) / BLOCK) * n + example) * BLOCK + (c) % BLOCK]

// p = softmax(x), padding zero
KERNEL softmax(INPUT(x), OUTPUT(p), const int n, const int classes) {
  FROM(x) INTO(p)
  const int example = get_global_id(0);
  if (example >= n) return;
  float top = LOGIT(0), sum = 0.0f;
  for (int c = 1; c < classes; c++) top = LOGIT(c) > top ? LOGIT(c) : top;
  for (int c = 0; c < classes; c++) sum += exp(LOGIT(c) - top);
  for (int c = 0; c < (classes + BLOCK - 1) / BLOCK * BLOCK; c++)
    p[((size_t)(c / BLOCK) * n + example) * BLOCK + c % BLOCK] = c < classes ? exp(LOGIT(c) - top) / sum : 0.0f;
}

// losses[example] = -sum target log softmax(x), target = (1 - smoothing) one-hot + smoothing / classes;
// right[example] = 1 where the largest logit is the label's; dx = (softmax(x) - target) / mini-batch if GRADIENT.
KERNEL softmax_cross_entropy(INPUT(x), INPUT_WORDS(int, labels), OUTPUT(losses), OUTPUT(right), const int n,
                             const int classes, const float smoothing
#if GRADIENT
                             , INPUT(scalars), OUTPUT(dx)
#endif
) {
  FROM(x) INTO(losses) INTO(right) FROM_WORDS(int, labels)
#if GRADIENT
  FROM(scalars) INTO(dx)
#endif
  const int example = get_global_id(0);
  if (example >= n) return;
  const int label = labels[example];
  float top = LOGIT(0), sum = 0.0f, mean = 0.0f;
  int best = 0;
  for (int c = 1; c < classes; c++) if (LOGIT(c) > top) { top = LOGIT(c); best = c; }
  for (int c = 0; c < classes; c++) { sum += exp(LOGIT(c) - top); mean += LOGIT(c) - top; }
  const float log_sum = log(sum);
  losses[example] = log_sum - (1.0f - smoothing) * (LOGIT(label) - top) - smoothing * mean / classes;
  right[example] = best == label ? 1.0f : 0.0f;
#if GRADIENT
  const float weight = scalars[INVERSE_BATCH];
  for (int c = 0; c < (classes + BLOCK - 1) / BLOCK * BLOCK; c++) {
    const float target = (c == label ? 1.0f - smoothing : 0.0f) + smoothing / classes;
    dx[((size_t)(c / BLOCK) * n + example) * BLOCK + c % BLOCK] =
        c < classes ? (exp(LOGIT(c) - top) / sum - target) * weight : 0.0f;
  }
#endif
}

// counters += this micro-batch's losses, right answers and examples
KERNEL count_examples(INPUT(losses), INPUT(right), OUTPUT(counters), const int n) {
  FROM(losses) FROM(right) INTO(counters)
  if (get_global_id(0) > 0) return;
  float loss = 0.0f, correct = 0.0f;
  for (int i = 0; i < n; i++) { loss += losses[i]; correct += right[i]; }
  counters[LOSS] += loss;
  counters[CORRECT] += correct;
  counters[SEEN] += n;
}
