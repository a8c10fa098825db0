// Batch normalization (Ioffe and Szegedy 2015), with kept or with batch statistics; of y as it is stored.
#include "blocked.h"
#include "stored.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"
#include "group_sum.h"
#include "jobs.h"
#include "result.h"

// With SUB_BANDS > 1 every sub-band of an image's height has statistics of its own (Chang et al. 2021): what is said of
// 16 channels here holds for 16 channels of one sub-band, number `block` of as many. ROW is where row `row` of the m that
// share statistics lies, of which an image has `share`.
#ifndef SUB_BANDS
#define SUB_BANDS 1
#endif
#if SUB_BANDS > 1
#define ROWS const int m, const int share
#define ROW(block, row)                                                           \
  (((((size_t)((block) / SUB_BANDS) * (m / share) + (row) / share) * SUB_BANDS + (block) % SUB_BANDS) * share \
    + (row) % share) * BLOCK)
#else
#define ROWS const int m
#define ROW(block, row) (((size_t)(block) * m + (row)) * BLOCK)
#endif

#define CHUNK 512  // rows that are summed by themselves, and stay in a first-level cache

// Work-group `group` has rows [start, stop) of one block; FOR_ROWS goes through those of a member.
#define ROWS_OF_GROUP                                                             \
  GROUP_SUM_MEMORY                                                                \
  const int group = get_group_id(0), block = get_global_id(1);                    \
  const int start = group * count, stop = start + count < m ? start + count : m;
#define FOR_ROWS for (int row = start + ITEM % MEMBERS; row < stop; row += MEMBERS)
#define FOR_GROUPS for (int g = ITEM % MEMBERS; g < groups; g += MEMBERS)

// Kept statistics as a scale and a shift: scale = gamma / sqrt(var + epsilon), shift = beta + (bias - mean) * scale.
// A job a layer, a work-item 16 channels.
KERNEL fold_statistics(INPUT(gamma), INPUT(beta), INPUT(mean), INPUT(variance), OUTPUT(scale), OUTPUT(shift),
                       OUTPUT(deviation_inverse)
#if BIAS
                       , INPUT(bias)
#endif
                       , JOBS, const float epsilon) {
  FIND_JOB(8 + BIAS)
  JOB_INPUT(gamma, 1)
  JOB_INPUT(beta, 2)
  JOB_INPUT(mean, 3)
  JOB_INPUT(variance, 4)
  JOB_OUTPUT(scale, 5)
  JOB_OUTPUT(shift, 6)
  JOB_OUTPUT(deviation_inverse, 7)
  const int at = item * BLOCK;
  const V inverse = (V)1 / sqrt(LOAD(variance + at) + epsilon), s = LOAD(gamma + at) * inverse;
  V center = (V)0 - LOAD(mean + at);
#if BIAS
  JOB_INPUT(bias, 8)
  center += LOAD(bias + at);
#endif
  STORE(scale + at, s);
  STORE(shift + at, LOAD(beta + at) + center * s);
  STORE(deviation_inverse + at, inverse);
}

// partials[group]: the mean and the sum of squared deviations of each channel over the group's rows. Two passes over
// rows that stay in the cache: no cancellation.
KERNEL group_statistics(INPUT_STORED(y), OUTPUT(partials), ROWS, const int blocks, const int count) {
  FROM_STORED(y) INTO(partials)
  ROWS_OF_GROUP
  STORED_BLOCK(y, block / SUB_BANDS)
  V mean = (V)0, squares = (V)0;
  FOR_ROWS mean += LOAD_STORED(y, ROW(block, row));
  GROUP_SUM(mean)
  mean *= 1.0f / (stop - start);
  FOR_ROWS {
    const V d = LOAD_STORED(y, ROW(block, row)) - mean;
    squares += d * d;
  }
  GROUP_SUM(squares)
  if (!LEADS) return;
  STORE(partials + (size_t)(group * 2 * blocks + block) * BLOCK, mean);
  STORE(partials + (size_t)((group * 2 + 1) * blocks + block) * BLOCK, squares);
}

