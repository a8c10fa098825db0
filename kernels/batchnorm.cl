// Batch normalization (Ioffe and Szegedy 2015), with kept or with batch statistics.
#include "blocked.h"
#include "activation.h"
#include "gradient.h"

#define ROWS_OF_GROUP                                                             \
  const int block = get_global_id(0), group = get_global_id(1);                   \
  if (block >= blocks) return;                                                    \
  const int start = group * count, stop = start + count < m ? start + count : m;

// Kept statistics as a scale and a shift: scale = gamma / sqrt(var + epsilon), shift = beta + (bias - mean) * scale
KERNEL fold_statistics(input gamma, input beta, input mean, input variance, output scale, output shift,
                       output deviation_inverse, const int blocks, const float epsilon
#if BIAS
                       , input bias
#endif
) {
  const int block = get_global_id(0);
  if (block >= blocks) return;
  const int at = block * BLOCK;
  const V inverse = (V)1 / sqrt(LOAD(variance + at) + epsilon), s = LOAD(gamma + at) * inverse;
  V center = (V)0 - LOAD(mean + at);
#if BIAS
  center += LOAD(bias + at);
#endif
  STORE(scale + at, s);
  STORE(shift + at, LOAD(beta + at) + center * s);
  STORE(deviation_inverse + at, inverse);
}

// Gradients under kept statistics, once a mini-batch. The convolution before has left dw_all = x^T dz and
// dbeta = sum dz, with dz the gradient after scale and shift. Since y = x w + bias,
//   dgamma = sum dz (y - mean) / deviation = (sum_k w dw_all + (bias - mean) dbeta) / deviation,
// so neither y nor a second pass over the activations is needed. Then dw = dw_all * scale, dbias = dbeta * scale.
KERNEL finish_kept_gradients(input w, output dw, input scale, const int rows, const int blocks
#if GAMMA
                             , input mean, input deviation_inverse, input dbeta, output dgamma
#if BIAS
                             , input bias
#endif
#endif
) {
  const int block = get_global_id(0);
  if (block >= blocks) return;
  const V s = LOAD(scale + block * BLOCK);
  V sum = (V)0;
  for (int row = 0; row < rows; row++) {
    const size_t at = ((size_t)block * rows + row) * BLOCK;
    const V g = LOAD(dw + at);
    sum += LOAD(w + at) * g;
    STORE(dw + at, g * s);
  }
#if GAMMA
  V center = (V)0 - LOAD(mean + block * BLOCK);
#if BIAS
  center += LOAD(bias + block * BLOCK);
#endif
  STORE(dgamma + block * BLOCK, (sum + center * LOAD(dbeta + block * BLOCK)) * LOAD(deviation_inverse + block * BLOCK));
#endif
}

// y = x * scale: a bias' gradient behind kept statistics
KERNEL scale_vector(input x, input scale, output y, const int blocks) {
  const int block = get_global_id(0);
  if (block < blocks) STORE(y + block * BLOCK, LOAD(x + block * BLOCK) * LOAD(scale + block * BLOCK));
}

// partials[group]: the mean and the sum of squared deviations of each channel over the group's rows. Two passes over
// rows that stay in the cache: no cancellation.
KERNEL group_statistics(input y, output partials, const int m, const int blocks, const int count) {
  ROWS_OF_GROUP
  V sum = (V)0, squares = (V)0;
  for (int row = start; row < stop; row++) sum += LOAD(y + ((size_t)block * m + row) * BLOCK);
  const V mean = sum * (1.0f / (stop - start));
  for (int row = start; row < stop; row++) {
    const V d = LOAD(y + ((size_t)block * m + row) * BLOCK) - mean;
    squares += d * d;
  }
  STORE(partials + (size_t)(group * 2 * blocks + block) * BLOCK, mean);
  STORE(partials + (size_t)((group * 2 + 1) * blocks + block) * BLOCK, squares);
}

