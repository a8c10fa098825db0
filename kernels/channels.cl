// Channels moved within another number of channels.
#include "elementwise.h"

// Channel c of dx, which has `channels`, = channel c + shift of x, which has `from_channels`, or 0 outside those; from
// block `first` of dx on
KERNEL move_channels(INPUT_VALUES(x), ROWS_ARGUMENTS, const int first, const int from_channels, const int channels,
                     const int shift, GRADIENT_ARGUMENTS) {
  input_values x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int block = first + band.block;
  for (int row = band.start; row < band.stop; row += band.step) {
    V v = (V)0;
    if (shift % BLOCK == 0 && channels % BLOCK == 0) {  // whole blocks, whose padding is 0
      const int from = block + shift / BLOCK;
      if (from >= 0 && from * BLOCK < from_channels) v = load(x + row_at(from, m, row));
    } else {
      for (int i = 0; i < BLOCK; i++) {
        const int c = block * BLOCK + i, from = c + shift;
        if (c < channels && from >= 0 && from < from_channels) ELEMENT(v, i) = float_of(x[value_at(from, m, row)]);
      }
    }
    write_gradient(dx, row_at(block, m, row), v);
  }
}
