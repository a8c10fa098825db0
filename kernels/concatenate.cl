// Concatenation: channels of several tensors side by side.
#include "elementwise.h"

// Channels `offset` and following of y = x, zero after the last channel of x. Channels before `offset` stay.
KERNEL concatenate_forward(INPUT(x), OUTPUT(y), ROWS_ARGUMENTS, const int channels, const int offset) {
  input x = ITEM_START(x);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  const int first = (offset / BLOCK + band.block) * BLOCK;
  for (int row = band.start; row < band.stop; row += band.step)
    for (int c = first < offset ? offset : first; c < first + BLOCK; c++)
      y[value_at(c, m, row)] = c - offset < channels ? x[value_at(c - offset, m, row)] : 0.0f;
}

// dx = channels `offset` and following of dy
KERNEL concatenate_backward(INPUT(dy), ROWS_ARGUMENTS, const int channels, const int offset, GRADIENT_ARGUMENTS) {
  input dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int filled = channels_of(band.block, channels);
  for (int row = band.start; row < band.stop; row += band.step) {
    V v = (V)0;
    for (int i = 0; i < filled; i++) ELEMENT(v, i) = dy[value_at(offset + band.block * BLOCK + i, m, row)];
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}
