// Softmax with cross-entropy over logits [classes/16][n][16]; one work-group a row: an example, or a pixel of one.
#include "logits.h"

#define PIECE 1024  // classes that are summed by themselves: one sum over the 49,152 tokens of a vocabulary is off by 1e-4

// p = softmax(x), with LOGARITHM log softmax(x); padding zero
KERNEL softmax(INPUT(x), OUTPUT(p), const int n, const int classes) {
  __local float shares[GROUP];
  __local int places[GROUP];
  input x = ITEM_START(x);
  output p = ITEM_START(p);
  const int example = get_group_id(0), me = get_local_id(0);
  const float top = find_top(x, n, classes, shares, places).value;
  float sum = 0.0f;
  for (int start = me; start < classes; start += PIECE * GROUP) {
    float part = 0.0f;
    for (int c = start; c < classes && c < start + PIECE * GROUP; c += GROUP)
      part += exp(x[logit_at(c, n, example)] - top);
    sum += part;
  }
  sum = group_total(sum, shares);
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, example);
#if LOGARITHM
    p[at] = c < classes ? x[at] - top - log(sum) : 0.0f;
#else
    p[at] = c < classes ? exp(x[at] - top) / sum : 0.0f;
#endif
  }
}

// losses[example] = -weight sum target log softmax(x), target = (1 - smoothing) one-hot + smoothing / classes;
// right[example] = 1 where the largest logit is the label's; with GRADIENT, dx = (softmax(x) - target) weight / batch.
KERNEL softmax_cross_entropy(LOSS_ARGUMENTS, const float smoothing GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  __local int places[GROUP];
  input x = ITEM_START(x);
  const int example = get_group_id(0), me = get_local_id(0), label = START(labels)[example];
  const float own = WEIGHT_OF(example);
  const Top best = find_top(x, n, classes, shares, places);
  const float top = best.value;
  float sum = 0.0f, mean = 0.0f;
  for (int start = me; start < classes; start += PIECE * GROUP) {
    float part = 0.0f, part_mean = 0.0f;
    for (int c = start; c < classes && c < start + PIECE * GROUP; c += GROUP) {
      const size_t at = logit_at(c, n, example);
      const float logit = x[at] - top, power = exp(logit);
#if GRADIENT
      START(dx)[at] = power;  // which takes the longest
#endif
      part += power;
      part_mean += logit;
    }
    sum += part;
    mean += part_mean;
  }
  sum = group_total(sum, shares);
  mean = group_total(mean, shares);
  if (me == 0) {
    const float logit = x[logit_at(label, n, example)] - top;
    START(losses)[example] = own * (log(sum) - (1.0f - smoothing) * logit - smoothing * mean / classes);
    START(right)[example] = best.place == label ? 1.0f : 0.0f;
  }
#if GRADIENT
  const float weight = START(scalars)[INVERSE_BATCH] * own;
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, example);
    const float target = (c == label ? 1.0f - smoothing : 0.0f) + smoothing / classes;
    START(dx)[at] = c < classes ? (START(dx)[at] / sum - target) * weight : 0.0f;
  }
#endif
}

// counters += this micro-batch's examples and, of each of its rows, `share` of the losses and of the right answers; the
// losses of one of several outputs, which also has a place of its own, count with `weight`
KERNEL count_examples(INPUT(losses), INPUT(right), OUTPUT(counters), const int rows, const int examples,
                      const float share, const float weight, const int place) {
  __local float shares[GROUP];
  input losses = START(losses), right = START(right);
  output counters = START(counters);
  const int me = get_local_id(0);
  float loss = 0.0f, correct = 0.0f;
  for (int i = me; i < rows; i += GROUP) { loss += losses[i]; correct += right[i]; }
  loss = group_total(loss, shares) * share;
  correct = group_total(correct, shares) * share;
  if (me > 0) return;
  counters[LOSS] += loss * weight;
  counters[CORRECT] += correct;
  counters[SEEN] += examples;
  if (place > 0) { counters[place] += loss; counters[place + 1] += correct; }
}