// Groups combined (Chan, Golub and LeVeque 1983) to the batch's mean and biased variance; scale and shift from them;
// running averages moved as Keras does: moving = moving * momentum + batch * (1 - momentum), with pace = 1 - momentum
// from the host, which float32 would round.
KERNEL finish_statistics(INPUT(partials), INPUT(gamma), INPUT(beta), OUTPUT(scale), OUTPUT(shift), OUTPUT(mean_out),
                         OUTPUT(deviation_inverse), OUTPUT(moving_mean), OUTPUT(moving_variance), const int m,
                         const int blocks, const int count, const int groups, const float epsilon,
                         const float pace) {
  FROM(partials) FROM(gamma) FROM(beta) INTO(scale) INTO(shift) INTO(mean_out) INTO(deviation_inverse) INTO(moving_mean) INTO(moving_variance)
  GROUP_SUM_MEMORY
  const int block = get_group_id(0);
  V mean = (V)0, squares = (V)0;
  FOR_GROUPS {
    const float n = (g + 1) * count < m ? count : m - g * count;
    mean += LOAD(partials + (size_t)(g * 2 * blocks + block) * BLOCK) * (n / m);
  }
  GROUP_SUM(mean)
  FOR_GROUPS {
    const float n = (g + 1) * count < m ? count : m - g * count;
    const V d = LOAD(partials + (size_t)(g * 2 * blocks + block) * BLOCK) - mean;
    squares += LOAD(partials + (size_t)((g * 2 + 1) * blocks + block) * BLOCK) + d * d * n;
  }
  GROUP_SUM(squares)
  if (!LEADS) return;
  const int at = block * BLOCK;
  const V variance = squares * (1.0f / m), inverse = (V)1 / sqrt(variance + epsilon), s = LOAD(gamma + at) * inverse;
  STORE(scale + at, s);
  STORE(shift + at, LOAD(beta + at) - mean * s);
  STORE(mean_out + at, mean);
  STORE(deviation_inverse + at, inverse);
  const V old_mean = LOAD(moving_mean + at), old_variance = LOAD(moving_variance + at);
  STORE(moving_mean + at, old_mean + (mean - old_mean) * pace);
  STORE(moving_variance + at, old_variance + (variance - old_variance) * pace);
}

// The same and z in one go, a work-item 16 channels: y is read from memory once, chunk by chunk, if the cache holds it.
KERNEL whole_forward(INPUT_STORED(y), INPUT(gamma), INPUT(beta), OUTPUT(scale), OUTPUT(shift), OUTPUT(mean_out),
                     OUTPUT(deviation_inverse), OUTPUT(moving_mean), OUTPUT(moving_variance), OUTPUT(z), ROWS,
                     const int blocks, const float epsilon, const float pace) {
  FROM_STORED(y) FROM(gamma) FROM(beta) INTO(scale) INTO(shift) INTO(mean_out) INTO(deviation_inverse) INTO(moving_mean) INTO(moving_variance) INTO(z)
  const int block = ITEM, at = block * BLOCK;
  if (block >= blocks) return;
  STORED_BLOCK(y, block / SUB_BANDS)
  V mean = (V)0, squares = (V)0;
  for (int start = 0; start < m; start += CHUNK) {
    const int count = m - start < CHUNK ? m - start : CHUNK;
    V sum = (V)0, chunk_squares = (V)0;
    for (int row = start; row < start + count; row++) sum += LOAD_STORED(y, ROW(block, row));
    const V center = sum * (1.0f / count);
    for (int row = start; row < start + count; row++) {
      const V d = LOAD_STORED(y, ROW(block, row)) - center;
      chunk_squares += d * d;
    }
    const V step = center - mean;
    mean += step * ((float)count / (start + count));
    squares += chunk_squares + step * step * ((float)start * count / (start + count));
  }
  const V variance = squares * (1.0f / m), inverse = (V)1 / sqrt(variance + epsilon), s = LOAD(gamma + at) * inverse;
  const V t = LOAD(beta + at) - mean * s;
  STORE(scale + at, s);
  STORE(shift + at, t);
  STORE(mean_out + at, mean);
  STORE(deviation_inverse + at, inverse);
  const V old_mean = LOAD(moving_mean + at), old_variance = LOAD(moving_variance + at);
  STORE(moving_mean + at, old_mean + (mean - old_mean) * pace);
  STORE(moving_variance + at, old_variance + (variance - old_variance) * pace);
  for (int row = 0; row < m; row++) {
    const size_t here = ROW(block, row);
    V v = LOAD_STORED(y, here) * s + t;
    ACTIVATE(v)
    STORE(z + here, v);
  }
}

