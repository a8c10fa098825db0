/* The kernels of target c for updates that most trainings don't need: RMSprop, Lion, LAMB, moving averages, a proximal term,
   clipped gradients. Nothing changes where a gradient is not finite. SGD and Adam are in floats.c. See kernels.h. */
#include <math.h>

#include "blocks.h"

static int is_first_step(const float *scalars) { return ((const uint32_t *)(const void *)scalars)[STEP] == 1; }

/* w, g, scalars, counters, blocks, decay, [pieces], [extremes], number of pieces, velocity, [momentum], [average], 1 - rho,
   epsilon, inertia */
void el_rmsprop(const el_value *v) {
  const float rate = v[2].p[LEARNING_RATE], kept = 1.0f - rate * v[5].f;
  float *velocity = v[9].p, *momentum = v[10].p, *average = v[11].p;
  size_t i;
  if (v[3].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[4].i * B; i++) {
    const float g = v[1].p[i];
    float deviation, step;
    velocity[i] += (g * g - velocity[i]) * v[12].f;
    deviation = velocity[i];
    if (average) {
      average[i] += (g - average[i]) * v[12].f;
      deviation -= average[i] * average[i];
    }
    step = g * rate / sqrtf(deviation + v[13].f);
    if (momentum) momentum[i] = step = step + momentum[i] * v[14].f;
    v[0].p[i] = v[0].p[i] * kept - step;
  }
  el_leave_extremes(v[0].p, v + 6);
}

/* w, g, scalars, counters, blocks, decay, [pieces], [extremes], number of pieces, momentum, 1 - beta 1, 1 - beta 2 */
void el_lion(const el_value *v) {
  const float rate = v[2].p[LEARNING_RATE], kept = 1.0f - rate * v[5].f;
  float *momentum = v[9].p;
  size_t i;
  if (v[3].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[4].i * B; i++) {
    const float apart = v[1].p[i] - momentum[i], mixed = momentum[i] + apart * v[10].f;
    v[0].p[i] = v[0].p[i] * kept - (mixed > 0 ? rate : mixed < 0 ? -rate : 0.0f);
    momentum[i] += apart * v[11].f;
  }
  el_leave_extremes(v[0].p, v + 6);
}

/* average, w, scalars, counters, blocks, pace */
void el_moving_average(const el_value *v) {
  size_t i;
  if (v[3].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[4].i * B; i++) {
    float *average = v[0].p + i;
    *average = is_first_step(v[2].p) ? v[1].p[i] : *average + (v[1].p[i] - *average) * v[5].f;
  }
}

/* g, reference, w, scalars, counters, blocks, pull; the first step sets the reference */
void el_proximal(const el_value *v) {
  size_t i;
  if (v[4].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[5].i * B; i++)
    if (is_first_step(v[3].p)) v[1].p[i] = v[2].p[i];
    else v[0].p[i] += (v[2].p[i] - v[1].p[i]) * v[6].f;
}

/* -- norms: parts of some blocks leave a row of sums each -- */

/* The first and the last float of part number `part`, of `count` blocks of `blocks` */
static size_t start_of(int part, int count) { return (size_t)part * count * B; }
static size_t stop_of(int part, int blocks, int count) { return (size_t)smaller((part + 1) * count, blocks) * B; }

/* The root of the sum over `parts` rows of 16, `stride` rows from one to the next */
static float norm_of(const float *sums, int parts, int stride) {
  float lanes[B] = {0}, sum = 0;
  int part, c;
  for (part = 0; part < parts; part++) EACH(c) lanes[c] += sums[(size_t)part * stride * B + c];
  EACH(c) sum += lanes[c];
  return sqrtf(sum);
}

static const int32_t *job_of(const el_value table, int number, int words) {
  return (const int32_t *)(const void *)table.p + number * words;
}

/* x, sums, table, jobs, items */
void el_square_sums(const el_value *v) {
  enum { WORDS = 5 };
  int number, part;
  for (number = 0; number < v[3].i; number++) {
    const int32_t *job = job_of(v[2], number, WORDS);
    const float *x = at_word(v[0], job[1]);
    for (part = 0; part < items_of(job, number, v[3].i, WORDS, v[4].i); part++) {
      float *sums = at_word(v[1], job[2]) + part * B;
      size_t i;
      memset(sums, 0, B * sizeof *sums);
      for (i = start_of(part, job[4]); i < stop_of(part, job[3], job[4]); i++) sums[i % B] += x[i] * x[i];
    }
  }
}

