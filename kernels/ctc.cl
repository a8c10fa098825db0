// Connectionist temporal classification (Graves et al. 2006), in logarithms. One work-group an example. States are the
// labels with blanks before, between and after them.
#include "logits.h"

#if GRADIENT
#define BACKWARD_ARGUMENTS , OUTPUT(behind) GRADIENT_ARGUMENTS
#else
#define BACKWARD_ARGUMENTS
#endif

INLINE float log_of_sum(const float a, const float b) {
  const float most = a > b ? a : b, least = a > b ? b : a;
  return least == -INFINITY ? most : most + log1p(exp(least - most));
}

INLINE int class_of(const int state, __global const int *labels, const int blank) {
  return state % 2 ? labels[state / 2] : blank;
}

// True if a path may go from state - 2 to state
INLINE bool may_skip(const int state, __global const int *labels) {
  return state % 2 && state > 1 && labels[state / 2] != labels[state / 2 - 1];
}

// losses[example] = -log P(labels); ahead[frame][state] = log P(of all paths to this state). With GRADIENT,
// dx = (p - P(class at this frame | labels)) / batch.
KERNEL ctc(INPUT(log_p), INPUT_OF(int, labels), OUTPUT(losses), OUTPUT(right), OUTPUT(ahead), const int n,
           const int classes, const int frames, const int states, const int blank BACKWARD_ARGUMENTS) {
  input log_p = ITEM_START(log_p);
  const int example = get_group_id(0), me = get_local_id(0), rows = n * frames, first = example * frames;
  const int stride = (states + BLOCK - 1) / BLOCK * BLOCK;
  __global const int *labels = START(labels) + first;
  __global float *ahead = START(ahead) + (size_t)first * stride;
  int count = 0;
  while (2 * count + 1 < states && count < frames && labels[count] >= 0) count++;
  const int own = 2 * count + 1;
  for (int frame = 0; frame < frames; frame++) {
    __global float *before = ahead + (size_t)(frame - 1) * stride;
    for (int s = me; s < own; s += GROUP) {
      float sum = s < 2 ? 0.0f : -INFINITY;
      if (frame > 0) {
        sum = before[s];
        if (s > 0) sum = log_of_sum(sum, before[s - 1]);
        if (may_skip(s, labels)) sum = log_of_sum(sum, before[s - 2]);
      }
      ahead[(size_t)frame * stride + s] = sum + log_p[logit_at(class_of(s, labels, blank), rows, first + frame)];
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
  }
  __global const float *last = ahead + (size_t)(frames - 1) * stride;
  const float total = count > 0 ? log_of_sum(last[own - 1], last[own - 2]) : last[0];
  if (me == 0) {
    START(losses)[example] = -total;
    START(right)[example] = 0.0f;
  }
#if GRADIENT
  // behind: of all paths from a state to the end, for this frame and the one after it. `ahead` becomes the probability
  // of each state given the labels.
  const float weight = START(scalars)[INVERSE_BATCH] * frames;
  __global float *rows_behind = START(behind) + (size_t)example * 2 * stride;
  for (int frame = frames - 1; frame >= 0; frame--) {
    __global float *now = rows_behind + frame % 2 * stride, *after = rows_behind + (frame + 1) % 2 * stride;
    for (int s = me; s < own; s += GROUP) {
      float sum = s >= own - 2 ? 0.0f : -INFINITY;
      if (frame + 1 < frames) {
        sum = -INFINITY;
        for (int to = s; to < own && to <= s + 2; to++)
          if (to < s + 2 || may_skip(to, labels))
            sum = log_of_sum(sum, after[to] + log_p[logit_at(class_of(to, labels, blank), rows, first + frame + 1)]);
      }
      now[s] = sum;
      const size_t at = (size_t)frame * stride + s;
      ahead[at] = exp(ahead[at] + sum - total);
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (int c = me; c < padded(classes); c += GROUP) {
      const size_t at = logit_at(c, rows, first + frame);
      float share = 0.0f;
      for (int s = c == blank ? 0 : 1; s < own; s += 2)
        share += class_of(s, labels, blank) == c ? ahead[(size_t)frame * stride + s] : 0.0f;
      START(dx)[at] = c < classes ? (exp(log_p[at]) - share) * weight : 0.0f;
    }
  }
#endif
}