// z = activation(y * scale + shift)
KERNEL normalize_forward(INPUT_STORED(y), INPUT(scale), INPUT(shift), OUTPUT(z), ROWS, const int count) {
  FROM_STORED(y) FROM(scale) FROM(shift) INTO(z)
  BAND
  STORED_BLOCK(y, block / SUB_BANDS)
  const V s = LOAD(scale + block * BLOCK), t = LOAD(shift + block * BLOCK);
  for (int row = start; row < stop; row++) {
    const size_t at = ROW(block, row);
    V v = LOAD_STORED(y, at) * s + t;
    ACTIVATE(v)
    STORE(z + at, v);
  }
}

// The same to a result that may be quantized, and of which is noted what it holds. Here m counts all rows, whose
// statistics are those of a set.
#if SUB_BANDS > 1
#define SET(block, row) ((block) * SUB_BANDS + (row) / share % SUB_BANDS)
#else
#define SET(block, row) (block)
#endif
#define FOR_TILES                                                                 \
  EACH_TILE(m * channels / LANES) {                                               \
    const int at = tile / PARTS, block = at / m, row = at % m, of = SET(block, row) * BLOCK;
KERNEL normalize_forward_result(INPUT_STORED(y), INPUT(scale), INPUT(shift), RESULT_ARGUMENTS, ROWS,
                                const int channels) {
  FROM_STORED(y) FROM(scale) FROM(shift) RESULT_POINTERS
  FOR_TILES
    STORED_BLOCK(y, block)
    V v = LOAD_STORED(y, (size_t)at * BLOCK) * LOAD(scale + of) + LOAD(shift + of);
    ACTIVATE(v)
    WRITE_RESULT(block, row, v)
  }
  LEAVE_FOUND
}

// partials[group]: sum dz and sum dz * normalized y of each channel over the group's rows
KERNEL group_gradients(INPUT(dz), INPUT_STORED(y), INPUT(mean_in), INPUT(deviation_inverse), OUTPUT(partials), ROWS,
                       const int blocks, const int count) {
  FROM(dz) FROM_STORED(y) FROM(mean_in) FROM(deviation_inverse) INTO(partials)
  ROWS_OF_GROUP
  STORED_BLOCK(y, block / SUB_BANDS)
  const V mean = LOAD(mean_in + block * BLOCK), inverse = LOAD(deviation_inverse + block * BLOCK);
  V sum = (V)0, product = (V)0;
  FOR_ROWS {
    const size_t at = ROW(block, row);
    const V g = LOAD(dz + at);
    sum += g;
    product += g * ((LOAD_STORED(y, at) - mean) * inverse);
  }
  GROUP_SUM(sum)
  GROUP_SUM(product)
  if (!LEADS) return;
  STORE(partials + (size_t)(group * 2 * blocks + block) * BLOCK, sum);
  STORE(partials + (size_t)((group * 2 + 1) * blocks + block) * BLOCK, product);
}

// dbeta = sum dz, dgamma = sum dz * normalized y, and dy = dz * scale + y * slope + offset through batch statistics
// (slope and offset are zero through kept ones)
KERNEL finish_gradients(INPUT(partials), INPUT(scale), INPUT(mean), INPUT(deviation_inverse), OUTPUT(dgamma), OUTPUT(dbeta),
                        OUTPUT(slope), OUTPUT(offset), const int m, const int blocks, const int groups, const int kept,
                        const int add) {
  FROM(partials) FROM(scale) FROM(mean) FROM(deviation_inverse) INTO(dgamma) INTO(dbeta) INTO(slope) INTO(offset)
  GROUP_SUM_MEMORY
  const int block = get_group_id(0);
  V sum = (V)0, product = (V)0;
  FOR_GROUPS {
    sum += LOAD(partials + (size_t)(g * 2 * blocks + block) * BLOCK);
    product += LOAD(partials + (size_t)((g * 2 + 1) * blocks + block) * BLOCK);
  }
  GROUP_SUM(sum)
  GROUP_SUM(product)
  if (!LEADS) return;
  const int at = block * BLOCK;
  const V s = LOAD(scale + at), k = kept ? (V)0 : s * LOAD(deviation_inverse + at) * product * (1.0f / m);
  STORE(slope + at, (V)0 - k);
  STORE(offset + at, kept ? (V)0 : k * LOAD(mean + at) - s * sum * (1.0f / m));
  STORE(dbeta + at, add ? LOAD(dbeta + at) + sum : sum);
  STORE(dgamma + at, add ? LOAD(dgamma + at) + product : product);
}

