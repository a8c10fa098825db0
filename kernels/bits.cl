// Which values an activation passes, as bits: a word for each row of a block, its lowest bit for the first channel.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "vectors.h"

#define OUTPUT_BITS(y) __global ushort *restrict y##_memory, const uint y##_start
#define INTO_BITS(y) __global ushort *restrict y = y##_memory + (size_t)y##_start * 2 * BLOCK;
#define FROM_BITS(y) __global const ushort *restrict y = y##_memory + (size_t)y##_start * 2 * BLOCK;

KERNEL pack_bits(INPUT(x), OUTPUT_BITS(y), const int m, const int count) {
  FROM(x) INTO_BITS(y)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = (size_t)block * m + row;
    const V v = LOAD(x + at * BLOCK);
    const A passes = PASSES(v);
    ushort word = 0;
    for (int lane = 0; lane < BLOCK; lane++) word |= (ushort)(((const int *)&passes)[lane] & (1 << lane));
    y[at] = word;
  }
}

#if LANES == 4
#define PLACES (A)(0, 1, 2, 3)
#else
#define PLACES (A)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#endif

KERNEL unpack_bits(INPUT_WORDS(ushort, y), OUTPUT(x), const int m, const int count) {
  FROM_BITS(y) INTO(x)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = (size_t)block * m + row;
    STORE(x + at * BLOCK, TO_FLOATS(((A)(y[at] >> FIRST_LANE) >> PLACES) & 1));
  }
}