/* sums, factor, flags, table, jobs, limit */
void el_clip_factor(const el_value *v) {
  int number;
  for (number = 0; number < v[4].i; number++) {
    const int32_t *job = job_of(v[3], number, 5);
    const float norm = norm_of(at_word(v[0], job[1]), job[4], 1);
    *at_word(v[1], job[2]) = norm > v[5].f ? v[5].f / norm : 1.0f;
    set_flag(at_word(v[2], job[3]), 0, norm - norm == 0.0f);
  }
}

/* g, factor, counters, table, jobs, items */
void el_clip_by_factor(const el_value *v) {
  enum { WORDS = 6 };
  int number, part;
  for (number = 0; number < v[4].i; number++) {
    const int32_t *job = job_of(v[3], number, WORDS);
    const float factor = *at_word(v[1], job[2]);
    if (at_word(v[2], job[3])[NONFINITE] != 0.0f || factor == 1.0f) continue;
    for (part = 0; part < items_of(job, number, v[4].i, WORDS, v[5].i); part++) {
      size_t i;
      for (i = start_of(part, job[5]); i < stop_of(part, job[4], job[5]); i++) at_word(v[0], job[1])[i] *= factor;
    }
  }
}

/* g, counters, blocks, limit */
void el_clip_values(const el_value *v) {
  const float limit = v[3].f;
  size_t i;
  if (v[1].p[NONFINITE] != 0.0f) return;
  for (i = 0; i < (size_t)v[2].i * B; i++) v[0].p[i] = v[0].p[i] > limit ? limit : v[0].p[i] < -limit ? -limit : v[0].p[i];
}

/* -- LAMB, in three steps -- */

/* Adam's step without the rate, both moments corrected */
static float direction(float first, float second, const float *scalars, float epsilon) {
  return first * scalars[CORRECTION] / (sqrtf(second) * scalars[SECOND_CORRECTION] + epsilon);
}

/* first, second, w, g, scalars, counters, sums, table, jobs, items, 1 - beta 1, 1 - beta 2, epsilon, decay: moments, and two
   rows of sums a part, the squares of weights and of directions */
void el_lamb_moments(const el_value *v) {
  enum { WORDS = 10 };
  int number, part;
  for (number = 0; number < v[8].i; number++) {
    const int32_t *job = job_of(v[7], number, WORDS);
    float *first = at_word(v[0], job[1]), *second = at_word(v[1], job[2]);
    const float *w = at_word(v[2], job[3]), *g = at_word(v[3], job[4]), *scalars = at_word(v[4], job[5]);
    const float kept = 1.0f - scalars[LEARNING_RATE] * v[13].f;
    if (at_word(v[5], job[6])[NONFINITE] != 0.0f) continue;
    for (part = 0; part < items_of(job, number, v[8].i, WORDS, v[9].i); part++) {
      float *sums = at_word(v[6], job[7]) + part * 2 * B;
      size_t i;
      memset(sums, 0, 2 * B * sizeof *sums);
      for (i = start_of(part, job[9]); i < stop_of(part, job[8], job[9]); i++) {
        float d;
        first[i] += (g[i] - first[i]) * v[10].f;
        second[i] += (g[i] * g[i] - second[i]) * v[11].f;
        d = direction(first[i], second[i], scalars, v[12].f);
        sums[i % B] += w[i] * kept * (w[i] * kept);
        sums[B + i % B] += d * d;
      }
    }
  }
}

/* sums, ratio, table, jobs */
void el_lamb_ratio(const el_value *v) {
  int number;
  for (number = 0; number < v[3].i; number++) {
    const int32_t *job = job_of(v[2], number, 4);
    const float *sums = at_word(v[0], job[1]), weights = norm_of(sums, job[3], 2), directions = norm_of(sums + B, job[3], 2);
    *at_word(v[1], job[2]) = weights > 0 && directions > 0 ? weights / directions : 1.0f;
  }
}

/* first, second, w, ratio, scalars, counters, table, jobs, items, epsilon, decay */
void el_lamb_step(const el_value *v) {
  enum { WORDS = 9 };
  int number, part;
  for (number = 0; number < v[7].i; number++) {
    const int32_t *job = job_of(v[6], number, WORDS);
    const float *first = at_word(v[0], job[1]), *second = at_word(v[1], job[2]), *scalars = at_word(v[4], job[5]);
    const float rate = scalars[LEARNING_RATE], step = rate * *at_word(v[3], job[4]);
    float *w = at_word(v[2], job[3]);
    if (at_word(v[5], job[6])[NONFINITE] != 0.0f) continue;
    for (part = 0; part < items_of(job, number, v[7].i, WORDS, v[8].i); part++) {
      size_t i;
      for (i = start_of(part, job[8]); i < stop_of(part, job[7], job[8]); i++)
        w[i] = w[i] * (1.0f - rate * v[10].f) - direction(first[i], second[i], scalars, v[9].f) * step;
    }
  }
}