// dx = dz * scale + y * slope + offset
KERNEL normalize_backward(INPUT(dz), INPUT_STORED(y), INPUT(scale), INPUT(slope_in), INPUT(offset_in), ROWS,
                          const int count, GRADIENT_OUTPUT) {
  FROM(dz) FROM_STORED(y) FROM(scale) FROM(slope_in) FROM(offset_in) GRADIENT_POINTERS
  BAND
  STORED_BLOCK(y, block / SUB_BANDS)
  const V s = LOAD(scale + block * BLOCK), slope = LOAD(slope_in + block * BLOCK), offset = LOAD(offset_in + block * BLOCK);
  for (int row = start; row < stop; row++) {
    const size_t at = ROW(block, row);
    WRITE_GRADIENT(at, LOAD(dz + at) * s + LOAD_STORED(y, at) * slope + offset)
  }
}

KERNEL normalize_backward_result(INPUT(dz), INPUT_STORED(y), INPUT(scale), INPUT(slope), INPUT(offset),
                                 RESULT_ARGUMENTS, ROWS, const int channels) {
  FROM(dz) FROM_STORED(y) FROM(scale) FROM(slope) FROM(offset) RESULT_POINTERS
  FOR_TILES
    STORED_BLOCK(y, block)
    const V s = LOAD(scale + of), k = LOAD(slope + of), o = LOAD(offset + of);
    WRITE_RESULT(block, row, LOAD(dz + (size_t)at * BLOCK) * s + LOAD_STORED(y, (size_t)at * BLOCK) * k + o)
  }
  LEAVE_FOUND
}

// All three in one go, a work-item 16 channels
KERNEL whole_backward(INPUT(dz), INPUT_STORED(y), INPUT(scale), INPUT(mean_in), INPUT(deviation_inverse), OUTPUT(dgamma),
                      OUTPUT(dbeta), ROWS, const int blocks, const int kept, const int add, GRADIENT_OUTPUT) {
  FROM(dz) FROM_STORED(y) FROM(scale) FROM(mean_in) FROM(deviation_inverse) INTO(dgamma) INTO(dbeta) GRADIENT_POINTERS
  const int block = ITEM, at = block * BLOCK;
  if (block >= blocks) return;
  STORED_BLOCK(y, block / SUB_BANDS)
  const V mean = LOAD(mean_in + at), inverse = LOAD(deviation_inverse + at), s = LOAD(scale + at);
  V sum = (V)0, product = (V)0;
  for (int start = 0; start < m; start += CHUNK) {
    const int stop = start + CHUNK < m ? start + CHUNK : m;
    V chunk_sum = (V)0, chunk_product = (V)0;
    for (int row = start; row < stop; row++) {
      const size_t here = ROW(block, row);
      const V g = LOAD(dz + here);
      chunk_sum += g;
      chunk_product += g * ((LOAD_STORED(y, here) - mean) * inverse);
    }
    sum += chunk_sum;
    product += chunk_product;
  }
  STORE(dbeta + at, add ? LOAD(dbeta + at) + sum : sum);
  STORE(dgamma + at, add ? LOAD(dgamma + at) + product : product);
  const V k = kept ? (V)0 : s * inverse * product * (1.0f / m), offset = kept ? (V)0 : k * mean - s * sum * (1.0f / m);
  for (int row = 0; row < m; row++) {
    const size_t here = ROW(block, row);
    WRITE_GRADIENT(here, LOAD(dz + here) * s - LOAD_STORED(y, here) * k + offset)
  }
}
