// Floats to integers and back, and sums of integers.
#include "integers.h"
#include "jobs.h"

// result = x, rounded: y's own range is known by then
KERNEL floats_to_integers(INPUT(x), RESULT_ARGUMENTS, const int m, const int blocks_x) {
  FROM(x) RESULT_POINTERS
  EACH_TILE(m * blocks_x) {
    const int block = tile / m, row = tile % m;
    WRITE_RESULT(block, row, LOAD(x + (size_t)tile * BLOCK))
  }
  LEAVE_FOUND
}

// The same of a network's input with fewer than 16 channels, `count` values as they lie; nearest rounding.
KERNEL input_to_integers(INPUT(x), OUTPUT_Q(y), INPUT_WORDS(float, range), const float bottom, const float top,
                         const int count) {
  FROM(x) INTO_Q(y) FROM_WORDS(float, range)
  const float zero = range[ZERO], inverse = range[INVERSE], lowest = bottom - zero, highest = top - zero;
  EACH_TILE((count + BLOCK - 1) / BLOCK) {
    for (int i = tile * BLOCK; i < count && i < (tile + 1) * BLOCK; i++) {
      float t;
      QUANTISE_NEAREST(t, x[i], inverse, lowest, highest)
      y[i] = (char)(t + zero);
    }
  }
}

// What the integers stand for, as the gradient of an input is written.
KERNEL integers_to_floats(INPUT_RANGED(x), RESULT_ARGUMENTS, const int m, const int blocks_x MASK_ARGUMENTS) {
  FROM_RANGED(x) RESULT_POINTERS MASK_POINTERS
  const float scale = x_range[SCALE_OF];
  const short zero = (short)x_range[ZERO];
  EACH_TILE(m * blocks_x) {
    const int block = tile / m, row = tile % m;
    WRITE_GRADIENT(block, row, convert_float16(LOAD_CENTRED(x + (size_t)tile * BLOCK, zero)) * scale)
  }
  LEAVE_FOUND
}

// sums[group]: (add ? what was there : 0) + the sum of each channel over the `count` rows of a group
KERNEL integer_channel_sums(INPUT_RANGED(x), OUTPUT(sums), const int m, const int blocks, const int count,
                            const int add) {
  FROM_RANGED(x) INTO(sums)
  const int block = get_global_id(0), group = get_global_id(1);
  if (block >= blocks) return;
  const int start = group * count, stop = start + count < m ? start + count : m;
  const short zero = (short)x_range[ZERO];
  const size_t at = ((size_t)group * blocks + block) * BLOCK;
  A sum = (A)0;
  for (int row = start; row < stop; row++) sum += LOAD_CENTRED(x + ((size_t)block * m + row) * BLOCK, zero);
  V v = convert_float16(sum) * x_range[SCALE_OF];
  if (add) v += LOAD(sums + at);
  STORE(sums + at, v);
}

// Weights, `count` rows of a block of channels a work-item: jobs of all layers in a launch.
KERNEL weights_to_integers(INPUT(w), OUTPUT_Q(y), INPUT_WORDS(float, range)
#if STOCHASTIC
                           , INPUT_WORDS(uint, scalars)
#endif
                           , JOBS, const float bottom, const float top) {
  FIND_JOB(8 + STOCHASTIC)
  JOB_INPUT(w, 1)
  __global char *restrict y = y_memory + (size_t)job[2] * 4 * BLOCK;
  JOB_INPUT(range, 3)
  const int m = job[4 + STOCHASTIC], blocks = job[5 + STOCHASTIC], count = job[6 + STOCHASTIC];
  const int block = item % blocks, start = item / blocks * count, stop = start + count < m ? start + count : m;
  const V inverse = FIELD(range, INVERSE, block), zero = FIELD(range, ZERO, block);
  const V lowest = bottom - zero, highest = top - zero;
#if STOCHASTIC
  __global const uint *restrict scalars = scalars_memory + (size_t)job[4] * BLOCK;
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
#endif
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    V t;
#if STOCHASTIC
    UNIFORM(uniform, row * blocks + block, 0, job[7 + STOCHASTIC], scalars[STEP], seed)
    QUANTISE_STOCHASTIC(t, LOAD(w + at), inverse, lowest, highest, uniform)
#else
    QUANTISE_NEAREST(t, LOAD(w + at), inverse, lowest, highest)
#endif
    STORE_Q(y + at, t + zero);
  }
}
