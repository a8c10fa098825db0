// Bit masks of activations: for each row of a block a 16-bit word, whose bit c is set where the derivative of channel c
// is 1.
#include "elementwise.h"

KERNEL pack_bits(INPUT(x), OUTPUT_OF(ushort, y), ROWS_ARGUMENTS) {
  input x = ITEM_START(x);
  __global ushort *y = START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const Ints mask = passes(load(x + row_at(band.block, m, row)));
    ushort word = 0;
    for (int c = 0; c < BLOCK; c++) word |= (ushort)(((const int *)&mask)[c] & (1 << c));
    y[(size_t)band.block * m + row] = word;
  }
}

#if VECTOR_WIDTH == 4
#define POSITIONS (Ints)(0, 1, 2, 3)
#else
#define POSITIONS (Ints)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#endif

KERNEL unpack_bits(INPUT_OF(ushort, y), OUTPUT(x), ROWS_ARGUMENTS) {
  __global const ushort *y = START(y);
  output x = ITEM_START(x);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const Ints word = (Ints)(y[(size_t)band.block * m + row] >> FIRST_CHANNEL);
    store(x + row_at(band.block, m, row), VECTOR(convert_float)((word >> POSITIONS) & 1));
  }
}
