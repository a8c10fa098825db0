// The end of a mini-batch: gradients completed, and checked for NaN and infinity. Jobs of all layers share a launch.
#include "blocked.h"
#include "jobs.h"
#include "scalars.h"

#ifndef PARTIALS
#define PARTIALS 0
#endif
#ifndef SCALE
#define SCALE 0
#endif
#ifndef GAMMA
#define GAMMA 0
#endif

// flags[item] = 1 where `rest`, a sum of v - v over what was written, is not 0: then some v is a NaN or an infinity
#define FLAG(rest)                                                                \
  {                                                                               \
    const float8 half_ = (rest).lo + (rest).hi;                                   \
    const float4 quarter_ = half_.lo + half_.hi;                                  \
    flags[item] = quarter_.x + quarter_.y + quarter_.z + quarter_.w == 0.0f ? 0.0f : 1.0f; \
  }

// total = the sum of `groups` PARTIALS, or what is there already; times SCALE. With GAMMA also
// sums[part] = sum of w * total over the part's `count` rows, from which finish_gamma has dgamma:
//
// under kept statistics the convolution before has left total = x^T dz and dbeta = sum dz, with dz the gradient after
// scale and shift. Since y = x w + bias,
//   dgamma = sum dz (y - mean) / deviation = (sum_k w total + (bias - mean) dbeta) / deviation,
// so neither y nor a second pass over the activations is needed. Then dw = total * scale, dbias = dbeta * scale.
#define SCALE_WORD (3 + PARTIALS)
#define NUMBERS (SCALE_WORD + SCALE + 2 * GAMMA)
KERNEL finish_sum(OUTPUT(total), OUTPUT(flags)
#if PARTIALS
                  , INPUT(partials)
#endif
#if SCALE
                  , INPUT(scale)
#endif
#if GAMMA
                  , INPUT(w), OUTPUT(sums)
#endif
                  , JOBS) {
  FIND_JOB(NUMBERS + 4)
  JOB_OUTPUT(total, 1)
  JOB_OUTPUT(flags, 2)
  const int m = job[NUMBERS], blocks = job[NUMBERS + 1], count = job[NUMBERS + 2], groups = job[NUMBERS + 3];
  const int block = item % blocks, start = item / blocks * count, stop = start + count < m ? start + count : m;
#if PARTIALS
  JOB_INPUT(partials, 3)
#endif
#if SCALE
  JOB_INPUT(scale, SCALE_WORD)
  const V s = LOAD(scale + block * BLOCK);
#endif
#if GAMMA
  JOB_INPUT(w, SCALE_WORD + 1)
  JOB_OUTPUT(sums, SCALE_WORD + 2)
  V product = (V)0;
#endif
  V rest = (V)0;
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
#if PARTIALS
    V v = LOAD(partials + at);
    for (int g = 1; g < groups; g++) v += LOAD(partials + (size_t)g * blocks * m * BLOCK + at);
#else
    V v = LOAD(total + at);
#endif
#if GAMMA
    product += LOAD(w + at) * v;
#endif
#if SCALE
    v *= s;
#endif
#if PARTIALS || SCALE
    STORE(total + at, v);
#endif
    rest += v - v;
  }
#if GAMMA
  STORE(sums + (size_t)item * BLOCK, product);
#endif
  FLAG(rest)
}

// dgamma from the `parts` sums of w * total that finish_sum left
KERNEL finish_gamma(OUTPUT(dgamma), OUTPUT(flags), INPUT(sums), INPUT(mean), INPUT(deviation_inverse), INPUT(dbeta)
#if BIAS
                    , INPUT(bias)
#endif
                    , JOBS) {
  FIND_JOB(9 + BIAS)
  JOB_OUTPUT(dgamma, 1)
  JOB_OUTPUT(flags, 2)
  JOB_INPUT(sums, 3)
  JOB_INPUT(mean, 4)
  JOB_INPUT(deviation_inverse, 5)
  JOB_INPUT(dbeta, 6)
  const int blocks = job[7 + BIAS], parts = job[8 + BIAS], at = item * BLOCK;
  V sum = (V)0, center = (V)0 - LOAD(mean + at);
#if BIAS
  JOB_INPUT(bias, 7)
  center += LOAD(bias + at);
#endif
  for (int p = 0; p < parts; p++) sum += LOAD(sums + (size_t)(p * blocks + item) * BLOCK);
  const V v = (sum + center * LOAD(dbeta + at)) * LOAD(deviation_inverse + at);
  STORE(dgamma + at, v);
  const V rest = v - v;
  FLAG(rest)
}

// dbias = dbeta * scale: of a bias before kept statistics
KERNEL finish_bias(OUTPUT(dbias), OUTPUT(flags), INPUT(dbeta), INPUT(scale), JOBS) {
  FIND_JOB(5)
  JOB_OUTPUT(dbias, 1)
  JOB_OUTPUT(flags, 2)
  JOB_INPUT(dbeta, 3)
  JOB_INPUT(scale, 4)
  const V v = LOAD(dbeta + item * BLOCK) * LOAD(scale + item * BLOCK);
  STORE(dbias + item * BLOCK, v);
  const V rest = v - v;
  FLAG(rest)
}

// counters[NONFINITE] = how many flags there are, and one more if the loss is not finite
KERNEL count_nonfinite(INPUT(flags), OUTPUT(counters), const int flag_count) {
  FROM(flags) INTO(counters)
  __local float shares[GROUP];
  const int me = get_local_id(0);
  V sum = (V)0;
  for (int i = me * BLOCK; i < flag_count; i += GROUP * BLOCK) sum += LOAD(flags + i);
  shares[me] = 0.0f;
  for (int lane = 0; lane < BLOCK; lane++) shares[me] += LANE(sum, lane);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me > 0) return;
  float count = 0.0f;
  for (int i = 0; i < GROUP; i++) count += shares[i];
  if (counters[LOSS] - counters[LOSS] != 0.0f) count += 1.0f;
  counters[NONFINITE] = count;
}
