// Rounding to half precision: HALVES are made or, simulated, the float32 values that these stand for. What is found is of
// the results, so that an overflow shows. A tensor is taken as it lies in memory.
#include "blocked.h"
#include "vectors.h"
#include "half.h"
#include "quantize.h"
#include "found.h"
#include "rows.h"
#include "jobs.h"
#include "weights.h"

#ifndef HALVES
#define HALVES 0
#endif
#if HALVES
#define OUTPUT_HALVES(y) __global ushort *restrict y##_memory, const uint y##_start
#define HALVES_OUT(y, start) __global ushort *restrict y = y##_memory + (size_t)(start) * 2 * BLOCK;
#else
#define OUTPUT_HALVES(y) OUTPUT(y)
#define HALVES_OUT(y, start) output y = y##_memory + (size_t)(start) * BLOCK;
#endif

// y = the halves nearest to x; IN_PLACE, x is y
#if IN_PLACE
#define SOURCE OUTPUT(y)
#define SOURCE_POINTERS INTO_WORDS(y) __global const float *x = y;
#else
#define SOURCE INPUT(x), OUTPUT_HALVES(y)
#define SOURCE_POINTERS FROM_WORDS(float, x) HALVES_OUT(y, y_start)
#endif
KERNEL round_halves(SOURCE FOUND_ARGUMENTS, const int rows, const int rest) {
  SOURCE_POINTERS FOUND_POINTERS
  EACH_TILE(rows) {
    LOAD_ROW(v, x)
    const A bits = halves_of(v);
    const V w = of_halves(bits);
#if HALVES
    STORE_HALVES(y + ROW_START, bits);
#else
    STORE_ROW(y, w)
#endif
    NOTE(w)
  }
  LEAVE_FOUND
}

#define NUMBERS_WORD BEHIND(2 + FOUND)
KERNEL weight_halves(INPUT_KERNEL, OUTPUT_HALVES(y)
#if FOUND
                     , OUTPUT(found)
#endif
                     , JOBS) {
  FIND_JOB(NUMBERS_WORD + KERNEL_NUMBERS + 1)
  JOB_KERNEL(NUMBERS_WORD)
  HALVES_OUT(y, job[BEHIND(1)])
#if FOUND
  JOB_OUTPUT(found, BEHIND(2))
  NOTHING_FOUND
#endif
  for (int row = start; row < stop; row++) {
    KERNEL_ROW(v, row)
    const A bits = halves_of(v);
    const V w_ = of_halves(bits);
    const size_t at = ((size_t)block * m + row) * BLOCK;
#if HALVES
    STORE_HALVES(y + at, bits);
#else
    STORE(y + at, w_);
#endif
    NOTE(w_)
  }
#if FOUND
  IN_LANES(mine)
  if (item == 0) LANE(mine, COUNT) = job[NUMBERS_WORD + KERNEL_NUMBERS];
  STORE_RECORD(found + (size_t)item * BLOCK, mine);
#endif
}
