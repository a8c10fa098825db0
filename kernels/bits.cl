// Bit masks of activations whose derivative has two values: for each row of a block a 16-bit word, whose bit c is set
// where the derivative of channel c is that at an output of 1.
#include "elementwise.h"

KERNEL pack_bits(INPUT(x), OUTPUT_OF(ushort, y), ROWS_ARGUMENTS) {
  input x = ITEM_START(x);
  __global ushort *y = START(y);
  const Band band = band_of(m, count);
  const V passing = through_activation((V)1, (V)1);
  for (int row = band.start; row < band.stop; row += band.step) {
    const V slope = through_activation(load(x + row_at(band.block, m, row)), (V)1);
    const Ints mask = slope == passing;
    ushort word = 0;
    for (int c = 0; c < BLOCK; c++) word |= (ushort)(((const int *)&mask)[c] & (1 << c));
    y[(size_t)band.block * m + row] = word;
  }
}

KERNEL unpack_bits(INPUT_OF(ushort, y), OUTPUT(x), ROWS_ARGUMENTS) {
  __global const ushort *y = START(y);
  output x = ITEM_START(x);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const Ints word = (Ints)(y[(size_t)band.block * m + row] >> FIRST_CHANNEL);
    store(x + row_at(band.block, m, row), VECTOR(convert_float)((word >> POSITIONS) & 1));
  }
}
