// Element-wise kernels: copies and sums.
#include "elementwise.h"
#include "stored.h"

// dx = x, in any format: how layers that only move values pass on a gradient
KERNEL copy(INPUT_STORED(x), ROWS_ARGUMENTS, GRADIENT_ARGUMENTS) {
  const Stored x = STORED_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const Decoding decoding = decoding_of(x, band.block);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    write_gradient(dx, at, LOAD_STORED(x, at, decoding));
  }
}

// dx = x, a network's input of fewer than 16 channels, stored without padding
KERNEL pad_channels(INPUT(x), ROWS_ARGUMENTS, const int channels, GRADIENT_ARGUMENTS) {
  input x = START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    V v = (V)0;
    for (int i = 0; i < VECTOR_WIDTH; i++)
      if (FIRST_CHANNEL + i < channels) ELEMENT(v, i) = x[(size_t)row * channels + FIRST_CHANNEL + i];
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}

// y = activation(a + b)
KERNEL add(INPUT_VALUES(a), INPUT_VALUES(b), OUTPUT_VALUES(y), ROWS_ARGUMENTS) {
  input_values a = ITEM_START(a), b = ITEM_START(b);
  output_values y = ITEM_START(y);
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, activate(load(a + at) + load(b + at)));
  }
}
