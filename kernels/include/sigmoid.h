// 1 / (1 + exp(-v)) of a vector. Beyond |v| = 87 float32 ends: the result is 0 or 1.
#include "exponential.h"

INLINE V sigmoid(const V v) {
#if CONVERTS_BFLOATS  // whatever is made of it is rounded to 8 bits, and the device's own functions have 22
  return native_recip((V)1 + native_exp(-v));
#else
  const V s = (V)1 / ((V)1 + exponential((V)0 - v));
  return v < (V)-87 ? (V)0 : s;
#endif
}