// Groups combined (Chan, Golub and LeVeque 1983) to the batch's mean and biased variance; scale and shift from them;
// running averages moved as Keras does: moving = moving * momentum + batch * (1 - momentum), with pace = 1 - momentum
// from the host, which float32 would round.
KERNEL finish_statistics(input partials, input gamma, input beta, output scale, output shift, output mean_out,
                         output deviation_inverse, output moving_mean, output moving_variance, const int m,
                         const int blocks, const int count, const int groups, const float epsilon,
                         const float pace) {
  const int block = get_global_id(0);
  if (block >= blocks) return;
  V mean = (V)0, squares = (V)0;
  for (int g = 0; g < groups; g++) {
    const float n = (g + 1) * count < m ? count : m - g * count;
    mean += LOAD(partials + (size_t)(g * 2 * blocks + block) * BLOCK) * (n / m);
  }
  for (int g = 0; g < groups; g++) {
    const float n = (g + 1) * count < m ? count : m - g * count;
    const V d = LOAD(partials + (size_t)(g * 2 * blocks + block) * BLOCK) - mean;
    squares += LOAD(partials + (size_t)((g * 2 + 1) * blocks + block) * BLOCK) + d * d * n;
  }
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

// z = activation(y * scale + shift)
KERNEL normalize_forward(input y, input scale, input shift, output z, const int m, const int blocks,
                         const int count) {
  ROWS_OF_GROUP
  const V s = LOAD(scale + block * BLOCK), t = LOAD(shift + block * BLOCK);
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    V v = LOAD(y + at) * s + t;
    ACTIVATE(v)
    STORE(z + at, v);
  }
}

// partials[group]: sum dz and sum dz * normalized y of each channel over the group's rows
KERNEL group_gradients(input dz, input y, input mean_in, input deviation_inverse, output partials, const int m,
                       const int blocks, const int count) {
  ROWS_OF_GROUP
  const V mean = LOAD(mean_in + block * BLOCK), inverse = LOAD(deviation_inverse + block * BLOCK);
  V sum = (V)0, product = (V)0;
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    const V g = LOAD(dz + at);
    sum += g;
    product += g * ((LOAD(y + at) - mean) * inverse);
  }
  STORE(partials + (size_t)(group * 2 * blocks + block) * BLOCK, sum);
  STORE(partials + (size_t)((group * 2 + 1) * blocks + block) * BLOCK, product);
}

// dbeta = sum dz, dgamma = sum dz * normalized y, and dy = dz * scale + y * slope + offset through batch statistics
// (slope and offset are zero through kept ones)
KERNEL finish_gradients(input partials, input scale, input mean, input deviation_inverse, output dgamma, output dbeta,
                        output slope, output offset, const int m, const int blocks, const int groups, const int kept,
                        const int add) {
  const int block = get_global_id(0);
  if (block >= blocks) return;
  V sum = (V)0, product = (V)0;
  for (int g = 0; g < groups; g++) {
    sum += LOAD(partials + (size_t)(g * 2 * blocks + block) * BLOCK);
    product += LOAD(partials + (size_t)((g * 2 + 1) * blocks + block) * BLOCK);
  }
  const int at = block * BLOCK;
  const V s = LOAD(scale + at), k = kept ? (V)0 : s * LOAD(deviation_inverse + at) * product * (1.0f / m);
  STORE(slope + at, (V)0 - k);
  STORE(offset + at, kept ? (V)0 : k * LOAD(mean + at) - s * sum * (1.0f / m));
  STORE(dbeta + at, add ? LOAD(dbeta + at) + sum : sum);
  STORE(dgamma + at, add ? LOAD(dgamma + at) + product : product);
}

// dx = dz * scale + y * slope + offset
KERNEL normalize_backward(input dz, input y, input scale, input slope_in, input offset_in, const int m,
                          const int blocks, const int count, GRADIENT_OUTPUT) {
  ROWS_OF_GROUP
  const V s = LOAD(scale + block * BLOCK), slope = LOAD(slope_in + block * BLOCK), offset = LOAD(offset_in + block * BLOCK);
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    WRITE_GRADIENT(at, LOAD(dz + at) * s + LOAD(y + at) * slope + offset)
  }
}
