// Additive couplings of streams of multiples of `step`, a power of two: sums of those are exact.
#include "blocked.h"
#include "band.h"
#pragma OPENCL FP_CONTRACT OFF

#ifndef EXACT
#define EXACT 1
#endif

// The nearest whole number, ties to even: floats from 2^23 on have no others, so that the sum is rounded to one. Larger
// values are whole already.
#define WHOLE 8388608.0f
#define NEAREST(v) (((v) <= (V)(-WHOLE)) | ((v) >= (V)WHOLE) ? (v) : (v) < (V)0 ? ((v) - WHOLE) + WHOLE : ((v) + WHOLE) - WHOLE)
#if EXACT
#define ROUNDED(v) (NEAREST((v) * inverse) * step)
#define STEPS , const float step, const float inverse
#else
#define ROUNDED(v) (v)
#define STEPS
#endif

KERNEL begin(INPUT(x), OUTPUT(y), const int m, const int count STEPS) {
  FROM(x) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    STORE(y + at, ROUNDED(LOAD(x + at)));
  }
}

// y = x + f
KERNEL couple(INPUT(x), INPUT(f), OUTPUT(y), const int m, const int count STEPS) {
  FROM(x) FROM(f) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    STORE(y + at, LOAD(x + at) + ROUNDED(LOAD(f + at)));
  }
}

// x = y - f
KERNEL uncouple(INPUT(y), INPUT(f), OUTPUT(x), const int m, const int count STEPS) {
  FROM(y) FROM(f) INTO(x)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    STORE(x + at, LOAD(y + at) - ROUNDED(LOAD(f + at)));
  }
}
