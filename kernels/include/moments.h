// Sums over rows that BatchNorm with batch statistics needs of a tensor, taken by the kernel that writes it (`Tail` in
// edgelearn/launch.py). MOMENTS: mean and squared deviations of a result; NORM_SUMS: sums of a gradient dz, and of dz times the
// normalized values that it is the gradient of. A group of rows leaves a record, as batchnorm.cl has them: two vectors of sums
// for each block of channels.
#ifndef MOMENTS
#define MOMENTS 0
#endif
#ifndef NORM_SUMS
#define NORM_SUMS 0
#endif

// Mean and sum of squared deviations of `count` values of each channel
typedef struct { V mean, squares; float count; } Moments;
#define NO_MOMENTS ((Moments){(V)0, (V)0, 0.0f})

// Adds the values number `first` to `last` of n that lie `step` apart, in two passes over registers: no cancellation. Parts are
// combined as Chan, Golub and LeVeque 1983 do.
INLINE void add_moments(Moments *m, const V *values, const int step, const int n, const int first, const int last) {
#if MOMENTS
  const float count = last - first, all = m->count + count;
  V mean = (V)0, squares = (V)0;
  UNROLL for (int i = 0; i < n; i++) if (i >= first && i < last) mean += values[i * step];
  mean *= 1.0f / count;
  UNROLL for (int i = 0; i < n; i++) if (i >= first && i < last) {
    const V d = values[i * step] - mean;
    squares += d * d;
  }
  const V more = mean - m->mean;
  m->mean += more * (count / all);
  m->squares += squares + more * more * (m->count * count / all);
  m->count = all;
#endif
}

INLINE void store_sums(output records, const int group, const int block, const int blocks, const V a, const V b) {
  store(records + (size_t)(group * 2 * blocks + block) * BLOCK, a);
  store(records + (size_t)((group * 2 + 1) * blocks + block) * BLOCK, b);
}
