// LAMB (You et al. 2020), as Keras defines it, in three steps: moments and sums of squares, the trust ratio of each
// tensor, the update. pace1 and pace2 are 1 - beta1 and 1 - beta2. Nothing changes while counters[NONFINITE] says that a
// gradient holds a NaN or an infinity.
#include "blocked.h"
#include "group_sum.h"
#include "jobs.h"
#include "scalars.h"
#include "sums_of_squares.h"

// Adam's step without the rate, both moments corrected
INLINE V direction(const V first, const V second, input scalars, const float epsilon) {
  return first * scalars[CORRECTION] / (sqrt(second) * scalars[SECOND_CORRECTION] + epsilon);
}

// Moments; sums[2 part] and sums[2 part + 1] = the squares of weights and directions, added up channel by channel
KERNEL lamb_moments(OUTPUT(first), OUTPUT(second), INPUT(w), INPUT(g), INPUT(scalars), INPUT(counters), OUTPUT(sums),
                    JOBS, const float pace1, const float pace2, const float epsilon, const float decay) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 10);
  output first = JOB_ITEM_START(first, 1), second = JOB_ITEM_START(second, 2);
  input w = JOB_ITEM_START(w, 3), g = JOB_ITEM_START(g, 4), scalars = JOB_START(scalars, 5);
  if (JOB_START(counters, 6)[NONFINITE] != 0.0f) return;
  const float kept = 1.0f - scalars[LEARNING_RATE] * decay;
  const Part part = part_of(job.item, job.words[8], job.words[9]);
  V weights = (V)0, directions = (V)0;
  for (int b = part.start; b < part.stop; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V gradient = load(g + at), weight = load(w + at) * kept;
    V m = load(first + at), v = load(second + at);
    m += (gradient - m) * pace1;
    v += (gradient * gradient - v) * pace2;
    store(first + at, m);
    store(second + at, v);
    const V d = direction(m, v, scalars, epsilon);
    weights += weight * weight;
    directions += d * d;
  }
  output sums = JOB_ITEM_START(sums, 7) + (size_t)job.item * 2 * BLOCK;
  store(sums, weights);
  store(sums + BLOCK, directions);
}

// ratio[0] = norm of the weights / norm of the directions, or 1 where one of them is 0
KERNEL lamb_ratio(INPUT(sums), OUTPUT(ratio), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 4);
  input sums = JOB_START(sums, 1);
  const float weights = norm_of(sums, job.words[3], 2), directions = norm_of(sums + BLOCK, job.words[3], 2);
  JOB_START(ratio, 2)[0] = weights > 0.0f && directions > 0.0f ? weights / directions : 1.0f;
}

// w -= rate * ratio * direction
KERNEL lamb_step(INPUT(first), INPUT(second), OUTPUT(w), INPUT(ratio), INPUT(scalars), INPUT(counters), JOBS,
                 const float epsilon, const float decay) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 9);
  input first = JOB_ITEM_START(first, 1), second = JOB_ITEM_START(second, 2), scalars = JOB_START(scalars, 5);
  output w = JOB_ITEM_START(w, 3);
  if (JOB_START(counters, 6)[NONFINITE] != 0.0f) return;
  const float rate = scalars[LEARNING_RATE], step = rate * JOB_START(ratio, 4)[0];
  const Part part = part_of(job.item, job.words[7], job.words[8]);
  for (int b = part.start; b < part.stop; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V d = direction(load(first + at), load(second + at), scalars, epsilon);
    store(w + at, load(w + at) * (1.0f - rate * decay) - d * step);
  }
}
