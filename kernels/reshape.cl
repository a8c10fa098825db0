// Reshape: the same values in another shape. A value keeps its place in its example's C order,
// place = row of the example * channels + channel, so every value of dx is looked up in x, forward and backward.
#include "elementwise.h"

// x: `from_rows` rows an example of `from_channels` channels; dx: m rows in all, `to_rows` an example of `to_channels`.
KERNEL reshape(INPUT_VALUES(x), ROWS_ARGUMENTS, const int from_rows, const int from_channels, const int to_rows,
               const int to_channels, GRADIENT_ARGUMENTS) {
  input_values x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const size_t from_m = (size_t)(m / to_rows) * from_rows;
  const int filled = channels_of(band.block, to_channels);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int place = row % to_rows * to_channels + band.block * BLOCK;
    size_t from = (size_t)(row / to_rows) * from_rows + place / from_channels;
    int channel = place % from_channels;
    V v = (V)0;
    for (int i = 0; i < filled; i++) {
      ELEMENT(v, i) = float_of(x[value_at(channel, from_m, from)]);
      if (++channel == from_channels) { channel = 0; from++; }
    }
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}
