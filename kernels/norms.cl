// Clipping of gradients, as Keras defines it: by the norm of a tensor or of all of them, or value by value.
#include "blocked.h"
#include "group_sum.h"
#include "jobs.h"
#include "scalars.h"
#include "sums_of_squares.h"

// sums[part] = the squares of `count` blocks of x, added up channel by channel
KERNEL square_sums(INPUT(x), OUTPUT(sums), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 5);
  input x = JOB_ITEM_START(x, 1);
  const Part part = part_of(job.item, job.words[3], job.words[4]);
  V sum = (V)0;
  for (int b = part.start; b < part.stop; b++) {
    const V v = load(x + (size_t)b * BLOCK);
    sum += v * v;
  }
  store(JOB_ITEM_START(sums, 2) + (size_t)job.item * BLOCK, sum);
}

// factor[0] = limit / norm where the norm is above the limit, else 1. flags[0] = 1 if the norm isn't finite.
KERNEL clip_factor(INPUT(sums), OUTPUT(factor), OUTPUT(flags), JOBS, const float limit) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 5);
  const float norm = norm_of(JOB_START(sums, 1), job.words[4], 1);
  JOB_START(factor, 2)[0] = norm > limit ? limit / norm : 1.0f;
  JOB_START(flags, 3)[0] = norm - norm == 0.0f ? 0.0f : 1.0f;
}

// g *= factor, unless a gradient of this mini-batch isn't finite
KERNEL clip_by_factor(OUTPUT(g), INPUT(factor), INPUT(counters), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 6);
  output g = JOB_ITEM_START(g, 1);
  const float factor = JOB_START(factor, 2)[0];
  if (JOB_START(counters, 3)[NONFINITE] != 0.0f || factor == 1.0f) return;
  const Part part = part_of(job.item, job.words[4], job.words[5]);
  for (int b = part.start; b < part.stop; b++) store(g + (size_t)b * BLOCK, load(g + (size_t)b * BLOCK) * factor);
}

// g = the value in [-limit, limit] that is nearest to g, unless a gradient of this mini-batch isn't finite
KERNEL clip_values(OUTPUT(g), INPUT(counters), const int blocks, const float limit) {
  output g = ITEM_START(g);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const Part part = part_of(ITEM, blocks, CHUNK);
  for (int b = part.start; b < part.stop; b++) {
    V v = load(g + (size_t)b * BLOCK);
    v = v > (V)limit ? (V)limit : v;
    store(g + (size_t)b * BLOCK, v < (V)-limit ? (V)-limit : v);
  }
}
