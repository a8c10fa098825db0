// ACTIVATION that a kernel applies as it writes, and its derivative, taken from the activation's output.
// The same numbers as in edgelearn/ops/emit.py.
#define LINEAR 0
#define RELU 1
#define RELU6 2
#define SILU 3
#ifndef ACTIVATION
#define ACTIVATION LINEAR
#endif

// Compared this way round, a NaN is passed on and noticed; (v > 0 ? v : 0) would turn it into 0.
INLINE V relu(const V v) { return v < (V)0 ? (V)0 : v; }

INLINE V relu6(const V v) {
  const V r = relu(v);
  return r > (V)6 ? (V)6 : r;
}

INLINE V activate(const V v) {
#if ACTIVATION == RELU6
  return relu6(v);
#elif ACTIVATION == RELU
  return relu(v);
#else
  return v;
#endif
}

// All bits set where the derivative is 1, no bits where it is 0; z is the activation's output.
INLINE Ints passes(const V z) {
#if ACTIVATION == RELU6
  return (z > (V)0) & (z < (V)6);
#elif ACTIVATION == RELU
  return z > (V)0;
#else
  return (Ints)-1;
#endif
}
