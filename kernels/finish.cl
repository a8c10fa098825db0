// The end of a mini-batch: gradients completed, and checked for NaN and infinity. Jobs of all layers share a launch.
#include "blocked.h"
#include "stored.h"
#include "group_sum.h"
#include "jobs.h"
#include "scalars.h"

#ifndef PARTIALS
#define PARTIALS 0
#endif
#ifndef SCALE
#define SCALE 0
#endif
#ifndef SHARED
#define SHARED 0
#endif
#ifndef GAMMA
#define GAMMA 0
#endif

// flags[item, lanes] = 1 where `rest`, a sum of v - v over what was written, is not 0: then some v is a NaN or an infinity
#if LANES == 4
#define QUARTER(rest) const float4 quarter_ = rest;
#else
#define QUARTER(rest)                                                             \
  const float8 half_ = (rest).lo + (rest).hi;                                     \
  const float4 quarter_ = half_.lo + half_.hi;
#endif
#define FLAG(item, rest)                                                          \
  {                                                                               \
    QUARTER(rest)                                                                 \
    flags[(item) * PARTS + FIRST_LANE / LANES] =                                  \
        quarter_.x + quarter_.y + quarter_.z + quarter_.w == 0.0f ? 0.0f : 1.0f;  \
  }

// total = the sum of `groups` PARTIALS, or what is there already; times SCALE. With GAMMA also
// sums[block][part] = sum of w * total over the part's `count` rows, from which finish_gamma has dgamma. If SHARED, the
// members of a work-group share the partials of the same rows.
//
// under kept statistics the convolution before has left total = x^T dz and dbeta = sum dz, with dz the gradient after
// scale and shift. Since y = x w + bias,
//   dgamma = sum dz (y - mean) / deviation = (sum_k w total + (bias - mean) dbeta) / deviation,
// so neither y nor a second pass over the activations is needed. Then dw = total * scale, dbias = dbeta * scale.
#define SCALE_WORD (3 + PARTIALS)
#define NUMBERS (SCALE_WORD + SCALE + GAMMA * (STORED_WORDS + 1))
KERNEL finish_sum(OUTPUT(total), OUTPUT(flags)
#if PARTIALS
                  , INPUT(partials)
#endif
#if SCALE
                  , INPUT(scale)
#endif
#if GAMMA
                  , INPUT_STORED(w), OUTPUT(sums)
#endif
                  , JOBS) {
  FIND_JOB(NUMBERS + 4)
  JOB_OUTPUT(total, 1)
  JOB_OUTPUT_WORDS(flags, 2)
  const int m = job[NUMBERS], blocks = job[NUMBERS + 1], count = job[NUMBERS + 2], groups = job[NUMBERS + 3];
#if SHARED
  GROUP_SUM_MEMORY
  const int place = item / MEMBERS, first = item % MEMBERS, step = MEMBERS;
#else
  const int place = item, first = 0, step = 1;
#endif
  const int parts = (m + count - 1) / count, block = place / parts, start = place % parts * count;
  const int stop = start + count < m ? start + count : m;
#if PARTIALS
  JOB_INPUT(partials, 3)
#endif
#if SCALE
  JOB_INPUT(scale, SCALE_WORD)
  const V s = LOAD(scale + block * BLOCK);
#endif
#if GAMMA
  JOB_STORED(w, SCALE_WORD + 1)
  STORED_BLOCK(w, block)
  JOB_OUTPUT(sums, SCALE_WORD + 1 + STORED_WORDS)
  V product = (V)0;
#endif
  V rest = (V)0;
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
#if PARTIALS
    V v = (V)0;
    for (int g = first; g < groups; g += step) v += LOAD(partials + (size_t)g * blocks * m * BLOCK + at);
#if SHARED
    GROUP_SUM(v)
#endif
#else
    V v = LOAD(total + at);
#endif
#if GAMMA
    product += LOAD_STORED(w, at) * v;
#endif
#if SCALE
    v *= s;
#endif
#if PARTIALS || SCALE
    if (first == 0) STORE(total + at, v);
#endif
    rest += v - v;
  }
  if (first > 0) return;
#if GAMMA
  STORE(sums + (size_t)place * BLOCK, product);
#endif
  FLAG(place, rest)
}

// dgamma from the `parts` sums of w * total that finish_sum left: a block of channels a work-group's members
KERNEL finish_gamma(OUTPUT(dgamma), OUTPUT(flags), INPUT(sums), INPUT(mean), INPUT(deviation_inverse), INPUT(dbeta)
#if BIAS
                    , INPUT(bias)
#endif
                    , JOBS) {
  FIND_JOB(8 + BIAS)
  JOB_OUTPUT(dgamma, 1)
  JOB_OUTPUT_WORDS(flags, 2)
  JOB_INPUT(sums, 3)
  JOB_INPUT(mean, 4)
  JOB_INPUT(deviation_inverse, 5)
  JOB_INPUT(dbeta, 6)
  GROUP_SUM_MEMORY
  const int parts = job[7 + BIAS], block = item / MEMBERS, at = block * BLOCK;
  V sum = (V)0, center = (V)0 - LOAD(mean + at);
#if BIAS
  JOB_INPUT(bias, 7)
  center += LOAD(bias + at);
#endif
  for (int p = item % MEMBERS; p < parts; p += MEMBERS) sum += LOAD(sums + (size_t)(block * parts + p) * BLOCK);
  GROUP_SUM(sum)
  if (item % MEMBERS > 0) return;
  const V v = (sum + center * LOAD(dbeta + at)) * LOAD(deviation_inverse + at);
  STORE(dgamma + at, v);
  const V rest = v - v;
  FLAG(block, rest)
}

// dbias = dbeta * scale: of a bias before kept statistics
KERNEL finish_bias(OUTPUT(dbias), OUTPUT(flags), INPUT(dbeta), INPUT(scale), JOBS) {
  FIND_JOB(5)
  JOB_OUTPUT(dbias, 1)
  JOB_OUTPUT_WORDS(flags, 2)
  JOB_INPUT(dbeta, 3)
  JOB_INPUT(scale, 4)
  const V v = LOAD(dbeta + item * BLOCK) * LOAD(scale + item * BLOCK);
  STORE(dbias + item * BLOCK, v);
  const V rest = v - v;
  FLAG(item, rest)
}

// counters[NONFINITE] = how many flags there are, and one more if the loss is not finite
KERNEL count_nonfinite(INPUT(flags), OUTPUT(counters), const int flag_count) {
  FROM_WORDS(float, flags) INTO_WORDS(counters)
  __local float shares[GROUP];
  const int me = get_local_id(0);
  V sum = (V)0;
  for (int i = me * LANES; i < flag_count; i += GROUP * LANES) sum += LOAD(flags + i);
  shares[me] = 0.0f;
  for (int lane = 0; lane < LANES; lane++) shares[me] += LANE(sum, lane);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me > 0) return;
  float count = 0.0f;
  for (int i = 0; i < GROUP; i++) count += shares[i];
  if (counters[LOSS] - counters[LOSS] != 0.0f) count += 1.0f;
  counters[NONFINITE] = count;
}
