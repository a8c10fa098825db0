// 1 / (1 + exp(-v)) of a vector. Beyond |v| = 87 float32 ends: the result is 0 or 1.
#include "exponential.h"

INLINE V sigmoid(const V v) {
  const V s = (V)1 / ((V)1 + exponential((V)0 - v));
  return v < (V)-87 ? (V)0 : s;
}
