// Softmax with cross-entropy over logits [classes/16][n][16]; one work-group a row: an example, or a pixel of one.
#include "logits.h"
#include "exponential.h"
#include "finite.h"

#ifndef LOGARITHM
#define LOGARITHM 0
#endif
#define PIECE 1024  // classes that are summed by themselves: one sum over the 49,152 tokens of a vocabulary is off by 1e-4

typedef struct { float powers, logits; } Sums;

// This work-item's sums over classes of logits less `top`, and of their exponentials. These take the longest: `kept` gets
// them unless it is 0.
INLINE Sums sums_of(input x, const float top, __global float *kept, const int n, const int classes, const int example) {
#if GROUP == 1
  V powers = (V)0, logits = (V)0;
  for (int start = 0; start < classes; start += PIECE) {
    V part = (V)0, part_logits = (V)0;
    for (int c = start; c < classes && c < start + PIECE; c += BLOCK) {
      const size_t at = logit_at(c, n, example);
      const Ints inside = c + POSITIONS < (Ints)classes;
      const V logit = inside ? load(x + at) - top : (V)0, power = inside ? exponential(logit) : (V)0;
      if (kept) store(kept + at, power);
      part += power;
      part_logits += logit;
    }
    powers += part;
    logits += part_logits;
  }
  return (Sums){sum_of_elements(powers), sum_of_elements(logits)};
#else
  Sums sums = {0.0f, 0.0f};
  for (int start = get_local_id(0); start < classes; start += PIECE * GROUP) {
    float part = 0.0f, part_logits = 0.0f;
    for (int c = start; c < classes && c < start + PIECE * GROUP; c += GROUP) {
      const size_t at = logit_at(c, n, example);
      const float logit = x[at] - top, power = exp(logit);
      if (kept) kept[at] = power;
      part += power;
      part_logits += logit;
    }
    sums.powers += part;
    sums.logits += part_logits;
  }
  return sums;
#endif
}

// p = softmax(x), with LOGARITHM log softmax(x); padding zero
KERNEL softmax(INPUT(x), OUTPUT(p), const int n, const int classes) {
  __local float shares[GROUP];
  __local int places[GROUP];
  input x = ITEM_START(x);
  output p = ITEM_START(p);
  const int example = get_group_id(0), me = get_local_id(0);
  const float top = find_top(x, n, classes, shares, places).value;
  const float sum = group_total(sums_of(x, top, LOGARITHM ? 0 : START(p), n, classes, example).powers, shares);
  for (int c = me; c < padded(classes); c += GROUP) {
    const size_t at = logit_at(c, n, example);
#if LOGARITHM
    p[at] = c < classes ? x[at] - top - log(sum) : 0.0f;
#else
    p[at] = c < classes ? p[at] / sum : 0.0f;
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
#if GRADIENT
  const Sums sums = sums_of(x, top, START(dx), n, classes, example);
#else
  const Sums sums = sums_of(x, top, 0, n, classes, example);
#endif
  const float sum = group_total(sums.powers, shares), mean = group_total(sums.logits, shares);
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
