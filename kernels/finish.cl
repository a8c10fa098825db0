// The end of a mini-batch: gradients completed, and checked for NaN and infinity. Jobs of all layers share a launch.
#include "blocked.h"
#include "stored.h"
#include "finite.h"
#include "group_sum.h"
#include "group_total.h"
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

// total = the sum of `groups` PARTIALS, or what is there already; times SCALE. With GAMMA also
// sums[block][part] = sum of w * total over the part's `count` rows, from which finish_gamma has dgamma. With SHARED,
// the members of a work-group share the partials of the same rows.
//
// Under moving statistics the convolution before has left total = x^T dz and dbeta = sum dz, with dz the gradient after
// scale and shift. Since y = x w + bias,
//   dgamma = sum dz (y - mean) / deviation = (sum_k w total + (bias - mean) dbeta) / deviation,
// so neither y nor a second pass over the activations is needed. Then dw = total * scale, dbias = dbeta * scale.
#define SCALE_WORD (3 + PARTIALS)
#define NUMBERS (SCALE_WORD + SCALE + GAMMA * (STORED_WORDS + 1))
KERNEL finish_sum(OUTPUT(total), OUTPUT(flags) INPUT_IF(PARTIALS, partials) INPUT_IF(SCALE, scale)
                  STORED_IF(GAMMA, w) OUTPUT_IF(GAMMA, sums), JOBS) {
  LOCAL_SHARES(shares);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, NUMBERS + 4);
  output total = JOB_ITEM_START(total, 1);
  const int m = job.words[NUMBERS], blocks = job.words[NUMBERS + 1], count = job.words[NUMBERS + 2];
  const int groups = job.words[NUMBERS + 3], step = SHARED ? MEMBERS : 1;
  const int place = job.item / step, first = job.item % step;
  const int parts = (m + count - 1) / count, block = place / parts, start = place % parts * count;
  const int stop = start + count < m ? start + count : m;
#if SCALE
  const V s = load(JOB_ITEM_START(scale, SCALE_WORD) + block * BLOCK);
#endif
#if GAMMA
  const Stored w = STORED_JOB(w, SCALE_WORD + 1);
  const Decoding decoding = decoding_of(w, block);
  V product = (V)0;
#endif
  V rest = (V)0;
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
#if PARTIALS
    V v = (V)0;
    SEVERAL for (int g = first; g < groups; g += step)
      v += load(JOB_ITEM_START(partials, 3) + (size_t)g * blocks * m * BLOCK + at);
#if SHARED
    v = group_sum(v, shares);
#endif
#else
    V v = load(total + at);
#endif
#if GAMMA
    product += LOAD_STORED(w, at, decoding) * v;
#endif
#if SCALE
    v *= s;
#endif
#if PARTIALS || SCALE
    if (first == 0) store(total + at, v);
#endif
    rest += v - v;
  }
  if (first > 0) return;
#if GAMMA
  store(JOB_ITEM_START(sums, SCALE_WORD + 1 + STORED_WORDS) + (size_t)place * BLOCK, product);
#endif
  write_flag(JOB_START(flags, 2), place, rest);
}

// dgamma from the `parts` sums of w * total that finish_sum left: a block of channels a work-group's members
KERNEL finish_gamma(OUTPUT(dgamma), OUTPUT(flags), INPUT(sums), INPUT(mean), INPUT(deviation_inverse), INPUT(dbeta)
                    INPUT_IF(BIAS, bias), JOBS) {
  LOCAL_SHARES(shares);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 8 + BIAS);
  input sums = JOB_ITEM_START(sums, 3);
  const int parts = job.words[7 + BIAS], block = job.item / MEMBERS, at = block * BLOCK;
  V sum = (V)0, center = (V)0 - load(JOB_ITEM_START(mean, 4) + at);
#if BIAS
  center += load(JOB_ITEM_START(bias, 7) + at);
#endif
  for (int p = job.item % MEMBERS; p < parts; p += MEMBERS) sum += load(sums + (size_t)(block * parts + p) * BLOCK);
  sum = group_sum(sum, shares);
  if (job.item % MEMBERS > 0) return;
  const V v = (sum + center * load(JOB_ITEM_START(dbeta, 6) + at)) * load(JOB_ITEM_START(deviation_inverse, 5) + at);
  store(JOB_ITEM_START(dgamma, 1) + at, v);
  write_flag(JOB_START(flags, 2), block, v - v);
}

// dbias = dbeta * scale: of a bias before moving statistics
KERNEL finish_bias(OUTPUT(dbias), OUTPUT(flags), INPUT(dbeta), INPUT(scale), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 5);
  const int at = job.item * BLOCK;
  const V v = load(JOB_ITEM_START(dbeta, 3) + at) * load(JOB_ITEM_START(scale, 4) + at);
  store(JOB_ITEM_START(dbias, 1) + at, v);
  write_flag(JOB_START(flags, 2), job.item, v - v);
}

// g /= the scale of the loss
KERNEL unscale(OUTPUT(g), INPUT(scalars), const int blocks) {
  output g = ITEM_START(g);
  const int block = ITEM;
  if (block < blocks) store(g + (size_t)block * BLOCK, load(g + (size_t)block * BLOCK) * START(scalars)[UNSCALE]);
}

// The flags of a work-group, `count` of them, as one: their number in the place of the first; the others are cleared.
KERNEL gather_flags(OUTPUT(flags), const int flag_count, const int count) {
  __local float shares[GROUP];
  const int start = get_group_id(0) * count, stop = start + count < flag_count ? start + count : flag_count;
  output flags = START(flags);
  float sum = 0.0f;
  for (int i = start + get_local_id(0); i < stop; i += GROUP) {
    sum += flags[i];
    flags[i] = 0.0f;
  }
  sum = group_total(sum, shares);
  if (get_local_id(0) == 0) flags[start] = sum;
}

// counters[NONFINITE] = the number of flags that are set, of every `step`-th, and one more if the loss is not finite.
// Flags are cleared for the next mini-batch, whose micro-batches may set others.
KERNEL count_nonfinite(OUTPUT(flags), OUTPUT(counters), const int flag_count, const int step) {
  __local float shares[GROUP];
  output flags = START(flags);
  output counters = START(counters);
  float sum = 0.0f;
  for (int i = get_local_id(0) * step; i < flag_count; i += GROUP * step) {
    sum += flags[i];
    flags[i] = 0.0f;
  }
  float count = group_total(sum, shares);
  if (get_local_id(0) > 0) return;
  if (counters[LOSS] - counters[LOSS] != 0.0f) count += 1.0f;
  counters[NONFINITE] = count;
}
